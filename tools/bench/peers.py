"""The other processes of the benchmark: `peers.py model`, `peers.py asyncio|starlette URL`.

The model prints its address and answers until its input ends, at once, from bytes made beforehand.
It says a word; after `@deltas N` N words in N pieces; after `@size` how many bytes the request had;
after `@hold` it never ends.

The toy servers are fixed points: health, a workspace, sessions whose creation is published, prompts
that get their 202 and are published as ended at once, and the event stream. They store and bound
nothing. Bare asyncio is a limit; uvicorn with starlette is the usual way to write such a server.
"""

import asyncio
import itertools
import json
import re
import sys
from pathlib import Path
from typing import Any

COMMAND = re.compile(r"@(hold|deltas|size) ?(\d*)")
NUMBERS = itertools.count()


async def serve_model() -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from crushlite.fake_model import FakeModel, ModelCall
    from crushlite.fake_model.dialects import ChatDialect, Counts

    chat = ChatDialect({"model": "fake-large"})
    word, end = chat.text("Lorem "), chat.finish("stop", Counts(10, 5))

    class InstantModel(FakeModel):
        def arrived(self, method: str, call: ModelCall) -> None:
            messages = call.request.get("messages") or [""]
            found = COMMAND.search(json.dumps(messages[-1])) if call.request.get("tools") else None
            command, number = found.groups() if found else ("", "")
            said = chat.text(str(len(call.body))) if command == "size" else word
            for _ in range(int(number or 1)):
                call.raw(said)
            if command != "hold":
                call.raw(end)
                call.end()

    async with InstantModel() as model:
        print(model.base_url, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


def post(path: str, body: bytes) -> tuple[int, bytes, bytes]:
    """What a toy server does with a POST: the status, the answer and the event to publish."""
    if path.endswith("/workspaces"):
        return 200, b'{"id":"w"}', b""
    asked = json.loads(body)
    if path.endswith("/sessions"):
        made = {"id": str(next(NUMBERS)), "title": asked["title"], "message_count": 0}
        return 200, json.dumps(made).encode(), event("session", "created", made)
    ended = {"run_id": asked["run_id"], "session_id": asked["session_id"], "text": ""}
    return 202, b"", event("run_complete", "updated", ended)


def event(kind: str, action: str, payload: dict[str, Any]) -> bytes:
    document = {"type": kind, "payload": {"type": action, "payload": payload}}
    return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"


class Bare(asyncio.Protocol):
    """Takes requests that come in one piece, as the benchmark's client sends them."""

    streams: set[asyncio.Transport] = set()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.streams.discard(self.transport)

    def data_received(self, data: bytes) -> None:
        head, _, body = data.partition(b"\r\n\r\n")
        method, target = head.split(b" ", 2)[:2]
        if method == b"GET" and b"/events" in target:
            self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
            self.streams.add(self.transport)
            return
        status, answer, frame = (200, b"", b"") if method == b"GET" else post(target.decode(), body)
        head = b"HTTP/1.1 %d OK\r\nContent-Length: %d\r\n\r\n" % (status, len(answer))
        self.transport.write(head + answer)
        for stream in self.streams if frame else ():
            stream.write(frame)


async def serve_bare(unix: str | None, host: str, port: int) -> None:
    loop = asyncio.get_running_loop()
    tcp = loop.create_server(Bare, host, port)
    server = await (loop.create_unix_server(Bare, unix) if unix else tcp)
    await server.serve_forever()


def serve_starlette(unix: str | None, host: str, port: int) -> None:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.responses import Response, StreamingResponse
    from starlette.routing import Route

    queues: set[asyncio.Queue[bytes]] = set()

    async def health(request: Any) -> Response:
        return Response()

    async def publish(request: Any) -> Response:
        status, answer, frame = post(request.url.path, await request.body())
        for queue in queues if frame else ():
            queue.put_nowait(frame)
        return Response(answer, status)

    async def frames(queue: asyncio.Queue[bytes]) -> Any:
        try:
            while True:
                yield await queue.get()
        finally:
            queues.discard(queue)

    async def events(request: Any) -> Response:
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        queues.add(queue)
        return StreamingResponse(frames(queue), media_type="text/event-stream")

    routes = [Route("/v1/health", health), Route("/v1/workspaces/{w}/events", events)]
    app = Starlette(routes=[*routes, Route("/{path:path}", publish, methods=["POST"])])
    uvicorn.run(app, uds=unix, host=host, port=port, log_level="warning", http="h11")


if __name__ == "__main__":
    kind, url = (*sys.argv[1:], "")[:2]
    unix, (host, _, port) = url.partition("unix://")[2], url[6:].rpartition(":")
    where = (unix or None, host, 0 if unix else int(port or 0))
    if kind == "starlette":
        serve_starlette(*where)
    else:
        asyncio.run(serve_model() if kind == "model" else serve_bare(*where))
