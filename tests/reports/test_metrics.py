"""Metrics: well-formed, and exact."""

from __future__ import annotations

import asyncio
import os
import re
import unittest
import unittest.mock
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from crushlite.clock import SystemClock
from crushlite.protocol.events import ConfigChanged
from crushlite.protocol.messages import Message
from crushlite.protocol.questions import Question
from crushlite.reports.metrics import Family, write
from crushlite.reports.wing import TEXT_FORMAT
from crushlite.settings import Settings
from crushlite.testing import LocalDaemon
from crushlite.testing.fake_clock import FakeClock
from crushlite.testing.scripted import ScriptedAgent
from crushlite.version import __version__
from tests.support.basics import BoundedTestCase
from tests.support.disk import Disk
from tests.support.places import ROOT
from tests.support.prompts import until

if TYPE_CHECKING:
    from crushlite.agent.base import Turn

# The text format, as its description has it -----------------------------------------------------

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
SAMPLE = re.compile(rf"({NAME})(?:\{{(.*)\}})? (\S+)")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)')


@dataclass
class Metric:
    kind: str = ""
    about: str = ""
    values: dict[str, float] = field(default_factory=dict)  # by the value of the label, "" if none

    @property
    def value(self) -> float:
        return self.values[""]


def unescaped(text: str, *, quotes: bool) -> str:
    known = {"\\\\": "\\", "\\n": "\n", '\\"': '"' if quotes else '\\"'}
    return re.sub(r"\\.", lambda match: known[match[0]], text)


def parse(text: str) -> dict[str, Metric]:
    """Read metrics strictly: HELP, TYPE, samples; each family once and in one piece."""
    assert text.endswith("\n")
    assert "\r" not in text
    metrics: dict[str, Metric] = {}
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            _, _, name, about = line.split(" ", 3)
            assert name not in metrics, f"{name} comes twice"
            metrics[name] = Metric(about=unescaped(about, quotes=False))
            continue
        newest = list(metrics)[-1]
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert (name, metrics[name].kind, metrics[name].values) == (newest, "", {}), line
            assert kind in ("counter", "gauge"), line
            metrics[name].kind = kind
            continue
        match = SAMPLE.fullmatch(line)
        assert match is not None, line
        name, labels, number = match.groups()
        assert name == newest, line
        assert metrics[name].kind, line
        values = [unescaped(value, quotes=True) for _, value in LABEL.findall(labels or "")]
        assert LABEL.sub("", labels or "") == "", line
        [label] = values or [""]
        assert label not in metrics[name].values, line
        metrics[name].values[label] = float(number)
    return metrics


class FormatTests(unittest.TestCase):
    def test_help_labels_and_numbers_survive_whatever_they_hold(self) -> None:
        odd = 'a\\b\n"c" {d},e="f" \\n é'
        families = [
            Family("x_total", odd, {odd: 3, "": 0}, "why"),
            Family("y", "plain", 0.1 + 0.2),
            Family("z_bytes", "large", 2**53),
        ]
        read = parse(write(families).decode("utf-8"))
        self.assertEqual(read["x_total"], Metric("counter", odd, {odd: 3, "": 0}))
        self.assertEqual(read["y"], Metric("gauge", "plain", {"": 0.1 + 0.2}))
        self.assertEqual(read["z_bytes"].value, 2**53)

    def test_the_parser_refuses_what_is_no_metric(self) -> None:
        good = "# HELP a b\n# TYPE a gauge\na 1\n"
        self.assertEqual(parse(good)["a"].value, 1)
        for bad in (
            *(good[:-1], good + good, good + "b 1\n", good + "a 2\n", "# HELP a b\na 1\n"),
            *(good + 'a{b="c\\x"} 1\n', good + 'a{b="c"d"} 1\n', good + "a one\n"),
        ):
            with self.subTest(bad), self.assertRaises((AssertionError, KeyError, ValueError)):
                parse(bad)


# What is counted --------------------------------------------------------------------------------


class MetricsTestCase(BoundedTestCase):
    async def start(self, agent: Any = None, **options: Any) -> LocalDaemon:
        self.daemon = await self.enterAsyncContext(LocalDaemon(agent, **options))
        return self.daemon

    async def scrape(self) -> dict[str, Metric]:
        answer = await self.daemon.http.request("GET", "/v1/metrics", timeout=60)
        self.assertEqual((answer.status, answer.headers.get("Content-Type")), (200, TEXT_FORMAT))
        self.text = answer.body.decode("utf-8")
        return parse(self.text)

    async def number(self, name: str) -> float:
        return (await self.scrape())[name].value


