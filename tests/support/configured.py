"""What the tests of the model agent's permissions, records and summaries share.

A daemon whose workspaces get their agent as in real life: from a crush.json in the client's home,
through config and agent.build. Two fake models stand behind it, one that works and one that gives
titles, so that the requests of the one can be counted without the other's.
"""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from crushlite.clock import SystemClock
from crushlite.coder.build import coder
from crushlite.hosting import shell, turn, workspace
from crushlite.settings import Settings
from crushlite.testing import LocalDaemon
from crushlite.testing.model import End, FakeModel, Say, Use, obedient
from tests.support.basics import LIMIT, BoundedTestCase

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from crushlite.agent.base import Agent
    from crushlite.clock import Clock
    from crushlite.hosting.workspace import Workspace
    from crushlite.store import Connection
    from crushlite.testing import Participant, Seen, Stores
    from crushlite.testing.model import Step

__all__ = [
    "LIMIT",
    "BoundedTestCase",
    "CoderTestCase",
    "chat",
    "configuration",
    "marked",
    "new_mark",
    "notes",
    "results",
    "shape",
    "until",
    "use",
]


def use(tool: str, ident: str = "", **arguments: Any) -> list[Step]:
    """A model's answer that calls one tool."""
    return [Use(tool, json.dumps(arguments), ident), End()]


