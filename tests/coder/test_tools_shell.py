"""bash, job_output, job_kill: real commands under real keepers, with a fake clock."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from crushlite.coder.tools.shell import Bash
from crushlite.errors import Conflict
from crushlite.shell.background import Background
from crushlite.testing.fake_clock import FakeClock
from tests.support.tools import ToolTestCase

if TYPE_CHECKING:
    from crushlite.coder.tools.base import ToolOutcome

FOREVER = "echo begun; exec sleep 1000"


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class ShellTestCase(ToolTestCase):
    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        self.clock = FakeClock()
        self.tools["bash"] = Bash(self.clock)
        self.turn.jobs = Background(self.clock)
        self.allow()

    async def bash(self, command: str, **arguments: Any) -> ToolOutcome:
        return await self.use("bash", command=command, description="test", **arguments)

    async def waiting(self, command: str, **arguments: Any) -> asyncio.Task[ToolOutcome]:
        """Start a call; returns when its command runs and its timer is armed."""
        task = asyncio.create_task(self.bash(command, **arguments))
        await self.turn.started.wait()
        await self.turn.said.wait()
        return task

    async def job(self, command: str = FOREVER) -> ToolOutcome:
        """Start a command in the background; it outlives the second that is looked at it."""
        task = await self.waiting(command, run_in_background=True)
        await self.clock.settle()
        await self.clock.advance(1)
        return await task


class BashTests(ShellTestCase):
    async def test_output_and_folder_are_in_the_result_and_the_request_is_complete(self) -> None:
        (self.root / "src").mkdir()
        outcome = await self.bash("cd src; echo out; echo err >&2")
        self.assertEqual(outcome.content, f"out\nerr\n\n<cwd>{self.root}</cwd>")
        self.assertFalse(outcome.is_error)
        asked = self.turn.asked[0]
        self.assertEqual((asked.tool, asked.action), ("bash", "execute"))
        self.assertEqual((asked.path, asked.call_id), (str(self.root), "call-1"))
        self.assertEqual(asked.description, "Execute command: cd src; echo out; echo err >&2")
        params = {
            "description": "test",
            "command": "cd src; echo out; echo err >&2",
            "working_dir": "",
            "run_in_background": False,
            "auto_background_after": 0,
        }
        self.assertEqual(asked.params, params)
        metadata = json.loads(outcome.metadata)
        self.assertEqual(metadata["start_time"], int(self.clock.now() * 1000))
        self.assertEqual(metadata["output"], "out\nerr\n")
        self.assertEqual(metadata["working_directory"], str(self.root))
        self.assertEqual((metadata["description"], metadata["background"]), ("test", False))
        self.assertEqual(self.clock.pending, 0)

    async def test_a_failing_command_is_an_error_that_begins_and_is_shown_with_its_code(
        self,
    ) -> None:
        outcome = await self.bash("echo no; exit 3")
        self.assertEqual(outcome.content, f"Exit code 3\nno\n\n<cwd>{self.root}</cwd>")
        self.assertTrue(outcome.is_error)
        self.assertFalse(outcome.stop)
        metadata = json.loads(outcome.metadata)
        self.assertEqual((metadata["output"], metadata["exit_code"]), ("no\nExit code 3", 3))
        self.assertIn("Exit code 143", (await self.bash("kill -TERM $$; wait")).content)
        outcome = await self.bash("test 1")
        self.assertIn("(no output)\n\n<cwd>", outcome.content)
        self.assertNotIn("exit_code", outcome.metadata)

    async def test_a_failing_command_names_the_variables_that_it_did_not_get(self) -> None:
        many = {f"A_{n:02}_TOKEN": "x" for n in range(30)}
        self.turn.env = {"PATH": "/bin", "LC_ALL": "C", "GH_TOKEN": "hidden"}
        outcome = await self.bash('test -n "$GH_TOKEN"')
        self.assertIn("may hold secrets: GH_TOKEN. If the command needs one", outcome.content)
        self.assertIn("permissions.command_variables", outcome.content)
        self.assertNotIn("hidden", outcome.content)
        self.assertNotIn("GH_TOKEN", (await self.bash("true; :")).content)
        self.turn.env |= many
        outcome = await self.bash('test -n "$A_01_TOKEN"')
        self.assertIn("A_19_TOKEN and 11 more.", outcome.content)
        self.turn.env = {"PATH": "/bin"}
        self.assertNotIn("secrets", (await self.bash("exit 1")).content)

    async def test_no_editor_or_pager_waits_for_anybody(self) -> None:
        self.context.env = {**self.context.env, "EDITOR": "cat", "GIT_PAGER": "less"}
        for name in ("EDITOR", "VISUAL", "GIT_EDITOR", "GIT_SEQUENCE_EDITOR"):
            outcome = await self.bash(f"eval ${name} no-such-file && echo went on")
            self.assertIn("went on", outcome.content)
        outcome = await self.bash("echo $PAGER $GIT_PAGER $MANPAGER; git init -q .; git commit")
        self.assertIn("cat cat cat\n", outcome.content)
        self.assertIn("Exit code 1", outcome.content)

    async def test_a_folder_in_the_workspace_and_one_outside(self) -> None:
        (self.root / "src").mkdir()
        outcome = await self.bash("pwd -P; :", working_dir="src")
        self.assertTrue(outcome.content.startswith(f"{self.root}/src\n"))
        self.assertEqual(self.turn.asked[-1].path, str(self.root / "src"))
        outcome = await self.bash("pwd -P; :", working_dir=str(self.outside))
        self.assertTrue(outcome.content.startswith(str(self.outside)))
        asked = self.turn.asked[-1]
        self.assertIn(f"outside the project, in {self.outside}", asked.description)
        self.assertEqual(
            (asked.path, asked.params["working_dir"]), (str(self.outside), str(self.outside))
        )
        self.assert_failed(await self.bash(": x", working_dir="none"), "No such file")

    async def test_a_folder_that_is_replaced_while_permission_is_asked_is_refused(self) -> None:
        folder = self.root / "src"
        folder.mkdir()

        def replace(asked: object) -> None:
            folder.rmdir()
            os.symlink(self.outside, folder)

        self.turn.meanwhile = replace
        outcome = await self.bash("touch here", working_dir="src")
        self.assert_failed(outcome, "changed while")
        self.assertEqual(os.listdir(self.outside), ["secret.txt"])

    async def test_a_denied_command_does_not_run_and_stops_the_turn(self) -> None:
        self.deny("too dangerous")
        self.assert_denied(await self.bash("touch here"), "too dangerous")
        self.assertEqual((self.turn.ran, os.listdir(self.root)), ([], []))

    async def test_the_environment_is_that_of_the_context_and_standard_input_is_closed(
        self,
    ) -> None:
        self.context.env = {"PATH": "/usr/bin:/bin", "ONLY": "this"}
        with mock.patch.dict(os.environ, {"CANARY_TOKEN": "leak"}):
            outcome = await self.bash("env; cat; echo done")
        self.assertIn("ONLY=this\n", outcome.content)
        self.assertIn("done", outcome.content)
        self.assertNotIn("leak", outcome.content)

    async def test_long_output_is_cut_in_the_middle(self) -> None:
        outcome = await self.bash("seq 1 100000; echo last")
        self.assertLess(len(outcome.content), 31_000)
        self.assertTrue(outcome.content.startswith("1\n2\n"))
        self.assertIn("bytes left out", outcome.content)
        self.assertIn("narrow it with grep, head or tail", outcome.content)
        self.assertIn("100000\nlast\n", outcome.content)
        self.assertLess(len(outcome.metadata), 70_000)

    async def test_wrong_arguments_are_explained_and_nothing_is_asked(self) -> None:
        commands: list[Any] = [None, 7, [], {}, True, "", "  \n", "a\0b", "x\ud800", "x" * 70_000]
        for wrong in commands:
            self.assert_failed(await self.use("bash", command=wrong, description=""), "command")
        for key, wrong in (
            ("description", 1),
            ("working_dir", []),
            ("run_in_background", "maybe"),
            ("run_in_background", 1),
            ("auto_background_after", "soon"),
            ("auto_background_after", -1),
        ):
            arguments: dict[str, Any] = {"command": "x", "description": "", key: wrong}
            self.assert_failed(await self.use("bash", **arguments), key)
        self.assertEqual((self.turn.asked, self.turn.ran), ([], []))


class TimeTests(ShellTestCase):
    async def test_a_command_that_takes_long_goes_on_as_a_job(self) -> None:
        task = await self.waiting(FOREVER)
        await self.clock.advance(59)
        self.assertFalse(task.done())
        await self.clock.advance(2)
        outcome = await task
        self.assertIn("begun\n", outcome.content)
        self.assertIn("job 1", outcome.content)
        metadata = json.loads(outcome.metadata)
        self.assertEqual((metadata["background"], metadata["shell_id"]), (True, "1"))
        self.assertTrue(alive(self.turn.commands[0].pid))
        self.assertEqual(self.clock.pending, 0)

    async def test_output_is_shown_while_the_command_runs(self) -> None:
        task = await self.waiting(FOREVER)
        self.assertEqual(self.turn.shown, [])
        await self.clock.advance(0.1)
        self.assertEqual([text for _, text in self.turn.shown], ["begun\n"])
        await self.clock.advance(50)
        self.assertEqual(len(self.turn.shown), 1)  # no new output, no new event
        task.cancel()
        await asyncio.wait([task])

    async def test_the_model_can_choose_when_a_command_goes_into_the_background(self) -> None:
        task = await self.waiting(FOREVER, auto_background_after=5)
        await self.clock.advance(6)
        self.assertIn("job 1", (await task).content)
        self.assertEqual(self.turn.asked[0].params["auto_background_after"], 5)

    async def test_a_command_that_stays_in_the_foreground_is_killed_at_the_time_out(self) -> None:
        task = await self.waiting(FOREVER, auto_background_after=600)
        await self.clock.advance(119)
        self.assertFalse(task.done())
        await self.clock.advance(2)
        outcome = await task
        ending = "Exit code 137: the command was killed after 120 seconds"
        self.assertTrue(outcome.content.startswith(ending), outcome.content)
        self.assertIn("set run_in_background\nbegun\n", outcome.content)
        self.assertTrue(outcome.is_error)
        self.assertFalse(alive(self.turn.commands[0].pid))

    async def test_a_command_that_cannot_become_a_job_has_the_rest_of_its_time(self) -> None:
        with mock.patch.object(self.turn, "keep", side_effect=Conflict("too many jobs")):
            task = await self.waiting(FOREVER)
            await self.clock.advance(61)
            self.assertFalse(task.done())
            await self.clock.advance(60)
            self.assertIn("killed after 120 seconds", (await task).content)

    async def test_a_cancel_kills_the_command(self) -> None:
        task = await self.waiting(FOREVER)
        command = self.turn.commands[0]
        task.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await task
        self.assertTrue((await command.wait()).canceled)
        self.assertFalse(alive(command.pid))
        self.assertEqual(self.clock.pending, 0)


class JobTests(ShellTestCase):
    async def test_a_job_is_started_read_and_killed(self) -> None:
        outcome = await self.job()
        self.assertIn("job 1", outcome.content)
        self.assertIn('shell_id "1"', outcome.content)
        self.assertTrue(self.turn.asked[0].params["run_in_background"])
        shown = {"shell_id": "1", "command": FOREVER, "description": "test"}
        shown["working_directory"] = str(self.root)
        metadata = json.loads(outcome.metadata)
        self.assertTrue(metadata["background"])
        self.assertEqual(metadata, metadata | shown)
        outcome = await self.use("job_output", shell_id="1")
        running = "begun\nJob 1 is still running. To wait for its end, set wait."
        self.assertEqual((outcome.content, outcome.is_error), (running, False))
        wanted = {**shown, "done": False, "output": "begun\n"}
        self.assertEqual(json.loads(outcome.metadata), wanted)
        outcome = await self.use("job_kill", shell_id=1)
        self.assertEqual(outcome.content, "Job 1 was killed.")
        self.assertEqual(json.loads(outcome.metadata), {**shown, "done": True})
        self.assertFalse(alive(self.turn.commands[0].pid))
        outcome = await self.use("job_output", job_id="1")
        self.assertTrue(outcome.content.startswith("Exit code 137: the command was killed\n"))
        self.assertIn("Job 1 has ended.", outcome.content)
        self.assertTrue(outcome.is_error)
        metadata = json.loads(outcome.metadata)
        self.assertEqual((metadata["done"], metadata["exit_code"]), (True, 137))
        self.assertTrue(metadata["output"].endswith("\nExit code 137: the command was killed"))
        self.assert_failed(await self.use("job_output", shell_id="1"), "no job 1")
        self.assert_failed(await self.use("job_kill", shell_id="1"), "no job 1")

    async def test_a_command_that_dies_within_a_second_does_not_become_a_job(self) -> None:
        outcome = await self.bash("echo port in use; exit 7", run_in_background=True)
        self.assertTrue(outcome.content.startswith("Exit code 7\nport in use\n"), outcome.content)
        metadata = json.loads(outcome.metadata)
        self.assertEqual((outcome.is_error, metadata["background"]), (True, False))
        self.assertEqual((self.turn.jobs.live, self.clock.pending), (0, 0))
        outcome = await self.bash("echo done already", run_in_background=True)
        self.assertTrue(outcome.content.startswith("done already\n"), outcome.content)

    async def test_waiting_for_a_job_ends_with_the_job_or_after_a_minute(self) -> None:
        os.mkfifo(self.root / "go")
        await self.job("echo begun; read line < go; echo fine")
        for wait in (True, "true", 10**6):
            task = asyncio.create_task(self.use("job_output", shell_id="1", wait=wait))
            await self.clock.settle()
            await self.clock.advance(59)
            self.assertFalse(task.done())
            await self.clock.advance(1)
            self.assertEqual((await task).content, "begun\nJob 1 is still running.")
        task = asyncio.create_task(self.use("job_output", shell_id="1", wait=10**6))
        await self.clock.settle()
        (self.root / "go").write_text("now\n")
        self.assertEqual((await task).content, "begun\nfine\nJob 1 has ended.")
        self.assert_failed(await self.use("job_output", shell_id="1", wait=True), "no job 1")

    async def test_a_command_that_cannot_become_a_job_is_killed(self) -> None:
        with mock.patch.object(self.turn, "keep", side_effect=Conflict("too many jobs")):
            outcome = await self.job()
        self.assert_failed(outcome, "too many jobs")
        self.assertTrue((await self.turn.commands[0].wait()).canceled)

    async def test_survivors_are_reported(self) -> None:
        left = mock.Mock(survivors=2)
        await self.job()
        with mock.patch.object(self.turn, "kill_job", return_value=left):
            self.assert_failed(await self.use("job_kill", shell_id="1"), "2 processes")

    async def test_wrong_arguments_are_explained(self) -> None:
        ids: list[Any] = [None, [], {}, True, 1.5, "x", "\ud800"]
        for wrong in ids:
            for name in ("job_output", "job_kill"):
                self.assert_failed(await self.use(name, shell_id=wrong))
        for wrong in ([], "soon", {}):
            self.assert_failed(await self.use("job_output", shell_id="1", wait=wrong), "wait")
