"""The language servers of one workspace: which file starts which, and what they say of changes."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import os
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..clock import time_limit
from ..commands.environment import command_env
from ..errors import BadRequest, CrushliteError, NotFound
from ..features.offers import OfferingPart
from ..listen import default_socket
from ..protocol.events import LSPEvent
from ..records import dataclass
from ..worktree.paths import OwnFolders, locate, read_bytes
from ..worktree.threads import FileThreads
from . import diagnostics
from .server import DISABLED, READY, STARTING, LanguageServer
from .servers import configured, installed
from .tools import make_tools

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..agent.base import Turn
    from ..clock import Timer
    from ..features.tools import OfferedTool
    from ..protocol.messages import ToolCallPart
    from ..wing import Author, OpenWorkspace
    from .servers import ServerSpec

log = logging.getLogger(__name__)

FILE_BYTES = 1 << 20  # of a file that a server is told about
FILE_SECONDS = 10.0
TOUCHED = 64  # files that wait for their servers to start
CALL_CHARS = 8 * 1024  # of a tool call that is looked at for the file it names
WAIT_SECONDS = 1.5  # for what a server says of a change, while a person looks on
PATIENT_SECONDS = 8.0  # else
SETTLE_SECONDS = 0.25  # some say first that all is well
HURRIED_SECONDS = 0.2  # after a server has been too slow twice
EVENT_SECONDS = 0.5  # between two events about the diagnostics of a server


@dataclass(frozen=True, slots=True)
class LspSettings:
    """What the configuration says: the section `lsp`, whether installed servers are used, and the
    daemon's own folders, which servers and tools must not see."""

    section: Mapping[str, Any]
    automatic: bool = True
    own_folders: tuple[Path, ...] = ()


