"""Prompts and cancels that meet: at the same instant, in tight loops, and at every await of a turn.

Where a race can be placed exactly it is: a cancel is called after the N-th step of the event loop,
or while the N-th commit stands at a gate, for every N until the turn ends by itself. What the
clients, the record and the receipt say must then agree.
"""

from __future__ import annotations

import asyncio
import tempfile
from typing import TYPE_CHECKING

from crushlite.agent.base import Usage
from crushlite.protocol.messages import Prompt
from crushlite.settings import Settings
from crushlite.testing import LocalDaemon, ScriptedAgent
from tests.support.prompts import Gate, PromptTestCase, gated, shape, until

if TYPE_CHECKING:
    from crushlite.agent.base import Turn
    from crushlite.testing import Answer, Participant

POSTS = 20  # prompts per poster
TAIL = 5  # steps tried beyond the one after which the turn had ended by itself


class SlowlyReady(ScriptedAgent):
    """Gets ready when told to, and counts how often it was asked."""

    def __init__(self) -> None:
        super().__init__(auto=True)
        self.asked = 0
        self.is_ready = asyncio.Event()

    async def ready(self) -> None:
        self.asked += 1
        await self.is_ready.wait()


async def talker(turn: Turn) -> None:
    """A turn with everything in it: two steps, a tool call and its result."""
    await turn.say("let me look")
    call = await turn.tool_call("view", '{"file_path":"a"}')
    await turn.tool_result(call, "contents")
    await turn.say("it says: ")
    await turn.say("contents")


async def bookkeeper(turn: Turn) -> None:
    """The same turn, waiting for two commits on its way."""
    await turn.say("let me look")
    await turn.usage(Usage(10, 2))
    call = await turn.tool_call("view", '{"file_path":"a"}')
    await turn.file_read("a")
    await turn.tool_result(call, "contents")
    await turn.say("it says: ")
    await turn.say("contents")


