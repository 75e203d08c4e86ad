"""Counters of all workspaces since the daemon started, those that were closed included."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from ..wing import WorkspacePart

if TYPE_CHECKING:
    from ..hosting.workspace import Workspace
    from .watchdog import Watchdog


class Totals:
    def __init__(self, watchdog: Watchdog) -> None:
        self.watchdog = watchdog
        self._open: set[CountingPart] = set()
        self._past: Counter[str] = Counter()  # of the workspaces that are gone

    def open(self, workspace: Workspace) -> CountingPart:
        part = CountingPart(workspace, self)
        self._open.add(part)
        return part

    def closed(self, part: CountingPart) -> None:
        """A workspace closes: what it has counted stays."""
        self._open.discard(part)
        self._past += part.counts()

    def now(self) -> Counter[str]:
        return sum((part.counts() for part in self._open), self._past)


class CountingPart(WorkspacePart):
    """What one workspace has counted so far."""

    def __init__(self, workspace: Workspace, totals: Totals) -> None:
        self._workspace, self._totals = workspace, totals

    def prompt_started(self, turn: Any, run_id: str, text: str) -> None:
        self._totals.watchdog.agent_begins()

    def counts(self) -> Counter[str]:
        hub, runs = self._workspace.hub, self._workspace.runs
        return Counter(
            published=hub.current,
            conflated=hub.conflated,
            closed_slow=hub.closed_slow,
            closed_failed=hub.failed,
            abandoned=runs.abandoned,
            **{outcome.value: number for outcome, number in runs.outcomes.items()},
        )

    async def close(self) -> None:
        self._totals.closed(self)
