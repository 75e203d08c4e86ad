"""What an editor sees of messages, whatever states of them come, and how often."""

from __future__ import annotations

import unittest
from typing import Any

from crushlite.acp import words
from crushlite.acp.choices import EditorChoices
from crushlite.acp.view import SessionView
from crushlite.protocol.config import AgentInfo, Model, SelectedModel
from crushlite.protocol.messages import (
    BinaryPart,
    FinishPart,
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from crushlite.protocol.permissions import PermissionOption, PermissionRequest


def message(*parts: Part, role: str = "assistant", number: str = "m") -> Message:
    return Message(number, role, "s", list(parts))


def texts(updates: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(update["messageId"], update["content"]["text"]) for update in updates]


class MessageTests(unittest.TestCase):
    def setUp(self) -> None:
        self.view = SessionView("s", "/ws")

    def test_a_growing_text_is_sent_piece_by_piece_and_older_states_are_not(self) -> None:
        states = ["", "a", "ab", "a", "ab", "abc"]
        sent = [texts(self.view.take(message(TextPart(state)))) for state in states]
        self.assertEqual(sent, [[], [("m", "a")], [("m", "b")], [], [], [("m", "c")]])

    def test_a_text_that_begins_anew_has_another_message_id(self) -> None:
        self.view.take(message(ReasoningPart("x"), TextPart("first try")))
        again = texts(self.view.take(message(ReasoningPart("x"), TextPart("second"))))
        self.assertEqual(again, [("m-1", "second")])
        grown = texts(self.view.take(message(ReasoningPart("x"), TextPart("second one"))))
        self.assertEqual(grown, [("m-1", " one")])

    def test_a_message_that_is_over_says_nothing_more_and_an_error_once(self) -> None:
        over = message(TextPart("a"), FinishPart("error", message="no key"))
        self.assertEqual(texts(self.view.take(over)), [("m", "a"), ("m", "\n\n[no key]")])
        self.assertEqual(self.view.take(over), [])
        self.assertEqual(self.view.take(message(TextPart("abc"))), [])
        other = message(FinishPart("error", message="no key"), number="n")
        self.assertEqual(self.view.take(other, with_errors=False), [])

    def test_a_prompt_of_this_editor_is_no_news_once_for_each_time_it_was_sent(self) -> None:
        self.view.expect("r1", "go")
        first = message(TextPart("go"), role="user", number="1")
        second = message(TextPart("go"), role="user", number="2")
        self.assertEqual(self.view.take(first), [])
        self.assertEqual(texts(self.view.take(second)), [("2", "go")])
        self.assertEqual(self.view.take(second), [])

    def test_of_two_equal_prompts_the_end_of_the_first_leaves_the_second_expected(self) -> None:
        for run_id in ("r1", "r2"):
            self.view.expect(run_id, "go on")
        first = message(TextPart("go on"), role="user", number="1")
        second = message(TextPart("go on"), role="user", number="2")
        self.assertEqual(self.view.take(first), [])
        self.view.unexpect("r1")
        self.assertEqual(self.view.take(second), [])

    def test_images_of_others_are_shown_and_other_files_named(self) -> None:
        parts = (BinaryPart("a.png", "image/png", "AAAA"), BinaryPart("b.pdf", "application/pdf"))
        shown = [update["content"] for update in self.view.take(message(*parts, role="user"))]
        image = {"type": "image", "data": "AAAA", "mimeType": "image/png"}
        self.assertEqual(shown, [image, {"type": "text", "text": "[b.pdf]"}])


class CallTests(unittest.TestCase):
    def setUp(self) -> None:
        self.view = SessionView("s", "/ws")

    def test_a_call_is_announced_completed_and_closed_once(self) -> None:
        begun = message(ToolCallPart("c", "view", '{"file_pa'))
        complete = message(ToolCallPart("c", "view", '{"file_path":"a.py","offset":9}', "", True))
        result = message(ToolResultPart("c", "view", "text"), role="tool", number="t")
        (call,) = self.view.take(begun)
        self.assertEqual((call["sessionUpdate"], call["status"]), ("tool_call", "pending"))
        self.assertEqual(self.view.take(begun), [])
        (update,) = self.view.take(complete)
        self.assertEqual((update["title"], update["status"]), ("view a.py", "in_progress"))
        self.assertEqual(update["locations"], [{"path": "/ws/a.py", "line": 10}])
        (done,) = self.view.take(result)
        self.assertEqual(done["status"], "completed")
        self.assertEqual(self.view.take(result) + self.view.take(complete), [])

    def test_a_result_without_a_call_is_shown_with_one(self) -> None:
        result = message(ToolResultPart("c", "x", "text", is_error=True), role="tool")
        kinds = [update["sessionUpdate"] for update in self.view.take(result)]
        self.assertEqual(kinds, ["tool_call", "tool_call_update"])

    def test_versions_in_the_metadata_are_a_diff(self) -> None:
        self.view.take(message(ToolCallPart("c", "edit", '{"file_path":"a"}', "", True)))
        metadata = '{"old_content":"x","new_content":"y"}'
        part = ToolResultPart("c", "edit", "done", metadata)
        (done,) = self.view.take(message(part, role="tool", number="t"))
        diff = {"type": "diff", "path": "/ws/a", "oldText": "x", "newText": "y"}
        self.assertEqual(done["content"], [diff])

    def test_long_inputs_and_results_are_cut(self) -> None:
        text = "x" * 200_000
        part = ToolCallPart("c", "write", f'{{"content":"{text}"}}', "", True)
        (call,) = self.view.take(message(part))
        self.assertNotIn("rawInput", call)
        (done,) = self.view.take(message(ToolResultPart("c", "write", text), role="tool"))
        self.assertLess(len(done["content"][0]["content"]["text"]), 101_000)

    def test_a_long_output_is_cut_inside_its_fence(self) -> None:
        (shown,) = words.output_content("x" * 200_000)
        lines = shown["content"]["text"].split("\n")
        self.assertEqual((lines[0], lines[-2:]), ("```", ["[100000 more characters]", "```"]))

    def test_a_permission_shows_all_of_what_is_decided_on(self) -> None:
        for params in (
            {"url": "https://x.example/" + "a" * 500, "timeout": 5},
            {"command": "make", "working_dir": "/elsewhere"},
        ):
            _, shown = self.view.announce(PermissionRequest("r", "s", "c", "tool", params=params))
            self.assertEqual(shown["rawInput"], params)
        params = {"file_path": "a", "old_content": "x", "new_content": "y"}
        _, shown = self.view.announce(PermissionRequest("r", "s", "c", "edit", params=params))
        diff = {"type": "diff", "path": "/ws/a", "oldText": "x", "newText": "y"}
        self.assertEqual((shown["rawInput"], shown["content"]), ({"file_path": "a"}, [diff]))


class WordTests(unittest.TestCase):
    def test_a_fence_is_longer_than_any_in_the_text_however_long_that_is(self) -> None:
        for count, expected in ((0, 3), (2, 3), (3, 4), (1_000_000, 1_000_001)):
            resource = {"uri": "file:///ws/a", "text": f"a\n{'`' * count}\nb"}
            shown, _ = words.prompt_of([{"type": "resource", "resource": resource}], "/ws")
            self.assertTrue(shown.endswith(f"\nb\n{'`' * expected}\n"), count)

    def test_what_would_be_granted_is_shown_whole_or_not_offered(self) -> None:
        scope = "make " + "x" * 500
        request = PermissionRequest("r", tool_name="bash", scope=scope, rule="make " + "y" * 2000)
        options = words.permission_options(request)
        self.assertEqual([one["optionId"] for one in options], ["allow", "allow_session", "deny"])
        self.assertTrue(options[1]["name"].endswith(scope))

    def test_an_agent_s_own_options_are_offered_in_place_of_ours(self) -> None:
        own = [
            PermissionOption("p1", "Always", "allow_always"),
            PermissionOption("p2", "No, and stop", "reject_once"),
        ]
        request = PermissionRequest("r", tool_name="bash", options=own)
        options = words.permission_options(request)
        self.assertEqual([option["name"] for option in options], ["Always", "No, and stop"])
        for number, expected in ((0, ("allow", "p1")), (1, ("deny", "p2"))):
            outcome = {"outcome": "selected", "optionId": options[number]["optionId"]}
            self.assertEqual(words.chosen_action({"outcome": outcome}, options), expected)
        request.options.pop()
        self.assertEqual(words.permission_options(request)[-1]["optionId"], "deny")

    def test_a_rule_is_offered_for_the_session_and_for_good(self) -> None:
        request = PermissionRequest("r", tool_name="bash", scope="make", rule="make *")
        ids = [option["optionId"] for option in words.permission_options(request)]
        self.assertEqual(ids, ["allow", "allow_session", "allow_rule", "allow_always", "deny"])

    def test_only_files_of_this_machine_become_paths(self) -> None:
        for uri, path in (
            ("file:///a%20b", "/a b"),
            ("file://localhost/a", "/a"),
            ("file://elsewhere/a", ""),
            ("https://x/a", ""),
            ("file://[", ""),
        ):
            self.assertEqual(words.path_of(uri), path, uri)

    def test_a_chosen_model_goes_with_prompts_and_only_while_it_exists(self) -> None:
        choices = EditorChoices()
        models = [{"id": "m/1", "name": "One", "context_window": 5}, {"id": "m2"}, 7]
        agent = AgentInfo(True, True, Model("m2"), SelectedModel("m2", "p"))
        choices.update(agent, [{"id": "p", "models": models}, {"id": "q", "models": None}])
        self.assertEqual((choices.model, choices.for_prompt()), ("p/m2", {}))
        choices.choose("model", "p/m/1")
        self.assertEqual(choices.window, 5)
        self.assertEqual(choices.for_prompt(), {"models": {"large": SelectedModel("m/1", "p")}})
        choices.update(agent, [])
        self.assertEqual((choices.model, choices.for_prompt()), ("p/m2", {}))

    def test_the_agent_of_a_session_is_an_option_if_there_is_a_choice(self) -> None:
        choices = EditorChoices()
        choices.update_agents(["gemini"], "")
        (_, agent) = choices.options()
        self.assertEqual((agent["id"], agent["currentValue"]), ("agent", "default"))
        choices.update_agents([], "")
        self.assertEqual([option["id"] for option in choices.options()], ["mode"])
