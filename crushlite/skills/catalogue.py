"""All skills and commands of a workspace at one moment.

Folders, each stronger than the one before it if two have a skill of the same name:

    skills of the user     $CRUSH_SKILLS_DIR, else ~/.config/crush/skills, ~/.config/agents/skills,
                           ~/.agents/skills, ~/.claude/skills; those of options.skills_paths whose
                           way does not lead through the workspace
    skills of the project  .agents/skills, .crush/skills, .claude/skills, .cursor/skills of the git
                           root and of the workspace; the other options.skills_paths
    commands of the user   ~/.config/crush/commands, ~/.crush/commands, ~/.claude/commands,
                           ~/.config/opencode/command and .../commands
    commands of the        .crush/commands, .claude/commands, .opencode/command and .../commands of
    project                both, and `commands` in the data directory

A project's file counts only if `is_trusted` says so of its path and its content.
"""

from __future__ import annotations

import logging
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..errors import BadRequest
from ..protocol.events import SkillState
from ..realpath import real_path
from ..records import dataclass
from .command import FileCommand, read_command
from .skill import Skill, read_skill
from .walking import Walk, git_root, read_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

log = logging.getLogger(__name__)

MOST_SKILLS = 500
MOST_COMMANDS = 500
MOST_BYTES = 8 * 1024 * 1024  # of all skills, and of all commands
SHOWN_CHARS = 16_000  # of all descriptions in the system prompt
USER, PROJECT = "user", "project"
_PROJECT_SKILLS = (".agents/skills", ".crush/skills", ".claude/skills", ".cursor/skills")
_PROJECT_COMMANDS = (
    *(".crush/commands", ".claude/commands"),
    *(".opencode/command", ".opencode/commands"),
)


class Folders(NamedTuple):
    """Where the files of one workspace are looked for, in order of rising priority."""

    user_skills: tuple[Path, ...] = ()
    project_skills: tuple[Path, ...] = ()
    user_commands: tuple[Path, ...] = ()
    project_commands: tuple[Path, ...] = ()


class FoundFile(NamedTuple):
    """A file as it was read, before it is known whether it counts."""

    path: Path
    source: str
    steps: tuple[str, ...]  # its folders below the folder that was searched, and its name
    data: bytes
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Catalogue:
    skills: tuple[Skill, ...] = ()  # by name
    states: tuple[SkillState, ...] = ()
    commands: tuple[FileCommand, ...] = ()
    untrusted: int = 0  # files of the project that wait for the user's trust
    by_id: dict[str, Skill] = field(default_factory=dict)

    def named(self, name: str) -> Skill | None:
        return next((skill for skill in self.skills if skill.name == name), None)

    @property
    def for_models(self) -> tuple[Skill, ...]:
        return tuple(skill for skill in self.skills if skill.model_invocable)


def folders_of(  # noqa: PLR0913 - the places that folders are found by, by keyword
    workspace: Path,
    *,
    home: Path,
    config_home: Path,
    crush_config: Path,
    data_dir: Path,
    skills_dir: str = "",
    skills_paths: Iterable[str] = (),
) -> Folders:
    """The folders of a workspace. `skills_dir` is the value of CRUSH_SKILLS_DIR."""
    tops = tuple(dict.fromkeys((git_root(workspace), workspace)))
    extra = [workspace / _at_home(path, home) for path in skills_paths if "\0" not in path]
    projects = [path for path in extra if _leads_through(workspace, path)]
    usual = (
        *(crush_config / "skills", config_home / "agents/skills"),
        *(home / ".agents/skills", home / ".claude/skills"),
    )
    user = (Path(skills_dir),) if skills_dir.startswith("/") else usual
    opencode = (config_home / "opencode/command", config_home / "opencode/commands")
    return Folders(
        user_skills=(*user, *(path for path in extra if path not in projects)),
        project_skills=(*(top / name for top in tops for name in _PROJECT_SKILLS), *projects),
        user_commands=(
            *(crush_config / "commands", home / ".crush/commands", home / ".claude/commands"),
            *opencode,
        ),
        project_commands=(
            *(top / name for top in tops for name in _PROJECT_COMMANDS),
            data_dir / "commands",
        ),
    )


def _leads_through(workspace: Path, path: Path) -> bool:
    """Whether a path, or a folder on the way to it, is in the workspace: there the project may have
    put a link to anywhere."""
    return any(Path(real_path(each)).is_relative_to(workspace) for each in (path, *path.parents))


