"""What the daemon says of its own health when it is asked for more than a status."""

from __future__ import annotations

from dataclasses import dataclass, field

from .codec import omitted


@dataclass(slots=True)
class Check:
    """One thing that was looked at; `detail` says what is wrong with it."""

    name: str
    ok: bool
    detail: str = omitted()


@dataclass(slots=True)
class Health:
    """`status` is ok, or degraded if some check is not: the daemon serves all the same. `store`
    says of every data directory in use whether it can be written: ok, or why not."""

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
