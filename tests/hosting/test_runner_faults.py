"""Runs on a store that cannot write: what is refused, what is held, what is told, how it heals.

Over HTTP, with time and the disk in the test's hands.
"""

from __future__ import annotations

import errno
import sqlite3
from typing import TYPE_CHECKING, Any
from unittest import mock

from crushlite.agent.base import Usage
from crushlite.claims import Graces
from crushlite.clock import SystemClock
from crushlite.errors import BadRequest, ProviderFailed, StoreFull
from crushlite.settings import Settings
from crushlite.store import Stores, messages as message_rows, runs as run_rows
from crushlite.store.checkpoints import Checkpoints
from crushlite.store.sessions import delete_session
from crushlite.testing import LocalDaemon, ScriptedAgent
from crushlite.testing.fake_clock import FakeClock
from tests.support.basics import BoundedTestCase
from tests.support.disk import Disk
from tests.support.prompts import shape, until

if TYPE_CHECKING:
    from pathlib import Path

    from crushlite.agent.base import Turn
    from crushlite.hosting.transcript import Transcript
    from crushlite.store import Store
    from crushlite.store.runs import RunRow
    from crushlite.testing import Answer, Participant, ScriptedRun, Seen

ENDS = "UPDATE runs SET outcome"  # what only an ending does
HEALING = 6.0  # longer than the longest pause between two tries

History = list[tuple[str, str, str]]


class Summarizer(ScriptedAgent):
    fails = False  # in summarizing

    async def summarize(self, turn: Turn) -> None:
        await turn.say("in short")
        if self.fails:
            raise ProviderFailed("no more words")


class FaultTestCase(BoundedTestCase):
    async def asyncSetUp(self) -> None:
        self.disk = Disk()
        self.clock = FakeClock()
        self.agent = Summarizer()
        self.daemon = await self.start()
        self.addCleanup(self.disk.free)
        self.anna: Participant = await self.daemon.join()
        self.session = await self.anna.session()

    async def start(self, **settings: Any) -> LocalDaemon:
        daemon = LocalDaemon(
            self.agent,
            clock=self.clock,
            settings=Settings(graces=Graces(create=60, detach=60), **settings),
            stores=self.disk.stores(self.clock),
        )
        return await self.enterAsyncContext(daemon)

    @property
    def store(self) -> Store:
        return self.daemon.backend.get(self.anna.workspace["id"]).store.store

    async def begin(self, run_id: str = "main", session: str | None = None) -> ScriptedRun:
        number = len(self.agent.runs) + 1
        await self.anna.prompt(session or self.session, run_id, run_id=run_id)
        return await self.daemon.entered(number)

    async def end(self, run: ScriptedRun, words: str = "done") -> Seen:
        await run.say(words)
        run.release()
        return await self.anna.events.wait_for("run_complete", run_id=run.turn.run_id)

    async def unsaved(self) -> None:
        """A run whose ending waits, and one that waits for it."""
        run = await self.begin()
        await self.anna.prompt(self.session, "next", run_id="next")
        self.disk.fill()
        self.assertIn("not saved: ", (await self.end(run))["error"])

    async def heal(self) -> None:
        self.disk.free()
        await self.clock.advance(HEALING)
        await until(lambda: not self.daemon.backend.unsaved, "every ending written")

    async def refused(self, answer: Answer, status: int, code: str) -> None:
        self.assertEqual((answer.status, answer.json["code"]), (status, code), answer)

    async def info(self, run_id: str) -> dict[str, Any]:
        answer = await self.anna.call("GET", f"/runs/{run_id}")
        self.assertEqual(answer.status, 200, answer)
        found: dict[str, Any] = answer.json
        return found

    async def told(self) -> History:
        """The history as a client reads it."""
        return shape(await self.anna.messages(self.session))

    async def streamed(self) -> History:
        """The history as the stream told it."""
        newest: dict[str, Seen] = {}
        for event in self.anna.events.all("message"):
            newest[event["id"]] = event
            if event.action == "deleted":
                del newest[event["id"]]
        return shape(list(newest.values()))

    async def kept(self) -> History:
        """The history as the rows hold it."""
        found = await self.store.read(
            lambda conn: message_rows.list_messages(conn, "", self.session)
        )
        return [
            (message.role, message.finish.reason if message.finish else "", message.text)
            for message in found
        ]

    async def assert_agreed(self, expected: History) -> None:
        self.assertEqual(await self.kept(), expected)
        self.assertEqual(await self.told(), expected)
        self.assertEqual(await self.streamed(), expected)

    async def row(self, run_id: str) -> RunRow:
        return await self.store.read(lambda conn: run_rows.get_run(conn, "", run_id))

    def live(self) -> dict[str, Any]:
        """The messages that are in memory because their rows are not what they should be."""
        return dict(self.transcript()._live)

    def transcript(self) -> Transcript:
        return self.daemon.backend.get(self.anna.workspace["id"]).transcript

    def endings(self) -> list[str]:
        return [event["run_id"] for event in self.anna.events.all("run_complete")]

    @property
    def queue_path(self) -> str:
        return f"/agent/sessions/{self.session}/prompts"

    async def queue(self) -> list[str]:
        answer = await self.anna.call("GET", self.queue_path)
        return [entry["run_id"] for entry in answer.json]


