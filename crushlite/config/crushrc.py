"""What the calls in a `crushrc` mean, as the `crush.json` that says the same.

    provider add ID ...      provider rm ID       model add PROVIDER/ID ...   model rm PROVIDER/ID
    model large|small [PROVIDER/ID] ...           mcp add NAME ...            lsp add NAME ...
    hook add EVENT ...       hook rm EVENT        permissions allow|deny TOOL ...
    option KEY VALUE ...     option reset KEY     option ui WORD VALUE

A call that is not understood has no effect and is reported: a script may be written for another
version.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ..records import dataclass
from .merge import SCHEMA, spell
from .options import OPTIONS
from .script import UNKNOWN
from .warnings import Reason

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .script import Call
    from .warnings import Warn

_TRUE = frozenset({"true", "1", "yes", "on"})
_FALSE = frozenset({"false", "0", "no", "off"})
# Flags that are not called like their keys.
_KEYS = {
    "extra-header": "extra_headers",
    "header": "headers",
    "supports-images": "supports_attachments",
    "price-input": "cost_per_1m_in",
    "price-output": "cost_per_1m_out",
    "price-cache-create": "cost_per_1m_in_cached",
    "price-cache-hit": "cost_per_1m_out_cached",
}
_UI = {
    "compact": (("compact_mode",), bool),
    "diff": (("diff_mode",), str),
    "transparent": (("transparent",), bool),
    "scrollbar": (("scrollbar",), None),
    "completions-max-depth": (("completions", "max_depth"), int),
    "completions-max-items": (("completions", "max_items"), int),
}


class _Misunderstood(Exception):
    """A call, or a part of it, that has no effect. The message says why, without its values."""


@dataclass(slots=True)
class _Given:
    """The arguments of a call: those without a flag, and the values of flags by their keys."""

    names: list[str]
    values: dict[str, Any]


def document_of(path: Path, calls: list[Call], warn: Warn) -> dict[str, Any]:
    """The document that the calls of a script say, to be checked and merged like that of a file."""
    script = _Script()
    for word, *arguments in calls:
        words = [word, *(each for each in arguments[:1] if each.isalpha())]
        shown = spell((" ".join(words if word != UNKNOWN else arguments[:1]),))
        try:
            for problem in script.take(word, arguments):
                warn(Reason.CALL_IGNORED, path, shown, f"`{shown}`: {problem}")
        except _Misunderstood as problem:
            warn(Reason.CALL_IGNORED, path, shown, f"`{shown}` has no effect: {problem}")
    return script.document


class _Script:
    """The document as the calls build it up."""

    def __init__(self) -> None:
        self.document: dict[str, Any] = {}
        self._problems: list[str] = []
        self._words: dict[str, Callable[[str, list[str]], None]] = {
            "provider": self._provider,
            "model": self._model,
            "mcp": lambda verb, rest: self._server("mcp", verb, rest),
            "lsp": lambda verb, rest: self._server("lsp", verb, rest),
            "hook": self._hook,
            "permissions": self._permissions,
            "option": self._option,
            UNKNOWN: self._unknown,
        }

    def take(self, word: str, arguments: list[str]) -> list[str]:
        """Carry out a call; return what of it has no effect. Raises _Misunderstood if none of it
        has."""
        self._problems = []
        verb, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
        self._words[word](verb, rest)
        return self._problems

    def _section(self, *path: str) -> dict[str, Any]:
        section = self.document
        for step in path:
            section = section.setdefault(step, {})
        return section

    def _unknown(self, verb: str, rest: list[str]) -> None:
        raise _Misunderstood("there is no such command")

    # Words ---------------------------------------------------------------------------------------

    def _provider(self, verb: str, rest: list[str]) -> None:
        given = self._read(rest, SCHEMA["providers"]["*"])
        ident = _only(given.names, "the id of a provider")
        if verb == "add":
            self._section("providers", ident).update(given.values)
        elif verb in ("remove", "rm"):
            # It may be one of the catalogue, or of another file.
            self._section("providers")[ident] = {"disable": True}
        else:
            raise _Misunderstood("use add or rm")

    def _model(self, verb: str, rest: list[str]) -> None:
        if verb in ("large", "small"):
            given = self._read(rest, SCHEMA["models"]["*"])
            chosen = {}
            if given.names:
                chosen = dict(zip(("provider", "model"), _pair(given.names), strict=True))
            if chosen or given.values:
                self._section("models", verb).update({**chosen, **given.values})
            return  # without arguments it prints the model, which nobody would read here
        entry = SCHEMA["providers"]["*"]["models"][0]
        given = self._read(rest, entry)
        provider, ident = _pair(given.names)
        models = self._section("providers", provider).setdefault("models", [])
        models[:] = [model for model in models if model["id"] != ident]
        if verb == "add":
            models.append({"id": ident, **given.values})
        elif verb not in ("remove", "rm"):
            raise _Misunderstood("use add, rm, large or small")

    def _server(self, section: str, verb: str, rest: list[str]) -> None:
        given = self._read(rest, SCHEMA[section]["*"])
        name = _only(given.names, "the name of a server")
        if verb == "add":
            self._section(section)[name] = given.values
        elif verb in ("remove", "rm"):
            self._section(section)[name] = {"disabled": True}
        else:
            raise _Misunderstood("use add or rm")

    def _hook(self, verb: str, rest: list[str]) -> None:
        kinds = {"command": str, "name": str, "matcher": str, "timeout": int}
        given = self._read(rest, kinds)
        event = _only(given.names, "the name of an event")
        hooks = self._section("hooks").setdefault(event, [])
        if verb == "add":
            hooks.append(given.values)
        elif verb in ("remove", "rm"):
            name = given.values.get("name")
            hooks[:] = [hook for hook in hooks if name and hook.get("name") != name]
        else:
            raise _Misunderstood("use add or rm")

    def _permissions(self, verb: str, rest: list[str]) -> None:
        place = {"allow": ("permissions", "allowed_tools"), "deny": ("options", "disabled_tools")}
        if verb not in place:
            raise _Misunderstood("use allow or deny")
        section, key = place[verb]
        self._section(section).setdefault(key, []).extend(rest)

    def _option(self, verb: str, rest: list[str]) -> None:
        if verb == "ui":
            return self._ui(rest)
        reset = verb == "reset"
        name = "".join(rest[:1]) if reset else verb
        *above, key = name.replace("-", "_").split(".")
        section = self._section("options", *above)
        if reset or not rest:
            if reset:
                section.pop(key, None)
            return
        option = OPTIONS.get(above[0] if above else key)
        if option is None:
            raise _Misunderstood("there is no such option")
        kind = option.kind.get(key) if above and isinstance(option.kind, dict) else option.kind
        if isinstance(kind, list):
            section.setdefault(key, []).extend(rest)
        else:
            section[key] = _value(_only(rest, "one value"), kind)

    def _ui(self, rest: list[str]) -> None:
        word, *values = rest or [""]
        if word not in _UI:
            raise _Misunderstood(f"use one of {', '.join(_UI)}")
        (*above, key), kind = _UI[word]
        if values:
            self._section("options", "tui", *above)[key] = _value(values[0], kind)

    # Arguments -----------------------------------------------------------------------------------

    def _read(self, arguments: list[str], kinds: dict[str, Any]) -> _Given:
        """The arguments of a call whose flags are the keys of `kinds`. What cannot be read is noted
        as a problem."""
        given = _Given([], {})
        left = list(arguments)
        while left:
            word = left.pop(0)
            if not word.startswith("--"):
                given.names.append(word)
                continue
            flag, equals, value = word[2:].partition("=")
            if equals:
                left.insert(0, value)
            key = _KEYS.get(flag, flag.replace("-", "_"))
            known = key in kinds
            kind = kinds.get(key)
            taken = _take(left, kind, known=known)
            try:
                if not known:
                    raise _Misunderstood("is not known")
                self._put(given.values, key, kind, taken)
            except _Misunderstood as problem:
                self._problems.append(f"{spell((f'--{flag}',))} {problem}")
        return given

    def _put(self, values: dict[str, Any], key: str, kind: Any, taken: list[str]) -> None:
        if isinstance(kind, list):
            values.setdefault(key, []).extend(taken)
        elif isinstance(kind, dict) and "*" in kind:
            if len(taken) % 2:
                raise _Misunderstood("wants names and values in pairs")
            values.setdefault(key, {}).update(zip(taken[::2], taken[1::2], strict=True))
        elif kind is bool and not taken:
            values[key] = True
        else:
            if len(taken) != 1:
                raise _Misunderstood("wants a value")
            values[key] = _value(taken[0], kind)


def _take(left: list[str], kind: Any, *, known: bool) -> list[str]:
    """The words that belong to a flag, taken from those that are left: one, or for a list or an
    object of texts all up to the next flag."""
    many = isinstance(kind, list) or (isinstance(kind, dict) and "*" in kind) or not known
    if kind is bool and known and not (left and left[0].lower() in _TRUE | _FALSE):
        return []
    taken: list[str] = []
    while left and (many or not taken) and not (many and left[0].startswith("--")):
        taken.append(left.pop(0))
    return taken


def _value(text: str, kind: Any) -> Any:
    """A text as a value of this type. Raises _Misunderstood."""
    if kind is bool:
        if text.lower() not in _TRUE | _FALSE:
            raise _Misunderstood("wants true or false")
        return text.lower() in _TRUE
    if kind is str or isinstance(kind, tuple):
        return text
    try:
        if kind in (int, float):
            return kind(text)
        value = json.loads(text)
    except ValueError:
        if kind is None:
            return text
        words = {int: "an integer", float: "a number"}
        raise _Misunderstood(f"wants {words.get(kind, 'a JSON object')}") from None
    if isinstance(kind, dict) and not isinstance(value, dict):
        raise _Misunderstood("wants a JSON object")
    return value


def _only(names: list[str], what: str) -> str:
    if len(names) != 1 or not names[0]:
        raise _Misunderstood(f"wants {what}")
    return names[0]


def _pair(names: list[str]) -> tuple[str, str]:
    provider, _, ident = _only(names, "PROVIDER/MODEL").partition("/")
    if not provider or not ident:
        raise _Misunderstood("wants PROVIDER/MODEL")
    return provider, ident
