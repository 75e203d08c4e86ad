"""An editor drives a daemon through the whole protocol."""

from __future__ import annotations

import asyncio
import base64
import os
from typing import TYPE_CHECKING, Any
from unittest import mock

from crushlite.acp.thread import Thread
from crushlite.agent.base import Usage
from crushlite.api.context import answer, body
from crushlite.api.entry import Entry, W
from crushlite.errors import BadRequest
from crushlite.features.wire import CommandArgument, CommandInfo, ExpandCommand
from crushlite.jsonrpc.errors import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    RpcError,
)
from crushlite.launch import Wanted
from crushlite.protocol.questions import Choice, Question
from crushlite.protocol.sessions import Todo
from crushlite.wing import Wing
from tests.support.editors import FORMS, EditorCase, prompt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from crushlite.agent.base import Turn
    from crushlite.api.context import Context
    from crushlite.http.messages import Request, Response
    from tests.support.editors import ScriptedEditor

NOT_FOUND = -32002


class Commands(Wing):
    """A daemon with one command, by the routes of the protocol."""

    def routes(self) -> Sequence[Entry]:
        return (
            Entry("GET", W + "/commands", self.listed, gives=list[CommandInfo]),
            Entry("POST", W + "/commands/expand", self.expanded, takes=ExpandCommand),
        )

    async def listed(self, context: Context, request: Request) -> Response:
        arguments = [CommandArgument("what")]
        return answer([CommandInfo("user:review", "review", "Look at it", "user", arguments)])

    async def expanded(self, context: Context, request: Request) -> Response:
        wanted = body(ExpandCommand, request)
        if not wanted.text:
            raise BadRequest("an argument is missing")
        return answer({"prompt": f"{wanted.command}: {wanted.text}"})


class ErrorCase(EditorCase):
    async def refused(self, script: ScriptedEditor, method: str, **params: Any) -> int:
        with self.assertRaises(RpcError) as caught:
            await script.request(method, **params)
        return caught.exception.number


class HandshakeTests(ErrorCase):
    async def test_initialize_is_answered_without_a_daemon(self) -> None:
        script = await self.connect(Wanted(url=f"unix://{self.daemon.root}/nowhere.sock"))
        for version in (1, 0, 2, 999):
            answer = await script.request("initialize", protocolVersion=version)
            self.assertEqual(answer["protocolVersion"], 1)
            self.assertEqual(answer["authMethods"], [])

    async def test_a_daemon_that_cannot_be_reached_is_an_error_with_its_address(self) -> None:
        script = await self.connect(Wanted(url="tcp://127.0.0.1:1", path=self.cwd))
        await script.request("initialize", protocolVersion=1)
        with self.assertRaisesRegex(RpcError, "127.0.0.1:1"):
            await script.request("session/new", cwd=self.cwd, mcpServers=[])

    async def test_what_comes_before_initialize_or_makes_no_sense_is_refused(self) -> None:
        script = await self.connect()
        new = {"cwd": self.cwd, "mcpServers": []}
        self.assertEqual(await self.refused(script, "session/new", **new), INVALID_REQUEST)
        bad = await self.refused(script, "initialize", protocolVersion="1")
        self.assertEqual(bad, INVALID_PARAMS)
        await script.request("initialize", protocolVersion=1)
        self.assertEqual(await self.refused(script, "session/fork"), METHOD_NOT_FOUND)
        for cwd in (None, "relative", self.cwd + "/missing", "/\0"):
            code = await self.refused(script, "session/new", cwd=cwd)
            self.assertEqual(code, INVALID_PARAMS, cwd)


