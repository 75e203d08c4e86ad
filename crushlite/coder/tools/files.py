"""view, write, edit and multiedit: reading and changing files.

A change is made only if the model has seen the file as it is now. It asks for permission, showing
the whole file before and after; replaces the file as one step; keeps its mode, its line ends and
its byte order mark; and records both versions in the session's file history. A cancel that comes
while the file is being replaced waits for the record: no change is missing in the history.

The model reads and writes plain line ends (LF). A file with CRLF keeps them; one with both kinds
keeps each where it was not edited.
"""

from __future__ import annotations

import asyncio
import bisect
import difflib
import json
import re
from typing import TYPE_CHECKING, Any

from ...errors import BadRequest
from ...hosting.tasks import run_to_the_end
from ...records import dataclass
from ...worktree.paths import FILE_BYTES, digest, exists, locate, read_bytes, write_bytes
from .arguments import flag, number, objects, plain, schema, text
from .base import ToolOutcome, denied, failure

if TYPE_CHECKING:
    import os

    from ...worktree.paths import Place
    from .base import ToolUse

VIEW_LINES = 2000
LINE_CHARS = 2000
VIEW_CHARS = 200_000  # of one answer: more would fill the context of most models
DIFF_LINES = 20_000  # of larger files no diff is made: it takes too long
MOST_EDITS = 200
BOM = "\ufeff"

_PATH = {"type": "string", "description": "Path of the file, absolute or from the project's root"}


class View:
    name = "view"
    description = (
        "Read a text file, with line numbers. Large files: give offset (first line, from 0) and "
        "limit. Read a file before you change it."
    )
    parameters = schema(
        {
            "file_path": _PATH,
            "offset": {"type": "integer", "description": "First line to show, counted from 0"},
            "limit": {"type": "integer", "description": f"How many lines, {VIEW_LINES} if absent"},
        },
        "file_path",
    )
    read_only = True

    async def run(self, call: ToolUse) -> ToolOutcome:
        place = await _located(call)
        offset, limit = number(call, "offset", 0), number(call, "limit", VIEW_LINES) or VIEW_LINES
        if not place.inside:
            params = {"file_path": str(place.path), "offset": offset, "limit": limit}
            verdict = await call.turn.permission(
                call.name,
                "read",
                description=f"Read a file outside the project: {place.path}",
                params=params,
                path=str(place.path),
                tool_call_id=call.id,
            )
            if not verdict:
                return denied(verdict.reason)
        data, _ = await asyncio.to_thread(read_bytes, place)
        lines = _lines(_plain(_decoded(data, place).removeprefix(BOM)))
        call.context.seen[_key(call, place)] = digest(data)
        await call.turn.file_read(str(place.path))
        shown = _cut(lines[offset : offset + limit])
        if not shown and lines:
            return failure(f"{place.shown} has {len(lines)} lines; offset {offset} is past its end")
        metadata = {"file_path": str(place.path), "content": "\n".join(shown)}
        return ToolOutcome(_numbered(shown, offset, len(lines)), metadata=json.dumps(metadata))


def _cut(lines: list[str]) -> list[str]:
    """As many of the lines as one answer can hold; long ones are cut."""
    shown: list[str] = []
    room = VIEW_CHARS
    for line in lines:
        piece = line if len(line) <= LINE_CHARS else f"{line[:LINE_CHARS]}..."
        room -= len(piece) + 8
        if room < 0:
            break
        shown.append(piece)
    return shown


def _numbered(lines: list[str], offset: int, total: int) -> str:
    """The lines with their numbers, and how to read on if there are more."""
    body = "\n".join(f"{n:6}|{line}" for n, line in enumerate(lines, offset + 1))
    left = total - offset - len(lines)
    more = f"\n({left} more lines; continue with offset {offset + len(lines)})" if left > 0 else ""
    return f"<file>\n{body}\n</file>{more}"


# The file to change -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _File:
    """A file that is to be changed or created, as it is now."""

    place: Place
    data: bytes | None = None  # None: it does not exist
    info: os.stat_result | None = None
    bom: str = ""  # its byte order mark
    raw: str = ""  # its text with its own line ends, without the mark

    @property
    def newline(self) -> str:
        """The line end of most lines."""
        return "\r\n" if self.raw.count("\r\n") * 2 > self.raw.count("\n") else "\n"

    def ended(self, content: str) -> str:
        """A text of the model with the line ends of this file; unchanged for a new file."""
        if self.data is None:
            return content
        return _plain(content).removeprefix(self.bom).replace("\n", self.newline)

    def stored(self, raw: str) -> bytes:
        return (self.bom + raw).encode("utf-8")


