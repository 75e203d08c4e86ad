"""One language server while it runs: its process, what it is told about files, what it finds.

Nothing here waits for a server without a bound, and nothing it does raises into a turn: a server
that is slow, dead or talks too much is only not there. One that ended by itself is started again
when the next file is touched, three times in ten minutes.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import sys
import time
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any

from ..clock import time_limit
from ..commands.process import start_piped
from ..errors import CrushliteError
from ..jsonrpc.errors import METHOD_NOT_FOUND, PeerError, RpcError
from ..jsonrpc.frames import HEADERS
from ..jsonrpc.peer import PeerOptions, RpcHandler, RpcPeer
from ..protocol.sessions import NEVER
from ..records import dataclass
from . import diagnostics
from .positions import URI_CHARS, path_of, uri_of
from .servers import environment, language_of, resolved_command
from .wire import LSPClientInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from ..clock import Clock
    from ..commands.process import Command
    from ..jsonrpc.peer import RpcRequest
    from .diagnostics import Diagnostic
    from .servers import ServerSpec

log = logging.getLogger(__name__)

UNSTARTED, STARTING, READY, ERROR, STOPPED, DISABLED = range(6)

OPEN_FILES = 64  # the one that was not used for longest is closed
FRAME = 32 << 20  # bytes of one message
REQUEST_SECONDS = 20.0
STOP_SECONDS = 1.0
RESTARTS, RESTART_SECONDS = 3, 600.0
FLOOD, FLOOD_SECONDS = 20_000, 10.0  # messages in so many seconds: the server is ended
ERROR_CHARS = 500
SECTION_CHARS = 1000  # of the name of a part of the configuration


@dataclass(frozen=True, slots=True)
class _Told:
    """What a server was told last of an open file, and what it has said of the text before."""

    version: int
    text: str
    published: int  # how often it had said something when it was told
    found: list[Diagnostic]


class LanguageServer(RpcHandler):
    """`changed` is called with `state_changed` or `diagnostics_changed`."""

    def __init__(
        self,
        spec: ServerSpec,
        root: Path,
        env: Mapping[str, str],
        clock: Clock,
        changed: Callable[[LanguageServer, str], None],
    ) -> None:
        self.spec = spec
        self.state = DISABLED if spec.disabled or spec.why_not else UNSTARTED
        self.error = spec.why_not
        self.connected_at = 0.0
        self.found: OrderedDict[str, list[Diagnostic]] = OrderedDict()  # by URI
        self._root, self._env, self._clock, self._changed = root, env, clock, changed
        self._life: asyncio.Task[None] | None = None
        self._is_closed = False
        self._settled: asyncio.Future[None] | None = None  # it is ready, or will not be
        self._peer: RpcPeer | None = None
        self._open: OrderedDict[str, _Told] = OrderedDict()  # by URI
        self._published: dict[str, int] = {}  # how often, by URI
        self._waiting: dict[str, asyncio.Future[None]] = {}  # until it speaks about a file
        self._starts: deque[float] = deque(maxlen=RESTARTS + 1)
        self._window, self._messages = 0.0, 0  # for floods
        self._telling = asyncio.Lock()  # what is told of files stays in order
        self._tells: set[asyncio.Task[None]] = set()

    @property
    def count(self) -> int:
        """How many errors and warnings it knows."""
        return sum(each.severity <= 2 for some in self.found.values() for each in some)

    @property
    def info(self) -> LSPClientInfo:
        return LSPClientInfo(
            self.spec.name,
            self.state,
            error=self.error,
            diagnostic_count=self.count,
            connected_at=_stamp(self.connected_at),
        )

    # Its life ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start it in the background, unless it runs, is disabled or closed, or has ended too
        often."""
        if self._is_closed or self.state == DISABLED:
            return
        if self._life is not None and not self._life.done():
            return
        now = self._clock.time()
        if len(self._starts) > RESTARTS and now - self._starts[0] < RESTART_SECONDS:
            return
        self._starts.append(now)
        self._settled = asyncio.get_running_loop().create_future()
        self._set(STARTING)
        self._life = asyncio.create_task(self._live())

    async def _live(self) -> None:
        try:
            await self._run()
        except asyncio.CancelledError:
            self._set(STOPPED)
            raise
        except CrushliteError as error:
            self._set(ERROR, error.message)
        except Exception as error:
            log.exception("language server %s", self.spec.name)
            self._set(ERROR, f"{type(error).__name__}: {error}")
        finally:
            self._forget()

    async def _run(self) -> None:
        """From start to end. Raises CrushliteError that says why it ended."""
        arguments = await asyncio.to_thread(self._arguments)
        env = await asyncio.to_thread(environment, self.spec, self._env, self._root)
        # Not in the project: some programs look for their own parts in the folder they are in.
        cwd = "/" if self.spec.found else self._root
        started = await start_piped(arguments, cwd=cwd, env=env, clock=self._clock)
        command, reader, writer = started
        options = PeerOptions(
            framing=HEADERS,
            frame=FRAME,
            cancel_notice=lambda number: ("$/cancelRequest", {"id": number}),
            on_noise=lambda _: self._count(),
            noise=sys.maxsize,  # all of it is counted
        )
        peer = RpcPeer(reader, writer, self, self._clock, options)
        reading = asyncio.create_task(peer.run())
        try:
            await self._initialize(peer)
            self._peer = peer
            self.connected_at = self._clock.now()
            self._set(READY)
            ends: list[asyncio.Future[Any]] = [reading, command.done]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            raise CrushliteError(_last_words(command) or "it ended, or took no more messages")
        except PeerError as error:
            raise CrushliteError(_last_words(command) or error.message) from None
        finally:
            await _end(peer, reading, command, self._clock)
            await _read_to_the_end(reader, self._clock)

    def _arguments(self) -> list[str]:
        return resolved_command(self.spec, self._env.get("PATH", os.defpath), self._root)

    async def _initialize(self, peer: RpcPeer) -> None:
        folder = {"uri": uri_of(self._root), "name": self._root.name}
        params = {
            "processId": None,  # the keeper ends it with us
            "clientInfo": {"name": "crushlite"},
            "rootUri": folder["uri"],
            "rootPath": str(self._root),
            "workspaceFolders": [folder],
            "initializationOptions": dict(self.spec.init_options),
            "capabilities": _CAPABILITIES,
        }
        await peer.request("initialize", params, seconds=self.spec.seconds, cancellable=False)
        await peer.notify("initialized", {})
        if self.spec.options:
            settings = {"settings": dict(self.spec.options)}
            await peer.notify("workspace/didChangeConfiguration", settings)

    def _forget(self) -> None:
        self._peer = None
        self._open.clear()
        self.found.clear()
        for waiting in self._waiting.values():
            _resolve(waiting)
        self._waiting.clear()
        if self._settled is not None:
            _resolve(self._settled)

    def _set(self, state: int, error: str = "") -> None:
        self.state, self.error = state, error[:ERROR_CHARS]
        if state != STARTING and self._settled is not None:
            _resolve(self._settled)
        self._changed(self, "state_changed")

    async def stop(self) -> None:
        """End it and wait until its processes are dead."""
        if self._life is not None and not self._life.done():
            self._life.cancel()
            await asyncio.wait([self._life])
            if self.state == STARTING:  # the task was cancelled before its first step
                self._set(STOPPED)
        self._starts.clear()

    async def close(self) -> None:
        """End it for good: `start` does nothing from this call on, whoever still has it."""
        self._is_closed = True
        await self.stop()

    async def restart(self) -> None:
        await self.stop()
        self.start()

    async def ready(self, seconds: float) -> bool:
        """Whether it can be asked, at the latest after so many seconds."""
        if self.state == STARTING and self._settled is not None and seconds > 0:
            with contextlib.suppress(TimeoutError):
                async with time_limit(self._clock, seconds):
                    await asyncio.shield(self._settled)
        return self._peer is not None

    # Files ---------------------------------------------------------------------------------------

    async def tell(self, path: Path, text: str) -> None:
        """Tell it what a file holds now, unless it knows. Goes on when the caller is cancelled:
        `_open` must stay what the server was told. Raises PeerError."""
        telling = asyncio.create_task(self._tell(path, text))
        self._tells.add(telling)
        telling.add_done_callback(self._tells.discard)
        telling.add_done_callback(_retrieve)
        await asyncio.shield(telling)

    async def _tell(self, path: Path, text: str) -> None:
        uri = uri_of(path)
        async with self._telling:
            peer = self._require()
            known = self._open.get(uri)
            if known is not None and known.text == text:
                return
            version = known.version + 1 if known is not None else 1
            said = self._published.get(uri, 0), self.found.get(uri, [])
            self._open[uri] = _Told(version, text, *said)
            self._open.move_to_end(uri)
            document: dict[str, Any] = {"uri": uri, "version": version}
            if known is None:
                document |= {"languageId": language_of(path), "text": text}
                await peer.notify("textDocument/didOpen", {"textDocument": document})
                await self._close_oldest(peer)
            else:
                changes = {"textDocument": document, "contentChanges": [{"text": text}]}
                await peer.notify("textDocument/didChange", changes)
                await peer.notify("textDocument/didSave", {"textDocument": {"uri": uri}})

    @property
    def open_files(self) -> list[Path]:
        """The files that it was told about and that are not closed."""
        return [path for path in map(path_of, self._open) if path is not None]

    async def forget(self, path: Path) -> None:
        """Close a file. Raises PeerError."""
        async with self._telling:
            if self._open.pop(uri_of(path), None) is not None:
                await _close(self._require(), uri_of(path))

    async def _close_oldest(self, peer: RpcPeer) -> None:
        while len(self._open) > OPEN_FILES:
            uri, _ = self._open.popitem(last=False)
            await _close(peer, uri)

    def before(self, path: Path) -> list[Diagnostic]:
        """What it has found in the text that a file held before it was told what it holds now."""
        told = self._open.get(uri_of(path))
        return told.found if told is not None else []

    async def heard(self, path: Path, seconds: float, times: int = 1) -> bool:
        """Wait until it has said so often what is wrong in a file since it was told what the file
        holds now, at most for some seconds. False if it has not."""
        uri = uri_of(path)

        def enough() -> bool:
            told = self._open.get(uri)
            return told is not None and self._published.get(uri, 0) >= told.published + times

        try:
            async with time_limit(self._clock, seconds):
                while not enough() and self._peer is not None:
                    if uri not in self._waiting:
                        self._waiting[uri] = asyncio.get_running_loop().create_future()
                    await asyncio.shield(self._waiting[uri])
        except TimeoutError:
            pass
        return enough()

    def about(self, path: Path) -> list[Diagnostic]:
        return self.found.get(uri_of(path), [])

    async def request(self, method: str, params: dict[str, Any]) -> Any:
        """Ask it. Raises PeerError, whose message says why there is no answer."""
        return await self._require().request(method, params, seconds=REQUEST_SECONDS)

    def _require(self) -> RpcPeer:
        if self._peer is None:
            raise PeerError(f"the language server {self.spec.name} does not run: {self.error}")
        return self._peer

    # What it says --------------------------------------------------------------------------------

    def _count(self) -> None:
        """Count a message, or a line that is none, and end a server that floods."""
        now = self._clock.time()
        if now - self._window > FLOOD_SECONDS:
            self._window, self._messages = now, 0
        self._messages += 1
        if self._messages == FLOOD and self._life is not None:
            log.error("language server %s: %s messages at once; ended", self.spec.name, FLOOD)
            self._starts.extend([now] * (RESTARTS + 1))
            self._life.cancel()

    def on_notification(self, method: str, params: dict[str, Any]) -> None:
        self._count()
        if method == "textDocument/publishDiagnostics":
            self._publish(params)

    def _publish(self, params: dict[str, Any]) -> None:
        uri = params.get("uri")
        if not isinstance(uri, str) or len(uri) > URI_CHARS:
            return
        found = diagnostics.read(params.get("diagnostics"))
        told, version = self._open.get(uri), params.get("version")
        if told is not None and isinstance(version, int) and version < told.version:
            # About an older text: not what is wrong now, but what was wrong before the change.
            self._open[uri] = dataclasses.replace(told, found=found)
            return
        self.found.pop(uri, None)
        if found:
            self.found[uri] = found
        while (
            len(self.found) > diagnostics.MOST_FILES
            or sum(map(len, self.found.values())) > diagnostics.MOST
        ):
            self.found.popitem(last=False)
        if uri in self._published or uri in self._open:
            self._published[uri] = self._published.get(uri, 0) + 1
        elif len(self._published) < 4 * diagnostics.MOST_FILES:
            self._published[uri] = 1
        if uri in self._waiting:
            _resolve(self._waiting.pop(uri))
        self._changed(self, "diagnostics_changed")

    async def on_request(self, request: RpcRequest) -> Any:
        """What servers ask for: the configuration, and leave for what changes nothing here."""
        self._count()
        if request.method == "workspace/configuration":
            items = request.params.get("items")
            return [self._setting(item) for item in items[:100]] if isinstance(items, list) else []
        if request.method == "workspace/workspaceFolders":
            return [{"uri": uri_of(self._root), "name": self._root.name}]
        if request.method == "workspace/applyEdit":
            return {"applied": False, "failureReason": "changes are made by the agent only"}
        if request.method in _AGREED:
            return None
        raise RpcError(METHOD_NOT_FOUND, "this client does not know the method")

    def _setting(self, item: Any) -> Any:
        """A part of the options, by its keys with dots between them; all of them without keys."""
        section = (item.get("section") if isinstance(item, dict) else None) or ""
        value: Any = dict(self.spec.options)
        if not isinstance(section, str) or len(section) > SECTION_CHARS:
            return None
        for key in section.split(".") if section else ():
            value = value.get(key) if isinstance(value, dict) else None
        return value


