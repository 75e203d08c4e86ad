"""One client of one daemon: who it is, what it opened, and its goodbye."""

from __future__ import annotations

import asyncio
import contextlib
import os
import uuid
from typing import TYPE_CHECKING, Any

from ..clock import SystemClock
from ..errors import NotFound
from ..protocol.health import Health
from ..protocol.web import WebAddress, WebRequest
from ..protocol.workspaces import Control, CreateWorkspace, VersionInfo, Workspace
from .wire import Wire, route
from .workspace import RemoteWorkspace

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from ..clock import Clock
    from .stream import EventStream

RECOVERY_SECONDS = 5.0  # a goodbye waits so long for a create that is on its way


class Client:
    """One client of one daemon. Its id is who it is: the daemon counts claims by it."""

    def __init__(
        self, address: str, *, token: str = "", client_id: str = "", clock: Clock | None = None
    ) -> None:
        self.address = address
        self.client_id = client_id or str(uuid.uuid4())
        self.retired = False
        self._clock = clock or SystemClock()
        self._wire = Wire(address, token, self._clock)
        self._streams: set[EventStream] = set()
        self._opened: list[RemoteWorkspace] = []
        self._recoveries: set[asyncio.Task[Workspace]] = set()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close every stream and connection. Says no goodbye: see `retire`."""
        self._wire.closed = True
        for stream in tuple(self._streams):
            await stream.close()
        for recovery in self._recoveries:
            recovery.cancel()
        if self._recoveries:
            await asyncio.wait(self._recoveries)
        await self._wire.http.aclose()

    async def create(
        self,
        path: str | os.PathLike[str],
        *,
        env: list[str] | None = None,
        data_dir: str = "",
        yolo: bool = False,
    ) -> RemoteWorkspace:
        """Open the workspace at a path, or join it. A relative path is relative to this process,
        not to the daemon's."""
        request = CreateWorkspace(client_id=self.client_id, env=env, data_dir=data_dir, yolo=yolo)
        request.path = os.path.join(os.getcwd(), path)
        info = await self._wire.ask(Workspace, "POST", route("workspaces"), request)
        return self._remember(RemoteWorkspace(self, request, info))

    def attach(self, info: Workspace) -> RemoteWorkspace:
        """A workspace that somebody else has opened, as listed by `workspaces`. An event stream
        claims it; without one it may go at any time."""
        request = CreateWorkspace(path=info.path, client_id=self.client_id)
        return self._remember(RemoteWorkspace(self, request, info))

    def _remember(self, workspace: RemoteWorkspace) -> RemoteWorkspace:
        self._opened.append(workspace)
        return workspace

    async def workspaces(self) -> list[Workspace]:
        return await self._wire.ask_all(Workspace, route("workspaces"))

    async def retire(self) -> None:
        """Goodbye for good: every claim of this client ends, and its id is never taken again.
        A create that is on its way is waited for: coming after the goodbye, it would leave a
        workspace that nobody gives back."""
        self.retired = True  # before the daemon knows: a stream that it ends now must not return
        await self._recovered()
        try:
            await self._wire.send("DELETE", route("clients", self.client_id))
        except NotFound:  # a server that does not know this goodbye
            for workspace in self._opened:
                with contextlib.suppress(NotFound):
                    await workspace.release()

    async def _recovered(self) -> None:
        if not self._recoveries:
            return
        patience = asyncio.create_task(self._clock.sleep(RECOVERY_SECONDS))
        landed = asyncio.gather(*self._recoveries, return_exceptions=True)
        both: set[asyncio.Future[Any]] = {patience, landed}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            patience.cancel()

    def _recover(self, create: Coroutine[None, None, Workspace]) -> asyncio.Task[Workspace]:
        """A create that is not bound to whoever waits for it: cancelling it would only hide what
        became of it. The answer is bounded like any other."""
        task = asyncio.create_task(create)
        self._recoveries.add(task)
        task.add_done_callback(self._recoveries.discard)
        return task

    async def web(self, port: int = 0) -> WebAddress:
        """An address that opens the web console once; the daemon listens on loopback from then
        on, at this port unless it is 0."""
        return await self._wire.ask(WebAddress, "POST", route("web"), WebRequest(port))

    async def health(self) -> None:
        """Returns if the daemon is well."""
        await self._wire.send("GET", route("health"))

    async def vitals(self) -> Health:
        """How the daemon fares, in numbers."""
        return await self._wire.ask(Health, "GET", route("health", verbose=1))

    async def version(self) -> VersionInfo:
        return await self._wire.ask(VersionInfo, "GET", route("version"))

    async def control(self, command: str = "shutdown_if_idle") -> None:
        """Ask the daemon to leave; ServerInUse if it is needed."""
        await self._wire.send("POST", route("control"), Control(command, client="crushlite"))
