"""The shape of the source: sizes, names and exports, and how tests may be written.

Sizes count code lines. Comments and docstrings are free: the header that explains a machine is
part of the machine.
"""

from __future__ import annotations

import ast
import importlib
import io
import subprocess
import tokenize
import unittest
from pathlib import Path

from tests.support.places import PACKAGE, ROOT, TESTS
from tests.support.sources import parsed, sources, statements

FILE_CAP = 500
# The two state machines must be readable in one sitting.
FILE_CAPS = {"runs.py": 300, "claims.py": 300}
FUNCTION_CAP = 60

# Written in two halves, so that this file passes its own test.
MACHINE_PATHS = ["/" + name + "/" for name in ("wo" + "rk", "ro" + "ot", "fa" + "rm")]

LAYOUT_TOKENS = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}
SKIPS = {
    *("skip", "skipif", "skipIf", "skipUnless", "skipTest", "SkipTest"),
    *("xfail", "expectedFailure", "importorskip"),
}
Function = ast.FunctionDef | ast.AsyncFunctionDef


# Sizes ------------------------------------------------------------------------------------------


def code_lines(source: str) -> int:
    """How many lines hold code: not blank, not only a comment, not part of a docstring."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in LAYOUT_TOKENS:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstring_lines(parsed(source)))


def docstring_lines(tree: ast.Module) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | Function):
            continue
        if ast.get_docstring(node, clean=False) is not None:
            text = node.body[0]
            lines.update(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    return lines


def long_functions(source: str, place: str) -> list[str]:
    """Whole functions count, docstring included: what matters is that one fits on a screen."""
    return [
        f"{place}:{node.lineno}: {node.name} has {length} lines, {FUNCTION_CAP} are allowed"
        for node in statements(parsed(source))
        if isinstance(node, Function)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_CAP
    ]


class SizeTests(unittest.TestCase):
    def test_no_file_of_the_package_is_too_long_to_read(self) -> None:
        for place, source in sources(PACKAGE):
            with self.subTest(place):
                cap = FILE_CAPS.get(place.removeprefix("crushlite/"), FILE_CAP)
                if source.count("\n") > cap:  # else it cannot have more lines of code
                    self.assertLessEqual(code_lines(source), cap)

    def test_no_function_is_longer_than_a_screen(self) -> None:
        wrong = [
            line for place, src in sources(PACKAGE, TESTS) for line in long_functions(src, place)
        ]
        self.assertEqual(wrong, [], "\n" + "\n".join(wrong))

    def test_comments_docstrings_and_blank_lines_are_not_counted(self) -> None:
        source = '"""Doc\nof two lines."""\n\n# why\nx = 1  # code\ny = """a\nb\n"""\n'
        self.assertEqual(code_lines(source), 4)
        source = 'class A:\n    """Doc."""\n\n    def f(self):\n        """Doc."""\n        # no\n'
        self.assertEqual(code_lines(source), 2)
        self.assertEqual(code_lines("call(\n    1,\n)\n"), 3)

    def test_a_long_function_is_found(self) -> None:
        body = "    pass\n" * FUNCTION_CAP
        self.assertEqual(len(long_functions("def f():\n" + body, "x.py")), 1)
        self.assertEqual(len(long_functions("async def f():\n" + body, "x.py")), 1)
        self.assertEqual(long_functions("def f():\n" + body[: -len("    pass\n")], "x.py"), [])


# Names and exports ------------------------------------------------------------------------------


def module_name(place: str) -> str:
    return place.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def exports(tree: ast.Module) -> list[str] | None:
    """The names in `__all__`, None if the module has none."""
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(t, ast.Name) and t.id == "__all__" for t in targets):
                return [str(name) for name in ast.literal_eval(node.value or ast.List([]))]
    return None


def export_problems(source: str, place: str) -> list[str]:
    """Only packages list what they offer: their modules are not public."""
    tree = parsed(source)
    wrong = [] if ast.get_docstring(tree) else [f"{place}:1: no docstring"]
    if exports(tree) is not None and not place.endswith("/__init__.py"):
        wrong.append(f"{place}:1: __all__ is for packages")
    return wrong


class NameTests(unittest.TestCase):
    def test_every_module_says_what_it_is_for_and_what_it_offers(self) -> None:
        wrong = [line for place, src in sources(PACKAGE) for line in export_problems(src, place)]
        self.assertEqual(wrong, [], "\n" + "\n".join(wrong))

    def test_every_exported_name_exists_and_is_exported_once(self) -> None:
        for place, source in sources(PACKAGE):
            names = exports(parsed(source))
            if names is None or place.endswith("/__main__.py"):
                continue
            with self.subTest(place):
                module = importlib.import_module(module_name(place))
                self.assertEqual([name for name in names if not hasattr(module, name)], [])
                self.assertEqual(len(names), len(set(names)))

    def test_no_class_is_a_manager(self) -> None:
        # The word says that nobody decided what the class is.
        managers = [
            f"{place}:{node.lineno}: {node.name}"
            for place, source in sources(PACKAGE, TESTS)
            for node in statements(parsed(source))
            if isinstance(node, ast.ClassDef) and node.name.endswith("Manager")
        ]
        self.assertEqual(managers, [])

    def test_a_bare_module_and_a_needless_list_are_reported(self) -> None:
        bare = export_problems("def f(): ...\n", "crushlite/x.py")
        self.assertEqual(bare, ["crushlite/x.py:1: no docstring"])
        listed = export_problems('"""Doc."""\n__all__ = ["f"]\n', "crushlite/x.py")
        self.assertEqual(listed, ["crushlite/x.py:1: __all__ is for packages"])
        good = '"""Doc."""\n__all__ = ["f"]\ndef f(): ...\n'
        self.assertEqual(export_problems(good, "crushlite/x/__init__.py"), [])

    def test_a_class_name_is_used_once_in_the_package(self) -> None:
        places: dict[str, list[str]] = {}
        for place, source in sources(PACKAGE):
            for node in statements(parsed(source)):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places.setdefault(node.name, []).append(place)
        twice = {name: found for name, found in places.items() if len(found) > 1}
        # One noun, two forms: what is hosted, and what the wire tells of it.
        del twice["Workspace"]
        self.assertEqual(twice, {})


# How tests are written --------------------------------------------------------------------------


def real_names(tree: ast.Module) -> dict[str, str]:
    """What the local names of imported things stand for: `nap` -> `time.sleep`."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    return names


