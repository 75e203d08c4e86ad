"""What the exit code and the output of hooks mean, and what several of them mean together.

    exit 0      its output, if that is a JSON object; other output of UserPromptSubmit and
                SessionStart is context for the model
    exit 2      no; what it wrote to stderr is the reason
    exit 49     the turn must end
    126, 127    it could not be started, and above 128 it was killed: it failed
    others      nothing

The object has the keys of Crush (`decision`, `reason`, `halt`, `context`, `updated_input`) or those
of Claude Code (`continue`, `stopReason`, `hookSpecificOutput` with `permissionDecision` and so on).
One that cannot be understood is a failure. What a failure means depends on what was asked.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

from ..protocol.codec import NotJSON, loads
from ..records import dataclass
from .definitions import PROMPT, SESSION_START

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .definitions import Hook

BLOCK, HALT = 2, 49
CONTEXT_CHARS = 10_000  # that one hook may add
REASON_CHARS = 2_000
_WORDS = {
    "allow": "allow",
    "approve": "allow",
    "deny": "deny",
    "block": "deny",
    "ask": "ask",
    "none": "",
    "": "",
}


@dataclass(frozen=True, slots=True)
class HookOutput:
    """What became of a hook: how it ended and what it wrote, or why it could not be run."""

    code: int = 0
    stdout: str = ""
    stderr: str = ""
    failure: str = ""


@dataclass(frozen=True, slots=True)
class HookResult:
    """What one hook says."""

    hook: Hook
    decision: str = ""  # allow, deny, ask or nothing
    reason: str = ""
    halt: bool = False
    context: str = ""
    replaced: dict[str, Any] | None = None  # the whole input
    updated: dict[str, Any] = field(default_factory=dict)  # some keys of it
    failed: bool = False

    @property
    def rewrites(self) -> bool:
        return self.replaced is not None or bool(self.updated)

    def shown(self) -> dict[str, Any]:
        """For clients, in the metadata of a tool's result."""
        said: dict[str, Any] = {"name": self.hook.title}
        if self.hook.matcher:
            said["matcher"] = self.hook.matcher
        said["decision"] = self.decision or "none"
        if self.halt:
            said["halt"] = True
        if self.reason:
            said["reason"] = self.reason
        if self.rewrites:
            said["input_rewrite"] = True
        return said


def read_output(hook: Hook, output: HookOutput) -> HookResult:
    """What a hook says by its output. A failure is a `deny` that is marked as one."""
    if output.failure:
        return _failed(hook, output.failure)
    errors = output.stderr.strip()[:REASON_CHARS]
    if output.code == BLOCK:
        return HookResult(hook, "deny", errors or f"{hook.title} says no")
    if output.code == HALT:
        return HookResult(hook, "deny", errors or f"{hook.title} halts the turn", halt=True)
    if output.code in (126, 127):
        return _failed(hook, errors or "there is no such program")
    if output.code > 128:
        return _failed(hook, f"it was killed by signal {output.code - 128}")
    if output.code != 0:
        return HookResult(hook)
    text = output.stdout.strip()
    if not text.startswith("{"):
        plain = text if hook.event in (PROMPT, SESSION_START) else ""
        return HookResult(hook, context=plain[:CONTEXT_CHARS])
    try:
        value = loads(text.encode("utf-8", "replace"))
        return _understood(hook, value)
    except NotJSON as error:
        return _failed(hook, f"its output is not JSON: {error.reason}")
    except (TypeError, ValueError) as error:
        return _failed(hook, f"its output is not understood: {error}")


def _failed(hook: Hook, why: str) -> HookResult:
    reason = f"the hook {hook.title} could not be run: {why}"[:REASON_CHARS]
    return HookResult(hook, "deny", reason, failed=True)


