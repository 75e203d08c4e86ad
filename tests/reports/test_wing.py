"""The reports as a wing: what a daemon is without it, and what it costs until it is asked."""

from __future__ import annotations

import subprocess
import sys
import unittest
from unittest import mock

from crushlite.reports.wing import ReportsWing
from crushlite.testing import LocalDaemon
from tests.support.basics import BoundedTestCase
from tests.support.places import ROOT

SCRIPT = """
import sys
from crushlite.daemon import Daemon
Daemon(agent=lambda turn: None)
print(sorted(name for name in sys.modules if name.startswith("crushlite.reports.")))
"""


class WingTests(BoundedTestCase):
    async def test_without_the_wing_its_routes_are_unknown_and_health_answers(self) -> None:
        async with LocalDaemon(wings=[]) as daemon:
            for path in ("/v1/openapi.json", "/v1/metrics"):
                answer = await daemon.call("GET", path)
                self.assertEqual((answer.status, answer.json["code"]), (404, "route_not_found"))
            health = await daemon.call("GET", "/v1/health?verbose=1")
            self.assertEqual((health.status, health.json), (200, None))

    async def test_the_watchdog_learns_of_every_turn_that_begins(self) -> None:
        wing = ReportsWing()
        async with LocalDaemon(wings=[wing]) as daemon:
            anna = await daemon.join()
            session = await anna.session()
            with mock.patch.object(wing.vitals.loop, "agent_begins") as began:
                await anna.prompt(session)
                run = await daemon.entered(1)
                self.assertEqual(began.call_count, 1)
            run.release()
            await anna.events.wait_for("run_complete")

    async def test_the_routes_of_a_daemon_are_described_as_they_are(self) -> None:
        async with LocalDaemon(wings=[ReportsWing()]) as daemon:
            first, second = [await daemon.call("GET", "/v1/openapi.json") for _ in range(2)]
            self.assertEqual(first.json, second.json)
            paths = first.json["paths"]
            self.assertIn("/v1/metrics", paths)
            self.assertNotIn("/v1/workspaces/{id}/changes", paths, "undo is not there")
            self.assertEqual(paths["/v1/metrics"]["get"]["tags"], ["reports"])
            self.assertEqual(paths["/v1/version"]["get"]["tags"], ["system"])


class StartTests(unittest.TestCase):
    def test_a_daemon_that_is_not_asked_for_reports_does_not_import_their_writers(self) -> None:
        command = [sys.executable, "-c", SCRIPT]
        answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
        wanted = ("['crushlite.reports.wing']", "")
        self.assertEqual((answer.stdout.strip(), answer.stderr), wanted)
