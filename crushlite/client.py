"""The asyncio client: typed requests, typed refusals, and an event stream that comes back.

    async with Client("unix:///path/to.sock") as client:
        workspace = await client.create("/path/to/project")
        session = await workspace.create_session("demo")
        async with workspace.events() as events:  # subscribe first: no event of the run is missed
            accepted = await workspace.prompt(session.id, "hello")
            async for event in events:
                if event.kind == "run_complete" and event.payload.run_id == accepted.run_id:
                    break

What can go wrong, by what the caller can do about it: a refusal by the daemon is the class of
`crushlite.errors` that belongs to its code; ConnectionFailed says whether anything was sent; a
socket of another user is WrongPeer, and nothing was sent to it.

The stream resumes by itself. Where it cannot know that nothing was missed, it yields an event of
kind `resync`, the daemon's own or one made here: whoever shows state must then read it afresh.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import uuid
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, urlencode

from crushlite import errors
from crushlite.clock import SystemClock
from crushlite.errors import BadRequest, CrushliteError, NotFound
from crushlite.http import client as http
from crushlite.http.sse import SSEEvent, SSEParser, SSETooLong
from crushlite.protocol.codec import decode, dumps, encode, loads
from crushlite.protocol.config import AgentInfo, AgentInit
from crushlite.protocol.events import Envelope, Resync, parse
from crushlite.protocol.messages import Attachment, Message, Prompt
from crushlite.protocol.permissions import PermissionAnswer, PermissionRequest, Resolution
from crushlite.protocol.questions import QuestionBatch, QuestionReply, QuestionResponse
from crushlite.protocol.runs import Accepted, CancelReceipt, QueuedPrompt, RunInfo
from crushlite.protocol.sessions import CurrentSession, Session
from crushlite.protocol.workspaces import Control, CreateWorkspace, VersionInfo, Workspace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from crushlite.clock import Clock

__all__ = ["Client", "ConnectionFailed", "EventStream", "RemoteWorkspace"]

T = TypeVar("T")

log = logging.getLogger(__name__)

# Seconds an answer may take, beyond what the request itself asks the daemon to wait. The longest
# legitimate ones are a create that waits for a teardown and a delete that waits for a cancel.
_ANSWER = 30.0

# Before the first attempt to come back, doubled after each failed one.
_BACKOFF_MIN, _BACKOFF_MAX = 0.25, 10.0


class ConnectionFailed(CrushliteError):
    """No answer came. `reached` is False if nobody listened, so nothing can have been sent."""

    code = "connection_failed"

    def __init__(self, message: str = "", *, reached: bool = True) -> None:
        super().__init__(message)
        self.reached = reached


# Refusals and failures ------------------------------------------------------------------------

_BY_CODE: dict[str, type[CrushliteError]] = {
    cls.code: cls for cls in (getattr(errors, name) for name in errors.__all__)
}
_BY_STATUS = {400: BadRequest, 404: NotFound, 409: errors.Conflict, 503: errors.Unavailable}
# What a stream waits out although the status says that the request itself was at fault: a daemon
# that leaves, and one that starts while its predecessor still holds the database.
_PASSING = (errors.WorkspaceNotFound, errors.WorkspaceClosing, errors.DataDirectoryInUse)


@dataclass(slots=True)
class _Refused:
    message: str = ""
    code: str = ""


def _refusal(what: str, status: int, body: bytes) -> CrushliteError:
    """The error of an answer: by its code, else by its status."""
    try:
        told = decode(_Refused, loads(body))
    except BadRequest:
        told = _Refused()  # not from the daemon, or cut off: the status is all there is
    cls = _BY_CODE.get(told.code) or _BY_STATUS.get(status, CrushliteError)
    error = cls(told.message or f"{what} was answered {status}")
    error.status, error.code = status, told.code or cls.code
    return error


def _passes(error: CrushliteError) -> bool:
    """Whether a stream should try again: not where the same request would get the same answer."""
    failing = error.status >= 500 and not isinstance(error, errors.WrongPeer)
    return failing or isinstance(error, _PASSING)


# The wire -------------------------------------------------------------------------------------


class _Wire:
    """Requests to one address: dataclasses in, dataclasses or errors of our tree out."""

    def __init__(self, address: str, token: str, clock: Clock) -> None:
        connector, host = _connector(address)
        headers = (("Authorization", f"Bearer {token.strip()}"),) if token else ()
        self.address = address
        self.clock = clock
        self.closed = False
        self.http = http.HTTPClient(connector, host_header=host, headers=headers, clock=clock)

    async def send(self, method: str, target: str, body: object = None, wait: float = 0) -> bytes:
        """The body of a good answer. `wait` is how long the request asks the daemon to wait."""
        content = b"" if body is None else dumps(encode(body))
        with self.translated():
            answer = await self.http.request(method, target, body=content, timeout=wait + _ANSWER)
        if not 200 <= answer.status < 300:
            raise _refusal(f"{method} {target}", answer.status, answer.body)
        return answer.body

    async def ask(
        self, cls: type[T], method: str, target: str, body: object = None, *, wait: float = 0.0
    ) -> T:
        answer = await self.send(method, target, body, wait)
        with _readable(method, target):
            return decode(cls, loads(answer))

    async def ask_all(self, cls: type[T], target: str) -> list[T]:
        answer = await self.send("GET", target)
        with _readable("GET", target):
            value = loads(answer)
            if not isinstance(value, list):
                raise BadRequest("body must be an array")
            return [decode(cls, item, f"body[{index}]") for index, item in enumerate(value)]

    @contextlib.contextmanager
    def translated(self) -> Iterator[None]:
        """Failures of the connection as errors that say where, and what to do."""
        if self.closed:
            raise ConnectionFailed(f"{self.address}: this client is closed", reached=False)
        try:
            yield
        except http.PeerMismatch as error:
            raise errors.WrongPeer(f"{self.address}: {error}; nothing was sent") from None
        except http.ConnectFailed as error:
            advice = f"start a daemon there: crushlite serve --host {self.address}"
            raise ConnectionFailed(f"{error}; {advice}", reached=False) from error
        except http.ClientError as error:
            advice = "the request may have been carried out: look before sending it again"
            raise ConnectionFailed(f"{self.address}: {error}; {advice}") from error


@contextlib.contextmanager
def _readable(method: str, target: str) -> Iterator[None]:
    """A BadRequest raised in here is about the daemon's answer, not about anybody's request."""
    try:
        yield
    except BadRequest as error:
        reason = error.message.removeprefix("failed to decode request: ")
        raise CrushliteError(f"{method} {target}: the answer is unreadable: {reason}") from None


_TCP = re.compile(r"tcp://(\[[0-9a-fA-F:.]+\]|[^\s/:@\[\]]+):(\d{1,5})/?")


def _connector(address: str) -> tuple[http.Connector, str]:
    """How to reach an address, and the Host header to send there."""
    scheme, _, rest = address.partition("://")
    if scheme == "unix" and rest:
        # Nobody checks Host on a unix socket; the uid of whoever listens is checked instead.
        return http.UnixConnector(rest, expect_uid=os.geteuid()), "localhost"
    match = _TCP.fullmatch(address)
    if match is None or int(match[2]) not in range(1, 1 << 16):
        raise errors.UsageError(f"{address!r}: use unix:///path/to.sock or tcp://127.0.0.1:PORT")
    host, port = match[1], int(match[2])
    return http.TCPConnector(host.strip("[]"), port), f"{host}:{port}"


def _path(*segments: str, **query: str | float | None) -> str:
    """A target of the API. Segments may hold anything: `/` and `$$` are legal in ids, and what is
    not legal is the daemon's to refuse."""
    quoted = (quote(segment, safe="", errors="surrogatepass") for segment in segments)
    given = {name: value for name, value in query.items() if value}
    return "/".join(("/v1", *quoted)) + (f"?{urlencode(given)}" if given else "")


