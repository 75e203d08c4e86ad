"""One chat: a workspace on one side, a user at a terminal on the other.

Three things happen at once: events come, keys come, and what was typed is carried out. Events are
taken one at a time under a lock, which `open_session` holds too: nothing of a session is shown
before what came earlier in it. What was typed is carried out in order, by one task; what takes long
gets a task of its own.

The daemon decides, this shows: a prompt appears when the daemon has it as a message, a request
closes when the daemon says so, from whatever client the answer came. The state (busy, queue, open
requests) is asked for after each event that may change it, never counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

from ..client import ConnectionFailed, Lost, Recovered
from ..client.wire import is_temporary
from ..errors import CrushliteError, NotFound, UsageError
from ..features import requests
from ..launch import ensure_daemon, ready_seconds
from ..protocol.events import Resync
from ..protocol.messages import Message, ToolOutput
from ..protocol.permissions import PermissionNotification, PermissionRequest
from ..protocol.questions import QuestionBatch, QuestionNotification
from ..protocol.runs import AgentEvent, RunComplete
from ..protocol.sessions import Session
from ..unique import new_id
from . import CANCELED
from .chat_dialogs import PermissionDialog, QuestionDialog, looks_like_answer
from .chat_view import ChatView, todo_words
from .common import new_session, title_of
from .progress import FRAME_SECONDS, FRAMES, PLAIN_FRAMES
from .render import request_paint
from .text import clean, elapsed, one_line

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from ..client import EventStream, RemoteWorkspace
    from ..launch import Wanted
    from ..protocol.events import Envelope
    from ..protocol.runs import Accepted
    from .chat_dialogs import Dialog
    from .chat_lines import LineEditor
    from .chat_screen import Screen

POSTS = 3  # attempts to post a prompt: under one run_id it is the same prompt each time
RECENT = 12  # messages that are shown of a session that is opened
LATE_SECONDS = 3.0  # in which a `y` is no prompt, after a request was answered elsewhere
UNSEEN_SECONDS = 1.0  # in which a user who was typing may not have seen a request that appeared

PROMPT = "> "


class Chat:
    """One chat. `left` is its exit code, when there is one."""

    def __init__(
        self, workspace: RemoteWorkspace, wanted: Wanted, screen: Screen, editor: LineEditor
    ) -> None:
        self.workspace = workspace
        self.screen = screen
        self.editor = editor
        self.session = Session()  # without an id until the first prompt creates it
        # By session, "" for the one to come: an effort, or "on".
        self.efforts: dict[str, str] = {}
        self.next_agent = ""  # the one to answer in the session to come
        self.view = ChatView(screen)
        self.busy = False
        self.queued = 0
        self.command = ""  # a shell command of the user that runs
        self.dialog: Dialog | None = None
        self.left: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._wanted = wanted
        self._family: set[str] = set()  # the session, and those of agents that work for it
        self._events: EventStream | None = None
        self._showing = asyncio.Lock()
        self._connected = asyncio.Event()
        self._changed = asyncio.Event()  # set when the state is to be asked for
        self._tasks: set[asyncio.Task[Any]] = set()
        self._since = 0.0  # when it became busy
        self._canceling = False
        self._warned = False  # the next Ctrl-C or Ctrl-D leaves
        self._asked_at = 0.0  # when a dialog appeared while the user was typing
        self._closed_at = -LATE_SECONDS  # when a dialog was closed by an answer from elsewhere
        self._told: set[str] = set()  # other sessions that wait for an answer, as was said
        self._shown_at = self._typed_at = 0.0  # when the dialog was shown, and a key pressed
        self._frame = 0
        self._frames = FRAMES if screen.unicode else PLAIN_FRAMES

    # Life ---------------------------------------------------------------------------------------

    async def run(self, begin: Callable[[], Coroutine[Any, Any, None]]) -> int:
        """Run the chat until the user leaves; returns the exit code. `begin` is called when events
        are subscribed to and before any is shown."""
        async with self.workspace.events() as events:
            self._events = events
            self._connected.set()
            try:
                await self.workspace.init(interactive=True)
                await begin()
                for work in (self._follow(events), self._keep_informed(), self._tick()):
                    self.spawn(work)
                self.changed()
                return await self.left
            finally:
                self.screen.leave()
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)

    def leave(self, code: int = 0) -> None:
        """End the chat with an exit code."""
        if not self.left.done():
            self.left.set_result(code)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task that is canceled at the end of the chat. If it fails, `run` raises."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self.left.done():
            self.left.set_exception(error)

    async def attempt(self, work: Awaitable[object]) -> None:
        """Await something; an error that the daemon answers is shown, and the chat goes on."""
        try:
            await work
        except CrushliteError as error:
            self.complain(error.message)

    def note(self, line: str) -> None:
        """Show a line about the chat itself."""
        self.screen.aside([f"· {line}"], self.screen.style.dim)

    def complain(self, text: str) -> None:
        """Show an error."""
        self.screen.aside(f"✗ {clean(text)}".split("\n"), self.screen.style.red)

    # Events -------------------------------------------------------------------------------------

    async def _follow(self, events: EventStream) -> None:
        async for event in events:
            async with self._showing:
                await self._take(event)
        self.leave(1)

    async def _take(self, event: Envelope) -> None:
        payload = event.payload
        if isinstance(payload, Message):
            if payload.session_id == self.session.id:
                self.view.take(payload)
                if payload.role == "user":
                    self.changed()
        elif isinstance(payload, ToolOutput):
            self.view.output(payload)
        elif isinstance(payload, Session):
            self._session(event.action, payload)
        elif isinstance(payload, AgentEvent | RunComplete):
            self._about_run(payload)
        elif isinstance(payload, PermissionNotification | QuestionNotification):
            self._answered(payload)
            self.changed()
        elif isinstance(payload, PermissionRequest | QuestionBatch):
            self.changed()
        elif isinstance(payload, Lost | Recovered | Resync):
            await self._connection(payload)

    def _session(self, action: str, session: Session) -> None:
        if session.parent_session_id in self._family:
            self._family.add(session.id)
        if session.id != self.session.id:
            return
        if action == "deleted":
            self.note("this session was deleted; the next prompt begins another")
            self.forget()
        else:
            self.session = session

    def _about_run(self, event: AgentEvent | RunComplete) -> None:
        if event.session_id != self.session.id:
            return
        if isinstance(event, AgentEvent):
            if event.type == "retry":
                self.note(one_line(event.progress))
            return
        self.changed()
        if words := _usage_words(event):
            self.note(words)
        if event.error and not self.view.error_shown(event.message_id, event.error):
            self.complain(event.error)  # as for an ending that could not be saved
        elif event.cancelled and not event.message_id:
            self.note("a queued prompt was dropped")

    async def _connection(self, payload: Lost | Recovered | Resync) -> None:
        if isinstance(payload, Lost):
            self._connected.clear()
            if not payload.attempts:
                self.note("the daemon is gone; trying to reach it again")
        elif isinstance(payload, Recovered):
            self._connected.set()
            self.note("connected again")
            self.changed()
        else:
            await self._catch_up()
        self._draw()

    async def _catch_up(self) -> None:
        """Events may be missing: read the messages of the session and show what is new."""
        try:
            if self.session.id:
                for message in await self.workspace.messages(self.session.id):
                    self.view.take(message)
        except NotFound:
            self.note("this session is gone; the next prompt begins another")
            self.forget()
        except CrushliteError as error:
            if not is_temporary(error) or self._events is None:
                raise
            await self._events.reopen(error.message)  # brings another resync
        self.changed()

    # The state ----------------------------------------------------------------------------------

    def changed(self) -> None:
        """Have the state asked for: it may have changed."""
        self._changed.set()

    async def _keep_informed(self) -> None:
        """Ask for the state each time that `changed` was called."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._ask_state()
                await self._ask_dialogs()
            except CrushliteError:
                # The connection is lost or the session gone: events will say so, and have it asked
                # for again.
                continue

    async def _ask_state(self) -> None:
        session_id = self.session.id
        busy, queued = False, 0
        if session_id:
            busy = (await self.workspace.session(session_id)).is_busy
            queued = len(await self.workspace.queue(session_id)) if busy else 0
        if session_id == self.session.id:
            self.set_busy(busy, queued)

    def set_busy(self, busy: bool, queued: int = 0) -> None:
        if busy and not self.busy:
            self._since = time.monotonic()
        if not busy:
            self._canceling = self._warned = False
        self.busy, self.queued = busy, queued
        self._draw()

    async def _ask_dialogs(self) -> None:
        """Open a dialog for a request that is open, close one for a request that is not."""
        permissions, questions = (
            await self.workspace.permissions(),
            await self.workspace.questions(),
        )
        requests = [r for r in permissions if r.session_id in self._family]
        batches = [b for b in questions if b.session_id in self._family]
        self._tell_of_others([*permissions, *questions])
        open_ids = {request.id for request in requests} | {batch.id for batch in batches}
        if self.dialog is not None and self.dialog.id not in open_ids and not self.dialog.sent:
            self.close_dialog("it is closed")
        if self.dialog is None and requests:
            self._open_dialog(PermissionDialog(requests[0]))
        elif self.dialog is None and batches:
            self._open_dialog(QuestionDialog(batches[0]))

    def _tell_of_others(self, asked: list[PermissionRequest | QuestionBatch]) -> None:
        """Say once of each other session that it waits for an answer."""
        others = {each.session_id for each in asked} - self._family
        for session_id in sorted(others - self._told):
            self.note(
                f"another session needs you: /switch {session_id[:8]} goes there, and "
                "`crushlite grant` answers from any terminal"
            )
        self._told = others

    def _draw(self) -> None:
        self.screen.status = self._status()
        self.screen.prompt = self.dialog.prompt if self.dialog is not None else PROMPT
        self.screen.draw()

    def _status(self) -> str:
        if not self._connected.is_set():
            return "not connected: trying to reach the daemon"
        if self.dialog is not None or not (self.busy or self.command):
            return ""
        spent = elapsed(int(time.monotonic() - self._since) or 1)
        doing = self.view.activity if self.busy else f"$ {self.command}"
        doing = "canceling" if self._canceling else doing
        waiting = f", {self.queued} queued" if self.queued else ""
        todo = todo_words(self.session.todos) if self.busy else ""
        return f"{self._frames[self._frame]} {spent}{waiting}{todo}: {doing}"

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(FRAME_SECONDS)
            self._frame = (self._frame + 1) % len(self._frames)
            if self.busy or self.command or self.screen.status:
                self._draw()

    # Dialogs ------------------------------------------------------------------------------------

    def is_one_key(self, data: bytes) -> bool:
        """Whether what was typed is one key that answers the dialog at once. Only after a pause, of
        which both the dialog and the keys before it are part: a key that was meant for something
        else must not allow anything."""
        now, before = time.monotonic(), self._typed_at
        self._typed_at = now
        if self.dialog is None or self.dialog.sent or len(data) != 1:
            return False
        quiet = now - max(before, self._shown_at) >= UNSEEN_SECONDS
        return quiet and data.decode("latin-1") in self.dialog.keys

    def _open_dialog(self, dialog: Dialog) -> None:
        self.dialog = dialog
        self._shown_at = time.monotonic()
        self._asked_at = time.monotonic() if self.editor.text else 0.0
        self.editor.put_aside()
        self.screen.lines(dialog.lines(), f"dialog {dialog.id}", request_paint(self.screen.style))
        self._draw()

    def close_dialog(self, why: str = "") -> None:
        """Close the dialog; `why` is shown if it was not the user who answered. What was typed
        meanwhile and is no answer is added to what was typed before it."""
        if why:
            self.note(why)
            self._closed_at = time.monotonic()
        typed = "" if looks_like_answer(self.editor.text) else self.editor.text
        self.dialog = None
        self.editor.take_back()
        self.editor.set(self.editor.text + typed)
        self._draw()

    def is_late(self, line: str) -> bool:
        """Whether a line was probably meant as an answer to what was just answered elsewhere: as a
        prompt it would make no sense."""
        return time.monotonic() - self._closed_at < LATE_SECONDS and looks_like_answer(line)

    def _answered(self, payload: PermissionNotification | QuestionNotification) -> None:
        dialog = self.dialog
        if dialog is None or dialog.sent:
            return  # the reply to our answer says whether it counted
        why = ""
        if isinstance(payload, QuestionNotification):
            if payload.batch_id == dialog.key:
                why = "answered elsewhere"
        elif payload.tool_call_id == dialog.key and (payload.granted or payload.denied):
            why = f"answered elsewhere: {'allowed' if payload.granted else 'denied'}"
        if why:
            self.close_dialog("no longer asked" if self._canceling else why)

    async def answer(self, line: str) -> None:
        """Take a line that was typed while a dialog is open."""
        dialog = self.dialog
        assert dialog is not None
        if time.monotonic() - self._asked_at < UNSEEN_SECONDS:
            self.editor.take_back()
            self.editor.set(self.editor.text + line)
            self.editor.put_aside()
            self.note("that came while you typed: please answer it first; your text is kept")
            return
        self.screen.lines([f"{dialog.prompt}{line.strip()}"], f"dialog {dialog.id}")
        if shown := dialog.answer(line):
            self.screen.lines(shown, f"dialog {dialog.id}", request_paint(self.screen.style))
        if dialog.done:
            await self.send(dialog)

    async def send(self, dialog: Dialog) -> None:
        """Send the answer of a dialog, and close it."""
        dialog.sent, why = True, ""
        try:
            if isinstance(dialog, PermissionDialog):
                said = dialog.action, dialog.reason, dialog.option
                result = await self.workspace.grant(dialog.id, *said)
            else:
                assert isinstance(dialog, QuestionDialog)
                result = await self.workspace.answer(dialog.id, dialog.responses)
            why = "" if result.resolved else "too late: answered elsewhere"
        except CrushliteError as error:
            why = f"not sent: {clean(error.message)}"
        if self.dialog is dialog:
            self.close_dialog(why)
        self.changed()

    # Prompts ------------------------------------------------------------------------------------

    async def post(self, text: str, when_busy: str = "steer") -> None:
        """Send a prompt. If that is not possible, put it back into the input line."""
        try:
            accepted = await self._accepted(text, when_busy)
        except CrushliteError as error:
            self.complain(f"not sent: {error.message}")
            if not self.editor.text and self.dialog is None:
                self.editor.set(text)
            self._draw()
            return
        if accepted.state == "queued":
            how = "joins the work at its next step" if when_busy == "steer" else "waits its turn"
            self.note(f"{how}: {one_line(text)}")
        self.set_busy(True, self.queued)
        self.changed()

    async def _accepted(self, text: str, when_busy: str) -> Accepted:
        run_id, attempts = new_id(), POSTS
        while True:
            attempts -= 1
            try:
                await self.reach()
                session_id = await self.ensure_session(text)
                effort = self.efforts.get(session_id, "")
                return await self.workspace.prompt(
                    session_id,
                    text,
                    run_id=run_id,
                    when_busy=when_busy,
                    reasoning_effort="" if effort == "on" else effort,
                    think=True if effort == "on" else None,
                )
            except ConnectionFailed:
                if not attempts:
                    raise

    async def shell(self, command: str) -> None:
        """Run a shell command of the user. Its output is shown when its message comes, as in every
        other client."""
        await self.reach()
        session_id = await self.ensure_session(f"!{command}")
        self.command, self._since = one_line(command), time.monotonic()
        try:
            await requests.shell(self.workspace, session_id, command)
        finally:
            self.command = ""
            self.changed()

    async def reach(self) -> None:
        """Wait for a connection; a daemon that is gone is started again. Raises ConnectionFailed if
        it cannot be reached in time."""
        if self._connected.is_set():
            return
        await ensure_daemon(self._wanted)
        try:
            async with asyncio.timeout(ready_seconds()):
                await self._connected.wait()
        except TimeoutError:
            raise ConnectionFailed("the daemon cannot be reached", reached=False) from None

    async def ensure_session(self, text: str) -> str:
        """The id of the session. If there is none, create one that begins with this text."""
        if not self.session.id:
            agent, self.next_agent = self.next_agent, ""
            await self.adopt(await new_session(self.workspace, title_of(text), agent))
            self.efforts[self.session.id] = self.efforts.pop("", "")
        return self.session.id

    # Sessions -----------------------------------------------------------------------------------

    async def adopt(self, session: Session) -> None:
        """Show what happens in this session from now on."""
        self.session = session
        self._family = {session.id}
        self.view = ChatView(self.screen)
        with contextlib.suppress(CrushliteError):  # it only shows other clients where this one is
            await self.workspace.look(session.id)

    async def choose_agent(self, name: str, session_id: str) -> None:
        """Let an agent answer in a session, or in the one to come if the id is empty. Raises
        CrushliteError if there is no such agent."""
        if session_id:
            await requests.choose_agent(self.workspace, session_id, name)
            return
        names = [agent.name for agent in await requests.offered_agents(self.workspace)]
        if name not in ("default", *names) and not name.startswith("acp:"):
            raise UsageError(f"no agent {name}: /agent lists them, or use acp:COMMAND")
        self.next_agent = name

    def forget(self) -> None:
        """Have no session until the next prompt creates one."""
        self.session = Session()
        self._family = set()
        self.view = ChatView(self.screen)
        self.set_busy(False)

    async def open_session(self, session: Session) -> None:
        """Show the last messages of a session, and then what happens in it."""
        async with self._showing:
            await self.adopt(session)
            messages = await self.workspace.messages(session.id)
            for message in messages[:-RECENT]:
                self.view.skip(message)
            title = one_line(session.title) or "untitled"
            earlier = len(messages) - RECENT
            more = f", {earlier} earlier messages not shown" if earlier > 0 else ""
            self.note(f"session {title} ({session.id[:8]}){more}")
            for message in messages[-RECENT:]:
                self.view.take(message)
        self.changed()

    # Stopping -----------------------------------------------------------------------------------

    def interrupt(self) -> None:
        """Ctrl-C: cancel what runs; a second one, or one when nothing runs, leaves."""
        if (self.busy or self.command) and not self._canceling:
            self._canceling = True
            self.spawn(self.attempt(self.cancel()))
        elif (self.editor.text or self.editor.searching) and not self._canceling:
            self.editor.drop()
        elif self._canceling or self._warned:
            return self.leave(CANCELED)
        else:
            self._warned = True
            self.note("Ctrl-C again leaves; so does Ctrl-D")
        self._draw()

    def forget_warning(self) -> None:
        """The user types: the next Ctrl-C or Ctrl-D warns again."""
        self._warned = False

    async def cancel(self) -> None:
        """Cancel what runs and what is queued in the session, and show what was hit."""
        receipt = await self.workspace.cancel(self.session.id)
        hit = [f"{each.run_id[:8]} ({each.was})" for each in receipt.canceled]
        if hit or not self.command:
            self.note(f"canceled: {', '.join(hit)}" if hit else "nothing was running")
        self.changed()

    def end_of_input(self) -> None:
        """Ctrl-D: leave, but not by accident while something runs that would be lost."""
        if self.busy and not self._warned:
            self._warned = True
            self.note("it is at work, and is canceled if nobody else watches; Ctrl-D again leaves")
        else:
            self.leave()


def _usage_words(ending: RunComplete) -> str:
    """What a run has used; empty if that is not known."""
    tokens = ending.prompt_tokens + ending.completion_tokens
    cost = f", ${ending.cost:.4f}" if ending.cost else ""
    return f"{tokens:,} tokens{cost}" if tokens else ""
