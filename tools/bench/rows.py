"""The rows of the table, and the measurements that fill them.

A measurement starts a server of its own, works through the public protocol, and returns a figure
for each of its rows. It raises BenchError when the server fails, or loses or reorders events.
"""

import contextlib
import multiprocessing
import re
import select
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median, quantiles

from client import BenchError, Collector, Connection
from history import fill
from servers import Recipe, Server

PER_SESSION = 25  # turns before the next session, so that the history sent to the model stays short
PAUSE = 0.01  # seconds between lone events
TITLE = re.compile(rb'"title":"s-(\d+)')
LAST = "the-last"

Figures = dict[str, float]


@dataclass(frozen=True)
class Stage:
    """Starts servers of one recipe, and says how much of everything is done."""

    recipe: Recipe
    model: str
    folder: Path | None
    scale: float  # of the numbers of repetitions
    size: float  # of the loads that the titles of the rows name: below 1 only to try things out
    idle: float  # seconds

    def times(self, count: int) -> int:
        return max(2, round(count * self.scale))

    def sized(self, count: int) -> int:
        return max(2, round(count * self.size))

    @contextlib.contextmanager
    def server(self, transport: str = "unix") -> Iterator[Server]:
        server = Server(self.recipe, self.model, self.folder, transport)
        try:
            server.join()
            yield server
        except (OSError, ValueError, BenchError) as error:
            code = server.process.poll()
            died = "" if code is None else f"it died with {code}, {server.last_words()!r}: "
            raise BenchError(f"{died}{error!r}") from error
        finally:
            server.close()


def medians(names: Sequence[str], lines: Sequence[Sequence[float]], unit: float) -> Figures:
    """The median of each column of figures."""
    columns = zip(*lines, strict=True)
    return {name: median(values) * unit for name, values in zip(names, columns, strict=True)}


def clocked(count: int, line: Connection, target: str) -> list[float]:
    """The seconds that each of several GETs took."""
    took = []
    for _ in range(count):
        began = time.monotonic()
        line.call("GET", target)
        took.append(time.monotonic() - began)
    return took


def cold(stage: Stage) -> Figures:
    took = []
    for _ in range(stage.times(10)):
        with stage.server() as server:
            took.append(server.cold)
    return {"cold": median(took) * 1e3}


def own_run(stage: Stage) -> Figures:
    with stage.server() as server:
        server.ask()
        return medians(("run", "run_cpu"), [server.ask() for _ in range(stage.times(10))], 1e3)


