"""What hosting keeps about one run beyond its state, and what clients see of it."""

from __future__ import annotations

import asyncio
from dataclasses import fields
from typing import TYPE_CHECKING

from ..protocol.codec import dumps, encode
from ..protocol.messages import FinishPart, TextPart
from ..protocol.runs import RunInfo
from ..runs import Outcome
from ..store import messages as message_rows, runs as run_rows
from ..store.runs import RunRow
from .prompts import digest_of
from .transcript import new_message

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from ..agent.base import Agent
    from ..clock import Timer
    from ..errors import LimitReached
    from ..protocol.messages import Message, Prompt
    from ..runs import Run
    from ..store import Connection
    from .prompts import Failure
    from .transcript import LiveMessage
    from .turn import LiveTurn

    Summarizing = Callable[[Prompt], Coroutine[Any, Any, None]]

SHOWN_PROMPT = 200  # characters of a prompt in a list of runs
# What a row and the wire call by the same name.
_SAME = {field.name for field in fields(RunInfo)} & {field.name for field in fields(RunRow)}


class LiveRun:
    """A run from its acceptance until its ending is written. Only the Runner writes these."""

    def __init__(
        self, run: Run, request: Prompt, now: float, summarize: Summarizing | None = None
    ) -> None:
        loop = asyncio.get_running_loop()
        # acceptance
        self.run = run
        self.request = request
        # What it does, if it is no prompt: then it has no row, user message or run_complete.
        self.summarize = summarize
        self.digest = digest_of(request) if summarize is None else ""
        self.accepted_at = now
        self._commit: bool | Exception = False  # as `committed` returns or raises it,
        self._decided = asyncio.Event()  # once this is set
        # the turn
        self.user: LiveMessage | None = None  # its user message, once that is in the transcript
        self.turn: LiveTurn | None = None  # of a folded run, that of the run it was folded into
        self.agent: Agent | None = None  # for the models that its prompt chose; None: the usual one
        self.agent_task: asyncio.Task[None] | None = None
        # Done when the agent has returned or was given up.
        self.agent_gone: asyncio.Future[None] = loop.create_future()
        self.grace: Timer | None = None  # it was cancelled; given up after this
        self.deadline: Timer | None = None  # after which its agent is cancelled: max_seconds
        self.overdue: LimitReached | None = None  # max_seconds has passed while the agent worked
        self.started_at = 0.0
        # the ending
        self.cause: BaseException | None = None  # what the turn failed of,
        self.failure: Failure | None = None  # and in the words for its user
        self.message_id = ""
        self.text = ""
        self.error = ""
        self.ended_at = 0.0
        # Its ending was published, or it was withdrawn.
        self.ended: asyncio.Future[None] = loop.create_future()

    async def committed(self) -> bool:
        """Wait for the commit of its row. True: the run is promised. False: its row belongs to
        an earlier run with this id. Raises the error of the store if it could not be written."""
        await self._decided.wait()
        if isinstance(self._commit, Exception):
            raise self._commit
        return self._commit

    def resolve_commit(self, result: bool | Exception) -> None:
        """Let the callers of `committed` go on, before anything that is scheduled after this."""
        self._commit = result
        self._decided.set()

    @property
    def folded_into(self) -> str:
        return self.run.carrier.run_id if self.run.carrier is not None else ""

    def user_message(self, now: float) -> Message:
        files = [file.part() for file in self.request.attachments]
        parts = [TextPart(self.request.prompt), *files, FinishPart("stop")]
        return new_message("user", self.run.session_id, parts, now)

    def row(self, boot_id: str) -> RunRow:
        files = self.request.attachments
        return RunRow(
            run_id=self.run.run_id,
            session_id=self.run.session_id,
            digest=self.digest,
            prompt=self.request.prompt,
            attachments=dumps(encode(files)).decode("ascii") if files else None,
            when_busy=self.run.when_busy.value,
            detach=self.request.detach,
            max_cost=self.request.max_cost,
            max_steps=self.request.max_steps,
            max_seconds=self.request.max_seconds,
            boot_id=boot_id,
            accepted_at=self.accepted_at,
        )

    def end(self, carrier: LiveRun, now: float) -> None:
        """How it ends is decided. `carrier` is the run whose turn it was: itself, unless it was
        folded. Clients learn it when the ending is out."""
        self.ended_at = now
        self.message_id, self.text = carrier.message_id, carrier.text
        if self.run.outcome is Outcome.FAILED and carrier.failure is not None:
            self.error = carrier.failure.detail or carrier.failure.title

    def not_saved(self, why: Exception) -> None:
        self.error = f"not saved: {why}" + f"; {self.error}" * bool(self.error)

    def info(self, state: str) -> RunInfo:
        """What clients see. `state` is the machine's name for it."""
        info = RunInfo(
            run_id=self.run.run_id,
            session_id=self.run.session_id,
            kind="prompt" if self.summarize is None else "summarize",
            state=state,
            folded_into=self.folded_into,
            accepted_at=self.accepted_at,
            started_at=self.started_at,
            prompt=self.request.prompt[:SHOWN_PROMPT],
        )
        if self.turn is not None:
            limits = self.turn.limits
            info.denied, info.limit = self.turn.denied, limits.reached
            if self.run.carrier is None:  # cost and tokens of a turn are those of its own run
                info.cost, info.prompt_tokens = limits.cost, limits.prompt_tokens
                info.completion_tokens = limits.completion_tokens
        if state == "ended" and self.run.outcome is not None:
            info.outcome, info.ended_at = self.run.outcome.value, self.ended_at
            info.message_id, info.text, info.error = self.message_id, self.text, self.error
        return info


def row_info(conn: Connection, scope: str, run_id: str) -> RunInfo:
    """A run as its row says. Raises RunNotFound."""
    return _info(conn, scope, run_rows.get_run(conn, scope, run_id))


def row_infos(
    conn: Connection, scope: str, session_id: str | None, state: str | None, unsure: list[str]
) -> list[RunInfo]:
    """Runs as their rows say, oldest first. Ended runs, by far the most, are read only if wanted;
    those in `unsure` always, as a prompt that is not promised yet may repeat an ended run."""
    if state in (None, "ended"):
        rows = run_rows.list_runs(conn, scope, session_id, None)
    else:
        rows = run_rows.list_runs(conn, scope, session_id, False)
        rows += run_rows.ended_among(conn, scope, unsure)
    return [_info(conn, scope, row) for row in rows]


def _info(conn: Connection, scope: str, row: RunRow) -> RunInfo:
    """With the text of its last message, if that is still there. A row without an outcome belongs
    to a run whose ending is not on record."""
    info = RunInfo(**{name: getattr(row, name) for name in _SAME})
    info.state, info.outcome = ("ended" if row.outcome else "accepted"), row.outcome or ""
    info.folded_into, info.limit = row.carrier, row.limit_reached
    info.prompt = row.prompt[:SHOWN_PROMPT]
    if row.message_id and message_rows.position_of(conn, scope, row.message_id) is not None:
        info.text = message_rows.get_message(conn, scope, row.message_id).text
    return info
