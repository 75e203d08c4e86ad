"""What users have allowed beyond a single request: rules, for one session or for good.

A rule covers requests of one tool and action in one directory, by parts: texts that the agent gives
with a request (agent/base.py: Scope). The core only compares them. A request is covered if each of
its parts was granted, or if of each of the sets that it says would cover it one part was. A request
without any scope is covered only by a rule that was granted for such a request.

Rules for a session are kept here. Those for good are in files of the user, and come from `kept`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..protocol.permissions import PermissionRule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ..agent.base import Scope
    from ..protocol.permissions import PermissionRequest

MOST_RULES = 1000  # of the sessions of one workspace; the oldest goes
ANYTHING: str = "*"  # the only part of a rule for requests without a scope


class Grants:
    """The rules of one workspace. `kept` gives those that are for good."""

    def __init__(self, kept: Callable[[], Iterable[PermissionRule]] = tuple) -> None:
        self._kept = kept
        self._rules: dict[str, tuple[PermissionRule, bool]] = {}  # with whether it has a scope

    def covers(self, request: PermissionRequest, scope: Scope | None) -> bool:
        """Whether requests like this one were granted."""
        granted: set[str] = set()
        for rule, scoped in (*self._rules.values(), *((rule, True) for rule in self._kept())):
            fits = rule.session_id in ("", request.session_id)
            if fits and scoped == (scope is not None) and _place(rule) == _place(request):
                granted.update(rule.parts)
        if scope is None:
            return ANYTHING in granted
        if scope.parts and granted.issuperset(scope.parts):
            return True
        return bool(scope.covered_by) and not any(map(granted.isdisjoint, scope.covered_by))

    def add(self, rule: PermissionRule, *, scoped: bool = True) -> None:
        """Add a rule for a session. One that says the same is replaced by it."""
        same = [
            each.id
            for each, has_scope in self._rules.values()
            if (each.session_id, _place(each), each.parts, has_scope)
            == (rule.session_id, _place(rule), rule.parts, scoped)
        ]
        for rule_id in same:
            del self._rules[rule_id]
        if len(self._rules) >= MOST_RULES:
            del self._rules[next(iter(self._rules))]
        self._rules[rule.id] = rule, scoped

    def listed(self) -> list[PermissionRule]:
        """All rules: those for sessions, oldest first, then those for good."""
        return [*(rule for rule, _ in self._rules.values()), *self._kept()]

    def remove(self, rule_id: str) -> bool:
        """Take back a rule for a session; returns whether there was one."""
        return self._rules.pop(rule_id, None) is not None

    def forget_session(self, session_id: str) -> None:
        gone = [key for key, (rule, _) in self._rules.items() if rule.session_id == session_id]
        for key in gone:
            del self._rules[key]


def session_rule(request: PermissionRequest, scope: Scope | None, now: float) -> PermissionRule:
    """What `allow_session` grants for a request."""
    words = request.scope or f"every {request.tool_name} ({request.action}) in {request.path}"
    return _rule(request, (ANYTHING,) if scope is None else scope.parts, words, now)


def offered_rule(
    request: PermissionRequest, scope: Scope | None, now: float
) -> PermissionRule | None:
    """The rule that is offered with a request; None if there is none."""
    if scope is None or not scope.rule_parts:
        return None
    return _rule(request, scope.rule_parts, request.rule, now)


def _rule(
    request: PermissionRequest, parts: Sequence[str], words: str, now: float
) -> PermissionRule:
    return PermissionRule(
        id=request.id,  # it is answered once
        tool_name=request.tool_name,
        action=request.action,
        path=request.path,
        words=words,
        parts=list(parts),
        session_id=request.session_id,
        created_at=int(now),
    )


def _place(of: PermissionRule | PermissionRequest) -> tuple[str, str, str]:
    return of.tool_name, of.action, of.path
