"""What other clients and models were recorded to see, held against the model agent over HTTP."""

from __future__ import annotations

import json
from typing import Any

from crushlite.testing.model import End, Say
from tests.support.configured import ConfiguredTestCase, results, use


class RecordedShapes(ConfiguredTestCase):
    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        self.anna = await self.join()
        self.session = await self.anna.session()

    async def test_a_denied_write_is_told_as_recorded(self) -> None:
        """The dialog names the whole path; the denial keeps the diff, and the turn stops."""
        self.plan = [use("write", "c1", file_path="notes.txt", content="some words\n")]
        run_id = await self.prompt(self.anna, self.session, "@write notes.txt some words")
        request = (await self.anna.events.wait_for("permission_request")).payload
        file = f"{request['path']}/notes.txt"
        self.assertEqual(request["description"], f"Create file {file}")
        self.assertEqual(request["params"], {"file_path": file, "new_content": "some words\n"})
        self.assertTrue(await self.anna.grant(request, "deny"))
        await self.ended(self.anna, run_id)
        stored = await self.anna.messages(self.session)
        [result] = results(stored)
        self.assertEqual((result["content"], result["is_error"]), ("User denied permission", True))
        self.assertEqual(set(json.loads(result["metadata"])), {"diff", "additions", "removals"})
        self.assertEqual(stored[1]["parts"][-1]["data"]["reason"], "end_turn")

    async def test_a_change_names_the_file_too(self) -> None:
        self.plan = [
            use("write", "c1", file_path="a.txt", content="one\n"),
            use("edit", "c2", file_path="a.txt", old_string="one", new_string="two"),
            [Say("done"), End()],
        ]
        run_id = await self.prompt(self.anna, self.session, "go")
        first = (await self.anna.events.wait_for("permission_request", tool_call_id="c1")).payload
        self.assertTrue(await self.anna.grant(first))
        second = (await self.anna.events.wait_for("permission_request", tool_call_id="c2")).payload
        self.assertEqual(second["description"], f"Change file {second['params']['file_path']}")
        self.assertTrue(await self.anna.grant(second))
        self.assertEqual((await self.ended(self.anna, run_id))["text"], "done")

    async def test_a_choice_without_a_description_goes_back_to_the_model(self) -> None:
        """Nobody is asked: a person who sees only labels would decide in the dark."""
        form: dict[str, Any] = {
            "type": "single_choice",
            "question": "Which?",
            "description": "One.",
        }
        form["choices"] = [{"id": key, "label": key.upper()} for key in "ab"]
        self.plan = [use("question", "c1", questions=[form]), [Say("sorry"), End()]]
        run_id = await self.prompt(self.anna, self.session, "ask me")
        self.assertEqual((await self.ended(self.anna, run_id))["text"], "sorry")
        [result] = results(await self.anna.messages(self.session))
        self.assertTrue(result["is_error"])
        self.assertIn("question 1: choice 'a': description is required", result["content"])
        self.assertEqual(self.anna.events.all("question_batch_request"), [])
