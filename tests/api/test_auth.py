"""Who is let in, over real sockets: every spelling of Host and Origin, on every route."""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
import unittest
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

from crushlite.api import auth
from crushlite.api.auth import WRONG_KEYS, WRONG_KEYS_AGAIN, WrongKeys
from crushlite.daemon import Daemon
from crushlite.http.connection import Connection
from crushlite.http.messages import HTTPError, Peer
from crushlite.testing import LocalDaemon
from crushlite.testing.fake_clock import FakeClock
from crushlite.testing.scripted import ScriptedAgent
from tests.support.http import Reply, replies
from tests.support.ports import reserved_port
from tests.support.routes import TABLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SECONDS = 60.0

# Every route, routes that do not exist, and methods that do not.
ROUTES = (
    *((entry.method, entry.pattern.replace("{", "x").replace("}", "")) for entry in TABLE),
    *((("HEAD", "/v1/health"), ("HEAD", "/v1/workspaces"), ("HEAD", "/v1/workspaces/x/events"))),
    *((("GET", "/"), ("GET", "/v1"), ("GET", "/v2/health"), ("POST", "/nowhere"))),
    *((("OPTIONS", "/v1/workspaces"), ("PATCH", "/v1/health"), ("DELETE", "/v1/control"))),
)

# What a page needs before it has a token; test_console.py says which these are.
PUBLIC = {
    *((e.method, e.pattern.replace("{", "x").replace("}", "")) for e in TABLE if e.public),
}


def closed_to(origin: str) -> list[tuple[str, str]]:
    """The routes that refuse a header with an Origin. Only the form with a one-time code may come
    from a local file: see tests/console."""
    from_file = ("POST", "/v1/web/enter") if origin == "Origin: null" else None
    return [route for route in ROUTES if route != from_file]


SHARES = 8  # headers are many, and so are routes: each header is sent to this part of them


def shares(
    routes: Sequence[tuple[str, str]], number: int
) -> list[tuple[bool, Sequence[tuple[str, str]]]]:
    """For the header with this number: one share of the routes with a token, another one without.
    Eight headers in a row meet every route, each with a token and without; the lists are longer."""
    return [
        (True, routes[number % SHARES :: SHARES]),
        (False, routes[(number + 1) % SHARES :: SHARES]),
    ]


# Not the listener's name: PORT is its port. 421 each.
FOREIGN_HOSTS = (
    *("0.0.0.0:PORT", "0:PORT", "127.1:PORT", "127.0.1:PORT", "127.0.0.2:PORT", "127.0.0.01:PORT"),
    *("2130706433:PORT", "0x7f.0.0.1:PORT", "0x7f000001:PORT", "0177.0.0.1:PORT", "[::]:PORT"),
    *(
        "[::ffff:127.0.0.1]:PORT",
        "[0:0:0:0:0:0:0:1]:PORT",
        "::1:PORT",
        "[::1:PORT",
        "[::1%lo]:PORT",
    ),
    *(
        "localhost.:PORT",
        "LOCALHOST:PORT",
        "Localhost:PORT",
        "localhost.evil:PORT",
        "127.0.0.1.:PORT",
    ),
    *("evil.localhost:PORT", "evil:PORT", "evil.example:PORT", "localhost.evil.example:PORT"),
    *("127.0.0.1.nip.io:PORT", "localtest.me:PORT", "xn--lcalhost-q4a:PORT", "api.crush.localhost"),
    *("localhost", "127.0.0.1", "[::1]", "localhost:", "127.0.0.1:", "localhost:80", "localhost:1"),
    *(
        "localhost:0PORT",
        "localhost:+PORT",
        "localhost: PORT",
        "localhost :PORT",
        "localhost:PORT.",
    ),
    *("localhost:PORT:PORT", "localhost:PORT,evil", "evil,localhost:PORT", "evil localhost:PORT"),
    *("user@localhost:PORT", "localhost:PORT@evil", "localhost:PORT/", "localhost:PORT?x", "null"),
    *("http://localhost:PORT", "//localhost:PORT", "*", "-", ".", "file://", "%6cocalhost:PORT"),
    *("l\xd0\xbecalhost:PORT", "\xff:PORT", "127.0.0.1:PORTx", "127.0.0.1;PORT", "[::1].:PORT"),
    *("[127.0.0.1]:PORT", "(localhost):PORT", "'localhost':PORT", "localhost\\:PORT"),
)
OWN_HOSTS = ("localhost:PORT", "127.0.0.1:PORT", "[::1]:PORT")

