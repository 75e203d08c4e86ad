"""The whole daemon in drawn scenarios on the deterministic loop of tests/support/simulation.

More seeds: python tools/simulate.py --seeds 0..10000
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.simulation.mutants import MUTANTS
from tests.support.simulation.world import folder_for_worlds, simulate

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
SEEDS, PER_TEST = 40, 20
FOUND = (20827, 24111)  # seeds that have found a fault beyond those
NOTICED_SOON = (
    "cancel_misses_what_is_not_committed",
    "prompt_is_answered_before_its_commit",
    "event_is_delivered_twice",
    "stream_resumes_one_event_too_late",
    "queued_prompt_is_not_recovered",
)


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=folder_for_worlds()) as name:
        yield Path(name)


@pytest.mark.parametrize("first", range(0, SEEDS, PER_TEST))
def test_no_drawn_scenario_violates_an_invariant(first: int, folder: Path) -> None:
    for seed in range(first, first + PER_TEST):
        result = simulate(seed, folder)
        assert result.ok, result.report()


@pytest.mark.parametrize("seed", FOUND)
def test_no_fault_that_was_found_is_back(seed: int, folder: Path) -> None:
    result = simulate(seed, folder)
    assert result.ok, result.report()


def test_a_seed_replays_identically_in_one_process(folder: Path) -> None:
    for seed in (1, 2, 3):
        assert simulate(seed, folder).trace == simulate(seed, folder / "elsewhere").trace


def test_a_seed_replays_identically_in_every_process() -> None:
    printed = []
    for hash_seed in ("0", "1"):
        command = [sys.executable, "tools/simulate.py", "--seed", "5"]
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        printed.append(done.stdout)
    assert printed[0].startswith("seed 5: ok ")
    assert printed[0] == printed[1]


def test_seeds_differ(folder: Path) -> None:
    assert simulate(1, folder).digest != simulate(2, folder).digest


@pytest.mark.parametrize("name", NOTICED_SOON)
def test_a_broken_product_is_noticed(name: str, folder: Path) -> None:
    with MUTANTS[name]():
        results = (simulate(seed, folder) for seed in range(60))
        found = next((result for result in results if not result.ok), None)
    assert found is not None
    assert f"seed {found.seed}" in found.report()


def test_a_failing_seed_replays_identically(folder: Path) -> None:
    with MUTANTS["turn_is_left_open_at_its_end"]():
        first, second = simulate(0, folder), simulate(0, folder)
    assert first.violations == second.violations != []
    assert first.digest == second.digest
