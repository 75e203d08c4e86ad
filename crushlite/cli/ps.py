"""`crushlite ps`: what the daemon is doing: workspaces, sessions at work, queues, open requests."""

from __future__ import annotations

import sys
import time
from dataclasses import field
from typing import TYPE_CHECKING, Any

from ..client import ConnectionFailed
from ..errors import NotFound
from ..features import requests
from ..features.wire import Health
from ..protocol.runs import LIVE_STATES
from ..records import dataclass
from .common import add_connection, add_json, address_of, command, reached, show, show_json
from .lookup import NEEDS_YOU, SHORT
from .tables import clip, shorten
from .text import Style, ago, count, cut, elapsed, one_line

if TYPE_CHECKING:
    import argparse

    from ..client import RemoteWorkspace
    from ..protocol.runs import RunInfo
    from ..protocol.sessions import Session

DESCRIPTION = """\
Show the daemon and what goes on in it: workspaces, who is there, sessions at work with their runs
and queues, and what waits for an answer. Exit code 1 if no daemon is running.
"""
EXAMPLES = """\
  crushlite ps
  crushlite ps --json | jq -r '.workspaces[].sessions[] | select(.is_busy) | .id'
  watch -n1 crushlite ps
"""


@dataclass(slots=True)
class _WorkspaceState:
    """What goes on in one workspace."""

    path: str
    id: str
    model: str = ""
    sessions: list[Session] = field(default_factory=list)
    runs: list[RunInfo] = field(default_factory=list)  # those that have not ended
    permissions: int = 0
    questions: int = 0
    needs_you: list[str] = field(default_factory=list)  # sessions that wait for an answer


@dataclass(slots=True)
class _DaemonState:
    """What goes on in the daemon; `daemon` is None if none runs at the address."""

    address: str
    daemon: Health | None = None
    workspaces: list[_WorkspaceState] = field(default_factory=list)


def add_parser(commands: Any) -> None:
    parser = command(commands, "ps", DESCRIPTION, run, EXAMPLES)
    add_json(parser, "all of it")
    add_connection(parser, start=False)


async def run(options: argparse.Namespace) -> int:
    state = _DaemonState(address_of(options))
    try:
        async with reached(options) as client:
            try:
                state.daemon = await requests.vitals(client)
            except NotFound:  # it makes no reports about itself
                state.daemon = Health("ok", (await client.version()).version, *(0,) * 7)
            for info in await client.workspaces():
                try:
                    state.workspaces.append(await _look(client.attach(info)))
                except NotFound:
                    pass  # closed since it was listed
    except ConnectionFailed as error:
        if error.reached:
            raise
    if options.json:
        show_json(state)
    else:
        style = Style(sys.stdout)
        lines = _lines(state, style, time.time())
        show("\n".join(clip(line, style.columns) for line in lines))
    return 0 if state.daemon is not None else 1


async def _look(workspace: RemoteWorkspace) -> _WorkspaceState:
    permissions, questions = await workspace.permissions(), await workspace.questions()
    return _WorkspaceState(
        workspace.info.path,
        workspace.id,
        model=(await workspace.agent()).model.name,
        sessions=await workspace.sessions(),
        runs=await _live_runs(workspace),
        permissions=len(permissions),
        questions=len(questions),
        needs_you=sorted(
            {one.session_id for one in permissions} | {one.session_id for one in questions}
        ),
    )


async def _live_runs(workspace: RemoteWorkspace) -> list[RunInfo]:
    """Runs that have not ended, oldest first. Those that have are not asked for: there may be more
    than fit into an answer. In this order, in which a run has its states, none is missed."""
    found = {run.run_id: run for state in LIVE_STATES for run in await workspace.runs(state=state)}
    return sorted(found.values(), key=lambda run: run.accepted_at)


def _lines(state: _DaemonState, style: Style, now: float) -> list[str]:
    daemon = state.daemon
    if daemon is None:
        return [f"no daemon at {state.address}: `crushlite run` or `chat` starts one"]
    lines = _daemon_lines(daemon, state.address, style)
    lines += [
        style.red(f"  trouble: {check.name}: {one_line(check.detail)}")
        for check in daemon.checks
        if not check.ok
    ]
    for workspace in state.workspaces:
        lines += ["", *_workspace_lines(workspace, style, now)]
    return lines


def _daemon_lines(daemon: Health, address: str, style: Style) -> list[str]:
    who, where = daemon.version, f"at {address}"
    if not daemon.pid:  # it says no more of itself
        return [f"{style.bold(who)} {where}"]
    since = f"process {daemon.pid}, up {elapsed(daemon.uptime_seconds)}"
    busy = f"{count(daemon.workspaces, 'workspace')}, {count(daemon.clients, 'client')}"
    if style.columns is not None and len(f"{who} {where}, {since}: {busy}") > style.columns:
        return [style.bold(who), *(f"  {part}" for part in (where, since, busy))]
    return [f"{style.bold(who)} {where}, {since}: {busy}"]


def _workspace_lines(workspace: _WorkspaceState, style: Style, now: float) -> list[str]:
    path = one_line(workspace.path)
    if style.columns is not None:
        path = shorten(path, style.columns)
    lines = [f"{style.bold(path)}  {style.dim(one_line(workspace.model))}"]
    waiting = []
    if workspace.permissions:
        waiting.append(f"{count(workspace.permissions, 'permission request')}: crushlite grant")
    if workspace.questions:
        waiting.append(f"{count(workspace.questions, 'question')}: crushlite chat --continue")
    lines += [style.yellow(f"  {each}") for each in waiting]
    busy = {info.session_id for info in workspace.runs}
    used = [each for each in workspace.sessions if each.id in busy or each.attached_clients]
    for session in used:
        runs = [info for info in workspace.runs if info.session_id == session.id]
        waits = session.id in workspace.needs_you
        lines += _session_lines(session, runs, style, now, waits=waits)
    if idle := len(workspace.sessions) - len(used):
        lines.append(style.dim(f"  {count(idle, 'session')} at rest"))
    return lines


def _session_lines(
    session: Session, runs: list[RunInfo], style: Style, now: float, *, waits: bool
) -> list[str]:
    """A session and its runs; `waits`: for an answer of a person."""
    viewers = f", {count(session.attached_clients, 'viewer')}" if session.attached_clients else ""
    state = NEEDS_YOU if waits else "at work" if session.is_busy else "at rest"
    title = one_line(session.title) or "untitled"
    if style.columns is not None:  # its state must be seen, not all of its title
        title = cut(title, max(SHORT, style.columns - len(f"{state}{viewers}") - SHORT - 8))
    painted = style.yellow(state) if waits else style.green(state) if session.is_busy else state
    lines = [f"  {session.id[:SHORT]}  {title}  ({painted}{viewers})"]
    for info in runs:
        since = info.started_at or info.accepted_at
        lines.append(f"    run {info.run_id[:SHORT]}  {info.state}, {ago(since, now)}")
    return lines
