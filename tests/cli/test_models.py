"""Choosing a model from the command line: `models`, `run --model`, `/model` in a chat."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from crushlite.cli.agent_names import find_agent
from crushlite.clock import SystemClock
from crushlite.coder.wing import CoderWing
from crushlite.fake_model import End, FakeModel, Say
from crushlite.testing import LocalDaemon
from tests.support.cli import CommandCase

if TYPE_CHECKING:
    from pathlib import Path

BIG = {"id": "big", "context_window": 64000, "cost_per_1m_in": 1.5, "cost_per_1m_out": 6}


def script(request: dict[str, Any]) -> list[Any]:
    return [Say(f"answered by {request['model']}"), End()]


class ModelCase(CommandCase):
    """A daemon in this process, and a model server with which two providers are configured."""

    async def asyncSetUp(self) -> None:
        self.model = await self.enterAsyncContext(
            FakeModel(script=script, models=["qwen", "shared", "text-embedding-x"])
        )
        factory = find_agent("auto", SystemClock(), [CoderWing(local=())])
        daemon = LocalDaemon(factory)
        self.home = daemon.root / "home"
        self.project = daemon.root / "project"
        self.configure({})
        self.daemon = await self.enterAsyncContext(daemon)
        self.host = f"--host=unix://{self.daemon.socket}"
        self.env |= {"HOME": str(self.home), "CRUSHLITE_AGENT": "coder"}

    def configure(self, more: dict[str, Any]) -> Path:
        lab = {"base_url": self.model.base_url, "models": [BIG, {"id": "wee"}, {"id": "shared"}]}
        zoo = {"base_url": self.model.base_url}
        file = self.home / ".config/crush/crush.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"providers": {"lab": lab, "zoo": zoo}, **more}))
        return file

    async def call(self, *arguments: str) -> tuple[int, str, str]:
        child = await self.start(*arguments)
        code, printed = await child.end()
        return code, printed, child.errors

    async def ask(self, *arguments: str) -> tuple[int, str, str]:
        return await self.call("run", self.host, *arguments, "hello")


class ListTests(ModelCase):
    async def test_models_lists_what_can_be_used_with_window_price_and_origin(self) -> None:
        file = self.configure({"models": {"large": {"provider": "lab", "model": "brand-new"}}})
        code, printed, errors = await self.call("models")
        self.assertEqual(code, 0, errors)
        rows = [line.split(maxsplit=5) for line in printed.splitlines()]
        self.assertIn(["lab/big", "64", "000", "1.5", "6", str(file)], rows)
        self.assertIn(["lab/wee", "?", "?", "?", str(file)], rows)
        self.assertIn(["LS", "lab/brand-new", "?", "?", "?", "as it is written"], rows)
        self.assertIn(["zoo/qwen", "?", "?", "?", "the", "provider's list"], rows)
        self.assertIn("models.large is used as it is written", errors)
        self.assertEqual(self.model.requests, [])

    async def test_programs_get_the_same_as_json_and_a_text_selects(self) -> None:
        code, printed, _ = await self.call("models", "--json", "BIG")
        self.assertEqual(code, 0)
        [row] = json.loads(printed)
        known = {"provider": "lab", "model": "big", "context_window": 64000, "cost_per_1m_in": 1.5}
        self.assertEqual({key: row[key] for key in known}, known)
        self.assertEqual(row["role"], "large,small")
        code, printed, errors = await self.call("models", "nosuch")
        self.assertEqual((code, printed), (2, ""))
        self.assertIn("no model has 'nosuch'", errors)

    async def test_a_command_runs_the_script_of_the_user_once(self) -> None:
        script = self.home / ".config/crush/crushrc"
        script.write_text("echo x >> counter; provider add new --base-url http://x --api-keys k")
        script.chmod(0o600)
        code, printed, _ = await self.call("doctor", self.host)
        self.assertEqual(code, 0, printed)
        self.assertIn("`provider add`: --api-keys is not known", printed)
        self.assertEqual((script.parent / "counter").read_text(), "x\n")

    async def test_what_a_chosen_model_lacks_is_said_by_doctor(self) -> None:
        self.configure({"models": {"large": {"provider": "openai", "model": "gpt-5"}}})
        _, printed, _ = await self.call("doctor", self.host)
        self.assertIn("its provider has no key: set OPENAI_API_KEY", printed)
        self.assertIn("make its provider usable, or choose another one", printed)

    async def test_without_any_model_it_says_what_is_missing(self) -> None:
        (self.home / ".config/crush/crush.json").write_text("{}")
        code, printed, errors = await self.call("models")
        self.assertEqual((code, printed), (1, ""))
        self.assertIn("OPENAI_API_KEY", errors)


class RunTests(ModelCase):
    async def asked(self, *arguments: str) -> tuple[str, str]:
        """The models that answer a run and write its title."""
        before = len(self.model.requests)
        code, printed, errors = await self.ask(*arguments)
        self.assertEqual(code, 0, errors)
        await self.model.call(before + 2)
        requests = self.model.requests[before:]
        [large] = [request["model"] for request in requests if request.get("tools")]
        [small] = [request["model"] for request in requests if not request.get("tools")]
        self.assertEqual(printed, f"answered by {large}\n")
        return large, small

    async def test_the_models_that_are_named_answer_that_run_and_no_other(self) -> None:
        self.assertEqual(await self.asked("--model", "lab/wee"), ("wee", "wee"))
        self.assertEqual(await self.asked(), ("big", "big"))
        self.assertEqual(
            await self.asked("-m", "qwen", "--small-model", "lab/wee"), ("qwen", "wee")
        )
        self.assertEqual(await self.asked("--small-model", "zoo/qwen"), ("big", "qwen"))
        self.assertFalse((self.project / ".crushlite/crush.json").exists())

    async def test_a_model_in_use_that_is_named_keeps_its_settings(self) -> None:
        large = {"provider": "lab", "model": "wee", "top_k": 7}
        self.configure({"models": {"large": large}})
        self.assertEqual(await self.asked("-m", "wee", "--small-model", "big"), ("wee", "big"))
        [request] = [request for request in self.model.requests if request.get("tools")]
        self.assertEqual(request["top_k"], 7)

    async def test_a_model_that_is_spelled_out_is_used_as_written_though_not_listed(self) -> None:
        code, printed, errors = await self.ask("--model", "lab/bik")
        self.assertEqual((code, printed), (0, "answered by bik\n"), errors)
        self.assertIn("lab lists no model 'bik', it is used as you wrote it: did you mean", errors)

    async def test_a_model_can_be_named_while_the_configured_one_cannot_be_used(self) -> None:
        self.configure({"models": {"large": {"provider": "gone", "model": "x"}}})
        code, printed, errors = await self.ask("--model", "lab/big")
        self.assertEqual((code, printed), (0, "answered by big\n"), errors)

    async def test_a_name_that_nobody_has_is_an_error_with_near_ones(self) -> None:
        for given, reason in {
            "bik": "no model is called 'bik': did you mean big?",
            "shared": "several providers have shared: say which, lab/shared or zoo/shared",
            "nosuch/big": "no provider 'nosuch' can be used, only lab, zoo: did you mean lab/big",
            "/": "no model is called '/'",
        }.items():
            with self.subTest(given):
                code, printed, errors = await self.ask("--model", given)
                self.assertEqual((code, printed), (1, ""))
                self.assertIn(reason, errors)
        self.assertEqual((await self.ask())[1], "answered by big\n")
        self.assertFalse((self.project / ".crushlite/crush.json").exists())


class ChatTests(ModelCase):
    async def test_the_models_are_listed_and_chosen_by_number_or_name(self) -> None:
        window = await self.chat(self.host)
        window.enter("/model 2")
        await window.shows("lab/wee")
        await window.shows("64000")
        window.enter("/model 2")
        await window.shows("later prompts go to lab/wee, in all your directories without a")
        window.enter("/model small zoo/qwen")
        await window.shows("titles come from zoo/qwen")
        window.enter("/model lab/bik")
        await window.shows("did you mean big?")
        window.enter("hello")
        await window.shows("answered by wee")
