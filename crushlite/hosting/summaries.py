"""Summaries: one shortens a session, from then on it stands for all before it."""

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
    from ..protocol.messages import Prompt
    from ..protocol.sessions import Session
    from ..store import Connection
    from .limits import RunLimits
    from .workspace_base import WorkspaceBase

log = logging.getLogger(__name__)


async def write_summary(
    workspace: WorkspaceBase, request: Prompt, agent: Agent, parent: LiveTurn | None = None
) -> RunLimits:
    """Let the agent summarize a session; returns what that has used. A summary that was canceled is
    removed again; one that failed stays, with its error, but counts for nothing. `parent` as for a
    LiveTurn."""
    turn = LiveTurn(workspace, request, agent, is_summary=True, parent=parent)
    writing = asyncio.ensure_future(agent.summarize(turn))

    def cancel() -> None:
        turn.discard()  # now, not when the agent lets go: it may ignore its cancellation for ever
        writing.cancel()

    try:
        await run_to_the_end(writing, cancel)
    except Exception as error:
        turn.close(Outcome.FAILED, Failure("The summary failed", str(error)))
        await run_to_the_end(store_or_flush(turn))
        raise
    if not turn.said:
        turn.discard()
        raise ProviderFailed("the model gave no summary")
    turn.close(Outcome.COMPLETED, None)
    # Streams have seen it end: it counts, also if a cancel comes while it is being stored.
    try:
        await run_to_the_end(_store(turn, summary_id=turn.last.message.id))
    except CrushliteError:
        turn.discard()  # a summary that counts for nothing would only be in the way
        raise
    return turn.limits


async def summarize_turn(turn: LiveTurn) -> None:
    """Summarize the conversation of a turn, within it: what that uses counts for its run."""
    if turn.agent.summarizes:
        used = await write_summary(turn.workspace, turn.request, turn.agent, turn.parent)
        if used is not turn.limits:
            turn.limits.count(used.cost, used.prompt_tokens, used.completion_tokens)


async def store_or_flush(turn: LiveTurn) -> None:
    """Store a turn that is closed. If that fails, it is stored as soon as anything can be."""
    try:
        await _store(turn)
    except CrushliteError as error:
        log.warning("session %s: its messages are not stored yet: %s", turn.session_id, error)
        for message in turn.messages:
            turn.workspace.transcript.flush(message)


async def _store(turn: LiveTurn, summary_id: str = "") -> None:
    """Write the messages of a turn that is closed, and publish its session. With `summary_id`, this
    message stands for all before it from now on. Raises CrushliteError."""
    workspace, session_id = turn.workspace, turn.session_id
    save, now = workspace.transcript.saving(turn.messages), workspace.clock.now()
    tokens = turn.spent.completion_tokens

    def work(conn: Connection, scope: str) -> Session:
        session_rows.require_session(conn, scope, session_id)
        save(conn)
        if summary_id:
            return session_rows.set_summary(conn, scope, session_id, summary_id, tokens, now)
        return session_rows.get_session(conn, scope, session_id)

    write = workspace.store.write_durably if summary_id else workspace.store.write
    session = await write(work)
    workspace.transcript.saved(turn.messages)
    workspace.hub.publish("updated", session)