class HoldTests(FaultTestCase):
    async def test_an_ending_is_told_at_once_and_written_when_there_is_room(self) -> None:
        await self.unsaved()
        self.assertEqual(self.daemon.backend.unsaved, 1)
        self.assertIsNone((await self.row("main")).outcome)
        told = await self.info("main")
        self.assertEqual((told["state"], told["outcome"]), ("ended", "completed"))
        self.assertEqual(told["text"], "done")
        self.assertEqual(len(self.live()), 1)  # the answer: the prompt was stored at its start
        self.assertIn("not saved: ", told["error"])
        self.assertEqual(await self.told(), await self.streamed())
        listed = (await self.anna.call("GET", "/runs?state=ended")).json
        ended = [(run["run_id"], run["outcome"]) for run in listed]
        self.assertEqual(ended, [("main", "completed")])

        await self.heal()
        second = await self.daemon.entered(2)
        self.assertIsNone((await self.end(second, "too"))["error"])
        row = await self.row("main")
        self.assertEqual((row.outcome, row.error), ("completed", ""))
        told = await self.info("main")
        self.assertEqual(
            (told["state"], told["outcome"], told["error"]), ("ended", "completed", "")
        )
        await self.assert_agreed(
            [
                ("user", "stop", "main"),
                ("assistant", "end_turn", "done"),
                ("user", "stop", "next"),
                ("assistant", "end_turn", "too"),
            ]
        )
        self.assertEqual(self.endings(), ["main", "next"])
        self.assertEqual(self.live(), {})

    async def test_clients_learn_what_the_session_is_when_it_was_written_late(self) -> None:
        run = await self.begin()
        self.disk.fill()
        await self.end(run)
        await self.heal()
        updated = await self.anna.events.wait_for("session", id=self.session)
        self.assertEqual(updated["message_count"], 2)
        self.assertEqual(self.live(), {})
        self.assertEqual(len(self.anna.events.all("agent_event")), 1)
        self.assertEqual(self.endings(), ["main"])

    async def test_what_waits_stays_queued(self) -> None:
        await self.unsaved()
        self.assertEqual(await self.queue(), ["next"])
        self.assertEqual((await self.info("next"))["state"], "queued")
        self.assertTrue(await self.anna.busy(self.session))
        self.assertEqual(len(self.agent.runs), 1)

    async def test_a_turn_in_another_session_goes_on_and_ends_unsaved_too(self) -> None:
        other = await self.anna.session()
        elsewhere = await self.begin("elsewhere", other)
        await self.anna.prompt(other, "later", run_id="later")
        await self.unsaved()
        # Turns under way go on, and end in their turn.
        self.assertIn("not saved", (await self.end(elsewhere))["error"])
        self.assertEqual((await self.info("later"))["state"], "queued")
        self.assertEqual(len(self.agent.runs), 2)
        await self.heal()
        prompts = {(await self.daemon.entered(number)).prompt for number in (3, 4)}
        self.assertEqual(prompts, {"next", "later"})

    async def test_nothing_new_is_taken_until_then(self) -> None:
        await self.unsaved()
        for mode in ("steer", "queue", "interrupt", "reject"):
            answer = await self.anna.try_prompt(self.session, "x", run_id="x", when_busy=mode)
            await self.refused(answer, 507, "not_saved")
        await self.refused(await self.anna.call("GET", "/runs/x"), 404, "run_not_found")
        path = f"/agent/sessions/{self.session}"
        await self.refused(await self.anna.call("POST", f"{path}/summarize"), 507, "not_saved")
        answer = await self.anna.call("POST", f"{path}/shell", {"command": "touch made"})
        await self.refused(answer, 507, "not_saved")
        self.assertFalse((self.daemon.root / "project" / "made").exists())
        self.assertEqual(await self.queue(), ["next"])
        await self.heal()
        (await self.daemon.entered(2)).release()
        await self.anna.prompt(self.session, "x", run_id="x")
        (await self.daemon.entered(3)).release()
        await self.anna.events.wait_for("run_complete", run_id="x")
        self.assertEqual(self.endings(), ["main", "next", "x"])

    async def test_a_repeat_is_no_new_prompt_and_is_answered_meanwhile(self) -> None:
        await self.end(await self.begin("saved"))
        await self.unsaved()
        for run_id, state in (("saved", "ended"), ("main", "ended"), ("next", "queued")):
            again = await self.anna.prompt(self.session, run_id, run_id=run_id)
            self.assertEqual(again.json["state"], state)
            other = await self.anna.try_prompt(self.session, "another", run_id=run_id)
            await self.refused(other, 409, "run_id_reused")
        self.assertEqual(len(self.agent.runs), 2)

    async def test_a_canceled_run_that_was_held_leaves_its_pair(self) -> None:
        await self.unsaved()
        receipt = await self.anna.cancel(self.session, wait=20)
        self.assertEqual(receipt, [{"run_id": "next", "was": "queued"}])
        done = await self.anna.events.wait_for("run_complete", run_id="next")
        self.assertTrue(done["cancelled"])
        self.assertIn("not saved: ", done["error"])
        self.assertFalse(await self.anna.busy(self.session))
        await self.heal()
        await self.assert_agreed(
            [
                ("user", "stop", "main"),
                ("assistant", "end_turn", "done"),
                ("user", "stop", "next"),
                ("assistant", "canceled", ""),
            ]
        )
        self.assertEqual((await self.row("next")).outcome, "canceled")
        self.assertEqual((self.endings(), len(self.agent.runs)), (["main", "next"], 1))

    async def test_cleared_and_removed_runs_end_without_a_trace_once_there_is_room(self) -> None:
        await self.anna.prompt(self.session, "main", run_id="main")
        run = await self.daemon.entered(1)
        for name in ("one", "two"):
            await self.anna.prompt(self.session, name, run_id=name)
        self.disk.fill()
        await self.end(run)
        self.assertEqual((await self.anna.call("DELETE", f"{self.queue_path}/one")).status, 200)
        self.assertEqual(await self.queue(), ["two"])
        self.assertEqual((await self.anna.call("POST", f"{self.queue_path}/clear")).status, 200)
        self.assertEqual(await self.queue(), [])
        await self.anna.events.wait_for("run_complete", run_id="two")
        self.assertEqual(self.endings(), ["main", "one", "two"])
        await self.heal()
        await self.assert_agreed([("user", "stop", "main"), ("assistant", "end_turn", "done")])
        for name in ("one", "two"):
            self.assertEqual((await self.row(name)).outcome, "cleared")
        self.assertEqual(self.endings(), ["main", "one", "two"])

    async def test_why_a_run_failed_is_not_lost_over_it(self) -> None:
        run = await self.begin()
        self.disk.fill()
        run.fail("no idea")
        done = await self.anna.events.wait_for("run_complete", run_id="main")
        self.assertIn("not saved: ", done["error"])
        self.assertIn("no idea", done["error"])
        await self.heal()
        row = await self.row("main")
        self.assertEqual((row.outcome, row.error), ("failed", "ScriptedFailure: no idea"))

    async def test_a_locked_file_holds_and_heals_alike(self) -> None:
        run = await self.begin()
        self.disk.lock()
        await self.refused(await self.anna.try_prompt(self.session, "x"), 503, "store_busy")
        self.assertIn("locked", (await self.end(run))["error"])
        await self.refused(await self.anna.try_prompt(self.session, "x"), 507, "not_saved")
        await self.heal()
        await self.assert_agreed([("user", "stop", "main"), ("assistant", "end_turn", "done")])

    async def test_a_detached_run_lets_go_of_the_workspace_although_it_is_not_saved(self) -> None:
        await self.anna.prompt(self.session, "main", run_id="main", detach=True)
        run = await self.daemon.entered(1)
        self.disk.fill()
        await self.end(run)
        await self.anna.retire()
        await until(lambda: not self.daemon.backend.everything(), "the teardown")


