"""The parts of the commands that need no process: rendering, the input line, the screen."""

from __future__ import annotations

import io
import json
import os
import stat
import tempfile
import unittest
from collections import Counter
from pathlib import Path
from random import Random
from unittest import mock

from crushlite.cli.chat_dialogs import PermissionDialog, QuestionDialog, looks_like_answer
from crushlite.cli.chat_history import KEPT, HistoryFile, history_path
from crushlite.cli.chat_lines import LineEditor, Pressed
from crushlite.cli.chat_screen import Screen, wrapped
from crushlite.cli.chat_view import ChatView, Item
from crushlite.cli.export import SessionExport
from crushlite.cli.lookup import choose
from crushlite.cli.markdown import markdown
from crushlite.cli.render import (
    Requests,
    ShownMessages,
    arguments,
    brief_line,
    call_line,
    ending_words,
    reading_lines,
    request_lines,
    request_words,
    result_words,
)
from crushlite.cli.text import Style, clean, cut, visible
from crushlite.errors import CrushliteError
from crushlite.hosting.difference import NO_LINE_END, difference
from crushlite.protocol.messages import (
    BinaryPart,
    FinishPart,
    Message,
    Part,
    ReasoningPart,
    ShellCommandPart,
    TextPart,
    ToolCallPart,
    ToolOutput,
    ToolResultPart,
)
from crushlite.protocol.permissions import PermissionNotification, PermissionRequest
from crushlite.protocol.questions import Choice, Question, QuestionBatch, QuestionNotification
from crushlite.protocol.sessions import File, Session
from tests.support.terminal import Emulator


def _ended(text: str) -> list[str]:
    """The lines of a text that have a line end."""
    return text.split("\n")[:-1]


