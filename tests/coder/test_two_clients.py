"""Two clients of one directory, a daemon that is killed, and commands that are canceled.

The first part runs in this process. The second starts a daemon and kills it in the middle of a
command. The third cancels commands that try to escape.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from crushlite.client import Client
from crushlite.commands.process import Command
from crushlite.errors import NotFound
from crushlite.fake_model import End, FakeModel, Say, obedient
from crushlite.protocol.messages import ToolCallPart
from tests.support.basics import LIMIT, BoundedTestCase
from tests.support.configured import (
    ConfiguredTestCase,
    chat,
    configuration,
    marked,
    new_mark,
    notes,
    results,
    shape,
    until,
    use,
)
from tests.support.places import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    from crushlite.client import EventStream, RemoteWorkspace
    from crushlite.protocol.events import Envelope
    from crushlite.protocol.messages import Message
    from crushlite.testing import Participant

SECONDS = 2.0  # from a cancel until all processes are dead, if the machine is idle


async def gone(pidfds: list[int]) -> None:
    """Wait until these processes have ended: then their pidfds are readable."""
    loop = asyncio.get_running_loop()
    for fd in pidfds:
        ended = asyncio.Event()
        loop.add_reader(fd, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(fd)
            os.close(fd)


# One directory, two clients ----------------------------------------------------------------------


def story(client: Participant) -> list[tuple[Any, ...]]:
    """The events that a client saw, in order, without the growth of texts, which may be skipped."""
    told: list[tuple[Any, ...]] = []
    for event in client.events.seen:
        if event.kind == "message" and (event.action != "updated" or event.finish):
            told.append((event.action, event["role"], event["id"], event.finish))
        elif event.kind not in ("message", "session"):
            told.append((event.kind, event.action, json.dumps(event.payload, sort_keys=True)))
    return told


class TwoClientsTests(ConfiguredTestCase):
    async def test_one_client_prompts_the_other_allows_and_both_see_every_step(self) -> None:
        anna = await self.join()
        link = self.daemon.root / "another-way"
        link.symlink_to(self.project)
        ben = await self.join(link)
        self.assertEqual(anna.workspace["id"], ben.workspace["id"])
        session = await anna.session()
        self.plan += [
            use("bash", "c1", command="echo made > made.txt; cat made.txt", description="make it"),
            [Say("It is "), Say("made."), End()],
        ]
        run_id = await self.prompt(anna, session, "make a file")
        request = await ben.events.wait_for("permission_request", tool_call_id="c1")
        self.assertTrue(await ben.grant(request.payload))
        for client in (anna, ben):
            ended = await self.ended(client, run_id)
            self.assertEqual(ended["text"], "It is made.")
        await self.settle(anna, ben)
        self.assertEqual(story(anna), story(ben))
        self.assertEqual(notes(anna), ["asked c1", "shown c1", "granted c1"])
        self.assertEqual((self.project / "made.txt").read_text(), "made\n")
        messages = await ben.messages(session)
        self.assertEqual(
            shape(messages),
            [
                ("user", "stop", "make a file"),
                ("assistant", "tool_use", ""),
                ("tool", "stop", ""),
                ("assistant", "end_turn", "It is made."),
            ],
        )
        [result] = results(messages)
        self.assertTrue(result["content"].startswith("made\n"))
        created = [step for step in story(ben) if step[0] == "created"]
        self.assertEqual([step[2] for step in created], [m["id"] for m in messages])


# A daemon that is killed -------------------------------------------------------------------------


class Watcher:
    """A client of the daemon that keeps the events it saw."""

    def __init__(self, workspace: RemoteWorkspace, stream: EventStream) -> None:
        self.workspace = workspace
        self.seen: list[Envelope] = []
        self._stream = stream

    async def wait_for(self, kind: str, wanted: Callable[[Any], bool] = lambda _: True) -> Any:
        """The payload of the next event for which the callable is true."""
        async with asyncio.timeout(LIMIT / 2):
            async for event in self._stream:
                self.seen.append(event)
                if event.kind == kind and wanted(event.payload):
                    return event.payload
        raise AssertionError(f"the stream ended before {kind}")


class KilledDaemonTests(BoundedTestCase):
    async def asyncSetUp(self) -> None:
        self.model = await self.enterAsyncContext(FakeModel(script=obedient))
        folder = self.enterContext(tempfile.TemporaryDirectory(prefix="crushlite-killed-"))
        self.root = Path(folder).resolve()
        self.project = self.root / "project"
        self.project.mkdir()
        file = self.root / "home/.config/crush/crush.json"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(configuration(self.model, self.model)))
        self.url = f"unix://{self.root}/daemon.sock"
        self.env = [f"HOME={self.root}/home", f"PATH={os.environ.get('PATH', os.defpath)}"]

    async def start(self) -> asyncio.subprocess.Process:
        """Start a daemon as a user does; returns when it serves."""
        daemon = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "crushlite", "serve", "--host", self.url),
            *("--agent", "auto", "--log-level", "error"),
            cwd=ROOT,
            env=dict(pair.split("=", 1) for pair in self.env),
            stdout=asyncio.subprocess.PIPE,
        )
        self.addAsyncCleanup(self.stop, daemon)
        assert daemon.stdout is not None
        async with asyncio.timeout(LIMIT / 2):
            self.assertIn(b"is serving", await daemon.stdout.readline())
        return daemon

    async def stop(self, daemon: asyncio.subprocess.Process) -> None:
        if daemon.returncode is None:
            daemon.terminate()
        async with asyncio.timeout(LIMIT / 2):
            await daemon.communicate()

    async def watcher(self) -> Watcher:
        client = await self.enterAsyncContext(Client(self.url))
        workspace = await client.create(self.project, env=self.env)
        stream = await self.enterAsyncContext(workspace.events())
        return Watcher(workspace, stream)

    async def running(self, mark: str, count: int) -> list[int]:
        """The pidfds of a command's processes, once all of them run."""
        await until(lambda: len(marked(mark)) == count, f"{count} processes of the command")
        return [os.pidfd_open(pid) for pid in marked(mark)]

    async def test_a_daemon_killed_in_mid_command_leaves_a_complete_history(self) -> None:
        daemon = await self.start()
        anna, ben = await self.watcher(), await self.watcher()
        session = (await anna.workspace.create_session("demo")).id
        mark = new_mark()
        command = f"touch begun; setsid sleep {mark} & sleep {mark}; touch survived"
        accepted = await anna.workspace.prompt(session, f"@bash {command}")
        for client in (anna, ben):
            request = await client.wait_for("permission_request")
        self.assertTrue((await ben.workspace.grant(request.id, "allow")).resolved)
        await anna.wait_for("permission_notification", lambda note: note.granted)
        pidfds = await self.running(mark, 3)
        self.assertTrue((self.project / "begun").exists())

        daemon.kill()
        async with asyncio.timeout(LIMIT / 2):
            await gone(pidfds)
        self.assertEqual(marked(mark), [])
        await daemon.wait()
        self.assertEqual(daemon.returncode, -signal.SIGKILL)

        await self.start()
        for client in (anna, ben):
            await client.wait_for("resync")
        self.assertEqual(anna.workspace.id, ben.workspace.id)
        run = await ben.workspace.run(accepted.run_id)
        self.assertEqual((run.state, run.outcome), ("ended", "failed"))
        self.assertIn("interrupted", run.error)
        messages = await ben.workspace.messages(session)
        self.assert_interrupted(messages, command)
        self.assertFalse((await anna.workspace.session(session)).is_busy)
        self.assertEqual(await anna.workspace.permissions(), [])

        again = await ben.workspace.prompt(session, "and now?")
        for client in (anna, ben):
            ended = await client.wait_for("run_complete", lambda rc: rc.run_id == again.run_id)
            self.assertEqual((ended.error, ended.text[-8:]), ("", "and now?"))
        self.assertFalse((self.project / "survived").exists())
        asked = chat(self.model.requests[-1])
        self.assertEqual([role for role, _ in asked], ["user", "assistant", "tool", "user"])
        self.assertIn("interrupted", asked[2][1])

    def assert_interrupted(self, messages: list[Message], command: str) -> None:
        """Check the history of an interrupted run: the prompt, its step with an error, and a result
        for the call."""
        self.assertEqual([m.role for m in messages], ["user", "assistant", "tool"])
        self.assertEqual(messages[0].text, f"@bash {command}")
        finish = messages[1].finish
        assert finish is not None
        self.assertEqual(finish.reason, "error")
        self.assertIn("interrupted", finish.details)
        [call] = [part for part in messages[1].parts if isinstance(part, ToolCallPart)]
        self.assertTrue(call.finished)
        [result] = messages[2].tool_results
        self.assertEqual((result.tool_call_id, result.is_error), (call.id, True))

    async def test_a_daemon_killed_while_a_permission_is_asked_never_runs_it(self) -> None:
        daemon = await self.start()
        anna = await self.watcher()
        session = (await anna.workspace.create_session("demo")).id
        accepted = await anna.workspace.prompt(session, "@bash touch survived")
        request = await anna.wait_for("permission_request")
        daemon.kill()
        await daemon.wait()
        await self.start()
        await anna.wait_for("resync")
        run = await anna.workspace.run(accepted.run_id)
        self.assertEqual((run.state, run.outcome), ("ended", "failed"))
        self.assertEqual(await anna.workspace.permissions(), [])
        with self.assertRaises(NotFound):
            await anna.workspace.grant(request.id, "allow")
        again = await anna.workspace.prompt(session, "and now?")
        await anna.wait_for("run_complete", lambda rc: rc.run_id == again.run_id)
        self.assertFalse((self.project / "survived").exists())

    async def test_a_daemon_that_is_stopped_ends_its_command_first(self) -> None:
        daemon = await self.start()
        anna = await self.watcher()
        session = (await anna.workspace.create_session("demo")).id
        mark = new_mark()
        accepted = await anna.workspace.prompt(session, f"@bash sleep {mark} & wait")
        request = await anna.wait_for("permission_request")
        await anna.workspace.grant(request.id, "allow")
        pidfds = await self.running(mark, 2)
        daemon.terminate()
        async with asyncio.timeout(LIMIT / 2):
            await gone(pidfds)
        ended = await anna.wait_for("run_complete")
        self.assertEqual((ended.run_id, ended.cancelled), (accepted.run_id, True))
        async with asyncio.timeout(LIMIT / 2):
            self.assertEqual(await daemon.wait(), 0)


