"""The skills and commands of one open workspace."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from ..clock import wait_at_most
from ..errors import CrushliteError
from ..features.offers import OfferingPart
from ..features.wire import CommandInfo
from ..guards.part import GuardPart
from ..protocol.events import SkillsEvent
from ..records import dataclass
from ..wings import has_wing
from ..worktree.threads import FileThreads
from .catalogue import Catalogue, folders_of, instructions, read
from .tool import SkillTool

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..agent.base import Turn
    from ..features.tools import OfferedTool
    from ..features.wire import OfferedCommand
    from ..guards.part import Ruling
    from ..wing import Author, OpenWorkspace
    from .skill import Skill

log = logging.getLogger(__name__)

READ_SECONDS = 10.0  # for reading all files
WAIT_SECONDS = 1.0  # that a prompt waits for it; then it is answered with what was known before
FRESH_SECONDS = 1.0  # in which the files are not read again for a prompt


@dataclass(frozen=True, slots=True)
class SkillCommand:
    """A skill that a user starts. Implements features.wire.OfferedCommand."""

    skill: Skill

    @property
    def info(self) -> CommandInfo:
        label = f"skill:{self.skill.name}"
        return CommandInfo(label, self.skill.name, self.skill.description[:200], "skill")

    async def expand(self, arguments: Mapping[str, str], text: str) -> str:
        return self.skill.loaded(text)


class SkillsPart(GuardPart, OfferingPart):
    """`read_all` reads the files; it is called in a thread."""

    def __init__(self, workspace: OpenWorkspace, read_all: Callable[[], Catalogue]) -> None:
        self.catalogue = Catalogue()
        self._workspace = workspace
        self._read_all = read_all
        self._threads = FileThreads(2, "skills")
        self._tool = SkillTool(lambda: self.catalogue, self._threads)
        self._reading: asyncio.Task[None] | None = None
        self._read_at = -FRESH_SECONDS
        self._begin()

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        self._threads.shutdown(wait=False)

    async def refresh(self, seconds: float = READ_SECONDS, fresh: float = 0.0) -> Catalogue:
        """Read the files again, unless that was done within the last `fresh` seconds, and wait for
        it. Returns what is known after at most `seconds`."""
        clock = self._workspace.clock
        deadline = clock.time() + seconds
        if self._reading is not None and not fresh:
            # It began before this question, and may have missed what was written in between.
            await wait_at_most(clock, self._reading, seconds)
        reading = self._reading
        if reading is None and clock.time() - self._read_at >= fresh:
            reading = self._begin()
        if reading is not None:
            await wait_at_most(clock, reading, max(0.0, deadline - clock.time()))
        return self.catalogue

    def _begin(self) -> asyncio.Task[None]:
        self._reading = task = asyncio.create_task(self._read())
        return task

    async def _read(self) -> None:
        try:
            found = await self._threads.run(READ_SECONDS, self._read_all)
        except CrushliteError as error:
            log.warning("workspace %s: skills are not read: %s", self._workspace.path, error)
            return
        except Exception:
            log.exception("workspace %s: skills are not read", self._workspace.path)
            return
        finally:
            self._reading = None
            self._read_at = self._workspace.clock.time()
        changed = found.states != self.catalogue.states
        self.catalogue = found
        if changed and not self._workspace.closing:
            self._workspace.hub.publish("updated", SkillsEvent(list(found.states)))

    # For the agent and the users -----------------------------------------------------------------

    async def before_prompt(self, author: Author, text: str) -> Ruling | None:
        """Read the files again: what the model is told of them is true when a turn begins."""
        await self.refresh(WAIT_SECONDS, FRESH_SECONDS)
        return None

    async def tools(self, turn: Turn) -> Sequence[OfferedTool]:
        return [self._tool] if self.catalogue.for_models else []

    def instructions(self) -> Sequence[tuple[str, str]]:
        text = instructions(self.catalogue)
        return [("skills", text)] if text else []

    async def commands(self) -> Sequence[OfferedCommand]:
        found = await self.refresh(WAIT_SECONDS)
        skills = [SkillCommand(skill) for skill in found.skills if skill.user_invocable]
        return [*found.commands, *skills]


# Which files ------------------------------------------------------------------------------------


def reader(workspace: OpenWorkspace) -> Callable[[], Catalogue]:
    """A function that reads the files of a workspace: those that its configuration names, of which
    it says which are trusted. Without configuration files nothing of a project is trusted."""
    if has_wing("config"):
        from ..config.profile import FileProfile
        from .configured import read_configured

        profile = workspace.profile
        if isinstance(profile, FileProfile):
            return lambda: read_configured(profile.files, profile.config.options)
    env = workspace.env
    home = Path(env.get("HOME") or os.path.expanduser("~"))
    config_home = Path(env.get("XDG_CONFIG_HOME") or home / ".config")
    folders = folders_of(
        workspace.path,
        home=home,
        config_home=config_home,
        crush_config=config_home / "crush",
        data_dir=workspace.profile.data_dir,
        skills_dir=env.get("CRUSH_SKILLS_DIR", ""),
    )
    return lambda: read(folders, lambda path, data: "a project cannot be trusted here")