class SharedStoreTests(BoundedTestCase):
    async def test_every_workspace_of_the_store_refuses_prompts_until_it_is_written(self) -> None:
        disk, clock, agent = Disk(), FakeClock(), ScriptedAgent()
        self.addCleanup(disk.free)
        daemon = LocalDaemon(agent, clock=clock, stores=disk.stores(clock))
        (daemon.root / "second").mkdir()
        async with daemon:
            shared = str(daemon.root / "shared")
            anna = await daemon.join(data_dir=shared)
            bert = await daemon.join(daemon.root / "second", data_dir=shared)
            here, there = await anna.session(), await bert.session()
            await anna.prompt(here, "one", run_id="one")
            await bert.prompt(there, "two", run_id="two")
            first, second = await daemon.entered(1), await daemon.entered(2)
            await bert.prompt(there, "three", run_id="three")
            disk.fill(ENDS)
            first.release()
            await anna.events.wait_for("run_complete", run_id="one")
            answer = await bert.try_prompt(there, "four")
            self.assertEqual((answer.status, answer.json["code"]), (507, "not_saved"))
            disk.free()
            second.release()  # its own ending is written, which says that there is room
            done = await bert.events.wait_for("run_complete", run_id="two")
            self.assertIsNone(done["error"])
            third = await daemon.entered(3)
            self.assertEqual(third.prompt, "three")
            await until(lambda: daemon.backend.unsaved == 0, "the ending")
            answer = await anna.call("GET", "/runs/one")
            self.assertEqual(answer.json["outcome"], "completed")
            third.release()


