"""Every prompt of an editor is answered once: when the daemon is lost, answers of it are lost, or
the editor takes something back meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from crushlite.acp import editor, project, thread
from crushlite.client import ConnectionFailed, RemoteWorkspace, stream as client_stream
from crushlite.clock import SystemClock
from crushlite.jsonrpc.errors import RpcError
from crushlite.jsonrpc.peer import RpcPeer
from crushlite.launch import Wanted
from crushlite.protocol.runs import CancelReceipt
from tests.support.cli import Relay
from tests.support.editors import EditorCase, prompt

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from crushlite.testing.scripted import ScriptedRun
    from tests.support.editors import ScriptedEditor

CANCELLED = {"stopReason": "cancelled"}
ENDED = {"stopReason": "end_turn"}


class LossCase(EditorCase):
    def replace(self, where: Any, name: str, new: Any) -> Any:
        """Put something in the place of a name until the end of the test; returns the old one."""
        old = getattr(where, name)
        self.enterContext(mock.patch.object(where, name, new))
        return old

    def wrap(self, where: Any, name: str, wrapper: Callable[..., Any]) -> None:
        """Replace a method by `wrapper(old, *arguments)`."""

        def wrapped(*args: Any, **fields: Any) -> Any:
            return wrapper(old, *args, **fields)

        old = self.replace(where, name, wrapped)

    async def prompted(self, script: ScriptedEditor, session: str) -> tuple[Any, ScriptedRun]:
        """A prompt whose run has begun to answer, as the editor has seen."""
        asked = script.begin("session/prompt", **prompt(session))
        run = await self.daemon.entered(len(self.daemon.agent.runs) + 1)
        await run.say("one ")
        await script.until(lambda: "one " in script.text())
        return asked, run


class LostStreamTests(LossCase):
    """The stream of events does not reconnect by itself, as after a long time: the next one is new,
    and does not bring what was missed."""

    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        path = self.daemon.root / "relay.sock"
        self.relay = await self.enterAsyncContext(Relay(path, self.daemon.socket))
        self.replace(client_stream, "BACKOFF_MIN", 1000.0)
        self.replace(project, "RETRY_SECONDS", 0.01)
        self.may_join = asyncio.Event()
        self.may_join.set()
        self.failures = 0  # attempts to join that fail
        self.wrap(project, "join", self.join)

    def wanted(self) -> Wanted:
        return Wanted(url=f"unix://{self.relay.path}", path=self.cwd, clock=SystemClock())

    async def join(self, old: Any, wanted: Wanted) -> RemoteWorkspace:
        await self.may_join.wait()
        self.failures -= 1
        if self.failures >= 0:
            raise ConnectionFailed("not yet")
        found: RemoteWorkspace = await old(wanted)
        return found

    async def end_unseen(self, run: ScriptedRun) -> None:
        """Let a run end while there is no stream."""
        anna = await self.daemon.join()
        self.may_join.clear()
        self.relay.cut()
        await run.say("two")
        run.release()
        await anna.events.wait_for("run_complete")
        self.may_join.set()

    async def test_a_run_that_ended_before_the_daemon_was_reached_again_is_answered(self) -> None:
        for failures in (0, 2):
            with self.subTest(failures=failures):
                script, session = await self.thread()
                asked, run = await self.prompted(script, session)
                self.failures = failures
                await self.end_unseen(run)
                self.assertEqual(await asked, ENDED)
                self.assertEqual(script.text(), "one two")

    async def test_what_cannot_be_read_after_a_loss_is_read_later(self) -> None:
        script, session = await self.thread()
        asked, run = await self.prompted(script, session)
        calls: list[str] = []

        async def messages(old: Any, workspace: Any, session_id: str) -> AsyncIterator[Any]:
            calls.append(session_id)
            if len(calls) == 1:
                raise ConnectionFailed("an answer was lost")
            async for message in old(workspace, session_id):
                yield message

        self.wrap(thread, "each_message", messages)
        await self.end_unseen(run)
        self.assertEqual(await asked, ENDED)
        self.assertEqual(script.text(), "one two")

    async def test_a_run_that_ends_while_its_messages_are_read_is_answered_after_its_text(
        self,
    ) -> None:
        script, session = await self.thread()
        asked, run = await self.prompted(script, session)
        anna = await self.daemon.join()

        async def messages(old: Any, workspace: Any, session_id: str) -> AsyncIterator[Any]:
            found = [message async for message in old(workspace, session_id)]
            await run.say("two")
            run.release()
            await anna.events.wait_for("run_complete")
            for message in found:
                yield message

        self.wrap(thread, "each_message", messages)
        self.relay.cut()
        self.assertEqual(await asked, ENDED)
        self.assertEqual(script.text(), "one two")

    async def test_a_daemon_that_does_not_come_back_is_waited_for_once(self) -> None:
        script, session = await self.thread()
        self.replace(project, "LOST_SECONDS", 0.2)
        waits: list[float] = []

        async def is_connected_within(old: Any, shown: Any, seconds: float) -> Any:
            waits.append(seconds)
            return await old(shown, seconds)

        self.wrap(project.Project, "_is_connected_within", is_connected_within)
        asked, run = await self.prompted(script, session)
        absent = mock.AsyncMock(side_effect=ConnectionFailed("not there"))
        self.replace(project, "ensure_daemon", absent)
        self.relay.cut()
        with self.assertRaisesRegex(RpcError, "lost"):
            await asked
        waits.clear()
        with self.assertRaisesRegex(RpcError, "lost"):
            await script.request("session/prompt", **prompt(session))
        self.assertEqual(waits.count(0.2), 1)
        run.release()

    async def test_a_prompt_is_answered_whose_acceptance_and_end_were_both_lost(self) -> None:
        script, session = await self.thread()
        posts: list[str] = []

        async def post(old: Any, workspace: Any, *args: Any, **fields: Any) -> Any:
            posts.append(fields["run_id"])
            accepted = await old(workspace, *args, **fields)
            if len(posts) == 1:
                await self.end_unseen(await self.daemon.entered(1))
                raise ConnectionFailed("an answer was lost")
            return accepted

        self.wrap(RemoteWorkspace, "prompt", post)
        self.assertEqual(await script.request("session/prompt", **prompt(session)), ENDED)
        self.assertEqual(len(self.daemon.agent.runs), 1)
        self.assertEqual(len(set(posts)), 1)


class CancelTests(LossCase):
    async def test_a_cancel_reaches_a_prompt_whose_acceptance_was_lost(self) -> None:
        script, session = await self.thread()

        async def post(old: Any, workspace: Any, *args: Any, **fields: Any) -> Any:
            await old(workspace, *args, **fields)
            await self.daemon.entered(1)
            await script.peer.notify("session/cancel", {"sessionId": session})
            await script.request("authenticate", methodId="none")  # the cancel has arrived
            raise ConnectionFailed("an answer was lost")

        self.wrap(RemoteWorkspace, "prompt", post)
        anna = await self.daemon.join()
        self.assertEqual(await script.request("session/prompt", **prompt(session)), CANCELLED)
        await anna.events.wait_for("run_complete", cancelled=True)

    async def test_a_cancel_is_carried_out_also_if_the_editor_leaves_at_once(self) -> None:
        script, session = await self.thread()
        anna = await self.daemon.join()
        await self.prompted(script, session)
        left = asyncio.Event()

        async def all_answered(old: Any, *args: Any) -> Any:
            left.set()
            return await old(*args)

        async def cancel(old: Any, *args: Any) -> Any:
            await left.wait()
            await args[0].agent()  # it takes a while
            return await old(*args)

        self.wrap(RpcPeer, "all_answered", all_answered)
        self.wrap(RemoteWorkspace, "cancel_run", cancel)
        await script.peer.notify("session/cancel", {"sessionId": session})
        await script.peer.close()
        await anna.events.wait_for("run_complete", cancelled=True)

    async def test_a_session_that_is_closed_answers_a_prompt_that_cannot_be_cancelled(self) -> None:
        self.replace(editor, "CLOSE_SECONDS", 0.01)
        self.replace(RemoteWorkspace, "cancel_run", mock.AsyncMock(return_value=CancelReceipt()))
        script, session = await self.thread()
        asked, run = await self.prompted(script, session)
        self.assertEqual(await script.request("session/close", sessionId=session), {})
        self.assertEqual(await asked, CANCELLED)
        run.release()

    async def test_a_dialog_that_a_cancel_closed_for_another_client_is_asked_again(self) -> None:
        script, session = await self.thread()
        anna = await self.daemon.join()
        await anna.prompt(session, "of another client")
        run = await self.daemon.entered(1)
        verdict = run.begin(lambda turn: turn.permission("bash", "execute"))
        dialog = await script.asked.get()
        posted, closed = asyncio.Event(), asyncio.Event()

        async def post(old: Any, *args: Any, **fields: Any) -> Any:
            accepted = await old(*args, **fields)
            posted.set()
            return accepted

        async def cancel(old: Any, *args: Any) -> Any:
            await closed.wait()
            return await old(*args)

        self.wrap(RemoteWorkspace, "prompt", post)
        self.wrap(RemoteWorkspace, "cancel_run", cancel)
        queued = script.begin("session/prompt", **prompt(session))
        await posted.wait()
        await script.peer.notify("session/cancel", {"sessionId": session})
        dialog.answer.set_result({"outcome": {"outcome": "cancelled"}})
        await script.begin("authenticate", methodId="none")  # the dialog's answer has arrived
        closed.set()
        self.assertEqual(await queued, CANCELLED)
        await script.request("session/load", sessionId=session, cwd=self.cwd, mcpServers=[])
        (await script.asked.get()).choose("allow")
        self.assertTrue(await verdict)
        run.release()


class LoadTests(LossCase):
    async def loaded(self, method: str) -> ScriptedEditor:
        """An editor that has loaded a session whose answer grew just before it was read."""
        first, session = await self.thread()
        asked, run = await self.prompted(first, session)
        loading: list[thread.Thread] = []
        taken = asyncio.Event()

        async def take(old: Any, shown: thread.Thread, payload: Any) -> None:
            await old(shown, payload)
            if shown in loading:
                taken.set()

        async def load(old: Any, shown: thread.Thread, *args: Any, **how: Any) -> None:
            loading.append(shown)
            await run.say("two ")
            await taken.wait()
            await old(shown, *args, **how)

        self.wrap(thread.Thread, "take", take)
        self.wrap(thread.Thread, "load", load)
        script = await self.editor()
        await script.request("session/list", cwd=self.cwd)  # now its stream is open
        await script.request(method, sessionId=session, cwd=self.cwd, mcpServers=[])
        await run.say("three")
        run.release()
        await asked
        await script.until(lambda: "three" in script.text())
        return script

    async def test_a_busy_session_that_is_loaded_shows_its_answer_once(self) -> None:
        script = await self.loaded("session/load")
        self.assertEqual(script.text(), "one two three")

    async def test_a_busy_session_that_is_resumed_shows_only_what_is_new(self) -> None:
        script = await self.loaded("session/resume")
        self.assertEqual(script.text(), "three")

    async def test_a_load_from_a_wrong_directory_does_not_close_the_session(self) -> None:
        script, session = await self.thread()
        elsewhere = self.daemon.root / "elsewhere"
        elsewhere.mkdir()
        with self.assertRaises(RpcError):
            await script.request("session/load", sessionId=session, cwd=str(elsewhere))
        asked, run = await self.prompted(script, session)
        run.release()
        self.assertEqual(await asked, ENDED)

    async def test_a_session_that_is_opened_by_two_paths_is_shown_once(self) -> None:
        script, session = await self.thread()
        link = self.daemon.root / "link"
        link.symlink_to(self.cwd)
        await script.request("session/resume", sessionId=session, cwd=str(link))
        asked, run = await self.prompted(script, session)
        run.release()
        self.assertEqual(await asked, ENDED)
        self.assertEqual(script.text(), "one ")

    async def test_a_session_is_deleted_that_was_never_listed_and_no_home_becomes_a_project(
        self,
    ) -> None:
        _, session = await self.thread()
        other = await self.editor()
        self.assertEqual(await other.request("session/delete", sessionId=session), {})
        self.assertEqual((await other.request("session/list"))["sessions"], [])
        self.replace(Path, "home", lambda: Path(self.cwd))
        third = await self.editor()
        opened = mock.AsyncMock(side_effect=ConnectionFailed("opened"))
        self.replace(project, "join", opened)
        self.assertEqual(await third.request("session/delete", sessionId="x"), {})
        opened.assert_not_awaited()
