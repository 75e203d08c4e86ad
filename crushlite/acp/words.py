"""The shapes of the protocol: blocks of a prompt, tool calls, options, forms. Pure functions."""

from __future__ import annotations

import json
import os
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from ..jsonrpc.errors import INVALID_PARAMS, RpcError
from ..protocol.messages import Attachment
from ..protocol.questions import QuestionResponse

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..protocol.messages import ToolCallPart, ToolResultPart
    from ..protocol.permissions import PermissionRequest
    from ..protocol.questions import Question, QuestionBatch
    from ..protocol.sessions import Session, Todo

Update = dict[str, Any]  # the `update` of a session/update

TITLE_CHARS = 120
OPTION_CHARS = 1000  # of what an answer to a permission request would grant
RESULT_CHARS = 100_000  # of a tool's result or output: more than anybody reads in an editor
INPUT_CHARS = 64 * 1024  # of a tool's input that is repeated as it is
_KINDS = {
    **dict.fromkeys(("view", "ls", "read"), "read"),
    **dict.fromkeys(("edit", "multiedit", "write"), "edit"),
    **dict.fromkeys(("grep", "glob", "search", "references", "diagnostics"), "search"),
    **dict.fromkeys(("bash", "shell", "job_output", "job_kill"), "execute"),
    **dict.fromkeys(("fetch", "download", "web_fetch", "web_search"), "fetch"),
    **dict.fromkeys(("todos", "question", "think"), "think"),
}
VERSIONS = ("old_content", "new_content")  # of a file, in what a tool or a request says of it
_BACKTICKS = re.compile("`{3,}")
_TELLING = ("command", "file_path", "path", "pattern", "url", "query", "shell_id", "description")
_OWN = "own:"  # before the ids of an agent's own options
_PRIORITY = {"in_progress": "high", "pending": "medium", "completed": "low"}


# Prompts ----------------------------------------------------------------------------------------


def prompt_of(blocks: Any, cwd: str) -> tuple[str, list[Attachment]]:
    """The text and the attachments of the blocks of a prompt. Raises RpcError."""
    if not isinstance(blocks, list) or not blocks:
        raise RpcError(INVALID_PARAMS, "prompt: a list of at least one content block is needed")
    texts: list[str] = []
    attachments: list[Attachment] = []
    for block in blocks:
        match block:
            case {"type": "text", "text": str(text)}:
                texts.append(text)
            case {"type": "resource_link", "uri": str(uri)}:
                texts.append(_link(uri, block.get("name"), cwd))
            case {"type": "resource", "resource": {"uri": str(uri), "text": str(text)}}:
                texts.append(_fenced(_link(uri, "", cwd), text))
            case {"type": "resource", "resource": {"uri": str(uri), "blob": str(data)} as resource}:
                attachments.append(_attachment(data, resource.get("mimeType"), uri))
            case {"type": "image", "data": str(data)}:
                attachments.append(_attachment(data, block.get("mimeType"), block.get("uri")))
            case _:
                kind = block.get("type") if isinstance(block, dict) else block
                known = "text, image, resource_link, resource"
                raise RpcError(INVALID_PARAMS, f"prompt: {str(kind)[:40]!r} is none of {known}")
    text = _joined(texts)
    if not text.strip() and not attachments:
        raise RpcError(INVALID_PARAMS, "prompt: it is empty")
    return text, attachments


def _joined(texts: list[str]) -> str:
    """The texts of blocks as one. Editors cut a sentence at its links and keep the blanks."""
    result = ""
    for text in texts:
        apart = result and text and not result[-1].isspace() and not text[0].isspace()
        result += f" {text}" if apart else text
    return result


def _link(uri: str, name: Any, cwd: str) -> str:
    """A file as `@path`, relative to the project if it is inside; any other address as it is."""
    if path := path_of(uri):
        return f"@{shown_path(path, cwd)}"
    return f"[{name}]({uri})" if isinstance(name, str) and name else uri


