"""Batches of questions to the user, their answers and notifications."""

from __future__ import annotations

from dataclasses import field

from ..records import dataclass
from .codec import omitted

QUESTION_TYPES = ("yes_no", "single_choice", "multi_choice", "free_text")


@dataclass(slots=True)
class Choice:
    id: str = ""
    label: str = ""
    description: str = omitted()


@dataclass(slots=True)
class Question:
    id: str = ""
    type: str = ""
    label: str = omitted()
    question: str = ""
    description: str = omitted()
    choices: list[Choice] = omitted(list)


@dataclass(slots=True)
class QuestionBatch:
    id: str = ""
    session_id: str = ""
    tool_call_id: str = ""
    questions: list[Question] = field(default_factory=list)
    confirm_title: str = omitted()
    confirm_description: str = omitted()


@dataclass(slots=True)
class QuestionResponse:
    """The answer to one question, whose id is in `request_id`."""

    request_id: str = ""
    selected_ids: list[str] = omitted(list)
    fill_in_text: str = omitted()
    yes: bool | None = omitted(None)
    notes: dict[str, str] = omitted(dict)


@dataclass(slots=True)
class QuestionAnswer:
    """Body of `questions/answer`. The Crush client sends an empty `batch_request_id`."""

    batch_request_id: str = ""
    responses: list[QuestionResponse] = field(default_factory=list)


@dataclass(slots=True)
class QuestionReply:
    """Body of `POST W/questions/{id}`: responses, or `action: cancel`."""

    responses: list[QuestionResponse] = field(default_factory=list)
    action: str = omitted()


@dataclass(slots=True)
class QuestionNotification:
    """A batch is closed: answered, cancelled, or not asked any more."""

    batch_id: str
