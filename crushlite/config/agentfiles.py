"""Named sub-agents: Markdown files of the user and of the project, as Claude Code and Crush have
them.

    ---
    name: reviewer
    description: Looks for mistakes in a change.
    tools: Read, Grep, Bash
    model: small
    ---
    You review changes. ...

The user's are in `~/.claude/agents`, `~/.crush/agents` and `agents` beside the user's crush.json,
the project's in `.claude/agents` and `.crush/agents`. A project's file counts only if the user
trusts it, as it is now. Of two with one name the later counts.

Reads files: call it in a thread.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import BadRequest, ConfigError
from ..records import dataclass
from ..worktree.frontmatter import split, text_of
from ..worktree.paths import locate, read_bytes
from .files import digest
from .trust import Trust, TrustedFiles, TrustStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .files import Roots

log = logging.getLogger(__name__)

FOLDERS = (".claude/agents", ".crush/agents")
MOST_FILES = 32  # of one folder, the first by name
MOST_ENTRIES = 1000  # of one folder that are looked at
MOST_BYTES = 64 * 1024
DESCRIPTION_CHARS = 500
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True, slots=True)
class AgentFile:
    """A named sub-agent. `tools` is None if the file does not name any."""

    path: Path
    name: str
    description: str
    tools: tuple[str, ...] | None
    model: str  # as the file has it; empty if it does not say
    instructions: str
    digest: str
    trust: Trust  # TRUSTED for the user's own


def agent_files(workspace: Path, env: Mapping[str, str], roots: Roots) -> list[AgentFile]:
    """All files that can be read, with those of the project that are not trusted."""
    home = roots.home_folder(env)
    own = [os.path.join(home, name) for name in FOLDERS]
    own.append(os.path.join(roots.config(env), "agents"))
    found: dict[Path, AgentFile] = {}
    for folder in own:
        for path in _markdown(folder):
            _add(found, Path("/"), path, None)
    of_project = [path for name in FOLDERS for path in _markdown(os.path.join(workspace, name))]
    if of_project:
        trusted = _trusted(env, roots)
        for path in of_project:
            _add(found, workspace, path, trusted)
    return list(found.values())


def _trusted(env: Mapping[str, str], roots: Roots) -> TrustedFiles:
    try:
        return TrustStore.of(roots, env).read()
    except ConfigError:
        return TrustedFiles({})


def usable(files: list[AgentFile]) -> dict[str, AgentFile]:
    """The trusted ones by name."""
    return {file.name: file for file in files if file.trust is Trust.TRUSTED}


def _markdown(folder: str) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            names = [e.name for e, _ in zip(entries, range(MOST_ENTRIES), strict=False)]
    except OSError:
        return []
    found = [name for name in sorted(names) if name.endswith(".md")]
    return [Path(folder, name) for name in found[:MOST_FILES]]


def _add(
    found: dict[Path, AgentFile], root: Path, path: Path, trusted: TrustedFiles | None
) -> None:
    """Read a file, which must be below `root` when its links are resolved."""
    try:
        place = locate(root, str(path))
        if not place.inside or place.path in found:
            return
        data, _ = read_bytes(place, MOST_BYTES)
        state = Trust.TRUSTED if trusted is None else trusted.state(path, digest(data))
        found[place.path] = read_agent(path, data, state)
    except (BadRequest, OSError, ValueError) as error:
        log.warning("%s is not used: %s", path, error)


def read_agent(path: Path, data: bytes, trust: Trust) -> AgentFile:
    """What a file says. Raises BadRequest for one that cannot be used."""
    page = split(data.decode("utf-8", "replace"))
    fields = {key.lower(): text_of(value) for key, value in page.fields.items()}
    name = fields.get("name") or path.stem
    if not _NAME.fullmatch(name):
        raise BadRequest(f"the name {name[:80]!r} must have letters, digits, - and _ only")
    description = " ".join(fields.get("description", "").split())
    if not description or not page.body.strip():
        raise BadRequest("it needs a description in its head, and instructions below it")
    tools = _tools(fields["tools"]) if "tools" in fields else None
    return AgentFile(
        path,
        name,
        description[:DESCRIPTION_CHARS],
        tools,
        fields.get("model", "").strip(),
        page.body.strip(),
        digest(data),
        trust,
    )


def _tools(text: str) -> tuple[str, ...]:
    """The names of tools in a list. What stands in parentheses, as in `Bash(git diff:*)`, does
    not count. A star is all tools only if it stands alone: `mcp__github__*` is no tool's name."""
    return tuple(re.findall(r"[\w*][\w*-]*", re.sub(r"\([^)]*\)?", " ", text)))


def about(files: list[AgentFile]) -> Iterator[str]:
    """What a project's files would bring, on one line each, for the user who is to trust them."""
    for file in files:
        tools = "reads only" if file.tools is None else f"tools {', '.join(file.tools)}"
        model = f", model {file.model[:DESCRIPTION_CHARS]}" if file.model else ""
        yield f"sub-agent {file.name} ({file.trust.value}), {tools}{model}: {file.description}"
