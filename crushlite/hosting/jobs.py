"""What the runner keeps about one run beyond its state, and the lanes effects are performed in."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import uuid
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

from ..clock import settled
from ..errors import BadRequest, CrushliteError
from ..protocol.codec import dumps, encode
from ..protocol.ids import check_id
from ..protocol.messages import BinaryPart, FinishPart, Message, Part, TextPart
from ..protocol.runs import RunInfo
from ..runs import WhenBusy
from ..store import messages as message_rows, runs as run_rows
from ..store.runs import RunRow
from .turn import Failure, Order

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from ..clock import Timer
    from ..protocol.messages import Prompt
    from ..runs import Run
    from ..store import Connection
    from .transcript import Live
    from .turn import LiveTurn

log = logging.getLogger(__name__)

T = TypeVar("T")

SUMMARIZE = "summarize"  # the kind of run that is not a prompt


def read_prompt(prompt: Prompt) -> tuple[Order, WhenBusy]:
    """Check a prompt and say what it asks for; BadRequest names the field that is wrong."""
    if not prompt.prompt and not any(file.is_text for file in prompt.attachments):
        raise BadRequest("prompt is empty: give a text or a text/* attachment")
    if not prompt.session_id:
        raise BadRequest("session id is missing: create a session first")
    check_id("session_id", prompt.session_id)
    check_id("run_id", prompt.run_id)
    if prompt.max_steps is not None and prompt.max_steps < 1:
        raise BadRequest("max_steps must be at least 1")
    if prompt.max_cost is not None and prompt.max_cost < 0:
        raise BadRequest("max_cost must not be negative")
    # Approval is for one run: it is neither given to the turn of another nor to what joins its own.
    default = "queue" if prompt.run_id or prompt.auto_approve else "steer"
    if prompt.auto_approve and prompt.when_busy == WhenBusy.STEER.value:
        raise BadRequest("auto_approve needs a turn of its own: use another when_busy than steer")
    try:
        when_busy = WhenBusy(prompt.when_busy or default)
    except ValueError:
        known = ", ".join(mode.value for mode in WhenBusy)
        raise BadRequest(f"when_busy {prompt.when_busy!r}: use one of {known}") from None
    for file in prompt.attachments:
        file.check()
    order = Order(
        run_id=prompt.run_id or str(uuid.uuid4()),
        session_id=prompt.session_id,
        prompt=prompt.prompt,
        attachments=tuple(prompt.attachments),
        max_cost=prompt.max_cost,
        max_steps=prompt.max_steps,
        auto_approve=prompt.auto_approve,
    )
    return order, when_busy


def digest_of(order: Order) -> str:
    """What makes two prompts with one run_id the same prompt."""
    value = [order.session_id, order.prompt, encode(list(order.attachments))]
    value += [True] * order.auto_approve
    return hashlib.sha256(dumps(value)).hexdigest()


class Job:
    """From acceptance until its `run_complete` is out. Only the Runner writes these."""

    def __init__(self, run: Run, order: Order, *, digest: str, detach: bool, now: float) -> None:
        loop = asyncio.get_running_loop()
        # acceptance
        self.run = run
        self.order = order
        self.digest = digest
        self.detach = detach
        self.accepted_at = now
        self.inserted: asyncio.Future[RunRow | None] | None = None  # its row, if it has one
        # the turn
        self.user: Live | None = None  # its user message, once that is in the transcript
        self.turn: LiveTurn | None = None
        self.agent_task: asyncio.Task[None] | None = None
        self.over: asyncio.Future[None] = loop.create_future()  # agent gone, or given up
        self.grace: Timer | None = None
        self.carrier: Job | None = None  # the turn it was folded into,
        self.riders: list[Job] = []  # and those that were folded into this one
        self.started_at = 0.0
        # the ending
        self.cause: BaseException | None = None  # what the turn failed of,
        self.failure: Failure | None = None  # and as it is told
        self.outcome = ""
        self.message_id = ""
        self.text = ""
        self.error = ""
        self.ended_at = 0.0
        self.published: asyncio.Future[None] = loop.create_future()

    @property
    def denied(self) -> int:
        return self.turn.denied if self.turn is not None else 0

    @property
    def folded_into(self) -> str:
        return self.carrier.run.run_id if self.carrier is not None else ""

    def user_message(self, now: float) -> Message:
        files = [
            BinaryPart(file.file_path or file.file_name, file.mime_type, file.content)
            for file in self.order.attachments
        ]
        parts: list[Part] = [TextPart(self.order.prompt), *files, FinishPart("stop")]
        at = int(now)
        return Message(
            str(uuid.uuid4()), "user", self.run.session_id, parts, created_at=at, updated_at=at
        )

    def row(self, boot_id: str) -> RunRow:
        files = self.order.attachments
        return RunRow(
            run_id=self.run.run_id,
            session_id=self.run.session_id,
            digest=self.digest,
            prompt=self.order.prompt,
            attachments=dumps(encode(list(files))).decode("ascii") if files else None,
            kind=self.run.kind,
            when_busy=self.run.when_busy.value,
            detach=self.detach,
            max_cost=self.order.max_cost,
            max_steps=self.order.max_steps,
            boot_id=boot_id,
            accepted_at=self.accepted_at,
        )

    def info(self, state: str) -> RunInfo:
        return RunInfo(
            run_id=self.run.run_id,
            session_id=self.run.session_id,
            kind=self.run.kind,
            state=state,
            outcome=self.outcome,
            message_id=self.message_id,
            text=self.text,
            error=self.error,
            folded_into=self.folded_into,
            accepted_at=self.accepted_at,
            started_at=self.started_at,
            ended_at=self.ended_at,
            denied=self.denied,
        )


def row_info(conn: Connection, scope: str, row: RunRow) -> RunInfo:
    """A run as its row tells it, with the text of its last message if that is still there."""
    text = ""
    if row.message_id and message_rows.position_of(conn, scope, row.message_id) is not None:
        text = message_rows.get_message(conn, scope, row.message_id).text
    return _info_of_row(row, text)


def row_infos(
    conn: Connection, scope: str, session_id: str | None, state: str | None, unsure: list[str]
) -> list[RunInfo]:
    """Runs as their rows tell them, oldest first. What has ended may be most of what was ever
    asked: it is read only if it is wanted, apart from the `unsure`, whose prompt is not promised
    yet and may repeat a run that has ended."""
    if state in (None, "ended"):
        rows = run_rows.list_runs(conn, scope, session_id, None)
    else:
        rows = run_rows.list_runs(conn, scope, session_id, False)
        rows += run_rows.ended_among(conn, scope, unsure)
    return [row_info(conn, scope, row) for row in rows]


def _info_of_row(row: RunRow, text: str) -> RunInfo:
    """A run that no Job tells about: it has ended, or its row has no owner yet."""
    return RunInfo(
        run_id=row.run_id,
        session_id=row.session_id,
        kind=row.kind,
        state="ended" if row.outcome is not None else "accepted",
        outcome=row.outcome or "",
        message_id=row.message_id,
        text=text,
        error=row.error,
        folded_into=row.carrier,
        accepted_at=row.accepted_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        denied=row.denied,
    )


def explain(error: BaseException) -> Failure:
    """An agent's exception as its user reads it: the words of the error, not a traceback."""
    text = words(error) or type(error).__name__
    if isinstance(error, CrushliteError):  # which says by itself what is wrong
        log.warning("an agent failed: %s", text)
        return Failure(error.code.replace("_", " ").capitalize(), text)
    log.warning("an agent failed", exc_info=error)
    return Failure("The agent failed", f"{type(error).__name__}: {text}")


