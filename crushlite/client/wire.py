"""The requests of one client to one daemon: dataclasses out and back, and every failure an error of
`crushlite.errors` or a ConnectionFailed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from .. import errors
from ..clock import SystemClock
from ..errors import BadRequest, CrushliteError, NotFound
from ..http import client as http
from ..protocol.codec import NotJSON, decode, dumps, encode, loads
from ..records import dataclass
from ..unique import new_id

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from ..clock import Clock
    from ..protocol.workspaces import Workspace

T = TypeVar("T")

# Seconds an answer may take, beyond what the request itself asks the daemon to wait. The longest
# legitimate ones are a create that waits for a teardown and a delete that waits for a cancel.
ANSWER = 30.0


class ConnectionFailed(CrushliteError):
    """No answer came. `reached` is False if no process listened: then nothing was sent."""

    code = "connection_failed"

    def __init__(self, message: str = "", *, reached: bool = True) -> None:
        super().__init__(message)
        self.reached = reached


# Refusals and failures ------------------------------------------------------------------------

_BY_CODE: dict[str, type[CrushliteError]] = {cls.code: cls for cls in errors.every_error()}
_BY_STATUS = {400: BadRequest, 404: NotFound, 409: errors.Conflict, 503: errors.Unavailable}
# Temporary although their status blames the request: a daemon that is leaving, and one that starts
# while its predecessor still holds the database.
_TEMPORARY = (errors.WorkspaceNotFound, errors.WorkspaceClosing, errors.DataDirectoryInUse)


@dataclass(slots=True)
class _ErrorBody:
    message: str = ""
    code: str = ""


def refusal(what: str, status: int, body: bytes) -> CrushliteError:
    """The error that an answer stands for: the class of its code, else of its status."""
    try:
        given = decode(_ErrorBody, loads(body))
    except BadRequest:
        given = _ErrorBody()  # not from the daemon, or cut off: the status is all there is
    cls = _BY_CODE.get(given.code) or _BY_STATUS.get(status, CrushliteError)
    error = cls(given.message or f"{what} was answered {status}")
    error.status, error.code = status, given.code or cls.code
    return error


def is_temporary(error: CrushliteError) -> bool:
    """Whether the same request may succeed later."""
    failing = error.status >= 500 and not isinstance(error, errors.WrongPeer)
    return failing or isinstance(error, _TEMPORARY)


# Requests -------------------------------------------------------------------------------------


class _Stream(Protocol):
    async def close(self) -> None: ...


class Wire:
    """The connections of one client to one daemon, and what must end when the client is closed."""

    def __init__(
        self, address: str, *, token: str = "", client_id: str = "", clock: Clock | None = None
    ) -> None:
        connector, host = _connector(address)
        headers = (("Authorization", f"Bearer {token.strip()}"),) if token else ()
        self.address = address
        self.client_id = client_id or new_id()
        self.clock = clock or SystemClock()
        self.retired = False  # it has ended all its claims: streams do not reconnect
        self.streams: set[_Stream] = set()  # the open ones
        self.creates: set[asyncio.Task[Workspace]] = set()  # workspaces being created again
        self._http = http.HTTPClient(connector, host_header=host, headers=headers, clock=self.clock)
        self._closed = False

    async def aclose(self) -> None:
        """Close every stream and connection, without telling the daemon: see `Client.retire`. Later
        requests raise ConnectionFailed."""
        self._closed = True
        for stream in tuple(self.streams):
            await stream.close()
        for create in self.creates:
            create.cancel()
        if self.creates:
            await asyncio.wait(self.creates)
        await self._http.aclose()

    async def send(self, method: str, target: str, body: object = None, wait: float = 0) -> bytes:
        """The body of a 2xx answer; any other status raises its `refusal`.
        `wait` is how many seconds the request itself asks the daemon to wait."""
        content = b"" if body is None else dumps(encode(body))
        with self._translated():
            answer = await self._http.request(method, target, body=content, timeout=wait + ANSWER)
        if not 200 <= answer.status < 300:
            raise refusal(f"{method} {target}", answer.status, answer.body)
        return answer.body

    async def request(
        self, cls: type[T], method: str, target: str, body: object = None, *, wait: float = 0.0
    ) -> T:
        """The answer as an object of a class."""
        answer = await self.send(method, target, body, wait)
        with readable(method, target):
            return decode(cls, loads(answer))

    async def request_list(self, cls: type[T], target: str) -> list[T]:
        """The answer to a GET as a list of objects of a class."""
        items = await self.request_json(list, target)
        with readable("GET", target):
            return [decode(cls, item, f"body[{index}]") for index, item in enumerate(items)]

    async def request_json(self, cls: type[T], target: str) -> T:
        """The answer to a GET as plain JSON: a dict or a list."""
        answer = await self.send("GET", target)
        with readable("GET", target):
            value = loads(answer)
            if not isinstance(value, cls):
                raise BadRequest(f"body must be of type {cls.__name__}")
            return value

    @contextlib.asynccontextmanager
    async def stream(
        self, method: str, target: str, **options: Any
    ) -> AsyncIterator[http.StreamResponse]:
        """A good answer whose body is read as it comes; any other raises its `refusal`. The options
        are those of HTTPClient.stream."""
        with self._translated():
            async with self._http.stream(method, target, timeout=ANSWER, **options) as response:
                if response.status != 200:
                    raise refusal(f"{method} {target}", response.status, await response.read())
                yield response

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Turn errors of the HTTP client into WrongPeer or ConnectionFailed with advice."""
        if self._closed:
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
def readable(method: str, target: str) -> Iterator[None]:
    """Turn a BadRequest of the decoder into an error that is about the daemon's answer."""
    try:
        yield
    except BadRequest as error:
        reason = error.reason if isinstance(error, NotJSON) else error.message
        raise CrushliteError(f"{method} {target}: the answer is unreadable: {reason}") from None


# What stands for itself in a URL.
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_TCP = r"tcp://(\[[0-9a-fA-F:.]+\]|[^\s/:@\[\]]+):(\d{1,5})/?"


def _connector(address: str) -> tuple[http.Connector, str]:
    """What connects to an address, and the Host header to send there. Raises UsageError."""
    scheme, _, rest = address.partition("://")
    if scheme == "unix" and rest:
        # The daemon does not check Host on a unix socket; the uid of its process is checked here.
        return http.UnixConnector(rest, expect_uid=os.geteuid()), "localhost"
    match = re.fullmatch(_TCP, address)
    if match is None or int(match[2]) not in range(1, 1 << 16):
        raise errors.UsageError(f"{address!r}: use unix:///path/to.sock or tcp://127.0.0.1:PORT")
    host, port = match[1], int(match[2])
    if host not in LOOPBACK:
        # Requests hold the environment and a token, and are not encrypted.
        raise errors.UsageError(
            f"{address!r}: not an address of this machine; reach another one with an ssh tunnel"
        )
    return http.TCPConnector(host.strip("[]"), port), f"{host}:{port}"


def route(*segments: str, **query: str | float | None) -> str:
    """A request target of the API. Empty query values are left out. Segments may hold any text:
    `/` and `$$` are legal in ids, and the daemon refuses what is not."""
    given = [f"{name}={_quoted(str(value))}" for name, value in query.items() if value]
    return "/".join(("/v1", *map(_quoted, segments))) + (f"?{'&'.join(given)}" if given else "")


def _quoted(text: str) -> str:
    if _UNRESERVED.issuperset(text):
        return text
    from urllib.parse import quote  # only now: most are ids, and it takes 3 ms to load

    return quote(text, safe="", errors="surrogatepass")
