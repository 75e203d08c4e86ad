"""Runs over HTTP: what busy sessions do with prompts, how runs, queues and receipts are seen, what
is refused, and what deleting a session leaves behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any
from unittest import mock
from urllib.parse import quote

from crushlite.agent.base import Usage
from crushlite.errors import LimitReached
from crushlite.hosting.live_run import _info
from crushlite.protocol.sessions import Todo
from crushlite.settings import Settings
from crushlite.testing import Answer, LocalDaemon, Participant, ScriptedRun, Seen
from crushlite.testing.fake_clock import FakeClock
from tests.support.basics import BoundedTestCase

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from crushlite.agent.base import Turn
    from crushlite.store import Connection

RUN_KEYS = {
    *("run_id", "session_id", "kind", "state", "outcome", "message_id", "text", "error"),
    *("folded_into", "accepted_at", "started_at", "ended_at", "denied"),
    *("limit", "cost", "prompt_tokens", "completion_tokens", "prompt"),
}


class RunnerTestCase(BoundedTestCase):
    agent: Any = None

    async def asyncSetUp(self) -> None:
        self.daemon = await self.enterAsyncContext(LocalDaemon(self.agent))
        self.anna: Participant = await self.daemon.join()
        self.session = await self.anna.session()

    async def begin(self, run_id: str = "main", session: str | None = None) -> ScriptedRun:
        """Start a run and return when it is inside the agent."""
        number = len(self.daemon.agent.runs) + 1
        await self.anna.prompt(session or self.session, run_id, run_id=run_id)
        return await self.daemon.entered(number)

    async def post(self, text: str, **fields: Any) -> str:
        return str((await self.anna.prompt(self.session, text, **fields)).json["run_id"])

    async def get(self, path: str) -> Any:
        answer = await self.anna.call("GET", path)
        self.assertEqual(answer.status, 200, answer)
        return answer.json

    async def complete(self, run_id: str) -> Seen:
        return await self.anna.events.wait_for("run_complete", run_id=run_id)

    async def refused(self, answer: Answer, status: int, code: str) -> None:
        self.assertEqual((answer.status, answer.json["code"]), (status, code), answer)
        self.assertTrue(answer.json["message"])

    def endings(self) -> list[str]:
        return [event["run_id"] for event in self.anna.events.all("run_complete")]

    async def told(self, session: str | None = None) -> list[tuple[str, str, str]]:
        messages = await self.anna.messages(session or self.session)
        return [(message["role"], message.text, message.finish) for message in messages]

    async def meanwhile(self, request: Coroutine[Any, Any, Answer]) -> asyncio.Task[Answer]:
        """Send a request that will wait, and return when the daemon surely has it."""
        task = asyncio.ensure_future(request)
        for _ in range(5):
            await self.anna.call("GET", "/agent")
        return task

    @property
    def queue_path(self) -> str:
        return f"/agent/sessions/{self.session}/prompts"


class WhenBusyTests(RunnerTestCase):
    async def test_without_a_run_id_a_prompt_steers_and_with_one_it_queues(self) -> None:
        await self.begin()
        await self.post("a")
        await self.post("b", run_id="b")
        modes = [(entry["text"], entry["when_busy"]) for entry in await self.get(self.queue_path)]
        self.assertEqual(modes, [("a", "steer"), ("b", "queue")])

    async def test_the_answer_tells_the_state_and_a_minted_id(self) -> None:
        first = await self.anna.prompt(self.session, "a")
        await self.daemon.entered(1)
        second = await self.anna.prompt(self.session, "b")
        self.assertIn(first.json["state"], ("accepted", "active"))
        self.assertEqual(second.json["state"], "queued")
        self.assertEqual(set(second.json), {"run_id", "session_id", "state"})
        self.assertEqual(second.json["session_id"], self.session)
        self.assertNotEqual(first.json["run_id"], second.json["run_id"])

    async def test_steer_folds_although_it_has_a_run_id(self) -> None:
        run = await self.begin()
        await self.post("turn left", run_id="left", when_busy="steer")
        riders = await run.do(lambda turn: turn.followups())
        self.assertEqual([rider.text for rider in riders], ["turn left"])
        run.release()
        self.assertEqual((await self.complete("left"))["folded_into"], "main")

    async def test_while_a_tool_call_is_open_a_steer_waits_for_the_next_chance(self) -> None:
        run = await self.begin()
        call = await run.do(lambda turn: turn.tool_call("ls", "{}"))
        await self.post("turn left", run_id="left", when_busy="steer")
        self.assertEqual(await run.do(lambda turn: turn.followups()), [])
        queued = [entry["run_id"] for entry in await self.get(self.queue_path)]
        self.assertEqual(queued, ["left"])
        await run.do(lambda turn: turn.tool_result(call, "a.txt"))
        riders = await run.do(lambda turn: turn.followups())
        self.assertEqual([rider.text for rider in riders], ["turn left"])
        await run.say("turned")
        run.release()
        self.assertEqual((await self.complete("left"))["folded_into"], "main")
        told = [(role, text) for role, text, _ in await self.told()]
        behind = [("tool", ""), ("user", "turn left"), ("assistant", "turned")]
        self.assertEqual(told, [("user", "main"), ("assistant", ""), *behind])

    async def test_a_turn_without_a_step_left_takes_nobody_along(self) -> None:
        await self.anna.prompt(self.session, "main", run_id="main", max_steps=1)
        run = await self.daemon.entered(1)
        await run.say("going right")
        await self.post("turn left", run_id="left", when_busy="steer")
        self.assertEqual(await run.do(lambda turn: turn.followups()), [])
        run.release()
        self.assertEqual((await self.complete("main"))["error"], None)
        second = await self.daemon.entered(2)
        await second.say("turned")
        second.release()
        self.assertEqual((await self.complete("left"))["text"], "turned")

    async def test_what_is_said_after_a_fold_stands_behind_the_folded_prompt(self) -> None:
        run = await self.begin()
        await run.say("going right")
        await self.post("turn left", run_id="left", when_busy="steer")
        await run.do(lambda turn: turn.followups())
        await run.say("turning ")
        self.assertEqual(await run.do(lambda turn: turn.followups()), [])
        await run.say("left")  # nothing was folded: the same message goes on
        run.release()
        await self.complete("left")
        told = [
            ("user", "main", "stop"),
            ("assistant", "going right", "tool_use"),
            ("user", "turn left", "stop"),
            ("assistant", "turning left", "end_turn"),
        ]
        self.assertEqual(await self.told(), told)
        begun = list(dict.fromkeys(event["id"] for event in self.anna.events.all("message")))
        listed = [message["id"] for message in await self.anna.messages(self.session)]
        self.assertEqual(begun, listed)

    async def test_queue_does_not_fold_although_it_has_no_run_id(self) -> None:
        run = await self.begin()
        later = await self.post("later", when_busy="queue")
        self.assertEqual(await run.do(lambda turn: turn.followups()), [])
        run.release()
        second = await self.daemon.entered(2)
        self.assertEqual(second.turn.run_id, later)
        second.release()
        await self.complete(later)

    async def test_interrupt_cancels_all_that_is_ahead_and_then_starts(self) -> None:
        run = await self.begin()
        await run.say("half")
        waiting = await self.post("waiting")
        await self.post("now!", run_id="now", when_busy="interrupt")
        second = await self.daemon.entered(2)
        self.assertEqual(second.prompt, "now!")
        await second.say("yes")
        second.release()
        await self.complete("now")
        self.assertEqual(self.endings(), ["main", waiting, "now"])
        cancelled = [event["cancelled"] for event in self.anna.events.all("run_complete")]
        self.assertEqual(cancelled, [True, True, None])
        self.assertEqual(
            await self.told(),
            [
                ("user", "main", "stop"),
                ("assistant", "half", "canceled"),
                ("user", "waiting", "stop"),
                ("assistant", "", "canceled"),
                ("user", "now!", "stop"),
                ("assistant", "yes", "end_turn"),
            ],
        )

    async def test_interrupt_leaves_other_sessions_and_what_comes_later_alone(self) -> None:
        other = await self.anna.session()
        elsewhere = await self.begin("elsewhere", other)
        await self.begin()
        await self.post("now!", run_id="now", when_busy="interrupt")
        third = await self.daemon.entered(3)
        await self.post("after", run_id="after")
        third.release()
        fourth = await self.daemon.entered(4)
        self.assertEqual(fourth.prompt, "after")
        fourth.release()
        elsewhere.release()
        await self.complete("elsewhere")
        outcomes = {run["run_id"]: run["outcome"] for run in await self.get("/runs")}
        self.assertEqual(
            outcomes,
            {
                "elsewhere": "completed",
                "main": "canceled",
                "now": "completed",
                "after": "completed",
            },
        )

    async def test_every_mode_simply_starts_on_an_idle_session(self) -> None:
        for mode in ("steer", "queue", "interrupt", "reject"):
            with self.subTest(mode):
                number = len(self.daemon.agent.runs) + 1
                await self.post(mode, run_id=mode, when_busy=mode)
                (await self.daemon.entered(number)).release()
                self.assertIsNone((await self.complete(mode))["cancelled"])

    async def test_reject_stores_nothing_while_the_session_is_busy(self) -> None:
        run = await self.begin()
        answer = await self.anna.try_prompt(self.session, "no", run_id="no", when_busy="reject")
        await self.refused(answer, 409, "session_busy")
        await self.refused(await self.anna.call("GET", "/runs/no"), 404, "run_not_found")
        self.assertEqual(await self.get(self.queue_path), [])
        run.release()
        await self.complete("main")
        self.assertEqual([text for role, text, _ in await self.told() if role == "user"], ["main"])
        self.assertEqual(self.endings(), ["main"])

    async def test_a_repeat_of_an_ended_run_is_no_new_prompt_for_a_busy_session(self) -> None:
        fields = {"run_id": "first", "when_busy": "reject"}
        await self.post("first", **fields)
        (await self.daemon.entered(1)).release()
        await self.complete("first")
        await self.begin()
        again = await self.anna.prompt(self.session, "first", **fields)
        self.assertEqual(again.json["state"], "ended")
        other = await self.anna.try_prompt(self.session, "other", **fields)
        await self.refused(other, 409, "run_id_reused")


class RefusalTests(RunnerTestCase):
    async def test_a_prompt_that_makes_no_sense_is_refused_and_leaves_nothing(self) -> None:
        def file(content: str) -> dict[str, Any]:
            return {"attachments": [{"content": content, "mime_type": "text/plain"}]}

        wrong: tuple[dict[str, Any], ...] = (
            *({"when_busy": value} for value in ("later", "STEER", 1)),
            *({"max_steps": value} for value in (0, -1, 1.5, "3", True)),
            *({"max_cost": value} for value in (-0.01, "1", True)),
            *({"run_id": value} for value in ("x" * 201, "a\0b", 5, "\ud800")),
            *(file(content) for content in ("###", "Zm9", "Zm9v\n")),
            {"attachments": "none"},
            {"detach": "yes"},
        )
        for fields in wrong:
            with self.subTest(fields):
                answer = await self.anna.try_prompt(self.session, "hello", **fields)
                await self.refused(answer, 400, "bad_request")
        body = json.dumps({"session_id": self.session, "prompt": "x", "max_cost": float("nan")})
        answer = await self.anna.call("POST", "/agent", body.encode())
        await self.refused(answer, 400, "bad_request")
        await self.assert_nothing_left()

    async def test_a_nul_in_the_name_of_an_attachment_is_refused_and_nothing_is_stored(
        self,
    ) -> None:
        sound = {"content": "Zm9v", "mime_type": "text/plain", "file_path": "a", "file_name": "a"}
        for name in ("file_path", "file_name"):
            files = [sound, {**sound, name: "a\0.txt"}]
            answer = await self.anna.try_prompt(self.session, "hello", attachments=files)
            await self.refused(answer, 400, "bad_request")
            self.assertIn(r"'a\x00.txt'", answer.json["message"])
            self.assertIn("NUL", answer.json["message"])
        await self.assert_nothing_left()

    async def assert_nothing_left(self) -> None:
        self.assertEqual(await self.get("/runs"), [])
        self.assertEqual(await self.told(), [])
        self.assertFalse(await self.anna.busy(self.session))
        self.assertEqual(self.daemon.agent.runs, [])
        await self.anna.events.never("run_complete")

    async def test_an_unknown_session_is_404_and_its_run_id_stays_free(self) -> None:
        for mode in ("steer", "queue", "interrupt", "reject"):
            answer = await self.anna.try_prompt("nowhere", "hello", run_id="r", when_busy=mode)
            await self.refused(answer, 404, "session_not_found")
        await self.refused(await self.anna.call("GET", "/runs/r"), 404, "run_not_found")
        self.assertFalse((await self.get("/agent"))["is_busy"])
        await self.assert_nothing_left()
        await self.post("here", run_id="r")
        (await self.daemon.entered(1)).release()
        await self.complete("r")

    async def test_a_limit_of_zero_cost_and_one_step_are_limits(self) -> None:
        await self.post("x", run_id="r", max_cost=0, max_steps=1)
        run = await self.daemon.entered(1)
        run.release()
        self.assertIsNone((await self.complete("r"))["error"])


class RunIdTests(RunnerTestCase):
    IDS = ("a b/ü?x", "%2F", "a+b&c=d#e", "queued", "list", "clear", "..", "." * 200, "𝄞" * 200)

    async def test_any_text_is_a_run_id_and_location_leads_to_it(self) -> None:
        for number, run_id in enumerate(self.IDS, 1):
            with self.subTest(run_id[:10]):
                answer = await self.anna.prompt(self.session, "hello", run_id=run_id)
                self.assertEqual(answer.json["run_id"], run_id)
                location = answer.headers.get("Location")
                assert location is not None
                base = f"{self.anna.base}/runs/"
                self.assertEqual(location, base + quote(run_id, safe=""))
                (await self.daemon.entered(number)).release()
                await self.complete(run_id)
                found = await self.daemon.call("GET", location)
                self.assertEqual((found.status, found.json["run_id"]), (200, run_id))
                self.assertEqual(found.json["outcome"], "completed")

    async def test_location_is_percent_encoded_byte_by_byte(self) -> None:
        answer = await self.anna.prompt(self.session, "hello", run_id="a b/ü?x")
        location = answer.headers.get("Location") or ""
        self.assertTrue(location.endswith("/runs/a%20b%2F%C3%BC%3Fx"), location)

    async def test_any_queued_run_can_be_removed_by_its_id(self) -> None:
        await self.begin()
        for run_id in self.IDS:
            with self.subTest(run_id[:10]):
                await self.post("waiting", run_id=run_id)
                path = f"{self.queue_path}/{quote(run_id, safe='')}"
                self.assertEqual((await self.anna.call("DELETE", path)).status, 200)
                self.assertTrue((await self.complete(run_id))["cancelled"])


class RunViewTests(RunnerTestCase):
    async def test_runs_are_listed_oldest_first_by_session_and_state(self) -> None:
        other = await self.anna.session()
        (await self.begin("one")).release()
        await self.complete("one")
        run = await self.begin("two")
        await self.post("three", run_id="three")
        await self.post("four", run_id="four", when_busy="steer")
        await run.do(lambda turn: turn.followups())
        await self.begin("five", other)

        async def ids(query: str) -> list[str]:
            return [info["run_id"] for info in await self.get(f"/runs{query}")]

        self.assertEqual(await ids(""), ["one", "two", "three", "four", "five"])
        mine = f"?session_id={self.session}"
        self.assertEqual(await ids(mine), ["one", "two", "three", "four"])
        for state, expected in (
            ("ended", ["one"]),
            ("active", ["two"]),
            ("queued", ["three"]),
            ("folded", ["four"]),
            ("accepted", []),
        ):
            self.assertEqual(await ids(f"{mine}&state={state}"), expected, state)
        self.assertEqual(await ids("?state=active"), ["two", "five"])
        with mock.patch("crushlite.hosting.live_run._info", wraps=_info) as read:
            await ids("?state=queued")
        self.assertEqual(read.call_count, 4, "what has ended may be most of what there is")
        self.assertEqual(await ids("?session_id=nowhere"), [])
        answer = await self.anna.call("GET", "/runs?state=running")
        await self.refused(answer, 400, "bad_request")

    async def test_a_run_is_told_alike_while_it_lives_and_from_its_row(self) -> None:
        run = await self.begin()
        live = await self.get("/runs/main")
        self.assertEqual(set(live), RUN_KEYS)
        self.assertEqual((live["state"], live["outcome"], live["kind"]), ("active", "", "prompt"))
        self.assertEqual((live["ended_at"], live["text"]), (0, ""))
        await run.say("done")
        run.release()
        message = await self.complete("main")
        ended = await self.get("/runs/main")
        self.assertEqual(set(ended), RUN_KEYS)
        self.assertEqual((ended["state"], ended["outcome"]), ("ended", "completed"))
        self.assertEqual((ended["text"], ended["error"]), ("done", ""))
        self.assertEqual(ended["message_id"], message["message_id"])
        self.assertLessEqual(ended["accepted_at"], ended["started_at"])
        self.assertLess(ended["started_at"], ended["ended_at"])
        self.assertEqual(ended["accepted_at"], live["accepted_at"])

    async def test_the_outcome_tells_how_it_ended(self) -> None:
        run = await self.begin("failed")
        run.fail("boom")
        await self.complete("failed")
        run = await self.begin("canceled")
        await self.post("cleared", run_id="cleared")
        await self.anna.call("POST", f"{self.queue_path}/clear")
        await self.anna.cancel(self.session, wait=20)
        for run_id in ("failed", "canceled", "cleared"):
            info = await self.get(f"/runs/{run_id}?wait=20")
            self.assertEqual((info["state"], info["outcome"]), ("ended", run_id))
        self.assertIn("boom", (await self.get("/runs/failed"))["error"])
        self.assertEqual((await self.get("/runs/canceled"))["error"], "")

    async def test_a_run_that_never_started_has_no_start(self) -> None:
        await self.begin()
        await self.post("waiting", run_id="waiting")
        waiter = await self.meanwhile(self.anna.call("GET", "/runs/waiting?wait=20"))
        await self.anna.cancel(self.session, wait=20)
        for info in ((await waiter).json, await self.get("/runs/waiting")):
            self.assertEqual((info["outcome"], info["started_at"]), ("canceled", 0))
            self.assertGreater(info["ended_at"], 0)

    async def test_a_folded_run_says_into_what(self) -> None:
        run = await self.begin()
        rider = await self.post("steer")
        await run.do(lambda turn: turn.followups())
        for state in ("folded", "ended"):
            info = await self.get(f"/runs/{rider}")
            self.assertEqual((info["state"], info["folded_into"]), (state, "main"))
            if state == "folded":
                await run.say("done")
                run.release()
                await self.complete(rider)
        self.assertEqual((info["outcome"], info["text"]), ("completed", "done"))
        self.assertGreater(info["started_at"], 0)

    async def test_wait_returns_at_the_end_of_the_run(self) -> None:
        run = await self.begin()
        waiter = await self.meanwhile(self.anna.call("GET", "/runs/main?wait=600"))
        self.assertFalse(waiter.done())
        await run.say("done")
        run.release()
        info = (await waiter).json
        self.assertEqual((info["state"], info["outcome"]), ("ended", "completed"))
        self.assertEqual(info["text"], "done")
        self.assertFalse(await self.anna.busy(self.session))

    async def test_wait_gives_the_present_state_when_the_time_is_up(self) -> None:
        await self.begin()
        self.assertEqual((await self.get("/runs/main?wait=0.01"))["state"], "active")
        self.assertEqual((await self.get("/runs/main?wait=0"))["state"], "active")

    async def test_a_wait_that_is_no_time_and_an_unknown_run_are_refused(self) -> None:
        await self.begin()
        for wait in ("-1", "nan", "soon"):
            answer = await self.anna.call("GET", f"/runs/main?wait={wait}")
            await self.refused(answer, 400, "bad_request")
        self.assertTrue(await self.anna.busy(self.session))
        for path in ("/runs/nobody", "/runs/nobody?wait=20"):
            await self.refused(await self.anna.call("GET", path), 404, "run_not_found")

    async def test_a_cancel_whose_wait_is_no_time_says_so_and_is_not_lost(self) -> None:
        await self.begin()
        path = f"/agent/sessions/{self.session}/cancel?wait=soon"
        answer = await self.anna.call("POST", path)
        await self.refused(answer, 400, "bad_request")
        self.assertIn("the cancel was carried out", answer.json["message"])
        self.assertEqual((await self.get("/runs/main?wait=20"))["outcome"], "canceled")


class Leaving:
    """An agent that, once canceled, leaves when the test lets it."""

    def __init__(self) -> None:
        self.inside = asyncio.Event()
        self.unwinding = asyncio.Event()
        self.gate = asyncio.Event()

    async def run(self, turn: Turn) -> None:
        self.inside.set()
        try:
            await turn.say("half")
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.unwinding.set()
            await self.gate.wait()
            raise


class CancelTests(RunnerTestCase):
    async def test_the_receipt_lists_every_live_run_and_what_it_was(self) -> None:
        run = await self.begin()
        rider = await self.post("steer")
        await run.do(lambda turn: turn.followups())
        await self.post("waiting", run_id="waiting")
        self.assertEqual(
            await self.anna.cancel(self.session, wait=20),
            [
                {"run_id": "main", "was": "active"},
                {"run_id": rider, "was": "folded"},
                {"run_id": "waiting", "was": "queued"},
            ],
        )
        for run_id in ("main", rider, "waiting"):
            done = await self.complete(run_id)
            self.assertTrue(done["cancelled"])
        self.assertEqual(await self.anna.cancel(self.session), [])


class UnwindingTests(RunnerTestCase):
    async def asyncSetUp(self) -> None:
        self.agent = self.leaving = Leaving()
        await super().asyncSetUp()
        await self.post("main", run_id="main")
        await self.leaving.inside.wait()

    async def test_cancel_with_wait_returns_when_the_runs_have_ended(self) -> None:
        await self.post("waiting", run_id="waiting")
        path = f"/agent/sessions/{self.session}/cancel?wait=600"
        waiter = await self.meanwhile(self.anna.call("POST", path))
        await self.leaving.unwinding.wait()
        self.assertFalse(waiter.done())
        self.assertTrue(await self.anna.busy(self.session))
        self.leaving.gate.set()
        receipt = (await waiter).json["canceled"]
        self.assertEqual([entry["run_id"] for entry in receipt], ["main", "waiting"])
        self.assertFalse(await self.anna.busy(self.session))
        states = [info["state"] for info in await self.get("/runs")]
        self.assertEqual(states, ["ended", "ended"])

    async def test_a_second_cancel_while_the_first_unwinds_lists_the_same_runs(self) -> None:
        first = await self.anna.cancel(self.session, wait=0.01)
        self.assertEqual(first, [{"run_id": "main", "was": "active"}])
        self.assertEqual(await self.anna.cancel(self.session), first)
        self.leaving.gate.set()
        await self.complete("main")
        self.assertEqual(await self.anna.cancel(self.session), [])
        await self.anna.events.never("agent_event")
        self.assertEqual(self.endings(), ["main"])

    async def test_from_the_first_word_of_a_delete_prompts_are_404(self) -> None:
        await self.post("waiting", run_id="waiting")
        deleting = await self.meanwhile(self.anna.call("DELETE", f"/sessions/{self.session}"))
        await self.leaving.unwinding.wait()
        for mode in ("steer", "queue", "interrupt", "reject"):
            answer = await self.anna.try_prompt(self.session, "too late", when_busy=mode)
            await self.refused(answer, 404, "session_not_found")
        self.assertFalse(deleting.done())
        self.leaving.gate.set()
        self.assertEqual((await deleting).status, 200)
        await self.assert_gone(["main", "waiting"])

    async def assert_gone(self, run_ids: list[str]) -> None:
        """Endings first, then the session's own end, and nothing after it."""
        await self.anna.events.wait_for("session", action="deleted", id=self.session)
        await self.anna.events.never(lambda event: event.text == "too late")
        seen = self.anna.events.seen
        mine = [
            (event.kind, event.action)
            for event in seen
            if self.session in (event["session_id"], event["id"])
        ]
        self.assertEqual(mine[-1], ("session", "deleted"))
        self.assertEqual(self.endings(), run_ids)
        for path in (f"/sessions/{self.session}", *(f"/runs/{run_id}" for run_id in run_ids)):
            self.assertEqual((await self.anna.call("GET", path)).status, 404, path)
        self.assertEqual(await self.told(), [])
        self.assertEqual(await self.get("/runs"), [])
        self.assertEqual(await self.rows(), [0, 0, 0])
        answer = await self.anna.try_prompt(self.session, "still?")
        await self.refused(answer, 404, "session_not_found")

    async def rows(self) -> list[int]:
        def count(conn: Connection) -> list[int]:
            tables = ("sessions", "messages", "runs")
            return [conn.execute(f"SELECT count(*) FROM {t}").fetchone()[0] for t in tables]

        store = self.daemon.backend.get(self.anna.workspace["id"]).store.store
        return await store.read(count)


