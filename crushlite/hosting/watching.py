"""Starting commands in a workspace, and telling its parts about them.

Before a command that may change files starts, every part is asked for a CommandWatch. When the
command has ended, or goes on as a job of its session, `ended` of each watch is awaited. A command
that only reads starts without that. A turn whose agent is a program of its own, which changes files
without a command, is watched as a whole in the same way.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from ..clock import resolve_once
from ..commands import process

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..commands.process import Command
    from ..wing import Author, CommandWatch
    from .services import Services


class WatchedCommand:
    """A command that runs, and its watches."""

    def __init__(self, command: Command, watches: list[CommandWatch]) -> None:
        self.command = command
        self._watches = watches
        self._kept: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Done when every watch has ended.
        self.reported: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if watches:
            self.reported = asyncio.create_task(self._report())
        else:
            self.reported.set_result(None)

    @property
    def due(self) -> bool:
        """Whether the command has ended or was kept: then its watches are ending, or have ended."""
        return self.command.done.done() or self._kept.done()

    def keep(self) -> None:
        """The command goes on, but what it changes from now on belongs to no run."""
        resolve_once(self._kept)

    async def _report(self) -> None:
        ends: list[asyncio.Future[Any]] = [self.command.done, self._kept]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        await end_watches(self._watches)


async def start_command(  # noqa: PLR0913 - the options of a command
    services: Services,
    command: str | Sequence[str],
    author: Author,
    *,
    cwd: str = "",
    env: Mapping[str, str] | None = None,
    on_output: Callable[[bytes], None] | None = None,
    read_only: bool = False,
) -> WatchedCommand:
    """Start a command: in the workspace's directory and with its environment without secrets,
    unless others are given."""
    watches = [] if read_only else await begin_watches(services, author)
    try:
        started = await process.start(
            command,
            cwd=cwd or services.path,
            env=services.command_env() if env is None else env,
            clock=services.clock,
            on_output=on_output,
        )
    except BaseException:
        for watch in watches:
            watch.dropped()
        raise
    return WatchedCommand(started, watches)


async def begin_watches(services: Services, author: Author) -> list[CommandWatch]:
    """Ask every part for its watch. If one fails, or this is cancelled, none is left."""
    watches: list[CommandWatch] = []
    try:
        for part in services.parts:
            watch = await part.before_command(author)
            if watch is not None:
                watches.append(watch)
    except BaseException:
        for watch in watches:
            watch.dropped()
        raise
    return watches


async def end_watches(watches: list[CommandWatch]) -> None:
    """Let each watch record what has changed."""
    for watch in watches:
        await watch.ended()
