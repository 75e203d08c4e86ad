"""A scripted editor: the client side of ACP, connected to `Editor` in this process, or to the
command."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crushlite.acp.editor import Editor
from crushlite.client import Client
from crushlite.clock import SystemClock
from crushlite.errors import CrushliteError
from crushlite.features import requests
from crushlite.jsonrpc.errors import METHOD_NOT_FOUND, RpcError
from crushlite.jsonrpc.peer import PeerOptions, RpcHandler, RpcPeer
from crushlite.launch import Wanted
from crushlite.testing import LocalDaemon
from tests.support.basics import BoundedTestCase
from tests.support.crush import Tui, WireCase
from tests.support.places import ROOT
from tests.support.streams import stream_pair

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from crushlite.jsonrpc.peer import RpcRequest
    from crushlite.wing import Wing

FORMS: dict[str, Any] = {"elicitation": {"form": {}}}


class ScriptedEditor(RpcHandler):
    """Keeps every update; requests of the agent wait in `asked` until the test answers them."""

    def __init__(self) -> None:
        self.updates: list[dict[str, Any]] = []
        self.asked: asyncio.Queue[Asked] = asyncio.Queue()
        self.withdrawn: list[Any] = []
        self.changed = asyncio.Event()
        self.peer: RpcPeer  # set by the test case

    def on_request(self, request: RpcRequest) -> Awaitable[Any]:
        if request.method not in ("session/request_permission", "elicitation/create"):
            raise RpcError(METHOD_NOT_FOUND, "not offered")
        asked = Asked(request)
        self.asked.put_nowait(asked)
        return asked.answer

    def on_notification(self, method: str, params: dict[str, Any]) -> None:
        if method == "session/update":
            self.updates.append(params)
        elif method == "$/cancel_request":
            self.withdrawn.append(params["requestId"])
            self.peer.cancel_incoming(params["requestId"])
        self.changed.set()

    async def request(self, method: str, **params: Any) -> Any:
        return await self.peer.request(method, params, seconds=None)

    def begin(self, method: str, **params: Any) -> asyncio.Task[Any]:
        """Send a request without waiting for its answer."""
        return asyncio.create_task(self.request(method, **params))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a notification has made the condition true."""
        while not condition():
            self.changed.clear()
            await self.changed.wait()

    def kinds(self, kind: str, session: str = "") -> list[dict[str, Any]]:
        return [
            params["update"]
            for params in self.updates
            if params["update"]["sessionUpdate"] == kind and session in ("", params["sessionId"])
        ]

    def text(self, kind: str = "agent_message_chunk") -> str:
        return "".join(update["content"].get("text", "") for update in self.kinds(kind))


class Asked:
    """A request of the agent to the person at the editor."""

    def __init__(self, request: RpcRequest) -> None:
        self.id, self.method, self.params = request.id, request.method, request.params
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def choose(self, option: str) -> None:
        self.answer.set_result({"outcome": {"outcome": "selected", "optionId": option}})


class EditorCase(BoundedTestCase):
    """A daemon in this process, with a scripted agent unless a test has another one."""

    agent: Any = None
    wings: list[Wing] | None = None

    async def asyncSetUp(self) -> None:
        self.daemon = await self.enterAsyncContext(LocalDaemon(self.agent, wings=self.wings))
        self.cwd = str(self.daemon.root / "project")

    def wanted(self) -> Wanted:
        return Wanted(url=f"unix://{self.daemon.socket}", path=self.cwd, clock=SystemClock())

    async def connect(self, wanted: Wanted | None = None) -> ScriptedEditor:
        """An editor that is connected, and has not said anything."""
        one, other = await stream_pair()
        script = ScriptedEditor()
        options = PeerOptions(
            cancel_notice=lambda number: ("$/cancel_request", {"requestId": number})
        )
        script.peer = RpcPeer(*one, script, SystemClock(), options)
        tasks = [
            asyncio.create_task(script.peer.run()),
            asyncio.create_task(Editor(*other, wanted or self.wanted()).run()),
        ]

        async def end() -> None:
            await script.peer.close()
            await asyncio.wait(tasks)
            for task in tasks:
                task.result()

        self.addAsyncCleanup(end)
        return script

    async def editor(self, **capabilities: Any) -> ScriptedEditor:
        script = await self.connect()
        params = {"protocolVersion": 1, "clientCapabilities": capabilities}
        await script.request("initialize", **params)
        return script

    async def thread(self, **capabilities: Any) -> tuple[ScriptedEditor, str]:
        """An editor with a new session."""
        script = await self.editor(**capabilities)
        answer = await script.request("session/new", cwd=self.cwd, mcpServers=[])
        return script, answer["sessionId"]


