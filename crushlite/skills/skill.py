"""One skill: a folder with a SKILL.md, whose front matter says what it is good for.

What is wrong but can be understood is overlooked with a warning; a file is refused only if nothing
says when to use it, or what it is called cannot be typed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ..errors import BadRequest
from ..protocol.events import SkillState
from ..records import dataclass
from ..worktree.frontmatter import split, text_of
from .wire import SkillInfo, SkillSummary

if TYPE_CHECKING:
    from pathlib import Path

NAME_CHARS = 64
DESCRIPTION_CHARS = 1024
_NAME = re.compile(r"[A-Za-z0-9]+(?:[-_.][A-Za-z0-9]+)*")
_FALSE = ("false", "no", "off", "0")
_TRUE = ("true", "yes", "on", "1")


@dataclass(frozen=True, slots=True)
class Skill:
    """A SKILL.md that can be used."""

    path: Path  # of the file
    source: str  # user or project
    name: str
    description: str
    body: str
    content: bytes = b""  # of the file
    user_invocable: bool = True
    model_invocable: bool = True
    warning: str = ""

    @property
    def info(self) -> SkillInfo:
        label = f"{self.source}:{self.name}"
        shown = (self.name, self.description, label, self.source, self.user_invocable)
        return SkillInfo(str(self.path), *shown)

    @property
    def summary(self) -> SkillSummary:
        return SkillSummary(self.name, self.description, self.source)

    @property
    def state(self) -> SkillState:
        return SkillState(self.name, str(self.path.parent), 0, warning=self.warning)

    def loaded(self, text: str = "") -> str:
        """The skill as a prompt: what it says, and what the user typed behind its name."""
        block = (
            f"<loaded_skill>\n<name>{self.name}</name>\n"
            f"<description>{_inside(self.description)}</description>\n"
            f"<location>{self.path}</location>\n"
            f"<instructions>\n{_inside(self.body.strip())}\n</instructions>\n</loaded_skill>"
        )
        return f"{block}\n\n{text.strip()}" if text.strip() else f"{block}\n\nUse this skill now."


def read_skill(path: Path, data: bytes, source: str) -> Skill:
    """A skill from the bytes of its file. Raises BadRequest, which says what is wrong with it."""
    page = split(data.decode("utf-8", "replace"))
    if not page.has_fields:
        raise BadRequest("it does not begin with front matter: `---`, name, description, `---`")
    if not page.closed:
        raise BadRequest("its front matter does not end: a line with `---` is missing")
    # Some write the keys with a capital.
    fields = {key.lower().replace("_", "-"): value for key, value in page.fields.items()}
    warnings: list[str] = []
    description = " ".join(text_of(fields.get("description")).split())
    if not description:
        raise BadRequest("it has no description: a model could not know when to use it")
    if len(description) > DESCRIPTION_CHARS:
        warnings.append(f"the description is cut to {DESCRIPTION_CHARS} characters")
        description = description[:DESCRIPTION_CHARS]
    if not page.body.strip():
        warnings.append("it has no instructions")
    return Skill(
        path,
        source,
        _name(text_of(fields.get("name")).strip(), path.parent.name, warnings),
        description,
        page.body,
        data,
        user_invocable=text_of(fields.get("user-invocable")).lower() not in _FALSE,
        model_invocable=text_of(fields.get("disable-model-invocation")).lower() not in _TRUE,
        warning="; ".join(warnings),
    )


def _name(given: str, folder: str, warnings: list[str]) -> str:
    """The name of a skill: as given or, without one, that of its folder, with what cannot be typed
    replaced by hyphens. Raises BadRequest if nothing is left of it."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", given or folder)
    name = re.sub(r"-{2,}", "-", name).strip("-._")
    if not _NAME.fullmatch(name):
        name = re.sub(r"[-_.]+", "-", name)
    if not name or len(name) > NAME_CHARS:
        raise BadRequest(f"its name must have 1 to {NAME_CHARS} letters, digits and hyphens")
    if not given:
        warnings.append("it has no name: that of its folder is used")
    elif name != given:
        warnings.append(f"its name is used as {name}")
    elif name != folder:
        warnings.append("its name is not that of its folder")
    return name


def _inside(text: str) -> str:
    """A text that cannot end the block it stands in."""
    return re.sub(r"</(?=loaded_skill|instructions|description)", r"<\\/", text)
