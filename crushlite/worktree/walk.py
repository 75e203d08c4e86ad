"""The search program behind ls, glob and grep, run as a process of its own for each search.

A regular expression can take for ever, a file system can hang, a tree can be endless. A process
under a keeper is killed when the search is cancelled or its time is up, and never blocks the
daemon. The program imports only the standard library, gets its request as JSON in its one argument,
and prints one JSON object: `found` and `cut` (why it did not find more: "", "limit" or "time"), or
`error`, a text for the model.

It walks the tree by descriptors and follows no link, neither on the way to the folder where it
begins nor below it: so it reads only what lies in that folder, whatever is moved or linked
meanwhile.
"""

from __future__ import annotations

import fnmatch
import heapq
import json
import os
import re
import stat
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

FILE_BYTES = 5 * 1024 * 1024
LINE_CHARS = 300
DEPTH = 64
MEMORY = 1 << 30
MOST_BRACES = 64
SKIPPED = frozenset({".git", "node_modules", "__pycache__", ".venv"})

# For os.open: a folder to pass through (O_PATH needs no right to list it), a folder to list, a file
# to read. None follows a link; opening a FIFO does not block.
_PASS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

Parts = tuple[str, ...]


# Patterns ---------------------------------------------------------------------------------------


def braces(pattern: str) -> list[str]:
    """The patterns that one with alternatives in braces stands for: `*.{c,h}` -> `*.c`, `*.h`. At
    most about MOST_BRACES of them; braces beyond that are left as they are."""
    done: list[str] = []
    todo = deque([pattern])
    while todo:
        first = todo.popleft()
        found = re.search(r"\{([^{}]*)\}", first)
        if found is None or len(done) + len(todo) >= MOST_BRACES:
            done.append(first)
            continue
        todo += [first[: found.start()] + a + first[found.end() :] for a in found[1].split(",")]
    return done


class Pattern:
    """A pattern of paths: `*`, `?` and `[...]` within a name, `**` for any number of folders.

    Names are matched one by one, with the expressions of fnmatch, which never take exponential
    time, and a set of positions for `**`: the time grows with the product of the two lengths.
    """

    def __init__(self, pattern: str) -> None:
        names = [name for name in pattern.split("/") if name not in ("", ".")]
        self._names = [
            None if name == "**" else re.compile(fnmatch.translate(name)) for name in names
        ]

    def matches(self, parts: Parts) -> bool:
        names = self._names
        at = self._skip({0})
        for part in parts:
            following = set()
            for i in at:
                if i < len(names):
                    name = names[i]
                    if name is None:
                        following.add(i)
                    elif name.match(part):
                        following.add(i + 1)
            at = self._skip(following)
        return len(names) in at

    def _skip(self, at: set[int]) -> set[int]:
        """Add to these positions those behind a `**`, which may also stand for no folder."""
        todo = list(at)
        while todo:
            i = todo.pop()
            if i < len(self._names) and self._names[i] is None and i + 1 not in at:
                at.add(i + 1)
                todo.append(i + 1)
        return at


class Ignored:
    """Which entries a search leaves out: those named in SKIPPED, and those that the text of a
    .gitignore or one of the `extra` rules names. Of .gitignore only the simple rules are known."""

    def __init__(self, rules: str = "", extra: Iterable[str] = ()) -> None:
        # Expression for a name ("" if the rule is about a whole path), pattern for the path,
        # whether only folders match, whether it is an exception (`!rule`).
        self._rules: list[tuple[str, Pattern, bool, bool]] = []
        for line in [*rules.split("\n"), *extra]:
            rule = line.strip()
            if not rule or rule.startswith("#"):
                continue
            exception = rule.startswith("!")
            body = rule.removeprefix("!")
            name = body.rstrip("/")
            anywhere = "/" not in name
            by_name = fnmatch.translate(name) if anywhere and name not in ("", ".", "**") else ""
            pattern = Pattern(f"**/{body}" if anywhere else body)
            self._rules.append((by_name, pattern, body.endswith("/"), exception))
        # Most rules are about names, and without exceptions their order does not matter: then one
        # expression for all of them is much faster. One is for folders, the other for files.
        names = {
            is_dir: "|".join(r[0] for r in self._rules if r[0] and (is_dir or not r[2]))
            for is_dir in (True, False)
        }
        self._ordered = any(rule[3] for rule in self._rules)
        self._names = {key: re.compile(text or "(?!)") for key, text in names.items()}
        self._paths = [rule for rule in self._rules if self._ordered or not rule[0]]

    def covers(self, parts: Parts, is_dir: bool) -> bool:
        """Whether an entry is left out; `parts` is its path below the folder of the rules."""
        if is_dir and parts[-1] in SKIPPED:
            return True
        ignored = not self._ordered and self._names[is_dir].match(parts[-1]) is not None
        for _, pattern, only_folders, exception in self._paths:
            if (is_dir or not only_folders) and ignored == exception and pattern.matches(parts):
                ignored = not exception
        return ignored


