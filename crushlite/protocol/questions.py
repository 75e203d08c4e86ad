"""Question batches (the ask-the-user form), their answers and notifications."""

from __future__ import annotations

from dataclasses import dataclass, field

from .codec import omitted, omitted_dict, omitted_list

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
    choices: list[Choice] = omitted_list()


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
    """One answer; the question's id travels as `request_id`."""

    request_id: str = ""
    selected_ids: list[str] = omitted_list()
    fill_in_text: str = omitted()
    yes: bool | None = omitted(None)
    notes: dict[str, str] = omitted_dict()


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
    batch_id: str
