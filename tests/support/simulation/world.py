"""One simulated world: a computer, and the daemons that live on it one after the other.

`simulate(seed)` draws a scenario and runs it. Some daemons leave in order, others crash: the loop
is stopped between two callbacks, everything is abandoned, and the next daemon opens what is on the
disk. In the end one more daemon reads what all the others have left.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from crushlite.claims import Graces
from crushlite.clock import wait_at_most
from crushlite.daemon import Daemon
from crushlite.events import Bounds
from crushlite.hosting import workspace as workspace_module
from crushlite.settings import Settings
from crushlite.store import Stores
from crushlite.wing import Wing
from tests.support.simulation import invariants
from tests.support.simulation.actions import Actions
from tests.support.simulation.agent import RandomAgent
from tests.support.simulation.client import SimulatedClient
from tests.support.simulation.ledger import Ledger, Trace, Violation
from tests.support.simulation.loop import WALL, LoopClock, SeededLoop, Stuck
from tests.support.simulation.machine import SeededExecutor, SimulatedDisk, seeded_machine
from tests.support.simulation.network import PORT, Network
from tests.support.simulation.spies import spies

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from crushlite.listen import Listener
    from crushlite.wing import OpenWorkspace, WorkspacePart

ROOT_LENGTH = 120  # characters of the path of a world: answers hold it, and their length matters
REST = 240.0  # virtual seconds that may pass until nothing goes on any more


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


class _QuietWatchdog:
    """Instead of the watchdog, which watches real time from a thread."""

    stalls = 0
    worst = 0.0
    lag = 0.0

    def start(self) -> None: ...

    def stop(self) -> None: ...


class _Openings(Wing):
    """Tells the ledger which hub belongs to which workspace."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def open(self, workspace: OpenWorkspace) -> WorkspacePart | None:
        self._ledger.epochs[workspace.id] = workspace.hub.epoch
        self._ledger.counts["openings"] += 1
        return None


