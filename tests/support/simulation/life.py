"""One simulated daemon, from its start to its end, and its clients."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from crushlite.clock import wait_at_most
from crushlite.daemon import Daemon
from crushlite.delegation.wing import DelegationWing
from crushlite.store import Stores
from crushlite.wing import Wing
from tests.support.simulation import invariants
from tests.support.simulation.actions import Actions
from tests.support.simulation.agent import RandomAgent
from tests.support.simulation.client import SimulatedClient
from tests.support.simulation.ledger import Violation
from tests.support.simulation.machine import SeededExecutor
from tests.support.simulation.network import PORT, Network

if TYPE_CHECKING:
    import random

    from crushlite.listen import Address, Listener
    from crushlite.wing import OpenWorkspace, WorkspacePart
    from tests.support.simulation.ledger import Ledger
    from tests.support.simulation.loop import LoopClock, SeededLoop
    from tests.support.simulation.world import World

REST = 240.0  # virtual seconds that may pass until nothing goes on any more
GRACES = 60.0  # virtual seconds: longer than every grace of a claim


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

    def _listen(self, address: Address) -> Any:
        """There is no socket, and so nothing that `start` could listen on."""

    def _bound(self, listener: Listener) -> None:
        self._guard.add_port(PORT, None)


class Life:
    def __init__(
        self, world: World, loop: SeededLoop, clock: LoopClock, rng: random.Random
    ) -> None:
        self.loop = loop
        self.leaves_after: float | None = None  # seconds after which the daemon is stopped
        self._world = world
        self._draft = world.draft
        self._path = str(world.project)
        self._ledger = world.ledger
        self._clock = clock
        self._rng = rng

    async def _start(self) -> None:
        world, draft, ledger = self._world, self._draft, self._ledger
        self._agent = RandomAgent(world.seed, ledger, self._clock, calm=draft.calm)
        self._daemon = SimulatedDaemon(
            agent=self._agent,
            settings=draft.settings,
            clock=self._clock,
            stores=Stores(
                clock=self._clock,
                boot_id=f"boot {ledger.life}",
                executor=lambda name: SeededExecutor(self.loop, self._disk_delay),
                connect=world.disk.connect,
            ),
            wings=[_Openings(ledger), DelegationWing()],  # the second writes summaries
        )
        self._network = Network(
            world.rng(f"network {ledger.life}"), latency=draft.latency, high_water=draft.high_water
        )
        self._network.server = self._daemon.server
        await self._daemon.start()

    def _disk_delay(self) -> float:
        speed, rng = self._draft.disk, self._rng
        if speed == "fast":
            return rng.random() * 0.001
        if speed == "slow":
            return rng.random() * 0.05
        return rng.random() * (1.0 if rng.random() < 0.05 else 0.003)

    def _client(self, number: int) -> SimulatedClient:
        name = f"{'ABCDEFGH'[number]}{self._ledger.life}"
        return SimulatedClient(name, self._ledger, self._network, self._clock, self._rng)

    # A daemon with clients ------------------------------------------------------------------------

    async def play(self) -> None:
        """Let clients act, until they are done or the daemon leaves."""
        await self._start()
        clients = [self._client(number) for number in range(self._draft.clients)]
        await clients[0].join(self._path)
        while len(self._ledger.open_sessions()) < self._draft.sessions:
            await clients[0].new_session("a session")
        trouble = asyncio.ensure_future(self._trouble())
        acting = asyncio.ensure_future(self._act(clients))
        if self.leaves_after is not None:
            await wait_at_most(self._clock, acting, self.leaves_after)
            self._ledger.counts["stopped under load"] += 1
            await self._stop()
            acting.cancel()
        await asyncio.wait([acting])
        trouble.cancel()
        await asyncio.wait([trouble])
        self._heal()
        if self.leaves_after is not None:
            await self._end(clients)
            self._ledger.check(invariants.nothing_is_open)
            return
        acting.result()
        await self._come_to_rest(clients)
        await self._check_at_rest(clients)
        await self._end(clients)

    async def _act(self, clients: list[SimulatedClient]) -> None:
        actions = Actions(self._ledger, self._rng, self._path)
        await asyncio.gather(*(actions.play(one, self._draft.actions) for one in clients))

    async def _trouble(self) -> None:
        """Now and then the disk is full, locked or broken for a while."""
        disk, rng, ledger = self._world.disk, self._rng, self._ledger
        while self._draft.trouble:
            await self._clock.sleep(rng.random() * 10)
            kind = rng.choice(("full", "no endings", "locked", "shaken"))
            ledger.trace.add(f"the disk is {kind}")
            ledger.counts[f"disk {kind}"] += 1
            if kind == "full":
                disk.fill()
            elif kind == "no endings":
                disk.fill("outcome = :outcome")
            elif kind == "locked":
                disk.lock()
            else:
                disk.shake(rng.randrange(1, 4))
            for _ in range(rng.randrange(1, 20)):
                ledger.troubled_at = ledger.now
                await self._clock.sleep(rng.random() * 0.5)
            self._heal()

    def _heal(self) -> None:
        if self._world.disk.troubled:
            self._ledger.troubled_at = self._ledger.now
            self._ledger.trace.add("the disk is well")
            self._world.disk.free()

    # At rest --------------------------------------------------------------------------------------

    async def _come_to_rest(self, clients: list[SimulatedClient]) -> None:
        """Cancel what would go on for ever, then wait until nothing goes on."""
        deadline = self._clock.time() + REST
        first = clients[0]
        while not await first.join(self._path):
            await self._pause(deadline)
        quiet = 0  # seconds: a request whose client has left may still be on its way
        while quiet < 3:
            busy, acting = self._busy_sessions(), any(client.acts for client in clients)
            for session_id in busy:
                await first.call("POST", f"/agent/sessions/{session_id}/cancel")
            quiet = 0 if busy or acting or self._daemon.backend.unsaved else quiet + 1
            await self._pause(deadline)

    def _busy_sessions(self) -> list[str]:
        hosted = self._daemon.backend.everything()
        states = [state for one in hosted for state in one.runs.states()]
        return sorted({session_id for session_id, _ in states})

    async def _pause(self, deadline: float) -> None:
        await self._clock.sleep(1.0)
        if self._clock.time() > deadline:
            raise Violation(f"no rest after {REST} s:\n{self.loop.describe_tasks()}")

    async def _check_at_rest(self, clients: list[SimulatedClient]) -> None:
        """Nothing goes on: what streams, lists and records say is the same."""
        reader = clients[0]
        if not reader.workspace_id or reader.stream is None or reader.stream.ended:
            await reader.join(self._path)
        for client in clients:
            if client.stream is not None and client.stream.link is not None:
                client.stream.link.read()
        if self._ledger.troubled_at is not None:
            # A write that works lets those follow that did not, such as that of a failed summary.
            await reader.new_session("all is well")
        for client in clients:
            await self._wait_for_events(client)
        self._ledger.check(invariants.nothing_is_open)
        await self._check_records(reader)

    async def _wait_for_events(self, client: SimulatedClient) -> None:
        """Every stream that is open shows all that was published, within seconds."""
        stream = client.stream
        if stream is None or stream.position is None or stream.ended:
            return
        for _ in range(5):
            await self._clock.sleep(2.0)
            if stream.position.first_missing() is None:
                return
        raise Violation(f"{client.name} never got {stream.position.first_missing()}")

    async def _check_records(self, reader: SimulatedClient) -> None:
        ledger = self._ledger
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

    # The end --------------------------------------------------------------------------------------

    async def _end(self, clients: list[SimulatedClient]) -> None:
        for client in clients:
            await client.aclose()
        if not self._ledger.stopping:
            if self._rng.random() < 0.5:
                await self._clock.sleep(GRACES)
                if self._daemon.backend.everything():
                    raise Violation("a workspace stays open although every claim is gone")
            await self._stop()
        await self._clock.sleep(30.0)  # agents that were given up leave now

    async def _stop(self) -> None:
        self._ledger.trace.add("the daemon leaves")
        self._ledger.stopping = True
        await self._daemon.stop()
        self._network.server = None
        if not self._agent.released.done():
            self._agent.released.set_result(None)
        server = self._daemon.server
        if server.open_connections or server.tasks:
            left = f"{server.open_connections} connections, {len(server.tasks)} requests"
            raise Violation(f"the server has left with {left}")

    async def audit(self) -> None:
        """Open the workspace again, and compare what is there with what was there before."""
        await self._start()
        reader = self._client(7)
        if not await reader.join(self._path):
            raise Violation("the workspace cannot be opened again")
        await self._check_records(reader)
        await self._end([reader])
