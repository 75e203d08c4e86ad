"""Event streams as simulated clients read them, each event held against what was published."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from crushlite.http.client import ClientError, HTTPClient
from crushlite.http.sse import SSEParser
from tests.support.simulation.ledger import Violation
from tests.support.simulation.network import HOST, LinkConnector

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from crushlite.clock import Clock
    from tests.support.simulation.ledger import Body, HubFacts, Ledger, Published
    from tests.support.simulation.network import Network

PENDING = ("permission_request", "question_batch_request")  # shown again to late joiners


class Position:
    """How far one reader has come in the events of a hub. `resume` continues it."""

    def __init__(self, hub: HubFacts, seq: int) -> None:
        self.hub = hub
        self.seq = seq

    def facts_ahead(self, *, tagged: bool) -> list[Published]:
        """Events that this reader must still get; growth may be skipped."""
        ahead = self.hub.events[self.seq :]
        return [event for event in ahead if not event.growth and (tagged or not event.needs_ids)]

    def skip_to(self, seq: int, *, tagged: bool) -> None:
        """The reader got the event with this number."""
        if seq <= self.seq:
            raise Violation(f"event {seq} came after event {self.seq}")
        if seq > len(self.hub.events):
            raise Violation(f"event {seq} came before it was published")
        for event in self.hub.events[self.seq : seq - 1]:
            if not event.growth and (tagged or not event.needs_ids):
                raise Violation(f"event {event.seq} was lost: {event.kind} {event.body}")
        self.seq = seq


def streams_show_every_fact_in_order(
    ledger: Ledger,
    position: Position,
    tagged: bool,
    kind: str,
    action: str,
    body: Body,
    seq: int | None,
) -> None:
    """`seq` is the number in the event's own id; None on a stream without ids, and for an open
    request that is shown again."""
    if seq is not None:
        position.skip_to(seq, tagged=True)
        _require_same(position.hub.events[seq - 1], kind, action, body)
        return
    for event in position.hub.events[position.seq :]:
        if tagged:
            break
        if event.kind == kind and event.action == action and event.body == body:
            position.skip_to(event.seq, tagged=False)
            return
        if not event.growth:
            break
    if not _is_shown_again(position, kind, body):
        raise Violation(f"an event that was not published next: {kind} {action} {body}")


def _require_same(event: Published, kind: str, action: str, body: Body) -> None:
    if (event.kind, event.action, event.body) != (kind, action, body):
        raise Violation(f"event {event.seq} is {event.kind} {event.body}, and came as {body}")


def _is_shown_again(position: Position, kind: str, body: Body) -> bool:
    before = position.hub.events[: position.seq]
    return kind in PENDING and any(one.kind == kind and one.body == body for one in before)


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
        self.tagged = tagged
        self.position: Position | None = None  # None until the stream has begun
        self.last_id: str | None = None
        self.status = 0
        self.ended = False
        self.task: asyncio.Task[None] | None = None
        self._ledger = ledger
        self._connector = LinkConnector(network)
        self._http = HTTPClient(self._connector, host_header=HOST, clock=clock)
        self._client_id = client_id
        self._name = name
        self._on_event = on_event
        self._resumed: Position | None = None  # where the reader was before
        self._parser = SSEParser()

    @property
    def link(self) -> Any:
        return self._connector.link

    @property
    def complete(self) -> bool:
        """Whether it has got every fact there is."""
        position = self.position
        return position is not None and not position.facts_ahead(tagged=self.tagged)

    async def read(self, base: str, resumed: Position | None, last_id: str | None) -> None:
        """Read until the stream ends, by whichever side."""
        query = "&resume=1" if self.tagged else ""
        headers = (("Last-Event-ID", last_id),) if last_id is not None else ()
        self._resumed = resumed if last_id is not None else None
        self.last_id = last_id
        target = f"{base}/events?client_id={self._client_id}{query}"
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
            await self._http.aclose()

    def _begin(self) -> None:
        epoch, seq = self._ledger.attached[self._client_id]
        self._note(f"events {'with ids' if self.tagged else ''} from {seq}, last {self.last_id}")
        hub = self._ledger.hubs.get(epoch)
        if hub is None:
            from tests.support.simulation.ledger import HubFacts

            hub = self._ledger.hubs[epoch] = HubFacts(epoch)
        resumed = self._resumed
        if resumed is not None and resumed.hub is hub:
            self.position = Position(hub, resumed.seq)
        else:
            self.position = Position(hub, seq)

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
            self._check_epoch(self.last_id)

    def _check(self, kind: str, inner: Body, last_id: str | None) -> None:
        """`last_id` is that of the event, or of an earlier one if the event has none."""
        assert self.position is not None
        seq = None if last_id is None else int(last_id.rpartition("-")[2])
        if seq == self.position.seq:
            seq = None
        self._ledger.check(
            streams_show_every_fact_in_order,
            self.position,
            self.tagged,
            kind,
            inner["type"],
            inner["payload"],
            seq,
        )

    def _check_epoch(self, last_id: str) -> None:
        epoch, _, number = last_id.rpartition("-")
        assert self.position is not None
        if epoch != self.position.hub.epoch or int(number) != self.position.seq:
            self._ledger.violate(f"a stream is at {last_id} and should be at {self.position.seq}")

    def _resync(self, own_id: str) -> None:
        epoch, _, number = own_id.rpartition("-")
        self._ledger.counts["resync"] += 1
        self._ledger.check(a_resync_has_a_reason, self._resumed, epoch)
        self.position = Position(self._ledger.hubs[epoch], int(number))

    def _note(self, text: str) -> None:
        self._ledger.trace.add(f"{self._name} < {text}")
