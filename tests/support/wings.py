"""A daemon without some of its wings."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest import mock

from crushlite import wings

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


def without(*names: str) -> AbstractContextManager[object]:
    """A context in which the list of the wings does not have these."""
    gone = {f".{name}.wing" for name in names}
    left = tuple(entry for entry in wings.WINGS if entry[0] not in gone)
    return mock.patch.object(wings, "WINGS", left)
