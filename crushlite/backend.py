"""The registry of workspaces: by id for requests, by resolved path for creates.

claims.py decides who keeps a workspace and the server alive; this file performs it: timers,
openings, teardowns, and the latch. Opening a workspace is slow (a database, recovery), so it is a
task of the backend, shared by all creates at that path and bound to no request. From the moment a
teardown begins the id is unknown; a create at that path waits for it and opens a new workspace.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import itertools
import logging
import os
import uuid
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crushlite.claims import Arm, Claims, Disarm, Shutdown, Teardown
from crushlite.config import Roots, data_directory, load
from crushlite.errors import (
    BadRequest,
    ChannelMismatch,
    StoreFailed,
    StoreUnusable,
    WorkspaceNotFound,
)
from crushlite.jobs import within
from crushlite.protocol.config import AgentInfo
from crushlite.protocol.workspaces import Workspace as WireWorkspace
from crushlite.store import Stores
from crushlite.version import __version__
from crushlite.workspace import Home, Ties, Workspace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from crushlite.agent.base import AgentFactory
    from crushlite.claims import Effect, Timer
    from crushlite.clock import Clock, Timer as ClockTimer
    from crushlite.config import Config
    from crushlite.events import Subscriber
    from crushlite.protocol.workspaces import CreateWorkspace
    from crushlite.settings import Settings
    from crushlite.store import Store

__all__ = ["Backend", "Hosted"]

log = logging.getLogger(__name__)

OWN_DATA_DIR = ".crushlite"
# The variables that say where the machine's configuration files are.
PLACES = ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "CRUSH_GLOBAL_CONFIG", "CRUSH_GLOBAL_DATA")

# What the system says of a place where no data directory can be made, whoever tries again.
NO_PLACE = (
    *(errno.EEXIST, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EROFS),
    *(errno.ELOOP, errno.ENAMETOOLONG),
)


@dataclass(eq=False, slots=True)
class Hosted:
    """A workspace and what its first creator asked for: later creates get the same back."""

    workspace: Workspace
    key: Path
    path: str  # as the first creator wrote it, made absolute
    data_dir: Path
    config: Config
    yolo: bool
    debug: bool
    channels: list[str]
    envs: dict[str, list[str]] = field(default_factory=dict)  # by client: shown to nobody else
    closing: bool = False


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

    async def create(self, request: CreateWorkspace) -> WireWorkspace:
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
        if request.env:
            hosted.envs[request.client_id] = list(request.env)
        return self.describe(hosted, request.client_id)

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
                        f"the workspace is open with channels {hosted.channels}: ask for the same"
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
        data_dir, config = await asyncio.to_thread(self._configure, key, path, env, request)
        for warning in config.warnings:
            log.warning("%s", warning)
        # A database inside the project moves with it; in a shared one rows must say whose they are.
        scope = "" if data_dir.parent == key else str(key)
        store = await self._open_store(data_dir)
        try:
            workspace_id = str(uuid.uuid4())
            home = Home(path=key, env=env, store=store, scope=scope)
            agent = self._agents(key, env, config)
            ties = Ties(
                interactive=lambda: self.claims.interactive(workspace_id),
                claim=lambda run_id, began: self._detached(workspace_id, run_id, began),
                policy=_policy(config),
            )
            workspace = Workspace(workspace_id, home, agent, self._clock, self._settings, ties)
        except BaseException:
            await self._stores.release(store)
            raise
        workspace.permissions.skip = request.yolo or self._settings.yolo
        hosted = Hosted(
            workspace=workspace,
            key=key,
            path=str(path),
            data_dir=data_dir,
            config=config,
            yolo=request.yolo,
            debug=request.debug,
            channels=list(request.channels),
        )
        # Here, not when the creates wake up: one that arrives in between must find it.
        self._unclaimed[key] = hosted
        if key not in self._joining:
            self._discard_unclaimed(key)
        return hosted

    async def _open_store(self, data_dir: Path) -> Store:
        try:
            return await self._stores.open(data_dir)
        except StoreFailed as error:
            cause = error.__cause__
            if not isinstance(cause, OSError) or cause.errno not in NO_PLACE:
                raise
            # Not the daemon's failure: whoever named the place must name another one.
            raise StoreUnusable(f"{data_dir} cannot be a data directory: {cause}") from error

    def _configure(
        self, key: Path, path: Path, env: Mapping[str, str], request: CreateWorkspace
    ) -> tuple[Path, Config]:
        """Where the data goes and what the files say; the one decides where to look for the other.
        A relative directory is relative to what its author sees: the workspace, or the daemon."""
        shared = self._settings.data_dir
        env = _for_configuration(env, self._roots)
        if request.data_dir:
            data_dir = _resolved(path / request.data_dir)
        elif shared:
            data_dir = _resolved(Path(shared))
        else:
            wanted = data_directory(key, env, self._roots)
            data_dir = _resolved(wanted) if wanted is not None else key / OWN_DATA_DIR
        folder = data_dir
        if data_dir.parent != key:
            folder = data_dir / hashlib.sha256(str(key).encode()).hexdigest()[:16]
        commands = self._settings.allow_config_commands
        config = load(key, env, data_dir=folder, allow_commands=commands, roots=self._roots)
        return data_dir, config

    def _detached(self, workspace_id: str, run_id: str, began: bool) -> None:
        change = self.claims.run_began if began else self.claims.run_ended
        self._perform(change(workspace_id, run_id))

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
            await self._stores.release(hosted.workspace.home.store)

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

    # Views ---------------------------------------------------------------------------------------

    def describe(self, hosted: Hosted, client: str | None = None) -> WireWorkspace:
        """A workspace on the wire. A client sees the environment it sent itself, and no other."""
        return WireWorkspace(
            id=hosted.workspace.id,
            path=hosted.path,
            yolo=hosted.yolo,
            debug=hosted.debug,
            data_dir=str(hosted.data_dir),
            version=__version__,
            config=self.config(hosted),
            env=hosted.envs.get(client, []) if client is not None else [],
            channels=hosted.channels,
        )

    def config(self, hosted: Hosted) -> dict[str, Any]:
        """What clients see of the configuration. An agent that is not one of its models stands
        there as a provider of its own."""
        info = self.agent_info(hosted.workspace)
        own = info.is_ready and info.model_cfg.provider not in hosted.config.providers
        return hosted.config.wire(hosted.data_dir, info if own else None)

    def agent_info(self, workspace: Workspace) -> AgentInfo:
        if workspace.agent is None:
            return AgentInfo()
        info = workspace.agent.info()
        return AgentInfo(workspace.runs.busy(), True, info.model, info.selected)


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


def _for_configuration(env: Mapping[str, str], roots: Roots) -> Mapping[str, str]:
    """What configuration is found and expanded with: the client's environment, and the daemon's own
    for what the client left out. A client that sends next to nothing, or a home in which there is
    no configuration, gets the one of the user who started the daemon: it is the same user."""
    both = {**os.environ, **env}
    folders = (roots.config(both), roots.crush_data(both), roots.own_data(both))
    if not any((folder / "crush.json").exists() for folder in folders):
        both = {name: value for name, value in both.items() if name not in PLACES}
        both |= {name: os.environ[name] for name in PLACES if name in os.environ}
    return both


def _policy(config: Config) -> Callable[[str, str], bool]:
    allowed = frozenset(config.allowed_tools)
    return lambda tool, action: tool in allowed or f"{tool}:{action}" in allowed


def _environment(env: list[str] | None) -> Mapping[str, str]:
    if not env:
        return dict(os.environ)
    pairs = (entry.partition("=") for entry in env)
    return {name: value for name, found, value in pairs if name and found}
