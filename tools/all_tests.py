"""Run every test in several processes at once, and beside them whatever else is wished: mypy, the
coverage of the state machines, the tests against real programs (which are installed for it).

    python tools/all_tests.py [--jobs N] [--types] [--coverage] [--peers] [--ignore FILE]
                              [PYTEST_ARGUMENT ...]

A pytest process gets a part of a large folder, or several small folders: so that every core has
work to the end, and few processes import the package. The longest begin first. What a process
prints is shown when it has ended; the exit code is 1 if any of them failed. Only pytest is needed
for it, and mypy with --types.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
NO_TESTS = 5  # pytest's exit code for "nothing was collected", as with -k

# How long a file takes is guessed from its lines. Tests that drive models, processes, terminals
# and browsers, or look at all sources, take longer than their length says.
SLOW = {"coder": 2, "cli": 2, "console": 4, "daemon": 4, "house": 4, "machines": 2}
PART = 5000  # lines: about half a minute


# Installs the real programs, in $0's environment, and runs the tests against them in their own.
PEERS = '"$0" tools/peers.py . && exec .peers/venv/bin/python -m pytest tests/peers'


class Job(NamedTuple):
    name: str
    weight: float
    command: list[str]


def parts(files: list[Path]) -> dict[str, dict[Path, int]]:
    """The files that one process each gets, with their weights. A folder above PART is split into
    parts of equal weight; smaller ones share a process."""
    folders: dict[str, dict[Path, int]] = defaultdict(dict)
    for file in files:
        lines = file.read_text("utf-8").count("\n")
        folder = file.relative_to(TESTS).parts[0]
        folders[folder][file] = lines * SLOW.get(folder, 1)
    answer: dict[str, dict[Path, int]] = {}
    shared: dict[Path, int] = {}
    names: list[str] = []
    for folder, weights in sorted(folders.items(), key=lambda item: -sum(item[1].values())):
        if sum(weights.values()) > PART:
            answer |= _split(folder, weights)
            continue
        if names and sum((*shared.values(), *weights.values())) > PART:
            answer[", ".join(names)] = shared
            shared, names = {}, []
        shared |= weights
        names.append(folder)
    if names:
        answer[", ".join(names)] = shared
    return answer


def _split(folder: str, weights: dict[Path, int]) -> dict[str, dict[Path, int]]:
    count = -(-sum(weights.values()) // PART)
    split: list[dict[Path, int]] = [{} for _ in range(count)]
    for file in sorted(weights, key=lambda file: -weights[file]):
        min(split, key=lambda part: sum(part.values()))[file] = weights[file]
    return {f"{folder} {number}/{count}": part for number, part in enumerate(split, 1) if part}


def run(job: Job) -> tuple[Job, int, float, str]:
    began = time.monotonic()
    done = subprocess.run(
        job.command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return job, done.returncode, time.monotonic() - began, done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, add_help=False)
    # One more than there are cores: tests wait for processes and disks.
    parser.add_argument("--jobs", type=int, default=1 + (os.cpu_count() or 1))
    for name in ("--types", "--coverage", "--peers"):
        parser.add_argument(name, action="store_true")
    parser.add_argument("--ignore", action="append", default=[])
    options, arguments = parser.parse_known_args()
    ignored = {ROOT / path for path in options.ignore}
    ignored |= {*(TESTS / "peers").glob("*.py")}  # they have an environment of their own
    files = [path for path in sorted(TESTS.rglob("test_*.py")) if path not in ignored]
    pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    jobs = [
        Job(name, sum(weights.values()), [*pytest, *map(str, sorted(weights)), *arguments])
        for name, weights in parts(files).items()
    ]
    if options.types:
        jobs.append(Job("types (mypy)", float("inf"), [sys.executable, "-m", "mypy"]))
    if options.coverage:
        jobs.append(Job("coverage", float("inf"), [sys.executable, "tools/coverage_gate.py"]))
    if options.peers:  # waits for the network at first
        jobs.append(Job("real programs", float("inf"), ["sh", "-c", PEERS, sys.executable]))
    jobs.sort(key=lambda job: -job.weight)
    failed: list[str] = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for done in as_completed([pool.submit(run, job) for job in jobs]):
            job, code, seconds, output = done.result()
            if code in (0, NO_TESTS):
                lines = output.strip().splitlines()
                print(f"{job.name}: {lines[-1].strip('= ') if lines else ''}", flush=True)
            else:
                failed.append(job.name)
                print(f"{job.name}: FAILED after {seconds:.0f} s\n{output}", flush=True)
    if failed:
        print(f"failed: {', '.join(sorted(failed))}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
