"""Ids that clients choose: of runs, and of the session they say they look at."""

from __future__ import annotations

from ..errors import BadRequest

ID_LENGTH = 200  # characters; long enough for any id scheme, short enough for a URL


def check_id(name: str, value: str) -> None:
    """Refuse what cannot be kept or asked for; `name` is that of the field."""
    if "\0" in value or len(value) > ID_LENGTH:
        raise BadRequest(f"{name} must be at most {ID_LENGTH} characters without NUL")
