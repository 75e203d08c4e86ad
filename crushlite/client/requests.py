"""Every request about one workspace. Streams are built on it (`stream`, `following`), and
`client.RemoteWorkspace` adds the methods that make streams."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from ..errors import CrushliteError, NoAgent
from ..protocol.config import AgentInfo, AgentInit, SelectedModel
from ..protocol.messages import Attachment, Message, Prompt
from ..protocol.permissions import (
    PermissionAnswer,
    PermissionRequest,
    PermissionRule,
    PermissionSkip,
    Resolution,
)
from ..protocol.questions import QuestionBatch, QuestionReply, QuestionResponse
from ..protocol.runs import Accepted, CancelReceipt, QueuedPrompt, RunInfo
from ..protocol.sessions import CurrentSession, File, Session
from ..protocol.workspaces import Space, Workspace
from .wire import route

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ..protocol.workspaces import CreateWorkspace
    from .wire import Wire

log = logging.getLogger(__name__)

# Seconds for requests that are answered when their work is done: a summary, a command, an undo.
LONG = 600.0


class WorkspaceRequests:
    """The requests of one client about a workspace, whose `id` changes if it is created again."""

    def __init__(self, wire: Wire, request: CreateWorkspace, info: Workspace) -> None:
        self.wire = wire
        self.info = info
        self.id = info.id
        self.released = False
        self._request = request
        self._recreating: asyncio.Task[Workspace] | None = None
        # The daemon forgets these two with the client's last stream, so `introduce` sends them
        # again. None: never sent.
        self._interactive: bool | None = None
        self._shown_session: str | None = None

    async def refresh(self) -> Workspace:
        """Update `info` from the daemon."""
        self.info = await self.wire.request(Workspace, "GET", self.at())
        return self.info

    async def release(self) -> None:
        """End this client's claim on the workspace. Open streams go on, but do not reconnect."""
        self.released = True
        await self.wire.send("DELETE", self.at(client_id=self.wire.client_id))

    # Prompts.

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
        reasoning_effort: str = "",
        think: bool | None = None,
        models: Mapping[str, SelectedModel] | None = None,
        max_seconds: float | None = None,
    ) -> Accepted:
        """Send a prompt; returns when the daemon has stored and accepted it. Sent again with the
        same `run_id` it does not run twice. `models`, by role (see `Prompt`), hold for its run."""
        request = Prompt(
            *(session_id, text, run_id or "", list(attachments), when_busy),
            *(detach, max_cost, max_steps, auto_approve),
            *(reasoning_effort, think, dict(models or {}), max_seconds),
        )
        return await self.wire.request(Accepted, "POST", self.at("agent"), request)

    # Sessions.

    async def create_session(self, title: str = "") -> Session:
        return await self.wire.request(Session, "POST", self.at("sessions"), Session(title=title))

    async def sessions(self) -> list[Session]:
        """All sessions, the one used last first."""
        return await self.wire.request_list(Session, self.at("sessions"))

    async def session(self, session_id: str) -> Session:
        return await self.wire.request(Session, "GET", self.at("sessions", session_id))

    async def rename(self, session_id: str, title: str) -> Session:
        target = self.at("sessions", session_id)
        return await self.wire.request(Session, "PUT", target, Session(id=session_id, title=title))

    async def delete(self, session_id: str) -> None:
        await self.wire.send("DELETE", self.at("sessions", session_id))

    async def messages(self, session_id: str) -> list[Message]:
        return await self.wire.request_list(Message, self.at("sessions", session_id, "messages"))

    async def user_messages(self, session_id: str = "") -> list[Message]:
        """The user messages of a session or, without one, of all of them."""
        where = ("sessions", session_id) if session_id else ()
        return await self.wire.request_list(Message, self.at(*where, "messages", "user"))

    async def files(self, session_id: str) -> list[File]:
        """Every version of every file that the session changed."""
        return await self.wire.request_list(File, self.at("sessions", session_id, "history"))

    async def look(self, session_id: str) -> None:
        """Say which session this client shows ("" for none). Needs an open event stream."""
        target = self.at("current-session", client_id=self.wire.client_id)
        await self.wire.send("POST", target, CurrentSession(session_id))
        self._shown_session = session_id

    # The agent.

    async def agent(self) -> AgentInfo:
        return await self.wire.request(AgentInfo, "GET", self.at("agent"))

    async def ready(self) -> AgentInfo:
        """Return if a prompt would be answered. Otherwise the error says what is missing:
        ConnectionFailed, the daemon; WorkspaceNotFound, the workspace; NoAgent, an agent."""
        info = await self.agent()
        if not info.is_ready:
            raise NoAgent("the agent is not ready: configure a model for it")
        return info

    async def init(self, interactive: bool = True) -> None:
        """Tell the daemon whether a person can answer permission requests at this client."""
        target = self.at("agent", "init", client_id=self.wire.client_id)
        self._interactive = interactive  # first: a stream that reconnects sends it again
        await self.wire.send("POST", target, AgentInit(interactive))

    async def cancel(self, session_id: str, wait: float | None = None) -> CancelReceipt:
        """Cancel all runs of the session, and wait at most `wait` seconds for them to end."""
        target = self.at("agent", "sessions", session_id, "cancel", wait=wait)
        return await self.wire.request(CancelReceipt, "POST", target, wait=wait or 0)

    async def cancel_run(self, run_id: str, wait: float | None = None) -> CancelReceipt:
        """Cancel one run and no other of its session. Does nothing if it has ended."""
        target = self.at("runs", run_id, "cancel", wait=wait)
        return await self.wire.request(CancelReceipt, "POST", target, wait=wait or 0)

    async def summarize(self, session_id: str) -> None:
        """Summarize the session. Raises SessionBusy while a run of it is live."""
        target = self.at("agent", "sessions", session_id, "summarize")
        await self.wire.send("POST", target, wait=LONG)

    async def queue(self, session_id: str) -> list[QueuedPrompt]:
        target = self.at("agent", "sessions", session_id, "prompts")
        return await self.wire.request_list(QueuedPrompt, target)

    async def clear(self, session_id: str) -> None:
        """Remove all queued prompts of a session."""
        await self.wire.send("POST", self.at("agent", "sessions", session_id, "prompts", "clear"))

    async def remove(self, session_id: str, run_id: str) -> None:
        """Remove one queued prompt."""
        await self.wire.send("DELETE", self.at("agent", "sessions", session_id, "prompts", run_id))

    async def run(self, run_id: str, wait: float = 0.0) -> RunInfo:
        """The state of a run: now, or as soon as it has ended, after `wait` seconds at most."""
        target = self.at("runs", run_id, wait=wait)
        return await self.wire.request(RunInfo, "GET", target, wait=wait)

    async def runs(self, session_id: str = "", state: str = "") -> list[RunInfo]:
        target = self.at("runs", session_id=session_id, state=state)
        return await self.wire.request_list(RunInfo, target)

    async def compact(self) -> Space:
        """Shrink the database. Raises SessionBusy while a run is live in a workspace with it."""
        return await self.wire.request(Space, "POST", self.at("compact"), wait=LONG)

    # Permission requests and questions.

    async def permissions(self) -> list[PermissionRequest]:
        return await self.wire.request_list(PermissionRequest, self.at("permissions"))

    async def grant(
        self, request_id: str, action: str, reason: str = "", option: str = ""
    ) -> Resolution:
        """Answer a permission request with `allow`, `allow_session`, `allow_rule`, `allow_always`
        or `deny`; the model reads the reason of a denial. `option` is the id of one of its own
        options, with `allow` or `deny` as it says. `resolved` is False if another answer won."""
        target = self.at("permissions", request_id, client_id=self.wire.client_id)
        answer = PermissionAnswer(action, reason, option)
        return await self.wire.request(Resolution, "POST", target, answer)

    async def rules(self) -> list[PermissionRule]:
        """What is allowed without asking: for sessions of this workspace, and for good."""
        return await self.wire.request_list(PermissionRule, self.at("permissions", "rules"))

    async def remove_rule(self, rule_id: str) -> None:
        """Take back a rule. Raises NotFound if there is none."""
        await self.wire.send("DELETE", self.at("permissions", "rules", rule_id))

    async def skips_permissions(self) -> bool:
        """Whether permissions are granted without asking."""
        return (await self.wire.request(PermissionSkip, "GET", self.at("permissions", "skip"))).skip

    async def skip_permissions(self, skip: bool = True) -> None:
        """Set whether permissions are granted without asking."""
        await self.wire.send("POST", self.at("permissions", "skip"), PermissionSkip(skip))

    async def questions(self) -> list[QuestionBatch]:
        return await self.wire.request_list(QuestionBatch, self.at("questions"))

    async def answer(self, batch_id: str, responses: list[QuestionResponse] | None) -> Resolution:
        """Answer a batch of questions; None closes it without an answer."""
        reply = QuestionReply(responses or [], "cancel" if responses is None else "")
        target = self.at("questions", batch_id, client_id=self.wire.client_id)
        return await self.wire.request(Resolution, "POST", target, reply)

    # Configuration.

    async def config(self) -> dict[str, Any]:
        """The effective configuration, without secrets."""
        return await self.wire.request_json(dict, self.at("config"))

    async def providers(self) -> list[Any]:
        return await self.wire.request_json(list, self.at("providers"))

    # For event streams.

    def at(self, *segments: str, **query: str | float | None) -> str:
        """The request target of something in this workspace."""
        return route("workspaces", self.id, *segments, **query)

    @property
    def left(self) -> bool:
        """Whether the client has left the workspace: then streams end instead of reconnecting."""
        return self.released or self.wire.retired

    async def create_again(self, gone: str) -> None:
        """Create a workspace in place of `gone`, unless another stream has done so or is doing so.
        The create goes on if the caller is cancelled: else this client might not learn the id of
        a workspace that the daemon has made for it."""
        if self._recreating is None and self.id == gone:
            create = self.wire.request(Workspace, "POST", route("workspaces"), self._request)
            self._recreating = asyncio.create_task(create)
            self.wire.creates.add(self._recreating)
            self._recreating.add_done_callback(self._created_again)
        if self._recreating is not None:
            await asyncio.shield(self._recreating)

    def _created_again(self, task: asyncio.Task[Workspace]) -> None:
        self._recreating = None
        self.wire.creates.discard(task)
        if not task.cancelled() and task.exception() is None:
            log.info("workspace %s is gone, %s takes its place", self.id, task.result().id)
            self.info = task.result()
            self.id = self.info.id

    async def introduce(self) -> None:
        """Send again what the daemon forgot when the client's last stream ended. A failure is only
        logged: if the daemon is gone, the stream itself notices."""
        try:
            if self._interactive is not None:
                await self.init(self._interactive)
            if self._shown_session is not None:
                await self.look(self._shown_session)
        except CrushliteError as error:
            log.warning("workspace %s: could not introduce the client: %s", self.id, error)
