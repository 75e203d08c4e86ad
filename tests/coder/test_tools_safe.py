"""The commands that run without asking: those on the list run, and all that resemble them ask."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

from crushlite.coder.tools.safe import harmless_words
from tests.support.tools import ToolTestCase

if TYPE_CHECKING:
    from collections.abc import Iterator

BASES = ("ls", "pwd", "echo hi", "git status")

# What means something to a shell: put after, before and between the words of a command.
TAILS = (
    *("; touch pwned", ";touch pwned", " ; touch pwned", "\ntouch pwned", "\r\ntouch pwned"),
    *("\rtouch pwned", "& touch pwned", " && touch pwned", " || touch pwned", " | tee pwned"),
    *("|tee pwned", " > pwned", ">pwned", " >> pwned", " 2>pwned", " &>pwned", " <pwned"),
    *(" $(touch pwned)", " `touch pwned`", " <(touch pwned)", " >(tee pwned)", " ${IFS}x"),
    *(" $HOME", " *", " ?", " [a-z]", " ~", " {a,b}", " !!", " !$", " \\", " 'x'", ' "x"'),
    *(" # x", "\0", " \0", "\x0b", "\x0c", "\x85", "\u2028", "\u00a0x", " ", "\n", "\t", "  x"),
    *(" \t x", " $'\\n'", " ^a^b", " (x)", " x=$(y)", "\u037e touch pwned", " \uff1b touch pwned"),
)
HEADS = (
    *("A=1 ", "PATH=. ", "IFS=x ", "LD_PRELOAD=./x.so ", "env ", "env A=1 ", "command ", "exec "),
    *("nohup ", "nice ", "time ", "timeout 1 ", "sudo ", "xargs ", "eval ", "sh -c ", "bash -c "),
    *("./", "../", "/bin/", "/usr/bin/", "/bin/./", "~/", " ", "\t", "\n", "\\", "!", "(", "{ "),
    *("function ls() { x; }; ", "alias ls=x; ", ". ", "source ", "then ", "coproc ", "builtin "),
    *("\ufeff", "\u200b", "$", "'", '"', "`", "&", "|", ";", "<x ", ">x ", "#"),
)
ONE_BY_ONE = (
    # programs that are not on the list, or only look like one of it
    *("cat a.txt", "head a.txt", "find .", "find . -exec touch pwned +", "sort -o pwned a.txt"),
    *("sort --compress-program=x a", "env", "xargs touch", "rg --pre x y", "tree -o pwned"),
    *("file -C -m x", "tee pwned", "touch pwned", "rm a.txt", "cp a b", "ln -s / x", "awk x"),
    *("python x.py", "perl x", "vi", "less a.txt", "man x", "printf x", "test -e x", "true"),
    *("hostname evil", "date -s 12:00", "date -f a.txt", "date --file=a.txt", "date -r a.txt"),
    *(
        "whoami x",
        "id root",
        "id --help",
        "uname x",
        "pwd x",
        "pwd --help",
        "LS",
        "Ls",
        "Git status",
    ),
    *("l\u0455", "\uff4c\uff53", "ec\u200bho hi", "g\u0456t status", "ls\u2010l", "echo \u00e9"),
    *("ls=x", "echo=1 x", "pwd=", "ls:", "ls,", "ls.", "ls%", "ls+", "ls@", "-ls", "ls-", "_"),
    # ls elsewhere, or more than a listing
    *("ls ..", "ls ../outside", "ls /", "ls /etc", "ls src/..", "ls src/../..", "ls ./../outside"),
    *("ls out", "ls out/", "ls src/out", "ls a.txt", "ls none", "ls src src", "ls src out"),
    *("ls -R", "ls -lR", "ls -L out", "ls -H out", "ls -lL", "ls -d out", "ls --recursive"),
    *(
        "ls --dereference",
        "ls --help",
        "ls --color=always",
        "ls --",
        "ls -- out",
        "ls -",
        "ls -I x",
    ),
    *("ls -w 1", "ls -T1", "ls --hyperlink", "ls -Z", "ls //etc", "ls .//..//outside", "ls ./.."),
    # commands of git that do more than show something
    *("git", "git log", "git diff", "git show", "git add .", "git commit -m x", "git push"),
    *("git -c core.fsmonitor=./x status", "git -c alias.status=!x status", "git -C .. status"),
    *("git --git-dir=evil status", "git --git-dir evil status", "git --exec-path=. status"),
    *("git --work-tree=.. status", "git -p status", "git --paginate status", "git --help"),
    *("git status --help", "git status src", "git status ..", "git status -v", "git status -vv"),
    *("git status --show-stash", "git status --porcelain=v2", "git status -s -s", "git status -bs"),
    *("git branch", "git branch -D x", "git branch x", "git branch --show-current x", "git st"),
    *("git branch --edit-description", "git config -l", "git stash", "git fetch", "git grep x"),
    *("git ls-files", "git rev-parse HEAD", "git -c x=y branch --show-current", "git version"),
    # size and shape
    *("echo " + "x" * 2000, "ls " * 400 + "x", "echo" + " x" * 1000, "x" * 5000, "echo\t\tx"),
    *("echo  x", "echo \tx", "echo x ", "echo x\t", " echo x", "\techo x", "echo x\n", "echo x\r"),
)


def bypasses() -> Iterator[str]:
    for base in BASES:
        yield from (base + tail for tail in TAILS)
        yield from (head + base for head in HEADS)
    yield from ONE_BY_ONE


class SafeTestCase(ToolTestCase):
    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        (self.root / "src").mkdir()
        (self.root / "src" / "main.py").write_text("")
        (self.root / "a.txt").write_text("")
        for name in ("out", "src/out"):
            os.symlink(self.outside, self.root / name)
        for name in ("ls", "git", "echo"):  # programs of the workspace are never used
            program = self.root / name
            program.write_text("#!/bin/sh\ntouch pwned\n")
            program.chmod(0o755)
        self.context.env = {"PATH": f"{self.root}:{os.environ['PATH']}", "GIT_DIR": "/nowhere"}
        self.git("init", "-q", "-b", "main")

    def git(self, *words: str) -> None:
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(self.base)}
        command = ["git", *words]
        subprocess.run(command, cwd=self.root, env=environment, check=True, timeout=60)

    async def runs_unasked(self, command: str, **arguments: str) -> str:
        asked = len(self.turn.asked)
        outcome = await self.use("bash", command=command, description="", **arguments)
        self.assertEqual(len(self.turn.asked), asked, f"{command!r} asked")
        self.assertFalse(outcome.is_error, outcome.content)
        self.assertNotIsInstance(self.turn.ran[-1], str, "a shell was used")
        return outcome.content

    async def asks(self, command: str, **arguments: str) -> None:
        asked = len(self.turn.asked)
        outcome = await self.use("bash", command=command, description="", **arguments)
        self.assertEqual(len(self.turn.asked), asked + 1, f"{command!r} did not ask")
        self.assert_denied(outcome)


class BypassTests(SafeTestCase):
    async def test_commands_that_only_resemble_harmless_ones_ask(self) -> None:
        count = 0
        for command in bypasses():
            with self.subTest(command[:80]):
                self.assertIsNone(harmless_words(command, self.root))
                if "\0" in command:
                    outcome = await self.use("bash", command=command, description="")
                    self.assert_failed(outcome, "NUL")
                else:
                    await self.asks(command)
            count += 1
        self.assertGreaterEqual(count, 400)
        self.assertEqual(self.turn.ran, [])
        self.assertFalse((self.root / "pwned").exists())

    async def test_the_same_command_asks_outside_in_the_background_and_through_a_link(self) -> None:
        for folder in ("..", str(self.outside), "out", "src/out", "/"):
            await self.asks("ls", working_dir=folder)
        outcome = await self.use("bash", command="ls", description="", run_in_background=True)
        self.assert_denied(outcome)

    async def test_every_single_character_beyond_the_plain_ones_asks(self) -> None:
        plain = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:=@%+,-")
        for code in (*range(1, 0x300), *range(0x2000, 0x2070), *range(0xFF00, 0xFF60)):
            character = chr(code)
            found = harmless_words(f"echo x{character}y", self.root)
            wanted = character in plain or character in " \t"
            self.assertEqual(found is not None, wanted, repr(character))


class HarmlessTests(SafeTestCase):
    async def test_the_harmless_ones_run_unasked_and_without_a_shell(self) -> None:
        self.assertIn(f"{self.root}\n\n<cwd>", await self.runs_unasked("pwd"))
        self.assertIn("hi a=b %s\n", await self.runs_unasked("echo hi a=b %s"))
        self.assertIn("main.py", await self.runs_unasked("ls src"))
        self.assertIn("main.py", await self.runs_unasked("ls\t-la\tsrc/"))
        self.assertIn("main.py", await self.runs_unasked("ls -1", working_dir="src"))
        self.assertIn("a.txt", await self.runs_unasked("ls ."))
        for command in ("ls", "ls -l -a", "date", "whoami", "id -un", "uname -a", "date -u"):
            self.assertNotIn("Exit code", await self.runs_unasked(command))
        self.assertFalse((self.root / "pwned").exists())

    async def test_harmless_git_commands_run_unasked(self) -> None:
        self.assertIn("a.txt", await self.runs_unasked("git status"))
        self.assertIn("?? a.txt", await self.runs_unasked("git status -s"))
        self.assertIn("## No commits yet on main", await self.runs_unasked("git status -sb"))
        self.assertIn("?? a.txt", await self.runs_unasked("git status --porcelain"))
        self.assertIn("main\n", await self.runs_unasked("git branch --show-current"))

    async def test_a_repository_that_could_run_something_asks(self) -> None:
        config = self.root / ".git" / "config"
        plain = config.read_text()
        for addition in (
            "[core]\n\tfsmonitor = ./x\n",
            "[core] fsmonitor = ./x\n",
            "[CORE]\n\tfsmonitor = ./x\n",
            "\tworktree = ..\n",
            "[include]\n\tpath = ../evil\n",
            '[includeIf "gitdir:/"]\n\tpath = ../evil\n',
            '[filter "x"]\n\tclean = ./x\n',
            '[diff "x"]\n\ttextconv = ./x\n',
            "[user]\n\tname = a \\\n[core]\n",
            '[submodule "x"]\n\tupdate = !x\n',
            "[alias]\n\tstatus = !x\n",
            '[remote "o"]\n\tpromisor = true\n',
            "[extensions]\n\tworktreeConfig = true\n",
            "# a comment is a doubt, too\n",
            "x" * 70_000,
        ):
            with self.subTest(addition[:40]):
                config.write_text(plain + addition)
                await self.asks("git status")
        config.write_text(plain + '[remote "o"]\n\turl = x\n\n[branch "main"]\n\tremote = o\n')
        await self.runs_unasked("git status")
        config.write_bytes(b"\xff")
        await self.asks("git status")

    async def test_a_strange_git_folder_asks(self) -> None:
        folder = self.root / ".git"
        for name in ("commondir", "config.worktree", "rebase-merge", "modules", "evil"):
            with self.subTest(name):
                (folder / name).write_text("../evil")
                await self.asks("git status")
                (folder / name).unlink()
        os.rename(folder / "config", self.base / "config")
        os.symlink(self.base / "config", folder / "config")
        await self.asks("git status")
        (folder / "config").unlink()
        await self.asks("git status")
        os.rename(folder, self.base / "git")
        await self.asks("git status")
        (self.root / ".git").write_text(f"gitdir: {self.base / 'git'}\n")
        await self.asks("git status")
        (self.root / ".git").unlink()
        os.symlink(self.base / "git", self.root / ".git")
        await self.asks("git status")
        await self.asks("git status", working_dir="src")

    async def test_nothing_of_the_repository_is_executed(self) -> None:
        trap = self.root / "trap"
        trap.write_text("#!/bin/sh\ntouch pwned\n")
        trap.chmod(0o755)
        hooks = self.root / ".git" / "hooks"
        hooks.mkdir(exist_ok=True)
        for name in ("post-index-change", "fsmonitor-watchman", "query-watchman"):
            (hooks / name).write_text(f"#!/bin/sh\ntouch {self.root}/pwned\n")
            (hooks / name).chmod(0o755)
        (self.root / ".gitattributes").write_text("* filter=evil diff=evil\n")
        (self.base / ".gitconfig").write_text(f"[core]\n\tfsmonitor = {trap}\n")
        self.git("add", "a.txt")
        (self.root / "pwned").unlink(missing_ok=True)
        (self.root / "a.txt").write_text("changed")
        await self.runs_unasked("git status")
        self.assertFalse((self.root / "pwned").exists())
