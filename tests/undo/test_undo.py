"""Undoing a run: all of it or nothing, no change of another author, nothing outside, and an undoing
can be undone itself."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import stat
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from crushlite.coder.tools.registry import all_tools
from crushlite.fake_model import End, Say, Use
from crushlite.testing import LocalDaemon
from crushlite.undo import states, undoing as undo
from crushlite.undo.snapshot import Snapshots
from tests.support.basics import LIMIT, BoundedTestCase
from tests.support.model import CoderTestCase
from tests.support.prompts import until

if TYPE_CHECKING:
    from crushlite.agent.base import Turn
    from crushlite.fake_model import Step
    from crushlite.testing import Participant
    from crushlite.testing.scripted import ScriptedRun


async def reported(path: str, turn: Turn) -> None:
    await turn.file_changed(path, "0", "1")


class UndoCase(BoundedTestCase):
    async def asyncSetUp(self) -> None:
        self.daemon = await self.enterAsyncContext(LocalDaemon())
        self.root = Path(os.path.realpath(self.daemon.root / "project"))
        self.anna: Participant = await self.daemon.join()
        self.session = await self.anna.session()
        self.runs = 0

    # The project.

    def write(self, name: str, content: str | bytes, mode: int = 0o644) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        path.chmod(mode)
        return path

    def tree(self) -> dict[str, tuple[str, int]]:
        """Content and mode of every file of the project, without the daemon's own."""
        return {
            str(path.relative_to(self.root)): (
                path.read_bytes().decode("latin-1"),
                stat.S_IMODE(path.stat().st_mode),
            )
            for path in sorted(self.root.rglob("*"))
            if path.is_file() and ".crushlite" not in path.parts
        }

    # Runs.

    async def begin(self) -> tuple[str, ScriptedRun]:
        self.runs += 1
        run_id = str((await self.anna.prompt(self.session, "hello")).json["run_id"])
        return run_id, await self.daemon.entered(self.runs)

    async def end(self, run_id: str, run: ScriptedRun) -> str:
        run.release()
        await self.anna.events.wait_for("run_complete", run_id=run_id)
        return run_id

    def texts(self) -> dict[str, str]:
        return {name: text for name, (text, _) in self.tree().items()}

    async def edited(self, **files: str | None) -> str:
        """A run that changes files as a tool would; `_` in a name stands for a dot."""
        run_id, run = await self.begin()
        for key, after in files.items():
            await self.edit(run, key.replace("_", "."), after)
        return await self.end(run_id, run)

    async def edit(self, run: ScriptedRun, name: str, after: str | None) -> None:
        path = self.root / name
        before = path.read_bytes().decode() if path.exists() else None
        if after is None:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(after.encode())
        await run.do(lambda turn: turn.file_changed(str(path), before, after))

    async def commanded(self, *commands: str) -> str:
        """A run that runs these commands."""
        run_id, run = await self.begin()
        for command in commands:
            await self.command(run, command)
        return await self.end(run_id, run)

    async def command(self, run: ScriptedRun, command: str) -> None:
        async def perform(turn: Any) -> None:
            call = await turn.tool_call("bash", "{}")
            started = await turn.command(command, env={"PATH": os.environ["PATH"]})
            ended = await started.wait()
            await turn.tool_result(call, f"exit {ended.code}")

        await run.do(perform)

    # Undoing.

    async def undo(self, run_id: str, status: int = 200, **options: bool) -> Any:
        answer = await self.anna.call("POST", f"/runs/{run_id}/undo", options)
        self.assertEqual(answer.status, status, answer.json)
        return answer.json

    async def look(self, run_id: str) -> Any:
        answer = await self.anna.call("GET", f"/runs/{run_id}/changes")
        self.assertEqual(answer.status, 200, answer.json)
        return answer.json

    async def problems(self, run_id: str) -> dict[str, str]:
        files = (await self.look(run_id))["files"]
        return {
            os.path.relpath(file["path"], self.root): file["problem"]
            for file in files
            if "problem" in file
        }


