"""Commands about the daemon and its surroundings: `stop`, `logs`, `doctor`, `config`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import subprocess
from typing import TYPE_CHECKING, Any
from unittest import mock

from crushlite.cli.logs import _grown
from crushlite.fake_model import FakeModel, obedient
from crushlite.launch import log_path
from crushlite.version import __version__
from tests.support.cli import PATIENCE, CommandCase

if TYPE_CHECKING:
    from tests.support.cli import Child


def has_ended(pid: int) -> bool:
    """Whether a child process has ended. Does not reap it: asyncio may still have to."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


class DaemonCase(CommandCase):
    """Commands about a daemon that is a process of its own, or is not there."""

    async def call(self, *arguments: str) -> tuple[int, str, str]:
        """Call a command; returns its exit code, standard output and standard error."""
        child = await self.start(*arguments)
        code, printed = await child.end()
        return code, printed, child.errors


class DaemonTests(DaemonCase):
    async def stop(self, daemon: Child, *arguments: str) -> None:
        """Insist that when `stop` has returned, the daemon has ended with exit code 0."""
        self.assertEqual((await self.run_process("stop", *arguments))[:2], (0, "stopped\n"))
        self.assertTrue(has_ended(daemon.process.pid))
        self.assertEqual((await daemon.end())[0], 0)

    async def test_stop_ends_an_idle_daemon(self) -> None:
        daemon = await self.serve(self.socket)
        await self.stop(daemon)
        self.assertFalse(self.socket.exists())

    async def test_what_became_of_it_is_told_to_programs(self) -> None:
        daemon = await self.serve(self.socket)
        run_id = (await self.call("run", "--detach", "-q", "/slow 600"))[1].strip()
        code, printed, errors = await self.call("stop", "--json")
        answer = json.loads(printed)
        self.assertEqual((code, errors), (1, ""))
        self.assertEqual(
            (answer["stopped"], answer["pid"], answer["address"], answer["workspaces"]),
            (
                *(False, daemon.process.pid, f"unix://{self.socket}"),
                [{"path": str(self.project), "runs": [run_id]}],
            ),
        )
        answer = json.loads((await self.call("stop", "--json", "--force"))[1])
        self.assertEqual((answer["stopped"], answer["pid"]), (True, daemon.process.pid))
        code, printed, _ = await self.call("stop", "--json")
        answer = json.loads(printed)
        self.assertEqual((code, answer["stopped"], answer["pid"]), (0, False, 0))

    async def test_of_several_at_once_none_fails(self) -> None:
        for _ in range(2):
            daemon = await self.serve(self.socket)
            answers = await asyncio.gather(*(self.call("stop") for _ in range(4)))
            self.assertEqual([code for code, _, _ in answers], [0] * 4, answers)
            self.assertIn("stopped\n", [printed for _, printed, _ in answers])
            await daemon.end()

    async def test_stop_says_what_keeps_it_and_force_ends_that_in_order(self) -> None:
        daemon = await self.serve(self.socket)
        worker = await self.start("run", "begun\n/slow 600")
        await worker.prints("You said: begun\n")
        code, _, errors = await self.call("stop")
        self.assertEqual(code, 1)
        self.assertIn(f"{self.project}: 1 run (", errors)
        self.assertIn("crushlite stop --force", errors)
        self.assertIsNone(daemon.process.returncode)
        await self.stop(daemon, "--force")
        # In order: the run is recorded as canceled, not as interrupted by a crash.
        code, printed, _ = await self.call("runs", "--json", "--agent=offline")
        self.addCleanup(self.end_daemon, self.socket)
        self.assertEqual([each["outcome"] for each in json.loads(printed)], ["canceled"])

    async def test_logs_are_those_of_a_daemon_that_was_started_by_a_command(self) -> None:
        self.addCleanup(self.end_daemon, self.socket)
        await self.call("run", "--agent=offline", "hello")
        code, printed, errors = await self.call("logs")
        self.assertEqual(code, 0)
        self.assertIn("listening on", printed)
        path = self.socket.parent / "daemon.log"
        self.assertIn(str(path), errors)
        self.assertEqual((await self.call("logs", "--path"))[1], f"{path}\n")
        self.assertEqual(len((await self.call("logs", "-n", "1"))[1].splitlines()), 1)
        child = await self.spawn("logs", "-f", "-n", "1")
        await child.prints("\n")
        with path.open("a") as log:
            log.write("something new\n")
        await child.prints("something new\n")
        path.write_text("begins anew\n")
        await child.prints("begins anew\n")
        child.process.send_signal(signal.SIGINT)
        self.assertEqual((await child.end())[0], 130)

    async def test_the_log_is_told_to_programs_in_the_shape_of_json_logs(self) -> None:
        path = self.socket.parent / "daemon.log"
        path.parent.mkdir(mode=0o700)
        record = "2026-01-02 03:04:05,678 WARNING crushlite.events: 日 slow: 3 s\n"
        path.write_text(f"{record}Traceback (most recent call last):\n")
        child = await self.spawn("logs", "--json", "-f", TZ="UTC-2")
        await child.prints("Traceback")
        with path.open("a") as log:
            log.write("something new\n")
        await child.prints("something new")
        child.process.send_signal(signal.SIGINT)
        printed = (await child.end())[1]
        expected = {
            "time": "2026-01-02T01:04:05.678Z",
            "level": "warning",
            "logger": "crushlite.events",
            "message": "日 slow: 3 s",
        }
        others = [
            {"message": text} for text in ("Traceback (most recent call last):", "something new")
        ]
        self.assertEqual([json.loads(line) for line in printed.splitlines()], [expected, *others])
        where = json.loads((await self.call("logs", "--json", "--path"))[1])
        self.assertEqual(where, {"path": str(path)})

    def test_a_line_is_told_when_all_of_it_is_there(self) -> None:
        path = self.root / "log"
        path.write_text("half a ")

        def wait(seconds: float) -> None:
            with path.open("a") as more:
                more.write("line\n")

        with path.open("rb") as log, mock.patch("crushlite.cli.logs.time.sleep", wait):
            self.assertEqual(next(_grown(log, path)), b"half a line\n")

    async def test_where_the_log_is_follows_the_address(self) -> None:
        other = f"unix://{self.root}/other.sock"
        self.assertNotEqual(log_path(other).name, "daemon.log")
        printed = (await self.call("logs", "--path", f"--host={other}"))[1]
        self.assertEqual(printed.strip().rpartition("/")[2], log_path(other).name)