def words(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - an error that cannot be printed must still end its run
        return "an error that cannot be printed"


class Lanes:
    """One ordered lane of work per key. A lane exists only while it has something to do."""

    def __init__(self, spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]) -> None:
        self._spawn = spawn
        self._lanes: dict[str, deque[tuple[Callable[[], Awaitable[Any]], asyncio.Future[Any]]]] = {}
        self._idle: asyncio.Future[None] | None = None

    def push(self, key: str, work: Callable[[], Awaitable[T]]) -> asyncio.Future[T]:
        """Do this after everything pushed to the key before it; the future holds the result."""
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = deque()
            self._spawn(self._work(key, lane))
        lane.append((work, done))
        return done

    async def _work(self, key: str, lane: deque[tuple[Any, asyncio.Future[Any]]]) -> None:
        while lane:
            work, done = lane.popleft()
            try:
                result = await work()
            except Exception as error:  # noqa: BLE001 - delivered to whoever waits
                if not done.done():
                    done.set_exception(error)
            else:
                if not done.done():
                    done.set_result(result)
        del self._lanes[key]
        if not self._lanes and self._idle is not None:
            settled(self._idle)
            self._idle = None

    async def idle(self) -> None:
        """Return when no lane has anything to do."""
        if self._lanes:
            if self._idle is None:
                self._idle = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._idle)


async def nothing() -> None:
    """Pushed to a lane to learn when everything before it is done."""


def log_late(done: asyncio.Future[None]) -> None:
    """An abandoned agent has left after all; its run ended long ago."""
    if not done.cancelled() and done.exception() is not None:
        log.warning("an abandoned agent failed", exc_info=done.exception())


def log_crash(done: asyncio.Future[None]) -> None:
    if not done.cancelled() and done.exception() is not None:
        log.error("an effect could not be performed", exc_info=done.exception())
