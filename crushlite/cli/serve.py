"""`crushlite serve`: run the daemon in the foreground."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import shlex
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from ..claims import Graces
from ..clock import SystemClock
from ..itself import PACKAGE, pasted_command
from ..settings import Settings
from ..version import __version__
from . import daemon_log
from .helptext import DefaultsFormatter, seconds
from .text import discard_stdout

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..daemon import Daemon


log = logging.getLogger(__name__)

PR_SET_DUMPABLE = 4  # of prctl(2)
LAST_SECONDS = 0.5  # for threads that agents have started to end

EXAMPLES = """\
  crushlite serve --agent offline --web    # without a model, with the console
  crushlite serve --agent mymodule:agent   # a function of mymodule.py here
  crushlite serve --host unix:///tmp/crushlite.sock --host tcp://127.0.0.1:4177
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "serve",
        help="run the daemon in the foreground",
        description="Run the daemon. Every option has a variable, CRUSHLITE_ and its name in "
        "capitals, for example CRUSHLITE_IDLE_TIMEOUT.",
        epilog=f"examples:\n{EXAMPLES.rstrip()}",
        formatter_class=DefaultsFormatter,
    )
    _add_places(parser.add_argument)
    _add_switches(parser.add_argument)
    _add_times(parser.add_argument)
    parser.set_defaults(run=run)


def _add_places(add: Callable[..., Any]) -> None:
    # No default here for options that may be repeated: argparse would add to it.
    add(
        "--host",
        action="append",
        metavar="URL",
        help="unix:///path or tcp://127.0.0.1:PORT; may be repeated (none: our unix socket)",
    )
    add(
        "--web",
        action="store_true",
        help="also listen on loopback, and print what opens the web console",
    )
    add(
        "--auth",
        type=_one_of("token", "none"),
        metavar="{token,none}",
        default=_variable("auth", "token"),
        help="what a TCP client must show",
    )
    add(
        "--allow-host",
        action="append",
        metavar="NAME:PORT",
        help="another Host header to accept on TCP; may be repeated",
    )
    add(
        "--agent",
        metavar="A",
        default=_variable("agent", "auto"),
        help="auto, coder, offline, acp:'COMMAND ARGS', or module:attr",
    )
    add(
        "--data-dir",
        metavar="D",
        default=_variable("data_dir", ""),
        help="one database for all workspaces instead of .crushlite in each",
    )


def _add_switches(add: Callable[..., Any]) -> None:
    add(
        "--yolo",
        nargs="?",
        metavar="BOOL",
        type=_flag,
        const=True,
        default=_variable("yolo", "false"),
        help="never ask for permissions",
    )
    add(
        "--allow-config-commands",
        nargs="?",
        metavar="BOOL",
        type=_flag,
        const=True,
        default=_variable("allow_config_commands", "false"),
        help="run $(command) in the machine's own configuration files",
    )
    for name, values, default, text in (
        ("log-level", daemon_log.LEVELS, "info", "how much to log, to standard error"),
        ("log-format", daemon_log.FORMATS, "text", "for people, or for programs"),
    ):
        add(
            f"--{name}",
            type=_one_of(*values),
            metavar=name.rpartition("-")[2].upper(),
            default=_variable(name, default),
            help=f"{text}: {', '.join(values)}",
        )


def _add_times(add: Callable[..., Any]) -> None:
    for name, default, text in (
        ("create-grace", "30", "seconds a client has to open its stream after create"),
        ("detach-grace", "10", "seconds a client may be away before its claim is dropped"),
        ("cancel-grace", "5", "seconds a cancelled agent may take before it is abandoned"),
        ("drain", "10", "seconds a teardown may take"),
        ("keepalive", "15", "seconds between comments on resumable streams"),
        ("coalesce", "0.033", "seconds within which a growing message is published once"),
    ):
        add(f"--{name}", metavar="S", type=seconds, default=_variable(name, default), help=text)
    add(
        "--idle-timeout",
        metavar="S|never",
        type=_seconds_or_never,
        default=_variable("idle_timeout", "never"),
        help="seconds without any workspace after which the daemon leaves",
    )
    add(
        "--unattended",
        metavar="wait|deny|S",
        type=_unattended,
        default=_variable("unattended", "60"),
        help="what happens to a permission request that no client can answer",
    )


def run(options: argparse.Namespace) -> int:
    _hide_memory()
    daemon_log.configure(options.log_level, options.log_format)
    settings = Settings(
        graces=Graces(options.create_grace, options.detach_grace, options.idle_timeout),
        cancel_grace=options.cancel_grace,
        drain=options.drain,
        keepalive=options.keepalive,
        coalesce=options.coalesce,
        unattended=options.unattended,
        yolo=options.yolo,
        allow_config_commands=options.allow_config_commands,
        agent=options.agent,
        data_dir=os.path.abspath(options.data_dir) if options.data_dir else "",
    )
    if settings.data_dir:
        from pathlib import Path

        from ..store.directory import in_use
        from .owners import is_owned

        with contextlib.suppress(OSError):  # only the opening decides, and says what else is wrong
            if is_owned(Path(settings.data_dir)):
                raise in_use(Path(settings.data_dir))
    # Imported only now: if the data directory is in use, this is reported without loading all this.
    from ..daemon import Daemon
    from ..wings import standard_wings
    from .agent_names import find_agent

    clock, wings = SystemClock(), standard_wings()
    if options.web and not any(url.startswith("tcp:") for url in _hosts(options)):
        from ..console.wing import ConsoleWing

        wings = [ConsoleWing(listens=True) if isinstance(w, ConsoleWing) else w for w in wings]
    daemon = Daemon(
        agents=find_agent(options.agent, clock, wings),
        wings=wings,
        clock=clock,
        hosts=_hosts(options),
        auth=options.auth,
        allow_hosts=options.allow_host or _variable("allow_host", "").split(),
        settings=settings,
    )
    daemon.run(_greet_browser if options.web else _greet)
    _leave_threads()
    return 0


