"""A whole life of a daemon in one script, for copies of the package: under any name, with or
without wings, from a folder or from a zip archive.

    python smoke.py serve PACKAGE SOCKET [core]    a daemon with an own agent; `core`: without wings
    python smoke.py try PACKAGE FOLDER [core]      starts that, and does everything with it:
                                                   a prompt seen by two clients, a cancel, kill -9,
                                                   a restart; prints what it has seen, as JSON

Only the standard library and the package itself are used.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
from typing import Any

PATIENCE = 60.0


async def agent(turn: Any) -> None:
    """Answers, or hangs if the prompt says so."""
    await turn.say("You said: " + turn.prompt)
    if turn.prompt == "hang":
        await asyncio.Event().wait()


def serve(package: str, socket: str, *core: str) -> None:
    daemon = importlib.import_module(f"{package}.daemon")
    wings: dict[str, Any] = {"wings": []} if core else {}
    daemon.Daemon(agent=agent, hosts=[f"unix://{socket}"], **wings).run()


class Server:
    """A daemon in a process of its own."""

    def __init__(self, package: str, socket: str, *core: str) -> None:
        command = [sys.executable, "-P", __file__, "serve", package, socket, *core]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        self.told = self._process.stderr.readline().strip()  # it writes its address when it serves
        if self.told.startswith("Traceback"):
            raise AssertionError(f"the daemon did not start: {self._process.stderr.read()}")

    def kill(self, number: int) -> int:
        self._process.send_signal(number)
        return self._process.wait(PATIENCE)


async def attempt(package: str, folder: str, *core: str) -> dict[str, Any]:
    client_of = importlib.import_module(f"{package}.client").Client
    socket, project = os.path.join(folder, "s"), os.path.join(folder, "project")
    os.makedirs(project, exist_ok=True)
    seen: dict[str, Any] = {}
    server = Server(package, socket, *core)
    seen["address"] = server.told
    async with client_of(f"unix://{socket}") as anna, client_of(f"unix://{socket}") as bert:
        here, there = await anna.create(project), await bert.create(project)
        async with there.events() as events:
            session = await here.create_session("smoke")
            await here.prompt(session.id, "hello", run_id="one")
            seen["answer"] = (await _ending(events, "one")).text
            await here.prompt(session.id, "hang", run_id="two")
            await _saying(events, "You said: hang")
            receipt = await there.cancel(session.id, wait=PATIENCE)
            seen["canceled"] = [(hit.run_id, hit.was) for hit in receipt.canceled]
            seen["outcome"] = (await here.run("two")).outcome
            await here.prompt(session.id, "hang", run_id="three")
            await _saying(events, "You said: hang")
            server.kill(signal.SIGKILL)
            server = Server(package, socket, *core)
            seen["resumed"] = await _until(events, ("recovered", "resync"))
        again = await anna.create(project)
        runs = await again.runs(session.id)
        seen["runs"] = [(run.run_id, run.outcome) for run in runs]
        messages = await again.messages(session.id)
        seen["prompts"] = [message.text for message in messages if message.role == "user"]
        seen["left"] = (await again.ask("still there?", session.id)).text
    seen["exit"] = server.kill(signal.SIGTERM)
    return seen


async def _ending(events: Any, run_id: str) -> Any:
    async for event in events:
        if event.kind == "run_complete" and event.payload.run_id == run_id:
            return event.payload
    raise AssertionError(f"run {run_id} never ended")


async def _saying(events: Any, text: str) -> None:
    async for event in events:
        if event.kind == "message" and event.payload.text == text:
            return
    raise AssertionError(f"nobody said {text!r}")


async def _until(events: Any, kinds: tuple[str, ...]) -> list[str]:
    """The kinds that came, up to the last of these."""
    found: list[str] = []
    async for event in events:
        if event.kind in kinds:
            found.append(event.kind)
        if set(found) == set(kinds):
            break
    return sorted(set(found))


async def _try(package: str, folder: str, *core: str) -> None:
    async with asyncio.timeout(PATIENCE):
        sys.stdout.write(json.dumps(await attempt(package, folder, *core)))


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    with contextlib.suppress(KeyboardInterrupt):
        if what == "serve":
            serve(*arguments)
        else:
            asyncio.run(_try(*arguments))
