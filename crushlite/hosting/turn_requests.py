"""What an agent asks users: permissions and questions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..agent.base import Scope, Verdict
from ..protocol.permissions import PermissionRequest
from ..protocol.questions import QuestionBatch
from .dialogs import Allowed
from .given import directory_of, questions_of
from .prompts import clean
from .turn_commands import TurnCommands

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from ..protocol.permissions import PermissionOption
    from ..protocol.questions import Question, QuestionResponse
    from .guards import TurnGuards
    from .prompts import TurnRequest
    from .transcript import LiveMessage


class TurnRequests(TurnCommands):
    """The part of a LiveTurn that asks users. What a sub-agent asks is asked for the session that
    it works for."""

    path: Path
    denied: int  # requests, with those of its sub-agents
    _denied_in: Sequence[TurnRequests]  # the turn itself, and the one that a sub-agent works for
    _request: TurnRequest
    _guards: TurnGuards
    _step: LiveMessage | None  # the assistant message of the current step
    _unallowed: set[str]  # tool calls that wait for a permission
    _fresh_ids: dict[str, str]  # of calls whose own id was used before; the newest

    def _show_calls(self) -> None:
        """Publish the calls of this step: clients must know a call before they hear of it."""
        if self._step is not None:
            self._services.transcript.flush(self._step)

    def _stored_id(self, call_id: str) -> str:
        """The id on record of what the agent calls by this one."""
        return self._fresh_ids.get(call_id, call_id)

    async def permission(
        self,
        tool_name: str,
        action: str,
        *,
        description: str = "",
        params: Mapping[str, Any] | None = None,
        path: str = "",
        tool_call_id: str = "",
        scope: Scope | None = None,
        options: Sequence[PermissionOption] = (),
    ) -> Verdict:
        self._check()
        self._show_calls()
        request = PermissionRequest(
            session_id=self._for_session,
            tool_call_id=self._stored_id(tool_call_id),
            tool_name=tool_name,
            description=clean(description),
            action=action,
            params=dict(params or {}),
            path=directory_of(path, self.path),
            scope=clean(scope.words) if scope is not None else "",
            rule=clean(scope.rule_words) if scope is not None else "",
            options=[replace(option, name=clean(option.name)) for option in options],
        )
        self._unallowed.add(request.tool_call_id)  # stays if the run is canceled meanwhile
        verdict = await self._decide(request, scope)
        self._unallowed.discard(request.tool_call_id)
        if not verdict:
            for turn in self._denied_in:
                turn.denied += 1
        return verdict

    async def _decide(self, request: PermissionRequest, scope: Scope | None) -> Verdict:
        """Decide a request: by the wings, which can always refuse, by policy and rules, or by the
        users."""
        permissions = self._services.permissions
        ruled = await self._guards.permission(request)
        if ruled is not None and not ruled:
            return ruled
        if self._request.auto_approve:
            return Verdict(True)
        always = self._guards.must_ask(request.tool_call_id)
        if always:
            scope = Scope((), "nothing: a hook wants you to be asked")
        if always or not permissions.is_settled(request, scope):
            ruled = ruled or await self._guards.answer(request)
            if ruled is not None:
                permissions.announce(request, granted=bool(ruled))
                return ruled
            self._guards.notify("permission_prompt", request.description)
        answer = await permissions.ask(request, self.run_id, scope, always=always)
        return Verdict(isinstance(answer, Allowed), answer.reason, answer.option)

    async def ask(
        self,
        questions: str | Sequence[str | Question | Mapping[str, Any]],
        *,
        tool_call_id: str = "",
        confirm_title: str = "",
    ) -> list[QuestionResponse] | None:
        self._check()
        self._show_calls()
        batch = QuestionBatch(
            session_id=self._for_session,
            tool_call_id=self._stored_id(tool_call_id),
            questions=questions_of(questions),
            confirm_title=confirm_title,
        )
        self._guards.notify("agent_needs_input", batch.questions[0].question if questions else "")
        return await self._services.questions.ask(batch, self.run_id)
