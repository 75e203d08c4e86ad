"""Resolving the links of a path that a repository may have made."""

from __future__ import annotations

import os


def real_path(path: str | os.PathLike[str]) -> str:
    """The path without links, as `os.path.realpath` gives it. If more links follow each other than
    that can resolve (before Python 3.13 it raises RecursionError), the path as it is, like one that
    leads in a circle: no file can be opened by it, as the system follows 40 links at most."""
    try:
        return os.path.realpath(path)
    except RecursionError:
        return os.path.abspath(path)
