"""Lists of messages that SQLite writes: the same JSON as ours, in pieces, around what is live."""

from __future__ import annotations

import json
import random
import tempfile
import unittest
from pathlib import Path
from typing import Any

from crushlite.errors import CorruptDatabase
from crushlite.protocol.codec import encode
from crushlite.protocol.messages import FinishPart, Message, Part, TextPart
from crushlite.protocol.sessions import Session
from crushlite.store.connection import connect
from crushlite.store.messages import (
    PARTS_CHARS,
    PIECE,
    insert_message,
    list_messages,
    message_texts,
    user_message_texts,
)
from crushlite.store.migrations import migrate
from crushlite.store.sessions import insert_session
from tests.support.store import EVERY_PART


def read(pieces: list[bytes]) -> list[Any]:
    found: list[Any] = json.loads(b"[%b]" % b",".join(pieces))
    return found


class ListingTests(unittest.TestCase):
    def setUp(self) -> None:
        path = Path(self.enterContext(tempfile.TemporaryDirectory())) / "crushlite.db"
        path.touch()
        self.conn = connect(path, False)
        self.addCleanup(self.conn.close)
        migrate(self.conn, path)
        for sid in "st":
            insert_session(self.conn, "", Session(sid))
        self.conn.execute("BEGIN")

    def say(self, mid: str, sid: str = "s", role: str = "user", **more: Any) -> Message:
        parts: list[Part] = more.pop("parts", None) or [TextPart(mid), FinishPart("stop")]
        message = Message(mid, role, sid, parts, created_at=1, updated_at=2, **more)
        insert_message(self.conn, "", message)
        return message

    def test_every_part_and_every_field_reads_as_we_would_write_it(self) -> None:
        odd = 'mod"el \u00e9\u202e'
        self.say("plain")
        self.say("full", role="assistant", parts=EVERY_PART, model=odd, provider="p/\\")
        self.say("summary", role="assistant", is_summary_message=True)
        self.say("empty", role="assistant", parts=[])
        pieces, newest = message_texts(self.conn, "", "s", ())
        self.assertEqual((read(pieces), newest), (encode(list_messages(self.conn, "", "s")), []))
        self.assertEqual([list(m) for m in read(pieces)], [list(encode(m)) for m in self.all()])

    def all(self) -> list[Message]:
        return list_messages(self.conn, "", "s")

    def test_pieces_are_of_a_size_and_none_is_missing_between_them(self) -> None:
        wanted = 0
        for count in (0, 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 2 * PIECE + 7):
            for n in range(wanted, count):
                self.say(f"m{n}")
            wanted = count
            with self.subTest(count=count):
                pieces, newest = message_texts(self.conn, "", "s", ())
                self.assertEqual([m["id"] for m in read(pieces)], [f"m{n}" for n in range(count)])
                self.assertEqual((len(pieces), newest), (-(-count // PIECE), []))

    def test_from_the_first_live_one_on_they_come_as_themselves(self) -> None:
        for n in range(20):
            self.say(f"m{n}", sid="st"[n % 2], role=("user", "user", "tool")[n % 3])
        everything = [m.id for m in self.all()]
        rng = random.Random(5)
        for _ in range(50):
            live = [*rng.sample(everything, rng.randrange(4)), "not-written-yet"]
            pieces, newest = message_texts(self.conn, "", "s", live)
            texts, ids = [m["id"] for m in read(pieces)], [m.id for m in newest]
            self.assertEqual(texts + ids, everything)
            self.assertTrue(set(live).isdisjoint(texts))
            if ids:
                self.assertIn(ids[0], live)

    def test_what_users_wrote_is_newest_first_in_one_session_or_all(self) -> None:
        for n, (sid, role) in enumerate(zip("sstst", ("user", "tool", "user") * 2, strict=False)):
            self.say(f"m{n}", sid, role)
        lists: dict[str | None, list[str]] = {None: ["m3", "m2", "m0"], "t": ["m2"], "nobody": []}
        for within, wanted in lists.items():
            for live in ((), ("m0",), ("m2",), ("m3",), ("m1",), ("m0", "m3")):
                with self.subTest(sid=within, live=live):
                    newest, pieces = user_message_texts(self.conn, "", within, live)
                    texts = [m["id"] for m in read(pieces)]
                    self.assertEqual([m.id for m in newest] + texts, wanted)
                    self.assertTrue(set(live).isdisjoint(texts))
        self.assertEqual(user_message_texts(self.conn, "/other", None, ()), ([], []))
        self.assertEqual(message_texts(self.conn, "/other", "s", ()), ([], []))

    def test_a_damaged_message_is_said_to_be_damaged(self) -> None:
        for column, value in (
            *(("parts", "'[{'"), ("parts", "x'ff00'"), ("model", "x'ff00'")),
            ("parts", """CAST(x'5b22ff225d' AS TEXT)"""),  # JSON, but no UTF-8
            *(("created_at", "9e999"), ("created_at", "1.5"), ("updated_at", "'zz'")),
            ("is_summary_message", "'zz'"),
            ("parts", f"""'["' || hex(zeroblob({PARTS_CHARS // 2})) || '"]'"""),  # far too long
        ):
            self.conn.execute("SAVEPOINT sound")
            self.say("m")
            self.say("behind")
            self.conn.execute(f"UPDATE messages SET {column} = {value} WHERE id = 'm'")
            for read in (message_texts, user_message_texts):
                with (
                    self.subTest(column=column, value=value, read=read.__name__),
                    self.assertRaisesRegex(CorruptDatabase, "damaged"),
                ):
                    read(self.conn, "", "s", ())
            self.conn.execute("ROLLBACK TO sound")

    def test_a_message_that_no_request_could_make_so_long_is_refused(self) -> None:
        self.say("m")
        change = f"UPDATE messages SET parts = hex(zeroblob({PARTS_CHARS // 2 + 1}))"
        self.conn.execute(change)
        with self.assertRaisesRegex(CorruptDatabase, "longer than any"):
            list_messages(self.conn, "", "s")

    def test_a_message_at_no_position_is_damage_where_the_position_matters(self) -> None:
        self.say("before")
        self.say("m")
        self.conn.execute("UPDATE messages SET position = 'x' WHERE id = 'm'")
        pieces, newest = message_texts(self.conn, "", "s", ())
        self.assertEqual([m["id"] for m in read(pieces)] + [m.id for m in newest], ["before", "m"])
        for live, recent in ((("m",), 0), ((), 5)):
            with self.subTest(live=live), self.assertRaisesRegex(CorruptDatabase, "position"):
                message_texts(self.conn, "", "s", live, recent)
