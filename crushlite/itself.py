"""This process: its directory and environment, and how it starts another one of this very package,
in whatever directory."""

from __future__ import annotations

import os
import shlex
import sys

from .errors import UsageError

PACKAGE = __name__.rpartition(".")[0]


def python_command(module: str, *words: str) -> list[str]:
    """The argv that runs a module of this very package, to be used with `python_path`. -P: the
    current directory may be that of any project, with a module named like one of ours."""
    return [sys.executable, "-P", "-m", module, *words]


def python_path(known: str) -> str:
    """PYTHONPATH for `python_command`, given what it is, without relative entries. The directory or
    zip archive that this package was imported from comes first: a checkout may have been found
    through the current directory, which -P takes away. An installed package is found anyhow, and
    naming its directory would put its neighbours before the standard library."""
    entries = [entry for entry in known.split(os.pathsep) if os.path.isabs(entry)]
    home = os.path.realpath(__file__)
    for _ in range(PACKAGE.count(".") + 2):
        home = os.path.dirname(home)
    if os.path.basename(home) not in ("site-packages", "dist-packages") and home not in entries:
        entries.insert(0, home)
    return os.pathsep.join(entries)


def pasted_command(module: str, *words: str) -> str:
    """A line for a shell that runs a module of this package wherever it is pasted."""
    path = python_path("")
    before = ["env", f"PYTHONPATH={path}"] if path else []
    return shlex.join([*before, *python_command(module, *words)])


def here() -> str:
    """The current directory. Raises UsageError if it was deleted."""
    try:
        return os.getcwd()
    except OSError:
        raise UsageError("the current directory is gone: go to another one") from None


def own_environment() -> list[str]:
    """The environment that the tools of the agent get: that of this process, as NAME=value. An
    entry that is not text cannot be sent, and is left out."""
    entries = (f"{name}={value}" for name, value in os.environ.items())
    return [entry for entry in entries if not any("\ud800" <= c <= "\udfff" for c in entry)]


def require_text(path: str) -> None:
    """Raise UsageError for a path that no request can hold: one that is not UTF-8."""
    try:
        path.encode()
    except UnicodeEncodeError:
        shown = os.fsencode(path).decode("utf-8", "backslashreplace")
        raise UsageError(f"{shown} is not UTF-8, as paths must be here: rename it") from None
