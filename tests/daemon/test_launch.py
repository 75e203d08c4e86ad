"""Finding, starting and replacing a daemon, as a library."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import TYPE_CHECKING, Any
from unittest import mock

from crushlite.api.context import body
from crushlite.client import Client
from crushlite.errors import BadRequest, CorruptDatabase, UsageError
from crushlite.http.messages import Request, Response
from crushlite.launch import Wanted, ensure_daemon, join, log_path, open_workspace, ready_seconds
from crushlite.testing import LocalDaemon
from crushlite.version import __version__
from tests.support.cli import CommandCase
from tests.support.client import CREATE, VERSION, ClientTestCase, answer, refused
from tests.support.scenarios import scenario

if TYPE_CHECKING:
    from crushlite.protocol.workspaces import Control

OURS = f"crushlite-{__version__}"
OTHER = "crushlite-0.0.0"
CONTROL = ("POST", "/v1/control")


class PrivateMachine(CommandCase):
    """This process on a machine of its own, without a daemon."""

    def setUp(self) -> None:
        super().setUp()
        self.enterContext(mock.patch.dict(os.environ, self.env, clear=True))
        self.addCleanup(self.end_daemon, self.socket)


class OpenTests(PrivateMachine):
    async def test_a_library_gets_a_workspace_in_a_daemon_that_is_started_for_it(self) -> None:
        async with open_workspace(self.project, agent="offline") as workspace:
            self.assertEqual(workspace.info.path, str(self.project.resolve()))
            self.assertEqual((await workspace.ask("hello")).text, "You said: hello\n")
            client = workspace.client
            log = log_path(client.address)
            self.assertIn("is serving", log.read_text())
        self.assertTrue(client.retired)
        async with Client(client.address) as other:
            self.assertEqual(await other.workspaces(), [], "it was given back")

    async def test_a_tool_may_say_how_its_own_daemon_is_started(self) -> None:
        url = f"unix://{self.root}/own.sock"
        self.addCleanup(self.end_daemon, self.root / "own.sock")
        script = (
            "import sys\nfrom crushlite import Daemon\n"
            "async def echo(turn):\n    await turn.say('my own: ' + turn.prompt)\n"
            "Daemon(agent=echo, hosts=[sys.argv[1]]).run()\n"
        )
        command = [sys.executable, "-P", "-c", script, url]
        async with open_workspace(self.project, url=url, command=command) as workspace:
            self.assertEqual((await workspace.ask("hello")).text, "my own: hello")

    async def test_many_at_once_in_one_process_find_one_daemon(self) -> None:
        wanted = Wanted(agent="offline", path=self.project)
        found = await asyncio.gather(*(join(wanted) for _ in range(8)))
        self.assertEqual(len({workspace.id for workspace in found}), 1)
        for workspace in found:
            await workspace.client.aclose()
        self.assertEqual(log_path(found[0].client.address).read_text().count("is serving"), 1)

    async def test_a_time_that_is_no_number_is_named(self) -> None:
        for text in ("soon", "-1", "nan"):
            with (
                mock.patch.dict(os.environ, {"CRUSHLITE_READY_TIMEOUT": text}),
                self.subTest(text),
                self.assertRaisesRegex(UsageError, f"CRUSHLITE_READY_TIMEOUT='{text}'"),
            ):
                ready_seconds()


class OtherVersionTests(ClientTestCase):
    """A daemon of another version that stays: what is asked of it, and that it is used."""

    def daemon_is(self, version: str) -> None:
        self.answers["GET", "/v1/version"] = answer({**VERSION, "version": version})
        self.answers["GET", "/v1/workspaces"] = answer([{"id": "w", "path": "/p"}])

    async def asked(self) -> list[Any]:
        """The commands that the daemon was given until it was found good enough."""
        self.requests.clear()
        address = f"unix://{self.path}"
        self.assertEqual(await self.within(ensure_daemon(Wanted(address))), address)
        sent = [r for r in self.requests if (r.head.method, r.head.target) == CONTROL]
        return [json.loads(request.body)["command"] for request in sent]

    async def test_one_of_our_version_is_not_asked_to_leave(self) -> None:
        self.daemon_is(OURS)
        self.assertEqual(await self.asked(), [])

    @scenario(304)
    async def test_a_daemon_of_another_version_that_refuses_to_leave_is_used(self) -> None:
        self.daemon_is(OTHER)
        self.answers[CONTROL] = refused(409, "server_in_use")
        self.assertEqual(await self.asked(), ["shutdown_if_idle"])

    @scenario(305)
    async def test_a_daemon_that_does_not_know_the_command_to_leave_is_used(self) -> None:
        self.daemon_is(OTHER)
        self.answers[CONTROL] = refused(400, "bad_request", "unknown command")
        self.assertEqual(await self.asked(), ["shutdown_if_idle"])

    async def test_a_server_of_another_kind_is_left_alone(self) -> None:
        self.daemon_is("v0.43.0")
        self.assertEqual(await self.asked(), [])

    async def test_a_refused_create_is_no_reason_to_start_another_one(self) -> None:
        self.daemon_is(OURS)
        self.answers[CREATE] = refused(409, "corrupt_database")
        with self.assertRaises(CorruptDatabase):
            await self.within(join(Wanted(f"unix://{self.path}", path="/p")))
        self.assertEqual(self.targets.count("POST /v1/workspaces"), 1)

    async def test_one_whose_version_is_a_riddle_is_used(self) -> None:
        self.answers["GET", "/v1/version"] = Response(200, b"{")
        self.assertEqual(await self.asked(), [])


class ReplacementTests(PrivateMachine):
    """A daemon of another version that leaves: its successor is ours."""

    async def replaced(self) -> None:
        with mock.patch("crushlite.api.system.WIRE_VERSION", OTHER):
            async with LocalDaemon() as old:
                self.addCleanup(self.end_daemon, old.socket)
                address = f"unix://{old.socket}"
                notes: list[str] = []
                wanted = Wanted(address, agent="offline", path=self.project, say=notes.append)
                joining = asyncio.create_task(join(wanted))
                await old.backend.leaving.wait()
                await old.daemon.stop()
                workspace = await joining
                async with workspace.client:
                    self.assertEqual((await workspace.client.version()).version, OURS)
        self.assertEqual(notes[0], f"{OTHER} makes room for {OURS}")
        self.assertIn(f"starting a daemon at {address}", notes)

    async def test_one_that_agrees_to_leave_is_replaced(self) -> None:
        await self.replaced()

    async def test_an_old_one_without_workspaces_is_ended_and_replaced(self) -> None:
        """It knows only the plain command, which it is given when nobody can be hurt by it."""
        commands = []

        def old_body(cls: type[Control], request: Request) -> Control:
            wanted = body(cls, request)
            commands.append(wanted.command)
            if wanted.command == "shutdown_if_idle":
                raise BadRequest("unknown command")
            return wanted

        with mock.patch("crushlite.api.system.body", old_body):
            await self.replaced()
        self.assertEqual(commands, ["shutdown_if_idle", "shutdown"])

    async def test_one_with_work_to_do_is_used_and_goes_on(self) -> None:
        with mock.patch("crushlite.api.system.WIRE_VERSION", OTHER):
            async with LocalDaemon() as old:
                anna = await old.join()
                address = f"unix://{old.socket}"
                workspace = await join(Wanted(address, path=old.root / "project"))
                async with workspace.client:
                    self.assertEqual(workspace.id, anna.workspace["id"])
