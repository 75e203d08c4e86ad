"""Commands about what goes on: `ps`, `watch`, `sessions`, `cancel`, `grant`."""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import signal
from typing import TYPE_CHECKING, Any
from unittest import mock

from crushlite.agent.base import Scope
from crushlite.cli import COMMANDS
from crushlite.cli.grant import _answer
from crushlite.protocol.permissions import PermissionRequest, Resolution
from crushlite.version import __version__
from tests.support.cli import CommandCase, Relay, ScriptedCase

if TYPE_CHECKING:
    from crushlite.testing import Participant
    from crushlite.testing.scripted import ScriptedRun

MINE = {
    *("chat", "ps", "watch", "sessions", "cancel", "grant", "config", "doctor", "logs", "stop"),
    *("permissions", "serve"),
}


class Case(ScriptedCase):
    """A daemon in this process, and commands that use it."""

    async def call(self, *arguments: str) -> tuple[int, str, str]:
        """Call a command; returns its exit code, standard output and standard error."""
        child = await self.start(arguments[0], self.host, *arguments[1:])
        code, printed = await child.end()
        return code, printed, child.errors

    async def json(self, *arguments: str) -> Any:
        code, printed, errors = await self.call(*arguments, "--json")
        self.assertEqual(code, 0, errors)
        return json.loads(printed)

    async def at_work(self, prompt: str = "hello") -> tuple[Participant, str, ScriptedRun]:
        """A client, its session, and a run of it inside the agent."""
        anna = await self.daemon.join()
        session = await anna.session("the parser")
        await anna.prompt(session, prompt)
        return anna, session, await self.daemon.entered(len(self.daemon.agent.runs) or 1)


class EmptyArgumentTests(CommandCase):
    async def test_a_variable_that_is_not_set_does_not_mean_what_leaving_it_out_means(self) -> None:
        for line in (
            ("undo", "", "--yes"),
            ("cancel", ""),
            ("grant", ""),
            ("attach", ""),
            ("trust", "", "--yes"),
            ("sessions", "delete", "", "--yes"),
            ("permissions", "remove", ""),
            ("runs", "--session", ""),
            ("watch", "--session", ""),
            ("chat", "--session", ""),
            ("run", "--session", "", "hello"),
            ("run", "--model", "", "hello"),
            ("run", "--command", "", "hello"),
            ("ps", "--cwd", ""),
            ("ps", "--host", ""),
        ):
            with self.subTest(line):
                child = await self.start(*line)
                code, printed = await child.end()
                self.assertEqual((code, printed), (2, ""))
                self.assertIn("it is empty: is a variable not set?", child.errors)
        self.assertFalse(self.socket.exists())


class HelpTests(CommandCase):
    async def test_every_command_explains_itself_with_an_example(self) -> None:
        names = {command.name for command in COMMANDS}
        self.assertLessEqual(MINE, names)
        for name in sorted(MINE):
            code, printed = await (await self.start(name, "--help")).end()
            with self.subTest(name):
                self.assertEqual(code, 0)
                self.assertIn(f"examples:\n  crushlite {name}", printed)

    async def test_without_a_daemon_commands_say_so(self) -> None:
        expected = (
            ("ps", 1, "no daemon at"),
            ("cancel", 1, "nothing is running"),
            ("grant", 1, "nobody asks for anything"),
            ("stop", 0, "no daemon at"),
            ("logs", 1, "no log at"),
        )
        ended = await asyncio.gather(*(self.run_process(name) for name, _, _ in expected))
        for (name, code, words), (found, printed, errors) in zip(expected, ended, strict=True):
            with self.subTest(name):
                self.assertEqual((found, words in printed + errors), (code, True))
        self.assertFalse(self.socket.exists())


