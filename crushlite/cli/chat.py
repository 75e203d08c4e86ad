"""`crushlite chat`: a conversation in the terminal.

On a terminal an input line stays at the bottom while answers come in above it. Anywhere else each
line of standard input is a prompt, and standard output gets the answers and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
import threading
from typing import TYPE_CHECKING, Any, TextIO

from ..errors import CrushliteError
from . import CANCELED
from .chat_commands import Commands
from .chat_history import HistoryFile, history_path
from .chat_lines import LineEditor
from .chat_screen import Screen
from .chat_session import Chat
from .common import (
    add_connection,
    choose_agent,
    command,
    new_session,
    opened,
    say,
    say_nothing,
    session_agent,
    wanted,
)
from .follow import RunPrinter, signals
from .helptext import not_empty
from .lookup import find_session
from .person import warn_of_yolo
from .progress import Progress
from .text import Style, one_line

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Coroutine, Iterator

    from ..client import RemoteWorkspace, RunStream
    from .chat_lines import Pressed

READ = 4096
PASTE_ON, PASTE_OFF = "\x1b[?2004h", "\x1b[?2004l"

DESCRIPTION = """\
Talk with the agent of this directory. What other clients do in the same session is shown too, and
the first answer to a request counts, from whatever client.

While it works you can go on typing: a prompt joins the work at its next step. Ctrl-C cancels the
work, a second one leaves; Ctrl-D leaves. /help lists commands, !COMMAND runs one in a shell. What
was typed is remembered in $XDG_STATE_HOME/crushlite/chat_history (~/.local/state); a line that
begins with a blank is not.

If input or output is not a terminal, every line of standard input is a prompt, and only the answers
go to standard output.

Exit codes: 0 left, 1 failed (without a terminal: any prompt), 130 left with Ctrl-C.
"""
EXAMPLES = """\
  crushlite chat
  crushlite chat --continue               # in the session used last
  crushlite chat --session 3f2a
  printf 'hello\\nand goodbye\\n' | crushlite chat
"""


def add_parser(commands: Any) -> None:
    parser = command(commands, "chat", DESCRIPTION, run, EXAMPLES)
    which = parser.add_mutually_exclusive_group()
    go_on = "go on in this session"
    which.add_argument("--session", type=not_empty, metavar="ID", help=go_on)
    which.add_argument(
        "--continue", dest="last", action="store_true", help="go on in the session used last"
    )
    add = parser.add_argument
    add("--yolo", action="store_true", help="never ask for permissions, if the workspace is new")
    add("-q", "--quiet", action="store_true", help="without a terminal: errors only")
    add_connection(parser)


def run(options: argparse.Namespace) -> Coroutine[Any, Any, int]:
    terminal = sys.stdin is not None and sys.stdin.isatty() and Style(sys.stdout).moves
    return _talk(options) if terminal else _answer_lines(options)


async def _session_id(workspace: RemoteWorkspace, options: argparse.Namespace) -> str:
    """The session that the options name; empty if they name none."""
    given = "last" if options.last else options.session
    return await find_session(workspace, given) if given else ""


# In a terminal ------------------------------------------------------------------------------------


async def _talk(options: argparse.Namespace) -> int:
    with signals() as interrupt:
        try:
            async with opened(options) as workspace:
                session_id = await _session_id(workspace, options)
                window = ChatWindow(workspace, options)
                if agent := session_agent(options):
                    await window.chat.choose_agent(agent, session_id)
                with _terminal(window):
                    return await window.run(session_id)
        except asyncio.CancelledError:
            if not interrupt.received:
                raise
            return CANCELED


class ChatWindow:
    """A chat in a window: takes the bytes of keys, writes to standard output or what a caller gives
    instead. Knows nothing of the modes of the terminal."""

    def __init__(
        self,
        workspace: RemoteWorkspace,
        options: argparse.Namespace,
        output: TextIO | None = None,
        columns: Callable[[], int] | None = None,
    ) -> None:
        self._workspace = workspace
        self._history = HistoryFile(history_path())
        self._editor = LineEditor(lambda text: self._commands.complete(text))
        self.screen = Screen(self._editor, columns, output)
        again = wanted(options, lambda text: self.chat.note(text))
        self.chat = Chat(workspace, again, self.screen, self._editor)
        self._commands = Commands(self.chat)
        self._lines: asyncio.Queue[str] = asyncio.Queue()

    async def run(self, session_id: str) -> int:
        """Chat in a session, or in a new one if the id is empty; returns the exit code."""
        for text in self._history.load():
            self._editor.remember(text)
        return await self.chat.run(lambda: self._begin(session_id))

    def typed(self, data: bytes) -> None:
        """Take what was typed."""
        if self.chat.is_one_key(data) and not self._editor.text:
            self._lines.put_nowait(data.decode("ascii"))
            return
        keys = self._editor.feed(data)
        if not keys or keys[0].what != "end":
            self.chat.forget_warning()
        for pressed in keys:
            self._press(pressed)
        if not self.chat.left.done():
            self.screen.draw()

    def _press(self, pressed: Pressed) -> None:
        if pressed.what == "end":
            self.chat.end_of_input()
        elif pressed.what == "clear":
            self.screen.clear()
        else:
            if self.chat.dialog is None:
                self._editor.remember(pressed.text)
                self._history.append(pressed.text)
            self._lines.put_nowait(pressed.text)

    async def _begin(self, session_id: str) -> None:
        model = (await self._workspace.agent()).model.name
        chat, info = self.chat, self._workspace.info
        chat.note(f"{one_line(info.path)}, {one_line(model)}. /help lists commands, Ctrl-D leaves.")
        for line in info.warning.splitlines():
            chat.complain(line)
        chat.spawn(chat.attempt(self._commands.read_commands()))
        if session_id:
            await chat.open_session(await self._workspace.session(session_id))
        chat.spawn(self._carry_out())

    async def _carry_out(self) -> None:
        while True:
            await self._commands.carry_out(await self._lines.get())


@contextlib.contextmanager
def _terminal(window: ChatWindow) -> Iterator[None]:
    """Connect a window to the terminal at standard input: its modes, its signals, its keys."""
    loop, chat, modes = asyncio.get_running_loop(), window.chat, _Modes(window.screen)

    def read() -> None:
        try:
            data = os.read(0, READ)
        except OSError:
            data = b""
        if data:
            return window.typed(data)
        loop.remove_reader(0)  # the terminal is gone
        chat.leave(CANCELED)

    def suspend() -> None:
        """Ctrl-Z: the shell gets its terminal back as it was."""
        window.screen.leave()
        modes.restore()
        signal.raise_signal(signal.SIGSTOP)
        modes.set()
        window.screen.draw()

    handlers = {
        signal.SIGINT: chat.interrupt,
        signal.SIGTERM: lambda: chat.leave(CANCELED),
        signal.SIGHUP: lambda: chat.leave(CANCELED),
        signal.SIGWINCH: window.screen.draw,
        signal.SIGTSTP: suspend,
    }
    modes.set()
    try:
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        loop.add_reader(0, read)
        yield
    finally:
        loop.remove_reader(0)
        for number in handlers:
            loop.remove_signal_handler(number)
        modes.restore()


class _Modes:
    """The modes of the terminal: `set` gives single keys without echo, `restore` the modes as they
    were when this was made."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._before = termios.tcgetattr(0)

    def set(self) -> None:
        modes = termios.tcgetattr(0)
        modes[0] &= ~termios.ICRNL  # else the line breaks of a paste would be doubled
        modes[3] &= ~(termios.ECHO | termios.ICANON | termios.IEXTEN)
        modes[6][termios.VMIN], modes[6][termios.VTIME] = 1, 0
        termios.tcsetattr(0, termios.TCSADRAIN, modes)
        self._screen.write(PASTE_ON)

    def restore(self) -> None:
        self._screen.write(PASTE_OFF)
        with contextlib.suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(0, termios.TCSADRAIN, self._before)


