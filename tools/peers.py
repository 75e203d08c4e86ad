"""Install the programs of others that tests/peers drives: `peers.py ROOT [PART ...]`.

Into ROOT/.peers, by its parts, without an argument all of them:

    python   packages by tests/peers/requirements.txt into `venv`, with this package and pytest
    node     npm packages by tests/peers/package.json into `node_modules`
    go       gopls into `go`, where go is installed: that of Debian's archive, or built

A stamp of what a part was made from is written last: a second call does nothing, an interrupted one
is done again, and of two calls at once one waits for the other.
Called by tools/check. `python` needs the Python of the private environment, the others any.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import venv
from pathlib import Path

sys.path.insert(0, os.path.dirname(__file__))  # python -I leaves it out

from environment import MISLEADING, say

GOPLS = "golang.org/x/tools/gopls@v0.20.0"  # built where there is no package of it
GO_SECONDS = 600
NODE_ADVICE = "npm is not on the PATH (Debian: sudo apt-get install npm)"


def environment() -> dict[str, str]:
    """This process's, without what would make pip install somewhere else."""
    left = {
        name: value
        for name, value in os.environ.items()
        if name not in MISLEADING and not name.startswith("PYTHON")
    }
    return {**left, "PIP_USER": "0"}


def succeeds(command: list[str], folder: Path) -> bool:
    done = subprocess.run(command, env=environment(), stdout=sys.stderr, cwd=folder)
    if done.returncode:
        say(f"`{' '.join(command[:5])} ...` failed; its reason is above.")
    return done.returncode == 0


def install_python(root: Path, folder: Path) -> bool:
    venv.EnvBuilder(with_pip=False, clear=True, symlinks=True).create(folder / "venv")
    python = str(folder / "venv" / "bin" / "python")
    # The pip of this environment: to put another one there takes some seconds. Most modules of
    # these packages are never imported: those that are will be compiled then.
    pip = [sys.executable, "-I", "-m", "pip", "--python", python, "install", "--quiet"]
    pip += ["--disable-pip-version-check", "--no-input", "--no-compile"]
    wanted = ["--editable", f"{root}[test]", "-r", str(root / "tests" / "peers/requirements.txt")]
    return succeeds([*pip, *wanted], folder)


def install_node(root: Path, folder: Path) -> bool:
    npm = shutil.which("npm")
    if npm is None:
        say(f"the peers cannot be installed: {NODE_ADVICE}")
        return False
    shutil.copy(root / "tests" / "peers" / "package.json", folder / "package.json")
    packages = ["install", "--prefix", str(folder), "--no-audit", "--no-fund", "--loglevel=error"]
    return succeeds([npm, *packages], folder)


def unpack_gopls(folder: Path) -> bool:
    """Put the gopls of the system's package archive into this folder, without installing the
    package. False where there is none: not Debian, or apt has no lists."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()

    def run(*command: str) -> None:
        subprocess.run(command, cwd=folder, check=True, timeout=GO_SECONDS)

    try:
        run("apt-get", "-qq", "download", "gopls")
        (package,) = folder.glob("gopls_*.deb")
        run("dpkg", "-x", package.name, ".")
        (folder / "usr" / "bin" / "gopls").rename(folder / "gopls")
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        say(f"gopls is built from its source, because the package cannot be had: {error}")
        return False
    return True


def install_go(root: Path, folder: Path) -> bool:
    """Unpack Debian's gopls, or build one with the go of this machine; it needs a go to run. A
    failure is said, and no more: its test is left out then."""
    if shutil.which("go") is None or unpack_gopls(folder / "go"):
        return True
    places = {"GOBIN": str(folder / "go"), "GOFLAGS": "-modcacherw", "CGO_ENABLED": "0"}
    # Behind the tests, which run meanwhile and have limits of time. To optimise it, and to
    # prepare it for debuggers, takes long and for one small project makes no difference.
    command = ["nice", "-n", "5", "go", "install", "-p", "1", "-ldflags=-s -w"]
    command += ["-gcflags=all=-N -l -dwarf=false", GOPLS]
    try:
        subprocess.run(command, env={**environment(), **places}, check=True, timeout=GO_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        say(f"gopls could not be installed, its test is left out: {error}")
    return True


PARTS = {"python": install_python, "node": install_node, "go": install_go}


def stamp_of(part: str, root: Path) -> str:
    """What a part is made from; scripts in it hold the path of the checkout."""
    made_from = {
        "python": [sys.version, *_texts(root, "pyproject.toml", "tests/peers/requirements.txt")],
        "node": _texts(root, "tests/peers/package.json"),
        "go": [GOPLS],
    }
    return hashlib.sha256("\0".join([str(root), *made_from[part]]).encode()).hexdigest()


def _texts(root: Path, *names: str) -> list[str]:
    return [(root / name).read_text("utf-8") for name in names]


def install(part: str, root: Path, folder: Path) -> bool:
    note = folder / f"installed-{part}"
    with (folder / f"lock-{part}").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = stamp_of(part, root)
        if note.is_file() and note.read_text() == stamp:
            return True
        say(f"installing the peers into {folder}: {part} (needed once, takes some minutes) ...")
        if not PARTS[part](root, folder):
            return False
        note.write_text(stamp)
    return True


def main() -> int:
    # The default action would leave the program that is being installed, or installs, behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    root = Path(sys.argv[1]).resolve()
    folder = root / ".peers"
    folder.mkdir(exist_ok=True)
    return 0 if all(install(part, root, folder) for part in sys.argv[2:] or PARTS) else 1


if __name__ == "__main__":
    sys.exit(main())
