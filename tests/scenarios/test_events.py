"""The event stream over real sockets: framing, order, resuming, and readers that stand still."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import unittest
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from unittest import mock

from crushlite.agent.base import Usage
from crushlite.events import Bounds
from crushlite.protocol.questions import Question
from crushlite.testing import LocalDaemon, ScriptedAgent
from crushlite.testing.fake_clock import FakeClock
from tests.support.scenarios import scenario

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from crushlite.agent.base import Turn
    from crushlite.events import Hub
    from crushlite.testing import Participant, ScriptedRun, Seen

T = TypeVar("T")

LIMIT = 60.0  # seconds: only a hang takes that long
BOUNDS = Bounds()


async def soon(work: Awaitable[T]) -> T:
    async with asyncio.timeout(LIMIT):
        return await work


# A stream as bytes -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Frame:
    """One block of a stream: an event, an id alone, or a comment."""

    id: str
    data: Any
    comment: bool = False

    @property
    def kind(self) -> str:
        return str(self.data["type"]) if self.data else ""

    @property
    def action(self) -> str:
        return str(self.data["payload"].get("type", "")) if self.data else ""

    @property
    def payload(self) -> dict[str, Any]:
        inner: dict[str, Any] = self.data["payload"].get("payload", self.data["payload"])
        return inner

    @property
    def is_growth(self) -> bool:
        """A message that only got longer: all that may be skipped."""
        if self.kind != "message" or self.action != "updated":
            return False
        return all(part["type"] == "text" for part in self.payload["parts"])


def frames_of(body: bytes | bytearray) -> list[Frame]:
    """The whole blocks of a stream; a cut-off last one is left out."""
    answer = []
    for block in bytes(body).decode().split("\n\n")[:-1]:
        number, data = "", None
        for line in block.split("\n"):
            name, _, value = line.partition(": ")
            number = value if name == "id" else number
            data = json.loads(value) if name == "data" else data
        answer.append(Frame(number, data, comment=block.startswith(":")))
    return answer


def facts_of(frames: Sequence[Frame]) -> list[Any]:
    return [frame.data for frame in frames if frame.data and not frame.is_growth]


class Tap(asyncio.Protocol):
    """A stream read with nothing in between, which can also stop reading."""

    def __init__(self) -> None:
        self.head = b""
        self.body = bytearray()
        self.closed = asyncio.Event()
        self._news = asyncio.Event()
        self._searched = 0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self.body += data
        if not self.head and b"\r\n\r\n" in self.body:
            head, _, rest = bytes(self.body).partition(b"\r\n\r\n")
            self.head, self.body = head, bytearray(rest)
        self._news.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()
        self._news.set()

    @property
    def transport(self) -> asyncio.Transport:
        assert self._transport is not None
        return self._transport

    async def until(self, happened: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT):
            while not happened():
                assert not self.closed.is_set(), "the stream has ended"
                self._news.clear()
                await self._news.wait()

    async def sees(self, text: str) -> None:
        """Wait until these bytes have come, after those it waited for before."""
        wanted = text.encode()

        def found() -> bool:
            place = self.body.find(wanted, self._searched)
            if place >= 0:
                self._searched = place + len(wanted)
            return place >= 0

        await self.until(found)

    @property
    def frames(self) -> list[Frame]:
        return frames_of(self.body)

    @property
    def last_id(self) -> str:
        return next(frame.id for frame in reversed(self.frames) if frame.id)


def request_of(target: str, last_id: str | None = None) -> bytes:
    extra = f"Last-Event-ID: {last_id}\r\n" if last_id is not None else ""
    return f"GET {target} HTTP/1.1\r\nHost: localhost\r\n{extra}\r\n".encode()


class Scenario(unittest.IsolatedAsyncioTestCase):
    """One daemon and Anna, whose stream carries ids."""

    async def asyncSetUp(self) -> None:
        self.clock = self.make_clock()
        self.agent = ScriptedAgent()
        self.daemon = await self.enterAsyncContext(LocalDaemon(self.agent, clock=self.clock))
        self.started = 0
        self.taps: list[Tap] = []
        self.addAsyncCleanup(self.close_taps)
        self.anna = await self.daemon.create()
        self.assertEqual(await self.anna.attach(resume=True), 200)

    def make_clock(self) -> FakeClock | None:
        return None

    async def close_taps(self) -> None:
        for tap in self.taps:
            tap.transport.abort()
            await soon(tap.closed.wait())

    @property
    def hub(self) -> Hub:
        return self.daemon.backend.get(self.anna.workspace["id"]).hub

    async def tap(self, *, resume: bool = False, last_id: str | None = None) -> Tap:
        """One more client's stream, open and with its headers read."""
        loop = asyncio.get_running_loop()
        client = await self.daemon.create()
        _, tap = await loop.create_unix_connection(Tap, str(self.daemon.socket))
        self.taps.append(tap)
        target = f"{client.base}/events?client_id={client.id}" + ("&resume=1" if resume else "")
        tap.transport.write(request_of(target, last_id))
        await tap.until(lambda: bool(tap.head))
        return tap

    async def begin(self, **fields: Any) -> tuple[str, ScriptedRun]:
        session = await self.anna.session()
        self.started += 1
        await self.anna.prompt(session, **fields)
        return session, await self.daemon.entered(self.started)

    def publish_growth(self) -> None:
        """Send growing messages now: how growth is spread over time is tested elsewhere."""
        self.daemon.backend.get(self.anna.workspace["id"]).transcript.flush_all()

    async def finish(self, run: ScriptedRun) -> Seen:
        run.release()
        return await self.anna.events.wait_for("run_complete", run_id=run.turn.run_id)

    def assert_same(self, got: Sequence[Any], wanted: Sequence[Any]) -> None:
        """Equal lists. A diff of thousands of events would take minutes and be of no use."""
        for index, pair in enumerate(itertools.zip_longest(got, wanted)):
            if pair[0] != pair[1]:
                self.fail(f"at {index} of {len(got)} and {len(wanted)}: {pair[0]} != {pair[1]}")

    async def mark(self, *taps: Tap) -> None:
        """Everything published before this call has been read: a session event is a full stop."""
        session = await self.anna.session("mark")
        await self.anna.events.wait_for("session", id=session)
        for tap in taps:
            await tap.sees(session)


