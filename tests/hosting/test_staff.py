"""Who answers in a workspace, when its configuration brings another agent."""

from __future__ import annotations

from typing import Any

from crushlite.agent.base import Agent
from crushlite.errors import NoAgent
from crushlite.hosting.staff import Staff
from tests.support.basics import BoundedTestCase


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


class StaffTests(BoundedTestCase):
    def setUp(self) -> None:
        self.targets = [Counted(), Counted(), Counted()]
        self.agents = [Agent(target) for target in self.targets]
        self.staff = Staff(self.agents[0])

    def closed(self) -> list[int]:
        return [target.closed for target in self.targets]

    async def test_a_former_agent_is_closed_once_and_the_present_one_is_not(self) -> None:
        for agent in self.agents[1:]:
            self.staff.replace(agent)
        self.assertIs(self.staff.serving(), self.agents[2])
        await self.staff.close_former()
        await self.staff.close_former()
        self.assertEqual(self.closed(), [1, 1, 0])
        await self.staff.close()
        self.assertEqual(self.closed(), [1, 1, 1])

    async def test_one_that_comes_back_is_not_a_former_one(self) -> None:
        self.staff.replace(self.agents[1])
        self.staff.replace(self.agents[0])
        await self.staff.close_former()
        self.assertEqual(self.closed(), [0, 1, 0])

    async def test_the_same_one_again_changes_nothing(self) -> None:
        self.staff.replace(self.agents[0])
        await self.staff.close_former()
        self.assertEqual(self.closed(), [0, 0, 0])

    async def test_without_a_successor_the_last_one_keeps_what_was_promised(self) -> None:
        self.staff.replace(self.agents[1])
        self.staff.replace(None)
        self.assertRaises(NoAgent, self.staff.require)
        self.assertIs(self.staff.serving(), self.agents[1])
        await self.staff.close_former()
        self.assertEqual(self.closed(), [1, 0, 0])
        await self.staff.close()
        self.assertEqual(self.closed(), [1, 1, 0])

    async def test_where_there_never_was_one_nothing_serves(self) -> None:
        staff = Staff(None)
        self.assertRaises(NoAgent, staff.serving)
        await staff.close()

    async def test_each_gets_ready_once_and_again_after_a_failure(self) -> None:
        for _ in range(2):
            await self.staff.ready(self.agents[0])
        await self.staff.ready(self.agents[1])
        self.assertEqual([target.readied for target in self.targets], [1, 1, 0])
        failing = Counted(fails=True)
        agent = Agent(failing)
        with self.assertRaises(OSError):
            await self.staff.ready(agent)
        await self.staff.ready(agent)
        self.assertEqual(failing.readied, 2)

    async def test_one_that_fails_to_close_does_not_keep_the_others(self) -> None:
        failing = Counted(fails=True)
        self.staff.replace(Agent(failing))
        self.staff.replace(self.agents[1])
        with self.assertLogs("crushlite.hosting.staff", "ERROR"):
            await self.staff.close()
        self.assertEqual((self.closed(), failing.closed), ([1, 1, 0], 1))
