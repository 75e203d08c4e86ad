"""Which agent answers in a workspace.

A change of configuration may bring another agent. It answers the runs that start from then on;
turns under way keep the one they have. So an agent that was replaced is closed only when nothing
runs, and at the latest with its workspace.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ..errors import NoAgent

if TYPE_CHECKING:
    from ..agent.base import Agent

log = logging.getLogger(__name__)


class AgentSlot:
    """The agent of a workspace, and those it replaced that may still have work."""

    def __init__(self, agent: Agent | None) -> None:
        self.agent = agent  # None: nothing usable is configured, and prompts are refused
        self._replaced: list[Agent] = []
        self._ready: dict[Agent, asyncio.Task[None]] = {}

    def require(self) -> Agent:
        """The agent that new prompts are accepted for. Raises NoAgent if there is none."""
        if self.agent is None:
            raise NoAgent(
                "agent coordinator not initialized: name a model in crush.json, "
                "or serve with --agent offline"
            )
        return self.agent

    def serving(self) -> Agent:
        """The agent for a prompt that was accepted: the present one, else the last there was."""
        return self.agent or (self._replaced[-1] if self._replaced else self.require())

    def replace(self, agent: Agent | None) -> None:
        if agent is not self.agent:
            former, self.agent = self.agent, agent
            self._replaced = [one for one in (*self._replaced, former) if one not in (None, agent)]

    async def ready(self, agent: Agent) -> None:
        """Await the agent's `ready()`, once per agent. All runs that wait for it share the call and
        none owns it. If it fails, those runs fail and the next one calls it again."""
        ready = self._ready.get(agent)
        if ready is None or (ready.done() and (ready.cancelled() or ready.exception() is not None)):
            ready = self._ready[agent] = asyncio.create_task(agent.ready())
        await asyncio.shield(ready)

    async def close_replaced(self) -> None:
        """Close the replaced agents. The caller knows that nothing runs. While there is no agent,
        the last one stays."""
        kept = self._replaced[-1:] if self.agent is None else []
        leaving, self._replaced = [one for one in self._replaced if one not in kept], kept
        await self._close(leaving)

    async def close(self) -> None:
        present = [] if self.agent is None else [self.agent]
        leaving, self._replaced = [*self._replaced, *present], []
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
