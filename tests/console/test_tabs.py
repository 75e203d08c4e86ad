"""How a page finds back to the next daemon at its port, and who gets the new token."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import stat
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from crushlite.clock import SystemClock
from crushlite.console.routes import CODE_SECONDS
from crushlite.console.tabs import CHALLENGE_SECONDS, TAB_SECONDS, TABS, Tabs
from crushlite.console.wing import ConsoleWing
from crushlite.daemon import Daemon
from crushlite.http.client import HTTPClient, TCPConnector
from crushlite.listen import default_socket
from crushlite.offline.agent import OfflineAgent
from crushlite.testing.fake_clock import FakeClock
from crushlite.wings import standard_wings
from tests.console.test_console import ConsoleCase
from tests.support.ports import reserved_port

if TYPE_CHECKING:
    from crushlite.http.client import ClientResponse

NONCE = "n" * 22


def proof(key: bytes, who: str, host: str, name: str, other: str, nonce: str = NONCE) -> str:
    words = "\n".join((who, host, name, nonce, other))
    return hmac.new(key, words.encode(), hashlib.sha256).hexdigest()


class TabCase(ConsoleCase):
    """Talks to whatever listens at `port`."""

    port = 0

    async def send(
        self, path: str, body: Any = None, *, token: str | None = None, host: str = ""
    ) -> ClientResponse:
        given = (("Authorization", f"Bearer {token}"),) if token is not None else ()
        async with HTTPClient(
            TCPConnector("127.0.0.1", self.port),
            host_header=host or self.host,
            headers=given,
            clock=SystemClock(),
        ) as http:
            return await http.request("POST", path, body=json.dumps(body or {}).encode())

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def paired(self, **options: Any) -> tuple[str, bytes]:
        """Serve, and get a key for a page."""
        await self.serve(**options)
        self.port = self.daemon.port
        token = self.daemon.daemon.token_of(self.port)
        answer = await self.send("/v1/web/tab", token=token)
        self.assertEqual(answer.status, 200, answer.body)
        self.assertEqual(answer.headers.get("Cache-Control"), "no-store")
        tab = json.loads(answer.body)
        return tab["id"], tab["key"].encode()

    async def hello(self, name: str, **options: Any) -> Any:
        answer = await self.send("/v1/web/hello", {"id": name, "nonce": NONCE}, **options)
        return json.loads(answer.body) if answer.status == 200 else answer.status

    async def renew(self, name: str, given: str, **options: Any) -> Any:
        answer = await self.send("/v1/web/renew", {"id": name, "proof": given}, **options)
        return json.loads(answer.body) if answer.status == 200 else answer.status


class Proofs(TabCase):
    async def test_both_sides_prove_the_key_and_the_page_gets_the_token(self) -> None:
        name, key = await self.paired()
        made = await self.hello(name)
        self.assertEqual(made["proof"], proof(key, "daemon", self.host, name, made["nonce"]))
        given = proof(key, "page", self.host, name, made["nonce"])
        token = self.daemon.daemon.token_of(self.port)
        self.assertEqual(await self.renew(name, given), {"token": token})
        # A second time the same proof is worthless: so is whatever was overheard.
        self.assertEqual(await self.renew(name, given), 403)
        again = await self.hello(name)
        self.assertNotEqual(again["nonce"], made["nonce"])
        self.assertEqual(await self.renew(name, given), 403)

    async def test_what_does_not_prove_the_key_gets_nothing(self) -> None:
        name, key = await self.paired()
        self.assertEqual(await self.hello("unknown" * 4), 403)
        for nonce in ("", "short", "x" * 65, "with\nlines" * 3):
            answer = await self.send("/v1/web/hello", {"id": name, "nonce": nonce})
            self.assertEqual(answer.status, 400, nonce)
        other = f"127.0.0.1:{self.port + 1}"
        for number in range(6):
            nonce = (await self.hello(name))["nonce"]
            wrong = (
                "",
                proof(b"other", "page", self.host, name, nonce),
                proof(key, "daemon", self.host, name, nonce),  # the daemon's own, sent back
                proof(key, "page", other, name, nonce),
                proof(key, "page", self.host, name, nonce, "m" * 22),
                proof(key, "page", self.host, name, "m" * 32),
            )
            self.assertEqual(await self.renew(name, wrong[number]), 403, number)

    async def test_a_key_counts_only_where_the_page_was_loaded_from(self) -> None:
        """What a stranger at another port passes on is not valid here."""
        name, _ = await self.paired()
        self.assertEqual(await self.hello(name, host=f"localhost:{self.port}"), 403)
        other = await self.invite(port=self.enterContext(reserved_port()))
        self.port = urlsplit(other.url).port or 0
        self.assertEqual(await self.hello(name), 403)

    async def test_a_challenge_and_a_key_expire(self) -> None:
        clock = FakeClock()
        name, key = await self.paired(clock=clock)
        made = await self.hello(name)
        await clock.advance(CHALLENGE_SECONDS)
        given = proof(key, "page", self.host, name, made["nonce"])
        self.assertEqual(await self.renew(name, given), 403)
        self.assertIsInstance(await self.hello(name), dict)
        await clock.advance(TAB_SECONDS)
        self.assertEqual(await self.hello(name), 403)

    async def test_a_code_is_proven_without_being_sent_and_used_up(self) -> None:
        clock = FakeClock()
        await self.serve(clock=clock)
        self.port = self.daemon.port
        for late in (False, True):
            code = (await self.invite(path="/p")).code
            key = hashlib.sha256(code.encode()).digest()
            name = hashlib.sha256(key).hexdigest()[:32]
            made = await self.hello(name)
            self.assertEqual(made["proof"], proof(key, "daemon", self.host, name, made["nonce"]))
            given = proof(key, "page", self.host, name, made["nonce"])
            if late:
                await clock.advance(CODE_SECONDS)
                self.assertEqual(await self.renew(name, given), 403)
                continue
            self.assertEqual((await self.renew(name, given))["path"], "/p")
            self.assertEqual((await self.exchange(code)).status, 403)
            self.assertEqual(await self.hello(name), 403)

    async def test_a_key_needs_the_token_and_is_kept_where_only_its_owner_reads(self) -> None:
        _, key = await self.paired()
        self.assertEqual((await self.send("/v1/web/tab")).status, 401)
        self.assertEqual((await self.daemon.call("POST", "/v1/web/tab")).status, 400)
        file = self.tokens / f"tabs-{self.port}.json"
        self.assertEqual(stat.S_IMODE(file.stat().st_mode), 0o600)
        self.assertIn(key.decode(), file.read_text())
        self.tokens.chmod(0o755)
        token = self.daemon.daemon.token_of(self.port)
        self.assertEqual((await self.send("/v1/web/tab", token=token)).status, 409)
        self.tokens.chmod(0o700)

    async def test_only_so_many_keys_are_kept_and_a_damaged_file_holds_none(self) -> None:
        clock = FakeClock()
        tabs = Tabs(clock)
        names = []
        for _ in range(TABS + 1):
            names.append(tabs.add(1, "h")[0])
            await clock.advance(1)
        again = Tabs(clock)
        self.assertIsNone(again.key(1, "h", names[0]))
        self.assertTrue(all(again.key(1, "h", name) for name in names[1:]))
        for text in ("", "[1]", '{"a": 1}', '{"a": {"key": "k", "host": "h", "used": "x"}}'):
            (self.tokens / "tabs-1.json").write_text(text)
            self.assertEqual(Tabs(clock).ports(), [])


class Reopened(TabCase):
    """The daemon of the default socket opens the ports again at which tabs wait."""

    async def start(self, **options: Any) -> Daemon:
        url = f"unix://{default_socket()}"
        daemon = Daemon(agent=OfflineAgent(pace=0), hosts=[url], **options)
        return await self.enterAsyncContext(daemon)

    async def test_after_a_restart_the_port_is_kept_and_the_tab_gets_the_new_token(self) -> None:
        first = await self.start()
        _, self.port = await first.loopback(self.enterContext(reserved_port()))
        through = "localhost:5000"  # as behind ssh -L
        first.allow_host(through)
        known = []
        for host in (self.host, through):
            token = first.token_of(self.port)
            known.append(json.loads((await self.send("/v1/web/tab", token=token, host=host)).body))
        await first.stop()
        second = await self.start()
        self.assertEqual([each.port for each in second.addresses], [0, self.port])
        self.assertNotEqual(second.token_of(self.port), first.token_of(self.port))
        for tab, host in zip(known, (self.host, through), strict=True):
            made = await self.hello(tab["id"], host=host)
            given = proof(tab["key"].encode(), "page", host, tab["id"], made["nonce"])
            renewed = await self.renew(tab["id"], given, host=host)
            self.assertEqual(renewed["token"], second.token_of(self.port))

    async def test_it_opens_nothing_without_tokens_nor_for_a_daemon_elsewhere(self) -> None:
        first = await self.start()
        _, self.port = await first.loopback(self.enterContext(reserved_port()))
        await self.send("/v1/web/tab", token=first.token_of(self.port))
        await first.stop()
        second = await self.start(auth="none")
        self.assertEqual([each.port for each in second.addresses], [0])
        await second.stop()
        other = Daemon(agent=OfflineAgent(), hosts=[f"unix://{self.tokens}/other.sock"])
        async with other:
            self.assertEqual([each.port for each in other.addresses], [0])

    async def test_a_port_that_somebody_else_has_taken_is_left_to_them(self) -> None:
        first = await self.start()
        _, self.port = await first.loopback(self.enterContext(reserved_port()))
        await self.send("/v1/web/tab", token=first.token_of(self.port))
        await first.stop()
        wings = [
            ConsoleWing(listens=True) if isinstance(wing, ConsoleWing) else wing
            for wing in standard_wings()
        ]
        with (
            socket.create_server(("127.0.0.1", self.port)),
            self.assertLogs("crushlite.console.wing", "WARNING") as logged,
        ):
            second = await self.start(wings=wings)
        self.assertIn(str(self.port), logged.output[0])
        [_, other] = second.addresses
        self.assertNotIn(other.port, (0, self.port))


class Tunnel(TabCase):
    async def test_a_host_that_is_allowed_is_served_and_others_are_told_how(self) -> None:
        await self.serve()
        self.port = self.daemon.port
        refused = await self.send("/v1/web/token", {"code": "x"}, host="localhost:5000")
        self.assertEqual(refused.status, 421)
        self.assertIn(b"crushlite web --allow-host", refused.body)
        invited = await self.invite(allow_host="localhost:5000")
        self.assertEqual(invited.url, "http://localhost:5000/")
        body = {"code": invited.code}
        answer = await self.send("/v1/web/token", body, host="localhost:5000")
        self.assertEqual(answer.status, 200)
        for wrong in ("localhost", "a b:5000", "x:", "http://localhost:5000", "e\r\nx:1"):
            body = {"allow_host": wrong}
            self.assertEqual((await self.daemon.call("POST", "/v1/web", body)).status, 400, wrong)
        statuses = {
            (await self.daemon.call("POST", "/v1/web", {"allow_host": f"h{n}:1"})).status
            for n in range(70)
        }
        self.assertEqual(statuses, {200, 409})
