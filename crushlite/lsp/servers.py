"""Which language servers a workspace has: those of the configuration, and well-known ones that are
installed.

An installed server starts by itself only if it merely parses. Some run what the project brings: a
build script, a compiler wrapper, a copy of the compiler in the project's own folder. Those start
only if a configuration file names them: the user's own, or one of a project that the user trusts.
A program inside the workspace is never a server that was found: a repository could bring it.
"""

from __future__ import annotations

import os
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BadRequest
from ..realpath import real_path
from ..records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

START_SECONDS = 30.0
MOST_SERVERS = 50  # of a configuration
MOST_SECONDS = 300.0
DEPTH = 64  # folders above a file in which a marker is looked for


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """How a server is started, and for which files."""

    name: str
    command: tuple[str, ...]  # the program, absolute or to be found on PATH, and its arguments
    filetypes: tuple[str, ...]  # extensions without a dot; empty: any
    root_markers: tuple[str, ...] = ()  # one of them must be above the file
    env: Mapping[str, str] = field(default_factory=dict)
    init_options: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = START_SECONDS  # to start
    disabled: bool = False
    why_not: str = ""  # why it does not start by itself
    found: bool = False  # not in the configuration

    def fits(self, path: Path) -> bool:
        """Whether it is for files with this name."""
        return not self.filetypes or path.suffix.lstrip(".").lower() in self.filetypes

    def is_rooted(self, path: Path, root: Path) -> bool:
        """Whether a marker is in the folder of a file or above it, in the workspace. Blocks."""
        if not self.root_markers:
            return True
        folder = path.parent
        for _ in range(DEPTH):
            if any(os.path.lexists(folder / marker) for marker in self.root_markers):
                return True
            if folder == root or not folder.is_relative_to(root):
                return False
            folder = folder.parent
        return False


@dataclass(frozen=True, slots=True)
class KnownServer:
    """A well-known server."""

    command: tuple[str, ...]
    filetypes: tuple[str, ...]
    root_markers: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)  # if it starts by itself
    options: Mapping[str, Any] = field(default_factory=dict)
    runs: str = ""  # what of the project it may run
    instead_of: str = ""  # it is not used if this one is there


_NO_DOWNLOADS = {"GOTOOLCHAIN": "local", "GOPROXY": "off", "GOVCS": "*:off"}
_ONLY_PARSING = {
    name: {"enabled": False}
    for name in ("pylint", "pylsp_mypy", "mypy", "ruff", "black", "rope_completion")
}
KNOWN = {
    "pyright": KnownServer(("pyright-langserver", "--stdio"), ("py", "pyi")),
    "pylsp": KnownServer(
        ("pylsp",),
        ("py", "pyi"),
        options={"pylsp": {"plugins": _ONLY_PARSING}},
        instead_of="pyright",
    ),
    "gopls": KnownServer(("gopls",), ("go", "mod"), ("go.mod", "go.work"), _NO_DOWNLOADS),
    "rust-analyzer": KnownServer(
        ("rust-analyzer",),
        ("rs",),
        ("Cargo.toml", "rust-project.json"),
        runs="compiler wrappers, build scripts and macros",
    ),
    "typescript-language-server": KnownServer(
        ("typescript-language-server", "--stdio"),
        ("ts", "tsx", "js", "jsx", "mjs", "cjs", "mts", "cts"),
        ("package.json", "tsconfig.json", "jsconfig.json"),
        runs="the compiler and its plugins in node_modules",
    ),
    "clangd": KnownServer(
        ("clangd",),
        ("c", "h", "cc", "hh", "cpp", "hpp", "cxx", "hxx", "m", "mm"),
        ("compile_commands.json", "compile_flags.txt", ".clangd"),
    ),
}

# Variables that name folders from which programs or modules are taken.
_CODE_FOLDERS = frozenset({"PATH", "PYTHONPATH", "NODE_PATH", "VIRTUAL_ENV", "CONDA_PREFIX"})

_LANGUAGES = {
    "py": "python",
    "pyi": "python",
    "mod": "go.mod",
    "rs": "rust",
    "ts": "typescript",
    "mts": "typescript",
    "cts": "typescript",
    "tsx": "typescriptreact",
    "js": "javascript",
    "mjs": "javascript",
    "cjs": "javascript",
    "jsx": "javascriptreact",
    "h": "c",
    "cc": "cpp",
    "hh": "cpp",
    "hpp": "cpp",
    "cxx": "cpp",
    "hxx": "cpp",
    "m": "objective-c",
    "mm": "objective-cpp",
    "rb": "ruby",
    "sh": "shellscript",
    "md": "markdown",
    "yml": "yaml",
    "cs": "csharp",
    "kt": "kotlin",
    "hs": "haskell",
    "ex": "elixir",
    "exs": "elixir",
}


