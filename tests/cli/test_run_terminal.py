"""`crushlite run` in a real terminal: what moves, what stays, Ctrl-C, and a change of size."""

from __future__ import annotations

import asyncio
import re
import subprocess
import unittest
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest import mock

from crushlite.agent.base import Scope, Usage
from crushlite.cli.person import TerminalAnswers
from crushlite.protocol.permissions import (
    PermissionNotification,
    PermissionRequest,
    Resolution,
)
from tests.support.cli import PATIENCE, ScriptedCase

if TYPE_CHECKING:
    from crushlite.agent.base import Turn
    from crushlite.testing.scripted import ScriptedRun
    from tests.support.terminal import Terminal

CLEAR = "\r\x1b[K"
COLOURS = re.compile(r"\x1b\[\d+m")


def lines_drawn(heard: str) -> list[str]:
    """Every state of the status line, without colours."""
    return [piece.split("\r")[0] for piece in COLOURS.sub("", heard).split(CLEAR)[1:]]


def left_over(heard: str) -> list[str]:
    """The lines that are still to be seen at the end, without status lines that were cleared."""
    lines = COLOURS.sub("", heard).replace("\r\n", "\n").split("\n")
    return [line.split(CLEAR)[-1] for line in lines]


async def _permission(turn: Turn, params: dict[str, Any]) -> Any:
    return await turn.permission("tool", "do", params=params, path="/p", tool_call_id="c")


class TerminalCase(ScriptedCase):
    async def run_in_terminal(self, *arguments: str, **rest: Any) -> tuple[Terminal, ScriptedRun]:
        terminal = await self.terminal("run", self.host, *arguments, **rest)
        return terminal, await self.daemon.entered(1)


