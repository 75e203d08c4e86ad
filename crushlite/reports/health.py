"""What a daemon says of itself, and what is wrong with it, if anything is."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ..clock import wait_at_most
from ..features.wire import Check, Health
from ..protocol.sessions import Session
from ..records import dataclass
from ..store.sessions import delete_session, insert_session
from ..version import WIRE_VERSION

if TYPE_CHECKING:
    from ..clock import Clock
    from ..hosting.backend import Backend
    from ..store import Connection, Store
    from .watchdog import Vitals

STORE_SECONDS = 1.0  # a store that needs longer to write something is reported
LAG_SECONDS = 1.0  # an event loop that is later is reported; the watchdog calls it blocked then
PROC = Path("/proc/self")
SCOPE = "health"  # of the row that is written as a test: no workspace, as those are paths
FILES_SHARE = 0.9  # of all file descriptors: if more are in use, that is reported


@dataclass(frozen=True, slots=True)
class Process:
    """The process as the operating system counts it; None where this system does not say."""

    cpu_seconds: float
    resident_bytes: int | None
    open_files: int | None
    most_files: int | None  # None also if there is no limit

    @classmethod
    def now(cls) -> Process:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = None if soft == resource.RLIM_INFINITY else soft
        resident = files = None
        with contextlib.suppress(FileNotFoundError):  # only Linux has these
            pages = int((PROC / "statm").read_text("ascii").split()[1])
            resident = pages * os.sysconf("SC_PAGE_SIZE")
            files = len(os.listdir(PROC / "fd")) - 1  # one of them is the listing itself
        return cls(time.process_time(), resident, files, most)


def count_clients(backend: Backend) -> tuple[int, int]:
    """How many clients have a claim, on however many workspaces, and all their open streams."""
    claims = backend.claims
    rows = [row for workspace in claims.live for row in claims.clients(workspace)]
    return len({client for client, _, _ in rows}), sum(streams for _, _, streams in rows)


async def health_of(backend: Backend, vitals: Vitals) -> Health:
    """The report of a daemon. Asks every store in use to write something, and waits for that at
    most STORE_SECONDS."""
    workspaces = backend.everything()
    stores = {str(each.store.store.data_dir): each.store.store for each in workspaces}
    found = await asyncio.gather(*(_trouble(store, vitals.clock) for store in stores.values()))
    troubles = dict(zip(stores, found, strict=True))
    clients, streams = count_clients(backend)
    checks = _checks(backend, vitals.loop.lag, troubles)
    return Health(
        status="ok" if all(check.ok for check in checks) else "degraded",
        version=WIRE_VERSION,
        pid=os.getpid(),
        uptime_seconds=vitals.uptime,
        loop_lag_seconds=vitals.loop.lag,
        workspaces=len(workspaces),
        clients=clients,
        streams=streams,
        busy_sessions=len({session for each in workspaces for session, _ in each.runs.states()}),
        store={path: trouble or "ok" for path, trouble in troubles.items()},
        checks=checks,
    )


async def _trouble(store: Store, clock: Clock) -> str:
    """Why a store cannot write, found out by writing: only that shows a full disk. Empty if it
    can."""
    written = store.submit(_come_and_go, durably=True)
    if not await wait_at_most(clock, written, STORE_SECONDS):
        written.cancel()
        return f"no answer within {STORE_SECONDS:.0f} s"
    error = written.exception()
    return "" if error is None else str(error)


def _come_and_go(conn: Connection) -> None:
    """Write a row and delete it again, in one transaction: pages are written, no row is left."""
    insert_session(conn, SCOPE, Session(id=SCOPE))
    delete_session(conn, SCOPE, SCOPE)


def _checks(backend: Backend, lag: float, stores: dict[str, str]) -> list[Check]:
    """What can be wrong with a daemon, and whether it is. `stores` holds the trouble of each."""
    process = Process.now()
    most, used = process.most_files, process.open_files
    crowded = most is not None and used is not None and used > most * FILES_SHARE
    unsaved, leaving = backend.unsaved, backend.leaving.is_set()
    trouble = {
        "store": "; ".join(f"{path}: {why}" for path, why in stores.items() if why),
        "endings": f"{unsaved} ended runs are not saved yet" if unsaved else "",
        "event_loop": f"late by {lag:.1f} s" if lag >= LAG_SECONDS else "",
        "open_files": f"{used} of {most}" if crowded else "",
        "serving": "the daemon is leaving" if leaving else "",
    }
    return [Check(name, not detail, detail) for name, detail in trouble.items()]
