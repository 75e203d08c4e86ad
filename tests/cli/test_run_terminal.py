"""`crushlite run` in a real terminal: what moves, what stays, Ctrl-C, and a change of size."""

from __future__ import annotations

import asyncio
import re
import subprocess
from typing import TYPE_CHECKING, Any

from tests.support.cli import PATIENCE, ScriptedCase

if TYPE_CHECKING:
    from crushlite.agent.base import Turn
    from crushlite.agent.scripted import ScriptedRun
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


class TerminalCase(ScriptedCase):
    async def run_in_terminal(self, *arguments: str, **rest: Any) -> tuple[Terminal, ScriptedRun]:
        terminal = await self.terminal("run", self.host, *arguments, **rest)
        return terminal, await self.daemon.entered(1)


class ProgressTests(TerminalCase):
    async def test_what_goes_on_is_shown_and_nothing_of_it_stays(self) -> None:
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
        self.assertEqual(screen[1:], ["the answer", ""])
        self.assertRegex(screen[0], "^crushlite: session ")

    async def test_half_a_line_of_the_answer_is_not_drawn_over(self) -> None:
        terminal, scripted = await self.run_in_terminal("hello")
        await scripted.say("half a line")
        place = await terminal.hears("half a line")
        await scripted.do(lambda turn: turn.think("hm"))
        await scripted.say(", and the rest")
        await terminal.hears(", and the rest")
        scripted.release()
        self.assertEqual(await terminal.ends(), 0)
        await terminal.hears("rest\r\n")
        self.assertEqual(terminal.heard[place:], ", and the rest\r\n")

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

    async def test_a_no_is_a_no(self) -> None:
        terminal, scripted, verdict = await self.asked()
        terminal.press("n\n")
        async with asyncio.timeout(PATIENCE):
            self.assertFalse(await verdict)
        scripted.release()
        self.assertEqual(await terminal.ends(), 0)

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
        self.assertEqual(await terminal.ends(), 0)


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
