"""The configuration of a workspace: what clients see of it, and how they change it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..api.context import EMPTY, answer, body
from ..api.views import agent_info, wire_config
from ..errors import NotFound
from ..protocol.config import (
    CompactMode,
    ModelChoice,
    OAuthRefresh,
    ProviderKey,
    RemoveValue,
    SetValue,
)

if TYPE_CHECKING:
    from ..api.context import Context
    from ..http.messages import Request, Response


async def daemon(context: Context, request: Request) -> Response:
    """The daemon has no configuration of its own: each workspace has one."""
    return answer({})


async def get(context: Context, request: Request) -> Response:
    return answer(wire_config(context.hosted(request)))


async def providers(context: Context, request: Request) -> Response:
    return answer(list(wire_config(context.hosted(request))["providers"].values()))


async def set_value(context: Context, request: Request) -> Response:
    hosted, wanted = context.hosted(request), body(SetValue, request)
    await context.backend.change_config(
        hosted, lambda: hosted.profile.set_value(wanted.scope, wanted.key, wanted.value)
    )
    return EMPTY


async def remove_value(context: Context, request: Request) -> Response:
    hosted, wanted = context.hosted(request), body(RemoveValue, request)
    await context.backend.change_config(
        hosted, lambda: hosted.profile.remove_value(wanted.scope, wanted.key)
    )
    return EMPTY


async def choose_model(context: Context, request: Request) -> Response:
    """An agent that needs no provider stands in the list as one of its own: choosing it changes
    nothing and is no mistake."""
    hosted, wanted = context.hosted(request), body(ModelChoice, request)
    own = agent_info(hosted.workspace).model_cfg
    chosen = wanted.model.provider, wanted.model.model
    if own.provider in hosted.profile.config.providers or chosen != (own.provider, own.model):
        await context.backend.change_config(hosted, lambda: hosted.profile.choose_model(wanted))
    return EMPTY


async def set_compact(context: Context, request: Request) -> Response:
    hosted, wanted = context.hosted(request), body(CompactMode, request)
    await context.backend.change_config(
        hosted,
        lambda: hosted.profile.set_value(wanted.scope, "options.tui.compact_mode", wanted.enabled),
    )
    return EMPTY


async def set_key(context: Context, request: Request) -> Response:
    hosted, wanted = context.hosted(request), body(ProviderKey, request)
    await context.backend.change_config(hosted, lambda: hosted.profile.set_key(wanted))
    return EMPTY


async def import_copilot(context: Context, request: Request) -> Response:
    """There is no token to import."""
    context.workspace(request)
    return answer({"token": None, "success": False})


async def refresh_oauth(context: Context, request: Request) -> Response:
    context.workspace(request)
    wanted = body(OAuthRefresh, request)
    raise NotFound(
        f"provider {wanted.provider_id!r} has no sign-in that could be renewed: "
        "set a key with config/provider-key"
    )
