"""The output of a connection: its order, its pace, and how it ends."""

from __future__ import annotations

import asyncio

from crushlite.http.outbox import Outbox, slices
from crushlite.testing.fake_clock import FakeClock
from tests.support.basics import BoundedTestCase
from tests.support.memory import MemoryTransport

TIMEOUT = 10.0
HIGH_WATER = 640
PIECES = [bytes([65 + n]) * 1000 for n in range(5)]  # each pauses a stalled transport
WHOLE = b"".join(PIECES)


class Flow(asyncio.Protocol):
    """The part of a connection that an outbox needs."""

    outbox: Outbox
    resumed = 0

    def pause_writing(self) -> None:
        self.outbox.paused = True

    def resume_writing(self) -> None:
        if not self.outbox.resume():
            self.resumed += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self.outbox.cancel()


class OutboxCase(BoundedTestCase):
    async def asyncSetUp(self) -> None:
        self.open()

    def open(self, *, stalled: bool = False) -> None:
        self.clock = FakeClock()
        self.flow = Flow()
        self.transport = MemoryTransport(self.flow)
        self.transport.stalled = stalled
        self.transport.set_write_buffer_limits(HIGH_WATER)
        self.outbox = self.flow.outbox = Outbox(self.transport, self.clock, TIMEOUT)
        self.followed: list[int] = []  # how much the transport had been given, at each `then`

    def then(self) -> None:
        self.followed.append(self.given)

    @property
    def given(self) -> int:
        return len(self.transport.written) + self.transport.get_write_buffer_size()

    async def settle(self) -> None:
        await self.clock.settle()

    async def read(self, size: int) -> None:
        """The stalled peer takes `size` bytes, a little at a time."""
        for at in range(0, size, 100):
            self.transport.drain(min(100, size - at))
            await self.settle()


