"""The configuration of an open workspace: following its files, and changing them."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from ..agent.base import FollowsConfig
from ..errors import ConfigError
from ..protocol.events import ConfigChanged
from ..wing import WorkspacePart

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..agent.base import AgentFactory
    from ..protocol.permissions import PermissionRule
    from ..wing import OpenWorkspace
    from .profile import FileProfile
    from .view import Config

log = logging.getLogger(__name__)


async def completed(
    agents: AgentFactory, env: Mapping[str, str], config: Config, *, again: bool = False
) -> Config:
    """The configuration with what is not in the files, such as the models that a server offers.
    `again`: an earlier answer of a server does not count."""
    if not isinstance(agents, FollowsConfig):
        return config
    found: Config = await agents.complete(env, config, again)
    return found


class ConfigPart(WorkspacePart):
    """The configuration of one open workspace. `all_parts` holds the part of each open workspace,
    this one included while it is open."""

    keeps_rules = True

    def __init__(
        self, workspace: OpenWorkspace, profile: FileProfile, all_parts: list[ConfigPart]
    ) -> None:
        self.profile = profile
        self._workspace = workspace
        self._all_parts = all_parts
        self._reading = asyncio.Lock()  # an older reading never replaces a newer one
        all_parts.append(self)

    async def close(self) -> None:
        self._all_parts.remove(self)

    def kept_rules(self) -> Sequence[PermissionRule]:
        return self.profile.config.rules

    async def keep_rule(self, rule: PermissionRule) -> None:
        await self.change(self.profile.keep_rule, rule)

    async def remove_rule(self, rule_id: str) -> None:
        await self.change(self.profile.remove_rule, rule_id)

    async def change(self, change: Callable[..., bool], *arguments: Any) -> None:
        """Call one of the profile's changes in a thread. If it changed a file, read the files of
        all open workspaces again. Without a change no event is published: each client answers one
        with a request. Raises what the change raises."""
        if not await asyncio.to_thread(change, *arguments):
            return
        await self.reread(changed=True)
        for other in list(self._all_parts):
            if other is not self:
                await other._reread_or_keep()

    async def reread(self, *, changed: bool = False, again: bool = False) -> None:
        """Read the files, which people edit by hand too. If they say something else than before, or
        with `changed`, publish an event; agents that follow the configuration are made anew.
        `again`: ask servers for their models again. Raises ConfigError if a file cannot be used;
        then the configuration stays."""
        workspace, profile = self._workspace, self.profile
        async with self._reading:
            config = await asyncio.to_thread(profile.files.load)
            config = await completed(profile.agents, workspace.env, config, again=again)
            same = config.same_as(profile.config)
            if not same or config.warnings != profile.config.warnings:
                for warning in config.warnings:
                    log.warning("%s", warning)
                profile.config = config
            if not same:
                changed = True
                # An agent that was given by hand stays: it was made once.
                if isinstance(profile.agents, FollowsConfig) and not workspace.closing:
                    workspace.change_agent(profile.make_agent(workspace.env))
        if changed and not workspace.closing:
            workspace.hub.publish("updated", ConfigChanged(workspace.id))

    async def _reread_or_keep(self) -> None:
        try:
            await self.reread()
        except ConfigError as error:
            log.warning("workspace %s keeps its configuration: %s", self._workspace.path, error)
