"""The rest of a run whose beginning was seen on another stream."""

from __future__ import annotations

from crushlite.cli.continued import ContinuedRun
from tests.client.test_following import RunCase, everything, texts


class ContinuedRunTests(RunCase):
    async def test_a_stream_that_is_continued_shows_a_run_behind_one_that_had_ended(self) -> None:
        session = await self.workspace.create_session()
        await self.workspace.prompt(session.id, "first", run_id="first")
        await self.answers(1, "not yours")
        await self.workspace.run("first", wait=10)
        async with self.workspace.events() as events:
            await self.workspace.create_session()
            await anext(events)
        await self.workspace.prompt(session.id, "second", run_id="second")
        scripted = await self.daemon.entered(2)
        await scripted.say("yours")
        other, last_id = await self.second(), events.last_id or ""
        async with ContinuedRun(other, "second", session.id, last_id=last_id) as run:
            shown = [await anext(run)]
            while not texts(shown):
                shown.append(await anext(run))
            scripted.release()
            self.assertEqual(list(texts([*shown, *await everything(run)]).values()), ["yours"])
