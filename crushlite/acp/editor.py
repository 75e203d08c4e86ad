"""One editor: its requests, and how each is answered."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..clock import all_done, time_limit
from ..errors import BadRequest, CrushliteError, NotFound, SessionNotFound
from ..jsonrpc.errors import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PeerError,
    RpcError,
)
from ..jsonrpc.peer import PeerOptions, RpcHandler, RpcPeer
from ..version import __version__
from . import words
from .project import Project
from .servers import keep_used, servers_of
from .thread import Thread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from ..jsonrpc.peer import ByteReader, ByteWriter, RpcRequest
    from ..launch import Wanted

log = logging.getLogger(__name__)

VERSION = 1  # of the protocol
NOT_FOUND = -32002
PAGE = 200  # sessions of a list
END_SECONDS = 2.0  # for what is left to do when the editor has closed its side
CLOSE_SECONDS = 10.0  # for the prompts of a session that is closed to end
MOST_PROJECTS = 64  # directories of one editor

Params = dict[str, Any]


class Editor(RpcHandler):
    """`wanted` says which daemon, and which directory if the editor names none."""

    def __init__(self, reader: ByteReader, writer: ByteWriter, wanted: Wanted) -> None:
        options = PeerOptions(
            write_seconds=None,  # an editor may be stopped for as long as its user likes
            cancel_notice=lambda number: ("$/cancel_request", {"requestId": number}),
            on_noise=lambda text: log.warning("not understood: %s", text),
        )
        self._wanted = wanted
        self._clock = wanted.clock
        self._peer = RpcPeer(reader, writer, self, wanted.clock, options)
        self._capabilities: dict[str, Any] | None = None  # of the client, once it has told them
        self._projects: dict[str, Project] = {}  # by directory
        self._threads: dict[str, Thread] = {}  # by session
        self._servers: dict[str, asyncio.Task[None]] = {}  # keep those of each session in use
        self._places: dict[str, str] = {}  # the directory of each session that was listed
        self._prompts: dict[int | str, tuple[Thread, str]] = {}  # the run of each open prompt
        self._methods: dict[str, Callable[[Params], Coroutine[Any, Any, Any]]] = {
            "authenticate": self._authenticate,
            "session/new": self._new,
            "session/load": self._load,
            "session/resume": self._resume,
            "session/list": self._list,
            "session/close": self._close,
            "session/delete": self._delete,
            "session/set_mode": self._set_mode,
            "session/set_config_option": self._set_option,
        }

    async def run(self) -> None:
        """Serve the editor until it closes its side. Then leave the daemon; runs go on. An editor
        that still reads gets the answers that it waits for."""
        try:
            await self._peer.run()
            for thread in self._threads.values():
                reason = "the editor has closed its side; the run goes on"
                thread.fail(reason, also_cancelled=False)
            await self._peer.all_answered(END_SECONDS)
        finally:
            await self._peer.close()
            closing = [asyncio.create_task(project.close()) for project in self._projects.values()]
            if not await all_done(self._clock, closing, END_SECONDS):
                log.warning("the daemon does not answer")

    # Arrivals ----------------------------------------------------------------------------------

    def on_request(self, request: RpcRequest) -> Awaitable[Any]:
        if request.method == "initialize":
            return _now(self._initialize(request.params))
        if self._capabilities is None:
            raise RpcError(INVALID_REQUEST, "initialize comes first")
        if request.method == "session/prompt":
            return self._prompt(request)
        method = self._methods.get(request.method)
        if method is None:
            raise RpcError(METHOD_NOT_FOUND, f"there is no method {request.method[:100]}")
        return _translated(method(request.params))

    def on_notification(self, method: str, params: Params) -> None:
        if method == "session/cancel":
            thread = self._threads.get(str(params.get("sessionId")))
            if thread is not None:
                thread.cancel()
        elif method == "$/cancel_request":
            number = params.get("requestId")
            if isinstance(number, (int, str)) and number in self._prompts:
                thread, run_id = self._prompts[number]
                thread.cancel(run_id)
            else:
                self._peer.cancel_incoming(number)

    def _initialize(self, params: Params) -> Params:
        version = params.get("protocolVersion")
        if not isinstance(version, int) or isinstance(version, bool):
            raise RpcError(INVALID_PARAMS, "protocolVersion: an integer is needed")
        given = params.get("clientCapabilities")
        self._capabilities = given if isinstance(given, dict) else {}
        return {
            "protocolVersion": VERSION,
            "agentCapabilities": {
                "loadSession": True,
                "mcpCapabilities": {"http": True, "sse": True},
                "promptCapabilities": {"image": True, "embeddedContext": True},
                "sessionCapabilities": {"list": {}, "resume": {}, "close": {}, "delete": {}},
            },
            "authMethods": [],
            "agentInfo": {"name": "crushlite", "title": "crushlite", "version": __version__},
        }

    async def _authenticate(self, params: Params) -> Params:
        return {}  # there is nothing to log in to: the daemon's socket is the user's own

    # Prompts -----------------------------------------------------------------------------------

    def _prompt(self, request: RpcRequest) -> Awaitable[Any]:
        """Called when the request arrives: a cancel behind it must find it."""
        thread = self._thread(request.params)
        text, attachments = words.prompt_of(request.params.get("prompt"), thread.project.path)
        prompt = thread.begin(text, attachments)
        self._prompts[request.id] = (thread, prompt.run_id)

        async def answered() -> Params:
            try:
                return await thread.answer(prompt)
            finally:
                self._prompts.pop(request.id, None)

        return answered()

    # Sessions ----------------------------------------------------------------------------------

    async def _new(self, params: Params) -> Params:
        project = self._project(params.get("cwd"))
        session = await project.call(lambda workspace: workspace.create_session())
        thread = self._open(project, session.id)
        workspace = await project.workspace()
        await thread.load(workspace, replay=False)
        self._warn(thread, "Configuration", workspace.info.warning)
        self._use_servers(thread, params)
        return {"sessionId": session.id, **self._state(thread)}

    async def _load(self, params: Params) -> Params:
        return await self._opened(params, replay=True)

    async def _resume(self, params: Params) -> Params:
        return await self._opened(params, replay=False)

    async def _opened(self, params: Params, *, replay: bool) -> Params:
        project = self._project(params.get("cwd"))
        session_id = _session_id(params)
        is_open = session_id in project.threads
        if not is_open:  # else a wrong directory would close a session that is open in another one
            await project.call(lambda workspace: workspace.session(session_id))
        thread = self._open(project, session_id)
        try:
            attempts = itertools.count()
            await project.call(
                lambda workspace: thread.load(workspace, replay=replay, again=next(attempts) > 0)
            )
        except CrushliteError:
            if not is_open:
                self._forget(thread, "the session could not be loaded")
            raise
        project.spawn(thread.find_requests())
        self._use_servers(thread, params)
        return self._state(thread)

    def _open(self, project: Project, session_id: str) -> Thread:
        thread = self._threads.get(session_id)
        if thread is not None and thread.project is not project:  # the same, by another path
            self._forget(thread, "the session was opened in another directory")
            thread = None
        if thread is None:
            has_forms = self._has("elicitation", "form")
            thread = Thread(session_id, project, self._peer, has_forms=has_forms)
        project.threads[session_id] = self._threads[session_id] = thread
        self._places[session_id] = project.path
        return thread

    def _state(self, thread: Thread) -> Params:
        """Modes and options, for the answer to a new or opened session. Begins to send the list of
        commands, too."""
        thread.project.spawn(thread.send_commands())
        return {"modes": thread.choices.modes(), "configOptions": thread.choices.options()}

    def _use_servers(self, thread: Thread, params: Params) -> None:
        """Use the tool servers that a request names for a session, in place of those before; none
        if the session was closed meanwhile."""
        self._end_servers(thread)
        if self._threads.get(thread.session_id) is not thread:
            return
        servers, warning = servers_of(params.get("mcpServers"))

        def warn(text: str) -> None:
            self._warn(thread, "Tool servers", text)

        warn(warning)
        if servers:
            work = keep_used(thread.project, servers, warn)
            self._servers[thread.session_id] = thread.project.spawn(work)

    def _end_servers(self, thread: Thread) -> None:
        if task := self._servers.pop(thread.session_id, None):
            task.cancel()

    async def _list(self, params: Params) -> Params:
        cwd = params.get("cwd")
        projects = [self._project(cwd)] if cwd is not None else self._listable()
        found: list[Params] = []
        for project in projects:
            for session in await project.call(lambda workspace: workspace.sessions()):
                found.append(words.session_info(session, project.path))
                self._places[session.id] = project.path
        start = _position(params.get("cursor"))
        answer: Params = {"sessions": found[start : start + PAGE]}
        if len(found) > start + PAGE:
            answer["nextCursor"] = str(start + PAGE)
        return answer

    def _listable(self) -> list[Project]:
        """The projects of a request that names no directory: those that are open here, else the
        one we were started in. Not the user's home or the root: editors start agents there if they
        have no project."""
        if not self._projects and Path(self._wanted.directory) not in (Path("/"), Path.home()):
            self._project(self._wanted.directory)
        return list(self._projects.values())

    async def _close(self, params: Params) -> Params:
        thread = self._thread(params)
        thread.cancel()
        with contextlib.suppress(TimeoutError):
            async with time_limit(self._clock, CLOSE_SECONDS):
                await thread.all_answered()
        self._forget(thread, "the session was closed")
        return {}

    async def _delete(self, params: Params) -> Params:
        session_id = _session_id(params)
        place = self._places.get(session_id)
        for project in [self._project(place)] if place else self._listable():
            with contextlib.suppress(SessionNotFound):  # it is gone, as it should be
                await project.call(lambda workspace: workspace.delete(session_id))
        if thread := self._threads.get(session_id):
            self._forget(thread, "the session was deleted")
        return {}

    async def _set_mode(self, params: Params) -> Params:
        thread = self._thread(params)
        thread.choices.choose("mode", params.get("modeId"))
        await thread.send_options()
        return {}

    async def _set_option(self, params: Params) -> Params:
        thread, option = self._thread(params), params.get("configId")
        await thread.choose(option, params.get("value"))
        if option == "mode":
            mode = thread.choices.mode
            await thread.send([{"sessionUpdate": "current_mode_update", "currentModeId": mode}])
        return {"configOptions": thread.choices.options()}

    # Finding things ----------------------------------------------------------------------------

    def _project(self, cwd: Any) -> Project:
        """The project of a directory. Raises RpcError."""
        if not isinstance(cwd, str) or not os.path.isabs(cwd) or "\0" in cwd:
            raise RpcError(INVALID_PARAMS, "cwd: an absolute path is needed")
        if not os.path.isdir(cwd):
            raise RpcError(INVALID_PARAMS, f"cwd: there is no directory {cwd[:200]}")
        path = os.path.normpath(cwd)
        if path not in self._projects:
            if len(self._projects) >= MOST_PROJECTS:
                text = f"{MOST_PROJECTS} directories are open here: start the agent anew for others"
                raise RpcError(INTERNAL_ERROR, text)
            self._projects[path] = Project(dataclasses.replace(self._wanted, path=path))
        return self._projects[path]

    def _thread(self, params: Params) -> Thread:
        """The session of a request, which must be open here. Raises RpcError."""
        thread = self._threads.get(_session_id(params))
        if thread is None:
            raise RpcError(NOT_FOUND, "the session is not open: use session/load first")
        return thread

    def _forget(self, thread: Thread, reason: str) -> None:
        """Show a session no more. Prompts of it that are still open are answered with the reason:
        no event would do it any more."""
        self._end_servers(thread)
        thread.withdraw_all()
        thread.fail(reason)
        thread.project.threads.pop(thread.session_id, None)
        self._threads.pop(thread.session_id, None)

    def _has(self, *names: str) -> bool:
        """Whether the client has told a capability: an object or true, not null."""
        value: Any = self._capabilities
        for name in names:
            value = value.get(name) if isinstance(value, dict) else None
        return value is not None and value is not False

    def _warn(self, thread: Thread, title: str, warning: str) -> None:
        """Show a warning, unless it is empty, in a client that has notices; log it for others."""
        if warning and self._has("session", "notices"):
            notice = {"severity": "warning", "title": title, "description": warning}
            thread.project.spawn(thread.send([{"sessionUpdate": "notice", **notice}]))
        elif warning:
            log.warning("%s", warning)


async def _now(answer: Params) -> Params:
    return answer


async def _translated(work: Awaitable[Any]) -> Any:
    """Errors of the daemon as the protocol has them."""
    try:
        return await work
    except PeerError:
        raise
    except NotFound as error:
        raise RpcError(NOT_FOUND, error.message) from None
    except BadRequest as error:
        raise RpcError(INVALID_PARAMS, error.message) from None
    except CrushliteError as error:
        raise RpcError(INTERNAL_ERROR, error.message) from None


def _session_id(params: Params) -> str:
    session_id = params.get("sessionId")
    if not isinstance(session_id, str) or not session_id or len(session_id) > 200:
        raise RpcError(INVALID_PARAMS, "sessionId: a text is needed")
    return session_id


def _position(cursor: Any) -> int:
    if cursor is None:
        return 0
    if not isinstance(cursor, str) or not cursor.isdecimal() or len(cursor) > 9:
        raise RpcError(INVALID_PARAMS, "cursor: not one of ours")
    return int(cursor)
