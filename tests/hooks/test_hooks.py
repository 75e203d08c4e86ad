"""Hooks in a daemon: real scripts, the coder with a scripted model, and an agent of one's own."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any

from crushlite.fake_model import End, Say
from crushlite.hooks.part import HooksPart
from crushlite.testing import LocalDaemon
from crushlite.titles.part import TitlesPart
from tests.support.basics import BoundedTestCase
from tests.support.configured import ConfiguredTestCase, marked, new_mark, results, use
from tests.support.prompts import until

if TYPE_CHECKING:
    from pathlib import Path

    from crushlite.agent.base import Turn, Verdict
    from crushlite.testing import Participant


def hook(command: str, matcher: str = "", **more: Any) -> dict[str, Any]:
    return {"command": command, "matcher": matcher, **more}


def says(**value: Any) -> str:
    """A command that writes an object."""
    return f"cat >/dev/null; printf %s '{json.dumps(value)}'"


async def permitted(tool: str, turn: Turn) -> Verdict:
    return await turn.permission(tool, "run")


class HookCase(ConfiguredTestCase):
    async def opened(self, hooks: dict[str, Any], **more: Any) -> tuple[Participant, str, Path]:
        """A workspace whose user has these hooks, with a new session."""
        self.configure(hooks=hooks, **more)
        folder = self.folder(f"work{len(list(self.daemon.root.iterdir()))}")
        client = await self.daemon.join(folder)
        return client, await client.session(), folder

    async def results(self, client: Participant, session: str) -> list[dict[str, Any]]:
        return results(await client.messages(session))


class ToolTests(HookCase):
    async def test_a_denied_tool_does_not_run_and_the_model_reads_why(self) -> None:
        """Exit code 2, whatever is allowed; the turn goes on, and other tools run."""
        guard = hook("cat > seen.json; echo no shell today >&2; exit 2", "^bash$", name="guard")
        client, session, folder = await self.opened(
            {"PreToolUse": [guard]}, permissions={"allowed_tools": ["bash", "write"]}
        )
        self.plan = [
            use("bash", "b1", command="touch made"),
            use("write", "w1", file_path="a.txt", content="x"),
        ]
        await self.turn(client, session, "work", auto_approve=True)
        denied, written = await self.results(client, session)
        self.assertEqual(denied["content"], "bash was not run: no shell today")
        self.assertTrue(denied["is_error"])
        shown = json.loads(denied["metadata"])["hook"]
        self.assertEqual((shown["hook_count"], shown["decision"]), (1, "deny"))
        self.assertEqual(shown["hooks"][0]["name"], "guard")
        self.assertFalse(written["is_error"], written)
        self.assertFalse((folder / "made").exists())
        seen = json.loads((folder / "seen.json").read_text())
        self.assertEqual(seen["hook_event_name"], "PreToolUse")
        self.assertEqual((seen["tool_name"], seen["tool_input"]["command"]), ("bash", "touch made"))
        self.assertEqual((seen["session_id"], seen["tool_use_id"]), (session, "b1"))
        self.assertEqual(seen["cwd"], str(folder.resolve()))

    async def test_what_is_asked_is_what_a_hook_made_of_it_and_that_is_run(self) -> None:
        rewrite = says(updated_input={"command": "touch safe"}, context="remember the milk")
        client, session, folder = await self.opened({"PreToolUse": [hook(rewrite, "bash")]})
        self.plan = [use("bash", command="rm -r build", description="clean")]
        run = await self.prompt(client, session, "work")
        asked = await client.events.wait_for("permission_request")
        self.assertEqual(asked["params"]["command"], "touch safe")
        self.assertEqual(asked["params"]["description"], "clean", "other keys stay")
        calls = (await client.messages(session))[-1]["parts"]
        self.assertIn(
            "touch safe", next(p for p in calls if p["type"] == "tool_call")["data"]["input"]
        )
        await client.grant(asked.payload)
        await self.ended(client, run)
        (result,) = await self.results(client, session)
        self.assertTrue((folder / "safe").exists())
        self.assertIn("remember the milk", result["content"])
        self.assertTrue(json.loads(result["metadata"])["hook"]["input_rewrite"])

    async def test_an_allowed_call_asks_nobody_and_the_next_one_does(self) -> None:
        allow = (
            'case "$CRUSH_TOOL_INPUT_COMMAND" in "touch a") ' + says(decision="allow") + ";; esac"
        )
        client, session, folder = await self.opened({"PreToolUse": [hook(allow, "Bash")]})
        self.plan = [use("bash", command="touch a"), use("bash", command="touch b")]
        run = await self.prompt(client, session, "work")
        asked = await client.events.wait_for("permission_request")
        self.assertEqual(asked["params"]["command"], "touch b")
        self.assertTrue((folder / "a").exists())
        await client.grant(asked.payload, "deny")
        await self.ended(client, run)

    async def test_a_hook_that_cannot_be_run_denies_and_leaves_nothing_behind(self) -> None:
        mark = new_mark()
        for command, words in (
            ("./missing.sh", "could not be run"),
            (f"sleep {mark} & wait", "did not end within"),
            ("kill -9 $$", "killed by signal 9"),
            ("echo '{\"decision\": '", "not JSON"),
        ):
            client, session, _ = await self.opened(
                {"PreToolUse": [hook(command, timeout=0.5)]},
                permissions={"allowed_tools": ["ls"]},
            )
            self.plan = [use("ls", path=".")]
            await self.turn(client, session, "work")
            (result,) = await self.results(client, session)
            with self.subTest(command):
                self.assertTrue(result["is_error"])
                self.assertIn(words, result["content"])
        self.assertEqual(marked(mark), [])

    async def test_a_halt_ends_the_turn(self) -> None:
        client, session, _ = await self.opened({"PreToolUse": [hook("echo stop >&2; exit 49")]})
        self.plan = [use("ls", path="."), [Say("never"), End()]]
        await self.turn(client, session, "work")
        self.assertEqual(len(self.plan), 1, "the model was not asked again")

    async def test_a_halt_of_a_sub_agent_ends_the_turn_that_it_works_for(self) -> None:
        """Else its agent would do itself what the hook has stopped."""
        client, session, _ = await self.opened({"PreToolUse": [hook("exit 49", "^ls$")]})
        self.plan = [use("agent", prompt="look"), use("ls", path="."), [Say("never"), End()]]
        await self.turn(client, session, "work")
        self.assertEqual(len(self.plan), 1, "no model was asked again")
        (result,) = await self.results(client, session)
        self.assertEqual(result["content"], "the sub-agent was stopped by a hook")

    async def test_after_a_tool_a_hook_adds_to_its_result(self) -> None:
        after = hook("echo format it >&2; exit 2", "ls")
        client, session, _ = await self.opened({"PostToolUse": [after]})
        self.plan = [use("ls", path=".")]
        await self.turn(client, session, "work")
        (result,) = await self.results(client, session)
        self.assertTrue(result["content"].endswith("\n\nformat it"))
        self.assertFalse(result["is_error"])


class PromptTests(HookCase):
    async def test_a_refused_prompt_is_on_record_and_no_model_sees_it(self) -> None:
        refuse = hook('grep -q secret && { echo not that >&2; exit 2; }; echo "be brief"')
        client, session, _ = await self.opened({"UserPromptSubmit": [refuse]})
        done = await self.turn(client, session, "my secret")
        self.assertEqual(done["error"], "not that")
        user, answer = await client.messages(session)
        self.assertEqual((user.text, answer.finish), ("my secret", "error"))
        self.assertEqual(self.model.requests, [])
        await self.turn(client, session, "hello")
        texts = json.dumps(self.model.requests[0]["messages"])
        self.assertIn("be brief", texts)
        self.assertNotIn("my secret", texts, "not with a later prompt either")
        self.assertTrue(user["parts"][-1]["data"]["withheld"])
        await self.workspace(client).part(TitlesPart).tasks.end(10)
        self.assertEqual(self.titles.requests, [], "nor for a title")
        title = (await client.call("GET", f"/sessions/{session}")).json["title"]
        self.assertEqual(title, "my secret")

    async def test_a_prompt_that_was_canceled_before_a_hook_was_asked_is_seen_by_no_model(
        self,
    ) -> None:
        wait = hook("grep -q secret && { touch begun; exec sleep 60; }; exit 0")
        client, session, folder = await self.opened({"UserPromptSubmit": [wait]})
        run = await self.prompt(client, session, "my secret")
        queued = await self.prompt(client, session, "my second secret", when_busy="queue")
        await until((folder / "begun").exists, "the hook runs")
        await client.call("POST", f"/agent/sessions/{session}/cancel?wait=10")
        await self.ended(client, run)
        await self.ended(client, queued)
        await self.turn(client, session, "hello")
        (request,) = self.model.requests
        self.assertEqual([m["content"] for m in request["messages"][1:]], ["hello"])
        self.assertEqual(self.titles.requests, [])

    async def test_a_session_starts_once_and_its_stop_can_be_refused(self) -> None:
        stop = "[ -e stopped ] || { touch stopped; echo test it first >&2; exit 2; }"
        client, session, folder = await self.opened(
            {
                "SessionStart": [hook("cat >> started; echo the sky is green")],
                "Stop": [hook(stop)],
                "SessionEnd": [hook("cat > ended")],
                "Notification": [hook("cat > told", "agent_completed")],
            }
        )
        self.plan = [[Say("done"), End()], [Say("tested"), End()]]
        await self.turn(client, session, "one")
        await self.turn(client, session, "two")
        self.assertEqual((folder / "started").read_text().count("hook_event_name"), 1)
        messages = await client.messages(session)
        self.assertEqual(
            [message.text for message in messages][:4], ["one", "done", "test it first", "tested"]
        )
        self.assertIn("the sky is green", json.dumps(self.model.requests[0]["messages"]))
        workspace = self.workspace(client)
        await next(part for part in workspace.parts if isinstance(part, HooksPart)).close()
        self.assertEqual(json.loads((folder / "ended").read_text())["session_id"], session)
        self.assertEqual(
            json.loads((folder / "told").read_text())["notification_type"], "agent_completed"
        )


class OwnAgentTests(BoundedTestCase):
    """An agent that knows nothing of hooks is answered when it asks for a permission."""

    async def test_an_agent_of_ones_own_is_denied_and_answered_by_hooks(self) -> None:
        async with LocalDaemon() as daemon:
            own = daemon.root / "home/.config/crush/crush.json"
            own.parent.mkdir(parents=True)
            answer = {"hookSpecificOutput": {"decision": {"behavior": "allow"}}}
            hooks = {
                "PreToolUse": [
                    hook("exit 2", "^rm$"),
                    hook(says(updated_input={"x": 1}), "^change$"),
                ],
                "PermissionRequest": [hook(says(**answer), "^ls$"), hook("./missing", "^cp$")],
            }
            own.write_text(json.dumps({"hooks": hooks}))
            anna = await daemon.join()
            await anna.prompt(await anna.session(), "hello", auto_approve=True)
            await anna.prompt(await anna.session(), "hello")
            yolo, usual = await daemon.entered(1), await daemon.entered(2)
            for run, tool, granted in (
                (yolo, "rm", False),
                (yolo, "mv", True),
                (usual, "change", False),
                (usual, "ls", True),
            ):
                with self.subTest(tool):
                    verdict = await run.do(functools.partial(permitted, tool))
                    self.assertIs(bool(verdict), granted, verdict)
            asked = usual.begin(lambda turn: turn.permission("cp", "run"))
            request = await anna.events.wait_for("permission_request")
            await anna.grant(request.payload)
            self.assertTrue(await asked, "a hook that fails to answer leaves it to the users")
            yolo.release()
            usual.release()
