"""view, write, edit and multiedit: reading and changing files.

A change is made only if the model has seen the file as it is now. It asks for permission, showing
the whole file before and after; replaces the file as one step; keeps its mode, its line ends and
its byte order mark; and records both versions in the session's file history. A cancel that comes
while the file is being replaced waits for the record: no change is missing in the history.

The model reads and writes plain line ends (LF). A file with CRLF keeps them; one with both kinds
keeps each where it was not edited.
"""

from __future__ import annotations

import bisect
import io
import json
import re
import time
from typing import TYPE_CHECKING, Any

from ...errors import BadRequest
from ...hosting.tasks import run_to_the_end
from ...records import dataclass
from ...worktree.paths import digest, exists, read_bytes, write_bytes
from .arguments import flag, number, objects, plain, schema, text
from .base import ToolOutcome, denied, failure
from .differences import differences
from .scope import file_scope, outside_scope

if TYPE_CHECKING:
    import os

    from ...worktree.paths import Place
    from .base import ToolUse

VIEW_LINES = 2000
LINE_CHARS = 2000
VIEW_CHARS = 200_000  # of one answer: more would fill the context of most models
# Of a file that is changed. Both versions go to every client with the permission request: together,
# as JSON, they are mostly less than the 8 MiB that a stream of events may hold.
CHANGE_BYTES = 2 * 1024 * 1024
SHOWN_CHARS = 512 * 1024  # of both versions: longer ones are not repeated in the metadata
MOST_EDITS = 200
EDIT_SECONDS = 5.0  # for all edits of one call
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
                scope=outside_scope(place),
            )
            if not verdict:
                return denied(verdict.reason)
        seen, shown, total = await call.context.blocking(_viewed, place, offset, limit)
        call.context.seen[_key(call, place)] = seen
        await call.turn.file_read(str(place.path))
        if not shown and total:
            return failure(f"{place.shown} has {total} lines; offset {offset} is past its end")
        metadata = {"file_path": str(place.path), "content": "\n".join(shown)}
        return ToolOutcome(_numbered(shown, offset, total), metadata=json.dumps(metadata))


def _viewed(place: Place, offset: int, limit: int) -> tuple[str, list[str], int]:
    """The digest of a file, the lines of this range, as many as one answer can hold and long ones
    cut, and how many lines the file has. Blocks."""
    data, _ = read_bytes(place)
    shown: list[str] = []
    total, room = 0, VIEW_CHARS
    # One by one: a list of all lines takes twenty times as much memory as the file.
    for line in io.StringIO(_plain(_decoded(data, place).removeprefix(BOM)), newline="\n"):
        if offset <= total < offset + limit and room >= 0:
            piece = line.removesuffix("\n")
            piece = piece if len(piece) <= LINE_CHARS else f"{piece[:LINE_CHARS]}..."
            room -= len(piece) + 8
            if room >= 0:
                shown.append(piece)
        total += 1
    return digest(data), shown, total


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


def _shown(file: _File, after: str) -> tuple[str, str]:
    """A file before and after a change, as the user is to see it: with plain line ends, unless they
    differ. What differs must be seen."""
    texts = [file.raw, after]
    ends = {end for text in texts for end in re.findall("\r?\n", text)}
    if len(ends) > 1 or (file.data is None and "\r\n" in ends):
        return file.raw, after
    return _plain(file.raw), _plain(after)


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
    return await call.context.locate(text(call, "file_path"))


async def _open(call: ToolUse, *, new: bool = False) -> _File:
    """The file to change; with `new` it need not exist. Raises BadRequest if the model has not seen
    it as it is now."""
    place = await _located(call)
    seen = call.context.seen.get(_key(call, place))
    there = await call.context.blocking(exists, place)
    if not there and new:
        return _File(place)
    if not there:
        raise BadRequest(f"{place.shown} does not exist")
    if seen is None:  # checked before reading: outside the project that needs a permission
        raise BadRequest(f"view {place.shown} before you change it")
    return await call.context.blocking(_read, place, seen)


