"""What files say without the effect that their author may expect, as objects: programs look at the
reason, people read the text."""

from __future__ import annotations

import enum
from collections.abc import Callable
from pathlib import Path

from ..records import dataclass


class Reason(enum.Enum):
    FILE_SKIPPED = enum.auto()  # a whole file is not read
    CALL_IGNORED = enum.auto()  # a call in a crushrc is not understood
    UNTRUSTED = enum.auto()  # keys are ignored until the user trusts the project's file
    NOT_FOR_PROJECTS = enum.auto()  # a key is ignored, because a project's file holds it
    TOOLS_NOT_ADDED = enum.auto()  # a project's file only removes allowed tools
    VARIABLE_WITHHELD = enum.auto()  # a project's file gets no secrets
    PROVIDER_MOVED = enum.auto()  # a project's file gives a provider another address
    PROVIDER_LEFT_OUT = enum.auto()  # a provider cannot be used
    AGENT_LEFT_OUT = enum.auto()  # an entry of `agents` cannot be used
    HEADER_LEFT_OUT = enum.auto()  # a header cannot be set
    SERVER_LEFT_OUT = enum.auto()  # a tool server cannot be started
    NO_EFFECT = enum.auto()  # a key of a feature that does not exist yet
    TOOLS_REFUSED = enum.auto()  # a hook that must be asked before tools cannot be run
    KEY_UNKNOWN = enum.auto()  # a key that nobody knows
    MODEL_UNKNOWN = enum.auto()  # a model was chosen whose provider cannot be used
    MODEL_UNLISTED = enum.auto()  # a chosen model is used, but its window and price are unknown
    RULE_INCOMPLETE = enum.auto()  # an entry of permissions.rules allows nothing


@dataclass(frozen=True, slots=True)
class ConfigWarning:
    """`text` is a whole sentence about `key` in `file`. It repeats no value: values may be keys."""

    reason: Reason
    file: Path
    key: str  # dotted, as merge.spell writes it; the words of a call; empty for a whole file
    text: str

    def __str__(self) -> str:
        return f"{self.file}: {self.text}"


# What the parts of loading call with the fields of a warning.
Warn = Callable[[Reason, Path, str, str], None]
