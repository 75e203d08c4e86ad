"""One simulated world: a computer, and the daemons that live on it one after the other.

`simulate(seed)` draws a scenario and runs it. Some daemons leave in order, others crash: the loop
is stopped between two callbacks, everything is abandoned, and the next daemon opens what is on the
disk. In the end one more daemon reads what all the others have left.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import os
import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from crushlite.claims import Graces
from crushlite.events import Bounds
from crushlite.hosting import workspace_base
from crushlite.settings import Settings
from tests.support.simulation.ledger import Ledger, Trace, Violation
from tests.support.simulation.life import Life
from tests.support.simulation.loop import WALL, LoopClock, SeededLoop, Stuck
from tests.support.simulation.machine import SimulatedDisk, seeded_machine
from tests.support.simulation.spies import spies

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterator

ROOT_LENGTH = 120  # characters of the path of a world: answers hold it, and their length matters


@dataclass
class Result:
    seed: int
    digest: str
    counts: Counter[str]
    violations: list[str]
    trace: list[str]

    @property
    def ok(self) -> bool:
        return not self.violations

    def report(self, lines: int = 60) -> str:
        """What went wrong, with the end of the trace; `tools/simulate.py --seed N` shows it all."""
        tail = "\n".join(line[:400] for line in self.trace[-lines:])
        return f"seed {self.seed}: {self.violations[0]}\n{tail}\nseed {self.seed}"


class Death:
    """How a daemon ends before its clients are done: after so many callbacks of its loop, or
    statements of its database, or in order, after so many seconds."""

    def __init__(self, rng: random.Random) -> None:
        self.how = rng.choice(("callbacks", "callbacks", "statements", "statements", "stop"))
        digits = {"callbacks": (1.9, 3.3), "statements": (0.7, 2.6), "stop": (-2.0, 1.3)}
        after = 10 ** rng.uniform(*digits[self.how])
        self.after = after if self.how == "stop" else int(after)
        self.power_fails = self.how != "stop" and rng.random() < 0.5

    def __repr__(self) -> str:
        return f"{self.how} {self.after}{' power' * self.power_fails}"


class Draft:
    """What is drawn about a world as a whole."""

    def __init__(self, rng: random.Random) -> None:
        self.clients = rng.randrange(2, 5)
        self.sessions = rng.choice((1, 1, 1, 2, 3))
        self.actions = rng.randrange(2, 9)
        # One for each daemon but the last:
        self.deaths = [Death(rng) for _ in range(rng.choices((0, 1, 2), (5, 4, 2))[0])]
        self.calm = rng.random() < 0.3  # agents end their turns by themselves
        self.permute = rng.choice((0.0, 0.3, 1.0, 1.0))
        self.jitter = rng.choice((0.0, 0.1, 0.5))
        self.lag = rng.choice((0.0, 0.001, 0.05))
        self.disk = rng.choice(("fast", "slow", "moody"))
        self.trouble = rng.random() < 0.4  # it is full, locked or broken now and then
        self.latency = rng.choice((0.0, 0.005, 0.1))
        self.high_water = rng.choice((None, None, 0, 600))  # bytes
        self.short_ring = rng.random() < 0.25  # streams may hold little, and so does their ring
        self.settings = Settings(
            graces=Graces(rng.choice((5.0, 30.0)), rng.choice((0.0, 2.0, 10.0)), None),
            cancel_grace=rng.choice((0.5, 5.0)),
            coalesce=rng.choice((0.0, 0.033, 0.033, 0.5)),
            unattended=rng.choice((None, 5.0, 60.0)),
        )


def folder_for_worlds() -> str | None:
    """Where the files of worlds are best put: in memory if the system has such a place, since
    every commit flushes them to disk."""
    memory = Path("/dev/shm")
    return str(memory) if os.access(memory, os.W_OK) else None


def simulate(seed: int, folder: Path) -> Result:
    """Run the scenario of a seed in a directory below `folder`, which is made and removed again.
    Its path has the same length wherever that is, so that the same bytes go over the network."""
    padding = ROOT_LENGTH - len(str(folder)) - 1
    if padding < 1:
        raise ValueError(f"{folder}: choose a folder with a shorter path")
    return World(seed, folder / ("w" * padding)).run()


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Without the garbage collector: it takes a quarter of the time, and a world is small."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class World:
    def __init__(self, seed: int, root: Path) -> None:
        self.seed = seed
        self.project = root / "project"
        self.disk = SimulatedDisk(self.project / ".crushlite" / "crushlite.db", self.rng("power"))
        self.ledger = Ledger(Trace(root), self.disk.query)
        self.draft = Draft(self.rng("draft"))
        self._root = root
        self._wall = WALL

    def rng(self, about: str) -> random.Random:
        """A source of its own for each purpose: what one draws does not change the others."""
        return random.Random(f"{self.seed}/{about}")

    def run(self) -> Result:
        ledger = self.ledger
        shutil.rmtree(self._root, ignore_errors=True)
        self.project.mkdir(parents=True)
        ledger.trace.add(f"seed {self.seed}: {vars(self.draft)}")
        with (
            _no_collection(),
            seeded_machine(self.disk, self.rng("ids")),
            spies(ledger),
            self._bounds(),
        ):
            try:
                for death in (*self.draft.deaths, None):
                    self._live(Life.play, death)
                self._live(Life.audit, None)  # a last daemon that does nothing but read
            finally:
                self.disk.crash()
                shutil.rmtree(self._root, ignore_errors=True)
        trace = ledger.trace
        return Result(self.seed, trace.digest(), ledger.counts, ledger.violations, trace.lines)

    def _bounds(self) -> contextlib.AbstractContextManager[Any]:
        if not self.draft.short_ring:
            return contextlib.nullcontext()
        self.ledger.counts["short ring"] += 1
        small = functools.partial(Bounds, entries=24, bytes=40_000)
        return mock.patch.object(workspace_base, "Bounds", small)

    def _live(self, main: Callable[[Life], Any], death: Death | None) -> None:
        """Run one daemon from its start to its end."""
        ledger, draft, number = self.ledger, self.draft, self.ledger.life + 1
        if ledger.violations:
            return
        loop = SeededLoop(
            self.rng(f"loop {number}"),
            permute=draft.permute,
            jitter=draft.jitter,
            lag=draft.lag,
            unhandled=lambda context: ledger.violate(f"the loop was given {context!r}"),
        )
        ledger.begin_life(loop, draft.settings.cancel_grace)
        life = Life(self, loop, LoopClock(loop, self._wall), self.rng(f"life {number}"))
        crash_at = self._prepare(death, life)
        ended = False
        try:
            ended = loop.run(main(life), crash_at)
        except (Violation, Stuck) as error:
            ledger.violate(str(error))
        except Exception as error:  # noqa: BLE001 - a fault of the simulation itself, or of a check
            ledger.violate(f"{type(error).__name__}: {error}")
        self._wall += loop.time() - 999.0
        ledger.counts["callbacks"] += loop.steps
        ledger.counts["lives"] += 1
        if ended:
            self._require_nothing_left(loop)
            loop.close()
        else:
            self._crash(loop)

    def _prepare(self, death: Death | None, life: Life) -> int | None:
        """Arrange for the death of a daemon; returns the callbacks after which its loop stops."""
        disk = self.disk
        disk.power_fails = death is not None and death.power_fails
        disk.dies_at = life.leaves_after = None
        disk.dying = life.loop.halt
        if death is None:
            return None
        if death.how == "statements":
            disk.dies_at = int(death.after)
        elif death.how == "stop":
            life.leaves_after = death.after
        return int(death.after) if death.how == "callbacks" else None

    def _crash(self, loop: SeededLoop) -> None:
        ledger = self.ledger
        ledger.trace.add("the daemon dies")
        ledger.counts["power cuts" if self.disk.power_fails else "crashes"] += 1
        ledger.muted = True
        self.disk.free()
        self.disk.crash()
        loop.abandon()
        ledger.muted = False
        with self.disk.looked_at():
            ledger.after_crash()

    def _require_nothing_left(self, loop: SeededLoop) -> None:
        """At the end of a life no task, timer, or open store is left."""
        left = asyncio.all_tasks(loop)
        if left:
            self.ledger.violate(f"tasks are left:\n{loop.describe_tasks()}")
            for task in left:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
        if loop.armed_timers():
            self.ledger.violate(f"timers are left: {loop.armed_timers()}")
        if self.disk.locks:
            self.ledger.violate("a store is still open")
