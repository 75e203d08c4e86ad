"""A daemon of its own on a disk that is really full: tools/diskfull.py, and what it would find."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import sys
import tempfile
from pathlib import Path
from typing import Any

from crushlite.protocol.messages import FinishPart, Message, TextPart
from crushlite.protocol.sessions import Session
from crushlite.store import Stores
from crushlite.store.messages import insert_message
from crushlite.store.runs import RunRow, insert_run
from crushlite.store.sessions import insert_session
from crushlite.testing import EventReader, FakeClock, InlineExecutor, Seen
from tests.support.basics import BoundedTestCase
from tests.support.places import ROOT
from tools.diskfull import Tally, verdict


class FullDiskTests(BoundedTestCase):
    async def test_no_promise_is_lost_and_it_heals_by_itself(self) -> None:
        # The second way works on every machine, the first only where namespaces are allowed.
        for ways in ((), ("--no-growth",)):
            with self.subTest(ways):
                arguments = ("--rounds", "2", "--seed", "1", *ways)
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    ROOT / "tools" / "diskfull.py",
                    *arguments,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.STDOUT,
                )
                try:
                    output, _ = await process.communicate()
                finally:
                    if process.returncode is None:
                        process.kill()
                self.assertEqual(process.returncode, 0, output.decode())
                self.assertIn(b"ok: no lost promise, no 500, healed", output)


class VerdictTests(BoundedTestCase):
    """The tool is worth only what it finds."""

    async def asyncSetUp(self) -> None:
        folder = self.enterContext(tempfile.TemporaryDirectory(prefix="crushlite-"))
        stores = Stores(clock=FakeClock(), boot_id="boot", executor=InlineExecutor)
        store = await stores.open(Path(folder))
        self.database = store.path
        parts = [TextPart("do r"), FinishPart("stop")]
        await store.submit(lambda conn: insert_session(conn, "", Session(id="s")))
        await store.submit(lambda conn: insert_run(conn, "", RunRow("r", "s", "", "do r")))
        await store.submit(
            lambda conn: insert_message(conn, "", Message("m", "user", "s", [*parts]))
        )
        await stores.release(store)
        self.execute("UPDATE runs SET outcome = 'completed'")
        message: dict[str, Any] = {"id": "m", "session_id": "s", "parts": ["do r"]}
        self.events = EventReader()
        self.events.seen = [
            Seen("message", "created", message, None),
            Seen("run_complete", "updated", {"run_id": "r"}, None),
        ]
        self.tally = Tally(promised={"r": ("s", "do r")}, failures=1, histories={"s": [message]})

    def execute(self, statement: str) -> None:
        with contextlib.closing(sqlite3.connect(self.database)) as conn, conn:
            conn.execute(statement)

    def judge(self) -> list[str]:
        return verdict(self.database, self.tally, self.events)

    async def test_what_is_in_order_passes(self) -> None:
        self.assertEqual(self.judge(), [])

    async def test_endings_that_are_missing_doubled_or_unasked_are_found(self) -> None:
        complete = self.events.seen.pop()
        self.assertEqual(self.judge(), ["run r has 0 run_complete"])
        self.events.seen += [complete, complete]
        self.assertEqual(self.judge(), ["run r has 2 run_complete"])
        self.events.seen[-1] = Seen("run_complete", "updated", {"run_id": "other"}, None)
        self.assertEqual(self.judge(), ["other ended and was never promised"])

    async def test_rows_that_are_missing_open_or_without_their_prompt_are_found(self) -> None:
        self.execute("UPDATE runs SET outcome = NULL")
        self.assertEqual(self.judge(), ["run r never ended"])
        self.execute("UPDATE runs SET outcome = 'completed'")
        self.execute("DELETE FROM messages")
        self.assertEqual(self.judge(), ["run r has 0 user messages"])
        self.execute("DELETE FROM runs")
        self.assertEqual(self.judge(), ["LOST: run r was promised and is not there"])

    async def test_a_history_that_differs_from_the_stream_is_found(self) -> None:
        wrong = ["session s does not read as the stream has told it"]
        histories: tuple[list[dict[str, Any]], ...] = ([], [{"id": "m", "parts": []}])
        for history in histories:
            self.tally.histories["s"] = history
            self.assertEqual(self.judge(), wrong)

    async def test_a_500_and_a_disk_that_was_never_full_are_found(self) -> None:
        self.tally.answers[500] = 2
        self.tally.failures = 0
        self.assertEqual(
            self.judge(),
            ["2 requests were answered 500", "nothing was ever refused: the disk was not full"],
        )
