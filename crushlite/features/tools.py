"""Tools that wings offer to agents.

A part of a workspace returns its tools from `OfferingPart.tools` (offers.py); an agent gets those
of all parts from `offered_tools`, at each step. It shows the model name, description and
parameters. To run a call it asks what `question` says, through `Turn.permission`, and only if that
is granted, or if there is no question, awaits `call`. How much of an answer the model gets is up to
the agent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..records import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ..agent.base import Scope, Turn


@dataclass(frozen=True, slots=True)
class ToolQuestion:
    """The permission that a call needs: the arguments of `Turn.permission`. `path` is the
    workspace's directory if empty."""

    tool_name: str
    action: str
    description: str = ""
    params: Mapping[str, Any] | None = None
    path: str = ""
    scope: Scope | None = None


@dataclass(frozen=True, slots=True)
class ToolMedia:
    """An image or another file in an answer. `data` is base64, as it came: an agent checks it."""

    mime_type: str
    data: str


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """What a call gives: `text` of any length for the model, `metadata` for clients (a JSON object,
    or its text). `stop` ends the turn: the model must not go on."""

    text: str
    is_error: bool = False
    media: tuple[ToolMedia, ...] = ()
    metadata: Mapping[str, Any] | str = ""
    stop: bool = False


class OfferedTool:
    """One tool. Its name has at most 64 of the characters a-z, A-Z, 0-9, _ and -; two parts that
    offer the same name: the first one counts."""

    name: str
    description: str
    parameters: Mapping[str, Any]  # a JSON schema of an object
    read_only = False  # it changes nothing: calls of one answer may run at the same time
    # One of many: if such tools would take too much of a model's context window, they are offered
    # through one tool that finds them.
    searchable = False

    def question(self, arguments: Mapping[str, Any]) -> ToolQuestion | None:
        """What must be permitted before this call; None if nothing. May raise CrushliteError, whose
        message the model reads."""
        return ToolQuestion(self.name, "execute", f"Run {self.name}", arguments)

    async def call(self, turn: Turn, arguments: dict[str, Any], call_id: str) -> ToolAnswer:
        """Run the call `call_id` of the turn, whose permission was granted. Raises CrushliteError,
        whose message the model reads. Cancelled with the turn; must end in a bounded time."""
        raise NotImplementedError
