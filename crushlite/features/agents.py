"""Agents of other makers that can answer in a session."""

from __future__ import annotations

from ..records import dataclass


@dataclass(slots=True)
class OfferedAgent:
    """One that can be chosen by its name; `command` is what is started then."""

    name: str
    command: str


@dataclass(slots=True)
class SessionAgent:
    """Who answers in a session: a name, `acp:COMMAND ARGS`, or empty for the workspace's agent."""

    agent: str = ""