# The tree ---------------------------------------------------------------------------------------


class TreeEntry(NamedTuple):
    parts: Parts  # its path below the folder where the search began
    is_dir: bool
    folder: int  # a descriptor of its folder, valid until the next entry


class _Stop(Exception):
    """The search ends before it has seen everything; the argument is the value of `cut`."""


def _content(name: str, folder: int) -> bytes | None:
    """The content of a file; None if it cannot be read, is binary or larger than FILE_BYTES."""
    try:
        with open(os.open(name, READ, dir_fd=folder), "rb") as file:
            info = os.fstat(file.fileno())
            if not stat.S_ISREG(info.st_mode) or info.st_size > FILE_BYTES:
                return None
            data = file.read(FILE_BYTES)
    except OSError:
        return None
    return None if b"\0" in data[:8192] else data


def _enter(path: str) -> int:
    """A descriptor of the folder at an absolute path, reached through no link."""
    at = os.open("/", _PASS)
    for name in path.split("/"):
        if name:
            at = _down(at, name, _PASS)
    return at


def _down(at: int, name: str, flags: int) -> int:
    """Open an entry of the folder `at`, and close `at`."""
    try:
        return os.open(name, flags, dir_fd=at)
    finally:
        os.close(at)


def _reopen(top: int, parts: Parts) -> int:
    """A descriptor of a folder below `top`, to list it."""
    at = os.open(".", _PASS, dir_fd=top)
    for name in parts:
        at = _down(at, name, _PASS)
    return _down(at, ".", LIST)


class Tree:
    """Everything below a folder, level by level, so that a search that ends early has missed what
    lies deepest."""

    def __init__(self, request: dict[str, Any]) -> None:
        self._deadline = time.monotonic() + request["seconds"]
        self._depth = min(request.get("depth") or DEPTH, DEPTH)
        self._top = _enter(request["path"])
        root = request.get("root") or ""
        rules = _content(".gitignore", _enter(root)) if root else b""
        self._ignored = Ignored((rules or b"").decode("utf-8", "replace"))
        self._extra = Ignored("", request.get("ignore") or ())
        # The path of the searched folder below the workspace, whose rules apply to whole paths.
        self._prefix = tuple(os.path.relpath(request["path"], root).split("/")) if root else ()
        if self._prefix == (".",):
            self._prefix = ()

    def entries(self) -> Iterator[TreeEntry]:
        """Raises _Stop when the time is up."""
        todo: deque[Parts] = deque([()])
        while todo:
            above = todo.popleft()
            try:
                folder = _reopen(self._top, above)
            except OSError:
                continue  # removed meanwhile, or not allowed
            try:
                for name, is_dir in self._names(folder):
                    parts = (*above, name)
                    if self._skips(parts, is_dir):
                        continue
                    yield TreeEntry(parts, is_dir, folder)
                    if is_dir and len(parts) < self._depth:
                        todo.append(parts)
            finally:
                os.close(folder)

    def _names(self, folder: int) -> list[tuple[str, bool]]:
        names = []
        with os.scandir(folder) as entries:
            for entry in entries:
                self._check_time()
                names.append((entry.name, entry.is_dir(follow_symlinks=False)))
        return sorted(names)

    def _skips(self, parts: Parts, is_dir: bool) -> bool:
        self._check_time()
        return self._ignored.covers(self._prefix + parts, is_dir) or self._extra.covers(
            parts, is_dir
        )

    def _check_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise _Stop("time")


# The three searches -----------------------------------------------------------------------------


def _shown(parts: Parts) -> str:
    """A path as text; one with characters that cannot be printed is escaped."""
    name = "/".join(parts)
    return name if name.isprintable() else name.encode("unicode_escape").decode("ascii")


