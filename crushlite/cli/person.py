"""The person at the terminal: whether one is there, and their word before something is done."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from ..errors import UsageError
from .common import say

if TYPE_CHECKING:
    import argparse

    from ..client import RemoteWorkspace


def is_there() -> bool:
    """Whether somebody can read a question and answer it."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


async def agreed(workspace: RemoteWorkspace, question: str) -> bool:
    """Their yes. Where nobody is, it must have been given on the command line. The stream keeps the
    workspace while they think: without one the daemon takes us for gone after a while."""
    if not is_there():
        raise UsageError(f"{question} nobody is there to ask: say --yes")
    async with workspace.events():
        print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
        try:
            answer = await _line()
        except asyncio.CancelledError:
            print(file=sys.stderr)  # Ctrl-C left the cursor behind the question
            raise
    return answer.strip().lower() in ("y", "yes")


async def _line() -> str:
    """A line, when there is one: until then the loop is free, and Ctrl-C is heard."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(0, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(0)
    return sys.stdin.readline()


async def warn_if_unasked(workspace: RemoteWorkspace, options: argparse.Namespace) -> None:
    """Also where only errors are wanted: what --yolo does is not to happen unseen."""
    if options.yolo and await workspace.skips_permissions():
        say("--yolo: every permission is granted, nobody is asked")
