"""Every wing can be taken off, and what is left works: a prompt, a cancel, kill -9, a restart."""

from __future__ import annotations

import compileall
import contextlib
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h11

from crushlite.wings import WINGS
from tests.support.places import PACKAGE, TESTS
from tools.house_map import LIBRARIES

if TYPE_CHECKING:
    from collections.abc import Iterator

SMOKE = TESTS / "support" / "smoke.py"
PATIENCE = 120
# What the script must have seen, whatever is missing.
EXPECTED = {
    "answer": "You said: hello",
    "canceled": [["two", "active"]],
    "outcome": "canceled",
    "resumed": ["recovered", "resync"],
    "runs": [["one", "completed"], ["two", "canceled"], ["three", "failed"]],
    "prompts": ["hello", "hang", "hang"],
    "left": "You said: still there?",
    "exit": 0,
}
FOLDERS = [*(module.split(".")[1] for module, _ in WINGS), "cli"]


@functools.cache
def compile_package() -> None:
    """Compile the package once: each copy without compiled files takes a second to do it itself."""
    compileall.compile_dir(PACKAGE, quiet=1)


class CopyCase(unittest.TestCase):
    """Works on a copy of the package in a folder of its own."""

    def setUp(self) -> None:
        # A socket's path must be short: not below a long TMPDIR.
        self.root = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="cl-", dir="/tmp")))
        h11_at = Path(h11.__file__).parent
        shutil.copytree(h11_at, self.root / "deps" / "h11", ignore=shutil.ignore_patterns("tests"))

    def copy(self, target: str = "crushlite") -> Path:
        """A copy of the package at a path below the root."""
        package = self.root / "lib" / target
        compile_package()
        shutil.copytree(PACKAGE, package)  # files keep their times, so compiled ones stay valid
        return package

    @contextlib.contextmanager
    def without(self, package: Path, *wings: str) -> Iterator[None]:
        """Take some wings off a copy, and put them back."""
        listing = package / "wings.py"
        whole = listing.read_text()
        left = [
            line
            for line in whole.splitlines(keepends=True)
            if not any(f'".{wing}.wing"' in line for wing in wings)
        ]
        off = self.root / "off"
        off.mkdir()
        for wing in wings:
            os.rename(package / wing, off / wing)
        try:
            self._write_source(listing, "".join(left))
            yield
        finally:
            self._write_source(listing, whole)
            for wing in wings:
                os.rename(off / wing, package / wing)
            off.rmdir()

    def _write_source(self, path: Path, text: str) -> None:
        path.write_text(text)
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            compiled.unlink()  # it would count as up to date within the same second

    def python(
        self, *arguments: str, path: str = "", **env: str
    ) -> subprocess.CompletedProcess[str]:
        places = {name: str(self.root / name) for name in ("HOME", "XDG_RUNTIME_DIR", "TMPDIR")}
        for place in places.values():
            os.makedirs(place, mode=0o700, exist_ok=True)
        path = path or str(self.root / "lib")
        environment = {
            **places,
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join((path, str(self.root / "deps"))),
            "PYTHONWARNINGS": "error",
            **env,
        }
        return subprocess.run(
            # The interpreter behind the environment, in which no crushlite is installed. -P: the
            # directory of the script must not be where the package is found.
            [getattr(sys, "_base_executable", sys.executable), "-P", *arguments],
            cwd=self.root,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )

    def smoke(self, package: str = "crushlite", *options: str, path: str = "") -> dict[str, Any]:
        done = self.python(str(SMOKE), package, str(self.root), *options, path=path)
        self.assertEqual(done.returncode, 0, done.stderr)
        seen: dict[str, Any] = json.loads(done.stdout)
        self.assertEqual(seen.pop("address"), f"serving at unix://{self.root}/s")
        return seen

    def run_command(self, package: str, *, path: str = "") -> None:
        """`run` by the package's own name finds no daemon, starts one, and gets an answer."""
        run = ("-m", package, "run", "--agent", "offline", "hello")
        done = self.python(*run, path=path)
        stopped = self.python("-m", package, "stop", path=path)
        self.assertEqual((done.returncode, done.stdout.count("hello")), (0, 1), done)
        self.assertEqual(stopped.returncode, 0, stopped)


class TakenOffTests(CopyCase):
    def test_each_wing_can_be_taken_off(self) -> None:
        package = self.copy()
        for wing in FOLDERS:
            shutil.rmtree(self.root / "project", ignore_errors=True)
            with self.subTest(wing), self.without(package, wing):
                if wing == "cli":
                    self.assertEqual(self.smoke(), EXPECTED)
                else:
                    expected = {**EXPECTED, "command": [0, 0, 1]}
                    self.assertEqual(self.smoke("crushlite", "command"), expected)

    def test_the_core_alone_is_a_daemon(self) -> None:
        package = self.copy()
        # Libraries are what only wings use.
        with self.without(package, *FOLDERS, *LIBRARIES):
            self.assertEqual(self.smoke(), EXPECTED)

    def test_a_daemon_can_leave_the_wings_that_are_there(self) -> None:
        self.copy()
        self.assertEqual(self.smoke("crushlite", "core"), EXPECTED)


class VendoringTests(CopyCase):
    """Under another name, deep inside another tool, with h11 beside it."""

    NAME = "othertool._vendor.engine"

    def vendor(self) -> Path:
        package = self.copy("othertool/_vendor/engine")
        for folder in (package.parent, package.parent.parent):
            (folder / "__init__.py").write_text("")
        return package

    def test_a_copy_under_another_name_works_and_starts_itself_by_it(self) -> None:
        self.vendor()
        self.assertEqual(self.smoke(self.NAME), EXPECTED)
        self.assertTrue((self.root / "project" / ".othertool" / "crushlite.db").is_file())
        self.run_command(self.NAME)
        sockets = self.root / "XDG_RUNTIME_DIR"
        self.assertEqual([path.name for path in sockets.iterdir()], ["othertool"])

    def test_a_copy_in_a_zip_archive_works_and_starts_itself(self) -> None:
        package = self.vendor()
        archive, top = self.root / "tool.zip", package.parent.parent.parent
        with zipfile.ZipFile(archive, "w") as packed:
            for path in sorted(top.rglob("*")):
                name = path.relative_to(top)
                if (
                    path.suffix == ".pyc"
                ):  # an import from an archive looks for it beside the source
                    name = name.parent.parent / f"{path.name.partition('.')[0]}.pyc"
                packed.write(path, name)
        shutil.rmtree(top)
        self.assertEqual(self.smoke(self.NAME, path=str(archive)), EXPECTED)
        self.run_command(self.NAME, path=str(archive))

    def test_no_string_that_is_imported_or_started_holds_the_name_of_the_package(self) -> None:
        wrong = [
            f"{path.relative_to(PACKAGE)}:{number}: {line.strip()}"
            for path in sorted(PACKAGE.rglob("*.py"))
            for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
            if re.search(r"""["']-m["'], ["']crushlite|import_module\(f?["']crushlite""", line)
            or re.match(r"\s*(from|import) crushlite\b", line)
        ]
        # Examples in docstrings show how others import it.
        wrong = [
            line for line in wrong if not re.search(r":\d+: from crushlite(\.\w+)? import", line)
        ]
        self.assertEqual(wrong, [])