class RenderTests(unittest.TestCase):
    def test_clean_text_holds_nothing_that_a_terminal_obeys(self) -> None:
        for hostile, harmless in (
            ("\x1b[31mred\x1b[0m", "red"),
            ("\x1b]0;title\x07x\x1b]8;;http://evil\x1b\\y", "xy"),
            ("a\x1b[?1049h\x9b2Jb\x1bc\x1b(0c", "abc"),
            ("bell\x07 back\x08 cr\r nul\0 del\x7f c1\x85", "bell back cr nul del c1"),
            ("\u202egnp.exe\u202c \u2066x\u2069 \u200fy", "gnp.exe x y"),
            ("\x1b]0;never ended\nnext", "0;never ended\nnext"),
            ("lines\nand\ttabs", "lines\nand\ttabs"),
            ("caf\u00e9 \u4e16\u754c", "caf\u00e9 \u4e16\u754c"),
        ):
            self.assertEqual(clean(hostile).replace("]0;never", "0;never"), harmless)

    def test_visible_text_hides_nothing(self) -> None:
        shown = visible("ls\x1b[8m\t\u202e\u200b\r\nend")
        self.assertEqual(shown, "ls\\x1b[8m  \\u202e\\u200b\\r\nend")

    def test_a_text_is_cut_to_columns(self) -> None:
        self.assertEqual(
            [cut("abcdef", room) for room in (9, 6, 5, 1, 0)],
            ["abcdef", "abcdef", "abcd…", "…", ""],
        )
        self.assertEqual(cut("\u4e16\u754c\u4e16", 5), "\u4e16\u754c…")

    def test_a_call_is_one_line_with_what_tells_most_in_front(self) -> None:
        self.assertEqual(call_line("bash", {"description": "d", "command": "ls\n-l"}), "bash ls -l")
        self.assertEqual(
            call_line("grep", {"include": "*.py", "pattern": "x", "literal_text": False}),
            "grep x include=*.py",
        )
        self.assertEqual(call_line("edit", {"file_path": "a", "old_content": "long"}), "edit a")
        asked = {"questions": [{"question": "One?"}, {"question": "Two?"}, "nonsense"]}
        self.assertEqual(call_line("question", asked), "question One? / Two?")
        self.assertEqual(call_line("x", {}), "x")

    def test_the_input_of_a_call_may_be_anything(self) -> None:
        for given in ("", "{", "[]", "3", "[" * 100_000):
            self.assertEqual(arguments(ToolCallPart("c", "x", given)), {})

    def test_a_result_in_a_few_words(self) -> None:
        for content, error, words in (
            ("", False, "no output"),
            ("", True, "failed"),
            ("one line\n", False, "one line"),
            ("a\n\nb\n", False, "2 lines"),
            ("bad\nworse\n", True, "bad (+1 line)"),
            ("(no output)\n\n<cwd>/p</cwd>", False, "(no output)"),
            ("a\nb\n\n<cwd>/p</cwd>", False, "2 lines"),
        ):
            self.assertEqual(result_words(ToolResultPart("c", "x", content, is_error=error)), words)

    def test_only_unusual_ends_are_told(self) -> None:
        for finish, words in (
            (FinishPart("end_turn"), ""),
            (FinishPart("tool_use"), ""),
            (FinishPart("canceled"), "canceled"),
            (FinishPart("error", 0, "Oops", "it broke"), "Oops: it broke"),
            (FinishPart("error", 0, "Oops", "oops: it broke"), "oops: it broke"),
            (FinishPart("error"), "failed"),
        ):
            self.assertEqual(ending_words(finish), words)

    def test_a_request_is_told_once_and_wholly(self) -> None:
        request = PermissionRequest("p", "s", "c", "bash", "Execute command: ls", "execute")
        request.params = {"command": "ls", "description": "list", "run_in_background": False}
        request.path = "/here"
        self.assertEqual(request_lines(request), ["bash (execute)", "command: ls", "in: /here"])

    def test_nothing_that_is_asked_for_can_be_hidden(self) -> None:
        """Whatever a request holds, each character of it is shown, spelled out if it does not show
        itself; and no line of it looks like one of ours."""
        hostile = ["a\u2800\u3164\u115f\ufe0f\U000e0101b", "x\ny: yes, once", "\x85\u2028\x0c", "0"]
        for text in hostile:
            for key in ("command", "anything", "description", "old_content", "new_content"):
                request = PermissionRequest("p", "s", "c", "own", params={key: text}, path="/p")
                shown = request_lines(request)
                self.assertTrue(all(line.isprintable() for line in shown), shown)
                for piece in visible(text).split("\n"):
                    self.assertTrue(any(piece in line for line in shown), (key, text))
                self.assertFalse(any(line.startswith("y:") for line in shown), shown)
        for name, value in (("dry_run", False), ("n", 0), ("x", []), ("new_content", 5), ("y", "")):
            request = PermissionRequest("p", "s", "c", "own", params={name: value})
            self.assertTrue(any(name in line for line in request_lines(request)), name)
        request = PermissionRequest("p", "s", "c", "own", "Delete all: make", params={"a": "make"})
        self.assertIn("Delete all: make", request_lines(request))

    def test_a_diff_shows_every_changed_line_whatever_it_is(self) -> None:
        random = Random(13)
        for _ in range(2000):
            old, new = (
                "".join(random.choice(("a", "b\r", "c\x0c", "\n", "\n")) for _ in range(12))
                for _ in range(2)
            )
            shown = difference(old, new)
            self.assertEqual(bool(shown), old != new)
            for sign, text in (("-", old), ("+", new)):
                here = [line[1:] for line in shown if line[:1] in (sign, " ")]
                self.assertLessEqual(Counter(here), Counter(text.split("\n")), (old, new))
            added = Counter(line[1:] for line in shown if line.startswith("+"))
            self.assertLessEqual(Counter(_ended(new)) - Counter(_ended(old)), added)
        self.assertEqual(difference("a\n", "a"), ["@@", "-a", "+a", NO_LINE_END])
        self.assertEqual(
            difference("a\rb", "a\nb"), ["@@", "-a\rb", NO_LINE_END, "+a", "+b", NO_LINE_END]
        )

    def test_a_diff_of_lines_that_repeat_takes_no_longer(self) -> None:
        """It is bounded by comparisons, not by time: each text would take difflib minutes."""
        old = "".join(f"{n % 7}\n" for n in range(20_000))
        new = "".join(f"{n % 5}\n" for n in range(20_000))
        shown = difference(old, new)
        self.assertGreater(sum(line[0] in "+-" for line in shown), 39_000)

    def test_an_id_is_found_by_its_beginning_if_that_is_clear(self) -> None:
        ids = ["abc", "abd", "ab"]
        self.assertEqual(
            [choose(given, ids, "things") for given in ("ab", "abc", "x", "")],
            ["ab", "abc", "", ""],
        )
        with self.assertRaisesRegex(CrushliteError, "2 things begin with a"):
            choose("a", ids[:2], "things")