class LspPart(OfferingPart):
    """`settings` says what the configuration says now. Implements tools.WorkspaceServers."""

    def __init__(self, workspace: OpenWorkspace, settings: Callable[[], LspSettings]) -> None:
        self.servers: dict[str, LanguageServer] = {}
        self.root = workspace.path
        self._workspace = workspace
        self._settings = settings
        self._known: LspSettings | None = None  # what `_specs` were made of
        self._specs: dict[str, ServerSpec] = {}
        self._making = asyncio.Lock()
        self._threads = FileThreads(1, "lsp")
        self._touched: dict[Path, None] = {}
        self._touching: asyncio.Task[None] | None = None
        self._late: dict[str, int] = {}  # how often a server was too slow, without a break
        self._events: dict[str, Timer] = {}  # of servers whose diagnostics have changed
        self._tools: tuple[OfferedTool, ...] = ()
        self._recalled: deque[str] = deque(maxlen=TOUCHED)  # sessions whose files were looked at

    @functools.cached_property
    def own(self) -> OwnFolders:
        """Folders that servers are told nothing of. Blocks a little when it is first asked for."""
        return OwnFolders(self.root, (*self._settings().own_folders, default_socket().parent))

    async def close(self) -> None:
        if self._touching is not None:
            self._touching.cancel()
            await asyncio.wait([self._touching])
        for timer in self._events.values():
            timer.cancel()
        await asyncio.gather(*(server.close() for server in self.servers.values()))

    async def stop(self) -> None:
        """End all servers; the next file that is touched starts its own again."""
        running = list(self.servers.values())
        await asyncio.gather(*(server.stop() for server in running))

    # Which there are -----------------------------------------------------------------------------

    async def all_servers(self) -> dict[str, LanguageServer]:
        """By name, those that the configuration has and those that a file has called for."""
        await self._make()
        return self.servers

    async def server(self, name: str) -> LanguageServer:
        """Raises NotFound."""
        found = (await self.all_servers()).get(name)
        if found is None:
            raise NotFound(
                f"LSP client not found: there is no language server {name}, see GET W/lsps"
            )
        return found

    async def _make(self) -> None:
        """Follow the configuration: servers whose section has changed end."""
        settings = self._settings()
        if settings == self._known:
            return
        async with self._making:
            if settings == self._known:
                return
            given = configured(settings.section)
            found: dict[str, ServerSpec] = {}
            if settings.automatic:
                path = self._workspace.env.get("PATH", os.defpath)
                found = await self.blocking(installed, path, self.root)
            taken = {kind for spec in given.values() for kind in spec.filetypes}
            # What is configured for a kind of file stands instead of what is installed.
            others = {n: s for n, s in found.items() if taken.isdisjoint(s.filetypes)}
            # First: while servers end, `fitting` may make one, which must not be of an old section.
            self._specs = specs = {**others, **given}
            for name in [n for n, s in self.servers.items() if specs.get(n) != s.spec]:
                await self.servers.pop(name).close()
                self._late.pop(name, None)
            self._known = settings
            for name in given:
                self._server(name)

    def _server(self, name: str) -> LanguageServer:
        if name not in self.servers:
            env = command_env(self._workspace)
            self.servers[name] = LanguageServer(
                self._specs[name], self.root, env, self._workspace.clock, self._changed
            )
        return self.servers[name]

    async def fitting(self, path: Path) -> list[LanguageServer]:
        """The servers for a file of the workspace, started if they are not running."""
        await self._make()
        if not path.is_relative_to(self.root):
            return []
        found = []
        for name, spec in list(self._specs.items()):
            if not spec.fits(path) or not await self.blocking(spec.is_rooted, path, self.root):
                continue
            # Meanwhile the workspace may have begun to close, or the configuration have changed.
            if not self._workspace.closing and self._specs.get(name) == spec:
                server = self._server(name)
                server.start()
                if server.state != DISABLED:
                    found.append(server)
        return found

    async def blocking(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await self._threads.run(FILE_SECONDS, function, *arguments)

    # Files that runs touch -----------------------------------------------------------------------

    async def file_read(self, session_id: str, path: str) -> None:
        self.touch(Path(path))

    async def file_changed(
        self, author: Author, path: str, before: str | None, after: str | None
    ) -> None:
        self.touch(Path(path))

    def touch(self, path: Path) -> None:
        """Start the servers for a file and tell them what it holds, in the background."""
        if len(self._touched) < TOUCHED and not self._workspace.closing:
            self._touched[path] = None
            if self._touching is None or self._touching.done():
                self._touching = asyncio.create_task(self._touch_all())

    async def _touch_all(self) -> None:
        while self._touched:
            path = next(iter(self._touched))
            del self._touched[path]
            with contextlib.suppress(CrushliteError):
                for server in await self.fitting(path):
                    if await server.ready(server.spec.seconds):
                        await self.tell(server, path)

    async def tell(self, server: LanguageServer, path: Path) -> None:
        """Tell a server what a file holds now. Raises CrushliteError."""
        await server.tell(path, await self.text_of(path))

    async def refresh(self, server: LanguageServer) -> None:
        """Tell a server what the files that it has open hold now, which commands may have changed.
        A file that cannot be read any more is closed. Raises CrushliteError."""
        paths = server.open_files
        texts = await self.blocking(_texts, self.root, self.own, paths)
        for path, text in zip(paths, texts, strict=True):
            if text is None:
                await server.forget(path)
            else:
                await server.tell(path, text)

    async def text_of(self, path: Path) -> str:
        """The text of a file of the workspace. Raises BadRequest."""
        return str(await self.blocking(_text, self.root, self.own, path))

    async def notes_on_change(self, turn: Turn, path: str) -> str:
        """What servers find wrong in a file that an agent has just changed."""
        place = Path(path)
        servers = await self.fitting(place)
        if not servers:
            return ""
        found = await asyncio.gather(
            *(self._after_change(server, place, patient=not turn.interactive) for server in servers)
        )
        return "\n".join(filter(None, found))

    async def _after_change(self, server: LanguageServer, path: Path, *, patient: bool) -> str:
        """What is new since the server spoke about the file last. Empty if it does not say anything
        in time: the model can ask with a tool."""
        if not await server.ready(PATIENT_SECONDS if patient else 0.0):
            return ""
        name = server.spec.name
        seconds = PATIENT_SECONDS if patient else WAIT_SECONDS
        if self._late.get(name, 0) >= 2:
            seconds = HURRIED_SECONDS
        heard = False
        try:
            async with time_limit(self._workspace.clock, seconds):
                await self.tell(server, path)
                heard = await server.heard(path, seconds)
        except TimeoutError:
            pass  # it does not even take the text
        except CrushliteError:
            return ""
        self._late[name] = 0 if heard else self._late.get(name, 0) + 1
        if not heard:
            return ""
        if not server.about(path):
            await server.heard(path, SETTLE_SECONDS, times=2)
        return diagnostics.after_change(self.shown(path), server.before(path), server.about(path))

    def shown(self, path: Path) -> str:
        """A path as the model reads it."""
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else str(path)

    # For the agent -------------------------------------------------------------------------------

    async def tools(self, turn: Turn) -> Sequence[OfferedTool]:
        """Once a server has been started here: they are of no use without one. A session that has
        touched files for a server before gets them with its first step, also after a restart: tools
        that go and come back would change how a session's requests begin, which providers cache."""
        if not self._tools and turn.session_id not in self._recalled:
            self._recalled.append(turn.session_id)
            with contextlib.suppress(CrushliteError):  # the file system hangs
                await self._start_again(turn)
        running = any(server.state in (STARTING, READY) for server in self.servers.values())
        if running and not self._tools:
            self._tools = make_tools(self)
        return self._tools

    async def _start_again(self, turn: Turn) -> None:
        """Start the servers for the newest files that tool calls of a session have named."""
        await self._make()
        if not self._specs:
            return
        calls = [call for message in await turn.history() for call in message.tool_calls]
        paths = (_file_of(self.root, call) for call in reversed(calls[-TOUCHED:]))
        for path in dict.fromkeys(filter(None, paths)):
            await self.fitting(path)

    # Events --------------------------------------------------------------------------------------

    def _changed(self, server: LanguageServer, what: str) -> None:
        name = server.spec.name
        if what == "state_changed":
            self._publish(server, what)
        elif name not in self._events:
            later = lambda: self._publish(server, what)  # noqa: E731 - it is called once
            self._events[name] = self._workspace.clock.call_later(EVENT_SECONDS, later)

    def _publish(self, server: LanguageServer, what: str) -> None:
        if what == "diagnostics_changed":
            self._events.pop(server.spec.name, None)
        if not self._workspace.closing:
            event = LSPEvent(what, server.spec.name, server.state, server.error, server.count)
            self._workspace.hub.publish("updated", event)


def _texts(root: Path, own: OwnFolders, paths: list[Path]) -> list[str | None]:
    """The texts of some files, None for those that have none or cannot be read. Blocks."""
    found: list[str | None] = []
    for path in paths:
        try:
            found.append(_text(root, own, path))
        except BadRequest:
            found.append(None)
    return found


def _file_of(root: Path, call: ToolCallPart) -> Path | None:
    """The file that a tool call names; None if it names none."""
    try:
        value = json.loads(call.input) if len(call.input) <= CALL_CHARS else None
    except (ValueError, RecursionError):
        return None
    name = value.get("file_path") if isinstance(value, dict) else None
    if not isinstance(name, str) or "\0" in name:
        return None
    return Path(os.path.normpath(root / name))


def _text(root: Path, own: OwnFolders, path: Path) -> str:
    """The text of a file of the workspace. Raises BadRequest. Blocks."""
    place = locate(root, str(path), own)
    if not place.inside:
        raise BadRequest(f"{path} is not in the workspace: language servers do not see it")
    data, _ = read_bytes(place, FILE_BYTES)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise BadRequest(f"{place.shown} is not UTF-8 text") from None
