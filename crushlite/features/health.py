"""The detailed answer to `GET /v1/health?verbose=1`."""

from __future__ import annotations

from dataclasses import field

from ..protocol.codec import omitted
from ..records import dataclass


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