class MarkdownTests(unittest.TestCase):
    def test_all_kinds_of_parts_have_their_place(self) -> None:
        export = SessionExport(
            Session("sid", title="A <title>\n", created_at=1),
            [
                Message("1", "user", "sid", [TextPart("do it"), FinishPart("stop")]),
                Message(
                    "2",
                    "assistant",
                    "sid",
                    [
                        ReasoningPart("hm"),
                        TextPart("I \x1b[31mlook"),
                        ToolCallPart("c", "a<b", '{"x": "```"}', finished=True),
                    ],
                ),
                Message("3", "tool", "sid", [ToolResultPart("c", "a<b", "no", is_error=True)]),
                Message("4", "assistant", "sid", [FinishPart("canceled")]),
                Message("5", "user", "sid", [ShellCommandPart("ls", "a\n", 0)]),
            ],
            [File("f", "sid", "a.py"), File("g", "sid", "a.py", version=1)],
        )
        text = markdown(export)
        self.assertTrue(text.startswith("# A <title>\n\nSession `sid`, begun "))
        self.assertIn("## Assistant\n\n<details><summary>Reasoning</summary>\n\n```\nhm\n```", text)
        self.assertIn("\n\nI look\n", text)
        self.assertIn('a&lt;b</summary>\n\n````json\n{\n  "x": "```"\n}\n````\n', text)
        self.assertIn("<summary>Failed</summary>\n\n```\nno\n```", text)
        self.assertIn("\n*canceled*\n\n## You\n\n```\n$ ls\na\n[exit code 0]\n```\n", text)
        self.assertTrue(text.endswith("## Files\n\n- `a.py`\n"))
        self.assertEqual(text.count("## Assistant"), 1)


