"""`crushlite chat` against an agent whose every move the test decides: in a window of this process,
and in a terminal of its own where the test is about terminals, keys and signals."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import subprocess
from typing import TYPE_CHECKING

from crushlite.protocol.runs import RunComplete
from tests.support.cli import PATIENCE, ChatCase, CommandCase, Relay, ScriptedCase
from tests.support.terminal import COMMAND, Terminal

if TYPE_CHECKING:
    from crushlite.agent.base import Turn
    from crushlite.testing import Participant

# What a model may write to play tricks on a terminal.
HOSTILE = "A\x1b[31mB\x1b[2J\x1b]0;owned\x07C\x07D\x9b2JE\u202efdp.exe\u202cF\rG\x1b[?1049h<b>H"


class ConversationTests(ChatCase):
    async def test_an_answer_streams_in_above_the_input_line(self) -> None:
        terminal = await self.chat_process()
        run = await self.asked(terminal, "hello")
        self.assertTrue(run.turn.interactive)
        await run.say("one ")
        await terminal.shows("\none\n")
        terminal.press("typing")
        await terminal.shows("> typing")
        await run.say("two")
        await terminal.shows(lambda seen: "\none two\n" in seen and seen.endswith("> typing"))
        run.release()
        await terminal.shows(lambda seen: seen.endswith("> hello\n\none two\n\n> typing"))
        self.assertNotIn("joins", terminal.seen)  # there was nothing to join

    async def test_prose_is_wrapped_at_words_and_code_is_left_whole(self) -> None:
        terminal = await self.chat(columns=40)
        run = await self.asked(terminal, "hello")
        code = "    return the_answer(to='everything', plus=1)"
        for piece in ("word " * 12, "\n\n```\n", code[:20], code[20:], "\n```\ndone"):
            await run.say(piece)
        run.release()
        seen = await terminal.shows("\ndone\n")
        self.assertIn(f"{'word ' * 7}word\nword word word word\n", seen)
        self.assertIn(f"\n```\n{code}\n```\n\ndone\n", seen)

    async def test_a_tool_call_is_one_line_and_show_has_all_of_it(self) -> None:
        terminal = await self.chat()
        run = await self.asked(terminal, "hello")

        async def step(turn: Turn) -> None:
            call = await turn.tool_call("bash", '{"command": "make test"}')
            await turn.tool_result(call, "line 1\nline 2\nline 3")

        await run.do(step)
        await run.say("done")
        seen = await terminal.shows("\ndone\n")
        self.assertIn("\n✓ bash make test → 3 lines  /show 1\n", seen)
        self.assertNotIn("line 2", seen)
        run.release()
        await self.idle(terminal)
        terminal.enter("/show 2")
        await terminal.shows("no item 2")
        terminal.enter("/show 1")
        await terminal.shows("[1] bash\ncommand: make test\n\nline 1\nline 2\nline 3\n")

    async def test_reasoning_is_told_of_and_can_be_read(self) -> None:
        terminal = await self.chat()
        run = await self.asked(terminal, "hello")
        await run.do(lambda turn: turn.think("let me see"))
        await run.say("well")
        await terminal.shows("· thought, 3 words  /show 1\n\nwell")
        run.release()
        await self.idle(terminal)
        terminal.enter("/show")
        await terminal.shows("[1] reasoning\nlet me see\n")

    async def test_a_model_call_that_is_tried_again_is_told_of(self) -> None:
        terminal = await self.chat()
        run = await self.asked(terminal, "hello")

        async def retry(turn: Turn) -> None:
            turn.retrying("retrying in 4 s, attempt 2 of 4,\nbecause \x1b[2J busy")

        await run.do(retry)
        await terminal.shows("· retrying in 4 s, attempt 2 of 4, because ?[2J busy\n")
        await run.say("well")
        run.release()
        await terminal.shows("\nwell\n")

    async def test_a_failure_is_told_and_the_chat_goes_on(self) -> None:
        terminal = await self.chat()
        run = await self.asked(terminal, "hello")
        run.fail("out of luck")
        await terminal.shows("out of luck\n")
        run = await self.asked(terminal, "again", 2)
        await run.say("better")
        run.release()
        seen = await terminal.shows("\nbetter\n")
        self.assertEqual(seen.count("out of luck"), 1)

    async def test_an_error_that_no_message_shows_is_shown_when_the_run_ends(self) -> None:
        """As that of an ending that could not be saved."""
        terminal = await self.chat()
        run = await self.asked(terminal, "hello")
        await run.say("well")
        run.release()
        await self.idle(terminal)
        ending = RunComplete(
            run.turn.session_id, "m", run.turn.run_id, error="not saved: disk full"
        )
        self.daemon.backend.everything()[0].hub.publish("updated", ending)
        await terminal.shows("\n✗ not saved: disk full\n")

    async def test_what_others_do_in_the_session_is_shown_once(self) -> None:
        terminal = await self.chat()
        run = await self.asked(terminal, "hello")
        anna = await self.daemon.join()
        run.release()
        await self.idle(terminal)
        await anna.prompt(run.turn.session_id, "from anna")
        other = await self.daemon.entered(2)
        await other.say("for anna")
        other.release()
        seen = await terminal.shows(lambda seen: seen.endswith("> from anna\n\nfor anna\n\n>"))
        self.assertEqual(seen.count("for anna"), 1)

    async def test_other_sessions_are_not_shown(self) -> None:
        terminal = await self.chat()
        run = await self.asked(terminal, "hello")
        anna = await self.daemon.join()
        await anna.prompt(await anna.session(), "elsewhere")
        other = await self.daemon.entered(2)
        await other.say("not here")
        other.release()
        await anna.events.wait_for("run_complete")
        await run.say("here")
        self.assertNotIn("elsewhere", await terminal.shows("\nhere\n"))

    async def test_hostile_output_is_harmless_and_still_readable(self) -> None:
        terminal = await self.chat_process()
        run = await self.asked(terminal, "hello")
        await run.say(HOSTILE)
        call = await run.do(lambda turn: turn.tool_call("x", '{"command": "\\u001b[2J"}'))
        await run.do(lambda turn: turn.tool_result(call, HOSTILE))
        await run.say("y" * 100_000 + " end")
        run.release()
        # While it is not complete only its end is shown.
        seen = await terminal.shows(lambda seen: seen.rpartition("/show 1")[2].count("y") > 99_999)
        self.assertIn("\nABCDEfdp.exeFG<b>H\n", seen)
        self.assertIn("✓ x ?[2J → ABCDEfdp.exeFG<b>H  /show 1", seen)
        self.assertEqual(seen.rpartition("/show 1")[2].count("y"), 100_000)
        self.assertEqual(terminal.obeyed, 0)
        for forbidden in ("\x07", "owned", "\x1b[2J", "\x1b[?1049h", "\u202e"):
            self.assertNotIn(forbidden, terminal.heard)

    async def test_no_colour_is_respected(self) -> None:
        self.env["NO_COLOR"] = "1"
        terminal = await self.chat_process()
        run = await self.asked(terminal, "hello")
        run.fail("red")
        await terminal.shows("red")
        self.assertNotRegex(terminal.heard, r"\x1b\[[0-9;]*m")


class WorkTests(ChatCase):
    async def test_the_status_says_how_far_the_list_of_things_to_do_is(self) -> None:
        terminal = await self.chat()
        run = await self.asked(terminal, "hello")
        items = [{"content": name, "status": "pending"} for name in ("read", "fix", "test")]
        items[0]["status"] = "completed"
        items[1] |= {"status": "in_progress", "active_form": "fixing\x1b[2J it"}
        await run.do(lambda turn: turn.todos(items))
        await terminal.shows(", 1 of 3 done, now fixing?[2J it: ")
        await run.do(lambda turn: turn.todos([{"content": "read", "status": "completed"}]))
        await terminal.shows(lambda seen: " s: thinking" in seen)
        run.release()

    async def test_ctrl_c_cancels_and_the_chat_goes_on(self) -> None:
        terminal = await self.chat_process()
        run = await self.asked(terminal, "hello")
        await run.say("half an ans")
        await terminal.shows("half an ans")
        terminal.press("\x03")
        await terminal.shows("half an ans\n\n✗ canceled\n")
        self.assertTrue(run.canceled)
        await self.idle(terminal)
        run = await self.asked(terminal, "again", 2)
        run.release()

    async def test_ctrl_c_takes_the_text_away_and_warns_before_it_leaves(self) -> None:
        terminal = await self.chat()
        terminal.press("a draft")
        await terminal.shows("> a draft")
        for count in (1, 2):
            terminal.press("\x03")  # takes the text away
            await terminal.shows(lambda seen: seen.endswith("\n>"))
            terminal.press("\x03")
            await terminal.shows("· Ctrl-C again leaves; so does Ctrl-D\n" * count)
            terminal.press("typing")  # so the warning is forgotten
            await terminal.shows("> typing")
        terminal.press("\x15\x04")
        self.assertEqual(await terminal.ends(), 0)

    async def test_ctrl_c_twice_leaves_an_idle_chat(self) -> None:
        terminal = await self.chat_process()
        terminal.press("\x03")
        await terminal.shows("Ctrl-C again leaves")
        terminal.press("\x03")
        self.assertEqual(await terminal.ends(), 130)
        self.assertTrue(terminal.echoes)

    async def test_a_second_ctrl_c_leaves_a_run_that_does_not_end(self) -> None:
        terminal = await self.chat_process()
        run = await self.asked(terminal, "hello")
        stubborn = asyncio.Event()

        async def hang(turn: Turn) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await stubborn.wait()

        run.begin(hang)
        terminal.press("\x03")
        await terminal.shows("canceling")
        terminal.press("\x03")
        self.assertEqual(await terminal.ends(), 130)
        stubborn.set()

    async def test_ctrl_d_leaves_and_gives_the_terminal_back(self) -> None:
        terminal = await self.chat_process()
        self.assertFalse(terminal.echoes)
        terminal.press("\x04")
        self.assertEqual(await terminal.ends(), 0)
        self.assertTrue(terminal.echoes)

    async def test_ctrl_d_warns_once_while_it_works(self) -> None:
        terminal = await self.chat()
        await self.asked(terminal, "hello")
        await terminal.shows("thinking")
        terminal.press("\x04")
        await terminal.shows("Ctrl-D again leaves")
        terminal.press("\x04")
        self.assertEqual(await terminal.ends(), 0)

    async def test_a_closed_window_ends_the_chat(self) -> None:
        terminal = await self.chat_process()
        anna = await self.daemon.join()
        run = await self.asked(terminal, "hello")
        terminal.hang_up()
        self.assertEqual(await terminal.ends(), 130)
        # Anna is still there, so the run is too.
        run.release()
        self.assertFalse((await anna.events.wait_for("run_complete"))["cancelled"])

    async def test_a_prompt_while_it_works_steers_it(self) -> None:
        terminal = await self.chat()
        run = await self.asked(terminal, "hello")
        await terminal.shows("thinking")
        terminal.enter("and also this")
        await terminal.shows("· joins the work at its next step: and also this")
        await terminal.shows(", 1 queued: ")
        followups = await run.do(lambda turn: turn.followups())
        self.assertEqual([each.text for each in followups], ["and also this"])
        await terminal.shows("\n> and also this\n")
        run.release()
        await self.idle(terminal)
        self.assertEqual(len(self.daemon.agent.runs), 1)

    async def test_later_waits_its_turn_and_the_queue_can_be_changed(self) -> None:
        terminal = await self.chat()
        run = await self.asked(terminal, "hello")
        await terminal.shows("thinking")
        for text in ("first", "second"):
            terminal.enter(f"/later {text}")
            await terminal.shows(f"· waits its turn: {text}")
        terminal.enter("/queue")
        await terminal.shows("\n1  first\n2  second\n")
        terminal.enter("/queue drop 1")
        await terminal.shows("a queued prompt was dropped")
        terminal.enter("/later third")
        await terminal.shows("· waits its turn: third")
        terminal.enter("/queue clear")
        await terminal.shows(lambda seen: seen.count("a queued prompt was dropped") == 3)
        terminal.enter("/later fourth")
        await terminal.shows("· waits its turn: fourth")
        run.release()
        self.assertEqual((await self.daemon.entered(2)).prompt, "fourth")

    async def test_now_interrupts(self) -> None:
        terminal = await self.chat()
        run = await self.asked(terminal, "hello")
        await terminal.shows("thinking")
        terminal.enter("/now stop that")
        self.assertEqual((await self.daemon.entered(2)).prompt, "stop that")
        self.assertTrue(run.canceled)

    async def test_a_command_of_ones_own_is_run_and_shown_once(self) -> None:
        terminal = await self.chat()
        terminal.enter("!echo one; echo two; exit 3")
        seen = await terminal.shows("exit code 3")
        self.assertIn("\n$ echo one; echo two; exit 3\none\ntwo\nexit code 3\n", seen)

    async def test_ctrl_c_ends_a_command_of_ones_own(self) -> None:
        terminal = await self.chat_process()
        os.mkfifo(self.project / "begun")
        terminal.enter("!echo yes > begun; sleep 600")
        await asyncio.to_thread((self.project / "begun").read_text)
        await terminal.shows(": $ echo yes > begun; sleep 600\n")
        terminal.press("\x03")
        await terminal.shows("\n$ echo yes > begun; sleep 600\nexit code ")
        await self.idle(terminal)


class SessionTests(ChatCase):
    async def test_sessions_are_listed_switched_renamed_and_begun(self) -> None:
        terminal = await self.chat()
        run = await self.asked(terminal, "the first")
        await run.say("answer one")
        run.release()
        await self.idle(terminal)
        terminal.enter("/new")
        await terminal.shows("begins a new session")
        run = await self.asked(terminal, "the second", 2)
        run.release()
        await self.idle(terminal)
        terminal.enter("/rename number two")
        await terminal.shows("is now called number two")
        terminal.enter("/sessions")
        seen = await terminal.shows("TITLE")
        seen = await terminal.shows(lambda seen: "the first" in seen.partition("TITLE")[2])
        self.assertRegex(seen, r"\n\*  1 .* number two\n")
        before = seen.count("answer one")
        terminal.enter("/switch 2")
        await terminal.shows(lambda seen: seen.count("answer one") == before + 1)
        run = await self.asked(terminal, "and on", 3)
        self.assertEqual(run.turn.session_id, self.daemon.agent.runs[0].turn.session_id)

    async def test_how_much_the_model_reasons_is_chosen_for_each_session(self) -> None:
        terminal = await self.chat()
        terminal.enter("/effort HIGH!")
        await terminal.shows("'HIGH!' is no word such as none")
        terminal.enter("/effort high")
        await terminal.shows("reasoning in this session: high")
        run = await self.asked(terminal, "the first")
        self.assertEqual((run.turn.reasoning_effort, run.turn.reasoning), ("high", None))
        run.release()
        await self.idle(terminal)
        terminal.enter("/new")
        await terminal.shows("begins a new session")
        run = await self.asked(terminal, "the second", 2)
        self.assertEqual((run.turn.reasoning_effort, run.turn.reasoning), ("", None))
        run.release()
        await self.idle(terminal)
        terminal.enter("/effort on")
        await terminal.shows("reasoning in this session: on")
        run = await self.asked(terminal, "again", 3)
        self.assertEqual((run.turn.reasoning_effort, run.turn.reasoning), ("", True))
        run.release()
        await self.idle(terminal)
        terminal.enter("/effort default")
        await terminal.shows("reasoning in this session: as configured, none")

    async def test_no_session_is_made_before_there_is_something_to_say(self) -> None:
        anna = await self.daemon.join()
        terminal = await self.chat()
        terminal.enter("/rename x")
        await terminal.shows("there is no session yet")
        self.assertEqual((await anna.call("GET", "/sessions")).json, [])

    async def test_unknown_commands_are_not_sent(self) -> None:
        terminal = await self.chat()
        terminal.press("/he\t")
        await terminal.shows("> /help")
        terminal.press("\x15")
        terminal.enter("/sesions")
        await terminal.shows("did you mean /sessions?")
        terminal.enter("//sesions")
        self.assertEqual((await self.daemon.entered(1)).prompt, "/sesions")

    async def test_its_help_says_how_to_reach_the_agents_own(self) -> None:
        terminal = await self.chat()
        terminal.enter("/help")
        await terminal.shows("//help goes to the agent\n")
        terminal.enter("//help")
        self.assertEqual((await self.daemon.entered(1)).prompt, "/help")

    async def test_a_path_is_a_prompt(self) -> None:
        terminal = await self.chat()
        terminal.enter("/etc/hosts is what?")
        self.assertEqual((await self.daemon.entered(1)).prompt, "/etc/hosts is what?")

    async def test_a_deleted_session_is_told_of(self) -> None:
        terminal = await self.chat()
        run = await self.asked(terminal, "hello")
        run.release()
        await self.idle(terminal)
        anna = await self.daemon.join()
        await anna.call("DELETE", f"/sessions/{run.turn.session_id}")
        await terminal.shows("this session was deleted")
        again = await self.asked(terminal, "again", 2)
        self.assertNotEqual(again.turn.session_id, run.turn.session_id)

    async def test_history_is_kept_for_the_next_chat_and_for_nobody_else(self) -> None:
        terminal = await self.chat()
        run = await self.asked(terminal, "hello")
        run.release()
        await self.idle(terminal)
        terminal.press("\x04")
        await terminal.ends()
        file = self.root / ".local/state/crushlite/chat_history"
        self.assertEqual(stat.S_IMODE(file.stat().st_mode), 0o600)
        terminal = await self.chat()
        terminal.press("\x1b[A")
        await terminal.shows("> hello")
        terminal.press(" again\r")
        self.assertEqual((await self.daemon.entered(2)).prompt, "hello again")

    async def test_a_paste_of_several_lines_is_one_prompt(self) -> None:
        terminal = await self.chat_process()
        terminal.press("\x1b[200~one\r\n\ttwo\x1b[201~")
        await terminal.shows("> one⏎ two")
        terminal.press("\r")
        self.assertEqual((await self.daemon.entered(1)).prompt, "one\n\ttwo")

    async def test_the_escape_key_swallows_neither_a_paste_nor_a_letter(self) -> None:
        terminal = await self.chat()
        terminal.press("a\x1b")
        await terminal.shows("> a")
        terminal.press("\x1b[200~one\r\ntwo\x1b[201~\x1b")
        await terminal.shows("> aone⏎two")
        terminal.press("b")
        await terminal.shows("> aone⏎twob")
        terminal.press("\r")
        self.assertEqual((await self.daemon.entered(1)).prompt, "aone\ntwob")

    async def test_what_ctrl_c_threw_away_is_the_first_that_history_brings_back(self) -> None:
        terminal = await self.chat()
        for number, text in enumerate(("one", "two"), 1):
            run = await self.asked(terminal, text, number)
            await run.say(f"answer {number}")
            run.release()
            await terminal.shows(lambda seen, n=number: seen.endswith(f"answer {n}\n\n>"))  # type: ignore[misc]
        for _ in range(2):
            terminal.press("\x1b[A")
            await terminal.shows(lambda seen: seen.endswith("\n> two"))
            terminal.press("\x03")
            await terminal.shows(lambda seen: seen.endswith("\n>"))


class ConnectionTests(ChatCase):
    async def test_after_a_cut_nothing_is_missing_and_nothing_is_there_twice(self) -> None:
        relay = await self.enterAsyncContext(Relay(self.root / "relay.sock", self.daemon.socket))
        terminal = await self.chat_process(host=f"--host=unix://{relay.path}")
        run = await self.asked(terminal, "hello")
        await run.say("one ")
        await terminal.shows("\none\n")
        relay.cut()
        await terminal.shows("the daemon is gone")
        await run.say("two ")
        await terminal.shows("connected again")
        await run.say("three")
        run.release()
        await terminal.shows(lambda seen: seen.endswith("\none two three\n\n>"))
        self.assertEqual(terminal.seen.count("one"), 2)  # the other is in the note


class RestartTests(CommandCase):
    """A daemon process with the offline agent is killed in the middle of an answer."""

    async def asyncSetUp(self) -> None:
        daemon = await self.serve(self.socket)
        self.addCleanup(self.end_daemon, self.socket)
        self.window = await self.chat("--agent=offline")
        self.window.enter("hello")
        await self.window.shows("\nYou said: hello\n")
        self.window.enter("begun\\\r/slow 600")
        await self.window.shows("\nYou said: begun\n")
        daemon.process.kill()
        await daemon.end()
        await self.window.shows("not connected")

    def check(self, seen: str, *more: str) -> None:
        """Insist that each of these is there once."""
        told = ("You said: hello", "\n  /slow 600", "connected again", "You said: begun")
        for once in (*told, "✗ interrupted: the daemon stopped", *more):
            self.assertEqual(seen.count(once), 1, once)

    async def test_a_chat_comes_back_when_its_daemon_does(self) -> None:
        await self.serve(self.socket)
        await self.window.shows("the daemon stopped")
        self.window.enter("again")
        self.check(await self.window.shows("\nYou said: again\n"))

    async def test_whoever_sends_a_prompt_wants_a_daemon(self) -> None:
        self.window.enter("still there?")
        seen = await self.window.shows("\nYou said: still there?\n")
        self.check(seen, "\n> still there?", "starting a daemon")


class SizeTests(ChatCase):
    async def test_a_change_of_size_tears_nothing(self) -> None:
        # Nothing runs, so that only a change of size makes it draw: what was drawn for the old
        # size and arrives in the new one looks torn in any terminal.
        terminal = await self.chat_process(columns=80)
        terminal.enter("/help")
        await terminal.shows(lambda seen: seen.endswith("in the next one.\n\n>"))
        before = terminal.seen.removesuffix(">")
        draft = "a draft that is longer than the narrow window will be"
        terminal.press(draft)
        await terminal.shows(f"> {draft}")
        for columns in (30, 60, 12, 100, 40):
            terminal.resize(columns)
            room = columns - len("> ") - 1  # the last column is never used, nor is the cursor's
            tail = draft if len(draft) < room else draft[1 - room :]
            await terminal.shows(f"{before}> {tail}".__eq__)
        terminal.press("\r")
        self.assertEqual((await self.daemon.entered(1)).prompt, draft)

    async def test_in_tmux_where_it_is_installed_it_looks_the_same(self) -> None:
        """The same scene in the terminal of the tests and, if there is one, in tmux."""
        scenes = [await self._scene(await self._emulated())]
        if shutil.which("tmux"):
            scenes.append(await self._scene(await Tmux.open(self)))
        for seen in scenes:
            self.assertIn("> hello\n\nfirst second\n\n> ", seen)
            self.assertEqual(seen.count("first"), 1)

    async def _emulated(self) -> Terminal:
        return await self.chat_process()

    async def _scene(self, terminal: Terminal | Tmux) -> str:
        number = len(self.daemon.agent.runs) + 1
        await terminal.shows("/help lists")
        terminal.enter("hello")
        run = await self.daemon.entered(number)
        await run.say("first ")
        await terminal.shows("\nfirst\n")
        terminal.resize(50)
        terminal.press("more")
        await terminal.shows("> more")
        await run.say("second")
        run.release()
        return await terminal.shows("first second\n\n> more")


class Tmux:
    """The same scene in tmux. A pipe from the pane says when something was written, so that no test
    has to poll."""

    def __init__(self, socket: str) -> None:
        self._tmux = ("tmux", "-L", socket, "-f", "/dev/null")
        self._pipe: asyncio.subprocess.Process | None = None

    @classmethod
    async def open(cls, case: ChatCase) -> Tmux:
        self = cls(case.root.name)
        fifo = case.root / "fifo"
        subprocess.run(["mkfifo", str(fifo)], check=True, timeout=PATIENCE)
        environment = [item for pair in case.env.items() for item in ("-e", "=".join(pair))]
        self._call("new-session", "-d", "-x", "80", "-y", "40", *environment, "sh")
        case.addCleanup(self._call, "kill-server")
        self._pipe = await asyncio.create_subprocess_exec("cat", str(fifo), stdout=subprocess.PIPE)
        case.addAsyncCleanup(self._end)
        self._call("pipe-pane", f"cat > {fifo}")
        command = " ".join([*COMMAND, "chat", case.host])
        self.enter(f"clear; cd {case.project} && LANG=C.UTF-8 PYTHONUTF8=1 {command}")
        return self

    async def _end(self) -> None:
        assert self._pipe is not None
        if self._pipe.returncode is None:
            self._pipe.kill()
        await self._pipe.communicate()

    def _call(self, *arguments: str) -> str:
        done = subprocess.run(
            [*self._tmux, *arguments], capture_output=True, text=True, timeout=PATIENCE, check=True
        )
        return done.stdout

    def enter(self, line: str) -> None:
        self.press(line)
        self._call("send-keys", "Enter")

    def press(self, keys: str) -> None:
        self._call("send-keys", "-l", keys)

    def resize(self, columns: int) -> None:
        self._call("resize-window", "-x", str(columns))

    async def shows(self, text: str) -> str:
        assert self._pipe is not None
        assert self._pipe.stdout is not None
        async with asyncio.timeout(PATIENCE):
            while True:
                lines = self._call("capture-pane", "-p").rstrip().splitlines()
                seen = "\n".join(line.rstrip() for line in lines)
                if text in seen:
                    return seen
                await self._pipe.stdout.read(4096)


class PipeTests(ScriptedCase):
    """Without a terminal: lines in, answers out."""

    async def test_each_line_is_a_prompt_of_one_session(self) -> None:
        child = await self.start("chat", self.host, stdin=b"one\n\n/help\ntwo")
        for number, prompt in enumerate(("one", "/help", "two"), 1):
            run = await self.daemon.entered(number)
            self.assertEqual(run.prompt, prompt)
            self.assertFalse(run.turn.interactive)
            await run.say(f"answer {number}")
            run.release()
        self.assertEqual(await child.end(), (0, "answer 1\nanswer 2\nanswer 3\n"), child.errors)
        self.assertEqual(len({run.turn.session_id for run in self.daemon.agent.runs}), 1)

    async def test_a_failure_is_told_on_standard_error_and_the_rest_is_asked(self) -> None:
        child = await self.start("chat", self.host, "-q", stdin=b"one\ntwo\n")
        (await self.daemon.entered(1)).fail("out of luck")
        run = await self.daemon.entered(2)
        await run.say("fine")
        run.release()
        self.assertEqual(await child.end(), (1, "fine\n"))
        self.assertEqual(child.errors, "crushlite: ScriptedFailure: out of luck\n")

    async def test_a_signal_cancels_and_leaves_though_input_may_come(self) -> None:
        child = await self.spawn("chat", self.host, stdin=subprocess.PIPE)
        assert child.process.stdin is not None
        child.process.stdin.write(b"one\n")
        run = await self.daemon.entered(1)
        await run.say("half")
        await child.prints("half")
        child.process.terminate()
        self.assertEqual(await child.end(), (130, "half\n"), child.errors)
        anna: Participant = await self.daemon.join()
        self.assertTrue(anna.id)
