"""What of this checkout grows, with what, and how fast, by one command.

  tools/bench/growth                    some minutes, three rounds
  tools/bench/growth --quick            under 3 minutes, one round
  tools/bench/growth --rows list,turn_stored --json FILE

A line of the table is a thing, with its figure at each size, then its factor from one size to the
next: x1.02 below x10 says that ten times as many made it 2 % larger. The last column is what it may
grow like: `constant`, or `linear`, as the number of what is counted. `FASTER` marks what grows
faster than that, and --gate makes the exit status 1 then; figures of a busy machine say little.

Every measurement has a server process and a database of its own; the model is a fake in a third
process, which answers at once. Its window is 1,000,000 tokens, of which it says that 15 were used,
so that no conversation is summarized. Linux only, as processor time comes from its clocks.
"""

import argparse
import json
import math
import multiprocessing
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from circumstances import allow_many_files, circumstances
from client import BenchError, Connection
from history import fill
from report import aligned, number
from rows import PAUSE, Figures, Stage, attached, clocked, published, turned
from servers import Server, fake_model, say, this_checkout

FULL = {"rounds": 3, "scale": 1.0}
QUICK = {"rounds": 1, "scale": 0.5}
IDLE = 15.0  # seconds between the comments on a stream: each gets one while idleness is measured
SESSIONS = 1000  # that the stored messages are spread over
SLACK = 0.15  # by which an exponent may be exceeded: 1.4 times per factor of 10


def streams(stage: Stage, count: int) -> Figures:
    figures = {}
    with stage.server() as server:
        _, each = attached(server, count)
        if count >= stage.sized(100):  # less than that is noise
            figures["memory_stream"] = each
    with stage.server() as server:
        published(server, 1, 20, 0)  # to warm up
        # No faster than a thousand streams are read.
        slow = published(server, count, stage.times(60), PAUSE * max(1, count / 100))
        events = stage.times(600 if count <= 100 else 100)
        cpu = published(server, count, events, 0).cpu / events * 1e6
    return figures | {"publish": median(slow.took) * 1e6, "event": cpu, "delivery": cpu / count}


def idle_streams(stage: Stage, count: int) -> Figures:
    with stage.server() as server:
        waiting = server.subscribe(count, "&resume=1")
        figures = {"idle_streams": idle_cpu(server, stage.idle)}
        del waiting  # open until here
    return figures


def idle_cpu(server: Server, seconds: float) -> float:
    """Milliseconds of processor time in a minute."""
    time.sleep(min(1.0, seconds))
    before = server.cpu()
    time.sleep(seconds)
    return (server.cpu() - before) / seconds * 60 * 1e3


def sessions(stage: Stage, count: int) -> Figures:
    with stage.server() as server:
        create(server, count)
        took = clocked(stage.times(40), server.line, f"{server.base}/sessions")
        return {
            "list": median(took) * 1e3,
            "create": median(create(server, stage.times(40))) * 1e3,
            "memory_sessions": server.memory() / 1024,
        }


def create(server: Server, count: int) -> list[float]:
    """Create sessions; return the seconds of each."""
    took = []
    for index in range(count):
        began = time.monotonic()
        server.session(f"session {index}")
        took.append(time.monotonic() - began)
        server.stream.skip(0)
    return took


def workspaces(stage: Stage, count: int) -> Figures:
    with stage.server() as server:
        alone = server.memory()
        open_streams = open_more(server, count - 1)
        grown = (server.memory() - alone) / max(1, count - 1)
        figures = {"memory_workspace": grown} if count > 1 else {}
        turns = turn_figures(server, stage.times(100), "workspaces")
        took = [server.join(f"one-more-{index}") for index in range(stage.times(6))]
        del open_streams  # open until here
    return figures | turns | {"open_workspace": median(took) * 1e3}


def open_more(server: Server, count: int) -> list[Connection]:
    """Open further projects; return a stream of each and of the one before, to keep them open."""
    found: list[Connection] = [server.stream]
    for index in range(count):
        server.join(f"project-{index}")
        found.append(server.stream)
    return found


