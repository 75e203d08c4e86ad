"""Permission requests of external agents: all clients see the agent's own options, and what was
chosen is what the agent gets."""

from __future__ import annotations

import asyncio
import json
import os
from typing import TYPE_CHECKING, Any

from tests.support.hosted import HostedTestCase

if TYPE_CHECKING:
    from crushlite.testing import Participant, Seen


class PermissionTests(HostedTestCase):
    async def request(self, client: Participant, session: str, text: str) -> tuple[str, Seen]:
        """Send a prompt that asks; returns its run and the request."""
        run_id = (await client.prompt(session, text)).json["run_id"]
        return run_id, await client.events.wait_for("permission_request")

    async def answered(self, client: Participant, run_id: str, request: Seen, **answer: Any) -> Any:
        """Answer a request; returns the outcome that the agent got."""
        done = await client.call("POST", f"/permissions/{request['id']}", answer)
        self.assertEqual(done.status, 200, done)
        ended = await client.events.wait_for("run_complete", run_id=run_id)
        self.assertFalse(ended["error"])
        return json.loads(ended["text"])

    async def test_a_request_before_any_tool_call_is_shown_whole_and_with_all_options(self) -> None:
        client, session = await self.join(await self.host())
        run_id, request = await self.request(client, session, "ask f.txt")
        offered = [(option["id"], option["kind"]) for option in request["options"]]
        self.assertEqual(
            offered,
            [
                ("session", "allow_always"),
                ("folder", "allow_always"),
                ("once", "allow_once"),
                ("no", "reject_once"),
            ],
        )
        self.assertEqual((request["tool_name"], request["action"]), ("execute", "execute"))
        self.assertEqual(request["description"], "touch f.txt")
        self.assertEqual(request["params"], {"title": "touch f.txt", "details": "[in /ws]"})
        calls = [
            part["data"]["id"]
            for message in await client.messages(session)
            for part in message.payload["parts"]
            if part["type"] == "tool_call"
        ]
        self.assertEqual(calls, [request["tool_call_id"]])
        await self.answered(client, run_id, request, action="deny")

    async def test_the_agent_gets_the_option_that_was_chosen_or_the_one_that_says_the_same(
        self,
    ) -> None:
        client, session = await self.join(await self.host())
        cases: dict[str, dict[str, str]] = {
            "once": {"action": "allow"},
            "session": {"action": "allow", "option": "session"},
            "folder": {"action": "allow", "option": "folder"},
            "no": {"action": "deny", "reason": "no"},
        }
        for expected, answer in cases.items():
            run_id, request = await self.request(client, session, "ask f.txt")
            got = await self.answered(client, run_id, request, **answer)
            self.assertEqual(got, {"outcome": "selected", "optionId": expected})

    async def test_an_option_that_is_not_offered_or_means_something_else_is_refused(self) -> None:
        client, session = await self.join(await self.host())
        run_id, request = await self.request(client, session, "ask f.txt")
        for wrong in (
            {"action": "allow", "option": "all"},
            {"action": "allow", "option": "no"},
            {"action": "deny", "option": "folder"},
            {"action": "allow_session", "option": "folder"},
        ):
            refused = await client.call("POST", f"/permissions/{request['id']}", wrong)
            self.assertEqual(refused.status, 400, wrong)
        got = await self.answered(client, run_id, request, action="deny", option="no")
        self.assertEqual(got["optionId"], "no")

    async def test_a_grant_for_the_session_covers_the_same_request_and_no_other(self) -> None:
        client, session = await self.join(await self.host())
        run_id, request = await self.request(client, session, "ask f.txt")
        self.assertEqual(request["scope"], "exactly the same again")
        got = await self.answered(client, run_id, request, action="allow_session")
        self.assertEqual(got["optionId"], "once")
        again = await self.ask(client, session, "ask f.txt")
        self.assertEqual(json.loads(again["text"])["optionId"], "once")
        run_id, request = await self.request(client, session, "ask g.txt")
        await self.answered(client, run_id, request, action="deny")

    async def test_a_yes_that_can_only_be_for_always_says_so(self) -> None:
        client, session = await self.join(await self.host())
        run_id, request = await self.request(client, session, "ask always")
        self.assertIn("(to allow it means: Allow for this session)", request["description"])
        got = await self.answered(client, run_id, request, action="deny")
        self.assertEqual(got, {"outcome": "cancelled"})  # it offers nothing that refuses

    async def test_a_request_that_the_agent_takes_back_is_closed_for_everybody(self) -> None:
        client, session = await self.join(await self.host())
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        run_id, request = await self.request(client, session, f"retract {pipe}")
        await asyncio.to_thread(pipe.write_bytes, b"")
        closed = await client.events.wait_for("permission_notification", denied=True)
        self.assertEqual(closed["tool_call_id"], request["tool_call_id"])
        ended = await client.events.wait_for("run_complete", run_id=run_id)
        self.assertEqual(json.loads(ended["text"]), {"outcome": {"outcome": "cancelled"}})

    async def test_a_cancel_answers_what_is_asked_before_it_ends_the_turn(self) -> None:
        client, session = await self.join(await self.host())
        run_id, _ = await self.request(client, session, "ask f.txt")
        await client.cancel(session, wait=10)
        ended = await client.events.wait_for("run_complete", run_id=run_id)
        self.assertTrue(ended["cancelled"])
        self.assertEqual((await client.call("GET", "/permissions")).json, [])
        self.assertEqual((await self.ask(client, session, "say on"))["text"], "on")
        self.assertEqual(len(self.received("initialize")), 1)

    async def test_what_nobody_could_read_is_refused_unasked(self) -> None:
        client, session = await self.join(await self.host())
        done = await self.ask(client, session, "askdiff")
        self.assertEqual(json.loads(done["text"]), {"outcome": "selected", "optionId": "no"})

    async def test_a_run_that_may_do_everything_is_not_asked(self) -> None:
        client, session = await self.join(await self.host())
        done = await self.ask(client, session, "ask f.txt", auto_approve=True)
        self.assertEqual(json.loads(done["text"])["optionId"], "once")
