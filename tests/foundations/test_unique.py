"""New ids are what other programs take for random UUIDs, and no two are the same."""

from __future__ import annotations

import base64
import unittest
import uuid

from crushlite.unique import new_id, random_hex, random_text


class UniqueTests(unittest.TestCase):
    def test_a_new_id_is_a_random_uuid_in_its_usual_spelling(self) -> None:
        for _ in range(200):  # of random bits, some spell a version by accident
            made = new_id()
            read = uuid.UUID(made)
            self.assertEqual((str(read), read.version), (made, 4))
            self.assertEqual(read.variant, uuid.RFC_4122)

    def test_no_two_are_the_same(self) -> None:
        self.assertEqual(len({new_id() for _ in range(1000)}), 1000)
        self.assertEqual(len({random_hex(8) for _ in range(1000)}), 1000)

    def test_random_text_can_stand_in_a_url_and_holds_all_its_bytes(self) -> None:
        for size in (8, 24, 32):
            text = random_text(size)
            self.assertRegex(text, r"^[A-Za-z0-9_-]+$")
            padded = text + "=" * (-len(text) % 4)
            self.assertEqual(len(base64.urlsafe_b64decode(padded)), size)
        self.assertEqual(len({random_text(8) for _ in range(1000)}), 1000)

    def test_random_digits_are_two_for_each_byte(self) -> None:
        self.assertRegex(random_hex(16), r"^[0-9a-f]{32}$")
