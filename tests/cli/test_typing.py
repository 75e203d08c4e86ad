"""What helps while typing in a chat: completion, the search of the history, answers of one key."""

from __future__ import annotations

import unittest
from unittest import mock

from crushlite.cli import chat_session
from crushlite.cli.chat_commands import files_at
from crushlite.cli.chat_lines import LineEditor
from tests.support.cli import ChatCase


class SearchTests(unittest.TestCase):
    def setUp(self) -> None:
        self.editor = LineEditor()
        for text in ("fix the parser", "run the tests", "fix the tests"):
            self.editor.remember(text)

    def test_ctrl_r_finds_the_last_text_and_again_an_older_one(self) -> None:
        self.editor.feed(b"\x12fix")
        self.assertEqual(self.editor.text, "fix the tests")
        self.assertTrue(self.editor.view(80)[0].startswith("(search: fix) "))
        self.editor.feed(b"\x12")
        self.assertEqual(self.editor.text, "fix the parser")
        (pressed,) = self.editor.feed(b"\r")
        self.assertEqual((pressed.what, pressed.text), ("submit", "fix the parser"))
        self.assertEqual(self.editor.view(80)[0], "")

    def test_ctrl_g_brings_back_what_was_typed_and_an_arrow_keeps_what_was_found(self) -> None:
        self.editor.feed(b"draft\x12run")
        self.assertEqual(self.editor.text, "run the tests")
        self.editor.feed(b"\x07")
        self.assertEqual(self.editor.text, "draft")
        self.editor.feed(b"\x12parser\x1b[D!")
        self.assertEqual(self.editor.text, "fix the parse!r")


class TypingTests(ChatCase):
    async def test_tab_completes_commands_and_files_as_far_as_it_is_clear(self) -> None:
        for name in ("readme.md", "reader.py", "src/main.py", ".hidden"):
            (self.project / name).parent.mkdir(exist_ok=True)
            (self.project / name).write_text("")
        self.assertEqual(files_at(str(self.project), "re"), ["reader.py", "readme.md"])
        self.assertEqual(files_at(str(self.project), "../"), [])
        window = await self.chat()
        await self.idle(window)
        for typed, completed in (
            ("/su\t", "/summarize "),
            ("look @re\t", "look @read"),
            ("@src/\t", "@src/main.py "),
        ):
            window.press(typed)
            await window.shows(f"> {completed.rstrip()}")
            window.press("\x15")
        window.press("/s\t")
        await window.shows("/sessions  /switch  /summarize  /show  /skip")

    async def test_ctrl_c_ends_a_search_and_what_is_typed_then_is_a_prompt(self) -> None:
        terminal = await self.chat_process()
        terminal.press("\x12nothing")
        await terminal.shows("> (search: nothing)")
        terminal.press("\x03")
        await terminal.shows(lambda seen: seen.endswith("\n>"))
        terminal.press("text")
        await terminal.shows("> text")

    async def test_one_key_answers_but_not_right_away(self) -> None:
        window = await self.chat()
        scripted = await self.asked(window, "hello")
        verdict = scripted.begin(lambda turn: turn.permission("bash", "execute"))
        await window.shows("allow? [y/n/always]")
        window.press("y")  # too soon: it is the beginning of a line
        await window.shows("allow? [y/n/always] y")
        self.assertFalse(verdict.done())
        window.press("\x15")
        with mock.patch.object(chat_session, "UNSEEN_SECONDS", 0.0):
            window.press("y")
            self.assertTrue(await verdict)
        scripted.release()

    async def test_a_request_of_another_session_is_mentioned(self) -> None:
        window = await self.chat()
        await self.idle(window)
        anna = await self.daemon.join()
        other = await anna.session()
        await anna.prompt(other, "hello")
        scripted = await self.daemon.entered(1)
        verdict = scripted.begin(lambda turn: turn.permission("bash", "execute"))
        await window.shows(f"another session needs you: /switch {other[:8]}")
        await anna.cancel(other)
        verdict.cancel()
