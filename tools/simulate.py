"""Run the daemon through many drawn scenarios on a deterministic event loop.

    python tools/simulate.py --seeds 10000             # about 10 minutes on 2 cores
    python tools/simulate.py --seeds 500 --from 2000
    python tools/simulate.py --seed 4711 --trace       # one scenario, line by line

Each seed is a world of its own: a daemon with clients that come, go and stall, an agent that does
what it likes, a disk that fills up, and crashes (see tests/support/simulation/world.py). Prints the
seeds that violated an invariant, the trace of the first, and how often what was reached. Exit 1 if
there was any. The same seed gives the same trace in every process.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.simulation.world import Result, folder_for_worlds, simulate  # noqa: E402

CHUNK = 20  # seeds per task of a worker
SHOWN = 20  # violations that are printed in one line each


def run_chunk(task: tuple[int, int, str]) -> list[Result]:
    """The results of some seeds. Only those that failed keep their trace."""
    first, last, folder = task
    own = Path(folder) / str(os.getpid())
    results = []
    for seed in range(first, last):
        result = simulate(seed, own)
        if result.ok:
            result.trace = []
        results.append(result)
    return results


def run_many(first: int, last: int, jobs: int) -> int:
    began = time.monotonic()
    counts: Counter[str] = Counter()
    failed: list[Result] = []
    done = 0
    with (
        tempfile.TemporaryDirectory(dir=folder_for_worlds()) as folder,
        multiprocessing.get_context("spawn").Pool(jobs) as pool,
    ):
        tasks = [(at, min(at + CHUNK, last), folder) for at in range(first, last, CHUNK)]
        for results in pool.imap_unordered(run_chunk, tasks):
            done += len(results)
            for result in results:
                counts += result.counts
                if not result.ok:
                    failed.append(result)
                    if len(failed) <= SHOWN:
                        print(f"seed {result.seed}: {result.violations[0][:300]}", flush=True)
            if done % 1000 < CHUNK:
                print(f"{done} seeds, {len(failed)} failed", flush=True)
    seconds = time.monotonic() - began
    for name, count in sorted(counts.items()):
        print(f"{count:10} {name}")
    if failed:
        worst = min(failed, key=lambda result: len(result.trace))
        print(f"\n{worst.report(200)}\n")
        print("failed seeds:", *sorted(result.seed for result in failed))
    print(f"{done} seeds, {len(failed)} failed, {seconds:.0f} s")
    return 1 if failed else 0


def run_one(seed: int, *, trace: bool) -> int:
    with tempfile.TemporaryDirectory(dir=folder_for_worlds()) as folder:
        result = simulate(seed, Path(folder))
    if trace:
        print("\n".join(result.trace))
    elif not result.ok:
        print(result.report())
    print(f"seed {seed}: {'ok' if result.ok else result.violations[0]} {result.digest}")
    return 0 if result.ok else 1


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first of them")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--trace", action="store_true", help="with --seed: print everything")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    options = parser.parse_args()
    if options.seed is not None:
        return run_one(options.seed, trace=options.trace)
    return run_many(options.first, options.first + options.seeds, options.jobs)


if __name__ == "__main__":
    sys.exit(main())