class SimulatedDaemon(Daemon):
    """The real daemon, without listening sockets: the network asks its server for connections."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.watchdog = _QuietWatchdog()  # type: ignore[assignment]

    def _bind(self) -> list[Listener]:
        self._guard.add_port(PORT, None)
        return []


@dataclass
class Death:
    """How a daemon ends before its clients are done: after so many callbacks of its loop, or
    statements of its database, or in order, after so many seconds."""

    how: str
    after: float
    power: bool  # fails, unless the daemon leaves in order

    @classmethod
    def drawn(cls, rng: random.Random) -> Death:
        how = rng.choice(("callbacks", "callbacks", "statements", "statements", "stop"))
        digits = {"callbacks": (1.9, 3.3), "statements": (0.7, 2.6), "stop": (-2.0, 1.3)}[how]
        after = 10 ** rng.uniform(*digits)
        return cls(how, after if how == "stop" else int(after), rng.random() < 0.5)


@dataclass
class Draft:
    """What is drawn about a world as a whole."""

    clients: int
    sessions: int
    actions: int
    deaths: list[Death]  # one for each daemon but the last
    calm: bool
    permute: float
    jitter: float
    lag: float
    disk: str
    latency: float
    high_water: int | None
    bounds: tuple[int, int] | None
    trouble: bool
    settings: Settings = field(repr=False)

    @classmethod
    def drawn(cls, rng: random.Random) -> Draft:
        deaths = rng.choices((0, 1, 2), (5, 4, 2))[0]
        return cls(
            clients=rng.randrange(2, 5),
            sessions=rng.choice((1, 1, 1, 2, 3)),
            actions=rng.randrange(2, 9),
            deaths=[Death.drawn(rng) for _ in range(deaths)],
            calm=rng.random() < 0.3,
            permute=rng.choice((0.0, 0.3, 1.0, 1.0)),
            jitter=rng.choice((0.0, 0.1, 0.5)),
            lag=rng.choice((0.0, 0.001, 0.05)),
            disk=rng.choice(("fast", "slow", "moody")),
            latency=rng.choice((0.0, 0.005, 0.1)),
            high_water=rng.choice((None, None, 0, 600)),
            bounds=rng.choice((None, None, None, (24, 40_000))),
            trouble=rng.random() < 0.4,
            settings=Settings(
                graces=Graces(rng.choice((5.0, 30.0)), rng.choice((0.0, 2.0, 10.0)), None),
                cancel_grace=rng.choice((0.5, 5.0)),
                coalesce=rng.choice((0.0, 0.033, 0.033, 0.5)),
                unattended=rng.choice((None, 5.0, 60.0)),
            ),
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
        self.root = root
        self.project = root / "project"
        self.trace = Trace(root)
        database = self.project / ".crushlite" / "crushlite.db"
        self.disk = SimulatedDisk(database, self._rng("power"))
        self.ledger = Ledger(self.trace, self.disk.query)
        self.counts = self.ledger.counts
        self.draft = Draft.drawn(self._rng("draft"))
        self._wall = WALL

    def _rng(self, about: str) -> random.Random:
        """A source of its own for each purpose: what one draws does not change the others."""
        return random.Random(f"{self.seed}/{about}")

    def run(self) -> Result:
        shutil.rmtree(self.root, ignore_errors=True)
        self.project.mkdir(parents=True)
        self.trace.add(f"seed {self.seed}: {self.draft}")
        with (
            _no_collection(),
            seeded_machine(self.disk, self._rng("ids")),
            spies(self.ledger),
            self._bounds(),
        ):
            try:
                for death in (*self.draft.deaths, None):
                    self._in_a_loop(Life.play, death)
                self._in_a_loop(Life.audit, None)  # a last daemon that does nothing but read
            finally:
                self.disk.crash()
                shutil.rmtree(self.root, ignore_errors=True)
        return Result(
            self.seed, self.trace.digest(), self.counts, self.ledger.violations, self.trace.lines
        )

    def _bounds(self) -> contextlib.AbstractContextManager[Any]:
        """Streams that may hold little, and a short ring, in some worlds."""
        if self.draft.bounds is None:
            return contextlib.nullcontext()
        entries, size = self.draft.bounds
        self.counts["short ring"] += 1

        def small(keepalive: float) -> Bounds:
            return Bounds(entries=entries, bytes=size, keepalive=keepalive)

        return mock.patch.object(workspace_module, "Bounds", small)

    # Lives ---------------------------------------------------------------------------------------

    def _in_a_loop(self, main: Callable[[Life], Any], death: Death | None) -> None:
        ledger = self.ledger
        if ledger.violations:
            return
        draft = self.draft
        number = ledger.life + 1
        loop = SeededLoop(
            self._rng(f"loop {number}"), permute=draft.permute, jitter=draft.jitter, lag=draft.lag
        )
        ledger.begin_life(loop, draft.settings.cancel_grace)
        loop.unhandled = self._unhandled
        life = Life(self, loop, LoopClock(loop, self._wall), self._rng(f"life {number}"))
        if death is not None and death.how == "stop":
            life.leaves_after = death.after
        crash_at = None
        if death is not None and death.how == "callbacks":
            crash_at = int(death.after)
        elif death is not None and death.how == "statements":
            self.disk.dies_at, self.disk.dying = int(death.after), loop.halt
        self.disk.power_fails = death is not None and death.power
        try:
            ended = loop.run(main(life), crash_at)
        except (Violation, Stuck) as error:
            ledger.violate(str(error))
            ended = False
        except Exception as error:  # noqa: BLE001 - a fault of the simulation itself, or of a check
            ledger.violate(f"{type(error).__name__}: {error}")
            ended = False
        self._wall += loop.time() - 999.0
        self.counts["callbacks"] += loop.steps
        self.counts["lives"] += 1
        if ended:
            self._require_nothing_left(loop)
            loop.close()
        else:
            self._crash(loop)

    def _crash(self, loop: SeededLoop) -> None:
        self.trace.add("the daemon dies")
        self.counts["crashes"] += 1
        self.ledger.muted = True
        self.disk.free()
        self.disk.crash()
        loop.abandon()
        self.ledger.muted = False
        with self.disk.looked_at():
            self.ledger.after_crash()

    def _unhandled(self, context: dict[str, Any]) -> None:
        self.ledger.violate(f"the loop was told of {context.get('message')}: {context!r}")

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


class Life:
    """One daemon, from its start to its end, and its clients."""

    def __init__(
        self, world: World, loop: SeededLoop, clock: LoopClock, rng: random.Random
    ) -> None:
        self.world = world
        self.ledger = world.ledger
        self.loop = loop
        self.clock = clock
        self.rng = rng
        self.leaves_after: float | None = None  # seconds after which the daemon is stopped

    def _start(self) -> None:
        world, draft = self.world, self.world.draft
        self.agent = RandomAgent(world.seed, self.ledger, self.clock, calm=draft.calm)
        self.stores = Stores(
            clock=self.clock,
            boot_id=f"boot {self.ledger.life}",
            executor=lambda name: SeededExecutor(self.loop, self._disk_delay),
            connect=world.disk.connect,
        )
        self.daemon = SimulatedDaemon(
            agent=self.agent,
            settings=draft.settings,
            clock=self.clock,
            stores=self.stores,
            wings=[_Openings(self.ledger)],
        )
        self.network = Network(
            world._rng(f"network {self.ledger.life}"),
            latency=draft.latency,
            high_water=draft.high_water,
        )
        self.network.server = self.daemon.server

    def _disk_delay(self) -> float:
        speed, rng = self.world.draft.disk, self.rng
        if speed == "fast":
            return rng.random() * 0.001
        if speed == "slow":
            return rng.random() * 0.05
        return rng.random() * (1.0 if rng.random() < 0.05 else 0.003)

    def _client(self, number: int) -> SimulatedClient:
        return SimulatedClient(
            f"{'ABCDEFGH'[number]}{self.ledger.life}", self.ledger, self.network, self.clock, self.rng
        )

    async def play(self) -> None:
        self._start()
        draft = self.world.draft
        await self.daemon.start()
        clients = [self._client(number) for number in range(draft.clients)]
        actions = Actions(self.ledger, self.rng, str(self.world.project))
        await clients[0].join(str(self.world.project))
        while len(self.ledger.open_sessions()) < draft.sessions:
            await clients[0].new_session("a session")
        trouble = asyncio.ensure_future(self._trouble())
        acting = asyncio.ensure_future(self._act(actions, clients))
        if self.leaves_after is not None:
            await self._leave_early(acting, clients)
        else:
            await acting
        trouble.cancel()
        await asyncio.wait([trouble])
        self._heal()
        if self.ledger.stopping:
            self.ledger.check(invariants.nothing_is_open)
            return
        await self._come_to_rest(clients)
        await self._check_at_rest(clients)
        await self._end(clients)

    async def _act(self, actions: Actions, clients: list[SimulatedClient]) -> None:
        count = self.world.draft.actions
        await asyncio.gather(*(actions.play(client, count) for client in clients))

    async def _leave_early(
        self, acting: asyncio.Future[None], clients: list[SimulatedClient]
    ) -> None:
        """Stop the daemon while its clients act; they are cut off when it is gone."""
        assert self.leaves_after is not None
        await wait_at_most(self.clock, acting, self.leaves_after)
        self.world.counts["stopped under load"] += 1
        await self._stop()
        acting.cancel()
        await asyncio.wait([acting])
        await asyncio.gather(*(client.aclose() for client in clients))
        await self.clock.sleep(30.0)

    async def _stop(self) -> None:
        self.ledger.trace.add("the daemon leaves")
        self.ledger.stopping = True
        await self.daemon.stop()
        self.network.server = None
        if not self.agent.released.done():
            self.agent.released.set_result(None)  # agents that were given up leave now
        statistics = self.daemon.server.statistics
        if statistics.connections or statistics.in_flight:
            raise Violation(f"the server has left with {statistics}")

    async def _trouble(self) -> None:
        """Now and then the disk is full, locked or broken for a while."""
        disk, rng = self.world.disk, self.rng
        while self.world.draft.trouble:
            await self.clock.sleep(rng.random() * 10)
            kind = rng.choice(("full", "no endings", "locked", "shaken"))
            self.ledger.trace.add(f"the disk is {kind}")
            self.ledger.counts[f"disk {kind}"] += 1
            if kind == "full":
                disk.fill()
            elif kind == "no endings":
                disk.fill("outcome = :outcome")
            elif kind == "locked":
                disk.lock()
            else:
                disk.shake(rng.randrange(1, 4))
            for _ in range(rng.randrange(1, 20)):
                self.ledger.troubled_at = self.ledger.now
                await self.clock.sleep(rng.random() * 0.5)
            self._heal()

    def _heal(self) -> None:
        if self.world.disk.troubled:
            self.ledger.troubled_at = self.ledger.now
            self.ledger.trace.add("the disk is well")
            self.world.disk.free()

    async def _come_to_rest(self, clients: list[SimulatedClient]) -> None:
        """Cancel what would go on for ever, then wait until nothing goes on."""
        path = str(self.world.project)
        deadline = self.clock.time() + REST
        first = clients[0]
        while not await first.join(path):
            await self.clock.sleep(1.0)
            self._require_in_time(deadline)
        while self._going_on():
            for session_id in self._busy_sessions():
                await first.call("POST", f"/agent/sessions/{session_id}/cancel")
            await self.clock.sleep(1.0)
            self._require_in_time(deadline)
        for client in clients:
            await client.drained()

    def _busy_sessions(self) -> list[str]:
        hosted = self.daemon.backend.everything()
        states = [state for one in hosted for state in one.workspace.runs.states()]
        return sorted({session_id for session_id, _ in states})

    def _going_on(self) -> bool:
        return bool(self._busy_sessions() or self.daemon.backend.unsaved)

    def _require_in_time(self, deadline: float) -> None:
        if self.clock.time() > deadline:
            raise Violation(f"no rest after {REST} s:\n{self.loop.describe_tasks()}")

    async def _check_at_rest(self, clients: list[SimulatedClient]) -> None:
        """Nothing goes on: what streams, lists and records say is the same."""
        ledger, reader = self.ledger, clients[0]
        if not reader.workspace_id or reader.stream is None or reader.stream.ended:
            await reader.join(str(self.world.project))
        for client in clients:
            if client.stream is not None and client.stream.link is not None:
                client.stream.link.read()
        await self.clock.sleep(2.0)
        for client in clients:
            stream = client.stream
            if stream is not None and stream.position is not None and not stream.ended:
                missing = stream.position.first_missing()
                if missing is not None:
                    raise Violation(f"{client.name} never got {missing}")
        ledger.check(invariants.nothing_is_open)
        await self._check_records(reader)

    async def _check_records(self, reader: SimulatedClient) -> None:
        ledger = self.ledger
        infos = await reader.read_runs()
        if infos is None:
            raise Violation("the runs cannot be read at rest")
        ledger.check(invariants.every_answered_prompt_is_known, infos)
        hub = ledger.hub_of(reader.workspace_id)
        answer = await reader.call("GET", "/sessions")
        sessions = {one["id"]: one for one in answer.body or ()}
        for session_id, session in ledger.sessions.items():
            listed = await reader.read_messages(session_id)
            if listed is None:
                raise Violation("the messages cannot be read at rest")
            if session.may_be_gone:
                if session.gone and listed:
                    raise Violation(f"a deleted session has messages: {listed[0]}")
                continue
            ledger.check(invariants.a_history_is_acceptable, listed, True)
            ledger.check(invariants.what_is_listed_is_what_streams_saw, hub, listed)
            ledger.check(invariants.a_prompt_is_in_the_history_once, session_id, infos, listed)
            shown = sessions.get(session_id)
            if shown is None or shown["is_busy"] or shown["message_count"] != len(listed):
                raise Violation(f"session {session_id} with {len(listed)} messages is {shown}")

    async def _end(self, clients: list[SimulatedClient]) -> None:
        for client in clients:
            await client.aclose()
        if self.rng.random() < 0.5:
            await self.clock.sleep(60.0)  # longer than every grace
            if self.daemon.backend.everything():
                raise Violation("a workspace stays open although every claim is gone")
        await self._stop()
        await self.clock.sleep(30.0)

    async def audit(self) -> None:
        self._start()
        await self.daemon.start()
        reader = self._client(7)
        if not await reader.join(str(self.world.project)):
            raise Violation("the workspace cannot be opened again")
        await self._check_records(reader)
        await self._end([reader])
