"""What others send is read as far as it can be; what is written anybody can read."""

from __future__ import annotations

import json
import unittest
from typing import Any

from crushlite.jsonrpc.errors import Unsendable
from crushlite.jsonrpc.values import Glimpse, glimpse, is_id, is_large, read, write, write_large
from crushlite.protocol.codec import NotJSON


class ReadTests(unittest.TestCase):
    def test_terminal_escapes_a_mark_and_a_text_in_front_are_passed_over(self) -> None:
        message = b'{"jsonrpc":"2.0","method":"x"}'
        for before in (b"", b"\xef\xbb\xbf", b"\x1b[0m \x1b[?25l", b"\x1b]0;title\x07", b"50 %..."):
            self.assertEqual(read(before + message)["method"], "x", before)

    def test_broken_texts_are_repaired(self) -> None:
        self.assertEqual(read(rb'{"a":"\ud800 \\ud800 \ud83d\ude00"}')["a"], "\ufffd \\ud800 😀")
        self.assertEqual(read(b'{"a":"\xff"}')["a"], "\ufffd")
        large = b'{"a":"' + rb"\udc00" * 50_000 + b'"}'
        self.assertEqual(read(large)["a"], "\ufffd" * 50_000)

    def test_what_is_no_json_or_nested_too_deeply_is_refused(self) -> None:
        for text in (b"log", b"{", b'{"a":NaN}', b"[" * 100 + b"]" * 100, b"[" * 10_000):
            with self.assertRaises(NotJSON):
                read(text)


class WriteTests(unittest.TestCase):
    def test_a_message_is_one_line_of_ascii_without_lone_surrogates(self) -> None:
        message = {"a": "\u2028\n\ud800 😀 \\ud800"}
        for body in (write(message), write_large(message, 1000)):
            self.assertTrue(body.isascii())
            self.assertNotIn(b"\n", body)
            self.assertEqual(json.loads(body)["a"], "\u2028\n\ufffd 😀 \\ud800")

    def test_what_is_no_json_or_too_long_is_refused(self) -> None:
        deep: list[Any] = []
        for _ in range(10_000):
            deep = [deep]
        for value in (object(), float("nan"), deep):
            with self.assertRaises(Unsendable):
                write({"a": value})
            with self.assertRaises(Unsendable):
                write_large({"a": value}, 1 << 20)
        with self.assertRaises(Unsendable):
            write_large({"a": "x" * 1000}, 1000)

    def test_large_is_what_has_many_characters_or_many_values(self) -> None:
        self.assertFalse(is_large({"a": "x" * 1000, "b": [1] * 1000}))
        self.assertTrue(is_large({"a": "x" * 100_000}))
        self.assertTrue(is_large({"a": [[1] * 10] * 10_000}))


class GlimpseTests(unittest.TestCase):
    def test_the_id_of_a_message_that_cannot_be_read_is_found_at_either_end(self) -> None:
        for head, tail, expected in (
            (b'{"jsonrpc":"2.0","id":7,"method":"m","params":{', b"", Glimpse(7, is_request=True)),
            (b'{"jsonrpc":"2.0","method":"m","id":"a\\"b",', b"", Glimpse('a"b', is_request=True)),
            (b' { "id" : 7 , "result" : {', b"", Glimpse(7, is_request=False)),
            (b'{"method":"m","params":{"x":"', b'"},"id":8}', Glimpse(8, is_request=True)),
            (b'{"jsonrpc":"2.0","params":{"x":"', b'"},"id":8}\r', Glimpse(8, is_request=True)),
            (b'{"result":{"id":1', b'"} , "id" : 8 }', Glimpse(8, is_request=False)),
        ):
            self.assertEqual(glimpse(head, tail), expected, head)

    def test_an_id_inside_the_message_is_not_taken_for_its_own(self) -> None:
        for head, tail in (
            (b'{"method":"m","params":{"id":1,', b'"id":3}}'),
            (b'{"method":"m","params":{', b'\\"id\\":3}'),
            (b"log", b',"id":3}'),
            (b'[{"id":1,', b""),
        ):
            self.assertIsNone(glimpse(head, tail), head)

    def test_ids_are_integers_and_short_texts(self) -> None:
        good: list[Any] = [0, -1, "", "x"]
        bad: list[Any] = [True, None, 1.0, [], "x" * 2000]
        self.assertEqual([is_id(value) for value in good + bad], [True] * 4 + [False] * 5)