# Not the daemon's own page, which is http://HOST. 403 each.
FOREIGN_ORIGINS = (
    *("null", "", "http://evil.example", "https://evil.example", "http://HOST.evil.example"),
    *(
        "https://HOST",
        "http://127.0.0.1",
        "http://127.0.0.1:1",
        "http://localhost",
        "https://localhost",
    ),
    *(
        "http://HOST/",
        "http://HOST/x",
        "HTTP://HOST",
        "http://user@HOST",
        "http://HOST@evil",
        "//HOST",
    ),
    *(
        "HOST",
        " HOST",
        "http:HOST",
        "http://0.0.0.0:PORT",
        "http://[::1]:PORT",
        "http://127.1:PORT",
    ),
    *(
        "http://localhost:PORT",
        "http://LOCALHOST:PORT",
        "http://xn--lcalhost-q4a:PORT",
        "ws://HOST",
    ),
    *("file://", "file:///etc/passwd", "vscode-webview://abc", "chrome-extension://abc", "app://."),
    *("moz-extension://abc", "about:blank", "data:text/html,x", "blob:http://HOST/x", "*"),
    *("http://HOST http://HOST", "http://HOST, http://evil", "http://evil, http://HOST"),
)

# Refused by the parser, before any guard: 400, and the connection ends.
MALFORMED_HOSTS: tuple[list[str], ...] = (
    [],
    ["localhost:PORT", "localhost:PORT"],
    ["localhost:PORT", "evil"],
    ["localhost:PORT\x00"],
)


class AuthTestCase(unittest.IsolatedAsyncioTestCase):
    source = "127.0.0.1"  # whose connections these are

    async def asyncSetUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="crushlite-")
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        # Token files go next to the default socket.
        patch = mock.patch.dict(os.environ, {"XDG_RUNTIME_DIR": folder.name})
        patch.start()
        self.addCleanup(patch.stop)
        complete = Connection._complete
        counted = mock.patch.object(Connection, "_complete", autospec=True, side_effect=complete)
        self.completed = counted.start()
        self.addCleanup(counted.stop)

    async def serve(self, auth: str = "token") -> LocalDaemon:
        daemon = LocalDaemon(tcp=True, auth=auth)
        await daemon.__aenter__()
        self.addAsyncCleanup(daemon.__aexit__, None, None, None)
        self.daemon, self.port = daemon, daemon.port
        self.token = daemon.daemon.tokens[daemon.port].token if auth == "token" else ""
        return daemon

    @property
    def executed(self) -> int:
        return int(self.completed.call_count)

    async def exchange(self, data: bytes, *, port: int = 0, unix: str = "") -> bytes:
        """Send bytes on a new connection, and read until its end."""
        async with asyncio.timeout(SECONDS):
            if unix:
                reader, writer = await asyncio.open_unix_connection(unix)
            else:
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", port or self.port, local_addr=(self.source, 0)
                )
            try:
                writer.write(data)
                answer = await reader.read()
            finally:
                writer.close()
                await writer.wait_closed()
        return answer

    async def send(
        self,
        requests: Iterable[tuple[str, str]],
        *headers: str,
        host: str | None = "127.0.0.1:PORT",
        token: bool = True,
        unix: str = "",
    ) -> list[Reply]:
        """Pipeline requests that all have the same headers; every answer is checked for CORS."""
        requests = list(requests)
        common = list(headers)
        if host is not None:
            common.insert(0, f"Host: {host}")
        if token:
            common.append(f"Authorization: Bearer {self.token}")
        data = b""
        for number, (method, target) in enumerate(requests, 1):
            lines = [f"{method} {target} HTTP/1.1", *common]
            body = "{}" if method in ("POST", "PUT") else ""
            lines += [f"Content-Length: {len(body)}"] if body else []
            lines += ["Connection: close"] if number == len(requests) else []
            head = "\r\n".join([*lines, "", ""]).replace("PORT", str(self.port))
            data += (head + body).encode("latin-1")
        answer = await self.exchange(data, unix=unix)
        self.assertNotIn(b"access-control", answer.lower())
        return replies(answer, [method for method, _ in requests], eof=True)

    async def status(self, *headers: str, **options: str | bool | None) -> int:
        [reply] = await self.send([("GET", "/v1/health")], *headers, **options)  # type: ignore[arg-type]
        return reply.status


