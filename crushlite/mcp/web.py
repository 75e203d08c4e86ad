"""The streamable HTTP transport: every message is posted; an answer is JSON or an event stream.

Legacy servers may give a session id, which is sent from then on; modern ones get the method and the
name of what is asked for as headers. A modern request is cancelled by closing its connection, a
legacy one by a notification.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ..clock import time_limit
from ..errors import BadRequest
from ..http.client import ClientError, ConnectFailed, HTTPClient
from ..http.sse import SSEParser
from ..jsonrpc import values
from ..jsonrpc.errors import PeerError, PeerGone, PeerTimeout, RpcError
from ..outbound.connecting import USER_AGENT
from ..outbound.endpoint import Endpoint
from ..protocol.codec import LARGE, NotJSON
from .errors import NeedsAuth, ServerError, SessionLost
from .links import FRAME_BYTES, answered

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable

    from ..clock import Clock
    from ..http.client import StreamResponse
    from ..outbound.proxies import Proxies
    from ..protocol.codec import JSON

CONNECT_SECONDS = 10.0
POST_SECONDS = 30.0  # for a message that is not answered
MOST_REPLIES = 16  # that are being posted; more requests of the server are not read meanwhile
END_SECONDS = 2.0  # for the server to take the end of its session
ERROR_BYTES = 64 * 1024
ERROR_CHARS = 300
_OWN = frozenset({"host", "content-length", "transfer-encoding", "connection", "content-type"})
_SESSION = re.compile(r"[\x21-\x7e]{1,1024}")
_ACCEPT = ("Accept", "application/json, text/event-stream")
_NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}


class WebClient:
    """Requests to one address. Raises ServerError for an address that can never work."""

    def __init__(
        self, url: str, headers: Iterable[tuple[str, str]], clock: Clock, proxies: Proxies
    ) -> None:
        try:
            self._endpoint = Endpoint(url, clock, CONNECT_SECONDS, proxies)
        except BadRequest as error:
            raise ServerError(f"url: {error.message}") from None
        self.url = url
        path = urlsplit(url).path
        self._target = self._endpoint.target("/" if not path or path.endswith("/") else "")
        given = [(name, value) for name, value in headers if name.lower() not in _OWN]
        self._client = HTTPClient(
            self._endpoint,
            host_header=self._endpoint.host_header,
            headers=(USER_AGENT, *given, *self._endpoint.server.proxy_headers),
            clock=clock,
        )

    def target_of(self, path: str) -> str:
        return self._endpoint.server.target(self._endpoint.host_header, path)

    @contextlib.asynccontextmanager
    async def stream(
        self, method: str, *, body: bytes = b"", headers: Iterable[tuple[str, str]] = ()
    ) -> AsyncIterator[StreamResponse]:
        """Send a request and read the answer as it comes, without a limit of time. Raises
        ClientError, and ValueError for what cannot be sent."""
        async with self._client.stream(
            method, self._target, body=body, headers=headers, timeout=None
        ) as response:
            yield response

    async def post(self, body: bytes, target: str) -> None:
        """Post a message whose answer comes elsewhere. Raises ClientError, ServerError or
        RpcError."""
        headers = (("Content-Type", "application/json"), _ACCEPT)
        answer = await self._client.request(
            "POST", target, body=body, headers=headers, timeout=POST_SECONDS, limit=ERROR_BYTES
        )
        if not 200 <= answer.status < 300:
            raise refusal(answer.status, answer.body)

    async def check(self, response: StreamResponse) -> None:
        """Raise RpcError or ServerError, with what the answer says, unless its status is 2xx."""
        if 200 <= response.status < 300:
            return
        body = bytearray()
        with contextlib.suppress(ClientError):
            async for chunk in response:
                body += chunk
                if len(body) > ERROR_BYTES:
                    break
        raise refusal(response.status, bytes(body[:ERROR_BYTES]))

    async def aclose(self) -> None:
        await self._client.aclose()


def refusal(status: int, body: bytes) -> ServerError | RpcError:
    """The error for an answer of this status."""
    if status in (401, 403):
        return NeedsAuth(f"it answered {status}: give it a token in `headers`")
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        message = None
    error = message.get("error") if isinstance(message, dict) else None
    if isinstance(error, dict) and isinstance(error.get("code"), int):
        said = str(error.get("message") or "an error without a message")[: 10 * ERROR_CHARS]
        return RpcError(error["code"], said, error.get("data"))
    if status in (404, 405):
        return ServerError(f'it answered {status}: if it is an SSE server, set its type to "sse"')
    shown = " ".join(body.decode("utf-8", "replace").split())[:ERROR_CHARS]
    return ServerError(f"it answered {status}: {shown}" if shown else f"it answered {status}")


class WebLink:
    """A link over streamable HTTP."""

    def __init__(
        self, client: WebClient, clock: Clock, notice: Callable[[str, dict[str, Any]], None]
    ) -> None:
        self.gone: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._client = client
        self._clock = clock
        self._notice = notice
        self._next_id = 0
        self._session = ""
        self._version = ""
        self._modern = False
        self._tasks: set[asyncio.Task[None]] = set()

    def use_version(self, version: str, *, modern: bool) -> None:
        self._version, self._modern = version, modern

    async def request(
        self, method: str, params: dict[str, Any], *, seconds: float | None, cancellable: bool
    ) -> JSON:
        number, self._next_id = self._next_id, self._next_id + 1
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        try:
            async with time_limit(self._clock, seconds):
                return await self._exchange(message)
        except TimeoutError:
            self._give_up(number, cancellable=cancellable)
            raise PeerTimeout(f"{method} was not answered within {seconds:g} seconds") from None
        except asyncio.CancelledError:
            self._give_up(number, cancellable=cancellable)
            raise
        except (ClientError, OSError, ValueError) as error:
            raise _broken(error) from None

    async def _exchange(self, message: dict[str, Any]) -> JSON:
        body = await _written(message)
        async with self._client.stream(
            "POST", body=body, headers=self._headers(message)
        ) as response:
            await self._check(response)
            if message["method"] == "initialize":
                given = response.headers.get("mcp-session-id") or ""
                self._session = given if _SESSION.fullmatch(given) else ""
            kind = (response.headers.get("content-type") or "").partition(";")[0].strip().lower()
            if kind == "text/event-stream":
                return await self._events(response, message["id"])
            body = await response.read(FRAME_BYTES)
        try:
            answer = await _read(body)
        except NotJSON as error:
            raise ServerError(f"the answer is no message: {error}") from None
        return _result(answer, message["id"])

    async def _events(self, response: StreamResponse, number: int | None) -> JSON:
        """Read an event stream until the answer to this request; to its end if `number` is None.
        Raises ServerError if the stream ends before."""
        parser = SSEParser(line_limit=FRAME_BYTES)
        async for chunk in response:
            for event in parser.feed(chunk):
                if event.event != "message" or not event.data.strip():
                    continue
                try:
                    message = await _read(event.data.encode())
                except NotJSON:
                    continue  # as noise on the output of a program
                if isinstance(message, dict) and isinstance(message.get("method"), str):
                    self._hear(message)
                    while len(self._tasks) >= MOST_REPLIES:
                        await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
                elif number is not None and _is_answer(message, number):
                    return _result(message, number)
        raise ServerError("the stream ended without an answer")

    def _hear(self, message: dict[str, Any]) -> None:
        """A request or a notification of the server."""
        params = message.get("params")
        if values.is_id(message.get("id")):
            self._spawn(self._reply(message["id"], message["method"]))
        else:
            self._notice(message["method"], params if isinstance(params, dict) else {})

    async def _reply(self, number: int | str, method: str) -> None:
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": number}
        try:
            answer["result"] = await answered(method)
        except RpcError as error:
            answer["error"] = error.wire()
        await self._post(answer)

    async def notify(self, method: str, params: dict[str, Any]) -> None:
        await self._post({"jsonrpc": "2.0", "method": method, "params": params})

    async def _post(self, message: dict[str, Any]) -> None:
        """Send a message that has no answer. Raises PeerError."""
        try:
            async with (
                time_limit(self._clock, POST_SECONDS),
                self._client.stream(
                    "POST", body=await _written(message), headers=self._headers(message)
                ) as response,
            ):
                await self._check(response)
        except TimeoutError:
            raise PeerTimeout(f"a message was not taken in {POST_SECONDS:g} seconds") from None
        except (ClientError, OSError, ValueError) as error:
            raise _broken(error) from None

    async def listen(self) -> None:
        """Open the stream (GET) over which a legacy server sends notifications, and read it until
        it ends, which raises ServerError. Returns if the server has no such stream."""
        if self._modern:
            return
        headers = (("Accept", "text/event-stream"), *self._standing())
        try:
            async with self._client.stream("GET", headers=headers) as response:
                if response.status == 200:
                    await self._events(response, None)
        except (ClientError, OSError, ValueError) as error:
            raise _broken(error) from None

    async def _check(self, response: StreamResponse) -> None:
        try:
            await self._client.check(response)
        except (RpcError, ServerError) as error:
            forgotten = response.status in (400, 404) and self._session
            if forgotten and not (isinstance(error, RpcError) and error.number == -32602):
                raise SessionLost("the server has forgotten the session") from None
            raise

    def _standing(self) -> list[tuple[str, str]]:
        """The headers of every request once a version was agreed on."""
        headers = [("MCP-Protocol-Version", self._version)] if self._version else []
        if self._session:
            headers.append(("Mcp-Session-Id", self._session))
        return headers

    def _headers(self, message: dict[str, Any]) -> list[tuple[str, str]]:
        headers = [("Content-Type", "application/json"), _ACCEPT]
        if message.get("method") != "initialize":
            headers += self._standing()
        if self._modern and "method" in message:
            headers.append(("Mcp-Method", message["method"]))
            name = (message.get("params") or {}).get(_NAMED.get(message["method"], ""))
            if isinstance(name, str):
                headers.append(("Mcp-Name", _header(name)))
        return headers

    def _give_up(self, number: int, *, cancellable: bool) -> None:
        if cancellable and not self._modern and not self.gone.done():
            self._spawn(self.notify("notifications/cancelled", {"requestId": number}))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(_quiet(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def last_words(self) -> str:
        return ""

    async def close(self) -> None:
        """End the session at the server, if it has one and takes that, and all connections."""
        if not self.gone.done():
            self.gone.set_result("the connection was closed")
        for task in list(self._tasks):
            task.cancel()
        try:
            if self._session:
                with contextlib.suppress(ClientError, OSError, ValueError, TimeoutError):
                    async with (
                        time_limit(self._clock, END_SECONDS),
                        self._client.stream("DELETE", headers=self._standing()),
                    ):
                        pass
        finally:
            await self._client.aclose()


def _broken(error: Exception) -> PeerGone | ServerError:
    """The error for an exchange that failed. Only a server that cannot be connected to is gone: the
    other exchanges have connections of their own, and go on."""
    return (PeerGone if isinstance(error, ConnectFailed) else ServerError)(str(error))


async def _quiet(work: Coroutine[Any, Any, None]) -> None:
    with contextlib.suppress(PeerError):
        await work


async def _written(message: dict[str, Any]) -> bytes:
    if values.is_large(message):
        return await asyncio.to_thread(values.write_large, message, FRAME_BYTES)
    return values.write(message)


async def _read(body: bytes) -> JSON:
    """Raises NotJSON."""
    if len(body) > LARGE:
        return await asyncio.to_thread(values.read, body)
    return values.read(body)


def _is_answer(message: JSON, number: int) -> bool:
    return isinstance(message, dict) and message.get("id") == number


def _result(message: JSON, number: int) -> JSON:
    """The result in an answer. Raises RpcError or ServerError."""
    if not isinstance(message, dict) or not _is_answer(message, number):
        raise ServerError("the answer is not one to this request")
    error = message.get("error")
    if isinstance(error, dict):
        code, said = error.get("code"), error.get("message")
        raise RpcError(
            code if isinstance(code, int) else -32603,
            said[: 10 * ERROR_CHARS] if isinstance(said, str) else "an error without a message",
            error.get("data"),
        )
    return message.get("result")


def _header(text: str) -> str:
    """A name as the value of a header: encoded if it is more than plain ASCII."""
    if re.fullmatch(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?", text):
        return text
    return f"=?base64?{base64.b64encode(text.encode('utf-8', 'replace')).decode('ascii')}?="
