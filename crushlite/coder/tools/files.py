"""write, edit and multiedit: changing files.

A change is made only if the model has seen the file as it is now. It asks for permission, showing
the whole file before and after; replaces the file as one step; keeps its mode, its line ends and
its byte order mark; and records both versions in the session's file history. A cancel that comes
while the file is being replaced waits for the record: no change is missing in the history.

The model reads and writes plain line ends (LF). A file with CRLF keeps them; one with both kinds
keeps each where it was not edited.
"""

from __future__ import annotations

import bisect
import json
import re
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from ...errors import BadRequest
from ...hosting.tasks import run_to_the_end
from ...records import dataclass
from ...worktree.paths import digest, exists, read_bytes, write_bytes
from ..images import image_type
from . import matching
from .arguments import flag, objects, plain, schema, text
from .base import ToolOutcome, denied, failure, missing
from .differences import differences
from .scope import file_scope

if TYPE_CHECKING:
    import os

    from ...worktree.paths import Place
    from .base import ToolUse

# Of a file that is changed. Both versions go to every client with the permission request: together,
# as JSON, they are mostly less than the 8 MiB that a stream of events may hold.
CHANGE_BYTES = 2 * 1024 * 1024
SHOWN_CHARS = 512 * 1024  # of both versions: longer ones are not repeated in the metadata
MOST_EDITS = 200
EDIT_SECONDS = 5.0  # for all edits of one call
BOM = "\ufeff"

PATH = {"type": "string", "description": "Path of the file, absolute or from the project's root"}


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
        return plain_ends(content).removeprefix(self.bom).replace("\n", self.newline)

    def stored(self, raw: str) -> bytes:
        return (self.bom + raw).encode("utf-8")


def plain_ends(content: str) -> str:
    """A text with plain line ends."""
    return content.replace("\r\n", "\n")


def _shown(file: _File, after: str) -> tuple[str, str]:
    """A file before and after a change, as the user is to see it: with plain line ends, unless they
    differ. What differs must be seen."""
    texts = [file.raw, after]
    ends = {end for text in texts for end in re.findall("\r?\n", text)}
    if len(ends) > 1 or (file.data is None and "\r\n" in ends):
        return file.raw, after
    return plain_ends(file.raw), plain_ends(after)


def _lines(content: str) -> list[str]:
    """The lines of a text. str.splitlines would also split at form feeds and the like, and the
    model would see lines that an edit cannot match."""
    lines = content.split("\n")
    return lines if lines[-1] else lines[:-1]


def decoded(data: bytes, place: Place) -> str:
    """The text of a file. Raises BadRequest, with advice, for one that holds no UTF-8 text."""
    if b"\0" in data[:8192]:
        raise BadRequest(f"{place.shown} is a binary file: use bash with file, strings or xxd")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        advice = f"read it with bash, such as iconv -f latin1 -t utf-8 {place.shown}"
        raise BadRequest(f"{place.shown} is not UTF-8 text: {advice}") from None


def seen_key(call: ToolUse, place: Place) -> tuple[str, str]:
    """Under which a file's content is remembered in ToolContext.seen."""
    return call.turn.session_id, str(place.path)


async def located(call: ToolUse) -> Place:
    """The file that the model wants."""
    return await call.context.locate(text(call, "file_path"))


async def _open(call: ToolUse, *, new: bool = False) -> _File:
    """The file to change; with `new` it need not exist. Raises BadRequest if the model has not seen
    it as it is now."""
    place = await located(call)
    seen = call.context.seen.get(seen_key(call, place))
    there = await call.context.blocking(exists, place)
    if not there and new:
        return _File(place)
    if not there:
        raise await call.context.blocking(missing, place, call.context.path)
    if await call.context.blocking(place.path.is_dir):
        raise BadRequest(f"{place.shown} is a directory: name a file in it")
    if seen is None:  # checked before reading: outside the project that needs a permission
        if place.inside:
            await call.context.blocking(_require_text, place)
        raise BadRequest(f"view {place.shown} before you change it")
    return await call.context.blocking(_read, place, seen)


def _require_text(place: Place) -> None:
    """Raise BadRequest, with advice, for a file that view would not let the model change: it holds
    no UTF-8 text, or is too large. Blocks."""
    try:
        data, _ = read_bytes(place, CHANGE_BYTES)
        if image_type(data):
            raise BadRequest(f"{place.shown} is an image")
        decoded(data, place)
    except BadRequest as error:
        advice = "change it with bash, such as sed -i, or python3 that opens it as bytes"
        raise BadRequest(f"{error.message}; {advice}") from None


def _read(place: Place, seen: str) -> _File:
    """The file to change. Raises BadRequest if its digest is another than `seen`. Blocks."""
    data, info = read_bytes(place, CHANGE_BYTES)
    if digest(data) != seen:
        raise BadRequest(f"{place.shown} has changed since you viewed it: view it again")
    content = decoded(data, place)
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
        return differences(
            file.place.shown, _lines(plain_ends(file.raw)), _lines(plain_ends(after))
        )

    return await call.context.blocking(compare)


def _versions(file: _File, after: str) -> dict[str, Any]:
    """Both versions of a file, for clients that show the change; empty if they are very long. The
    permission request holds them in any case."""
    if len(file.raw) + len(after) > SHOWN_CHARS:
        return {}
    return {"old_content": plain_ends(file.raw), "new_content": plain_ends(after)}


# The tools that change --------------------------------------------------------------------------


