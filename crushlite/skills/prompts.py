"""The prompts of tool servers as commands. They are asked for through the routes of the base
protocol (`mcp/prompts`, `mcp/get-prompt`), which the core answers as well: so it makes no
difference whether there are tool servers, and which wing has them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ..api.entry import W
from ..errors import CrushliteError, NotFound
from ..features.wire import CommandArgument, CommandInfo
from ..http.messages import Response
from ..protocol.codec import dumps, loads
from ..records import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..api.context import Context
    from ..http.messages import Request

MOST = 500
SOURCE = "mcp"


@dataclass(frozen=True, slots=True)
class ServerPrompt:
    """Implements features.wire.OfferedCommand. `request` is the one that asked for the commands."""

    info: CommandInfo
    server: str
    prompt: str
    context: Context
    request: Request

    async def expand(self, arguments: Mapping[str, str], text: str) -> str:
        wanted = {"client_id": self.server, "prompt_id": self.prompt, "args": dict(arguments)}
        value = await _ask(self.context, self.request, "POST", "/mcp/get-prompt", wanted)
        found = value.get("prompt") if isinstance(value, dict) else None
        if not isinstance(found, str):
            raise CrushliteError(f"the server {self.server} gave no prompt")
        return f"{found}\n\n{text}" if text else found


async def server_prompts(context: Context, request: Request) -> list[ServerPrompt]:
    """The prompts of the tool servers of a workspace that run now. Raises CrushliteError."""
    listed = await _ask(context, request, "GET", "/mcp/prompts")
    found = []
    for each in listed[:MOST] if isinstance(listed, list) else ():
        server, prompt = str(each["client_id"]), str(each["prompt_id"])
        arguments = [
            CommandArgument(
                str(argument["id"]),
                str(argument.get("description") or ""),
                required=argument.get("required") is True,
            )
            for argument in each.get("arguments") or ()
        ]
        about = " ".join(str(each.get("description") or each.get("title") or "").split())
        name = f"{server}:{prompt}".replace(" ", "-")
        info = CommandInfo(f"{SOURCE}:{name}", name, about[:200], SOURCE, arguments)
        found.append(ServerPrompt(info, server, prompt, context, request))
    return found


async def _ask(
    context: Context, request: Request, method: str, path: str, body: object = None
) -> Any:
    """What a route of the same workspace answers. Raises CrushliteError."""
    for entry in context.table:
        if (entry.method, entry.pattern) == (method, W + path):
            sent = b"" if body is None else dumps(body)
            asked = dataclasses.replace(request, body=sent, parsed=None)
            answer = await entry.function(context, asked)
            assert isinstance(answer, Response)
            return loads(b"".join((answer.body, *answer.more)))
    raise NotFound(f"no route {method} {path}")
