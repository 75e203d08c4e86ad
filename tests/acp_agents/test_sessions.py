"""Sessions of external agents: they go on after a restart, and each may have another agent."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import unittest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crushlite.acp_agents import choices
from crushlite.acp_agents.content import TRANSCRIPT_CHARS, transcript
from crushlite.acp_agents.wing import AgentsWing
from crushlite.clock import SystemClock
from crushlite.errors import ConfigError
from crushlite.protocol.messages import Message, TextPart
from crushlite.settings import Settings
from crushlite.store import sessions as session_rows
from crushlite.testing import LocalDaemon
from crushlite.testing.scripted import ScriptedAgent
from tests.support.hosted import QUIRKY, HostedTestCase, is_alive, quirky
from tests.support.prompts import until

if TYPE_CHECKING:
    from crushlite.testing import Participant


class ReopenTests(HostedTestCase):
    async def restarted(self, *switches: str) -> dict[str, Any]:
        """What is asked of the agent by a prompt after the daemon, and with it the agent, was
        started again: the methods by name."""
        files = ("--log", str(self.log), "--state", str(self.state))
        settings = Settings(data_dir=str(self.folder / "data"))
        project = self.folder / "project"
        project.mkdir()
        session = ""
        for prompt in ("say a", "blocks"):
            make = AgentsWing().agent(f"acp:{quirky(*switches, *files)}", SystemClock())
            async with LocalDaemon(make, settings=settings) as daemon:
                client = await daemon.join(project)
                session = session or await client.session()
                self.log.unlink(missing_ok=True)
                done = await self.ask(client, session, prompt)
                self.assertIsNone(done["error"])
                said = [m.text for m in await client.messages(session) if m["role"] == "assistant"]
        self.assertNotIn("this was said before", "".join(said))
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        methods = [line["method"].removeprefix("session/") for line in lines]
        texts = [block["text"] for block in json.loads(done["text"])]
        return {"methods": methods[1:], "texts": texts}

    async def test_it_is_resumed_if_the_agent_can(self) -> None:
        found = await self.restarted()
        self.assertEqual(found, {"methods": ["resume", "prompt"], "texts": ["blocks"]})

    async def test_else_it_is_loaded_without_what_is_repeated(self) -> None:
        found = await self.restarted("--offer", "load")
        self.assertEqual(found, {"methods": ["load", "prompt"], "texts": ["blocks"]})

    async def test_a_resume_that_is_offered_and_refused_is_followed_by_a_load(self) -> None:
        found = await self.restarted("--offer", "broken-resume,load")
        self.assertEqual(found, {"methods": ["resume", "load", "prompt"], "texts": ["blocks"]})

    async def test_else_a_new_one_gets_the_transcript(self) -> None:
        found = await self.restarted("--offer", "nothing")
        self.assertEqual(found["methods"], ["new", "prompt"])
        context, prompt = found["texts"]
        self.assertEqual(prompt, "blocks")
        self.assertIn("User: say a\n\nAssistant: a\n</conversation>", context)


class TranscriptTests(unittest.TestCase):
    def told(self, *said: tuple[str, str]) -> str:
        return transcript([Message("m", role, "s", [TextPart(text)]) for role, text in said])

    def test_what_was_asked_and_answered_is_told(self) -> None:
        told = self.told(("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"))
        self.assertIn("User: a\n\nAssistant: b\n\nUser: c\n\nAssistant: d\n<", told)

    def test_a_prompt_without_an_answer_is_not_told(self) -> None:
        told = self.told(
            ("user", "taken back"), ("assistant", ""), ("user", "a"), ("assistant", "b")
        )
        self.assertNotIn("taken back", told)
        self.assertEqual(self.told(("user", "a"), ("assistant", "")), "")

    def test_the_end_of_a_long_one_is_told(self) -> None:
        long = [("user", f"{n} " * 5000) for n in range(40)]
        told = self.told(*(pair for one in long for pair in (one, ("assistant", "ok"))))
        self.assertLess(len(told), TRANSCRIPT_CHARS + 1000)
        self.assertIn("39 39", told)
        self.assertIn("what was said before is left out", told)


class ChoiceTests(HostedTestCase):
    """A daemon with an agent of its own, and the quirky one in the user's crush.json."""

    def setUp(self) -> None:
        super().setUp()
        self.project = self.folder / "project"
        self.project.mkdir()
        self.home = self.folder / "home"
        self.configure(self.home / ".config/crush/crush.json")

    def configure(self, file: Any, **env: str) -> None:
        args = ["-S", "-E", str(QUIRKY), "--log", str(self.log), "--state", str(self.state)]
        entry = {"command": sys.executable, "args": args, "env": {"QUIRKY_KEY": "$HOME", **env}}
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"agents": {"quirky": entry}}))

    async def open(self) -> tuple[LocalDaemon, Participant]:
        settings = Settings(user_files=str(self.home))
        daemon = await self.enterAsyncContext(LocalDaemon(ScriptedAgent(), settings=settings))
        return daemon, await daemon.join(self.project)

    async def choose(self, client: Participant, session: str, agent: str) -> int:
        answer = await client.call("PUT", f"/sessions/{session}/agent", {"agent": agent})
        return answer.status

    async def chosen(self, client: Participant, session: str) -> str:
        return str((await client.call("GET", f"/sessions/{session}/agent")).json["agent"])

    async def test_each_session_has_its_agent_which_can_be_changed_between_turns(self) -> None:
        daemon, client = await self.open()
        session, other = await client.session(), await client.session()
        offered = (await client.call("GET", "/agents")).json
        self.assertEqual([agent["name"] for agent in offered], ["quirky"])
        self.assertEqual(await self.choose(client, session, "quirky"), 200)
        self.assertEqual((await self.ask(client, session, "say a"))["text"], "a")
        for number, one in enumerate((other, session), 1):
            if one == session:
                self.assertEqual(await self.choose(client, session, "default"), 200)
            run_id = (await client.prompt(one, "for the other")).json["run_id"]
            run = await daemon.entered(number)
            await run.say("by the daemon's own")
            run.release()
            await client.events.wait_for("run_complete", run_id=run_id)
        await self.choose(client, session, "quirky")
        context, prompt = json.loads((await self.ask(client, session, "blocks"))["text"])
        self.assertEqual(prompt["text"], "blocks")
        self.assertIn("User: for the other\n\nAssistant: by the daemon's own", context["text"])
        self.assertNotIn("say a", context["text"])  # which it knows

    async def test_the_line_of_a_command_is_not_kept_in_the_project(self) -> None:
        daemon, client = await self.open()
        session = await client.session()
        await self.choose(client, session, "quirky")
        await self.ask(client, session, "say a")
        store = daemon.backend.get(client.workspace["id"]).store
        kept = json.loads(await store.read(session_rows.get_notes, session, "acp:quirky"))
        self.assertTrue(kept["session"])
        self.assertNotIn(str(QUIRKY), str(kept))

    async def test_a_command_can_be_chosen_as_well(self) -> None:
        _, client = await self.open()
        session = await client.session()
        self.assertEqual(await self.choose(client, session, f"acp:{quirky()}"), 200)
        self.assertEqual((await self.ask(client, session, "say a"))["text"], "a")

    async def test_two_commands_with_the_same_program_do_not_end_each_other(self) -> None:
        _, client = await self.open()
        sessions = await client.session(), await client.session()
        files = ("--log", str(self.log), "--state", str(self.state))
        for session, switches in zip(sessions, (files, (*files, "--offer", "load")), strict=True):
            self.assertEqual(await self.choose(client, session, f"acp:{quirky(*switches)}"), 200)
        for session in sessions * 2:
            self.assertEqual((await self.ask(client, session, "say a"))["text"], "a")
        self.assertEqual(len(self.received("initialize")), 2)

    async def test_a_changed_entry_ends_the_agent_that_nobody_has_any_more(self) -> None:
        _, client = await self.open()
        session = await client.session()
        await self.choose(client, session, "quirky")
        pid = int((await self.ask(client, session, "grandchild"))["text"].split()[0])
        self.configure(self.home / ".config/crush/crush.json", CHANGED="yes")
        self.assertEqual((await client.call("POST", "/agent/update")).status, 200)
        self.assertEqual((await self.ask(client, session, "say a"))["text"], "a")
        await until(lambda: not is_alive(pid), "the process of the old entry has ended")

    async def test_an_agent_that_is_not_there_is_refused(self) -> None:
        _, client = await self.open()
        session = await client.session()
        for name in ("nobody", "coder", "acp:", "acp:'", "module:attr"):
            self.assertEqual(await self.choose(client, session, name), 400, name)
        self.assertEqual(await self.choose(client, "unknown", "quirky"), 404)
        self.assertEqual(await self.chosen(client, session), "")

    async def test_an_entry_that_was_written_meanwhile_can_be_chosen(self) -> None:
        file = self.home / ".config/crush/crush.json"
        kept = file.read_text()
        file.write_text("{}")
        _, client = await self.open()
        session = await client.session()
        self.assertEqual(await self.choose(client, session, "quirky"), 400)
        file.write_text(kept)
        self.assertEqual(await self.choose(client, session, "quirky"), 200)

    async def test_a_choice_outlives_the_daemon_and_is_believed_only_with_the_users_seal(
        self,
    ) -> None:
        daemon, client = await self.open()
        session, other = await client.session(), await client.session()
        await self.choose(client, session, "quirky")
        store = daemon.backend.get(client.workspace["id"]).store
        sealed = await store.read(session_rows.get_notes, session, "agent-choice")
        for note in (sealed, sealed[:64] + f" acp:{quirky()}", "0" * 64 + " quirky", "quirky"):
            await store.write(session_rows.set_notes, other, note, "agent-choice")
            async with LocalDaemon(
                ScriptedAgent(), settings=Settings(user_files=str(self.home))
            ) as second:
                shutil.rmtree(second.root / "project")
                shutil.copytree(self.project, second.root / "project")
                copy = await second.join(second.root / "project")
                # The database was copied: the seal names the directory, too.
                self.assertEqual(await self.chosen(copy, session), "")
        await client.events.close()
        await daemon.daemon.stop()
        _, client = await self.open()
        self.assertEqual(await self.chosen(client, session), "quirky")
        self.assertEqual(await self.chosen(client, other), "")
        self.assertEqual((await self.ask(client, session, "say a"))["text"], "a")

    async def test_an_agent_that_is_gone_fails_the_run_and_no_other_answers(self) -> None:
        _, client = await self.open()
        session = await client.session()
        await self.choose(client, session, "quirky")
        (self.home / ".config/crush/crush.json").write_text("{}")
        self.assertEqual((await client.call("POST", "/agent/update")).status, 200)
        done = await self.ask(client, session, "say a")
        self.assertIn("the agent of this session is not available", done["error"])

    async def test_a_project_names_no_agent_before_it_is_trusted(self) -> None:
        (self.home / ".config/crush/crush.json").write_text("{}")
        self.configure(self.project / "crush.json")
        daemon, client = await self.open()
        session = await client.session()
        self.assertIn("agents.quirky", client.workspace["warning"])
        self.assertEqual((await client.call("GET", "/agents")).json, [])
        self.assertEqual(await self.choose(client, session, "quirky"), 400)
        files = daemon.backend.get(client.workspace["id"]).profile.files  # type: ignore[attr-defined]
        files.trust(files.project_files())
        self.assertEqual(await self.choose(client, session, "quirky"), 200)
        self.assertEqual((await self.ask(client, session, "say a"))["text"], "a")

    async def test_a_project_does_not_change_an_agent_of_the_user(self) -> None:
        (self.project / "crush.json").write_text(
            json.dumps({"agents": {"quirky": {"args": ["--yolo"], "env": {"A": "b"}}}})
        )
        daemon, client = await self.open()
        files = daemon.backend.get(client.workspace["id"]).profile.files  # type: ignore[attr-defined]
        files.trust(files.project_files())
        await client.call("POST", "/agent/update")
        (agent,) = (await client.call("GET", "/agents")).json
        self.assertNotIn("--yolo", agent["command"])

    async def test_prompts_cannot_choose_models_for_it(self) -> None:
        _, client = await self.open()
        session = await client.session()
        await self.choose(client, session, "quirky")
        models = {"large": {"provider": "p", "model": "m"}}
        self.assertEqual((await client.try_prompt(session, "say a", models=models)).status, 400)


