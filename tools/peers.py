"""Install the programs of others that tests/peers drives: `peers.py ROOT`.

Into ROOT/.peers: Python packages by tests/peers/requirements.txt into `venv`, together with this
package and pytest, and npm packages by tests/peers/package.json into `node_modules`. A stamp of
what they were made from is written last: a second call does nothing, an interrupted one is done
again.
Called by tools/check with the Python of the private environment.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from environment import MISLEADING, say

GOPLS = "golang.org/x/tools/gopls@v0.20.0"  # built where go is installed, for its test
GO_SECONDS = 600
NODE_ADVICE = "npm is not on the PATH (Debian: sudo apt-get install npm)"


def stamp_of(root: Path) -> str:
    """What an installation is made from; scripts in it hold the path of the checkout."""
    sources = ("pyproject.toml", "tests/peers/requirements.txt", "tests/peers/package.json")
    texts = [GOPLS.encode(), *((root / name).read_bytes() for name in sources)]
    python = f"{sys.version} {root}".encode()
    return hashlib.sha256(b"\0".join([*texts, python])).hexdigest()


def commands(root: Path, folder: Path, npm: str) -> list[list[str]]:
    python = str(folder / "venv" / "bin" / "python")
    # The pip of this environment: to put another one there takes some seconds.
    pip = [sys.executable, "-I", "-m", "pip", "--python", python, "install", "--quiet"]
    pip.append("--disable-pip-version-check")
    wanted = ["--editable", f"{root}[test]", "-r", str(root / "tests" / "peers/requirements.txt")]
    packages = ["install", "--prefix", str(folder), "--no-audit", "--no-fund", "--loglevel=error"]
    return [[*pip, "--no-input", *wanted], [npm, *packages]]


def install(root: Path, folder: Path) -> int:
    npm = shutil.which("npm")
    if npm is None:
        say(f"the peers cannot be installed: {NODE_ADVICE}")
        return 1
    say(f"installing the peers into {folder} (needed once, takes some minutes) ...")
    venv.EnvBuilder(with_pip=False, clear=True, symlinks=True).create(folder / "venv")
    shutil.copy(root / "tests" / "peers" / "package.json", folder / "package.json")
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in MISLEADING and not name.startswith("PYTHON")
    }
    environment["PIP_USER"] = "0"
    for command in commands(root, folder, npm):
        if subprocess.run(command, env=environment, stdout=sys.stderr, cwd=folder).returncode:
            say(f"`{' '.join(command[:5])} ...` failed; its reason is above.")
            return 1
    install_gopls(folder, environment)
    return 0


def install_gopls(folder: Path, environment: dict[str, str]) -> None:
    """Build gopls with the go of this machine, if there is one. A failure is said, and no more: its
    test is left out then."""
    if shutil.which("go") is None:
        return
    places = {"GOBIN": str(folder / "go"), "GOFLAGS": "-modcacherw"}
    # Behind the tests, which run meanwhile and have limits of time.
    command = ["nice", "-n", "5", "go", "install", "-p", "1", GOPLS]
    try:
        subprocess.run(command, env={**environment, **places}, check=True, timeout=GO_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        say(f"gopls could not be installed, its test is left out: {error}")


def main() -> int:
    root = Path(sys.argv[1]).resolve()
    folder = root / ".peers"
    folder.mkdir(exist_ok=True)
    note = folder / "installed"
    with (folder / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = stamp_of(root)
        if note.is_file() and note.read_text() == stamp:
            return 0
        if code := install(root, folder):
            return code
        note.write_text(stamp)
    return 0


if __name__ == "__main__":
    sys.exit(main())
