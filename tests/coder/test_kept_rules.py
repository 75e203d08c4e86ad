"""Rules over HTTP: offered with a request, kept in the user's own file, listed and taken back."""

from __future__ import annotations

import json
import stat
from typing import TYPE_CHECKING, Any

from tests.support.configured import ConfiguredTestCase, notes, use

if TYPE_CHECKING:
    from pathlib import Path

    from crushlite.testing import Participant

COMMAND = "printf x >> log"  # for which no rule by words is possible


class RuleTests(ConfiguredTestCase):
    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        self.anna = await self.join()

    @property
    def own_file(self) -> Path:
        return self.home / ".local" / "share" / "crushlite" / "crush.json"

    async def asked(
        self, command: str, action: str, client: Participant | None = None
    ) -> dict[str, Any] | None:
        """Let the model run a command in a session of its own. Returns the request that was
        answered like that; None if nothing was asked."""
        client = client or self.anna
        self.plan.append(use("bash", "", command=command, description="a test"))
        run_id = await self.prompt(client, await client.session(), "go on")
        seen = await client.events.wait_for(
            lambda event: event.kind in ("run_complete", "permission_request")
        )
        if seen.kind == "run_complete":
            return None
        answer = await client.call("POST", f"/permissions/{seen.payload['id']}", {"action": action})
        self.assertEqual(answer.status, 200, answer.json)
        self.assertTrue(answer.json["resolved"])
        await self.ended(client, run_id)
        return seen.payload

    async def rules(self, client: Participant | None = None) -> list[dict[str, Any]]:
        return list((await (client or self.anna).call("GET", "/permissions/rules")).json)

    async def take_back(self, rule: dict[str, Any], status: int = 200) -> None:
        answer = await self.anna.call("DELETE", f"/permissions/rules/{rule['id']}")
        self.assertEqual(answer.status, status, answer.json)

    async def test_a_rule_for_good_counts_in_every_session_and_is_in_the_user_s_own_file(
        self,
    ) -> None:
        request = await self.asked("touchx made", "allow_always")
        assert request is not None
        self.assertIn("commands that start with `touchx made`", request["rule"])
        self.assertIsNone(await self.asked("touchx made again", "deny"))
        self.assertIsNotNone(await self.asked("touchx made --again", "deny"))
        self.assertIsNotNone(await self.asked("touchx made; touchx other", "deny"))
        [rule] = await self.rules()
        self.assertNotIn("session_id", rule)
        self.assertEqual((rule["words"], rule["path"]), (request["rule"], str(self.project)))
        stored = json.loads(self.own_file.read_text())["permissions"]["rules"]
        self.assertEqual([entry["parts"] for entry in stored], [["starts with touchx made"]])
        self.assertEqual(stat.S_IMODE(self.own_file.stat().st_mode), 0o600)
        self.assertEqual(list(self.project.glob("*crush.json")), [])
        await self.take_back(rule)
        self.assertEqual(await self.rules(), [])
        self.assertIsNotNone(await self.asked("touchx made", "deny"))
        self.assertEqual(json.loads(self.own_file.read_text())["permissions"]["rules"], [])
        await self.take_back(rule, 404)

    async def test_a_rule_for_the_session_ends_with_it(self) -> None:
        session = await self.anna.session()
        for number, expected in enumerate(("asked", "granted")):
            call = f"c{number}"
            self.plan.append(use("bash", call, command=f"touchx made {number}", description=""))
            run_id = await self.prompt(self.anna, session, "go on")
            if not number:
                request = (await self.anna.events.wait_for("permission_request")).payload
                await self.anna.call(
                    "POST", f"/permissions/{request['id']}", {"action": "allow_rule"}
                )
            await self.ended(self.anna, run_id)
            self.assertEqual(f"shown {call}" in notes(self.anna), expected == "asked")
        [rule] = await self.rules()
        self.assertEqual(rule["session_id"], session)
        self.assertIsNotNone(await self.asked("touchx made", "deny"), "another session asks")
        await self.anna.call("DELETE", f"/sessions/{session}")
        self.assertEqual(await self.rules(), [])
        self.assertFalse(self.own_file.exists())

    async def test_the_very_same_command_can_be_kept_and_nothing_else_is(self) -> None:
        self.assertIsNotNone(await self.asked(COMMAND, "allow_always"))
        self.assertIsNone(await self.asked(COMMAND, "deny"))
        self.assertIsNotNone(await self.asked(f"{COMMAND}2", "deny"))

    async def test_rules_count_in_the_directory_that_was_shown_only(self) -> None:
        self.assertIsNotNone(await self.asked("touchx made", "allow_always"))
        ben = await self.join(self.folder("other"))
        self.assertEqual(len(await self.rules(ben)), 1, "it is listed in every workspace")
        self.assertIsNotNone(await self.asked("touchx made", "deny", ben))
        [rule] = await self.rules(ben)
        await ben.call("DELETE", f"/permissions/rules/{rule['id']}")
        self.assertIsNotNone(await self.asked("touchx made", "deny"), "taken back everywhere")

    async def test_a_project_can_switch_rules_off_and_never_add_any(self) -> None:
        self.assertIsNotNone(await self.asked("touchx made", "allow_always"))
        entry = json.loads(self.own_file.read_text())["permissions"]["rules"][0]
        (self.project / "crush.json").write_text(
            json.dumps({"permissions": {"rules": [{**entry, "parts": [f"text {COMMAND}"]}]}})
        )
        await self.anna.call("POST", "/agent/update")
        self.assertEqual(len(await self.rules()), 1)
        self.assertIsNotNone(await self.asked(COMMAND, "deny"))
        self.assertIsNone(await self.asked("touchx made", "deny"))
        for removed in ("-bash", "!bash:execute", "-*"):
            rules = {"permissions": {"allowed_tools": [removed]}}
            (self.project / "crush.json").write_text(json.dumps(rules))
            await self.anna.call("POST", "/agent/update")
            self.assertIsNotNone(await self.asked("touchx made", "deny"), removed)

    async def test_a_rule_that_cannot_be_kept_is_said_and_holds_for_the_session(self) -> None:
        self.own_file.parent.mkdir(parents=True)
        self.own_file.mkdir()
        self.plan.append(use("bash", "", command="touchx made", description=""))
        run_id = await self.prompt(self.anna, await self.anna.session(), "go on")
        request = (await self.anna.events.wait_for("permission_request")).payload
        answer = await self.anna.call(
            "POST", f"/permissions/{request['id']}", {"action": "allow_always"}
        )
        self.assertGreaterEqual(answer.status, 400)
        self.assertIn("allowed for this session, but not kept: ", answer.json["message"])
        await self.ended(self.anna, run_id)
        [rule] = await self.rules()
        self.assertEqual(rule["session_id"], request["session_id"])

    async def test_a_rule_in_another_file_of_the_user_must_be_removed_there(self) -> None:
        self.assertIsNotNone(await self.asked("touchx made", "allow_always"))
        document = json.loads(self.own_file.read_text())
        self.own_file.unlink()
        self.configure(permissions=document["permissions"])
        await self.anna.call("POST", "/agent/update")
        [rule] = await self.rules()
        await self.take_back(rule, 400)
        self.assertIsNone(await self.asked("touchx made", "deny"))

    async def test_an_incomplete_rule_allows_nothing_and_is_said(self) -> None:
        entry = {"tool": "bash", "action": "execute", "path": str(self.project), "parts": []}
        self.configure(permissions={"rules": [entry, {"tool": "bash"}]})
        with self.assertLogs("crushlite.config", "WARNING") as log:
            await self.anna.call("POST", "/agent/update")
        self.assertIn("permissions.rules[0] allows nothing: it has no parts", str(log.output))
        self.assertIn("permissions.rules[1] allows nothing", str(log.output))
        self.assertEqual(await self.rules(), [])
