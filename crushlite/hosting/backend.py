"""The registry of workspaces: by id for requests, by resolved path for creates.

claims.py decides who keeps a workspace and the server alive, this file performs it. Opening a
workspace is slow (a database, recovery), so it is a task of the backend, shared by all creates at
that path and bound to no request. From the moment a teardown begins the id is unknown; a create at
that path waits for it and opens a new workspace.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import os
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from ..claims import Arm, Claims, Disarm, Teardown
from ..clock import wait_at_most
from ..errors import BadRequest, ChannelMismatch, SessionBusy, WorkspaceNotFound
from ..realpath import real_path
from ..unique import new_id
from ..wing import Opening

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from ..claims import ClaimTimer, Effect
    from ..clock import Clock, Timer
    from ..events import Subscriber
    from ..protocol.workspaces import CreateWorkspace
    from ..settings import Settings
    from ..store import Store, Stores
    from ..wing import Profile, Setup, Wing
    from .endings import Endings
    from .workspace import Workspace

log = logging.getLogger(__name__)


class Backend:
    """How workspaces are set up is decided by `setup`; `stores` is called when the first opens."""

    def __init__(
        self,
        *,
        setup: Setup,
        clock: Clock,
        settings: Settings,
        stores: Callable[[], Stores],
        wings: Sequence[Wing] = (),
    ) -> None:
        self.leaving = asyncio.Event()  # the decision to leave has been made
        self.claims = Claims(settings.graces)
        self._timers: dict[ClaimTimer, Timer] = {}  # of the claims
        self._setup = setup
        self._clock = clock
        self.served = settings.agent  # the name of its agent, for clients
        self._settings = settings
        self._stores = stores
        self._wings = wings
        self._hosted: dict[str, Workspace] = {}  # live workspaces by id
        self._joining: Counter[Path] = Counter()  # creates under way at a path
        self._opening: dict[Path, asyncio.Task[Workspace]] = {}
        self._unclaimed: dict[Path, Workspace] = {}  # opened, for the creates under way at its path
        self._closing: dict[Path, list[asyncio.Task[None]]] = {}  # teardowns, newest last
        self._built: set[Workspace] = set()  # until the end of their teardown
        self._endings: dict[Path, Endings] = {}  # by data directory

    def begin(self) -> None:
        """Start the idle timer: a server that is never used leaves too."""
        self._perform(self.claims.begin())

    # Workspaces ----------------------------------------------------------------------------------

    def get(self, workspace_id: str) -> Workspace:
        found = self._hosted.get(workspace_id)
        if found is None:
            raise WorkspaceNotFound("workspace not found: create it again")
        return found

    def everything(self) -> list[Workspace]:
        return list(self._hosted.values())

    async def create(self, request: CreateWorkspace) -> Workspace:
        """Open the workspace at a path, or join it, and give the client a hold on it."""
        if not request.path:
            raise BadRequest("path is required")
        if "\0" in request.path or "\0" in request.data_dir:
            raise BadRequest("path and data_dir must not contain NUL")
        self._perform(self.claims.admit(request.client_id))
        try:
            workspace = await self._join(request)
        except BaseException:
            self._perform(self.claims.failed())
            raise
        self._remember_env(workspace, request)
        return workspace

    def _remember_env(self, workspace: Workspace, request: CreateWorkspace) -> None:
        """For as long as the client has a claim: it may hold secrets, and clients come and go."""
        if request.env:
            workspace.envs[request.client_id] = list(request.env)
        here = {client for client, _, _ in self.claims.clients(workspace.id)}
        for client in workspace.envs.keys() - here:
            del workspace.envs[client]

    async def _join(self, request: CreateWorkspace) -> Workspace:
        """Find or open, then claim, without a gap between the two in which it could go away."""
        path, key = _located(request)
        self._joining[key] += 1
        deadline = self._clock.time() + self._settings.drain
        try:
            while True:
                workspace = self._found(key)
                if workspace is None and key in self._closing:
                    # Not for ever: an agent may hold its teardown up, and the new one does not
                    # need what the old one still has.
                    left = deadline - self._clock.time()
                    if left > 0:
                        await wait_at_most(self._clock, self._closing[key][-1], left)
                        await asyncio.sleep(0)  # one that is over may not have left the list yet
                        continue
                if workspace is None:
                    workspace = await self._open(key, path, request)
                if workspace.asked.channels != request.channels:
                    raise ChannelMismatch(
                        "requested channels differ from the existing workspace; "
                        f"it is open with {workspace.asked.channels}: ask for the same"
                    )
                if not workspace.closing:
                    self._perform(self.claims.create(workspace.id, request.client_id))
                    self._unclaimed.pop(key, None)
                    self._hosted[workspace.id] = workspace
                    _log_ignored(workspace, request)
                    return workspace
        finally:
            self._joining[key] -= 1
            if not self._joining[key]:
                del self._joining[key]
                self._discard_unclaimed(key)

    def _found(self, key: Path) -> Workspace | None:
        live = (workspace for workspace in self._hosted.values() if workspace.path == key)
        return next(live, None) or self._unclaimed.get(key)

    def _discard_unclaimed(self, key: Path) -> None:
        """No create is under way at a path: close a workspace that none of them could claim, as
        their clients retired meanwhile, or the server is leaving."""
        workspace = self._unclaimed.pop(key, None)
        if workspace is not None:
            self._begin_teardown(workspace)

    async def _open(self, key: Path, path: Path, request: CreateWorkspace) -> Workspace:
        task = self._opening.get(key)
        if task is None:
            task = self._opening[key] = asyncio.create_task(self._build(key, path, request))
            task.add_done_callback(lambda _: self._opening.pop(key, None))
        return await asyncio.shield(task)

    async def _build(self, key: Path, path: Path, request: CreateWorkspace) -> Workspace:
        opening = Opening(key, path, _environment(request.env), self._data_dir(path, request))
        profile = await self._setup(opening)
        store = await self._stores().open(profile.data_dir)
        try:
            workspace = self._workspace(opening, request, profile, store)
        except BaseException:
            await self._release_store(store)
            raise
        workspace.permissions.skip = request.yolo or self._settings.yolo
        self._built.add(workspace)
        try:
            for wing in self._wings:
                part = await wing.open(workspace)
                if part is not None:
                    workspace.parts.append(part)
        except BaseException:
            self._begin_teardown(workspace)
            raise
        # Here, not when the creates wake up: one that arrives in between must find it.
        self._unclaimed[key] = workspace
        if key not in self._joining:
            self._discard_unclaimed(key)
        return workspace

    def _workspace(
        self, opening: Opening, request: CreateWorkspace, profile: Profile, store: Store
    ) -> Workspace:
        # Imported with the first workspace, as what performs runs comes with it: a daemon that has
        # none yet starts sooner.
        from .endings import Endings
        from .workspace import Workspace

        # One for all workspaces in a store. What it could not write outlives the store's closing,
        # and is written when that file is opened again.
        endings = self._endings.get(store.data_dir)
        if endings is None:
            endings = self._endings[store.data_dir] = Endings(store, self._clock)
        # A data directory inside the project moves with it; in any other, rows say whose they are.
        scope = "" if profile.data_dir.parent == opening.path else str(opening.path)
        workspace = Workspace(
            new_id(),
            replace(request, path=str(opening.shown), env=None),
            path=opening.path,
            env=_for_commands(opening.env),
            store=store,
            scope=scope,
            endings=endings,
            profile=profile,
            claims=self.claims,
            perform_claims=self._perform,
            clock=self._clock,
            settings=self._settings,
        )
        endings.join(store)
        return workspace

    def _data_dir(self, path: Path, request: CreateWorkspace) -> Path | None:
        """The data directory that the client or the daemon's flags ask for. A relative one is
        relative to the workspace, or to where the daemon was started."""
        if request.data_dir:
            return path / request.data_dir
        from pathlib import Path

        return Path(self._settings.data_dir) if self._settings.data_dir else None

    async def _release_store(self, store: Store) -> None:
        try:
            await self._stores().release(store)
        finally:
            endings = self._endings.get(store.data_dir)
            if endings is not None and endings.idle:
                endings.close()
                del self._endings[store.data_dir]

    async def compact(self, workspace: Workspace) -> tuple[int, int]:
        """Give back the room that deleted sessions took; returns the bytes on disk before and
        after. SessionBusy while anything runs in that store: its writes would have to wait."""
        store = workspace.store.store
        if any(one.runs.busy() for one in self._built if one.store.store is store):
            raise SessionBusy("something is running: try again when nothing is")
        return await store.compact()

    @property
    def unsaved(self) -> int:
        """How many endings of runs wait to be written, in all stores."""
        return sum(endings.waiting for endings in self._endings.values())

    # Clients -------------------------------------------------------------------------------------

    def attach(
        self, workspace_id: str, client: str, *, resume: bool, deltas: bool, last_id: str | None
    ) -> Subscriber:
        """Open an event stream: subscribed first, so that nothing after the attach is missed."""
        workspace = self.get(workspace_id)
        subscriber = workspace.hub.subscribe(
            resume=resume, deltas=deltas, last_id=last_id, pending=workspace.pending
        )
        try:
            self._perform(self.claims.attach(workspace_id, client))
        except BaseException:
            subscriber.close()
            raise
        subscriber.when_closed = lambda: self._perform(self.claims.detach(workspace_id, client))
        return subscriber

    def release(self, workspace_id: str, client: str) -> None:
        self._perform(self.claims.release(workspace_id, client))

    def retire(self, client: str) -> None:
        self._perform(self.claims.retire(client))

    def shutdown_if_idle(self) -> None:
        self._perform(self.claims.shutdown_if_idle())

    def _perform(self, effects: list[Effect]) -> None:
        """Do what the claims have decided."""
        for effect in effects:
            if isinstance(effect, Arm):
                expired = functools.partial(self._expired, effect.timer)
                self._timers[effect.timer] = self._clock.call_later(effect.seconds, expired)
            elif isinstance(effect, Disarm):
                timer = self._timers.pop(effect.timer, None)
                if timer is not None:
                    timer.cancel()
            elif isinstance(effect, Teardown):
                self._begin_teardown(self._hosted.pop(effect.workspace))
            else:
                self.leaving.set()

    def _expired(self, timer: ClaimTimer) -> None:
        self._timers.pop(timer, None)
        self._perform(self.claims.expired(timer))

    # The end -------------------------------------------------------------------------------------

    async def shutdown(self) -> None:
        """Latch, tear everything down, and return when the last teardown is over."""
        self._perform(self.claims.latch())
        self.leaving.set()
        while self._opening or self._closing or self._joining:
            waiting = [*self._opening.values(), *itertools.chain(*self._closing.values())]
            if waiting:
                await asyncio.wait(waiting)
            await asyncio.sleep(0)  # let the other waiters of these tasks run first

    def unfinished(self) -> list[str]:
        """The directories whose workspaces are still being opened or torn down."""
        return sorted({str(path) for path in (*self._opening, *self._closing, *self._joining)})

    def _begin_teardown(self, workspace: Workspace) -> None:
        """From this very call on nothing new is accepted; the rest takes its time in a task."""
        workspace.begin_close()
        task = asyncio.create_task(self._tear_down(workspace))
        self._closing.setdefault(workspace.path, []).append(task)
        task.add_done_callback(lambda _: self._torn_down(workspace.path, task))

    async def _tear_down(self, workspace: Workspace) -> None:
        try:
            await workspace.close()
        except Exception:
            log.exception("workspace %s did not close cleanly", workspace.path)
        finally:
            self._built.discard(workspace)
            await self._release_store(workspace.store.store)

    def _torn_down(self, key: Path, task: asyncio.Task[None]) -> None:
        self._closing[key].remove(task)
        if not self._closing[key]:
            del self._closing[key]


def _located(request: CreateWorkspace) -> tuple[Path, Path]:
    """The path as an absolute one, and with its links resolved: two ways to one directory are one
    workspace. A relative one begins at the shell's directory: the daemon's is not the client's."""
    from pathlib import Path  # only with the first workspace: it takes 4 ms to load

    anchor = next((e[4:] for e in request.env or () if e.startswith("PWD=/")), os.getcwd())
    path = Path(os.path.normpath(os.path.join(anchor, request.path)))
    return path, Path(real_path(path))


def _log_ignored(workspace: Workspace, request: CreateWorkspace) -> None:
    """Log which flags of a later create have no effect, because the first create decided."""
    first = workspace.asked
    names = ["yolo", "debug", *(["data_dir"] if request.data_dir else [])]
    ignored = [name for name in names if getattr(request, name) != getattr(first, name)]
    if ignored:
        log.info("workspace %s is open: %s stay as they are", workspace.path, ", ".join(ignored))


def _environment(env: list[str] | None) -> Mapping[str, str]:
    if not env:
        return dict(os.environ)
    pairs = (entry.partition("=") for entry in env)
    return {name: value for name, found, value in pairs if name and found}


def _for_commands(env: Mapping[str, str]) -> Mapping[str, str]:
    """A client that does not send all of its environment, which has a PATH, adds to the daemon's:
    a command could find nothing without one."""
    return env if "PATH" in env else {**os.environ, **env}