class KeyTests(unittest.TestCase):
    def setUp(self) -> None:
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.file = folder / "agents" / "key"

    def test_the_key_is_made_once_and_only_its_user_can_read_it(self) -> None:
        key = choices._found_key(self.file)
        self.assertEqual(choices._found_key(self.file), key)
        self.assertEqual(self.file.stat().st_mode & 0o777, 0o600)
        self.assertEqual([each.name for each in self.file.parent.iterdir()], ["key"])

    def test_a_key_that_is_damaged_or_that_others_can_read_is_not_used(self) -> None:
        key = choices._found_key(self.file)
        self.file.chmod(0o640)
        self.assertRaises(ConfigError, choices._found_key, self.file)
        self.file.chmod(0o600)
        for damaged in (b"", key[:-1], key + b"0"):
            self.file.write_bytes(damaged)
            self.assertRaises(ConfigError, choices._found_key, self.file)


class UndoTests(HostedTestCase):
    async def test_what_the_agent_changes_is_undone_with_its_run(self) -> None:
        daemon = await self.host()
        client, session = await self.join(daemon)
        file = daemon.root / "project" / "a.txt"
        file.write_text("before")
        done = await self.ask(client, session, "write a.txt after")
        self.assertEqual(file.read_text(), "after")
        run = f"/runs/{done['run_id']}"
        changes = (await client.call("GET", f"{run}/changes")).json
        self.assertEqual([each["path"] for each in changes["files"]], [str(file.resolve())])
        self.assertEqual((await client.call("POST", f"{run}/undo", {})).status, 200)
        self.assertEqual(file.read_text(), "before")
