"""Large JSON texts are read as small ones are, without holding the interpreter for long."""

from __future__ import annotations

import json
import random
import unittest
from typing import Any

from crushlite.protocol.codec import LARGE, NotJSON, loads
from crushlite.protocol.large import LONG, MAX_SKELETON

# Everything a text may hold, and what surrogate pairs may be cut into.
PIECES = (
    "a",
    "é",
    "日",
    "😀",
    '"',
    "\\",
    "\n",
    "\t",
    "\x7f",
    "/",
    "\\ud83d",
    "u",
    "\u2028",
    "{",
    ",",
)


def text(dice: random.Random, size: int) -> str:
    return "".join(dice.choices(PIECES, k=size))


def document(dice: random.Random) -> Any:
    return {
        "a": text(dice, dice.choice((0, 1, LONG - 1, LONG, LONG + 1, 70_000, 200_000))),
        "b": [text(dice, 70_000), {"c": text(dice, dice.randrange(3000))}, [1, 2.5, None, True]],
    }


class Large(unittest.TestCase):
    def test_a_large_text_has_the_value_that_it_says(self) -> None:
        for seed in range(12):
            dice = random.Random(seed)
            value = document(dice)
            for ascii_only in (True, False):
                body = json.dumps(value, ensure_ascii=ascii_only).encode()
                self.assertGreater(len(body), LARGE)
                with self.subTest(seed=seed, ascii_only=ascii_only):
                    self.assertEqual(loads(body), value)

    def test_no_pair_of_surrogates_is_torn_wherever_a_piece_ends(self) -> None:
        for shift in range(14):
            value = "x" * shift + "😀" * 30_000
            self.assertEqual(loads(json.dumps([value]).encode()), [value])
            value = "x" * shift + '\\"' * 60_000
            self.assertEqual(loads(json.dumps([value]).encode()), [value])

    def test_what_is_no_text_is_refused_wherever_it_is(self) -> None:
        long = "x" * (3 * LARGE)
        for flaw in ("\\ud800", "\\udc00", "\\x", "\\u12g4", "\x01", "\n", "\\ud800\\ud800"):
            for body in (
                f'["{flaw}{long}"]',
                f'["{long}{flaw}"]',
                f'["{long}{flaw}{long}"]',
                f'["{long}", "{flaw}"]',
                f'{{"{flaw}": "{long}"}}',
            ):
                with self.subTest(flaw=flaw, at=body.find(flaw)), self.assertRaises(NotJSON):
                    loads(body.encode())
        for body in (f'["{long}', f'["{long}\\', f'["{long}\\"', f'"{long}"x', f'{{"{long}":1}}'):
            with self.subTest(body[-5:]), self.assertRaises(NotJSON):
                loads(body.encode())
        with self.assertRaises(NotJSON):
            loads(b'["' + b"x" * LARGE + b"\xff" + b'"]')

    def test_what_looks_like_a_mark_is_a_text(self) -> None:
        long = "x" * LARGE
        marks = [f"{0:016x}{number}" for number in range(3)]
        self.assertEqual(loads(json.dumps([*marks, long]).encode()), [*marks, long])
        self.assertEqual(loads(json.dumps(long).encode()), long)

    def test_much_besides_long_texts_is_refused(self) -> None:
        for body in (b" " * MAX_SKELETON + b"[1]", b'["' + b'x","' * (MAX_SKELETON // 4) + b'"]'):
            with self.assertRaises(NotJSON):
                loads(body)