class WholeTests(UndoCase):
    async def test_edited_created_and_deleted_files_go_back_with_their_modes(self) -> None:
        self.write("edited.sh", "one\n", 0o750)
        self.write("deep/deleted.py", "gone\r\n", 0o600)
        self.write("same.py", "same\n")
        before = self.tree()
        for way in ("tools", "commands"):
            if way == "tools":
                run_id, run = await self.begin()
                await self.edit(run, "edited.sh", "two\n")
                await self.edit(run, "new/er/created.py", "new\n")
                await self.edit(run, "deep/deleted.py", None)
                await self.end(run_id, run)
                (self.root / "deep").rmdir()
            else:
                run_id = await self.commanded(
                    "echo two > edited.sh; chmod 700 edited.sh",
                    "mkdir -p new/er && echo new > new/er/created.py; rm -r deep",
                )
            self.assertNotEqual(self.tree(), before)
            answer = await self.undo(run_id)
            with self.subTest(way):
                wanted = dict(before)
                if way == "tools":  # the report of a tool that deletes does not hold the mode
                    found = self.tree()
                    self.assertEqual(found["deep/deleted.py"][0], "gone\r\n")
                    wanted["deep/deleted.py"] = found["deep/deleted.py"]
                self.assertEqual(self.tree(), wanted)
                self.assertFalse((self.root / "new").exists())
                self.assertEqual(len(answer["restored"]), 3)
                self.assertEqual(answer["kept"], [])
            (self.root / "deep/deleted.py").chmod(0o600)

    async def test_many_changes_of_one_file_are_undone_at_once(self) -> None:
        self.write("a.txt", "0")
        run_id, run = await self.begin()
        for text in ("1", "2"):
            await self.edit(run, "a.txt", text)
        await self.command(run, "echo 3 > a.txt; echo x > b.txt")
        await self.command(run, "rm b.txt")
        await self.edit(run, "a.txt", "4")
        await self.end(run_id, run)
        self.assertEqual((await self.undo(run_id))["restored"], [str(self.root / "a.txt")])
        self.assertEqual((self.root / "a.txt").read_text(), "0")

    async def test_a_file_that_is_as_before_already_is_no_obstacle(self) -> None:
        self.write("a.txt", "0")
        self.write("b.txt", "0")
        run_id = await self.edited(a_txt="1", b_txt="1", c_txt="1")
        self.write("a.txt", "0")
        (self.root / "c.txt").unlink()
        self.assertEqual((await self.undo(run_id))["restored"], [str(self.root / "b.txt")])

    async def test_a_mode_that_was_changed_since_is_no_obstacle(self) -> None:
        self.write("a.txt", "0", 0o644)
        run_id = await self.edited(a_txt="1")
        self.write("a.txt", "0", 0o600)
        self.assertEqual(await self.undo(run_id), {"run_id": "", "restored": [], "kept": []})

    async def test_only_the_run_that_was_named_is_undone(self) -> None:
        self.write("a.txt", "0")
        first = await self.edited(a_txt="1")
        second = await self.edited(b_txt="1")
        await self.undo(first)
        self.assertEqual(self.texts(), {"a.txt": "0", "b.txt": "1"})
        await self.undo(second)
        self.assertEqual(set(self.tree()), {"a.txt"})

    async def test_a_session_sees_the_versions_of_an_undo_and_so_do_clients(self) -> None:
        self.write("a.txt", "0")
        run_id = await self.edited(a_txt="1")
        await self.undo(run_id)
        event = await self.anna.events.wait_for("file", version=2)
        self.assertEqual((event.action, event["content"]), ("created", "0"))
        history = (await self.anna.call("GET", f"/sessions/{self.session}/history")).json
        self.assertEqual([file["content"] for file in history], ["0", "1", "0"])

    async def test_a_dry_run_changes_nothing_and_says_the_same(self) -> None:
        self.write("a.txt", "0")
        run_id = await self.edited(a_txt="1")
        before = self.tree()
        answer = await self.undo(run_id, dry_run=True)
        self.assertEqual((answer["run_id"], answer["restored"]), ("", [str(self.root / "a.txt")]))
        self.assertEqual(self.tree(), before)

    async def test_the_changes_of_a_run_show_both_versions(self) -> None:
        self.write("a.txt", "0", 0o640)
        run_id = await self.commanded("echo 1 > a.txt; echo new > b.txt")
        shown = await self.look(run_id)
        path = str(self.root / "a.txt")
        first = {"path": path, "existed": True, "exists": True, "before": "0", "after": "1\n"}
        self.assertEqual(shown["files"][0], {**first, "mode": 0o640})
        self.assertFalse(shown["files"][1]["existed"])
        self.assertEqual((shown["session_id"], shown["notes"]), (self.session, []))


