"""Which run changed which file: versions in the store, for histories and for undoing.

An agent tells what its own tools change. A command tells nothing, so the project is looked at
before and after it (see worktree/snapshot.py), and what lies between counts as the command's. What
somebody else has reported meanwhile stays theirs; what a person edits during a command cannot be
told from it.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..clock import settled
from ..errors import CrushliteError, SessionNotFound
from ..store.files import Change, record_change, record_gap
from .snapshot import Difference, Snapshot, Snapshots, differences

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ..clock import Clock
    from ..events import Hub
    from ..protocol.sessions import File
    from ..store import Connection, Store
    from ..worktree.states import FileState
    from .snapshot import Limits

log = logging.getLogger(__name__)

PUBLISHED = 200  # versions of one command that are sent to clients: the rest they can ask for


@dataclass(eq=False, slots=True)
class Watch:
    """The project as it was when a command began."""

    snapshot: Snapshot
    since: int  # reports made before


class Changes:
    def __init__(
        self,
        root: Path,
        store: Store,
        scope: str,
        hub: Hub,
        clock: Clock,
        limits: Limits | None = None,
    ) -> None:
        self.root = root
        self._store = store
        self._scope = scope
        self._hub = hub
        self._clock = clock
        self._snapshots = Snapshots(root, (store.data_dir,), limits)
        self._watches: set[Watch] = set()
        self._reports = 0
        # By path, what was reported last, and as which report: for as long as a command runs.
        self._reported: dict[str, tuple[int, FileState]] = {}

    async def record(self, session_id: str, changes: Sequence[Change]) -> list[File]:
        """Keep versions of files, and tell the clients."""
        return await self._write(session_id, changes, [])

    async def _write(
        self, session_id: str, changes: Sequence[Change], gaps: Sequence[tuple[str, str, str]]
    ) -> list[File]:
        now, scope = self._clock.now(), self._scope
        for change in changes:
            self._report(change)

        def work(conn: Connection) -> list[File]:
            for run_id, path, reason in gaps:
                record_gap(conn, scope, session_id, run_id, path, reason)
            added = (record_change(conn, scope, session_id, change, now) for change in changes)
            return [file for files in added for file in files]

        files = await self._store.submit(work)
        for file in files[:PUBLISHED]:
            self._hub.publish("created", file)
        return files

    def _report(self, change: Change) -> None:
        if self._watches:
            self._reports += 1
            self._reported[change.path] = self._reports, change.after

    # Commands ------------------------------------------------------------------------------------

    async def begin(self) -> Watch:
        """To be called before a command starts."""
        watch = Watch(Snapshot(), self._reports)
        self._watches.add(watch)  # what is reported while the snapshot is taken counts already
        try:
            watch.snapshot = await asyncio.to_thread(self._snapshots.take)
        except BaseException:
            self.drop(watch)
            raise
        return watch

    async def finish(self, watch: Watch, session_id: str, run_id: str) -> None:
        """Record what has changed since `begin`; never fails, as the command has had its effect."""
        try:
            found, why = await asyncio.to_thread(self._compare, watch.snapshot)
            gaps = [("", why)] if why else [(self._path(p), w) for p, w in found.unknown]
            changes = self._own(watch, found, run_id)
            named = [(run_id, path, reason) for path, reason in gaps if run_id]
            if changes or named:
                await self._write(session_id, changes, named)
        except SessionNotFound:
            pass  # deleted meanwhile: nobody can ask for it any more
        except CrushliteError as error:
            log.warning("what a command of run %s changed is not recorded: %s", run_id, error)
        except Exception:
            log.exception("what a command of run %s changed is not recorded", run_id)
        finally:
            self.drop(watch)

    def _compare(self, before: Snapshot) -> tuple[Difference, str]:
        if before.why:
            return Difference(), before.why
        after = self._snapshots.take(before.rules)
        return (Difference(), after.why) if after.why else (differences(before, after), "")

    def _own(self, watch: Watch, found: Difference, run_id: str) -> list[Change]:
        own: list[Change] = []
        for one in found.changes:
            change = Change(self._path(one.parts), one.before, one.after, run_id)
            number, state = self._reported.get(change.path, (0, one.before))
            if number > watch.since:
                if state.is_like(change.after):
                    continue  # somebody has reported just that
                change = replace(change, before=state)
            own.append(change)
        return own

    def _path(self, parts: tuple[str, ...]) -> str:
        path = str(self.root.joinpath(*parts))
        return path.encode("utf-8", "backslashreplace").decode("utf-8")

    def drop(self, watch: Watch) -> None:
        """For a command that did not start after all."""
        self._watches.discard(watch)
        if not self._watches:
            self._reported.clear()


class Noting:
    """Records what a command changed as soon as it has ended, or was let go."""

    def __init__(
        self, changes: Changes, watch: Watch, author: tuple[str, str], done: asyncio.Future[Any]
    ) -> None:
        """`author`: the session and the run."""
        self._changes = changes
        self._watch = watch
        self._author = author
        self._done = done
        self._let_go = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(self._note())

    @property
    def due(self) -> bool:
        return self._done.done() or self._let_go.done()

    def let_go(self) -> None:
        """The command goes on, but from now on it is nobody's."""
        settled(self._let_go)

    async def _note(self) -> None:
        await asyncio.wait([self._done, self._let_go], return_when=asyncio.FIRST_COMPLETED)
        await self._changes.finish(self._watch, *self._author)
