"""The commands that run without asking: those on the list run, and all that resemble them ask."""

from __future__ import annotations

import os
import random
import re
import subprocess
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import TYPE_CHECKING, Any
from unittest import mock

from crushlite.coder.tools.safe import FOLDERS, Surroundings, environment, harmless_words
from crushlite.coder.tools.safe_git import COMMANDS as GIT_COMMANDS
from crushlite.coder.tools.safe_programs import PROGRAMS, Program
from crushlite.worktree.paths import OwnFolders
from tests.support.tools import SECRET, ToolTestCase

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
# One command in each line. The workspace has the files a.txt and src/main.py, the links out and
# src/out to a folder outside and link.txt to a file there, and the FIFO pipe.
HONEST = (HERE / "harmless_commands.txt").read_text().splitlines()
HOSTILE = (HERE / "commands_that_ask.txt").read_text().splitlines()

KEY = "the-key-of-the-user"
WHO = ("NAME", "EMAIL")
BASES = ("ls", "pwd", "echo hi", "git status")

# What means something to a shell: put after, before and between the words of a command.
TAILS = (
    *("; touch pwned", ";touch pwned", " ; touch pwned", "\ntouch pwned", "\r\ntouch pwned"),
    *("\rtouch pwned", "& touch pwned", " && touch pwned", " || touch pwned", " | tee pwned"),
    *("|tee pwned", " > pwned", ">pwned", " >> pwned", " 2>pwned", " &>pwned", " <pwned"),
    *(" $(touch pwned)", " `touch pwned`", " <(touch pwned)", " >(tee pwned)", " ${IFS}x"),
    *(" $HOME", " *", " ?", " [a-z]", " ~", " {a,b}", " !!", " !$", " \\", ' "$x"', " 'x"),
    *(" # x", "\0", " \0", "\x0b", "\x0c", "\x85", "\u2028", "\u00a0x", "\n", " '\n'", " '\x1b'"),
    *(" $'\\n'", " ^a^b", " (x)", " x=$(y)", "\u037e touch pwned", " \uff1b touch pwned"),
)
HEADS = (
    *("A=1 ", "PATH=. ", "IFS=x ", "LD_PRELOAD=./x.so ", "env ", "env A=1 ", "command ", "exec "),
    *("nohup ", "nice ", "time ", "timeout 1 ", "sudo ", "xargs ", "eval ", "sh -c ", "bash -c "),
    *("./", "../", "/bin/", "/usr/bin/", "/bin/./", "~/", "\n", "\\", "!", "(", "{ "),
    *("function ls() { x; }; ", "alias ls=x; ", ". ", "source ", "then ", "coproc ", "builtin "),
    *("\ufeff", "\u200b", "$", "'", '"', "`", "&", "|", ";", "<x ", ">x ", "#"),
)
ODD = (
    *("l\u0455", "\uff4c\uff53", "ec\u200bho hi", "g\u0456t status", "ls\u2010l", "echo \u00e9"),
    *(
        "echo " + "x" * 2000,
        "ls " * 700 + "x",
        "x" * 5000,
        "echo x\n",
        "echo x\r",
        "true;" * 9 + "ls",
    ),
    *("cat a.txt\n", "git log\n--output=pwned", "git log\t--output=pwned", "cat\n/etc/passwd"),
)


def bypasses() -> Iterator[str]:
    for base in BASES:
        yield from (base + tail for tail in TAILS)
        yield from (head + base for head in HEADS)
    yield from ODD
    yield from HOSTILE


OPERANDS = (
    *("a.txt", "src/main.py", "src", "x", "5", "always", "f", "HEAD", "oneline", "out/secret.txt"),
    *("link.txt", "pipe", "-", "--", "/etc/passwd", "../outside/secret.txt", ".", "import", "''"),
    *(".crushlite", ".crushlite/crush.json", "HEAD~1", "v1", "HEAD:a.txt", "-name", "-type"),
)


def drawn(source: random.Random) -> str:
    """A program with options, some of them cut or clustered, and operands."""
    name = source.choice([*PROGRAMS, *("grep", "find", "du"), *(f"git {c}" for c in GIT_COMMANDS)])
    options = known_options(name)
    words = [name]
    for _ in range(source.randint(0, 5)):
        kind = source.random()
        if kind < 0.35 and options:
            option = source.choice(options)
            cut = option if source.random() < 0.8 else option[:-1]
            words.append(cut + source.choice(("", "", "=1", "=always", "=x")))
        elif kind < 0.55:
            letters = "abcdefghilmnopqrstuvwxzABCDEFHLMNOPRSTUVX125"
            words.append("-" + "".join(source.choices(letters, k=source.randint(1, 3))))
        else:
            words.append(source.choice(OPERANDS))
    return " ".join(words)


