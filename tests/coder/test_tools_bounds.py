"""What a hostile repository cannot do to the tools: make them wait, work without end, or read the
daemon's own files."""

from __future__ import annotations

import difflib
import json
import os
import random
import re
import socket
from typing import TYPE_CHECKING, cast
from unittest import mock

from crushlite.coder.context import context_files
from crushlite.coder.gitfacts import git_facts
from crushlite.coder.tools import differences as differing, files
from crushlite.coder.tools.differences import differences
from crushlite.worktree import rules, walk
from crushlite.worktree.paths import OwnFolders
from crushlite.worktree.rules import Ignored
from tests.support.basics import chain_of_links
from tests.support.tools import SECRET, ToolTestCase

if TYPE_CHECKING:
    from crushlite.agent.base import Turn


class NeverWaitTests(ToolTestCase):
    async def test_a_fifo_is_opened_nowhere(self) -> None:
        for name in ("AGENTS.md", ".gitignore", "a.txt"):
            os.mkfifo(self.root / name)
        (self.root / ".git").mkdir()
        os.mkfifo(self.root / ".git" / "config")
        self.assertEqual(context_files(self.root, ["AGENTS.md"]), [])
        found = await git_facts(cast("Turn", self.turn), self.context)
        self.assertEqual(found, "Git repository: yes")
        self.assert_failed(await self.use("view", file_path="a.txt"), "not a regular file")
        self.assertIn("a.txt", (await self.use("ls")).content)
        self.assertEqual((await self.use("grep", pattern="x")).content, "No matches found")
        self.assert_denied(await self.use("bash", command="git status", description="x"))

    async def test_git_runs_unasked_only_if_it_cannot_wait(self) -> None:
        folder = self.root / ".git"
        (folder / "refs").mkdir(parents=True)
        (folder / "config").write_text("[core]\n\tbare = false\n")
        for name in ("HEAD", "index"):
            os.mkfifo(folder / name)
            self.assert_denied(await self.use("bash", command="git status", description="x"))
            (folder / name).unlink()

    async def test_sockets_devices_and_loops_are_refused(self) -> None:
        listener = socket.socket(socket.AF_UNIX)
        self.addCleanup(listener.close)
        listener.bind(str(self.root / "sock"))
        os.symlink("loop", self.root / "loop")
        os.symlink("/dev/zero", self.root / "zero")
        self.allow()
        self.assert_failed(await self.use("view", file_path="sock"), "not a regular file")
        self.assertTrue((await self.use("view", file_path="loop")).is_error)
        self.assert_failed(await self.use("view", file_path="zero"), "not a regular file")

    async def test_more_links_than_can_be_resolved_lead_nowhere(self) -> None:
        chain_of_links(self.root / "x")
        self.allow()
        self.assert_failed(await self.use("view", file_path="x"), "not a regular file")
        for name, arguments in (
            ("write", {"file_path": "x/new", "content": "a"}),
            ("edit", {"file_path": "x", "old_string": "a", "new_string": "b"}),
            ("ls", {"path": "x"}),
            ("grep", {"path": "x", "pattern": "a"}),
            ("glob", {"path": "x", "pattern": "*"}),
        ):
            self.assert_failed(await self.use(name, **arguments))
        self.deny()
        for command in ("cat x", "ls x", "touch x/y"):
            self.assert_denied(await self.use("bash", command=command, description="x"))
        self.assertEqual(context_files(self.root, ["x"]), [])


