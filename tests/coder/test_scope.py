"""What a grant for the session covers: never more than what was shown."""

from __future__ import annotations

import random
import shutil
import subprocess
import tempfile
import unittest
from itertools import product
from pathlib import Path, PurePath
from typing import NamedTuple

from crushlite.coder.tools.guarded import guarded_in, guarded_in_text
from crushlite.coder.tools.scope import (
    command_scope,
    file_scope,
    outside_scope,
    page_scope,
    programs_of,
)
from crushlite.worktree.paths import locate

SEED = 13

# Commands whose grants cover a program or a subcommand. All of them together are granted before an
# attack is tried.
ORDINARY = {
    "ls": ["ls"],
    "ls -la src 2>/dev/null | head -5": ["ls", "head"],
    "cat a.txt b.txt": ["cat"],
    "echo 'a b'; pwd\ntrue": ["echo", "pwd", "true"],
    'grep -rn "it\'s" src | sort | uniq -c': ["grep", "sort", "uniq"],
    "mkdir -p a/b && touch a/b/c": ["mkdir", "touch"],
    "printf '%s\\n' x": ["printf"],
    "wc -l < /dev/null": ["wc"],
    "tail -n 3 x >/dev/null 2>&1": ["tail"],
    "date +%F": ["date"],
    "cmp a b || true": ["cmp", "true"],
    "du -sh . && md5sum a": ["du", "md5sum"],
    "rg -n x src": ["rg"],
    "jq .a x.json": ["jq"],
    "tree -L 2": ["tree"],
    "file x": ["file"],
    "which ls": ["which"],
    "git log --oneline -5": ["git log"],
    "git --no-pager diff HEAD": ["git diff"],
    "git show HEAD": ["git show"],
    "git status -s": ["git status"],
    "git add a && git commit -m 'it; is $(done)'": ["git add", "git commit"],
    "git grep -n x": ["git grep"],
    "git rev-parse HEAD": ["git rev-parse"],
    "git cat-file -p HEAD": ["git cat-file"],
    "npm test": ["npm test"],
    "npm run build": ["npm run build"],
    "pnpm run lint": ["pnpm run lint"],
    "yarn test": ["yarn test"],
    "cargo test --release": ["cargo test"],
    "cargo build": ["cargo build"],
    "go test -v ./...": ["go test"],
    "go build ./...": ["go build"],
    "pytest -q tests -k 'a or b'": ["pytest"],
    "ruff check --fix src": ["ruff check"],
    "mypy --strict src": ["mypy"],
    "docker ps -a": ["docker ps"],
    "docker logs web": ["docker logs"],
    "kubectl get pods -n x": ["kubectl get pods"],
    "kubectl logs web": ["kubectl logs"],
    "pip list": ["pip list"],
    "systemctl status x": ["systemctl status"],
    "apt list --installed": ["apt list"],
}

