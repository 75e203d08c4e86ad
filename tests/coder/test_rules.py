"""Rules for commands: compared word by word, and nothing that was not shown is covered."""

from __future__ import annotations

import itertools
import subprocess
import tempfile
import unittest
from pathlib import Path

from crushlite.coder.tools.rules import covering_parts, offered_words, rule_part
from crushlite.coder.tools.scope import command_scope, file_scope
from crushlite.coder.tools.shellwords import simple_commands
from crushlite.worktree.paths import locate

# What is offered for a command: the first words of each of its parts, or a whole program.
OFFERED = {
    "npm test": ["starts with npm test"],
    "npm test unit": ["starts with npm test"],
    "npm 'test' unit": ["starts with npm test"],
    "npm run build": ["starts with npm run build"],
    "npm test -- -t 'a b'": ["starts with npm test -- -t 'a b'"],
    "make check": ["starts with make check"],
    "make -C sub check all": ["starts with make -C sub check"],
    "make check -j4 all": ["starts with make check -j4 all"],
    "make check FAST=1": ["starts with make check FAST=1"],
    "./gradlew test": ["starts with ./gradlew test"],
    "cargo +nightly build x y": ["starts with cargo +nightly build x"],
    "git push origin main": ["starts with git push"],
    "git push origin HEAD:main x": ["starts with git push origin HEAD:main x"],
    "gh pr view 12": ["starts with gh pr view"],
    "terraform plan": ["starts with terraform plan"],
    "go test ./...": ["starts with go test"],
    "git stash push x": ["starts with git stash push"],
    "uv run pytest tests": ["starts with uv run pytest"],
    "npm test && make check": ["starts with npm test", "starts with make check"],
    "npm test 2>&1 | head -5": ["starts with npm test", "program head"],
    "touch a": ["program touch"],
    "pytest tests/a.py": ["starts with pytest tests/a.py"],
}
# For these there is no rule by words: only the very same text is the same.
NO_RULE = r"""
make
./run.sh
npm run
npm install
npm install x
npm i
yarn add x
uv add x
go get x
cargo install x
git stash
uv run
sh -c x
bash x.sh
zsh x
python x.py
python3.11 x.py
/usr/bin/python3 x.py
node x.js
perl -e 1
ruby x
env npm test
env A=1 npm test
xargs npm test
sudo npm test
ssh host npm test
nohup npm test
timeout 5 npm test
time npm test
uv run python x.py
npm exec node x
npx ts-node x
A=1 npm test
PATH=. npm test
cd x && npm test
npm test && cd x
export A=1; npm test
source x; npm test
. x
eval npm test
exec npm test
command npm test
rm -rf build
mv a b
cp a b
curl x
wget x
docker run x
docker exec web ls
kubectl exec x
find . -delete
sed -i x y
git config a b
git -c a=b push
git submodule update
git bisect run x
git rebase -x y
git
npm test > log
npm test >> log
npm test < in
npm test & make check
npm test $(x)
npm test `x`
npm test $X
npm test *
npm test ~
npm test # x
npm test \
(npm test)
{ npm test; }
! npm test
if npm test; then make check; fi
for x in a; do npm test; done
npm test | tee log
npm test | sh
npm test | xargs rm
npm test; rm -rf x
gtimeout 60 npm test
gnice npm test
gxargs npm test
gsed s/a/b/ x
gtee x
taskset 1 npm test
chrt 5 npm test
numactl 1 npm test
setarch x86_64 npm test
linux64 npm test
faketime 2020-01-01 npm test
fakeroot npm test
proot npm test
gosu kim npm test
sg users x
run0 npm test
sudo-rs npm test
pythonw x.py
python3-dbg x.py
python3.11-dbg x.py
guile x.scm
escript x
hyperfine ./x
retry 3 ./x
direnv exec . ./x
conda run x ./y
rustup run stable ./x
lxc exec c1 ls
mosh host x
sqlite3 x.db 'select 1'
sqlite3 x.db '.shell x'
psql x
pm2 start x.js
run-parts x
uv run taskset 1 x
npm "$x"
"npm" test
n'pm' test
npm test ../outside
npm test /etc/passwd
""".strip().split("\n")

