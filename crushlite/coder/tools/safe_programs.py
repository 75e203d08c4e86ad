"""The programs that only read, apart from git, and which of their arguments are harmless.

What is not written down here asks: options that write (`sort -o`, `uniq IN OUT`), run something
(`sort --compress-program`, `find -exec`, `diff -l`), follow links (`grep -R`, `du -L`), wait
(`tail -f`), read further names from a file (`wc --files0-from`, `md5sum -c`) or show secrets (`ps
e`). Files and folders must be in the workspace, reached through no link, and open to tools; folders
that are closed to tools are left out of a search.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from .safe_options import DIGITS, TEXT, Options

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_PATHS = 50  # of one command


class HarmlessRun(NamedTuple):
    """How a harmless command is run."""

    words: list[str]  # the arguments of the program
    paths: list[str]  # files and folders among them, to be checked
    folders: bool = True  # whether folders are among what it takes
    walks: bool = False  # it looks into folders, and leaves out those that are closed


class Program(NamedTuple):
    """A program, and how many of which operands it takes."""

    options: Options = Options()
    operands: tuple[int, int] = (0, 0)  # at least, at most
    kind: str = "files"  # "files", "any" (files and folders), "text"
    text: str = TEXT  # what operands that are texts must match


_COUNT = rf"[-+]?{DIGITS}[kKMG]?"
_MANY = (0, MOST_PATHS)
_COLOR = {"color": "always|auto|never"}
_DIGEST = Program(Options("bt"), _MANY)
_END = Program(
    Options(
        "qv",
        {"n": _COUNT, "c": _COUNT},
        "quiet verbose",
        {"lines": _COUNT, "bytes": _COUNT},
        number=True,
    ),
    _MANY,
)
_COLUMNS = (
    "pid|ppid|pgid|sid|uid|user|ruser|group|stat|state|s|time|etime|etimes|start|stime|lstart|tty|"
    "tt|pcpu|%cpu|c|pmem|%mem|rss|vsz|sz|ni|pri|nlwp|psr|wchan|comm|ucmd|args|cmd|command"
)

PROGRAMS: dict[str, Program] = {
    "pwd": Program(Options("LP")),
    "true": Program(),
    "false": Program(),
    "date": Program(
        Options("uR", long_flags="utc universal"), (0, 1), kind="text", text=r"\+[\s\S]*"
    ),
    "whoami": Program(),
    "groups": Program(),
    "arch": Program(),
    "hostname": Program(),
    "id": Program(Options("ugGn")),
    "uname": Program(Options("asnrvmo")),
    "uptime": Program(Options("ps")),
    "nproc": Program(Options(long_flags="all")),
    "free": Program(Options("bkmght")),
    "df": Program(Options("hHTPkl")),
    "ls": Program(
        Options(
            "1aAlhtrSpFinsgGoUmxCd",
            long_flags="all almost-all human-readable reverse size classify inode full-time",
            long_values={
                **_COLOR,
                "sort": "none|size|time|version|extension",
                "time-style": "[a-z-]+",
            },
            attached="color",
        ),
        _MANY,
        kind="any",
    ),
    "cat": Program(
        Options("nbsAETetuv", long_flags="number number-nonblank squeeze-blank show-all"), _MANY
    ),
    "tac": Program(operands=_MANY),
    "rev": Program(operands=_MANY),
    **dict.fromkeys(("head", "tail"), _END),
    "wc": Program(Options("lwcmL", long_flags="lines words bytes chars max-line-length"), _MANY),
    "nl": Program(Options(values={"b": "[atn]", "w": DIGITS, "s": TEXT}), _MANY),
    "cut": Program(
        Options(
            "s",
            {"d": "[ -~]", "f": "[0-9,-]+", "c": "[0-9,-]+", "b": "[0-9,-]+"},
            "complement only-delimited",
            {"delimiter": "[ -~]", "fields": "[0-9,-]+", "characters": "[0-9,-]+"},
        ),
        _MANY,
    ),
    "sort": Program(
        Options(
            "bdfgiMhnRrVuscCmz",
            {"k": "[0-9.,a-zA-Z]+", "t": "[ -~]"},
            "numeric-sort general-numeric-sort human-numeric-sort version-sort reverse "
            "unique ignore-case ignore-leading-blanks stable check",
            {"key": "[0-9.,a-zA-Z]+", "field-separator": "[ -~]"},
        ),
        _MANY,
    ),
    "uniq": Program(
        Options(
            "cdDiuz", {"f": DIGITS, "s": DIGITS, "w": DIGITS}, "count repeated unique ignore-case"
        ),
        (0, 1),  # a second one is written
    ),
    "tr": Program(Options("cCdst"), (1, 2), kind="text"),
    "basename": Program(Options("az", {"s": TEXT}), (1, 20), kind="text"),
    "dirname": Program(Options("z"), (1, 20), kind="text"),
    "stat": Program(
        Options("t", {"c": TEXT}, "terse", {"format": TEXT}), (1, MOST_PATHS), kind="any"
    ),
    "file": Program(Options("bi", long_flags="brief mime mime-type"), (1, MOST_PATHS)),
    "diff": Program(
        Options(
            "uqsbBwiayN",
            {"U": DIGITS, "C": DIGITS, "W": DIGITS},
            "unified brief report-identical-files ignore-all-space ignore-space-change "
            "ignore-blank-lines ignore-case side-by-side text suppress-common-lines",
            {**_COLOR, "unified": DIGITS, "width": DIGITS},
            attached="color unified",
        ),
        (2, 2),
    ),
    "cmp": Program(Options("ls"), (2, 2)),
    "comm": Program(Options("123"), (2, 2)),
    "od": Program(
        Options("abcdoxv", {"A": "[doxn]", "t": "[a-z0-9]+", "N": DIGITS, "j": DIGITS}), _MANY
    ),
    "cksum": Program(operands=_MANY),
    **dict.fromkeys(("md5sum", "sha1sum", "sha224sum", "sha256sum", "sha512sum", "b2sum"), _DIGEST),
    "ps": Program(
        Options(
            "efAjlF",
            {"o": f"(?:{_COLUMNS})(?:,(?:{_COLUMNS}))*", "p": r"\d+(?:,\d+)*"},
            "no-headers forest",
            {"sort": f"[-+]?(?:{_COLUMNS})(?:,[-+]?(?:{_COLUMNS}))*", "pid": r"\d+(?:,\d+)*"},
        ),
        (0, 1),
        kind="text",
        text="a?u?x|aux[fw]?|auxww|axf",  # an `e` shows the environment of processes
    ),
}

# Programs that look into folders ------------------------------------------------------------------

_DU = Options(
    "hsckmabx",
    {"d": DIGITS},
    "human-readable summarize total all apparent-size bytes one-file-system si",
    {"max-depth": DIGITS, "exclude": TEXT},
)
_GREP = Options(
    "rnilLchHowvxyEFPGIsqabzZTU",
    {"A": DIGITS, "B": DIGITS, "C": DIGITS, "m": DIGITS, "e": TEXT},
    "recursive line-number ignore-case no-ignore-case files-with-matches files-without-match count "
    "no-filename with-filename only-matching word-regexp line-regexp invert-match extended-regexp "
    "fixed-strings perl-regexp basic-regexp no-messages quiet silent text byte-offset null",
    {
        **dict.fromkeys(("after-context", "before-context", "context", "max-count"), DIGITS),
        **dict.fromkeys(("include", "exclude", "exclude-dir", "regexp"), TEXT),
        **_COLOR,
        "binary-files": "text|binary|without-match",
    },
    number=True,
    attached="color",
)


def _du(words: list[str], closed: list[str]) -> HarmlessRun | None:
    found = _DU.sort(words)
    if found is None:
        return None
    paths = [*found.operands, *(found.behind or ())]
    left_out = [f"--exclude={name}" for name in closed]
    return HarmlessRun([*found.options, *left_out, "--", *paths], paths or ["."], walks=True)


def _grep(words: list[str], closed: list[str]) -> HarmlessRun | None:
    found = _GREP.sort(words)
    if found is None:
        return None
    operands = [*found.operands, *(found.behind or ())]
    pattern: list[str] = []
    if not found.given & {"e", "regexp"}:
        if not operands:
            return None
        pattern, operands = ["-e", operands[0]], operands[1:]
    options = [*found.options, "-D", "skip"]
    if not found.given & {"r", "recursive"}:
        return HarmlessRun([*options, *pattern, "--", *operands], operands)
    options += [f"--exclude-dir={name}" for name in closed]
    return HarmlessRun([*options, *pattern, "--", *operands], operands or ["."], walks=True)


_FIND_VALUES = {
    **dict.fromkeys(("-name", "-iname", "-path", "-ipath", "-wholename"), TEXT),
    **dict.fromkeys(("-maxdepth", "-mindepth"), DIGITS),
    **dict.fromkeys(("-mtime", "-atime", "-ctime", "-mmin", "-amin", "-cmin"), rf"[-+]?{DIGITS}"),
    "-type": "[fdlpsbc](?:,[fdlpsbc])*",
    "-size": rf"[-+]?{DIGITS}[cwbkMG]?",
}
_FIND_GLOBAL = ("-maxdepth", "-mindepth", "-xdev", "-mount")
_FIND_WORDS = {
    *("-empty", "-not", "!", "-o", "-or", "-a", "-and", "(", ")", "-print", "-print0", "-prune"),
    *("-true", "-false", "-xdev", "-mount", "-readable", "-writable", "-executable"),
}


def _find(words: list[str], closed: list[str]) -> HarmlessRun | None:
    """Folders, then tests. The folders that are closed are pruned in front of the tests; the action
    that goes without saying is then said."""
    count = next((n for n, w in enumerate(words) if w.startswith("-") or w in ("!", "(")), None)
    starts, tests = (words, []) if count is None else (words[:count], words[count:])
    at = 0
    leading = 0  # words of options at the beginning, which must stay there
    while at < len(tests):
        test = tests[at]
        if test in _FIND_VALUES:
            if at + 1 == len(tests) or not re.fullmatch(_FIND_VALUES[test], tests[at + 1]):
                return None
            length = 2
        elif test in _FIND_WORDS:
            length = 1
        else:
            return None
        if leading == at and test in _FIND_GLOBAL:
            leading = at + length
        at += length
    if not closed:
        return HarmlessRun(words, starts or ["."], walks=True)
    prune = ["(", *" -o ".join(f"-name {name}" for name in closed).split(), ")", "-prune", "-o"]
    rest = tests[leading:]
    said = [] if {"-print", "-print0"} & set(rest) else ["-print"]
    inner = ["(", *rest, ")"] if rest else []
    return HarmlessRun(
        [*starts, *tests[:leading], *prune, *inner, *said], starts or ["."], walks=True
    )


_WALKERS: dict[str, Callable[[list[str], list[str]], HarmlessRun | None]] = {
    "du": _du,
    "grep": _grep,
    "find": _find,
}

NAMES = frozenset({*PROGRAMS, *_WALKERS, "echo"})


def harmless_run(name: str, words: list[str], closed: list[str]) -> HarmlessRun | None:
    """How a program is run with these arguments; None if they are not harmless. `closed` are the
    names of the folders of the workspace that are closed to tools."""
    if name == "echo":
        return HarmlessRun(words, [])
    if name in _WALKERS:
        run = _WALKERS[name](words, closed)
        return run if run is None or len(run.paths) <= MOST_PATHS else None
    program = PROGRAMS[name]
    found = program.options.sort(words)
    if found is None:
        return None
    operands = [*found.operands, *(found.behind or ())]
    least, most = program.operands
    if not least <= len(operands) <= most:
        return None
    if program.kind == "text":
        if any(re.fullmatch(program.text, word) is None for word in operands):
            return None
        divider = ["--"] if any(word.startswith("-") for word in operands) else []
        return HarmlessRun([*found.options, *divider, *operands], [])
    divider = ["--"] if operands else []
    return HarmlessRun([*found.options, *divider, *operands], operands, program.kind == "any")