class SessionTests(ErrorCase):
    async def test_sessions_are_made_listed_and_deleted(self) -> None:
        script, session = await self.thread()
        listed = (await script.request("session/list", cwd=self.cwd))["sessions"]
        self.assertEqual([entry["sessionId"] for entry in listed], [session])
        self.assertEqual(listed[0]["cwd"], self.cwd)
        self.assertTrue(listed[0]["updatedAt"].endswith("+00:00"))
        self.assertEqual((await script.request("session/list"))["sessions"], listed)
        self.assertEqual(await script.request("session/delete", sessionId=session), {})
        self.assertEqual(await script.request("session/delete", sessionId=session), {})
        self.assertEqual((await script.request("session/list", cwd=self.cwd))["sessions"], [])
        gone = await self.refused(script, "session/prompt", **prompt(session))
        self.assertEqual(gone, NOT_FOUND)

    async def test_a_session_that_does_not_exist_cannot_be_loaded(self) -> None:
        script = await self.editor()
        for method in ("session/load", "session/resume"):
            code = await self.refused(script, method, sessionId="x", cwd=self.cwd, mcpServers=[])
            self.assertEqual(code, NOT_FOUND)
        self.assertEqual(await self.refused(script, "session/close", sessionId="x"), NOT_FOUND)

    async def test_a_loaded_session_is_replayed_and_a_resumed_one_is_not(self) -> None:
        script, session = await self.thread()
        asked = script.begin("session/prompt", **prompt(session, "do it"))
        run = await self.daemon.entered(1)

        async def work(turn: Turn) -> None:
            await turn.think("hm")
            call = await turn.tool_call("view", '{"file_path":"a.py"}')
            await turn.tool_result(call, "text")
            await turn.say("done")

        await run.do(work)
        run.release()
        self.assertEqual(await asked, {"stopReason": "end_turn"})
        self.assertEqual(script.kinds("user_message_chunk"), [], "its own prompt")

        other = await self.editor()
        params = {"sessionId": session, "cwd": self.cwd, "mcpServers": []}
        answer = await other.request("session/load", **params)
        self.assertEqual(answer["modes"]["currentModeId"], "ask")
        self.assertEqual(other.text("user_message_chunk"), "do it")
        self.assertEqual(other.text("agent_thought_chunk"), "hm")
        self.assertEqual(other.text(), "done")
        self.assertEqual(other.kinds("tool_call")[0]["kind"], "read")
        self.assertEqual(other.kinds("tool_call_update")[-1]["status"], "completed")

        third = await self.editor()
        await third.request("session/resume", **params)
        self.assertEqual(third.text(), "")
        asked = third.begin("session/prompt", **prompt(session, "more"))
        run = await self.daemon.entered(2)
        await run.say("again")
        run.release()
        await asked
        self.assertEqual(third.text(), "again")
        await other.until(lambda: other.text() == "doneagain")
        self.assertEqual(other.text("user_message_chunk"), "do itmore", "of another client")

    async def test_a_closed_session_ends_its_prompt_and_is_shown_no_more(self) -> None:
        script, session = await self.thread()
        asked = script.begin("session/prompt", **prompt(session))
        await self.daemon.entered(1)
        self.assertEqual(await script.request("session/close", sessionId=session), {})
        self.assertEqual(await asked, {"stopReason": "cancelled"})


