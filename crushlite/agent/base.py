"""Turn and Agent: all that an agent may see of crushlite, and all that crushlite asks of one.

An agent is one coroutine, `async def agent(turn)`. It owns nothing: records, endings, permissions
and cancellation belong to the daemon, so an agent may raise, hang, flood or return nothing, and
the promises made to clients hold all the same.

Knows nothing of: tasks, the store, events, HTTP. `Turn` is implemented in turn.py.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ..errors import UsageError
from ..protocol.config import Model, SelectedModel

if TYPE_CHECKING:
    from pathlib import Path

    from ..commands.background import JobOutput
    from ..commands.process import Command, Exit
    from ..protocol.messages import Attachment, Message
    from ..protocol.questions import Question, QuestionResponse
    from ..protocol.sessions import Session, Todo


@dataclass(frozen=True, slots=True)
class Info:
    """What an agent says about itself; shown by clients as the model in use."""

    model: Model = field(default_factory=lambda: Model(id="agent", name="Agent"))
    selected: SelectedModel = field(
        default_factory=lambda: SelectedModel(model="agent", provider="crushlite")
    )


class Verdict(int):
    """Answer to a permission request: true if it was granted, and usable wherever a bool is.
    `reason` is the denier's text, for the model."""

    reason: str

    def __new__(cls, granted: bool, reason: str = "") -> Verdict:
        verdict = super().__new__(cls, bool(granted))
        verdict.reason = reason
        return verdict

    @property
    def granted(self) -> bool:
        return bool(self)

    def __eq__(self, other: object) -> bool:
        # Two verdicts differ by their reasons too; against a plain bool only the answer counts.
        same = int(self) == other
        return same and self.reason == other.reason if isinstance(other, Verdict) else same

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = int.__hash__

    def __repr__(self) -> str:
        return str(bool(self))

    __str__ = __repr__


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one model call. Zero means unknown; estimated ones add no cost."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    estimated: bool = False


@dataclass(frozen=True, slots=True)
class Title:
    """A generated title and what it cost."""

    text: str
    usage: Usage = Usage()


class Turn(Protocol):
    """One turn as its agent sees it. After the turn has ended every call raises TurnOver."""

    run_id: str
    session_id: str
    prompt: str
    attachments: Sequence[Attachment]
    max_steps: int | None  # what the prompt allowed, if it said so
    path: Path  # the workspace's directory
    env: Mapping[str, str]  # the creator's environment, else the daemon's

    @property
    def interactive(self) -> bool:
        """Whether somebody may be there to answer."""
        ...

    async def session(self) -> Session: ...

    async def history(self) -> list[Message]:
        """The session's messages, oldest first, this turn's own included."""
        ...

    async def say(self, text: str) -> None:
        """Stream a piece of the answer. The first piece of a step creates its message."""
        ...

    async def think(self, text: str, signature: str = "") -> None:
        """Stream a piece of reasoning; the first `say` or tool call after it closes it."""
        ...

    async def tool_call(
        self,
        name: str,
        input: str | Mapping[str, Any],
        id: str | None = None,
        finished: bool = True,
    ) -> str:
        """Add a tool call (or, with the id of an open one, replace its input); returns its id. A
        later step may use an id again: that call is recorded and returned under a fresh one, and
        from then on the old id means it."""
        ...

    async def tool_result(
        self,
        id: str,
        content: str,
        is_error: bool = False,
        metadata: str | Mapping[str, Any] = "",
        data: str = "",
        mime_type: str = "",
    ) -> None:
        """Record what a tool answered; the next say, think or tool_call begins a new step."""
        ...

    def progress(self, id: str, output: str) -> None:
        """Show what a running tool has put out so far; only its result is kept."""
        ...

    async def step(self) -> None:
        """Begin a new step explicitly. Raises LimitReached at max_steps."""
        ...

    async def erase(self) -> None:
        """Drop what this step streamed: a retry must not double the text."""
        ...

    async def finish(self, reason: str, message: str = "", details: str = "") -> None:
        """Set the finish reason of the turn's last message, for example max_tokens."""
        ...

    async def permission(
        self,
        tool_name: str,
        action: str,
        *,
        description: str = "",
        params: Mapping[str, Any] | None = None,
        path: str = "",
        tool_call_id: str = "",
    ) -> Verdict:
        """Ask the people watching; the first answer counts."""
        ...

    async def ask(
        self,
        questions: Sequence[Question | Mapping[str, Any]],
        *,
        tool_call_id: str = "",
        confirm_title: str = "",
    ) -> list[QuestionResponse] | None:
        """Show a form; None if the user dismissed it. Raises BadRequest for a form no client
        could render, phrased for the model."""
        ...

    async def followups(self) -> list[Message]:
        """The prompts typed to steer this turn since the last call, stored as user messages. None
        while a tool call has no result, or at max_steps: they wait for the next call of this, or
        for a turn of their own. What is said after some begins a message of its own."""
        ...

    async def usage(self, usage: Usage) -> None:
        """Report a model call's tokens and cost. Raises LimitReached at max_cost."""
        ...

    async def command(
        self,
        command: str | Sequence[str],
        *,
        cwd: str = "",
        env: Mapping[str, str] | None = None,
        on_output: Callable[[bytes], None] | None = None,
        read_only: bool = False,
    ) -> Command:
        """Start a command (a text for the shell, or a list of words for none). Whatever it started
        is dead before this run is reported ended, unless it was kept. What it changes in the
        workspace goes into the file history, unless `read_only` says that it cannot."""
        ...

    def keep(self, command: Command) -> str:
        """Let a command outlive the run, as a job of the session; returns the job's id."""
        ...

    def job_output(self, job_id: str) -> JobOutput: ...

    async def kill_job(self, job_id: str) -> Exit | None: ...

    async def summarize(self) -> None:
        """Replace the conversation so far by a summary, in the middle of this turn."""
        ...

    async def file_read(self, path: str) -> None: ...

    async def file_changed(self, path: str, before: str | None, after: str | None) -> None:
        """Keep both versions in the session's file history; None means that there is no file. The
        run can be undone from there. Call it after the change; `path` is absolute."""
        ...

    async def todos(self, todos: Sequence[Todo | Mapping[str, Any]]) -> None: ...


