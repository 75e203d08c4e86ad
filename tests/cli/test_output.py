"""What `run` and `attach` print of a run, and what they say about it: without a daemon."""

from __future__ import annotations

import argparse
import io
import json
import unittest
from typing import Any
from unittest import mock

from crushlite import cli
from crushlite.cli import helptext, text as words
from crushlite.cli.follow import JSONOutput, RunNotes, TextOutput
from crushlite.cli.tables import clip, shorten, table
from crushlite.client import Lost
from crushlite.protocol.events import Envelope
from crushlite.protocol.messages import FinishPart, Message, TextPart, ToolCallPart, ToolResultPart
from crushlite.protocol.permissions import PermissionNotification, PermissionRequest
from crushlite.protocol.questions import Question, QuestionBatch, QuestionNotification
from crushlite.protocol.runs import Accepted, AgentEvent, RunComplete
from tests.support.scenarios import scenario


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

    @scenario(297)
    def test_the_finish_of_a_message_does_not_end_the_output(self) -> None:
        steps = (said("a", "I look.", "tool_use"), said("b", "Done.", "end_turn"))
        self.assertEqual(self.printed(*steps), "I look.\nDone.")
        self.assertEqual(self.complete("Done.", "b"), "\n")

    @scenario(298)
    def test_an_older_state_is_ignored_and_the_ending_completes_a_message(self) -> None:
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
        self.assertEqual(self.printed(said("a", text)), "red \ttab\nline esrever")


class JSONTests(unittest.TestCase):
    def test_every_line_is_an_event_in_the_shape_of_the_wire(self) -> None:
        output = JSONOutput(concludes=False)
        output.accepted(Accepted("R", "S", "active"))
        for payload in (said("a", "caf\u00e9"), Lost("away"), {"new": "kind"}):
            output.event(Envelope("", "created", payload))
        output.event(Envelope("", "updated", RunComplete("S", "a", "R", "done")))
        lines = [json.loads(line) for line in output.take().splitlines()]
        self.assertEqual([line["type"] for line in lines], ["accepted", "message", "run_complete"])
        self.assertEqual(lines[0]["payload"]["run_id"], "R")
        self.assertEqual(lines[1]["payload"]["payload"]["parts"][0]["data"]["text"], "caf\u00e9")


class NotesTests(unittest.TestCase):
    def setUp(self) -> None:
        self.progress = mock.Mock()
        self.notes = RunNotes(self.progress)

    def told(self, *payloads: object) -> tuple[list[str], str]:
        """The notes so far, and the present status."""
        for payload in payloads:
            self.notes.take(payload)
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

    def test_a_tool_that_failed_is_told_with_the_code_of_its_command(self) -> None:
        command = calling("a", "", id="c", name="bash", input='{"command": "make"}', finished=True)
        content = "Exit code 2\nno rule\x1b[2J"
        failed = Message("t", "tool", "S", [ToolResultPart("c", "bash", content, is_error=True)])
        self.told(command, failed, failed)
        line = "✗ bash make → Exit code 2 (+1 line)"
        self.assertEqual(self.progress.tool.call_args_list, [mock.call(line, failed=True)])
        done = Message("u", "tool", "S", [ToolResultPart("d", "bash", "fine")])
        self.told(done)
        self.assertEqual(
            self.progress.tool.call_args_list[1:], [mock.call("✓ bash → fine", failed=False)]
        )

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

    def test_a_model_call_that_is_tried_again_is_told_of(self) -> None:
        retry = AgentEvent("retry", "S", run_id="R", progress="retrying in 4 s,\nbecause \x1b[2J")
        notes, now = self.told(retry, AgentEvent("agent_finished", "S"))
        self.assertEqual((notes, now), (["retrying in 4 s, because ?[2J"], "thinking"))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class StyleTests(unittest.TestCase):
    def painted(self, stream: io.StringIO, **env: str) -> str:
        with mock.patch.dict("os.environ", env, clear=True):
            return words.Style(stream).red("x")

    def test_colours_are_for_terminals_that_want_them(self) -> None:
        self.assertEqual(self.painted(Terminal(), TERM="xterm"), "\x1b[31mx\x1b[0m")
        self.assertEqual(self.painted(Terminal(), TERM="xterm", NO_COLOR=""), "\x1b[31mx\x1b[0m")
        self.assertEqual(self.painted(Terminal(), TERM="xterm", NO_COLOR="1"), "x")
        self.assertEqual(self.painted(Terminal(), TERM="dumb"), "x")
        self.assertEqual(self.painted(Terminal()), "x")
        self.assertEqual(self.painted(io.StringIO(), TERM="xterm"), "x")

    def test_without_colours_a_line_can_still_be_drawn_again(self) -> None:
        with mock.patch.dict("os.environ", {"TERM": "xterm", "NO_COLOR": "1"}):
            self.assertTrue(words.Style(Terminal()).moves)

    def test_a_table_is_aligned_by_what_is_seen(self) -> None:
        rows = [("a", "one\ntwo"), ("\u65e5\u672c", "x"), ("e\u0301e", "\x1b[2J")]
        text = table(rows, ("ID", "SAID"), words.Style(None))
        lines = ["ID    SAID", "a     one two", "\u65e5\u672c  x", "e\u0301e    ?[2J"]
        self.assertEqual(text.splitlines(), lines)

    def narrow(
        self, columns: int, *rows: tuple[str, ...], spare: tuple[str, ...] = ()
    ) -> list[str]:
        heads = ("ID", "USED", "DIRECTORY", "SAID")[: len(rows[0])]
        with mock.patch.dict("os.environ", {"COLUMNS": str(columns), "TERM": "dumb"}):
            return table(rows, heads, words.Style(Terminal()), spare).splitlines()

    def test_on_a_terminal_a_row_is_a_line(self) -> None:
        long = "\u65e5\u672c " * 30
        row = ("12345678", "3 min ago", "/home/kim/projects/parser", long)
        for columns in (20, 40, 80, 100):
            lines = self.narrow(columns, row)
            self.assertEqual(len(lines), 2)
            self.assertTrue(all(words.width(line) <= columns for line in lines), lines)
            self.assertTrue(lines[1].startswith("12345678  "), "an id is whole")
            self.assertTrue(lines[1].endswith("\u2026"))
        self.assertIn("/parser  ", self.narrow(40, row)[1], "of a path its name is left")

    def test_columns_give_way_to_the_last_one_only_where_it_is_narrow(self) -> None:
        row = ("12345678", "3 min ago", "/home/kim", "a title of some length")
        self.assertEqual(
            self.narrow(80, row, spare=("USED",))[0], "ID        USED       DIRECTORY  SAID"
        )
        narrow = self.narrow(40, row, spare=("USED", "DIRECTORY"))
        self.assertEqual(
            narrow, ["ID        DIRECTORY  SAID", "12345678  /home/kim  a title of some le\u2026"]
        )
        nothing = ("12345678", "", "", "a title")
        heads = self.narrow(80, nothing, spare=("USED", "DIRECTORY"))[0]
        self.assertEqual(heads, "ID        SAID", "there is nothing in the others")
        self.assertEqual(self.narrow(30, row, spare=("USED", "DIRECTORY"))[0], "ID        SAID")

    def test_without_a_terminal_nothing_is_cut(self) -> None:
        with mock.patch.dict("os.environ", {"COLUMNS": "20"}):
            text = table([("12345678", "x" * 150)], ("ID", "SAID"), words.Style(None), ("ID",))
        self.assertEqual(text, f"ID        SAID\n12345678  {'x' * 150}")

    def test_a_painted_line_is_cut_by_what_is_seen(self) -> None:
        line = "\x1b[1mbold\x1b[0m and plain"
        self.assertEqual(clip(line, 14), line)
        self.assertEqual(clip(line, None), line)
        self.assertEqual(clip(line, 8), "\x1b[1mbold\x1b[0m an\u2026")
        self.assertEqual(clip(line, 3), "\x1b[1mbo\u2026\x1b[0m")
        self.assertEqual((shorten("/a/path", 4), shorten("words", 4)), ("\u2026ath", "wor\u2026"))

    def test_times_are_told_in_few_words(self) -> None:
        spans = (0.04, 0.44, 12.9, 185, 7800, 356400)
        told = ["0.0 s", "0.4 s", "12 s", "3 min 5 s", "2 h 10 min", "4 d 3 h"]
        self.assertEqual([words.elapsed(span) for span in spans], told)
        past = [words.ago(1000 - span, 1000) for span in (-5, 1, 30, 90)]
        self.assertEqual(past, ["now", "now", "30 s ago", "1 min ago"])
        self.assertEqual([words.ago(0, t) for t in (7200, 200000)], ["2 h ago", "2 d ago"])

    def test_seconds_are_read_strictly(self) -> None:
        self.assertEqual([helptext.seconds("0"), helptext.seconds("2.5")], [0.0, 2.5])
        for text in ("-1", "x", "nan", "inf", ""):
            with self.subTest(text), self.assertRaises(argparse.ArgumentTypeError):
                helptext.seconds(text)


