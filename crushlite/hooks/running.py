"""One hook as a child process under a keeper: what it gets on stdin, and what it wrote."""

from __future__ import annotations

import asyncio
import os
import tempfile
from typing import TYPE_CHECKING

from ..commands import process
from ..errors import CrushliteError
from .verdicts import HookOutput

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ..clock import Clock
    from .definitions import Hook

OUTPUT_BYTES = 512 * 1024  # of stdout; one that writes more has failed
ERROR_BYTES = 16 * 1024  # of stderr that are kept


class _Errors:
    """The beginning of what a child writes to stderr. `writer` is for the child."""

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._data = bytearray()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._reader, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._reader, 65536)
        except BlockingIOError:
            return
        if not data:
            self._loop.remove_reader(self._reader)
        self._data += data[: max(ERROR_BYTES - len(self._data), 0)]

    def text(self) -> str:
        self._read()  # what came between the last look and the end
        return self._data.decode("utf-8", "replace")

    def close(self) -> None:
        self._loop.remove_reader(self._reader)
        os.close(self._reader)


async def run_hook(
    hook: Hook, payload: bytes, *, cwd: Path, env: Mapping[str, str], clock: Clock
) -> HookOutput:
    """Run a hook to its end. Never raises CrushliteError: that it could not be run is a part of
    what is returned. If this is cancelled, its processes are killed first."""
    if hook.problem:
        return HookOutput(failure=hook.problem)
    stdout = bytearray()

    def collect(data: bytes) -> None:
        stdout.extend(data[: max(OUTPUT_BYTES + 1 - len(stdout), 0)])

    errors = _Errors()
    try:
        with tempfile.TemporaryFile() as stdin:
            stdin.write(payload)
            stdin.seek(0)
            try:
                command = await process.start(
                    hook.command,
                    cwd=cwd,
                    env=env,
                    clock=clock,
                    on_output=collect,
                    stdin=stdin.fileno(),
                    stderr=errors.writer,
                )
            finally:
                os.close(errors.writer)
        try:
            end = await command.wait(timeout=hook.timeout)
        except asyncio.CancelledError:
            command.kill()
            await command.wait()
            raise
        if end.timed_out:
            return HookOutput(failure=f"it did not end within {hook.timeout:g} s")
        if len(stdout) > OUTPUT_BYTES:
            return HookOutput(failure=f"it wrote more than {OUTPUT_BYTES} bytes")
        return HookOutput(end.code, stdout.decode("utf-8", "replace"), errors.text())
    except CrushliteError as error:
        return HookOutput(failure=error.message)
    except OSError as error:
        return HookOutput(failure=str(error))
    finally:
        errors.close()
