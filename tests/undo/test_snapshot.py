"""Snapshots of a project before and after a command: exactly what has changed is found, at little
cost."""

from __future__ import annotations

import asyncio
import os
import random
import stat
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from crushlite.errors import BadRequest
from crushlite.filehistory.queries import FileState
from crushlite.protocol.sessions import File
from crushlite.undo import snapshot
from crushlite.undo.changes import ChangesPart
from crushlite.undo.queries import run_history
from crushlite.undo.snapshot import SnapshotLimits, Snapshots, differences
from crushlite.wing import Author
from tests.support.basics import BoundedTestCase
from tests.support.turns import SCOPE, SESSION, Bench

if TYPE_CHECKING:
    from collections.abc import Callable

    from crushlite.hosting.turn import LiveTurn
    from crushlite.undo.snapshot import Difference, Snapshot

OLD = 10**9  # a time that is long past, in nanoseconds


class SnapshotCase(BoundedTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.root = Path(os.path.realpath(self.enterContext(tempfile.TemporaryDirectory())))
        self.snapshots = Snapshots(self.root)

    def write(self, name: str, content: str | bytes = "x\n", *, old: bool = True) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        if old:
            os.utime(path, ns=(OLD, OLD))
        return path

    def since(self, before: Snapshot) -> Difference:
        after = self.snapshots.take(before.rules)
        self.assertEqual(after.why, "")
        return differences(before, after)

    def described(self, found: Difference) -> dict[str, tuple[str | None, str | None]]:
        return {
            "/".join(change.parts): (change.before.content, change.after.content)
            for change in found.changes
        }


class ChangeTests(SnapshotCase):
    def test_edits_creations_and_deletions_are_found_and_nothing_else(self) -> None:
        for name in ("same.py", "edited.py", "gone.py", "deep/er/edited.txt"):
            self.write(name, f"{name}\n")
        before = self.snapshots.take()
        self.write("edited.py", "edited\n", old=False)
        self.write("deep/er/edited.txt", "", old=False)
        self.write("new/file.py", "new\n", old=False)
        (self.root / "gone.py").unlink()
        self.assertEqual(
            self.described(self.since(before)),
            {
                "deep/er/edited.txt": ("deep/er/edited.txt\n", ""),
                "edited.py": ("edited.py\n", "edited\n"),
                "gone.py": ("gone.py\n", None),
                "new/file.py": (None, "new\n"),
            },
        )

    def test_what_was_touched_but_not_changed_is_no_change(self) -> None:
        path = self.write("a.py")
        before = self.snapshots.take()
        path.touch()
        self.write("b.py")
        (self.root / "b.py").unlink()
        path.rename(self.root / "c.py")
        (self.root / "c.py").rename(path)
        self.assertEqual(self.described(self.since(before)), {})

    def test_a_change_of_the_mode_is_one(self) -> None:
        path = self.write("run.sh")
        path.chmod(0o644)
        before = self.snapshots.take()
        path.chmod(0o755)
        [change] = self.since(before).changes
        self.assertEqual(change.before, FileState("x\n", 0o644))
        self.assertEqual(change.after, FileState("x\n", 0o755))

    def test_a_change_that_leaves_size_and_time_alone_is_found(self) -> None:
        path = self.write("a.py", "one\n")
        before = self.snapshots.take()
        path.write_text("two\n")
        os.utime(path, ns=(OLD, OLD))
        self.assertEqual(self.described(self.since(before)), {"a.py": ("one\n", "two\n")})

    def test_a_file_that_had_just_been_written_is_read_again(self) -> None:
        # As on a file system whose clock stands still: only the content differs.
        with mock.patch.object(snapshot, "_identity", lambda info: (1, 2, info.st_size, 3, 4)):
            path = self.write("a.py", "one\n", old=False)
            before = self.snapshots.take()
            path.write_text("two\n")
            self.assertEqual(self.described(self.since(before)), {"a.py": ("one\n", "two\n")})

    def test_random_trees_and_changes(self) -> None:
        rng = random.Random(7)
        names = [f"{a}/{b}{c}" for a in ("x", "y", "x/z") for b in "pq" for c in ("", ".py")]
        state: dict[str, str] = {}
        for _ in range(40):
            before, old = self.snapshots.take(), dict(state)
            for name in rng.sample(names, rng.randrange(6)):
                if name in state and rng.random() < 0.4:
                    (self.root / name).unlink()
                    del state[name]
                else:
                    state[name] = str(rng.randrange(3))
                    self.write(name, state[name], old=rng.random() < 0.5)
            wanted = {
                name: (old.get(name), state.get(name))
                for name in {*old, *state}
                if old.get(name) != state.get(name)
            }
            self.assertEqual(self.described(self.since(before)), wanted)


class LeftOutTests(SnapshotCase):
    def test_ignored_files_and_known_folders_are_left_out(self) -> None:
        self.write(".gitignore", "*.log\n/build/\n!keep.log\n")
        own = self.root / "data"
        self.snapshots = Snapshots(self.root, (own, Path("/elsewhere")))
        before = self.snapshots.take()
        for name in (
            *("a.log", "sub/b.log", "build/out.txt", ".git/HEAD", "node_modules/x.js"),
            *(".crushlite/crushlite.db", "__pycache__/a.pyc", "data/crushlite.db-wal"),
        ):
            self.write(name)
        for name in ("keep.log", "sub/build/out.txt", "sub/data/x"):
            self.write(name)
        found = self.described(self.since(before))
        self.assertEqual(set(found), {"keep.log", "sub/build/out.txt", "sub/data/x"})

    def test_a_new_rule_does_not_look_like_a_deletion(self) -> None:
        self.write("a.log", "log\n")
        before = self.snapshots.take()
        self.write(".gitignore", "*.log\n", old=False)
        self.assertEqual(set(self.described(self.since(before))), {".gitignore"})

    def test_links_and_special_files_are_not_followed_and_not_opened(self) -> None:
        outside = Path(self.enterContext(tempfile.TemporaryDirectory()))
        (outside / "secret.txt").write_text("secret")
        (self.root / "folder").symlink_to(outside)
        (self.root / "file").symlink_to(outside / "secret.txt")
        os.mkfifo(self.root / "pipe")
        self.write("a.txt")
        self.assertEqual([*self.snapshots.take().files], [("a.txt",)])

    def test_what_is_no_text_is_known_to_have_changed_and_no_more(self) -> None:
        for name, content in (("nul.bin", b"a\0b"), ("latin.txt", b"\xe9"), ("same.bin", b"\0")):
            self.write(name, content)
        self.write("becomes.bin", "text")
        before = self.snapshots.take()
        for name in ("nul.bin", "latin.txt", "new.bin", "becomes.bin"):
            self.write(name, b"\0\0\0\0\0", old=False)
        found = self.since(before)
        self.assertEqual(found.changes, [])
        unknown = {"/".join(parts): why for parts, why in found.unknown}
        self.assertEqual(set(unknown), {"nul.bin", "latin.txt", "new.bin", "becomes.bin"})
        self.assertEqual(set(unknown.values()), {"it is a binary file"})

    def test_what_is_too_large_is_known_to_have_changed_and_no_more(self) -> None:
        self.snapshots = Snapshots(self.root, limits=SnapshotLimits(file_bytes=10, total_bytes=15))
        self.write("large.txt", "x" * 11)
        self.write("small.txt", "x" * 9)
        before = self.snapshots.take()
        self.write("large.txt", "y" * 11, old=False)
        self.write("small.txt", "y" * 9, old=False)
        self.write("third.txt", "z" * 9, old=False)  # all together are over the limit
        found = self.since(before)
        self.assertEqual(len(found.changes) + len(found.unknown), 3)
        self.assertIn((("large.txt",), "it is too large to be recorded"), found.unknown)
        self.assertEqual(len(found.unknown), 2)

    def test_a_name_that_is_no_text_is_known_to_have_changed_and_no_more(self) -> None:
        before = self.snapshots.take()
        Path(os.fsdecode(os.fsencode(self.root) + b"/\xff.txt")).write_text("x")
        found = self.since(before)
        self.assertEqual((found.changes, len(found.unknown)), ([], 1))
        self.assertIn("not UTF-8", found.unknown[0][1])

    def test_a_file_that_may_not_be_read_is_no_obstacle(self) -> None:
        path = self.write("a.txt", "a")
        self.write("b.txt", "b")
        path.chmod(0)
        with mock.patch.object(os, "open", self.refuse(os.open)):
            before = self.snapshots.take()
            self.write("b.txt", "c", old=False)
            self.assertEqual(self.described(self.since(before)), {"b.txt": ("b", "c")})

    def refuse(self, real: Any) -> Any:
        """An os.open that refuses one file. Its mode would not do: root may read every file."""

        def opened(path: Any, *args: Any, **more: Any) -> Any:
            if path == "a.txt":
                raise PermissionError(13, "Permission denied")
            return real(path, *args, **more)

        return opened


class LimitTests(SnapshotCase):
    def test_a_project_with_too_many_files_has_no_snapshot(self) -> None:
        self.snapshots = Snapshots(self.root, limits=SnapshotLimits(files=3))
        for number in range(4):
            self.write(f"{number}.txt")
        found = self.snapshots.take()
        self.assertEqual((found.files, found.why), ({}, "the project has more than 3 files"))
        (self.root / "0.txt").unlink()
        self.assertEqual((len(self.snapshots.take().files), self.snapshots.take().why), (3, ""))

    def test_a_project_that_takes_too_long_has_no_snapshot(self) -> None:
        self.snapshots = Snapshots(self.root, limits=SnapshotLimits(seconds=-1.0))
        self.write("a.txt")
        self.assertIn("takes more than", self.snapshots.take().why)

    def test_the_time_counts_for_ignored_files_as_well(self) -> None:
        self.snapshots = Snapshots(self.root, limits=SnapshotLimits(seconds=-1.0))
        self.write(".gitignore", "*\n")
        self.write("a.txt")
        self.assertIn("takes more than", self.snapshots.take().why)

    def test_a_project_that_is_too_deep_has_no_snapshot(self) -> None:
        self.write("/".join(["d"] * 70) + "/a.txt")
        self.assertIn("levels deep", self.snapshots.take().why)

    def test_a_project_that_is_gone_has_no_files(self) -> None:
        self.snapshots = Snapshots(self.root / "nowhere")
        self.assertEqual((self.snapshots.take().files, self.snapshots.take().why), ({}, ""))

    def test_contents_are_read_once(self) -> None:
        for number in range(20):
            self.write(f"{number}.txt")
        self.snapshots.take()
        read: list[Any] = []
        real = os.open

        def opened(path: Any, flags: int, *args: Any, **more: Any) -> int:
            if not flags & os.O_DIRECTORY:
                read.append(path)
            return real(path, flags, *args, **more)

        with mock.patch.object(os, "open", opened):
            self.write("7.txt", "changed")
            self.snapshots.take("")
        self.assertEqual(read, ["7.txt"])

    def test_a_small_project_costs_little(self) -> None:
        for number in range(200):
            self.write(f"d{number % 9}/{number}.py", "x = 1\n" * 200)
        self.write(".gitignore", "\n".join(f"*.t{n}" for n in range(40)))
        self.snapshots.take()

        def best(work: Callable[[], object]) -> float:
            """The shortest processor time in seconds: other processes do not add to it."""
            times = []
            for _ in range(10):
                began = time.process_time()
                work()
                times.append(time.process_time() - began)
            return min(times)

        def look() -> None:
            for folder, _, names in os.walk(self.root):
                for name in names:
                    os.stat(f"{folder}/{name}")

        # Two walks and a comparison: about 6 times a walk that only calls stat.
        self.assertLess(best(lambda: self.since(self.snapshots.take())), 60 * best(look))


class CommandTests(Bench):
    """What commands of a turn change becomes part of its run's history."""

    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        self.root = self.path / "project"
        self.root.mkdir()
        self.workspace.path = self.root
        self.changes = self.watch(None)
        (self.root / "a.txt").write_text("one\n")
        self.env = {"PATH": os.environ["PATH"]}

    def watch(self, limits: SnapshotLimits | None) -> ChangesPart:
        """Let only the undo wing watch the commands of this workspace."""
        workspace = mock.Mock(path=self.root, store=self.scoped)
        history = self.history()
        part = ChangesPart(workspace, history, limits)
        self.parts[:] = [history, part, self.shell()]
        return part

    async def ran(self, turn: LiveTurn, command: str, **more: Any) -> None:
        call = await turn.tool_call("bash", "{}")
        started = await turn.command(command, env=self.env, **more)
        await started.wait()
        await turn.tool_result(call, "done")

    async def recorded(self, run_id: str = "run-1") -> dict[str, tuple[Any, Any, bool]]:
        past = await self.store.read(lambda c: run_history(c, SCOPE, run_id))
        self.gaps = past.gaps
        return {
            os.path.relpath(one.path, self.root): (one.before.content, one.after.content, one.mixed)
            for one in past.paths
        }

    async def test_a_command_s_changes_are_on_record_when_its_result_is(self) -> None:
        turn = self.turn()
        await self.ran(turn, "echo two > a.txt; mkdir d; echo new > d/b.txt; echo x > c; rm c")
        wanted = {"a.txt": ("one\n", "two\n", False), "d/b.txt": (None, "new\n", False)}
        self.assertEqual(await self.recorded(), wanted)
        files = [event.payload for event in self.published(File)]
        self.assertEqual(
            [(file.version, file.content) for file in files[:2]], [(0, "one\n"), (1, "two\n")]
        )

    async def test_a_read_only_command_is_not_watched(self) -> None:
        turn = self.turn()
        with mock.patch.object(self.changes._snapshots, "take") as take:
            await self.ran(turn, "true", read_only=True)
        take.assert_not_called()

    async def test_the_agent_s_own_edits_stay_its_own_and_are_not_recorded_twice(self) -> None:
        turn = self.turn()
        (self.root / "a.txt").write_text("two\n")
        await turn.file_changed(str(self.root / "a.txt"), "one\n", "two\n")
        await self.ran(turn, "echo three > a.txt")
        self.assertEqual(await self.recorded(), {"a.txt": ("one\n", "three\n", False)})
        self.assertEqual([event.payload.version for event in self.published(File)], [0, 1, 2])

    async def test_what_another_run_reports_meanwhile_stays_its_own(self) -> None:
        slow, quick = self.turn(), self.turn(run_id="run-2")
        call = await slow.tool_call("bash", "{}")
        fifo = self.path / "fifo"
        os.mkfifo(fifo)
        started = await slow.command(f"cat {fifo}; echo mine > b.txt", env=self.env)
        (self.root / "a.txt").write_text("theirs\n")
        await quick.file_changed(str(self.root / "a.txt"), "one\n", "theirs\n")
        fifo.write_text("go")
        await started.wait()
        await slow.tool_result(call, "done")
        self.assertEqual(await self.recorded(), {"b.txt": (None, "mine\n", False)})
        self.assertEqual(await self.recorded("run-2"), {"a.txt": ("one\n", "theirs\n", False)})

    async def test_a_command_that_is_kept_is_recorded_as_far_as_it_has_come(self) -> None:
        turn = self.turn()
        fifo = self.path / "fifo"
        os.mkfifo(fifo)
        said = self.path / "said"
        os.mkfifo(said)
        command = f"echo two > a.txt; echo > {said}; cat {fifo}; echo three > a.txt"
        started = await turn.command(command, env=self.env)
        await asyncio.to_thread(said.read_text)
        turn.keep(started)
        await turn.end_commands()
        self.assertEqual(await self.recorded(), {"a.txt": ("one\n", "two\n", False)})
        await asyncio.to_thread(fifo.write_text, "go")
        await started.wait()
        self.assertEqual((self.root / "a.txt").read_text(), "three\n")
        self.assertEqual(await self.recorded(), {"a.txt": ("one\n", "two\n", False)})

    async def test_the_end_of_a_run_waits_for_the_record(self) -> None:
        turn = self.turn()
        await (await turn.command("echo two > a.txt", env=self.env)).wait()
        turn.fence()
        await turn.end_commands()
        self.assertEqual(await self.recorded(), {"a.txt": ("one\n", "two\n", False)})

    async def test_a_command_that_cannot_start_leaves_nothing_behind(self) -> None:
        turn = self.turn()
        with self.assertRaises(BadRequest):
            await turn.command("tr\0ue", env=self.env)
        self.assertEqual(self.changes._watches, set())

    async def test_a_project_that_is_too_large_is_noted_once_and_the_run_goes_on(self) -> None:
        self.watch(SnapshotLimits(files=0))
        turn = self.turn()
        for text in ("two", "three"):
            await self.ran(turn, f"echo {text} > a.txt")
        self.assertEqual(await self.recorded(), {})
        self.assertEqual(self.gaps, [("", "the project has more than 0 files")])

    async def test_a_binary_file_is_noted_by_its_name(self) -> None:
        await self.ran(self.turn(), "printf 'a\\000b' > x.bin")
        self.assertEqual(await self.recorded(), {})
        self.assertEqual(self.gaps, [(str(self.root / "x.bin"), "it is a binary file")])

    async def test_a_store_that_fails_does_not_fail_the_command(self) -> None:
        await self.execute(
            "CREATE TRIGGER no BEFORE INSERT ON files BEGIN SELECT RAISE(ABORT, 'no'); END"
        )
        turn = self.turn()
        with self.assertLogs("crushlite", "WARNING") as logged:
            await self.ran(turn, "echo two > a.txt")
        self.assertIn("is not recorded", logged.output[0])

    async def test_modes_are_recorded(self) -> None:
        (self.root / "a.txt").chmod(0o600)
        await self.ran(self.turn(), "chmod 755 a.txt")
        past = await self.store.read(lambda c: run_history(c, SCOPE, "run-1"))
        [one] = past.paths
        self.assertEqual((one.before.mode, one.after.mode), (0o600, 0o755))
        self.assertEqual(stat.S_IMODE((self.root / "a.txt").stat().st_mode), 0o755)

    async def test_changes_of_a_deleted_session_are_dropped(self) -> None:
        self.assertEqual(SESSION, self.turn().session_id)
        watch = await self.changes.before_command(Author("nobody", "run-1"))
        (self.root / "a.txt").write_text("two\n")
        await watch.ended()
        self.assertEqual(self.changes._watches, set())
