"""What a prompt asks of its turn, what that may use, and how one that failed is explained."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from ..errors import BadRequest, CrushliteError, LimitReached, PromptRefused, ProviderFailed
from ..protocol.codec import dumps, encode
from ..protocol.config import ROLES
from ..protocol.sessions import check_id
from ..records import dataclass
from ..runs import WhenBusy
from ..store import STORE_ERRORS
from ..store.sessions import MOST_COST
from ..unique import new_id

if TYPE_CHECKING:
    from ..protocol.messages import Prompt

log = logging.getLogger(__name__)

CHILD_MARK = "$$"  # in the id of a sub-agent's session, between a message and its tool call
MOST_SECONDS = 10_000_000  # a timer takes no number whatever; these are 115 days
MOST_TOKENS = 2**53  # that every JSON reader takes as it is
_EFFORT = re.compile(r"[a-z]{1,20}")

# How turns fail without a mistake in the agent.
EXPECTED = (LimitReached, PromptRefused, ProviderFailed, *STORE_ERRORS)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a turn failed, as the user will read it."""

    title: str
    detail: str  # what `words` says of an error, or a text of our own: a row must be text


def clean(text: str) -> str:
    """Replace lone surrogates, which model output may hold: JSON clients and SQLite take none."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode("utf-8")
    return text


def read_prompt(prompt: Prompt) -> tuple[Prompt, WhenBusy]:
    """Check a prompt; returns it with a run_id, and what it wants while its session is busy. Raises
    BadRequest that names the wrong field."""
    if not prompt.prompt and not any(file.is_text for file in prompt.attachments):
        raise BadRequest("prompt is empty: give a text or a text/* attachment")
    if not prompt.session_id:
        raise BadRequest("session id is missing: create a session first")
    check_id("session_id", prompt.session_id)
    refuse_child(prompt.session_id)
    check_id("run_id", prompt.run_id)
    if prompt.max_steps is not None and prompt.max_steps < 1:
        raise BadRequest("max_steps must be at least 1")
    if prompt.max_cost is not None and prompt.max_cost < 0:
        raise BadRequest("max_cost must not be negative")
    if prompt.max_seconds is not None and not 0 < prompt.max_seconds <= MOST_SECONDS:
        raise BadRequest(f"max_seconds must be more than 0 and at most {MOST_SECONDS}")
    if prompt.reasoning_effort and not _EFFORT.fullmatch(prompt.reasoning_effort):
        raise BadRequest("reasoning_effort must be a word such as none, low, medium or high")
    for role, model in prompt.models.items():
        if role not in ROLES or not model.provider or not model.model:
            raise BadRequest("models names a provider and a model for large, small or both")
    for file in prompt.attachments:
        file.check()
    request = prompt if prompt.run_id else replace(prompt, run_id=new_id())
    return request, _when_busy(prompt)


def refuse_child(session_id: str) -> None:
    """Raise BadRequest for the session of a sub-agent: only the agent above goes on with it."""
    if CHILD_MARK in session_id:
        raise BadRequest(
            f"session {session_id} belongs to a sub-agent: send the prompt to the session above it"
        )


def _when_busy(prompt: Prompt) -> WhenBusy:
    # Approval is for one run: it is neither given to the turn of another nor to what joins its own.
    own = "auto_approve" if prompt.auto_approve else "models" if prompt.models else ""
    if own and prompt.when_busy == WhenBusy.STEER.value:
        raise BadRequest(f"{own} needs a turn of its own: use another when_busy than steer")
    default = "queue" if prompt.run_id or own else "steer"
    try:
        return WhenBusy(prompt.when_busy or default)
    except ValueError:
        known = ", ".join(mode.value for mode in WhenBusy)
        raise BadRequest(f"when_busy {prompt.when_busy!r}: use one of {known}") from None


def digest_of(request: Prompt) -> str:
    """What makes two prompts with one run_id the same prompt."""
    value = [request.session_id, request.prompt, encode(request.attachments)]
    value += [True] * request.auto_approve
    return hashlib.sha256(dumps(value)).hexdigest()


def explain(error: BaseException, run_id: str) -> Failure:
    """An agent's exception as its user reads it; the traceback of a mistake goes to the log."""
    text = words(error) or type(error).__name__
    if isinstance(error, EXPECTED):
        log.warning("run %s failed: %s", run_id, text)
    else:
        log.warning("run %s: the agent failed: %s", run_id, text, exc_info=error)
    if isinstance(error, ProviderFailed):
        return Failure("The model did not answer", text)
    if isinstance(error, CrushliteError):
        return Failure(error.code.replace("_", " ").capitalize(), text)
    return Failure("The agent failed", f"{type(error).__name__}: {text}")


def words(error: BaseException) -> str:
    """The text of an error, also of one whose `__str__` raises. One about a file quotes its name,
    which need not be text."""
    try:
        return clean(str(error))
    except Exception:  # noqa: BLE001 - an error that cannot be printed must still end its run
        return "an error that cannot be printed"


class RunLimits:
    """The limits of one run, its sub-agents included, and what counts against them. `reached` is
    the limit that stopped it, empty if none did, and `error` what the agent was told then."""

    def __init__(self, request: Prompt) -> None:
        self.reached = ""
        self.error: LimitReached | None = None
        self.asking = asyncio.Lock()  # held while parts are asked for more
        self.steps = 0
        self.cost = 0.0
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self._max_steps = request.max_steps
        self.max_cost = request.max_cost

    def count(self, cost: float, prompt: int, completion: int) -> None:
        """Add what was used, by a model call or by another turn for this run."""
        # Bounded: an agent may report anything, and sums must stay what a row can hold.
        self.cost = min(self.cost + cost, MOST_COST)
        self.prompt_tokens = min(self.prompt_tokens + prompt, MOST_TOKENS)
        self.completion_tokens = min(self.completion_tokens + completion, MOST_TOKENS)

    @property
    def out_of_steps(self) -> bool:
        stopped = self.reached in ("cost", "steps")
        return stopped or (self._max_steps is not None and self.steps >= self._max_steps)

    def check_steps(self) -> None:
        """Raise LimitReached if no further step may begin: the agent may have ignored a limit."""
        if self.reached == "cost":
            raise self.stop_at_cost()
        if self.out_of_steps:
            raise self.stop("steps", f"max_steps = {self._max_steps}")

    @property
    def too_expensive(self) -> bool:
        return self.max_cost is not None and self.cost >= self.max_cost

    def stop_at_cost(self) -> LimitReached:
        return self.stop("cost", f"max_cost = {self.max_cost}")

    def stop(self, limit: str, words: str) -> LimitReached:
        """Note that a limit was reached; returns the error that says so. The first one counts."""
        if self.error is None:
            self.reached = limit
            self.error = LimitReached(f"stopped at {words}", limit)
        return LimitReached(f"stopped at {words}", self.reached)
