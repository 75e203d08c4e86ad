"""Summaries: the agent shortens a session; from then on the summary stands for all before it."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ..errors import CrushliteError, ProviderFailed
from ..runs import Outcome
from ..store import sessions as session_rows
from .prompts import Failure
from .tasks import run_to_the_end
from .turn import LiveTurn

if TYPE_CHECKING:
    from ..agent.base import Agent
    from ..protocol.messages import Message
    from ..protocol.sessions import Session
    from ..store import Connection
    from .limits import RunLimits
    from .prompts import TurnRequest
    from .services import Services

log = logging.getLogger(__name__)


async def write_summary(
    services: Services, request: TurnRequest, agent: Agent, parent: LiveTurn | None = None
) -> RunLimits:
    """Let the agent summarize a session; returns what that has used. A summary that was canceled is
    removed again; one that failed stays, with its error, but counts for nothing. `parent` as for a
    LiveTurn."""
    selected = agent.info().selected
    turn = LiveTurn(
        services,
        request,
        selected,
        no_riders,
        is_summary=True,
        parent=parent,
        notes_owner=agent.notes_owner,
    )
    writing = asyncio.ensure_future(agent.summarize(turn))
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        turn.discard()  # now, not when the agent lets go: it may ignore its cancellation for ever
        writing.cancel()
        await asyncio.wait([writing])
        if not writing.cancelled():
            writing.exception()  # else asyncio logs that it was never retrieved
        raise
    except Exception as error:
        turn.close(Outcome.FAILED, Failure("The summary failed", str(error)))
        try:
            await run_to_the_end(_store(services, turn, summary_id=""))
        except CrushliteError as unsaved:  # the caller learns why the summary failed
            log.error("a failed summary could not be stored: %s", unsaved)
            for message in turn.messages:  # it is, as soon as anything can be
                services.transcript.flush(message)
        raise
    if not turn.wrote:
        turn.discard()
        raise ProviderFailed("the model gave no summary")
    turn.close(Outcome.COMPLETED, None)
    # Streams have seen it end: it counts, also if a cancel comes while it is being stored.
    try:
        await run_to_the_end(_store(services, turn, summary_id=turn.last.message.id))
    except CrushliteError:
        turn.discard()  # a summary that counts for nothing would only be in the way
        raise
    return turn.limits


async def no_riders() -> list[Message]:
    return []


async def _store(services: Services, turn: LiveTurn, *, summary_id: str) -> None:
    save, now = services.transcript.saving(turn.messages), services.clock.now()
    tokens, session_id = turn.spent.completion_tokens, turn.session_id

    def work(conn: Connection, scope: str) -> Session:
        save(conn)
        if summary_id:
            return session_rows.set_summary(conn, scope, session_id, summary_id, tokens, now)
        return session_rows.get_session(conn, scope, session_id)

    session = await services.store.write_durably(work)
    services.transcript.saved(turn.messages)
    services.hub.publish("updated", session)
