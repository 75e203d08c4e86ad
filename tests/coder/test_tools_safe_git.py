"""Git in a hostile repository: permission is asked, and were it not, nothing of it would run."""

from __future__ import annotations

import os
import re
import subprocess

from crushlite.coder.tools.safe import FOLDERS, environment
from crushlite.coder.tools.safe_git import harmless_arguments
from crushlite.coder.tools.safe_repository import is_plain_repository
from crushlite.coder.tools.shellwords import simple_commands, unquoted
from tests.coder.test_tools_safe import HONEST, SafeTestCase

GIT = [line for line in HONEST if line.startswith("git ")]

# A hostile configuration. TRAP is a folder of programs that leave a mark with their name.
CONFIG = r"""
[core]
	fsmonitor = TRAP/fsmonitor
	hooksPath = TRAP/hooks
	pager = TRAP/pager
	editor = TRAP/editor
	sshCommand = TRAP/ssh
	askPass = TRAP/askpass
	gitProxy = TRAP/proxy
	alternateRefsCommand = TRAP/alternates
	attributesFile = TRAP/../secret-attributes
	excludesFile = TRAP/../secret-excludes
	worktree = /
[diff]
	external = TRAP/external
	submodule = log
	orderFile = TRAP/../secret-order
	ignoreSubmodules = none
[diff "evil"]
	command = TRAP/driver
	textconv = TRAP/textconv
	cachetextconv = true
[merge "evil"]
	driver = TRAP/merge %A
[log]
	showSignature = true
	diffMerges = remerge
	mailmap = true
[format]
	pretty = %G? %H
[pretty]
	oneline = %G? evil
	short = %G? evil
[gpg]
	program = TRAP/gpg
[gpg "ssh"]
	program = TRAP/gpg
[gpg "x509"]
	program = TRAP/gpg
[pager]
	log = TRAP/pager
	diff = TRAP/pager
	show = TRAP/pager
	status = TRAP/pager
	branch = TRAP/pager
	blame = TRAP/pager
	grep = TRAP/pager
[alias]
	log = !TRAP/alias
	status = !TRAP/alias
	diff = !TRAP/alias
	ls-files = !TRAP/alias
[interactive]
	diffFilter = TRAP/filter
[mailmap]
	file = TRAP/../secret-mailmap
[submodule]
	recurse = true
[status]
	submoduleSummary = true
[credential]
	helper = !TRAP/credential
[protocol]
	allow = always
[protocol "ext"]
	allow = always
[extensions]
	partialClone = evil
[remote "evil"]
	url = ext::TRAP/remote
	promisor = true
	uploadpack = TRAP/uploadpack
	vcs = evil
[include]
	path = TRAP/../more-config
[help]
	autocorrect = immediate
[grep]
	fallbackToNoIndex = true
[sequence]
	editor = TRAP/editor
"""
SECRETS = ("attributes", "excludes", "order", "mailmap")
SIGNED = """tree {tree}
parent {parent}
author Kim <kim> 1700000000 +0000
committer Kim <kim> 1700000000 +0000
gpgsig -----BEGIN PGP SIGNATURE-----
 evil
 -----END PGP SIGNATURE-----

signed
"""


