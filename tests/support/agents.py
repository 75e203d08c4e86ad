"""Tests of one session that hold for every agent: the test plays the agent too.

What any agent must satisfy is written once, in a class that inherits `ForEveryAgent`. It is run
once per agent, by a class that inherits it together with the test case of that agent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from crushlite.testing import LocalDaemon
from tests.support.basics import BoundedTestCase
from tests.support.prompts import PATIENCE, shape, until

if TYPE_CHECKING:
    from pathlib import Path

    from crushlite.protocol.messages import Message
    from crushlite.settings import Settings
    from crushlite.testing import Participant, ScriptedRun, Seen

__all__ = ["AgentTestCase", "ForEveryAgent", "PlayedTurn", "ScriptedTestCase", "assistant"]

Conversation = list[tuple[str, str]]  # role and text


def assistant(event: Seen) -> bool:
    """Whether an event shows a message of the assistant."""
    return event.kind == "message" and event["role"] == "assistant"


class PlayedTurn(Protocol):
    """A turn, or one step of it, inside the agent; the test gives the answer."""

    @property
    def open(self) -> bool:
        """Whether the agent is still waiting for the answer."""

    async def heard(self) -> Conversation:
        """The conversation that the agent was given. A tool call reads `name(arguments)`."""

    async def say(self, text: str) -> None: ...

    async def end(self, reason: str = "") -> None:
        """Finish the answer, with a finish reason of its own if one is given."""

    async def fail(self, message: str) -> None:
        """End the turn with an error that cannot be retried."""

    async def end_late(self, text: str) -> None:
        """Go on answering although the turn has been canceled."""

    async def stopped(self) -> None:
        """Wait until the cancel of the turn has reached the agent."""


class AgentTestCase(BoundedTestCase):
    """A daemon with some agent; `self.anna` is a client of it, with one session."""

    daemon: LocalDaemon
    anna: Participant
    session: str

    # What each agent does in its own way ---------------------------------------------------------

    async def start(self, *, tcp: bool = False) -> None:
        raise NotImplementedError

    async def join(self, path: str | Path | None = None, **create: Any) -> Participant:
        return await self.daemon.join(path, **create)

    async def turn(self, number: int) -> PlayedTurn:
        """Wait until the turn with this number, from 1, is inside the agent."""
        raise NotImplementedError

    async def start_at_a_tool(self) -> None:
        """Start a daemon and a turn with the prompt and run id `main`, which has said `wait ` and
        called the tool `gate`; that is still running."""
        raise NotImplementedError

    async def next_step(self) -> PlayedTurn:
        """Let the tool return `the gate is open`; the turn goes on to its next step."""
        raise NotImplementedError

    def assert_asked(self, *, turns: int, steps: int | None = None) -> None:
        """The agent was asked for so many turns, and for so many answers in all of them."""
        raise NotImplementedError

    # The same for all ----------------------------------------------------------------------------

    async def asyncTearDown(self) -> None:
        endings = self.endings()
        self.assertEqual(len(endings), len(set(endings)), "a run ended twice")

    async def post(self, text: str, session: str = "", **fields: Any) -> str:
        """Post a prompt; returns the id of its run."""
        answer = await self.anna.prompt(session or self.session, text, **fields)
        return str(answer.json["run_id"])

    async def complete(self, run_id: str) -> Seen:
        """The run_complete of a run; fails if there was more than one."""
        found = self.anna.events.all("run_complete", run_id=run_id)
        done = found[0] if found else None
        if done is None:
            done = await self.anna.events.wait_for("run_complete", run_id=run_id)
        self.assertEqual(len(self.anna.events.all("run_complete", run_id=run_id)), 1)
        return done

    async def answer(self, number: int, text: str) -> None:
        """Give the answer with this number, and end it."""
        turn = await self.turn(number)
        await turn.say(text)
        await turn.end()

    async def outcome(self, run_id: str) -> str:
        """How a run ended, as its record tells it."""
        answer = await self.anna.call("GET", f"/runs/{run_id}?wait={PATIENCE}")
        self.assertEqual((answer.status, answer.json["state"]), (200, "ended"), answer.json)
        return str(answer.json["outcome"])

    def endings(self) -> list[str]:
        """The run ids of all run_complete events so far, in order."""
        return [event["run_id"] for event in self.anna.events.all("run_complete")]

    async def shape(self, session: str = "") -> list[tuple[str, str, str]]:
        """Role, finish reason and text of the session's messages."""
        return shape(await self.anna.messages(session or self.session))

    async def last_answer(self) -> Seen:
        messages = await self.anna.messages(self.session)
        return [message for message in messages if message["role"] == "assistant"][-1]

    async def queue(self, what: str) -> Any:
        """The session's waiting prompts: how many (`queued`), their texts (`list`), or all of them
        in full (empty)."""
        path = f"/agent/sessions/{self.session}/prompts/{what}"
        answer = await self.anna.call("GET", path.rstrip("/"))
        self.assertEqual(answer.status, 200)
        return answer.json


if TYPE_CHECKING:
    ForEveryAgent = AgentTestCase
else:
    ForEveryAgent = object  # alone it is no test case: its tests need an agent


class ScriptedTurn:
    def __init__(self, run: ScriptedRun) -> None:
        self.run = run

    @property
    def open(self) -> bool:
        return not self.run.canceled

    async def heard(self) -> Conversation:
        history: list[Message] = await self.run.do(lambda turn: turn.history())
        found = []
        for message in history:
            calls = [f"{call.name}({call.input})" for call in message.tool_calls]
            results = [result.content for result in message.tool_results]
            found.append((message.role, "".join([message.text, *calls, *results])))
        return found

    async def say(self, text: str) -> None:
        await self.run.say(text)

    async def end(self, reason: str = "") -> None:
        if reason:
            await self.run.do(lambda turn: turn.finish(reason))
        self.run.release()

    async def fail(self, message: str) -> None:
        self.run.fail(message)

    async def end_late(self, text: str) -> None:
        self.run.begin(lambda turn: turn.say(text))
        self.run.release()

    async def stopped(self) -> None:
        await until(lambda: self.run.canceled, "the agent was canceled")


class ScriptedTestCase(AgentTestCase):
    """With the scripted agent, or one that the test brings."""

    async def start(
        self, agent: Any = None, *, settings: Settings | None = None, tcp: bool = False
    ) -> None:
        auth = "none" if tcp else "token"
        daemon = LocalDaemon(agent, settings=settings, tcp=tcp, auth=auth)
        self.daemon = await self.enterAsyncContext(daemon)
        self.anna = await self.join()
        self.session = await self.anna.session()

    async def turn(self, number: int) -> PlayedTurn:
        return ScriptedTurn(await self.daemon.entered(number))

    async def start_at_a_tool(self) -> None:
        await self.start()
        await self.post("main", run_id="main")
        run = await self.daemon.entered(1)
        await run.say("wait ")
        await run.do(lambda turn: turn.tool_call("gate", "{}", id="c1"))

    async def next_step(self) -> PlayedTurn:
        run = await self.daemon.entered(1)
        await run.do(lambda turn: turn.tool_result("c1", "the gate is open"))
        await run.do(lambda turn: turn.followups())
        self.assertEqual(await run.do(lambda turn: turn.followups()), [], "joined once")
        return ScriptedTurn(run)

    def assert_asked(self, *, turns: int, steps: int | None = None) -> None:
        self.assertEqual(len(self.daemon.agent.runs), turns)
