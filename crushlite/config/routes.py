"""The routes by which clients change the configuration of a workspace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..api.agent import PROVIDER, own_small_model, required_provider
from ..api.context import EMPTY, answer, body
from ..api.entry import Entry, Param, W
from ..api.features import chosen_is_own
from ..protocol.config import (
    CompactMode,
    ModelChoice,
    ProviderKey,
    RemoveValue,
    SelectedModel,
    SetValue,
)

if TYPE_CHECKING:
    from ..api.context import Context
    from ..http.messages import Request, Response
    from .part import ConfigPart

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


ROUTES = (
    Entry("POST", CONFIG + "/set", set_value, takes=SetValue),
    Entry("POST", CONFIG + "/remove", remove_value, takes=RemoveValue),
    Entry("POST", CONFIG + "/model", choose_model, takes=ModelChoice),
    Entry("POST", CONFIG + "/compact", set_compact, takes=CompactMode),
    Entry("POST", CONFIG + "/provider-key", set_key, takes=ProviderKey),
    Entry("POST", W + "/agent/update", update_agent, params=(EVERYWHERE,)),
    Entry(
        "GET",
        W + "/agent/default-small-model",
        default_small_model,
        gives=SelectedModel,
        params=(PROVIDER,),
    ),
)
