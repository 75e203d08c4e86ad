"""What a tool is, and what it may use.

A tool gets a ToolUse and returns a ToolOutcome. It never writes to the transcript: the loop records
calls and results. It asks for permission and runs commands through the turn, so that a cancel and
the end of the run reach all that it started, and resolves paths through worktree/paths.py.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ...errors import BadRequest
from ...records import dataclass
from ...worktree.names import similar_paths
from ...worktree.paths import OwnFolders, locate
from ...worktree.threads import FileThreads
from ..images import image_problem
from ..providers.base import ToolSpec
from .results import ResultFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from ...agent.base import Turn
    from ...worktree.paths import Place

T = TypeVar("T")

FILE_SECONDS = 30.0  # for one call; a local disk that syncs under load can take several
VIEW_LINES = 400
# As base64 an image is part of an event, which must fit into the replay ring of a workspace
# (4 MiB), and of each later request to the model.
IMAGE_BYTES = 5 << 19
IMAGES_BYTES = 16 << 20  # of all images that one run looks at
SEARCHES = 8  # at the same time in a daemon; each may take 512 MiB and a core


@dataclass(slots=True)
class ToolContext:
    """What the tools of one workspace share beyond a single call."""

    path: Path  # the workspace, resolved
    env: Mapping[str, str]  # for commands; without secrets
    own: OwnFolders = field(default_factory=OwnFolders)  # closed to tools
    # For all calls that may block. Not shared with other workspaces or the rest of the daemon:
    # a file system that hangs takes these threads only.
    threads: FileThreads = field(default_factory=lambda: FileThreads(4, "tools"))
    # Held while a search runs, by all workspaces of the daemon: each is two processes.
    searches: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(SEARCHES))
    # By session and resolved path: the digest of a file's content when the model last saw it. A
    # change is refused if the file has another content now.
    seen: dict[tuple[str, str], str] = field(default_factory=dict)
    view_lines: int = VIEW_LINES  # that view shows if the model does not say how many
    images: bool = True  # whether the model takes images
    # By session: the run that looked at images last, and the bytes of these.
    images_of: dict[str, tuple[str, int]] = field(default_factory=dict)
    results: ResultFiles = field(default_factory=ResultFiles)  # those too long for the model

    async def blocking(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function in a thread. Raises BadRequest if it takes longer than FILE_SECONDS."""
        return await self.threads.run(FILE_SECONDS, function, *args)

    async def locate(self, raw: str) -> Place:
        """Where a path of the model leads. Raises BadRequest, also for the daemon's own folders."""
        return await self.blocking(locate, self.path, raw, self.own)


@dataclass(slots=True)
class ToolUse:
    """One tool call."""

    id: str
    name: str
    input: dict[str, Any]
    turn: Turn
    context: ToolContext


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """What a tool call gives. `content` is for the model, `metadata` (JSON) for clients. `stop`
    ends the turn, after a denied permission or a dismissed question: the model must not try
    again."""

    content: str
    is_error: bool = False
    metadata: str = ""
    stop: bool = False
    data: str = ""
    mime_type: str = ""


class Tool(Protocol):
    name: str
    description: str
    parameters: dict[str, Any]  # a JSON schema of an object
    read_only: bool  # it changes nothing: calls of one answer may run at the same time

    async def run(self, call: ToolUse) -> ToolOutcome:
        """Raises BadRequest or another CrushliteError whose message the model reads."""
        ...


def view_lines(window: int) -> int:
    """How many lines of a file `view` shows by itself to a model with a context window of so many
    tokens (0: unknown): they should take a small part of it."""
    return VIEW_LINES if window <= 0 else min(max(window // 100, 100), VIEW_LINES)


def spec_of(tool: Tool) -> ToolSpec:
    return ToolSpec(tool.name, tool.description, tool.parameters)


def failure(text: str) -> ToolOutcome:
    """The outcome of a call that failed; the model reads the text. That it is an error is not part
    of the text: clients show it beside it, and history.py tells the model."""
    return ToolOutcome(text, is_error=True)


def missing(place: Place, root: Path) -> BadRequest:
    """The error for a path that does not exist, with similar ones of the workspace. Blocks."""
    found = similar_paths(root, place.path, place.closed) if place.inside else []
    meant = f": did you mean {' or '.join(found)}?" if found else ". Use glob or ls to find it"
    return BadRequest(f"{place.shown} does not exist{meant}")


async def image_refusal(call: ToolUse, data: bytes) -> str:
    """Why the model cannot look at an image of a known type; empty if it can, and then it counts
    for what its run has looked at."""
    context = call.context
    if not context.images:
        return "this model takes no images: ask the user about it"
    if len(data) > IMAGE_BYTES:
        return f"it has over {IMAGE_BYTES} bytes"
    problem = await context.blocking(image_problem, data)
    if problem:
        return problem
    run, shown = context.images_of.get(call.turn.session_id, ("", 0))
    shown = len(data) + (shown if run == call.turn.run_id else 0)
    if shown > IMAGES_BYTES:
        return f"this run has looked at {IMAGES_BYTES} bytes of images"
    context.images_of[call.turn.session_id] = call.turn.run_id, shown
    return ""


def denied(reason: str = "", metadata: Mapping[str, Any] | None = None) -> ToolOutcome:
    """The outcome of a call that the user did not permit: it ends the turn."""
    text = f"User denied permission: {reason}" if reason else "User denied permission"
    shown = json.dumps(dict(metadata)) if metadata else ""
    return ToolOutcome(text, is_error=True, metadata=shown, stop=True)
