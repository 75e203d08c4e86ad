"""The coverage gate: each small machine is covered wholly, branches too, by its OWN test file.

A line that some far-away test happens to run is not tested. So every module here is measured
alone, while only the test file of its name runs. Data files go to a temporary folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parent.parent
MODULES = ("runs", "claims", "pending", "events")


class Measurement(NamedTuple):
    name: str
    data: Path
    output: Path
    process: subprocess.Popen[bytes]


def coverage(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "coverage", *arguments]


def plain() -> dict[str, str]:
    """The environment without Python's debug modes: on top of the measuring they make the long
    walks slow enough to run into their own time limits, and they cover nothing more."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def start(name: str, folder: Path) -> Measurement:
    """Run the module's tests under coverage; all modules are measured at the same time."""
    data, output = folder / f"{name}.coverage", folder / f"{name}.log"
    # --source, not --include: the configuration names the whole package as the source, and
    # beside a source coverage ignores --include.
    measure = ("run", f"--data-file={data}", "--branch", f"--source=crushlite.{name}")
    test = ("-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/test_{name}.py")
    with output.open("wb") as log:
        process = subprocess.Popen(
            coverage(*measure, *test), cwd=ROOT, env=plain(), stdout=log, stderr=subprocess.STDOUT
        )
    return Measurement(name, data, output, process)


def verdict(measurement: Measurement) -> str:
    """Empty if the module is covered wholly, else what to show."""
    name = measurement.name
    if measurement.process.wait() != 0:
        log = measurement.output.read_text("utf-8", "replace")
        return f"tests/test_{name}.py did not pass under coverage:\n{log}"
    report = coverage(
        "report",
        f"--data-file={measurement.data}",
        f"--include=crushlite/{name}.py",
        "--show-missing",
        "--fail-under=100",
    )
    answer = subprocess.run(report, cwd=ROOT, capture_output=True, text=True)
    if answer.returncode == 0:
        return ""
    return f"tests/test_{name}.py does not cover it wholly:\n{answer.stdout}{answer.stderr}"


def missing(name: str) -> list[str]:
    wanted = (f"crushlite/{name}.py", f"tests/test_{name}.py")
    return [f"{path} does not exist" for path in wanted if not (ROOT / path).is_file()]


def main(names: Sequence[str]) -> int:
    """Measure the modules named, or all."""
    failed = False
    with tempfile.TemporaryDirectory(prefix="crushlite-coverage-") as folder:
        running = {
            name: start(name, Path(folder)) for name in names or MODULES if not missing(name)
        }
        for name in names or MODULES:
            problem = verdict(running[name]) if name in running else ", ".join(missing(name))
            failed = failed or bool(problem)
            print(f"crushlite/{name}.py: {problem or '100 % of lines and branches'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