# Each of these is another command than all of the above, although it looks like one of them.
ATTACKS = r"""
make -n
make -n && make
make all
make -C . all
make SHELL=./x
ls; rm x
ls && rm x
ls || rm x
ls | sh
ls & rm x
ls |& sh
ls;sh
ls	;	sh
ls|sh
ls>x
ls >x
ls >> x
ls 2>x
ls &>x
ls >| x
ls <> x
ls >&x
ls 3>x
ls > /dev/null.x
ls > /dev/nullx
ls >/dev/null/../../x
ls < x
cat <<EOF
cat <<<x
cat <(sh)
ls >(sh)
ls $(sh)
ls `sh`
ls "$(sh)"
ls "`sh`"
ls ${x:-$(sh)}
ls $x
ls "$x"
ls $'\x3bsh'
ls $"x"
ls$IFS-la
l$@s
$x
${x}
l\s
l''s -la; s'h'
"l"s
'ls' x
\ls
ls \; sh
ls \
ls *
ls ?
ls [a]
ls {a,b}
{ls,-la}
ls ~
ls ~root
ls #x
ls !x
!ls
! ls
(ls)
{ ls; }
[ -v x ]
[[ -v x[$(sh)] ]]
test -v 'x[$(sh)]'
((x=1))
let x=1
if ls; then sh; fi
while ls; do sh; done
for x in a; do sh; done
case x in x) sh;; esac
until ls; do sh; done
select x in a; do sh; done
time ls
coproc ls
function ls { sh; }; ls
ls() { sh; }; ls
ls () { sh; }
alias ls=sh
alias ls='sh'; ls
unalias ls
hash -p ./x ls; ls
enable -f ./x ls
builtin ls
command ls
command -p ls
exec ls
eval ls
eval 'ls'
source x
. x
. ./x
trap sh EXIT; ls
set -x; ls
shopt -s extglob; ls
export PATH=.; ls
declare PATH=.; ls
readonly x=1
local x=1
unset PATH; ls
read x
printf -v PATH .; ls
printf -vPATH .
printf -- x
PATH=. ls
LD_PRELOAD=./x.so ls
GIT_SSH_COMMAND=sh git status
GIT_EXTERNAL_DIFF=./x git diff
GIT_DIR=x git status
BASH_ENV=x ls
IFS=x ls
A=b
A=b ls
A+=b ls
env ls
env -S 'ls'
env A=b ls
cd x && ls
cd /; ls
pushd x; ls
popd
umask 0
ulimit -c 0
./ls
./git status
bin/ls
/bin/ls
/usr/bin/git status
../ls
ls/../sh
sh
sh -c ls
bash -c 'ls'
bash x
zsh -c ls
dash x
fish -c ls
busybox ls
toybox ls
python x.py
python -c 1
python3 -m pytest
node x.js
node -e 1
deno run x
bun x
perl -e 1
ruby -e 1
php -r 1
lua x
awk 1
gawk 'BEGIN{system("sh")}'
sed -i s/a/b/ x
sed e
find . -exec sh ;
find . -delete
xargs ls
ls | xargs rm
sudo ls
doas ls
su -c ls
ssh host ls
scp a b:c
rsync a b
nohup ls
nice ls
ionice ls
timeout 5 ls
stdbuf -o0 ls
setsid ls
flock x ls
strace ls
gdb ls
script -c ls
expect x
watch ls
parallel ls
entr ls
at now
crontab x
tmux new ls
screen ls
systemd-run ls
chroot x ls
unshare ls
nsenter ls
bwrap ls
docker run x
docker exec x ls
docker -H tcp://evil ps
docker --context x ps
docker compose up
docker cp a b
docker build .
kubectl exec x ls
kubectl --kubeconfig=x get pods
kubectl get pods --kubeconfig=x
kubectl get pods --kubeconf x
kubectl get secrets
kubectl get pods,secrets
kubectl get --raw /x
kubectl apply -f x
kubectl delete pod x
kubectl get
git
git -c alias.x=!sh x
git -c 'alias.x=!sh' x
git -c core.pager=sh log
git -c core.fsmonitor=./x status
git -C x status
git --exec-path=. status
git --exec-path . status
git --git-dir=x status
git --work-tree=x status
git -p log
git --paginate log
git --no-pager -c a=b log
git --no-pager
git x
git config alias.x '!sh'
git config core.hooksPath x
git push
git push origin x
git pull
git fetch
git fetch --upload-pack=sh x
git clone x
git clone -u sh x
git remote add x y
git submodule foreach sh
git rebase -x sh
git bisect run sh
git filter-branch --tree-filter sh
git difftool -x sh
git mergetool
git checkout x
git reset --hard
git restore x
git clean -fd
git apply x
git am x
git stash
git worktree add x
git archive --exec=sh
git grep -O x
git grep -Osh x
git grep -nOsh x
git grep --open-files-in-pager=sh x
git grep --open x
git diff --output=x
git diff --outp=x
git log --output x
git diff --ext-diff
git log --textconv
git show --text
git commit --edit
git commit --template=x
git add --chmod=+x x
git daemon
git send-email x
git log;sh
'git' 'log' | sh
git "log" x; x
git 'log'
npm run evil
npm run build evil
npm run build -- evil
npm run build --script-shell=./x
npm test --script-shell=./x
npm test --prefix x
npm test x
npm test 'x; sh'
npm --prefix x test
npm -C x test
npm run
npm run 'build'
npm run build;sh
npm install
npm install x
npm exec x
npx x
npm start
npm publish
yarn run node x
yarn add x
pnpm run evil
pnpm dlx x
cargo run
cargo install x
cargo +nightly test
cargo --config x test
cargo test --config x
cargo test --config=x
cargo test --target-dir=x
cargo build --manifest-path=x
cargo test -Zx
cargo publish
cargo fix
go run x
go generate
go install x
go get x
go env -w X=y
go test -exec=sh
go test --exec=sh
go test -exec sh
go test -toolexec=sh
go build -toolexec sh
go build -o x
go vet -vettool=x
go build -overlay=x
go test -C x
go test -args x
pytest -p x
pytest -px
pytest -c x
pytest --rootdir=x
pytest -o x=y
pytest --basetemp=x
pytest --pyargs x
pytest --override-ini=x
pytest @x
pytest --junitxml=x
mypy --config-file=x
mypy --python-executable=sh
ruff check --config x
ruff clean
rg --pre sh x
rg --pre=sh x
rg --hostname-bin sh x
rg -z x
rg -nz x
rg --search-zip x
sort -o x y
sort -ox y
sort -uo x y
sort --output=x
sort --out x
sort --compress-program=sh
sort --comp=sh
sort -S1 --compress-prog sh
sort -T x
uniq a b
uniq x
tree -o x
tree --output x
date -s x
date --set=x
date 01010101
file -C -m x
base64 -o x
curl x
wget x
nc -e sh
rm x
rm -rf .
cp a b
mv a b
ln -s a b
chmod +x x
chown x y
dd if=a of=b
tee x
install a b
tar xf x
unzip x
patch -p1
vim -c x
ed x
less x
man x
gcc x
ld x
pip install x
pip list --index-url=x
pip3 install x
pip download x
apt install x
apt list -o x=y
apt-get install x
brew install x
systemctl start x
systemctl -H x status y
systemctl status -H x
systemctl edit x
ls /etc
cat /etc/passwd
cat ../x
cat a/../../x
cat --x=../y
grep -f../x y
grep -rf../x y
grep --file=/x y
diff a:/x b
touch ../x
touch /tmp/x
mkdir ../x
touch link/x
cat link
grep -flink x
grep -R x
grep -nR x src
grep -iRl x .
egrep -R x
fgrep --dereference-recursive x
grep --deref x
rg -L x
rg -nL x
rg --follow x
ls -LR
ls -laL src
ls --dereference -R
du -aL
du --dereference
du --files0-from=x
wc --files0-from=x
wc --files0=x
md5sum -c x
sha256sum --check x
cksum --ch x
file -f x
file --files-from=x
tree -l
tree -al
diff a b
diff -r a b
jq -n 'import "config" as $c {search: "/x"}; $c'
jq 'include "x"; y' z
jq '"x" | modulemeta'
jq -f x y
jq -nf x
jq --from-file x y
cat .git/config
touch .git/hooks/x
touch .GIT/hooks/x
touch .git./hooks/x
touch hooks/x
touch data/x
touch .envrc
touch '.envrc'
touch ".env"rc
touch a/.envrc
touch crush.json
touch CRUSH.JSON
touch .crush.json
touch .github/workflows/x.yml
touch Jenkinsfile
touch .vscode/tasks.json
touch AGENTS.md
touch CLAUDE.md
touch .bashrc
touch .npmrc
touch .ssh/x
mkdir .husky
git add .envrc
cat .env
ls; cat x | touch .git
""".strip("\n").split("\n")
UNSEEN = [
    "ls\n\trm x",
    "ls\nsh",
    "ls \\\n-la",
    "l\\\ns",
    "ls\r",
    "ls\rsh",
    "ls\x0bsh",
    "ls\x0c",
    "ls \x1b[8m",
    "ls\u00a0-la",
    "ls \u00a0",
    "ls\u2028sh",
    "l\u200bs",
    "\u0455h",  # Cyrillic
    "l\uff53",  # fullwidth
    "ls '\u202e'",
    "ls '\x00'",
    "echo '\x07'",
    "\n",
    "",
    ";",
    "ls 'x",
    'ls "x',
    "ls x'",
]


