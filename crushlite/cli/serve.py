"""`crushlite serve`: run the daemon in the foreground."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import os
import shlex
import sys
from typing import TYPE_CHECKING, Any

from crushlite import logs
from crushlite.agent.base import agent_factory
from crushlite.claims import Graces
from crushlite.daemon import Daemon
from crushlite.errors import UsageError
from crushlite.settings import Settings
from crushlite.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable

    from crushlite.agent.base import AgentFactory

__all__ = ["add_parser", "find_agent", "serve"]


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "serve",
        help="run the daemon in the foreground",
        description="Run the daemon. Every option has a variable, CRUSHLITE_ and its name in "
        "capitals, for example CRUSHLITE_IDLE_TIMEOUT.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    _add_places(parser.add_argument)
    _add_times(parser.add_argument)
    parser.set_defaults(run=serve)


def _add_places(add: Callable[..., Any]) -> None:
    add(
        "--host",
        action="append",
        metavar="URL",
        default=_variable("host", "").split() or None,
        help="unix:///path or tcp://127.0.0.1:PORT; may be repeated (none: our unix socket)",
    )
    add(
        "--auth",
        choices=("token", "none"),
        default=_variable("auth", "token"),
        help="what a TCP client must show",
    )
    add(
        "--allow-host",
        action="append",
        metavar="NAME:PORT",
        default=[],
        help="another Host header to accept on TCP; may be repeated",
    )
    add(
        "--agent",
        metavar="A",
        default=_variable("agent", "auto"),
        help="auto, coder, offline, or module:attr",
    )
    add(
        "--data-dir",
        metavar="D",
        default=_variable("data_dir", ""),
        help="one database for all workspaces instead of .crushlite in each",
    )
    add("--yolo", action="store_true", help="never ask for permissions")
    add("--log-level", choices=logs.LEVELS, default=_variable("log_level", "info"), help="detail")
    add("--log-format", choices=logs.FORMATS, default=_variable("log_format", "text"), help="form")


def _add_times(add: Callable[..., Any]) -> None:
    for name, default, text in (
        ("create-grace", "30", "seconds a client has to open its stream after create"),
        ("detach-grace", "10", "seconds a client may be away before its claim is dropped"),
        ("cancel-grace", "5", "seconds a cancelled agent may take before it is abandoned"),
        ("drain", "10", "seconds a teardown may take"),
        ("keepalive", "15", "seconds between comments on resumable streams"),
        ("coalesce", "0.033", "seconds within which a growing message is published once"),
    ):
        variable = _variable(name.replace("-", "_"), default)
        add(f"--{name}", metavar="S", type=_seconds, default=variable, help=text)
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
        help="what happens to a permission request that nobody can answer",
    )


def serve(options: argparse.Namespace) -> int:
    logs.configure(options.log_level, options.log_format)
    settings = Settings(
        graces=Graces(options.create_grace, options.detach_grace, options.idle_timeout),
        cancel_grace=options.cancel_grace,
        drain=options.drain,
        keepalive=options.keepalive,
        coalesce=options.coalesce,
        unattended=options.unattended,
        yolo=options.yolo,
        data_dir=os.path.abspath(options.data_dir) if options.data_dir else "",
    )
    daemon = Daemon(
        agents=find_agent(options.agent),
        hosts=options.host or (),
        auth=options.auth,
        allow_hosts=options.allow_host,
        settings=settings,
    )
    asyncio.run(daemon.serve(_greet))
    return 0


def find_agent(name: str) -> AgentFactory:
    """The agent behind `--agent`."""
    if name in ("auto", "offline"):
        from crushlite.agent.offline import OfflineAgent

        return agent_factory(OfflineAgent())
    if name == "coder":
        # Nothing usable is configured: workspaces open, prompts are refused with the reason.
        return lambda path, env, config: None
    module, found, attribute = name.partition(":")
    if not found:
        raise UsageError(f"agent {name!r}: use auto, coder, offline, or module:attr")
    sys.path.insert(0, os.getcwd())
    try:
        target = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"agent {name!r}: {error}") from None
    return agent_factory(target)


def _greet(daemon: Daemon) -> None:
    print(f"crushlite {__version__} is serving")
    for address in daemon.addresses:
        token = daemon.tokens.get(address.port)
        print(f"  {address.url}" + (f"  token in {token.path}" if token is not None else ""))
    address = daemon.addresses[0]
    if address.path:
        curl = f"curl -s --unix-socket {shlex.quote(address.path)} http://localhost"
    else:
        curl = f"curl -s http://{address.url.removeprefix('tcp://')}"
        if (file := daemon.tokens.get(address.port)) is not None:
            header = f'"Authorization: Bearer $(cat {shlex.quote(str(file.path))})"'
            curl = curl.replace("curl -s", f"curl -s -H {header}")
    print(f"Try:  {curl}/v1/version")
    sys.stdout.flush()


def _variable(name: str, default: str) -> str:
    return os.environ.get(f"CRUSHLITE_{name.upper()}", default)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return value


def _seconds_or_never(text: str) -> float | None:
    return None if text == "never" else _seconds(text)


def _unattended(text: str) -> float | None:
    return None if text == "wait" else 0.0 if text == "deny" else _seconds(text)