# Clients and workspaces -----------------------------------------------------------------------


class Client:
    """One client of one daemon. Its id is who it is: the daemon counts claims by it."""

    def __init__(
        self, address: str, *, token: str = "", client_id: str = "", clock: Clock | None = None
    ) -> None:
        self.client_id = client_id or str(uuid.uuid4())
        self.retired = False
        self._wire = _Wire(address, token, clock or SystemClock())
        self._streams: set[EventStream] = set()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close every stream and connection. Says no goodbye: see `retire`."""
        self._wire.closed = True
        for stream in tuple(self._streams):
            await stream.close()
        await self._wire.http.aclose()

    async def create(
        self,
        path: str | os.PathLike[str],
        *,
        env: list[str] | None = None,
        data_dir: str = "",
        yolo: bool = False,
    ) -> RemoteWorkspace:
        """Open the workspace at a path, or join it. A relative path is relative to this process,
        not to the daemon's."""
        request = CreateWorkspace(client_id=self.client_id, env=env, data_dir=data_dir, yolo=yolo)
        request.path = os.path.join(os.getcwd(), path)
        info = await self._wire.ask(Workspace, "POST", _path("workspaces"), request)
        return RemoteWorkspace(self, request, info)

    async def workspaces(self) -> list[Workspace]:
        return await self._wire.ask_all(Workspace, _path("workspaces"))

    async def retire(self) -> None:
        """Goodbye for good: every claim of this client ends, and its id is never taken again."""
        self.retired = True  # before the daemon knows: a stream that it ends now must not return
        await self._wire.send("DELETE", _path("clients", self.client_id))

    async def health(self) -> None:
        """Returns if the daemon is well."""
        await self._wire.send("GET", _path("health"))

    async def version(self) -> VersionInfo:
        return await self._wire.ask(VersionInfo, "GET", _path("version"))

    async def control(self, command: str = "shutdown_if_idle") -> None:
        """Ask the daemon to leave; ServerInUse if it is needed."""
        await self._wire.send("POST", _path("control"), Control(command, client="crushlite"))