class ProgressTests(TerminalCase):
    async def test_of_what_goes_on_a_line_for_each_tool_call_stays(self) -> None:
        terminal, scripted = await self.run_in_terminal("hello")
        await terminal.hears("thinking (1 s)")
        call = await scripted.do(lambda turn: turn.tool_call("bash", '{"command": "ls"}'))
        await terminal.hears("bash ls (")
        await scripted.do(lambda turn: turn.tool_result(call, "a file"))
        seen = await terminal.hears("thinking", len(terminal.heard))
        await scripted.say("the answer")
        await terminal.hears("the answer", seen)
        scripted.release()
        self.assertEqual(await terminal.ends(), 0)
        await terminal.hears("the answer\r\n")
        screen = left_over(terminal.heard)
        self.assertEqual(screen[1:], ["✓ bash ls → a file", "the answer", ""])
        self.assertRegex(screen[0], "^crushlite: session ")

    async def test_what_is_not_a_whole_block_yet_is_in_the_status_line_only(self) -> None:
        terminal, scripted = await self.run_in_terminal("hello", columns=50)
        await scripted.say("the beginning of a long line, half of **a")
        place = await terminal.hears("half of **a (")
        await scripted.do(lambda turn: turn.think("hm"))
        await scripted.say(" line**, and the rest")
        await terminal.hears(", and the rest (", place)
        scripted.release()
        self.assertEqual(await terminal.ends(), 0)
        await terminal.hears("rest\r\n")
        screen = left_over(terminal.heard)
        drawn = ["the beginning of a long line, half of a line, and", "the rest", ""]
        self.assertEqual(screen[1:], drawn)
        self.assertTrue(all(len(line) < 50 for line in lines_drawn(terminal.heard)))

    async def test_markdown_is_drawn_block_by_block(self) -> None:
        terminal, scripted = await self.run_in_terminal("-q", "hello")
        await scripted.say("# Title\n\n- **one**\n- two\n\n| a |\n|---|\n")
        place = await terminal.hears("two\r\n")
        self.assertEqual(
            terminal.heard, "\x1b[1mTitle\x1b[0m\r\n\r\n• \x1b[1mone\x1b[0m\r\n• two\r\n"
        )
        await scripted.say("| 1 |\n\n```py\nx = 1\n")
        await terminal.hears("x = 1\r\n", place)
        await scripted.say("```\nlast")
        scripted.release()
        self.assertEqual(await terminal.ends(), 0)
        await terminal.hears("last\r\n", place)
        rows = COLOURS.sub("", terminal.heard[place:]).split("\r\n")
        self.assertEqual(rows, ["", "a", "───", "1", "", "```py", "x = 1", "```", "", "last", ""])

    async def test_an_answer_that_goes_elsewhere_leaves_the_terminal_to_progress(self) -> None:
        terminal, scripted = await self.run_in_terminal("hello", stdout=subprocess.PIPE)
        await scripted.say("half a line")
        assert terminal.process is not None
        assert terminal.process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            heard = await terminal.process.stdout.readexactly(len("half a line"))
        await terminal.hears("thinking", len(terminal.heard))
        scripted.release()
        async with asyncio.timeout(PATIENCE):
            heard += await terminal.process.stdout.read()
        self.assertEqual((await terminal.ends(), heard), (0, b"half a line\n"))
        self.assertNotIn("half", terminal.heard)

    async def test_no_color_takes_the_colours_and_a_dumb_terminal_the_movement(self) -> None:
        terminal, scripted = await self.run_in_terminal("hello")
        await terminal.hears("thinking")
        self.assertRegex(terminal.heard, COLOURS)
        scripted.release()
        self.assertEqual(await terminal.ends(), 0)
        for number, (variable, value) in enumerate((("NO_COLOR", "1"), ("TERM", "dumb")), 2):
            env: dict[str, Any] = {variable: value}
            plain = await self.terminal("run", self.host, "hello", **env)
            scripted = await self.daemon.entered(number)
            if variable == "NO_COLOR":
                await plain.hears(f"{CLEAR}")
                await plain.hears("thinking")
            await scripted.say("yes")
            scripted.release()
            await plain.hears("yes\r\n")
            self.assertEqual(await plain.ends(), 0)
            self.assertNotRegex(plain.heard, COLOURS)
            if variable == "TERM":
                self.assertNotIn("\x1b", plain.heard)

    async def test_quiet_is_quiet_on_a_terminal_too(self) -> None:
        terminal, scripted = await self.run_in_terminal("-q", "hello")
        await scripted.say("yes")
        scripted.release()
        self.assertEqual(await terminal.ends(), 0)
        await terminal.hears("\n")
        self.assertEqual(terminal.heard, "yes\r\n")

    async def test_an_answer_cannot_command_the_terminal(self) -> None:
        terminal, scripted = await self.run_in_terminal("-q", "hello")
        await scripted.say("\x1b]0;owned\x07\x1b[2Jred\u202e")
        scripted.release()
        self.assertEqual(await terminal.ends(), 0)
        await terminal.hears("\n")
        self.assertEqual(terminal.heard, "red\r\n")

    async def test_a_change_of_size_does_no_harm(self) -> None:
        terminal, scripted = await self.run_in_terminal("hello")
        command = '{"command": "' + "long " * 30 + '"}'
        call = await scripted.do(lambda turn: turn.tool_call("bash", command))
        await terminal.hears("long long")
        terminal.resize(24)
        await terminal.hears(CLEAR, len(terminal.heard))
        place = await terminal.hears(CLEAR, len(terminal.heard))
        await terminal.hears(CLEAR, place)
        drawn = lines_drawn(terminal.heard[place - len(CLEAR) :])
        self.assertIn("bash long", drawn[0])
        self.assertTrue(all(len(line) < 24 for line in drawn), drawn)
        self.assertTrue(any(len(line) > 70 for line in lines_drawn(terminal.heard[:place])))
        await scripted.do(lambda turn: turn.tool_result(call, ""))
        await scripted.say("yes")
        scripted.release()
        await terminal.hears("yes\r\n")
        self.assertEqual(await terminal.ends(), 0)


