"""Ending the runs that a killed daemon left open, when the store is next opened.

`recover` runs in one transaction, before anything else can write. As only one process owns the
database, all that is open then was interrupted. Afterwards every accepted prompt is a user message
with a finished answer behind it, every tool call has a result, and every run has an outcome. No run
is started again. A second `recover` finds nothing to do.

Runs of this daemon itself (by `boot_id`) are left alone: their ending may still be on its way.

A run's turn is what stands between its user message and the user message of the next run; the runs
that were folded into it (riders) have their user messages inside it.
"""

from __future__ import annotations

import bisect
import json
from collections import defaultdict, deque
from typing import TYPE_CHECKING

from ..errors import BadRequest
from ..protocol import messages as wire
from ..protocol.codec import decode
from ..protocol.messages import Message
from ..protocol.runs import RunInfo
from ..unique import new_id
from .connection import check_row
from .messages import BEYOND, insert_message, placed_messages, position_of, save_message
from .runs import RUN_COLUMNS, RunRow, end_run, find_run, run_from_row, start_run
from .sessions import child_ids

if TYPE_CHECKING:
    from .connection import Connection

INTERRUPTED = "interrupted: the daemon stopped"

# Where the user messages of a session's runs stand, and the carrier of each run, in order.
_Prompts = list[tuple[int, str]]
_Turn = list[tuple[int, Message]]  # messages, each with its position in its session


def recover(conn: Connection, boot_id: str, now: float) -> list[str]:
    """End the unfinished runs of earlier daemons, the oldest of a scope first; return their ids.
    Raises CorruptDatabase and others if rows make no sense."""
    # First, so that a half-written summary is not taken for the answer of the run it served.
    conn.execute("DELETE FROM messages WHERE finished = 0 AND is_summary_message")
    found = conn.execute(
        f"SELECT scope, {RUN_COLUMNS} FROM runs WHERE outcome IS NULL AND boot_id <> ? "
        "ORDER BY scope, seq",
        (boot_id,),
    ).fetchall()
    rows = [(scope, run_from_row(tuple(values))) for scope, *values in found]
    prompts: dict[tuple[str, str], _Prompts] = {}  # by scope and session
    for scope, row in rows:
        session = scope, row.session_id
        if session not in prompts:
            prompts[session] = _find_prompts(conn, *session)
        _recover_run(conn, scope, row, prompts[session], now)
    for scope, sid in _other_sessions(conn, rows):
        _mend(conn, scope, placed_messages(conn, scope, sid), now)
    return [row.run_id for _, row in rows]


def _find_prompts(conn: Connection, scope: str, sid: str) -> _Prompts:
    """Read once: a session may have many thousands of runs, and hundreds of them may be open."""
    rows = conn.execute(
        """
        SELECT messages.position, runs.carrier FROM runs JOIN messages
        ON messages.scope = runs.scope AND messages.id = runs.user_message_id
        WHERE runs.scope = ? AND runs.session_id = ?
        """,
        (scope, sid),
    ).fetchall()
    for row in rows:
        check_row("the position of a message", row, (int, str))
    return sorted(rows)


def _recover_run(conn: Connection, scope: str, row: RunRow, prompts: _Prompts, now: float) -> None:
    """Restore the prompt of a run, finish what is open in its turn, add an answer if there is none,
    and set its outcome. A rider gets the outcome and the answer of its carrier."""
    carrier = find_run(conn, scope, row.carrier) if row.carrier else None
    start = _restore_prompt(conn, scope, row, prompts, now)
    outcome, error = "failed", INTERRUPTED
    if carrier is not None:
        # Carriers are accepted before their riders: this one has been recovered by now.
        message_id = carrier.message_id
        if carrier.outcome:
            outcome, error = carrier.outcome, carrier.error
    else:
        first = bisect.bisect_left(prompts, (start + 1, ""))
        behind = (prompts[at] for at in range(first, len(prompts)))
        end = next((place for place, carrier_id in behind if carrier_id != row.run_id), BEYOND)
        turn = placed_messages(conn, scope, row.session_id, start + 1, end)
        answer = _mend(conn, scope, turn, now)
        if answer is None:
            answer = _message(row.session_id, "assistant", int(now), _finish(now))
            insert_message(conn, scope, answer, turn[-1][0] if turn else start)
        message_id = answer.id
    ending = RunInfo(row.run_id, outcome=outcome, message_id=message_id, error=error)
    ending.denied, ending.folded_into, ending.ended_at = row.denied, row.carrier, now
    end_run(conn, scope, ending)


