"""Event streams as simulated clients read them, each event held against what was published."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from crushlite.http.client import ClientError, HTTPClient
from crushlite.http.sse import SSEParser
from tests.support.simulation.ledger import Published, Violation
from tests.support.simulation.network import HOST, LinkConnector

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from crushlite.clock import Clock
    from tests.support.simulation.ledger import Body, HubFacts, Ledger
    from tests.support.simulation.network import LinkTransport, Network

PENDING = ("permission_request", "question_batch_request")  # shown again to late joiners


class Position:
    """How far one reader has come in the events of a hub. With `tagged` its stream has ids."""

    def __init__(self, hub: HubFacts, seq: int, tagged: bool) -> None:
        self.hub = hub
        self.seq = seq
        self._tagged = tagged

    def first_missing(self, until: int | None = None) -> Published | None:
        """The first event up to this number that the reader must still get. Growth may be left
        out, and streams without ids get no output of tools."""
        for event in self.hub.events[self.seq : until]:
            if not event.growth and (self._tagged or event.kind != "tool_output"):
                return event
        return None

    def got(self, event: Published) -> None:
        """The reader got an event: with its number, or with 0 if it came without one."""
        if event.seq:
            self._advance(event)
            return
        if not self._tagged:
            for following in self.hub.events[self.seq :]:
                if _same(following, event):
                    self._advance(following)
                    return
                if not following.growth:
                    break
        before = self.hub.events[: self.seq]
        if event.kind not in PENDING or not any(_same(one, event) for one in before):
            raise Violation(f"an event that was not published next: {event}")

    def _advance(self, event: Published) -> None:
        if event.seq <= self.seq:
            raise Violation(f"event {event.seq} came after event {self.seq}")
        if event.seq > len(self.hub.events):
            raise Violation(f"event {event.seq} came before it was published")
        lost = self.first_missing(event.seq - 1)
        if lost is not None:
            raise Violation(f"an event was lost: {lost}")
        if not _same(self.hub.events[event.seq - 1], event):
            raise Violation(f"{self.hub.events[event.seq - 1]} came as {event}")
        self.seq = event.seq


def _same(one: Published, other: Published) -> bool:
    return (one.kind, one.action, one.body) == (other.kind, other.action, other.body)


def streams_show_every_fact_in_order(ledger: Ledger, position: Position, event: Published) -> None:
    position.got(event)


def a_resync_has_a_reason(ledger: Ledger, position: Position | None, epoch: str) -> None:
    """Only a reader that resumes gets one, if the workspace was opened anew or the ring is short.
    Rings are not short in a simulation, unless its scenario says so."""
    if position is None:
        raise Violation("a resync on a stream that did not resume")
    if position.hub.epoch == epoch and not ledger.counts["short ring"]:
        raise Violation(f"a resync within one epoch, after event {position.seq}")


class StreamReader:
    """One connection of an event stream. `on_event` is called with every event, checked."""

    def __init__(
        self,
        ledger: Ledger,
        network: Network,
        clock: Clock,
        *,
        client_id: str,
        name: str,
        tagged: bool,
        on_event: Callable[[str, Body], None],
    ) -> None:
        self.client_id = client_id
        self.name = name
        self.tagged = tagged
        self.position: Position | None = None  # None until the stream has begun
        self.last_id: str | None = None
        self.status = 0
        self.ended = False
        self.task: asyncio.Task[None] | None = None
        self._ledger = ledger
        self._connector = LinkConnector(network)
        self._http = HTTPClient(self._connector, host_header=HOST, clock=clock)
        self._on_event = on_event
        self._resumed: Position | None = None  # where the reader was before
        self._parser = SSEParser()

    @property
    def link(self) -> LinkTransport | None:
        return self._connector.link

    async def read(self, base: str, resumed: Position | None, last_id: str | None) -> None:
        """Read until the stream ends, by whichever side."""
        query = "&resume=1" if self.tagged else ""
        headers = (("Last-Event-ID", last_id),) if last_id is not None else ()
        self._resumed = resumed if last_id is not None else None
        self.last_id = last_id
        target = f"{base}/events?client_id={self.client_id}{query}"
        try:
            async with self._http.stream("GET", target, headers=headers) as response:
                self.status = response.status
                if response.status != 200:
                    self._note(f"events -> {response.status} {(await response.read())!r}")
                    return
                self._begin()
                async for chunk in response:
                    self._feed(chunk)
        except ClientError as error:
            self._note(f"events: {type(error).__name__}")
        finally:
            self.ended = True
            self._ledger.streams.discard(self)
            await self._http.aclose()

    def _begin(self) -> None:
        epoch, seq = self._ledger.attached[self.client_id]
        self._note(f"events {'with ids' if self.tagged else ''} from {seq}, last {self.last_id}")
        hub, resumed = self._ledger.hubs[epoch], self._resumed
        if resumed is not None and resumed.hub is hub:
            seq = resumed.seq
        self.position = Position(hub, seq, self.tagged)
        self._ledger.streams.add(self)

    def _feed(self, chunk: bytes) -> None:
        for event in self._parser.feed(chunk):
            self._note(event.data)
            outer = json.loads(event.data)
            if outer["type"] == "resync":
                self._resync(event.id or "")
                continue
            self._check(outer["type"], outer["payload"], event.id if self.tagged else None)
            if self._ledger.violations:
                return
            self._on_event(outer["type"], outer["payload"]["payload"])
        if self.tagged and self._parser.last_id:
            self.last_id = self._parser.last_id
            at = self.position
            if at is not None and self.last_id != f"{at.hub.epoch}-{at.seq}":
                self._ledger.violate(f"a stream is at {self.last_id} and should be at {at.seq}")

    def _check(self, kind: str, inner: Body, last_id: str | None) -> None:
        """`last_id` is that of the event, or of an earlier one if the event has none."""
        position = self.position
        assert position is not None
        seq = int(last_id.rpartition("-")[2]) if last_id else 0
        event = Published(
            0 if seq == position.seq else seq, kind, inner["type"], inner["payload"], False
        )
        self._ledger.check(streams_show_every_fact_in_order, position, event)

    def _resync(self, own_id: str) -> None:
        epoch, _, number = own_id.rpartition("-")
        self._ledger.counts["resync"] += 1
        self._ledger.check(a_resync_has_a_reason, self._resumed, epoch)
        self.position = Position(self._ledger.hubs[epoch], int(number), self.tagged)

    def _note(self, text: str) -> None:
        self._ledger.trace.add(f"{self.name} < {text}")
