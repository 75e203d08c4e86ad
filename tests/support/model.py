"""What the tests of the model agent share: the coder between a daemon and a fake model server, and
the coder alone on a bench, with a provider that says what the test wrote down."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from crushlite.agent.base import Agent
from crushlite.clock import SystemClock
from crushlite.coder.coder import Brain, CoderAgent, CoderOptions
from crushlite.coder.providers.base import ModelStop, Text
from crushlite.coder.providers.openai import OpenAIProvider
from crushlite.coder.tools.base import ToolContext, ToolOutcome, ToolUse
from crushlite.hosting.prompts import TurnRequest
from crushlite.hosting.summaries import write_summary
from crushlite.hosting.turn import LiveTurn
from crushlite.protocol.config import Model, SelectedModel
from crushlite.protocol.messages import FinishPart, Message, TextPart
from crushlite.testing import LocalDaemon
from crushlite.testing.model import End, FakeModel, Say
from tests.support.basics import BoundedTestCase
from tests.support.turns import SESSION, Bench

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
    from pathlib import Path

    from crushlite.coder.providers.base import ModelClient, ModelRequest, Piece
    from crushlite.coder.tools.base import Tool
    from crushlite.protocol.messages import Part
    from crushlite.settings import Settings
    from crushlite.testing import Participant, Seen
    from crushlite.testing.model import Script

__all__ = [
    "CoderBench",
    "CoderTestCase",
    "EchoTool",
    "GateTool",
    "HastyClock",
    "PlannedProvider",
    "brain",
    "chat_of",
    "results_of",
]

Outcomes = list[tuple[str, str]]
QUICK = (("retry-after-ms", "1"),)  # headers of an error that may be tried again at once


class HastyClock(SystemClock):
    """Real time, except that nobody sleeps: how long they wanted to is written down."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def sleep(self, delay: float) -> None:
        self.slept.append(delay)
        await asyncio.sleep(0)


@dataclass
class EchoTool:
    """Answers with its input, or with whatever `answer` makes of it."""

    name: str = "echo"
    read_only: bool = False
    answer: Callable[[dict[str, Any]], ToolOutcome] | None = None
    description: str = "Says what it was told."
    parameters: dict[str, Any] = field(default_factory=lambda: {"type": "object"})
    ran: list[dict[str, Any]] = field(default_factory=list)

    async def run(self, call: ToolUse) -> ToolOutcome:
        self.ran.append(call.input)
        if self.answer is not None:
            return self.answer(call.input)
        return ToolOutcome(f"echo {call.input.get('text', '')}")


@dataclass
class GateTool:
    """Stays inside until the test opens the gate; `entered` counts who came in."""

    name: str = "gate"
    read_only: bool = False
    description: str = "Waits."
    parameters: dict[str, Any] = field(default_factory=lambda: {"type": "object"})
    inside: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    cleanup: asyncio.Event | None = None  # what a cancelled call waits for before it leaves
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


def brain(provider: ModelClient, model: Model, prefix: str = "") -> Brain:
    return Brain(provider, model, SelectedModel(model=model.id, provider="fake"), prefix)


def chat_of(request: dict[str, Any]) -> list[tuple[str, str]]:
    """The conversation of a chat request as (role, text), without the system message; a tool call
    reads `name(arguments)`."""
    chat = []
    for message in request["messages"]:
        calls = [call["function"] for call in message.get("tool_calls", ())]
        text = (message["content"] or "") + "".join(f"{c['name']}({c['arguments']})" for c in calls)
        chat.append((message["role"], text))
    return [entry for entry in chat if entry[0] != "system"]


def results_of(messages: Sequence[Seen]) -> list[dict[str, Any]]:
    """The tool results of a session, in order."""
    parts = [part for message in messages for part in message["parts"]]
    return [part["data"] for part in parts if part["type"] == "tool_result"]


