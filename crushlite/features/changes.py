"""The changes of runs to files, and undoing them."""

from __future__ import annotations

from dataclasses import field

from ..protocol.codec import omitted
from ..records import dataclass


@dataclass(slots=True)
class ChangedRun:
    """A run that changed files, or the undo of one: then `undoes` is the run that was undone."""

    run_id: str
    session_id: str
    undoes: str = ""
    files: int = 0
    changed_at: int = 0
    undone: bool = False


@dataclass(slots=True)
class FileChange:
    """One file before and after a run; the text is empty where the file did not exist. `mode` holds
    the permission bits before the run, 0 if they are not known. `problem` says why the file cannot
    be put back now; empty if it can."""

    path: str
    existed: bool
    exists: bool
    before: str
    after: str
    mode: int = 0
    problem: str = omitted()


@dataclass(slots=True)
class RunChanges:
    """The changes of one run. `notes` say what is not known about them. A file whose change was not
    recorded is listed with a problem and without texts."""

    run_id: str
    session_id: str
    undoes: str = ""
    files: list[FileChange] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class UndoRequest:
    """`dry_run`: only say what would be done. `partial`: put back what can be, instead of none."""

    dry_run: bool = False
    partial: bool = False


@dataclass(slots=True)
class UndoAnswer:
    """`run_id` is the id of the undo, which can be undone like a run; empty if nothing was done.
    `restored` are the paths that were put back, or would be, `kept` the files that were not."""

    run_id: str
    restored: list[str] = field(default_factory=list)
    kept: list[FileChange] = field(default_factory=list)
