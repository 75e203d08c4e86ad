"""`crushlite run`: real processes against the scripted agent, the offline one, and no daemon.

What is ours and what is not is also tested without any of them, event by event.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from crushlite.claims import Graces
from crushlite.cli.follow import Follower, JSONOutput, TextOutput
from crushlite.protocol.events import Envelope
from crushlite.protocol.messages import FinishPart, Message, TextPart, ToolCallPart
from crushlite.protocol.permissions import PermissionRequest
from crushlite.protocol.runs import Accepted, AgentEvent, RunComplete
from crushlite.protocol.sessions import Session
from crushlite.settings import Settings
from crushlite.testing import LocalDaemon

if TYPE_CHECKING:
    from collections.abc import Iterator

    from crushlite.agent.base import Turn
    from crushlite.agent.scripted import ScriptedRun
    from crushlite.testing import Participant

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 60.0  # seconds: far above what anything takes, so that only a hang reaches it


def setUpModule() -> None:
    # A test run in the background of a script has SIGINT ignored, and children would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


# What is ours, event by event ---------------------------------------------------------------------


def said(message_id: str, text: str, finish: str = "", **fields: Any) -> Message:
    message = Message(message_id, "assistant", "S", [TextPart(text)], **fields)
    if finish:
        message.parts.append(FinishPart(finish))
    return message


def typed(message_id: str, text: str, session: str = "S") -> Message:
    return Message(message_id, "user", session, [TextPart(text)])


class Following(unittest.TestCase):
    """A follower of run R in session S, whose prompt is `hi`, and what it makes of events."""

    def setUp(self) -> None:
        self.output = TextOutput()
        self.notes: list[str] = []
        self.follower = self.follow(self.output)

    def follow(self, output: TextOutput | JSONOutput) -> Follower:
        return Follower(Accepted("R", "S", "accepted"), "hi", output, self.notes.append)

    def created(self, *payloads: object) -> None:
        for payload in payloads:
            self.assertIsNone(self.follower.take(Envelope("", "created", payload)))

    def updated(self, *payloads: object) -> None:
        for payload in payloads:
            self.assertIsNone(self.follower.take(Envelope("", "updated", payload)))

    def complete(self, text: str = "", message_id: str = "a", **fields: Any) -> str:
        """Our run_complete; returns all that was printed since the last look."""
        event = RunComplete("S", message_id, "R", text, **fields)
        self.assertIs(self.follower.take(Envelope("", "updated", event)), event)
        self.follower.finish(event)
        return self.output.take()

    def test_only_what_is_new_is_printed(self) -> None:
        self.created(typed("u", "hi"), said("a", ""))
        pieces = []
        for text in ("", "one", "one", "one two", "one two three"):
            self.updated(said("a", text))
            pieces.append(self.output.take())
        self.assertEqual(pieces, ["", "one", "", " two", " three"])
        self.assertEqual(self.complete("one two three"), "\n")

    def test_finishes_do_not_end_it(self) -> None:
        self.created(typed("u", "hi"), said("a", "I look.", "tool_use"))
        self.created(said("b", "Done.", "end_turn"))
        self.assertEqual(self.output.take(), "I look.\nDone.")
        self.assertEqual(self.complete("Done.", "b"), "\n")

    def test_an_older_state_prints_nothing_and_the_end_prints_the_rest(self) -> None:
        self.created(typed("u", "hi"), said("a", "one two"))
        self.updated(said("a", "one"))
        self.assertEqual(self.output.take(), "one two")
        self.assertEqual(self.complete("one two three"), " three\n")

    def test_blanks_in_front_are_trimmed_once(self) -> None:
        self.created(typed("u", "hi"), said("a", "\n"), said("b", ""))
        self.updated(said("a", "\n \n"), said("a", "\n \n  one\n\n"), said("b", "  two"))
        self.assertEqual(self.complete("  two", "b"), "one\n\n  two\n")

    def test_a_text_that_was_rewritten_is_printed_again(self) -> None:
        self.created(typed("u", "hi"), said("a", "wrong"))
        self.updated(said("a", "right"))
        self.assertEqual(self.complete("right"), "wrong\nright\n")

    def test_runs_ahead_of_ours_are_not_printed_even_with_the_same_prompt(self) -> None:
        self.follower.ahead = {"X", "Y"}
        self.created(said("x", "of X"), typed("y", "hi"), said("y2", "of Y"))
        self.updated(RunComplete("S", "x", "X", "of X"), said("y2", "of Y, more"))
        self.assertEqual(self.output.take(), "")
        self.updated(RunComplete("S", "y2", "Y", "of Y"))
        self.created(typed("u", "hi"), said("a", "ours"))
        self.assertEqual(self.complete("ours"), "ours\n")

    def test_foreign_events_are_ignored(self) -> None:
        other = said("o", "not ours")
        other.session_id = "T"
        self.created(typed("u", "hi"), other, said("s", "a summary", is_summary_message=True))
        self.updated(RunComplete("T", "o", "Q", "not ours"), RunComplete("S", "o", "Q", "no"))
        self.created(AgentEvent("error", "T", error="not ours"))
        self.created(AgentEvent("error", "S", run_id="Q", error="not ours"))
        self.created(PermissionRequest("p", "T", "c", "bash"), {"a": "kind of the future"})
        self.updated(said("old", "a message from before our run"))
        self.assertEqual((self.complete("ours"), self.notes), ("ours\n", []))

    def test_the_json_lines_hold_our_run_and_nothing_else(self) -> None:
        output = JSONOutput()
        self.follower = self.follow(output)
        self.created(said("x", "before"), typed("u", "hi"), said("a", "ours"))
        self.created(AgentEvent("error", "S", run_id="Q"), AgentEvent("agent_finished", "S"))
        self.created(Session("kid", "S"), Session("foreign", "T"))
        event = RunComplete("S", "a", "R", "ours")
        self.follower.take(Envelope("", "updated", event))
        self.follower.finish(event)
        kinds = [json.loads(line)["type"] for line in output.take().splitlines()]
        self.assertEqual(kinds, ["message", "message", "agent_event", "session", "run_complete"])

    def test_after_a_gap_the_transcript_fills_in_what_is_missing(self) -> None:
        self.created(typed("u", "hi"), said("a", "one"))
        transcript = [typed("u", "hi"), said("a", "one two"), said("b", "three")]
        self.follower.catch_up([said("x", "before"), *transcript], None)
        self.assertEqual(self.output.take(), "one two\nthree")
        self.updated(said("a", "one"), said("b", "three four"))
        self.assertEqual(self.complete("three four", "b"), " four\n")

    def test_a_turn_that_was_not_seen_to_begin_is_read_from_the_transcript(self) -> None:
        self.follower.ahead = {"never seen to end"}
        self.created(typed("u", "hi"), said("a", "one"), said("b", "two"))
        before = [typed("u0", "hi"), said("x", "before")]
        ours = [typed("u", "hi"), said("a", "one"), typed("f", "folded"), said("b", "two")]
        after = [typed("u2", "hi"), said("y", "after")]
        self.follower.catch_up([*before, *ours], None)
        self.assertEqual(self.output.take(), "")
        self.follower.catch_up([*before, *ours, *after], RunComplete("S", "b", "R", "two"))
        self.assertEqual(self.complete("two", "b"), "one\ntwo\n")

    def test_a_sub_agents_request_is_announced_and_its_text_is_not_printed(self) -> None:
        self.created(typed("u", "hi"), Session("kid", "S"))
        child = said("k", "inner")
        child.session_id = "kid"
        self.created(child, PermissionRequest("p", "kid", "c", "bash", params={"command": "ls"}))
        self.created(PermissionRequest("p", "kid", "c", "bash", params={"command": "ls"}))
        self.assertEqual(self.output.take(), "")
        self.assertEqual(self.notes, ["waiting for permission: bash ls (answer in another client)"])

    def test_a_tool_call_is_announced_once_and_when_its_input_is_complete(self) -> None:
        message = said("a", "")
        message.parts.append(ToolCallPart("c", "view", '{"file_pa', finished=False))
        self.created(typed("u", "hi"), message)
        message.parts[-1] = ToolCallPart("c", "view", '{"file_path": "x\\u001b[2J.py"}', "", True)
        self.updated(message, message)
        self.assertEqual(self.notes, ["tool: view x?[2J.py"])

    def test_a_terminal_gets_no_control_characters(self) -> None:
        output = TextOutput(terminal=True)
        output.grow("a", "red \x1b[31m\x07\ttab\nline\x9b")
        self.assertEqual(output.take(), "red [31m\ttab\nline")


# Processes ----------------------------------------------------------------------------------------


class Child:
    """A command under test: what it says is kept, waits are bounded, and it does not survive."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.out = bytearray()
        self.err = bytearray()
        self._changed = asyncio.Event()
        self._readers = [
            asyncio.create_task(self._read(stream, heard))
            for stream, heard in ((process.stdout, self.out), (process.stderr, self.err))
            if stream is not None
        ]

    async def _read(self, stream: asyncio.StreamReader, heard: bytearray) -> None:
        while data := await stream.read(65536):
            heard += data
            self._changed.set()
        self._changed.set()

    async def prints(self, text: str) -> None:
        await self._until(self.out, text)

    async def notes(self, text: str) -> None:
        await self._until(self.err, text)

    async def _until(self, heard: bytearray, text: str) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                while text.encode() not in heard:
                    if all(reader.done() for reader in self._readers):
                        raise AssertionError(f"it ended without {text!r}: {self}")
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"it never said {text!r}: {self}") from None

    async def end(self) -> tuple[int, str]:
        """Its exit code, and all it printed."""
        try:
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(*self._readers)
                return await self.process.wait(), self.out.decode()
        except TimeoutError:
            raise AssertionError(f"it never ended: {self}") from None

    def __repr__(self) -> str:
        return f"stdout {bytes(self.out)!r}, stderr {bytes(self.err)!r}"

    @property
    def errors(self) -> str:
        return self.err.decode()

    async def close(self) -> None:
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
        await self.end()


