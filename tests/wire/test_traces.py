"""Three recordings of the Crush client with its own server, played against crushlite.

Each answer and each event is compared with the recorded one: status, content type, keys, JSON
types, null or empty, and values that matter. Every difference must be in the table.
"""

from __future__ import annotations

import asyncio
import copy
from fnmatch import fnmatchcase
from typing import Any

from tests.support.basics import BoundedTestCase
from tests.support.traces import (
    EventStream,
    Names,
    differences,
    kind_of,
    play,
    recorded_leaves,
    recording,
)

# Where crushlite differs on purpose: the reason, and the differences it explains.
IMPROVEMENTS: dict[str, tuple[str, ...]] = {
    "the daemon's files are its own, and Crush's are never written": (
        "POST /v1/workspaces: .answer.data_dir is *.crushlite*, not *.crush*",
        "*: .answer*.options.data_directory is *.crushlite*, not *.crush*",
    ),
    "a key is not shown to other clients of the workspace": (
        '*: .answer*.providers.fake.api_key is "[*]*", not "test-key"',
    ),
    "the configuration holds what clients are known to need, and always all of that": (
        "*: .answer*.$schema is left out",
        "*: .answer*.lsp is added",
        "*: .answer*.mcp is added",
        "*: .answer*.permissions is added",
    ),
    "the names of context files that are looked for can be read": (
        "*: .answer*.options.context_paths has * elements, not 0",
    ),
    "there are no skills to list": ("POST /v1/workspaces: .answer.skills is left out",),
    "a client of another version gets a warning": (
        "POST /v1/workspaces: .answer.warning is added",
    ),
    "the promise of a prompt names its run": (
        "POST W/agent: .answer is added",
        "POST W/agent: .content_type is added",
    ),
    "a cancel says what it hit": (
        "POST W/agent/sessions/ID/cancel: .answer is added",
        "POST W/agent/sessions/ID/cancel: .content_type is added",
    ),
    "a list is never null": ("GET W/agent/sessions/ID/prompts/list: .answer is [[]], not null",),
    "whose answer won can be seen": (
        "POST W/permissions/grant: .answer.by is added",
        "POST W/questions/answer: .answer.by is added",
    ),
    "a request says what allowing it for the session would cover": (
        "event permission_request created: .payload.payload.scope is added",
        "event permission_request created: .payload.payload.rule is added",
    ),
    "a rename keeps the counters": (
        "PUT W/sessions/ID: .answer.prompt_tokens is *, not 0",
        "PUT W/sessions/ID: .answer.completion_tokens is *, not 0",
        "event session updated: .payload.payload.prompt_tokens is *, not 0",
        "event session updated: .payload.payload.completion_tokens is *, not 0",
    ),
    "an empty message in an agent event means nothing, and half of one spoils it": (
        "event agent_event created: .payload.payload.message is left out",
    ),
    "every event of a run has its id, also one that the daemon made": (
        "event agent_event created: .payload.payload.run_id is added",
        "event run_complete updated: .payload.payload.run_id is added",
    ),
    "the end of a run says what it has used, and what was denied": (
        "event run_complete updated: .payload.payload.prompt_tokens is added",
        "event run_complete updated: .payload.payload.completion_tokens is added",
        "event run_complete updated: .payload.payload.denied is added",
    ),
    "what a command changes in the project is in the history, and can be undone": (
        "event file created: * is not in any recorded one",
        "event file created: one more ()",
    ),
    "a tool's metadata says so when it did not go to the background": (
        "event message created: .payload.payload.parts.0.data.metadata.background is added",
        "GET W/sessions/ID/messages: .answer.*.parts.0.data.metadata.background is added",
    ),
    "a model that is chosen has its limit at once, not only when the files are read again": (
        "GET W/agent: .answer.model_cfg.max_tokens is added",
    ),
    "the first words of an answer are shown at once": ("event message updated: one more (text)",),
    "the end of a turn shows the session as it was stored": ("event session updated: one more ()",),
    "a cancel that was asked for is no error": (
        "event run_complete updated: .payload.payload.error is left out",
    ),
    "a prompt that was cleared from the queue ends too": (
        "event run_complete updated: one more (cancelled)",
    ),
}
PATTERNS = [pattern for patterns in IMPROVEMENTS.values() for pattern in patterns]

RECORDINGS = ("crush-run.jsonl", "crush-tui.jsonl", "crush-two-tuis.jsonl")


async def played(name: str) -> list[str]:
    """The differences. In the TUI's recording the model asked a malformed question."""
    return await play(name, described=name != "crush-tui.jsonl")


def explained(difference: str) -> bool:
    return any(fnmatchcase(difference, pattern) for pattern in PATTERNS)


class TraceTests(BoundedTestCase):
    maxDiff: int | None = None

    async def check(self, name: str) -> None:
        left = {difference for difference in await played(name) if not explained(difference)}
        self.assertEqual(sorted(left), [])

    async def test_what_crush_run_asks_is_answered_as_its_own_server_does(self) -> None:
        await self.check("crush-run.jsonl")

    async def test_what_the_tui_asks_is_answered_as_its_own_server_does(self) -> None:
        await self.check("crush-tui.jsonl")

    async def test_what_two_tuis_ask_is_answered_as_their_own_server_does(self) -> None:
        await self.check("crush-two-tuis.jsonl")

    async def test_every_entry_of_the_table_is_needed(self) -> None:
        found = {one for many in await asyncio.gather(*map(played, RECORDINGS)) for one in many}
        idle = [p for p in PATTERNS if not any(fnmatchcase(one, p) for one in found)]
        self.assertEqual(idle, [])


