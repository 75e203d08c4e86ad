"""Models that are not configured: of a server on this machine, and of providers that list them."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from crushlite.cli.agent_names import find_agent
from crushlite.clock import SystemClock
from crushlite.coder import listeners
from crushlite.coder.discovery import LOCAL_SERVERS, NONE_SECONDS, LocalServer
from crushlite.coder.wing import CoderWing
from crushlite.fake_model import End, FakeModel, Say
from crushlite.testing import LocalDaemon
from crushlite.testing.fake_clock import FakeClock
from tests.support.basics import BoundedTestCase
from tests.support.ports import reserved_port
from tests.support.proxy import Silent, replying, serving

if TYPE_CHECKING:
    from crushlite.clock import Clock
    from crushlite.testing import Participant


def answering(request: dict[str, Any]) -> list[Any]:
    return [Say("I am local"), End()]


class DiscoveryTestCase(BoundedTestCase):
    async def asyncSetUp(self) -> None:
        self.model = await self.enterAsyncContext(
            FakeModel(script=answering, models=["text-embedding-x", "qwen", "llama"])
        )

    async def start(
        self,
        *ports: int,
        agent: str = "auto",
        config: dict[str, Any] | None = None,
        clock: Clock | None = None,
    ) -> None:
        servers = [LocalServer(f"local{n}", f"Local {n}", port) for n, port in enumerate(ports)]
        # The clock does not move by itself: a busy machine must not look like a port
        # without an answer.
        factory = find_agent(agent, clock or FakeClock(), [CoderWing(servers)])
        self.daemon = LocalDaemon(factory)
        if config is not None:
            self.configure(config)
        await self.enterAsyncContext(self.daemon)
        self.anna: Participant = await self.daemon.join()

    def configure(self, document: dict[str, Any]) -> None:
        file = self.daemon.root / "home/.config/crush/crush.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(document))

    async def in_use(self) -> str:
        info = (await self.anna.call("GET", "/agent")).json
        return f"{info['model_cfg']['provider']}/{info['model']['id']}"

    async def update(self) -> None:
        answer = await self.anna.call("POST", "/agent/update")
        self.assertEqual(answer.status, 200)

    def changes(self) -> int:
        return len(self.anna.events.all("config_changed"))

    async def settled(self) -> None:
        await self.anna.events.wait_for("session", id=await self.anna.session())


class LocalServerTests(DiscoveryTestCase):
    async def test_without_any_configuration_a_server_on_this_machine_answers(self) -> None:
        with self.assertLogs("crushlite", "INFO") as logged:
            await self.start(self.enterContext(reserved_port()), self.model.port)
        self.assertEqual(await self.in_use(), "local1/qwen")
        told = "\n".join(logged.output)
        self.assertIn(f"model local1/qwen, found on this machine at {self.model.base_url}", told)
        session = await self.anna.session()
        await self.anna.prompt(session, "hello")
        done = await self.anna.events.wait_for("run_complete")
        self.assertEqual(done["text"], "I am local")

    async def test_models_that_cannot_chat_are_not_listed(self) -> None:
        await self.start(self.model.port)
        config = (await self.anna.call("GET", "")).json["config"]
        self.assertEqual(list(config["providers"]), ["local0"])
        models = [model["id"] for model in config["providers"]["local0"]["models"]]
        self.assertEqual(models, ["qwen", "llama"])
        self.assertEqual(config["models"]["large"]["model"], "qwen")

    async def test_another_of_its_models_can_be_chosen_and_is_kept(self) -> None:
        await self.start(self.model.port)
        choice = {"model_type": "large", "model": {"model": "llama", "provider": "local0"}}
        answer = await self.anna.call("POST", "/config/model", {"scope": 1, **choice})
        self.assertEqual(answer.status, 200)
        self.assertEqual(await self.in_use(), "local0/llama")
        await self.update()
        self.assertEqual(await self.in_use(), "local0/llama")

    async def test_the_first_in_the_list_that_answers_is_taken(self) -> None:
        other = await self.enterAsyncContext(FakeModel(models=["other"]))
        await self.start(other.port, self.model.port)
        self.assertEqual(await self.in_use(), "local0/other")

    async def test_ports_that_hang_are_asked_at_the_same_time_and_not_for_long(self) -> None:
        clock, silent = FakeClock(), Silent()
        ports = [await self.enterAsyncContext(serving(silent)) for _ in range(4)]
        starting = asyncio.create_task(self.start(*ports, clock=clock))
        await silent.until(4)
        self.assertFalse(starting.done())
        await clock.advance(0.2)
        await starting
        self.assertEqual(await self.in_use(), "offline/offline")

    async def test_on_a_real_clock_a_port_that_hangs_costs_a_fraction_of_a_second(self) -> None:
        silent = Silent()
        port = await self.enterAsyncContext(serving(silent))
        await self.start(port, clock=SystemClock())
        self.assertEqual((await self.in_use(), silent.came), ("offline/offline", 1))

    async def test_what_is_no_model_server_is_not_taken_for_one(self) -> None:
        bodies = (
            b"<html>hello</html>",
            b'["a", "b"]',
            b'{"data": [{"id": "car"}]}',
            b'{"object": "list", "data": [{"id": "car", "object": "vehicle"}]}',
            b'{"object": "list", "data": null}',
            b'{"data": [{"id": "car", "object": "model"}]}',
            b'{"object": "list", "data": [{"id": 7, "object": "model"}]}',
            b'{"object": "list", "data": [{"id": "nomic-embed-text", "object": "model"}]}',
            b'{"models": ["x"]',
        )

        ports = [await self.enterAsyncContext(serving(replying(body))) for body in bodies]
        await self.start(*ports)
        self.assertEqual(await self.in_use(), "offline/offline")

    async def test_a_listener_of_another_user_is_not_asked_and_the_log_says_it(
        self,
    ) -> None:
        for owners in ({os.geteuid() + 1}, {0, os.geteuid() + 1}):
            with (
                mock.patch("crushlite.coder.discovery.listener_owners", return_value=owners),
                self.assertLogs("crushlite", "WARNING") as logged,
            ):
                await self.start(self.model.port)
            self.assertEqual(await self.in_use(), "offline/offline")
            self.assertIn(f"port {self.model.port}", "".join(logged.output))
            self.assertIn("crush.json", "".join(logged.output))
        unknowns: tuple[set[int] | None, ...] = (None, set())
        for unknown in unknowns:
            with mock.patch("crushlite.coder.discovery.listener_owners", return_value=unknown):
                await self.start(self.model.port)
            self.assertEqual(await self.in_use(), "offline/offline")
        self.assertEqual(self.model.connections, 0)

    async def test_a_server_that_was_found_gets_no_prompt_when_its_port_changes_hands(self) -> None:
        await self.start(self.model.port)
        self.assertEqual(await self.in_use(), "local0/qwen")
        before = len(self.model.calls)
        transport = "crushlite.coder.providers.transport"
        with mock.patch(f"{transport}.is_own_listener", return_value=False):
            session = await self.anna.session()
            await self.anna.prompt(session, "hello")
            done = await self.anna.events.wait_for("run_complete")
        self.assertIn("another user", done["error"])
        self.assertEqual(len(self.model.calls), before)

    def test_the_owner_of_a_listener_is_read_from_the_kernel(self) -> None:
        listening = "0100007F", "00000000", "0" * 32, "0000000000000000FFFF00000100007F"
        others = "0200007F", "00000000000000000000000001000000"
        for address, state, wanted in (
            *((address, "0A", {1001}) for address in listening),
            *((address, "0A", set()) for address in others),
            ("0100007F", "01", set()),
        ):
            line = f"  0: {address}:2CAA 00000000:0000 {state} 0:0 00:0 00000000  1001  0 7 1\n"
            with tempfile.TemporaryDirectory() as folder:
                table = Path(folder, "tcp")
                table.write_text("  sl  local_address rem_address   st\n" + line)
                with mock.patch.object(listeners, "TABLES", (f"{folder}/none", str(table))):
                    self.assertEqual(listeners.listener_owners(11434), wanted, line)
                    self.assertEqual(listeners.listener_owners(11435), set())
                    self.assertFalse(listeners.is_own_listener(11435))
                table.write_text("nonsense nonsense\n")
                with mock.patch.object(listeners, "TABLES", (str(table),)):
                    self.assertIsNone(listeners.listener_owners(11434))
        with mock.patch.object(listeners, "TABLES", ("/nonexistent",)):
            self.assertIsNone(listeners.listener_owners(11434))
            self.assertFalse(listeners.is_own_listener(11434))
        self.assertTrue(listeners.is_own_listener(self.model.port))

    async def test_only_loopback_is_asked(self) -> None:
        self.assertEqual([server.port for server in LOCAL_SERVERS], [11434, 1234, 8080])
        for server in LOCAL_SERVERS:
            self.assertEqual(server.base_url, f"http://127.0.0.1:{server.port}/v1")

    async def test_nothing_is_asked_if_anything_is_configured(self) -> None:
        silent = Silent()
        port = await self.enterAsyncContext(serving(silent))
        lab = {"base_url": self.model.base_url, "models": [{"id": "mine", "name": "Mine"}]}
        await self.start(port, config={"providers": {"lab": lab}})
        self.assertEqual(await self.in_use(), "lab/mine")
        self.assertEqual(silent.came, 0)

    async def test_nothing_is_asked_if_the_user_wants_no_defaults_or_not_this_one(self) -> None:
        for config in (
            {"options": {"disable_default_providers": True}},
            {"providers": {"local0": {"disable": True}}},
        ):
            silent = Silent()
            port = await self.enterAsyncContext(serving(silent))
            await self.start(port, config=config)
            with self.subTest(config):
                self.assertEqual(await self.in_use(), "offline/offline")
                self.assertEqual(silent.came, 0)

    async def test_an_agent_that_was_named_probes_no_server(self) -> None:
        for agent, ready in (("coder", False), ("offline", True)):
            silent = Silent()
            port = await self.enterAsyncContext(serving(silent))
            await self.start(port, agent=agent)
            with self.subTest(agent):
                self.assertEqual((await self.anna.call("GET", "/agent")).json["is_ready"], ready)
                self.assertEqual(silent.came, 0)


class RememberingTests(DiscoveryTestCase):
    async def test_a_server_that_is_started_later_is_found_by_an_update(self) -> None:
        port = self.enterContext(reserved_port())
        await self.start(port)
        self.assertEqual(await self.in_use(), "offline/offline")
        models = b'{"object": "list", "data": [{"id": "late", "object": "model"}]}'
        await self.enterAsyncContext(serving(replying(models), port=port))
        await self.update()
        self.assertEqual(await self.in_use(), "local0/late")
        await self.anna.events.wait_for("config_changed")

    async def test_an_update_that_finds_the_same_again_is_no_change(self) -> None:
        await self.start(self.model.port)
        await self.update()
        await self.update()
        await self.settled()
        self.assertEqual(self.changes(), 0)

    async def test_a_missing_server_is_remembered_only_briefly(self) -> None:
        clock = FakeClock()
        asked: list[bytes] = []

        async def nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            await writer.drain()

        port = await self.enterAsyncContext(serving(nothing))
        await self.start(port, clock=clock)
        self.assertEqual(len(asked), 1)
        for seconds, times in ((NONE_SECONDS / 2, 1), (NONE_SECONDS, 2)):
            await clock.advance(seconds)
            folder = self.daemon.root / f"after {seconds}"
            folder.mkdir()
            await self.daemon.join(folder)
            self.assertEqual(len(asked), times)
        await self.update()
        self.assertEqual(len(asked), 3)


class ProviderTests(DiscoveryTestCase):
    def lab(self, **more: Any) -> dict[str, Any]:
        return {"providers": {"lab": {"base_url": self.model.base_url, **more}}}

    async def test_a_provider_without_models_is_asked_for_them(self) -> None:
        for agent in ("auto", "coder"):
            for kind in ("openai-compat", "anthropic"):
                await self.start(agent=agent, config=self.lab(type=kind, api_key="the-key"))
                with self.subTest(agent, kind=kind):
                    self.assertEqual(await self.in_use(), "lab/qwen")
                    config = (await self.anna.call("GET", "")).json["config"]
                    shown = config["providers"]["lab"]
                    ids = [model["id"] for model in shown["models"]]
                    self.assertEqual(ids, ["qwen", "llama", "text-embedding-x"])

    async def test_a_model_that_was_chosen_is_used_before_it_is_listed(self) -> None:
        chosen = {"models": {"large": {"model": "unlisted", "provider": "lab"}}}
        port = self.enterContext(reserved_port())
        url = f"http://127.0.0.1:{port}/v1"
        await self.start(config=self.lab(base_url=url) | chosen)
        self.assertEqual(await self.in_use(), "lab/unlisted")

    async def test_a_model_that_was_chosen_is_used_also_if_it_is_not_listed(self) -> None:
        chosen = {"models": {"large": {"model": "unlisted", "provider": "lab"}}}
        await self.start(config=self.lab() | chosen)
        self.assertEqual(await self.in_use(), "lab/unlisted")
        config = (await self.anna.call("GET", "")).json["config"]
        ids = [model["id"] for model in config["providers"]["lab"]["models"]]
        self.assertEqual(ids, ["qwen", "llama", "text-embedding-x", "unlisted"])

    async def test_a_provider_that_does_not_answer_fails_no_create(self) -> None:
        silent = Silent()
        port = await self.enterAsyncContext(serving(silent))
        for asked in (self.enterContext(reserved_port()), port):
            url = f"http://127.0.0.1:{asked}/v1"
            with self.assertLogs("crushlite", "WARNING") as logged:
                await self.start(config=self.lab(base_url=url), clock=SystemClock())
            self.assertEqual(await self.in_use(), "offline/offline")
            self.assertIn("lab lists no models", "\n".join(logged.output))

    async def test_a_list_that_is_not_needed_is_not_waited_for(self) -> None:
        silent = Silent()
        port = await self.enterAsyncContext(serving(silent))
        config = self.lab(models=[{"id": "mine", "name": "Mine"}])
        config["providers"]["zoo"] = {"base_url": f"http://127.0.0.1:{port}/v1"}
        clock = FakeClock()
        starting = asyncio.create_task(self.start(config=config, clock=clock))
        await silent.until(1)
        await clock.advance(0.2)
        await starting
        self.assertEqual(await self.in_use(), "lab/mine")

    async def test_a_provider_that_wants_no_discovery_is_not_asked(self) -> None:
        await self.start(config=self.lab(discover_models=False))
        self.assertEqual(await self.in_use(), "offline/offline")
        self.assertEqual(self.model.connections, 0)