async def facts(turn: Turn, rounds: int) -> None:
    """Four facts per round: a message, its tool call, the result, and the end of the step."""
    for number in range(rounds):
        call = await turn.tool_call("bash", json.dumps({"number": number}))
        await turn.tool_result(call, f"result {number}")


async def chatter(turn: Turn, pieces: int) -> None:
    for number in range(pieces):
        await turn.say(f"piece {number} of a long answer. ")
        await asyncio.sleep(0)


# J. Event stream ---------------------------------------------------------------------------------


class StreamScenarios(Scenario):
    @scenario(180)
    async def test_a_stream_is_answered_before_its_first_event(self) -> None:
        """A stream of a quiet workspace is answered at once, with a head that needs no chunks."""
        tap = await self.tap()
        status, *lines = tap.head.decode().split("\r\n")
        self.assertEqual(status, "HTTP/1.1 200 OK")
        headers = {name.lower(): value for name, _, value in (ln.partition(": ") for ln in lines)}
        self.assertEqual(headers["content-type"], "text/event-stream")
        self.assertEqual(headers["cache-control"], "no-cache")
        self.assertEqual(headers["connection"], "close")
        self.assertNotIn("transfer-encoding", headers)
        self.assertNotIn("content-length", headers)
        self.assertEqual(tap.body, b"")

    @scenario(182)
    async def test_every_stream_gets_every_event(self) -> None:
        """However many streams there are, each gets every event, and publishing to none is fine."""
        await self.anna.events.close()
        for count in (0, 1, 2, 5, 10):
            taps = [await self.tap() for _ in range(count)]
            _, run = await self.begin()
            await run.do(lambda turn: facts(turn, 5))
            run.release()
            info = await self.anna.call("GET", f"/runs/{run.turn.run_id}?wait=10")
            self.assertEqual(info.json["state"], "ended")
            for tap in taps:
                await tap.sees('"type":"run_complete"')
            bodies = {bytes(tap.body) for tap in taps}
            self.assertEqual(len(bodies), min(count, 1), "all streams are the same, byte by byte")
            for body in bodies:
                kinds = [frame.kind for frame in frames_of(body)]
                self.assertEqual(kinds.count("message"), 1 + 4 * 5, kinds)
                self.assertEqual((kinds[0], kinds[-1]), ("session", "run_complete"))
            for tap in taps:
                tap.transport.abort()

    @scenario(183)
    async def test_a_reader_that_stops_loses_growth_and_never_a_fact(self) -> None:
        """For a reader that stops growth is skipped and counted; facts wait, or the stream ends."""
        lagging, slow = await self.tap(), await self.tap()
        control = await self.tap()
        for tap in (lagging, slow):
            tap.transport.pause_reading()
        _, run = await self.begin()
        await self.flow(run, rounds=800)
        self.assertEqual(self.hub.closed_slow, 0, "within the bound facts wait")
        lagging.transport.resume_reading()
        await self.mark(control, lagging)
        self.assert_same(facts_of(lagging.frames), facts_of(control.frames))
        self.assertGreater(self.hub.conflated, 0)
        self.assertLess(len(lagging.frames), len(control.frames))
        # The other one stands still until it holds more than the bound.
        await self.flow(run, rounds=400)
        self.assertEqual(self.hub.closed_slow, 1)
        await self.finish(run)
        await self.mark(control, lagging)
        slow.transport.resume_reading()
        await soon(slow.closed.wait())
        prefix, whole = facts_of(slow.frames), facts_of(control.frames)
        self.assert_same(prefix, whole[: len(prefix)])  # no gap in what came before the end
        self.assertGreater(len(prefix), 0)
        self.assert_same(facts_of(lagging.frames), whole)

    async def flow(self, run: ScriptedRun, rounds: int) -> None:
        """Facts, with a text that grows in between, for as long as that takes."""

        async def both(turn: Turn) -> None:
            for _ in range(10):
                await turn.step()
                await facts(turn, rounds // 10)
                await turn.step()
                for _ in range(40):
                    await turn.say("word " * 100)
                    self.publish_growth()
                    await asyncio.sleep(0)

        await soon(run.do(both))

    @scenario(184)
    async def test_a_client_that_never_reads_does_not_delay_the_run_of_another(self) -> None:
        """One client never reads; the turn of another takes no longer for it, and ends."""
        stalled = await self.tap()
        stalled.transport.pause_reading()
        _, run = await self.begin()
        await self.flow(run, rounds=200)
        done = await self.finish(run)
        self.assertFalse(done["error"])
        self.assertFalse(stalled.closed.is_set(), "it is behind, and that is all")
        self.assertGreater(len(self.hub.waiting), 0)

    @scenario(186)
    async def test_what_is_no_event_of_the_protocol_is_not_published(self) -> None:
        """It is refused where it is published, and reaches no client."""
        tap = await self.tap(resume=True)
        await self.mark(tap)
        before, seen = self.hub.current, len(tap.frames)
        for action, payload in (("created", object()), ("created", {"id": "x"}), ("moved", None)):
            with self.assertRaises(TypeError):
                self.hub.publish(action, payload)
        self.assertEqual(self.hub.current, before)
        await self.mark(tap)
        self.assertEqual([frame.kind for frame in tap.frames[seen:]], ["session"])
        self.assertTrue(tap.frames[-1].id.endswith(f"-{before + 1}"), "no number was used up")

    @scenario(187)
    async def test_all_fields_of_a_tool_result_arrive_as_the_tool_gave_them(self) -> None:
        """Metadata, data, media type and error flag of a result arrive as the tool gave them."""
        session, run = await self.begin()
        await run.do(lambda turn: turn.tool_call("view", '{"file_path":"a.png"}', id="t1"))
        await run.do(
            lambda turn: turn.tool_result(
                "t1", "ein Bild: ☂", True, '{"w":3}', "aGVsbG8=", "image/png"
            )
        )
        expected = {
            "tool_call_id": "t1",
            "name": "view",
            "content": "ein Bild: ☂",
            "metadata": '{"w":3}',
            "is_error": True,
            "data": "aGVsbG8=",
            "mime_type": "image/png",
        }
        event = await self.anna.events.wait_for("message", role="tool")
        self.assertEqual(event["parts"][0], {"type": "tool_result", "data": expected})
        await self.finish(run)
        stored = [m for m in await self.anna.messages(session) if m["role"] == "tool"]
        self.assertEqual([m["parts"][0]["data"] for m in stored], [expected])

    @scenario(193)
    async def test_a_stream_brings_the_last_ending_and_then_ends_with_its_workspace(self) -> None:
        """When the last claim goes, the stream brings the last ending and then ends cleanly."""
        session, run = await self.begin()
        await run.say("hello")
        self.assertEqual(await self.anna.retire(), 200)
        await self.anna.events.end()
        last = self.anna.events.seen[-1]
        self.assertEqual((last.kind, last["cancelled"]), ("run_complete", True))
        self.assertEqual(last["session_id"], session)
        self.assertTrue(self.anna.events.raw.endswith(b"\n\n"), "the last frame is whole")
        self.assertEqual(await self.anna.attach(), 404)


# The bytes of a stream ---------------------------------------------------------------------------


class FramingTests(Scenario):
    def make_clock(self) -> FakeClock:
        return FakeClock()

    async def advance(self, seconds: float) -> None:
        assert self.clock is not None
        await self.clock.advance(seconds)

    async def test_the_base_stream_is_data_lines_and_nothing_else(self) -> None:
        plain = await self.daemon.join()
        _, run = await self.begin()
        verdict = run.begin(lambda turn: turn.permission("bash", "execute", tool_call_id="c1"))
        asked = await plain.events.wait_for("permission_request")
        await self.advance(20)
        await plain.grant(asked.payload)
        await soon(verdict)
        await run.say("two\nlines\r\nand \u2028 more")
        run.release()
        await plain.events.wait_for("run_complete")
        await self.advance(40)
        raw = bytes(plain.events.raw)
        self.assertTrue(raw.endswith(b"\n\n"))
        blocks = raw.split(b"\n\n")[:-1]
        self.assertEqual(len(blocks), len(plain.events.seen))
        for block in blocks:
            self.assertTrue(block.startswith(b"data: {"), block)
            self.assertNotIn(b"\n", block)
            self.assertNotIn(b"\r", block)
            json.loads(block.removeprefix(b"data: "))

    async def test_only_resumable_streams_get_comments_and_only_in_silence(self) -> None:
        base, tagged = await self.tap(), await self.tap(resume=True)
        await self.mark(base, tagged)
        comment = b": keep-alive\n\n"
        for count in (1, 2, 3):
            await self.advance(14.9)
            self.assertEqual(tagged.body.count(comment), count - 1)
            await self.advance(0.1)
            await tagged.until(lambda wanted=count: tagged.body.count(comment) == wanted)  # type: ignore[misc]
        await self.advance(10)
        await self.mark(base, tagged)  # an event is as good as a comment
        await self.advance(10)
        self.assertEqual(tagged.body.count(comment), 3)
        self.assertNotIn(b":", {bytes(line[:1]) for line in base.body.split(b"\n")})
        self.assertTrue(
            all(line.startswith(b"data: ") or not line for line in base.body.split(b"\n"))
        )

    async def test_a_resumable_stream_opens_with_an_id_alone(self) -> None:
        await self.mark()
        tap = await self.tap(resume=True)
        await tap.until(lambda: bool(tap.body))
        self.assertEqual(bytes(tap.body), f"id: {self.hub.epoch}-{self.hub.current}\n\n".encode())
        # A client that saw no event at all can resume from there.
        first = tap.last_id
        await self.mark(tap)
        again = await self.tap(last_id=first)
        await self.mark(tap, again)
        self.assertEqual(again.frames[0], Frame(first, None))
        self.assert_same(again.frames[1:], tap.frames[1:])

    async def test_an_id_that_cannot_be_resumed_is_answered_with_a_resync(self) -> None:
        await self.mark()
        epoch = self.hub.epoch
        for last_id, reason in (
            ("nonsense", "malformed"),
            ("", "malformed"),
            (f"{epoch}-x", "malformed"),
            ("0123456789abcdef-1", "unknown epoch"),
            (f"{epoch}-1000", "future"),
        ):
            with self.subTest(last_id):
                tap = await self.tap(last_id=last_id)
                await tap.sees("resync")
                await self.mark(tap)
                first = tap.frames[0]
                self.assertEqual(first.kind, "resync")
                self.assertIn(reason, first.payload["reason"])
                self.assertEqual(int(first.id.rpartition("-")[2]) + 1, self.hub.current)
                self.assertEqual([f.kind for f in tap.frames[1:]], ["session"])

    async def test_an_id_older_than_the_ring_is_answered_with_a_resync(self) -> None:
        await self.mark()
        old = self.anna.events.last_id
        _, run = await self.begin()
        await soon(run.do(lambda turn: facts(turn, BOUNDS.ring_entries // 4 + 10)))
        tap = await self.tap(last_id=old)
        await tap.sees("resync")
        self.assertIn("too old", tap.frames[0].payload["reason"])
        young = f"{self.hub.epoch}-{self.hub.floor}"
        replayed = await self.tap(last_id=young)
        await self.mark(replayed)
        self.assertEqual(replayed.frames[0], Frame(young, None))
        self.assertEqual(len(replayed.frames), BOUNDS.ring_entries + 2)

    async def test_both_ways_to_ask_for_a_resumable_stream_are_the_same(self) -> None:
        await self.mark()
        await self.anna.attach(last_id=self.anna.events.last_id)
        await self.mark()
        self.assertIsNotNone(self.anna.events.last_id)
        self.assertEqual(self.anna.events.seen[-1].id, self.anna.events.last_id)


# Late joiners ------------------------------------------------------------------------------------


class LateJoinerTests(Scenario):
    REQUESTS = ("permission_request", "question_batch_request")

    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        await self.mark()
        self.before = self.anna.events.last_id
        _, self.run_ = await self.begin()
        self.verdict = self.run_.begin(
            lambda turn: turn.permission("bash", "execute", tool_call_id="c1")
        )
        self.request = (await self.anna.events.wait_for("permission_request")).payload
        _, other = await self.begin()
        question = Question(type="yes_no", question="Shall I?", description="Think about it.")
        other.begin(lambda turn: turn.ask([question]))
        self.form = (await self.anna.events.wait_for("question_batch_request")).payload
        # A second permission request is open, but the stream shows the first.
        _, third = await self.begin()
        third.begin(lambda turn: turn.permission("bash", "execute", tool_call_id="c2"))
        await self.anna.events.wait_for("permission_notification", tool_call_id="c2")

    def requests(self, tap: Tap) -> list[Frame]:
        return [frame for frame in tap.frames if frame.kind in self.REQUESTS]

    async def test_open_requests_are_shown_once_to_a_client_that_joins(self) -> None:
        for resume in (False, True):
            with self.subTest(resume=resume):
                tap = await self.tap(resume=resume)
                await self.mark(tap)
                shown = self.requests(tap)
                self.assertEqual([f.payload for f in shown], [self.form, self.request])
                self.assertEqual(
                    [f.id for f in shown], ["", ""], "shown again: no place of their own"
                )
                kinds = [f.kind for f in tap.frames if f.data]
                self.assertEqual(kinds, ["question_batch_request", "permission_request", "session"])

    async def test_a_replay_that_holds_the_requests_shows_them_once(self) -> None:
        tap = await self.tap(last_id=self.before)
        await self.mark(tap)
        shown = self.requests(tap)
        self.assertEqual([f.payload for f in shown], [self.request, self.form])
        self.assertTrue(all(f.id for f in shown), "in their own places")

    async def test_a_client_that_resumes_later_is_shown_them_again(self) -> None:
        for last_id in (self.anna.events.last_id, "nonsense"):
            tap = await self.tap(last_id=last_id)
            await self.mark(tap)
            self.assertEqual([f.payload for f in self.requests(tap)], [self.form, self.request])
            self.assertLess(tap.frames.index(self.requests(tap)[-1]), len(tap.frames) - 1)

    async def test_answered_requests_are_not_shown_and_the_next_takes_their_place(
        self,
    ) -> None:
        await self.anna.grant(self.request)
        await soon(self.verdict)
        cancel = await self.anna.call("POST", "/questions/cancel")
        self.assertTrue(cancel.json["resolved"])
        tap = await self.tap()
        await self.mark(tap)
        self.assertEqual([f.payload["tool_call_id"] for f in self.requests(tap)], ["c2"])


# Order -------------------------------------------------------------------------------------------


def label(event: Seen) -> str:
    """An event of a turn in a few words."""
    if event.kind == "message":
        parts = [part["type"] for part in event["parts"] if part["type"] != "finish"]
        return " ".join([event.action, event["role"], *parts, event.finish]).strip()
    if event.kind == "permission_notification":
        return "granted" if event["granted"] else "denied" if event["denied"] else "asked"
    return event.kind if event.kind != "agent_event" else str(event["type"])


class OrderTests(Scenario):
    async def turn(self, script: Callable[[ScriptedRun], Awaitable[None]]) -> list[str]:
        """The events of one turn, from its user message to its end."""
        session, run = await self.begin()
        await script(run)
        await self.anna.events.wait_for("run_complete")
        await self.mark()
        seen = self.anna.events.seen
        start = next(i for i, event in enumerate(seen) if event["session_id"] == session)
        return [label(event) for event in seen[start:-1]]

    async def test_the_events_of_a_turn_with_a_tool_are_in_order(self) -> None:
        async def script(run: ScriptedRun) -> None:
            await run.do(lambda turn: turn.think("hmm"))
            await run.say("I look. ")
            await run.do(lambda turn: turn.tool_call("bash", "{}", id="t1", finished=False))
            await run.do(lambda turn: turn.tool_call("bash", '{"command":"ls"}', id="t1"))
            verdict = run.begin(lambda turn: turn.permission("bash", "execute", tool_call_id="t1"))
            await self.anna.grant((await self.anna.events.wait_for("permission_request")).payload)
            self.assertTrue(await soon(verdict))
            await run.do(lambda turn: turn.tool_result("t1", "README"))
            await run.do(lambda turn: turn.usage(Usage(100, 20)))
            await run.say("Done.")
            run.release()

        self.assertEqual(
            await self.turn(script),
            [
                "created user text stop",
                "created assistant",
                "updated assistant reasoning",
                "updated assistant reasoning",  # it ended
                "updated assistant reasoning text",
                "updated assistant reasoning text tool_call",
                "updated assistant reasoning text tool_call",  # finished
                "asked",
                "permission_request",
                "granted",
                "created tool tool_result stop",
                "session",
                "updated assistant reasoning text tool_call tool_use",
                "created assistant",
                "updated assistant text",
                "updated assistant text end_turn",
                "session",
                "agent_finished",
                "run_complete",
            ],
        )

    async def test_a_failed_turn_ends_with_its_error_event_and_its_run_complete(self) -> None:
        async def script(run: ScriptedRun) -> None:
            await run.say("so far")
            run.fail("no more money")

        self.assertEqual(
            (await self.turn(script))[-4:],
            ["updated assistant text error", "session", "error", "run_complete"],
        )
        error, done = (
            self.anna.events.all("agent_event")[-1],
            self.anna.events.all("run_complete")[-1],
        )
        self.assertEqual(error["run_id"], done["run_id"])
        self.assertIn("no more money", error["error"])

    async def test_a_canceled_turn_closes_its_calls_first_and_has_no_agent_event(self) -> None:
        async def script(run: ScriptedRun) -> None:
            await run.do(lambda turn: turn.tool_call("bash", "{}", id="t1"))
            run.begin(lambda turn: turn.permission("bash", "execute", tool_call_id="t1"))
            await self.anna.events.wait_for("permission_request")
            await self.anna.cancel(run.turn.session_id)

        self.assertEqual(
            (await self.turn(script))[-6:],
            [
                "permission_request",
                "denied",
                "created tool tool_result stop",
                "updated assistant tool_call canceled",
                "session",
                "run_complete",
            ],
        )
        self.assertEqual(self.anna.events.all("agent_event"), [])

    async def test_the_session_is_not_busy_any_more_when_its_end_is_published(self) -> None:
        busy: list[tuple[str, bool]] = []
        workspace = self.daemon.backend.get(self.anna.workspace["id"])
        publish = workspace.hub.publish

        def spy(action: str, payload: object, **options: bool) -> int:
            name = type(payload).__name__
            if name in ("AgentEvent", "RunComplete"):
                busy.append((name, workspace.runs.busy()))
            return publish(action, payload, **options)

        _, run = await self.begin()
        with mock.patch.object(workspace.hub, "publish", spy):
            await self.finish(run)
        self.assertEqual(busy, [("AgentEvent", False), ("RunComplete", False)])

    async def test_two_clients_see_the_same_facts_in_the_same_order_under_load(self) -> None:
        taps = [await self.tap(resume=True), await self.tap(resume=True), await self.tap()]
        runs = [(await self.begin())[1] for _ in range(6)]

        async def live(run: ScriptedRun) -> None:
            await run.do(lambda turn: facts(turn, 20))
            await run.do(lambda turn: chatter(turn, 60))
            run.release()

        async def bystander() -> None:
            for number in range(30):
                await self.anna.session(f"session {number}")

        await soon(asyncio.gather(bystander(), *(live(run) for run in runs)))
        for run in runs:
            info = await self.anna.call("GET", f"/runs/{run.turn.run_id}?wait=10")
            self.assertEqual(info.json["state"], "ended")
        await self.mark(*taps)
        first, second, base = (facts_of(tap.frames) for tap in taps)
        self.assert_same(first, second)
        self.assert_same(first, base)
        self.assertGreater(len(first), 6 * 20 * 4 + 30)
        for tap in taps[:2]:
            numbers = [int(frame.id.rpartition("-")[2]) for frame in tap.frames]
            self.assertEqual(numbers, sorted(set(numbers)))


# Dropped and resumed -----------------------------------------------------------------------------


class ResumeTests(Scenario):
    async def test_a_client_that_drops_again_and_again_loses_and_repeats_nothing(self) -> None:
        control = await self.tap(resume=True)
        start = self.anna.events.last_id
        _, run = await self.begin()
        await self.anna.attach(last_id=start)
        collected: list[Seen] = []
        for _ in range(12):
            # The connection goes in the middle of this, and the rest is published meanwhile.
            working = run.begin(lambda turn: facts(turn, 40))
            reader = self.anna.events
            await reader.wait_for("message", role="tool")
            await reader.close()
            collected += reader.seen
            await soon(working)
            await self.anna.attach(last_id=collected[-1].id)
        run.release()
        await self.anna.events.wait_for("run_complete")  # else the end may come after the mark
        await self.mark(control)
        await self.anna.events.close()
        collected += self.anna.events.seen
        wanted = [(frame.id, frame.data) for frame in control.frames if frame.data]
        got = [
            (
                event.id,
                {"type": event.kind, "payload": {"type": event.action, "payload": event.payload}},
            )
            for event in collected
        ]
        self.assert_same(got, wanted)

    async def test_after_a_lag_a_stream_skips_growth_but_its_numbers_only_rise(self) -> None:
        tap = await self.tap(resume=True)
        tap.transport.pause_reading()
        _, run = await self.begin()
        for _ in range(200):
            await run.say("word " * 400)
            self.publish_growth()
        await self.finish(run)
        tap.transport.resume_reading()
        await self.mark(tap)
        numbers = [int(frame.id.rpartition("-")[2]) for frame in tap.frames if frame.id]
        self.assertEqual(numbers, sorted(set(numbers)))
        self.assertLess(len(numbers), self.hub.current)
        last = [frame for frame in tap.frames if frame.kind == "message"][-1]
        text = next(p["data"]["text"] for p in last.payload["parts"] if p["type"] == "text")
        self.assertEqual(text, "word " * 400 * 200, "what follows holds what was skipped")


# A reader that is stopped by force ---------------------------------------------------------------

STOPPED = """
import socket, sys
sock = socket.socket(socket.AF_UNIX)
sock.connect(sys.argv[1])
sock.sendall(bytes.fromhex(sys.argv[2]))
received = b""
while b"\\r\\n\\r\\n" not in received:
    received += sock.recv(65536)
print("reading", flush=True)
try:
    while chunk := sock.recv(65536):
        received += chunk
        if b'"title":"enough"' in received[-70000:]:
            break
except ConnectionResetError:
    received += b"reset"
sys.stdout.buffer.write(received.partition(b"\\r\\n\\r\\n")[2])
"""


class StoppedReader:
    """A client in a process of its own, which the kernel keeps from running."""

    def __init__(self, client: Participant) -> None:
        target = f"{client.base}/events?client_id={client.id}&resume=1"
        arguments = [str(client.daemon.socket), request_of(target).hex()]
        self.process = subprocess.Popen(
            [sys.executable, "-c", STOPPED, *arguments], stdout=subprocess.PIPE
        )

    async def stop(self) -> None:
        assert self.process.stdout is not None
        ready = await soon(asyncio.to_thread(self.process.stdout.readline))
        assert ready == b"reading\n", ready
        os.kill(self.process.pid, signal.SIGSTOP)
        _, status = await soon(asyncio.to_thread(os.waitpid, self.process.pid, os.WUNTRACED))
        assert os.WIFSTOPPED(status)

    async def go_on(self) -> bytes:
        """Let it read to the end of its stream; returns what it received."""
        os.kill(self.process.pid, signal.SIGCONT)
        received, _ = await soon(asyncio.to_thread(self.process.communicate))
        return received

    def close(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
            self.process.communicate()


class StoppedReaderTests(Scenario):
    async def stopped(self) -> StoppedReader:
        client = await self.daemon.create(client_id=str(uuid.uuid4()))
        reader = StoppedReader(client)
        self.addCleanup(reader.close)
        await reader.stop()
        return reader

    @contextlib.contextmanager
    def watched_memory(self) -> Iterator[list[int]]:
        """Looks at every waiting subscriber and the ring after each event; holds the most that a
        subscriber had. (A task that looked all the time would starve the store's threads.)"""
        hub, publish = self.hub, self.hub.publish
        most = [0]

        def publish_and_look(*args: Any, **kwargs: Any) -> int:
            seq = publish(*args, **kwargs)
            for subscriber in hub.waiting:
                self.assertLessEqual(len(subscriber.backlog.entries), BOUNDS.entries)
                most[0] = max(most[0], subscriber.backlog.bytes + subscriber.buffered)
            self.assertLessEqual(len(hub.ring.entries), BOUNDS.ring_entries)
            self.assertLessEqual(hub.ring.bytes, BOUNDS.ring_bytes)
            return seq

        with mock.patch.object(hub, "publish", publish_and_look):
            yield most

    async def load(self, rounds: int, pieces: int) -> None:
        """Facts in one session and a long streaming text in another, at the same time."""
        with self.watched_memory() as most:
            runs = [(await self.begin())[1] for _ in range(2)]
            async with asyncio.timeout(LIMIT):
                await asyncio.gather(
                    runs[0].do(lambda turn: facts(turn, rounds)),
                    runs[1].do(lambda turn: chatter(turn, pieces)),
                )
            for run in runs:
                await self.finish(run)
        self.assertGreater(most[0], 0)
        self.assertLessEqual(most[0], BOUNDS.bytes + 256 * 1024)

    async def test_of_fifty_clients_a_stopped_one_hurts_only_itself(self) -> None:
        taps = [await self.tap() for _ in range(48)]
        reader = await self.stopped()
        await self.load(rounds=1250, pieces=3000)
        self.assertEqual(self.hub.closed_slow, 1, "5,000 facts are more than a stream may hold")
        self.assertEqual(len(self.hub.subscribers()), 49)
        await self.mark(*taps)
        distinct = {bytes(tap.body) for tap in taps}
        told = [facts_of(frames_of(body)) for body in distinct]
        self.assertGreater(len(told[0]), 5000)
        for other in told[1:]:
            self.assert_same(other, told[0])
        received = await reader.go_on()
        self.assertFalse(received.endswith(b"reset"), "it ends like any other stream")
        frames = frames_of(received)
        prefix = facts_of(frames)
        self.assertGreater(len(prefix), 10)
        self.assert_same(prefix, told[0][: len(prefix)])  # up to its end it has lost nothing
        # Too much has gone by since: it gets a resync, and goes on from here.
        last_id = next(frame.id for frame in reversed(frames) if frame.id)
        back = await self.tap(last_id=last_id)
        await self.mark(back)
        self.assertEqual([frame.kind for frame in back.frames], ["resync", "session"])

    async def test_a_reader_stopped_for_a_while_catches_up_without_a_gap(self) -> None:
        control = await self.tap(resume=True)
        reader = await self.stopped()
        await self.load(rounds=300, pieces=1000)
        self.assertEqual(self.hub.closed_slow, 0)
        await self.anna.session("enough")
        await control.sees('"title":"enough"')
        received = frames_of(await reader.go_on())
        self.assert_same(facts_of(received), facts_of(control.frames))
