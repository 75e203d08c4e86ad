"""`crushlite run` against the scripted agent, and against daemons that go away."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any
from unittest import mock

from crushlite.claims import Graces
from crushlite.cli.attachments import PROMPT_BYTES
from crushlite.protocol.messages import Prompt
from crushlite.protocol.questions import Question
from crushlite.settings import Settings
from tests.support.cli import PATIENCE, Call, Child, CommandCase, Relay, ScriptedCase
from tests.support.routes import TABLE
from tests.support.scenarios import scenario

if TYPE_CHECKING:
    from pathlib import Path

    from crushlite.agent.base import Turn
    from crushlite.testing import Participant


MIB = 1 << 20


class RunTests(ScriptedCase):
    async def test_an_answer_is_printed_as_it_grows(self) -> None:
        child, scripted = await self.begun_process("what", "is", "it?")
        self.assertEqual(scripted.prompt, "what is it?")
        self.assertEqual(scripted.turn.env["XDG_RUNTIME_DIR"], str(self.root))
        self.assertFalse(scripted.turn.interactive)
        await scripted.say("two")
        await child.prints("one two")
        scripted.release()
        await self.ended(child, 0, "one two\n")
        moving = "into a pipe nothing is drawn"
        self.assertRegex(child.errors, r"\Acrushlite: session \S+\n\Z", moving)

    async def test_a_model_call_that_is_tried_again_is_told_on_standard_error(self) -> None:
        child, scripted = await self.begun("hello")

        async def retry(turn: Turn) -> None:
            turn.retrying("retrying in 4 s, attempt 2 of 4, because the provider is busy")

        await scripted.do(retry)
        scripted.release()
        await self.ended(child, 0, "one \n")
        told = "crushlite: retrying in 4 s, attempt 2 of 4, because the provider is busy\n"
        self.assertIn(told, child.errors)

    async def test_the_workspace_is_given_back_at_the_end(self) -> None:
        anna = await self.daemon.join()
        child, scripted = await self.begun("hello")
        claims = self.daemon.backend.claims
        self.assertEqual(len(claims._live(anna.workspace["id"]).claims), 2)
        scripted.release()
        await self.ended(child, 0, "one \n")
        self.assertEqual(list(claims._live(anna.workspace["id"]).claims), [anna.id])

    async def test_standard_input_comes_before_the_prompt(self) -> None:
        piped = "line 1\n  l\u00efne 2\n\n".encode() + b"\xff"
        child = await self.run_it("-q", "explain this", stdin=piped)
        scripted = await self.daemon.entered(1)
        self.assertEqual(scripted.prompt, "line 1\n  l\u00efne 2\n\n\ufffd\n\nexplain this")
        scripted.release()
        await self.ended(child, 0, "")

    async def test_standard_input_alone_is_a_prompt(self) -> None:
        (self.project / "prompt.txt").write_text("from a file\n")
        with (self.project / "prompt.txt").open("rb") as file:
            child = await self.run_it(stdin=file.fileno())
        scripted = await self.daemon.entered(1)
        self.assertEqual(scripted.prompt, "from a file")
        scripted.release()
        await self.ended(child, 0, "")

    @scenario(300)
    async def test_a_run_that_fails_is_exit_code_1(self) -> None:
        child, scripted = await self.begun_process("-q", "hello")
        scripted.fail("out of luck")
        await self.ended(child, 1, "one \n")
        self.assertEqual(child.errors, "crushlite: ScriptedFailure: out of luck\n")

    async def test_a_run_that_somebody_else_cancels_is_exit_code_130(self) -> None:
        anna = await self.daemon.join()
        child, scripted = await self.begun("hello")
        await anna.cancel(scripted.turn.session_id)
        await self.ended(child, 130, "one \n")

    async def test_steps_are_lines_and_tool_use_does_not_end_it(self) -> None:
        child, scripted = await self.begun("hello")

        async def step(turn: Turn) -> None:
            call = await turn.tool_call("bash", '{"command": "ls"}')
            await turn.tool_result(call, "a file")
            await turn.say("done")

        await scripted.do(step)
        await child.prints("one \ndone")
        scripted.release()
        await self.ended(child, 0, "one \ndone\n")
        self.assertIn("✓ bash ls → a file\n", child.errors)
        self.assertNotIn("bash ls (", child.errors, "progress is for terminals")

    async def test_other_sessions_are_not_printed(self) -> None:
        anna = await self.daemon.join()
        child, scripted = await self.begun("hello")
        await anna.prompt(await anna.session(), "hello")
        other = await self.daemon.entered(2)
        await other.say("not yours")
        other.fail("not yours either")
        await anna.events.wait_for("run_complete")
        await scripted.say("two")
        scripted.release()
        await self.ended(child, 0, "one two\n")
        self.assertNotIn("not yours", child.errors)

    async def test_the_json_lines_parse_and_end_with_the_end(self) -> None:
        child = await self.run_it("--json", "hello")
        scripted = await self.daemon.entered(1)
        await scripted.say("caf\u00e9")
        scripted.release()
        code, printed = await child.end()
        events = [json.loads(line) for line in printed.splitlines()]
        self.assertEqual((code, events[0]["type"]), (0, "accepted"))
        self.assertEqual(events[0]["payload"]["session_id"], scripted.turn.session_id)
        self.assertEqual(events[-1]["type"], "run_complete")
        self.assertEqual(events[-1]["payload"]["payload"]["text"], "caf\u00e9")
        self.assertIn("message", [event["type"] for event in events])

    async def test_quiet_says_nothing(self) -> None:
        child = await self.run_it("hello", "--quiet")
        (await self.daemon.entered(1)).release()
        await self.ended(child, 0, "")
        self.assertEqual(child.errors, "")

    async def test_another_directory_can_be_named(self) -> None:
        (self.project / "sub").mkdir()
        child, scripted = await self.begun("--cwd", "sub", "hello")
        self.assertEqual(scripted.turn.path, (self.project / "sub").resolve())
        scripted.release()
        await self.ended(child, 0, "one \n")
        child = await self.run_it("--cwd", "nowhere", "hello")
        await self.ended(child, 2, "")
        self.assertIn("crushlite: nowhere: there is no such directory\n", child.errors)
        (self.project / "file").touch()
        child = await self.run_it("--cwd", "file", "hello")
        await self.ended(child, 2, "")
        self.assertIn("crushlite: file: is not a directory\n", child.errors)

    async def test_a_directory_whose_name_is_no_text_is_named_in_the_error(self) -> None:
        os.mkdir(os.fsencode(self.project) + b"/na\xffme")
        child = await self.run_it("--cwd", os.fsdecode(b"na\xffme"), "hello")
        await self.ended(child, 2, "")
        self.assertIn(f"{self.project}/na\\xffme is not UTF-8", child.errors)

    async def test_a_file_whose_name_is_no_text_is_not_attached_and_no_session_made(self) -> None:
        (self.project / os.fsdecode(b"fi\xffle")).write_text("x")
        child = await self.run_it("--attach", os.fsdecode(b"fi\xffle"), "hello")
        await self.ended(child, 2, "")
        self.assertIn(f"{self.project}/fi\\xffle is not UTF-8", child.errors)
        self.assertNotIn("session", child.errors)

    async def test_a_run_may_say_how_much_the_model_reasons(self) -> None:
        child, scripted = await self.begun("hello", "--effort", "high")
        self.assertEqual(scripted.turn.reasoning_effort, "high")
        scripted.release()
        await self.ended(child, 0, "one \n")

    async def test_yolo_grants_what_this_run_asks_for_and_nothing_to_others(self) -> None:
        child, scripted = await self.begun("hello", "--yolo")
        allowed = await scripted.do(lambda turn: turn.permission("bash", "execute"))
        self.assertTrue(allowed)
        anna = await self.daemon.join()
        self.assertEqual((await anna.call("GET", "/permissions/skip")).json, {"skip": False})
        scripted.release()
        await self.ended(child, 0, "one \n")
        self.assertIn("--yolo: every permission of this run is granted", child.errors)

    async def test_what_yolo_does_is_said_even_where_only_errors_are_wanted(self) -> None:
        for number, arguments in enumerate((("--detach",), ()), 1):
            child = await self.run_it("-q", "--yolo", *arguments, "hello")
            await child.notes("--yolo: every permission of this run is granted, nobody is asked\n")
            (await self.daemon.entered(number)).release()
            self.assertEqual((await child.end())[0], 0)
            self.assertEqual(child.errors.count("\n"), 1, child.errors)

    async def test_a_daemon_of_another_version_is_used_with_a_warning(self) -> None:
        with mock.patch("crushlite.api.workspaces.WIRE_VERSION", "crushlite-9.9"):
            child, scripted = await self.begun("hello")
        scripted.release()
        await self.ended(child, 0, "one \n")
        self.assertIn("the daemon is crushlite-9.9, this is crushlite-", child.errors)


class AttachmentTests(ScriptedCase):
    async def test_files_are_sent_along(self) -> None:
        names = ("note.ts", "shot.png", "data.bin", "plain.pdf")
        text, picture, odd, document = (self.project / name for name in names)
        text.write_text("caf\u00e9")
        picture.write_bytes(b"\x89PNG\0\xff")
        odd.write_bytes(b"\0\xff")
        document.write_bytes(b"%PDF-1.4\n")
        files = (text, picture, odd, document)
        arguments = [part for file in files for part in ("--attach", str(file))]
        child = await self.run_it("look", *arguments)
        scripted = await self.daemon.entered(1)
        sent = [(a.file_name, a.mime_type, a.decoded()) for a in scripted.turn.attachments]
        self.assertEqual(
            sent,
            [
                ("note.ts", "text/plain", "caf\u00e9".encode()),
                ("shot.png", "image/png", picture.read_bytes()),
                ("data.bin", "application/octet-stream", b"\0\xff"),
                ("plain.pdf", "application/pdf", b"%PDF-1.4\n"),
            ],
        )
        scripted.release()
        await self.ended(child, 0, "")

    async def test_a_file_that_cannot_be_read_is_a_usage_error(self) -> None:
        child = await self.run_it("look", "--attach", "nowhere")
        await self.ended(child, 2, "")
        self.assertIn("cannot attach nowhere: No such file", child.errors)

    async def test_what_is_too_big_or_no_file_is_refused_before_there_is_a_session(self) -> None:
        (route,) = [each for each in TABLE if each.takes is Prompt]
        self.assertEqual(PROMPT_BYTES, route.body_limit, "the daemon would take more, or less")
        anna = await self.daemon.join()
        big = self.project / "big"
        for size, words in ((32 * MIB + 1, "cannot attach big: it has more"), (25 * MIB, "34 MiB")):
            with big.open("wb") as file:
                file.truncate(size)
            child = await self.run_it("look", "--attach", "big")
            await self.ended(child, 2, "")
            self.assertIn(words, child.errors)
        for name, words in (("/dev/zero", "it has more"), (".", "Is a directory")):
            child = await self.run_it("look", "--attach", name)
            await self.ended(child, 2, "")
            self.assertIn(words, child.errors)
        self.assertEqual((await anna.call("GET", "/sessions")).json, [])

    async def test_a_prompt_that_is_too_big_is_refused_before_there_is_a_session(self) -> None:
        anna = await self.daemon.join()
        (self.project / "prompt.txt").write_bytes(b"x" * PROMPT_BYTES)
        with (self.project / "prompt.txt").open("rb") as file:
            child = await self.run_it(stdin=file.fileno())
        await self.ended(child, 2, "")
        self.assertIn("the prompt would be 33 MiB on its way", child.errors)
        self.assertEqual((await anna.call("GET", "/sessions")).json, [])


class SessionTests(ScriptedCase):
    async def test_continue_goes_on_in_the_session_used_last(self) -> None:
        anna = await self.daemon.join()
        child = await self.run_it("--continue", "hello")
        await self.ended(child, 1, "")
        self.assertIn("there is no session", child.errors)
        session = await anna.session("the last")
        child, scripted = await self.begun("--continue", "hello")
        self.assertEqual(scripted.turn.session_id, session)
        scripted.release()
        await self.ended(child, 0, "one \n")

    async def test_an_unknown_session_is_an_error(self) -> None:
        child = await self.run_it("--session", "nope", "hello")
        await self.ended(child, 1, "")
        self.assertIn("nope", child.errors)

    @scenario(307)
    async def test_a_run_on_a_busy_session_prints_its_own_answer_only(self) -> None:
        anna = await self.daemon.join()
        session = await anna.session()
        await anna.prompt(session, "same words")
        other = await self.daemon.entered(1)
        await other.say("for anna")
        child = await self.run_it("--session", session, "same words")
        await child.notes("waiting for 1 earlier prompt(s)")
        await other.say(", all of it")
        other.release()
        ours = await self.daemon.entered(2)
        await ours.say("for us")
        await child.prints("for us")
        await anna.prompt(session, "same words", run_id="later")
        ours.release()
        await self.ended(child, 0, "for us\n")
        (await self.daemon.entered(3)).release()

    async def test_two_on_one_busy_session_each_print_only_their_own_answer(self) -> None:
        anna = await self.daemon.join()
        session = await anna.session()
        await anna.prompt(session, "same words")
        await (first := await self.daemon.entered(1)).say("for anna")
        one = await self.run_it("--session", session, "same words")
        await one.notes("waiting for 1 earlier prompt(s)")
        two = await self.run_it("--session", session, "same words")
        await two.notes("waiting for 2 earlier prompt(s)")
        first.release()
        for number in (2, 3):
            scripted = await self.daemon.entered(number)
            await scripted.say(f"answer {number}")
            scripted.release()
        await self.ended(one, 0, "answer 2\n")
        await self.ended(two, 0, "answer 3\n")

    async def test_ctrl_c_takes_back_a_waiting_prompt_and_leaves_the_others_alone(self) -> None:
        anna = await self.daemon.join()
        session = await anna.session()
        await anna.prompt(session, "first")
        other = await self.daemon.entered(1)
        child = await self.spawn("run", self.host, "--session", session, "second")
        await child.notes("waiting for 1 earlier prompt(s)")
        third = await self.run_it("--session", session, "third")
        await third.notes("waiting for 2 earlier prompt(s)")
        child.process.send_signal(signal.SIGINT)
        await self.ended(child, 130, "")
        self.assertTrue((await anna.events.wait_for("run_complete"))["cancelled"])
        self.assertFalse(other.canceled)
        other.release()
        self.assertFalse((await anna.events.wait_for("run_complete"))["cancelled"])
        scripted = await self.daemon.entered(2)
        self.assertEqual(scripted.prompt, "third")
        await scripted.say("for the third")
        scripted.release()
        await self.ended(third, 0, "for the third\n")


class WaitingTests(ScriptedCase):
    """Requests that are answered in another client."""

    async def asked(self, kind: str, **fields: Any) -> tuple[Participant, Any]:
        anna = await self.daemon.join()
        await anna.call("POST", f"/agent/init?client_id={anna.id}", {"interactive": True})
        return anna, await anna.events.wait_for(kind, **fields)

    async def test_a_permission_is_announced_and_granted_elsewhere(self) -> None:
        child, scripted = await self.begun("hello")

        async def step(turn: Turn) -> Any:
            call = await turn.tool_call("bash", '{"command": "touch y"}')
            params = {"command": "touch y"}
            return await turn.permission("bash", "execute", params=params, tool_call_id=call)

        verdict = scripted.begin(step)
        await child.notes(
            "crushlite: waiting for permission: bash touch y (crushlite grant answers)\n"
        )
        anna, request = await self.asked("permission_request")
        self.assertTrue(await anna.grant(request.payload))
        self.assertTrue(await verdict)
        await child.notes("permission granted: bash touch y")
        scripted.release()
        await self.ended(child, 0, "one \n")

    async def test_a_question_is_announced(self) -> None:
        child, scripted = await self.begun("hello")
        question = Question(type="yes_no", question="Go on?", description="really")
        answers = scripted.begin(lambda turn: turn.ask([question]))
        await child.notes("waiting for an answer: Go on? (answer in another client)")
        anna, batch = await self.asked("question_batch_request")
        await anna.call("POST", f"/questions/{batch['id']}", {"action": "cancel"})
        self.assertIsNone(await answers)
        await child.notes("no longer asked: Go on?")
        scripted.release()
        await self.ended(child, 0, "one \n")


class RefusalTests(ScriptedCase):
    """--deny-after, where the daemon itself would wait for ever."""

    settings: Settings | None = Settings(unattended=None)

    async def test_what_nobody_answers_is_denied_with_the_reason(self) -> None:
        child, scripted = await self.begun("--deny-after", "0", "hello")
        allowed = await scripted.do(lambda turn: turn.permission("bash", "execute"))
        self.assertFalse(allowed)
        await child.notes("permission denied: bash")
        scripted.release()
        await self.ended(child, 7, "one \n")

    async def test_a_request_behind_another_ones_is_found_too(self) -> None:
        anna = await self.daemon.join()
        await anna.prompt(await anna.session(), "first")
        other = await self.daemon.entered(1)
        held = other.begin(lambda turn: turn.permission("bash", "execute"))
        await anna.events.wait_for("permission_request")
        child = await self.run_it("--deny-after", "0", "hello")
        scripted = await self.daemon.entered(2)

        async def step(turn: Turn) -> Any:
            call = await turn.tool_call("edit", "{}")
            return await turn.permission("edit", "write", tool_call_id=call)

        self.assertFalse(await scripted.do(step))
        self.assertFalse(held.done(), "only ours is refused")
        scripted.release()
        await self.ended(child, 7, "")
        await anna.cancel(other.turn.session_id, wait=PATIENCE)

    async def test_questions_are_closed_without_an_answer(self) -> None:
        child, scripted = await self.begun("--deny-after", "0", "hello")
        question = Question(type="yes_no", question="Go on?", description="really")
        self.assertIsNone(await scripted.do(lambda turn: turn.ask([question])))
        scripted.release()
        await self.ended(child, 0, "one \n")

    async def test_an_answer_in_time_counts(self) -> None:
        anna = await self.daemon.join()
        child, scripted = await self.begun("--deny-after", "300", "hello")
        asked = scripted.begin(lambda turn: turn.permission("bash", "execute"))
        request = await anna.events.wait_for("permission_request")
        await anna.grant(request.payload)
        self.assertTrue(await asked)
        scripted.release()
        await self.ended(child, 0, "one \n")


class StopTests(ScriptedCase):
    async def test_ctrl_c_cancels_and_waits_for_the_end(self) -> None:
        child, scripted = await self.begun_process("hello")
        stopping, leave = asyncio.Event(), asyncio.Event()

        async def linger(turn: Turn) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                stopping.set()
                await leave.wait()

        scripted.begin(linger)
        child.process.send_signal(signal.SIGINT)
        async with asyncio.timeout(PATIENCE):
            await stopping.wait()
        self.assertIsNone(child.process.returncode)
        leave.set()
        await self.ended(child, 130, "one \n")
        self.assertTrue(scripted.canceled)

    async def test_ctrl_c_costs_nobody_else_who_waits_in_the_session(self) -> None:
        child, scripted = await self.begun_process("hello")
        other = await self.run_it("--session", scripted.turn.session_id, "behind it")
        await other.notes("waiting for 1 earlier prompt(s)")
        child.process.send_signal(signal.SIGINT)
        await self.ended(child, 130, "one \n")
        behind = await self.daemon.entered(2)
        await behind.say("still here")
        behind.release()
        await self.ended(other, 0, "still here\n")

    async def test_a_second_ctrl_c_leaves_at_once(self) -> None:
        child, scripted = await self.begun_process("hello")
        stopping, leave = asyncio.Event(), asyncio.Event()

        async def linger(turn: Turn) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                stopping.set()
                await leave.wait()

        scripted.begin(linger)
        child.process.send_signal(signal.SIGINT)
        async with asyncio.timeout(PATIENCE):
            await stopping.wait()
        child.process.send_signal(signal.SIGINT)
        await self.ended(child, 130, "one ")
        self.assertFalse(scripted.canceled)
        leave.set()

    async def test_a_time_limit_ends_the_run_and_is_exit_code_8(self) -> None:
        # Not shorter: on a busy machine the agent may not have begun by then.
        child = await self.run_it("-q", "--timeout", "0.5", "hello")
        await self.ended(child, 8, "")
        self.assertTrue(self.daemon.agent.runs[0].canceled)
        self.assertEqual(child.errors, "crushlite: stopped at max_seconds = 0.5 (--timeout)\n")

    async def test_a_command_whose_run_waits_in_line_ends_soon_after_its_time_limit(self) -> None:
        anna = await self.daemon.join()
        session = await anna.session()
        await anna.prompt(session, "first")
        await self.daemon.entered(1)
        with mock.patch("crushlite.cli.asked.LATE_SECONDS", 0.1):
            child = await self.run_it("-q", "--timeout", "0.1", "--session", session, "second")
            await self.ended(child, 8, "")
        self.assertEqual(child.errors, "crushlite: canceled: not done in 0.1 s\n")
        self.assertFalse(self.daemon.agent.runs[0].canceled)

    async def test_when_nobody_reads_the_answer_the_run_is_canceled(self) -> None:
        reader, writer = os.pipe()
        command = (sys.executable, "-m", "crushlite", "run", self.host, "-q", "hello")
        process = await asyncio.create_subprocess_exec(
            *command, cwd=self.project, env=self.env, stdout=writer, stderr=subprocess.PIPE
        )
        os.close(writer)
        os.close(reader)
        child = Child(process)
        self.addAsyncCleanup(child.close)
        scripted = await self.daemon.entered(1)
        await scripted.say("for nobody")
        await self.ended(child, 141, "")
        self.assertEqual((scripted.canceled, child.errors), (True, ""))


class LostStreamTests(ScriptedCase):
    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        path = self.root / "relay.sock"
        self.relay = await self.enterAsyncContext(Relay(path, self.daemon.socket))
        self.host = f"--host=unix://{path}"

    async def test_a_lost_stream_is_resumed_and_nothing_is_missing(self) -> None:
        child, scripted = await self.begun("hello")
        self.relay.cut()
        await scripted.say("two ")
        await child.notes("the daemon was lost")
        await scripted.do(lambda turn: turn.tool_call("bash", "{}", id="c"))
        await scripted.do(lambda turn: turn.tool_result("c", ""))
        await scripted.say("three")
        scripted.release()
        await self.ended(child, 0, "one two \nthree\n")


class TornDownTests(LostStreamTests):
    settings: Settings | None = Settings(graces=Graces(detach=0.0))

    async def test_a_lost_stream_is_resumed_and_nothing_is_missing(self) -> None:
        """Here the workspace is closed meanwhile, and what became of the run is read from the
        store."""
        child, scripted = await self.begun("hello")
        scripted.begin(lambda turn: turn.say("two"))
        scripted.begin(lambda turn: asyncio.Event().wait())
        await child.prints("one two")
        self.relay.cut()
        await self.ended(child, 130, "one two\n")
        self.assertTrue(scripted.canceled)


class KilledTests(CommandCase):
    async def begun(self, host: Path) -> Call:
        child = await self.start("run", f"--host=unix://{host}", "begun\n/slow 3600")
        await child.prints("You said: begun\n")
        return child

    async def test_a_daemon_that_is_killed_ends_the_command_with_a_clear_message(self) -> None:
        host = self.root / "d.sock"
        daemon = await self.serve(host)
        self.env["CRUSHLITE_READY_TIMEOUT"] = "0.5"
        child = await self.begun(host)
        daemon.process.kill()
        code, printed = await child.end()
        self.assertEqual((code, printed), (1, "You said: begun\n"))
        self.assertIn("the daemon is gone and has taken the run along", child.errors)
        self.assertIn("crushlite run --session ", child.errors)

    async def test_if_it_comes_back_it_tells_that_the_run_was_interrupted(self) -> None:
        host = self.root / "d.sock"
        daemon = await self.serve(host)
        child = await self.begun(host)
        daemon.process.kill()
        await child.notes("the daemon was lost")
        await daemon.end()
        await self.serve(host)
        self.assertEqual((await child.end())[0], 1)
        self.assertIn("crushlite: interrupted: the daemon stopped\n", child.errors)
