"""The route table. Every route of the core is here. Wings add theirs, and replace those of features
that the core does not have. A test checks docs/protocol.md against the whole table.
"""

from __future__ import annotations

import asyncio
import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..http.router import Route
from ..protocol.codec import LARGE, without_none
from ..protocol.config import AgentInfo, AgentInit, ModelChoice, SelectedModel
from ..protocol.events import Envelope
from ..protocol.messages import Message, Prompt
from ..protocol.permissions import (
    Grant,
    PermissionAnswer,
    PermissionRequest,
    PermissionRule,
    PermissionSkip,
    Resolution,
)
from ..protocol.questions import QuestionAnswer, QuestionBatch, QuestionReply
from ..protocol.runs import RUN_STATES, Accepted, CancelReceipt, QueuedPrompt, RunInfo
from ..protocol.sessions import CurrentSession, File, Session
from ..protocol.workspaces import (
    Control,
    CreateWorkspace,
    Space,
    VersionInfo,
    WireConfig,
    Workspace,
)
from ..threads import DaemonThreads
from . import agent, dialogs, features, sessions, system, workspaces
from .context import MAX_WAIT, read
from .entry import MIB, Entry, Param, W, alive

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..http.messages import Request, Response, Stream
    from ..http.router import Handler
    from ..wing import Wing
    from .context import Context

# A row says the method, the pattern, the function, and then what it takes and what it gives.
WS = "/v1/workspaces"
S = W + "/sessions/{sid}"
A = W + "/agent/sessions/{sid}"
R = W + "/runs/{run_id}"
P = W + "/permissions"
Q = W + "/questions"
SMALL_MODEL = W + "/agent/default-small-model"

SSE = "text/event-stream"
BODIES_AT_ONCE = 2  # large ones, read in threads: more would only take the interpreter in turns

# Parameters.
CLIENT = Param("client_id", "The UUID of the client.", required=True)
BY = Param("client_id", "The UUID of the client; other clients see who it was.")
RESUME = Param("resume", "1: events with ids, comments that keep the stream alive, tool output.")
DELTAS = Param("deltas", "1, with ids: of a growing message only what was appended.")
LAST_ID = Param("Last-Event-ID", "The last id that came: what followed comes first.", str, "header")
EVENTS = (CLIENT, RESUME, DELTAS, LAST_ID)
WAIT = Param("wait", f"Seconds to wait for the end, at most {MAX_WAIT:.0f}.", float)
IN_SESSION = Param("session_id", "Only those of this session.")
IN_STATE = Param("state", "Only those in this state.", choices=RUN_STATES)
CANCEL: dict[str, Any] = {"gives": CancelReceipt, "params": (WAIT,), "urgent": True}
# Of what a person was asked.
ANSWER: dict[str, Any] = {"gives": Resolution, "params": (BY,), "urgent": True}

LISTED = ("tools", "prompts", "resources")  # of a tool server
# Requests that only a wing can carry out: without it they are refused.
ABSENT = (
    *("/config/set", "/config/remove", "/config/compact", "/config/provider-key"),
    *("/config/refresh-oauth", "/project/init", "/skills/read", "/mcp/auth", "/mcp/get-prompt"),
    *("/mcp/docker/enable", "/mcp/docker/disable"),
    *("/agent/sessions/{sid}/shell", "/agent/sessions/{sid}/summarize"),
)

