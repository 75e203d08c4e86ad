"""Memory transports behave as asyncio's own: other tests depend on that."""

from __future__ import annotations

import asyncio

from tests.support.http import HTTPTestCase
from tests.support.memory import MemoryTransport, connect_pair


class RecordingProtocol(asyncio.Protocol):
    """Records every call. With `keep` it keeps the connection open after a half-close."""

    def __init__(self, *, keep: bool = False) -> None:
        self.calls: list[object] = []
        self.keep = keep

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.calls.append("made")

    def data_received(self, data: bytes) -> None:
        self.calls.append(data)

    def eof_received(self) -> bool:
        self.calls.append("eof")
        return self.keep

    def connection_lost(self, exc: Exception | None) -> None:
        self.calls.append(("lost", exc))

    def pause_writing(self) -> None:
        self.calls.append("pause")

    def resume_writing(self) -> None:
        self.calls.append("resume")


class Memory(HTTPTestCase):
    async def test_bytes_and_ends_travel_in_order(self) -> None:
        near, far = RecordingProtocol(), RecordingProtocol(keep=True)
        client, server = connect_pair(near, far)
        client.write(b"one")
        client.write_eof()
        server.write(b"two")
        self.assertEqual(far.calls, ["made"], "nothing travels within the call")
        await self.settle()
        self.assertEqual(far.calls, ["made", b"one", "eof"])
        self.assertEqual(near.calls, ["made", b"two"])
        server.close()
        await self.settle()
        self.assertEqual(far.calls[-1], ("lost", None))
        self.assertEqual(near.calls, ["made", b"two", "eof", ("lost", None)])
        with self.assertRaises(RuntimeError):
            client.write(b"after the FIN")

    async def test_connection_lost_is_called_once_and_from_the_loop(self) -> None:
        protocol = RecordingProtocol()
        transport = MemoryTransport(protocol)
        transport.connect()
        transport.close()
        transport.abort()
        transport.lose(ConnectionResetError())
        self.assertEqual(protocol.calls, ["made"])
        await self.settle()
        self.assertEqual(protocol.calls, ["made", ("lost", None)])
        transport.feed(b"late")
        self.assertEqual(len(protocol.calls), 2)

    async def test_what_arrives_while_reading_is_paused_waits(self) -> None:
        protocol = RecordingProtocol(keep=True)
        transport = MemoryTransport(protocol)
        transport.pause_reading()
        transport.feed(b"abcd", step=2)
        transport.feed_eof()
        self.assertFalse(transport.is_reading())
        self.assertEqual(protocol.calls, [])
        transport.resume_reading()
        self.assertEqual(protocol.calls, [])
        await self.settle()
        self.assertEqual(protocol.calls, [b"ab", b"cd", "eof"])
        transport.abort()
        await self.settle()

    async def test_a_stalled_peer_moves_the_water_marks(self) -> None:
        protocol = RecordingProtocol()
        transport = MemoryTransport(protocol, extra={"peername": ("x", 1)})
        self.assertEqual(transport.get_extra_info("peername"), ("x", 1))
        transport.set_write_buffer_limits(high=10, low=4)
        self.assertEqual(transport.get_write_buffer_limits(), (4, 10))
        transport.stalled = True
        transport.write(b"x" * 10)
        self.assertEqual(protocol.calls, [])
        transport.write(b"x")
        self.assertEqual((protocol.calls, transport.get_write_buffer_size()), (["pause"], 11))
        transport.drain(6)
        self.assertEqual(protocol.calls, ["pause"])
        transport.close()
        transport.drain(1)
        self.assertEqual(protocol.calls, ["pause", "resume"])
        self.assertFalse(transport.lost)
        transport.drain()
        await self.settle()
        self.assertEqual(transport.written, b"x" * 11)
        self.assertTrue(transport.lost)
