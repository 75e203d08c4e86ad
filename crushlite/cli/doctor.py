"""`crushlite doctor`: what works, what does not, and what to do about it.

The checks are functions that return findings. They change nothing, start nothing, and show no
secret.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import shutil
import socket
import stat
import sys
import webbrowser
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ..client import ConnectionFailed
from ..errors import CrushliteError, NotFound
from ..features import requests
from ..http.client import why_unreachable
from ..listen import default_socket, parse_address
from ..protocol.codec import omitted
from ..records import dataclass
from ..version import WIRE_VERSION, __version__
from ..wings import has_wing
from .common import add_connection, add_json, address_of, command, reached, show, show_json
from .databases import inspected_copy
from .locations import DATABASE, config_files, data_directory
from .text import Style, clean, count, shows_unicode

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from ..config.providers import Provider
    from ..config.view import Config
    from ..features.wire import Health

OLDEST = (3, 11)
CONNECT_SECONDS = 3.0
LITTLE_SPACE = 200 * 2**20  # bytes free, below which a busy session may fill the disk
NO_MODEL = (
    "start Ollama, LM Studio or llama.cpp on this machine: on Linux they are found by themselves, "
    "if they run as you or as root; or set "
    "OPENAI_API_KEY, ANTHROPIC_API_KEY or OPENROUTER_API_KEY; or add a provider to crush.json"
)

DESCRIPTION = """\
Look at everything crushlite needs, and say what works, what does not, and what to do: Python, the
directory of the socket, the daemon, token files, data directory and database, configuration,
model, browser, terminal. Nothing is changed or started, and no secret is shown. Exit code 1 if
something is broken.
"""
EXAMPLES = """\
  crushlite doctor
  crushlite doctor --json | jq '.[] | select(.state == "broken")'
