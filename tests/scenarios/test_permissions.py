"""Permissions and questions over HTTP: the scenarios, and what this daemon adds to them."""

from __future__ import annotations

import asyncio
import functools
import unittest
from typing import TYPE_CHECKING, Any, TypeVar

from crushlite.agent.base import Verdict
from crushlite.errors import BadRequest
from crushlite.events import Bounds, Hub
from crushlite.hosting.dialogs import Permissions
from crushlite.protocol.permissions import PermissionRequest
from crushlite.protocol.questions import Choice, Question, QuestionResponse
from crushlite.settings import Settings
from crushlite.testing import LocalDaemon
from crushlite.testing.fake_clock import FakeClock
from tests.support.prompts import PAIR, notes, shape
from tests.support.scenarios import scenario

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from crushlite.agent.base import Turn
    from crushlite.testing import Answer, Participant, ScriptedRun, Seen

T = TypeVar("T")

LIMIT = 60.0  # seconds: only a hang takes that long


async def soon(work: Awaitable[T]) -> T:
    async with asyncio.timeout(LIMIT):
        return await work


async def permission(turn: Turn, call: str, **fields: Any) -> Verdict:
    tool, action = fields.pop("tool", "bash"), fields.pop("action", "execute")
    return await turn.permission(tool, action, tool_call_id=call, **fields)


def yes_no(text: str = "Shall I?", ident: str = "") -> Question:
    return Question(id=ident, type="yes_no", question=text, description="Think about it.")


class Scenario(unittest.IsolatedAsyncioTestCase):
    """Anna and Ben in one workspace, and one session with a run inside the agent."""

    settings: Settings | None = None

    async def asyncSetUp(self) -> None:
        self.clock = self.make_clock()
        self.daemon = await self.enterAsyncContext(
            LocalDaemon(settings=self.settings, clock=self.clock)
        )
        self.anna = await self.daemon.join()
        self.ben = await self.daemon.join()
        self.started = self.probes = 0
        self.session, self.run_ = await self.begin()

    def make_clock(self) -> FakeClock | None:
        return None

    async def begin(self, session: str = "") -> tuple[str, ScriptedRun]:
        """A run inside the agent, in a session of its own unless one is given."""
        session = session or await self.anna.session()
        self.started += 1
        await self.anna.prompt(session, run_id=f"run-{self.started}")
        return session, await self.daemon.entered(self.started)

    def ask(
        self, call: str = "c1", run: ScriptedRun | None = None, **fields: Any
    ) -> asyncio.Future[Verdict]:
        return (run or self.run_).begin(lambda turn: permission(turn, call, **fields))

    async def shown(self, call: str = "c1") -> dict[str, Any]:
        """The request as both clients got it."""
        event = await self.anna.events.wait_for("permission_request", tool_call_id=call)
        twin = await self.ben.events.wait_for("permission_request", tool_call_id=call)
        self.assertEqual(event.payload, twin.payload)
        return event.payload

    async def quiet(self) -> None:
        """Everything published so far has been read: a session event is a full stop."""
        mark = await self.anna.session("mark")
        for client in (self.anna, self.ben):
            await client.events.wait_for("session", id=mark)

    async def listed(self) -> list[dict[str, Any]]:
        answer = await self.anna.call("GET", "/permissions")
        self.assertEqual(answer.status, 200)
        return list(answer.json)

    async def resolve(self, ident: str, client: Participant | None = None, **body: Any) -> Answer:
        client = client or self.anna
        return await client.call("POST", f"/permissions/{ident}?client_id={client.id}", body)

    async def run_info(self, number: int = 1, wait: float = 0) -> dict[str, Any]:
        answer = await self.anna.call("GET", f"/runs/run-{number}?wait={wait}")
        self.assertEqual(answer.status, 200)
        return dict(answer.json)

    async def is_remembered(self, run: ScriptedRun | None = None, **fields: Any) -> bool:
        """Whether a tool is let through without a person being shown anything."""
        self.probes += 1
        call = f"probe {self.probes}"
        verdict = self.ask(call, run, **fields)
        await self.anna.events.wait_for("permission_notification", tool_call_id=call)
        for request in await self.listed():
            await self.anna.grant(request, "deny")
        granted = bool(await soon(verdict))
        await self.quiet()
        self.assertEqual(f"shown {call}" not in notes(self.anna), granted)
        return granted


# L. Permissions ----------------------------------------------------------------------------------


