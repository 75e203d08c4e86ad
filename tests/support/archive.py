"""The package in a zip archive and under another name, as a tool may vendor it."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING

from tests.support.basics import LIMIT
from tests.support.places import PACKAGE

if TYPE_CHECKING:
    from pathlib import Path

NAME = "othertool"


def run_from_archive(folder: Path, code: str, *arguments: str) -> str:
    """Run Python code, in which `import othertool` imports the package from an archive in `folder`.
    Return what it printed; fails with what it wrote to standard error."""
    archive = folder / "vendored.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in PACKAGE.rglob("*.py"):
            file.write(path, f"{NAME}/{path.relative_to(PACKAGE)}")
    start = f"import sys; sys.path.insert(0, {str(archive)!r})\n"
    command = [sys.executable, "-P", "-c", start + code, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    return done.stdout
