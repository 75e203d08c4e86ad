"""Every request about one workspace. Streams are built on it (`stream`, `following`), and
`client.RemoteWorkspace` adds the methods that make streams."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import field
from typing import TYPE_CHECKING, Any

from ..errors import CrushliteError, NoAgent
from ..protocol.codec import decode, loads
from ..protocol.config import (
    AgentInfo,
    AgentInit,
    ModelChoice,
    ProviderKey,
    RemoveValue,
    SelectedModel,
    SetValue,
)
from ..protocol.features import (
    ClientServer,
    CommandInfo,
    ExpandCommand,
    ExpandedCommand,
    McpState,
    UsedServers,
    WantServers,
)
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
from ..protocol.sessions import CurrentSession, File, Session, ShellAnswer, ShellCommand
from ..protocol.workspaces import Space, Workspace
from ..records import dataclass
from .wire import route

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping

    from ..protocol.agents import OfferedAgent
    from ..protocol.changes import ChangedRun, RunChanges, UndoAnswer
    from ..protocol.workspaces import CreateWorkspace
    from .wire import Wire

log = logging.getLogger(__name__)

# Seconds for requests that are answered when their work is done: a summary, a command, an undo.
LONG = 600.0


@dataclass(slots=True)
class SessionExport:
    """A session with everything that belongs to it."""

    session: Session
    messages: list[Message] = field(default_factory=list)
    files: list[File] = field(default_factory=list)
    runs: list[RunInfo] = field(default_factory=list)


class WorkspaceRequests:
    """The requests of one client about one workspace. `id` changes when an event stream had to
    create the workspace again."""

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
        self.info = await self.wire.ask(Workspace, "GET", self.at())
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
        same `run_id` it does not run twice. `models`, by role (`large`, `small`), hold for its run
        only."""
        request = Prompt(
            *(session_id, text, run_id or "", list(attachments), when_busy),
            *(detach, max_cost, max_steps, auto_approve),
            reasoning_effort=reasoning_effort,
            think=think,
            models=dict(models or {}),
            max_seconds=max_seconds,
        )
        return await self.wire.ask(Accepted, "POST", self.at("agent"), request)

    # Agents of other makers.

    async def offered_agents(self) -> list[OfferedAgent]:
        """Those that can be chosen for a session by name."""
        from ..protocol.agents import OfferedAgent

        return await self.wire.ask_all(OfferedAgent, self.at("agents"))

    async def session_agent(self, session_id: str) -> str:
        """Which of them answers in a session; empty: the agent of the workspace."""
        from ..protocol.agents import SessionAgent

        target = self.at("sessions", session_id, "agent")
        return (await self.wire.ask(SessionAgent, "GET", target)).agent

    async def choose_agent(self, session_id: str, name: str) -> None:
        """Let an agent answer the runs of a session that start from now on: one of those names, or
        `acp:COMMAND ARGS`; `default` is the agent of the workspace. Raises BadRequest if there is
        no such agent, NotFound if the daemon cannot do that."""
        from ..protocol.agents import SessionAgent

        target = self.at("sessions", session_id, "agent")
        await self.wire.ask(SessionAgent, "PUT", target, SessionAgent(name))

    # Commands.

    async def commands(self) -> list[CommandInfo]:
        """The prompts that can be sent by a name. Raises NotFound if the daemon has none at all."""
        return await self.wire.ask_all(CommandInfo, self.at("commands"))

    async def expand_command(
        self, command: str, arguments: Mapping[str, str] | None = None, text: str = ""
    ) -> str:
        """The prompt that a command stands for, by its name or id. `text` is what was typed behind
        its name. Raises NotFound, or BadRequest if an argument is missing."""
        request = ExpandCommand(command, dict(arguments or {}), text)
        target = self.at("commands", "expand")
        return (await self.wire.ask(ExpandedCommand, "POST", target, request)).prompt

    # Sessions.

    async def create_session(self, title: str = "") -> Session:
        return await self.wire.ask(Session, "POST", self.at("sessions"), Session(title=title))

    async def sessions(self) -> list[Session]:
        """All sessions, the one used last first."""
        return await self.wire.ask_all(Session, self.at("sessions"))

    async def session(self, session_id: str) -> Session:
        return await self.wire.ask(Session, "GET", self.at("sessions", session_id))

    async def rename(self, session_id: str, title: str) -> Session:
        target = self.at("sessions", session_id)
        return await self.wire.ask(Session, "PUT", target, Session(id=session_id, title=title))

    async def delete(self, session_id: str) -> None:
        await self.wire.send("DELETE", self.at("sessions", session_id))

    async def messages(self, session_id: str) -> list[Message]:
        return await self.wire.ask_all(Message, self.at("sessions", session_id, "messages"))

    def each_message(self, session_id: str) -> AsyncIterator[Message]:
        """The messages of a session one by one: for transcripts of any length."""
        return self.wire.ask_each(Message, self.at("sessions", session_id, "messages"))

    async def user_messages(self, session_id: str = "") -> list[Message]:
        """The user messages of a session or, without one, of all of them."""
        where = ("sessions", session_id) if session_id else ()
        return await self.wire.ask_all(Message, self.at(*where, "messages", "user"))

    async def files(self, session_id: str) -> list[File]:
        """Every version of every file that the session changed."""
        return await self.wire.ask_all(File, self.at("sessions", session_id, "history"))

    async def export(self, session_id: str) -> SessionExport:
        return SessionExport(
            await self.session(session_id),
            await self.messages(session_id),
            await self.files(session_id),
            await self.runs(session_id),
        )

    async def look(self, session_id: str) -> None:
        """Say which session this client shows ("" for none). Needs an open event stream."""
        target = self.at("current-session", client_id=self.wire.client_id)
        await self.wire.send("POST", target, CurrentSession(session_id))
        self._shown_session = session_id

    # The agent.

    async def agent(self) -> AgentInfo:
        return await self.wire.ask(AgentInfo, "GET", self.at("agent"))

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
        await self.wire.send("POST", target, AgentInit(interactive))
        self._interactive = interactive

    async def cancel(self, session_id: str, wait: float | None = None) -> CancelReceipt:
        """Cancel all runs of the session, and wait at most `wait` seconds for them to end."""
        target = self.at("agent", "sessions", session_id, "cancel", wait=wait)
        return await self.wire.ask(CancelReceipt, "POST", target, wait=wait or 0)

    async def cancel_run(self, run_id: str, wait: float | None = None) -> CancelReceipt:
        """Cancel one run and no other of its session. Does nothing if it has ended."""
        target = self.at("runs", run_id, "cancel", wait=wait)
        return await self.wire.ask(CancelReceipt, "POST", target, wait=wait or 0)

    async def summarize(self, session_id: str) -> None:
        """Summarize the session. Raises SessionBusy while a run of it is live."""
        target = self.at("agent", "sessions", session_id, "summarize")
        await self.wire.send("POST", target, wait=LONG)

    async def shell(self, session_id: str, command: str) -> ShellAnswer:
        """Run a shell command for the user, not for the agent. It is recorded in the session."""
        target = self.at("agent", "sessions", session_id, "shell")
        request = ShellCommand(session_id, command)
        return await self.wire.ask(ShellAnswer, "POST", target, request, wait=LONG)

    async def queue(self, session_id: str) -> list[QueuedPrompt]:
        target = self.at("agent", "sessions", session_id, "prompts")
        return await self.wire.ask_all(QueuedPrompt, target)

    async def clear(self, session_id: str) -> None:
        """Remove all queued prompts of a session."""
        await self.wire.send("POST", self.at("agent", "sessions", session_id, "prompts", "clear"))

    async def remove(self, session_id: str, run_id: str) -> None:
        """Remove one queued prompt."""
        await self.wire.send("DELETE", self.at("agent", "sessions", session_id, "prompts", run_id))

    async def run(self, run_id: str, wait: float = 0.0) -> RunInfo:
        """The state of a run: now, or as soon as it has ended, after `wait` seconds at most."""
        return await self.wire.ask(RunInfo, "GET", self.at("runs", run_id, wait=wait), wait=wait)

    async def runs(self, session_id: str = "", state: str = "") -> list[RunInfo]:
        return await self.wire.ask_all(RunInfo, self.at("runs", session_id=session_id, state=state))

    # Changes of files.

    async def changed_runs(self) -> list[ChangedRun]:
        """The runs that changed files, and the undos of such runs; the latest is last."""
        from ..protocol.changes import ChangedRun

        return await self.wire.ask_all(ChangedRun, self.at("changes"))

    async def run_changes(self, run_id: str) -> RunChanges:
        """The changes of a run to files, each with the reason if it cannot be undone."""
        from ..protocol.changes import RunChanges

        return await self.wire.ask(RunChanges, "GET", self.at("runs", run_id, "changes"))

    async def undo(
        self, run_id: str, *, dry_run: bool = False, partial: bool = False
    ) -> UndoAnswer:
        """Put back the files that a run changed. Raises Conflict if one cannot be put back, unless
        `partial`. `dry_run` changes nothing and returns what would be done."""
        from ..protocol.changes import UndoAnswer, UndoRequest

        target = self.at("runs", run_id, "undo")
        request = UndoRequest(dry_run, partial)
        return await self.wire.ask(UndoAnswer, "POST", target, request, wait=LONG)

    async def compact(self) -> Space:
        """Shrink the database. Raises SessionBusy while a run is live in a workspace with it."""
        return await self.wire.ask(Space, "POST", self.at("compact"), wait=LONG)

    # Permission requests and questions.

    async def permissions(self) -> list[PermissionRequest]:
        return await self.wire.ask_all(PermissionRequest, self.at("permissions"))

    async def grant(
        self, request_id: str, action: str, reason: str = "", option: str = ""
    ) -> Resolution:
        """Answer a permission request with `allow`, `allow_session`, `allow_rule`, `allow_always`
        or `deny`; the model reads the reason of a denial. `option` is the id of one of the
        request's own options, with `allow` or `deny` as it says. `resolved` is False if the request
        was answered before."""
        target = self.at("permissions", request_id, client_id=self.wire.client_id)
        answer = PermissionAnswer(action, reason, option)
        return await self.wire.ask(Resolution, "POST", target, answer)

    async def rules(self) -> list[PermissionRule]:
        """What is allowed without asking: for sessions of this workspace, and for good."""
        return await self.wire.ask_all(PermissionRule, self.at("permissions", "rules"))

    async def remove_rule(self, rule_id: str) -> None:
        """Take back a rule. Raises NotFound if there is none."""
        await self.wire.send("DELETE", self.at("permissions", "rules", rule_id))

    async def skips_permissions(self) -> bool:
        """Whether permissions are granted without asking."""
        return (await self.wire.ask(PermissionSkip, "GET", self.at("permissions", "skip"))).skip

    async def skip_permissions(self, skip: bool = True) -> None:
        """Set whether permissions are granted without asking."""
        await self.wire.send("POST", self.at("permissions", "skip"), PermissionSkip(skip))

    async def questions(self) -> list[QuestionBatch]:
        return await self.wire.ask_all(QuestionBatch, self.at("questions"))

    async def answer(self, batch_id: str, responses: list[QuestionResponse] | None) -> Resolution:
        """Answer a batch of questions; None closes it without an answer."""
        reply = QuestionReply(responses or [], "cancel" if responses is None else "")
        target = self.at("questions", batch_id, client_id=self.wire.client_id)
        return await self.wire.ask(Resolution, "POST", target, reply)

    # Configuration. `scope` says which file is written: 0 the user's, 1 the workspace's own.

    async def config(self) -> dict[str, Any]:
        """The effective configuration, without secrets."""
        return await self.wire.ask_plain(dict, self.at("config"))

    async def providers(self) -> list[Any]:
        return await self.wire.ask_plain(list, self.at("providers"))

    async def set_config(self, key: str, value: object, scope: int = 0) -> None:
        await self.wire.send("POST", self.at("config", "set"), SetValue(key, value, scope))

    async def remove_config(self, key: str, scope: int = 0) -> None:
        await self.wire.send("POST", self.at("config", "remove"), RemoveValue(key, scope))

    async def choose_model(self, which: str, model: SelectedModel, scope: int = 0) -> None:
        """Set the model for `which`: `large` or `small`."""
        choice = ModelChoice(which, model, scope)
        await self.wire.send("POST", self.at("config", "model"), choice)

    async def set_key(self, provider_id: str, api_key: str, scope: int = 0) -> None:
        key = ProviderKey(provider_id, "string", api_key, scope)
        await self.wire.send("POST", self.at("config", "provider-key"), key)

    async def tool_servers(self) -> list[McpState]:
        """The tool servers of the workspace, by name."""
        found = await self.wire.ask_plain(dict, self.at("mcp", "states"))
        return [decode(McpState, found[name], name) for name in sorted(found)]

    async def use_tool_servers(self, servers: list[ClientServer]) -> AsyncIterator[UsedServers]:
        """Let the agent use these tool servers, too. Yields once, which of them are used, and then
        waits until the daemon ends it. They are used until then, or until the iteration ends."""
        target = self.at("mcp", "servers")
        found = self.wire.lines("POST", target, WantServers(servers))
        async with contextlib.aclosing(found) as lines:
            async for line in lines:
                yield decode(UsedServers, loads(line))

    async def reread_config(self, *, everywhere: bool = False) -> None:
        """Make the daemon read its configuration files again, after they were edited.
        `everywhere`: wait until it has asked all providers and local servers for their models."""
        query = {"everywhere": "true"} if everywhere else {}
        await self.wire.send("POST", self.at("agent", "update", **query))

    # For event streams.

    def at(self, *segments: str, **query: str | float | None) -> str:
        """The request target of something in this workspace."""
        return route("workspaces", self.id, *segments, **query)

    @property
    def left(self) -> bool:
        """Whether the client has released the workspace or retired: then streams end instead of
        reconnecting, and the workspace is not created again."""
        return self.released or self.wire.retired

    async def create_again(self, gone: str) -> None:
        """Create a workspace in place of `gone`, unless another stream has done so or is doing so.
        The create goes on if the caller is cancelled: else this client might not learn the id of
        a workspace that the daemon has made for it."""
        if self._recreating is None and self.id == gone:
            create = self.wire.ask(Workspace, "POST", route("workspaces"), self._request)
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
