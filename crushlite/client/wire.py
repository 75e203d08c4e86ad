"""Requests to one daemon: dataclasses in, dataclasses or errors of our own tree out."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, urlencode

from .. import errors
from ..errors import BadRequest, CrushliteError, NotFound
from ..http import client as http
from ..protocol.codec import decode, dumps, encode, loads

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..clock import Clock

T = TypeVar("T")

# Seconds an answer may take, beyond what the request itself asks the daemon to wait. The longest
# legitimate ones are a create that waits for a teardown and a delete that waits for a cancel.
ANSWER = 30.0


class ConnectionFailed(CrushliteError):
    """No answer came. `reached` is False if nobody listened, so nothing can have been sent."""

    code = "connection_failed"

    def __init__(self, message: str = "", *, reached: bool = True) -> None:
        super().__init__(message)
        self.reached = reached


# Refusals and failures ------------------------------------------------------------------------

_BY_CODE: dict[str, type[CrushliteError]] = {cls.code: cls for cls in errors.every_error()}
_BY_STATUS = {400: BadRequest, 404: NotFound, 409: errors.Conflict, 503: errors.Unavailable}
# What a stream waits out although the status says that the request itself was at fault: a daemon
# that leaves, and one that starts while its predecessor still holds the database.
_PASSING = (errors.WorkspaceNotFound, errors.WorkspaceClosing, errors.DataDirectoryInUse)


@dataclass(slots=True)
class _Refused:
    message: str = ""
    code: str = ""


def refusal(what: str, status: int, body: bytes) -> CrushliteError:
    """The error of an answer: by its code, else by its status."""
    try:
        told = decode(_Refused, loads(body))
    except BadRequest:
        told = _Refused()  # not from the daemon, or cut off: the status is all there is
    cls = _BY_CODE.get(told.code) or _BY_STATUS.get(status, CrushliteError)
    error = cls(told.message or f"{what} was answered {status}")
    error.status, error.code = status, told.code or cls.code
    return error


def passes(error: CrushliteError) -> bool:
    """Whether to try again later: not where the same request would get the same answer."""
    failing = error.status >= 500 and not isinstance(error, errors.WrongPeer)
    return failing or isinstance(error, _PASSING)


# Requests -------------------------------------------------------------------------------------


class Wire:
    """The connections to one address."""

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
            answer = await self.http.request(method, target, body=content, timeout=wait + ANSWER)
        if not 200 <= answer.status < 300:
            raise refusal(f"{method} {target}", answer.status, answer.body)
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

    async def ask_plain(self, cls: type[T], target: str) -> T:
        """An object or an array that has no class of its own."""
        answer = await self.send("GET", target)
        with _readable("GET", target):
            value = loads(answer)
            if not isinstance(value, cls):
                raise BadRequest(f"body must be of type {cls.__name__}")
            return value

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


LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
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
    if host not in LOOPBACK:
        # What is sent includes the environment and a token, and nothing of it is encrypted.
        raise errors.UsageError(
            f"{address!r}: only this machine is spoken to; reach another one with an ssh tunnel"
        )
    return http.TCPConnector(host.strip("[]"), port), f"{host}:{port}"


def route(*segments: str, **query: str | float | None) -> str:
    """A target of the API. Segments may hold anything: `/` and `$$` are legal in ids, and what is
    not legal is the daemon's to refuse."""
    quoted = (quote(segment, safe="", errors="surrogatepass") for segment in segments)
    given = {name: value for name, value in query.items() if value}
    return "/".join(("/v1", *quoted)) + (f"?{urlencode(given)}" if given else "")
