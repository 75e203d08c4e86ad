"""The registry of workspaces: openings, joins, teardowns, and the end of everything."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import unittest
import uuid
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crushlite.agent.base import Agent
from crushlite.api.workspaces import describe
from crushlite.errors import (
    BadRequest,
    ChannelMismatch,
    ClientRetired,
    DataDirectoryInUse,
    ShuttingDown,
    StoreUnusable,
    WorkspaceClosing,
    WorkspaceNotFound,
)
from crushlite.hosting.backend import Backend
from crushlite.hosting.plain import plain_setup
from crushlite.protocol.messages import Prompt
from crushlite.protocol.workspaces import CreateWorkspace
from crushlite.testing import FakeClock, LocalDaemon, ScriptedAgent
from tests.support.basics import chain_of_links
from tests.support.workspaces import (
    PATIENCE,
    SETTINGS,
    ClosingAgent,
    Openings,
    WorkspaceTestCase,
    another_owner,
    assert_free,
    ticks,
    until,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from crushlite.agent.base import Turn
    from crushlite.protocol.workspaces import Workspace as WireWorkspace
    from crushlite.testing import Participant

DETACH, IDLE = SETTINGS.graces.detach, SETTINGS.graces.idle or 0.0


class SlowToClose(ScriptedAgent):
    """Holds every teardown until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.closing = asyncio.Event()
        self.let_go = asyncio.Event()

    async def aclose(self) -> None:
        self.closing.set()
        await self.let_go.wait()


class FailsToClose(ScriptedAgent):
    async def aclose(self) -> None:
        raise RuntimeError("cannot close")


