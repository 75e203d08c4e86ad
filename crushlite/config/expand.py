"""Variables and commands in the values of a configuration.

`$V`, `${V}`, `${V:-default}` and `${V:?message}` as in a shell; unset is empty; `CRUSH_V` goes
before `V`; `\\$` is a dollar sign. `$(command)` is run by `sh -c` if the daemon was told to allow
it: the text of the file is the script, nothing is pasted into it.

In the files of a project
  - no command is ever run: opening a repository must not start its programs;
  - a variable that looks like a secret, by its name or its value, or that the user's own files
    use for a key or a header, counts as unset: the project decides where the value would be sent.
    It does not matter in which field, because a key goes to the project's host as surely as a
    part of its address. The user lifts this for one variable by naming it in
    `permissions.project_variables` of a file of his own. A key or header for a server on this
    machine gets what it asks for: there the value does not leave, unless whoever listens there
    hands it on.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from .secrets import is_secret_name, looks_like_token, looks_secret

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from .files import Source

FLAG = "--allow-config-commands"
COMMAND_SECONDS = 5.0
MAX_OUTPUT = 64 * 1024  # bytes of a command; a key has a hundred
MAX_NESTING = 8  # of defaults in defaults
_GUARDED_FROM = 4  # characters: a shorter value is found in others by chance

_NEXT = re.compile(r"\\\$|\$(?:([A-Za-z_][A-Za-z0-9_]*)|([({]))")
_BRACED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?:(:[-?])(.*))?", re.S)
_VARIABLE = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)")
_CLOSING = {"(": ")", "{": "}"}


class Refused(Exception):
    """A value cannot be used; the message says why. What needs it is left out, the file as a whole
    is not."""


def variables(value: Any) -> set[str]:
    """The names of all variables in the texts of a value."""
    if isinstance(value, str):
        return set(_VARIABLE.findall(value))
    children = value.values() if isinstance(value, dict) else value
    return set().union(*map(variables, children)) if isinstance(value, dict | list) else set()


@dataclass(frozen=True, slots=True)
class SecretGuard:
    """What keeps variables from projects, and what lets them have some."""

    names: frozenset[str] = frozenset()  # used for credentials by the user's own files
    values: frozenset[str] = frozenset()  # credentials that stand in those files
    shared: frozenset[str] = frozenset()  # permissions.project_variables


class Expander:
    """Expands values with one environment. `secrets` collects what it gave out and looks secret."""

    def __init__(
        self,
        env: Mapping[str, str],
        warn: Callable[[str], None],
        *,
        allow_commands: bool = False,
        guard: SecretGuard | None = None,
    ) -> None:
        self.secrets: set[str] = set()
        self._env = env
        self._warn = warn
        self._allow_commands = allow_commands
        guard = guard or SecretGuard()
        self._shared = guard.shared
        self._guarded = {_bare(name) for name in guard.names}
        # By value too: a secret may be there under another name.
        values = {*guard.values, *map(self.variable, self._guarded)}
        self._guarded_values = [value for value in values if len(value) >= _GUARDED_FROM]

    def variable(self, name: str) -> str:
        return self._env.get(f"CRUSH_{name}", self._env.get(name, ""))

    def expand(self, text: str, source: Source, where: str, *, stays: bool = False) -> str:
        """`stays`: the value does not leave this machine. Raise ConfigError if the text is wrong,
        Refused if it is not for this file."""
        return _Expansion(self, source, where, stays).expand(text, MAX_NESTING)

    def looked_up(self, name: str, source: Source, where: str, stays: bool) -> str:
        value = self.variable(name)
        if not value:
            return ""
        asks = not (source.trusted or stays or name in self._shared)
        if asks and self._is_secret(name, value):
            self._warn(
                f"{source.path}: {where}: ${name} counts as unset: it may be a secret, and project "
                "files get none; to allow it, name it in permissions.project_variables of your "
                "own crush.json"
            )
            return ""
        if is_secret_name(name) or looks_like_token(value):
            self.secrets.add(value)
        return value

    def _is_secret(self, name: str, value: str) -> bool:
        return (
            looks_secret(name, value)
            or _bare(name) in self._guarded
            or any(guarded in value for guarded in self._guarded_values)
        )

    def output(self, command: str, source: Source, where: str) -> str:
        if not source.trusted:
            raise Refused(f"{where}: commands of project files are not run")
        if not self._allow_commands:
            raise ConfigError(f"{source.path}: {where}: $(...) is only run with {FLAG}")
        try:
            status, output = _run(command, self._env, source.path.parent)
        except (OSError, ValueError):  # no sh, or an environment that no process can have
            raise ConfigError(f"{source.path}: {where}: the command cannot be started") from None
        if status is None:
            reason = f"did not end in {COMMAND_SECONDS:g} s with at most {MAX_OUTPUT} bytes"
        elif status:
            reason = f"ended with status {status}"
        else:
            value = output.decode("utf-8", "replace").rstrip("\n")
            self.secrets.add(value)
            return value
        # Neither its text nor its output is repeated: both may hold what must not be told.
        raise ConfigError(f"{source.path}: {where}: the command {reason}")


class _Expansion:
    """One value of one file."""

    def __init__(self, expander: Expander, source: Source, where: str, stays: bool) -> None:
        self._expander = expander
        self._source = source
        self._where = where
        self._stays = stays

    def expand(self, text: str, nesting: int) -> str:
        if not nesting:
            raise self._error("${...} is nested too deeply")
        parts: list[str] = []
        at = 0
        while found := _NEXT.search(text, at):
            parts.append(text[at : found.start()])
            at = found.end()
            name, opening = found.groups()
            if opening:
                end = self._end(text, at, opening)
                parts.append(self._group(opening, text[at:end], nesting))
                at = end + 1
            else:
                parts.append(self._lookup(name) if name else "$")
        return "".join([*parts, text[at:]])

    def _group(self, opening: str, body: str, nesting: int) -> str:
        if opening == "(":
            return self._expander.output(body, self._source, self._where)
        found = _BRACED.fullmatch(body)
        if found is None:
            raise self._error("of ${...} only ${V}, ${V:-default} and ${V:?message} are known")
        name, operator, rest = found.groups()
        if value := self._lookup(name):
            return value
        if operator == ":?":
            # The provider goes, not the workspace: a client that comes back after a restart may
            # not have its variables with it.
            said = f": {ascii(rest[:200])[1:-1]}" if rest else ""
            raise Refused(f"{self._where}: {name} is not set{said}")
        return self.expand(rest, nesting - 1) if operator else ""

    def _lookup(self, name: str) -> str:
        return self._expander.looked_up(name, self._source, self._where, self._stays)

    def _end(self, text: str, at: int, opening: str) -> int:
        """Where the group closes. Quotes count in a command only, as they do in a shell."""
        closing, depth, quoted = _CLOSING[opening], 1, ""
        while at < len(text):
            here = text[at]
            if here == "\\":
                at += 1
            elif quoted:
                quoted = "" if here == quoted else quoted
            elif opening == "(" and here in "'\"":
                quoted = here
            elif here in (opening, closing):
                depth += 1 if here == opening else -1
                if not depth:
                    return at
            at += 1
        raise self._error(f"${opening} is not closed")

    def _error(self, reason: str) -> ConfigError:
        return ConfigError(f"{self._source.path}: {self._where}: {reason}")


def _bare(name: str) -> str:
    return name.removeprefix("CRUSH_")


# Commands ---------------------------------------------------------------------------------------


def _run(command: str, env: Mapping[str, str], folder: Path) -> tuple[int | None, bytes]:
    """Exit status and output of a shell command; status None if it took too long or said too
    much. It runs where its file is: in the workspace it could find a project's programs."""
    process = subprocess.Popen(
        ["sh", "-c", command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        env=dict(env),
        start_new_session=True,
    )
    assert process.stdout is not None
    deadline = time.monotonic() + COMMAND_SECONDS
    with process.stdout as pipe:
        output = _output(pipe.fileno(), deadline)
        try:
            if output is not None:
                return process.wait(max(0.0, deadline - time.monotonic())), output
        except subprocess.TimeoutExpired:
            pass  # it closed its output and stayed
    # Before it is reaped, while the number of its group cannot mean another one.
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return None, b""


def _output(descriptor: int, deadline: float) -> bytes | None:
    # Not communicate(): it waits for every process that inherited the pipe, and keeps all output.
    # Not select(): a daemon with many clients has descriptors that are too large for it.
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    output = b""
    while (left := deadline - time.monotonic()) > 0 and len(output) <= MAX_OUTPUT:
        if poll.poll(left * 1000):
            piece = os.read(descriptor, MAX_OUTPUT)
            if not piece:
                return output
            output += piece
    return None
