"""The `mcp` section: tool servers, with everything in their values expanded."""

from __future__ import annotations

import contextlib
import re
from dataclasses import field
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from ..records import dataclass
from .expand import Refused
from .merge import spell
from .secrets import url_secrets
from .warnings import Reason

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .expand import Expander
    from .merge import Merged
    from .warnings import Warn

TYPES = ("stdio", "http", "sse")
SECONDS = 15  # from the start of a server to its first list of tools
MOST_SECONDS = 600
_HEADER = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


@dataclass(frozen=True, slots=True)
class ToolServer:
    """How to reach one server. A `problem` says why it cannot be used; its other values do not
    count then. Two that are equal are the same server."""

    name: str
    type: str = "stdio"
    command: str = ""
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    url: str = field(default="", repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    timeout: float = SECONDS
    disabled: bool = False
    enabled_tools: tuple[str, ...] = ()  # if there are some, no others are offered
    disabled_tools: tuple[str, ...] = ()
    problem: str = ""

    def offers(self, tool: str) -> bool:
        """Whether a tool of the server, by its own name, is to be offered."""
        return (not self.enabled_tools or tool in self.enabled_tools) and (
            tool not in self.disabled_tools
        )


def tool_servers(merged: Merged, expander: Expander, warn: Warn) -> Mapping[str, ToolServer]:
    """The servers by name, those that cannot be used too. Disabled ones are not expanded."""
    found: dict[str, ToolServer] = {}
    for name in merged.get("mcp") or {}:
        section = merged.get("mcp", name) or {}
        if section.get("disabled"):
            found[name] = ToolServer(name, disabled=True)
            continue
        try:
            found[name] = _Section(name, section, merged, expander).server()
        except (Refused, ConfigError) as error:
            reason = error.message if isinstance(error, ConfigError) else str(error)
            found[name] = ToolServer(name, problem=reason)
            key, source = spell(("mcp", name)), merged.source("mcp", name)
            if source is not None:
                warn(Reason.SERVER_LEFT_OUT, source.path, key, f"{key} is not started: {reason}")
    return found


def sendable_headers(given: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The headers without those that are empty: their variable is not set. Raises Refused."""
    headers = {key: value.strip() for key, value in given.items()}
    for key, value in headers.items():
        if not _HEADER.fullmatch(key) or not _VALUE.fullmatch(value):
            raise Refused(f"the header {key[:40]!r} cannot be sent")
    return tuple((key, value) for key, value in headers.items() if value)


class _Section:
    """One entry of the section."""

    def __init__(
        self, name: str, values: dict[str, Any], merged: Merged, expander: Expander
    ) -> None:
        self._name = name
        self._values = values
        self._merged = merged
        self._expander = expander

    def server(self) -> ToolServer:
        """Raises Refused or ConfigError if it cannot be used."""
        values = self._values
        kind = values.get("type") or "stdio"
        if kind not in TYPES:
            raise Refused(f"type must be one of {', '.join(TYPES)}")
        command = self._text("command") if kind == "stdio" else ""
        url = self._text("url") if kind != "stdio" else ""
        if not (command or url):
            raise Refused("it has no command" if kind == "stdio" else "it has no url")
        with contextlib.suppress(ValueError):  # no address: said when it is connected to
            self._expander.secrets.update(url_secrets(url))
        args = [self._expanded(text, "args", str(n)) for n, text in self._list("args")]
        return ToolServer(
            self._name,
            type=kind,
            command=command,
            args=tuple(args),
            env=tuple(self._map("env").items()),
            url=url,
            headers=self._headers(),
            timeout=float(min(values.get("timeout") or SECONDS, MOST_SECONDS)),
            enabled_tools=tuple(values.get("enabled_tools") or ()),
            disabled_tools=tuple(values.get("disabled_tools") or ()),
        )

    def _headers(self) -> tuple[tuple[str, str], ...]:
        return sendable_headers(self._map("headers"))

    def _text(self, key: str) -> str:
        text = self._values.get(key)
        return self._expanded(text, key).strip() if text else ""

    def _list(self, key: str) -> list[tuple[int, str]]:
        return list(enumerate(self._values.get(key) or ()))

    def _map(self, key: str) -> dict[str, str]:
        given = self._values.get(key) or {}
        return {name: self._expanded(text, key, name) for name, text in given.items()}

    def _expanded(self, text: str, *path: str) -> str:
        source = self._merged.source("mcp", self._name, *path)
        assert source is not None
        value = self._expander.expand(text, source, spell(("mcp", self._name, *path)))
        if "\0" in value:
            raise Refused(f"{path[0]} holds a NUL character")
        return value
