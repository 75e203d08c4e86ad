"""Parts of a workspace that rule on what agents do, without any hook."""

from __future__ import annotations

import asyncio
import json
import unittest
from typing import TYPE_CHECKING, Any

from crushlite.agent.base import Usage
from crushlite.errors import PromptRefused
from crushlite.guards.part import MOST_STOPS, GuardPart, Ruling, ToolUsed, TurnGuards
from crushlite.protocol.messages import ToolCallPart
from crushlite.protocol.permissions import PermissionRequest
from crushlite.testing import LocalDaemon
from crushlite.titles.part import TitlesPart
from crushlite.wing import Author, Wing, WorkspacePart
from crushlite.wings import standard_wings
from tests.support.basics import BoundedTestCase
from tests.support.prompts import until
from tests.support.wings import without

if TYPE_CHECKING:
    from crushlite.agent.base import Turn
    from crushlite.testing import Participant
    from crushlite.wing import OpenWorkspace


class Ruler(GuardPart):
    """Says what the test wants, and raises if that is an error."""

    def __init__(self, ruling: Ruling | Exception | None) -> None:
        self.ruling = ruling
        self.seen: list[ToolUsed] = []

    def _rule(self) -> Ruling | None:
        if isinstance(self.ruling, Exception):
            raise self.ruling
        return self.ruling

    async def before_tool(self, used: ToolUsed) -> Ruling | None:
        self.seen.append(used)
        return self._rule()

    async def before_prompt(self, author: Author, text: str) -> Ruling | None:
        return self._rule()

    async def after_tool(self, used: ToolUsed, result: str, is_error: bool) -> Ruling | None:
        return self._rule()

    async def before_stop(self, author: Author, text: str, again: bool) -> Ruling | None:
        return self._rule()

    async def permission_asked(self, author: Author, request: PermissionRequest) -> Ruling | None:
        return self._rule()


class RaisesInCall(GuardPart):
    """Its methods are plain functions, which raise before there is anything to await."""

    def _raise(self, *args: object) -> Any:
        raise RuntimeError("x")

    before_tool: Any = _raise
    before_prompt: Any = _raise
    before_stop: Any = _raise
    permission_asked: Any = _raise


def guards(*rulings: Ruling | Exception | None) -> TurnGuards:
    return TurnGuards([Ruler(ruling) for ruling in rulings], Author("s", "r"))


def asks(tool: str = "bash", call_id: str = "c", **params: Any) -> PermissionRequest:
    return PermissionRequest(tool_name=tool, tool_call_id=call_id, params=params)


