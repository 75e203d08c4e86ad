"""The rows of the house, and the map that is drawn from them.

    python tools/house_map.py            print the map, as Mermaid
    python tools/house_map.py --write    put it into docs/architecture.md, between its markers

A module imports only from rows above its own; tests/house/test_layering.py enforces that with this
table, and that the copy in the page is true.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "architecture.md"

# From the ground up, in groups; a package is one row. `api.entry` is a row of its own, because it
# is what the seam shows of the api.
GROUPS: dict[str, tuple[str, ...]] = {
    "foundations": (
        *("version", "unique", "records", "errors", "clock", "threads", "itself"),
        "realpath",
    ),
    "the wire": ("protocol",),
    "the machines": ("runs", "claims", "settings"),
    "what everything stands on": ("http", "backlog", "events", "store"),
    "contracts": ("agent", "api.entry", "wing"),
    "hosting": ("hosting",),
    "doors": ("api", "client", "listen", "bounded_exit", "wings"),
    "the daemon": ("daemon", "launch"),
}
# Used by several wings, by tests, or by a person, and by nothing else.
LIBRARIES = (
    *("commands", "offline", "features", "guards", "repair", "worktree", "jsonrpc", "outbound"),
    *("fake_model", "testing"),
)
WINGS = (
    "config",
    "coder",
    "skills",
    "hooks",
    "acp_agents",
    "acp",
    "delegation",
    "titles",
    "costs",
    "filehistory",
    "undo",
    "mcp",
    "lsp",
    "console",
    "reports",
    "shell",
    "cli",
)  # __main__ goes with cli

CORE = {row for rows in GROUPS.values() for row in rows}
ROWS = (*(row for rows in GROUPS.values() for row in rows), *LIBRARIES, *WINGS)
# Rows that may use fewer rows than those above them: each must be usable without the rest.
ONLY = {
    "http": {"clock", "records"},
    "client": {"protocol", "errors", "clock", "http", "records", "unique", "version"},
}
# Wings that use another one if it is there.
NEEDS = {
    "coder": {"config"},
    "undo": {"filehistory"},
    "skills": {"config"},
    "hooks": {"config"},
    "acp_agents": {"config"},
    "mcp": {"config"},
    "lsp": {"config"},
    "cli": {"config", "console", "acp", "skills"},
}


def row_of(name: str) -> str | None:
    """The row of a module or of a name in it, as written inside the package; None if none."""
    if name == "__main__":
        return "cli"
    if f"{name}.".startswith("api.entry."):
        return "api.entry"
    head = name.partition(".")[0]
    return head if head in ROWS else None


def diagram() -> str:
    """The groups from the ground up, and the wings on top."""
    lines = ["flowchart BT"]
    names = list(GROUPS)
    for number, (group, rows) in enumerate(GROUPS.items()):
        lines.append(f'    subgraph g{number} ["{group}"]')
        lines.append(f'        {_ident(rows[0])}["{_label(rows)}"]')
        lines.append("    end")
    lines += [f"    g{number - 1} --> g{number}" for number in range(1, len(names))]
    lines.append('    subgraph wings ["wings: each can be deleted"]')
    lines += [f"        {wing}" for wing in WINGS]
    lines.append("    end")
    lines.append(f'    {LIBRARIES[0]}["{_label(LIBRARIES)}"]')
    lines += [f"    g{len(names) - 1} --> wings", f"    {LIBRARIES[0]} --> wings"]
    return "\n".join(lines) + "\n"


def _ident(row: str) -> str:
    return "r_" + row.replace(".", "_").strip("_")


def _label(rows: tuple[str, ...]) -> str:
    return ", ".join("wings.py" if row == "wings" else row for row in rows)


def block() -> str:
    return f"<!-- house_map -->\n```mermaid\n{diagram()}```\n<!-- /house_map -->"


def rewrite(page: str) -> str:
    """The page with its map made anew. Raises ValueError if there is no place for it."""
    found = re.findall(r"<!-- house_map -->.*?<!-- /house_map -->", page, re.DOTALL)
    if len(found) != 1:
        raise ValueError(f"expected one marked block for the map, found {len(found)}")
    return page.replace(found[0], block())


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Draw the map of the house as Mermaid.")
    parser.add_argument("--write", action="store_true", help="rewrite the block of the page")
    if parser.parse_args(argv).write:
        PAGE.write_text(rewrite(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print(diagram(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
