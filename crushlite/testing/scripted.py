"""An agent that a test controls, step by step.

Each run performs the steps that the test gives it and ends when it is released or canceled. If both
have happened, the run is canceled: the daemon promises that, and a scripted run must not hide it.

    agent = ScriptedAgent()
    ...                                   # post a prompt
    run = await agent.entered(1)          # the first run has begun
    await run.say("hello")                # streamed to every client
    run.release()                         # end_turn
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from ..agent.base import Info
from ..protocol.config import Model, SelectedModel

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ..agent.base import Turn


class ScriptedRun:
    """One run, controlled by the test. What the test calls here is performed inside the run."""

    def __init__(self, number: int, turn: Turn) -> None:
        self.number = number
        self.turn = turn
        self.canceled = False
        self._steps: asyncio.Queue[
            tuple[Callable[[Turn], Awaitable[Any]], asyncio.Future[Any]] | None
        ] = asyncio.Queue()

    @property
    def prompt(self) -> str:
        return self.turn.prompt

    async def do(self, step: Callable[[Turn], Awaitable[Any]]) -> Any:
        """Perform `step(turn)` inside the run; return its result or raise its exception."""
        return await self.begin(step)

    def begin(self, step: Callable[[Turn], Awaitable[Any]]) -> asyncio.Future[Any]:
        """Like `do`, but returns a future at once: for steps that wait, such as a permission."""
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._steps.put_nowait((step, done))
        return done

    async def say(self, text: str) -> None:
        await self.do(lambda turn: turn.say(text))

    def release(self) -> None:
        """Let the run end normally, after the steps before this call."""
        self._steps.put_nowait(None)

    def fail(self, message: str = "scripted failure") -> None:
        """Let the run end with an exception, after the steps before this call."""

        async def explode(turn: Turn) -> None:
            raise ScriptedFailure(message)

        self.begin(explode)

    async def play(self) -> None:
        """Perform the steps until the run is released; called by the agent."""
        while (item := await self._steps.get()) is not None:
            step, done = item
            try:
                result = await step(self.turn)
            except asyncio.CancelledError:
                done.cancel()
                raise
            except ScriptedFailure:
                done.cancel()
                raise
            except Exception as error:  # noqa: BLE001 - the test asked for this step
                if not done.cancelled():
                    # Without this frame: assertRaises clears the frames of what it catches, and
                    # clearing the frame of a suspended coroutine ends it.
                    frames = error.__traceback__.tb_next if error.__traceback__ else None
                    done.set_exception(error.with_traceback(frames))
            else:
                if not done.cancelled():
                    done.set_result(result)


class ScriptedFailure(Exception):
    """Raised inside the run by `fail`."""


class ScriptedAgent:
    """With `auto`, every run echoes its prompt and ends at once."""

    def __init__(self, *, auto: bool = False) -> None:
        self.auto = auto
        self.runs: list[ScriptedRun] = []
        self.concurrent: dict[str, int] = {}  # how many runs each session has now
        self.most_concurrent = 0  # the largest number of runs that one session had at a time
        self._waiters: list[tuple[int, asyncio.Future[ScriptedRun]]] = []

    def info(self) -> Info:
        return Info(
            Model(id="scripted", name="Scripted", context_window=100_000, default_max_tokens=4096),
            SelectedModel(model="scripted", provider="scripted"),
        )

    async def run(self, turn: Turn) -> None:
        active = self.concurrent.get(turn.session_id, 0) + 1
        self.concurrent[turn.session_id] = active
        self.most_concurrent = max(self.most_concurrent, active)
        try:
            if self.auto:
                await turn.say(turn.prompt)
                return
            script = ScriptedRun(len(self.runs) + 1, turn)
            self.runs.append(script)
            self._announce()
            try:
                await script.play()
            except asyncio.CancelledError:
                script.canceled = True
                raise
        finally:
            self.concurrent[turn.session_id] -= 1

    async def entered(self, number: int = 1) -> ScriptedRun:
        """Wait until the run with this number (from 1) has begun; return it."""
        if number <= len(self.runs):
            return self.runs[number - 1]
        waiter: asyncio.Future[ScriptedRun] = asyncio.get_running_loop().create_future()
        self._waiters.append((number, waiter))
        return await waiter

    def _announce(self) -> None:
        """A run has begun: wake those who wait for it."""
        for number, waiter in self._waiters:
            if number <= len(self.runs) and not waiter.done():
                waiter.set_result(self.runs[number - 1])
