"""What the agent can ask language servers: what is wrong, where a name is defined and used, what a
file holds, and to rename something everywhere."""

from __future__ import annotations

import dataclasses
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from ..agent.base import Scope
from ..errors import BadRequest, Conflict, CrushliteError
from ..features.tools import OfferedTool, ToolAnswer
from ..hosting.difference import difference
from ..hosting.tasks import run_to_the_end
from ..records import dataclass
from ..worktree.paths import locate, read_bytes, write_bytes
from .diagnostics import block
from .positions import apply_edits, find_symbol, path_of, start_of, uri_of

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from ..agent.base import Turn
    from ..features.tools import ToolQuestion
    from ..worktree.paths import OwnFolders, Place
    from .server import LanguageServer

READY_SECONDS = 15.0  # that a tool waits for a server that is starting
FRESH_SECONDS = 5.0  # and for what it says of a file it has just been told about
MOST_LINES = 200  # of an answer
LOOKED_AT = 10 * MOST_LINES  # places or symbols of a server's answer: the others are left out
MOST_FILES = 100  # that a rename may change
RENAMED_BYTES = 1 << 20  # of each
DIFF_CHARS = 100_000
LINE_CHARS = 200
KINDS = (
    "",
    *("file", "module", "namespace", "package", "class", "method", "property", "field"),
    *("constructor", "enum", "interface", "function", "variable", "constant", "string", "number"),
    *("boolean", "array", "object", "key", "null", "enum member", "struct", "event", "operator"),
    "type parameter",
)

_FILE = {"type": "string", "description": "A file of the project"}
_SYMBOL = {
    "file_path": {"type": "string", "description": "A file in which the name stands"},
    "symbol": {"type": "string", "description": "The name, as it stands there"},
    "line": {"type": "integer", "description": "The line it stands in, if it is there often"},
}


