"""ls, glob and grep: finding things in the project.

The search itself is worktree/walk.py, run as a process of its own. This module checks what the
model wants, asks for permission if that is outside the workspace, and words the answer. Paths in it
are relative to the workspace, so that the model can use them as they are; those outside are
absolute.
"""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

from ... import worktree
from ...clock import wait_at_most
from ...errors import BadRequest
from ...hosting.plain import OWN_DATA_DIR
from .arguments import flag, number, schema, text, texts
from .base import ToolOutcome, denied, missing
from .scope import outside_scope

if TYPE_CHECKING:
    from pathlib import Path

    from ...clock import Clock
    from ...worktree.paths import Place
    from .base import ToolUse

ENTRIES = 1000  # of ls
RESULTS = 100  # of glob and grep
LS_DEPTH = 3
SECONDS = 10.0
GRACE = 3.0  # more seconds for the program, which cannot look at its clock inside of an expression
PATTERN_CHARS = 2000
MOST_IGNORED = 100
ANSWER_BYTES = 1 << 20
# Where rg may be, if it is installed. Not PATH: a folder in it may belong to a repository.
RG_FOLDERS = ("/usr/bin", "/usr/local/bin", "/opt/homebrew/bin")

_FOLDER = {"type": "string", "description": "Folder to look in; the project's root if absent"}


# Makes modules of a package from their sources and runs the search.
_BOOT = """
import sys, types
package = sys.modules["worktree"] = types.ModuleType("worktree")
package.__path__ = []
for name, source in SOURCES.items():
    module = sys.modules[f"worktree.{name}"] = types.ModuleType(f"worktree.{name}")
    module.__package__ = "worktree"
    exec(compile(source, f"{name}.py", "exec"), module.__dict__)
sys.stdout.write(module.run(sys.argv[1]))
"""


@cache
def _program() -> str:
    """The source of the search program."""
    import importlib.resources  # only now: it takes half a megabyte

    folder = importlib.resources.files(worktree)
    sources = {name: (folder / f"{name}.py").read_text("utf-8") for name in ("rules", "walk")}
    return f"SOURCES = {sources!r}\n{_BOOT}"


def _rg(root: str) -> str:
    """The path of rg, if it is installed and not part of the workspace; else empty."""
    for folder in RG_FOLDERS:
        path = os.path.realpath(os.path.join(folder, "rg"))
        inside = f"{path}/".startswith(f"{root.rstrip('/')}/")
        if not inside and os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return ""


