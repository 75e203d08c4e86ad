"""Scripts of the fake model: the steps of an answer, and a script that obeys the prompt."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..records import dataclass

if TYPE_CHECKING:
    from .dialects import Counts


@dataclass(frozen=True, slots=True)
class Say:
    """A piece of text."""

    text: str


@dataclass(frozen=True, slots=True)
class Think:
    """A piece of reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class Use:
    """A tool call. `arguments` are JSON, or the object that it stands for. An empty id is replaced
    by one made of the number of the request."""

    name: str
    arguments: str | Mapping[str, Any] = "{}"
    id: str = ""


@dataclass(frozen=True, slots=True)
class Wait:
    """A pause on the model's clock. If the client disconnects meanwhile, the rest is not played."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Fail:
    """An error answer. Only as the first step: after others the status has been sent."""

    status: int
    message: str
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Refuse:
    """A failure as the API documents it: `unauthorized`, `overflow`, `rate_limit` or `overloaded`.
    After other steps it comes inside the stream."""

    kind: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Abort the connection."""


@dataclass(frozen=True, slots=True)
class Break:
    """End the stream where it is, without the end of the answer."""


@dataclass(frozen=True, slots=True)
class End:
    """The end of the answer. The default reason is tool_calls after a Use, else stop."""

    reason: str = ""
    usage: tuple[int, int] | Counts | None = (10, 5)


Step = Say | Think | Use | Wait | Fail | Refuse | Drop | Break | End
# Is given the body of a request, decoded.
Script = Callable[[dict[str, Any]], Sequence[Step]]


# A script that obeys the prompt -------------------------------------------------------------------


def _messages(request: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages of a request in any of the APIs; in Responses they are items."""
    found = request.get("messages") or request.get("input") or request.get("contents")
    return [m for m in found if isinstance(m, dict)] if isinstance(found, list) else []


def _text_of(content: Any) -> str:
    """The text in a message's content: a string, or a list of parts, which may be tool results."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = (p.get("text") or _text_of(_content(p)) for p in parts if isinstance(p, dict))
    return "\n".join(text for text in texts if text)


def _content(message: dict[str, Any]) -> Any:
    """The content of a message or a result, under the name that its API has for it."""
    result = message.get("functionResponse")
    if isinstance(result, dict) and isinstance(result.get("response"), dict):
        return "\n".join(str(value) for value in result["response"].values())
    found = (message.get(name) for name in ("content", "output", "parts"))
    return next((content for content in found if content), None)


def first_text(request: dict[str, Any]) -> str:
    """The text of the first user message of a request."""
    return next((_text_of(_content(m)) for m in _messages(request) if _is_user(m)), "")


def _is_result(message: dict[str, Any]) -> bool:
    if message.get("role") == "tool" or message.get("type") == "function_call_output":
        return True
    content = message.get("content") or message.get("parts")
    parts = [part for part in content if isinstance(part, dict)] if content else []
    return any(part.get("type") == "tool_result" or "functionResponse" in part for part in parts)


def _is_user(message: dict[str, Any]) -> bool:
    return message.get("role") == "user" and not _is_result(message)


_QUESTIONS = [
    {
        "id": "q1",
        "type": "single_choice",
        "label": "DB",
        "question": "Which database?",
        "description": "Pick one.",
        "choices": [
            {"id": "pg", "label": "Postgres", "description": "big"},
            {"id": "sq", "label": "SQLite", "description": "small"},
        ],
    }
]


def obedient(request: dict[str, Any]) -> list[Step]:
    """A script that obeys the last user message.

    `@bash CMD`, `@write FILE TEXT`, `@ask` and `@tool NAME JSON` call a tool, and the answer to
    its result is "The tool said: ..."; `@slow S` waits S seconds in mid-answer; `@fail [STATUS]`
    answers with an error (400 by default); anything else is answered with "Hello from the model.
    You said: ...". A request without tools is one for a title.
    """
    if not request.get("tools"):
        return [Say("Fake Title"), End()]
    messages = _messages(request)
    last = messages[-1] if messages else {}
    text = _text_of(_content(last))
    if _is_result(last):
        return [Say(f"The tool said: {text}"), End()]
    word, _, rest = text.strip().partition(" ")
    command = _COMMANDS.get(word)
    if command is None:
        return [Say("Hello from the model. "), Say(f"You said: {text}"), End()]
    return command(rest)


def _bash(rest: str) -> list[Step]:
    return _use("bash", {"command": rest, "description": "What the user asked for"})


def _write(rest: str) -> list[Step]:
    name, _, content = rest.partition(" ")
    return _use("write", {"file_path": name, "content": content})


def _ask(rest: str) -> list[Step]:
    return _use("question", {"questions": _QUESTIONS})


def _tool(rest: str) -> list[Step]:
    name, _, arguments = rest.partition(" ")
    return [Use(name, arguments or "{}"), End()]


def _slow(rest: str) -> list[Step]:
    return [Say("One moment. "), Wait(float(rest or 1)), Say("Here I am."), End()]


def _fail(rest: str) -> list[Step]:
    status, _, message = rest.partition(" ")
    return [Fail(int(status or 400), message or "The fake model fails as it was told.")]


def _use(name: str, arguments: dict[str, Any]) -> list[Step]:
    return [Use(name, json.dumps(arguments)), End()]


_COMMANDS: dict[str, Callable[[str], list[Step]]] = {
    "@bash": _bash,
    "@write": _write,
    "@ask": _ask,
    "@tool": _tool,
    "@slow": _slow,
    "@fail": _fail,
}
