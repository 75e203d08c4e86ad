"""Commands of a workspace: the jobs of its sessions, and a daemon that runs no commands at all."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

from crushlite.errors import Conflict, NotFound
from crushlite.shell.background import Background
from crushlite.shell.wing import ShellWing
from crushlite.testing import LocalDaemon
from crushlite.testing.fake_clock import FakeClock
from crushlite.wing import Wing, WorkspacePart
from tests.support.basics import LIMIT, BoundedTestCase
from tests.support.commands import LONG, Heard, ProcessTestCase, dead, zombies
from tools.escapees import open_all

if TYPE_CHECKING:
    from crushlite.agent.base import Turn
    from crushlite.wing import OpenWorkspace


class AbsentTests(BoundedTestCase):
    """Without the wing."""

    async def test_an_agent_is_told_that_no_commands_are_run_and_goes_on(self) -> None:
        async def agent(turn: Turn) -> None:
            for attempt in (turn.command("true"), turn.kill_job("1"), turn.wait_for_job("1", 1.0)):
                with self.assertRaisesRegex(NotFound, "runs no commands"):
                    await attempt
            await turn.watch_files()
            await turn.say("done without")

        async with LocalDaemon(agent, wings=[]) as daemon:
            anna = await daemon.join()
            await anna.prompt(await anna.session())
            done = await anna.events.wait_for("run_complete")
            self.assertEqual((done["text"], done["error"]), ("done without", None))

    async def test_the_route_answers_that_there_is_none_and_the_rest_works(self) -> None:
        async with LocalDaemon(wings=[]) as daemon:
            anna = await daemon.join()
            session = await anna.session()
            body = {"command": "echo x"}
            answer = await anna.call("POST", f"/agent/sessions/{session}/shell", body)
            self.assertEqual(answer.status, 404)
            self.assertIn("made without", answer.json["message"])
            await anna.prompt(session)
            await daemon.entered(1)
            await anna.cancel(session)
            await anna.events.wait_for("run_complete", cancelled=True)
            answer = await anna.call("DELETE", f"/sessions/{session}")
            self.assertEqual(answer.status, 200)


class FailingPart(WorkspacePart):
    def session_canceled(self, session_id: str) -> None:
        raise ValueError("mine")


class FailingWing(Wing):
    async def open(self, workspace: OpenWorkspace) -> WorkspacePart:
        return FailingPart()


class CancelTests(BoundedTestCase):
    async def test_a_part_that_fails_at_a_cancel_shields_no_command_of_another(self) -> None:
        async with LocalDaemon(wings=[FailingWing(), ShellWing()]) as daemon:
            anna = await daemon.join()
            session = await anna.session()
            path = f"/agent/sessions/{session}/shell"
            began = Path(str(anna.workspace["path"])) / "began"
            os.mkfifo(began)
            command = {"command": f"echo > {began}; {LONG}"}
            shell = asyncio.create_task(anna.call("POST", path, command))
            await asyncio.to_thread(began.read_text)  # returns when the command has written
            with self.assertLogs("crushlite.hosting", "ERROR"):
                await anna.cancel(session)
            self.assertNotEqual((await asyncio.wait_for(shell, LIMIT)).json["exit_code"], 0)


class JobTests(ProcessTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.fake = FakeClock()
        self.jobs = Background(self.fake, live=3, kept=2)

    async def asyncTearDown(self) -> None:
        await self.jobs.close()
        self.assertEqual((zombies(), self.fake.pending), ([], 0))

    async def job(self, text: str, session: str = "s", heard: Heard | None = None) -> str:
        command = await self.start(text, on_output=heard)
        try:
            return self.jobs.adopt(session, command)
        except Conflict:
            command.kill()
            await command.wait()
            raise

    async def finished(self, text: str, session: str = "s") -> str:
        job_id = await self.job(text, session)
        await self.jobs._jobs[job_id].command.done
        await asyncio.sleep(0)
        return job_id

    async def test_output_can_be_read_while_it_runs_and_once_after(self) -> None:
        heard = Heard()
        job_id = await self.job(f"echo one; exec {LONG}", heard=heard)
        await heard.until(b"one")
        for _ in range(2):
            self.assertEqual(self.jobs.output(job_id, "s"), ("one\n", False, None))
        ended = await self.jobs.kill(job_id, "s")
        assert ended is not None
        self.assertTrue(ended.canceled)
        self.assertEqual(self.jobs.output(job_id, "s"), ("one\n", True, ended))
        with self.assertRaisesRegex(NotFound, f"no job {job_id}"):
            self.jobs.output(job_id, "s")

    async def test_a_job_that_ends_by_itself_has_its_exit_code(self) -> None:
        job_id = await self.finished("echo x; exit 9")
        text, done, ended = self.jobs.output(job_id, "s")
        assert ended is not None
        self.assertEqual((text, done, ended.code, ended.canceled), ("x\n", True, 9, False))

    async def test_killing_a_job_that_has_ended_changes_nothing(self) -> None:
        job_id = await self.finished("exit 9")
        ended = await self.jobs.kill(job_id, "s")
        assert ended is not None
        self.assertEqual((ended.code, ended.canceled), (9, False))

    async def test_unknown_ids_are_not_found(self) -> None:
        with self.assertRaises(NotFound):
            self.jobs.output("7", "s")
        with self.assertRaises(NotFound):
            await self.jobs.kill("7", "s")

    async def test_the_number_of_jobs_is_limited(self) -> None:
        self.assertEqual([await self.job(LONG, session) for session in "abc"], ["1", "2", "3"])
        with self.assertRaisesRegex(Conflict, "3 background jobs are running"):
            await self.job(LONG, "d")
        self.assertEqual(self.jobs.live, 3)
        await self.jobs.kill("1", "a")
        self.assertEqual(await self.job("true"), "4")

    async def test_finished_jobs_are_kept_for_an_hour(self) -> None:
        job_id = await self.finished("true")
        await self.fake.advance(3599.0)
        self.assertIn(job_id, self.jobs._jobs)
        await self.fake.advance(1.0)
        with self.assertRaises(NotFound):
            self.jobs.output(job_id, "s")

    async def test_of_finished_jobs_only_the_last_are_kept(self) -> None:
        ids = [await self.finished(f"echo {number}") for number in range(4)]
        with self.assertRaises(NotFound):
            self.jobs.output(ids[1], "s")
        self.assertEqual([self.jobs.output(key, "s").text for key in ids[2:]], ["2\n", "3\n"])

    async def test_a_session_s_jobs_end_with_it_and_no_others(self) -> None:
        heard = Heard()
        job_id = await self.job(f"echo $$; exec {LONG}", "gone", heard)
        done = await self.finished("true", "gone")
        other = await self.job(LONG, "stays")
        pidfds = open_all(await heard.pids(1))
        await self.jobs.kill_session("gone")
        self.assertTrue(dead(pidfds))
        for key in (job_id, done):
            with self.assertRaises(NotFound):
                self.jobs.output(key, "gone")
        with self.assertRaises(NotFound):
            self.jobs.output(other, "gone")  # a session cannot read the jobs of another
        self.assertFalse(self.jobs.output(other, "stays").done)

    async def test_a_running_command_can_become_a_job(self) -> None:
        command = await self.start(LONG)
        job_id = self.jobs.adopt("s", command)
        self.assertEqual(self.jobs.output(job_id, "s"), ("", False, None))
        await self.jobs.kill_session("s")
        self.assertTrue((await command.wait()).canceled)

    async def test_after_close_nothing_runs_and_nothing_starts(self) -> None:
        heard = Heard()
        await self.job(f"echo $$; exec {LONG}", heard=heard)
        pidfds = open_all(await heard.pids(1))
        await self.jobs.close()
        self.assertTrue(dead(pidfds))
        with self.assertRaisesRegex(Conflict, "closing"):
            await self.job("true")
        await self.jobs.close()
