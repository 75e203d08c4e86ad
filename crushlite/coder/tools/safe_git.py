"""The commands of git that only read, and the repositories in which they run unasked.

A repository can make git run programs: by its configuration (fsmonitor, filters, external diffs,
textconv, pagers, signature checks, includes, helpers of remotes), by hooks, and by submodules. So
there are two walls, each of which is enough for what it covers:

- The repository is a plain one: `.git` is a folder with known names, no links and no special files;
  its configuration holds only keys that run nothing, and its objects are all its own. In any other
  repository permission is asked.
- Git is run with options that switch all of that off, except for filters and blame.ignoreRevsFile,
  for which git has no such option, and in an environment of its own: no configuration of the user
  or the system, no protocol, no lock, no prompt.

Operands are revisions and paths below the folder. Files of the work tree that are closed to tools
are left out where git would show their content.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from .safe_options import DIGITS, TEXT, Arguments, Options
from .safe_repository import is_plain_repository

if TYPE_CHECKING:
    from collections.abc import Callable

ENVIRONMENT = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ALLOW_PROTOCOL": "none",  # a missing object could be fetched, through a helper
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_PAGER": "cat",
    "GIT_EDITOR": "false",
    "GIT_ASKPASS": "false",
    "GIT_SSH_COMMAND": "false",
}
_SETTINGS = """
    core.fsmonitor=false core.hooksPath=/dev/null core.pager=cat core.editor=false
    core.attributesFile=/dev/null core.excludesFile=/dev/null core.sshCommand=false
    core.askPass=false core.untrackedCache=false core.alternateRefsCommand=false
    diff.submodule=short diff.ignoreSubmodules=all diff.orderFile=/dev/null
    submodule.recurse=false status.submoduleSummary=false
    log.showSignature=false log.diffMerges=separate format.pretty=medium
    gpg.program=false gpg.openpgp.program=false gpg.x509.program=false gpg.ssh.program=false
    mailmap.file=/dev/null protocol.allow=never credential.helper=
    gc.auto=0 maintenance.auto=false grep.fallbackToNoIndex=false help.autocorrect=0
"""
_BEFORE = (
    "--no-pager",
    "--no-optional-locks",
    *(word for setting in _SETTINGS.split() for word in ("-c", setting)),
)
_NO_PROGRAMS = ("--no-ext-diff", "--no-textconv")
_NO_SUBMODULES = ("--ignore-submodules=all",)


class GitCommand(NamedTuple):
    """A command of git."""

    options: Options
    most: int  # operands
    added: tuple[str, ...] = ()  # options that it is run with
    fits: Callable[[Arguments], bool] = lambda found: True
    shows_files: bool = False  # the content of files in the work tree


# Options ------------------------------------------------------------------------------------------

_FORMAT = (  # of a commit. %G runs a program, %( may; another single word is a name in the settings
    r"oneline|short|medium|full|fuller|reference|email|raw"
    r"|(?:t?format:|(?=[^%]*%))(?:(?!%[-+ ]?[G(])[\s\S])*"
)
_COLOR = "always|auto|never"
_DIFF_FLAGS = """
    patch no-patch stat shortstat numstat name-only name-status summary raw patch-with-stat
    compact-summary full-index minimal patience histogram ignore-all-space ignore-space-change
    ignore-space-at-eol ignore-blank-lines word-diff color-words color-moved no-color color
    find-renames no-renames find-copies function-context no-prefix pickaxe-all pickaxe-regex text
    binary check cached staged merge-base quiet exit-code no-ext-diff no-textconv cc no-relative
"""
_DIFF_VALUES = {
    "stat": r"\d+(?:,\d+){0,2}",
    "unified": DIGITS,
    "inter-hunk-context": DIGITS,
    "diff-filter": "[A-Za-z*]+",
    "diff-algorithm": "[a-z]+",
    "word-diff": "[a-z]+",
    "color": _COLOR,
    "abbrev": DIGITS,
    "find-renames": r"\d+%?",
}
_LOG_FLAGS = """
    oneline graph all decorate no-decorate reverse merges no-merges first-parent follow date-order
    topo-order author-date-order abbrev-commit no-abbrev-commit branches tags remotes full-history
    left-right boundary regexp-ignore-case extended-regexp fixed-strings all-match invert-grep
    relative-date full-diff no-notes source walk-reflogs no-show-signature simplify-merges
    cherry-pick cherry-mark no-mailmap