def _restore_prompt(
    conn: Connection, scope: str, row: RunRow, prompts: _Prompts, now: float
) -> int:
    """Write the user message if it is missing; return its position."""
    position = position_of(conn, scope, row.user_message_id)
    if position is None:
        # The times of a list go up, so not earlier than what stands ahead of it by now, such as
        # the answer that recovery has given to an earlier run.
        at = max(int(row.accepted_at or now), _last_time(conn, scope, row.session_id))
        parts = (wire.TextPart(row.prompt), *_binaries(row.attachments), wire.FinishPart("stop"))
        message = _message(row.session_id, "user", at, *parts)
        message.id = row.user_message_id or message.id
        start_run(conn, scope, row.run_id, message, now)
        position = position_of(conn, scope, message.id)
        assert position is not None
        bisect.insort(prompts, (position, row.carrier))
    return position


def _last_time(conn: Connection, scope: str, sid: str) -> int:
    last = conn.execute(
        "SELECT created_at FROM messages WHERE scope = ? AND session_id = ? "
        "ORDER BY position DESC, seq DESC LIMIT 1",
        (scope, sid),
    ).fetchone()
    return 0 if last is None else int(last[0])


def _binaries(attachments: str | None) -> list[wire.Part]:
    try:
        return [decode(wire.Attachment, item).part() for item in json.loads(attachments or "[]")]
    except (BadRequest, ValueError, TypeError, RecursionError):
        return []  # rather the prompt alone than a store that cannot be opened


# The turn ---------------------------------------------------------------------------------------


def _mend(conn: Connection, scope: str, turn: _Turn, now: float) -> Message | None:
    """Finish the open messages and answer the open tool calls of a turn; return its last answer."""
    steps = [m for _, m in turn if m.role == "assistant" and not m.is_summary_message]
    last = steps[-1] if steps else None
    unanswered = _unanswered(turn)
    for message in steps:
        if _close_message(message, message is last, now):
            message.updated_at = int(now)
            save_message(conn, scope, message)
    for place, call in unanswered:
        result = wire.ToolResultPart(call.id, call.name, INTERRUPTED, is_error=True)
        answer = _message(turn[0][1].session_id, "tool", int(now), result, wire.FinishPart("stop"))
        insert_message(conn, scope, answer, place)
    return last


def _unanswered(turn: _Turn) -> list[tuple[int, wire.ToolCallPart]]:
    """The tool calls without a result, each with the position behind which that belongs."""
    # By id several, in their order: some providers start their ids anew in every step.
    waiting: defaultdict[str, deque[tuple[int, wire.ToolCallPart]]] = defaultdict(deque)
    for at, (_, message) in enumerate(turn):
        for call in message.tool_calls:
            waiting[call.id].append((at, call))
        for result in message.tool_results:
            if waiting[result.tool_call_id]:
                waiting[result.tool_call_id].popleft()
    # Behind the last of the results that follow the call, as the times of a list go up.
    places = [position for position, _ in turn]
    for at in reversed(range(len(turn) - 1)):
        if turn[at + 1][1].role == "tool":
            places[at] = places[at + 1]
    return [(places[at], call) for calls in waiting.values() for at, call in calls]


def _close_message(message: Message, is_last: bool, now: float) -> bool:
    """Finish an assistant message and its tool calls; return whether anything had to change."""
    changed = False
    for call in message.tool_calls:
        if not call.finished:
            call.finished, call.input = True, "{}"  # half of a JSON text is of no use
            changed = True
    finish = message.finish
    # A last step that ends in `tool_use` was to be followed by another: the run has no end yet.
    if finish is None or (is_last and finish.reason == "tool_use"):
        for part in message.parts:
            if isinstance(part, wire.ReasoningPart) and part.started_at and not part.finished_at:
                part.finished_at = int(now)
        message.parts = [part for part in message.parts if part is not finish]
        message.parts.append(_finish(now))
        changed = True
    return changed


def _finish(now: float) -> wire.FinishPart:
    return wire.FinishPart("error", int(now), "Interrupted", INTERRUPTED)


def _message(sid: str, role: str, at: int, *parts: wire.Part) -> Message:
    return Message(new_id(), role, sid, parts=list(parts), created_at=at, updated_at=at)


# Sessions without runs --------------------------------------------------------------------------


def _other_sessions(conn: Connection, rows: list[tuple[str, RunRow]]) -> list[tuple[str, str]]:
    """Sessions that may hold open messages although none of their runs is open, by scope and id:
    those of sub-agents that worked for one of the runs in `rows`, and any with an open message. The
    latter only if all runs have ended: else the message may belong to a run of this daemon."""
    found: dict[tuple[str, str], None] = {}  # a set in the order of insertion
    for scope, sid in {(scope, row.session_id): None for scope, row in rows}:
        found.update(((scope, child), None) for child in child_ids(conn, scope, sid))
    if conn.execute("SELECT 1 FROM runs WHERE outcome IS NULL").fetchone() is None:
        sessions = conn.execute(
            "SELECT scope, session_id FROM messages "
            "WHERE finished = 0 AND role = 'assistant' ORDER BY seq"
        )
        found.update(((scope, sid), None) for scope, sid in sessions)
    return list(found)
