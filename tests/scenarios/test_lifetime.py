"""When the daemon leaves, and how many clients are counted for a session."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import unittest
import uuid
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from crushlite.claims import Graces
from crushlite.testing import LocalDaemon
from tests.support.places import ROOT
from tests.support.scenarios import scenario
from tests.support.workspaces import PATIENCE, SETTINGS, WorkspaceTestCase, ticks, until

if TYPE_CHECKING:
    from crushlite.clock import Clock
    from crushlite.testing import Participant

CREATE, DETACH, IDLE = SETTINGS.graces.create, SETTINGS.graces.detach, SETTINGS.graces.idle or 0.0


class LingerScenarios(WorkspaceTestCase):
    """The daemon stays while it is used, and for the idle grace after that."""

    @scenario(157)
    async def test_the_daemon_leaves_after_the_last_client_and_both_graces(self) -> None:
        """It stays when the first of two clients leaves."""
        anna, ben = await self.daemon.join(), await self.daemon.join()
        await self.cut(anna)
        await self.clock.advance(DETACH + 2 * IDLE)
        self.assertFalse(self.is_leaving)
        await self.cut(ben)
        await self.clock.advance(DETACH)
        self.assertEqual(await self.status(ben), 404)
        await self.clock.advance(IDLE - 0.1)
        self.assertFalse(self.is_leaving)
        await self.clock.advance(0.1)
        self.assertTrue(self.is_leaving)

    @scenario(158)
    async def test_a_create_within_the_idle_grace_keeps_the_daemon(self) -> None:
        """In the same directory or in another."""
        for path in ("project", "other"):
            with self.subTest(path):
                await (await self.daemon.join()).retire()
                await self.clock.advance(IDLE - 0.1)
                late = await self.daemon.join(self.folder(path))
                await self.clock.advance(2 * IDLE)
                self.assertFalse(self.is_leaving)
                self.assertEqual(await self.status(late), 200)
                await late.retire()
        await self.clock.advance(IDLE)
        self.assertTrue(self.is_leaving)

    @scenario(161)
    async def test_a_create_counts_as_use_while_it_opens_and_only_then(self) -> None:
        """A create counts as use while it opens, and once only: afterwards the claim decides."""
        opening = await self.pending_create()
        self.assertEqual((self.claims.pending, self.claims.live), (1, []))
        await self.clock.advance(2 * IDLE)
        self.assertFalse(self.is_leaving)
        created = await opening.answered()
        self.assertEqual((created.status, self.claims.pending), (200, 0))
        await self.clock.advance(CREATE + IDLE)
        self.assertTrue(self.is_leaving)

    @scenario(162)
    async def test_a_create_that_fails_starts_the_idle_grace_anew(self) -> None:
        """A create that fails gives the daemon a whole idle grace again, and no more."""
        await self.clock.advance(IDLE - 0.1)
        (self.daemon.root / "file").write_text("")
        refused = await self.attempt(data_dir=str(self.daemon.root / "file" / "data"))
        self.assertEqual(refused.status, 409)
        await self.clock.advance(IDLE - 0.1)
        self.assertFalse(self.is_leaving)
        await self.clock.advance(0.1)
        self.assertTrue(self.is_leaving)

    @scenario(163)
    async def test_a_daemon_that_has_decided_to_leave_refuses_creates(self) -> None:
        """Whether it was idle for too long or was asked to leave."""
        await self.clock.advance(IDLE)
        await self.assert_refuses_creates()
        async with self.start() as asked:
            self.daemon = asked
            self.assertEqual((await self.control()).status, 200)
            await self.assert_refuses_creates()
            self.assertEqual((await self.control()).status, 200)  # it is leaving already

    async def assert_refuses_creates(self) -> None:
        self.assertTrue(self.is_leaving)
        refused = await self.attempt()
        self.assertEqual((refused.status, refused.json["code"]), (503, "shutting_down"))
        self.assertEqual((self.claims.pending, self.claims.live), (0, []))
        self.assertFalse((self.daemon.root / "project" / ".crushlite").exists())

    @scenario(164)
    async def test_a_daemon_with_a_workspace_refuses_to_shut_down(self) -> None:
        """A daemon with a workspace refuses to leave; nothing is disturbed, others may come."""
        anna = await self.daemon.join()
        session = await anna.session("kept")
        for command in ("shutdown", "shutdown_if_idle"):
            refused = await self.control(command)
            self.assertEqual((refused.status, refused.json["code"]), (409, "server_in_use"))
        self.assertFalse(self.is_leaving)
        answer = await anna.call("GET", f"/sessions/{session}")
        self.assertEqual(answer.json["title"], "kept")
        self.assertEqual((await self.attempt(self.folder("other"))).status, 200)

    @scenario(165)
    async def test_a_daemon_refuses_to_shut_down_while_a_create_is_opening(self) -> None:
        """A create that is still opening its database counts as use."""
        opening = await self.pending_create()
        self.assertEqual((await self.control()).status, 409)
        self.assertFalse(self.claims.is_latched)
        self.assertEqual((await opening.answered()).status, 200)

    @scenario(167)
    async def test_an_unknown_or_malformed_control_command_is_refused(self) -> None:
        """The daemon stays, and later creates are served."""
        for body in ({"command": "reboot"}, {}, {"command": 1}, b"{", b"[]", b""):
            with self.subTest(body=body):
                answer = await self.daemon.call("POST", "/v1/control", body)
                self.assertEqual(answer.status, 400)
        self.assertFalse(self.is_leaving)
        self.assertEqual((await self.attempt()).status, 200)

    @scenario(170)
    async def test_the_idle_timer_runs_from_the_start_and_can_be_switched_off(self) -> None:
        """The idle timer runs from the start, used or not; with `never` there is none."""
        async with self.start(replace(SETTINGS, graces=Graces(idle=None))) as patient:
            await self.clock.advance(IDLE - 0.1)
            self.assertFalse(self.is_leaving)
            await self.clock.advance(0.1)
            self.assertTrue(self.is_leaving)
            await self.clock.advance(100 * IDLE)
            self.assertFalse(patient.backend.leaving.is_set())


class ControlScenarios(WorkspaceTestCase):
    tcp = True

    @scenario(166)
    async def test_an_idle_daemon_shuts_down_when_a_permitted_client_asks(self) -> None:
        """On TCP any client may ask; on the socket only clients of crushlite."""
        for command in ("shutdown", "shutdown_if_idle"):
            async with self.start() as idle:
                http = idle.connect(tcp=True)
                body = {"command": command}
                self.assertEqual((await idle.call("POST", "/v1/control", body)).status, 409)
                foreign = {**body, "client": "crush"}
                self.assertEqual((await idle.call("POST", "/v1/control", foreign)).status, 409)
                self.assertFalse(idle.backend.leaving.is_set())
                granted = await idle.call("POST", "/v1/control", body, http=http)
                self.assertEqual(granted.status, 200)
                self.assertTrue(idle.backend.leaving.is_set())
            async with self.start() as idle:
                own = {**body, "client": "crushlite"}
                self.assertEqual((await idle.call("POST", "/v1/control", own)).status, 200)
                self.assertTrue(idle.backend.leaving.is_set())


class ZeroGraceScenarios(WorkspaceTestCase):
    settings = replace(SETTINGS, graces=Graces(create=3.0, detach=0.0, idle=0.0))

    @scenario(169)
    async def test_with_graces_of_zero_the_end_of_the_last_stream_ends_the_daemon(self) -> None:
        """With graces of zero the last stream's end is the end of workspace and daemon at once."""
        await self.clock.advance(0.0)
        self.assertFalse(self.is_leaving)  # or no client could ever reach it
        anna = await self.daemon.join()
        await self.cut(anna)
        self.assertEqual(await self.status(anna), 404)
        self.assertTrue(self.is_leaving)
        self.assertEqual((await self.attempt()).status, 503)
        self.assertEqual(self.clock.time(), 1_000.0)


