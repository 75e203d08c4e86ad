"""The search program behind ls, glob and grep, run as a process of its own for each search.

A regular expression can take for ever, a file system can hang, a tree can be endless. A process
under a keeper is killed when the search is cancelled or its time is up, and never blocks the
daemon. The program is this file and rules.py, and imports only the standard library. It gets its
request as JSON in its one argument, and prints one JSON object: `found`, `cut` (why it did not find
more: "", "limit", "time" or "entries") and, if there are any, `dropped` (how many rules of
.gitignore and .crushignore were not used) and `more` (how many matches of a file are not shown); or
`error`, a text for the model.

It walks the tree by descriptors and follows no link, neither on the way to the folder where it
begins nor below it: so it reads only what lies in that folder, whatever is moved or linked
meanwhile.
"""

from __future__ import annotations

import errno
import heapq
import importlib
import json
import os
import re
import stat
import subprocess
import time
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from .rules import RULE_BYTES, Ignored, Parts, Pattern, RulesHere, braces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

FILE_BYTES = 5 * 1024 * 1024
LINE_CHARS = 300
DEPTH = 64
MEMORY = 1 << 29
ENTRIES = 200_000  # of a tree that one search looks at
FOLDER_ENTRIES = 50_000  # of one folder
ANSWER_CHARS = 200_000  # of all that is found: more would fill the context of most models
FILE_MATCHES = 20  # of one file, when grep looks into a folder
RULE_FILES = (".gitignore", ".crushignore")  # of one folder; the last rule decides
SEARCH_RULES = 10_000  # of all such files that one search reads
FOLDERS_ABOVE = 40  # in which the top of a repository is looked for
BATCH = 1000  # files that one call of rg looks into
FEW = 100  # files for which starting rg takes longer than it saves
CLOSED = "closed to tools: it holds the daemon's own data or those of processes"

# For os.open: a folder to pass through (O_PATH needs no right to list it), a folder to list, a file
# to read. None follows a link; opening a FIFO does not block.
_PASS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


# The tree ---------------------------------------------------------------------------------------


class TreeEntry(NamedTuple):
    parts: Parts  # its path below the folder where the search began
    is_dir: bool
    folder: int  # a descriptor of its folder, valid until the next entry


class _Stop(Exception):
    """The search ends before it has seen everything; the argument is the value of `cut`."""


class Closed:
    """Folders and files that no search may look into, by device and inode: so it does not matter by
    which path, mount or hard link they are reached."""

    def __init__(self, request: dict[str, Any]) -> None:
        self._identities = {tuple(pair) for pair in request.get("closed") or ()}

    def refuse(self, descriptor: int) -> None:
        """Raise PermissionError if this is the descriptor of a closed folder or file."""
        if self._identities:
            info = os.fstat(descriptor)
            if (info.st_dev, info.st_ino) in self._identities:
                raise PermissionError(errno.EACCES, CLOSED)


def _content(name: str, folder: int, closed: Closed) -> bytes | None:
    """The content of a file; None if it cannot be read, is binary or larger than FILE_BYTES."""
    try:
        with open(os.open(name, READ, dir_fd=folder), "rb") as file:
            closed.refuse(file.fileno())
            info = os.fstat(file.fileno())
            if not stat.S_ISREG(info.st_mode) or info.st_size > FILE_BYTES:
                return None
            data = file.read(FILE_BYTES) or b""  # None: it would block, as some of /proc do
    except OSError:
        return None
    return None if b"\0" in data[:8192] else data


def _enter(path: str, closed: Closed) -> int:
    """A descriptor of the folder at an absolute path, reached through no link and no closed
    folder."""
    if f"{path}/".startswith("/proc/"):
        raise PermissionError(errno.EACCES, CLOSED)
    at = os.open("/", _PASS)
    for name in path.split("/"):
        if name:
            at = _down(at, name, _PASS)
            closed.refuse(at)
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


def _below(top: str, path: str) -> Parts:
    """The path of a folder below another one."""
    return tuple(name for name in os.path.relpath(path, top).split("/") if name != ".")


def _repository(root: str) -> str:
    """The nearest folder at or above this one that holds a repository; the folder itself if there
    is none."""
    folder = root
    for _ in range(FOLDERS_ABOVE):
        if os.path.lexists(os.path.join(folder, ".git")):
            return folder
        folder = os.path.dirname(folder)
    return root