def idle_workspaces(stage: Stage, count: int) -> Figures:
    with stage.server() as server:
        open_streams = open_more(server, count - 1)
        used = idle_cpu(server, stage.idle)
        threads = server.threads()  # those of the opening have ended by now
        del open_streams  # open until here
    return {"idle_workspaces": used, "threads": float(threads)}


def turn_figures(server: Server, count: int, name: str) -> Figures:
    took, cpu = turned(server, count)
    ended = median(end for _, end in took)
    return {f"turn_{name}": ended * 1e3, f"turn_cpu_{name}": cpu * 1e3}


def stored(stage: Stage, messages: int) -> Figures:
    with stage.server() as server:
        create(server, stage.sized(SESSIONS))
        server.stop()
        fill(server.database, messages)
        disk = server.database.stat().st_size / 2**20
        unclean = reopened(server)  # as after a kill: it was written to after it was closed
        server.stop()
        closed = reopened(server)
        took = clocked(stage.times(40), server.line, f"{server.base}/sessions")
        turns = turn_figures(server, stage.times(200), "stored")
        memory = server.memory() / 1024
        typed = clocked(2, server.line, f"{server.base}/messages/user")
    return turns | {
        "disk": disk,
        "open_closed": closed * 1e3,
        "open_unclean": unclean * 1e3,
        "list_stored": median(took) * 1e3,
        "memory_stored": memory,
        "typed": median(typed) * 1e3,
    }


def reopened(server: Server) -> float:
    """Start a server that was stopped, and open its project: the seconds of that. Another project
    is opened first, as the first one waits for modules that are loaded then."""
    server.start()
    server.join("another")
    return server.join()


def long(stage: Stage, messages: int) -> Figures:
    with stage.server() as server:
        session = server.session("long")
        fill(server.database, messages, session)
        target = f"{server.base}/sessions/{session}/messages"
        took = clocked(stage.times(10), server.line, target)
        size = len(server.line.call("GET", target))
        healthy = beside_reading(server, target, stage.scale)
        server.turn(session, "@size")
        event = json.loads(server.stream.found.removeprefix(b"data:"))
        sent = int(event["payload"]["payload"]["text"])
        before, count = server.cpu(), stage.times(10)
        turns = [server.turn(session)[1] for _ in range(count)]
        cpu = (server.cpu() - before) / count
    return {
        "messages": median(took) * 1e3,
        "messages_kb": size / 1024,
        "health_p99": quantiles(healthy, n=100)[98] * 1e3,
        "health_worst": max(healthy) * 1e3,
        "turn_long": median(turns) * 1e3,
        "turn_cpu_long": cpu * 1e3,
        "sent_kb": sent / 1024,
    }


def beside_reading(server: Server, target: str, seconds: float) -> list[float]:
    """The seconds that requests for health take, one every millisecond, while another client, in a
    process of its own, reads `target` again and again for some seconds."""

    def read() -> None:
        line, end = Connection(server.url), time.monotonic() + seconds
        clocked(1, line, target)
        while time.monotonic() < end:
            clocked(1, line, target)

    reader = multiprocessing.get_context("fork").Process(target=read)
    reader.start()
    took = clocked(2, server.line, "/v1/health")
    while reader.is_alive():
        time.sleep(0.001)
        took += clocked(1, server.line, "/v1/health")
    if reader.exitcode:
        raise BenchError("the long session could not be read")
    return took


Measure = Callable[[Stage, int], Figures]
SIZES: dict[str, tuple[int, ...]] = {
    "streams": (10, 100, 1000),
    "sessions": (10, 100, 1000),
    "workspaces": (1, 20, 200),
    "messages in other sessions": (0, 100_000, 1_000_000),
    "messages in the session": (100, 2000, 20_000),
}
IN_STREAMS, IN_SESSIONS, IN_WORKSPACES, IN_OTHERS, IN_SESSION = SIZES
QUIET = {idle_streams, idle_workspaces}  # whose servers do not disturb each other


@dataclass(frozen=True)
class Row:
    key: str
    title: str
    unit: str
    of: str  # what there is more and more of
    measure: Measure
    most: int = 0  # the exponent that it may grow with


