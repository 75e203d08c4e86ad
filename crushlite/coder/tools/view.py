"""view: reading a file, a window of lines at a time, or looking at an image.

A file that can be changed is read as a whole, and its digest is remembered: a change is made only
to what the model has seen. A larger one is read only as far as the window goes, in bounded memory
and time.
"""

from __future__ import annotations

import base64
import io
import json
import time
from typing import TYPE_CHECKING, NamedTuple

from ...errors import BadRequest
from ...worktree.paths import Place, digest, exists, opened, read_bytes
from ..images import image_type
from .arguments import number, schema
from .base import IMAGE_BYTES, ToolOutcome, denied, failure, image_refusal, missing
from .files import BOM, CHANGE_BYTES, PATH, decoded, located, plain_ends, seen_key
from .scope import outside_scope

if TYPE_CHECKING:
    from typing import BinaryIO

    from .base import ToolUse

MOST_LINES = 2000
LINE_CHARS = 2000
VIEW_CHARS = 100_000  # of one answer: more would fill the context of many models
CHUNK = 1 << 20
READ_SECONDS = 10.0  # for finding the first line of a window in a very large file


class _Window(NamedTuple):
    """Some lines of a file."""

    lines: list[str]  # as many as one answer can hold, long ones cut
    total: int | None  # how many lines the file has; None if it was not read to its end
    digest: str = ""  # empty for a file that is too large to be changed


class View:
    name = "view"
    description = (
        "Read a text file, with line numbers (which are not part of the file), or look at an image "
        "(png, jpeg, gif, webp). Shows a few hundred lines; go on with offset (first line, from 0) "
        "and limit. Read a file before you change it."
    )
    parameters = schema(
        {
            "file_path": PATH,
            "offset": {"type": "integer", "description": "First line to show, counted from 0"},
            "limit": {"type": "integer", "description": f"How many lines, at most {MOST_LINES}"},
        },
        "file_path",
    )
    read_only = True

    async def run(self, call: ToolUse) -> ToolOutcome:
        context = call.context
        place = await _result(call) or await located(call)
        offset = number(call, "offset", 0)
        limit = min(number(call, "limit", 0) or context.view_lines, MOST_LINES)
        if not place.inside:
            verdict = await call.turn.permission(
                call.name,
                "read",
                description=f"Read a file outside the project: {place.path}",
                params={"file_path": str(place.path), "offset": offset, "limit": limit},
                path=str(place.path),
                tool_call_id=call.id,
                scope=outside_scope(place),
            )
            if not verdict:
                return denied(verdict.reason)
        if not await context.blocking(exists, place):
            raise await context.blocking(missing, place, context.path)
        found = await context.blocking(_read, place, offset, limit)
        if isinstance(found, bytes):
            return await self._image(call, place, found)
        if found.digest:
            context.seen[seen_key(call, place)] = found.digest
        await call.turn.file_read(str(place.path))
        if not found.lines and offset:
            return failure(
                f"{place.shown} has {found.total} lines; offset {offset} is past its end"
            )
        metadata = {"file_path": str(place.path), "content": "\n".join(found.lines)}
        return ToolOutcome(_numbered(found, offset), metadata=json.dumps(metadata))

    async def _image(self, call: ToolUse, place: Place, data: bytes) -> ToolOutcome:
        """The image as part of the result. Raises BadRequest if the model cannot look at it."""
        kind = image_type(data)
        what = f"{place.shown} is an image ({kind})"
        refusal = await image_refusal(call, data)
        if refusal:
            raise BadRequest(f"{what}, but {refusal}")
        await call.turn.file_read(str(place.path))
        metadata = json.dumps({"file_path": str(place.path), "content": ""})
        encoded = base64.b64encode(data).decode("ascii")
        return ToolOutcome(f"{what}:", metadata=metadata, data=encoded, mime_type=kind)


async def _result(call: ToolUse) -> Place | None:
    """The file of a long result, if the model wants that."""
    path = call.context.results.find(str(call.input.get("file_path", "")))
    return Place(path, inside=True, shown=str(path)) if path is not None else None


def _read(place: Place, offset: int, limit: int) -> _Window | bytes:
    """A window of a text file, or an image. Raises BadRequest for any other file. Blocks."""
    with opened(place) as (file, info):
        start = file.read(8192) or b""
        if image_type(start) and info.st_size > IMAGE_BYTES:
            advice = "make a smaller copy, and view that"
            raise BadRequest(f"{place.shown} is an image of over {IMAGE_BYTES} bytes: {advice}")
        if info.st_size > CHANGE_BYTES:
            if b"\0" in start:
                decoded(start, place)
            file.seek(0)
            return _far_window(place, file, offset, limit)
    data, _ = read_bytes(place, max(CHANGE_BYTES, IMAGE_BYTES))
    if image_type(data):
        return data
    if data.startswith(b"%PDF-"):
        raise BadRequest(f"{place.shown} is a PDF: use bash, such as pdftotext -layout FILE -")
    lines = io.StringIO(plain_ends(decoded(data, place).removeprefix(BOM)), newline="\n")
    shown = _Shown()
    total = 0
    # One by one: a list of all lines takes twenty times as much memory as the file.
    for line in lines:
        if offset <= total < offset + limit:
            shown.add(line)
        total += 1
    return _Window(shown.lines, total, digest(data) if len(data) <= CHANGE_BYTES else "")


def _far_window(place: Place, file: BinaryIO, offset: int, limit: int) -> _Window:
    """A window of a file of any size, which is read only so far. Raises BadRequest if that takes
    too long."""
    deadline = time.monotonic() + READ_SECONDS
    skipped, data = 0, b""
    while skipped < offset:
        if time.monotonic() > deadline:
            advice = "use bash with sed, tail or grep"
            raise BadRequest(f"{place.shown} is too large to count to line {offset}: {advice}")
        chunk = file.read(CHUNK) or b""
        if not chunk:
            return _Window([], skipped)
        count = chunk.count(b"\n")
        if skipped + count >= offset:
            at = 0
            for _ in range(offset - skipped):
                at = chunk.index(b"\n", at) + 1
            data = chunk[at:]
            count = offset - skipped
        skipped += count
    data += file.read(4 * VIEW_CHARS) or b""
    at_end = not file.read(1)
    lines = data.split(b"\n") if data else []
    if len(lines) > 1 and (not at_end or not lines[-1]):
        lines.pop()  # the rest of it was not read, or it is only what follows the last line end
    shown = _Shown()
    for line in lines[:limit]:
        shown.add(line[: 4 * (LINE_CHARS + 1)].decode("utf-8", "replace").removesuffix("\r"))
    return _Window(shown.lines, offset + len(lines) if at_end else None)


class _Shown:
    """Lines for an answer: long ones are cut, and none is added when there is no more room."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._room = VIEW_CHARS

    def add(self, line: str) -> None:
        line = line.removesuffix("\n")
        line = line if len(line) <= LINE_CHARS else f"{line[:LINE_CHARS]}..."
        self._room -= len(line) + 8
        if self._room >= 0:
            self.lines.append(line)


def _numbered(window: _Window, offset: int) -> str:
    """The lines with their numbers, and how to read on if there are more."""
    body = "\n".join(f"{n:6}|{line}" for n, line in enumerate(window.lines, offset + 1))
    following = offset + len(window.lines)
    more = ""
    if window.total is None:
        more = f"\n(there are more lines; continue with offset {following})"
    elif window.total > following:
        more = f"\n({window.total - following} more lines; continue with offset {following})"
    return f"<file>\n{body}\n</file>{more}"
