"""Which agent answers in a workspace, and how it is called.

A change of configuration may bring another agent, for the runs that start from then on. One that
was replaced is closed when nothing runs, and at the latest with its workspace.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Any

from ..errors import BadRequest, NoAgent, TurnOver
from ..protocol.codec import dumps, encode
from ..threads import perform
from .tasks import run_to_the_end

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from ..agent.base import Agent
    from ..protocol.config import SelectedModel
    from ..wing import WorkspacePart
    from .turn import LiveTurn

    MakeAgent = Callable[[Mapping[str, SelectedModel]], Agent | None]

log = logging.getLogger(__name__)

MOST_CHOSEN = 8  # agents that are kept for the choices of single prompts


class AgentSlot:
    """The agent of a workspace, and those it replaced that may still have work."""

    def __init__(
        self, agent: Agent | None, make: MakeAgent, parts: Sequence[WorkspacePart] = ()
    ) -> None:
        self.agent = agent  # None: nothing usable is configured, and prompts are refused
        self._make = make
        self._parts = parts  # of the wings, which may have agents for some sessions
        self._chosen: dict[bytes, Agent] = {}  # by the models that prompts chose
        self._replaced: list[Agent] = []
        self._ready: dict[Agent, asyncio.Task[None]] = {}

    def _of_parts(self, session_id: str) -> Agent | None:
        """The agent that a wing has for a session; None if none has: the workspace's answers."""
        parts = self._parts
        return next((a for part in parts if (a := part.agent_of(session_id)) is not None), None)

    def require(self, session_id: str) -> Agent:
        """The agent that new prompts of a session are accepted for. Raises NoAgent."""
        agent = self._of_parts(session_id) or self.agent
        if agent is None:
            raise NoAgent(
                "agent coordinator not initialized: name a model in crush.json, "
                "or serve with --agent offline"
            )
        return agent

    def serving(self, session_id: str) -> Agent:
        """The agent for a prompt that was accepted: the present one, else the last there was."""
        if self.agent is None and self._replaced:
            return self._of_parts(session_id) or self._replaced[-1]
        return self.require(session_id)

    def with_models(self, models: Mapping[str, SelectedModel], session_id: str) -> Agent:
        """The agent for prompts that choose their models. Raises BadRequest for wrong ones."""
        if self._of_parts(session_id) is not None:
            raise BadRequest("the agent of this session does not let prompts choose models")
        large = models.get("large")
        if self.agent is not None and large is not None and len(models) == 1:
            own = self.agent.info().selected
            if (large.provider, large.model) == (own.provider, own.model):
                return self.agent
        key = dumps(encode(dict(models)))
        if key not in self._chosen:
            agent = self._make(models)
            if agent is None:
                raise BadRequest("this agent does not let prompts choose models")
            if len(self._chosen) >= MOST_CHOSEN:
                self._replaced.insert(0, self._chosen.pop(next(iter(self._chosen))))
            self._chosen[key] = agent
        return self._chosen[key]

    def replace(self, agent: Agent | None) -> None:
        if agent is not self.agent:
            former, self.agent = self.agent, agent
            left = (*self._chosen.values(), *self._replaced, former)
            self._replaced = [one for one in left if one is not None and one is not agent]
            self._chosen = {}

    async def ready(self, agent: Agent) -> None:
        """Await the agent's `ready()`, once per agent. All runs that wait for it share the call and
        none owns it. If it fails, those runs fail and the next one calls it again."""
        ready = self._ready.get(agent)
        if ready is None or (ready.done() and (ready.cancelled() or ready.exception() is not None)):
            ready = self._ready[agent] = asyncio.create_task(agent.ready())
        await asyncio.shield(ready)

    async def close_replaced(self) -> None:
        """Close the replaced agents: nothing runs. While there is no agent, the last one stays."""
        kept = self._replaced[-1:] if self.agent is None else []
        leaving, self._replaced = [one for one in self._replaced if one not in kept], kept
        await self._close(leaving)

    async def close(self) -> None:
        leaving = [*self._replaced, *self._chosen.values(), self.agent]
        self._replaced, self._chosen = [], {}
        await self._close([agent for agent in leaving if agent is not None])

    async def _close(self, leaving: list[Agent]) -> None:
        for agent in leaving:
            if agent in self._ready:
                self._ready.pop(agent).cancel()
            try:
                await agent.aclose()
            except Exception:
                log.exception("an agent did not close")


class _BlockingTurn:
    """A Turn for an agent in a thread of its own: the same calls, each waits for its answer."""

    def __init__(self, turn: LiveTurn, loop: asyncio.AbstractEventLoop) -> None:
        self._turn = turn
        self._loop = loop
        self._stopped = False
        self._waiting: asyncio.Task[Any] | None = None

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._turn, name)
        if name.startswith("_") or not asyncio.iscoroutinefunction(attribute):
            return attribute

        def call(*args: Any, **kwargs: Any) -> Any:
            work = self._guarded(attribute(*args, **kwargs))
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()

        return call

    async def _guarded(self, work: Coroutine[Any, Any, Any]) -> Any:
        self._waiting = asyncio.ensure_future(work)
        if self._stopped:
            self._waiting.cancel()  # before its first step
        try:
            return await self._waiting
        except asyncio.CancelledError:
            raise TurnOver(f"run {self._turn.run_id} was canceled") from None
        finally:
            self._waiting = None

    def stop(self) -> None:
        self._stopped = True
        if self._waiting is not None:
            self._waiting.cancel()


async def run_agent(turn: LiveTurn) -> None:
    """Let the agent of a turn answer. Raises what it raises."""
    agent = turn.agent
    await (agent.run(turn) if agent.is_async else run_blocking(agent.run, turn))


async def run_blocking(run: Callable[[Any], Any], turn: LiveTurn) -> None:
    """Run a plain function as the agent, in a thread: it would block the event loop. What it asks
    of the turn is done on the loop, one call at a time. A cancel makes its present call, or the
    next one, raise; a thread that makes none any more is abandoned by the turn's grace."""
    blocking = _BlockingTurn(turn, asyncio.get_running_loop())

    def call() -> None:
        try:
            run(blocking)
        except BaseException as error:
            special = isinstance(error, StopIteration | CancelledError)
            if isinstance(error, Exception) and not special:
                raise
            # No task of an event loop may raise these: it would end the loop, or look canceled.
            raise RuntimeError(repr(error)) from None

    done: Future[None] = Future()
    name = f"agent-{turn.run_id}"
    threading.Thread(target=perform, args=(done, call), name=name, daemon=True).start()
    await run_to_the_end(asyncio.wrap_future(done), blocking.stop)
