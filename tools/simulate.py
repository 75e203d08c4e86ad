"""Run the daemon through many drawn scenarios on a deterministic event loop.

    python tools/simulate.py --seeds 0..10000      # the last is not included
    python tools/simulate.py --seed 4711 --trace   # one scenario, line by line
    python tools/simulate.py --mutants             # break the product on purpose: who notices?

Each seed is a world of its own: a daemon with clients that come, go and stall, an agent that does
what it likes, a disk that fills up, and crashes (see tests/support/simulation/world.py). Prints the
seeds that violated an invariant, the trace of one of them, and how often what was reached. Exit 1
if there was any (with --mutants: if a broken product was not noticed). The same seed gives the same
trace in every process.
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

from tests.support.simulation.mutants import MUTANTS  # noqa: E402
from tests.support.simulation.world import Result, folder_for_worlds, simulate  # noqa: E402

CHUNK = 20  # seeds per task of a worker
SHOWN = 20  # violations that are printed in one line each
ENOUGH = 3  # seeds that notice a mutant


def run_chunk(task: tuple[int, int, str]) -> list[Result]:
    """The results of some seeds. Only those that failed keep their trace."""
    first, last, folder = task
    own = Path(folder) / str(os.getpid())
    results = [simulate(seed, own) for seed in range(first, last)]
    for result in results:
        if result.ok:
            result.trace = []
    return results


def run_many(seeds: range, jobs: int) -> int:
    began = time.monotonic()
    counts: Counter[str] = Counter()
    failed: list[Result] = []
    done = 0
    with (
        tempfile.TemporaryDirectory(dir=folder_for_worlds()) as folder,
        multiprocessing.get_context("spawn").Pool(jobs) as pool,
    ):
        starts = range(seeds.start, seeds.stop, CHUNK)
        tasks = [(at, min(at + CHUNK, seeds.stop), folder) for at in starts]
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
        print(f"\n{min(failed, key=lambda result: len(result.trace)).report(200)}\n")
        print("failed seeds:", *sorted(result.seed for result in failed))
    print(f"{done} seeds, {len(failed)} failed, {seconds:.0f} s, {done / seconds:.1f} seeds/s")
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


def run_mutant(task: tuple[str, range]) -> tuple[str, list[int], str]:
    """The name of a mutant, the first seeds that notice it, and what the first one says."""
    name, seeds = task
    noticed: list[Result] = []
    with tempfile.TemporaryDirectory(dir=folder_for_worlds()) as folder, MUTANTS[name]():
        for seed in seeds:
            result = simulate(seed, Path(folder))
            if not result.ok:
                noticed.append(result)
                if len(noticed) == ENOUGH:
                    break
    words = noticed[0].violations[0] if noticed else "NOT NOTICED"
    return name, [result.seed for result in noticed], words


def run_mutants(seeds: range, jobs: int) -> int:
    missed = 0
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        tasks = [(name, seeds) for name in MUTANTS]
        for name, noticed, words in pool.imap_unordered(run_mutant, tasks):
            missed += not noticed
            print(f"{name}: {noticed} {words.splitlines()[0][:160]}", flush=True)
    return 1 if missed else 0


def _range(text: str) -> range:
    first, dots, last = text.partition("..")
    return range(int(first), int(last)) if dots else range(int(first))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=_range, default=range(1000), metavar="A..B")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--trace", action="store_true", help="with --seed: print everything")
    parser.add_argument("--mutants", action="store_true", help="which seeds notice each mutant")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    options = parser.parse_args()
    if options.seed is not None:
        return run_one(options.seed, trace=options.trace)
    return (run_mutants if options.mutants else run_many)(options.seeds, options.jobs)


if __name__ == "__main__":
    sys.exit(main())
