"""What the tests of the coder share: the coder in a daemon, between clients and fake model servers;
and the coder on a turn without a daemon, with a provider whose answers the test has written down.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from unittest import mock

from crushlite.agent.base import Agent
from crushlite.clock import SystemClock
from crushlite.coder.loop import CoderAgent, CoderOptions, ServedModel
from crushlite.coder.providers.base import ModelStop, Text
from crushlite.coder.providers.openai import OpenAIProvider
from crushlite.coder.tools.base import ToolContext, ToolOutcome, ToolUse
from crushlite.delegation.wing import DelegationPart
from crushlite.fake_model import End, FakeModel, Say
from crushlite.hosting import turn_requests
from crushlite.hosting.turn import LiveTurn
from crushlite.protocol.config import Model, SelectedModel
from crushlite.protocol.messages import FinishPart, Message, Prompt, TextPart
from crushlite.shell import part as shell_part
from crushlite.testing import LocalDaemon
from crushlite.titles import part as titles_part
from tests.support.agents import AgentTestCase
from tests.support.basics import LIMIT, BoundedTestCase
from tests.support.turns import SESSION, Bench

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

    from crushlite.clock import Clock
    from crushlite.coder.providers.base import ModelClient, ModelRequest, Piece
    from crushlite.coder.tools.base import Tool
    from crushlite.fake_model import ModelCall, Script, Step
    from crushlite.protocol.messages import Part
    from crushlite.settings import Settings
    from crushlite.testing import Participant, Seen, Stores

__all__ = [
    "QUICK",
    "CoderBench",
    "CoderDaemonTestCase",
    "CoderTestCase",
    "EchoTool",
    "GateTool",
    "HastyClock",
    "PlannedProvider",
    "chat",
    "results",
    "said",
    "served",
]

QUICK = (("retry-after-ms", "1"),)  # headers of an error that may be retried at once


class HastyClock(SystemClock):
    """Real time, except that `sleep` returns at once and writes down how long it would take."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def sleep(self, delay: float) -> None:
        self.slept.append(delay)
        await asyncio.sleep(0)


@dataclass
class EchoTool:
    """Answers with its input, or with what `answer` makes of it."""

    name: str = "echo"
    read_only: bool = False
    answer: Callable[[dict[str, Any]], ToolOutcome] | None = None
    description: str = "Repeats its input."
    parameters: dict[str, Any] = field(default_factory=lambda: {"type": "object"})
    ran: list[dict[str, Any]] = field(default_factory=list)

    async def run(self, call: ToolUse) -> ToolOutcome:
        self.ran.append(call.input)
        if self.answer is not None:
            return self.answer(call.input)
        return ToolOutcome(f"echo {call.input.get('text', '')}")


@dataclass
class GateTool:
    """Waits until the test opens the gate. `inside` is released by each call that has begun, and by
    each that was cancelled and waits for `cleanup`; `left` counts the calls that have ended."""

    name: str = "gate"
    read_only: bool = False
    description: str = "Waits."
    parameters: dict[str, Any] = field(default_factory=lambda: {"type": "object"})
    inside: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    cleanup: asyncio.Event | None = None  # what a cancelled call waits for before it ends
    left: int = 0

    async def run(self, call: ToolUse) -> ToolOutcome:
        self.inside.release()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            if self.cleanup is not None:
                self.inside.release()
                await self.cleanup.wait()
            raise
        finally:
            self.left += 1
        return ToolOutcome("the gate is open")


def served(provider: ModelClient, model: Model, prefix: str = "") -> ServedModel:
    return ServedModel(provider, model, SelectedModel(model=model.id, provider="fake"), prefix)