class RemoteWorkspace:
    """A workspace of the daemon. `id` changes if a stream had to create it again."""

    def __init__(self, client: Client, request: CreateWorkspace, info: Workspace) -> None:
        self.client = client
        self.info = info
        self.id = info.id
        self.released = False
        self._wire = client._wire
        self._request = request
        # What the daemon knows of this client only as long as it knows its stream: said again
        # after each return. None: never said.
        self._interactive: bool | None = None
        self._looking_at: str | None = None

    def events(
        self, *, resume: bool = True, reconnect: bool = True, last_id: str | None = None
    ) -> EventStream:
        """The event stream, to be used in `async with`. `last_id` continues an earlier one."""
        return EventStream(self, resume=resume, reconnect=reconnect, last_id=last_id)

    async def release(self) -> None:
        """Give the workspace back; its open streams go on, but do not return."""
        self.released = True
        await self._wire.send("DELETE", self._at(client_id=self.client.client_id))

    # Sessions.

    async def create_session(self, title: str = "") -> Session:
        return await self._wire.ask(Session, "POST", self._at("sessions"), Session(title=title))

    async def sessions(self) -> list[Session]:
        return await self._wire.ask_all(Session, self._at("sessions"))

    async def session(self, session_id: str) -> Session:
        return await self._wire.ask(Session, "GET", self._at("sessions", session_id))

    async def rename(self, session_id: str, title: str) -> Session:
        target = self._at("sessions", session_id)
        return await self._wire.ask(Session, "PUT", target, Session(id=session_id, title=title))

    async def delete(self, session_id: str) -> None:
        await self._wire.send("DELETE", self._at("sessions", session_id))

    async def messages(self, session_id: str) -> list[Message]:
        return await self._wire.ask_all(Message, self._at("sessions", session_id, "messages"))

    async def look(self, session_id: str) -> None:
        """Tell which session this client shows ("" for none); needs an open event stream."""
        target = self._at("current-session", client_id=self.client.client_id)
        await self._wire.send("POST", target, CurrentSession(session_id))
        self._looking_at = session_id

    # The agent.

    async def agent(self) -> AgentInfo:
        return await self._wire.ask(AgentInfo, "GET", self._at("agent"))

    async def init(self, interactive: bool = True) -> None:
        """Tell whether a person sits at this client."""
        target = self._at("agent", "init", client_id=self.client.client_id)
        await self._wire.send("POST", target, AgentInit(interactive))
        self._interactive = interactive

    async def prompt(  # noqa: PLR0913 - the fields of one request, by keyword
        self,
        session_id: str,
        text: str,
        *,
        run_id: str | None = None,
        when_busy: str = "",
        attachments: Iterable[Attachment] = (),
        detach: bool = False,
        max_cost: float | None = None,
        max_steps: int | None = None,
    ) -> Accepted:
        """Returns when the daemon has promised the prompt. With a `run_id` it is safe to send
        again: the same prompt under the same id is the same run."""
        request = Prompt(session_id, text, run_id=run_id or "", attachments=list(attachments))
        request.when_busy, request.detach = when_busy, detach
        request.max_cost, request.max_steps = max_cost, max_steps
        return await self._wire.ask(Accepted, "POST", self._at("agent"), request)

    async def cancel(self, session_id: str, wait: float | None = None) -> CancelReceipt:
        """Cancel what the session has accepted so far; `wait` seconds at most for it to end."""
        target = self._at("agent", "sessions", session_id, "cancel", wait=wait)
        return await self._wire.ask(CancelReceipt, "POST", target, wait=wait or 0)

    async def queue(self, session_id: str) -> list[QueuedPrompt]:
        target = self._at("agent", "sessions", session_id, "prompts")
        return await self._wire.ask_all(QueuedPrompt, target)

    async def clear(self, session_id: str) -> None:
        """Forget the queued prompts of a session."""
        await self._wire.send("POST", self._at("agent", "sessions", session_id, "prompts", "clear"))

    async def remove(self, session_id: str, run_id: str) -> None:
        """Forget one queued prompt."""
        target = self._at("agent", "sessions", session_id, "prompts", run_id)
        await self._wire.send("DELETE", target)

    async def run(self, run_id: str, wait: float = 0.0) -> RunInfo:
        """The state of a run; with `wait`, as soon as it has ended, at most so many seconds."""
        target = self._at("runs", run_id, wait=wait)
        return await self._wire.ask(RunInfo, "GET", target, wait=wait)

    async def runs(self, session_id: str = "", state: str = "") -> list[RunInfo]:
        target = self._at("runs", session_id=session_id, state=state)
        return await self._wire.ask_all(RunInfo, target)

    # What waits for a person.

    async def permissions(self) -> list[PermissionRequest]:
        return await self._wire.ask_all(PermissionRequest, self._at("permissions"))

    async def grant(self, request_id: str, action: str, reason: str = "") -> Resolution:
        """Answer with `allow`, `allow_session` or `deny`; the reason of a denial is for the
        model. `resolved` is False if somebody else was first."""
        target = self._at("permissions", request_id, client_id=self.client.client_id)
        return await self._wire.ask(Resolution, "POST", target, PermissionAnswer(action, reason))

    async def questions(self) -> list[QuestionBatch]:
        return await self._wire.ask_all(QuestionBatch, self._at("questions"))

    async def answer(self, batch_id: str, responses: list[QuestionResponse] | None) -> Resolution:
        """Answer a batch of questions; None closes it without an answer."""
        reply = QuestionReply(responses or [], "cancel" if responses is None else "")
        target = self._at("questions", batch_id, client_id=self.client.client_id)
        return await self._wire.ask(Resolution, "POST", target, reply)

    # For the streams.

    def _at(self, *segments: str, **query: str | float | None) -> str:
        return _path("workspaces", self.id, *segments, **query)

    @property
    def _left(self) -> bool:
        """Whether this client has said goodbye: then nothing is created again on its behalf."""
        return self.released or self.client.retired

    async def _create_again(self, gone: str) -> None:
        """Replace the workspace `gone`, unless another stream has done so already."""
        if self.id == gone:
            info = await self._wire.ask(Workspace, "POST", _path("workspaces"), self._request)
            log.info("workspace %s is gone, %s takes its place", gone, info.id)
            self.info, self.id = info, info.id

    async def _reintroduce(self) -> None:
        """Say again what the daemon forgets with a stream. A courtesy: the stream is open, and a
        daemon that has gone meanwhile will be noticed there."""
        try:
            if self._interactive is not None:
                await self.init(self._interactive)
            if self._looking_at is not None:
                await self.look(self._looking_at)
        except CrushliteError as error:
            log.warning("workspace %s: could not introduce the client: %s", self.id, error)


