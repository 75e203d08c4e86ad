"""Sub-agents: their sessions, their limits, and that they end before the agent they work for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from crushlite.agent.base import Usage
from crushlite.errors import BadRequest, LimitReached, NotFound
from crushlite.settings import Settings
from crushlite.testing import LocalDaemon
from tests.support.basics import BoundedTestCase
from tests.support.scenarios import scenario

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from crushlite.agent.base import Turn
    from crushlite.testing import Seen

    Work = Callable[[Turn], Awaitable[None]]


class ChildrenCase(BoundedTestCase):
    async def start(self, agent: Work, **settings: Any) -> None:
        self.daemon = await self.enterAsyncContext(
            LocalDaemon(agent, settings=Settings(**settings))
        )
        self.anna = await self.daemon.join()
        await self.anna.attach(resume=True)
        self.session = await self.anna.session()

    async def ended(self) -> Seen:
        """The ending of the run, not those of its sub-agents."""
        return await self.anna.events.wait_for("run_complete", session_id=self.session)

    async def child(self) -> str:
        """The session of the first sub-agent, which may have begun already."""
        fields = {"action": "created", "parent_session_id": self.session}
        events = self.anna.events
        known = events.all("session", **fields)
        return str((known or [await events.wait_for("session", **fields)])[0]["id"])

    async def get(self, path: str) -> Any:
        answer = await self.anna.call("GET", path)
        self.assertEqual(answer.status, 200, answer)
        return answer.json

    def kinds(self, session: str) -> list[str]:
        """What was published about a session, in order."""
        return [
            f"{event.kind} {event.action}"
            for event in self.anna.events.seen
            if session in (event.payload.get("session_id"), event.payload.get("id"))
        ]


def delegating(*works: Work) -> Work:
    """An agent that gives each of these to a sub-agent, all at once, and says what they said."""

    async def agent(turn: Turn) -> None:
        calls = [await turn.tool_call("agent", {"prompt": f"part {n}"}) for n in range(len(works))]

        async def one(call: str, number: int, work: Work) -> None:
            answer = await turn.delegate(call, f"part {number}", work)
            await turn.tool_result(call, answer.text)

        async with asyncio.TaskGroup() as group:
            for number, (call, work) in enumerate(zip(calls, works, strict=True)):
                group.create_task(one(call, number, work))
        await turn.say("done")

    return agent


class SessionTests(ChildrenCase):
    @scenario(251)
    async def test_a_sub_agent_has_a_session_that_is_named_after_its_call_and_not_listed(
        self,
    ) -> None:
        async def work(turn: Turn) -> None:
            call = await turn.tool_call("view", {"file_path": "a.py"})
            await turn.tool_result(call, "text")
            await turn.usage(Usage(10, 5, 0.25))
            await turn.say(f"I did {turn.prompt}")

        await self.start(delegating(work))
        await self.anna.prompt(self.session)
        await self.ended()
        step, result, last = (await self.anna.messages(self.session))[1:]
        [call] = [part["data"] for part in step["parts"] if part["type"] == "tool_call"]
        child = f"{step['id']}$${call['id']}"
        self.assertEqual(result["parts"][0]["data"]["content"], "I did part 0")
        self.assertEqual(last.text, "done")
        found = await self.get(f"/sessions/{child}")
        self.assertEqual((found["parent_session_id"], found["title"]), (self.session, "part 0"))
        self.assertEqual((found["cost"], found["is_busy"]), (0.25, False))
        self.assertEqual((await self.get(f"/sessions/{self.session}"))["cost"], 0.25)
        self.assertEqual([each["id"] for each in await self.get("/sessions")], [self.session])
        messages = await self.anna.messages(child)
        self.assertEqual([m["role"] for m in messages], ["user", "assistant", "tool", "assistant"])
        self.assertEqual([m.finish for m in messages], ["stop", "tool_use", "stop", "end_turn"])

    async def test_clients_see_a_sub_agent_begin_work_and_end_before_its_call_has_a_result(
        self,
    ) -> None:
        async def work(turn: Turn) -> None:
            call = await turn.tool_call("grep", {"pattern": "x"})
            await turn.tool_result(call, "found")
            await turn.say("here")

        await self.start(delegating(work))
        await self.anna.prompt(self.session)
        await self.ended()
        child = await self.child()
        kinds = self.kinds(child)
        self.assertEqual(kinds[:2], ["session created", "message created"])
        self.assertEqual(kinds[-2:], ["session updated", "run_complete updated"])
        seen = self.anna.events.seen
        [own] = [
            n for n, e in enumerate(seen) if e.kind == "run_complete" and e["session_id"] == child
        ]
        results = [
            n
            for n, e in enumerate(seen)
            if e.kind == "message" and e["role"] == "tool" and e["session_id"] == self.session
        ]
        self.assertLess(own, results[0])
        self.assertNotIn("run_id", seen[own].payload)
        [shown] = self.anna.events.all("tool_output", session_id=self.session)
        self.assertIn("grep", shown["output"])

    async def test_what_a_sub_agent_raises_reaches_the_agent_and_is_in_its_session(self) -> None:
        raised: list[str] = []

        async def work(turn: Turn) -> None:
            await turn.say("half of")
            raise RuntimeError("no more disk")

        async def agent(turn: Turn) -> None:
            call = await turn.tool_call("agent", {"prompt": "x"})
            try:
                await turn.delegate(call, "x", work)
            except RuntimeError as error:
                raised.append(str(error))
            await turn.tool_result(call, "failed", is_error=True)

        await self.start(agent)
        await self.anna.prompt(self.session)
        self.assertNotIn("error", (await self.ended()).payload)
        self.assertEqual(raised, ["no more disk"])
        last = (await self.anna.messages(await self.child()))[-1]
        self.assertEqual((last.finish, last.text), ("error", "half of"))

    async def test_a_sub_agent_starts_no_other_and_takes_no_prompts(self) -> None:
        refused: list[str] = []

        async def work(turn: Turn) -> None:
            call = await turn.tool_call("agent", {"prompt": "x"})
            try:
                await turn.delegate(call, "x", work)
            except BadRequest as error:
                refused.append(error.message)
            await turn.tool_result(call, "no")

        await self.start(delegating(work))
        await self.anna.prompt(self.session)
        await self.ended()
        self.assertEqual(len(refused), 1)
        child = await self.child()
        answer = await self.anna.try_prompt(child)
        self.assertEqual((answer.status, "sub-agent" in answer.json["message"]), (400, True))
        answer = await self.anna.call("POST", f"/agent/sessions/{child}/summarize")
        self.assertEqual(answer.status, 400)

    async def test_a_session_is_deleted_with_its_sub_agents(self) -> None:
        waiting = asyncio.Event()

        async def work(turn: Turn) -> None:
            await turn.say("on my way")
            await waiting.wait()

        await self.start(delegating(work, work))
        await self.anna.prompt(self.session)
        child = await self.child()
        answer = await self.anna.call("DELETE", f"/sessions/{self.session}")
        self.assertEqual(answer.status, 200)
        self.assertEqual((await self.anna.call("GET", f"/sessions/{child}")).status, 404)
        self.assertEqual(await self.anna.messages(child), [])


class LimitTests(ChildrenCase):
    async def test_the_steps_and_the_cost_of_sub_agents_count_for_the_run(self) -> None:
        reached: list[str] = []

        async def work(turn: Turn) -> None:
            try:
                for _ in range(10):
                    await turn.step()
                    await turn.say("more")
                    await turn.usage(Usage(1, 1, 0.1))
            except LimitReached as error:
                reached.append(error.message)
                raise

        async def agent(turn: Turn) -> None:
            call = await turn.tool_call("agent", {"prompt": "x"})
            try:
                await turn.delegate(call, "x", work)
            except LimitReached:
                await turn.tool_result(call, "it stopped", is_error=True)
            await turn.step()

        await self.start(agent)
        for limit in ({"max_steps": 4}, {"max_cost": 0.25}):
            with self.subTest(limit):
                run = (await self.anna.prompt(self.session, **limit)).json["run_id"]
                done = await self.anna.events.wait_for("run_complete", run_id=run)
                [name] = limit
                self.assertIn(name, done["error"])
                self.assertIn(name, reached.pop())

    async def test_a_permission_is_asked_for_the_session_above_and_holds_for_both(self) -> None:
        verdicts: list[bool] = []

        async def ask(turn: Turn) -> None:
            call = await turn.tool_call("bash", {"command": "make"})
            verdicts.append(
                bool(
                    await turn.permission(
                        "bash", "execute", params={}, path="/p", tool_call_id=call
                    )
                )
            )
            await turn.tool_result(call, "ok")

        async def agent(turn: Turn) -> None:
            call = await turn.tool_call("agent", {"prompt": "x"})
            answer = await turn.delegate(call, "x", ask)
            await turn.tool_result(call, str(answer.denied))
            await ask(turn)

        await self.start(agent)
        run = (await self.anna.prompt(self.session)).json["run_id"]
        request = await self.anna.events.wait_for("permission_request")
        self.assertEqual(request["session_id"], self.session)
        await self.anna.grant(request.payload, "allow_session")
        await self.ended()
        self.assertEqual(verdicts, [True, True])
        self.assertEqual(len(self.anna.events.all("permission_request")), 1)
        self.assertEqual((await self.get(f"/runs/{run}"))["denied"], 0)


class EndTests(ChildrenCase):
    async def test_a_cancel_ends_sub_agents_and_their_commands_before_the_run(self) -> None:
        async def work(turn: Turn) -> None:
            call = await turn.tool_call("bash", {"command": "sleep"})
            command = await turn.command("sleep 600", read_only=True)
            await turn.say("")
            self.processes.append(command)
            self.started.set()
            await command.wait()
            await turn.tool_result(call, "")

        self.processes: list[Any] = []
        self.started = asyncio.Event()
        await self.start(delegating(work))
        await self.anna.prompt(self.session)
        await self.started.wait()
        await self.anna.cancel(self.session)
        self.assertTrue((await self.ended())["cancelled"])
        self.assertTrue(all(command.done.done() for command in self.processes))
        child = await self.child()
        ends = [e["session_id"] for e in self.anna.events.all("run_complete")]
        self.assertEqual(ends, [child, self.session])
        messages = await self.anna.messages(child)
        self.assertEqual([m.finish for m in messages], ["stop", "canceled", "stop"])

    async def test_a_sub_agent_that_ignores_its_cancellation_is_ended_with_the_run(self) -> None:
        release = asyncio.Event()
        self.addCleanup(release.set)

        async def work(turn: Turn) -> None:
            await turn.say("busy")
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    pass

        await self.start(delegating(work), cancel_grace=0.05)
        await self.anna.prompt(self.session)
        child = await self.child()
        await self.anna.events.wait_for("message", session_id=child, text="busy")
        await self.anna.cancel(self.session)
        self.assertTrue((await self.ended())["cancelled"])
        ends = [e["session_id"] for e in self.anna.events.all("run_complete")]
        self.assertEqual(ends, [child, self.session])
        self.assertEqual((await self.anna.messages(child))[-1].finish, "canceled")

    async def test_a_sub_agent_that_its_agent_left_behind_is_ended_with_the_run(self) -> None:
        tasks: list[asyncio.Future[Any]] = []

        async def work(turn: Turn) -> None:
            await turn.say("busy")
            self.started.set()
            await asyncio.Event().wait()

        async def agent(turn: Turn) -> None:
            call = await turn.tool_call("agent", {"prompt": "x"})
            tasks.append(asyncio.ensure_future(turn.delegate(call, "x", work)))
            await self.started.wait()

        self.started = asyncio.Event()
        self.addCleanup(lambda: [task.cancel() for task in tasks])
        await self.start(agent)
        await self.anna.prompt(self.session)
        await self.ended()
        child = await self.child()
        self.assertEqual((await self.anna.messages(child))[-1].finish, "canceled")

    async def test_several_work_at_the_same_time(self) -> None:
        both = asyncio.Barrier(2)

        async def work(turn: Turn) -> None:
            await both.wait()
            await turn.say(turn.prompt)

        await self.start(delegating(work, work))
        await self.anna.prompt(self.session)
        await self.ended()
        results = [m for m in await self.anna.messages(self.session) if m["role"] == "tool"]
        texts = sorted(m["parts"][0]["data"]["content"] for m in results)
        self.assertEqual(texts, ["part 0", "part 1"])

    async def test_without_the_wing_the_agent_is_told_so_and_goes_on(self) -> None:
        async def agent(turn: Turn) -> None:
            call = await turn.tool_call("agent", {"prompt": "x"})
            with self.assertRaisesRegex(NotFound, "has no sub-agents"):
                await turn.delegate(call, "x", agent)
            await turn.tool_result(call, "none", is_error=True)
            await turn.say("done without")

        class Summarizing:
            run = staticmethod(agent)

            async def summarize(self, turn: Turn) -> None:
                await turn.say("never")

        async with LocalDaemon(Summarizing(), wings=[]) as daemon:
            anna = await daemon.join()
            await anna.prompt(await anna.session())
            done = await anna.events.wait_for("run_complete")
            self.assertEqual((done["text"], done["error"]), ("done without", None))
            session = done["session_id"]
            answer = await anna.call("POST", f"/agent/sessions/{session}/summarize")
            self.assertEqual((answer.status, answer.json["code"]), (404, "not_found"))