TABLE: tuple[Entry, ...] = (
    # The daemon itself.
    Entry("GET", "/v1/health", system.health, urgent=True, instant=alive),
    Entry("GET", "/v1/version", system.version, gives=VersionInfo),
    Entry("POST", "/v1/control", system.control, takes=Control),
    Entry("DELETE", "/v1/clients/{client_id}", system.retire_client),
    # Workspaces. A create carries a whole environment.
    Entry("POST", WS, workspaces.create, CreateWorkspace, Workspace, body_limit=4 * MIB),
    Entry("GET", WS, workspaces.list_workspaces, gives=list[Workspace]),
    Entry("GET", W, workspaces.get, gives=Workspace),
    Entry("DELETE", W, workspaces.release, params=(CLIENT,)),
    Entry("GET", W + "/events", workspaces.events, gives=Envelope, params=EVENTS, media=SSE),
    Entry(
        "POST", W + "/current-session", workspaces.current_session, CurrentSession, params=(CLIENT,)
    ),
    Entry("POST", W + "/compact", workspaces.compact, gives=Space),
    # Configuration.
    Entry("GET", "/v1/config", features.daemon_config, gives=dict[str, Any]),
    Entry("GET", W + "/config", features.get_config, gives=WireConfig),
    Entry("GET", W + "/providers", features.providers, gives=list[dict[str, Any]]),
    Entry("POST", W + "/config/model", features.choose_model, takes=ModelChoice),
    Entry("POST", W + "/config/import-copilot", features.import_copilot, gives=dict[str, Any]),
    # Sessions and messages.
    Entry("GET", W + "/sessions", sessions.list_sessions, gives=list[Session]),
    Entry("POST", W + "/sessions", sessions.create, takes=Session, gives=Session),
    Entry("GET", S, sessions.get, gives=Session),
    Entry("PUT", S, sessions.rename, takes=Session, gives=Session),
    Entry("DELETE", S, sessions.delete),
    Entry("GET", S + "/messages", sessions.messages, gives=list[Message]),
    Entry("GET", S + "/messages/user", sessions.user_messages, gives=list[Message]),
    Entry("GET", W + "/messages/user", sessions.user_messages, gives=list[Message]),
    Entry("GET", S + "/history", features.no_list, gives=list[File]),
    Entry("GET", S + "/filetracker/files", features.no_list, gives=list[str]),
    Entry("POST", W + "/filetracker/read", features.nothing_to_do),
    Entry("GET", W + "/filetracker/lastread", features.never_read, gives=str),
    # The agent. A prompt carries its attachments in base64.
    Entry("GET", W + "/agent", agent.info, gives=AgentInfo),
    Entry("POST", W + "/agent", agent.prompt, Prompt, Accepted, status=202, body_limit=32 * MIB),
    Entry("POST", W + "/agent/init", agent.init, takes=AgentInit | None, params=(BY,)),
    Entry("POST", W + "/agent/update", features.nothing_to_do),
    Entry("GET", SMALL_MODEL, agent.small_model, gives=SelectedModel, params=(agent.PROVIDER,)),
    Entry("GET", A, agent.agent_session, gives=Session),
    Entry("POST", A + "/cancel", agent.cancel, **CANCEL),
    Entry("GET", A + "/prompts", agent.queue, gives=list[QueuedPrompt]),
    Entry("DELETE", A + "/prompts/{run_id}", agent.remove_queued),
    Entry("GET", A + "/prompts/queued", agent.queued, gives=int),
    Entry("GET", A + "/prompts/list", agent.list_queue, gives=list[str]),
    Entry("POST", A + "/prompts/clear", agent.clear_queue),
    Entry("GET", W + "/runs", agent.list_runs, gives=list[RunInfo], params=(IN_SESSION, IN_STATE)),
    Entry("GET", R, agent.run, gives=RunInfo, params=(WAIT,)),
    Entry("POST", R + "/cancel", agent.cancel_run, **CANCEL),
    # Requests for a person.
    Entry("GET", P, dialogs.list_permissions, gives=list[PermissionRequest]),
    Entry("GET", P + "/skip", dialogs.get_skip, gives=PermissionSkip),
    Entry("POST", P + "/skip", dialogs.set_skip, takes=PermissionSkip),
    Entry("GET", P + "/rules", dialogs.list_rules, gives=list[PermissionRule]),
    Entry("DELETE", P + "/rules/{rule_id}", dialogs.remove_rule),
    Entry("POST", P + "/grant", dialogs.grant, Grant, **ANSWER),
    Entry("POST", P + "/{request_id}", dialogs.answer_permission, PermissionAnswer, **ANSWER),
    Entry("GET", Q, dialogs.list_questions, gives=list[QuestionBatch]),
    Entry("POST", Q + "/answer", dialogs.answer_questions, QuestionAnswer, **ANSWER),
    Entry("POST", Q + "/cancel", dialogs.cancel_questions, **ANSWER),
    Entry("POST", Q + "/{batch_id}", dialogs.answer_batch, QuestionReply, **ANSWER),
    # Features that the Crush UI asks for and the core does not have.
    Entry("GET", W + "/project/needs-init", features.needs_init, gives=dict[str, bool]),
    Entry("GET", W + "/skills", features.no_list, gives=list[Any]),
    Entry("GET", W + "/lsps", features.no_map, gives=dict[str, Any]),
    Entry("POST", W + "/lsps/start", features.nothing_to_do),
    Entry("POST", W + "/lsps/stop", features.nothing_to_do),
    Entry("GET", W + "/mcp/states", features.no_map, gives=dict[str, Any]),
    Entry("GET", W + "/mcp/pending-auth", features.no_list, gives=list[Any]),
    Entry("GET", W + "/mcp/prompts", features.no_list, gives=list[Any]),
    Entry("GET", W + "/mcp/auth-url", features.no_map, gives=dict[str, Any]),
    Entry("POST", W + "/mcp/read-resource", features.no_list, gives=list[Any]),
    *(Entry("POST", f"{W}/mcp/refresh-{what}", features.nothing_to_do) for what in LISTED),
    *(Entry("POST", W + path, features.absent) for path in ABSENT),
    Entry("GET", W + "/lsps/{name}/diagnostics", features.absent),
    Entry("GET", W + "/project/init-prompt", features.absent),
)


def whole_table(wings: Sequence[Wing]) -> tuple[Entry, ...]:
    """The table of the core with the routes of wings. One with the method and pattern of a core
    route takes its place; others come after them."""
    rows = {(entry.method, entry.pattern): entry for entry in TABLE}
    rows |= {(entry.method, entry.pattern): entry for wing in wings for entry in wing.routes()}
    return tuple(rows.values())


def _handler(context: Context, entry: Entry, threads: DaemonThreads) -> Handler:
    """The handler of a row: a large body is read in a thread first, a small one at once, so that
    requests are carried out in the order in which they arrive."""
    function = functools.partial(entry.function, context)
    if entry.takes is None or entry.body_limit <= LARGE:
        return function
    cls = without_none(entry.takes)

    async def read_first(request: Request) -> Response | Stream:
        parsed = await asyncio.wrap_future(threads.submit(read, cls, request.body))
        return await function(replace(request, parsed=parsed))

    return lambda request: (read_first if len(request.body) > LARGE else function)(request)


def routes_of(context: Context) -> list[Route]:
    """The routes of the context's table, for a router."""
    threads = DaemonThreads(BODIES_AT_ONCE, "body")
    routes = []
    for row in context.table:
        handler = _handler(context, row, threads)
        flags = (row.urgent, row.public, row.from_file, row.instant)
        routes.append(Route(row.method, row.pattern, handler, row.body_limit, *flags))
    return routes
