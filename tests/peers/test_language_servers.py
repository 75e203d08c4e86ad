"""Language servers for Python on a small project: what a change breaks, and where names are."""

from __future__ import annotations

import os

from tests.support.peers import NODE_MODULES, PEERS
from tests.support.real_servers import RealServerCase

FILES = {
    "lib.py": "def helper(x: int) -> int:\n    return x\n",
    "main.py": "from lib import helper\n\nprint(helper(1))\n",
}
BROKEN = FILES["main.py"].replace("1", "nothing")
SYSTEM = "/usr/bin:/bin"


class PythonTests(RealServerCase):
    async def test_pyright_says_what_a_change_breaks_and_finds_names(self) -> None:
        folders = (NODE_MODULES / ".bin", NODE_MODULES / "node" / "bin", SYSTEM)
        await self.open(FILES, os.pathsep.join(map(str, folders)))
        self.assertIn('error: "nothing" is not defined', await self.broken("main.py", BROKEN))
        found = await self.call("lsp_definition", file_path="main.py", symbol="helper")
        self.assertEqual(found, "lib.py:1: def helper(x: int) -> int:")

    async def test_pylsp_says_what_a_change_breaks_and_finds_names(self) -> None:
        await self.open(FILES, f"{PEERS}/venv/bin:{SYSTEM}")
        self.assertIn("undefined name 'nothing'", await self.broken("main.py", BROKEN))
        found = await self.call("lsp_references", file_path="lib.py", symbol="helper")
        self.assertIn("main.py:3: print(helper(nothing))", found.split("\n"))
