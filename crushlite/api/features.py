"""Features of the base protocol that the core does not have: truthful answers, empty or 404. A wing
that has the feature replaces its routes.

The Crush UI asks for language servers, tool servers and skills when it starts, and again while it
is used. An empty answer is fine; "not found" would be shown as a broken server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import NotFound
from ..protocol.config import ModelChoice
from ..protocol.sessions import NEVER
from .context import EMPTY, agent_info, answer, body, wire_config

if TYPE_CHECKING:
    from ..hosting.workspace import Workspace
    from ..http.messages import Request, Response
    from ..protocol.config import SelectedModel
    from .context import Context


async def no_list(context: Context, request: Request) -> Response:
    context.workspace(request)
    return answer([])


async def no_map(context: Context, request: Request) -> Response:
    context.workspace(request)
    return answer({})


async def nothing_to_do(context: Context, request: Request) -> Response:
    """There are no servers, no configuration files, and no place to note that a file was read."""
    context.workspace(request)
    return EMPTY


async def never_read(context: Context, request: Request) -> Response:
    context.workspace(request)
    return answer(NEVER)


async def absent(context: Context, request: Request) -> Response:
    context.workspace(request)
    raise NotFound(
        "this daemon has no part that answers this: it was made without configuration files, "
        "skills, tool servers, language servers, commands or summaries"
    )


async def needs_init(context: Context, request: Request) -> Response:
    """Always false: a question at the first start would be in the way of the user's own."""
    context.workspace(request)
    return answer({"needs_init": False})


async def import_copilot(context: Context, request: Request) -> Response:
    """Always without success: there is no token to import."""
    context.workspace(request)
    return answer({"token": None, "success": False})


async def daemon_config(context: Context, request: Request) -> Response:
    """The daemon has no configuration of its own: each workspace has one."""
    return answer({})


async def get_config(context: Context, request: Request) -> Response:
    return answer(wire_config(context.workspace(request)))


async def providers(context: Context, request: Request) -> Response:
    return answer(list(wire_config(context.workspace(request))["providers"].values()))


async def choose_model(context: Context, request: Request) -> Response:
    """Accept the model of an agent that needs no configured provider: it is listed as a provider
    of its own, and choosing it changes nothing. Refuse any other."""
    chosen = body(ModelChoice, request).model
    if chosen_is_own(context.workspace(request), chosen):
        return EMPTY
    return await absent(context, request)


def chosen_is_own(workspace: Workspace, chosen: SelectedModel) -> bool:
    """Whether a chosen model is the agent's own."""
    own = agent_info(workspace).model_cfg
    return (chosen.provider, chosen.model) == (own.provider, own.model)
