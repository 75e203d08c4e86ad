"""Terminals for tests: what a person would see in one, with a process in it or a chat of this
process.

The emulation knows what line-oriented programs use, and wraps lines anew when the window changes,
as most terminals do. Every character takes one column.
"""

from __future__ import annotations

import argparse
import asyncio
import codecs
import contextlib
import fcntl
import io
import os
import pty
import re
import struct
import sys
import termios
from typing import TYPE_CHECKING, Any

from crushlite.cli import chat
from crushlite.cli.common import opened

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["COMMAND", "PATIENCE", "Emulator", "Shown", "Terminal", "Window"]

PATIENCE = 50.0  # seconds: far above what anything takes, so that only a hang reaches it

# A process that leads a session and opens a terminal gets it as its own, and with it Ctrl-C. Not
# done by preexec_fn: to run Python between fork and exec is unsafe in a process with threads.
TAKE_TERMINAL = (
    "import os, sys\n"
    "os.close(os.open(os.ttyname(0), os.O_RDWR))\n"
    "os.execv(sys.argv[1], sys.argv[1:])\n"
)
COMMAND = (sys.executable, "-P", "-m", "crushlite")

_TOKEN = re.compile(r"\x1b\[(\??[0-9;]*)([A-Za-z])|([\x00-\x1f\x7f-\x9f])|([^\x00-\x1f\x7f-\x9f]+)")


