"""SIGTERM ends a daemon within ten seconds, whatever hangs in it; a second one at once."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import time

from tests.daemon.test_daemon import Process, ProcessTestCase

# Agents, stores and wings that hang in each of the places that a daemon waits for when it leaves.
HANGING = '''
import asyncio, os, signal, sqlite3, sys, threading, time
from crushlite.wing import WorkspacePart

def say(turn):
    print("entered", turn.prompt, flush=True)

async def ignores_cancel(turn):
    say(turn)
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass

async def opens_a_pipe(turn):
    """A tool thread that never comes back."""
    os.mkfifo("pipe")
    say(turn)
    await asyncio.to_thread(open, "pipe")

async def blocks_the_loop(turn):
    say(turn)
    while True:
        time.sleep(3600)

async def blocks_when_cancelled(turn):
    say(turn)
    try:
        await asyncio.sleep(3600)
    finally:
        time.sleep(3600)

async def takes_the_signals(turn):
    """An agent that handles signals itself, and then blocks."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, lambda: None)
    say(turn)
    time.sleep(3600)

class does_not_close:
    def __init__(self, *, path, env, config):
        pass
    async def run(self, turn):
        say(turn)
    async def aclose(self):
        await asyncio.Event().wait()

ENDLESS = """WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)
SELECT max(nap(x)) FROM n"""

async def hangs_the_store(turn):
    """A statement that does not end, in the thread of the writer. It mostly sleeps: other daemons
    need the processor."""
    store = turn.workspace.store.store
    started = threading.Event()
    def work(conn):
        conn.create_function("nap", 1, lambda x: time.sleep(0.01))
        started.set()
        conn.execute(ENDLESS).fetchall()
    store.submit(work)
    await asyncio.to_thread(started.wait)
    say(turn)

async def hangs_the_thread_of_the_store(turn):
    """Work that no interrupt reaches."""
    started = threading.Event()
    def work(conn):
        started.set()
        threading.Event().wait()
    turn.workspace.store.store.submit(work)
    await asyncio.to_thread(started.wait)
    say(turn)

class Part(WorkspacePart):
    async def close(self):
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                pass

async def has_a_wing_that_does_not_close(turn):
    turn.workspace.parts.append(Part())
    say(turn)
'''
AGENTS = (
    *("ignores_cancel", "opens_a_pipe", "blocks_the_loop", "blocks_when_cancelled"),
    *("takes_the_signals", "does_not_close", "hangs_the_store", "hangs_the_thread_of_the_store"),
    "has_a_wing_that_does_not_close",
)
# As long as a stop may take, and what a slow machine needs to start and reap processes.
ENOUGH = 10.0 + 20.0


class BoundedExitTests(ProcessTestCase):
    def setUp(self) -> None:
        super().setUp()
        (self.root / "hanging.py").write_text(HANGING)

    def hang(self, agent: str, *flags: str) -> Process:
        """A daemon of its own, whose agent hangs."""
        self.socket = str(self.root / f"{AGENTS.index(agent)}.sock")
        self.data = self.root / agent
        process = self.serve(
            *("--host", f"unix://{self.socket}", "--data-dir", str(self.data)),
            *("--agent", f"hanging:{agent}", *flags),
        )
        base = self.join()
        self.prompt(base, self.session(base), "stay")
        process.out.wait_for("entered stay")
        return process

    def test_one_signal_ends_a_daemon_in_time_whatever_hangs(self) -> None:
        hanging = [(self.hang(agent), agent, self.socket) for agent in AGENTS]
        began = time.monotonic()
        for process, _, _ in hanging:
            process.signal(signal.SIGTERM)
        for process, agent, path in hanging:
            with self.subTest(agent):
                self.assertIn(process.exit_code(), (0, 1), process.log.text)
                self.assertLess(time.monotonic() - began, ENOUGH, process.log.text)
                self.assertFalse(os.path.exists(path))
                with contextlib.closing(
                    sqlite3.connect(self.root / agent / "crushlite.db")
                ) as conn:
                    self.assertEqual(conn.execute("PRAGMA integrity_check").fetchone(), ("ok",))

        with self.subTest("one that is forced says where it hung"):
            [forced] = [process for process, agent, _ in hanging if agent == "blocks_the_loop"]
            self.assertIn("after it was to leave", forced.log.text)
            self.assertIn("in blocks_the_loop", forced.log.text)

        with self.subTest("what it had promised is ended by the next one"):
            self.data = self.root / "blocks_the_loop"
            self.serve_agent("echo")
            self.assertEqual(
                self.rows("SELECT outcome, error FROM runs"),
                [("failed", "interrupted: the daemon stopped")],
            )

    def test_a_second_signal_ends_a_daemon_whose_loop_is_blocked_at_once(self) -> None:
        flags = ("--drain", "3600", "--cancel-grace", "3600")
        for agent in ("blocks_the_loop", "takes_the_signals"):
            with self.subTest(agent):
                process = self.hang(agent, *flags)
                process.signal(signal.SIGTERM)
                self.assertTrue(process.stays())
                process.signal(signal.SIGTERM)
                self.assertEqual(process.exit_code(), 130)
                self.assertFalse(os.path.exists(self.socket))
