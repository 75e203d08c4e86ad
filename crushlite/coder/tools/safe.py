r"""The few commands that run without asking for permission.

A command is harmless only if all of this holds; in any doubt, permission is asked:

- It is one line of plain words, with one space or tab between them. It has no character that means
  something to a shell (quotes, `$`, `;`, `*`, `~`, `\`, `#`, `!`, line ends, ...), and none beyond
  ASCII.
- Program and arguments are on the list below, spelled exactly like that.
- The program is in /usr/bin or /bin; nothing of the workspace, of PATH or of an alias is used.

It is then run without a shell, in a small environment of its own. About the list:

- `ls` lists one folder below the one it runs in. The folder is entered component by component and
  no link is followed, so a link that is put there after the check makes it fail. Options that
  follow links (-L, -H) or list subfolders (-R) are not on the list.
- `git` can be made to run programs by the repository's own files (fsmonitor, filters, hooks,
  aliases, submodules, includes). So only two commands are on the list, in the repository's top
  folder, and only if everything in `.git` has an ordinary name and `.git/config` holds only
  ordinary keys. The user's own configuration is not read.
- `cat`, `find`, `env`, `sort`, `xargs` and others are not on the list: each has options that write
  or execute.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

FOLDERS = ("/usr/bin", "/bin")
LENGTH = 1000
CONFIG_BYTES = 65536
_WORDS = re.compile(r"[A-Za-z0-9_./:@%+,-]+(?:[ \t][A-Za-z0-9_./:=@%+,-]+)*")

# By program: what each of its arguments must match.
_OPTIONS: dict[str, re.Pattern[str]] = {
    "pwd": re.compile(r"-[LP]"),
    "echo": re.compile(r".*", re.DOTALL),
    "date": re.compile(r"-u"),
    "whoami": re.compile(r"(?!)"),
    "id": re.compile(r"-[ugGn]+"),
    "uname": re.compile(r"-[asnrvmo]+"),
    "ls": re.compile(r"-[1aAlhtrSpFinsgGoUmxC]+"),
}
# By the exact arguments of git in the command: the arguments that git is run with.
_GIT = ("-c", "core.fsmonitor=false", "-c", "core.pager=cat", "-c", "core.hooksPath=/dev/null")
_STATUS = ("status", "--ignore-submodules=all")
_EXACT: dict[tuple[str, ...], tuple[str, ...]] = {
    ("status",): _STATUS,
    ("status", "-s"): (*_STATUS, "--short"),
    ("status", "--short"): (*_STATUS, "--short"),
    ("status", "-sb"): (*_STATUS, "--short", "--branch"),
    ("status", "--porcelain"): (*_STATUS, "--porcelain"),
    ("branch", "--show-current"): ("branch", "--show-current"),
}
_GIT_NAMES = frozenset(
    {
        *("HEAD", "config", "description", "hooks", "info", "index", "objects", "refs", "logs"),
        *("packed-refs", "branches", "COMMIT_EDITMSG", "FETCH_HEAD", "ORIG_HEAD"),
    }
)
_GIT_KEYS = {
    "core": "repositoryformatversion filemode bare logallrefupdates ignorecase precomposeunicode "
    "symlinks autocrlf",
    "remote": "url fetch",
    "branch": "remote merge",
    "user": "name email",
}
_SECTION = re.compile(r'\[([a-z]+)(?: "[^"\\\n]*")?\]')
_SETTING = re.compile(r"([a-z]+) = [^\\\n]*", re.IGNORECASE)

# The whole environment of these programs. That of the workspace (GIT_DIR, LD_PRELOAD, TZ with a
# path) could change what they do.
_ENVIRONMENT = {
    "PATH": ":".join(FOLDERS),
    "LC_ALL": "C.UTF-8",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
}

# What our own interpreter may need to find its libraries.
_LOADER = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")

# A Python program that enters a folder from the root, through no link, and execs a program there.
_ENTER = """
import os, sys
folder, program, *words = sys.argv[1:]
flags = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW
at = os.open("/", flags)
try:
    for name in folder.split("/"):
        if name:
            at = os.open(name, flags, dir_fd=at)
    os.fchdir(at)
