"""crushlite: a small local daemon for AI coding agents.

Names are loaded on first use (PEP 562): importing `crushlite.client` pulls in neither the server,
nor the agents, nor SQLite.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from crushlite.version import __version__

if TYPE_CHECKING:
    from crushlite.agent.base import Agent, Info, Title, Turn, Usage
    from crushlite.client import Client
    from crushlite.daemon import Daemon
    from crushlite.launch import open_workspace
    from crushlite.settings import Settings

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

_HOMES = {
    "Agent": "crushlite.agent.base",
    "Client": "crushlite.client",
    "Daemon": "crushlite.daemon",
    "Info": "crushlite.agent.base",
    "Settings": "crushlite.settings",
    "Title": "crushlite.agent.base",
    "Turn": "crushlite.agent.base",
    "Usage": "crushlite.agent.base",
    "open_workspace": "crushlite.launch",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'crushlite' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
