"""Ids that clients choose: of runs, and of the session that they show."""

from __future__ import annotations

from ..errors import BadRequest

ID_LENGTH = 200  # characters; long enough for any id scheme, short enough for a URL


def check_id(name: str, value: str) -> None:
    """Raise BadRequest for an id that cannot be stored or put into a URL. `name` is the field's."""
    if "\0" in value or len(value) > ID_LENGTH:
        raise BadRequest(f"{name} must be at most {ID_LENGTH} characters without NUL")
