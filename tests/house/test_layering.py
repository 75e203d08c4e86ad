"""A module imports only from rows above its own, the core imports no wing, and no two files import
each other, directly or through others.

The rows are those of the map in docs/architecture.md, which is drawn from the table here. Imports
count wherever they stand: inside a function, under `if TYPE_CHECKING`, relative or absolute. A
cycle that is hidden in a function is still a cycle.
"""

from __future__ import annotations

import ast
import functools
import graphlib
import subprocess
import sys
import unittest
from typing import TYPE_CHECKING, NamedTuple

from tests.support.places import PACKAGE, ROOT
from tests.support.sources import children, parsed, read
from tools.house_map import CORE, LIBRARIES, NEEDS, ONLY, ROWS, WINGS, row_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

# Foreign modules with one home.
HOMES = {"h11": "http", "sqlite3": "store"}
PURE = {"version", "errors", "protocol", "runs", "claims"}
# Anything that waits, forks, reads a clock or touches the machine.
IMPURE = {
    *("asyncio", "concurrent", "multiprocessing", "os", "pathlib", "select", "selectors"),
    *("shutil", "signal", "socket", "sqlite3", "ssl", "subprocess", "tempfile", "threading"),
    "time",
}


class Import(NamedTuple):
    line: int
    module: str  # the absolute dotted name
    at_start: bool  # runs when the module is imported
    absolute: bool = False  # written with the name of the package


def modules() -> dict[str, Path]:
    """Every module of the package, by its name inside the package ('' is the package itself)."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = list(path.relative_to(PACKAGE).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        found[".".join(parts)] = path
    return found


def imports(tree: ast.Module, name: str, *, is_package: bool) -> Iterator[Import]:
    for node, at_start in _walk(tree, at_start=True):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(node.lineno, alias.name, at_start, absolute=True)
        elif isinstance(node, ast.ImportFrom):
            source = _source(node, name, is_package=is_package)
            for alias in node.names:
                name_of = f"{source}.{alias.name}"
                yield Import(node.lineno, name_of, at_start, absolute=node.level == 0)


def _walk(node: ast.AST, *, at_start: bool) -> Iterator[tuple[ast.stmt, bool]]:
    lazy = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        lazy = True
    for child in children(node):
        if isinstance(child, ast.stmt):
            yield child, at_start and not lazy
        yield from _walk(child, at_start=at_start and not lazy)


def _source(node: ast.ImportFrom, name: str, *, is_package: bool) -> str:
    if node.level == 0:
        return node.module or ""
    here = ["crushlite", *(name.split(".") if name else [])]
    up = node.level - 1 if is_package else node.level
    base = here[: len(here) - up]
    return ".".join([*base, *(node.module.split(".") if node.module else [])])


def complaint(name: str, found: Import) -> str:
    """What is wrong with one import of a module; empty if nothing is."""
    head, _, rest = found.module.partition(".")
    own = row_of(name)
    if head != "crushlite":
        return _foreign(own or "", head)
    if found.absolute:
        return "is imported by the package's own name: it could not be vendored under another"
    if name == "":  # the front door opens lazily: it may name everything and import nothing
        late = not found.at_start or row_of(rest) == "version"
        return "" if late else "is imported at once, the package must stay lazy"
    target = row_of(rest)
    if target is None:
        return "is not a module with a row (import names from the module that defines them)"
    if own is None or target == own:
        return ""
    if target not in ONLY.get(own, set(ROWS)):
        return f"is not for {own}, which uses only {', '.join(sorted(ONLY[own]))}"
    if own in WINGS and target in WINGS:
        return "" if target in NEEDS.get(own, ()) else f"is another wing, which {own} does not need"
    if own in CORE and target not in CORE:
        return f"is no part of the core, but {own} is"
    return "" if ROWS.index(target) < ROWS.index(own) else f"is below {own}"


def _foreign(own: str, head: str) -> str:
    if head in HOMES and own != HOMES[head]:
        return f"is used only in {HOMES[head]}/"
    if own in PURE and head in IMPURE:
        return f"does not belong in {own}, which is pure"
    if head not in HOMES and head not in sys.stdlib_module_names:
        return "is not a dependency of the package"
    return ""


def problems(name: str, source: str, place: str, *, is_package: bool = False) -> list[str]:
    answer = []
    if name and row_of(name) is None:
        answer.append(f"{place}:1: {name} has no row: give it one in ROWS and in the map")
    answer += [
        f"{place}:{found.line}: {found.module} {reason}"
        for found in imports(parsed(source), name, is_package=is_package)
        if (reason := complaint(name, found))
    ]
    return answer


def defining(target: str, known: Collection[str]) -> str:
    """The module that an imported name comes from: the longest beginning of it that is known. The
    packages on the way do not count: a file would then always import its own package's."""
    while target and target not in known:
        target = target.rpartition(".")[0]
    return target


