"""`crushlite runs`: the runs of this directory, or of all that the daemon has open."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING, Any

from ..client import ConnectionFailed
from ..errors import ChannelMismatch, NotFound, RunNotFound, UsageError
from ..itself import own_environment
from ..launch import goodbye
from ..protocol.codec import encode
from ..protocol.runs import RUN_STATES
from .common import add_connection, add_json, command, opened, reached, show, show_json
from .helptext import not_empty
from .lookup import SHORT, choose, find_session
from .tables import table
from .text import Style, ago, cut, elapsed, one_line

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncIterator

    from ..client import Client, RemoteWorkspace
    from ..protocol.runs import RunInfo

PROMPT_COLUMNS = 30  # of what was asked, beside the answer

DESCRIPTION = """\
List the runs of this directory, oldest first. The beginning of an id is enough for
`crushlite attach`, if no other run begins so.
"""
EXAMPLES = """\
  crushlite runs                      # the last 20
  crushlite runs --all --state active # what is going on in all open workspaces
  crushlite runs --json --last 0 | jq '.[] | select(.outcome == "failed")'
"""


def add_parser(commands: Any) -> None:
    parser = command(commands, "runs", DESCRIPTION, run, EXAMPLES)
    add = parser.add_argument
    add("--all", action="store_true", help="of every workspace that the daemon has open")
    add("--session", type=not_empty, metavar="ID", help="only of this session")
    states = ", ".join(RUN_STATES)
    add("--state", metavar="STATE", choices=RUN_STATES, default="", help=f"only these: {states}")
    add("--last", metavar="N", type=int, default=20, help="only the last N (default 20; 0: all)")
    add_json(parser, "the list")
    add_connection(parser)


async def run(options: argparse.Namespace) -> int:
    if options.last < 0:
        raise UsageError(f"--last {options.last}: not less than 0")
    found: list[tuple[str, RunInfo]] = []
    async with contextlib.AsyncExitStack() as stack:
        if options.all:
            client = await stack.enter_async_context(reached(options))
            workspaces = [client.attach(info) for info in await client.workspaces()]
        else:
            workspaces = [await stack.enter_async_context(opened(options))]
        session_id = await _session_id(workspaces, options)
        for workspace in workspaces:
            with contextlib.suppress(NotFound):  # closed since it was listed
                runs = await workspace.runs(session_id, options.state)
                found += [(workspace.info.path, info) for info in runs]
    found.sort(key=lambda pair: pair[1].accepted_at)
    found = found[-options.last :] if options.last > 0 else found
    if options.json:
        show_json([{"path": path, **encode(info)} for path, info in found])
    else:
        _show(found, options)
    return 0


async def _session_id(workspaces: list[RemoteWorkspace], options: argparse.Namespace) -> str:
    """The id of the session that --session means; empty without it. Raises NotFound."""
    if not options.session:
        return ""
    if not options.all:
        return await find_session(workspaces[0], options.session)
    for workspace in workspaces:
        with contextlib.suppress(NotFound):
            return await find_session(workspace, options.session)
    raise NotFound(f"no session {options.session} in an open workspace")


def _show(found: list[tuple[str, RunInfo]], options: argparse.Namespace) -> None:
    if not found:
        return show(_nothing(options))
    now, paths = time.time(), options.all
    rows = []
    for path, info in found:
        begin = info.started_at or info.accepted_at
        spent = elapsed((info.ended_at or now) - begin) if info.started_at else ""
        said = info.error or info.text
        where = [path] if paths else []
        when = ago(info.accepted_at, now)
        prompt = cut(one_line(info.prompt), PROMPT_COLUMNS)
        rows.append([info.run_id[:SHORT], _state(info), when, spent, *where, prompt, said])
    heads = ["RUN", "STATE", "ASKED", "TOOK", *(["DIRECTORY"] if paths else []), "PROMPT", "ANSWER"]
    show(table(rows, heads, Style(sys.stdout), spare=("TOOK", "ASKED")))


def _state(info: RunInfo) -> str:
    """How a run ended, in the words of the exit codes; of one that goes on, its state."""
    if info.outcome == "failed" and info.limit:
        return f"limit: {info.limit}"
    if info.outcome == "completed" and info.denied:
        return f"{info.denied} denied"
    return info.outcome or info.state


def _nothing(options: argparse.Namespace) -> str:
    if options.session or options.state:
        return "no such runs"
    return "no runs in an open workspace" if options.all else "no runs yet: crushlite run PROMPT"


# Finding one ------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def workspace_of(
    options: argparse.Namespace, run_id: str
) -> AsyncIterator[tuple[RemoteWorkspace, str]]:
    """The workspace that has a run, and the whole id of the run. Looks in the workspaces that are
    open, of any directory, then in that of the current directory, which is opened for it. Raises
    RunNotFound if none has it."""
    async with contextlib.AsyncExitStack() as stack:
        found = await _among_open(options, run_id, stack)
        if found is None:
            workspace = await stack.enter_async_context(opened(options))
            found = workspace, await _find(workspace, run_id)
        if not found[1]:
            raise RunNotFound(
                f"no run {run_id} in {found[0].info.path} or in an open workspace: "
                "`crushlite runs` lists them; --cwd names another directory"
            )
        yield found


async def _among_open(
    options: argparse.Namespace, run_id: str, stack: contextlib.AsyncExitStack
) -> tuple[RemoteWorkspace, str] | None:
    try:
        client = await stack.enter_async_context(reached(options))
        stack.push_async_callback(goodbye, client)
        for info in await client.workspaces():
            workspace = client.attach(info)
            if whole := await _find(workspace, run_id):
                return await _claim(client, workspace), whole
    except ConnectionFailed:
        pass  # there is no daemon: one will be started
    return None


async def _claim(client: Client, workspace: RemoteWorkspace) -> RemoteWorkspace:
    """Join an open workspace, so that it does not close when its run ends before it is followed."""
    try:
        return await client.create(workspace.info.path, env=own_environment())
    except ChannelMismatch:
        return workspace  # another kind of client opened it; the event stream will claim it


async def _find(workspace: RemoteWorkspace, run_id: str) -> str:
    """The id of the run that begins with this; empty if there is none."""
    try:
        return choose(run_id, [info.run_id for info in await workspace.runs()], "runs")
    except NotFound:
        return ""  # the workspace was closed since it was listed
