"""The coder's wing: the agents `auto` and `coder` of `serve --agent`."""

from __future__ import annotations

import asyncio
from functools import cached_property
from typing import TYPE_CHECKING

from ..wing import Wing
from ..wings import has_wing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from ..agent.base import Agent, AgentFactory
    from ..clock import Clock
    from ..config.view import Config
    from .discovery import Discovery, LocalServer
    from .tools.results import ResultFiles


class CoderWing(Wing):
    """`local` are the model servers that `auto` looks for on this machine if no model is
    configured; None means the usual ones."""

    def __init__(self, local: Sequence[LocalServer] | None = None) -> None:
        self._local = local

    def agent(self, name: str, clock: Clock) -> AgentFactory | None:
        # The coder's models come from the configuration files.
        if name not in ("auto", "coder") or not has_wing("config"):
            return None
        from ..config.factory import FollowsConfig

        maker = _CoderMaker(clock, self._local, finds_models=name == "auto")
        return FollowsConfig(maker.make, maker.complete, maker.look)


class _CoderMaker:
    """Makes the coders of one daemon. What speaks to models is imported for the first of them: a
    daemon answers its first request sooner without it."""

    def __init__(
        self, clock: Clock, local: Sequence[LocalServer] | None, *, finds_models: bool
    ) -> None:
        self._clock = clock
        self._local = local
        self._finds_models = finds_models

    def make(self, path: Path, env: Mapping[str, str], config: Config) -> Agent | None:
        from .build import coder, coder_or_offline

        make = coder_or_offline if self._finds_models else coder
        return make(path, env, config, self._clock, self._searches, self._results)

    async def complete(self, env: Mapping[str, str], config: Config, again: bool) -> Config:
        return await self._discovery.complete(env, config, again)

    async def look(self, env: Mapping[str, str], config: Config, everywhere: bool) -> None:
        await self._discovery.look(env, config, everywhere)

    @cached_property
    def _discovery(self) -> Discovery:
        from .discovery import LOCAL_SERVERS, Discovery

        local = LOCAL_SERVERS if self._local is None else self._local
        return Discovery(self._clock, local if self._finds_models else ())

    @cached_property
    def _searches(self) -> asyncio.Semaphore:
        from .tools.base import SEARCHES

        return asyncio.Semaphore(SEARCHES)

    @cached_property
    def _results(self) -> ResultFiles:
        from .tools.results import ResultFiles

        return ResultFiles()
