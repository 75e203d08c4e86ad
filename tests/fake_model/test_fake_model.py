"""The fake model itself, which other tests rely on."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import unittest
from typing import TYPE_CHECKING, Any

from crushlite.fake_model import (
    Drop,
    End,
    Fail,
    FakeModel,
    Say,
    Step,
    Think,
    Use,
    Wait,
    obedient,
)
from crushlite.http.client import ClientError, HTTPClient, TCPConnector
from crushlite.testing.fake_clock import FakeClock
from tests.support.basics import LIMIT
from tests.support.http import HTTPTestCase
from tests.support.places import ROOT

if TYPE_CHECKING:
    from crushlite.fake_model import Script
    from crushlite.http.client import ClientResponse

CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"
TOOLS: list[Any] = [{"type": "function", "function": {"name": "bash"}}]


def prompt(*texts: str, tools: list[Any] = TOOLS, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text} for text in texts]
    return {"model": "m", "messages": messages, "tools": tools, **more}


def events(body: bytes) -> list[Any]:
    """The data of an event stream, decoded, up to its [DONE]."""
    lines = [line[6:] for line in body.decode().split("\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def deltas(body: bytes) -> list[dict[str, Any]]:
    return [event["choices"][0]["delta"] for event in events(body) if event["choices"]]


def text_of(body: bytes) -> str:
    return "".join(delta.get("content", "") for delta in deltas(body))


class ModelCase(HTTPTestCase):
    async def asyncSetUp(self) -> None:
        self.clients: list[HTTPClient] = []

    async def asyncTearDown(self) -> None:
        for client in self.clients:
            await self.within(client.aclose())

    def client(self, model: FakeModel) -> HTTPClient:
        connector = TCPConnector("127.0.0.1", model.port)
        client = HTTPClient(connector, host_header="model", clock=self.clock)
        self.clients.append(client)
        return client

    def ask(
        self, model: FakeModel, body: dict[str, Any] | None = None, path: str = CHAT
    ) -> asyncio.Task[ClientResponse]:
        data = json.dumps(body or prompt("hi")).encode()
        return asyncio.create_task(self.client(model).request("POST", path, body=data))

    async def played(self, script: Script, *texts: str, **more: Any) -> bytes:
        async with FakeModel(script=script) as model:
            return (await self.within(self.ask(model, prompt(*texts, **more)))).body


class ScriptedByTheTest(ModelCase):
    async def test_a_call_is_seen_and_answered_step_by_step(self) -> None:
        async with FakeModel() as model:
            task = self.ask(model, prompt("hello"))
            call = await model.call(1)
            self.assertEqual(call.request["messages"][0]["content"], "hello")
            self.assertEqual(call.headers["host"], "model")
            self.assertEqual((call.open, model.concurrent), (True, 1))
            await call.think("hm")
            await call.text("hi")
            await call.tool_call("c1", "bash", '{"command": "ls"}', pieces=3)
            await call.finish(usage=(3, 4))
            answer = await self.within(task)
        self.assertEqual(answer.headers.get("content-type"), "text/event-stream")
        self.assertTrue(answer.body.endswith(b"data: [DONE]\n\n"))
        found = deltas(answer.body)
        self.assertEqual(found[:2], [{"reasoning_content": "hm"}, {"content": "hi"}])
        parts = [delta["tool_calls"][0] for delta in found[2:-1]]
        self.assertEqual((parts[0]["id"], parts[0]["function"]["name"]), ("c1", "bash"))
        arguments = "".join(piece["function"]["arguments"] for piece in parts)
        self.assertEqual((len(parts), arguments), (3, '{"command": "ls"}'))
        self.assertEqual(events(answer.body)[-1]["usage"]["total_tokens"], 7)
        self.assertEqual((call.open, model.concurrent, len(model.requests)), (False, 0, 1))

    async def test_reasons_and_usage(self) -> None:
        async with FakeModel() as model:
            for number, (tool, given, reason) in enumerate(
                [(False, "", "stop"), (True, "", "tool_calls"), (True, "length", "length")], 1
            ):
                task = self.ask(model)
                call = await model.call(number)
                if tool:
                    await call.tool_call("a", "ls", "")
                await call.finish(given, usage=None)
                found = events((await self.within(task)).body)
                self.assertEqual(found[-1]["choices"][0]["finish_reason"], reason)
                self.assertFalse(any("usage" in event for event in found))

    async def test_an_error_instead_of_a_stream(self) -> None:
        async with FakeModel() as model:
            task = self.ask(model)
            (await model.call(1)).error(429, "slow down", [("Retry-After", "3")])
            answer = await self.within(task)
        self.assertEqual((answer.status, answer.headers.get("retry-after")), (429, "3"))
        self.assertEqual(json.loads(answer.body)["error"]["message"], "slow down")

    async def test_raw_bytes_and_bare_ones(self) -> None:
        async with FakeModel() as model:
            task = self.ask(model)
            call = await model.call(1)
            call.begin(299, "text/plain", [("X-A", "b")])
            call.raw(b"any")
            call.raw(b"")
            call.raw(b"thing")
            call.end()
            answer = await self.within(task)
            self.assertEqual((answer.status, answer.body), (299, b"anything"))
            task = self.ask(model)
            (await model.call(2)).bare(b"not http at all\r\n\r\n")
            with self.assertRaises(ClientError):
                await self.within(task)

    async def test_a_drop_cuts_the_connection(self) -> None:
        async with FakeModel() as model:
            for number in (1, 2):
                task = self.ask(model)
                call = await model.call(number)
                if number == 2:
                    await call.text("hel")
                call.drop()
                with self.assertRaises(ClientError):
                    await self.within(task)
            self.assertEqual(model.concurrent, 0)

    async def test_a_client_that_disconnects_is_noticed(self) -> None:
        async with FakeModel() as model:
            task = self.ask(model)
            call = await model.call(1)
            await call.text("hel")
            self.assertTrue(call.open)
            task.cancel()
            await call.gone()
            self.assertEqual((call.open, model.concurrent), (False, 0))
            await call.text("to nobody")
            await call.finish()
            call.error(500, "to nobody")
            call.drop()

    async def test_a_client_that_does_not_read_is_waited_for(self) -> None:
        async with FakeModel() as model:
            reader, writer = await asyncio.open_connection("127.0.0.1", model.port)
            writer.write(b"POST /chat/completions HTTP/1.1\r\n\r\n")
            call = await model.call(1)
            size = 20 << 20
            task = asyncio.create_task(call.text("x" * size))
            await self.settle()
            self.assertFalse(task.done())
            await self.within(reader.readexactly(size))
            await self.within(task)
            writer.close()

    async def test_calls_at_once_are_counted(self) -> None:
        async with FakeModel() as model:
            tasks = [self.ask(model, prompt(text)) for text in ("a", "a", "b")]
            await model.call(3)
            self.assertEqual((model.concurrent, model.most_concurrent), (3, 3))
            self.assertEqual(model.most_concurrent_by, {"a": 2, "b": 1})
            for call in model.calls:
                await call.finish()
            for task in tasks:
                await self.within(task)
            await self.within(self.ask_one(model))
            self.assertEqual((model.concurrent, model.most_concurrent), (0, 3))

    async def ask_one(self, model: FakeModel) -> None:
        task = self.ask(model, prompt("b"))
        await (await model.call(len(model.calls) + 1)).finish()
        await task

    async def test_a_connection_serves_one_call_after_the_other(self) -> None:
        async with FakeModel() as model:
            client = self.client(model)
            for number in (1, 2, 3):
                task = asyncio.create_task(client.request("POST", CHAT, body=b"{}"))
                await (await model.call(number)).finish()
                await self.within(task)
            self.assertEqual(model.connections, 1)

    async def test_two_requests_in_one_packet_are_answered_in_turn(self) -> None:
        async with FakeModel() as model:
            reader, writer = await asyncio.open_connection("127.0.0.1", model.port)
            writer.write(b"POST /chat/completions HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}" * 2)
            await (await model.call(1)).finish()
            self.assertEqual(len(model.calls), 1)
            await (await model.call(2)).finish()
            data = await self.within(reader.readuntil(b"0\r\n\r\n"))
            data += await self.within(reader.readuntil(b"0\r\n\r\n"))
            self.assertEqual(data.count(b"HTTP/1.1 200 OK"), 2)
            writer.close()

    async def test_a_body_that_is_no_object_is_kept_as_it_came(self) -> None:
        async with FakeModel() as model:
            for number, body in enumerate((b"nope", b"[1]"), 1):
                client = self.client(model)
                task = asyncio.create_task(client.request("POST", CHAT, body=body))
                call = await model.call(number)
                self.assertEqual((call.request, call.body), ({}, body))
                await call.finish()
                await self.within(task)

    async def test_what_is_waited_for_in_vain_is_named(self) -> None:
        async with FakeModel(patience=0.01) as model:
            with self.assertRaisesRegex(AssertionError, "request 2 to the model; 0 came"):
                await model.call(2)
            task = self.ask(model)
            model._patience = 20.0
            call = await model.call(1)
            model._patience = 0.01
            with self.assertRaisesRegex(AssertionError, "the client to leave"):
                await call.gone()
            call.end()
            await self.within(task)

    async def test_closing_the_model_ends_open_calls(self) -> None:
        async with FakeModel(script=lambda _: [Wait(3600)], clock=FakeClock()) as model:
            task = self.ask(model)
            await model.call(1)
        with self.assertRaises(ClientError):
            await self.within(task)
        await model.aclose()

    async def test_models_and_unknown_routes(self) -> None:
        async with FakeModel(models=["a"]) as model:
            client = self.client(model)
            answer = await self.within(client.request("GET", "/v1/models"))
            self.assertEqual(json.loads(answer.body)["data"], [{"id": "a", "object": "model"}])
            for method, path in (("GET", CHAT), ("POST", "/v1/models"), ("GET", "/")):
                answer = await self.within(client.request(method, path))
                self.assertEqual(answer.status, 404)
            self.assertEqual((model.calls, model.concurrent), ([], 0))


class ScriptedByAScript(ModelCase):
    async def test_steps_are_played_at_once(self) -> None:
        def script(request: dict[str, Any]) -> list[Step]:
            return [Think("hm"), Say(request["model"]), Use("ls"), Use("ls", "{}", "x"), End()]

        body = await self.played(script, "hi")
        self.assertEqual(deltas(body)[0], {"reasoning_content": "hm"})
        self.assertEqual(text_of(body), "m")
        calls = [d["tool_calls"][0] for d in deltas(body) if "tool_calls" in d]
        ids = [call["id"] for call in calls if "id" in call]
        self.assertEqual((len(set(ids)), ids[1]), (2, "x"))

    async def test_arguments_may_be_given_as_an_object(self) -> None:
        body = await self.played(lambda _: [Use("ls", {"path": "a"}), End()], "hi")
        calls = [d["tool_calls"][0]["function"] for d in deltas(body) if "tool_calls" in d]
        given = "".join(call.get("arguments", "") for call in calls)
        self.assertEqual(json.loads(given), {"path": "a"})

    async def test_new_ids_are_unique(self) -> None:
        async with FakeModel(script=lambda _: [Use("ls"), Use("ls"), End()]) as model:
            bodies = [(await self.within(self.ask(model))).body for _ in range(2)]
        found = [d["tool_calls"][0] for body in bodies for d in deltas(body) if "tool_calls" in d]
        self.assertEqual(len({call["id"] for call in found if "id" in call}), 4)

    async def test_failures_and_drops(self) -> None:
        async with FakeModel(script=lambda _: [Fail(503, "busy", (("X-A", "b"),))]) as model:
            answer = await self.within(self.ask(model))
            self.assertEqual((answer.status, answer.headers.get("x-a")), (503, "b"))
        async with FakeModel(script=lambda _: [Say("hel"), Drop()]) as model:
            with self.assertRaises(ClientError):
                await self.within(self.ask(model))

    async def test_waiting_is_on_the_given_clock(self) -> None:
        clock = FakeClock()
        async with FakeModel(script=lambda _: [Say("a"), Wait(60), End()], clock=clock) as model:
            task = self.ask(model)
            await model.call(1)
            await self.until(lambda: clock.pending == 1)
            self.assertFalse(task.done())
            await clock.advance(60)
            self.assertEqual((await self.within(task)).status, 200)
            # A client that disconnects ends the script: nothing waits any more.
            task = self.ask(model)
            call = await model.call(2)
            await self.until(lambda: clock.pending == 1)
            task.cancel()
            await call.gone()
            await self.until(lambda: clock.pending == 0)

    async def test_a_script_that_fails_is_seen(self) -> None:
        def script(request: dict[str, Any]) -> list[Step]:
            raise RuntimeError("oops")

        self.assertIn(b"oops", await self.played(script, "hi"))

    async def test_a_step_that_cannot_be_played_leaves_nobody_waiting(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda *_: None)  # it is raised in the task of the script
        path = "/v1beta/models/m:streamGenerateContent"
        async with FakeModel(script=lambda request: [Use("ls", "no JSON")]) as model:
            with self.assertRaises(ClientError):
                await self.within(self.ask(model, {"contents": []}, path))


class Obedient(ModelCase):
    def used(self, body: bytes) -> tuple[str, dict[str, Any]]:
        calls = [d["tool_calls"][0]["function"] for d in deltas(body) if "tool_calls" in d]
        return calls[0]["name"], json.loads("".join(call["arguments"] for call in calls))

    async def test_commands_become_tool_calls(self) -> None:
        for text, name, arguments in (
            ("@bash ls -l", "bash", {"command": "ls -l", "description": "What the user asked for"}),
            ("@write a.txt two words", "write", {"file_path": "a.txt", "content": "two words"}),
            ('@tool view {"file_path": "a"}', "view", {"file_path": "a"}),
            ("@tool ls", "ls", {}),
        ):
            body = await self.played(obedient, "before", text)
            with self.subTest(text):
                self.assertEqual(self.used(body), (name, arguments))
        tool, given = self.used(await self.played(obedient, "@ask"))
        self.assertEqual((tool, given["questions"][0]["id"]), ("question", "q1"))

    async def test_the_result_of_a_tool_is_quoted(self) -> None:
        request = prompt("@bash ls")
        request["messages"] += [
            {"role": "assistant", "content": None, "tool_calls": []},
            {"role": "tool", "tool_call_id": "a", "content": "file.txt"},
        ]
        async with FakeModel(script=obedient) as model:
            body = (await self.within(self.ask(model, request))).body
        self.assertEqual(text_of(body), "The tool said: file.txt")

    async def test_anything_else_is_echoed(self) -> None:
        body = await self.played(obedient, "how are you?")
        self.assertEqual(text_of(body), "Hello from the model. You said: how are you?")
        parts = [
            {"type": "text", "text": "a"},
            {"type": "image_url"},
            {"type": "text", "text": "b"},
        ]
        request = prompt()
        request["messages"] = [{"role": "user", "content": parts}]
        self.assertEqual(obedient(request)[1], Say("You said: a\nb"))
        self.assertEqual(obedient({"tools": TOOLS})[1], Say("You said: "))

    async def test_a_request_without_tools_is_for_a_title(self) -> None:
        self.assertEqual(text_of(await self.played(obedient, "@bash ls", tools=[])), "Fake Title")

    async def test_failing_and_waiting(self) -> None:
        self.assertEqual(obedient(prompt("@slow 2.5"))[1], Wait(2.5))
        self.assertEqual(obedient(prompt("@slow"))[1], Wait(1.0))
        (fail,) = obedient(prompt("@fail"))
        assert isinstance(fail, Fail)
        self.assertEqual(fail.status, 400)
        self.assertEqual(obedient(prompt("@fail 503 too busy")), [Fail(503, "too busy")])


class TheOtherDialect(ModelCase):
    async def test_messages_are_answered_as_anthropic_does(self) -> None:
        async with FakeModel() as model:
            task = self.ask(model, path=MESSAGES)
            call = await model.call(1)
            await call.think("hm")
            await call.text("hi")
            await call.tool_call("t1", "ls", '{"a": 1}', pieces=2)
            await call.finish(usage=(3, 4))
            found = events((await self.within(task)).body)
        kinds = [event["type"] for event in found]
        self.assertEqual(kinds.count("message_start"), 1)
        self.assertEqual(kinds.count("content_block_start"), 3)
        self.assertEqual(kinds[-2:], ["message_delta", "message_stop"])
        self.assertEqual(found[-2]["delta"]["stop_reason"], "tool_use")
        self.assertEqual(found[-2]["usage"], {"input_tokens": 3, "output_tokens": 4})

    async def test_an_error_has_its_shape(self) -> None:
        async with FakeModel() as model:
            task = self.ask(model, path=MESSAGES)
            (await model.call(1)).error(529, "busy")
            answer = await self.within(task)
        self.assertEqual((answer.status, json.loads(answer.body)["type"]), (529, "error"))

    async def test_the_obedient_script_answers_messages_too(self) -> None:
        result = {"type": "tool_result", "tool_use_id": "a", "content": "file.txt"}
        request = prompt("@bash ls")
        request["messages"].append({"role": "user", "content": [result]})
        self.assertEqual(obedient(request)[0], Say("The tool said: file.txt"))


class ImportTests(unittest.TestCase):
    def imported(self, code: str) -> list[str]:
        """The modules of the coder and of the fake model that this code imports."""
        code += "; import sys; names = ('crushlite.coder', 'crushlite.fake_model')"
        code += "; print(*(name for name in names if name in sys.modules))"
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout.split()

    def test_the_harness_imports_no_fake_model_and_neither_imports_the_coder(self) -> None:
        self.assertEqual(self.imported("import crushlite.testing"), [])
        self.assertEqual(self.imported("import crushlite.fake_model"), ["crushlite.fake_model"])