class Hosts(AuthTestCase):
    def test_the_table_is_worth_its_name(self) -> None:
        self.assertGreaterEqual(len(set(FOREIGN_HOSTS)), 60)
        self.assertGreaterEqual(len(set(FOREIGN_ORIGINS)), 35)
        self.assertGreaterEqual(len(ROUTES), len(TABLE) + 10)

    async def test_a_foreign_host_is_refused_on_every_route_with_and_without_a_token(self) -> None:
        await self.serve()
        for number, host in enumerate(FOREIGN_HOSTS):
            for token, routes in shares(ROUTES, number):
                with self.subTest(host, token=token):
                    found = await self.send(routes, host=host, token=token)
                    self.assertEqual([reply.status for reply in found], [421] * len(routes))
        self.assertEqual(self.executed, 0)

    async def test_the_listeners_own_names_are_served(self) -> None:
        await self.serve()
        for host in OWN_HOSTS:
            self.assertEqual(await self.status(host=host), 200, host)

    async def test_a_malformed_host_is_a_bad_request_and_ends_the_connection(self) -> None:
        await self.serve()
        for hosts in MALFORMED_HOSTS:
            with self.subTest(hosts):
                headers = [f"Host: {host}" for host in hosts]
                good = ("GET", "/v1/health")
                found = await self.send([good, good], *headers, host=None)
                self.assertEqual([reply.status for reply in found], [400])
        self.assertEqual(await self.status(host=""), 421)
        answer = await self.exchange(
            f"GET /v1/health HTTP/1.0\r\nAuthorization: Bearer {self.token}\r\n\r\n".encode()
        )
        self.assertTrue(answer.startswith(b"HTTP/1.1 400"), answer[:40])
        self.assertEqual(self.executed, 0)

    async def test_an_absolute_target_cannot_name_another_host_than_the_header(self) -> None:
        await self.serve()
        for authority, host, status in (
            ("evil.example", "127.0.0.1:PORT", 421),
            ("evil.example", "evil.example", 421),
            ("127.0.0.1:PORT", "evil.example", 421),
            ("127.0.0.1:PORT", "127.0.0.1:PORT", 200),
        ):
            with self.subTest(authority=authority, host=host):
                [reply] = await self.send([("GET", f"http://{authority}/v1/health")], host=host)
                self.assertEqual(reply.status, status)

    async def test_a_unix_socket_takes_any_host(self) -> None:
        daemon = await self.serve()
        for host in ("api.crush.localhost", "localhost", "evil.example", "dummy:1"):
            status = await self.status(host=host, unix=str(daemon.socket), token=False)
            self.assertEqual(status, 200, host)

    async def test_an_allowed_host_is_taken_exactly_and_its_page_is_its_own(self) -> None:
        daemon = Daemon(
            agent=ScriptedAgent(), hosts=["tcp://127.0.0.1:0"], allow_hosts=["proxy.lan:9000"]
        )
        await daemon.start()
        self.addAsyncCleanup(daemon.stop)
        self.port = daemon.addresses[0].port
        self.token = daemon.tokens[self.port].token
        for host, status in (
            ("proxy.lan:9000", 200),
            ("127.0.0.1:PORT", 200),
            ("proxy.lan", 421),
            ("proxy.lan:PORT", 421),
            ("PROXY.lan:9000", 421),
        ):
            self.assertEqual(await self.status(host=host), status, host)
        own = "Origin: http://proxy.lan:9000"
        self.assertEqual(await self.status(own, host="proxy.lan:9000"), 200)
        self.assertEqual(await self.status(own), 403)
        self.assertEqual(await self.status(host="proxy.lan:9000", token=False), 401)


