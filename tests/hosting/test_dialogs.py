"""What waits for a person: one winner per request, whatever happens in whatever order."""

from __future__ import annotations

import asyncio
import itertools
import traceback
import unittest
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar
from unittest import mock

from crushlite.agent.base import Scope, Verdict
from crushlite.errors import BadRequest, RequestNotFound
from crushlite.hosting.dialogs import (
    LOOKS,
    Permissions,
    Questions,
    check_questions,
)
from crushlite.protocol.permissions import (
    PermissionNotification,
    PermissionOption,
    PermissionRequest,
    PermissionRule,
    Resolution,
)
from crushlite.protocol.questions import (
    Choice,
    Question,
    QuestionBatch,
    QuestionNotification,
    QuestionResponse,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

UNATTENDED = 60.0
LIMIT = 30.0  # seconds for anything to happen at all, on any machine


async def soon(work: Awaitable[T]) -> T:
    async with asyncio.timeout(LIMIT):
        return await work


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def at_once(work: Callable[..., T], *arguments: Any) -> T:
    """In place of asyncio.to_thread: no thread to wait for."""
    return work(*arguments)


def request(call: str = "c1", **fields: Any) -> PermissionRequest:
    base = PermissionRequest(
        session_id="s", tool_call_id=call, tool_name="bash", action="execute", path="/home/kim"
    )
    return replace(base, **fields)


def asked(call: str = "c1") -> PermissionNotification:
    return PermissionNotification(call)


def granted(call: str = "c1") -> PermissionNotification:
    return PermissionNotification(call, granted=True)


def denied(call: str = "c1") -> PermissionNotification:
    return PermissionNotification(call, denied=True)


@dataclass
class ManualTimer:
    due: float
    callback: Callable[[], object]
    canceled: bool = False

    def cancel(self) -> None:
        self.canceled = True


@dataclass
class ManualClock:
    """Time that passes between two statements, without a turn for anybody else."""

    instant: float = 1000.0
    timers: list[ManualTimer] = field(default_factory=list)

    def time(self) -> float:
        return self.instant

    def now(self) -> float:
        return self.instant

    async def sleep(self, delay: float) -> None:
        raise AssertionError("nothing at this context sleeps")

    def call_later(self, delay: float, callback: Callable[[], object]) -> ManualTimer:
        self.timers.append(ManualTimer(self.instant + delay, callback))
        return self.timers[-1]

    @property
    def armed(self) -> list[ManualTimer]:
        return sorted((t for t in self.timers if not t.canceled), key=lambda t: t.due)

    def pass_by(self, seconds: float) -> None:
        end = self.instant + seconds
        while self.armed and self.armed[0].due <= end:
            timer = self.armed[0]
            timer.cancel()
            self.instant = timer.due
            timer.callback()
        self.instant = end


class ToolContext(unittest.IsolatedAsyncioTestCase):
    """Requests in tasks, and a record of all that was published."""

    def setUp(self) -> None:
        self.published: list[object] = []
        self.clock = ManualClock()
        self.watched = True
        self.tasks: list[asyncio.Task[Any]] = []

    async def asyncTearDown(self) -> None:
        for task in self.tasks:
            task.cancel()
        await soon(asyncio.gather(*self.tasks, return_exceptions=True))

    def publish(self, payload: object) -> int:
        self.published.append(payload)
        return len(self.published)

    def take(self) -> list[object]:
        """What was published since the last look."""
        news, self.published = self.published, []
        return news

    def calls(self) -> list[str]:
        """The same in short: asked, shown, granted and denied, with the tool call."""
        return [short(payload) for payload in self.take()]

    async def start(self, work: Awaitable[T]) -> asyncio.Task[T]:
        task: asyncio.Task[T] = asyncio.ensure_future(work)
        self.tasks.append(task)
        await settle()
        return task


def short(payload: object) -> str:
    if isinstance(payload, PermissionRequest):
        return f"shown {payload.tool_call_id}"
    assert isinstance(payload, PermissionNotification), payload
    word = "granted" if payload.granted else "denied" if payload.denied else "asked"
    return f"{word} {payload.tool_call_id}"


class PermissionDesk(ToolContext):
    def setUp(self) -> None:
        super().setUp()
        self.permissions = Permissions(
            self.publish,
            clock=self.clock,
            interactive=lambda: self.watched,
            unattended=UNATTENDED,
        )

    async def ask(
        self, call: str = "c1", run_id: str = "r", **fields: Any
    ) -> asyncio.Task[Verdict]:
        return await self.start(self.permissions.ask(request(call, **fields), run_id))

    def id_of(self, call: str) -> str:
        found = [r.id for r in self.permissions.listed() if r.tool_call_id == call]
        self.assertEqual(len(found), 1, call)
        return found[0]

    def answer(self, call: str, action: str = "allow", by: str = "") -> Resolution:
        return self.permissions.resolve(self.id_of(call), action, by)

    async def is_remembered(self, **fields: Any) -> bool:
        """Whether a request like the first would be granted without a person."""
        self.take()
        task = await self.ask("probe", run_id="probe", **fields)
        silent = "shown probe" not in self.calls()
        self.permissions.close_run("probe")
        self.assertEqual(bool(await soon(task)), silent)
        self.take()
        return silent


class ScopeTest(PermissionDesk):
    """A grant for the session covers requests whose parts were all granted, in the same place."""

    async def grant(self, *parts: str, **fields: Any) -> None:
        await self.start(self.permissions.ask(request("c", **fields), "r", Scope(parts, "")))
        self.answer("c", "allow_session")

    async def covered(self, *parts: str, **fields: Any) -> bool:
        self.take()
        await self.start(
            self.permissions.ask(request("probe", **fields), "probe", Scope(parts, ""))
        )
        asked = "shown probe" in self.calls()
        self.permissions.close_run("probe")
        return not asked

    async def test_each_part_must_have_been_granted(self) -> None:
        await self.grant("a", "b")
        self.assertTrue(await self.covered("a"))
        self.assertTrue(await self.covered("b", "a"))
        self.assertFalse(await self.covered("a", "c"))
        await self.grant("c")
        self.assertTrue(await self.covered("a", "c"))

    async def test_it_is_for_one_session_tool_action_and_path(self) -> None:
        await self.grant("a")
        for field_name in ("session_id", "tool_name", "action", "path"):
            self.assertFalse(await self.covered("a", **{field_name: "another"}), field_name)

    async def test_without_parts_nothing_is_remembered(self) -> None:
        await self.grant()
        self.assertFalse(await self.covered())
        self.assertFalse(await self.is_remembered())

    async def test_requests_with_and_without_parts_do_not_cover_each_other(self) -> None:
        await self.grant("a")
        self.assertFalse(await self.is_remembered())
        await self.ask("old")
        self.answer("old", "allow_session")
        self.assertTrue(await self.is_remembered())
        self.assertFalse(await self.covered("b"))

    async def test_a_grant_answers_the_covered_requests_that_wait(self) -> None:
        for call, parts in (("one", ("a", "b")), ("two", ("b",)), ("three", ("c",)), ("4", ("a",))):
            await self.start(self.permissions.ask(request(call), "r", Scope(parts, "")))
        self.take()
        self.answer("one", "allow_session")
        await settle()
        self.assertEqual(
            self.calls(),
            ["granted one", "asked two", "granted two", "asked three", "shown three"],
        )
        self.answer("three", "deny")
        await settle()
        self.assertEqual(self.calls(), ["denied three", "asked 4", "granted 4"])

    async def test_a_covered_request_may_be_too_large_to_show(self) -> None:
        await self.grant("a")
        self.assertTrue(await self.covered("a", params={"x": "y" * 300_000}))


class RuleTest(PermissionDesk):
    """Rules: what is offered with a request, for the session or for good."""

    def setUp(self) -> None:
        super().setUp()
        self.kept: list[PermissionRule] = []
        self.permissions = Permissions(
            self.publish, clock=self.clock, kept=lambda: tuple(self.kept)
        )

    async def asks(self, scope: Scope | None, **fields: Any) -> bool:
        self.take()
        await self.start(self.permissions.ask(request("probe", **fields), "probe", scope))
        asked = "shown probe" in self.calls()
        self.permissions.close_run("probe")
        return asked

    async def grant(self, scope: Scope | None, action: str, **fields: Any) -> None:
        await self.start(self.permissions.ask(request("c", **fields), "r", scope))
        self.assertTrue(self.answer("c", action).resolved)

    def covered_by(self, *groups: str) -> Scope:
        return Scope(("text",), "", covered_by=tuple(frozenset(group) for group in groups))

    async def test_the_offered_rule_is_granted_instead_of_the_scope(self) -> None:
        scope = Scope(("text",), "", rule_parts=("a",), rule_words="a")
        await self.grant(scope, "allow_rule", rule="all of a")
        self.assertTrue(await self.asks(scope), "the text itself was not granted")
        self.assertFalse(await self.asks(self.covered_by("ab")))
        [rule] = self.permissions.grants.listed()
        self.assertEqual((rule.words, rule.parts, rule.session_id), ("all of a", ["a"], "s"))
        self.assertIsNone(self.permissions.offered("c"), "it is answered: nothing is offered")

    async def test_of_every_set_one_part_must_have_been_granted(self) -> None:
        scope = Scope(("text",), "", rule_parts=("a", "c"), rule_words="x")
        await self.grant(scope, "allow_rule")
        self.assertFalse(await self.asks(self.covered_by("ab")))
        self.assertFalse(await self.asks(self.covered_by("ab", "cd", "ac")))
        for groups in ((), ("b",), ("ab", "d"), ("ab", ""), ("a", "c", "e")):
            self.assertTrue(await self.asks(self.covered_by(*groups)), groups)
        self.assertTrue(await self.asks(None))
        for name in ("session_id", "tool_name", "action", "path"):
            self.assertTrue(await self.asks(self.covered_by("a"), **{name: "another"}), name)

    async def test_without_an_offer_no_rule_can_be_chosen(self) -> None:
        for scope in (None, Scope((), "nothing"), Scope(("a",), "a")):
            task = await self.start(self.permissions.ask(request("c"), "r", scope))
            for action in ("allow_rule", "allow_always"):
                with self.assertRaisesRegex(BadRequest, "no rule is offered"):
                    self.answer("c", action)
            self.assertFalse(task.done(), "it is still open")
            self.permissions.close_run("r")
            await settle()
        self.assertEqual(self.permissions.grants.listed(), [])

    async def test_a_rule_that_was_taken_back_covers_nothing(self) -> None:
        await self.grant(Scope(("a",), "", rule_parts=("a",)), "allow_rule")
        [rule] = self.permissions.grants.listed()
        self.assertTrue(self.permissions.grants.remove(rule.id))
        self.assertTrue(await self.asks(Scope(("a",), "")))
        self.assertFalse(self.permissions.grants.remove(rule.id))

    async def test_every_grant_for_the_session_is_listed_once_and_can_be_taken_back(self) -> None:
        grants = self.permissions.grants
        await self.grant(None, "allow_session")
        await self.grant(Scope((), "nothing"), "allow_session")
        for _ in range(2):  # the second is not asked: the first covers it
            await self.start(self.permissions.ask(request("c"), "r", Scope(("a",), "")))
            if self.permissions.listed():
                self.answer("c", "allow_session")
        first, second = grants.listed()
        self.assertEqual(first.words, "every bash (execute) in /home/kim")
        self.assertEqual(second.parts, ["a"])
        grants.remove(first.id)
        self.assertTrue(await self.asks(None))
        self.assertFalse(await self.asks(Scope(("a",), "")))
        grants.forget_session("s")
        self.assertEqual(grants.listed(), [])

    async def test_the_oldest_rule_goes_when_there_are_too_many_and_no_rule_is_there_twice(
        self,
    ) -> None:
        grants = self.permissions.grants
        with mock.patch("crushlite.hosting.dialogs.MOST_RULES", 2):
            for key, part in (("1", "a"), ("2", "b"), ("3", "b"), ("4", "c")):
                grants.add(PermissionRule(key, "bash", "execute", "/", "", [part]))
        self.assertEqual([rule.id for rule in grants.listed()], ["3", "4"])

    async def test_a_kept_rule_is_for_all_sessions_and_never_for_all_requests(self) -> None:
        self.kept = [PermissionRule("1", "bash", "execute", "/home/kim", "", ["a", "*"])]
        for session in ("s", "t"):
            self.assertFalse(await self.asks(self.covered_by("a"), session_id=session))
        self.assertTrue(await self.asks(self.covered_by("a"), path="/home"))
        self.assertTrue(await self.asks(None), "such a rule names no parts")
        self.kept = []
        self.assertTrue(await self.asks(self.covered_by("a")))


class ReadableTest(PermissionDesk):
    """A user must be able to read all of a request before answering it."""

    async def test_what_is_too_large_to_show_is_refused_to_the_model(self) -> None:
        large = ({"command": "x" * 200_000}, {"a": "\n" * 2001}, {"a": ["y" * 99] * 2500})
        for params in large:
            with self.assertRaisesRegex(BadRequest, "too large to show .* split it"):
                await soon(self.permissions.ask(request(params=params), "r"))
        with self.assertRaisesRegex(BadRequest, "too large to show"):
            await soon(self.permissions.ask(request(description="z" * 200_000), "r"))
        self.assertEqual(self.take(), [])
        await self.ask(params={"a": "\n" * 1999})
        self.assertEqual(self.calls(), ["asked c1", "shown c1"])

    async def test_what_is_not_asked_may_be_of_any_size(self) -> None:
        self.permissions.skip = True
        answer = await soon(self.permissions.ask(request(params={"a": "x" * 200_000}), "r"))
        self.assertTrue(answer)

    async def test_of_a_change_only_the_changed_lines_count(self) -> None:
        content = "".join(f"line {n} of a large file\n" for n in range(20_000))
        params = {"old_content": content, "new_content": f"first\n{content}last\n"}
        with mock.patch("asyncio.to_thread", at_once):
            await self.ask(params=params)
        self.assertEqual(self.calls(), ["asked c1", "shown c1"])
        with self.assertRaisesRegex(BadRequest, "too large to show"):
            await soon(self.permissions.ask(request(params={"new_content": content}), "r"))
        reversed_lines = "\n".join(content.splitlines()[::-1])
        for changed in (content.replace("of a", "of the"), reversed_lines):
            params = {"old_content": content, "new_content": changed}
            with self.assertRaisesRegex(BadRequest, "too large to show"):
                await soon(self.permissions.ask(request(params=params), "r"))

    async def test_of_a_change_the_lines_around_it_count_as_they_are_shown(self) -> None:
        lines = [f"line {n}" for n in range(9000)]
        changed = [f"{line}!" if n % 9 == 0 else line for n, line in enumerate(lines)]
        params = {"old_content": "\n".join(lines), "new_content": "\n".join(changed)}
        with self.assertRaisesRegex(BadRequest, "too large to show"):
            await soon(self.permissions.ask(request(params=params), "r"))
        block = "anchor {0}\n{1} a{0}\n" + "same\n" * 20 + "{1} b{0}\n"
        old, new = ("".join(block.format(n, word) for n in range(100)) for word in ("old", "new"))
        with mock.patch("asyncio.to_thread", at_once):
            await self.ask(params={"old_content": old, "new_content": new})
        self.assertEqual(self.calls(), ["asked c1", "shown c1"])


# One request, every order of everything that can end it ------------------------------------------


class InterleavingTest(PermissionDesk):
    """Six things can decide a request. In every order of all six the first one decides it, whether
    or not its waiter gets to run in between, and the five others change nothing."""

    OPERATIONS = ("allow", "allow_session", "deny", "cancel", "close_run", "timeout")
    VERDICTS = {
        "allow": "",
        "allow_session": "",
        "deny": "not on my machine",
        "close_run": "the run has ended",
        "timeout": "denied: no interactive client answered",
    }

    async def test_the_first_of_all_six_wins_when_the_waiter_runs_in_between(self) -> None:
        await self.play_all(breathe=True)

    async def test_the_first_of_all_six_wins_when_everything_happens_at_once(self) -> None:
        await self.play_all(breathe=False)

    async def play_all(self, *, breathe: bool) -> None:
        for order in itertools.permutations(self.OPERATIONS):
            try:
                await self.play(order, breathe=breathe)
            except AssertionError as error:
                error.add_note(f"in the order {order}")
                raise

    async def play(self, order: tuple[str, ...], *, breathe: bool) -> None:
        self.setUp()
        self.watched = False
        task = await self.ask()
        shown = self.permissions.listed()[0]
        self.assertEqual(self.take(), [asked(), shown])
        first = order[0]
        for operation in order:
            resolution = self.do(operation, shown.id, task)
            if operation in ("allow", "allow_session", "deny"):
                by = {"cancel": "", "close_run": "", "timeout": "unattended"}.get(first, first)
                self.assertEqual(resolution, Resolution(operation == first, by))
            if breathe:
                await settle()
        await self.check_verdict(task, first, canceled_too=not breathe)
        self.check_traces(shown.id, first)
        self.assertEqual(await self.is_remembered(), first == "allow_session")

    def do(self, operation: str, ident: str, task: asyncio.Task[Any]) -> Resolution | None:
        if operation == "cancel":
            task.cancel()
        elif operation == "close_run":
            self.permissions.close_run("r")
        elif operation == "timeout":
            self.clock.pass_by(UNATTENDED)
        else:
            reason = "not on my machine"
            return self.permissions.resolve(ident, operation, by=operation, reason=reason)
        return None

    async def check_verdict(
        self, task: asyncio.Task[Verdict], first: str, *, canceled_too: bool
    ) -> None:
        await settle()
        self.assertTrue(task.done())
        # A waiter that was cancelled before it could run is cancelled, but that decides nothing.
        self.assertEqual(task.cancelled(), first == "cancel" or canceled_too)
        if not task.cancelled():
            verdict = task.result()
            self.assertEqual(bool(verdict), first in ("allow", "allow_session"))
            self.assertEqual(verdict.reason, self.VERDICTS[first])

    def check_traces(self, ident: str, first: str) -> None:
        won = granted() if first in ("allow", "allow_session") else denied()
        self.assertEqual(self.take(), [won])
        self.assertEqual(self.permissions.listed(), [])
        self.assertEqual(self.permissions.on_stream(), [])
        self.assertEqual(self.clock.armed, [])
        self.permissions.require_known(ident)  # closed, and remembered as such


class OneWinnerTest(PermissionDesk):
    async def test_the_notification_goes_out_before_the_tool_wakes(self) -> None:
        seen: list[list[object]] = []

        async def tool() -> None:
            await self.permissions.ask(request(), "r")
            seen.append(self.take())

        task = await self.start(tool())
        self.take()
        self.answer("c1")
        await soon(task)
        self.assertEqual(seen, [[granted()]])

    async def test_a_late_answer_learns_who_was_first(self) -> None:
        await self.ask()
        ident = self.id_of("c1")
        self.assertEqual(self.permissions.resolve(ident, "deny", "anna"), Resolution(True, "anna"))
        for action in ("allow", "allow_session", "deny"):
            late = self.permissions.resolve(ident, action, "ben")
            self.assertEqual(late, Resolution(False, "anna"))
        self.assertEqual(self.calls(), ["asked c1", "shown c1", "denied c1"])

    async def test_an_unknown_id_changes_nothing(self) -> None:
        await self.ask()
        self.take()
        self.assertEqual(self.permissions.resolve("nobody", "allow"), Resolution(False))
        with self.assertRaises(RequestNotFound):
            self.permissions.require_known("nobody")
        self.permissions.require_known(self.id_of("c1"))
        self.assertEqual(self.take(), [])
        self.assertEqual(len(self.permissions.listed()), 1)

    async def test_an_unknown_action_is_refused_and_decides_nothing(self) -> None:
        await self.ask()
        with self.assertRaisesRegex(BadRequest, "allow, allow_session, deny"):
            self.answer("c1", "permit")
        self.assertTrue(self.answer("c1").resolved)

    async def test_an_option_of_the_agent_is_one_that_it_offers_with_the_action_it_stands_for(
        self,
    ) -> None:
        offered = [
            PermissionOption("y", "Yes", "allow_once"),
            PermissionOption("n", "No", "reject"),
        ]
        for action, option in (("allow", "y"), ("deny", "n")):
            task = await self.ask(options=offered)
            found = self.id_of("c1")
            for wrong, chosen in (("allow", "n"), ("deny", "y"), ("allow_session", "y")):
                with self.assertRaisesRegex(BadRequest, f"{chosen}.* goes with"):
                    self.permissions.resolve(found, wrong, option=chosen)
            with self.assertRaisesRegex(BadRequest, "not offered for this: there is y, n"):
                self.permissions.resolve(found, "allow", option="z")
            self.assertTrue(self.permissions.resolve(found, action, option=option).resolved)
            self.assertEqual((await soon(task)).option, option)
        await self.ask("c2")
        with self.assertRaisesRegex(BadRequest, "there is none"):
            self.permissions.resolve(self.id_of("c2"), "allow", option="y")

    async def test_a_request_is_not_answerable_before_it_is_open(self) -> None:
        first, second = await self.ask("c1"), await self.ask("c2")
        self.assertEqual([r.tool_call_id for r in self.permissions.listed()], ["c1"])
        self.answer("c1", "deny")
        self.assertFalse(await soon(first))
        await settle()
        self.assertFalse(second.done())

    async def test_old_winners_are_forgotten_one_by_one(self) -> None:
        idents = []
        with mock.patch("crushlite.hosting.dialogs.REMEMBERED", 3):
            for call in ("c1", "c2", "c3", "c4"):
                await self.ask(call)
                idents.append(self.id_of(call))
                self.answer(call, by="anna")
        with self.assertRaises(RequestNotFound):
            self.permissions.require_known(idents[0])
        self.assertEqual(self.permissions.resolve(idents[0], "allow"), Resolution(False))
        self.assertEqual(self.permissions.resolve(idents[1], "allow"), Resolution(False, "anna"))

    async def test_a_waiter_that_is_thrown_away_closes_its_dialog(self) -> None:
        # Not cancelled: its coroutine is closed, as when a loop goes down under it.
        asking = self.permissions.ask(request(), "r")
        asking.send(None)
        self.assertEqual(self.calls(), ["asked c1", "shown c1"])
        asking.close()
        self.assertEqual(self.calls(), ["denied c1"])
        self.assertEqual(self.permissions.listed(), [])

    async def test_a_cancelled_waiter_that_has_not_run_yet_lets_no_answer_win(self) -> None:
        task, behind = await self.ask("c1"), await self.ask("c2", run_id="r2")
        ident = self.id_of("c1")
        self.take()
        task.cancel()
        self.assertEqual(self.permissions.resolve(ident, "allow_session", "ben"), Resolution(False))
        self.assertEqual(self.calls(), ["denied c1", "asked c2", "shown c2"])
        await settle()
        self.assertTrue(task.cancelled())
        self.assertFalse(behind.done(), "the losing allow_session was remembered")


# Queues and the stream ---------------------------------------------------------------------------


class QueueTest(PermissionDesk):
    async def test_within_a_session_requests_open_one_by_one_in_order(self) -> None:
        tasks = [await self.ask(f"c{n}") for n in range(3)]
        self.assertEqual(self.calls(), ["asked c0", "shown c0"])
        self.answer("c0")
        self.assertEqual(self.calls(), ["granted c0", "asked c1", "shown c1"])
        self.answer("c1", "deny")
        self.assertEqual(self.calls(), ["denied c1", "asked c2", "shown c2"])
        self.answer("c2")
        verdicts = [bool(await soon(task)) for task in tasks]
        self.assertEqual(verdicts, [True, False, True])

    async def test_waiting_in_line_can_be_cancelled_without_a_trace(self) -> None:
        await self.ask("c0")
        behind = await self.ask("c1")
        last = await self.ask("c2")
        self.take()
        behind.cancel()
        await settle()
        self.assertTrue(behind.cancelled())
        self.assertEqual(self.take(), [])
        self.answer("c0")
        self.assertEqual(self.calls(), ["granted c0", "asked c2", "shown c2"])
        self.assertFalse(last.done())

    async def test_sessions_do_not_wait_for_each_other_but_the_stream_shows_one(self) -> None:
        await self.ask("a", session_id="a")
        second = await self.ask("b", session_id="b")
        third = await self.ask("c", session_id="c")
        self.assertEqual(self.calls(), ["asked a", "shown a", "asked b", "asked c"])
        self.assertEqual([r.tool_call_id for r in self.permissions.listed()], ["a", "b", "c"])
        self.answer("c")
        self.assertTrue(await soon(third))
        self.assertEqual(self.calls(), ["granted c"])
        self.answer("a")
        self.assertEqual(self.calls(), ["granted a", "shown b"])
        self.answer("b")
        self.assertTrue(await soon(second))
        self.assertEqual(self.calls(), ["granted b"])
        self.assertEqual(self.permissions.on_stream(), [])

    async def test_the_oldest_open_one_follows_on_the_stream(self) -> None:
        await self.ask("a1", session_id="a")
        await self.ask("a2", session_id="a")
        await self.ask("b1", session_id="b")
        await self.ask("c1", session_id="c")
        self.take()
        # b1 is announced and stands open; a2 has only now got to the head of its line.
        self.answer("a1")
        self.assertEqual(self.calls(), ["granted a1", "shown b1", "asked a2"])
        listed = [r.tool_call_id for r in self.permissions.listed()]
        self.assertEqual(listed, ["b1", "a2", "c1"], "the one on the stream, then by age")
        (shown,) = self.permissions.on_stream()
        self.assertEqual(shown.tool_call_id, "b1")
        self.answer("b1")
        self.assertEqual(self.calls(), ["granted b1", "shown a2"])

    async def test_an_awaiting_notification_finds_its_request_in_the_list(self) -> None:
        lists: list[list[str]] = []

        def publish(payload: object) -> None:
            if payload == asked("b"):
                lists.append([r.tool_call_id for r in permissions.listed()])

        permissions = Permissions(publish, clock=self.clock)
        await self.start(permissions.ask(request("a", session_id="a"), "r1"))
        await self.start(permissions.ask(request("b", session_id="b"), "r2"))
        self.assertEqual(lists, [["a", "b"]])

    async def test_the_end_of_a_run_closes_all_it_left_and_nothing_else(self) -> None:
        mine = [await self.ask(f"c{n}") for n in range(3)]
        other = await self.ask("other", run_id="r2")
        abroad = await self.ask("abroad", run_id="r3", session_id="t")
        self.take()
        self.permissions.close_run("r")
        # The two that were never announced go first: else they would flash up and vanish.
        self.assertEqual(self.calls(), ["denied c0", "shown abroad", "asked other"])
        for task in mine:
            self.assertEqual((await soon(task)).reason, "the run has ended")
        self.assertFalse(other.done() or abroad.done())
        self.permissions.close_run("r")
        self.assertEqual(self.take(), [])

    async def test_any_number_of_waiting_requests_can_close_at_once(self) -> None:
        # By a remembered grant each closes as it opens. One inside the other they would need a
        # stack as deep as the line is long: an agent that asks often enough would break it.
        depths: list[int] = []

        def publish(payload: object) -> None:
            self.publish(payload)
            depths.append(len(traceback.extract_stack()))

        self.permissions = Permissions(publish, clock=self.clock)
        tasks = [await self.ask(f"c{number}") for number in range(40)]
        self.take()
        depths.clear()
        self.answer("c0", "allow_session")
        for task in tasks:
            self.assertTrue(await soon(task))
        rest = [f"{word} c{n}" for n in range(1, 40) for word in ("asked", "granted")]
        self.assertEqual(self.calls(), ["granted c0", *rest])
        self.assertLess(max(depths) - min(depths), 10)


# Policy and memory -------------------------------------------------------------------------------


class MemoryTest(PermissionDesk):
    async def test_allow_session_holds_for_the_same_session_tool_action_and_path(self) -> None:
        task = await self.ask()
        self.answer("c1", "allow_session")
        self.assertTrue(await soon(task))
        self.take()
        again = await self.ask("c2")
        self.assertTrue(await soon(again))
        self.assertEqual(self.calls(), ["asked c2", "granted c2"])
        self.assertEqual(self.clock.armed, [], "nobody needs to attend to what is decided")
        self.assertTrue(await self.is_remembered(description="other words", params={"x": 1}))
        for field_name in ("session_id", "tool_name", "action", "path"):
            with self.subTest(field_name):
                self.assertFalse(await self.is_remembered(**{field_name: "another"}))

    async def test_allow_and_deny_are_not_remembered(self) -> None:
        for action in ("allow", "deny"):
            await self.ask(action)
            self.answer(action, action)
            self.assertFalse(await self.is_remembered())

    async def test_a_losing_allow_session_records_nothing(self) -> None:
        for action in ("deny", "allow"):
            await self.ask(action)
            ident = self.id_of(action)
            self.answer(action, action)
            self.assertFalse(self.permissions.resolve(ident, "allow_session").resolved)
            self.assertFalse(await self.is_remembered())

    async def test_a_deleted_session_takes_its_grants_with_it_and_no_others(self) -> None:
        for session in ("s", "t"):
            await self.ask(session, session_id=session)
            self.answer(session, "allow_session")
        self.permissions.grants.forget_session("s")
        self.assertFalse(await self.is_remembered(session_id="s"))
        self.assertTrue(await self.is_remembered(session_id="t"))

    async def test_skip_concerns_later_requests_only(self) -> None:
        opened, behind = await self.ask("c1"), await self.ask("c2")
        self.take()
        self.permissions.skip = True
        self.assertTrue(await soon(await self.ask("c3")))
        self.assertEqual(self.take(), [], "a skipped request is announced to nobody")
        self.assertFalse(opened.done() or behind.done())
        self.answer("c1", "deny")
        self.assertFalse(await soon(opened))
        await settle()
        self.assertFalse(behind.done())
        self.permissions.skip = False
        self.take()
        await self.ask("c4", session_id="t")
        self.assertEqual(self.calls(), ["asked c4"], "behind c2 on the stream")

    async def test_the_allow_list_is_asked_with_tool_and_action_and_announces_nothing(self) -> None:
        questions: list[tuple[str, str]] = []

        def policy(tool: str, action: str) -> bool:
            questions.append((tool, action))
            return tool == "view"

        permissions = Permissions(self.publish, clock=self.clock, policy=policy)
        viewed = permissions.ask(request(tool_name="view", action="read"), "r")
        self.assertTrue(await soon(viewed))
        self.assertEqual(self.take(), [])
        await self.start(permissions.ask(request(), "r"))
        self.assertEqual(self.calls(), ["asked c1", "shown c1"])
        self.assertEqual(questions, [("view", "read"), ("bash", "execute")])

    async def test_a_policy_can_be_overruled_and_what_is_decided_elsewhere_is_announced(
        self,
    ) -> None:
        allowed = Permissions(self.publish, clock=self.clock, policy=lambda tool, _: tool == "view")
        asking = await self.start(allowed.ask(request(tool_name="view"), "r", always=True))
        self.assertEqual(self.calls(), ["asked c1", "shown c1"], "in spite of the policy")
        allowed.close_run("r")
        self.assertFalse(await soon(asking))
        self.take()
        for verdict in (True, False):
            self.permissions.announce(request("c3"), granted=verdict)
        self.assertEqual(self.take(), [granted("c3"), denied("c3")])


class StoredRequestTest(PermissionDesk):
    async def test_ids_are_minted_here(self) -> None:
        await self.ask("c1", id="mine")
        await self.ask("c2", id="mine", session_id="t")
        idents = [r.id for r in self.permissions.listed()]
        self.assertEqual(len(set(idents) - {"mine"}), 2)

    async def test_what_was_shown_cannot_be_changed_by_the_agent_afterwards(self) -> None:
        original = request(params={"command": ["ls"]})
        await self.start(self.permissions.ask(original, "r"))
        original.params["command"].append("&& rm -rf")
        original.path = "/"
        stored = self.permissions.listed()[0]
        self.assertEqual((stored.params, stored.path), ({"command": ["ls"]}, "/home/kim"))
        self.answer("c1", "allow_session")
        self.assertFalse(await self.is_remembered(path="/"))

    async def test_a_request_no_client_could_read_is_refused_to_its_agent(self) -> None:
        deep: dict[str, Any] = {}
        deep["deeper"] = deep
        for params in ({"x": object()}, {"x": {1, 2}}, {"x": float("nan")}, {"x": "\ud800"}, deep):
            with self.assertRaises(BadRequest):
                await soon(self.permissions.ask(request(params=params), "r"))
        self.assertEqual(self.take(), [], "nothing was announced")
        self.assertEqual(self.permissions.listed(), [])
        await self.ask("fine")
        self.assertEqual(self.calls(), ["asked fine", "shown fine"])


# Nobody there ------------------------------------------------------------------------------------


class UnattendedTest(PermissionDesk):
    async def test_a_request_nobody_can_answer_is_denied_after_the_period(self) -> None:
        self.watched = False
        task = await self.ask()
        ident = self.id_of("c1")
        self.clock.pass_by(UNATTENDED - 1)
        self.assertEqual(self.calls(), ["asked c1", "shown c1"])
        self.clock.pass_by(1)
        self.assertEqual(self.calls(), ["denied c1"])
        self.assertEqual((await soon(task)).reason, "denied: no interactive client answered")
        late = self.permissions.resolve(ident, "allow", "anna")
        self.assertEqual(late, Resolution(False, "unattended"))

    async def test_the_period_of_the_next_one_begins_when_it_opens(self) -> None:
        self.watched = False
        await self.ask("c1")
        await self.ask("c2")
        self.clock.pass_by(UNATTENDED)
        self.assertEqual(
            self.calls(), ["asked c1", "shown c1", "denied c1", "asked c2", "shown c2"]
        )
        self.clock.pass_by(UNATTENDED - 1)
        self.assertEqual(self.take(), [])
        self.clock.pass_by(1)
        self.assertEqual(self.calls(), ["denied c2"])

    async def test_while_somebody_watches_a_request_stands(self) -> None:
        task = await self.ask()
        self.clock.pass_by(100 * UNATTENDED)
        self.assertFalse(task.done())
        self.assertEqual(len(self.clock.armed), 1)

    async def test_who_leaves_late_leaves_the_others_the_full_period(self) -> None:
        await self.ask()
        self.take()
        self.clock.pass_by(UNATTENDED - 1)
        self.watched = False
        self.clock.pass_by(UNATTENDED - 1)
        self.assertEqual(self.take(), [])
        self.clock.pass_by(1 + UNATTENDED / LOOKS)
        self.assertEqual(self.calls(), ["denied c1"])

    async def test_a_short_absence_is_forgiven_whenever_it_comes(self) -> None:
        await self.ask()
        self.take()
        for _ in range(3 * int(UNATTENDED)):
            # Away for a second and back for a second, at every instant of several periods.
            self.watched = not self.watched
            self.clock.pass_by(1)
        self.assertEqual(self.take(), [])

    async def test_at_zero_a_request_is_denied_as_soon_as_it_is_announced(self) -> None:
        self.watched = False
        permissions = Permissions(
            self.publish, clock=self.clock, interactive=lambda: self.watched, unattended=0.0
        )
        verdict = await soon(permissions.ask(request(), "r"))
        self.assertFalse(verdict)
        self.assertEqual(self.calls(), ["asked c1", "shown c1", "denied c1"])
        self.watched = True
        task = await self.start(permissions.ask(request(), "r"))
        self.clock.pass_by(5)
        self.assertFalse(task.done())
        self.watched = False
        self.clock.pass_by(1)
        self.assertFalse(await soon(task))

    async def test_without_a_period_a_request_waits_for_ever(self) -> None:
        permissions = Permissions(self.publish, clock=self.clock, interactive=lambda: False)
        task = await self.start(permissions.ask(request(), "r"))
        self.assertEqual(self.clock.armed, [])
        self.assertFalse(task.done())


# Questions ---------------------------------------------------------------------------------------


def question(text: str = "Which?", **fields: Any) -> Question:
    base = Question(type="free_text", question=text, description="Say it in your own words.")
    return replace(base, **fields)


def batch(*questions: Question, **fields: Any) -> QuestionBatch:
    return QuestionBatch(questions=list(questions or [question()]), **fields)


def reply(ident: str, text: str = "because") -> QuestionResponse:
    return QuestionResponse(request_id=ident, fill_in_text=text)


class QuestionDesk(ToolContext):
    def setUp(self) -> None:
        super().setUp()
        self.questions = Questions(
            self.publish,
            clock=self.clock,
            interactive=lambda: self.watched,
            unattended=UNATTENDED,
        )

    async def ask(
        self, form: QuestionBatch | None = None, run_id: str = "r"
    ) -> asyncio.Task[list[QuestionResponse] | None]:
        return await self.start(self.questions.ask(form or batch(), run_id))

    def open(self) -> QuestionBatch:
        (form,) = self.questions.listed()
        return form


class QuestionTest(QuestionDesk):
    async def test_batches_open_one_at_a_time_in_order_whoever_asks(self) -> None:
        forms = [batch(question(text), session_id=text) for text in ("one", "two", "three")]
        tasks = [await self.ask(form, run_id=form.session_id) for form in forms]
        seen = []
        for task in tasks:
            form = self.open()
            seen.append(form.session_id)
            self.assertEqual(self.take()[-1], form)
            resolution = self.questions.answer(form.id, [reply(form.questions[0].id)], "anna")
            self.assertEqual(resolution, Resolution(True, "anna"))
            answers = await soon(task)
            assert answers is not None
            self.assertEqual(answers[0].fill_in_text, "because")
        self.assertEqual(seen, ["one", "two", "three"])
        self.assertEqual(self.take(), [QuestionNotification(form.id)])
        self.assertEqual(self.questions.listed(), [])

    async def test_an_answer_without_a_batch_id_finds_its_batch_by_its_questions(self) -> None:
        task = await self.ask()
        behind = await self.ask()
        form = self.open()
        resolution = self.questions.answer("", [reply(form.questions[0].id)])
        self.assertEqual(resolution, Resolution(True))
        self.assertIsNotNone(await soon(task))
        # Sent twice, it must not hit the batch that came after.
        again = self.questions.answer("", [reply(form.questions[0].id)])
        self.assertEqual(again, Resolution(False))
        self.assertFalse(behind.done())

    async def test_a_wrong_batch_id_answers_nothing(self) -> None:
        task = await self.ask()
        resolution = self.questions.answer("nobody", [reply(self.open().questions[0].id)])
        self.assertEqual(resolution, Resolution(False))
        self.assertEqual(self.questions.answer("", [reply("nobody")]), Resolution(False))
        self.assertEqual(self.questions.cancel("nobody"), Resolution(False))
        self.assertFalse(task.done())
        with self.assertRaises(RequestNotFound):
            self.questions.require_known("nobody")
        self.questions.require_known(self.open().id)

    async def test_an_answer_to_a_question_of_another_form_is_refused_as_a_whole(self) -> None:
        task = await self.ask()
        form = self.open()
        good = reply(form.questions[0].id)
        for ident in (form.id, ""):
            with self.assertRaisesRegex(BadRequest, "stranger"):
                self.questions.answer(ident, [good, reply("stranger")])
        self.assertFalse(task.done())
        self.assertTrue(self.questions.answer(form.id, [good]).resolved)

    async def test_question_ids_are_minted_here_and_mapped_back(self) -> None:
        # A model calls all its questions q1: two forms with the same ids must not be confused.
        form = batch(question("a", id="q1"), question("b", id="q1"), question("c"))
        task = await self.ask(form)
        first, second, third = self.open().questions
        self.assertEqual(len({"", "q1", first.id, second.id, third.id}), 5)
        answers = [reply(third.id, "C"), reply(first.id, "A"), reply(second.id, "B")]
        self.questions.answer("", answers)
        self.assertEqual(
            await soon(task), [reply("q1", "A"), reply("q1", "B"), reply(third.id, "C")]
        )
        self.assertEqual(form.questions[0].id, "q1", "the asker's own form is left alone")

    async def test_a_question_left_out_is_left_out_of_the_answer(self) -> None:
        task = await self.ask(batch(question("a", id="q1"), question("b", id="q2")))
        self.questions.answer(self.open().id, [reply(self.open().questions[1].id, "B")])
        self.assertEqual(await soon(task), [reply("q2", "B")])

    async def test_a_form_of_several_questions_is_confirmed_in_words(self) -> None:
        await self.ask(batch())
        self.assertEqual((self.open().confirm_title, self.open().confirm_description), ("", ""))
        self.questions.cancel()
        await self.ask(batch(question(), question()))
        self.assertTrue(self.open().confirm_title)
        self.assertTrue(self.open().confirm_description)
        self.questions.cancel()
        own = batch(question(), question(), confirm_title="Sure?", confirm_description="Think.")
        await self.ask(own)
        shown = self.open()
        self.assertEqual((shown.confirm_title, shown.confirm_description), ("Sure?", "Think."))

    async def test_a_second_cancel_or_a_late_answer_finds_nothing(self) -> None:
        task = await self.ask()
        form = self.open()
        self.take()
        self.assertEqual(self.questions.cancel(by="anna"), Resolution(True, "anna"))
        self.assertIsNone(await soon(task))
        self.assertEqual(self.questions.cancel(by="ben"), Resolution(False))
        self.assertEqual(self.questions.cancel(form.id, "ben"), Resolution(False, "anna"))
        late = self.questions.answer(form.id, [reply(form.questions[0].id)], "ben")
        self.assertEqual(late, Resolution(False, "anna"))
        self.assertEqual(self.take(), [QuestionNotification(form.id)])
        self.questions.require_known(form.id)

    async def test_a_batch_can_be_cancelled_by_its_id(self) -> None:
        task = await self.ask()
        self.assertEqual(self.questions.cancel(self.open().id), Resolution(True))
        self.assertIsNone(await soon(task))

    async def test_the_end_of_a_run_closes_its_form_and_opens_the_next(self) -> None:
        task = await self.ask()
        waiting = await self.ask()
        other = await self.ask(run_id="r2")
        first = self.open()
        self.take()
        self.questions.close_run("r")
        self.assertEqual(self.take(), [QuestionNotification(first.id), self.open()])
        self.assertIsNone(await soon(task))
        self.assertIsNone(await soon(waiting))
        self.assertFalse(other.done())

    async def test_nobody_can_answer_for_a_waiter_that_was_cancelled(self) -> None:
        for attempt in ("answer", "answer by id", "cancel", "cancel by id"):
            with self.subTest(attempt):
                task = await self.ask()
                form = self.open()
                self.take()
                task.cancel()
                resolution = self.attempt(attempt, form)
                self.assertEqual(resolution, Resolution(False))
                self.assertEqual(self.take(), [QuestionNotification(form.id)])
                with self.assertRaises(asyncio.CancelledError):
                    await soon(task)

    def attempt(self, kind: str, form: QuestionBatch) -> Resolution:
        ident = form.id if kind.endswith("by id") else ""
        if kind.startswith("cancel"):
            return self.questions.cancel(ident, "anna")
        return self.questions.answer(ident, [reply(form.questions[0].id)], "anna")

    async def test_a_form_nobody_can_answer_is_dismissed_after_the_period(self) -> None:
        self.watched = False
        task = await self.ask()
        form = self.open()
        self.clock.pass_by(UNATTENDED - 1)
        self.assertFalse(task.done())
        self.clock.pass_by(1)
        self.assertIsNone(await soon(task))
        self.assertEqual(self.questions.cancel(form.id), Resolution(False, "unattended"))


class ValidationTest(QuestionDesk):
    async def test_a_form_no_client_could_render_is_refused_in_words_for_the_model(self) -> None:
        two = [Choice("a", "A"), Choice("b", "B")]
        pick = question(type="single_choice", choices=two)
        bad: list[tuple[list[Question], str]] = [
            ([], "1 to 5 questions"),
            ([question()] * 6, "1 to 5 questions at once, not 6"),
            ([question(), question(type="essay")], "question 2: type must be one of yes_no"),
            ([question("")], "question is required"),
            ([question("x" * 241)], "at most 240"),
            ([question(description="")], "description is required"),
            ([question(description="x" * 601)], "at most 600"),
            ([replace(pick, choices=two[:1])], "2 to 5 choices, not 1"),
            ([replace(pick, choices=two * 3)], "2 to 5 choices, not 6"),
            ([replace(pick, choices=[two[0], two[0]])], "an id of its own"),
            ([replace(pick, choices=[two[0], Choice("", "B")])], "an id of its own"),
            ([replace(pick, choices=[two[0], Choice("b", "")])], "choice 'b'"),
            ([replace(pick, choices=[two[0], Choice("b", "x" * 201)])], "choice 'b'"),
            ([replace(pick, choices=[two[0], Choice("b", "B", "x" * 201)])], "choice 'b'"),
            ([question("\ud800")], "lone surrogate"),
        ]
        for questions, words in bad:
            with self.subTest(words), self.assertRaisesRegex(BadRequest, words):
                await soon(self.questions.ask(QuestionBatch(questions=questions), "r"))
        self.assertEqual(self.take(), [])
        self.assertEqual(self.questions.listed(), [])

    def test_every_form_within_the_limits_is_taken(self) -> None:
        five = [Choice(str(n), "x" * 200, "y" * 200) for n in range(5)]
        check_questions(
            [
                question("x" * 240, description="y" * 600),
                question(type="yes_no"),
                question(type="single_choice", choices=five[:2]),
                question(type="multi_choice", choices=five),
                question(),
            ]
        )


if __name__ == "__main__":
    unittest.main()