# Without a terminal -------------------------------------------------------------------------------


async def _answer_lines(options: argparse.Namespace) -> int:
    with signals() as interrupt:
        try:
            tell = say_nothing if options.quiet else say
            async with opened(options, tell) as workspace:
                session_id = await _session_id(workspace, options)
                if (agent := session_agent(options)) and session_id:
                    await choose_agent(workspace, session_id, agent)
                elif agent:
                    session_id = (await new_session(workspace, "", agent)).id
                await workspace.init(interactive=False)
                await warn_of_yolo(workspace, options)
                if sys.stdin is not None and sys.stdin.isatty():
                    tell("one prompt per line; Ctrl-D ends it")
                code, lines = 0, _lines()
                while line := await lines.get():
                    if text := line.strip():
                        run = workspace.start(text, session_id)
                        code = max(code, await _ask(run, Progress(quiet=options.quiet)))
                        session_id = run.session_id
                return code
        except asyncio.CancelledError:
            if not interrupt.received:
                raise
            return CANCELED


def _lines() -> asyncio.Queue[str]:
    """The lines of standard input; an empty text is its end.

    They are read by a thread of their own that is not waited for: input that does not come must not
    keep the command from ending. Not through sys.stdin: the interpreter could not exit while a
    thread holds its lock."""
    lines: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def read() -> None:
        rest = b""
        while data := _stdin():
            *whole, rest = (rest + data).split(b"\n")
            put(*whole)
        put(rest)
        loop.call_soon_threadsafe(lines.put_nowait, "")

    def put(*found: bytes) -> None:
        for line in found:
            text = line.decode("utf-8", "replace") + "\n"
            loop.call_soon_threadsafe(lines.put_nowait, text)

    threading.Thread(target=read, name="stdin", daemon=True).start()
    return lines


def _stdin() -> bytes:
    try:
        return os.read(0, READ)
    except OSError:
        return b""  # we were started with it closed


async def _ask(start: RunStream, progress: Progress) -> int:
    """Print the run of one prompt to its end; returns the exit code. A failure is reported, not
    raised, so that the next line can be asked."""
    try:
        async with start as run:
            progress.doing("waiting")
            printer = RunPrinter(run, progress)
            return await printer.conclude(await printer.until_end())
    except asyncio.CancelledError:
        if start.accepted is not None:
            with contextlib.suppress(CrushliteError):  # then the run ends with the workspace
                await start.cancel()
        raise
    except CrushliteError as error:
        say(error.message)
        return 1
    finally:
        progress.stop()