class RefusalTests(UndoCase):
    async def test_a_file_that_changed_since_refuses_the_whole_run(self) -> None:
        for name, spoil in (
            ("edited", lambda path: path.write_text("by hand")),
            ("deleted", lambda path: path.unlink()),
            ("a folder", lambda path: (path.unlink(), path.mkdir())),
            ("a link", lambda path: (path.unlink(), path.symlink_to("/etc/passwd"))),
            ("binary", lambda path: path.write_bytes(b"\0")),
        ):
            with self.subTest(name):
                self.write("a.txt", "0")
                self.write("b.txt", "0")
                run_id = await self.edited(a_txt="1", b_txt="1")
                spoil(self.root / "a.txt")
                before = self.tree()
                refusal = await self.undo(run_id, 409)
                self.assertEqual(refusal["code"], "conflict")
                self.assertIn("a.txt", refusal["message"])
                self.assertEqual(self.tree(), before)
                self.assertEqual([*await self.problems(run_id)], ["a.txt"])
                answer = await self.undo(run_id, partial=True)
                self.assertEqual(answer["restored"], [str(self.root / "b.txt")])
                self.assertEqual(
                    [file["path"] for file in answer["kept"]], [str(self.root / "a.txt")]
                )
                self.assertEqual(self.tree(), before | {"b.txt": ("0", 0o644)})
                self.remove("a.txt")

    def remove(self, name: str) -> None:
        path = self.root / name
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        elif path.exists() or path.is_symlink():
            path.unlink()

    async def test_a_file_that_was_moved_out_of_an_ignored_folder_is_not_removed(self) -> None:
        """It looks like a file that the command created, but it came from a folder that is not
        recorded."""
        self.write(".gitignore", "drafts/\n")
        self.write("drafts/novel.txt", "years of work")
        later = time.time_ns() + 3600 * 10**9
        with mock.patch("crushlite.undo.snapshot.time.time_ns", return_value=later):
            run = await self.commanded("mv drafts chapters")
        await self.undo(run, 409)
        self.assertEqual(self.texts()["chapters/novel.txt"], "years of work")

    async def test_a_created_file_that_was_changed_since_is_not_removed(self) -> None:
        run_id = await self.edited(a_txt="1")
        self.write("a.txt", "mine now")
        await self.undo(run_id, 409)
        self.assertEqual((self.root / "a.txt").read_text(), "mine now")

    async def test_a_deleted_file_that_is_there_again_is_not_overwritten(self) -> None:
        self.write("a.txt", "0")
        run_id = await self.edited(a_txt=None)
        self.write("a.txt", "mine now")
        await self.undo(run_id, 409)
        self.assertEqual((self.root / "a.txt").read_text(), "mine now")

    async def test_a_later_run_must_be_undone_first(self) -> None:
        self.write("a.txt", "0")
        first = await self.edited(a_txt="1")
        second = await self.edited(a_txt="2")
        await self.undo(first, 409)
        await self.undo(second)
        await self.undo(first)
        self.assertEqual((self.root / "a.txt").read_text(), "0")

    async def test_a_change_by_another_author_in_the_middle_of_the_run_is_not_lost(self) -> None:
        self.write("a.txt", "0")
        run_id, run = await self.begin()
        await self.edit(run, "a.txt", "1")
        self.write("a.txt", "by hand")
        await self.edit(run, "a.txt", "2")
        await self.end(run_id, run)
        await self.undo(run_id, 409)
        self.assertIn("during the run", (await self.problems(run_id))["a.txt"])
        self.assertEqual((self.root / "a.txt").read_text(), "2")

    async def test_a_mode_that_changed_since_counts_if_the_run_changed_it(self) -> None:
        self.write("a.sh", "0", 0o644)
        self.write("b.sh", "0", 0o644)
        run_id = await self.commanded("chmod 755 a.sh; echo 1 > b.sh")
        (self.root / "a.sh").chmod(0o700)
        (self.root / "b.sh").chmod(0o600)
        self.assertEqual(await self.problems(run_id), {"a.sh": "it has changed since"})
        await self.undo(run_id, partial=True)
        self.assertEqual(self.tree(), {"a.sh": ("0", 0o700), "b.sh": ("0", 0o600)})

    async def test_nothing_outside_is_touched_whatever_is_on_record(self) -> None:
        outside = self.daemon.root / "outside.txt"
        outside.write_text("1")
        run_id, run = await self.begin()
        for path in (str(outside), str(self.root / ".." / "outside.txt"), "relative.txt", "/"):
            await run.do(functools.partial(reported, path))
        await self.end(run_id, run)
        await self.undo(run_id, 409)
        answer = await self.undo(run_id, partial=True)
        self.assertEqual((answer["restored"], len(answer["kept"])), ([], 4))
        self.assertEqual(outside.read_text(), "1")

    async def test_a_folder_that_became_a_link_leads_nowhere(self) -> None:
        self.write("sub/a.txt", "0")
        run_id = await self.commanded("echo 1 > sub/a.txt")
        elsewhere = self.daemon.root / "elsewhere"
        (self.root / "sub").rename(elsewhere)
        (self.root / "sub").symlink_to(elsewhere)
        await self.undo(run_id, 409)
        self.assertEqual((elsewhere / "a.txt").read_text(), "1\n")

    async def test_a_hard_link_elsewhere_is_not_written_through(self) -> None:
        self.write("a.txt", "0")
        run_id = await self.edited(a_txt="1")
        other = self.daemon.root / "other.txt"
        os.link(self.root / "a.txt", other)
        await self.undo(run_id)
        self.assertEqual(((self.root / "a.txt").read_text(), other.read_text()), ("0", "1"))

    async def test_undo_is_refused_while_the_session_has_a_run(self) -> None:
        self.write("a.txt", "0")
        done = await self.edited(a_txt="1")
        run_id, run = await self.begin()
        self.assertEqual((await self.undo(done, 409))["code"], "session_busy")
        self.assertEqual(
            (await self.undo(done, dry_run=True))["restored"], [str(self.root / "a.txt")]
        )
        await self.end(run_id, run)
        await self.undo(done)

    async def test_an_unknown_run_is_not_found_and_one_without_changes_has_none(self) -> None:
        self.assertEqual((await self.undo("nobody", 404))["code"], "run_not_found")
        self.assertEqual((await self.anna.call("GET", "/runs/nobody/changes")).status, 404)
        run_id = await self.edited()
        self.assertEqual((await self.look(run_id))["files"], [])
        self.assertEqual(await self.undo(run_id), {"run_id": "", "restored": [], "kept": []})

    async def test_changes_that_were_not_recorded_are_listed(self) -> None:
        self.write("a.bin", b"\0")
        self.write("a.txt", "0")
        run_id = await self.commanded("printf '\\000\\000' > a.bin; echo 1 > a.txt")
        refusal = await self.undo(run_id, 409)
        self.assertIn("its change was not recorded: it is a binary file", refusal["message"])
        answer = await self.undo(run_id, partial=True)
        self.assertEqual(answer["restored"], [str(self.root / "a.txt")])

    async def test_a_failure_in_the_middle_leaves_everything_as_it_was(self) -> None:
        for name in ("a.txt", "b.txt", "c.txt"):
            self.write(name, "0")
        run_id = await self.edited(a_txt="1", b_txt=None, c_txt="1", d_txt="1")
        before = self.tree()
        done: list[str] = []

        def put(place: Any, was: Any, wanted: Any) -> None:
            if place.path.name == "d.txt":
                raise OSError(28, "No space left on device")
            done.append(place.path.name)
            states.change_state(place, was, wanted)

        with mock.patch.object(undo, "change_state", put):
            refusal = await self.undo(run_id, 409)
        self.assertEqual(done, ["a.txt", "b.txt", "c.txt", "c.txt", "b.txt", "a.txt"])
        self.assertIn("No space left", refusal["message"])
        self.assertEqual(self.tree(), before)
        await self.undo(run_id)
        self.assertEqual(
            self.texts(),
            dict.fromkeys(("a.txt", "b.txt", "c.txt"), "0"),
        )


