"""The list of all tools of the coder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...clock import SystemClock
from .download import Download
from .files import Edit, MultiEdit, Write
from .search import Glob, Grep, Ls
from .shell import Bash, JobKill, JobOutputTool
from .talk import QuestionTool, Todos
from .view import View
from .web import Fetch

if TYPE_CHECKING:
    from collections.abc import Collection

    from ...clock import Clock
    from .base import Tool


def all_tools(disabled: Collection[str] = (), *, clock: Clock | None = None) -> list[Tool]:
    """All tools without the disabled ones, in the order in which they are described to the
    model."""
    clock = clock if clock is not None else SystemClock()
    tools: list[Tool] = [
        Bash(clock),
        JobOutputTool(),
        JobKill(),
        View(),
        Ls(clock),
        Glob(clock),
        Grep(clock),
        Edit(),
        MultiEdit(),
        Write(),
        Fetch(clock),
        Download(clock),
        Todos(),
        QuestionTool(),
    ]
    return [tool for tool in tools if tool.name not in disabled]
