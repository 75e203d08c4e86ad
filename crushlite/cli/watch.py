"""`crushlite watch`: everything that happens in a workspace, as it happens."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING, Any

from ..client import Lost, Recovered
from ..protocol.events import KINDS, ConfigChanged, Resync, to_json
from ..protocol.messages import Message
from ..protocol.permissions import PermissionRequest
from ..protocol.runs import AgentEvent, RunComplete
from ..protocol.sessions import File, Session
from . import CANCELED
from .common import add_connection, add_json, command, opened, say, show, show_json
from .follow import signals
from .helptext import not_empty
from .lookup import NEEDS_YOU, SHORT, find_session
from .render import Requests, ShownMessages, brief_line, request_words
from .text import Style, one_line

if TYPE_CHECKING:
    import argparse

    from ..client import RemoteWorkspace
    from ..protocol.events import Envelope

TITLE_CHARS = 30

DESCRIPTION = """\
Print what happens in the workspace of this directory until Ctrl-C: prompts, answers, tool calls,
permission requests and their answers, endings. It comes back by itself when the connection is lost
or the daemon is restarted. Watching answers nothing: see `crushlite grant`.
"""
EXAMPLES = """\
  crushlite watch
  crushlite watch --session last
  crushlite watch --json | jq -r 'select(.type == "run_complete").payload.payload.error'
"""


def add_parser(commands: Any) -> None:
    parser = command(commands, "watch", DESCRIPTION, run, EXAMPLES)
    parser.add_argument(
        "--session",
        type=not_empty,
        metavar="ID",
        help="only this one; `last` is the one used last",
    )
    add_json(parser, "one event per line, complete,")
    add_connection(parser)


async def run(options: argparse.Namespace) -> int:
    with signals():
        try:
            async with opened(options) as workspace:
                only = options.session and await find_session(workspace, options.session)
                async with workspace.events() as events:
                    await workspace.init(interactive=False)
                    lines = EventLines(Style(sys.stdout), only)
                    waiting = [] if options.json else await _catch_up(workspace, lines)
                    say(f"watching {workspace.info.path}; Ctrl-C ends it")
                    _show(waiting)
                    async for event in events:
                        if options.json:
                            _show_json(event, only)
                        elif isinstance(event.payload, Resync):
                            _show(await _catch_up(workspace, lines))
                        else:
                            _show(lines.take(event))
        except asyncio.CancelledError:
            return CANCELED  # only a signal cancels this task
    return 1  # the stream was closed, which only we do


async def _catch_up(workspace: RemoteWorkspace, lines: EventLines) -> list[str]:
    """Learn the titles of the sessions; returns the lines of what waits for an answer now."""
    for session in await workspace.sessions():
        lines.name(session)
    waiting = (*await workspace.permissions(), *await workspace.questions())
    return [line for request in waiting for line in lines.request(request)]


def _show(lines: list[str]) -> None:
    at = time.strftime("%H:%M:%S")
    for line in lines:
        show(f"{at} {line}")


def _show_json(event: Envelope, only: str) -> None:
    payload = event.payload
    about = payload.id if isinstance(payload, Session) else getattr(payload, "session_id", only)
    if only and about != only:
        return
    if isinstance(payload, Lost | Recovered):
        show_json({"type": event.kind, "payload": payload})
    elif isinstance(payload, Resync) or type(payload) in KINDS.values():
        show_json(to_json(event.action, payload))


class EventLines:
    """Turns events into lines for people. What an event repeats has no second line. With `only`,
    events of other sessions have none at all."""

    def __init__(self, style: Style, only: str = "") -> None:
        self._style = style
        self._only = only
        self._titles: dict[str, str] = {}  # by session
        self._messages = ShownMessages()
        self._requests = Requests()

    def name(self, session: Session) -> None:
        """Remember the title of a session."""
        self._titles[session.id] = session.title

    def take(self, event: Envelope) -> list[str]:
        payload = event.payload
        if isinstance(payload, Session):
            return self._session(event.action, payload)
        if isinstance(payload, Message):
            found = self._messages.take(payload)
            lines = [brief_line(new, self._style) for new in found]
            return self._of(payload.session_id, *lines)
        if isinstance(payload, RunComplete):
            return self._of(payload.session_id, self._ending(payload))
        if isinstance(payload, AgentEvent) and payload.type == "retry":
            return self._of(payload.session_id, self._style.yellow(one_line(payload.progress)))
        if isinstance(payload, File):
            return self._of(payload.session_id, f"changed {payload.path}")
        return self.request(payload) or self._about_us(payload)

    def request(self, payload: object) -> list[str]:
        """The line of a request that is new, or of the answer to one; none for anything else."""
        request, verdict = self._requests.take(payload) or (None, "")
        if request is None:
            return []
        if verdict != "asked":
            return self._of(request.session_id, "answered" if verdict == "closed" else verdict)
        words = f"{NEEDS_YOU}: asks: {request_words(request)}"
        if isinstance(request, PermissionRequest):
            words = f"{NEEDS_YOU}: wants permission: {request_words(request)}"
            words += f" (crushlite grant {request.id[:SHORT]})"
        return self._of(request.session_id, self._style.yellow(one_line(words)))

    def _session(self, action: str, session: Session) -> list[str]:
        self.name(session)
        lines = {"created": "new session", "deleted": "session deleted"}
        return self._of(session.id, lines.get(action, ""))

    def _ending(self, ending: RunComplete) -> str:
        run = f"run {ending.run_id[:SHORT]}"
        if ending.cancelled:
            return self._style.yellow(f"{run} canceled")
        if ending.limit:
            return self._style.yellow(f"{run} stopped at its limit of {ending.limit}")
        if ending.error:
            return self._style.red(f"{run} failed: {one_line(ending.error)}")
        if ending.denied:
            return self._style.yellow(f"{run} done, {ending.denied} denied")
        return self._style.green(f"{run} done")

    def _about_us(self, payload: object) -> list[str]:
        if isinstance(payload, Lost):
            return [self._style.red(f"connection lost: {one_line(payload.reason)}")]
        if isinstance(payload, Recovered):
            return ["connected again"]
        return ["configuration changed"] if isinstance(payload, ConfigChanged) else []

    def _of(self, session_id: str, *lines: str) -> list[str]:
        """Lines about a session, with its name in front; empty ones are left out."""
        if self._only and session_id != self._only:
            return []
        title = one_line(self._titles.get(session_id, ""))[:TITLE_CHARS]
        who = self._style.dim(f"{session_id[:SHORT]} {title}:")
        return [f"{who} {line}" for line in lines if line]