class RedoTests(UndoCase):
    async def test_an_undo_can_be_undone_again_and_again(self) -> None:
        self.write("a.txt", "0")
        self.write("b.txt", "0", 0o600)
        before = self.tree()
        last = await self.commanded("echo 1 > a.txt; rm b.txt; echo new > c.txt; chmod 755 a.txt")
        after = self.tree()
        for wanted in (before, after, before, after):
            last = (await self.undo(last))["run_id"]
            self.assertEqual(self.tree(), wanted)

    async def test_the_list_says_what_undid_what(self) -> None:
        self.write("a.txt", "0")
        run_id = await self.edited(a_txt="1", b_txt="1")
        undoing = (await self.undo(run_id))["run_id"]

        async def listed() -> list[tuple[str, str, int, bool]]:
            found = (await self.anna.call("GET", "/changes")).json
            return [(e["run_id"], e["undoes"], e["files"], e["undone"]) for e in found]

        wanted = [(run_id, "", 2, True), (undoing, run_id, 2, False)]
        self.assertEqual(await listed(), wanted)
        redoing = (await self.undo(undoing))["run_id"]
        wanted = [(run_id, "", 2, False), (undoing, run_id, 2, True), (redoing, undoing, 2, False)]
        self.assertEqual(await listed(), wanted)

    async def test_a_run_that_is_undone_cannot_be_undone_twice(self) -> None:
        self.write("a.txt", "0")
        run_id = await self.edited(a_txt="1")
        await self.undo(run_id)
        self.assertEqual((await self.undo(run_id))["restored"], [])

    async def test_undo_works_after_a_restart(self) -> None:
        self.write("a.txt", "0", 0o711)
        run_id = await self.commanded("rm a.txt; echo new > b.txt")
        await self.daemon.daemon.stop()
        again = LocalDaemon()
        again.root = self.daemon.root
        self.daemon = await self.enterAsyncContext(again)
        self.anna = await self.daemon.join()
        await self.undo(run_id)
        self.assertEqual(self.tree(), {"a.txt": ("0", 0o711)})


