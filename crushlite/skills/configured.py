"""The skills and commands that the configuration of a workspace leads to, and which of a project's
files the user trusts. Reads files: call it in a thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..config.files import digest
from ..config.project import how_to_trust
from ..config.trust import Trust, TrustedFiles
from ..errors import BadRequest, ConfigError
from ..records import dataclass
from .catalogue import PROJECT, Catalogue, command_files, folders_of, read, skill_files
from .command import read_command
from .skill import read_skill

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from ..config.loading import ConfigFiles
    from ..config.options import ConfigOptions
    from .catalogue import Folders, FoundFile


@dataclass(frozen=True, slots=True)
class ProjectText:
    """A skill or command of a project that could be used if the user trusted it."""

    path: Path
    about: str  # what it is, on one line
    digest: str  # of the content that was read
    trust: Trust


def read_configured(files: ConfigFiles, options: ConfigOptions) -> Catalogue:
    """All skills and commands of a workspace."""
    trusted = _trusted(files)

    def is_trusted(path: Path, data: bytes) -> str:
        state = trusted.state(path, digest(data))
        if state is Trust.TRUSTED:
            return ""
        return f"{state.value}: `{how_to_trust(files.workspace)}` shows it and lets it be used"

    return read(_folders(files, options.skills_paths), is_trusted, options.disabled_skills)


def project_texts(files: ConfigFiles) -> list[ProjectText]:
    """The skills and commands of a project, as they are now. Raises ConfigError if a configuration
    file cannot be used."""
    folders = _folders(files, files.load().options.skills_paths)
    trusted = _trusted(files)
    texts = []
    for found, is_skill in (
        *((each, True) for each in skill_files(folders)),
        *((each, False) for each in command_files(folders)),
    ):
        if found.source != PROJECT or found.problem:
            continue
        try:
            about = _skill_line(found) if is_skill else _command_line(found)
        except BadRequest:
            continue  # it would be refused in any case
        state = trusted.state(found.path, content := digest(found.data))
        texts.append(ProjectText(found.path, about, content, state))
    return texts


def _skill_line(found: FoundFile) -> str:
    skill = read_skill(found.path, found.data, found.source)
    return f"skill {skill.name}, {_lines(found)} for the model: {skill.description}"


def _command_line(found: FoundFile) -> str:
    info = read_command(found.path, found.data, found.source, found.steps).info
    return f"command /{info.name}, {_lines(found)}: {info.description}"


def _lines(found: FoundFile) -> str:
    number = len(found.data.splitlines())
    return f"{number} line{'s' * (number != 1)}"


def _trusted(files: ConfigFiles) -> TrustedFiles:
    """The trusted files; none if the list of them cannot be used."""
    try:
        return files.trust_store.read()
    except ConfigError:
        return TrustedFiles({})


def _folders(files: ConfigFiles, skills_paths: Iterable[str]) -> Folders:
    roots, env = files.roots, files.env
    return folders_of(
        files.workspace,
        home=roots.home_folder(env),
        config_home=roots.config_home(env),
        crush_config=roots.config(env),
        data_dir=files.data_dir,
        skills_dir=str(roots.skills_dir(env) or ""),
        skills_paths=skills_paths,
    )
