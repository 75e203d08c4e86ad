"""One external agent of one workspace: its process, started by the first prompt, and the
conversations that it takes part in."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ..agent.base import Info
from ..protocol.config import Model, SelectedModel
from .content import object_of, prompt_blocks
from .conversation import Conversation
from .exchange import Exchange
from .failures import AgentFailed
from .process import AgentProcess

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ..agent.base import Turn
    from ..clock import Clock
    from .command import AgentCommand

log = logging.getLogger(__name__)

PROVIDER = "acp"


class ExternalAgent:
    """An agent as agent.base wants it."""

    def __init__(
        self, command: AgentCommand, path: Path, env: Mapping[str, str], clock: Clock
    ) -> None:
        self.command = command
        self.notes_owner = f"acp:{command.name}"
        self._path = path
        self._env = env
        self._clock = clock
        self._conversations: dict[str, Conversation] = {}
        self._starting: asyncio.Task[AgentProcess] | None = None
        self._processes: set[AgentProcess] = set()  # that may still run
        self._label = command.name
        self._turns: set[asyncio.Task[None]] = set()
        self._closed = False

    def info(self) -> Info:
        model = Model(id=self.command.name, name=self._label)
        return Info(model, SelectedModel(model=self.command.name, provider=PROVIDER))

    @property
    def idle(self) -> bool:
        return not self._turns

    async def run(self, turn: Turn) -> None:
        """Answer a turn. If this is cancelled, it ends when the agent has ended the turn or is
        dead; a turn that is given up before that ends all the same, and the next one waits."""
        conversation = self._conversations.setdefault(turn.session_id, Conversation())
        stopping = _Stop()
        task = asyncio.create_task(self._answer(turn, conversation, stopping))
        self._turns.add(task)
        task.add_done_callback(self._turns.discard)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            stopping.stop(task)
            await asyncio.wait([task])
            if not task.cancelled() and (error := task.exception()) is not None:
                log.info("a canceled turn of %s ended so: %s", self.command.name, error)
            raise

    async def _answer(self, turn: Turn, conversation: Conversation, stopping: _Stop) -> None:
        async with conversation.lock:
            process = await self._running()
            context = await conversation.open(process, turn)
            await turn.watch_files()
            offers = object_of(process.offers.get("promptCapabilities"))
            blocks = prompt_blocks(turn.prompt, turn.attachments, offers, context)
            exchange = stopping.exchange = Exchange(turn, conversation, process, self._clock)
            cost = conversation.cost.last
            try:
                await exchange.run(blocks)
            finally:
                if process.retired and not process.turns:
                    await process.ended()
            if conversation.cost.last != cost:
                await conversation.keep(process, turn)

    async def _running(self) -> AgentProcess:
        """The process; started if there is none. All turns that need it share one start, which
        none of them owns."""
        if self._closed:  # a turn that was given up may come here late
            raise AgentFailed(f"{self.command.name} is not started: the workspace has closed")
        starting = self._starting
        if starting is None or (starting.done() and not _is_usable(starting)):
            starting = self._starting = asyncio.create_task(self._start())
        return await asyncio.shield(starting)

    async def _start(self) -> AgentProcess:
        process = await AgentProcess.start(self.command, self._path, self._env, self._clock)
        self._processes = {one for one in self._processes if not one.is_dead} | {process}
        self._label = process.label
        return process

    async def aclose(self) -> None:
        """End what still runs. Nothing is started from now on."""
        self._closed = True
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
            await asyncio.wait([self._starting])
        await asyncio.gather(*(process.stop() for process in self._processes))


class _Stop:
    """How a turn is stopped: while it waits or opens its session, by cancelling its task; when the
    agent is at work, by its exchange."""

    exchange: Exchange | None = None

    def stop(self, task: asyncio.Task[None]) -> None:
        if self.exchange is None:
            task.cancel()
        else:
            self.exchange.stop()


def _is_usable(starting: asyncio.Task[AgentProcess]) -> bool:
    failed = starting.cancelled() or starting.exception() is not None
    return not failed and starting.result().usable