class DoctorTests(DaemonCase):
    async def findings(self, code: int = 0) -> dict[str, list[dict[str, Any]]]:
        ended, printed, errors = await self.call("doctor", "--json")
        self.assertEqual(ended, code, printed + errors)
        found: dict[str, list[dict[str, Any]]] = {}
        for finding in json.loads(printed):
            found.setdefault(finding["name"], []).append(finding)
        return found

    async def test_a_fresh_machine_is_well(self) -> None:
        code, printed, _ = await self.run_process("doctor")
        self.assertEqual(code, 0)
        self.assertIn("nothing is broken", printed)
        for way in ("Ollama", "LM Studio", "llama.cpp", "found by themselves", "OPENAI_API_KEY"):
            self.assertIn(way, printed, "without a model it says how to get one")
        self.assertFalse((self.project / ".crushlite").exists())
        self.assertFalse(self.socket.parent.exists())

    async def test_a_daemon_at_work_is_well(self) -> None:
        await self.serve(self.socket)
        worker = await self.start("run", "begun\n/slow 600")
        await worker.prints("You said: begun\n")
        found = await self.findings()
        self.assertIn(f"crushlite-{__version__}", found["daemon"][0]["detail"])
        self.assertIn("in use by the daemon", found["database"][0]["detail"])
        self.assertEqual({each["state"] for each in found["database"]}, {"ok"})

    async def test_a_socket_directory_that_others_can_enter_is_broken(self) -> None:
        self.socket.parent.mkdir(mode=0o755)
        found = await self.findings(1)
        self.assertEqual(found["socket directory"][0]["advice"], f"chmod 700 {self.socket.parent}")

    async def test_token_files_are_looked_at(self) -> None:
        self.socket.parent.mkdir(mode=0o700)
        for port, mode in ((1, 0o600), (2, 0o644)):
            path = self.socket.parent / f"tcp-{port}.token"
            path.write_text("secret-token\n")
            path.chmod(mode)
        found = await self.findings(1)
        self.assertEqual([each["state"] for each in found["token"]], ["note", "broken"])

    async def test_a_damaged_database_is_broken_and_left_alone(self) -> None:
        await self.call("run", "--agent=offline", "hello")
        self.end_daemon(self.socket)
        database = self.project / ".crushlite/crushlite.db"
        self.assertEqual((await self.findings())["database"][0]["state"], "ok")
        for side in database.parent.glob("crushlite.db-*"):
            side.unlink()  # SQLite would restore the file from a log that the daemon left behind
        database.write_bytes(b"no database" * 100)
        before = database.read_bytes()
        self.assertIn("is damaged", (await self.findings(1))["database"][0]["detail"])
        self.assertEqual(database.read_bytes(), before)

    async def test_a_broken_configuration_is_named(self) -> None:
        file = self.project / "crush.json"
        file.write_text('{"options": {"debug": "perhaps"}}')
        found = await self.findings(1)
        self.assertIn(f"{file}: options.debug", found["configuration"][0]["detail"])

    async def test_the_model_is_reached_and_its_key_not_shown(self) -> None:
        model = await self.enterAsyncContext(FakeModel(script=obedient))
        section: dict[str, Any] = {
            "type": "openai-compat",
            "base_url": model.base_url,
            "api_key": "sk-hidden-1234",
        }
        section["models"] = [{"id": "m", "name": "M"}]
        file = self.root / ".config/crush/crush.json"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps({"providers": {"fake": section}}))
        code, printed, _ = await self.call("doctor")
        self.assertEqual(code, 0, printed)
        self.assertRegex(printed, r"ok +provider fake +127\.0\.0\.1:\d+ can be reached, with a key")
        self.assertNotIn("hidden", printed)
        self.assertEqual(model.requests, [])
        section["base_url"] = "http://127.0.0.1:1/v1"
        file.write_text(json.dumps({"providers": {"fake": section}}))
        # Also if its models are not known: then it must be asked for them.
        for models in (section["models"], list[str]()):
            section["models"] = models
            file.write_text(json.dumps({"providers": {"fake": section}}))
            found = await self.findings(1)
            broken = found["provider fake"][0]
            words = "127.0.0.1:1 cannot be reached: Connection refused"
            self.assertEqual((broken["state"], broken["detail"]), ("broken", words))


