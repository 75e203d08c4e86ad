"""Commands: prompts with a name, if the daemon has them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ..errors import NotFound
from ..features import requests

if TYPE_CHECKING:
    from ..client import RemoteWorkspace
    from ..features.wire import CommandInfo

MOST = 500
_COMMAND = re.compile(r"/([^\s/]\S{0,199})(?:\s+(.*))?\Z", re.DOTALL)


async def listed(workspace: RemoteWorkspace) -> list[dict[str, Any]]:
    """The commands as the editor wants them; none if the daemon knows no commands."""
    return [
        {
            "name": command.name,
            "description": command.description,
            "input": {"hint": " ".join(argument.name for argument in command.arguments) or "text"},
        }
        for command in await _known(workspace)
    ]


async def expanded(workspace: RemoteWorkspace, text: str) -> str:
    """The prompt that a command line stands for; any other text as it is. Raises CrushliteError if
    the command cannot be used so."""
    found = _COMMAND.match(text)
    if found is None or all(found[1] != command.name for command in await _known(workspace)):
        return text
    return await requests.expand_command(workspace, found[1], text=found[2] or "")


async def _known(workspace: RemoteWorkspace) -> list[CommandInfo]:
    try:
        return (await requests.commands(workspace))[:MOST]
    except NotFound:
        return []
