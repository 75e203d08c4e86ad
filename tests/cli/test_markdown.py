"""Markdown in the terminal: the corpus means what CommonMark says, and nothing in it is obeyed."""

from __future__ import annotations

import json
import re
import unittest
from typing import Any
from unittest import mock

from crushlite.cli.markdown_lines import NARROWEST, MarkdownLines
from crushlite.cli.markdown_tree import parse
from crushlite.cli.text import Style, clean, width
from tests.support.places import ROOT

CORPUS = json.loads((ROOT / "tests/markdown/corpus.json").read_text("utf-8"))["documents"]
ROOM = 60
PAINT = re.compile(r"\x1b\[[0-9;]*m")


def style(*, colours: bool) -> Style:
    painted = Style(None)
    painted.terminal = painted.moves = True
    painted.colours = colours
    return painted


def rows(text: str, *, colours: bool = False, pieces: int = 0, room: int = ROOM) -> list[str]:
    """The rows of a text, given at once or in pieces of so many characters."""
    lines, size = MarkdownLines(style(colours=colours)), pieces or len(text) or 1
    written: list[str] = []
    for start in range(0, len(text), size):
        written += lines.feed(text[start : start + size], room)
    return written + lines.end(room)


class CorpusTests(unittest.TestCase):
    def test_there_are_a_hundred_documents_and_each_has_its_tree(self) -> None:
        self.assertGreaterEqual(len(CORPUS), 100)
        for document in CORPUS:
            with self.subTest(document["name"]):
                self.assertEqual(parse(document["text"]), document["tree"])

    def test_it_is_the_same_in_pieces_and_fits_the_window(self) -> None:
        for document in CORPUS:
            text = clean(document["text"])
            with self.subTest(document["name"]):
                whole = rows(text)
                self.assertEqual(rows(text, pieces=7), whole)
                if "```" not in "".join(whole):  # code is written whole
                    # Beyond a certain depth only the mark is in front.
                    self.assertLessEqual(max(map(width, whole), default=0), ROOM + 3)

    def test_the_terminal_obeys_nothing_but_our_own_paint(self) -> None:
        for document in CORPUS:
            with self.subTest(document["name"]):
                for row in rows(clean(document["text"]), colours=True):
                    plain = PAINT.sub("", row)
                    self.assertEqual(clean(plain), plain)

    def test_every_word_of_the_tree_is_shown(self) -> None:
        for document in CORPUS:
            if document["name"].startswith("hostile"):
                continue
            shown = "".join("".join(rows(document["text"], colours=False)).split())
            with self.subTest(document["name"]):
                for word in words(document["tree"]):
                    self.assertIn("".join(word.split()), shown)


def words(tree: Any) -> list[str]:
    """The single words in a tree: those in front of a line break may be apart on the screen."""
    if isinstance(tree, str):
        return tree.split()
    if not isinstance(tree, list) or tree[:1] in (["table"], ["pre"]):
        return []
    if tree[:1] in (["link"], ["image"]):  # not every address is shown
        tree = tree[:1] + tree[2:]
    known = {"p", "ul", "ol", "quote", "em", "strong", "del", "code", "link", "image", "br", "hr"}
    known |= {f"h{n}" for n in range(1, 7)}
    inside = tree[1:] if tree and isinstance(tree[0], str) and tree[0] in known else tree
    return [word for each in inside for word in words(each)]


class RowTests(unittest.TestCase):
    def test_a_nested_list_keeps_its_numbers_and_its_depth(self) -> None:
        text = "1. First:\n   - a\n   - b\n2. Second:\n\n   ```sh\n   ls\n   ```\n\n3. Third\n"
        self.assertEqual(
            rows(text),
            [
                *("1. First:", "   ◦ a", "   ◦ b", "2. Second:", "   ```sh", "   ls", "   ```"),
                "3. Third",
            ],
        )

    def test_items_come_one_by_one_and_code_line_by_line(self) -> None:
        lines = MarkdownLines(style(colours=False))
        self.assertEqual(lines.feed("7. a\n8. b\n", ROOM), ["7. a"])
        self.assertEqual(lines.pending, ["8. b"])
        self.assertEqual(lines.feed("9. c\n\nend", ROOM), ["8. b"])
        self.assertEqual(lines.pending, ["9. c", "", "end"])
        self.assertEqual(lines.feed("\n\n", ROOM), ["9. c", "", "end"])
        self.assertEqual(lines.pending, [])
        self.assertEqual(lines.feed("```py\nx = 1\n", ROOM), ["", "```py", "x = 1"])
        self.assertEqual(lines.end(ROOM), ["```"])

    def test_a_table_has_its_columns_and_gives_way_to_a_narrow_window(self) -> None:
        text = "| a | much longer than the room that there is |\n|--:|---|\n| 1 | x |\n"
        wide = rows(text, room=80)
        self.assertEqual(wide[2].index("│"), wide[0].index("│"))
        narrow = rows(text, room=30)
        self.assertGreater(len(narrow), len(wide))
        self.assertLessEqual(max(map(width, narrow)), 30)

    def test_a_link_shows_where_it_leads_and_a_diff_its_colours(self) -> None:
        self.assertEqual(
            rows("[docs](https://e.org) <https://e.org>")[0], "docs (https://e.org) https://e.org"
        )
        painted = rows("```diff\n-a\n+b\n```\n", colours=True)
        self.assertEqual(painted[1:3], ["\x1b[31m-a\x1b[0m", "\x1b[32m+b\x1b[0m"])

    def test_without_colours_the_marks_stay(self) -> None:
        text = "# Head\n\n**bold** *em* `code` ~~gone~~\n"
        self.assertEqual(rows(text), ["# Head", "", "**bold** *em* `code` ~~gone~~"])
        self.assertEqual(PAINT.sub("", rows(text, colours=True)[2]), "bold em code gone")

    def test_a_text_of_any_shape_costs_little(self) -> None:
        units = ("*a ", "_a", "*a_ b** c", "[a](", "[", "[]", "` `` ", "[a]: b\n", '[a](b "', "> ")
        for unit in (*units, "<a:", "&a", "|", "- ", "1. a\n", "~~a", "```\n", "![", "**a "):
            with self.subTest(unit), mock.patch("crushlite.cli.markdown_inline.html.unescape", str):
                text = unit * (8000 // len(unit))
                self.assertTrue(rows(text, room=NARROWEST) or True)
