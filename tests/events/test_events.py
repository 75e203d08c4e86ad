"""The hub, rule by rule, and a random walk of clients that read slowly, drop and resume."""

from __future__ import annotations

import asyncio
import functools
import json
import random
import unittest
from typing import TYPE_CHECKING, Any
from unittest import mock

from crushlite import events
from crushlite.backlog import Event
from crushlite.errors import IllegalCall
from crushlite.events import Bounds, Hub, Subscriber
from crushlite.protocol.codec import dumps
from crushlite.protocol.messages import FinishPart, Message, TextPart, ToolOutput
from crushlite.protocol.permissions import PermissionRequest
from crushlite.protocol.questions import QuestionBatch
from crushlite.protocol.runs import AgentEvent, RunComplete
from crushlite.testing.fake_clock import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

KEEP_ALIVE = ": keep-alive"


class FakeSink:
    """A connection whose peer reads only when the test calls `read`."""

    def __init__(self, *, high: int = 1 << 30, paused: bool = False) -> None:
        self.writes: list[bytes] = []
        self.unsent = bytearray()
        self.received = bytearray()
        self.high = high
        self.writable = not paused
        self.ended = ""
        self.subscriber: Subscriber | None = None

    def write(self, data: bytes) -> None:
        assert not self.ended, "written to after its end"
        self.writes.append(data)
        self.unsent += data
        if len(self.unsent) > self.high:
            self.writable = False

    @property
    def buffered(self) -> int:
        return len(self.unsent)

    def close(self) -> None:
        assert not self.ended
        self.ended = "close"

    def abort(self) -> None:
        assert not self.ended
        self.ended = "abort"
        self.unsent.clear()

    def read(self, size: int = 1 << 30) -> None:
        """The peer reads; under half of the high-water mark the transport resumes."""
        self.received += self.unsent[:size]
        del self.unsent[:size]
        if not self.writable and not self.ended and len(self.unsent) <= self.high // 2:
            self.writable = True
            assert self.subscriber is not None
            self.subscriber.resumed()

    @property
    def text(self) -> str:
        return b"".join(self.writes).decode()


class BrokenSink(FakeSink):
    def write(self, data: bytes) -> None:
        raise OSError("broken")


class SlowSink(FakeSink):
    """Each write takes so long."""

    def __init__(self, clock: FakeClock, seconds: float) -> None:
        super().__init__()
        self._clock, self._seconds = clock, seconds

    def write(self, data: bytes) -> None:
        super().write(data)
        self._clock._time += self._seconds


def blocks(text: str) -> list[tuple[str, Any]]:
    """An SSE stream as (id or "", data); a comment is its own text, an id alone has data None."""
    answer: list[tuple[str, Any]] = []
    assert not text or text.endswith("\n\n"), "a frame was cut"
    for block in text.split("\n\n")[:-1]:
        number, data = "", None
        for line in block.split("\n"):
            name, _, value = line.partition(": ")
            assert name in ("id", "data", ""), line
            number = value if name == "id" else number
            data = json.loads(value) if name == "data" else data
        answer.append((number, block if block.startswith(":") else data))
    return answer


def label(data: Any) -> str:
    """A short name for an event in a stream or for a published payload."""
    if data is None or isinstance(data, str):
        return str(data)
    inner = data["payload"].get("payload", data["payload"])
    if data["type"] == "message":
        text = "".join(p["data"]["text"] for p in inner["parts"] if p["type"] == "text")
        end = "!" if any(p["type"] == "finish" for p in inner["parts"]) else ""
        return f"{inner['id']}={text}{end}"
    return str(inner.get("run_id") or inner.get("reason") or inner.get("id"))


def labels(text: str) -> list[str]:
    return [label(data) for _, data in blocks(text)]


def name(event: Event) -> str:
    return label(json.loads(event.frame.removeprefix(b"data: ")))


def fact(number: object, padding: int = 0) -> RunComplete:
    return RunComplete(session_id="s", run_id=str(number), text="x" * padding)


def message(text: str, *, ident: str = "m", done: bool = False) -> Message:
    parts = [TextPart(text), FinishPart("stop")] if done else [TextPart(text)]
    return Message(ident, "assistant", "s", list(parts))


def bounded(
    test: Callable[[Any], Coroutine[Any, Any, None]],
) -> Callable[[Any], Coroutine[Any, Any, None]]:
    @functools.wraps(test)
    async def run(self: Any) -> None:
        async with asyncio.timeout(120):
            await test(self)

    return run


class Case(unittest.IsolatedAsyncioTestCase):
    def __init_subclass__(cls) -> None:
        for attribute, value in list(vars(cls).items()):
            if attribute.startswith("test_"):
                setattr(cls, attribute, bounded(value))

    def setUp(self) -> None:
        self.clock = FakeClock()
        self.hub = self.new_hub()

    def new_hub(self, **bounds: Any) -> Hub:
        self.hub = Hub(clock=self.clock, bounds=Bounds(**bounds))
        self.hub.epoch = "e"
        return self.hub

    def stream(
        self, *, paused: bool = False, high: int = 1 << 30, sink: FakeSink | None = None, **how: Any
    ) -> tuple[Subscriber, FakeSink]:
        subscriber = self.hub.subscribe(**how)
        sink = sink or FakeSink(high=high, paused=paused)
        sink.subscriber = subscriber
        subscriber.opened(sink)
        return subscriber, sink

    def fact(self, number: object, padding: int = 0) -> int:
        return self.hub.publish("updated", fact(number, padding))

    def grow(self, text: str, ident: str = "m") -> int:
        return self.hub.publish("updated", message(text, ident=ident), growth=True)

    def finish(self, text: str, ident: str = "m") -> int:
        return self.hub.publish("updated", message(text, ident=ident, done=True))

    async def ticks(self, count: int = 3) -> None:
        for _ in range(count):
            await asyncio.sleep(0)


def queued(subscriber: Subscriber) -> list[str]:
    """The names of the queued events, taken out of the queue."""
    return [name(subscriber.backlog.pop()) for _ in range(len(subscriber.backlog.entries))]


