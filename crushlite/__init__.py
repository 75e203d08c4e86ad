"""crushlite: a small local daemon for AI coding agents.

Names are loaded on first use (PEP 562): importing `crushlite.client` pulls in neither the server,
nor the agents, nor SQLite.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .version import __version__

if TYPE_CHECKING:
    from .agent.base import Agent, Info, Title, Turn, Usage
    from .client import Client
    from .daemon import Daemon
    from .launch import open_workspace
    from .settings import Settings

__all__ = [
    "Agent",
    "Client",
    "Daemon",
    "Info",
    "Settings",
    "Title",
    "Turn",
    "Usage",
    "__version__",
    "open_workspace",
]

_HOMES = {  # relative to this package, whatever it is called
    "Agent": ".agent.base",
    "Client": ".client",
    "Daemon": ".daemon",
    "Info": ".agent.base",
    "Settings": ".settings",
    "Title": ".agent.base",
    "Turn": ".agent.base",
    "Usage": ".agent.base",
    "open_workspace": ".launch",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home, __name__), name)
