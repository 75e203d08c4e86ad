r"""Commands that only read and run without asking for permission.

A command is harmless only if all of this holds; in any doubt, permission is asked:

- It can be taken apart with certainty (shellwords.py), and is of ASCII. It is one line; its simple
  commands, at most MOST_PARTS, are divided by `|`, `&&`, `||` or `;`, and each of them is harmless.
  Redirections write no file.
- Each program is one of safe_programs.py or git (safe_git.py), is in /usr/bin or /bin, and each of
  its arguments is known there. Nothing of the workspace, of PATH, of an alias or of a function is
  used.
- Files and folders are in the workspace and open to tools, and the path to them goes neither up nor
  through a link. Files are regular ones: a FIFO or a device could block or do something.

It is then run in a small environment of its own. No shell reads the text: the words that were
found are handed over. If there are several parts, /bin/sh connects them, with every word quoted.
Paths are checked once more in the process that becomes the program: a link that is put there after
the first check makes it fail. That process has a limit of zero bytes for files.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
import sys
from dataclasses import field
from pathlib import Path

from ...errors import BadRequest
from ...records import dataclass
from ...worktree.paths import OwnFolders
from .safe_git import ENVIRONMENT, harmless_git
from .safe_programs import NAMES, harmless_run
from .shellwords import simple_commands, unquoted

FOLDERS = ("/usr/bin", "/bin")
SHELL = "/bin/sh"
LENGTH = 2000
MOST_PARTS = 8
_ASCII = re.compile(r"[ -~\t]+")
_CUTS = ("|", "&&", "||", ";", "")
_REDIRECTIONS = ("2>/dev/null", "2> /dev/null", "2>&1", ">/dev/null", "> /dev/null", "</dev/null")

# The whole environment of these programs. That of the workspace (GIT_DIR, LD_PRELOAD, TZ with a
# path) could change what they do.
_ENVIRONMENT = {"PATH": ":".join(FOLDERS), "LC_ALL": "C.UTF-8", "PAGER": "cat", **ENVIRONMENT}

# What our own interpreter may need to find its libraries.
_LOADER = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")

# A Python program that enters a folder from the root, through no link, checks files and folders in
# the same way, and execs a program there that cannot write to any file.
_ENTER = """
import os, resource, signal, stat, sys
folder, count, *rest = sys.argv[1:]
paths, (program, *words) = rest[:int(count)], rest[int(count):]
PASS = getattr(os, "O_PATH", os.O_RDONLY | os.O_NONBLOCK) | os.O_NOFOLLOW
def enter(path):
    at = os.open("/", PASS | os.O_DIRECTORY)
    for name in filter(None, path.split("/")):
        inner = os.open(name, PASS, dir_fd=at)
        os.close(at)
        at = inner
        if stat.S_ISLNK(os.fstat(at).st_mode):
            raise OSError(0, "is a link")
    return at
path = ""
try:
    for path in paths:
        at = enter(path)
        mode = os.fstat(at).st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise OSError(0, "is neither a file nor a folder")
        os.close(at)
    path = folder
    at = enter(path)
    os.fchdir(at)
except OSError as error:
    sys.exit(f"{path}: {error.strerror}")
os.closerange(3, at + 1)
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
os.execv(program, words)
"""

# A Python program that looks for programs as `which` does. The system's own may be a script.
_WHICH = """
import os, sys
folders, every, *names = sys.argv[1:]
missing = False
for name in names:
    found = [f"{f}/{name}" for f in folders.split(":") if f.startswith("/")]
    found = [path for path in found if os.path.isfile(path) and os.access(path, os.X_OK)]
    missing = missing or not found
    for path in found if every else found[:1]:
        print(path)
sys.exit(1 if missing else 0)
"""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where a command is to be run."""

    cwd: Path  # resolved, in the workspace
    root: Path  # the workspace, resolved
    own: OwnFolders = field(default_factory=OwnFolders)  # closed to tools
    search: str = ""  # the PATH of the workspace, in which `which` looks