class PsTests(Case):
    async def test_it_shows_who_works_where(self) -> None:
        anna, session, run = await self.at_work()
        await anna.prompt(session, "next", when_busy="queue")
        run.begin(lambda turn: turn.permission("bash", "execute"))
        await anna.events.wait_for("permission_request")
        code, printed, _ = await self.call("ps")
        self.assertEqual(code, 0)
        self.assertIn(f"crushlite-{__version__} at unix://{self.daemon.socket}", printed)
        self.assertIn("1 workspace, 1 client\n", printed)
        self.assertIn(f"\n{self.project}  Scripted\n", printed)
        self.assertIn("1 permission request: crushlite grant\n", printed)
        self.assertRegex(printed, rf"  {session[:8]}  the parser  \(needs you\)\n    run .* active")
        self.assertRegex(printed, r"    run [0-9a-f-]{8}  queued")

    async def test_the_same_for_programs(self) -> None:
        _, session, _ = await self.at_work()
        picture = await self.json("ps")
        self.assertEqual(picture["daemon"]["pid"], os.getpid())
        (place,) = picture["workspaces"]
        self.assertEqual((place["path"], place["model"]), (str(self.project), "Scripted"))
        self.assertEqual([each["id"] for each in place["sessions"]], [session])
        self.assertEqual([each["state"] for each in place["runs"]], ["active"])


class NarrowTests(Case):
    """Lists in a terminal of 40 columns: each row takes one line, and begins with its id."""

    async def printed(self, *arguments: str) -> list[str]:
        terminal = await self.terminal(arguments[0], self.host, *arguments[1:], columns=40)
        self.assertEqual(await terminal.ends(), 0)
        lines = terminal.seen.rstrip().splitlines()
        self.assertLessEqual(max(map(len, lines)), 40, terminal.seen)
        return lines

    async def test_lists_fit_and_are_whole_elsewhere(self) -> None:
        anna = await self.daemon.join()
        title = "a session with a title that is far too long for a narrow terminal"
        session = await anna.session(title)
        await anna.prompt(session, "hello")
        first = await self.daemon.entered(1)
        await first.say("an answer that is too long as well, by a wide margin")
        first.release()
        await anna.events.wait_for("run_complete")
        await anna.prompt(session, "hello")
        run = await self.daemon.entered(2)
        run.begin(lambda turn: turn.permission("bash", "execute"))
        await anna.events.wait_for("permission_request")
        run_id = run.turn.run_id
        _, row = await self.printed("sessions", "list")
        self.assertRegex(row, rf"^{session[:8]}  .*needs you  a session .*…$")
        _, *rows = await self.printed("runs")
        self.assertRegex(rows[0], rf"^{first.turn.run_id[:8]}  completed  .*an answer .*…$")
        self.assertTrue(rows[1].startswith(f"{run_id[:8]}  active"), rows)
        shown = await self.printed("ps")
        self.assertIn("  1 workspace, 1 client", shown)
        self.assertIn("  1 permission request: crushlite grant", shown)
        self.assertRegex("\n".join(shown), rf"\n  {session[:8]}  a session.*…  \(needs you\)\n")
        self.assertIn(f"    run {run_id[:8]}  active", "\n".join(shown))
        for arguments in (("sessions", "list"), ("ps",)):
            self.assertIn(title, (await self.call(*arguments))[1])


class CancelTests(Case):
    async def test_what_is_at_work_here_is_canceled_with_a_receipt(self) -> None:
        anna, session, run = await self.at_work()
        queued = (await anna.prompt(session, "next", when_busy="queue")).json["run_id"]
        code, printed, _ = await self.run_process("cancel", self.host, "--wait")
        self.assertEqual(code, 0)
        self.assertEqual(printed, f"{run.turn.run_id}  was active\n{queued}  was queued\n")
        self.assertTrue(run.canceled)
        self.assertFalse(await anna.busy(session))

    async def test_a_session_is_found_by_the_beginning_of_its_id(self) -> None:
        _, session, run = await self.at_work()
        (receipt,) = await self.json("cancel", session[:8])
        hit = [{"run_id": run.turn.run_id, "was": "active"}]
        self.assertEqual((receipt["session_id"], receipt["canceled"]), (session, hit))

    async def test_a_queued_run_is_taken_back_alone(self) -> None:
        anna, session, run = await self.at_work()
        queued = (await anna.prompt(session, "next", when_busy="queue")).json["run_id"]
        code, printed, _ = await self.call("cancel", queued)
        self.assertEqual((code, printed), (0, f"{queued}  was queued\n"))
        self.assertFalse(run.canceled)

    async def test_a_run_that_is_over_costs_its_successor_nothing(self) -> None:
        anna, session, run = await self.at_work()
        first = run.turn.run_id
        run.release()
        await anna.events.wait_for("run_complete")
        await anna.prompt(session, "next")
        successor = await self.daemon.entered(2)
        code, printed, errors = await self.call("cancel", first)
        self.assertEqual((code, printed), (0, ""))
        self.assertIn("nothing was running", errors)
        self.assertFalse(successor.canceled)

    async def test_of_several_sessions_one_must_be_named(self) -> None:
        anna, first, _ = await self.at_work()
        second = await anna.session()
        await anna.prompt(second, "hello")
        await self.daemon.entered(2)
        code, _, errors = await self.call("cancel")
        self.assertEqual(code, 1)
        self.assertIn("2 sessions are at work here", errors)
        receipts = await self.json("cancel", "--all")
        self.assertEqual({each["session_id"] for each in receipts}, {first, second})

    async def test_nothing_to_cancel_is_no_error_and_nonsense_is(self) -> None:
        await self.daemon.join()
        code, printed, errors = await self.call("cancel")
        self.assertEqual((code, printed), (0, ""))
        self.assertIn("nothing was running", errors)
        code, _, errors = await self.call("cancel", "nonsense")
        self.assertEqual(code, 1)
        self.assertIn("no session or run nonsense", errors)


