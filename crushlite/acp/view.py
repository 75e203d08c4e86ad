"""What of one session an editor has seen: messages as they are now become the updates that are
missing. Pure: nothing is sent from here.

A message may be given as often as it comes, from events while it grows and from the transcript
after a gap: only what is new of it becomes an update, and older states of it become nothing.
"""

from __future__ import annotations

import os
from dataclasses import field
from typing import TYPE_CHECKING, Any

from ..protocol.messages import (
    BinaryPart,
    ReasoningPart,
    ShellCommandPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from ..records import dataclass
from . import words

if TYPE_CHECKING:
    from ..protocol.messages import Message, ToolOutput
    from ..protocol.permissions import PermissionRequest
    from ..protocol.sessions import File, Session
    from .words import Update

MOST_FILES = 50  # whose contents are kept, to show what the next call changes
MOST_FILE = 256 * 1024  # characters of each
MOST_IMAGE = 4 << 20  # characters of an attached image that is shown again


@dataclass(slots=True)
class _Sent:
    """What was sent of one message."""

    texts: dict[int, str] = field(default_factory=dict)  # by the number of the part
    anew: int = 0  # how often a text began anew


@dataclass(slots=True)
class _Call:
    """A tool call as it was sent."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    is_complete: bool = False  # its input
    is_over: bool = False
    output: str = ""


class SessionView:
    def __init__(self, session_id: str, cwd: str) -> None:
        self.session_id = session_id
        self._cwd = cwd
        self._sent: dict[str, _Sent] = {}  # messages that may grow
        self._over: set[str] = set()  # messages of which nothing more comes
        self._calls: dict[str, _Call] = {}
        self._contents: dict[str, str] = {}  # of files, as they were stored last
        self._changed: dict[str, tuple[str, str]] = {}  # of files: before and after
        # Prompts of this editor that have not come back as messages: run and text, in their order.
        self._own: dict[str, str] = {}
        self._plan: Update | None = None
        self._title: str | None = None
        self._usage: Update | None = None
        self.last_finish = ""  # why the last message of the agent ended

    def expect(self, run_id: str, text: str) -> None:
        """A prompt of this editor is about to be sent: `take` gives no update for the message that
        it becomes, because the editor has shown it itself."""
        self._own[run_id] = text

    def unexpect(self, run_id: str) -> None:
        """The run of that prompt has ended, or will not begin: no message of it comes any more."""
        self._own.pop(run_id, None)

    # Messages ----------------------------------------------------------------------------------

    def take(self, message: Message, *, with_errors: bool = True) -> list[Update]:
        """What is new in a message. `with_errors`: also why it was cut off, as text."""
        if message.id in self._over:
            return []
        updates: list[Update] = []
        if message.role == "user":
            updates = self._user(message)
            self._over.add(message.id)
        elif message.role == "tool":
            for result in message.tool_results:
                updates += self._result(result)
        else:
            updates = self._assistant(message)
            finish = message.finish
            if finish is not None:
                self.last_finish = finish.reason
                self._over.add(message.id)
                self._sent.pop(message.id, None)
                if finish.reason == "error" and with_errors:
                    text = f"\n\n[{finish.message or 'error'}] {finish.details or ''}".rstrip()
                    updates.append(_chunk("agent_message_chunk", text, message.id))
        return updates

    def _user(self, message: Message) -> list[Update]:
        run_id = next((run for run, text in self._own.items() if text == message.text), None)
        if run_id is not None:
            del self._own[run_id]
            return []
        updates = []
        for part in message.parts:
            content: dict[str, Any] | None = None
            if isinstance(part, TextPart) and part.text:
                content = words.text_content(part.text)
            elif isinstance(part, BinaryPart):
                content = _attached(part)
            elif isinstance(part, ShellCommandPart):
                content = words.text_content(f"! {part.command}\n{part.output}")
            if content is not None:
                update = {"sessionUpdate": "user_message_chunk", "content": content}
                updates.append({**update, "messageId": message.id})
        return updates

    def _assistant(self, message: Message) -> list[Update]:
        updates: list[Update] = []
        for number, part in enumerate(message.parts):
            if isinstance(part, TextPart):
                updates += self._grown(message, number, part.text, "agent_message_chunk")
            elif isinstance(part, ReasoningPart):
                updates += self._grown(message, number, part.thinking, "agent_thought_chunk")
            elif isinstance(part, ToolCallPart):
                updates += self._call(part)
            elif isinstance(part, ToolResultPart):
                updates += self._result(part)
        return updates

    def _grown(self, message: Message, number: int, text: str, kind: str) -> list[Update]:
        sent = self._sent.setdefault(message.id, _Sent())
        before = sent.texts.get(number, "")
        if before.startswith(text):
            return []  # nothing new, or an older state
        if not text.startswith(before):  # a model call is made again: what was said is void
            sent.anew += 1
            before = ""
        sent.texts[number] = text
        suffix = f"-{sent.anew}" if sent.anew else ""
        return [_chunk(kind, text[len(before) :], message.id + suffix)]

    # Tool calls --------------------------------------------------------------------------------

    def _call(self, part: ToolCallPart) -> list[Update]:
        known = self._calls.get(part.id)
        if known is not None and (known.is_complete or not part.finished):
            return []
        arguments = words.arguments_of(part) if part.finished else {}
        status = "in_progress" if part.finished else "pending"
        update: Update = {
            "sessionUpdate": "tool_call" if known is None else "tool_call_update",
            "toolCallId": part.id,
            **words.described(part.name, arguments, self._cwd),
            "status": status,
            **words.raw_input(part, arguments),
        }
        if known is None:
            known = self._calls[part.id] = _Call(part.name)
            update["name"] = part.name
        known.arguments, known.is_complete = arguments, part.finished
        return [] if known.is_over else [update]

    def announce(self, request: PermissionRequest) -> tuple[list[Update], Update]:
        """Make sure that the call of a permission request was sent; returns what is to be sent for
        it, and the call as the request itself shows it."""
        call = self._calls.get(request.tool_call_id)
        about = words.described(request.tool_name, request.params, self._cwd)
        shown: Update = {"toolCallId": request.tool_call_id, **about, "status": "pending"}
        path = request.params.get("file_path")
        place = os.path.join(self._cwd, path) if isinstance(path, str) else ""
        diff = words.diff_of(place, request.params) if place else None
        if diff is not None:
            shown["content"] = [diff]
        elif request.description:
            text = words.text_content(request.description)
            shown["content"] = [{"type": "content", "content": text}]
        # Everything that is decided on, where the title is cut. The daemon bounds its size.
        given = {key: value for key, value in request.params.items() if key not in words.VERSIONS}
        if given:
            shown["rawInput"] = given
        if call is not None:
            return [], shown
        self._calls[request.tool_call_id] = _Call(request.tool_name, dict(request.params))
        return [{"sessionUpdate": "tool_call", "name": request.tool_name, **shown}], shown

    def _result(self, result: ToolResultPart) -> list[Update]:
        updates: list[Update] = []
        call = self._calls.get(result.tool_call_id)
        if call is not None and call.is_over:
            return []
        if call is None:
            part = ToolCallPart(result.tool_call_id, result.name, finished=True)
            updates += self._call(part)
            call = self._calls[result.tool_call_id]
        call.is_over = True
        path = call.arguments.get("file_path")
        place = os.path.join(self._cwd, path) if isinstance(path, str) else ""
        versions = self._changed.pop(place, None)
        content = words.result_content(result, call.arguments, versions, self._cwd)
        update: Update = {
            "sessionUpdate": "tool_call_update",
            "toolCallId": result.tool_call_id,
            "status": "failed" if result.is_error else "completed",
            "content": content,
        }
        call.arguments, call.output = {}, ""
        return [*updates, update]

    def output(self, payload: ToolOutput) -> list[Update]:
        """The output so far of a running call."""
        call = self._calls.get(payload.tool_call_id)
        if call is None or call.is_over or call.output == payload.output:
            return []
        call.output = payload.output
        update = {"sessionUpdate": "tool_call_update", "toolCallId": payload.tool_call_id}
        return [{**update, "content": words.output_content(payload.output)}]

    def file(self, file: File) -> None:
        """Remember a stored version of a file, for the diff of the call that made it. Version 0 is
        what the file was before the session changed it."""
        before = self._contents.pop(file.path, None)
        if before is not None:
            self._changed[file.path] = (before, file.content)
        if len(file.content) <= MOST_FILE:
            self._contents[file.path] = file.content
        for kept in (self._contents, self._changed):
            while len(kept) > MOST_FILES:
                kept.pop(next(iter(kept)))

    # The session -------------------------------------------------------------------------------

    def session(self, session: Session, window: int) -> list[Update]:
        """Title, to-dos and usage, as far as they have changed. `window` is the model's, 0 if it is
        not known."""
        updates: list[Update] = []
        if session.title and session.title != self._title:
            self._title = session.title
            when = words.iso_time(session.updated_at)
            info = {"sessionUpdate": "session_info_update", "title": session.title}
            updates.append({**info, "updatedAt": when})
        plan = words.plan_of(session.todos)
        if plan != self._plan and (session.todos or self._plan is not None):
            self._plan = plan
            updates.append(plan)
        usage: Update = {
            "sessionUpdate": "usage_update",
            "used": session.prompt_tokens + session.completion_tokens,
            "size": window,
            "cost": {"amount": session.cost, "currency": "USD"},
        }
        if window and usage["used"] and usage != self._usage:
            self._usage = usage
            updates.append(usage)
        return updates


def _chunk(kind: str, text: str, message_id: str) -> Update:
    return {"sessionUpdate": kind, "content": words.text_content(text), "messageId": message_id}


def _attached(part: BinaryPart) -> dict[str, Any]:
    if part.mime_type.startswith("image/") and len(part.data) <= MOST_IMAGE:
        return {"type": "image", "data": part.data, "mimeType": part.mime_type}
    return words.text_content(f"[{part.path or part.mime_type}]")
