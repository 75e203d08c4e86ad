"""Each API against a scripted server that answers and fails as the public documentation has it."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from crushlite.coder.providers.anthropic import AnthropicProvider
from crushlite.coder.providers.base import CallPiece, ModelStop, Text, Thought, Tokens
from crushlite.coder.providers.gemini import GeminiProvider
from crushlite.coder.providers.openai import OpenAIProvider
from crushlite.coder.providers.responses import ResponsesProvider
from crushlite.fake_model import (
    Break,
    Counts,
    Drop,
    End,
    FakeModel,
    Refuse,
    Say,
    Think,
    Use,
)
from tests.support.configured import ConfiguredTestCase, configuration
from tests.support.model import CoderBench
from tests.support.providers import KEY, Case, ask, pieces_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from crushlite.coder.providers.base import Piece
    from crushlite.coder.providers.client import ProviderClient

APIS: tuple[type[ProviderClient], ...] = (
    OpenAIProvider,
    AnthropicProvider,
    ResponsesProvider,
    GeminiProvider,
)
# Whether a retry can help, and whether the conversation is too long.
FAILURES = {
    "unauthorized": (False, False),
    "overflow": (False, True),
    "rate_limit": (True, False),
    "overloaded": (True, False),
}


def scalars(value: Any) -> list[Any]:
    """All numbers and texts in a JSON value."""
    if isinstance(value, dict | list):
        items = value.values() if isinstance(value, dict) else value
        return [found for item in items for found in scalars(item)]
    return [value]


class ServerTests(Case):
    async def played(self, api: type[ProviderClient], *steps: Any) -> list[Piece]:
        """The pieces of an answer with these steps."""
        async with FakeModel(script=lambda request: list(steps)) as model:
            return await self.within(pieces_of(self.client(api, model.base_url), ask()))

    async def test_an_answer_with_reasoning_text_and_calls_is_read_whole(self) -> None:
        usage = Counts(100, 20, cache_read=60, reasoning=5)
        steps = [Think("hm"), Think(" yes"), Say("Let me "), Say("look.")]
        steps += [
            Use("ls", '{"path": "a"}', "c1"),
            Use("ls", '{"path": "b"}', "c2"),
            End(usage=usage),
        ]
        for api in APIS:
            with self.subTest(api.__name__):
                pieces = await self.played(api, *steps)
                thought = "".join(piece.text for piece in pieces if isinstance(piece, Thought))
                self.assertEqual(thought, "hm yes")
                text = "".join(piece.text for piece in pieces if isinstance(piece, Text))
                self.assertEqual(text, "Let me look.")
                calls: dict[int, list[str]] = {}
                for piece in pieces:
                    if isinstance(piece, CallPiece):
                        calls.setdefault(piece.index, ["", "", ""])
                        for at, part in enumerate((piece.id, piece.name, piece.arguments)):
                            calls[piece.index][at] += part
                self.assertEqual(
                    calls, {0: ["c1", "ls", '{"path": "a"}'], 1: ["c2", "ls", '{"path": "b"}']}
                )
                tokens = [piece for piece in pieces if isinstance(piece, Tokens)][-1]
                self.assertEqual(
                    (tokens.prompt, tokens.completion, tokens.cache_read), (40, 20, 60)
                )
                self.assertEqual(pieces[-1], ModelStop("tool_use"))

    async def test_the_ways_to_stop_are_told_apart(self) -> None:
        for api in APIS:
            for given, reason in (("", "end_turn"), ("length", "max_tokens")):
                with self.subTest(api.__name__, given=given):
                    pieces = await self.played(api, Say("hi"), End(given))
                    self.assertEqual(pieces[-1], ModelStop(reason))
            if api is not AnthropicProvider:
                pieces = await self.played(api, Say("hi"), End("content_filter"))
                self.assertEqual(pieces[-1], ModelStop("content_filter"))

    async def test_a_failure_says_whether_to_retry_and_whether_the_window_is_full(self) -> None:
        for api in APIS:
            for kind, expected in FAILURES.items():
                for begun in ((), (Say("hel"),)):
                    with self.subTest(api.__name__, kind=kind, begun=begun):
                        error = await self.refused(self.played(api, *begun, Refuse(kind)))
                        self.assertEqual((error.retryable, error.overflow), expected)

    async def test_a_key_or_an_option_that_a_server_quotes_is_not_shown(self) -> None:
        for api in APIS:
            async with FakeModel() as model:
                secret = "an-option-0123456789"
                options = {"metadata": {"api_key": secret}}
                provider = self.client(api, model.base_url, options=options)
                async with self.asking(model, provider, ask()) as (call, task):
                    sent = json.dumps([call.headers, call.request])
                    self.assertTrue(KEY in sent and secret in sent)
                    call.error(403, f"Refused: {sent}")
                error = await self.refused(task)
            with self.subTest(api.__name__):
                self.assertIn("Refused", str(error))
                self.assertNotIn(KEY, str(error))
                self.assertNotIn(secret, str(error))

    async def test_a_stream_that_breaks_off_can_be_retried(self) -> None:
        for api in APIS:
            for end in (Break(), Drop()):
                with self.subTest(api.__name__, end=end):
                    error = await self.refused(self.played(api, Say("hel"), end))
                    self.assertTrue(error.retryable)

    async def test_gemini_names_the_wait_before_a_retry(self) -> None:
        error = await self.refused(self.played(GeminiProvider, Refuse("rate_limit")))
        self.assertEqual(error.retry_after, 0.001)

    async def test_the_models_are_listed(self) -> None:
        for api in APIS:
            async with FakeModel(models=["a", "b"]) as model:
                listed = await self.within(self.client(api, model.base_url).list_models())
                self.assertEqual([model.id for model in listed], ["a", "b"])


class TurnTests(CoderBench):
    """The whole coder on such a server."""

    async def test_a_turn_survives_overload_and_broken_streams(self) -> None:
        for api in APIS:
            plan: list[Sequence[Any]] = [
                [Refuse("overloaded")],
                [Think("hm"), Say("hel"), Break()],
                [Say("hel"), Refuse("overloaded")],
                [Think("hm"), Say("hello"), End(usage=Counts(9, 3))],
            ]

            def script(request: dict[str, Any], plan: list[Sequence[Any]] = plan) -> Sequence[Any]:
                return plan.pop(0)

            async with FakeModel(script=script) as model:
                provider = api(model.base_url, "key", clock=self.clock)
                turn = await asyncio.wait_for(self.converse(self.coder(provider)), 20)
                await provider.aclose()
            with self.subTest(api.__name__):
                answers = [m for m in await self.stored(turn) if m.role == "assistant"]
                self.assertEqual(answers[-1].text, "hello")
                self.assertEqual(plan, [])


class ConfiguredTests(ConfiguredTestCase):
    """From crush.json to the request."""

    PATHS = {
        "openai": "/v1/responses",
        "anthropic": "/v1/messages",
        "gemini": "/v1/models/fake-large:streamGenerateContent",
        "google": "/v1/models/fake-large:streamGenerateContent",
        "openrouter": "/v1/chat/completions",
        "openai-compat": "/v1/chat/completions",
        "ollama": "/v1/chat/completions",
    }

    async def test_every_configured_setting_reaches_the_api_of_its_type(self) -> None:
        for kind, path in self.PATHS.items():
            document = configuration(self.model, self.titles)
            document["providers"]["works"] |= {
                "type": kind,
                "extra_body": {"of_the_body": 1},
                "extra_headers": {"X-Team": "parsers"},
                "provider_options": {"of_the_provider": 2, "of_both": {"a": 1, "b": 1}},
            }
            document["models"]["large"] |= {
                "top_k": 41,
                "frequency_penalty": 0.25,
                "presence_penalty": 0.75,
                "reasoning_effort": "high",
                "max_tokens": 8765,
                "provider_options": {"of_both": {"b": 2}},
            }
            self.configure(**document)
            first = len(self.model.calls)
            anna = await self.join(self.folder(kind))
            await self.turn(anna, await anna.session(), "hello")
            call = self.model.calls[first]
            with self.subTest(kind):
                self.assertEqual(call.path, path)
                self.assertEqual(call.headers["x-team"], "parsers")
                self.assertEqual(call.request["of_the_body"], 1)
                self.assertEqual(call.request["of_the_provider"], 2)
                self.assertEqual(call.request["of_both"], {"a": 1, "b": 2})
                # Anthropic has no penalties, and takes no top_k while it thinks.
                values = [8765] if kind == "anthropic" else [8765, 41, 0.25, 0.75, "high"]
                sent = scalars(call.request)
                self.assertEqual([value for value in values if value not in sent], [])
                self.assertEqual("reasoning" in call.request, kind in ("openai", "openrouter"))