class LeavingTests(UndoCase):
    async def test_an_undo_that_has_begun_is_carried_out_although_its_client_leaves(
        self,
    ) -> None:
        self.write("a.txt", "0")
        run_id = await self.edited(a_txt="1")
        begun, go_on = asyncio.Event(), threading.Event()
        loop, put_back = asyncio.get_running_loop(), undo._steps

        def slowly(*args: Any) -> Any:
            loop.call_soon_threadsafe(begun.set)
            go_on.wait(LIMIT)
            return put_back(*args)

        with mock.patch.object(undo, "_steps", slowly):
            undoing = asyncio.create_task(self.undo(run_id))
            await begun.wait()
            await self.anna.retire()
            await until(lambda: not self.daemon.backend.everything(), "the workspace is leaving")
            go_on.set()
            await undoing
        self.assertEqual(self.texts(), {"a.txt": "0"})
        self.anna = await self.daemon.join()
        listed = (await self.anna.call("GET", "/changes")).json
        self.assertEqual(len(listed), 2, "the run, and its undoing")


def working(request: dict[str, Any]) -> list[Step]:
    """A model that edits with tools and with commands, one call in each step."""
    done = sum(message["role"] == "tool" for message in request["messages"])
    calls: list[tuple[str, dict[str, Any]]] = [
        ("view", {"file_path": "edited.txt"}),
        ("edit", {"file_path": "edited.txt", "old_string": "one", "new_string": "two"}),
        ("write", {"file_path": "new/file.txt", "content": "new"}),
        ("bash", {"command": "rm deleted.txt; mv moved.txt there.txt", "description": "tidy"}),
        ("bash", {"command": "git status -s", "description": "look"}),
    ]
    if done == len(calls):
        return [Say("Done."), End()]
    name, arguments = calls[done]
    return [Use(name, json.dumps(arguments)), End()]