class RefusalTests(FaultTestCase):
    async def test_a_prompt_that_finds_no_room_leaves_no_trace_and_can_be_repeated(self) -> None:
        for mode in ("queue", "reject", "interrupt"):
            self.disk.fill()
            answer = await self.anna.try_prompt(self.session, mode, run_id=mode, when_busy=mode)
            await self.refused(answer, 507, "store_full")
            self.assertFalse(await self.anna.busy(self.session))
            await self.refused(await self.anna.call("GET", f"/runs/{mode}"), 404, "run_not_found")
            self.assertEqual(self.daemon.backend.unsaved, 0)
            self.disk.free()
            await self.end(await self.begin_again(mode), mode)
        self.assertEqual(self.endings(), ["queue", "reject", "interrupt"])

    async def begin_again(self, mode: str) -> ScriptedRun:
        number = len(self.agent.runs) + 1
        await self.anna.prompt(self.session, mode, run_id=mode, when_busy=mode)
        return await self.daemon.entered(number)

    async def test_sessions_are_refused_in_the_words_of_the_store(self) -> None:
        for make, status, code in (
            (self.disk.fill, 507, "store_full"),
            (self.disk.lock, 503, "store_busy"),
        ):
            make()
            path = f"/sessions/{self.session}"
            body = {"id": self.session, "title": "new"}
            await self.refused(await self.anna.call("POST", "/sessions", {}), status, code)
            await self.refused(await self.anna.call("PUT", path, body), status, code)
            await self.refused(await self.anna.call("DELETE", path), status, code)
            self.assertEqual((await self.anna.call("GET", path)).json["title"], "New Session")
            self.assertEqual(len((await self.anna.call("GET", "/sessions")).json), 1)
            self.disk.free()
        await self.end(await self.begin())

    async def test_a_session_that_cannot_be_deleted_goes_on_when_there_is_room(self) -> None:
        await self.unsaved()
        answer = await self.anna.call("DELETE", f"/sessions/{self.session}")
        await self.refused(answer, 507, "store_full")
        self.assertEqual(self.endings(), ["main", "next"])
        await self.heal()
        self.assertEqual((await self.row("next")).outcome, "canceled")
        await self.end(await self.begin("again"))

    async def test_the_endings_of_a_deleted_session_hold_nobody_any_more(self) -> None:
        other = await self.anna.session()
        run = await self.begin()
        self.disk.fill(ENDS)
        await self.end(run)
        await self.refused(await self.anna.try_prompt(other, "x"), 507, "not_saved")
        answer = await self.anna.call("DELETE", f"/sessions/{self.session}")
        self.assertEqual(answer.status, 200, answer)
        await until(lambda: not self.daemon.backend.unsaved, "its ending forgotten")
        await self.refused(await self.anna.call("GET", "/runs/main"), 404, "run_not_found")
        await self.anna.prompt(other, "x", run_id="x")
        self.assertEqual((await self.daemon.entered(2)).prompt, "x")
        self.disk.free()


