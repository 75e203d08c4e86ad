"""The tool servers that an editor names for a session: the daemon runs them while it is open."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ..client.wire import is_temporary
from ..errors import CrushliteError, NotFound
from ..features import requests
from ..features.wire import ClientServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from .project import Project

log = logging.getLogger(__name__)

MOST = 50
RETRY_SECONDS = 1.0  # after the daemon has ended them, or could not be asked
_UNUSED = "tool servers that the editor names are not used: "
_NO_ROUTE = "this daemon has no tool servers"


def servers_of(given: Any) -> tuple[list[ClientServer], str]:
    """The servers in the parameters of a request, and a sentence about those that make no sense,
    empty if there are none."""
    listed = given if isinstance(given, list) else []
    read = [_server(each) for each in listed[:MOST]]
    found = [each for each in read if each is not None]
    warnings = []
    if count := len(read) - len(found):
        warnings.append(f"not understood: {count}")
    if len(listed) > MOST:
        warnings.append(f"only the first {MOST} of {len(listed)} are used")
    return found, f"Tool servers of the editor: {', '.join(warnings)}" if warnings else ""


def _server(given: Any) -> ClientServer | None:
    match given:
        case {"type": "http" | "sse" as kind, "name": str(name), "url": str(url)}:
            headers = _pairs(given.get("headers"))
            return ClientServer(name, kind, url=url, headers=headers)
        case {"name": str(name), "command": str(command)}:
            args = given.get("args")
            listed = args if isinstance(args, list) else []
            texts = [each for each in listed if isinstance(each, str)]
            return ClientServer(name, "stdio", command, texts, _pairs(given.get("env")))
    return None


def _pairs(given: Any) -> dict[str, str]:
    found = {}
    for each in given if isinstance(given, list) else ():
        match each:
            case {"name": str(name), "value": str(value)}:
                found[name] = value
    return found


async def keep_used(
    project: Project, servers: list[ClientServer], warn: Callable[[str], None]
) -> None:
    """Have the daemon run these servers until this is cancelled, also one that replaces it. Those
    that it does not use are named to `warn`; returns if it uses none. Starts no daemon."""
    warned = ""
    while True:
        workspace = await project.connected_workspace()
        try:
            async for answer in requests.use_tool_servers(workspace, servers):
                reasons = "; ".join(f"{name}: {why}" for name, why in answer.refused.items())
                if reasons and reasons != warned:
                    warn(_UNUSED + reasons)
                warned = reasons
                if not answer.used:
                    return
        except CrushliteError as error:
            if not is_temporary(error):
                names = ", ".join(server.name[:40] for server in servers[:10])
                reason = _NO_ROUTE if isinstance(error, NotFound) else error.message
                return warn(f"{_UNUSED}{names}: {reason}")
            log.info("tool servers of the editor: %s", error)
        await workspace.wire.clock.sleep(RETRY_SECONDS)
