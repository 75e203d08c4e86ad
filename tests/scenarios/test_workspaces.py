"""Workspaces are created, shared, left and closed."""

from __future__ import annotations

import asyncio
import socket
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from crushlite.claims import Graces
from tests.support.prompts import is_assistant
from tests.support.scenarios import scenario
from tests.support.workspaces import (
    PATIENCE,
    SETTINGS,
    WorkspaceTestCase,
    another_owner,
    ticks,
    until,
)

if TYPE_CHECKING:
    from crushlite.testing import Participant

CREATE, DETACH, IDLE = SETTINGS.graces.create, SETTINGS.graces.detach, SETTINGS.graces.idle or 0.0


class CreateScenarios(WorkspaceTestCase):
    """Which client gets which workspace."""

    @scenario(105)
    async def test_two_clients_of_one_directory_share_a_workspace_and_its_events(self) -> None:
        """Two clients of one directory are in one workspace and see the same turn alike."""
        anna, ben = await self.daemon.join(), await self.daemon.join()
        self.assertEqual(anna.workspace["id"], ben.workspace["id"])
        session = await anna.session()
        await anna.prompt(session, "hello")
        run = await self.daemon.entered()
        await run.say("hi both")
        run.release()
        for who in (anna, ben):
            self.assertEqual((await who.events.wait_for("run_complete"))["text"], "hi both")
        seen = [[(e.kind, e.action, e.payload) for e in who.events.seen] for who in (anna, ben)]
        self.assertEqual(seen[0], seen[1])
        self.assertIn(("message", "hi both"), [(e.kind, e.text) for e in ben.events.seen])

    @scenario(106)
    async def test_two_directories_are_two_workspaces(self) -> None:
        one, other = await self.daemon.join(self.folder("one")), await self.daemon.join()
        self.assertNotEqual(one.workspace["id"], other.workspace["id"])
        self.assertEqual(await self.listed(), [one.workspace["id"], other.workspace["id"]])

    @scenario(107)
    async def test_a_directory_and_a_link_to_it_are_one_workspace(self) -> None:
        link = self.daemon.root / "link"
        link.symlink_to(self.folder("project"))
        direct, linked = await self.daemon.join(), await self.daemon.join(link)
        self.assertEqual(direct.workspace["id"], linked.workspace["id"])
        self.assertEqual(linked.workspace["path"], str(self.daemon.root / "project"))

    @scenario(108)
    async def test_a_path_that_does_not_exist_is_cleaned_and_accepted(self) -> None:
        """A path that does not exist is taken as it is written, cleaned of dots and slashes."""
        path = self.daemon.root / "not" / "yet"
        first = await self.daemon.create(path)
        self.assertEqual(first.workspace["path"], str(path))
        for spelling in (f"{path}/", f"{path}/../yet", f"{path.parent}/./yet", f"{path}//"):
            with self.subTest(spelling):
                again = await self.daemon.create(spelling)
                self.assertEqual(again.workspace["id"], first.workspace["id"])

    @scenario(110)
    async def test_a_later_create_gets_the_flags_of_the_first_and_its_own_environment(self) -> None:
        """A later create gets the first one's flags and data directory, but its own environment."""
        first = await self.daemon.create(yolo=True, env=["A=1"])
        later = await self.daemon.create(
            yolo=False, debug=True, data_dir=str(self.folder("elsewhere")), env=["B=2"]
        )
        for field in ("id", "path", "yolo", "data_dir"):
            self.assertEqual(later.workspace[field], first.workspace[field], field)
        self.assertNotIn("debug", later.workspace)
        self.assertEqual((first.workspace["env"], later.workspace["env"]), (["A=1"], ["B=2"]))
        skip = await later.call("GET", "/permissions/skip")
        self.assertEqual(skip.json, {"skip": True})
        self.assertEqual(list((self.daemon.root / "elsewhere").iterdir()), [])

    @scenario(111)
    async def test_a_later_create_is_logged_only_if_it_asks_for_something_else(self) -> None:
        """What a later create asks for in vain is logged; an equal or silent one is not."""
        data = str(self.folder("data"))
        await self.daemon.create(yolo=True, data_dir=data)
        with self.assertNoLogs("crushlite.hosting.backend", "INFO"):
            await self.daemon.create(yolo=True, data_dir=data)
        for wish in ({"yolo": False}, {"yolo": True, "debug": True}, {"data_dir": "other"}):
            body: dict[str, Any] = {"yolo": True, "data_dir": data, **wish}
            with self.assertLogs("crushlite.hosting.backend", "INFO") as logs:
                await self.daemon.create(**body)
            self.assertEqual(len(logs.output), 1)
            self.assertIn(next(reversed(wish)), logs.output[0])

    @scenario(113)
    async def test_a_client_that_creates_twice_is_released_once(self) -> None:
        """Creating twice does not make a client count twice: one release empties the workspace."""
        anna = await self.daemon.create()
        again = await self.daemon.create(client_id=anna.id)
        self.assertEqual(again.workspace["id"], anna.workspace["id"])
        self.assertEqual(len(self.claims.clients(anna.workspace["id"])), 1)
        await anna.release()
        self.assertEqual(await self.status(anna), 404)

    @scenario(114)
    async def test_simultaneous_creates_of_one_path_are_one_workspace_that_all_hold(self) -> None:
        """Simultaneous creates of one path are one workspace over one database; all hold it."""
        for count in (2, 16):
            with self.subTest(count):
                before = self.openings.count
                path = self.folder(f"project{count}")
                everyone = await asyncio.gather(*(self.daemon.create(path) for _ in range(count)))
                self.assertEqual(len({who.workspace["id"] for who in everyone}), 1)
                self.assertEqual(self.openings.count, before + 1)
                states = [self.state(who) for who in everyone]
                self.assertEqual(states, [("HELD_CREATE", 0)] * count)

    @scenario(115)
    async def test_a_missing_or_malformed_client_id_is_refused_by_name(self) -> None:
        """By every request that needs one; the message names `client_id`."""
        anna = await self.daemon.join()
        path = str(self.daemon.root / "project")
        for bad in ("", "x", "1234-5678"):
            query = f"?client_id={bad}"
            for method, target, body in (
                ("POST", "/v1/workspaces", {"path": path, "client_id": bad}),
                ("DELETE", anna.base + query, None),
                ("GET", f"{anna.base}/events{query}", None),
                ("POST", f"{anna.base}/current-session{query}", {"session_id": ""}),
            ):
                with self.subTest(method=method, target=target):
                    answer = await self.daemon.call(method, target, body)
                    self.assertEqual(answer.status, 400)
                    self.assertIn("client_id", answer.json["message"])
        absent = await self.daemon.call("POST", "/v1/workspaces", {"path": path})
        self.assertEqual(absent.status, 400)
        self.assertEqual((await anna.call("GET", "/events")).status, 400)
        self.assertEqual(self.state(anna), ("STREAMING", 1))

    @scenario(116)
    async def test_a_create_without_a_path_is_refused_and_leaves_nothing(self) -> None:
        """A create without a path is refused by name and leaves nothing."""
        for fields in ({"path": ""}, {"path": "a\0b"}):
            answer = await self.daemon.call(
                "POST", "/v1/workspaces", {"client_id": str(uuid.uuid4()), **fields}
            )
            self.assertEqual(answer.status, 400)
            self.assertIn("path", answer.json["message"])
        self.assertEqual((await self.listed(), self.claims.pending), ([], 0))

    @scenario(117)
    async def test_a_workspace_without_a_stream_is_closed_after_the_create_grace(self) -> None:
        """A client that created and never attached is given up, and then the idle daemon leaves."""
        anna = await self.daemon.create()
        await self.clock.advance(CREATE - 0.1)
        self.assertEqual(await self.status(anna), 200)
        await self.clock.advance(0.1)
        self.assertEqual(await self.status(anna), 404)
        await self.clock.advance(IDLE - 0.1)
        self.assertFalse(self.is_leaving)
        await self.clock.advance(0.1)
        self.assertTrue(self.is_leaving)

    @scenario(118)
    async def test_a_create_that_fails_does_not_keep_the_daemon_alive(self) -> None:
        """A create that cannot have its data directory is refused clearly and counts no more."""
        (self.daemon.root / "file").write_text("not a directory")
        answer = await self.attempt(data_dir=str(self.daemon.root / "file" / "data"))
        self.assertEqual((answer.status, answer.json["code"]), (409, "store_unusable"))
        file = self.daemon.root / "file"
        refused = f"{file}/data cannot be a data directory: {file}: File exists; `crushlite serve"
        self.assertTrue(answer.json["message"].startswith(refused), answer.json["message"])
        self.assertEqual((await self.listed(), self.claims.pending), ([], 0))
        await self.clock.advance(IDLE)
        self.assertTrue(self.is_leaving)

    @scenario(120)
    async def test_a_data_directory_of_another_daemon_is_refused_until_that_has_left(self) -> None:
        """A directory that another daemon owns is refused with its pid, and taken once it left."""
        data = self.daemon.root / "data"
        async with another_owner(data) as pid:
            refused = await self.attempt(data_dir=str(data))
            self.assertEqual((refused.status, refused.json["code"]), (409, "data_directory_in_use"))
            self.assertIn(str(pid), refused.json["message"])
            self.assertEqual(await self.listed(), [])
        taken = await self.attempt(data_dir=str(data))
        self.assertEqual((taken.status, taken.json["data_dir"]), (200, str(data)))

    @scenario(122)
    async def test_events_of_one_workspace_are_not_sent_to_another(self) -> None:
        """Each stream carries the events of its own workspace only."""
        one, other = await self.daemon.join(self.folder("one")), await self.daemon.join()
        await one.session("of one")
        await other.session("of other")
        for who, title in ((one, "of one"), (other, "of other")):
            await who.events.wait_for("session", title=title)
            self.assertEqual([event["title"] for event in who.events.seen], [title])

    @scenario(124)
    async def test_workspaces_are_listed_and_found_by_id(self) -> None:
        """Workspaces can be listed and looked at by id; an unknown id is 404."""
        self.assertEqual(await self.listed(), [])
        anna = await self.daemon.create(env=["SECRET=1"])
        shown = {key: value for key, value in anna.workspace.items() if key != "env"}
        self.assertEqual((await anna.call("GET", "")).json, shown)
        self.assertEqual((await self.daemon.call("GET", "/v1/workspaces")).json, [shown])
        unknown = await self.daemon.call("GET", f"/v1/workspaces/{uuid.uuid4()}")
        self.assertEqual((unknown.status, unknown.json["code"]), (404, "workspace_not_found"))


