"""The queries: what each may change, in which order lists come, what is refused."""

from __future__ import annotations

import json
import tempfile
import unittest
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

from crushlite.acp_agents import choices
from crushlite.acp_agents.choices import all_notes
from crushlite.delegation.storing import set_summary
from crushlite.errors import (
    BadRequest,
    CorruptDatabase,
    NotFound,
    RunIdReused,
    RunNotFound,
    SessionNotFound,
)
from crushlite.filehistory.queries import (
    Change,
    FileState,
    last_read,
    list_files,
    list_read,
    mark_read,
    record_changes,
)
from crushlite.protocol.codec import encode
from crushlite.protocol.messages import PARTS, FinishPart, Message, TextPart
from crushlite.protocol.sessions import File, Session, Todo
from crushlite.store.connection import configure, connect
from crushlite.store.messages import (
    delete_message,
    get_message,
    insert_message,
    list_messages,
    save_message,
)
from crushlite.store.migrations import migrate
from crushlite.store.runs import (
    RunRow,
    end_run,
    ended_among,
    get_run,
    insert_run,
    list_runs,
    start_run,
)
from crushlite.store.sessions import (
    child_ids,
    delete_session,
    get_session,
    insert_session,
    rename_session,
    save_usage,
    session_texts,
    set_notes,
    set_title,
    set_todos,
)
from crushlite.undo.states import MISSING
from tests.support.store import EVERY_PART, ending, list_sessions

if TYPE_CHECKING:
    from collections.abc import Callable


