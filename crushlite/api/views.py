"""What clients see of a workspace, of its configuration and of its agent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..protocol.config import AgentInfo
from ..protocol.workspaces import Workspace as WireWorkspace
from ..version import WIRE_VERSION

if TYPE_CHECKING:
    from ..hosting.workspace import Workspace


def describe(workspace: Workspace, client: str | None = None) -> WireWorkspace:
    """A workspace on the wire. A client sees the environment it sent itself, and no other."""
    return WireWorkspace(
        id=workspace.id,
        path=workspace.asked.path,
        yolo=workspace.asked.yolo,
        debug=workspace.asked.debug,
        data_dir=str(workspace.profile.data_dir),
        version=WIRE_VERSION,
        config=wire_config(workspace),
        env=workspace.envs.get(client, []) if client is not None else [],
        channels=workspace.asked.channels,
        warning=workspace.profile.warning,
    )


def wire_config(workspace: Workspace) -> dict[str, Any]:
    return workspace.profile.wire(agent_info(workspace))


def agent_info(workspace: Workspace) -> AgentInfo:
    if workspace.agent is None:
        return AgentInfo()
    info, busy = workspace.agent.info(), workspace.runs.busy()
    return AgentInfo(busy, True, info.model, info.selected, info.no_model)
