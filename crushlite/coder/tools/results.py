"""Files that hold results of tools that are too long for a model.

The model gets the two ends of such a result and the name of a file with all of it, which `view`
shows without asking. All results of a daemon are in one folder of the system's temporary files,
which only its user can read. The oldest are removed when there are too many.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import weakref
from pathlib import Path

from ...unique import random_hex
from ...version import NAME
from ..overflow import shorter

RESULT_CHARS = 64 * 1024  # of one result that the model gets
FILES = 100
FILE_BYTES = 32 << 20  # of one result: more is cut off
TOTAL_BYTES = 128 << 20


class ResultFiles:
    """Thread-safe. The folder is made for the first result, and removed when the process ends."""

    def __init__(self) -> None:
        self._folder = ""
        self._sizes: dict[Path, int] = {}  # of the files that are there, oldest first
        self._lock = threading.Lock()

    def bounded(self, text: str) -> str:
        """A text that fits into a model's conversation: this one, or its ends and where all of it
        is. Blocks."""
        if len(text) <= RESULT_CHARS:
            return text
        try:
            where = f"All of it is in {self._keep(text)}: view the part you need"
        except OSError as error:
            where = f"The rest could not be kept: {error.strerror or error}"
        return f"{shorter(text, RESULT_CHARS)}\n\n(cut: {len(text)} characters. {where})"

    def find(self, path: str) -> Path | None:
        """The file of this name if it holds a result."""
        known = Path(path)
        with self._lock:
            return known if known in self._sizes else None

    def _keep(self, text: str) -> Path:
        data = text.encode("utf-8", "replace")[:FILE_BYTES]
        with self._lock:
            if not self._folder:
                self._folder = tempfile.mkdtemp(prefix=f"{NAME}-results-")
                weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
            path = Path(self._folder, f"result-{random_hex(16)}.txt")
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(data)
            self._sizes[path] = len(data)
            while len(self._sizes) > FILES or sum(self._sizes.values()) > TOTAL_BYTES:
                oldest = next(iter(self._sizes))
                del self._sizes[oldest]
                oldest.unlink(missing_ok=True)
            return path
