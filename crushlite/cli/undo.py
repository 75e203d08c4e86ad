"""`crushlite undo`: put back the files that a run changed."""

from __future__ import annotations

import difflib
import os
import sys
from typing import TYPE_CHECKING, Any

from ..errors import Conflict, CrushliteError, RunNotFound, UsageError
from ..features import requests
from .common import add_connection, add_json, command, opened, say, show, show_json
from .helptext import not_empty
from .lookup import SHORT, choose
from .person import agreed
from .text import Style, count, diff_row, visible

if TYPE_CHECKING:
    import argparse

    from ..client import RemoteWorkspace
    from ..features.wire import FileChange, RunChanges, UndoAnswer

LOOKED_AT = 50  # runs, for one with something to put back
SHOWN_LINES = 400  # of the diff of one file

DESCRIPTION = """\
Put back the files that a run changed: with its tools, or with its commands. Shows what it will do
as a diff, and asks. A file that has changed since is not touched, and then none is, unless you ask
for the others. Without a run: the last one in this directory whose changes are still there, so that
several calls go back run by run.

Not known are: binary and very large files, files that .gitignore names, what background jobs
changed later, and commits: git's own folder is left alone. An undo can be undone; it says how.
"""
EXAMPLES = """\
  crushlite undo --dry-run    # only the diff
  crushlite undo              # asks first
  crushlite undo 3f2a --yes   # a run, as `crushlite runs` lists it
"""


def add_parser(commands: Any) -> None:
    parser = command(commands, "undo", DESCRIPTION, run, EXAMPLES)
    add = parser.add_argument
    a_run = "a run, or the beginning of its id"
    add("run_id", nargs="?", type=not_empty, metavar="RUN", help=a_run)
    add("--yes", "-y", action="store_true", help="do not ask")
    add("--dry-run", "-n", action="store_true", help="only show what would be done")
    add("--partial", action="store_true", help="leave out what cannot be put back, do the rest")
    add_json(parser, "what was done, or would be,")
    add_connection(parser)


async def run(options: argparse.Namespace) -> int:
    if options.json and not (options.yes or options.dry_run):
        raise UsageError("--json asks nothing: add --yes or --dry-run")
    async with opened(options) as workspace:
        run_id, plan = await _find(workspace, options.run_id)
        changes = await requests.run_changes(workspace, run_id)
        if not options.json:
            _show(changes, set(plan.restored), workspace.info.path)
        if options.dry_run:
            if options.json:
                show_json(plan)
            return 1 if plan.kept and not options.partial else 0
        if plan.kept and not plan.restored:
            raise Conflict(
                "nothing was changed; `crushlite runs` lists the runs before this one, `crushlite "
                "undo RUN` undoes one of them"
            )
        if plan.kept and not options.partial:
            raise Conflict("nothing was changed; --partial puts back the other files")
        if not plan.restored:
            raise Conflict(f"there is nothing to put back in run {run_id[:SHORT]}")
        question = f"Put back {count(len(plan.restored), 'file')}?"
        if not options.yes and not await agreed(workspace, question):
            say("nothing was changed")
            return 1
        answer = await requests.undo(workspace, run_id, partial=options.partial)
        if options.json:
            show_json(answer)
        else:
            number = count(len(answer.restored), "file")
            show(f"{number} put back; to take that back: crushlite undo {answer.run_id}")
        return 0


async def _find(workspace: RemoteWorkspace, given: str | None) -> tuple[str, UndoAnswer]:
    """The id of the run that begins with `given`, and what undoing it would do now; without that,
    of the last one whose files are not all as they were before it. Raises CrushliteError if there
    is none."""
    changed = await requests.changed_runs(workspace)
    if given:
        others = [info.run_id for info in await workspace.runs()]
        if found := choose(given, dict.fromkeys([*(c.run_id for c in changed), *others]), "runs"):
            return found, await _planned(workspace, found)
        raise RunNotFound(f"no run {given} in {workspace.info.path}: `crushlite runs` lists them")
    # What an undo changed does not count: so the next one goes further back.
    left = [run.run_id for run in changed if not run.undoes and not run.undone]
    for run_id in reversed(left[-LOOKED_AT:]):
        plan = await _planned(workspace, run_id)
        if plan.restored or plan.kept:
            return run_id, plan
        say(f"run {run_id[:SHORT]}: its files are as they were before it; looking further back")
    raise CrushliteError(f"no run in {workspace.info.path} changed files that are not undone")


async def _planned(workspace: RemoteWorkspace, run_id: str) -> UndoAnswer:
    """What undoing a run would do to the files as they are now."""
    return await requests.undo(workspace, run_id, dry_run=True, partial=True)


# The diff ---------------------------------------------------------------------------------------


def _show(changes: RunChanges, todo: set[str], root: str) -> None:
    """Show what would be done to the files; `todo` are the paths of those that are put back. The
    others are as they were before the run, or have a problem."""
    style = Style(sys.stdout)
    for note in changes.notes:
        say(note)
    if not changes.files:
        say(f"run {changes.run_id[:SHORT]} changed no files that are known")
    for file in changes.files:
        shown = visible(os.path.relpath(file.path, os.path.realpath(root)))
        if file.problem:
            say(f"{shown} cannot be put back: {file.problem}")
        elif file.path not in todo:
            say(f"{shown} is as it was before the run")
        else:
            for line in _diff(file, shown):
                show(diff_row(line, style))


def _diff(file: FileChange, shown: str) -> list[str]:
    """The diff that putting a file back would be. `shown` is its path."""
    old = f"a/{shown}" if file.exists else "/dev/null"
    new = f"b/{shown}" if file.existed else "/dev/null"
    texts = (_lines(file.after), _lines(file.before))
    lines = list(difflib.unified_diff(*texts, old, new, lineterm=""))
    if not lines:
        return [f"--- {old}", f"+++ {new}", f"({_without_lines(file)})"]
    if len(lines) > SHOWN_LINES:
        left = count(len(lines) - SHOWN_LINES, "more line")
        lines = [*lines[:SHOWN_LINES], f"({left})"]
    return lines


def _without_lines(file: FileChange) -> str:
    """What changes in a file whose lines stay the same."""
    if file.exists and file.existed:
        return f"its mode becomes {file.mode:o}" if file.before == file.after else "line ends"
    return "empty"


def _lines(text: str) -> list[str]:
    return [visible(line.expandtabs(4)) for line in text.splitlines()]
