"""Configuration files: they decide on the agent of a workspace, and clients can change them."""

from __future__ import annotations

import asyncio
import logging
from functools import cached_property
from typing import TYPE_CHECKING

from ..errors import ConfigError
from ..wing import Wing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..agent.base import AgentFactory
    from ..api.entry import Entry
    from ..settings import Settings
    from ..wing import Opening, OpenWorkspace, Setup
    from .files import Roots
    from .loading import ConfigFiles
    from .part import ConfigPart
    from .profile import FileProfile
    from .script import ScriptRuns
    from .view import Config

log = logging.getLogger(__name__)


class ConfigWing(Wing):
    """Sets workspaces up from files, and answers the requests that change the files."""

    def __init__(self) -> None:
        self._open: list[ConfigPart] = []

    def setup(self, agents: AgentFactory, settings: Settings) -> Setup:
        def roots() -> Roots:
            from pathlib import Path

            from .files import Roots

            return Roots.below(Path(settings.user_files)) if settings.user_files else Roots()

        return ConfigSetup(roots, agents, allow_commands=settings.allow_config_commands).profile

    async def open(self, workspace: OpenWorkspace) -> ConfigPart | None:
        from .part import ConfigPart
        from .profile import FileProfile

        if not isinstance(workspace.profile, FileProfile):
            return None  # another wing has set this workspace up
        part = ConfigPart(workspace, workspace.profile, self._open)
        part.look_in_background()
        return part

    def routes(self) -> Sequence[Entry]:
        from .routes import ROUTES

        return ROUTES


class ConfigSetup:
    """Sets workspaces up as their configuration files say. `profile` is a wing.Setup."""

    def __init__(
        self, roots: Callable[[], Roots], agents: AgentFactory, *, allow_commands: bool
    ) -> None:
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
            self._roots(),
            data_dir=opening.data_dir,
            allow_commands=self._allow_commands,
            scripts=scripts,
        )
        return files, files.load()
