"""What `run` and `attach` print of a run, and what they say about it: without a daemon."""

from __future__ import annotations

import argparse
import io
import json
import unittest
from typing import Any
from unittest import mock

from crushlite import cli
from crushlite.cli import common
from crushlite.cli.follow import Narrator
from crushlite.cli.output import JSONOutput, TextOutput
from crushlite.client import Lost
from crushlite.protocol.events import Envelope
from crushlite.protocol.messages import FinishPart, Message, TextPart, ToolCallPart, ToolResultPart
from crushlite.protocol.permissions import PermissionNotification, PermissionRequest
from crushlite.protocol.questions import Question, QuestionBatch, QuestionNotification
from crushlite.protocol.runs import Accepted, AgentEvent, RunComplete


def said(message_id: str, text: str, finish: str = "", **fields: Any) -> Message:
    message = Message(message_id, "assistant", "S", [TextPart(text)], **fields)
    if finish:
        message.parts.append(FinishPart(finish))
    return message


def calling(message_id: str, text: str, **call: Any) -> Message:
    message = said(message_id, text)
    message.parts.append(ToolCallPart(**call))
    return message


class TextTests(unittest.TestCase):
    def setUp(self) -> None:
        self.output = TextOutput("S")

    def printed(self, *payloads: object) -> str:
        for payload in payloads:
            self.output.event(Envelope("", "updated", payload))
        return self.output.take()

    def complete(self, text: str = "", message_id: str = "a") -> str:
        return self.printed(RunComplete("S", message_id, "R", text))

    def test_only_what_is_new_is_printed(self) -> None:
        texts = ("", "one", "one", "one two", "one two three")
        pieces = [self.printed(said("a", text)) for text in texts]
        self.assertEqual(pieces, ["", "one", "", " two", " three"])
        self.assertEqual(self.complete("one two three"), "\n")

    def test_297_run_ignores_tool_use_and_end_turn_finish(self) -> None:
        steps = (said("a", "I look.", "tool_use"), said("b", "Done.", "end_turn"))
        self.assertEqual(self.printed(*steps), "I look.\nDone.")
        self.assertEqual(self.complete("Done.", "b"), "\n")

    def test_298_run_reconciles_out_of_order_and_partial(self) -> None:
        self.assertEqual(self.printed(said("a", "one two"), said("a", "one")), "one two")
        self.assertEqual(self.complete("one two three"), " three\n")

    def test_blanks_in_front_are_trimmed_once(self) -> None:
        self.printed(said("a", "\n"), said("a", "\n \n"))
        text = self.printed(said("a", "\n \n  one\n\n"), said("b", "  two"))
        self.assertEqual(text + self.complete("  two", "b"), "one\n\n  two\n")

    def test_a_text_that_was_rewritten_is_printed_again(self) -> None:
        text = self.printed(said("a", "wrong"), said("a", "right"))
        self.assertEqual(text + self.complete("right"), "wrong\nright\n")

    def test_summaries_other_roles_and_other_sessions_are_not_printed(self) -> None:
        elsewhere = said("k", "inner")
        elsewhere.session_id = "kid"
        summary = said("s", "a summary", is_summary_message=True)
        typed = Message("u", "user", "S", [TextPart("hi")])
        self.assertEqual(self.printed(elsewhere, summary, typed, AgentEvent("error", "S")), "")
        self.assertEqual(self.complete("ours"), "ours\n")

    def test_a_line_ends_where_a_tool_begins(self) -> None:
        begun = calling("a", "I look.", id="c", name="bash", input="{", finished=False)
        self.assertEqual(self.printed(begun), "I look.")
        self.assertTrue(self.output.midline)
        ready = calling("a", "I look.", id="c", name="bash", input="{}", finished=True)
        self.assertEqual(self.printed(ready, ready), "\n")
        self.assertFalse(self.output.midline)
        self.assertEqual(self.printed(said("b", "Done.")), "Done.")

    def test_a_terminal_gets_nothing_that_commands_it(self) -> None:
        text = "red \x1b[31m\x07\ttab\nline\x9b \u202eesrever\u2066"
        self.assertEqual(self.printed(said("a", text)), text)
        self.output = TextOutput("S", terminal=True)
        self.assertEqual(self.printed(said("a", text)), "red [31m\ttab\nline esrever")


class JSONTests(unittest.TestCase):
    def test_every_line_is_an_event_in_the_shape_of_the_wire(self) -> None:
        output = JSONOutput()
        output.accepted(Accepted("R", "S", "active"))
        for payload in (said("a", "caf\u00e9"), Lost("away"), {"new": "kind"}):
            output.event(Envelope("", "created", payload))
        output.event(Envelope("", "updated", RunComplete("S", "a", "R", "done")))
        lines = [json.loads(line) for line in output.take().splitlines()]
        self.assertEqual([line["type"] for line in lines], ["accepted", "message", "run_complete"])
        self.assertEqual(lines[0]["payload"]["run_id"], "R")
        self.assertEqual(lines[1]["payload"]["payload"]["parts"][0]["data"]["text"], "caf\u00e9")