class ScopeCase(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="crushlite-scope-")
        self.addCleanup(folder.cleanup)
        self.base = Path(folder.name).resolve()
        self.root = self.base / "demo"
        (self.root / "src").mkdir(parents=True)
        (self.root / ".git" / "hooks").mkdir(parents=True)
        (self.root / "hooks").symlink_to(".git/hooks")
        (self.root / "data").symlink_to(".crushlite")
        (self.root / "link").symlink_to(self.base)

    def parts(self, command: str, cwd: str = ".") -> set[str]:
        return set(command_scope(command, locate(self.root, cwd), self.root).parts)


class CommandTests(ScopeCase):
    def test_plain_commands_are_known_by_program_and_subcommand(self) -> None:
        for command, programs in ORDINARY.items():
            with self.subTest(command):
                self.assertEqual(programs_of(command), programs)
                self.assertEqual(self.parts(command), {f"program {name}" for name in programs})

    def test_no_attack_is_covered_by_all_ordinary_grants_together(self) -> None:
        granted = {part for command in ORDINARY for part in self.parts(command)}
        self.assertGreater(len(ATTACKS), 300)
        for command in [*ATTACKS, *UNSEEN]:
            with self.subTest(command):
                parts = self.parts(command)
                self.assertFalse(parts and parts <= granted, parts)

    def test_what_is_not_plain_covers_only_the_same_text(self) -> None:
        """Of any two such commands, the grant of one does not cover the other."""
        for command in [*ATTACKS, *UNSEEN]:
            with self.subTest(command):
                # Some are a script or a resource of their own.
                own = ({f"text {command}"}, {f"program {command}"})
                self.assertIn(self.parts(command), (set(), *own))

    def test_outside_of_the_workspace_only_the_same_text_is_covered(self) -> None:
        outside = locate(self.root, str(self.base))
        self.assertEqual(command_scope("ls", outside, self.root).parts, ("text ls",))
        inside = locate(self.root, ".git/hooks")
        self.assertEqual(command_scope("ls", inside, self.root).parts, ())

    def test_a_command_with_very_many_words_is_not_looked_up(self) -> None:
        looked: list[str] = []

        def resolve(path: str) -> str:
            looked.append(path)
            return path

        command = "ls " + ",".join("a" * 30_000)
        scope = command_scope(command, locate(self.root, "."), self.root, resolve)
        self.assertEqual((scope.parts, looked), ((f"text {command}",), []))

    def test_a_path_that_cannot_be_looked_up_covers_only_the_same_text(self) -> None:
        def resolve(path: str) -> str:
            raise FileNotFoundError(path)  # the link was replaced between two steps of the lookup

        scope = command_scope("ls src", locate(self.root, "."), self.root, resolve)
        self.assertEqual(scope.parts, ("text ls src",))

    def test_the_words_for_the_user_name_what_is_covered(self) -> None:
        place = locate(self.root, ".")

        def words(command: str) -> str:
            return command_scope(command, place, self.root).words

        self.assertEqual(
            words("git add a && git commit -m x | cat"),
            "`git add`, `git commit` and `cat`, with other arguments in the project too, "
            f"in {self.root}",
        )
        self.assertEqual(words("npm test"), f"`npm test` without further words, in {self.root}")
        self.assertEqual(
            words("npm run a && ls | npm test"),
            "`ls`, with other arguments in the project too, and `npm run a` and `npm test` without "
            f"further words, in {self.root}",
        )
        self.assertEqual(words("make"), f"this very command, in {self.root}")
        self.assertIn("nothing more than this: .envrc", words("rm .envrc"))


