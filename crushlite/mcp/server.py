"""One tool server: starting it, its lists, calls, and starting it again.

A server is started in the background. What it offers is known when it is `connected`; when it dies
its tools are withdrawn, and it is started once more: at once if it had lived for a while, else by
the next call or the next prompt. Two attempts to start it never run at the same time.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from ..clock import time_limit, wait_at_most
from ..errors import CrushliteError
from ..jsonrpc.errors import PeerError, PeerGone, PeerTimeout
from ..protocol.events import McpEvent
from ..records import dataclass
from .content import prompt_text, tool_answer
from .errors import NeedsAuth, ServerError, SessionLost
from .items import PromptInfo, ResourceInfo, ToolInfo, read_prompts, read_resources, read_tools
from .links import ProgramLink
from .session import introduce
from .sse import EventLink
from .web import WebClient, WebLink

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from ..clock import Clock
    from ..config.toolservers import ToolServer
    from ..features.tools import ToolAnswer
    from ..outbound.proxies import Proxies
    from .links import Link
    from .places import StartingPlaces
    from .session import McpSession

log = logging.getLogger(__name__)

CALL_SECONDS = 600.0
READ_SECONDS = 60.0  # for a prompt or a resource
LISTS_SECONDS = 5.0  # for prompts and resources, which nobody waits for
LIVED_SECONDS = 5.0  # a server that dies sooner is not started again by itself
RELIST_SECONDS = 1.0  # between two readings of a list that changes
HEAR_SECONDS = 5.0, 300.0  # pauses before a stream of notifications is opened again
CLOSE_SECONDS = 10.0
GONE_SECONDS = 2.0  # to learn how a program has ended
_LISTS = ("tools", "prompts", "resources")
_NOT_READY = {"disabled": "it is disabled", "starting": "it is still starting: try again later"}


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What the servers of a workspace share."""

    path: Path
    env: Callable[[], Mapping[str, str]]  # for programs
    clock: Clock
    proxies: Proxies
    starting: StartingPlaces
    redact: Callable[[str], str]  # takes secrets out of a text for people
    publish: Callable[[McpEvent], None]
    changed: Callable[[], None]  # what the servers offer has changed


