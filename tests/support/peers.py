"""Where `tools/check --peers` has put the programs of others: see tests/peers/README.md."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from tests.support.places import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

PEERS = ROOT / ".peers"
NODE_MODULES = PEERS / "node_modules"
GOPLS = PEERS / "go" / "gopls"  # only where go is installed


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


class FrameCheck:
    """Checks what an ACP agent sends by the published schema, each message by its own type: as a
    whole the schema allows nearly everything."""

    def __init__(self, validator: Callable[[Any], Any]) -> None:
        self._validator = validator  # a class of the package jsonschema
        self._validators: dict[str, Any] = {}  # one for each type: making one takes long
        self._schema = acp_schema()
        self.open: dict[Any, str] = {}  # methods of requests to the agent, by ids, until answered
        self.checked: list[str] = []  # what was checked, by the names of types

    def to_agent(self, message: dict[str, Any]) -> None:
        if "method" in message and "id" in message:
            self.open[message["id"]] = message["method"]

    def from_agent(self, message: dict[str, Any]) -> None:
        """Raises ValidationError, or KeyError for a message of no known type and for a result that
        nobody waits for."""
        if "method" in message:
            kind = "Request" if "id" in message else "Notification"
            self._check(message["params"], message["method"], kind)
        elif "error" in message:
            self.open.pop(message["id"], None)
            self._check_type(message["error"], "Error")
        else:
            self._check(message["result"], self.open.pop(message["id"]), "Response")

    def _check(self, value: Any, method: str, kind: str) -> None:
        if method == "$/cancel_request":
            name = "CancelRequestNotification"
        else:
            (name,) = (
                name
                for name, definition in self._schema["$defs"].items()
                if definition.get("x-method") == method and name.endswith(kind)
            )
        self._check_type(value, name)

    def _check_type(self, value: Any, name: str) -> None:
        if name not in self._validators:
            wanted = {"$ref": f"#/$defs/{name}", "$defs": self._schema["$defs"]}
            self._validators[name] = self._validator(wanted)
        self._validators[name].validate(value)
        update = value.get("update", {}).get("sessionUpdate", "") if value else ""
        self.checked.append(f"{name} {update}".strip())