def dotted(node: ast.AST, names: dict[str, str]) -> str:
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value, names)}.{node.attr}"
    return ""


def sleeps(source: str, place: str) -> list[str]:
    """Calls that wait for real time to pass. `asyncio.sleep(0)` only gives way to others."""
    if "sleep" not in source:
        return []
    tree = parsed(source)
    names = real_names(tree)
    wrong = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = dotted(node.func, names)
        yields = len(node.args) == 1 and ast.unparse(node.args[0]) == "0"
        if called == "time.sleep" or (called == "asyncio.sleep" and not yields):
            wrong.append(f"{place}:{node.lineno}: {ast.unparse(node)}")
    return wrong


def skips(source: str, place: str) -> list[str]:
    if not any(word in source for word in SKIPS):
        return []
    tree = parsed(source)
    names = real_names(tree)
    wrong = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            first, _, rest = dotted(node, names).partition(".")
            last = rest.rpartition(".")[2]
            if (first in ("pytest", "unittest") and last in SKIPS) or rest == "skipTest":
                wrong.append(f"{place}:{node.lineno}: {ast.unparse(node)}")
    return wrong


class TestStyleTests(unittest.TestCase):
    def test_no_test_sleeps_to_wait_for_something(self) -> None:
        wrong = [line for place, source in sources(TESTS) for line in sleeps(source, place)]
        self.assertEqual(wrong, [], "\n" + "\n".join(wrong))

    def test_no_test_is_skipped_or_expected_to_fail(self) -> None:
        wrong = [line for place, source in sources(TESTS) for line in skips(source, place)]
        self.assertEqual(wrong, [], "\n" + "\n".join(wrong))

    def test_tests_are_no_package(self) -> None:
        # With import-mode=importlib a test is a file; a package would change its imports.
        self.assertFalse((TESTS / "__init__.py").exists())

    def test_sleeps_are_found_under_any_name(self) -> None:
        for source in (
            "import time\ntime.sleep(0)",
            "import time as t\nt.sleep(1)",
            "from time import sleep as nap\nnap(1)",
            "import asyncio\nasync def f(): await asyncio.sleep(0.01)",
            "from asyncio import sleep\nasync def f(): await sleep(delay)",
            "import asyncio\nasync def f(): await asyncio.sleep(delay=1)",
        ):
            with self.subTest(source):
                self.assertEqual(len(sleeps(source, "x.py")), 1)
        for source in ("import asyncio\nasyncio.sleep(0)", "clock.sleep(5)", "sleep(3)"):
            self.assertEqual(sleeps(source, "x.py"), [])

    def test_skips_are_found_under_any_name(self) -> None:
        for source in (
            "import pytest\npytest.skip('later')",
            "import pytest\n@pytest.mark.skipif(True, reason='')\ndef f(): ...",
            "import pytest\nx = pytest.mark.xfail",
            "from pytest import importorskip\nimportorskip('x')",
            "import unittest\n@unittest.expectedFailure\ndef f(): ...",
            "from unittest import SkipTest\nraise SkipTest",
            "self.skipTest('x')",
        ):
            with self.subTest(source):
                self.assertEqual(len(skips(source, "x.py")), 1)
        self.assertEqual(skips("permissions.skip = True\nbody.skip()\n", "x.py"), [])


# What the repository holds ----------------------------------------------------------------------


def repository_files() -> list[Path]:
    """What git has or would add; of a copy without git, everything that is not hidden."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        answer = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60, check=True)
    except (OSError, subprocess.CalledProcessError):
        found = [path.relative_to(ROOT) for path in ROOT.rglob("*")]
        return [ROOT / p for p in found if not any(part.startswith(".") for part in p.parts)]
    return [ROOT / name for name in answer.stdout.decode().split("\0") if name]


def machine_paths(text: str) -> list[str]:
    return [path for path in MACHINE_PATHS if path in text]


class RepositoryTests(unittest.TestCase):
    def test_no_text_file_holds_a_path_of_the_machine_it_was_written_on(self) -> None:
        wrong: list[str] = []
        for path in repository_files():
            if not path.is_file():
                continue
            text = path.read_bytes().decode("utf-8", "replace")
            wrong += [
                f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}"
                for number, line in enumerate(text.splitlines(), 1)
                if machine_paths(line)
            ]
        self.assertEqual(wrong, [], "\n" + "\n".join(wrong))

    def test_a_path_of_a_machine_is_found(self) -> None:
        for name in ("wo" + "rk", "ro" + "ot", "fa" + "rm"):
            self.assertEqual(machine_paths(f"see /{name}/notes"), [f"/{name}/"])
        self.assertEqual(machine_paths("see /home/kim/demo"), [])

    def test_the_listing_sees_this_file(self) -> None:
        self.assertIn(Path(__file__).resolve(), repository_files())
