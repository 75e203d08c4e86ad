"""What clients and models were recorded to see of Crush, compared with the coder over HTTP."""

from __future__ import annotations

import json
from typing import Any

from crushlite.coder.tools.registry import all_tools
from crushlite.fake_model import End, Say
from tests.support.configured import ConfiguredTestCase, chat, results, use


class RecordedShapeTests(ConfiguredTestCase):
    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        self.anna = await self.join()
        self.session = await self.anna.session()

    async def test_a_denied_write_keeps_its_diff_and_stops_the_turn(self) -> None:
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

    async def test_the_dialog_of_a_change_names_the_file(self) -> None:
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

    async def test_a_choice_without_a_description_is_an_error_for_the_model(self) -> None:
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


class CrushScreenTests(ConfiguredTestCase):
    """What Crush's UI reads of tool results: it writes ERROR in front of a result that is an error,
    shows the output of a command from its metadata, and the header of a job from the call and the
    metadata."""

    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        self.anna = await self.join(yolo=True)
        self.session = await self.anna.session()

    async def results_of(self, *calls: list[Any]) -> list[dict[str, Any]]:
        self.plan = [*calls, [Say("done"), End()]]
        self.assertEqual((await self.turn(self.anna, self.session, "go"))["text"], "done")
        return results(await self.anna.messages(self.session))

    async def test_a_failing_command_is_an_error_with_its_code_in_text_and_output(self) -> None:
        failed, fine = await self.results_of(
            use("bash", command="echo no; exit 3", description="Try"),
            use("bash", command="echo yes; true", description="Try"),
        )
        self.assertTrue(failed["is_error"])
        self.assertTrue(failed["content"].startswith("Exit code 3\nno\n\n<cwd>"), failed)
        self.assertEqual(json.loads(failed["metadata"])["output"], "no\nExit code 3")
        self.assertFalse(fine["is_error"])
        shown = {"start_time", "end_time", "output", "description", "working_directory"}
        self.assertEqual(set(json.loads(fine["metadata"])), {*shown, "background"})

    async def test_the_header_of_a_job_is_never_empty(self) -> None:
        command = "echo begun; exec sleep 600"
        found = await self.results_of(
            use("bash", command=command, description="Serve", run_in_background=True),
            use("job_output", shell_id="1"),
            use("job_kill", shell_id="1"),
        )
        for result in found:
            self.assertFalse(result["is_error"], result)
            metadata = json.loads(result["metadata"])
            shown = [metadata[key] for key in ("shell_id", "command", "description")]
            self.assertEqual(shown, ["1", command, "Serve"], result["name"])
        tools = {tool.name: tool for tool in all_tools()}
        for name, keys in (("job_output", {"shell_id", "wait"}), ("job_kill", {"shell_id"})):
            self.assertEqual(set(tools[name].parameters["properties"]), keys)
        kind = tools["job_output"].parameters["properties"]["wait"]["type"]
        self.assertEqual(kind, "boolean", "the client decodes the whole input, or nothing of it")

    async def test_no_error_says_itself_that_it_is_one(self) -> None:
        found = await self.results_of(
            use("view", file_path="none"),
            use("no_such_tool"),
            use("edit", file_path="none", old_string="a", new_string="b"),
            use("bash", command="false; false", description="Fail"),
            use("job_kill", shell_id="9"),
            use("grep", pattern="("),
            use("fetch", url="ftp://x", format="text"),
        )
        for result in found:
            self.assertTrue(result["is_error"], result)
            self.assertFalse(result["content"].lower().startswith("error"), result)
        heard = [text for role, text in chat(self.model.requests[-1]) if role == "tool"]
        self.assertEqual(
            [text[:7] for text in heard], ["Error: "] * len(found), "the model hears it"
        )
