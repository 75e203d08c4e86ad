"""todos and question: showing the user a to-do list, and asking the user questions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ...errors import BadRequest
from ...hosting.dialogs import check_questions
from ...protocol.questions import QUESTION_TYPES, Choice, Question
from ...protocol.sessions import Todo
from .arguments import objects, plain, schema
from .base import ToolOutcome, failure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...protocol.questions import QuestionResponse
    from .base import ToolUse

STATUSES = ("pending", "in_progress", "completed")
MOST_TODOS = 100
TODO_CHARS = 1000
MOST_OBJECTS = 100  # check_questions refuses fewer, with a better message


def _field(item: dict[str, Any], key: str, where: str, default: str | None = None) -> str:
    """A text of an object. Raises BadRequest if it is missing and there is no default."""
    value = item.get(key)
    if value is None and default is not None:
        return default
    return plain(value, f"{where}: {key}")


class Todos:
    name = "todos"
    description = (
        "Replace the to-do list that the user sees. Use it for work of several steps: keep exactly "
        "one item in_progress, and mark each completed as soon as it is."
    )
    parameters = schema(
        {
            "todos": {
                "type": "array",
                "items": schema(
                    {
                        "content": {"type": "string", "description": "What to do: 'Run tests'"},
                        "status": {"type": "string", "enum": list(STATUSES)},
                        "active_form": {
                            "type": "string",
                            "description": "The same while it is done: 'Running tests'",
                        },
                    },
                    "content",
                    "status",
                ),
            }
        },
        "todos",
    )
    read_only = False

    async def run(self, call: ToolUse) -> ToolOutcome:
        todos = _todos(call)
        before = {todo.content: todo.status for todo in (await call.turn.session()).todos}
        await call.turn.todos(todos)
        completed = [todo for todo in todos if todo.status == "completed"]
        started = [
            todo.active_form or todo.content
            for todo in todos
            if todo.status == "in_progress" and before.get(todo.content) != "in_progress"
        ]
        metadata = {
            "is_new": not before,
            "todos": [
                {"content": t.content, "status": t.status, "active_form": t.active_form}
                for t in todos
            ],
            "just_completed": [
                todo.content
                for todo in completed
                if before.get(todo.content, "completed") != "completed"
            ],
            "just_started": started[0] if started else "",
            "completed": len(completed),
            "total": len(todos),
        }
        left = len(todos) - len(completed)
        content = f"The list has {len(todos)} items: {len(completed)} completed, {left} to do."
        return ToolOutcome(content, metadata=json.dumps(metadata))


def _todos(call: ToolUse) -> list[Todo]:
    if call.input.get("todos") == []:
        return []
    todos = []
    for index, item in enumerate(objects(call, "todos", MOST_TODOS), 1):
        where = f"todo {index}"
        content = _field(item, "content", where).strip()
        status = _field(item, "status", where)
        active = _field(item, "active_form", where, "").strip()
        if not 0 < len(content) <= TODO_CHARS or len(active) > TODO_CHARS:
            limit = f"texts have at most {TODO_CHARS} characters"
            raise BadRequest(f"{where}: content is required, and {limit}")
        if status not in STATUSES:
            raise BadRequest(f"{where}: status must be one of {', '.join(STATUSES)}")
        todos.append(Todo(content, status, active))
    return todos


class QuestionTool:
    name = "question"
    description = (
        "Ask the user 1 to 5 questions and wait for the answers. Only for what you cannot find out "
        "yourself and what changes what you do next."
    )
    parameters = schema(
        {
            "questions": {
                "type": "array",
                "minItems": 1,
                "maxItems": 5,
                "items": schema(
                    {
                        "type": {"type": "string", "enum": list(QUESTION_TYPES)},
                        "label": {"type": "string", "description": "One or two words"},
                        "question": {"type": "string", "description": "At most 240 characters"},
                        "description": {
                            "type": "string",
                            "description": "Why it is asked; at most 600 characters",
                        },
                        "choices": {
                            "type": "array",
                            "description": "2 to 5, for single_choice and multi_choice",
                            "items": schema(
                                {
                                    "id": {"type": "string"},
                                    "label": {"type": "string"},
                                    "description": {"type": "string"},
                                },
                                "id",
                                "label",
                                "description",
                            ),
                        },
                    },
                    "type",
                    "question",
                    "description",
                ),
            }
        },
        "questions",
    )
    read_only = False

    async def run(self, call: ToolUse) -> ToolOutcome:
        items = objects(call, "questions", MOST_OBJECTS)
        questions = [_asked(item, n) for n, item in enumerate(items, 1)]
        check_questions(questions)
        if not call.turn.interactive:
            return failure("nobody is there to answer: decide yourself")
        answers = await call.turn.ask(questions, tool_call_id=call.id)
        if answers is None:
            return ToolOutcome("User dismissed the question", is_error=True, stop=True)
        return ToolOutcome(_answered(questions, answers))


def _asked(item: dict[str, Any], number: int) -> Question:
    """One question of the model. Raises BadRequest for one that cannot be shown."""
    where = f"question {number}"
    choices = item.get("choices") or []
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        raise BadRequest(f"{where}: choices must be a list of objects")
    return Question(
        id=f"q{number}",  # not the model's own, which may be missing or used twice
        type=_field(item, "type", where),
        label=_field(item, "label", where, ""),
        question=_field(item, "question", where),
        description=_field(item, "description", where, ""),
        choices=[
            Choice(
                _field(choice, "id", where, ""),
                _field(choice, "label", where),
                _described(choice, where),
            )
            for choice in choices
        ],
    )


def _described(choice: dict[str, Any], where: str) -> str:
    """The description of a choice. Required: a label alone does not say enough to decide."""
    description = _field(choice, "description", where, "")
    if not description:
        raise BadRequest(f"{where}: choice {choice.get('id')!r}: description is required")
    return description


def _answered(questions: Sequence[Question], answers: Sequence[QuestionResponse]) -> str:
    """The questions and their answers, for the model."""
    said = {answer.request_id: _said(answer) for answer in answers}
    return "\n\n".join(
        f"Q{n}: {question.question}\n{said.get(question.id) or 'User gave no answer'}"
        for n, question in enumerate(questions, 1)
    )


def _said(answer: QuestionResponse) -> str:
    lines = []
    if answer.selected_ids:
        lines.append(f"User selected: {json.dumps(answer.selected_ids, ensure_ascii=False)}")
    if answer.yes is not None:
        lines.append(f"User answered: {'yes' if answer.yes else 'no'}")
    if answer.fill_in_text:
        lines.append(f"User wrote: {answer.fill_in_text}")
    lines += [f"Note on {key}: {note}" for key, note in answer.notes.items() if note]
    return "\n".join(lines)