class GrantTests(Case):
    async def asked(self) -> tuple[Participant, str, Any]:
        anna, _, run = await self.at_work()
        verdict = run.begin(
            lambda turn: turn.permission("bash", "execute", params={"command": "ls \x1b[8m-a"})
        )
        request = await anna.events.wait_for("permission_request")
        return anna, str(request["id"]), verdict

    async def test_what_is_asked_is_listed_with_nothing_hidden(self) -> None:
        _, request, _ = await self.asked()
        code, printed, errors = await self.call("grant")
        self.assertEqual(code, 0)
        self.assertIn(f"{request}  in {self.project}\n  bash (execute)\n", printed)
        self.assertIn("  command: ls \\x1b[8m-a\n", printed)
        self.assertIn(f"crushlite grant {request[:8]}", errors)
        (listed,) = await self.json("grant")
        self.assertEqual((listed["id"], listed["path"]), (request, str(self.project)))

    async def test_of_several_requests_each_is_listed_whole(self) -> None:
        anna, _, _ = await self.asked()
        await anna.prompt(await anna.session(), "another")
        run = await self.daemon.entered(2)
        long = "echo " + "x" * 300 + "\nrm -rf ~"
        run.begin(
            lambda turn: turn.permission(
                "bash", "execute", params={"command": long}, tool_call_id="long"
            )
        )
        await anna.events.wait_for("permission_notification", tool_call_id="long")
        _, printed, errors = await self.call("grant")
        self.assertIn("  command: ls \\x1b[8m-a\n", printed)
        self.assertIn(f"    | echo {'x' * 300}\n    | rm -rf ~\n", printed)
        self.assertEqual(printed.count("  --session: for this session, every bash (execute)"), 2)
        self.assertIn("allow it with: crushlite grant ID", errors)

    async def test_it_is_allowed(self) -> None:
        _, request, verdict = await self.asked()
        code, printed, errors = await self.run_process("grant", self.host, request[:8])
        self.assertEqual((code, printed), (0, "allowed: bash ls ?[8m-a\n"))
        self.assertIn("  command: ls \\x1b[8m-a\n", errors)
        self.assertTrue(await verdict)

    async def test_it_is_denied_with_a_reason(self) -> None:
        _, request, verdict = await self.asked()
        await self.call("grant", request, "--deny", "--reason", "not now")
        answer = await verdict
        self.assertEqual((bool(answer), answer.reason), (False, "not now"))

    async def test_it_is_allowed_for_the_session(self) -> None:
        _, request, verdict = await self.asked()
        answer = await self.json("grant", request, "--session")
        self.assertTrue(answer["resolved"])
        self.assertTrue(await verdict)
        again = self.daemon.agent.runs[0].do(
            lambda turn: turn.permission("bash", "execute", params={"command": "ls \x1b[8m-a"})
        )
        self.assertTrue(await again)

    async def test_one_that_is_closed_is_an_error(self) -> None:
        anna, request, verdict = await self.asked()
        await anna.grant({"id": request}, "deny")
        await verdict
        code, _, errors = await self.call("grant", request)
        self.assertEqual(code, 1)
        self.assertIn("no open request", errors)

    async def test_whoever_comes_second_is_told_so_and_fails(self) -> None:
        """Another answer comes between the look and ours: no real command can be made to lose that
        race."""
        late = mock.AsyncMock()
        late.info.path = "/p"
        late.grant.return_value = Resolution(False, "bert")
        options = argparse.Namespace(reason="", option="", json=False)
        with mock.patch("sys.stderr", io.StringIO()) as errors:
            code = await _answer(late, PermissionRequest("p", tool_name="bash"), "allow", options)
        self.assertEqual(code, 1)
        self.assertIn("too late: it was answered already by client bert", errors.getvalue())

    async def test_flags_that_make_no_sense_are_refused(self) -> None:
        for arguments in (
            ("--deny",),
            ("--always",),
            ("x", "--reason", "y"),
            ("x", "--deny", "--session"),
            ("x", "--deny", "--always"),
            ("x", "--session", "--always"),
            ("--option", "1"),
            ("x", "--option", "1", "--deny"),
            ("x", "--option", "1", "--always"),
        ):
            code, _, _ = await self.call("grant", *arguments)
            self.assertEqual(code, 2, arguments)


