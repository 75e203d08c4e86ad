"""An agent's program while it runs: its connection, what it offers, and its end.

It runs under the keeper of commands/, in the workspace: whatever ends the daemon ends the program
and all that it started. Several sessions of a workspace share it. What it sends about a session
goes to the exchange that is under way there; what comes between two turns waits for the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any, Protocol

from ..clock import wait_at_most
from ..commands.process import start_piped
from ..errors import CrushliteError
from ..jsonrpc.errors import METHOD_NOT_FOUND, PeerError, PeerGone, PeerTimeout, RpcError
from ..jsonrpc.peer import PeerOptions, RpcHandler, RpcPeer
from ..jsonrpc.values import size_of
from ..version import NAME, __version__
from .asking import CANCELLED
from .content import listed, object_of, text_of
from .failures import LOGIN_NEEDED, AgentFailed, died, last_words, login_needed, shown, words_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator, Mapping
    from pathlib import Path

    from ..agent.base import Exit
    from ..clock import Clock
    from ..commands.process import Command
    from ..jsonrpc.peer import RpcRequest
    from .command import AgentCommand

log = logging.getLogger(__name__)

VERSION = 1  # of ACP
START_SECONDS = 60.0  # for `initialize`: npx may have to download the program first
SESSION_SECONDS = 120.0  # for opening a session: loading one may take long
END_SECONDS = 1.5  # for a program to exit when its input has ended, before it is killed
HUNG_UP_SECONDS = 0.5  # for a program that has closed its output to exit by itself
DEAD_SECONDS = 1.0  # for the exit code and the last words of a program that hung up
FRAME = 64 << 20  # bytes: a change of a file carries the file twice
WAITING = 500  # updates between two turns of a session
WAITING_CHARS = 1 << 20  # and how much they hold together
_NOISE_SHOWN = 200


class TurnListener(Protocol):
    """What a turn that is under way does with what the agent sends."""

    def update(self, update: dict[str, Any]) -> Awaitable[None]: ...

    def permission(self, params: dict[str, Any]) -> Awaitable[dict[str, Any]]: ...


class _Waiting:
    """Updates of one session that came between two turns; those that do not fit are dropped."""

    def __init__(self) -> None:
        self.updates: list[dict[str, Any]] = []
        self.chars = 0

    def add(self, update: dict[str, Any]) -> None:
        size = size_of(update, WAITING_CHARS)
        if len(self.updates) < WAITING and self.chars + size <= WAITING_CHARS:
            self.chars += size
            self.updates.append(update)


class AgentProcess(RpcHandler):
    """Made by `start`. `offers` are its agentCapabilities, `label` what it calls itself."""

    def __init__(self, command: AgentCommand, env: Mapping[str, str], clock: Clock) -> None:
        self.command = command
        self.offers: dict[str, Any] = {}
        self.label = command.name
        self.sessions: set[str] = set()  # of its own sessions, those that are open here
        self.turns = 0  # under way
        self.retired = False  # it gets no new turns, and ends with the last one
        self._env = env
        self._clock = clock
        self._login: list[Any] = []
        self._listeners: dict[str, TurnListener] = {}
        self._waiting: dict[str, _Waiting] = {}
        self._loading: set[str] = set()  # sessions whose past is being repeated
        self._process: Command
        self._peer: RpcPeer
        self._reading: asyncio.Task[None]

    @classmethod
    async def start(
        cls, command: AgentCommand, path: Path, env: Mapping[str, str], clock: Clock
    ) -> AgentProcess:
        """Start the program and agree on a version. Raises AgentFailed; nothing is left then."""
        made = cls(command, command.environment(env), clock)
        try:
            process, reader, writer = await start_piped(
                command.arguments, cwd=path, env=made._env, clock=clock
            )
        except CrushliteError as error:
            what = f"{error.message}: is it installed, and in the PATH?"
            raise AgentFailed(f"{command.name} could not be started: {what}") from None
        options = PeerOptions(frame=FRAME, on_noise=made._noise)
        made._process, made._peer = process, RpcPeer(reader, writer, made, clock, options)
        made._reading = asyncio.create_task(made._read())
        try:
            await made._initialize()
        except BaseException:
            made.kill()
            raise
        return made

    async def _initialize(self) -> None:
        params = {
            "protocolVersion": VERSION,
            "clientCapabilities": {
                "fs": {"readTextFile": False, "writeTextFile": False},
                "terminal": False,
                "auth": {"terminal": True},
            },
            "clientInfo": {"name": NAME, "version": __version__},
        }
        answer = object_of(await self.ask("initialize", params, START_SECONDS))
        version = answer.get("protocolVersion")
        if version != VERSION or isinstance(version, bool):
            raise AgentFailed(
                f"{self.command.name} speaks version {shown(version, 20)} of ACP, not {VERSION}: "
                "use another version of it"
            )
        self.offers = object_of(answer.get("agentCapabilities"))
        self._login = listed(answer.get("authMethods"))
        about = object_of(answer.get("agentInfo"))
        self.label = shown(about.get("title") or about.get("name") or self.command.name, 80)

    # Asking -------------------------------------------------------------------------------------

    async def ask(self, method: str, params: dict[str, Any], seconds: float | None) -> Any:
        """Ask the agent. Raises RpcError as it answered; AgentFailed if it is gone, silent or needs
        a login."""
        try:
            return await self._peer.request(method, params, seconds=seconds, cancellable=False)
        except RpcError as error:
            if error.number == LOGIN_NEEDED:
                raise login_needed(self.command, self._login, self.words_of(error)) from None
            raise
        except PeerTimeout:
            self.retire()  # whatever it does now, nobody waits for it
            raise AgentFailed(
                f"{self.command.name} did not answer {method} within {seconds:g} seconds"
            ) from None
        except PeerGone:
            failed = await self.explain_death()
            self.retire()  # it may still run: one that does not read counts as gone as well
            raise failed from None
        except PeerError as error:
            raise AgentFailed(f"{self.command.name} cannot be asked: {error.message}") from None

    async def tell(self, method: str, params: dict[str, Any]) -> None:
        """Send a notification. Does nothing if the agent is gone."""
        with contextlib.suppress(PeerError):
            await self._peer.notify(method, params)

    def offers_session(self, name: str) -> bool:
        """Whether the agent has `session/NAME`, for those that are optional."""
        return object_of(self.offers.get("sessionCapabilities")).get(name) is not None

    # Turns --------------------------------------------------------------------------------------

    def listen(self, session: str, listener: TurnListener) -> list[dict[str, Any]]:
        """Hand what comes about a session to a turn; returns what has come since the last one.
        Raises AgentFailed if another turn has it: some agents give all sessions the same id."""
        if session in self._listeners:
            name = self.command.name
            raise AgentFailed(f"{name} has one session only, and is at work there: try again later")
        self._listeners[session] = listener
        self.turns += 1
        waiting = self._waiting.pop(session, None)
        return waiting.updates if waiting is not None else []

    def unlisten(self, session: str) -> None:
        del self._listeners[session]
        self.turns -= 1
        if self.retired and not self.turns:
            self.kill()

    @contextlib.contextmanager
    def loading(self, session: str) -> Iterator[None]:
        """A context in which what comes about a session is dropped: its past is repeated."""
        self._loading.add(session)
        try:
            yield
        finally:
            self._loading.discard(session)

    # What comes ---------------------------------------------------------------------------------

    def on_notification(self, method: str, params: dict[str, Any]) -> Awaitable[None] | None:
        if method == "$/cancel_request":
            self._peer.cancel_incoming(params.get("requestId"))
        if method != "session/update":
            return None
        session, update = text_of(params.get("sessionId")), object_of(params.get("update"))
        if session in self._listeners:
            return self._listeners[session].update(update)
        if session in self.sessions and session not in self._loading:
            self._waiting.setdefault(session, _Waiting()).add(update)
        return None

    def on_request(self, request: RpcRequest) -> Awaitable[Any]:
        if request.method != "session/request_permission":
            raise RpcError(METHOD_NOT_FOUND, f"{request.method[:100]} is not offered here")
        listener = self._listeners.get(text_of(request.params.get("sessionId")))
        return listener.permission(request.params) if listener is not None else _called_off()

    def _noise(self, text: str) -> None:
        log.info("%s printed what is no message: %s", self.command.name, shown(text, _NOISE_SHOWN))

    async def _read(self) -> None:
        try:
            await self._peer.run()
        finally:
            self.retired = True  # it can answer nothing more
            # If it has only closed its output. Not at once: how it ended is to be seen.
            await wait_at_most(self._clock, self._process.done, HUNG_UP_SECONDS)
            self._process.kill()

    # The end ------------------------------------------------------------------------------------

    @property
    def usable(self) -> bool:
        return not self.retired and not self._peer.is_gone

    @property
    def is_dead(self) -> bool:
        return self._process.done.done()

    async def explain_death(self) -> AgentFailed:
        """Why the program is gone. Waits a moment for its exit code and last words."""
        done = self._process.done
        gone = await wait_at_most(self._clock, done, DEAD_SECONDS)
        ended: Exit | None = done.result() if gone else None
        if ended is not None and ended.canceled:
            ended = None  # we have killed it, after it hung up
        return died(self.command.name, ended, self.last_words())

    def words_of(self, error: RpcError) -> str:
        """What it says about an error, as it may be shown."""
        return words_of(error, self._env)

    def last_words(self) -> str:
        """The last lines that it wrote to standard error, as they may be shown."""
        return last_words(self._process.output.text(8000), self._env)

    def retire(self) -> None:
        """Give it no new turns. It is killed when no turn is under way."""
        self.retired = True
        if not self.turns:
            self.kill()

    def kill(self) -> None:
        """End it and all that it started; `ended` waits for that."""
        self.retired = True
        self._process.kill()

    async def ended(self) -> None:
        """Wait a moment until everything is dead."""
        await wait_at_most(self._clock, self._process.done, DEAD_SECONDS)

    async def stop(self) -> None:
        """End its input, wait a moment for its exit, and kill what is left."""
        self.retired = True
        await self._peer.close()
        await wait_at_most(self._clock, self._process.done, END_SECONDS)
        self._process.kill()
        await self._process.wait()
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)


async def _called_off() -> dict[str, Any]:
    return CANCELLED
