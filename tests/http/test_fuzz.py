"""Seeded mutations of good requests: no crash, and the same result however the bytes are cut."""

from __future__ import annotations

import random

from crushlite.http.messages import HTTPError, Peer
from crushlite.http.router import Route
from tests.support.http import HTTPTestCase, Recorder, chunked, get, post

SEEDS = (
    get(),
    get("/ok?a=%20b", "Connection: keep-alive", "Expect: 100-continue"),
    post("/ok", b"hello world"),
    post("/ok", b"x" * 300, "Connection: close"),
    chunked("/ok", [b"hello", b"w" * 40]),
    get("http://localhost/ok"),
)

SPLICES = (
    *(b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", b"%", b"/", b"#", b",", b";", b"\xff", b"0"),
    *(b"\r\n\r\n", b"\r\n ", b"HTTP/1.1", b"Host: x\r\n", b"chunked", b"\xc3\xa9", b"1;e=f\r\n"),
    *(b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"0\r\n\r\n"),
)


def mutated(rng: random.Random) -> bytes:
    data = bytearray(b"".join(rng.choices(SEEDS, k=rng.randrange(1, 4))))
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(data))
        kind = rng.randrange(4)
        if kind == 0:
            data[at] = rng.randrange(256)
        elif kind == 1:
            data[at:at] = rng.choice(SPLICES)
        elif kind == 2:
            del data[at : at + rng.randrange(1, 12)]
        else:
            data[at:at] = data[at : at + rng.randrange(1, 60)]
        if not data:
            return b"x"
    return bytes(data)


class Fuzz(HTTPTestCase):
    async def outcome(self, data: bytes, step: int) -> tuple[list[tuple[str, bytes]], list[bytes]]:
        """The requests that were carried out, and the status lines of the answers."""
        seen = Recorder()
        server = self.serve(Route("GET", "/ok", seen), Route("POST", "/ok", seen))
        transport = await self.exchange(server, data, step=step)
        transport.feed_eof()
        for _ in range(3):
            await self.settle()
        await self.clock.advance(200)
        self.assertTrue(transport.lost)
        self.assertEqual(server.open_connections, 0)
        self.assertEqual(len(server.tasks), 0)
        written = bytes(transport.written).replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")
        statuses = [part[:3] for part in written.split(b"HTTP/1.1 ")[1:]]
        self.assertNotIn(b"500", statuses)
        return [(r.head.method, r.body) for r in seen.requests], statuses

    async def test_one_verdict_however_the_bytes_are_cut(self) -> None:
        rng = random.Random(20260910)
        for _ in range(200):
            data = mutated(rng)
            with self.subTest(data=data):
                whole = await self.outcome(data, 0)
                self.assertEqual(await self.outcome(data, 1), whole)
                self.assertEqual(await self.outcome(data, rng.randrange(2, 50)), whole)

    async def test_the_memory_of_heads_changes_no_verdict(self) -> None:
        server = self.serve(Route("GET", "/{x}", Recorder()))
        peers = (Peer("unix"), Peer("tcp", 80), Peer("tcp", 81))
        for n in range(600):
            raw, peer = get(f"/{n % 300}", f"N: {n % 7}"), peers[n % 3]
            head = server.parser.parse(raw, peer).head
            self.assertEqual(head.peer, peer)
            again = {server.parser.parse(raw, other).head.peer for other in peers}
            self.assertEqual(again, set(peers))
            self.assertEqual(head.segments, (str(n % 300),))
            self.assertEqual(head.headers.get("n"), str(n % 7))
        for _ in range(3):
            with self.assertRaises(HTTPError):
                server.parser.parse(b"GET /ok HTTP/1.1\r\n\r\n", peers[0])