RULED = Scope(("text",), "this very command", ("starts",), "commands that start with `x`\x1b")


class PermissionsTests(Case):
    async def granted(self, option: str) -> tuple[Participant, ScriptedRun]:
        """A run whose request was answered with `crushlite grant` like that."""
        anna, _, run = await self.at_work()
        verdict = run.begin(lambda turn: turn.permission("bash", "execute", scope=RULED))
        request = await anna.events.wait_for("permission_request")
        code, _, errors = await self.call("grant", str(request["id"]), option)
        self.assertEqual(code, 0, errors)
        self.assertIn("  --session: for this session, this very command\n", errors)
        self.assertIn("  --rule: for this session, commands that start with `x`\\x1b\n", errors)
        self.assertIn("  --always: for good, in your own file, commands that start", errors)
        self.assertTrue(await verdict)
        return anna, run

    async def asks(self, anna: Participant, run: ScriptedRun) -> bool:
        """Whether what the rule covers is asked for."""
        later = Scope(("other",), "", covered_by=(frozenset({"starts"}),))
        before = len(anna.events.all("permission_request"))
        verdict = run.begin(lambda turn: turn.permission("bash", "execute", scope=later))
        await anna.events.wait_for("permission_notification")
        for request in (await anna.call("GET", "/permissions")).json:
            await anna.grant(request, "deny")
        asked = not await verdict
        self.assertEqual(len(anna.events.all("permission_request")) > before, asked)
        return asked

    async def listed_and_taken_back(self, option: str, whose: str) -> None:
        anna, run = await self.granted(option)
        self.assertFalse(await self.asks(anna, run))
        code, printed, _ = await self.call("permissions")
        self.assertEqual(code, 0)
        first, second = printed.splitlines()
        self.assertIn(f"  bash (execute), {whose}", first)
        self.assertEqual(second, "  commands that start with `x`\\x1b")
        [rule] = await self.json("permissions")
        code, _, errors = await self.call("permissions", "remove", rule["id"][:6])
        self.assertEqual(code, 0, errors)
        self.assertIn("taken back: commands that start with `x`\\x1b", errors)
        self.assertTrue(await self.asks(anna, run))
        self.assertEqual(await self.json("permissions"), [])

    async def test_a_rule_of_a_session_is_listed_whole_and_taken_back(self) -> None:
        await self.listed_and_taken_back("--rule", "in session ")

    async def test_a_rule_for_good_is_listed_whole_and_taken_back(self) -> None:
        await self.listed_and_taken_back("--always", "for good")

    async def test_without_a_daemon_those_for_good_are_in_the_file(self) -> None:
        file = self.root / ".local" / "share" / "crushlite" / "crush.json"
        file.parent.mkdir(parents=True)
        rule = {"tool": "bash", "action": "execute", "path": "/p", "parts": ["starts with x y"]}
        file.write_text(json.dumps({"permissions": {"rules": [rule]}, "options": {"debug": True}}))
        code, printed, errors = await self.run_process("permissions")
        self.assertEqual((code, errors), (0, ""))
        self.assertIn("bash (execute), for good\n  starts with x y\n", printed)
        code, _, errors = await self.run_process("permissions", "remove", "nonsense")
        self.assertEqual(code, 1)
        self.assertIn("no rule nonsense", errors)
        code, _, errors = await self.run_process("permissions", "remove", printed[:8])
        self.assertEqual((code, errors), (0, "crushlite: taken back: starts with x y\n"))
        left = json.loads(file.read_text())
        self.assertEqual(left, {"permissions": {"rules": []}, "options": {"debug": True}})
        _, _, errors = await self.run_process("permissions")
        self.assertIn("nothing is allowed beyond what was asked", errors)


