"""Running the user's own `crushrc`: a Bash script that calls `provider`, `model` and other words to
configure Crush.

Here these words are functions that only record their arguments; what they mean is in `crushrc`. The
script runs under a keeper, which kills all that it started when it has ended or taken too long, in
its own folder, with the environment of the client, nothing to read and its output thrown away. It
is run only if it belongs to the user of the daemon, or to root, and nobody else can write to it.
A project's script is never run: it is code of a stranger.

A script may be slow, or ask a password manager. So what it said is remembered, for an environment,
until its content changes or somebody asks for the files to be read again.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from ..clock import SystemClock
from ..commands.process import start
from ..errors import BadRequest, ConfigError
from .files import SCRIPT, digest, is_private, read_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SCRIPT_SECONDS = 5.0
MAX_RECORDED = 256 * 1024  # bytes of all recorded calls
REMEMBERED = 16  # runs; the oldest are forgotten

WORDS = ("provider", "model", "mcp", "lsp", "hook", "permissions", "option")
UNKNOWN = "unknown"  # recorded for a command that does not exist
# Each call is recorded as the number of its words, and its words, each ended by NUL, which no word
# can hold. The last record says that the end was reached, or how the script left before it.
_WRAPPER = f"""
exec 3>&1 >/dev/null 2>&1
_record() {{ printf '%s\\0' "$#" "$@" >&3; }}
for _word in {" ".join(WORDS)}; do eval "$_word() {{ _record $_word \\"\\$@\\"; }}"; done
unset _word
command_not_found_handle() {{ _record {UNKNOWN} "$1"; return 127; }}
"$BASH" -n "$1" || {{ _record syntax; exit; }}
trap '_record left "$?"' EXIT
. "$1"
trap - EXIT
_record end
"""

Call = list[str]  # a word and its arguments


class ScriptRuns:
    """Runs scripts and remembers what they said. Blocks: call it in a thread. Threads may share
    it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # also while one runs: two clients must not run it twice
        self._known: dict[tuple[str, str, str], list[Call] | ConfigError] = {}

    def forget(self) -> None:
        """Run every script again when it is needed."""
        with self._lock:
            self._known.clear()

    def calls(self, path: Path, env: Mapping[str, str]) -> list[Call] | None:
        """The calls in a script, in order; None if there is no such file, or it is empty. Raises
        ConfigError if it is not only the user's own, is no Bash, fails, or takes too long."""
        content = read_bytes(path, is_private)
        if content is None and path.exists():
            raise ConfigError(
                f"{path}: not run: it belongs to another user, or others can write to it; "
                "`chmod go-w` it"
            )
        if content is None or not content.strip():
            return None
        variables = "\0".join(f"{name}={env[name]}" for name in sorted(env))
        seen = hashlib.sha256(variables.encode("utf-8", "surrogateescape")).hexdigest()
        key = (str(path), digest(content), seen)
        with self._lock:
            if key not in self._known:
                while len(self._known) >= REMEMBERED:
                    del self._known[next(iter(self._known))]
                self._known[key] = _outcome(path, env)
            found = self._known[key]
        if isinstance(found, ConfigError):
            raise ConfigError(found.message)
        return found


def _outcome(path: Path, env: Mapping[str, str]) -> list[Call] | ConfigError:
    try:
        # In a thread of its own: this one may have an event loop.
        with ThreadPoolExecutor(1, "crushrc") as pool:
            recorded = pool.submit(lambda: asyncio.run(_recorded(path, env))).result()
        return _parsed(path, recorded)
    except ConfigError as error:
        return error


async def _recorded(path: Path, env: Mapping[str, str]) -> bytes:
    """What the functions recorded. Raises ConfigError."""
    recorded = bytearray()

    def take(data: bytes) -> None:
        if len(recorded) <= MAX_RECORDED:
            recorded.extend(data)
        elif command is not None:
            command.kill()

    command = None
    # A file that BASH_ENV names would be run before the script, with its output in ours.
    given = {name: value for name, value in env.items() if name not in ("BASH_ENV", "ENV")}
    try:
        command = await start(
            ["bash", "--noprofile", "--norc", "-c", _WRAPPER, SCRIPT, str(path)],
            cwd=path.parent,
            env=given,
            clock=SystemClock(),
            on_output=take,
        )
    except BadRequest as error:
        raise ConfigError(f"{path}: {error.message}") from None
    ended = await command.wait(SCRIPT_SECONDS)
    if ended.timed_out:
        raise ConfigError(f"{path}: it did not end in {SCRIPT_SECONDS:g} s")
    if len(recorded) > MAX_RECORDED:
        raise ConfigError(f"{path}: it configures more than {MAX_RECORDED} bytes")
    return bytes(recorded)


def _parsed(path: Path, recorded: bytes) -> list[Call]:
    """The calls of a script that came to its end. Raises ConfigError for one that did not. Nothing
    that it wrote is repeated, which may be a secret."""
    texts = recorded.decode("utf-8", "replace").split("\0")
    calls: list[Call] = []
    at = 0
    while at < len(texts) - 1:
        count = int(texts[at]) if texts[at].isdecimal() else 0
        call = texts[at + 1 : at + 1 + count]
        at += 1 + count
        if call == ["end"] or call == ["left", "0"]:
            return calls
        if call == ["syntax"]:
            raise ConfigError(f"{path}: no valid Bash: `bash -n {path}` says where")
        if call[:1] == ["left"]:
            raise ConfigError(f"{path}: it left before its end, with status {call[1]}")
        if count:
            calls.append(call)
    raise ConfigError(f"{path}: it did not come to its end")