def _ls(request: dict[str, Any], found: list[Any]) -> None:
    """Add [path as a list of names, whether it is a folder] for each entry."""
    for entry in Tree(request).entries():
        if len(found) >= request["limit"]:
            raise _Stop("limit")
        found.append([[_shown((part,)) for part in entry.parts], entry.is_dir])


def _glob(request: dict[str, Any], found: list[Any]) -> None:
    """Add the paths of matching files, the newest first: they are what the user works on."""
    patterns = [Pattern(pattern) for pattern in braces(request["pattern"])]
    newest: list[tuple[float, str]] = []
    cut = ""
    try:
        for entry in Tree(request).entries():
            if not entry.is_dir and any(pattern.matches(entry.parts) for pattern in patterns):
                heapq.heappush(newest, (_modified(entry), _shown(entry.parts)))
                if len(newest) > request["limit"]:
                    heapq.heappop(newest)
                    cut = "limit"
    except _Stop as stop:
        cut = str(stop)
    found += [name for _, name in sorted(newest, key=lambda item: (-item[0], item[1]))]
    if cut:
        raise _Stop(cut)


def _modified(entry: TreeEntry) -> float:
    try:
        return os.stat(entry.parts[-1], dir_fd=entry.folder, follow_symlinks=False).st_mtime
    except OSError:
        return 0.0


def _grep(request: dict[str, Any], found: list[Any]) -> None:
    """Add [path, number of the line, text around the match] for each matching line."""
    pattern = request["pattern"]
    wanted = re.compile(re.escape(pattern) if request.get("literal") else pattern)
    for entry in _files(request):
        data = _content(entry.parts[-1], entry.folder)
        if data is None:
            continue
        for number, line in enumerate(data.decode("utf-8", "replace").split("\n"), 1):
            match = wanted.search(line.removesuffix("\r"))
            if match is None:
                continue
            if len(found) >= request["limit"]:
                raise _Stop("limit")
            found.append([_shown(entry.parts), number, _around(line, match.start())])


def _files(request: dict[str, Any]) -> Iterator[TreeEntry]:
    """The files that grep reads: the one it was given, or those below a folder."""
    if request.get("file"):
        folder, _, name = request["path"].rpartition("/")
        at = _enter(folder)
        yield TreeEntry((name,), False, at)
        os.close(at)
        return
    include = request.get("include") or ""
    wanted = [Pattern(p if "/" in p else f"**/{p}") for p in braces(include)] if include else []
    for entry in Tree(request).entries():
        if not entry.is_dir and (not wanted or any(p.matches(entry.parts) for p in wanted)):
            yield entry


def _around(line: str, at: int) -> str:
    """The part of a line around the match at `at`, as it can be shown."""
    first = max(at - LINE_CHARS // 2, 0) if len(line) > LINE_CHARS else 0
    piece = line[first : first + LINE_CHARS].rstrip()
    readable = "".join(c if c.isprintable() or c == "\t" else "\ufffd" for c in piece)
    return ("..." if first else "") + readable + ("..." if len(line) > first + LINE_CHARS else "")


SEARCHES: dict[str, Callable[[dict[str, Any], list[Any]], None]] = {
    "ls": _ls,
    "glob": _glob,
    "grep": _grep,
}


def _limit_memory() -> None:
    import resource  # not needed to import this module

    for which, most in ((resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_CORE, 0)):
        try:
            resource.setrlimit(which, (most, most))
        except (OSError, ValueError):
            pass  # the system refuses; the search has a time limit in any case


def main(argument: str) -> str:
    """Perform one search: takes a request and returns an answer, both in JSON."""
    request = json.loads(argument)
    found: list[Any] = []
    cut = ""
    try:
        SEARCHES[request["search"]](request, found)
    except _Stop as stop:
        cut = str(stop)
    except re.error as error:
        return json.dumps({"error": f"the pattern is no valid regular expression: {error}"})
    except (RecursionError, OverflowError, MemoryError):
        return json.dumps({"error": "the pattern, or what it is applied to, is too large"})
    except OSError as error:
        return json.dumps({"error": f"{request['path']}: {error.strerror}"})
    return json.dumps({"found": found, "cut": cut})


if __name__ == "__main__":
    _limit_memory()
    sys.stdout.write(main(sys.argv[1]))
