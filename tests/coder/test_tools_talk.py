"""todos and question, and what every tool has in common."""

from __future__ import annotations

import json
import re
from typing import Any

from crushlite.coder.tools.registry import all_tools
from crushlite.protocol.questions import QuestionResponse
from crushlite.protocol.sessions import Todo
from tests.support.tools import ToolTestCase

DATABASE: dict[str, Any] = {
    "type": "single_choice",
    "label": "DB",
    "question": "Which database?",
    "description": "Pick one",
    "choices": [
        {"id": "pg", "label": "Postgres", "description": "big"},
        {"id": "sq", "label": "SQLite", "description": "small"},
    ],
}
SURE: dict[str, Any] = {"type": "yes_no", "question": "Sure?", "description": "Really"}
NAME: dict[str, Any] = {"type": "free_text", "question": "Name?", "description": "Any"}


class TodosTests(ToolTestCase):
    async def test_a_to_do_list_is_stored_and_counted(self) -> None:
        todos = [
            {"content": "Write", "status": "in_progress", "active_form": "Writing"},
            {"content": "Test", "status": "pending"},
        ]
        outcome = await self.use("todos", todos=todos)
        self.assertEqual(self.turn.todo_list[1], Todo("Test", "pending", ""))
        self.assertEqual(
            json.loads(outcome.metadata),
            {
                "is_new": True,
                "todos": [todos[0], {**todos[1], "active_form": ""}],
                "just_completed": [],
                "just_started": "Writing",
                "completed": 0,
                "total": 2,
            },
        )

    async def test_the_metadata_says_what_has_changed(self) -> None:
        self.turn.todo_list = [Todo("Write", "in_progress"), Todo("Test"), Todo("Old", "completed")]
        outcome = await self.use(
            "todos",
            todos=[
                {"content": "Write", "status": "completed"},
                {"content": "Test", "status": "in_progress"},
                {"content": "Old", "status": "completed"},
                {"content": "New and done", "status": "completed"},
            ],
        )
        metadata = json.loads(outcome.metadata)
        self.assertEqual(metadata["just_completed"], ["Write"])
        self.assertEqual(metadata["just_started"], "Test")
        self.assertEqual((metadata["completed"], metadata["total"]), (3, 4))
        self.assertFalse(metadata["is_new"])
        outcome = await self.use("todos", todos=[])
        self.assertEqual((outcome.is_error, self.turn.todo_list), (False, []))

    async def test_wrong_lists_are_explained_and_not_stored(self) -> None:
        lists: list[Any] = [
            *(None, 7, "x", {}, [7], ["x"], [None], [{}], [{"content": "x"}]),
            [{"content": "x", "status": "done"}],
            [{"content": "", "status": "pending"}],
            [{"content": "x" * 2000, "status": "pending"}],
            [{"content": 7, "status": "pending"}],
            [{"content": "\ud800", "status": "pending"}],
            [{"content": "x", "status": "pending", "active_form": []}],
            [{"content": "x", "status": "pending"}] * 101,
        ]
        for wrong in lists:
            self.assert_failed(await self.use("todos", todos=wrong))
        self.assertEqual(self.turn.todo_list, [])


class QuestionTests(ToolTestCase):
    async def test_answers_are_put_into_words(self) -> None:
        self.turn.answers = [
            QuestionResponse("q3", fill_in_text="Kim", notes={"pg": "the new one", "sq": ""}),
            QuestionResponse("q1", selected_ids=["pg"]),
            QuestionResponse("q2", yes=False),
        ]
        questions = [{**DATABASE, "id": "same"}, {**SURE, "id": "same"}, NAME, NAME]
        outcome = await self.use("question", questions=questions)
        self.assertEqual(
            outcome.content,
            'Q1: Which database?\nUser selected: ["pg"]\n\n'
            "Q2: Sure?\nUser answered: no\n\n"
            "Q3: Name?\nUser wrote: Kim\nNote on pg: the new one\n\n"
            "Q4: Name?\nUser gave no answer",
        )
        self.assertEqual([q.id for q in self.turn.questions], ["q1", "q2", "q3", "q4"])
        self.assertEqual(self.turn.questions[0].choices[1].label, "SQLite")
        self.turn.answers = [QuestionResponse("q1", yes=True)]
        outcome = await self.use("question", questions=[SURE])
        self.assertEqual(outcome.content, "Q1: Sure?\nUser answered: yes")

    async def test_a_dismissed_question_stops_the_turn(self) -> None:
        outcome = await self.use("question", questions=[SURE])
        self.assertTrue(outcome.is_error)
        self.assertTrue(outcome.stop)

    async def test_without_an_interactive_client_nothing_is_asked(self) -> None:
        self.turn.interactive = False
        self.assert_failed(await self.use("question", questions=[SURE]), "decide yourself")

    async def test_forms_that_cannot_be_shown_are_explained(self) -> None:
        forms: list[Any] = [
            *(None, 7, "x", {}, [], [7], [{}], [SURE] * 6, [SURE] * 101),
            [{**SURE, "type": "slider"}],
            [{**SURE, "description": ""}],
            [{**SURE, "question": 7}],
            [{**SURE, "question": "x" * 300}],
            [{**DATABASE, "choices": []}],
            [{**DATABASE, "choices": "pg"}],
            [{**DATABASE, "choices": ["pg", "sq"]}],
            [{**DATABASE, "choices": [{"id": "a", "label": "A", "description": "x"}] * 2}],
            [{**DATABASE, "choices": [{"id": i, "label": i, "description": ""} for i in "ab"]}],
            [{**DATABASE, "choices": [{"id": "a"}, {"id": "b", "label": "B"}]}],
        ]
        for wrong in forms:
            self.assert_failed(await self.use("question", questions=wrong))
        self.assertEqual(self.turn.questions, [])


class AllToolsTests(ToolTestCase):
    async def test_all_tools_have_a_schema_and_can_be_disabled(self) -> None:
        names = [tool.name for tool in all_tools()]
        wanted = (
            "bash job_output job_kill view ls glob grep edit multiedit write fetch download todos "
            "question"
        )
        self.assertEqual(sorted(names), sorted(wanted.split()))
        self.assertNotIn("bash", [tool.name for tool in all_tools(["bash"])])
        for tool in all_tools():
            with self.subTest(tool.name):
                self.assertTrue(tool.description)
                self.assertEqual(tool.parameters["type"], "object")
                required = set(tool.parameters["required"])
                self.assertLessEqual(required, set(tool.parameters["properties"]))
                self.assertTrue(re.fullmatch("[a-z_]+", tool.name))

    async def test_missing_and_wrong_arguments_never_break_a_tool(self) -> None:
        junk: list[Any] = [None, 0, -1, 1.5, True, "", "\0", "\ud800", [], [[]], {}, {"a": 1}]
        for tool in all_tools():
            keys = list(tool.parameters["properties"])
            for value in junk:
                for key in keys:
                    arguments = dict.fromkeys(keys, "x") | {key: value}
                    outcome = await self.use(tool.name, **arguments)
                    self.assertIsInstance(outcome.content, str)
            if tool.parameters["required"]:
                self.assert_failed(await self.use(tool.name))
