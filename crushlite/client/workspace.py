"""A workspace of the daemon, from outside: every request about it, and the ways to follow it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import CrushliteError, NoAgent
from ..protocol.changes import ChangedRun, RunChanges, UndoAnswer, UndoRequest
from ..protocol.config import (
    AgentInfo,
    AgentInit,
    ModelChoice,
    ProviderKey,
    RemoveValue,
    SelectedModel,
    SetValue,
)
from ..protocol.messages import Attachment, Message, Prompt
from ..protocol.permissions import PermissionAnswer, PermissionRequest, PermissionSkip, Resolution
from ..protocol.questions import QuestionBatch, QuestionReply, QuestionResponse
from ..protocol.runs import Accepted, CancelReceipt, QueuedPrompt, RunComplete, RunInfo
from ..protocol.sessions import CurrentSession, File, Session, ShellAnswer, ShellCommand
from ..protocol.space import Space
from ..protocol.workspaces import Workspace
from .following import RunStream
from .stream import EventStream
from .wire import route

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..protocol.workspaces import CreateWorkspace
    from .connection import Client

log = logging.getLogger(__name__)

# Seconds for what is answered at its end: a summary by a model, a command.
LONG = 600.0


@dataclass(slots=True)
class SessionExport:
    """All there is of a session."""

    session: Session
    messages: list[Message] = field(default_factory=list)
    files: list[File] = field(default_factory=list)
    runs: list[RunInfo] = field(default_factory=list)


class RemoteWorkspace:
    """A workspace of the daemon. `id` changes if a stream had to create it again."""

    def __init__(self, client: Client, request: CreateWorkspace, info: Workspace) -> None:
        self.client = client
        self.info = info
        self.id = info.id
        self.released = False
        self._wire = client._wire
        self._request = request
        self._recreating: asyncio.Task[Workspace] | None = None
        # What the daemon knows of this client only as long as it knows its stream: said again
        # after each return. None: never said.
        self._interactive: bool | None = None
        self._looking_at: str | None = None

    def events(
        self, *, resume: bool = True, reconnect: bool = True, last_id: str | None = None
    ) -> EventStream:
        """The event stream, to be used in `async with`. `last_id` continues an earlier one."""
        return EventStream(self, resume=resume, reconnect=reconnect, last_id=last_id)

    async def refresh(self) -> Workspace:
        """Read what the daemon says about the workspace now."""
        self.info = await self._wire.ask(Workspace, "GET", self._at())
        return self.info

    async def release(self) -> None:
        """Give the workspace back; its open streams go on, but do not return."""
        self.released = True
        await self._wire.send("DELETE", self._at(client_id=self.client.client_id))

    # Asking.

    async def ask(
        self, text: str, session_id: str = "", attachments: Iterable[Attachment] = ()
    ) -> RunComplete:
        """Ask, in a new session unless one is given, and return how it ended: with a `text`, with
        an `error`, or `cancelled`. None of these is an exception."""
        async with self.start(text, session_id, attachments=attachments) as run:
            return await run.end()

    def start(self, text: str, session_id: str = "", **options: Any) -> RunStream:
        """A prompt and the events of its run, to be used in `async with`: subscribed before it is
        posted, so that none is missed. The options are those of `prompt`."""
        return RunStream(self, session_id=session_id, prompt=text, options=options)

    def follow(self, run_id: str) -> RunStream:
        """The events of a run that anybody started, from its beginning, also if it has ended; to
        be used in `async with`."""
        return RunStream(self, run_id=run_id)

    async def prompt(  # noqa: PLR0913 - the fields of one request, by keyword
        self,
        session_id: str,
        text: str,
        *,
        run_id: str | None = None,
        when_busy: str = "",
        attachments: Iterable[Attachment] = (),
        detach: bool = False,
        max_cost: float | None = None,
        max_steps: int | None = None,
        auto_approve: bool = False,
    ) -> Accepted:
        """Returns when the daemon has promised the prompt. With a `run_id` it is safe to send
        again: the same prompt under the same id is the same run."""
        request = Prompt(session_id, text, run_id=run_id or "", attachments=list(attachments))
        request.when_busy, request.detach = when_busy, detach
        request.max_cost, request.max_steps = max_cost, max_steps
        request.auto_approve = auto_approve
        return await self._wire.ask(Accepted, "POST", self._at("agent"), request)

    # Sessions.

    async def create_session(self, title: str = "") -> Session:
        return await self._wire.ask(Session, "POST", self._at("sessions"), Session(title=title))

    async def sessions(self) -> list[Session]:
        """All of them, the one used last first."""
        return await self._wire.ask_all(Session, self._at("sessions"))

    async def session(self, session_id: str) -> Session:
        return await self._wire.ask(Session, "GET", self._at("sessions", session_id))

    async def rename(self, session_id: str, title: str) -> Session:
        target = self._at("sessions", session_id)
        return await self._wire.ask(Session, "PUT", target, Session(id=session_id, title=title))

    async def delete(self, session_id: str) -> None:
        await self._wire.send("DELETE", self._at("sessions", session_id))

    async def messages(self, session_id: str) -> list[Message]:
        return await self._wire.ask_all(Message, self._at("sessions", session_id, "messages"))

    async def user_messages(self, session_id: str = "") -> list[Message]:
        """What was typed in a session or, without one, in all of them."""
        where = ("sessions", session_id) if session_id else ()
        return await self._wire.ask_all(Message, self._at(*where, "messages", "user"))

    async def files(self, session_id: str) -> list[File]:
        """Every version of every file that the session changed."""
        return await self._wire.ask_all(File, self._at("sessions", session_id, "history"))

    async def export(self, session_id: str) -> SessionExport:
        return SessionExport(
            await self.session(session_id),
            await self.messages(session_id),
            await self.files(session_id),
            await self.runs(session_id),
        )

    async def look(self, session_id: str) -> None:
        """Tell which session this client shows ("" for none); needs an open event stream."""
        target = self._at("current-session", client_id=self.client.client_id)
        await self._wire.send("POST", target, CurrentSession(session_id))
        self._looking_at = session_id

    # The agent.

    async def agent(self) -> AgentInfo:
        return await self._wire.ask(AgentInfo, "GET", self._at("agent"))

    async def ready(self) -> AgentInfo:
        """Returns if prompts would be answered. Else says what is missing: ConnectionFailed, the
        daemon; WorkspaceNotFound, the workspace; NoAgent, a usable agent."""
        info = await self.agent()
        if not info.is_ready:
            raise NoAgent("the agent is not ready: configure a model for it")
        return info

    async def init(self, interactive: bool = True) -> None:
        """Tell whether a person sits at this client."""
        target = self._at("agent", "init", client_id=self.client.client_id)
        await self._wire.send("POST", target, AgentInit(interactive))
        self._interactive = interactive

    async def cancel(self, session_id: str, wait: float | None = None) -> CancelReceipt:
        """Cancel what the session has accepted so far; `wait` seconds at most for it to end."""
        target = self._at("agent", "sessions", session_id, "cancel", wait=wait)
        return await self._wire.ask(CancelReceipt, "POST", target, wait=wait or 0)

    async def cancel_run(self, run_id: str, wait: float | None = None) -> CancelReceipt:
        """Cancel one run and nothing behind it; one that has ended is left alone."""
        target = self._at("runs", run_id, "cancel", wait=wait)
        return await self._wire.ask(CancelReceipt, "POST", target, wait=wait or 0)

    async def summarize(self, session_id: str) -> None:
        """Returns when the summary is there; SessionBusy while the session works."""
        target = self._at("agent", "sessions", session_id, "summarize")
        await self._wire.send("POST", target, wait=LONG)

    async def shell(self, session_id: str, command: str) -> ShellAnswer:
        """Run a command as a person would, beside the agent; it becomes part of the session."""
        target = self._at("agent", "sessions", session_id, "shell")
        request = ShellCommand(session_id, command)
        return await self._wire.ask(ShellAnswer, "POST", target, request, wait=LONG)

    async def queue(self, session_id: str) -> list[QueuedPrompt]:
        target = self._at("agent", "sessions", session_id, "prompts")
        return await self._wire.ask_all(QueuedPrompt, target)

    async def clear(self, session_id: str) -> None:
        """Forget the queued prompts of a session."""
        await self._wire.send("POST", self._at("agent", "sessions", session_id, "prompts", "clear"))

    async def remove(self, session_id: str, run_id: str) -> None:
        """Forget one queued prompt."""
        target = self._at("agent", "sessions", session_id, "prompts", run_id)
        await self._wire.send("DELETE", target)

    async def run(self, run_id: str, wait: float = 0.0) -> RunInfo:
        """The state of a run; with `wait`, as soon as it has ended, at most so many seconds."""
        target = self._at("runs", run_id, wait=wait)
        return await self._wire.ask(RunInfo, "GET", target, wait=wait)

    async def runs(self, session_id: str = "", state: str = "") -> list[RunInfo]:
        target = self._at("runs", session_id=session_id, state=state)
        return await self._wire.ask_all(RunInfo, target)

    # What runs did to files.

    async def changed_runs(self) -> list[ChangedRun]:
        """The runs that changed files, and the undoings of runs; the latest is last."""
        return await self._wire.ask_all(ChangedRun, self._at("changes"))

    async def run_changes(self, run_id: str) -> RunChanges:
        """What a run did to files, and what stands in the way of putting them back."""
        return await self._wire.ask(RunChanges, "GET", self._at("runs", run_id, "changes"))

    async def undo(
        self, run_id: str, *, dry_run: bool = False, partial: bool = False
    ) -> UndoAnswer:
        """Put back the files that a run changed; Conflict if one cannot be, unless `partial`."""
        target = self._at("runs", run_id, "undo")
        request = UndoRequest(dry_run, partial)
        return await self._wire.ask(UndoAnswer, "POST", target, request, wait=LONG)

    async def compact(self) -> Space:
        """Give the room that deleted sessions took back; SessionBusy while something runs."""
        return await self._wire.ask(Space, "POST", self._at("compact"), wait=LONG)

    # What waits for a person.

    async def permissions(self) -> list[PermissionRequest]:
        return await self._wire.ask_all(PermissionRequest, self._at("permissions"))

    async def grant(self, request_id: str, action: str, reason: str = "") -> Resolution:
        """Answer with `allow`, `allow_session` or `deny`; the reason of a denial is for the
        model. `resolved` is False if somebody else was first."""
        target = self._at("permissions", request_id, client_id=self.client.client_id)
        return await self._wire.ask(Resolution, "POST", target, PermissionAnswer(action, reason))

    async def asks_nobody(self) -> bool:
        """Whether permissions are granted without asking."""
        target = self._at("permissions", "skip")
        return (await self._wire.ask(PermissionSkip, "GET", target)).skip

    async def ask_nobody(self, skip: bool = True) -> None:
        """Grant permissions without asking from now on, or no longer."""
        await self._wire.send("POST", self._at("permissions", "skip"), PermissionSkip(skip))

    async def questions(self) -> list[QuestionBatch]:
        return await self._wire.ask_all(QuestionBatch, self._at("questions"))

    async def answer(self, batch_id: str, responses: list[QuestionResponse] | None) -> Resolution:
        """Answer a batch of questions; None closes it without an answer."""
        reply = QuestionReply(responses or [], "cancel" if responses is None else "")
        target = self._at("questions", batch_id, client_id=self.client.client_id)
        return await self._wire.ask(Resolution, "POST", target, reply)

    # Configuration. `scope` says which file is written: 0 the user's, 1 the workspace's own.

    async def config(self) -> dict[str, Any]:
        """The effective configuration, without secrets."""
        return await self._wire.ask_plain(dict, self._at("config"))

    async def providers(self) -> list[Any]:
        return await self._wire.ask_plain(list, self._at("providers"))

    async def set_config(self, key: str, value: object, scope: int = 0) -> None:
        await self._wire.send("POST", self._at("config", "set"), SetValue(key, value, scope))

    async def remove_config(self, key: str, scope: int = 0) -> None:
        await self._wire.send("POST", self._at("config", "remove"), RemoveValue(key, scope))

    async def choose_model(self, which: str, model: SelectedModel, scope: int = 0) -> None:
        """`which` is `large` or `small`."""
        choice = ModelChoice(which, model, scope)
        await self._wire.send("POST", self._at("config", "model"), choice)

    async def set_key(self, provider_id: str, api_key: str, scope: int = 0) -> None:
        key = ProviderKey(provider_id, "string", api_key, scope)
        await self._wire.send("POST", self._at("config", "provider-key"), key)

    async def reread_config(self) -> None:
        """After somebody edited a file by hand."""
        await self._wire.send("POST", self._at("agent", "update"))

    # For the streams.

    def _at(self, *segments: str, **query: str | float | None) -> str:
        return route("workspaces", self.id, *segments, **query)

    @property
    def _left(self) -> bool:
        """Whether this client has said goodbye: then nothing is created again on its behalf."""
        return self.released or self.client.retired

    async def _create_again(self, gone: str) -> None:
        """Replace the workspace `gone`, unless another stream has done so already or is at it."""
        if self._recreating is None and self.id == gone:
            create = self._wire.ask(Workspace, "POST", route("workspaces"), self._request)
            self._recreating = self.client._recover(create)
            self._recreating.add_done_callback(self._recreated)
        if self._recreating is not None:
            await asyncio.shield(self._recreating)

    def _recreated(self, task: asyncio.Task[Workspace]) -> None:
        self._recreating = None
        if not task.cancelled() and task.exception() is None:
            log.info("workspace %s is gone, %s takes its place", self.id, task.result().id)
            self.info = task.result()
            self.id = self.info.id

    async def _reintroduce(self) -> None:
        """Say again what the daemon forgets with a stream. A courtesy: the stream is open, and a
        daemon that has gone meanwhile will be noticed there."""
        try:
            if self._interactive is not None:
                await self.init(self._interactive)
            if self._looking_at is not None:
                await self.look(self._looking_at)
        except CrushliteError as error:
            log.warning("workspace %s: could not introduce the client: %s", self.id, error)
