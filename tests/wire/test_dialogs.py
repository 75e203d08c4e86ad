"""Permission dialogs, questions and the session dialog of the Crush client, with two clients."""

from __future__ import annotations

import json
from typing import Any

from tests.support.crush import WireCase, parts_of, text_of
from tests.support.go import Refused
from tests.support.gojson import MESSAGE, RESOLVED, SESSION, SHELL_ANSWER, List


def reasons(messages: Any) -> list[tuple[str, str]]:
    """Role and finish reason of each message."""
    return [
        (m["role"], "".join(finish["reason"] for finish in parts_of(m, "finish"))) for m in messages
    ]


class DialogTests(WireCase):
    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        self.anna, self.ben = await self.tui(), await self.tui(self.unix)

    async def dialogs(self, prompt: str) -> list[Any]:
        """The request as both clients get it, each after the notification that it waits."""
        await self.anna.send(prompt)
        requests = []
        for tui in (self.anna, self.ben):
            waiting = await tui.events.wait_for("permission_notification")
            self.assertEqual((waiting["granted"], waiting["denied"]), (False, False))
            request = await tui.events.wait_for("permission_request")
            self.assertEqual(waiting["tool_call_id"], request["tool_call_id"])
            requests.append(request)
        self.assertEqual(requests[0].raw, requests[1].raw)
        return requests

    async def closed(self, word: str) -> None:
        for tui in (self.anna, self.ben):
            note = await tui.events.wait_for("permission_notification")
            self.assertTrue(note[word])
            self.assertNotEqual(note["granted"], note["denied"])

    async def test_the_first_answer_decides_and_closes_both_dialogs(self) -> None:
        mine, theirs = await self.dialogs("@bash touch made && echo done")
        self.assertEqual((mine["tool_name"], mine["action"]), ("bash", "execute"))
        self.assertEqual(mine["params"]["command"], "touch made && echo done")
        self.assertEqual((mine["path"], mine["session_id"]), (str(self.project), self.anna.session))
        self.assertTrue(await self.ben.answer(theirs, "allow"))
        self.assertFalse(await self.anna.answer(mine, "deny"))
        await self.closed("granted")
        await self.anna.events.wait_for("run_complete")
        self.assertTrue((self.project / "made").exists())
        messages = list(self.anna.screen.values())
        self.assertEqual(
            reasons(messages),
            [
                ("user", "stop"),
                ("assistant", "tool_use"),
                ("tool", "stop"),
                ("assistant", "end_turn"),
            ],
        )
        [result] = parts_of(messages[2], "tool_result")
        self.assertEqual(result["tool_call_id"], mine["tool_call_id"])
        metadata = json.loads(result["metadata"])
        self.assertGreater(metadata["start_time"], 1e12, "milliseconds, unlike all other times")
        self.assertEqual(metadata["working_directory"], str(self.project))

    async def test_a_denial_ends_the_turn(self) -> None:
        request, _ = await self.dialogs("@write notes.txt some words")
        self.assertEqual((request["tool_name"], request["action"]), ("write", "write"))
        self.assertEqual(request["params"]["new_content"], "some words")
        self.assertTrue(await self.anna.answer(request, "deny"))
        await self.closed("denied")
        await self.anna.events.wait_for("run_complete")
        messages = list(self.anna.screen.values())
        self.assertEqual(
            reasons(messages), [("user", "stop"), ("assistant", "end_turn"), ("tool", "stop")]
        )
        [result] = parts_of(messages[2], "tool_result")
        self.assertEqual((result["content"], result["is_error"]), ("User denied permission", True))
        self.assertFalse((self.project / "notes.txt").exists())

    async def test_an_answer_for_the_session_is_not_asked_again(self) -> None:
        request, _ = await self.dialogs("@write a.txt one")
        await self.anna.answer(request, "allow_session")
        await self.anna.events.wait_for("run_complete")
        await self.anna.send("@write b.txt two")
        await self.anna.events.wait_for("run_complete")
        self.assertEqual(len(self.anna.events.all("permission_request")), 1)
        self.assertEqual((self.project / "b.txt").read_text(), "two")
        files = self.anna.events.all("file")
        self.assertEqual(
            {f["path"] for f in files}, {str(self.project / n) for n in ("a.txt", "b.txt")}
        )

    async def test_skip_is_seen_by_polling_and_nothing_is_asked(self) -> None:
        await self.anna.toggle_skip()
        await self.ben.probe()
        self.assertTrue(self.ben.skipping)
        await self.anna.send("@bash touch made")
        await self.anna.events.wait_for("run_complete")
        self.assertEqual(self.anna.events.all("permission_request"), [])
        await self.ben.toggle_skip()
        await self.anna.probe()
        self.assertFalse(self.anna.skipping)

    async def test_a_question_is_answered_by_the_other_client(self) -> None:
        await self.anna.send("@ask")
        form = await self.ben.events.wait_for("question_batch_request")
        [question] = form["questions"]
        self.assertEqual([c["id"] for c in question["choices"]], ["pg", "sq"])
        answer = {"request_id": question["id"], "selected_ids": ["pg"]}
        body = {"batch_request_id": "", "responses": [answer]}
        won = await self.ben.post("/questions/answer", body, RESOLVED)
        self.assertEqual(won, {"resolved": True})
        for tui in (self.anna, self.ben):
            note = await tui.events.wait_for("question_batch_notification")
            self.assertEqual(note["batch_id"], form["id"])
        complete = await self.anna.events.wait_for("run_complete")
        self.assertIn('["pg"]', complete["text"])
        cancel = await self.anna.post("/questions/cancel", None, RESOLVED)
        self.assertEqual(cancel, {"resolved": False})