# Generated commands -----------------------------------------------------------------------------


class Piece(NamedTuple):
    """A simple command as it was made up: what it is, and how it is written."""

    program: str
    text: str


class PropertyTests(ScopeCase):
    PROGRAMS = [
        *("ls", "cat", "git status", "git commit", "git log", "cargo test", "cargo build"),
        *("npm run a", "npm run b", "touch", "sh", "python x", "make", "rm", "git push"),
    ]
    WORDS = ("a", "'b c'", '"d;e"', "src/x", "f=g", "'$(h)'", "'&&'", "i:j", "2", '"k\'l"')
    BETWEEN = (" && ", " || ", "; ", " | ", "\n", ";", "|", " ;  ", "&&")

    def piece(self, source: random.Random) -> Piece:
        program = source.choice(self.PROGRAMS)
        count = 0 if program.startswith("npm") else source.randrange(4)
        words = [source.choice(self.WORDS) for _ in range(count)]
        redirection = source.choice(("", "", " 2>&1", " >/dev/null"))
        return Piece(program, " ".join([program, *words]) + redirection)

    def command(self, source: random.Random) -> tuple[set[str], str]:
        """The programs of a made-up command, and its text."""
        pieces = [self.piece(source) for _ in range(source.randrange(1, 4))]
        text = pieces[0].text
        for piece in pieces[1:]:
            text += source.choice(self.BETWEEN) + piece.text
        return {piece.program for piece in pieces}, text

    def test_a_grant_covers_a_command_only_if_it_shows_every_part_of_it(self) -> None:
        source = random.Random(SEED)
        made = []
        for _ in range(200):
            programs, text = self.command(source)
            cwd = source.choice((".", "src"))
            # The core adds the directory to the key.
            made.append((programs, text, cwd, {(cwd, part) for part in self.parts(text, cwd)}))
        covered = 0
        for (shown, first, here, granted), (wanted, second, there, parts) in product(made, made):
            if parts <= granted:
                covered += first != second
                same = first == second or wanted <= shown
                self.assertTrue(parts and here == there and same, (first, second))
        self.assertGreater(covered, 200, "some are covered, else nothing was tried")

    def test_bash_runs_what_was_found_and_nothing_else(self) -> None:
        """Ordinary commands with a few characters put in or taken out. Those that still count as
        plain are given to bash, in a folder where all programs only write down their words."""
        log, programs = self.base / "log", self.base / "programs"
        programs.mkdir()
        # Its name and the beginnings of two words.
        first, second = "${1%%[!A-Za-z0-9-]*}", "${2%%[!A-Za-z0-9-]*}"
        recorder = f"#!/bin/sh\necho \"${{0##*/}} {first} {second}\" >> '{log}'\n"
        names = {found.split()[0] for each in ORDINARY.values() for found in each} | {"x", "sh"}
        for name in names:
            (programs / name).write_text(recorder)
            (programs / name).chmod(0o755)
        source = random.Random(SEED)
        bash = shutil.which("bash") or "/bin/sh"
        tried = 0
        while tried < 150:
            command = mutated(source.choice(list(ORDINARY)), source)
            found = programs_of(command)
            if found is None:
                continue
            tried += 1
            log.write_text("")
            subprocess.run(
                [bash, "-c", command],
                cwd=self.root / "src",
                env={"PATH": str(programs)},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
            )
            for line in log.read_text().splitlines():
                line = line.replace("git --no-pager", "git")
                self.assertTrue(any(f"{line} ".startswith(f"{f} ") for f in found), (command, line))
            self.assertEqual(list((self.root / "src").iterdir()), [], command)