class ClaimScenarios(WorkspaceTestCase):
    """Section G: who keeps a workspace alive, and for how long."""

    async def expect_gone_after_grace(self, who: Participant) -> None:
        self.assertEqual(self.state(who), ("HELD_DETACH", 0))
        await self.clock.advance(DETACH - 0.1)
        self.assertEqual(await self.status(who), 200)
        await self.clock.advance(0.1)
        self.assertEqual(await self.status(who), 404)

    @scenario(127)
    async def test_an_attached_client_outlives_the_create_grace(self) -> None:
        """With an open stream the create grace does not matter any more."""
        anna = await self.daemon.join()
        await self.clock.advance(3 * CREATE)
        self.assertEqual((await self.status(anna), self.state(anna)), (200, ("STREAMING", 1)))

    @scenario(128)
    async def test_a_client_that_only_attaches_holds_the_workspace(self) -> None:
        """A client that only ever opened a stream holds the workspace like any other."""
        anna = await self.daemon.create()
        ben = type(anna)(self.daemon, str(uuid.uuid4()), anna.workspace)
        self.assertEqual(await ben.attach(), 200)
        await anna.retire()
        await self.clock.advance(2 * CREATE)
        self.assertEqual(await self.status(ben), 200)
        await self.cut(ben)
        await self.expect_gone_after_grace(ben)

    @scenario(129)
    async def test_a_stream_of_an_unknown_workspace_is_404_and_claims_nothing(self) -> None:
        """The stream of a workspace that is not there is 404, and claims nothing."""
        reader = self.daemon.reader()
        target = f"/v1/workspaces/{uuid.uuid4()}/events?client_id={uuid.uuid4()}"
        self.assertEqual(await reader.open(self.daemon.connect(), target), 404)
        self.assertEqual(self.claims.live, [])

    @scenario(130)
    async def test_the_detach_grace_begins_when_the_last_of_two_streams_closes(self) -> None:
        """The first of two streams may close without consequence; the second starts the grace."""
        anna = await self.daemon.join()
        first = anna.events
        await anna.attach()
        self.assertEqual(self.state(anna), ("STREAMING", 2))
        await first.close()
        await until(lambda: self.state(anna) == ("STREAMING", 1), "one stream is left")
        await self.clock.advance(2 * CREATE)
        self.assertEqual(await self.status(anna), 200)
        await self.cut(anna)
        await self.expect_gone_after_grace(anna)

    @scenario(131)
    async def test_a_killed_connection_does_not_affect_other_clients(self) -> None:
        """Their workspace and their events go on, and the daemon stays."""
        anna, ben = await self.daemon.join(), await self.daemon.join()
        await self.cut(anna)
        await self.clock.advance(DETACH + 2 * IDLE)
        self.assertEqual(self.state(anna), ("NONE", 0))
        session = await ben.session("after the kill")
        self.assertEqual((await ben.events.wait_for("session"))["id"], session)
        self.assertEqual(await self.status(ben), 200)
        self.assertFalse(self.is_leaving)

    @scenario(132)
    async def test_a_run_outlives_its_poster_while_another_client_is_attached(self) -> None:
        """The stream of the client that posted it is cut, and its grace ends."""
        anna, ben = await self.daemon.join(), await self.daemon.join()
        session = await anna.session()
        await anna.prompt(session, "a long one")
        run = await self.daemon.entered()
        await self.cut(anna)
        await self.clock.advance(DETACH)
        self.assertEqual(self.state(anna), ("NONE", 0))
        await run.say("done")
        run.release()
        done = await ben.events.wait_for("run_complete", session_id=session)
        self.assertEqual((done["text"], done["cancelled"], done["error"]), ("done", None, None))
        finishes = [event.finish for event in ben.events.all("message", role="assistant")]
        self.assertEqual(finishes[-1], "end_turn")

    @scenario(134)
    async def test_a_client_that_returns_within_the_grace_finds_the_same_workspace(self) -> None:
        """A client that comes back within the grace finds the same id and keeps it."""
        anna = await self.daemon.join()
        await self.cut(anna)
        await self.clock.advance(DETACH - 0.1)
        self.assertEqual(await self.status(anna), 200)
        self.assertEqual(await anna.attach(), 200)
        await self.clock.advance(2 * DETACH)
        session = await anna.session()
        self.assertEqual((await anna.events.wait_for("session"))["id"], session)

    @scenario(135)
    async def test_after_the_grace_a_workspace_is_closed_once(self) -> None:
        """After the grace the workspace is gone, closed once, and its path opens a new one."""
        anna = await self.daemon.join()
        await self.cut(anna)
        await self.expect_gone_after_grace(anna)
        again = await self.daemon.create()
        self.assertNotEqual(again.workspace["id"], anna.workspace["id"])
        self.assertEqual(self.agent.closed, 1)

    @scenario(138)
    async def test_a_release_takes_effect_when_the_open_stream_closes(self) -> None:
        """Until then the workspace is alive and events arrive."""
        anna = await self.daemon.join()
        self.assertEqual(await anna.release(), 200)
        self.assertEqual(self.state(anna), ("STREAMING_RELEASED", 1))
        await self.clock.advance(2 * CREATE)
        session = await anna.session()
        self.assertEqual((await anna.events.wait_for("session"))["id"], session)

    @scenario(139)
    async def test_a_release_without_a_stream_is_final_and_may_be_repeated(self) -> None:
        """A second release answers like the first."""
        anna = await self.daemon.create()
        self.assertEqual(await anna.release(), 200)
        self.assertEqual(await self.status(anna), 404)
        self.assertEqual(await anna.release(), 200)

    @scenario(140)
    async def test_a_client_that_attaches_after_its_release_has_a_new_claim(self) -> None:
        """A client that left and attaches again has a claim like a new one, with its own grace."""
        await self.daemon.join()
        anna = await self.daemon.join()
        await anna.release()
        await self.cut(anna)
        self.assertEqual(self.state(anna), ("NONE", 0))
        self.assertEqual(await anna.attach(), 200)
        self.assertEqual(self.state(anna), ("STREAMING", 1))
        await self.cut(anna)
        self.assertEqual(self.state(anna), ("HELD_DETACH", 0))

    @scenario(144)
    async def test_an_attach_as_the_create_grace_ends_gets_a_live_workspace_or_404(self) -> None:
        """Attach against the end of the create grace: a stream on a live workspace, or 404."""
        outcomes = set()
        for delay in (0, 2, 4, 6, 8, 10, 500):  # in turns of the loop; the timer takes about ten
            anna = await self.daemon.create(self.folder(f"race{delay}"))
            expiring = asyncio.create_task(self.clock.advance(CREATE))
            await ticks(delay)
            async with asyncio.timeout(PATIENCE):
                status = await anna.attach()
                await expiring
            expected = ("STREAMING", 1) if status == 200 else ("NONE", 0)
            self.assertEqual((await self.status(anna), self.state(anna)), (status, expected))
            outcomes.add(status)
            await anna.retire()
        self.assertEqual(outcomes, {200, 404})

    @scenario(145)
    async def test_an_attach_as_the_last_client_leaves_gets_a_live_workspace_or_404(self) -> None:
        """With a stream on a workspace that is alive, or 404 and closed exactly once."""
        outcomes = set()
        for delay in (0, 2, 4, 6, 8, 500):  # in turns of the loop before it retires
            closed = self.agent.closed
            anna = await self.daemon.create(self.folder(f"race{delay}"))
            ben = type(anna)(self.daemon, str(uuid.uuid4()), anna.workspace)
            opening = asyncio.create_task(ben.attach())
            await ticks(delay)
            if delay == 500:
                await opening
            self.daemon.backend.retire(anna.id)
            async with asyncio.timeout(PATIENCE):
                status = await opening
            self.assertEqual(await self.status(ben), status)
            if status == 200:
                self.assertEqual((self.state(ben), self.agent.closed), (("STREAMING", 1), closed))
                await ben.retire()
            await until(lambda before=closed: self.agent.closed > before, "it closed")  # type: ignore[misc]
            self.assertEqual(self.claims.clients(anna.workspace["id"]), [])
            self.assertEqual(self.agent.closed, closed + 1)
            outcomes.add(status)
        self.assertEqual(outcomes, {200, 404})

    @scenario(147)
    async def test_fifty_streams_that_come_and_go_at_once_are_counted_exactly(self) -> None:
        """Fifty streams of ten clients come and go at once; the count is right before and after."""
        people = [await self.daemon.create() for _ in range(10)]
        readers = []
        opening = []
        for who in people:
            for _ in range(5):
                reader = self.daemon.reader()
                readers.append(reader)
                target = f"{who.base}/events?client_id={who.id}"
                opening.append(reader.open(self.daemon.connect(), target))
        self.assertEqual(await asyncio.gather(*opening), [200] * 50)
        self.assertEqual({self.state(who) for who in people}, {("STREAMING", 5)})
        await asyncio.gather(*(reader.close() for reader in readers))
        for who in people:
            await until(lambda w=who: self.state(w) == ("HELD_DETACH", 0), "all streams closed")  # type: ignore[misc]
        self.assertEqual(await self.status(people[0]), 200)
        await self.clock.advance(DETACH)
        self.assertEqual(await self.status(people[0]), 404)

    @scenario(148)
    async def test_a_workspace_stays_until_the_last_of_two_clients_has_left(self) -> None:
        """Of two clients the first to leave leaves the workspace to the other."""
        anna, ben = await self.daemon.create(), await self.daemon.create()
        await anna.release()
        self.assertEqual(await self.status(ben), 200)
        await ben.release()
        self.assertEqual(await self.status(ben), 404)

    @scenario(149)
    async def test_retiring_ends_every_claim_of_the_client_and_of_no_other(self) -> None:
        """Whether it streams, holds or shares the workspace."""
        streamed = await self.daemon.join(self.folder("streamed"))
        held = await self.daemon.create(self.folder("held"), client_id=streamed.id)
        shared = await self.daemon.join(self.folder("shared"), client_id=streamed.id)
        ben = await self.daemon.join(self.folder("shared"))
        self.assertEqual(await streamed.retire(), 200)
        statuses = [await self.status(who) for who in (streamed, held, shared)]
        self.assertEqual(statuses, [404, 404, 200])
        await streamed.events.end()
        clients = self.claims.clients(shared.workspace["id"])
        self.assertEqual(clients, [(ben.id, "STREAMING", 1)])
        self.assertEqual(await streamed.retire(), 200)
        self.assertEqual(await self.status(ben), 200)

    @scenario(150)
    async def test_a_retired_client_gets_no_new_claim(self) -> None:
        """A retired client gets no new claim, by create or by stream, however late it asks."""
        anna, ben = await self.daemon.join(), await self.daemon.join()
        await anna.retire()
        refused = await self.attempt(client_id=anna.id)
        self.assertEqual((refused.status, refused.json["code"]), (409, "client_retired"))
        other = await self.attempt(self.folder("other"), client_id=anna.id.upper())
        self.assertEqual(other.status, 409)
        self.assertEqual(await anna.attach(), 409)
        self.assertEqual(await self.listed(), [ben.workspace["id"]])
        self.assertEqual(len(self.claims.clients(ben.workspace["id"])), 1)

    @scenario(153)
    async def test_retiring_an_unknown_client_is_200_and_a_malformed_id_400(self) -> None:
        bad = await self.daemon.call("DELETE", "/v1/clients/nobody")
        self.assertEqual(bad.status, 400)
        self.assertIn("client_id", bad.json["message"])
        good = await self.daemon.call("DELETE", f"/v1/clients/{uuid.uuid4()}")
        self.assertEqual(good.status, 200)

    @scenario(154)
    async def test_leaving_a_shared_directory_affects_nothing_else(self) -> None:
        """Leaving a shared directory touches neither the one who stays nor other directories."""
        anna, ben = await self.daemon.join(), await self.daemon.join()
        other = await self.daemon.join(self.folder("other"))
        session = await ben.session("stays")
        await anna.retire()
        answer = await ben.call("GET", f"/sessions/{session}")
        self.assertEqual(answer.json["title"], "stays")
        self.assertEqual([await self.status(who) for who in (ben, other)], [200, 200])
        await ben.retire()
        self.assertEqual([await self.status(who) for who in (ben, other)], [404, 200])
        await other.session("still here")
        await other.events.wait_for("session", title="still here")

    @scenario(132, 155)
    async def test_a_client_that_retires_does_not_end_its_turn_for_the_others(self) -> None:
        """With its stream closed or open: the turn goes on to its end."""
        for number, closes in enumerate((True, False), 1):
            anna, ben = await self.daemon.join(), await self.daemon.join()
            session = await anna.session()
            await anna.prompt(session, run_id=f"r{number}")
            run = await self.daemon.entered(number)
            if closes:
                await anna.events.close()
            self.assertEqual(await anna.retire(), 200)
            await run.say("unharmed")
            run.release()
            await ben.events.wait_for(is_assistant("end_turn"))
            done = await ben.events.wait_for("run_complete", run_id=f"r{number}")
            self.assertEqual((done["text"], done["cancelled"]), ("unharmed", None))
            self.assertFalse(run.canceled)

    @scenario(156)
    async def test_a_client_that_never_reads_is_attached_and_can_be_retired(self) -> None:
        """A client that asks for the stream and never reads is attached, and can be retired."""
        anna = await self.daemon.create()
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(str(self.daemon.socket))
            target = f"{anna.base}/events?client_id={anna.id}"
            raw.sendall(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            await until(lambda: self.state(anna) == ("STREAMING", 1), "it is attached")
            await self.clock.advance(2 * CREATE)
            self.assertEqual(await self.status(anna), 200)
            self.assertEqual(await anna.retire(), 200)
            self.assertEqual(await self.status(anna), 404)


class LongGraceScenarios(WorkspaceTestCase):
    settings = replace(SETTINGS, graces=Graces(create=3600.0, detach=3600.0, idle=None))

    @scenario(137)
    async def test_after_a_release_no_grace_follows_the_end_of_the_stream(self) -> None:
        """However long the detach grace is."""
        anna = await self.daemon.join()
        await anna.release()
        await self.cut(anna)
        self.assertEqual(await self.status(anna), 404)
        self.assertEqual(self.clock.time(), 1_000.0)  # no time has passed
