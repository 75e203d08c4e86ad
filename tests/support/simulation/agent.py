"""An agent that does anything an agent may do, and much that it should not, as the seed says.

What it does in a run depends on the seed and on the prompt's text only. It tells the ledger when it
is called and when it leaves, and checks what it is given: histories, verdicts, folded prompts.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

from crushlite.agent.base import Title, Usage
from crushlite.errors import CrushliteError, TurnOver
from crushlite.protocol.codec import encode
from tests.support.simulation import invariants

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from crushlite.agent.base import Turn
    from crushlite.clock import Clock
    from tests.support.simulation.ledger import Ledger

    Step = Callable[[Turn, random.Random], Awaitable[None]]

# How a turn ends, and how likely that is.
ENDS = {
    "return": 50,
    "raise": 8,
    "exit": 2,
    "hang": 12,
    "swallow once": 6,
    "swallow for ever": 4,
    "slow to leave": 5,
    "raise when cancelled": 3,
    "return nothing": 10,
}

# What a turn is made of: methods of the agent, and how likely they are.
STEPS = {
    "say": 2,
    "think": 1,
    "tool": 2,
    "tools_together": 1,
    "unanswered_call": 1,
    "leave_a_request_behind": 1,
    "ask": 1,
    "followups": 4,
    "usage": 1,
    "new_step": 1,
    "erase": 1,
    "look_back": 1,
    "note_and_change": 1,
    "summary": 1,
    "sleep": 1,
}


class RandomAgent:
    """`released` lets go of the agents that would never return."""

    def __init__(self, seed: int, ledger: Ledger, clock: Clock, *, calm: bool) -> None:
        self.released: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._seed = seed
        self._ledger = ledger
        self._clock = clock
        self._calm = calm  # turns end by themselves
        self._calls = 0

    def _rng(self, about: str) -> random.Random:
        return random.Random(f"{self._seed}/{about}")

    # What the daemon calls -----------------------------------------------------------------------

    async def ready(self) -> None:
        rng = self._rng(f"ready {self._ledger.life}")
        if rng.random() < 0.2:
            await self._clock.sleep(rng.random())
        if rng.random() < 0.03:
            raise RuntimeError("not ready")

    async def run(self, turn: Turn) -> None:
        ledger = self._ledger
        run = ledger.run(turn.run_id)
        ledger.check(invariants.only_what_was_promised_runs, run)
        if run is None or ledger.violations:
            return
        ledger.check(invariants.runs_start_in_order_and_never_overlap, run)
        run.entered_at = ledger.now
        rng = self._rng(turn.prompt)
        end = _draw(rng, ENDS)
        if self._calm and end in ("hang", "swallow for ever"):
            end = "return"
        ledger.trace.add(f"agent enters {run}, will {end}")
        ledger.counts[f"agent {end}"] += 1
        try:
            if end != "return nothing":
                await self._play(turn, rng)
            await self._end(turn, rng, end)
        finally:
            run.left = True
            ledger.trace.add(f"agent leaves {run}")

    async def title(self, text: str) -> Title:
        rng = self._rng(f"title {text}")
        await self._clock.sleep(rng.choice((0.0, 0.01, 3.0)))
        if rng.random() < 0.1:
            raise ValueError("no title")
        return Title(f"about {text[:20]}", Usage(3, 4, 0.01))

    async def summarize(self, turn: Turn) -> None:
        rng = self._rng(f"summary {self._ledger.life} {self._ledger.counts['summaries']}")
        self._ledger.counts["summaries"] += 1
        for _ in range(rng.randrange(4)):
            await turn.say("in short. ")
            await self._pause(rng)
        kind = rng.random()
        if kind < 0.1:
            raise RuntimeError("no summary")
        if kind < 0.2 and not self._calm:
            await asyncio.shield(self.released)
        if kind < 0.5:
            await turn.usage(Usage(0, 20, 0.5))

    # A turn --------------------------------------------------------------------------------------

    async def _play(self, turn: Turn, rng: random.Random) -> None:
        for _ in range(rng.randrange(7)):
            try:
                step: Step = getattr(self, f"_{_draw(rng, STEPS)}")
                await step(turn, rng)
            except TurnOver:
                raise
            except CrushliteError as error:
                # A limit, or a store that cannot write: some agents go on all the same.
                if rng.random() < 0.7:
                    raise
                self._ledger.trace.add(f"agent ignores {error.code}")

    async def _end(self, turn: Turn, rng: random.Random, end: str) -> None:
        if end == "raise":
            raise ValueError(f"the agent failed at {turn.prompt[:10]}")
        if end == "exit":
            raise SystemExit(3)
        if end in ("return", "return nothing"):
            return
        try:
            await asyncio.shield(self.released)
        except asyncio.CancelledError:
            if end == "hang":
                raise
            if end == "raise when cancelled":
                raise RuntimeError("failed on the way out") from None
            if end == "slow to leave":
                await self._clock.sleep(rng.random() * 8)
                raise
        if end == "swallow for ever":
            await self._ignore_cancels()
        await self._late_word(turn)

    async def _ignore_cancels(self) -> None:
        while not self.released.done():
            try:
                await asyncio.shield(self.released)
            except asyncio.CancelledError:
                continue

    async def _late_word(self, turn: Turn) -> None:
        """An agent that was given up must not reach its turn any more."""
        run = self._ledger.run(turn.run_id)
        over = run is not None and run.completion is not None
        try:
            await turn.say("one more thing")
        except TurnOver:
            return
        if over:
            self._ledger.violate(f"{run} has ended and its agent could still speak")

    # What a turn is made of ----------------------------------------------------------------------

    async def _pause(self, rng: random.Random) -> None:
        kind = rng.random()
        if kind < 0.4:
            return
        await self._clock.sleep(0.0 if kind < 0.6 else rng.random() * (0.05 if kind < 0.9 else 3.0))

    async def _sleep(self, turn: Turn, rng: random.Random) -> None:
        await self._clock.sleep(rng.random() * 4)

    async def _say(self, turn: Turn, rng: random.Random) -> None:
        for number in range(rng.randrange(1, 6)):
            await turn.say(f"word{number} " * rng.choice((1, 1, 1, 30)))
            await self._pause(rng)

    async def _think(self, turn: Turn, rng: random.Random) -> None:
        await turn.think("hm ")
        await self._pause(rng)
        await turn.think("well", "signature" * rng.randrange(2))

    def _own_id(self) -> str:
        """An id that no other call of this world has."""
        self._calls += 1
        return f"own-{self._ledger.life}-{self._calls}"

    async def _call(self, turn: Turn, rng: random.Random) -> str:
        """A tool call. Some models count their calls from zero in every answer."""
        given = rng.choice((None, f"call-{rng.randrange(3)}", self._own_id()))
        if rng.random() < 0.3 and given is not None and given.startswith("own"):
            await turn.tool_call("tool", '{"half', given, finished=False)
            await self._pause(rng)
        return await turn.tool_call("tool", {"number": self._calls}, given)

    async def _tool(self, turn: Turn, rng: random.Random) -> None:
        call_id = await self._call(turn, rng)
        if rng.random() < 0.5:
            await self._permission(turn, rng, call_id)
        turn.progress(call_id, "half of it")
        await self._pause(rng)
        if rng.random() < 0.9:
            await turn.tool_result(call_id, "result", rng.random() < 0.2)

    async def _permission(self, turn: Turn, rng: random.Random, call_id: str) -> bool:
        ledger = self._ledger
        if call_id in ledger.askers:
            return True  # asked about before: the notifications could not be told apart
        ledger.askers[call_id] = turn.run_id
        tool = rng.choice(("read", "write"))
        granted = bool(await turn.permission(tool, "do", path="", tool_call_id=call_id))
        ledger.check(invariants.a_verdict_is_what_was_answered, call_id, granted)
        return granted

    async def _tools_together(self, turn: Turn, rng: random.Random) -> None:
        """Several calls of one step that ask for permission at the same time."""
        count = rng.randrange(2, 4)
        calls = [await turn.tool_call("tool", "{}", self._own_id()) for _ in range(count)]
        asking = [asyncio.ensure_future(self._permission(turn, rng, call)) for call in calls]
        try:
            await asyncio.gather(*asking)
        finally:
            for one in asking:
                one.cancel()
        rng.shuffle(calls)
        for call in calls:
            await turn.tool_result(call, "one of several")

    async def _unanswered_call(self, turn: Turn, rng: random.Random) -> None:
        await turn.tool_call("tool", '{"a": ', self._own_id(), finished=False)

    async def _leave_a_request_behind(self, turn: Turn, rng: random.Random) -> None:
        """Ask in a task of its own that is never waited for."""
        call_id = await turn.tool_call("tool", "{}", self._own_id())
        asking = asyncio.ensure_future(self._permission(turn, rng, call_id))
        asking.add_done_callback(lambda done: done.cancelled() or done.exception())
        await self._pause(rng)

    async def _ask(self, turn: Turn, rng: random.Random) -> None:
        call_id = await turn.tool_call("ask", "{}", self._own_id())
        self._ledger.askers[call_id] = turn.run_id
        question = {"id": "q", "type": "yes_no", "question": "well?", "description": "is it?"}
        answers = await turn.ask([question], tool_call_id=call_id)
        await turn.tool_result(call_id, str(answers))

    async def _followups(self, turn: Turn, rng: random.Random) -> None:
        folded = await turn.followups()
        run = self._ledger.run(turn.run_id)
        riders = {one.text for one in self._ledger.runs.values() if one.carrier is run}
        for message in folded:
            if message.text not in riders:
                self._ledger.violate(f"{run} was handed {message.text!r}, which was not folded")
        await turn.say("go on ")

    async def _usage(self, turn: Turn, rng: random.Random) -> None:
        await turn.usage(Usage(rng.randrange(100), rng.randrange(100), rng.random()))

    async def _new_step(self, turn: Turn, rng: random.Random) -> None:
        await turn.step()
        await turn.say("next ")

    async def _erase(self, turn: Turn, rng: random.Random) -> None:
        await turn.say("wrong ")
        await self._pause(rng)
        await turn.erase()

    async def _look_back(self, turn: Turn, rng: random.Random) -> None:
        """What a model call does: the history must be one that a provider accepts."""
        history: list[dict[str, Any]] = [encode(message) for message in await turn.history()]
        ledger = self._ledger
        ledger.check(invariants.a_history_is_acceptable, history, False)
        if not any(invariants.text_of(message) == turn.prompt for message in history):
            ledger.violate(f"the history of run {turn.run_id} is without its prompt")

    async def _note_and_change(self, turn: Turn, rng: random.Random) -> None:
        await turn.todos([{"content": "a", "status": rng.choice(("pending", "completed"))}])
        await turn.file_read(str(turn.path / "read.txt"))
        await turn.file_changed(str(turn.path / "a.txt"), None, f"text {rng.random()}")

    async def _summary(self, turn: Turn, rng: random.Random) -> None:
        if rng.random() < 0.5:
            await turn.summarize()


def _draw(rng: random.Random, weights: dict[str, int]) -> str:
    return rng.choices(list(weights), list(weights.values()))[0]