class Origins(AuthTestCase):
    async def test_a_foreign_origin_is_refused_on_every_route_with_and_without_a_token(
        self,
    ) -> None:
        await self.serve()
        for number, origin in enumerate(FOREIGN_ORIGINS):
            header = "Origin: " + origin.replace("HOST", "127.0.0.1:PORT")
            for token, routes in shares(closed_to(header), number):
                with self.subTest(origin, token=token):
                    found = await self.send(routes, header, token=token)
                    self.assertEqual([reply.status for reply in found], [403] * len(routes))
        self.assertEqual(self.executed, 0)

    async def test_the_daemons_own_page_passes(self) -> None:
        await self.serve()
        for host in OWN_HOSTS:
            self.assertEqual(await self.status(f"Origin: http://{host}", host=host), 200)
            self.assertEqual(
                await self.status(f"Origin: http://{host}", host=host, token=False), 401
            )

    async def test_two_origins_are_refused_even_if_both_are_our_own(self) -> None:
        await self.serve()
        own = "Origin: http://127.0.0.1:PORT"
        self.assertEqual(await self.status(own, own), 403)
        self.assertEqual(await self.status(own, "Origin: http://evil.example"), 403)

    async def test_every_origin_is_refused_on_a_unix_socket(self) -> None:
        daemon = await self.serve()
        unix = str(daemon.socket)
        for number, origin in enumerate((*FOREIGN_ORIGINS, "http://HOST")):
            header = "Origin: " + origin.replace("HOST", "localhost")
            [_, (_, routes)] = shares(ROUTES, number)
            with self.subTest(origin):
                found = await self.send(routes, header, host="localhost", token=False, unix=unix)
                self.assertEqual([reply.status for reply in found], [403] * len(routes))
        self.assertEqual(self.executed, 0)

    async def test_a_preflight_gets_no_permission(self) -> None:
        await self.serve()
        [reply] = await self.send(
            [("OPTIONS", "/v1/workspaces")],
            "Origin: http://evil.example",
            "Access-Control-Request-Method: POST",
            "Access-Control-Request-Headers: authorization",
            token=False,
        )
        self.assertEqual(reply.status, 403)

    async def test_a_browser_that_says_who_asks_is_listened_to(self) -> None:
        daemon = await self.serve()
        link = ("Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document")
        for site, more, status in (
            ("same-origin", (), 200),
            ("none", link, 200),
            ("cross-site", link, 200),  # a person followed a link
            ("same-site", link, 200),
            ("cross-site", (), 403),
            ("same-site", (), 403),  # another port of this machine
            ("cross-site", ("Sec-Fetch-Mode: no-cors", "Sec-Fetch-Dest: script"), 403),
            ("cross-site", ("Sec-Fetch-Mode: no-cors", "Sec-Fetch-Dest: image"), 403),
            ("cross-site", ("Sec-Fetch-Mode: cors", "Sec-Fetch-Dest: empty"), 403),
            ("cross-site", ("Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: iframe"), 403),
            ("cross-site", ("Sec-Fetch-Mode: navigate",), 403),
            ("same-origin", ("Sec-Fetch-Site: cross-site",), 403),
            ("CROSS-SITE", (), 403),
            ("whatever", (), 403),
        ):
            with self.subTest(site=site, more=more):
                headers = (f"Sec-Fetch-Site: {site}", *more)
                self.assertEqual(await self.status(*headers), status)
                unix = str(daemon.socket)
                found = await self.status(*headers, host="x", token=False, unix=unix)
                self.assertEqual(found, status)

    async def test_no_link_from_elsewhere_can_change_anything(self) -> None:
        await self.serve("none")
        link = ("Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document")
        changing = [route for route in ROUTES if route[0] not in ("GET", "HEAD")]
        found = await self.send(changing, "Sec-Fetch-Site: cross-site", *link)
        self.assertEqual([reply.status for reply in found], [403] * len(changing))
        self.assertEqual(self.executed, 0)