class DeleteTests(RunnerTestCase):
    async def test_the_run_ids_of_a_deleted_session_are_free_again(self) -> None:
        await self.begin("again")
        other = await self.anna.session()
        self.assertEqual((await self.anna.call("DELETE", f"/sessions/{self.session}")).status, 200)
        run = await self.begin("again", other)
        run.release()
        await self.anna.events.wait_for("run_complete", session_id=other, run_id="again")
        answer = await self.anna.call("DELETE", f"/sessions/{self.session}")
        await self.refused(answer, 404, "session_not_found")

    async def test_deleting_one_session_leaves_the_runs_of_another_alone(self) -> None:
        other = await self.anna.session()
        run = await self.begin("other", other)
        await self.begin()
        await self.anna.call("DELETE", f"/sessions/{self.session}")
        await run.say("still here")
        run.release()
        self.assertEqual((await self.complete("other"))["text"], "still here")

    async def test_what_could_not_be_written_goes_with_its_session(self) -> None:
        def break_store(conn: Connection) -> None:
            conn.execute(
                "CREATE TRIGGER broken BEFORE INSERT ON messages WHEN NEW.role = 'assistant' "
                "BEGIN SELECT RAISE(ABORT, 'no room'); END"
            )

        run = await self.begin()
        await self.daemon.backend.get(self.anna.workspace["id"]).store.store.submit(break_store)
        await run.say("only in memory")
        run.release()
        self.assertIn("not saved", (await self.complete("main"))["error"])
        self.assertEqual((await self.told())[-1], ("assistant", "only in memory", "end_turn"))
        await self.anna.call("DELETE", f"/sessions/{self.session}")
        self.assertEqual(await self.told(), [])

    async def test_two_deletes_at_once_are_one_delete(self) -> None:
        await self.begin()
        path = f"/sessions/{self.session}"
        http = self.daemon.connect()
        answers = await asyncio.gather(
            self.anna.call("DELETE", path),
            self.daemon.call("DELETE", self.anna.base + path, http=http),
        )
        self.assertEqual(sorted(answer.status for answer in answers), [200, 404])
        await self.anna.events.never("run_complete", run_id="none")
        self.assertEqual(len(self.anna.events.all("session", action="deleted")), 1)
        self.assertEqual(self.endings(), ["main"])