def _at_home(path: str, home: Path) -> str:
    return str(home / path.removeprefix("~/")) if path.startswith("~/") else path


def skill_files(folders: Folders) -> Iterator[FoundFile]:
    """Every SKILL.md, at most MOST_SKILLS. Blocks."""
    return _found(folders.user_skills, folders.project_skills, MOST_SKILLS, _is_skill, stop=True)


def command_files(folders: Folders) -> Iterator[FoundFile]:
    """Every command, at most MOST_COMMANDS. Blocks."""
    some = (folders.user_commands, folders.project_commands, MOST_COMMANDS)
    return _found(*some, lambda name: name.endswith(".md"), stop=False)


def _is_skill(name: str) -> bool:
    return name.lower() == "skill.md"


def _found(
    user: tuple[Path, ...],
    project: tuple[Path, ...],
    most: int,
    wanted: Callable[[str], bool],
    *,
    stop: bool,
) -> Iterator[FoundFile]:
    walk, left = Walk(), MOST_BYTES
    for source, tops in ((USER, user), (PROJECT, project)):
        for top in tops:
            for path in walk.files(top, wanted, stop=stop):
                if most <= 0 or left <= 0:
                    log.warning("%s and what follows it is not read: it is too much", path)
                    return
                most -= 1
                steps = path.relative_to(top).with_suffix("").parts
                try:
                    data = read_file(path)
                except BadRequest as error:
                    yield FoundFile(path, source, steps, b"", error.message)
                else:
                    left -= len(data)
                    yield FoundFile(path, source, steps, data)


def read(
    folders: Folders, is_trusted: Callable[[Path, bytes], str], disabled: Iterable[str] = ()
) -> Catalogue:
    """Read all skills and commands. `is_trusted` says what is missing to use a project's file with
    this content; empty if nothing. `disabled` are names of skills. Blocks."""
    skills: dict[str, Skill] = {}
    states: dict[Path, SkillState] = {}
    commands: dict[str, FileCommand] = {}
    untrusted = 0
    off = set(disabled)
    for found in skill_files(folders):
        try:
            _check(found, is_trusted)
            skill = read_skill(found.path, found.data, found.source)
        except BadRequest as error:
            name = found.path.parent.name[:64]
            states[found.path] = SkillState(name, str(found.path.parent), 1, error.message)
            untrusted += isinstance(error, Untrusted)
        else:
            if skill.name not in off:
                states[found.path] = skill.state
                skills[skill.name] = skill
    for found in command_files(folders):
        try:
            _check(found, is_trusted)
            command = read_command(found.path, found.data, found.source, found.steps)
        except BadRequest as error:
            untrusted += isinstance(error, Untrusted)
            log.info("the command %s is left out: %s", found.path, error.message)
        else:
            commands[command.info.id] = command
    named = tuple(skills[name] for name in sorted(skills))
    return Catalogue(
        named,
        tuple(states.values()),
        tuple(commands.values()),
        untrusted,
        {str(skill.path): skill for skill in named},
    )


class Untrusted(BadRequest):
    """A file of a project that the user has not trusted as it is now."""


def _check(found: FoundFile, is_trusted: Callable[[Path, bytes], str]) -> None:
    """Raise BadRequest if a file cannot be read, or may not be used."""
    if found.problem:
        raise BadRequest(found.problem)
    if found.source == PROJECT and (missing := is_trusted(found.path, found.data)):
        raise Untrusted(missing)


def instructions(catalogue: Catalogue) -> str:
    """What a model is told of the skills; empty if there are none. The same text as long as the
    skills are the same."""
    entries: list[str] = []
    left = SHOWN_CHARS
    for skill in catalogue.for_models:
        entry = (
            f"<skill>\n<name>{skill.name}</name>\n"
            f"<description>{_plain(skill.description)}</description>\n"
            f"<location>{_plain(str(skill.path))}</location>\n</skill>"
        )
        left -= len(entry)
        if left < 0:
            entries.append("(there are more; they are left out here)")
            break
        entries.append(entry)
    if not entries:
        return ""
    listed = "\n".join(entries)
    return (
        "Skills are instructions for certain tasks. When a task is what a skill below is for, read "
        "it with the skill tool before you begin, and follow it. Paths in it are relative to its "
        f"folder.\n<available_skills>\n{listed}\n</available_skills>"
    )


def _plain(text: str) -> str:
    return text.replace("<", "&lt;")