def looking(request: dict[str, Any]) -> list[Step]:
    """A model that calls all tools that only read, then answers."""
    if any(message["role"] == "tool" for message in request["messages"]):
        return [Say("Seen."), End()]
    calls: list[tuple[str, dict[str, Any]]] = [
        ("ls", {}),
        ("glob", {"pattern": "*.txt"}),
        ("grep", {"pattern": "one"}),
        ("view", {"file_path": "a.txt"}),
    ]
    return [*(Use(name, json.dumps(arguments)) for name, arguments in calls), End()]


class CoderTests(CoderTestCase):
    async def test_what_the_coder_did_with_its_tools_and_commands_is_undone(self) -> None:
        await self.start(script=working, tools=all_tools())
        for name in ("edited.txt", "deleted.txt", "moved.txt"):
            (self.project / name).write_text(f"one {name}")

        def texts() -> dict[str, str]:
            found = self.project.rglob("*.txt")
            return {str(path.relative_to(self.project)): path.read_text() for path in found}

        before = texts()
        run_id = await self.post("work")
        await self.complete(run_id)
        after = texts()
        self.assertEqual(set(after), {"edited.txt", "new/file.txt", "there.txt"})
        answer = await self.anna.call("POST", f"/runs/{run_id}/undo", {})
        self.assertEqual((answer.status, len(answer.json["restored"])), (200, 5), answer.json)
        self.assertEqual(texts(), before)
        answer = await self.anna.call("POST", f"/runs/{answer.json['run_id']}/undo", {})
        self.assertEqual(texts(), after)

    async def test_searching_and_reading_take_no_snapshot_of_the_project(self) -> None:
        """A snapshot reads the whole project: only a command that may change it is worth two."""
        await self.start(script=looking, tools=all_tools())
        (self.project / "a.txt").write_text("one")
        with mock.patch.object(
            Snapshots, "take", autospec=True, side_effect=Snapshots.take
        ) as take:
            done = await self.complete(await self.post("look"))
        self.assertEqual(done["text"], "Seen.")
        results = await self.results()
        names = sorted(result["name"] for result in results)
        self.assertEqual(names, ["glob", "grep", "ls", "view"])
        self.assertEqual([result for result in results if result["is_error"]], [])
        take.assert_not_called()


class ShellTests(UndoCase):
    async def test_what_a_person_s_command_changed_is_in_the_history_and_in_no_run(self) -> None:
        self.write("a.txt", "0")
        target = f"/agent/sessions/{self.session}/shell"
        answer = await self.anna.call("POST", target, {"command": "echo 1 > a.txt"})
        self.assertEqual(answer.json["exit_code"], 0)
        history = (await self.anna.call("GET", f"/sessions/{self.session}/history")).json
        self.assertEqual([file["content"] for file in history], ["0", "1\n"])
        self.assertEqual((await self.anna.call("GET", "/changes")).json, [])