def chat(request: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a model was sent, without the system message: (role, text)."""
    return [(m["role"], _text(m.get("content"))) for m in request["messages"][1:]]


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return content or ""


def notes(participant: Participant) -> list[str]:
    """The permission traffic a client has seen, in short and in order."""
    words = []
    for event in participant.events.seen:
        if event.kind == "permission_request":
            words.append(f"shown {event['tool_call_id']}")
        elif event.kind == "permission_notification":
            state = "granted" if event["granted"] else "denied" if event["denied"] else "asked"
            words.append(f"{state} {event['tool_call_id']}")
    return words


def results(messages: Sequence[Seen]) -> list[dict[str, Any]]:
    """The tool results of a history, in order."""
    parts = [part for message in messages for part in message["parts"]]
    return [part["data"] for part in parts if part["type"] == "tool_result"]


def shape(messages: Sequence[Seen]) -> list[tuple[str, str, str]]:
    """A history as (role, finish reason, text)."""
    return [(str(message["role"]), message.finish, message.text) for message in messages]


def marked(mark: str) -> list[int]:
    """The processes that have this among their arguments."""
    found = []
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and mark.encode() in Path("/proc", name, "cmdline").read_bytes():
                found.append(int(name))
        except OSError:
            continue  # it has just ended
    return found


def new_mark() -> str:
    """Ten minutes, give or take: an argument of `sleep` that nobody else has."""
    return f"600.{uuid.uuid4().int % 10**12:012}"


async def until(condition: Callable[[], bool], what: str) -> None:
    """Let the loop run until the condition holds: for what has no event."""
    try:
        async with asyncio.timeout(LIMIT / 2):
            while not condition():  # noqa: ASYNC110 - see above
                await asyncio.sleep(0)
    except TimeoutError:
        raise AssertionError(f"this never came true: {what}") from None


def configuration(large: FakeModel, small: FakeModel, **model: Any) -> dict[str, Any]:
    """A crush.json with a provider for each of the two; `model` says more about both."""

    def provider(fake: FakeModel, entry: dict[str, Any]) -> dict[str, Any]:
        kind = {"type": "openai-compat", "base_url": fake.base_url, "api_key": "not-needed"}
        return {**kind, "models": [entry]}

    return {
        "providers": {
            "works": provider(large, {"id": "fake-large", "name": "Large", **model}),
            "titles": provider(small, {"id": "fake-small", "name": "Small", **model}),
        },
        "models": {
            "large": {"model": "fake-large", "provider": "works"},
            "small": {"model": "fake-small", "provider": "titles"},
        },
    }


class CoderTestCase(BoundedTestCase):
    """`self.daemon`, `self.model` and `self.titles`. The model plays `self.plan`, an answer per
    request, and obeys the prompt when that is used up; with `scripted = False` the test answers
    each request itself, and with `titled = False` those for titles."""

    scripted = True
    titled = True
    settings = Settings()
    described: dict[str, Any] = {}  # of the models, in crush.json

    async def asyncSetUp(self) -> None:
        self.plan: list[Sequence[Step]] = []
        script = self._script if self.scripted else None
        self.model = await self.enterAsyncContext(FakeModel(script=script))
        title = self.title if self.titled else None
        self.titles = await self.enterAsyncContext(FakeModel(script=title))
        self.clock = self.make_clock()
        daemon = LocalDaemon(
            _agent, settings=self.settings, clock=self.clock, stores=self.make_stores()
        )
        self.home = daemon.root / "home"
        self.env = [f"HOME={self.home}", f"PATH={os.environ.get('PATH', os.defpath)}"]
        self.configure()
        self.daemon = await self.enterAsyncContext(daemon)
        self.project = self.daemon.root / "project"
        # What was killed is waited for as long as it takes: on a busy machine that may be more
        # than the few seconds after which a user is better served without.
        for module, name in (
            (turn, "COMMAND_SECONDS"),
            (shell, "END_SECONDS"),
            (workspace, "END_SECONDS"),
        ):
            self.enterContext(mock.patch.object(module, name, LIMIT / 2))

    def make_clock(self) -> Clock | None:
        return None

    def make_stores(self) -> Stores | None:
        return None

    def title(self, request: dict[str, Any]) -> Sequence[Step]:
        """Without usage, so that the session's counters are the large model's alone."""
        return [Say("Fake Title"), End(usage=None)]

    def _script(self, request: dict[str, Any]) -> Sequence[Step]:
        return self.plan.pop(0) if self.plan else obedient(request)

    def configure(self, **more: Any) -> None:
        """Write the user's own crush.json; it is read when a workspace is opened."""
        document = configuration(self.model, self.titles, **self.described)
        file = self.home / ".config/crush/crush.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({**document, **more}))

    async def join(self, path: Path | None = None, **create: Any) -> Participant:
        return await self.daemon.join(path, env=self.env, **create)

    def folder(self, name: str) -> Path:
        path = self.daemon.root / name
        path.mkdir()
        return path

    async def prompt(self, client: Participant, session: str, text: str, **fields: Any) -> str:
        """Post a prompt under an id of its own, which is returned."""
        run_id = str(uuid.uuid4())
        await client.prompt(session, text, run_id=run_id, **fields)
        return run_id

    async def ended(self, client: Participant, run_id: str) -> Seen:
        return await client.events.wait_for("run_complete", run_id=run_id)

    async def turn(self, client: Participant, session: str, text: str, **fields: Any) -> Seen:
        """A whole turn, to its end."""
        return await self.ended(client, await self.prompt(client, session, text, **fields))

    async def run_info(self, client: Participant, run_id: str) -> dict[str, Any]:
        answer = await client.call("GET", f"/runs/{run_id}")
        self.assertEqual(answer.status, 200, answer)
        return dict(answer.json)

    async def settle(self, *clients: Participant) -> None:
        """Everything published so far has been read: a session event is a full stop."""
        mark = await clients[0].session("mark")
        for client in clients:
            await client.events.wait_for("session", id=mark)

    def workspace(self, client: Participant) -> Workspace:
        return self.daemon.backend.get(str(client.workspace["id"]))

    async def session_of(self, client: Participant, session: str) -> dict[str, Any]:
        answer = await client.call("GET", f"/sessions/{session}")
        self.assertEqual(answer.status, 200, answer)
        return dict(answer.json)

    async def rows(self, client: Participant, query: Callable[[Connection, str], Any]) -> Any:
        """Ask the database itself: query(connection, scope)."""
        return await self.workspace(client).store.read(query)

    def assert_valid_history(self, messages: Sequence[Seen]) -> None:
        """What model providers insist on: all is finished, and every call has one result."""
        called: list[str] = []
        for message in messages:
            self.assertNotEqual(message.finish, "", message)
            for part in message["parts"]:
                if part["type"] == "tool_call":
                    self.assertTrue(part["data"].get("finished"), part)
                    called.append(part["data"]["id"])
        answered = [result["tool_call_id"] for result in results(messages)]
        self.assertEqual(sorted(called), sorted(answered))


def _agent(path: Path, env: Mapping[str, str], config: Any) -> Agent:
    agent = coder(path, env, config, SystemClock())
    if agent is None:
        raise AssertionError(f"this configuration names no usable model: {config}")
    return agent
