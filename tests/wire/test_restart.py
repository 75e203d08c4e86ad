"""A daemon that dies and is started again while two TUIs run. They have only what the Crush client
has: a clean end of the stream, a 404 for the old workspace, and what they cached of it."""

from __future__ import annotations

import json
import signal
from typing import Any

from tests.support.crush import Tui, parts_of, text_of
from tests.support.gojson import AGENT_SESSION, SESSION
from tests.support.process import ProcessCase


class RestartCase(ProcessCase):
    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        self.process = await self.start()
        self.anna, self.ben = await self.tui(), await self.tui()
        self.both = (self.anna, self.ben)
        self.restarts = 0

    async def busy(self, prompt: str) -> None:
        """Anna prompts; Ben looks at the same session."""
        await self.anna.send(prompt)
        await self.ben.switch(self.anna.session)

    async def restart(self, how: signal.Signals) -> None:
        """Restart the daemon after both have lost it, and wait until both have reconnected."""
        old = self.anna.workspace["id"]
        streams = [tui.events for tui in self.both]
        code = await self.stop(self.process, how)
        self.assertEqual(code, 0 if how == signal.SIGTERM else -how)
        for stream in streams:
            await stream.end()
        self.process = await self.start()
        for tui in self.both:
            await tui.returned()
        self.restarts += 1
        self.assertEqual([tui.registered for tui in self.both], [self.restarts] * 2)
        self.assertEqual(self.anna.workspace["id"], self.ben.workspace["id"])
        self.assertNotEqual(self.anna.workspace["id"], old)

    async def assert_idle(self) -> None:
        for tui in self.both:
            session = await tui.get(f"/sessions/{tui.session}", SESSION)
            self.assertFalse(session["is_busy"])
            found = await tui.get(f"/agent/sessions/{tui.session}", AGENT_SESSION)
            self.assertFalse(found["is_busy"])
            await tui.probe()
            self.assertFalse(tui.agent["is_busy"])
            self.assertTrue(tui.agent["is_ready"])
            self.assertEqual(await tui.probe_queue(), [])

    async def assert_works(self) -> None:
        """A prompt of each is shown to its end on both screens."""
        for tui in self.both:
            text = f"and now {tui.id}?"
            await tui.send(text)
            for other in self.both:
                complete = await other.events.wait_for("run_complete", session_id=tui.session)
                self.assertEqual(complete["error"], "")
                self.assertTrue(complete["text"].endswith(text), complete)
                *_, user, assistant = other.screen.values()
                self.assertEqual(text_of(user), text)
                self.assertEqual(text_of(assistant), complete["text"])
        self.assertEqual(list(self.anna.screen), list(self.ben.screen))
        session = await self.anna.get(f"/sessions/{self.anna.session}", SESSION)
        self.assertEqual(session["attached_clients"], 2)

    def created(self, tui: Tui) -> Any:
        """The body of the last create."""
        begin = b"POST /v1/workspaces HTTP"
        *_, last = (sent for sent in tui.transport.sent if sent.startswith(begin))
        return json.loads(last.partition(b"\r\n\r\n")[2])

    def finish(self, tui: Tui) -> dict[str, Any]:
        """The finish reason of the first turn, on a screen."""
        user, assistant, *_ = tui.screen.values()
        self.assertEqual((user["role"], assistant["role"]), ("user", "assistant"))
        [finish] = parts_of(assistant, "finish")
        return finish