class _Search:
    """What the three tools have in common."""

    name = ""
    read_only = True
    of_files = False  # whether `path` may be a file

    def __init__(self, clock: Clock, *, seconds: float = SECONDS) -> None:
        self._clock = clock
        self._seconds = seconds

    async def _begin(
        self, call: ToolUse, action: str, params: dict[str, Any]
    ) -> tuple[Place, ToolOutcome | None]:
        """Find out where to search, and ask for permission if that is outside the workspace. Return
        the place, and the outcome of the call if permission was denied."""
        raw = text(call, "path", required=False) or "."
        place = await call.context.locate(raw)
        if place.inside:
            await call.context.blocking(_require, place, call.context.path, self.of_files)
            return place, None
        verdict = await call.turn.permission(
            call.name,
            action,
            description=f"Look into a folder outside the project: {place.path}",
            params={"path": str(place.path), **params},
            path=str(place.path),
            tool_call_id=call.id,
            scope=outside_scope(place),
        )
        return place, None if verdict else denied(verdict.reason)

    async def _search(self, call: ToolUse, place: Place, **request: Any) -> tuple[list[Any], str]:
        """Run the search program. Return what it found, and a remark if there may be more."""
        request["ignore"] = [*request.get("ignore", ()), f"{OWN_DATA_DIR}/"]
        request |= {
            "search": self.name,
            "path": str(place.path),
            "root": str(call.context.path) if place.inside else "",
            "seconds": self._seconds,
            "closed": sorted(place.closed),
            "shown": _folder_shown(place, file=bool(request.get("file"))),
        }
        async with call.context.searches:
            answer = await self._run(call, request)
        return self._read(answer)

    async def _run(self, call: ToolUse, request: dict[str, Any]) -> str:
        """What the search program prints. Raises BadRequest if it takes too long."""
        words = [sys.executable, "-I", "-S", "-X", "utf8", "-W", "ignore", "-c", _program()]
        command = await call.turn.command(
            [*words, json.dumps(request)], cwd="/", env=dict(call.context.env), read_only=True
        )
        try:
            if not await wait_at_most(self._clock, command.done, self._seconds + GRACE):
                command.kill()
            ended = await command.wait()
        except BaseException:
            command.kill()
            raise
        if ended.canceled:
            raise BadRequest("the search took too long: use a simpler pattern, or a smaller folder")
        return command.output.text(ANSWER_BYTES)

    def _read(self, answer: str) -> tuple[list[Any], str]:
        try:
            value = json.loads(answer)
        except ValueError:
            raise BadRequest(f"the search failed: {answer[-500:]}") from None
        if "error" in value:
            raise BadRequest(value["error"])
        found: list[Any] = value["found"]
        remarks = {
            "limit": f"\n(only {len(found)} are shown: be more specific)",
            "time": f"\n(stopped after {self._seconds:g} s: there may be more)",
            "entries": "\n(there are too many files to look at all: choose a smaller folder)",
        }
        dropped = value.get("dropped", 0)
        rules = f"\n({dropped} rules of .gitignore are too many and were not used)"
        more = "".join(
            f"\n({count} more matches in {name}: search it alone, or be more specific)"
            for name, count in value.get("more", {}).items()
        )
        return found, more + remarks.get(value["cut"], "") + (rules if dropped else "")


def _require(place: Place, root: Path, of_files: bool) -> None:
    """Raise BadRequest, with advice, unless the place exists and is of the right kind. Blocks."""
    try:
        mode = place.path.lstat().st_mode
    except OSError:
        raise missing(place, root) from None
    if stat.S_ISREG(mode) and not of_files:
        raise BadRequest(f"{place.shown} is a file: use view, or name its folder")


def _folder_shown(place: Place, *, file: bool) -> str:
    """What comes before the paths that a search finds in a folder, or for a file in its folder."""
    shown = os.path.dirname(place.shown) if file else place.shown
    return "" if shown == "." else shown


def _pattern(call: ToolUse) -> str:
    """The argument of this name. Raises BadRequest if it is empty or too long."""
    pattern = text(call, "pattern")
    if not 0 < len(pattern) <= PATTERN_CHARS:
        raise BadRequest(f"pattern must have 1 to {PATTERN_CHARS} characters")
    return pattern


def _outcome(content: str, count: int, remark: str, counted: str) -> ToolOutcome:
    metadata = {counted: count, "truncated": bool(remark)}
    return ToolOutcome(content + remark, metadata=json.dumps(metadata))


class Ls(_Search):
    name = "ls"
    description = (
        "List a folder as a tree. Folders such as .git and node_modules, and what .gitignore "
        "names, are left out; links are not followed."
    )
    parameters = schema(
        {
            "path": _FOLDER,
            "ignore": {
                "type": "array",
                "items": {"type": "string"},
                "description": "Patterns of names to leave out",
            },
            "depth": {"type": "integer", "description": f"Levels, {LS_DEPTH} if absent"},
        }
    )

    async def run(self, call: ToolUse) -> ToolOutcome:
        ignore, depth = texts(call, "ignore"), number(call, "depth", 0)
        if len(ignore) > MOST_IGNORED or any(len(rule) > PATTERN_CHARS for rule in ignore):
            raise BadRequest(f"ignore holds at most {MOST_IGNORED} short patterns")
        place, refused = await self._begin(call, "list", {"ignore": ignore, "depth": depth})
        if refused is not None:
            return refused
        found, remark = await self._search(
            call, place, ignore=ignore, depth=depth or LS_DEPTH, limit=ENTRIES
        )
        content = f"{place.path}/\n{_tree(found)}".rstrip("\n")
        return _outcome(content, len(found), remark, "number_of_files")


