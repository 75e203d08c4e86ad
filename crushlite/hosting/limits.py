"""What a run may use and what it has used: steps, cost, tokens. The runner watches its time."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

from ..errors import LimitReached
from ..protocol.questions import Choice, Question
from ..store.sessions import MOST_COST

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..protocol.messages import Prompt
    from ..protocol.questions import QuestionResponse

MOST_TOKENS = 2**53  # that every JSON reader takes as it is


class RunLimits:
    """The limits of one run, its sub-agents included, and what counts against them. `reached` is
    the limit that stopped it, empty if none did, and `error` what the agent was told then."""

    def __init__(self, request: Prompt) -> None:
        self.reached = ""
        self.error: LimitReached | None = None
        self.asking = asyncio.Lock()  # held while a person is asked for more
        self.steps = 0
        self.cost = 0.0
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self._max_steps = request.max_steps
        self._max_cost = request.max_cost

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
        return self._max_cost is not None and self.cost >= self._max_cost

    def stop_at_cost(self) -> LimitReached:
        return self.stop("cost", f"max_cost = {self._max_cost}")

    def stop(self, limit: str, words: str) -> LimitReached:
        """Note that a limit was reached; returns the error that says so. The first one counts."""
        if self.error is None:
            self.reached = limit
            self.error = LimitReached(f"stopped at {words}", limit)
        return LimitReached(f"stopped at {words}", self.reached)

    # A person may raise the limit of cost ---------------------------------------------------------

    def cost_question(self) -> Question:
        """What a person is asked when the limit of cost is reached."""
        more = [Choice(key, f"{_dollars(amount)} more") for key, amount in self._offers().items()]
        return Question(
            type="single_choice",
            label="Limit of cost",
            question=f"This run has cost {_dollars(self.cost)}, its limit is "
            f"{_dollars(self._max_cost or 0.0)}. Go on with how much more?",
            description="It waits for your answer. Without one it stops, and what it has done "
            "stays. Another amount can be typed.",
            choices=[Choice("stop", "Stop here"), *more],
        )

    def _offers(self) -> dict[str, float]:
        """What the choices of the question add: as much as the limit was, or as was spent."""
        first = max(self._max_cost or 0.0, self.cost)
        return {"more": first, "much_more": 5 * first}

    def raised_by(self, responses: Sequence[QuestionResponse] | None) -> bool:
        """Raise the limit of cost as the answer says; False if it says no more."""
        amount = 0.0
        offers = self._offers()
        for response in responses or ():
            chosen = [offers[key] for key in response.selected_ids if key in offers]
            amount = max(amount, *chosen, _typed_amount(response.fill_in_text))
        if not amount or self._max_cost is None:
            return False
        # From what was spent: the last call may have gone far beyond the limit.
        self._max_cost = round(max(self._max_cost, self.cost) + amount, 6)
        return True


def _typed_amount(text: str) -> float:
    """An amount of dollars that a person typed; 0 if it is none."""
    try:
        value = float(text.strip().lstrip("$+").strip() or 0)
    except ValueError:
        return 0.0
    return value if 0 < value < math.inf else 0.0


def _dollars(amount: float) -> str:
    """With cents, and for less than a cent with as many digits as say something."""
    return f"${amount:.2f}" if amount >= 0.01 or not amount else f"${amount:.2g}"