def mutated(command: str, source: random.Random) -> str:
    for _ in range(source.randrange(1, 4)):
        at = source.randrange(len(command) + 1)
        piece = source.choice([*";|&<>()$`\\\"'*?[]#~=%!{} \t\n", "x", "sh", " x ", "/", "-", "2>"])
        command = command[:at] + piece + command[at + source.randrange(2) :]
    return command


# Files and pages --------------------------------------------------------------------------------


class FileTests(ScopeCase):
    def test_ordinary_files_of_the_workspace_are_one_scope(self) -> None:
        for name in ("a", "src/b.py", "Makefile", "package.json", "src/git", ".gitignore", "x.git"):
            scope = file_scope(locate(self.root, name), self.root)
            self.assertEqual(scope.parts, ("ordinary files",), name)
            self.assertIn(str(self.root), scope.words)

    def test_guarded_files_have_none_wherever_and_however_they_are_written(self) -> None:
        names = """
            .git/hooks/pre-commit .git .GIT/config .git./x .git\x20/x GIT~1/x hooks/x data/y
            src/../.git/x .g\u200cit/x .\uff47it/x crush.json .crush.json Crush.json src/crush.json
            crushrc .crush/x .crushlite/x CRUSH.md .envrc .env .env.local .bashrc .bash_profile
            .profile .zshrc .zshenv .vscode/tasks.json .idea/x .vimrc .exrc .emacs .dir-locals.el
            .nvim.lua .npmrc .pypirc .netrc .ssh/config .aws/credentials .husky/pre-commit
            .githooks/x .github/workflows/ci.yml .gitlab-ci.yml .circleci/config.yml Jenkinsfile
            azure-pipelines.yml .travis.yml .pre-commit-config.yaml AGENTS.md agents.md CLAUDE.md
            .cursor/rules/x .cursorrules .claude/x SKILL.md skills/a/SKILL.md .mcp.json .gitmodules
            .cargo/config.toml x.code-workspace .devcontainer/x .gitattributes sitecustomize.py
        """
        for name in filter(None, (line.strip() for line in names.replace("\n", " ").split(" "))):
            scope = file_scope(locate(self.root, name), self.root)
            self.assertEqual(scope.parts, (), name)
            self.assertIn("each time", scope.words)

    def test_files_outside_are_asked_for_each_time(self) -> None:
        for name in ("../x", "/etc/x", "link/x", "src/../../x"):
            place = locate(self.root, name)
            self.assertEqual(file_scope(place, self.root).parts, (), name)
            self.assertEqual(outside_scope(place).parts, ())

    def test_names_are_found_in_paths_and_texts(self) -> None:
        self.assertEqual(guarded_in(PurePath("a/.Git/b")), ".Git")
        self.assertEqual(guarded_in(PurePath("a/git/b.gitx")), "")
        for text in ("a>.git/x", "x=.envrc", "'AGENTS.md'", "a;cat .env", "$(<.netrc)", "a/.ssh"):
            self.assertTrue(guarded_in_text(text), text)
        self.assertEqual(guarded_in_text("git commit -m 'fix the env' && ls src/git"), "")

    def test_a_page_stands_for_its_server(self) -> None:
        self.assertEqual(page_scope("https://a.example:8443").parts, ("https://a.example:8443",))