GONE = object()


def changed(value: Any, path: str, new: Any) -> Any:
    """A copy with another value at a dotted path, or with the key removed."""
    answer = place = copy.deepcopy(value)
    *keys, last = [int(key) if key.isdigit() else key for key in path.split(".")]
    for key in keys:
        place = place[key]
    if new is GONE:
        del place[last]
    else:
        place[last] = new
    return answer


class ComparisonTests(BoundedTestCase):
    """The comparison itself finds each kind of difference."""

    def setUp(self) -> None:
        super().setUp()
        self.lines = recording("crush-tui.jsonl")
        self.known = recorded_leaves()

    def answer(self, request: str) -> dict[str, Any]:
        line = next(one for one in self.lines if one.get("request", "").endswith(request))
        return {key: line[key] for key in ("status", "content_type", "answer") if key in line}

    def event(self, kind: str, holding: str = "") -> dict[str, Any]:
        events = [line["event"] for line in self.lines if "event" in line]
        return next(one for one in events if kind_of(one) == kind and holding in str(one))

    def of_events(self, recorded: list[Any], ours: list[Any]) -> list[str]:
        stream = EventStream()
        stream.recorded, stream.events = recorded, ours
        return list(stream.differences(Names({}), self.known))

    async def test_a_difference_in_an_answer_is_seen(self) -> None:
        changes = [
            ("/workspaces", "answer.config", GONE, ".answer.config is left out"),
            ("/workspaces", "answer.more", 1, ".answer.more is added"),
            ("/workspaces", "status", 201, ".status is 201, not 200"),
            ("/skills", "answer", None, ".answer is null, not []"),
            ("/prompts/list", "answer", [], ".answer is [], not null"),
            ("/lsps", "answer", [], ".answer is [], not {}"),
            ("/skip", "answer.skip", 0, ".answer.skip is 0, not false"),
            ("/skip", "answer.skip", True, ".answer.skip is true, not false"),
            ("/skip", "content_type", "text/plain", '.content_type is "text/plain", not "appl'),
            ("/init", "answer", {}, ".answer is added"),
            ("<session1>", "answer.updated_at", 1789000000.0, ".answer.updated_at is 1789000000.0"),
            ("<session1>", "answer.updated_at", 0, ".answer.updated_at is 0, not 1789000000"),
            ("<session1>/messages", "answer.1", GONE, ".answer has 1 elements, not 2"),
            ("<session1>/messages", "answer.0.parts.1.data.time", 5, ".0.parts.1.data.time is 5"),
        ]
        for request, path, new, expected in changes:
            with self.subTest(expected):
                recorded = self.answer(request)
                self.assertEqual(differences("", recorded, copy.deepcopy(recorded)), [])
                found = differences("", recorded, changed(recorded, path, new))
                self.assertEqual(len(found), 1, found)
                self.assertIn(expected, found[0])

    async def test_a_difference_in_an_event_is_seen(self) -> None:
        part = "payload.payload.parts.0.data"
        changes = [
            ("run_complete updated", "", "payload.type", "created", "there is none like"),
            ("message updated", "end_turn", "payload.payload.parts.1", GONE, "there is none like"),
            ("message created", "user", "payload.payload.parts.1", GONE, "there is none like"),
            ("message created", "shell", f"{part}.exit_code", GONE, "exit_code is left out"),
            ("message created", "cwd", f"{part}.metadata", "{}", ".metadata.output is left out"),
            ("session updated", "", "payload.payload.message_count", 2.0, "is 2.0, not 2"),
            ("permission_request created", "", "more", 1, ".more is added"),
        ]
        for kind, holding, path, new, expected in changes:
            with self.subTest(kind=kind, expected=expected):
                recorded = self.event(kind, holding)
                self.assertEqual(self.of_events([recorded], [copy.deepcopy(recorded)]), [])
                found = self.of_events([recorded], [changed(recorded, path, new)])
                self.assertIn(expected, "\n".join(found))

    async def test_order_within_a_type_counts_and_across_types_does_not(self) -> None:
        first, last = (
            self.event("message created", "user"),
            self.event("message updated", "end_turn"),
        )
        other = self.event("run_complete updated")
        recorded = [first, other, last]
        self.assertEqual(self.of_events(recorded, [first, last, other]), [])
        self.assertNotEqual(self.of_events(recorded, [last, first, other]), [])

    async def test_what_was_never_recorded_is_seen(self) -> None:
        event = self.event("run_complete updated")
        found = self.of_events([event], [event, changed(event, "type", "surprise")])
        self.assertEqual(found[0], "event surprise updated: one more ()")
        found = self.of_events([event], [event, changed(event, "payload.payload.text", None)])
        self.assertIn("is not in any recorded one", found[-1])

    async def test_one_id_cannot_stand_for_two(self) -> None:
        names = Names({"/home/kim": "/tmp/here"})
        names.learn({"id": "<message1>", "path": "/home/kim"}, {"id": "a", "path": "/tmp/here"})
        self.assertEqual(names.fill("<message1> in /home/kim/demo"), "a in /tmp/here/demo")
        names.learn(["<message2>"], ["a"])
        self.assertEqual(names.fill("<message2>"), "<message2>")
        self.assertFalse(names.may_be("<message2>", "a"))
        self.assertTrue(names.may_be("<message2>", "b"))