class ShownTests(unittest.TestCase):
    """What is new in messages, and the lines that `watch` and `sessions show` make of it."""

    def setUp(self) -> None:
        self.shown = ShownMessages()

    def message(self, ident: str, role: str, *parts: Part) -> Message:
        return Message(ident, role, "s", list(parts))

    def tags(self, message: Message, *, final: bool = False) -> list[str]:
        return [new.part.tag for new in self.shown.take(message, final=final)]

    def test_a_part_is_new_once_and_when_it_is_complete(self) -> None:
        call = ToolCallPart("c", "bash", "{")
        thinking, text = ReasoningPart("hm"), TextPart("I look.")
        self.assertEqual(self.tags(self.message("a", "assistant", thinking)), [])
        states = ([thinking, text], [thinking, text, call])
        found = [self.tags(self.message("a", "assistant", *state)) for state in states]
        self.assertEqual(found, [["reasoning", "text"], []])
        call.finished = True
        ended = self.message("a", "assistant", thinking, text, call, FinishPart("tool_use"))
        self.assertEqual([self.tags(ended) for _ in range(2)], [["tool_call", "finish"], []])

    def test_what_is_there_counts_as_complete_when_nothing_more_comes(self) -> None:
        call = ToolCallPart("c", "bash", "{")
        message = self.message("a", "assistant", ReasoningPart("hm"), call)
        self.assertEqual(self.tags(message, final=True), ["reasoning", "tool_call"])

    def test_a_text_that_another_part_comes_before_is_not_new_again(self) -> None:
        self.tags(self.message("a", "assistant", TextPart("one")))
        later = self.message("a", "assistant", ReasoningPart("hm"), TextPart("one two"))
        texts = [new.part.text for new in self.shown.take(later) if isinstance(new.part, TextPart)]
        self.assertEqual(texts, [" two"])

    def test_a_call_runs_until_its_result_or_the_end_of_its_run(self) -> None:
        for number, reason in enumerate(("tool_use", "canceled")):
            call = ToolCallPart(f"c{number}", "bash", '{"command": "make"}', finished=True)
            self.tags(self.message(f"a{number}", "assistant", call))
            self.shown.output(ToolOutput("s", call.id, "one\n\x1b[2Jtwo\n\n"))
            self.assertEqual(self.shown.activity, "bash make → two")
            self.tags(self.message(f"a{number}", "assistant", call, FinishPart(reason)))
            running = "bash make → two" if reason == "tool_use" else ""
            self.assertEqual(self.shown.activity, running)
            result = self.message(f"t{number}", "tool", ToolResultPart(call.id, "bash", "x"))
            (new,) = self.shown.take(result)
            self.assertEqual((new.call, self.shown.activity), (call, ""))

    def test_an_error_is_known_as_shown_by_the_end_of_its_message(self) -> None:
        finish = FinishPart("error", 0, "Oops", "it broke")
        self.tags(self.message("a", "assistant", finish))
        for message_id, error, shown in (
            ("a", "it broke", True),
            ("a", "not saved: disk full; it broke", False),
            ("", "it broke", False),
        ):
            self.assertEqual(self.shown.error_shown(message_id, error), shown)

    def test_lines_for_reading_and_in_brief(self) -> None:
        call = ToolCallPart("c", "bash", '{"command": "make"}', finished=True)
        picture, shell = BinaryPart("/a.png", "image/png"), ShellCommandPart("ls", "a\nb\n", 2)
        failed = ToolResultPart("c", "bash", "bad\nworse", is_error=True)
        messages = (
            self.message("u", "user", TextPart("one\ntwo"), picture, FinishPart("stop")),
            self.message("x", "user", shell, FinishPart("stop")),
            self.message("a", "assistant", TextPart("I look."), call, FinishPart("tool_use")),
            self.message("t", "tool", failed, FinishPart("stop")),
            self.message("b", "assistant", FinishPart("canceled")),
        )
        style, found = Style(None), [new for m in messages for new in self.shown.take(m)]
        reading = [line for new in found for line in reading_lines(new, style)]
        self.assertEqual(
            reading,
            [
                *("", "> one", "  two", "(attached: /a.png)"),
                *("", "$ ls", "a", "b", "exit code 2"),
                *("", "I look.", "  * bash make", "    failed: bad (+1 line)", "  ! canceled"),
            ],
        )
        brief = [line for new in found if (line := brief_line(new, style))]
        self.assertEqual(
            brief,
            [
                *("> one two", "$ ls (exit code 2)", "tool bash make", "I look."),
                *("  failed: bad (+1 line)", "canceled"),
            ],
        )

    def test_what_has_failed_is_red(self) -> None:
        with mock.patch.dict(os.environ, {"TERM": "xterm", "NO_COLOR": ""}):
            style = Style(mock.Mock(isatty=lambda: True))
        call = ToolCallPart("c", "bash", '{"command": "make"}', finished=True)
        failed = ToolResultPart("c", "bash", "Exit code 2\nno rule", is_error=True)
        messages = (
            self.message("x", "user", ShellCommandPart("ls", "", 2), FinishPart("stop")),
            self.message("a", "assistant", call, FinishPart("tool_use")),
            self.message("t", "tool", failed, FinishPart("stop")),
        )
        found = [new for m in messages for new in self.shown.take(m)]
        reading = [line for new in found for line in reading_lines(new, style)]
        brief = [brief_line(new, style) for new in found]
        self.assertIn(style.red("exit code 2"), reading)
        self.assertIn(style.red("    failed: Exit code 2 (+1 line)"), reading)
        self.assertIn(style.red("$ ls (exit code 2)"), brief)
        self.assertIn(style.red("  failed: Exit code 2 (+1 line)"), brief)
        self.assertTrue(style.red("x").startswith("\x1b[31m"))


class RequestTests(unittest.TestCase):
    def test_a_request_is_new_once_and_answered_once(self) -> None:
        requests = Requests()
        asked = PermissionRequest("p", "s", "c", "bash", params={"command": "ls"})
        batch = QuestionBatch("b", "s", "d", [Question("q", question="Sure?")])
        found = [requests.take(each) for each in (asked, asked, batch)]
        self.assertEqual(found, [(asked, "asked"), None, (batch, "asked")])
        self.assertIs(requests.first, asked)
        self.assertEqual([request_words(each) for each in (asked, batch)], ["bash ls", "Sure?"])
        answers = (
            PermissionNotification("c"),
            PermissionNotification("c", granted=True),
            PermissionNotification("c", denied=True),
            QuestionNotification("b"),
            QuestionNotification("b"),
        )
        verdicts = [requests.take(each) for each in answers]
        self.assertEqual(verdicts, [None, (asked, "allowed"), None, (batch, "closed"), None])
        self.assertIsNone(requests.first)


