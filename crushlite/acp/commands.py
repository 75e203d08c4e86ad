"""Commands: prompts with a name, if the daemon has them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ..errors import CrushliteError, NotFound
from ..protocol.codec import loads

if TYPE_CHECKING:
    from ..client import RemoteWorkspace

MOST = 500
_COMMAND = re.compile(r"/([^\s/][^\s]{0,199})(?:\s+(.*))?\Z", re.DOTALL)


async def listed(workspace: RemoteWorkspace) -> list[dict[str, Any]]:
    """The commands as the editor wants them; none if the daemon knows no commands."""
    return [
        {
            "name": command["name"],
            "description": str(command.get("description") or command["name"]),
            "input": {"hint": "arguments"},
        }
        for command in await _known(workspace)
    ]


async def expanded(workspace: RemoteWorkspace, text: str) -> str:
    """The prompt that a command line stands for; any other text as it is. Raises CrushliteError if
    the command cannot be used so."""
    found = _COMMAND.match(text)
    if found is None or all(found[1] != command["name"] for command in await _known(workspace)):
        return text
    request = {"command": found[1], "text": found[2] or ""}
    answer = loads(await workspace.wire.send("POST", workspace.at("commands", "expand"), request))
    prompt = answer.get("prompt") if isinstance(answer, dict) else None
    if not isinstance(prompt, str):
        raise CrushliteError(f"the daemon did not say what /{found[1]} stands for")
    return prompt


async def _known(workspace: RemoteWorkspace) -> list[dict[str, Any]]:
    try:
        commands = await workspace.wire.ask_plain(list, workspace.at("commands"))
    except NotFound:
        return []
    return [
        command
        for command in commands[:MOST]
        if isinstance(command, dict) and isinstance(command.get("name"), str)
    ]