class Tree:
    """Everything below a folder, level by level, so that a search that ends early has missed what
    lies deepest."""

    def __init__(self, request: dict[str, Any]) -> None:
        self._deadline = time.monotonic() + float(request["seconds"])
        self._depth = min(request.get("depth") or DEPTH, DEPTH)
        self._closed = Closed(request)
        self._top = _enter(request["path"], self._closed)
        self._seen = 0
        self._cut = ""
        self._rules_left = SEARCH_RULES
        self._request = request
        self._extra = Ignored("", request.get("ignore") or ())
        # The path of the searched folder below the folder to which the rules belong.
        self._prefix: Parts = ()
        self._rules = RulesHere()
        if root := request.get("root") or "":
            self._rules, self._prefix = self._rules_above(root, request["path"])

    def _rules_above(self, root: str, path: str) -> tuple[RulesHere, Parts]:
        """The rules of all folders above the searched one, and its path below the first of them:
        the top of the repository that holds the workspace, or the workspace itself if there is none
        or if it is left out there (a home folder under version control leaves out everything)."""
        parts = _below(root, path)
        above = _repository(root)
        if above != root:
            down = _below(above, root)
            rules = self._rules_of(above, down)
            if not any(rules.covers(down[:n], True) for n in range(1, len(down) + 1)):
                # From there down: the rules of each level count from the top.
                return self._rules_of(above, (*down, *parts)), (*down, *parts)
        return self._rules_of(root, parts), parts

    def _rules_of(self, top: str, down: Parts) -> RulesHere:
        """The rules of a folder and of those on the way down from it, without the last one."""
        rules = RulesHere()
        for depth in range(len(down)):
            folder = _enter("/".join((top, *down[:depth])), self._closed)
            try:
                rules = self._with_rules(rules, folder, depth, RULE_FILES)
            finally:
                os.close(folder)
        return rules

    def _with_rules(
        self, rules: RulesHere, folder: int, depth: int, names: Iterable[str]
    ) -> RulesHere:
        """The rules together with those of the files of these names in a folder."""
        texts = [
            (_content(name, folder, self._closed) or b"")[:RULE_BYTES].decode("utf-8", "replace")
            for name in RULE_FILES
            if name in names
        ]
        if not any(texts):
            return rules
        more = rules.below(depth, "\n".join(texts))
        _, added = more.levels[0]
        self._rules_left -= added.used
        dropped = added.dropped + (added.used if self._rules_left < 0 else 0)
        self._request["dropped"] = self._request.get("dropped", 0) + dropped
        return rules if self._rules_left < 0 else more

    def entries(self) -> Iterator[TreeEntry]:
        """Raises _Stop when the time is up, or at the end if something was left out."""
        todo: deque[tuple[Parts, RulesHere]] = deque([((), self._rules)])
        while todo:
            above, rules = todo.popleft()
            try:
                folder = self.reopen(above)
            except OSError:
                continue  # removed meanwhile, or not allowed
            try:
                self._closed.refuse(folder)
                names = self._names(folder)
                present = {name for name, _ in names}.intersection(RULE_FILES)
                if present:
                    rules = self._with_rules(rules, folder, len(self._prefix) + len(above), present)
                for name, is_dir in names:
                    parts = (*above, name)
                    if self._skips(rules, parts, is_dir):
                        continue
                    yield TreeEntry(parts, is_dir, folder)
                    if is_dir and len(parts) < self._depth:
                        todo.append((parts, rules))
            except PermissionError:
                continue  # closed
            finally:
                os.close(folder)
        if self._cut:
            raise _Stop(self._cut)

    def _names(self, folder: int) -> list[tuple[str, bool]]:
        names: list[tuple[str, bool]] = []
        with os.scandir(folder) as entries:
            for entry in entries:
                self._check_time()
                self._seen += 1
                if len(names) >= FOLDER_ENTRIES:
                    self._cut = "entries"
                    break
                names.append((entry.name, entry.is_dir(follow_symlinks=False)))
        return sorted(names)

    def reopen(self, parts: Parts) -> int:
        """A descriptor of a folder of the tree, to list it."""
        return _reopen(self._top, parts)

    def enter(self) -> None:
        """Make the folder the current one of this process."""
        os.fchdir(self._top)

    @property
    def seconds_left(self) -> float:
        return max(self._deadline - time.monotonic(), 0.0)

    def _skips(self, rules: RulesHere, parts: Parts, is_dir: bool) -> bool:
        self._check_time()
        return rules.covers(self._prefix + parts, is_dir) or self._extra.covers(parts, is_dir)

    def _check_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise _Stop("time")
        if self._seen > ENTRIES:
            raise _Stop("entries")


