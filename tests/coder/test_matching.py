"""Why a text to replace was not found, and texts that differ in their indentation only."""

from __future__ import annotations

import unittest
from unittest import mock

from crushlite.coder.tools import matching
from crushlite.coder.tools.matching import explain, reindented
from tests.support.tools import ToolTestCase

PYTHON = """class A:
    def one(self):
        if self.x:
            return 1
        return 2

    def two(self):
        return "two"
"""
GO = "func one() {\n\tif x {\n\t\treturn 1\n\t}\n}\n"


class ReindentedTests(unittest.TestCase):
    def check(self, content: str, old: str, new: str, wanted: str | None) -> None:
        with self.subTest(old=old, new=new):
            found = reindented(content, old, new)
            if wanted is None:
                self.assertIsNone(found)
                return
            assert found is not None
            self.assertEqual(content.count(found.old), 1)
            self.assertEqual(content.replace(found.old, found.new), wanted)

    def test_the_replacement_gets_the_indentation_of_the_file(self) -> None:
        after = PYTHON.replace("            return 1\n", "            y()\n            return 3\n")
        old, new = "if self.x:\n    return 1\n", "if self.x:\n    y()\n    return 3\n"
        self.check(PYTHON, old, new, after)
        deep = [f"{' ' * 16}{line}" if line else "" for line in old.split("\n")]
        deeper = [f"{' ' * 16}{line}" if line else "" for line in new.split("\n")]
        self.check(PYTHON, "\n".join(deep), "\n".join(deeper), after)
        old = "    if self.x:\n        return 1\n"
        self.check(PYTHON, old, old.replace("1", "3"), PYTHON.replace("return 1", "return 3"))

    def test_tabs_and_blanks_are_exchanged(self) -> None:
        old, new = "    if x {\n        return 1\n    }", "    if x {\n        f()\n    }"
        self.check(GO, old, new, GO.replace("return 1", "f()"))
        self.check(
            GO, old.replace("    ", "  "), new.replace("    ", "  "), GO.replace("return 1", "f()")
        )
        old, new = "\tdef two(self):\n\t\treturn", "\tdef two(self):\n\t\treturn"
        self.check(PYTHON, old + ' "two"', new + ' "2"', PYTHON.replace('"two"', '"2"'))

    def test_steps_of_another_width(self) -> None:
        content = "a:\n  b:\n    c\n"
        self.check(content, "a:\n    b:\n        c", "a:\n    b:\n        d", "a:\n  b:\n    d\n")

    def test_what_is_not_certain_is_left_alone(self) -> None:
        twice = "if a:\n    f()\nif b:\n        f()\n"
        self.check(twice, "  f()", "  g()", None)
        self.check(PYTHON, "if self.x:\nreturn 1", "if self.x:\nreturn 3", None)
        self.check(GO, "if x {", "if x {\n    f()", None)
        self.check(PYTHON, "\n", "x", None)
        self.check(PYTHON, "        if  self.x:", "x", None)
        self.check("a\n  b", "b\n", "c\n", None)