class RuleTests(ToolTestCase):
    def test_the_work_of_a_file_of_rules_is_bounded(self) -> None:
        many = Ignored("".join(f"*a{n}*b{n}*\n" for n in range(30_000)))
        self.assertEqual(many.dropped, 30_000 - rules.WILD_RULES)
        self.assertTrue(many.covers(("xa1xb1x",), False))
        self.assertEqual(Ignored("x\n" * 30_000).dropped, 30_000 - rules.RULES)
        self.assertEqual(Ignored("**/a" * 1000).dropped, 1)
        alternating = Ignored("".join(f"!*a{n}\n*b{n}\n" for n in range(30_000)))
        self.assertEqual(alternating.dropped, 60_000 - rules.WILD_RULES)

    def test_the_last_rule_that_matches_decides(self) -> None:
        ignored = Ignored("*.log\n!keep.log\nkeep.log/\n!b/keep.log\nx\n!x\nx\n", ["!no"])
        for path, is_dir, expected in (
            ("a.log", False, True),
            ("keep.log", False, False),
            ("keep.log", True, True),
            ("b/keep.log", True, False),
            ("x", False, True),
            ("no", False, False),
        ):
            with self.subTest(path, is_dir=is_dir):
                self.assertEqual(ignored.covers(tuple(path.split("/")), is_dir), expected)

    async def test_the_model_learns_what_was_left_out(self) -> None:
        text = "".join(f"*{n}x*\n" for n in range(rules.WILD_RULES + 7))
        (self.root / ".gitignore").write_text(text)
        (self.root / "a").write_text("needle")
        for name, arguments in (("ls", {}), ("glob", {"pattern": "*"}), ("grep", {"pattern": "n"})):
            outcome = await self.use(name, **arguments)
            self.assertIn("7 rules of .gitignore", outcome.content)
            self.assertIn("a", outcome.content)

    async def test_the_rules_of_all_levels_are_bounded_together(self) -> None:
        half = "".join(f"*{n}x*\n" for n in range(rules.WILD_RULES // 2))
        folder = self.root
        for _ in range(3):
            (folder / ".gitignore").write_text(half)
            folder /= "deep"
            folder.mkdir()
        (folder / "a").write_text("")
        outcome = await self.use("glob", pattern="**/a")
        self.assertIn("deep/deep/deep/a", outcome.content)
        self.assertIn(f"{rules.WILD_RULES // 2} rules of .gitignore", outcome.content)

    async def test_the_rules_of_one_search_are_bounded(self) -> None:
        for number in range(9):
            (self.root / f"d{number}").mkdir()
            (self.root / f"d{number}" / ".gitignore").write_text("a\nb\n")
            (self.root / f"d{number}" / "a").write_text("")
        request = {"search": "glob", "pattern": "**/a", "path": str(self.root), "seconds": 60}
        with mock.patch.object(walk, "SEARCH_RULES", 8):
            answer = json.loads(walk.main(json.dumps({**request, "limit": 100})))
        self.assertEqual(answer["dropped"], 10)
        self.assertEqual(sorted(answer["found"]), [f"d{number}/a" for number in range(4, 9)])

    async def test_a_file_of_rules_that_is_no_file_is_not_waited_for(self) -> None:
        (self.root / "deep").mkdir()
        os.mkfifo(self.root / "deep" / ".gitignore")
        os.symlink(self.outside / "secret.txt", self.root / ".crushignore")
        (self.root / "deep" / "a").write_text("")
        self.assertEqual((await self.use("glob", pattern="**/a")).content, "deep/a")

    async def test_a_huge_folder_is_cut_and_said_to_be(self) -> None:
        with mock.patch.object(walk, "FOLDER_ENTRIES", 5):
            for number in range(9):
                (self.root / str(number)).write_text("")
            request = {"search": "ls", "path": str(self.root), "seconds": 60, "limit": 100}
            found = walk.Found(request)
            with self.assertRaisesRegex(walk._Stop, "entries"):
                walk.SEARCHES["ls"](request, found)
            self.assertEqual(len(found.items), 5)
            with mock.patch.object(walk, "ENTRIES", 2), self.assertRaisesRegex(walk._Stop, "ent"):
                walk.SEARCHES["ls"](request, walk.Found(request))

    async def test_long_names_do_not_break_the_answer(self) -> None:
        folder = self.root
        for _ in range(3):
            folder /= "\u202e" * 80
            folder.mkdir()
            for number in range(150):
                (folder / f"{number:03}{chr(27) * 240}").write_text("")
        outcome = await self.use("ls")
        self.assertFalse(outcome.is_error, outcome.content[:300])
        self.assertIn("be more specific", outcome.content)


def patched(old: list[str], diff: str) -> list[str]:
    """A version with the changes of a unified diff; every place and number in it must be right."""
    lines = diff.splitlines()[2:]
    new: list[str] = []
    at = 0  # in the old version
    while lines:
        places = re.fullmatch(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@", lines.pop(0))
        assert places is not None
        first, gone, start, come = (int(n) if n else 1 for n in places.groups())
        new += old[at : first - 1 if gone else first]
        assert len(new) == (start - 1 if come else start), diff
        at = first - 1 if gone else first
        while gone or come:
            sign, line = lines[0][0], lines.pop(0)[1:]
            assert sign == "+" or old[at] == line, diff
            at += sign != "+"
            gone, come = gone - (sign != "+"), come - (sign != "-")
            new += [line] if sign != "-" else []
    return new + old[at:]


class DifferenceTests(ToolTestCase):
    def test_differences_are_those_of_difflib(self) -> None:
        old = [f"line {n}" for n in range(40)]
        new = [*old[:5], "new", *old[6:20], *old[23:39], "last"]
        text, added, removed = differences("a", old, new)
        expected = difflib.unified_diff(old, new, "a/a", "b/a", lineterm="")
        self.assertEqual(text, "".join(f"{line}\n" for line in expected))
        self.assertEqual((added, removed), (2, 5))
        self.assertEqual(differences("a", old, old), ("", 0, 0))
        self.assertEqual(differences("a", [], ["x"])[1:], (1, 0))
        self.assertEqual(differences("a", ["x"], [])[1:], (0, 1))

    def test_a_difference_leads_from_one_version_to_the_other(self) -> None:
        draw = random.Random(7)
        for size in (0, 1, 5, 30, 30, 30, 200):
            old = [draw.choice("abcdefgh") for _ in range(size)]
            new = [line for line in old if draw.random() > 0.2]
            for _ in range(size // 10 + 1):
                new.insert(draw.randrange(len(new) + 1), draw.choice("abcxyz"))
            text, added, removed = differences("a", old, new)
            self.assertEqual(len(old) + added - removed, len(new))
            self.assertEqual(patched(old, text), new, text)

    def test_what_has_too_many_lines_to_compare_is_shown_as_replaced(self) -> None:
        lines = [str(n) for n in range(300)]
        old, new = ["same", *lines, "end"], ["same", "first", *lines, "last", "end"]
        self.assertEqual(differences("a", old, new)[1:], (2, 0))
        with mock.patch.object(differing, "DIFF_LINES", 100):
            text, added, removed = differences("a", old, new)
        self.assertEqual((added, removed), (302, 300))
        self.assertTrue(text.startswith("--- a/a\n+++ b/a\n@@ -1,302 +1,304 @@\n same\n-0\n"))

    def test_the_text_of_a_difference_is_bounded(self) -> None:
        text, added, _ = differences("a", [], ["x" * 1000] * 1000)
        self.assertLess(len(text), differing.DIFF_CHARS + 100)
        self.assertTrue(text.endswith("left out"))
        self.assertEqual(added, 1000)

    async def test_long_versions_are_in_the_request_only(self) -> None:
        content = "x" * (files.SHOWN_CHARS // 2 + 10) + "\n"
        await self.seen("a", content)
        self.allow()
        outcome = await self.use("write", file_path="a", content=content + "y\n")
        self.assertFalse(outcome.is_error, outcome.content)
        await self.use("view", file_path="a")
        outcome = await self.use("edit", file_path="a", old_string="y", new_string="z")
        self.assertFalse(outcome.is_error, outcome.content)
        self.assertNotIn("old_content", outcome.metadata)
        self.assertIn("old_content", self.turn.asked[-1].params)

    async def test_edits_cannot_multiply_a_file(self) -> None:
        await self.seen("a", "a" * 1000)
        self.allow()
        grow = {"old_string": "a", "new_string": "a" * 1000, "replace_all": True}
        outcome = await self.use("multiedit", file_path="a", edits=[grow] * 10)
        self.assertIn("larger", outcome.content)
        self.assertLess(len((self.root / "a").read_text()), files.CHANGE_BYTES)


class OwnFolderTests(ToolTestCase):
    """The daemon's folders are closed, by whatever name they are reached."""

    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        self.data = self.root / ".crushlite"
        self.user = self.base / "share"
        for folder in (self.data, self.user / "deep"):
            folder.mkdir(parents=True)
            (folder / "crush.json").write_text(SECRET)
        self.context.own = OwnFolders(self.root, (self.data, self.user, self.base / "missing"))
        self.allow()

    async def closed(self, path: str) -> None:
        """Check that no tool reads or changes what is at a path, although everything is allowed."""
        with self.subTest(path):
            for name, arguments in (
                ("view", {"file_path": path}),
                ("write", {"file_path": path, "content": "x"}),
                ("edit", {"file_path": path, "old_string": "secret", "new_string": "x"}),
                ("grep", {"pattern": "secret", "path": path}),
                ("grep", {"pattern": "secret", "path": os.path.dirname(path) or "."}),
            ):
                outcome = await self.use(name, **arguments)
                self.assertNotIn(SECRET, outcome.content + outcome.metadata, name)
            self.assertEqual((self.data / "crush.json").read_text(), SECRET)
            self.assertEqual((self.user / "deep" / "crush.json").read_text(), SECRET)

    async def test_every_way_is_closed(self) -> None:
        os.symlink(self.data, self.root / "link")
        os.symlink(self.data / "crush.json", self.root / "file")
        os.link(self.data / "crush.json", self.root / "hard")
        os.link(self.user / "deep" / "crush.json", self.root / "hard2")
        inside = str(self.data / "crush.json")
        for path in (
            ".crushlite/crush.json",
            "./x/../.crushlite/crush.json",
            "link/crush.json",
            "file",
            "hard",
            "hard2",
            f"/proc/self/root{inside}",
            f"/proc/{os.getpid()}/root{inside}",
            f"/proc/thread-self/root{inside}",
            str(self.user / "deep" / "crush.json"),
        ):
            await self.closed(path)
        refused = await self.use("view", file_path=".crushlite/crush.json")
        self.assert_failed(refused, "closed to tools")
        self.assert_failed(await self.use("ls", path=".crushlite"), "closed to tools")
        self.assert_failed(await self.use("glob", pattern="*", path="link"), "closed to tools")
        self.assertNotIn("crush.json", (await self.use("ls", path=str(self.base))).content)

    async def test_the_environment_of_processes_is_closed(self) -> None:
        for path in ("/proc/self/environ", f"/proc/{os.getpid()}/environ", "/proc/self/mem"):
            self.assert_failed(await self.use("view", file_path=path), "closed to tools")
            self.assert_failed(await self.use("grep", pattern="P", path=path), "closed to tools")
        self.assert_failed(await self.use("grep", pattern="P", path="/proc/self"), "closed")
        self.assertEqual(self.turn.asked, [])

    async def test_a_context_file_that_leads_there_is_left_out(self) -> None:
        os.symlink(".crushlite/crush.json", self.root / "AGENTS.md")
        self.assertEqual(context_files(self.root, ["AGENTS.md"], self.context.own), [])

    async def test_a_workspace_in_such_a_folder_can_be_worked_on(self) -> None:
        (self.root / "crushlite.db").write_text(SECRET)
        (self.root / "a.txt").write_text("hello")
        self.context.own = OwnFolders(self.root, (self.root,))
        self.assertIn("hello", (await self.use("view", file_path="a.txt")).content)
        self.assert_failed(await self.use("view", file_path="crushlite.db"), "closed to tools")
        self.assertNotIn(SECRET, (await self.use("grep", pattern="secret")).content)
        os.link(self.root / "crushlite.db", self.root / "hard")
        self.assert_failed(await self.use("view", file_path="hard"), "closed to tools")
