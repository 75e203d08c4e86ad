"""Numbers for a monitoring system, in the text format of Prometheus.

Counted over the whole daemon: a label never holds a path, an id or anything that a person wrote.
A counter never goes down while the daemon lives, not even when a workspace closes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..protocol.runs import LIVE_STATES
from ..records import dataclass
from ..runs import Outcome
from ..version import __version__
from .health import Process, count_clients

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ..hosting.backend import Backend
    from ..http.server import HTTPServer
    from .watchdog import Vitals

CLASSES = (2, 3, 4, 5)  # of statuses: listed from the start, so that a rate sees the first one


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: a number, or one for each value of a label."""

    name: str
    about: str
    values: float | Mapping[str, float]
    label: str = ""

    @property
    def kind(self) -> str:
        return "counter" if self.name.endswith("_total") else "gauge"


def families(
    backend: Backend, vitals: Vitals, http: HTTPServer, totals: Counter[str]
) -> Iterator[Family]:
    """All metrics of a daemon, as they are now."""
    yield from _of_daemon(vitals)
    yield from _of_workspaces(backend)
    yield from _of_runs(backend, totals)
    yield from _of_events(backend, totals)
    yield from _of_server(http)
    yield from _of_process()


def write(written: Iterable[Family]) -> bytes:
    """Metrics in the text format."""
    lines: list[str] = []
    for family in written:
        lines.append(f"# HELP {family.name} {_escaped(family.about)}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        if isinstance(family.values, Mapping):
            lines += [
                f'{family.name}{{{family.label}="{_escaped(value, quotes=True)}"}} {number!r}'
                for value, number in family.values.items()
            ]
        else:
            lines.append(f"{family.name} {family.values!r}")
    return ("\n".join(lines) + "\n").encode()


def _escaped(text: str, *, quotes: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text


def _of_daemon(vitals: Vitals) -> Iterator[Family]:
    loop = vitals.loop
    yield Family("crushlite_info", "Always 1; says what runs.", {__version__: 1}, "version")
    yield Family("crushlite_uptime_seconds", "Since the daemon started.", vitals.uptime)
    yield Family("crushlite_loop_lag_seconds", "How late the event loop is.", loop.lag)
    yield Family("crushlite_loop_lag_max_seconds", "How late it was at worst.", loop.worst)
    yield Family("crushlite_loop_stalls_total", "How often it was blocked.", loop.stalls)


def _of_workspaces(backend: Backend) -> Iterator[Family]:
    open_ = backend.everything()
    clients, streams = count_clients(backend)
    asked = sum(len(workspace.permissions.listed()) for workspace in open_)
    questions = sum(len(workspace.questions.listed()) for workspace in open_)
    yield Family("crushlite_workspaces", "Open workspaces.", len(open_))
    yield Family("crushlite_clients", "Clients that hold one of them.", clients)
    yield Family("crushlite_streams", "Open event streams.", streams)
    yield Family("crushlite_permissions_pending", "Permission requests that wait.", asked)
    yield Family("crushlite_questions_pending", "Question batches that wait.", questions)
    yield Family("crushlite_endings_unsaved", "Ended runs not written yet.", backend.unsaved)


def _of_runs(backend: Backend, totals: Counter[str]) -> Iterator[Family]:
    open_ = backend.everything()
    live = Counter(state for workspace in open_ for _, state in workspace.runs.states())
    outcomes = {outcome.value: totals[outcome.value] for outcome in Outcome}
    yield Family(
        "crushlite_runs", "Runs that live.", {state: live[state] for state in LIVE_STATES}, "state"
    )
    yield Family("crushlite_runs_ended_total", "Runs that have ended.", outcomes, "outcome")
    yield Family(
        "crushlite_agents_abandoned_total",
        "Agents that ignored their cancellation.",
        totals["abandoned"],
    )


def _of_events(backend: Backend, totals: Counter[str]) -> Iterator[Family]:
    readers = [each for workspace in backend.everything() for each in workspace.hub.subscribers()]
    queued = sum(each.backlog.bytes + each.buffered for each in readers)
    closed = {"slow": totals["closed_slow"], "failed": totals["closed_failed"]}
    yield Family("crushlite_events_published_total", "Events published.", totals["published"])
    yield Family(
        "crushlite_events_conflated_total",
        "Growth of a text that was skipped for a stream that lags.",
        totals["conflated"],
    )
    yield Family(
        "crushlite_streams_closed_total", "Streams the daemon had to close.", closed, "reason"
    )
    yield Family("crushlite_stream_queue_bytes", "Not yet taken by their readers.", queued)


def _of_server(http: HTTPServer) -> Iterator[Family]:
    classes: Counter[int] = Counter(dict.fromkeys(CLASSES, 0))
    for status, number in http.answers.items():
        classes[status // 100] += number
    by_class = {f"{first}xx": float(number) for first, number in sorted(classes.items())}
    yield Family("crushlite_http_requests_total", "Requests answered.", by_class, "status")
    yield Family("crushlite_http_requests_in_flight", "Being carried out.", len(http.tasks))
    yield Family("crushlite_http_connections", "Open connections.", http.open_connections)


def _of_process() -> Iterator[Family]:
    process = Process.now()
    for name, about, value in (
        ("process_cpu_seconds_total", "User and system time.", process.cpu_seconds),
        ("process_resident_memory_bytes", "Resident memory.", process.resident_bytes),
        ("process_open_fds", "Open file descriptors.", process.open_files),
        ("process_max_fds", "How many there may be.", process.most_files),
    ):
        if value is not None:
            yield Family(name, about, value)
