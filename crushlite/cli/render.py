"""What is shown of messages, tool calls and requests in a terminal: each thing once, in what words.

ShownMessages is given messages as they are now: from events while they grow, and from the daemon's
records after a gap or when all is over. It returns the parts that were not shown before, so a
message may be given to it as often as it comes. All commands show such new parts:

    run, attach       the text of the answers as it grows (follow.py)
    chat              everything, on a screen (chat_view.py)
    watch             `brief_line`: at most a line for each
    sessions show     `reading_lines`: everything, for reading
    sessions export   everything, as Markdown (markdown.py)
"""

from __future__ import annotations

import json
import re
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal

from ..protocol.messages import (
    BinaryPart,
    FinishPart,
    ReasoningPart,
    ShellCommandPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from ..protocol.permissions import PermissionNotification, PermissionRequest
from ..protocol.questions import QuestionBatch, QuestionNotification
from ..records import dataclass
from .text import clean, count, cut, diff_row, one_line, visible

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..protocol.messages import Message, Part, ToolOutput
    from .text import Style

CALL_COLUMNS = 40  # of a running call, beside the last line that it has put out
# The inputs of a tool call that say best what it does; the first that is there is shown first.
_FIRST = (
    *("command", "file_path", "path", "pattern", "url", "query"),
    *("shell_id", "question", "description"),
)
_DIRECTORY = "<cwd>.*</cwd>"
_DIFFED = ("old_content", "new_content")
_TRIVIAL: tuple[Any, ...] = (None, "", False, 0, [], {})
# Parameters of our own tools that are left out of a request where they have their usual value.
_USUAL = frozenset(
    {
        *("working_dir", "run_in_background", "auto_background_after", "offset", "limit"),
        *("timeout", "ignore", "depth", "include", "literal_text"),
    }
)
# How the descriptions of our own tools begin; the rest is a parameter.
_STARTS = ("", "Execute command: ", "Pretend to run: ", "Fetch ", "Create file ", "Change file ")

Request = PermissionRequest | QuestionBatch
Verdict = Literal["asked", "allowed", "denied", "closed"]


# Each thing once --------------------------------------------------------------------------------


@dataclass(slots=True)
class NewPart:
    """A part of a message that was not shown before."""

    message: Message
    part: Part  # of a text that has grown: only what is new of it
    call: ToolCallPart | None = None  # of a tool result: the call that it belongs to
    anew: bool = False  # of a text: what was shown of it before is void

    @property
    def is_answer(self) -> bool:
        """Whether it is text that the agent said to the user."""
        return (
            isinstance(self.part, TextPart)
            and self.message.role == "assistant"
            and not self.message.is_summary_message
        )


@dataclass(slots=True)
class _Shown:
    """What was shown of one message."""

    texts: dict[str, str] = field(default_factory=dict)  # of text parts, by key
    parts: set[str] = field(default_factory=set)  # keys of other parts
    finish: FinishPart | None = None  # once this is set, nothing more is shown


class ShownMessages:
    """The messages that were shown so far, and the tool calls that are running."""

    def __init__(self) -> None:
        self._shown: dict[str, _Shown] = {}  # by message
        self._calls: dict[str, ToolCallPart] = {}  # without a result
        self._running: dict[str, str] = {}  # of those that run: the last line they have put out
        self._answered: set[str] = set()  # calls with a result

    def take(self, message: Message, *, final: bool = False) -> list[NewPart]:
        """What is new in a message: its parts that were not returned before, in their order.

        Reasoning, summaries and the inputs of tool calls are returned when they are complete. With
        `final`, what is there now counts as complete. Older states of a message give nothing."""
        shown = self._shown.setdefault(message.id, _Shown())
        if shown.finish is not None:
            return []
        over = final or message.finish is not None
        found = []
        tags: list[str] = []  # a part is known by its tag and its number among those of its tag
        for part in message.parts:
            key = f"{part.tag} {tags.count(part.tag)}"
            tags.append(part.tag)
            if isinstance(part, TextPart):
                new = self._text(message, key, part, shown, over=over)
            else:
                new = self._part(message, key, part, shown, over=over)
            if new is not None:
                found.append(new)
        shown.finish = message.finish
        if shown.finish is not None and shown.finish.reason != "tool_use":
            for call in message.tool_calls:  # it is not run any more
                self._running.pop(call.id, None)
        return found

    def output(self, payload: ToolOutput) -> None:
        """Remember the last line that a running call has put out, for `activity`."""
        lines = clean(payload.output).split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "")
        if payload.tool_call_id in self._running and last:
            self._running[payload.tool_call_id] = one_line(last)

    @property
    def activity(self) -> str:
        """The tool call that was begun last and still runs; empty if none does."""
        for ident, output in reversed(self._running.items()):
            words = call_line(self._calls[ident].name, arguments(self._calls[ident]))
            return f"{cut(words, CALL_COLUMNS)} → {output}" if output else words
        return ""

    def error_shown(self, message_id: str, error: str) -> bool:
        """Whether the end of a message has shown this error."""
        finish = self._shown.get(message_id, _Shown()).finish
        return finish is not None and error in (finish.message, finish.details)

    def _text(
        self, message: Message, key: str, part: TextPart, shown: _Shown, *, over: bool
    ) -> NewPart | None:
        before = shown.texts.get(key, "")
        if before.startswith(part.text) or (message.is_summary_message and not over):
            return None  # nothing new, or an older state
        shown.texts[key] = part.text
        anew = not part.text.startswith(before)
        piece = part.text if anew else part.text[len(before) :]
        return NewPart(message, TextPart(piece), anew=anew)

    def _part(
        self, message: Message, key: str, part: Part, shown: _Shown, *, over: bool
    ) -> NewPart | None:
        call = None
        if isinstance(part, ToolCallPart):
            self._begin(part)
            complete = part.finished or over
        elif isinstance(part, ToolResultPart):
            complete = part.tool_call_id not in self._answered
            call = self._end(part.tool_call_id)
        elif isinstance(part, ReasoningPart):
            later = part.finished_at or message.text or message.tool_calls
            complete = bool(part.thinking.strip()) and bool(later or over)
        else:
            complete = True
        if not complete or key in shown.parts:
            return None
        shown.parts.add(key)
        return NewPart(message, part, call)

    def _begin(self, call: ToolCallPart) -> None:
        if call.id not in self._answered:
            self._calls[call.id] = call
            self._running.setdefault(call.id, "")

    def _end(self, call_id: str) -> ToolCallPart | None:
        self._answered.add(call_id)
        self._running.pop(call_id, None)
        return self._calls.pop(call_id, None)


