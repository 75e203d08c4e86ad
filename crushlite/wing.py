"""The seam between the core and its wings.

The core hosts workspaces, runs agents and speaks the protocol. A *wing* is one folder that adds
something to it: configuration files, the model agent, undo, the web page. The core never imports a
wing; a wing imports the core and plugs in here. It is handed over as a plain object:

    class Notes(Wing):
        def routes(self):
            return [Entry("GET", "/v1/workspaces/{id}/notes", self.list_notes, gives=list[str])]

        async def open(self, workspace):
            # A WorkspacePart: it lives as long as the workspace.
            return NotesOfWorkspace(workspace.store)

    Daemon(agent=mine, wings=[Notes()]).run()

`wings.py` lists the wings that come with crushlite. To take one off, delete its folder, its tests
and its line there.

A part that wants to see the events of its workspace is an observer of the hub.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from .records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from pathlib import Path

    from .agent.base import Agent, AgentFactory, Delegated, ToolCheck, TurnCommands, Verdict
    from .api.entry import Entry
    from .clock import Clock
    from .events import Hub
    from .protocol.config import AgentInfo, SelectedModel
    from .protocol.messages import Part, Prompt, ToolCallPart
    from .protocol.permissions import PermissionRequest, PermissionRule
    from .settings import Settings
    from .store import ScopedStore

    # Sets a workspace up; raises CrushliteError if it cannot be opened like this.
    Setup = Callable[["Opening"], Coroutine[Any, Any, "Profile"]]
    # Called with the turn, the id of its tool call, the prompt, the sub-agent and a title.
    Delegate = Callable[[Any, str, str, Agent, str], Coroutine[Any, Any, Delegated]]
    # Called with the session's prompt, the agent, and the turn that asks for a summary.
    Summarizer = Callable[[Prompt, Agent, Any], Coroutine[Any, Any, None]]

T = TypeVar("T")


class OpenWorkspace(Protocol):
    """All that a wing may see of a workspace. Implemented by hosting/workspace.py."""

    id: str
    path: Path  # resolved
    env: Mapping[str, str]  # of the client that opened it; commands see less of it
    store: ScopedStore
    hub: Hub  # publish events here, or add an observer of them
    parts: list[WorkspacePart]  # of all wings
    clock: Clock
    profile: Profile

    @property
    def closing(self) -> bool: ...

    def part(self, kind: type[T]) -> T:
        """The part of this class that a wing opened here. Raises NotFound if there is none."""

    def busy(self, session_id: str) -> bool: ...

    def change_agent(self, agent: Agent | None) -> None:
        """Let this agent answer the runs that start from now on. None: prompts are refused."""

    async def add_message(self, session_id: str, part: Part) -> None:
        """Add a message of the user, complete with this part, to a session that may be busy;
        returns when it is stored. Raises CrushliteErrors of the store, as SessionNotFound."""

    async def watch_command(self, author: Author) -> CommandWatch:
        """One watch for those of all parts of a command that is about to start."""

    async def carry_out(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something that goes on when its request is gone; a teardown waits for it."""


@dataclass(frozen=True, slots=True)
class Author:
    """Who runs a command: a session, and a run of it ('' for a command typed by a person)."""

    session_id: str
    run_id: str = ""


class CommandWatch(Protocol):
    """Made before a command starts. Exactly one of these is called, once."""

    async def ended(self) -> None:
        """The command has ended, or is a job of its session from now on. Must not raise."""

    def dropped(self) -> None:
        """The command could not be started."""


class Guards:
    """What a turn asks about what its agent does. Everything passes here; guards/ asks parts."""

    context = ""  # for the model, in addition to the prompt
    halted = ""  # why the turn must end; empty if it need not
    hold_prompts = False  # prompts that were sent to steer a turn get one of their own
    hold_stop = False  # `stop` may take long: what the turn has used is saved before it

    async def prompt(self, text: str) -> None:
        """The turn of a run begins, and its agent has seen nothing yet. Raises PromptRefused."""

    async def withheld(self) -> bool:
        """Whether no agent may see the prompt, now or later. Waits for the answer of `prompt`."""
        return False

    def close(self) -> bool:
        """The turn ends, and `withheld` waits no longer: returns what it says."""
        return False

    async def tool(self, call_id: str, name: str, given: Mapping[str, Any]) -> ToolCheck | None:
        """The agent asks whether a tool call may run. None: it may, with the input as given."""
        return None

    async def decide(self, request: PermissionRequest, scope: Any, turn: Any) -> Verdict | None:
        """The agent asks for a permission, and nothing else was looked at. `scope` is what it gave
        to `Turn.permission`. None: it is decided by the prompt, policy, rules or users."""
        return None

    def notify(self, kind: str, text: str) -> None:
        """What a user who looks away should know: `agent_needs_input` or `agent_completed`."""

    async def result(
        self, call: ToolCallPart, content: str, metadata: str, *, is_error: bool
    ) -> tuple[str, str]:
        """A tool call has a result: returns its content and metadata as they are to be stored."""
        return content, metadata

    async def stop(self, text: str) -> str:
        """The agent is done, and said `text` last: returns what it must do first, or nothing."""
        return ""


