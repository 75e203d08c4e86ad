"""Documentation is checked like code: what exists is documented, and what is shown works."""

from __future__ import annotations

import re
import unittest

from crushlite import errors
from crushlite.protocol.events import KINDS
from tests.support.places import PACKAGE, ROOT
from tests.support.routes import TABLE
from tools import house_map

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
PROTOCOL = (ROOT / "docs" / "protocol.md").read_text()


class ProtocolPageTest(unittest.TestCase):
    def test_every_route_is_documented_and_no_other(self) -> None:
        listed = set(re.findall(r"^\| `([A-Z]+ /[^`]*)`", PROTOCOL, re.M))
        self.assertEqual(listed, {f"{entry.method} {entry.pattern}" for entry in TABLE})

    def test_every_event_kind_is_documented(self) -> None:
        for kind in [*KINDS, "resync"]:
            with self.subTest(kind=kind):
                self.assertRegex(PROTOCOL, rf"(?m)^\| `{kind}` \|")

    def test_every_error_code_is_documented_with_its_status(self) -> None:
        rows: dict[str, str] = {}
        for cells in re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| (\d{3}) \|", PROTOCOL, re.M):
            rows |= dict.fromkeys(re.findall(r"`(\w+)`", cells[0]), cells[1])
        never_answered = {"usage", "wrong_peer", "turn_over", "limit_reached", "illegal_call"}
        never_answered.add("prompt_refused")
        for error in errors.every_error():
            if error.code not in never_answered:
                with self.subTest(code=error.code):
                    self.assertEqual(rows.get(error.code), str(error.status))


class ArchitectureTest(unittest.TestCase):
    def test_every_module_is_on_the_map(self) -> None:
        for path in sorted(PACKAGE.iterdir()):
            if path.name.startswith(("__", "py.typed")):
                continue
            name = f"{path.name}/" if path.is_dir() else path.name
            with self.subTest(module=name):
                self.assertIn(f"`{name}`", ARCHITECTURE, "not in the table of modules")

    def test_the_picture_is_the_one_that_is_drawn_from_the_layering_table(self) -> None:
        self.assertEqual(
            house_map.rewrite(ARCHITECTURE), ARCHITECTURE, "tools/house_map.py --write"
        )


class LinkTest(unittest.TestCase):
    def test_every_link_points_to_a_file(self) -> None:
        for page in PAGES:
            for target in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text("utf-8")):
                with self.subTest(page=page.name, target=target):
                    self.assertTrue((page.parent / target).exists())