class Requests:
    """The permission requests and questions that wait for an answer."""

    def __init__(self) -> None:
        self._open: dict[str, Request] = {}  # by what a notification names: tool call or batch

    def take(self, payload: object) -> tuple[Request, Verdict] | None:
        """A request that is new, or the one that was answered with this; else None. An open one
        comes again when a stream was reopened: it is not new then."""
        if isinstance(payload, PermissionRequest | QuestionBatch):
            key = payload.tool_call_id if isinstance(payload, PermissionRequest) else payload.id
            if key in self._open:
                return None
            self._open[key] = payload
            return payload, "asked"
        verdict: Verdict
        if isinstance(payload, PermissionNotification) and (payload.granted or payload.denied):
            key, verdict = payload.tool_call_id, "allowed" if payload.granted else "denied"
        elif isinstance(payload, QuestionNotification):
            key, verdict = payload.batch_id, "closed"
        else:
            return None
        request = self._open.pop(key, None)
        return (request, verdict) if request is not None else None

    @property
    def first(self) -> Request | None:
        """The one that has been open for longest."""
        return next(iter(self._open.values()), None)


# Words ------------------------------------------------------------------------------------------


def arguments(call: ToolCallPart) -> dict[str, Any]:
    """The input of a call; empty as long as it is no complete JSON object."""
    try:
        value = json.loads(call.input)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def call_line(name: str, params: dict[str, Any]) -> str:
    """A tool call in one line: its name, what says best what it does, then the other inputs."""
    telling = next((key for key in _FIRST if isinstance(params.get(key), str)), "")
    words = [name, str(params.get(telling, ""))]
    if asked := _asked_in(params):
        return one_line(f"{name} {asked}")
    words += [
        f"{key}={cut(one_line(_plain(value)), 40)}"
        for key, value in params.items()
        if key != telling and key not in (*_DIFFED, "description") and value not in _TRIVIAL
    ]
    return one_line(" ".join(word for word in words if word))