class QueueTests(RunnerTestCase):
    async def test_the_queue_shows_what_waits_oldest_first(self) -> None:
        await self.begin()
        first = await self.post("one")
        await self.post("two", run_id="two")
        queue = await self.get(self.queue_path)
        self.assertEqual([entry["run_id"] for entry in queue], [first, "two"])
        self.assertEqual(set(queue[0]), {"run_id", "text", "when_busy", "accepted_at"})
        self.assertLessEqual(queue[0]["accepted_at"], queue[1]["accepted_at"])
        self.assertGreater(queue[0]["accepted_at"], 0)
        self.assertEqual(await self.get("/agent/sessions/nowhere/prompts"), [])

    async def remove(self, run_id: str, session: str | None = None) -> Answer:
        base = f"/agent/sessions/{session or self.session}/prompts"
        return await self.anna.call("DELETE", f"{base}/{run_id}")

    async def test_a_removed_prompt_ends_without_a_trace_in_the_history(self) -> None:
        run = await self.begin()
        for text in ("one", "two", "three"):
            await self.post(text, run_id=text)
        self.assertEqual((await self.remove("two")).status, 200)
        done = await self.complete("two")
        self.assertEqual(
            done.payload,
            {"session_id": self.session, "message_id": "", "run_id": "two", "cancelled": True},
        )
        self.assertEqual((await self.get("/runs/two"))["outcome"], "cleared")
        self.assertEqual([e["text"] for e in await self.get(self.queue_path)], ["one", "three"])
        for number in (2, 3):
            run.release()
            run = await self.daemon.entered(number)
        run.release()
        await self.complete("three")
        users = [text for role, text, _ in await self.told() if role == "user"]
        self.assertEqual(users, ["main", "one", "three"])

    async def test_only_a_queued_run_of_this_session_can_be_removed(self) -> None:
        other = await self.anna.session()
        (await self.begin("ended")).release()
        await self.complete("ended")
        run = await self.begin("active")
        rider = await self.post("steer")
        await run.do(lambda turn: turn.followups())
        await self.post("waiting", run_id="waiting")
        await self.refused(await self.remove("nobody"), 404, "run_not_found")
        for run_id in ("ended", "active", "waiting"):
            await self.refused(await self.remove(run_id, other), 404, "run_not_found")
        for run_id in ("ended", "active", rider):
            await self.refused(await self.remove(run_id), 409, "not_queued")
        self.assertEqual([e["run_id"] for e in await self.get(self.queue_path)], ["waiting"])
        self.assertFalse(run.canceled)
        self.assertEqual((await self.remove("waiting")).status, 200)
        await self.refused(await self.remove("waiting"), 409, "not_queued")

    async def test_clear_forgets_the_queue_and_spares_the_active_run(self) -> None:
        run = await self.begin()
        ids = [await self.post("one"), await self.post("two", run_id="two")]
        answer = await self.anna.call("POST", f"{self.queue_path}/clear")
        self.assertEqual((answer.status, answer.json), (200, None))
        self.assertEqual(await self.get(self.queue_path), [])
        for run_id in ids:
            done = await self.complete(run_id)
            self.assertEqual((done["cancelled"], done["message_id"]), (True, ""))
            self.assertEqual((await self.get(f"/runs/{run_id}"))["outcome"], "cleared")
        await run.say("undisturbed")
        run.release()
        self.assertEqual((await self.complete("main"))["text"], "undisturbed")
        self.assertEqual(
            await self.told(),
            [("user", "main", "stop"), ("assistant", "undisturbed", "end_turn")],
        )
        self.assertEqual(self.endings(), [*ids, "main"])

    async def test_clear_of_an_idle_session_changes_nothing(self) -> None:
        answer = await self.anna.call("POST", f"{self.queue_path}/clear")
        self.assertEqual(answer.status, 200)
        (await self.begin()).release()
        self.assertIsNone((await self.complete("main"))["cancelled"])