class PublishTest(Case):
    async def test_numbers_start_at_one_and_have_no_gap(self) -> None:
        self.assertEqual(self.hub.current, 0)
        self.assertEqual([self.fact(1), self.grow("a"), self.finish("a")], [1, 2, 3])
        self.assertEqual((self.hub.current, self.hub.floor, self.hub.epoch), (3, 0, "e"))

    async def test_the_epoch_is_random_per_hub_and_hexadecimal(self) -> None:
        one, two = (Hub(clock=self.clock, bounds=Bounds()) for _ in range(2))
        self.assertNotEqual(one.epoch, two.epoch)
        self.assertGreaterEqual(len(one.epoch), 16)
        int(one.epoch, 16)

    async def test_an_event_is_encoded_once_for_all_readers(self) -> None:
        for _ in range(5):
            self.stream()
            self.stream(resume=True)
            self.stream(paused=True)
            self.hub.subscribe()
        with mock.patch.object(events, "dumps", wraps=dumps) as encoder:
            self.fact(1)
        self.assertEqual(encoder.call_count, 1)

    async def test_streams_share_the_very_same_bytes_in_two_variants(self) -> None:
        base = [self.stream()[1] for _ in range(3)]
        tagged = [self.stream(resume=True)[1] for _ in range(3)]
        for number in range(4):
            self.fact(number)
        await self.ticks()
        for sinks, skip in ((base, 0), (tagged, 1)):
            first = sinks[0].writes[skip:]
            self.assertEqual(len(first), 2)
            for sink in sinks[1:]:
                for mine, other in zip(first, sink.writes[skip:], strict=True):
                    self.assertIs(mine, other)

    async def test_a_variant_without_readers_is_not_built(self) -> None:
        self.stream()
        with mock.patch.object(Event, "id_frame", mock.PropertyMock()) as id_frame:
            self.fact(1)
            self.fact(2)
            await self.ticks()
        id_frame.assert_not_called()

    async def test_the_first_event_after_a_silent_tick_is_written_at_once(self) -> None:
        _, sink = self.stream()
        self.fact(1)
        self.assertEqual(labels(sink.text), ["1"])
        await self.ticks()
        self.fact(2)
        self.assertEqual(labels(sink.text), ["1", "2"])

    async def test_later_events_of_a_tick_are_joined_and_written_at_its_end(self) -> None:
        _, sink = self.stream()
        for number in (1, 2, 3):
            self.fact(number)
        self.assertEqual(labels(sink.text), ["1"])
        await self.ticks(1)
        self.assertEqual(len(sink.writes), 2)
        self.assertEqual(labels(sink.text), ["1", "2", "3"])

    async def test_events_that_are_published_together_leave_in_one_write(self) -> None:
        _, sink = self.stream()
        self.hub.publish("updated", fact("1"), more=True)
        self.hub.publish("updated", fact("2"))
        self.assertEqual(sink.writes, [])
        await self.ticks(1)
        self.assertEqual(len(sink.writes), 1)
        self.assertEqual(labels(sink.text), ["1", "2"])

    async def test_a_tick_after_a_busy_tick_is_batched_from_its_first_event(self) -> None:
        _, sink = self.stream()
        self.fact(1)
        self.fact(2)
        await self.ticks(1)
        self.fact(3)
        self.assertEqual(labels(sink.text), ["1", "2"])
        await self.ticks(1)
        self.assertEqual(labels(sink.text), ["1", "2", "3"])

    async def test_a_large_batch_does_not_wait_for_the_end_of_the_tick(self) -> None:
        self.new_hub(bytes=4000)
        _, sink = self.stream()
        for number in range(4):
            self.fact(number, 500)
        self.assertEqual(labels(sink.text), ["0", "1", "2"])

    async def test_a_base_frame_is_one_data_line_and_a_blank_line(self) -> None:
        _, sink = self.stream()
        self.hub.publish("updated", fact("a\nb\r\u2028c"))
        self.assertEqual(sink.text.count("\n"), 2)
        expected = '{"type":"run_complete","payload":{"type":"updated","payload":{'
        self.assertTrue(sink.text.startswith("data: " + expected))
        self.assertTrue(sink.text.endswith("}}}\n\n"))

    async def test_publishing_without_subscribers_is_fine(self) -> None:
        self.assertEqual(self.fact(1), 1)
        self.assertEqual(len(self.hub.subscribers()), 0)

    async def test_a_payload_that_is_no_event_raises_and_takes_no_number(self) -> None:
        _, sink = self.stream()
        with self.assertRaises(TypeError):
            self.hub.publish("updated", object())
        self.assertEqual((self.hub.current, sink.writes), (0, []))

    async def test_only_an_update_of_a_message_can_be_growth(self) -> None:
        for action, payload in (("updated", fact(1)), ("created", message("a"))):
            with self.assertRaises(IllegalCall):
                self.hub.publish(action, payload, growth=True)
        self.assertEqual(self.hub.current, 0)

    async def test_a_published_frame_does_not_follow_its_payload(self) -> None:
        subscriber = self.hub.subscribe()
        payload = message("a")
        self.hub.publish("updated", payload)
        payload.parts.append(TextPart("b"))
        self.assertEqual(queued(subscriber), ["m=a"])

    async def test_statistics_count_what_happened(self) -> None:
        self.stream()
        waiting = self.hub.subscribe()
        self.grow("a")
        self.grow("ab")
        self.assertEqual(
            (self.hub.current, len(self.hub.subscribers()), len(self.hub.waiting)), (2, 2, 1)
        )
        self.assertEqual((self.hub.conflated, self.hub.closed_slow, self.hub.failed), (1, 0, 0))
        event = waiting.backlog.pop()
        self.assertEqual((len(self.hub.ring.entries), self.hub.ring.bytes), (1, event.size))


class ConflationTest(Case):
    async def test_newer_growth_replaces_older_and_goes_to_the_end(self) -> None:
        subscriber = self.hub.subscribe()
        self.grow("a")
        self.fact(1)
        self.grow("ab")
        self.assertEqual(queued(subscriber), ["1", "m=ab"])
        self.assertEqual(self.hub.conflated, 1)

    async def test_a_structural_update_removes_queued_growth_of_that_message(self) -> None:
        subscriber = self.hub.subscribe()
        self.grow("a")
        self.grow("b", "other")
        self.finish("abc")
        self.assertEqual(queued(subscriber), ["other=b", "m=abc!"])

    async def test_a_deleted_message_takes_its_growth_with_it(self) -> None:
        subscriber = self.hub.subscribe()
        self.grow("a")
        self.hub.publish("deleted", message("a"))
        self.assertEqual(len(subscriber.backlog.entries), 1)

    async def test_growth_of_different_messages_is_kept_apart(self) -> None:
        subscriber = self.hub.subscribe()
        self.grow("a", "")
        self.grow("b", "2")
        self.grow("aa", "")
        self.assertEqual(queued(subscriber), ["2=b", "=aa"])

    async def test_structural_updates_and_other_facts_are_never_conflated(self) -> None:
        subscriber = self.hub.subscribe()
        self.hub.publish("created", message(""))
        self.finish("a")
        self.finish("a")
        self.fact(1)
        self.fact(1)
        self.assertEqual(queued(subscriber), ["m=", "m=a!", "m=a!", "1", "1"])

    async def test_growth_after_a_structural_update_does_not_remove_it(self) -> None:
        subscriber = self.hub.subscribe()
        self.finish("a")
        self.grow("ab")
        self.assertEqual(queued(subscriber), ["m=a!", "m=ab"])

    async def test_a_writable_stream_gets_every_growth(self) -> None:
        _, sink = self.stream()
        for text in ("a", "ab", "abc"):
            self.grow(text)
        await self.ticks()
        self.assertEqual(labels(sink.text), ["m=a", "m=ab", "m=abc"])

    async def test_queued_bytes_are_those_of_the_events_left(self) -> None:
        subscriber = self.hub.subscribe()
        self.grow("a" * 100)
        self.grow("b" * 7)
        event = subscriber.backlog.pop()
        self.grow("c" * 7)
        self.assertEqual(subscriber.backlog.bytes, event.size)
        subscriber.backlog.pop()
        self.assertEqual(subscriber.backlog.bytes, 0)


class ObserverTest(Case):
    async def test_an_observer_gets_events_with_their_payloads(self) -> None:
        seen: list[Event] = []
        self.hub.observers.append(seen.append)
        payload = message("a")
        self.hub.publish("updated", payload, growth=True)
        self.fact(2)
        self.assertEqual(seen, [], "the publisher does not wait for it")
        await self.ticks()
        event, last = seen
        self.assertEqual(last.seq, 2)
        self.assertIs(event.payload, payload)
        self.assertEqual((event.seq, event.action, event.kind), (1, "updated", "message"))
        self.assertEqual((event.message, event.growth), ("m", True))
        self.assertEqual(event.id_frame, b"id: e-1\n" + event.frame)
        self.assertEqual(event.size, len(event.id_frame))

    async def test_an_observer_that_raises_reaches_neither_the_publisher_nor_others(self) -> None:
        handler, seen = mock.Mock(), mock.Mock()
        asyncio.get_running_loop().set_exception_handler(handler)
        self.hub.observers += [mock.Mock(side_effect=RuntimeError("observer")), seen]
        self.assertEqual(self.fact(1), 1)
        await self.ticks()
        self.assertEqual((handler.call_count, seen.call_count), (1, 1))