class EditorTests(unittest.TestCase):
    def setUp(self) -> None:
        self.editor = LineEditor(lambda text: text + "!" if text.startswith("/") else text)

    def type(self, keys: str) -> list[Pressed]:
        return self.editor.feed(keys.encode())

    def check(self, keys: str, text: str, cursor: int | None = None) -> None:
        self.editor.set("")
        self.type(keys)
        self.assertEqual(self.editor.text, text, repr(keys))
        self.assertEqual(self.editor.cursor, len(text) if cursor is None else cursor, repr(keys))

    def test_editing(self) -> None:
        self.check("abc\x7f", "ab")
        self.check("abc\x1b[D\x1b[DX", "aXbc", 2)
        self.check("abc\x01X\x05Y", "XabcY")
        self.check("abc\x1b[HX\x1bOFY", "XabcY")
        self.check("abc\x01\x1b[3~\x04", "c", 0)
        self.check("one two  \x17", "one ")
        self.check("one two\x15", "")
        self.check("one two\x15\x19\x19", "one twoone two")
        self.check("one two\x01\x1bf\x0b", "one")
        self.check("one two\x1b[1;5DX", "one Xtwo", 5)
        self.check("a\x1b\rb", "a\nb")
        self.check("a\\\rb", "a\nb")
        self.check("\x1b[99~\x1b[?1;2c\x02\x06\x00", "")
        self.check("caf\u00e9 \u4e16", "caf\u00e9 \u4e16")
        self.check("/he\t", "/he!")

    def test_what_comes_in_pieces_is_put_together(self) -> None:
        for piece in (
            b"\xc3",
            b"\xa9",
            b"\x1b",
            b"[",
            b"D",
            b"x",
            b"\x1b[200",
            b"~a\rb\x1b[2",
            b"01~c",
        ):
            self.assertEqual(self.editor.feed(piece), [])
        self.assertEqual(self.editor.text, "xa\nbc\u00e9")

    def test_enter_submits_and_end_of_input_is_for_an_empty_line(self) -> None:
        self.assertEqual(
            self.type("one\rtwo\n"), [Pressed("submit", "one"), Pressed("submit", "two")]
        )
        self.assertEqual(self.type("\x04"), [Pressed("end")])
        self.assertEqual(self.type("x\x04\x0c"), [Pressed("clear")])

    def test_a_paste_submits_nothing_and_brings_no_controls(self) -> None:
        self.assertEqual(self.type("\x1b[200~rm -rf /\r\x1b[2J\x07\x04\x1b[201~"), [])
        self.assertEqual(self.editor.text, "rm -rf /\n[2J")

    def test_history_goes_back_and_returns_to_the_draft(self) -> None:
        for text in ("one", "two", "two", "  "):
            self.editor.remember(text)
        self.type("draft")
        seen = []
        for key in ("\x1b[A", "\x1b[A", "\x1b[A", "\x1b[B", "\x1b[B", "\x1b[B"):
            self.type(key)
            seen.append(self.editor.text)
        self.assertEqual(seen, ["two", "one", "one", "two", "draft", "draft"])

    def test_a_text_is_put_aside_and_taken_back(self) -> None:
        self.type("a draft\x1b[D")
        self.editor.put_aside()
        self.type("y")
        self.editor.take_back()
        self.assertEqual((self.editor.text, self.editor.cursor), ("a draft", 6))

    def test_the_view_scrolls_sideways_with_the_cursor_in_it(self) -> None:
        self.editor.set("0123456789")
        self.assertEqual(self.editor.view(20), ("0123456789", 10))
        self.assertEqual(self.editor.view(5), ("6789", 4))
        self.type("\x01")
        self.assertEqual(self.editor.view(5), ("0123", 0))
        self.editor.set("a\nb\tc")
        self.assertEqual(self.editor.view(20), ("a⏎b c", 5))
        self.editor.set("\u4e16" * 10)
        self.assertEqual(self.editor.view(6), ("\u4e16\u4e16", 4))