ROWS = [
    Row("delivery", "CPU per delivery", "us", IN_STREAMS, streams),
    Row("event", "CPU per event, to all streams", "us", IN_STREAMS, streams, 1),
    Row("publish", "publish to receive, p50", "us", IN_STREAMS, streams, 1),
    Row("memory_stream", "memory per idle stream", "KB", IN_STREAMS, streams),
    Row("idle_streams", "idle CPU per minute", "ms", IN_STREAMS, idle_streams, 1),
    Row("list", "list of sessions, p50", "ms", IN_SESSIONS, sessions, 1),
    Row("create", "creating one more, p50", "ms", IN_SESSIONS, sessions),
    Row("memory_sessions", "memory of the server", "MB", IN_SESSIONS, sessions),
    Row("memory_workspace", "memory per workspace", "KB", IN_WORKSPACES, workspaces),
    Row("open_workspace", "opening one more, p50", "ms", IN_WORKSPACES, workspaces),
    Row("turn_workspaces", "turn in one of them, p50", "ms", IN_WORKSPACES, workspaces),
    Row("turn_cpu_workspaces", "  CPU per turn", "ms", IN_WORKSPACES, workspaces),
    Row("idle_workspaces", "idle CPU per minute", "ms", IN_WORKSPACES, idle_workspaces, 1),
    Row("threads", "threads at rest", "", IN_WORKSPACES, idle_workspaces),
    Row("turn_stored", "turn in a fresh session, p50", "ms", IN_OTHERS, stored),
    Row("turn_cpu_stored", "  CPU per turn", "ms", IN_OTHERS, stored),
    Row("list_stored", "list of 1,000 sessions, p50", "ms", IN_OTHERS, stored),
    Row("open_closed", "opening, closed in order", "ms", IN_OTHERS, stored),
    Row("open_unclean", "opening, as after a kill", "ms", IN_OTHERS, stored, 1),
    Row("typed", "prompts of all sessions, GET", "ms", IN_OTHERS, stored, 1),
    Row("memory_stored", "memory of the server", "MB", IN_OTHERS, stored),
    Row("disk", "size on disk", "MB", IN_OTHERS, stored, 1),
    Row("messages", "its messages, GET, p50", "ms", IN_SESSION, long, 1),
    Row("messages_kb", "  bytes", "KB", IN_SESSION, long, 1),
    Row("health_p99", "  health meanwhile, p99", "ms", IN_SESSION, long, 1),
    Row("health_worst", "  health meanwhile, worst", "ms", IN_SESSION, long, 1),
    Row("turn_long", "turn in it, p50", "ms", IN_SESSION, long, 1),
    Row("turn_cpu_long", "  CPU per turn", "ms", IN_SESSION, long, 1),
    Row("sent_kb", "  bytes sent to the model", "KB", IN_SESSION, long, 1),
]


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tools/bench/growth",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="rows: " + " ".join(row.key for row in ROWS),
    )
    add = parser.add_argument
    add("--rows", metavar="A,B", default=",".join(row.key for row in ROWS), help="only these")
    add("--quick", action="store_true", help="one round, fewer repetitions: under 3 minutes")
    add("--rounds", type=int, help=f"{FULL['rounds']}, quick {QUICK['rounds']}")
    scales = f"{FULL['scale']:g}, quick {QUICK['scale']:g}"
    add("--scale", type=float, help=f"of the numbers of repetitions: {scales}")
    add("--idle", type=float, default=IDLE, help=f"seconds to measure idleness: {IDLE:g}")
    add("--size", type=float, default=1.0, help="of all sizes, for a trial")
    add("--folder", type=Path, help="of the databases (default: that for temporary files)")
    add("--json", type=Path, metavar="FILE", help="write all figures")
    add("--gate", action="store_true", help="exit 1 if something grows faster than it may")
    parser.set_defaults(**(QUICK if "--quick" in sys.argv else FULL))
    chosen = parser.parse_args()
    unknown = set(chosen.rows.split(",")) - {row.key for row in ROWS}
    if unknown:
        parser.error(f"no such row: {', '.join(sorted(unknown))}; --help lists them")
    return chosen


