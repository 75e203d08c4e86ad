"""The SSE parser against the HTML standard's rules, however the bytes are cut."""

from __future__ import annotations

import random
import unittest

from crushlite.http.sse import LINE_LIMIT, SSEEvent, SSEParser, SSETooLong
from crushlite.protocol.codec import dumps
from tests.support.routes import TABLE

# (stream, its events, the last id after them)
CASES: list[tuple[bytes, list[SSEEvent], str | None]] = [
    (b"data: hello\n\n", [SSEEvent("hello")], None),
    (b"data:hello\r\rdata: b\r\n\r\n", [SSEEvent("hello"), SSEEvent("b")], None),
    (b"data:  two spaces\n\n", [SSEEvent(" two spaces")], None),
    (b"data: a\ndata: b\r\ndata\r\n\n", [SSEEvent("a\nb\n")], None),
    (b": comment\n\ndata: x\n: more\n\n", [SSEEvent("x")], None),
    (b"event: ping\ndata: x\n\ndata: y\n\n", [SSEEvent("x", "ping"), SSEEvent("y")], None),
    (b"event: lost\n\ndata: y\n\n", [SSEEvent("y")], None),
    (b"id: 7\n\n", [], "7"),
    (b"id: 7\ndata: x\n\ndata: y\n\n", [SSEEvent("x", id="7"), SSEEvent("y", id="7")], "7"),
    (b"id: 7\n\nid\n\ndata: z\n\n", [SSEEvent("z", id="")], ""),
    (b"id: 7\n\nid: a\0b\ndata: z\n\n", [SSEEvent("z", id="7")], "7"),
    (b"id: 7\n", [], None),
    (b"data: unfinished\n", [], None),
    (b"\xef\xbb\xbfdata: bom\n\n", [SSEEvent("bom")], None),
    (b"\xef\xbb\xbf\xef\xbb\xbfdata: not\n\ndata: x\n\n", [SSEEvent("x")], None),
    (b"retry: 10\nunknown: x\nDATA: no\ndata: \xc3\xa9\xff\n\n", [SSEEvent("\u00e9\ufffd")], None),
    (b"data: \xe2\x80\xa8\xc2\x85\x0b\x0c\n\n", [SSEEvent("\u2028\u0085\x0b\x0c")], None),
    (b"data\n\n", [SSEEvent("")], None),
    (b"\n\n\n\r\n\rdata: x\n\n\n", [SSEEvent("x")], None),
]


class Parser(unittest.TestCase):
    def test_events_do_not_depend_on_how_the_bytes_are_cut(self) -> None:
        for stream, events, last_id in CASES:
            for step in (1, 2, 3, 10, len(stream)):
                with self.subTest(stream=stream, step=step):
                    parser = SSEParser()
                    found: list[SSEEvent] = []
                    for at in range(0, len(stream), step):
                        found += parser.feed(stream[at : at + step])
                    self.assertEqual(found, events)
                    self.assertEqual(parser.last_id, last_id)

    def test_random_cuts_of_a_long_stream(self) -> None:
        rng = random.Random(7)
        ends = (b"\n", b"\r", b"\r\n")
        for _ in range(200):
            texts = [str(rng.random()) for _ in range(20)]
            end = rng.choice(ends)
            stream = b"".join(
                b"id: %d%bdata: %b%b%b" % (n, end, t.encode(), end, end)
                for n, t in enumerate(texts)
            )
            parser = SSEParser()
            found: list[SSEEvent] = []
            while stream:
                cut = rng.randrange(1, 40)
                found += parser.feed(stream[:cut])
                stream = stream[cut:]
            self.assertEqual([e.data for e in found], texts)
            self.assertEqual(parser.last_id, "19")

    def test_an_event_is_not_held_back_for_the_second_half_of_a_line_end(self) -> None:
        parser = SSEParser()
        self.assertEqual(parser.feed(b"data: x\r\n\r"), [SSEEvent("x")])
        self.assertEqual(parser.feed(b"\n"), [])
        self.assertEqual(parser.feed(b"data: y\r\r"), [SSEEvent("y")])

    def test_whatever_a_prompt_may_hold_can_be_read_back(self) -> None:
        growth = max(
            len(dumps(char)[1:-1]) / len(char.encode()) for char in "\u0416\u20ac\U0001f600"
        )
        largest = max(entry.body_limit for entry in TABLE)
        self.assertGreater(LINE_LIMIT, growth * largest + 2**20)

    def test_a_line_is_bounded(self) -> None:
        line = b"data: " + b"x" * 94
        for extra in (-1, 0):
            parser = SSEParser(line_limit=100)
            data = line[: 100 + extra] + b"\n\n"
            self.assertEqual(len(parser.feed(data)), 1)
        for data in (line + b"x\n\n", line + b"x"):
            with self.assertRaises(SSETooLong):
                SSEParser(line_limit=100).feed(data)

    def test_an_event_of_many_lines_is_bounded(self) -> None:
        parser = SSEParser(line_limit=100)
        for _ in range(3):  # each event counts for itself
            self.assertEqual(len(parser.feed(b"data: x\n" * 14 + b"\n")), 1)
        with self.assertRaises(SSETooLong):
            parser.feed(b"data: x\n" * 15)
