"""Recording which files a command changed.

An agent reports what its own tools change. A command reports nothing, so a snapshot of the project
is taken before and after it (see snapshot.py), and the difference is recorded as the command's. A
change that an agent reported meanwhile stays with the run that reported it. What a person edits
while a command runs cannot be distinguished from what the command did.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from ..errors import BadRequest, CrushliteError, SessionNotFound
from ..filehistory.queries import Change
from ..records import dataclass
from ..wing import WorkspacePart
from ..worktree.threads import FileThreads
from .queries import record_gaps
from .snapshot import Difference, Snapshot, Snapshots, differences
from .undoing import Undoing

if TYPE_CHECKING:
    from ..filehistory.part import HistoryPart
    from ..filehistory.queries import FileState
    from ..wing import Author, OpenWorkspace
    from .snapshot import SnapshotLimits

log = logging.getLogger(__name__)

SNAPSHOT_SECONDS = 20.0  # several may wait for each other; each ends itself after some seconds


@dataclass(eq=False, slots=True)
class SnapshotWatch:
    """The project as it was before a command started. Implements wing.CommandWatch."""

    changes: ChangesPart
    author: Author
    since: int  # the number of the last report before the command
    snapshot: Snapshot

    async def ended(self) -> None:
        await self.changes.finish(self)

    def dropped(self) -> None:
        self.changes.drop(self)


class ChangesPart(WorkspacePart):
    """What the runs of one workspace did to files, and undoing it."""

    def __init__(
        self, workspace: OpenWorkspace, history: HistoryPart, limits: SnapshotLimits | None = None
    ) -> None:
        self.undoing = Undoing(workspace, history)
        self._workspace, self._history = workspace, history
        self._snapshots = Snapshots(workspace.path, (workspace.store.store.data_dir,), limits)
        # One snapshot at a time, in a thread that nothing else uses: a project may take long.
        self._thread = FileThreads(1, "snapshots")
        self._watches: set[SnapshotWatch] = set()
        self._reports = 0
        # By path: the number of the last report and the state it left. Kept while a command runs.
        self._reported: dict[str, tuple[int, FileState]] = {}
        history.listeners.append(self._note)

    def _note(self, change: Change) -> None:
        if self._watches:
            self._reports += 1
            self._reported[change.path] = self._reports, change.after

    async def before_command(self, author: Author) -> SnapshotWatch:
        watch = SnapshotWatch(self, author, self._reports, Snapshot())
        self._watches.add(watch)  # before the snapshot: reports made meanwhile are counted
        try:
            watch.snapshot = await self._thread.run(SNAPSHOT_SECONDS, self._snapshots.take)
        except BadRequest as error:  # the file system hangs: the command may run all the same
            watch.snapshot = Snapshot(why=error.message)
        except BaseException:
            self.drop(watch)
            raise
        return watch

    async def finish(self, watch: SnapshotWatch) -> None:
        """Record what has changed since the command started. Errors are logged and not raised: they
        must not fail the run."""
        session_id, run_id = watch.author.session_id, watch.author.run_id
        try:
            found, why = await self._thread.run(SNAPSHOT_SECONDS, self._compare, watch.snapshot)
            gaps = [("", why)] if why else [(self._path(p), w) for p, w in found.unknown]
            changes = self._own(watch, found, run_id)
            if gaps and run_id:
                await self._workspace.store.write(record_gaps, session_id, run_id, gaps)
            if changes:
                await self._history.report(session_id, changes)
        except SessionNotFound:
            pass  # the session was deleted meanwhile, and its history with it
        except CrushliteError as error:
            log.warning("what a command of run %s changed is not recorded: %s", run_id, error)
        except Exception:
            log.exception("what a command of run %s changed is not recorded", run_id)
        finally:
            self.drop(watch)

    def drop(self, watch: SnapshotWatch) -> None:
        """Forget a watch; with the last one, the reports made meanwhile."""
        self._watches.discard(watch)
        if not self._watches:
            self._reported.clear()

    def _compare(self, before: Snapshot) -> tuple[Difference, str]:
        """The difference between a snapshot and the project now; if that is not known, nothing and
        the reason. Blocks."""
        if before.why:
            return Difference(), before.why
        after = self._snapshots.take(before.rules)
        return (Difference(), after.why) if after.why else (differences(before, after), "")

    def _own(self, watch: SnapshotWatch, found: Difference, run_id: str) -> list[Change]:
        """The changes of the command itself: those that were reported meanwhile are left out, and
        what the command changed after a report begins with the reported state."""
        own: list[Change] = []
        for one in found.changes:
            change = Change(self._path(one.parts), one.before, one.after, run_id)
            number, state = self._reported.get(change.path, (0, one.before))
            if number > watch.since:
                if state.is_like(change.after):
                    continue  # this is the reported change
                change = replace(change, before=state)
            own.append(change)
        return own

    def _path(self, parts: tuple[str, ...]) -> str:
        path = str(self._workspace.path.joinpath(*parts))
        return path.encode("utf-8", "backslashreplace").decode("utf-8")
