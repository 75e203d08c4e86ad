"""Turn and Agent: all that an agent may see of crushlite, and all that crushlite asks of one.

An agent is one coroutine, `async def agent(turn)`. It owns nothing: records, endings, permissions
and cancellation belong to the daemon. So an agent may raise, hang, flood or return nothing, and the
promises made to clients hold all the same.

Knows nothing of tasks, the store, events and HTTP. `Turn` is implemented in hosting/turn.py.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from ..errors import UsageError
from ..protocol.config import Model, SelectedModel
from ..records import dataclass

if TYPE_CHECKING:
    import asyncio
    from pathlib import Path

    from ..protocol.messages import Attachment, Message
    from ..protocol.permissions import PermissionOption
    from ..protocol.questions import Question, QuestionResponse
    from ..protocol.sessions import Session, Todo


@dataclass(frozen=True, slots=True)
class Info:
    """What an agent says about itself. Clients show it as the model in use. `no_model` says why it
    stands in for a model that was looked for and not found; empty for any other agent."""

    model: Model = field(default_factory=lambda: Model(id="agent", name="Agent"))
    selected: SelectedModel = field(
        default_factory=lambda: SelectedModel(model="agent", provider="crushlite")
    )
    no_model: str = ""


class Verdict(int):
    """The answer to a permission request: true if it was granted; usable wherever a bool is.
    `reason` is what the user wrote when denying it, for the model. `option` is the id of the option
    that was chosen, empty if none was."""

    reason: str
    option: str

    def __new__(cls, granted: bool, reason: str = "", option: str = "") -> Verdict:
        verdict = super().__new__(cls, bool(granted))
        verdict.reason = reason
        verdict.option = option
        return verdict

    @property
    def granted(self) -> bool:
        return bool(self)

    def __eq__(self, other: object) -> bool:
        # Two verdicts are equal if their reasons are, too; compared to a bool, only the answer is.
        same = int(self) == other
        return same and self.reason == other.reason if isinstance(other, Verdict) else same

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = int.__hash__

    def __repr__(self) -> str:
        return str(bool(self))


@dataclass(frozen=True, slots=True)
class Scope:
    """What a grant for the session covers, where that is not every request with the same tool,
    action and path: of those, the ones whose parts were all granted. A part is any text. Without
    parts nothing is remembered. `words` tells the user, and completes "for this session, ...".

    `rule_parts` and `rule_words` are another grant to offer, which can also be kept for good.
    `covered_by` says which parts cover a request besides its own: of each of these sets, one must
    have been granted. If it is empty, there are no others."""

    parts: tuple[str, ...]
    words: str
    rule_parts: tuple[str, ...] = ()
    rule_words: str = ""
    covered_by: tuple[frozenset[str], ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens and cost of one model call. Zero means unknown; estimated tokens add no cost."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    estimated: bool = False


@dataclass(frozen=True, slots=True)
class Title:
    """A generated title, and the usage of generating it."""

    text: str
    usage: Usage = Usage()
    plain: bool = False  # only the prompt's first words: one given by a client is better


@dataclass(frozen=True, slots=True)
class Delegated:
    """What a sub-agent gave: its last words, and how often a permission was denied to it."""

    text: str
    denied: int = 0


@dataclass(frozen=True, slots=True)
class ToolCheck:
    """What may be done with a tool call. With a `refusal` it must not run, and that text is its
    result. `input` is what it is to run with. `halt`: the turn must end."""

    input: dict[str, Any]
    refusal: str = ""
    halt: bool = False


@dataclass(frozen=True, slots=True)
class Exit:
    """How a command ended."""

    code: int  # 128 + n for signal n, as shells say it
    timed_out: bool
    canceled: bool
    seconds: float
    survivors: int = 0  # processes that could not be killed: another user's (sudo), or stuck


class CommandOutput(Protocol):
    def text(self, limit: int = ...) -> str:
        """What was written so far: all of it, or its two ends with about `limit` bytes."""


class RunningCommand(Protocol):
    """A command that an agent has started. `done` has its Exit when all its processes are dead."""

    @property
    def pid(self) -> int: ...

    @property
    def output(self) -> CommandOutput: ...

    @property
    def done(self) -> asyncio.Future[Exit]: ...

    async def wait(self, timeout: float | None = None) -> Exit:
        """Wait until all processes are dead; after `timeout` seconds, kill them."""

    def kill(self) -> None:
        """Kill the command and all that it started. Returns at once."""


class JobInfo(NamedTuple):
    """What a job is, as clients show it: its command, what that is for, and where it runs."""

    command: str = ""
    description: str = ""
    folder: str = ""


UNKNOWN_JOB = JobInfo()


class JobOutput(NamedTuple):
    """The output of a job so far. `exit` is None while it runs."""

    text: str
    done: bool
    exit: Exit | None


class Jobs(Protocol):
    """The commands of a session that go on after the run that started them."""

    def keep(self, command: RunningCommand, info: JobInfo = ...) -> str:
        """Let a command go on after the run, as a job of the session; returns the job's id. `info`
        says what it is, for clients. Raises Conflict if there are too many jobs."""

    def job_output(self, job_id: str) -> JobOutput:
        """The output of a job of this session so far. Raises NotFound."""

    def job_info(self, job_id: str) -> JobInfo:
        """What a job of this session is. Raises NotFound."""

    async def wait_for_job(self, job_id: str, seconds: float) -> None:
        """Wait until a job of this session has ended, at most for some seconds. Raises NotFound."""

    async def kill_job(self, job_id: str) -> Exit | None:
        """Kill a job of this session and wait until it is dead. Raises NotFound."""


class TurnCommands(Jobs, Protocol):
    """Runs the commands of one turn; `start` does what `Turn.command` promises."""

    async def start(self, command: str | Sequence[str], **options: Any) -> RunningCommand: ...

    async def settle(self) -> None:
        """Wait until the watches of commands that have ended are done: what the agent does next
        must not be taken for the doing of those commands."""

    async def end(self) -> None:
        """The agent is gone: kill what it left running, unless it was kept. Returns when all that
        is dead and its watches are done, at the latest after some seconds."""


class Turn(Jobs, Protocol):
    """One turn, as its agent sees it. After the turn has ended, every call raises TurnOver."""

    run_id: str
    session_id: str
    prompt: str
    attachments: Sequence[Attachment]
    max_steps: int | None  # the prompt's limit, if it has one
    reasoning_effort: str  # how much a model shall reason in this turn; empty: as it is configured
    reasoning: bool | None  # whether it shall reason at all; None: as it is configured
    path: Path  # the workspace's directory
    env: Mapping[str, str]  # of the client that created the workspace, else the daemon's

    @property
    def interactive(self) -> bool:
        """Whether a client is attached that may answer questions."""

    @property
    def watchers(self) -> int:
        """How many clients are attached to the workspace."""

    @property
    def tokens(self) -> int:
        """How many were sent and received in this turn so far, with those of its sub-agents."""

    async def session(self) -> Session: ...

    async def history(self) -> list[Message]:
        """The session's messages, oldest first, this turn's own included. To be read only: the
        next call returns the same objects again."""

    async def conversation(self) -> tuple[Session, list[Message]]:
        """The session and its messages, in one read; see `history`."""

    async def recall(self) -> str:
        """What this agent has kept with the session by `remember`; empty if nothing. As the text
        comes from the session's database, check it like any input."""

    async def remember(self, notes: str) -> None:
        """Keep a text of the agent's own with the session, for later turns: it survives a restart
        and no client sees it. It replaces the one before. Raises BadRequest for more than 1 MiB."""

    async def say(self, text: str) -> None:
        """Stream a piece of the answer. The first piece of a step creates its assistant message."""

    async def think(self, text: str, signature: str = "") -> None:
        """Stream a piece of reasoning, which ends at the first `say` or tool call after it."""

    async def tool_call(
        self,
        name: str,
        input: str | Mapping[str, Any],
        id: str | None = None,
        finished: bool = True,
    ) -> str:
        """Add a tool call, or replace the input of the open one with this id; returns its id: a new
        one if a call of an earlier step has the given one. Both mean this call from then on."""

    async def tool_result(
        self,
        id: str,
        content: str,
        is_error: bool = False,
        metadata: str | Mapping[str, Any] = "",
        data: str = "",
        mime_type: str = "",
    ) -> None:
        """Record the result of a tool call. The next say, think or tool_call begins a new step."""

    async def before_tool(self, id: str, name: str, input: Mapping[str, Any]) -> ToolCheck:
        """Ask whether the open call `id` may run, before anything else is done for it. An agent
        that does not ask here is answered when it asks for a permission."""

    @property
    def context(self) -> str:
        """What wings add to the prompt, for the model; empty if nothing."""

    @property
    def halted(self) -> bool:
        """Whether the agent must end the turn: no further tool is allowed."""

    async def before_stop(self) -> bool:
        """Ask whether the turn may end. If not, a new user message in `history` says what to do."""

    def progress(self, id: str, output: str) -> None:
        """Show clients the output of a running tool so far; it is not stored."""

    def retrying(self, words: str) -> None:
        """Show clients, without storing it, when and why a model call will be made again."""

    async def step(self) -> None:
        """Begin a new step. Raises LimitReached at max_steps."""

    async def erase(self) -> None:
        """Drop what this step has streamed, before a retry streams it again."""

    async def finish(self, reason: str, message: str = "", details: str = "") -> None:
        """Set the finish reason of the turn's last message; max_tokens, for example."""

    async def permission(
        self,
        tool_name: str,
        action: str,
        *,
        description: str = "",
        params: Mapping[str, Any] | None = None,
        path: str = "",
        tool_call_id: str = "",
        scope: Scope | None = None,
        options: Sequence[PermissionOption] = (),
    ) -> Verdict:
        """Ask the attached clients for permission and wait for the first answer. `params` must hold
        all that will be done. `options` are answers of the agent's own, from which a client may
        choose instead. Raises BadRequest, phrased for the model, for more than a user can read."""

    async def ask(
        self,
        questions: str | Sequence[str | Question | Mapping[str, Any]],
        *,
        tool_call_id: str = "",
        confirm_title: str = "",
    ) -> list[QuestionResponse] | None:
        """Ask the attached clients to show a form, and wait for its answers; None if the user
        dismissed it. A text is a question that is answered with a text (`fill_in_text`). Raises
        BadRequest, phrased for the model, for a form that cannot be shown."""

    async def followups(self) -> list[Message]:
        """Fold in the prompts that were sent to steer this turn since the last call: they are
        stored as user messages and returned. While a tool call has no result, and at max_steps,
        there are none: they wait for the next call, or get a turn of their own. After some, the
        next piece of the answer begins a new message."""

    async def usage(self, usage: Usage, last: bool = False) -> None:
        """Report tokens and cost of a model call. At max_cost a person who attends is asked for
        more; raises LimitReached if that is not given. `last`: the turn is about to end, as far as
        the agent knows; what was used is stored with its ending, which is faster."""

    async def command(
        self,
        command: str | Sequence[str],
        *,
        cwd: str = "",
        env: Mapping[str, str] | None = None,
        on_output: Callable[[bytes], None] | None = None,
        read_only: bool = False,
    ) -> RunningCommand:
        """Start a command: a text for the shell, or a list of arguments to run without one. Unless
        it was kept, all its processes are killed, and have had some seconds to die, before this run
        is reported ended. What it changes in the workspace is recorded in the file history, unless
        `read_only` says that it changes nothing. Raises NotFound if this daemon runs no commands:
        it was put together without the wing that does (shell/)."""

    async def watch_files(self) -> None:
        """Record what changes in the workspace from now until the turn ends in the file history, as
        if this turn were one command. For an agent that is a program of its own."""

    async def summarize(self) -> None:
        """Summarize the conversation so far, within this turn. The summary replaces it for the
        model; the messages stay. Raises NotFound without the wing for it (delegation/)."""

    async def delegate(
        self, id: str, prompt: str, agent: AnyAgent, *, title: str = ""
    ) -> Delegated:
        """Let another agent, a sub-agent, answer a prompt for the open tool call `id`, in a child
        session of this one. It has the limits of this turn, what it costs counts for both sessions,
        and what it asks users is asked for this session; it ends before this turn does. Several may
        run at once. Raises what the sub-agent raised, BadRequest in a sub-agent's own turn, and
        NotFound in a daemon without the wing that runs them (delegation/)."""

    async def file_read(self, path: str) -> None:
        """Record that the session has read a file. Nothing is kept without filehistory/."""

    async def file_changed(self, path: str, before: str | None, after: str | None) -> None:
        """Record a change that was made to a file (`path` is absolute): both versions are kept in
        the session's history, by filehistory/, for undoing the run. None: there is no such file."""

    async def todos(self, todos: Sequence[Todo | Mapping[str, Any]]) -> None:
        """Replace the session's to-do list."""

    async def title(self, text: str) -> None:
        """Give the session this title, unless a user has chosen one."""


