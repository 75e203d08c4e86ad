"""Commands: their output, their end, and that all they started is killed with them.

These tests run real processes. They wait for output and for the ends of processes, never for time
to pass: a `sleep` in a command is always killed before its end.
"""

from __future__ import annotations

import asyncio
import logging
import marshal
import os
import signal
import socket
import subprocess
import sys
import unittest
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from crushlite.commands import orphans, process
from crushlite.commands.output import HALF, Output
from crushlite.errors import BadRequest, CrushliteError
from crushlite.testing.fake_clock import FakeClock
from tests.support.archive import run_from_archive
from tests.support.basics import limited_test
from tests.support.commands import LONG, PATH, Heard, ProcessTestCase, dead, zombies
from tools.escapees import KINDS, LIMIT, Kind, hunt, kill_daemon, open_all, resident

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence


TIMEOUT = 30.0  # seconds: more than a busy machine needs, less than the 600 that commands sleep
KEEPER = Path(process.__file__).with_name("keeper.py")


def altered(old: str, new: str) -> Callable[[], bytes]:
    """The code of a keeper with a change in its source, to be sent instead of the real one."""
    source = KEEPER.read_text()
    assert old in source
    code = marshal.dumps(compile(source.replace(old, new), KEEPER.name, "exec"))
    return lambda: b"%d\n%b" % (len(code), code)


def open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


class EndTests(ProcessTestCase):
    async def test_the_exit_code_is_the_program_s(self) -> None:
        for code in (0, 1, 42, 255):
            ended, _ = await self.run_it(f"exit {code}")
            self.assertEqual((ended.code, ended.timed_out, ended.canceled), (code, False, False))
            self.assertEqual(ended.survivors, 0)

    async def test_the_exit_code_after_a_signal_is_that_of_a_shell(self) -> None:
        for name in ("TERM", "KILL", "SEGV", "PIPE"):
            ended, _ = await self.run_it(f"kill -{name} $$")
            number = signal.Signals[f"SIG{name}"]
            self.assertEqual((ended.code, ended.canceled), (128 + number, False), name)

    async def test_an_argument_list_needs_no_shell(self) -> None:
        strange = ["", "a b", "$HOME", "'", '"', "\n", "é", "\udcff"]
        ended, text = await self.run_it(["printf", "[%s]", *strange])
        self.assertEqual(ended.code, 0)
        shown = "".join(f"[{part}]" for part in strange)
        self.assertEqual(text, shown.encode("utf-8", "surrogateescape").decode("utf-8", "replace"))

    async def test_a_text_is_run_by_bash(self) -> None:
        _, text = await self.run_it("echo $BASH_VERSION; echo $0")
        version, name = text.split()
        self.assertTrue(version[0].isdigit(), version)
        self.assertEqual(name, "bash")

    async def test_sh_runs_a_text_where_there_is_no_bash(self) -> None:
        # The keeper also looks in /bin, so this only shows that PATH alone does not decide.
        ended, text = await self.run_it("echo found", env={"PATH": str(self.folder)})
        self.assertEqual((ended.code, text), (0, "found\n"))

    async def test_leftovers_that_hold_the_pipe_are_killed_and_not_waited_for(self) -> None:
        heard = Heard()
        text = f"{LONG} & echo $!; setsid {LONG} & echo $!; exit 7"
        command = await self.start(text, on_output=heard)
        pidfds = open_all(await heard.pids(2))
        ended = await command.wait()
        self.assertEqual((ended.code, ended.canceled), (7, False))
        self.assertLess(ended.seconds, TIMEOUT)
        self.assertTrue(dead(pidfds))

    async def test_a_leftover_that_ends_by_itself_may_write_last(self) -> None:
        for _ in range(5):
            ended, text = await self.run_it("exec > >(cat; echo last); echo first")
            self.assertEqual((ended.code, text), (0, "first\nlast\n"))

    async def test_a_time_out_kills_everything(self) -> None:
        heard = Heard()
        clock = FakeClock()
        text = f"setsid {LONG} & echo $!; echo $$; wait"
        command = await self.start(text, clock=clock, on_output=heard)
        pidfds = open_all(await heard.pids(2))
        waiting = asyncio.ensure_future(command.wait(120.0))
        await clock.advance(119.0)
        self.assertFalse(waiting.done())
        await clock.advance(1.0)
        ended = await waiting
        self.assertEqual((ended.timed_out, ended.canceled, ended.code), (True, False, 137))
        self.assertEqual(ended.seconds, 120.0)
        self.assertTrue(dead(pidfds))
        self.assertEqual(clock.pending, 0)

    async def test_a_time_out_in_real_time(self) -> None:
        command = await self.start(LONG)
        ended = await command.wait(0.05)
        self.assertTrue(ended.timed_out)
        self.assertLess(ended.seconds, TIMEOUT)

    async def test_a_time_out_that_is_not_reached_leaves_no_timer(self) -> None:
        clock = FakeClock()
        command = await self.start("exit 3", clock=clock)
        ended = await command.wait(1.0)
        self.assertEqual((ended.code, ended.timed_out), (3, False))
        self.assertEqual(clock.pending, 0)

    async def test_killing_twice_or_late_is_harmless(self) -> None:
        command = await self.start(LONG)
        command.kill()
        command.kill()
        ended = await command.wait()
        command.kill()
        self.assertEqual((ended.canceled, ended.timed_out, ended.code), (True, False, 137))
        self.assertEqual(await command.wait(0.0), ended)
        self.assertIn("done", repr(command))

    async def test_what_ended_by_itself_was_not_canceled(self) -> None:
        gate = self.folder / "gate"
        os.mkfifo(gate)
        command = await self.start("read < gate; exit 4")
        pidfds = open_all([command.pid])
        gate.write_text("now\n")
        self.assertTrue(dead(pidfds, within=TIMEOUT))  # and the event loop does not know it yet
        command.kill()
        ended = await command.wait()
        self.assertEqual((ended.code, ended.canceled), (4, False))

    async def test_a_wait_that_is_canceled_leaves_the_command_running(self) -> None:
        heard = Heard()
        command = await self.start(f"echo $$; exec {LONG}", on_output=heard)
        pidfds = open_all(await heard.pids(1))
        for wait in (command.wait, lambda: command.done):
            waiting = asyncio.ensure_future(wait())
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        self.assertFalse(command.done.done())
        command.kill()
        self.assertTrue((await command.wait()).canceled)
        self.assertTrue(dead(pidfds))

    async def test_a_start_that_is_canceled_leaves_nothing(self) -> None:
        before = open_fds()
        for steps in (1, 2, 3, 5):
            starting = asyncio.ensure_future(self.start(LONG))
            for _ in range(steps):
                await asyncio.sleep(0)
            starting.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await starting
        self.assertEqual((zombies(), open_fds()), ([], before))