"""
_LOG_VALUES = {
    **dict.fromkeys(("since", "after", "until", "before", "author", "committer", "grep"), TEXT),
    **dict.fromkeys(("max-count", "skip"), DIGITS),
    **dict.fromkeys(("format", "pretty"), _FORMAT),
    "date": r"[a-z-]+|format:[\s\S]*",
    "decorate": "short|full|auto|no",
}
_ATTACHED = "stat word-diff color abbrev find-renames decorate pretty format"
_LINES = rf"(?:{DIGITS}),[+-]?{DIGITS}"
_DIFF = Options(
    "pusRwbzWaM",
    {"U": DIGITS, "S": TEXT, "G": TEXT},
    _DIFF_FLAGS,
    _DIFF_VALUES,
    attached=_ATTACHED,
)
_LOG = Options(
    "pusRwbzWaMciEFPmgq",
    {"U": DIGITS, "S": TEXT, "G": TEXT, "n": DIGITS, "L": rf"{_LINES}:[\w./-]+"},
    _DIFF_FLAGS + _LOG_FLAGS,
    {**_DIFF_VALUES, **_LOG_VALUES},
    number=True,
    attached=_ATTACHED,
)
_GREP = Options(
    "nilLcwvEFPGhHoqpWrI",
    {"A": DIGITS, "B": DIGITS, "C": DIGITS, "m": DIGITS, "e": TEXT},
    "line-number ignore-case files-with-matches files-without-match name-only count word-regexp "
    "invert-match extended-regexp fixed-strings perl-regexp basic-regexp show-function "
    "function-context heading break cached only-matching quiet all-match no-color full-name text",
    {
        **dict.fromkeys(("context", "after-context", "before-context", "max-depth"), DIGITS),
        "max-count": DIGITS,
        "color": _COLOR,
    },
    number=True,
    attached="color",
)
_SORT = r"-?(?:(?:v|version):)?(?:refname|committerdate|creatordate|authordate|taggerdate)"
_REFS = {"sort": _SORT, **dict.fromkeys(("contains", "merged", "no-merged"), r"[\w./@^~-]+")}
_COMMIT_COUNT = {"n": DIGITS}


def _is_listing(found: Arguments) -> bool:
    """Whether a command lists, although with an operand it might create something."""
    return "list" in found.given or not (found.operands or found.behind)


def _is_object(found: Arguments) -> bool:
    return len(found.given & set("tspe")) == 1 and len(found.operands) == 1


COMMANDS: dict[str, GitCommand] = {
    "status": GitCommand(
        Options(
            "sbz",
            {"u": "no|normal|all"},
            "short branch long porcelain ahead-behind no-ahead-behind no-renames",
            {"porcelain": "v[12]", "untracked-files": "no|normal|all"},
            attached="u porcelain untracked-files",
        ),
        20,
        _NO_SUBMODULES,
    ),
    "log": GitCommand(_LOG, 50, (*_NO_PROGRAMS, *_NO_SUBMODULES)),
    "show": GitCommand(_LOG, 50, (*_NO_PROGRAMS, *_NO_SUBMODULES)),
    "diff": GitCommand(
        _DIFF,
        50,
        (*_NO_PROGRAMS, *_NO_SUBMODULES),
        # A blob with a file could be any two files.
        lambda found: not any(":" in word for word in (*found.operands, *(found.behind or ()))),
        shows_files=True,
    ),
    "blame": GitCommand(
        Options(
            "lstwefnpbM",
            {"L": rf"{_LINES}|{DIGITS},?"},
            "root show-name show-number show-email porcelain line-porcelain",
            {"abbrev": DIGITS, "date": "[a-z-]+", "since": TEXT},
            attached="abbrev",
        ),
        3,
        ("--no-textconv",),
        lambda found: bool(found.operands or found.behind),
        shows_files=True,
    ),
    "grep": GitCommand(
        _GREP,
        50,
        ("--no-textconv", "--no-recurse-submodules"),
        lambda found: "e" in found.given or bool(found.operands),
        shows_files=True,
    ),
    "shortlog": GitCommand(
        Options("sne", {}, "summary numbered email no-merges all", {"since": TEXT}), 5
    ),
    "ls-files": GitCommand(
        Options(
            "cdmostz",
            {},
            "cached deleted modified others stage exclude-standard error-unmatch full-name "
            "deduplicate unmerged directory",
        ),
        50,
    ),
    "ls-tree": GitCommand(
        Options(
            "rtdlz",
            {},
            "name-only name-status full-name full-tree long",
            {"abbrev": DIGITS},
            attached="abbrev",
        ),
        50,
    ),
    "rev-parse": GitCommand(
        Options(
            "q",
            {},
            "verify short abbrev-ref symbolic show-toplevel show-prefix show-cdup git-dir "
            "absolute-git-dir git-common-dir is-inside-work-tree is-inside-git-dir "
            "is-bare-repository is-shallow-repository quiet symbolic-full-name all branches tags",
            {"short": DIGITS, "abbrev-ref": "strict|loose"},
            attached="short abbrev-ref",
        ),
        10,
    ),
    "rev-list": GitCommand(
        Options(
            "",
            _COMMIT_COUNT,
            "count all no-merges merges first-parent reverse left-right oneline abbrev-commit "
            "branches tags remotes date-order topo-order",
            {k: v for k, v in _LOG_VALUES.items() if k not in ("format", "pretty", "decorate")},
            number=True,
        ),
        50,
    ),
    "cat-file": GitCommand(Options("tspe"), 1, (), _is_object),
    "describe": GitCommand(
        Options("", {}, "tags always all long exact-match", {"abbrev": DIGITS}, attached="abbrev"),
        5,
    ),
    "merge-base": GitCommand(Options("a", {}, "all is-ancestor octopus independent"), 10),
    "show-ref": GitCommand(
        Options(
            "ds",
            {},
            "heads tags head dereference",
            {"abbrev": DIGITS, "hash": DIGITS},
            attached="abbrev hash",
        ),
        10,
    ),
    "branch": GitCommand(
        Options("arv", {}, "all remotes verbose list no-color no-column ignore-case", _REFS),
        10,
        ("--list",),
        _is_listing,
    ),
    "tag": GitCommand(
        Options("", {"n": DIGITS}, "list no-column ignore-case", _REFS, attached="n"),
        10,
        ("--list",),
        _is_listing,
    ),
    "check-ignore": GitCommand(Options("vn", {}, "verbose non-matching no-index"), 50),
    "count-objects": GitCommand(Options("vH", {}, "verbose human-readable"), 0),
    "remote": GitCommand(Options("v", {}, "verbose"), 0),
    "reflog": GitCommand(Options("", _COMMIT_COUNT, "all no-abbrev", {"date": "[a-z-]+"}, True), 0),
    "version": GitCommand(Options(), 0),
}
# Commands that are harmless in this very form only.
_EXACT: dict[tuple[str, ...], tuple[str, ...]] = {
    ("branch", "--show-current"): ("branch", "--show-current"),
    ("tag", "-l"): ("tag", "--list"),
    ("stash", "list"): ("stash", "list", *_NO_PROGRAMS, *_NO_SUBMODULES),
    ("worktree", "list"): ("worktree", "list"),
    ("--version",): ("--version",),
}


def harmless_git(
    arguments: list[str], cwd: Path, root: Path, closed: list[Path]
) -> list[str] | None:
    """The arguments to run git with, in the folder `cwd` of the workspace `root`; None if the
    command or the repository is not harmless. `closed` are the folders that tools must not read."""
    top = _top(cwd, root)
    wanted = harmless_arguments(arguments, cwd, top or cwd, closed)
    if wanted is None or top is None or not is_plain_repository(top / ".git"):
        return None
    return wanted


def harmless_arguments(
    arguments: list[str], cwd: Path, top: Path, closed: list[Path]
) -> list[str] | None:
    """As `harmless_git`, for a repository at `top` that was not looked at."""
    place = (f"--git-dir={top / '.git'}", f"--work-tree={top}")
    if arguments[:1] == ["--no-pager"]:
        arguments = arguments[1:]
    if (exact := _EXACT.get(tuple(arguments))) is not None:
        return [*place, *_BEFORE, *exact]
    if not arguments or arguments[0] not in COMMANDS:
        return None
    command = COMMANDS[arguments[0]]
    found = command.options.sort(arguments[1:])
    if found is None or not command.fits(found):
        return None
    operands = [*found.operands, *(found.behind or ())]
    if len(operands) > command.most or not all(map(_is_inside, operands)):
        return None
    behind = [] if found.behind is None else ["--", *found.behind]
    words = [
        *place,
        *_BEFORE,
        arguments[0],
        *command.added,
        *found.options,
        *found.operands,
        *behind,
    ]
    hidden = [folder for folder in closed if folder.is_relative_to(top)]
    if not command.shows_files or not hidden:
        return words
    if arguments[0] == "blame":  # it takes one file, and no pattern of files
        named = [Path(str(cwd / word).casefold()) for word in operands]
        folders = [Path(str(folder).casefold()) for folder in hidden]
        return None if any(n.is_relative_to(f) for n in named for f in folders) else words
    names = [str(folder.relative_to(top)) for folder in hidden]
    if not all(re.fullmatch(r"[\w./-]+", name) for name in names):
        return None
    return [*words, *(f":(exclude,top,icase){name}" for name in names)]


def _is_inside(operand: str) -> bool:
    """Whether an operand cannot be a path that leads up: with one, `git diff` compares any two
    files."""
    return not operand.startswith("/") and ".." not in operand.split("/") and bool(operand)


def _top(cwd: Path, root: Path) -> Path | None:
    """The folder of the work tree that `cwd` is in; None if it is not below the workspace."""
    for folder in (cwd, *cwd.parents):
        if os.path.lexists(folder / ".git"):
            return folder
        if folder == root:
            return None
    return None