class AskingTests(TerminalCase):
    async def asked(self, *arguments: str, **rest: Any) -> tuple[Terminal, ScriptedRun, Any]:
        terminal, scripted = await self.run_in_terminal("hello", *arguments, **rest)
        call = await scripted.do(lambda turn: turn.tool_call("bash", '{"command": "touch y"}'))
        verdict = scripted.begin(
            lambda turn: turn.permission(
                "bash", "execute", params={"command": "touch y"}, path="/p", tool_call_id=call
            )
        )
        await terminal.hears("answer here with y")
        return terminal, scripted, verdict

    async def test_a_limit_of_cost_asks_the_person_at_the_terminal_first(self) -> None:
        terminal, scripted = await self.run_in_terminal("hello", "--max-cost", "0.5")
        spending = scripted.begin(lambda turn: turn.usage(Usage(1, 1, 0.5)))
        await terminal.hears("Go on with how much more?")
        terminal.press("2\n")  # as much again
        async with asyncio.timeout(PATIENCE):
            await spending
        await scripted.say("so it goes on")
        scripted.release()
        self.assertEqual(await terminal.ends(), 0)

    async def test_a_question_is_asked_here_once_and_closed_when_another_client_answers(
        self,
    ) -> None:
        anna = await self.daemon.join()
        terminal, scripted = await self.run_in_terminal("hello")
        place = 0
        for here in (True, False):
            asking = scripted.begin(lambda turn: turn.ask("Go on?"))
            batch = await anna.events.wait_for("question_batch_request")
            place = await terminal.hears("your own words; /skip", place)
            if here:
                terminal.press("gladly\n")
            else:
                await anna.call("POST", f"/questions/{batch['id']}", {"action": "cancel"})
            async with asyncio.timeout(PATIENCE):
                await asking
        await terminal.hears("no longer asked: it was answered elsewhere", place)
        scripted.release()
        self.assertEqual(await terminal.ends(), 0)
        self.assertNotIn("another client", terminal.heard)
        self.assertEqual(terminal.heard.count("no longer asked"), 1)

    async def test_the_person_at_the_terminal_answers(self) -> None:
        terminal, scripted, verdict = await self.asked()
        place = len(terminal.heard)
        terminal.press("maybe\n")
        place = await terminal.hears("answer here with y", place)
        terminal.press("y\n")
        async with asyncio.timeout(PATIENCE):
            self.assertTrue(await verdict)
        await terminal.hears("permission granted", place)
        terminal.press("more\n")
        await terminal.hears("not sent", place)
        scripted.release()
        self.assertEqual(await terminal.ends(), 0)

    async def test_a_rule_is_granted_only_where_one_is_offered(self) -> None:
        terminal, scripted, verdict = await self.asked()
        place = len(terminal.heard)
        terminal.press("k\n")
        place = await terminal.hears("no such rule is offered for this", place)
        terminal.press("n\n")
        async with asyncio.timeout(PATIENCE):
            self.assertFalse(await verdict)
        scope = Scope(("text",), "this very command", ("starts",), "commands that start with `x`")
        verdict = scripted.begin(lambda turn: turn.permission("bash", "execute", scope=scope))
        place = await terminal.hears("  r: for this session, commands that start with `x`", place)
        how = "y (yes), n (no), a (for this session), r (that rule) or k (for good), and Enter"
        place = await terminal.hears(f"answer here with {how}", place)
        terminal.press("r\n")
        async with asyncio.timeout(PATIENCE):
            self.assertTrue(await verdict)
        later = Scope(("other",), "", covered_by=(frozenset({"starts"}),))
        async with asyncio.timeout(PATIENCE):
            granted = scripted.do(lambda turn: turn.permission("bash", "execute", scope=later))
            self.assertTrue(await granted)
        scripted.release()
        self.assertEqual(await terminal.ends(), 7)

    async def test_all_that_will_be_done_is_shown_before_it_is_asked(self) -> None:
        """A command whose end was cut off, and the content of a file that was never shown, were
        allowed unseen."""
        terminal, scripted = await self.run_in_terminal("hello", columns=200)
        command = "echo " + "x" * 500 + "\nrm -rf ~\x1b[8m\u202e"
        content = "".join(f"line {n}\n" for n in range(300)) + "the end"
        for params in ({"command": command}, {"file_path": "/p/a", "new_content": content}):
            ask = partial(_permission, params=params)
            verdict = scripted.begin(ask)
            place = await terminal.hears("answer here with y", len(terminal.heard))
            terminal.press("n\n")
            self.assertFalse(await verdict)
            await terminal.hears("permission denied", place)
        heard = terminal.heard.replace("\r\n", "\n")
        self.assertIn("x" * 500 + "\n    | rm -rf ~\\x1b[8m\\u202e\n", heard)
        self.assertIn("  file_path: /p/a\n  in: /p\n  @@\n  +line 0\n  +line 1\n", heard)
        self.assertIn("  +line 299\n  +the end\n", heard)
        self.assertIn("  a: for this session, every tool (do) in /p\n", heard)
        scripted.release()
        self.assertEqual(await terminal.ends(), 7)

    async def test_a_no_is_a_no(self) -> None:
        terminal, scripted, verdict = await self.asked()
        terminal.press("n\n")
        async with asyncio.timeout(PATIENCE):
            self.assertFalse(await verdict)
        scripted.release()
        self.assertEqual(await terminal.ends(), 7)

    async def test_what_is_answered_elsewhere_is_closed_and_a_late_line_answers_nothing(
        self,
    ) -> None:
        anna = await self.daemon.join()
        terminal, scripted, verdict = await self.asked()
        request = await anna.events.wait_for("permission_request")
        await anna.grant(request.payload, "deny")
        async with asyncio.timeout(PATIENCE):
            self.assertFalse(await verdict)
        place = await terminal.hears("permission denied")
        terminal.press("y\n")
        await terminal.hears("not sent", place)
        scripted.release()
        self.assertEqual(await terminal.ends(), 7)