class Order(OutboxCase):
    async def test_short_writes_go_out_at_once(self) -> None:
        self.outbox.write(b"one")
        self.outbox.write(b"two")
        self.assertEqual(self.transport.written, b"onetwo")
        self.assertEqual((self.outbox.unsent, self.clock.pending), (0, 0))

    async def test_nothing_overtakes_the_rest(self) -> None:
        for stalled in (True, False):
            with self.subTest(stalled=stalled):
                self.open(stalled=stalled)
                self.outbox.write(b"head")
                self.outbox.write_pieces(PIECES, lambda: self.fail("too early"))
                self.outbox.write(b"short")
                self.outbox.write_pieces(PIECES[:2], self.then)
                self.outbox.write(b"end")
                expected = b"head" + WHOLE + b"short" + PIECES[0] + PIECES[1] + b"end"
                self.assertEqual(self.outbox.unsent + len(self.transport.written), len(expected))
                if stalled:
                    await self.read(len(expected))
                await self.settle()
                self.assertEqual(self.transport.written, expected)
                self.assertEqual(self.followed, [len(expected)], "once, behind everything")

    async def test_what_comes_behind_the_last_piece_but_before_its_sequel_is_not_lost(self) -> None:
        self.transport.stalled = True
        self.outbox.write_pieces(PIECES[:1], self.then)
        await self.settle()
        self.outbox.write(b"more")
        self.assertEqual((self.given, self.followed), (1000, []))
        await self.read(1004)
        self.assertEqual(self.transport.written, PIECES[0] + b"more")
        self.assertEqual(self.followed, [1004])

    async def test_one_piece_goes_out_per_turn_and_what_follows_never_at_once(self) -> None:
        self.outbox.write_pieces(PIECES, self.then)
        for count in range(1, len(PIECES) + 1):
            self.assertEqual(self.given, count * 1000)
            self.assertEqual(self.followed, [])
            await asyncio.sleep(0)
        self.assertEqual(self.followed, [len(WHOLE)])
        self.outbox.write(b"next")
        self.assertEqual(self.transport.written, WHOLE + b"next", "the short way again")

    async def test_what_comes_behind_the_rest_does_not_hurry_it(self) -> None:
        self.outbox.write_pieces(PIECES, self.then)
        for count in range(1, 6):
            self.outbox.write_pieces([b"x"], self.then)
            self.assertEqual(self.given, count * 1000)
            await asyncio.sleep(0)
        self.assertEqual(self.given, len(WHOLE) + 1)

    async def test_a_peer_that_does_not_read_is_given_one_piece(self) -> None:
        self.transport.stalled = True
        self.outbox.write_pieces(PIECES, self.then)
        await self.settle()
        self.assertEqual(self.transport.get_write_buffer_size(), 1000)
        self.assertEqual(self.outbox.unsent, len(WHOLE))
        for _ in range(40):
            await self.read(100)
            self.assertLess(self.transport.get_write_buffer_size(), 1200)
        self.assertEqual(self.flow.resumed, 0, "the room was for the rest")
        await self.read(1000)
        self.assertEqual((self.transport.written, self.followed), (WHOLE, [len(WHOLE)]))

    async def test_a_paused_transport_gets_no_piece(self) -> None:
        self.transport.stalled = True
        self.outbox.write(WHOLE)
        self.assertTrue(self.outbox.paused)
        self.outbox.write_pieces(PIECES, self.then)
        await self.settle()
        self.assertEqual(self.given, len(WHOLE))
        await self.read(2 * len(WHOLE))
        self.assertEqual(self.transport.written, WHOLE + WHOLE)
        self.assertEqual(self.followed, [2 * len(WHOLE)])

    async def test_without_a_rest_there_is_room_for_others(self) -> None:
        self.transport.stalled = True
        self.outbox.write(WHOLE)
        await self.read(len(WHOLE))
        self.assertEqual((self.flow.resumed, self.outbox.paused), (1, False))

    async def test_what_follows_may_begin_the_next_rest(self) -> None:
        self.outbox.write_pieces(PIECES, lambda: self.outbox.write_pieces(PIECES, self.then))
        for _ in range(2):
            await self.settle()
        self.assertEqual((self.transport.written, self.followed), (WHOLE + WHOLE, [2 * len(WHOLE)]))

    def test_slices_are_the_whole_and_no_copy(self) -> None:
        for size in (1, 3, 10, 11):
            parts = list(slices(b"0123456789", size))
            self.assertEqual(b"".join(parts), b"0123456789")
            self.assertLessEqual(max(map(len, parts)), size)
        data = b"x" * 10
        self.assertTrue(all(part.obj is data for part in slices(data, 4)))


class Ends(OutboxCase):
    async def test_closing_waits_for_the_rest_and_takes_the_place_of_what_followed(self) -> None:
        self.transport.stalled = True
        self.outbox.write_pieces(PIECES, self.then)
        self.outbox.close()
        self.assertFalse(self.transport.is_closing())
        await self.read(len(WHOLE) - 100)
        self.assertTrue(self.transport.is_closing())
        self.assertFalse(self.transport.lost)
        await self.read(100)
        self.assertEqual(self.transport.written, WHOLE)
        self.assertEqual((self.transport.lost, self.transport.aborted), (True, False))
        self.assertEqual((self.followed, self.clock.pending), ([], 0))

    async def test_closing_without_a_rest_is_at_once(self) -> None:
        self.outbox.write_pieces(PIECES[:1], self.then)
        self.outbox.close()
        self.assertTrue(self.transport.is_closing())
        await self.settle()
        self.assertEqual((self.transport.written, self.followed), (PIECES[0], []))

    async def test_nothing_is_written_to_a_closing_transport(self) -> None:
        self.transport.stalled = True
        self.outbox.write(b"before")
        self.outbox.close()
        self.outbox.write(b"after")
        self.outbox.write_pieces(PIECES, self.then)
        await self.settle()
        self.transport.drain()
        await self.settle()
        self.assertEqual((self.transport.written, self.followed), (b"before", []))

    async def test_a_lost_connection_drops_the_rest_and_what_follows_it(self) -> None:
        for stalled in (True, False):
            self.open(stalled=stalled)
            self.outbox.write_pieces(PIECES, self.then)
            self.transport.lose()
            await self.settle()
            self.assertEqual((self.outbox.unsent, self.followed), (0, []))
            self.assertIsNone(self.outbox._then)
            self.assertEqual(self.clock.pending, 0)


