"""The configuration of an open workspace: following its files, and changing them."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ..agent.base import FollowsConfig
from ..errors import ConfigError
from ..protocol.events import ConfigChanged
from ..wing import WorkspacePart

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..agent.base import AgentFactory
    from ..wing import OpenWorkspace
    from .profile import FileProfile
    from .view import Config

log = logging.getLogger(__name__)


async def completed(
    agents: AgentFactory, env: Mapping[str, str], config: Config, *, again: bool = False
) -> Config:
    """The configuration with what is not in the files, such as the models that a server offers."""
    if not isinstance(agents, FollowsConfig):
        return config
    found: Config = await agents.complete(env, config, again)
    return found


class ConfigPart(WorkspacePart):
    """The configuration of one open workspace; `everyone` are those of all of them."""

    def __init__(
        self, workspace: OpenWorkspace, profile: FileProfile, everyone: list[ConfigPart]
    ) -> None:
        self.profile = profile
        self._workspace = workspace
        self._everyone = everyone
        self._reading = asyncio.Lock()  # an older reading never wins
        everyone.append(self)

    async def close(self) -> None:
        self._everyone.remove(self)

    async def change(self, change: Callable[[], bool]) -> None:
        """Let one of the profile's changes write its file, then let every workspace that uses that
        file follow. No event if nothing was changed: each client answers one with a request."""
        if not await asyncio.to_thread(change):
            return
        await self.reread(changed=True)
        for other in list(self._everyone):
            if other is not self:
                await other._reread_quietly()

    async def reread(self, *, changed: bool = False, again: bool = False) -> None:
        """Follow the files, which people edit by hand too. `again`: and look for models anew."""
        workspace, profile = self._workspace, self.profile
        async with self._reading:
            config = await asyncio.to_thread(profile.locations.load)
            config = await completed(profile.agents, workspace.env, config, again=again)
            if not config.same_as(profile.config):
                changed = True
                for warning in config.warnings:
                    log.warning("%s", warning)
                profile.config = config
                # An agent that was given by hand stays: it was made once.
                if isinstance(profile.agents, FollowsConfig) and not workspace.closing:
                    workspace.change_agent(profile.make_agent(workspace.env))
        if changed and not workspace.closing:
            workspace.hub.publish("updated", ConfigChanged(workspace.id))

    async def _reread_quietly(self) -> None:
        try:
            await self.reread()
        except ConfigError as error:
            log.warning("workspace %s keeps its configuration: %s", self._workspace.path, error)
