"""The configuration of an open workspace: following its files, and changing them."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from ..guards.part import GuardPart, Ruling
from ..protocol.events import ConfigChanged
from .factory import FollowsConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..agent.base import AgentFactory
    from ..guards.part import ToolUsed
    from ..protocol.config import ModelChoice
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


class ConfigPart(GuardPart):
    """The configuration of one open workspace. `all_parts` holds the part of each open workspace,
    this one included while it is open."""

    keeps_rules = True

    def __init__(
        self, workspace: OpenWorkspace, profile: FileProfile, all_parts: list[ConfigPart]
    ) -> None:
        self.profile = profile
        self.hooks_are_run = False  # set by the wing that does
        self._workspace = workspace
        self._all_parts = all_parts
        self._reading = asyncio.Lock()  # an older reading never replaces a newer one
        self._looking: asyncio.Task[None] | None = None
        all_parts.append(self)

    async def before_tool(self, used: ToolUsed) -> Ruling | None:
        """Refuse a tool that a hook must be asked about, if nobody runs hooks."""
        hooks = () if self.hooks_are_run else self.profile.config.tool_hooks
        hook = next((hook for hook in hooks if hook.matches(used.name)), None)
        if hook is None:
            return None
        return Ruling(
            denied=f"{hook.origin} must be asked first, and hooks cannot be run here. Tell the "
            "user, who can remove that hook or narrow its matcher; do not try to do the same with "
            "another tool"
        )

    async def close(self) -> None:
        self._all_parts.remove(self)
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    def look_in_background(self) -> None:
        """Find out what is not needed for the next prompt, such as all models of a provider, and
        use it when it is known. Does nothing while that is under way, or if nobody has to be
        asked."""
        lists = any(provider.extend for provider in self.profile.config.providers.values())
        if lists and (self._looking is None or self._looking.done()):
            self._looking = asyncio.create_task(self.look())

    async def look(self, *, everywhere: bool = False) -> None:
        """The same, and wait for it. `everywhere`: also what the configuration does not name. Never
        raises ConfigError."""
        agents = self.profile.agents
        if isinstance(agents, FollowsConfig):
            # Not under the lock: this may take seconds, and a change of the files must not wait.
            await agents.look(self._workspace.env, self.profile.config, everywhere)
            await self._read_or_keep()

    async def choose_model(self, wanted: ModelChoice) -> None:
        """Choose a model for a role. If the provider is not known, or its list is not complete, it
        is asked for first: a name that is mistyped is refused now and not by the next prompt.
        Raises BadRequest or ConfigError."""
        providers = self.profile.config.providers
        provider = providers.get(wanted.model.provider)
        if provider is None:
            await self.look(everywhere=True)
        elif provider.extend and not provider.lists(wanted.model.model):
            await self.look()
        await self.change(self.profile.choose_model, wanted)

    def kept_rules(self) -> Sequence[PermissionRule]:
        return self.profile.config.rules

    async def keep_rule(self, rule: PermissionRule) -> None:
        await self.change(self.profile.keep_rule, rule)

    async def remove_rule(self, rule_id: str) -> bool:
        is_kept = any(rule.id == rule_id for rule in self.kept_rules())
        if is_kept:
            await self.change(self.profile.remove_rule, rule_id)
        return is_kept

    async def change(self, change: Callable[..., bool], *arguments: Any) -> None:
        """Call one of the profile's changes in a thread. If it changed a file, read the files of
        all open workspaces again. Without a change no event is published: each client answers one
        with a request. Raises what the change raises."""
        if not await asyncio.to_thread(change, *arguments):
            return
        await self.reread(changed=True)
        for other in list(self._all_parts):
            if other is not self:
                await other._read_or_keep()

    async def reread(self, *, changed: bool = False, again: bool = False) -> None:
        """Read the files, as `_read` does, and look for more in the background if they say
        something new, or with `again`. Raises ConfigError."""
        if await self._read(changed=changed, again=again) or again:
            self.look_in_background()

    async def _read(self, *, changed: bool = False, again: bool = False) -> bool:
        """Read the files, which people edit by hand too. If they say something else than before, or
        with `changed`, publish an event; agents that follow the configuration are made anew.
        `again`: ask servers for their models again. Returns whether the files say something else.
        Raises ConfigError if a file cannot be used; then the configuration stays."""
        workspace, profile = self._workspace, self.profile
        if again:
            await asyncio.to_thread(profile.files.scripts.forget)
        async with self._reading:
            config = await asyncio.to_thread(profile.files.load)
            config = await completed(profile.agents, workspace.env, config, again=again)
            same = config.same_as(profile.config)
            same_agent = config.asks_as(profile.config)
            if not same or config.warnings != profile.config.warnings:
                for warning in config.warnings:
                    log.warning("%s", warning)
                profile.replace(config)
            # An agent that was given by hand stays: it was made once.
            follows = isinstance(profile.agents, FollowsConfig)
            if not same_agent and follows and not workspace.closing:
                workspace.change_agent(profile.make_agent(workspace.env, {}))
        if (changed or not same) and not workspace.closing:
            workspace.hub.publish("updated", ConfigChanged(workspace.id))
        return not same_agent

    async def _read_or_keep(self) -> None:
        try:
            await self._read()
        except ConfigError as error:
            log.warning("workspace %s keeps its configuration: %s", self._workspace.path, error)
