"""Who owns a data directory, and what its last owner left behind, asked without owning it."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

from ..store.directory import LOCK_FILE, lock_lines

if TYPE_CHECKING:
    from pathlib import Path


def is_owned(directory: Path) -> bool:
    """Whether some process owns the directory at this moment."""
    try:
        descriptor = os.open(directory / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def last_note(directory: Path) -> str:
    """The note of the last owner of a directory. Not for one that is in use."""
    return lock_lines(directory)[1]