def _plain(content: str) -> str:
    """A text with plain line ends."""
    return content.replace("\r\n", "\n")


def _lines(content: str) -> list[str]:
    """The lines of a text. str.splitlines would also split at form feeds and the like, and the
    model would see lines that an edit cannot match."""
    lines = content.split("\n")
    return lines if lines[-1] else lines[:-1]


def _decoded(data: bytes, place: Place) -> str:
    if b"\0" in data[:8192]:
        raise BadRequest(f"{place.shown} is a binary file")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise BadRequest(f"{place.shown} is not UTF-8 text") from None


def _key(call: ToolUse, place: Place) -> tuple[str, str]:
    return call.turn.session_id, str(place.path)


async def _located(call: ToolUse) -> Place:
    return await asyncio.to_thread(locate, call.context.path, text(call, "file_path"))


async def _open(call: ToolUse, *, new: bool = False) -> _File:
    """The file to change; with `new` it need not exist. Raises BadRequest if the model has not seen
    it as it is now."""
    place = await _located(call)
    seen = call.context.seen.get(_key(call, place))
    there = await asyncio.to_thread(exists, place)
    if not there and new:
        return _File(place)
    if not there:
        raise BadRequest(f"{place.shown} does not exist")
    if seen is None:  # checked before reading: outside the project that needs a permission
        raise BadRequest(f"view {place.shown} before you change it")
    data, info = await asyncio.to_thread(read_bytes, place)
    if digest(data) != seen:
        raise BadRequest(f"{place.shown} has changed since you viewed it: view it again")
    content = _decoded(data, place)
    bom = BOM if content.startswith(BOM) else ""
    return _File(place, data, info, bom, content.removeprefix(BOM))


async def _change(
    call: ToolUse, file: _File, after: str, metadata: dict[str, Any]
) -> ToolOutcome | None:
    """Ask for permission, write the file and record the change. Return None, or the outcome of the
    call if the file was not changed."""
    place, data = file.place, file.stored(after)
    if len(data) > FILE_BYTES:
        return failure(f"{place.shown} would be larger than {FILE_BYTES} bytes")
    params = {"old_content": _plain(file.raw), "new_content": _plain(after)}
    verdict = await call.turn.permission(
        call.name,
        "write",
        description=f"{'Change' if file.data is not None else 'Create'} file {place.path}",
        params={"file_path": str(place.path)} | {k: v for k, v in params.items() if v},
        path=str(call.context.path if place.inside else place.path),
        tool_call_id=call.id,
    )
    if not verdict:
        return denied(verdict.reason, metadata)
    # The user may have taken long: the file must still be as it was shown.
    current = await _open(call, new=file.data is None)
    if current.data != file.data or current.place != place:
        return failure(f"{place.shown} changed while permission was asked: view it again")
    await run_to_the_end(_write(call, current, data))
    return None


async def _write(call: ToolUse, file: _File, data: bytes) -> None:
    path = str(file.place.path)
    await asyncio.to_thread(write_bytes, file.place, data, file.info)
    call.context.seen[call.turn.session_id, path] = digest(data)
    before = None if file.data is None else file.data.decode("utf-8")
    await call.turn.file_changed(path, before, data.decode("utf-8"))


def _differences(place: Place, before: str, after: str) -> tuple[str, int, int]:
    """A unified diff, and how many lines it adds and removes. Takes its time: call it in a
    thread."""
    old, new = _lines(_plain(before)), _lines(_plain(after))
    if len(old) + len(new) > DIFF_LINES:
        return "", max(len(new) - len(old), 0), max(len(old) - len(new), 0)
    names = (f"a/{place.shown}", f"b/{place.shown}")
    lines = list(difflib.unified_diff(old, new, *names, lineterm=""))
    added = sum(line.startswith("+") for line in lines[2:])
    removed = sum(line.startswith("-") for line in lines[2:])
    return "".join(f"{line}\n" for line in lines), added, removed


async def _diff(file: _File, after: str) -> tuple[str, int, int]:
    return await asyncio.to_thread(_differences, file.place, file.raw, after)


# The tools that change --------------------------------------------------------------------------


class Write:
    name = "write"
    description = (
        "Create a file, or replace the whole content of one you have viewed. Missing folders are "
        "made. For a small change use edit."
    )
    parameters = schema({"file_path": _PATH, "content": {"type": "string"}}, "file_path", "content")
    read_only = False

    async def run(self, call: ToolUse) -> ToolOutcome:
        content = text(call, "content")
        file = await _open(call, new=True)
        after = file.ended(content)
        if file.data is not None and after == file.raw:
            return failure(f"{file.place.shown} has that content already")
        diff, added, removed = await _diff(file, after)
        metadata = {"diff": diff, "additions": added, "removals": removed}
        refused = await _change(call, file, after, metadata)
        if refused is not None:
            return refused
        what = "replaced" if file.data is not None else "created"
        return ToolOutcome(f"{file.place.shown} {what}", metadata=json.dumps(metadata))


