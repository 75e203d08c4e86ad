"""The knobs of a daemon, in seconds unless said otherwise: constructor arguments, flags and
`CRUSHLITE_*` variables all end up here. Tests shorten them; nothing in the package has a time
limit that is not a knob or a named constant.
"""

from __future__ import annotations

from dataclasses import field

from .claims import Graces
from .records import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    graces: Graces = field(default_factory=Graces)  # create, detach, idle
    cancel_grace: float = 5.0  # how long a cancelled agent may take before it is abandoned
    drain: float = 10.0  # how long a teardown may take before what is left is abandoned
    keepalive: float = 15.0  # comments on streams that asked to resume
    coalesce: float = 0.033  # at most one event per growing message in this time
    # Requests are denied after this time without an interactive client; None: never.
    unattended: float | None = 60.0
    yolo: bool = False  # every workspace starts with permissions skipped
    allow_config_commands: bool = False  # whether $(command) in a configuration file is run
    user_files: str = ""  # where the machine's and the user's files are, instead of their places
    agent: str = ""  # the name of the agent that is served, for clients; empty for one without
    data_dir: str = ""  # one database for all workspaces instead of one in each