class Watch(OutboxCase):
    async def test_a_peer_that_takes_nothing_is_cut_off(self) -> None:
        self.transport.stalled = True
        self.outbox.write(b"x")
        await self.clock.advance(TIMEOUT - 0.1)
        self.assertFalse(self.transport.aborted)
        await self.clock.advance(0.1)
        self.assertTrue(self.transport.aborted)
        self.assertEqual(self.clock.pending, 0)

    async def test_progress_is_enough_for_short_and_long(self) -> None:
        for long in (True, False):
            self.open(stalled=True)
            if long:
                self.outbox.write_pieces([b"x" * 1000], self.then)
            else:
                self.outbox.write(b"x" * 1000)
            for _ in range(5):
                await self.clock.advance(TIMEOUT - 0.1)
                self.transport.drain(1)
                await self.clock.advance(0.1)
                self.assertFalse(self.transport.aborted)
            await self.clock.advance(TIMEOUT)
            self.assertTrue(self.transport.aborted)

    async def test_what_is_given_meanwhile_is_no_progress(self) -> None:
        self.transport.stalled = True
        for _ in range(2):
            self.assertFalse(self.transport.aborted)
            self.outbox.write(b"x")
            await self.clock.advance(TIMEOUT / 2)
        self.assertTrue(self.transport.aborted)

    async def test_the_pieces_of_a_rest_are_watched_as_they_go(self) -> None:
        self.transport.stalled = True
        self.outbox.write_pieces(PIECES, self.then)
        for _ in range(4):
            await self.clock.advance(TIMEOUT - 0.1)
            await self.read(1000)
            self.assertFalse(self.transport.aborted)
        await self.clock.advance(2 * TIMEOUT)
        self.assertTrue(self.transport.aborted)

    async def test_a_peer_that_takes_all_is_not_watched_until_the_next_write(self) -> None:
        self.transport.stalled = True
        self.outbox.write(b"x")
        self.transport.drain(1)
        await self.clock.advance(TIMEOUT)
        self.assertEqual((self.transport.aborted, self.clock.pending), (False, 0))
        self.outbox.write(b"x")
        await self.clock.advance(TIMEOUT)
        self.assertTrue(self.transport.aborted)

    async def test_an_open_stream_is_watched_from_its_end_on(self) -> None:
        self.transport.stalled = True
        self.outbox.write(b"of an answer before it")
        self.outbox.unlimited = True
        self.outbox.write(b"x")
        self.outbox.write_pieces(PIECES, self.then)
        await self.clock.advance(100 * TIMEOUT)
        self.assertEqual((self.transport.aborted, self.clock.pending), (False, 0))
        self.outbox.close()
        await self.clock.advance(TIMEOUT - 0.1)
        self.assertFalse(self.transport.aborted)
        await self.clock.advance(0.1)
        self.assertTrue(self.transport.aborted)
        self.assertEqual((self.outbox.unsent, self.clock.pending), (0, 0))

    async def test_closing_begins_the_time_anew(self) -> None:
        self.transport.stalled = True
        self.outbox.write(b"x")
        await self.clock.advance(TIMEOUT - 1)
        self.outbox.close()
        await self.clock.advance(TIMEOUT - 1)
        self.assertFalse(self.transport.aborted)
        await self.clock.advance(1)
        self.assertTrue(self.transport.aborted)
