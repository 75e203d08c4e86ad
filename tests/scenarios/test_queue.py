"""What happens to prompts that come while their session is busy."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from crushlite.store import messages as message_rows
from tests.support.agents import ForEveryAgent, ScriptedTestCase
from tests.support.scenarios import scenario

if TYPE_CHECKING:
    from crushlite.agent.base import Turn
    from crushlite.store import Connection, Store


class QueueScenarios(ForEveryAgent):
    @scenario(55)
    async def test_waiting_prompts_are_counted_and_listed_in_the_order_of_arrival(self) -> None:
        await self.start()
        await self.post("main", run_id="r1")
        await self.turn(1)
        self.assertEqual([await self.queue("queued"), await self.queue("list")], [0, []])
        await self.post("second", run_id="r2")
        await self.post("third", run_id="r3")
        self.assertEqual(await self.queue("queued"), 2)
        self.assertEqual(await self.queue("list"), ["second", "third"])
        await self.answer(1, "one")
        await self.turn(2)
        self.assertEqual(await self.queue("list"), ["third"])
        await self.answer(2, "two")
        await self.turn(3)
        self.assertEqual([await self.queue("queued"), await self.queue("list")], [0, []])
        await self.answer(3, "three")
        texts = [(await self.complete(run_id))["text"] for run_id in ("r1", "r2", "r3")]
        self.assertEqual(texts, ["one", "two", "three"])
        self.assertEqual(await self.queue("queued"), 0)

    @scenario(56)
    async def test_a_prompt_sent_while_a_tool_runs_joins_the_turn_at_its_next_step(self) -> None:
        """It comes after the tool's result, and ends with the turn that it joined."""
        await self.start_at_a_tool()
        rider = await self.post("also this")
        turn = await self.next_step()
        self.assertEqual(
            await turn.heard(),
            [
                ("user", "main"),
                ("assistant", "wait gate({})"),
                ("tool", "the gate is open"),
                ("user", "also this"),
            ],
        )
        self.assertEqual(await self.queue("queued"), 0)
        await turn.say("both done")
        await turn.end()
        first, second = await self.complete("main"), await self.complete(rider)
        self.assertEqual(
            await self.shape(),
            [
                ("user", "stop", "main"),
                ("assistant", "tool_use", "wait "),
                ("tool", "stop", ""),
                ("user", "stop", "also this"),
                ("assistant", "end_turn", "both done"),
            ],
        )
        self.assertEqual(second["folded_into"], "main")
        self.assertEqual(
            (second["text"], second["message_id"]), (first["text"], first["message_id"])
        )
        self.assert_asked(turns=1, steps=2)

    @scenario(58)
    async def test_a_prompt_sent_during_the_last_step_gets_a_turn_of_its_own(self) -> None:
        await self.start()
        main = await self.post("main")
        turn = await self.turn(1)
        later = await self.post("and then?")
        await turn.say("plain")
        await turn.end()
        turn = await self.turn(2)
        conversation = [("user", "main"), ("assistant", "plain"), ("user", "and then?")]
        self.assertEqual(await turn.heard(), conversation)
        await turn.say("more")
        await turn.end()
        self.assertEqual((await self.complete(main))["text"], "plain")
        done = await self.complete(later)
        self.assertEqual((done["text"], done["folded_into"]), ("more", None))
        self.assertEqual(
            await self.shape(),
            [
                ("user", "stop", "main"),
                ("assistant", "end_turn", "plain"),
                ("user", "stop", "and then?"),
                ("assistant", "end_turn", "more"),
            ],
        )

    @scenario(59)
    async def test_several_prompts_join_a_turn_in_the_order_of_arrival(self) -> None:
        """For the agent, in the store and in their endings."""
        await self.start_at_a_tool()
        riders = [await self.post(text) for text in ("f1", "f2", "f3")]
        turn = await self.next_step()
        self.assertEqual(
            (await turn.heard())[-3:], [("user", "f1"), ("user", "f2"), ("user", "f3")]
        )
        await turn.say("all done")
        await turn.end()
        for run_id in ("main", *riders):
            self.assertEqual((await self.complete(run_id))["text"], "all done")
        users = [text for role, _, text in await self.shape() if role == "user"]
        self.assertEqual(users, ["main", "f1", "f2", "f3"])
        self.assertEqual(self.endings(), ["main", *riders])

    @scenario(60)
    async def test_a_prompt_with_a_run_id_never_joins_another_turn(self) -> None:
        """It waits for a turn of its own, though one behind it joins the running turn."""
        await self.start_at_a_tool()
        await self.post("mine", run_id="mine")
        rider = await self.post("steer")
        turn = await self.next_step()
        heard = await turn.heard()
        self.assertEqual(heard[-1], ("user", "steer"))
        self.assertNotIn("mine", [text for _, text in heard])
        self.assertEqual(await self.queue("list"), ["mine"])
        await turn.say("main is done")
        await turn.end()
        await self.complete("main")
        own = await self.turn(2)
        self.assertEqual((await own.heard())[-1], ("user", "mine"))
        await own.say("and so is mine")
        await own.end()
        self.assertEqual((await self.complete("main"))["text"], "main is done")
        done = await self.complete("mine")
        self.assertEqual((done["text"], done["folded_into"]), ("and so is mine", None))
        self.assertEqual(self.endings(), ["main", rider, "mine"])

    @scenario(68)
    async def test_a_turn_and_the_one_behind_it_each_complete_with_their_own_text(self) -> None:
        """Each with a message of its own, and the first at once."""
        await self.start()
        await self.post("first", run_id="r1")
        turn = await self.turn(1)
        await self.post("second", run_id="r2")
        await turn.say("one")
        await turn.end()
        turn = await self.turn(2)
        first = await self.complete("r1")  # not held back until the queue is empty
        await turn.say("two")
        await turn.end()
        endings = [first, await self.complete("r2")]
        self.assertEqual([(e["text"], e["error"]) for e in endings], [("one", None), ("two", None)])
        messages = [m for m in await self.anna.messages(self.session) if m["role"] == "assistant"]
        self.assertEqual([m["id"] for m in messages], [e["message_id"] for e in endings])
        self.assertNotEqual(messages[0]["id"], messages[1]["id"])

    @scenario(77)
    async def test_a_repeated_run_id_is_the_same_run_and_with_another_body_refused(self) -> None:
        """During the run and after its end."""
        await self.start()
        await self.post("hello", run_id="r")
        await self.turn(1)
        again = await self.anna.prompt(self.session, "hello", run_id="r")
        self.assertEqual((again.json["run_id"], again.json["state"]), ("r", "active"))
        other = await self.anna.try_prompt(self.session, "something else", run_id="r")
        self.assertEqual((other.status, other.json["code"]), (409, "run_id_reused"))
        await self.answer(1, "hi")
        await self.complete("r")
        again = await self.anna.prompt(self.session, "hello", run_id="r")
        self.assertEqual(again.json["state"], "ended")
        for fields in (
            {"session": self.session, "text": "something else"},
            {"session": await self.anna.session(), "text": "hello"},
        ):
            other = await self.anna.try_prompt(**fields, run_id="r")
            self.assertEqual((other.status, other.json["code"]), (409, "run_id_reused"))
        await self.anna.events.never("agent_event", type="error")
        await self.complete("r")
        self.assertEqual(self.endings(), ["r"])
        self.assert_asked(turns=1)
        self.assertEqual(
            await self.shape(), [("user", "stop", "hello"), ("assistant", "end_turn", "hi")]
        )


