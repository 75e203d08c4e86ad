"""Run every test, a folder per pytest process, as many at once as there are cores.

    python tools/all_tests.py [--jobs N] [PYTEST_ARGUMENT ...]

The folders that take longest begin first. What a folder's tests print is shown when they have
ended; the exit code is 1 if any of them failed. Only pytest is needed for it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NO_TESTS = 5  # pytest's exit code for "nothing was collected", as with -k


def folders() -> list[Path]:
    """Folders with tests, the longest to read first: that is a fair guess at the time they take.
    Those that drive models, processes, terminals and browsers take longer than any other. The
    tests against real programs need an environment of their own."""
    found = {path.parent for path in (ROOT / "tests").rglob("test_*.py")}
    found.discard(ROOT / "tests" / "peers")
    slow = {"coder": 0, "cli": 1, "console": 2, "daemon": 3}
    return sorted(found, key=lambda folder: (slow.get(folder.name, len(slow)), -_lines(folder)))


def _lines(folder: Path) -> int:
    return sum(path.read_text("utf-8").count("\n") for path in folder.glob("test_*.py"))


def run(folder: Path, arguments: list[str]) -> tuple[Path, int, float, str]:
    began = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(folder), *arguments]
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return folder, done.returncode, time.monotonic() - began, done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, add_help=False)
    parser.add_argument("--jobs", type=int, default=max(1, os.cpu_count() or 1))
    options, arguments = parser.parse_known_args()
    failed: list[str] = []
    with ThreadPoolExecutor(options.jobs) as pool:
        runs = [pool.submit(run, folder, arguments) for folder in folders()]
        for done in as_completed(runs):
            folder, code, seconds, output = done.result()
            name = folder.relative_to(ROOT).as_posix()
            if code in (0, NO_TESTS):
                lines = output.strip().splitlines()
                print(f"{name}: {lines[-1].strip('= ') if lines else ''}", flush=True)
            else:
                failed.append(name)
                print(f"{name}: FAILED after {seconds:.0f} s\n{output}", flush=True)
    if failed:
        print(f"failed: {', '.join(sorted(failed))}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
