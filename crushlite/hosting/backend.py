"""The registry of workspaces: by id for requests, by resolved path for creates.

claims.py decides who keeps a workspace and the server alive; this file performs it: timers,
openings, teardowns, and the latch. Opening a workspace is slow (a database, recovery), so it is a
task of the backend, shared by all creates at that path and bound to no request. From the moment a
teardown begins the id is unknown; a create at that path waits for it and opens a new workspace.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import uuid
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..agent.base import FollowsConfig
from ..claims import Arm, Claims, Disarm, Shutdown, Teardown
from ..clock import within
from ..config import Roots
from ..config.profile import Places, Profile
from ..errors import BadRequest, ChannelMismatch, ConfigError, SessionBusy, WorkspaceNotFound
from ..protocol.events import ConfigChanged
from ..store import Stores
from .endings import Endings
from .runner import Detached
from .workspace import Home, Ties, Workspace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..agent.base import AgentFactory
    from ..claims import Effect, Timer
    from ..clock import Clock, Timer as ClockTimer
    from ..config import Config
    from ..events import Subscriber
    from ..protocol.workspaces import CreateWorkspace
    from ..settings import Settings
    from ..store import Store

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Hosted:
    """A workspace and what its first creator asked for: later creates get the same back."""

    workspace: Workspace
    key: Path
    path: str  # as the first creator wrote it, made absolute
    profile: Profile
    yolo: bool
    debug: bool
    channels: list[str]
    envs: dict[str, list[str]] = field(default_factory=dict)  # by client: shown to nobody else
    closing: bool = False
    rereading: asyncio.Lock = field(default_factory=asyncio.Lock)  # an older reading never wins

    @property
    def data_dir(self) -> Path:
        return self.profile.places.data_dir


class Backend:
    def __init__(
        self,
        *,
        agents: AgentFactory,
        clock: Clock,
        settings: Settings,
        stores: Stores | None = None,
        roots: Roots | None = None,
    ) -> None:
        self.claims = Claims(settings.graces)
        self.leaving = asyncio.Event()  # the decision to leave has been made
        self._agents = agents
        self._clock = clock
        self._settings = settings
        self._stores = stores or Stores(clock=clock, boot_id=str(uuid.uuid4()))
        self._roots = roots or Roots()  # where the machine's configuration files are
        self._hosted: dict[str, Hosted] = {}  # live workspaces by id
        self._joining: Counter[Path] = Counter()  # creates under way at a path
        self._opening: dict[Path, asyncio.Task[Hosted]] = {}
        self._unclaimed: dict[Path, Hosted] = {}  # opened, for the creates under way at its path
        self._closing: dict[Path, list[asyncio.Task[None]]] = {}  # teardowns, newest last
        self._timers: dict[Timer, ClockTimer] = {}
        self._built: set[Hosted] = set()  # until the end of their teardown
        self._past: Counter[str] = Counter()  # the totals of those that are gone
        self._endings: dict[Path, Endings] = {}  # by data directory

    def begin(self) -> None:
        """Start the idle timer: a server nobody ever uses leaves too."""
        self._perform(self.claims.begin())

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
        self._perform(self.claims.admit(request.client_id))
        try:
            hosted = await self._join(request)
        except BaseException:
            self._perform(self.claims.failed())
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
        patience = self._clock.time() + self._settings.drain
        try:
            while True:
                hosted = self._found(key)
                if hosted is None and key in self._closing:
                    # Not for ever: an agent may hold its teardown up, and the new one does not
                    # need what the old one still has.
                    left = patience - self._clock.time()
                    if left > 0:
                        await within(self._clock, self._closing[key][-1], left)
                        await asyncio.sleep(0)  # one that is over may not have left the list yet
                        continue
                if hosted is None:
                    hosted = await self._open(key, path, request)
                if hosted.channels != request.channels:
                    raise ChannelMismatch(
                        "requested channels differ from the existing workspace; "
                        f"it is open with {hosted.channels}: ask for the same"
                    )
                if not hosted.closing:
                    self._perform(self.claims.create(hosted.workspace.id, request.client_id))
                    self._unclaimed.pop(key, None)
                    self._hosted[hosted.workspace.id] = hosted
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
        profile = await asyncio.to_thread(self._configure, key, path, env, request)
        profile.config = await self._completed(env, profile.config)
        for warning in profile.config.warnings:
            log.warning("%s", warning)
        scope = str(key) if profile.places.shared else ""
        env = _for_commands(env)
        store = await self._stores.open(profile.places.data_dir)
        try:
            workspace_id = str(uuid.uuid4())
            endings = self._endings_of(store)
            home = Home(path=key, env=env, store=store, scope=scope, endings=endings)
            agent = self._agents(key, env, profile.config)
            detached = Detached(
                began=lambda run_id: self._perform(self.claims.run_began(workspace_id, run_id)),
                ended=lambda run_id: self._perform(self.claims.run_ended(workspace_id, run_id)),
            )
            ties = Ties(
                interactive=lambda: self.claims.interactive(workspace_id),
                detached=detached,
                policy=profile.allows,
            )
            workspace = Workspace(workspace_id, home, agent, self._clock, self._settings, ties)
        except BaseException:
            await self._let_go(store)
            raise
        workspace.permissions.skip = request.yolo or self._settings.yolo
        hosted = Hosted(
            workspace=workspace,
            key=key,
            path=str(path),
            profile=profile,
            yolo=request.yolo,
            debug=request.debug,
            channels=list(request.channels),
        )
        self._built.add(hosted)
        # Here, not when the creates wake up: one that arrives in between must find it.
        self._unclaimed[key] = hosted
        if key not in self._joining:
            self._discard_unclaimed(key)
        return hosted

    def _endings_of(self, store: Store) -> Endings:
        """One for all workspaces in a store. What it could not write outlives the store's closing,
        and is written when that file is opened again."""
        endings = self._endings.get(store.data_dir)
        if endings is None:
            endings = self._endings[store.data_dir] = Endings(store, self._clock)
        endings.use(store)
        return endings

    async def _let_go(self, store: Store) -> None:
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
        store = hosted.workspace.home.store
        sharing = (one.workspace for one in self._built if one.workspace.home.store is store)
        if any(workspace.runs.busy() for workspace in sharing):
            raise SessionBusy("something is running: try again when nothing is")
        return await store.compact()

    @property
    def unsaved(self) -> int:
        """How many endings of runs wait to be written, in all stores."""
        return sum(endings.waiting for endings in self._endings.values())

    def _configure(
        self, key: Path, path: Path, env: Mapping[str, str], request: CreateWorkspace
    ) -> Profile:
        """A relative data directory is relative to what its author sees: the workspace, or the
        daemon. If neither names one, the configuration files do."""
        data_dir = Path(self._settings.data_dir) if self._settings.data_dir else None
        if request.data_dir:
            data_dir = path / request.data_dir
        commands = self._settings.allow_config_commands
        try:
            places = Places.find(key, env, self._roots, data_dir=data_dir, allow_commands=commands)
            return Profile(places)
        except ConfigError as error:
            raise ConfigError(f"failed to initialize config: {error.message}") from None

    # Configuration -------------------------------------------------------------------------------

    async def change_config(self, hosted: Hosted, change: Callable[[], bool]) -> None:
        """Let one of a profile's changes write its file, then see to it that whoever uses that
        file follows. No event if nothing was changed: each client answers one with a request."""
        if not await asyncio.to_thread(change):
            return
        await self.reread_config(hosted, changed=True)
        for other in self.everything():
            if other is not hosted:
                await self._reread_other(other)

    async def reread_config(
        self, hosted: Hosted, *, changed: bool = False, again: bool = False
    ) -> None:
        """Follow the files, which people edit by hand too. `again`: and look for models anew."""
        async with hosted.rereading:
            config = await asyncio.to_thread(hosted.profile.places.load)
            config = await self._completed(hosted.workspace.home.env, config, again=again)
            if not config.same_as(hosted.profile.config):
                changed = True
                for warning in config.warnings:
                    log.warning("%s", warning)
                hosted.profile.config = config
                self._redecide(hosted)
        if changed:
            self.announce_config(hosted)

    async def _completed(
        self, env: Mapping[str, str], config: Config, *, again: bool = False
    ) -> Config:
        if not isinstance(self._agents, FollowsConfig):
            return config
        completed: Config = await self._agents.complete(env, config, again)
        return completed

    def announce_config(self, hosted: Hosted) -> None:
        if not hosted.closing:
            workspace = hosted.workspace
            workspace.hub.publish("updated", ConfigChanged(workspace.id))

    async def _reread_other(self, hosted: Hosted) -> None:
        try:
            await self.reread_config(hosted)
        except ConfigError as error:
            log.warning("workspace %s keeps its configuration: %s", hosted.key, error)

    def _redecide(self, hosted: Hosted) -> None:
        """The agent of later runs. One that was given by hand stays: it was made once."""
        if isinstance(self._agents, FollowsConfig) and not hosted.closing:
            home = hosted.workspace.home
            agent = self._agents(home.path, home.env, hosted.profile.config)
            hosted.workspace.runs.change_agent(agent)

    # Clients -------------------------------------------------------------------------------------

    def attach(
        self, workspace_id: str, client: str, *, resume: bool, last_id: str | None
    ) -> Subscriber:
        """Open an event stream: subscribed first, so that nothing after the attach is missed."""
        workspace = self.get(workspace_id)
        subscriber = workspace.hub.subscribe(
            resume=resume, last_id=last_id, pending=workspace.pending
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

    # The end -------------------------------------------------------------------------------------

    async def shutdown(self) -> None:
        """Latch, tear everything down, and return when the last teardown is over."""
        self._perform(self.claims.latch())
        self.leaving.set()
        while self._opening or self._closing or self._joining:
            waiting = [*self._opening.values(), *itertools.chain(*self._closing.values())]
            if waiting:
                await asyncio.wait(waiting)
            await asyncio.sleep(0)  # whoever waited for the same goes first

    async def _tear_down(self, hosted: Hosted) -> None:
        try:
            await hosted.workspace.close()
        except Exception:
            log.exception("workspace %s did not close cleanly", hosted.key)
        finally:
            self._built.discard(hosted)
            self._past += hosted.workspace.totals()
            await self._let_go(hosted.workspace.home.store)

    # Effects -------------------------------------------------------------------------------------

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Arm):
                timer = effect.timer
                self._timers[timer] = self._clock.call_later(
                    effect.seconds,
                    lambda timer=timer: self._expired(timer),  # type: ignore[misc]
                )
            elif isinstance(effect, Disarm):
                handle = self._timers.pop(effect.timer, None)
                if handle is not None:
                    handle.cancel()
            elif isinstance(effect, Teardown):
                self._begin_teardown(self._hosted.pop(effect.workspace))
            elif isinstance(effect, Shutdown):
                self.leaving.set()

    def _expired(self, timer: Timer) -> None:
        self._timers.pop(timer, None)
        self._perform(self.claims.expired(timer))

    def _begin_teardown(self, hosted: Hosted) -> None:
        """From this very call on nothing new is accepted; the rest takes its time in a task."""
        hosted.closing = True
        hosted.workspace.runs.shut()
        task = asyncio.create_task(self._tear_down(hosted))
        self._closing.setdefault(hosted.key, []).append(task)
        task.add_done_callback(lambda _: self._torn_down(hosted.key, task))

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
    return Path(os.path.realpath(path))


def _log_ignored(hosted: Hosted, path: Path, request: CreateWorkspace) -> None:
    """The first create decided; somebody who wonders why a flag has no effect finds it here."""
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