class WorkspacePart:
    """What a wing keeps for one workspace. Every method has a default that does nothing."""

    async def before_command(self, author: Author) -> CommandWatch | None:
        """A command that may change files is about to start: it starts when this returns."""
        return None

    def turn_commands(self, author: Author) -> TurnCommands | None:
        """What runs the commands of a turn: that of the first part that has an answer."""
        return None

    def turn_guards(
        self, parts: Sequence[WorkspacePart], author: Author, above: Guards | None
    ) -> Guards | None:
        """What a turn asks, for all parts: that of the first one that has an answer, a GuardPart
        (guards/part.py). `above` are the guards of the turn that a sub-agent works for."""
        return None

    def delegate(self) -> Delegate | None:
        """What lets sub-agents answer (`Turn.delegate`): that of the first part that has one."""
        return None

    def summarizer(self) -> Summarizer | None:
        """What lets agents summarize a session: that of the first part that has one."""
        return None

    async def file_changed(
        self, author: Author, path: str, before: str | None, after: str | None
    ) -> None:
        """A file was changed. `Turn.file_changed` waits for this, and raises what it raises."""

    def agent_of(self, session_id: str) -> Agent | None:
        """Who answers runs of a session that start now; None: the agent of the workspace."""
        return None

    uses_agent = False  # while True, an agent that was replaced is not closed: it is still called

    async def file_read(self, session_id: str, path: str) -> None:
        """An agent has read a file. `Turn.file_read` waits for this, and raises what it raises."""

    def prompt_started(self, turn: Any, run_id: str, text: str) -> None:
        """A prompt has begun a turn, or joined it, and is in the transcript. Must not block."""

    def session_canceled(self, session_id: str) -> None:
        """A client cancels what a session does. Its runs are canceled without this."""

    async def end_session(self, session_id: str) -> None:
        """A session is about to be deleted, and its runs have ended: end what else was started in
        it, in a bounded time. Called for the sessions of its sub-agents, too."""

    def session_deleted(self, session_id: str) -> None:
        """A session is gone."""

    async def more_cost(self, turn: Any, cost: float, limit: float) -> float:
        """A turn has cost as much as its limit allows, or more, in dollars: returns the limit that
        holds from now on. The agent waits for it."""
        return limit

    # Rules: what users have allowed for good. A part that keeps them says so.

    keeps_rules = False

    def kept_rules(self) -> Sequence[PermissionRule]:
        return ()

    async def keep_rule(self, rule: PermissionRule) -> None:
        """Keep a rule, from now on for all sessions. Raises CrushliteError if that fails."""

    async def remove_rule(self, rule_id: str) -> bool:
        """Keep a rule no longer; returns whether there was one. Raises CrushliteError."""
        return False

    async def close(self) -> None:
        """The workspace closes: its runs have ended, its store is still open."""


@dataclass(frozen=True, slots=True)
class Opening:
    """A directory that is about to become a workspace."""

    path: Path  # resolved: two ways to one directory are one workspace
    shown: Path  # as the client wrote it, made absolute
    env: Mapping[str, str]  # of the client that opens it
    data_dir: Path | None  # if the request or the daemon's flags decide on it


class Profile(Protocol):
    """How one workspace is set up: where its data is, who answers, what is allowed unasked."""

    data_dir: Path

    @property
    def warning(self) -> str:
        """Lines that a client should show its user when it opens the workspace, or empty."""

    def make_agent(
        self, env: Mapping[str, str], models: Mapping[str, SelectedModel]
    ) -> Agent | None:
        """The agent of the workspace, whose environment is `env`; None if nothing usable is
        configured: prompts are refused. With `models`, by role, one for prompts that chose them:
        None if prompts cannot, BadRequest if one cannot be used."""

    def command_env(self, env: Mapping[str, str]) -> Mapping[str, str] | None:
        """What commands see of the environment of the workspace: no secrets. None if this knows
        of none: then commands see what does not look like one."""

    def allows(self, tool: str, action: str) -> bool:
        """Whether a tool may do this without asking anybody."""

    def wire(self, agent: AgentInfo) -> dict[str, Any]:
        """The configuration as clients see it; `options`, `options.tui`, `providers` are needed."""


class Ports(Protocol):
    """What the daemon can do about its TCP ports."""

    auth: str  # "token" or "none": whether ports ask for a token

    async def loopback(self, port: int) -> tuple[str, int]:
        """URL and port of a TCP listener, opened if there is none (on this port, unless 0)."""

    def token_of(self, port: int) -> str:
        """The token of a port, empty if it asks for none."""

    def allow_host(self, host: str) -> None:
        """Take requests with this Host (NAME:PORT) as well. Raises UsageError for too many."""


class Wing:
    """One object per daemon. Every method has a default that does nothing."""

    def setup(self, agents: AgentFactory, settings: Settings) -> Setup | None:
        """Called first: what sets workspaces up, with these agents. The first answer counts; the
        core's own is hosting/plain.py."""
        return None

    def agent(self, name: str, clock: Clock) -> AgentFactory | None:
        """The agents behind a name that is given to `serve --agent`; None if it is not ours."""
        return None

    def use_ports(self, ports: Ports, clock: Clock) -> None:
        """Called once, before the daemon starts."""

    def routes(self) -> Sequence[Entry]:
        """Called once: what it answers. A route of the core at the same place gives way to it."""
        return ()

    async def started(self, urls: Sequence[str]) -> None:
        """The daemon listens at these addresses. A UsageError ends it."""

    def stopped(self) -> None:
        """The daemon has left, or could not start: called at least once, also without `started`."""

    async def open(self, workspace: OpenWorkspace) -> WorkspacePart | None:
        """A workspace has opened, before any request. Import here what only workspaces need."""
        return None