class HistoryFileTests(unittest.TestCase):
    def setUp(self) -> None:
        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.path = history_path({"XDG_STATE_HOME": folder})
        self.file = HistoryFile(self.path)

    def test_it_is_for_its_owner_and_keeps_several_lines_as_one(self) -> None:
        self.assertEqual(self.file.load(), [])
        for text in ("one\ntwo", " not this", "caf\u00e9", "x" * 20_000):
            self.file.append(text)
        self.assertEqual(self.file.load(), ["one\ntwo", "caf\u00e9"])
        self.assertEqual(stat.S_IMODE(self.path.stat().st_mode), 0o600)
        self.assertEqual(stat.S_IMODE(self.path.parent.stat().st_mode), 0o700)

    def test_it_does_not_grow_for_ever_and_survives_damage(self) -> None:
        self.path.parent.mkdir(parents=True)
        lines = [json.dumps(str(number)) for number in range(2 * KEPT + 1)]
        self.path.write_text("\n".join(["{", *lines, "nonsense"]))
        self.assertEqual(len(self.file.load()), KEPT - 1)
        self.assertEqual(len(self.path.read_text().splitlines()), KEPT)
        self.assertEqual(self.file.load()[-1], str(2 * KEPT))

    def test_a_link_is_not_written_through_and_a_read_only_home_is_no_trouble(self) -> None:
        self.path.parent.mkdir(parents=True)
        target = self.path.with_name("target")
        target.write_text("")
        self.path.symlink_to(target)
        self.file.append("one")
        self.assertEqual(target.read_text(), "")
        HistoryFile(Path("/proc/nowhere/history")).append("one")


class ScreenCase(unittest.TestCase):
    """A screen whose output goes to an emulated terminal."""

    def setUp(self) -> None:
        self.out = io.StringIO()
        self.enterContext(mock.patch("sys.stdout", self.out))
        self.columns = 20
        self.emulator = Emulator(self.columns)
        self.editor = LineEditor()
        self.screen = Screen(self.editor, lambda: self.columns)

    def seen(self) -> str:
        self.emulator.feed(self.out.getvalue())
        self.out.seek(0)
        self.out.truncate()
        return self.emulator.text

    def resize(self, columns: int) -> None:
        self.seen()
        self.columns = self.emulator.columns = columns


class ScreenTests(ScreenCase):
    def test_wrapping_breaks_between_words_where_it_can(self) -> None:
        for line, rows in (
            ("", [""]),
            ("one two three", ["one two", "three"]),
            ("one  two", ["one  two"]),
            ("x" * 20, ["x" * 8, "x" * 8, "xxxx"]),
            ("ab " + "x" * 10, ["ab", "x" * 8, "xx"]),
            ("\u4e16" * 5, ["\u4e16" * 4, "\u4e16"]),
        ):
            self.assertEqual(list(wrapped(line, 8)), rows)

    def test_kinds_are_set_apart_and_the_input_line_stays_below(self) -> None:
        self.editor.set("typing")
        self.screen.lines(["> hello"], "you")
        self.screen.stream("an ans")
        self.screen.stream("wer\n\nmore\n\n\n")
        self.screen.end()
        self.screen.lines(["✓ tool one"], "tool")
        self.screen.lines(["✓ tool two"], "tool")
        expected = "> hello\n\nan answer\n\nmore\n\n✓ tool one\n✓ tool two\n\n> typing"
        self.assertEqual(self.seen(), expected)

    def test_line_breaks_in_front_of_an_answer_are_left_out(self) -> None:
        for piece in ("\n", "\n\n", "\nan answer", "\n\nand more"):
            self.screen.stream(piece)
        self.assertEqual(self.seen(), "an answer\n\nand more\n\n>")

    def test_an_aside_does_not_break_a_line_that_streams(self) -> None:
        self.screen.stream("half a ")
        self.screen.aside(["· a note"])
        self.screen.stream("line")
        self.assertEqual(self.seen(), "· a note\nhalf a line\n\n>")

    def test_an_aside_does_not_end_a_block_of_code(self) -> None:
        code = "code = 'a line that is longer'"
        self.screen.stream(f"```\n{code}\n")
        self.screen.aside(["· a note"])
        self.screen.stream(f"{code}\n```\nwords that are wrapped")
        self.screen.end()
        expected = f"```\n{code}\n· a note\n{code}\n```\n\nwords that are\nwrapped\n\n>"
        self.assertEqual(self.seen(), expected)
        self.screen.aside(["· after it"])
        self.assertIn("\nwrapped\n\n· after it\n", self.seen())

    def test_the_status_comes_and_goes_without_a_trace(self) -> None:
        self.screen.stream("text")
        for status in ("working", "a status that is too long for the row", ""):
            self.screen.status = status
            self.screen.draw()
            self.assertLessEqual(max(map(len, self.seen().split("\n"))), self.columns)
        self.assertEqual(self.seen(), "text\n\n>")

    def test_streamed_piece_by_piece_it_looks_as_if_it_came_at_once(self) -> None:
        code = "code = 'a line that is longer'"
        text = f"Some words that wrap over rows.\n\n```py\n{code}\n```\n\n# End\nx"
        for character in text:
            self.screen.stream(character)
        self.screen.end()
        piecewise = self.seen()
        self.emulator = Emulator(self.columns)
        self.screen = Screen(self.editor, lambda: self.columns)
        self.screen.stream(text)
        self.screen.end()
        self.assertEqual(self.seen(), piecewise)
        self.assertIn(f"\n{code}\n", piecewise)

    def test_tabs_take_their_room_in_prose_and_stay_in_code(self) -> None:
        self.screen.stream("a\tb\n```\nall:\n\tmake\n```\n" + "x\t" * 8)
        self.screen.end()
        self.assertIn("\n\tmake\r\n", self.out.getvalue())
        self.assertIn("a   b\r\n", self.out.getvalue())
        self.assertIn("x   x   x   x   x \r\n x   x   x", self.out.getvalue())

    def test_a_narrower_window_leaves_no_traces_of_the_live_part(self) -> None:
        self.screen.lines(["> hello"], "you")
        self.screen.status = "a long status row"
        self.editor.set("a long draft")
        self.screen.stream("a long partial row")
        for columns in (7, 30, 11, 20):
            self.resize(columns)
            self.screen.draw()
        self.screen.status = ""
        self.screen.stream(" end")
        self.assertEqual(self.seen(), "> hello\n\na long partial row\nend\n\n> a long draft")

    def test_leaving_takes_the_live_part_away(self) -> None:
        self.screen.stream("half a line")
        self.screen.status = "working"
        self.screen.draw()
        self.screen.leave()
        self.assertEqual(self.seen(), "half a line\n")