def _understood(hook: Hook, value: dict[str, Any]) -> HookResult:
    """Read the object that a hook wrote. Raises TypeError or ValueError."""
    specific = _object(value, "hookSpecificOutput")
    answered = specific.get("decision")  # of a PermissionRequest
    behavior = _object(specific, "decision") if isinstance(answered, dict) else {}
    if answered is not None and not isinstance(answered, dict):
        raise TypeError("hookSpecificOutput.decision must be an object")
    decision = _decision(
        value.get("decision"), specific.get("permissionDecision"), behavior.get("behavior")
    )
    halt = value.get("halt") is True or value.get("continue") is False
    halt = halt or behavior.get("interrupt") is True
    reasons = (
        value.get("reason"),
        specific.get("permissionDecisionReason"),
        behavior.get("message"),
        value.get("stopReason") if halt else None,
    )
    reason = next((_text(each, "the reason") for each in reasons if each), "")
    if (decision == "deny" or halt) and not reason:
        reason = f"{hook.title} says no"
    context = [*_texts(value.get("context")), *_texts(specific.get("additionalContext"))]
    replaced = specific.get("updatedInput", behavior.get("updatedInput"))
    if replaced is not None and not isinstance(replaced, dict):
        raise TypeError("updatedInput must be an object")
    return HookResult(
        hook,
        decision,
        reason[:REASON_CHARS],
        halt,
        "\n".join(context)[:CONTEXT_CHARS],
        replaced,
        _object(value, "updated_input"),
    )


def _decision(*given: Any) -> str:
    """The strictest of some decisions. Raises ValueError for an unknown one."""
    words = set()
    for each in given:
        if each is None:
            continue
        if not isinstance(each, str) or each not in _WORDS:
            raise ValueError(f"{str(each)[:40]!r} is no decision: use allow, deny or ask")
        words.add(_WORDS[each])
    return next((word for word in ("deny", "ask", "allow") if word in words), "")


def _object(value: dict[str, Any], key: str) -> dict[str, Any]:
    found = value.get(key)
    if found is not None and not isinstance(found, dict):
        raise TypeError(f"{key} must be an object")
    return found or {}


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a text")
    return value.strip()


def _texts(value: Any) -> list[str]:
    some = value if isinstance(value, list) else [value]
    return [_text(each, "the context") for each in some if each]


# Several hooks together --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HooksOutcome:
    """What all hooks of one event say together."""

    results: Sequence[HookResult]

    @property
    def decision(self) -> str:
        """deny before ask before allow. A hook of a project cannot allow, and what was allowed must
        be what will be done: if some hooks change the input, all of those must allow."""
        said = {result.decision for result in self.results}
        if "deny" in said or "ask" in said:
            return "deny" if "deny" in said else "ask"
        allowing = [r for r in self.results if r.decision == "allow" and r.hook.is_users]
        changing = [r for r in self.results if r.rewrites]
        return "allow" if allowing and all(r in allowing for r in changing) else ""

    @property
    def halt(self) -> bool:
        return any(result.halt for result in self.results)

    @property
    def reason(self) -> str:
        """Why the decision is what it is."""
        decided = [r for r in self.results if r.halt or r.decision == self.decision != ""]
        return "\n".join(dict.fromkeys(r.reason for r in decided if r.reason))

    @property
    def context(self) -> str:
        return "\n".join(result.context for result in self.results if result.context)

    def rewritten(self, given: dict[str, Any]) -> dict[str, Any] | None:
        """The input as the hooks want it, in their order; None if they do not change it."""
        value = dict(given)
        for result in self.results:
            if result.replaced is not None:
                value = dict(result.replaced)
            value |= result.updated
        return value if value != given else None

    def shown(self) -> dict[str, Any] | None:
        """For clients, in the metadata of a tool's result; None if no hook was asked."""
        if not self.results:
            return None
        said: dict[str, Any] = {
            "hook_count": len(self.results),
            "decision": self.decision or "none",
        }
        if self.halt:
            said["halt"] = True
        if self.reason:
            said["reason"] = self.reason
        if any(result.rewrites for result in self.results):
            said["input_rewrite"] = True
        return said | {"hooks": [result.shown() for result in self.results]}