class ConfigTests(DaemonCase):
    def setUp(self) -> None:
        super().setUp()
        self.mine = self.root / ".config/crush/crush.json"
        self.mine.parent.mkdir(parents=True)
        provider = {
            "type": "openai-compat",
            "base_url": "http://127.0.0.1:1/v1",
            "api_key": "sk-not-to-be-shown",
            "extra_headers": {"X-Who": "not-to-be-shown-either"},
            "models": [{"id": "m", "name": "M"}],
        }
        self.mine.write_text(json.dumps({"providers": {"p": provider}}))

    async def rows(self, *arguments: str) -> dict[str, tuple[Any, str]]:
        shown = ("show", *arguments) if arguments else ()
        code, printed, errors = await self.call("config", *shown, "--json")
        self.assertEqual(code, 0, errors)
        return {row["key"]: (row["value"], row["origin"]) for row in json.loads(printed)}

    async def test_every_value_has_its_origin_and_no_secret_is_shown(self) -> None:
        project = self.project / "crush.json"
        project.write_text(json.dumps({"options": {"debug": True}}))
        rows = await self.rows()
        self.assertEqual(rows["options.debug"], (True, str(project)))
        for key in ("base_url", "models.0.id"):
            self.assertEqual(rows[f"providers.p.{key}"][1], str(self.mine))
        self.assertEqual(rows["CRUSHLITE_IDLE_TIMEOUT"], ("30", "the environment"))
        code, printed, errors = await self.call("config")
        self.assertEqual(code, 0)
        self.assertRegex(printed, rf"options\.debug +true +{project}\n")
        for text in (json.dumps(rows), printed, errors):
            self.assertNotIn("not-to-be-shown", text)

    async def test_one_key_is_shown_alone(self) -> None:
        self.assertEqual(
            set(await self.rows("providers.p.models")),
            {"providers.p.models.0.id", "providers.p.models.0.name"},
        )
        self.assertEqual((await self.call("config", "show", "nonsense"))[0], 1)

    async def test_values_are_set_and_removed_without_a_daemon(self) -> None:
        file = self.project / ".crushlite/crush.json"
        self.assertEqual((await self.call("config", "set", "options.debug", "true"))[0], 0)
        self.assertEqual(json.loads(file.read_text()), {"options": {"debug": True}})
        self.assertEqual((await self.rows("options"))["options.debug"], (True, str(file)))
        said = (await self.call("config", "unset", "options.debug"))[2]
        self.assertEqual(said, f"crushlite: options.debug is removed from {file}\n")
        self.assertEqual(await self.rows("options"), {})
        said = (await self.call("config", "unset", "options.debug"))[2]
        self.assertEqual(said, f"crushlite: options.debug was not set in {file}\n")
        self.assertFalse(self.socket.exists())

    async def test_what_is_removed_here_but_set_elsewhere_is_told(self) -> None:
        await self.serve(self.socket)
        watcher = await self.start("watch")  # so that the daemon does it
        await watcher.notes("watching")
        project = self.project / "crush.json"
        project.write_text(json.dumps({"options": {"debug": True}}))
        for action in (("set", "options.debug", "false"), ("unset", "options.debug")):
            code, _, said = await self.call("config", *action)
            self.assertEqual(code, 0, said)
        self.assertIn("options.debug is removed from", said)
        self.assertIn(f"options.debug is still set, in {project}\n", said)

    async def test_a_key_is_read_from_standard_input_into_ones_own_file(self) -> None:
        child = await self.spawn(
            *("config", "set", "--global", "providers.p.api_key", "-"), stdin=subprocess.PIPE
        )
        assert child.process.stdin is not None
        child.process.stdin.write(b"sk-from-stdin\n")
        child.process.stdin.close()
        self.assertEqual((await child.end())[0], 0)
        file = self.root / ".local/share/crushlite/crush.json"
        self.assertIn("sk-from-stdin", file.read_text())
        self.assertEqual(stat.S_IMODE(file.stat().st_mode), 0o600)
        self.assertNotIn("sk-from-stdin", child.errors)

    async def test_nonsense_is_refused_and_changes_nothing(self) -> None:
        for arguments, code in (
            (("set", "options.debug", '"perhaps"'), 1),
            (("set", "options..x", "1"), 1),
            (("set", "options.debug"), 2),
            (("one", "two", "three"), 2),
        ):
            self.assertEqual((await self.call("config", *arguments))[0], code, arguments)
        self.assertFalse((self.project / ".crushlite/crush.json").exists())

    async def test_a_key_that_is_of_no_use_is_said_to_be_and_nothing_is_said_of_others(
        self,
    ) -> None:
        for scope, key in (((), "optoins.debug"), (("--global",), "options.debgu")):
            code, _, said = await self.call("config", "set", *scope, key, "true")
            self.assertIn("there is no such key", said)
            unset = " ".join(("config", "unset", *scope, key))
            self.assertTrue(said.endswith(f"to remove it again: crushlite {unset}\n"), said)
            self.assertEqual(code, 1)
        code, _, said = await self.call("config", "set", "options.disable_auto_summarize", "true")
        self.assertEqual((code, said.count("crushlite: ")), (0, 1), said)

    async def test_a_useful_key_is_no_failure_because_of_another_that_is_of_no_use(self) -> None:
        await self.call("config", "set", "--global", "options.debgu", "true")
        set_it = ("config", "set", "--global", "providers.p.api_key", "sk-other")
        code, _, said = await self.call(*set_it)
        self.assertEqual(code, 0, said)
        self.assertNotIn("to remove it again", said)

    async def test_clients_of_an_open_workspace_learn_of_a_change(self) -> None:
        await self.serve(self.socket)
        watcher = await self.start("watch")
        await watcher.notes("watching")
        self.assertEqual((await self.call("config", "set", "options.debug", "true"))[0], 0)
        await watcher.prints("configuration changed")

    async def test_a_value_that_blocks_everything_can_be_removed(self) -> None:
        file = self.project / ".crushlite/crush.json"
        file.parent.mkdir()
        file.write_text('{"options": {"debug": "perhaps"}}')
        self.assertEqual((await self.call("config"))[0], 1)
        async with asyncio.timeout(PATIENCE):
            self.assertEqual((await self.call("config", "unset", "options.debug"))[0], 0)
        self.assertEqual((await self.call("config"))[0], 0)
