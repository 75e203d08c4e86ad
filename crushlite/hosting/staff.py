"""Who answers in a workspace: the agent of today, and those before it that still have work.

A change of configuration may bring another agent. It answers the runs that start from then on;
turns under way keep the one they have. So a former agent is closed only when nothing runs, and at
the latest with its workspace.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ..errors import NoAgent

if TYPE_CHECKING:
    from ..agent.base import Agent

log = logging.getLogger(__name__)


class Staff:
    def __init__(self, agent: Agent | None) -> None:
        self.agent = agent  # None: nothing usable is configured, and prompts are refused
        self._former: list[Agent] = []
        self._ready: dict[Agent, asyncio.Task[None]] = {}

    def require(self) -> Agent:
        """The agent that new prompts are taken for."""
        if self.agent is None:
            raise NoAgent(
                "agent coordinator not initialized: name a model in crush.json, "
                "or serve with --agent offline"
            )
        return self.agent

    def serving(self) -> Agent:
        """The agent for what was promised: if there is none any more, the last there was."""
        return self.agent or (self._former[-1] if self._former else self.require())

    def replace(self, agent: Agent | None) -> None:
        if agent is not self.agent:
            former, self.agent = self.agent, agent
            self._former = [one for one in (*self._former, former) if one not in (None, agent)]

    async def ready(self, agent: Agent) -> None:
        """Once per agent, shared by all runs that wait for it, owned by none of them. A failure
        fails those runs only: the next one tries again."""
        ready = self._ready.get(agent)
        if ready is None or (ready.done() and (ready.cancelled() or ready.exception() is not None)):
            ready = self._ready[agent] = asyncio.create_task(agent.ready())
        await asyncio.shield(ready)

    async def close_former(self) -> None:
        """Let go of those that nobody needs: whoever calls knows that nothing runs. The last one
        stays while there is none in its place."""
        kept = self._former[-1:] if self.agent is None else []
        leaving, self._former = [one for one in self._former if one not in kept], kept
        await self._close(leaving)

    async def close(self) -> None:
        present = [] if self.agent is None else [self.agent]
        leaving, self._former = [*self._former, *present], []
        await self._close(leaving)

    async def _close(self, leaving: list[Agent]) -> None:
        for agent in leaving:
            ready = self._ready.pop(agent, None)
            if ready is not None:
                ready.cancel()
            try:
                await agent.aclose()
            except Exception:
                log.exception("an agent did not close")
