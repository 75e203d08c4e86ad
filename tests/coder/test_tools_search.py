"""ls, glob and grep: patterns, what is left out, limits, and searches that would never end."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time
import unittest
from typing import TYPE_CHECKING, Any
from unittest import mock

from crushlite.clock import SystemClock
from crushlite.coder.tools import search
from crushlite.coder.tools.search import Grep
from crushlite.testing.fake_clock import FakeClock
from crushlite.worktree import rules, walk
from crushlite.worktree.rules import Ignored, Pattern, braces
from crushlite.worktree.walk import main
from tests.support.archive import run_from_archive
from tests.support.tools import SECRET, ToolTestCase

if TYPE_CHECKING:
    from pathlib import Path

EXPLOSIVE = r"(a+)+$"


def matches(pattern: str, path: str) -> bool:
    return any(Pattern(p).matches(tuple(path.split("/"))) for p in braces(pattern))


class PatternTests(unittest.TestCase):
    def test_patterns_of_paths(self) -> None:
        for pattern, yes, no in (
            ("*.py", "a.py", "src/a.py"),
            ("**/*.py", "a.py", "a.pyc"),
            ("**/*.py", "x/y/z/a.py", "x/a.py/b"),
            ("src/**", "src/a/b", "test/a"),
            ("src/**/a", "src/a", "a"),
            ("src/*/a", "src/x/a", "src/x/y/a"),
            ("./src//a?", "src/ab", "src/a"),
            ("[a-c].[!x]", "b.y", "b.x"),
            ("*.{ts,tsx}", "a.tsx", "a.js"),
            ("{a,b}/{c,d}", "b/c", "c/b"),
            ("**/**/a", "a", "b"),
            ("**", "a/b/c", ""),
            ("a.b", "a.b", "axb"),
        ):
            with self.subTest(pattern):
                self.assertTrue(matches(pattern, yes))
                self.assertFalse(no and matches(pattern, no))

    def test_braces_are_bounded(self) -> None:
        self.assertEqual(braces("a{b,c{d,e}}"), ["ab", "acd", "ab", "ace"])
        self.assertLessEqual(len(braces("{a,b}" * 30)), rules.MOST_BRACES + 2)
        self.assertEqual(braces("{}{"), ["{"])

    def test_patterns_do_not_explode(self) -> None:
        began = time.process_time()  # of this process: others may be busy
        self.assertFalse(matches("*a" * 60 + "b", "a" * 250))
        self.assertFalse(matches("**/" * 60 + "b", "/".join("a" * 60)))
        self.assertLess(time.process_time() - began, 10)

    def test_rules_of_what_to_ignore(self) -> None:
        ignored = Ignored("# no\n\n*.log\n/build\nout/\ndoc/*.tmp\n!keep.log\n")
        for path, is_dir, wanted in (
            ("a.log", False, True),
            ("x/a.log", False, True),
            ("keep.log", False, False),
            ("build", True, True),
            ("x/build", True, False),
            ("x/out", True, True),
            ("x/out", False, False),
            ("doc/a.tmp", False, True),
            ("x/doc/a.tmp", False, False),
            ("node_modules", True, True),
            ("node_modules", False, False),
            ("x/.git", True, True),
        ):
            with self.subTest(path, is_dir=is_dir):
                self.assertEqual(ignored.covers(tuple(path.split("/")), is_dir), wanted)


class TreeTestCase(ToolTestCase):
    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        for name, content in {
            "a.py": "import os\nneedle = 1\n",
            "src/b.py": "x\r\nneedle(2)\r\n",
            "src/deep/er/c.ts": "no\n",
            "src/bin.dat": "needle\0",
            "node_modules/x/d.py": "needle\n",
            ".git/e.py": "needle\n",
            ".crushlite/f.py": "needle\n",
            "build/g.py": "needle\n",
            "note.log": "needle\n",
            ".hidden": "needle hidden\n",
            ".gitignore": "/build\n*.log\n",
        }.items():
            self.put(name, content)
        os.symlink(self.outside, self.root / "out")
        os.symlink(self.outside / "secret.txt", self.root / "out.py")

    def put(self, name: str, content: str | bytes = "") -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path


class LsTests(TreeTestCase):
    async def test_a_tree_without_what_is_ignored(self) -> None:
        outcome = await self.use("ls")
        names = [".gitignore", ".hidden", "a.py", "out", "out.py", "src/", "  b.py", "  bin.dat"]
        names += ["  deep/", "    er/"]
        tree = "".join(f"\n  {name}" for name in names)
        self.assertEqual(outcome.content, f"{self.root}/{tree}")
        self.assertEqual(json.loads(outcome.metadata), {"number_of_files": 10, "truncated": False})
        self.assertEqual(self.turn.asked, [])

    async def test_depth_ignore_and_path(self) -> None:
        outcome = await self.use("ls", path="src", depth=5, ignore=["*.dat", "er/"])
        self.assertEqual(outcome.content, f"{self.root}/src/\n  b.py\n  deep/")
        outcome = await self.use("ls", path="src", depth="1")
        self.assertNotIn("er/", outcome.content)
        outcome = await self.use("ls", path="build")
        self.assertIn("g.py", outcome.content, "what is asked for by name is shown")

    async def test_many_entries_are_cut_where_they_lie_deepest(self) -> None:
        for n in range(1100):
            self.put(f"many/{n:04}")
        outcome = await self.use("ls", path=".")
        self.assertIn("only 1000 are shown", outcome.content)
        self.assertIn("\n  src/", outcome.content)
        self.assertTrue(json.loads(outcome.metadata)["truncated"])

    async def test_strange_names_are_escaped(self) -> None:
        self.put("new\nline\u202e")
        (self.root / os.fsdecode(b"\xff\xfe")).write_text("")
        outcome = await self.use("ls", depth=1)
        self.assertIn("\n  new\\nline\\u202e\n", outcome.content)
        outcome.content.encode()

    async def test_ls_asks_outside_the_workspace(self) -> None:
        outcome = await self.use("ls", path="out", ignore=["x"], depth=2)
        self.assert_denied(outcome, "nobody allowed")
        asked = self.turn.asked[0]
        self.assertEqual((asked.tool, asked.action, asked.path), ("ls", "list", str(self.outside)))
        self.assertEqual(asked.params, {"path": str(self.outside), "ignore": ["x"], "depth": 2})
        self.allow()
        self.assertIn("secret.txt", (await self.use("ls", path="..//outside")).content)

    async def test_what_is_no_folder_is_explained(self) -> None:
        self.assert_failed(await self.use("ls", path="none"), "none does not exist")
        self.assert_failed(await self.use("ls", path="a.py"), "a.py is a file: use view")
        self.assert_failed(await self.use("glob", pattern="*", path="a.py"), "is a file")
        for name, more in (("ls", {}), ("glob", {"pattern": "*"}), ("grep", {"pattern": "x"})):
            outcome = await self.use(name, path="scr", **more)
            self.assert_failed(outcome, "scr does not exist: did you mean src?")
        arguments: list[dict[str, Any]] = [
            *({"path": 7}, {"depth": "x"}, {"ignore": "x"}, {"ignore": [7]}, {"ignore": {}}),
            *({"ignore": ["x"] * 101}, {"ignore": ["x" * 3000]}, {"path": "a\0b"}),
        ]
        for wrong in arguments:
            self.assert_failed(await self.use("ls", **wrong))


class GlobTests(TreeTestCase):
    async def test_files_by_pattern_newest_first(self) -> None:
        os.utime(self.root / "src/b.py", (2_000_000_000, 2_000_000_000))
        os.utime(self.root / "a.py", (1_900_000_000, 1_900_000_000))
        outcome = await self.use("glob", pattern="**/*.py")
        self.assertEqual(outcome.content, "src/b.py\na.py\nout.py")
        outcome = await self.use("glob", pattern="*.{py,ts}", path="src/deep/er")
        self.assertEqual(outcome.content, "src/deep/er/c.ts")
        self.assertEqual((await self.use("glob", pattern="**/*.zig")).content, "No files found")
        outcome = await self.use("glob", pattern="*.zig")
        self.assertIn("for all folders below it use **/*.zig", outcome.content)
        outcome = await self.use("glob", pattern=f"{self.root}/src/*.py")
        self.assertEqual(outcome.content, "src/b.py")

    async def test_glob_shows_a_limited_number_of_files(self) -> None:
        for n in range(150):
            path = self.put(f"many/{n:04}")
            os.utime(path, (n, n))
        outcome = await self.use("glob", pattern="many/*")
        lines = outcome.content.split("\n")
        self.assertEqual((lines[0], lines[99]), ("many/0149", "many/0050"))
        self.assertIn("only 100 are shown", lines[100])

    async def test_glob_asks_outside_the_workspace(self) -> None:
        self.assert_denied(await self.use("glob", pattern="*", path=".."))
        asked = self.turn.asked[0]
        self.assertEqual((asked.tool, asked.action, asked.path), ("glob", "read", str(self.base)))
        for pattern in ("../*", "/etc/*", "src/../../*", "", "x" * 3000):
            self.assert_failed(await self.use("glob", pattern=pattern), "pattern")


class GrepTests(TreeTestCase):
    async def test_lines_by_expression(self) -> None:
        outcome = await self.use("grep", pattern=r"needle\W")
        self.assertEqual(
            outcome.content,
            ".hidden:\n  1: needle hidden\n\na.py:\n  2: needle = 1\n\nsrc/b.py:\n  2: needle(2)",
        )
        self.assertEqual(json.loads(outcome.metadata)["number_of_matches"], 3)
        self.assertEqual((await self.use("grep", pattern="zzz")).content, "No matches found")

    async def test_a_text_an_include_and_a_single_file(self) -> None:
        outcome = await self.use("grep", pattern="needle(", literal_text=True)
        self.assertEqual(outcome.content, "src/b.py:\n  2: needle(2)")
        outcome = await self.use("grep", pattern="needle", include="*.{ts,py}", path=".")
        self.assertNotIn("hidden", outcome.content)
        outcome = await self.use("grep", pattern="needle", include="src/*.py")
        self.assertNotIn("a.py", outcome.content)
        outcome = await self.use("grep", pattern="needle", path="note.log")
        self.assertEqual(outcome.content, "note.log:\n  1: needle")
        outcome = await self.use("grep", pattern="needle", path="build")
        self.assertEqual(outcome.content, "build/g.py:\n  1: needle")
        outcome = await self.use("grep", pattern="needle", path=str(self.root / "src/b.py"))
        self.assertEqual(outcome.content, "src/b.py:\n  2: needle(2)")
        outcome = await self.use("grep", pattern="zzz(")
        self.assertIn("set literal_text", outcome.content)
        outcome = await self.use("grep", pattern="zzz.")
        self.assertIn("for a plain text set literal_text", outcome.content)

    async def test_links_are_not_followed(self) -> None:
        outcome = await self.use("grep", pattern="secret")
        self.assertEqual(outcome.content, "No matches found")
        self.assert_denied(await self.use("grep", pattern="secret", path="out.py"))
        self.assertEqual(self.turn.asked[0].action, "read")
        self.allow()
        outcome = await self.use("grep", pattern="secret", path="out")
        self.assertEqual(outcome.content, f"{self.outside}/secret.txt:\n  1: {SECRET}")
        outcome = await self.use("glob", pattern="*", path="out")
        self.assertEqual(outcome.content, f"{self.outside}/secret.txt")

    async def test_many_matches_long_lines_and_large_files_are_cut(self) -> None:
        self.put("many.txt", "hit\n" * 500)
        self.put("src/one.txt", "hit\n")
        outcome = await self.use("grep", pattern="hit")
        self.assertIn("  20: hit\n", outcome.content)
        self.assertNotIn("  21: hit\n", outcome.content)
        self.assertIn("src/one.txt:\n  1: hit", outcome.content)
        self.assertIn("(480 more matches in many.txt: search it alone", outcome.content)
        self.assertTrue(json.loads(outcome.metadata)["truncated"])
        outcome = await self.use("grep", pattern="hit", path="many.txt")
        self.assertIn("only 100 are shown", outcome.content)
        for n in range(10):
            self.put(f"{n}.txt", "hit\n" * 15)
        self.assertIn("only 100 are shown", (await self.use("grep", pattern="hit")).content)
        self.put("long.txt", "x" * 9000 + "target" + "y" * 9000)
        outcome = await self.use("grep", pattern="target")
        self.assertIn("target", outcome.content)
        self.assertLess(len(outcome.content), 400)
        with open(self.put("huge.txt", "enormous"), "ab") as file:
            file.truncate(walk.FILE_BYTES + 1)
        self.assertIn("No matches", (await self.use("grep", pattern="enormous")).content)

    async def test_special_files_do_not_block(self) -> None:
        os.mkfifo(self.root / "fifo")
        os.mkfifo(self.root / "src" / "fifo.py")
        outcome = await self.use("grep", pattern="needle", include="*.py")
        self.assertIn("a.py", outcome.content)

    async def test_wrong_arguments_are_explained(self) -> None:
        for pattern in ("(", "[", "*", "(?P<a>x)(?P<a>y)", "x{1,99999999999}", "(?<=a+)b", "\\"):
            self.assert_failed(await self.use("grep", pattern=pattern), "pattern")
        arguments: list[dict[str, Any]] = [
            *({}, {"pattern": 7}, {"pattern": ""}, {"pattern": "x" * 3000}, {"pattern": None}),
            *({"pattern": "x", "literal_text": "perhaps"}, {"pattern": "x", "include": 7}),
            *({"pattern": "x", "include": "x" * 3000}, {"pattern": "x", "path": []}),
        ]
        for wrong in arguments:
            self.assert_failed(await self.use("grep", **wrong))
        self.assertFalse((await self.use("grep", pattern="a\0b")).is_error)


class RuleFileTests(TreeTestCase):
    async def found(self, **more: Any) -> list[str]:
        outcome = await self.use("glob", pattern="**/*.x", **more)
        return sorted(outcome.content.split("\n"))

    async def test_the_rules_of_every_folder_count_below_it_and_the_deepest_decides(self) -> None:
        for name in ("a.x", "p/a.x", "p/b.x", "p/q/a.x", "p/q/b.x", "r/a.x", "r/out/c.x", "#.x"):
            self.put(name)
        self.put(".gitignore", "/a.x\nb.x\n\\#.x\n")
        self.put("p/.gitignore", "!b.x\n/q/a.x\n")
        self.put("p/q/.gitignore", "b.x\n")
        self.put("r/.crushignore", "out/\n")
        wanted = ["p/a.x", "p/b.x", "r/a.x"]
        self.assertEqual(await self.found(), wanted)
        self.assertEqual(await self.found(path="p"), wanted[:2])
        self.assertEqual(await self.found(path="p/q"), ["No files found"])
        self.put(".crushignore", "p/\n")
        self.assertEqual(await self.found(), ["r/a.x"])
        self.put("r/.gitignore", "!out/\n")
        self.assertEqual(await self.found(), ["r/a.x"], "the rules of .crushignore come last")

    async def test_a_workspace_in_a_repository_has_the_rules_of_the_repository(self) -> None:
        self.put("a.x")
        self.put("dist/b.x")
        (self.base / ".gitignore").write_text("dist/\n/demo/c.x\n")
        self.put("c.x")
        (self.root / ".git/e.py").unlink()
        (self.root / ".git").rename(self.base / ".git")
        self.assertEqual(await self.found(), ["a.x"])
        self.assertEqual(await self.found(path="dist"), ["dist/b.x"])

    async def test_a_repository_that_leaves_out_the_workspace_is_not_its_own(self) -> None:
        self.put("a.x")
        (self.root / ".git/e.py").unlink()
        (self.root / ".git").rename(self.base / ".git")
        for text in ("*\n", "demo\n", "/demo/\n"):
            (self.base / ".gitignore").write_text(text)
            self.assertEqual(await self.found(), ["a.x"])


RG = """#!{python}
import json, os, sys
words = sys.argv[1:]
at = words.index("--")
with open({log!r}, "a") as log:
    print(json.dumps([words[:at], dict(os.environ), len(words) - at - 1]), file=log)