def _replaced(file: _File, raw: str, edit: dict[str, Any]) -> str:
    """The text `raw` after one edit. Raises BadRequest if its old_string does not fit."""
    old = _plain(plain(edit.get("old_string"), "old_string"))
    new = _plain(plain(edit.get("new_string"), "new_string"))
    everywhere = flag(edit.get("replace_all"), "replace_all")
    if old == new:
        raise BadRequest("old_string and new_string are the same")
    if not old:
        raise BadRequest("old_string is empty: use write to replace the whole file")
    content = _plain(raw)
    found = content.count(old)
    if not found:
        raise BadRequest("old_string was not found: it must match the file exactly")
    if found > 1 and not everywhere:
        raise BadRequest(f"old_string was found {found} times: add context, or set replace_all")
    if len(content) == len(raw):
        return content.replace(old, new.replace("\n", file.newline))
    return _spliced(raw, content, old, new.replace("\n", file.newline))


def _spliced(raw: str, content: str, old: str, new: str) -> str:
    """Replace `old`, which is found in `content`, in `raw`, which differs from it in its line
    ends."""
    # Where in `content` the line ends are that have two characters in `raw`.
    double = [found.start() - n for n, found in enumerate(re.finditer("\r\n", raw))]
    pieces: list[str] = []
    done, at = 0, content.find(old)
    while at >= 0:
        end = at + len(old)
        pieces += raw[done : at + bisect.bisect_left(double, at)], new
        done = end + bisect.bisect_left(double, end)
        at = content.find(old, end)
    return "".join([*pieces, raw[done:]])


_EDIT = {
    "old_string": {"type": "string", "description": "Exact text to replace, with its indentation"},
    "new_string": {"type": "string", "description": "What to put in its place"},
    "replace_all": {"type": "boolean", "description": "Replace every occurrence"},
}


class Edit:
    name = "edit"
    description = (
        "Replace one exact piece of text in a file you have viewed. The piece must occur exactly "
        "once, unless replace_all is set. With an empty old_string a new file is created."
    )
    parameters = schema({"file_path": _PATH, **_EDIT}, "file_path", "old_string", "new_string")
    read_only = False

    async def run(self, call: ToolUse) -> ToolOutcome:
        old, new = text(call, "old_string"), text(call, "new_string")
        file = await _open(call, new=not old)
        after = new if file.data is None else _replaced(file, file.raw, call.input)
        _, added, removed = await _diff(file, after)
        metadata = {
            "additions": added,
            "removals": removed,
            "old_content": _plain(file.raw),
            "new_content": _plain(after),
        }
        refused = await _change(call, file, after, metadata)
        if refused is not None:
            return refused
        done = f"{file.place.shown}: {added} lines added, {removed} removed"
        return ToolOutcome(done, metadata=json.dumps(metadata))


class MultiEdit:
    name = "multiedit"
    description = (
        "Make several exact replacements in one file you have viewed, one after the other, as one "
        "change. Edits that do not fit are reported; the others are made."
    )
    parameters = schema(
        {
            "file_path": _PATH,
            "edits": {
                "type": "array",
                "items": schema(_EDIT, "old_string", "new_string"),
                "minItems": 1,
            },
        },
        "file_path",
        "edits",
    )
    read_only = False

    async def run(self, call: ToolUse) -> ToolOutcome:
        edits = objects(call, "edits", MOST_EDITS)
        file = await _open(call)
        after, failed = file.raw, []
        for index, edit in enumerate(edits, 1):
            try:
                after = _replaced(file, after, edit)
            except BadRequest as error:
                failed.append({"index": index, "error": error.message})
        if after == file.raw:
            reasons = "; ".join(f"edit {f['index']}: {f['error']}" for f in failed)
            return failure(f"nothing was changed: {reasons or 'the edits undo each other'}")
        _, added, removed = await _diff(file, after)
        metadata = {
            "additions": added,
            "removals": removed,
            "old_content": _plain(file.raw),
            "new_content": _plain(after),
            "edits_applied": len(edits) - len(failed),
            "edits_failed": failed,
        }
        refused = await _change(call, file, after, metadata)
        if refused is not None:
            return refused
        notes = "".join(f"\nedit {f['index']} failed: {f['error']}" for f in failed)
        done = f"{file.place.shown}: {metadata['edits_applied']} edits made{notes}"
        return ToolOutcome(done, metadata=json.dumps(metadata))