class PromptTests(ErrorCase):
    async def test_text_and_thoughts_are_streamed_before_the_answer(self) -> None:
        script, session = await self.thread()
        asked = script.begin("session/prompt", **prompt(session))
        run = await self.daemon.entered(1)
        await run.do(lambda turn: turn.think("first "))
        for word in ("one ", "two ", "three"):
            await run.say(word)
            await script.until(lambda word=word: script.text().endswith(word))  # type: ignore[misc]
        run.release()
        self.assertEqual(await asked, {"stopReason": "end_turn"})
        self.assertEqual(
            (script.text(), script.text("agent_thought_chunk")), ("one two three", "first ")
        )
        self.assertGreaterEqual(len(script.kinds("agent_message_chunk")), 3)
        ids = {update["messageId"] for update in script.kinds("agent_message_chunk")}
        self.assertEqual(len(ids), 1)

    async def test_every_kind_of_block_reaches_the_agent(self) -> None:
        script, session = await self.thread()
        image = base64.b64encode(b"\x89PNG").decode()
        blocks = [
            {"type": "text", "text": "look at "},
            {"type": "resource_link", "uri": f"file://{self.cwd}/src/a%20b.py", "name": "a b.py"},
            {"type": "resource_link", "uri": "https://x.example/y", "name": "y"},
            {"type": "resource", "resource": {"uri": "file:///etc/x", "text": "with ``` in it"}},
            {"type": "image", "data": image, "mimeType": "image/png"},
            {"type": "resource", "resource": {"uri": "file:///a/b.pdf", "blob": image}},
        ]
        asked = script.begin("session/prompt", sessionId=session, prompt=blocks)
        run = await self.daemon.entered(1)
        self.assertEqual(
            run.prompt,
            "look at @src/a b.py [y](https://x.example/y)\n\n@/etc/x\n````\nwith ``` in it\n````\n",
        )
        kinds = [(file.mime_type, file.file_name) for file in run.turn.attachments]
        self.assertEqual(kinds, [("image/png", "image"), ("application/octet-stream", "b.pdf")])
        run.release()
        await asked
        self.assertEqual(script.kinds("user_message_chunk"), [])

    async def test_a_prompt_that_is_none_is_refused(self) -> None:
        script, session = await self.thread()
        for blocks in ([], None, [{"type": "text", "text": " "}], [{"type": "audio"}], ["x"]):
            code = await self.refused(script, "session/prompt", sessionId=session, prompt=blocks)
            self.assertEqual(code, INVALID_PARAMS, blocks)

    async def test_a_failed_run_is_an_error_with_its_reason(self) -> None:
        script, session = await self.thread()
        asked = script.begin("session/prompt", **prompt(session))
        (await self.daemon.entered(1)).fail("no such model")
        with self.assertRaises(RpcError) as caught:
            await asked
        self.assertEqual(caught.exception.number, INTERNAL_ERROR)
        self.assertIn("no such model", caught.exception.message)
        self.assertEqual(script.text(), "", "not said twice")

    async def test_a_cancel_ends_what_came_before_it_and_nothing_after(self) -> None:
        script, session = await self.thread()
        await script.peer.notify("session/cancel", {"sessionId": session})  # idle: hits nothing
        first = script.begin("session/prompt", **prompt(session, "one"))
        await self.daemon.entered(1)
        second = script.begin("session/prompt", **prompt(session, "two"))
        await asyncio.sleep(0)
        await script.peer.notify("session/cancel", {"sessionId": session})
        third = script.begin("session/prompt", **prompt(session, "three"))
        self.assertEqual(await first, {"stopReason": "cancelled"})
        self.assertEqual(await second, {"stopReason": "cancelled"})
        run = await self.daemon.entered(2)
        self.assertEqual(run.prompt, "three")
        run.release()
        self.assertEqual(await third, {"stopReason": "end_turn"})

    async def test_a_prompt_whose_request_is_taken_back_ends_as_cancelled_and_no_other(
        self,
    ) -> None:
        script, session = await self.thread()
        first = script.begin("session/prompt", **prompt(session, "one"))
        run = await self.daemon.entered(1)
        second = script.begin("session/prompt", **prompt(session, "two"))
        await asyncio.sleep(0)
        number = script.peer._next_id - 1
        await script.peer.notify("$/cancel_request", {"requestId": number})
        self.assertEqual(await second, {"stopReason": "cancelled"})
        run.release()
        self.assertEqual(await first, {"stopReason": "end_turn"})
        third = script.begin("session/prompt", **prompt(session, "three"))
        run = await self.daemon.entered(2)
        await script.peer.notify("$/cancel_request", {"requestId": number + 1})
        self.assertEqual(await third, {"stopReason": "cancelled"})
        self.assertTrue(run.canceled)

    async def test_prompts_of_other_clients_are_shown(self) -> None:
        script, session = await self.thread()
        anna = await self.daemon.join()
        await anna.prompt(session, "from the browser")
        run = await self.daemon.entered(1)
        await run.say("hello")
        run.release()
        await script.until(lambda: script.text() == "hello")
        self.assertEqual(script.text("user_message_chunk"), "from the browser")