class PostingTests(PromptTestCase):
    async def post_fast(
        self, poster: Participant, watcher: Participant, session: str, name: str
    ) -> list[str]:
        """Post as fast as the answers come, while another client says each time who it is."""
        run_ids = [f"{name}-{number}" for number in range(POSTS)]
        for run_id in run_ids:
            said, answer = await asyncio.gather(
                watcher.call("POST", f"/agent/init?client_id={watcher.id}", {}),
                poster.prompt(session, run_id, run_id=run_id),
            )
            self.assertEqual((said.status, answer.json["run_id"]), (200, run_id))
        return run_ids

    async def test_four_posters_right_after_create_are_all_served_in_order(self) -> None:
        agent = SlowlyReady()
        async with LocalDaemon(agent) as daemon:
            watcher = await daemon.join()
            shared = await watcher.session()
            posters = await asyncio.gather(*(daemon.create() for _ in range(4)))
            own = [await poster.session() for poster in posters]
            sessions = [shared, shared, own[2], own[3]]
            posting = [
                asyncio.create_task(self.post_fast(poster, watcher, session, f"poster{number}"))
                for number, (poster, session) in enumerate(zip(posters, sessions, strict=True))
            ]
            # The first prompts meet an agent that is not ready, the others one that is.
            await until(lambda: agent.asked > 0, "somebody waits for the agent")
            agent.is_ready.set()
            posted = await asyncio.gather(*posting)
            everything = [run_id for run_ids in posted for run_id in run_ids]
            for run_id in everything:
                self.assertEqual(await self.outcome(watcher, run_id), "completed")
            self.assertEqual((agent.asked, agent.most_concurrent), (1, 1))
            await self.assert_order(watcher, sessions, posted)
            await until(
                lambda: len(watcher.events.all("run_complete")) >= len(everything), "all are told"
            )
            self.assert_ended_once(watcher.events, *everything)

    async def assert_order(
        self, watcher: Participant, sessions: list[str], posted: list[list[str]]
    ) -> None:
        """Each poster's prompts started in the order in which they were accepted."""
        for session, run_ids in zip(sessions, posted, strict=True):
            messages = await watcher.messages(session)
            self.assert_valid_history(messages)
            users = [m.text for m in messages if m["role"] == "user" and m.text in run_ids]
            self.assertEqual(users, run_ids)
            # One at a time: every question is followed by its own answer.
            self.assertEqual([m.text for m in messages[::2]], [m.text for m in messages[1::2]])

    async def test_twenty_prompts_at_the_same_instant_each_end_once(self) -> None:
        agent = SlowlyReady()
        async with LocalDaemon(agent) as daemon:
            anna = await daemon.join()
            session = await anna.session()
            posts = [
                asyncio.create_task(anna.prompt(session, f"p{number}", run_id=f"p{number}"))
                for number in range(20)
            ]
            await until(lambda: agent.asked > 0, "the first waits for the agent")
            answers: list[Answer] = await asyncio.gather(*posts)
            self.assertEqual({answer.status for answer in answers}, {202})
            listed = (await anna.call("GET", "/runs")).json
            self.assertEqual(sorted(run["state"] for run in listed), ["active"] + ["queued"] * 19)
            agent.is_ready.set()
            run_ids = [run["run_id"] for run in listed]
            for run_id in run_ids:
                await anna.events.wait_for("run_complete", run_id=run_id, cancelled=None)
            self.assert_ended_once(anna.events, *run_ids)
            self.assertEqual((agent.asked, agent.most_concurrent), (1, 1))
            users = [m.text for m in (await anna.messages(session))[::2]]
            self.assertEqual(users, run_ids)

    async def test_fifty_posts_each_canceled_at_once_end_canceled_exactly_once(self) -> None:
        async with LocalDaemon() as daemon:
            anna = await daemon.join()
            session = await anna.session()
            run_ids = [f"r{number}" for number in range(50)]
            for run_id in run_ids:
                await anna.prompt(session, run_id, run_id=run_id)
                receipt = await anna.cancel(session)
                # Those before it may still unwind; they are canceled already.
                self.assertEqual(receipt[-1]["run_id"], run_id)
            for run_id in run_ids:
                self.assertEqual(await self.outcome(anna, run_id), "canceled")
            entered = len(daemon.agent.runs)
            await anna.prompt(session, "the next one", run_id="next")
            (await daemon.entered(entered + 1)).release()
            await anna.events.wait_for("run_complete", run_id="next", cancelled=None)
            self.assert_ended_once(anna.events, *run_ids, "next")
            messages = await anna.messages(session)
            self.assertEqual([m.text for m in messages[:100:2]], run_ids)
            self.assertEqual([m.finish for m in messages[1:100:2]], ["canceled"] * 50)


