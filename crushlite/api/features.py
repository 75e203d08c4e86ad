"""Features of the base protocol that the core does not have: truthful answers, most of them empty.
A wing that has the feature replaces its routes.

The Crush UI asks for language servers, tool servers and skills when it starts, and again while it
is used. An empty answer is fine; "not found" would be shown as a broken server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import BadRequest, NotFound
from ..protocol.config import ModelChoice, OAuthRefresh
from ..protocol.events import ConfigChanged
from ..protocol.features import GetPrompt, NamedServer, ReadSkill
from .context import EMPTY, agent_info, answer, body, wire_config

if TYPE_CHECKING:
    from ..hosting.workspace import Workspace
    from ..http.messages import Request, Response
    from ..protocol.config import SelectedModel
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


async def no_shell(context: Context, request: Request) -> Response:
    context.workspace(request)
    raise NotFound("this daemon runs no commands: the wing that does is not there")


# The project ----------------------------------------------------------------------------------


async def needs_init(context: Context, request: Request) -> Response:
    """Always false: a question at the first start would be in the way of the user's own."""
    context.workspace(request)
    return answer({"needs_init": False})


async def init_project(context: Context, request: Request) -> Response:
    """Store nothing, but publish the event on which every client reads the configuration again."""
    workspace = context.workspace(request)
    workspace.hub.publish("updated", ConfigChanged(workspace.id))
    return EMPTY


async def init_prompt(context: Context, request: Request) -> Response:
    name = wire_config(context.workspace(request))["options"]["initialize_as"]
    return answer({"prompt": INIT_PROMPT.format(name=name)})


# Configuration --------------------------------------------------------------------------------


async def daemon_config(context: Context, request: Request) -> Response:
    """The daemon has no configuration of its own: each workspace has one."""
    return answer({})


async def get_config(context: Context, request: Request) -> Response:
    return answer(wire_config(context.workspace(request)))


async def providers(context: Context, request: Request) -> Response:
    return answer(list(wire_config(context.workspace(request))["providers"].values()))


async def change_config(context: Context, request: Request) -> Response:
    context.workspace(request)
    raise NotFound("this daemon has no configuration files: there is nothing to change")


async def choose_model(context: Context, request: Request) -> Response:
    """Accept the model of an agent that needs no configured provider: it is listed as a provider
    of its own, and choosing it changes nothing. Refuse any other."""
    chosen = body(ModelChoice, request).model
    if chosen_is_own(context.workspace(request), chosen):
        return EMPTY
    return await change_config(context, request)


def chosen_is_own(workspace: Workspace, chosen: SelectedModel) -> bool:
    """Whether a chosen model is the agent's own."""
    own = agent_info(workspace).model_cfg
    return (chosen.provider, chosen.model) == (own.provider, own.model)


async def import_copilot(context: Context, request: Request) -> Response:
    """Always without success: there is no token to import."""
    context.workspace(request)
    return answer({"token": None, "success": False})


async def refresh_oauth(context: Context, request: Request) -> Response:
    context.workspace(request)
    wanted = body(OAuthRefresh, request)
    raise NotFound(
        f"provider {wanted.provider_id!r} has no sign-in that could be renewed: "
        "set a key with config/provider-key"
    )


# Tool servers ---------------------------------------------------------------------------------


async def mcp_address(context: Context, request: Request) -> Response:
    context.workspace(request)
    if not request.query_one("name"):
        raise BadRequest("name is required")
    return answer({})


def _server(context: Context, request: Request) -> str:
    """The name of a tool server in the body. Raises BadRequest if it is empty."""
    context.workspace(request)
    name = body(NamedServer, request).name
    if not name:
        raise BadRequest("name is required")
    return name


async def mcp_absent(context: Context, request: Request) -> Response:
    """Refuse what only a running tool server could answer."""
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