class Stubborn:
    """Swallows every cancellation until the test is over."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.freed = asyncio.Event()

    async def run(self, turn: Turn) -> None:
        await turn.say("you cannot stop me")
        self.entered.set()
        while not self.freed.is_set():
            try:
                await self.freed.wait()
            except asyncio.CancelledError:
                pass  # the rudest an agent can be


class BackendTestCase(unittest.IsolatedAsyncioTestCase):
    """A backend without a daemon around it."""

    settings = SETTINGS

    async def asyncSetUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="crushlite-")
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name).resolve()
        self.project = self.root / "project"
        self.project.mkdir()
        self.clock = FakeClock()
        self.openings = Openings(self.clock)
        self.agent: Any = ClosingAgent()
        self.before_answer: Callable[[], None] = lambda: None
        self.backend = Backend(
            setup=plain_setup(self.make_agent),
            clock=self.clock,
            settings=self.settings,
            stores=lambda: self.openings.stores,
        )
        self.backend.begin()
        self.addAsyncCleanup(self.finish)

    async def finish(self) -> None:
        self.openings.gate.set()
        async with asyncio.timeout(PATIENCE):
            await self.backend.shutdown()

    def make_agent(self, path: Path, env: Mapping[str, str], config: Any) -> Agent:
        """Called at the very end of an opening."""
        self.before_answer()
        return Agent(self.agent)

    def request(self, path: Path | str | None = None, **fields: Any) -> CreateWorkspace:
        fields.setdefault("client_id", str(uuid.uuid4()))
        return CreateWorkspace(path=str(path or self.project), **fields)

    async def create(self, path: Path | str | None = None, **fields: Any) -> WireWorkspace:
        async with asyncio.timeout(PATIENCE):
            return await self.ask(self.request(path, **fields))

    async def ask(self, request: CreateWorkspace) -> WireWorkspace:
        """Create, and see of it what the client does."""
        return describe(await self.backend.create(request), request.client_id)

    async def opening(self, *requests: CreateWorkspace) -> list[asyncio.Task[WireWorkspace]]:
        """Begin creates that stay in their opening until the gate is opened."""
        self.openings.gate.clear()
        before = self.openings.count
        tasks = [asyncio.create_task(self.ask(request)) for request in requests]
        await until(lambda: self.openings.count > before, "the database is being opened")
        await ticks(10)
        return tasks

    async def outcomes(self, tasks: list[asyncio.Task[WireWorkspace]]) -> list[Any]:
        self.openings.gate.set()
        async with asyncio.timeout(PATIENCE):
            return await asyncio.gather(*tasks, return_exceptions=True)

    async def assert_nothing_left(self) -> None:
        """No workspace, no create, no database: a stranger could take the data directory."""
        await until(lambda: not self.backend._closing, "the teardowns are over")
        claims = self.backend.claims
        self.assertEqual((self.backend.everything(), claims.live, claims.pending), ([], [], 0))
        await assert_free(self.project / ".crushlite")


class OpeningTests(BackendTestCase):
    async def test_creates_during_one_opening_share_one_workspace_and_one_database(self) -> None:
        for count in (2, 16):
            with self.subTest(count):
                before = self.openings.count
                path = self.root / f"project{count}"
                tasks = await self.opening(*(self.request(path) for _ in range(count)))
                created = await self.outcomes(tasks)
                self.assertEqual(len({workspace.id for workspace in created}), 1)
                self.assertEqual(len(self.backend.claims.clients(created[0].id)), count)
                self.assertEqual(self.openings.count, before + 1)

    async def test_a_create_just_after_an_opening_joins_what_was_opened(self) -> None:
        # For a moment the opening is over and nobody has claimed the workspace yet. However many
        # turns of the loop later a second create arrives, it must find it.
        for delay in range(5):
            with self.subTest(delay):
                late: list[asyncio.Task[WireWorkspace]] = []
                path = self.root / f"project{delay}"

                def arrive(path: Path = path, late: Any = late, delay: int = delay) -> None:
                    async def create() -> WireWorkspace:
                        await ticks(delay)
                        return await self.create(path)

                    late.append(asyncio.create_task(create()))

                self.before_answer = arrive
                first = await self.create(path)
                (joined,) = await self.outcomes(late)
                self.assertEqual(joined.id, first.id)
                self.assertEqual(len(self.backend.claims.clients(first.id)), 2)

    async def test_a_create_during_a_teardown_waits_for_it_and_gets_a_new_workspace(self) -> None:
        self.agent = SlowToClose()
        client = str(uuid.uuid4())
        old = await self.create(client_id=client)
        self.backend.release(old.id, client)
        await self.agent.closing.wait()
        waiting = [asyncio.create_task(self.create()) for _ in range(3)]
        await self.clock.advance(SETTINGS.drain - 1.0)
        self.assertFalse(any(task.done() for task in waiting))
        self.assertEqual(self.openings.count, 1)
        self.agent.let_go.set()
        created = await self.outcomes(waiting)
        self.assertEqual(len({workspace.id for workspace in created}), 1)
        self.assertNotEqual(created[0].id, old.id)
        self.assertEqual(self.openings.count, 2)

    async def test_a_client_that_retires_during_the_opening_gets_nothing(self) -> None:
        request = self.request()
        tasks = await self.opening(request)
        self.backend.retire(request.client_id)
        (refused,) = await self.outcomes(tasks)
        self.assertIsInstance(refused, ClientRetired)
        self.assertEqual(refused.status, 409)
        await self.assert_nothing_left()
        self.assertEqual(self.agent.closed, 1)
        await self.clock.advance(IDLE)
        self.assertTrue(self.backend.leaving.is_set())

    async def test_of_two_clients_in_an_opening_the_one_that_stays_gets_it(self) -> None:
        for gone in (0, 1):
            with self.subTest(gone):
                requests = [self.request(self.root / str(gone)) for _ in range(2)]
                tasks = await self.opening(*requests)
                self.backend.retire(requests[gone].client_id)
                outcomes = await self.outcomes(tasks)
                self.assertIsInstance(outcomes[gone], ClientRetired)
                kept = outcomes[1 - gone]
                clients = self.backend.claims.clients(kept.id)
                self.assertEqual([name for name, _, _ in clients], [requests[1 - gone].client_id])
                self.assertEqual(self.backend.get(kept.id).id, kept.id)

    async def test_a_create_that_is_cancelled_in_its_opening_leaves_nothing_open(self) -> None:
        (task,) = await self.opening(self.request())
        task.cancel()
        await asyncio.wait([task], timeout=PATIENCE)
        self.assertEqual(self.backend.claims.pending, 0)
        self.openings.gate.set()
        await until(lambda: not self.backend._opening, "the opening is over")
        await self.assert_nothing_left()

    async def test_an_agent_that_cannot_be_made_fails_the_create_and_leaves_nothing(self) -> None:
        def explode() -> None:
            raise ValueError("no such model")

        self.before_answer = explode
        await self.clock.advance(IDLE - 0.1)
        with self.assertRaises(ValueError):
            await self.create()
        await self.assert_nothing_left()
        await self.clock.advance(IDLE - 0.1)
        self.assertFalse(self.backend.leaving.is_set())
        await self.clock.advance(0.1)
        self.assertTrue(self.backend.leaving.is_set())

    async def test_a_failed_opening_does_not_spoil_the_next_one(self) -> None:
        data = self.root / "data"
        data.write_text("in the way")
        with self.assertRaises(StoreUnusable):
            await self.create(data_dir=str(data))
        data.unlink()
        created = await self.create(data_dir=str(data))
        self.assertEqual(created.data_dir, str(data))

    async def test_a_latch_during_an_opening_refuses_it_and_closes_what_it_built(self) -> None:
        tasks = await self.opening(self.request(), self.request())
        leaving = asyncio.create_task(self.backend.shutdown())
        await ticks(10)
        self.assertFalse(leaving.done())
        for refused in await self.outcomes(tasks):
            self.assertIsInstance(refused, ShuttingDown)
            self.assertEqual(refused.status, 503)
        async with asyncio.timeout(PATIENCE):
            await leaving
        self.assertEqual(self.agent.closed, 1)
        await self.assert_nothing_left()


class PathTests(BackendTestCase):
    async def test_a_relative_path_is_relative_to_the_clients_shell(self) -> None:
        env = ["HOME=/nowhere", f"PWD={self.root}"]
        created = await self.create("project", env=env)
        self.assertEqual(created.path, str(self.project))
        again = await self.create("../project", env=[f"PWD={self.project}"])
        self.assertEqual(again.id, created.id)

    async def test_without_a_shell_a_relative_path_is_relative_to_the_daemon(self) -> None:
        name = f"crushlite-{uuid.uuid4()}"
        for env in (None, ["PWD="], ["PWD=relative"], ["OLDPWD=/tmp"]):
            request = self.request(name, env=env, data_dir=str(self.root / "data"))
            created = await self.ask(request)
            self.assertEqual(created.path, os.path.join(os.getcwd(), name))

    async def test_every_spelling_of_a_directory_is_one_workspace(self) -> None:
        (self.root / "link").symlink_to(self.project)
        (self.root / "chain").symlink_to(self.root / "link")
        (self.project / "deep").mkdir()
        first = await self.create()
        for spelling in (
            *("project/", "project/.", "project/deep/..", "./project", "x/../project"),
            *("link", "link/", "chain", "link/../project"),
        ):
            with self.subTest(spelling):
                same = await self.create(f"{self.root}/{spelling}")
                self.assertEqual((same.id, same.path), (first.id, str(self.project)))
        self.assertEqual(self.openings.count, 1)
        inside = await self.create(self.root / "link" / "deep")
        self.assertNotEqual(inside.id, first.id)

    async def test_the_data_directory_is_inside_the_project_unless_it_is_named(self) -> None:
        (self.root / "link").symlink_to(self.project)
        own = await self.create(self.root / "link")
        self.assertEqual(own.data_dir, str(self.project / ".crushlite"))
        self.assertEqual((self.project / ".crushlite" / ".gitignore").read_text(), "*\n")
        other = await self.create(self.root / "other", data_dir="mine")
        self.assertEqual(other.data_dir, str(self.root / "other" / "mine"))
        self.assertTrue((self.root / "other" / "mine" / "crushlite.db").exists())

    async def test_a_path_that_cannot_be_used_is_refused_and_named(self) -> None:
        for path, data_dir in (("", ""), ("/a\0b", ""), ("/a", "b\0")):
            client = str(uuid.uuid4())
            request = CreateWorkspace(path=path, data_dir=data_dir, client_id=client)
            with self.assertRaises(BadRequest):
                await self.backend.create(request)
        file = self.root / "file"
        file.write_text("no directory")
        for wish in ({"path": f"{file}"}, {"data_dir": f"{file}"}, {"data_dir": f"{file}/data"}):
            with self.subTest(wish), self.assertRaises(StoreUnusable) as refused:
                await self.create(**wish)
            self.assertIn(str(file), refused.exception.message)
            self.assertEqual(refused.exception.status, 409)
        self.assertEqual((self.backend.everything(), self.backend.claims.pending), ([], 0))
        self.assertEqual(file.read_text(), "no directory")

    async def test_what_a_clone_links_to_is_neither_written_nor_made(self) -> None:
        """A repository may bring a data directory with it, and links in place of its files."""
        data, victim = self.project / ".crushlite", self.root / "authorized_keys"
        victim.write_text("precious")
        names = ("crushlite.lock", "crushlite.db", "crushlite.db-wal", "crushlite.db-shm")
        for name in (*names, "crushlite.db-journal"):
            for target in (victim, self.root / "nothing"):
                data.mkdir()
                (data / name).symlink_to(target)
                with self.subTest(name, target=target), self.assertRaises(StoreUnusable) as refused:
                    await self.create()
                self.assertIn(str(data / name), refused.exception.message)
                self.assertEqual(victim.read_text(), "precious")
                shutil.rmtree(data)
        data.symlink_to(self.root / "nothing")
        with self.assertRaises(StoreUnusable) as refused:
            await self.create()
        self.assertIn("leads out of the project", refused.exception.message)
        self.assertEqual(sorted(os.listdir(self.root)), ["authorized_keys", "project"])
        (self.project / "inside").mkdir()
        data.unlink()
        data.symlink_to("inside")
        self.assertEqual((await self.create()).data_dir, str(self.project / "inside"))

    async def test_a_data_directory_behind_more_links_than_can_be_resolved_is_refused(self) -> None:
        data = self.project / ".crushlite"
        chain_of_links(data)
        with self.assertRaises(StoreUnusable) as refused:
            await self.create()
        self.assertIn(str(data), refused.exception.message)

    async def test_a_data_directory_below_a_thousand_folders_is_refused(self) -> None:
        with self.assertRaises(StoreUnusable) as refused:
            await self.create(data_dir=str(self.root / "/".join(["d"] * 1900)))
        self.assertIn("too deep", refused.exception.message)
        self.assertFalse((self.root / "d").exists())

    async def test_the_owner_of_a_locked_directory_is_named_and_others_are_untouched(self) -> None:
        mine = await self.create(self.root / "mine")
        async with another_owner(self.project / ".crushlite") as pid:
            with self.assertRaises(DataDirectoryInUse) as refused:
                await self.create()
            self.assertIn(f"process {pid}", refused.exception.message)
            self.assertEqual((refused.exception.status, refused.exception.exit_code), (409, 6))
            self.assertEqual(self.backend.claims.live, [mine.id])
        self.assertEqual((await self.create()).path, str(self.project))


class JoinTests(BackendTestCase):
    async def test_flags_of_the_first_create_stand(self) -> None:
        plain = await self.create()
        for wish in ({"yolo": True}, {"debug": True}, {"data_dir": str(self.root / "x")}):
            with self.subTest(wish):
                joined = await self.create(**wish)
                self.assertEqual(joined, plain)
        self.assertFalse(self.backend.get(plain.id).permissions.skip)
        bold = await self.create(self.root / "bold", yolo=True, debug=True)
        meek = await self.create(self.root / "bold")
        self.assertEqual((meek.yolo, meek.debug), (True, True))
        self.assertTrue(self.backend.get(bold.id).permissions.skip)

    async def test_an_environment_is_shown_only_to_the_client_that_sent_it(self) -> None:
        client = str(uuid.uuid4())
        anna = await self.create(env=["TOKEN=anna"], client_id=client)
        ben = await self.create(env=["TOKEN=ben"])
        silent = await self.create()
        self.assertEqual([w.env for w in (anna, ben, silent)], [["TOKEN=anna"], ["TOKEN=ben"], []])
        again = await self.create(client_id=client)
        self.assertEqual(again.env, ["TOKEN=anna"])
        (hosted,) = self.backend.everything()
        self.assertEqual(describe(hosted).env, [])
        # It is no whole environment, so it adds to the daemon's own.
        self.assertEqual(dict(hosted.env), {**os.environ, "TOKEN": "anna"})

    async def test_an_environment_is_forgotten_when_its_client_has_left(self) -> None:
        stays = await self.create(env=["TOKEN=anna"])
        for leave in (self.backend.retire, lambda ben: self.backend.release(stays.id, ben)):
            ben = str(uuid.uuid4())
            await self.create(env=["TOKEN=ben"], client_id=ben)
            leave(ben)
        await self.create()
        (hosted,) = self.backend.everything()
        self.assertEqual(list(hosted.envs.values()), [["TOKEN=anna"]])

    async def test_a_whole_environment_stands_for_itself(self) -> None:
        await self.create(env=["TOKEN=anna", "PATH=/bin"])
        (hosted,) = self.backend.everything()
        self.assertEqual(dict(hosted.env), {"TOKEN": "anna", "PATH": "/bin"})

    async def test_other_channels_are_refused_without_a_claim(self) -> None:
        first = await self.create(channels=["a", "b"])
        for channels in ([], ["a"], ["b", "a"], ["a", "b", "c"]):
            with self.subTest(channels), self.assertRaises(ChannelMismatch) as refused:
                await self.create(channels=channels)
            self.assertEqual(refused.exception.status, 409)
        self.assertEqual(len(self.backend.claims.clients(first.id)), 1)
        self.assertEqual(self.backend.claims.pending, 0)
        same = await self.create(channels=["a", "b"])
        self.assertEqual((same.id, same.channels), (first.id, ["a", "b"]))

    async def test_other_channels_are_refused_during_the_opening_too(self) -> None:
        tasks = await self.opening(self.request(channels=["a"]), self.request())
        first, refused = await self.outcomes(tasks)
        self.assertIsInstance(refused, ChannelMismatch)
        self.assertEqual(len(self.backend.claims.clients(first.id)), 1)


class EndTests(BackendTestCase):
    """Teardowns at the level of objects: what a request sees that is already inside."""

    async def test_a_closing_workspace_takes_nothing_and_is_unknown_to_newcomers(self) -> None:
        self.agent = SlowToClose()
        client = str(uuid.uuid4())
        created = await self.create(client_id=client)
        workspace = self.backend.get(created.id)
        session = await workspace.create_session("a session")
        self.backend.retire(client)  # from this very call on
        with self.assertRaises(WorkspaceClosing) as refused:
            await workspace.runs.prompt(Prompt(session_id=session.id, prompt="too late"))
        self.assertEqual(refused.exception.status, 409)
        with self.assertRaises(WorkspaceNotFound):
            self.backend.get(created.id)
        with self.assertRaises(WorkspaceNotFound):
            self.backend.attach(
                created.id, str(uuid.uuid4()), resume=False, deltas=False, last_id=None
            )
        self.backend.release(created.id, client)
        self.agent.let_go.set()
        await self.assert_nothing_left()
        again = await self.create()
        runs = await self.backend.get(again.id).runs.list_runs(None, None)
        self.assertEqual(runs, [])

    async def test_shutdown_twice_waits_for_the_same_end(self) -> None:
        await self.create()
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(self.backend.shutdown(), self.backend.shutdown())
        self.assertEqual(self.agent.closed, 1)
        with self.assertRaises(ShuttingDown):
            await self.create()
        await self.assert_nothing_left()
        self.assertEqual(self.clock.pending, 0)


class SlowCloseTests(BackendTestCase):
    settings = replace(SETTINGS, drain=1_000.0)  # more than any test waits in real time

    async def test_an_agent_that_does_not_close_holds_a_teardown_for_the_drain_time(self) -> None:
        self.agent = SlowToClose()
        client = str(uuid.uuid4())
        created = await self.create(client_id=client)
        self.backend.release(created.id, client)
        await self.agent.closing.wait()
        await self.clock.advance(999.0)
        self.assertIn(self.project, self.backend._closing)
        with self.assertLogs("crushlite.hosting.runner", "ERROR"):
            await self.clock.advance(1.0)
        await self.assert_nothing_left()

    async def test_an_agent_that_fails_to_close_does_not_keep_the_database(self) -> None:
        self.agent = FailsToClose()
        client = str(uuid.uuid4())
        created = await self.create(client_id=client)
        with self.assertLogs("crushlite.hosting.agents", "ERROR") as logs:
            self.backend.release(created.id, client)
            await self.assert_nothing_left()
        self.assertIn("cannot close", logs.output[0])


class SharedDirectoryTests(WorkspaceTestCase):
    async def asyncSetUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="crushlite-")
        self.addCleanup(folder.cleanup)
        self.shared = Path(folder.name).resolve() / "shared"
        self.settings = replace(SETTINGS, data_dir=str(self.shared))
        await super().asyncSetUp()

    async def titles(self, who: Participant) -> list[str]:
        return [session["title"] for session in (await who.call("GET", "/sessions")).json]

    async def test_workspaces_in_one_data_directory_do_not_see_each_other(self) -> None:
        one, other = await self.daemon.join(self.folder("one")), await self.daemon.join()
        self.assertEqual(one.workspace["data_dir"], str(self.shared))
        self.assertEqual(other.workspace["data_dir"], str(self.shared))
        self.assertEqual(self.openings.count, 1)
        session = await one.session("of one")
        self.agent.auto = True
        await one.prompt(session, "secret", run_id="r1")
        await one.events.wait_for("run_complete")
        self.assertEqual((await self.titles(one), await self.titles(other)), (["of one"], []))
        self.assertEqual((await other.call("GET", f"/sessions/{session}")).status, 404)
        self.assertEqual((await other.call("GET", f"/sessions/{session}/messages")).json, [])
        self.assertEqual((await other.call("GET", "/messages/user")).json, [])
        self.assertEqual((await other.call("GET", "/runs")).json, [])
        self.assertEqual((await other.call("GET", "/runs/r1")).status, 404)
        self.assertEqual((await other.try_prompt(session)).status, 404)
        self.assertEqual((await other.call("DELETE", f"/sessions/{session}")).status, 404)
        self.assertEqual(len(await one.messages(session)), 2)

    async def test_a_workspace_finds_its_rows_again_in_a_shared_directory(self) -> None:
        first = await self.daemon.join()
        await first.session("kept")
        await first.retire()
        again = await self.daemon.join()
        self.assertNotEqual(again.workspace["id"], first.workspace["id"])
        self.assertEqual(await self.titles(again), ["kept"])

    async def test_a_workspace_that_is_gone_leaves_nothing_on_the_shared_store(self) -> None:
        store = self.daemon.daemon._shared_store
        assert store is not None
        before = len(store._writer.healed_callbacks)
        for _ in range(3):
            await (await self.daemon.create()).retire()
            await until(lambda: not self.daemon.backend._closing, "the teardown is over")
        self.assertEqual(len(store._writer.healed_callbacks), before)

    async def test_a_relative_shared_directory_is_relative_to_the_daemon(self) -> None:
        elsewhere = self.shared.parent / "elsewhere"
        settings = replace(self.settings, data_dir=os.path.relpath(elsewhere))
        async with self.start(settings) as daemon:
            for name in ("one", "other"):
                anna = await daemon.create(daemon.root / name)
                self.assertEqual(anna.workspace["data_dir"], str(elsewhere))

    async def test_a_data_directory_named_at_create_is_shared_in_the_same_way(self) -> None:
        named = str(self.folder("named"))
        one = await self.daemon.join(self.folder("one"), data_dir=named)
        other = await self.daemon.join(data_dir=named)
        await one.session("of one")
        self.assertEqual((await self.titles(one), await self.titles(other)), (["of one"], []))
        self.assertEqual(self.openings.count, 2)  # the shared one, and the named one once


class MovedProjectTests(WorkspaceTestCase):
    async def test_a_moved_project_keeps_its_sessions(self) -> None:
        before = await self.daemon.join(self.folder("before"))
        session = await before.session("moves along")
        await before.retire()
        await until(lambda: self.agent.closed == 1, "the workspace closed")
        await until(lambda: not self.daemon.backend._closing, "its database too")
        shutil.move(self.daemon.root / "before", self.daemon.root / "after")
        after = await self.daemon.join(self.daemon.root / "after")
        listed = (await after.call("GET", "/sessions")).json
        self.assertEqual([(s["id"], s["title"]) for s in listed], [(session, "moves along")])


class TeardownTests(WorkspaceTestCase):
    async def test_runs_end_on_the_record_and_on_the_stream_before_it_closes(self) -> None:
        anna = await self.daemon.join()
        session = await anna.session()
        await anna.prompt(session, "first", run_id="r1")
        await (await self.daemon.entered()).say("half an ans")
        await anna.prompt(session, "second", run_id="r2")
        await anna.retire()
        await anna.events.end()
        self.assertEqual(
            [(e.kind, e["run_id"], e["cancelled"]) for e in anna.events.all("run_complete")],
            [("run_complete", "r1", True), ("run_complete", "r2", True)],
        )
        self.assertEqual(anna.events.seen[-1].kind, "run_complete")
        again = await self.daemon.join()
        messages = await again.messages(session)
        self.assertEqual(
            [(m["role"], m.text, m.finish) for m in messages],
            [
                *(("user", "first", "stop"), ("assistant", "half an ans", "canceled")),
                *(("user", "second", "stop"), ("assistant", "", "canceled")),
            ],
        )
        runs = (await again.call("GET", "/runs")).json
        self.assertEqual([run["outcome"] for run in runs], ["canceled", "canceled"])

    async def test_a_delete_that_has_begun_is_carried_out_during_a_teardown(self) -> None:
        anna = await self.daemon.join()
        session, other = await anna.session(), await anna.session()
        await anna.prompt(session)
        canceled, unwound = asyncio.Event(), asyncio.Event()

        async def unwind_slowly(turn: Turn) -> None:
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                canceled.set()
                await unwound.wait()

        (await self.daemon.entered()).begin(unwind_slowly)
        deleting = asyncio.create_task(anna.call("DELETE", f"/sessions/{session}"))
        async with asyncio.timeout(PATIENCE):
            await canceled.wait()
            await anna.retire()
            self.assertEqual(await self.status(anna), 404)
            unwound.set()
            self.assertEqual((await deleting).status, 200)
        again = await self.daemon.join()
        left = [item["id"] for item in (await again.call("GET", "/sessions")).json]
        self.assertEqual(left, [other])

    async def test_a_request_that_waits_for_a_run_is_answered_by_the_teardown(self) -> None:
        anna = await self.daemon.join()
        session = await anna.session()
        await anna.prompt(session, run_id="r1")
        await self.daemon.entered()
        waiting = asyncio.create_task(anna.call("GET", "/runs/r1?wait=60"))
        await ticks(200)
        await anna.retire()
        async with asyncio.timeout(PATIENCE):
            answer = await waiting
        self.assertEqual((answer.status, answer.json["outcome"]), (200, "canceled"))

    async def test_prompts_posted_around_a_teardown_are_promised_and_ended_or_refused(self) -> None:
        anna = await self.daemon.join()
        session = await anna.session()
        posts = [
            asyncio.create_task(anna.try_prompt(session, "x", run_id=f"r{n}")) for n in range(8)
        ]
        await ticks(4)
        self.daemon.backend.retire(anna.id)
        async with asyncio.timeout(PATIENCE):
            answers = await asyncio.gather(*posts)
        late = await anna.try_prompt(session)
        self.assertEqual((late.status, late.json["code"]), (404, "workspace_not_found"))
        promised = {f"r{n}" for n, answer in enumerate(answers) if answer.status == 202}
        refused = {answer.status for answer in answers if answer.status != 202}
        self.assertLessEqual(refused, {404, 409})
        await anna.events.end()
        ended = [event["run_id"] for event in anna.events.all("run_complete")]
        self.assertEqual(sorted(ended), sorted(promised))
        again = await self.daemon.join()
        runs = (await again.call("GET", "/runs")).json
        outcomes = {run["run_id"]: run["outcome"] for run in runs}
        self.assertEqual(outcomes, dict.fromkeys(promised, "canceled"))


class StubbornAgentTests(unittest.IsolatedAsyncioTestCase):
    """An agent that ignores its cancellation delays a teardown, but only so long."""

    async def asyncSetUp(self) -> None:
        self.clock = FakeClock()
        self.agent = Stubborn()

    async def enter(self, **knobs: float) -> tuple[LocalDaemon, Participant, str]:
        """A daemon with one client, and one run inside the stubborn agent."""
        daemon = LocalDaemon(self.agent, settings=replace(SETTINGS, **knobs), clock=self.clock)  # type: ignore[arg-type]
        await self.enterAsyncContext(daemon)
        self.addCleanup(self.agent.freed.set)
        anna = await daemon.join()
        session = await anna.session()
        await anna.prompt(session, run_id="r1")
        async with asyncio.timeout(PATIENCE):
            await self.agent.entered.wait()
        return daemon, anna, session

    async def ended(self, daemon: LocalDaemon, anna: Participant, session: str) -> None:
        """The stream has ended, the run before it; and the record says the same."""
        await anna.events.end()
        self.assertEqual(anna.events.seen[-1].kind, "run_complete")
        self.assertEqual(anna.events.seen[-1]["cancelled"], True)
        again = await daemon.join()
        run = (await again.call("GET", "/runs/r1")).json
        self.assertEqual((run["state"], run["outcome"]), ("ended", "canceled"))
        last = (await again.messages(session))[-1]
        self.assertEqual((last.text, last.finish), ("you cannot stop me", "canceled"))

    async def test_a_teardown_waits_for_the_cancel_grace_only(self) -> None:
        daemon, anna, session = await self.enter(cancel_grace=5.0, drain=10.0)
        workspace = daemon.backend.get(anna.workspace["id"])
        await anna.retire()
        await self.clock.advance(4.9)
        self.assertFalse(anna.events.ended.is_set())
        await self.clock.advance(0.1)
        await self.ended(daemon, anna, session)
        self.assertEqual(workspace.runs.abandoned, 1)

    async def test_a_drain_shorter_than_the_cancel_grace_still_ends_the_run(self) -> None:
        daemon, anna, session = await self.enter(cancel_grace=50.0, drain=2.0)
        await anna.retire()
        await self.clock.advance(1.9)
        self.assertFalse(anna.events.ended.is_set())
        await self.clock.advance(0.1)
        await self.ended(daemon, anna, session)

    async def test_shutdown_with_running_turns_is_bounded_and_records_them(self) -> None:
        daemon, anna, _ = await self.enter(cancel_grace=5.0, drain=10.0)
        leaving = asyncio.create_task(daemon.backend.shutdown())
        await self.clock.advance(4.9)
        self.assertFalse(leaving.done())
        await self.clock.advance(0.1)
        async with asyncio.timeout(PATIENCE):
            await leaving
        await anna.events.end()
        self.assertEqual(anna.events.seen[-1].kind, "run_complete")
        await assert_free(daemon.root / "project" / ".crushlite")


class DetachedRunTests(WorkspaceTestCase):
    async def detached(self, who: Participant, session: str, **fields: Any) -> None:
        await who.prompt(session, "work while I sleep", detach=True, **fields)

    async def test_a_detached_run_keeps_its_workspace_and_the_daemon(self) -> None:
        anna = await self.daemon.join()
        session = await anna.session()
        await self.detached(anna, session)
        run = await self.daemon.entered()
        await anna.retire()
        await self.clock.advance(10 * IDLE)
        self.assertEqual(await self.status(anna), 200)
        self.assertFalse(self.is_leaving)
        self.assertEqual((await self.control()).status, 409)
        await run.say("done")
        run.release()
        runs = await anna.call("GET", f"/runs/{run.turn.run_id}?wait=20")
        self.assertEqual((runs.json["outcome"], runs.json["text"]), ("completed", "done"))
        await self.clock.advance(DETACH - 0.1)
        self.assertEqual(await self.status(anna), 200)  # its owner may come and look
        await self.clock.advance(0.1)
        self.assertEqual(await self.status(anna), 404)
        await self.clock.advance(IDLE)
        self.assertTrue(self.is_leaving)

    async def test_without_detach_the_last_client_takes_its_run_along(self) -> None:
        anna = await self.daemon.join()
        await anna.prompt(await anna.session())
        run = await self.daemon.entered()
        await self.cut(anna)
        await self.clock.advance(DETACH)
        await until(lambda: run.canceled, "the run was canceled")
        self.assertEqual(await self.status(anna), 404)

    async def test_an_owner_that_comes_back_keeps_the_workspace_after_the_run(self) -> None:
        anna = await self.daemon.join()
        session = await anna.session()
        await self.detached(anna, session)
        run = await self.daemon.entered()
        await anna.retire()
        ben = await self.daemon.join()
        self.assertEqual(ben.workspace["id"], anna.workspace["id"])
        run.release()
        await ben.events.wait_for("run_complete")
        await self.clock.advance(10 * DETACH)
        self.assertEqual(await self.status(ben), 200)

    async def test_a_detached_prompt_holds_from_acceptance_until_its_own_end(self) -> None:
        anna = await self.daemon.join()
        session = await anna.session()
        await anna.prompt(session, "first")
        await self.daemon.entered(1)
        await self.detached(anna, session, run_id="queued")
        await anna.retire()
        await self.clock.advance(10 * DETACH)
        self.assertEqual(await self.status(anna), 200)
        self.daemon.agent.runs[0].release()
        await self.daemon.entered(2)
        await self.clock.advance(10 * DETACH)
        self.assertEqual(await self.status(anna), 200)
        await anna.cancel(session, wait=20)
        await self.clock.advance(DETACH)
        self.assertEqual(await self.status(anna), 404)

    async def test_a_detached_prompt_that_was_refused_holds_nothing(self) -> None:
        anna = await self.daemon.create()
        refused = await anna.try_prompt(str(uuid.uuid4()), detach=True)
        self.assertEqual(refused.status, 404)
        await anna.release()
        self.assertEqual(await self.status(anna), 404)


class ImpatientTests(WorkspaceTestCase):
    """Without a detach grace the end of the last detached run closes its workspace at once."""

    settings = replace(SETTINGS, graces=replace(SETTINGS.graces, detach=0.0))

    async def test_what_waits_behind_the_last_detached_run_does_not_start(self) -> None:
        anna = await self.daemon.join()
        session = await anna.session()
        await anna.prompt(session, detach=True)
        run = await self.daemon.entered()
        await anna.prompt(session, run_id="behind")
        await anna.retire()
        run.release()
        await until(lambda: not self.daemon.backend.everything(), "the teardown")
        again = await self.daemon.join()
        behind = (await again.call("GET", "/runs/behind")).json
        self.assertEqual(behind["outcome"], "canceled")
        self.assertEqual(len(self.daemon.agent.runs), 1)


class InteractiveTests(WorkspaceTestCase):
    async def say(self, who: Participant, interactive: bool, client: str | None = None) -> int:
        query = f"?client_id={client}" if client is not None else ""
        answer = await who.call("POST", f"/agent/init{query}", {"interactive": interactive})
        return answer.status

    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        self.anna = await self.daemon.join()
        await self.anna.prompt(await self.anna.session())
        self.turn = (await self.daemon.entered()).turn

    async def test_somebody_who_said_nothing_may_be_watching(self) -> None:
        self.assertTrue(self.turn.interactive)
        await self.cut(self.anna)
        self.assertFalse(self.turn.interactive)

    async def test_each_client_speaks_for_itself(self) -> None:
        ben = await self.daemon.join()
        self.assertEqual(await self.say(ben, False, ben.id), 200)
        self.assertTrue(self.turn.interactive)
        await self.say(ben, False, self.anna.id)
        self.assertFalse(self.turn.interactive)
        await self.say(ben, True, ben.id)
        self.assertTrue(self.turn.interactive)
        await ben.retire()
        self.assertFalse(self.turn.interactive)

    async def test_without_a_name_the_newest_silent_client_is_meant(self) -> None:
        ben = await self.daemon.join()
        await self.say(ben, False)  # of two silent ones ben is the newer
        self.assertTrue(self.turn.interactive)
        await self.say(ben, False)  # now only anna is silent
        self.assertFalse(self.turn.interactive)
        await self.say(ben, True)  # nobody is: the newest, ben
        await self.say(ben, False, ben.id)
        self.assertFalse(self.turn.interactive)

    async def test_an_unknown_name_and_an_empty_body_change_nothing_for_others(self) -> None:
        self.assertEqual(await self.say(self.anna, False, str(uuid.uuid4())), 200)
        self.assertTrue(self.turn.interactive)
        self.assertEqual(await self.say(self.anna, False, "nobody"), 400)
        # The Crush client's one-shot run sends no body at all.
        answer = await self.anna.call("POST", f"/agent/init?client_id={self.anna.id}")
        self.assertEqual(answer.status, 200)
        self.assertFalse(self.turn.interactive)

    async def test_init_does_not_disturb_a_running_turn(self) -> None:
        await self.say(self.anna, True, self.anna.id)
        await self.daemon.agent.runs[0].say("still here")
        self.daemon.agent.runs[0].release()
        done = await self.anna.events.wait_for("run_complete")
        self.assertEqual((done["text"], len(self.daemon.agent.runs)), ("still here", 1))


if __name__ == "__main__":
    unittest.main()