class CancelEverywhereTests(PromptTestCase):
    """`coalesce=0` makes every call of the agent suspend, so that each is a point to cancel at."""

    settings = Settings(coalesce=0.0)

    async def check(self, anna: Participant, session: str, run_id: str, hit: bool) -> None:
        """All that can be known about the run agrees with the cancel's receipt."""
        done = await anna.events.wait_for("run_complete", run_id=run_id)
        outcome = await self.outcome(anna, run_id)
        messages = await anna.messages(session)
        self.assert_valid_history(messages)
        last = [m for m in messages if m["role"] == "assistant"][-1]
        told = (done["cancelled"], outcome, last.finish)
        expected = (True, "canceled", "canceled") if hit else (None, "completed", "end_turn")
        self.assertEqual(told, expected)
        self.assertEqual((done["message_id"], done["text"] or ""), (last["id"], last.text))
        self.assertEqual([m["role"] for m in messages].count("user"), 1)
        finishes = [m.finish for m in messages if m["role"] == "assistant"][:-1]
        self.assertEqual(finishes, ["tool_use"] * len(finishes))
        if not hit:
            self.assertEqual(len(messages), 4)
            self.assertEqual(last.text, "it says: contents")
        self.assertFalse(await anna.busy(session))

    async def test_a_cancel_after_any_step_of_the_loop_agrees_with_its_receipt(self) -> None:
        async with gated(talker, self.settings) as (daemon, _):
            anna = await daemon.join()
            workspace = daemon.backend.get(anna.workspace["id"])
            hits: list[str] = []
            quiet, steps = 0, 0
            while quiet < TAIL:
                session = (await workspace.create_session("")).id
                run_id = f"r{steps}"
                prompt = Prompt(session, "hello", run_id=run_id)
                accepting = asyncio.create_task(workspace.runs.prompt(prompt))
                for _ in range(steps):
                    await asyncio.sleep(0)
                receipt, _ = workspace.runs.cancel(session)
                hit = [(one.run_id, one.was) for one in receipt.canceled]
                self.assertIn([run for run, _ in hit], ([], [run_id]))
                hits += [was for _, was in hit]
                # Nothing to hit at step 0: it is not accepted yet. Later: its turn is over.
                quiet = 0 if hit or not steps else quiet + 1
                await accepting
                await self.check(anna, session, run_id, bool(hit))
                steps += 1
            self.assert_ended_once(anna.events, *(f"r{number}" for number in range(steps)))
            # The sweep was fine enough to find the run in both of its states, more than once.
            self.assertEqual(set(hits), {"accepted", "active"})
            self.assertGreater(min(hits.count("accepted"), hits.count("active")), 1)

    async def test_a_cancel_after_any_step_of_the_loop_ends_a_run_that_would_never_end(
        self,
    ) -> None:
        inside: list[str] = []

        async def hang(turn: Turn) -> None:
            inside.append(turn.run_id)
            await asyncio.Event().wait()

        async with gated(hang) as (daemon, _):
            anna = await daemon.join()
            workspace = daemon.backend.get(anna.workspace["id"])
            steps = 0
            while len(inside) < TAIL:
                steps += 1
                session = (await workspace.create_session("")).id
                prompt = Prompt(session, "hello", run_id=f"r{steps}")
                accepting = asyncio.create_task(workspace.runs.prompt(prompt))
                for _ in range(steps):
                    await asyncio.sleep(0)
                receipt, _ = workspace.runs.cancel(session)
                self.assertEqual([hit.run_id for hit in receipt.canceled], [f"r{steps}"])
                await accepting
                await anna.events.wait_for("run_complete", run_id=f"r{steps}", cancelled=True)
                messages = shape(await anna.messages(session))
                self.assertEqual(
                    messages, [("user", "stop", "hello"), ("assistant", "canceled", "")]
                )
            self.assert_ended_once(anna.events, *(f"r{number}" for number in range(1, steps + 1)))
            self.assertGreater(steps, TAIL)  # some were canceled before they got inside

    async def test_a_cancel_while_the_ending_ahead_is_committed_keeps_the_next_from_starting(
        self,
    ) -> None:
        async with gated() as (daemon, gate):
            anna = await daemon.join()
            session = await anna.session()
            await anna.prompt(session, "hello", run_id="one")
            run = await daemon.entered(1)
            await anna.prompt(session, "hello", run_id="two")
            gate.shut()
            run.release()
            await anna.events.wait_for("message", finish="end_turn")
            receipt = await anna.cancel(session)
            self.assertEqual([hit["run_id"] for hit in receipt], ["two"])
            gate.open()
            await anna.events.wait_for("run_complete", run_id="one", cancelled=None)
            await anna.events.wait_for("run_complete", run_id="two", cancelled=True)
            self.assertEqual(len(daemon.agent.runs), 1)
            finishes = [message.finish for message in await anna.messages(session)]
            self.assertEqual(finishes, ["stop", "end_turn", "stop", "canceled"])

    async def test_a_second_cancel_lists_and_awaits_what_the_first_one_hit(self) -> None:
        async with gated() as (daemon, gate):
            anna = await daemon.join()
            session = await anna.session()
            await anna.prompt(session, "hello", run_id="one")
            await daemon.entered(1)
            await anna.prompt(session, "hello", run_id="two")
            gate.shut()
            await anna.cancel(session)
            await anna.events.wait_for("message", finish="canceled")  # its ending waits at the gate
            waits = asyncio.create_task(anna.cancel(session, wait=60))
            again = await anna.cancel(session)
            self.assertEqual([hit["run_id"] for hit in again], ["one", "two"])
            server = daemon.daemon.server
            await until(lambda: len(server.tasks) == 1, "the second cancel waits")
            gate.open()
            self.assertEqual([hit["run_id"] for hit in await waits], ["one", "two"])
            ended = [event["run_id"] for event in anna.events.all("run_complete")]
            self.assertEqual(sorted(ended), ["one", "two"])
            self.assertEqual(await anna.cancel(session), [])

    async def test_a_cancel_at_any_commit_agrees_with_its_receipt(self) -> None:
        async with gated(bookkeeper, self.settings) as (daemon, gate):
            anna = await daemon.join()
            receipts: list[list[str]] = []
            while not receipts or receipts[-1]:
                commits = len(receipts)
                session = await anna.session()
                receipts.append(await self.cancel_at_commit(anna, gate, session, commits))
                await self.check(anna, session, f"r{commits}", bool(receipts[-1]))
            # The prompt's own commit, the turn's, and, hitting nothing, the ending's.
            self.assertEqual(receipts[0], ["accepted"])
            self.assertGreaterEqual(len(receipts), 4)
            self.assertEqual(receipts[1:-1], [["active"]] * (len(receipts) - 2))

    async def cancel_at_commit(
        self, anna: Participant, gate: Gate, session: str, commits: int
    ) -> list[str]:
        """Let so many commits through, cancel while the next one waits, then let all through."""
        run_id = f"r{commits}"
        gate.shut()
        posting = asyncio.create_task(anna.prompt(session, "hello", run_id=run_id))
        for _ in range(commits):
            await gate.reached()
            gate.let()
        await gate.reached()
        # Whatever the turn can do without that commit, it does first.
        state = (await anna.call("GET", f"/runs/{run_id}")).json["state"]
        self.assertIn(state, ("accepted", "active"))
        self.assertEqual(anna.events.all("run_complete", run_id=run_id), [])
        self.assertTrue(await anna.busy(session))
        receipt = await anna.cancel(session)
        gate.open()
        await posting
        return [hit["was"] for hit in receipt]

    async def test_a_cancel_during_the_commit_of_the_ending_finds_nothing(self) -> None:
        async with gated() as (daemon, gate):
            anna = await daemon.join()
            session = await anna.session()
            await anna.prompt(session, "hello", run_id="r")
            run = await daemon.entered(1)
            await run.say("done")
            gate.shut()
            run.release()
            await gate.reached()
            await anna.events.wait_for("message", finish="end_turn")
            # Inside it has ended; for outsiders it ends with its run_complete.
            self.assertEqual(await anna.cancel(session), [])
            self.assertEqual((await anna.call("GET", "/runs/r")).json["state"], "active")
            self.assertTrue(await anna.busy(session))
            # A prompt that comes now stands behind it, and is not covered by that cancel.
            following = asyncio.create_task(anna.prompt(session, "hello", run_id="next"))
            await anna.events.never("run_complete", quiet=0.05)
            gate.open()
            await following
            done = await anna.events.wait_for("run_complete", run_id="r")
            self.assertEqual((done["cancelled"], done["text"]), (None, "done"))
            (await daemon.entered(2)).release()
            await anna.events.wait_for("run_complete", run_id="next", cancelled=None)
            self.assertEqual(await self.outcome(anna, "r"), "completed")


