"""Features of the base protocol that crushlite does not have: truthful answers, all of them empty.

The Crush UI asks for language servers, tool servers and skills when it starts and whenever it is
looked at. "None" is a good answer; "not found" would be shown as a broken server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import BadRequest, NotFound
from ..protocol.features import GetPrompt, NamedServer, ReadSkill
from .context import EMPTY, answer, body

if TYPE_CHECKING:
    from ..http.messages import Request, Response
    from .context import Context

INIT_PROMPT = """\
Get to know this project, then write {name} in its root: notes for an agent that comes here without
having seen any of it. If the file exists, improve it and keep what is still true.

Look at the files that say how the project is built, tested and checked, at a few typical source
files and their tests, and at rules that were written for other agents. Then write, briefly:
how to build, run all tests and run one of them; how the code is laid out and what calls what; the
conventions that a change must follow, with a place where each can be seen; and what surprised you.
Only what you have seen in the files: leave out what you could only guess.
"""


async def no_list(context: Context, request: Request) -> Response:
    context.workspace(request)
    return answer([])


async def no_map(context: Context, request: Request) -> Response:
    context.workspace(request)
    return answer({})


async def nothing_to_do(context: Context, request: Request) -> Response:
    context.workspace(request)
    return EMPTY


async def diagnostics(context: Context, request: Request) -> Response:
    context.workspace(request)
    raise NotFound("LSP client not found: no language server runs here")


async def read_skill(context: Context, request: Request) -> Response:
    context.workspace(request)
    raise NotFound(f"skill not found: {body(ReadSkill, request).skill_id}")


# The project ----------------------------------------------------------------------------------


async def needs_init(context: Context, request: Request) -> Response:
    """Never: a question at the first start is in the way of whoever wanted to ask something."""
    context.workspace(request)
    return answer({"needs_init": False})


async def init_project(context: Context, request: Request) -> Response:
    """There is no mark to set, but every client looks at the configuration again."""
    context.backend.announce_config(context.hosted(request))
    return EMPTY


async def init_prompt(context: Context, request: Request) -> Response:
    name = context.hosted(request).profile.config.options.initialize_as
    return answer({"prompt": INIT_PROMPT.format(name=name)})


# Tool servers ---------------------------------------------------------------------------------


async def mcp_address(context: Context, request: Request) -> Response:
    context.workspace(request)
    if not request.query_one("name"):
        raise BadRequest("name is required")
    return answer({})


def _server(context: Context, request: Request) -> str:
    context.workspace(request)
    name = body(NamedServer, request).name
    if not name:
        raise BadRequest("name is required")
    return name


async def mcp_absent(context: Context, request: Request) -> Response:
    """What only a running tool server could answer."""
    raise NotFound(f"MCP server not found: {_server(context, request)}: none runs here")


async def mcp_prompt(context: Context, request: Request) -> Response:
    context.workspace(request)
    wanted = body(GetPrompt, request)
    raise NotFound(f"MCP prompt not found: {wanted.client_id}:{wanted.prompt_id}: none runs here")


async def mcp_resources(context: Context, request: Request) -> Response:
    _server(context, request)
    return answer([])


async def mcp_refresh(context: Context, request: Request) -> Response:
    _server(context, request)
    return EMPTY


async def mcp_docker(context: Context, request: Request) -> Response:
    context.workspace(request)
    raise BadRequest("tool servers in containers are not supported: crushlite starts none")
