"""What the tests of the coder's permissions, records and summaries share.

A daemon whose workspaces get their agent as in real life: from a crush.json in the client's home,
through config and coder.build.
"""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crushlite.clock import SystemClock
from crushlite.coder.build import coder
from crushlite.fake_model import End, FakeModel, Use, obedient
from crushlite.settings import Settings
from tests.support.model import CoderDaemonTestCase, chat, results, titles
from tests.support.prompts import notes, shape, until

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from crushlite.agent.base import Agent
    from crushlite.clock import Clock
    from crushlite.fake_model import Step
    from crushlite.hosting.workspace import Workspace
    from crushlite.store import Connection
    from crushlite.testing import Participant, Seen, Stores

__all__ = [
    "ConfiguredTestCase",
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


def marked(mark: str) -> list[int]:
    """The processes that have this text in their command line."""
    found = []
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and mark.encode() in Path("/proc", name, "cmdline").read_bytes():
                found.append(int(name))
        except OSError:
            continue  # it has just ended
    return found


def new_mark() -> str:
    """About ten minutes, as an argument of `sleep` that no other process has."""
    return f"600.{uuid.uuid4().int % 10**12:012}"


def configuration(large: FakeModel, small: FakeModel, **model: Any) -> dict[str, Any]:
    """A crush.json with a provider for each of the two servers; `model` are more fields of both
    models."""

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


class ConfiguredTestCase(CoderDaemonTestCase):
    """The coder is made from the user's crush.json. The large model plays `self.plan`, an answer
    per request, and obeys the prompt when that is used up. With `scripted = False` the test answers
    each request itself, and with `titled = False` those for titles."""

    scripted = True
    titled = True
    settings = Settings()
    described: dict[str, Any] = {}  # more fields of the models in crush.json

    async def asyncSetUp(self) -> None:
        self.plan: list[Sequence[Step]] = []
        script = self._script if self.scripted else None
        await self.start_models(script, self.title if self.titled else None)
        self.clock = self.make_clock()
        await self.start_daemon(
            _agent, settings=self.settings, clock=self.clock, stores=self.make_stores()
        )

    def make_clock(self) -> Clock | None:
        return None

    def make_stores(self) -> Stores | None:
        return None

    def title(self, request: dict[str, Any]) -> Sequence[Step]:
        return titles(request)

    def _script(self, request: dict[str, Any]) -> Sequence[Step]:
        return self.plan.pop(0) if self.plan else obedient(request)

    def prepare_home(self) -> None:
        self.configure()

    def configure(self, **more: Any) -> None:
        """Write the user's own crush.json; it is read when a workspace is opened."""
        document = configuration(self.model, self.titles, **self.described)
        file = self.home / ".config/crush/crush.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({**document, **more}))

    def folder(self, name: str) -> Path:
        path = self.daemon.root / name
        path.mkdir()
        return path

    async def prompt(self, client: Participant, session: str, text: str, **fields: Any) -> str:
        """Post a prompt with a new run id, which is returned."""
        run_id = str(uuid.uuid4())
        await client.prompt(session, text, run_id=run_id, **fields)
        return run_id

    async def ended(self, client: Participant, run_id: str) -> Seen:
        return await client.events.wait_for("run_complete", run_id=run_id)

    async def turn(self, client: Participant, session: str, text: str, **fields: Any) -> Seen:
        """Post a prompt and wait for the end of its run."""
        return await self.ended(client, await self.prompt(client, session, text, **fields))

    async def run_info(self, client: Participant, run_id: str) -> dict[str, Any]:
        answer = await client.call("GET", f"/runs/{run_id}")
        self.assertEqual(answer.status, 200, answer)
        return dict(answer.json)

    async def settle(self, *clients: Participant) -> None:
        """Wait until the clients have read everything published so far: they get the event of a new
        session after it."""
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
        """What query(connection, scope) reads from the database."""
        return await self.workspace(client).store.read(query)

    def assert_valid_history(self, messages: Sequence[Seen]) -> None:
        """Check what model providers demand: each message is finished, each call has one result."""
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
