"""The web console without a browser: its files, who gets them, and the one-time codes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import stat
import sys
import tempfile
import unittest
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock
from urllib.parse import unquote, urlsplit

from crushlite.api.auth import WRONG_KEYS
from crushlite.clock import SystemClock
from crushlite.console.routes import CODE_SECONDS, CODES, Codes
from crushlite.daemon import PORTS
from crushlite.errors import ShuttingDown
from crushlite.features.wire import WebAddress
from crushlite.http.client import HTTPClient, TCPConnector
from crushlite.listen import TokenFile, directory_lock
from crushlite.testing import LocalDaemon
from crushlite.testing.fake_clock import FakeClock
from tests.support.basics import BoundedTestCase
from tests.support.places import PACKAGE, ROOT
from tests.support.ports import reserved_port
from tests.support.routes import TABLE

if TYPE_CHECKING:
    from crushlite.clock import Clock
    from crushlite.http.client import ClientResponse

FOLDER = PACKAGE / "console" / "page"
ENTER = ("POST", "/v1/web/enter")
PROOFS = {("POST", "/v1/web/hello"), ("POST", "/v1/web/renew")}
PUBLIC = {("GET", "/"), ("GET", "/console/{file}"), ("POST", "/v1/web/token"), ENTER} | PROOFS
POLICY = (
    *("default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'"),
    *("worker-src 'self'", "img-src 'self' data:", "base-uri 'none'", "form-action 'none'"),
    "frame-ancestors 'none'",
)


class ConsoleCase(BoundedTestCase):
    async def asyncSetUp(self) -> None:
        folder = self.enterContext(tempfile.TemporaryDirectory(prefix="crushlite-"))
        # Token files go next to the default socket.
        self.enterContext(mock.patch.dict(os.environ, {"XDG_RUNTIME_DIR": folder}))
        self.tokens = Path(folder) / "crushlite"

    async def serve(
        self, *, tcp: bool = True, auth: str = "token", clock: Clock | None = None
    ) -> LocalDaemon:
        daemon = LocalDaemon(tcp=tcp, auth=auth, clock=clock)
        self.daemon = await self.enterAsyncContext(daemon)
        return daemon

    async def ask(
        self,
        method: str,
        target: str,
        *headers: tuple[str, str],
        body: bytes = b"",
        token: str | None = None,
        host: str = "",
    ) -> ClientResponse:
        """One request on TCP, without a token unless one is given, on a connection of its own."""
        given = (("Authorization", f"Bearer {token}"),) if token is not None else ()
        async with HTTPClient(
            TCPConnector("127.0.0.1", self.daemon.port),
            host_header=host or f"127.0.0.1:{self.daemon.port}",
            headers=(*given, *headers),
            clock=SystemClock(),
        ) as http:
            return await http.request(method, target, body=body)

    async def invite(self, **fields: Any) -> WebAddress:
        answer = await self.daemon.call("POST", "/v1/web", fields)
        self.assertEqual((answer.status, answer.json["expires_in"]), (200, CODE_SECONDS))
        self.assertEqual(answer.headers.get("Cache-Control"), "no-store")
        return WebAddress(**answer.json)

    async def exchange(self, code: str) -> ClientResponse:
        return await self.ask("POST", "/v1/web/token", body=b'{"code":"%s"}' % code.encode())


class Files(ConsoleCase):
    async def test_every_file_is_served_with_its_type_and_a_strict_policy(self) -> None:
        await self.serve()
        kinds = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
        names = [path.name for path in FOLDER.iterdir()]
        self.assertIn("index.html", names)
        for target, name in [("/", "index.html"), *((f"/console/{n}", n) for n in names)]:
            with self.subTest(target):
                found = await self.ask("GET", target)
                self.assertEqual(found.status, 200)
                self.assertEqual(found.body, (FOLDER / name).read_bytes())
                kind = kinds.get(Path(name).suffix, "image/svg+xml")
                self.assertTrue((found.headers.get("Content-Type") or "").startswith(kind))
                policy = (found.headers.get("Content-Security-Policy") or "").split("; ")
                self.assertLessEqual(set(POLICY), set(policy))
                self.assertNotIn("unsafe", " ".join(policy))
                for header, value in (
                    ("X-Content-Type-Options", "nosniff"),
                    ("Referrer-Policy", "no-referrer"),
                    ("Cross-Origin-Opener-Policy", "same-origin"),
                    ("Cross-Origin-Resource-Policy", "same-origin"),
                    ("Cache-Control", "no-cache"),
                ):
                    self.assertEqual(found.headers.get(header), value)
                self.assertNotIn("Set-Cookie", found.headers)

    async def test_a_browser_that_has_a_file_already_does_not_get_it_again(self) -> None:
        await self.serve()
        first = await self.ask("GET", "/console/main.js")
        tag = first.headers.get("ETag") or ""
        again = await self.ask("GET", "/console/main.js", ("If-None-Match", tag))
        self.assertEqual((again.status, again.body), (304, b""))
        other = await self.ask("GET", "/console/workspace.js", ("If-None-Match", tag))
        self.assertEqual(other.status, 200)
        old = '"0123456789abcdef"'
        for known, status in (
            ([f"W/{tag}"], 304),
            (["*"], 304),
            ([f"{old}, {tag}"], 304),
            ([f'{old},W/"x" ,W/{tag},'], 304),
            ([old, tag], 304),
            ([old], 200),
            ([f"{old}, W/{old}"], 200),
            ([f"w/{tag}"], 200),
            ([tag.strip('"')], 200),
            ([f'{tag[:-2]}"'], 200),
            ([""], 200),
        ):
            with self.subTest(known):
                lines = [("If-None-Match", line) for line in known]
                again = await self.ask("GET", "/console/main.js", *lines)
                self.assertEqual((again.status, bool(again.body)), (status, status == 200))
                self.assertEqual(again.headers.get("ETag"), tag)
        head = await self.ask("HEAD", "/console/main.js")
        self.assertEqual((head.status, head.body, head.headers.get("ETag")), (200, b"", tag))

    async def test_nothing_but_the_files_of_the_page_is_served(self) -> None:
        await self.serve()
        for name in (
            *("nope.js", "", "..", ".", "..%2Fapi%2Fauth.py", "%2e%2e%2fversion.py", "main.js%00"),
            *("main.js/", "./main.js", "../console/main.js", "MAIN.JS", "%2Fetc%2Fpasswd"),
        ):
            with self.subTest(name):
                found = await self.ask("GET", f"/console/{name}")
                self.assertIn(found.status, (400, 401, 404), name)
                self.assertNotIn(b"import", found.body)

    async def test_on_a_unix_socket_there_is_no_page(self) -> None:
        await self.serve()
        for target in ("/", "/console/main.js", "/console/index.html"):
            answer = await self.daemon.call("GET", target)
            self.assertEqual((answer.status, answer.json["code"]), (404, "route_not_found"))

    def test_the_page_needs_nothing_that_its_policy_forbids(self) -> None:
        html = (FOLDER / "index.html").read_text()
        self.assertNotRegex(
            html, r"(?i)<style|\sstyle=|\son\w+=|javascript:|<script(?![^>]*\ssrc=)"
        )
        for address in re.findall(r'(?:src|href)="([^"#]+)"', html):
            self.assertTrue((FOLDER / address.removeprefix("/console/")).is_file(), address)
        for path in FOLDER.iterdir():
            with self.subTest(path.name):
                text = path.read_text().replace("http://www.w3.org/2000/svg", "")
                self.assertNotRegex(text, r"https?://|@import|url\(")

    def test_no_script_makes_markup_or_code_from_text(self) -> None:
        words = r"innerHTML|outerHTML|insertAdjacent|document\.write|DOMParser|createContextual"
        words += r"|\beval\b|new Function|srcdoc|document\.cookie|EventSource"
        for path in FOLDER.glob("*.js"):
            with self.subTest(path.name):
                self.assertNotRegex(path.read_text(), words)

    def test_every_import_of_a_script_is_a_file_of_the_page(self) -> None:
        found = 0
        for path in FOLDER.glob("*.js"):
            for name in re.findall(r'from "\./([^"]+)"', path.read_text()):
                self.assertTrue((FOLDER / name).is_file(), f"{path.name}: {name}")
                found += 1
        self.assertGreater(found, 10)

    def test_no_object_of_a_script_puts_a_value_in_the_place_of_its_method(self) -> None:
        classes = 0
        for script in FOLDER.glob("*.js"):
            for found in re.finditer(r"^(?:export )?class .*?^}", script.read_text(), re.M | re.S):
                methods = set(re.findall(r"^  (?:async )?(\w+)\(.*\) \{$", found[0], re.M))
                fields = set(re.findall(r"\bthis\.(\w+) =(?!=)", found[0]))
                self.assertEqual(methods & fields, set(), script.name)
                classes += bool(methods and fields)
        self.assertGreater(classes, 8)


class Public(ConsoleCase):
    def test_exactly_the_page_and_the_exchange_are_marked_public(self) -> None:
        self.assertEqual({(e.method, e.pattern) for e in TABLE if e.public}, PUBLIC)

    async def test_without_a_token_nothing_else_is_open(self) -> None:
        await self.serve()
        http = self.daemon.connect(tcp=True)
        for entry in TABLE:
            target = re.sub(r"\{\w+\}", "x", entry.pattern)
            is_public = (entry.method, entry.pattern) in PUBLIC
            for method in sorted({entry.method, "GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"}):
                own = {"HEAD": "GET"}.get(method, method) == entry.method
                status = (await http.request(method, target, body=b"{}")).status
                if is_public and own:
                    self.assertIn(status, (200, 403, 404), (method, target))
                elif not any(target == t and method in m for t, m in OPEN_BESIDES):
                    self.assertEqual(status, 401, (method, target))

    async def test_host_and_origin_are_checked_on_public_routes_too(self) -> None:
        await self.serve()
        own = f"http://127.0.0.1:{self.daemon.port}"
        link = (("Sec-Fetch-Mode", "navigate"), ("Sec-Fetch-Dest", "document"))
        script = (("Sec-Fetch-Mode", "no-cors"), ("Sec-Fetch-Dest", "script"))
        for method, target in (
            ("GET", "/"),
            ("GET", "/console/main.js"),
            ("POST", "/v1/web/token"),
            *PROOFS,
            ENTER,
        ):
            with self.subTest(target):
                good = 403 if method == "POST" else 200  # for its code
                code = b'{"code":"x"}' if method == "POST" else b""
                for headers, status, words in (
                    ((), good, "bad_code"),
                    ((("Origin", own),), good, "bad_code"),
                    ((("Origin", "http://evil.example"),), 403, "foreign_origin"),
                    (
                        (("Origin", "null"),),
                        403,
                        "foreign_origin" if target != ENTER[1] else "code",
                    ),
                    ((("Sec-Fetch-Site", "cross-site"), *script), 403, "foreign_origin"),
                    ((("Sec-Fetch-Site", "same-site"), *script), 403, "foreign_origin"),
                ):
                    found = await self.ask(method, target, *headers, body=code)
                    self.assertEqual(found.status, status, headers)
                    if status == 403:
                        self.assertIn(words.encode(), found.body)
                foreign = await self.ask(method, target, body=code, host="evil.example")
                self.assertEqual(foreign.status, 421)
        followed = await self.ask("GET", "/", ("Sec-Fetch-Site", "cross-site"), *link)
        self.assertEqual(followed.status, 200)


# A path with a public route for one method, and one that requires a token for another.
OPEN_BESIDES = (
    ("/", ("GET", "HEAD")),
    ("/console/x", ("GET", "HEAD")),
    ("/v1/web/token", ("POST",)),
    ("/v1/web/enter", ("POST",)),
    ("/v1/web/hello", ("POST",)),
    ("/v1/web/renew", ("POST",)),
)


class Exchanges(ConsoleCase):
    async def test_a_code_is_good_for_the_token_of_its_port_once(self) -> None:
        await self.serve()
        invited = await self.invite()
        self.assertEqual(invited.url, f"http://127.0.0.1:{self.daemon.port}/")
        first = await self.exchange(invited.code)
        self.assertEqual(first.status, 200, first.body)
        self.assertEqual(first.headers.get("Cache-Control"), "no-store")
        token = self.daemon.daemon.tokens[self.daemon.port].token
        self.assertEqual(first.body.strip(), b'{"token":"%s"}' % token.encode())
        self.assertEqual((await self.ask("GET", "/v1/workspaces", token=token)).status, 200)
        again = await self.exchange(invited.code)
        self.assertEqual(again.status, 403)
        self.assertIn(b"crushlite web", again.body)
        self.assertNotIn(token.encode(), again.body)

    async def test_a_code_that_was_not_issued_is_refused(self) -> None:
        await self.serve()
        code = (await self.invite()).code
        for wrong in ("", "x", code[:-1], code + "x", code.swapcase(), "\\ud83d\\ude00"):
            self.assertEqual((await self.exchange(wrong)).status, 403, wrong)
        self.assertEqual((await self.exchange(code)).status, 200)

    async def test_after_many_wrong_codes_a_peer_must_wait_and_the_right_one_still_passes(
        self,
    ) -> None:
        await self.serve()
        code = (await self.invite()).code
        wrong = [(await self.exchange("x")).status for _ in range(WRONG_KEYS + 10)]
        self.assertEqual(wrong[:WRONG_KEYS], [403] * WRONG_KEYS)
        self.assertEqual(wrong[-1], 429)
        entered = await self.ask(*ENTER, body=b'{"code":"x"}')
        self.assertEqual(entered.status, 429)
        self.assertEqual((await self.exchange(code)).status, 200)

    async def test_a_code_expires(self) -> None:
        clock = FakeClock()
        await self.serve(clock=clock)
        late, early = (await self.invite()).code, (await self.invite()).code
        await clock.advance(CODE_SECONDS - 0.1)
        self.assertEqual((await self.exchange(early)).status, 200)
        await clock.advance(0.1)
        self.assertEqual((await self.exchange(late)).status, 403)

    async def test_a_code_is_of_no_use_at_another_port_or_on_a_unix_socket(self) -> None:
        await self.serve()
        first = self.daemon.port
        code = (await self.invite(port=first)).code
        other = await self.invite(port=self.enterContext(reserved_port()))
        self.assertNotEqual(urlsplit(other.url).port, first)
        self.assertEqual(self.daemon.port, urlsplit(other.url).port)  # the newest is asked
        self.assertEqual((await self.exchange(code)).status, 403)
        answer = await self.daemon.call("POST", "/v1/web/token", {"code": code})
        self.assertEqual((answer.status, answer.json["code"]), (403, "bad_code"))

    async def test_without_tokens_the_exchange_gives_none(self) -> None:
        await self.serve(auth="none")
        found = await self.exchange((await self.invite()).code)
        self.assertEqual((found.status, found.body.strip()), (200, b'{"token":""}'))
        self.assertEqual((await self.ask("GET", "/v1/workspaces")).status, 200)

    async def test_an_invitation_needs_a_token_itself(self) -> None:
        await self.serve()
        self.assertEqual((await self.ask("POST", "/v1/web")).status, 401)
        token = self.daemon.daemon.tokens[self.daemon.port].token
        self.assertEqual((await self.ask("POST", "/v1/web", token=token)).status, 200)


class PrivateFile(ConsoleCase):
    """The way in for a browser that the command has started."""

    FORM = (("Origin", "null"), ("Content-Type", "text/plain"))
    PAGE = (("Sec-Fetch-Mode", "navigate"), ("Sec-Fetch-Dest", "document"))

    async def post(self, code: str, *headers: tuple[str, str]) -> ClientResponse:
        body = b'{"code":"%s","form":"="}\r\n' % code.encode()  # as a browser sends the form
        return await self.ask("POST", ENTER[1], *self.FORM, *headers, body=body)

    async def test_its_form_lets_one_page_load_in_and_the_file_is_gone(self) -> None:
        await self.serve()
        invited = await self.invite(path="/some/<b>&\"'/place")
        page = Path(invited.page)
        self.assertIn(f'action="{invited.url}v1/web/enter"', page.read_text())
        self.assertEqual(code_in(page), invited.code)
        site = ("Sec-Fetch-Site", "cross-site")
        answer = await self.post(invited.code, site, *self.PAGE)
        self.assertEqual(answer.status, 200)
        self.assertFalse(page.exists())
        token = self.daemon.daemon.tokens[self.daemon.port].token
        self.assertIn(f'content="{token}"'.encode(), answer.body)
        self.assertIn(b'content="/some/&lt;b&gt;&amp;&quot;&#x27;/place"', answer.body)
        for header, value in (
            ("Cache-Control", "no-store"),
            ("Referrer-Policy", "no-referrer"),
            ("Cross-Origin-Opener-Policy", "same-origin"),
        ):
            self.assertEqual(answer.headers.get_all(header), [value])
        self.assertIn("default-src 'none'", answer.headers.get("Content-Security-Policy") or "")
        self.assertEqual((await self.post(invited.code, site, *self.PAGE)).status, 403)

    async def test_what_is_no_page_load_of_a_file_is_refused_with_a_good_code(self) -> None:
        await self.serve()
        code = (await self.invite()).code
        for headers in (
            (("Sec-Fetch-Mode", "cors"), ("Sec-Fetch-Dest", "empty")),
            (("Sec-Fetch-Mode", "no-cors"), ("Sec-Fetch-Dest", "empty")),
            (("Sec-Fetch-Mode", "navigate"), ("Sec-Fetch-Dest", "iframe")),
            (("Origin", "http://evil.example"),),
        ):
            self.assertEqual((await self.post(code, *headers)).status, 403, headers)
        body = b'{"code":"%s"}' % code.encode()
        for target in ("/v1/web/token", "/v1/web"):
            refused = await self.ask("POST", target, *self.FORM, *self.PAGE, body=body)
            self.assertEqual(refused.status, 403)
        self.assertEqual((await self.post(code, *self.PAGE)).status, 200)

    async def test_it_is_gone_when_its_code_has_expired_or_gave_way(self) -> None:
        clock = FakeClock()
        await self.serve(clock=clock)
        pages = [Path((await self.invite()).page) for _ in range(CODES + 1)]
        self.assertEqual([page.exists() for page in pages], [False] + [True] * CODES)
        await clock.advance(CODE_SECONDS)
        self.assertFalse(any(page.exists() for page in pages))

    async def test_what_a_killed_daemon_left_is_removed_by_the_next(self) -> None:
        await self.serve()
        await self.invite()
        old, other = self.tokens / "console-old.html", self.tokens / "console-new.html"
        for page in (old, other):
            page.touch()
        os.utime(old, (1, 1))
        await self.invite()
        self.assertEqual((old.exists(), other.exists()), (False, True))

    async def test_a_directory_that_is_open_to_others_gets_no_code(self) -> None:
        await self.serve()
        self.tokens.chmod(0o755)
        answer = await self.daemon.call("POST", "/v1/web")
        self.assertEqual((answer.status, answer.json["code"]), (409, "conflict"))
        self.assertEqual(list(self.tokens.glob("console-*")), [])


class CodesTest(unittest.TestCase):
    def test_codes_are_long_and_only_so_many_are_outstanding(self) -> None:
        codes = Codes(FakeClock())
        made = [codes.issue(1) for _ in range(CODES + 1)]
        self.assertEqual(len(set(made)), len(made))
        self.assertGreaterEqual(min(len(code) for code in made) * 6, 128)  # bits
        self.assertIsNone(codes.redeem(made[0], 1))
        self.assertEqual({codes.redeem(code, 1) for code in made[1:]}, {""})

    def test_a_code_tried_at_the_wrong_port_is_still_good_at_its_own(self) -> None:
        codes = Codes(FakeClock())
        code = codes.issue(1, "/a")
        self.assertIsNone(codes.redeem(code, 2))
        self.assertEqual(codes.redeem(code, 1), "/a")
        self.assertIsNone(codes.redeem(code, 1))


class Ports(ConsoleCase):
    async def test_a_daemon_without_a_port_opens_one_and_keeps_to_it(self) -> None:
        daemon = await self.serve(tcp=False)
        invited = await asyncio.gather(*(self.invite() for _ in range(8)))
        ports = {urlsplit(each.url).port for each in invited}
        self.assertEqual(len(ports), 1)
        [port] = ports
        file = self.tokens / f"tcp-{port}.token"
        self.assertEqual(stat.S_IMODE(file.stat().st_mode), 0o600)
        self.assertEqual((await self.ask("GET", "/v1/health")).status, 401)
        token = file.read_text().strip()
        self.assertEqual((await self.ask("GET", "/v1/health", token=token)).status, 200)
        self.assertEqual((await self.exchange(invited[3].code)).status, 200)
        await daemon.daemon.stop()
        self.assertFalse(file.exists())

    async def test_the_token_that_a_killed_daemon_left_for_a_port_opens_nothing(self) -> None:
        runtime = self.enterContext(tempfile.TemporaryDirectory(prefix="crushlite-"))
        self.enterContext(mock.patch.dict(os.environ, {"XDG_RUNTIME_DIR": runtime}))
        port = self.enterContext(reserved_port())
        folder = Path(runtime) / "crushlite"
        folder.mkdir(mode=0o700)
        left = TokenFile(folder, port)
        await self.serve(tcp=False)
        answer = await self.daemon.call("POST", "/v1/web", {"port": port})
        self.assertEqual(urlsplit(answer.json["url"]).port, port)
        self.assertNotEqual(self.daemon.daemon.token_of(port), left.token)
        self.assertEqual((await self.ask("GET", "/v1/health", token=left.token)).status, 401)

    async def test_a_port_that_is_taken_is_a_conflict_that_says_so(self) -> None:
        await self.serve(tcp=False)
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            answer = await self.daemon.call("POST", "/v1/web", {"port": port})
        self.assertEqual((answer.status, answer.json["code"]), (409, "conflict"))
        self.assertIn(str(port), answer.json["message"])
        self.assertEqual((await self.daemon.call("GET", "/v1/health")).status, 200)

    async def test_a_port_out_of_range_is_a_bad_request(self) -> None:
        await self.serve(tcp=False)
        for port in (-1, 65536):
            answer = await self.daemon.call("POST", "/v1/web", {"port": port})
            self.assertEqual((answer.status, answer.json["code"]), (400, "bad_request"))

    async def test_only_so_many_ports_are_opened(self) -> None:
        await self.serve(tcp=False)
        for _ in range(PORTS - 1):
            await self.invite(port=self.enterContext(reserved_port()))
        answer = await self.daemon.call(
            "POST", "/v1/web", {"port": self.enterContext(reserved_port())}
        )
        self.assertEqual(answer.status, 409)

    async def test_a_daemon_that_leaves_meanwhile_opens_nothing(self) -> None:
        daemon = await self.serve(tcp=False)
        self.tokens.mkdir(mode=0o700)
        self.enterContext(mock.patch("crushlite.listen.LOCK_SECONDS", 60.0))
        with directory_lock(self.tokens):  # as a daemon does that starts at the same time
            opening = asyncio.create_task(daemon.daemon.loopback(0))
            await asyncio.sleep(0)
            await daemon.daemon.stop()
            self.assertFalse(opening.done())
        with self.assertRaises(ShuttingDown):
            await opening
        self.assertEqual([a.port for a in daemon.daemon.addresses if a.port], [])
        self.assertEqual(list(self.tokens.glob("*.token")), [])


def code_in(page: Path) -> str:
    """The code that a private file posts."""
    [code] = re.findall(r'"code":"([^"]+)"', page.read_text())
    return str(code)


class Command(ConsoleCase):
    async def run_web(self, *arguments: str, **variables: str) -> tuple[int, str, str]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "crushlite", "web"),
            *(f"--host=unix://{self.daemon.socket}", *arguments),
            cwd=self.daemon.root / "project",
            env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        return process.returncode or 0, out.decode(), err.decode()

    async def test_the_browser_gets_a_private_file_and_no_argument_holds_the_code(self) -> None:
        await self.serve(tcp=False)
        seen = self.daemon.root / "seen"
        browser = self.daemon.root / "browser"
        browser.write_text(f'#!/bin/sh\ntr "\\0" "\\n" < /proc/$$/cmdline > {seen}\n')
        browser.chmod(0o700)
        code, out, err = await self.run_web(BROWSER=f"{browser} %s")
        self.assertEqual((code, err), (0, ""))
        [page] = self.tokens.glob("console-*.html")
        self.assertEqual(out, f"{page.as_uri()}\n")
        secret = code_in(page)
        arguments = seen.read_text()
        self.assertIn(out, arguments)
        self.assertNotIn(secret, arguments)
        self.assertEqual(stat.S_IMODE(page.stat().st_mode), 0o600)
        self.assertEqual(stat.S_IMODE(page.parent.stat().st_mode), 0o700)
        project = os.path.realpath(self.daemon.root / "project")
        answer = await self.exchange(secret)
        self.assertEqual((answer.status, json.loads(answer.body)["path"]), (200, project))
        self.assertFalse(page.exists(), "it goes with its code")
        # The workspace waits for the page.
        listed = await self.daemon.call("GET", "/v1/workspaces")
        self.assertEqual([each["path"] for each in listed.json], [project])

    async def test_no_open_opens_nothing_and_json_is_for_programs(self) -> None:
        await self.serve(tcp=False)
        seen = self.daemon.root / "seen"
        code, out, _ = await self.run_web("--no-open", "--json", BROWSER=f"touch {seen} #%s")
        self.assertEqual(code, 0)
        given = json.loads(out)
        self.assertEqual(list(given), ["url", "code", "page", "expires_in"])
        self.assertEqual(given["code"], code_in(Path(given["page"])))
        self.assertNotIn(given["code"], given["url"])
        self.assertFalse(seen.exists())


class Served(BoundedTestCase):
    """`serve --web`."""

    async def test_it_says_what_to_open_and_that_lets_in(self) -> None:
        runtime = self.enterContext(tempfile.TemporaryDirectory(prefix="crushlite-"))
        daemon = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "crushlite", "serve", "--agent", "offline", "--web"),
            cwd=ROOT,
            env={**os.environ, "XDG_RUNTIME_DIR": runtime, "HOME": runtime},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert daemon.stdout is not None
        try:
            said = [(await daemon.stdout.readline()).decode().strip() for _ in range(8)]
            self.assertEqual(said[1], f"unix://{runtime}/crushlite/crushlite.sock")
            self.assertIn("Open this in a browser", said[3])
            page = Path(unquote(urlsplit(said[4]).path))
            code = code_in(page)
            self.assertNotIn(code, "".join(said))
            port = int(re.findall(r"tcp://127\.0\.0\.1:(\d+)", said[2])[0])
            async with HTTPClient(
                TCPConnector("127.0.0.1", port),
                host_header=f"127.0.0.1:{port}",
                clock=SystemClock(),
            ) as http:
                shown = await http.request("GET", "/")
                self.assertEqual((shown.status, shown.body[:15]), (200, b"<!doctype html>"))
                body = json.dumps({"code": code}).encode()
                answer = await http.request("POST", "/v1/web/token", body=body)
            token = (Path(runtime) / f"crushlite/tcp-{port}.token").read_text().strip()
            self.assertEqual(json.loads(answer.body), {"token": token, "path": str(ROOT)})
            self.assertTrue(said[6].endswith(" run hello"))
        finally:
            daemon.send_signal(signal.SIGTERM)
            await daemon.communicate()
        self.assertEqual(daemon.returncode, 0)
