"""Configuration files: they decide on the agent of a workspace, and clients can change them."""

from __future__ import annotations

import asyncio
import logging
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ..api.agent import PROVIDER
from ..api.entry import Entry, Param, W
from ..errors import ConfigError
from ..features.wire import CompactMode, OAuthRefresh, ProviderKey, RemoveValue, SetValue
from ..protocol.config import ModelChoice, SelectedModel
from ..wing import Wing
from . import routes
from .files import Roots

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..agent.base import AgentFactory
    from ..settings import Settings
    from ..wing import Opening, OpenWorkspace
    from .loading import ConfigFiles
    from .part import ConfigPart
    from .profile import FileProfile
    from .script import ScriptRuns
    from .view import Config

log = logging.getLogger(__name__)

EVERYWHERE = Param("everywhere", "`true`: wait until all model servers were asked for a list.")


class ConfigWing(Wing):
    """Sets workspaces up from files, and answers the requests that change the files."""

    def __init__(self) -> None:
        self._open: list[ConfigPart] = []

    def setup(self, agents: AgentFactory, settings: Settings) -> ConfigSetup:
        roots = Roots.below(Path(settings.user_files)) if settings.user_files else Roots()
        return ConfigSetup(roots, agents, allow_commands=settings.allow_config_commands)

    async def open(self, workspace: OpenWorkspace) -> ConfigPart | None:
        from .part import ConfigPart
        from .profile import FileProfile

        if not isinstance(workspace.profile, FileProfile):
            return None  # another wing has set this workspace up
        part = ConfigPart(workspace, workspace.profile, self._open)
        part.look_in_background()
        return part

    def routes(self) -> Sequence[Entry]:
        config = W + "/config"
        return (
            Entry("POST", config + "/set", routes.set_value, takes=SetValue),
            Entry("POST", config + "/remove", routes.remove_value, takes=RemoveValue),
            Entry("POST", config + "/model", routes.choose_model, takes=ModelChoice),
            Entry("POST", config + "/compact", routes.set_compact, takes=CompactMode),
            Entry("POST", config + "/provider-key", routes.set_key, takes=ProviderKey),
            Entry("POST", config + "/refresh-oauth", routes.refresh_oauth, takes=OAuthRefresh),
            Entry("POST", W + "/project/init", routes.init_project),
            Entry("GET", W + "/project/init-prompt", routes.init_prompt, gives=dict[str, str]),
            Entry("POST", W + "/agent/update", routes.update_agent, params=(EVERYWHERE,)),
            Entry(
                "GET",
                W + "/agent/default-small-model",
                routes.default_small_model,
                gives=SelectedModel,
                params=(PROVIDER,),
            ),
        )


class ConfigSetup:
    """Sets workspaces up as their configuration files say. Implements wing.Setup."""

    def __init__(self, roots: Roots, agents: AgentFactory, *, allow_commands: bool) -> None:
        self._roots = roots
        self._agents = agents
        self._allow_commands = allow_commands

    @cached_property
    def _scripts(self) -> ScriptRuns:
        from .script import ScriptRuns

        return ScriptRuns()

    async def profile(self, opening: Opening) -> FileProfile:
        """Raises ConfigError if a file cannot be used."""
        from .part import completed
        from .profile import FileProfile

        try:
            files, config = await asyncio.to_thread(self._load, opening, self._scripts)
        except ConfigError as error:
            raise ConfigError(f"failed to initialize config: {error.message}") from None
        config = await completed(self._agents, opening.env, config)
        for warning in config.warnings:
            log.warning("%s", warning)
        return FileProfile(files, config, self._agents)

    def _load(self, opening: Opening, scripts: ScriptRuns) -> tuple[ConfigFiles, Config]:
        from .loading import ConfigFiles

        files = ConfigFiles.find(
            opening.path,
            opening.env,
            self._roots,
            data_dir=opening.data_dir,
            allow_commands=self._allow_commands,
            scripts=scripts,
        )
        return files, files.load()
