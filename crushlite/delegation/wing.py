"""Lets agents hand a part of their work to sub-agents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..wing import Wing, WorkspacePart

if TYPE_CHECKING:
    from ..wing import Delegate, OpenWorkspace


class DelegationWing(Wing):
    async def open(self, workspace: OpenWorkspace) -> WorkspacePart:
        return DelegationPart()


class DelegationPart(WorkspacePart):
    def delegate(self) -> Delegate:
        from .children import run_child  # the first sub-agent loads it

        return run_child
