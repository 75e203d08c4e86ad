"""The tool by which a model reads a skill, and the files beside its SKILL.md. It asks nobody: the
skill is the user's own, or of a project that the user trusts."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from ..errors import BadRequest
from ..features.tools import OfferedTool, ToolAnswer
from ..realpath import real_path
from .walking import FILE_BYTES, Walk, read_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..agent.base import Turn
    from ..features.tools import ToolQuestion
    from ..worktree.threads import FileThreads
    from .catalogue import Catalogue
    from .skill import Skill

MOST_FILES = 50  # that are named with a skill
_READ_SECONDS = 10.0


class SkillTool(OfferedTool):
    name = "skill"
    description = (
        "Read the instructions of a skill that is listed in your context, or a text file of its "
        "folder, such as references/forms.md."
    )
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": "The name of the skill"},
            "file": {"type": "string", "description": "A path in its folder, instead of SKILL.md"},
        },
        "required": ["name"],
    }
    read_only = True

    def __init__(self, catalogue: Callable[[], Catalogue], threads: FileThreads) -> None:
        self._catalogue = catalogue
        self._threads = threads

    def question(self, arguments: Mapping[str, Any]) -> ToolQuestion | None:
        return None

    async def call(self, turn: Turn, arguments: dict[str, Any], call_id: str) -> ToolAnswer:
        name, file = arguments.get("name"), arguments.get("file") or ""
        if not isinstance(name, str) or not isinstance(file, str):
            raise BadRequest("name and file must be texts")
        catalogue = self._catalogue()
        skill = catalogue.named(name)
        if skill is None or not skill.model_invocable:
            known = ", ".join(each.name for each in catalogue.for_models) or "none"
            raise BadRequest(f"there is no skill {name[:80]!r}; there are {known[:2000]}")
        read = self._threads.run
        if file and file.lower() != "skill.md":
            return ToolAnswer(await read(_READ_SECONDS, _beside, skill, file))
        return ToolAnswer(await read(_READ_SECONDS, _whole, skill))


def _whole(skill: Skill) -> str:
    """The instructions of a skill, and the names of the files beside it. Blocks."""
    top = skill.path.parent
    paths = [str(path.relative_to(top)) for path in Walk(50).files(top, lambda _: True, stop=False)]
    others = [path for path in paths if path != skill.path.name]
    lines = [f"Skill {skill.name}, in {top}", skill.body.strip()]
    if others:
        more = f" and {len(others) - MOST_FILES} more" if len(others) > MOST_FILES else ""
        lines.append(f"Files beside it: {json.dumps(others[:MOST_FILES])}{more}")
    return "\n\n".join(lines)


def _beside(skill: Skill, file: str) -> str:
    """A text file in the folder of a skill, through no link that leaves it. Raises BadRequest.
    Blocks."""
    if "\0" in file:
        raise BadRequest("file must not hold NUL")
    top = real_path(skill.path.parent)
    path = real_path(os.path.join(top, file))
    if os.path.commonpath([top, path]) != top:
        raise BadRequest(f"{file[:200]} is not in the folder of the skill")
    try:
        return read_file(skill.path.parent.joinpath(path), FILE_BYTES).decode("utf-8", "replace")
    except BadRequest as error:
        raise BadRequest(f"{file[:200]}: {error.message}") from None