# The three searches -----------------------------------------------------------------------------


def _shown(parts: Parts) -> str:
    """A path as text; one with characters that cannot be printed is escaped."""
    name = "/".join(parts)
    return name if name.isprintable() else name.encode("unicode_escape").decode("ascii")


class Found:
    """What a search has found, within the limits of an answer."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.items: list[Any] = []
        self.more: dict[str, int] = {}  # matches that are not shown, by file
        self._shown = request.get("shown") or ""
        self._limit = request.get("limit", 0)
        self._room = ANSWER_CHARS

    def named(self, parts: Parts) -> str:
        """A path as the model is to use it."""
        return os.path.join(self._shown, _shown(parts))

    def add(self, item: Any, chars: int) -> None:
        """Raises _Stop if there is no room for it."""
        self._room -= chars
        if len(self.items) >= self._limit or self._room < 0:
            raise _Stop("limit")
        self.items.append(item)


def _ls(request: dict[str, Any], found: Found) -> None:
    """Add [path as a list of names, whether it is a folder] for each entry."""
    for entry in Tree(request).entries():
        parts = [_shown((part,)) for part in entry.parts]
        found.add([parts, entry.is_dir], sum(map(len, parts)))


def _glob(request: dict[str, Any], found: Found) -> None:
    """Add the paths of matching files, the newest first: they are what the user works on."""
    patterns = [Pattern(pattern) for pattern in braces(request["pattern"])]
    newest: list[tuple[float, str]] = []
    cut = ""
    try:
        for entry in Tree(request).entries():
            if not entry.is_dir and any(pattern.matches(entry.parts) for pattern in patterns):
                heapq.heappush(newest, (_modified(entry), found.named(entry.parts)))
                if len(newest) > request["limit"]:
                    heapq.heappop(newest)
                    cut = "limit"
    except _Stop as stop:
        cut = str(stop)
    for _, name in sorted(newest, key=lambda item: (-item[0], item[1])):
        found.add(name, len(name))
    if cut:
        raise _Stop(cut)


def _modified(entry: TreeEntry) -> float:
    try:
        return os.stat(entry.parts[-1], dir_fd=entry.folder, follow_symlinks=False).st_mtime
    except OSError:
        return 0.0


def _grep(request: dict[str, Any], found: Found) -> None:
    """Add [path, number of the line, text around the match] for each matching line; of one file
    among many only the first FILE_MATCHES, and count the others."""
    pattern = request["pattern"]
    wanted = re.compile(re.escape(pattern) if request.get("literal") else pattern)
    needed = needed_text(pattern, literal=bool(request.get("literal")))
    most = request["limit"] + 1 if request.get("file") else FILE_MATCHES
    closed = Closed(request)
    for entry in _files(request, closed, needed):
        data = _content(entry.parts[-1], entry.folder, closed)
        if data is None or needed not in data:
            continue
        name = found.named(entry.parts)
        count = 0
        for number, line in enumerate(data.decode("utf-8", "replace").split("\n"), 1):
            match = wanted.search(line.removesuffix("\r"))
            if match is None:
                continue
            count += 1
            if count <= most:
                around = _around(line, match.start())
                found.add([name, number, around], len(name) + len(around))
        if count > most:
            found.more[name] = count - most


def needed_text(pattern: str, *, literal: bool = False) -> bytes:
    """The longest text that every line that matches must hold, in UTF-8; empty if none is known.
    Looking for it first is much faster than the expression."""
    if literal:
        runs = [pattern]
    else:
        try:
            parsed = importlib.import_module("re._parser").parse(pattern)
        except (ImportError, AttributeError):  # another Python: it only takes longer
            return b""
        runs = [] if parsed.state.flags & re.IGNORECASE else _runs(parsed)
    # A byte that is no UTF-8 is read as U+FFFD.
    texts = [run for run in runs if run.isprintable() and "\ufffd" not in run]
    return max(texts, key=len, default="").encode("utf-8")


def _runs(parsed: Any) -> list[str]:
    """The texts in the sequence of a parsed expression that a match cannot do without."""
    runs = [""]
    for code, value in parsed:
        kind = str(code)
        if kind == "LITERAL":
            runs[-1] += chr(value)
            continue
        if kind == "SUBPATTERN" and not value[1] and not value[2]:  # no flags of its own
            runs += _runs(value[3])
        elif kind in ("MAX_REPEAT", "MIN_REPEAT") and value[0] >= 1:
            runs += _runs(value[2])
        if kind != "AT":  # a position, such as the begin of a word
            runs.append("")
    return runs


def _files(request: dict[str, Any], closed: Closed, needed: bytes) -> Iterator[TreeEntry]:
    """The files that grep reads: the one it was given, or those below a folder."""
    if request.get("file"):
        folder, _, name = request["path"].rpartition("/")
        at = _enter(folder, closed)
        yield TreeEntry((name,), False, at)
        os.close(at)
        return
    include = request.get("include") or ""
    wanted = [Pattern(p if "/" in p else f"**/{p}") for p in braces(include)] if include else []
    tree = Tree(request)
    files = (
        entry
        for entry in tree.entries()
        if not entry.is_dir and (not wanted or any(p.matches(entry.parts) for p in wanted))
    )
    yield from _rg_files(tree, files, request["rg"], needed) if request.get("rg") else files


def _rg_files(
    tree: Tree, files: Iterator[TreeEntry], program: str, needed: bytes
) -> Iterator[TreeEntry]:
    """Those of the files in which rg finds the text. It only narrows down what is read: which files
    there are, and what matches, is decided here, so the answers are the same without it. All files
    if rg cannot tell."""
    regular = filter(_is_regular, files)
    cut: _Stop | None = None
    while cut is None:
        batch: list[Parts] = []
        try:
            batch.extend(entry.parts for entry in islice(regular, BATCH))
        except _Stop as stop:
            cut = stop
        if not batch:
            break
        for parts in _narrowed(tree, batch, program, needed):
            try:
                folder = tree.reopen(parts[:-1])
            except OSError:
                continue  # removed meanwhile
            yield TreeEntry(parts, False, folder)
            os.close(folder)
    if cut is not None:
        raise cut


def _is_regular(entry: TreeEntry) -> bool:
    """rg would follow a link, and wait for a FIFO."""
    try:
        info = os.stat(entry.parts[-1], dir_fd=entry.folder, follow_symlinks=False)
    except OSError:
        return False
    return stat.S_ISREG(info.st_mode)


def _narrowed(tree: Tree, batch: list[Parts], program: str, needed: bytes) -> list[Parts]:
    if not needed or len(batch) < FEW:
        return batch
    tree.enter()
    names = [os.fsencode("/".join(parts)) for parts in batch]
    # Without any settings, of files or variables; no file is taken for binary, or for UTF-16.
    options = "--no-config --files-with-matches --null --fixed-strings --text --no-mmap"
    words = [program, *options.split(), "--encoding=none", "--no-messages", "--color=never"]
    try:
        ended = subprocess.run(
            [*words, b"--regexp=" + needed, b"--", *(b"./" + name for name in names)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={"LC_ALL": "C.UTF-8"},
            timeout=tree.seconds_left,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _Stop("time") from None
    except OSError:
        return batch
    holding = {name.removeprefix(b"./") for name in ended.stdout.split(b"\0") if name}
    # It could not read every file, or says something else than names.
    if ended.returncode != (0 if holding else 1) or not holding.issubset(names):
        return batch
    return [parts for parts, name in zip(batch, names, strict=True) if name in holding]


def _around(line: str, at: int) -> str:
    """The part of a line around the match at `at`, as it can be shown."""
    first = max(at - LINE_CHARS // 2, 0) if len(line) > LINE_CHARS else 0
    piece = line[first : first + LINE_CHARS].rstrip()
    readable = "".join(c if c.isprintable() or c == "\t" else "\ufffd" for c in piece)
    return ("..." if first else "") + readable + ("..." if len(line) > first + LINE_CHARS else "")


_ALWAYS = ("found", "cut")
SEARCHES: dict[str, Callable[[dict[str, Any], Found], None]] = {
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
    found = Found(request)
    cut = ""
    try:
        SEARCHES[request["search"]](request, found)
    except _Stop as stop:
        cut = str(stop)
    except re.error as error:
        advice = "escape it, or set literal_text"
        text = f"the pattern is no valid regular expression ({error}): {advice}"
        return json.dumps({"error": text})
    except (RecursionError, OverflowError, MemoryError):
        return json.dumps({"error": "the pattern, or what it is applied to, is too large"})
    except OSError as error:
        return json.dumps({"error": f"{request['path']}: {error.strerror}"})
    answer = {"found": found.items, "cut": cut, "more": found.more}
    answer["dropped"] = request.get("dropped", 0)
    return json.dumps({key: value for key, value in answer.items() if value or key in _ALWAYS})


def run(argument: str) -> str:
    """As `main`, in a process of its own."""
    _limit_memory()
    return main(argument)