class StartTests(ProcessTestCase):
    async def refused(self, command: str | Sequence[str], **options: Any) -> str:
        with self.assertRaises(BadRequest) as caught:
            await self.start(command, **options)
        return str(caught.exception)

    async def test_a_folder_or_a_program_that_is_missing_is_named(self) -> None:
        before = open_fds()
        missing = self.folder / "missing"
        message = await self.refused("true", cwd=missing)
        self.assertEqual(message, f"cannot run in {missing}: No such file or directory")
        message = await self.refused(["no-such-program", "x"], env={"PATH": "/usr/bin:/bin"})
        self.assertEqual(message, "cannot run no-such-program: No such file or directory")
        plain = self.folder / "plain"
        plain.write_text("x")
        self.assertIn("Permission denied", await self.refused([str(plain)]))
        self.assertIn("Not a directory", await self.refused("true", cwd=plain))
        self.assertEqual((zombies(), open_fds()), ([], before))

    async def test_what_no_program_can_be_given_is_refused(self) -> None:
        self.assertIn("the command holds a NUL", await self.refused("echo a\0b"))
        self.assertIn("the command holds a NUL", await self.refused(["echo", "\0"]))
        self.assertIn("the folder holds a NUL", await self.refused("true", cwd="/\0"))
        self.assertIn("the environment holds a NUL", await self.refused("true", env={"A": "\0"}))
        self.assertIn("empty", await self.refused(""))
        self.assertIn("empty", await self.refused([]))
        self.assertIn("empty", await self.refused([""]))
        self.assertIn("'A=B'", await self.refused("true", env={"A=B": ""}))
        self.assertIn("not valid Unicode", await self.refused("echo \ud800"))
        self.assertIn("too long", await self.refused("#" * 300_000))

    async def test_a_large_environment_arrives(self) -> None:
        env = {"PATH": PATH, **{f"V{number}": "x" * 10_000 for number in range(60)}}
        ended, text = await self.run_it("echo ${#V0} ${#V59}", env=env)
        self.assertEqual((ended.code, text), (0, "10000 10000\n"))

    async def test_the_environment_is_exactly_the_one_given(self) -> None:
        env = {"PATH": PATH, "EMPTY": "", "LINES": "a\nb=c", "BYTES": "\udcff"}
        command = await self.start(["env", "-0"], env=env)
        await command.wait()
        found = command.output.text().rstrip("\0").split("\0")
        wanted = [f"{name}={value}" for name, value in env.items()]
        wanted[-1] = "BYTES=\ufffd"
        self.assertEqual(sorted(found), sorted(wanted))

    async def test_the_daemon_s_own_variables_are_not_in_reach(self) -> None:
        with mock.patch.dict(os.environ, {"CANARY": "sing"}):
            _, text = await self.run_it("env; cat /proc/$PPID/environ | tr '\\0' '\\n'")
        self.assertNotIn("sing", text)

    async def test_the_child_has_three_fds_no_terminal_and_a_session_of_its_own(self) -> None:
        inherited = os.open("/dev/null", os.O_RDONLY)
        self.addCleanup(os.close, inherited)
        os.set_inheritable(inherited, True)
        code = (
            "import os; print(sorted(os.listdir('/proc/self/fd')), os.readlink('/proc/self/fd/0'))"
        )
        code += "; print(os.getsid(0) == os.getpid() == os.getpgrp(), os.getppid())"
        # One more is the fd that listdir itself has open.
        command = await self.start([sys.executable, "-I", "-S", "-c", code])
        await command.wait()
        first, second = command.output.text().splitlines()
        self.assertEqual(first, "['0', '1', '2', '3'] /dev/null")
        self.assertEqual(second, f"True {command._keeper.pid}")
        ended, text = await self.run_it("tty; cat; : < /dev/tty")
        self.assertNotEqual(ended.code, 0)
        self.assertTrue(text.startswith("not a tty\n"), text)

    async def test_signals_and_limits_are_as_after_a_login(self) -> None:
        command = (
            "grep -E 'SigBlk|SigIgn' /proc/self/status; ulimit -c; cat /proc/self/oom_score_adj"
        )
        _, text = await self.run_it(command)
        *masks, core, score = text.split()
        self.assertEqual(masks, ["SigBlk:", "0" * 16, "SigIgn:", "0" * 16])
        own = int(Path("/proc/self/oom_score_adj").read_text())
        self.assertEqual((core, int(score)), ("0", min(own + 500, 1000)))

    async def test_no_process_can_be_started(self) -> None:
        before = open_fds()
        with (
            mock.patch.object(sys, "executable", "/missing/python"),
            self.assertRaisesRegex(CrushliteError, "cannot start a process: No such file"),
        ):
            await self.start("true")
        with (
            mock.patch.object(process, "BOOT", "raise SystemExit('out of order')"),
            self.assertRaisesRegex(
                CrushliteError, r"keeper of a command failed \(1\): out of order"
            ),
        ):
            await self.start("true")
        self.assertEqual((zombies(), open_fds()), ([], before))

    async def test_fifty_commands_leave_no_zombies_and_no_fds(self) -> None:
        await self.run_it("true")
        before = open_fds()
        for _ in range(10):
            results = await asyncio.gather(*(self.run_it("echo x") for _ in range(5)))
            self.assertEqual({(ended.code, text) for ended, text in results}, {(0, "x\n")})
        self.assertEqual((zombies(), open_fds()), ([], before))