class ViewTests(ScreenCase):
    def setUp(self) -> None:
        super().setUp()
        self.columns = self.emulator.columns = 60
        self.view = ChatView(self.screen)

    def said(self, ident: str, text: str, finish: str = "") -> Message:
        parts = [TextPart(text), *([FinishPart(finish)] if finish else [])]
        return Message(ident, "assistant", "s", list(parts))

    def test_however_often_a_message_comes_it_is_shown_once(self) -> None:
        states = [
            Message("u", "user", "s", [TextPart("hello")]),
            self.said("a", "one"),
            self.said("a", "one two"),
            self.said("a", "one"),
            self.said("a", "one two three", "end_turn"),
            self.said("b", "canc", "canceled"),
        ]
        for _ in range(3):
            for message in states:
                self.view.take(message)
        expected = "> hello\n\none two three\n\ncanc\n\n✗ canceled\n\n>"
        self.assertEqual(self.seen(), expected)

    def test_what_is_skipped_is_not_shown_but_goes_on_growing(self) -> None:
        self.view.skip(self.said("a", "old", "end_turn"))
        self.view.skip(self.said("b", "half "))
        for message in (self.said("a", "old", "end_turn"), self.said("b", "half more")):
            self.view.take(message)
        self.assertEqual(self.seen(), "more\n\n>")

    def test_an_answer_that_was_erased_is_shown_anew(self) -> None:
        for text in ("wrong", "", "right"):
            self.view.take(self.said("a", text))
        self.assertEqual(self.seen(), "wrong\n\n(the answer begins anew)\nright\n\n>")

    def test_calls_are_told_while_they_run_and_shown_when_they_are_over(self) -> None:
        call = ToolCallPart("c", "bash", '{"command": "make"}', finished=True)
        self.view.take(Message("a", "assistant", "s", [call]))
        self.assertEqual((self.view.activity, self.seen()), ("bash make", ""))
        result = Message("t", "tool", "s", [ToolResultPart("c", "bash", "a\nb")])
        for _ in range(2):
            self.view.take(result)
        self.assertEqual(self.view.activity, "thinking")
        self.assertEqual(self.seen(), "✓ bash make → 2 lines  /show 1\n\n>")
        self.assertEqual(self.view.items, [Item("bash", ["command: make", "", "a", "b"])])


