"""Workspaces, clients, control and version."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from .codec import omitted, omitted_list

# What the Crush client reads without a check is there whatever the configuration holds.
WireConfig = Annotated[dict[str, Any], "options.tui", "providers"]


@dataclass(slots=True)
class CreateWorkspace:
    """Body of `POST /v1/workspaces`. `env` is None when the client sent none: tools then get the
    daemon's own environment."""

    id: str = ""
    path: str = ""
    client_id: str = omitted()
    version: str = omitted()
    yolo: bool = omitted(False)
    debug: bool = omitted(False)
    data_dir: str = omitted()
    env: list[str] | None = omitted(None)
    channels: list[str] = omitted_list()


@dataclass(slots=True)
class Workspace:
    """`env` is what the asking client itself sent, never another client's."""

    id: str
    path: str
    yolo: bool = omitted(False)
    debug: bool = omitted(False)
    data_dir: str = omitted()
    version: str = omitted()
    config: WireConfig = field(default_factory=dict)
    env: list[str] = omitted_list()
    channels: list[str] = omitted_list()
    warning: str = omitted()


@dataclass(slots=True)
class Control:
    """`client` tells our own clients from the Crush client on a unix socket."""

    command: str = ""
    client: str = omitted()


@dataclass(slots=True)
class VersionInfo:
    version: str
    commit: str
    build_id: str
    go_version: str
    platform: str
