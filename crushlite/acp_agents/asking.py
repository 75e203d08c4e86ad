"""The permission requests of an agent: shown to all clients with the options that it offers, and
answered with one of them.

A client may choose an option. One that only says yes or no, or a rule that says yes, chooses by the
kind of the options: yes is the option that allows once. What a client grants for the session is
kept by us, as exactly the same request once more, and is never an option of the agent that it did
not show.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from ..agent.base import Scope
from ..errors import BadRequest
from ..protocol.permissions import PermissionOption
from .content import block_text, diffs, listed, text_of
from .failures import shown

if TYPE_CHECKING:
    from ..agent.base import Turn, Verdict
    from .updates import ReportedCall

KINDS = ("allow_once", "allow_always", "reject_once", "reject_always")
CANCELLED: dict[str, Any] = {"outcome": {"outcome": "cancelled"}}
_MOST_OPTIONS = 20
_MOST_NAME = 300  # characters: what is longer could not be shown as an answer to choose
_CHANGE = ("file_path", "old_content", "new_content")  # as clients know a change of a file


def options_of(params: dict[str, Any]) -> list[PermissionOption]:
    """The options of a request that can be shown and chosen."""
    found: dict[str, PermissionOption] = {}
    for option in listed(params.get("options"), _MOST_OPTIONS):
        ident, kind = text_of(option.get("optionId")), text_of(option.get("kind"))
        name = " ".join(text_of(option.get("name")).split()) or ident
        if ident and kind in KINDS and len(name) <= _MOST_NAME and len(ident) <= _MOST_NAME:
            found.setdefault(ident, PermissionOption(ident, name, kind))
    return list(found.values())


async def ask(turn: Turn, call: ReportedCall, options: list[PermissionOption]) -> dict[str, Any]:
    """Ask all clients, and return the answer for the agent."""
    if not options or not call.is_whole:
        return _answer(options, None)
    params, description = _params(call), _description(call, options)
    try:
        verdict = await turn.permission(
            call.tool_name,
            call.kind or "execute",
            description=description,
            params=params,
            path=_path(call),
            tool_call_id=call.id,
            scope=Scope((_digest(call, description, params),), "exactly the same again"),
            options=options,
        )
    except BadRequest:
        return _answer(options, None)  # more than a user could read is not granted
    return _answer(options, verdict)


def _answer(options: list[PermissionOption], verdict: Verdict | None) -> dict[str, Any]:
    """The outcome: the option that was chosen, else the first of a kind that says the same. Without
    any, the request is called off. `verdict` is None for what was not asked."""
    granted = verdict is not None and verdict.granted
    kinds = KINDS[:2] if granted else KINDS[2:]
    by_kind = (option.id for kind in kinds for option in options if option.kind == kind)
    chosen = (verdict.option if verdict is not None else "") or next(by_kind, "")
    if not chosen:
        return CANCELLED
    return {"outcome": {"outcome": "selected", "optionId": chosen}}


def _description(call: ReportedCall, options: list[PermissionOption]) -> str:
    """What the agent calls it. If it offers nothing that allows it only once, what a yes means."""
    text = call.title or call.tool_name
    allowing = [option for option in options if option.allows]
    if allowing and not any(option.kind == "allow_once" for option in allowing):
        text += f"\n(to allow it means: {allowing[0].name})"
    return text


def _params(call: ReportedCall) -> dict[str, Any]:
    """All that the agent says about what it will do: the input of the tool, and what the content of
    the call adds. Neither hides the other."""
    params, added = dict(call.arguments), dict[str, Any]()
    said = [
        block_text(item.get("content")) for item in call.content if item.get("type") == "content"
    ]
    if details := "\n".join(filter(None, said)):
        added["details"] = details
    changes = [dict(zip(_CHANGE, change, strict=True)) for change in diffs(call.content)]
    if len(changes) == 1:
        added |= changes[0]
        if call.kind == "edit":
            # The input often repeats the whole file, of which clients show the lines that change.
            texts = [text for text in (added["old_content"], added["new_content"]) if text]
            params = {key: value for key, value in params.items() if value not in texts}
    elif changes:
        added["changes"] = changes
    if any(key in params and params[key] != value for key, value in added.items()):
        params = {"input": params}  # the same name for something else: show both
    return params | added


def _path(call: ReportedCall) -> str:
    """The folder that it is about, if the agent says one."""
    folder = call.input.get("cwd") if isinstance(call.input, dict) else None
    return shown(folder, 4096) if isinstance(folder, str) else ""


def _digest(call: ReportedCall, description: str, params: dict[str, Any]) -> str:
    """Equal for two requests if a user sees no difference between them. The description is part of
    it: it says so if a yes allows more than this once."""
    value = [call.tool_name, call.kind, description, params]
    text = json.dumps(value, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