class QueueTest(Case):
    async def test_a_stream_that_opens_late_gets_what_was_published_before_close(self) -> None:
        subscriber = self.hub.subscribe()
        self.fact(1)
        self.fact(2)
        self.hub.close()
        sink = FakeSink()
        subscriber.opened(sink)
        self.assertEqual((labels(sink.text), sink.ended), (["1", "2"], "close"))

    async def test_a_closed_stream_gets_nothing_more(self) -> None:
        subscriber = self.hub.subscribe()
        subscriber.close()
        subscriber.close()
        self.fact(1)
        self.assertEqual((subscriber.closed_reason, len(subscriber.backlog.entries)), ("closed", 0))
        self.assertEqual(len(self.hub.subscribers()), 0)

    async def test_a_stream_that_is_not_opened_is_closed_at_the_bound_of_entries(self) -> None:
        self.new_hub(entries=3)
        subscriber = self.hub.subscribe()
        for number in range(5):
            self.fact(number)
        self.assertEqual(subscriber.closed_reason, "slow")
        self.assertEqual(queued(subscriber), ["0", "1", "2"])
        self.assertEqual(self.hub.closed_slow, 1)

    async def test_a_stream_that_is_not_opened_is_closed_at_the_bound_of_bytes(self) -> None:
        self.new_hub(bytes=1000)
        subscriber = self.hub.subscribe()
        for number in range(9):
            self.fact(number, 200)
        self.assertEqual(subscriber.closed_reason, "slow")
        self.assertLessEqual(subscriber.backlog.bytes, 1000)
        self.assertEqual(queued(subscriber), ["0", "1"])

    async def test_conflation_keeps_a_queue_within_its_bounds(self) -> None:
        self.new_hub(entries=2)
        subscriber = self.hub.subscribe()
        self.fact(1)
        for length in range(50):
            self.grow("a" * length)
        self.assertEqual(subscriber.closed_reason, "")

    async def test_a_stream_that_is_not_opened_has_no_timer(self) -> None:
        self.hub.subscribe()
        self.fact(1)
        self.assertEqual(self.clock.pending, 0)