class Emulator:
    """Lines as they were written, each wrapped at the present width; and a cursor."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.lines: list[str] = [""]
        self.obeyed = 0  # controls that no well-behaved program sends
        self._line = self._offset = 0
        self._pending = ""

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.lines)

    def feed(self, text: str) -> None:
        text = self._pending + text
        self._pending, at = "", 0
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None or (match[3] == "\x1b" and len(text) - at < 12):
                self._pending = text[at:]
                return
            at = match.end()
            if match[4]:
                self._write(match[4])
            elif match[3]:
                self._control(match[3])
            else:
                self._sequence(match[1], match[2])

    def _write(self, text: str) -> None:
        line = self.lines[self._line].ljust(self._offset)
        end = self._offset + len(text)
        self.lines[self._line] = line[: self._offset] + text + line[end:]
        self._offset = end

    def _control(self, control: str) -> None:
        if control == "\r":
            # At the very end of a row the cursor is still in it.
            row = max(0, self._offset - 1) // self.columns if self._full() else self._row()
            self._offset = row * self.columns
        elif control == "\n":
            self._line += 1
            self._offset = 0
            if self._line == len(self.lines):
                self.lines.append("")
        else:
            self.obeyed += 1

    def _full(self) -> bool:
        return self._offset > 0 and self._offset == len(self.lines[self._line])

    def _row(self) -> int:
        return self._offset // self.columns

    def _sequence(self, parameters: str, final: str) -> None:
        count = int(parameters) if parameters.isdecimal() else 1
        if final == "A":
            self._up(count)
        elif final == "C":
            self._offset += count
        elif final in "JK":
            self.lines[self._line] = self.lines[self._line][: self._offset]
            if final == "J":
                del self.lines[self._line + 1 :]
        elif final == "H":
            self.lines, self._line, self._offset = [""], 0, 0
        elif final not in "mhl":
            self.obeyed += 1

    def _up(self, count: int) -> None:
        column = self._offset % self.columns
        row = self._row()
        for _ in range(count):
            if row:
                row -= 1
            elif self._line:
                self._line -= 1
                row = max(0, len(self.lines[self._line]) - 1) // self.columns
        self._offset = row * self.columns + column


class Shown:
    """A window: `seen` is what it shows and has shown, `heard` all that was written to it."""

    def __init__(self, columns: int) -> None:
        self._emulator = Emulator(columns)
        self._changed = asyncio.Event()
        self.heard = ""

    def press(self, keys: str) -> None:
        raise NotImplementedError

    def resize(self, columns: int) -> None:
        """Change the width of the window, as a person who pulls at it."""
        raise NotImplementedError

    async def ends(self) -> int:
        """Wait for the end of the command; returns its exit code."""
        raise NotImplementedError

    def enter(self, line: str) -> None:
        self.press(f"{line}\r")

    @property
    def seen(self) -> str:
        return self._emulator.text

    @property
    def obeyed(self) -> int:
        """How many controls came that no well-behaved program sends."""
        return self._emulator.obeyed

    async def shows(self, what: str | Callable[[str], bool]) -> str:
        """Wait until the window shows a text, or the function returns true for what it shows."""
        liked = what if callable(what) else lambda seen: what in seen
        await self._until(lambda: liked(self.seen), what)
        return self.seen

    async def hears(self, text: str, start: int = 0) -> int:
        """Wait until a text, controls included, was written after `start`; returns where it
        ends."""
        await self._until(lambda: self.heard.find(text, start) >= 0, text)
        return self.heard.find(text, start) + len(text)

    async def _until(self, holds: Callable[[], bool], what: object) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                while not holds():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            told = f"{self.seen[-2000:]}\n{self.heard[-2000:]!r}"
            raise AssertionError(f"it never showed {what!r}:\n{told}") from None

    def _written(self, text: str) -> None:
        self.heard += text
        self._emulator.feed(text)
        self._changed.set()


class Window(Shown):
    """A chat in this process. What a terminal does to keys and signals is left out: Ctrl-C and a
    change of size reach the chat directly."""

    def __init__(self, columns: int = 80) -> None:
        super().__init__(columns)
        self._chat: chat.ChatWindow | None = None
        self._task: asyncio.Task[int] | None = None

    def start(self, *arguments: str) -> None:
        """Begin `crushlite chat` with these arguments."""
        parser = argparse.ArgumentParser()
        chat.add_parser(parser.add_subparsers())
        self._task = asyncio.create_task(self._run(parser.parse_args(["chat", *arguments])))

    async def _run(self, options: argparse.Namespace) -> int:
        async with opened(options) as workspace:
            session_id = await chat._session_id(workspace, options)
            output: Any = _Output(self._written)
            self._chat = chat.ChatWindow(workspace, options, output, lambda: self._emulator.columns)
            return await self._chat.run(session_id)

    def press(self, keys: str) -> None:
        assert self._chat is not None
        for piece in re.split("(\x03)", keys):
            if piece == "\x03":
                self._chat.chat.interrupt()
            elif piece:
                self._chat.typed(piece.encode())

    def resize(self, columns: int) -> None:
        self._emulator.columns = columns
        if self._chat is not None:
            self._chat.screen.draw()

    async def ends(self) -> int:
        assert self._task is not None
        try:
            async with asyncio.timeout(PATIENCE):
                return await asyncio.shield(self._task)
        except TimeoutError:
            raise AssertionError(f"it never ended:\n{self.seen[-2000:]}") from None

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


class _Output(io.TextIOBase):
    """A stream that is a terminal for its writer."""

    encoding = "utf-8"

    def __init__(self, written: Callable[[str], None]) -> None:
        self._take = written

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._take(text)
        return len(text)


class Terminal(Shown):
    """A process with a terminal of its own."""

    def __init__(self, columns: int = 80) -> None:
        super().__init__(columns)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._master, self._slave = pty.openpty()
        self._closed = False
        self.process: asyncio.subprocess.Process | None = None
        self.resize(columns)

    async def start(
        self, *command: str, cwd: Path, env: dict[str, str], stdout: Any = None
    ) -> None:
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-c", TAKE_TERMINAL, *command),
            cwd=cwd,
            env={"TERM": "xterm", "LANG": "C.UTF-8", "PYTHONUTF8": "1", **env},
            stdin=self._slave,
            stdout=self._slave if stdout is None else stdout,
            stderr=self._slave,
            start_new_session=True,
        )
        os.set_blocking(self._master, False)
        asyncio.get_running_loop().add_reader(self._master, self._read)

    def resize(self, columns: int, rows: int = 40) -> None:
        self._emulator.columns = columns
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    @property
    def echoes(self) -> bool:
        """Whether the terminal has the modes that a shell needs."""
        flags: int = termios.tcgetattr(self._slave)[3]
        return bool(flags & termios.ECHO and flags & termios.ICANON)

    async def ends(self) -> int:
        assert self.process is not None
        try:
            async with asyncio.timeout(PATIENCE):
                code = await self.process.wait()
        except TimeoutError:
            raise AssertionError(f"it never ended:\n{self.seen[-2000:]}") from None
        if not self._closed:
            self._read()
        return code

    def hang_up(self) -> None:
        """The window is closed under the process."""
        if not self._closed:
            self._closed = True
            asyncio.get_running_loop().remove_reader(self._master)
            os.close(self._slave)
            os.close(self._master)

    async def close(self) -> None:
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()
        self.hang_up()

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._master, 65536):
                self._written(self._decoder.decode(data))
