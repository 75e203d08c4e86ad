"""`crushlite ps`: what the daemon is doing: workspaces, sessions at work, queues, open requests."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..client import ConnectionFailed
from ..errors import NotFound
from .common import (
    Style,
    add_connection,
    add_json,
    address_of,
    ago,
    command,
    elapsed,
    one_line,
    perform,
    reached,
    show,
    show_json,
)
from .lookup import SHORT
from .render import count, cut
from .tables import clip, shorten

if TYPE_CHECKING:
    import argparse

    from ..client import RemoteWorkspace
    from ..protocol.health import Health
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
class _Place:
    """One workspace, as far as it is worth a look."""

    path: str
    id: str
    model: str = ""
    sessions: list[Session] = field(default_factory=list)
    runs: list[RunInfo] = field(default_factory=list)  # those that have not ended
    permissions: int = 0
    questions: int = 0


@dataclass(slots=True)
class _Picture:
    address: str
    daemon: Health | None = None
    workspaces: list[_Place] = field(default_factory=list)


def add_parser(commands: Any) -> None:
    parser = command(commands, "ps", DESCRIPTION, run, EXAMPLES)
    add_json(parser, "all of it")
    add_connection(parser, start=False)


def run(options: argparse.Namespace) -> int:
    return perform(_ps(options))


async def _ps(options: argparse.Namespace) -> int:
    picture = _Picture(address_of(options))
    try:
        async with reached(options) as client:
            picture.daemon = await client.vitals()
            for info in await client.workspaces():
                try:
                    picture.workspaces.append(await _look(client.attach(info)))
                except NotFound:
                    pass  # closed since it was listed
    except ConnectionFailed as error:
        if error.reached:
            raise
    if options.json:
        show_json(picture)
    else:
        style = Style(sys.stdout)
        lines = _lines(picture, style, time.time())
        show("\n".join(clip(line, style.columns) for line in lines))
    return 0 if picture.daemon is not None else 1


async def _look(workspace: RemoteWorkspace) -> _Place:
    place = _Place(workspace.info.path, workspace.id)
    place.model = (await workspace.agent()).model.name
    place.sessions = await workspace.sessions()
    place.runs = [info for info in await workspace.runs() if info.state != "ended"]
    place.permissions = len(await workspace.permissions())
    place.questions = len(await workspace.questions())
    return place


def _lines(picture: _Picture, style: Style, now: float) -> list[str]:
    daemon = picture.daemon
    if daemon is None:
        return [f"no daemon at {picture.address}: `crushlite run` or `chat` starts one"]
    lines = _daemon_lines(daemon, picture.address, style)
    lines += [
        style.red(f"  trouble: {check.name}: {one_line(check.detail)}")
        for check in daemon.checks
        if not check.ok
    ]
    for place in picture.workspaces:
        lines += ["", *_place_lines(place, style, now)]
    return lines


def _daemon_lines(daemon: Health, address: str, style: Style) -> list[str]:
    who, where = daemon.version, f"at {address}"
    since = f"process {daemon.pid}, up {elapsed(daemon.uptime_seconds)}"
    busy = f"{count(daemon.workspaces, 'workspace')}, {count(daemon.clients, 'client')}"
    if style.columns is not None and len(f"{who} {where}, {since}: {busy}") > style.columns:
        return [style.bold(who), *(f"  {part}" for part in (where, since, busy))]
    return [f"{style.bold(who)} {where}, {since}: {busy}"]


def _place_lines(place: _Place, style: Style, now: float) -> list[str]:
    path = one_line(place.path)
    if style.columns is not None:
        path = shorten(path, style.columns)
    lines = [f"{style.bold(path)}  {style.dim(one_line(place.model))}"]
    waiting = []
    if place.permissions:
        waiting.append(f"{count(place.permissions, 'permission request')}: crushlite grant")
    if place.questions:
        waiting.append(f"{count(place.questions, 'question')}: crushlite chat --continue")
    lines += [style.yellow(f"  {each}") for each in waiting]
    busy = {info.session_id for info in place.runs}
    for session in place.sessions:
        if session.id in busy or session.attached_clients:
            lines += _session_lines(session, place, style, now)
    idle = len(place.sessions) - len(
        [each for each in place.sessions if each.id in busy or each.attached_clients]
    )
    if idle:
        lines.append(style.dim(f"  {count(idle, 'session')} at rest"))
    return lines


def _session_lines(session: Session, place: _Place, style: Style, now: float) -> list[str]:
    viewers = f", {count(session.attached_clients, 'viewer')}" if session.attached_clients else ""
    state = "at work" if session.is_busy else "at rest"
    title = one_line(session.title) or "untitled"
    if style.columns is not None:  # what it does is worth more than all of its title
        title = cut(title, max(SHORT, style.columns - len(f"{state}{viewers}") - SHORT - 8))
    painted = style.green(state) if session.is_busy else state
    lines = [f"  {session.id[:SHORT]}  {title}  ({painted}{viewers})"]
    for info in place.runs:
        if info.session_id == session.id:
            since = info.started_at or info.accepted_at
            lines.append(f"    run {info.run_id[:SHORT]}  {info.state}, {ago(since, now)}")
    return lines
