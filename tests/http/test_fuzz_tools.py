"""The short forms of tools/fuzz_http.py and tools/fuzz_json.py, against a real daemon."""

from __future__ import annotations

import subprocess
import sys
import unittest

from tests.support.places import ROOT

SEED = "7"


class Fuzzing(unittest.TestCase):
    def check(self, tool: str, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, str(ROOT / "tools" / tool), "--seed", SEED, *arguments],
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_mutated_requests_are_answered_or_refused_and_the_daemon_lives(self) -> None:
        said = self.check("fuzz_http.py", "--requests", "600", "--stall", "0")
        self.assertIn("answers: {200: ", said)

    def test_mutated_bodies_are_taken_or_refused_in_the_shape_of_an_error(self) -> None:
        said = self.check("fuzz_json.py", "--bodies", "300")
        self.assertIn("300 bodies", said)
