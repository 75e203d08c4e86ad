"""Undoing a run: putting the files that it changed back into the state before it.

A file is put back only if it is exactly as the run left it. Either all files of a run are put back
or none, unless the client asks for `partial`. Nothing outside of the workspace is touched and no
link is followed. An undoing is recorded like a run, so it can be undone as well.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ..errors import BadRequest, Conflict, SessionBusy
from ..features.wire import FileChange, RunChanges, UndoAnswer
from ..filehistory.queries import Change
from ..records import dataclass
from ..unique import new_id
from .queries import run_history
from .states import change_state, place_of, read_state

if TYPE_CHECKING:
    from pathlib import Path

    from ..filehistory.part import HistoryPart
    from ..filehistory.queries import FileState
    from ..wing import OpenWorkspace
    from ..worktree.paths import Place
    from .queries import PathHistory, RunHistory

log = logging.getLogger(__name__)

NAMED = 5  # how many files a refusal names


@dataclass(frozen=True, slots=True)
class _Step:
    """What undoing does to one file. `problem` says why it cannot be put back; `place` is set if it
    is to be put back. Neither is set if the file is as it was before the run already."""

    past: PathHistory
    problem: str = ""
    place: Place | None = None

    @property
    def wire(self) -> FileChange:
        before, after = self.past.before, self.past.after
        return FileChange(
            path=self.past.path,
            existed=before.content is not None,
            exists=after.content is not None,
            before=before.content or "",
            after=after.content or "",
            mode=before.mode or 0,
            problem=self.problem,
        )


class Undoing:
    """Undoes the runs of one workspace, one at a time."""

    def __init__(self, workspace: OpenWorkspace, history: HistoryPart) -> None:
        self._workspace, self._history = workspace, history
        self._one_at_a_time = asyncio.Lock()

    async def changes(self, run_id: str) -> RunChanges:
        """What a run changed, and for each file what prevents putting it back. Raises
        RunNotFound."""
        past = await self._past(run_id)
        steps = await asyncio.to_thread(_steps, self._workspace.path, past)
        unknown = [_unknown(path, reason) for path, reason in past.gaps if path]
        notes = [f"what its commands changed is not known: {why}" for p, why in past.gaps if not p]
        files = [step.wire for step in steps]
        return RunChanges(run_id, past.session_id, past.undoes, files + unknown, notes)

    async def undo(self, run_id: str, *, dry_run: bool, partial: bool) -> UndoAnswer:
        """Put back what a run changed; with `dry_run`, only say what that would do. Raises
        RunNotFound, SessionBusy while the session has a run (which may change these files), and
        Conflict if a file cannot be put back, unless `partial`."""
        async with self._one_at_a_time:
            past = await self._past(run_id)
            self._require_idle(past.session_id, dry_run=dry_run)
            steps = await asyncio.to_thread(_steps, self._workspace.path, past)
            kept = [step.wire for step in steps if step.problem]
            kept += [_unknown(path, reason) for path, reason in past.gaps if path]
            todo = [step for step in steps if step.place is not None]
            answer = UndoAnswer("", [step.past.path for step in todo], kept)
            if dry_run:
                return answer
            if kept and not partial:
                raise Conflict(_refusal(kept))
            if todo:
                await asyncio.to_thread(_perform, todo)
                answer.run_id = f"undo-{new_id()}"
                await self._record(past.session_id, run_id, answer.run_id, todo)
            return answer

    def _require_idle(self, session_id: str, *, dry_run: bool) -> None:
        if self._workspace.busy(session_id) and not dry_run:
            raise SessionBusy(
                f"session is currently processing another request: {session_id} is busy, wait for "
                "its run or cancel it"
            )

    async def _past(self, run_id: str) -> RunHistory:
        return await self._workspace.store.read(run_history, run_id)

    async def _record(self, session_id: str, run_id: str, undo_id: str, done: list[_Step]) -> None:
        changes = [
            Change(step.past.path, step.past.after, step.past.before, undo_id, run_id)
            for step in done
        ]
        await self._history.report(session_id, changes)
        log.info("run %s was undone as %s: %d files", run_id, undo_id, len(done))


def _unknown(path: str, reason: str) -> FileChange:
    return FileChange(path, True, True, "", "", problem=f"its change was not recorded: {reason}")


def _refusal(kept: list[FileChange]) -> str:
    named = [f"{change.path}: {change.problem}" for change in kept[:NAMED]]
    more = [f"and {len(kept) - NAMED} more"] if len(kept) > NAMED else []
    return "nothing was undone; " + "; ".join(named + more) + "; use partial to undo the others"


# In a thread -------------------------------------------------------------------------------------


def _steps(root: Path, past: RunHistory) -> list[_Step]:
    """One for each file that the run left in another state than before."""
    return [_step(root, one) for one in past.paths if not one.before.is_like(one.after)]


def _step(root: Path, past: PathHistory) -> _Step:
    try:
        place = place_of(root, past.path)
        now, _ = read_state(place)
    except BadRequest as error:
        return _Step(past, error.message)
    if _is_in(now, past, past.before):
        return _Step(past)  # it is put back already
    if not _is_in(now, past, past.after):
        return _Step(past, "it has changed since")
    if past.mixed:
        return _Step(past, "somebody else has changed it during the run")
    return _Step(past, place=place)


def _is_in(now: FileState, past: PathHistory, state: FileState) -> bool:
    """Whether a file is in a state. Its mode is compared only if the run changed it."""
    modes = {past.before.mode, past.after.mode}
    mode_changed = len(modes) == 2 and None not in modes
    return now.content == state.content and (not mode_changed or now.mode == state.mode)


def _perform(steps: list[_Step]) -> None:
    """Put back all files or none. Raises Conflict if one fails, after the files that were put back
    before it have been restored to what the run left; it names those where that failed too."""
    done: list[_Step] = []
    try:
        for step in steps:
            assert step.place is not None
            change_state(step.place, step.past.after, step.past.before)
            done.append(step)
    except (BadRequest, Conflict, OSError) as error:
        left = [step.past.path for step in reversed(done) if not _reverted(step)]
        what = f"put back and left so are {', '.join(left)}" if left else "nothing was undone"
        raise Conflict(f"{what}; {error}") from error


def _reverted(step: _Step) -> bool:
    """Restore a file that was put back to what the run left. False if that failed."""
    assert step.place is not None
    try:
        change_state(step.place, step.past.before, step.past.after)
    except (BadRequest, Conflict, OSError) as error:
        log.error("%s was put back and could not be restored: %s", step.past.path, error)
        return False
    return True