class CommittedTests(BoundedTestCase):
    async def test_a_prompt_that_was_refused_and_yet_stored_runs_when_repeated(
        self,
    ) -> None:
        """The log was deleted under the store and could not be written through: nobody may be told
        that the prompt is safe. But its row is there, and a repeat must not wait for ever."""
        full = False

        class Connection(sqlite3.Connection):
            def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
                if full and "wal_checkpoint(FULL)" in sql:
                    error = sqlite3.OperationalError("disk is full")
                    error.sqlite_errorcode = sqlite3.SQLITE_FULL
                    raise error
                return super().execute(sql, *values)

        def connect(path: Path, read_only: bool) -> sqlite3.Connection:
            uri = f"{path.as_uri()}?mode={'ro' if read_only else 'rw'}"
            return sqlite3.connect(
                uri, uri=True, isolation_level=None, factory=Connection, check_same_thread=False
            )

        stores = Stores(clock=SystemClock(), boot_id="boot", connect=connect)
        async with LocalDaemon(ScriptedAgent(auto=True), stores=stores) as daemon:
            anna = await daemon.join()
            session = await anna.session()
            (daemon.root / "project/.crushlite/crushlite.db-wal").unlink()
            full = True
            refused = await anna.try_prompt(session, "hello", run_id="r")
            self.assertEqual(refused.status, 507)
            full = False
            accepted = await anna.try_prompt(session, "hello", run_id="r")
            self.assertEqual(accepted.status, 202)
            await anna.events.wait_for("run_complete", run_id="r")
            users = [m for m in await anna.messages(session) if m["role"] == "user"]
            self.assertEqual(len(users), 1)


class RepeatedEndingTests(FaultTestCase):
    async def test_an_ending_that_failed_after_its_commit_adds_its_cost_once(self) -> None:
        run = await self.begin()
        await run.do(lambda turn: turn.usage(Usage(10, 5, 0.5), last=True))
        failing = OSError(errno.EIO, "input/output error")
        with mock.patch.object(Checkpoints, "measure", side_effect=failing):
            run.release()
            await self.anna.events.wait_for("run_complete", run_id="main")
        self.assertEqual(self.daemon.backend.unsaved, 1)
        await self.clock.advance(60)
        self.assertEqual(self.daemon.backend.unsaved, 0)
        answer = await self.anna.call("GET", f"/sessions/{self.session}")
        self.assertEqual((answer.json["cost"], answer.json["prompt_tokens"]), (0.5, 10))


