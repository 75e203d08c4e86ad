"""The shell lines that crushlite prints and shows are typed into a real shell. They use curl; on a
machine that has none, a stand-in with the few options they need takes its place.
"""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

STAND_IN = """
import socket, sys

def main(words):
    path, headers, method, data, url = "", [], "", None, ""
    while words:
        word = words.pop(0)
        if word == "--unix-socket":
            path = words.pop(0)
        elif word in ("-H", "-X", "-d"):
            value = words.pop(0)
            headers += [value] if word == "-H" else []
            method = value if word == "-X" else method
            data = value.encode() if word == "-d" else data
        elif not word.startswith("-"):
            url = word
    host, _, target = url.removeprefix("http://").partition("/")
    if path:
        line = socket.socket(socket.AF_UNIX)
        line.connect(path)
    else:
        name, _, port = host.rpartition(":")
        line = socket.create_connection((name.strip("[]"), int(port)))
    method = method or ("POST" if data is not None else "GET")
    head = [f"{method} /{target} HTTP/1.1", f"Host: {host}", "Connection: close", *headers]
    head += [f"Content-Length: {len(data)}"] if data is not None else []
    line.sendall(("\\r\\n".join(head) + "\\r\\n\\r\\n").encode() + (data or b""))
    seen = b""
    while b"\\r\\n\\r\\n" not in seen:
        chunk = line.recv(65536)
        if not chunk:
            sys.exit(52)
        seen += chunk
    chunk = seen.partition(b"\\r\\n\\r\\n")[2]
    while True:
        sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()
        chunk = line.recv(65536)
        if not chunk:
            return

try:
    main(sys.argv[1:])
except OSError as error:
    sys.exit(f"curl: {error}")
"""


def path_with_curl(folder: Path, *, stand_in: bool = False) -> str:
    """A PATH on which there is a curl: the machine's own, or the stand-in put into `folder`."""
    path = os.environ.get("PATH", os.defpath)
    if shutil.which("curl") is not None and not stand_in:
        return path
    (folder / "curl.py").write_text(STAND_IN)
    script = folder / "curl"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{folder}/curl.py" "$@"\n')
    script.chmod(0o755)
    return f"{folder}{os.pathsep}{path}"
