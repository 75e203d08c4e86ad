"""Long transcripts are read and shown piece by piece."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest import mock

from crushlite.acp import elements, thread
from crushlite.acp.elements import each_message
from crushlite.client import ConnectionFailed
from crushlite.http.client import HTTPClient
from tests.support.editors import EditorCase, prompt

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from crushlite.client import RemoteWorkspace
    from crushlite.protocol.messages import Message


class TranscriptTests(EditorCase):
    async def test_a_transcript_that_is_longer_than_any_answer_may_be_is_loaded_once(self) -> None:
        script, session = await self.thread()
        said = [f"{number} " + "x" * 3000 for number in range(8)]
        for number, text in enumerate(said, 1):
            asked = script.begin("session/prompt", **prompt(session, text))
            (await self.daemon.entered(number)).release()
            await asked
        bounds = {**(HTTPClient.request.__kwdefaults__ or {}), "limit": 10_000}
        self.enterContext(mock.patch.object(HTTPClient.request, "__kwdefaults__", bounds))
        self.enterContext(mock.patch.object(elements, "_AHEAD", 5000))
        failed: list[str] = []

        async def cut_off(workspace: RemoteWorkspace, session_id: str) -> AsyncIterator[Message]:
            """The first time, after some messages."""
            async for message in each_message(workspace, session_id):
                if not failed and message.text == said[4]:
                    failed.append(message.id)
                    raise ConnectionFailed("lost")
                yield message

        self.enterContext(mock.patch.object(thread, "each_message", cut_off))
        other = await self.editor()
        await other.request("session/load", sessionId=session, cwd=self.cwd, mcpServers=[])
        self.assertEqual(other.text("user_message_chunk"), "".join(said))
        self.assertEqual(len(failed), 1)