except OSError as error:
    sys.exit(f"{folder}: {error.strerror}")
os.closerange(3, at + 1)
os.execv(program, words)
"""


def harmless_words(command: str, cwd: Path) -> list[str] | None:
    """The argument list to run, without a shell, for a harmless command; None for any other.

    `cwd` is resolved and in the workspace.
    """
    if len(command) > LENGTH or not _WORDS.fullmatch(command):
        return None
    name, *arguments = re.split(r"[ \t]", command)
    program = _program(name)
    if program is None:
        return None
    if name == "git":
        return _git(cwd, program, arguments)
    folder: Path | None = cwd
    if name == "ls":
        folder = _below(cwd, [word for word in arguments if not word.startswith("-")])
        arguments = [word for word in arguments if word.startswith("-")]
    if folder is None or not all(_OPTIONS[name].fullmatch(word) for word in arguments):
        return None
    return _entering(folder, program, [name, *arguments])


def _git(cwd: Path, program: str, arguments: list[str]) -> list[str] | None:
    exact = _EXACT.get(tuple(arguments))
    if exact is None or not _is_plain_repository(cwd / ".git"):
        return None
    place = (f"--git-dir={cwd / '.git'}", f"--work-tree={cwd}")
    return _entering(cwd, program, ["git", *place, *_GIT, *exact])


def environment() -> dict[str, str]:
    """The environment to run a harmless command in."""
    return _ENVIRONMENT | {name: os.environ[name] for name in _LOADER if name in os.environ}


def _program(name: str) -> str | None:
    """The path of a program on the list; None if it is not on it or not installed."""
    if name != "git" and name not in _OPTIONS:
        return None
    found = (f"{folder}/{name}" for folder in FOLDERS)
    return next((path for path in found if os.access(path, os.X_OK)), None)


def _entering(folder: Path, program: str, words: list[str]) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", _ENTER, str(folder), program, *words]


def _below(cwd: Path, names: list[str]) -> Path | None:
    """The folder that `names` names, `cwd` if they are empty. None if there are several, or if it
    is not below `cwd`, or if the path to it goes up or through a link."""
    if not names:
        return cwd
    if len(names) > 1 or names[0].startswith("/"):
        return None
    folder = cwd / names[0]
    try:
        plain = os.path.realpath(folder, strict=True) == str(folder) and folder.is_dir()
    except (OSError, RecursionError):  # it does not exist, or has too many links
        return None
    return folder if plain else None


def _is_plain_repository(folder: Path) -> bool:
    """Whether a `.git` holds nothing that could make git run a program."""
    try:
        if not stat.S_ISDIR(os.lstat(folder).st_mode):
            return False
        with os.scandir(folder) as entries:
            if any(e.name not in _GIT_NAMES or not _is_plain_entry(e) for e in entries):
                return False
        # Without blocking: what was a file a moment ago may be a FIFO now.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(folder / "config", flags), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return False
            return _is_plain_config(file.read(CONFIG_BYTES).decode("utf-8"))
    except (OSError, ValueError):
        return False


def _is_plain_entry(entry: os.DirEntry[str]) -> bool:
    """Whether this is a regular file or a folder: git would wait for ever for a FIFO."""
    return entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False)


def _is_plain_config(content: str) -> bool:
    """Whether each line of a git configuration is a known section or one of its known keys."""
    keys: list[str] = []
    for line in content.splitlines():
        section, setting = _SECTION.fullmatch(line.strip()), _SETTING.fullmatch(line.strip())
        if section:
            keys = _GIT_KEYS.get(section[1], "").split()
        elif line.strip() and (not setting or setting[1].lower() not in keys):
            return False
    return len(content.encode("utf-8")) < CONFIG_BYTES  # a longer file was not read to its end
