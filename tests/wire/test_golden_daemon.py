"""The golden files against what a real daemon sends, byte by byte, over its socket.

Each test names the shapes that it must get; together they get every shape that a daemon sends.
Every value is compared with its file in tests/golden: no key is missing, none is unknown, none that
is left out when empty is empty, and each has its type.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import json
import os
import tempfile
import unittest
from typing import TYPE_CHECKING, Any
from unittest import mock

from crushlite.agent.base import Scope
from crushlite.fake_model import End, Say, Think, Wait
from crushlite.offline.agent import OfflineAgent
from crushlite.protocol.codec import encode
from crushlite.protocol.permissions import PermissionOption
from crushlite.protocol.questions import Question
from crushlite.testing import LocalDaemon
from tests.support.basics import BoundedTestCase
from tests.support.configured import ConfiguredTestCase, use
from tests.support.golden import Goldens, exact
from tests.support.mcp_server import scripted
from tests.support.routes import TABLE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from crushlite.testing import EventReader, Participant


def sends(*shapes: str) -> Callable[[Any], Any]:
    """Mark a test with the shapes that it must get from the daemon and check."""

    def decorate(method: Callable[[Any], Awaitable[None]]) -> Any:
        @functools.wraps(method)
        async def checked(self: Any) -> None:
            await method(self)
            self.assertEqual(set(shapes) - self.goldens.seen, set(), "never came")

        checked.__dict__["shapes"] = shapes
        return checked

    return decorate


class Checks:
    """Compares what a daemon sent with the files."""

    goldens: Goldens

    def check(self, kind: Any, value: Any) -> None:
        flaws = self.goldens.flaws(kind, value)
        if flaws:
            raise AssertionError(f"{flaws}\nin {json.dumps(value)}")

    def check_message(self, message: dict[str, Any]) -> None:
        kinds = [part["type"] for part in message["parts"]]
        shell = message["role"] == "user" and "shell_command" in kinds
        self.check("message_shell" if shell else f"message_{message['role']}", message)

    def check_permission(self, request: dict[str, Any]) -> None:
        own = f"permission_{request['tool_name']}"
        self.check(own if own in self.goldens.shapes else "permission_request", request)

    def check_stream(self, reader: EventReader, *, ids: bool = False) -> None:
        """Check every byte of a stream: frames of one `data:` line, with an id line if `ids`."""
        *frames, _ = bytes(reader.raw).split(b"\n\n")  # the last one may be incomplete
        for frame in frames:
            lines = frame.decode("ascii").split("\n")
            data = [line for line in lines if not (ids and line.startswith("id: "))]
            if ids and not data:
                continue  # such a stream begins with an id alone
            if len(data) != 1 or not data[0].startswith("data: "):
                raise AssertionError(f"this is no frame: {frame!r}")
            self.check_event(json.loads(data[0].removeprefix("data: ")))

    def check_event(self, event: dict[str, Any]) -> None:
        self.check(f"event_{event['type']}", event)
        payload = event["payload"].get("payload", {})
        if event["type"] == "message":
            self.check_message(payload)
        elif event["type"] == "permission_request":
            self.check_permission(payload)
        elif event["type"] == "session":
            told = (payload["is_busy"], payload["attached_clients"])
            if told != (False, 0):
                raise AssertionError(f"stale on arrival: {event}")

    async def check_routes(self, who: Participant, session: str, run_id: str) -> None:
        """Send every GET request to the workspace and check the answers."""
        provider = next(iter(who.workspace["config"]["providers"]))
        query = {
            "lastread": f"?session_id={session}&path=/x",
            "default-small-model": f"?provider_id={provider}",
            "auth-url": "?name=gh",
            "health": "?verbose=1",
        }
        answers = self.goldens.answers
        for route in (*answers["shapes"], *answers["empty"]):
            target = route.replace("W", who.base, 1).replace("{sid}", session)
            target = target.replace("{run_id}", run_id) + query.get(route.rpartition("/")[2], "")
            answer = await who.daemon.call("GET", target)
            if answer.status != 200:
                raise AssertionError(f"{route} was answered {answer}")
            if route in answers["empty"]:
                if answer.json != answers["empty"][route]:
                    raise AssertionError(f"{route} is not empty: {answer.json}")
                continue
            self.check(answers["shapes"][route], answer.json)
            if route.endswith(("/messages", "/messages/user")):
                for message in answer.json:
                    self.check_message(message)


# The shapes of request bodies, by their path below a workspace.
BODIES = {
    "/agent": "prompt",
    "/agent/init": "agent_init",
    "/agent/sessions/{sid}/shell": "shell_command",
    "/current-session?client_id={client}": "current_session",
    "/filetracker/read": "file_read",
    "/mcp/read-resource": "mcp_server",
    "/permissions/grant": "permission_grant",
    "/permissions/skip": "permission_skip",
    "/questions/answer": "question_answer",
}
PNG = {"content": base64.b64encode(b"\x89PNG").decode(), "file_path": "/x/a.png"}
ATTACHED = [{**PNG, "file_name": "a.png", "mime_type": "image/png"}]


class OfflineShapes(Checks, BoundedTestCase):
    """A daemon with the offline agent, whose prompts can produce almost every shape."""

    async def asyncSetUp(self) -> None:
        self.goldens = Goldens()
        self.daemon = await self.enterAsyncContext(LocalDaemon(OfflineAgent(pace=0)))
        self.anna = await self.daemon.join(env=["HOME=/home/kim", "PATH=/usr/bin:/bin"])
        self.session = await self.anna.session()

    @sends("workspace", "config", "provider_config", "model", "selected_model", "agent_info")
    async def test_what_a_client_gets_when_it_opens_a_workspace(self) -> None:
        self.check("workspace", self.anna.workspace)
        every = await self.daemon.create(
            self.daemon.root / "every", yolo=True, debug=True, data_dir="data", channels=["a"]
        )
        self.check("workspace", every.workspace)
        for key in ("yolo", "debug", "data_dir", "channels"):
            self.assertIn(key, every.workspace)
        self.assertEqual(self.anna.workspace["env"], ["HOME=/home/kim", "PATH=/usr/bin:/bin"])
        ready = (await self.anna.call("GET", "/agent")).json
        self.check("agent_info", ready)
        self.assertTrue(ready["is_ready"])

    @sends("agent_info", "config", "workspace")
    async def test_a_workspace_without_an_agent_has_the_same_shapes(self) -> None:
        def nobody(path: Path, env: Any, config: Any) -> None:
            return None

        daemon = await self.enterAsyncContext(LocalDaemon(nobody))
        bare = await daemon.join()
        self.check("workspace", bare.workspace)
        answer = (await bare.call("GET", "/agent")).json
        self.check("agent_info", answer)
        self.assertEqual(answer, self.goldens.shapes["agent_info"]["examples"]["not ready"])

    @sends(
        *("event_session", "event_message", "event_permission_request", "event_run_complete"),
        *("event_permission_notification", "event_question_batch_request", "event_agent_event"),
        *("event_question_batch_notification", "session", "todo", "message", "message_user"),
        *("message_assistant", "message_tool", "part_text", "part_reasoning", "part_binary"),
        *("part_tool_call", "part_tool_result", "part_finish", "permission_bash", "run_complete"),
        *("permission_notification", "question_batch", "question", "choice", "agent_event"),
        *("question_notification", "accepted", "resolution", "queued_prompt", "run_info"),
        *("agent_session", "permission_request", "permission_skip", "version", "health"),
        "health_check",
    )
    async def test_a_turn_with_everything_in_it(self) -> None:
        prompt = "/think hm\n/todo look, act\n/tool touch x\n/ask Sure?\nbye"
        posted = await self.anna.prompt(self.session, prompt, attachments=ATTACHED)
        self.check("accepted", posted.json)
        run_id = posted.json["run_id"]
        self.assertEqual(posted.headers.get("Location"), f"{self.anna.base}/runs/{run_id}")
        request = (await self.anna.events.wait_for("permission_request")).payload
        queued = await self.anna.prompt(self.session, "and then this", run_id="r2")
        self.check("accepted", queued.json)
        await self.check_routes(self.anna, self.session, run_id)
        grant = {"permission": request, "action": "allow"}
        for resolved in (True, False):
            answer = await self.anna.call("POST", "/permissions/grant", grant)
            self.check("resolution", answer.json)
            self.assertIs(answer.json["resolved"], resolved)
        batch = (await self.anna.events.wait_for("question_batch_request")).payload
        await self.check_routes(self.anna, self.session, run_id)
        chosen = {"request_id": batch["questions"][0]["id"], "selected_ids": ["yes"]}
        body = {"batch_request_id": "", "responses": [chosen]}
        answer = await self.anna.call("POST", "/questions/answer", body)
        self.check("resolution", answer.json)
        await self.anna.events.wait_for("run_complete", run_id="r2")
        await self.check_routes(self.anna, self.session, "r2")
        self.check_stream(self.anna.events)

    @sends("shell_answer", "message_shell", "part_shell_command", "event_message", "session")
    async def test_a_shell_command_and_the_life_of_a_session(self) -> None:
        ran = await self.anna.call(
            "POST", f"/agent/sessions/{self.session}/shell", {"command": "false"}
        )
        self.check("shell_answer", ran.json)
        await self.check_routes(self.anna, self.session, (await self.ended("bye")))
        renamed = await self.anna.call("PUT", f"/sessions/{self.session}", {"title": "Better"})
        self.check("session", renamed.json)
        await self.anna.call("DELETE", f"/sessions/{self.session}")
        await self.anna.events.wait_for("session", action="deleted")
        self.check_stream(self.anna.events)
        actions = {event.action for event in self.anna.events.all("session")}
        self.assertEqual(actions, {"created", "updated", "deleted"})

    async def ended(self, prompt: str, **fields: Any) -> str:
        """Run a prompt to its end and return its run id."""
        run_id = str((await self.anna.prompt(self.session, prompt, **fields)).json["run_id"])
        await self.anna.events.wait_for("run_complete", run_id=run_id)
        return run_id

    @sends("event_run_complete", "event_agent_event", "part_finish", "run_info")
    async def test_a_failed_turn(self) -> None:
        run_id = await self.ended("/fail no paper")
        self.check_stream(self.anna.events)
        [done] = self.anna.events.all("run_complete")
        self.assertEqual(done.payload.keys(), {"session_id", "message_id", "run_id", "error"})
        [event] = self.anna.events.all("agent_event")
        self.assertEqual(event.payload.keys(), {"type", "session_id", "run_id", "error"})
        self.assertEqual(event["type"], "error")
        await self.check_routes(self.anna, self.session, run_id)
        finish = (await self.anna.messages(self.session))[-1]["parts"][-1]["data"]
        self.assertEqual(finish.keys(), {"reason", "time", "message", "details"})

    @sends("cancel_receipt", "canceled_run", "event_run_complete", "run_info")
    async def test_a_canceled_turn_and_a_cleared_prompt(self) -> None:
        await self.anna.prompt(self.session, "/tool x", run_id="r1")
        await self.anna.events.wait_for("permission_request")
        await self.anna.prompt(self.session, "cleared", run_id="r2")
        base = f"/agent/sessions/{self.session}"
        self.assertEqual((await self.anna.call("POST", f"{base}/prompts/clear")).json, None)
        for wait in ("?wait=10", ""):
            receipt = await self.anna.call("POST", f"{base}/cancel{wait}")
            self.check("cancel_receipt", receipt.json)
        await self.anna.events.wait_for("run_complete", run_id="r1")
        self.check_stream(self.anna.events)
        await self.check_routes(self.anna, self.session, "r1")
        done = {event["run_id"]: event.payload for event in self.anna.events.all("run_complete")}
        self.assertEqual(
            {run: end["cancelled"] for run, end in done.items()}, {"r1": True, "r2": True}
        )
        self.assertEqual(done["r2"]["message_id"], "")
        self.assertEqual(self.anna.events.all("agent_event"), [])

    @sends("changed_run", "file_change", "run_changes", "undo_answer", "event_file", "space")
    async def test_a_run_that_changed_files_and_is_undone(self) -> None:
        async with LocalDaemon() as daemon:
            bert = await daemon.join()
            session = await bert.session()
            run_id = (await bert.prompt(session, "hello")).json["run_id"]
            run = await daemon.entered(1)
            path = daemon.root / "project/a.py"
            path.write_text("two")
            await run.do(lambda turn: turn.file_changed(str(path), "one", "two"))
            await run.do(lambda turn: turn.file_changed("/elsewhere/a.py", "one", "two"))
            run.release()
            await bert.events.wait_for("run_complete", run_id=run_id)
            for dry in (True, False):
                body = {"dry_run": dry, "partial": True}
                answer = await bert.call("POST", f"/runs/{run_id}/undo", body)
                self.check("undo_answer", answer.json)
                self.check("[file_change]", answer.json["kept"])
            await self.check_routes(bert, session, run_id)
            self.check("space", (await bert.call("POST", "/compact")).json)
            self.check_stream(bert.events)

    @sends("offered_agent", "session_agent", "permission_option")
    async def test_agents_of_other_makers_and_their_own_answers(self) -> None:
        async with LocalDaemon() as daemon:
            file = daemon.root / "home/.config/crush/crush.json"
            file.parent.mkdir(parents=True)
            file.write_text(json.dumps({"agents": {"other": {"command": "cat"}}}))
            bert = await daemon.join()
            session = await bert.session()
            self.check("[offered_agent]", (await bert.call("GET", "/agents")).json)
            chosen = await bert.call("PUT", f"/sessions/{session}/agent", {"agent": "other"})
            self.check("session_agent", chosen.json)
            await bert.call("PUT", f"/sessions/{session}/agent", {"agent": "default"})
            run_id = (await bert.prompt(session, "hello")).json["run_id"]
            run = await daemon.entered(1)
            options = [PermissionOption("one", "Allow once", "allow_once")]
            asking = run.do(lambda turn: turn.permission("x", "y", options=options))
            asked = asyncio.ensure_future(asking)
            request = await bert.events.wait_for("permission_request")
            self.check("[permission_option]", request["options"])
            await self.check_routes(bert, session, run_id)
            await bert.grant(request.payload)
            await asked
            run.release()
            await bert.events.wait_for("run_complete", run_id=run_id)
            self.check_stream(bert.events)

    @sends(
        *("skill_info", "skill_content", "skill_summary", "skill_state", "skills_event"),
        *("event_skills_event", "command_info", "command_argument", "expanded_command"),
    )
    async def test_skills_and_commands(self) -> None:
        home, kim = self.daemon.root / "home", await self.daemon.join(self.daemon.root / "kim")
        for path, text in (
            (".claude/skills/pdf/SKILL.md", "---\nname: other\ndescription: d\n---\nbody"),
            (".claude/skills/broken/SKILL.md", "no front matter"),
            (".crush/commands/review.md", "Review $BRANCH, $ARGUMENTS"),
        ):
            (home / path).parent.mkdir(parents=True)
            (home / path).write_text(text)
        skills = (await kim.call("GET", "/skills")).json
        self.check("[skill_info]", skills)
        read = await kim.call("POST", "/skills/read", {"skill_id": skills[0]["id"]})
        self.check("skill_content", read.json)
        self.check("[command_info]", (await kim.call("GET", "/commands")).json)
        body = {"command": "review", "arguments": {"BRANCH": "main"}}
        self.check("expanded_command", (await kim.call("POST", "/commands/expand", body)).json)
        await kim.events.wait_for("skills_event")
        self.check_stream(kim.events)

    @sends("web_address", "web_token", "web_tab", "web_challenge")
    async def test_the_way_in_for_a_browser(self) -> None:
        folder = self.enterContext(tempfile.TemporaryDirectory(prefix="crushlite-"))
        self.enterContext(mock.patch.dict(os.environ, {"XDG_RUNTIME_DIR": folder}))
        async with LocalDaemon(OfflineAgent(pace=0), tcp=True) as daemon:
            address = await daemon.call("POST", "/v1/web", {"port": daemon.port})
            self.check("web_address", address.json)
            body = {"code": address.json["code"]}
            http = daemon.connect(tcp=True)
            token = await daemon.call("POST", "/v1/web/token", body, http=http)
            self.check("web_token", token.json)
            http = daemon.connect(tcp=True, token=token.json["token"])
            tab = await daemon.call("POST", "/v1/web/tab", http=http)
            self.check("web_tab", tab.json)
            hello = {"id": tab.json["id"], "nonce": "n" * 22}
            challenge = await daemon.call("POST", "/v1/web/hello", hello, http=http)
            self.check("web_challenge", challenge.json)

    async def test_what_clients_send_is_taken_as_they_send_it(self) -> None:
        own = {"{sid}": self.session, "{client}": self.anna.id}
        session = self.goldens.shapes["session"]["examples"]["with to-dos"]["id"]
        run = self.goldens.shapes["prompt"]["examples"]["with every key"]["run_id"]
        for route, shape in BODIES.items():
            for title, example in self.goldens.shapes[shape]["examples"].items():
                with self.subTest(shape, title=title):
                    body = json.dumps(example).replace(session, self.session).replace(run, title)
                    target = functools.reduce(
                        lambda t, name: t.replace(name, own[name]), own, route
                    )
                    answer = await self.anna.call("POST", target, body.encode())
                    self.assertIn(answer.status, (200, 202), answer)
        for title, example in self.goldens.shapes["workspace_request"]["examples"].items():
            with self.subTest("workspace_request", title=title):
                text = json.dumps(example).replace("/home/kim", str(self.daemon.root / "kim"))
                answer = await self.daemon.call("POST", "/v1/workspaces", text.encode())
                self.assertEqual(answer.status, 200 if "client_id" in example else 400, answer)

    @sends("error")
    async def test_every_refusal_is_an_object_with_a_message_and_a_code(self) -> None:
        session = f"/sessions/{self.session}"
        for method, path, body, status in (
            ("GET", "/v1/nothing", None, 404),
            ("PATCH", "/v1/version", None, 405),
            ("GET", "/v1/workspaces/unknown", None, 404),
            ("POST", "/v1/workspaces", {"path": "/x", "client_id": "x"}, 400),
            ("POST", "/v1/workspaces", b"{", 400),
            ("POST", "/v1/control", {"command": "shutdown"}, 409),
            ("GET", f"{self.anna.base}/sessions/unknown", None, 404),
            ("GET", f"{self.anna.base}/runs/unknown", None, 404),
            ("GET", f"{self.anna.base}/lsps/x/diagnostics", None, 404),
            ("PUT", self.anna.base + session, {"title": 1}, 400),
            ("POST", self.anna.base + "/agent", {"session_id": self.session}, 400),
            ("POST", self.anna.base + "/permissions/unknown", {"action": "allow"}, 404),
        ):
            with self.subTest(method=method, path=path):
                answer = await self.daemon.call(method, path, body)
                self.assertEqual(answer.status, status)
                self.check("error", answer.json)


class ScriptedShapes(Checks, BoundedTestCase):
    """A daemon with a scripted agent, for shapes that depend on the moment."""

    async def asyncSetUp(self) -> None:
        self.goldens = Goldens()
        self.daemon = await self.enterAsyncContext(LocalDaemon())
        self.anna = await self.daemon.join()
        self.session = await self.anna.session()
        await self.anna.prompt(self.session, run_id="r1")
        self.run_ = await self.daemon.entered()

    async def end(self) -> None:
        self.run_.release()
        await self.anna.events.wait_for("run_complete", run_id="r1")

    async def ask(self, question: Question, **reply: Any) -> None:
        asked = self.run_.begin(lambda turn: turn.ask([question]))
        batch = await self.anna.events.wait_for("question_batch_request")
        self.check("[question_batch]", (await self.anna.call("GET", "/questions")).json)
        response = {"request_id": batch["questions"][0]["id"], **reply}
        answer = await self.anna.call("POST", "/questions/answer", {"responses": [response]})
        self.assertEqual(answer.json, {"resolved": True, "by": ""})
        [given] = await asked
        self.assertEqual(encode(given), response)

    @sends("event_run_complete", "message_user")
    async def test_a_folded_prompt_names_its_carrier(self) -> None:
        await self.anna.prompt(self.session, "meanwhile", run_id="r2", when_busy="steer")
        await self.run_.do(lambda turn: turn.followups())
        await self.end()
        folded = await self.anna.events.wait_for("run_complete", run_id="r2")
        self.assertEqual(folded["folded_into"], "r1")
        self.check_stream(self.anna.events)

    @sends("permission_rule", "event_permission_request")
    async def test_what_was_allowed_beyond_a_single_request_is_listed(self) -> None:
        scope = Scope(("this",), "this very command", ("starts",), "commands that start with it")
        asked = self.run_.begin(lambda turn: turn.permission("deploy", "run", scope=scope))
        request = await self.anna.events.wait_for("permission_request")
        await self.anna.grant(request.payload, "allow_rule")
        self.assertTrue(await asked)
        rules = await self.anna.call("GET", "/permissions/rules")
        self.check("[permission_rule]", rules.json)
        self.assertEqual([rule["words"] for rule in rules.json], ["commands that start with it"])
        await self.end()
        self.check_stream(self.anna.events)

    @sends("part_tool_result", "part_tool_call", "permission_request", "question_batch")
    async def test_an_agent_of_ones_own_with_every_key_that_is_seldom_there(self) -> None:
        await self.run_.do(lambda turn: turn.tool_call("deploy", '{"to":', id="t1", finished=False))
        asked = self.run_.begin(
            lambda turn: turn.permission("deploy", "run", params={"to": "x"}, tool_call_id="t1")
        )
        request = await self.anna.events.wait_for("permission_request")
        self.assertIsInstance(request["params"], dict)
        await self.anna.grant(request.payload, "deny")
        self.assertFalse(await asked)
        bare = self.run_.begin(lambda turn: turn.permission("deploy", "run"))
        request = await self.anna.events.wait_for("permission_request")
        self.assertEqual(request["params"], {})
        await self.anna.grant(request.payload)
        self.assertTrue(await bare)
        await self.run_.do(
            lambda turn: turn.tool_result("t1", "", True, {"k": 1}, "Zm9vCg==", "image/png")
        )
        await self.ask(Question(type="yes_no", question="Sure?", description="d"), yes=False)
        await self.ask(
            Question(type="free_text", question="Why?", description="d"), fill_in_text="so"
        )
        await self.end()
        self.check_stream(self.anna.events)
        calls = [
            part["data"].keys()
            for event in self.anna.events.all("message", role="assistant")
            for part in event["parts"]
            if part["type"] == "tool_call"
        ]
        self.assertIn({"id", "name", "input"}, calls)
        self.assertEqual(calls[-1], {"id", "name", "input", "finished"})
        [tool] = self.anna.events.all("message", role="tool")
        keys = {"tool_call_id", "name", "content", "metadata", "is_error", "data", "mime_type"}
        self.assertEqual(tool["parts"][0]["data"].keys(), keys)


# Calls for which each tool asks for a permission; `{root}` is the daemon's folder.
CALLS: dict[str, dict[str, Any]] = {
    "bash": {"command": "make check", "description": "run checks"},
    "write": {"file_path": "new.txt", "content": "one\n"},
    "edit": {"file_path": "old.txt", "old_string": "one", "new_string": "two"},
    "multiedit": {
        "file_path": "old.txt",
        "edits": [{"old_string": "one", "new_string": "two"}],
    },
    "view": {"file_path": "{root}/outside/a.txt"},
    "ls": {"path": "{root}/outside"},
    "fetch": {"url": "http://127.0.0.1:9/", "format": "text", "timeout": 20},
}


MUTATIONS = {
    "/config/set": "config_set",
    "/config/compact": "config_compact",
    "/config/model": "config_model",
    "/config/provider-key": "config_provider_key",
    "/config/remove": "config_remove",
}


class CoderShapes(Checks, ConfiguredTestCase):
    """The coder with its tools, files, and a configuration with providers."""

    described = {"context_window": 200_000, "cost_per_1m_in": 1.5}

    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        self.goldens = Goldens()
        self.anna = await self.join()
        self.session = await self.anna.session()

    @sends("workspace", "provider_config", "agent_info", "config")
    async def test_a_configured_workspace(self) -> None:
        options = {"debug": False, "disabled_tools": ["ls"], "tui": {"compact_mode": True}}
        recent = {"large": [{"model": "fake-large", "provider": "works"}]}
        self.configure(options=options, recent_models=recent, tools={"ls": {"max_depth": 2}})
        ben = await self.join(self.folder("other"))
        self.check("workspace", ben.workspace)
        config = ben.workspace["config"]
        self.assertLessEqual({"recent_models", "tools"}, config.keys())
        self.assertIs(config["options"]["debug"], False)
        self.assertEqual(config["providers"].keys(), {"works", "titles"})
        self.check("agent_info", (await ben.call("GET", "/agent")).json)

    @sends("config_changed", "event_config_changed", "config_imported", "config", "workspace")
    async def test_each_change_of_the_configuration_is_taken_as_clients_send_it(self) -> None:
        ours = {'"bench"': '"works"', '"toy-7b"': '"fake-large"'}
        for route, shape in MUTATIONS.items():
            for title, example in self.goldens.shapes[shape]["examples"].items():
                text = json.dumps(example)
                for old, new in ours.items():
                    text = text.replace(old, new)
                with self.subTest(shape, title=title):
                    answer = await self.anna.call("POST", route, json.loads(text))
                    self.assertEqual((answer.status, answer.json), (200, None))
                    await self.anna.events.wait_for("config_changed")
                    self.check("workspace", (await self.anna.call("GET", "")).json)
        imported = await self.anna.call("POST", "/config/import-copilot")
        self.check("config_imported", imported.json)
        self.check_stream(self.anna.events)

    @sends(*(f"permission_{tool}" for tool in CALLS), "event_permission_request")
    async def test_each_tool_asks_in_its_own_shape(self) -> None:
        (self.project / "old.txt").write_text("one\n")
        outside = self.folder("outside") / "a.txt"
        outside.write_text("x\n")
        self.plan = [use("view", file_path="old.txt"), [Say("seen"), End()]]
        await self.turn(self.anna, self.session, "look")
        for tool, call in CALLS.items():
            with self.subTest(tool):
                text = json.dumps(call).replace("{root}", str(self.daemon.root))
                self.plan = [use(tool, **json.loads(text))]
                run_id = await self.prompt(self.anna, self.session, tool)
                request = await self.anna.events.wait_for("permission_request")
                self.assertEqual(request["tool_name"], tool)
                await self.anna.grant(request.payload, "deny")
                await self.ended(self.anna, run_id)
        self.check_stream(self.anna.events)

    @sends("event_file", "file", "message_tool", "part_reasoning", "session", "event_agent_event")
    async def test_a_turn_that_changes_a_file(self) -> None:
        await self.anna.call("POST", "/permissions/skip", {"skip": True})
        self.plan = [
            [Think("Look."), *use("write", file_path="a.txt", content="one\n")],
            use("edit", file_path="a.txt", old_string="one", new_string="two"),
            [Say("done"), End(usage=(1000, 7))],
        ]
        run_id = await self.prompt(self.anna, self.session, "go")
        await self.ended(self.anna, run_id)
        await self.check_routes(self.anna, self.session, run_id)
        self.check_stream(self.anna.events)
        history = (await self.anna.call("GET", f"/sessions/{self.session}/history")).json
        self.assertEqual([file["content"] for file in history], ["", "one\n", "two\n"])
        told = [event.payload for event in self.anna.events.all("file")]
        self.assertEqual(sorted(map(exact, told)), sorted(map(exact, history)))

    @sends("message", "session", "event_message")
    async def test_a_summary_is_flagged_and_its_session_points_to_it(self) -> None:
        await self.turn(self.anna, self.session, "hello")
        await self.anna.call("POST", f"/agent/sessions/{self.session}/summarize")
        summary = (await self.anna.messages(self.session))[-1]
        self.check("message", summary.payload)
        self.assertIs(summary["is_summary_message"], True)
        known = await self.session_of(self.anna, self.session)
        self.assertEqual(known["summary_message_id"], summary["id"])
        await self.settle(self.anna)
        self.check_stream(self.anna.events)

    @sends("lsp_client_info", "lsp_event", "event_lsp_event")
    async def test_language_servers_are_listed_and_their_states_are_published(self) -> None:
        self.configure(lsp={"toy": {"command": "no-such-server", "filetypes": ["toy"]}})
        folder = self.folder("toys")
        (folder / "a.toy").write_text("x\n")
        ben = await self.join(folder)
        await ben.call("POST", "/lsps/start", {"path": str(folder / "a.toy")})
        await ben.events.wait_for("lsp_event", state=3)
        self.check("lsp_client_info", (await ben.call("GET", "/lsps")).json["toy"])
        self.check_stream(ben.events)

    @sends(
        *("mcp_state", "mcp_event", "event_mcp_event", "mcp_prompt", "mcp_prompt_argument"),
        "used_servers",
    )
    async def test_tool_servers_are_listed_and_their_states_are_published(self) -> None:
        ben = await self.join(self.folder("toys"))
        for name, server, state in (
            ("toy", scripted("odd"), "connected"),
            ("broken", scripted("exit=4"), "error"),
        ):
            body = {"scope": 0, "key": f"mcp.{name}", "value": server}
            self.assertEqual((await ben.call("POST", "/config/set", body)).status, 200)
            await ben.events.wait_for("mcp_event", name=name, state=state)
        self.check("{mcp_state}", (await ben.call("GET", "/mcp/states")).json)
        prompts = (await ben.call("GET", "/mcp/prompts")).json
        self.check("[mcp_prompt]", prompts)
        self.assertEqual([len(prompt["arguments"]) for prompt in prompts], [1])
        taken = {"servers": [{"name": "toy", **scripted()}]}
        self.check("used_servers", (await ben.call("POST", "/mcp/servers", taken)).json)
        self.check_stream(ben.events)

    @sends("event_tool_output", "tool_output", "event_resync", "resync")
    async def test_a_stream_with_ids_has_two_kinds_more(self) -> None:
        await self.anna.call("POST", "/permissions/skip", {"skip": True})
        ben = await self.daemon.create(env=self.env)
        await ben.attach(last_id="nonsense")
        await ben.events.wait_for("resync")
        self.plan = [use("bash", command="echo so far; sleep 600", description="")]
        await self.prompt(ben, self.session, "go")
        await ben.events.wait_for("tool_output", output="so far\n")
        await ben.cancel(self.session, wait=10)
        await self.settle(ben, self.anna)
        self.check_stream(ben.events, ids=True)
        self.check_stream(self.anna.events)
        self.assertEqual(self.anna.events.all("tool_output"), [], "the base stream has none")

    @sends("event_message_delta", "message_delta")
    async def test_a_stream_with_deltas_has_one_kind_more(self) -> None:
        ben = await self.daemon.create(env=self.env)
        await ben.attach(resume=True, deltas=True)
        self.plan = [[Say("on"), Say(" and on"), Wait(600)]]
        await self.prompt(ben, self.session, "go")
        delta = await ben.events.wait_for("message_delta")
        whole = next(e for e in ben.events.all("message") if e["id"] == delta["message_id"])
        self.assertEqual((delta["part"], whole["role"]), (0, "assistant"))
        await ben.cancel(self.session, wait=10)
        await self.settle(ben, self.anna)
        self.check_stream(ben.events, ids=True)
        self.check_stream(self.anna.events)
        self.assertEqual(self.anna.events.all("message_delta"), [], "the base stream has none")


# Streams, files and documents, which have tests of their own; and one that is always 404.
ELSEWHERE = {
    *("/", "/console/{file}", "/v1/openapi.json", "/v1/metrics"),
    *("/v1/workspaces/{id}/events", "/v1/workspaces/{id}/lsps/{name}/diagnostics"),
}


class CompletenessTests(unittest.TestCase):
    def test_every_shape_that_the_daemon_sends_was_got_from_one(self) -> None:
        cases = (OfflineShapes, ScriptedShapes, CoderShapes)
        methods = [method for case in cases for method in vars(case).values()]
        got = {shape for method in methods for shape in getattr(method, "shapes", ())}
        sent = {name for name, golden in Goldens().shapes.items() if golden["sent_by"] == "daemon"}
        self.assertEqual(sent - got, set(), "no test gets these from a daemon")

    def test_every_get_route_is_asked_and_checked(self) -> None:
        known = {entry.pattern for entry in TABLE if entry.method == "GET"}
        routes = {*Goldens().answers["shapes"], *Goldens().answers["empty"]}
        asked = {route.replace("W", "/v1/workspaces/{id}", 1) for route in routes}
        self.assertEqual(asked - known, set())
        self.assertEqual(known - asked, ELSEWHERE)