_AGREED = (
    "window/workDoneProgress/create",
    "window/showMessageRequest",
    "client/registerCapability",
    "client/unregisterCapability",
    "workspace/codeLens/refresh",
    "workspace/diagnostic/refresh",
    "workspace/inlayHint/refresh",
    "workspace/semanticTokens/refresh",
)

_CAPABILITIES: dict[str, Any] = {
    "general": {"positionEncodings": ["utf-16"]},
    "workspace": {
        "configuration": True,
        "workspaceFolders": True,
        "workspaceEdit": {"documentChanges": True},
        "symbol": {},
    },
    "textDocument": {
        "synchronization": {"didSave": True},
        "publishDiagnostics": {"versionSupport": True},
        "definition": {"linkSupport": True},
        "references": {},
        "rename": {"prepareSupport": False},
        "documentSymbol": {"hierarchicalDocumentSymbolSupport": True},
    },
    "window": {"workDoneProgress": True},
}


async def _close(peer: RpcPeer, uri: str) -> None:
    await peer.notify("textDocument/didClose", {"textDocument": {"uri": uri}})


def _stamp(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds)) if seconds else NEVER


def _retrieve(task: asyncio.Task[None]) -> None:
    """Look at the exception of a task, which asyncio else logs if nobody waits for the task."""
    if not task.cancelled():
        task.exception()


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _last_words(command: Command) -> str:
    """The last lines that a server has written to its standard error."""
    lines = [line.strip() for line in command.output.text().splitlines() if line.strip()]
    return " / ".join(lines[-3:])[-ERROR_CHARS:]


async def _read_to_the_end(reader: asyncio.StreamReader, clock: Clock) -> None:
    """Drop what a server that has ended has written: a pipe is closed when its end is read."""
    with contextlib.suppress(TimeoutError, OSError):
        async with time_limit(clock, STOP_SECONDS):
            while await reader.read(1 << 16):
                pass


async def _end(peer: RpcPeer, reading: asyncio.Task[None], command: Command, clock: Clock) -> None:
    """Ask a server to leave, briefly, then kill it."""

    async def leave() -> None:
        with contextlib.suppress(PeerError, TimeoutError):
            async with time_limit(clock, STOP_SECONDS):
                await peer.request("shutdown", seconds=STOP_SECONDS, cancellable=False)
                await peer.notify("exit")
        await peer.close()
        command.kill()
        reading.cancel()
        ends: list[asyncio.Future[Any]] = [reading, command.done]
        await asyncio.wait(ends)
        if not reading.cancelled() and reading.exception() is not None:
            log.error("a connection broke", exc_info=reading.exception())

    leaving = asyncio.ensure_future(leave())
    while not leaving.done():  # a cancel must not leave a process behind
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([leaving])
