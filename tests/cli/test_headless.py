"""`run` and `attach` for scripts: one exit code for each way to end, and what each form of output
holds."""

from __future__ import annotations

import json
from typing import Any

from crushlite.offline.agent import OfflineAgent
from crushlite.settings import Settings
from crushlite.testing import LocalDaemon
from tests.support.cli import CommandCase

SCHEDULED = 8


class HeadlessCase(CommandCase):
    """Commands against a daemon in this process with the offline agent, where nobody attends."""

    agent: Any = None

    async def asyncSetUp(self) -> None:
        agent = self.agent or OfflineAgent(pace=0)
        settings = Settings(unattended=0.0, agent="offline")
        self.daemon = await self.enterAsyncContext(LocalDaemon(agent, settings=settings))
        self.project = self.daemon.root / "project"
        self.host = f"--host=unix://{self.daemon.socket}"

    async def call(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code, standard output and standard error of a command."""
        name, *rest = arguments
        child = await self.start(name, self.host, *rest)
        code, printed = await child.end()
        return code, printed, child.errors


class ExitCodeTests(HeadlessCase):
    async def test_each_way_to_end_has_its_exit_code_and_attach_has_the_same(self) -> None:
        for prompt, limits, code, words in (
            ("hello", (), 0, ""),
            ("/fail on purpose", (), 1, "on purpose"),
            ("/tool rm -rf build\nand on", (), 7, "1 permission was denied"),
            ("/cost 10", ("--max-cost=0.05",), 8, "stopped at max_cost = 0.05 (--max-cost)"),
            ("/steps 3", ("--max-steps=1",), 8, "stopped at max_steps = 1 (--max-steps)"),
            ("/slow 60", ("--timeout=0.05",), 8, "stopped at max_seconds = 0.05 (--timeout)"),
        ):
            with self.subTest(prompt):
                got, printed, errors = await self.call("run", "-q", *limits, prompt)
                self.assertEqual(got, code, errors)
                self.assertIn(words, errors)
                self.assertEqual(errors.count("\n"), 1 if code else 0, errors)
                if code == 7:
                    self.assertIn("You said: and on", printed)  # it went on without it
                run_id = json.loads((await self.call("runs", "--json"))[1])[-1]["run_id"]
                got, again, errors = await self.call("attach", "-q", run_id)
                self.assertEqual((got, again), (code, printed))
                self.assertIn(words, errors)

    async def test_a_canceled_run_is_exit_code_130_for_all_who_follow_it(self) -> None:
        child = await self.start("run", self.host, "/slow 60")
        anna = await self.daemon.join()
        while not (runs := (await anna.call("GET", "/runs?state=active")).json):
            await anna.events.wait_for("message")
        await anna.cancel(runs[0]["session_id"])
        self.assertEqual((await child.end())[0], 130)
        self.assertEqual((await self.call("attach", runs[0]["run_id"]))[0], 130)

    async def test_usage_is_exit_code_2_and_shows_the_usage_of_that_command(self) -> None:
        for wrong in ("--max-cost=0", "--max-steps=1.5", "--timeout=x", "--output=xml", "--bogus"):
            code, printed, errors = await self.call("run", wrong, "hello")
            self.assertEqual((code, printed), (2, ""), wrong)
            self.assertTrue(errors.startswith("usage: crushlite run "), errors)
        for wrong, meant in (
            ("--modle=x", "; did you mean --model?"),
            ("--max-step", "; did you mean --max-steps?"),
            ("--version", ""),
        ):
            errors = (await self.call("run", wrong, "hello"))[2]
            self.assertTrue(errors.endswith(f"unrecognized arguments: {wrong}{meant}\n"), errors)

    async def test_a_model_beside_an_agent_of_its_own_is_refused_with_what_to_do(self) -> None:
        code, printed, errors = await self.call("run", "--model=openai/gpt-5", "hello")
        self.assertEqual((code, printed), (1, ""))
        self.assertIn("openai/gpt-5 cannot be used: the daemon was started with an agent", errors)
        self.assertIn("`crushlite stop`, then ask again", errors)

    async def test_another_agent_than_that_of_the_daemon_is_refused(self) -> None:
        await self.daemon.join()  # so it is in use, and is not replaced
        code, printed, errors = await self.call("run", "--agent=coder", "hello")
        self.assertEqual((code, printed), (2, ""))
        self.assertIn("in use with --agent offline", errors)
        self.assertIn("crushlite stop", errors)
        self.assertEqual((await self.call("run", "--agent=offline", "hello"))[0], 0)

    async def test_a_script_of_scheduled_runs_notices_each_denial(self) -> None:
        """As cron would: one after the other, in a new session each, with nobody there."""
        codes = []
        for number in range(SCHEDULED):
            prompt = f"/tool deploy {number}" if number % 3 else f"report {number}"
            codes.append((await self.call("run", "-q", prompt))[0])
        self.assertEqual(codes, [7 if number % 3 else 0 for number in range(SCHEDULED)])
        kept = json.loads((await self.call("runs", "--json"))[1])
        self.assertEqual([run["denied"] for run in kept], [code // 7 for code in codes])


class NoModelTests(HeadlessCase):
    agent = OfflineAgent(pace=0, why="there is none")

    async def test_without_a_model_nothing_is_asked_and_the_fix_is_told(self) -> None:
        code, printed, errors = await self.call("run", "-q", "hello")
        self.assertEqual((code, printed), (9, ""))
        self.assertIn("no model can answer: there is none.", errors)
        for fix in ("key", "crush.json", "crushlite doctor", "--agent offline"):
            self.assertIn(fix, errors)
        self.assertEqual(json.loads((await self.call("runs", "--json"))[1]), [])

    async def test_the_result_says_so_in_the_forms_for_programs(self) -> None:
        code, printed, _ = await self.call("run", "-q", "--output=json", "hello")
        result = json.loads(printed)
        self.assertEqual((code, result["outcome"], result["exit_code"]), (9, "no_model", 9))
        self.assertIn("there is none", result["error"])


class OutputTests(HeadlessCase):
    PROMPT = "/think about it\n/run echo hi > made.txt\nhello"

    async def printed(self, form: str) -> str:
        code, printed, errors = await self.call(
            "run", "-q", "--yolo", f"--output={form}", self.PROMPT
        )
        self.assertEqual(code, 0, errors)
        return printed

    async def test_text_is_every_answer_and_final_the_last_one(self) -> None:
        text = "I have thought about it.\nIt ended with exit code 0.\nYou said: hello\n"
        self.assertEqual(await self.printed("text"), text)
        self.assertEqual(await self.printed("final"), text.partition("\n")[2])

    async def test_json_is_one_document_with_all_that_a_script_asks_for(self) -> None:
        result = json.loads(await self.printed("json"))
        files = result.pop("files_changed")
        self.assertEqual(files, [{"path": "made.txt", "change": "created"}])
        known = json.loads((await self.call("runs", "--json"))[1])[-1]
        self.assertEqual(
            (result.pop("run"), result.pop("session")), (known["run_id"], known["session_id"])
        )
        tokens = {"prompt": 0, "completion": 0}
        self.assertEqual(
            result,
            {
                "outcome": "completed",
                "exit_code": 0,
                "error": "",
                "limit": "",
                "denied": 0,
                "text": known["text"],
                "cost": 0.0,
                "tokens": tokens,
            },
        )

    async def test_stream_json_ends_with_the_same_document(self) -> None:
        lines = [json.loads(line) for line in (await self.printed("stream-json")).splitlines()]
        self.assertEqual(lines[0]["type"], "accepted")
        self.assertEqual([line["type"] for line in lines[-2:]], ["run_complete", "result"])
        run_id = lines[-1]["payload"]["run"]
        _, again, _ = await self.call("attach", "--output=json", run_id)
        self.assertEqual(json.loads(again), lines[-1]["payload"])

    async def test_a_limit_is_in_the_document_with_what_was_spent(self) -> None:
        code, printed, _ = await self.call(
            "run", "-q", "--output=json", "--max-cost=0.05", "/cost 10"
        )
        result = json.loads(printed)
        self.assertEqual((code, result["outcome"], result["limit"]), (8, "limit", "cost"))
        self.assertEqual(result["error"], "stopped at max_cost = 0.05")
        self.assertEqual((result["cost"], result["tokens"]["prompt"]), (0.1, 1000))

    async def test_tool_calls_leave_a_line_each_on_standard_error(self) -> None:
        _, printed, errors = await self.call("run", "--yolo", "/run echo hi")
        self.assertEqual(printed, "It ended with exit code 0.\n")
        self.assertIn("✓ bash echo hi → hi\n", errors)
