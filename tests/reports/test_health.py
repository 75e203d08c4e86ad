"""`GET /v1/health`: empty by default; with `verbose` it reports what is wrong."""

from __future__ import annotations

import os
import threading
import unittest
import unittest.mock
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from crushlite.claims import Claims, Graces
from crushlite.clock import SystemClock
from crushlite.reports import health as reported
from crushlite.reports.wing import ReportsWing
from crushlite.testing import LocalDaemon, Stores
from crushlite.testing.fake_clock import FakeClock
from crushlite.version import __version__
from tests.support.basics import BoundedTestCase
from tests.support.disk import Disk
from tests.support.places import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable


def wait_for(gate: threading.Event) -> None:
    gate.wait(20)


class CountTests(unittest.TestCase):
    def test_a_client_counts_once_and_each_of_its_streams(self) -> None:
        claims = Claims(Graces())
        backend: Any = SimpleNamespace(claims=claims)
        self.assertEqual(reported.count_clients(backend), (0, 0))
        for workspace, client in (("V", "A"), ("W", "A"), ("W", "B")):
            claims.admit(client)
            claims.create(workspace, client)
        for workspace in ("V", "V", "W"):
            claims.attach(workspace, "A")
        self.assertEqual(reported.count_clients(backend), (2, 3))


class HealthTests(BoundedTestCase):
    def setUp(self) -> None:
        super().setUp()
        # A busy machine may be slower than these limits.
        for name in ("STORE_SECONDS", "LAG_SECONDS"):
            self.enterContext(unittest.mock.patch.object(reported, name, 60.0))

    async def start(self, **options: Any) -> None:
        self.daemon = await self.enterAsyncContext(LocalDaemon(**options))

    async def health(self, query: str = "?verbose=1") -> Any:
        answer = await self.daemon.call("GET", f"/v1/health{query}")
        self.assertEqual(answer.status, 200)
        return answer.json

    def failing(self, health: Any) -> dict[str, str]:
        self.assertEqual(health["status"] == "ok", all(check["ok"] for check in health["checks"]))
        return {c["name"]: c.get("detail", "") for c in health["checks"] if not c["ok"]}

    async def test_it_is_empty_unless_more_is_asked_for(self) -> None:
        await self.start()
        for query in ("", "?verbose=0", "?verbose=", "?other=1"):
            self.assertIsNone(await self.health(query))
        self.assertEqual((await self.health("?verbose=true"))["status"], "ok")

    async def test_a_healthy_daemon_says_what_it_serves(self) -> None:
        clock = FakeClock()
        await self.start(clock=clock)
        anna = await self.daemon.join()
        await self.daemon.create(client_id=str(uuid.uuid4()))
        await clock.advance(3)
        health = await self.health()
        checks = health.pop("checks")
        self.assertEqual(
            [(check["name"], check["ok"]) for check in checks],
            [(n, True) for n in ("store", "endings", "event_loop", "open_files", "serving")],
        )
        self.assertGreaterEqual(health.pop("loop_lag_seconds"), 0)
        wanted = {"status": "ok", "version": f"crushlite-{__version__}", "pid": os.getpid()}
        wanted |= {"uptime_seconds": 3, "workspaces": 1, "clients": 2, "streams": 1}
        wanted |= {"busy_sessions": 0}
        self.assertEqual(health, wanted | {"store": {anna.workspace["data_dir"]: "ok"}})

    async def test_a_store_that_cannot_write_is_found_out_and_so_is_its_recovery(self) -> None:
        disk = Disk()
        await self.start(stores=disk.stores(SystemClock()))
        anna = await self.daemon.join()
        for spoil, reason in ((disk.fill, "disk is full"), (disk.lock, "database is locked")):
            spoil()
            health = await self.health()
            self.assertEqual(health["status"], "degraded")
            self.assertIn(reason, health["store"][anna.workspace["data_dir"]])
            self.assertIn(reason, self.failing(health)["store"])
            disk.free()
            self.assertEqual((await self.health())["status"], "ok")
        self.assertEqual((await anna.call("GET", "/sessions")).json, [])

    async def test_an_ending_that_waits_to_be_written_is_reported_until_it_is(self) -> None:
        disk = Disk()
        await self.start(stores=disk.stores(SystemClock()))
        anna = await self.daemon.join()
        await anna.prompt(await anna.session())
        run = await self.daemon.entered(1)
        disk.fill("UPDATE runs SET outcome")
        run.release()
        await anna.events.wait_for("run_complete")
        self.assertEqual(
            self.failing(await self.health()), {"endings": "1 ended runs are not saved yet"}
        )
        disk.free()
        await anna.events.wait_for("session", action="updated")  # comes with the ending
        self.assertEqual(self.failing(await self.health()), {})

    async def test_a_store_that_does_not_answer_does_not_hold_the_answer_up(self) -> None:
        gate = threading.Event()
        self.addCleanup(gate.set)
        stores = Stores(clock=SystemClock(), boot_id="boot")
        await self.start(stores=stores)
        anna = await self.daemon.join()
        store = await stores.open(Path(anna.workspace["data_dir"]))
        held = store.submit(lambda _: wait_for(gate))
        self.assertIsNone(await self.health(""))
        with unittest.mock.patch.object(reported, "STORE_SECONDS", 1.0):
            health = await self.health()
        self.assertEqual(health["store"], {anna.workspace["data_dir"]: "no answer within 1 s"})
        self.assertEqual(list(self.failing(health)), ["store"])
        gate.set()
        await held
        self.assertEqual((await self.health())["status"], "ok")
        await stores.release(store)

    async def test_a_daemon_that_leaves_says_so(self) -> None:
        await self.start()
        self.daemon.backend.leaving.set()
        self.assertEqual(self.failing(await self.health()), {"serving": "the daemon is leaving"})

    async def test_a_late_loop_and_too_many_files_are_reported(self) -> None:
        await self.start()
        (wing,) = (w for w in self.daemon.daemon.wings if isinstance(w, ReportsWing))
        used = len(os.listdir("/proc/self/fd")) - 1
        limits: Callable[[int], tuple[int, int]] = lambda _: (used + 2, used + 2)  # noqa: E731
        with unittest.mock.patch("resource.getrlimit", limits):
            self.assertIn(f"of {used + 2}", self.failing(await self.health())["open_files"])
        with unittest.mock.patch.object(type(wing.vitals.loop), "lag", 60.5):
            health = await self.health()
        self.assertEqual(health["loop_lag_seconds"], 60.5)
        self.assertEqual(self.failing(health), {"event_loop": "late by 60.5 s"})

    async def test_every_check_is_documented(self) -> None:
        page = (ROOT / "docs" / "protocol.md").read_text("utf-8")
        await self.start()
        for check in (await self.health())["checks"]:
            self.assertIn(f"| `{check['name']}` |", page)