class Bearer(AuthTestCase):
    async def test_without_a_token_every_route_is_closed_and_none_can_be_told_apart(self) -> None:
        await self.serve()
        closed = [route for route in ROUTES if route not in PUBLIC]
        found = await self.send(closed, token=False)
        self.assertEqual([reply.status for reply in found], [401] * len(closed))
        self.assertEqual({reply.headers["www-authenticate"] for reply in found}, {"Bearer"})
        bodies = {r.body for r, (method, _) in zip(found, closed, strict=True) if method != "HEAD"}
        self.assertEqual(len(bodies), 1)
        self.assertEqual(self.executed, 0)

    async def test_with_the_token_no_route_is_closed(self) -> None:
        await self.serve()
        streams = ("/events",)
        ways_in = ("token", "enter", "hello", "renew")
        refused = [("POST", f"/v1/web/{way}") for way in ways_in]  # for their codes and keys
        served = [r for r in ROUTES if not r[1].endswith(streams) and r not in refused]
        for reply, route in zip(await self.send(served), served, strict=True):
            self.assertNotIn(reply.status, (401, 403, 421), route)

    async def test_only_the_token_itself_as_a_bearer_is_taken(self) -> None:
        await self.serve()
        token = self.token
        for value in (
            f"Bearer {token}",
            f"bearer {token}",
            f"BEARER {token}",
            f"Bearer   {token} ",
        ):
            self.assertEqual(await self.status(f"Authorization: {value}", token=False), 200, value)
        for value in (
            *("", "Bearer", "Bearer ", "Basic", token, f"Basic {token}", f"Token {token}"),
            *(f"Bearer{token}", f"Bearer\t{token}", f"Bearer: {token}", f"Bearer={token}"),
            *(
                f"Bearer {token[:-1]}",
                f"Bearer {token}x",
                f"Bearer {token[1:]}",
                f"Bearer x{token}",
            ),
            *(f"Bearer {token} x", f"Bearer {token},", f"Bearer {token}, Bearer {token}"),
            *(
                f"Bearer {token.swapcase()}",
                f'Bearer "{token}"',
                f"Bearer {token}\xe9",
                "Bearer \xff",
            ),
            *("Bearer null", "Bearer undefined", "Bearer *", "Bearer " + "x" * 8000),
        ):
            with self.subTest(value):
                self.assertEqual(await self.status(f"Authorization: {value}", token=False), 401)
        self.assertEqual(self.executed, 4)

    async def test_two_authorizations_are_refused(self) -> None:
        await self.serve()
        good, bad = f"Authorization: Bearer {self.token}", "Authorization: Bearer x"
        for pair in ((good, good), (good, bad), (bad, good)):
            self.assertEqual(await self.status(*pair, token=False), 401)

    async def test_the_token_opens_nothing_anywhere_but_in_its_header(self) -> None:
        await self.serve()
        for target in (
            f"?token={self.token}",
            f"?access_token={self.token}",
            f"?auth={self.token}",
        ):
            [reply] = await self.send([("GET", "/v1/health" + target)], token=False)
            self.assertEqual(reply.status, 401)
        for header in (
            "Cookie: token=",
            "Cookie: crushlite=",
            "X-Token: ",
            "Proxy-Authorization: Bearer ",
        ):
            self.assertEqual(await self.status(header + self.token, token=False), 401, header)

    async def test_a_token_is_good_for_its_own_port_only(self) -> None:
        daemon = Daemon(agent=ScriptedAgent(), hosts=["tcp://127.0.0.1:0"] * 2)
        await daemon.start()
        self.addAsyncCleanup(daemon.stop)
        first, second = (address.port for address in daemon.addresses)
        for port, token, status in (
            (first, daemon.tokens[first].token, 200),
            (first, daemon.tokens[second].token, 401),
            (second, daemon.tokens[first].token, 401),
            (second, daemon.tokens[second].token, 200),
        ):
            self.port, self.token = port, token
            self.assertEqual(await self.status(), status)

    async def test_one_port_on_both_loopback_addresses_has_one_token(self) -> None:
        port = self.enterContext(reserved_port())
        both = [f"tcp://127.0.0.1:{port}", f"tcp://[::1]:{port}"]
        daemon = Daemon(agent=ScriptedAgent(), hosts=both)
        await daemon.start()
        self.addAsyncCleanup(daemon.stop)
        self.port, self.token = port, daemon.tokens[port].path.read_text().strip()
        self.assertEqual(await self.status(), 200)
        request = f"GET /v1/health HTTP/1.1\r\nHost: [::1]:{port}\r\nConnection: close\r\n"
        async with asyncio.timeout(SECONDS):
            reader, writer = await asyncio.open_connection("::1", port)
            writer.write(f"{request}Authorization: Bearer {self.token}\r\n\r\n".encode())
            answer = await reader.read()
            writer.close()
            await writer.wait_closed()
        self.assertTrue(answer.startswith(b"HTTP/1.1 200"), answer[:60])

    async def test_without_auth_host_and_origin_are_still_checked_on_every_route(self) -> None:
        await self.serve("none")
        self.assertEqual(await self.status(token=False), 200)
        self.assertEqual(self.executed, 1)
        for host, origin, status in (
            ("evil.example:PORT", "", 421),
            ("127.0.0.1", "", 421),
            ("0.0.0.0:PORT", "", 421),
            ("127.0.0.1:PORT", "Origin: http://evil.example", 403),
            ("127.0.0.1:PORT", "Origin: null", 403),
        ):
            headers = [origin] if origin else []
            routes = closed_to(origin)
            found = await self.send(routes, *headers, host=host, token=False)
            self.assertEqual([reply.status for reply in found], [status] * len(routes))
        self.assertEqual(self.executed, 1)

    async def test_a_page_elsewhere_cannot_create_a_workspace_without_a_preflight(self) -> None:
        await self.serve("none")
        body = b'{"path":"/tmp","client_id":"8f14e45f-ceea-467f-9575-0b1c5d2b4b1a"}'
        head = (
            f"POST /v1/workspaces HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n"
            "Origin: http://evil.example\r\nContent-Type: text/plain\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        answer = await self.exchange(head.encode() + body)
        self.assertTrue(answer.startswith(b"HTTP/1.1 403"), answer[:60])
        self.assertEqual(self.daemon.backend.everything(), [])


class Peers(AuthTestCase):
    async def test_another_user_gets_not_one_byte(self) -> None:
        daemon = await self.serve()
        daemon.daemon.server.expected_uid = os.geteuid() + 1
        self.assertEqual(await self._hear(daemon), b"")
        self.assertEqual(self.executed, 0)
        daemon.daemon.server.expected_uid = os.geteuid()
        self.assertTrue((await self._hear(daemon)).startswith(b"HTTP/1.1 200"))

    async def _hear(self, daemon: LocalDaemon) -> bytes:
        heard = b""
        async with asyncio.timeout(SECONDS):
            reader, writer = await asyncio.open_unix_connection(str(daemon.socket))
            try:
                writer.write(b"GET /v1/health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                heard = await reader.read()
            except ConnectionError:
                pass  # the daemon closed the connection while this side was sending
            writer.close()
            try:
                await writer.wait_closed()
            except ConnectionError:
                pass
        return heard

    async def test_a_tcp_peer_is_judged_by_its_token_not_by_its_uid(self) -> None:
        daemon = await self.serve()
        daemon.daemon.server.expected_uid = os.geteuid() + 1
        self.assertEqual(await self.status(), 200)


class Secrecy(AuthTestCase):
    async def test_the_token_is_in_no_log_and_in_no_answer(self) -> None:
        with self.assertLogs("crushlite", logging.DEBUG) as logs:
            daemon = await self.serve()
            heard = []
            served = [route for route in ROUTES if not route[1].endswith("/events")]
            for reply in await self.send(served):
                heard += [repr(reply.headers).encode(), reply.body]
            for host, origin in (("evil", ""), ("127.0.0.1:PORT", "Origin: null")):
                for reply in await self.send(served, *[origin] * bool(origin), host=host):
                    heard += [repr(reply.headers).encode(), reply.body]
            for data in (
                f"Authorization: Bearer {self.token}\r\n\r\n",
                f"{self.token} / HTTP/9\r\n\r\n",
            ):
                heard.append(await self.exchange(data.encode()))
            # An internal error is logged with its traceback: the request's headers are near.
            with mock.patch.object(daemon.backend, "everything", side_effect=RuntimeError("boom")):
                [reply] = await self.send([("GET", "/v1/workspaces")])
            self.assertEqual(reply.status, 500)
            heard.append(reply.body)
        self.assertTrue(any("boom" in line for line in logs.output))
        self.assertNotIn(self.token, "\n".join(logs.output))
        self.assertNotIn(self.token.encode(), b"\n".join(heard))
        self.assertNotIn(self.token, repr(daemon.daemon.server.router))


class Guesses(AuthTestCase):
    async def test_after_many_wrong_tokens_a_peer_must_wait_and_the_right_one_still_passes(
        self,
    ) -> None:
        await self.serve()
        wrong = [await self.status("Authorization: Bearer x", token=False) for _ in range(110)]
        self.assertEqual(wrong[:WRONG_KEYS], [401] * WRONG_KEYS)
        self.assertEqual(wrong[-1], 429)
        self.assertEqual(await self.status(), 200)
        self.assertEqual(await self.status(token=False), 401, "it shows no key at all")
        [reply] = await self.send([("GET", "/v1/health")], "Authorization: Bearer x", token=False)
        self.assertEqual((reply.status, reply.headers["retry-after"]), (429, "1"))
        self.assertIn(b"too_many_attempts", reply.body)

    async def test_another_address_of_the_machine_gives_no_more_attempts(self) -> None:
        self.enterContext(mock.patch.object(auth, "WRONG_KEYS_AGAIN", 3600.0))
        await self.serve()
        for _ in range(WRONG_KEYS):
            self.assertEqual(await self.status("Authorization: Bearer x", token=False), 401)
        self.source = "127.0.0.2"
        self.assertEqual(await self.status("Authorization: Bearer x", token=False), 429)


class WrongKeysTest(unittest.IsolatedAsyncioTestCase):
    async def refused(self, wrong: WrongKeys, port: int = 80) -> bool:
        try:
            wrong.count(Peer("tcp", port))
        except HTTPError as error:
            self.assertEqual(error.status, 429)
            return True
        return False

    async def test_each_port_counts_for_itself_and_time_forgives(self) -> None:
        clock = FakeClock()
        wrong = WrongKeys(clock)
        for _ in range(WRONG_KEYS):
            self.assertFalse(await self.refused(wrong))
        self.assertTrue(await self.refused(wrong))
        self.assertFalse(await self.refused(wrong, port=81))
        await clock.advance(WRONG_KEYS_AGAIN)
        self.assertFalse(await self.refused(wrong))
        self.assertTrue(await self.refused(wrong))
