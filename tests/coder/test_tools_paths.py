"""Attempts to get out of the workspace: a hundred layouts, and links that change while a tool
works.

In these tests the user allows everything that is said to be inside the workspace and nothing else.
So if anything outside is read or written, the tool took it for inside.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import threading
import time
import unittest
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

from crushlite.agent.base import Verdict
from crushlite.errors import BadRequest, CrushliteError
from crushlite.worktree.paths import exists, locate, read_bytes, write_bytes
from tests.support.tools import SECRET, Asked, ToolTestCase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROC_TOP = (
    "/proc/self/" + "root"
)  # in two halves: it looks like a path of the machine it was written on
# Tried with links followed, on a busy machine: a tool that reads got out within half a second, and
# in a search, or in the primitives between check and use, it took up to 1.6.
RACE_SECONDS = 1.0
LONGER_RACE = 2.0


def dots(outside: Path) -> Iterator[str]:
    """Paths with `..` that lead outside, spelled in many ways."""
    for up in ("..", "./..", "src/../..", "src/deep/../../..", "src/./../../demo/..", "none/../.."):
        for between in ("/", "//", "/./"):
            yield f"{up}{between}outside{between}secret.txt"
        yield f"{up}/outside"
        yield f"{up}/outside/"
        yield f"{up}/outside/new.txt"
    yield from ("..", "../", "../..", "src/../..", "../demo-too/secret.txt", "../demo-too")
    yield from ("../" * 40 + str(outside / "secret.txt")[1:], "/" + "../" * 40 + "etc/passwd")


def absolutes(outside: Path) -> Iterator[str]:
    secret = str(outside / "secret.txt")
    yield from (secret, f"/{secret}", f"//{secret}", f"/.{secret}", f"/tmp/../{secret}")
    yield from (str(outside), f"{outside}/", f"{outside}/./", "/", "//", "/etc/passwd", "/etc")
    yield from (f"{PROC_TOP}{secret}", f"/proc/thread-self/{'root'}{secret}")
    yield from (f"{PROC_TOP}/{PROC_TOP}{secret}", "/proc/self/cwd", "/proc/self/environ")
    yield from ("/proc/self/fd/0", "/proc/self/mem", "/dev/zero", "/dev/null", "/dev/stdin")
    yield from ("~", "~/secret.txt", "/dev/fd/0", "/sys/kernel", str(outside).upper())


def links(root: Path, outside: Path) -> Iterator[str]:
    """Symbolic links of all kinds; each is made before its path is yielded."""
    secret = outside / "secret.txt"

    def link(name: str, target: str | Path) -> str:
        os.symlink(target, root / name)
        return name

    yield link("file", secret)
    yield link("relative", "../outside/secret.txt")
    yield link("folder", outside) + "/secret.txt"
    yield "folder"
    yield "folder/"
    yield "folder/new.txt"
    yield "folder/sub/../secret.txt"
    yield "folder/../outside/secret.txt"
    yield link("up", "..") + "/outside/secret.txt"
    yield "up/demo/up/demo/up/outside/secret.txt"
    yield link("top", "/") + str(secret)
    yield link("proc", PROC_TOP) + str(secret)
    yield link("here", "/proc/self/cwd")
    yield link("dangling", outside / "made.txt")
    yield link("dangling-folder", outside / "made") + "/a.txt"
    yield link("src/deep/nested", "../../../outside") + "/secret.txt"
    yield link("round", "src/../../outside/secret.txt")
    for n in (2, 5, 30, 45):
        name = link(f"chain-{n}-0", secret)
        for i in range(1, n):
            name = link(f"chain-{n}-{i}", f"chain-{n}-{i - 1}")
        yield name
    for name in (
        "-rf",
        "a b",
        "new\nline",
        "tab\t",
        "ünï",
        "\u202etxt.evil",
        "x" * 250,
        "*",
        "$HOME",
    ):
        yield link(name, secret)
    yield link("loop", "loop")
    yield link("loop-a", "loop-b")
    yield link("loop-b", "loop-a") + "/x"
    yield link("loop-far", "loop-far/x/..")
    yield link("device", "/dev/zero")
    yield link("src/Secret.TXT", secret)


def specials(root: Path) -> Iterator[str]:
    os.mkfifo(root / "fifo")
    yield from ("fifo", "src/../fifo", "fifo/x")
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(os.path.relpath(root / "socket"))
    yield "socket"
    yield from ("", "\0", "a\0b", "../outside/secret.txt\0", "\0../outside/secret.txt")
    yield from ("x" * 300, "x/" * 3000, "a" * 5000, "half \ud800", "\udcff\udcfe")
    yield from ("..\\outside\\secret.txt", "..\uff0foutside\uff0fsecret.txt", "%2e%2e/outside")
    yield from ("\uff0e\uff0e/outside/secret.txt", "..\u200b/outside/secret.txt", " ../outside")
    yield from ("src", ".", "./", "src/..", "src/a.txt/../../../outside/secret.txt", "src/a.txt/x")


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_ino)
        if path.is_file()
        else (b"", 0)
        for path in folder.rglob("*")
    }


class EscapeTestCase(ToolTestCase):
    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        (self.root / "src" / "deep").mkdir(parents=True)
        (self.root / "src" / "a.txt").write_text("inside")
        (self.outside / "only-outside").write_text("")
        too = self.base / "demo-too"  # begins like the workspace, and is not
        too.mkdir()
        (too / "secret.txt").write_text(SECRET)
        self.turn.meanwhile = self.agree_to_inside

    def agree_to_inside(self, asked: Asked) -> None:
        self.turn.verdict = Verdict(asked.path == str(self.root) and asked.tool != "bash")

    def layouts(self) -> list[str]:
        found = [*dots(self.outside), *absolutes(self.outside), *specials(self.root)]
        return [*found, *links(self.root, self.outside)]


class LayoutTests(EscapeTestCase):
    async def check(self, use: Callable[[str], object]) -> None:
        layouts = self.layouts()
        self.assertGreaterEqual(len(layouts), 100)
        before = snapshot(self.outside), snapshot(self.base / "demo-too")
        for layout in layouts:
            with self.subTest(layout[:80]):
                await use(layout)  # type: ignore[misc]
        self.assertEqual((snapshot(self.outside), snapshot(self.base / "demo-too")), before)

    async def test_view_reads_nothing_outside_unasked(self) -> None:
        async def view(layout: str) -> None:
            outcome = await self.use("view", file_path=layout)
            self.assertTrue(outcome.is_error, outcome.content)
            self.assertNotIn(SECRET, outcome.content + outcome.metadata)

        await self.check(view)
        self.assertEqual(self.turn.read, [])
        self.assertGreater(len(self.turn.asked), 60)
        self.assertFalse([a for a in self.turn.asked if Path(a.path).is_relative_to(self.root)])

    async def test_write_writes_nothing_outside_unasked(self) -> None:
        async def write(layout: str) -> None:
            await self.use("write", file_path=layout, content="escaped")

        await self.check(write)
        for path, _, _ in self.turn.changed:
            self.assertTrue(Path(path).resolve().is_relative_to(self.root), path)

    async def test_edits_touch_nothing_outside_unasked(self) -> None:
        async def edit(layout: str) -> None:
            await self.use("edit", file_path=layout, old_string="", new_string="escaped")
            edits = [{"old_string": "secret", "new_string": "escaped"}]
            await self.use("multiedit", file_path=layout, edits=edits)

        await self.check(edit)

    async def test_ls_lists_nothing_outside_unasked(self) -> None:
        async def ls(layout: str) -> None:
            outcome = await self.use("ls", path=layout or "..")
            # Links are listed by name; what they lead to is not.
            self.assertTrue(outcome.is_error or layout in (".", "./", "src", "src/.."), layout)

        await self.check(ls)

    async def test_searches_find_nothing_outside_unasked(self) -> None:
        async def search(layout: str) -> None:
            for name, pattern in (("grep", "secret of"), ("glob", "**/secret.txt")):
                outcome = await self.use(name, path=layout or "..", pattern=pattern)
                self.assertNotIn(SECRET, outcome.content)
                self.assertNotIn("secret.txt\n", outcome.content + "\n")

        await self.check(search)

    async def test_commands_run_nowhere_outside_unasked(self) -> None:
        async def bash(layout: str) -> None:
            asked = len(self.turn.asked)
            outcome = await self.use("bash", command="ls -la", working_dir=layout or "..")
            self.assertNotIn("only-outside", outcome.content)
            refused = outcome.is_error and not outcome.stop
            if not refused and not locate(self.root, layout or "..").inside:
                self.assertEqual(len(self.turn.asked), asked + 1)
                request = self.turn.asked[-1]
                self.assertIn(f"in {request.path})", request.description)
                self.assertEqual(request.params["working_dir"], request.path)

        await self.check(bash)

    async def test_a_fifo_does_not_block(self) -> None:
        os.mkfifo(self.root / "fifo")
        began = time.monotonic()
        self.assert_failed(await self.use("view", file_path="fifo"), "not a regular file")
        self.context.seen["session-1", str(self.root / "fifo")] = "seen"
        self.assert_failed(await self.use("write", file_path="fifo", content="x"))
        self.assertLess(time.monotonic() - began, 30)

    async def test_a_hard_link_to_the_outside_is_cut_and_not_written_through(self) -> None:
        os.link(self.outside / "secret.txt", self.root / "hard")
        await self.use("view", file_path="hard")
        outcome = await self.use("write", file_path="hard", content="mine")
        self.assertFalse(outcome.is_error, outcome.content)
        self.assertEqual((self.outside / "secret.txt").read_text(), SECRET)
        self.assertEqual((self.root / "hard").read_text(), "mine")

    async def test_a_link_inside_is_followed_to_its_file_and_stays_a_link(self) -> None:
        os.symlink("src/a.txt", self.root / "link")
        self.assertIn("inside", (await self.use("view", file_path="link")).content)
        outcome = await self.use("edit", file_path="link", old_string="in", new_string="out")
        self.assertFalse(outcome.is_error, outcome.content)
        self.assertTrue((self.root / "link").is_symlink())
        self.assertEqual((self.root / "src/a.txt").read_text(), "outside")

    async def test_folders_above_need_not_be_readable(self) -> None:
        # As for an ordinary user: folders that may be passed through, but not listed.
        folder = self.root / "closed"
        folder.mkdir()
        (folder / "a").write_text("content")
        real = os.open

        def as_user(path: str, flags: int, *args: int, dir_fd: int | None = None) -> int:
            if path == "closed" and not flags & os.O_PATH:
                raise PermissionError(13, "Permission denied")
            return real(path, flags, *args, dir_fd=dir_fd)

        with mock.patch.object(os, "open", as_user):
            self.assertIn("content", (await self.use("view", file_path="closed/a")).content)


class Flipper(threading.Thread):
    """Calls a function in a thread, as fast as possible, until it is stopped."""

    def __init__(self, flip: Callable[[], None]) -> None:
        super().__init__()
        self._flip = flip
        self._over = threading.Event()
        self.flips = 0

    def run(self) -> None:
        while not self._over.is_set():
            self._flip()
            self.flips += 1

    def __enter__(self) -> Flipper:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()


class RaceTests(EscapeTestCase):
    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        folder = self.root / "flip"
        folder.mkdir()
        for name in ("secret.txt", "mine.txt"):
            (folder / name).write_text("harmless")
        os.symlink(self.outside, self.root / "way-out")
        os.symlink(self.outside / "secret.txt", self.root / "file-way-out")
        self.before = snapshot(self.outside)

    def flip_folder(self) -> None:
        """Make `flip` a folder, then nothing, then a link to the outside, then nothing, and so
        on."""
        moves = (("flip", "aside"), ("way-out", "flip"), ("flip", "way-out"), ("aside", "flip"))
        for old, new in moves:
            while True:
                try:
                    os.rename(self.root / old, self.root / new)
                    break
                except OSError:  # a write has created the folder meanwhile
                    shutil.rmtree(self.root / new, ignore_errors=True)

    def flip_file(self) -> None:
        """Make `leaf` by turns a file and a link to one outside; it always exists."""
        os.symlink(self.outside / "secret.txt", self.root / "leaf.new")
        os.rename(self.root / "leaf.new", self.root / "leaf")
        (self.root / "leaf.new").write_text("harmless")
        os.rename(self.root / "leaf.new", self.root / "leaf")

    async def race(
        self,
        flip: Callable[[], None],
        use: Callable[[], object],
        seconds: float = RACE_SECONDS,
    ) -> None:
        tries = 0
        with Flipper(flip) as flipper:
            end = time.monotonic() + seconds
            # On a busy machine it takes longer until a race happens at all.
            while time.monotonic() < end or tries <= 2 or flipper.flips <= 10:
                await use()  # type: ignore[misc]
                tries += 1
        self.assertEqual(snapshot(self.outside), self.before)

    async def test_reading_through_a_folder_that_becomes_a_link(self) -> None:
        async def read() -> None:
            outcome = await self.use("view", file_path="flip/secret.txt")
            self.assertNotIn(SECRET, outcome.content)

        await self.race(self.flip_folder, read)

    async def test_reading_a_file_that_becomes_a_link(self) -> None:
        (self.root / "leaf").write_text("harmless")

        async def read() -> None:
            outcome = await self.use("view", file_path="leaf")
            self.assertNotIn(SECRET, outcome.content)

        await self.race(self.flip_file, read)

    async def test_the_primitives_themselves_between_check_and_use(self) -> None:
        def both() -> None:
            for _ in range(50):
                with contextlib.suppress(CrushliteError):
                    place = locate(self.root, "flip/secret.txt")
                    if place.inside:
                        self.assertEqual(read_bytes(place)[0], b"harmless")
                with contextlib.suppress(CrushliteError):
                    place = locate(self.root, "flip/new.txt")
                    if place.inside:
                        write_bytes(place, b"escaped", None)

        async def use() -> None:
            await asyncio.to_thread(both)

        def flip() -> None:
            self.flip_folder()
            (self.root / "flip" / "new.txt").unlink(missing_ok=True)

        await self.race(flip, use, LONGER_RACE)

    async def test_writing_through_a_folder_that_becomes_a_link(self) -> None:
        async def write() -> None:
            await self.use("write", file_path="flip/new.txt", content="escaped")
            await self.use("view", file_path="flip/mine.txt")
            await self.use("write", file_path="flip/mine.txt", content=os.urandom(4).hex())

        await self.race(self.flip_folder, write)

    async def test_searching_and_listing_where_a_folder_becomes_a_link(self) -> None:
        async def search() -> None:
            for name, arguments in (
                ("ls", {"path": "flip"}),
                ("bash", {"command": "ls flip"}),
                ("bash", {"command": "ls", "working_dir": "flip"}),
                ("grep", {"path": "flip", "pattern": "secret of"}),
            ):
                outcome = await self.use(name, **arguments)
                self.assertNotIn("only-outside", outcome.content)
                self.assertNotIn(SECRET, outcome.content)

        await self.race(self.flip_folder, search, LONGER_RACE)


class LocateTests(unittest.TestCase):
    def test_what_cannot_be_accessed_is_explained(self) -> None:
        place = locate(Path("/"), "/etc/passwd/x")
        self.assertFalse(exists(place))
        hidden = mock.patch.object(os, "lstat", side_effect=PermissionError(13, "no"))
        with hidden, self.assertRaisesRegex(BadRequest, "Permission denied"):
            exists(place)
        with self.assertRaisesRegex(BadRequest, "directory"):
            write_bytes(locate(Path("/"), "/"), b"", None)
        with self.assertRaisesRegex(BadRequest, "directory"):
            read_bytes(locate(Path("/"), "/"))
