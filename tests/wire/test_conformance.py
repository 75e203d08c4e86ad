"""What the Crush client does, request by request, against a daemon: run, the TUI, prompts, cancel,
dialogs, sessions, quitting. The programs are in tests/support/crush.py; every field they read is
checked."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from typing import Any

from crushlite.fake_model import End, Say, Think, Wait
from tests.support.crush import Exit, Tui, WireCase, parts_of, text_of
from tests.support.go import Refused
from tests.support.gojson import AGENT_INFO, INT, MESSAGE, SESSION, List

# crush run --------------------------------------------------------------------------------------


class RunTests(WireCase):
    async def test_run_prints_the_answer_once(self) -> None:
        for url in (self.tcp, self.unix):
            with self.subTest(url):
                run = self.run_program(url)
                ended = await run.main("hi")
                self.assertEqual(ended, Exit(0, "Hello from the model. You said: hi\n"))
                self.assertEqual(run.workspace["path"], str(self.project))
                self.assertEqual(run.workspace["env"], self.env)
                self.assertEqual(
                    [e["run_id"] for e in run.events.all("run_complete")], [run.run_id]
                )
                [finished] = run.events.all("agent_event", type="agent_finished")
                self.assertEqual(finished["session_id"], run.session["id"])

    async def test_run_sends_what_was_recorded_in_that_order(self) -> None:
        run = self.run_program()
        await run.main("hi")
        sent = [request.partition(b" HTTP/")[0].decode() for request in run.transport.sent]
        base = run.base
        wanted = [
            "POST /v1/workspaces",
            f"POST {base}/agent/init",
            f"GET {base}/agent",
            f"POST {base}/agent/update",
            f"POST {base}/sessions",
            f"GET {base}/events?client_id={run.id}",
            f"POST {base}/agent",
            f"DELETE /v1/clients/{run.id}",
        ]
        self.assertEqual(sent, wanted)
        prompt = run.transport.sent[6].partition(b"\r\n\r\n")[2]
        expected = {"session_id": run.session["id"], "run_id": run.run_id, "prompt": "hi"}
        self.assertEqual(list(json.loads(prompt).items()), list(expected.items()))

    async def test_run_goes_on_with_a_session_by_id_or_the_last_one(self) -> None:
        first = self.run_program()
        await first.main("one")
        session = first.session["id"]
        by_id = self.run_program()
        self.assertEqual((await by_id.main("two", session=session)).code, 0)
        last = self.run_program()
        self.assertEqual((await last.main("three", last=True)).code, 0)
        self.assertEqual((by_id.session["id"], last.session["id"]), (session, session))
        told = [m["content"] for m in self.asked[-1]["messages"] if m["role"] == "user"]
        self.assertEqual(told, ["one", "two", "three"])

    async def test_run_with_a_session_that_is_not_there_asks_for_the_list(self) -> None:
        run = self.run_program()
        ended = await run.main("hi", session="4f2a91")
        self.assertEqual((ended.code, ended.out), (1, ""))
        self.assertTrue(run.transport.sent[-1].startswith(f"GET {run.base}/sessions HTTP".encode()))

    async def test_run_with_a_model_uses_that_model(self) -> None:
        run = self.run_program()
        ended = await run.main("hi", model="fake/small-model")
        self.assertEqual(ended, Exit(0, "Hello from the model. You said: hi\n"))
        self.assertEqual([request["model"] for request in self.asked], ["small-model"])

    async def test_run_goes_on_with_the_model_that_a_session_used(self) -> None:
        first = self.run_program()
        await first.main("one")
        await self.run_program().main("two", model="fake/small-model")
        again = self.run_program()
        self.assertEqual((await again.main("three", session=first.session["id"])).code, 0)
        used = [request["model"] for request in self.asked]
        self.assertEqual(used, ["large-model", "small-model", "large-model"])

    async def test_run_reports_a_failing_model(self) -> None:
        run = self.run_program()
        ended = await run.main("@fail 400 the model says no")
        self.assertEqual((ended.code, ended.out), (1, ""))
        self.assertIn("the model says no", ended.error)
        complete = await run.events.wait_for("run_complete", run_id=run.run_id)
        self.assertIn("the model says no", complete["error"])
        self.assertTrue(complete["message_id"])

    async def test_run_that_is_cancelled_prints_what_there_was_and_exits_0(self) -> None:
        tui = await self.tui()
        self.plan = [[Say("so far "), Wait(3600)]]
        run = self.run_program()
        task = asyncio.create_task(run.main("hi"))
        said = await tui.events.wait_for("message", action="updated", role="assistant")
        self.assertEqual(text_of(said.payload), "so far ")
        await tui.switch(run.session["id"])
        await tui.escape()
        self.assertEqual(await task, Exit(0, "so far \n"))
        complete = await tui.events.wait_for("run_complete", run_id=run.run_id)
        self.assertTrue(complete["cancelled"])
        self.assertEqual(run.events.all("agent_event"), [])

    async def test_run_waits_for_a_dialog_that_a_tui_answers(self) -> None:
        tui, run = await self.tui(), self.run_program()
        task = asyncio.create_task(run.main("@bash touch made"))
        request = await tui.events.wait_for("permission_request")
        self.assertTrue(await tui.answer(request, "allow"))
        ended = await task
        self.assertTrue(ended.out.startswith("The tool said: "), ended)
        self.assertTrue((self.project / "made").exists())

    async def test_two_runs_at_once_each_get_their_own_answer(self) -> None:
        """The client that created the workspace leaves; the others still get their answers."""
        runs = [self.run_program() for _ in range(4)]
        ended = await asyncio.gather(*(run.main(f"hi {n}") for n, run in enumerate(runs)))
        self.assertEqual(
            [one.out for one in ended],
            [f"Hello from the model. You said: hi {n}\n" for n in range(4)],
        )


class OfflineTests(WireCase):
    """The same with the offline agent, which is shown as a provider."""

    agent = "offline"
    configured = False

    async def test_run_prints_the_answer_once(self) -> None:
        run = self.run_program()
        self.assertEqual((await run.main("hi")).out.rstrip("\n"), "You said: hi")
        again = self.run_program()
        self.assertEqual((await again.main("more", last=True)).out.rstrip("\n"), "You said: more")
        self.assertEqual(again.session["id"], run.session["id"])

    async def test_a_tui_prompts_answers_a_dialog_and_quits(self) -> None:
        tui = await self.tui()
        self.assertEqual(tui.agent["model"]["id"], tui.agent["model_cfg"]["model"])
        provider = tui.workspace["config"]["providers"][tui.agent["model_cfg"]["provider"]]
        self.assertEqual(provider["models"], [tui.agent["model"]])
        await tui.send("/tool make check\n/think hard\n/todo a, b")
        request = await tui.events.wait_for("permission_request", tool_name="bash")
        self.assertEqual(request["params"]["command"], "make check")
        self.assertTrue(await tui.answer(request, "allow"))
        complete = await tui.events.wait_for("run_complete")
        listed = await tui.get(f"/sessions/{tui.session}/messages", List(MESSAGE))
        self.assertEqual(listed[-1]["id"], complete["message_id"])
        self.assertEqual(parts_of(listed[-1], "reasoning")[0]["thinking"], "hard ")
        session = await tui.get(f"/sessions/{tui.session}", SESSION)
        self.assertEqual([todo["status"] for todo in session["todos"]], ["completed"] * 2)
        await tui.goodbye()

    async def test_a_tui_cancels_and_keeps_its_sessions_in_order(self) -> None:
        tui = await self.tui(self.unix)
        await tui.send("/slow 60")
        await tui.events.wait_for("message", action="created", role="assistant")
        await tui.escape()
        complete = await tui.events.wait_for("run_complete")
        self.assertTrue(complete["cancelled"])
        first = tui.session
        await tui.leave_session()
        await tui.send("two")
        await tui.events.wait_for("run_complete")
        second = tui.session
        renamed = await tui.rename(await tui.get(f"/sessions/{first}", SESSION), "Renamed")
        self.assertEqual(renamed["title"], "Renamed")
        await tui.switch(first)
        await tui.delete(first)
        await tui.events.wait_for("session", action="deleted", id=first)
        left = await tui.get("/sessions", List(SESSION))
        self.assertEqual([session["id"] for session in left], [second])


# The TUI ----------------------------------------------------------------------------------------


class TuiTests(WireCase):
    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        self.anna = await self.tui()

    async def assert_drawn(self, tui: Tui) -> list[Any]:
        """The screen shows the messages of the server, in their order."""
        listed = await tui.get(f"/sessions/{tui.session}/messages", List(MESSAGE))

        def shown(messages: Any) -> list[Any]:
            return [{k: v for k, v in m.items() if k != "updated_at"} for m in messages]

        self.assertEqual(shown(tui.screen.values()), shown(listed))
        return list(listed)

    async def test_start_shows_the_model_and_an_empty_workspace(self) -> None:
        for url in (self.tcp, self.unix):
            tui = await self.tui(url)
            self.assertEqual(tui.agent["model"]["id"], "large-model")
            self.assertEqual(tui.agent["model"]["context_window"], 200_000)
            self.assertEqual(tui.agent["model_cfg"]["provider"], "fake")
            self.assertEqual((tui.agent["is_busy"], tui.skipping), (False, False))
            config = tui.workspace["config"]
            models = config["providers"]["fake"]["models"]
            self.assertIn(tui.agent["model"], models)
            self.assertEqual(config["models"]["large"]["model"], "large-model")
            self.assertTrue(config["options"]["data_directory"].startswith(str(self.project)))
            self.assertEqual(await tui.up_arrow(), [])

    async def test_start_with_yolo_asks_for_nothing(self) -> None:
        await self.anna.goodbye()
        tui = await self.tui(yolo=True)
        self.assertTrue(tui.skipping)
        self.assertTrue(tui.workspace["yolo"])
        await tui.send("@bash touch made")
        await tui.events.wait_for("run_complete")
        self.assertTrue((self.project / "made").exists())
        self.assertEqual(tui.events.all("permission_request"), [])

    async def test_start_with_the_last_session_shows_it(self) -> None:
        await self.anna.send("hello")
        await self.anna.events.wait_for("run_complete")
        ben = Tui(self.unix, self.project, self.env)
        self.addAsyncCleanup(ben.close)
        await ben.start(last=True)
        self.assertEqual(ben.session, self.anna.session)
        self.assertEqual(list(ben.screen), [m["id"] for m in await self.assert_drawn(self.anna)])
        carl = Tui(self.unix, self.project, self.env)
        self.addAsyncCleanup(carl.close)
        await carl.start(session=self.anna.session)
        self.assertEqual(carl.screen, ben.screen)

    async def test_a_prompt_is_drawn_from_the_stream(self) -> None:
        self.plan = [[Think("hm"), Say("Hello "), Say("there."), End()]]
        await self.anna.send("hi <b> & \u2028 ü")
        complete = await self.anna.events.wait_for("run_complete")
        user, assistant = await self.assert_drawn(self.anna)
        self.assertEqual(text_of(user), "hi <b> & \u2028 ü")
        self.assertEqual(
            user["parts"][-1][1], {"reason": "stop", "time": 0} | {"message": ""} | {"details": ""}
        )
        self.assertEqual((user["model"], user["provider"]), ("", ""))
        self.assertEqual((assistant["model"], assistant["provider"]), ("large-model", "fake"))
        self.assertEqual([tag for tag, _ in assistant["parts"]], ["reasoning", "text", "finish"])
        self.assertEqual(parts_of(assistant, "finish")[0]["reason"], "end_turn")
        self.assertEqual(
            (complete["message_id"], complete["text"]), (assistant["id"], "Hello there.")
        )
        created = self.anna.events.all("message", action="created", id=assistant["id"])
        self.assertEqual(created[0]["parts"], [])
        await self.anna.probe()
        self.assertFalse(self.anna.agent["is_busy"])
        self.assertEqual([text_of(m) for m in await self.anna.up_arrow()], ["hi <b> & \u2028 ü"])

    async def test_a_prompt_carries_its_attachments(self) -> None:
        """A file mentioned with `@` and an image: the file is inlined, both are stored."""
        notes = self.project / "notes.txt"
        notes.write_text("buy milk\n")
        files = [
            ("notes.txt", str(notes), "text/plain", b"buy milk\n"),
            ("dot.png", "dot.png", "image/png", b"\x89PNG\r\n\x00\xff"),
        ]
        await self.anna.send(
            "look",
            [
                {
                    "content": base64.b64encode(content).decode(),
                    "file_path": path,
                    "file_name": name,
                    "mime_type": kind,
                }
                for name, path, kind, content in files
            ],
        )
        await self.anna.events.wait_for("run_complete")
        user, _ = await self.assert_drawn(self.anna)
        kept = [(b["Path"], b["MIMEType"], b["Data"]) for b in parts_of(user, "binary")]
        self.assertEqual(kept, [(path, kind, content) for _, path, kind, content in files])
        self.assertEqual([tag for tag, _ in user["parts"]], ["text", "binary", "binary", "finish"])
        self.assertIn("buy milk", json.dumps(self.asked[0]["messages"][-1]["content"]))
        self.assertLess(abs(time.time() - (await self.anna.last_read(str(notes))).timestamp()), 60)
        self.assertEqual((await self.anna.last_read("/never")).year, 1)

    async def test_escape_cancels_at_once_and_the_end_shows(self) -> None:
        self.plan = [[Say("so far"), Wait(3600)]]
        await self.anna.send("hi")
        await self.anna.events.wait_for("message", action="updated", role="assistant")
        await self.anna.probe()
        self.assertTrue(self.anna.agent["is_busy"])
        streaming = await self.assert_drawn(self.anna)
        self.assertEqual(text_of(streaming[-1]), "so far")
        await self.anna.escape()
        complete = await self.anna.events.wait_for("run_complete")
        self.assertEqual((complete["cancelled"], complete["text"]), (True, "so far"))
        _, assistant = await self.assert_drawn(self.anna)
        self.assertEqual(parts_of(assistant, "finish")[0]["reason"], "canceled")
        self.assertEqual(self.anna.events.all("agent_event"), [])
        await self.anna.probe()
        self.assertFalse(self.anna.agent["is_busy"])
        await self.anna.escape()  # cancelling an idle session is no error

    async def test_escape_clears_the_queue_first(self) -> None:
        self.plan = [[Say("so far"), Wait(3600)]]
        await self.anna.send("hi")
        await self.anna.events.wait_for("message", action="updated", role="assistant")
        for text in ("second", "third"):
            await self.anna.send(text)
        self.assertEqual(await self.anna.probe_queue(), ["second", "third"])
        path = f"/agent/sessions/{self.anna.session}/prompts/queued"
        self.assertEqual(await self.anna.get(path, INT), 2)
        await self.anna.escape()
        self.assertEqual(await self.anna.probe_queue(), [])
        self.assertTrue(self.anna.agent["is_busy"], "the active turn was touched")
        await self.anna.escape()
        await self.anna.events.wait_for("run_complete", text="so far")
        listed = await self.assert_drawn(self.anna)
        self.assertEqual([text_of(m) for m in listed], ["hi", "so far"])

    async def test_quit_says_goodbye_and_the_id_is_spent(self) -> None:
        await self.anna.send("hello")
        await self.anna.events.wait_for("run_complete")
        ben = await self.tui()
        await self.anna.goodbye()
        with self.assertRaises(Refused) as caught:
            await self.anna.create()
        self.assertEqual(caught.exception.status, 409)
        await self.anna.call("DELETE", f"/v1/clients/{self.anna.id}")  # twice is fine
        await self.anna.call("DELETE", f"{ben.base}?client_id={self.anna.id}")  # the old way too
        await ben.probe()
        await ben.goodbye()
        with self.assertRaises(Refused) as caught:
            await ben.get("/agent", AGENT_INFO)
        self.assertEqual(caught.exception.status, 404)

    async def test_a_tui_that_is_killed_leaves_the_others_alone(self) -> None:
        ben = await self.tui()
        self.plan = [[Say("one "), Wait(60), Say("two"), End()]]
        await self.anna.send("hi")
        await ben.events.wait_for("message", action="updated", role="assistant")
        session = self.anna.session
        await self.anna.close()
        await self.model_time.advance(60)
        complete = await ben.events.wait_for("run_complete", session_id=session)
        self.assertEqual((complete["text"], complete["error"]), ("one two", ""))