# Agents ------------------------------------------------------------------------------------------


@runtime_checkable
class RunsTurns(Protocol):
    """An agent that is an object. The other methods of Agent are optional."""

    def run(self, turn: Any) -> Any: ...


# What can be made an Agent.
AnyAgent = Callable[[Any], Any] | RunsTurns


class Agent:
    """An agent of any accepted form; UsageError for what is none. Methods it lacks do nothing."""

    def __init__(self, target: AnyAgent) -> None:
        self._is_object = isinstance(target, RunsTurns)
        run = target.run if isinstance(target, RunsTurns) else target
        if not callable(run):
            raise UsageError(
                f"{target!r} is not an agent: give a coroutine function that takes a turn, "
                "or an object with a run(turn) method"
            )
        self._target = target
        self.run: Callable[[Any], Any] = run
        # A plain function would block the event loop: it is run in a thread, with a blocking Turn.
        self.is_async = inspect.iscoroutinefunction(run) or inspect.iscoroutinefunction(
            getattr(run, "__call__", None)  # noqa: B004 - asked for the method, not for callability
        )

    def has(self, name: str) -> bool:
        """Whether the agent is an object with this method."""
        return self._is_object and callable(getattr(self._target, name, None))

    async def call(self, name: str, *args: object) -> Any:
        """Await a method of the agent; None if it has none. SystemExit and KeyboardInterrupt, which
        would end the event loop and with it the daemon, become a RuntimeError."""
        if not self.has(name):
            return None
        try:
            return await getattr(self._target, name)(*args)
        except (SystemExit, KeyboardInterrupt) as error:
            raise RuntimeError(f"the agent raised {type(error).__name__}") from error

    @property
    def summarizes(self) -> bool:
        """Whether the agent can summarize a conversation."""
        return self.has("summarize")

    @property
    def notes_owner(self) -> str:
        """The name under which the agent keeps its notes with a session. One that answers only in
        some sessions of a workspace has its own, and does not meet the notes of another."""
        owner = getattr(self._target, "notes_owner", "")
        return owner if isinstance(owner, str) else ""

    def info(self) -> Info:
        """What the agent says about itself; the default if that fails."""
        method = getattr(self._target, "info", None)
        try:
            info = method() if callable(method) else None
        except Exception:  # noqa: BLE001 - only shown to users: no run must fail for it
            info = None
        return info if isinstance(info, Info) else Info()

    async def ready(self) -> None:
        """Let the agent prepare itself, in its first run in a workspace, and again if it failed."""
        await self.call("ready")

    async def summarize(self, turn: Turn) -> None:
        """Let the agent stream a summary of the conversation into a turn that was made for it."""
        await self.call("summarize", turn)

    async def aclose(self) -> None:
        """Let the agent release what it holds: its workspace closes, or it was replaced."""
        await self.call("aclose")


AgentFactory = Callable[["Path", Mapping[str, str], Any], Agent | None]