class SessionTests(WireCase):
    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        self.anna, self.ben = await self.tui(), await self.tui()

    async def sent(self, text: str) -> str:
        await self.anna.send(text)
        await self.anna.events.wait_for("run_complete")
        return self.anna.session

    async def listed(self) -> list[Any]:
        return list(await self.anna.get("/sessions", List(SESSION)))

    async def test_new_switch_and_back(self) -> None:
        first = await self.sent("one")
        await self.anna.leave_session()
        second = await self.sent("two")
        self.assertNotEqual(first, second)
        self.assertEqual({s["id"] for s in await self.listed()}, {first, second})
        await self.anna.switch(first)
        self.assertEqual([m["role"] for m in self.anna.screen.values()], ["user", "assistant"])
        seen = {s["id"]: s["attached_clients"] for s in await self.listed()}
        self.assertEqual(seen, {first: 1, second: 0})
        await self.ben.switch(first)
        self.assertEqual(self.ben.screen, self.anna.screen)
        seen = {s["id"]: s["attached_clients"] for s in await self.listed()}
        self.assertEqual(seen, {first: 2, second: 0})
        await self.anna.leave_session()
        self.assertEqual([text_of(m) for m in await self.anna.up_arrow()], ["two", "one"])

    async def test_rename_reaches_everybody_and_keeps_the_counters(self) -> None:
        session = await self.sent("one")
        await self.ben.events.wait_for("session", action="updated", title="Fake Title")
        before = await self.anna.get(f"/sessions/{session}", SESSION)
        self.assertEqual(before["message_count"], 2)
        self.assertGreater(before["prompt_tokens"], 0)
        stale = before | {"prompt_tokens": 0, "cost": 9.5, "message_count": 77}
        renamed = await self.anna.rename(stale, "Renamed")
        event = await self.ben.events.wait_for("session", action="updated", title="Renamed")
        for after in (renamed, event.payload):
            for key in ("id", "message_count", "prompt_tokens", "completion_tokens", "cost"):
                self.assertEqual(after[key], before[key], key)

    async def test_delete_sends_everybody_back_to_the_landing_page(self) -> None:
        session = await self.sent("one")
        await self.ben.switch(session)
        await self.anna.delete(session)
        for tui in (self.anna, self.ben):
            await tui.events.wait_for("session", action="deleted", id=session)
        self.assertEqual(await self.listed(), [])
        with self.assertRaises(Refused):
            await self.anna.get(f"/sessions/{session}", SESSION)
        self.assertEqual(await self.anna.get(f"/sessions/{session}/messages", List(MESSAGE)), [])
        await self.anna.leave_session()
        await self.sent("another")

    async def test_another_model_is_chosen_for_everybody(self) -> None:
        for role in ("large", "small"):
            await self.anna.choose_model(role, {"model": "small-model", "provider": "fake"})
        await self.anna.post("/agent/update")
        await self.ben.events.wait_for("config_changed", workspace_id=self.ben.workspace["id"])
        await self.ben.refresh()
        for tui in (self.anna, self.ben):
            await tui.probe()
            self.assertEqual(tui.agent["model"]["id"], "small-model")
            self.assertEqual(tui.workspace["config"]["models"]["large"]["model"], "small-model")
            recent = tui.workspace["config"]["recent_models"]["large"]
            self.assertEqual((recent[0]["model"], recent[0]["provider"]), ("small-model", "fake"))
        await self.sent("hi")
        self.assertEqual(self.asked[0]["model"], "small-model")
        last = list(self.anna.screen.values())[-1]
        self.assertEqual((last["model"], last["provider"]), ("small-model", "fake"))

    async def test_a_session_brings_back_the_model_it_used(self) -> None:
        first = await self.sent("one")
        await self.anna.choose_model("large", {"model": "small-model", "provider": "fake"})
        await self.anna.post("/agent/update")
        await self.anna.leave_session()
        await self.sent("two")
        await self.anna.switch(first)
        await self.anna.probe()
        self.assertEqual(self.anna.agent["model"]["id"], "large-model")
        await self.sent("three")
        used = [request["model"] for request in self.asked]
        self.assertEqual(used, ["large-model", "small-model", "large-model"])

    async def test_summarize_answers_when_the_summary_is_there(self) -> None:
        session = await self.sent("one")
        await self.anna.post(f"/agent/sessions/{session}/summarize")
        after = await self.anna.get(f"/sessions/{session}", SESSION)
        messages = await self.anna.get(f"/sessions/{session}/messages", List(MESSAGE))
        self.assertEqual(messages[-1]["id"], after["summary_message_id"])
        self.assertTrue(messages[-1]["is_summary_message"])
        self.assertEqual(reasons(messages)[-1], ("assistant", "end_turn"))
        made = await self.ben.events.wait_for("message", is_summary_message=True)
        self.assertEqual(made.action, "created")

    async def test_a_bang_command_answers_and_is_kept(self) -> None:
        session = await self.sent("one")
        body = {"session_id": "", "command": "echo out; exit 3", "term_width": 118}
        path = f"/agent/sessions/{session}/shell"
        answer = await self.anna.post(path, body, SHELL_ANSWER)
        self.assertEqual((answer["output"].strip(), answer["exit_code"]), ("out", 3))
        event = await self.ben.events.wait_for(
            "message", action="created", role="user", session_id=session
        )
        while not parts_of(event.payload, "shell_command"):
            event = await self.ben.events.wait_for("message", action="created", role="user")
        [part] = parts_of(event.payload, "shell_command")
        self.assertEqual((part["command"], part["exit_code"]), ("echo out; exit 3", 3))