class ExitScenarios(unittest.IsolatedAsyncioTestCase):
    @scenario(159)
    async def test_a_daemon_process_that_is_not_used_exits_with_success(self) -> None:
        """It leaves no socket behind."""
        with tempfile.TemporaryDirectory(prefix="crushlite-") as folder:
            path = Path(folder) / "daemon.sock"
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "crushlite", "serve", "--agent", "offline"),
                *("--host", f"unix://{path}", "--idle-timeout", "0.05"),
                cwd=ROOT,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            async with asyncio.timeout(PATIENCE):
                out, _ = await process.communicate()
            self.assertEqual(process.returncode, 0)
            self.assertIn(str(path).encode(), out)  # it was up
            self.assertFalse(path.exists())


class PresenceScenarios(WorkspaceTestCase):
    """How many clients show a session."""

    async def look(self, who: Participant, session: str) -> int:
        target = f"/current-session?client_id={who.id}"
        return (await who.call("POST", target, {"session_id": session})).status

    async def viewers(self, who: Participant, *sessions: str) -> list[int]:
        """As the list tells it; asking for one session must say the same."""
        listed = (await who.call("GET", "/sessions")).json
        counts = {item["id"]: item.get("attached_clients", 0) for item in listed}
        for session in sessions:
            one = (await who.call("GET", f"/sessions/{session}")).json
            self.assertEqual(one.get("attached_clients", 0), counts[session])
        return [counts[session] for session in sessions]

    @scenario(172)
    async def test_a_client_is_counted_for_the_session_that_it_shows_now(self) -> None:
        """A client counts for the session it looks at now, and for none after it said so."""
        anna, ben = await self.daemon.join(), await self.daemon.join()
        one, two = await anna.session(), await anna.session()
        self.assertEqual([await self.look(who, one) for who in (anna, ben)], [200, 200])
        self.assertEqual(await self.viewers(ben, one, two), [2, 0])
        await self.look(anna, two)
        self.assertEqual(await self.viewers(ben, one, two), [1, 1])
        await self.look(anna, "")
        self.assertEqual(await self.viewers(ben, one, two), [1, 0])

    @scenario(173)
    async def test_a_client_without_a_stream_cannot_show_a_session(self) -> None:
        """Only a client with a stream can look at something; 404 is kept for a lost workspace."""
        anna = await self.daemon.join()
        session = await anna.session()
        holder = await self.daemon.create()
        self.assertEqual(await self.look(holder, session), 409)
        stranger = type(anna)(self.daemon, str(uuid.uuid4()), anna.workspace)
        self.assertEqual(await self.look(stranger, session), 409)
        lost = type(anna)(self.daemon, anna.id, {"id": str(uuid.uuid4())})
        self.assertEqual(await self.look(lost, session), 404)
        for body in (b"{", b"[]", {"session_id": 7}):
            answer = await anna.call("POST", f"/current-session?client_id={anna.id}", body)
            self.assertEqual(answer.status, 400)
        self.assertEqual(await self.viewers(anna, session), [0])

    @scenario(175)
    async def test_clients_without_a_stream_or_a_chosen_session_are_not_counted(self) -> None:
        """A client that only holds the workspace, has chosen no session or has left."""
        anna = await self.daemon.join()
        session = await anna.session()
        await self.daemon.create()
        ben = await self.daemon.join()
        self.assertEqual(await self.viewers(anna, session), [0])
        await self.look(ben, session)
        self.assertEqual(await self.viewers(anna, session), [1])
        await self.cut(ben)
        self.assertEqual(await self.viewers(anna, session), [0])
        await ben.attach()  # within its grace it is where it was
        self.assertEqual(await self.viewers(anna, session), [1])
        await self.cut(ben)
        await self.clock.advance(DETACH)
        await ben.attach()  # a new claim has chosen nothing
        self.assertEqual(await self.viewers(anna, session), [0])

    @scenario(176)
    async def test_a_session_chosen_while_the_stream_closes_leaves_no_viewer_behind(self) -> None:
        """The request is accepted or refused; afterwards no client is counted."""
        anna = await self.daemon.join()
        session = await anna.session()
        for delay in (0, 3, 6):
            ben = await self.daemon.join()
            looks = [asyncio.create_task(self.look(ben, session)) for _ in range(20)]
            await ticks(delay)
            await self.cut(ben)
            async with asyncio.timeout(PATIENCE):
                statuses = await asyncio.gather(*looks)
            self.assertLessEqual(set(statuses), {200, 409})
            self.assertEqual(await self.look(ben, session), 409)
            self.assertEqual(await self.viewers(anna, session), [0])
            self.assertEqual(self.state(ben), ("HELD_DETACH", 0))

    @scenario(178)
    async def test_two_streams_of_one_client_are_counted_once(self) -> None:
        """Two streams of one client are one viewer, and still one when the first closes."""
        anna = await self.daemon.join()
        session = await anna.session()
        first = anna.events
        await anna.attach()
        await self.look(anna, session)
        self.assertEqual(await self.viewers(anna, session), [1])
        await first.close()
        await until(lambda: self.state(anna) == ("STREAMING", 1), "one stream is left")
        self.assertEqual(await self.viewers(anna, session), [1])

    @scenario(179)
    async def test_a_session_is_busy_from_the_accepted_prompt_to_its_published_end(self) -> None:
        """A session is busy from the accepted prompt to the published end, everywhere alike."""
        anna = await self.daemon.join()
        session, other = await anna.session(), await anna.session()
        self.assertEqual(await self.busy(anna), {session: False, other: False})
        await anna.prompt(session)
        self.assertEqual(await self.busy(anna), {session: True, other: False})
        (await self.daemon.entered()).release()
        await anna.events.wait_for("run_complete")
        self.assertEqual(await self.busy(anna), {session: False, other: False})

    async def busy(self, who: Participant) -> dict[str, bool]:
        """As the list tells it; asking for one session must say the same."""
        listed = (await who.call("GET", "/sessions")).json
        counts = {item["id"]: item.get("is_busy", False) for item in listed}
        for session, value in counts.items():
            self.assertEqual(await who.busy(session), value)
            agent = await who.call("GET", f"/agent/sessions/{session}")
            self.assertEqual(agent.json.get("is_busy", False), value)
        return counts

    @scenario(179)
    async def test_sessions_of_a_workspace_without_an_agent_are_not_busy(self) -> None:
        """A workspace that has no agent at all shows its sessions, none of them busy."""
        async with agentless(self.clock) as daemon:
            anna = await daemon.join()
            session = await anna.session()
            self.assertEqual(await self.busy(anna), {session: False})
            refused = await anna.try_prompt(session)
            self.assertEqual((refused.status, refused.json["code"]), (400, "no_agent"))


def agentless(clock: Clock) -> LocalDaemon:
    """A daemon whose workspaces open without an agent."""
    return LocalDaemon(lambda path, env, config: None, clock=clock)
