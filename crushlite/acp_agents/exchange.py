"""One turn of an external agent: a prompt, what comes back, and how it is cancelled.

A turn that is to end early (canceled by a user, stopped at a limit) ends in this order: open
permission requests are answered `cancelled`, since some agents do not end otherwise; the agent is
asked to cancel; its answer is awaited, whatever it is, for a bounded time; an agent that is silent
is killed. Only then the next prompt goes out: so no cancel can hit a later turn.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from ..clock import resolve_once, wait_at_most
from ..errors import BadRequest, CrushliteError, TurnOver
from ..jsonrpc.errors import RpcError
from .asking import CANCELLED, ask, options_of
from .content import object_of
from .failures import AgentFailed
from .updates import TurnWriter

if TYPE_CHECKING:
    from ..agent.base import Turn
    from ..clock import Clock
    from .conversation import Conversation
    from .process import AgentProcess

log = logging.getLogger(__name__)

# For an agent to end a turn that was cancelled: less than the time after which the daemon gives up
# on an agent, so that it is dead before the run is reported ended.
CANCEL_SECONDS = 4.0

_REFUSED = "The agent has refused to answer."
_STOPPED = "The agent has stopped at its own limit of model calls."


class Exchange:
    """Implements process.TurnListener. `run` is called once, in a task that nobody cancels; `stop`
    ends it early."""

    def __init__(
        self, turn: Turn, conversation: Conversation, process: AgentProcess, clock: Clock
    ) -> None:
        self._turn = turn
        self._conversation = conversation
        self._process = process
        self._clock = clock
        self._writer = TurnWriter(turn, conversation.cost)
        self._asking: set[asyncio.Task[dict[str, Any]]] = set()
        self._stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._limit: Exception | None = None  # why it was stopped, if not by a user

    def stop(self) -> None:
        """Cancel the turn. `run` then ends within CANCEL_SECONDS."""
        for task in self._asking:
            task.cancel()
        resolve_once(self._stopped)

    async def run(self, blocks: list[dict[str, Any]]) -> None:
        """Send a prompt, and write what comes until it is answered. Raises AgentFailed, and what
        the Turn raises."""
        session = self._conversation.session
        late_cancel, self._conversation.cancel_due = self._conversation.cancel_due, False
        waiting = self._process.listen(session, self)
        try:
            for update in waiting:  # what came between two turns
                await self.update(update)
            if self._writer.wrote:
                await self._turn.step()
            answer = await self._prompt(session, blocks)
            if late_cancel and self._did_nothing(answer):
                answer = await self._prompt(session, blocks)
        finally:
            self.stop()
            self._process.unlisten(session)
        if self._limit is not None:
            raise self._limit
        if answer is not None:
            await self._finish(answer)

    def _did_nothing(self, answer: dict[str, Any] | None) -> bool:
        """Whether the agent has ended the turn as cancelled, although nobody has cancelled it, and
        before it did anything. It may have taken the cancel of the turn before for one of this
        turn, if that turn ended by itself just when it was cancelled."""
        cancelled = answer is not None and answer.get("stopReason") == "cancelled"
        return cancelled and not self._writer.wrote and not self._stopped.done()

    async def _prompt(self, session: str, blocks: list[dict[str, Any]]) -> dict[str, Any] | None:
        """The answer to the prompt; None if the turn was stopped."""
        if self._stopped.done():
            return None
        params = {"sessionId": session, "prompt": blocks}
        asked = asyncio.ensure_future(self._process.ask("session/prompt", params, None))
        await asyncio.wait([asked, self._stopped], return_when=asyncio.FIRST_COMPLETED)
        if asked.done():  # then there is nothing to cancel, also if it was stopped meanwhile
            try:
                return object_of(await asked)
            except RpcError as error:
                name = self._process.command.name
                raise AgentFailed(f"{name} failed: {self._process.words_of(error)}") from None
        ending = asyncio.ensure_future(self._call_off(session, asked))
        if not await wait_at_most(self._clock, ending, CANCEL_SECONDS):
            log.warning("%s did not end a canceled turn: it is ended", self._process.command.name)
            ending.cancel()
            asked.cancel()
            self._process.retire()
        elif asked.exception() is None:
            ended = object_of(asked.result()).get("stopReason")
            self._conversation.cancel_due = ended != "cancelled"
        return None

    async def _call_off(self, session: str, asked: asyncio.Future[Any]) -> None:
        """Ask the agent to cancel the turn, and wait for the answer to the prompt. If the agent
        does not read its input, the first of the two takes as long as the second."""
        await self._process.tell("session/cancel", {"sessionId": session})
        await asyncio.wait([asked])

    async def _finish(self, answer: dict[str, Any]) -> None:
        await self._writer.finish(answer)
        match answer.get("stopReason"):
            case "max_tokens":
                await self._turn.finish("max_tokens")
            case "refusal":
                await self._turn.finish("content_filter", _REFUSED)
            case "max_turn_requests":
                await self._turn.finish("unknown", _STOPPED)

    # What the agent sends -----------------------------------------------------------------------

    async def update(self, update: dict[str, Any]) -> None:
        try:
            await self._writer.apply(update)
        except TurnOver:
            pass  # it was canceled, and the agent has not noticed yet
        except BadRequest as error:
            log.warning("%s reported what has no place: %s", self._process.command.name, error)
        except CrushliteError as error:
            self._limit = self._limit or error
            self.stop()

    async def permission(self, params: dict[str, Any]) -> dict[str, Any]:
        if self._stopped.done():
            return CANCELLED
        task = asyncio.ensure_future(self._permission(params))
        self._asking.add(task)
        try:
            return await task
        except (asyncio.CancelledError, TurnOver):
            task.cancel()
            return CANCELLED
        except CrushliteError as error:
            self._limit = self._limit or error
            self.stop()
            return CANCELLED
        finally:
            self._asking.discard(task)

    async def _permission(self, params: dict[str, Any]) -> dict[str, Any]:
        call = await self._writer.call_of(object_of(params.get("toolCall")))
        return await ask(self._turn, call, options_of(params)) if call is not None else CANCELLED
