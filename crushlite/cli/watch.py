"""`crushlite watch`: everything that happens in a workspace, as it happens."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING, Any

from ..client import Lost, Recovered
from ..protocol.events import KINDS, ConfigChanged, Resync, to_json
from ..protocol.messages import Message, ShellCommandPart
from ..protocol.permissions import PermissionNotification, PermissionRequest
from ..protocol.questions import QuestionBatch, QuestionNotification
from ..protocol.runs import RunComplete
from ..protocol.sessions import File, Session
from .common import (
    Style,
    add_connection,
    add_json,
    command,
    one_line,
    opened,
    perform,
    say,
    show,
    show_json,
)
from .follow import CANCELED, signals
from .lookup import SHORT, find_session
from .render import arguments, call_line, ending_words, result_words

if TYPE_CHECKING:
    import argparse

    from ..client import RemoteWorkspace
    from ..protocol.events import Envelope

DESCRIPTION = """\
Tell what happens in the workspace of this directory until Ctrl-C: prompts, answers, tool calls,
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
        "--session", metavar="ID", default="", help="only this one; `last` is the one used last"
    )
    add_json(parser, "one event per line, complete,")
    add_connection(parser)


def run(options: argparse.Namespace) -> int:
    return perform(_watch(options))


async def _watch(options: argparse.Namespace) -> int:
    with signals():
        try:
            async with opened(options) as workspace:
                only = options.session and await find_session(workspace, options.session)
                async with workspace.events() as events:
                    await workspace.init(interactive=False)
                    say(f"watching {workspace.info.path}; Ctrl-C ends it")
                    teller = Teller(Style(sys.stdout), only)
                    await _catch_up(workspace, teller)
                    async for event in events:
                        if options.json:
                            _show_json(event, only)
                        elif isinstance(event.payload, Resync):
                            await _catch_up(workspace, teller)
                        else:
                            _show(teller.take(event))
        except asyncio.CancelledError:
            return CANCELED  # only a signal cancels this task
    return 1  # the stream was closed, which only we do


async def _catch_up(workspace: RemoteWorkspace, teller: Teller) -> None:
    """Titles, and what waits for an answer now."""
    for session in await workspace.sessions():
        teller.name(session)
    for request in await workspace.permissions():
        _show(teller.asked(request))


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


class Teller:
    """Events into lines for people. Each thing is told once, however often its event comes."""

    def __init__(self, style: Style, only: str = "") -> None:
        self._style = style
        self._only = only
        self._titles: dict[str, str] = {}
        self._told: set[str] = set()
        self._asked: dict[str, str] = {}  # by tool call or batch: whose it is, and what is asked

    def name(self, session: Session) -> None:
        self._titles[session.id] = session.title

    def take(self, event: Envelope) -> list[str]:
        payload = event.payload
        if isinstance(payload, Session):
            return self._session(event.action, payload)
        if isinstance(payload, Message):
            return self._line(payload.session_id, self._message(payload))
        if isinstance(payload, PermissionRequest):
            return self.asked(payload)
        if isinstance(payload, QuestionBatch):
            words = " / ".join(question.question for question in payload.questions)
            return self._ask(payload.session_id, payload.id, f"asks: {words}")
        if isinstance(payload, PermissionNotification | QuestionNotification):
            return self._answered(payload)
        if isinstance(payload, RunComplete):
            return self._line(payload.session_id, [self._ending(payload)])
        if isinstance(payload, File):
            return self._line(payload.session_id, [f"changed {payload.path}"])
        return self._about_us(payload)

    def asked(self, request: PermissionRequest) -> list[str]:
        words = call_line(request.tool_name, request.params)
        text = f"wants permission: {words} (crushlite grant {request.id[:SHORT]})"
        return self._ask(request.session_id, request.tool_call_id, text)

    def _ask(self, session_id: str, key: str, text: str) -> list[str]:
        if key in self._asked:  # an open one is shown again after a return
            return []
        self._asked[key] = session_id
        return self._line(session_id, [self._style.yellow(one_line(text))])

    def _answered(self, payload: PermissionNotification | QuestionNotification) -> list[str]:
        if isinstance(payload, QuestionNotification):
            key, answer = payload.batch_id, "answered"
        elif payload.granted or payload.denied:
            key, answer = payload.tool_call_id, "allowed" if payload.granted else "denied"
        else:
            return []
        session_id = self._asked.pop(key, "")
        return self._line(session_id, [answer]) if session_id else []

    def _session(self, action: str, session: Session) -> list[str]:
        self.name(session)
        if action == "deleted":
            return self._line(session.id, ["session deleted"])
        return self._line(session.id, ["new session"]) if action == "created" else []

    def _message(self, message: Message) -> list[str]:
        lines = []
        if message.role == "user":
            for part in message.parts:
                if isinstance(part, ShellCommandPart):
                    words = f"$ {part.command} (exit code {part.exit_code})"
                    lines += self._once(message.id, self._style.cyan(one_line(words)))
            if message.text:
                lines += self._once(message.id, self._style.cyan(one_line(f"> {message.text}")))
        for call in message.tool_calls:
            if call.finished:
                lines += self._once(call.id, f"tool {call_line(call.name, arguments(call))}")
        for result in message.tool_results:
            mark = "failed: " if result.is_error else ""
            lines += self._once(f"{result.tool_call_id}/r", f"  {mark}{result_words(result)}")
        if message.finish is not None and message.role == "assistant":
            text = one_line(message.text) or ending_words(message.finish)
            lines += self._once(message.id, one_line(text)) if text else []
        return lines

    def _once(self, key: str, line: str) -> list[str]:
        if key in self._told:
            return []
        self._told.add(key)
        return [line]

    def _ending(self, ending: RunComplete) -> str:
        run = f"run {ending.run_id[:SHORT]}"
        if ending.cancelled:
            return self._style.yellow(f"{run} canceled")
        if ending.error:
            return self._style.red(f"{run} failed: {one_line(ending.error)}")
        return self._style.green(f"{run} done")

    def _about_us(self, payload: object) -> list[str]:
        if isinstance(payload, Lost):
            return [self._style.red(f"connection lost: {one_line(payload.reason)}")]
        if isinstance(payload, Recovered):
            return ["connected again"]
        return ["configuration changed"] if isinstance(payload, ConfigChanged) else []

    def _line(self, session_id: str, lines: list[str]) -> list[str]:
        if self._only and session_id != self._only:
            return []
        title = one_line(self._titles.get(session_id, ""))[:30]
        who = self._style.dim(f"{session_id[:SHORT]} {title}:")
        return [f"{who} {line}" for line in lines]
