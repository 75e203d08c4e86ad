"""What a benchmark asks of the machine, and what it says about it with its figures."""

import datetime
import os
import platform
import resource
import sys
from typing import Any

from servers import say


def allow_many_files() -> None:
    """Let this process and its servers open as many files as the system allows: hundreds of
    streams."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def circumstances(command: str) -> dict[str, Any]:
    """When, where and how the figures were measured. Say so if other programs ran as well."""
    load = os.getloadavg()[1]  # of the last five minutes
    if load > 2:  # the benchmark alone keeps one or two processes busy
        say(f"other programs ran too (load average {load:.1f}): the figures are partly theirs")
    return {
        "command": " ".join([command, *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.platform()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "load": load,
    }