def known_options(name: str) -> list[str]:
    program, _, command = name.partition(" ")
    options = GIT_COMMANDS[command].options if command else PROGRAMS.get(program, Program()).options
    long = [f"--{word}" for word in (*options.long_flags.split(), *options.long_values)]
    return [*long, *(f"-{letter}" for letter in (*options.flags, *options.values))]


class SafeTestCase(ToolTestCase):
    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        (self.root / "src").mkdir()
        (self.root / "src" / "main.py").write_text("import os\nprint(os.name)\n")
        (self.root / "a.txt").write_text("b\na\n")
        for name in ("out", "src/out"):
            os.symlink(self.outside, self.root / name)
        os.symlink(self.outside / "secret.txt", self.root / "link.txt")
        os.mkfifo(self.root / "pipe")
        for name in ("ls", "git", "echo", "cat", "sh"):  # programs of the workspace are never used
            program = self.root / name
            program.write_text("#!/bin/sh\ntouch pwned\n")
            program.chmod(0o755)
        data = self.root / ".crushlite"
        data.mkdir()
        (data / "crush.json").write_text(f"import {KEY}\n")
        self.context.own = OwnFolders(self.root, [data])
        self.context.env = {"PATH": f"{self.root}:{os.environ['PATH']}", "GIT_DIR": "/nowhere"}
        self.at = Surroundings(self.root, self.root, self.context.own, os.environ["PATH"])
        self.git("init", "-q", "-b", "main")

    def commit(self) -> None:
        """Two commits, and changes after them."""
        for number in (1, 2):
            (self.root / "a.txt").write_text(f"b\na {number}\n")
            self.git("add", "-f", "a.txt", "src", ".crushlite")
            self.git("commit", "-q", "--allow-empty", "-m", f"fix {number}")
            if number == 1:
                self.git("tag", "v1")
        (self.root / "a.txt").write_text("b\na 3\n")
        (self.root / ".crushlite" / "crush.json").write_text(f"import new {KEY}\n")

    def git(self, *words: str) -> None:
        names = {f"GIT_{who}_{what}": "Kim" for who in ("AUTHOR", "COMMITTER") for what in WHO}
        place = {"PATH": ":".join(FOLDERS), "HOME": str(self.base)}
        command = ["git", *words]
        subprocess.run(command, cwd=self.root, env={**place, **names}, check=True, timeout=60)

    async def runs_unasked(self, command: str, **arguments: str) -> str:
        asked = len(self.turn.asked)
        outcome = await self.use("bash", command=command, description="", **arguments)
        self.assertEqual(len(self.turn.asked), asked, f"{command!r} asked")
        self.assertFalse(outcome.is_error, outcome.content)
        self.assertNotIsInstance(self.turn.ran[-1], str, "a shell read the text")
        return outcome.content

    async def asks(self, command: str, **arguments: str) -> None:
        asked = len(self.turn.asked)
        outcome = await self.use("bash", command=command, description="", **arguments)
        self.assertEqual(len(self.turn.asked), asked + 1, f"{command!r} did not ask")
        self.assert_denied(outcome)


