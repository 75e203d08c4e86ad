"""The wings that come with crushlite, one line each.

To take a wing off, delete its folder, its tests and its line here. `cli/` is a wing as well: it is
the command that starts a daemon, so no daemon loads it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .wing import Wing

# The module and the class of each.
WINGS = (
    (".reports.wing", "ReportsWing"),  # first, and so the last to close: it counts what others do
    (".config.wing", "ConfigWing"),
    (".coder.wing", "CoderWing"),
    (".acp_agents.wing", "AgentsWing"),
    (".skills.wing", "SkillsWing"),
    (".hooks.wing", "HooksWing"),
    (".delegation.wing", "DelegationWing"),
    (".titles.wing", "TitlesWing"),
    (".costs.wing", "CostsWing"),
    (".mcp.wing", "McpWing"),
    (".lsp.wing", "LspWing"),
    (".filehistory.wing", "HistoryWing"),  # after lsp, which need not wait until it has stored
    (".undo.wing", "UndoWing"),  # after filehistory, to which it listens
    (".console.wing", "ConsoleWing"),
    (".acp.wing", "AcpWing"),
    (".shell.wing", "ShellWing"),  # after undo, which watches its commands until it has closed
)


def has_wing(name: str) -> bool:
    """Whether the list above has the wing in this folder."""
    return any(module == f".{name}.wing" for module, _ in WINGS)


def standard_wings() -> list[Wing]:
    """A new object of each. Imported only now: a client needs none of them."""
    return [getattr(importlib.import_module(module, __package__), name)() for module, name in WINGS]
