"""What agents give to their turn, in the forms in which they may give it."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import BadRequest
from ..protocol.codec import decode, dumps
from ..protocol.questions import Question
from .prompts import clean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

T = TypeVar("T")


def fresh_call_id() -> str:
    return f"call_{uuid.uuid4().hex}"


def json_text(value: str | Mapping[str, Any]) -> str:
    """What travels as a string of JSON may be given as the object it stands for."""
    if isinstance(value, str):
        return clean(value)
    try:
        return dumps(dict(value)).decode("ascii")
    except (TypeError, ValueError) as error:
        raise BadRequest(f"this cannot be written as JSON: {error}") from None


def typed(cls: type[T], value: T | Mapping[str, Any]) -> T:
    """Our own dataclasses may be given in the shape they have on the wire."""
    return value if isinstance(value, cls) else decode(cls, value, cls.__name__.lower())


def questions_of(
    given: str | Sequence[str | Question | Mapping[str, Any]],
) -> list[Question]:
    """Questions, given as such, in the shape of the wire, or as texts that want a text."""
    asked = [given] if isinstance(given, str) else given
    return [
        Question(type="free_text", question=each, description="Asked by the agent.")
        if isinstance(each, str)
        else typed(Question, each)
        for each in asked
    ]


def directory_of(path: str, root: Path) -> str:
    """Approving one file covers its folder: the key of a permission is a directory."""
    if path in ("", "."):
        return str(root)
    target = Path(root, path)
    # Not target.is_file(): it raises for what may not be looked at, which is to be asked for.
    return str(target.parent) if os.path.isfile(target) else path
