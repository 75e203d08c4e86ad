"""Message coalescing: how often a growing message is published, and that nothing of it is lost."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any
from unittest import mock

from crushlite.hosting.transcript import (
    HELD_SECONDS,
    KEPT_SECONDS,
    KEPT_SESSIONS,
    ROW_CHARS,
    ROW_SECONDS,
    Transcript,
)
from crushlite.protocol.messages import (
    FinishPart,
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
)
from crushlite.protocol.sessions import Session
from crushlite.settings import Settings
from crushlite.store import messages as message_rows, sessions
from crushlite.testing import LocalDaemon
from tests.support.basics import BoundedTestCase
from tests.support.scenarios import scenario
from tests.support.turns import SCOPE, SESSION, Bench

if TYPE_CHECKING:
    from crushlite.hosting.transcript import LiveMessage

HOUR = 3600.0


def draft(role: str = "assistant", parts: tuple[Part, ...] = ()) -> Message:
    return Message(str(uuid.uuid4()), role, SESSION, list(parts))


class CoalescingTests(Bench):
    coalesce = 0.05

    def begin(self) -> LiveMessage:
        live = self.transcript.create(draft())
        self.hub.log.clear()
        return live

    def unwritten(self, message: Message) -> LiveMessage:
        """A message that has begun and whose row is not submitted yet."""
        with mock.patch.object(self.transcript, "_write"):
            return self.transcript.create(message)

    @scenario(194)
    async def test_of_five_deltas_in_one_window_four_are_one_event(self) -> None:
        """Of five deltas within a window the first goes out at once, the others as one event."""
        live = self.begin()
        for piece in ("He", "l", "l", "o", "!"):
            self.transcript.say(live, piece)
        self.assertEqual([event.text for event in self.updates()], ["He"])
        await self.clock.advance(0.049)
        self.assertEqual(len(self.updates()), 1)
        await self.clock.advance(0.001)
        self.assertEqual([event.text for event in self.updates()], ["He", "Hello!"])
        self.assertEqual([event.growth for event in self.updates()], [True, True])
        await self.clock.advance(ROW_SECONDS)
        self.assertEqual([row.text for row in await self.rows()], ["Hello!"])
        self.assertEqual(len(self.updates()), 2)

    async def test_events_and_row_say_the_same_time_of_the_last_change(self) -> None:
        live = self.begin()
        self.transcript.say(live, "a")
        await self.clock.advance(10.0)
        self.transcript.say(live, "b")
        await self.clock.advance(10.0)  # the row is written behind
        self.assertEqual([row.text for row in await self.rows()], ["ab"])
        times = [row.updated_at for row in await self.rows()]
        self.assertEqual(times, [self.updates()[-1].payload.updated_at])
        self.transcript.finish(live, FinishPart("end_turn"))
        await self.clock.advance(10.0)
        times = [row.updated_at for row in await self.rows()]
        self.assertEqual(times, [self.updates()[-1].payload.updated_at])

    async def test_after_a_silence_the_next_delta_goes_out_at_once(self) -> None:
        live = self.begin()
        self.transcript.say(live, "a")
        await self.clock.advance(0.5)
        self.transcript.say(live, "b")
        self.assertEqual([event.text for event in self.updates()], ["a", "ab"])

    async def test_a_long_stream_is_published_once_per_window(self) -> None:
        live = self.begin()
        for _ in range(100):
            self.transcript.say(live, "x")
            await self.clock.advance(0.01)
        lengths = [len(event.text) for event in self.updates()]
        self.assertEqual(lengths, sorted(set(lengths)))
        self.assertLessEqual(len(lengths), 22)
        self.assertGreaterEqual(len(lengths), 18)

    async def test_the_row_of_a_stalled_answer_is_at_most_a_second_behind(self) -> None:
        live = self.begin()
        self.transcript.say(live, "thinking about")
        await self.clock.advance(0.2)
        self.transcript.say(live, " it")
        await self.clock.advance(ROW_SECONDS)
        self.assertEqual([row.text for row in await self.rows()], ["thinking about it"])

    async def test_a_row_is_written_at_most_once_a_second_while_text_streams(self) -> None:
        live = self.begin()
        saved = set()
        for _ in range(40):
            self.transcript.say(live, "x")
            await self.clock.advance(0.1)
            saved.add((await self.rows())[0].text)
        self.assertLessEqual(len(saved), 5)
        self.assertGreaterEqual(len(saved), 4)

    async def test_a_flood_is_written_before_the_second_is_over(self) -> None:
        live = self.begin()
        self.transcript.say(live, "x" * ROW_CHARS)
        self.assertEqual(len((await self.rows())[0].text), ROW_CHARS)

    async def test_a_published_message_is_not_changed_by_what_follows(self) -> None:
        live = self.begin()
        call = ToolCallPart("c", "ls", "{", finished=False)
        self.transcript.tool_call(live, call)
        first = self.updates()[0].payload
        self.transcript.tool_call(live, ToolCallPart("c", "ls", "{}", finished=True))
        self.transcript.say(live, "done")
        self.assertEqual(first.tool_calls[0].input, "{")
        self.assertEqual(first.text, "")

    @scenario(200)
    async def test_a_deleted_message_is_not_brought_back_by_its_buffer(self) -> None:
        """A deleted message is not brought back by what was still buffered for it."""
        live = self.begin()
        self.transcript.say(live, "a")
        self.transcript.say(live, "b")
        self.transcript.delete(live)
        await self.clock.advance(2 * ROW_SECONDS)
        self.assertEqual(await self.rows(), [])
        self.assertEqual(await self.seen(), [])
        self.assertEqual([event.action for event in self.hub.log], ["updated", "deleted"])
        self.assertEqual(self.clock.pending, 0)

    async def test_a_forgotten_session_leaves_neither_timers_nor_events(self) -> None:
        live = self.begin()
        self.transcript.say(live, "a")
        self.transcript.say(live, "b")
        self.transcript.forget([SESSION])
        self.hub.log.clear()
        self.transcript.say(live, "c")
        await self.clock.advance(2 * ROW_SECONDS)
        self.assertEqual(self.hub.log, [])
        self.assertEqual(self.clock.pending, 0)

    async def test_a_read_during_the_window_sees_more_than_the_row(self) -> None:
        live = self.begin()
        self.transcript.say(live, "a")
        self.transcript.say(live, "b")
        self.assertEqual([m.text for m in await self.seen()], ["ab"])
        self.assertEqual([row.text for row in await self.rows()], [""])

    async def test_a_second_finish_is_seen_by_reads_before_its_row_is_written(self) -> None:
        live = self.begin()
        self.transcript.finish(live, FinishPart("tool_use"))
        self.assertEqual([row.finish for row in await self.rows()], [FinishPart("tool_use")])
        self.transcript.finish(live, FinishPart("end_turn"), write=False)
        (seen,) = await self.seen()
        self.assertEqual(seen.finish, FinishPart("end_turn"))
        await self.store.submit(self.transcript.saving([live]))
        self.transcript.saved([live])
        self.assertEqual([row.finish for row in await self.rows()], [FinishPart("end_turn")])

    async def test_user_messages_are_newest_first_and_hold_what_is_not_written_yet(self) -> None:
        finish = FinishPart("stop")
        self.transcript.create(draft("user", (TextPart("one"), finish)))
        self.transcript.create(draft("user", (TextPart("two"), finish)))
        await self.clock.settle()
        self.unwritten(draft("user", (TextPart("three"), finish)))
        self.transcript.create(draft())
        for session in (SESSION, None):
            found = json.loads(
                b"[%b]" % b",".join(await self.transcript.user_messages_json(session))
            )
            texts = [message["parts"][0]["data"]["text"] for message in found]
            self.assertEqual(texts, ["three", "two", "one"])
        self.assertEqual(await self.transcript.user_messages_json("another"), [])

    async def test_what_comes_up_during_a_read_is_there_once(self) -> None:
        """Its row may already be among those that are read, and it is still live afterwards."""
        finish = FinishPart("stop")
        self.transcript.create(draft("user", (TextPart("one"), finish)))
        await self.clock.settle()
        read, texts = self.store.read, ["two", "three"]

        async def read_late(work: Any) -> Any:
            if texts:
                live = self.unwritten(draft("user", (TextPart(texts.pop(0)), finish)))
                await self.store.submit(self.transcript.saving([live]))
            return await read(work)

        with mock.patch.object(self.store, "read", read_late):
            for pieces, wanted in (
                (await self.transcript.messages_json(SESSION), ["one", "two", "three"]),
                (await self.transcript.user_messages_json(None), ["three", "two", "one"]),
            ):
                found = json.loads(b"[%b]" % b",".join(pieces))
                self.assertEqual([m["parts"][0]["data"]["text"] for m in found], wanted)

    async def test_a_list_is_answered_although_every_read_finds_something_new(self) -> None:
        """A fast agent begins a message during each read: there is no waiting for a pause."""
        finish, read, reads = FinishPart("stop"), self.store.read, 0

        async def read_late(work: Any) -> Any:
            nonlocal reads
            reads += 1
            live = self.unwritten(draft("user", (TextPart(str(reads)), finish)))
            await self.store.submit(self.transcript.saving([live]))
            return await read(work)

        with mock.patch.object(self.store, "read", read_late):
            pieces = await self.transcript.messages_json(SESSION)
            found = json.loads(b"[%b]" % b",".join(pieces))
            self.assertEqual([m["parts"][0]["data"]["text"] for m in found], ["1", "2"])
            pieces = await self.transcript.user_messages_json(None)
            found = json.loads(b"[%b]" % b",".join(pieces))
            self.assertEqual([m["parts"][0]["data"]["text"] for m in found], ["4", "3", "2", "1"])
        self.assertEqual(reads, 4)

    async def test_one_of_another_session_may_have_its_row_before_an_older_one(self) -> None:
        row = Session(id="other", title="other", created_at=1, updated_at=1)
        await self.store.submit(lambda conn: sessions.insert_session(conn, SCOPE, row))
        finish, read, reads = FinishPart("stop"), self.store.read, 0

        async def read_late(work: Any) -> Any:
            nonlocal reads
            reads += 1
            message = draft("user", (TextPart(str(reads)), finish))
            message.session_id = SESSION if reads == 1 else "other"
            live = self.unwritten(message)
            if reads > 1:  # the first one is still waiting for its row
                await self.store.submit(self.transcript.saving([live]))
            return await read(work)

        with mock.patch.object(self.store, "read", read_late):
            pieces = await self.transcript.user_messages_json(None)
        found = json.loads(b"[%b]" % b",".join(pieces))
        self.assertEqual(sorted(m["parts"][0]["data"]["text"] for m in found), ["1", "2"])

    async def test_a_message_that_is_deleted_leaves_those_before_it_in_their_place(self) -> None:
        await self.execute(
            "CREATE TRIGGER full BEFORE INSERT ON messages BEGIN SELECT RAISE(ABORT, 'no'); END"
        )
        self.transcript.create(draft("user", (TextPart("first"), FinishPart("stop"))))
        doomed = self.transcript.create(draft())
        await self.clock.settle()
        self.transcript.delete(doomed)
        await self.execute("DROP TRIGGER full")
        self.transcript.create(draft("user", (TextPart("second"), FinishPart("stop"))))
        await self.clock.settle()
        self.assertEqual([row.text for row in await self.rows()], ["first", "second"])

    async def test_a_failed_write_is_made_good_by_the_transaction_of_the_ending(self) -> None:
        await self.execute(
            "CREATE TRIGGER full BEFORE INSERT ON messages BEGIN SELECT RAISE(ABORT, 'no'); END"
        )
        live = self.begin()
        self.transcript.finish(live, FinishPart("end_turn"))
        self.assertEqual(await self.rows(), [])
        self.assertEqual(len(await self.seen()), 1)
        await self.execute("DROP TRIGGER full")
        await self.store.submit(self.transcript.saving([live]))
        self.transcript.saved([live])
        self.assertEqual([row.id for row in await self.rows()], [live.message.id])


class StructureTests(Bench):
    """With a window of an hour only structural changes can be published and written."""

    coalesce = HOUR

    def begin(self) -> LiveMessage:
        live = self.transcript.create(draft())
        self.transcript.say(live, "first")  # opens the window
        self.hub.log.clear()
        return live

    def new_events(self) -> int:
        count = len(self.updates())
        self.hub.log.clear()
        return count

    @scenario(195)
    async def test_a_finish_is_published_and_written_at_once_with_all_text_before_it(self) -> None:
        """A finish is not held back for the window."""
        live = self.begin()
        self.transcript.say(live, " and last")
        self.assertEqual(self.new_events(), 0)
        self.transcript.finish(live, FinishPart("end_turn", 7))
        (event,) = self.updates()
        self.assertEqual((event.text, event.payload.finish.reason), ("first and last", "end_turn"))
        (row,) = await self.rows()
        self.assertEqual(row.parts, [TextPart("first and last"), FinishPart("end_turn", 7)])
        self.assertEqual(self.clock.pending, 0)

    async def test_a_finish_that_is_held_back_is_published_once_and_soon(self) -> None:
        """Also if what it is held back for takes long, with the text of an open window."""
        for is_late in (False, True):
            live = self.begin()
            self.transcript.say(live, " and last")
            self.transcript.finish(live, FinishPart("end_turn", 7), write=False, publish=False)
            self.assertEqual(self.updates(), [])
            if is_late:
                await self.clock.advance(HELD_SECONDS)
                self.assertEqual(len(self.updates()), 1)
            self.transcript.flush(live, write=False)
            (event,) = self.updates()
            self.assertEqual(event.text, "first and last")
            self.assertEqual(event.payload.finish.reason, "end_turn")
            await self.clock.advance(1.0)
            self.assertEqual(len(self.updates()), 1)
            self.hub.log.clear()

    async def test_a_new_finish_replaces_the_old_and_stays_last(self) -> None:
        live = self.begin()
        self.transcript.finish(live, FinishPart("tool_use"))
        self.transcript.finish(live, FinishPart("canceled"))
        (row,) = await self.rows()
        self.assertEqual(row.parts, [TextPart("first"), FinishPart("canceled")])

    async def test_a_message_of_a_session_that_was_deleted_meanwhile_is_given_up(self) -> None:
        await self.store.submit(lambda conn: sessions.delete_session(conn, SCOPE, SESSION))
        with self.assertLogs("crushlite.hosting.transcript"):
            self.transcript.create(draft("user", (TextPart("too late"), FinishPart("stop"))))
            await self.clock.settle()
        self.assertEqual(await self.seen(), [])
        self.assertEqual(self.clock.pending, 0)  # nothing is going to try again

    @scenario(196)
    async def test_a_new_tool_call_and_the_end_of_its_input_are_published_at_once(self) -> None:
        """They are written at once too; the growth of its input waits."""
        live = self.begin()
        self.transcript.tool_call(live, ToolCallPart("c", "ls", '{"pa', finished=False))
        self.assertEqual(self.new_events(), 1)
        self.assertFalse((await self.rows())[0].tool_calls[0].finished)
        self.transcript.tool_call(live, ToolCallPart("c", "ls", '{"path"', finished=False))
        # The window was closed by the flush, so the first growth after it opens a new one.
        self.assertEqual(self.new_events(), 1)
        self.transcript.tool_call(live, ToolCallPart("c", "ls", '{"path":"sr', finished=False))
        self.assertEqual(self.new_events(), 0)
        self.transcript.tool_call(live, ToolCallPart("c", "ls", '{"path":"src"}', finished=True))
        self.assertEqual(self.new_events(), 1)
        (call,) = (await self.rows())[0].tool_calls
        self.assertEqual(call, ToolCallPart("c", "ls", '{"path":"src"}', finished=True))
        self.transcript.tool_call(live, ToolCallPart("d", "ls", "{}", finished=True))
        self.assertEqual(self.new_events(), 1)
        self.assertEqual([c.id for c in (await self.rows())[0].tool_calls], ["c", "d"])

    @scenario(197)
    async def test_the_end_of_reasoning_is_published_at_once(self) -> None:
        """Reasoning that grows waits for its window; the piece that ends it does not."""
        live = self.transcript.create(draft())
        self.transcript.think(live, "hm")
        self.hub.log.clear()
        self.transcript.think(live, ", so", signature="sig")
        self.assertEqual(self.new_events(), 0)
        self.transcript.say(live, "Well")
        first = self.updates()[0].payload.parts
        now = int(self.clock.now())
        self.assertEqual(first, [ReasoningPart("hm, so", "sig", now, now)])
        (row,) = await self.rows()
        self.assertEqual(row.parts[0], ReasoningPart("hm, so", "sig", now, now))

    async def test_a_tool_call_and_a_finish_end_reasoning_too(self) -> None:
        for end in ("call", "finish"):
            with self.subTest(end):
                live = self.transcript.create(draft())
                self.transcript.think(live, "hm")
                if end == "call":
                    self.transcript.tool_call(live, ToolCallPart("c", "ls", "{}", finished=True))
                else:
                    self.transcript.finish(live, FinishPart("canceled"))
                part = (await self.rows())[-1].parts[0]
                assert isinstance(part, ReasoningPart)
                self.assertEqual(part.finished_at, int(self.clock.now()))

    @scenario(198)
    async def test_a_flush_publishes_and_writes_what_was_held_back_once(self) -> None:
        """A flush tells and writes what was held back, once: the next one finds nothing."""
        live, other = self.begin(), self.begin()
        self.transcript.say(live, " more")
        self.transcript.flush(live)
        self.assertEqual([event.text for event in self.updates()], ["first more"])
        self.hub.log.clear()
        self.assertEqual([row.text for row in await self.rows()], ["first more", ""])
        self.transcript.flush(live)
        self.assertEqual(self.new_events(), 0)
        self.transcript.say(live, "!")
        self.transcript.say(live, "!")
        self.transcript.say(other, "?")
        self.hub.log.clear()
        self.transcript.flush_all()
        self.assertEqual([event.text for event in self.updates()], ["first more!!", "first?"])
        self.assertEqual([row.text for row in await self.rows()], ["first more!!", "first?"])
        self.hub.log.clear()
        self.transcript.flush_all()
        self.assertEqual(self.new_events(), 0)
        self.assertEqual(self.clock.pending, 0)

    @scenario(199)
    async def test_rows_and_last_event_are_the_same_with_and_without_a_window(self) -> None:
        """The same calls end in the same rows, and the same last event, with and without window."""
        sync = Transcript(store=self.scoped, hub=self.hub, clock=self.clock, coalesce=0.0)
        ends = []
        for transcript in (self.transcript, sync):
            live = transcript.create(draft())
            for piece in ("let ", "me ", "see"):
                transcript.think(live, piece)
            transcript.say(live, "\nHel")
            transcript.say(live, "lo")
            transcript.tool_call(live, ToolCallPart("c", "ls", "{", finished=False))
            transcript.tool_call(live, ToolCallPart("c", "ls", "{}", finished=True))
            transcript.say(live, "!")
            transcript.finish(live, FinishPart("end_turn"))
            ends.append(self.updates()[-1].payload.parts)
        self.assertEqual(ends[0], ends[1])
        first, second = await self.rows()
        self.assertEqual(first.parts, second.parts)
        self.assertEqual(first.parts, ends[0])
        self.assertEqual(first.text, "Hello!")

    @scenario(203)
    async def test_changes_of_structure_are_facts_that_no_reader_skips(self) -> None:
        """Added and finished calls, ended reasoning and finishes are facts: none is skipped."""
        facts = []
        for change in ("added", "finished", "reasoning", "finish"):
            live = self.transcript.create(draft())
            if change == "reasoning":
                self.transcript.think(live, "hm")
            elif change == "finished":
                self.transcript.tool_call(live, ToolCallPart("c", "ls", "{", finished=False))
            self.hub.log.clear()
            if change == "finish":
                self.transcript.finish(live, FinishPart("end_turn"))
            elif change == "reasoning":
                self.transcript.say(live, "so")
            else:
                done = change == "finished"
                self.transcript.tool_call(live, ToolCallPart("c", "ls", "{}", finished=done))
            facts.append((change, self.updates()[0].growth))
        self.assertEqual(
            facts,
            [("added", False), ("finished", False), ("reasoning", False), ("finish", False)],
        )

    async def test_text_that_follows_a_fact_in_one_window_keeps_it_a_fact(self) -> None:
        live = self.begin()
        self.transcript.tool_call(live, ToolCallPart("c", "ls", "{", finished=False))
        self.transcript.tool_call(live, ToolCallPart("c", "ls", '{"', finished=False))
        self.transcript.tool_call(live, ToolCallPart("c", "ls", '{"a', finished=False))
        self.transcript.say(live, "x")
        self.hub.log.clear()
        await self.clock.advance(HOUR)
        self.assertEqual([event.growth for event in self.updates()], [False])

    async def test_erased_text_is_gone_at_once_everywhere(self) -> None:
        live = self.begin()
        self.transcript.say(live, " try")
        self.transcript.erase(live)
        self.assertEqual([event.payload.parts for event in self.updates()], [[]])
        self.assertEqual((await self.rows())[0].parts, [])
        self.transcript.say(live, "second try")
        self.transcript.finish(live, FinishPart("end_turn"))
        self.assertEqual((await self.rows())[0].text, "second try")


class SynchronousTests(Bench):
    coalesce = 0.0

    @scenario(201)
    async def test_without_a_window_every_piece_is_an_event_and_a_row(self) -> None:
        """Without a window every piece is an event and a row of its own, and no timer is set."""
        live = self.transcript.create(draft())
        self.hub.log.clear()
        saved = []
        for piece in ("a", "b", "c"):
            self.transcript.say(live, piece)
            saved.append((await self.rows())[0].text)
        self.assertEqual([event.text for event in self.updates()], ["a", "ab", "abc"])
        self.assertEqual(saved, ["a", "ab", "abc"])
        self.assertEqual(self.clock.pending, 0)


class KeptTests(Bench):
    """The conversation of a session is kept, and is what a read of all rows would give."""

    def add(self, text: str, role: str = "user") -> LiveMessage:
        parts = (TextPart(text), FinishPart("stop"))
        return self.transcript.create(draft(role, parts))

    async def read(self, session_id: str = SESSION) -> tuple[list[str], int]:
        """The texts of a conversation, and how many rows were read for it."""
        await self.clock.advance(0)  # what is written has been noted
        reading = message_rows.message_from_row
        with mock.patch.object(message_rows, "message_from_row", side_effect=reading) as read:
            _, messages, _ = await self.transcript.conversation(session_id, "")
        return [message.text for message in messages], read.call_count

    async def test_a_row_that_cannot_change_is_read_once(self) -> None:
        for text in "abc":
            self.add(text)
        self.assertEqual(await self.read(), (["a", "b", "c"], 3))
        self.add("d")
        self.assertEqual(await self.read(), (["a", "b", "c", "d"], 1))
        self.assertEqual(await self.read(), (["a", "b", "c", "d"], 0))

    async def test_what_stands_behind_an_open_message_is_read_again(self) -> None:
        self.add("a")
        live = self.transcript.create(draft())
        self.transcript.say(live, "b")
        self.add("c")
        self.assertEqual(await self.read(), (["a", "b", "c"], 3))
        self.transcript.say(live, "b")
        self.assertEqual(await self.read(), (["a", "bb", "c"], 2))
        self.transcript.finish(live, FinishPart("end_turn"))
        self.assertEqual(await self.read(), (["a", "bb", "c"], 2))
        self.assertEqual(await self.read(), (["a", "bb", "c"], 0))

    async def held(self) -> list[bool]:
        """Which messages of the conversation are withheld from models."""
        _, messages, _ = await self.transcript.conversation(SESSION, "")
        return [message.finish.withheld for message in messages if message.finish is not None]

    async def test_a_kept_message_that_changes_after_all_is_read_again(self) -> None:
        first = self.add("a")
        self.add("b")
        await self.read()
        self.transcript.finish(first, FinishPart("stop", withheld=True), write=False)
        self.assertEqual(await self.held(), [True, False], "while it is live")
        self.transcript.flush(first)
        await self.clock.advance(0)
        self.assertEqual(await self.held(), [True, False], "when its row is written")

    async def test_a_message_that_changes_without_a_read_meanwhile_is_read_again(self) -> None:
        first = self.add("a")
        await self.read()
        self.transcript.finish(first, FinishPart("stop", withheld=True))
        await self.clock.advance(0)
        self.assertEqual(await self.held(), [True])

    async def test_an_open_message_of_an_earlier_workspace_is_read_until_it_is_finished(
        self,
    ) -> None:
        message = draft("assistant", (TextPart("a"),))
        await self.store.submit(lambda conn: message_rows.insert_message(conn, SCOPE, message))
        self.assertEqual(await self.read(), (["a"], 1))
        message.parts = [TextPart("ab"), FinishPart("end_turn")]
        await self.store.submit(lambda conn: message_rows.save_message(conn, SCOPE, message))
        self.assertEqual(await self.read(), (["ab"], 1))
        self.assertEqual(await self.read(), (["ab"], 0))

    async def test_a_message_that_changes_during_a_read_is_not_kept_as_it_was(self) -> None:
        live = self.add("a")
        await self.clock.advance(0)
        read = self.scoped.store.read

        async def read_early(work: Any) -> Any:
            found = await read(work)
            self.transcript.finish(live, FinishPart("stop", withheld=True))
            await self.clock.advance(0)  # written, and no longer live
            return found

        with mock.patch.object(self.scoped.store, "read", read_early):
            await self.read()
        self.assertEqual((await self.read())[1], 1)

    async def test_a_deleted_message_is_not_kept(self) -> None:
        self.add("a")
        live = self.add("b")
        await self.read()
        self.transcript.delete(live)
        self.assertEqual((await self.read())[0], ["a"])

    async def test_little_is_kept_and_not_for_long(self) -> None:
        for number in range(KEPT_SESSIONS):
            row = Session(id=f"other-{number}", title="other", created_at=1, updated_at=1)
            await self.scoped.write(sessions.insert_session, row)
        self.add("a")
        await self.read()
        for number in range(KEPT_SESSIONS):
            await self.read(f"other-{number}")
        self.assertEqual((await self.read())[1], 1, "those read later have taken its place")
        await self.clock.advance(KEPT_SECONDS - 1)
        self.assertEqual((await self.read())[1], 0)
        await self.clock.advance(KEPT_SECONDS)
        self.assertEqual((self.clock.pending, (await self.read())[1]), (0, 1))

    async def test_what_is_kept_of_a_session_goes_with_it(self) -> None:
        self.add("a")
        await self.read()
        self.transcript.forget([SESSION])
        self.assertEqual((self.clock.pending, (await self.read())[1]), (0, 1))


class OverHTTPTests(BoundedTestCase):
    @scenario(206)
    async def test_a_read_right_after_a_delta_holds_all_that_was_streamed(self) -> None:
        """A read right after a delta equals what the agent has streamed, window or not."""
        async with LocalDaemon(settings=Settings(coalesce=HOUR)) as daemon:
            anna = await daemon.join()
            session = await anna.session()
            await anna.prompt(session, "go")
            run = await daemon.entered(1)
            await run.say("one")
            seen = await anna.events.wait_for("message", role="assistant", text="one")
            for text, piece in (("one two", " two"), ("one two three", " three")):
                await run.say(piece)
                user, answer = await anna.messages(session)
                self.assertEqual((answer["id"], answer.text), (seen["id"], text))
                self.assertEqual((answer.finish, user.text), ("", "go"))
            run.release()
            done = await anna.events.wait_for("message", finish="end_turn")
            self.assertEqual(done.text, "one two three")
            self.assertEqual((await anna.messages(session))[1].payload, done.payload)

    async def test_deltas_of_one_window_are_one_event_on_the_stream(self) -> None:
        async with LocalDaemon(settings=Settings(coalesce=HOUR)) as daemon:
            anna = await daemon.join()
            session = await anna.session()
            await anna.prompt(session)
            run = await daemon.entered(1)
            for piece in "hello":
                await run.say(piece)
            run.release()
            await anna.events.wait_for("run_complete")
            published = [
                (event.action, event.text, event.finish)
                for event in anna.events.all("message", role="assistant")
            ]
            self.assertEqual(
                published,
                [("created", "", ""), ("updated", "h", ""), ("updated", "hello", "end_turn")],
            )

    async def test_the_end_of_a_turn_flushes_before_run_complete(self) -> None:
        async with LocalDaemon(settings=Settings(coalesce=HOUR)) as daemon:
            anna = await daemon.join()
            session = await anna.session()
            await anna.prompt(session)
            run = await daemon.entered(1)
            await run.say("half a ")
            await run.say("sentence")
            await anna.cancel(session)
            done = await anna.events.wait_for("run_complete")
            last = [event for event in anna.events.seen if event.kind == "message"][-1]
            self.assertEqual((last.text, last.finish), ("half a sentence", "canceled"))
            self.assertEqual((done["text"], done["message_id"]), (last.text, last["id"]))
            self.assertLess(anna.events.seen.index(last), anna.events.seen.index(done))
