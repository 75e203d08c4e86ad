"""Messages as bytes, and back.

What others send is read as far as it can be: broken UTF-8 and lone surrogates become U+FFFD, and
escape sequences of a terminal or a text in front of a message are passed over. What is written is
ASCII without line breaks, so that no reader can split it in the wrong place. Large messages are to
be read and written in a thread; both ways of doing it let other threads run.
"""

from __future__ import annotations

import json
import re
from typing import Any

from ..protocol.codec import JSON, LARGE, NotJSON, loads
from ..records import dataclass
from .errors import Unsendable

Id = int | str
MAX_ID = 1024  # characters
_encoder = json.JSONEncoder(separators=(",", ":"), allow_nan=False, ensure_ascii=True)
_BEFORE = re.compile(rb"(?:\xef\xbb\xbf|\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b]*\x07|[\s\x00])+")
_MESSAGE = b'{"jsonrpc"'
# Escapes in their order, so that a backslash before another one is no beginning of an escape.
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)"
)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_MEMBER = re.compile(
    rb'\s*"(jsonrpc|id|method)"\s*:\s*("(?:[^"\\]|\\.){0,1024}"|-?\d{1,19})\s*([,}])'
)
_LAST_ID = re.compile(rb',\s*"id"\s*:\s*("(?:[^"\\]|\\.){0,1024}"|-?\d{1,19})\s*\}\s*\Z')


def read(body: bytes) -> JSON:
    """The value of a frame. Raises NotJSON for what is none, nested too deeply, or of too many
    values."""
    if found := _BEFORE.match(body):
        body = body[found.end() :]
    if not body.startswith((b"{", b"[")) and (at := body.find(_MESSAGE)) > 0:
        body = body[at:]
    try:
        return loads(body)
    except NotJSON:
        repaired = _repaired(body)
        if repaired == body:
            raise
        return loads(repaired)


def _repaired(body: bytes) -> bytes:
    return _without_surrogates(body.decode("utf-8", "replace").encode("utf-8"))


def _without_surrogates(body: bytes) -> bytes:
    """Lone surrogates as U+FFFD: no reader of UTF-8 can do anything with one."""
    if not _SURROGATE.search(body):
        return body
    return _ESCAPE.sub(lambda found: b"\\ufffd" if found[1] else found[0], body)


def write(message: dict[str, Any]) -> bytes:
    """A message that is not large as one line, without its end. Raises Unsendable if it is no
    JSON."""
    try:
        return _without_surrogates(_encoder.encode(message).encode("ascii"))
    except (TypeError, ValueError, RecursionError) as error:
        raise Unsendable(f"a message is no JSON: {error}") from None


def write_large(message: dict[str, Any], most: int) -> bytes:
    """A message as one line, written in pieces: a single call would keep other threads from
    running until it returns. Raises Unsendable, also if it is longer than `most` bytes."""
    pieces: list[str] = []
    size = 0
    try:
        for piece in _encoder.iterencode(message):
            size += len(piece)
            if size > most:
                raise Unsendable(f"a message is larger than {most} bytes")
            pieces.append(piece)
    except (TypeError, ValueError, RecursionError) as error:
        raise Unsendable(f"a message is no JSON: {error}") from None
    return _without_surrogates("".join(pieces).encode("ascii"))


def is_large(value: Any, most: int = LARGE) -> bool:
    """Whether a value has more than `most` characters and values, so that writing it takes long."""
    todo = [value]
    while todo:
        item = todo.pop()
        most -= len(item) + 1 if isinstance(item, (str, dict, list, tuple)) else 1
        if most < 0:
            return True
        if isinstance(item, dict):
            todo.extend(item)
            todo.extend(item.values())
        elif isinstance(item, (list, tuple)):
            todo.extend(item)
    return False


def is_id(value: Any) -> bool:
    """Whether a request may have this id: an integer, or a short text."""
    if isinstance(value, str):
        return len(value) <= MAX_ID
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class Glimpse:
    """What can be said of a message that could not be read."""

    id: Id
    is_request: bool  # else it is an answer


def glimpse(head: bytes, tail: bytes) -> Glimpse | None:
    """The id of a message of which only the beginning and the end are known, or that cannot be
    read. None if neither shows an id: no peer known writes one in the middle."""
    start = _BEFORE.match(head)
    at = start.end() if start else 0
    if head[at : at + 1] != b"{":
        return None
    at += 1
    members: dict[bytes, bytes] = {}
    while (found := _MEMBER.match(head, at)) is not None and found[3] == b",":
        members[found[1]] = found[2]
        at = found.end()
    if b"id" not in members:
        last = _LAST_ID.search(tail)
        if last is None:
            return None
        members[b"id"] = last[1]
    is_request = b"method" in members or head[at:].lstrip().startswith((b'"params"', b'"method"'))
    try:
        return Glimpse(json.loads(members[b"id"]), is_request)
    except ValueError:
        return None


def size_of(value: Any, most: int) -> int:
    """How many characters and values a value has; more than `most` are not counted."""
    todo, size = [value], 0
    while todo and size <= most:
        item = todo.pop()
        size += 1
        if isinstance(item, str):
            size += len(item)
        elif isinstance(item, dict):
            todo += [*item, *item.values()]
        elif isinstance(item, list):
            todo += item
    return size