class LastUsageTests(RunnerTestCase):
    """An agent that says that a model call was its last has its usage stored with the ending."""

    async def used(self, run: ScriptedRun) -> None:
        await run.say("said")
        await run.do(lambda turn: turn.usage(Usage(120, 30, 0.5), last=True))

    def shown(self) -> list[str]:
        """The events after the agent's words: how messages finish, and what sessions have cost."""
        return [
            event.finish or (f"{event['cost']} {event['message_count']}")
            for event in self.anna.events.seen
            if event.finish in ("end_turn", "canceled", "tool_use")
            or (event.kind == "session" and event.action == "updated")
        ]

    async def test_it_is_stored_with_the_ending_and_shown_before_it(self) -> None:
        for number, finish in ((1, "end_turn"), (2, "canceled")):
            run = await self.begin(finish)
            await self.used(run)
            self.assertEqual(
                (await self.get(f"/sessions/{self.session}"))["cost"], 0.5 * number - 0.5
            )
            if finish == "canceled":
                await self.anna.cancel(self.session)
            else:
                run.release()
            await self.complete(finish)
            cost = 0.5 * number
            self.assertEqual((await self.get(f"/sessions/{self.session}"))["cost"], cost)
            session = f"{cost} {2 * number}"
            self.assertEqual(self.shown()[-3:], [session, finish, session])

    async def counted(self, later: Usage, *, last: bool) -> tuple[int, int]:
        """The session's counts after a run whose last model call was followed by another one."""
        run_id = f"{later} {last}"
        run = await self.begin(run_id)
        await self.used(run)
        await run.do(lambda turn: turn.usage(later, last=last))
        run.release()
        await self.complete(run_id)
        session = await self.get(f"/sessions/{self.session}")
        return session["prompt_tokens"], session["completion_tokens"]

    async def test_counts_that_are_unknown_later_do_not_erase_it(self) -> None:
        for last in (True, False):
            self.assertEqual(await self.counted(Usage(0, 0), last=last), (120, 30))
            self.assertEqual(await self.counted(Usage(0, 7), last=last), (120, 7))
            self.assertEqual(await self.counted(Usage(9, 0), last=last), (9, 30))

    async def test_it_is_stored_before_a_step_that_follows_all_the_same(self) -> None:
        run = await self.begin()
        await self.used(run)
        await run.do(lambda turn: turn.step())
        self.assertEqual((await self.get(f"/sessions/{self.session}"))["cost"], 0.5)
        await self.anna.events.wait_for(lambda event: event.finish == "tool_use")
        self.assertEqual(self.shown(), ["0.5 2", "tool_use"])
        run.release()
        await self.complete("main")
        self.assertEqual((await self.get(f"/sessions/{self.session}"))["cost"], 0.5)

    async def test_it_is_stored_before_a_person_is_asked_for_more(self) -> None:
        await self.anna.call("POST", "/agent/init", {"interactive": True})
        await self.anna.prompt(self.session, "go", run_id="dear", max_cost=0.25)
        run = await self.daemon.entered(1)
        using = asyncio.ensure_future(self.used(run))
        await self.anna.events.wait_for("question_batch_request")
        self.assertEqual((await self.get(f"/sessions/{self.session}"))["cost"], 0.5)
        await self.anna.cancel(self.session)
        await self.complete("dear")
        self.assertEqual((await self.get(f"/sessions/{self.session}"))["cost"], 0.5)
        using.cancel()