# The event stream -----------------------------------------------------------------------------


class EventStream:
    """The events of a workspace, in order, across lost connections.

    For one reader at a time. No task of its own: it connects, waits and parses inside the
    reader's `anext`, so a reader that stops reading holds the daemon back, not this process's
    memory. Cancelling an `anext` (a time limit around it, say) loses no event.
    """

    def __init__(
        self, workspace: RemoteWorkspace, *, resume: bool, reconnect: bool, last_id: str | None
    ) -> None:
        self.last_id = last_id  # of the newest event that was yielded: `events(last_id=...)`
        self._workspace = workspace
        self._clock = workspace._wire.clock
        self._resume, self._reconnect = resume, reconnect
        self._entered = self._closed = False
        # The connection, if there is one.
        self._connection: contextlib.AsyncExitStack | None = None
        self._response: http.StreamResponse | None = None
        self._parser = SSEParser()
        self._ready: deque[tuple[str | None, Envelope]] = deque()
        # The way back, if there is none.
        self._gap = ""  # why events may have been missed; said as soon as the stream is back
        self._delay = _BACKOFF_MIN
        self._retry_at = 0.0
        # Around the reader while it waits; `close` ends the wait through it.
        self._waiting: asyncio.Timeout | None = None

    async def __aenter__(self) -> EventStream:
        """Returns when the daemon has answered: from then on no event is missed. Raises if nobody
        is there: only a stream that was there once is worth waiting for."""
        if self._entered:
            raise RuntimeError("a stream is entered once: ask for a new one")
        self._entered = True
        await self._connect()
        self._workspace.client._streams.add(self)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; a reader that waits comes to its end, and nothing is yielded
        any more."""
        if not self._closed and self._waiting is not None:
            self._waiting.reschedule(0.0)  # long past: at once
        await self._end()

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> Envelope:
        if not self._entered or self._waiting is not None:
            raise RuntimeError("a stream is read inside its own 'async with', by one task")
        try:
            async with asyncio.timeout(None) as self._waiting:
                while not self._closed:
                    if self._ready:
                        position, event = self._ready.popleft()
                        self.last_id = position or self.last_id
                        return event
                    await self._advance()
        except TimeoutError:
            pass  # `close` was called meanwhile
        finally:
            self._waiting = None
            if self._closed:
                await self._hang_up()  # a connection that came about while `close` ran
        raise StopAsyncIteration

    async def _advance(self) -> None:
        """One step towards the next event."""
        if self._response is None:
            return await self._come_back()
        try:
            self._feed(await self._response.__anext__())
        except StopAsyncIteration:
            await self._lost("the daemon ended it")
        except http.ClientError as error:
            await self._lost(str(error))
        except SSETooLong as error:
            # It would come again after every return.
            await self._end()
            raise CrushliteError(f"the event stream cannot be read on: {error}") from None

    def _feed(self, data: bytes) -> None:
        for event in self._parser.feed(data):
            envelope = _envelope(event)
            if envelope is not None:
                self._ready.append((event.id, envelope))
        if not self._ready:
            # An id without an event, or with one that was skipped, has been dealt with.
            self.last_id = self._parser.last_id or self.last_id

    # Losing the connection and coming back.

    async def _lost(self, reason: str) -> None:
        await self._hang_up()
        if not self._reconnect or self._workspace._left:
            return await self._end()
        log.info("event stream of workspace %s lost: %s", self._workspace.id, reason)
        if self.last_id is None:
            self._gap = "the stream was interrupted and had no position to continue from"
        self._retry_at = self._clock.time() + self._delay

    async def _come_back(self) -> None:
        await self._clock.sleep(max(0.0, self._retry_at - self._clock.time()))
        if self._workspace._left:
            return await self._end()
        try:
            await self._connect()
        except CrushliteError as error:
            if not _passes(error):
                await self._end()
                raise
            self._delay = min(self._delay * 2, _BACKOFF_MAX)
            self._retry_at = self._clock.time() + self._delay
            log.info("event stream: %s; trying again in %g s", error, self._delay)
        else:
            self._delay = _BACKOFF_MIN
            await self._workspace._reintroduce()

    async def _connect(self) -> None:
        """Subscribe. A workspace that is gone is created again, once; its events are others, so
        the old position means nothing to it."""
        wanted = self._workspace.id
        try:
            await self._subscribe()
        except NotFound:
            if not self._reconnect or self._workspace._left:
                raise
            await self._workspace._create_again(wanted)
            self.last_id, self._gap = None, "the workspace was created again"
            await self._subscribe()
        if self._gap:
            # Said only now: what is read after the subscription cannot miss a later event.
            self._ready.append((self.last_id, Envelope("resync", "", Resync(self._gap))))
            self._gap = ""

    async def _subscribe(self) -> None:
        """Open the connection, up to the head of the answer."""
        workspace, wire = self._workspace, self._workspace._wire
        me, resume = workspace.client.client_id, int(self._resume)
        target = workspace._at("events", client_id=me, resume=resume)
        headers = [("Last-Event-ID", self.last_id)] if self.last_id else []
        async with contextlib.AsyncExitStack() as stack:
            with wire.translated():
                opening = wire.http.stream("GET", target, headers=headers, timeout=_ANSWER)
                response = await stack.enter_async_context(opening)
                if response.status != 200:
                    raise _refusal(f"GET {target}", response.status, await response.read())
            self._response, self._parser = response, SSEParser()
            self._connection = stack.pop_all()

    async def _hang_up(self) -> None:
        connection, self._connection, self._response = self._connection, None, None
        if connection is not None:
            await connection.aclose()

    async def _end(self) -> None:
        self._closed = True
        self._workspace.client._streams.discard(self)
        await self._hang_up()


def _envelope(event: SSEEvent) -> Envelope | None:
    """The event, or None if it makes no sense: a newer daemon's, and no reason to stop."""
    try:
        return parse(loads(event.data.encode()))
    except BadRequest as error:
        log.warning("skipped an event (id %s): %s", event.id, error)
        return None
