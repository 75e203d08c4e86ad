"""Long arrays are read one element after the other."""

from __future__ import annotations

import json
import unittest
from unittest import mock

from crushlite.acp import elements
from crushlite.acp.elements import ElementReader
from crushlite.errors import CrushliteError

VALUES = [{"text": 'a "quote", [x] {y} \\ é €'}, {}, {"n": [1, {"m": None}]}, {"text": "x" * 50}]
DATA = json.dumps(VALUES, ensure_ascii=False).encode() + b"\n"


class ElementTests(unittest.TestCase):
    def read(self, data: bytes, step: int, limit: int = 1000) -> list[object]:
        reader = ElementReader(limit)
        found: list[object] = []
        for at in range(0, len(data), step):
            found += reader.feed(data[at : at + step])
        return [*found, *reader.end()]

    def test_they_are_the_same_wherever_the_bytes_are_split(self) -> None:
        for attempt in (1, 64 * 1024):
            with mock.patch.object(elements, "_ATTEMPT", attempt):
                for step in range(1, len(DATA) + 1):
                    self.assertEqual(self.read(DATA, step), VALUES)
        self.assertEqual(self.read(b"[]\n", 1), [])

    def test_what_is_no_array_of_objects_or_ends_early_is_an_error(self) -> None:
        for data in (b"", b"{}", b"null", b'[{"a":1}', b'[{"a":', b"[1]", b"[{}] [", b"\xff"):
            with self.assertRaises(CrushliteError, msg=data):
                self.read(data, 3)

    def test_no_more_is_kept_than_the_longest_element_may_have(self) -> None:
        many = b"[" + b",".join([json.dumps(VALUES[3]).encode()] * 100) + b"]"
        self.assertEqual(len(self.read(many, 7, limit=70)), 100)
        with self.assertRaisesRegex(CrushliteError, "longer than 40"):
            self.read(DATA, 7, limit=40)