def harmless_words(command: str, at: Surroundings) -> list[str] | None:
    """The argument list to run for a harmless command; None for any other. Reads the file
    system."""
    if len(command) > LENGTH or not _ASCII.fullmatch(command):
        return None
    parts = simple_commands(command) or []
    if not 1 <= len(parts) <= MOST_PARTS:
        return None
    try:
        at.own.refuse(at.cwd)
    except BadRequest:
        return None
    runs: list[list[str]] = []
    for part in parts:
        plain = part.cut in _CUTS and all(each in _REDIRECTIONS for each in part.redirections)
        run = _simple(part.words, at) if plain and part.words else None
        if run is None:
            return None
        runs.append(run)
    if len(parts) == 1 and not parts[0].redirections:
        return runs[0]
    texts = [
        " ".join([shlex.join(run), *part.redirections, part.cut])
        for run, part in zip(runs, parts, strict=True)
    ]
    return [SHELL, "-c", " ".join(texts)]


def environment() -> dict[str, str]:
    """The environment to run a harmless command in."""
    return _ENVIRONMENT | {name: os.environ[name] for name in _LOADER if name in os.environ}


def _simple(raw: list[str], at: Surroundings) -> list[str] | None:
    """The argument list for a simple command; None if it is not harmless."""
    name, words = raw[0], [unquoted(word) for word in raw[1:]]
    if name == "which":
        return _which(words, at.search)
    closed = at.own.inside(at.root)
    program = _program(name)
    if program is None or closed is None:
        return None
    if name == "git":
        arguments = harmless_git(words, at.cwd, at.root, closed)
        return None if arguments is None else _entering(at.cwd, [], program, ["git", *arguments])
    run = harmless_run(name, words, [folder.name for folder in closed])
    if run is None:
        return None
    if run.walks and not all(re.fullmatch(r"[\w.-]+", folder.name) for folder in closed):
        return None
    opened = [_open_path(path, at, folders=run.folders) for path in run.paths]
    found = [each for each in opened if each is not None]
    if len(found) < len(opened):
        return None
    if name == "ls" and len(found) == 1 and "d" not in "".join(run.words[:-2]):
        [(path, is_folder)] = found
        options = run.words[: run.words.index("--")]
        if is_folder:
            # Entered and listed: no link can come between.
            return _entering(path, [], program, [name, *options])
        # As itself: a link to a folder that takes its place is not listed.
        return _entering(at.cwd, [path], program, [name, "-d", *run.words])
    return _entering(at.cwd, [path for path, _ in found], program, [name, *run.words])


def _which(words: list[str], search: str) -> list[str] | None:
    every = words[:1] == ["-a"]
    names = words[1:] if every else words
    if not names or not all(re.fullmatch(r"[A-Za-z0-9_][\w.+-]*", name) for name in names):
        return None
    return [sys.executable, "-I", "-S", "-c", _WHICH, search, "a" if every else "", *names]


def _program(name: str) -> str | None:
    """The path of a program on the list; None if it is not on it or not installed."""
    if name != "git" and name not in NAMES:
        return None
    found = (f"{folder}/{name}" for folder in FOLDERS)
    return next((path for path in found if os.access(path, os.X_OK)), None)


def _entering(folder: Path, paths: list[Path], program: str, words: list[str]) -> list[str]:
    checked = [str(len(paths)), *map(str, paths)]
    return [sys.executable, "-I", "-S", "-c", _ENTER, str(folder), *checked, program, *words]


def _open_path(word: str, at: Surroundings, *, folders: bool) -> tuple[Path, bool] | None:
    """The file, or folder, that an argument names, and whether it is a folder. None if there is
    none that tools may read, or if the path goes up, through a link or out of the workspace."""
    if not word or ".." in word.split("/"):
        return None
    path = Path(os.path.normpath(at.cwd / word))
    try:
        info = os.lstat(path)
        if os.path.realpath(path, strict=True) != str(path) or not path.is_relative_to(at.root):
            return None
        at.own.refuse(path)
        if (info.st_dev, info.st_ino) in at.own.identities():
            return None
    except (
        OSError,
        RecursionError,
        BadRequest,
    ):  # it does not exist, has too many links, or is closed
        return None
    is_folder = stat.S_ISDIR(info.st_mode)
    fits = stat.S_ISREG(info.st_mode) or (folders and is_folder)
    return (path, is_folder) if fits else None