class KeeperTests(ProcessTestCase):
    """Keepers that are signalled, stopped or killed, and the keeper as a program of its own."""

    async def test_the_keeper_ignores_the_signals_that_end_other_processes(self) -> None:
        signals = "for s in HUP INT QUIT TERM USR1 USR2 ALRM PIPE; do kill -$s $PPID; done"
        ended, text = await self.run_it(f"{signals}; echo still here")
        self.assertEqual((ended.code, text), (0, "still here\n"))

    async def open_gate(self, gate: Path) -> None:
        """Let a command go on that reads from the FIFO `gate`; returns when it has begun to."""
        await asyncio.to_thread(gate.write_text, "now\n")

    async def test_the_daemon_kills_the_command_of_a_stopped_keeper(self) -> None:
        heard = Heard()
        gate = self.folder / "gate"
        os.mkfifo(gate)
        text = f"setsid {LONG} & echo $!; (env -i setsid {LONG} &); read < gate; "
        command = await self.start(f"{text} kill -STOP $PPID; echo $$; wait", on_output=heard)
        await self.open_gate(gate)
        pidfds = open_all([*await heard.pids(2), command._keeper.pid])
        command.kill()
        killed = self.clock.time()
        with self.assertLogs("crushlite.commands.process", logging.WARNING) as logs:
            ended = await command.wait()
        self.assertIn("did not answer", logs.output[0])
        self.assertEqual((ended.canceled, ended.code), (True, 137))
        self.assertLess(self.clock.time() - killed, TIMEOUT)
        self.assertTrue(dead(pidfds, within=TIMEOUT))

    async def test_the_daemon_kills_the_command_of_a_killed_keeper(self) -> None:
        heard = Heard()
        gate = self.folder / "gate"
        os.mkfifo(gate)
        text = f"setsid {LONG} & echo $!; {LONG} > /dev/null & echo $!; echo $$; read < gate; "
        command = await self.start(f"{text} kill -9 $PPID; wait", on_output=heard)
        pidfds = open_all(await heard.pids(3))
        await self.open_gate(gate)
        ended = await command.wait()
        self.assertEqual((ended.canceled, ended.code), (False, 137))
        self.assertTrue(dead(pidfds, within=TIMEOUT))
        self.assertEqual(zombies(), [])

    async def test_a_start_that_takes_for_ever_is_given_up(self) -> None:
        heard = Heard()
        clock = FakeClock()
        slow = altered('_send("started")', "os.kill(os.getpid(), signal.SIGSTOP)")
        text = f"setsid {LONG} & echo $!; echo $$; wait"
        with mock.patch.object(process, "_keeper_code", slow):
            starting = asyncio.ensure_future(self.start(text, clock=clock, on_output=heard))
            pidfds = open_all(await heard.pids(2))
        await clock.advance(process.START_SECONDS)
        with self.assertLogs("crushlite.commands.process", logging.WARNING):
            while not starting.done():
                await clock.advance(process.RESCUE_PAUSE)
        with self.assertRaisesRegex(CrushliteError, "did not start it in time"):
            await starting
        self.assertTrue(dead(pidfds, within=TIMEOUT))
        self.assertEqual(clock.pending, 0)

    async def test_a_keeper_that_dies_before_its_first_report_leaves_nothing(self) -> None:
        heard = Heard()
        mute = altered('_send("started")', "time.sleep(600)")
        text = f"setsid {LONG} & echo $!; echo $$; wait"
        with mock.patch.object(process, "_keeper_code", mute):
            starting = asyncio.ensure_future(self.start(text, on_output=heard))
            pids = await heard.pids(2)
        pidfds = open_all(pids)
        os.kill(int(Path(f"/proc/{pids[1]}/stat").read_text().split()[3]), signal.SIGKILL)
        with self.assertRaisesRegex(CrushliteError, "the keeper of a command failed"):
            await starting
        self.assertTrue(dead(pidfds, within=TIMEOUT))

    async def test_the_search_for_orphans_spares_processes_that_are_older_or_unrelated(
        self,
    ) -> None:
        # Processes of the kernel are in session 0: it must never count as a command's session.
        read, write = os.pipe()
        self.addCleanup(os.close, read)
        self.addCleanup(os.close, write)
        old = subprocess.Popen(["sleep", "600"], stdout=write, start_new_session=True)
        self.addCleanup(old.wait)
        self.addCleanup(old.kill)
        own = orphans.find_process(os.getpid())
        older = orphans.find_process(old.pid)
        assert own is not None
        assert older is not None
        with mock.patch.object(orphans, "send_signal") as killed:
            for leader in (0, 1, -1):
                orphans.kill_orphans(leader, read, own.born)
            orphans.kill_orphans(old.pid, read, older.born + 1)
            killed.assert_not_called()
            orphans.kill_orphans(old.pid, read, older.born)
            sent = {call.args for call in killed.call_args_list}
            self.assertEqual(sent, {(old.pid, signal.SIGKILL)})
            killed.reset_mock()
            with mock.patch.object(orphans, "_living", return_value=[]):
                orphans.kill_orphans(old.pid, read, 0)  # without /proc, only the group is known
            killed.assert_called_once_with(-old.pid, signal.SIGKILL)

    async def test_without_a_pidfd_the_end_is_found_all_the_same(self) -> None:
        before = open_fds()
        with mock.patch.object(os, "pidfd_open", side_effect=OSError):
            for _ in range(5):
                ended, text = await self.run_it("echo x; exit 3")
                self.assertEqual((ended.code, text), (3, "x\n"))
            command = await self.start(LONG)
            command.kill()
            self.assertTrue((await command.wait()).canceled)
        self.assertEqual((zombies(), open_fds()), ([], before))

    async def test_processes_that_cannot_be_killed_are_counted_and_not_waited_for(self) -> None:
        heard = Heard()
        powerless = altered("    try:\n        os.kill", "    return\n    try:\n        os.kill")
        text = f"setsid {LONG} & echo $!; echo $$; wait"
        with mock.patch.object(process, "_keeper_code", powerless):
            command = await self.start(text, on_output=heard)
        pids = await heard.pids(2)
        pidfds = open_all(pids)
        command.kill()
        with self.assertLogs("crushlite.commands.process", logging.WARNING) as logs:
            ended = await command.wait()
        os.kill(pids[0], signal.SIGKILL)
        self.assertIn("2 processes", logs.output[0])
        self.assertEqual((ended.survivors, ended.canceled), (2, True))
        self.assertLess(ended.seconds, TIMEOUT)
        self.assertTrue(dead(pidfds, within=TIMEOUT))

    async def test_without_a_subreaper_the_process_group_is_killed(self) -> None:
        plain = altered("reaper = _become_subreaper()", "reaper = False")
        text = f"{LONG} & echo $!; echo $$; wait"
        for ending, code in (("wait", 137), ("exit 3", 3)):
            heard = Heard()
            with mock.patch.object(process, "_keeper_code", plain):
                command = await self.start(text.replace("wait", ending), on_output=heard)
            pidfds = open_all(await heard.pids(2))
            if ending == "wait":
                command.kill()
            ended = await command.wait()
            self.assertEqual((ended.code, ended.canceled), (code, code == 137))
            self.assertTrue(dead(pidfds, within=TIMEOUT))

    def test_the_keeper_runs_on_its_own(self) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-I", "-S", str(KEEPER)]
        with ours, theirs:
            keeper = subprocess.Popen(command, stdin=theirs.fileno(), stdout=subprocess.PIPE)
            theirs.close()
            ours.settimeout(TIMEOUT)
            body = b"\0".join([b"/", b"shell", b"3", b"bash", b"-c", b"echo hi; exit 5"])
            ours.sendall(b"%d\n%b" % (len(body), body))
            output, _ = keeper.communicate(timeout=TIMEOUT)
            said = ours.recv(1000)
        self.assertEqual((keeper.returncode, output), (0, b"hi\n"))
        self.assertRegex(said, rb"^pid \d+\nstarted\nended 5 0 0\n$")

    def test_a_keeper_without_a_whole_request_does_nothing(self) -> None:
        command = [sys.executable, "-I", "-S", str(KEEPER)]
        for request in (b"", b"5\n", b"500\n/\0shell\0"):
            answer = subprocess.run(command, input=request, capture_output=True, timeout=TIMEOUT)
            self.assertEqual((answer.returncode, answer.stdout, answer.stderr), (0, b"", b""))

    def test_the_keeper_imports_next_to_nothing(self) -> None:
        # Importing one of these takes as long as the rest of the start, for every command.
        code = f"import sys; exec(compile(open({str(KEEPER)!r}).read(), 'keeper', 'exec'), {{}})"
        code += (
            "; print([m for m in ('enum', 're', 'json', 'ctypes', 'typing') if m in sys.modules])"
        )
        command = [sys.executable, "-I", "-S", "-c", code]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
        self.assertEqual((answer.stdout, answer.stderr), ("[]\n", ""))