class QueryCase(unittest.TestCase):
    def setUp(self) -> None:
        path = Path(self.enterContext(tempfile.TemporaryDirectory())) / "crushlite.db"
        path.touch()
        self.path = path
        self.conn = connect(path, False)
        self.addCleanup(self.conn.close)
        configure(self.conn)
        migrate(self.conn, path)

    def add(self, *sids: str, scope: str = "", parent: str = "") -> None:
        for sid in sids:
            session = Session(id=sid, parent_session_id=parent, created_at=10, updated_at=10)
            insert_session(self.conn, scope, session)

    def get(self, sid: str = "s") -> Session:
        return get_session(self.conn, "", sid)

    def order(self, scope: str = "") -> list[str]:
        return [session.id for session in list_sessions(self.conn, scope)]

    def say(self, mid: str, sid: str = "s", role: str = "user", scope: str = "") -> Message:
        message = Message(mid, role, sid, [TextPart(mid), FinishPart("stop")], created_at=20)
        insert_message(self.conn, scope, message)
        return message

    def rows(self, table: str) -> int:
        return int(self.conn.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


class SessionTests(QueryCase):
    def test_a_session_comes_back_as_it_was_stored(self) -> None:
        session = Session(
            id="s",
            title="title\0",
            prompt_tokens=2**63 - 1,
            completion_tokens=2,
            summary_message_id="m",
            cost=0.1,
            todos=[Todo("write", "in_progress", "writing\0")],
            created_at=10,
            updated_at=11,
        )
        insert_session(self.conn, "", session)
        self.assertEqual(self.get(), session)

    def test_a_list_says_of_each_session_what_the_session_alone_says(self) -> None:
        for number, title in enumerate(("", "a\0b", 'q"\\\n\x1f\x7f', "\u2028 \U0001f600 \xe9")):
            cost = number / 3 * 10.0 ** (number * 90)
            todos = [Todo("write")] if number == 2 else []
            session = Session(
                f"s{number}", title=title, todos=todos, cost=cost, prompt_tokens=2**63 - 1
            )
            insert_session(self.conn, "", session)
        for apart in ((), ("s0",), ("s1", "s3", "nobody")):
            listed = session_texts(self.conn, "", apart)
            objects = [one.id for one in listed if isinstance(one, Session)]
            self.assertEqual({*objects}, {*apart, "s2"} - {"nobody"})
            found = [json.loads(one) if isinstance(one, bytes) else encode(one) for one in listed]
            self.assertEqual(found, [encode(self.get(f"s{number}")) for number in (3, 2, 1, 0)])

    def test_a_change_that_keeps_the_order_of_sessions_changes_no_number(self) -> None:
        # Every page that changes is written to the disk before a prompt or an ending is answered.
        self.add("a", "b")
        self.add("child", "sibling", parent="b")

        def change(sid: str) -> dict[str, int]:
            self.say(f"{sid}-{self.rows('messages')}", sid)
            save_usage(self.conn, "", sid, (1, 1, 0.5), 30)
            return dict(self.conn.execute("SELECT id, touched FROM sessions").fetchall())

        before = change("b")
        for sid in ("b", "sibling", "b"):
            self.assertEqual(change(sid), before)
        after = change("a")
        self.assertEqual(self.order(), ["a", "b"])
        self.assertEqual({**after, "a": 0}, {**before, "a": 0})
        self.assertEqual({**change("child"), "child": 0}, {**after, "child": 0})
        self.assertEqual(self.order(), ["a", "b"])

    def test_a_new_session_has_no_messages_whatever_it_says(self) -> None:
        insert_session(self.conn, "", Session(id="s", message_count=7))
        self.assertEqual(self.get().message_count, 0)

    def test_a_child_needs_its_parent(self) -> None:
        with self.assertRaises(SessionNotFound):
            self.add("child", parent="nobody")

    def test_the_list_holds_top_level_sessions_the_last_changed_first(self) -> None:
        self.add("a", "b", "c")
        self.add("child", parent="a")
        self.assertEqual(self.order(), ["c", "b", "a"])
        # All at the same second, and even with a clock that went back.
        self.say("m1", "a")
        self.assertEqual(self.order(), ["a", "c", "b"])
        rename_session(self.conn, "", "b", "new", 10)
        self.assertEqual(self.order(), ["b", "a", "c"])
        save_usage(self.conn, "", "c", (1, 1, 0.1), 5)
        self.assertEqual(self.order(), ["c", "b", "a"])
        set_todos(self.conn, "", "a", [Todo("x")], 1)
        self.assertEqual(self.order(), ["a", "c", "b"])
        self.add("d")
        self.assertEqual(self.order(), ["d", "a", "c", "b"])

    def test_where_several_have_the_same_number_a_change_still_comes_first(self) -> None:
        # As `salvage` leaves them, and files from elsewhere.
        self.add("a", "b", "c")
        changes: tuple[Callable[[str], object], ...] = (
            lambda sid: self.say(f"m-{sid}", sid),
            lambda sid: rename_session(self.conn, "", sid, "t", 10),
        )
        for change in changes:
            self.conn.execute("UPDATE sessions SET touched = 7")
            for sid in self.order()[::-1]:
                change(sid)
                self.assertEqual(self.order()[0], sid)

    def test_a_prompt_waits_for_few_pages(self) -> None:
        # A page of the table, and of each index that its queries need.
        self.add("s")
        log = self.path.with_name(self.path.name + "-wal")
        self.conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        insert_run(self.conn, "", RunRow("r", "s", "digest", "prompt"))
        frames = (log.stat().st_size - 32) / (24 + 4096)  # see sqlite.org/walformat.html
        self.assertEqual(frames, 4)

    def test_updated_at_follows_changes_and_never_goes_back(self) -> None:
        self.add("s")
        self.say("m")
        self.assertEqual(self.get().updated_at, 20)
        self.assertEqual(rename_session(self.conn, "", "s", "t", 30.9).updated_at, 30)
        self.assertEqual(rename_session(self.conn, "", "s", "t", 5).updated_at, 30)
        message = get_message(self.conn, "", "m")
        message.updated_at = 99
        save_message(self.conn, "", message)
        delete_message(self.conn, "", "m")
        self.assertEqual(self.get().updated_at, 30)

    def test_scopes_do_not_see_each_other(self) -> None:
        self.add("s", scope="/one")
        self.add("s", "t", scope="/two")
        rename_session(self.conn, "/one", "s", "mine", 11)
        self.assertEqual((self.order("/one"), self.order("/two")), (["s"], ["t", "s"]))
        self.assertEqual(get_session(self.conn, "/two", "s").title, "")
        with self.assertRaises(SessionNotFound):
            get_session(self.conn, "", "s")
        self.assertEqual(delete_session(self.conn, "/two", "s"), ["s"])
        self.assertEqual(self.order("/one"), ["s"])

    def test_a_generated_title_adds_its_usage_and_never_replaces_a_rename(self) -> None:
        self.add("s")
        save_usage(self.conn, "", "s", (100, 10, 1.0), 11)
        titled = set_title(self.conn, "", "s", "generated", 12, (5, 1, 0.25))
        assert titled is not None
        self.assertEqual(
            (titled.title, titled.prompt_tokens, titled.completion_tokens, titled.cost),
            ("generated", 105, 11, 1.25),
        )
        rename_session(self.conn, "", "s", "", 13)
        kept = set_title(self.conn, "", "s", "generated again", 14, (1, 1, 0.25))
        assert kept is not None
        self.assertEqual((kept.title, kept.prompt_tokens, kept.cost), ("", 106, 1.5))

    def test_an_empty_generated_title_keeps_the_placeholder(self) -> None:
        insert_session(self.conn, "", Session(id="s", title="placeholder"))
        titled = set_title(self.conn, "", "s", "", 12, (0, 0, 0.0))
        assert titled is not None
        self.assertEqual(titled.title, "placeholder")

    def test_a_title_for_a_session_that_is_gone_is_no_error(self) -> None:
        self.assertIsNone(set_title(self.conn, "", "gone", "t", 1, (0, 0, 0.0)))

    def test_usage_holds_the_last_step_and_the_cost_adds_up(self) -> None:
        self.add("s")
        save_usage(self.conn, "", "s", (100, 10, 0.5), 11)
        session = save_usage(self.conn, "", "s", (40, 4, 0.25), 12)
        self.assertEqual(
            (session.prompt_tokens, session.completion_tokens, session.cost), (40, 4, 0.75)
        )

    def test_a_sum_of_tokens_stays_an_integer(self) -> None:
        self.add("s")
        save_usage(self.conn, "", "s", (2**63 - 1, 0, 0.0), 11)
        session = set_title(self.conn, "", "s", "t", 12, (2**63 - 1, 1, 0.0))
        assert session is not None
        self.assertEqual((session.prompt_tokens, session.completion_tokens), (2**63 - 1, 1))

    def test_usage_that_makes_no_sense_is_refused(self) -> None:
        self.add("s")
        for prompt, completion, cost in ((2**63, 0, 0.0), (0, -1, 0.0), (0, 0, float("inf"))):
            with self.assertRaises(BadRequest):
                save_usage(self.conn, "", "s", (prompt, completion, cost), 1)
            with self.assertRaises(BadRequest):
                set_title(self.conn, "", "s", "t", 1, (prompt, completion, cost))

    def test_a_summary_takes_the_place_of_what_filled_the_context(self) -> None:
        self.add("s")
        save_usage(self.conn, "", "s", (100, 10, 0.5), 11)
        session = set_summary(self.conn, "", "s", "m9", 7, 12)
        self.assertEqual(
            (session.summary_message_id, session.prompt_tokens, session.completion_tokens),
            ("m9", 0, 7),
        )
        self.assertEqual(session.cost, 0.5)

    def test_todos_are_replaced(self) -> None:
        self.add("s")
        set_todos(self.conn, "", "s", [Todo("a"), Todo("b", "completed", "b-ing")], 11)
        session = set_todos(self.conn, "", "s", [Todo("c")], 12)
        self.assertEqual(session.todos, [Todo("c")])

    def test_changing_a_session_that_is_gone_says_so(self) -> None:
        for change in (
            lambda: rename_session(self.conn, "", "s", "t", 1),
            lambda: save_usage(self.conn, "", "s", (1, 1, 0.0), 1),
            lambda: set_todos(self.conn, "", "s", [], 1),
            lambda: set_summary(self.conn, "", "s", "m", 1, 1),
            lambda: delete_session(self.conn, "", "s"),
        ):
            with self.assertRaises(SessionNotFound):
                change()

    def test_deleting_a_session_takes_all_of_its_family_and_records(self) -> None:
        self.add("s", "other")
        self.add("child", parent="s")
        self.add("grandchild", parent="child")
        self.assertEqual(child_ids(self.conn, "", "s"), ["child", "grandchild"])
        for sid in ("s", "child", "grandchild", "other"):
            self.say(f"m-{sid}", sid)
            insert_run(self.conn, "", RunRow(f"r-{sid}", sid, "d", "p"))
            record_changes(self.conn, "", sid, [Change("a", MISSING, MISSING)], 1.0)
            mark_read(self.conn, "", sid, "a", 1.0)
        self.assertEqual(delete_session(self.conn, "", "s"), ["s", "child", "grandchild"])
        for table in ("sessions", "messages", "runs", "files", "reads"):
            self.assertEqual(self.rows(table), 1, table)
        self.assertEqual(self.get("other").message_count, 1)


class MessageTests(QueryCase):
    def setUp(self) -> None:
        super().setUp()
        self.add("s", "t")

    def test_every_kind_of_part_comes_back_as_it_was_stored(self) -> None:
        self.assertEqual({part.tag for part in EVERY_PART}, set(PARTS))
        message = Message("m", "assistant", "s", EVERY_PART, "model", "provider", 20, 21, True)
        insert_message(self.conn, "", message)
        self.assertEqual(get_message(self.conn, "", "m"), message)

    def test_a_save_changes_parts_model_provider_and_time_only(self) -> None:
        message = self.say("m", role="assistant")
        message.parts, message.model, message.provider = [TextPart("more")], "m1", "p1"
        message.updated_at, message.created_at, message.role = 33, 99, "user"
        save_message(self.conn, "", message)
        message.created_at, message.role = 20, "assistant"
        self.assertEqual(get_message(self.conn, "", "m"), message)

    def test_a_save_of_a_message_that_is_gone_does_nothing(self) -> None:
        message = self.say("m")
        delete_session(self.conn, "", "s")
        save_message(self.conn, "", message)
        self.assertEqual(self.rows("messages"), 0)
        with self.assertRaises(NotFound):
            get_message(self.conn, "", "m")

    def test_messages_are_listed_in_the_order_of_their_creation(self) -> None:
        for n, sid in enumerate("sststs"):
            message = Message(f"m{n}", "user", sid, created_at=100 - n)
            insert_message(self.conn, "", message)
        self.assertEqual(
            [m.id for m in list_messages(self.conn, "", "s")], ["m0", "m1", "m3", "m5"]
        )
        self.assertEqual(list_messages(self.conn, "", "nobody"), [])

    def test_the_count_follows_inserts_and_deletes(self) -> None:
        for n in range(3):
            self.say(f"m{n}")
        delete_message(self.conn, "", "m1")
        delete_message(self.conn, "", "m1")
        self.assertEqual((self.get().message_count, self.get("t").message_count), (2, 0))

    def test_a_message_needs_its_session(self) -> None:
        with self.assertRaises(SessionNotFound):
            self.say("m", "nobody")
        with self.assertRaises(SessionNotFound):
            self.say("m", "s", scope="/other")

    def test_parts_that_cannot_be_read_are_not_blamed_on_the_caller(self) -> None:
        self.say("m")
        for parts in ("{", '[{"type":"unheard of","data":{}}]'):
            self.conn.execute("UPDATE messages SET parts = ?", (parts,))
            with self.assertRaisesRegex(CorruptDatabase, "message m"):
                get_message(self.conn, "", "m")


class RunTests(QueryCase):
    def setUp(self) -> None:
        super().setUp()
        self.add("s", "t")

    def row(self, run_id: str = "r", sid: str = "s", digest: str = "d") -> RunRow:
        return RunRow(
            run_id=run_id,
            session_id=sid,
            digest=digest,
            prompt="do\0it",
            attachments='[{"content":"AAA="}]',
            kind="prompt",
            when_busy="steer",
            detach=True,
            max_cost=0.5,
            max_steps=3,
            boot_id="boot",
            accepted_at=1.25,
        )

    def start(self, run_id: str, mid: str, carrier: str = "") -> None:
        message = Message(mid, "user", "s", [TextPart("do"), FinishPart("stop")])
        start_run(self.conn, "", run_id, message, 2.5, carrier)

    def test_a_run_comes_back_as_it_was_stored(self) -> None:
        self.assertIsNone(insert_run(self.conn, "", self.row()))
        self.assertEqual(get_run(self.conn, "", "r"), self.row())
        with self.assertRaises(RunNotFound):
            get_run(self.conn, "/other", "r")

    def test_a_repeat_gets_the_run_as_it_stands_now(self) -> None:
        insert_run(self.conn, "", self.row())
        end_run(self.conn, "", ending("r", "completed", "m", ended_at=9.0))
        known = insert_run(self.conn, "", self.row())
        assert known is not None
        self.assertEqual((known.outcome, known.message_id), ("completed", "m"))
        self.assertEqual(self.rows("runs"), 1)

    def test_a_run_id_with_another_digest_is_refused_in_its_scope_only(self) -> None:
        insert_run(self.conn, "", self.row())
        for other in (self.row(digest="other"), self.row(digest="other", sid="nobody")):
            with self.assertRaises(RunIdReused):
                insert_run(self.conn, "", other)
        self.add("s", scope="/other")
        self.assertIsNone(insert_run(self.conn, "/other", self.row(digest="other")))

    def test_a_run_needs_its_session_and_goes_with_it(self) -> None:
        with self.assertRaises(SessionNotFound):
            insert_run(self.conn, "", self.row(sid="nobody"))
        insert_run(self.conn, "", self.row())
        delete_session(self.conn, "", "s")
        with self.assertRaises(RunNotFound):
            get_run(self.conn, "", "r")

    def test_starting_stores_one_user_message_and_lets_go_of_the_attachments(self) -> None:
        insert_run(self.conn, "", self.row())
        self.start("r", "u")
        self.start("r", "u2")
        row = get_run(self.conn, "", "r")
        self.assertEqual((row.user_message_id, row.attachments), ("u", None))
        self.assertEqual((row.started_at, row.carrier), (2.5, ""))
        self.assertEqual([m.id for m in list_messages(self.conn, "", "s")], ["u"])
        with self.assertRaises(RunNotFound):
            self.start("nobody", "u3")

    def test_a_run_that_is_folded_remembers_its_carrier(self) -> None:
        insert_run(self.conn, "", self.row())
        self.start("r", "u", carrier="first")
        end_run(self.conn, "", ending("r", "completed", "m", ended_at=9.0))
        self.assertEqual(get_run(self.conn, "", "r").carrier, "first")

    def test_a_run_ends_once(self) -> None:
        insert_run(self.conn, "", self.row())
        how = ("failed", "m", "no\0more", 2, "carrier", 9.5)
        end_run(self.conn, "", ending("r", *how))
        end_run(self.conn, "", ending("r", "canceled", "m2", ended_at=10.0))
        row = get_run(self.conn, "", "r")
        self.assertEqual(
            (row.outcome, row.message_id, row.error, row.denied, row.carrier, row.ended_at), how
        )
        end_run(self.conn, "", ending("nobody", *how))
        self.assertEqual([row.run_id for row in list_runs(self.conn, "", None, None)], ["r"])

    def test_a_run_that_ends_unstarted_keeps_no_attachments(self) -> None:
        insert_run(self.conn, "", self.row())
        end_run(self.conn, "", ending("r", "cleared", "", ended_at=9.0))
        self.assertIsNone(get_run(self.conn, "", "r").attachments)

    def test_runs_are_listed_oldest_first_by_session_and_by_whether_they_ended(self) -> None:
        for run_id, sid in (("z", "s"), ("y", "t"), ("x", "s"), ("w", "s")):
            insert_run(self.conn, "", self.row(run_id, sid))
        end_run(self.conn, "", ending("x", "completed", "", ended_at=9.0))

        def found(sid: str | None, ended: bool | None) -> str:
            return "".join(row.run_id for row in list_runs(self.conn, "", sid, ended))

        self.assertEqual((found(None, None), found("s", None)), ("zyxw", "zxw"))
        self.assertEqual((found("s", True), found("s", False)), ("x", "zw"))
        self.assertEqual((found(None, False), found("nobody", None)), ("zyw", ""))
        named = ended_among(self.conn, "", ["w", "x", "nobody"])
        self.assertEqual([row.run_id for row in named], ["x"])


class FileTests(QueryCase):
    def setUp(self) -> None:
        super().setUp()
        self.add("s", "t")

    def put(self, content: str, path: str, sid: str = "s") -> File:
        known = list_files(self.conn, "", sid)
        state = FileState(f"content\0 of {content}")
        before = [state, *(FileState(file.content) for file in known if file.path == path)]
        change = Change(path, before[-1], state)
        (file,) = record_changes(self.conn, "", sid, [change], 10.5)
        return file

    def test_each_path_of_a_session_counts_its_versions_from_zero(self) -> None:
        versions = [
            self.put(f"f{n}", path, sid).version
            for n, (path, sid) in enumerate((("a", "s"), ("a", "s"), ("b", "s"), ("a", "t")))
        ]
        self.assertEqual(versions, [0, 1, 0, 0])

    def test_files_are_listed_by_version_then_creation(self) -> None:
        stored = [self.put(f"f{n}", path) for n, path in enumerate(("b", "b", "a", "a", "b"))]
        found = list_files(self.conn, "", "s")
        self.assertEqual(found, [stored[n] for n in (0, 2, 1, 3, 4)])
        self.assertEqual(list_files(self.conn, "", "t"), [])

    def test_a_change_adds_the_content_before_only_if_it_is_not_the_last_version(self) -> None:
        def change(before: str, after: str) -> list[tuple[int, str]]:
            states = FileState(before), FileState(after)
            added = record_changes(self.conn, "", "s", [Change("a", *states)], 12.5)
            self.assertTrue(all(file.created_at == 12 for file in added))
            return [(file.version, file.content) for file in added]

        self.assertEqual(change("", "one"), [(0, ""), (1, "one")])
        self.assertEqual(change("one", "two\0"), [(2, "two\0")])
        self.assertEqual(change("edited", "three"), [(3, "edited"), (4, "three")])
        self.assertEqual(change("three", "three"), [])
        with self.assertRaises(SessionNotFound):
            record_changes(self.conn, "", "nobody", [Change("a", MISSING, FileState("x"))], 1.0)

    def test_what_was_read_is_listed_the_last_read_first(self) -> None:
        for path, when in (("a", 5.5), ("b", 4.0), ("c", 3.0), ("a", 1.0)):
            mark_read(self.conn, "", "s", path, when)
        mark_read(self.conn, "", "t", "d", 9.0)
        self.assertEqual(list_read(self.conn, "", "s"), ["a", "c", "b"])
        self.assertEqual(last_read(self.conn, "", "s", "a"), 1.0)
        self.assertIsNone(last_read(self.conn, "", "s", "d"))

    def test_files_and_marks_need_their_session(self) -> None:
        with self.assertRaises(SessionNotFound):
            self.put("f", "a", "nobody")
        with self.assertRaises(SessionNotFound):
            mark_read(self.conn, "", "nobody", "a", 1.0)


class NoteTests(QueryCase):
    def test_an_owner_reads_its_short_notes_of_all_sessions_and_no_flood_of_them(self) -> None:
        self.add("s", "t", "u")
        for sid, content, owner in (
            ("s", "one", "me"),
            ("t", "x" * 101, "me"),
            ("u", "", "me"),
            ("u", "other", "you"),
        ):
            set_notes(self.conn, "", sid, content, owner)
        self.assertEqual(all_notes(self.conn, "", "me", 100), {"s": "one"})
        with mock.patch.object(choices, "_ALL_CHARS", 100), self.assertRaises(CorruptDatabase):
            all_notes(self.conn, "", "me", 101)


if __name__ == "__main__":
    unittest.main()
