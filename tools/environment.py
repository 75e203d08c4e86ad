"""Make the private environment of a checkout: `environment.py ROOT KIND STAMP`.

Called by bootstrap.sh when an installation is missing or out of date. KIND is `run` (the package
and h11) or `dev` (with the tools of tools/check). STAMP says what the installation was made from;
it is written last, so that an interrupted set-up is simply done again.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

EXTRAS = {"run": "", "dev": "[dev]"}
# Settings of pip that would install somewhere else than into this environment.
MISLEADING = ("PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_DRY_RUN")
PROBE = "import sys; sys.exit(sys.version_info < (3, 11))"


def say(text: str) -> None:
    # To stderr, always: stdout belongs to the command that is started afterwards.
    print(f"crushlite: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def alone(root: Path) -> Iterator[None]:
    """One set-up at a time: people start a daemon and its first client at the same moment."""
    import fcntl

    with (root / "pyproject.toml").open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            pass  # a file system without locks: then it is up to the user
        yield


def succeeds(python: Path, *arguments: str) -> bool:
    try:
        return subprocess.run([python, "-I", *arguments], capture_output=True).returncode == 0
    except OSError:
        return False


def make_environment(folder: Path, python: Path) -> None:
    if not succeeds(python, "-c", PROBE):
        # Nothing is there, or what is there has lost its Python: start from nothing.
        venv.EnvBuilder(with_pip=True, clear=folder.exists(), symlinks=True).create(folder)
    elif not succeeds(python, "-m", "pip", "--version"):
        # An environment of the user's own making keeps what it has.
        subprocess.run([python, "-I", "-m", "ensurepip"], capture_output=True, check=True)


def install(root: Path, python: Path, kind: str) -> bool:
    pip = [str(python), "-I", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    # Of the tools only some modules are ever imported: those are compiled then.
    command = [*pip, "--no-input", "--no-compile", "--editable", f"{root}{EXTRAS[kind]}"]
    # -I keeps this Python from PYTHON* settings, but not the ones that pip starts.
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in MISLEADING and not name.startswith("PYTHON")
    }
    environment["PIP_USER"] = "0"  # a configuration file may ask for it, too
    return subprocess.run(command, env=environment, stdout=sys.stderr).returncode == 0


def set_up(root: Path, kind: str, stamp: str) -> int:
    folder = root / ".venv"
    python, note = folder / "bin" / "python", folder / f"crushlite-{kind}.stamp"
    if note.is_file() and note.read_text().strip() == stamp and succeeds(python, "-c", PROBE):
        return 0  # someone else did it while we waited for our turn
    say(f"setting up {folder} (needed once, takes up to a minute) ...")
    try:
        make_environment(folder, python)
    except subprocess.CalledProcessError as error:
        output = (error.stdout or error.stderr or b"").decode(errors="replace").strip()
        say(f"could not put pip into {folder}: the module ensurepip of {sys.executable} failed.")
        say(f"It said: {output or error}")
        say("On Debian and Ubuntu, `sudo apt install python3-venv` helps. Then run this again.")
        return 1
    if not install(root, python, kind):
        say("pip could not install the package; its reason is above. Nothing else was changed.")
        return 1
    note.write_text(f"{stamp}\n")
    return 0


def main() -> int:
    root, kind, stamp = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    try:
        with alone(root):
            return set_up(root, kind, stamp)
    except OSError as error:
        say(f"could not set up {root / '.venv'}: {error}")
        return 1
    except KeyboardInterrupt:
        say("interrupted; run this again to go on.")
        return 130


if __name__ == "__main__":
    sys.exit(main())