FROM_ARCHIVE = """
import asyncio
from othertool.clock import SystemClock
from othertool.commands.process import start

async def main():
    text = "tr '\\\\0' ' ' < /proc/$PPID/cmdline; exit 3"
    command = await start(text, cwd="/", env={"PATH": sys.argv[1]}, clock=SystemClock())
    ended = await command.wait()
    print(ended.code, command.output.text())

asyncio.run(main())
"""


class ArchiveTests(ProcessTestCase):
    async def test_a_package_in_a_zip_archive_under_another_name_runs_commands(self) -> None:
        printed = await asyncio.to_thread(run_from_archive, self.folder, FROM_ARCHIVE, PATH)
        code, *keeper = printed.split()
        self.assertEqual((code, keeper[-1]), ("3", "othertool-keeper"))


class EscapeTests(ProcessTestCase):
    """Each kind of escape is tried 5 times; `tools/escapees.py` tries it 100 times."""

    async def assert_no_escape(self, kind: Kind) -> None:
        best = TIMEOUT
        for _ in range(5):
            seconds, left = await hunt(kind)
            self.assertEqual(left, 0)
            best = min(best, seconds)
        self.assertLess(best, LIMIT)  # the others may have been slow because the machine was busy

    async def test_everything_dies_with_the_daemon(self) -> None:
        with mock.patch("tools.escapees.LIMIT", TIMEOUT):
            _, left = await kill_daemon()
        self.assertEqual(left, 0)


