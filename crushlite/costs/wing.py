"""Lets a person decide whether a run may cost more than its limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..wing import Wing

if TYPE_CHECKING:
    from ..wing import OpenWorkspace
    from .part import CostsPart


class CostsWing(Wing):
    async def open(self, workspace: OpenWorkspace) -> CostsPart:
        from .part import CostsPart

        return CostsPart()
