"""`run` on blocking sockets, without asyncio and the client library, while all goes as usual.

Loading those takes longer than everything else that a short `run` does. So the prompt is sent from
here. If its run does nothing but answer, and no terminal shows it, the answer is printed from here
as well. Whatever else happens (no daemon, an error, a tool call, a question, a signal) is left to
`asked.py`: it goes on with what was begun here, or begins itself. So nothing here reports an error.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any

from ..http.peer import peer_uid
from ..itself import own_environment
from ..unique import new_id
from ..version import WIRE_VERSION
from . import CANCELED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PROBE_SECONDS = 0.5  # for the first answer: without it, a user is told what is waited for
ANSWER_SECONDS = 30.0  # for any other
SILENCE_SECONDS = 60.0  # of an event stream, on which a comment comes every 15
MOST_BYTES = 16 << 20  # of an answer, or of an event
SLICE = (
    select.PIPE_BUF // 4
)  # characters: a pipe with room takes as many at once, whatever they are
# Events that change nothing of what is printed here.
SILENT = ("session", "file", "config_changed", "mcp_event", "lsp_event", "skills_event")


class Unexpected(Exception):
    """Something that only the client library can deal with."""


# With the others, what a daemon sends that it should not.
FAILURES = (Unexpected, OSError, ValueError, LookupError, TypeError, AttributeError)


class Signals:
    """Takes the signals that end a command: `fileno` can be read after the first, the second one
    ends the process. Those that the process was started with as ignored stay so."""

    def __init__(self) -> None:
        self.received = False
        self._reader, self._writer = os.pipe()
        self._before = {number: signal.getsignal(number) for number in SIGNALS}
        for number, before in self._before.items():
            if before is not signal.SIG_IGN:
                signal.signal(number, self._take)

    def _take(self, *_: object) -> None:
        if self.received:
            os._exit(CANCELED)
        self.received = True
        os.write(self._writer, b"!")

    def fileno(self) -> int:
        return self._reader

    def close(self) -> None:
        """Put back what the signals did before."""
        for number, before in self._before.items():
            signal.signal(number, before)
        os.close(self._reader)
        os.close(self._writer)


class _Connection:
    """One connection to a daemon on a unix socket. Its methods raise Unexpected for an answer that
    is not as it should be, at a signal, and after a time; OSError and ValueError as they come."""

    def __init__(self, path: str, signals: Signals) -> None:
        self.seconds = ANSWER_SECONDS  # that are waited for anything to come
        self._signals = signals
        self._data = b""  # received, and not used yet
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(ANSWER_SECONDS)
        self._socket.connect(path)
        if peer_uid(self._socket) != os.getuid():
            raise Unexpected("another user listens there")

    def close(self) -> None:
        self._socket.close()

    def request(self, method: str, target: str, body: object = None, status: int = 200) -> Any:
        """Send a request, and return the JSON of its answer, None if that is empty."""
        length = int(self._ask(method, target, body, status)["content-length"])
        while len(self._data) < length:
            self._receive()
        content, self._data = self._data[:length], self._data[length:]
        return json.loads(content) if content else None

    def events(self, target: str) -> tuple[str, Iterator[tuple[str, str, Any]]]:
        """Subscribe at once. Returns the id of the last event before the stream, and an iterator of
        the id, the kind and the payload of those on it."""
        if "transfer-encoding" in self._ask("GET", target, None, 200):
            raise Unexpected("a stream in chunks")
        while b"\n\n" not in self._data:
            self._receive()
        first, _, self._data = self._data.partition(b"\n\n")
        if not first.startswith(b"id: ") or b"\n" in first:
            raise Unexpected("a stream that does not say where it begins")
        self.seconds = SILENCE_SECONDS
        return first[4:].decode("ascii"), self._events()

    def _events(self) -> Iterator[tuple[str, str, Any]]:
        while True:
            *events, self._data = self._data.split(b"\n\n")
            for event in events:
                fields = dict(
                    line.split(b": ", 1) for line in event.split(b"\n") if line[:1] != b":"
                )
                if b"data" in fields:
                    envelope = json.loads(fields[b"data"])
                    yield fields[b"id"].decode(), envelope["type"], envelope["payload"]["payload"]
            self._receive()

    def _ask(self, method: str, target: str, body: object, status: int) -> dict[str, str]:
        """Send a request; returns the header fields of the answer, by name in lower case."""
        content = b"" if body is None else json.dumps(body, ensure_ascii=False).encode()
        head = f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}"
        self._socket.sendall(f"{head}\r\n\r\n".encode("ascii") + content)
        while b"\r\n\r\n" not in self._data:
            self._receive()
        answer, _, self._data = self._data.partition(b"\r\n\r\n")
        first, *lines = answer.decode("ascii").split("\r\n")
        if not first.startswith(f"HTTP/1.1 {status} "):
            raise Unexpected(first)
        pairs = (line.partition(": ") for line in lines)
        return {name.lower(): value for name, _, value in pairs}

    def _receive(self) -> None:
        wait_for([self._socket.fileno()], [], self._signals, self.seconds)
        data = self._socket.recv(1 << 18)
        self._data += data
        if not data or len(self._data) > MOST_BYTES:
            raise Unexpected("the end, or no end")


def wait_for(
    readers: list[int], writers: list[int], signals: Signals, seconds: float | None
) -> None:
    """Wait until one of them is ready. Raises Unexpected at a signal, and when the time is over."""
    woken = signals.fileno()
    readable, writable, _ = select.select([woken, *readers], writers, [], seconds)
    if woken in readable:
        raise Unexpected("a signal")
    if not readable and not writable:
        raise Unexpected("silence")


class QuickRun:
    """One prompt in a new session. `begin` and `print_answer` raise one of FAILURES if they cannot
    go on. The public attributes tell how far they came."""

    def __init__(self, socket_path: str, directory: str) -> None:
        self.signals = Signals()
        self.path = directory
        self.env = own_environment()
        self.client_id = new_id()
        self.run_id = new_id()
        self.info: dict[str, Any] = {}  # of the workspace, once it is open
        self.session_id = ""  # once there is one
        self.posted = False  # the prompt may have been accepted
        self.accepted = False
        self.last_id = ""  # of the events of the run that need not be looked at again
        self.message_id = ""  # of the answer
        self.ending: dict[str, Any] | None = None  # of the run, once it came
        self._prompt = ""
        self._begun = False  # the prompt was seen on the event stream
        self._text = ""  # of the answer
        self._part: int | None = None  # of the message that is the text
        self._written = 0  # characters of the text
        self._socket_path = socket_path
        self._connections: list[_Connection] = []
        self._events: Iterator[tuple[str, str, Any]] = iter(())

    @property
    def shown(self) -> str:
        """What was printed of the answer."""
        return self._text[: self._written]

    def begin(
        self, title: str, prompt: dict[str, Any], say: Callable[[str], None], *, interactive: bool
    ) -> None:
        """Open the workspace, a session and an event stream, and post the prompt. `interactive`:
        somebody is there to answer permission requests. `say` is called with lines for the user."""
        daemon = self._connect()
        daemon.seconds = PROBE_SECONDS
        if daemon.request("GET", "/v1/version")["version"] != WIRE_VERSION:
            raise Unexpected("another version")
        daemon.seconds = ANSWER_SECONDS
        workspace = {"path": self.path, "client_id": self.client_id, "env": self.env}
        self.info = daemon.request("POST", "/v1/workspaces", workspace)
        place, client = f"/v1/workspaces/{self.info['id']}", f"client_id={self.client_id}"
        agent = daemon.request("GET", f"{place}/agent")
        if not agent["is_ready"] or agent.get("no_model"):
            raise Unexpected("no model")
        self.session_id = daemon.request("POST", f"{place}/sessions", {"title": title})["id"]
        for line in self.info.get("warning", "").splitlines():
            say(line)
        say(f"session {self.session_id}")
        daemon.request("POST", f"{place}/agent/init?{client}", {"interactive": interactive})
        target = f"{place}/events?{client}&resume=1&deltas=1"
        before, self._events = self._connect().events(target)
        self._prompt = prompt["prompt"]
        names = {"session_id": self.session_id, "run_id": self.run_id}
        self.posted = True
        state = daemon.request("POST", f"{place}/agent", {**prompt, **names}, 202)["state"]
        self.accepted = True
        if state == "queued":
            raise Unexpected("somebody else was faster in the new session")
        self.last_id = before

    def print_answer(self) -> None:
        """Print the text of the answer as it grows, until the run has completed."""
        if "".encode(sys.stdout.encoding):
            raise Unexpected("an encoding with a byte order mark, which is to be written once")
        for event_id, kind, payload in self._events:
            if kind == "run_complete" and payload.get("run_id") == self.run_id:
                self.ending = payload
                return self._end(payload)
            if payload.get("session_id", self.session_id) == self.session_id:
                self._take(kind, payload)
            self.last_id = event_id

    def leave(self) -> None:
        """Tell the daemon that this client leaves. No answer is no error."""
        if self.info:
            self._connections[0].seconds = PROBE_SECONDS
            with contextlib.suppress(*FAILURES):
                self._connections[0].request("DELETE", f"/v1/clients/{self.client_id}")

    def close(self) -> None:
        """Close the connections."""
        for connection in self._connections:
            connection.close()

    def _connect(self) -> _Connection:
        self._connections.append(_Connection(self._socket_path, self.signals))
        return self._connections[-1]

    def _take(self, kind: str, payload: dict[str, Any]) -> None:
        if kind == "message":
            self._take_message(payload)
        elif kind == "message_delta":
            self._take_delta(payload)
        elif kind not in SILENT and payload.get("type") not in ("agent_finished", "error"):
            raise Unexpected(kind)
        self._print()

    def _take_message(self, message: dict[str, Any]) -> None:
        if not self._begun:
            texts = [part["data"].get("text") for part in message["parts"]]
            if message["role"] != "user" or texts[:1] != [self._prompt]:
                self.last_id = ""  # which events are of our run is not known
                raise Unexpected("somebody else was faster in the new session")
            self._begun = True
        if message["role"] == "user":
            return
        kinds = [part["type"] for part in message["parts"]]
        plain = message["role"] == "assistant" and not message.get("is_summary_message")
        if not plain or kinds.count("text") > 1 or {*kinds} - {"text", "reasoning", "finish"}:
            raise Unexpected("more than an answer")
        if self.message_id not in ("", message["id"]):
            raise Unexpected("a second answer")
        self.message_id = message["id"]
        self._part = kinds.index("text") if "text" in kinds else None
        self._set_text("" if self._part is None else message["parts"][self._part]["data"]["text"])

    def _take_delta(self, delta: dict[str, Any]) -> None:
        if delta["message_id"] == self.message_id and delta["part"] == self._part:
            if delta["offset"] != len(self._text):
                raise Unexpected("a gap")
            self._text += delta["text"]

    def _set_text(self, text: str) -> None:
        if not text.startswith(self.shown):
            raise Unexpected("a text that was rewritten")
        self._text = text

    def _end(self, ending: dict[str, Any]) -> None:
        others = ("error", "cancelled", "limit", "denied", "folded_into")
        if any(ending.get(name) for name in others) or ending["message_id"] != self.message_id:
            raise Unexpected("an ending that needs words")
        self._set_text(ending.get("text", ""))
        if self._text.strip() and not self._text.endswith("\n"):
            self._text += "\n"
        self._print()

    def _print(self) -> None:
        """Write what was not written yet, but no white space in front of the answer."""
        if not self._written:
            self._written = len(self._text) - len(self._text.lstrip())
            if self._written == len(self._text):
                self._written = 0
                return
        output = sys.stdout.fileno()
        while piece := self._text[self._written : self._written + SLICE]:
            # Not blindly: a reader that stops reading must not keep us from handling Ctrl-C.
            wait_for([], [output], self.signals, None)
            data = piece.encode(sys.stdout.encoding, "replace")
            if os.write(output, data) < len(data):
                raise Unexpected("a disk without room")
            self._written += len(piece)
