"""The diagrams in docs/machines.md are what the transition tables say."""

from __future__ import annotations

import contextlib
import importlib
import io
import tempfile
import unittest
from enum import Enum
from pathlib import Path
from unittest import mock

# By name, for `tools` is a folder of scripts and not a package that type checkers could follow.
state_diagram = importlib.import_module("tools.state_diagram")


class Door(Enum):
    OPEN = 1
    SHUT = 2
    GONE = 3


class DiagramTest(unittest.TestCase):
    def test_a_table_becomes_one_arrow_for_each_pair_of_states(self) -> None:
        table = {
            Door.OPEN: {"push": Door.SHUT, "kick": Door.SHUT, "look": Door.OPEN},
            Door.SHUT: {"burn": Door.GONE},
            Door.GONE: {},
        }
        lines = [
            line.strip() for line in state_diagram.diagram(state_diagram.names(table)).splitlines()
        ]
        self.assertEqual(
            lines,
            [
                "stateDiagram-v2",
                "[*] --> OPEN",
                "OPEN --> SHUT: push, kick",
                "OPEN --> OPEN: look",
                "SHUT --> GONE: burn",
                "GONE --> [*]",
            ],
        )

    def test_every_cell_of_every_machine_is_drawn(self) -> None:
        for name, table in state_diagram.MACHINES.items():
            drawn = state_diagram.diagram(table).splitlines()
            for before, cells in table.items():
                for event, after in cells.items():
                    arrows = [line for line in drawn if f" {before} --> {after}: " in line]
                    events = [arrow.split(": ")[1].split(", ") for arrow in arrows]
                    self.assertEqual(len(events), 1, f"{name}: {before} to {after}")
                    self.assertIn(event, events[0], name)


class PageTest(unittest.TestCase):
    def test_the_page_has_the_generated_diagrams(self) -> None:
        page = state_diagram.PAGE.read_text(encoding="utf-8")
        hint = "docs/machines.md is out of date: run python tools/state_diagram.py --write"
        self.assertEqual(page, state_diagram.rewrite(page), hint)

    def test_the_text_explains_every_state(self) -> None:
        page = state_diagram.PAGE.read_text(encoding="utf-8")
        for table in state_diagram.MACHINES.values():
            for state in table:
                self.assertIn(f"`{state}`", page)

    def test_a_page_without_markers_is_refused(self) -> None:
        with self.assertRaisesRegex(ValueError, "one marked block for runs, found 0"):
            state_diagram.rewrite("# Nothing here\n")

    def test_write_repairs_only_the_blocks(self) -> None:
        page = state_diagram.PAGE.read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder, "machines.md")
            copy.write_text(page.replace("stateDiagram-v2", "broken"), encoding="utf-8")
            with mock.patch.object(state_diagram, "PAGE", copy):
                self.assertEqual(state_diagram.main(["--write"]), 0)
            self.assertEqual(copy.read_text(encoding="utf-8"), page)

    def test_without_a_flag_it_prints(self) -> None:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            self.assertEqual(state_diagram.main([]), 0)
        for name, table in state_diagram.MACHINES.items():
            self.assertIn(f"%% {name}\n{state_diagram.diagram(table)}", printed.getvalue())


if __name__ == "__main__":
    unittest.main()
