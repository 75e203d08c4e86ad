"""Language servers in a workspace, played by tests/support/language_server.py."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from crushlite.commands.process import start_piped
from crushlite.errors import BadRequest, Conflict
from crushlite.features.offers import notes_on_change, offered_tools
from crushlite.lsp import part as part_module, server as server_module
from crushlite.lsp.diagnostics import MOST_PER_FILE
from crushlite.lsp.part import LspPart
from crushlite.lsp.server import DISABLED, ERROR, READY, STARTING, STOPPED, UNSTARTED
from crushlite.lsp.tools import RenamedFile
from crushlite.testing import LocalDaemon
from tests.support import language_server
from tests.support.basics import BoundedTestCase
from tests.support.configured import marked, new_mark

if TYPE_CHECKING:
    from crushlite.hosting.workspace import Workspace
    from crushlite.testing import Seen
    from crushlite.testing.scripted import ScriptedRun

SCRIPT = str(Path(language_server.__file__))


class LspCase(BoundedTestCase):
    """A workspace with one language server for files of the kind `toy`."""

    async def open(self, *switches: str, **more: Any) -> None:
        """The server has these switches, and its section in crush.json these further keys."""
        self.daemon = LocalDaemon()
        self.home = self.daemon.root / "home"
        self.section = {
            "command": sys.executable,
            "args": ["-I", "-S", SCRIPT, *switches],
            "filetypes": ["toy"],
            **more,
        }
        self.configure({"toy": self.section})
        # A busy machine must not change what tests see; some set less, for servers that are slow.
        self.enterContext(mock.patch.object(part_module, "WAIT_SECONDS", 30.0))
        await self.enterAsyncContext(self.daemon)
        self.project = self.daemon.root / "project"
        self.anna = await self.daemon.join(self.project, env=[f"PATH={os.environ['PATH']}"])
        self.session = await self.anna.session()
        await self.anna.prompt(self.session)
        self.run_: ScriptedRun = await self.daemon.entered(1)
        self.addCleanup(self.run_.release)

    def configure(self, section: dict[str, Any], **options: Any) -> None:
        file = self.home / ".config/crush/crush.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"lsp": section, "options": options}))

    @property
    def workspace(self) -> Workspace:
        return self.daemon.backend.get(str(self.anna.workspace["id"]))

    @property
    def part(self) -> LspPart:
        return self.workspace.part(LspPart)

    def write(self, name: str, text: str) -> str:
        path = self.project / name
        path.write_text(text)
        return str(path)

    async def read(self, path: str) -> None:
        """The agent reads a file; returns when the servers were told about it."""
        await self.run_.do(lambda turn: turn.file_read(path))
        task = self.part._touching
        if task is not None:
            await asyncio.wait([task])

    async def changed(self, name: str, text: str) -> str:
        """The agent changes a file; what it is told with the result."""
        path = self.write(name, text)
        return "\n".join(await self.run_.do(lambda turn: notes_on_change(turn, path)))

    async def get(self, path: str) -> Any:
        answer = await self.anna.call("GET", path)
        self.assertEqual(answer.status, 200, answer)
        return answer.json

    async def state(self, wanted: int) -> dict[str, Any]:
        """Wait for an event with this state; what `W/lsps` says then."""
        await self.anna.events.wait_for("lsp_event", state=wanted)
        return dict((await self.get("/lsps"))["toy"])

    async def call(self, name: str, **arguments: Any) -> str:
        """Call a tool as an agent does."""
        tools = await self.run_.do(offered_tools)
        [tool] = [tool for tool in tools if tool.name == name]
        answer = await self.run_.do(lambda turn: tool.call(turn, arguments, "call"))
        return str(answer.text)


class ChangeTests(LspCase):
    async def test_what_a_change_makes_wrong_is_told_with_it_and_what_was_wrong_is_not(
        self,
    ) -> None:
        await self.open()
        await self.read(self.write("a.toy", "fine\nBAD one\n"))
        told = await self.changed("a.toy", "new line\nfine\nBAD one\nBAD two\nWARN three\n")
        self.assertEqual(
            told.split("\n")[:3],
            [
                '<diagnostics file="a.toy">',
                "4:1 error: BAD two (test)",
                "5:1 warning: WARN three (test)",
            ],
        )
        self.assertIn("1 more", told)
        self.assertEqual(await self.changed("a.toy", "fine\n"), "")

    async def test_what_is_said_late_of_the_text_before_is_not_new(self) -> None:
        await self.open("late=0.1")
        await self.read(self.write("a.toy", "BAD one\n"))
        self.assertEqual(await self.changed("a.toy", "fine\nBAD one\n"), "")

    async def test_the_first_file_of_its_kind_starts_a_server_and_no_other(self) -> None:
        await self.open()
        self.assertEqual((await self.get("/lsps"))["toy"]["state"], UNSTARTED)
        await self.read(self.write("a.txt", "BAD"))
        self.assertEqual((await self.get("/lsps"))["toy"]["state"], UNSTARTED)
        self.assertEqual(await self.run_.do(offered_tools), [])
        await self.read(self.write("a.toy", "BAD"))
        self.assertEqual((await self.state(READY))["name"], "toy")
        names = [tool.name for tool in await self.run_.do(offered_tools)]
        self.assertIn("lsp_diagnostics", names)

    async def test_a_server_that_says_first_that_all_is_well_is_heard_out(self) -> None:
        await self.open("early", "late=0.05")
        await self.read(self.write("a.toy", "fine"))
        self.assertIn("BAD two", await self.changed("a.toy", "BAD two"))

    async def test_a_marker_must_be_above_the_file(self) -> None:
        await self.open(root_markers=["toy.json"])
        await self.read(self.write("a.toy", "BAD"))
        self.assertEqual((await self.get("/lsps"))["toy"]["state"], UNSTARTED)
        self.write("toy.json", "{}")
        await self.read(self.write("a.toy", "BAD"))
        await self.state(READY)

    async def test_files_outside_and_files_that_are_no_text_are_not_told(self) -> None:
        await self.open()
        outside = self.daemon.root / "b.toy"
        outside.write_text("BAD")
        (self.project / "link.toy").symlink_to(outside)
        (self.project / "binary.toy").write_bytes(b"\xff\xfe")
        for name in (
            str(outside),
            str(self.project / "link.toy"),
            str(self.project / "binary.toy"),
        ):
            await self.read(name)
        await self.read(self.write("a.toy", "BAD"))
        server = self.part.servers["toy"]
        self.assertTrue(await server.heard(self.project / "a.toy", 10))
        self.assertEqual(len(server.found), 1)


class RouteTests(LspCase):
    async def test_states_and_diagnostics_are_listed_as_the_crush_client_wants_them(self) -> None:
        await self.open()
        path = self.write("a.toy", "BAD one\n")
        answer = await self.anna.call("POST", "/lsps/start", {"path": path})
        self.assertEqual((answer.status, answer.json), (200, None))
        self.assertEqual((await self.state(READY))["connected_at"][-1], "Z")
        event = await self.anna.events.wait_for("lsp_event", type="diagnostics_changed")
        self.assertEqual((event.action, event["diagnostic_count"]), ("updated", 1))
        found = await self.get("/lsps/toy/diagnostics")
        self.assertEqual(list(found), [f"file://{path}"])
        [only] = found[f"file://{path}"]
        self.assertEqual((only["message"], only["severity"]), ("BAD one", 1))
        self.assertEqual((await self.anna.call("GET", "/lsps/x/diagnostics")).status, 404)
        self.assertEqual((await self.anna.call("POST", "/lsps/stop")).status, 200)
        self.assertEqual((await self.get("/lsps"))["toy"]["state"], STOPPED)

    async def test_a_change_of_its_section_ends_a_server(self) -> None:
        mark = new_mark()
        await self.open(f"spawn={mark}")
        await self.read(self.write("a.toy", "BAD"))
        self.assertTrue(marked(mark))
        self.part._late["toy"] = 2  # which is no reason to hurry the next one
        self.configure({"toy": {**self.section, "args": ["-I", "-S", SCRIPT]}})
        self.assertEqual((await self.anna.call("POST", "/agent/update")).status, 200)
        self.assertEqual((await self.get("/lsps"))["toy"]["state"], UNSTARTED)
        self.assertFalse(marked(mark))
        self.assertEqual(self.part._late, {})

    async def test_nothing_is_left_when_the_workspace_closes(self) -> None:
        mark = new_mark()
        await self.open(f"spawn={mark}", "rude")
        await self.read(self.write("a.toy", "BAD"))
        self.assertTrue(marked(mark))
        self.run_.release()
        with mock.patch.object(server_module, "STOP_SECONDS", 0.05):
            await self.anna.retire()
            await self.daemon.daemon.stop()
        self.assertFalse(marked(mark))

    async def test_no_server_starts_once_the_workspace_closes(self) -> None:
        await self.open()
        await self.part.all_servers()

        async def closes_meanwhile(*_: Any) -> bool:
            self.workspace.closing = True
            return True

        self.addCleanup(setattr, self.workspace, "closing", False)
        with mock.patch.object(self.part, "blocking", closes_meanwhile):
            self.assertEqual(await self.part.fitting(self.project / "a.toy"), [])
        self.assertEqual(self.part.servers["toy"].state, UNSTARTED)

    async def test_no_server_of_an_old_section_starts_while_it_changes(self) -> None:
        await self.open()
        await self.read(self.write("a.toy", "BAD"))
        old = self.part.servers["toy"]
        blocking, stop = self.part.blocking, old.stop
        looking, changed = asyncio.Event(), asyncio.Event()

        async def look(function: Any, *arguments: Any) -> Any:
            if function != old.spec.is_rooted:
                return await blocking(function, *arguments)
            looking.set()
            await changed.wait()
            return True

        async def stop_slowly() -> None:
            await stop()
            changed.set()
            self.assertEqual(await fitting, [])

        self.enterContext(mock.patch.object(self.part, "blocking", look))
        self.enterContext(mock.patch.object(old, "stop", stop_slowly))
        fitting = asyncio.ensure_future(self.part.fitting(self.project / "a.toy"))
        await looking.wait()
        self.configure({"toy": {**self.section, "env": {"NEW": "1"}}})
        await self.anna.call("POST", "/agent/update")
        servers = await self.part.all_servers()
        self.assertEqual(servers["toy"].spec.env, {"NEW": "1"})
        old.start()  # by a tool call that still has it
        self.assertEqual(old.state, STOPPED)

    async def test_a_server_that_is_stopped_as_soon_as_it_is_started_is_not_starting(self) -> None:
        await self.open()
        server = (await self.part.all_servers())["toy"]
        server.start()
        await server.stop()
        self.assertEqual(server.state, STOPPED)


class BadServerTests(LspCase):
    async def test_one_that_says_nothing_costs_a_bounded_time_and_then_nearly_none(self) -> None:
        await self.open("mute")
        self.enterContext(mock.patch.object(part_module, "WAIT_SECONDS", 0.1))
        self.enterContext(mock.patch.object(part_module, "HURRIED_SECONDS", 0.0))
        await self.read(self.write("a.toy", "fine"))
        for number in range(3):
            self.assertEqual(await self.changed("a.toy", f"BAD {number}"), "")
        self.assertEqual(self.part._late["toy"], 3)

    async def test_one_that_takes_nothing_costs_no_more_than_one_that_says_nothing(self) -> None:
        await self.open("deaf")
        self.enterContext(mock.patch.object(part_module, "WAIT_SECONDS", 0.1))
        self.enterContext(mock.patch.object(server_module, "STOP_SECONDS", 0.1))
        await self.read(self.write("a.toy", "fine"))
        for number in range(3):
            self.assertEqual(await self.changed("a.toy", f"BAD {number}" * 100_000), "")
        self.assertEqual(self.part._late["toy"], 3)
        server = self.part.servers["toy"]
        tells = list(server._tells)
        self.assertTrue(tells, "what it is being told is still on its way")
        await server.stop()
        await asyncio.wait(tells)  # and is over with the server

    async def test_one_that_does_not_start_costs_nothing(self) -> None:
        await self.open("stall", timeout=60)
        self.assertEqual(await self.changed("a.toy", "BAD"), "")
        # It was not waited for: else it would have failed by now.
        self.assertIn((await self.get("/lsps"))["toy"]["state"], (UNSTARTED, STARTING))

    async def test_one_that_does_not_start_is_an_error_with_a_reason(self) -> None:
        await self.open("stall", timeout=1)
        await self.changed("a.toy", "BAD")
        self.assertIn("initialize", (await self.state(ERROR))["error"])

    async def test_one_that_dies_is_started_again_but_not_for_ever(self) -> None:
        await self.open("dies")
        for _ in range(server_module.RESTARTS + 3):
            self.write("a.toy", "BAD")
            await self.read(str(self.project / "a.toy"))
            await self.dead()
        states = [event["state"] for event in self.anna.events.all("lsp_event")]
        self.assertEqual(states.count(READY), server_module.RESTARTS + 1)
        self.assertEqual(await self.changed("a.toy", "BAD"), "")
        self.assertEqual(await self.run_.do(offered_tools), [])

    async def dead(self) -> None:
        life = self.part.servers["toy"]._life
        if life is not None:
            await asyncio.wait([life])

    async def test_one_that_fails_says_why(self) -> None:
        await self.open("fails")
        await self.read(self.write("a.toy", "BAD"))
        self.assertIn("cannot find my configuration", (await self.state(ERROR))["error"])

    async def test_one_that_is_not_there_says_so(self) -> None:
        await self.open(command="no-such-server", args=[])
        await self.read(self.write("a.toy", "BAD"))
        self.assertIn("no-such-server is not on PATH", (await self.state(ERROR))["error"])

    async def test_noise_and_questions_that_nobody_knows_do_no_harm(self) -> None:
        await self.open(
            "noisy", "rude", "log=" + str(Path(self.tmp(), "log")), options={"a": {"b": 7}}
        )
        await self.read(self.write("a.toy", "fine"))
        self.assertIn("BAD", await self.changed("a.toy", "BAD"))
        await self.call("lsp_symbols", file_path="a.toy")  # it has read all that was sent before
        log = Path(self.section["args"][-1].partition("=")[2]).read_text()
        answers = [json.loads(line)[1:] for line in log.split("\n") if '"answer"' in line]
        self.assertEqual(answers[0], [None, None])
        self.assertEqual(answers[1][1]["code"], -32601)
        self.assertEqual(answers[2], [[7], None])

    def tmp(self) -> str:
        import tempfile

        return self.enterContext(tempfile.TemporaryDirectory())

    async def flooded(self, kind: str) -> None:
        readers = []

        async def start(*arguments: Any, **named: Any) -> Any:
            started = await start_piped(*arguments, **named)
            readers.append(started[1])
            return started

        await self.open(f"flood={kind}")
        self.enterContext(mock.patch.object(server_module, "start_piped", start))
        self.enterContext(mock.patch.object(server_module, "FLOOD", 500))
        self.enterContext(mock.patch.object(server_module, "STOP_SECONDS", 0.3))
        await self.read(self.write("a.toy", "BAD"))
        self.assertEqual((await self.state(STOPPED))["state"], STOPPED)
        self.assertEqual(await self.changed("a.toy", "BAD"), "")
        self.assertEqual([reader.at_eof() for reader in readers], [True], "its pipe is open")

    async def test_one_that_floods_is_ended(self) -> None:
        await self.flooded("notifications")

    async def test_one_that_floods_with_requests_is_ended(self) -> None:
        await self.flooded("requests")

    async def test_one_that_floods_with_noise_is_ended(self) -> None:
        await self.flooded("noise")

    async def test_what_it_finds_is_bounded(self) -> None:
        await self.open("huge")
        await self.read(self.write("a.toy", "fine"))
        told = await self.changed("a.toy", "BAD " + "x" * 1000)
        self.assertEqual(len(self.part.servers["toy"].about(self.project / "a.toy")), MOST_PER_FILE)
        self.assertLess(len(told), 10_000)


class ToolTests(LspCase):
    async def test_names_are_found_where_they_are_defined_and_used(self) -> None:
        await self.open()
        await self.read(self.write("a.toy", "def one\n  ünï one\n"))
        await self.read(self.write("b.toy", "use one\n"))
        place = {"file_path": "b.toy", "symbol": "one"}
        self.assertEqual(await self.call("lsp_definition", **place), "a.toy:1: def one")
        self.assertEqual(
            (await self.call("lsp_references", **place)).split("\n"),
            ["a.toy:1: def one", "a.toy:2: ünï one", "b.toy:1: use one"],
        )
        outline = await self.call("lsp_symbols", file_path="a.toy")
        self.assertEqual(outline, "function one (line 1)")
        for wrong in ({"file_path": "b.toy", "symbol": "two"}, {"file_path": "b.toy"}):
            with self.assertRaises(BadRequest):
                await self.call("lsp_definition", **wrong)

    async def test_diagnostics_are_those_of_the_file_as_it_is_now(self) -> None:
        await self.open()
        await self.read(self.write("a.toy", "fine"))
        self.assertEqual(await self.call("lsp_diagnostics", file_path="a.toy"), "nothing is wrong")
        self.write("a.toy", "BAD")  # by a command, say
        self.assertIn("BAD", await self.call("lsp_diagnostics", file_path="a.toy"))
        self.assertIn("a.toy:1:1 error", await self.call("lsp_diagnostics"))

    async def test_a_rename_is_shown_asked_for_and_recorded(self) -> None:
        await self.open()
        await self.read(self.write("a.toy", "def one\r\none\r\n"))
        await self.read(self.write("b.toy", "use one\n"))
        wanted = {"file_path": "b.toy", "symbol": "one", "new_name": "two"}
        renaming = asyncio.ensure_future(self.call("lsp_rename", **wanted))
        request = await self.anna.events.wait_for("permission_request")
        self.assertEqual((request["tool_name"], request["action"]), ("lsp_rename", "write"))
        self.assertIn("+use two", request["params"]["diff"])
        self.assertEqual((self.project / "b.toy").read_text(), "use one\n")
        await self.anna.grant(request.payload)
        self.assertEqual(await renaming, "renamed in a.toy, b.toy")
        self.assertEqual((self.project / "a.toy").read_bytes(), b"def two\r\ntwo\r\n")
        changes = await self.get("/changes")
        self.assertEqual(len(changes), 1)

    async def rename(self) -> tuple[asyncio.Future[str], Seen]:
        """A rename of `one` to `two` that waits for its permission."""
        wanted = {"file_path": "b.toy", "symbol": "one", "new_name": "two"}
        renaming = asyncio.ensure_future(self.call("lsp_rename", **wanted))
        return renaming, await self.anna.events.wait_for("permission_request")

    async def renaming(self) -> tuple[asyncio.Future[str], Seen]:
        """A rename in a.toy and b.toy that waits for its permission."""
        await self.open()
        await self.read(self.write("a.toy", "def one\n"))
        await self.read(self.write("b.toy", "use one\n"))
        return await self.rename()

    def texts(self) -> list[str]:
        return [(self.project / name).read_text() for name in ("a.toy", "b.toy")]

    async def test_a_rename_changes_nothing_if_one_of_its_files_has_changed_meanwhile(self) -> None:
        renaming, request = await self.renaming()
        self.write("b.toy", "use one, of the user\n")
        await self.anna.grant(request.payload)
        with self.assertRaisesRegex(Conflict, r"b\.toy has changed meanwhile: nothing was renamed"):
            await renaming
        self.assertEqual(self.texts(), ["def one\n", "use one, of the user\n"])

    async def test_a_rename_that_fails_halfway_says_what_it_has_done(self) -> None:
        renaming, request = await self.renaming()
        write = RenamedFile.write

        def fail_at_b(file: RenamedFile) -> None:
            if file.place.shown == "b.toy":
                raise Conflict("b.toy is broken")
            write(file)

        with mock.patch.object(RenamedFile, "write", fail_at_b):
            await self.anna.grant(request.payload)
            with self.assertRaisesRegex(BadRequest, r"broken \(already renamed in a\.toy\)"):
                await renaming
        self.assertEqual(self.texts(), ["def two\n", "use one\n"])

    async def test_a_rename_is_about_what_files_hold_now_whatever_was_read_of_them(self) -> None:
        await self.open()
        for name in ("a.toy", "b.toy", "gone.toy"):
            await self.read(self.write(name, "def one\n"))
        self.write("a.toy", "a new line\ndef one\n")  # by a command, say
        (self.project / "gone.toy").unlink()
        renaming, request = await self.rename()
        await self.anna.grant(request.payload)
        self.assertEqual(await renaming, "renamed in a.toy, b.toy")
        self.assertEqual(self.texts(), ["a new line\ndef two\n", "def two\n"])

    async def test_a_rename_changes_a_file_once_that_has_two_names(self) -> None:
        await self.open()
        (self.project / "link.toy").symlink_to("a.toy")
        for name, text in (("a.toy", "def one\n"), ("b.toy", "use one\n")):
            await self.read(self.write(name, text))
        await self.read(str(self.project / "link.toy"))
        renaming, request = await self.rename()
        self.assertEqual(request["params"]["diff"].count("+def two"), 1)
        await self.anna.grant(request.payload)
        self.assertEqual(await renaming, "renamed in a.toy, b.toy")
        self.assertTrue((self.project / "link.toy").is_symlink())
        self.assertEqual(self.texts(), ["def two\n", "use two\n"])

    async def test_a_grant_for_the_session_covers_no_further_rename(self) -> None:
        renaming, request = await self.renaming()
        await self.anna.grant(request.payload, "allow_session")
        await renaming
        self.write("b.toy", "use one\n")
        renaming, request = await self.rename()
        await self.anna.grant(request.payload, "deny")
        self.assertEqual(await renaming, "User denied permission")
        self.assertEqual(self.texts(), ["def two\n", "use one\n"])

    async def test_the_folders_of_the_daemon_are_closed_to_servers_and_tools(self) -> None:
        await self.open()
        await self.read(self.write("a.toy", "def one\n"))
        data = self.workspace.store.store.data_dir
        self.assertTrue(data.is_relative_to(self.project))
        own = self.write(str(data / "own.toy"), "def one\nBAD\n")
        for name in ("lsp_symbols", "lsp_diagnostics"):
            with self.assertRaisesRegex(BadRequest, "closed"):
                await self.call(name, file_path=own)
        self.assertEqual(await self.changed(own, "BAD"), "")
        wanted = {"file_path": "a.toy", "symbol": "one", "new_name": "two"}
        renaming = asyncio.ensure_future(self.call("lsp_rename", **wanted))
        request = await self.anna.events.wait_for("permission_request")
        self.assertNotIn("own.toy", str(request.payload))
        await self.anna.grant(request.payload)
        await renaming
        self.assertEqual(Path(own).read_text(), "BAD")

    async def test_a_server_can_be_started_anew(self) -> None:
        await self.open()
        await self.read(self.write("a.toy", "BAD"))
        self.assertEqual(await self.call("lsp_restart"), "starting anew: toy")
        await self.state(STOPPED)
        await self.state(READY)


class AutomaticTests(LspCase):
    """Servers that are installed but not configured."""

    async def open_with(self, *programs: str, inside: bool = False, **options: Any) -> None:
        self.daemon = LocalDaemon()
        self.home = self.daemon.root / "home"
        self.configure({}, **options)
        await self.enterAsyncContext(self.daemon)
        self.project = self.daemon.root / "project"
        folder = (self.project if inside else self.daemon.root) / "bin"
        folder.mkdir()
        for name in programs:
            program = folder / name
            program.write_text(f"#!/bin/sh\nexec {sys.executable} -I -S {SCRIPT}\n")
            program.chmod(0o755)
        self.anna = await self.daemon.join(self.project, env=[f"PATH={folder}:bin:.:/usr/bin:/bin"])
        await self.anna.prompt(await self.anna.session())
        self.run_ = await self.daemon.entered(1)
        self.addCleanup(self.run_.release)

    async def servers(self) -> dict[str, int]:
        return {name: each["state"] for name, each in (await self.get("/lsps")).items()}

    async def test_one_that_only_parses_starts_by_itself(self) -> None:
        await self.open_with("pyright-langserver", "pylsp")
        self.assertEqual(await self.servers(), {})
        await self.read(self.write("a.py", "x = 1"))
        self.assertEqual(await self.servers(), {"pyright": READY})
        self.assertIn("BAD", await self.changed("a.py", "BAD"))

    async def test_one_that_runs_what_the_project_brings_does_not_and_says_so(self) -> None:
        await self.open_with("rust-analyzer")
        self.write("Cargo.toml", "")
        await self.read(self.write("a.rs", "BAD"))
        listed = (await self.get("/lsps"))["rust-analyzer"]
        self.assertEqual(listed["state"], DISABLED)
        self.assertIn('"lsp": {"rust-analyzer": {}}', listed["error"])
        self.configure({"rust-analyzer": {}})
        await self.anna.call("POST", "/agent/update")
        await self.read(str(self.project / "a.rs"))
        self.assertEqual(await self.servers(), {"rust-analyzer": READY})

    async def test_a_program_inside_the_workspace_is_no_server(self) -> None:
        await self.open_with("pyright-langserver", inside=True)
        await self.read(self.write("a.py", "x = 1"))
        self.assertEqual(await self.servers(), {})

    async def test_it_can_be_turned_off(self) -> None:
        await self.open_with("pyright-langserver", auto_lsp=False)
        await self.read(self.write("a.py", "x = 1"))
        self.assertEqual(await self.servers(), {})

    async def test_a_projects_section_starts_nothing_before_trust(self) -> None:
        await self.open_with("pyright-langserver", auto_lsp=False)
        (self.project / "crush.json").write_text(
            json.dumps({"lsp": {"evil": {"command": "pyright-langserver", "filetypes": ["py"]}}})
        )
        await self.anna.call("POST", "/agent/update")
        await self.read(self.write("a.py", "x = 1"))
        self.assertEqual(await self.servers(), {})
