"""The route table. Every route is here and nowhere else; the docs are checked against it."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crushlite.api import agent, features, files, requests, sessions, system, workspaces
from crushlite.api.context import Context
from crushlite.http.router import Route, Router

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from crushlite.api.auth import Guard
    from crushlite.backend import Backend
    from crushlite.http.messages import Request, Response, Stream

    Function = Callable[[Context, Request], Awaitable[Response | Stream]]

__all__ = ["TABLE", "Entry", "build_router"]

MIB = 1 << 20
W = "/v1/workspaces/{id}"
S = W + "/sessions/{sid}"
A = W + "/agent/sessions/{sid}"


@dataclass(frozen=True, slots=True)
class Entry:
    method: str
    pattern: str
    function: Function
    body_limit: int = MIB
    urgent: bool = False  # served even when all ordinary connections are taken


TABLE: tuple[Entry, ...] = (
    Entry("GET", "/v1/health", system.health, urgent=True),
    Entry("GET", "/v1/version", system.version),
    Entry("POST", "/v1/control", system.control),
    Entry("DELETE", "/v1/clients/{client_id}", system.retire_client),
    # Workspaces. A create carries a whole environment.
    Entry("POST", "/v1/workspaces", workspaces.create, body_limit=4 * MIB),
    Entry("GET", "/v1/workspaces", workspaces.list_workspaces),
    Entry("GET", W, workspaces.get),
    Entry("DELETE", W, workspaces.release),
    Entry("GET", W + "/config", workspaces.config),
    Entry("GET", W + "/events", workspaces.events),
    Entry("POST", W + "/current-session", workspaces.current_session),
    # Sessions and messages.
    Entry("GET", W + "/sessions", sessions.list_sessions),
    Entry("POST", W + "/sessions", sessions.create),
    Entry("GET", S, sessions.get),
    Entry("PUT", S, sessions.rename),
    Entry("DELETE", S, sessions.delete),
    Entry("GET", S + "/messages", sessions.messages),
    Entry("GET", S + "/messages/user", sessions.user_messages),
    Entry("GET", W + "/messages/user", sessions.all_user_messages),
    Entry("GET", S + "/history", files.history),
    Entry("GET", S + "/filetracker/files", files.read_files),
    Entry("POST", W + "/filetracker/read", files.mark_read),
    Entry("GET", W + "/filetracker/lastread", files.last_read),
    # The agent. A prompt carries its attachments in base64.
    Entry("GET", W + "/agent", agent.info),
    Entry("POST", W + "/agent", agent.prompt, body_limit=32 * MIB),
    Entry("POST", W + "/agent/init", agent.init),
    Entry("POST", W + "/agent/update", agent.update),
    Entry("GET", A, agent.agent_session),
    Entry("POST", A + "/cancel", agent.cancel, urgent=True),
    Entry("POST", A + "/summarize", agent.summarize),
    Entry("POST", A + "/shell", agent.shell),
    Entry("GET", A + "/prompts", agent.queue),
    Entry("DELETE", A + "/prompts/{run_id}", agent.remove_queued),
    Entry("GET", A + "/prompts/queued", agent.queued),
    Entry("GET", A + "/prompts/list", agent.list_queue),
    Entry("POST", A + "/prompts/clear", agent.clear_queue),
    Entry("GET", W + "/runs", agent.list_runs),
    Entry("GET", W + "/runs/{run_id}", agent.run),
    # What waits for a person.
    Entry("GET", W + "/permissions", requests.list_permissions),
    Entry("GET", W + "/permissions/skip", requests.get_skip),
    Entry("POST", W + "/permissions/skip", requests.set_skip),
    Entry("POST", W + "/permissions/grant", requests.grant, urgent=True),
    Entry("POST", W + "/permissions/{request_id}", requests.answer_permission, urgent=True),
    Entry("GET", W + "/questions", requests.list_questions),
    Entry("POST", W + "/questions/answer", requests.answer_questions, urgent=True),
    Entry("POST", W + "/questions/cancel", requests.cancel_questions, urgent=True),
    Entry("POST", W + "/questions/{batch_id}", requests.answer_question, urgent=True),
    # What the Crush UI asks for and there is none of.
    Entry("GET", W + "/project/needs-init", features.needs_init),
    Entry("GET", W + "/skills", features.no_list),
    Entry("GET", W + "/lsps", features.no_map),
    Entry("GET", W + "/lsps/{name}/diagnostics", features.diagnostics),
    Entry("POST", W + "/lsps/start", features.nothing_to_do),
    Entry("POST", W + "/lsps/stop", features.nothing_to_do),
    Entry("GET", W + "/mcp/states", features.no_map),
    Entry("GET", W + "/mcp/pending-auth", features.no_list),
    Entry("GET", W + "/mcp/prompts", features.no_list),
)


def build_router(backend: Backend, guard: Guard) -> Router:
    context = Context(backend)
    return Router(
        (
            Route(
                entry.method,
                entry.pattern,
                functools.partial(entry.function, context),
                entry.body_limit,
                entry.urgent,
            )
            for entry in TABLE
        ),
        guard=guard,
    )
