"""The short form of `tools/soak.py`: some seconds of use with faults, and every invariant holds."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import io
import unittest
from typing import Any
from unittest import mock

# Not by a static import: the type checker is run on the package and the tests only.
soak: Any = importlib.import_module("tools.soak")


class SoakTests(unittest.TestCase):
    def test_a_few_seconds_of_use_with_faults_violate_nothing(self) -> None:
        out = io.StringIO()
        words = ["--minutes", "0.12", "--seed", "3", "--streams", "10", "--workers", "3"]
        with contextlib.redirect_stdout(out):
            code = asyncio.run(soak.main(words))
        self.assertEqual(code, 0, out.getvalue())
        self.assertRegex(out.getvalue(), r"[1-9]\d* promises audited")

    def test_it_would_notice_an_ending_that_is_another_one(self) -> None:
        ledger = soak.Ledger()
        with contextlib.redirect_stdout(io.StringIO()):
            watcher = soak.Watcher(mock.Mock(ledger=ledger), None, 0)
            ending = mock.Mock(run_id="r", cancelled=False, error="")
            watcher._ended(ending)
            watcher._ended(ending)
            watcher.seen.clear()
            ending.cancelled = True
            watcher._ended(ending)
        self.assertEqual([line[:3] for line in ledger.violations], ["I3:", "I3:"])

    def test_it_measures_how_fast_a_figure_grows(self) -> None:
        samples = [soak.Sample(float(n), 30 + n / 3600, 10, 5, 3) for n in range(100)]
        found = soak.slopes(samples)
        self.assertAlmostEqual(found["rss"], 1.0)
        self.assertAlmostEqual(found["threads"], 0.0)
