"""What a run may use and what it has used: steps, cost, tokens. The runner watches its time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ..errors import LimitReached
from ..store.sessions import MOST_COST

if TYPE_CHECKING:
    from ..protocol.messages import Prompt

MOST_TOKENS = 2**53  # that every JSON reader takes as it is


class RunLimits:
    """The limits of one run, its sub-agents included, and what counts against them. `reached` is
    the limit that stopped it, empty if none did."""

    def __init__(self, request: Prompt) -> None:
        self.reached = ""
        self.asking = asyncio.Lock()  # held while parts are asked for more
        self.steps = 0
        self.cost = 0.0
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self._max_steps = request.max_steps
        self.max_cost = request.max_cost

    def count(self, cost: float, prompt: int, completion: int) -> None:
        """Add what was used, by a model call or by another turn for this run."""
        # Bounded: an agent may report anything, and sums must stay what a row can hold.
        self.cost = min(self.cost + cost, MOST_COST)
        self.prompt_tokens = min(self.prompt_tokens + prompt, MOST_TOKENS)
        self.completion_tokens = min(self.completion_tokens + completion, MOST_TOKENS)

    @property
    def out_of_steps(self) -> bool:
        stopped = self.reached in ("cost", "steps")
        return stopped or (self._max_steps is not None and self.steps >= self._max_steps)

    def check_steps(self) -> None:
        """Raise LimitReached if no further step may begin, also after a limit that the agent
        has ignored."""
        if self.reached == "cost":
            raise self.stop_at_cost()
        if self.out_of_steps:
            raise self.stop("steps", f"max_steps = {self._max_steps}")

    @property
    def too_expensive(self) -> bool:
        return self.max_cost is not None and self.cost >= self.max_cost

    def stop_at_cost(self) -> LimitReached:
        return self.stop("cost", f"max_cost = {self.max_cost}")

    def stop(self, limit: str, words: str) -> LimitReached:
        """Note that a limit was reached; returns the error that says so. The first one counts."""
        if not self.reached:
            self.reached = limit
        return LimitReached(f"stopped at {words}", self.reached)