def _hide_memory() -> None:
    """Keep other processes of this user, commands among them, from reading the memory of this one
    and its environment, which holds keys; nor does it leave a core dump. On Linux only. A program
    that this process starts can be read again: exec undoes it."""
    if sys.platform == "linux":
        import ctypes  # 5 ms that other systems need not wait for

        if ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0):
            log.warning("commands of yours can read the environment of this process")


def _leave_threads() -> None:
    """End the process if an agent has left a thread that hangs: the interpreter would wait for it
    for ever."""
    deadline = time.monotonic() + LAST_SECONDS
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                log.warning("left behind: %r", thread)
                logging.shutdown()
                os._exit(0)


def _hosts(options: argparse.Namespace) -> list[str]:
    """What was asked for; if nothing, the daemon takes its default socket."""
    return options.host or _variable("host", "").split()


def _greet(daemon: Daemon) -> None:
    steps = ["Try it in another shell, in the directory of a project:", *_first_steps(daemon)]
    # For people: the log of a daemon that a command has started is no place to learn.
    _print([*_places(daemon), *(steps if sys.stdout.isatty() else [])])


def _greet_browser(daemon: Daemon) -> None:
    """Print what to open in a browser, and what to type in a terminal instead. The code is not
    printed: standard output may be a log that others read."""
    from pathlib import Path

    from ..console.wing import ConsoleWing

    address = next(address for address in daemon.addresses if address.port)
    console = next(wing for wing in daemon.wings if isinstance(wing, ConsoleWing))
    invitation = console.address(address.http_url, address.port, os.getcwd())
    us = _called_as()
    _print(
        [
            *_places(daemon),
            f"Open this in a browser, within ten minutes (later: {us} web):",
            f"  {Path(invitation.page).as_uri()}",
            "Or in another terminal:",
            f"  {us} run hello",
            f"  {us} chat",
        ]
    )


def _called_as() -> str:
    """How this command was started, to be typed again in any directory."""
    if script := os.environ.get("CRUSHLITE_CALLED_AS"):  # set by a script around this command
        return shlex.quote(script)
    import shutil  # only for people: a daemon that a command starts says nothing of this

    if shutil.which("crushlite"):
        return "crushlite"
    if os.path.basename(sys.argv[0]) == "__main__.py":
        return pasted_command(PACKAGE)
    return shlex.quote(os.path.abspath(sys.argv[0]))


def _places(daemon: Daemon) -> list[str]:
    lines = [f"crushlite {__version__} is serving"]
    for address in daemon.addresses:
        token = daemon.tokens.get(address.port)
        lines.append(f"  {address.url}" + (f"  token in {token.path}" if token is not None else ""))
    return lines


def _print(lines: list[str]) -> None:
    try:
        print("\n".join(lines), flush=True)
    except OSError as error:
        log.warning("nobody reads what we say: %s", error)
        discard_stdout()


def _first_steps(daemon: Daemon) -> list[str]:
    """Lines to type first, for bash with curl and python3, on the first address. -I: they are typed
    in a project, which may have a json.py of its own. `here` writes its path as JSON: the name of a
    folder may hold quotes, and whatever else a request could say."""
    address = daemon.addresses[0]
    token = daemon.tokens.get(address.port)
    options, base = "", "http://localhost"
    if address.path:
        options = f"--unix-socket {shlex.quote(address.path)} "
    else:
        base = address.http_url
    if token is not None:
        options = f'-H "Authorization: Bearer $(cat {shlex.quote(str(token.path))})" '
    return [
        f'  api() {{ curl -sS {options}"{base}/v1/$1" "${{@:2}}"; }}',
        """  getid() { python3 -I -c 'import json, sys; print(json.load(sys.stdin)["id"])'; }""",
        """  here() { python3 -I -c 'import json, os; print(json.dumps(os.getcwd()))'; }""",
        "  C=$(python3 -I -c 'import uuid; print(uuid.uuid4())')",
        """  W=workspaces/$(api workspaces -d '{"path":'"$(here)"',"client_id":"'$C'"}' | getid)""",
        '  api "$W/events?client_id=$C" -N &',
        """  S=$(api $W/sessions -d '{"title":"First"}' | getid)""",
        """  api $W/agent -d '{"session_id":"'$S'","prompt":"Hello"}'""",
        "  api $W/agent/sessions/$S/cancel -X POST",
    ]


def _variable(name: str, default: str) -> str:
    """The value of the variable of an option; `default` if it is not set, or empty."""
    return os.environ.get(f"CRUSHLITE_{name.upper().replace('-', '_')}") or default


def _one_of(*values: str) -> Callable[[str], str]:
    """For `type=` of an option. Unlike `choices` of argparse, this also checks a value that comes
    from a variable."""

    def check(text: str) -> str:
        if text not in values:
            raise argparse.ArgumentTypeError(f"{text!r}: use one of {', '.join(values)}")
        return text

    return check


def _flag(text: str) -> bool:
    if text.lower() not in ("1", "true", "yes", "0", "false", "no"):
        raise argparse.ArgumentTypeError(f"{text!r}: use true or false")
    return text.lower() in ("1", "true", "yes")


def _seconds_or_never(text: str) -> float | None:
    return None if text == "never" else seconds(text)


def _unattended(text: str) -> float | None:
    return None if text == "wait" else 0.0 if text == "deny" else seconds(text)