class UnixRestartTests(RestartCase):
    async def test_both_come_back_after_a_kill_and_see_what_was_interrupted(self) -> None:
        await self.busy("@slow 3600")
        said = await self.ben.events.wait_for("message", action="updated", role="assistant")
        self.assertEqual(text_of(said.payload), "One moment. ")
        await self.restart(signal.SIGKILL)
        for tui in self.both:
            asked = {"path": str(self.project), "data_dir": tui.workspace["data_dir"]}
            own = {"id": "", "version": "v0.91.2", "client_id": tui.id, "env": self.env}
            self.assertEqual(self.created(tui), asked | own)
            self.assertEqual(text_of(next(iter(tui.screen.values()))), "@slow 3600")
            finish = self.finish(tui)
            self.assertEqual(finish["reason"], "error")
            self.assertIn("interrupted", finish["message"] + finish["details"])
        await self.assert_idle()
        await self.assert_works()

    async def test_both_come_back_after_a_second_kill(self) -> None:
        await self.busy("hello")
        for tui in self.both:
            await tui.events.wait_for("run_complete")
        await self.restart(signal.SIGKILL)
        await self.restart(signal.SIGKILL)
        self.assertEqual(self.finish(self.ben)["reason"], "end_turn")
        await self.assert_idle()
        await self.assert_works()

    async def test_a_snapshot_without_env_is_enough(self) -> None:
        """A client that has read the workspace again, after a change of the configuration, knows no
        environment: the answer holds none of other clients. So it creates again without one."""
        for tui in self.both:
            await tui.refresh()
            self.assertEqual(tui.workspace["env"], [])
        await self.busy("@slow 3600")
        await self.restart(signal.SIGKILL)
        for tui in self.both:
            self.assertNotIn("env", self.created(tui))
            self.assertEqual(tui.agent["model"]["id"], "large-model")
        await self.assert_idle()
        await self.assert_works()

    async def test_a_dialog_that_was_open_is_gone_and_its_command_never_runs(self) -> None:
        await self.busy("@bash touch made")
        requests = [await tui.events.wait_for("permission_request") for tui in self.both]
        await self.restart(signal.SIGKILL)
        for tui, request in zip(self.both, requests, strict=True):
            self.assertFalse(await tui.answer(request, "allow"))
            self.assertEqual(self.finish(tui)["reason"], "error")
            _, assistant, tool = tui.screen.values()
            [call], [result] = parts_of(assistant, "tool_call"), parts_of(tool, "tool_result")
            self.assertTrue(call["finished"])
            self.assertEqual((result["tool_call_id"], result["is_error"]), (call["id"], True))
        await self.assert_idle()
        await self.assert_works()
        self.assertFalse((self.project / "made").exists())
        await self.ben.send("@bash touch made")
        request = await self.anna.events.wait_for("permission_request")
        self.assertTrue(await self.anna.answer(request, "allow"))
        await self.ben.events.wait_for("run_complete")
        self.assertTrue((self.project / "made").exists())

    async def test_both_come_back_after_an_orderly_stop(self) -> None:
        """Runs are cancelled, and their ends published before the streams end."""
        await self.busy("@slow 3600")
        await self.ben.events.wait_for("message", action="updated", role="assistant")
        streams = [tui.events for tui in self.both]
        await self.restart(signal.SIGTERM)
        for stream in streams:
            [complete] = stream.all("run_complete")
            self.assertTrue(complete["cancelled"])
        for tui in self.both:
            self.assertEqual(self.finish(tui)["reason"], "canceled")
        await self.assert_idle()
        await self.assert_works()


class TcpRestartTests(RestartCase):
    tcp = True

    async def test_both_come_back_to_the_same_port_after_a_kill(self) -> None:
        await self.busy("@slow 3600")
        await self.ben.events.wait_for("message", action="updated", role="assistant")
        url = self.url
        await self.restart(signal.SIGKILL)
        self.assertEqual(self.url, url)
        for tui in self.both:
            self.assertEqual(self.finish(tui)["reason"], "error")
        await self.assert_idle()
        await self.assert_works()

    async def test_a_kill_in_the_middle_of_a_long_event_leaves_no_client_deaf(self) -> None:
        """The kernel sends what was written and then the end, so the client sees a clean end."""
        await self.busy("hello")
        for tui in self.both:
            await tui.events.wait_for("run_complete")
        long = "word " * 400_000
        await self.anna.prompt(self.anna.session, long)
        await self.restart(signal.SIGKILL)
        for tui in self.both:
            self.assertTrue(any(text_of(m) == long for m in tui.screen.values()))
        await self.assert_idle()
        await self.assert_works()
