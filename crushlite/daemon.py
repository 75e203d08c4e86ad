"""The composition root: listeners, backend, signals. Everything is put together here and nowhere
else, so a tool that vendors crushlite can put it together differently.

    async def agent(turn):
        await turn.say("You said: ")
        await turn.say(turn.prompt)

    Daemon(agent=agent).run()                  # until a signal, or until it is idle

    async with Daemon(agent=agent) as daemon:  # inside a program that has an event loop
        print(daemon.urls)
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import resource
import signal
import sys
from functools import cached_property
from typing import TYPE_CHECKING, Any

from . import listen
from .agent.factory import agent_factory
from .api.auth import Guard, WrongKeys
from .api.front import build_router, translate
from .bounded_exit import BoundedExit
from .clock import SystemClock, wait_at_most
from .errors import IllegalCall, ShuttingDown, UsageError
from .hosting.backend import Backend
from .hosting.tasks import OwnedTasks
from .http.limits import Limits
from .http.server import HTTPServer
from .settings import Settings
from .threads import DaemonThreads
from .unique import new_id
from .wings import standard_wings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

    from .agent.base import AgentFactory
    from .clock import Clock
    from .store import Store, Stores
    from .wing import Setup, Wing

log = logging.getLogger(__name__)

PORTS = 16  # addresses that are served, before no more are opened on request
HOSTS = 64  # names in Host headers that are allowed besides those of loopback
OPEN_FILES = 8192  # wanted soft limit: every client costs a descriptor
LOAD_SECONDS = 1.0  # after the start, all routes are loaded
STOP_SECONDS = 10.0  # in which a daemon that is to leave has left, unless the settings allow more
LATE_SECONDS = 4.0  # before the end of that time, what has not ended is left behind
FORCED_SECONDS = 0.7  # before the end of that time, the process is ended by force
DRAIN_SECONDS = 2.0  # for answers still on their way when everything else has ended
THREADS = 64  # for files, names of servers and other blocking calls of the daemon itself
HURRY_SECONDS = 1.0  # for those, and for stores, if something was left behind
LAST_SECONDS = 0.5  # for what agents left behind, before it is left behind for good


class Daemon:
    """`hosts` are URLs (`unix:///path`, `tcp://127.0.0.1:PORT`); none means the default socket.
    `auth` is "token" or "none" and concerns TCP only. `agent` is anything agent.base accepts;
    `agents` a ready factory instead. `wings` are those of wings.py unless others are given."""

    def __init__(  # noqa: PLR0913 - the root of everything takes everything, by keyword
        self,
        *,
        agent: Any = None,
        agents: AgentFactory | None = None,
        hosts: Sequence[str] = (),
        auth: str = "token",
        allow_hosts: Sequence[str] = (),
        settings: Settings | None = None,
        clock: Clock | None = None,
        stores: Stores | None = None,
        wings: Sequence[Wing] | None = None,
    ) -> None:
        if (agent is None) == (agents is None):
            raise UsageError("give either agent or agents")
        if auth not in ("token", "none"):
            raise UsageError(f"auth {auth!r}: use token or none")
        self.settings = settings or Settings()
        self.clock = clock or SystemClock()
        self.addresses: list[listen.Address] = []  # where it listens, once started
        self.tokens: dict[int, listen.TokenFile] = {}  # by port
        self._hosts = [listen.parse_address(url) for url in hosts]
        self.auth = auth
        self._shared_store: Store | None = None
        self._listeners: list[listen.Listener] = []
        self._starting = asyncio.Lock()  # held by the start, and by the end of the stop
        self._opening = asyncio.Lock()  # one new port at a time
        self._stopping: asyncio.Task[None] | None = None
        self._begun = False  # `start` was called
        # How long a stop may take, whatever hangs.
        needed = (self.settings.drain, self.settings.cancel_grace + STOP_SECONDS / 2)
        self._stop_seconds = max(STOP_SECONDS, *needed)
        self.wings = standard_wings() if wings is None else list(wings)
        self._given_stores = stores
        factory = agents or agent_factory(agent)
        self.backend = Backend(
            setup=_setup(self.wings, factory, self.settings),
            clock=self.clock,
            settings=self.settings,
            stores=lambda: self._stores,
            wings=self.wings,
        )
        for wing in self.wings:
            wing.use_ports(self, self.clock)
        self._guard = Guard(frozenset(allow_hosts), WrongKeys(self.clock))
        self._router = build_router(self.backend, lambda: self.server, self.wings, self._guard)
        if any(not type(wing).__module__.startswith(f"{__package__}.") for wing in self.wings):
            # A wing from elsewhere: what is wrong with its routes is raised here.
            self._router.complete()
        self._loading: asyncio.TimerHandle | None = None
        self.server = HTTPServer(
            self._router,
            clock=self.clock,
            limits=Limits.for_open_files(_allowed_files()),
            translate=translate,
            has_token=self._guard.has_token,
        )

    @cached_property
    def _stores(self) -> Stores:
        """Made when the first store is opened: SQLite, and what uses it, come with it."""
        from .store import Stores

        return self._given_stores or Stores(clock=self.clock, boot_id=new_id())

    @property
    def urls(self) -> list[str]:
        """Where it listens, once started."""
        return [address.url for address in self.addresses]

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    def run(self, started: Callable[[Daemon], None] | None = None) -> None:
        """Serve until told to leave: by a signal, by a client, or by being idle. Calls `started`
        when it listens; without one it writes its addresses to stderr."""
        if asyncio._get_running_loop() is not None:
            raise UsageError(
                "run() starts an event loop of its own, and one is running here already: use "
                "`async with Daemon(...)`, or `await daemon.start()` and `await daemon.stop()`"
            )
        # Not asyncio.run: in the end that waits for every task, for ever if an agent ignores its
        # cancellation. What matters has been waited for when `_serve` returns.
        loop = asyncio.new_event_loop()
        # Not asyncio's own threads: Python waits for those when it exits, however long they hang.
        loop.set_default_executor(DaemonThreads(THREADS, "daemon"))
        # Modules and classes stay for good: the collector, which stops the loop while it works,
        # need not look through them each time.
        gc.freeze()
        with self._bounded_exit(loop):
            try:
                loop.run_until_complete(self._serve(started or _write_addresses))
            finally:
                loop.run_until_complete(_cancel_the_rest())
                loop.close()

    async def serve(self, started: Callable[[Daemon], None] = lambda daemon: None) -> None:
        """Start, call `started`, and return when the daemon has left. In the main thread, signals
        end it; their handlers are put back in the end. In any other thread it gets none. The
        process is ended by force if this takes too long, or at a second signal."""
        with self._bounded_exit(asyncio.get_running_loop()):
            await self._serve(started)

    async def _serve(self, started: Callable[[Daemon], None]) -> None:
        await self.start()
        try:
            started(self)
            await self.backend.leaving.wait()
            log.info("leaving")
        finally:
            self._exit.begin()
            await self.stop()

    def _bounded_exit(
        self, loop: asyncio.AbstractEventLoop
    ) -> contextlib.AbstractContextManager[None]:
        """A context in which signals end the daemon in a bounded time. To be entered before the
        start: a client that sees the socket may send a signal at once."""

        def leave(number: int) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: it has left
                loop.call_soon_threadsafe(self._signaled, number)

        self._exit = BoundedExit(self._stop_seconds - FORCED_SECONDS, leave, self._remove_files)
        return self._exit.open()

    async def start(self) -> None:
        """Open the shared store, bind, listen. On failure nothing is left behind."""
        if self._stopping is not None:
            raise ShuttingDown("this daemon has been stopped: make another one")
        if self._begun:
            raise IllegalCall("a daemon is started once: make another one")
        self._begun = True
        _raise_file_limit()
        async with self._starting:
            try:
                if self.settings.data_dir:
                    from pathlib import Path

                    self._shared_store = await self._stores.open(Path(self.settings.data_dir))
                if self._stopping is not None:
                    raise ShuttingDown("this daemon was stopped while it started")
                for address in self._hosts or [listen.Address(path=listen.default_path())]:
                    self._bound(self._listen(address))
                for listener in self._listeners:
                    await self.server.listen(listener.sock)
                    log.info("listening on %s", listener.address.url)
                for wing in self.wings:
                    await wing.started(self.urls)
            except BaseException:
                await self._release()
                raise
        # Soon after the first answer: an update may replace the package's files, and then a daemon
        # that has not loaded its routes could not be asked to leave. On the loop, not on the clock:
        # no test that stops the time has to know of it.
        self._loading = asyncio.get_running_loop().call_later(LOAD_SECONDS, self._load_routes)
        self.backend.begin()

    def _load_routes(self) -> None:
        try:
            self._router.complete()
        except Exception:
            log.exception("the routes cannot be loaded: every request but health will fail")

    async def stop(self) -> None:
        """End runs and streams, then leave. Calling it twice waits for the same end; a daemon that
        was never started has nothing to end, and cannot be started any more."""
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop())
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        # Sockets first: a client that finds none starts or finds another daemon, while one that
        # finds us would get 503 for as long as the last runs take to end. Their files go
        # before they do, so that we never take away those of a successor.
        self._remove_files()
        self.server.stop_listening()
        shutdown = asyncio.ensure_future(self.backend.shutdown())
        if not await wait_at_most(self.clock, shutdown, self._stop_seconds - LATE_SECONDS):
            log.error("workspaces do not end, and are left behind: %s", self.backend.unfinished())
            self._stores.hurry()
            await wait_at_most(self.clock, shutdown, HURRY_SECONDS)
        await self.server.drain(DRAIN_SECONDS if shutdown.done() else HURRY_SECONDS)
        async with self._starting:  # what that has opened it releases itself, before we are gone
            await self._release()
        log.info("left")

    async def loopback(self, port: int = 0) -> tuple[str, int]:
        """See wing.Ports. A port that is opened is guarded like those of the start."""
        async with self._opening:
            for address in self.addresses:
                if address.port and port in (0, address.port):
                    return address.http_url, address.port
            if len(self.addresses) >= PORTS:
                raise UsageError(f"{PORTS} addresses are served already: use one of their ports")
            # In a thread: a daemon that starts beside us may hold the directory for a moment.
            wanted = listen.Address(host="127.0.0.1", port=port)
            listener = await asyncio.to_thread(self._listen, wanted)
            if self._stopping is not None:
                listener.release()
                self._remove_files()
                raise ShuttingDown("the daemon is leaving")
            self._bound(listener)
            await self.server.listen(listener.sock)
            log.info("listening on %s", listener.address.url)
            return listener.address.http_url, listener.address.port

    def token_of(self, port: int) -> str:
        return self.tokens[port].token if port in self.tokens else ""

    def allow_host(self, host: str) -> None:
        allowed = self._guard.allowed_hosts | {host}
        if len(allowed) > HOSTS:
            raise UsageError(f"{HOSTS} other hosts are allowed already: use one of them")
        self._guard.allowed_hosts = allowed

    def _listen(self, address: listen.Address) -> listen.Listener:
        default = listen.default_path()
        folder = os.path.dirname(default)
        if address.path == default or (address.host and self.auth == "token"):
            listen.private_directory(folder)
        if address.path or self.auth == "none":
            return listen.listen(address)
        with listen.directory_lock(folder):
            return listen.listen(address, self._write_token)

    def _bound(self, listener: listen.Listener) -> None:
        self._listeners.append(listener)
        self.addresses.append(listener.address)
        if listener.address.port:
            port = listener.address.port
            self._guard.add_port(port, self.token_of(port) or None)

    def _write_token(self, port: int) -> None:
        """Called before the port accepts connections, so that a client that sees the port finds the
        token. Both loopback addresses may have the same port: one token then serves both."""
        if port not in self.tokens:
            self.tokens[port] = listen.TokenFile(listen.default_socket().parent, port)

    async def _release(self) -> None:
        if self._loading is not None:
            self._loading.cancel()
        self._remove_files()
        self.server.stop_listening()
        for listener in self._listeners:
            listener.release()
        if self._shared_store is not None:
            await self._stores.release(self._shared_store)
            self._shared_store = None
        for wing in self.wings:
            try:
                wing.stopped()
            except Exception:  # the other wings are told all the same
                log.exception("%s failed at the end of the daemon", type(wing).__name__)

    def _remove_files(self) -> None:
        for listener in self._listeners:
            listener.unlink()
        for token in self.tokens.values():
            token.remove()

    def _signaled(self, number: int) -> None:
        log.info("received %s", signal.Signals(number).name)
        self.backend.leaving.set()


def _setup(wings: Sequence[Wing], factory: AgentFactory, settings: Settings) -> Setup:
    """How workspaces are set up: as the first wing that has an answer says."""
    for wing in wings:
        if (setup := wing.setup(factory, settings)) is not None:
            return setup
    from .hosting.plain import plain_setup

    return plain_setup(factory)


def _write_addresses(daemon: Daemon) -> None:
    sys.stderr.write("".join(f"serving at {url}\n" for url in daemon.urls))
    sys.stderr.flush()


async def _cancel_the_rest() -> None:
    await OwnedTasks(asyncio.all_tasks() - {asyncio.current_task()}).end(LAST_SECONDS)


def _allowed_files() -> int:
    """How many files may be open once the limit is raised, at least."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)


def _raise_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _allowed_files()
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