def _escape(kind: Kind) -> Callable[[EscapeTests], Coroutine[Any, Any, None]]:
    async def test(self: EscapeTests) -> None:
        await self.assert_no_escape(kind)

    return test


for _kind in KINDS:
    _name = f"test_no_process_escapes_{_kind.name.replace(' ', '_')}"
    setattr(EscapeTests, _name, limited_test(_escape(_kind)))


class CaptureTests(ProcessTestCase):
    async def test_both_outputs_come_in_the_order_they_were_written(self) -> None:
        heard = Heard()
        text = "for i in 1 2 3 4 5; do echo out $i; echo err $i >&2; done"
        command = await self.start(text, on_output=heard)
        await command.wait()
        lines = [f"{name} {number}" for number in range(1, 6) for name in ("out", "err")]
        self.assertEqual(command.output.text().splitlines(), lines)
        self.assertEqual(heard.data.decode(), command.output.text())

    async def test_output_is_live(self) -> None:
        heard = Heard()
        gate = self.folder / "gate"
        os.mkfifo(gate)
        command = await self.start("echo one; cat gate; echo three", on_output=heard)
        await heard.until(b"one\n")
        self.assertFalse(command.done.done())
        await asyncio.to_thread(gate.write_text, "two\n")
        await command.wait()
        self.assertEqual(heard.data, b"one\ntwo\nthree\n")

    async def test_a_line_of_10_mb_is_no_problem(self) -> None:
        text = "head -c 10000000 /dev/zero | tr '\\0' x; echo end"
        command = await self.start(text)
        await command.wait()
        self.assertEqual(command.output.total, 10_000_004)
        shown = command.output.text()
        self.assertLess(len(shown), 30_100)
        self.assertTrue(shown.startswith("xxx") and shown.endswith("xend\n"), shown[-80:])

    async def test_a_flood_does_not_fill_memory(self) -> None:
        done = asyncio.Event()
        seen, flood = 0, 200 * 2**20

        def count(data: bytes) -> None:
            nonlocal seen
            seen += len(data)
            if seen > flood:
                done.set()

        await self.run_it("true")
        before = resident()
        command = await self.start("yes", on_output=count)
        await done.wait()
        command.kill()
        ended = await command.wait()
        self.assertTrue(ended.canceled)
        self.assertLess(resident() - before, flood // 4)  # all of it, if it were kept
        self.assertEqual(command.output.total, seen)

    async def test_a_consumer_that_fails_is_dropped_and_the_command_goes_on(self) -> None:
        def fail(data: bytes) -> None:
            raise RuntimeError("no more")

        with self.assertLogs("crushlite.commands.process", logging.ERROR) as logs:
            text = "for i in 1 2 3; do echo $i; read -t 0.01; done < <(sleep 600); exit 6"
            ended, shown = await self.run_it(text, on_output=fail)
        self.assertEqual((ended.code, shown), (6, "1\n2\n3\n"))
        self.assertEqual(len(logs.records), 1)


class OutputTests(unittest.TestCase):
    def filled(self, data: bytes, step: int = 65536) -> Output:
        output = Output()
        for at in range(0, len(data), step):
            output.add(data[at : at + step])
        return output

    def test_short_output_is_all_there(self) -> None:
        self.assertEqual(Output().text(), "")
        for data in (b"x", b"a\x00b\tc\x1b[0m", "é\u4e2d\U0001f600\n".encode(), b"x" * 30_000):
            for step in (1, 7, 65536):
                self.assertEqual(self.filled(data, step).text(), data.decode())

    def test_long_output_keeps_its_two_ends_and_counts_the_rest(self) -> None:
        text = self.filled(b"a" * 20_000 + b"b" * 20_000).text()
        self.assertEqual(text, "a" * 15_000 + "\n... 10000 bytes left out ...\n" + "b" * 15_000)
        self.assertEqual(self.filled(b"abcdef").text(4), "ab\n... 2 bytes left out ...\nef")

    def test_a_megabyte_is_kept_and_no_more(self) -> None:
        half = HALF
        data = b"a" * half + b"b" * 3_000_000 + b"c" * half
        for step in (1000, 65536, len(data)):
            output = self.filled(data, step)
            self.assertEqual((output.total, output.dropped), (len(data), 3_000_000))
            self.assertLessEqual(len(output._head) + len(output._tail), 4 * half + step)
            notice = "\n... 3000000 bytes left out ...\n"
            self.assertEqual(output.text(2 * half), "a" * half + notice + "c" * half)
            self.assertEqual(output.text(10**9), "a" * half + notice + "c" * half)

    def test_no_character_is_cut_in_two(self) -> None:
        for character in ("é", "\u4e2d", "\U0001f600"):
            for shift in range(5):
                for limit in range(8, 40):
                    text = self.filled(b"x" * shift + character.encode() * 30).text(limit)
                    self.assertNotIn("\ufffd", text)
                    head, notice, tail = text.split("\n")
                    shown = len((head + tail).encode())
                    self.assertLessEqual(shown, limit)
                    self.assertGreater(shown, limit - 8)
                    self.assertEqual(
                        notice.split()[1], str(shift + len(character.encode()) * 30 - shown)
                    )

    def test_bytes_that_are_no_text_are_replaced(self) -> None:
        text = self.filled(b"caf\xe9 and much more text").text()
        self.assertEqual(text, "caf\ufffd and much more text")
        text.encode()
        text = self.filled(b"\xed\xa0\x80 is a lone surrogate in UTF-8").text()
        self.assertTrue(text.encode().endswith(b" is a lone surrogate in UTF-8"))

    def test_binary_output_is_named_and_not_shown(self) -> None:
        noise = bytes(range(256)) * 400
        self.assertEqual(self.filled(noise).text(), "[binary output, 102400 bytes]")
        self.assertEqual(self.filled(b"\0" * 10).text(), "[binary output, 10 bytes]")
        names = b"".join(b"src/file%d.py\0" % number for number in range(100))
        self.assertEqual(self.filled(names).text(), names.decode())  # find -print0 is text
