r"""What "allow for this session" covers: computed from a tool call, shown to the user, remembered.

The core remembers a grant by session, tool, action and directory, and by the parts that are made
here. A later call is covered if each of its own parts was granted.

- A command has a part for each of its simple commands: program and subcommand (`git commit`). That
  is so only for the programs of the tables below, which run no other program, write nowhere else
  and follow no link out of the workspace that no word names, whatever words follow; options that
  could are left out. And only if the text is so plain that it can be taken apart with certainty:
  words, quotes without `$` and `\`, and `&&`, `||`, `;`, `|` or line ends between commands. For
  everything else the part is the whole text: shells, interpreters, unknown programs, variables,
  substitutions, globs, redirections, assignments, `cd`, functions, paths outside of the workspace.
- A change to a file: all ordinary files of the workspace.
- A page: all of its server. A download: all of its server, to the same file.
- Nothing at all: files outside of the workspace, and those of guarded.py, also where the text of a
  command names one.

Besides, a rule is offered for the user to choose, which can also be kept for good: the first words
of a command (rules.py), or the folder of a file. Where there is none, it is the scope above.
"""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...agent.base import Scope
from ...realpath import real_path
from .guarded import guarded_in, guarded_in_text
from .rules import covering_parts, offered_words, rule_part
from .shellwords import PLAIN_WORD, simple_commands, unquoted

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...worktree.paths import Place

MOST_PATHS = 1000  # of a command: each is looked up in the file system
MOST_OPTIONS = 10  # characters of a word that may be short options, before a value
_NOTHING = r"(?!)"
ORDINARY = "ordinary files"

# Programs without subcommands, and which of their words are not covered. Long options can be
# abbreviated, so the beginning of a name counts.
_HARMLESS = """
    cat head tail echo true false pwd whoami id uname uptime nproc df stat basename dirname
    realpath readlink touch mkdir sleep seq cut tr nl fold fmt rev tac paste join comm expand
    unexpand od hexdump cmp which column
"""
_SUMS = "md5sum sha1sum sha256sum sha512sum b2sum cksum"
_GREPS = "grep egrep fgrep"
_PROGRAMS: dict[str, str] = dict.fromkeys(_HARMLESS.split(), _NOTHING) | {
    # Links and lists of files can lead out of the workspace; `diff` follows the links in folders.
    **dict.fromkeys(_SUMS.split(), r"-[^-]*c.*|--c.*"),
    **dict.fromkeys(_GREPS.split(), r"-[^-]*R.*|--d.*"),
    "ls": r"-[^-]*L.*|--d.*",
    "du": r"-[^-]*L.*|--[df].*",
    "wc": r"--f.*",
    "base64": r"-[^-]*o.*|--o.*",
    "printf": r"-.*",  # -v sets a variable of the shell
    "date": r"-[^-]*[sf].*|--[sf].*|[^+-].*",  # sets the clock
    "file": r"-[^-]*[Cfm].*|--[cfm].*",
    "jq": r".*\b(?:import|include|modulemeta)\b.*|-[^-]*f.*|--from.*",  # any file, by its name
    "rg": r"--pre.*|--hostname-bin.*|-[^-]*[Lz].*|--follow|--search-zip",
    "sort": r"-[^-]*[oT].*|--[octf].*",
    "tree": r"-[^-]*[loR].*|--[of].*",
    "uniq": r"[^-].*",  # a second file is written
}
_QUIET = r"-q+|-v+|--quiet|--verbose|--version"
# Programs that run the project's own code or settings, and the options that are covered: others
# could name another program, file or server.
_RUNNERS: dict[str, str] = {
    "pytest": rf"{_QUIET}|-[xsl]|-[km].*|-n\d*|-r\w+|--(?:lf|ff|nf|sw|co|collect-only|no-header)"
    r"|--tb=\w+|--maxfail=\d+|--durations=\d+",
    "mypy": rf"{_QUIET}|--strict|--pretty",
    "black": rf"{_QUIET}|--check|--diff",
    "isort": rf"{_QUIET}|--check|--diff",
    "flake8": _QUIET,
    "prettier": rf"{_QUIET}|--check|--write|-w",
    "eslint": rf"{_QUIET}|--fix",
    "tsc": rf"{_QUIET}|--noEmit",
}
_CARGO = (
    rf"{_QUIET}|--release|--all|--workspace|--lib|--bins?|--tests?|--examples?|--all-targets"
    r"|--all-features|--no-default-features|--features(?:=.*)?|-p|--package(?:=.*)?|--no-run"
    r"|--check|--locked|--offline|--frozen|--|--nocapture|--test-threads=\d+|--exact|--ignored"
)
_GO = r"-(?:v|race|short|cover|json|failfast|benchmem|(?:run|count|bench|timeout)(?:=.*)?)"
# By program: its subcommands, and the options that are covered with them.
_SUBCOMMANDS: dict[str, tuple[str, str]] = {
    "git": (
        "status log diff show add commit blame shortlog describe rev-parse rev-list ls-files "
        "ls-tree cat-file grep",
        r"--oneline|--exclude.*|--(?!o|ex|te|ed|ch).*|-[^-O]*",
    ),
    "cargo": ("build check test clippy doc fmt tree bench", _CARGO),
    "go": ("build test vet fmt list version doc", _GO),
    "ruff": ("check format", rf"{_QUIET}|--fix|--diff|--check|--statistics|--no-cache"),
    "npm": ("test ls outdated", _NOTHING),
    "pnpm": ("test ls outdated", _NOTHING),
    "yarn": ("test outdated", _NOTHING),
    "pip": ("list show freeze check", r"--format=\w+"),
    "pip3": ("list show freeze check", r"--format=\w+"),
    "docker": (
        "ps images logs inspect version info stats top port",
        r"-[aqnt]|--(?:format|tail|since|until|filter)(?:=.*)?|--no-trunc|--no-stream",
    ),
    "kubectl": ("logs top explain", r"-n|--namespace=.*|-A|--tail=\d+|-c|-p|--since=\w+"),
    "systemctl": ("status is-active is-enabled list-units list-unit-files", r"--no-pager|--user"),
    "apt": ("list search show policy", r"--installed|--upgradable"),
    "apt-cache": ("search show policy", _NOTHING),
}
# Subcommands whose first word belongs to them.
_LONGER: dict[tuple[str, str], str] = {
    ("npm", "run"): _NOTHING,
    ("pnpm", "run"): _NOTHING,
    ("kubectl", "get"): r"-n|--namespace=.*|-A|-w|-o.*|-l",
    ("kubectl", "describe"): r"-n|--namespace=.*",
}
# Programs that hand further words to a script, which may be an interpreter: there must be none.
_NO_MORE = ("npm", "pnpm", "yarn")