class DaemonTests(MetricsTestCase):
    async def test_an_unused_daemon_counts_nothing_and_says_what_it_is(self) -> None:
        clock = FakeClock()
        await self.start(clock=clock)
        await clock.advance(5)
        read = await self.scrape()
        self.assertEqual(read["crushlite_info"].values, {__version__: 1})
        self.assertEqual(read["crushlite_uptime_seconds"].value, 5)
        busy = {name for name, metric in read.items() if any(metric.values.values())}
        machine = {name for name in read if name.startswith(("process_", "crushlite_loop_"))}
        always = {"crushlite_info", "crushlite_uptime_seconds", "crushlite_http_connections"}
        self.assertEqual(busy - machine, always | {"crushlite_http_requests_in_flight"})
        for name, metric in read.items():
            self.assertEqual(metric.kind == "counter", name.endswith("_total"))
            self.assertTrue(metric.about)

    async def test_the_process_is_counted_as_the_system_counts_it(self) -> None:
        await self.start()
        read = await self.scrape()
        self.assertGreater(read["process_resident_memory_bytes"].value, 1 << 20)
        self.assertLess(read["process_resident_memory_bytes"].value, 1 << 34)
        self.assertEqual(read["process_open_fds"].value, len(os.listdir("/proc/self/fd")) - 1)
        self.assertGreaterEqual(read["process_max_fds"].value, read["process_open_fds"].value)
        later = await self.number("process_cpu_seconds_total")
        self.assertGreater(later, read["process_cpu_seconds_total"].value)

    async def test_requests_are_counted_by_how_they_were_answered(self) -> None:
        await self.start(tcp=True)
        for path in ("/v1/health", "/v1/version"):
            await self.daemon.call("GET", path)
        for method, path in (("GET", "/v1/nothing"), ("PATCH", "/v1/health")):
            await self.daemon.call(method, path)
        refused = await self.daemon.call("GET", "/v1/health", http=self.daemon.connect(tcp=True))
        self.assertEqual(refused.status, 401)
        await self.daemon.join()  # a create and a stream
        read = await self.scrape()
        answered = {"2xx": 4, "3xx": 0, "4xx": 3, "5xx": 0}
        self.assertEqual(read["crushlite_http_requests_total"].values, answered)
        self.assertEqual(read["crushlite_http_connections"].value, 3)
        again = await self.scrape()
        self.assertEqual(again["crushlite_http_requests_total"].values["2xx"], 5)

    async def test_a_refusal_that_ends_the_connection_is_counted_too(self) -> None:
        await self.start()
        refused = await self.daemon.call("POST", "/v1/control", b"x" * ((1 << 20) + 1))
        self.assertEqual(refused.status, 413)
        read = await self.scrape()
        answered = {"2xx": 0, "3xx": 0, "4xx": 1, "5xx": 0}
        self.assertEqual(read["crushlite_http_requests_total"].values, answered)

    async def test_what_is_being_carried_out_is_in_flight(self) -> None:
        await self.start()
        anna = await self.daemon.join()
        session = await anna.session()
        accepted = await anna.prompt(session)
        run = await self.daemon.entered(1)
        waits = f"{anna.base}/runs/{accepted.json['run_id']}?wait=20"
        waiter = asyncio.create_task(self.daemon.call("GET", waits, http=self.daemon.connect()))
        server = self.daemon.daemon.server
        await until(lambda: len(server.tasks) == 1, "the waiting request has begun")
        self.assertEqual(await self.number("crushlite_http_requests_in_flight"), 2)
        run.release()
        await waiter
        self.assertEqual(await self.number("crushlite_http_requests_in_flight"), 1)

    async def test_no_label_holds_what_belongs_to_a_person(self) -> None:
        await self.start(tcp=True)
        anna = await self.daemon.join()
        session = await anna.session("a secret title")
        accepted = await anna.prompt(session, "a secret prompt")
        await self.daemon.entered(1)
        await self.scrape()
        ids = (anna.id, session, anna.workspace["id"], accepted.json["run_id"])
        token = self.daemon.daemon.tokens[self.daemon.port].token
        for private in (*ids, token, str(self.daemon.root), "secret", "project"):
            self.assertNotIn(private, self.text)