class Server:
    def __init__(self, config: ToolServer, settings: ServerSettings) -> None:
        self.config = config
        self.name = config.name
        self.state = "disabled" if config.disabled else "error" if config.problem else "starting"
        self.error = config.problem
        self.last_words = ""
        self.connected_at: float | None = None
        self.tried_at = settings.clock.time()
        self.died_at: float | None = None  # if it ran, and has not been started again
        self.tools: tuple[ToolInfo, ...] = ()
        self.prompts: tuple[PromptInfo, ...] = ()
        self.resources: tuple[ResourceInfo, ...] = ()
        self.left_out: tuple[str, ...] = ()  # tools that cannot be offered, and why
        self.instructions = ""
        self.has_resources = False
        self._settings = settings
        self._clock = settings.clock
        self._session: McpSession | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed: set[str] = set()  # lists that have changed since they were read last
        self._relisting: set[str] = set()  # lists that a task reads again
        self._modern = False  # how it answered last
        self._closed = False

    # Starting ------------------------------------------------------------------------------------

    @property
    def usable(self) -> bool:
        """Whether it can be started at all."""
        return not (self._closed or self.config.disabled or self.config.problem)

    def start(self) -> None:
        """Begin an attempt to start it, in the background, unless one is under way or it runs."""
        if self.usable and self._session is None and self._connecting is None:
            self.tried_at, self.died_at = self._clock.time(), None
            self._changed.clear()
            self._connecting = asyncio.create_task(self._connect())
            self._connecting.add_done_callback(self._attempted)
            self._set_state("starting")

    def _attempted(self, task: asyncio.Task[None]) -> None:
        self._connecting = None
        if not task.cancelled() and task.exception() is not None:
            log.error("tool server %s", self.name, exc_info=task.exception())
            self._set_state("error", "it could not be started: the log says more")

    async def settled(self, seconds: float) -> None:
        """Wait until no attempt is under way, at most so long."""
        if self._connecting is not None:
            await wait_at_most(self._clock, self._connecting, seconds)

    async def _connect(self) -> None:
        """One attempt. Ends as connected, or with an error that states tell."""
        link: Link | None = None
        seconds = self.config.timeout
        state, problem, gone = "error", "", False
        async with self._settings.starting.place(self._clock):
            try:
                async with time_limit(self._clock, seconds):
                    link = await self._open()
                    session = await introduce(link, seconds, modern_first=self._modern)
                    await self._read_lists(session)
            except TimeoutError:
                problem = f"timed out after {seconds:g}s"
            except NeedsAuth as error:
                state, problem = "needs auth", error.message
            except (CrushliteError, OSError) as error:
                problem = getattr(error, "message", "") or str(error)
                gone = isinstance(error, PeerGone)
            except BaseException:
                if link is not None:
                    await link.close()
                raise
            else:
                return self._connected(session)
            if link is not None:
                problem = await self._why_gone(link, problem, gone=gone)
                self.last_words = self._settings.redact(link.last_words())
                await link.close()
            self._modern = False  # it may be another program by now
            self._set_state(state, problem)

    async def _why_gone(self, link: Link, problem: str, *, gone: bool) -> str:
        """Why a connection ended, if it did: a program says more than the end of its output."""
        if gone and self.config.type == "stdio":
            await wait_at_most(self._clock, link.gone, GONE_SECONDS)
        return link.gone.result() if link.gone.done() else problem

    async def _open(self) -> Link:
        config, settings = self.config, self._settings
        if config.type == "stdio":
            env = {**settings.env(), **dict(config.env)}
            arguments = [config.command, *config.args]
            return await ProgramLink.open(arguments, settings.path, env, self._clock, self._hear)
        client = WebClient(config.url, config.headers, self._clock, settings.proxies)
        if config.type == "http":
            return WebLink(client, self._clock, self._hear)
        try:
            return await EventLink.open(client, self._clock, self._hear)
        except BaseException:
            await client.aclose()
            raise

    async def _read_lists(self, session: McpSession) -> None:
        """Read all lists at the same time; only that of the tools must come."""
        quick = min(self.config.timeout, LISTS_SECONDS)
        await asyncio.gather(
            self._read_list(session, "tools", self.config.timeout),
            self._quietly(self._read_list(session, "prompts", quick)),
            self._quietly(self._read_list(session, "resources", quick)),
        )

    async def _read_list(self, session: McpSession, what: str, seconds: float) -> bool:
        """Read a list; return whether it has changed. Raises PeerError, also if the connection has
        ended meanwhile: what it offered was withdrawn then, and stays so."""
        found: list[Any] = []
        if session.has(what):
            try:
                async with time_limit(self._clock, seconds):
                    found = await session.list(f"{what}/list", what)
            except TimeoutError:
                raise PeerTimeout(f"{what}/list was not done within {seconds:g} seconds") from None
        tools = self.tools, self.left_out
        if what == "tools":
            tools = await asyncio.to_thread(read_tools, found, self.config.offers)
        if self._closed or session.link.gone.done():
            raise ServerError("it has ended while its list was read")
        before = (self.tools, self.left_out, self.prompts, self.resources)
        if what == "tools":
            self.tools, self.left_out = tools
        elif what == "prompts":
            self.prompts = read_prompts(found)
        else:
            self.resources = read_resources(found)
            self.has_resources = session.has(what)
        return before != (self.tools, self.left_out, self.prompts, self.resources)

    async def _quietly(self, work: Awaitable[object]) -> None:
        try:
            await work
        except PeerError as error:
            log.info("tool server %s: %s", self.name, self._settings.redact(error.message))

    def _connected(self, session: McpSession) -> None:
        self._session = session
        self._modern = session.modern
        self.instructions = session.instructions
        self.connected_at = self._clock.now()
        if self.left_out:
            log.warning("tool server %s: left out: %s", self.name, "; ".join(self.left_out[:5]))
        self._spawn(self._watch(session, self._clock.time()))
        self._set_state("connected")
        self._follow_changes()

    # Following -----------------------------------------------------------------------------------

    async def _watch(self, session: McpSession, since: float) -> None:
        """Until the connection ends: hear of changes. Then withdraw what the server offered."""
        hearing = asyncio.create_task(self._listen(session))
        try:
            reason = await asyncio.shield(session.link.gone)
        finally:
            hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)
        await self._lost(session, reason)
        if self._clock.time() - since >= LIVED_SECONDS:
            self.start()

    async def _listen(self, session: McpSession) -> None:
        """Hear of changes over a stream of its own, if the server tells of any that way. When that
        is opened again, the lists are read again: they may have changed meanwhile."""
        told = set(filter(session.tells, _LISTS))
        if not told:
            return
        pause = HEAR_SECONDS[0]
        while True:
            try:
                return await session.listen()
            except PeerError:
                await self._clock.sleep(pause)
                pause = min(2 * pause, HEAR_SECONDS[1])
                self._changed |= told
                self._follow_changes()

    def _hear(self, method: str, params: dict[str, Any]) -> None:
        """A notification of the server. It may come before the server counts as connected, right
        after the list that it is about was read."""
        what = method.removeprefix("notifications/").removesuffix("/list_changed")
        if what in _LISTS:
            self._changed.add(what)
            self._follow_changes()

    def _follow_changes(self) -> None:
        """Read the lists again that have changed, unless that is being done or must wait until the
        server is connected."""
        if self._session is not None:
            for what in self._changed - self._relisting:
                self._relisting.add(what)
                self._spawn(self._relist(what))

    async def _relist(self, what: str) -> None:
        """Read a list again until it has not changed for RELIST_SECONDS: a server that tells of
        changes all the time is not asked all the time."""
        try:
            while what in self._changed and self._session is not None:
                self._changed.discard(what)
                await self._quietly(self.refresh(what))
                await self._clock.sleep(RELIST_SECONDS)
        finally:
            self._relisting.discard(what)

    async def refresh(self, what: str) -> None:
        """Read a list again; a server that does not run is started. Raises ServerError."""
        session = self._session
        if session is None:
            self.start()
            return
        try:
            changed = await self._read_list(session, what, self.config.timeout)
        except PeerError as error:
            raise ServerError(self._settings.redact(error.message)) from None
        if changed:
            self._settings.changed()
            self._publish(f"{what}_list_changed")

    async def _lost(self, session: McpSession, reason: str) -> None:
        """The connection cannot be used any more."""
        if self._session is not session:
            return
        self._session, self.died_at = None, self._clock.time()
        self.last_words = self._settings.redact(session.link.last_words())
        self._withdraw()
        self._set_state("error", reason)
        await session.link.close()

    def _withdraw(self) -> None:
        self.tools, self.prompts, self.resources, self.left_out = (), (), (), ()
        self.instructions, self.has_resources = "", False

    # Asking --------------------------------------------------------------------------------------

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolAnswer:
        """Call a tool by its own name. Raises CrushliteError."""
        params = {"name": tool, "arguments": dict(arguments)}
        result = await self._ask("tools/call", params, CALL_SECONDS)
        return await asyncio.to_thread(tool_answer, result)

    async def prompt(self, name: str, arguments: Mapping[str, str]) -> str:
        """The text of a prompt. Raises CrushliteError."""
        params = {"name": name, "arguments": dict(arguments)}
        return prompt_text(await self._ask("prompts/get", params, READ_SECONDS))

    async def resource(self, uri: str) -> list[dict[str, Any]]:
        """The contents of a resource. Raises CrushliteError."""
        result = await self._ask("resources/read", {"uri": uri}, READ_SECONDS)
        contents = result.get("contents")
        listed = contents if isinstance(contents, list) else []
        return [each for each in listed if isinstance(each, dict)]

    async def _ask(self, method: str, params: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Ask a server, which is started for that once if it does not run."""
        session = await self._ready()
        try:
            try:
                return await session.request(method, params, seconds=seconds)
            except SessionLost as error:
                await self._lost(session, error.message)
                session = await self._ready()
                return await session.request(method, params, seconds=seconds)
        except PeerGone as error:
            reason = await self._why_gone(session.link, error.message, gone=True)
            await self._lost(session, reason)
            raise ServerError(f"{self._named} is gone: {self._told(reason)}") from None
        except PeerError as error:
            raise ServerError(f"{self._named}: {self._settings.redact(error.message)}") from None

    async def _ready(self) -> McpSession:
        """The session, of a server that is started if it does not run. Raises ServerError."""
        if self._session is None and self.usable:
            self.start()
            await self.settled(self.config.timeout + CLOSE_SECONDS)
        if self._session is None:
            why = "" if self._closed else _NOT_READY.get(self.state)
            reason = self.error or why or "it has ended"
            raise ServerError(f"{self._named} cannot be used: {self._told(reason)}")
        return self._session

    @property
    def _named(self) -> str:
        return f"the tool server {self.name}"

    def _told(self, reason: str) -> str:
        text = self._settings.redact(reason)
        return f"{text}\n{self.last_words}" if self.last_words else text

    # States --------------------------------------------------------------------------------------

    def _set_state(self, state: str, error: str = "") -> None:
        if self._closed:
            return
        self.state, self.error = state, self._settings.redact(error)
        if state != "connected":
            self._withdraw()
            self.connected_at = None
        self._settings.changed()
        self._publish("state_changed")

    def _publish(self, kind: str) -> None:
        counts = len(self.tools), len(self.prompts), len(self.resources)
        self._settings.publish(McpEvent(kind, self.name, self.state, self.error, *counts))

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """End it for good, with all of its processes."""
        self._closed = True
        self._withdraw()
        session, self._session = self._session, None
        tasks = [*self._tasks, *([self._connecting] if self._connecting is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if session is not None:
            await session.link.close()
