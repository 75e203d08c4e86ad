"""`run --detach`, `attach` and `runs`: a run belongs to its workspace, not to a terminal."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING
from unittest import mock

from crushlite.claims import Graces
from crushlite.settings import Settings
from tests.support.cli import PATIENCE, Call, Child, CommandCase, ScriptedCase

if TYPE_CHECKING:
    from crushlite.agent.base import Turn
    from crushlite.testing.scripted import ScriptedRun


async def work(turn: Turn) -> None:
    await turn.say("I look. ")
    call = await turn.tool_call("bash", '{"command": "ls"}')
    await turn.tool_result(call, "a file")
    await turn.say("Done")


class DetachCase(ScriptedCase):
    """Without a detach grace: only a run keeps the workspace open when its clients have left."""

    settings: Settings | None = Settings(graces=Graces(detach=0.0))

    async def detached(self, *arguments: str) -> tuple[str, ScriptedRun]:
        before = len(self.daemon.agent.runs)
        child = await self.run_it("--detach", *arguments)
        scripted = await self.daemon.entered(before + 1)
        code, printed = await child.end()
        self.assertEqual((code, len(printed.splitlines())), (0, 1), child.errors)
        self.assertIn(f"crushlite attach {printed.strip()}", child.errors)
        return printed.strip(), scripted

    async def attach(self, *arguments: str) -> Call:
        return await self.start("attach", self.host, *arguments)


class DetachTests(DetachCase):
    async def test_a_run_goes_on_when_its_terminal_is_closed_and_is_told_whole_in_another(
        self,
    ) -> None:
        terminal = await self.terminal("run", self.host, "--detach", "-q", "hello")
        self.assertEqual(await terminal.ends(), 0)
        await terminal.hears("\n")
        run_id = terminal.heard.strip()
        terminal.hang_up()
        scripted = await self.daemon.entered(1)
        await scripted.do(work)
        other = self.root / "elsewhere"
        other.mkdir()
        self.project = other
        child = await self.attach(run_id)
        await child.prints("I look. \nDone")
        await scripted.say(", and more.")
        await child.prints(", and more.")
        scripted.release()
        await self.ended(child, 0, "I look. \nDone, and more.\n")

    async def test_a_run_that_is_over_is_told_whole_by_its_beginning(self) -> None:
        run_id, scripted = await self.detached("hello")
        await scripted.do(work)
        scripted.release()
        first = await self.attach(run_id)
        await self.ended(first, 0, "I look. \nDone\n")
        again = await self.attach(run_id[:8])
        await self.ended(again, 0, "I look. \nDone\n")

    async def test_a_run_that_ends_while_it_is_looked_for_is_told_whole(self) -> None:
        """Its workspace closes with it, perhaps between the search for it and the first event."""
        for _ in range(10):
            run_id, scripted = await self.detached("hello")
            await scripted.do(work)
            scripted.release()
            await self.ended(await self.attach(run_id), 0, "I look. \nDone\n")

    async def test_a_failure_and_a_cancel_are_told_by_the_exit_code(self) -> None:
        run_id, scripted = await self.detached("hello")
        await scripted.say("one")
        scripted.fail("out of luck")
        child = await self.attach(run_id)
        await self.ended(child, 1, "one\n")
        self.assertIn("out of luck", child.errors)
        run_id, scripted = await self.detached("hello")
        child = await self.attach(run_id)
        anna = await self.daemon.join()
        await anna.cancel(scripted.turn.session_id)
        await self.ended(child, 130, "")

    async def test_ctrl_c_leaves_the_run_alone(self) -> None:
        run_id, scripted = await self.detached("hello")
        child = await self.spawn("attach", self.host, run_id)
        await scripted.say("one")
        await child.prints("one")
        child.process.send_signal(signal.SIGINT)
        await self.ended(child, 130, "one\n")
        self.assertIn("the run goes on", child.errors)
        self.assertFalse(scripted.canceled)
        scripted.release()
        again = await self.attach(run_id)
        await self.ended(again, 0, "one\n")

    async def test_a_reader_that_goes_away_leaves_the_run_alone_too(self) -> None:
        run_id, scripted = await self.detached("hello")
        reader, writer = os.pipe()
        os.close(reader)
        command = (sys.executable, "-m", "crushlite", "attach", self.host, "-q", run_id)
        process = await asyncio.create_subprocess_exec(
            *command, cwd=self.project, env=self.env, stdout=writer, stderr=subprocess.PIPE
        )
        os.close(writer)
        child = Child(process)
        self.addAsyncCleanup(child.close)
        await scripted.say("for nobody")
        await self.ended(child, 141, "")
        self.assertEqual((scripted.canceled, child.errors), (False, ""))
        scripted.release()

    async def test_the_json_lines_hold_the_whole_run(self) -> None:
        child = await self.run_it("--detach", "--json", "hello")
        scripted = await self.daemon.entered(1)
        code, printed = await child.end()
        accepted = json.loads(printed)
        self.assertEqual((code, accepted["session_id"]), (0, scripted.turn.session_id))
        await scripted.do(work)
        scripted.release()
        child = await self.attach("--json", accepted["run_id"])
        code, printed = await child.end()
        events = [json.loads(line) for line in printed.splitlines()]
        self.assertEqual((code, events[-1]["type"]), (0, "run_complete"))
        # The run may still be ending when it is attached to: then its session is among the events.
        messages = [e["payload"]["payload"] for e in events[:-1] if e["type"] == "message"]
        roles = {message["id"]: message["role"] for message in messages}
        self.assertEqual(list(roles.values()), ["user", "assistant", "tool", "assistant"])

    async def test_ctrl_c_before_the_promise_is_a_clean_end(self) -> None:
        """While the daemon does not answer the request for a session."""
        asked, leave = asyncio.Event(), asyncio.Event()

        async def hang(*asked_for: str) -> None:
            asked.set()
            await leave.wait()

        workspace = (await self.daemon.join()).workspace["id"]
        hosted = self.daemon.backend.everything()[0]
        self.assertEqual(hosted.id, workspace)
        self.enterContext(mock.patch.object(hosted, "create_session", hang))
        child = await self.spawn("run", self.host, "--detach", "hello")
        async with asyncio.timeout(PATIENCE):
            await asked.wait()
        child.process.send_signal(signal.SIGINT)
        await self.ended(child, 130, "")
        self.assertNotIn("Traceback", child.errors)
        leave.set()

    async def test_what_only_makes_sense_for_somebody_who_stays_is_refused(self) -> None:
        child = await self.run_it("--detach", "--deny-after", "1", "hello")
        await self.ended(child, 2, "")
        self.assertIn("not with --detach", child.errors)

    async def test_limits_hold_for_a_run_that_was_left_to_itself(self) -> None:
        child = await self.run_it("--detach", "-q", "--timeout", "0.05", "hello")
        code, run_id = await child.end()
        self.assertEqual(code, 0, child.errors)
        child = await self.attach(run_id.strip())
        await self.ended(child, 8, "")
        self.assertIn("stopped at max_seconds = 0.05", child.errors)

    async def test_a_run_that_is_not_there_is_an_error_that_says_where_to_look(self) -> None:
        await self.daemon.join()
        child = await self.attach("nobody")
        await self.ended(child, 1, "")
        self.assertIn("no run nobody", child.errors)
        self.assertIn("`crushlite runs`", child.errors)

    async def test_a_beginning_that_many_have_is_refused(self) -> None:
        anna = await self.daemon.join()
        session = await anna.session()
        for name in ("same-1", "same-2"):
            await anna.prompt(session, "hello", run_id=name)
        child = await self.attach("same-")
        await self.ended(child, 1, "")
        self.assertIn("2 runs begin with same-", child.errors)


class RunsTests(ScriptedCase):
    async def runs(self, *arguments: str) -> str:
        child = await self.start("runs", self.host, *arguments)
        code, printed = await child.end()
        self.assertEqual(code, 0, child.errors)
        return printed

    async def test_runs_are_listed_with_their_state_and_answer(self) -> None:
        anna = await self.daemon.join()
        session = await anna.session()
        self.assertIn("no runs yet", await self.runs())
        await anna.prompt(session, "first", run_id="one")
        scripted = await self.daemon.entered(1)
        await scripted.say("the \x1b[2J answer\nof two lines")
        scripted.release()
        await anna.events.wait_for("run_complete")
        await anna.prompt(session, "second", run_id="two")
        await self.daemon.entered(2)
        lines = (await self.runs()).splitlines()
        self.assertEqual(lines[0].split(), ["RUN", "STATE", "ASKED", "TOOK", "PROMPT", "ANSWER"])
        self.assertRegex(
            lines[1], r"^one  completed  .* s  first   the \?\[2J answer of two lines$"
        )
        self.assertRegex(lines[2], "^two  active .* second$")
        self.assertNotIn("\x1b", "".join(lines))
        self.assertEqual(len((await self.runs("--last", "1")).splitlines()), 2)
        self.assertNotIn("one", await self.runs("--state", "active"))

    async def test_json_lists_the_wire_objects_with_their_directory(self) -> None:
        anna = await self.daemon.join()
        await anna.prompt(await anna.session(), "first", run_id="one")
        scripted = await self.daemon.entered(1)
        (listed,) = json.loads(await self.runs("--json"))
        self.assertEqual((listed["run_id"], listed["state"]), ("one", "active"))
        self.assertEqual(listed["path"], str(self.project))
        scripted.release()

    async def test_a_session_is_named_by_the_beginning_of_its_id_and_an_unknown_one_refused(
        self,
    ) -> None:
        anna = await self.daemon.join()
        session, other = await anna.session(), await anna.session()
        await anna.prompt(session, "first", run_id="one")
        await anna.prompt(other, "second", run_id="two")
        for everywhere in ((), ("--all",)):
            listed = json.loads(await self.runs("--json", "--session", session[:13], *everywhere))
            self.assertEqual([entry["run_id"] for entry in listed], ["one"])
            child = await self.start("runs", self.host, "--session", "nope", *everywhere)
            self.assertEqual(await child.end(), (1, ""))
            self.assertIn("no session nope in ", child.errors)

    async def test_a_negative_number_of_runs_is_refused(self) -> None:
        child = await self.start("runs", self.host, "--last", "-1")
        self.assertEqual(await child.end(), (2, ""))
        self.assertIn("--last -1: not less than 0", child.errors)

    async def test_all_lists_every_open_workspace_and_opens_none(self) -> None:
        anna = await self.daemon.join()
        other = self.root / "other"
        other.mkdir()
        bert = await self.daemon.join(other)
        for who, name in ((anna, "one"), (bert, "two")):
            await who.prompt(await who.session(), "hello", run_id=name)
        self.project = self.root
        _, printed, _ = await self.run_process("runs", self.host, "--all", "--json")
        listed = json.loads(printed)
        self.assertEqual([entry["run_id"] for entry in listed], ["one", "two"])
        self.assertIn("DIRECTORY", await self.runs("--all"))
        self.assertEqual(len(self.daemon.backend.everything()), 2)


class StartedTests(CommandCase):
    """With a daemon that the command itself starts."""

    async def test_a_detached_run_outlives_its_command_in_a_daemon_that_was_started_for_it(
        self,
    ) -> None:
        self.addCleanup(self.end_daemon, self.socket)
        child = await self.spawn("run", "-q", "--detach", "/slow 1")
        code, printed = await child.end()
        self.assertEqual(code, 0, child.errors)
        other = await self.spawn("attach", "-q", printed.strip())
        async with asyncio.timeout(PATIENCE):
            code, whole = await other.end()
        self.assertEqual((code, whole[:2]), (0, "1 "), other.errors)
        self.assertEqual(other.errors, "")