class CommandTests(unittest.IsolatedAsyncioTestCase):
    """A home of its own, so that neither real configuration nor a real daemon is met."""

    def setUp(self) -> None:
        # Short: a socket's path must fit into 104 bytes.
        self.root = Path(tempfile.mkdtemp(prefix="cl-", dir="/tmp"))
        self.addCleanup(shutil.rmtree, self.root, ignore_errors=True)
        self.project = self.root / "project"
        self.project.mkdir()
        self.socket = self.root / "crushlite" / "crushlite.sock"
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.root),
            "XDG_RUNTIME_DIR": str(self.root),
            "PYTHONPATH": str(ROOT),
            "CRUSHLITE_READY_TIMEOUT": str(PATIENCE),
            "CRUSHLITE_IDLE_TIMEOUT": "30",  # should a test fail to end what it started
        }

    async def start(self, *arguments: str, stdin: Any = subprocess.DEVNULL, **env: str) -> Child:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "crushlite", *arguments),
            cwd=self.project,
            env={**self.env, **env},
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        child = Child(process)
        self.addAsyncCleanup(child.close)
        return child

    async def serve(self, host: Path) -> Child:
        """A daemon with the offline agent, listening when this returns."""
        child = await self.start("serve", "--agent=offline", f"--host=unix://{host}")
        await child.prints("is serving")
        return child

    def end_daemon(self, path: Path) -> None:
        """End the daemon that a command started, whoever it is, and wait until it is gone."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(str(path))
            except OSError:
                return
            found = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        pid = struct.unpack("3i", found)[0]
        self.assertNotIn(pid, (0, 1, os.getpid()))
        descriptor = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            poller = select.poll()
            poller.register(descriptor, select.POLLIN)
            poller.poll(PATIENCE * 1000)
        finally:
            os.close(descriptor)


class ScriptedTests(CommandTests):
    """`run` against a daemon in this process, whose agent does what the test says."""

    settings: Settings | None = None

    async def asyncSetUp(self) -> None:
        self.daemon = await self.enterAsyncContext(LocalDaemon(settings=self.settings))
        self.project = self.daemon.root / "project"
        self.host = f"--host=unix://{self.daemon.socket}"

    async def run_it(self, *arguments: str, **rest: Any) -> Child:
        return await self.start("run", self.host, *arguments, **rest)

    async def begun(self, *arguments: str) -> tuple[Child, ScriptedRun]:
        """A command whose run is inside the agent and has said something."""
        child = await self.run_it(*arguments)
        scripted = await self.daemon.entered(1)
        await scripted.say("one ")
        await child.prints("one ")
        return child, scripted

    async def ended(self, child: Child, code: int, printed: str) -> None:
        self.assertEqual(await child.end(), (code, printed), child.errors)


class RunTests(ScriptedTests):
    async def test_an_answer_is_printed_as_it_grows(self) -> None:
        child, scripted = await self.begun("what", "is", "it?")
        self.assertEqual(scripted.prompt, "what is it?")
        self.assertEqual(scripted.turn.env["XDG_RUNTIME_DIR"], str(self.root))
        self.assertFalse(scripted.turn.interactive)
        await scripted.say("two")
        await child.prints("one two")
        scripted.release()
        await self.ended(child, 0, "one two\n")
        self.assertIn("crushlite: session ", child.errors)

    async def test_the_workspace_is_given_back_at_the_end(self) -> None:
        anna = await self.daemon.join()
        child, scripted = await self.begun("hello")
        claims = self.daemon.backend.claims
        self.assertEqual(len(claims._live(anna.workspace["id"]).claims), 2)
        scripted.release()
        await self.ended(child, 0, "one \n")
        self.assertEqual(list(claims._live(anna.workspace["id"]).claims), [anna.id])

    async def test_standard_input_comes_before_the_prompt(self) -> None:
        child = await self.run_it("-q", "explain this", stdin=subprocess.PIPE)
        assert child.process.stdin is not None
        child.process.stdin.write("line 1\n  l\u00efne 2\n\n".encode() + b"\xff")
        child.process.stdin.close()
        scripted = await self.daemon.entered(1)
        self.assertEqual(scripted.prompt, "line 1\n  l\u00efne 2\n\n\ufffd\n\nexplain this")
        scripted.release()
        await self.ended(child, 0, "")

    async def test_standard_input_alone_is_a_prompt(self) -> None:
        (self.project / "prompt.txt").write_text("from a file\n")
        with (self.project / "prompt.txt").open("rb") as file:
            child = await self.run_it(stdin=file)
        scripted = await self.daemon.entered(1)
        self.assertEqual(scripted.prompt, "from a file")
        scripted.release()
        await self.ended(child, 0, "")

    async def test_a_failure_is_told_and_is_exit_code_1(self) -> None:
        child, scripted = await self.begun("-q", "hello")
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
        self.assertIn("crushlite: tool: bash ls\n", child.errors)

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

    async def test_quiet_says_nothing_and_yolo_on_an_open_workspace_says_so(self) -> None:
        await self.daemon.join()
        child, scripted = await self.begun("hello", "--yolo")
        await child.notes("--yolo has no effect")
        scripted.release()
        await child.end()
        child = await self.run_it("hello", "--yolo", "--quiet")
        (await self.daemon.entered(2)).release()
        await self.ended(child, 0, "")
        self.assertEqual(child.errors, "")

    async def test_yolo_opens_a_workspace_that_asks_nobody(self) -> None:
        child, scripted = await self.begun("hello", "--yolo")
        allowed = await scripted.do(lambda turn: turn.permission("bash", "execute"))
        self.assertTrue(allowed)
        scripted.release()
        await self.ended(child, 0, "one \n")
        self.assertNotIn("--yolo", child.errors)

    async def test_a_daemon_of_another_version_is_used_with_a_warning(self) -> None:
        with mock.patch("crushlite.backend.__version__", "9.9"):
            child, scripted = await self.begun("hello")
        scripted.release()
        await self.ended(child, 0, "one \n")
        self.assertIn("the daemon is crushlite 9.9", child.errors)


class SessionTests(ScriptedTests):
    async def test_continue_goes_on_in_the_session_used_last(self) -> None:
        anna = await self.daemon.join()
        child = await self.run_it("--continue", "hello")
        await self.ended(child, 1, "")
        self.assertIn("no session to continue", child.errors)
        session = await anna.session("the last")
        child, scripted = await self.begun("--continue", "hello")
        self.assertEqual(scripted.turn.session_id, session)
        scripted.release()
        await self.ended(child, 0, "one \n")

    async def test_an_unknown_session_is_an_error(self) -> None:
        child = await self.run_it("--session", "nope", "hello")
        await self.ended(child, 1, "")
        self.assertIn("nope", child.errors)

    async def test_on_a_busy_session_only_our_own_answer_is_printed(self) -> None:
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

    async def test_ctrl_c_takes_back_a_waiting_prompt_and_leaves_the_others_alone(self) -> None:
        anna = await self.daemon.join()
        session = await anna.session()
        await anna.prompt(session, "first")
        other = await self.daemon.entered(1)
        child = await self.run_it("--session", session, "second")
        await child.notes("waiting for 1 earlier prompt(s)")
        child.process.send_signal(signal.SIGINT)
        await self.ended(child, 130, "")
        self.assertTrue((await anna.events.wait_for("run_complete"))["cancelled"])
        other.release()
        self.assertFalse((await anna.events.wait_for("run_complete"))["cancelled"])


class WaitingTests(ScriptedTests):
    """What only somebody at another client can answer."""

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
            "crushlite: waiting for permission: bash touch y (answer in another client)\n"
        )
        anna, request = await self.asked("permission_request")
        self.assertTrue(await anna.grant(request.payload))
        self.assertTrue(await verdict)
        await child.notes("permission granted: bash touch y")
        scripted.release()
        await self.ended(child, 0, "one \n")

    async def test_a_question_is_announced(self) -> None:
        from crushlite.protocol.questions import Question

        child, scripted = await self.begun("hello")
        question = Question(type="yes_no", question="Go on?", description="really")
        answers = scripted.begin(lambda turn: turn.ask([question]))
        await child.notes("waiting for an answer: Go on? (answer in another client)")
        anna, batch = await self.asked("question_batch_request")
        await anna.call("POST", f"/questions/{batch['id']}", {"action": "cancel"})
        self.assertIsNone(await answers)
        await child.notes("answered: Go on?")
        scripted.release()
        await self.ended(child, 0, "one \n")


class StopTests(ScriptedTests):
    async def test_ctrl_c_cancels_and_waits_for_the_end(self) -> None:
        child, scripted = await self.begun("hello")
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

    async def test_a_second_ctrl_c_leaves_at_once(self) -> None:
        child, scripted = await self.begun("hello")
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

    async def test_a_time_limit_cancels_and_is_exit_code_1(self) -> None:
        child = await self.run_it("-q", "--timeout", "0.5", "hello")
        await self.ended(child, 1, "")
        # On a slow machine the time may be up before there is a run.
        self.assertTrue(all(scripted.canceled for scripted in self.daemon.agent.runs))
        self.assertEqual(child.errors, "crushlite: canceled: not done in 0.5 s\n")

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


# Daemons that go away -----------------------------------------------------------------------------


class Relay:
    """Stands between a client and a daemon, to cut their connections."""

    def __init__(self, path: Path, target: Path) -> None:
        self.path, self._target = path, target
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Relay:
        self._server = await asyncio.start_unix_server(self._accept, self.path)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        self.cut()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=PATIENCE)

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_unix_connection(self._target)
        self._writers |= {writer, back}
        for source, sink in ((reader, back), (there, writer)):
            task = asyncio.create_task(self._pump(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                sink.write(data)
                await sink.drain()
        sink.close()


class LostStreamTests(ScriptedTests):
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
        """Here the workspace does not wait for us: what became of the run is read afresh."""
        child, scripted = await self.begun("hello")
        scripted.begin(lambda turn: turn.say("two"))
        scripted.begin(lambda turn: asyncio.Event().wait())
        await child.prints("one two")
        self.relay.cut()
        await self.ended(child, 130, "one two\n")
        self.assertTrue(scripted.canceled)


class KilledTests(CommandTests):
    async def begun(self, host: Path, **env: str) -> Child:
        child = await self.start("run", f"--host=unix://{host}", "/slow 3600", **env)
        await child.prints("1 ")
        return child

    async def test_a_daemon_that_is_killed_ends_the_command_with_a_clear_message(self) -> None:
        host = self.root / "d.sock"
        daemon = await self.serve(host)
        child = await self.begun(host, CRUSHLITE_READY_TIMEOUT="0.5")
        daemon.process.kill()
        code, printed = await child.end()
        self.assertEqual((code, printed[:2], printed[-1]), (1, "1 ", "\n"))
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


# Starting one -------------------------------------------------------------------------------------


class StartTests(CommandTests):
    def setUp(self) -> None:
        super().setUp()
        self.addCleanup(self.end_daemon, self.socket)

    @property
    def log(self) -> str:
        return (self.socket.parent / "daemon.log").read_text()

    async def test_eight_at_once_start_one_daemon_and_all_are_answered(self) -> None:
        children = [await self.start("run", f"number {n}") for n in range(8)]
        for number, child in enumerate(children):
            self.assertEqual(await child.end(), (0, f"You said: number {number}\n"), child.errors)
        self.assertEqual(self.log.count("is serving"), 1)
        self.assertEqual(sum("starting a daemon at" in child.errors for child in children), 1)

    async def test_what_it_leaves_is_private_and_a_dead_socket_is_no_obstacle(self) -> None:
        self.socket.parent.mkdir(mode=0o700)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
            dead.bind(str(self.socket))
        child = await self.start("run", "-q", "hello")
        self.assertEqual(await child.end(), (0, "You said: hello\n"), child.errors)
        self.assertEqual(child.errors, "")
        for name in ("daemon.log", "start.lock"):
            self.assertEqual((self.socket.parent / name).stat().st_mode & 0o777, 0o600)

    async def test_a_named_socket_is_served_there(self) -> None:
        host = self.root / "mine.sock"
        self.addCleanup(self.end_daemon, host)
        child = await self.start("run", f"--host=unix://{host}", "--agent=offline", "hello")
        self.assertEqual(await child.end(), (0, "You said: hello\n"), child.errors)
        self.assertFalse(self.socket.exists())

    async def test_modules_of_the_project_are_not_run(self) -> None:
        for name in ("h11", "asyncio", "crushlite"):
            (self.project / f"{name}.py").write_text("raise SystemExit('run by accident')\n")
        child = await self.start("run", "hello")
        self.assertEqual(await child.end(), (0, "You said: hello\n"), child.errors)

    async def test_a_copy_that_nobody_installed_starts_itself(self) -> None:
        del self.env["PYTHONPATH"]
        script = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        script += "from crushlite.cli import main; sys.exit(main(['run', 'hello']))"
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-c", script),
            cwd=self.project,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        child = Child(process)
        self.addAsyncCleanup(child.close)
        self.assertEqual(await child.end(), (0, "You said: hello\n"), child.errors)

    async def test_a_daemon_that_cannot_start_is_explained_with_its_own_words(self) -> None:
        child = await self.start("run", "--agent=nonsense", "hello")
        self.assertEqual(await child.end(), (2, ""))
        self.assertIn("ended with exit code 2", child.errors)
        self.assertIn("agent 'nonsense': use auto", child.errors)

    async def test_a_daemon_that_leaves_is_replaced(self) -> None:
        async with LocalDaemon() as leaving:
            self.addCleanup(self.end_daemon, leaving.socket)
            leaving.backend.claims.latch()
            child = await self.start("run", f"--host=unix://{leaving.socket}", "hello")
            await child.notes("looking for another daemon")
            await leaving.daemon.stop()
            self.assertEqual(await child.end(), (0, "You said: hello\n"), child.errors)

    async def test_ctrl_c_while_a_daemon_does_not_answer(self) -> None:
        host = self.root / "silent.sock"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
            silent.bind(str(host))
            silent.listen()
            child = await self.start("run", f"--host=unix://{host}", "hello")
            await child.notes(f"waiting for the daemon at unix://{host}")
            child.process.send_signal(signal.SIGINT)
            self.assertEqual(await child.end(), (130, ""))
        self.assertNotIn("Traceback", child.errors)

    async def test_no_prompt_is_a_usage_error_and_starts_nothing(self) -> None:
        for arguments in ((), ("", " ")):
            child = await self.start("run", *arguments)
            self.assertEqual(await child.end(), (2, ""))
            self.assertIn("no prompt", child.errors)
        self.assertFalse(self.socket.parent.exists())

    async def test_other_wrong_usage(self) -> None:
        wrong = (
            (("--session", "a", "--continue", "x"), "not allowed with"),
            (("--timeout", "-1", "x"), "not a number of seconds"),
            (("--host", "http://x", "x"), "use unix:///path"),
            (("--host", "unix://relative", "x"), "absolute path"),
            (("--host", "tcp://127.0.0.1:9", "--token-file", "none", "x"), "cannot read the token"),
        )
        children = [await self.start("run", *arguments) for arguments, _ in wrong]
        for child, (_, words) in zip(children, wrong, strict=True):
            self.assertEqual(await child.end(), (2, ""))
            self.assertIn(words, child.errors)


class TCPTests(CommandTests):
    @contextlib.contextmanager
    def runtime(self) -> Iterator[None]:
        with mock.patch.dict(os.environ, {"XDG_RUNTIME_DIR": str(self.root)}):
            yield

    async def test_a_port_is_used_with_the_token_that_its_daemon_left(self) -> None:
        self.enterContext(self.runtime())
        async with LocalDaemon(tcp=True) as daemon:
            self.project = daemon.root / "project"
            host = f"--host=tcp://127.0.0.1:{daemon.port}"
            token = daemon.daemon.tokens[daemon.port].path
            moved = daemon.root / "token"
            for number, arguments in enumerate(((), ("--token-file", str(moved))), 1):
                child = await self.start("run", host, *arguments, "hello")
                scripted = await daemon.entered(number)
                await scripted.say("yes")
                scripted.release()
                self.assertEqual(await child.end(), (0, "yes\n"), child.errors)
                moved.write_text(token.read_text())

    async def test_nothing_is_started_on_a_port(self) -> None:
        with socket.socket() as taken:  # bound and not listening: connections are refused
            taken.bind(("127.0.0.1", 0))
            host = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
            child = await self.start("run", "--host", host, "hello")
            self.assertEqual(await child.end(), (1, ""))
        self.assertIn(f"crushlite serve --host {host}", child.errors)
        self.assertFalse(self.socket.parent.exists())


class ImportTests(unittest.TestCase):
    def test_the_command_does_not_load_the_server(self) -> None:
        script = (
            "import sys\nfrom crushlite.cli import main\n"
            "try:\n    main(['run', '--help'])\nexcept SystemExit:\n    pass\n"
            "heavy = ('sqlite3', 'crushlite.daemon', 'crushlite.backend', 'crushlite.store')\n"
            "print([name for name in heavy if name in sys.modules])\n"
        )
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual((done.stdout.splitlines()[-1], done.stderr), ("[]", ""))
        self.assertIn("141", done.stdout)


if __name__ == "__main__":
    unittest.main()
