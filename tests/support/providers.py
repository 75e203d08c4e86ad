"""What the tests of providers share: requests, answers through memory transports, so that they are
split and end where the test decides, and a fake model that gets what is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any
from unittest import mock

from crushlite.coder.providers.anthropic import AnthropicProvider
from crushlite.coder.providers.base import (
    ChatMessage,
    Image,
    ModelClient,
    ModelRequest,
    ModelStop,
    Piece,
    ProviderError,
    Text,
    ToolSpec,
)
from crushlite.coder.providers.openai import OpenAIProvider
from crushlite.fake_model import FakeModel
from tests.support.http import HTTPTestCase
from tests.support.memory import MemoryTransport

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator, Callable

    from crushlite.coder.providers.client import ProviderClient as AnyProvider
    from crushlite.fake_model import ModelCall

KEY = "sk-secret-0123456789"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
HI: list[Piece] = [Text("hi"), ModelStop("end_turn")]
TOOL = ToolSpec("ls", "Lists.", {"type": "object", "properties": {}})
PICTURE = Image("image/png", "QUJD")


def sse(*values: Any) -> bytes:
    """The bytes of events; a str is sent as it is, anything else as JSON."""
    texts = [value if isinstance(value, str) else json.dumps(value) for value in values]
    return "".join(f"data: {text}\n\n" for text in texts).encode()


def ask(text: str = "hi", **more: Any) -> ModelRequest:
    return ModelRequest("m", "You help.", [ChatMessage("user", text)], **more)


def spoiled(value: Any, rng: random.Random) -> Any:
    """The value with one part of it replaced, removed or doubled."""
    odd: Any = rng.choice([None, 0, -1, 1.5, True, "", "x", [], {}, [None], {"a": []}, "0", 10**30])
    if isinstance(value, dict) and value and rng.random() < 0.85:
        name = rng.choice(list(value))
        if rng.random() < 0.15:
            return {k: v for k, v in value.items() if k != name}
        return {**value, name: spoiled(value[name], rng)}
    if isinstance(value, list) and value and rng.random() < 0.85:
        at = rng.randrange(len(value))
        more = [value[at]] if rng.random() < 0.15 else []
        return [*value[:at], *more, spoiled(value[at], rng), *value[at + 1 :]]
    return odd


class Memory:
    """Connections in memory, on which a test plays the provider's server."""

    def __init__(self) -> None:
        self.transports: list[MemoryTransport] = []

    async def connect(self, factory: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        found = MemoryTransport(factory())
        found.connect()
        self.transports.append(found)
        return found


async def pieces_of(provider: ModelClient, request: ModelRequest | None = None) -> list[Piece]:
    return [piece async for piece in provider.stream(request or ask())]


class Case(HTTPTestCase):
    """Checks that a test leaves no timer and no connection behind."""

    async def asyncSetUp(self) -> None:
        self.providers: list[AnyProvider] = []
        self.memories: dict[AnyProvider, Memory] = {}

    async def asyncTearDown(self) -> None:
        for provider in self.providers:
            await self.within(provider.aclose())
        self.assertEqual(self.clock.pending, 0)

    def client(
        self, api: type[AnyProvider], base_url: str = "http://model/v1", **options: Any
    ) -> AnyProvider:
        provider = api(base_url, KEY, clock=self.clock, **options)
        self.providers.append(provider)
        return provider

    def openai(self, base_url: str = "http://model/v1", **options: Any) -> OpenAIProvider:
        provider = OpenAIProvider(base_url, KEY, clock=self.clock, **options)
        self.providers.append(provider)
        return provider

    def anthropic(self, base_url: str = "http://model", **options: Any) -> AnthropicProvider:
        provider = AnthropicProvider(base_url, KEY, clock=self.clock, **options)
        self.providers.append(provider)
        return provider

    def in_memory(self, provider: AnyProvider) -> Memory:
        if provider not in self.memories:
            memory = self.memories[provider] = Memory()
            patch = mock.patch.object(provider._transport.endpoint, "connect", memory.connect)
            patch.start()
            self.addCleanup(patch.stop)
        return self.memories[provider]

    async def answered(
        self, provider: AnyProvider, data: bytes, *, step: int = 0, eof: bool = True
    ) -> list[Piece]:
        """The pieces that the provider yields for these bytes, which come `step` bytes at a
        time."""
        memory = self.in_memory(provider)
        task = asyncio.create_task(pieces_of(provider))
        await self.settle()
        memory.transports[-1].feed(data, step=step)
        await self.settle()
        if eof:
            memory.transports[-1].feed_eof()
        return await self.within(task)

    async def cut_anywhere(self, provider: AnyProvider, data: bytes, pieces: list[Piece]) -> None:
        """Check that the same pieces come out, wherever the network splits the bytes in two."""
        memory = self.in_memory(provider)
        for at in range(len(data) + 1):
            task = asyncio.create_task(pieces_of(provider))
            await self.settle()
            memory.transports[-1].feed(HEAD + data[:at])
            await self.settle()
            memory.transports[-1].feed(data[at:])
            memory.transports[-1].feed_eof()
            self.assertEqual(await self.within(task), pieces, f"cut at {at}")

    async def failure(self, provider: AnyProvider, data: bytes, **how: Any) -> ProviderError:
        try:
            pieces = await self.answered(provider, data, **how)
        except ProviderError as error:
            self.assertNotIn(KEY, str(error))
            self.assertLessEqual(len(str(error)), 2000)
            self.assertEqual((error.status, error.code), (502, "provider_failed"))
            return error
        raise AssertionError(f"no error, but {pieces}")

    async def refused(self, awaitable: Any) -> ProviderError:
        with self.assertRaises(ProviderError) as caught:
            await self.within(awaitable)
        return caught.exception

    @contextlib.asynccontextmanager
    async def asking(
        self, model: FakeModel, provider: AnyProvider, request: ModelRequest | None = None
    ) -> AsyncIterator[tuple[ModelCall, asyncio.Task[list[Piece]]]]:
        """Send a request; the block gets it as the model does, and the task that waits for its
        pieces."""
        task = asyncio.create_task(pieces_of(provider, request))
        try:
            yield await model.call(len(model.calls) + 1), task
            await self.within(asyncio.wait([task]))
        finally:
            task.cancel()


class SentCase(Case):
    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        self.model = await FakeModel().__aenter__()
        self.addAsyncCleanup(self.model.aclose)

    async def sent(self, provider: AnyProvider, request: ModelRequest) -> dict[str, Any]:
        """The body of a request, as the fake model gets it."""
        async with self.asking(self.model, provider, request) as (call, task):
            self.call = call
            await call.finish("stop")
        await task
        return call.request
