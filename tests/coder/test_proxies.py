"""Proxies of the environment: used as the variables say, never for this machine, and their
passwords never shown."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

from crushlite.clock import SystemClock
from crushlite.coder.providers.anthropic import AnthropicProvider
from crushlite.coder.providers.base import ChatMessage, ModelRequest, ProviderError, Text
from crushlite.coder.providers.openai import OpenAIProvider
from crushlite.errors import BadRequest
from crushlite.fake_model import End, FakeModel, Say
from crushlite.outbound.proxies import Proxies, is_loopback, proxies_of
from tests.support.basics import BoundedTestCase
from tests.support.proxy import CERTIFICATE, ProxyServer, serving, tls_before
from tests.support.tools import ToolTestCase

PASSWORD = "Basic dXNlcjpwYXNzQHdvcmQ="  # user:pass@word


class RuleTests(BoundedTestCase):
    def found(self, env: dict[str, str], host: str, port: int = 443) -> str:
        proxy = Proxies(env).find(host, port, secure=port == 443)
        return str(proxy) if proxy else ""

    def test_each_scheme_has_its_variable_and_lower_case_wins(self) -> None:
        env = {"HTTP_PROXY": "http://plain:1", "HTTPS_PROXY": "http://big:2"}
        self.assertEqual(self.found(env, "a.example", 80), "plain:1")
        self.assertEqual(self.found(env, "a.example"), "big:2")
        self.assertEqual(self.found({**env, "https_proxy": "small:3"}, "a.example"), "small:3")
        self.assertEqual(self.found({"ALL_PROXY": "http://all"}, "a.example", 80), "all:80")
        self.assertEqual(self.found({"all_proxy": "https://all"}, "a.example"), "all:443")
        self.assertEqual(self.found({"HTTP_PROXY": "http://plain:1"}, "a.example"), "")
        self.assertEqual(self.found({"HTTPS_PROXY": " "}, "a.example"), "")

    def test_this_machine_is_never_reached_through_a_proxy(self) -> None:
        env = {"ALL_PROXY": "http://p:1"}
        for host in (
            *("localhost", "LOCALHOST.", "app.localhost", "127.0.0.1", "127.8.0.1", "::1"),
            *("[::1]", "::ffff:127.0.0.1"),
        ):
            with self.subTest(host):
                self.assertTrue(is_loopback(host))
                self.assertEqual(self.found(env, host), "")
        for host in ("localhost.example", "128.0.0.1", "::2", "127.example"):
            with self.subTest(host):
                self.assertEqual(self.found(env, host), "p:1")

    def test_no_proxy_names_hosts_domains_addresses_networks_and_ports(self) -> None:
        for entry, covered, not_covered in (
            ("*", ["a.example", "10.0.0.1"], []),
            ("b.example", ["b.example", "x.b.example", "B.Example."], ["ab.example", "example"]),
            (".b.example", ["b.example", "x.b.example"], ["ab.example"]),
            ("*.b.example", ["x.b.example"], ["ab.example"]),
            ("10.0.0.0/8", ["10.1.2.3"], ["11.0.0.1", "ten.example"]),
            ("10.0.0.1", ["10.0.0.1"], ["10.0.0.11", "x.10.0.0.1"]),
            ("fe80::/10", ["fe80::1"], ["2001::1"]),
            ("2001:db8::1", ["2001:db8:0::1"], ["2001:db8::2"]),
            ("b.example:443", ["b.example"], []),
            ("b.example:80", [], ["b.example"]),
            ("[2001:db8::1]:443", ["2001:db8::1"], ["2001:db8::2"]),
            ("nonsense/99", [], ["a.example", "10.0.0.1"]),
        ):
            for spelling in ("no_proxy", "NO_PROXY"):
                env = {"HTTPS_PROXY": "http://p:1", spelling: f"other.example, {entry}"}
                for host, proxy in [
                    *((h, "") for h in covered),
                    *((h, "p:1") for h in not_covered),
                ]:
                    with self.subTest(entry, host=host):
                        self.assertEqual(self.found(env, host), proxy)

    def test_a_variable_that_is_no_address_is_refused_without_its_value(self) -> None:
        for value in (
            "socks5://u:secret@p:1",
            "http://u:secret@p:99999",
            "http://u:secret@",
            "p:0",
        ):
            with self.subTest(value), self.assertRaises(BadRequest) as caught:
                self.found({"HTTPS_PROXY": value}, "a.example")
            self.assertIn("HTTPS_PROXY", caught.exception.message)
            self.assertNotIn("secret", caught.exception.message)

    def test_credentials_are_decoded_and_never_shown(self) -> None:
        env = {"https_proxy": "http://user:pass%40word@p:1"}
        proxy = Proxies(env).find("a.example", 443, secure=True)
        assert proxy is not None
        self.assertEqual(proxy.authorization, PASSWORD)
        for shown in (str(proxy), repr(proxy)):
            self.assertNotIn("pass", shown)
            self.assertNotIn(PASSWORD.split()[1], shown)

    def test_a_workspace_without_a_proxy_gets_the_daemon_s(self) -> None:
        with mock.patch.dict(os.environ, {"HTTPS_PROXY": "http://daemon:1"}):
            for env, proxy in (({}, "daemon:1"), ({"HTTPS_PROXY": "http://client:2"}, "client:2")):
                found = proxies_of(env).find("a.example", 443, secure=True)
                self.assertEqual(str(found), proxy)


class ProxyTestCase(BoundedTestCase):
    async def asyncSetUp(self) -> None:
        self.model = await self.enterAsyncContext(FakeModel(script=lambda _: [Say("hi"), End()]))
        folder = self.enterContext(tempfile.TemporaryDirectory())
        trusted = Path(folder, "trusted.pem")
        trusted.write_text(CERTIFICATE[CERTIFICATE.index("-----BEGIN CERT") :])
        self.enterContext(mock.patch.dict(os.environ, {"SSL_CERT_FILE": str(trusted)}))

    async def proxy(self, target: int = 0, **options: Any) -> ProxyServer:
        proxy = ProxyServer(target or self.model.port, **options)
        return await self.enterAsyncContext(proxy)

    def proxies(self, proxy: ProxyServer, scheme: str = "http", user: str = "") -> Proxies:
        return Proxies({"ALL_PROXY": f"{scheme}://{user}127.0.0.1:{proxy.port}"})

    async def answer(self, base_url: str, proxies: Proxies, *, anthropic: bool = False) -> str:
        kind = AnthropicProvider if anthropic else OpenAIProvider
        provider = kind(base_url, "the-key", clock=SystemClock(), proxies=proxies)
        try:
            request = ModelRequest("m", "", [ChatMessage("user", "hello")])
            pieces = [piece async for piece in provider.stream(request)]
        finally:
            await provider.aclose()
        return "".join(piece.text for piece in pieces if isinstance(piece, Text))

    async def refused(self, base_url: str, proxies: Proxies) -> ProviderError:
        with self.assertRaises(ProviderError) as caught:
            await self.answer(base_url, proxies)
        return caught.exception


class ModelTests(ProxyTestCase):
    async def test_https_uses_connect_with_tls_to_the_server_inside(self) -> None:
        secure = await self.enterAsyncContext(tls_before(self.model.port))
        proxy = await self.proxy(secure)
        for anthropic in (False, True):
            proxies = self.proxies(proxy)
            said = await self.answer("https://model.test/v1", proxies, anthropic=anthropic)
            self.assertEqual(said, "hi")
        for head in proxy.heads:
            self.assertEqual(
                head, "CONNECT model.test:443 HTTP/1.1\r\nHost: model.test:443\r\n\r\n"
            )
        self.assertEqual(self.model.calls[0].headers["host"], "model.test")
        self.assertEqual(len(proxy.heads), 2)

    async def test_the_certificate_must_be_the_server_s_and_not_the_proxy_s(self) -> None:
        secure = await self.enterAsyncContext(tls_before(self.model.port))
        error = await self.refused("https://other.test/v1", self.proxies(await self.proxy(secure)))
        self.assertIn("certificate", str(error))
        self.assertFalse(error.retryable)
        self.assertEqual(self.model.calls, [])

    async def test_tls_to_the_proxy_and_tls_inside_of_it(self) -> None:
        secure = await self.enterAsyncContext(tls_before(self.model.port))
        proxy = await self.proxy(secure)
        front = await self.enterAsyncContext(tls_before(proxy.port))
        proxies = Proxies({"HTTPS_PROXY": f"https://127.0.0.1:{front}"})
        self.assertEqual(await self.answer("https://model.test/v1", proxies), "hi")
        self.assertEqual(len(proxy.heads), 1)

    async def test_plain_http_is_sent_to_the_proxy_with_the_whole_address(self) -> None:
        proxy = await self.proxy(authorization=PASSWORD)
        proxies = self.proxies(proxy, user="user:pass%40word@")
        self.assertEqual(await self.answer("http://model.test:81/v1", proxies), "hi")
        first, *rest = proxy.heads[0].split("\r\n")
        self.assertEqual(first, "POST http://model.test:81/v1/chat/completions HTTP/1.1")
        self.assertIn("host: model.test:81", [line.lower() for line in rest])

    async def test_the_password_goes_to_the_proxy_and_not_to_the_server(self) -> None:
        secure = await self.enterAsyncContext(tls_before(self.model.port))
        proxy = await self.proxy(secure, authorization=PASSWORD)
        proxies = self.proxies(proxy, user="user:pass%40word@")
        self.assertEqual(await self.answer("https://model.test/v1", proxies), "hi")
        self.assertIn(f"Proxy-Authorization: {PASSWORD}\r\n", proxy.heads[0])
        self.assertNotIn("proxy-authorization", self.model.calls[0].headers)

    async def test_a_server_of_this_machine_is_asked_directly(self) -> None:
        proxy = await self.proxy(status=b"500 Never")
        for host in ("127.0.0.1", "localhost"):
            url = f"http://{host}:{self.model.port}/v1"
            self.assertEqual(await self.answer(url, self.proxies(proxy)), "hi")
        self.assertEqual(proxy.heads, [])

    async def test_a_refusal_of_the_proxy_is_quoted_without_secrets(self) -> None:
        for status, words, again in (
            (b"", "407 Who are you", False),
            (b"403 Not there", "403 Not there", False),
            (b"502 Later " + PASSWORD.encode(), "502 Later", True),
        ):
            proxy = await self.proxy(authorization="Basic other", status=status)
            proxies = self.proxies(proxy, user="user:pass%40word@")
            error = await self.refused("https://model.test/v1", proxies)
            with self.subTest(words):
                self.assertIn(f"the proxy 127.0.0.1:{proxy.port} answered {words}", str(error))
                self.assertEqual(error.retryable, again)
                self.assertNotIn(PASSWORD.split()[1], str(error))

    async def test_a_proxy_that_speaks_nonsense_or_hangs_up_is_an_error(self) -> None:
        async def nonsense(reader: Any, writer: Any) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"SSH-2.0-OpenSSH\r\n\r\n")
            await writer.drain()

        async def hang_up(reader: Any, writer: Any) -> None:
            await reader.readuntil(b"\r\n\r\n")

        for serve, words in ((nonsense, "does not speak HTTP"), (hang_up, "hung up")):
            port = await self.enterAsyncContext(serving(serve))
            proxies = Proxies({"HTTPS_PROXY": f"http://127.0.0.1:{port}"})
            error = await self.refused("https://model.test/v1", proxies)
            self.assertIn(words, str(error))

    async def test_a_bad_variable_fails_the_request_and_not_the_start(self) -> None:
        proxies = Proxies({"HTTPS_PROXY": "socks5://u:secret@127.0.0.1:1"})
        error = await self.refused("https://model.test/v1", proxies)
        self.assertIn("https_proxy names a socks5 proxy", str(error).lower())
        self.assertFalse(error.retryable)
        self.assertNotIn("secret", str(error))


class FetchTests(ProxyTestCase, ToolTestCase):
    async def asyncSetUp(self) -> None:
        await ProxyTestCase.asyncSetUp(self)
        await ToolTestCase.asyncSetUp(self)
        self.allow()

    async def test_a_page_is_fetched_through_the_proxy_of_the_environment(self) -> None:
        async def page(reader: Any, writer: Any) -> None:
            self.asked = (await reader.readuntil(b"\r\n\r\n")).decode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nthe page")
            await writer.drain()

        plain = await self.enterAsyncContext(serving(page))
        secure = await self.enterAsyncContext(tls_before(plain))
        for url, target in (("http://model.test/a?b", plain), ("https://model.test/a?b", secure)):
            proxy = await self.proxy(target, authorization=PASSWORD)
            env = {"ALL_PROXY": f"http://user:pass%40word@127.0.0.1:{proxy.port}"}
            self.context.env = env
            outcome = await self.use("fetch", url=url, format="text")
            with self.subTest(url):
                self.assertEqual(outcome.content, "the page")
                self.assertTrue(self.asked.startswith("GET /a?b HTTP/1.1\r\n"))
                self.assertEqual(len(proxy.heads), 1)
