"""Who answers in a workspace, when its configuration brings another agent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from crushlite.agent.base import Agent
from crushlite.errors import BadRequest, NoAgent
from crushlite.hosting.agents import MOST_CHOSEN, AgentSlot
from crushlite.protocol.config import SelectedModel
from tests.support.basics import BoundedTestCase

if TYPE_CHECKING:
    from collections.abc import Mapping


class Counted:
    def __init__(self, *, fails: bool = False) -> None:
        self.readied = 0
        self.closed = 0
        self._fails = fails

    async def run(self, turn: Any) -> None: ...

    async def ready(self) -> None:
        self.readied += 1
        if self._fails and self.readied == 1:
            raise OSError("not yet")

    async def aclose(self) -> None:
        self.closed += 1
        if self._fails:
            raise OSError("no")


class AgentSlotTests(BoundedTestCase):
    def setUp(self) -> None:
        self.targets = [Counted(), Counted(), Counted()]
        self.agents = [Agent(target) for target in self.targets]
        self.slot = AgentSlot(self.agents[0], self.made)

    def made(self, models: Mapping[str, SelectedModel]) -> Agent | None:
        """The agent for chosen models: a new one, unless that of nobody was chosen."""
        if models["large"].provider == "nobody":
            return None
        self.targets.append(Counted())
        return Agent(self.targets[-1])

    def chosen(self, model: str, provider: str = "p") -> Agent:
        return self.slot.with_models({"large": SelectedModel(model, provider)}, "s")

    def closed(self) -> list[int]:
        return [target.closed for target in self.targets]

    async def test_a_former_agent_is_closed_once_and_the_present_one_is_not(self) -> None:
        for agent in self.agents[1:]:
            self.slot.replace(agent)
        self.assertIs(self.slot.serving("s"), self.agents[2])
        await self.slot.close_replaced()
        await self.slot.close_replaced()
        self.assertEqual(self.closed(), [1, 1, 0])
        await self.slot.close()
        self.assertEqual(self.closed(), [1, 1, 1])

    async def test_one_that_comes_back_is_not_a_former_one(self) -> None:
        self.slot.replace(self.agents[1])
        self.slot.replace(self.agents[0])
        await self.slot.close_replaced()
        self.assertEqual(self.closed(), [0, 1, 0])

    async def test_the_same_one_again_changes_nothing(self) -> None:
        self.slot.replace(self.agents[0])
        await self.slot.close_replaced()
        self.assertEqual(self.closed(), [0, 0, 0])

    async def test_without_a_successor_the_last_one_keeps_what_was_promised(self) -> None:
        self.slot.replace(self.agents[1])
        self.slot.replace(None)
        self.assertRaises(NoAgent, self.slot.require, "s")
        self.assertIs(self.slot.serving("s"), self.agents[1])
        await self.slot.close_replaced()
        self.assertEqual(self.closed(), [1, 0, 0])
        await self.slot.close()
        self.assertEqual(self.closed(), [1, 1, 0])

    async def test_where_there_never_was_one_nothing_serves(self) -> None:
        slot = AgentSlot(None, self.made)
        self.assertRaises(NoAgent, slot.serving, "s")
        await slot.close()

    async def test_a_choice_of_models_has_one_agent_until_the_configuration_changes(self) -> None:
        first = self.chosen("a")
        self.assertIs(self.chosen("a"), first)
        self.assertIsNot(self.chosen("b"), first)
        self.assertIs(self.slot.serving("s"), self.agents[0])
        await self.slot.close_replaced()
        self.assertEqual(self.closed(), [0, 0, 0, 0, 0])
        self.slot.replace(self.agents[1])
        await self.slot.close_replaced()
        self.assertEqual(self.closed(), [1, 0, 0, 1, 1])
        self.assertIsNot(self.chosen("a"), first)
        await self.slot.close()
        self.assertEqual(self.closed(), [1, 1, 0, 1, 1, 1])

    async def test_only_some_choices_are_kept_and_the_oldest_leave(self) -> None:
        for number in range(MOST_CHOSEN + 1):
            self.chosen(str(number))
        await self.slot.close_replaced()
        self.assertEqual(self.closed(), [0, 0, 0, 1] + [0] * MOST_CHOSEN)

    async def test_a_choice_that_cannot_be_made_is_refused(self) -> None:
        self.assertRaises(BadRequest, self.chosen, "m", "nobody")

    async def test_each_gets_ready_once_and_again_after_a_failure(self) -> None:
        for _ in range(2):
            await self.slot.ready(self.agents[0])
        await self.slot.ready(self.agents[1])
        self.assertEqual([target.readied for target in self.targets], [1, 1, 0])
        failing = Counted(fails=True)
        agent = Agent(failing)
        with self.assertRaises(OSError):
            await self.slot.ready(agent)
        await self.slot.ready(agent)
        self.assertEqual(failing.readied, 2)

    async def test_one_that_fails_to_close_does_not_keep_the_others(self) -> None:
        failing = Counted(fails=True)
        self.slot.replace(Agent(failing))
        self.slot.replace(self.agents[1])
        with self.assertLogs("crushlite.hosting.agents", "ERROR"):
            await self.slot.close()
        self.assertEqual((self.closed(), failing.closed), ([1, 1, 0], 1))