class SessionsTests(Case):
    async def told(self) -> str:
        """A session with an answer, a tool call, and a hostile text."""
        anna, session, run = await self.at_work("please <look> \x1b[2J")
        await run.say("I look.\n```\ncode\n```")
        call = await run.do(lambda turn: turn.tool_call("bash", '{"command": "ls"}'))
        await run.do(lambda turn: turn.tool_result(call, "a ``` fence\nb"))
        run.fail("out of luck")
        await anna.events.wait_for("run_complete")
        return session

    async def test_they_are_listed(self) -> None:
        session = await self.told()
        for arguments in (("sessions",), ("sessions", "list")):
            code, printed, _ = await self.call(*arguments)
            self.assertEqual(code, 0)
            self.assertRegex(printed, rf"SESSION .*TITLE\n{session[:8]} .* the parser\n")
        (listed,) = await self.json("sessions", "list")
        self.assertEqual(listed["id"], session)

    async def test_one_is_shown_for_reading(self) -> None:
        session = await self.told()
        code, printed, _ = await self.call("sessions", "show", session[:6])
        self.assertEqual(code, 0)
        self.assertIn("\n> please <look> \n\nI look.\n```\ncode\n```\n", printed)
        for line in ("  * bash ls\n", "    2 lines\n", "out of luck\n"):
            self.assertIn(line, printed)
        self.assertNotIn("\x1b", printed)
        messages = await self.json("sessions", "show", "last")
        self.assertEqual(messages[0]["parts"][0]["data"]["text"], "please <look> \x1b[2J")

    async def test_all_of_one_is_exported_as_json(self) -> None:
        session = await self.told()
        code, printed, _ = await self.call("sessions", "export", "last")
        self.assertEqual(code, 0)
        exported = json.loads(printed)
        self.assertEqual(set(exported), {"session", "messages", "files", "runs"})
        self.assertEqual(exported["session"]["id"], session)
        self.assertEqual(exported["runs"][0]["outcome"], "failed")

    async def test_one_is_exported_as_markdown(self) -> None:
        await self.told()
        target = self.root / "out.md"
        code, printed, errors = await self.call("sessions", "export", "last", "-o", str(target))
        self.assertEqual((code, printed), (0, ""))
        self.assertIn(str(target), errors)
        text = target.read_text()
        self.assertIn("# the parser\n", text)
        self.assertIn("\n## You\n\nplease <look>\n\n## Assistant\n\nI look.\n", text)
        self.assertIn('<summary>Tool: bash</summary>\n\n```json\n{\n  "command": "ls"\n}', text)
        self.assertIn("\n````\na ``` fence\nb\n````\n", text)
        code, _, errors = await self.call("sessions", "export", "last", "-o", str(target))
        self.assertEqual(code, 2)
        self.assertIn("--force", errors)

    async def test_one_is_renamed(self) -> None:
        session = await self.told()
        code, printed, _ = await self.call("sessions", "rename", "last", "done", "with", "it")
        self.assertEqual((code, printed), (0, f"{session[:8]}  done with it\n"))

    async def test_one_is_deleted_only_if_somebody_says_so(self) -> None:
        await self.told()
        code, _, errors = await self.call("sessions", "delete", "last")
        self.assertEqual(code, 2)
        self.assertIn("say --yes", errors)
        self.assertEqual(len(await self.json("sessions", "list")), 1)
        code, _, _ = await self.call("sessions", "delete", "last", "--yes")
        self.assertEqual(code, 0)
        self.assertEqual(await self.json("sessions", "list"), [])

    async def test_in_a_terminal_a_person_is_asked_before_a_delete(self) -> None:
        await self.told()
        for answer, code in (("n", 1), ("y", 0)):
            terminal = await self.terminal("sessions", "delete", "last", self.host)
            await terminal.shows("delete 'the parser', ")
            terminal.enter(answer)
            self.assertEqual(await terminal.ends(), code)
        self.assertEqual(await self.json("sessions", "list"), [])

    async def test_an_unknown_one_is_an_error_that_helps(self) -> None:
        code, _, errors = await self.call("sessions", "show", "nope")
        self.assertEqual(code, 1)
        self.assertIn("crushlite sessions list", errors)