class ToolTests(EditorCase):
    async def test_a_tool_call_is_shown_with_kind_place_output_and_result(self) -> None:
        script, session = await self.thread()
        asked = script.begin("session/prompt", **prompt(session))
        run = await self.daemon.entered(1)

        made = await run.do(lambda turn: turn.tool_call("bash", '{"command":"echo\\nhi"}'))

        async def progress(turn: Turn) -> None:
            turn.progress(made, "some output")

        await run.do(progress)
        await script.until(lambda: bool(script.kinds("tool_call_update")))
        await run.do(lambda turn: turn.tool_result(made, "hi", is_error=True))
        run.release()
        await asked
        (call,) = script.kinds("tool_call")
        self.assertEqual(
            (call["title"], call["kind"], call["name"]), ("echo hi", "execute", "bash")
        )
        self.assertEqual(call["rawInput"], {"command": "echo\nhi"})
        shown = script.kinds("tool_call_update")[0]["content"][0]["content"]["text"]
        self.assertIn("some output", shown)
        last = script.kinds("tool_call_update")[-1]
        self.assertEqual((last["toolCallId"], last["status"]), (call["toolCallId"], "failed"))
        self.assertEqual(last["content"][0]["content"]["text"], "hi")

    async def test_a_change_of_a_file_is_a_diff(self) -> None:
        script, session = await self.thread()
        asked = script.begin("session/prompt", **prompt(session))
        run = await self.daemon.entered(1)
        path = os.path.join(self.cwd, "a.txt")

        async def work(turn: Turn) -> None:
            call = await turn.tool_call("write", f'{{"file_path":"{path}","content":"new"}}')
            await turn.file_changed(path, "old", "new")
            await turn.tool_result(call, "written")

        await run.do(work)
        run.release()
        await asked
        update = script.kinds("tool_call_update")[-1]
        diff = {"type": "diff", "path": path, "oldText": "old", "newText": "new"}
        self.assertEqual(update["content"], [diff])
        self.assertEqual(script.kinds("tool_call")[0]["locations"], [{"path": path}])

    async def test_to_dos_title_and_usage_are_shown(self) -> None:
        script, session = await self.thread()
        asked = script.begin("session/prompt", **prompt(session))
        run = await self.daemon.entered(1)
        await run.do(lambda turn: turn.todos([Todo("look", "in_progress"), Todo("act")]))
        await run.do(
            lambda turn: turn.usage(Usage(prompt_tokens=10, completion_tokens=5, cost=0.5))
        )
        anna = await self.daemon.create()
        await anna.call("PUT", f"/sessions/{session}", {"id": session, "title": "a title"})
        run.release()
        await asked
        entries = [
            {"content": "look", "priority": "high", "status": "in_progress"},
            {"content": "act", "priority": "medium", "status": "pending"},
        ]
        self.assertEqual(script.kinds("plan")[-1]["entries"], entries)
        usage = script.kinds("usage_update")[-1]
        self.assertEqual((usage["used"], usage["size"]), (15, 100_000))
        self.assertEqual(usage["cost"], {"amount": 0.5, "currency": "USD"})
        await script.until(lambda: bool(script.kinds("session_info_update")))
        self.assertEqual(script.kinds("session_info_update")[-1]["title"], "a title")