class RepeatTests(PromptTestCase):
    async def test_another_prompt_with_the_id_of_an_ended_run_refuses_no_repeat_of_that_one(
        self,
    ) -> None:
        async with gated() as (daemon, gate):
            anna = await daemon.join()
            session = await anna.session()
            await anna.prompt(session, "hello", run_id="r")
            (await daemon.entered(1)).release()
            await anna.events.wait_for("run_complete", run_id="r")
            await self.outcome(anna, "r")
            gate.shut()
            other = asyncio.create_task(anna.try_prompt(session, "something else", run_id="r"))
            await gate.reached()
            again = await anna.try_prompt(session, "hello", run_id="r")
            self.assertEqual((again.status, again.json.get("state")), (202, "ended"))
            gate.open()
            answer = await other
            self.assertEqual((answer.status, answer.json["code"]), (409, "run_id_reused"))

    async def test_a_repeat_during_the_first_commit_waits_for_it_and_is_the_same_run(self) -> None:
        async with gated() as (daemon, gate):
            anna = await daemon.join()
            session = await anna.session()
            gate.shut()
            posts = [
                asyncio.create_task(anna.try_prompt(session, "hello", run_id="r")) for _ in range(3)
            ]
            await gate.reached()
            other = await anna.try_prompt(session, "something else", run_id="r")
            self.assertEqual((other.status, other.json["code"]), (409, "run_id_reused"))
            self.assertEqual([post.done() for post in posts], [False] * 3)
            gate.open()
            answers = await asyncio.gather(*posts)
            self.assertEqual({answer.status for answer in answers}, {202})
            self.assertEqual({answer.json["run_id"] for answer in answers}, {"r"})
            (await daemon.entered(1)).release()
            await anna.events.wait_for("run_complete", run_id="r")
            self.assertEqual(len(await anna.messages(session)), 2)
            await anna.events.never("run_complete", quiet=0.05, run_id="other")
            self.assert_ended_once(anna.events, "r")
            self.assertEqual(len(daemon.agent.runs), 1)

    async def test_a_caller_that_gives_up_during_the_commit_takes_nobody_along(self) -> None:
        async with gated(ScriptedAgent(auto=True)) as (daemon, gate):
            anna = await daemon.join()
            session = await anna.session()
            runs = daemon.backend.get(anna.workspace["id"]).runs
            gate.shut()
            prompt = Prompt(session, "hello", run_id="r")
            first, second = (asyncio.create_task(runs.prompt(prompt)) for _ in range(2))
            await gate.reached()
            first.cancel()
            await asyncio.wait([first])
            self.assertFalse(second.done())
            gate.open()
            self.assertEqual((await second).run_id, "r")
            self.assertEqual(await self.outcome(anna, "r"), "completed")
            await anna.events.wait_for("run_complete", run_id="r")
            self.assert_ended_once(anna.events, "r")

    async def test_a_repeat_whose_first_commit_fails_fails_alike_and_may_be_tried_again(
        self,
    ) -> None:
        async with gated(ScriptedAgent(auto=True)) as (daemon, gate):
            anna = await daemon.join()
            gate.shut()
            posts = [
                asyncio.create_task(anna.try_prompt("unknown", "hello", run_id="r"))
                for _ in range(2)
            ]
            await gate.reached()
            gate.open()
            answers = await asyncio.gather(*posts)
            self.assertEqual([answer.status for answer in answers], [404, 404])
            # Nothing was promised, so the id is free.
            session = await anna.session()
            await anna.prompt(session, "hello", run_id="r")
            self.assertEqual(await self.outcome(anna, "r"), "completed")

    async def test_a_repeat_is_answered_with_the_state_of_the_one_run(self) -> None:
        async with LocalDaemon() as daemon:
            anna = await daemon.join()
            session = await anna.session()
            await anna.prompt(session, "hello", run_id="r")
            run = await daemon.entered(1)
            for when_busy in ("queue", "reject", "interrupt"):
                again = await anna.prompt(session, "hello", run_id="r", when_busy=when_busy)
                self.assertEqual(again.json["state"], "active")
            run.release()
            await anna.events.wait_for("run_complete", run_id="r")
            again = await anna.prompt(session, "hello", run_id="r")
            self.assertEqual((again.json["run_id"], again.json["state"]), ("r", "ended"))
            other = await anna.try_prompt(session, "other", run_id="r")
            self.assertEqual((other.status, other.json["code"]), (409, "run_id_reused"))
            other = await anna.try_prompt(await anna.session(), "hello", run_id="r")
            self.assertEqual((other.status, other.json["code"]), (409, "run_id_reused"))
            self.assertFalse(await anna.busy(session))
            self.assertEqual(len(daemon.agent.runs), 1)
            self.assert_ended_once(anna.events, "r")

    async def test_a_repeat_of_an_ended_run_does_not_make_it_look_alive(self) -> None:
        async with gated(ScriptedAgent(auto=True)) as (daemon, gate):
            anna = await daemon.join()
            session = await anna.session()
            await anna.prompt(session, "hello", run_id="r")
            self.assertEqual(await self.outcome(anna, "r"), "completed")
            gate.shut()
            repeat = asyncio.create_task(anna.prompt(session, "hello", run_id="r"))
            await gate.reached()
            waiting = asyncio.create_task(anna.call("GET", "/runs/r?wait=5"))
            seen = [
                (await anna.call("GET", "/runs/r")).json,
                *(await anna.call("GET", "/runs")).json,
            ]
            gate.open()
            seen.append((await waiting).json)
            told = [(run["run_id"], run["state"], run["outcome"], run["text"]) for run in seen]
            self.assertEqual(told, [("r", "ended", "completed", "hello")] * 3)
            self.assertEqual((await repeat).json["state"], "ended")

    async def test_a_repeat_between_the_commit_and_its_news_is_told_the_state_of_the_run(
        self,
    ) -> None:
        async with gated(ScriptedAgent(auto=True)) as (daemon, gate):
            anna = await daemon.join()
            session = await anna.session()
            await anna.prompt(session, "hello", run_id="r")
            self.assertEqual(await self.outcome(anna, "r"), "completed")
            runs = daemon.backend.get(anna.workspace["id"]).runs
            again = Prompt(session, "hello", run_id="r")
            gate.shut()
            run, repeats = runs.accept(again).run, [asyncio.create_task(runs.prompt(again))]
            await gate.reached()
            gate.open()  # the commit is done, and nobody has heard of it
            while not run.over:  # in every turn of the loop until its row was found to be there
                repeats.append(asyncio.create_task(runs.prompt(again)))
                await asyncio.sleep(0)
            self.assertGreater(len(repeats), 1)
            states = {(await repeat).state for repeat in repeats}
            self.assertEqual(states, {"ended"})

    async def test_a_repeat_after_a_restart_is_the_run_of_before(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            async with LocalDaemon(ScriptedAgent(auto=True)) as daemon:
                anna = await daemon.join(folder)
                session = await anna.session()
                await anna.prompt(session, "hello", run_id="r")
                self.assertEqual(await self.outcome(anna, "r"), "completed")
            agent = ScriptedAgent(auto=True)
            async with LocalDaemon(agent) as daemon:
                anna = await daemon.join(folder)
                again = await anna.prompt(session, "hello", run_id="r")
                self.assertEqual((again.json["run_id"], again.json["state"]), ("r", "ended"))
                other = await anna.try_prompt(session, "other", run_id="r")
                self.assertEqual((other.status, other.json["code"]), (409, "run_id_reused"))
                expected = [("user", "stop", "hello"), ("assistant", "end_turn", "hello")]
                self.assertEqual(shape(await anna.messages(session)), expected)
                self.assertEqual(agent.most_concurrent, 0)
                await anna.events.never("run_complete")
                await self.assert_takes_prompts(anna, session)
