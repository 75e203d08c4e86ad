"""Notices a model that goes in circles: it repeats tool calls and gets the results it had before.

A step is idle if each of its calls has been made in this turn, with these arguments and this
result. Steps that wait (for a job that runs, or by `sleep`) are not counted: asking again is their
purpose.
After some idle steps in a row the model is warned, once in a turn; after some more the turn is
stopped.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .tools.shell import wait_seconds

if TYPE_CHECKING:
    from .answers import ModelAnswer, ToolRequest
    from .tools.base import ToolOutcome

IDLE_STEPS = 4  # in a row, before the model is warned and again before the turn is stopped
REMEMBERED = 5000  # calls, the newest

WARNING = (
    "(Note: your last steps only repeated calls that you had made before, and their results were "
    "the same. Repeating them again gives nothing new. Try something else, or say what is in the "
    "way. If it goes on like this the turn is stopped.)"
)
STOPPED = (
    "I stopped: my last steps only repeated tool calls with the same results, after a warning too."
)
_SLEEP = re.compile(r"(?:^|[\s;&|(])sleep\s+[0-9.]")


class RepeatGuard:
    """Counts the idle steps of one turn."""

    def __init__(self) -> None:
        self._made: dict[int, None] = {}  # calls with their results, as numbers; oldest first
        self._idle = 0
        self._warned = False
        self._warning = ""

    def take(self, answer: ModelAnswer, outcomes: list[ToolOutcome]) -> bool:
        """Count a step, with the outcomes of the calls that were run. True if the turn must be
        stopped."""
        calls = list(zip(answer.calls.values(), outcomes, strict=False))
        if not calls or any(_waited(*each) for each in calls):
            return False
        # Numbers, not the texts, which may be many MiB.
        numbers = [hash((c.name, c.arguments, outcome.content)) for c, outcome in calls]
        idle = all(number in self._made for number in numbers)
        self._idle = self._idle + 1 if idle else 0
        self._made |= dict.fromkeys(numbers)
        for oldest in list(self._made)[: max(0, len(self._made) - REMEMBERED)]:
            del self._made[oldest]
        if self._idle < IDLE_STEPS:
            return False
        if self._warned:
            return True
        self._idle, self._warned, self._warning = 0, True, WARNING
        return False

    def warning(self) -> str:
        """What to tell the model with its next tool result; empty if there is nothing, or if it
        was told already."""
        warning, self._warning = self._warning, ""
        return warning


def _waited(call: ToolRequest, outcome: ToolOutcome) -> bool:
    if not isinstance(call.value, dict):
        return False
    if call.name == "job_output":  # an error comes at once, without waiting
        return not outcome.is_error and wait_seconds(call.value.get("wait")) > 0
    return call.name == "bash" and _SLEEP.search(str(call.value.get("command", ""))) is not None