class BypassTests(SafeTestCase):
    async def test_commands_that_only_resemble_harmless_ones_ask(self) -> None:
        self.commit()
        count = 0
        for command in bypasses():
            with self.subTest(command[:80]):
                self.assertIsNone(harmless_words(command, self.at))
                if "\0" in command:
                    outcome = await self.use("bash", command=command, description="")
                    self.assert_failed(outcome, "NUL")
                else:
                    await self.asks(command)
            count += 1
        self.assertGreaterEqual(count, 1000)
        self.assertEqual(len(HOSTILE), len(set(HOSTILE)))
        self.assertEqual(self.turn.ran, [])
        self.assertFalse((self.root / "pwned").exists())

    async def test_the_same_command_asks_outside_in_the_background_and_through_a_link(self) -> None:
        for folder in ("..", str(self.outside), "out", "src/out", "/", ".crushlite"):
            await self.asks("ls", working_dir=folder)
        outcome = await self.use("bash", command="ls", description="", run_in_background=True)
        self.assert_denied(outcome)

    def test_every_single_character_beyond_the_plain_ones_asks(self) -> None:
        plain = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:=@%+,-~^;|")
        for code in (*range(1, 0x300), *range(0x2000, 0x2070), *range(0xFF00, 0xFF60)):
            character = chr(code)
            found = harmless_words(f"echo x{character}ls", self.at)
            wanted = character in plain or character in " \t"
            self.assertEqual(found is not None, wanted, repr(character))

    def test_no_option_can_be_abbreviated_and_no_letter_is_taken_on_trust(self) -> None:
        letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
        for name, program in PROGRAMS.items():
            options = program.options
            known = {*options.long_flags.split(), *options.long_values}
            operands = " a.txt" * max(1, program.operands[0])
            for option in known:
                for length in range(1, len(option)):
                    short = option[:length]
                    if short not in known:
                        for value in ("", "=1"):
                            command = f"{name} --{short}{value}{operands}"
                            self.assertIsNone(harmless_words(command, self.at), command)
            for letter in set(letters) - {*options.flags, *options.values}:
                if letter.isdigit() and options.number:
                    continue
                for cluster in (letter, *(flag + letter for flag in options.flags[:1])):
                    command = f"{name} -{cluster}{operands}"
                    self.assertIsNone(harmless_words(command, self.at), command)