class StreamTest(Case):
    async def test_what_is_published_between_subscribe_and_opened_is_not_lost(self) -> None:
        subscriber = self.hub.subscribe()
        self.fact(1)
        sink = FakeSink()
        subscriber.opened(sink)
        self.fact(2)
        await self.ticks()
        self.assertEqual(labels(sink.text), ["1", "2"])

    async def test_a_newcomer_never_gets_events_from_before_it(self) -> None:
        _, first = self.stream()
        self.fact(1)
        self.fact(2)
        _, second = self.stream()
        self.assertEqual(labels(first.text), ["1", "2"])
        self.fact(3)
        await self.ticks()
        self.assertEqual(labels(second.text), ["3"])

    async def test_others_have_what_came_before_a_subscription_when_it_begins(self) -> None:
        _, first = self.stream()
        self.fact(1)
        self.fact(2)
        self.hub.subscribe()
        self.assertEqual(labels(first.text), ["1", "2"])

    async def test_a_stream_that_opens_in_the_middle_of_a_batch_gets_nothing_twice(self) -> None:
        self.stream()
        self.fact(1)
        late = self.hub.subscribe()
        self.fact(2)
        sink = FakeSink()
        late.opened(sink)
        self.fact(3)
        await self.ticks()
        self.assertEqual(labels(sink.text), ["2", "3"])

    async def test_a_stream_that_resumes_in_the_middle_of_a_batch_gets_nothing_twice(self) -> None:
        self.stream()
        paused, sink = self.stream(paused=True)
        self.fact(1)
        self.fact(2)
        sink.writable = True
        paused.resumed()
        self.fact(3)
        await self.ticks()
        self.assertEqual(labels(sink.text), ["1", "2", "3"])

    async def test_a_paused_stream_is_not_written_to_and_drains_in_one_write(self) -> None:
        subscriber, sink = self.stream(paused=True)
        for number in (1, 2, 3):
            self.fact(number)
        await self.ticks()
        self.assertEqual(sink.writes, [])
        self.assertGreater(subscriber.backlog.bytes, 0)
        sink.writable = True
        subscriber.resumed()
        self.assertEqual(len(sink.writes), 1)
        self.assertEqual(labels(sink.text), ["1", "2", "3"])
        self.assertEqual(subscriber.backlog.bytes, 0)
        self.assertEqual(subscriber.buffered, len(sink.unsent))  # not taken by the socket yet

    async def test_a_stream_that_pauses_with_a_batch_open_keeps_the_order(self) -> None:
        subscriber, sink = self.stream(resume=True)
        self.fact(1)
        self.fact(2)
        self.grow("a")
        sink.writable = False
        await self.ticks()
        self.fact(3)
        self.grow("ab")
        sink.writable = True
        subscriber.resumed()
        self.fact(4)
        self.assertEqual(labels(sink.text)[1:], ["1", "2", "3", "m=ab", "4"])
        ids = [number for number, _ in blocks(sink.text)]
        self.assertEqual(ids, ["e-0", "e-1", "e-2", "e-4", "e-5", "e-6"])

    async def test_one_paused_stream_does_not_hold_up_another(self) -> None:
        _, paused = self.stream(paused=True)
        _, other = self.stream()
        self.fact(1)
        self.assertEqual((len(paused.writes), len(other.writes)), (0, 1))

    async def test_draining_stops_when_the_sink_pauses_again(self) -> None:
        self.new_hub(bytes=4000)
        subscriber, sink = self.stream(paused=True, high=10)
        for number in range(6):
            self.fact(number, 400)
        sink.writable = True
        subscriber.resumed()
        self.assertEqual(labels(sink.text), ["0", "1"])
        self.assertLess(sink.buffered, 4000 // 4 + 700)
        sink.read()
        sink.read()
        sink.read()
        self.assertEqual(labels(sink.received.decode()), [str(number) for number in range(6)])

    async def test_draining_a_long_queue_into_a_fast_sink_goes_chunk_by_chunk(self) -> None:
        self.new_hub(bytes=4000)
        subscriber, sink = self.stream(paused=True)
        for number in range(6):
            self.fact(number, 400)
        sink.writable = True
        subscriber.resumed()
        self.assertEqual([data.count(b"data: ") for data in sink.writes], [2, 2, 2])

    async def test_a_stream_that_lagged_gets_a_large_frame_itself_and_no_copy(self) -> None:
        for resume in (False, True):
            self.new_hub()
            waiting = self.hub.subscribe()
            subscriber, sink = self.stream(paused=True, resume=resume)
            for number, padding in enumerate((10, 300_000, 20)):
                self.fact(number, padding)
            frames = [waiting.backlog.pop().frame for _ in range(3)]
            sink.writable = True
            subscriber.resumed()
            self.assertTrue(any(data is frames[1] for data in sink.writes))
            self.assertEqual(labels(sink.text)[-3:], ["0", "1", "2"])

    async def test_a_sink_that_fails_before_a_large_frame_gets_no_more(self) -> None:
        subscriber, sink = self.stream(sink=BrokenSink(paused=True))
        self.fact(1, 300_000)
        sink.writable = True
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        subscriber.resumed()
        self.assertEqual((sink.ended, self.hub.failed), ("abort", 1))

    async def test_resumed_with_nothing_queued_or_after_the_end_is_harmless(self) -> None:
        subscriber, sink = self.stream()
        subscriber.resumed()
        subscriber.closed()
        subscriber.resumed()
        self.assertEqual(sink.writes, [])

    async def test_a_base_stream_has_only_data_lines_and_no_timer(self) -> None:
        _, sink = self.stream()
        self.fact(1)
        self.assertEqual(self.clock.pending, 0)
        await self.clock.advance(100)
        self.assertEqual(labels(sink.text), ["1"])
        self.assertEqual(blocks(sink.text)[0][0], "")


class BoundTest(Case):
    async def test_a_stream_past_its_bound_of_entries_is_aborted_and_counted(self) -> None:
        self.new_hub(entries=3)
        subscriber, sink = self.stream(paused=True)
        for number in range(3):
            self.fact(number)
        self.assertEqual((subscriber.closed_reason, sink.ended), ("", ""))
        self.fact(3)
        self.assertEqual((subscriber.closed_reason, sink.ended), ("slow", "abort"))
        self.assertEqual(len(subscriber.backlog.entries), 0)
        self.assertEqual(self.hub.closed_slow, 1)
        self.assertEqual(self.clock.pending, 0)

    async def test_the_transport_buffer_counts(self) -> None:
        self.new_hub(bytes=3000)
        subscriber, sink = self.stream(high=500)
        self.fact(1, 2000)
        self.fact(2, 200)
        await self.ticks()
        self.fact(3, 200)
        self.assertEqual((subscriber.closed_reason, len(subscriber.backlog.entries)), ("", 2))
        self.assertGreater(subscriber.buffered, 2000)
        self.fact(4, 500)
        self.assertEqual((subscriber.closed_reason, sink.ended), ("slow", "abort"))

    async def test_an_oversized_event_is_admitted_to_an_empty_queue(self) -> None:
        self.new_hub(bytes=1000)
        subscriber, sink = self.stream(paused=True)
        self.fact(1, 5000)
        sink.writable = True
        subscriber.resumed()
        self.assertEqual(labels(sink.text), ["1"])

    async def test_an_oversized_event_is_not_admitted_behind_another(self) -> None:
        self.new_hub(bytes=1000)
        subscriber, _ = self.stream(paused=True)
        self.fact(1)
        self.fact(2, 5000)
        self.assertEqual(subscriber.closed_reason, "slow")

    async def test_an_oversized_event_in_the_queue_leaves_room_for_what_follows(self) -> None:
        self.new_hub(bytes=1000)
        subscriber, sink = self.stream(paused=True, high=100)
        self.fact(1, 5000)
        self.fact(2)
        self.fact(3)
        self.assertEqual(subscriber.closed_reason, "")
        sink.writable = True
        subscriber.resumed()
        self.assertEqual(labels(sink.text), ["1"])
        self.fact(4)
        self.assertEqual(subscriber.closed_reason, "")
        sink.read()
        sink.read()
        self.assertEqual(labels(sink.text), ["1", "2", "3", "4"])

    async def test_an_oversized_event_in_the_transport_leaves_room_for_what_follows(self) -> None:
        self.new_hub(bytes=1000)
        slow, _ = self.stream(high=100)
        fast, other = self.stream()
        self.fact(1, 5000)
        for number in range(2, 5):
            self.fact(number)
            await self.ticks()
        self.assertEqual((slow.closed_reason, fast.closed_reason), ("", ""))
        self.fact(5, 800)
        self.assertEqual((slow.closed_reason, len(other.writes)), ("slow", 5))

    async def test_room_for_an_oversized_event_is_taken_back_when_it_was_sent(self) -> None:
        self.new_hub(bytes=1000)
        subscriber, sink = self.stream(high=100)
        self.fact(1, 5000)
        sink.read()
        await self.ticks()
        self.fact(2, 800)
        await self.ticks()
        self.fact(3)
        self.fact(4)
        self.assertEqual((subscriber.closed_reason, sink.ended), ("slow", "abort"))

    async def test_a_batch_that_overflows_a_pausing_stream_closes_it_once(self) -> None:
        self.new_hub(entries=2)
        subscriber, sink = self.stream()
        for number in range(6):
            self.fact(number)
        sink.writable = False
        await self.ticks()
        self.assertEqual((subscriber.closed_reason, sink.ended), ("slow", "abort"))
        self.assertEqual(self.hub.closed_slow, 1)
        self.assertEqual(len(subscriber.backlog.entries), 0)

    async def test_a_stream_that_overflows_before_it_opens_ends_cleanly_after_its_queue(
        self,
    ) -> None:
        self.new_hub(entries=2)
        subscriber = self.hub.subscribe()
        for number in range(4):
            self.fact(number)
        sink = FakeSink()
        subscriber.opened(sink)
        self.assertEqual((labels(sink.text), sink.ended), (["0", "1"], "close"))
        self.assertEqual(subscriber.closed_reason, "slow")

    async def test_no_progress_while_something_waits_closes_the_stream(self) -> None:
        subscriber, sink = self.stream(paused=True)
        await self.clock.advance(100)
        self.fact(1)
        sink.unsent += b"x" * 100
        await self.clock.advance(19.9)
        self.assertEqual(subscriber.closed_reason, "")
        await self.clock.advance(0.2)
        self.assertEqual((subscriber.closed_reason, sink.ended), ("slow", "abort"))
        self.assertEqual((self.hub.closed_slow, self.clock.pending), (1, 0))

    async def test_a_shrinking_transport_buffer_is_progress(self) -> None:
        subscriber, sink = self.stream()
        sink.unsent += b"x" * 100
        sink.writable = False
        self.fact(1)
        for _ in range(10):
            await self.clock.advance(15)
            del sink.unsent[:1]
        self.assertEqual(subscriber.closed_reason, "")
        await self.clock.advance(25)
        self.assertEqual(subscriber.closed_reason, "slow")

    async def test_resumed_is_progress_even_if_the_queue_does_not_empty(self) -> None:
        self.new_hub(bytes=4000)
        subscriber, sink = self.stream(paused=True, high=10)
        for number in range(6):
            self.fact(number, 400)
        await self.clock.advance(19)
        sink.writable = True
        subscriber.resumed()
        await self.clock.advance(19)
        self.assertEqual(subscriber.closed_reason, "")
        await self.clock.advance(2)
        self.assertEqual(subscriber.closed_reason, "slow")

    async def test_a_stream_that_has_drained_is_no_longer_watched(self) -> None:
        subscriber, sink = self.stream(paused=True)
        self.fact(1)
        self.assertEqual(self.clock.pending, 1)
        sink.writable = True
        subscriber.resumed()
        self.assertEqual(self.clock.pending, 0)

    async def test_tiny_bounds_still_deliver_one_event_at_a_time(self) -> None:
        self.new_hub(entries=1, bytes=1)
        subscriber, sink = self.stream(paused=True)
        self.fact(1)
        sink.writable = True
        subscriber.resumed()
        self.fact(2)
        self.assertEqual(labels(sink.text), ["1", "2"])
        self.assertEqual((len(self.hub.ring.entries), self.hub.floor), (0, 2))

    async def test_the_default_bounds_are_those_of_the_promise(self) -> None:
        bounds = Bounds()
        self.assertEqual((bounds.entries, bounds.bytes), (4096, 8 * 1024 * 1024))
        self.assertEqual((bounds.ring_entries, bounds.ring_bytes), (2048, 4 * 1024 * 1024))
        self.assertEqual((bounds.stall, bounds.keepalive), (20.0, 15.0))


class EndTest(Case):
    async def test_closing_the_hub_ends_streams_after_what_was_published(self) -> None:
        base, sink = self.stream()
        tagged, other = self.stream(resume=True)
        self.fact(1)
        self.fact(2)
        self.hub.close()
        self.assertEqual((labels(sink.text), sink.ended), (["1", "2"], "close"))
        self.assertEqual((labels(other.text)[1:], other.ended), (["1", "2"], "close"))
        self.assertEqual((base.closed_reason, tagged.closed_reason), ("hub", "hub"))
        await self.ticks()
        self.assertEqual(self.clock.pending, 0)
        self.assertEqual(len(self.hub.subscribers()), 0)

    async def test_publishing_to_a_closed_hub_does_nothing_and_returns_zero(self) -> None:
        self.fact(1)
        self.hub.close()
        self.hub.close()
        self.assertEqual((self.fact(2), self.hub.current), (0, 1))

    async def test_a_closed_hub_gives_a_closed_stream(self) -> None:
        self.hub.close()
        subscriber = self.hub.subscribe(last_id="e-0")
        self.assertEqual(subscriber.closed_reason, "hub")
        called = mock.Mock()
        subscriber.when_closed = called
        sink = FakeSink()
        subscriber.opened(sink)
        await self.ticks()
        self.assertEqual((sink.writes, sink.ended, called.call_count), ([], "close", 1))

    async def test_a_paused_stream_of_a_closed_hub_still_gets_its_queue(self) -> None:
        subscriber, sink = self.stream(paused=True)
        self.fact(1)
        self.hub.close()
        self.assertEqual((sink.ended, subscriber.closed_reason), ("", "hub"))
        sink.writable = True
        subscriber.resumed()
        self.assertEqual((labels(sink.text), sink.ended), (["1"], "close"))
        self.assertEqual(self.clock.pending, 0)

    async def test_a_dead_stream_of_a_closed_hub_is_aborted_in_the_end(self) -> None:
        subscriber, sink = self.stream(paused=True)
        self.fact(1)
        self.hub.close()
        await self.clock.advance(20)
        self.assertEqual((sink.ended, subscriber.closed_reason), ("abort", "hub"))
        self.assertEqual(self.clock.pending, 0)

    async def test_closing_one_stream_flushes_it_and_leaves_the_others(self) -> None:
        subscriber, sink = self.stream()
        _, other = self.stream()
        self.fact(1)
        self.fact(2)
        subscriber.close()
        self.fact(3)
        await self.ticks()
        self.assertEqual((labels(sink.text), sink.ended), (["1", "2"], "close"))
        self.assertEqual(labels(other.text), ["1", "2", "3"])

    async def test_a_peer_that_leaves_is_forgotten_at_once(self) -> None:
        subscriber, sink = self.stream(paused=True, resume=True)
        self.fact(1)
        subscriber.closed()
        self.fact(2)
        self.assertEqual((subscriber.closed_reason, sink.ended), ("peer", ""))
        self.assertEqual((len(subscriber.backlog.entries), self.clock.pending), (0, 0))
        self.assertEqual(len(self.hub.subscribers()), 0)

    async def test_when_closed_is_called_exactly_once_for_every_reason(self) -> None:
        self.new_hub(entries=2)

        def overflow(_: Subscriber) -> None:
            for number in range(4):
                self.fact(number)

        def both(subscriber: Subscriber) -> None:
            subscriber.close()
            subscriber.closed()

        endings: list[tuple[str, Callable[[Subscriber], object]]] = [
            ("slow", overflow),
            ("closed", both),
            ("peer", Subscriber.closed),
            ("hub", lambda _: self.hub.close()),
        ]
        for reason, end in endings:
            with self.subTest(reason):
                subscriber, _ = self.stream(paused=True)
                called = mock.Mock()
                subscriber.when_closed = called
                end(subscriber)
                self.assertEqual(called.call_count, 0)
                await self.ticks()
                subscriber.closed()
                await self.ticks()
                self.assertEqual((called.call_count, subscriber.closed_reason), (1, reason))

    async def test_a_callback_that_raises_does_not_reach_the_publisher(self) -> None:
        self.new_hub(entries=1)
        handler = mock.Mock()
        asyncio.get_running_loop().set_exception_handler(handler)
        subscriber = self.hub.subscribe()
        subscriber.when_closed = mock.Mock(side_effect=RuntimeError("owner"))
        self.fact(1)
        self.assertEqual(self.fact(2), 2)
        await self.ticks()
        self.assertEqual(handler.call_count, 1)

    async def test_a_sink_that_raises_costs_only_its_own_stream(self) -> None:
        handler = mock.Mock()
        asyncio.get_running_loop().set_exception_handler(handler)
        bad, sink = self.stream(sink=BrokenSink())
        paused, stuck = self.stream(sink=BrokenSink(paused=True))
        _, good = self.stream()
        self.assertEqual(self.fact(1), 1)
        stuck.writable = True
        paused.resumed()
        self.assertEqual((bad.closed_reason, sink.ended), ("failed", "abort"))
        self.assertEqual((paused.closed_reason, stuck.ended), ("failed", "abort"))
        self.assertEqual(labels(good.text), ["1"])
        self.assertEqual((self.hub.failed, handler.call_count), (2, 2))

    async def test_a_sink_that_fails_at_the_batch_before_its_own_resumption_is_left_alone(
        self,
    ) -> None:
        asyncio.get_running_loop().set_exception_handler(mock.Mock())
        subscriber, sink = self.stream()
        self.fact(1)
        self.fact(2)
        with mock.patch.object(sink, "write", side_effect=OSError("broken")):
            subscriber.resumed()
        self.assertEqual((subscriber.closed_reason, sink.ended), ("failed", "abort"))

    async def test_a_stream_ended_while_others_are_written_to_is_left_alone(self) -> None:
        class Killer(FakeSink):
            def write(self, data: bytes) -> None:
                victim.closed()

        self.stream(sink=Killer())
        victim, sink = self.stream()
        self.fact(1)
        self.assertEqual(sink.writes, [])

    async def test_a_sink_may_report_its_end_from_inside_close_and_abort(self) -> None:
        class Eager(FakeSink):
            def close(self) -> None:
                super().close()
                assert self.subscriber is not None
                self.subscriber.closed()

            def abort(self) -> None:
                super().abort()
                assert self.subscriber is not None
                self.subscriber.closed()

        self.new_hub(entries=1)
        slow, sink = self.stream(sink=Eager(paused=True))
        called = slow.when_closed = mock.Mock()
        self.fact(1)
        self.fact(2)
        open_, other = self.stream(sink=Eager())
        self.hub.close()
        await self.ticks()
        self.assertEqual((slow.closed_reason, open_.closed_reason), ("slow", "hub"))
        self.assertEqual((sink.ended, other.ended, called.call_count), ("abort", "close", 1))


class RestTest(Case):
    """A batch that took long to write is followed by a rest, in which events are collected."""

    def many(self, count: int = 32, seconds: float = 0.001) -> FakeSink:
        """Streams to which a batch is written in so many seconds; returns the last."""
        each = seconds / count
        return [self.stream(sink=SlowSink(self.clock, each))[1] for _ in range(count)][-1]

    async def test_events_in_the_rest_after_a_long_batch_leave_together(self) -> None:
        sink = self.many()
        self.fact(1)
        self.assertEqual(len(sink.writes), 1, "at once, after a silence")
        for number in (2, 3, 4):
            await self.ticks()
            self.fact(number)
        await self.ticks()
        self.assertEqual(len(sink.writes), 1)
        await self.clock.advance(0.0079)
        self.assertEqual(len(sink.writes), 1)
        await self.clock.advance(0.0002)
        self.assertEqual([labels(data.decode()) for data in sink.writes], [["1"], ["2", "3", "4"]])
        await self.clock.advance(0.009)
        self.fact(5)
        self.assertEqual(len(sink.writes), 3, "the rest is over")

    async def test_no_rest_is_longer_than_ten_milliseconds(self) -> None:
        sink = self.many(seconds=0.1)
        self.fact(1)
        await self.ticks()
        self.fact(2)
        await self.clock.advance(0.0101)
        self.assertEqual(labels(sink.text), ["1", "2"])

    async def test_who_comes_in_a_rest_gets_what_was_published_before_and_after_it_once(
        self,
    ) -> None:
        sink = self.many()
        for number in (1, 2):
            self.fact(number)
            await self.ticks()
        _, late = self.stream()
        self.fact(3)
        await self.clock.advance(0.02)
        self.assertEqual((labels(sink.text), labels(late.text)), (["1", "2", "3"], ["3"]))
        self.assertEqual(self.clock.pending, 0)

    async def test_the_end_of_the_hub_does_not_wait_for_a_rest(self) -> None:
        sink = self.many()
        for number in (1, 2):
            self.fact(number)
            await self.ticks()
        self.hub.close()
        self.assertEqual((labels(sink.text), sink.ended), (["1", "2"], "close"))

    async def test_few_streams_have_no_rest_however_long_their_writes_take(self) -> None:
        sink = self.many(31, seconds=0.1)
        for number in range(5):
            self.fact(number)
            await self.ticks()
        self.assertEqual((len(sink.writes), self.clock.pending), (5, 0))


class ResumeTest(Case):
    def resumed(self, last_id: str, **how: Any) -> list[tuple[str, str]]:
        _, sink = self.stream(last_id=last_id, **how)
        return [(number, label(data)) for number, data in blocks(sink.text)]

    async def test_a_resume_stream_opens_with_the_current_id_alone(self) -> None:
        self.fact(1)
        _, sink = self.stream(resume=True)
        self.assertEqual(sink.text, "id: e-1\n\n")

    async def test_events_of_a_resume_stream_carry_ids(self) -> None:
        _, sink = self.stream(resume=True)
        self.fact(1)
        opening, event = blocks(sink.text)
        self.assertEqual((opening, event[0]), (("e-0", None), "e-1"))
        self.assertIn("id: e-1\ndata: {", sink.text)

    async def test_a_good_id_replays_what_came_after_it(self) -> None:
        for number in (1, 2, 3):
            self.fact(number)
        self.assertEqual(self.resumed("e-1"), [("e-1", "None"), ("e-2", "2"), ("e-3", "3")])
        self.assertEqual(self.resumed("e-3"), [("e-3", "None")])
        self.assertEqual(self.resumed("e-0")[1], ("e-1", "1"))

    async def test_a_replay_is_followed_by_live_events_without_gap_or_duplicate(self) -> None:
        self.stream()
        self.fact(1)
        self.fact(2)
        subscriber = self.hub.subscribe(last_id="e-0")
        self.fact(3)
        sink = FakeSink()
        subscriber.opened(sink)
        self.fact(4)
        await self.ticks()
        ids = [number for number, _ in blocks(sink.text)]
        self.assertEqual(ids, ["e-0", "e-1", "e-2", "e-3", "e-4"])

    async def test_the_ring_conflates_without_moving_the_floor(self) -> None:
        self.grow("a")
        self.fact(1)
        self.grow("ab")
        self.grow("b", "other")
        self.finish("b", "other")
        self.assertEqual(self.hub.floor, 0)
        expected = [("e-0", "None"), ("e-2", "1"), ("e-3", "m=ab"), ("e-5", "other=b!")]
        self.assertEqual(self.resumed("e-0"), expected)
        self.assertEqual(self.resumed("e-1"), [("e-1", "None"), *expected[1:]])

    async def test_the_ring_keeps_half_the_entries_and_the_floor_follows(self) -> None:
        self.new_hub(entries=8)
        for number in range(1, 11):
            self.fact(number)
        self.assertEqual((len(self.hub.ring.entries), self.hub.floor), (4, 6))
        self.assertEqual([event for _, event in self.resumed("e-6")], ["None", "7", "8", "9", "10"])
        self.assertIn("too old", self.resumed("e-5")[0][1])

    async def test_the_ring_keeps_half_the_bytes(self) -> None:
        self.new_hub(bytes=2000)
        for number in range(1, 11):
            self.fact(number, 200)
        self.assertLessEqual(self.hub.ring.bytes, 1000)
        self.assertEqual(self.hub.floor, 10 - len(self.hub.ring.entries))
        self.assertEqual(len(self.hub.ring.entries), 2)

    async def test_an_event_too_big_for_the_ring_empties_it(self) -> None:
        self.new_hub(bytes=2000)
        self.fact(1)
        self.fact(2, 1500)
        self.assertEqual((self.hub.floor, len(self.hub.ring.entries)), (2, 0))
        self.assertEqual(self.hub.ring.bytes, 0)
        self.fact(3)
        self.assertEqual(self.resumed("e-2"), [("e-2", "None"), ("e-3", "3")])
        self.assertIn("too old", self.resumed("e-1")[0][1])

    async def test_a_full_replay_fits_into_a_new_queue(self) -> None:
        self.new_hub(entries=10, bytes=3000)
        for number in range(50):
            self.fact(number, 150)
        subscriber = self.hub.subscribe(last_id=f"e-{self.hub.floor}")
        self.fact("live")
        self.assertEqual(subscriber.closed_reason, "")
        self.assertEqual(queued(subscriber)[-2:], ["49", "live"])

    async def test_a_bad_id_gives_one_resync_with_the_current_id_and_then_live_events(self) -> None:
        self.new_hub(entries=4)
        for number in range(1, 5):
            self.fact(number)
        bad = {
            "f-3": "unknown epoch",
            "e-1": "too old",
            "e-999": "from the future",
            "e-99999999999999999999": "malformed",
        }
        odd = ("", "e", "e-", "-3", "e-x", "e--3", "e-03", "e-+3", "e-3 ", "e-³", "e-3\n", "x" * 99)
        bad |= dict.fromkeys(odd, "malformed")
        bad["e--3"] = "unknown epoch"
        for last_id, reason in bad.items():
            with self.subTest(last_id):
                _, sink = self.stream(last_id=last_id)
                self.fact("live")
                await self.ticks()
                resync, live = blocks(sink.text)
                self.assertEqual(resync[0], f"e-{self.hub.current - 1}")
                self.assertEqual(resync[1]["type"], "resync")
                self.assertEqual(list(resync[1]["payload"]), ["reason"])
                self.assertIn(reason, resync[1]["payload"]["reason"])
                self.assertEqual(label(live[1]), "live")

    async def test_the_next_number_is_from_the_future(self) -> None:
        self.fact(1)
        self.assertIn("from the future", self.resumed("e-2")[0][1])

    async def test_a_resync_of_a_fresh_hub_carries_the_id_zero(self) -> None:
        (resync,) = self.resumed("other-7")
        self.assertEqual(resync[0], "e-0")

    async def test_the_current_id_of_a_resync_comes_only_together_with_it(self) -> None:
        # Cut off after the id alone, a client would resume from it and miss the gap.
        _, sink = self.stream(last_id="bad")
        self.assertTrue(sink.text.startswith('id: e-0\ndata: {"type":"resync"'))

    async def test_resume_without_an_id_neither_replays_nor_resyncs(self) -> None:
        self.fact(1)
        _, sink = self.stream(resume=True)
        self.assertEqual(labels(sink.text), ["None"])

    async def test_the_opening_is_not_lost_on_a_paused_sink(self) -> None:
        subscriber, sink = self.stream(resume=True, paused=True)
        sink.writable = True
        self.fact(1)
        self.assertEqual(sink.writes, [])
        subscriber.resumed()
        self.assertEqual([number for number, _ in blocks(sink.text)], ["e-0", "e-1"])

    async def test_a_replay_and_a_resync_are_queued_until_the_stream_opens(self) -> None:
        self.fact(1)
        self.assertEqual(queued(self.hub.subscribe(last_id="e-0")), ["1"])
        event = self.hub.subscribe(last_id="x-0").backlog.pop()
        self.assertEqual((event.kind, event.seq), ("resync", 1))


class PendingTest(Case):
    open_requests: list[object] = [QuestionBatch(id="q"), PermissionRequest(id="p")]

    def pending(self) -> list[object]:
        return list(self.open_requests)

    async def test_open_requests_are_shown_to_a_newcomer_before_live_events(self) -> None:
        _, sink = self.stream(pending=self.pending)
        self.fact(1)
        self.assertEqual(labels(sink.text), ["q", "p", "1"])

    async def test_open_requests_carry_no_id_and_follow_the_replay(self) -> None:
        self.fact(1)
        _, sink = self.stream(last_id="e-0", pending=self.pending)
        self.fact(2)
        got = [(number, label(data)) for number, data in blocks(sink.text)]
        self.assertEqual(got, [("e-0", "None"), ("e-1", "1"), ("", "q"), ("", "p"), ("e-2", "2")])

    async def test_open_requests_follow_a_resync(self) -> None:
        _, sink = self.stream(last_id="bad", pending=self.pending)
        self.assertEqual(labels(sink.text)[1:], ["q", "p"])

    async def test_a_request_that_the_replay_held_is_not_shown_twice(self) -> None:
        self.hub.publish("created", self.open_requests[1])
        _, replayed = self.stream(last_id="e-0", pending=self.pending)
        self.assertEqual(labels(replayed.text), ["None", "p", "q"])
        _, later = self.stream(last_id="e-1", pending=self.pending)
        self.assertEqual(labels(later.text), ["None", "q", "p"])

    async def test_open_requests_are_shown_even_if_they_exceed_the_bounds(self) -> None:
        self.new_hub(entries=1, bytes=100)
        subscriber, sink = self.stream(pending=self.pending)
        self.assertEqual((labels(sink.text), subscriber.closed_reason), (["q", "p"], ""))

    async def test_an_open_request_is_outside_the_sequence(self) -> None:
        event = self.hub.subscribe(pending=self.pending).backlog.pop()
        self.assertEqual((event.seq, event.id_frame), (0, event.frame))
        self.assertEqual(event.action, "created")

    async def test_a_failing_source_of_requests_leaves_no_subscriber_behind(self) -> None:
        with self.assertRaises(LookupError):
            self.hub.subscribe(pending=mock.Mock(side_effect=LookupError))
        self.assertEqual(len(self.hub.subscribers()), 0)


class ToolOutputTest(Case):
    """The output of a running tool: not in the base protocol, so only for streams with ids."""

    def output(self, text: str, call: str = "c") -> int:
        return self.hub.publish("updated", ToolOutput("s", call, text), growth=True)

    async def test_streams_with_ids_get_it_and_base_streams_nothing_at_all(self) -> None:
        _, base = self.stream()
        _, tagged = self.stream(resume=True)
        self.output("one")
        self.fact(2)
        await self.ticks()
        self.assertNotIn("tool_output", base.text)
        self.assertEqual([data["type"] for _, data in blocks(base.text)], ["run_complete"])
        kinds = [data["type"] for _, data in blocks(tagged.text) if data is not None]
        self.assertEqual(kinds, ["tool_output", "run_complete"])
        self.assertIn("id: e-1\ndata: ", tagged.text)

    async def test_a_retry_is_told_to_streams_with_ids_only(self) -> None:
        _, base = self.stream()
        _, tagged = self.stream(resume=True)
        self.hub.publish("created", AgentEvent("retry", "s", progress="retrying in 4 s"))
        self.hub.publish("created", AgentEvent("agent_finished", "s"))
        await self.ticks()
        heard = [
            [data["payload"]["payload"]["type"] for _, data in blocks(sink.text) if data]
            for sink in (base, tagged)
        ]
        self.assertEqual(heard, [["agent_finished"], ["retry", "agent_finished"]])

    async def test_a_newer_output_of_a_call_replaces_the_one_that_waits(self) -> None:
        _, lagging = self.stream(resume=True, paused=True)
        _, base = self.stream(paused=True)
        for text in ("a", "ab", "abc"):
            self.output(text)
            self.output(text, call="other")
        for sink in (lagging, base):
            sink.writable = True
            assert sink.subscriber is not None
            sink.subscriber.resumed()
        shown = [data["payload"]["payload"] for _, data in blocks(lagging.text) if data is not None]
        self.assertEqual([item["output"] for item in shown], ["abc", "abc"])
        self.assertEqual(base.text, "")

    async def test_an_observer_gets_it(self) -> None:
        seen: list[Event] = []
        self.hub.observers.append(seen.append)
        self.output("one")
        await self.ticks()
        (event,) = seen
        self.assertEqual((event.kind, event.frame), ("tool_output", b""))


class KeepAliveTest(Case):
    async def test_an_idle_resume_stream_gets_a_comment_every_period(self) -> None:
        _, sink = self.stream(resume=True)
        await self.clock.advance(14.9)
        self.assertEqual(labels(sink.text), ["None"])
        await self.clock.advance(0.1)
        self.assertEqual(labels(sink.text), ["None", KEEP_ALIVE])
        await self.clock.advance(30)
        self.assertEqual(labels(sink.text)[1:], [KEEP_ALIVE] * 3)

    async def test_an_event_postpones_the_comment(self) -> None:
        _, sink = self.stream(resume=True)
        await self.clock.advance(10.1)
        self.fact(1)
        await self.clock.advance(14.8)
        self.assertEqual(labels(sink.text), ["None", "1"])
        await self.clock.advance(0.3)
        self.assertEqual(labels(sink.text), ["None", "1", KEEP_ALIVE])

    async def test_a_paused_stream_gets_no_comment(self) -> None:
        subscriber, sink = self.stream(resume=True)
        sink.writable = False
        await self.clock.advance(40)
        self.assertEqual(labels(sink.text), ["None"])
        sink.writable = True
        subscriber.resumed()
        await self.clock.advance(15)
        self.assertEqual(labels(sink.text), ["None", KEEP_ALIVE])

    async def test_a_stream_with_a_queue_gets_no_comment(self) -> None:
        _, sink = self.stream(resume=True, paused=True)
        self.fact(1)
        await self.clock.advance(19)
        self.assertEqual(sink.writes, [])

    async def test_a_sink_that_fails_at_a_comment_ends_its_stream(self) -> None:
        asyncio.get_running_loop().set_exception_handler(mock.Mock())
        subscriber, sink = self.stream(resume=True)
        with mock.patch.object(sink, "write", side_effect=OSError("broken")):
            await self.clock.advance(15)
        self.assertEqual((subscriber.closed_reason, sink.ended), ("failed", "abort"))
        self.assertEqual(self.clock.pending, 0)

    async def test_no_timer_is_left_after_any_end(self) -> None:
        for end in (Subscriber.close, Subscriber.closed, lambda _: self.hub.close()):
            subscriber, _ = self.stream(resume=True)
            self.assertEqual(self.clock.pending, 1)
            end(subscriber)
            self.assertEqual(self.clock.pending, 0)


class Client:
    """A reader that keeps its state across connections, and checks every event that it gets."""

    deltas = False

    def __init__(self, world: World, *, resume: bool) -> None:
        self.world = world
        self.resume = resume
        self.last_id: str | None = None
        self.facts = 0  # how many of the published facts it has got
        self.seq = 0
        self.texts: dict[str, str] = {}
        self.resyncs = 0
        self.connect()

    def connect(self) -> None:
        self.parsed = 0
        if not self.resume or self.last_id is None:
            self.snapshot(self.world.hub.current)  # what a client reads over REST when it starts
        self.subscriber = self.world.hub.subscribe(
            resume=self.resume, deltas=self.deltas, last_id=self.last_id
        )
        self.sink = FakeSink(high=self.world.random.choice((1, 300, 3000)))
        self.sink.subscriber = self.subscriber

    def snapshot(self, seq: int) -> None:
        self.seq = seq
        self.facts = sum(1 for number, _ in self.world.facts if number <= seq)
        self.texts = self.world.texts_at(seq)

    def open(self) -> None:
        if self.subscriber.sink is None and not self.gone:
            self.subscriber.opened(self.sink)

    @property
    def gone(self) -> bool:
        return bool(self.subscriber.closed_reason)

    def read(self, size: int) -> None:
        self.sink.read(size)
        whole = self.sink.received.rfind(b"\n\n", self.parsed)
        if whole >= 0:
            text = self.sink.received[self.parsed : whole + 2].decode()
            self.parsed = whole + 2
            for ident, data in blocks(text):
                self.take(ident, data)

    def take(self, ident: str, data: Any) -> None:
        assert bool(ident) == self.resume
        self.last_id = ident or None
        if data is None:
            return
        what = label(data)
        seq = int(ident.removeprefix("e-")) if ident else self.world.number_of(what, self.seq)
        if data["type"] == "resync":
            self.resyncs += 1
            assert seq >= self.seq
            self.snapshot(seq)
            return
        assert seq > self.seq, "numbers must increase"
        self.seq = seq
        growth = data["type"] == "message" and not what.endswith("!")
        if not growth:
            # It must be the next fact: same order for all, no gap, no duplicate.
            assert self.world.facts[self.facts] == (seq, what), (what, seq)
            self.facts += 1
        if data["type"] == "message":
            ident, _, text = what.rstrip("!").partition("=")
            assert len(text) >= len(self.texts.get(ident, "")), "a text got shorter"
            self.texts[ident] = text

    def check_memory(self, bounds: Bounds, largest: int) -> None:
        assert len(self.subscriber.backlog.entries) <= bounds.entries
        if len(self.subscriber.backlog.entries) > 1:
            assert self.subscriber.backlog.bytes + self.subscriber.buffered <= bounds.bytes
        direct = self.sink.high + self.world.hub.chunk + largest
        assert self.subscriber.buffered <= max(direct, bounds.bytes)


class World:
    bounds = Bounds(entries=24, bytes=6000)
    largest = 4000

    def __init__(self, seed: int, kind: type[Client] = Client) -> None:
        self.deltas = 0  # that were received
        self.random = random.Random(seed)
        self.clock = FakeClock()
        self.hub = Hub(clock=self.clock, bounds=self.bounds)
        self.hub.epoch = "e"
        self.facts: list[tuple[int, str]] = []
        self.history: list[tuple[int, str]] = []
        self.texts: list[tuple[int, str, str]] = []
        self.live: dict[str, str] = {}
        self.clients = [
            (Client if number == 0 else kind)(self, resume=number != 0) for number in range(4)
        ]

    def texts_at(self, seq: int) -> dict[str, str]:
        return {ident: text for number, ident, text in self.texts if number <= seq}

    def number_of(self, what: str, after: int) -> int:
        return next(seq for seq, known in self.history if known == what and seq > after)

    def publish(self) -> None:
        kind = self.random.choice(("fact", "fact", "grow", "grow", "grow", "finish", "large"))
        if kind in ("fact", "large"):
            padding = self.largest - 200 if kind == "large" and self.random.random() < 0.1 else 0
            what = f"f{len(self.facts)}"
            seq = self.hub.publish("updated", fact(what, padding))
            self.facts.append((seq, what))
        else:
            ident = self.random.choice("abc")
            text = self.live[ident] = self.live.get(ident, "") + self.random.choice("xyz")
            done = kind == "finish"
            payload = message(text, ident=ident, done=done)
            seq = self.hub.publish("updated", payload, growth=not done)
            what = f"{ident}={text}{'!' if done else ''}"
            self.texts.append((seq, ident, text))
            if done:
                self.facts.append((seq, what))
        self.history.append((seq, what))

    def act(self) -> None:
        dice = self.random.random()
        client = self.random.choice(self.clients)
        if dice < 0.55:
            self.publish()
        elif dice < 0.9:
            client.open()
            client.read(self.random.choice((1, 50, 500, 5000)))
        elif dice < 0.94:
            client.subscriber.closed()
        if client.gone and self.random.random() < 0.2:
            client.connect()

    async def run(self, steps: int) -> None:
        for _ in range(steps):
            self.act()
            if self.random.random() < 0.4:
                await asyncio.sleep(0)
            for client in self.clients:
                client.check_memory(self.bounds, self.largest)
        for client in self.clients:
            while client.seq < self.hub.current:
                if client.gone and not client.sink.unsent:
                    client.connect()
                client.open()
                client.read(1 << 30)
                await asyncio.sleep(0)


class RandomWalkTest(Case):
    async def test_clients_that_lag_drop_and_resume_know_all_facts_in_one_order(self) -> None:
        totals = {"slow": 0, "conflated": 0, "resyncs": 0}
        for seed in range(15):
            with self.subTest(seed=seed):
                world = World(seed)
                await world.run(800)
                for client in world.clients:
                    self.assertEqual(client.facts, len(world.facts))
                    self.assertEqual(client.texts, world.live)
                    totals["resyncs"] += client.resyncs
                totals["slow"] += world.hub.closed_slow
                totals["conflated"] += world.hub.conflated
                world.hub.close()
                for client in world.clients:
                    client.subscriber.closed()
                self.assertEqual(world.clock.pending, 0)
        # The walk must have had slow readers, lost connections and conflation.
        self.assertTrue(all(totals.values()), totals)
