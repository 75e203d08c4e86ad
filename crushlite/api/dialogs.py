"""Requests for a person: permissions and questions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import BadRequest, CrushliteError
from ..protocol.permissions import Grant, PermissionAnswer, PermissionSkip
from ..protocol.questions import QuestionAnswer, QuestionReply
from .context import EMPTY, answer, body, optional_client

if TYPE_CHECKING:
    from ..hosting.workspace import Workspace
    from ..http.messages import Request, Response
    from .context import Context


async def get_skip(context: Context, request: Request) -> Response:
    return answer(PermissionSkip(context.workspace(request).permissions.skip))


async def set_skip(context: Context, request: Request) -> Response:
    workspace = context.workspace(request)
    workspace.permissions.skip = body(PermissionSkip, request).skip
    return EMPTY


async def list_permissions(context: Context, request: Request) -> Response:
    return answer(context.workspace(request).permissions.listed())


async def grant(context: Context, request: Request) -> Response:
    """Answer as in the base protocol: the client sends the whole request; only its id is read."""
    workspace = context.workspace(request)
    wanted = body(Grant, request)
    request_id = wanted.permission.get("id")
    if not isinstance(request_id, str):
        raise BadRequest("permission.id must be a string")
    by = optional_client(request)
    return await _resolve(workspace, request_id, PermissionAnswer(wanted.action), by)


async def answer_permission(context: Context, request: Request) -> Response:
    workspace = context.workspace(request)
    wanted = body(PermissionAnswer, request)
    by, request_id = optional_client(request), request.params["request_id"]
    workspace.permissions.require_known(request_id)
    return await _resolve(workspace, request_id, wanted, by)


async def _resolve(
    workspace: Workspace, request_id: str, wanted: PermissionAnswer, by: str
) -> Response:
    """Answer a request. The rule of a winning `allow_always` is in force at once, and kept when
    this returns; if it cannot be kept, it is one for the session, and the answer is the error."""
    permissions = workspace.permissions
    always = wanted.action == "allow_always"
    if always and not workspace.keeps_rules:
        raise BadRequest("allow_always: this daemon keeps no rules: use allow_rule")
    rule = permissions.offered(request_id) if always else None
    said = (wanted.action, by, wanted.reason, wanted.option)
    resolution = permissions.resolve(request_id, *said)
    if rule is not None and resolution.resolved:
        try:
            await workspace.carry_out(workspace.keep_rule(rule))
        except CrushliteError as error:
            why = f"allowed for this session, but not kept: {error.message}"
            raise type(error)(why) from None
    return answer(resolution)


async def list_rules(context: Context, request: Request) -> Response:
    return answer(context.workspace(request).permissions.grants.listed())


async def remove_rule(context: Context, request: Request) -> Response:
    workspace = context.workspace(request)
    await workspace.carry_out(workspace.remove_rule(request.params["rule_id"]))
    return EMPTY


async def list_questions(context: Context, request: Request) -> Response:
    return answer(context.workspace(request).questions.listed())


async def answer_questions(context: Context, request: Request) -> Response:
    workspace = context.workspace(request)
    wanted = body(QuestionAnswer, request)
    by = optional_client(request)
    return answer(workspace.questions.answer(wanted.batch_request_id, wanted.responses, by))


async def cancel_questions(context: Context, request: Request) -> Response:
    questions = context.workspace(request).questions
    return answer(questions.cancel(by=optional_client(request)))


async def answer_batch(context: Context, request: Request) -> Response:
    questions = context.workspace(request).questions
    wanted = body(QuestionReply, request)
    by, batch_id = optional_client(request), request.params["batch_id"]
    questions.require_known(batch_id)
    if wanted.action == "cancel":
        return answer(questions.cancel(batch_id, by))
    if wanted.action:
        raise BadRequest(f"action {wanted.action!r}: send responses, or the action cancel")
    return answer(questions.answer(batch_id, wanted.responses, by))
