"""What a client sees of a store in trouble: a status it can act on, never a 500, and its end."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import shutil
import sqlite3
from typing import TYPE_CHECKING, Any
from unittest import mock

from crushlite.clock import SystemClock
from crushlite.store import Stores, callqueue
from crushlite.testing import LocalDaemon
from tests.support.prompts import until
from tests.support.store import Gate, StoreCase

if TYPE_CHECKING:
    from pathlib import Path

    from crushlite.store import Store
    from crushlite.testing import Answer, Participant

TROUBLES = {
    "full": (sqlite3.SQLITE_FULL, 507, "store_full"),
    "locked": (sqlite3.SQLITE_BUSY, 503, "store_busy"),
    "broken": (sqlite3.SQLITE_IOERR_WRITE, 503, "store_failed"),
    "read-only": (sqlite3.SQLITE_READONLY, 503, "store_failed"),
}


class ApiCase(StoreCase):
    async def asyncSetUp(self) -> None:
        self.stores = Stores(clock=SystemClock(), boot_id="boot", connect=self.faulty)
        self.daemon = LocalDaemon(stores=self.stores)
        await self.enterAsyncContext(self.daemon)
        self.anna: Participant = await self.daemon.join()
        self.session = await self.anna.session()

    def check(self, answer: Answer, status: int, code: str) -> None:
        self.assertEqual((answer.status, answer.json["code"]), (status, code), answer.json)
        retry = dict(answer.headers).get("retry-after")
        self.assertEqual(retry, "1" if status == 503 else None)

    async def finish_a_run(self, number: int = 1) -> None:
        """Proof that all is well: a prompt is taken, answered and ended."""
        accepted = await self.anna.prompt(self.session, "after")
        run = await self.daemon.entered(number)
        await run.say("fine")
        run.release()
        await self.anna.events.wait_for("run_complete", run_id=accepted.json["run_id"], text="fine")


class TroubleTests(ApiCase):
    async def test_each_trouble_has_its_answer_stores_nothing_and_passes(self) -> None:
        for number, (name, (code, status, word)) in enumerate(TROUBLES.items(), 1):
            for statement in ("BEGIN IMMEDIATE", "COMMIT"):
                with self.subTest(trouble=name, at=statement):
                    before = await self.state()
                    self.faults.fail(statement, code, times=100)
                    self.check(await self.anna.try_prompt(self.session), status, word)
                    refused = await self.anna.call("POST", "/sessions", {"title": "none"})
                    self.check(refused, status, word)
                    self.assertEqual(await self.state(), before)
                    self.assertEqual(await self.anna.cancel(self.session), [])
                    self.faults.clear()
            await self.finish_a_run(number)

    async def state(self) -> tuple[Any, ...]:
        paths = ("/sessions", f"/sessions/{self.session}/messages", "/runs")
        answers = [await self.anna.call("GET", path) for path in paths]
        self.assertEqual({answer.status for answer in answers}, {200})
        return tuple(answer.json for answer in answers)

    async def test_past_the_bound_prompts_are_put_off_and_reads_go_on(self) -> None:
        store = await self.store()
        gate = Gate()
        held = store.submit(gate)
        await gate.reached()
        with mock.patch.object(callqueue, "MAX_WAITING", 3):
            waiting = [store.submit(lambda _: None) for _ in range(3)]
            answer = await self.anna.try_prompt(self.session)
            self.check(answer, 503, "store_overloaded")
            self.assertEqual((await self.anna.call("GET", "/sessions")).status, 200)
            gate.open.set()
            await asyncio.gather(held, *waiting)
        await self.finish_a_run()

    async def store(self) -> Store:
        """The daemon's own; opening it again shares it."""
        store = await self.stores.open(self.daemon.root / "project" / ".crushlite")
        self.addAsyncCleanup(self.stores.release, store)
        return store


class LockedTests(ApiCase):
    async def test_a_canceled_prompt_is_told_at_once_while_the_file_is_locked(self) -> None:
        await self.anna.prompt(self.session, "first", run_id="first")
        run = await self.daemon.entered(1)
        await self.anna.prompt(self.session, "next", run_id="next")
        self.faults.fail("BEGIN IMMEDIATE", sqlite3.SQLITE_BUSY, times=1_000)
        run.release()
        done = await self.anna.events.wait_for("run_complete", run_id="first")
        self.assertIn("not saved", done["error"])
        lock = self.faults.gates["BEGIN IMMEDIATE"] = Gate()  # it is waited for, as for any lock
        self.addCleanup(lock.open.set)
        (endings,) = self.daemon.backend._endings.values()
        await until(endings._pass.locked, "the ending is tried again")
        await lock.reached()
        await self.anna.cancel(self.session)
        done = await self.anna.events.wait_for("run_complete", run_id="next")
        self.assertFalse(lock.open.is_set())
        self.assertTrue(done["cancelled"])
        self.assertIn("not saved", done["error"])
        self.faults.clear()
        lock.open.set()
        await until(lambda: not self.daemon.backend.unsaved, "every ending is written")
        for run_id, outcome in (("first", "completed"), ("next", "canceled")):
            told = (await self.anna.call("GET", f"/runs/{run_id}")).json
            self.assertEqual((told["outcome"], told["error"]), (outcome, ""))