def _asked_in(params: dict[str, Any]) -> str:
    """The questions in the input of a call that asks some."""
    asked = params.get("questions")
    found = asked if isinstance(asked, list) else []
    texts = [item.get("question") for item in found if isinstance(item, dict)]
    return " / ".join(text for text in texts if isinstance(text, str))


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def result_words(result: ToolResultPart) -> str:
    """What a call resulted in: a line or an error as it is, of anything longer how long it is."""
    lines = [line for line in clean(result.content).splitlines() if line.strip()]
    if len(lines) > 1 and re.fullmatch(_DIRECTORY, lines[-1]):
        lines.pop()  # for the model: where the next command runs
    if not lines:
        return "failed" if result.is_error else "no output"
    if result.is_error or len(lines) == 1:
        more = f" (+{count(len(lines) - 1, 'line')})" if len(lines) > 1 else ""
        return cut(one_line(lines[0]), 100) + more
    return count(len(lines), "line")


def ending_words(finish: FinishPart) -> str:
    """Why a message ended; empty for a usual end."""
    if finish.reason == "canceled":
        return "canceled"
    if finish.reason == "error":
        words = [part for part in (finish.message, finish.details) if part]
        if len(words) == 2 and words[1].lower().startswith(words[0].lower()):
            del words[0]  # the details begin with it
        return clean(": ".join(words)) or "failed"
    if finish.reason == "max_tokens":
        return "cut off: the answer reached the length limit of the model"
    if finish.reason == "content_filter":
        return "stopped by the provider's content filter"
    return ""


def request_words(request: Request) -> str:
    """What a request asks for, in one line."""
    if isinstance(request, PermissionRequest):
        return call_line(request.tool_name, request.params)
    return one_line(" / ".join(question.question for question in request.questions))


# Lines ------------------------------------------------------------------------------------------


def prompt_lines(text: str) -> list[str]:
    """What a user typed, marked in front."""
    first, *rest = clean(text).strip("\n").split("\n")
    return [f"> {first}", *(f"  {line}" for line in rest)]


def shell_lines(part: ShellCommandPart) -> list[str]:
    """What a command of the user's own has put out."""
    return clean(part.output).rstrip("\n").split("\n") if part.output else []


def item_lines(new: NewPart) -> list[str]:
    """All of a tool result: the inputs of its call, and its content."""
    assert isinstance(new.part, ToolResultPart)
    params = arguments(new.call) if new.call is not None else {}
    body = "\n".join(f"{key}: {_plain(value)}" for key, value in params.items())
    content = clean(new.part.content).rstrip("\n").split("\n")
    return [*(clean(body).split("\n") if params else []), "", *content]


def result_line(new: NewPart) -> str:
    """A call with what it resulted in, in one line."""
    assert isinstance(new.part, ToolResultPart)
    call, result = new.call, new.part
    words = call_line(call.name, arguments(call)) if call is not None else one_line(result.name)
    mark = "✗" if result.is_error else "✓"
    return f"{mark} {cut(words, 100)} → {result_words(result)}"


def request_paint(style: Style) -> Callable[[str], str]:
    """Paints the rows of a request: yellow, and the lines of a diff in their colours."""

    def paint(row: str) -> str:
        changed = row[:2] == "  " and row[2:3] in ("+", "-", "@")
        return "  " + diff_row(row[2:], style) if changed else style.yellow(row)

    return paint


def reading_lines(new: NewPart, style: Style) -> list[str]:
    """A part for reading: texts whole, each tool call and each result in a line."""
    part = new.part
    if isinstance(part, TextPart) and part.text.strip():
        if new.message.role == "user":
            return ["", *map(style.cyan, prompt_lines(part.text))]
        text = clean(part.text).strip("\n")
        if not style.terminal:
            return ["", text]
        from .markdown_lines import markdown_rows  # only now: it takes 4 ms to load

        return ["", *markdown_rows(text, style)]
    if isinstance(part, ShellCommandPart):
        code = [style.red(f"exit code {part.exit_code}")] if part.exit_code else []
        return ["", style.cyan(f"$ {clean(part.command)}"), *shell_lines(part), *code]
    if isinstance(part, BinaryPart):
        return [style.dim(f"(attached: {clean(part.path)})")]
    if isinstance(part, ToolCallPart):
        return [style.dim(f"  * {call_line(part.name, arguments(part))}")]
    if isinstance(part, ToolResultPart):
        return [_marked(part, style.dim, style, "    ")]
    if isinstance(part, FinishPart) and (words := ending_words(part)):
        return [style.red(f"  ! {one_line(words)}")]
    return []


