"""Variables and commands in the values of a configuration.

`$V`, `${V}`, `${V:-default}` and `${V:?message}` as in a shell; unset is empty; `CRUSH_V` goes
before `V`; `\\$` is a dollar sign. `$(command)` is run by `sh -c` if the daemon was started with
`--allow-config-commands`: the text of the file is the script, nothing is pasted into it.

In the files of a project, which are expanded only if the user trusts them,
  - no command is ever run: opening a repository must not start its programs;
  - a variable that looks like a secret, by its name or its value, or that the user's own files
    use for a key or a header, counts as unset: the project decides where the value would be sent.
    The field does not matter, because a key goes to the project's host as surely as a part of its
    address. The user lifts this for one variable by naming it in `permissions.project_variables`
    of a file of their own. A server on this machine is no exception: another user's program may
    be listening there.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

from ..commands.environment import is_secret_name, looks_like_token
from ..errors import ConfigError
from ..records import dataclass
from .secrets import looks_secret
from .warnings import Reason

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from .files import Source
    from .warnings import Warn

FLAG = "--allow-config-commands"
COMMAND_SECONDS = 5.0
MAX_OUTPUT = 64 * 1024  # bytes that a command may write; a key has a hundred
MAX_NESTING = 8  # of defaults in defaults
_GUARDED_FROM = 4  # characters: a shorter value is found in others by chance

_NAME = "([A-Za-z_][A-Za-z0-9_]*)"
_NEXT = re.compile(rf"\\\$|\$(?:{_NAME}|([({{]))")
_BRACED = re.compile(rf"{_NAME}(?:(:[-?])(.*))?", re.S)
_VARIABLE = re.compile(rf"\$\{{?{_NAME}")
_ONLY_VARIABLE = re.compile(rf"\$(?:{_NAME}|\{{{_NAME}\}})")
_CLOSING = {"(": ")", "{": "}"}


class Refused(Exception):
    """A value cannot be used; the message says why. The provider that needs it is left out, while
    the rest of the file counts."""


def variables(value: Any) -> set[str]:
    """The names of all variables in the texts of a value."""
    if isinstance(value, str):
        return set(_VARIABLE.findall(value))
    children = value.values() if isinstance(value, dict) else value
    return set().union(*map(variables, children)) if isinstance(value, dict | list) else set()


def only_variable(text: str) -> str:
    """The name in a text that is nothing but one `$V` or `${V}`; else empty."""
    found = _ONLY_VARIABLE.fullmatch(text.strip())
    return found[1] or found[2] if found else ""


@dataclass(frozen=True, slots=True)
class SecretGuard:
    """Which variables projects do not get, and which they get all the same."""

    names: frozenset[str] = frozenset()  # used for credentials by the user's own files
    values: frozenset[str] = frozenset()  # credentials that stand in those files
    shared: frozenset[str] = frozenset()  # permissions.project_variables


class Expander:
    """Expands values with one environment. `secrets` collects the secret values that it put in."""

    def __init__(
        self,
        env: Mapping[str, str],
        warn: Warn,
        *,
        allow_commands: bool = False,
        guard: SecretGuard | None = None,
    ) -> None:
        guard = guard or SecretGuard()
        self.env = env
        self.warn = warn
        self.allow_commands = allow_commands
        self.shared = guard.shared
        self.secrets: set[str] = set()
        self._guarded = {_bare(name) for name in guard.names}
        # By value too: a secret may be there under another name.
        values = {*guard.values, *map(self.variable, self._guarded)}
        self._guarded_values = [value for value in values if len(value) >= _GUARDED_FROM]

    def variable(self, name: str) -> str:
        return self.env.get(f"CRUSH_{name}", self.env.get(name, ""))

    def expand(self, text: str, source: Source, key: str) -> str:
        """The text at this key of this file with variables and commands replaced. Raises
        ConfigError if the text is wrong, Refused if what it asks for is not for this file or not
        set."""
        return _Expansion(self, source, key).expand(text, MAX_NESTING)

    def withholds(self, name: str) -> bool:
        """Whether a variable counts as unset in the files of a project, also if it is set."""
        value = self.variable(name) or ""
        return name not in self.shared and self.is_secret(name, value)

    def is_secret(self, name: str, value: str) -> bool:
        """Whether projects do not get this variable."""
        return (
            looks_secret(name, value)
            or _bare(name) in self._guarded
            or any(guarded in value for guarded in self._guarded_values)
        )


class _Expansion:
    """One value of one file."""

    def __init__(self, expander: Expander, source: Source, key: str) -> None:
        self._expander = expander
        self._source = source
        self._key = key

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
                parts.append(self._variable(name) if name else "$")
        return "".join([*parts, text[at:]])

    def _group(self, opening: str, body: str, nesting: int) -> str:
        if opening == "(":
            return self._output(body)
        found = _BRACED.fullmatch(body)
        if found is None:
            raise self._error("of ${...} only ${V}, ${V:-default} and ${V:?message} are known")
        name, operator, rest = found.groups()
        if value := self._variable(name):
            return value
        if operator == ":?":
            # Refused, not an error: a client that comes back after a restart may not have its
            # variables with it, and its workspace must open all the same.
            said = f": {ascii(rest[:200])[1:-1]}" if rest else ""
            raise Refused(f"{self._key}: {name} is not set{said}")
        return self.expand(rest, nesting - 1) if operator else ""

    def _variable(self, name: str) -> str:
        expander, source = self._expander, self._source
        value = expander.variable(name)
        if not value:
            return ""
        if not source.is_machine and expander.withholds(name):
            text = (
                f"{self._key}: ${name} counts as unset: it may be a secret, and project "
                "files get none; to allow it, name it in permissions.project_variables of your "
                "own crush.json"
            )
            expander.warn(Reason.VARIABLE_WITHHELD, source.path, self._key, text)
            return ""
        if is_secret_name(name) or looks_like_token(value):
            expander.secrets.add(value)
        return value

    def _output(self, command: str) -> str:
        if not self._source.is_machine:
            raise Refused(f"{self._key}: commands of project files are not run")
        if not self._expander.allow_commands:
            raise self._error(f"$(...) is only run with {FLAG}")
        try:
            status, output = _run(command, self._expander.env, self._source.path.parent)
        except (OSError, ValueError):  # no sh, or an environment that no process can have
            raise self._error("the command cannot be started") from None
        # Neither the command nor its output is repeated: both may hold a secret.
        if status is None:
            raise self._error(
                f"the command did not end in {COMMAND_SECONDS:g} s with at most {MAX_OUTPUT} bytes"
            )
        if status:
            raise self._error(f"the command ended with status {status}")
        value = output.decode("utf-8", "replace").rstrip("\n")
        self._expander.secrets.add(value)
        return value

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
        return ConfigError(f"{self._source.path}: {self._key}: {reason}")


def _bare(name: str) -> str:
    return name.removeprefix("CRUSH_")


# Commands ---------------------------------------------------------------------------------------


def _run(command: str, env: Mapping[str, str], folder: Path) -> tuple[int | None, bytes]:
    """Exit status and output of a shell command; status None if it took too long or wrote too
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
            pass  # it closed its output and went on running
    # Killed before it is waited for, while the number of its group cannot be another group's.
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return None, b""


def _output(descriptor: int, deadline: float) -> bytes | None:
    """What is written to a pipe until it is closed; None past the deadline or MAX_OUTPUT."""
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