class GuardTests(unittest.IsolatedAsyncioTestCase):
    async def test_a_part_that_fails_refuses_what_it_was_asked_about(self) -> None:
        in_call = TurnGuards([RaisesInCall()], Author("s", "r"))
        for broken in (guards(RuntimeError("x")), in_call):
            with self.assertLogs("crushlite.guards.part", "ERROR"):
                self.assertIn("could not be checked", (await broken.tool("c", "bash", {})).refusal)
                with self.assertRaises(PromptRefused):
                    await broken.prompt("hello")
                self.assertIsNone(await broken.answer(asks()), "the users are asked")
                self.assertEqual(await broken.stop(""), "")

    async def test_a_part_is_asked_whose_method_was_replaced_on_the_object(self) -> None:
        part: Any = GuardPart()

        async def refuse(used: ToolUsed) -> Ruling:
            return Ruling("not here")

        part.before_tool = refuse
        check = await TurnGuards([part], Author("s", "r")).tool("c", "bash", {})
        self.assertEqual(check.refusal, "not here")

    async def test_each_part_sees_the_input_as_the_one_before_left_it(self) -> None:
        first, second = Ruler(Ruling(input={"a": 2}, allowed=True)), Ruler(Ruling(input={"a": 3}))
        some = TurnGuards([first, second], Author("s"))
        check = await some.tool("c", "bash", {"a": 1})
        self.assertEqual((second.seen[0].input, check.input), ({"a": 2}, {"a": 3}))
        self.assertIsNone(await some.permission(asks(a=3)), "what was allowed was something else")

    async def test_an_approval_is_for_its_call_alone_and_a_halt_for_all_that_follow(self) -> None:
        some = guards(Ruling(allowed=True))
        await some.tool("c", "bash", {})
        self.assertTrue(await some.permission(asks()))
        halting = guards(Ruling(halt=True, denied="enough"))
        self.assertTrue((await halting.tool("c", "bash", {})).halt)
        self.assertEqual((await halting.tool("d", "ls", {})).refusal, "enough")
        verdict = await halting.permission(asks(call_id="c"))
        self.assertFalse(verdict)

    async def test_an_agent_that_cannot_follow_a_changed_input_is_refused(self) -> None:
        verdict = await guards(Ruling(input={"a": 2}, allowed=True)).permission(asks(a=1))
        assert verdict is not None
        self.assertIn("cannot follow", verdict.reason)

    async def test_each_request_for_a_permission_is_checked_if_the_call_was_not(self) -> None:
        """A second one for the same call gets no more than the first, nor what the first got."""
        ruler = Ruler(Ruling(denied="no"))
        some = TurnGuards([ruler], Author("s"))
        for _ in range(2):
            verdict = await some.permission(asks(a=1))
            assert verdict is not None
            self.assertEqual((verdict.granted, verdict.reason), (False, "no"))
        ruler.ruling = Ruling(allowed=True, context="said once")
        for _ in range(2):
            self.assertTrue(await some.permission(asks(a=1)))
        ruler.ruling = None
        self.assertIsNone(await some.permission(asks(a=2)), "what was allowed was something else")
        self.assertEqual([used.input["a"] for used in ruler.seen], [1, 1, 1, 1, 2])
        ruler.ruling = Ruling(denied="no")
        self.assertTrue((await some.tool("d", "bash", {})).refusal)
        self.assertFalse(await some.permission(asks(call_id="d")), "it was refused before")

    async def test_a_request_is_not_decided_by_a_check_that_is_under_way(self) -> None:
        asked, go_on = asyncio.Event(), asyncio.Event()

        class Pausing(GuardPart):
            async def before_tool(self, used: ToolUsed) -> Ruling | None:
                asked.set()
                await go_on.wait()
                return Ruling(denied="no")

        some = TurnGuards([Pausing()], Author("s"))
        first = asyncio.ensure_future(some.permission(asks()))
        await asked.wait()
        second = asyncio.ensure_future(some.permission(asks()))
        go_on.set()
        for verdict in await asyncio.gather(first, second):
            self.assertEqual(getattr(verdict, "reason", None), "no")

    async def test_what_is_said_of_one_request_counts_for_no_other_of_the_same_call(self) -> None:
        """Both are checked at the same time, and the one that is allowed is done first."""
        turned = {"good": asyncio.Event(), "bad": asyncio.Event()}

        class Pausing(GuardPart):
            async def before_tool(self, used: ToolUsed) -> Ruling | None:
                await turned[used.input["a"]].wait()
                return Ruling(allowed=True) if used.input["a"] == "good" else None

        some = TurnGuards([Pausing()], Author("s"))

        good = asyncio.create_task(some.permission(asks(a="good")))
        bad = asyncio.create_task(some.permission(asks(a="bad")))
        await asyncio.sleep(0)  # both wait for the part
        turned["good"].set()
        self.assertTrue(await good)
        turned["bad"].set()
        self.assertIsNone(await bad)

    async def test_the_end_of_a_turn_is_put_off_a_bounded_number_of_times(self) -> None:
        some = guards(Ruling(denied="go on"))
        said = [await some.stop("") for _ in range(MOST_STOPS + 2)]
        self.assertEqual(said, ["go on"] * MOST_STOPS + ["", ""])

    async def test_what_was_refused_has_no_result_to_comment(self) -> None:
        some = guards(Ruling(denied="no", shown={"decision": "deny"}))
        await some.tool("c", "bash", {})
        call = ToolCallPart("c", "bash", "{}")
        content, metadata = await some.result(call, "not run", '{"decision": 1}', is_error=True)
        self.assertEqual(content, "not run")
        self.assertEqual(metadata, '{"decision":1,"hook":{"decision":"deny"}}')