# Commands ---------------------------------------------------------------------------------------


def command_scope(
    command: str,
    cwd: Place,
    root: Path,
    resolve: Callable[[str], str] = real_path,
) -> Scope:
    """The scope of a command that runs in `cwd`. `root` is the workspace, resolved. Looks words up
    in the file system: call it in a thread."""
    name = guarded_in_text(command) or (guarded_in(Path(cwd.shown)) if cwd.inside else "")
    raw = _simple_commands(command) if cwd.inside and not name else None
    inside, guarded = _look_up(raw, cwd, root, resolve) if raw else (False, "")
    programs = programs_of(command) if inside else None
    if name or (programs is not None and guarded):
        return Scope((), f"nothing more than this: {name or guarded} is asked for each time")
    if programs is None:
        scope = Scope((f"text {command}",), f"this very command, in {cwd.path}")
    else:
        parts = tuple(f"program {program}" for program in programs)
        scope = Scope(parts, f"{_covered(programs)}, in {cwd.path}")
    return _with_rule(scope, raw if raw and inside and not guarded else [], cwd)


def _covered(programs: list[str]) -> str:
    """What a grant for these programs, with their subcommands, covers."""
    alone = [f"`{name}`" for name in programs if name.split()[0] in _NO_MORE]
    others = [f"`{name}`" for name in programs if name.split()[0] not in _NO_MORE]
    texts = [f"{_listed(others)}, with other arguments in the project too"] if others else []
    texts += [f"{_listed(alone)} without further words"] if alone else []
    return ", and ".join(texts)


def _with_rule(scope: Scope, raw: list[list[str]], cwd: Place) -> Scope:
    """A scope with the rule that is offered besides, and with what else covers the command. `raw`
    are its simple commands, none if no rule can cover it. If a part of the command has no rule, the
    scope itself is offered."""
    scope = replace(scope, rule_parts=scope.parts, rule_words=scope.words)
    covered_by: list[frozenset[str]] = []
    starts: dict[str, str] = {}  # part -> words
    programs: dict[str, str] = {}
    for words in raw:
        program, offered = _program(words), offered_words(words)
        part = "" if program is None else f"program {program}"
        covered_by.append(covering_parts(words) | ({part} if part else frozenset()))
        if program in _PROGRAMS:
            programs[part] = f"`{program}`"
        elif offered is not None:
            starts[rule_part(offered)] = f"`{shlex.join(offered)}`"
    if not raw or not all(covered_by):
        return scope
    scope = replace(scope, covered_by=tuple(covered_by))
    rule = {**starts, **programs}
    if rule.keys() == set(scope.parts) or not all(rule.keys() & group for group in covered_by):
        return scope
    texts = [f"commands that start with {_listed(list(starts.values()), 'or')} and add no options"]
    if programs:
        texts.append(f"{_listed(list(programs.values()))} with other arguments in the project")
    words_of_rule = f"{', and '.join(texts if starts else texts[1:])}, in {cwd.path}"
    return replace(scope, rule_parts=tuple(rule), rule_words=words_of_rule)


def _listed(words: list[str], last: str = "and") -> str:
    return f" {last} ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)