def attempt(stage: Stage, measure: Measure, size: int) -> Figures:
    say(f"{time.strftime('%H:%M:%S')} {measure.__name__}, {size:,}")
    try:
        return measure(stage, size)
    except BenchError as error:
        say(f"FAILED: {error}")
        return {}


def measured(stage: Stage, rows: list[Row], rounds: int) -> dict[str, Any]:
    """For each row its figures by size, one a round; see `table`."""
    found: dict[str, Any] = {}
    for row in rows:
        allowed = "linear" if row.most else "constant"
        found[row.key] = {"title": row.title, "unit": row.unit, "of": row.of, "allowed": allowed}
        found[row.key]["values"] = {str(size): [] for size in sizes_of(row.of, stage)}
    for _ in range(rounds):
        for measure, of in dict.fromkeys((row.measure, row.of) for row in rows):
            sizes = sizes_of(of, stage)
            with ThreadPoolExecutor() as pool:
                each = pool.map if measure in QUIET else map
                results = list(each(partial(attempt, stage, measure), sizes))
            for row in rows:
                for size, figures in zip(sizes, results, strict=True):
                    if row.measure is measure and row.key in figures:
                        found[row.key]["values"][str(size)].append(figures[row.key])
    return found


def sizes_of(name: str, stage: Stage) -> list[int]:
    """The sizes, each once: in a trial some are the same."""
    return sorted({max(min(size, 1), round(size * stage.size)) for size in SIZES[name]})


# The table ---------------------------------------------------------------------------------------


def table(rows: dict[str, Any]) -> str:
    lines: list[list[str]] = []
    of = ""
    for row in rows.values():
        sizes = [int(size) for size in row["values"]]
        if row["of"] != of:
            of = row["of"]
            steps = [f"x{b / a:g}" if a else "" for a, b in pairwise(sizes)]
            lines += [[""], [of, "", *(f"{size:,}" for size in sizes), *steps, "allowed"]]
        figures = medians(row)
        cells = ["-" if figure is None else number(figure) for figure in figures]
        verdict = row["allowed"] + (" FASTER" if faster(row) else "")
        lines.append(["  " + row["title"], row["unit"], *cells, *factors(figures), verdict])
    return aligned(lines)


def medians(row: dict[str, Any]) -> list[float | None]:
    return [median(values) if values else None for values in row["values"].values()]


def factors(figures: list[float | None]) -> list[str]:
    return [f"x{number(b / a)}" if a and b is not None else "-" for a, b in pairwise(figures)]


def faster(row: dict[str, Any]) -> bool:
    """Whether a step from one size to the next was larger than allowed, by more than the slack.
    From nothing to something only what must be constant can be judged: as a step of x10."""
    most = (1 if row["allowed"] == "linear" else 0) + SLACK
    points = list(zip(map(int, row["values"]), medians(row), strict=True))
    for (size, figure), (larger, grown) in pairwise(points):
        if not figure or not grown or larger <= size or (not size and most > 1):
            continue
        if math.log(grown / figure) > most * math.log(larger / size if size else 10):
            return True
    return False


def main() -> int:
    chosen = options()
    allow_many_files()
    recipe = this_checkout()
    rows = [row for row in ROWS if row.key in chosen.rows.split(",")]
    with fake_model() as url:
        stage = Stage(recipe, url, chosen.folder, chosen.scale, chosen.size, chosen.idle)
        found = measured(stage, rows, chosen.rounds)
    meta = {"checkout": recipe.what, **circumstances("tools/bench/growth")}
    print(*(f"{key}: {value}" for key, value in meta.items()), sep="\n")
    print(table(found))
    if chosen.json:
        chosen.json.write_text(json.dumps({"meta": meta, "rows": found}, indent=1) + "\n")
    bad = [row for row in found.values() if faster(row) or medians(row)[-1] is None]
    for row in bad if chosen.gate else ():
        say(f"GATE: {row['title'].strip()}: grows faster than it may, or there is no figure")
    return 1 if bad and chosen.gate else 0


if __name__ == "__main__":
    sys.exit(main())