# With rules for `npm test`, `make check` and `git push`, each of these asks all the same.
BEYOND = r"""
npm
npm testx
npm test-x
npm t
npm install
npm run test
npm --prefix x test
npm -s test
Npm test
./npm test
/usr/bin/npm test
npm tes t
npmtest
npm test -x
npm test --script-shell=./x
npm test --prefix=..
npm test --prefix ..
npm test -- x
npm test -- --watch
npm test x -y
npm test A=1
npm test SHELL=./x
npm test +x
npm test @x
npm test a@b
npm test http://evil
npm test host:x
npm test ''
npm test sh
npm test bash x
npm test /bin/sh
npm test python3
npm test env
npm test ../x
npm test /etc/passwd
npm test link/x
npm test .git/x
npm test .envrc
npm test src/../../x
npm test; rm -rf x
npm test;rm -rf x
npm test && rm x
npm test || rm x
npm test | rm x
npm test | sh
npm test | tee x
npm test | npm install
npm test & rm x
npm test&rm x
npm test $(x)
npm test$(x)
npm test`x`
npm test `x`
npm test ${x}
npm test $x
npm test "$x"
npm test "`x`"
npm test > x
npm test>x
npm test 2> x
npm test < x
npm test <<< x
npm test <(x)
npm test *
npm test ?
npm test {a,b}
npm test ~
npm test !x
npm test #x
npm test \; x
npm test\
npm test (x)
npm test a=~
A=1 npm test
PATH=. npm test
npm_config_x=y npm test
env npm test
command npm test
exec npm test
time npm test
sudo npm test
! npm test
(npm test)
{ npm test; }
if npm test; then x; fi
alias npm=x; npm test
npm() { x; }; npm test
function npm { x; }; npm test
cd x; npm test
cd x && npm test
make check install -f x
make check -f x
make check --file=x
make check SHELL=x
make -C x check
make check; make install
make
make install
git push --receive-pack=x
git push --force
git push -f origin main
git push origin +main
git push origin :main
git push ext::x
git push https://evil
git push evil.example:x
git -c core.sshCommand=x push
git commit
git
npm test && git status && rm x
""".strip("\n").split("\n")
BEYOND += [
    "npm test\nrm -rf x",
    "npm test\trm\n-rf x\nrm",
    "npm test\r\nrm x",
    "npm\ntest",
    "npm test\u200b",
]

COVERED = r"""
npm test
npm test unit
npm test unit src/a.js
npm  test
npm "test" 'a b'
npm test 2>&1
npm test >/dev/null 2>&1
npm test && make check
npm test; make check all; git push origin main
npm test || npm test again
make check
git push
""".strip().split("\n")


class RuleCase(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="crushlite-rules-")
        self.addCleanup(folder.cleanup)
        base = Path(folder.name).resolve()
        self.root = base / "demo"
        (self.root / "src").mkdir(parents=True)
        (self.root / "link").symlink_to(base)

    def covered(self, command: str, granted: set[str], cwd: str = ".") -> bool:
        """Whether a command is covered by these parts, as the core decides it."""
        scope = command_scope(command, locate(self.root, cwd), self.root)
        groups = scope.covered_by
        own = bool(scope.parts) and granted.issuperset(scope.parts)
        return own or (bool(groups) and all(group & granted for group in groups))