@functools.cache
def graph() -> dict[str, set[str]]:
    """The modules that each module of the package imports."""
    found = modules()
    answer: dict[str, set[str]] = {}
    for name, path in found.items():
        tree = parsed(read(path))
        targets = imports(tree, name, is_package=path.name == "__init__.py")
        inside = (one.module for one in targets if one.module.partition(".")[0] == "crushlite")
        answer[name] = {defining(module.partition(".")[2], found) for module in inside} - {name}
    return answer


def circle(edges: dict[str, set[str]]) -> list[str]:
    """A circle of modules, each imported by the next one; empty if there is none."""
    try:
        graphlib.TopologicalSorter(edges).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


class CircleTests(unittest.TestCase):
    def test_no_files_import_each_other_in_a_circle(self) -> None:
        self.assertEqual(circle(graph()), [])

    def test_a_circle_is_found_through_several_files(self) -> None:
        edges = {"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": set[str]()}
        self.assertEqual(set(circle(edges)), {"a", "b", "c"})
        self.assertEqual(circle({**edges, "c": {"d"}}), [])

    def test_the_graph_has_the_files_that_names_are_defined_in(self) -> None:
        edges = graph()
        self.assertLessEqual({"clock", "http.sse"}, set().union(*edges.values()))
        self.assertIn("http.client", edges["client.wire"], "from ..http import client")
        self.assertIn("errors", edges["client.wire"], "from .. import errors")
        self.assertIn("client.requests", edges["client.stream"], "under TYPE_CHECKING")


# Starts a daemon on a unix socket, asks for its health, prints the status and what is loaded then.
FIRST_ANSWER = """
import asyncio, os, sys
from crushlite.cli.agent_names import find_agent
from crushlite.cli import serve
from crushlite.clock import SystemClock
from crushlite.daemon import Daemon
from crushlite.unique import random_hex
from crushlite.wings import standard_wings

async def main():
    wings, clock, path = standard_wings(), SystemClock(), f"/tmp/first-{random_hex(8)}.sock"
    agents = find_agent("auto", clock, wings)
    async with Daemon(agents=agents, wings=wings, clock=clock, hosts=[f"unix://{path}"]):
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"GET /v1/health HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
        status = (await reader.readline()).split()[1].decode()
        print(status, *sys.modules)
        writer.close()

asyncio.run(main())
"""


