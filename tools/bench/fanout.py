"""Fan-out: the daemon's event streams against a bare asyncio server that sends the same frames.

    python tools/bench/fanout.py                       # 10 and 100 streams, 5 interleaved rounds
    python tools/bench/fanout.py --streams 1000 --transport tcp

Each measurement is a fresh server process with N streams attached by this process. The producer
yields to the event loop after each event ("lone": no batching is possible, as with streamed text)
or not ("burst"). The bare server has no HTTP parser, no queue, no bounds and encodes nothing: it
writes ready-made frames to each transport, so it is a limit, not a peer. Rounds are interleaved and
medians are printed with their spread; the stable figure is the server's CPU time per delivery.
Every stream is checked to have received every event in order.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

MARK = b"\n\n"
PATIENCE = 120.0


def session_event(number: int) -> Any:
    from crushlite.protocol.sessions import Session

    return Session(id=f"{number:08d}", title="a session whose title is of ordinary length")


# The servers, each run as a child process -------------------------------------------------------


async def produce(publish: Any, events: int, lone: bool) -> dict[str, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    for number in range(events):
        publish(number)
        if lone:
            await asyncio.sleep(0)
    await asyncio.sleep(0)
    return {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}


async def wait_for_line() -> None:
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


async def serve_daemon(address: str, events: int, lone: bool) -> None:
    from crushlite.daemon import Daemon
    from crushlite.protocol.workspaces import CreateWorkspace

    async def agent(turn: Any) -> None:
        await turn.say("not used")

    daemon = Daemon(agent=agent, hosts=[address], auth="none")
    await daemon.start()
    with tempfile.TemporaryDirectory() as project:
        hosted = await daemon.backend.create(
            CreateWorkspace(path=project, client_id=str(uuid.uuid4()))
        )
        workspace = hosted.workspace
        report({"url": daemon.addresses[0].url, "path": f"/v1/workspaces/{workspace.id}/events"})
        await wait_for_line()
        publish = workspace.hub.publish
        figures = await produce(lambda n: publish("updated", session_event(n)), events, lone)
        report(await flushed(figures))
        await daemon.stop()


class Bare(asyncio.Protocol):
    clients: list[asyncio.Transport] = []

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        Bare.clients.append(self.transport)


async def serve_bare(address: str, events: int, lone: bool) -> None:
    from crushlite.protocol.codec import dumps
    from crushlite.protocol.events import to_json

    frames = [
        b"data: " + dumps(to_json("updated", session_event(number))) + MARK
        for number in range(events)
    ]
    loop = asyncio.get_running_loop()
    if address.startswith("unix://"):
        server: Any = await loop.create_unix_server(Bare, address.removeprefix("unix://"))
        url = address
    else:
        server = await loop.create_server(Bare, "127.0.0.1", 0)
        url = f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    report({"url": url, "path": "/"})
    await wait_for_line()

    def publish(number: int) -> None:
        frame = frames[number]
        for transport in Bare.clients:
            transport.write(frame)

    report(await flushed(await produce(publish, events, lone)))
    server.close()


async def flushed(figures: dict[str, float]) -> dict[str, float]:
    """What is still in transport buffers must be paid for too."""
    cpu = time.process_time()
    await wait_for_line()
    return {**figures, "cpu": figures["cpu"] + time.process_time() - cpu}


def report(value: object) -> None:
    print(json.dumps(value), flush=True)


# The reader -------------------------------------------------------------------------------------


def connect(url: str) -> socket.socket:
    if url.startswith("unix://"):
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(url.removeprefix("unix://"))
    else:
        host, _, port = url.removeprefix("tcp://").rpartition(":")
        sock = socket.create_connection((host, int(port)))
    return sock


def subscribe(server: dict[str, str], count: int) -> list[socket.socket]:
    host = server["url"].removeprefix("tcp://") if "tcp" in server["url"] else "localhost"
    sockets = []
    for _ in range(count):
        sock = connect(server["url"])
        target = f"{server['path']}?client_id={uuid.uuid4()}"
        sock.sendall(f"GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        head = b""
        while b"\r\n\r\n" not in head:
            head += sock.recv(4096)
        if b" 200 " not in head.split(b"\r\n")[0]:
            raise SystemExit(f"refused: {head!r}")
        sockets.append(sock)
    return sockets


def read_all(sockets: list[socket.socket], events: int) -> list[bytes]:
    """Everything each stream got, until all have all events."""
    selector = selectors.DefaultSelector()
    received = [bytearray() for _ in sockets]
    missing = [events] * len(sockets)
    for index, sock in enumerate(sockets):
        sock.setblocking(False)
        selector.register(sock, selectors.EVENT_READ, index)
    waiting = len(sockets)
    deadline = time.monotonic() + PATIENCE
    while waiting:
        if time.monotonic() > deadline:
            raise SystemExit("the events did not arrive")
        for key, _ in selector.select(1.0):
            index = key.data
            chunk = key.fileobj.recv(1 << 18)  # type: ignore[union-attr]
            received[index] += chunk
            missing[index] -= chunk.count(MARK)
            if missing[index] == 0:
                waiting -= 1
                selector.unregister(key.fileobj)
    return [bytes(data) for data in received]


def check(streams: list[bytes], events: int) -> None:
    numbers = [
        json.loads(frame.removeprefix(b"data: "))["payload"]["payload"]["id"]
        for frame in streams[0].split(MARK)
        if frame
    ]
    if numbers != [f"{number:08d}" for number in range(events)]:
        raise SystemExit("events are missing or out of order")
    if any(stream != streams[0] for stream in streams):
        raise SystemExit("the streams differ")


def measure(kind: str, streams: int, events: int, lone: bool, transport: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        address = f"unix://{folder}/s.sock" if transport == "unix" else "tcp://127.0.0.1:0"
        command = [sys.executable, __file__, "--serve", kind, address, str(events), str(int(lone))]
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        assert child.stdin is not None
        assert child.stdout is not None
        sockets = []
        try:
            pin(child.pid, 0)
            server = json.loads(child.stdout.readline())
            sockets = subscribe(server, streams)
            started = time.perf_counter()
            child.stdin.write("go\n")
            child.stdin.flush()
            check(read_all(sockets, events), events)
            elapsed = time.perf_counter() - started
            child.stdin.write("done\n")
            child.stdin.flush()
            cpu = json.loads(child.stdout.readline())["cpu"]
        finally:
            for sock in sockets:
                sock.close()
            child.kill()
            child.communicate()
    deliveries = streams * events
    return {"cpu_us": cpu / deliveries * 1e6, "per_s": deliveries / elapsed}


def pin(pid: int, core: int) -> None:
    """Server on one core, reader on another, where there are two."""
    if hasattr(os, "sched_setaffinity") and (os.cpu_count() or 1) > 1:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(pid, {core})


def spread(values: list[float], form: str) -> str:
    low, mid, high = min(values), statistics.median(values), max(values)
    return f"{mid:{form}} [{low:{form}}-{high:{form}}]"


def main() -> None:
    parser = argparse.ArgumentParser(description="fan-out of events against a bare server")
    parser.add_argument("--streams", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--events", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--transport", choices=("unix", "tcp"), nargs="+", default=["unix", "tcp"])
    options = parser.parse_args()
    pin(0, 1)
    print(f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores")
    print("CPU us per delivery (server) and deliveries/s: median [min-max] of", options.rounds)
    for transport in options.transport:
        for streams in options.streams:
            for lone in (True, False):
                results: dict[str, list[dict[str, float]]] = {"daemon": [], "bare": []}
                for _ in range(options.rounds):
                    for kind, rows in results.items():
                        rows.append(measure(kind, streams, options.events, lone, transport))
                name = f"{transport} N={streams} {'lone' if lone else 'burst'}"
                for kind, rows in results.items():
                    cpu = spread([row["cpu_us"] for row in rows], ".2f")
                    rate = spread([row["per_s"] / 1000 for row in rows], ".0f")
                    print(f"  {name:18} {kind:7} {cpu:22} us   {rate} k/s", flush=True)
                pairs = list(zip(results["bare"], results["daemon"], strict=True))
                by_cpu = spread([bare["cpu_us"] / ours["cpu_us"] for bare, ours in pairs], ".2f")
                by_rate = spread([ours["per_s"] / bare["per_s"] for bare, ours in pairs], ".2f")
                print(f"  {name:18} ratio   by CPU {by_cpu}, by rate {by_rate}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        kind, address, events, lone = sys.argv[2:6]
        serve = serve_daemon if kind == "daemon" else serve_bare
        asyncio.run(serve(address, int(events), lone == "1"))
    else:
        main()