class NarratorTests(unittest.TestCase):
    def setUp(self) -> None:
        self.progress = mock.Mock()
        self.narrator = Narrator(self.progress)

    def told(self, *payloads: object) -> tuple[list[str], str]:
        """The notes so far, and what is said to go on now."""
        for payload in payloads:
            self.narrator.take(payload)
        notes = [call.args[0] for call in self.progress.say.call_args_list]
        return notes, self.progress.doing.call_args.args[0]

    def test_the_tool_at_work_is_named_until_its_result_is_there(self) -> None:
        one = '{"command": "ls \\u001b[2J"}'
        self.assertEqual(self.told(said("a", "hm")), ([], "thinking"))
        begun = calling("a", "", id="c", name="bash", input='{"comm')
        self.assertEqual(self.told(begun), ([], "bash"))
        ready = calling("a", "", id="c", name="bash", input=one, finished=True)
        self.assertEqual(self.told(ready), ([], "bash ls ?[2J"))
        result = Message("t", "tool", "S", [ToolResultPart("c", "bash", "x")])
        self.assertEqual(self.told(result), ([], "thinking"))

    def test_who_is_waited_for_is_told_once_with_the_answer(self) -> None:
        request = PermissionRequest("p", "S", "c", "bash", params={"command": "rm x"})
        notes, now = self.told(PermissionNotification("c"), request, request)
        self.assertEqual(notes, ["waiting for permission: bash rm x (crushlite grant answers)"])
        self.assertEqual(now, "waiting for an answer: bash rm x")
        notes, now = self.told(PermissionNotification("c", denied=True))
        self.assertEqual((notes[1:], now), (["permission denied: bash rm x"], "thinking"))

    def test_questions_are_told_likewise(self) -> None:
        batch = QuestionBatch("b", "S", questions=[Question(question="Go on?")])
        notes, _ = self.told(batch, QuestionNotification("b"))
        asked = "waiting for an answer: Go on? (answer in another client)"
        self.assertEqual(notes, [asked, "no longer asked: Go on?"])


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class StyleTests(unittest.TestCase):
    def painted(self, stream: io.StringIO, **env: str) -> str:
        with mock.patch.dict("os.environ", env, clear=True):
            return common.Style(stream).red("x")

    def test_colours_are_for_terminals_that_want_them(self) -> None:
        self.assertEqual(self.painted(Terminal(), TERM="xterm"), "\x1b[31mx\x1b[0m")
        self.assertEqual(self.painted(Terminal(), TERM="xterm", NO_COLOR=""), "\x1b[31mx\x1b[0m")
        self.assertEqual(self.painted(Terminal(), TERM="xterm", NO_COLOR="1"), "x")
        self.assertEqual(self.painted(Terminal(), TERM="dumb"), "x")
        self.assertEqual(self.painted(Terminal()), "x")
        self.assertEqual(self.painted(io.StringIO(), TERM="xterm"), "x")

    def test_without_colours_a_line_can_still_be_drawn_again(self) -> None:
        with mock.patch.dict("os.environ", {"TERM": "xterm", "NO_COLOR": "1"}):
            self.assertTrue(common.Style(Terminal()).moves)

    def test_a_table_is_aligned_by_what_is_seen(self) -> None:
        rows = [("a", "one\ntwo"), ("\u65e5\u672c", "x"), ("e\u0301e", "\x1b[2J")]
        text = common.table(rows, ("ID", "SAID"), common.Style(None))
        lines = ["ID    SAID", "a     one two", "\u65e5\u672c  x", "e\u0301e    ?[2J"]
        self.assertEqual(text.splitlines(), lines)

    def test_times_are_told_in_few_words(self) -> None:
        spans = (0.04, 0.44, 12.9, 185, 7800, 356400)
        told = ["0.0 s", "0.4 s", "12 s", "3 min 5 s", "2 h 10 min", "4 d 3 h"]
        self.assertEqual([common.elapsed(span) for span in spans], told)
        past = [common.ago(1000 - span, 1000) for span in (-5, 1, 30, 90)]
        self.assertEqual(past, ["now", "now", "30 s ago", "1 min ago"])
        self.assertEqual([common.ago(0, t) for t in (7200, 200000)], ["2 h ago", "2 d ago"])

    def test_seconds_are_read_strictly(self) -> None:
        self.assertEqual([common.seconds("0"), common.seconds("2.5")], [0.0, 2.5])
        for text in ("-1", "x", "nan", "inf", ""):
            with self.subTest(text), self.assertRaises(argparse.ArgumentTypeError):
                common.seconds(text)


class TableOfCommandsTests(unittest.TestCase):
    def run_main(self, *argv: str) -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        with mock.patch("sys.stdout", out), mock.patch("sys.stderr", err):
            try:
                code = cli.main(argv)
            except SystemExit as left:  # argparse leaves by itself
                code = int(left.code or 0)
        return code, out.getvalue(), err.getvalue()

    def test_the_help_lists_every_command_in_its_group(self) -> None:
        for argv in (("--help",), ("-h",), ("help",)):
            code, out, _ = self.run_main(*argv)
            self.assertEqual(code, 0)
            for row in cli.COMMANDS:
                with self.subTest(row.name):
                    self.assertRegex(out, rf"(?m)^{row.group}:$")
                    self.assertRegex(out, rf"(?m)^  {row.name} +{row.help}$")

    def test_every_command_explains_itself_with_its_own_name(self) -> None:
        self.assertEqual(len({row.name for row in cli.COMMANDS}), len(cli.COMMANDS))
        for row in cli.COMMANDS:
            for argv in ((row.name, "--help"), ("help", row.name)):
                with self.subTest(argv):
                    code, out, err = self.run_main(*argv)
                    self.assertEqual((code, err), (0, ""))
                    self.assertRegex(out, rf"^usage: crushlite {row.name}\b")

    def test_what_is_not_a_command_is_a_usage_error_with_a_guess(self) -> None:
        code, out, err = self.run_main("rnu")
        self.assertEqual((code, out), (2, ""))
        self.assertIn("'rnu' is no command; did you mean run?", err)
        code, _, err = self.run_main()
        self.assertEqual((code, "which command?" in err), (2, True))

    def test_the_version_is_told(self) -> None:
        code, out, _ = self.run_main("--version")
        self.assertEqual((code, out.split()[0]), (0, "crushlite"))
