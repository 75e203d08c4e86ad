"""Workspaces and their databases, control and version of the daemon."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Any

from ..records import dataclass
from .codec import omitted

# The Crush client reads these two objects without a check, so they are always there.
WireConfig = Annotated[dict[str, Any], "options.tui", "providers"]


@dataclass(slots=True)
class CreateWorkspace:
    """Body of `POST /v1/workspaces`. Without an `env`, commands get the daemon's environment."""

    id: str = ""
    path: str = ""
    client_id: str = omitted()
    version: str = omitted()
    yolo: bool = omitted(False)
    debug: bool = omitted(False)
    data_dir: str = omitted()
    env: list[str] | None = omitted(None)
    channels: list[str] = omitted(list)


@dataclass(slots=True)
class Workspace:
    """A workspace. `env` is what the requesting client itself sent, never another client's."""

    id: str
    path: str
    yolo: bool = omitted(False)
    debug: bool = omitted(False)
    data_dir: str = omitted()
    version: str = omitted()
    config: WireConfig = field(default_factory=dict)
    env: list[str] = omitted(list)
    channels: list[str] = omitted(list)
    warning: str = omitted()


@dataclass(slots=True)
class Space:
    """Bytes that a database takes on disk, before and after it was compacted."""

    before: int
    after: int


@dataclass(slots=True)
class Control:
    """A command to the daemon. `client` is `crushlite`, or empty from the Crush client."""

    command: str = ""
    client: str = omitted()


@dataclass(slots=True)
class VersionInfo:
    """Answer of `GET /v1/version`. `agent` is the name that the daemon was started with (`serve
    --agent`), empty if it was given an agent without a name; not in the base protocol."""

    version: str
    commit: str
    build_id: str
    go_version: str
    platform: str
    agent: str = omitted()
