"""All tools of the coder agent, by one call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crushlite.agent.tools.files import Edit, MultiEdit, View, Write
from crushlite.agent.tools.search import Glob, Grep, Ls
from crushlite.agent.tools.shell import Bash, JobKill, JobOutput
from crushlite.agent.tools.talk import Question, Todos
from crushlite.agent.tools.web import Fetch
from crushlite.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Collection

    from crushlite.agent.tools.base import Tool
    from crushlite.clock import Clock

__all__ = ["all_tools"]


def all_tools(disabled: Collection[str] = (), *, clock: Clock | None = None) -> list[Tool]:
    """The tools, in the order in which the model reads about them, without the disabled ones."""
    clock = clock if clock is not None else SystemClock()
    tools: list[Tool] = [
        Bash(clock),
        JobOutput(),
        JobKill(),
        View(),
        Ls(clock),
        Glob(clock),
        Grep(clock),
        Edit(),
        MultiEdit(),
        Write(),
        Fetch(clock),
        Todos(),
        Question(),
    ]
    return [tool for tool in tools if tool.name not in disabled]