@runtime_checkable
class RunsTurns(Protocol):
    """The object form of an agent. The other methods of Agent are optional."""

    def run(self, turn: Any) -> Any: ...


class Agent:
    """Any accepted form of agent behind one face: optional methods become harmless defaults."""

    def __init__(self, target: Callable[[Any], Any] | RunsTurns) -> None:
        run = target.run if isinstance(target, RunsTurns) else target
        if not callable(run):
            raise UsageError(
                f"{target!r} is not an agent: give a coroutine function that takes a turn, "
                "or an object with a run(turn) method"
            )
        self._target = target
        self.run: Callable[[Any], Any] = run
        # A plain function would block the event loop, so it gets a thread and a blocking Turn.
        self.is_async = inspect.iscoroutinefunction(run) or inspect.iscoroutinefunction(
            getattr(run, "__call__", None)  # noqa: B004 - asked for the method, not for callability
        )

    def _optional(self, name: str) -> Callable[..., Awaitable[Any]] | None:
        method = getattr(self._target, name, None) if isinstance(self._target, RunsTurns) else None
        return method if callable(method) else None

    @property
    def summarizes(self) -> bool:
        return self._optional("summarize") is not None

    def info(self) -> Info:
        method = getattr(self._target, "info", None)
        try:
            info = method() if callable(method) else None
        except Exception:  # noqa: BLE001 - only for show: a run must end without it, too
            info = None
        return info if isinstance(info, Info) else Info()

    async def ready(self) -> None:
        method = self._optional("ready")
        if method is not None:
            await _contained(method())

    @property
    def titles(self) -> bool:
        return self._optional("title") is not None

    async def title(self, text: str) -> Title:
        """A short title for a session that begins with `text`; empty for "none"."""
        method = self._optional("title")
        title = await _contained(method(text)) if method is not None else ""
        return title if isinstance(title, Title) else Title(str(title))

    async def summarize(self, turn: Turn) -> None:
        method = self._optional("summarize")
        if method is not None:
            await _contained(method(turn))

    async def aclose(self) -> None:
        method = self._optional("aclose")
        if method is not None:
            await _contained(method())


async def _contained(work: Awaitable[Any]) -> Any:
    """These two would end the event loop, and with it the daemon, from whichever task they leave;
    an agent may fail what it was asked to do, and nothing else."""
    try:
        return await work
    except (SystemExit, KeyboardInterrupt) as error:
        raise RuntimeError(f"the agent raised {type(error).__name__}") from error


AgentFactory = Callable[["Path", Mapping[str, str], Any], Agent | None]


async def _as_it_is(env: Mapping[str, str], config: Any, again: bool) -> Any:
    return config


@dataclass(frozen=True, slots=True)
class FollowsConfig:
    """A factory that is asked again, for later runs, whenever the configuration has changed.

    `complete` is awaited before that, with the client's environment: it may add to a configuration
    what is not in the files, such as the models that a server offers, and must neither fail nor
    take long. Its last argument says whether somebody asked to look again.
    """

    make: AgentFactory
    complete: Callable[[Mapping[str, str], Any, bool], Awaitable[Any]] = _as_it_is

    def __call__(self, path: Path, env: Mapping[str, str], config: Any) -> Agent | None:
        return self.make(path, env, config)


def agent_factory(target: Any) -> AgentFactory:
    """Turn what the user gave into a factory, called once per workspace.

    A class, or a callable whose parameters are named path, env and config, is a factory; anything
    else is the agent itself, shared by all workspaces.
    """
    if isinstance(target, FollowsConfig):
        return target
    if isinstance(target, type) or _takes_workspace(target):
        return lambda path, env, config: _made(target(path=path, env=env, config=config))
    agent = Agent(target)
    return lambda path, env, config: agent


def _made(agent: Any) -> Agent | None:
    """What a factory has made; None: this workspace has no agent, and its prompts are refused."""
    return agent if agent is None or isinstance(agent, Agent) else Agent(agent)


def _takes_workspace(target: Any) -> bool:
    if isinstance(target, RunsTurns) or not callable(target):
        return False
    try:
        names = inspect.signature(target).parameters
    except (TypeError, ValueError):
        return False
    return {"path", "env", "config"} <= set(names)
