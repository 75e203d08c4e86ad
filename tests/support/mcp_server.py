"""A tool server with a switch for everything that real ones do wrong. Run as a program:

    python mcp_server.py [SWITCH[=VALUE] ...]

    modern          speaks the modern era only
    noisy           writes lines that are no messages, and a lot to standard error
    slow=SECONDS    answers nothing for so long
    never           answers nothing at all
    tools=N         has so many more tools, in pages of 100
    odd             has tools whose names and schemas are not as they should be
    child=FILE      starts a process in a session of its own, and writes its number to the file
    stubborn        ignores the end of its input, and SIGTERM
    exit=CODE       exits at once, after a last line to standard error
    late            has one more tool right after its tools were listed, and says so
    lives=FILE      appends a line to the file at each start
    flaky=FILE      exits at once if the file exists

It needs nothing but the standard library, and starts fast with `python -I -S`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

MODERN = "2026-07-28"
PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5E"
    "rkJggg=="
)


def scripted(*switches: str, **more: Any) -> dict[str, Any]:
    """The configuration of such a server."""
    return {"command": sys.executable, "args": ["-I", "-S", __file__, *switches], **more}


def schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


TEXT = {"type": "string"}
TOOLS: list[Any] = [
    {"name": "echo", "description": "Repeats a text", "inputSchema": schema(text=TEXT),
     "annotations": {"readOnlyHint": True}},
    {"name": "fail", "description": "Fails", "inputSchema": schema()},
    {"name": "giant", "description": "Says a lot", "inputSchema": schema()},
    {"name": "image", "description": "Draws", "inputSchema": schema()},
    {"name": "structured", "description": "Gives data", "inputSchema": schema()},
    {"name": "die", "description": "Dies in mid-call", "inputSchema": schema()},
    {"name": "hang", "description": "Never answers", "inputSchema": schema()},
    {"name": "learn", "description": "Gets one more tool", "inputSchema": schema()},
    {"name": "pid", "description": "Its process", "inputSchema": schema()},
    {"name": "ask", "description": "Wants input", "inputSchema": schema()},
]  # fmt: skip
ODD: list[Any] = [
    {"name": "x" * 90, "inputSchema": {"type": "object"}},
    {"name": "Über größe.tool/a b", "inputSchema": {"type": "object"}},
    {"name": "no schema"},
    {"name": "no type", "inputSchema": {"properties": {"a": True}}},
    {"name": "a list", "inputSchema": []},
    {"name": "a text", "inputSchema": {"type": "string"}},
    {"name": 7},
    {"name": ""},
    None,
]


class ScriptedServer:
    """Answers messages. `send` is called with each message of its own."""

    def __init__(self, switches: dict[str, str], send: Callable[[dict[str, Any]], None]) -> None:
        self.switches = switches
        self.send = send
        self.tools = list(TOOLS)
        if "odd" in switches:
            self.tools += ODD
        for number in range(int(switches.get("tools", 0))):
            about = f"does thing {number}"
            self.tools.append(
                {"name": f"tool{number}", "description": about, "inputSchema": schema(a=TEXT)}
            )
        self.seen: list[dict[str, Any]] = []
        self.listening: Any = None

    def handle(self, message: dict[str, Any]) -> None:
        self.seen.append(message)
        if "never" in self.switches or "id" not in message or "method" not in message:
            return
        answer = {"jsonrpc": "2.0", "id": message["id"]}
        try:
            result = self.result(message["method"], message.get("params") or {}, message["id"])
        except KeyError as error:
            answer["error"] = {"code": -32601, "message": f"unknown: {error}"}
        except ValueError as error:
            code, text, data = error.args
            answer["error"] = {"code": code, "message": text, "data": data}
        else:
            if result is None:
                return
            answer["result"] = result
        self.send(answer)
        if message["method"] == "tools/list" and self.switches.pop("late", None) is not None:
            self.learn()

    def learn(self) -> None:
        self.tools.append({"name": f"learnt{len(self.tools)}", "inputSchema": schema()})
        self.send({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})

    def result(self, method: str, params: dict[str, Any], number: Any) -> dict[str, Any] | None:
        modern = "modern" in self.switches
        if method == "initialize":
            if modern:
                raise ValueError(-32022, "Unsupported protocol version", {"supported": [MODERN]})
            return {
                "protocolVersion": params["protocolVersion"],
                "capabilities": self.capabilities(),
                "serverInfo": {"name": "scripted", "version": "1"},
                "instructions": "Call echo to be repeated.",
            }
        if modern:
            meta = params["_meta"]
            if meta["io.modelcontextprotocol/protocolVersion"] != MODERN:
                raise ValueError(-32022, "Unsupported protocol version", {"supported": [MODERN]})
        answer = self.answer(method, params, number)
        return answer if answer is None or not modern else {"resultType": "complete", **answer}

    def capabilities(self) -> dict[str, Any]:
        return {"tools": {"listChanged": True}, "prompts": {}, "resources": {}}

    def answer(self, method: str, params: dict[str, Any], number: Any) -> dict[str, Any] | None:
        if method == "server/discover":
            return {"supportedVersions": [MODERN], "capabilities": self.capabilities()}
        if method == "ping" and "modern" not in self.switches:
            return {}
        if method == "subscriptions/listen":
            self.listening = number
            return None
        if method == "tools/list":
            at = int(params.get("cursor") or 0)
            page = {"tools": self.tools[at : at + 100]}
            return page | ({"nextCursor": str(at + 100)} if at + 100 < len(self.tools) else {})
        if method == "prompts/list":
            argument = {"name": "what", "description": "what to look at", "required": True}
            return {"prompts": [{"name": "review", "title": "Review", "arguments": [argument]}]}
        if method == "prompts/get":
            text = f"Review {params['arguments']['what']}."
            return {"messages": [{"role": "user", "content": {"type": "text", "text": text}}]}
        if method == "resources/list":
            return {"resources": [{"uri": "mem://a", "name": "a", "mimeType": "text/plain"}]}
        if method == "resources/read":
            return {"contents": [{"uri": params["uri"], "mimeType": "text/plain", "text": "hello"}]}
        if method == "tools/call":
            return self.call(params["name"], params.get("arguments") or {})
        raise KeyError(method)

    def call(  # noqa: C901 - a table
        self, name: str, arguments: dict[str, Any]
    ) -> dict[str, Any] | None:
        def text(said: str, **more: Any) -> dict[str, Any]:
            return {"content": [{"type": "text", "text": said}], **more}

        if name == "echo":
            return text(arguments["text"])
        if name == "fail":
            return text("it did not work", isError=True)
        if name == "giant":
            return text("0123456789" * 300_000)
        if name == "image":
            return {"content": [{"type": "image", "mimeType": "image/png", "data": PNG}]}
        if name == "structured":
            return {"content": [], "structuredContent": {"answer": 42}}
        if name == "pid":
            return text(str(os.getpid()))
        if name == "die":
            sys.stderr.write("about to die\n")
            sys.stderr.flush()
            os._exit(3)
        if name == "hang":
            return None
        if name == "ask":
            return {"resultType": "input_required", "inputRequests": {}}
        if name == "learn":
            self.learn()
            return text("learnt")
        if name.startswith(("tool", "learnt")):
            return text(f"{name} ran")
        raise ValueError(-32602, f"Unknown tool: {name}", None)


def start_child(path: str) -> None:
    """Returns when the child is in its session and has written its number."""
    ready, begun = os.pipe()
    if os.fork() == 0:
        os.setsid()
        with open(path, "w") as file:
            file.write(str(os.getpid()))
        os.closerange(0, 3)
        os.close(begun)
        threading.Event().wait(1000)
        os._exit(0)
    os.close(begun)
    os.read(ready, 1)  # ends when the child closes its end


def main() -> None:  # noqa: C901 - a table of switches
    switches: dict[str, str] = {}
    for word in sys.argv[1:]:
        name, _, value = word.partition("=")
        switches[name] = value
    if "lives" in switches:
        with open(switches["lives"], "a") as file:
            file.write(f"{os.getpid()}\n")
    if "exit" in switches or os.path.exists(switches.get("flaky") or "/nowhere/at/all"):
        sys.stderr.write("a last line\n")
        sys.exit(int(switches.get("exit") or 1))
    if "stubborn" in switches:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "child" in switches:
        start_child(switches["child"])

    def send(message: dict[str, Any]) -> None:
        if "noisy" in switches:
            sys.stdout.write("[info] about to answer\n{not json\n[1, 2]\n\x1b[2K\n")
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()

    server = ScriptedServer(switches, send)
    if "noisy" in switches:
        sys.stdout.write("Server running on stdio\n")
        sys.stderr.write("log line\n" * 50_000)
    threading.Event().wait(float(switches.get("slow") or 0))
    for line in sys.stdin:
        server.handle(json.loads(line))
    while "stubborn" in switches:
        threading.Event().wait(1000)


if __name__ == "__main__":
    main()