class RenameTests(RunnerTestCase):
    async def test_a_rename_takes_the_title_and_keeps_the_counters(self) -> None:
        run = await self.begin()
        await run.do(lambda turn: turn.usage(Usage(120, 30, 0.5)))
        await run.do(lambda turn: turn.todos([Todo("write tests", "in_progress")]))
        before = await self.get(f"/sessions/{self.session}")
        stale = {"id": "other", "title": "renamed", "prompt_tokens": 0, "cost": 0, "todos": []}
        answer = await self.anna.call("PUT", f"/sessions/{self.session}", stale)
        self.assertEqual(answer.status, 200)
        event = await self.anna.events.wait_for("session", action="updated", title="renamed")
        self.assertEqual((event["prompt_tokens"], event["cost"]), (120, 0.5))
        run.release()
        await self.complete("main")
        after = await self.get(f"/sessions/{self.session}")
        kept = ("id", "prompt_tokens", "completion_tokens", "cost", "todos", "created_at")
        self.assertEqual({k: after[k] for k in kept}, {k: before[k] for k in kept})
        self.assertEqual((after["title"], after["message_count"]), ("renamed", 2))
        self.assertEqual((after["prompt_tokens"], after["completion_tokens"]), (120, 30))


class KeptTests(RunnerTestCase):
    """What a person sent is kept as it was sent, whatever becomes of its run."""

    async def test_nul_is_kept_in_prompts_and_answers(self) -> None:
        run = await self.begin()
        await self.post("a\0b", run_id="nul")
        self.assertEqual([entry["text"] for entry in await self.get(self.queue_path)], ["a\0b"])
        run.release()
        run = await self.daemon.entered(2)
        self.assertEqual(run.prompt, "a\0b")
        await run.say("c\0d")
        run.release()
        self.assertEqual((await self.complete("nul"))["text"], "c\0d")
        texts = [text for _, text, _ in await self.told()]
        self.assertEqual(texts[-2:], ["a\0b", "c\0d"])

    async def test_attachments_stay_with_folded_and_canceled_prompts(self) -> None:
        run = await self.begin()
        names = ("folded", "canceled")
        for name in names:
            files = [{"content": "Zm9v", "file_path": f"{name}.png", "mime_type": "image/png"}]
            mode = "steer" if name == "folded" else "queue"
            await self.post(name, run_id=name, when_busy=mode, attachments=files)
            (rider,) = await run.do(lambda turn: turn.followups()) or [None]
            if rider is not None:
                self.assertEqual([part.tag for part in rider.parts], ["text", "binary", "finish"])
        await self.anna.cancel(self.session, wait=20)
        messages = {message.text: message for message in await self.anna.messages(self.session)}
        for name in names:
            file = {"Path": f"{name}.png", "MIMEType": "image/png", "Data": "Zm9v"}
            self.assertEqual(messages[name]["parts"][1], {"type": "binary", "data": file})