class ExplainTests(unittest.TestCase):
    def test_each_mistake_is_named(self) -> None:
        for content, old, words in (
            ("a = 1\nb = 2\n", "     1|a = 1\n     2|b = 2", "holds line numbers"),
            ("a = 1", "a = 1\n", "a line end that the end of the file does not have"),
            ("a\nb\n", "a\\nb", "real line ends"),
            ('say("x")\n', 'say(\\"x\\")', "too many backslashes"),
            ("if a < b && c:\n", "if a &lt; b &amp;&amp; c:", "&lt;"),
            ("it\u2019s\n", "it's", "quotes, dashes or blanks differ: line 1"),
            ("x = Foo()\n", "x = foo()", "upper and lower case differ from line 1"),
            ("f(a)  \ng()\n", "f(a)\ng()", "only in blanks at the ends of lines"),
            ("x\n  f()\n\tf()\n", "\t f()", "from lines 2, 3 only in indentation"),
            ("f(a,  b)\n", "f(a, b)", "only in blanks and tabs"),
            ("done = True\n", "done = False", "in the file already, at line 1"),
            ("alpha = compute(beta)\n", "alpha = compute(gamma)", "     1|alpha = compute(beta)"),
            ("alpha\n", "zzz()", "nothing like old_string"),
        ):
            with self.subTest(words):
                self.assertNotIn(old, content)
                self.assertIn(words, explain(content, old, "done = True"))

    def test_the_nearest_lines_are_shown_with_visible_blanks(self) -> None:
        text = explain(PYTHON, "        if self.y:\n            return 1", "x")
        self.assertIn("     3|········if self.x:\n     4|············return 1", text)
        text = explain(GO, "\tif x  {\n\t\treturn  1", "x")
        self.assertIn("     2|→if x {\n     3|→→return 1", text)

    def test_hostile_texts_take_bounded_time_and_room(self) -> None:
        lines = "a b\n" * 200_000
        for old in (
            "a  b\n" * 100_000 + "c",
            "b a " * 200_000,
            "a" * 500_000,
            "\n" * 500_000 + "x",
        ):
            self.assertLess(len(explain(lines, old, "zz")), 4000)
            self.assertIsNone(reindented(lines, old, "x"))
        with mock.patch.object(matching, "NEAR_SECONDS", -1.0):
            self.assertIn("nothing like", explain("alpha = 1\n", "alpha = 2", "x"))


class EditTests(ToolTestCase):
    async def test_a_text_with_another_indentation_is_replaced_and_that_is_said(self) -> None:
        path = await self.seen("a.py", PYTHON.replace("\n", "\r\n"))
        self.allow()
        old, new = "if self.x:\n    return 1", "if self.x:\n    return 3"
        outcome = await self.use("edit", file_path="a.py", old_string=old, new_string=new)
        self.assertFalse(outcome.is_error, outcome.content)
        self.assertIn(
            "another indentation than line 3: made with that of the file", outcome.content
        )
        wanted = PYTHON.replace("return 1", "return 3").replace("\n", "\r\n").encode()
        self.assertEqual(path.read_bytes(), wanted)
        self.assertIn("            return 3", self.turn.asked[0].params["new_content"])
        old = 'def two(self):\n    return "two"'
        everywhere = {"old_string": old, "new_string": "pass", "replace_all": True}
        outcome = await self.use("edit", file_path="a.py", **everywhere)
        self.assert_failed(outcome, "differs from line 7 only in indentation")
        change = {"old_string": "\treturn 3", "new_string": "\tpass"}
        outcome = await self.use("multiedit", file_path="a.py", edits=[change])
        self.assertIn("edit 1: old_string had another indentation", outcome.content)
        self.assertIn(b"            pass\r\n", path.read_bytes())

    async def test_an_ambiguous_text_names_its_lines(self) -> None:
        await self.seen("a.py", "x = 1\n" * 3 + "y\n" + "x = 1\n" * 20)
        self.allow()
        outcome = await self.use("edit", file_path="a.py", old_string="x = 1", new_string="z")
        self.assert_failed(outcome, "found 23 times, at lines 1, 2, 3, 5, 6, 7, 8, 9, 10, 11, ...")

    async def test_multiedit_creates_a_file(self) -> None:
        self.allow()
        first = {"old_string": "", "new_string": "a = 1\nb = 2\n"}
        second = {"old_string": "b = 2", "new_string": "b = 3"}
        outcome = await self.use("multiedit", file_path="new/a.py", edits=[first, second])
        self.assertFalse(outcome.is_error, outcome.content)
        self.assertEqual((self.root / "new/a.py").read_text(), "a = 1\nb = 3\n")
        self.assertEqual(self.turn.changed[0][1:], (None, "a = 1\nb = 3\n"))
        outcome = await self.use("multiedit", file_path="new/a.py", edits=[first, second])
        self.assert_failed(outcome, "nothing was changed: edit 1: old_string is empty")
        outcome = await self.use("multiedit", file_path="b.py", edits=[second])
        self.assert_failed(outcome, "b.py does not exist")
