"""A person who attends decides whether a run may cost more than its limit."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from crushlite.agent.base import Usage
from crushlite.costs.part import CostsPart
from crushlite.errors import LimitReached
from crushlite.protocol.questions import QuestionResponse
from tests.support.turns import Bench

if TYPE_CHECKING:
    from crushlite.hosting.turn import LiveTurn
    from crushlite.protocol.questions import Question


class CostsTests(Bench):
    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        self.parts.append(CostsPart())

    async def answered(self, turn: LiveTurn, meanwhile: float = 0.0, **response: Any) -> Question:
        """Report a cost of 0.5, answer what is asked then, and return the question. `meanwhile` is
        the cost of a sub-agent's call, which then waits for the same answer."""
        spending = asyncio.ensure_future(turn.usage(Usage(1, 1, 0.5)))
        for _ in range(3):  # the write of the usage, and the question
            await asyncio.sleep(0)
        asked = self.workspace.questions.listed()
        (question,) = asked[0].questions
        turn.limits.count(meanwhile, 0, 0)
        reply = QuestionResponse(question.id, **response)
        self.workspace.questions.answer(asked[0].id, [reply])
        await spending
        return question

    async def test_a_person_who_attends_is_asked_before_a_limit_of_cost_ends_the_run(self) -> None:
        turn = self.turn(max_cost=0.5)
        question = await self.answered(turn, selected_ids=["more"])
        self.assertIn("has cost $0.50, its limit is $0.50", question.question)
        self.assertEqual([c.label for c in question.choices][1:], ["$0.50 more", "$2.50 more"])
        await turn.say("so it goes on")
        await self.answered(turn, fill_in_text="$2")  # of 1.00 spent, with 3.00 to spend
        await turn.usage(Usage(1, 1, 1.75))
        with self.assertRaisesRegex(LimitReached, r"max_cost = 3\.0"):
            await self.answered(turn, selected_ids=["stop"])
        self.assertEqual((turn.limits.reached, turn.limits.cost), ("cost", 3.25))

    async def test_what_sub_agents_spend_during_the_question_does_not_undo_the_answer(self) -> None:
        turn = self.turn(max_cost=0.5)
        await self.answered(turn, meanwhile=1.0, selected_ids=["more"])
        self.assertEqual(turn.limits.max_cost, 2.0, "what was spent, and as much as was offered")

    async def test_nobody_is_asked_where_no_person_attends(self) -> None:
        self.leave()
        with self.assertRaisesRegex(LimitReached, r"max_cost = 0\.5"):
            await self.turn(max_cost=0.5).usage(Usage(1, 1, 0.5))
        self.assertEqual(self.workspace.questions.listed(), [])
