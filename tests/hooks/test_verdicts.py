"""The hooks section and what hooks say, without any process."""

from __future__ import annotations

import json
import unittest
from typing import Any

from crushlite.config.hooks import HookEntry
from crushlite.hooks.definitions import MOST_HOOKS, MOST_SECONDS, TIMEOUT, Hook, hooks_of
from crushlite.hooks.verdicts import HookOutput, HookResult, HooksOutcome, read_output

GUARD = Hook("PreToolUse", "./guard.sh", name="guard")


def entry(value: Any, event: str = "PreToolUse", *, own: bool = True) -> HookEntry:
    return HookEntry(event, value, f"hooks.{event} in crush.json", own)


def said(output: str = "", code: int = 0, errors: str = "", hook: Hook = GUARD) -> HookResult:
    return read_output(hook, HookOutput(code, output, errors))


class DefinitionTests(unittest.TestCase):
    def test_both_forms_are_read(self) -> None:
        crush = {"name": "a", "matcher": "^bash$", "command": "x", "timeout": 5}
        claude = {
            "matcher": "Bash",
            "hooks": [{"type": "command", "command": "y"}, {"command": "z", "timeout": 9999}],
        }
        found = hooks_of([entry(crush), entry(claude)])
        self.assertEqual([hook.command for hook in found], ["x", "y", "z"])
        self.assertEqual([hook.timeout for hook in found], [5, TIMEOUT, MOST_SECONDS])
        self.assertEqual([hook.title for hook in found], ["a", "y", "z"])

    def test_what_is_no_hook_is_one_that_cannot_be_run_for_everything(self) -> None:
        for wrong in ("x", 5, None, {}, {"command": ""}, {"command": 5}, {"hooks": [5]}):
            with self.subTest(wrong=wrong):
                (hook,) = hooks_of([entry(wrong)])
                self.assertTrue(hook.problem and hook.matches("bash"))
        (judged,) = hooks_of([entry({"hooks": [{"type": "prompt", "prompt": "ok?"}]})])
        self.assertIn("'prompt'", judged.problem)

    def test_matchers_mean_tools_by_the_names_of_claude_code_too(self) -> None:
        for matcher, tool, expected in (
            ("Bash", "bash", True),
            ("^Read$", "view", True),
            ("Edit|Write", "multiedit", True),
            ("WebFetch", "fetch", True),
            ("mcp__git__.*", "mcp_git_commit", True),
            ("mcp__my_git__commit", "mcp_my_git_commit", True),
            ("^bash$", "view", False),
            ("*", "view", True),
            ("(?P<", "view", True),
        ):
            with self.subTest(matcher, tool=tool):
                self.assertIs(Hook("PreToolUse", "x", matcher).matches(tool), expected)

    def test_hooks_beyond_the_bound_refuse_instead_of_being_skipped(self) -> None:
        many = [entry({"command": f"c{n}", "matcher": "x"}) for n in range(MOST_HOOKS + 5)]
        found = hooks_of([*many, many[0], entry({"command": "s"}, "Stop")])
        self.assertEqual([hook.event for hook in found[MOST_HOOKS:]], ["PreToolUse", "Stop"])
        for hook in found[MOST_HOOKS:]:
            self.assertTrue(hook.matches("bash"))
            self.assertIn("more than 100 hooks", hook.problem)

    def test_the_same_command_is_run_once(self) -> None:
        self.assertEqual(len(hooks_of([entry({"command": "x"})] * 3)), 1)