class WorkspaceServers(Protocol):
    """The language servers of a workspace, as tools use them. Implemented by part.py."""

    @property
    def root(self) -> Path: ...

    @property
    def own(self) -> OwnFolders:
        """The daemon's own folders, closed to tools."""

    @property
    def servers(self) -> Mapping[str, LanguageServer]: ...

    async def server(self, name: str) -> LanguageServer:
        """Raises NotFound."""

    async def fitting(self, path: Path) -> list[LanguageServer]:
        """Those for a file, started if they are not running."""

    async def tell(self, server: LanguageServer, path: Path) -> None:
        """Tell one what a file holds now. Raises CrushliteError."""

    async def refresh(self, server: LanguageServer) -> None:
        """Tell one what the files that it has open hold now. Raises CrushliteError."""

    async def text_of(self, path: Path) -> str:
        """Raises BadRequest."""

    async def blocking(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in a thread."""

    def shown(self, path: Path) -> str:
        """A path as the model reads it."""


def make_tools(part: WorkspaceServers) -> tuple[OfferedTool, ...]:
    return (
        Diagnostics(part),
        Definition(part),
        References(part),
        Symbols(part),
        Rename(part),
        Restart(part),
    )


class LspTool(OfferedTool):
    """What the tools have in common. Only `lsp_rename` asks for permission, when it knows what it
    would change."""

    read_only = True
    properties: Mapping[str, Any] = {}
    required: tuple[str, ...] = ()

    def __init__(self, part: WorkspaceServers) -> None:
        self._part = part
        self.parameters = {
            "type": "object",
            "properties": dict(self.properties),
            "required": list(self.required),
        }

    def question(self, arguments: Mapping[str, Any]) -> ToolQuestion | None:
        return None

    def _path(self, arguments: Mapping[str, Any]) -> Path:
        return locate(self._part.root, _text(arguments, "file_path"), self._part.own).path

    async def _servers(self, path: Path) -> list[LanguageServer]:
        """The servers for a file that know what it and the other open files hold now. Raises
        BadRequest if there is none."""
        found = await self._part.fitting(path)
        ready = [server for server in found if await server.ready(READY_SECONDS)]
        if not ready:
            why = "; ".join(f"{each.spec.name}: {each.error}" for each in found if each.error)
            raise BadRequest(f"no language server runs for {path.name}" + f" ({why})" * bool(why))
        for server in ready:
            await self._part.refresh(server)
            await self._part.tell(server, path)
        return ready

    async def _ask(self, method: str, arguments: Mapping[str, Any], **more: Any) -> list[Any]:
        """What the servers for a name in a file answer, those that fail left out unless all do."""
        path = self._path(arguments)
        line = arguments.get("line")
        servers = await self._servers(path)
        text = await self._part.text_of(path)
        number = line if isinstance(line, int) else 0
        place = find_symbol(text, _text(arguments, "symbol"), number)
        params = {
            "textDocument": {"uri": uri_of(path)},
            "position": {"line": place.line, "character": place.column},
            **more,
        }
        return await _answers(servers, method, params)


class Diagnostics(LspTool):
    name = "lsp_diagnostics"
    description = (
        "What language servers find wrong: in one file as it is now, or, without file_path, in all "
        "files that they know."
    )
    properties: Mapping[str, Any] = {"file_path": _FILE}

    async def call(self, turn: Turn, arguments: dict[str, Any], call_id: str) -> ToolAnswer:
        if not arguments.get("file_path"):
            return ToolAnswer(self._everywhere())
        path, lines = self._path(arguments), []
        for server in await self._servers(path):
            await server.heard(path, FRESH_SECONDS)
            lines += [each.words for each in server.about(path)]
        return ToolAnswer(block(self._part.shown(path), lines) if lines else "nothing is wrong")

    def _everywhere(self) -> str:
        lines = []
        for server in self._part.servers.values():
            for uri, some in server.found.items():
                path = path_of(uri)
                shown = self._part.shown(path) if path is not None else uri
                lines += [f"{shown}:{each.words}" for each in some if each.severity <= 2]
        return _listed(sorted(lines)) or "nothing is wrong in the files that were looked at"


class Definition(LspTool):
    name = "lsp_definition"
    description = "Where a name in a file is defined. Exact, unlike a search for its text."
    properties: Mapping[str, Any] = _SYMBOL
    required: tuple[str, ...] = ("file_path", "symbol")

    async def call(self, turn: Turn, arguments: dict[str, Any], call_id: str) -> ToolAnswer:
        answers = await self._ask("textDocument/definition", arguments)
        return ToolAnswer(await _places(self._part, answers) or "no definition was found")


class References(LspTool):
    name = "lsp_references"
    description = "All places where a name in a file is used. Exact, unlike a search for its text."
    properties: Mapping[str, Any] = _SYMBOL
    required: tuple[str, ...] = ("file_path", "symbol")

    async def call(self, turn: Turn, arguments: dict[str, Any], call_id: str) -> ToolAnswer:
        context = {"includeDeclaration": True}
        answers = await self._ask("textDocument/references", arguments, context=context)
        return ToolAnswer(await _places(self._part, answers) or "no references were found")


class Symbols(LspTool):
    name = "lsp_symbols"
    description = (
        "The outline of a file (file_path), or where in the project something of a name is defined "
        "(query)."
    )
    properties: Mapping[str, Any] = {"file_path": _FILE, "query": {"type": "string"}}

    async def call(self, turn: Turn, arguments: dict[str, Any], call_id: str) -> ToolAnswer:
        if arguments.get("file_path"):
            path = self._path(arguments)
            params: dict[str, Any] = {"textDocument": {"uri": uri_of(path)}}
            servers, method = await self._servers(path), "textDocument/documentSymbol"
        else:
            params, method = {"query": _text(arguments, "query")}, "workspace/symbol"
            every = list(self._part.servers.values())
            servers = [server for server in every if await server.ready(0)]
        lines: list[str] = []
        for answer in await _answers(servers, method, params):
            lines += islice(_outline(self._part, answer, 0), LOOKED_AT)
        return ToolAnswer(_listed(lines) or "no symbols were found")


class Rename(LspTool):
    name = "lsp_rename"
    description = "Rename what a name in a file stands for, in all files of the project."
    properties: Mapping[str, Any] = {**_SYMBOL, "new_name": {"type": "string"}}
    required: tuple[str, ...] = ("file_path", "symbol", "new_name")
    read_only = False

    async def call(self, turn: Turn, arguments: dict[str, Any], call_id: str) -> ToolAnswer:
        new_name = _text(arguments, "new_name")
        answers = await self._ask("textDocument/rename", arguments, newName=new_name)
        edits = _edits_by_file(next((each for each in answers if each), None))
        if not edits:
            raise BadRequest("the language server would change nothing: check symbol and line")
        files = await self._planned(edits)
        diff = "".join(each.diff for each in files)
        if len(diff) > DIFF_CHARS:
            raise BadRequest("this would change more than can be shown for permission: use edit")
        verdict = await turn.permission(
            self.name,
            "write",
            description=f"Rename {arguments['symbol']} to {new_name} in {len(files)} file(s)",
            params={"symbol": arguments["symbol"], "new_name": new_name, "diff": diff},
            path=str(self._part.root),
            tool_call_id=call_id,
            scope=Scope((), "nothing more than this: each rename is shown and asked for"),
        )
        if not verdict:
            why = f": {verdict.reason}" if verdict.reason else ""
            return ToolAnswer(f"User denied permission{why}", is_error=True, stop=True)
        # The user may have taken long: all files must still be as they were shown.
        files = [await self._part.blocking(each.again) for each in files]
        done: list[str] = []
        for each in files:
            try:
                await run_to_the_end(self._write(turn, each))
            except CrushliteError as error:
                names = ", ".join(done) or "no file"
                raise BadRequest(f"{error.message} (already renamed in {names})") from None
            done.append(each.place.shown)
        return ToolAnswer(f"renamed in {', '.join(done)}", metadata={"diff": diff})

    async def _planned(self, edits: list[tuple[Path, list[Any]]]) -> list[RenamedFile]:
        """The files as they are and as they are to be. A server may name one file twice, by a link
        to it: it is changed once. Raises BadRequest."""
        files: dict[Path, RenamedFile] = {}
        for path, some in edits:
            each = await self._part.blocking(rename_in, self._part.root, self._part.own, path, some)
            if files.setdefault(each.place.path, each).after != each.after:
                raise BadRequest(f"the server sent two different changes of {each.place.shown}")
        return list(files.values())

    async def _write(self, turn: Turn, file: RenamedFile) -> None:
        await self._part.blocking(file.write)
        await turn.file_changed(str(file.place.path), file.before, file.after)


class Restart(LspTool):
    name = "lsp_restart"
    description = "Start language servers anew, if what they say seems outdated or wrong."
    properties: Mapping[str, Any] = {
        "name": {"type": "string", "description": "One of them; all if left out"}
    }
    read_only = False

    async def call(self, turn: Turn, arguments: dict[str, Any], call_id: str) -> ToolAnswer:
        name = arguments.get("name")
        every = self._part.servers
        chosen = [await self._part.server(str(name))] if name else list(every.values())
        for server in chosen:
            await server.restart()
        names = ", ".join(server.spec.name for server in chosen)
        return ToolAnswer(f"starting anew: {names}" if names else "no language server runs")


# Answers of servers -------------------------------------------------------------------------------


async def _answers(servers: list[LanguageServer], method: str, params: dict[str, Any]) -> list[Any]:
    """What some servers answer. Raises the error of the last one if all fail."""
    answers, last = [], CrushliteError("no language server runs")
    for server in servers:
        try:
            answers.append(await server.request(method, params))
        except CrushliteError as error:
            last = error
    if not answers:
        raise BadRequest(last.message)
    return answers


async def _places(part: WorkspaceServers, answers: list[Any]) -> str:
    """Locations, one per line, each with the text of its line."""
    found: dict[tuple[Path, int], None] = {}
    for answer in answers:
        for value in answer[:LOOKED_AT] if isinstance(answer, list) else [answer]:
            if not isinstance(value, dict):
                continue
            path = path_of(value.get("uri") or value.get("targetUri"))
            where = value.get("range") or value.get("targetSelectionRange")
            if path is not None:
                found[path, start_of(where).line + 1] = None
    shown = sorted(found)[:MOST_LINES]
    texts = await part.blocking(_lines_of, part.root, part.own, shown)
    lines = [
        f"{part.shown(path)}:{line}" + (f": {text}" if text else "")
        for (path, line), text in zip(shown, texts, strict=True)
    ]
    return _listed(lines, len(found))


def _lines_of(root: Path, own: OwnFolders, places: list[tuple[Path, int]]) -> list[str]:
    """The lines at some places, empty for files that cannot be read or are not in the workspace.
    Blocks."""
    files: dict[Path, list[str]] = {}
    answer = []
    for path, line in places:
        if path not in files:
            try:
                place = locate(root, str(path), own)
                data = read_bytes(place, RENAMED_BYTES)[0] if place.inside else b""
            except (BadRequest, OSError, ValueError):
                data = b""
            files[path] = data.decode("utf-8", "replace").split("\n")
        lines = files[path]
        answer.append(lines[line - 1].strip()[:LINE_CHARS] if line <= len(lines) else "")
    return answer


def _outline(part: WorkspaceServers, values: Any, depth: int) -> Iterator[str]:
    """Symbols, those inside others indented below them."""
    for value in values if isinstance(values, list) and depth < 10 else ():
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            continue
        place = value.get("location")
        inside = place if isinstance(place, dict) else {}
        line = start_of(value.get("range") or inside.get("range")).line + 1
        number = value.get("kind")
        kind = KINDS[number] if isinstance(number, int) and 0 < number < len(KINDS) else "symbol"
        path = path_of(inside.get("uri"))
        where = f"{part.shown(path)}:{line}" if path is not None else f"line {line}"
        yield f"{'  ' * depth}{kind} {value['name'][:LINE_CHARS]} ({where})"
        yield from _outline(part, value.get("children"), depth + 1)


def _listed(lines: list[str], count: int | None = None) -> str:
    """The first of some lines, and how many more there are. `count` says how many there are in
    all, if not all of them were made."""
    found = len(lines) if count is None else count
    more = str(found - MOST_LINES) if found < LOOKED_AT else "many"
    shown = lines[:MOST_LINES] + ([f"... and {more} more"] if found > MOST_LINES else [])
    return "\n".join(shown)


def _text(arguments: Mapping[str, Any], key: str) -> str:
    value = arguments.get(key)
    if not isinstance(value, str) or not value or "\0" in value:
        raise BadRequest(f"{key} must be a text that is not empty")
    return value


# Renaming -----------------------------------------------------------------------------------------


def _edits_by_file(edit: Any) -> list[tuple[Path, list[Any]]]:
    """The text edits of a WorkspaceEdit. Raises BadRequest for one that does anything else."""
    if not isinstance(edit, dict):
        return []
    pairs: list[tuple[Any, Any]] = []
    if isinstance(edit.get("documentChanges"), list):
        for change in edit["documentChanges"]:
            document = change.get("textDocument") if isinstance(change, dict) else None
            if not isinstance(document, dict):
                raise BadRequest("the server wants to create, move or delete files: use bash")
            pairs.append((document.get("uri"), change.get("edits")))
    elif isinstance(edit.get("changes"), dict):
        pairs += edit["changes"].items()
    by_file: dict[Path, list[Any]] = {}
    for uri, edits in pairs:
        path = path_of(uri)
        if path is None or not isinstance(edits, list):
            raise BadRequest("the server sent changes that cannot be read")
        by_file.setdefault(path, []).extend(edits)
    if len(by_file) > MOST_FILES:
        raise BadRequest(f"this would change {len(by_file)} files: at most {MOST_FILES} at once")
    return list(by_file.items())


@dataclass(frozen=True, slots=True)
class RenamedFile:
    """A file of the workspace, as it is and as it is to be."""

    place: Place
    info: os.stat_result  # when `before` was read
    before: str
    after: str
    diff: str

    def again(self) -> RenamedFile:
        """The same with the file's stat of now. Raises Conflict if its text has changed. Blocks."""
        data, info = read_bytes(self.place, RENAMED_BYTES)
        if data != self.before.encode("utf-8"):
            shown = self.place.shown
            raise Conflict(f"{shown} has changed meanwhile: nothing was renamed, try again")
        return dataclasses.replace(self, info=info)

    def write(self) -> None:
        """Raises Conflict if the file has changed since it was read. Blocks."""
        write_bytes(self.place, self.after.encode("utf-8"), self.info)


def rename_in(root: Path, own: OwnFolders, path: Path, edits: list[Any]) -> RenamedFile:
    """What some edits make of a file. Raises BadRequest for a file outside of the workspace or of
    git, links resolved, for one that is no text, and for edits that make no sense. Blocks."""
    place = locate(root, str(path), own)
    if not place.inside or ".git" in place.path.relative_to(root).parts:
        raise BadRequest(f"the server wants to change {path}, which is not the project's: use edit")
    data, info = read_bytes(place, RENAMED_BYTES)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise BadRequest(f"{place.shown} is not UTF-8 text") from None
    after = apply_edits(text, edits)
    changed = [f"--- {place.shown}", f"+++ {place.shown}", *difference(text, after), ""]
    return RenamedFile(place, info, text, after, "\n".join(changed))