class TableOfCommandsTests(unittest.TestCase):
    def setUp(self) -> None:
        self.enterContext(mock.patch.dict("os.environ", {"COLUMNS": "80"}))

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

    def helped(self, columns: int, *argv: str) -> list[str]:
        with mock.patch.dict("os.environ", {"COLUMNS": str(columns)}):
            code, out, err = self.run_main(*argv, "--help")
        self.assertEqual((code, err), (0, ""))
        return out.splitlines()

    def test_help_is_as_wide_as_the_terminal_and_not_wider_than_100(self) -> None:
        for row in (*cli.COMMANDS, None):
            for columns in (60, 80, 300):
                lines = self.helped(columns, *([row.name] if row else []))
                prose = lines[: lines.index("examples:")] if "examples:" in lines else lines
                widest = max(prose, key=len)
                with self.subTest(widest):
                    self.assertLess(len(widest), min(columns, 101))

    def test_on_a_narrow_terminal_examples_can_still_be_copied(self) -> None:
        wide, narrow = (self.helped(columns, "run") for columns in (300, 60))
        self.assertIn(
            '  crushlite run --continue "now with a test"      # in the session used last', wide
        )
        at = narrow.index('  crushlite run --continue "now with a test"')
        self.assertEqual(narrow[at - 1], "  # in the session used last")
        at = narrow.index("  git diff |")
        self.assertEqual(narrow[at + 1], '    crushlite run "write a commit message" > message.txt')

    def test_actions_are_listed_with_a_line_each(self) -> None:
        for command, actions in (
            ("sessions", ("list", "show", "export", "rename", "delete")),
            ("config", ("show", "set", "unset")),
        ):
            lines = self.helped(80, command)
            start = lines.index("actions:") + 1
            listed = lines[start : start + len(actions) + 1]
            for line, action in zip(listed, (*actions, None), strict=True):
                with self.subTest(command=command, action=action):
                    self.assertRegex(line, rf"^  {action} +\S.*" if action else "^$")

    def test_serve_shows_no_defaults_that_say_nothing(self) -> None:
        lines = " ".join(self.helped(100, "serve"))
        self.assertIn("(default: auto)", lines)
        for nothing in ("None", "False", ")", " )"):
            self.assertNotIn(f"(default: {nothing})", lines)

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