class DialogTests(unittest.TestCase):
    def test_only_clear_words_are_answers_to_a_request(self) -> None:
        for line, action, reason in (
            ("y", "allow", ""),
            (" YES ", "allow", ""),
            ("always", "allow_session", ""),
            ("n", "deny", ""),
            ("no, thanks", "", ""),
            ("no use make", "deny", "use make"),
            ("yes please", "", ""),
            ("sure", "", ""),
            ("yn", "", ""),
        ):
            dialog = PermissionDialog(PermissionRequest("p", "s", "c", "bash"))
            dialog.answer(line)
            self.assertEqual((dialog.action, dialog.reason), (action, reason), line)

    def test_a_rule_can_be_chosen_only_if_it_is_offered(self) -> None:
        plain = PermissionRequest("p", "s", "c", "bash", scope="all of it")
        same = PermissionRequest("p", "s", "c", "bash", scope="all of it", rule="all of it")
        other = PermissionRequest("p", "s", "c", "bash", scope="all of it", rule="a\x1bpart")
        for request, word, action in (
            (plain, "rule", ""),
            (plain, "keep", ""),
            (same, "rule", ""),
            (same, "keep", "allow_always"),
            (other, "r", "allow_rule"),
            (other, "keep", "allow_always"),
            (other, "keep it", ""),
        ):
            dialog = PermissionDialog(request)
            self.assertEqual(bool(dialog.answer(word)), not action)
            self.assertEqual(dialog.action, action)
        self.assertEqual(
            PermissionDialog(other).lines()[-3:],
            [
                "  always: for this session, all of it",
                "  rule: for this session, a\\x1bpart",
                "  keep: for good, in your own file, a\\x1bpart",
            ],
        )

    def test_a_long_request_is_shown_whole_before_it_can_be_answered(self) -> None:
        params = {"file_path": "a", "new_content": "".join(f"{n}\n" for n in range(1000))}
        dialog = PermissionDialog(PermissionRequest("p", "s", "c", "write", params=params))
        shown = dialog.lines()
        self.assertEqual([line for line in shown if "+" in line], [f"  +{n}" for n in range(1000)])
        self.assertIn("? write: the 1002 lines above (d: again)", shown[-4:])
        self.assertEqual(dialog.answer("d"), shown)
        self.assertFalse(dialog.done)

    def test_what_a_grant_for_the_session_covers_is_said(self) -> None:
        request = PermissionRequest("p", "s", "c", "bash", action="execute", path="/p")
        self.assertIn("every bash (execute) in /p", PermissionDialog(request).lines()[-1])
        request.scope = "`ls`\x1b[8m\nin /p"
        self.assertIn("session, `ls`\\x1b[8m in /p", PermissionDialog(request).lines()[-1])

    def test_choices(self) -> None:
        choices = [Choice("r", "Red"), Choice("g", "Green")]
        for kind, line, expected in (
            ("single_choice", "2", (["g"], "")),
            ("single_choice", "green", (["g"], "")),
            ("single_choice", "1 2", None),
            ("single_choice", "0", None),
            ("single_choice", "neither", ([], "neither")),
            ("multi_choice", "2,1 2", (["g", "r"], "")),
            ("multi_choice", "3", None),
        ):
            batch = QuestionBatch("b", "s", "c", [Question("q", kind, "", "?", "", choices)])
            dialog = QuestionDialog(batch)
            dialog.answer(line)
            assert dialog.responses is not None
            found = [(each.selected_ids, each.fill_in_text) for each in dialog.responses]
            self.assertEqual(found, [expected] if expected else [], line)

    def test_what_looks_like_an_answer(self) -> None:
        lines = ("y", "No", "always", "2", "1, 2", "yes please", "fix it", "")
        self.assertEqual([looks_like_answer(line) for line in lines], [True] * 5 + [False] * 3)


class HomeTests(unittest.TestCase):
    def test_a_relative_state_directory_is_ignored(self) -> None:
        with mock.patch.dict(os.environ, {"HOME": "/home/x"}):
            path = history_path({"XDG_STATE_HOME": "relative"})
        self.assertEqual(path, Path("/home/x/.local/state/crushlite/chat_history"))