class Write:
    name = "write"
    description = (
        "Create a file, or replace the whole content of one you have viewed. Missing folders are "
        "made. For a small change use edit."
    )
    parameters = schema({"file_path": PATH, "content": {"type": "string"}}, "file_path", "content")
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


class _Edited(NamedTuple):
    """A text after one or several edits, and what the model must know about them."""

    raw: str
    notes: tuple[str, ...] = ()
    failed: tuple[dict[str, Any], ...] = ()  # edits that did not fit: their number and the error


def _replaced(file: _File, raw: str, edit: dict[str, Any]) -> _Edited:
    """The text `raw` after one edit. Raises BadRequest, which says why, if its old_string does not
    fit."""
    old = plain_ends(plain(edit.get("old_string"), "old_string"))
    new = plain_ends(plain(edit.get("new_string"), "new_string"))
    everywhere = flag(edit.get("replace_all"), "replace_all")
    if old == new:
        raise BadRequest("old_string and new_string are the same: nothing would change")
    if not old:
        raise BadRequest("old_string is empty: use write to replace the whole file")
    content = plain_ends(raw)
    found = content.count(old)
    notes: tuple[str, ...] = ()
    if not found:
        moved = None if everywhere else matching.reindented(content, old, new)
        if moved is None:
            raise BadRequest(f"old_string was not found: {matching.explain(content, old, new)}")
        old, new, line = moved
        note = f"old_string had another indentation than line {line}: made with that of the file"
        found, notes = 1, (note,)
    if len(content) + found * (len(new) - len(old)) > CHANGE_BYTES:
        raise BadRequest(f"the file would be larger than {CHANGE_BYTES} bytes")
    if found > 1 and not everywhere:
        raise BadRequest(matching.ambiguous(content, old, found))
    if len(content) == len(raw):
        return _Edited(content.replace(old, new.replace("\n", file.newline)), notes)
    return _Edited(_spliced(raw, content, old, new.replace("\n", file.newline)), notes)


def _edited(file: _File, edits: list[dict[str, Any]]) -> _Edited:
    """The text after several edits. Of a file that does not exist, the first one is its content.
    Raises BadRequest if they take more than EDIT_SECONDS, or make the file too large."""
    after = file.raw
    notes: list[str] = []
    failed: list[dict[str, Any]] = []
    deadline = time.monotonic() + EDIT_SECONDS
    for index, edit in enumerate(edits, 1):
        if time.monotonic() > deadline:
            raise BadRequest(f"the edits take too long: make {index // 2 or 1} at a time")
        try:
            if file.data is None and index == 1:
                after = plain(edit.get("new_string"), "new_string")
                continue
            after, more, _ = _replaced(file, after, edit)
            notes += [f"edit {index}: {note}" for note in more]
        except BadRequest as error:
            failed.append({"index": index, "error": error.message})
    return _Edited(after, tuple(notes), tuple(failed))


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
    "old_string": {
        "type": "string",
        "description": "Exact text to replace, with its indentation and without line numbers",
    },
    "new_string": {"type": "string", "description": "What to put in its place"},
    "replace_all": {"type": "boolean", "description": "Replace every occurrence"},
}


class Edit:
    name = "edit"
    description = (
        "Replace one exact piece of text in a file you have viewed. The piece must occur exactly "
        "once, unless replace_all is set. With an empty old_string a new file is created."
    )
    parameters = schema({"file_path": PATH, **_EDIT}, "file_path", "old_string", "new_string")
    read_only = False

    async def run(self, call: ToolUse) -> ToolOutcome:
        old, new = text(call, "old_string"), text(call, "new_string")
        file = await _open(call, new=not old)
        edited = _Edited(new)
        if file.data is not None:
            edited = await call.context.blocking(_replaced, file, file.raw, call.input)
        after = edited.raw
        _, added, removed = await _diff(call, file, after)
        metadata = {
            "additions": added,
            "removals": removed,
            **_versions(file, after),
        }
        refused = await _change(call, file, after, metadata)
        if refused is not None:
            return refused
        done = f"{file.place.shown}: {added} line{'s' * (added != 1)} added, {removed} removed"
        return ToolOutcome("\n".join([done, *edited.notes]), metadata=json.dumps(metadata))


class MultiEdit:
    name = "multiedit"
    description = (
        "Make several exact replacements in one file you have viewed, one after the other, as one "
        "change. Edits that do not fit are reported; the others are made. With an empty old_string "
        "the first edit creates a file."
    )
    parameters = schema(
        {
            "file_path": PATH,
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
        file = await _open(call, new=edits[0].get("old_string") == "")
        after, notes, failed = await call.context.blocking(_edited, file, edits)
        if file.data is not None and after == file.raw:
            reasons = "; ".join(f"edit {f['index']}: {f['error']}" for f in failed)
            return failure(f"nothing was changed: {reasons or 'the edits undo each other'}")
        _, added, removed = await _diff(call, file, after)
        metadata = {
            "additions": added,
            "removals": removed,
            **_versions(file, after),
            "edits_applied": len(edits) - len(failed),
            "edits_failed": list(failed),
        }
        refused = await _change(call, file, after, metadata)
        if refused is not None:
            return refused
        notes += tuple(f"edit {f['index']} failed: {f['error']}" for f in failed)
        done = f"{file.place.shown}: {metadata['edits_applied']} edits made"
        return ToolOutcome("\n".join([done, *notes]), metadata=json.dumps(metadata))