class PermissionScenarios(Scenario):
    @scenario(207)
    async def test_any_client_may_grant_and_later_answers_do_nothing(self) -> None:
        """The other client sees the grant, and its own answer comes too late."""
        verdict = self.ask(description="Execute command: make", params={"command": "make"})
        request = await self.shown()
        self.assertEqual(
            {key: request[key] for key in request if key != "id"},
            {
                "session_id": self.session,
                "tool_call_id": "c1",
                "tool_name": "bash",
                "description": "Execute command: make",
                "action": "execute",
                "params": {"command": "make"},
                "path": str(self.run_.turn.path),
            },
        )
        self.assertTrue(await self.anna.grant(request))
        self.assertEqual(await soon(verdict), Verdict(True))
        await self.ben.events.wait_for("permission_notification", tool_call_id="c1", granted=True)
        self.assertFalse(await self.ben.grant(request))
        await self.quiet()
        for client in (self.anna, self.ben):
            self.assertEqual(notes(client), ["asked c1", "shown c1", "granted c1"])

    @scenario(208)
    async def test_of_simultaneous_grants_exactly_one_wins(self) -> None:
        """Of two and of ten simultaneous grants one wins; one notification; nothing pending."""
        for racers in (2, 10):
            verdict = self.ask(f"c{racers}")
            request = await self.shown(f"c{racers}")
            clients = (self.anna, self.ben) * (racers // 2)
            answers = await asyncio.gather(*(client.grant(request) for client in clients))
            self.assertEqual(sorted(answers), [False] * (racers - 1) + [True])
            self.assertEqual(await soon(verdict), Verdict(True))
            self.assertEqual(await self.listed(), [])
            self.assertFalse(await self.anna.grant(request))
        await self.quiet()
        self.assertEqual(
            notes(self.ben),
            ["asked c2", "shown c2", "granted c2", "asked c10", "shown c10", "granted c10"],
        )

    @scenario(209)
    async def test_a_grant_after_a_denial_changes_nothing(self) -> None:
        """After a denial neither allow nor allow_session changes anything, now or later."""
        verdict = self.ask()
        request = await self.shown()
        self.assertTrue(await self.anna.grant(request, "deny"))
        self.assertEqual(await soon(verdict), Verdict(False))
        self.assertFalse(await self.ben.grant(request, "allow"))
        self.assertFalse(await self.ben.grant(request, "allow_session"))
        await self.quiet()
        self.assertEqual(notes(self.ben), ["asked c1", "shown c1", "denied c1"])
        self.assertFalse(await self.is_remembered())

    @scenario(211)
    async def test_a_grant_for_the_session_is_remembered_for_equal_requests_only(self) -> None:
        """An equal request later in the session is announced and granted without a dialog."""
        verdict = self.ask()
        self.assertTrue(await self.anna.grant(await self.shown(), "allow_session"))
        self.assertTrue(await soon(verdict))
        self.assertTrue(await soon(self.ask("c2")))
        await self.quiet()
        self.assertEqual(notes(self.ben)[3:], ["asked c2", "granted c2"])
        # Consent is for this tool, action, path and session.
        self.assertFalse(await self.is_remembered(action="write"))
        self.assertFalse(await self.is_remembered(tool="fetch"))
        self.assertFalse(await self.is_remembered(path="/somewhere/else"))
        self.assertFalse(await self.is_remembered((await self.begin())[1]))

    @scenario(212)
    async def test_a_plain_grant_is_for_one_request_only(self) -> None:
        """A plain allow is for one request only."""
        verdict = self.ask()
        self.assertTrue(await self.anna.grant(await self.shown(), "allow"))
        self.assertTrue(await soon(verdict))
        self.assertFalse(await self.is_remembered())

    @scenario(213)
    async def test_three_requests_at_once_each_get_their_own_answer(self) -> None:
        """Three tools at once: each gets its own answer, and only allow_session is remembered."""
        verdicts = self.run_.begin(
            lambda turn: asyncio.gather(
                *(permission(turn, f"c{n}", path=f"/p{n}") for n in range(3))
            )
        )
        for number, action in enumerate(("allow", "allow_session", "deny")):
            self.assertTrue(await self.anna.grant(await self.shown(f"c{number}"), action))
        self.assertEqual([bool(v) for v in await soon(verdicts)], [True, True, False])
        for number, remembered in enumerate((False, True, False)):
            self.assertEqual(await self.is_remembered(path=f"/p{number}"), remembered)

    @scenario(214)
    async def test_a_grant_for_an_unknown_id_does_nothing_and_publishes_nothing(self) -> None:
        """A grant for an id that never was: 200, resolved false, no event, nothing decided."""
        verdict = self.ask()
        await self.shown()
        self.assertFalse(await self.anna.grant({"id": "no-such-request"}, "allow"))
        await self.quiet()
        self.assertEqual(notes(self.ben), ["asked c1", "shown c1"])
        self.assertFalse(verdict.done())

    @scenario(215)
    async def test_a_malformed_grant_is_refused_and_the_request_stays_open(self) -> None:
        """An unknown action and a body without an id are refused; the request stays open."""
        self.ask()
        request = await self.shown()
        for body in (
            {"permission": request, "action": "permit"},
            {"permission": request},
            {"permission": {}, "action": "allow"},
            {"permission": {"id": 7}, "action": "allow"},
            {"action": "allow"},
        ):
            with self.subTest(body=body):
                answer = await self.anna.call("POST", "/permissions/grant", body)
                self.assertEqual((answer.status, answer.json["code"]), (400, "bad_request"))
        bad_client = await self.anna.call(
            "POST", "/permissions/grant?client_id=x", {"permission": request, "action": "allow"}
        )
        self.assertEqual(bad_client.status, 400)
        self.assertEqual(await self.listed(), [request])

    @scenario(216)
    async def test_every_request_is_announced_and_has_exactly_one_outcome(self) -> None:
        """First that it is asked, then exactly one outcome, whatever the outcome is."""
        for action in ("allow", "deny", "allow_session"):
            verdict = self.ask(action)
            await self.anna.grant(await self.shown(action), action)
            await soon(verdict)
        self.assertTrue(await soon(self.ask("remembered")))
        await self.quiet()
        expected = [
            *("asked allow", "shown allow", "granted allow"),
            *("asked deny", "shown deny", "denied deny"),
            *("asked allow_session", "shown allow_session", "granted allow_session"),
            *("asked remembered", "granted remembered"),
        ]
        self.assertEqual(notes(self.anna), expected)
        self.assertEqual(notes(self.ben), expected)
        every = self.anna.events.all("permission_notification")
        self.assertTrue(all(set(e.payload) == {"tool_call_id", "granted", "denied"} for e in every))

    @scenario(219)
    async def test_with_skip_on_later_requests_are_granted_and_open_ones_stay_open(self) -> None:
        """With skip on tools run unannounced; it concerns later requests only and can be read."""
        earlier = self.ask("earlier")
        request = await self.shown("earlier")
        _, run = await self.begin()
        for client in (self.anna, self.ben):
            skip = await client.call("GET", "/permissions/skip")
            self.assertEqual(skip.json, {"skip": False})
        self.assertEqual(
            (await self.anna.call("POST", "/permissions/skip", {"skip": True})).status, 200
        )
        self.assertEqual((await self.ben.call("GET", "/permissions/skip")).json, {"skip": True})
        self.assertEqual(await soon(self.ask("later", run)), Verdict(True))
        await self.quiet()
        self.assertEqual(notes(self.ben), ["asked earlier", "shown earlier"])
        self.assertFalse(earlier.done(), "what is on the screen is not approved by it")
        self.assertTrue(await self.ben.grant(request, "deny"))
        self.assertFalse(await soon(earlier))
        toggles = [
            self.anna.call("POST", "/permissions/skip", {"skip": n % 2 == 0}) for n in range(20)
        ]
        self.assertEqual({(await t).status for t in asyncio.as_completed(toggles)}, {200})
        await self.anna.call("POST", "/permissions/skip", {"skip": False})
        self.assertFalse(await self.is_remembered(run))

    @scenario(220)
    async def test_what_is_on_the_allow_list_runs_without_an_event(self) -> None:
        """A tool, or a tool with one action, on the allow-list runs without any event."""
        allowed = {"view", "bash:execute"}
        hub = Hub(clock=FakeClock(), bounds=Bounds())
        permissions = Permissions(
            functools.partial(hub.publish, "created"),
            clock=FakeClock(),
            policy=lambda tool, action: not allowed.isdisjoint({tool, f"{tool}:{action}"}),
        )
        for tool, action, passes in (
            ("view", "read", True),
            ("view", "list", True),
            ("bash", "execute", True),
            ("bash", "write", False),
            ("edit", "write", False),
        ):
            with self.subTest(tool=tool, action=action):
                before = hub.current
                request = PermissionRequest(session_id="s", tool_name=tool, action=action)
                asking = asyncio.create_task(permissions.ask(request, "r"))
                await asyncio.sleep(0)
                self.assertEqual(hub.current == before, passes)
                permissions.close_run("r")
                verdict = await soon(asking)
                self.assertEqual(verdict.reason == "", passes)

    @scenario(224)
    async def test_of_two_requests_in_one_turn_the_second_waits_for_the_first(self) -> None:
        """Two tool calls of one turn: the second is asked for when the first is answered."""
        verdicts = self.run_.begin(
            lambda turn: asyncio.gather(permission(turn, "c1"), permission(turn, "c2"))
        )
        request = await self.shown("c1")
        await self.quiet()
        self.assertEqual(notes(self.ben), ["asked c1", "shown c1"])
        self.assertEqual(await self.listed(), [request])
        await self.anna.grant(request)
        await self.ben.grant(await self.shown("c2"), "deny")
        self.assertEqual([bool(v) for v in await soon(verdicts)], [True, False])
        self.assertEqual(
            notes(self.ben)[:5], ["asked c1", "shown c1", "granted c1", "asked c2", "shown c2"]
        )


class PermissionRouteTests(Scenario):
    """Permissions by id: beyond the base protocol."""

    async def test_the_reason_of_a_denial_reaches_the_tool(self) -> None:
        verdict = self.ask()
        ident = (await self.shown())["id"]
        answer = await self.resolve(ident, action="deny", reason="use make check instead")
        self.assertEqual(
            (answer.status, answer.json), (200, {"resolved": True, "by": self.anna.id})
        )
        self.assertEqual(await soon(verdict), Verdict(False, "use make check instead"))

    async def test_a_late_answer_names_the_client_that_was_first(self) -> None:
        self.ask()
        request = await self.shown()
        await self.resolve(request["id"], action="allow")
        late = await self.resolve(request["id"], self.ben, action="deny")
        self.assertEqual(late.json, {"resolved": False, "by": self.anna.id})
        base = await self.ben.call(
            "POST", "/permissions/grant", {"permission": request, "action": "deny"}
        )
        self.assertEqual(base.json, {"resolved": False, "by": self.anna.id})

    async def test_an_answer_without_a_name_wins_without_one(self) -> None:
        """`by` is always there, and empty if the winner gave no client id, or if there is none."""
        verdict = self.ask()
        ident = (await self.shown())["id"]
        answer = await self.anna.call("POST", f"/permissions/{ident}", {"action": "allow"})
        self.assertEqual(answer.json, {"resolved": True, "by": ""})
        self.assertTrue(await soon(verdict))
        late = await self.resolve(ident, self.ben, action="allow")
        self.assertEqual(late.json, {"resolved": False, "by": ""})
        verdict = self.ask("c2")
        request = await self.shown("c2")
        body = {"permission": request, "action": "allow"}
        answer = await self.anna.call("POST", "/permissions/grant", body)
        self.assertEqual(answer.json, {"resolved": True, "by": ""})
        self.assertTrue(await soon(verdict))
        late = await self.anna.call("POST", f"/permissions/{request['id']}", {"action": "deny"})
        self.assertEqual(late.json, {"resolved": False, "by": ""})
        none = await self.anna.call("POST", "/questions/cancel")
        self.assertEqual(none.json, {"resolved": False, "by": ""})

    async def test_an_unknown_id_is_404_and_an_unknown_action_400(self) -> None:
        self.ask()
        ident = (await self.shown())["id"]
        unknown = await self.resolve("no-such-request", action="allow")
        self.assertEqual((unknown.status, unknown.json["code"]), (404, "request_not_found"))
        self.assertEqual((await self.resolve(ident, action="permit")).status, 400)
        self.assertEqual((await self.resolve(ident, action="allow")).json["resolved"], True)

    async def test_of_the_body_of_a_grant_only_the_id_is_believed(self) -> None:
        verdict = self.ask(path="/honest")
        request = await self.shown()
        lie = {
            "id": request["id"],
            "session_id": "another session",
            "tool_call_id": "another call",
            "tool_name": "fetch",
            "action": "download",
            "path": "/",
        }
        self.assertTrue(await self.anna.grant(lie, "allow_session"))
        self.assertTrue(await soon(verdict))
        await self.quiet()
        self.assertEqual(notes(self.ben), ["asked c1", "shown c1", "granted c1"])
        self.assertTrue(await self.is_remembered(path="/honest"))
        self.assertFalse(await self.is_remembered(tool="fetch", action="download", path="/"))

    async def test_two_sessions_are_open_at_the_same_time_while_the_stream_shows_one(self) -> None:
        first = self.ask("c1")
        request = await self.shown("c1")
        _, run = await self.begin()
        second = self.ask("c2", run)
        await self.ben.events.wait_for("permission_notification", tool_call_id="c2")
        listed = await self.listed()
        self.assertEqual([r["tool_call_id"] for r in listed], ["c1", "c2"])
        await self.quiet()
        self.assertEqual(notes(self.ben), ["asked c1", "shown c1", "asked c2"])
        _, third_run = await self.begin()
        third = self.ask("c3", third_run)
        await self.ben.events.wait_for("permission_notification", tool_call_id="c3")
        # The hidden one can be answered, and that shows nothing else.
        self.assertTrue((await self.resolve(listed[1]["id"], action="allow")).json["resolved"])
        self.assertTrue(await soon(second))
        await self.anna.grant(request)
        self.assertTrue(await soon(first))
        await self.anna.grant(await self.shown("c3"), "deny")
        self.assertFalse(await soon(third))
        self.assertEqual(
            notes(self.ben)[3:6], ["asked c3", "granted c2", "granted c1"], notes(self.ben)
        )

    async def test_a_workspace_created_with_skip_on_asks_no_client(self) -> None:
        elsewhere = self.daemon.root / "elsewhere"
        elsewhere.mkdir()
        carl = await self.daemon.join(elsewhere, yolo=True)
        self.assertEqual((await carl.call("GET", "/permissions/skip")).json, {"skip": True})
        await carl.prompt(await carl.session())
        run = await self.daemon.entered(2)
        self.assertTrue(await soon(self.ask("c1", run)))
        run.release()
        await carl.events.wait_for("run_complete")
        self.assertEqual(notes(carl), [])

    async def test_denials_are_counted_in_the_run(self) -> None:
        for number in range(2):
            verdict = self.ask(f"c{number}")
            await self.anna.grant(await self.shown(f"c{number}"), "deny")
            self.assertFalse(await soon(verdict))
        allowed = self.ask("fine")
        await self.anna.grant(await self.shown("fine"))
        await soon(allowed)
        self.assertEqual((await self.run_info())["denied"], 2)
        self.run_.release()
        await self.anna.events.wait_for("run_complete")
        ended = await self.run_info()
        self.assertEqual((ended["state"], ended["denied"]), ("ended", 2))
        listed = (await self.anna.call("GET", f"/runs?session_id={self.session}")).json
        self.assertEqual([run["denied"] for run in listed], [2])

    async def test_a_file_is_asked_for_by_its_folder(self) -> None:
        workspace = self.run_.turn.path
        (workspace / "notes.txt").write_text("hello")
        for given, expected in (
            ("", str(workspace)),
            (".", str(workspace)),
            (str(workspace / "notes.txt"), str(workspace)),
            ("notes.txt", str(workspace)),
            (str(workspace), str(workspace)),
            ("/nowhere/at/all.txt", "/nowhere/at/all.txt"),
            ("x" * 5000, "x" * 5000),
        ):
            with self.subTest(given=given[:40]):
                verdict = self.ask(path=given)
                request = await self.shown()
                await self.anna.grant(request)
                await soon(verdict)
                self.assertEqual(request["path"], expected)

    async def test_a_request_that_cannot_be_sent_fails_its_tool_and_nothing_else(self) -> None:
        verdict = self.ask("open")
        request = await self.shown("open")
        _, run = await self.begin()
        with self.assertRaises(BadRequest):
            await soon(self.ask("unsendable", run, params={"x": object()}))
        late = await self.daemon.join()
        self.assertEqual((await late.events.wait_for("permission_request")).payload, request)
        self.assertTrue(await self.anna.grant(request))
        self.assertTrue(await soon(verdict))
        self.assertEqual(await self.listed(), [])


class ApprovalTests(unittest.IsolatedAsyncioTestCase):
    async def test_a_prompt_may_approve_all_that_its_own_run_asks_for(self) -> None:
        async with LocalDaemon() as daemon:
            anna = await daemon.join()
            sessions = [await anna.session(), await anna.session()]
            await anna.prompt(sessions[0], "go", run_id="free", auto_approve=True)
            free = await daemon.entered(1)
            await anna.prompt(sessions[1], "go", run_id="bound")
            bound = await daemon.entered(2)
            verdict = await free.do(lambda turn: turn.permission("bash", "execute"))
            self.assertTrue(verdict)
            asking = bound.begin(lambda turn: turn.permission("bash", "execute"))
            await anna.events.wait_for("permission_request", session_id=sessions[1])
            (open_,) = (await anna.call("GET", "/permissions")).json
            answer = await anna.call("POST", f"/permissions/{open_['id']}", {"action": "deny"})
            self.assertTrue(answer.json["resolved"])
            async with asyncio.timeout(LIMIT):
                self.assertFalse(await asking)
            for run in (free, bound):
                run.release()

    async def test_an_approved_turn_neither_joins_nor_is_joined(self) -> None:
        async with LocalDaemon() as daemon:
            anna = await daemon.join()
            ben = await daemon.join()
            session = await anna.session()
            await anna.prompt(session, "asks", run_id="asks")
            asks = await daemon.entered(1)
            await anna.prompt(session, "free", auto_approve=True)
            await ben.prompt(session, "steers")
            self.assertEqual(len(await asks.do(lambda turn: turn.followups())), 1, "only Ben's")
            asks.release()
            free = await daemon.entered(2)
            await ben.prompt(session, "steers again")
            self.assertEqual(await free.do(lambda turn: turn.followups()), [])
            free.release()
            self.assertEqual((await daemon.entered(3)).prompt, "steers again")
            wrong = await anna.try_prompt(session, "x", auto_approve=True, when_busy="steer")
            self.assertEqual(wrong.status, 400)
            self.assertIn("turn of its own", wrong.json["message"])
            other = await anna.try_prompt(session, "asks", run_id="asks", auto_approve=True)
            self.assertEqual((other.status, other.json["code"]), (409, "run_id_reused"))


class EndingTests(Scenario):
    """A dialog never outlives its run."""

    async def closed_dialog(self, request: dict[str, Any]) -> None:
        for client in (self.anna, self.ben):
            await client.events.wait_for("permission_notification", tool_call_id="c1", denied=True)
        self.assertEqual(await self.listed(), [])
        self.assertFalse(await self.ben.grant(request, "allow_session"))
        await self.quiet()
        self.assertEqual(notes(self.ben).count("denied c1"), 1)

    @scenario(42)
    async def test_a_cancel_closes_the_open_permission_and_later_grants_do_nothing(self) -> None:
        verdict = self.ask()
        request = await self.shown()
        await self.ben.cancel(self.session, wait=10)
        await self.closed_dialog(request)
        self.assertTrue(verdict.cancelled())
        self.assertTrue(self.run_.canceled)
        self.assertFalse(await self.anna.grant(request))
        self.assertEqual(shape(await self.anna.messages(self.session)), PAIR)
        kinds = [e.kind for e in self.ben.events.seen if e.kind != "session"]
        self.assertLess(kinds.index("permission_request"), kinds.index("run_complete"))
        last = max(i for i, kind in enumerate(kinds) if kind == "permission_notification")
        self.assertLess(last, kinds.index("run_complete"), "closed before the run is over")
        self.assertFalse(await self.is_remembered((await self.begin(self.session))[1]))

    async def test_of_a_racing_cancel_and_grant_one_wins_and_all_agree(self) -> None:
        for number in range(1, 21):
            session, run = (self.session, self.run_) if number == 1 else await self.begin()
            call = f"c{number}"
            self.ask(call, run)
            request = await self.shown(call)
            pair = [self.anna.cancel(session, wait=10), self.ben.grant(request)]
            answers = await asyncio.gather(*(pair if number % 2 else reversed(pair)))
            won = answers[1 if number % 2 else 0]
            await self.quiet()
            outcome = "granted" if won else "denied"
            self.assertEqual(
                notes(self.ben)[-3:], [f"{w} {call}" for w in ("asked", "shown", outcome)]
            )
            self.assertFalse(await self.ben.grant(request))

    async def test_a_run_that_ends_with_a_dialog_open_closes_it(self) -> None:
        async def careless(turn: Turn) -> None:
            # Not awaited: the agent returns while its tool still asks.
            self.left = asyncio.ensure_future(permission(turn, "c1"))
            await asyncio.sleep(0)

        await soon(self.run_.do(careless))
        request = await self.shown()
        self.run_.release()
        await self.closed_dialog(request)
        self.assertEqual((await soon(self.left)).granted, False)

    async def test_a_deleted_session_closes_its_dialog_and_takes_its_grants_with_it(self) -> None:
        verdict = self.ask("before")
        await self.anna.grant(await self.shown("before"), "allow_session")
        self.assertTrue(await soon(verdict))
        self.ask("c1", tool="fetch")
        request = await self.shown("c1")
        gone = await self.anna.call("DELETE", f"/sessions/{self.session}")
        self.assertEqual(gone.status, 200)
        await self.closed_dialog(request)
        self.assertEqual(len(self.ben.events.all("session", action="deleted", id=self.session)), 1)
        workspace = self.daemon.backend.get(self.anna.workspace["id"])
        self.assertEqual(workspace.permissions.grants.listed(), [])

    async def test_a_failed_run_closes_its_dialog(self) -> None:
        async def failing(turn: Turn) -> None:
            self.left = asyncio.ensure_future(permission(turn, "c1"))
            await asyncio.sleep(0)

        await soon(self.run_.do(failing))
        request = await self.shown()
        self.run_.fail("out of luck")
        await self.closed_dialog(request)
        self.assertFalse(await soon(self.left))
        self.assertEqual((await self.run_info(wait=10))["outcome"], "failed")


class UnattendedTests(Scenario):
    """A run never hangs because no interactive client is attached."""

    settings: Settings | None = Settings(unattended=60.0)

    def make_clock(self) -> FakeClock:
        return FakeClock()

    async def say_interactive(self, value: bool) -> None:
        for client in (self.anna, self.ben):
            target = f"/agent/init?client_id={client.id}"
            answer = await client.call("POST", target, {"interactive": value})
            self.assertEqual(answer.status, 200)

    async def advance(self, seconds: float) -> None:
        assert self.clock is not None
        await self.clock.advance(seconds)

    async def test_without_an_interactive_client_a_permission_is_denied_after_a_minute(
        self,
    ) -> None:
        await self.say_interactive(False)
        self.assertFalse(self.run_.turn.interactive)
        verdict = self.ask()
        request = await self.shown()
        await self.advance(59)
        self.assertEqual(await self.listed(), [request])
        await self.advance(1)
        self.assertEqual(
            await soon(verdict), Verdict(False, "denied: no interactive client answered")
        )
        await self.ben.events.wait_for("permission_notification", tool_call_id="c1", denied=True)
        late = await self.resolve(request["id"], action="allow")
        self.assertEqual(late.json, {"resolved": False, "by": "unattended"})
        self.assertEqual((await self.run_info())["denied"], 1)

    async def test_without_an_interactive_client_a_question_is_dismissed_after_a_minute(
        self,
    ) -> None:
        await self.say_interactive(False)
        answers = self.run_.begin(lambda turn: turn.ask([yes_no()]))
        form = await self.ben.events.wait_for("question_batch_request")
        await self.advance(59)
        self.assertFalse(answers.done())
        await self.advance(1)
        self.assertIsNone(await soon(answers))
        await self.ben.events.wait_for("question_batch_notification", batch_id=form["id"])

    async def test_while_an_interactive_client_watches_a_permission_stands(self) -> None:
        verdict = self.ask()
        request = await self.shown()
        for _ in range(5):
            await self.advance(50)
            self.assertEqual(await self.listed(), [request])
        self.assertTrue(await self.anna.grant(request))
        self.assertTrue(await soon(verdict))

    async def test_the_minute_begins_when_the_last_interactive_client_leaves(self) -> None:
        verdict = self.ask()
        request = await self.shown()
        await self.advance(70)
        await self.say_interactive(False)
        await self.advance(59)
        self.assertEqual(await self.listed(), [request])
        await self.advance(16)  # the quarter of a period in which the absence is noticed, and more
        self.assertFalse(await soon(verdict))


# M. Questions ------------------------------------------------------------------------------------


class QuestionScenarios(Scenario):
    def form(self, *questions: Question) -> asyncio.Future[list[QuestionResponse] | None]:
        asked = list(questions or [yes_no()])
        return self.run_.begin(lambda turn: turn.ask(asked, tool_call_id="q"))

    async def seen_form(self) -> Seen:
        form = await self.anna.events.wait_for("question_batch_request")
        twin = await self.ben.events.wait_for("question_batch_request")
        self.assertEqual(form.payload, twin.payload)
        return form

    @scenario(231)
    async def test_the_answer_of_one_client_closes_the_form_for_the_other(self) -> None:
        """Both clients get the form; one answers as the Crush client does; both see it close."""
        choices = [Choice("pg", "Postgres"), Choice("sq", "SQLite", "in one file")]
        database = Question(
            id="q1",
            type="single_choice",
            label="DB",
            question="Which database?",
            description="Pick one",
            choices=choices,
        )
        answers = self.form(database, yes_no("Migrate?", "q2"))
        form = await self.seen_form()
        self.assertEqual(form["session_id"], self.session)
        self.assertEqual(form["tool_call_id"], "q")
        first, second = form["questions"]
        self.assertEqual((first["question"], second["question"]), ("Which database?", "Migrate?"))
        self.assertEqual(first["choices"][1]["description"], "in one file")
        responses = [
            {"request_id": second["id"], "yes": False, "notes": {"why": "later"}},
            {"request_id": first["id"], "selected_ids": ["pg"]},
        ]
        body = {"batch_request_id": "", "responses": responses}
        answer = await self.anna.call("POST", "/questions/answer", body)
        self.assertEqual((answer.status, answer.json), (200, {"resolved": True, "by": ""}))
        self.assertEqual(
            await soon(answers),
            [
                QuestionResponse("q1", selected_ids=["pg"]),
                QuestionResponse("q2", yes=False, notes={"why": "later"}),
            ],
        )
        for client in (self.anna, self.ben):
            await client.events.wait_for("question_batch_notification", batch_id=form["id"])

    @scenario(232)
    async def test_with_no_form_open_answer_and_cancel_resolve_nothing(self) -> None:
        """With no form open, answer and cancel are answered 200 with resolved false, no event."""
        body = {"batch_request_id": "", "responses": [{"request_id": "q1", "yes": True}]}
        for _ in range(2):
            answer = await self.anna.call("POST", "/questions/answer", body)
            self.assertEqual((answer.status, answer.json), (200, {"resolved": False, "by": ""}))
            cancel = await self.anna.call("POST", "/questions/cancel")
            self.assertEqual((cancel.status, cancel.json), (200, {"resolved": False, "by": ""}))
        await self.quiet()
        self.assertEqual(self.ben.events.all("question_batch_notification"), [])

    @scenario(233)
    async def test_a_dismissed_form_is_an_error_for_the_tool_and_stops_the_turn(self) -> None:
        """The tool gets a denial, so that the turn can stop there."""
        await self.run_.do(lambda turn: turn.tool_call("question", "{}", id="q"))
        answers = self.form()
        form = await self.seen_form()
        cancel = await self.ben.call("POST", f"/questions/cancel?client_id={self.ben.id}")
        self.assertEqual(cancel.json, {"resolved": True, "by": self.ben.id})
        self.assertIsNone(await soon(answers))
        await self.anna.events.wait_for("question_batch_notification", batch_id=form["id"])
        await self.run_.do(
            lambda turn: turn.tool_result("q", "the user dismissed the form", is_error=True)
        )
        self.run_.release()
        done = await self.anna.events.wait_for("run_complete")
        self.assertFalse(done["cancelled"])
        result = (await self.anna.messages(self.session))[-1]["parts"][0]["data"]
        self.assertEqual((result["tool_call_id"], result["is_error"]), ("q", True))
        self.assertEqual(len(self.anna.events.all("question_batch_request")), 1)

    @scenario(234)
    async def test_a_form_that_no_client_could_show_is_an_error_for_the_model(self) -> None:
        """A form no client could render is an error for the model that wrote it, and no event."""
        pick = Question(type="single_choice", question="Which?", description="Pick one")
        pick.choices = [Choice("a", "A"), Choice("a", "B")]
        one = Question(type="multi_choice", question="Which?", description="Pick", choices=[])
        one.choices = [Choice("a", "A")]
        bad: tuple[tuple[list[Question], str], ...] = (
            ([], "1 to 5 questions"),
            ([yes_no()] * 6, "not 6"),
            ([Question(type="essay", question="Why?", description="At length")], "type must be"),
            ([one], "2 to 5 choices"),
            ([pick], "an id of its own"),
            ([yes_no("x" * 241)], "240"),
        )
        for questions, words in bad:
            with self.subTest(words), self.assertRaisesRegex(BadRequest, words):
                await soon(self.run_.do(lambda turn, form=questions: turn.ask(form)))  # type: ignore[misc]
        await self.quiet()
        self.assertEqual(self.ben.events.all("question_batch_request"), [])
        self.assertEqual((await self.anna.call("GET", "/questions")).json, [])

    @scenario(235)
    async def test_the_cancel_of_a_turn_closes_its_form_for_every_client(self) -> None:
        """Canceling the turn closes the form everywhere; a later answer finds nothing."""
        answers = self.form()
        form = await self.seen_form()
        await self.anna.cancel(self.session, wait=10)
        await self.ben.events.wait_for("question_batch_notification", batch_id=form["id"])
        self.assertTrue(answers.cancelled())
        response = {"request_id": form["questions"][0]["id"], "yes": True}
        body = {"batch_request_id": "", "responses": [response]}
        self.assertEqual(
            (await self.ben.call("POST", "/questions/answer", body)).json,
            {"resolved": False, "by": ""},
        )
        assistant = (await self.anna.messages(self.session))[-1]
        self.assertEqual(assistant.finish, "canceled")
        await self.quiet()
        self.assertEqual(len(self.ben.events.all("question_batch_notification")), 1)

    @scenario(237)
    async def test_of_simultaneous_dismissals_one_counts_and_none_is_an_error(self) -> None:
        """Ten cancels at once: one wins, the others find nothing, and none is a server error."""
        answers = self.form()
        await self.seen_form()
        cancels = [self.anna.call("POST", "/questions/cancel") for _ in range(10)]
        done = await asyncio.gather(*cancels)
        self.assertEqual({answer.status for answer in done}, {200})
        self.assertEqual([a.json["resolved"] for a in done].count(True), 1)
        self.assertIsNone(await soon(answers))
        await self.quiet()
        self.assertEqual(len(self.ben.events.all("question_batch_notification")), 1)


class QuestionRouteTests(Scenario):
    """Questions by id: beyond the base protocol."""

    async def forms(self) -> list[dict[str, Any]]:
        answer = await self.anna.call("GET", "/questions")
        self.assertEqual(answer.status, 200)
        return list(answer.json)

    async def reply(self, ident: str, client: Participant | None = None, **body: Any) -> Answer:
        client = client or self.anna
        return await client.call("POST", f"/questions/{ident}?client_id={client.id}", body)

    async def test_a_form_is_listed_and_answered_by_its_id(self) -> None:
        answers = self.run_.begin(lambda turn: turn.ask([yes_no(ident="mine")]))
        event = await self.ben.events.wait_for("question_batch_request")
        self.assertEqual(await self.forms(), [event.payload])
        response = {"request_id": event["questions"][0]["id"], "yes": True}
        answer = await self.reply(event["id"], responses=[response])
        self.assertEqual(
            (answer.status, answer.json), (200, {"resolved": True, "by": self.anna.id})
        )
        self.assertEqual(await soon(answers), [QuestionResponse("mine", yes=True)])
        self.assertEqual(await self.forms(), [])
        late = await self.reply(event["id"], self.ben, action="cancel")
        self.assertEqual(late.json, {"resolved": False, "by": self.anna.id})

    async def test_a_form_is_dismissed_by_its_id(self) -> None:
        answers = self.run_.begin(lambda turn: turn.ask([yes_no()]))
        event = await self.ben.events.wait_for("question_batch_request")
        answer = await self.reply(event["id"], action="cancel")
        self.assertEqual(answer.json, {"resolved": True, "by": self.anna.id})
        self.assertIsNone(await soon(answers))

    async def test_bad_actions_foreign_questions_and_unknown_forms_are_refused(self) -> None:
        answers = self.run_.begin(lambda turn: turn.ask([yes_no()]))
        event = await self.ben.events.wait_for("question_batch_request")
        self.assertEqual((await self.reply(event["id"], action="maybe")).status, 400)
        foreign = [{"request_id": "stranger", "yes": True}]
        self.assertEqual((await self.reply(event["id"], responses=foreign)).status, 400)
        unknown = await self.reply("no-such-form", action="cancel")
        self.assertEqual((unknown.status, unknown.json["code"]), (404, "request_not_found"))
        self.assertFalse(answers.done())
        self.assertEqual(await self.forms(), [event.payload])

    async def test_forms_of_two_sessions_open_one_after_the_other(self) -> None:
        first = self.run_.begin(lambda turn: turn.ask([yes_no("One?")]))
        _, run = await self.begin()
        await self.ben.events.wait_for("question_batch_request")
        second = run.begin(lambda turn: turn.ask([yes_no("Two?")]))
        await self.quiet()
        (form,) = await self.forms()
        self.assertEqual(form["questions"][0]["question"], "One?")
        self.assertTrue((await self.reply(form["id"], action="cancel")).json["resolved"])
        self.assertIsNone(await soon(first))
        event = await self.ben.events.wait_for("question_batch_request")
        self.assertEqual(event["questions"][0]["question"], "Two?")
        self.assertFalse(second.done())
