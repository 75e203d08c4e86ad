"""Malformed and ambiguous requests: each is refused and ends the connection, and a request hidden
in it is not carried out.

Every entry is sent alone and with a well-formed request for the canary route behind it, whole and
cut up. Where two parsers could disagree about the end of a request, the server must not read
on.
"""

from __future__ import annotations

from crushlite.http.messages import HTTPError, Peer
from crushlite.http.parsing import split_target
from crushlite.http.router import Route
from tests.support.http import HTTPTestCase, Recorder, replies

CANARY = b"POST /canary HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"

H = b"Host: localhost\r\n"
CHUNKED = b"POST /ok HTTP/1.1\r\n" + H + b"Transfer-Encoding: chunked\r\n\r\n"


def line(raw: bytes) -> bytes:
    """A request with this request line."""
    return raw + b"\r\n" + H + b"\r\n"


def field(raw: bytes, method: bytes = b"GET", body: bytes = b"") -> bytes:
    """A request with these header lines besides Host."""
    return method + b" /ok HTTP/1.1\r\n" + H + raw + b"\r\n\r\n" + body


def length(value: bytes) -> bytes:
    return field(b"Content-Length:" + value, b"POST", b"abc")


def coding(value: bytes, *, body: bytes = b"0\r\n\r\n") -> bytes:
    return field(b"Transfer-Encoding:" + value, b"POST", body)


REQUEST_LINES = [
    line(raw)
    for raw in (
        b"GET",
        b"GET ",
        b"GET /ok",
        b"GET /ok ",
        b" GET /ok HTTP/1.1",
        b"\tGET /ok HTTP/1.1",
        b"GET  /ok HTTP/1.1",
        b"GET /ok  HTTP/1.1",
        b"GET /ok HTTP/1.1 ",
        b"GET\t/ok\tHTTP/1.1",
        b"GET /ok\tHTTP/1.1",
        b"GET /o k HTTP/1.1",
        b"GET /ok HTTP/1.1 extra",
        b"GET /ok HTTP/1.1\r",
        b"GET /ok\x00 HTTP/1.1",
        b"GET /ok\x0b HTTP/1.1",
        b"GET /ok\x7f HTTP/1.1",
        b"GET /\xc3\xa9 HTTP/1.1",
        b"GET /\xff HTTP/1.1",
        b"G\x00T /ok HTTP/1.1",
        b"G(T /ok HTTP/1.1",
        b"GET: /ok HTTP/1.1",
        b'"GET" /ok HTTP/1.1',
        b"G\xc3\x89T /ok HTTP/1.1",
        b"/ok HTTP/1.1",
        b"HTTP/1.1 200 OK",
        b"GET /ok HTTP/1",
        b"GET /ok HTTP/1.",
        b"GET /ok HTTP/.1",
        b"GET /ok HTTP/11.1",
        b"GET /ok HTTP/1.10",
        b"GET /ok HTTP/1.1.1",
        b"GET /ok HTTP/1,1",
        b"GET /ok HTTP/x.y",
        b"GET /ok HTTP/-1.1",
        b"GET /ok HTTP/+1.1",
        b"GET /ok HTTP/ 1.1",
        b"GET /ok http/1.1",
        b"GET /ok Http/1.1",
        b"GET /ok HTTPS/1.1",
        b"GET /ok HTTP1.1",
        b"GET /ok XHTTP/1.1",
        b"GET /ok HTTP\\1.1",
        b"GET /ok HTTP/\xb9.1",
        b"\xef\xbb\xbfGET /ok HTTP/1.1",
        b"\r\nGET /ok HTTP/1.1",
        b"\nGET /ok HTTP/1.1",
        b"\x00GET /ok HTTP/1.1",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\x80\x2e\x01\x00\x02",
        # Targets.
        b"GET ok HTTP/1.1",
        b"GET * HTTP/1.1",
        b"OPTIONS * HTTP/1.1",
        b"GET ?q HTTP/1.1",
        b"GET \\ok HTTP/1.1",
        b"GET .. HTTP/1.1",
        b"GET /ok#fragment HTTP/1.1",
        b"GET /ok?q#fragment HTTP/1.1",
        b"GET /#/ok HTTP/1.1",
        b"GET /ok% HTTP/1.1",
        b"GET /ok%2 HTTP/1.1",
        b"GET /ok%zz HTTP/1.1",
        b"GET /ok%%41 HTTP/1.1",
        b"GET /ok%u0041 HTTP/1.1",
        b"GET /ok%00 HTTP/1.1",
        b"GET /%ff HTTP/1.1",
        b"GET /%c0%af HTTP/1.1",
        b"GET /%c0%80 HTTP/1.1",
        b"GET /%ed%a0%80 HTTP/1.1",
        b"GET /%f8%88%80%80%80 HTTP/1.1",
        b"GET /%e2%82 HTTP/1.1",
        b"GET /ok?a=%ff HTTP/1.1",
        b"GET /ok?%zz=1 HTTP/1.1",
        b"GET /ok?a=%00 HTTP/1.1",
        b"CONNECT localhost:80 HTTP/1.1",
        b"CONNECT /ok HTTP/1.1",
        b"GET https://localhost/ok HTTP/1.1",
        b"GET HTTP://localhost/ok HTTP/1.1",
        b"GET ftp://localhost/ok HTTP/1.1",
        b"GET http:/ok HTTP/1.1",
        b"GET http:///ok HTTP/1.1",
        b"GET http://localhost HTTP/1.1",
        b"GET http://localhost?q HTTP/1.1",
        b"GET http://localhost?/ok HTTP/1.1",
        b"GET localhost:80/ok HTTP/1.1",
        b"GET javascript:alert(1) HTTP/1.1",
    )
]

