"""The agent of a workspace: prompts, runs, cancel, the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from ..clock import all_done
from ..errors import BadRequest, NotFound
from ..protocol.config import AgentInit, SelectedModel
from ..protocol.messages import Prompt
from ..protocol.runs import RUN_STATES, Accepted
from ..protocol.sessions import Session
from .context import EMPTY, agent_info, answer, body, optional_body, optional_client, seconds
from .entry import Param

if TYPE_CHECKING:
    import asyncio

    from ..clock import Clock
    from ..hosting.workspace import Workspace
    from ..http.messages import Request, Response
    from ..protocol.runs import CancelReceipt
    from .context import Context


PROVIDER = Param("provider_id", "The provider of the large model.", required=True)


async def info(context: Context, request: Request) -> Response:
    return answer(agent_info(context.workspace(request)))


async def prompt(context: Context, request: Request) -> Response:
    """Accept a prompt. Nothing is awaited before it is in line, except that a body above 64 KiB is
    read in a thread: prompts of a session start in the order in which their bodies were read."""
    workspace = context.workspace(request)
    state = await workspace.runs.prompt(body(Prompt, request))
    location = f"/v1/workspaces/{workspace.id}/runs/{quote(state.run_id, safe='')}"
    accepted = Accepted(state.run_id, state.session_id, state.state)
    return answer(accepted, 202, (("Location", location),))


async def init(context: Context, request: Request) -> Response:
    """Record whether a person sits at a client. Optional and idempotent: a workspace has its agent
    since it was created, and running turns are not disturbed."""
    workspace = context.workspace(request)
    wanted = optional_body(AgentInit, request)
    client = optional_client(request) or None
    context.backend.claims.say_interactive(workspace.id, client, wanted.interactive)
    return EMPTY


async def small_model(context: Context, request: Request) -> Response:
    workspace = context.workspace(request)
    return answer(own_small_model(workspace, required_provider(request)))


def required_provider(request: Request) -> str:
    """The provider that the query names. Raises BadRequest if it names none."""
    provider = request.query_one("provider_id")
    if not provider:
        raise BadRequest("provider_id is required")
    return provider


def own_small_model(workspace: Workspace, provider: str) -> SelectedModel:
    """The model of an agent that is a provider itself; NotFound if another one is asked for."""
    own = agent_info(workspace).model_cfg
    if own.provider != provider:
        raise NotFound(f"provider not found: {provider!r} is not configured")
    return SelectedModel(model=own.model, provider=own.provider)


async def agent_session(context: Context, request: Request) -> Response:
    session = await context.workspace(request).session(request.params["sid"])
    return answer(Session(id=session.id, title=session.title, is_busy=session.is_busy))


async def cancel(context: Context, request: Request) -> Response:
    workspace = context.workspace(request)
    hit = workspace.cancel(request.params["sid"])
    return await _receipt(workspace.clock, request, *hit)


async def cancel_run(context: Context, request: Request) -> Response:
    workspace = context.workspace(request)
    hit = await workspace.runs.cancel_run(request.params["run_id"])
    return await _receipt(workspace.clock, request, *hit)


async def _receipt(
    clock: Clock, request: Request, receipt: CancelReceipt, endings: list[asyncio.Future[None]]
) -> Response:
    """Wait for the endings as long as the request wants, and answer with the receipt. The cancel
    has been carried out before: a bad `wait` cannot prevent it."""
    try:
        wait = seconds(request)
    except BadRequest as error:
        raise BadRequest(f"{error.message}; the cancel was carried out") from None
    await all_done(clock, endings, wait)
    return answer(receipt)


# The queue ------------------------------------------------------------------------------------


async def queue(context: Context, request: Request) -> Response:
    return answer(context.workspace(request).runs.queue(request.params["sid"]))


async def queued(context: Context, request: Request) -> Response:
    return answer(len(context.workspace(request).runs.queue(request.params["sid"])))


async def list_queue(context: Context, request: Request) -> Response:
    waiting = context.workspace(request).runs.queue(request.params["sid"])
    return answer([prompt.text for prompt in waiting])


async def clear_queue(context: Context, request: Request) -> Response:
    context.workspace(request).runs.clear(request.params["sid"])
    return EMPTY


async def remove_queued(context: Context, request: Request) -> Response:
    await context.workspace(request).runs.remove(request.params["sid"], request.params["run_id"])
    return EMPTY


# Runs -----------------------------------------------------------------------------------------


async def list_runs(context: Context, request: Request) -> Response:
    workspace = context.workspace(request)
    state = request.query_one("state") or None
    if state is not None and state not in RUN_STATES:
        raise BadRequest(f"state {state!r}: use one of {', '.join(RUN_STATES)}")
    return answer(await workspace.runs.list_runs(request.query_one("session_id") or None, state))


async def run(context: Context, request: Request) -> Response:
    workspace = context.workspace(request)
    wait = seconds(request)
    return answer(await workspace.runs.run_info(request.params["run_id"], wait))