if {fault!r} == "fails":
    sys.exit(2)
needed = os.fsencode(next(w for w in words if w.startswith("--regexp="))[9:])
found = [name for name in words[at + 1:] if needed in open(name, "rb").read()]
if {fault!r} == "talks":
    print("searching " + str(len(words)) + " files")
start = 2 if {fault!r} == "short" else 0
sys.stdout.buffer.write(b"".join(os.fsencode(name[start:]) + b"\\0" for name in found))
sys.exit(0 if found else 1)
"""


class RgTests(TreeTestCase):
    """A program stands in for rg; it takes the options and gives the answers of rg."""

    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        for number in range(150):
            self.put(f"many/{number:03}.txt", f"line\nvalue_{number} = {number % 7}\n")
        self.put("many/utf.txt", "caf\u00e9 \ufffd value_x\n".encode() + b"\xff value_\n")
        self.log = self.outside / "log"
        os.mkfifo(self.root / "many" / "fifo")

    def install(self, folder: Path, fault: str = "") -> Path:
        folder.mkdir(exist_ok=True)
        program = folder / "rg"
        text = RG.format(python=sys.executable, log=str(self.log), fault=fault)
        program.write_text(text)
        program.chmod(0o755)
        return program

    async def grep(self, folder: Path, **arguments: Any) -> str:
        with mock.patch.object(search, "RG_FOLDERS", (str(folder),)):
            return (await self.use("grep", **arguments)).content

    async def test_answers_are_the_same_with_rg_and_without(self) -> None:
        faults = ("", "fails", "talks", "short")
        for fault in faults:
            self.install(self.outside / f"rg-{fault}", fault)
        searches: list[dict[str, Any]] = [
            {"pattern": r"value_\d+ = 3"},
            {"pattern": "value_14 = 0", "literal_text": True},
            {"pattern": "caf\u00e9"},
            {"pattern": "\ufffd value_"},
            {"pattern": "nothing like that"},
            {"pattern": "(?i)VALUE_12 "},
            {"pattern": "line|value_99"},
            {"pattern": "value_(1|2)00", "include": "*.txt"},
            {"pattern": "value_1", "path": "many"},
        ]
        for number, arguments in enumerate(searches):
            with self.subTest(arguments):
                wanted = await self.grep(self.outside / "none", **arguments)
                # What is searched for does not matter to a program that answers wrongly.
                for fault in faults if number < 2 else faults[:1]:
                    found = await self.grep(self.outside / f"rg-{fault}", **arguments)
                    self.assertEqual(found, wanted, fault)
        self.assertGreater(len(self.log.read_text().split("\n")), 2 * len(faults))

    async def test_rg_gets_no_settings_from_anywhere(self) -> None:
        self.install(self.outside / "good")
        self.context.env = {**self.context.env, "RIPGREP_CONFIG_PATH": str(self.put("rgrc", "-v"))}
        self.put(".ripgreprc", "--pre=./evil\n")
        await self.grep(self.outside / "good", pattern="-value_")
        words, env, count = json.loads(self.log.read_text())
        self.assertEqual(env.keys() - {"LC_CTYPE"}, {"LC_ALL"})
        self.assertEqual(words[0], "--no-config")
        self.assertEqual(words[-1], "--regexp=-value_")
        self.assertGreater(count, 150)

    async def test_a_program_of_the_workspace_is_never_rg(self) -> None:
        inside = self.install(self.root / "bin")
        link = self.outside / "link"
        link.mkdir()
        (link / "rg").symlink_to(inside)
        self.context.env = {**self.context.env, "PATH": f"{self.root / 'bin'}:."}
        for folder in (self.root / "bin", link):
            self.assertIn("value_7 ", await self.grep(folder, pattern="value_7 "))
        self.assertFalse(self.log.exists())

    def test_the_needed_text_is_in_every_match(self) -> None:
        for pattern, needed, line in (
            ("abc", "abc", "xabcx"),
            (r"foo\(bar", "foo(bar", "foo(bar"),
            (r"^def (\w+)\(self", "(self", "def f(self)"),
            ("colou?r", "colo", "color"),
            ("(abc)+x?yz", "abc", "abcabcyz"),
            ("a|b", "", "b"),
            ("(?i)abc", "", "ABC"),
            ("(?i:abc)de", "de", "ABCde"),
            ("(?!abc)d", "d", "d"),
            ("[ab]c*", "", "b"),
            (r"\bword\b", "word", "a word"),
            ("(?x) a b # c", "ab", "ab"),
            ("x{0,3}y{2}", "y", "yy"),
            ("\ufffd", "", "\ufffd"),
        ):
            with self.subTest(pattern):
                self.assertIsNotNone(re.search(pattern, line))
                self.assertEqual(walk.needed_text(pattern).decode(), needed)
                self.assertIn(needed, line)


class EndlessTests(TreeTestCase):
    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        self.put("bomb.txt", "a" * 100 + "!\n")
        self.clock = FakeClock()

    async def exploding(self) -> asyncio.Task[Any]:
        self.tools["grep"] = Grep(self.clock)
        task = asyncio.create_task(self.use("grep", pattern=EXPLOSIVE))
        await self.turn.started.wait()
        return task

    async def test_an_expression_that_explodes_is_killed(self) -> None:
        task = await self.exploding()
        await self.clock.advance(search.SECONDS + search.GRACE + 1)
        self.assert_failed(await task, "took too long")

    async def test_a_cancel_ends_a_search_at_once(self) -> None:
        task = await self.exploding()
        task.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await task
        self.assertTrue((await self.turn.commands[0].wait()).canceled)
        self.assertEqual(self.clock.pending, 0)

    async def test_a_search_whose_time_is_up_says_what_it_has(self) -> None:
        self.tools["grep"] = Grep(SystemClock(), seconds=0)
        outcome = await self.use("grep", pattern="needle")
        self.assertIn("stopped after 0 s", outcome.content)
        request = {"search": "glob", "pattern": "**", "path": str(self.root)}
        answer = main(json.dumps({**request, "seconds": -1, "limit": 5}))
        self.assertEqual(json.loads(answer), {"found": [], "cut": "time"})

    async def test_a_search_program_that_fails_is_reported(self) -> None:
        with mock.patch.object(search, "_program", return_value="raise SystemExit('broken')"):
            self.assert_failed(await self.use("ls"), "broken")


FROM_ARCHIVE = """
import asyncio
from pathlib import Path
from othertool.clock import SystemClock
from othertool.coder.tools.base import ToolContext, ToolUse
from othertool.coder.tools.search import Glob
from othertool.commands.process import start