class SlowToStop(GuardPart):
    """Takes its time before it lets a turn end."""

    guards_stop = True

    def __init__(self) -> None:
        self.asked, self.go = asyncio.Event(), asyncio.Event()

    async def before_stop(self, author: Author, text: str, again: bool) -> Ruling | None:
        self.asked.set()
        await self.go.wait()
        return None


class StopTests(BoundedTestCase):
    async def test_what_a_turn_has_used_is_saved_before_a_part_takes_its_time(self) -> None:
        async def agent(turn: Turn) -> None:
            await turn.usage(Usage(10, 5, 0.5), last=True)

        part = SlowToStop()
        async with LocalDaemon(agent, wings=[PartWing(part)]) as daemon:
            anna = await daemon.join()
            session = await anna.session()
            await anna.prompt(session, "go", run_id="r")
            await part.asked.wait()
            self.assertEqual((await anna.call("GET", f"/sessions/{session}")).json["cost"], 0.5)
            part.go.set()
            await anna.events.wait_for("run_complete", run_id="r")
            self.assertEqual((await anna.call("GET", f"/sessions/{session}")).json["cost"], 0.5)


class Slow(GuardPart):
    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def after_tool(self, used: ToolUsed, result: str, is_error: bool) -> Ruling | None:
        self.asked.set()
        await asyncio.Event().wait()
        return None


class PartWing(Wing):
    def __init__(self, part: WorkspacePart) -> None:
        self.part = part

    async def open(self, workspace: OpenWorkspace) -> WorkspacePart:
        return self.part


class TurnTests(BoundedTestCase):
    async def test_a_result_is_on_record_although_the_run_is_canceled_meanwhile(self) -> None:
        part = Slow()
        async with LocalDaemon(wings=[PartWing(part)]) as daemon:
            anna = await daemon.join()
            session = await anna.session()
            await anna.prompt(session, "hello")
            run = await daemon.entered(1)
            await run.do(lambda turn: turn.tool_call("bash", "{}", "c"))
            run.begin(lambda turn: turn.tool_result("c", "it was done"))
            await part.asked.wait()
            await anna.call("POST", f"/agent/sessions/{session}/cancel?wait=10")
            texts = [
                item["data"]["content"]
                for message in await anna.messages(session)
                for item in message["parts"]
                if item["type"] == "tool_result"
            ]
            self.assertEqual(texts, ["it was done"])


class Recording(Ruler):
    """Refuses a tool, and every prompt that holds a word; keeps what it was asked and told."""

    guards_prompts = True

    def __init__(self, tool: str = "", word: str = "never") -> None:
        super().__init__(None)
        self.tool, self.word = tool, word
        self.told: list[str] = []
        self.prompts: list[str] = []

    async def before_prompt(self, author: Author, text: str) -> Ruling | None:
        self.prompts.append(text)
        return Ruling(denied=f"no {self.word}" if self.word in text else "")

    async def before_tool(self, used: ToolUsed) -> Ruling | None:
        self.seen.append(used)
        return Ruling(denied=f"no {used.name}" if used.name == self.tool else "")

    async def before_stop(self, author: Author, text: str, again: bool) -> Ruling | None:
        self.told.append(f"stop {text}")
        return None

    def notified(self, author: Author, kind: str, text: str) -> None:
        self.told.append(kind)


