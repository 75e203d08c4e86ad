"""What clients see of a workspace, of its configuration and of its agent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..protocol.config import AgentInfo
from ..protocol.workspaces import Workspace as WireWorkspace
from ..version import WIRE_VERSION

if TYPE_CHECKING:
    from ..hosting.backend import Hosted
    from ..hosting.workspace import Workspace


def describe(hosted: Hosted, client: str | None = None) -> WireWorkspace:
    """A workspace on the wire. A client sees the environment it sent itself, and no other."""
    return WireWorkspace(
        id=hosted.workspace.id,
        path=hosted.path,
        yolo=hosted.yolo,
        debug=hosted.debug,
        data_dir=str(hosted.data_dir),
        version=WIRE_VERSION,
        config=wire_config(hosted),
        env=hosted.envs.get(client, []) if client is not None else [],
        channels=hosted.channels,
        warning=hosted.workspace.profile.warning,
    )


def wire_config(hosted: Hosted) -> dict[str, Any]:
    return hosted.workspace.profile.wire(agent_info(hosted.workspace))


def agent_info(workspace: Workspace) -> AgentInfo:
    if workspace.agent is None:
        return AgentInfo()
    info, busy = workspace.agent.info(), workspace.runs.busy()
    return AgentInfo(busy, True, info.model, info.selected, info.no_model)
