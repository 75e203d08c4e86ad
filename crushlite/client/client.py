"""A client of one daemon, and the workspaces that it has opened."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from ..clock import all_done
from ..errors import NotFound
from ..protocol.workspaces import Control, CreateWorkspace, VersionInfo, Workspace
from .following import RunStream
from .requests import WorkspaceRequests
from .stream import EventStream
from .wire import Wire, route

if TYPE_CHECKING:
    from ..protocol.runs import RunComplete

CREATE_SECONDS = 5.0  # how long `retire` waits for a create that is on its way


class RemoteWorkspace(WorkspaceRequests):
    """A workspace of the daemon: requests about it, and streams of what happens in it."""

    def __init__(self, client: Client, request: CreateWorkspace, info: Workspace) -> None:
        super().__init__(client, request, info)
        self.client = client

    def events(self, *, reconnect: bool = True, last_id: str | None = None) -> EventStream:
        """The event stream, to be used in `async with`. `last_id` continues an earlier one."""
        return EventStream(self, reconnect=reconnect, last_id=last_id)

    async def ask(self, text: str, session_id: str = "", **options: Any) -> RunComplete:
        """Send a prompt, with the options of `prompt`, in a new session unless one is given; return
        how its run ended: with a `text`, an `error`, or `cancelled`. None of these is raised."""
        async with self.start(text, session_id, **options) as run:
            return await run.end()

    def start(
        self, text: str, session_id: str = "", *, new_session: bool = False, **options: Any
    ) -> RunStream:
        """A prompt and all events of its run, to be used in `async with`. `new_session`: the
        session was made for this prompt. The other options are those of `prompt`."""
        return RunStream(self, "", session_id).posting(text, new_session, options)

    def follow(self, run_id: str) -> RunStream:
        """The events of any run, also an ended one, from its beginning; for `async with`."""
        return RunStream(self, run_id)


class Client(Wire):
    """One client of one daemon. The daemon counts claims on workspaces by `client_id`."""

    _opened: tuple[RemoteWorkspace, ...] = ()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def create(
        self,
        path: str | os.PathLike[str],
        *,
        env: list[str] | None = None,
        data_dir: str = "",
        yolo: bool = False,
    ) -> RemoteWorkspace:
        """Open the workspace at a path, or join it. A relative path is relative to the directory of
        this process, not to the daemon's."""
        request = CreateWorkspace(client_id=self.client_id, env=env, data_dir=data_dir, yolo=yolo)
        request.path = os.path.join(os.getcwd(), path)
        info = await self.request(Workspace, "POST", route("workspaces"), request)
        return self._opened_workspace(request, info)

    def attach(self, info: Workspace, *, env: list[str] | None = None) -> RemoteWorkspace:
        """A workspace that another client has opened, as listed by `workspaces`, or one of our id.
        Only an open event stream claims it; without one the daemon may close it at any time. `env`
        is for a stream that has to create it again."""
        request = CreateWorkspace(path=info.path, client_id=self.client_id, env=env)
        return self._opened_workspace(request, info)

    def _opened_workspace(self, request: CreateWorkspace, info: Workspace) -> RemoteWorkspace:
        workspace = RemoteWorkspace(self, request, info)
        self._opened += (workspace,)
        return workspace

    async def workspaces(self) -> list[Workspace]:
        return await self.request_list(Workspace, route("workspaces"))

    async def retire(self) -> None:
        """End every claim of this client; the daemon refuses its id from then on. Waits for a
        create that is on its way: one that came later would leave a workspace open."""
        self.retired = True  # first: a stream that the daemon ends now must not reconnect
        await all_done(self.clock, tuple(self.creates), CREATE_SECONDS)
        try:
            await self.send("DELETE", route("clients", self.client_id))
        except NotFound:  # a server without this route
            for workspace in self._opened:
                with contextlib.suppress(NotFound):
                    await workspace.release()

    async def health(self) -> None:
        """Return if the daemon answers that it is well; raise otherwise."""
        await self.send("GET", route("health"))

    async def version(self) -> VersionInfo:
        return await self.request(VersionInfo, "GET", route("version"))

    async def control(self, command: str = "shutdown_if_idle") -> None:
        """Ask the daemon to exit. Raises ServerInUse if it is in use."""
        await self.send("POST", route("control"), Control(command, client="crushlite"))