def turned(server: Server, count: int) -> tuple[list[tuple[float, float]], float]:
    """Turns one by one: the seconds of each to its 202 and to its end, and the processor time of
    one. The first of a session is not timed, as a title is made beside it; the processor time is of
    all."""
    took = []
    server.turn(server.session())
    before = server.cpu()
    for number in range(count):
        if number % PER_SESSION == 0:
            server.turn(session := server.session())
        took.append(server.turn(session))
    return took, (server.cpu() - before) / (count + -(-count // PER_SESSION))


def turns(stage: Stage) -> Figures:
    with stage.server() as server:
        took, cpu = turned(server, stage.times(400))
    figures = {"turn_cpu": cpu * 1e3, "worst": max(ended for _, ended in took) * 1e3}
    figures["stalls"] = sum(ended > 0.1 for _, ended in took)
    return figures | medians(("post", "turn"), [(p * 1e3, ended) for p, ended in took], 1e3)


def hold(stage: Stage) -> Figures:
    """The first text of a turn, and the end after its cancel as another client sees it."""
    took = []
    with stage.server() as server:
        (other,) = server.subscribe(1)
        server.turn(session := server.session())
        for _ in range(stage.times(40)):
            server.stream.skip(PAUSE)  # late events of the last turn hold the same text
            began = time.monotonic()
            run = server.prompt(session, "@hold")
            first = server.stream.wait(b"assistant", b"Lorem") - began
            server.line.answer()
            began = time.monotonic()
            server.line.send("POST", f"{server.base}/agent/sessions/{session}/cancel")
            took.append((first, other.wait(b"run_complete", b'"cancelled":true', run) - began))
            server.line.answer()
    return medians(("first", "cancel"), took, 1e3)


@dataclass(frozen=True)
class Deliveries:
    """What came of events on many streams: the latency of each delivery, the seconds from the first
    request to the last delivery, and the processor time of the server, without the opening."""

    took: list[float]
    seconds: float
    cpu: float


def published(server: Server, count: int, events: int, pause: float) -> Deliveries:
    """Create sessions while `count` streams are attached."""
    streams = [server.stream, *server.subscribe(count - 1)]
    collector = Collector(streams, LAST.encode())
    before = server.cpu()
    began, took, latest = [], [], 0.0
    for number in range(events):
        time.sleep(pause)
        began.append(time.monotonic())
        server.session(f"s-{number:05d}" + (f" {LAST}" if number == events - 1 else ""))
    results = collector.result()
    cpu = server.cpu() - before
    for _, arrivals in results:
        seen = [(at, int(found[1])) for at, line in arrivals if (found := TITLE.search(line))]
        if [number for _, number in seen] != list(range(events)):
            raise BenchError(f"events were lost or reordered: {len(seen)} of {events} came")
        took += [at - began[number] for at, number in seen]
        latest = max(latest, seen[-1][0])
    return Deliveries(took, latest - began[0], cpu)


def publish(stage: Stage) -> Figures:
    with stage.server() as server:
        found = published(server, 10, stage.times(200), PAUSE)
    return {"publish": median(found.took) * 1e6}


def fan_out(stage: Stage) -> Figures:
    streams, events = stage.sized(100), stage.times(600)
    with stage.server("tcp") as server:
        published(server, 1, 20, 0)  # to warm up
        found = published(server, streams, events, 0)
    count = len(found.took)
    return {"fanout": count / found.seconds / 1e3, "fanout_cpu": found.cpu / count * 1e6}


def deltas(stage: Stage) -> Figures:
    figures, words = [], stage.sized(2000)
    with stage.server() as server:
        for _ in range(stage.times(10)):
            server.turn(session := server.session())
            server.stream.skip(PAUSE)
            streams = [*server.subscribe(9), *server.subscribe(1, "&resume=1&deltas=1")]
            collector = Collector(streams, b"run_complete")
            before, began = server.cpu(), time.monotonic()
            server.prompt(session, f"@deltas {words}")
            server.line.answer()
            results = collector.result()
            cpu = server.cpu() - before
            if any(words not in (line.count(b"Lorem") for _, line in seen) for _, seen in results):
                raise BenchError("the text did not arrive whole")
            wall = max(seen[-1][0] for _, seen in results) - began
            plain, linear = (results[index][0] / 1024 / 1e3 for index in (0, -1))
            figures.append((wall, cpu, plain, linear))
    return medians(("deltas", "deltas_cpu", "deltas_kb", "linear_kb"), figures, 1e3)


def sessions(stage: Stage) -> Figures:
    with stage.server() as server:
        for number in range(stage.sized(1000)):
            server.session(f"session {number}")
            server.stream.skip(0)
        took = clocked(stage.times(40), server.line, f"{server.base}/sessions")
    return {"sessions": median(took) * 1e3}


def health(stage: Stage) -> Figures:
    with stage.server() as server:
        clocked(100, server.line, "/v1/health")  # to warm up
        before = server.cpu()
        took = clocked(stage.times(4000), server.line, "/v1/health")
        cpu = server.cpu() - before
    return {"health": median(took) * 1e6, "health_cpu": cpu / len(took) * 1e6}


def attached(server: Server, count: int) -> tuple[float, float]:
    """The memory of a server after one turn, and what each of so many idle streams adds, in KiB."""
    server.turn(server.session())
    time.sleep(0.3)
    before = server.memory()
    streams = server.subscribe(count)
    time.sleep(0.3)
    return before, (server.memory() - before) / len(streams)


def memory(stage: Stage) -> Figures:
    with stage.server() as server:
        before, each = attached(server, stage.sized(500))
    return {"memory": before / 1024, "stream_kb": each}


def idle(stage: Stage) -> Figures:
    with stage.server() as server:
        streams = server.subscribe(10)
        time.sleep(min(2.0, stage.idle))
        before = server.cpu()
        time.sleep(stage.idle)
        used = server.cpu() - before
        del streams  # open until here
    return {"idle": used / stage.idle * 60 * 1e3}


def posters(stage: Stage) -> Figures:
    """Each sends the next prompt when the last is promised. The first turn of its session never
    ends, so that every further prompt is stored, promised and queued, and nothing else runs."""
    lines: dict[int, tuple[Connection, str]] = {}
    with stage.server() as server, contextlib.closing(select.epoll()) as poll:
        for _ in range(stage.sized(32)):
            run = server.prompt(session := server.session(), "@hold")
            server.line.answer()  # one by one: many at once kill Crush
            server.stream.wait(*((run,) if stage.recipe.toy else (b"assistant", b"Lorem")))
            line = Connection(server.url)
            lines[line.sock.fileno()] = line, session
            poll.register(line.sock.fileno(), select.EPOLLIN)
        draining = Collector([server.stream], b"never")
        unanswered = total = len(lines) * stage.times(100)
        began = time.monotonic()
        for line, session in lines.values():
            server.prompt(session, "next", line)
        while unanswered:
            for fd, _ in poll.poll():
                line, session = lines[fd]
                line.answer()
                if unanswered > len(lines):
                    server.prompt(session, "next", line)
                unanswered -= 1
        seconds = time.monotonic() - began
        draining.child.kill()
    return {"posters": total / seconds}


def beside(stage: Stage) -> Figures:
    """Prompts one by one, to a session as those of `posters`, while another client, in a process of
    its own, reads a long session several times."""
    took = []
    with stage.server() as server:
        server.prompt(busy := server.session(), "@hold")
        server.line.answer()
        long = server.session()
        fill(server.database, stage.sized(20_000), long)
        reading, target = Connection(server.url), f"{server.base}/sessions/{long}/messages"
        clock = partial(clocked, stage.times(10), reading, target)
        reader = multiprocessing.get_context("fork").Process(target=clock)
        reader.start()
        while reader.is_alive():
            began = time.monotonic()
            server.prompt(busy, "next")
            server.line.answer()
            took.append(time.monotonic() - began)
        if reader.exitcode:
            raise BenchError("the long session could not be read")
    return {"beside": quantiles(took, n=100)[98] * 1e3}


Measure = Callable[[Stage], Figures]


@dataclass(frozen=True)
class Row:
    key: str
    title: str
    unit: str
    measure: Measure
    more: bool = False  # whether a larger figure is better


ROWS = [
    Row("cold", "cold start to first 200", "ms", cold),
    Row("run", 'own `run "hello"` beside a server', "ms", own_run),
    Row("run_cpu", "  CPU of that client", "ms", own_run),
    Row("post", "POST to 202, one client, p50", "us", turns),
    Row("turn", "turn, POST to run_complete, p50", "ms", turns),
    Row("turn_cpu", "  CPU per turn", "ms", turns),
    Row("worst", "  worst turn", "ms", turns),
    Row("stalls", "  turns over 100 ms", "", turns),
    Row("first", "first text of a turn, p50", "ms", hold),
    Row("cancel", "cancel to ending elsewhere, p50", "ms", hold),
    Row("publish", "publish to receive, 10 streams, p50", "us", publish),
    Row("fanout", "fan-out, 100 streams, TCP", "k/s", fan_out, more=True),
    Row("fanout_cpu", "  CPU per delivery", "us", fan_out),
    Row("deltas", "2,000 deltas, 10 streams", "ms", deltas),
    Row("deltas_cpu", "  CPU of the server", "ms", deltas),
    Row("deltas_kb", "  bytes per stream", "KB", deltas),
    Row("linear_kb", "  bytes with resume=1&deltas=1", "KB", deltas),
    Row("sessions", "list of 1,000 sessions, p50", "ms", sessions),
    Row("health", "health, one connection, p50", "us", health),
    Row("health_cpu", "  CPU per request", "us", health),
    Row("idle", "idle CPU per minute, 10 streams", "ms", idle),
    Row("memory", "memory after one turn", "MB", memory),
    Row("stream_kb", "  per idle stream (of 500)", "KB", memory),
    Row("beside", "POST to 202 beside a long read, p99", "ms", beside),
    Row("posters", "32 posters back to back", "/s", posters, more=True),
]
TOY = {cold, turns, publish, fan_out, health, idle, memory, posters}  # what toy servers can do
