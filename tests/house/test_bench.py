"""The benchmark runs, and its gate tells a worse checkout from noise."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from xml.etree import ElementTree

from tests.support.places import ROOT

BENCH = ROOT / "tools" / "bench"
PATIENCE = 600.0  # seconds: far above what anything takes, so that only a hang reaches it


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=ROOT
    )


class BenchTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="crushlite-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def test_rows_are_measured_on_this_checkout_and_on_a_toy_server(self) -> None:
        figures, plot = self.folder / "figures.json", self.folder / "plot.svg"
        rows = "turn,first,fanout,deltas,health,memory"
        small = ("--rounds", "1", "--scale", "0.001", "--size", "0.01")
        where = ("--base", "none", "--fixed-points", "--json", figures, "--plot", plot)
        done = run(sys.executable, BENCH / "main.py", "--rows", rows, *small, *where)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("FAILED", done.stderr)
        found = json.loads(figures.read_text())["rows"]
        self.assertEqual(",".join(found), rows)
        for key, row in found.items():
            self.assertGreater(row["values"]["here"][0], 0, key)
            self.assertIn(row["title"], done.stdout)
        self.assertGreater(found["fanout"]["values"]["asyncio"][0], 0)
        ElementTree.fromstring(plot.read_text())

    def test_growth_is_measured_at_each_size_and_shown_as_factors(self) -> None:
        figures = self.folder / "figures.json"
        small = ("--rounds", "1", "--scale", "0.001", "--size", "0.0005", "--json", figures)
        done = run(sys.executable, BENCH / "growth.py", "--rows", "messages_kb,sent_kb", *small)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("FAILED", done.stderr)
        rows = json.loads(figures.read_text())["rows"]
        for row in rows.values():
            self.assertEqual(list(row["values"]), ["1", "10"])
            (one,), (ten,) = row["values"].values()
            self.assertLess(0, one)
            self.assertLess(one, ten)
            self.assertIn(row["title"], done.stdout)
        self.assertRegex(done.stdout, r"x10 +allowed")

    def test_what_grows_faster_than_allowed_is_told_from_what_does_not(self) -> None:
        asked = [
            ("constant", {"10": [2.0], "100": [2.2], "1000": [2.1]}, False),
            ("constant", {"10": [2.0], "100": [2.2], "1000": [4.0]}, True),
            ("constant", {"0": [2.0], "1000": [4.0]}, True),
            ("linear", {"10": [2.0], "100": [19.0], "1000": [200.0]}, False),
            ("linear", {"10": [2.0], "100": [60.0], "1000": [600.0]}, True),
            ("linear", {"0": [2.0], "1000": [600.0]}, False),
            ("linear", {"10": [], "100": [60.0]}, False),
        ]
        rows = [{"allowed": allowed, "values": values} for allowed, values, _ in asked]
        answer = "print(json.dumps([growth.faster(row) for row in json.load(sys.stdin)]))"
        done = subprocess.run(
            [sys.executable, "-c", f"import json, sys, growth; {answer}"],
            input=json.dumps(rows),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=True,
            cwd=BENCH,
        )
        self.assertEqual(json.loads(done.stdout), [verdict for *_, verdict in asked])

    def gate(self, more: bool, here: list[float | None], base: list[float]) -> int:
        row = {"title": "a row", "unit": "ms", "more": more, "values": {"here": here, "base": base}}
        figures = self.folder / "figures.json"
        servers = {"here": "", "base": ""}
        figures.write_text(json.dumps({"meta": {"servers": servers}, "rows": {"row": row}}))
        done = run(BENCH / "run", "--from", figures, "--gate")
        self.assertIn(done.returncode, (0, 1), done.stderr)
        self.assertEqual("GATE" in done.stderr, done.returncode == 1)
        return done.returncode

    def test_the_gate_fails_only_what_is_worse_in_every_round_and_by_more_than_a_tenth(
        self,
    ) -> None:
        self.assertEqual(self.gate(False, [1.3, 1.2, 1.2], [1, 1, 1]), 1)
        self.assertEqual(self.gate(False, [1.5, 1.5, 0.99], [1, 1, 1]), 0, "one round is better")
        self.assertEqual(self.gate(False, [1.05, 1.09, 1.08], [1, 1, 1]), 0, "a small difference")
        self.assertEqual(self.gate(False, [0.5, 0.5, 0.5], [1, 1, 1]), 0, "better")

    def test_the_gate_knows_rows_in_which_more_is_better(self) -> None:
        self.assertEqual(self.gate(True, [80, 80, 85], [100, 100, 100]), 1)
        self.assertEqual(self.gate(True, [130, 120, 120], [100, 100, 100]), 0)

    def test_the_gate_fails_where_the_base_had_no_stall_or_the_checkout_has_no_figure(self) -> None:
        self.assertEqual(self.gate(False, [1, 2, 1], [0, 0, 0]), 1)
        self.assertEqual(self.gate(False, [0, 0, 0], [0, 0, 0]), 0)
        self.assertEqual(self.gate(False, [None, None, None], [1, 1, 1]), 1)

    def test_a_checkout_is_not_compared_with_itself(self) -> None:
        done = run(BENCH / "run", "--base", ROOT)
        self.assertEqual(done.returncode, 1)
        self.assertIn("nothing to compare", done.stderr)