class DialogTests(EditorCase):
    async def begin(self, script: ScriptedEditor, session: str) -> tuple[Any, Any, Any]:
        """A prompt whose agent asks for a permission: the request, the verdict, the answer."""
        asked = script.begin("session/prompt", **prompt(session))
        run = await self.daemon.entered(len(self.daemon.agent.runs) + 1)

        async def ask(turn: Turn) -> Any:
            call = await turn.tool_call("bash", '{"command":"make"}')
            return await turn.permission(
                "bash", "execute", params={"command": "make"}, tool_call_id=call
            )

        verdict = run.begin(ask)
        request = await script.asked.get()
        verdict.add_done_callback(lambda _: run.release())
        return request, verdict, asked

    async def test_a_permission_is_asked_after_its_call_and_the_answer_counts(self) -> None:
        script, session = await self.thread()
        for option, granted in (("allow", True), ("deny", False), ("nonsense", False)):
            request, verdict, asked = await self.begin(script, session)
            self.assertEqual(request.method, "session/request_permission")
            call = script.kinds("tool_call")[-1]
            self.assertEqual(request.params["toolCall"]["toolCallId"], call["toolCallId"])
            kinds = [choice["kind"] for choice in request.params["options"]]
            self.assertEqual(kinds, ["allow_once", "allow_always", "reject_once"])
            request.choose(option)
            self.assertEqual(bool(await verdict), granted, option)
            await asked

    async def test_an_editor_that_cannot_ask_denies(self) -> None:
        script, session = await self.thread()
        request, verdict, asked = await self.begin(script, session)
        request.answer.set_exception(RpcError(METHOD_NOT_FOUND, "what?"))
        self.assertFalse(await verdict)
        await asked

    async def test_a_permission_that_somebody_else_answered_is_withdrawn(self) -> None:
        script, session = await self.thread()
        anna = await self.daemon.join()
        request, verdict, asked = await self.begin(script, session)
        seen = await anna.events.wait_for("permission_request")
        await anna.call("POST", f"/permissions/{seen['id']}", {"action": "allow"})
        self.assertTrue(await verdict)
        await script.until(lambda: script.withdrawn == [request.id])
        self.assertEqual(await asked, {"stopReason": "end_turn"})

    async def test_a_cancel_closes_the_dialog_and_is_no_denial(self) -> None:
        script, session = await self.thread()
        request, verdict, asked = await self.begin(script, session)
        await script.peer.notify("session/cancel", {"sessionId": session})
        request.answer.set_result({"outcome": {"outcome": "cancelled"}})
        self.assertEqual(await asked, {"stopReason": "cancelled"})
        self.assertTrue(verdict.cancelled())

    async def test_a_permission_that_is_open_is_asked_in_an_editor_that_comes_later(self) -> None:
        script, session = await self.thread()
        request, verdict, asked = await self.begin(script, session)
        late = await self.editor()
        await late.request("session/load", sessionId=session, cwd=self.cwd, mcpServers=[])
        (await late.asked.get()).choose("allow")
        self.assertTrue(await verdict)
        await asked
        await script.until(lambda: script.withdrawn == [request.id])

    async def ask(self, script: ScriptedEditor, session: str) -> tuple[Any, Any]:
        asked = script.begin("session/prompt", **prompt(session))
        run = await self.daemon.entered(len(self.daemon.agent.runs) + 1)
        choices = [Choice("r", "Red"), Choice("b", "Blue", "like the sky")]
        questions = [
            Question("q1", "yes_no", question="Go on?", description="with it"),
            Question("q2", "single_choice", "Colour", "Which?", "of them", choices),
            Question("q3", "multi_choice", "", "Which ones?", "of them", choices),
            Question("q4", "free_text", question="Why?", description="in words"),
        ]
        answers = run.begin(lambda turn: turn.ask(questions))
        answers.add_done_callback(lambda _: run.release())
        return answers, asked

    async def test_a_question_is_a_form(self) -> None:
        script, session = await self.thread(**FORMS)
        answers, asked = await self.ask(script, session)
        request = await script.asked.get()
        fields = request.params["requestedSchema"]["properties"]
        names = list(fields)
        kinds = [field["type"] for field in fields.values()]
        self.assertEqual(kinds, ["boolean", "string", "array", "string"])
        self.assertEqual(fields[names[1]]["oneOf"][1]["title"], "Blue: like the sky")
        content = dict(zip(names, (True, "b", ["r", "b"], "because"), strict=True))
        request.answer.set_result({"action": "accept", "content": content})
        found = await answers
        self.assertEqual(found[0].yes, True)
        self.assertEqual([found[1].selected_ids, found[2].selected_ids], [["b"], ["r", "b"]])
        self.assertEqual(found[3].fill_in_text, "because")
        await asked

    async def test_a_form_that_is_declined_dismisses_the_question(self) -> None:
        script, session = await self.thread(**FORMS)
        answers, asked = await self.ask(script, session)
        (await script.asked.get()).answer.set_result({"action": "decline"})
        self.assertIsNone(await answers)
        await asked

    async def test_a_question_as_text_is_left_to_a_client_that_looks_at_the_session(self) -> None:
        script, session = await self.thread()
        await script.request("session/new", cwd=self.cwd)  # now the editor shows another one
        anna = await self.daemon.join()
        shown = {"session_id": session}
        await anna.call("POST", f"/current-session?client_id={anna.id}", shown)
        left = asyncio.Event()
        ask = Thread._ask_as_text

        async def asked_as_text(thread: Thread, batch: Any) -> None:
            await ask(thread, batch)
            left.set()

        with mock.patch.object(Thread, "_ask_as_text", asked_as_text):
            answers, asked = await self.ask(script, session)
            await left.wait()
        self.assertFalse(answers.done())
        (batch,) = (await anna.call("GET", "/questions")).json
        await anna.call("POST", f"/questions/{batch['id']}", {"action": "cancel"})
        self.assertIsNone(await answers)
        await asked

    async def test_without_forms_a_question_is_text_and_does_not_hang(self) -> None:
        script, session = await self.thread()
        answers, asked = await self.ask(script, session)
        self.assertIsNone(await answers)
        await asked
        self.assertIn("**Which?**", script.text())
        self.assertIn("- Blue: like the sky", script.text())


