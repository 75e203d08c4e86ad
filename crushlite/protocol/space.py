"""The room that a database takes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Space:
    """Bytes on disk, before and after it was made as small as it can be."""

    before: int
    after: int
