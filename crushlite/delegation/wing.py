"""Lets agents hand a part of their work to sub-agents, and summarize their sessions."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from ..wing import Wing, WorkspacePart

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..api.entry import Entry
    from ..wing import Delegate, OpenWorkspace, Summarizer


class DelegationWing(Wing):
    def routes(self) -> Sequence[Entry]:
        from .routes import ROUTES

        return ROUTES

    async def open(self, workspace: OpenWorkspace) -> WorkspacePart:
        return DelegationPart(workspace)


class DelegationPart(WorkspacePart):
    def __init__(self, workspace: Any) -> None:
        self._workspace = workspace

    def delegate(self) -> Delegate:
        from .children import run_child  # the first sub-agent loads it

        return run_child

    def summarizer(self) -> Summarizer:
        from .summaries import write_summary

        return functools.partial(write_summary, self._workspace)
