"""Editors at random, as tools/acp_editors.py has them for longer: no prompt is lost or left."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.support.basics import BoundedTestCase
from tools.acp_editors import Editors


class ManyEditorsTests(BoundedTestCase):
    async def test_two_for_a_moment(self) -> None:
        folder = self.enterContext(tempfile.TemporaryDirectory(prefix="cl-", dir="/tmp"))
        editors = Editors(5, Path(folder))
        self.assertEqual(await editors.run(0.1, 2), [])
        self.assertGreater(editors.counts["prompts"], 0)
