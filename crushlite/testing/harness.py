"""An in-process daemon on a real socket, and readers of its events that wait instead of sleeping.

    class MyTest(unittest.IsolatedAsyncioTestCase):
        async def test_a_prompt_is_answered(self):
            async with LocalDaemon() as daemon:            # a ScriptedAgent unless you give yours
                anna = await daemon.join()                 # a client with an open event stream
                session = await anna.session()
                await anna.prompt(session, "hello")
                run = await daemon.entered(1)              # the first run is inside the agent
                await run.say("hi")
                run.release()
                done = await anna.events.wait_for("run_complete")
                self.assertEqual(done["text"], "hi")

Every wait is bounded: a hang is a failure that says what was waited for and what came instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..clock import SystemClock
from ..daemon import Daemon
from ..http.client import ClientError, HTTPClient, TCPConnector, UnixConnector
from ..http.sse import SSEParser
from ..records import dataclass
from ..settings import Settings
from ..unique import new_id
from .scripted import ScriptedAgent

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from ..clock import Clock
    from ..http.messages import Headers
    from ..store import Stores
    from ..wing import Wing
    from .scripted import ScriptedRun

PATIENCE = 20.0  # seconds: far above what anything takes, so that only a hang reaches it
QUIET = 0.25  # seconds without an event that count as "never"


@dataclass(frozen=True, slots=True)
class Answer:
    """A response: `json` is its decoded body, None if it had none."""

    status: int
    json: Any
    headers: Headers


@dataclass(frozen=True, slots=True)
class Seen:
    """One event as it came: `event["key"]` reads the innermost payload."""

    kind: str
    action: str
    payload: dict[str, Any]
    id: str | None  # of the stream when it came; only on streams that asked to resume

    def __getitem__(self, key: str) -> Any:
        return self.payload.get(key)

    @property
    def finish(self) -> str:
        """The finish reason of a message event, or empty."""
        parts = self.payload.get("parts") or ()
        return next((p["data"]["reason"] for p in parts if p["type"] == "finish"), "")

    @property
    def text(self) -> str:
        """The text of a message event, or empty."""
        parts = self.payload.get("parts") or ()
        return next((p["data"]["text"] for p in parts if p["type"] == "text"), "")


class EventReader:
    """Reads one event stream in the background; keeps everything it saw, in order."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.raw = bytearray()  # the bytes of the stream, for tests of the framing
        self.last_id: str | None = None
        self.ended = asyncio.Event()
        self._next = 0  # the index of the next event that wait_for looks at
        self._changed = asyncio.Event()
        self._opened: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None

    async def open(
        self, http: HTTPClient, target: str, headers: tuple[tuple[str, str], ...] = ()
    ) -> int:
        """Subscribe; returns the status when the headers are here."""
        self._task = asyncio.create_task(self._read(http, target, headers))
        async with asyncio.timeout(PATIENCE):
            return await asyncio.shield(self._opened)

    async def close(self) -> None:
        """Drop the connection, as a client that dies would."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def wait_for(self, what: str | Callable[[Seen], bool], **fields: Any) -> Seen:
        """The next event of this kind (or for which the callable is true) whose payload has these
        fields. Skipped events stay in `seen`; none is returned twice."""
        try:
            async with asyncio.timeout(PATIENCE):
                while True:
                    while self._next < len(self.seen):
                        event = self.seen[self._next]
                        self._next += 1
                        if _matches(event, what, fields):
                            return event
                    if self.ended.is_set():
                        raise AssertionError(f"the stream ended before {what} {fields}")
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            kinds = [f"{event.kind} {event.action}" for event in self.seen[-12:]]
            raise AssertionError(f"no {what} {fields} came; the last were {kinds}") from None

    async def never(
        self, what: str | Callable[[Seen], bool], *, quiet: float = QUIET, **fields: Any
    ) -> None:
        """Fail if such an event has come or comes within the quiet time."""
        try:
            async with asyncio.timeout(quiet):
                await self.ended.wait()
        except TimeoutError:
            pass
        for event in self.seen:
            if _matches(event, what, fields):
                raise AssertionError(f"this should never come: {event}")

    def all(self, kind: str, **fields: Any) -> list[Seen]:
        """Every event of this kind with these fields that has come so far."""
        return [event for event in self.seen if _matches(event, kind, fields)]

    async def end(self) -> None:
        """Wait until the server ends the stream."""
        async with asyncio.timeout(PATIENCE):
            await self.ended.wait()

    async def _read(
        self, http: HTTPClient, target: str, headers: tuple[tuple[str, str], ...]
    ) -> None:
        parser = SSEParser()
        try:
            async with http.stream("GET", target, headers=headers, timeout=PATIENCE) as response:
                self._opened.set_result(response.status)
                async for chunk in response:
                    self.raw += chunk
                    for event in parser.feed(chunk):
                        self.seen.append(_seen(event.data, event.id))
                    self.last_id = parser.last_id or self.last_id
                    self._changed.set()
        except ClientError as error:
            if not self._opened.done():
                self._opened.set_exception(error)
        finally:
            self.ended.set()
            self._changed.set()


def _seen(data: str, last_id: str | None) -> Seen:
    outer = json.loads(data)
    inner = outer["payload"]
    if outer["type"] == "resync":
        return Seen("resync", "", inner, last_id)
    return Seen(outer["type"], inner["type"], inner["payload"], last_id)


def _matches(event: Seen, what: str | Callable[[Seen], bool], fields: dict[str, Any]) -> bool:
    wanted = event.kind == what if isinstance(what, str) else what(event)
    return wanted and all(
        getattr(event, name) == value
        if name in ("action", "finish", "text") and name not in event.payload
        else event[name] == value
        for name, value in fields.items()
    )


class LocalDaemon:
    """A daemon in this process. Its socket, data and default workspace are temporary. `wings` are
    those of wings.py unless others, or none, are given."""

    def __init__(  # noqa: PLR0913 - most of what a Daemon takes, by keyword
        self,
        agent: Any = None,
        *,
        settings: Settings | None = None,
        clock: Clock | None = None,
        stores: Stores | None = None,
        wings: Sequence[Wing] | None = None,
        tcp: bool = False,
        auth: str = "token",
    ) -> None:
        self.agent = agent if agent is not None else ScriptedAgent()
        self.clock = clock or SystemClock()
        self._settings = settings
        self._stores = stores
        self._wings = wings
        self._tcp = tcp
        self._auth = auth
        self._clients: list[HTTPClient] = []
        self._readers: list[EventReader] = []
        self._folder = tempfile.TemporaryDirectory(prefix="crushlite-")
        self.root = Path(self._folder.name)

    async def __aenter__(self) -> LocalDaemon:
        (self.root / "project").mkdir(exist_ok=True)
        hosts = [f"unix://{self.socket}"] + ["tcp://127.0.0.1:0"] * self._tcp
        self.daemon = Daemon(
            agent=self.agent,
            hosts=hosts,
            auth=self._auth,
            settings=self._private(self._settings or Settings()),
            clock=self.clock,
            stores=self._stores,
            wings=self._wings,
        )
        await self.daemon.start()
        self.backend = self.daemon.backend
        self.http = self.connect()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                for reader in self._readers:
                    await reader.close()
                for client in self._clients:
                    await client.aclose()
                await self.daemon.stop()
        finally:
            self._folder.cleanup()

    def _private(self, settings: Settings) -> Settings:
        """Settings with which the files of the user who runs the tests are not read."""
        home = settings.user_files or str(self.root / "home")
        return dataclasses.replace(settings, user_files=home)

    @property
    def socket(self) -> Path:
        return self.root / "daemon.sock"

    @property
    def port(self) -> int:
        return self.daemon.addresses[-1].port

    def connect(self, *, tcp: bool = False, token: str | None = None) -> HTTPClient:
        """A fresh HTTP client with connections of its own."""
        headers = (("Authorization", f"Bearer {token}"),) if token is not None else ()
        connector = (
            TCPConnector("127.0.0.1", self.port)
            if tcp
            else UnixConnector(str(self.socket), expect_uid=None)
        )
        host = f"127.0.0.1:{self.port}" if tcp else "localhost"
        client = HTTPClient(connector, host_header=host, headers=headers, clock=SystemClock())
        self._clients.append(client)
        return client

    async def call(
        self, method: str, target: str, body: Any = None, *, http: HTTPClient | None = None
    ) -> Answer:
        """One request; `body` is sent as JSON, or as it is if it is bytes."""
        content = body if isinstance(body, bytes) else b""
        if body is not None and not isinstance(body, bytes):
            content = json.dumps(body).encode()
        response = await (http or self.http).request(method, target, body=content, timeout=PATIENCE)
        parsed: Any = None
        with contextlib.suppress(ValueError):
            parsed = json.loads(response.body) if response.body else None
        return Answer(response.status, parsed, response.headers)

    async def join(self, path: str | Path | None = None, **create: Any) -> Participant:
        """A new client in the workspace at `path`, with its event stream open."""
        participant = await self.create(path, **create)
        await participant.attach()
        return participant

    async def create(self, path: str | Path | None = None, **create: Any) -> Participant:
        """A new client that has created the workspace but opened no stream yet."""
        client = create.pop("client_id", None) or new_id()
        body = {"path": str(path or self.root / "project"), "client_id": client, **create}
        answer = await self.call("POST", "/v1/workspaces", body)
        if answer.status != 200:
            raise AssertionError(f"create was answered {answer.status}: {answer.json}")
        return Participant(self, client, answer.json)

    def reader(self) -> EventReader:
        """An event reader that is closed with the daemon."""
        reader = EventReader()
        self._readers.append(reader)
        return reader

    async def entered(self, number: int = 1) -> ScriptedRun:
        """The scripted run with this number, once it is inside the agent."""
        try:
            async with asyncio.timeout(PATIENCE):
                run: ScriptedRun = await self.agent.entered(number)
                return run
        except TimeoutError:
            raise AssertionError(f"run {number} never entered the agent") from None


class Participant:
    """One client of one workspace."""

    def __init__(self, daemon: LocalDaemon, client_id: str, created: dict[str, Any]) -> None:
        self.daemon = daemon
        self.id = client_id
        self.workspace: dict[str, Any] = created
        self.base = f"/v1/workspaces/{created['id']}"
        self.events = daemon.reader()

    async def attach(
        self, *, resume: bool = False, deltas: bool = False, last_id: str | None = None
    ) -> int:
        """Open an event stream (a second one replaces `events`); returns the status."""
        if self.events.seen or self.events.ended.is_set() or self.events._task is not None:
            self.events = self.daemon.reader()
        extra = ("&resume=1" if resume else "") + ("&deltas=1" if deltas else "")
        headers = (("Last-Event-ID", last_id),) if last_id is not None else ()
        target = f"{self.base}/events?client_id={self.id}{extra}"
        return await self.events.open(self.daemon.connect(), target, headers)

    async def call(self, method: str, path: str, body: Any = None) -> Answer:
        """A request below this workspace, for example `call("GET", "/agent")`."""
        return await self.daemon.call(method, self.base + path, body)

    async def session(self, title: str = "New Session") -> str:
        answer = await self.call("POST", "/sessions", {"title": title})
        assert answer.status == 200, answer
        return str(answer.json["id"])

    async def prompt(self, session: str, text: str = "hello", **fields: Any) -> Answer:
        """Post a prompt; any answer but 202 is a failure."""
        answer = await self.try_prompt(session, text, **fields)
        assert answer.status == 202, answer
        return answer

    async def try_prompt(self, session: str, text: str = "hello", **fields: Any) -> Answer:
        return await self.call("POST", "/agent", {"session_id": session, "prompt": text, **fields})

    async def cancel(self, session: str, *, wait: float | None = None) -> Any:
        query = f"?wait={wait}" if wait is not None else ""
        answer = await self.call("POST", f"/agent/sessions/{session}/cancel{query}")
        assert answer.status == 200, answer
        return answer.json["canceled"]

    async def messages(self, session: str) -> list[Seen]:
        answer = await self.call("GET", f"/sessions/{session}/messages")
        assert answer.status == 200, answer
        return [Seen("message", "listed", message, None) for message in answer.json]

    async def busy(self, session: str) -> bool:
        answer = await self.call("GET", f"/sessions/{session}")
        return bool(answer.json["is_busy"])

    async def grant(self, request: dict[str, Any], action: str = "allow") -> bool:
        body = {"permission": request, "action": action}
        answer = await self.call("POST", f"/permissions/grant?client_id={self.id}", body)
        assert answer.status == 200, answer
        return bool(answer.json["resolved"])

    async def retire(self) -> int:
        return (await self.daemon.call("DELETE", f"/v1/clients/{self.id}")).status

    async def release(self) -> int:
        return (await self.call("DELETE", f"?client_id={self.id}")).status
