"""The routes by which clients change the configuration of a workspace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..api.agent import PROVIDER, own_small_model, required_provider
from ..api.context import EMPTY, answer, body, wire_config
from ..api.entry import Entry, Param, W
from ..api.features import chosen_is_own
from ..errors import NotFound
from ..features.wire import CompactMode, OAuthRefresh, ProviderKey, RemoveValue, SetValue
from ..protocol.config import ModelChoice, SelectedModel
from ..protocol.events import ConfigChanged

if TYPE_CHECKING:
    from ..api.context import Context
    from ..http.messages import Request, Response
    from .part import ConfigPart

INIT_PROMPT = """\
Get to know this project, then write {name} in its root: notes for an agent that comes here without
having seen any of it. If the file exists, improve it and keep what is still true.

Look at the files that say how the project is built, tested and checked, at a few typical source
files and their tests, and at rules that were written for other agents. Then write, briefly:
how to build, run all tests and run one of them; how the code is laid out and what calls what; the
conventions that a change must follow, with a place where each can be seen; and what surprised you.
Only what you have seen in the files: leave out what you could only guess.
"""
CONFIG = W + "/config"
EVERYWHERE = Param("everywhere", "`true`: wait until all model servers were asked for a list.")


def _part(context: Context, request: Request) -> ConfigPart:
    from .part import ConfigPart

    return context.workspace(request).part(ConfigPart)


async def set_value(context: Context, request: Request) -> Response:
    part, wanted = _part(context, request), body(SetValue, request)
    await part.change(part.profile.set_value, wanted.scope, wanted.key, wanted.value)
    return EMPTY


async def remove_value(context: Context, request: Request) -> Response:
    part, wanted = _part(context, request), body(RemoveValue, request)
    await part.change(part.profile.remove_value, wanted.scope, wanted.key)
    return EMPTY


async def choose_model(context: Context, request: Request) -> Response:
    part, wanted = _part(context, request), body(ModelChoice, request)
    configured = wanted.model.provider in part.profile.config.providers
    if configured or not chosen_is_own(context.workspace(request), wanted.model):
        await part.choose_model(wanted)
    return EMPTY


async def set_compact(context: Context, request: Request) -> Response:
    part, wanted = _part(context, request), body(CompactMode, request)
    key = "options.tui.compact_mode"
    await part.change(part.profile.set_value, wanted.scope, key, wanted.enabled)
    return EMPTY


async def set_key(context: Context, request: Request) -> Response:
    part, wanted = _part(context, request), body(ProviderKey, request)
    await part.change(part.profile.set_key, wanted)
    return EMPTY


async def update_agent(context: Context, request: Request) -> Response:
    """Read the configuration again, and look for models again: a file may have been edited by hand,
    or a model server started."""
    part = _part(context, request)
    await part.reread(again=True)
    if request.query_one("everywhere") == "true":
        await part.look(everywhere=True)
    return EMPTY


async def default_small_model(context: Context, request: Request) -> Response:
    part, provider = _part(context, request), required_provider(request)
    small = part.profile.config.small_of(provider)
    return answer(small or own_small_model(context.workspace(request), provider))


async def refresh_oauth(context: Context, request: Request) -> Response:
    context.workspace(request)
    wanted = body(OAuthRefresh, request)
    raise NotFound(
        f"provider {wanted.provider_id!r} has no sign-in that could be renewed: "
        "set a key with config/provider-key"
    )


async def init_project(context: Context, request: Request) -> Response:
    """Store nothing, but publish the event on which every client reads the configuration again."""
    workspace = context.workspace(request)
    workspace.hub.publish("updated", ConfigChanged(workspace.id))
    return EMPTY


async def init_prompt(context: Context, request: Request) -> Response:
    name = wire_config(context.workspace(request))["options"]["initialize_as"]
    return answer({"prompt": INIT_PROMPT.format(name=name)})


ROUTES = (
    Entry("POST", CONFIG + "/set", set_value, takes=SetValue),
    Entry("POST", CONFIG + "/remove", remove_value, takes=RemoveValue),
    Entry("POST", CONFIG + "/model", choose_model, takes=ModelChoice),
    Entry("POST", CONFIG + "/compact", set_compact, takes=CompactMode),
    Entry("POST", CONFIG + "/provider-key", set_key, takes=ProviderKey),
    Entry("POST", CONFIG + "/refresh-oauth", refresh_oauth, takes=OAuthRefresh),
    Entry("POST", W + "/project/init", init_project),
    Entry("GET", W + "/project/init-prompt", init_prompt, gives=dict[str, str]),
    Entry("POST", W + "/agent/update", update_agent, params=(EVERYWHERE,)),
    Entry(
        "GET",
        W + "/agent/default-small-model",
        default_small_model,
        gives=SelectedModel,
        params=(PROVIDER,),
    ),
)