class TurnTests(FaultTestCase):
    """What a turn writes on its way: none of it is a reason to fail, except what was promised."""

    async def test_a_prompt_that_could_not_be_stored_at_its_start_still_comes_first(self) -> None:
        self.disk.fill("INSERT INTO messages")
        run = await self.begin()
        self.assertEqual(await self.kept(), [])
        self.disk.free()
        await run.say("an")
        await self.anna.events.wait_for("message", text="an")
        self.assertEqual([role for role, _, _ in await self.kept()], ["user", "assistant"])
        await self.end(run, "swer")
        await self.assert_agreed([("user", "stop", "main"), ("assistant", "end_turn", "answer")])
        self.assertTrue((await self.row("main")).user_message_id)

    async def test_a_cost_that_could_not_be_saved_is_saved_with_the_ending(self) -> None:
        run = await self.begin()
        self.disk.fill("UPDATE sessions")
        with self.assertLogs("crushlite.hosting.turn", "WARNING"):
            await run.do(lambda turn: turn.usage(Usage(10, 5, 0.5)))
        self.disk.free()
        await self.end(run, "answer")
        (done,) = self.anna.events.all("run_complete")
        answer = await self.anna.call("GET", f"/sessions/{self.session}")
        self.assertEqual((done["cost"], answer.json["cost"]), (0.5, 0.5))

    async def test_a_checkpoint_that_failed_is_tried_again_although_nothing_more_is_said(
        self,
    ) -> None:
        run = await self.begin()
        await run.say("a")
        self.disk.fill()
        await run.say("b")
        await self.clock.advance(1.5)
        self.assertEqual((await self.kept())[-1], ("assistant", "", ""))
        self.disk.free()
        await self.clock.advance(1.5)
        self.assertEqual((await self.kept())[-1], ("assistant", "", "ab"))
        self.assertIsNone((await self.end(run, "c"))["error"])
        self.assertEqual(self.live(), {})

    async def test_what_failed_earlier_is_made_good_by_the_next_write_that_works(self) -> None:
        run = await self.begin()
        await run.say("first")
        self.disk.fill()
        await run.do(lambda turn: turn.step())
        self.assertEqual((await self.kept())[-1][1], "")
        self.disk.free()
        await run.say("second")
        await self.clock.settle()
        kept = [(finish, text) for role, finish, text in await self.kept() if role == "assistant"]
        self.assertEqual(kept[0], ("tool_use", "first"))
        await self.end(run)

    async def test_usage_and_todos_are_not_worth_a_turn_and_cost_is_made_up_for(self) -> None:
        run = await self.begin()
        self.disk.fill()
        with self.assertLogs("crushlite.hosting.turn", "WARNING") as logs:
            await run.do(lambda turn: turn.usage(Usage(10, 5, 0.5)))
            await run.do(lambda turn: turn.todos([{"content": "a", "status": "pending"}]))
        self.assertEqual(len(logs.output), 2)
        self.disk.free()
        with self.assertRaises(BadRequest):  # what no row could hold is not owed
            await run.do(lambda turn: turn.usage(Usage(-1, 6, 0.125)))
        await run.do(lambda turn: turn.usage(Usage(20, 6, 0.25)))
        await run.do(lambda turn: turn.usage(Usage(30, 7, 0.25)))
        await self.end(run)
        session = (await self.anna.call("GET", f"/sessions/{self.session}")).json
        self.assertEqual((session["prompt_tokens"], session["completion_tokens"]), (30, 7))
        self.assertEqual(session["cost"], 1.0)

    async def test_riders_that_could_not_be_stored_fail_the_turn_and_are_stored_by_its_ending(
        self,
    ) -> None:
        run = await self.begin()
        await self.anna.prompt(self.session, "left", run_id="left", when_busy="steer")
        self.disk.fill()
        with self.assertRaises(StoreFull):
            await run.do(lambda turn: turn.followups())
        self.disk.free()
        # This agent goes on as if nothing had happened; the rider was not answered all the same.
        done = await self.end(run)
        self.assertIn("disk is full", done["error"])
        rider = await self.anna.events.wait_for("run_complete", run_id="left")
        self.assertEqual((rider["folded_into"], rider["error"]), ("main", done["error"]))
        self.assertEqual([(await self.row(r)).outcome for r in ("main", "left")], ["failed"] * 2)
        self.assertEqual((await self.row("left")).carrier, "main")
        await self.assert_agreed(
            [("user", "stop", "main"), ("user", "stop", "left"), ("assistant", "error", "done")]
        )
        self.assertEqual(self.endings(), ["main", "left"])

    async def test_riders_wait_with_their_carrier(self) -> None:
        run = await self.begin()
        await self.anna.prompt(self.session, "left", run_id="left", when_busy="steer")
        await run.do(lambda turn: turn.followups())
        self.disk.fill()
        await self.end(run)
        rider = await self.anna.events.wait_for("run_complete", run_id="left")
        self.assertIn("not saved: ", rider["error"])
        self.assertEqual(self.daemon.backend.unsaved, 1)
        told = await self.info("left")
        self.assertEqual((told["state"], told["folded_into"]), ("ended", "main"))
        await self.heal()
        rows = [await self.row(run_id) for run_id in ("main", "left")]
        self.assertEqual([(row.outcome, row.error) for row in rows], [("completed", "")] * 2)
        self.assertEqual(self.endings(), ["main", "left"])

    async def test_a_summary_that_cannot_be_stored_is_refused_and_removed(self) -> None:
        await self.end(await self.begin())
        before = await self.told()
        self.disk.fill("UPDATE sessions SET summary_message_id")
        path = f"/agent/sessions/{self.session}/summarize"
        await self.refused(await self.anna.call("POST", path), 507, "store_full")
        await self.anna.events.wait_for("message", action="deleted")
        self.disk.free()
        await self.assert_agreed(before)

    async def test_why_a_summary_failed_is_told_although_that_cannot_be_stored_either(self) -> None:
        await self.end(await self.begin())
        self.agent.fails = True
        self.disk.fill()
        answer = await self.anna.call("POST", f"/agent/sessions/{self.session}/summarize")
        await self.refused(answer, 502, "provider_failed")
        self.assertIn("no more words", answer.json["message"])
        self.disk.free()
        await self.end(await self.begin("again"))
        await self.clock.settle()
        self.assertEqual((await self.kept())[2], ("assistant", "error", "in short"))
        self.assertEqual(await self.kept(), await self.told())

    async def test_a_failed_summary_is_stored_when_any_other_write_has_worked(self) -> None:
        await self.end(await self.begin())
        self.agent.fails = True
        self.disk.fill()
        answer = await self.anna.call("POST", f"/agent/sessions/{self.session}/summarize")
        await self.refused(answer, 502, "provider_failed")
        self.disk.free()
        await self.anna.call("POST", "/sessions", {"title": "another"})
        await self.clock.settle()
        self.assertEqual((await self.kept())[2], ("assistant", "error", "in short"))
        self.assertEqual(await self.kept(), await self.told())

    async def test_a_removed_message_is_out_of_sight_until_its_row_is_gone(self) -> None:
        await self.end(await self.begin())
        before = await self.told()
        self.disk.fill("UPDATE sessions SET summary_message_id")
        real = self.store.submit

        def submit(work: Any, *, durably: bool = False, shared: bool = False) -> Any:
            if durably:
                self.disk.fill()  # from the summary's own transaction on, nothing works
            return real(work, durably=durably, shared=shared)

        self.store.submit = submit  # type: ignore[method-assign]
        path = f"/agent/sessions/{self.session}/summarize"
        await self.refused(await self.anna.call("POST", path), 507, "store_full")
        self.store.submit = real  # type: ignore[method-assign]
        self.assertEqual(len(await self.kept()), len(before) + 1)
        self.assertEqual(await self.told(), before)
        self.disk.free()
        await self.end(await self.begin("again"))
        await self.clock.settle()
        self.assertEqual((await self.kept())[: len(before)], before)
        self.assertEqual(await self.kept(), await self.told())

    async def test_what_no_store_could_take_does_not_cost_the_run_its_ending(self) -> None:
        self.store._writer._sharing_seconds = 3600.0  # its messages wait for its ending
        run = await self.begin()
        await run.say("fine")
        answer = next(one for one in self.live().values() if one.message.role == "assistant")
        answer.message.updated_at = 2**70
        run.release()
        done = await self.anna.events.wait_for("run_complete", run_id="main")
        self.assertIn("not saved: ", done["error"])
        self.assertEqual((await self.row("main")).outcome, "completed")
        self.assertEqual((await self.row("main")).error, done["error"])
        self.assertEqual(self.daemon.backend.unsaved, 0)
        await self.store.submit(lambda conn: None)  # what waits for another write goes with it
        self.assertEqual((await self.kept())[0], ("user", "stop", "main"))

    async def test_an_ending_that_is_refused_late_keeps_the_prompt(self) -> None:
        self.store._writer._sharing_seconds = 3600.0
        run = await self.begin()
        await run.say("fine")
        self.disk.fill()
        answer = next(one for one in self.live().values() if one.message.role == "assistant")
        answer.message.updated_at = 2**70
        run.release()
        await self.anna.events.wait_for("run_complete", run_id="main")
        await self.heal()
        await self.end(await self.begin("next"))  # what could not be written goes with what can
        await self.clock.settle()
        self.assertEqual((await self.kept())[0], ("user", "stop", "main"))

    async def test_messages_are_stored_for_themselves_while_only_their_ending_waits(self) -> None:
        self.store._writer._sharing_seconds = 3600.0
        run = await self.begin()
        await run.say("fine")
        self.disk.fill(ENDS)
        run.release()
        await self.anna.events.wait_for("run_complete", run_id="main")
        await self.store.submit(lambda conn: None)
        self.assertEqual([role for role, *_ in await self.kept()], ["user", "assistant"])
        await self.heal()
        self.assertEqual(await self.kept(), await self.told())

    async def test_nothing_stays_live_of_a_turn_whose_session_was_deleted_under_it(self) -> None:
        for seconds in (3600.0, 0.0):
            self.store._writer._sharing_seconds = seconds
            run = await self.begin(f"run-{seconds}")
            gone = await self.store.submit(lambda c: delete_session(c, "", self.session))
            self.transcript().forget(gone)
            run.release()
            await self.anna.events.wait_for("run_complete", run_id=f"run-{seconds}")
            await self.store.submit(lambda conn: None)
            await self.clock.settle()
            self.assertEqual((self.live(), self.transcript()._latest), ({}, {}))
            self.session = await self.anna.session()