"""


@dataclass(slots=True)
class Finding:
    """The result of a check. `state` is ok, note (it works, but see the advice) or broken."""

    name: str
    state: str
    detail: str
    advice: str = omitted()


def add_parser(commands: Any) -> None:
    parser = command(commands, "doctor", DESCRIPTION, run, EXAMPLES)
    add_json(parser, "the findings")
    add_connection(parser, start=False)


async def run(options: argparse.Namespace) -> int:
    findings = [finding async for finding in _examine(options)]
    broken = sum(finding.state == "broken" for finding in findings)
    if options.json:
        show_json(findings)
    else:
        _show(findings, broken, Style(sys.stdout))
    return 1 if broken else 0


def _show(findings: list[Finding], broken: int, style: Style) -> None:
    """Print all findings. Lines are not cut: what to do may be a command to paste."""
    paint = {"ok": style.green, "note": style.yellow, "broken": style.red}
    room = max(len(finding.name) for finding in findings)
    for each in findings:
        state = paint[each.state](each.state) + " " * (8 - len(each.state))
        show(f"{state}{each.name:<{room}}  {clean(each.detail)}")
        if each.advice:
            show(f"{' ' * 8}-> {clean(each.advice)}")
    show(f"\n{count(broken, 'thing')} broken" if broken else "\nnothing is broken")


async def _examine(options: argparse.Namespace) -> AsyncIterator[Finding]:
    """Make all checks."""
    yield _python()
    yield _socket_directory(default_socket().parent)
    health, finding = await _daemon(options)
    yield finding
    if health is not None:
        for each in _complaints(health):
            yield each
    for each in _tokens(default_socket().parent):
        yield each
    try:
        for each in _data(data_directory(options), health):
            yield each
        if has_wing("config"):
            found = config_files(options).load()
            for each in _configuration(found):
                yield each
            async for each in _models(found):
                yield each
    except CrushliteError as error:
        yield Finding("configuration", "broken", error.message, "correct that file")
    yield _browser()
    yield _terminal()


# Around the daemon ------------------------------------------------------------------------------


def _python() -> Finding:
    found = f"{platform.python_version()} at {sys.executable}, crushlite {__version__}"
    if sys.version_info < OLDEST:
        return Finding("python", "broken", found, "use Python 3.11 or newer")
    return Finding("python", "ok", found)


def _socket_directory(path: Path) -> Finding:
    try:
        info = os.lstat(path)
    except FileNotFoundError:
        return Finding("socket directory", "ok", f"{path} will be made when it is needed")
    except OSError as error:
        return Finding("socket directory", "broken", f"{path}: {error.strerror}")
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid():
        advice = "remove it, or set XDG_RUNTIME_DIR to a directory of yours"
        return Finding("socket directory", "broken", f"{path} is no directory of yours", advice)
    if stat.S_IMODE(info.st_mode) & 0o077:
        advice = f"chmod 700 {path}"
        return Finding("socket directory", "broken", f"{path} is open to others", advice)
    return Finding("socket directory", "ok", str(path))


async def _daemon(options: argparse.Namespace) -> tuple[Health | None, Finding]:
    address = address_of(options)
    try:
        async with reached(options) as client:
            try:
                health = await requests.vitals(client)
            except NotFound as error:  # it runs without the wing of reports
                return None, Finding("daemon", "note", error.message)
    except ConnectionFailed as error:
        if error.reached:
            return None, Finding("daemon", "broken", error.message, "see crushlite logs")
        detail = f"none at {address}: run and chat start one when they need it"
        return None, Finding("daemon", "ok", detail)
    except CrushliteError as error:
        return None, Finding("daemon", "broken", f"{address}: {error.message}")
    detail = f"{health.version} at {address}, process {health.pid}"
    if health.version != WIRE_VERSION:
        advice = "crushlite stop; the next command starts a new one"
        return health, Finding("daemon", "note", f"{detail}: not this version", advice)
    return health, Finding("daemon", "ok", detail)


def _complaints(health: Health) -> Iterator[Finding]:
    """The checks of the daemon itself that fail."""
    for check in health.checks:
        if not check.ok:
            yield Finding(f"daemon: {check.name}", "broken", check.detail, "see crushlite logs")


def _tokens(directory: Path) -> Iterator[Finding]:
    """Token files: one that other users can read is broken, one without a daemon a note."""
    for path in sorted(directory.glob("tcp-*.token")):
        port = path.stem.removeprefix("tcp-")
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
        except OSError:
            continue  # its daemon has just left
        if mode & 0o077:
            yield Finding("token", "broken", f"{path} is open to others", f"chmod 600 {path}")
        elif not _listens(port):
            yield Finding("token", "note", f"{path} is of a daemon that is gone", f"rm {path}")
        else:
            yield Finding("token", "ok", f"{path}, for tcp://127.0.0.1:{port}")


def _listens(port: str) -> bool:
    with contextlib.suppress(CrushliteError, OSError):
        address = parse_address(f"tcp://127.0.0.1:{port}")
        with socket.create_connection((address.host, address.port), timeout=CONNECT_SECONDS):
            return True
    return False


# Data -------------------------------------------------------------------------------------------


def _data(path: Path, health: Health | None) -> Iterator[Finding]:
    name = "data directory"
    if not path.exists():
        above = next(parent for parent in path.parents if parent.exists())
        if os.access(above, os.W_OK | os.X_OK):
            yield Finding(name, "ok", f"{path} will be made when it is needed")
        else:
            advice = "set options.data_directory to a place you can write to"
            yield Finding(name, "broken", f"{path} cannot be made: {above} is read-only", advice)
        return
    if not os.access(path, os.W_OK | os.X_OK):
        yield Finding(name, "broken", f"{path} cannot be written to", f"chmod u+rwx {path}")
        return
    free = shutil.disk_usage(path).free
    if free < LITTLE_SPACE:
        detail = f"{path}: only {free // 2**20} MiB are free"
        yield Finding(name, "note", detail, "make room: a full disk stops prompts")
    else:
        yield Finding(name, "ok", f"{path}, {free // 2**30} GiB free")
    yield _database(path, health)


def _database(directory: Path, health: Health | None) -> Finding:
    """Of a database that the daemon uses, what the daemon says about it; any other one is read."""
    database = directory / DATABASE
    state = health.store.get(str(directory)) if health is not None else None
    if health is not None and state is not None:
        detail = f"{database} is in use by the daemon, process {health.pid}: {state}"
        return Finding("database", "ok" if state == "ok" else "broken", detail)
    owner = _owner(directory / "crushlite.lock")
    if owner:
        detail = f"{database} is in use by process {owner}"
        advice = "end it, if it is not the daemon you want to use"
        return Finding("database", "note", detail, advice)
    if not database.exists():
        return Finding("database", "ok", "none yet")
    try:
        with inspected_copy(database):
            pass
    except CrushliteError as error:
        return Finding("database", "broken", error.message)
    except OSError as error:
        return Finding("database", "broken", f"{database}: {error.strerror}")
    return Finding("database", "ok", f"{database}, {database.stat().st_size // 1024} KiB, sound")


def _owner(lock: Path) -> str:
    """The process that holds the lock; empty if none does. Read from /proc/locks, not found out by
    trying to take the lock: a daemon that starts at that moment would find it taken."""
    with contextlib.suppress(OSError):
        inode = lock.stat().st_ino
        with open("/proc/locks", encoding="ascii") as held:
            for line in held:
                fields = line.split()
                if "FLOCK" in fields and fields[-3].rpartition(":")[2] == str(inode):
                    return fields[-4]
    return ""


# Configuration and model ------------------------------------------------------------------------


def _configuration(found: Config) -> Iterator[Finding]:
    read = ", ".join(str(path) for path in found.files) or "no file: defaults and environment"
    yield Finding("configuration", "ok", read)
    for warning in found.warnings:
        yield Finding("configuration", "note", str(warning))


async def _models(found: Config) -> AsyncIterator[Finding]:
    from ..config.warnings import Reason  # the caller knows that this wing is there

    choice = str(found.choice())
    # Those whose models are used as soon as they are known.
    asked = {each.id: each for each in found.providers.values() if each.discover}
    if any(warning.reason is Reason.MODEL_UNKNOWN for warning in found.warnings):
        advice = "make its provider usable, or choose another one: crushlite models lists them"
        yield Finding("model", "note", choice, advice)
    elif found.large is None:
        yield Finding("model", "note", choice, "" if asked else NO_MODEL)
    else:
        yield Finding("model", "ok", choice)
    used = {each.provider.id: each.provider for each in (found.large, found.small) if each}
    for provider in (used or asked).values():
        yield await _provider(provider)


async def _provider(provider: Provider) -> Finding:
    """Whether a connection can be opened. Nothing is sent: a request would show the key, and may
    cost money."""
    name, url = f"provider {provider.id}", urlsplit(provider.base_url)
    host, port = url.hostname or "", url.port or (443 if url.scheme == "https" else 80)
    key = "with a key" if provider.api_key else "without a key"
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(host, port)
        writer.close()
    except (OSError, TimeoutError) as error:
        reason = why_unreachable(error) or "no answer"
        advice = "start it, or check base_url and the network"
        if os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy"):
            return Finding(name, "note", f"{host}:{port}: {reason}; a proxy may reach it")
        return Finding(name, "broken", f"{host}:{port} cannot be reached: {reason}", advice)
    return Finding(name, "ok", f"{host}:{port} can be reached, {key}")


# Browser and terminal ---------------------------------------------------------------------------


def _browser() -> Finding:
    try:
        return Finding("browser", "ok", getattr(webbrowser.get(), "name", "found"))
    except webbrowser.Error:
        detail = "none found: `crushlite web` prints what to open"
        return Finding("browser", "note", detail)


def _terminal() -> Finding:
    style = Style(sys.stdout)
    if not style.terminal:
        return Finding("terminal", "ok", "output goes to a file or a pipe: no colours")
    encoding = (sys.stdout.encoding or "").lower()
    size = shutil.get_terminal_size()
    detail = f"{os.environ.get('TERM', '')}, {size.columns}x{size.lines}, {encoding}"
    if not shows_unicode(sys.stdout):
        return Finding("terminal", "note", detail, "set LANG to a UTF-8 locale, as in C.UTF-8")
    if not style.moves:
        advice = "set TERM: nothing can be drawn twice on this one"
        return Finding("terminal", "note", detail, advice)
    return Finding("terminal", "ok", detail)