def chat(request: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The conversation of a chat request as (role, text), without the system message; a tool call
    reads `name(arguments)`."""
    found = []
    for message in request["messages"]:
        content = message.get("content") or ""
        if isinstance(content, list):
            content = "".join(part.get("text", "") for part in content)
        calls = [call["function"] for call in message.get("tool_calls", ())]
        content += "".join(f"{call['name']}({call['arguments']})" for call in calls)
        found.append((message["role"], content))
    return [entry for entry in found if entry[0] != "system"]


def results(messages: Sequence[Seen]) -> list[dict[str, Any]]:
    """The tool results of a history, in order."""
    parts = [part for message in messages for part in message["parts"]]
    return [part["data"] for part in parts if part["type"] == "tool_result"]


def titles(request: dict[str, Any]) -> Sequence[Step]:
    """A title without usage, so that the session's counters are those of the large model alone."""
    return [Say("Fake Title"), End(usage=None)]


class CoderDaemonTestCase(BoundedTestCase):
    """A daemon whose agent is the coder. `self.model` is the fake server of its large model,
    `self.titles` that of the small one, which writes titles: so the requests of the large model can
    be counted. Either is played by its script, or by the test if it has none."""

    async def start_models(self, script: Script | None, titles: Script | None) -> None:
        self.model = await self.enterAsyncContext(FakeModel(script=script))
        self.titles = await self.enterAsyncContext(FakeModel(script=titles))

    async def start_daemon(
        self,
        agent: Any,
        *,
        settings: Settings | None = None,
        clock: Clock | None = None,
        stores: Stores | None = None,
        tcp: bool = False,
    ) -> None:
        """`self.project` is the directory that clients open, `self.home` that of the user."""
        auth = "none" if tcp else "token"
        daemon = LocalDaemon(
            agent, settings=settings, clock=clock, stores=stores, tcp=tcp, auth=auth
        )
        self.home = daemon.root / "home"
        self.home.mkdir()
        self.env = [f"HOME={self.home}", f"PATH={os.environ.get('PATH', os.defpath)}"]
        self.prepare_home()
        self.daemon = await self.enterAsyncContext(daemon)
        self.project = self.daemon.root / "project"
        # Killed commands are waited for as long as it takes: on a busy machine that may be more
        # than the few seconds after which the daemon gives up.
        for module, name in (
            (turn_requests, "WATCH_SECONDS"),
            (shell_part, "END_SECONDS"),
            (titles_part, "END_SECONDS"),
        ):
            self.enterContext(mock.patch.object(module, name, LIMIT / 2))

    def prepare_home(self) -> None:
        """Write the user's files before the daemon starts."""

    async def join(self, path: str | Path | None = None, **create: Any) -> Participant:
        """A client in the test's own environment, not in that of this machine."""
        return await self.daemon.join(path, env=self.env, **create)


class CoderTurn:
    """A request to the model, which the test answers."""

    def __init__(self, call: ModelCall) -> None:
        self.call = call

    @property
    def open(self) -> bool:
        return self.call.open

    async def heard(self) -> list[tuple[str, str]]:
        return chat(self.call.request)

    async def say(self, text: str) -> None:
        await self.call.text(text)

    async def end(self, reason: str = "") -> None:
        await self.call.finish({"max_tokens": "length"}.get(reason, reason))

    async def fail(self, message: str) -> None:
        self.call.error(400, message)

    async def end_late(self, text: str) -> None:
        await self.call.text(text)
        await self.call.finish()

    async def stopped(self) -> None:
        await self.call.gone()


class CoderTestCase(CoderDaemonTestCase, AgentTestCase):
    """The coder is made by the test, with `start`; `self.anna` is its client, with one session."""

    further_steps = 0  # requests to the model beyond the first of each turn

    async def start(
        self,
        *,
        script: Script | None = None,
        titles: Script | None = titles,
        tools: Sequence[Tool] = (),
        model: Model | None = None,
        options: CoderOptions | None = None,
        settings: Settings | None = None,
        tcp: bool = False,
        yolo: bool = True,
    ) -> None:
        await self.start_models(script, titles)
        self.naps = HastyClock()
        large = model or Model(id="fake-large", context_window=100_000)

        def make(path: Path, env: Mapping[str, str], config: Any) -> CoderAgent:
            clock = SystemClock()
            return CoderAgent(
                context=ToolContext(path, env),
                large=served(OpenAIProvider(self.model.base_url, "key", clock=clock), large),
                small=served(
                    OpenAIProvider(self.titles.base_url, "key", clock=clock),
                    Model(id="fake-small", cost_per_1m_in=1.0, cost_per_1m_out=1.0),
                ),
                tools=tools,
                options=options or CoderOptions(),
                clock=self.naps,
            )

        await self.start_daemon(make, settings=settings, tcp=tcp)
        self.anna = await self.join(yolo=yolo)
        self.session = await self.anna.session()

    async def turn(self, number: int) -> CoderTurn:
        return CoderTurn(await self.model.call(number + self.further_steps))

    async def start_at_a_tool(self) -> None:
        self.gate = GateTool()
        await self.start(tools=[self.gate])
        await self.post("main", run_id="main")
        call = await self.model.call(1)
        await call.text("wait ")
        await call.tool_call("c1", "gate", "{}")
        await call.finish()
        await self.gate.inside.acquire()

    async def next_step(self) -> CoderTurn:
        self.gate.gate.set()
        self.further_steps = 1
        return await self.turn(1)

    def assert_asked(self, *, turns: int, steps: int | None = None) -> None:
        self.assertEqual(len(self.model.calls), turns if steps is None else steps)

    async def exchange(self, text: str = "hello", answer: str = "hi", session: str = "") -> Seen:
        """Post a prompt and answer it as the model. Returns its run_complete."""
        number = len(self.model.calls) + 1
        run_id = await self.post(text, session)
        call = await self.model.call(number)
        await call.text(answer)
        await call.finish()
        return await self.complete(run_id)

    async def results(self) -> list[dict[str, Any]]:
        return results(await self.anna.messages(self.session))

    def asked(self, number: int) -> list[tuple[str, str]]:
        """The conversation of the large model's request with this number, from 1."""
        return chat(self.model.requests[number - 1])


# Without a daemon ---------------------------------------------------------------------------------


class PlannedProvider:
    """Gives one of the planned answers to each request, in order. An answer is a list of pieces; it
    breaks off with an exception among them."""

    def __init__(self, *answers: Sequence[Piece | BaseException]) -> None:
        self.answers = list(answers)
        self.requests: list[ModelRequest] = []
        self.closed = 0
        self.open = 0  # streams that have begun and not ended

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Piece, None]:
        self.requests.append(request)
        self.open += 1
        try:
            for piece in self.answers.pop(0):
                if isinstance(piece, BaseException):
                    raise piece
                yield piece
        finally:
            self.open -= 1

    async def aclose(self) -> None:
        self.closed += 1


