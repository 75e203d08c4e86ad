"""A whole life of a daemon in one script, for copies of the package: under any name, with or
without wings, from a folder or from a zip archive.

    python smoke.py PACKAGE FOLDER [core] [command]

Two clients and a daemon with an own agent: a prompt seen by both, a cancel, kill -9, a restart.
`core`: the daemon has no wings. `command`: afterwards `run` finds no daemon, starts one and gets an
answer, and `stop` ends that. Prints what it has seen, as JSON. Only the standard library and the
package itself are used.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import io
import json
import os
import signal
import sys
import traceback
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Coroutine

PATIENCE = 60.0


async def agent(turn: Any) -> None:
    """Answers, or hangs if the prompt says so."""
    await turn.say("You said: " + turn.prompt)
    if turn.prompt == "hang":
        await asyncio.Event().wait()


class Server:
    """A daemon in a process of its own, forked at once and serving once it is started: an
    interpreter that imports the daemon takes longer than all that is done with it here."""

    def __init__(self, daemon: Any, socket: str, options: Container[str]) -> None:
        wanted, self._start = os.pipe()
        told, telling = os.pipe()
        self._stderr = os.fdopen(told)
        self._pid = os.fork()
        if self._pid == 0:
            os.dup2(telling, 2)
            os.close(self._start)
            code = 1
            try:
                if os.read(wanted, 1):  # else nobody needs it any more
                    wings: dict[str, Any] = {"wings": []} if "core" in options else {}
                    daemon(agent=agent, hosts=[f"unix://{socket}"], **wings).run()
                    code = 0
            except BaseException:  # noqa: BLE001 - this process ends here, whatever it was
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(wanted)
        os.close(telling)

    def start(self) -> str:
        """Let it serve; returns its address, as it writes it."""
        os.write(self._start, b"!")
        said = self._stderr.readline().strip()
        if said.startswith("Traceback"):
            raise AssertionError(f"the daemon did not start: {self._stderr.read()}")
        return said

    def kill(self, number: int) -> int:
        os.kill(self._pid, number)
        _, status = os.waitpid(self._pid, 0)
        self._stderr.close()
        return os.waitstatus_to_exitcode(status)


async def attempt(client_of: Any, folder: str, server: Server, another: Server) -> dict[str, Any]:
    socket, project = os.path.join(folder, "s"), os.path.join(folder, "project")
    os.makedirs(project, exist_ok=True)
    seen: dict[str, Any] = {}
    seen["address"] = server.start()
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
            another.start()
            seen["resumed"] = await _until(events, ("recovered", "resync"))
        again = await anna.create(project)
        runs = await again.runs(session.id)
        seen["runs"] = [(run.run_id, run.outcome) for run in runs]
        messages = await again.messages(session.id)
        seen["prompts"] = [message.text for message in messages if message.role == "user"]
        seen["left"] = (await again.ask("still there?", session.id)).text
    seen["exit"] = another.kill(signal.SIGTERM)
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


def run_command(main: Callable[[list[str]], int]) -> list[Any]:
    """The exit codes of `run` and `stop`, and how often the answer has the prompt."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        codes = [main(["run", "--agent", "offline", "hello"]), main(["stop"])]
    return [*codes, printed.getvalue().count("hello")]


async def bounded(attempted: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE):
        return await attempted


def everything(package: str, folder: str, *options: str) -> dict[str, Any]:
    daemon = importlib.import_module(f"{package}.daemon").Daemon
    servers = [Server(daemon, os.path.join(folder, "s"), options) for _ in range(2)]
    client = importlib.import_module(f"{package}.client").Client  # which the daemons do not have
    seen = asyncio.run(bounded(attempt(client, folder, *servers)))
    if "command" in options:
        seen["command"] = run_command(importlib.import_module(f"{package}.cli").main)
    return seen


if __name__ == "__main__":
    sys.stdout.write(json.dumps(everything(*sys.argv[1:])))