def path_of(uri: str) -> str:
    """The path of a file:// address, empty if it is another one."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return ""
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        return ""
    return unquote(parts.path)


def shown_path(path: str, cwd: str) -> str:
    inside = path.startswith(cwd.rstrip("/") + "/")
    return os.path.relpath(path, cwd) if inside else path


def _fenced(name: str, text: str) -> str:
    longest = max((len(found) for found in _BACKTICKS.findall(text)), default=2)
    fence = "`" * (longest + 1)
    end = "" if text.endswith("\n") else "\n"
    return f"\n\n{name}\n{fence}\n{text}{end}{fence}\n"


def _attachment(data: str, kind: Any, uri: Any) -> Attachment:
    kind = kind if isinstance(kind, str) and kind else "application/octet-stream"
    path = path_of(uri) if isinstance(uri, str) else ""
    name = os.path.basename(path) or ("image" if kind.startswith("image/") else "attachment")
    return Attachment(data, path or name, name, kind)


# Tool calls -------------------------------------------------------------------------------------


def text_content(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def arguments_of(call: ToolCallPart) -> dict[str, Any]:
    """The input of a call; empty while it is incomplete, or if it is no object."""
    try:
        value = json.loads(call.input) if call.input else {}
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def described(name: str, arguments: dict[str, Any], cwd: str) -> dict[str, Any]:
    """Title, kind and locations of a tool call."""
    telling = next((arguments[key] for key in _TELLING if arguments.get(key)), "")
    words = " ".join(str(telling).split())
    path = next((arguments[k] for k in ("file_path", "path") if _is_text(arguments.get(k))), "")
    if path and telling == path:
        words = shown_path(os.path.join(cwd, path), cwd)
    kind = _KINDS.get(name, "other")
    title = words if kind == "execute" and words else f"{name} {words}".strip()
    found: dict[str, Any] = {"title": _cut(title) or "tool", "kind": kind}
    if path:
        location: dict[str, Any] = {"path": os.path.join(cwd, path)}
        line = arguments.get("offset")
        if isinstance(line, int) and 0 <= line < 2**31:
            location["line"] = line + 1
        found["locations"] = [location]
    return found


def raw_input(call: ToolCallPart, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call as `rawInput`; nothing if there are none, or if they are very long:
    an edit is shown as a diff besides."""
    return {"rawInput": arguments} if arguments and len(call.input) <= INPUT_CHARS else {}


def result_content(
    result: ToolResultPart, call: dict[str, Any], versions: tuple[str, str] | None, cwd: str
) -> list[dict[str, Any]]:
    """What a result shows: a diff for the change of a file, else its text, or an image."""
    path = call.get("file_path")
    metadata = _object(result.metadata)
    if _is_text(path) and not result.is_error:
        shown = diff_of(os.path.join(cwd, str(path)), metadata, versions)
        if shown is not None:
            return [shown]
        if _is_text(metadata.get("diff")):
            return [_fenced_text(str(metadata["diff"]))]
    found = [_text(_bounded(result.content))] if result.content else []
    if result.data and result.mime_type.startswith("image/"):
        image = {"type": "image", "data": result.data, "mimeType": result.mime_type}
        found.append({"type": "content", "content": image})
    return found


def diff_of(
    path: str, shown: dict[str, Any], versions: tuple[str, str] | None = None
) -> dict[str, Any] | None:
    """A change of a file as a diff, from what a tool or a permission request says of it, or from
    the versions that were stored; None if neither is known."""
    old, new = (shown.get(key) for key in VERSIONS)
    if isinstance(new, str) or isinstance(old, str):
        before, after = old if isinstance(old, str) else "", new if isinstance(new, str) else ""
    elif versions is not None:
        before, after = versions
    else:
        return None
    return {"type": "diff", "path": path, "oldText": before or None, "newText": after}


def _text(text: str) -> dict[str, Any]:
    return {"type": "content", "content": text_content(text)}


def _fenced_text(text: str) -> dict[str, Any]:
    return _text(_fenced("", _bounded(text)).strip())


def _bounded(text: str) -> str:
    if len(text) <= RESULT_CHARS:
        return text
    return f"{text[:RESULT_CHARS]}\n[{len(text) - RESULT_CHARS} more characters]"


def output_content(text: str) -> list[dict[str, Any]]:
    """The output so far of a running tool."""
    return [_fenced_text(text)]


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _cut(text: str) -> str:
    return text if len(text) <= TITLE_CHARS else text[: TITLE_CHARS - 1] + "…"


# Permissions ------------------------------------------------------------------------------------


def permission_options(request: PermissionRequest) -> list[dict[str, str]]:
    """The answers to a permission request. The id of each is the action that the daemon knows, or
    that of an option which the agent itself offers, marked. One that allows something in more words
    than a person reads before choosing it is not offered."""
    if request.options:
        own = [(f"{_OWN}{one.id}", one.name, one.kind) for one in request.options]
        if not all(one.allows for one in request.options):
            return _options(own)
        return _options([*own, ("deny", "Reject", "reject_once")])
    covered = request.scope or f"every {request.tool_name} ({request.action}) in {request.path}"
    options = [
        ("allow", "Allow once", "allow_once"),
        ("allow_session", f"Allow for this session: {covered}", "allow_always"),
    ]
    if request.rule and request.rule != request.scope:
        options.append(("allow_rule", f"Allow for this session: {request.rule}", "allow_always"))
    if request.rule:
        options.append(("allow_always", f"Always allow: {request.rule}", "allow_always"))
    options.append(("deny", "Reject", "reject_once"))
    return _options(options)