class Turn:
    async def command(self, words, *, cwd, env, read_only):
        return await start(words, cwd=cwd, env=env, clock=SystemClock())

async def main():
    context = ToolContext(Path(sys.argv[1]), {})
    call = ToolUse("call", "glob", {"pattern": "**/*.py"}, Turn(), context)
    print((await Glob(SystemClock()).run(call)).content)

asyncio.run(main())
"""


class ArchiveTests(TreeTestCase):
    async def test_a_package_in_a_zip_archive_under_another_name_searches(self) -> None:
        """It leaves out its own data directory, which is named after it."""
        wanted = (await self.use("glob", pattern="**/*.py")).content.split("\n")
        (self.root / ".crushlite").rename(self.root / ".othertool")
        printed = await asyncio.to_thread(run_from_archive, self.base, FROM_ARCHIVE, str(self.root))
        self.assertEqual(sorted(printed.split("\n")[:-1]), sorted(wanted))


class WorkerTests(TreeTestCase):
    """The same searches in this process, where coverage is measured."""

    def run_worker(self, **request: Any) -> dict[str, Any]:
        request = {"path": str(self.root), "root": str(self.root), "seconds": 60, **request}
        answer: dict[str, Any] = json.loads(main(json.dumps(request)))
        return answer

    async def test_the_search_program_answers_with_what_it_found(self) -> None:
        found = self.run_worker(search="ls", limit=3)
        self.assertEqual((len(found["found"]), found["cut"]), (3, "limit"))
        found = self.run_worker(search="glob", pattern="**/*.py", limit=1)
        self.assertEqual((len(found["found"]), found["cut"]), (1, "limit"))
        found = self.run_worker(search="grep", pattern="needle", limit=2)
        self.assertEqual((len(found["found"]), found["cut"]), (2, "limit"))
        found = self.run_worker(search="grep", pattern="(", limit=2)
        self.assertIn("no valid regular", found["error"])
        found = self.run_worker(search="ls", path=str(self.root / "out"), limit=2)
        self.assertIn("error", found, "a link is not entered")
        found = self.run_worker(
            search="grep", pattern="x", path=str(self.root / "out.py"), file=True, limit=2
        )
        self.assertEqual(found["found"], [], "a link is not opened")
        with mock.patch.dict(walk.SEARCHES, {"ls": mock.Mock(side_effect=MemoryError)}):
            self.assertIn("too large", self.run_worker(search="ls")["error"])
