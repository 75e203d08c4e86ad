"""fetch and download against a small server, and pages as text."""

from __future__ import annotations

import asyncio
import gzip
import os
import time
import unittest
import zlib
from typing import Any
from unittest import mock

from crushlite.agent.base import Verdict
from crushlite.coder.tools import download, web
from crushlite.coder.tools.markup import markdown, plain_text
from crushlite.http.messages import Headers
from tests.support.tools import Asked, ToolTestCase

PAGE = """<!DOCTYPE html><html><head><title>The &lt;title&gt;</title>
<style>p { color: red }</style><script>if (a < b) { document.write("<p>no</p>") }</script></head>
<body><h1>One &amp; <b>two</b></h1><p>A  <a href="/x?a=1&amp;b=2">link</a>, <em>more</em><br>below.
<ul><li>first<li>second<ul><li>inner</ul></ul><ol><li>a</li><li>b</li></ol>
<pre>x = 1
  y</pre><table><tr><th>k<td>v</table><!-- hidden --> 1 < 2 <hr><a>bare</a> <i>x</i></body>"""


class MarkupTests(unittest.TestCase):
    def test_a_page_as_text(self) -> None:
        self.assertEqual(
            plain_text(PAGE),
            "The <title>\n\nOne & two\n\nA link, more\nbelow.\n\n- first\n- second\n  - inner\n\n"
            "1. a\n2. b\n\nx = 1\n  y\n\nk v\n\n1 < 2\nbare x",
        )

    def test_a_page_as_markdown(self) -> None:
        self.assertEqual(
            markdown(PAGE),
            "The <title>\n\n# One & **two**\n\nA [link](/x?a=1&b=2), *more*\nbelow.\n\n- first\n"
            "- second\n  - inner\n\n1. a\n2. b\n\n```\nx = 1\n  y\n```\n\nk v\n\n1 < 2\n---\nbare "
            "*x*",
        )

    def test_broken_pages_end_where_they_break(self) -> None:
        for page, wanted in (
            ("a<b", "a"),
            ("a <!-- b", "a"),
            ("a<script>b", "a"),
            ("a<SCRIPT>b</Script>c", "ac"),
            ("a</p></ul></pre></a></b>c", "a\n\nc"),
            ("a<!doctype x>b<?php c ?>d", "abd"),
            ("a < b > c", "a < b > c"),
            ("&#x41;&nbsp;&bogus;", "A &bogus;"),
            ("\u0130<script>x</script>y", "\u0130y"),
            ("<svg/>a", "a"),
            ("", ""),
        ):
            with self.subTest(page):
                self.assertEqual(plain_text(page), wanted)

    def test_the_time_grows_with_the_page_and_not_faster(self) -> None:
        began = time.process_time()  # of this process: others may be busy
        for piece in (
            "<",
            "<!--",
            "<a",
            "<a ",
            "<!",
            "<script>",
            "&",
            "</",
            "<ul><li>",
            "<a href='",
        ):
            page = piece * (300_000 // len(piece))
            plain_text(page)
            markdown(page)
        self.assertLess(time.process_time() - began, 30)


class Server:
    """A server that answers each path with bytes that the test has prepared."""

    def __init__(self) -> None:
        self.answers: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.url = ""
        self._over = asyncio.Event()

    async def start(self) -> asyncio.Server:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        return server

    def page(self, path: str, body: bytes, kind: str = "text/html", **headers: str) -> str:
        lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        head = "\r\n".join(["HTTP/1.1 200 OK", f"Content-Type: {kind}", *lines])
        self.answers[path] = f"{head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        return self.url + path

    def redirect(self, path: str, target: str, status: int = 302) -> str:
        head = f"HTTP/1.1 {status} Moved\r\nLocation: {target}\r\nContent-Length: 0\r\n\r\n"
        self.answers[path] = head.encode()
        return self.url + path

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.requests.append(head)
            writer.write(self.answers[head.split()[1]])
            await writer.drain()
            if head.split()[1] == "/silent":
                await self._over.wait()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def stop(self) -> None:
        self._over.set()


class WebTestCase(ToolTestCase):
    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        self.server = Server()
        listening = await self.server.start()
        self.addCleanup(listening.close)
        self.addCleanup(self.server.stop)
        self.allow()


class FetchTests(WebTestCase):
    async def test_a_page_is_asked_for_and_converted(self) -> None:
        url = self.server.page("/a?b=c", b"<h1>Hi</h1><p>there", "text/html; charset=utf-8")
        outcome = await self.use("fetch", url=url, format="markdown", timeout=7)
        self.assertEqual(outcome.content, "# Hi\n\nthere")
        asked = self.turn.asked[0]
        self.assertEqual((asked.tool, asked.action), ("fetch", "fetch"))
        self.assertEqual((asked.path, asked.call_id), (str(self.root), "call-1"))
        self.assertEqual(asked.params, {"url": url, "format": "markdown", "timeout": 7})
        outcome = await self.use("fetch", url=url, format="text")
        self.assertEqual(outcome.content, "Hi\n\nthere")
        self.assertEqual(self.turn.asked[1].params, {"url": url, "format": "text"})
        outcome = await self.use("fetch", url=url, format="html")
        self.assertEqual(outcome.content, "<h1>Hi</h1><p>there")
        request = self.server.requests[0].lower()
        self.assertIn("user-agent: crushlite/", request)
        self.assertNotIn("cookie", request)

    async def test_after_a_denial_nothing_is_sent(self) -> None:
        self.deny("no network")
        url = self.server.page("/a", b"x")
        self.assert_denied(await self.use("fetch", url=url, format="text"), "no network")
        self.assertEqual(self.server.requests, [])

    async def test_other_texts_are_left_as_they_are(self) -> None:
        for kind, body, wanted in (
            ("application/json", b'{"a": "<b>"}', '{"a": "<b>"}'),
            ("text/plain", b"1 < 2", "1 < 2"),
            ("text/plain; charset=iso-8859-1", b"caf\xe9", "caf\u00e9"),
            ("text/plain; charset=punycode", b"abc", "abc"),
            ("application/atom+xml", b"<a/>", "<a/>"),
            ("text/plain", b"", "(the page is empty)"),
        ):
            url = self.server.page("/a", body, kind)
            self.assertEqual((await self.use("fetch", url=url, format="text")).content, wanted)
        for kind, body in (("image/png", b"x"), ("text/plain", b"a\0b"), ("font/woff", b"x")):
            url = self.server.page("/a", body, kind)
            self.assert_failed(await self.use("fetch", url=url, format="text"), "not a text")

    async def test_large_pages_are_cut_and_compressed_ones_opened(self) -> None:
        url = self.server.page("/big", b"x" * 3_000_000, "text/plain")
        outcome = await self.use("fetch", url=url, format="text")
        self.assertIn("there is more", outcome.content)
        self.assertLess(len(outcome.content), web.SHOWN_CHARS + 200)
        packed = {"Content_Encoding": "gzip"}
        url = self.server.page("/gz", gzip.compress(b"packed"), "text/plain", **packed)
        self.assertEqual((await self.use("fetch", url=url, format="text")).content, "packed")
        bomb = zlib.compress(b"0" * 200_000_000)
        url = self.server.page("/bomb", bomb, "text/plain", Content_Encoding="deflate")
        outcome = await self.use("fetch", url=url, format="text")
        self.assertLess(len(outcome.content), web.SHOWN_CHARS + 200)
        page = web.Page(200, Headers([("content-encoding", "deflate")]), bomb, False)
        self.assertEqual(len(web.unpacked(page, web.BODY_BYTES)), web.BODY_BYTES)
        for encoding in ("gzip", "br"):
            url = self.server.page("/bad", b"junk", "text/plain", Content_Encoding=encoding)
            self.assert_failed(await self.use("fetch", url=url, format="text"), "answer")

    async def test_redirects_are_followed_on_the_same_server_only(self) -> None:
        self.server.page("/end", b"arrived", "text/plain")
        self.server.redirect("/two", "end", 307)
        url = self.server.redirect("/one", "/two")
        outcome = await self.use("fetch", url=url, format="text")
        self.assertEqual((outcome.content, len(self.turn.asked)), ("arrived", 1))
        other = f"http://localhost:{self.server.port}/end"

        def only_the_first(asked: Asked) -> None:
            self.turn.verdict = Verdict(asked.params["url"] != other, "not there")

        self.turn.meanwhile = only_the_first
        url = self.server.redirect("/elsewhere", other)
        before = len(self.server.requests)
        self.assert_denied(await self.use("fetch", url=url, format="text"), "not there")
        self.assertEqual(len(self.server.requests), before + 1)
        self.assertEqual(self.turn.asked[-1].params["url"], other)

    async def test_a_grant_for_the_session_is_for_scheme_host_and_port(self) -> None:
        self.deny()
        for url in ("http://A.example/x", "https://a.example/", "https://a.example:8443/?y"):
            await self.use("fetch", url=url, format="text")
        parts = [asked.scope.parts for asked in self.turn.asked if asked.scope is not None]
        origins = ["http://a.example", "https://a.example", "https://a.example:8443"]
        self.assertEqual(parts, [(origin,) for origin in origins])

    async def test_a_redirect_away_from_https_asks_again_and_one_to_https_does_not(self) -> None:
        self.allow()
        for start, target, asked in (
            ("https://a.example/", "http://a.example/", 2),
            ("http://a.example/", "https://a.example/", 1),
            ("http://a.example/", "http://a.example:81/", 2),
        ):
            self.turn.asked.clear()
            moved = web.Page(302, Headers([("location", target)]), b"", cut=False)
            found = web.Page(200, Headers([("content-type", "text/plain")]), b"x", cut=False)
            with mock.patch.object(web.Fetch, "_get", side_effect=[moved, found]):
                await self.use("fetch", url=start, format="text")
            self.assertEqual(len(self.turn.asked), asked, (start, target))

    async def test_redirects_that_go_wrong(self) -> None:
        url = self.server.redirect("/loop", "/loop")
        self.assert_failed(await self.use("fetch", url=url, format="text"), "5 redirects")
        self.assertEqual(len(self.server.requests), 6)
        for target in (
            *("file:///etc/passwd", "ftp://x/", "http://user:pw@127.0.0.1/", "http://[", "//"),
            *("javascript:x", "http://a b/", "gopher://127.0.0.1:6379/x"),
        ):
            url = self.server.redirect("/away", target)
            asked = len(self.turn.asked)
            self.assert_failed(await self.use("fetch", url=url, format="text"))
            self.assertEqual(len(self.turn.asked), asked + 1)

    async def test_failures_are_explained(self) -> None:
        url = self.server.page("/gone", b"<p>never here", "text/html")
        answer = self.server.answers["/gone"]
        self.server.answers["/gone"] = answer.replace(b"200 OK", b"404 Not Found")
        outcome = await self.use("fetch", url=url, format="text")
        self.assert_failed(outcome, "404 Not Found\nnever here")
        self.server.answers["/odd"] = b"this is not HTTP\r\n\r\n"
        self.assert_failed(await self.use("fetch", url=self.server.url + "/odd", format="text"))
        self.server.answers["/cut"] = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"
        self.assert_failed(await self.use("fetch", url=self.server.url + "/cut", format="text"))
        self.server.answers["/silent"] = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"
        outcome = await self.use("fetch", url=self.server.url + "/silent", format="text", timeout=1)
        self.assert_failed(outcome, "within 1 s")
        outcome = await self.use("fetch", url="http://127.0.0.1:1/", format="text")
        self.assert_failed(outcome, "cannot connect")

    async def test_a_server_without_tls_is_an_error(self) -> None:
        async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(plain, "127.0.0.1", 0)
        self.addCleanup(server.close)
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        self.assert_failed(await self.use("fetch", url=url, format="text"), "cannot connect")

    async def test_addresses_that_are_refused_before_permission_is_asked(self) -> None:
        addresses: list[Any] = [
            *(None, 7, [], "", "x", "/etc/passwd", "file:///etc/passwd", "ftp://x", "http://"),
            *("http:///x", "http://user@x/", "http://user:pw@x/", "http://x:99999/", "http://x:0/"),
            *("http://a b/", "http://x/\n", "http://x\0/", "\thttp://x/", "http://x\\@y/"),
            *("http://[::1", "http://x%00/", "http://" + "a" * 5000, "http://\ud800/", "data:,x"),
            *("http://a..b\u00e9../", "HTTP+unix://x", "http://x:y/", "http://\u3000/"),
        ]
        for url in addresses:
            with self.subTest(url):
                self.assert_failed(await self.use("fetch", url=url, format="text"), "url")
        good = self.server.page("/a", b"x")
        formats: list[Any] = ["pdf", 7, []]
        for wrong in formats:
            self.assert_failed(await self.use("fetch", url=good, format=wrong), "format")
        self.assert_failed(await self.use("fetch", url=good, format="text", timeout="x"), "timeout")
        self.assertEqual((self.turn.asked, self.server.requests), ([], []))

    async def test_the_address_shown_is_the_one_that_is_used(self) -> None:
        self.deny()
        for url, shown in (
            ("http://EXAMPLE.com", "http://example.com/"),
            (
                "https://ex\u0430mple.com/\u00e9?q=\u00fc#frag",
                "https://xn--exmple-4nf.com/%C3%A9?q=%C3%BC",
            ),
            ("http://example.com:80/", "http://example.com/"),
            ("https://example.com:80/a%20b", "https://example.com:80/a%20b"),
            ("http://[::1]:8080/x", "http://[::1]:8080/x"),
            ("http://169.254.169.254/latest", "http://169.254.169.254/latest"),
        ):
            self.assert_denied(await self.use("fetch", url=url, format="text"))
            self.assertEqual(self.turn.asked[-1].params["url"], shown)
            self.assertEqual(self.turn.asked[-1].description, f"Fetch {shown}")


class DownloadTests(WebTestCase):
    async def test_a_file_is_asked_for_and_saved_as_it_is(self) -> None:
        data = bytes(range(256)) * 100
        url = self.server.page("/a.bin", data, "application/zip")
        outcome = await self.use("download", url=url, file_path="new/a.bin", timeout=7)
        self.assertEqual(outcome.content, "new/a.bin created: 25600 bytes, application/zip")
        path = self.root / "new/a.bin"
        self.assertEqual(path.read_bytes(), data)
        asked = self.turn.asked[0]
        self.assertEqual((asked.tool, asked.action), ("download", "download"))
        self.assertEqual((asked.path, asked.call_id), (str(path), "call-1"))
        self.assertEqual(asked.params, {"url": url, "file_path": str(path), "timeout": 7})
        self.assertEqual(asked.description, f"Download {url} to {path}")
        assert asked.scope is not None
        self.assertEqual(asked.scope.parts, (f"{self.server.url} new/a.bin",))
        self.assertEqual(self.turn.changed, [], "the history holds texts only")
        url = self.server.page("/a.txt", b"text\n", "text/plain")
        await self.use("download", url=url, file_path="a.txt")
        self.assertEqual(self.turn.changed, [(str(self.root / "a.txt"), None, "text\n")])

    async def test_only_new_files_of_the_workspace_are_written(self) -> None:
        url = self.server.page("/a", b"x")
        (self.root / "old").write_text("kept")
        (self.root / "link").symlink_to(self.outside)
        for name, words in (
            ("old", "exists already"),
            (".", "exists already"),
            ("../outside/b", "outside of the project"),
            ("link/b", "outside of the project"),
            (str(self.outside / "secret.txt"), "outside of the project"),
        ):
            self.assert_failed(await self.use("download", url=url, file_path=name), words)
        self.assertEqual((self.turn.asked, self.server.requests), ([], []))
        self.turn.meanwhile = lambda asked: (self.root / "new").write_text("kept")
        self.assert_failed(await self.use("download", url=url, file_path="new"), "exists now")
        self.assertEqual((self.root / "new").read_text(), "kept")

    async def test_after_a_denial_nothing_is_sent_and_nothing_saved(self) -> None:
        self.deny("no network")
        url = self.server.page("/a", b"x")
        self.assert_denied(await self.use("download", url=url, file_path="a"), "no network")
        self.assertEqual((self.server.requests, os.listdir(self.root)), ([], []))

    async def test_a_redirect_to_another_server_asks_again(self) -> None:
        self.server.page("/end", b"x")
        url = self.server.redirect("/a", f"http://localhost:{self.server.port}/end")
        await self.use("download", url=url, file_path="a")
        self.assertEqual(len(self.turn.asked), 2)
        self.assertIn("localhost", self.turn.asked[1].params["url"])

    async def test_files_that_run_by_themselves_are_asked_for_each_time(self) -> None:
        url = self.server.page("/a", b"x")
        await self.use("download", url=url, file_path=".git/hooks/post-commit")
        scope = self.turn.asked[0].scope
        self.assertEqual(scope and scope.parts, ())

    async def test_what_is_too_large_or_an_error_is_not_saved(self) -> None:
        with mock.patch.object(download, "DOWNLOAD_BYTES", 1000):
            url = self.server.page("/big", b"x" * 1001)
            outcome = await self.use("download", url=url, file_path="a")
            self.assert_failed(outcome, "more than 1000 bytes")
            packed = zlib.compress(b"0" * 5000)
            url = self.server.page("/bomb", packed, Content_Encoding="deflate")
            outcome = await self.use("download", url=url, file_path="a")
            self.assert_failed(outcome, "more than 1000 bytes")
        self.server.answers["/none"] = b"HTTP/1.1 404 Gone\r\nContent-Length: 1\r\n\r\nx"
        outcome = await self.use("download", url=f"{self.server.url}/none", file_path="a")
        self.assert_failed(outcome, "answered 404 Not Found: nothing was saved")
        self.assertEqual(os.listdir(self.root), [])