class HostileRepository(SafeTestCase):
    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        self.commit()
        self.fired = self.base / "fired"
        self.traps = self.base / "traps"
        for folder in (self.fired, self.traps, self.traps / "hooks"):
            folder.mkdir()
        for name in re.findall(r"TRAP/([a-z]+)", CONFIG):
            if name != "hooks":
                self.trap(name)
        for name in ("post-index-change", "pre-commit", "reference-transaction", "post-checkout"):
            self.trap(f"hooks/{name}")
        for name in SECRETS:
            (self.base / f"secret-{name}").write_text("TOPSECRET")
        (self.base / "more-config").write_text(f"[core]\n\tfsmonitor = {self.traps}/fsmonitor\n")

    def trap(self, name: str) -> None:
        mark = name.replace("/", "-")
        (self.traps / name).write_text(f"#!/bin/sh\ntouch {self.fired}/{mark}\nexit 0\n")
        (self.traps / name).chmod(0o755)

    def arm(self) -> None:
        """Make the repository hostile: its history first, then its configuration."""
        self.git("checkout", "-q", "-f", "-b", "side", "HEAD~1")
        (self.root / "a.txt").write_text("side\n")
        self.git("commit", "-qam", "side")
        self.git("checkout", "-q", "main")
        self.git("merge", "-q", "--no-edit", "-s", "ours", "side")
        sub = self.root / "sub"
        sub.mkdir()
        self.git("init", "-q", "sub")
        self.git("-C", "sub", "commit", "-q", "--allow-empty", "-m", "sub")
        self.git("add", "sub")
        self.git("commit", "-qm", "with a submodule")
        self.git("-C", "sub", "commit", "-q", "--allow-empty", "-m", "more")
        tree = self.output("rev-parse", "HEAD^{tree}")
        parent = self.output("rev-parse", "HEAD")
        text = SIGNED.format(tree=tree, parent=parent)
        commit = self.output("hash-object", "-t", "commit", "-w", "--stdin", given=text)
        self.git("update-ref", "refs/heads/main", commit)
        (self.root / "a.txt").write_text("changed again\n")
        (self.root / ".gitattributes").write_text("* diff=evil merge=evil\n")
        with open(self.root / ".git" / "config", "a") as file:
            file.write(CONFIG.replace("TRAP", str(self.traps)))
        with open(sub / ".git" / "config", "a") as file:
            file.write(f"[core]\n\tfsmonitor = {self.traps}/fsmonitor\n")

    def output(self, *words: str, given: str = "") -> str:
        there = {"PATH": ":".join(FOLDERS), "HOME": str(self.base)}
        command = ["git", *words]
        found = subprocess.run(
            command,
            cwd=self.root,
            env=there,
            input=given,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return found.stdout.strip()

    def marks(self) -> set[str]:
        return set(os.listdir(self.fired))

    def commands(self) -> list[list[str]]:
        """The arguments of each git command among the honest ones."""
        parts = [part for line in GIT for part in simple_commands(line) or ()]
        used = [part.words[1:] for part in parts if part.words[:1] == ["git"]]
        return [[unquoted(word) for word in words] for words in used]

    def run_git(self, arguments: list[str], env: dict[str, str]) -> bytes:
        """All that git writes. How it ends does not matter."""
        found = subprocess.run(
            ["git", *arguments],
            cwd=self.root,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
        )
        return found.stdout + found.stderr

    def lose(self) -> list[list[str]]:
        """Remove an object; returns commands that need it, and would have it fetched."""
        blob = self.output("rev-parse", "HEAD:a.txt")
        (self.root / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
        return [["show", "HEAD:a.txt"], ["diff", "HEAD"], ["cat-file", "-p", blob]]

    async def test_plain_git_would_run_what_the_repository_names(self) -> None:
        """The traps work: else the tests below would show nothing."""
        self.arm()
        there = {"PATH": ":".join(FOLDERS), "HOME": str(self.base), "GIT_WORK_TREE": "."}
        for words in (*self.commands(), *self.lose()):
            self.run_git(words, there)
        wanted = {"fsmonitor", "hooks-post-index-change", "driver", "textconv", "gpg", "remote"}
        self.assertEqual(wanted - self.marks(), set(), f"only these ran: {self.marks()}")

    async def test_all_of_it_asks(self) -> None:
        self.arm()
        self.assertFalse(is_plain_repository(self.root / ".git"))
        for line in GIT:
            await self.asks(line)
        self.assertEqual(self.marks(), set())

    async def test_and_with_our_options_nothing_runs_and_nothing_outside_is_shown(self) -> None:
        self.arm()
        commands = self.commands()
        self.assertGreaterEqual(len(commands), 60)
        for missing in (False, True):
            for words in self.lose() if missing else commands:
                arguments = harmless_arguments(words, self.root, self.root, [])
                assert arguments is not None, words
                shown = self.run_git(arguments, environment())
                with self.subTest(words):
                    self.assertEqual(self.marks(), set())
                    self.assertNotIn(b"TOPSECRET", shown)

    async def test_filters_and_every_other_setting_that_is_not_known_ask(self) -> None:
        config = self.root / ".git" / "config"
        plain = config.read_text()
        for addition in (
            "[core]\n\tfsmonitor = ./x\n",
            "[core] fsmonitor = ./x\n",
            "[CORE]\n\tfsmonitor = ./x\n",
            "[core]\n\tFsMonitor = ./x\n",
            "[core]\n\tfsmonitor=./x\n",
            "[core]\n\tbare\n",
            "\tworktree = ..\n",
            "[include]\n\tpath = ../evil\n",
            '[includeIf "gitdir:/"]\n\tpath = ../evil\n',
            '[filter "x"]\n\tclean = ./x\n',
            '[filter "x"]\n\tprocess = ./x\n',
            "[filter.x]\n\tclean = ./x\n",
            '[diff "x"]\n\ttextconv = ./x\n',
            '[diff "x"]\n\trenames = true\n',
            "[diff]\n\texternal = ./x\n",
            '[merge "x"]\n\tdriver = ./x\n',
            "[user]\n\tname = a \\\n[core]\n",
            '[user]\n\tname = "a\\\n',
            "[user]\n\tname = a\r[core]\r\tfsmonitor = ./x\n",
            '[submodule "x"]\n\tupdate = !x\n',
            "[alias]\n\tstatus = !x\n",
            '[remote "o"]\n\tpromisor = true\n',
            '[remote "o"]\n\tvcs = x\n',
            "[extensions]\n\tworktreeConfig = true\n",
            "[log]\n\tshowSignature = true\n",
            "[gpg]\n\tprogram = ./x\n",
            "[mailmap]\n\tfile = /etc/passwd\n",
            "[blame]\n\tignoreRevsFile = /etc/passwd\n",
            "x" * 70_000,
        ):
            with self.subTest(addition[:40]):
                config.write_text(plain + addition)
                await self.asks("git status")
        config.write_text(
            plain + '# mine\n[remote "o"]\n\turl = x\n\tfetch = +refs/*:refs/*\n\n'
            '[branch "main"]\n\tremote = o\n\tvscode-merge-base = origin/main\n; more\n'
            "[pull]\n\trebase = true\n[user]\n\tname = Kim\n"
        )
        await self.runs_unasked("git status")
        config.write_bytes(b"\xff")
        await self.asks("git status")

    async def test_a_strange_git_folder_asks(self) -> None:
        folder = self.root / ".git"
        await self.runs_unasked("git status")
        for name in ("commondir", "config.worktree", "evil", "gitdir", "objects/info/alternates"):
            with self.subTest(name):
                (folder / name).parent.mkdir(exist_ok=True)
                (folder / name).write_text("../evil")
                await self.asks("git log")
                (folder / name).unlink()
        for name in ("index.lock", "MERGE_MSG", "refs/heads/x", "rebase-merge/todo", "logs/x"):
            (folder / name).parent.mkdir(exist_ok=True)
            for make in (lambda at: os.symlink(self.outside / "secret.txt", at), os.mkfifo):
                with self.subTest(name, make=make):
                    make(folder / name)
                    await self.asks("git status")
                    (folder / name).unlink()
        os.symlink(self.outside, folder / "objects" / "ab")
        await self.asks("git status")
        (folder / "objects" / "ab").unlink()
        await self.runs_unasked("git status")

    async def test_a_repository_that_is_elsewhere_asks(self) -> None:
        folder = self.root / ".git"
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

    async def test_a_folder_that_only_looks_like_a_repository_is_not_used(self) -> None:
        """Git takes a folder with HEAD, objects and refs for a bare repository."""
        bare = self.root / "bare"
        self.git("init", "-q", "--bare", "bare")
        with open(bare / "config", "a") as file:
            file.write(f"[core]\n\tfsmonitor = {self.traps}/fsmonitor\n")
        content = await self.runs_unasked("git rev-parse --git-dir", working_dir="bare")
        self.assertIn(f"{self.root}/.git", content)
        self.assertEqual(self.marks(), set())
