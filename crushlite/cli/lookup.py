"""Find things by what users type: open workspaces by their directory, ids by their beginning."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from ..client import ConnectionFailed
from ..errors import CrushliteError, NotFound
from ..protocol.config import SelectedModel
from .common import address_of, reached, say_nothing, wanted

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncIterator, Iterable

    from ..client import RemoteWorkspace

NEEDS_YOU = "needs you"  # the state of a session that waits for an answer
SHORT = 8  # characters of an id that are shown: enough to name one by


@contextlib.asynccontextmanager
async def running(
    options: argparse.Namespace, nothing: str
) -> AsyncIterator[list[RemoteWorkspace]]:
    """The open workspaces of a daemon that runs already, that of the current directory first.
    Raises CrushliteError if there is no daemon; `nothing` is what the message says about that."""
    async with contextlib.AsyncExitStack() as stack:
        try:
            client = await stack.enter_async_context(reached(options))
            infos = await client.workspaces()
        except ConnectionFailed as error:
            if error.reached:
                raise
            raise CrushliteError(f"no daemon at {address_of(options)}: {nothing}") from None
        workspaces = [client.attach(info) for info in infos]
        yield sorted(workspaces, key=lambda each: not is_here(each, options))


@contextlib.asynccontextmanager
async def open_here(options: argparse.Namespace) -> AsyncIterator[RemoteWorkspace | None]:
    """The workspace of the current directory, if a daemon runs and has it open; else None."""
    async with contextlib.AsyncExitStack() as stack:
        found = None
        try:
            client = await stack.enter_async_context(reached(options))
            workspaces = [client.attach(info) for info in await client.workspaces()]
            found = next((each for each in workspaces if is_here(each, options)), None)
        except ConnectionFailed as error:
            if error.reached:
                raise
        yield found


def is_here(workspace: RemoteWorkspace, options: argparse.Namespace) -> bool:
    """Whether it is the workspace of the current directory, or that of --cwd."""
    here = wanted(options, say_nothing).directory
    return os.path.realpath(here) == os.path.realpath(workspace.info.path)


async def find_session(workspace: RemoteWorkspace, given: str) -> str:
    """The id of a session, given that id, the beginning of it, or `last` for the one used last.
    Raises CrushliteError if there is none, or if several begin so."""
    ids = [session.id for session in await workspace.sessions()]
    if given == "last":
        if not ids:
            raise CrushliteError(f"there is no session in {workspace.info.path} yet")
        return ids[0]
    if found := choose(given, ids, "sessions"):
        return found
    raise NotFound(
        f"no session {given} in {workspace.info.path}: `crushlite sessions list` lists them; "
        "--cwd names another directory"
    )


async def find_model(workspace: RemoteWorkspace, given: str) -> tuple[SelectedModel, str]:
    """The model that a name means: PROVIDER/MODEL, or MODEL if exactly one provider has it. If none
    is known to have it, all are asked for their lists. A model that is spelled out need not be
    listed: then there is a remark, too, that says so and what else may be meant. Raises
    CrushliteError if no model is meant, or several; it names those that may be."""
    for again in (False, True):
        if again:
            from ..features import requests  # only here: most names are known

            await requests.reread_config(workspace, everywhere=True)
        providers = await workspace.providers()
        known = [(p["id"], model["id"]) for p in providers for model in p.get("models") or ()]
        found = [each for each in known if given in (each[1], "/".join(each))]
        if len(found) > 1:
            names = " or ".join("/".join(each) for each in found)
            raise CrushliteError(f"several providers have {given}: say which, {names}")
        if found:
            return SelectedModel(model=found[0][1], provider=found[0][0]), ""
    from ..config.profile import did_you_mean  # models are chosen only with this wing

    provider, slash, model = given.partition("/")
    if not (provider and slash and model):
        hint = did_you_mean(given, [model for _, model in known])
        raise NotFound(f"no model is called {given!r}: {hint}")
    ids = [each["id"] for each in providers]
    if provider not in ids:
        await _require_choice(workspace, given, ids)
        hint = did_you_mean(given, ["/".join(each) for each in known])
        raise NotFound(f"no provider {provider!r} can be used, only {', '.join(ids)}: {hint}")
    hint = did_you_mean(model, [name for owner, name in known if owner == provider])
    remark = f"{provider} lists no model {model!r}, it is used as you wrote it: {hint}"
    return SelectedModel(model=model, provider=provider), remark


async def _require_choice(workspace: RemoteWorkspace, given: str, ids: list[str]) -> None:
    """Raise NotFound if no model at all can be chosen: the only provider is the agent itself."""
    info = await workspace.agent()
    if ids != [info.model_cfg.provider]:
        return
    if info.no_model:
        raise NotFound(f"{given} cannot be used: {info.no_model}")
    raise NotFound(
        f"{given} cannot be used: the daemon was started with an agent of its own, "
        f"{info.model.name or info.model.id}. `crushlite stop`, then ask again"
    )


def choose(given: str, ids: Iterable[str], what: str) -> str:
    """The one of the ids that is `given`, or else begins with it; empty if none does. Raises
    CrushliteError if several do; `what` is what the message calls them."""
    found = []
    for ident in ids:
        if ident == given:
            return ident
        if given and ident.startswith(given):
            found.append(ident)
    if len(found) > 1:
        raise CrushliteError(f"{len(found)} {what} begin with {given}: give more of the id")
    return found[0] if found else ""


async def waiting_sessions(workspace: RemoteWorkspace) -> set[str]:
    """The ids of the sessions that wait for a person: for a permission, or for an answer."""
    permissions, questions = await workspace.permissions(), await workspace.questions()
    return {one.session_id for one in permissions} | {one.session_id for one in questions}
