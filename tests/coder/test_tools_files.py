"""write, edit, multiedit: what they ask, and what is on disk afterwards."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import threading
from typing import Any
from unittest import mock

from crushlite.errors import StoreFull
from crushlite.worktree import paths
from tests.support.images import png
from tests.support.tools import ToolTestCase

NOT_TEXT: list[Any] = [None, 7, 1.5, True, [], {}, ["a"], "half \ud800"]


class ChangeTests(ToolTestCase):
    async def test_an_edit_shows_before_and_after_is_made_and_recorded(self) -> None:
        path = await self.seen("a.py", "one\ntwo\n")
        self.allow()
        outcome = await self.use("edit", file_path="a.py", old_string="two", new_string="2\n3")
        self.assertFalse(outcome.is_error, outcome.content)
        self.assertEqual(path.read_text(), "one\n2\n3\n")
        asked = self.turn.asked[0]
        self.assertEqual((asked.tool, asked.action, asked.path), ("edit", "write", str(self.root)))
        change = {"old_content": "one\ntwo\n", "new_content": "one\n2\n3\n"}
        self.assertEqual(asked.params, {"file_path": str(path), **change})
        metadata = {"additions": 2, "removals": 1, **change}
        self.assertEqual(json.loads(outcome.metadata), metadata)
        self.assertEqual(self.turn.changed, [(str(path), "one\ntwo\n", "one\n2\n3\n")])
        again = await self.use("edit", file_path="a.py", old_string="2", new_string="4")
        self.assertFalse(again.is_error, "its own change counts as seen")

    async def test_a_change_needs_a_view_of_the_present_content(self) -> None:
        path = self.root / "a"
        path.write_text("old")
        self.allow()
        changes: list[tuple[str, dict[str, Any]]] = [
            ("edit", {"old_string": "old", "new_string": "new"}),
            ("multiedit", {"edits": [{"old_string": "old", "new_string": "new"}]}),
            ("write", {"content": "new"}),
        ]
        for name, arguments in changes:
            outcome = await self.use(name, file_path="a", **arguments)
            self.assert_failed(outcome, "view a before")
        await self.use("view", file_path="a")
        path.write_text("old, changed")
        for name, arguments in changes:
            outcome = await self.use(name, file_path="a", **arguments)
            self.assert_failed(outcome, "changed since")
        self.assertEqual((path.read_text(), self.turn.asked), ("old, changed", []))

    async def test_what_view_does_not_let_be_changed_is_not_sent_there(self) -> None:
        """Else the model would go from one to the other for ever."""
        self.allow()
        for name, data, words in (
            ("large", b"line\n" * 500_000, "is larger than 2097152 bytes; change it with bash"),
            ("latin", b"caf\xe9\n", "is not UTF-8 text"),
            ("binary", b"\x7fELF\0", "is a binary file"),
            ("image", png(), "is an image; change it with bash"),
        ):
            (self.root / name).write_bytes(data)
            await self.use("view", file_path=name)
            for tool, arguments in (
                ("edit", {"old_string": "line", "new_string": "new"}),
                ("write", {"content": "new"}),
            ):
                with self.subTest(name, tool=tool):
                    outcome = await self.use(tool, file_path=name, **arguments)
                    self.assert_failed(outcome, words)
                    self.assertIn("change it with bash", outcome.content)
        self.assertEqual(self.turn.asked, [])

    async def test_another_sessions_view_does_not_count(self) -> None:
        await self.seen("a", "old")
        self.turn.session_id = "session-2"
        self.allow()
        outcome = await self.use("edit", file_path="a", old_string="old", new_string="new")
        self.assert_failed(outcome, "before you change")

    async def test_what_changes_while_permission_is_asked_is_not_overwritten(self) -> None:
        path = await self.seen("a", "old")
        self.allow()
        self.turn.meanwhile = lambda asked: path.write_text("by the user")
        outcome = await self.use("edit", file_path="a", old_string="old", new_string="new")
        self.assert_failed(outcome, "view it again")
        self.assertEqual(path.read_text(), "by the user")
        fresh = self.root / "new"
        self.turn.meanwhile = lambda asked: fresh.write_text("by the user")
        self.assert_failed(await self.use("write", file_path="new", content="x"), "view")
        self.assertEqual(fresh.read_text(), "by the user")
        self.turn.meanwhile = lambda asked: path.unlink()
        await self.use("view", file_path="a")
        outcome = await self.use("write", file_path="a", content="x")
        self.assert_failed(outcome, "does not exist")
        self.assertEqual((path.exists(), self.turn.changed), (False, []))

    async def test_a_link_that_is_turned_while_permission_is_asked_changes_no_other_file(
        self,
    ) -> None:
        for name in ("a", "b"):
            await self.seen(name, "same")
        os.symlink("a", self.root / "link")
        self.allow()

        def turn(asked: object) -> None:
            os.symlink("b", self.root / "new")
            os.rename(self.root / "new", self.root / "link")

        self.turn.meanwhile = turn
        outcome = await self.use("edit", file_path="link", old_string="same", new_string="x")
        self.assert_failed(outcome, "while permission was asked")
        self.assertEqual([(self.root / n).read_text() for n in "ab"], ["same", "same"])

    async def test_a_view_while_permission_is_asked_does_not_renew_the_request(self) -> None:
        path = await self.seen("a", "old")
        self.allow()

        def view(asked: object) -> None:
            path.write_text("by the user")
            self.context.seen["session-1", str(path)] = paths.digest(b"by the user")

        self.turn.meanwhile = view
        outcome = await self.use("edit", file_path="a", old_string="old", new_string="new")
        self.assert_failed(outcome, "while permission was asked")
        self.assertEqual(path.read_text(), "by the user")

    async def test_one_grant_covers_the_changes_of_a_tool_in_the_workspace(self) -> None:
        # "Allow for session" is remembered by tool, action and directory.
        self.allow()
        for name in ("a", "x/b", "x/y/c"):
            await self.use("write", file_path=name, content="x")
        keys = {(asked.tool, asked.action, asked.path) for asked in self.turn.asked}
        self.assertEqual(keys, {("write", "write", str(self.root))})

    async def test_a_denied_change_stops_and_still_carries_its_diff(self) -> None:
        self.deny("not today")
        outcome = await self.use("write", file_path="notes.txt", content="some words\n")
        self.assert_denied(outcome, "not today")
        diff = "--- a/notes.txt\n+++ b/notes.txt\n@@ -0,0 +1 @@\n+some words\n"
        metadata = {"diff": diff, "additions": 1, "removals": 0}
        self.assertEqual(json.loads(outcome.metadata), metadata)
        self.assertFalse((self.root / "notes.txt").exists())
        path = str(self.root / "notes.txt")
        self.assertEqual(
            self.turn.asked[0].params, {"file_path": path, "new_content": "some words\n"}
        )

    async def test_line_ends_are_kept(self) -> None:
        self.allow()
        path = await self.seen("dos", b"one\r\ntwo\r\nthree\r\n")
        await self.use("edit", file_path="dos", old_string="one\ntwo", new_string="1\n2\n2b")
        self.assertEqual(path.read_bytes(), b"1\r\n2\r\n2b\r\nthree\r\n")
        self.assertEqual(self.turn.changed[0][1], "one\r\ntwo\r\nthree\r\n")
        await self.use("write", file_path="dos", content="a\nb\n")
        self.assertEqual(path.read_bytes(), b"a\r\nb\r\n")
        path = await self.seen("unix", b"one\ntwo\n")
        await self.use("edit", file_path="unix", old_string="one\r\ntwo", new_string="1\r\n2")
        self.assertEqual(path.read_bytes(), b"1\n2\n")

    async def test_line_ends_that_a_change_brings_are_shown(self) -> None:
        """The user must see what is written: plain line ends only where both versions have one
        kind."""
        self.allow()
        await self.use("write", file_path="new", content="a\r\nb\n")
        await self.seen("mixed", b"a\r\nb\nc\r\n")
        await self.use("write", file_path="mixed", content="a\nb\nC\n")
        await self.seen("dos", b"a\r\nb\r\n")
        await self.use("write", file_path="dos", content="a\nB\n")
        shown = [
            (asked.params.get("old_content", ""), asked.params["new_content"])
            for asked in self.turn.asked
        ]
        self.assertEqual(shown[0], ("", "a\r\nb\n"))
        self.assertEqual(shown[1], ("a\r\nb\nc\r\n", "a\r\nb\r\nC\r\n"))
        self.assertEqual(shown[2], ("a\nb\n", "a\nB\n"))

    async def test_a_file_with_both_line_ends_keeps_each(self) -> None:
        self.allow()
        content = b"a\r\nb\nc\r\nd\r\ne\nx\r\n"
        for old, new, wanted in (
            ("b", "B", b"a\r\nB\nc\r\nd\r\ne\nx\r\n"),
            ("a\nb\n", "A\nB\n", b"A\r\nB\r\nc\r\nd\r\ne\nx\r\n"),
            ("\nc", "+\nC", b"a\r\nb+\r\nC\r\nd\r\ne\nx\r\n"),
            ("x\n", "y", b"a\r\nb\nc\r\nd\r\ne\ny"),
            ("d\ne", "", b"a\r\nb\nc\r\n\nx\r\n"),
        ):
            with self.subTest(old):
                path = await self.seen("mixed", content)
                outcome = await self.use("edit", file_path="mixed", old_string=old, new_string=new)
                self.assertFalse(outcome.is_error, outcome.content)
                self.assertEqual(path.read_bytes(), wanted)

    async def test_a_byte_order_mark_is_kept_and_never_doubled(self) -> None:
        self.allow()
        path = await self.seen("a", b"\xef\xbb\xbfone\n")
        await self.use("edit", file_path="a", old_string="one", new_string="two")
        self.assertEqual(path.read_bytes(), b"\xef\xbb\xbftwo\n")
        for content in ("three\n", "\ufefffour\n"):
            await self.use("write", file_path="a", content=content)
            self.assertEqual(path.read_bytes(), b"\xef\xbb\xbf" + content.lstrip("\ufeff").encode())

    async def test_the_mode_is_kept(self) -> None:
        self.allow()
        for mode in (0o755, 0o600, 0o444, 0o664):
            path = await self.seen("a", f"mode {mode}")
            path.chmod(mode)
            outcome = await self.use("edit", file_path="a", old_string="mode", new_string="m")
            self.assertFalse(outcome.is_error, outcome.content)
            self.assertEqual(stat.S_IMODE(path.stat().st_mode), mode)
            path.unlink()

    async def test_a_new_file_gets_its_folders_and_exactly_its_content(self) -> None:
        self.allow()
        for name, content in (("x/y/z.txt", "a\r\nb\n"), ("ä" * 120, ""), ("b" * 255, "x")):
            outcome = await self.use("write", file_path=name, content=content)
            self.assertFalse(outcome.is_error, outcome.content)
            self.assertEqual((self.root / name).read_bytes(), content.encode())
        outcome = await self.use("edit", file_path="e/f", old_string="", new_string="new\n")
        self.assertFalse(outcome.is_error, outcome.content)
        self.assertEqual((self.root / "e/f").read_text(), "new\n")
        leftovers = [p for p in self.root.rglob("*.tmp") if p.name.startswith(".crushlite")]
        self.assertEqual(leftovers, [])

    async def test_a_change_outside_names_the_file_as_its_directory_key(self) -> None:
        target = self.outside / "new.txt"
        self.assert_denied(await self.use("write", file_path=str(target), content="x"))
        self.assertEqual(self.turn.asked[0].path, str(target))
        self.assertFalse(target.exists())

    async def test_what_was_not_allowed_to_be_read_is_not_in_a_question_to_change_it(self) -> None:
        path = str(self.outside / "secret.txt")
        for name, arguments in (
            ("edit", {"old_string": "secret", "new_string": "x"}),
            ("write", {"content": "x"}),
        ):
            self.assert_failed(await self.use(name, file_path=path, **arguments), "view")
        self.assertEqual(self.turn.asked, [])

    async def test_an_edit_must_fit_exactly_once(self) -> None:
        path = await self.seen("a", "x x y")
        self.allow()
        for old, new, words in (
            ("z", "q", "not found"),
            ("x", "q", "2 times"),
            ("y", "y", "the same"),
            ("", "q", "use write"),
        ):
            outcome = await self.use("edit", file_path="a", old_string=old, new_string=new)
            self.assert_failed(outcome, words)
        await self.use("edit", file_path="a", old_string="x", new_string="q", replace_all="true")
        self.assertEqual(path.read_text(), "q q y")

    async def test_several_edits_are_one_change(self) -> None:
        path = await self.seen("a", "one two three")
        self.allow()
        edits = [
            {"old_string": "one", "new_string": "1"},
            {"old_string": "absent", "new_string": "?"},
            {"old_string": "1 two", "new_string": "12"},
        ]
        outcome = await self.use("multiedit", file_path="a", edits=edits)
        self.assertEqual(path.read_text(), "12 three")
        metadata = json.loads(outcome.metadata)
        self.assertEqual(metadata["edits_applied"], 2)
        self.assertEqual([f["index"] for f in metadata["edits_failed"]], [2])
        self.assertIn("edit 2 failed", outcome.content)
        self.assertEqual((len(self.turn.asked), len(self.turn.changed)), (1, 1))
        outcome = await self.use("multiedit", file_path="a", edits=edits[1:2])
        self.assert_failed(outcome, "not found")
        undo = [{"old_string": "12", "new_string": "x"}, {"old_string": "x", "new_string": "12"}]
        self.assert_failed(await self.use("multiedit", file_path="a", edits=undo), "undo")

    async def test_wrong_arguments_are_explained(self) -> None:
        await self.seen("a", "one")
        self.allow()
        for wrong in NOT_TEXT:
            self.assert_failed(await self.use("write", file_path="a", content=wrong))
            self.assert_failed(await self.use("write", file_path=wrong, content="x"))
            edit = {"old_string": "one", "new_string": wrong}
            self.assert_failed(await self.use("edit", file_path="a", **edit))
            self.assert_failed(await self.use("multiedit", file_path="a", edits=[edit]))
            self.assert_failed(await self.use("multiedit", file_path="a", edits=wrong))
        outcome = await self.use(
            "edit", file_path="a", old_string="o", new_string="x", replace_all="perhaps"
        )
        self.assert_failed(outcome, "replace_all")
        big = "x" * (paths.FILE_BYTES + 1)
        self.assert_failed(await self.use("write", file_path="a", content=big), "larger")
        self.assert_failed(await self.use("write", file_path="a", content="one"), "already")
        self.assert_failed(
            await self.use("edit", file_path="none", old_string="a", new_string="b"), "exist"
        )
        self.assertEqual(self.turn.asked, [])


class AtomicTests(ToolTestCase):
    async def test_a_reader_never_sees_half_a_file(self) -> None:
        versions = [letter * 300_000 for letter in "ab"]
        path = await self.seen("a", versions[0])
        self.allow()
        stop, seen = threading.Event(), set()

        def watch() -> None:
            while not stop.is_set():
                data = path.read_text()
                seen.add((len(data), data[:1] + data[-1:]))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            for n in range(40):
                outcome = await self.use("write", file_path="a", content=versions[(n + 1) % 2])
                self.assertFalse(outcome.is_error, outcome.content)
        finally:
            stop.set()
            await asyncio.to_thread(watcher.join)
        self.assertLessEqual(seen, {(300_000, "aa"), (300_000, "bb")})

    async def test_a_failed_write_leaves_the_old_file_and_no_other(self) -> None:
        path = await self.seen("a", "old")
        self.allow()
        with mock.patch.object(os, "fsync", side_effect=OSError(28, "full")):
            outcome = await self.use("write", file_path="a", content="new")
        self.assert_failed(outcome, "No space left")
        self.assertEqual(path.read_text(), "old")
        self.assertEqual(os.listdir(self.root), ["a"])

    async def test_a_file_that_changes_during_the_write_is_not_lost(self) -> None:
        path = await self.seen("a", "old")
        self.allow()
        real = os.fsync

        def slow(descriptor: int) -> None:
            path.write_text("by the user")
            real(descriptor)

        with mock.patch.object(os, "fsync", slow):
            outcome = await self.use("write", file_path="a", content="new")
            self.assert_failed(outcome, "changed meanwhile")
            self.assertEqual(path.read_text(), "by the user")
            path.unlink()
            outcome = await self.use("write", file_path="a", content="new")
            self.assert_failed(outcome, "exists now")
        self.assertEqual(path.read_text(), "by the user")

    async def test_a_cancel_in_the_middle_of_a_change_leaves_it_recorded(self) -> None:
        path = await self.seen("a", "old")
        self.allow()
        writing, go_on = threading.Event(), threading.Event()
        real = os.fsync

        def slow(descriptor: int) -> None:
            writing.set()
            go_on.wait(30)
            real(descriptor)

        with mock.patch.object(os, "fsync", slow):
            task = asyncio.create_task(self.use("write", file_path="a", content="new"))
            await asyncio.to_thread(writing.wait, 30)
            task.cancel()
            await asyncio.sleep(0)
            self.assertFalse(task.done())
            go_on.set()
            with self.assertRaises(asyncio.CancelledError):
                await task
        self.assertEqual((path.read_text(), len(self.turn.changed)), ("new", 1))

    async def test_a_history_that_cannot_be_stored_is_reported(self) -> None:
        await self.seen("a", "old")
        self.allow()
        with mock.patch.object(self.turn, "file_changed", side_effect=StoreFull("disk is full")):
            outcome = await self.use("write", file_path="a", content="new")
        self.assert_failed(outcome, "disk is full")

    async def test_without_hard_links_a_new_file_is_still_made_and_never_over_another(self) -> None:
        self.allow()
        with mock.patch.object(os, "link", side_effect=PermissionError(1, "no links here")):
            outcome = await self.use("write", file_path="a", content="new")
            self.assertFalse(outcome.is_error, outcome.content)
            self.turn.meanwhile = lambda asked: (self.root / "b").mkdir()
            self.assert_failed(await self.use("write", file_path="b", content="new"))
        self.assertEqual((self.root / "a").read_text(), "new")
