"""The language server for Go on a small project; left out where go is not installed."""

from __future__ import annotations

import os
import shutil

from tests.support.peers import GOPLS
from tests.support.real_servers import RealServerCase

FILES = {
    "go.mod": "module demo\n\ngo 1.21\n",
    "lib.go": "package main\n\nfunc helper(x int) int { return x }\n",
    "main.go": "package main\n\nfunc main() { println(helper(1)) }\n",
}


class GoTests(RealServerCase):
    async def test_gopls_says_what_a_change_breaks_and_finds_names(self) -> None:
        go = os.path.dirname(str(shutil.which("go")))
        await self.open(FILES, f"{GOPLS.parent}:{go}:/usr/bin:/bin")
        told = await self.broken("main.go", FILES["main.go"].replace("1", "nothing"))
        self.assertRegex(told, "undefined: nothing|undeclared name: nothing")  # by its version
        found = await self.call("lsp_references", file_path="main.go", symbol="helper")
        self.assertEqual(
            found.split("\n"),
            [
                "lib.go:3: func helper(x int) int { return x }",
                "main.go:3: func main() { println(helper(nothing)) }",
            ],
        )
