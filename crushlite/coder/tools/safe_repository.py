"""Whether a git repository is a plain one: nothing in its `.git` makes git run a program, read a
file elsewhere or wait. In any doubt it is not."""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

CONFIG_BYTES = 65536
MOST_ENTRIES = 20_000  # of a .git, without its objects

_FOLDERS = re.compile(
    r"hooks|info|objects|refs|logs|branches|modules|worktrees|lfs|rr-cache|rebase-merge|rebase-apply"
    r"|sequencer"
)
_FILES = re.compile(
    r"HEAD|config|description|index|packed-refs|shallow|[A-Z]+(?:_[A-Z]+)*_(?:HEAD|MSG|EDITMSG)"
    r"|[A-Z]+_MSG|MERGE_MODE|MERGE_RR|AUTO_MERGE|BISECT_[A-Z_]+|gc\.log|gc\.pid|FETCH_HEAD|ORIG_HEAD"
    r"|sharedindex\.[0-9a-f]+|(?:index|HEAD|config|packed-refs|shallow)\.lock|gitk\.cache"
)
_KEYS = {
    "core": "repositoryformatversion filemode bare logallrefupdates ignorecase precomposeunicode "
    "symlinks autocrlf eol safecrlf whitespace abbrev quotepath trustctime checkstat preloadindex "
    "compression commentchar sharedrepository hidedotfiles longpaths",
    "remote": "url fetch pushurl gh-resolved prune prunetags tagopt skipfetchall mirror push",
    "branch": "remote merge rebase pushremote description vscode-merge-base gh-merge-base "
    "github-pr-owner-number autosetupmerge autosetuprebase",
    "user": "name email signingkey",
    "init": "defaultbranch",
    "pull": "rebase ff",
    "push": "default autosetupremote followtags",
    "fetch": "prune prunetags",
    "merge": "ff conflictstyle",
    "rebase": "autostash autosquash",
    "commit": "gpgsign",
    "tag": "gpgsign",
    "gc": "auto",
    "lfs": "repositoryformatversion",
    "submodule": "url active",
    "color": "ui",
    "rerere": "enabled",
    "gui": "wmstate geometry",
    "maintenance": "auto strategy",
    "log": "date",
    "diff": "renames algorithm mnemonicprefix noprefix colormoved",
    "status": "showuntrackedfiles short branch",
    "index": "version",
}
_SUBSECTIONS = frozenset({"remote", "branch", "submodule"})
_SECTION = re.compile(r'\[([a-z]+)( "[^"\\\n]*")?\]')
_SETTING = re.compile(r"([a-z][a-z-]*) = [^\\\x00-\x08\x0a-\x1f]*", re.IGNORECASE)
_ALTERNATES = ("alternates", "http-alternates")


def is_plain_repository(folder: Path) -> bool:
    """Whether a `.git` holds nothing that could make git run a program, read a file elsewhere or
    wait. Reads the file system."""
    try:
        if not stat.S_ISDIR(os.lstat(folder).st_mode):
            return False
        with os.scandir(folder) as entries:
            if not all(map(_is_known, entries)):
                return False
        if not _is_plain_tree(folder) or not _are_own_objects(folder / "objects"):
            return False
        # Without blocking: what was a file a moment ago may be a FIFO now.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(folder / "config", flags), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return False
            return _is_plain_config(file.read(CONFIG_BYTES).decode("utf-8"))
    except (OSError, ValueError):
        return False


def _is_known(entry: os.DirEntry[str]) -> bool:
    if _FOLDERS.fullmatch(entry.name):
        return entry.is_dir(follow_symlinks=False)
    return entry.is_file(follow_symlinks=False) and _FILES.fullmatch(entry.name) is not None


def _is_plain_tree(folder: Path) -> bool:
    """Whether there are only folders and regular files, and not too many. Not looked into: objects,
    and what these commands do not read."""
    todo, count = [str(folder)], 0
    unread = {str(folder / name) for name in ("objects", "modules", "lfs")}
    while todo:
        with os.scandir(todo.pop()) as entries:
            for entry in entries:
                count += 1
                if count > MOST_ENTRIES:
                    return False
                if entry.is_dir(follow_symlinks=False):
                    if entry.path not in unread:
                        todo.append(entry.path)
                elif not entry.is_file(follow_symlinks=False):
                    return False
    return True


def _are_own_objects(folder: Path) -> bool:
    """Whether all objects are in this folder, and none of its folders is a link."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                return False
    info = folder / "info"
    return not any(os.path.lexists(info / name) for name in _ALTERNATES)


def _is_plain_config(content: str) -> bool:
    """Whether each line of a git configuration is a known section, one of its known keys, or a
    comment."""
    keys: list[str] = []
    for line in content.split("\n"):
        text = line.strip(" \t")
        section, setting = _SECTION.fullmatch(text), _SETTING.fullmatch(text)
        if section:
            known = section[1] in _SUBSECTIONS or not section[2]
            keys = _KEYS.get(section[1], "").split() if known else []
        elif text and text[0] not in "#;" and (not setting or setting[1].lower() not in keys):
            return False
    return len(content.encode("utf-8")) < CONFIG_BYTES  # a longer file was not read to its end