class ShimCase(BoundedTestCase):
    """Starts `crushlite acp` as an editor does."""

    root: Path
    cwd: str

    @property
    def host(self) -> tuple[str, ...]:
        """Arguments that lead to the daemon."""
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        places = {"HOME": str(self.root), "XDG_RUNTIME_DIR": str(self.root / "run")}
        return {**places, "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}

    @property
    def command(self) -> list[str]:
        """What an editor starts."""
        return [sys.executable, "-m", "crushlite", "acp", *self.host]

    async def start(self) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            *self.command,
            env=self.environment(),
            cwd=self.cwd,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=1 << 20,
        )
        self.addAsyncCleanup(self.end, process)
        return process

    async def end(self, process: asyncio.subprocess.Process) -> None:
        if process.returncode is None:
            process.kill()
            await process.wait()


class ProcessCase(ShimCase):
    """Programs with a home, sockets and a project of their own; their daemon is ended."""

    async def asyncSetUp(self) -> None:
        # A socket's path must be short: not below a long TMPDIR.
        folder = self.enterContext(tempfile.TemporaryDirectory(prefix="cl-", dir="/tmp"))
        self.root = Path(folder)
        self.cwd = str(self.root / "project")
        os.mkdir(self.cwd)
        (self.root / "run").mkdir(mode=0o700)
        self.address = f"unix://{self.root}/d.sock"
        self.addAsyncCleanup(self.kill_daemon)

    @property
    def host(self) -> tuple[str, ...]:
        return ("--host", self.address, "--agent", "offline")

    async def daemon_pid(self) -> int:
        """Raises CrushliteError if there is no daemon."""
        async with Client(self.address) as client:
            return (await requests.vitals(client)).pid

    async def kill_daemon(self) -> None:
        try:
            os.kill(await self.daemon_pid(), signal.SIGKILL)
        except (CrushliteError, ProcessLookupError):
            pass  # it has left

    async def crush_client(self, session: str) -> Tui:
        """A Crush client that shows a session, and comes back when the daemon does."""
        env = [f"{name}={value}" for name, value in self.environment().items()]
        client = Tui(self.address, Path(self.cwd), env)
        self.addAsyncCleanup(client.close)
        await client.start(session=session)
        client.follow()
        return client

    async def editor(self) -> tuple[ScriptedEditor, asyncio.subprocess.Process]:
        process = await self.start()
        assert process.stdin is not None
        assert process.stdout is not None
        script = ScriptedEditor()
        script.peer = RpcPeer(process.stdout, process.stdin, script, SystemClock())
        reading = asyncio.create_task(script.peer.run())

        async def close() -> None:
            await script.peer.close()
            await asyncio.wait([reading])

        self.addAsyncCleanup(close)
        await script.request("initialize", protocolVersion=1)
        return script, process


class CoderShimCase(WireCase, ShimCase):
    """The command against a daemon in this process, whose agent works with the fake model."""

    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        (self.root / "run").mkdir(mode=0o700)
        self.cwd = str(self.project)

    @property
    def host(self) -> tuple[str, ...]:
        return ("--host", self.unix)


def prompt(session: str, text: str = "hello") -> dict[str, Any]:
    """The params of a prompt."""
    return {"sessionId": session, "prompt": [{"type": "text", "text": text}]}