def said(text: str) -> list[Piece | BaseException]:
    return [Text(text), ModelStop("end_turn")]


class CoderBench(Bench):
    """The coder on a real turn, in a real store, without a daemon."""

    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        self.parts.append(DelegationPart(self.workspace))

    def coder(
        self,
        provider: ModelClient,
        *,
        small: ModelClient | None = None,
        tools: Sequence[Tool] = (),
        model: Model | None = None,
        options: CoderOptions | None = None,
        prefix: str = "",
    ) -> CoderAgent:
        self.naps = HastyClock()
        model = model or Model(id="large", context_window=100_000)
        return CoderAgent(
            context=ToolContext(self.path, {}),
            large=served(provider, model, prefix),
            small=served(small or provider, Model(id="small")),
            tools=tools,
            options=options or CoderOptions(),
            clock=self.naps,
        )

    async def converse(
        self,
        agent: CoderAgent,
        prompt: str = "hello",
        parts: Sequence[Part] = (),
        *,
        fold: Callable[[LiveTurn], Awaitable[list[Message]]] | None = None,
        **order: Any,
    ) -> LiveTurn:
        """Run the agent on a turn, into which `fold` brings more prompts. Of the turn's ending only
        the usage is written; the rest is left to the caller."""
        self.user(prompt, *parts)
        fields = {"run_id": "run-1", "session_id": SESSION, "prompt": prompt, **order}
        asked = Prompt(**fields)

        self.live = LiveTurn(self.workspace, asked, Agent(agent), fold=fold)
        await agent.run(self.live)
        save_usage = self.live.saving_usage()
        if save_usage is not None:
            await self.store.submit(save_usage)
        return self.live

    def user(self, text: str, *parts: Part) -> None:
        """Put a user message into the session."""
        number = len(self.hub.log)
        content: list[Part] = [TextPart(text), *parts, FinishPart("stop")]
        self.transcript.create(Message(f"user-{number}", "user", SESSION, content))

    async def stored(self, turn: LiveTurn) -> list[Message]:
        """The session's messages as the ending of this turn leaves them in the database."""
        await self.store.submit(self.transcript.saving(turn.messages))
        self.transcript.saved(turn.messages)
        return await self.rows()