class LayeringTests(unittest.TestCase):
    def test_a_module_imports_only_from_rows_above_it(self) -> None:
        wrong: list[str] = []
        for name, path in modules().items():
            place = str(path.relative_to(ROOT))
            is_package = path.name == "__init__.py"
            wrong += problems(name, read(path), place, is_package=is_package)
        self.assertEqual(wrong, [], "\n" + "\n".join(wrong))

    def test_packages_of_which_a_part_stands_higher_import_nothing_themselves(self) -> None:
        # Importing `api.entry` runs api/__init__.py first.
        for row in (row for row in ROWS if "." in row):
            package = PACKAGE / row.partition(".")[0] / "__init__.py"
            tree = parsed(read(package))
            self.assertEqual(list(imports(tree, "x", is_package=True)), [], package)

    def test_light_modules_stay_light_when_they_are_really_imported(self) -> None:
        # The static rule sees one step; this one sees what a chain of them loads.
        light = [name for name in ("", "errors", "client") if name in modules()]
        heavy = ("sqlite3", "crushlite.store", "crushlite.hosting.backend", "crushlite.api")
        for name in light:
            target = f"crushlite.{name}".rstrip(".")
            script = f"import sys, {target}; print([m for m in {heavy!r} if m in sys.modules])"
            command = [sys.executable, "-c", script]
            answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
            with self.subTest(target):
                self.assertEqual((answer.stdout.strip(), answer.stderr), ("[]", ""))

    def test_a_daemon_has_not_loaded_for_its_first_answer_what_only_others_need(self) -> None:
        answer = subprocess.run(
            [sys.executable, "-c", FIRST_ANSWER],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
        )
        self.assertEqual(answer.stderr, "")
        status, *loaded = answer.stdout.split()
        self.assertEqual(status, "200")
        late = (
            # What comes with the first workspace.
            *("hosting.workspace", "hosting.turn", "config.loading", "coder.loop", "undo.changes"),
            *("importlib.resources", "skills.part", "mcp.part", "lsp.part", "acp_agents.part"),
            *("store", "sqlite3", "agent.base", "offline", "config.files", "pathlib"),
            # What comes with the first request that is not for its health.
            *("api.routes", "api.context", "protocol", "mcp.routes", "console.routes"),
            # What only TCP, or a target with escapes, needs.
            *("hashlib", "hmac", "urllib.parse"),
        )
        found = [name for name in late if {name, f"crushlite.{name}"} & set(loaded)]
        self.assertEqual(found, [])


