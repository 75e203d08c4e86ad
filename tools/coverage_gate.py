"""The coverage gate: each small machine is covered wholly, branches too, by its OWN tests.

A line that some far-away test happens to run is not tested. So every module here is measured
alone, while only the tests of its name run. Data files go to a temporary folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parent.parent
MODULES = {
    "crushlite/runs.py": "tests/machines/test_runs.py",
    "crushlite/claims.py": "tests/machines/test_claims.py",
    "crushlite/hosting/dialogs.py": "tests/hosting/test_dialogs.py",
    "crushlite/events.py": "tests/events",
    "crushlite/backlog.py": "tests/events",
}
# Half the cores: the tests have wall-clock limits, measuring doubles their time, and on two cores
# several measurements at once used up what was left (seen with the long walks of test_events).
AT_ONCE = max(1, (os.cpu_count() or 1) // 2)


def coverage(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "coverage", *arguments]
    return subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def problem_of(module: str, folder: Path) -> str:
    """What keeps a module from passing; empty if it is covered wholly."""
    test = MODULES[module]
    # A module that was renamed must not slip out of the gate.
    absent = [path for path in (module, test) if not (ROOT / path).exists()]
    if absent:
        return f"{' and '.join(absent)}: no such file"
    name = module.removesuffix(".py").replace("/", ".")
    data = f"--data-file={folder / name}"
    # --source, not --include: the configuration names the whole package as the source, and
    # beside a source coverage ignores --include.
    measure = ("run", data, "--branch", f"--source={name}")
    # The named cases must cover the module by themselves: an exploration that happens to pass by
    # says nothing about what a line is for, and takes minutes under measurement.
    named = ("-k", "not Exploration and not RandomWalk")
    ran = coverage(*measure, "-m", "pytest", "-q", "-p", "no:cacheprovider", *named, test)
    if ran.returncode != 0:
        return f"{test} did not pass under coverage:\n{ran.stdout}"
    report = coverage("report", data, f"--include={module}", "--show-missing", "--fail-under=100")
    return "" if report.returncode == 0 else f"{test} does not cover it wholly:\n{report.stdout}"


def main(modules: Sequence[str]) -> int:
    """Measure these modules."""
    failed = False
    with (
        tempfile.TemporaryDirectory(prefix="crushlite-coverage-") as folder,
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):
        problems = pool.map(partial(problem_of, folder=Path(folder)), modules)
        for module, problem in zip(modules, problems, strict=True):
            failed = failed or bool(problem)
            print(f"{module}: {problem or '100 % of lines and branches'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(MODULES)))
