"""What is known of models beyond their names: lists of providers, and servers of this machine."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Any

from crushlite.cli.agent_names import find_agent
from crushlite.clock import SystemClock
from crushlite.coder.discovery import LocalServer
from crushlite.coder.providers.base import ProviderError
from crushlite.coder.providers.listing import MOST, can_chat, listed_models
from crushlite.coder.windows import loaded_window
from crushlite.coder.wing import CoderWing
from crushlite.config.providers import Provider
from crushlite.outbound.proxies import NO_PROXIES
from crushlite.protocol.config import Model
from crushlite.testing import LocalDaemon
from crushlite.testing.fake_clock import FakeClock
from tests.support.basics import BoundedTestCase
from tests.support.proxy import serving

if TYPE_CHECKING:
    from crushlite.testing import Participant


def listed(*ids: str, **fields: Any) -> dict[str, Any]:
    return {"object": "list", "data": [{"id": each, "object": "model", **fields} for each in ids]}


class Documents:
    """For `serving`: answers each `METHOD PATH` with its document, and others with 404. A callable
    gets the body of the request. `heads` are the heads of all requests; answers are
    given while `free` is set."""

    def __init__(self, table: dict[str, Any]) -> None:
        self.table = table
        self.heads: list[str] = []
        self.free = asyncio.Event()
        self.free.set()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := (await reader.readuntil(b"\r\n\r\n")).decode():
            self.heads.append(head)
            length = re.search(r"content-length: (\d+)", head, re.I)
            body = await reader.readexactly(int(length[1])) if length else b"null"
            await self.free.wait()
            answer = self.table.get(" ".join(head.split(" ")[:2]))
            if callable(answer):
                answer = answer(json.loads(body))
            status = b"200 OK" if answer is not None else b"404 Not Found"
            content = json.dumps(answer).encode()
            length_line = b"Content-Length: %d" % len(content)
            writer.write(b"HTTP/1.1 %b\r\n%b\r\n\r\n%b" % (status, length_line, content))
            await writer.drain()


class ListTestCase(BoundedTestCase):
    async def serve(self, table: dict[str, Any]) -> tuple[Documents, int]:
        documents = Documents(table)
        return documents, await self.enterAsyncContext(serving(documents))

    async def start(self, *servers: LocalServer, config: dict[str, Any] | None = None) -> None:
        # The clock does not move by itself: a busy machine must not look like a missing answer.
        daemon = LocalDaemon(find_agent("auto", FakeClock(), [CoderWing(servers)]))
        file = daemon.root / "home/.config/crush/crush.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(config or {}))
        self.daemon = await self.enterAsyncContext(daemon)
        self.anna: Participant = await self.daemon.join()

    async def models(self, provider: str) -> dict[str, dict[str, Any]]:
        config = (await self.anna.call("GET", "")).json["config"]
        return {model["id"]: model for model in config["providers"][provider]["models"]}

    async def windows(self, provider: str) -> dict[str, int]:
        return {i: m["context_window"] for i, m in (await self.models(provider)).items()}

    async def in_use(self) -> str:
        info = (await self.anna.call("GET", "/agent")).json
        return f"{info['model_cfg']['provider']}/{info['model']['id']}"

    async def choose(self, provider: str, model: str) -> tuple[int, str]:
        body = {"model_type": "large", "scope": 1, "model": {"model": model, "provider": provider}}
        answer = await self.anna.call("POST", "/config/model", body)
        return answer.status, (answer.json or {}).get("message", "")


class ReadingTests(BoundedTestCase):
    def test_windows_prices_and_abilities_are_read_as_each_provider_spells_them(self) -> None:
        entry = {
            "id": "anthropic/claude",
            "name": "Claude",
            "context_length": 200000,
            "pricing": {
                "prompt": "0.000003",
                "completion": "0.000015",
                "input_cache_read": "0.0000003",
                "input_cache_write": "0.00000375",
            },
            "architecture": {"input_modalities": ["text", "image"]},
            "supported_parameters": ["tools", "reasoning"],
        }
        found = listed_models({"data": [entry]})
        wanted = Model(
            id="anthropic/claude",
            name="Claude",
            cost_per_1m_in=3,
            cost_per_1m_out=15,
            cost_per_1m_in_cached=3.75,
            cost_per_1m_out_cached=0.3,
            context_window=200000,
            can_reason=True,
            supports_attachments=True,
        )
        self.assertEqual(found, [wanted])
        for fields in (
            {"context_window": 9000},
            {"max_model_len": 9000},
            {"max_input_tokens": 9000},
            {"meta": {"n_ctx": 9000, "n_ctx_train": 40000}},
        ):
            with self.subTest(fields):
                self.assertEqual(listed_models([{"id": "m", **fields}])[0].context_window, 9000)

    def test_models_of_google_have_short_names_and_those_that_do_not_answer_are_left_out(
        self,
    ) -> None:
        entries = [
            {
                "name": "models/gemini-pro",
                "displayName": "Gemini Pro",
                "inputTokenLimit": 1048576,
                "supportedGenerationMethods": ["generateContent", "countTokens"],
            },
            {"name": "models/aqa", "supportedGenerationMethods": ["generateAnswer"]},
        ]
        wanted = Model(id="gemini-pro", name="Gemini Pro", context_window=1048576)
        self.assertEqual(listed_models({"models": entries}), [wanted])

    def test_nothing_that_a_server_writes_breaks_the_reading(self) -> None:
        strange: list[Any] = [None, 0, [], {}, "x\ny", "a" * 300, -1, True, 1e99, "nan", "-1"]
        fields = ("name", "context_length", "architecture", "meta", "display_name")
        for value in strange:
            entry = {"id": "m", **dict.fromkeys(fields, value), "supported_parameters": value}
            entry["pricing"] = {"prompt": value, "completion": {}}
            with self.subTest(value):
                models = listed_models({"data": [{"id": "x\ny"}, entry, value]})
                self.assertEqual([model.id for model in models][:1], ["m"])
                self.assertEqual(models[0].context_window, 0)
                self.assertGreaterEqual(models[0].cost_per_1m_in, 0)
        self.assertEqual(len(listed_models([f"m{n}" for n in range(MOST + 5)])), MOST)
        for answer in (None, {}, {"data": "x"}, "text"):
            self.assertRaises(ProviderError, listed_models, answer)

    def test_names_tell_which_models_can_chat(self) -> None:
        for name in ("gpt-5", "claude-sonnet-4-5", "llava:7b", "imagine-7b", "qwen3:8b"):
            self.assertTrue(can_chat(name), name)
        for name in (
            "text-embedding-3",
            "tts-1",
            "gpt-4o-audio-preview",
            "dall-e-3",
            "gpt-image-1",
        ):
            self.assertFalse(can_chat(name), name)


class LocalWindowTests(ListTestCase):
    async def test_ollama_tells_the_window_of_a_loaded_model_else_what_it_would_use(self) -> None:
        def show(body: dict[str, Any]) -> dict[str, Any]:
            info = {"general.architecture": "qwen", "qwen.context_length": 40960}
            parameters = {"set": "stop  x\nnum_ctx      8192\n"}.get(body["model"], "")
            capable = ["vision"] if body["model"] == "plain" else []
            return {"model_info": info, "parameters": parameters, "capabilities": capable}

        running = {"models": [{"name": "loaded", "model": "loaded", "context_length": 4096}]}
        _, port = await self.serve(
            {
                "GET /v1/models": listed("loaded", "set", "plain"),
                "GET /api/ps": running,
                "POST /api/show": show,
            }
        )
        await self.start(LocalServer("ollama", "Ollama", port))
        wanted = {"loaded": 4096, "set": 8192, "plain": 40960}
        self.assertEqual(await self.windows("ollama"), wanted)
        images = {i: m["supports_attachments"] for i, m in (await self.models("ollama")).items()}
        self.assertEqual(images, {"loaded": False, "set": False, "plain": True})

    async def test_a_model_that_has_answered_has_the_window_that_it_was_loaded_with(self) -> None:
        info = {"general.architecture": "qwen", "qwen.context_length": 40960}
        table: dict[str, Any] = {
            "GET /api/ps": {"models": []},
            "POST /api/show": {"model_info": info},
        }
        _, port = await self.serve(table)
        address = f"http://127.0.0.1:{port}/v1"
        asks = [
            loaded_window(
                Provider("p", "P", kind, address), Model(id="qwen"), SystemClock(), NO_PROXIES
            )
            for kind in ("ollama", "openai-compat")
        ]
        self.assertIsNone(asks[1], "no other server loads models when they are asked")
        assert asks[0] is not None
        self.assertEqual(await asks[0](), 40960)
        table["GET /api/ps"] = {"models": [{"name": "qwen", "context_length": 4096}]}
        self.assertEqual(await asks[0](), 4096)

    async def test_lm_studio_tells_the_window_that_a_model_was_loaded_with(self) -> None:
        instance = {"id": "big:2", "config": {"context_length": 40000}}
        entries = [
            {"key": "big", "max_context_length": 262144, "loaded_instances": [instance]},
            {"key": "wee", "max_context_length": 32768, "loaded_instances": []},
        ]
        new = {"GET /api/v1/models": {"models": entries}}
        older = [
            {"id": "big", "max_context_length": 262144, "loaded_context_length": 40000},
            {"id": "wee", "max_context_length": 32768},
        ]
        for table in (new, {"GET /api/v0/models": {"data": older}}):
            _, port = await self.serve({"GET /v1/models": listed("big", "wee"), **table})
            await self.start(LocalServer("lmstudio", "LM Studio", port))
            with self.subTest(list(table)):
                self.assertEqual(await self.windows("lmstudio"), {"big": 40000, "wee": 32768})

    async def test_llama_cpp_tells_the_window_of_a_slot(self) -> None:
        props = {"default_generation_settings": {"n_ctx": 8192}, "modalities": {"vision": True}}
        _, port = await self.serve({"GET /v1/models": listed("m.gguf"), "GET /props": props})
        await self.start(LocalServer("llamacpp", "llama.cpp", port))
        self.assertEqual(await self.windows("llamacpp"), {"m.gguf": 8192})
        self.assertTrue((await self.models("llamacpp"))["m.gguf"]["supports_attachments"])

    async def test_a_configured_server_is_asked_with_its_key_and_below_its_address(self) -> None:
        props = {"default_generation_settings": {"n_ctx": 8192}}
        served, port = await self.serve(
            {"GET /deep/v1/models": listed("m"), "GET /deep/props": props}
        )
        box = {"type": "llamacpp", "base_url": f"http://127.0.0.1:{port}/deep/v1", "api_key": "k-1"}
        await self.start(config={"providers": {"box": box}})
        self.assertEqual(await self.windows("box"), {"m": 8192})
        for head in served.heads:
            self.assertIn("authorization: bearer k-1", head.lower())

    async def test_a_server_that_tells_no_window_is_used_all_the_same(self) -> None:
        for kind in ("ollama", "lmstudio", "llamacpp"):
            _, port = await self.serve({"GET /v1/models": listed("m")})
            await self.start(LocalServer(kind, kind, port))
            with self.subTest(kind):
                self.assertEqual(await self.in_use(), f"{kind}/m")
                self.assertEqual(await self.windows(kind), {"m": 0})


class OwnListTests(ListTestCase):
    """A provider of the catalogue is asked for its own list, in the background."""

    async def openrouter(self, *ids: str, **config: Any) -> Documents:
        table = {"GET /v1/models": listed(*ids, context_length=65536)}
        served, self.port = await self.serve(table)
        own = {"base_url": f"http://127.0.0.1:{self.port}/v1", "api_key": "key-0001"}
        config.setdefault("providers", {}).setdefault("openrouter", {}).update(own)
        self.config = config
        return served

    async def test_the_list_is_used_when_it_comes_and_nothing_waits_for_it(self) -> None:
        served = await self.openrouter("x/new", "x/text-embedding-1", "anthropic/claude-sonnet-4.5")
        served.free.clear()
        await self.start(config=self.config)
        self.assertEqual(await self.in_use(), "openrouter/anthropic/claude-sonnet-4.5")
        self.assertNotIn("x/new", await self.windows("openrouter"))
        served.free.set()
        await self.anna.events.wait_for("config_changed")
        known = await self.windows("openrouter")
        self.assertEqual(known["x/new"], 65536)
        self.assertEqual(known["anthropic/claude-sonnet-4.5"], 200_000)  # what was known stays
        self.assertNotIn("x/text-embedding-1", known)
        self.assertEqual(await self.in_use(), "openrouter/anthropic/claude-sonnet-4.5")

    async def test_a_chosen_model_gets_its_window_from_the_list(self) -> None:
        large = {"large": {"provider": "openrouter", "model": "x/new"}}
        served = await self.openrouter("x/new", models=large)
        served.free.clear()
        await self.start(config=self.config)
        self.assertEqual(await self.in_use(), "openrouter/x/new")
        self.assertEqual((await self.windows("openrouter"))["x/new"], 0)
        served.free.set()
        await self.anna.events.wait_for("config_changed")
        info = (await self.anna.call("GET", "/agent")).json
        self.assertEqual((info["model"]["id"], info["model"]["context_window"]), ("x/new", 65536))

    async def test_an_answer_that_is_remembered_is_not_asked_for_again(self) -> None:
        served = await self.openrouter("x/new")
        served.free.clear()  # until somebody listens for the change
        await self.start(config=self.config)
        served.free.set()
        await self.anna.events.wait_for("config_changed")
        other = self.daemon.root / "other"
        other.mkdir()
        self.anna = await self.daemon.join(other)
        self.assertIn("x/new", await self.windows("openrouter"))
        self.assertEqual(len(served.heads), 1)

    async def test_a_list_outlives_a_provider_that_does_not_answer_any_more(self) -> None:
        served = await self.openrouter("x/new")
        served.free.clear()  # until somebody listens for the change
        await self.start(config=self.config)
        served.free.set()
        await self.anna.events.wait_for("config_changed")
        served.table.clear()
        self.assertEqual((await self.anna.call("POST", "/agent/update")).status, 200)
        # It is asked again, and fails: what is not in the list is still refused.
        self.assertEqual((await self.choose("openrouter", "x/nosuch"))[0], 400)
        self.assertIn("x/new", await self.windows("openrouter"))

    async def test_nobody_is_asked_if_the_user_does_not_want_it(self) -> None:
        for more in (
            {"options": {"disable_provider_auto_update": True}},
            {"providers": {"openrouter": {"discover_models": False}}},
        ):
            served = await self.openrouter("x/new", **more)
            await self.start(config=self.config)
            status, _ = await self.choose("openrouter", "anthropic/claude-haiku-4.5")
            with self.subTest(more):
                self.assertEqual(status, 200)
                self.assertEqual(served.heads, [])

    async def test_a_name_that_the_list_does_not_have_is_refused_with_near_ones(self) -> None:
        await self.openrouter("x/model-large", "x/model-small")
        await self.start(config=self.config)
        status, message = await self.choose("openrouter", "x/model-larg")
        self.assertEqual(status, 400)
        self.assertIn("did you mean x/model-large", message)
        self.assertEqual(await self.choose("openrouter", "x/model-small"), (200, ""))
        self.assertEqual(await self.in_use(), "openrouter/x/model-small")

    async def test_without_a_list_a_name_is_taken_as_it_is(self) -> None:
        served = await self.openrouter()
        served.table.clear()
        await self.start(config=self.config)
        self.assertEqual(await self.choose("openrouter", "x/brand-new"), (200, ""))
        self.assertEqual(await self.in_use(), "openrouter/x/brand-new")

    async def test_a_server_of_this_machine_can_be_chosen_beside_a_provider(self) -> None:
        _, port = await self.serve({"GET /v1/models": listed("qwen")})
        lab = {"base_url": "http://127.0.0.1:9/v1", "models": [{"id": "mine"}]}
        server = LocalServer("llamacpp", "llama.cpp", port)
        await self.start(server, config={"providers": {"lab": lab}})
        self.assertEqual(await self.in_use(), "lab/mine")
        self.assertEqual(await self.choose("llamacpp", "qwen"), (200, ""))
        self.assertEqual(await self.in_use(), "llamacpp/qwen")
        status, message = await self.choose("nosuch", "qwen")
        self.assertEqual(status, 400)
        self.assertIn("no provider 'nosuch' can be used", message)
