"""Programs that are talked to: their pipes, their end, and that nothing of them is left."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from crushlite.clock import SystemClock
from crushlite.commands.orphans import find_process
from crushlite.commands.process import start_piped
from crushlite.errors import BadRequest
from tests.support.basics import BoundedTestCase
from tests.support.places import ROOT
from tests.support.prompts import until

ENV = {"PATH": os.environ.get("PATH", os.defpath)}
ECHO = """
import sys
for line in sys.stdin:
    print("got", line, end="", flush=True)
print("bye", file=sys.stderr)
"""
# Starts a program that leaves a child in a session of its own, prints both ids, and waits.
PARENT = """
import asyncio, sys
from crushlite.clock import SystemClock
from crushlite.commands.process import start_piped
async def main():
    shell = "setsid sleep 600 & echo $$ $!; exec sleep 600"
    env = {"PATH": sys.argv[1]}
    piped = await start_piped(["sh", "-c", shell], cwd="/", env=env, clock=SystemClock())
    reader = piped[1]
    print((await reader.readline()).decode(), flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


class PipedTests(BoundedTestCase):
    async def test_a_program_is_talked_to_and_ends_with_its_input(self) -> None:
        arguments = [sys.executable, "-S", "-E", "-c", ECHO]
        command, reader, writer = await start_piped(
            arguments, cwd="/", env=ENV, clock=SystemClock()
        )
        writer.write(b"hello\n")
        await writer.drain()
        self.assertEqual(await reader.readline(), b"got hello\n")
        writer.close()
        self.assertEqual(await reader.read(), b"")
        self.assertEqual((await command.wait()).code, 0)
        self.assertEqual(command.output.text(), "bye\n")  # what it printed to standard error

    async def test_a_mebibyte_goes_both_ways(self) -> None:
        command, reader, writer = await start_piped(["cat"], cwd="/", env=ENV, clock=SystemClock())
        sent = os.urandom(1 << 20)

        async def write() -> None:
            for at in range(0, len(sent), 1 << 16):
                writer.write(sent[at : at + (1 << 16)])
                await writer.drain()
            writer.close()

        _, got = await asyncio.gather(write(), reader.read())
        self.assertEqual(got, sent)
        self.assertEqual((await command.wait()).code, 0)

    async def test_a_kill_ends_both_streams(self) -> None:
        command, reader, writer = await start_piped(
            ["sleep", "600"], cwd="/", env=ENV, clock=SystemClock()
        )
        command.kill()
        self.assertEqual(await reader.read(), b"")
        self.assertTrue((await command.wait()).canceled)
        writer.close()

    async def test_what_cannot_be_started_leaves_no_descriptor(self) -> None:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            with self.assertRaisesRegex(BadRequest, "cannot run no-such-program"):
                await start_piped(["no-such-program"], cwd="/", env=ENV, clock=SystemClock())
        await asyncio.sleep(0)
        self.assertLessEqual(len(os.listdir("/proc/self/fd")), before)

    async def test_nothing_is_left_when_the_daemon_is_killed(self) -> None:
        with tempfile.TemporaryFile() as errors:
            parent = subprocess.Popen(
                [sys.executable, "-c", PARENT, ENV["PATH"]],
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
            assert parent.stdout is not None
            with parent.stdout:
                pids = [int(pid) for pid in parent.stdout.readline().split()]
            self.assertEqual([_is_alive(pid) for pid in pids], [True, True])
            os.kill(parent.pid, signal.SIGKILL)
            parent.wait()
            await until(lambda: not any(map(_is_alive, pids)), "the keeper has ended them")


def _is_alive(pid: int) -> bool:
    found = find_process(pid)
    return Path(f"/proc/{pid}").exists() and found is not None and found.state not in "ZX"