class LimitTests(BoundedTestCase):
    async def test_a_turn_at_its_cap_ends_with_an_error_that_names_it(self) -> None:
        async def agent(turn: Turn) -> None:
            while True:
                await turn.usage(Usage(1, 1, 0.25))
                call = await turn.tool_call("ls", "{}")
                await turn.tool_result(call, "again")

        async with LocalDaemon(agent) as daemon:
            anna = await daemon.join()  # has not said that a person is there
            for limit, steps in (({"max_steps": 3}, 3), ({"max_cost": 0.75}, 2)):
                session = await anna.session()
                await anna.prompt(session, "go", **limit)
                done = await anna.events.wait_for("run_complete", session_id=session)
                ((name, value),) = limit.items()
                self.assertEqual(done["error"], f"stopped at {name} = {value}")
                messages = await anna.messages(session)
                answers = [m.finish for m in messages if m["role"] == "assistant"]
                self.assertEqual(answers, [*["tool_use"] * (steps - 1), "error"])
                self.assertEqual(f"max_{done['limit']}", name)
                (info,) = (await anna.call("GET", f"/runs?session_id={session}")).json
                self.assertEqual((info["limit"], info["prompt"]), (done["limit"], "go"))
                self.assertGreaterEqual(info["cost"], 0.75)
                self.assertEqual(info["cost"], info["prompt_tokens"] / 4)

    async def test_a_limit_holds_also_if_the_agent_hides_that_it_was_told(self) -> None:
        async def agent(turn: Turn) -> None:
            await turn.say("so far")
            with contextlib.suppress(LimitReached, asyncio.CancelledError):
                await turn.usage(Usage(1, 1, 0.75))
                await turn.step()
                await asyncio.Event().wait()
            await turn.say(", and more")

        async with LocalDaemon(agent) as daemon:
            anna = await daemon.join()
            for limit in ({"max_cost": 0.5}, {"max_steps": 1}, {"max_seconds": 0.01}):
                session = await anna.session()
                await anna.prompt(session, "go", **limit)
                done = await anna.events.wait_for("run_complete", session_id=session)
                ((name, value),) = limit.items()
                self.assertEqual(done["error"], f"stopped at {name} = {value}")
                (info,) = (await anna.call("GET", f"/runs?session_id={session}")).json
                self.assertEqual((info["outcome"], info["limit"]), ("failed", done["limit"]))
                self.assertEqual((await anna.messages(session))[-1].finish, "error")

    async def out_of_time(self, agent: Callable[[Turn], Any]) -> None:
        """A run that would last for ever ends at its limit of time, and the next one runs. The
        agent sets `self.said` when it hangs."""
        clock, settings = FakeClock(), Settings(cancel_grace=0.01)
        self.said = asyncio.Event()
        async with LocalDaemon(agent, settings=settings, clock=clock) as daemon:
            anna = await daemon.join()
            session = await anna.session()
            await anna.prompt(session, "hang", run_id="first", max_seconds=5)
            await anna.prompt(session, "next", run_id="second")
            await self.said.wait()
            await clock.advance(5.0)
            await clock.advance(0.1)
            done = await anna.events.wait_for("run_complete", run_id="first")
            self.assertEqual((done["limit"], done["cancelled"]), ("time", None))
            self.assertEqual(done["error"], "stopped at max_seconds = 5")
            info = (await anna.call("GET", "/runs/first")).json
            self.assertEqual((info["outcome"], info["limit"]), ("failed", "time"))
            await anna.events.wait_for("run_complete", run_id="second", error=None)
            answer = (await anna.messages(session))[1]
            self.assertEqual((answer.text, answer.finish), ("so far", "error"))
            self.assertEqual(answer["parts"][-1]["data"]["message"], "Limit reached")

    async def test_a_run_out_of_time_ends_as_a_limit_and_the_line_goes_on(self) -> None:
        async def agent(turn: Turn) -> None:
            if turn.prompt == "hang":
                await turn.say("so far")
                self.said.set()
                await asyncio.Event().wait()

        await self.out_of_time(agent)

    async def test_a_run_out_of_time_ends_also_if_its_agent_does_not_let_go(self) -> None:
        async def agent(turn: Turn) -> None:
            if turn.prompt == "hang":
                await turn.say("so far")
                self.said.set()
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()
                await asyncio.Event().wait()

        with self.assertLogs("crushlite.hosting.runner", "ERROR"):
            await self.out_of_time(agent)

    async def test_a_cancel_while_a_run_out_of_time_unwinds_is_a_cancel(self) -> None:
        entered, unwinding, leave = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def agent(turn: Turn) -> None:
            try:
                entered.set()
                await asyncio.Event().wait()
            finally:
                unwinding.set()
                await leave.wait()

        clock = FakeClock()
        async with LocalDaemon(agent, clock=clock) as daemon:
            anna = await daemon.join()
            session = await anna.session()
            await anna.prompt(session, "hang", run_id="r", max_seconds=5)
            await entered.wait()
            await clock.advance(5.0)
            await unwinding.wait()
            await anna.cancel(session)
            leave.set()
            done = await anna.events.wait_for("run_complete", run_id="r")
            self.assertTrue(done["cancelled"])

    async def test_what_was_denied_is_counted_in_the_ending_and_on_record(self) -> None:
        async def agent(turn: Turn) -> None:
            for _ in range(2):
                await turn.permission("bash", "execute")
            await turn.say("I went on without it")

        settings = Settings(unattended=0.0)
        async with LocalDaemon(agent, settings=settings) as daemon:
            anna = await daemon.join()
            await anna.call("POST", f"/agent/init?client_id={anna.id}", {"interactive": False})
            session = await anna.session()
            await anna.prompt(session, "go", run_id="r")
            done = await anna.events.wait_for("run_complete", run_id="r", error=None)
            self.assertEqual(done["denied"], 2)
            self.assertEqual((await anna.call("GET", "/runs/r")).json["denied"], 2)


class OrderTests(RunnerTestCase):
    async def test_the_end_of_a_turn_is_told_in_order_and_the_session_is_idle_by_then(self) -> None:
        run = await self.begin()
        await run.say("done")
        run.release()
        await self.anna.events.wait_for("agent_event", type="agent_finished")
        self.assertFalse(await self.anna.busy(self.session))
        self.assertFalse((await self.get("/agent"))["is_busy"])
        await self.complete("main")
        kinds = [event.kind for event in self.anna.events.seen][-4:]
        self.assertEqual(kinds, ["message", "session", "agent_event", "run_complete"])

    async def test_a_session_is_busy_from_acceptance_on(self) -> None:
        await self.anna.prompt(self.session, "hello")
        self.assertTrue(await self.anna.busy(self.session))
        other = await self.anna.session()
        self.assertFalse(await self.anna.busy(other))
