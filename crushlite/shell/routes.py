"""The route of the commands that a person types."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..api.context import answer, body
from ..api.entry import Entry, W
from ..errors import BadRequest
from ..features.wire import ShellAnswer, ShellCommand
from .part import ShellPart

if TYPE_CHECKING:
    from ..api.context import Context
    from ..http.messages import Request, Response


async def run(context: Context, request: Request) -> Response:
    """Run a command. It goes on when the client disconnects."""
    workspace, command = context.workspace(request), body(ShellCommand, request).command
    if not command.strip() or "\0" in command:
        raise BadRequest("command must not be empty or contain NUL")
    workspace.endings.require_none()
    return answer(await workspace.part(ShellPart).typed.run(request.params["sid"], command))


PLACE = W + "/agent/sessions/{sid}/shell"
ROUTES = (Entry("POST", PLACE, run, takes=ShellCommand, gives=ShellAnswer),)
