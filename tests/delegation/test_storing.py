"""A turn without a run that cannot be stored at once is stored whole when that is possible."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from crushlite.delegation.storing import store_or_flush
from crushlite.protocol.messages import FinishPart, TextPart
from crushlite.store.callqueue import identity
from tests.scenarios.test_transcript import draft
from tests.support.turns import SESSION, Bench


class StoringTests(Bench):
    def closed_turn(self) -> Any:
        """The turn of a sub-agent with two steps, all of whose writes wait."""
        self.store._writer._sharing_seconds = 3600.0
        transcript = self.transcript
        asked = transcript.create(draft("user", (TextPart("asked"), FinishPart("stop"))))
        step = transcript.create(draft())
        transcript.say(step, "first")
        transcript.finish(step, FinishPart("tool_use"))
        result = transcript.create(draft("tool", (TextPart("result"), FinishPart("stop"))))
        last = transcript.create(draft())
        transcript.say(last, "answer")
        transcript.finish(last, FinishPart("end_turn"), write=False)
        messages = [asked, step, result, last]
        spent = SimpleNamespace(completion_tokens=0)
        return SimpleNamespace(
            workspace=self.workspace, session_id=SESSION, messages=messages, spent=spent
        )

    async def test_every_step_is_there_although_the_transaction_for_all_had_failed(self) -> None:
        turn, writer = self.closed_turn(), self.store._writer
        writer._file = (0, 0)  # another one than the file that is there
        await store_or_flush(turn)
        writer._file = identity(writer._path)
        writer._sharing_seconds = 0.0
        self.transcript._retry()
        await self.store.submit(lambda conn: None)
        await self.clock.settle()
        rows = [(message.role, message.text) for message in await self.rows()]
        wanted = [("user", "asked"), ("assistant", "first"), ("tool", "result")]
        self.assertEqual(rows, [*wanted, ("assistant", "answer")])
        self.assertEqual(self.transcript._live, {})
