"""The coder's wing: the agents `auto` and `coder` of `serve --agent`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..agent.base import FollowsConfig
from ..wing import Wing
from ..wings import has_wing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..agent.base import AgentFactory
    from ..clock import Clock
    from .discovery import LocalServer


class CoderWing(Wing):
    """`local` are the model servers that `auto` looks for on this machine if no model is
    configured; None means the usual ones."""

    def __init__(self, local: Sequence[LocalServer] | None = None) -> None:
        self._local = local

    def agent(self, name: str, clock: Clock) -> AgentFactory | None:
        # The coder's models come from the configuration files.
        if name not in ("auto", "coder") or not has_wing("config"):
            return None
        # Imported here, with all that speaks to models: a daemon with another agent starts faster.
        from .build import coder, coder_or_offline
        from .discovery import LOCAL_SERVERS, Discovery

        local = LOCAL_SERVERS if self._local is None else self._local
        discovery = Discovery(clock, local if name == "auto" else ())
        make = coder_or_offline if name == "auto" else coder
        return FollowsConfig(
            lambda path, env, config: make(path, env, config, clock), discovery.complete
        )