class TeardownTests(FaultTestCase):
    async def test_teardown_tries_once_more(self) -> None:
        run = await self.begin()
        self.disk.fill()
        await self.end(run)
        self.disk.free()
        await self.anna.retire()
        await self.anna.events.end()
        await until(lambda: not self.daemon.backend._closing, "the teardown")
        self.assertEqual(self.daemon.backend.unsaved, 0)
        again = await self.daemon.join()
        outcomes = {
            run["run_id"]: run["outcome"] for run in (await again.call("GET", "/runs")).json
        }
        self.assertEqual(outcomes, {"main": "completed"})

    async def test_what_a_teardown_could_not_write_is_written_at_the_next_open(self) -> None:
        await self.unsaved()
        with self.assertLogs("crushlite.hosting.runner", "ERROR") as logs:
            await self.anna.retire()
            await self.anna.events.end()
            await until(lambda: not self.daemon.backend._closing, "the teardown")
        self.assertIn("not saved are ['main', 'next']", logs.output[-1])
        self.assertEqual(sorted(self.endings()), ["main", "next"])
        self.assertEqual(self.daemon.backend.unsaved, 2)
        self.disk.free()
        again = await self.daemon.join()
        await until(lambda: not self.daemon.backend.unsaved, "the endings")
        outcomes = {
            run["run_id"]: run["outcome"] for run in (await again.call("GET", "/runs")).json
        }
        self.assertEqual(outcomes, {"main": "completed", "next": "canceled"})
        history = shape(await again.messages(self.session))
        self.assertEqual(
            history,
            [
                ("user", "stop", "main"),
                ("assistant", "end_turn", "done"),
                ("user", "stop", "next"),
                ("assistant", "canceled", ""),
            ],
        )
        await again.prompt(self.session, "more", run_id="more")
        self.assertEqual((await self.daemon.entered(2)).prompt, "more")

    async def test_the_registry_forgets_stores_with_nothing_left_to_write(self) -> None:
        await self.end(await self.begin())
        await self.anna.retire()
        await self.anna.events.end()
        await until(lambda: not self.daemon.backend._closing, "the teardown")
        self.assertEqual(self.daemon.backend._endings, {})

    async def test_a_daemon_leaves_although_nothing_can_be_written_and_the_next_one_recovers(
        self,
    ) -> None:
        await self.unsaved()
        folder = self.daemon.root / "project" / ".crushlite"
        await self.daemon.daemon.stop()
        self.assertEqual(sorted(self.endings()), ["main", "next"])
        self.disk.free()
        stores = self.disk.stores(self.clock, "another boot")
        store = await stores.open(folder)
        try:
            rows = [
                await store.read(lambda conn, r=run_id: run_rows.get_run(conn, "", r))  # type: ignore[misc]
                for run_id in ("main", "next")
            ]
            history = await store.read(
                lambda conn: message_rows.list_messages(conn, "", self.session)
            )
        finally:
            await stores.release(store)
        for row in rows:
            self.assertEqual(
                (row.outcome, row.error), ("failed", "interrupted: the daemon stopped")
            )
        self.assertEqual([m.text for m in history if m.role == "user"], ["main", "next"])
        self.assertTrue(all(m.finish is not None for m in history))