class SelfTests(unittest.TestCase):
    """The check is worth only what it finds: sources that break each rule, and some that do not."""

    def found(self, name: str, source: str, *, is_package: bool = False) -> list[str]:
        lines = problems(name, source, "x.py", is_package=is_package)
        return [line.removeprefix("x.py:") for line in lines]

    def test_an_import_from_below_is_reported_with_its_line(self) -> None:
        bad = "'''Doc.'''\nimport json\nfrom .hosting.backend import Backend\n"
        below = "3: crushlite.hosting.backend.Backend is below events"
        self.assertEqual(self.found("events", bad), [below])

    def test_every_way_of_writing_it_is_seen(self) -> None:
        below = ["is below hosting"]
        for source in (
            "from .. import api",
            "from ..api import routes",
            "from ..api.routes import table",
            "def f():\n    from ..api import x",
            "if TYPE_CHECKING:\n    from ..api import x",
            "try:\n    from .. import api\nexcept ImportError:\n    pass",
        ):
            with self.subTest(source):
                lines = self.found("hosting.turn", source)
                self.assertEqual([line[-len(below[0]) :] for line in lines], below)

    def test_an_import_by_the_package_s_own_name_is_reported(self) -> None:
        for source in ("import crushlite.errors", "from crushlite.errors import BadRequest"):
            (line,) = self.found("events", source)
            self.assertIn("could not be vendored", line)

    def test_relative_imports_of_a_package_start_at_the_package(self) -> None:
        bad = self.found("api", "from ..daemon import Daemon\nfrom . import auth", is_package=True)
        self.assertEqual(bad, ["1: crushlite.daemon.Daemon is below api"])
        bad = self.found("api.auth", "from ..daemon import Daemon\nfrom . import routes")
        self.assertEqual(bad, ["1: crushlite.daemon.Daemon is below api"])

    def test_rows_above_and_siblings_are_welcome(self) -> None:
        good = "from .errors import BadRequest\nfrom .version import __version__\n"
        self.assertEqual(self.found("runs", good), [])
        self.assertEqual(self.found("store.writer", "from . import schema"), [])
        self.assertEqual(self.found("testing.harness", "from .. import daemon"), [])
        self.assertEqual(self.found("coder.loop", "from ..api.context import x"), [])

    def test_the_core_imports_no_wing_and_nothing_that_only_wings_use(self) -> None:
        for target in ("undo", "worktree", "cli"):
            (line,) = self.found("hosting.turn", f"from ..{target} import x")
            self.assertIn("is no part of the core, but hosting is", line)

    def test_a_wing_imports_another_only_if_it_is_known_to_need_it(self) -> None:
        self.assertEqual(self.found("coder.build", "from ..config import Config"), [])
        self.assertEqual(self.found("undo.states", "from ..worktree.paths import Place"), [])
        (line,) = self.found("undo.states", "from ..coder import loop")
        self.assertIn("is another wing, which undo does not need", line)

    def test_what_the_seam_and_agents_see_stands_above_what_uses_it(self) -> None:
        self.assertEqual(self.found("hosting.turn", "from ..agent.base import Turn"), [])
        self.assertEqual(self.found("wing", "from .api.entry import Entry"), [])
        (line,) = self.found("wing", "from .api.routes import TABLE")
        self.assertIn("is below wing", line)

    def test_http_and_the_client_use_less_than_they_could(self) -> None:
        for name in ("errors", "events", "version"):
            self.assertEqual(len(self.found("http.server", f"from .. import {name}")), 1)
        self.assertEqual(self.found("http.server", "import h11, asyncio\nfrom .. import clock"), [])
        self.assertEqual(len(self.found("client", "from ..store import writer")), 1)
        self.assertEqual(self.found("client.wire", "from ..protocol.runs import RunInfo"), [])

    def test_foreign_modules_stay_in_their_homes(self) -> None:
        self.assertEqual(self.found("api.x", "import h11"), ["1: h11 is used only in http/"])
        bad = ["1: sqlite3.connect is used only in store/"]
        self.assertEqual(self.found("hosting.x", "from sqlite3 import connect"), bad)
        self.assertEqual(self.found("store.writer", "import sqlite3"), [])
        bad = ["1: requests is not a dependency of the package"]
        self.assertEqual(self.found("coder.x", "import requests"), bad)

    def test_pure_modules_stay_pure(self) -> None:
        for name in ("errors", "protocol.codec", "runs", "claims"):
            for foreign in ("asyncio", "socket", "threading", "subprocess", "time", "os.path"):
                with self.subTest(name, foreign=foreign):
                    self.assertIn("which is pure", self.found(name, f"import {foreign}")[0])
            self.assertEqual(self.found(name, "import enum, dataclasses"), [])

    def test_the_front_door_is_lazy(self) -> None:
        good = "if TYPE_CHECKING:\n    from .daemon import Daemon\n"
        good += "def __getattr__(name):\n    from .daemon import Daemon\n"
        good += "from .version import __version__\n"
        self.assertEqual(self.found("", good, is_package=True), [])
        bad = self.found("", "from .daemon import Daemon", is_package=True)
        self.assertIn("must stay lazy", bad[0])

    def test_a_name_is_imported_from_its_module_and_not_through_the_front_door(self) -> None:
        self.assertIn("not a module with a row", self.found("cli.x", "from .. import Daemon")[0])

    def test_a_module_without_a_row_is_reported(self) -> None:
        self.assertIn("has no row", self.found("helpers", "import json")[0])

    def test_the_walk_sees_the_package_and_every_row_has_a_module(self) -> None:
        found = set(modules())
        self.assertLessEqual({"", "errors", "protocol", "protocol.codec"}, found)
        self.assertEqual([row for row in ROWS if row not in found], [])
        self.assertEqual(set(ROWS), CORE | set(WINGS) | set(LIBRARIES))
