"""Commands that are printed as advice, and those that start our own processes, run this package in
whatever directory they are used."""

from __future__ import annotations

import itertools
import json
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from crushlite import itself, launch
from crushlite.cli import serve
from crushlite.errors import CorruptDatabase
from crushlite.listen import Address
from crushlite.protocol.sessions import Session
from crushlite.store.connection import connect
from crushlite.store.inspection import inspect
from crushlite.store.migrations import MIGRATIONS
from crushlite.store.sessions import insert_session
from tests.support.basics import LIMIT
from tests.support.places import ROOT

TRAPS = ("crushlite", "json", "uuid", "argparse", "asyncio", "sqlite3", "h11")


class PastedTests(unittest.TestCase):
    def setUp(self) -> None:
        self.project = Path(self.enterContext(tempfile.TemporaryDirectory()))
        for name in TRAPS:  # a project with modules named like those that we import
            (self.project / name).mkdir()
            for file in ("__init__.py", "__main__.py"):
                (self.project / name / file).write_text("print('TRAPPED')\nraise SystemExit(9)\n")

    def paste(self, line: str) -> str:
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=self.project,
            env=env,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        self.assertNotIn("TRAPPED", done.stdout + done.stderr)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_the_trap_works(self) -> None:
        with self.assertRaises(AssertionError):
            self.paste(f"{sys.executable} -m crushlite --help")

    def test_a_printed_command_runs_this_package_in_the_directory_of_any_project(self) -> None:
        self.assertIn("usage:", self.paste(itself.pasted_command("crushlite", "--help")))
        salvage = itself.pasted_command("crushlite.repair.salvage", "--help")
        self.assertIn("damaged", self.paste(salvage))

    def test_serve_says_how_to_be_called_from_any_directory(self) -> None:
        for argv0 in (str(ROOT / "crushlite" / "__main__.py"), "bin/crushlite", "./crushlite"):
            with mock.patch.object(sys, "argv", [argv0]):
                called = serve._called_as()
            if argv0.endswith("__main__.py"):
                self.assertIn("usage:", self.paste(f"{called} --help"))
            else:
                self.assertTrue(called.startswith("/"), called)

    def test_the_first_steps_import_nothing_of_the_project(self) -> None:
        daemon: Any = SimpleNamespace(addresses=[Address(path="/no.sock")], tokens={})
        lines = serve._first_steps(daemon)
        pythons = [line for line in lines if "python3" in line]
        self.assertEqual(len(pythons), 3)
        for line in pythons:
            self.assertNotIn("python3 -c", line)
        self.paste("\n".join([*pythons, """echo '{"id": 7}' | getid"""]))

    def test_the_name_of_a_folder_says_nothing_in_the_first_steps_but_where_it_is(self) -> None:
        daemon: Any = SimpleNamespace(addresses=[Address(path="/no.sock")], tokens={})
        self.project /= 'a","yolo":true,"b":"$(touch trap)\n\'c'
        self.project.mkdir()
        # Stands in for curl: its words are `-sS --unix-socket PATH URL -d BODY`.
        curl = """curl() { printf '%s' "$6" >&3; printf '{"id": "w"}'; }"""
        shown = self.paste("\n".join(["exec 3>&1", curl, *serve._first_steps(daemon)[:5]]))
        sent = json.loads(shown)
        self.assertEqual(sorted(sent), ["client_id", "path"])
        self.assertEqual(sent["path"], os.path.realpath(self.project))
        self.assertEqual(os.listdir(self.project), [])

    def test_the_advice_for_a_database_that_came_with_a_project_runs_nothing_of_it(self) -> None:
        data = self.project / "it's; touch trap"
        data.mkdir()
        conn = sqlite3.connect(data / "crushlite.db")
        for statement in itertools.chain(*MIGRATIONS):
            conn.execute(statement)
        conn.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
        insert_session(conn, "", Session(id="s"))
        conn.execute("CREATE TABLE others (x)")
        conn.commit()
        conn.close()
        with self.assertRaises(CorruptDatabase) as refused:
            inspect(data / "crushlite.db", connect, "")
        advice = r"To take over what can be read: (.*?); to go on, "
        [line] = re.findall(advice, refused.exception.message)
        self.assertIn("sessions: 1 saved", self.paste(line))
        self.assertFalse((self.project / "trap").exists())

    def test_no_text_of_the_package_tells_to_run_a_module_of_the_current_directory(self) -> None:
        unsafe = re.compile(r"python3? (?!-P |-I )-[mc] |executable,? [\"']?-m\b")
        for file in (ROOT / "crushlite").rglob("*.py"):
            if file.name != "__main__.py":  # which says what it is
                self.assertEqual(unsafe.findall(file.read_text()), [], file)


class StartTests(unittest.TestCase):
    def test_a_daemon_gets_no_relative_entry_of_pythonpath(self) -> None:
        with mock.patch.dict(os.environ, {"PYTHONPATH": f".::lib:{ROOT}:/else/where"}):
            path = launch._environment()["PYTHONPATH"].split(":")
        self.assertEqual(path, [str(ROOT), "/else/where"])

    def test_the_current_directory_is_not_searched(self) -> None:
        self.assertEqual(launch._serve_command("unix:///s", "offline")[1], "-P")