def _options(options: list[tuple[str, str, str]]) -> list[dict[str, str]]:
    return [
        {"optionId": key, "name": name[:OPTION_CHARS], "kind": kind}
        for key, name, kind in options
        if len(name) <= OPTION_CHARS or not kind.startswith("allow")
    ]


def chosen_action(answer: Any, options: list[dict[str, str]]) -> tuple[str, str]:
    """The action that an answer chooses, and the agent's own option, if it is one. Whatever is none
    of those offered is a denial."""
    match answer:
        case {"outcome": {"outcome": "selected", "optionId": str(chosen)}}:
            for option in options:
                if option["optionId"] == chosen and chosen.startswith(_OWN):
                    action = "allow" if option["kind"].startswith("allow") else "deny"
                    return action, chosen.removeprefix(_OWN)
                if option["optionId"] == chosen:
                    return chosen, ""
    return "deny", ""


def was_cancelled(answer: Any) -> bool:
    match answer:
        case {"outcome": {"outcome": "cancelled"}}:
            return True
    return False


# Questions --------------------------------------------------------------------------------------


def form_of(batch: QuestionBatch) -> dict[str, Any]:
    """The schema of a form with a field per question, by its id."""
    fields = {question.id: _field(question) for question in batch.questions}
    return {"type": "object", "properties": fields, "required": list(fields)}


def _field(question: Question) -> dict[str, Any]:
    title = question.label or question.question
    field: dict[str, Any] = {"title": title}
    about = [text for text in (question.question, question.description) if text and text != title]
    if about:
        field["description"] = "\n".join(about)
    choices = [
        {"const": choice.id, "title": f"{choice.label}: {choice.description}".rstrip(": ")}
        for choice in question.choices
    ]
    match question.type:
        case "yes_no":
            return {"type": "boolean", **field}
        case "single_choice" if choices:
            return {"type": "string", **field, "oneOf": choices}
        case "multi_choice" if choices:
            return {"type": "array", **field, "items": {"anyOf": choices}}
    return {"type": "string", **field}


def responses_of(batch: QuestionBatch, answer: Any) -> list[QuestionResponse] | None:
    """The responses in an answer to the form; None if it was declined or makes no sense."""
    if not isinstance(answer, dict) or answer.get("action") != "accept":
        return None
    content = answer.get("content")
    given = content if isinstance(content, dict) else {}
    return [_response(question, given.get(question.id)) for question in batch.questions]


def _response(question: Question, value: Any) -> QuestionResponse:
    if isinstance(value, bool):
        return QuestionResponse(question.id, yes=value)
    values = [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
    if isinstance(value, str):
        values = [value]
    known = {choice.id for choice in question.choices}
    selected = [item for item in values if item in known]
    rest = " ".join(item for item in values if item not in known)
    return QuestionResponse(question.id, selected_ids=selected, fill_in_text=rest)


def batch_message(batch: QuestionBatch) -> str:
    return batch.confirm_title or "\n".join(question.question for question in batch.questions)


def batch_text(batch: QuestionBatch) -> str:
    """The questions as text, for a client that shows no forms."""
    lines = [""]
    for question in batch.questions:
        lines += ["", f"**{question.question}**", *([question.description or ""])]
        for choice in question.choices:
            about = f": {choice.description}" if choice.description else ""
            lines.append(f"- {choice.label}{about}")
    return "\n".join([*lines, "", "(Answer with your next prompt.)", ""])


# Sessions ---------------------------------------------------------------------------------------


def iso_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def plan_of(todos: Iterable[Todo]) -> Update:
    entries = []
    for todo in todos:
        status = todo.status if todo.status in _PRIORITY else "pending"
        entry = {"content": todo.content, "priority": _PRIORITY[status], "status": status}
        entries.append(entry)
    return {"sessionUpdate": "plan", "entries": entries}


def session_info(session: Session, cwd: str) -> dict[str, Any]:
    """An entry of a list of sessions."""
    return {
        "sessionId": session.id,
        "cwd": cwd,
        "title": session.title or "(untitled)",
        "updatedAt": iso_time(session.updated_at),
    }
