"""The Crush client's two programs, `crush run` and the TUI, as sequences of requests.

Each method is one thing a person does, and sends what the program then sends, in its order and,
where the program does several things at once, at once. Every answer is decoded into the struct that
the program decodes it into; what it shows is kept as `screen`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from crushlite.cli.agent_names import find_agent
from crushlite.clock import SystemClock
from crushlite.daemon import Daemon
from crushlite.fake_model import FakeModel, obedient
from crushlite.settings import Settings
from crushlite.testing.fake_clock import FakeClock
from crushlite.wings import standard_wings
from tests.support.basics import BoundedTestCase
from tests.support.go import PATIENCE, Event, EventStream, GoClient, GoError, Refused, together
from tests.support.gojson import (
    AGENT_INFO,
    AGENT_SESSION,
    CONFIG,
    FILE,
    LSP_CLIENT,
    MCP_CLIENT,
    MESSAGE,
    NEEDS_INIT,
    RESOLVED,
    SELECTED_MODEL,
    SESSION,
    SKILL,
    SKIP,
    STRING,
    TIME,
    WORKSPACE,
    List,
    Map,
    Shape,
    check_config,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from crushlite.agent.base import AgentFactory
    from crushlite.clock import Clock
    from crushlite.fake_model import Step

__all__ = ["Crush", "Exit", "Run", "Tui", "WireCase", "configuration", "parts_of", "text_of"]

VERSION = "v0.91.2"
READY_SECONDS, READY_PAUSE = 30.0, 0.2  # how long, and how often, run asks for readiness
MODELS = ("large-model", "small-model")


def parts_of(message: Any, kind: str) -> list[dict[str, Any]]:
    return [data for tag, data in message["parts"] if tag == kind]


def text_of(message: Any) -> str:
    """What the client shows: the first text part."""
    return next((str(part["text"]) for part in parts_of(message, "text")), "")


class Crush(GoClient):
    """What both programs share: an id, a workspace, and retiring at the end."""

    tui = False

    def __init__(self, url: str, path: Path, env: Sequence[str] = (), **flags: Any) -> None:
        super().__init__(url)
        self.id = str(uuid.uuid4())
        self._wanted = {"path": str(path), "env": list(env), **flags}
        self.workspace: dict[str, Any] = {}
        self.events: EventStream

    async def create(self, **wanted: Any) -> None:
        """`id` and `path` are always sent, the rest unless empty."""
        wanted = wanted or self._wanted
        own = {"version": VERSION, "client_id": self.id}
        more = {key: wanted.get(key) for key in ("yolo", "debug", "data_dir")} | own
        more |= {key: wanted.get(key) for key in ("env", "channels")}
        body = {"id": "", "path": wanted["path"]} | {k: v for k, v in more.items() if v}
        await self._adopt("POST", "/v1/workspaces", body)

    async def refresh(self) -> None:
        """Read the workspace again, as the client does after a change of the configuration."""
        await self._adopt("GET", self.base)

    async def _adopt(self, method: str, path: str, body: Any = None) -> None:
        self.workspace = await self.call(method, path, body, WORKSPACE)
        check_config(self.workspace["config"], tui=self.tui)

    @property
    def base(self) -> str:
        return f"/v1/workspaces/{self.workspace['id']}"

    @property
    def configured(self) -> bool:
        return any(not p["disable"] for p in self.workspace["config"]["providers"].values())

    async def get(self, path: str, shape: Shape) -> Any:
        return await self.call("GET", self.base + path, None, shape)

    async def post(self, path: str, body: Any = None, shape: Shape | None = None) -> Any:
        return await self.call("POST", self.base + path, body, shape)

    async def subscribe(self) -> None:
        self.events = await self.stream(f"{self.base}/events?client_id={self.id}")

    async def new_session(self, title: str) -> dict[str, Any]:
        """The client sends a whole Session, of which only the title counts."""
        body = {key: value for key, value in SESSION.zero().items() if key != "todos"}
        made = await self.post("/sessions", body | {"title": title}, SESSION)
        assert made["title"] == title, made
        assert made["id"]
        return dict(made)

    async def prompt(self, session: str, text: str, **more: Any) -> None:
        body = {"session_id": session, **more, "prompt": text}
        if "attachments" in body:
            body["attachments"] = body.pop("attachments")  # the last key of the struct
        await self.call("POST", self.base + "/agent", body, statuses=(200, 202))

    def other_model(self, messages: list[Any]) -> dict[str, Any] | None:
        """The model of the last answer, if it is not the chosen one and is available."""
        config = self.workspace["config"]
        last = next((m for m in reversed(messages) if m["role"] == "assistant"), None)
        used = {key: last[key] for key in ("model", "provider")} if last else {}
        large = config["models"].get("large", {})
        if not used or used == {key: large.get(key) for key in used}:
            return None
        provider = config["providers"].get(used["provider"], {"models": []})
        return used if used["model"] in [m["id"] for m in provider["models"]] else None

    async def goodbye(self) -> None:
        """Abort the stream and retire. A 404 fails: only an old server answers that."""
        await self.events.hang_up()
        await self.call("DELETE", f"/v1/clients/{self.id}")

    async def close(self) -> None:
        """Close all connections without retiring, as a killed process does."""
        try:
            if hasattr(self, "events"):
                await self.events.hang_up()
        finally:
            await self.transport.close()


@dataclass(frozen=True)
class Exit:
    """How `crush run` ended."""

    code: int
    out: str = ""
    error: str = ""


class Run(Crush):
    """`crush run`: `session` and `model` are its flags, `last` is --continue."""

    def __init__(self, url: str, path: Path, env: Sequence[str] = (), **flags: Any) -> None:
        super().__init__(url, path, env, **flags)
        self.run_id = str(uuid.uuid4())
        self.session: dict[str, Any] = {}
        self.posted = asyncio.Event()

    async def main(
        self, prompt: str, *, session: str = "", last: bool = False, model: str = ""
    ) -> Exit:
        try:
            await self.create()
            if not self.configured:
                return Exit(1, error="no providers configured")
            await self.post("/agent/init", {"interactive": False})
            if session and not await self._exists(session):
                return Exit(1, error=f"session not found: {session}")
            if model:
                await self._override(model)
            await self._ready()
            await self.post("/agent/update")
            await self._choose(session, last=last)
            await self.subscribe()
            await self.prompt(self.session["id"], prompt, run_id=self.run_id)
            self.posted.set()
            return await self._outcome()
        except Refused as error:
            return Exit(1, error=str(error))
        finally:
            try:
                if hasattr(self, "events"):
                    await self.goodbye()
            finally:
                await self.transport.close()

    async def _exists(self, session: str) -> bool:
        """Find a session by its id, else by its short hash in the list of sessions."""
        try:
            await self.get(f"/sessions/{session}", SESSION)
        except Refused:
            await self.get("/sessions", List(SESSION))
            return False
        return True

    async def _override(self, name: str) -> None:
        config = await self.get("/config", CONFIG)
        check_config(config, tui=False)
        provider, _, model = name.partition("/")
        if model not in [m["id"] for m in config["providers"][provider]["models"]]:
            raise Refused(0, f"model {name} not found", "-m")
        await self._select("large", {"model": model, "provider": provider})
        path = f"/agent/default-small-model?provider_id={provider}"
        small = await self.get(path, SELECTED_MODEL)
        await self._select("small", {key: small[key] for key in ("model", "provider")})
        await self.post("/agent/update")

    async def _select(self, role: str, model: dict[str, Any]) -> None:
        await self.post("/config/model", {"scope": 1, "model_type": role, "model": model})

    async def _ready(self) -> None:
        async with asyncio.timeout(READY_SECONDS):
            while not (await self.get("/agent", AGENT_INFO))["is_ready"]:
                await SystemClock().sleep(READY_PAUSE)

    async def _choose(self, session: str, *, last: bool) -> None:
        if session:
            self.session = await self.get(f"/sessions/{session}", SESSION)
        elif last:
            found = await self.get("/sessions", List(SESSION))
            self.session = max(found, key=lambda one: int(one["updated_at"]))
        else:
            self.session = await self.new_session("non-interactive")
        assert self.session["parent_session_id"] == "", self.session
        if not session and not last:
            return
        messages = await self.get(f"/sessions/{self.session['id']}/messages", List(MESSAGE))
        used = self.other_model(messages)
        if used is not None:
            await self._select("large", used)
            await self.post("/agent/update")

    async def _outcome(self) -> Exit:
        """Wait for `run_complete`, or for an error of this run; messages are ignored."""
        at = 0
        while True:
            while at < len(self.events.seen):
                event, at = self.events.seen[at], at + 1
                if event.kind == "agent_event" and event["error"] and self._mine(event):
                    return Exit(1, error=f"agent error: {event['error']}")
                if event.kind == "run_complete" and event["run_id"] == self.run_id:
                    return _ended(event)
            if self.events.closed:
                return Exit(0, "\n")
            await self.events.more()

    def _mine(self, event: Event) -> bool:
        if event["run_id"]:
            return bool(event["run_id"] == self.run_id)
        return bool(event["session_id"] == self.session["id"])


def _ended(event: Event) -> Exit:
    if event["error"] and not event["cancelled"]:
        return Exit(1, error=f"agent run failed: {event['error']}")
    text = event["text"].lstrip(" \t") if event["message_id"] else ""
    return Exit(0, text + "\n")


class Tui(Crush):
    """The terminal interface. `screen` is the open session's transcript as it is drawn: `created`
    appends unless known, `updated` replaces what is known and nothing else."""

    tui = True
    first_pause, longest_pause = 0.02, 0.2  # of the reconnect; the real one: 0.25 and 10

    def __init__(self, url: str, path: Path, env: Sequence[str] = (), **flags: Any) -> None:
        super().__init__(url, path, env, **flags)
        self.session = ""
        self.screen: dict[str, dict[str, Any]] = {}
        self.agent: dict[str, Any] = {}
        self.skipping = False
        self.queue: list[str] = []
        self.registered = 0  # how often it created the workspace again
        self._returned = asyncio.Event()
        self._follower: asyncio.Task[None] | None = None

    async def start(self, *, session: str = "", last: bool = False) -> None:
        await self.create()
        if self.configured:
            await self.post("/agent/init", {"interactive": True})
        if session:
            await self.get(f"/sessions/{session}", SESSION)
        self.skipping = (await self.get("/permissions/skip", SKIP))["skip"]
        self.agent = await self.get("/agent", AGENT_INFO)
        if self.agent["is_ready"]:
            await self.get("/agent", AGENT_INFO)
        if self.configured:
            assert not (await self.get("/project/needs-init", NEEDS_INIT))["needs_init"]
        await together(
            self.subscribe(),
            self.get("/skills", List(SKILL)),
            self.get("/messages/user", List(MESSAGE)),
            self._servers(),
            self.probe(),
            self._tool_servers(),
        )
        if last:
            session = (await self.get("/sessions", List(SESSION)))[0]["id"]
        if session:
            await self.switch(session)

    async def _servers(self) -> None:
        for name in await self.get("/lsps", Map(LSP_CLIENT)):
            await self.get(f"/lsps/{name}/diagnostics", Map(Shape()))

    async def _tool_servers(self) -> None:
        await self.get("/mcp/states", Map(MCP_CLIENT))
        pending = await self.get("/mcp/pending-auth", List(Map(STRING)))
        assert pending == [], "a dialog would open"

    async def subscribe(self) -> None:
        await super().subscribe()
        self.events.on_event = self._draw

    def _draw(self, event: Event) -> None:
        if event.kind != "message" or event["session_id"] != self.session:
            return
        known = event["id"] in self.screen
        if event.action == "deleted":
            self.screen.pop(event["id"], None)
        elif (event.action == "created") != known:
            self.screen[event["id"]] = event.payload

    async def probe(self) -> None:
        """Ask whether the agent is ready, whether it is busy, and for its model (the same request
        three times), and for the skip flag."""
        for _ in range(3):
            self.agent = await self.get("/agent", AGENT_INFO)
        self.skipping = (await self.get("/permissions/skip", SKIP))["skip"]

    async def probe_queue(self) -> list[str]:
        self.agent = await self.get("/agent", AGENT_INFO)
        path = f"/agent/sessions/{self.session}/prompts/list"
        self.queue = await self.get(path, List(STRING))
        return self.queue

    async def send(self, text: str, files: Sequence[dict[str, str]] = ()) -> None:
        """The enter key: send a prompt. The first one makes the session."""
        self.agent = await self.get("/agent", AGENT_INFO)
        assert self.agent["is_ready"], "coder agent is not initialized"
        first = not self.session
        if first:
            self.session = (await self.new_session("New Session"))["id"]
        more = {"attachments": list(files)} if files else {}
        await together(
            *([self._load()] if first else []),
            *(self._attached(file["file_path"]) for file in files),
            self.prompt(self.session, text, **more),
        )
        await together(self.probe(), self.probe_queue(), self.up_arrow())

    async def _attached(self, path: str) -> None:
        await self.post("/filetracker/read", {"session_id": self.session, "path": path})
        await self.post("/lsps/start", {"path": path})

    async def up_arrow(self) -> list[Any]:
        """The up-arrow key: the earlier prompts, newest first."""
        place = f"/sessions/{self.session}" if self.session else ""
        return list(await self.get(f"{place}/messages/user", List(MESSAGE)))

    async def switch(self, session: str) -> None:
        self.session, self.screen = session, {}
        await self._load()

    async def _load(self) -> None:
        here = f"/sessions/{self.session}"
        _, _, files, _ = await together(
            self.get(here, SESSION),
            self.get(f"{here}/history", List(FILE)),
            self.get(f"{here}/filetracker/files", List(STRING)),
            self._look(self.session),
        )
        await together(self.probe(), self.probe_queue())
        for file in files:
            await self.post("/lsps/start", {"path": file})
        listed = await self.get(f"{here}/messages", List(MESSAGE))
        for message in listed:
            for call in parts_of(message, "tool_call"):
                if call["name"] in ("agent", "agentic_fetch"):
                    child = f"{message['id']}$${call['id']}"
                    await self.get(f"/sessions/{child}/messages", List(MESSAGE))
        # A message that came on the stream meanwhile is not older than the one in this answer.
        self.screen = {message["id"]: message for message in listed} | self.screen
        await self.up_arrow()
        used = self.other_model(listed)
        if used is not None:
            await self.choose_model("large", used)
            await self.post("/agent/update")

    async def choose_model(self, role: str, model: dict[str, Any]) -> None:
        await self.post("/config/model", {"scope": 0, "model_type": role, "model": model})
        await self.refresh()

    async def _look(self, session: str) -> None:
        await self.post(f"/current-session?client_id={self.id}", {"session_id": session})

    async def leave_session(self) -> None:
        """Ctrl-N: the new session is made with the next prompt."""
        self.session, self.screen = "", {}
        await self.post("/lsps/stop")
        await self.up_arrow()
        await self._look("")

    async def rename(self, session: dict[str, Any], title: str) -> dict[str, Any]:
        body = {key: value for key, value in session.items() if value or key != "todos"}
        path = f"{self.base}/sessions/{session['id']}"
        return dict(await self.call("PUT", path, body | {"title": title}, SESSION))

    async def delete(self, session: str) -> None:
        await self.get("/agent", AGENT_INFO)
        found = await self.get(f"/agent/sessions/{session}", AGENT_SESSION)
        assert not found["is_busy"], "refused by the client itself"
        await self.call("DELETE", f"{self.base}/sessions/{session}")

    async def escape(self) -> None:
        """The escape key: clear the queued prompts or, without any, cancel."""
        word = "prompts/clear" if self.queue else "cancel"
        await self.post(f"/agent/sessions/{self.session}/{word}")
        await self.probe()

    async def answer(self, request: Event, action: str) -> bool:
        """A key in the permission dialog: sends the request back with the answer."""
        body = {"permission": request.raw, "action": action}
        return bool((await self.post("/permissions/grant", body, RESOLVED))["resolved"])

    async def toggle_skip(self) -> None:
        self.skipping = not (await self.get("/permissions/skip", SKIP))["skip"]
        await self.post("/permissions/skip", {"skip": self.skipping})

    async def last_read(self, path: str) -> Any:
        query = f"session_id={self.session}&path={path}"
        return await self.get(f"/filetracker/lastread?{query}", TIME)

    # Losing the server.

    def follow(self) -> None:
        """Reconnect whenever the stream ends, until closed."""
        self._follower = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        while True:
            await self.events.end()
            pause = self.first_pause
            while not await self._reconnected():
                await SystemClock().sleep(pause)
                pause = min(2 * pause, self.longest_pause)
            if self.session:
                await self.switch(self.session)
            self._returned.set()

    async def _reconnected(self) -> bool:
        try:
            await self.subscribe()
        except Refused as error:
            return error.status == 404 and await self._registered()
        except GoError:
            return False
        return True

    async def _registered(self) -> bool:
        """Create the workspace again from what was cached, and subscribe."""
        try:
            await self.create(**self.workspace)
            if self.configured:
                await self.post("/agent/init", {"interactive": True})
            await self.subscribe()
        except (GoError, Refused):
            return False
        self.registered += 1
        return True

    async def returned(self) -> None:
        """Wait until it has reconnected and reloaded what it shows."""
        assert self._follower is not None
        waiting = asyncio.create_task(self._returned.wait())
        async with asyncio.timeout(PATIENCE):
            await asyncio.wait([waiting, self._follower], return_when=asyncio.FIRST_COMPLETED)
        if self._follower.done():
            self._follower.result()
        await waiting
        self._returned.clear()

    async def close(self) -> None:
        if self._follower is not None:
            self._follower.cancel()
            await asyncio.wait([self._follower])
        await super().close()


# The server -------------------------------------------------------------------------------------


def configuration(model: FakeModel) -> dict[str, Any]:
    """A crush.json with one provider, `fake`, and a model for each role."""
    entry = {"context_window": 200_000, "default_max_tokens": 4096}
    provider = {
        "name": "Fake",
        "type": "openai-compat",
        "base_url": model.base_url,
        "api_key": "not-needed",
        "discover_models": False,
        "models": [{"id": name, "name": name.title(), **entry} for name in MODELS],
    }
    roles = zip(("large", "small"), MODELS, strict=True)
    chosen = {role: {"model": name, "provider": "fake"} for role, name in roles}
    return {"providers": {"fake": provider}, "models": chosen}


class WireCase(BoundedTestCase):
    """A fresh daemon on both kinds of socket, without a token, and the fake model behind it. The
    model plays `self.plan`, an answer per request of the agent, and obeys the prompt after that."""

    agent = "auto"
    configured = True  # whether there is a crush.json
    settings = Settings()

    async def asyncSetUp(self) -> None:
        folder = self.enterContext(tempfile.TemporaryDirectory(prefix="crushlite-wire-"))
        self.root = Path(folder).resolve()
        self.project = self.root / "project"
        self.project.mkdir()
        self.plan: list[Sequence[Step]] = []
        self.model_time = FakeClock()  # a Wait in the plan waits for this
        model = FakeModel(script=self._script, models=MODELS, clock=self.model_time)
        self.model = await self.enterAsyncContext(model)
        home = self.root / "home"
        places = {"HOME": str(home), "PATH": os.environ["PATH"]}
        # The daemon reads its own environment too, which may hold a key for a model.
        self.enterContext(mock.patch.dict(os.environ, places, clear=True))
        self.env = [f"{name}={value}" for name, value in places.items()] + [f"PWD={self.project}"]
        if self.configured:
            file = home / ".config/crush/crush.json"
            file.parent.mkdir(parents=True)
            file.write_text(json.dumps(configuration(self.model)))
        self.clock = self.make_clock()
        self.wings = standard_wings()
        self.daemon = Daemon(
            agents=self.make_agents(),
            wings=self.wings,
            hosts=[f"unix://{self.root}/daemon.sock", "tcp://127.0.0.1:0"],
            auth="none",
            settings=dataclasses.replace(self.settings, user_files=str(home)),
            clock=self.clock,
        )
        await self.daemon.start()
        self.addAsyncCleanup(self.daemon.stop)
        self.unix, self.tcp = (address.url for address in self.daemon.addresses)

    def make_agents(self) -> AgentFactory:
        return find_agent(self.agent, SystemClock(), self.wings)

    def make_clock(self) -> Clock:
        return SystemClock()

    def _script(self, request: dict[str, Any]) -> Sequence[Step]:
        if self.plan and request.get("tools"):
            return self.plan.pop(0)
        return obedient(request)

    @property
    def asked(self) -> list[dict[str, Any]]:
        """The requests of the agent to the model, without those for titles."""
        return [request for request in self.model.requests if request.get("tools")]

    def run_program(self, url: str = "", **flags: Any) -> Run:
        return Run(url or self.tcp, self.project, self.env, **flags)

    async def tui(self, url: str = "", **flags: Any) -> Tui:
        """A TUI that has started; it is closed after the test."""
        tui = Tui(url or self.tcp, self.project, self.env, **flags)
        self.addAsyncCleanup(tui.close)
        await tui.start()
        return tui
