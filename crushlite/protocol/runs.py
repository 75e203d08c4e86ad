"""Runs as clients see them: acceptance, state, receipts of cancels, and the last event."""

from __future__ import annotations

from dataclasses import field

from ..records import dataclass
from .codec import omitted

LIVE_STATES = ("accepted", "queued", "active", "folded")
RUN_STATES = (*LIVE_STATES, "ended")
LIMITS = ("cost", "steps", "time", "tokens")  # what may end a run before its agent does


@dataclass(slots=True)
class Accepted:
    """Answer to a prompt that was accepted (202)."""

    run_id: str
    session_id: str
    state: str


@dataclass(slots=True)
class RunInfo:
    """A run. `state` is accepted, queued, active, folded or ended; `outcome` is empty until it has
    ended. `denied` counts the permissions that it asked for and did not get; `limit` names the
    limit that ended it, one of LIMITS or empty. Cost and tokens are those of its model calls
    together. `prompt` is the beginning of what was asked."""

    run_id: str = ""
    session_id: str = ""
    kind: str = "prompt"
    state: str = "accepted"
    outcome: str = ""
    message_id: str = ""
    text: str = ""
    error: str = ""
    folded_into: str = ""
    accepted_at: float = 0.0
    started_at: float = 0.0
    ended_at: float = 0.0
    denied: int = 0
    limit: str = ""
    cost: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt: str = ""

    def complete(self) -> RunComplete:
        """The event with which it ended."""
        return RunComplete(
            *(self.session_id, self.message_id, self.run_id, self.text, self.error),
            *(self.outcome in ("canceled", "cleared"), self.folded_into, self.denied, self.limit),
            *(self.cost, self.prompt_tokens, self.completion_tokens),
        )


@dataclass(slots=True)
class CanceledRun:
    """A run that was hit by a cancel; `was` is its state before."""

    run_id: str
    was: str


@dataclass(slots=True)
class CancelReceipt:
    canceled: list[CanceledRun] = field(default_factory=list)


@dataclass(slots=True)
class QueuedPrompt:
    run_id: str
    text: str
    when_busy: str
    accepted_at: float


@dataclass(slots=True)
class RunComplete:
    """The end of a run: exactly one for every accepted prompt while the daemon lives; one without
    `run_id` ends the turn of a sub-agent. `text` is that of the last assistant message. The fields
    from `denied` on are not in the base protocol: see RunInfo."""

    session_id: str
    message_id: str = ""
    run_id: str = omitted()
    text: str = omitted()
    error: str = omitted()
    cancelled: bool = omitted(False)
    folded_into: str = omitted()
    denied: int = omitted(0)
    limit: str = omitted()
    cost: float = omitted(0.0)
    prompt_tokens: int = omitted(0)
    completion_tokens: int = omitted(0)


@dataclass(slots=True)
class AgentEvent:
    """An event about the agent: agent_finished, error, or retry. The `progress` of a retry says why
    a model call is made again, and when. `message` of the base protocol is left out: the Crush
    client cannot read an event in which it is incomplete."""

    type: str
    session_id: str = omitted()
    session_title: str = omitted()
    run_id: str = omitted()
    error: str = omitted()
    progress: str = omitted()
