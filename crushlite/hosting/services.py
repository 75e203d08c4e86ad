"""What the objects of one workspace share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from ..clock import Clock
    from ..commands.background import Background
    from ..events import Hub
    from ..store import ScopedStore
    from ..wing import WorkspacePart
    from .dialogs import Permissions, Questions
    from .files import FileHistory
    from .lifetime import Lifetime
    from .transcript import Transcript


@dataclass(frozen=True, slots=True)
class Services:
    path: Path
    env: Mapping[str, str]
    command_env: Callable[[], Mapping[str, str]]  # what commands see of it, at this moment
    store: ScopedStore
    hub: Hub
    clock: Clock
    transcript: Transcript
    permissions: Permissions
    questions: Questions
    lifetime: Lifetime
    background: Background
    files: FileHistory
    coalesce: float
    parts: Sequence[WorkspacePart]  # of the wings; none is added after the workspace has opened