class WorkspaceTests(MetricsTestCase):
    async def test_workspaces_clients_and_streams_are_those_of_now(self) -> None:
        await self.start()
        names = ("crushlite_workspaces", "crushlite_clients", "crushlite_streams")

        async def counted() -> list[float]:
            read = await self.scrape()
            return [read[name].value for name in names]

        anna = await self.daemon.join()
        self.assertEqual(await counted(), [1, 1, 1])
        bert = await self.daemon.join()
        await anna.attach()
        self.assertEqual(await counted(), [1, 2, 3])
        other = self.daemon.root / "other"
        other.mkdir()
        await self.daemon.create(other, client_id=bert.id)
        self.assertEqual(await counted(), [2, 2, 3])
        await bert.retire()
        self.assertEqual(await counted(), [1, 1, 2])

    async def test_what_waits_for_a_person_is_pending_until_it_is_answered(self) -> None:
        await self.start()
        anna = await self.daemon.join()
        await anna.prompt(await anna.session())
        run = await self.daemon.entered(1)
        asked = run.begin(lambda turn: turn.permission("bash", "execute"))
        request = await anna.events.wait_for("permission_request")
        self.assertEqual(await self.number("crushlite_permissions_pending"), 1)
        await anna.grant(request.payload)
        await asked
        question = Question(type="yes_no", label="q", question="well?", description="d")
        asked = run.begin(lambda turn: turn.ask([question]))
        await anna.events.wait_for("question_batch_request")
        read = await self.scrape()
        self.assertEqual(read["crushlite_permissions_pending"].value, 0)
        self.assertEqual(read["crushlite_questions_pending"].value, 1)
        await anna.call("POST", "/questions/cancel")
        await asked
        self.assertEqual(await self.number("crushlite_questions_pending"), 0)

    async def test_an_agent_that_ignores_its_cancellation_is_counted_once(self) -> None:
        stubborn = Stubborn()
        self.addCleanup(stubborn.leave.set)
        await self.start(stubborn, settings=Settings(cancel_grace=0.01, drain=0.01))
        anna = await self.daemon.join()
        session = await anna.session()
        await anna.prompt(session)
        async with asyncio.timeout(60):
            await stubborn.inside.wait()
        self.assertEqual(await self.number("crushlite_agents_abandoned_total"), 0)
        await anna.cancel(session, wait=20)
        self.assertEqual(await self.number("crushlite_agents_abandoned_total"), 1)
        stubborn.leave.set()

    async def test_runs_are_counted_by_state_while_they_live_and_by_outcome_afterwards(
        self,
    ) -> None:
        await self.start()
        anna = await self.daemon.join()
        session, other = await anna.session(), await anna.session()

        async def counted() -> tuple[dict[str, float], dict[str, float]]:
            read = await self.scrape()
            runs, ended = read["crushlite_runs"], read["crushlite_runs_ended_total"]
            return (
                {state: number for state, number in runs.values.items() if number},
                {outcome: number for outcome, number in ended.values.items() if number},
            )

        await anna.prompt(session, "one")
        run = await self.daemon.entered(1)
        for text in ("two", "three"):
            await anna.prompt(session, text, when_busy="queue")
        await anna.prompt(session, "four", when_busy="steer")
        await anna.prompt(other, "five")
        second = await self.daemon.entered(2)
        self.assertEqual(await counted(), ({"active": 2, "queued": 3}, {}))
        health = (await self.daemon.call("GET", "/v1/health?verbose=1")).json
        self.assertEqual(health["busy_sessions"], 2)
        await run.do(lambda turn: turn.followups())
        self.assertEqual(await counted(), ({"active": 2, "queued": 2, "folded": 1}, {}))
        await anna.call("POST", f"/agent/sessions/{session}/prompts/clear")
        await anna.events.wait_for("run_complete")
        await anna.events.wait_for("run_complete")
        self.assertEqual(await counted(), ({"active": 2, "folded": 1}, {"cleared": 2}))
        run.release()
        for _ in range(2):
            await anna.events.wait_for("run_complete", error=None)
        second.fail()
        await anna.events.wait_for("run_complete", session_id=other)
        await anna.prompt(session, "six")
        await self.daemon.entered(3)
        await anna.cancel(session, wait=20)
        ended = {"completed": 2, "failed": 1, "canceled": 1, "cleared": 2}
        self.assertEqual(await counted(), ({}, ended))
        await anna.retire()
        self.assertEqual(await counted(), ({}, ended))

    async def test_an_ending_that_waits_to_be_written_is_counted_until_it_is(self) -> None:
        disk = Disk()
        await self.start(stores=disk.stores(SystemClock()))
        anna = await self.daemon.join()
        await anna.prompt(await anna.session())
        run = await self.daemon.entered(1)
        disk.fill("UPDATE runs SET outcome")
        run.release()
        await anna.events.wait_for("run_complete")
        self.assertEqual(await self.number("crushlite_endings_unsaved"), 1)
        disk.free()
        await anna.events.wait_for("session", action="updated")  # comes with the ending
        self.assertEqual(await self.number("crushlite_endings_unsaved"), 0)


