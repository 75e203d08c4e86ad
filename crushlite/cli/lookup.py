"""Finding things by what people type: a running daemon's workspaces, and ids by their beginning."""

from __future__ import annotations

import argparse
import contextlib
import os
from typing import TYPE_CHECKING

from ..client import ConnectionFailed
from ..errors import CrushliteError, NotFound
from .common import address_of, reached, say_nothing, wanted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from ..client import Client, RemoteWorkspace

SHORT = 8  # characters of an id: enough to tell things apart, and to name one by


def inherit(parser: argparse.ArgumentParser, action: argparse.ArgumentParser) -> None:
    """For the parser of an action: what is not given after the action was perhaps given before it,
    and must not be replaced by a default."""
    known = {option.dest for option in parser._actions}
    for option in action._actions:
        if option.option_strings and option.dest in known:
            option.default = argparse.SUPPRESS


@contextlib.asynccontextmanager
async def running(
    options: argparse.Namespace, nothing: str
) -> AsyncIterator[tuple[Client, list[RemoteWorkspace]]]:
    """A daemon that runs already, and what it has open, the workspace of this directory first.
    None is started: `nothing` says what that means for the caller."""
    async with contextlib.AsyncExitStack() as stack:
        try:
            client = await stack.enter_async_context(reached(options))
            infos = await client.workspaces()
        except ConnectionFailed as error:
            if error.reached:
                raise
            raise CrushliteError(f"no daemon at {address_of(options)}: {nothing}") from None
        workspaces = [client.attach(info) for info in infos]
        yield client, sorted(workspaces, key=lambda each: not is_here(each, options))


def is_here(workspace: RemoteWorkspace, options: argparse.Namespace) -> bool:
    """Whether it is the workspace of the directory that the command is about."""
    here = wanted(options, say_nothing).directory
    return os.path.realpath(here) == os.path.realpath(workspace.info.path)


async def find_session(workspace: RemoteWorkspace, given: str) -> str:
    """The whole id of a session: of its beginning, or of `last`, the one used last."""
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


def choose(given: str, ids: Iterable[str], what: str) -> str:
    """The one id that is this, or begins so; empty if there is none. Several are an error."""
    found = []
    for ident in ids:
        if ident == given:
            return ident
        if given and ident.startswith(given):
            found.append(ident)
    if len(found) > 1:
        raise CrushliteError(f"{len(found)} {what} begin with {given}: give more of the id")
    return found[0] if found else ""
