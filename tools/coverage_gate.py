"""The coverage gate: each small machine is covered wholly, branches too, by its OWN tests.

A line that some far-away test happens to run is not tested. So every module here is measured while
only its own tests run. Data files go to a temporary folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import defaultdict
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


def problems_of(test: str, modules: Sequence[str], folder: Path) -> dict[str, str]:
    """What keeps each of the modules with these tests from passing; empty if it is covered
    wholly."""
    # A module that was renamed must not slip out of the gate.
    absent = [path for path in (*modules, test) if not (ROOT / path).exists()]
    if absent:
        return dict.fromkeys(modules, f"{' and '.join(absent)}: no such file")
    names = [module.removesuffix(".py").replace("/", ".") for module in modules]
    data = f"--data-file={folder / names[0]}"
    # --source, not --include: the configuration names the whole package as the source, and
    # beside a source coverage ignores --include.
    measure = ("run", data, "--branch", f"--source={','.join(names)}")
    # The named cases must cover the module by themselves: an exploration that happens to pass by
    # says nothing about what a line is for, and takes minutes under measurement.
    named = ("-k", "not Exploration and not RandomWalk")
    ran = coverage(*measure, "-m", "pytest", "-q", "-p", "no:cacheprovider", *named, test)
    if ran.returncode != 0:
        return dict.fromkeys(modules, f"{test} did not pass under coverage:\n{ran.stdout}")
    problems = {}
    for module in modules:
        wanted = (f"--include={module}", "--show-missing", "--fail-under=100")
        report = coverage("report", data, *wanted)
        covered = report.returncode == 0
        problems[module] = "" if covered else f"{test} does not cover it wholly:\n{report.stdout}"
    return problems


def main(modules: Sequence[str]) -> int:
    """Measure these modules, those with the same tests in one go."""
    failed = False
    by_test: dict[str, list[str]] = defaultdict(list)
    for module in modules:
        by_test[MODULES[module]].append(module)
    with (
        tempfile.TemporaryDirectory(prefix="crushlite-coverage-") as folder,
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):
        measured = pool.map(partial(problems_of, folder=Path(folder)), by_test, by_test.values())
        for problems in measured:
            for module, problem in problems.items():
                failed = failed or bool(problem)
                print(f"{module}: {problem or '100 % of lines and branches'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(MODULES)))
