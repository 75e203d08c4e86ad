"""A language server for tests, started as a program of its own. Its arguments are switches.

It finds an error in each line with BAD and a warning in each with WARN; `def NAME` defines a name.

    log=FILE     append the methods that it gets
    mute         never say what is wrong
    late=N       wait so many seconds before saying what is wrong
    early        say first that all is well
    stall        never answer `initialize`
    dies         exit when a file is opened
    deaf         read nothing more when a file is opened
    fails        exit at once, with a message on standard error
    noisy        write text between the messages, and much to standard error
    flood=KIND   send notifications, requests or noise without an end when a file is opened
    huge         report each mistake 2,000 times
    rude         ask for things that no client knows, and ignore `shutdown`
    spawn        start a child that outlives it
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
import threading
from typing import Any

SWITCHES = dict(argument.partition("=")[::2] for argument in sys.argv[1:])
TEXTS: dict[str, str] = {}
NUMBERS = itertools.count()


def send(message: dict[str, Any]) -> None:
    body = json.dumps({"jsonrpc": "2.0", **message}).encode()
    if "noisy" in SWITCHES:
        sys.stdout.buffer.write(b"a line of a log\n")
        os.write(2, b"warning: " + b"x" * 10_000 + b"\n")
    sys.stdout.buffer.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
    sys.stdout.buffer.flush()


def notify(method: str, **params: Any) -> None:
    send({"method": method, "params": params})


def receive() -> dict[str, Any]:
    length = 0
    while line := sys.stdin.buffer.readline().strip():
        name, _, value = line.partition(b":")
        length = int(value) if name.lower() == b"content-length" else length
    if not length:
        sys.exit(0)
    return dict(json.loads(sys.stdin.buffer.read(length)))


def place(line: int, start: int, end: int) -> dict[str, Any]:
    return {"start": {"line": line, "character": start}, "end": {"line": line, "character": end}}


def publish(uri: str, version: int) -> None:
    if "mute" in SWITCHES:
        return
    if "early" in SWITCHES:
        notify("textDocument/publishDiagnostics", uri=uri, version=version, diagnostics=[])
    threading.Event().wait(float(SWITCHES.get("late") or 0))
    found = [
        {"range": place(number, 0, 1), "severity": severity, "message": line, "source": "test"}
        for number, line in enumerate(TEXTS[uri].split("\n"))
        for severity, word in ((1, "BAD"), (2, "WARN"))
        if word in line
    ]
    if "huge" in SWITCHES:
        found *= 2_000
    notify("textDocument/publishDiagnostics", uri=uri, version=version, diagnostics=found)


def occurrences(name: str) -> list[dict[str, Any]]:
    return [
        {"uri": uri, "range": place(number, match.start(), match.end())}
        for uri, text in TEXTS.items()
        for number, line in enumerate(text.split("\n"))
        for match in re.finditer(rf"\b{name}\b", line)
    ]


def word_at(params: dict[str, Any]) -> str:
    position = params["position"]
    line = TEXTS[params["textDocument"]["uri"]].split("\n")[position["line"]]
    found = re.match(r"\w+", line[position["character"] :])
    return found[0] if found else ""


def answer(method: str, params: dict[str, Any]) -> Any:
    if method == "initialize":
        while "stall" in SWITCHES:
            threading.Event().wait(60)
        return {"capabilities": {}}
    if method == "textDocument/references":
        return occurrences(word_at(params))
    if method == "textDocument/definition":
        name = word_at(params)
        return [each for each in occurrences(name) if f"def {name}" in line_of(each)]
    if method == "textDocument/documentSymbol":
        text = TEXTS[params["textDocument"]["uri"]]
        return [
            {"name": match[1], "kind": 12, "range": place(text[: match.start()].count("\n"), 0, 1)}
            for match in re.finditer(r"def (\w+)", text)
        ]
    if method == "textDocument/rename":
        changes: dict[str, list[Any]] = {}
        for each in occurrences(word_at(params)):
            edit = {"range": each["range"], "newText": params["newName"]}
            changes.setdefault(each["uri"], []).append(edit)
        return {"changes": changes}
    return None


def line_of(found: dict[str, Any]) -> str:
    line: int = found["range"]["start"]["line"]
    return TEXTS[found["uri"]].split("\n")[line]


def told(method: str, params: dict[str, Any]) -> None:
    if method == "initialized" and "rude" in SWITCHES:
        send({"id": "a", "method": "window/workDoneProgress/create", "params": {"token": "t"}})
        send({"id": "b", "method": "what/is/this", "params": {}})
        send(
            {
                "id": "c",
                "method": "workspace/configuration",
                "params": {"items": [{"section": "a.b"}]},
            }
        )
    if method == "exit":
        sys.exit(0)
    if method == "textDocument/didOpen":
        document = params["textDocument"]
        TEXTS[document["uri"]] = document["text"]
        if "dies" in SWITCHES:
            sys.exit(1)
        while "deaf" in SWITCHES:
            threading.Event().wait(60)
        while kind := SWITCHES.get("flood"):
            flood(kind)
        publish(document["uri"], document["version"])
    elif method == "textDocument/didChange":
        document = params["textDocument"]
        TEXTS[document["uri"]] = params["contentChanges"][0]["text"]
        publish(document["uri"], document["version"])
    elif method == "textDocument/didClose":
        del TEXTS[params["textDocument"]["uri"]]


def flood(kind: str) -> None:
    if kind == "notifications":
        notify("window/logMessage", message="x" * 100)
    elif kind == "requests":
        send({"id": next(NUMBERS), "method": "workspace/configuration", "params": {"items": []}})
    else:
        sys.stdout.buffer.write(b"a line of a log\n")


def main() -> None:
    if "fails" in SWITCHES:
        sys.exit("cannot find my configuration")
    if "spawn" in SWITCHES:
        subprocess.Popen(["sleep", SWITCHES["spawn"]], start_new_session=True)
    while True:
        message = receive()
        method = str(message.get("method", "answer"))
        if "log" in SWITCHES:
            with open(SWITCHES["log"], "a") as file:
                file.write(json.dumps([method, message.get("result"), message.get("error")]) + "\n")
        if method == "answer":
            continue
        if "id" not in message:
            told(method, message.get("params") or {})
        elif not (method == "shutdown" and "rude" in SWITCHES):
            send({"id": message["id"], "result": answer(method, message.get("params") or {})})


if __name__ == "__main__":
    main()
