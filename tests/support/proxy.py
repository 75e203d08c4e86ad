"""A proxy and TLS servers for tests: real ones, on loopback, that record the requests they got."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

__all__ = ["CERTIFICATE", "ProxyServer", "Silent", "replying", "serving", "tls_before"]

# A public key pair, made for these tests; valid until 2120 for model.test and 127.0.0.1.
CERTIFICATE = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgEWAKgrS2ED1I52ZG
0T46I5LvMhTdYhKVOXIe+HDW6L2hRANCAARwYU//FW7CVTDIM5LabuZFO9+N0prS
tOHOSmnaTjUzEyU3zuVSt73KydkLlznIfWFnVCsM2+VlTFgBMUN9GvEy
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBajCCARCgAwIBAgIBATAKBggqhkjOPQQDAjAVMRMwEQYDVQQDDAptb2RlbC50
ZXN0MCAXDTIwMDEwMTAwMDAwMFoYDzIxMjAwMTAxMDAwMDAwWjAVMRMwEQYDVQQD
DAptb2RlbC50ZXN0MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEcGFP/xVuwlUw
yDOS2m7mRTvfjdKa0rThzkpp2k41MxMlN87lUre9ysnZC5c5yH1hZ1QrDNvlZUxY
ATFDfRrxMqNPME0wDwYDVR0TAQH/BAUwAwEB/zAbBgNVHREEFDASggptb2RlbC50
ZXN0hwR/AAABMB0GA1UdDgQWBBQzjE8qm4im+cWEmk7U2EtdALVUOTAKBggqhkjO
PQQDAgNIADBFAiEAsV//0wzdiy5D2fbzMaMtmOK4zl4vhjLc3GSP7/8pMj0CIHR8
wnJt+fBLoYqG8DMEvcChqWPvqb20DVV52uWV6cIr
-----END CERTIFICATE-----
"""


@contextlib.asynccontextmanager
async def serving(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    context: ssl.SSLContext | None = None,
    port: int = 0,
) -> AsyncIterator[int]:
    """A server on a port of loopback, a free one unless it is given; yields the port."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await serve(reader, writer)
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", port, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def replying(body: bytes) -> Callable[..., Awaitable[None]]:
    """For `serving`: answer the first request of each connection with this document."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        await writer.drain()

    return serve


class Silent:
    """For `serving`: accept connections and never answer; `came` counts them."""

    def __init__(self) -> None:
        self.came = 0
        self._changed = asyncio.Condition()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with self._changed:
            self.came += 1
            self._changed.notify_all()
        await reader.read()

    async def until(self, came: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self.came >= came)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()


async def _joined(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int, first: bytes = b""
) -> None:
    """Copy bytes both ways between a client and a server on loopback."""
    inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
    inner_writer.write(first)
    await asyncio.gather(_pump(reader, inner_writer), _pump(inner_reader, writer))


def server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "both.pem")
        file.write_text(CERTIFICATE)
        context.load_cert_chain(file)
    return context


@contextlib.asynccontextmanager
async def tls_before(port: int) -> AsyncIterator[int]:
    """A TLS server in front of a plain one; yields its own port."""
    async with serving(lambda r, w: _joined(r, w, port), server_context()) as own:
        yield own


class ProxyServer:
    """A proxy that forwards every request to one server, whatever its address. With `authorization`
    it demands that header, with `status` it answers with that. `heads` are the heads of the
    requests it got."""

    def __init__(self, target: int, *, authorization: str = "", status: bytes = b"") -> None:
        self.target = target
        self.heads: list[str] = []
        self.port = 0
        self._authorization = authorization
        self._status = status

    async def __aenter__(self) -> ProxyServer:
        self._stack = contextlib.AsyncExitStack()
        self.port = await self._stack.enter_async_context(serving(self._serve))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        self.heads.append(head)
        if self._status:
            writer.write(b"HTTP/1.1 " + self._status + b"\r\nContent-Length: 0\r\n\r\n")
        elif self._authorization and f"Authorization: {self._authorization}\r\n" not in head:
            writer.write(b"HTTP/1.1 407 Who are you\r\nContent-Length: 0\r\n\r\n")
        elif head.startswith("CONNECT "):
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            return await _joined(reader, writer, self.target)
        else:
            method, address, rest = head.split(" ", 2)
            path = "/" + address.split("/", 3)[3]
            first = f"{method} {path} {rest}".encode("latin-1")
            return await _joined(reader, writer, self.target, first)
        await writer.drain()
        return None
