"""What the tests of prompts and runs have in common: a store with a gate, and what must agree."""

from __future__ import annotations

import asyncio
import contextlib
import unittest
import uuid
from collections import deque
from typing import TYPE_CHECKING, Any

from crushlite.clock import SystemClock
from crushlite.testing import InlineExecutor, LocalDaemon, Stores

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from crushlite.agent.base import Turn
    from crushlite.clock import Clock
    from crushlite.settings import Settings
    from crushlite.store.callqueue import Executor
    from crushlite.testing import EventReader, Participant, Seen

__all__ = [
    "PAIR",
    "PATIENCE",
    "Gate",
    "PromptTestCase",
    "gated",
    "is_assistant",
    "notes",
    "pair",
    "reach",
    "shape",
    "stubborn",
    "until",
]

PATIENCE = 60.0  # seconds: only a hang reaches it


async def until(condition: Callable[[], bool], what: str) -> None:
    """Let the loop run until the condition holds."""
    try:
        async with asyncio.timeout(PATIENCE):
            while not condition():  # noqa: ASYNC110 - the daemon has no event for it
                await asyncio.sleep(0)
    except TimeoutError:
        raise AssertionError(f"this never came true: {what}") from None


async def reach(event: asyncio.Event) -> None:
    """Wait for an event, but not for ever."""
    async with asyncio.timeout(PATIENCE):
        await event.wait()


class Gate:
    """Stores whose commits wait, while the gate is shut, until the test lets them through.

    Everything runs in the test's own thread, so a commit happens exactly where `let` is called.
    """

    def __init__(self, clock: Clock) -> None:
        self.held: deque[Callable[[], None]] = deque()
        self.is_shut = False
        self.stores = Stores(clock=clock, boot_id=str(uuid.uuid4()), executor=self._executor)

    def _executor(self, name: str) -> Executor:
        return _Gated(self) if name == "crushlite-writer" else InlineExecutor(name)

    def shut(self) -> None:
        self.is_shut = True

    def open(self) -> None:
        self.is_shut = False
        while self.held:
            self.let()

    def let(self) -> None:
        """Commit what waits, and only that."""
        self.held.popleft()()

    async def reached(self) -> None:
        """Wait until a commit stands at the gate."""
        await until(lambda: bool(self.held), "a commit at the gate")


class _Gated:
    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def start(self, call: Callable[[], None]) -> None:
        if self._gate.is_shut:
            self._gate.held.append(call)
        else:
            call()


@contextlib.asynccontextmanager
async def gated(
    agent: Any = None, settings: Settings | None = None
) -> AsyncIterator[tuple[LocalDaemon, Gate]]:
    """A daemon and the gate of its store, which is opened again whatever happens: a daemon that
    cannot commit cannot leave."""
    gate = Gate(SystemClock())
    async with LocalDaemon(agent, settings=settings, stores=gate.stores) as daemon:
        try:
            yield daemon, gate
        finally:
            gate.open()


def is_assistant(finish: str) -> Callable[[Seen], bool]:
    """Matches events of a message of the assistant that has this finish reason."""

    def matches(event: Seen) -> bool:
        return event.kind == "message" and event["role"] == "assistant" and event.finish == finish

    return matches


def pair(text: str) -> list[tuple[str, str, str]]:
    """The shape of what a prompt leaves that was canceled before the agent said anything."""
    return [("user", "stop", text), ("assistant", "canceled", "")]


PAIR = pair("hello")


def shape(messages: list[Seen]) -> list[tuple[str, str, str]]:
    """A history as (role, finish reason, text)."""
    return [(str(message["role"]), message.finish, message.text) for message in messages]


def notes(participant: Participant) -> list[str]:
    """The permission events that a client has seen, in short and in order."""
    words = []
    for event in participant.events.seen:
        if event.kind == "permission_request":
            words.append(f"shown {event['tool_call_id']}")
        elif event.kind == "permission_notification":
            state = "granted" if event["granted"] else "denied" if event["denied"] else "asked"
            words.append(f"{state} {event['tool_call_id']}")
    return words


def stubborn(gate: asyncio.Event) -> Callable[[Turn], Any]:
    """A step that is cancelled and takes its time: it ends when the gate is opened."""

    async def step(turn: Turn) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await gate.wait()
            raise

    return step


class PromptTestCase(unittest.IsolatedAsyncioTestCase):
    async def outcome(self, client: Participant, run_id: str) -> str:
        """How a run ended, as its record tells it."""
        answer = await client.call("GET", f"/runs/{run_id}?wait={PATIENCE}")
        self.assertEqual((answer.status, answer.json["state"]), (200, "ended"), answer.json)
        return str(answer.json["outcome"])

    async def complete(
        self, daemon: LocalDaemon, client: Participant, session: str, number: int
    ) -> Seen:
        """Post a prompt, let the run with this number end, and return its run_complete."""
        posted = await client.prompt(session, "the next one")
        (await daemon.entered(number)).release()
        return await client.events.wait_for("run_complete", run_id=posted.json["run_id"])

    def assert_ended_once(self, events: EventReader, *run_ids: str) -> None:
        """Each of these runs has one run_complete, and no other run has any."""
        seen = [event["run_id"] for event in events.all("run_complete")]
        self.assertEqual(sorted(seen), sorted(run_ids))

    def assert_valid_history(self, messages: list[Seen]) -> None:
        """What model providers insist on: everything is finished, and every call has one result,
        behind it."""
        called: list[str] = []
        answered: list[str] = []
        for message in messages:
            self.assertNotEqual(message.finish, "", message)
            for part in message["parts"]:
                if part["type"] == "tool_call":
                    self.assertTrue(part["data"].get("finished"), part)
                    called.append(part["data"]["id"])
                elif part["type"] == "tool_result":
                    self.assertIn(part["data"]["tool_call_id"], called)
                    answered.append(part["data"]["tool_call_id"])
        self.assertEqual(sorted(called), sorted(answered))

    async def assert_takes_prompts(self, client: Participant, session: str) -> None:
        """The next prompt is accepted and runs to its normal end. For agents that need no help."""
        run_id = str(uuid.uuid4())
        await client.prompt(session, "the next one", run_id=run_id)
        self.assertEqual(await self.outcome(client, run_id), "completed")
        self.assertFalse(await client.busy(session))