class Stubborn:
    """Ignores its cancellation until the test lets it end."""

    def __init__(self) -> None:
        self.inside = asyncio.Event()
        self.leave = asyncio.Event()

    async def run(self, turn: Turn) -> None:
        self.inside.set()
        while not self.leave.is_set():
            try:
                await self.leave.wait()
            except asyncio.CancelledError:
                pass


class Lingering(ScriptedAgent):
    """Keeps its workspace from closing until the test lets it."""

    def __init__(self) -> None:
        super().__init__(auto=True)
        self.closing = asyncio.Event()
        self.may_go = asyncio.Event()

    async def aclose(self) -> None:
        self.closing.set()
        await self.may_go.wait()


class EventTests(MetricsTestCase):
    async def test_every_event_a_client_saw_was_counted_once(self) -> None:
        await self.start(ScriptedAgent(auto=True))
        anna = await self.daemon.join()
        session = await anna.session()
        for text in ("one", "two"):
            await anna.prompt(session, text)
            await anna.events.wait_for("run_complete", text=text)
        published = await self.number("crushlite_events_published_total")
        self.assertEqual(published, len(anna.events.seen))
        self.assertGreater(published, 8)

    async def test_skipped_growth_slow_readers_and_what_waits_for_them_are_counted(self) -> None:
        await self.start()
        anna = await self.daemon.join()
        [hosted] = self.daemon.backend.everything()
        hub = hosted.hub
        reader = hub.subscribe()  # and never reads
        message = Message(id="m", role="assistant", session_id="s")
        for _ in range(3):
            hub.publish("updated", message, growth=True)
        read = await self.scrape()
        self.assertEqual(read["crushlite_events_conflated_total"].value, 2)
        held = reader.backlog.bytes
        self.assertGreater(held, 0)
        self.assertEqual(read["crushlite_stream_queue_bytes"].value, held)
        self.assertEqual(read["crushlite_streams_closed_total"].values, {"slow": 0, "failed": 0})
        for _ in range(hub.bounds.entries):
            hub.publish("updated", ConfigChanged(anna.workspace["id"]))
        read = await self.scrape()
        self.assertEqual(read["crushlite_streams_closed_total"].values, {"slow": 1, "failed": 0})
        self.assertEqual(read["crushlite_events_published_total"].value, 3 + hub.bounds.entries)

    async def test_a_counter_never_goes_down_when_a_workspace_closes(self) -> None:
        agent = Lingering()
        await self.start(agent)
        anna = await self.daemon.join()
        await anna.prompt(await anna.session(), "one")
        await anna.events.wait_for("run_complete")
        name = "crushlite_events_published_total"
        before = await self.number(name)
        await anna.retire()
        async with asyncio.timeout(60):
            await agent.closing.wait()
        read = await self.scrape()
        self.assertEqual((read["crushlite_workspaces"].value, read[name].value), (0, before))
        agent.may_go.set()
        bert = await self.daemon.join()  # which waits for the end of the old one
        self.assertEqual(await self.number(name), before)
        await bert.session()
        self.assertEqual(await self.number(name), before + 1)


class DocumentationTests(MetricsTestCase):
    async def test_every_metric_is_documented_and_no_other(self) -> None:
        page = (ROOT / "docs" / "protocol.md").read_text("utf-8")
        await self.start()
        metrics = re.findall(r"`((?:crushlite|process)_\w+)(?:\{\w+\})?`", page)
        self.assertEqual(sorted(metrics), sorted(await self.scrape()))
