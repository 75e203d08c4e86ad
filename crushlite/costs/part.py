"""The question that a person is asked when a run has reached its limit of cost."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..protocol.questions import Choice, Question
from ..wing import WorkspacePart

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..hosting.turn import LiveTurn
    from ..protocol.questions import QuestionResponse


class CostsPart(WorkspacePart):
    async def more_cost(self, turn: LiveTurn, cost: float, limit: float) -> float:
        """Ask for more. The limit stays if no client has said that a person is there, if nobody
        answers, and if the answer is no."""
        if not turn.workspace.claims.attended(turn.workspace.id):
            return limit
        first = max(limit, cost)  # as much as the limit was, or as was spent
        offers = {"more": first, "much_more": 5 * first}
        amount = _amount(await turn.ask([_question(cost, limit, offers)]), offers)
        # From what is spent by now: the last call may have gone far beyond the limit, and calls of
        # other sub-agents have ended while the person was asked.
        return round(max(limit, turn.limits.cost) + amount, 6) if amount else limit


def _question(cost: float, limit: float, offers: dict[str, float]) -> Question:
    more = [Choice(key, f"{_dollars(amount)} more") for key, amount in offers.items()]
    return Question(
        type="single_choice",
        label="Limit of cost",
        question=f"This run has cost {_dollars(cost)}, its limit is {_dollars(limit)}. Go on with "
        "how much more?",
        description="It waits for your answer. Without one it stops, and what it has done stays. "
        "Another amount can be typed.",
        choices=[Choice("stop", "Stop here"), *more],
    )


def _amount(responses: Sequence[QuestionResponse] | None, offers: dict[str, float]) -> float:
    """How much more the answer gives; 0 if none."""
    amount = 0.0
    for response in responses or ():
        chosen = [offers[key] for key in response.selected_ids if key in offers]
        amount = max(amount, *chosen, _typed_amount(response.fill_in_text))
    return amount


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
