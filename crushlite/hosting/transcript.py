"""The live messages of a workspace: parts that grow, coalesced events, and the overlay reads see.

A message is *live* from its creation until its last state is committed. While it is live this
module, not the database, holds its newest state: streams get it at once or within the coalescing
window, rows follow more lazily, and REST reads are overlaid with what streams saw.

Two kinds of change. *Growth* (text or reasoning got longer, tool input streamed in, which the hub
must not skip) is published at most once per window, the first piece at once, and written at most
once a second or per 64 KiB. Everything else is *structural*: published and written on the spot (but
calls of a message with many parts wait for the window, and a turn's last row for its ending).

Writes go through the store's one ordered queue. One that fails leaves the message live: it is tried
again while its turn goes on and as soon as another write works, and `saving` hands it to the
transaction that ends its turn. Rows are placed by the order of their insertion, so no message is
inserted before one of its session that began earlier.

A message that is no longer live does not change, and new rows are placed behind the others. So the
conversation of a session, which an agent reads at each step, is kept for a while, and only the rows
behind what is kept are read.

Knows nothing of: runs, turns, permissions, HTTP.
"""

from __future__ import annotations

import itertools
import logging
from dataclasses import field
from typing import TYPE_CHECKING, TypeVar

from ..errors import SessionNotFound
from ..protocol.codec import dumps, encode
from ..protocol.messages import FinishPart, Message, ReasoningPart, TextPart, ToolCallPart
from ..records import copied, dataclass
from ..store import messages as message_rows, sessions as session_rows
from ..unique import new_id

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Sequence

    from ..clock import Clock, Timer
    from ..events import Hub
    from ..protocol.messages import Part
    from ..protocol.sessions import Session
    from ..store import Connection, ScopedStore

    Work = Callable[[Connection], None]

log = logging.getLogger(__name__)

T = TypeVar("T")

SECONDS_PER_CHAR = 1e-7  # between two events of a growing message: 0.1 s for a million characters
# Each event and each row holds all parts: of a message with more than these, several new calls are
# published and written together.
MANY_PARTS = 16
HELD_SECONDS = 0.1  # that an event is held back at most: see `finish`
ROW_SECONDS = 1.0  # how stale the row of a streaming message may get,
ROW_CHARS = 64 * 1024  # in time and in text: what a kill -9 can cost of an unfinished answer
KEPT_SESSIONS = 4  # of which the conversation is kept,
KEPT_SECONDS = 60.0  # until none was read for so long


@dataclass(eq=False, slots=True)
class Placement:
    """Where a message stands in its session: what a thread of the store needs to insert its row.
    Loop and thread both use it, so it is written once, apart from two changes that are right at any
    moment: `before` is forgotten when the row exists, `dropped` is set if there shall be none."""

    message_id: str
    insert: Callable[[Connection], None]
    before: Placement | None  # the message that began before this one
    dropped: bool = False

    def fill(self, conn: Connection, scope: str) -> None:
        """Insert the row of this message, after those that began before it and have none: rows are
        placed by the order of their insertion. Where one has a row, so have all before it."""
        missing: list[Placement] = []
        place: Placement | None = self
        while place is not None and message_rows.position_of(conn, scope, place.message_id) is None:
            missing.append(place)
            place = place.before
        for place in reversed(missing):
            if not place.dropped:
                place.insert(conn)


@dataclass(eq=False, slots=True)
class LiveMessage:
    """A message that is still being written. Only Transcript writes these attributes."""

    message: Message
    place: Placement
    # The tails are joined only when read: joining at each piece would be quadratic.
    text_tail: list[str] = field(default_factory=list)
    thought_tail: list[str] = field(default_factory=list)
    version: int = 1  # counts changes; the next three say how far each has followed
    published: int = 1
    submitted: int = 0
    written: int = 0
    only_growth: bool = True
    grown: int = 0  # characters since the row was last written
    row_time: float = 0.0
    row_timer: Timer | None = None  # apart: the row must follow also when growth stalls
    timer: Timer | None = None  # end of the window
    deleted: bool = False

    @property
    def finished(self) -> bool:
        return self.message.finish is not None

    def joined(self) -> Message:
        """The message itself, with the tails joined to it."""
        if self.text_tail:
            part = next(part for part in self.message.parts if isinstance(part, TextPart))
            part.text += "".join(self.text_tail)
            self.text_tail.clear()
        if self.thought_tail:
            thought = next(part for part in self.message.parts if isinstance(part, ReasoningPart))
            thought.thinking += "".join(self.thought_tail)
            self.thought_tail.clear()
        return self.message

    def snapshot(self) -> Message:
        """A copy that later changes do not touch."""
        return _copy(self.joined())