class OptionTests(ErrorCase):
    async def test_the_mode_decides_whether_tools_ask(self) -> None:
        script, session = await self.thread()
        await script.request("session/set_mode", sessionId=session, modeId="auto")
        options = script.kinds("config_option_update")[-1]["configOptions"]
        self.assertEqual(options[0]["currentValue"], "auto")
        asked = script.begin("session/prompt", **prompt(session))
        run = await self.daemon.entered(1)
        verdict = run.begin(lambda turn: turn.permission("bash", "execute"))
        self.assertTrue(await verdict)
        run.release()
        await asked
        params = {"sessionId": session, "configId": "mode", "value": "ask"}
        answer = await script.request("session/set_config_option", **params)
        self.assertEqual(answer["configOptions"][0]["currentValue"], "ask")
        self.assertEqual(script.kinds("current_mode_update")[-1]["currentModeId"], "ask")
        for option, value in (("mode", "x"), ("model", "x/y"), ("other", "x"), ("mode", [])):
            bad: dict[str, Any] = {"sessionId": session, "configId": option, "value": value}
            code = await self.refused(script, "session/set_config_option", **bad)
            self.assertEqual(code, INVALID_PARAMS)


class CommandTests(EditorCase):
    wings: list[Wing] | None = [Commands()]

    async def test_commands_are_listed_and_a_prompt_that_names_one_is_expanded(self) -> None:
        script, session = await self.thread()
        await script.until(lambda: bool(script.kinds("available_commands_update")))
        (command,) = script.kinds("available_commands_update")[-1]["availableCommands"]
        self.assertEqual((command["name"], command["description"]), ("review", "Look at it"))
        self.assertEqual(command["input"], {"hint": "what"})
        for number, text in enumerate(("/review this\nfile", "/other", "/tmp/x"), 1):
            asked = script.begin("session/prompt", **prompt(session, text))
            run = await self.daemon.entered(number)
            expected = "review: this\nfile" if number == 1 else text
            self.assertEqual(run.prompt, expected)
            run.release()
            await asked
        self.assertEqual(script.kinds("user_message_chunk"), [])

    async def test_prompts_run_in_the_order_of_their_arrival(self) -> None:
        script, session = await self.thread()
        prompts = [script.begin("session/prompt", **prompt(session, t)) for t in ("/review a", "b")]
        for number, expected in enumerate(("review: a", "b"), 1):
            run = await self.daemon.entered(number)
            self.assertEqual(run.prompt, expected)
            run.release()
        await asyncio.gather(*prompts)

    async def test_a_command_that_cannot_be_used_is_an_error(self) -> None:
        script, session = await self.thread()
        with self.assertRaisesRegex(RpcError, "an argument is missing"):
            await script.request("session/prompt", **prompt(session, "/review"))
