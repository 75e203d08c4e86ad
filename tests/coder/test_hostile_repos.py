"""The short form of tools/hostile_repos.py: some of the repositories, without limits of time."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.support.basics import LIMIT, BoundedTestCase
from tools.hostile_corpus import REPOS, Maker
from tools.hostile_repos import _remove_deep, visit

CHOSEN = (
    "files/fifos",
    "size/nested_1500",
    "names/not_utf8",
    "git/config_fifo",
    "data/lock_fifo",
    "tools/python",
    "wings/fifos",
    "wings/servers_of_all_kinds",
)


class HostileTests(BoundedTestCase):
    async def test_nothing_runs_leaves_or_hangs(self) -> None:
        for name in CHOSEN:
            [case] = await visit([name], patience=LIMIT / 2, leave=None)
            with self.subTest(name):
                self.assertEqual(case.problems, [])
                self.assertRegex(case.outcome, "^(completed|not opened: .*not a (?:regular )?file)")

    def test_every_repository_can_be_made(self) -> None:
        self.assertGreaterEqual(len(REPOS), 60)
        for name in (name for name in REPOS if not name.startswith("size/")):
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                REPOS[name](Maker(Path(folder), Path("/bin/false"), "http://127.0.0.1:1"))
                _remove_deep(Path(folder))
