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
import math
import os
import resource
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

# How long a file takes is guessed from its lines; those that take much longer than their length
# says were measured. An old figure costs some time at the end of the check, and nothing else.
LINES = 300  # in a second
SECONDS = {
    "api": {"test_auth": 5, "test_input": 8},
    "cli": {"test_care": 6, "test_chat": 7, "test_data": 6, "test_run": 6, "test_run_terminal": 6},
    "coder": {
        "test_hostile_repos": 13,
        "test_mistakes": 8,
        "test_prompt_caching": 6,
        "test_tools_paths": 8,
        "test_tools_safe": 10,
        "test_tools_search": 12,
    },
    "commands": {"test_process": 6},
    "console": {"test_browser": 80, "test_comfort": 25, "test_features": 15},
    "daemon": {"test_bounded_exit": 8, "test_daemon": 20},
    "house": {"test_bench": 5, "test_wings": 22},
    "machines": {"test_claims": 9, "test_runs": 19},
    "scenarios": {"test_events": 10},
    "simulation": {"test_simulation": 7},
    "store": {"test_damage": 8, "test_migrations": 6},
    "wire": {"test_restart": 7},
}
PART = 30  # seconds


# Install real programs, in $0's environment, and run the tests against them in their own.
PEERS = """
    "$0" tools/peers.py . || exit
    exec .peers/venv/bin/python -m pytest tests/peers
"""


class Job(NamedTuple):
    name: str
    weight: float
    command: list[str]


def parts(files: list[Path]) -> dict[str, dict[Path, float]]:
    """The files that one process each gets, with their seconds. A folder above PART is split into
    parts that take about as long; smaller ones share a process."""
    folders: dict[str, dict[Path, float]] = defaultdict(dict)
    for file in files:
        folder = file.relative_to(TESTS).parts[0]
        guess = file.read_text("utf-8").count("\n") / LINES
        folders[folder][file] = SECONDS.get(folder, {}).get(file.stem, guess)
    answer: dict[str, dict[Path, float]] = {}
    shared: dict[Path, float] = {}
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


def _split(folder: str, weights: dict[Path, float]) -> dict[str, dict[Path, float]]:
    split: list[dict[Path, float]] = [{f: w} for f, w in weights.items() if w >= PART]
    rest = {file: weight for file, weight in weights.items() if weight < PART}
    smaller: list[dict[Path, float]] = [{} for _ in range(math.ceil(sum(rest.values()) / PART))]
    for file in sorted(rest, key=lambda file: -rest[file]):
        min(smaller, key=lambda part: sum(part.values()))[file] = rest[file]
    split += smaller
    return {f"{folder} {number}/{len(split)}": part for number, part in enumerate(split, 1)}


class Done(NamedTuple):
    job: Job
    code: int
    seconds: float
    cpu: float  # seconds of all its processes that were waited for
    output: str


def run(job: Job) -> Done:
    began = time.monotonic()
    process = subprocess.Popen(
        job.command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    cpu = used.ru_utime + used.ru_stime
    return Done(job, process.returncode, time.monotonic() - began, cpu, output)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, add_help=False)
    # Two more than there are cores: tests wait for processes, browsers and disks.
    parser.add_argument("--jobs", type=int, default=2 + (os.cpu_count() or 1))
    for name in ("--types", "--coverage", "--peers"):
        parser.add_argument(name, action="store_true")
    parser.add_argument("--ignore", action="append", default=[])
    options, arguments = parser.parse_known_args()
    ignored = {ROOT / path for path in options.ignore}
    ignored |= {*(TESTS / "peers").glob("*.py")}  # they have an environment of their own
    files = [path for path in sorted(TESTS.rglob("test_*.py")) if path not in ignored]
    # Tests here call methods of unittest: to rewrite `assert` takes longer than to compile them.
    pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--assert=plain"]
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
            job, code, seconds, cpu, output = done.result()
            if code in (0, NO_TESTS):
                lines = output.strip().splitlines()
                said = lines[-1].strip("= ") if lines else ""
                print(f"{job.name}: {said} ({cpu:.0f} s of CPU)", flush=True)
            else:
                failed.append(job.name)
                print(f"{job.name}: FAILED after {seconds:.0f} s\n{output}", flush=True)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{used.ru_utime + used.ru_stime:.0f} s of CPU, without processes that nobody waited for")
    if failed:
        print(f"failed: {', '.join(sorted(failed))}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
