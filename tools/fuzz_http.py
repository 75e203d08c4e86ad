"""Send mutated HTTP requests over real sockets, unix and TCP, and see that the daemon bears it.

    python tools/fuzz_http.py --requests 100000 --seed 1

Requests are pipelined in batches, each drawn from every route with damaged request lines, headers,
lengths, chunks, smuggled second requests, floods of headers and single bytes, and sent in pieces:
some byte by byte. There must be no 500, no traceback in the log, no health check that needs more
than 100 ms (see fuzz_target.py), and the daemon must be alive at the end. Exit 1 otherwise, with
the seed and the number of the batch, which `--only` repeats.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import random
import socket
import sys
import time
from collections import Counter

from fuzz_target import CLIENT, Finding, Target, statuses

from crushlite.api.routes import whole_table
from crushlite.wings import standard_wings

STALL = 0.1
WORKSPACE = "{workspace}"
COSTLY = ("/v1/openapi.json", "/v1/metrics", "/v1/web", "/v1/workspaces")  # drawn rarely
METHODS = ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "get", "G ET", "")
VERSIONS = ("HTTP/1.1",) * 12 + ("HTTP/1.0", "HTTP/1.2", "HTTP/2.0", "http/1.1", "HTTP/1.1 ", "")
TARGETS = (
    *("*", "", "/", "//", "/v1", "/v1/", "/%", "/%zz", "/%00", "/v1/%2e%2e/health", "/v1//health"),
    *(
        "http://x/v1/health",
        "http://evil/",
        "https://x/",
        "/v1/health#f",
        "/v1/health?%",
        "/?a=%ff",
    ),
    *("/v1/health?verbose=1", "/\xe9", "/v1/health?" + "a=b&" * 300, "/" + "x" * 9000, "ftp:"),
    *("/v1/../v1/health", "/./v1/health", "/v1/health;x", "/v1/health ", "\t/v1/health", "?a"),
    *("/console/main.js", "/console/..%2fwing.py", "/v1/openapi.json", "/v1/metrics"),
)
ODD = (
    *("X: y", "X : y", " X: y", "X", ": y", "X:", "X:\x00", "X: \x1b[2J", "X: \xe9", "X\xe9: y"),
    *("Connection: close", "Connection: keep-alive, close", "Connection: upgrade", "Upgrade: h2c"),
    *("Expect: 100-continue", "Expect: 200-ok", "Host: evil", "Host:", "Host: x\r\nHost: y"),
    *("Origin: null", "Origin: http://evil", "Sec-Fetch-Site: cross-site", "Cookie: a=b"),
    *("Authorization: Bearer x", "Authorization: Basic eA==", "Authorization:", "Range: bytes=0-1"),
    *("If-None-Match: *", "Last-Event-ID: 1", "Last-Event-ID: \xff", "TE: trailers", "X:\r\n y"),
    *("Content-Type: text/plain", "Content-Encoding: gzip", "Transfer-Encoding: identity"),
    *(
        "Trailer: X",
        "Proxy-Connection: x",
        "HTTP2-Settings: x",
        "X-Forwarded-Host: evil",
        "\x7f: x",
    ),
)
# Answered or refused without an end of the connection.
MILD_TARGETS = (
    *("/", "//", "/v1", "/v1/", "/v1//health", "/v1/../v1/health", "/./v1/health", "/v1/health;x"),
    *("/v1/health?verbose=1", "/v1/health?&&=", "/v1/health?" + "a=b&" * 300, "/" + "x" * 7000),
    *(
        "/v1/%2e%2e/health",
        "/v1/%2Fhealth",
        "/console/..%2fwing.py",
        "/v1/workspaces?x=%f0%9f%98%80",
    ),
)
MILD = (
    *(
        "X: y",
        "X:",
        "X: \xe9",
        "Cookie: a=b",
        "Range: bytes=0-1",
        "If-None-Match: *",
        "TE: trailers",
    ),
    *("Origin: null", "Origin: http://evil", "Sec-Fetch-Site: cross-site", "Upgrade: h2c"),
    *("Authorization: Bearer x", "Authorization: Basic eA==", "Authorization:", "Last-Event-ID: 1"),
    *("Content-Type: text/plain", "Content-Encoding: gzip", "Expect: 100-continue", "Trailer: X"),
    *(
        "Proxy-Connection: x",
        "X-Forwarded-Host: evil",
        "Accept: " + "x, " * 200,
        "Connection: upgrade",
    ),
)
LENGTHS = (
    *("+5", "-1", "0x5", "5,5", "5 5", "5;", "", " ", "00005", "5_0", "1e3", "99999999999"),
    *("18446744073709551616", "9" * 400, "5\r\nContent-Length: 6", "5\r\nContent-Length: 5"),
)
CODINGS = (
    *("chunked", "Chunked", "chunked, chunked", "gzip, chunked", "chunked, gzip", "xchunked"),
    *(
        "identity",
        "chunked;q=1",
        "\tchunked",
        "chunked\r\nTransfer-Encoding: chunked",
        "",
        "\x0bchunked",
    ),
)
CHUNKS = (
    *(b"5\r\nhello\r\n0\r\n\r\n", b"5;x=y\r\nhello\r\n0\r\n\r\n", b"0\r\n\r\n", b"-1\r\n\r\n"),
    *(
        b"5\nhello\n0\n\n",
        b"ffffffffffffffff\r\n",
        b"5\r\nhelloX\r\n0\r\n\r\n",
        b"0x5\r\nhello\r\n",
    ),
    *(b"5\r\nhello\r\n0\r\nX: y\r\n\r\n", b"0\r\nContent-Length: 5\r\n\r\n", b" 5\r\nhello\r\n"),
    *(
        b"1\r\nx\r\n" * 50 + b"0\r\n\r\n",
        b"5;" + b"x" * 5000 + b"\r\nhello\r\n0\r\n\r\n",
        b"zz\r\n",
    ),
    *(b"2\r\n{}\r\n0\r\n\r\n", b"1\r\n{\r\n1\r\n}\r\n0\r\n\r\n", b"", b"\r\n", b"5\r\nhel"),
)
BODIES = (
    b"{}",
    b"",
    b"[",
    b"null",
    b'{"a":1}',
    b'{"command":"x"}',
    b"\x00",
    b"x" * 300,
    b"{" * 200,
)


class Batches:
    """Draws batches of requests. The same seed and number give the same bytes."""

    def __init__(self, target: Target, seed: int) -> None:
        self._seed = seed
        self._token = target.token
        self._hosts = {True: f"127.0.0.1:{target.port}", False: "x"}
        self._workspace = target.workspace
        self._routes = []
        for entry in whole_table(standard_wings()):
            path = entry.pattern.replace("{id}", WORKSPACE).replace("{sid}", "nowhere")
            path = path.replace("{", "x").replace("}", "")
            if path.endswith("/events"):
                path += f"?client_id={CLIENT[:-1]}0"  # would be answered with a stream
            self._routes += [(entry.method, path)] * (1 if path in COSTLY else 20)

    def draw(self, number: int) -> tuple[random.Random, bool, list[bytes]]:
        """The dice, whether it goes over TCP, and the requests."""
        dice = random.Random(f"{self._seed}:{number}")
        tcp = dice.random() < 0.5
        requests = [self._request(dice, tcp) for _ in range(dice.randrange(4, 40))]
        if dice.random() < 0.9:
            requests[-1] = self._damaged(dice, tcp)
        return dice, tcp, requests

    def _line(self, dice: random.Random) -> str:
        method, path = dice.choice(self._routes)
        # Mostly one that does not exist: this is about HTTP, not about what workspaces do.
        workspace = self._workspace if dice.random() < 0.02 else "nowhere"
        return f"{method} {path.replace(WORKSPACE, workspace)} HTTP/1.1"

    def _headers(self, dice: random.Random, tcp: bool) -> list[str]:
        lines = [f"Host: {self._hosts[tcp]}"]
        if tcp and dice.random() < 0.7:
            lines.append(f"Authorization: Bearer {self._token}")
        return lines

    def _request(self, dice: random.Random, tcp: bool) -> bytes:
        """A request that ends where it says, so that more can follow on the connection."""
        lines = [self._line(dice), *self._headers(dice, tcp)]
        chance = dice.random()
        if chance < 0.3:
            lines[0] = f"{dice.choice(METHODS[:4])} {dice.choice(MILD_TARGETS)} HTTP/1.1"
        if chance > 0.6:
            odd = dice.choice(MILD)
            if not (odd.startswith("Host") and tcp):  # two of them are malformed
                lines.insert(dice.randrange(1, len(lines) + 1), odd)
        body = dice.choice(BODIES)
        if dice.random() < 0.2:
            lines.append("Transfer-Encoding: chunked")
            body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
        elif body:
            lines.append(f"Content-Length: {len(body)}")
        return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + body

    def _damaged(self, dice: random.Random, tcp: bool) -> bytes:
        lines, body = [self._line(dice), *self._headers(dice, tcp)], dice.choice(BODIES)
        kind = dice.randrange(10)
        end = "\r\n"
        if kind == 0:
            lines[0] = f"{dice.choice(METHODS)} {dice.choice(TARGETS)} {dice.choice(VERSIONS)}"
        elif kind == 1:
            lines += dice.choices(ODD, k=dice.choice((1, 2, 5, 96, 97, 98, 99, 100, 500)))
        elif kind == 2:
            lines.append(f"Content-Length: {dice.choice(LENGTHS)}")
        elif kind == 3:
            lines.append(f"Transfer-Encoding: {dice.choice(CODINGS)}")
            body = dice.choice(CHUNKS)
        elif kind == 4:  # two framings, and a second request inside the first
            lines += ["Transfer-Encoding: chunked", f"Content-Length: {dice.randrange(60)}"]
            dice.shuffle(lines[1:])
            body = dice.choice(CHUNKS) + self._request(dice, tcp)
        elif kind == 5:
            end = dice.choice(("\n", "\r", "\r\r\n", "\r\n\n", "\n\r"))
        elif kind == 6:
            lines.append("X: " + "y" * dice.choice((100, 8000, 32_000, 33_000, 60_000)))
        elif kind == 7:
            lines += ["Transfer-Encoding: chunked"]
            body = dice.choice(CHUNKS)
        elif kind == 8:
            lines.append(f"Content-Length: {len(body) + dice.choice((-1, 1, 3, 1000))}")
        raw = end.join([*lines, "", ""]).encode("latin-1", "replace") + body
        return self._mangled(dice, raw) if kind == 9 or dice.random() < 0.3 else raw

    @staticmethod
    def _mangled(dice: random.Random, raw: bytes) -> bytes:
        for _ in range(dice.choice((1, 1, 1, 2, 8))):
            at = dice.randrange(len(raw) + 1)
            kind = dice.randrange(5)
            if kind == 0:
                raw = raw[:at] + bytes([dice.randrange(256)]) + raw[at + 1 :]
            elif kind == 1:
                raw = raw[:at] + dice.randbytes(dice.choice((1, 2, 9))) + raw[at:]
            elif kind == 2:
                raw = raw[:at] + raw[at + dice.choice((1, 2, 20)) :]
            elif kind == 3:
                raw = raw[:at] + raw[max(0, at - 30) : at] + raw[at:]
            else:
                raw = raw[:at]
        return raw


def send(sock: socket.socket, dice: random.Random, raw: bytes) -> None:
    """Send in one piece, in some, or byte by byte."""
    way = dice.random()
    if way < 0.9:
        sock.sendall(raw)
    elif way < 0.99 or len(raw) > 3000:
        cuts = sorted(dice.randrange(len(raw) + 1) for _ in range(dice.randrange(1, 4)))
        for begin, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
            sock.sendall(raw[begin:end])
    else:
        for at in range(len(raw)):
            sock.sendall(raw[at : at + 1])


def one_batch(
    target: Target, batches: Batches, number: int, left_open: list[socket.socket]
) -> tuple[int, list[int]]:
    """Send a batch and read what comes back; returns how many requests were read by the daemon,
    and the statuses. Raises Finding for a 500."""
    dice, tcp, requests = batches.draw(number)
    raw, received = b"".join(requests), b""
    sock = target.connect(tcp=tcp)
    try:
        send(sock, dice, raw)
        if dice.random() < 0.02:  # stays as it is, until others have taken its place
            left_open.append(sock)
            if len(left_open) > 200:
                left_open.pop(dice.randrange(len(left_open))).close()
            return 1, []
        sock.shutdown(socket.SHUT_WR)
        while piece := sock.recv(1 << 16):
            received += piece
    except TimeoutError:
        raise Finding(f"batch {number}: no end of the answers: {received[-200:]!r}") from None
    except OSError:
        pass  # it was refused and closed while we were still sending
    if sock not in left_open:
        sock.close()
    found = statuses(received)
    if 500 in found:
        raise Finding(f"batch {number}: a 500: {received[-2000:]!r}")
    # What follows a request that ended the connection does not count. Of one that is not answered
    # the daemon has read at least the beginning.
    return max(1, sum(status != 100 for status in found)), found


def run(
    requests: int, seed: int, stall: float, seconds: float = math.inf, only: int | None = None
) -> int:
    started, sent, number = time.perf_counter(), 0, 0
    seen: Counter[int] = Counter()
    left_open: list[socket.socket] = []
    try:
        with Target() as target:
            batches = Batches(target, seed)
            target.start_probe()
            number = only or 0
            while sent < requests and time.perf_counter() - started < seconds:
                count, found = one_batch(target, batches, number, left_open)
                sent += count
                seen.update(found)
                number += 1
                if only is not None:
                    break
                if number % 5000 == 0:
                    rate = sent / (time.perf_counter() - started)
                    print(f"{sent} requests, {rate:.0f}/s", flush=True)
            for sock in left_open:
                with contextlib.suppress(OSError):
                    sock.close()
            figures = target.stop_probe()
    except Finding as finding:
        print(f"seed {seed}: {finding}")
        return 1
    took = time.perf_counter() - started
    print(f"{sent} requests in {number} batches, seed {seed}: {took:.0f} s, {sent / took:.0f}/s")
    print(f"answers: {dict(sorted(seen.items()))}")
    print(
        f"health: {figures['probes']:.0f} probes, worst {figures['worst'] * 1000:.0f} ms, without "
        f"waiting for a processor {figures['net_worst'] * 1000:.0f} ms"
    )
    if stall and figures["net_worst"] > stall:
        print(f"{figures['slow']:.0f} probes took more than {stall * 1000:.0f} ms")
        return 1
    return 0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--stall", type=float, default=STALL, help="seconds; 0: not checked")
    parser.add_argument("--seconds", type=float, default=math.inf, help="end then at the latest")
    parser.add_argument("--only", type=int, help="the number of one batch")
    options = parser.parse_args(argv)
    return run(options.requests, options.seed, options.stall, options.seconds, options.only)


if __name__ == "__main__":
    sys.exit(main())
