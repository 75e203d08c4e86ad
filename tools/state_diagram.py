"""Draw the state machines from their own transition tables, as Mermaid.

    python tools/state_diagram.py            print every diagram
    python tools/state_diagram.py --write    put them into docs/machines.md, between their markers

The page is a copy, so a test compares it with what is generated here.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":  # runs from a checkout, installed or not
    sys.path.insert(0, str(ROOT))

from crushlite import claims, runs  # noqa: E402  (needs the path above)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from enum import Enum

__all__ = ["MACHINES", "PAGE", "block", "diagram", "main", "names", "rewrite"]

State = TypeVar("State", bound="Enum")

PAGE = ROOT / "docs" / "machines.md"


def names(table: Mapping[State, Mapping[str, State]]) -> dict[str, dict[str, str]]:
    """The table with the names of its states."""
    return {
        before.name: {event: after.name for event, after in cells.items()}
        for before, cells in table.items()
    }


# In the order of the page. The first state of a table is where a machine begins.
MACHINES = {"runs": names(runs.TRANSITIONS), "claims": names(claims.TRANSITIONS)}


def diagram(table: Mapping[str, Mapping[str, str]]) -> str:
    """One arrow for each pair of states, with all the events that lead from one to the other."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for before, cells in table.items():
        for event, after in cells.items():
            arrows.setdefault((before, after), []).append(event)
    lines = ["stateDiagram-v2", f"    [*] --> {next(iter(table))}"]
    lines += [f"    {a} --> {b}: {', '.join(events)}" for (a, b), events in arrows.items()]
    lines += [f"    {state} --> [*]" for state, cells in table.items() if not cells]
    return "\n".join(lines) + "\n"


def block(name: str) -> str:
    """The part of the page that belongs to a machine, its markers included."""
    fence = f"```mermaid\n{diagram(MACHINES[name])}```"
    return f"<!-- state_diagram: {name} -->\n{fence}\n<!-- /state_diagram: {name} -->"


def rewrite(page: str) -> str:
    """The page with every marked block made anew. Raises ValueError if a block is missing."""
    for name in MACHINES:
        marked = rf"<!-- state_diagram: {name} -->.*?<!-- /state_diagram: {name} -->"
        found = re.findall(marked, page, re.DOTALL)
        if len(found) != 1:
            raise ValueError(f"expected one marked block for {name}, found {len(found)}")
        page = page.replace(found[0], block(name))
    return page


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Draw the state machines as Mermaid.")
    parser.add_argument("--write", action="store_true", help="rewrite the blocks of the page")
    if parser.parse_args(argv).write:
        PAGE.write_text(rewrite(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print("\n".join(f"%% {name}\n{diagram(table)}" for name, table in MACHINES.items()), end="")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