class CoderTestCase(BoundedTestCase):
    """A daemon whose agent is the coder. `self.model` is the fake server of its large model, which
    the test plays unless a script does; `self.titles` that of the small one, which makes titles."""

    async def start(
        self,
        *,
        script: Script | None = None,
        titles: Script | None = lambda request: [Say("A Title"), End(usage=None)],
        tools: Sequence[Tool] = (),
        model: Model | None = None,
        options: CoderOptions | None = None,
        settings: Settings | None = None,
        tcp: bool = False,
        yolo: bool = True,
    ) -> None:
        self.model = await self.enterAsyncContext(FakeModel(script=script))
        self.titles = await self.enterAsyncContext(FakeModel(script=titles))
        self.naps = HastyClock()
        large = model or Model(id="fake-large", context_window=100_000)

        def make(path: Path, env: Mapping[str, str], config: Any) -> CoderAgent:
            clock = SystemClock()
            return CoderAgent(
                context=ToolContext(path, env),
                large=brain(OpenAIProvider(self.model.base_url, "key", clock=clock), large),
                small=brain(
                    OpenAIProvider(self.titles.base_url, "key", clock=clock),
                    Model(id="fake-small", cost_per_1m_in=1.0, cost_per_1m_out=1.0),
                ),
                tools=tools,
                options=options or CoderOptions(),
                clock=self.naps,
            )

        daemon = LocalDaemon(make, settings=settings, tcp=tcp, auth="none" if tcp else "token")
        self.daemon = await self.enterAsyncContext(daemon)
        self.project = self.daemon.root / "project"
        self.anna: Participant = await self.join(yolo=yolo)
        self.session = await self.anna.session()

    async def asyncTearDown(self) -> None:
        endings = [event["run_id"] for event in self.anna.events.all("run_complete")]
        self.assertEqual(len(endings), len(set(endings)), "a run ended twice")

    async def join(self, **create: Any) -> Participant:
        """A client whose environment is none of this machine's business."""
        home = self.daemon.root / "home"
        home.mkdir(exist_ok=True)
        env = [f"HOME={home}", f"PATH={os.environ['PATH']}"]
        return await self.daemon.join(env=env, **create)

    async def post(self, text: str, session: str = "", **fields: Any) -> str:
        """Post a prompt; returns the id of its run."""
        answer = await self.anna.prompt(session or self.session, text, **fields)
        return str(answer.json["run_id"])

    async def complete(self, run_id: str) -> Seen:
        """The run_complete of a run, and the only one there has been."""
        found = self.anna.events.all("run_complete", run_id=run_id)
        done = found[0] if found else None
        if done is None:
            done = await self.anna.events.wait_for("run_complete", run_id=run_id)
        self.assertEqual(len(self.anna.events.all("run_complete", run_id=run_id)), 1)
        return done

    async def exchange(self, text: str = "hello", answer: str = "hi", session: str = "") -> Seen:
        """A prompt that the model answers with a text; its run_complete."""
        number = len(self.model.calls) + 1
        run_id = await self.post(text, session)
        call = await self.model.call(number)
        await call.text(answer)
        await call.finish()
        return await self.complete(run_id)

    async def told(self, session: str = "") -> list[tuple[str, str, str]]:
        """Role, text and finish reason of the session's messages."""
        messages = await self.anna.messages(session or self.session)
        return [(message["role"], message.text, message.finish) for message in messages]

    async def results(self) -> list[dict[str, Any]]:
        return results_of(await self.anna.messages(self.session))

    async def queue(self, what: str) -> Any:
        answer = await self.anna.call("GET", f"/agent/sessions/{self.session}/prompts/{what}")
        self.assertEqual(answer.status, 200)
        return answer.json

    def asked(self, number: int) -> list[tuple[str, str]]:
        """The conversation of the large model's request with this number, from 1."""
        return chat_of(self.model.requests[number - 1])


# Without a daemon ---------------------------------------------------------------------------------


class PlannedProvider:
    """Answers the requests in turn; an answer is the pieces it consists of, and an exception among
    them is where it breaks off."""

    def __init__(self, *answers: Sequence[Piece | BaseException]) -> None:
        self.answers = list(answers)
        self.requests: list[ModelRequest] = []
        self.closed = 0
        self.open = 0  # streams that were begun and are not over

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
            large=brain(provider, model, prefix),
            small=brain(small or provider, Model(id="small")),
            tools=tools,
            options=options or CoderOptions(),
            clock=self.naps,
        )

    async def converse(
        self, agent: CoderAgent, prompt: str = "hello", parts: Sequence[Part] = (), **order: Any
    ) -> LiveTurn:
        """Let the agent take a turn, and leave its ending to the caller."""
        self.user(prompt, *parts)
        fields = {"run_id": "run-1", "session_id": SESSION, "prompt": prompt, **order}
        asked = TurnRequest(**fields)

        async def nobody() -> list[Message]:
            return []

        async def summarize() -> None:
            await write_summary(self.services, asked, Agent(agent))

        selected = SelectedModel(model="m", provider="p")
        self.live = LiveTurn(self.services, asked, selected, nobody, summarize)
        await agent.run(self.live)
        return self.live

    def user(self, text: str, *parts: Part) -> None:
        """Put a user message into the session."""
        number = len(self.hub.log)
        content: list[Part] = [TextPart(text), *parts, FinishPart("stop")]
        self.transcript.create(Message(f"user-{number}", "user", SESSION, content))

    async def stored(self, turn: LiveTurn) -> list[Message]:
        """The session's messages as the ending of this turn leaves them in the database."""
        await self.store.submit(self.transcript.unsaved(turn.messages))
        self.transcript.saved(turn.messages)
        return await self.rows()