class ScriptedQueueTests(QueueScenarios, ScriptedTestCase):
    @scenario(74)
    async def test_a_queued_prompt_outlives_the_connection_that_posted_it(self) -> None:
        """Its run_complete goes to every client."""
        await self.start()
        await self.post("main", run_id="main")
        run = await self.daemon.entered(1)
        poster = self.daemon.connect()
        body = {"session_id": self.session, "prompt": "keep me", "run_id": "kept"}
        answer = await self.daemon.call("POST", f"{self.anna.base}/agent", body, http=poster)
        self.assertEqual(answer.status, 202)
        await poster.aclose()
        (waiting,) = await self.queue("")
        self.assertEqual((waiting["run_id"], waiting["text"]), ("kept", "keep me"))
        run.release()
        second = await self.daemon.entered(2)
        self.assertEqual((second.prompt, second.turn.run_id), ("keep me", "kept"))
        await second.say("kept")
        second.release()
        self.assertEqual((await self.complete("kept"))["text"], "kept")

    @scenario(33)
    async def test_the_count_of_waiting_prompts_is_exact(self) -> None:
        """It goes down by one with each ending, and repeated endings do not lower it further."""
        await self.start()
        for number in range(3):
            await self.post("hello", run_id=f"r{number}")
        for waiting in (2, 1, 0):
            run = await self.daemon.entered(3 - waiting)
            self.assertEqual(await self.queue("queued"), waiting)
            self.assertTrue(await self.anna.busy(self.session))
            run.release()
            run.release()
            await self.complete(f"r{2 - waiting}")
        for _ in range(3):
            path = f"/agent/sessions/{self.session}/prompts/clear"
            self.assertEqual((await self.anna.call("POST", path)).status, 200)
            self.assertEqual(await self.anna.cancel(self.session), [])
        self.assertEqual(await self.queue("queued"), 0)
        self.assertFalse(await self.anna.busy(self.session))
        self.assertEqual(self.endings(), ["r0", "r1", "r2"])


class FoldFailureTests(ScriptedTestCase):
    async def execute(self, statement: str) -> None:
        def run(conn: Connection) -> None:
            conn.execute(statement)

        await self.store.submit(run)

    @property
    def store(self) -> Store:
        return self.daemon.backend.get(self.anna.workspace["id"]).store.store

    @scenario(76)
    async def test_a_prompt_that_cannot_be_stored_when_it_joins_a_turn_is_not_lost(self) -> None:
        """If a follow-up cannot be stored the turn fails, and its ending stores it after all."""
        inside, go, failed, mended = (asyncio.Event() for _ in range(4))

        async def agent(turn: Turn) -> None:
            inside.set()
            await go.wait()
            try:
                await turn.followups()
            except Exception:
                failed.set()
                await mended.wait()
                raise

        await self.start(agent)
        await self.post("main", run_id="main")
        await inside.wait()
        rider = await self.post("precious words")
        await self.execute(
            "CREATE TRIGGER broken BEFORE INSERT ON messages WHEN NEW.parts LIKE '%precious%' "
            "BEGIN SELECT RAISE(ABORT, 'no room'); END"
        )
        go.set()
        await failed.wait()
        await self.execute("DROP TRIGGER broken")
        mended.set()
        for run_id in ("main", rider):
            done = await self.complete(run_id)
            self.assertIn("no room", done["error"])
        self.assertEqual(done["folded_into"], "main")
        # From the rows, not over HTTP: reads are overlaid with what could not be written.
        rows = await self.store.read(lambda c: message_rows.list_messages(c, "", self.session))
        users = [row.text for row in rows if row.role == "user"]
        self.assertEqual(users, ["main", "precious words"])
        runs = (await self.anna.call("GET", "/runs")).json
        self.assertEqual([run["outcome"] for run in runs], ["failed", "failed"])