def brief_line(new: NewPart, style: Style) -> str:
    """A part in one line, empty if it needs none. An answer has its line when it is complete."""
    part, message = new.part, new.message
    if message.role == "user":
        if isinstance(part, TextPart) and part.text:
            return style.cyan(one_line(f"> {part.text}"))
        if isinstance(part, ShellCommandPart):
            paint = style.red if part.exit_code else style.cyan
            return paint(one_line(f"$ {part.command} (exit code {part.exit_code})"))
        return ""
    if isinstance(part, ToolCallPart):
        return f"tool {call_line(part.name, arguments(part))}"
    if isinstance(part, ToolResultPart):
        return _marked(part, str, style, "  ")
    if isinstance(part, FinishPart) and message.role == "assistant":
        return one_line(message.text) or one_line(ending_words(part))
    return ""


def _marked(result: ToolResultPart, paint: Callable[[str], str], style: Style, indent: str) -> str:
    """A result in one line; one that failed is red."""
    words = result_words(result)
    if result.is_error:
        return style.red(f"{indent}failed: {words}")
    return paint(f"{indent}{words}")


def request_lines(request: PermissionRequest) -> list[str]:
    """All that a user who is asked to allow something needs to see. Nothing is left out: neither
    characters that a terminal would obey nor the end of a long command. The lines of a longer text
    are marked in front, so that none of them can be taken for ours."""
    params = request.params
    lines = [f"{request.tool_name} ({request.action})" if request.action else request.tool_name]
    lines = [" ".join(visible(lines[0]).split("\n"))]
    if request.description and not _repeats(request):
        lines += _named("", request.description)
    hidden = _DIFFED if _changes_file(params) else ()
    for key, value in params.items():
        usual = key in _USUAL and value in _TRIVIAL
        claimed = key == "description" and "command" in params  # the model's words about it
        if key not in hidden and not usual and not claimed:
            lines += _named(f"{key}: ", _plain(value))
    if request.path and request.path not in params.values():
        lines += _named("in: ", request.path)
    if hidden:
        from ..hosting.difference import difference  # only here: `run` must start fast

        old, new = (params.get(key, "") for key in _DIFFED)
        lines += [visible(line) for line in difference(old, new)]
    return lines


def _changes_file(params: dict[str, Any]) -> bool:
    """Whether parameters hold a file before and after a change, to be shown as a diff."""
    given = [params[key] for key in _DIFFED if key in params]
    return bool(given) and all(isinstance(value, str) for value in given)


def _repeats(request: PermissionRequest) -> bool:
    """Whether a description says nothing but what a parameter shows."""
    values = [value for value in request.params.values() if isinstance(value, str)]
    return any(request.description == f"{start}{value}" for start in _STARTS for value in values)


def _named(name: str, value: str) -> list[str]:
    """A value behind its name, if it is one line; else its lines below the name, marked."""
    first, *rest = visible(value).split("\n")
    if not rest:
        return [f"{name}{first}"]
    return [*([name.rstrip()] if name else []), *(f"  | {line}" for line in (first, *rest))]


def scope_words(request: PermissionRequest) -> str:
    """What a grant for the session covers."""
    covered = request.scope or f"every {request.tool_name} ({request.action}) in {request.path}"
    return in_line(covered)


def grant_words(request: PermissionRequest) -> dict[str, str]:
    """What can be granted beyond this one request: by action, what it covers. The rule that is
    offered is left out for the session if it covers the same as a plain grant."""
    found = {"allow_session": f"for this session, {scope_words(request)}"}
    if request.rule and request.rule != request.scope:
        found["allow_rule"] = f"for this session, {in_line(request.rule)}"
    if request.rule:
        found["allow_always"] = f"for good, in your own file, {in_line(request.rule)}"
    return found


def option_lines(request: PermissionRequest) -> list[str]:
    """The answers that the agent itself offers, each with the number to type."""
    return [
        f"{number}: {in_line(option.name)} ({in_line(option.kind).replace('_', ' ')})"
        for number, option in enumerate(request.options, 1)
    ]


def chosen_option(request: PermissionRequest, line: str) -> tuple[str, str] | None:
    """Action and option of the answer that a number stands for; None if it stands for none."""
    number = int(line) if line.isdecimal() and len(line) < 4 else 0
    if not 1 <= number <= len(request.options):
        return None
    option = request.options[number - 1]
    return "allow" if option.allows else "deny", option.id


def in_line(text: str) -> str:
    """A text on one line, with every character that is not plain made visible."""
    return " ".join(visible(text).split("\n"))