@dataclass(frozen=True, slots=True)
class KeptMessages:
    """The first messages of a session, none of them live, and the position of the last."""

    messages: tuple[Message, ...] = ()
    position: int = -message_rows.BEYOND


class Transcript:
    def __init__(
        self, *, store: ScopedStore, hub: Hub, clock: Clock, coalesce: float = 0.033
    ) -> None:
        self._store = store
        self._hub = hub
        self._clock = clock
        self._coalesce = coalesce
        self._live: dict[str, LiveMessage] = {}  # by message id, in order of creation
        self._latest: dict[str, Placement] = {}  # by session, of the message that began last
        self._failed: dict[LiveMessage, None] = {}  # of which the last write did not work, in order
        self._kept: dict[str, KeptMessages] = {}  # by session, in the order of their last reads
        self._kept_timer: Timer | None = None
        self._rewritten = 0  # counts the times when what is kept may have become wrong
        store.store.on_healed(self._retry)

    # Writing -------------------------------------------------------------------------------------

    def create(
        self, message: Message, insert: Callable[[Connection], None] | None = None
    ) -> LiveMessage:
        """Begin a message: published at once; an empty one is held until the end of the tick, to
        leave with its first part. Its row is submitted; `insert` makes that row."""
        first, scope = _copy(message), self._store.scope
        insert = insert or (lambda conn: message_rows.insert_message(conn, scope, first))
        before = self._latest.get(message.session_id)
        live = LiveMessage(message, Placement(message.id, insert, before))
        self._live[message.id] = live
        self._latest[message.session_id] = live.place
        self._hub.publish("created", first, more=not message.parts)
        self._write(live)
        return live

    def say(self, live: LiveMessage, text: str) -> None:
        self._close_reasoning(live)
        if not live.text_tail and not any(isinstance(p, TextPart) for p in live.message.parts):
            # Models like to open with a line break, which shows as a blank first line in a pipe.
            text = text.removeprefix("\n")
            live.message.parts.append(TextPart())
        live.text_tail.append(text)
        self._grew(live, len(text))

    def think(self, live: LiveMessage, text: str, signature: str = "") -> None:
        part = next((p for p in live.message.parts if isinstance(p, ReasoningPart)), None)
        if part is None:
            part = ReasoningPart(started_at=int(self._clock.now()))
            live.message.parts.append(part)
        part.signature = signature or part.signature
        live.thought_tail.append(text)
        self._grew(live, len(text))

    def tool_call(self, live: LiveMessage, call: ToolCallPart) -> None:
        """Add a call, or replace the known one with its id."""
        self._close_reasoning(live)
        known = next((c for c in live.message.tool_calls if c.id == call.id), None)
        structural = known is None or call.finished != known.finished
        if known is None:
            live.message.parts.append(call)
        else:
            known.name, known.input, known.finished = call.name, call.input, call.finished
        if structural and len(live.message.parts) <= MANY_PARTS:
            self.changed(live)
        else:
            live.only_growth = False  # debounced, but no growth of text
            self._grew(live, len(call.input))

    def close_calls(self, live: LiveMessage) -> None:
        """End the calls whose input is not complete, with an empty one, in one event."""
        unfinished = [call for call in live.message.tool_calls if not call.finished]
        for call in unfinished:
            call.input, call.finished = "{}", True
        if unfinished:
            self._close_reasoning(live)
            self.changed(live)

    def finish(
        self, live: LiveMessage, finish: FinishPart, *, write: bool = True, publish: bool = True
    ) -> None:
        """Set the finish part: at most one, last. `write=False` leaves the row to `saving`,
        `publish=False` the event to `flush`, or to a timer if that does not come soon."""
        self._close_reasoning(live, flush=False)
        parts = [part for part in live.message.parts if not isinstance(part, FinishPart)]
        live.message.parts = [*parts, finish]
        live.joined()
        self.changed(live, write=write, publish=publish)

    def erase(self, live: LiveMessage) -> None:
        """Drop what was streamed into the message."""
        live.text_tail.clear()
        live.thought_tail.clear()
        live.message.parts = []
        self.changed(live)

    def changed(self, live: LiveMessage, *, write: bool = True, publish: bool = True) -> None:
        """A structural change: it is published, and its row written, now, except as in `finish`."""
        self._count_up(live)
        live.only_growth = False
        if not live.deleted and live.message.id not in self._live:
            self._live[live.message.id] = live  # it had left, finished and written
            self._forget_kept(live.message.session_id)
        if publish:
            self.flush(live, write=write)
        else:
            self._disarm(live)
            live.timer = self._clock.call_later(HELD_SECONDS, lambda: self._tick(live))

    def flush(self, live: LiveMessage, *, write: bool = True, more: bool = False) -> None:
        """Publish (`more` as in `Hub.publish`) and write what is not out yet."""
        self._disarm(live)
        self._publish(live, more=more)
        if write:
            self._write(live)

    def flush_all(self) -> None:
        for live in list(self._live.values()):
            self.flush(live)

    def close(self) -> None:
        """Publish and write what is not out yet, and let go of the store, which may live on."""
        self.flush_all()
        self._forget_kept(*self._kept)
        self._store.store.off_healed(self._retry)

    def delete(self, live: LiveMessage) -> None:
        """Remove a message for good; its buffered state must not bring the row back."""
        self._discard(live)
        self._forget_kept(live.message.session_id)
        self._live[live.message.id] = live  # hides its row from readers until that is gone
        self._remove(live)
        self._hub.publish("deleted", live.snapshot())

    def forget(self, session_ids: Iterable[str]) -> None:
        """Their sessions are gone: drop buffered state without a trace."""
        gone = set(session_ids)
        for live in list(self._live.values()):
            if live.message.session_id in gone:
                self._discard(live)
        for session_id in gone:
            self._latest.pop(session_id, None)
        self._forget_kept(*gone)

    # The ending's transaction --------------------------------------------------------------------

    def saving(self, messages: Iterable[LiveMessage]) -> Work:
        """What a transaction must do to store the newest state of these messages. That is
        collected here: the transaction runs in another thread, while these objects change."""
        scope = self._store.scope
        newest = [live for live in messages if live.written < live.version]
        places = [live.place for live in newest if not live.written]
        # What has not changed since it began is stored by the insert.
        snapshots = [live.snapshot() for live in newest if live.version > 1]

        def save(conn: Connection) -> None:
            for place in places:
                place.fill(conn, scope)
            for message in snapshots:
                message_rows.save_message(conn, scope, message)

        return save

    def saved(self, lives: Iterable[LiveMessage]) -> None:
        """That transaction is committed; nothing of them has changed since `saving`."""
        for live in lives:
            self._wrote(live, live.version)
        self._retry()

    # Reading -------------------------------------------------------------------------------------

    async def conversation(
        self, session_id: str, notes_owner: str
    ) -> tuple[Session, list[Message], str]:
        """A session, its messages as streams have seen them, and what this owner has kept."""
        kept, rewritten = self._kept.get(session_id, KeptMessages()), self._rewritten

        def read(conn: Connection, scope: str) -> tuple[Session, list[tuple[int, Message]], str]:
            session = session_rows.get_session(conn, scope, session_id)
            rows = message_rows.placed_messages(conn, scope, session_id, kept.position + 1)
            return session, rows, session_rows.get_notes(conn, scope, session_id, notes_owner)

        seen = self._seen(session_id)
        session, rows, notes = await self._store.read(read)
        seen |= self._seen(session_id)
        if rewritten == self._rewritten:
            self._keep(session_id, kept, rows, seen)
        return session, _overlaid([*kept.messages, *(row for _, row in rows)], seen), notes

    def _keep(
        self,
        session_id: str,
        kept: KeptMessages,
        rows: list[tuple[int, Message]],
        seen: dict[str, LiveMessage],
    ) -> None:
        """Add to what is kept of a session the rows behind it up to the first that may change."""
        done = list(itertools.takewhile(lambda row: row[1].finish and row[1].id not in seen, rows))
        if done:
            messages = *kept.messages, *(message for _, message in done)
            kept = KeptMessages(messages, done[-1][0])
        self._kept.pop(session_id, None)
        self._kept[session_id] = kept
        if len(self._kept) > KEPT_SESSIONS:
            del self._kept[next(iter(self._kept))]
        if self._kept_timer is not None:
            self._kept_timer.cancel()
        self._kept_timer = self._clock.call_later(
            KEPT_SECONDS, lambda: self._forget_kept(*self._kept)
        )

    def _forget_kept(self, *session_ids: str) -> None:
        self._rewritten += 1
        for session_id in session_ids:
            self._kept.pop(session_id, None)
        if not self._kept and self._kept_timer is not None:
            self._kept_timer.cancel()
            self._kept_timer = None

    async def messages_json(self, session_id: str) -> list[bytes]:
        """The messages as JSON: pieces with one or more each, to be joined by commas."""
        read = await self._read_beside(message_rows.message_texts, session_id)
        (pieces, newest), seen = read
        return [*pieces, *map(_text, _overlaid(newest, seen))]

    async def user_messages_json(self, session_id: str | None) -> list[bytes]:
        """What was typed, newest first: in one session, or in all. Pieces, as above."""
        read = await self._read_beside(message_rows.user_message_texts, session_id, role="user")
        (newest, pieces), seen = read
        return [*map(_text, _overlaid(newest[::-1], seen)[::-1]), *pieces]

    def _seen(self, session_id: str | None, role: str | None = None) -> dict[str, LiveMessage]:
        """What streams have seen and the rows may not hold yet. Taken before a read and after it: a
        message that is committed meanwhile would otherwise be in neither."""
        return {
            key: live
            for key, live in self._live.items()
            if session_id in (None, live.message.session_id) and role in (None, live.message.role)
        }

    async def _read_beside(
        self, read: Callable[..., T], session_id: str | None, role: str | None = None
    ) -> tuple[T, dict[str, LiveMessage]]:
        """Read around the live messages. One that came up meanwhile may be among the texts, where
        it cannot be found again: then the read is repeated, once, with the newest rows as objects.
        """
        seen = self._seen(session_id, role)
        for recent in (0, message_rows.RECENT):
            ids = list(seen)
            found: T = await self._store.read(read, session_id, ids, recent)
            seen |= self._seen(session_id, role)
            if len(seen) == len(ids):
                break
        return found, seen

    # Inside --------------------------------------------------------------------------------------

    def _grew(self, live: LiveMessage, amount: int) -> None:
        if live.deleted:
            return  # its timers would run for ever, as nothing of it is published
        self._count_up(live)
        live.grown += amount
        if self._coalesce <= 0:
            self._publish(live)
            self._write(live)
            return
        self._arm_row(live)
        if live.timer is None:
            self._tick(live)

    def _count_up(self, live: LiveMessage) -> None:
        """The message has changed. Its time goes with the version, so that events and row agree."""
        live.version += 1
        live.message.updated_at = max(live.message.updated_at, int(self._clock.now()))

    def _arm_row(self, live: LiveMessage) -> None:
        if live.row_timer is None:
            delay = live.row_time + ROW_SECONDS - self._clock.time()
            live.row_timer = self._clock.call_later(delay, lambda: self._row_due(live))

    def _row_due(self, live: LiveMessage) -> None:
        live.row_timer = None
        self._write(live)

    def _tick(self, live: LiveMessage) -> None:
        """Publish what came in and open the next window; an idle window is not followed by one."""
        live.timer = None
        if live.published == live.version:
            return
        self._publish(live)
        if live.grown >= ROW_CHARS:
            self._write(live)
        # Each event holds the whole message: a long one is published less often, or its events
        # would keep the loop busy (encoding takes 3 to 12 ns per character).
        delay = max(self._coalesce, _length(live.message) * SECONDS_PER_CHAR)
        live.timer = self._clock.call_later(delay, lambda: self._tick(live))

    def _publish(self, live: LiveMessage, *, more: bool = False) -> None:
        if live.published != live.version and not live.deleted:
            live.published = live.version
            self._hub.publish("updated", live.snapshot(), growth=live.only_growth, more=more)
            live.only_growth = True

    def _close_reasoning(self, live: LiveMessage, *, flush: bool = True) -> None:
        part = next((p for p in live.message.parts if isinstance(p, ReasoningPart)), None)
        if part is not None and not part.finished_at:
            live.joined()
            part.finished_at = int(self._clock.now())
            if flush:
                self.changed(live)

    def _write(self, live: LiveMessage) -> None:
        if live.submitted == live.version or live.deleted:
            return
        live.submitted = version = live.version
        live.grown = 0
        live.row_time = self._clock.time()
        save = self.saving([live])
        # Nothing waits for it, and a write that a turn does wait for may come soon.
        done = self._store.store.submit(save, shared=True)

        def note(done: asyncio.Future[None]) -> None:
            if self._worked(live, done):
                self._wrote(live, version)
                self._retry()
                return
            if not done.cancelled() and isinstance(done.exception(), SessionNotFound):
                self._discard(live)  # deleted under it: there is nothing to try again
                return
            live.submitted = live.written
            if not live.finished and not live.deleted:  # else its turn's ending writes it
                self._arm_row(live)

        done.add_done_callback(note)

    def _remove(self, live: LiveMessage) -> None:
        message_id = live.message.id
        done: asyncio.Future[None] = self._store.write(message_rows.delete_message, message_id)

        def note(done: asyncio.Future[None]) -> None:
            if self._worked(live, done):
                self._live.pop(message_id, None)

        done.add_done_callback(note)

    def _worked(self, live: LiveMessage, done: asyncio.Future[None]) -> bool:
        """Whether a write succeeded; one that failed is remembered for `_retry`."""
        error = None if done.cancelled() else done.exception()
        if error is not None:
            log.warning("a message could not be written yet: %s", error)
        if error is None and not done.cancelled():
            self._failed.pop(live, None)
            return True
        self._failed[live] = None
        return False

    def _retry(self) -> None:
        """A write has worked, here or elsewhere after trouble: try those again that did not."""
        failed, self._failed = self._failed, {}
        for live in failed:
            if self._live.get(live.message.id) is not live:
                continue  # written by its turn's ending meanwhile, or its session is gone
            if live.deleted:
                self._remove(live)
            else:
                self._write(live)

    def _wrote(self, live: LiveMessage, version: int) -> None:
        live.written = max(live.written, version)
        live.place.before = None
        if live.finished and live.written == live.version and not live.deleted:
            self._let_go(live)

    def _discard(self, live: LiveMessage) -> None:
        live.deleted = live.place.dropped = True
        self._disarm(live)
        self._let_go(live)

    def _let_go(self, live: LiveMessage) -> None:
        self._live.pop(live.message.id, None)
        if self._latest.get(live.message.session_id) is live.place:
            if live.place.before is not None:  # deleted before it had a row: those before may be
                self._latest[live.message.session_id] = live.place.before  # without one as well
            else:
                del self._latest[live.message.session_id]

    def _disarm(self, live: LiveMessage) -> None:
        for timer in (live.timer, live.row_timer):
            if timer is not None:
                timer.cancel()
        live.timer = live.row_timer = None


def new_message(role: str, session_id: str, parts: Sequence[Part], now: float) -> Message:
    at = int(now)
    own = new_id()
    return Message(own, role, session_id, [*parts], created_at=at, updated_at=at)


def _overlaid(rows: list[Message], seen: dict[str, LiveMessage]) -> list[Message]:
    """Rows, oldest first, with what streams have seen of them instead, and the newer ones."""
    answer = []
    for row in rows:
        live = seen.pop(row.id, None)
        if live is None:
            answer.append(row)
        elif not live.deleted:
            answer.append(live.snapshot())
    return answer + [live.snapshot() for live in seen.values() if not live.deleted]


def _copy(message: Message) -> Message:
    made = copied(message)
    made.parts = [copied(part) for part in message.parts]
    return made


def _length(message: Message) -> int:
    """The characters of its text and reasoning."""
    return sum(
        len(part.text) if isinstance(part, TextPart) else len(part.thinking)
        for part in message.parts
        if isinstance(part, TextPart | ReasoningPart)
    )


def _text(message: Message) -> bytes:
    return dumps(encode(message))