class OutputTests(unittest.TestCase):
    def test_exit_codes(self) -> None:
        for code, decision, halt, failed in (
            (0, "", False, False),
            (1, "", False, False),
            (2, "deny", False, False),
            (49, "deny", True, False),
            (126, "deny", False, True),
            (127, "deny", False, True),
            (137, "deny", False, True),
        ):
            result = said("plain words", code, "because")
            with self.subTest(code=code):
                seen = (result.decision, result.halt, result.failed)
                self.assertEqual(seen, (decision, halt, failed))
        self.assertEqual(said(code=2, errors=" not today \n").reason, "not today")

    def test_the_objects_of_crush_and_of_claude_code(self) -> None:
        crush = {"version": 1, "decision": "deny", "reason": "r", "context": ["a", "b"]}
        result = said(json.dumps(crush))
        self.assertEqual((result.decision, result.reason, result.context), ("deny", "r", "a\nb"))
        specific = {
            "hookEventName": "PreToolUse",
            "permissionDecision": "allow",
            "permissionDecisionReason": "fine",
            "updatedInput": {"command": "ls"},
            "additionalContext": "c",
        }
        result = said(json.dumps({"hookSpecificOutput": specific}))
        self.assertEqual((result.decision, result.reason, result.context), ("allow", "fine", "c"))
        self.assertEqual(
            HooksOutcome([result]).rewritten({"command": "rm", "x": 1}), {"command": "ls"}
        )
        self.assertTrue(said('{"continue": false, "stopReason": "enough"}').halt)
        self.assertEqual(said('{"decision": "block", "reason": "old form"}').decision, "deny")
        asked = {"hookSpecificOutput": {"decision": {"behavior": "deny", "message": "no"}}}
        self.assertEqual(said(json.dumps(asked)).reason, "no")

    def test_what_cannot_be_understood_is_a_failure_and_a_failure_is_a_no(self) -> None:
        for output in (
            '{"decision": "deny"',
            '{"decision": "dney"}',
            '{"decision": 5}',
            '{"updated_input": "ls"}',
            '{"hookSpecificOutput": []}',
            '{"hookSpecificOutput": {"decision": "allow"}}',
            '{"reason": 5, "decision": "deny"}',
        ):
            result = said(output)
            with self.subTest(output):
                self.assertEqual((result.decision, result.failed), ("deny", True))
                self.assertIn("guard could not be run", result.reason)

    def test_plain_words_are_context_only_where_they_can_be(self) -> None:
        self.assertEqual(said("words").context, "")
        self.assertEqual(said("words", hook=Hook("SessionStart", "x")).context, "words")
        self.assertEqual(said("words", hook=Hook("UserPromptSubmit", "x")).context, "words")


class OutcomeTests(unittest.TestCase):
    def decision(self, *results: HookResult) -> str:
        return HooksOutcome(results).decision

    def test_a_no_wins_then_a_question_then_a_yes(self) -> None:
        no, ask, yes, none = (HookResult(GUARD, word) for word in ("deny", "ask", "allow", ""))
        self.assertEqual(self.decision(yes, no, ask), "deny")
        self.assertEqual(self.decision(yes, ask, none), "ask")
        self.assertEqual(self.decision(none, yes), "allow")
        self.assertEqual(self.decision(none), "")

    def test_a_hook_of_a_project_cannot_allow_but_forbid(self) -> None:
        theirs = Hook("PreToolUse", "x", is_users=False)
        self.assertEqual(self.decision(HookResult(theirs, "allow")), "")
        self.assertEqual(self.decision(HookResult(theirs, "deny")), "deny")

    def test_what_is_allowed_must_be_what_is_done(self) -> None:
        changes = HookResult(GUARD, updated={"a": 1})
        both = HookResult(GUARD, "allow", updated={"a": 1})
        self.assertEqual(self.decision(HookResult(GUARD, "allow"), changes), "")
        self.assertEqual(self.decision(both), "allow")

    def test_inputs_are_merged_in_order(self) -> None:
        first, second = (
            HookResult(GUARD, updated={"a": 1, "b": 1}),
            HookResult(GUARD, updated={"b": 2}),
        )
        self.assertEqual(
            HooksOutcome([first, second]).rewritten({"c": 3}), {"a": 1, "b": 2, "c": 3}
        )
        self.assertIsNone(HooksOutcome([HookResult(GUARD, updated={"c": 3})]).rewritten({"c": 3}))

    def test_what_clients_are_shown(self) -> None:
        no = HookResult(Hook("PreToolUse", "x", "^bash$", name="guard"), "deny", "r")
        self.assertEqual(
            HooksOutcome([no, HookResult(GUARD, updated={"a": 1})]).shown(),
            {
                "hook_count": 2,
                "decision": "deny",
                "reason": "r",
                "input_rewrite": True,
                "hooks": [
                    {"name": "guard", "matcher": "^bash$", "decision": "deny", "reason": "r"},
                    {"name": "guard", "decision": "none", "input_rewrite": True},
                ],
            },
        )
        self.assertIsNone(HooksOutcome([]).shown())