def _read(place: Place, seen: str) -> _File:
    """The file to change. Raises BadRequest if its digest is another than `seen`. Blocks."""
    data, info = read_bytes(place, CHANGE_BYTES)
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
    if len(data) > CHANGE_BYTES:
        return failure(f"{place.shown} would be larger than {CHANGE_BYTES} bytes")
    params = dict(zip(("old_content", "new_content"), _shown(file, after), strict=True))
    verdict = await call.turn.permission(
        call.name,
        "write",
        description=f"{'Change' if file.data is not None else 'Create'} file {place.path}",
        params={"file_path": str(place.path)} | {k: v for k, v in params.items() if v},
        path=str(call.context.path if place.inside else place.path),
        tool_call_id=call.id,
        scope=file_scope(place, call.context.path),
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
    await call.context.blocking(write_bytes, file.place, data, file.info)
    call.context.seen[call.turn.session_id, path] = digest(data)
    before = None if file.data is None else file.data.decode("utf-8")
    await call.turn.file_changed(path, before, data.decode("utf-8"))


async def _diff(call: ToolUse, file: _File, after: str) -> tuple[str, int, int]:
    """A unified diff, and how many lines it adds and removes."""

    def compare() -> tuple[str, int, int]:
        return differences(file.place.shown, _lines(_plain(file.raw)), _lines(_plain(after)))

    return await call.context.blocking(compare)


def _versions(file: _File, after: str) -> dict[str, Any]:
    """Both versions of a file, for clients that show the change; empty if they are very long. The
    permission request holds them in any case."""
    if len(file.raw) + len(after) > SHOWN_CHARS:
        return {}
    return {"old_content": _plain(file.raw), "new_content": _plain(after)}


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
        diff, added, removed = await _diff(call, file, after)
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
    if len(content) + found * (len(new) - len(old)) > CHANGE_BYTES:
        raise BadRequest(f"the file would be larger than {CHANGE_BYTES} bytes")
    if not found:
        raise BadRequest("old_string was not found: it must match the file exactly")
    if found > 1 and not everywhere:
        raise BadRequest(f"old_string was found {found} times: add context, or set replace_all")
    if len(content) == len(raw):
        return content.replace(old, new.replace("\n", file.newline))
    return _spliced(raw, content, old, new.replace("\n", file.newline))


def _edited(file: _File, edits: list[dict[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    """The text after several edits, and those that did not fit. Raises BadRequest if they take more
    than EDIT_SECONDS, or make the file too large."""
    after, failed = file.raw, []
    deadline = time.monotonic() + EDIT_SECONDS
    for index, edit in enumerate(edits, 1):
        if time.monotonic() > deadline:
            raise BadRequest(f"the edits take too long: make {index // 2 or 1} at a time")
        try:
            after = _replaced(file, after, edit)
        except BadRequest as error:
            failed.append({"index": index, "error": error.message})
    return after, failed


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
        after = new
        if file.data is not None:
            after = await call.context.blocking(_replaced, file, file.raw, call.input)
        _, added, removed = await _diff(call, file, after)
        metadata = {
            "additions": added,
            "removals": removed,
            **_versions(file, after),
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
        after, failed = await call.context.blocking(_edited, file, edits)
        if after == file.raw:
            reasons = "; ".join(f"edit {f['index']}: {f['error']}" for f in failed)
            return failure(f"nothing was changed: {reasons or 'the edits undo each other'}")
        _, added, removed = await _diff(call, file, after)
        metadata = {
            "additions": added,
            "removals": removed,
            **_versions(file, after),
            "edits_applied": len(edits) - len(failed),
            "edits_failed": failed,
        }
        refused = await _change(call, file, after, metadata)
        if refused is not None:
            return refused
        notes = "".join(f"\nedit {f['index']} failed: {f['error']}" for f in failed)
        done = f"{file.place.shown}: {metadata['edits_applied']} edits made{notes}"
        return ToolOutcome(done, metadata=json.dumps(metadata))