# Commands that try to escape ---------------------------------------------------------------------


class CancelTests(ConfiguredTestCase):
    times = 3

    async def assert_cancel_kills(self, command: str, count: int) -> None:
        """Cancel a turn whose command runs, several times. When the run is reported as ended, the
        processes must be dead; the best time must be short, since the machine may be busy."""
        client = await self.join(yolo=True)
        session = await client.session()
        best = LIMIT
        for _ in range(self.times):
            mark = new_mark()
            self.plan.append(
                use("bash", command=command.replace("MARK", mark), description="run away")
            )
            run_id = await self.prompt(client, session, "go on")
            await until(lambda mark=mark: len(marked(mark)) >= count, "the command runs")  # type: ignore[misc]
            began = time.monotonic()
            [canceled] = await client.cancel(session)
            self.assertEqual(canceled, {"run_id": run_id, "was": "active"})
            ended = await self.ended(client, run_id)
            self.assertEqual(marked(mark), [])
            best = min(best, time.monotonic() - began)
            self.assertTrue(ended["cancelled"])
        self.assertLess(best, SECONDS)
        messages = await client.messages(session)
        self.assert_valid_history(messages)
        self.assertEqual(len(results(messages)), self.times)
        self.assertFalse(await client.busy(session))

    async def test_a_run_is_not_reported_as_ended_while_its_command_lives(self) -> None:
        client = await self.join(yolo=True)
        session, mark = await client.session(), new_mark()
        run_id = await self.prompt(client, session, f"@bash sleep {mark} & wait")
        await until(lambda: len(marked(mark)) == 2, "the command runs")
        killed: list[Command] = []
        with mock.patch.object(Command, "kill", lambda command: killed.append(command)):
            await client.cancel(session)
            await until(lambda: bool(killed), "the command is to be killed")
            await client.events.never("run_complete", run_id=run_id)
            self.assertTrue(await client.busy(session))
        killed[0].kill()
        await self.ended(client, run_id)
        self.assertEqual(marked(mark), [])

    async def test_a_child_in_the_background_dies_with_its_run(self) -> None:
        await self.assert_cancel_kills("sleep MARK & wait", 2)

    async def test_a_child_in_a_session_of_its_own_dies_with_its_run(self) -> None:
        await self.assert_cancel_kills("setsid sleep MARK & wait", 2)

    async def test_an_orphan_without_an_environment_dies_with_its_run(self) -> None:
        """It is forked twice, in a session of its own, and nothing shows where it comes from."""
        orphan = "( ( env -i setsid sleep MARK >/dev/null 2>&1 </dev/null & ) & )"
        await self.assert_cancel_kills(f"{orphan}; sleep MARK; true", 3)

    async def test_a_flood_dies_with_its_run(self) -> None:
        await self.assert_cancel_kills("yes MARK", 1)