class HarmlessTests(SafeTestCase):
    async def test_honest_commands_that_only_read_run_unasked_and_as_in_a_shell(self) -> None:
        self.commit()
        self.assertGreaterEqual(len(HONEST), 100)
        changing = ("ps", "date", "df", "which")
        for command in HONEST:
            with self.subTest(command):
                words = harmless_words(command, self.at)
                assert words is not None, "it asks"
                with subprocess.Popen(
                    words, cwd="/", env=environment(), stdin=DEVNULL, stdout=PIPE, stderr=PIPE
                ) as process:
                    out, errors = process.communicate(timeout=60)
                self.assertEqual((process.returncode, errors), (0, b""), command)
                self.assertNotIn(b"new " + KEY.encode(), out)
                if command.startswith(changing):
                    continue
                # The same in a shell, where it differs in nothing but what is closed to tools.
                there = {"PATH": ":".join(FOLDERS), "LC_ALL": "C.UTF-8", "HOME": str(self.base)}
                expected = subprocess.run(
                    ["bash", "-c", command],
                    cwd=self.root,
                    env=there,
                    stdin=DEVNULL,
                    capture_output=True,
                    timeout=60,
                ).stdout
                if ".crushlite" not in expected.decode() and not command.startswith("du"):
                    # What is not committed yet is blamed on this very second.
                    out, expected = (
                        re.sub(rb"\d\d:\d\d:\d\d", b"", each) for each in (out, expected)
                    )
                    self.assertEqual(out, expected)

    def test_ls_of_a_folder_is_decided_by_one_look_at_it(self) -> None:
        """A second look could find nothing, and leave the folder's name to `ls`, which follows a
        link that takes its place."""
        folder, real = self.root / "flip", os.path.realpath
        folder.mkdir()

        def vanishes(path: Any, *, strict: bool = False) -> str:
            found = real(path, strict=strict)
            if found == str(folder) and folder.exists():
                folder.rmdir()
            return str(found)

        with mock.patch.object(os.path, "realpath", vanishes):
            words = harmless_words("ls flip", self.at)
        assert words is not None
        self.assertIn(str(folder), words)
        self.assertNotIn("flip", words)
        folder.write_text("")
        words = harmless_words("ls flip", self.at)
        assert words is not None
        self.assertEqual(words[-4:], ["ls", "-d", "--", "flip"], "as itself, also if a link comes")

    async def test_they_run_through_the_tool_without_a_question(self) -> None:
        self.commit()
        self.assertIn(f"{self.root}\n\n<cwd>", await self.runs_unasked("pwd"))
        self.assertIn("hi a=b %s\n", await self.runs_unasked("echo hi a=b %s"))
        self.assertIn("main.py", await self.runs_unasked("ls\t-la\tsrc/"))
        self.assertIn("main.py", await self.runs_unasked("ls -1", working_dir="src"))
        self.assertIn("3\n", await self.runs_unasked("git rev-list HEAD | wc -l; echo 3"))
        self.assertIn("fix 2", await self.runs_unasked("git log --oneline", working_dir="src"))
        self.assertIn(f"{self.root}/git\n", await self.runs_unasked("which git"))
        self.assertFalse((self.root / "pwned").exists())

    async def test_absolute_paths_inside_count_and_paths_outside_do_not(self) -> None:
        self.assertIn("b\n", await self.runs_unasked(f"cat {self.root}/a.txt"))
        await self.asks(f"cat {self.outside}/secret.txt")
        await self.asks(f"cat {self.root}/link.txt")
        await self.asks(f"cat {self.root}-2/a.txt")

    async def test_what_is_closed_to_tools_is_not_read(self) -> None:
        self.commit()
        secret = f"new {KEY}"
        os.link(self.root / ".crushlite" / "crush.json", self.root / "hard.txt")
        deep = self.root / ".crushlite" / "a" / "b" / "c"
        deep.mkdir(parents=True)
        (deep / "d.txt").write_text("deep")
        for command in (
            *("cat hard.txt", "grep import hard.txt", "cat .crushlite/a/b/c/d.txt"),
            *("git blame .crushlite/crush.json", "git blame -- ./.Crushlite/crush.json"),
        ):
            await self.asks(command)
        (self.root / "hard.txt").unlink()
        for command in ("grep -rn import", "grep -rn import . src", "git grep import", "git diff"):
            self.assertNotIn(secret, await self.runs_unasked(command))
        for command in ("find .", "find . -print", "find . -name '*.json' -o -type f", "du -a"):
            self.assertNotIn(".crushlite", await self.runs_unasked(command), command)

    async def test_a_link_that_is_put_there_after_the_check_makes_it_fail(self) -> None:
        for command, name in (("cat a.txt", "a.txt"), ("ls src", "src"), ("wc src/main.py", "src")):
            words = harmless_words(command, self.at)
            assert words is not None
            os.rename(self.root / name, self.root / f"{name}.old")
            os.symlink(self.outside / "secret.txt", self.root / name)
            ended = subprocess.run(words, capture_output=True, cwd="/", timeout=60)
            self.assertNotEqual(ended.returncode, 0)
            self.assertEqual(ended.stdout, b"")
            self.assertIn(b"link", ended.stderr)
            (self.root / name).unlink()
            os.rename(self.root / f"{name}.old", self.root / name)

    async def test_drawn_arguments_read_nothing_outside_and_change_nothing(self) -> None:
        """Files are named like values and options are cut and clustered: whatever a program takes
        for a file, nothing that is outside or closed is shown."""
        self.commit()
        for name in ("always", "x", "5", "f", "HEAD", "oneline"):
            os.symlink(self.outside / "secret.txt", self.root / name)
        before = self.picture()
        source = random.Random(14)
        ran = 0
        for _ in range(400):
            command = drawn(source)
            words = harmless_words(command, self.at)
            if words is None:
                continue
            ran += 1
            ended = subprocess.run(
                words, cwd="/", env=environment(), stdin=DEVNULL, capture_output=True, timeout=60
            )
            for secret in (SECRET, f"new {KEY}", "root:x:0"):
                self.assertNotIn(secret.encode(), ended.stdout + ended.stderr, command)
        self.assertGreater(ran, 40)
        self.assertEqual(self.picture(), before)

    def picture(self) -> set[tuple[str, int, int]]:
        """All files with their times and sizes."""
        found = [(path, path.lstat()) for path in self.base.rglob("*")]
        return {(str(path), info.st_mtime_ns, info.st_size) for path, info in found}

    async def test_no_file_can_be_written_even_if_a_program_tried(self) -> None:
        words = harmless_words("echo x", self.at)
        assert words is not None
        at = words.index("/usr/bin/echo")
        tried = [*words[:at], "/bin/sh", "sh", "-c", "echo x > pwned"]
        ended = subprocess.run(tried, capture_output=True, cwd="/", timeout=60)
        self.assertNotEqual(ended.returncode, 0)
        self.assertEqual((self.root / "pwned").read_text(), "")

    async def test_a_pipe_that_is_read_no_longer_ends_what_writes_to_it(self) -> None:
        (self.root / "a.txt").write_text("x\n" * 200_000)
        content = await self.runs_unasked("cat a.txt | head -1")
        self.assertTrue(content.startswith("x\n\n<cwd>"), content[:200])