VERSIONS = [
    line(b"GET /ok HTTP/" + version)
    for version in (b"0.9", b"1.2", b"1.9", b"2.0", b"3.0", b"0.0", b"9.9")
] + [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET /ok HTTP/0.9\r\n\r\n"]

MISDIRECTED = [
    line(b"GET " + target + b" HTTP/1.1")
    for target in (
        b"http://evil/ok",
        b"http://LOCALHOST/ok",
        b"http://localhost:80/ok",
        b"http://localhost./ok",
        b"http://user@localhost/ok",
        b"http://localhost@evil/ok",
        b"http://evil\\@localhost/ok",
        b"http://[::1]/ok",
    )
]

HOSTS = [
    b"GET /ok HTTP/1.1\r\n\r\n",
    b"GET /ok HTTP/1.1\r\nX-Host: localhost\r\n\r\n",
    b"GET /ok HTTP/1.1\r\n" + H + H + b"\r\n",
    b"GET /ok HTTP/1.1\r\n" + H + b"host: other\r\n\r\n",
    b"GET /ok HTTP/1.1\r\nHost : localhost\r\n\r\n",
]

FIELDS = [
    field(raw)
    for raw in (
        b"NoColon",
        b": empty name",
        b" : blank name",
        b"Space : x",
        b"Tab\t: x",
        b" Leading: x",
        b"\tLeading: x",
        b"In side: x",
        b"N\x00ul: x",
        b"Nul: a\x00b",
        b"Cr: a\rb",
        b"Cr: a\r",
        b"Cr\r: a",
        b"Lf: a\nB: c",
        b"Lf: a\n",
        b"\nLf: a",
        b"Vt: a\x0bb",
        b"Ff: a\x0cb",
        b"N\xc3\xa9: x",
        b"Na(me: x",
        b'Na"me: x',
        b"Na/me: x",
        b"Na@me: x",
        b"Na[me]: x",
        b"Na{me}: x",
        b"Fold: a\r\n b",
        b"Fold: a\r\n\tb",
        b"Fold: a\r\n  Content-Length: 5",
        b"Fold:\r\n x",
        b"X: y\r\n \r\nZ: w",
        b"Expect: something",
        b"Expect: 100-continue, other",
        b"Expect: 100-continue\r\nExpect: other",
        b"Expect:",
    )
]

# Where line ends are ambiguous.
LINE_ENDS = [
    b"GET /ok HTTP/1.1\nHost: localhost\n\n",
    b"GET /ok HTTP/1.1\r\nHost: localhost\n\r\n",
    b"GET /ok HTTP/1.1\nHost: localhost\r\n\r\n",
    b"GET /ok HTTP/1.1\r\nHost: localhost\r\n\n",
    b"GET /ok HTTP/1.1\r\nHost: localhost\n\n",
    b"GET /ok HTTP/1.1\r\nHost: localhost\r\r\n\r\n",
    b"GET /ok HTTP/1.1\r\rHost: localhost\r\r\r\n\r\n",
    b"GET /ok HTTP/1.1\n\r\nHost: localhost\r\n\r\n",
    b"GET /ok HTTP/1.1\r\nHost: localhost\n\rX: y\r\n\r\n",
    b"\r\n\r\n",
    b"\n\n",
]

LENGTHS = [
    length(value)
    for value in (
        b"",
        b" ",
        b" +3",
        b" -1",
        b" -0",
        b" 3.0",
        b" 3e0",
        b" 0x3",
        b" 0b11",
        b" 3_0",
        b" 3 3",
        b" 3;3",
        b" 3, 3",
        b" 3,3",
        b" 3,",
        b" ,3",
        b" 3, 4",
        b' "3"',
        b" three",
        b" \xb3",
        b" 3\x00",
        b" 3\x0b",
        b" " + b"9" * 5000,
        b" 3\r\nContent-Length: 3",
        b" 3\r\nContent-Length: 4",
        b" 3\r\ncontent-length: 3",
        b" 3\r\nCONTENT-LENGTH: 0",
        b" 0\r\nContent-Length: 3",
        b" 3\r\nContent-Length:",
        b" 3\r\nContent-Length : 0",
        b"\r\n 3",
    )
]

CODINGS = [
    coding(value)
    for value in (
        b"",
        b" identity",
        b" gzip",
        b" gzip, chunked",
        b" chunked, gzip",
        b" chunked, chunked",
        b" chunked, identity",
        b" chunked,",
        b" ,chunked",
        b" chunked;q=1",
        b' "chunked"',
        b" xchunked",
        b" chunkedx",
        b" chun ked",
        b" chunked\x00",
        b" \x0bchunked",
        b" \x0cchunked",
        b"\r\n chunked",
        b" chunked\r\nTransfer-Encoding: chunked",
        b" chunked\r\nTransfer-Encoding: identity",
        b" identity\r\nTransfer-Encoding: chunked",
        b" chunked\r\nContent-Length: 5",
        b" chunked\r\nContent-Length: 0",
        b" chunked\r\ncontent-length: 100",
    )
] + [
    field(b"Content-Length: 5\r\nTransfer-Encoding: chunked", b"POST", b"0\r\n\r\n"),
    field(b"Content-Length: 5\r\nTransfer-Encoding : chunked", b"POST", b"0\r\n\r\n"),
    b"POST /ok HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /ok HTTP/1.0\r\n"
    + H
    + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
]

CHUNKS = [
    CHUNKED + body
    for body in (
        b"\r\n0\r\n\r\n",
        b"x\r\n",
        b"-1\r\n",
        b"+1\r\na\r\n0\r\n\r\n",
        b"0x1\r\na\r\n0\r\n\r\n",
        b" 1\r\na\r\n0\r\n\r\n",
        b"1_0\r\na\r\n",
        b"g\r\n",
        b";ext\r\n",
        b"1\na\r\n0\r\n\r\n",
        b"1\r\na\n0\r\n\r\n",
        b"1\r\nab\r\n0\r\n\r\n",
        b"1\r\na0\r\n\r\n",
        b"1\r\na\r\r\n0\r\n\r\n",
        b"1\r\na\rX0\r\n\r\n",
        b"2\r\na\r\n0\r\n\r\n",
        b"1\ra\r\n0\r\n\r\n",
        b"1\r\na\r\n0\r\n\n",
        b"0\r\n\n",
        b"0\n\r\n",
        b"0\n\n",
        b"0\r\nX: y\n\r\n",
        b"0\r\nX: y\r\n\r\n",
        b"0\r\nContent-Length: 5\r\n\r\n",
        b"0\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"0\r\nHost: evil\r\n\r\n",
        b"0\r\nX: y\r\n z\r\n\r\n",
        b"0\r\nnot a field\r\n\r\n",
        b"0\r\n : x\r\n\r\n",
        b"0\r\nPOST /canary HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"fffffffffffffffff\r\na\r\n",
        b"ffffffffffffffffffffff\r\na\r\n",
        b"0000000000000000000000\r\n\r\n",
        b"1;" + b"e" * 5000 + b"\r\na\r\n0\r\n\r\n",
        b"\xb1\r\na\r\n0\r\n\r\n",
        b"1\x00\r\na\r\n0\r\n\r\n",
    )
]

OVERSIZED = [
    line(b"GET /" + b"t" * 9000 + b" HTTP/1.1"),
    b"GET /" + b"t" * 9000,
    field(b"Pad: " + b"p" * 40_000),
    field(b"\r\n".join(b"H%d: v" % n for n in range(200))),
    field(b"Content-Length: 99999999", b"POST"),
    field(b"Content-Length: 1000000000000000000", b"POST"),
    line(b"M" * 20_000 + b" /ok HTTP/1.1"),
]

STATUSES = {
    "request lines": (REQUEST_LINES, {400, 405}),
    "versions": (VERSIONS, {505}),
    "misdirected": (MISDIRECTED, {421}),
    "hosts": (HOSTS, {400}),
    "fields": (FIELDS, {400, 417}),
    "line ends": (LINE_ENDS, {400}),
    "lengths": (LENGTHS, {400}),
    "codings": (CODINGS, {400, 501}),
    "chunks": (CHUNKS, {400, 408}),
    "oversized": (OVERSIZED, {413, 414, 431}),
}


class Corpus(HTTPTestCase):
    async def refused(self, raw: bytes, step: int) -> int:
        """Send, let every time limit pass, and return the status of the only answer."""
        canary, ok = Recorder(), Recorder()
        server = self.serve(
            Route("POST", "/canary", canary), Route("GET", "/ok", ok), Route("POST", "/ok", ok)
        )
        transport = await self.exchange(server, raw, step=step)
        await self.clock.advance(200)
        self.assertEqual(canary.requests, [])
        self.assertEqual(ok.requests, [])
        self.assertTrue(transport.lost)
        self.assertEqual(server.open_connections, 0)
        [reply] = replies(transport.written)
        self.assertEqual(reply.headers["content-type"], "application/json")
        self.assertEqual(reply.headers["connection"], "close")
        return reply.status

    def test_the_corpus_is_large_and_has_no_duplicates(self) -> None:
        every = [raw for entries, _ in STATUSES.values() for raw in entries]
        self.assertGreaterEqual(len(every), 150)
        self.assertEqual(len(every), len(set(every)))

    async def test_each_is_refused_alone_and_hides_no_second_request(self) -> None:
        for name, (entries, statuses) in STATUSES.items():
            for raw in entries:
                for data in (raw, raw + CANARY, raw + CANARY * 3):
                    with self.subTest(name, raw=raw[:120], smuggled=data is not raw):
                        self.assertIn(await self.refused(data, 0), statuses)

    async def test_the_verdict_does_not_depend_on_how_the_bytes_arrive(self) -> None:
        for name, (entries, statuses) in STATUSES.items():
            for raw in entries:
                if len(raw) < 1000:
                    for step in (1, 10):
                        with self.subTest(name, raw=raw, step=step):
                            self.assertIn(await self.refused(raw + CANARY, step), statuses)

    async def test_a_body_that_looks_like_a_request_is_a_body(self) -> None:
        canary, ok = Recorder(), Recorder()
        server = self.serve(Route("POST", "/canary", canary), Route("POST", "/ok", ok))
        as_length = field(b"Content-Length: %d" % len(CANARY), b"POST", CANARY)
        as_chunk = CHUNKED + b"%x\r\n%b\r\n0\r\n\r\n" % (len(CANARY), CANARY)
        upgrade = field(
            b"Content-Length: %d\r\nConnection: upgrade\r\nUpgrade: h2c" % len(CANARY),
            b"POST",
            CANARY,
        )
        for step in (0, 1, 10):
            transport = await self.exchange(server, (as_length + as_chunk + upgrade), step=step)
            while transport.written.count(b"HTTP/1.1 200") < 3:
                await self.settle()
            self.assertEqual(len(replies(transport.written)), 3)
        self.assertEqual({request.body for request in ok.requests}, {CANARY})
        self.assertEqual(canary.requests, [])


class Accepted(HTTPTestCase):
    """Unusual but legal requests, which are not refused."""

    async def test_unusual_requests_are_served(self) -> None:
        for raw in (
            line(b"GET http://localhost/ok HTTP/1.1"),
            b"GET /ok HTTP/1.0\r\n\r\n",
            b"GET /ok HTTP/1.1\r\nHost:\r\n\r\n",
            b"GET /ok HTTP/1.1\r\nhOsT:\tlocalhost \t\r\n\r\n",
            field(b"Empty:"),
            field(b"Latin: \xe9"),
            field(b"A: 1\r\nA: 2"),
            field(b"Content-Length: 0"),
            field(b"Content-Length: 003", b"GET", b"abc"),
            field(b"Transfer-Encoding: Chunked", b"GET", b"3;name=value\r\nabc\r\n0\r\n\r\n"),
            field(b"Upgrade: websocket\r\nConnection: Upgrade"),
            field(b"Expect: 100-continue"),
            line(b"GET /ok?a&&b=%26 HTTP/1.1"),
            line(b"GET /%6F%6b HTTP/1.1"),
        ):
            with self.subTest(raw=raw):
                seen = Recorder()
                server = self.serve(Route("GET", "/ok", seen))
                transport = await self.exchange(server, raw)
                self.assertEqual(replies(transport.written)[0].status, 200)
                self.assertEqual(len(seen.requests), 1)
                self.assertEqual(seen.requests[0].peer, Peer("memory", 80))

    def test_segments_are_decoded_once_and_never_joined(self) -> None:
        for target, segments in (
            ("/", ("",)),
            ("/v1/health", ("v1", "health")),
            ("/a%2Fb/c", ("a/b", "c")),
            ("/%252F", ("%2F",)),
            ("/a//b/", ("a", "", "b", "")),
            ("/a/../b", ("a", "..", "b")),
            ("/%2e%2e/$$", ("..", "$$")),
            ("/%E2%82%AC+", ("\u20ac+",)),
        ):
            self.assertEqual(split_target(target), (segments, {}))
        self.assertEqual(
            split_target("/?a=1&b&a=2%2B+&=x")[1], {"a": ["1", "2+ "], "b": [""], "": ["x"]}
        )
        with self.assertRaises(HTTPError):
            split_target("/%C3")
