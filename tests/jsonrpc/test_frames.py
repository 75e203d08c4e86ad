"""Frames are found however the bytes are cut, and what is none does no harm."""

from __future__ import annotations

import time
import tracemalloc
import unittest

from crushlite.jsonrpc.frames import HEADERS, KEPT, LINES, Frame, Framing, Noise, TooLarge


def decode(
    framing: Framing, data: bytes, *, step: int = 0, most: int = 1 << 20
) -> list[Frame | TooLarge | Noise]:
    decoder = framing.decoder(most)
    step = step or len(data)
    return [
        found for at in range(0, len(data), step) for found in decoder.feed(data[at : at + step])
    ]


class LineTests(unittest.TestCase):
    def test_lines_are_the_same_however_they_are_cut(self) -> None:
        data = b'{"a":1}\n\r\n  \n{"b":"\xe2\x80\xa8\xc2\x85"}\r\nlog\n{"unfinished'
        whole = decode(LINES, data)
        self.assertEqual(
            whole, [Frame(b'{"a":1}'), Frame(b'{"b":"\xe2\x80\xa8\xc2\x85"}\r'), Frame(b"log")]
        )
        for step in (1, 2, 3, 7):
            self.assertEqual(decode(LINES, data, step=step), whole, step)

    def test_a_line_that_is_too_long_is_skipped_and_the_next_one_is_read(self) -> None:
        long = b"A" * 6000 + b"B" * 6000
        for step in (0, 1, 4095, 7000):
            first, second = decode(LINES, long + b"\nok\n", step=step, most=5000)
            assert isinstance(first, TooLarge)
            self.assertEqual(first.size, len(long))
            self.assertEqual((first.head, first.tail), (b"A" * KEPT, b"B" * KEPT))
            self.assertEqual(second, Frame(b"ok"))

    def test_a_long_line_in_small_pieces_takes_linear_time(self) -> None:
        data = b"x" * (8 << 20) + b"\n"
        before = time.process_time()
        decode(LINES, data, step=4096, most=16 << 20)
        decode(LINES, data, step=4096, most=1 << 20)
        self.assertLess(time.process_time() - before, 2)

    def test_a_frame_in_tiny_pieces_takes_no_more_memory_than_its_bytes(self) -> None:
        decoder = LINES.decoder(1 << 20)
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        for at in range(10_000):
            self.assertEqual(list(decoder.feed(b"%04d" % at)), [])
        self.assertLess(tracemalloc.get_traced_memory()[0], 100_000)


class HeaderTests(unittest.TestCase):
    def test_bodies_are_the_same_however_they_are_cut(self) -> None:
        data = HEADERS.pack(b"one") + b"Content-Type: x\r\ncontent-length:3\r\n\r\ntwo"
        data += (
            b"content-length: 5\nX-Other: 1\n\nthr\nee"  # one byte is left: the beginning of ...
        )
        data = data[:-1] + b"Content-Length: 4\r\n\r\nfour"
        expected = [Frame(b"one"), Frame(b"two"), Frame(b"thr\ne"), Frame(b"four")]
        for step in (0, 1, 2, 5):
            self.assertEqual(decode(HEADERS, data, step=step), expected, step)

    def test_lines_of_a_log_before_a_message_are_noise(self) -> None:
        data = b"INFO: ready\n\nloading ...Content-Length: 2\r\n\r\n{}"
        self.assertEqual(decode(HEADERS, data), [Noise(b"INFO: ready"), Frame(b"{}")])

    def test_a_body_that_is_too_large_is_skipped_and_the_next_one_is_read(self) -> None:
        data = HEADERS.pack(b"A" * 9000) + HEADERS.pack(b"ok")
        for step in (0, 1, 1000):
            first, second = decode(HEADERS, data, step=step, most=5000)
            assert isinstance(first, TooLarge)
            self.assertEqual((first.size, second), (9000, Frame(b"ok")))

    def test_a_length_that_is_none_is_noise(self) -> None:
        for line in (b"Content-Length: -1", b"Content-Length: " + b"9" * 13, b"Content-Length: x"):
            self.assertEqual(decode(HEADERS, line + b"\r\n\r\n"), [Noise(line + b"\r")])