class RemovedTests(ApiCase):
    async def test_a_project_that_was_removed_is_torn_down_without_a_complaint(self) -> None:
        complaints: list[dict[str, Any]] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        await self.finish_a_run()
        shutil.rmtree(self.daemon.root / "project")
        with self.assertNoLogs("crushlite", logging.ERROR):
            await self.anna.retire()
            backend = self.daemon.backend
            await until(lambda: not (backend.everything() or backend._closing), "the teardown")
        gc.collect()  # a task says that nobody asked for its exception when it goes
        await asyncio.sleep(0)
        self.assertEqual(complaints, [])
        again = await self.daemon.join()
        self.assertEqual((await again.call("GET", "/sessions")).json, [])


class CreateTests(ApiCase):
    async def create(self, data: Path) -> Answer:
        body = {"path": str(self.daemon.root), "data_dir": str(data), "client_id": self.anna.id}
        return await self.daemon.call("POST", "/v1/workspaces", body)

    def database(self, name: str) -> Path:
        data = self.daemon.root / name
        data.mkdir()
        return data / "crushlite.db"

    async def test_a_file_that_cannot_be_used_is_a_conflict_and_the_daemon_lives_on(self) -> None:
        damaged, newer = self.database("damaged"), self.database("newer")
        damaged.write_bytes(b"somebody's notes" * 1_000)
        conn = sqlite3.connect(newer)
        conn.execute("PRAGMA user_version = 99")
        conn.execute("CREATE TABLE theirs (x)")
        conn.close()
        for path, code in ((damaged, "corrupt_database"), (newer, "newer_schema")):
            before = path.read_bytes()
            for _ in range(2):
                answer = await self.create(path.parent)
                self.check(answer, 409, code)
                self.assertIn(str(path), answer.json["message"])
            self.assertEqual(path.read_bytes(), before)
            self.assertEqual(list(path.parent.glob("crushlite.db*")), [path])  # no litter
        await self.finish_a_run()

    async def test_trouble_at_create_is_a_conflict_too_or_a_full_disk(self) -> None:
        """Never 503: to that the Crush client answers by looking for another server."""
        for name, (code, status, word) in TROUBLES.items():
            with self.subTest(trouble=name):
                self.faults.fail("BEGIN IMMEDIATE", code, times=100)
                expected = (507, word) if status == 507 else (409, "store_unusable")
                self.check(await self.create(self.daemon.root / "data"), *expected)
                self.faults.clear()
        self.assertEqual((await self.create(self.daemon.root / "data")).status, 200)


class TextTests(ApiCase):
    async def test_ten_megabytes_and_any_character_come_back_as_they_were_sent(self) -> None:
        text = "\0 \u2028 \U0001f600 ä" + "x" * 10_000_000
        accepted = await self.anna.prompt(self.session, text)
        run = await self.daemon.entered(1)
        await run.say(text)
        run.release()
        # Not from the stream: that much at once is more than a stream holds for its client.
        ended = await self.anna.call("GET", f"/runs/{accepted.json['run_id']}?wait=30")
        self.assertEqual((ended.json["state"], ended.json["outcome"]), ("ended", "completed"))
        asked, answered = await self.anna.messages(self.session)
        self.assertTrue(asked.text == text)
        self.assertTrue(answered.text == text)

    async def test_what_cannot_be_stored_is_refused_with_400(self) -> None:
        cases: list[tuple[str, str, bytes]] = [
            ("POST", "/agent", self.body(session_id=self.session, prompt="\ud800")),
            ("POST", "/agent", self.body(session_id=self.session, prompt="p", max_steps=2**63)),
            ("POST", "/agent", self.body(session_id="a\0b", prompt="p")),
            ("POST", "/sessions", self.body(title="\udfff")),
            ("POST", "/sessions", self.body(title="a\0b")),
        ]
        for method, path, body in cases:
            with self.subTest(path=path, body=body):
                answer = await self.anna.daemon.call(method, self.anna.base + path, body)
                self.assertEqual(answer.status, 400, answer.json)
        self.assertEqual(len(await self.anna.messages(self.session)), 0)

    def body(self, **fields: object) -> bytes:
        return json.dumps(fields).encode()

    async def test_a_lone_surrogate_from_an_agent_ends_its_run_and_no_more(self) -> None:
        accepted = await self.anna.prompt(self.session)
        run = await self.daemon.entered(1)
        try:
            await run.say("half \ud83d")
        except Exception as error:  # noqa: BLE001 - whatever it is told, its run has an ending
            run.fail(str(error))
        else:
            run.release()
        await self.anna.events.wait_for("run_complete", run_id=accepted.json["run_id"])
        self.assertFalse(await self.anna.busy(self.session))
        for message in await self.anna.messages(self.session):
            message.text.encode()
        await self.finish_a_run(2)
