"""Runs the commands of agents, and those that a person types into a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..api.context import answer, body
from ..api.entry import Entry, W
from ..errors import BadRequest
from ..protocol.sessions import ShellAnswer, ShellCommand
from ..wing import Wing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..api.context import Context
    from ..http.messages import Request, Response
    from ..wing import OpenWorkspace
    from .part import ShellPart


class ShellWing(Wing):
    def routes(self) -> Sequence[Entry]:
        place = W + "/agent/sessions/{sid}/shell"
        return (Entry("POST", place, run, takes=ShellCommand, gives=ShellAnswer),)

    async def open(self, workspace: OpenWorkspace) -> ShellPart:
        from .part import ShellPart

        return ShellPart(workspace)


async def run(context: Context, request: Request) -> Response:
    """Run a command. It goes on when the client disconnects."""
    from .part import ShellPart

    workspace, command = context.workspace(request), body(ShellCommand, request).command
    if not command.strip() or "\0" in command:
        raise BadRequest("command must not be empty or contain NUL")
    workspace.endings.require_none()
    return answer(await workspace.part(ShellPart).typed.run(request.params["sid"], command))