class SeamTests(BoundedTestCase):
    """Parts of several wings in one daemon."""

    async def run_one(self, anna: Participant, session: str, text: str = "go", **more: Any) -> Any:
        await anna.prompt(session, text, run_id=text, **more)
        return await anna.events.wait_for("run_complete", run_id=text)

    async def test_every_part_is_asked_for_agents_and_sub_agents_in_any_order(self) -> None:
        verdicts: list[tuple[bool, str]] = []

        async def ask(turn: Turn) -> None:
            for tool in ("rm", "mv", "ls"):
                verdict = await turn.permission(tool, "run", tool_call_id=tool)
                verdicts.append((verdict.granted, verdict.reason))

        async def agent(turn: Turn) -> None:
            await ask(turn)
            call = await turn.tool_call("agent", {})
            self.assertEqual((await turn.delegate(call, "x", ask)).denied, 2)
            await turn.tool_result(call, "done")

        for order in (1, -1):
            verdicts.clear()
            parts = [Recording("rm"), WorkspacePart(), Recording("mv")][::order]
            some = [PartWing(part) for part in (WorkspacePart(), *parts)]
            with without("skills", "config", "hooks"):
                wings = [*some, *standard_wings()]
            async with LocalDaemon(agent, wings=wings) as daemon:
                anna = await daemon.join()
                session = await anna.session()
                done = await self.run_one(anna, session, auto_approve=True)
                self.assertIsNone(done["error"])
                call = (await anna.messages(session))[1]
                child = f"{call['id']}$${call['parts'][0]['data']['id']}"
                prompt = (await anna.messages(child))[0]
                self.assertNotIn("withheld", prompt["parts"][-1]["data"], "it is the agent's own")
            refused = [(False, "no rm"), (False, "no mv"), (True, "")]
            self.assertEqual(verdicts, refused * 2)
            asked = [[used.name for used in part.seen] for part in parts if type(part) is Recording]
            self.assertEqual([len(names) for names in asked], [6, 4], "a refusal is the last word")

    async def test_a_prompt_that_would_join_a_turn_is_asked_about_in_one_of_its_own(self) -> None:
        part = Recording(word="secret")
        async with LocalDaemon(wings=[PartWing(part)]) as daemon:
            anna = await daemon.join()
            session = await anna.session()
            await anna.prompt(session, "go", run_id="one")
            run = await daemon.entered(1)
            await anna.prompt(session, "my secret", run_id="two", when_busy="steer")
            self.assertEqual(await run.do(lambda turn: turn.followups()), [])
            run.release()
            done = await anna.events.wait_for("run_complete", run_id="two")
            self.assertEqual((done["error"], part.prompts), ("no secret", ["go", "my secret"]))
            user = (await anna.messages(session))[2]
            self.assertTrue(user["parts"][-1]["data"]["withheld"])

    async def test_parts_are_told_when_users_are_asked_and_asked_once_before_the_end(self) -> None:
        async def agent(turn: Turn) -> None:
            await turn.say("done")
            await turn.permission("ls", "run", tool_call_id="c")
            await turn.ask("which?")
            if turn.prompt == "asks":
                self.assertTrue(await turn.before_stop())

        part = Recording()
        async with LocalDaemon(agent, wings=[PartWing(part)]) as daemon:
            anna = await daemon.join()
            for text in ("asks", "does not"):
                part.told.clear()
                session = await anna.session()
                await anna.prompt(session, text, run_id=text)
                asked = await anna.events.wait_for("permission_request", session_id=session)
                await anna.grant(asked.payload)
                await anna.events.wait_for("question_batch_request", session_id=session)
                await anna.call("POST", "/questions/cancel")
                await anna.events.wait_for("run_complete", run_id=text)
                told = ["permission_prompt", "agent_needs_input", "stop done", "agent_completed"]
                self.assertEqual(part.told, told)

    async def test_a_part_can_have_users_asked_or_answer_instead_of_them(self) -> None:
        class Answering(GuardPart):
            async def before_tool(self, used: ToolUsed) -> Ruling | None:
                return Ruling(ask=used.name == "ask", allowed=used.name == "allow")

            async def permission_asked(
                self, author: Author, request: PermissionRequest
            ) -> Ruling | None:
                answered.append(request.tool_name)
                refused = "not now" if request.tool_name == "refuse" else ""
                return Ruling(denied=refused, allowed=request.tool_name == "answer")

        answered: list[str] = []
        verdicts: list[tuple[str, bool, str]] = []

        async def agent(turn: Turn) -> None:
            for number, tool in enumerate(turn.prompt.split()):
                verdict = await turn.permission(tool, "run", tool_call_id=f"c{number}")
                verdicts.append((tool, verdict.granted, verdict.reason))

        async with LocalDaemon(agent, wings=[PartWing(Answering())]) as daemon:
            anna = await daemon.join()
            session = await anna.session()
            await self.run_one(anna, session, "ask allow answer other", auto_approve=True)
            self.assertEqual((answered, {granted for _, granted, _ in verdicts}), ([], {True}))
            verdicts.clear()
            text = "allow answer refuse ask ask other other"
            await anna.prompt(session, text, run_id="two")
            asked, covered = list[str](), list[str]()
            for _ in range(3):  # a grant for the session is none for what must be asked
                request = (await anna.events.wait_for("permission_request")).payload
                asked.append(request["tool_name"])
                covered.append(request.get("scope", ""))
                await anna.grant(request, "allow_session")
            await anna.events.wait_for("run_complete", run_id="two")
            self.assertEqual(asked, ["ask", "ask", "other"])
            nothing = "nothing: a hook wants you to be asked each time"  # and users are told so
            self.assertEqual(covered, [nothing, nothing, ""])
            self.assertEqual(answered, ["answer", "refuse", "ask", "ask", "other"])
            self.assertEqual([tool for tool, granted, _ in verdicts if not granted], ["refuse"])
            self.assertEqual(verdicts[2], ("refuse", False, "not now"))
            told = anna.events.all("permission_notification", granted=True)
            ids = [f"c{number}" for number in (0, 1, 3, 4, 5, 6)]
            self.assertEqual([event["tool_call_id"] for event in told], ids)

    async def test_a_title_waits_for_the_word_on_its_prompt(self) -> None:
        class Pausing(Recording):
            async def before_prompt(self, author: Author, text: str) -> Ruling | None:
                await until(lambda: bool(titles()._words), "the title is wanted")
                return await super().before_prompt(author, text)

        class Titling:
            async def run(self, turn: Turn) -> None:
                await turn.say("hello")

            async def title(self, text: str) -> str:
                return f"about {text}"

        def titles() -> TitlesPart:
            (hosted,) = daemon.backend.everything()
            return hosted.part(TitlesPart)

        with without("config", "hooks"):
            wings = [PartWing(Pausing(word="secret")), *standard_wings()]
        async with LocalDaemon(Titling(), wings=wings) as daemon:
            anna = await daemon.join()
            for text, title in (("sky", "about sky"), ("my secret", "my secret")):
                session = await anna.session()
                await anna.prompt(session, text, run_id=text)
                await anna.events.wait_for("session", id=session, title=title)

    async def test_without_the_wing_that_runs_hooks_what_they_must_be_asked_is_refused(
        self,
    ) -> None:
        async def agent(turn: Turn) -> None:
            verdicts.append(await turn.permission("rm", "run", tool_call_id="c"))
            verdicts.append(await turn.permission("ls", "run", tool_call_id="d"))

        for gone in (("hooks",), ("hooks", "skills")):
            verdicts: list[Any] = []
            with without(*gone):
                wings = standard_wings()
            async with LocalDaemon(agent, wings=wings) as daemon:
                own = daemon.root / "home/.config/crush/crush.json"
                own.parent.mkdir(parents=True)
                hooks = {"PreToolUse": [{"command": "exit 0", "matcher": "^rm$"}]}
                own.write_text(json.dumps({"hooks": hooks}))
                anna = await daemon.join()
                await self.run_one(anna, await anna.session(), auto_approve=True)
            self.assertEqual([bool(verdict) for verdict in verdicts], [False, True])
            self.assertIn("hooks cannot be run here", verdicts[0].reason)
