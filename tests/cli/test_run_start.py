"""`crushlite run` on a machine without a daemon: one is started, found, or replaced."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import unittest
from typing import TYPE_CHECKING, Any
from unittest import mock

from crushlite.cli.helptext import EFFORT
from crushlite.hosting import prompts
from crushlite.launch import Wanted, joined
from crushlite.testing import LocalDaemon
from crushlite.version import __version__
from tests.support.cli import PATIENCE, ROOT, CommandCase
from tests.support.scenarios import scenario

if TYPE_CHECKING:
    from collections.abc import Iterator


class StartTests(CommandCase):
    def setUp(self) -> None:
        super().setUp()
        self.addCleanup(self.end_daemon, self.socket)

    @property
    def log(self) -> str:
        return (self.socket.parent / "daemon.log").read_text()

    @scenario(303)
    async def test_of_eight_commands_at_once_one_starts_the_daemon(self) -> None:
        """The daemon that one of them starts leaves when they have gone."""
        self.env["CRUSHLITE_IDLE_TIMEOUT"] = os.environ["CRUSHLITE_IDLE_TIMEOUT"] = "1"
        children = [await self.spawn("run", f"number {n}") for n in range(8)]
        # Another client keeps the daemon until the last of them has come, on a busy machine too.
        notes: list[str] = []
        async with joined(Wanted(agent="offline", path=self.project, say=notes.append)):
            for number, child in enumerate(children):
                told = (0, f"You said: number {number}\n")
                self.assertEqual(await child.end(), told, child.errors)
        self.assertEqual(self.log.count("is serving"), 1)
        said = [child.errors for child in children] + ["\n".join(notes)]
        self.assertEqual(sum("starting a daemon at" in text for text in said), 1)
        descriptor = self.daemon_at(self.socket)
        if descriptor is not None:
            await asyncio.to_thread(self.wait_for_exit, descriptor)
            os.close(descriptor)
        self.assertIsNone(self.daemon_at(self.socket))
        self.assertFalse(self.socket.exists())

    async def test_what_it_leaves_is_private_and_a_dead_socket_is_no_obstacle(self) -> None:
        self.socket.parent.mkdir(mode=0o700)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
            dead.bind(str(self.socket))
        child = await self.spawn("run", "-q", "hello")
        self.assertEqual(await child.end(), (0, "You said: hello\n"), child.errors)
        self.assertEqual(child.errors, "")
        for name in ("daemon.log", "start.lock"):
            self.assertEqual((self.socket.parent / name).stat().st_mode & 0o777, 0o600)

    async def test_a_named_socket_is_served_there(self) -> None:
        host = self.root / "mine.sock"
        self.addCleanup(self.end_daemon, host)
        child = await self.start("run", f"--host=unix://{host}", "--agent=offline", "hello")
        self.assertEqual(await child.end(), (0, "You said: hello\n"), child.errors)
        self.assertFalse(self.socket.exists())

    async def test_modules_of_the_project_are_not_run(self) -> None:
        for name in ("h11", "asyncio", "crushlite"):
            (self.project / f"{name}.py").write_text("raise SystemExit('run by accident')\n")
        child = await self.spawn("run", "hello")
        self.assertEqual(await child.end(), (0, "You said: hello\n"), child.errors)

    async def test_a_copy_that_nobody_installed_starts_itself(self) -> None:
        del self.env["PYTHONPATH"]
        script = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        script += "from crushlite.cli import main; sys.exit(main(['run', 'hello']))"
        child = await self.spawn(command=(sys.executable, "-P", "-c", script))
        self.assertEqual(await child.end(), (0, "You said: hello\n"), child.errors)

    async def test_a_daemon_that_cannot_start_is_explained_with_its_own_words(self) -> None:
        child = await self.start("run", "--agent=no_such_module:x", "hello")
        self.assertEqual(await child.end(), (2, ""))
        self.assertIn("ended with exit code 2", child.errors)
        self.assertIn("agent 'no_such_module:x': No module named", child.errors)

    async def test_a_daemon_that_leaves_is_replaced(self) -> None:
        async with LocalDaemon() as leaving:
            leaving.backend.claims.latch()
            child = await self.start("run", f"--host=unix://{leaving.socket}", "hello")
            await child.notes("looking for another daemon")
            await leaving.daemon.stop()
            try:
                self.assertEqual(await child.end(), (0, "You said: hello\n"), child.errors)
            finally:
                self.end_daemon(leaving.socket)  # here: its folder goes with the other one's

    async def test_ctrl_c_while_a_daemon_does_not_answer(self) -> None:
        host = self.root / "silent.sock"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
            silent.bind(str(host))
            silent.listen()
            child = await self.spawn("run", f"--host=unix://{host}", "hello")
            await child.notes(f"waiting for the daemon at unix://{host}")
            child.process.send_signal(signal.SIGINT)
            self.assertEqual(await child.end(), (130, ""))
        self.assertNotIn("Traceback", child.errors)

    async def test_no_prompt_is_a_usage_error_and_starts_nothing(self) -> None:
        for arguments in ((), ("", " ")):
            child = await self.start("run", *arguments)
            self.assertEqual(await child.end(), (2, ""))
            self.assertIn("no prompt", child.errors)
        self.assertFalse(self.socket.parent.exists())

    async def test_other_wrong_usage(self) -> None:
        wrong = (
            (("--session", "a", "--continue", "x"), "not allowed with"),
            (("--timeout", "-1", "x"), "not a number above 0"),
            (("--deny-after", "-1", "x"), "not a number of seconds"),
            (("--effort", "HIGH!", "x"), "no word such as none, low, medium or high"),
            (("--host", "http://x", "x"), "use unix:///path"),
            (("--host", "unix://relative", "x"), "absolute path"),
            (("--host", "tcp://127.0.0.1:9", "--token-file", "none", "x"), "cannot read the token"),
        )
        for arguments, words in wrong:
            child = await self.start("run", *arguments)
            self.assertEqual(await child.end(), (2, ""))
            self.assertIn(words, child.errors)
        self.assertEqual(EFFORT, prompts._EFFORT.pattern)  # what is refused here and there


class TCPTests(CommandCase):
    @contextlib.contextmanager
    def runtime(self) -> Iterator[None]:
        with mock.patch.dict(os.environ, {"XDG_RUNTIME_DIR": str(self.root)}):
            yield

    async def test_a_port_is_used_with_the_token_that_its_daemon_left(self) -> None:
        self.enterContext(self.runtime())
        async with LocalDaemon(tcp=True) as daemon:
            self.project = daemon.root / "project"
            host = f"--host=tcp://127.0.0.1:{daemon.port}"
            token = daemon.daemon.tokens[daemon.port].path
            moved = daemon.root / "token"
            for number, arguments in enumerate(((), ("--token-file", str(moved))), 1):
                child = await self.start("run", host, *arguments, "hello")
                scripted = await daemon.entered(number)
                await scripted.say("yes")
                scripted.release()
                self.assertEqual(await child.end(), (0, "yes\n"), child.errors)
                moved.write_text(token.read_text())

    async def test_nothing_is_started_on_a_port(self) -> None:
        with socket.socket() as taken:  # bound and not listening: connections are refused
            taken.bind(("127.0.0.1", 0))
            host = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
            child = await self.start("run", "--host", host, "hello")
            self.assertEqual(await child.end(), (1, ""))
        self.assertIn(f"crushlite serve --host {host}", child.errors)
        self.assertFalse(self.socket.parent.exists())


class ImportTests(unittest.TestCase):
    def test_the_command_does_not_load_the_server(self) -> None:
        script = (
            "import sys\nfrom crushlite.cli import main\n"
            "try:\n    main(['run', '--help'])\nexcept SystemExit:\n    pass\n"
            "heavy = ('sqlite3', 'crushlite.daemon', 'crushlite.hosting', 'crushlite.store',\n"
            "  'pathlib', 'urllib.parse', 'hashlib', 'crushlite.cli.chat_dialogs',\n"
            "  'crushlite.protocol.large', 'crushlite.protocol.changes',\n"
            "  'crushlite.client.elements')\n"
            "print([name for name in heavy if name in sys.modules])\n"
        )
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual((done.stdout.splitlines()[-1], done.stderr), ("[]", ""))
        self.assertIn("141", done.stdout)


class ProcessTests(unittest.TestCase):
    def end_of(self, **streams: Any) -> tuple[int, str]:
        script = (
            "import atexit, sys\nfrom crushlite.cli import process\n"
            "class Kept:\n    def __del__(self):\n        print('taken apart')\n"
            "kept, sys.argv = Kept(), ['crushlite', '--version']\n"
            "atexit.register(print, 'exit function')\nprocess()\n"
        )
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, cwd=ROOT, text=True, timeout=PATIENCE, **streams)
        return done.returncode, done.stdout or ""

    def test_a_process_does_what_was_registered_and_flushes_but_is_not_taken_apart(self) -> None:
        printed = f"crushlite {__version__}\nexit function\n"
        self.assertEqual(self.end_of(stdout=subprocess.PIPE), (0, printed))

    def test_garbage_is_collected_again_when_the_command_begins(self) -> None:
        script = (
            "import gc, sys\nfrom crushlite.cli import process, ps\n"
            "def look(options):\n    print(gc.isenabled(), gc.get_freeze_count() > 0)\n"
            "    return 0\n"
            "ps.add_parser = lambda all: all.add_parser('ps').set_defaults(run=look)\n"
            "sys.argv = ['crushlite', 'ps']\nprocess()\n"
        )
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual((done.stdout, done.stderr), ("True True\n", ""))

    def test_output_that_cannot_be_written_is_no_success(self) -> None:
        with open("/dev/full", "w") as full:
            code, _ = self.end_of(stdout=full, stderr=subprocess.DEVNULL)
        self.assertNotEqual(code, 0)
