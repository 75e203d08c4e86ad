"""Recovery: what a dead daemon left open is ended, once, in order, and nothing else is touched."""

from __future__ import annotations

import asyncio
import tempfile
import unittest
from pathlib import Path
from typing import TYPE_CHECKING

from crushlite.errors import CorruptDatabase
from crushlite.protocol.codec import dumps, encode
from crushlite.protocol.messages import (
    Attachment,
    BinaryPart,
    FinishPart,
    Message,
    Part,
    ReasoningPart,
    ShellCommandPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from crushlite.protocol.sessions import Session
from crushlite.store import Stores
from crushlite.store.connection import configure, connect
from crushlite.store.messages import get_message, insert_message, list_messages
from crushlite.store.migrations import migrate
from crushlite.store.recovery import INTERRUPTED, recover
from crushlite.store.runs import RunRow, end_run, get_run, insert_run, list_runs, start_run
from crushlite.store.sessions import get_session, insert_session
from crushlite.testing.fake_clock import FakeClock
from tests.support.basics import BoundedTestCase
from tests.support.store import DyingOpener, ending

if TYPE_CHECKING:
    import sqlite3

NOW = 2_000.0
MARKER = FinishPart("error", 2_000, "Interrupted", "interrupted: the daemon stopped")
STOP = FinishPart("stop")


class RecoveryCase(unittest.TestCase):
    def setUp(self) -> None:
        path = Path(self.enterContext(tempfile.TemporaryDirectory())) / "crushlite.db"
        path.touch()
        self.conn = connect(path, False)
        self.addCleanup(self.conn.close)
        configure(self.conn)
        migrate(self.conn, path)
        insert_session(self.conn, "", Session(id="s", title="t"))

    # What the daemon did before it died.

    def accept(self, run_id: str, prompt: str = "", **more: str) -> None:
        row = RunRow(run_id, more.pop("session_id", "s"), "digest", prompt or f"do {run_id}")
        row.boot_id, row.accepted_at = more.pop("boot_id", "old"), 1_000.5
        row.attachments = more.pop("attachments", None)
        row.carrier = more.pop("carrier", "")
        self.assertEqual(more, {})
        self.assertIsNone(insert_run(self.conn, "", row))

    def start(self, run_id: str, carrier: str = "") -> None:
        sid = get_run(self.conn, "", run_id).session_id
        message = Message(f"u-{run_id}", "user", sid, [TextPart(f"do {run_id}"), STOP])
        start_run(self.conn, "", run_id, message, 1_001.0, carrier)

    def say(self, mid: str, *parts: Part, role: str = "assistant", sid: str = "s") -> None:
        insert_message(self.conn, "", Message(mid, role, sid, list(parts), created_at=1_002))

    def result(self, mid: str, call: str) -> None:
        self.say(mid, ToolResultPart(call, "bash", "fine"), STOP, role="tool")

    # What is there afterwards.

    def recover(self) -> list[str]:
        """Recover, and check that doing it again changes nothing."""
        ended = recover(self.conn, "new", NOW)
        once = list(self.conn.iterdump())
        self.assertEqual(recover(self.conn, "new", NOW + 100), [])
        self.assertEqual(recover(self.conn, "newer", NOW + 200), [])
        self.assertEqual(list(self.conn.iterdump()), once)
        return ended

    def history(self, sid: str = "s") -> list[Message]:
        messages = list_messages(self.conn, "", sid)
        self.assertEqual(get_session(self.conn, "", sid).message_count, len(messages))
        return messages

    def shape(self, sid: str = "s") -> list[str]:
        """Messages as `role:id`; those that recovery made are told by role alone."""
        return [m.role if len(m.id) == 36 else f"{m.role}:{m.id}" for m in self.history(sid)]

    def check_run(self, run_id: str, message_id: str) -> None:
        row = get_run(self.conn, "", run_id)
        self.assertEqual(
            (row.outcome, row.error, row.message_id, row.ended_at, row.attachments),
            ("failed", INTERRUPTED, message_id, NOW, None),
        )


class PromptTests(RecoveryCase):
    def test_nothing_to_do_changes_nothing(self) -> None:
        before = list(self.conn.iterdump())
        self.assertEqual(self.recover(), [])
        self.assertEqual(list(self.conn.iterdump()), before)

    def test_a_prompt_that_never_started_becomes_a_message_with_a_marker(self) -> None:
        self.accept("r1", "hello\0world")
        self.assertEqual(self.recover(), ["r1"])
        user, assistant = self.history()
        self.assertEqual((user.role, user.parts), ("user", [TextPart("hello\0world"), STOP]))
        self.assertEqual(user.created_at, 1_000)
        self.assertEqual((assistant.role, assistant.parts), ("assistant", [MARKER]))
        self.assertEqual(get_run(self.conn, "", "r1").user_message_id, user.id)
        self.check_run("r1", assistant.id)

    def test_the_times_of_a_recovered_history_go_up(self) -> None:
        self.accept("r1")
        self.accept("r2")
        self.recover()
        times = [message.created_at for message in self.history()]
        self.assertEqual(times, [1_000, 2_000, 2_000, 2_000])

    def test_attachments_move_from_the_row_into_the_message(self) -> None:
        files = [
            Attachment("Zm9v", "dir/notes.txt", "notes.txt", "text/plain"),
            Attachment("AAA=", "a.png", "a.png", "image/png"),
        ]
        self.accept("r1", attachments=dumps(encode(files)).decode())
        self.recover()
        self.assertEqual(
            self.history()[0].parts,
            [
                TextPart("do r1"),
                BinaryPart("dir/notes.txt", "text/plain", "Zm9v"),
                BinaryPart("a.png", "image/png", "AAA="),
                STOP,
            ],
        )
        self.assertIsNone(get_run(self.conn, "", "r1").attachments)

    def test_attachments_that_cannot_be_read_do_not_cost_the_prompt(self) -> None:
        nonsense = ("{not json", '[{"content": 5}]', "null", "5", "[null]")
        for number, attachments in enumerate(nonsense):
            self.accept(f"r{number}", attachments=attachments)
        self.assertEqual(self.recover(), [f"r{number}" for number in range(len(nonsense))])
        prompts = [message.parts for message in self.history() if message.role == "user"]
        expected = [[TextPart(f"do r{number}"), STOP] for number in range(len(nonsense))]
        self.assertEqual(prompts, expected)

    def test_a_message_id_given_in_advance_is_kept(self) -> None:
        row = RunRow("r1", "s", "digest", "hi", user_message_id="mine", boot_id="old")
        insert_run(self.conn, "", row)
        self.recover()
        self.assertEqual(get_message(self.conn, "", "mine").text, "hi")

    def test_queued_prompts_follow_the_interrupted_turn_in_the_order_of_their_runs(self) -> None:
        for run_id in ("r1", "r2", "r3"):
            self.accept(run_id)
        self.start("r1")
        self.say("a1", TextPart("half"))
        self.assertEqual(self.recover(), ["r1", "r2", "r3"])
        self.assertEqual(
            self.shape(),
            ["user:u-r1", "assistant:a1", "user", "assistant", "user", "assistant"],
        )
        texts = [message.text for message in self.history() if message.role == "user"]
        self.assertEqual(texts, ["do r1", "do r2", "do r3"])

    def test_finished_runs_and_runs_of_this_boot_are_left_alone(self) -> None:
        self.accept("done")
        self.start("done")
        self.say("a1", TextPart("answer"), FinishPart("end_turn", 5))
        end_run(self.conn, "", ending("done", "completed", "a1", ended_at=1_003.0))
        self.accept("mine", boot_id="new")
        self.start("mine")
        self.say("a2", TextPart("going on"))
        before = list(self.conn.iterdump())
        self.assertEqual(recover(self.conn, "new", NOW), [])
        self.assertEqual(list(self.conn.iterdump()), before)


class TurnTests(RecoveryCase):
    def setUp(self) -> None:
        super().setUp()
        self.accept("r1")
        self.start("r1")

    def test_a_started_run_without_an_answer_gets_one_and_no_second_prompt(self) -> None:
        self.recover()
        user, assistant = self.history()
        self.assertEqual((user.id, assistant.parts), ("u-r1", [MARKER]))
        self.check_run("r1", assistant.id)

    def test_a_streaming_answer_keeps_its_text_and_is_marked(self) -> None:
        self.say("a1", ReasoningPart("hm", "", 1_002), TextPart("half an ans"))
        self.recover()
        answer = self.history()[1]
        self.assertEqual(
            answer.parts, [ReasoningPart("hm", "", 1_002, 2_000), TextPart("half an ans"), MARKER]
        )
        self.assertEqual(answer.updated_at, 2_000)
        self.check_run("r1", "a1")

    def test_a_call_whose_arguments_still_streamed_is_closed_and_answered(self) -> None:
        self.say("a1", ToolCallPart("c1", "bash", '{"comm'))
        self.recover()
        _, answer, result = self.history()
        self.assertEqual(answer.parts, [ToolCallPart("c1", "bash", "{}", finished=True), MARKER])
        self.assertEqual(result.role, "tool")
        self.assertEqual(
            result.parts, [ToolResultPart("c1", "bash", INTERRUPTED, is_error=True), STOP]
        )
        self.check_run("r1", "a1")

    def test_only_calls_without_a_result_are_answered_and_their_input_is_kept(self) -> None:
        calls = [ToolCallPart(f"c{n}", "bash", '{"n":1}', finished=True) for n in range(3)]
        self.say("a1", *calls, FinishPart("tool_use", 7))
        self.result("t1", "c1")
        self.recover()
        _, answer, *results = self.history()
        self.assertEqual(answer.parts, [*calls, MARKER])
        found = {r.tool_call_id: r.is_error for m in results for r in m.tool_results}
        self.assertEqual(found, {"c0": True, "c1": False, "c2": True})
        self.assertEqual([m.role for m in results], ["tool"] * 3)

    def test_a_made_up_result_stands_behind_the_given_ones_and_times_go_up(self) -> None:
        for given in ("c1", "c2"):
            with self.subTest(given=given):
                self.accept(given)
                self.start(given)
                calls = [ToolCallPart(call, "bash", "{}", finished=True) for call in ("c1", "c2")]
                self.say(f"a-{given}", *calls, FinishPart("tool_use", 7))
                self.result(f"t-{given}", given)
                self.recover()
                turn = self.history()[-4:]
                ids = [message.id for message in turn[:3]]
                self.assertEqual(ids, [f"u-{given}", f"a-{given}", f"t-{given}"])
                made_up = {"c1": "c2", "c2": "c1"}[given]
                expected = ToolResultPart(made_up, "bash", INTERRUPTED, is_error=True)
                self.assertEqual(turn[3].parts, [expected, STOP])
                times = [message.created_at for message in turn[1:]]
                self.assertEqual(times, sorted(times))

    def test_a_message_at_no_position_is_damage_and_not_passed_over(self) -> None:
        for message in ("u-r1", "a1"):
            self.conn.execute("SAVEPOINT before")
            self.say("a1", TextPart("half"))
            self.conn.execute("UPDATE messages SET position = 'x' WHERE id = ?", (message,))
            with self.subTest(message), self.assertRaisesRegex(CorruptDatabase, "position"):
                recover(self.conn, "new", NOW)
            self.conn.execute("ROLLBACK TO before")

    def test_a_turn_that_stopped_between_two_steps_gets_its_marker(self) -> None:
        call = ToolCallPart("c1", "bash", "{}", finished=True)
        self.say("a1", call, FinishPart("tool_use", 7))
        self.result("t1", "c1")
        self.recover()
        self.assertEqual(self.shape(), ["user:u-r1", "assistant:a1", "tool:t1"])
        self.assertEqual(self.history()[1].parts, [call, MARKER])

    def test_earlier_steps_of_the_turn_keep_their_finish(self) -> None:
        call = ToolCallPart("c1", "bash", "{}", finished=True)
        self.say("a1", call, FinishPart("tool_use", 7))
        self.result("t1", "c1")
        self.say("a2", TextPart("and then"))
        self.recover()
        self.assertEqual(self.history()[1].parts, [call, FinishPart("tool_use", 7)])
        self.assertEqual(self.history()[3].parts, [TextPart("and then"), MARKER])
        self.check_run("r1", "a2")

    def test_call_ids_that_begin_anew_in_every_step_are_told_apart(self) -> None:
        for step in ("1", "2"):
            self.say(
                f"a{step}",
                ToolCallPart("call_0", "bash", "{}", finished=True),
                FinishPart("tool_use", 7),
            )
            if step == "1":
                self.result("t1", "call_0")
        self.recover()
        self.assertEqual(
            self.shape(), ["user:u-r1", "assistant:a1", "tool:t1", "assistant:a2", "tool"]
        )

    def test_a_result_is_placed_behind_its_call_whatever_was_written_since(self) -> None:
        self.say(
            "a1",
            ToolCallPart("c1", "bash", "{}", finished=True),
            ToolCallPart("c2", "bash", "{}", finished=True),
        )
        self.say("shell", ShellCommandPart("ls", "a\n", 0), STOP, role="user")
        self.recover()
        self.assertEqual(self.shape(), ["user:u-r1", "assistant:a1", "tool", "tool", "user:shell"])
        results = [r.tool_call_id for m in self.history() for r in m.tool_results]
        self.assertEqual(results, ["c1", "c2"])

    def test_an_answer_that_was_complete_keeps_its_finish(self) -> None:
        self.say("a1", TextPart("done"), FinishPart("end_turn", 9))
        self.recover()
        self.assertEqual(self.history()[1].parts, [TextPart("done"), FinishPart("end_turn", 9)])
        self.check_run("r1", "a1")

    def test_the_turn_of_an_earlier_run_is_not_taken_for_this_one(self) -> None:
        self.say("a1", TextPart("first"), FinishPart("end_turn", 9))
        end_run(self.conn, "", ending("r1", "completed", "a1", ended_at=1_003.0))
        self.accept("r2")
        self.start("r2")
        self.recover()
        self.assertEqual(self.shape(), ["user:u-r1", "assistant:a1", "user:u-r2", "assistant"])
        self.assertEqual(get_run(self.conn, "", "r1").outcome, "completed")

    def test_the_turn_of_a_later_run_is_not_taken_for_this_one(self) -> None:
        self.accept("r2")
        self.start("r2")
        self.say("a2", TextPart("second"), FinishPart("end_turn", 9))
        end_run(self.conn, "", ending("r2", "completed", "a2", ended_at=1_003.0))
        self.recover()
        self.assertEqual(self.shape(), ["user:u-r1", "assistant", "user:u-r2", "assistant:a2"])
        self.check_run("r1", self.history()[1].id)

    def test_other_scopes_are_recovered_apart(self) -> None:
        insert_session(self.conn, "/there", Session(id="s"))
        insert_run(self.conn, "/there", RunRow("r1", "s", "digest", "hi", boot_id="old"))
        self.assertEqual(self.recover(), ["r1", "r1"])
        self.assertEqual(len(list_messages(self.conn, "/there", "s")), 2)
        self.assertEqual(len(self.history()), 2)


class RiderTests(RecoveryCase):
    def test_a_rider_shares_the_ending_of_its_carrier(self) -> None:
        self.accept("r1")
        self.start("r1")
        self.say("a1", ToolCallPart("c1", "bash", "{}", finished=True), FinishPart("tool_use", 7))
        self.result("t1", "c1")
        self.accept("r2")
        self.start("r2", carrier="r1")
        self.say("a2", TextPart("half"))
        self.assertEqual(self.recover(), ["r1", "r2"])
        self.assertEqual(
            self.shape(),
            ["user:u-r1", "assistant:a1", "tool:t1", "user:u-r2", "assistant:a2"],
        )
        self.check_run("r1", "a2")
        self.check_run("r2", "a2")

    def test_a_rider_without_its_message_gets_it(self) -> None:
        self.accept("r1")
        self.start("r1")
        self.say("a1", TextPart("half"))
        self.accept("r2", carrier="r1")
        self.recover()
        self.assertEqual(self.shape(), ["user:u-r1", "assistant:a1", "user"])
        self.check_run("r2", "a1")

    def test_a_rider_whose_carrier_had_ended_takes_over_that_outcome(self) -> None:
        self.accept("r1")
        self.start("r1")
        self.accept("r2")
        self.start("r2", carrier="r1")
        self.say("a1", TextPart("done"), FinishPart("end_turn", 9))
        end_run(self.conn, "", ending("r1", "completed", "a1", ended_at=1_003.0))
        self.recover()
        row = get_run(self.conn, "", "r2")
        self.assertEqual((row.outcome, row.message_id, row.error), ("completed", "a1", ""))

    def test_a_rider_whose_carrier_is_unknown_is_a_run_like_any_other(self) -> None:
        self.accept("r2", carrier="gone")
        self.recover()
        self.assertEqual(self.shape(), ["user", "assistant"])
        self.check_run("r2", self.history()[1].id)


class OtherMessageTests(RecoveryCase):
    def summary(self, mid: str, *parts: Part) -> None:
        message = Message(mid, "assistant", "s", list(parts), is_summary_message=True)
        insert_message(self.conn, "", message)

    def test_an_unfinished_summary_is_deleted_and_a_finished_one_kept(self) -> None:
        self.summary("whole", TextPart("so far"), FinishPart("end_turn", 3))
        self.summary("half", TextPart("so f"))
        self.recover()
        self.assertEqual(self.shape(), ["assistant:whole"])

    def test_a_summary_is_not_the_answer_of_the_run_it_served(self) -> None:
        self.accept("r1")
        self.start("r1")
        self.summary("whole", TextPart("so far"), FinishPart("end_turn", 3))
        self.recover()
        self.assertEqual(self.shape(), ["user:u-r1", "assistant:whole", "assistant"])
        self.check_run("r1", self.history()[2].id)

    def test_the_sessions_of_sub_agents_are_closed_too(self) -> None:
        self.accept("r1")
        self.start("r1")
        self.say("a1", ToolCallPart("c1", "agent", "{}", finished=True), FinishPart("tool_use", 7))
        insert_session(self.conn, "", Session(id="a1$$c1", parent_session_id="s"))
        insert_session(self.conn, "", Session(id="deep", parent_session_id="a1$$c1"))
        call = ToolCallPart("c9", "view", "{}", finished=True)
        self.say("b1", call, FinishPart("tool_use", 8), sid="a1$$c1")
        self.say("d1", TextPart("half"), sid="deep")
        self.recover()
        self.assertEqual(self.shape("a1$$c1"), ["assistant:b1", "tool"])
        self.assertEqual(self.history("a1$$c1")[0].parts, [call, MARKER])
        self.assertEqual(self.history("deep")[0].parts, [TextPart("half"), MARKER])

    def test_an_open_message_that_belongs_to_no_run_is_closed(self) -> None:
        self.say("a1", TextPart("half"))
        self.assertEqual(self.recover(), [])
        self.assertEqual(self.history()[0].parts, [TextPart("half"), MARKER])


class KilledTests(BoundedTestCase):
    async def test_a_process_that_dies_at_any_statement_of_recovery_leaves_it_all_to_the_next(
        self,
    ) -> None:
        directory = Path(self.enterContext(tempfile.TemporaryDirectory())) / "data"
        stores = Stores(clock=FakeClock(), boot_id="boot1")
        store = await stores.open(directory)
        await store.submit(self.promise, durably=True)
        await stores.release(store)
        opener = self.enterContext(DyingOpener())
        deaths = 0
        while opener.open_and_die(directory, deaths + 1):
            deaths += 1
        self.assertGreater(deaths, 30)
        with self.assertNoLogs("crushlite.store.stores"):
            store = await stores.open(directory)
        rows = await store.read(lambda conn: list_runs(conn, "", "s", None))
        self.assertEqual([row.outcome for row in rows], ["failed"] * 3)
        messages = await store.read(lambda conn: list_messages(conn, "", "s"))
        # The second run's answer was open; the third rode on it.
        roles = ["user", "assistant", "user", "assistant", "tool", "user"]
        self.assertEqual(sorted(m.role for m in messages), sorted(roles))
        for message in messages:
            self.assertIsNotNone(message.finish)
        check = await store.read(lambda conn: conn.execute("PRAGMA integrity_check").fetchall())
        self.assertEqual(check, [("ok",)])
        await stores.release(store)

    @staticmethod
    def promise(conn: sqlite3.Connection) -> None:
        """A run that never started, one in the middle of its answer, and one that rode on it."""
        insert_session(conn, "", Session(id="s"))
        for run_id, carrier in (("r1", ""), ("r2", ""), ("r3", "r2")):
            row = RunRow(run_id, "s", "d", "hello", carrier=carrier, boot_id="boot1")
            insert_run(conn, "", row)
        prompt = Message("u2", "user", "s", [TextPart("hello"), FinishPart("stop")])
        start_run(conn, "", "r2", prompt, 1.0)
        call = ToolCallPart("c", "view", "{", finished=False)
        insert_message(conn, "", Message("a2", "assistant", "s", [TextPart("half"), call]))


class OpenTests(unittest.IsolatedAsyncioTestCase):
    async def test_opening_recovers_the_runs_of_the_boot_before_and_says_which(self) -> None:
        directory = Path(self.enterContext(tempfile.TemporaryDirectory())) / "data"

        def promise(conn: sqlite3.Connection) -> None:
            insert_session(conn, "", Session(id="s"))
            for run_id in ("r1", "r2"):
                insert_run(conn, "", RunRow(run_id, "s", "d", "hello", boot_id="boot1"))

        async with asyncio.timeout(30):
            stores = Stores(clock=FakeClock(), boot_id="boot1")
            store = await stores.open(directory)
            await store.submit(promise, durably=True)
            await stores.release(store)
            for boot_id in ("boot1", "boot2", "boot3"):
                stores = Stores(clock=FakeClock(), boot_id=boot_id)
                if boot_id == "boot2":
                    with self.assertLogs("crushlite.store.stores", "WARNING") as logs:
                        store = await stores.open(directory)
                    self.assertRegex(logs.output[0], "were interrupted when .* stopped: r1, r2$")
                else:
                    with self.assertNoLogs("crushlite.store.stores"):
                        store = await stores.open(directory)
                await stores.release(store)
            store = await stores.open(directory)
            ended = await store.read(lambda conn: list_runs(conn, "", "s", True))
            self.assertEqual([row.run_id for row in ended], ["r1", "r2"])
            await stores.release(store)


if __name__ == "__main__":
    unittest.main()
