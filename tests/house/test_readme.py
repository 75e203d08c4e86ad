"""What the README shows is run exactly as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from tests.support.curl import path_with_curl
from tests.support.places import ROOT

README = (ROOT / "README.md").read_text()
PATIENCE = 60.0


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.S)


class Shown(unittest.TestCase):
    """Runs blocks in a private directory, with `/tmp` and `tools/run` of the text mapped there."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="crushlite-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}

    def mapped(self, text: str) -> str:
        text = text.replace("/tmp", str(self.folder))
        return text.replace("tools/run", f"{sys.executable} -m crushlite")

    def run_block(self, *command: str) -> str:
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def serve(self, *arguments: str) -> None:
        """A daemon for the block under test, up when this returns and gone after the test."""
        child = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.addCleanup(child.communicate)
        self.addCleanup(child.kill)
        assert child.stdout is not None
        lines = iter(child.stdout.readline, "")
        self.assertTrue(any("listening" in line or "serving" in line for line in lines))


class ReadmeTest(Shown):
    def test_the_demo_works_as_typed(self) -> None:
        for stand_in in (False, True):
            with self.subTest(stand_in=stand_in):
                self.environment["PATH"] = path_with_curl(self.folder, stand_in=stand_in)
                self.check_demo()

    def check_demo(self) -> None:
        script = next(block for block in blocks("sh") if "curl" in block)
        printed = self.run_block("bash", "-c", "set -m\n" + self.mapped(script))
        self.assertIn('"was":"active"', printed)
        self.assertEqual(printed.count('"type":"run_complete"'), 2)
        self.assertEqual(printed.count('"cancelled":true'), 2)

    def test_the_client_example_prints_the_answer(self) -> None:
        socket = f"unix://{self.folder}/demo.sock"
        self.serve("-m", "crushlite", "serve", "--agent", "offline", "--host", socket)
        example = next(block for block in blocks("python") if "Client(" in block)
        self.assertIn("You said: hello", self.run_block(sys.executable, "-c", self.mapped(example)))

    def test_the_agent_example_answers(self) -> None:
        """The same client, against the agent of the README on the default socket."""
        self.environment["XDG_RUNTIME_DIR"] = str(self.folder)
        example = next(block for block in blocks("python") if "Daemon(" in block)
        logging = "import logging; logging.basicConfig(level='INFO')\n"
        self.serve("-c", logging + example)
        client = next(block for block in blocks("python") if "Client(" in block)
        client = self.mapped(client).replace("/demo.sock", "/crushlite/crushlite.sock")
        self.assertIn("You said: hello", self.run_block(sys.executable, "-c", client))

    def test_the_harness_example_passes(self) -> None:
        example = next(block for block in blocks("python") if "LocalDaemon" in block)
        (self.folder / "test_example.py").write_text(example)
        self.run_block(sys.executable, "-m", "unittest", "test_example")
