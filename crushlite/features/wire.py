"""The JSON of what only wings answer, as dataclasses: see `protocol`."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, Protocol

from ..protocol.codec import omitted
from ..protocol.sessions import NEVER
from ..records import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

# Configuration. `scope` says which file is written: 0 the user's, 1 the workspace's own. ----------


@dataclass(slots=True)
class SetValue:
    key: str
    value: Any = None
    scope: int = 0


@dataclass(slots=True)
class RemoveValue:
    key: str
    scope: int = 0


@dataclass(slots=True)
class CompactMode:
    enabled: bool
    scope: int = 0


@dataclass(slots=True)
class ProviderKey:
    """`api_key` is a string or, if `kind` is `oauth`, an object with the tokens."""

    provider_id: str
    kind: str
    api_key: Any = None
    scope: int = 0


@dataclass(slots=True)
class OAuthRefresh:
    provider_id: str
    scope: int = 0


# Agents of other makers that can answer in a session ----------------------------------------------


@dataclass(slots=True)
class OfferedAgent:
    """One that can be chosen by its name; `command` is what is started then."""

    name: str
    command: str


@dataclass(slots=True)
class SessionAgent:
    """Who answers in a session: a name, `acp:COMMAND ARGS`, or empty for the workspace's agent."""

    agent: str = ""


# Skills and commands ------------------------------------------------------------------------------


@dataclass(slots=True)
class ReadSkill:
    skill_id: str


@dataclass(slots=True)
class CommandArgument:
    name: str
    description: str = omitted()
    required: bool = omitted(False)


@dataclass(slots=True)
class CommandInfo:
    """A text that a user can send by its name. `source` is user, project, skill or mcp."""

    id: str
    name: str  # what a user types behind a slash; no two in a list are the same
    description: str = ""
    source: str = ""
    arguments: list[CommandArgument] = field(default_factory=list)


class OfferedCommand(Protocol):
    """A prompt that users can send by a name, with arguments."""

    @property
    def info(self) -> CommandInfo: ...

    async def expand(self, arguments: Mapping[str, str], text: str) -> str:
        """The prompt, with the values of its arguments: only those it has, all that are required.
        `text` is what was typed behind a command without arguments. Raises CrushliteError."""


@dataclass(slots=True)
class ExpandCommand:
    """A command by its id or name, and what its arguments are: by name, or as the text that was
    typed behind its name, or both."""

    command: str
    arguments: dict[str, str] = omitted(dict)
    text: str = omitted()


@dataclass(slots=True)
class ExpandedCommand:
    """The prompt that a command stands for. It was not sent."""

    prompt: str


# Tool servers -------------------------------------------------------------------------------------


@dataclass(slots=True)
class NamedServer:
    """A tool server or, with `uri`, a resource of it."""

    name: str
    uri: str = omitted()


@dataclass(slots=True)
class ClientServer:
    """A tool server that a client names. Its values are used as they are: `$VAR` is no variable."""

    name: str
    type: str = "stdio"  # or http, sse
    command: str = ""
    args: list[str] = field(default_factory=list, repr=False)
    env: dict[str, str] = field(default_factory=dict, repr=False)
    url: str = field(default="", repr=False)
    headers: dict[str, str] = field(default_factory=dict, repr=False)


@dataclass(slots=True)
class WantServers:
    servers: list[ClientServer] = field(default_factory=list)


@dataclass(slots=True)
class UsedServers:
    """Which tool servers of a client are used, by name, and why others are not."""

    used: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class GetPrompt:
    """A prompt of a tool server, whose name is in `client_id`."""

    client_id: str
    prompt_id: str
    args: dict[str, Any] = omitted(dict)


@dataclass(slots=True)
class McpState:
    """A tool server. What follows `connected_at` only crushlite has: the names of its tools, those
    that cannot be offered with the reason, and the last lines of its log if it has failed."""

    name: str
    state: str  # disabled, starting, connected, error or "needs auth"
    error: str = omitted()
    tool_count: int = omitted(0)
    prompt_count: int = omitted(0)
    resource_count: int = omitted(0)
    connected_at: str = NEVER
    tools: list[str] = omitted(list)
    left_out: list[str] = omitted(list)
    last_lines: str = omitted()


# Commands that a person types --------------------------------------------------------------------


@dataclass(slots=True)
class ShellCommand:
    """Body of the shell route. The session in the path counts, not the one in here."""

    session_id: str = ""
    command: str = ""
    term_width: int = 0


@dataclass(slots=True)
class ShellAnswer:
    output: str
    exit_code: int


# Files that a session has read ------------------------------------------------------------------


@dataclass(slots=True)
class FileRead:
    session_id: str = ""
    path: str = ""


# The changes of runs to files, and undoing them ---------------------------------------------------


@dataclass(slots=True)
class ChangedRun:
    """A run that changed files, or the undo of one: then `undoes` is the run that was undone."""

    run_id: str
    session_id: str
    undoes: str = ""
    files: int = 0
    changed_at: int = 0
    undone: bool = False


@dataclass(slots=True)
class FileChange:
    """One file before and after a run; the text is empty where the file did not exist. `mode` holds
    the permission bits before the run, 0 if they are not known. `problem` says why the file cannot
    be put back now; empty if it can."""

    path: str
    existed: bool
    exists: bool
    before: str
    after: str
    mode: int = 0
    problem: str = omitted()


@dataclass(slots=True)
class RunChanges:
    """The changes of one run. `notes` say what is not known about them. A file whose change was not
    recorded is listed with a problem and without texts."""

    run_id: str
    session_id: str
    undoes: str = ""
    files: list[FileChange] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class UndoRequest:
    """`dry_run`: only say what would be done. `partial`: put back what can be, instead of none."""

    dry_run: bool = False
    partial: bool = False


@dataclass(slots=True)
class UndoAnswer:
    """`run_id` is the id of the undo, which can be undone like a run; empty if nothing was done.
    `restored` are the paths that were put back, or would be, `kept` the files that were not."""

    run_id: str
    restored: list[str] = field(default_factory=list)
    kept: list[FileChange] = field(default_factory=list)


# The web console ----------------------------------------------------------------------------------


@dataclass(slots=True)
class WebRequest:
    """Body of `POST /v1/web`. Port 0: the one that is served already, else a free one. `path` is
    the directory that the page opens. `allow_host` is NAME:PORT as the browser sees the console,
    where a tunnel or a proxy is in between."""

    port: int = omitted(0)
    path: str = omitted("")
    allow_host: str = omitted("")


@dataclass(slots=True)
class WebAddress:
    """Where the console is, and a code that can be used once, within `expires_in` seconds: typed at
    `url`, or by opening `page`, a file that only its owner can read and that goes with its code."""

    url: str
    code: str
    page: str
    expires_in: float


# The daemon itself: `GET /v1/health?verbose=1` ----------------------------------------------------


@dataclass(slots=True)
class Check:
    name: str
    ok: bool
    detail: str = omitted()  # what is wrong


@dataclass(slots=True)
class Health:
    """`status` is ok, or degraded if a check failed: the daemon still serves. `store` has for every
    data directory in use `ok`, or why it cannot be written."""

    status: str
    version: str
    pid: int
    uptime_seconds: float
    loop_lag_seconds: float
    workspaces: int
    clients: int
    streams: int
    busy_sessions: int
    store: dict[str, str] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)