class WatchTests(Case):
    async def test_what_happens_is_told_in_lines(self) -> None:
        anna = await self.daemon.join()
        child = await self.spawn("watch", self.host)
        await child.notes("watching")
        session = await anna.session("the parser")
        await anna.prompt(session, "hello \x1b[2J there")
        run = await self.daemon.entered(1)
        call = await run.do(lambda turn: turn.tool_call("bash", '{"command": "ls"}'))
        run.begin(lambda turn: turn.permission("bash", "execute", tool_call_id=call))
        request = await anna.events.wait_for("permission_request")
        await anna.grant(request.payload)
        await run.do(lambda turn: turn.tool_result(call, "a\nb"))
        await run.say("the answer")
        run.release()
        await child.prints("done\n")
        who = f" {session[:8]} the parser: "
        lines = [line.partition(who)[2] for line in child.out.decode().splitlines()]
        told = [line for line in lines if line and not line.startswith("run ")]
        self.assertEqual(told[:3], ["new session", "> hello ?[2J there", "tool bash ls"])
        self.assertRegex(told[3], r"wants permission: bash \(crushlite grant [0-9a-f]{8}\)")
        self.assertEqual(told[4:], ["allowed", "  2 lines", "the answer"])
        child.process.send_signal(signal.SIGINT)
        self.assertEqual((await child.end())[0], 130)

    async def test_a_watcher_is_nobody_who_could_answer(self) -> None:
        child = await self.start("watch", self.host)
        await child.notes("watching")
        anna = await self.daemon.create()
        await anna.prompt(await anna.session(), "hello")
        run = await self.daemon.entered(1)
        await anna.release()
        self.assertFalse(run.turn.interactive)

    async def test_only_one_session_if_that_is_wanted(self) -> None:
        anna = await self.daemon.join()
        wanted, other = await anna.session("wanted"), await anna.session("other")
        child = await self.start("watch", self.host, "--session", wanted[:8])
        await child.notes("watching")
        await anna.prompt(other, "not this")
        (await self.daemon.entered(1)).release()
        await anna.prompt(wanted, "but this")
        (await self.daemon.entered(2)).release()
        await child.prints("done\n")
        self.assertNotIn("not this", child.out.decode())
        self.assertIn("> but this", child.out.decode())

    async def test_a_request_that_waits_already_is_told_first_and_no_text_among_json_lines(
        self,
    ) -> None:
        anna = await self.daemon.join()
        await anna.prompt(await anna.session("the parser"), "hello")
        run = await self.daemon.entered(1)
        run.begin(lambda turn: turn.permission("bash", "execute"))
        request = await anna.events.wait_for("permission_request")
        people = await self.start("watch", self.host)
        await people.prints("the parser: needs you: wants permission: bash")
        script = await self.start("watch", self.host, "--json")
        await script.notes("watching")
        await anna.grant(request.payload)
        run.release()
        await script.prints('"run_complete"')
        kinds = [json.loads(line)["type"] for line in script.out.decode().splitlines()]
        self.assertEqual(kinds.count("run_complete"), 1)

    async def test_the_json_lines_are_the_events_and_go_on_after_a_cut(self) -> None:
        relay = await self.enterAsyncContext(Relay(self.root / "relay.sock", self.daemon.socket))
        anna = await self.daemon.join()
        child = await self.start("watch", f"--host=unix://{relay.path}", "--json")
        await child.notes("watching")
        session = await anna.session()
        await child.prints('"session"')
        relay.cut()
        await child.prints('"lost"')
        await anna.prompt(session, "hello")
        (await self.daemon.entered(1)).release()
        await child.prints('"run_complete"')
        kinds = [json.loads(line)["type"] for line in child.out.decode().splitlines()]
        self.assertEqual(kinds[:3], ["session", "lost", "recovered"])
        self.assertEqual(kinds.count("run_complete"), 1)