def _tree(found: list[Any]) -> str:
    """The entries, which come level by level, as an indented tree in alphabetical order."""
    ordered = sorted((tuple(parts), is_dir) for parts, is_dir in found)
    return "".join(
        f"{'  ' * len(parts)}{parts[-1]}{'/' if is_dir else ''}\n" for parts, is_dir in ordered
    )


class Glob(_Search):
    name = "glob"
    description = (
        "Find files by a pattern of their path: * and ? within a name, ** for any folders, {a,b} "
        "for alternatives. The newest come first."
    )
    parameters = schema(
        {"pattern": {"type": "string", "description": "Such as src/**/*.py"}, "path": _FOLDER},
        "pattern",
    )

    async def run(self, call: ToolUse) -> ToolOutcome:
        pattern = _pattern(call).removeprefix(f"{call.context.path}/")
        if pattern.startswith("/") or ".." in pattern.split("/"):
            raise BadRequest("pattern begins at path and does not lead out of it: set path")
        place, refused = await self._begin(call, "read", {"pattern": pattern})
        if refused is not None:
            return refused
        found, remark = await self._search(call, place, pattern=pattern, limit=RESULTS)
        content = "\n".join(found) or "No files found"
        if not found and "**" not in pattern:
            content += f". The pattern begins at path; for all folders below it use **/{pattern}"
        return _outcome(content, len(found), remark, "number_of_files")


class Grep(_Search):
    name = "grep"
    of_files = True
    description = (
        "Find lines in files by a regular expression (Python's), or by a text with literal_text. "
        "Binary and very large files are left out."
    )
    parameters = schema(
        {
            "pattern": {"type": "string", "description": "What to look for"},
            "path": {"type": "string", "description": "Folder or file; the project's if absent"},
            "include": {"type": "string", "description": "Only these files, such as *.{ts,tsx}"},
            "literal_text": {"type": "boolean", "description": "The pattern is a plain text"},
        },
        "pattern",
    )

    async def run(self, call: ToolUse) -> ToolOutcome:
        pattern, include = _pattern(call), text(call, "include", required=False)
        literal = flag(call.input.get("literal_text"), "literal_text")
        if len(include) > PATTERN_CHARS:
            raise BadRequest(f"include has at most {PATTERN_CHARS} characters")
        params = {"pattern": pattern, "include": include, "literal_text": literal}
        place, refused = await self._begin(call, "read", params)
        if refused is not None:
            return refused
        found, remark = await self._search(
            call,
            place,
            pattern=pattern,
            include=include,
            literal=literal,
            file=await call.context.blocking(_is_file, place),
            limit=RESULTS,
            rg=await call.context.blocking(_rg, str(call.context.path)),
        )
        content = _by_file(found) or "No matches found"
        if not found and not literal and re.search(r"[\\\[({.*+?|^$]", pattern):
            content += ". The pattern is a regular expression; for a plain text set literal_text"
        return _outcome(content, len(found), remark, "number_of_matches")


def _is_file(place: Place) -> bool:
    """Only a hint for the search program, which opens the path itself, through no link."""
    try:
        return stat.S_ISREG(place.path.lstat().st_mode)
    except OSError:
        return False


def _by_file(found: list[Any]) -> str:
    """The matches as text, below the name of their file."""
    lines: list[str] = []
    last = None
    for name, line, content in found:
        if name != last:
            lines += ["", f"{name}:"] if lines else [f"{name}:"]
            last = name
        lines.append(f"  {line}: {content}")
    return "\n".join(lines)