class LateLineTests(unittest.IsolatedAsyncioTestCase):
    """What is typed answers the request that the user has seen, and no other."""

    def setUp(self) -> None:
        self.workspace, self.progress, self.now = mock.AsyncMock(), mock.Mock(), 100.0
        self.workspace.grant.return_value = Resolution(True)
        for name, value in (("is_there", lambda: True), ("time.monotonic", lambda: self.now)):
            patch = mock.patch(f"crushlite.cli.person.{name}", value)
            patch.start()
            self.addCleanup(patch.stop)
        self.answers = TerminalAnswers(self.workspace, self.progress, wanted=True)

    def ask(self, name: str) -> None:
        self.answers.take(PermissionRequest(f"id of {name}", "s", name, "bash"))

    async def type(self, *lines: str) -> list[str]:
        """Type lines at once; the ids of the requests that they answered."""
        self.workspace.grant.reset_mock()
        data = "".join(f"{line}\n" for line in lines).encode()
        with mock.patch.multiple(
            "os", read=lambda *_: data, tcgetpgrp=lambda _: 1, getpgrp=lambda: 1
        ):
            self.answers._typed()
        await asyncio.sleep(0)
        return [call.args[0] for call in self.workspace.grant.call_args_list]

    async def test_a_line_for_what_was_answered_elsewhere_does_not_answer_the_next(self) -> None:
        self.ask("one")
        self.answers.take(PermissionNotification("one", denied=True))
        self.ask("two")
        self.now += 0.5
        self.assertEqual(await self.type("y"), [])
        self.assertEqual(await self.type("y"), ["id of two"])

    async def test_two_lines_at_once_do_not_answer_what_is_shown_in_between(self) -> None:
        self.ask("one")
        self.ask("two")
        self.assertEqual(self.progress.show_whole.call_count, 1)
        self.assertEqual(await self.type("y", "y"), ["id of one"])
        await asyncio.sleep(0)
        self.assertEqual(self.progress.show_whole.call_count, 2)
        self.assertEqual(await self.type("y"), ["id of two"])

    async def test_what_could_not_be_shown_cannot_be_answered(self) -> None:
        self.progress.show_whole.return_value = False
        with mock.patch.object(asyncio.get_running_loop(), "remove_reader") as removed:
            self.ask("one")
        removed.assert_called_once_with(0)
        self.progress.say.assert_not_called()


class InterruptTests(TerminalCase):
    async def lingering(self, *arguments: str) -> tuple[Terminal, ScriptedRun, asyncio.Event]:
        """A run that was canceled with Ctrl-C and does not end until the event is set."""
        terminal, scripted = await self.run_in_terminal(*arguments)
        stopping, leave = asyncio.Event(), asyncio.Event()

        async def linger(turn: Turn) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                stopping.set()
                await leave.wait()

        await scripted.say("one")
        await terminal.hears("one")
        scripted.begin(linger)
        terminal.press("\x03")
        async with asyncio.timeout(PATIENCE):
            await stopping.wait()
        return terminal, scripted, leave

    async def test_ctrl_c_cancels_and_waits_for_the_end(self) -> None:
        terminal, scripted, leave = await self.lingering("hello")
        assert terminal.process is not None
        self.assertIsNone(terminal.process.returncode)
        leave.set()
        self.assertEqual(await terminal.ends(), 130)
        await terminal.hears("crushlite: canceled")
        self.assertTrue(scripted.canceled)
        screen = left_over(terminal.heard)
        self.assertIn("crushlite: canceling; Ctrl-C leaves at once", screen, "on a line of its own")
        self.assertIn("crushlite: canceled", screen)

    async def test_a_second_ctrl_c_leaves_at_once(self) -> None:
        terminal, scripted, leave = await self.lingering("hello")
        terminal.press("\x03")
        self.assertEqual(await terminal.ends(), 130)
        self.assertFalse(scripted.canceled)
        leave.set()

    async def test_a_terminal_that_is_closed_cancels_the_run(self) -> None:
        terminal, scripted = await self.run_in_terminal("hello")
        await scripted.say("one")
        await terminal.hears("one")
        done = scripted.begin(lambda turn: asyncio.Event().wait())
        assert terminal.process is not None
        terminal.process.send_signal(1)  # what a terminal sends when its window is closed
        self.assertEqual(await terminal.ends(), 130)
        self.assertTrue(scripted.canceled)
        done.cancel()
