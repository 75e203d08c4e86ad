r"""Rules for commands: "commands that start with `npm test`".

A rule is compared word by word, after the text has been taken apart (shellwords.py), never by the
beginning of the text. It covers the words that it names, followed by any number of words that are
neither options nor assignments, addresses or references to files with further words: what could
change what the program does must have been shown. Each simple command of a line needs a rule that
covers it.

There is no such rule for a command that can do anything, whatever its first words are: shells,
interpreters, programs that run others, that reach the network or remove and overwrite files, the
shell's own commands, assignments. Only the very same text is the same command there.
"""

from __future__ import annotations

import re
import shlex

from .shellwords import PLAIN_WORD, unquoted

MOST_WORDS = 20
MOST_CHARS = 300

_ANYTHING = """
    sh bash dash zsh ksh mksh csh tcsh fish ash busybox toybox pwsh powershell nu elvish xonsh
    python pypy ipython jupyter node nodejs deno bun tsx ts-node perl ruby irb php lua luajit tclsh
    wish expect rscript julia ghci runghc runhaskell scala groovy jshell java osascript awk gawk
    mawk nawk env xargs parallel sudo doas su runuser pkexec ssh nohup nice ionice timeout stdbuf
    setsid flock strace ltrace gdb lldb systemd-run chroot unshare nsenter bwrap firejail eval
    guile sbcl clisp racket clojure clj bb ocaml elixir iex erl escript qjs gjs octave taskset chrt
    numactl prlimit cpulimit setarch linux32 linux64 faketime fakeroot proot gosu su-exec setpriv
    capsh runcon unbuffer rlwrap valgrind hyperfine proxychains torsocks sshpass cross-env run-parts
    pythonw run0 sudo-rs xvfb-run dbus-run-session start-stop-daemon busybox.static
"""
_MORE = """
    if then else elif fi for while until do done case esac select function time coproc in exec
    command builtin source . : cd pushd popd dirs umask ulimit hash enable read mapfile readarray
    let test export declare local readonly typeset set unset shopt alias unalias trap bind complete
    getopts shift return break continue wait jobs fg bg disown suspend logout exit printf
    sed ed ex vi vim nvim emacs nano less more man info find fd watch entr at batch crontab tmux
    screen script perf dd rm rmdir unlink shred truncate mv cp ln install chmod chown chgrp chattr
    setfacl tee kill pkill killall mount umount curl wget aria2c http https nc ncat netcat socat
    telnet ftp sftp scp rsync rclone mail sendmail docker podman nerdctl kubectl oc helm systemctl
    service launchctl apt apt-get dnf yum pacman brew snap flatpak pip pip3 pipx gem
    arch caffeinate chronic retry sg newgrp direnv dotenv doppler op conda mamba micromamba rustup
    nix lxc incus vagrant adb mosh sqlite psql mysql mariadb pm2 forever nodemon m4 bc dc gnuplot
"""
_RUNS_ANYTHING = frozenset(_ANYTHING.split())
_NEVER = _RUNS_ANYTHING | frozenset(_MORE.split())
# Of git only these: others set what it runs, or run something themselves.
_GIT = """
    add commit push pull fetch checkout switch restore merge stash tag branch status log diff show
    rm mv cherry-pick revert reset
"""
# Programs whose subcommand is one word, and whose further words are not subcommands themselves.
_NPM = "test t lint build check format"
_ONE_WORD = {
    "git": _GIT,
    **dict.fromkeys(("npm", "pnpm", "yarn"), _NPM),
    "cargo": "build check test clippy doc fmt bench",
    "go": "build test vet fmt list",
    "ruff": "check format",
}
# Any word that follows these is a target or a task.
_TARGETS = frozenset({"make", "gmake", "ninja", "just", "rake", "gradle", "gradlew", "mvn", "mvnw"})
# The word after these says what is done or run.
_LAUNCHERS = frozenset(
    {"run", "run-script", "exec", "x", "dlx", "tool", "task", "compose", "stash"}
)
# Their further words are code from elsewhere.
_INSTALLERS = frozenset({"install", "i", "add", "get", "link", "global", "publish", "update", "up"})
_SUBCOMMAND = re.compile(r"[a-z][a-z0-9-]*")


def rule_part(words: list[str]) -> str:
    """The part of a grant that covers commands with these first words."""
    return f"starts with {shlex.join(words)}"


def covering_parts(raw: list[str]) -> frozenset[str]:
    """The rules that cover a simple command, whose words have their quotes: none for a command that
    can do anything."""
    words = _ruled(raw)
    fixed = _fixed(words)
    return frozenset(rule_part(words[:count]) for count in range(max(fixed, 1), len(words) + 1))


def offered_words(raw: list[str]) -> list[str] | None:
    """The first words of the rule to offer for a simple command: program and subcommands, and
    everything up to the last option with a value that it may have. If options come first, the
    subcommand may be the word after that. None if there is no rule."""
    words = _ruled(raw)
    if len(words) < 2:  # of a program alone it is not known what its words mean
        return None
    count = _subcommands(words)
    options = [at for at, word in enumerate(words) if at and _is_bound(word)]
    if options:
        count = max(count, options[-1] + (3 if options[0] == 1 else 2))
    wanted = words[:count]
    return wanted if count and len(shlex.join(wanted)) <= MOST_CHARS else None


def _subcommands(words: list[str]) -> int:
    """How many words a program and its subcommands are; zero if there is no rule for it. Of an
    unknown program all words that could be subcommands count: `gh pr view` is not `gh pr merge`."""
    program, first = _name(words[0]), words[1]
    if first in _LAUNCHERS:
        return 3 if len(words) > 2 else 0
    if program != "git" and first in _INSTALLERS:
        return 0
    if program in _TARGETS or first in _ONE_WORD.get(program, "").split():
        return 2
    count = 1
    while count < len(words) and _SUBCOMMAND.fullmatch(words[count]):
        count += 1
    return max(count, 2)


def _ruled(raw: list[str]) -> list[str]:
    """The words of a command for which there may be a rule, without quotes; none for another."""
    words = [unquoted(word) for word in raw]
    if not words or len(words) > MOST_WORDS or not PLAIN_WORD.fullmatch(raw[0]):
        return []
    if "=" in words[0] or words[0].startswith("-") or _name(words[0]) in _NEVER:
        return []
    if any(_name(word) in _RUNS_ANYTHING for word in words[1:]):
        return []
    if _name(words[0]) == "git" and (len(words) < 2 or words[1] not in _GIT.split()):
        return []
    return words


def _fixed(words: list[str]) -> int:
    """How many of the words a rule must name: all up to the last one that may change what the
    program does."""
    return max((at + 1 for at, word in enumerate(words) if at and _is_bound(word)), default=1)


def _is_bound(word: str) -> bool:
    """Whether a word may be an option, an assignment, an address or a file with further words."""
    return not word or word[0] in "-+@" or any(c in word for c in "=:@")


def _name(word: str) -> str:
    """The name of a program, without folder, version and the letter of GNU: python for
    /usr/bin/python3.11, sed for gsed."""
    name = word.rpartition("/")[2].casefold().removesuffix(".exe").removesuffix("-dbg")
    if name not in _NEVER:  # as m4 is
        name = re.sub(r"(?<=[a-z])[-.]?\d[\d.]*$", "", name)
    # `gtimeout` is `timeout` where another one belongs to the system.
    return name[1:] if name.startswith("g") and name[1:] in _NEVER else name
