"""`crushlite cancel`: end what runs, and say exactly what was hit."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

from ..errors import CrushliteError, RunNotFound, UsageError
from ..records import dataclass
from .common import add_connection, add_json, command, say, show, show_json
from .helptext import not_empty, seconds
from .lookup import SHORT, choose, is_here, running

if TYPE_CHECKING:
    import argparse

    from ..client import RemoteWorkspace
    from ..protocol.runs import CanceledRun

WAIT = 30.0  # seconds that --wait without a number waits
MOST = 600.0  # seconds that a daemon waits for

DESCRIPTION = """\
Cancel a session: all of its prompts that were accepted so far, running and queued. Given a run,
only that one: if it still waits in line, its prompt is taken back. Without an argument: the session
that is at work in this directory. Prints a receipt, one line per run: its id, and what it was.
Nothing to cancel is no error.
"""
EXAMPLES = """\
  crushlite cancel                 # what is at work here
  crushlite cancel 3f2a --wait     # a session or a run; wait for its end
  crushlite cancel --all           # everything, in every directory
"""


@dataclass(slots=True)
class _Receipt:
    """The runs of one session that a cancel has hit."""

    path: str
    session_id: str
    canceled: list[CanceledRun] = field(default_factory=list)


def add_parser(commands: Any) -> None:
    parser = command(commands, "cancel", DESCRIPTION, run, EXAMPLES)
    add = parser.add_argument
    an_id = "an id, or its beginning"
    add("target", nargs="?", type=not_empty, metavar="SESSION|RUN", help=an_id)
    add("--all", action="store_true", help="every session that is at work, in all workspaces")
    add(
        "--wait",
        metavar="S",
        nargs="?",
        type=seconds,
        const=WAIT,
        help=f"return when it has ended, at most after S seconds (default {WAIT:g})",
    )
    add_json(parser, "the receipts")
    add_connection(parser, start=False)


async def run(options: argparse.Namespace) -> int:
    if options.all and options.target:
        raise UsageError("give a session or a run, or --all, not both")
    if options.wait is not None and options.wait > MOST:
        raise UsageError(f"--wait {options.wait:g}: at most {MOST:g} seconds")
    async with running(options, "nothing is running") as workspaces:
        if options.target:
            receipts = [await _cancel_one(workspaces, options.target, options.wait)]
        else:
            receipts = await _cancel_busy(workspaces, options)
    if options.json:
        show_json(receipts)
        return 0
    hit = [each for receipt in receipts for each in receipt.canceled]
    for each in hit:
        show(f"{each.run_id}  was {each.was}")
    if not hit:
        say("nothing was running")
    return 0


async def _cancel_one(
    workspaces: list[RemoteWorkspace], target: str, wait: float | None
) -> _Receipt:
    """Cancel the session, else the run, whose id begins so. Raises RunNotFound if there is none."""
    for workspace in workspaces:
        ids = [session.id for session in await workspace.sessions()]
        if session_id := choose(target, ids, "sessions"):
            return await _cancel_session(workspace, session_id, wait)
    for workspace in workspaces:
        runs = {info.run_id: info for info in await workspace.runs()}
        if run_id := choose(target, runs, "runs"):
            receipt = await workspace.cancel_run(run_id, wait)
            return _Receipt(workspace.info.path, runs[run_id].session_id, receipt.canceled)
    raise RunNotFound(
        f"no session or run {target} in an open workspace: "
        "`crushlite ps` shows what goes on, `crushlite runs` lists the runs of this directory"
    )


async def _cancel_session(
    workspace: RemoteWorkspace, session_id: str, wait: float | None
) -> _Receipt:
    receipt = await workspace.cancel(session_id, wait)
    return _Receipt(workspace.info.path, session_id, receipt.canceled)


async def _cancel_busy(
    workspaces: list[RemoteWorkspace], options: argparse.Namespace
) -> list[_Receipt]:
    """Cancel every session that is at work: with --all, else the one of the current directory.
    Raises CrushliteError if that has several."""
    busy: list[tuple[RemoteWorkspace, str]] = []
    for workspace in workspaces:
        if options.all or is_here(workspace, options):
            live = [info for info in await workspace.runs() if info.state != "ended"]
            busy += [(workspace, ident) for ident in dict.fromkeys(i.session_id for i in live)]
    if len(busy) > 1 and not options.all:
        names = ", ".join(session_id[:SHORT] for _, session_id in busy)
        raise CrushliteError(f"{len(busy)} sessions are at work here: name one ({names}) or --all")
    return [await _cancel_session(workspace, ident, options.wait) for workspace, ident in busy]
