"""`run` on blocking sockets, and what the client library goes on with. The other tests of `run` use
a thread, where it always is the client library that asks; here it is a process."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import sys
from typing import TYPE_CHECKING

from crushlite.version import WIRE_VERSION
from tests.support.cli import PATIENCE, Child, CommandCase, Relay, ScriptedCase

if TYPE_CHECKING:
    from crushlite.agent.base import Turn

LOADED = """
import sys
from crushlite.cli import main
code = main(sys.argv[1:])
print(sorted({"asyncio", "h11", "dataclasses", "ssl"} & {*sys.modules}), file=sys.stderr)
sys.exit(code)
"""


class QuickTests(ScriptedCase):
    async def loading(self, *arguments: str) -> Child:
        """`run` as a process that says at its end which large modules it has loaded."""
        return await self.spawn(
            "run", self.host, *arguments, command=(sys.executable, "-c", LOADED)
        )

    async def test_an_answer_is_printed_without_asyncio_and_the_client(self) -> None:
        child = await self.loading("-q", "hello")
        scripted = await self.daemon.entered(1)
        self.assertEqual(scripted.prompt, "hello")
        self.assertEqual(scripted.turn.env["XDG_RUNTIME_DIR"], str(self.root))
        await scripted.do(lambda turn: turn.think("hm"))
        await scripted.say(" \n one ")
        await child.prints("one ")
        await scripted.say("two")
        scripted.release()
        await self.ended(child, 0, "one two\n")
        self.assertEqual(child.errors, "[]\n")

    async def test_what_a_run_does_besides_is_told_and_nothing_is_printed_twice(self) -> None:
        async def retry(turn: Turn) -> None:
            turn.retrying("retrying in 4 s")

        child, scripted = await self.begun_process("hello")
        await scripted.do(retry)
        await child.notes("crushlite: retrying in 4 s\n")
        await scripted.say("two")
        scripted.release()
        await self.ended(child, 0, "one two\n")
        self.assertEqual(child.errors.count("session"), 1)
        self.assertEqual(len(self.daemon.agent.runs), 1)

    async def test_a_tool_call_is_told_before_the_agent_says_more(self) -> None:
        child, scripted = await self.begun_process("hello")
        await scripted.do(lambda turn: turn.tool_call("bash", '{"command":"ls"}', id="c"))
        await scripted.do(lambda turn: turn.tool_result("c", "a file"))
        await child.notes("bash")
        await scripted.say("two")
        scripted.release()
        await self.ended(child, 0, "one \ntwo\n")
        self.assertEqual(child.errors.count("bash"), 1, child.errors)

    async def test_a_request_for_permission_that_ends_the_quick_way_is_answered_once(self) -> None:
        child, scripted = await self.begun_process("--yolo", "hello")
        granted = await scripted.do(lambda turn: turn.permission("bash", "run"))
        self.assertTrue(granted)
        scripted.release()
        await self.ended(child, 0, "one \n")
        self.assertEqual(child.errors.count("--yolo: every permission"), 1)

    async def test_a_long_answer_is_printed_whole_also_to_a_reader_who_is_late(self) -> None:
        text = "naïve 🦀 " * select.PIPE_BUF
        child = await self.spawn("run", self.host, "-q", "hello")
        scripted = await self.daemon.entered(1)
        await scripted.say(text)
        scripted.release()
        await self.ended(child, 0, text + "\n")

    async def test_a_signal_cancels_the_run_and_its_end_is_waited_for(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(number):
                child = await self.spawn("run", self.host, "-q", "hello")
                scripted = await self.daemon.entered(len(self.daemon.agent.runs) + 1)
                await scripted.say("one ")
                await child.prints("one ")
                child.process.send_signal(number)
                await self.ended(child, 130, "one \n")
                self.assertTrue(scripted.canceled)

    async def test_a_reader_who_stops_reading_does_not_keep_a_signal_from_canceling(self) -> None:
        reading, writing = os.pipe()
        child = await self.spawn("run", self.host, "-q", "hello", stdout=writing)
        os.close(writing)
        self.addCleanup(os.close, reading)
        scripted = await self.daemon.entered(1)
        await scripted.say("x" * (1 << 20))  # more than a pipe holds
        stopping = asyncio.Event()

        async def wait(turn: Turn) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                stopping.set()

        scripted.begin(wait)
        await asyncio.to_thread(select.select, [reading], [], [], PATIENCE)
        child.process.send_signal(signal.SIGINT)
        async with asyncio.timeout(PATIENCE):
            await stopping.wait()
        child.process.send_signal(signal.SIGINT)
        self.assertEqual((await child.end())[0], 130)

    async def test_a_failure_is_told_with_what_was_said_before_it(self) -> None:
        child, scripted = await self.begun_process("-q", "hello")
        scripted.fail("out of luck")
        await self.ended(child, 1, "one \n")
        self.assertEqual(child.errors, "crushlite: ScriptedFailure: out of luck\n")

    async def test_on_a_terminal_nothing_is_missed_that_was_told_before_it_is_drawn(self) -> None:
        terminal = await self.terminal("run", self.host, "hello")
        scripted = await self.daemon.entered(1)  # by the quick way: drawing takes time to load

        async def retry(turn: Turn) -> None:
            turn.retrying("retrying in 4 s")
            await turn.say("one")

        await scripted.do(retry)
        scripted.release()
        await terminal.shows("retrying in 4 s")

    async def test_a_byte_order_mark_is_not_repeated(self) -> None:
        child = await self.spawn("run", self.host, "-q", "hello", PYTHONIOENCODING="utf-8-sig")
        scripted = await self.daemon.entered(1)
        await scripted.say("one ")
        await child.prints("one ")
        await scripted.say("two")
        scripted.release()
        await self.ended(child, 0, "\ufeffone two\n")

    async def test_a_token_that_cannot_be_read_is_an_error_on_a_unix_socket_too(self) -> None:
        code, _, errors = await self.run_process("run", self.host, "--token-file=/none", "hello")
        self.assertEqual(code, 2, errors)


class OtherPeopleTests(ScriptedCase):
    async def test_what_somebody_else_was_told_in_the_new_session_is_not_printed(self) -> None:
        relay = HoldingRelay(self.root / "relay.sock", self.daemon.socket)
        await self.enterAsyncContext(relay)
        anna = await self.daemon.join(self.project)
        child = await self.spawn("run", f"--host=unix://{relay.path}", "-q", "hello")
        session = (await anna.events.wait_for("session"))["id"]
        async with asyncio.timeout(PATIENCE):
            await relay.held.wait()  # so the command has subscribed
        await anna.prompt(session, "hi")
        theirs = await self.daemon.entered(1)
        await theirs.say("theirs")
        theirs.release()
        await anna.events.wait_for("run_complete")
        relay.open.set()
        ours = await self.daemon.entered(2)
        await ours.say("ours")
        ours.release()
        await self.ended(child, 0, "ours\n")


class LostTests(ScriptedCase):
    async def test_a_daemon_that_leaves_with_the_end_of_the_run_is_not_waited_for(self) -> None:
        relay = LeavingRelay(self.root / "relay.sock", self.daemon.socket)
        await self.enterAsyncContext(relay)
        self.host = f"--host=unix://{relay.path}"
        child, scripted = await self.begun_process("-q", "hello")
        scripted.fail("out of luck")
        await self.ended(child, 1, "one \n")
        self.assertEqual(child.errors, "crushlite: ScriptedFailure: out of luck\n")
        self.assertFalse(relay.path.exists())

    async def test_after_a_lost_connection_the_rest_is_printed(self) -> None:
        path = self.root / "relay.sock"
        relay = await self.enterAsyncContext(Relay(path, self.daemon.socket))
        self.host = f"--host=unix://{path}"
        child, scripted = await self.begun_process("-q", "hello")
        relay.cut()
        await scripted.say("two ")
        await child.prints("one two ")
        scripted.release()
        await self.ended(child, 0, "one two \n")
        self.assertEqual((child.errors, len(self.daemon.agent.runs)), ("", 1))

    async def test_a_prompt_that_was_lost_or_whose_acceptance_was_runs_once(self) -> None:
        for number, lost in enumerate((b"/agent HTTP/1.1\r\n", b"HTTP/1.1 202 "), 1):
            with self.subTest(lost):
                relay = CuttingRelay(self.root / f"{number}.sock", self.daemon.socket)
                relay.lost = lost
                await self.enterAsyncContext(relay)
                child = await self.spawn("run", f"--host=unix://{relay.path}", "-q", "hello")
                scripted = await self.daemon.entered(number)
                self.assertEqual(relay.lost, b"")
                await scripted.say("one")
                scripted.release()
                await self.ended(child, 0, "one\n")
                self.assertEqual((child.errors, len(self.daemon.agent.runs)), ("", number))


class KilledTests(CommandCase):
    async def test_a_daemon_that_is_killed_in_the_answer_is_waited_for_and_then_told(self) -> None:
        self.env["CRUSHLITE_READY_TIMEOUT"] = "0.5"
        host = self.root / "d.sock"
        daemon = await self.serve(host)
        child = await self.spawn("run", f"--host=unix://{host}", "begun\n/slow 3600")
        await child.prints("You said: begun\n")
        daemon.process.kill()
        self.assertEqual(await child.end(), (1, "You said: begun\n"))
        self.assertIn("the daemon was lost; trying to reach it again", child.errors)
        self.assertIn("the daemon is gone and has taken the run along", child.errors)


class CuttingRelay(Relay):
    """Cuts all connections once, in place of sending on the first bytes that have `lost` in their
    first line and are no GET."""

    lost = b""

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            first = data.partition(b"\r\n")[0] + b"\r\n"
            if self.lost and self.lost in first and not data.startswith(b"GET"):
                self.lost = b""
                return self.cut()
            sink.write(data)
        sink.close()


class HoldingRelay(Relay):
    """Holds a prompt until it may go on."""

    async def __aenter__(self) -> HoldingRelay:
        self.held, self.open = asyncio.Event(), asyncio.Event()
        await super().__aenter__()
        return self

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            if b"/agent HTTP/1.1\r\n" in data and data.startswith(b"POST"):
                self.held.set()
                await self.open.wait()
            sink.write(data)
        sink.close()


class LeavingRelay(Relay):
    """Accepts no connection any more once it has sent on the end of a run."""

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            if b'"run_complete"' in data:
                self._server.close()
                self.path.unlink()
            sink.write(data)
        sink.close()


class StrangeAnswerTests(CommandCase):
    async def test_a_signal_counts_that_comes_while_a_client_without_a_model_leaves(self) -> None:
        path = self.root / "s.sock"
        answers = iter(({"version": WIRE_VERSION}, {"id": "w"}, {"is_ready": False}))
        leaving = asyncio.Event()

        async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(65536):
                if data.startswith(b"DELETE"):
                    leaving.set()
                elif (answer := next(answers, None)) is not None:
                    body = json.dumps(answer).encode()
                    writer.write(
                        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
                    )
            writer.close()

        async with await asyncio.start_unix_server(answered, path):
            child = await self.spawn("run", f"--host=unix://{path}", "-q", "hello")
            async with asyncio.timeout(PATIENCE):
                await leaving.wait()
            child.process.send_signal(signal.SIGTERM)
            await child.end()
        self.assertEqual((child.process.returncode, child.errors), (130, ""))

    async def test_a_server_that_answers_nonsense_is_an_error_with_words(self) -> None:
        self.env["CRUSHLITE_READY_TIMEOUT"] = "0"
        version = json.dumps({"version": "crushlite-0.1.0"}).encode()
        strange = (
            b"no HTTP at all\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: nine\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n[1]\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(version), version),
        )
        for number, answer in enumerate(strange):
            with self.subTest(answer):
                path = self.root / f"{number}.sock"

                async def answered(
                    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sent: bytes = answer
                ) -> None:
                    while await reader.read(65536):
                        writer.write(sent)
                    writer.close()

                async with await asyncio.start_unix_server(answered, path):
                    child = await self.spawn("run", f"--host=unix://{path}", "-q", "hello")
                    code, printed = await child.end()
                self.assertEqual((bool(code), printed), (True, ""), child.errors)
                self.assertRegex(child.errors, r"\Acrushlite: .*\n")
                self.assertNotIn("Traceback", child.errors)