def _look_up(
    raw: list[list[str]], cwd: Place, root: Path, resolve: Callable[[str], str]
) -> tuple[bool, str]:
    """Whether all that may be a path among the words of a command is in the workspace, and the
    first name among them that is always asked for."""
    paths = _paths(raw)
    if len(paths) > MOST_PATHS:
        return False, ""
    inside, name = True, ""
    for path in paths:
        try:
            place = Path(resolve(os.path.join(cwd.path, path)))
        except OSError:  # a link that is being replaced: where it leads is not known
            inside = False
            continue
        if place != root and root not in place.parents:
            inside = False
        else:
            name = name or guarded_in(place.relative_to(root))
    return inside, name


def programs_of(command: str) -> list[str] | None:
    """The programs of a command, with their subcommands, each once. None if it cannot be taken
    apart with certainty, or if one of its parts may do anything: then only the same text is the
    same command."""
    parts = _simple_commands(command)
    if not parts:
        return None
    found: dict[str, None] = {}
    for raw in parts:
        program = _program(raw)
        if program is None:
            return None
        found[program] = None
    return list(found)


def _simple_commands(command: str) -> list[list[str]] | None:
    """The words of each part of a command, with their quotes; None if there is anything else."""
    parts = simple_commands(command)
    return None if parts is None else [part.words for part in parts if part.words]


def _program(raw: list[str]) -> str | None:
    """Program and subcommand of a simple command; None if it is not covered by the tables."""
    program, *rest = raw
    words = [unquoted(word) for word in rest]
    if any(word.startswith("@") for word in words):  # some programs read more words from there
        return None
    if program in _PROGRAMS:
        refused = any(re.fullmatch(_PROGRAMS[program], word, re.DOTALL) for word in words)
        return None if refused else program
    if program in _RUNNERS:
        return program if _covers(_RUNNERS[program], words) else None
    if program == "git" and rest[:1] == ["--no-pager"]:
        del rest[0], words[0]
    if not rest or not PLAIN_WORD.fullmatch(rest[0]):
        return None
    names, options = _SUBCOMMANDS.get(program, ("", _NOTHING))
    length = 1
    if (program, rest[0]) in _LONGER and re.fullmatch(r"[A-Za-z0-9_][\w:.,-]*", "".join(rest[1:2])):
        options, length = _LONGER[program, rest[0]], 2
    elif rest[0] not in names.split():
        return None
    more = words[length:]
    if not _covers(options, more) or (more and program in _NO_MORE):
        return None
    return " ".join([program, *rest[:length]])


def _covers(options: str, words: list[str]) -> bool:
    """Whether all options among the words are of these."""
    return all(
        re.fullmatch(options, word, re.DOTALL) is not None
        for word in words
        if word.startswith("-") and word != "-"
    )


def _paths(raw: list[list[str]]) -> list[str]:
    """What of the words of a command may be a path: `x`, and also of `--option=x`, `-abx`, `a:x`
    and `a,x`."""
    found: list[str] = []
    for word in (unquoted(word) for part in raw for word in part):
        found += [word, *re.split(r"[=:,]", word)[1:]]
        if re.match("-[^-]", word):
            found += [word[at:] for at in range(2, min(len(word), MOST_OPTIONS))]
    return list(filter(None, found))


# Files and pages --------------------------------------------------------------------------------


def file_scope(place: Place, root: Path) -> Scope:
    """The scope of a change to a file."""
    if not place.inside:
        return outside_scope(place)
    path = Path(place.shown)
    if name := guarded_in(path):
        return Scope((), f"nothing more than this: {name} is asked for each time")
    kinds = "not .git, settings, start files, hooks, CI and instructions of agents"
    words = f"this tool on every ordinary file in {root} ({kinds})"
    folder = path.parent
    rule = f"this tool on every ordinary file in {root / folder} ({kinds})"
    return Scope(
        (ORDINARY,),
        words,
        rule_parts=(_below(folder),),
        rule_words=rule,
        covered_by=(frozenset({ORDINARY, *map(_below, path.parents)}),),
    )


def _below(folder: Path) -> str:
    return ORDINARY if folder == Path() else f"{ORDINARY} below {folder}"


def outside_scope(place: Place) -> Scope:
    """The scope of anything with a file or folder outside of the workspace."""
    where = place.path
    return Scope((), f"nothing more than this: {where} is outside of the project, asked each time")


def download_scope(server: str, place: Place) -> Scope:
    """The scope of saving something of a server as a file; `server` is its scheme, host and
    port."""
    if name := guarded_in(Path(place.shown)):
        return Scope((), f"nothing more than this: {name} is asked for each time")
    part = f"{server} {place.shown}"
    return Scope((part,), f"anything of {server}, saved as {place.shown}")


def page_scope(server: str) -> Scope:
    """The scope of fetching a page; `server` is its scheme, host and port."""
    words = f"every page of {server}"
    return Scope((server,), words, rule_parts=(server,), rule_words=words)
