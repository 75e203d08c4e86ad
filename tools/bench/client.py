"""The client side: blocking sockets and as little HTTP as the servers need, the same for all.

Answers may have a length or come in chunks, events may come in chunks or not. Times are of
`time.monotonic`, which all processes share.
"""

import json
import multiprocessing
import select
import socket
import time
from typing import Any

PATIENCE = 60.0  # seconds without a byte that count as a hang


class BenchError(Exception):
    """A measurement failed: the server died, refused, hung, or lost or reordered events."""


class Connection:
    """A kept-alive connection for requests one by one."""

    def __init__(self, url: str) -> None:
        scheme, _, place = url.partition("://")
        host, _, port = place.rpartition(":")
        self.sock = socket.socket(socket.AF_UNIX if scheme == "unix" else socket.AF_INET)
        self.sock.connect(place if scheme == "unix" else (host, int(port)))
        self.sock.settimeout(PATIENCE)
        self._host = "localhost" if scheme == "unix" else place
        self._file = self.sock.makefile("rb")

    def send(self, method: str, target: str, body: Any = None) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {target} HTTP/1.1\r\nHost: {self._host}\r\n"
        if method != "GET":
            head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n"
        self.sock.sendall(f"{head}\r\n".encode() + data)

    def call(self, method: str, target: str, body: Any = None) -> bytes:
        self.send(method, target, body)
        return self.answer()

    def answer(self) -> bytes:
        """The body of the next response; raises BenchError unless its status is 2xx."""
        status = self._file.readline()
        length, chunked = 0, False
        while field := self._file.readline().strip().lower():
            name, _, value = field.partition(b":")
            length = int(value) if name == b"content-length" else length
            chunked = chunked or name == b"transfer-encoding"
        body = b"".join(iter(self._chunk, b"")) if chunked else self._file.read(length)
        if status[9:10] != b"2":
            raise BenchError(f"the answer was {status!r} {body[:200]!r}")
        return body

    def _chunk(self) -> bytes:
        size = int(self._file.readline(), 16)
        return self._file.read(size + 2)[:size]

    def close(self) -> None:
        self._file.close()
        self.sock.close()


class Stream(Connection):
    """An event stream."""

    def __init__(self, url: str, target: str) -> None:
        super().__init__(url)
        self.send("GET", target)
        head, self._framed, self._rest, self.found = b"", b"", b"", b""
        while not head.endswith(b"\r\n\r\n"):  # byte by byte: what follows are events
            head += self._received(1)
        if head[9:12] != b"200":
            raise BenchError(f"GET {target} was answered {head!r}")
        self._chunked = b"\r\ntransfer-encoding:" in head.lower()

    def wait(self, *marks: bytes) -> float:
        """Read until an event holds all of these; return when it came, and keep it in `found`.
        Later ones that came in the same piece are dropped."""
        while True:
            for line in self.feed(self._received(1 << 18)):
                if all(mark in line for mark in marks):
                    self.found = line
                    return time.monotonic()

    def skip(self, pause: float) -> None:
        """Drop what has come and what comes in so many seconds."""
        time.sleep(pause)
        while select.select([self.sock], [], [], 0)[0]:
            self.feed(self._received(1 << 18))

    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes of the stream; return the events that they complete."""
        *lines, self._rest = (self._rest + self._unframed(data)).split(b"\n")
        return [line for line in lines if line.startswith(b"data:")]

    def _unframed(self, data: bytes) -> bytes:
        """The content of the chunks that these bytes complete; the bytes if there are no chunks."""
        if not self._chunked:
            return data
        self._framed += data
        content = b""
        while (start := self._framed.find(b"\r\n") + 2) > 1:
            end = start + int(self._framed[: start - 2], 16)
            if len(self._framed) < end + 2:
                break
            content += self._framed[start:end]
            self._framed = self._framed[end + 2 :]
        return content

    def _received(self, size: int) -> bytes:
        data = self.sock.recv(size)
        if not data:
            raise BenchError("the event stream ended")
        return data


# For each stream its number of bytes and its events, each with the time when its last byte came.
Collected = list[tuple[int, list[tuple[float, bytes]]]]


class Collector:
    """Reads many streams, in a process of its own, until each has had an event with `mark`."""

    def __init__(self, streams: list[Stream], mark: bytes) -> None:
        fork = multiprocessing.get_context("fork")
        self._pipe, theirs = fork.Pipe(duplex=False)
        self.child = fork.Process(target=lambda: theirs.send(_collect(streams, mark)), daemon=True)
        self.child.start()
        theirs.close()

    def result(self) -> Collected:
        try:
            found: Collected = self._pipe.recv()
        except EOFError:
            raise BenchError("the reader of the event streams failed") from None
        return found


def _collect(streams: list[Stream], mark: bytes) -> Collected:
    poll = select.epoll()
    by_fd = {stream.sock.fileno(): (stream.sock.recv, [(0.0, b"")]) for stream in streams}
    for fd in by_fd:
        poll.register(fd, select.EPOLLIN)
    marked: set[int] = set()
    waiting = len(streams)
    while waiting and (ready := poll.poll(PATIENCE)):
        for fd, _ in ready:
            receive, seen = by_fd[fd]
            data = receive(1 << 18)
            if mark in seen[-1][1][-len(mark) :] + data:
                marked.add(fd)
            if not data or (fd in marked and data.endswith(b"\n")):  # not amid its line
                waiting -= 1
                poll.unregister(fd)
            seen.append((time.monotonic(), data))
    result = []
    for stream, (_, seen) in zip(streams, by_fd.values(), strict=True):
        events = [(at, line) for at, data in seen for line in stream.feed(data)]
        result.append((sum(len(data) for _, data in seen), events))
    return result
