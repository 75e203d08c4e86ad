"""One hook as a child process under a keeper: what it gets on stdin, and what it wrote."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ..clock import wait_at_most
from ..commands.process import start_piped
from ..errors import CrushliteError
from .verdicts import HookOutput

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ..clock import Clock
    from ..commands.process import Command
    from .definitions import Hook

OUTPUT_BYTES = 512 * 1024  # of stdout; one that writes more has failed
ERROR_BYTES = 16 * 1024  # of stderr that are kept
LAST_SECONDS = 2.0  # for its output to end when its processes are dead
# As other commands: with bash, and where there is none with sh.
SHELL = 'if command -v bash >/dev/null 2>&1; then exec bash -c "$0"; fi; exec sh -c "$0"'


async def run_hook(
    hook: Hook, payload: bytes, *, cwd: Path, env: Mapping[str, str], clock: Clock
) -> HookOutput:
    """Run a hook to its end. Never raises CrushliteError: that it could not be run is a part of
    what is returned. If this is cancelled, its processes are killed first."""
    if hook.problem:
        return HookOutput(failure=hook.problem)
    try:
        command, stdout, stdin = await start_piped(
            ["sh", "-c", SHELL, hook.command], cwd=cwd, env=env, clock=clock
        )
    except CrushliteError as error:
        return HookOutput(failure=error.message)
    except OSError as error:
        return HookOutput(failure=str(error))
    # Not waited for: a hook need not read it.
    stdin.write(payload)
    stdin.close()
    reading = asyncio.create_task(_read(stdout, command))
    try:
        end = await command.wait(timeout=hook.timeout)
        read = await wait_at_most(clock, reading, LAST_SECONDS)
    except asyncio.CancelledError:
        command.kill()
        await command.wait()
        raise
    finally:
        reading.cancel()
    output = reading.result() if read else b""
    if end.timed_out:
        return HookOutput(failure=f"it did not end within {hook.timeout:g} s")
    if not read or len(output) > OUTPUT_BYTES:
        return HookOutput(failure=f"it wrote more than {OUTPUT_BYTES} bytes, or did not stop")
    errors = command.output.text(ERROR_BYTES)
    return HookOutput(end.code, output.decode("utf-8", "replace"), errors)


async def _read(stream: asyncio.StreamReader, command: Command) -> bytes:
    """All that a hook writes; one that writes too much is killed."""
    output = bytearray()
    while data := await stream.read(65536):
        output += data
        if len(output) > OUTPUT_BYTES:
            command.kill()
            break
    return bytes(output)