class CommandRuleTests(RuleCase):
    def test_the_offered_rule_names_what_was_shown_and_covers_it(self) -> None:
        for command, expected in OFFERED.items():
            with self.subTest(command):
                scope = command_scope(command, locate(self.root, "."), self.root)
                self.assertEqual(list(scope.rule_parts), expected)
                self.assertTrue(self.covered(command, set(scope.rule_parts)))
                self.assertIn(str(self.root), scope.rule_words)
                for part in expected:
                    self.assertIn(part.split(" ", 1)[1].removeprefix("with "), scope.rule_words)

    def test_the_words_say_all_that_the_rule_covers(self) -> None:
        scope = command_scope("npm test 2>&1 | head -5", locate(self.root, "."), self.root)
        self.assertEqual(
            scope.rule_words,
            "commands that start with `npm test` and add no options, and `head` with other "
            f"arguments in the project, in {self.root}",
        )
        same = command_scope("touch a", locate(self.root, "."), self.root)
        self.assertEqual((same.rule_parts, same.rule_words), (same.parts, same.words))

    def test_where_there_is_no_rule_the_very_same_command_is_offered(self) -> None:
        for command in NO_RULE:
            with self.subTest(command):
                scope = command_scope(command, locate(self.root, "."), self.root)
                self.assertEqual(scope.rule_parts, (f"text {command}",))
                self.assertEqual(scope.rule_words, f"this very command, in {self.root}")

    def test_what_is_always_asked_for_has_no_rule(self) -> None:
        for command in ("npm test .git/x", "make -C .git/hooks x", "npm test AGENTS.md"):
            scope = command_scope(command, locate(self.root, "."), self.root)
            self.assertEqual((scope.parts, scope.rule_parts, scope.covered_by), ((), (), ()))
            self.assertEqual(scope.rule_words, "")

    def test_a_rule_covers_further_words_and_no_more(self) -> None:
        granted = {rule_part(words.split()) for words in ("npm test", "make check", "git push")}
        for command in COVERED:
            self.assertTrue(self.covered(command, granted), command)
        for command in BEYOND:
            self.assertFalse(self.covered(command, granted), command)
        self.assertGreaterEqual(len(BEYOND), 100)

    def test_rules_that_a_user_wrote_by_hand_do_not_cover_what_can_do_anything(self) -> None:
        for command in (
            "sh -c x",
            "python x.py",
            "sudo ls",
            "rm x",
            "cd x",
            "A=1 x",
            "git config x",
        ):
            words = command.split()
            granted = {rule_part(words[:count]) for count in range(1, len(words) + 1)}
            self.assertFalse(self.covered(command, granted), command)

    def test_every_part_of_a_compound_command_needs_a_rule(self) -> None:
        parts = ("npm test", "make check", "git push", "cargo build")
        for count in (2, 3):
            for chosen in itertools.permutations(parts, count):
                for cut in ("; ", " && ", " || ", " | ", "\n"):
                    command = cut.join(chosen)
                    granted = {rule_part(part.split()) for part in chosen}
                    self.assertTrue(self.covered(command, granted))
                    for missing in granted:
                        self.assertFalse(self.covered(command, granted - {missing}), command)

    def test_bash_finds_the_words_that_a_rule_is_compared_with(self) -> None:
        """What counts is what bash would run: its own words, in its own commands."""
        show = "npm() { printf '<%s>' npm \"$@\"; echo; }; make() { :; }; git() { :; }\n"
        for command in COVERED:
            expected = []
            for part in simple_commands(command) or ():
                if part.words[0] == "npm" and not part.redirections and "||" not in command:
                    plain = [word.strip("'\"") for word in part.words]
                    expected.append("".join(f"<{word}>" for word in plain))
            if not expected:
                continue
            ran = subprocess.run(
                ["bash", "-c", show + command], capture_output=True, text=True, timeout=60
            )
            self.assertEqual(ran.stdout.split("\n")[:-1], expected, command)

    def test_parts_are_linear_in_the_number_of_words(self) -> None:
        words = ["npm", *("x" for _ in range(500))]
        self.assertEqual(covering_parts(words), frozenset())
        self.assertIsNone(offered_words(words))
        self.assertIsNone(offered_words(["npm", "--x=" + "y" * 1000]))


class FileRuleTests(RuleCase):
    def test_the_folder_of_a_file_is_offered(self) -> None:
        def covered(name: str, granted: set[str]) -> bool:
            scope = file_scope(locate(self.root, name), self.root)
            return bool(scope.covered_by) and all(group & granted for group in scope.covered_by)

        scope = file_scope(locate(self.root, "src/a.py"), self.root)
        granted = set(scope.rule_parts)
        self.assertIn(f"{self.root}/src ", scope.rule_words)
        for name in ("src/b.py", "src/deep/c.py"):
            self.assertTrue(covered(name, granted), name)
        for name in ("a.py", "srcs/a.py", "other/src/a.py", "src/.git/x", "src/.envrc", "link/a"):
            self.assertFalse(covered(name, granted), name)
        self.assertTrue(covered("src/b.py", set(scope.parts)), "all ordinary files")
        top = file_scope(locate(self.root, "a.py"), self.root)
        self.assertEqual(top.rule_parts, top.parts)
