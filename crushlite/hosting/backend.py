"""The registry of workspaces: by id for requests, by resolved path for creates.

claims.py decides who keeps a workspace and the server alive; lifetime.py performs its timers, this
file its openings and teardowns. Opening a workspace is slow (a database, recovery), so it is a task
of the backend, shared by all creates at that path and bound to no request. From the moment a
teardown begins the id is unknown; a create at that path waits for it and opens a new workspace.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import uuid
from collections import Counter
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from ..clock import wait_at_most
from ..errors import BadRequest, ChannelMismatch, SessionBusy, WorkspaceNotFound
from ..realpath import real_path
from ..records import dataclass
from ..wing import Opening
from .endings import Endings
from .lifetime import Lifetime, Lifetimes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..clock import Clock
    from ..events import Subscriber
    from ..protocol.workspaces import CreateWorkspace
    from ..settings import Settings
    from ..store import Store, Stores
    from ..wing import Profile, Setup, Wing
    from .workspace import Workspace

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Hosted:
    """A workspace and what its first creator asked for: later creates get the same back."""

    workspace: Workspace
    key: Path
    path: str  # as the first creator wrote it, made absolute
    yolo: bool
    debug: bool
    channels: list[str]
    envs: dict[str, list[str]] = field(default_factory=dict)  # by client: shown to that client only

    @property
    def data_dir(self) -> Path:
        return self.workspace.profile.data_dir


class Backend:
    """`setup` decides how workspaces are set up; `wings` get to know each one that opens."""

    def __init__(
        self,
        *,
        setup: Setup,
        clock: Clock,
        settings: Settings,
        stores: Stores,
        wings: Sequence[Wing] = (),
    ) -> None:
        self.lifetimes = Lifetimes(settings.graces, clock, self)
        self.claims = self.lifetimes.claims
        self.leaving = asyncio.Event()  # the decision to leave has been made
        self._setup = setup
        self._clock = clock
        self.served = settings.agent  # the name of its agent, for clients
        self._settings = settings
        self._stores = stores
        self._wings = wings
        self._hosted: dict[str, Hosted] = {}  # live workspaces by id
        self._joining: Counter[Path] = Counter()  # creates under way at a path
        self._opening: dict[Path, asyncio.Task[Hosted]] = {}
        self._unclaimed: dict[Path, Hosted] = {}  # opened, for the creates under way at its path
        self._closing: dict[Path, list[asyncio.Task[None]]] = {}  # teardowns, newest last
        self._built: set[Hosted] = set()  # until the end of their teardown
        self._past: Counter[str] = Counter()  # the totals of those that are gone
        self._endings: dict[Path, Endings] = {}  # by data directory

    def begin(self) -> None:
        """Start the idle timer: a server that is never used leaves too."""
        self.lifetimes.perform(self.claims.begin())

    # Workspaces ----------------------------------------------------------------------------------

    def get(self, workspace_id: str) -> Workspace:
        return self.hosted(workspace_id).workspace

    def hosted(self, workspace_id: str) -> Hosted:
        found = self._hosted.get(workspace_id)
        if found is None:
            raise WorkspaceNotFound("workspace not found: create it again")
        return found

    def everything(self) -> list[Hosted]:
        return list(self._hosted.values())

    async def create(self, request: CreateWorkspace) -> Hosted:
        """Open the workspace at a path, or join it, and give the client a hold on it."""
        if not request.path:
            raise BadRequest("path is required")
        if "\0" in request.path or "\0" in request.data_dir:
            raise BadRequest("path and data_dir must not contain NUL")
        self.lifetimes.perform(self.claims.admit(request.client_id))
        try:
            hosted = await self._join(request)
        except BaseException:
            self.lifetimes.perform(self.claims.failed())
            raise
        self._remember_env(hosted, request)
        return hosted

    def _remember_env(self, hosted: Hosted, request: CreateWorkspace) -> None:
        """For as long as the client has a claim: it may hold secrets, and clients come and go."""
        if request.env:
            hosted.envs[request.client_id] = list(request.env)
        here = {client for client, _, _ in self.claims.clients(hosted.workspace.id)}
        for client in hosted.envs.keys() - here:
            del hosted.envs[client]

    async def _join(self, request: CreateWorkspace) -> Hosted:
        """Find or open, then claim, without a gap between the two in which it could go away."""
        path = _absolute(request)
        key = _resolved(path)
        self._joining[key] += 1
        deadline = self._clock.time() + self._settings.drain
        try:
            while True:
                hosted = self._found(key)
                if hosted is None and key in self._closing:
                    # Not for ever: an agent may hold its teardown up, and the new one does not
                    # need what the old one still has.
                    left = deadline - self._clock.time()
                    if left > 0:
                        await wait_at_most(self._clock, self._closing[key][-1], left)
                        await asyncio.sleep(0)  # one that is over may not have left the list yet
                        continue
                if hosted is None:
                    hosted = await self._open(key, path, request)
                if hosted.channels != request.channels:
                    raise ChannelMismatch(
                        "requested channels differ from the existing workspace; "
                        f"it is open with {hosted.channels}: ask for the same"
                    )
                if not hosted.workspace.closing:
                    workspace_id = hosted.workspace.id
                    self.lifetimes.perform(self.claims.create(workspace_id, request.client_id))
                    self._unclaimed.pop(key, None)
                    self._hosted[workspace_id] = hosted
                    _log_ignored(hosted, path, request)
                    return hosted
        finally:
            self._joining[key] -= 1
            if not self._joining[key]:
                del self._joining[key]
                self._discard_unclaimed(key)

    def _found(self, key: Path) -> Hosted | None:
        live = (hosted for hosted in self._hosted.values() if hosted.key == key)
        return next(live, None) or self._unclaimed.get(key)

    def _discard_unclaimed(self, key: Path) -> None:
        """No create is under way at a path: a workspace that none of them could claim (their
        clients retired meanwhile, or the server is leaving) must not stay open."""
        hosted = self._unclaimed.pop(key, None)
        if hosted is not None:
            self._begin_teardown(hosted)

    async def _open(self, key: Path, path: Path, request: CreateWorkspace) -> Hosted:
        task = self._opening.get(key)
        if task is None:
            task = self._opening[key] = asyncio.create_task(self._build(key, path, request))
            task.add_done_callback(lambda _: self._opening.pop(key, None))
        return await asyncio.shield(task)

    async def _build(self, key: Path, path: Path, request: CreateWorkspace) -> Hosted:
        env = _environment(request.env)
        opening = Opening(key, path, env, self._data_dir(path, request))
        profile = await self._setup.profile(opening)
        store = await self._stores.open(profile.data_dir)
        try:
            workspace = self._workspace(key, profile, _for_commands(env), store)
        except BaseException:
            await self._release_store(store)
            raise
        workspace.permissions.skip = request.yolo or self._settings.yolo
        hosted = Hosted(
            workspace=workspace,
            key=key,
            path=str(path),
            yolo=request.yolo,
            debug=request.debug,
            channels=list(request.channels),
        )
        self._built.add(hosted)
        try:
            for wing in self._wings:
                part = await wing.open(workspace)
                if part is not None:
                    workspace.parts.append(part)
        except BaseException:
            self._begin_teardown(hosted)
            raise
        # Here, not when the creates wake up: one that arrives in between must find it.
        self._unclaimed[key] = hosted
        if key not in self._joining:
            self._discard_unclaimed(key)
        return hosted

    def _workspace(
        self, key: Path, profile: Profile, env: Mapping[str, str], store: Store
    ) -> Workspace:
        # Imported with the first workspace, as what performs runs comes with it: a daemon that has
        # none yet starts sooner.
        from .workspace import Workspace

        workspace_id = str(uuid.uuid4())
        # A data directory inside the project moves with it; in any other, rows say whose they are.
        scope = "" if profile.data_dir.parent == key else str(key)
        workspace = Workspace(
            workspace_id,
            path=key,
            env=env,
            store=store,
            scope=scope,
            endings=self._endings_of(store),
            profile=profile,
            lifetime=Lifetime(self.lifetimes, workspace_id),
            clock=self._clock,
            settings=self._settings,
        )
        self._endings[store.data_dir].join(store)
        return workspace

    def _data_dir(self, path: Path, request: CreateWorkspace) -> Path | None:
        """The data directory that the client or the daemon's flags ask for. A relative one is
        relative to the workspace, or to where the daemon was started."""
        if request.data_dir:
            return path / request.data_dir
        return Path(self._settings.data_dir) if self._settings.data_dir else None

    def _endings_of(self, store: Store) -> Endings:
        """One for all workspaces in a store. What it could not write outlives the store's closing,
        and is written when that file is opened again."""
        endings = self._endings.get(store.data_dir)
        if endings is None:
            endings = self._endings[store.data_dir] = Endings(store, self._clock)
        return endings

    async def _release_store(self, store: Store) -> None:
        try:
            await self._stores.release(store)
        finally:
            endings = self._endings.get(store.data_dir)
            if endings is not None and endings.idle:
                endings.close()
                del self._endings[store.data_dir]

    async def compact(self, hosted: Hosted) -> tuple[int, int]:
        """Give back the room that deleted sessions took; returns the bytes on disk before and
        after. SessionBusy while anything runs in that store: its writes would have to wait."""
        store = hosted.workspace.store.store
        sharing = (one.workspace for one in self._built if one.workspace.store.store is store)
        if any(workspace.runs.busy() for workspace in sharing):
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
        workspace, perform = self.get(workspace_id), self.lifetimes.perform
        subscriber = workspace.hub.subscribe(
            resume=resume, deltas=deltas, last_id=last_id, pending=workspace.pending
        )
        try:
            perform(self.claims.attach(workspace_id, client))
        except BaseException:
            subscriber.close()
            raise
        subscriber.when_closed = lambda: perform(self.claims.detach(workspace_id, client))
        return subscriber

    def release(self, workspace_id: str, client: str) -> None:
        self.lifetimes.perform(self.claims.release(workspace_id, client))

    def retire(self, client: str) -> None:
        self.lifetimes.perform(self.claims.retire(client))

    def shutdown_if_idle(self) -> None:
        self.lifetimes.perform(self.claims.shutdown_if_idle())

    # The end -------------------------------------------------------------------------------------

    def leave(self) -> None:
        self.leaving.set()

    def tear_down(self, workspace_id: str) -> None:
        self._begin_teardown(self._hosted.pop(workspace_id))

    async def shutdown(self) -> None:
        """Latch, tear everything down, and return when the last teardown is over."""
        self.lifetimes.perform(self.claims.latch())
        self.leaving.set()
        while self._opening or self._closing or self._joining:
            waiting = [*self._opening.values(), *itertools.chain(*self._closing.values())]
            if waiting:
                await asyncio.wait(waiting)
            await asyncio.sleep(0)  # let the other waiters of these tasks run first

    def unfinished(self) -> list[str]:
        """The directories whose workspaces are still being opened or torn down."""
        return sorted({str(path) for path in (*self._opening, *self._closing, *self._joining)})

    def _begin_teardown(self, hosted: Hosted) -> None:
        """From this very call on nothing new is accepted; the rest takes its time in a task."""
        hosted.workspace.begin_close()
        task = asyncio.create_task(self._tear_down(hosted))
        self._closing.setdefault(hosted.key, []).append(task)
        task.add_done_callback(lambda _: self._torn_down(hosted.key, task))

    async def _tear_down(self, hosted: Hosted) -> None:
        try:
            await hosted.workspace.close()
        except Exception:
            log.exception("workspace %s did not close cleanly", hosted.key)
        finally:
            self._built.discard(hosted)
            self._past += hosted.workspace.totals()
            await self._release_store(hosted.workspace.store.store)

    def _torn_down(self, key: Path, task: asyncio.Task[None]) -> None:
        self._closing[key].remove(task)
        if not self._closing[key]:
            del self._closing[key]

    def totals(self) -> Counter[str]:
        """Workspace.totals over all there are and ever were: a counter never goes down."""
        return sum((hosted.workspace.totals() for hosted in self._built), self._past)


def _absolute(request: CreateWorkspace) -> Path:
    """The path as an absolute one. The shell's directory is the best anchor for a relative one:
    the daemon's own has nothing to do with the client."""
    anchor = next((e[4:] for e in request.env or () if e.startswith("PWD=/")), os.getcwd())
    return Path(os.path.normpath(os.path.join(anchor, request.path)))


def _resolved(path: Path) -> Path:
    """Symlinks resolved as far as the path exists: two ways to one directory are one workspace."""
    return Path(real_path(path))


def _log_ignored(hosted: Hosted, path: Path, request: CreateWorkspace) -> None:
    """Log which flags of a later create have no effect, because the first create decided."""
    data_dir = _resolved(path / request.data_dir) if request.data_dir else hosted.data_dir
    wishes = {
        "yolo": request.yolo != hosted.yolo,
        "debug": request.debug != hosted.debug,
        "data_dir": data_dir != hosted.data_dir,
    }
    ignored = [name for name, differs in wishes.items() if differs]
    if ignored:
        log.info("workspace %s is open: %s stay as they are", hosted.key, ", ".join(ignored))


def _environment(env: list[str] | None) -> Mapping[str, str]:
    if not env:
        return dict(os.environ)
    pairs = (entry.partition("=") for entry in env)
    return {name: value for name, found, value in pairs if name and found}


def _for_commands(env: Mapping[str, str]) -> Mapping[str, str]:
    """A client that does not send all of its environment, which has a PATH, adds to the daemon's:
    a command could find nothing without one."""
    return env if "PATH" in env else {**os.environ, **env}