def language_of(path: Path) -> str:
    """The protocol's name for the language of a file."""
    suffix = path.suffix.lstrip(".").lower()
    return _LANGUAGES.get(suffix, suffix or "plaintext")


def configured(section: Mapping[str, Any]) -> dict[str, ServerSpec]:
    """The servers of the `lsp` section, by name. One without a command must be well-known."""
    return {name: _spec(name, each or {}) for name, each in list(section.items())[:MOST_SERVERS]}


def _spec(name: str, given: Mapping[str, Any]) -> ServerSpec:
    known = KNOWN.get(name)
    command = str(given.get("command") or "")
    program = (command,) if command else known.command[:1] if known is not None else ()
    arguments = tuple(map(str, given.get("args") or ()))
    if not arguments and known is not None and program[0] in ("", known.command[0]):
        arguments = known.command[1:]
    filetypes = tuple(str(each).lstrip(".").lower() for each in given.get("filetypes") or ())
    markers = tuple(map(str, given.get("root_markers") or ()))
    seconds = float(given.get("timeout") or START_SECONDS)
    return ServerSpec(
        name,
        (*program, *arguments),
        filetypes or (known.filetypes if known is not None else ()),
        markers,
        {str(key): str(value) for key, value in (given.get("env") or {}).items()},
        given.get("init_options") or {},
        given.get("options") or {},
        min(max(seconds, 1.0), MOST_SECONDS),
        bool(given.get("disabled")),
        "" if program else "it has no command, and is not one of the servers that are known here",
    )


def installed(path_variable: str, workspace: Path) -> dict[str, ServerSpec]:
    """The well-known servers that are on PATH, by name. Blocks."""
    found: dict[str, ServerSpec] = {}
    for name, known in KNOWN.items():
        program = find_program(known.command[0], path_variable, workspace)
        if program is None or known.instead_of in found:
            continue
        why_not = ""
        if known.runs:
            why_not = (
                f"it may run what the project brings ({known.runs}): to start it, name it in the "
                f'section lsp of your crush.json: "lsp": {{"{name}": {{}}}}'
            )
        found[name] = ServerSpec(
            name,
            (program, *known.command[1:]),
            known.filetypes,
            known.root_markers,
            known.env,
            options=known.options,
            why_not=why_not,
            found=True,
        )
    return found


def find_program(name: str, path_variable: str, workspace: Path) -> str | None:
    """The first program of a name on PATH that is outside of the workspace, links resolved: a
    relative folder on PATH counts for nothing. Blocks."""
    for folder in outside(path_variable.split(os.pathsep), workspace):
        program = os.path.join(folder, name)
        runs = os.path.isfile(program) and os.access(program, os.X_OK)
        if runs and not Path(real_path(program)).is_relative_to(workspace):
            return program
    return None


def outside(folders: Iterable[str], workspace: Path) -> list[str]:
    """Those of some folders that are absolute and not in the workspace. Blocks."""
    return [
        folder
        for folder in folders
        if os.path.isabs(folder) and not Path(real_path(folder)).is_relative_to(workspace)
    ]


def resolved_command(spec: ServerSpec, path_variable: str, workspace: Path) -> list[str]:
    """The command with its program as an absolute path. Raises BadRequest if it is not there.
    Blocks."""
    program, *arguments = spec.command
    if program.startswith("~/"):
        program = os.path.expanduser(program)
    if "/" in program:
        return [os.path.join(workspace, program), *arguments]
    found = find_program(program, path_variable, workspace)
    if found is None:
        raise BadRequest(f"{program} is not on PATH: install it, or remove lsp.{spec.name}")
    return [found, *arguments]


def environment(spec: ServerSpec, env: Mapping[str, str], workspace: Path) -> dict[str, str]:
    """What the process of a server sees. Unless a configuration file chose it, programs and modules
    are not looked for in the workspace, also by interpreters that it starts. Blocks."""
    if not spec.found:
        return {**env, **spec.env}
    cleaned = {**env, "PYTHONSAFEPATH": "1"}  # nothing is imported from the current folder
    for name in _CODE_FOLDERS & env.keys():
        cleaned[name] = os.pathsep.join(outside(env[name].split(os.pathsep), workspace))
        if not cleaned[name] and name != "PATH":
            del cleaned[name]
    return {**cleaned, **spec.env}
