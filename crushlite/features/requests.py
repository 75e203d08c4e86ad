"""Requests of a client for what only wings answer, as functions over a workspace of the client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..client.requests import LONG
from ..client.wire import readable, route
from ..errors import CrushliteError, NotFound
from ..protocol.codec import decode, dumps, encode, loads
from ..protocol.config import ModelChoice
from .wire import (
    ChangedRun,
    CommandInfo,
    ExpandCommand,
    ExpandedCommand,
    Health,
    McpState,
    OfferedAgent,
    ProviderKey,
    RemoveValue,
    RunChanges,
    SessionAgent,
    SetValue,
    ShellAnswer,
    ShellCommand,
    UndoAnswer,
    UndoRequest,
    UsedServers,
    WantServers,
    WebAddress,
    WebRequest,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from ..client import Client
    from ..client.requests import WorkspaceRequests
    from ..protocol.config import SelectedModel
    from .wire import ClientServer

_LINE_BYTES = 1 << 20  # of an answer that is read in lines


# Agents of other makers -------------------------------------------------------------------------


async def offered_agents(workspace: WorkspaceRequests) -> list[OfferedAgent]:
    """The agents that can be chosen for a session by name."""
    return await workspace.wire.request_list(OfferedAgent, workspace.at("agents"))


async def session_agent(workspace: WorkspaceRequests, session_id: str) -> str:
    """The name of the agent that was chosen for a session; empty: that of the workspace."""
    target = workspace.at("sessions", session_id, "agent")
    return (await workspace.wire.request(SessionAgent, "GET", target)).agent


async def choose_agent(workspace: WorkspaceRequests, session_id: str, name: str) -> None:
    """Let an agent answer the runs of a session that start from now on: a name of
    `offered_agents`, or `acp:COMMAND ARGS`; `default` is the agent of the workspace. Raises
    BadRequest if there is no such agent, NotFound if the daemon cannot do that."""
    target = workspace.at("sessions", session_id, "agent")
    await workspace.wire.request(SessionAgent, "PUT", target, SessionAgent(name))


# Commands ---------------------------------------------------------------------------------------


async def commands(workspace: WorkspaceRequests) -> list[CommandInfo]:
    """The prompts that can be sent by a name. Raises NotFound if the daemon has none at all."""
    return await workspace.wire.request_list(CommandInfo, workspace.at("commands"))


async def expand_command(
    workspace: WorkspaceRequests,
    command: str,
    arguments: Mapping[str, str] | None = None,
    text: str = "",
) -> str:
    """The prompt that a command stands for, by its name or id. `text` is what was typed behind its
    name. Raises NotFound, or BadRequest if an argument is missing."""
    request = ExpandCommand(command, dict(arguments or {}), text)
    target = workspace.at("commands", "expand")
    return (await workspace.wire.request(ExpandedCommand, "POST", target, request)).prompt


# Commands that a person types -------------------------------------------------------------------


async def shell(workspace: WorkspaceRequests, session_id: str, command: str) -> ShellAnswer:
    """Run a shell command for the user, not for the agent. It is recorded in the session."""
    target = workspace.at("agent", "sessions", session_id, "shell")
    request = ShellCommand(session_id, command)
    return await workspace.wire.request(ShellAnswer, "POST", target, request, wait=LONG)


# Changes of files -------------------------------------------------------------------------------


async def changed_runs(workspace: WorkspaceRequests) -> list[ChangedRun]:
    """The runs that changed files, and the undos of such runs; the latest is last."""
    return await workspace.wire.request_list(ChangedRun, workspace.at("changes"))


async def run_changes(workspace: WorkspaceRequests, run_id: str) -> RunChanges:
    """The changes of a run to files, each with the reason if it cannot be undone."""
    return await workspace.wire.request(RunChanges, "GET", workspace.at("runs", run_id, "changes"))


async def undo(
    workspace: WorkspaceRequests, run_id: str, *, dry_run: bool = False, partial: bool = False
) -> UndoAnswer:
    """Put back the files that a run changed. Raises Conflict if one cannot be put back, unless
    `partial`. `dry_run` changes nothing and returns what would be done."""
    target = workspace.at("runs", run_id, "undo")
    request = UndoRequest(dry_run, partial)
    return await workspace.wire.request(UndoAnswer, "POST", target, request, wait=LONG)


# Configuration. `scope` says which file is written: 0 the user's, 1 the workspace's own. ---------


async def set_config(workspace: WorkspaceRequests, key: str, value: object, scope: int = 0) -> None:
    target = workspace.at("config", "set")
    await workspace.wire.send("POST", target, SetValue(key, value, scope))


async def remove_config(workspace: WorkspaceRequests, key: str, scope: int = 0) -> None:
    await workspace.wire.send("POST", workspace.at("config", "remove"), RemoveValue(key, scope))


async def choose_model(
    workspace: WorkspaceRequests, which: str, model: SelectedModel, scope: int = 0
) -> None:
    """Set the model for `which`: `large` or `small`."""
    choice = ModelChoice(which, model, scope)
    await workspace.wire.send("POST", workspace.at("config", "model"), choice)


async def set_key(
    workspace: WorkspaceRequests, provider_id: str, api_key: str, scope: int = 0
) -> None:
    key = ProviderKey(provider_id, "string", api_key, scope)
    await workspace.wire.send("POST", workspace.at("config", "provider-key"), key)


async def reread_config(workspace: WorkspaceRequests, *, everywhere: bool = False) -> None:
    """Make the daemon read its configuration files again, after they were edited. `everywhere`:
    wait until it has asked all providers and local servers for their models."""
    query = {"everywhere": "true"} if everywhere else {}
    await workspace.wire.send("POST", workspace.at("agent", "update", **query))


# Tool servers -----------------------------------------------------------------------------------


async def tool_servers(workspace: WorkspaceRequests) -> list[McpState]:
    """The tool servers of the workspace, by name."""
    found = await workspace.wire.request_json(dict, workspace.at("mcp", "states"))
    return [decode(McpState, found[name], name) for name in sorted(found)]


async def use_tool_servers(
    workspace: WorkspaceRequests, servers: list[ClientServer]
) -> AsyncIterator[UsedServers]:
    """Let the agent use these tool servers, too. Yields once, which of them are used, and then
    waits until the daemon ends it. They are used until then, or until the iteration ends."""
    target, rest = workspace.at("mcp", "servers"), b""
    body = dumps(encode(WantServers(servers)))
    async with workspace.wire.stream("POST", target, body=body) as pieces:
        async for piece in pieces:
            *lines, rest = (rest + piece).split(b"\n")
            if len(rest) > _LINE_BYTES:
                raise CrushliteError(f"POST {target}: a line of the answer is too long")
            for line in lines:
                yield decode(UsedServers, loads(line))


# The daemon itself ------------------------------------------------------------------------------


async def vitals(client: Client) -> Health:
    """The daemon's own figures: load, workspaces, clients, and what its checks found. Raises
    NotFound if it makes no reports."""
    answer = await client.send("GET", route("health", verbose=1))
    if not answer.strip():
        raise NotFound(f"the daemon at {client.address} makes no reports about itself")
    with readable("GET", "/v1/health"):
        return decode(Health, loads(answer))


# The web console --------------------------------------------------------------------------------


async def web(client: Client, port: int = 0, path: str = "", allow_host: str = "") -> WebAddress:
    """A code that opens the web console of a directory once. The daemon listens on loopback from
    then on, at this port unless it is 0; browsers may call it `allow_host` (NAME:PORT), where a
    tunnel leads there."""
    wanted = WebRequest(port, path, allow_host)
    return await client.request(WebAddress, "POST", route("web"), wanted)
