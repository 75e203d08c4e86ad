"""Where `tools/check --peers` has put the programs of others: see tests/peers/README.md."""

from __future__ import annotations

import json
import os
from typing import Any

from tests.support.places import ROOT

PEERS = ROOT / ".peers"
NODE_MODULES = PEERS / "node_modules"


def npm_program(name: str) -> str:
    """The path of a program of an npm package. Start it with `peer_environment`."""
    return str(NODE_MODULES / ".bin" / name)


def python_program(name: str) -> str:
    """The path of a program of a Python package."""
    return str(PEERS / "venv" / "bin" / name)


def peer_environment(home: str, **more: str) -> dict[str, str]:
    """For a peer: a home of its own, its own Node first, nothing of the tester's."""
    path = os.pathsep.join(
        (str(NODE_MODULES / "node" / "bin"), str(NODE_MODULES / ".bin"), os.environ["PATH"])
    )
    places = {"HOME": home, "XDG_RUNTIME_DIR": home, "TMPDIR": home}
    return {**places, "PATH": path, "NO_PROXY": "127.0.0.1,localhost", **more}


def acp_schema() -> dict[str, Any]:
    """The JSON Schema of ACP version 1, as its SDK publishes it."""
    path = NODE_MODULES / "@agentclientprotocol" / "sdk" / "schema" / "v1" / "schema.json"
    schema: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return schema
