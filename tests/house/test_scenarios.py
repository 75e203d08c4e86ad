"""The catalogue of founding scenarios: each is covered by a test that is marked with its number.

A scenario is covered by a test method with the marker `@scenario(number)` anywhere in tests/, or
listed, with the reason, in NOT_APPLICABLE. The names of the catalogue are those of the contract; a
test has a name of its own that says the invariant.
"""

from __future__ import annotations

import ast
import functools
import re
import unittest

from tests.support.places import TESTS
from tests.support.scenarios import scenario
from tests.support.sources import parsed, sources

Function = ast.FunctionDef | ast.AsyncFunctionDef

CATALOGUE: tuple[tuple[int, str], ...] = (
    (1, "accept_returns_202_at_once"),
    (2, "reject_unknown_workspace"),
    (3, "reject_without_agent"),
    (4, "reject_empty_prompt"),
    (5, "reject_missing_session_id"),
    (6, "text_attachment_replaces_prompt"),
    (8, "reject_while_closing"),
    (9, "bad_json_body"),
    (11, "drain_group_joined"),
    (12, "request_timeout_does_not_own_run"),
    (13, "connection_reset_after_202"),
    (15, "concurrent_dispatch_single_stream"),
    (16, "sessions_run_in_parallel"),
    (17, "agent_init_survives_request_end"),
    (18, "noninteractive_waits_for_tool_servers_interactive_does_not"),
    (19, "cancel_by_other_client"),
    (20, "cancel_immediately_after_202"),
    (21, "idle_cancel_is_noop"),
    (22, "cancel_between_slot_and_assistant"),
    (23, "cancel_active_and_accepted_followup"),
    (24, "accepted_cancel_race_real_engine"),
    (25, "cancel_on_entry_persists_pair"),
    (26, "cancel_on_entry_emits_rc"),
    (28, "one_cancel_covers_two_accepted"),
    (30, "second_cancel_while_pending_idempotent"),
    (32, "stale_watermark_cleared_by_normal_end"),
    (33, "ticket_close_idempotent_nil_safe_counts"),
    (34, "active_and_accepted_both_branches"),
    (35, "canceled_turn_persists_with_dead_context"),
    (36, "no_duplicate_user_message"),
    (37, "cancel_mid_text"),
    (40, "cancel_during_tool"),
    (42, "cancel_while_permission_open"),
    (46, "cancel_unknown_session"),
    (47, "cancel_isolated_per_session"),
    (50, "cancel_after_completion"),
    (53, "release_and_cancel_race_prefers_cancel"),
    (55, "queue_count_and_list"),
    (56, "followup_folds_at_next_step"),
    (58, "followup_without_more_steps_becomes_own_turn"),
    (59, "several_followups_fold_in_order"),
    (60, "runid_prompt_never_folds"),
    (62, "drain_respects_watermark"),
    (63, "every_dropped_prompt_reports"),
    (64, "canceled_entry_not_folded"),
    (65, "cancel_clears_queue_with_rc"),
    (68, "both_turns_publish_rc"),
    (74, "completion_callback_not_carried_into_queue"),
    (76, "fold_store_failure_not_lost"),
    (77, "same_runid_twice"),
    (79, "rc_success_shape"),
    (80, "rc_text_is_last_assistant"),
    (81, "rc_cancel_shape"),
    (82, "pre_run_error_fallback_rc"),
    (83, "no_fallback_when_published"),
    (85, "error_event_has_run_id"),
    (86, "provider_error_persisted"),
    (88, "reauth_retry_single_rc"),
    (89, "malformed_tool_json"),
    (90, "loop_guard"),
    (91, "orphan_tool_call_repaired"),
    (96, "content_filter_and_max_tokens"),
    (98, "teardown_waits_for_runs"),
    (103, "post_during_teardown_409_or_404"),
    (105, "two_clients_same_path_share"),
    (106, "different_paths_differ"),
    (107, "symlink_dedupe"),
    (108, "nonexistent_path_ok"),
    (110, "first_wins_flags"),
    (111, "mismatch_logged_only_when_different"),
    (113, "same_client_twice_one_claim"),
    (114, "parallel_creates_converge"),
    (115, "missing_or_bad_client_id_400"),
    (116, "path_required_400"),
    (117, "create_hold_expires"),
    (118, "failed_create_restores_counter"),
    (120, "data_dir_locked_by_other_process"),
    (122, "events_isolated_between_workspaces"),
    (123, "env_not_leaked"),
    (124, "list_and_get_workspace"),
    (125, "version_mismatch_warns"),
    (127, "attach_stops_hold"),
    (128, "attach_without_create"),
    (129, "attach_unknown_404"),
    (130, "two_streams_one_client"),
    (131, "kill_a_keeps_b"),
    (132, "run_survives_poster_leaving"),
    (134, "grace_survives_blip"),
    (135, "grace_expiry_tears_down"),
    (137, "release_skips_grace"),
    (138, "release_with_open_stream_keeps"),
    (139, "release_without_stream_drops_hold"),
    (140, "release_then_attach_fresh_claim"),
    (144, "hold_expiry_vs_attach"),
    (145, "attach_vs_teardown"),
    (147, "concurrent_attach_detach_50"),
    (148, "refcount_two_clients"),
    (149, "retire_releases_all_kinds"),
    (150, "retire_refuses_later_create"),
    (153, "retire_bad_uuid_400"),
    (154, "shared_dir_one_leaves"),
    (155, "retire_cancels_nothing_if_shared"),
    (156, "slow_handshake_client"),
    (157, "shutdown_only_after_last_client"),
    (158, "create_within_linger_cancels_shutdown"),
    (159, "linger_expires_exits"),
    (161, "pending_balanced_on_success"),
    (162, "failed_create_reaps_idle_server"),
    (163, "latched_server_503"),
    (164, "control_refused_when_live"),
    (165, "control_refused_when_create_pending"),
    (166, "control_granted_when_idle"),
    (167, "control_unknown_or_bad_json_400"),
    (169, "zero_linger_immediate_exit"),
    (170, "never_used_server"),
    (172, "set_switch_clear_current_session"),
    (173, "hold_only_409"),
    (175, "unselected_and_hold_clients_not_counted"),
    (176, "presence_vs_detach_race"),
    (178, "two_streams_count_once"),
    (179, "is_busy_in_list_and_get"),
    (180, "headers_before_first_event"),
    (182, "n_consumers_each_get_all"),
    (183, "facts_never_dropped"),
    (184, "stalled_reader_does_not_block_run"),
    (185, "config_changed_fanout"),
    (186, "unknown_internal_event_not_coerced"),
    (187, "tool_result_fields_survive_wire"),
    (193, "stream_ends_on_teardown"),
    (194, "five_deltas_two_events"),
    (195, "finish_flushes_at_once"),
    (196, "tool_call_add_and_finish_flush"),
    (197, "reasoning_end_flushes"),
    (198, "flush_and_flush_all_drain"),
    (199, "converges_with_uncoalesced"),
    (200, "delete_discards_buffer"),
    (201, "zero_debounce_sync"),
    (203, "structural_updates_must_deliver"),
    (206, "rest_read_sees_latest"),
    (207, "cross_client_grant"),
    (208, "racing_grants_one_winner"),
    (209, "grant_after_deny_noop"),
    (211, "allow_session_remembered"),
    (212, "allow_once_not_remembered"),
    (213, "concurrent_three_outcomes"),
    (214, "unknown_id_noop_no_event"),
    (215, "invalid_action_400"),
    (216, "notification_sequence"),
    (219, "skip_mode"),
    (220, "allow_list"),
    (221, "hook_approval_scoped_to_call"),
    (222, "auto_approve_session"),
    (224, "serialised_dialogs_same_session"),
    (230, "client_action_mapping"),
    (231, "ask_answer_roundtrip"),
    (232, "answer_none_pending_false"),
    (233, "user_cancel_stops_turn"),
    (234, "validation_errors_to_model"),
    (235, "turn_cancel_while_asked"),
    (237, "double_cancel_safe"),
    (240, "not_offered_noninteractive"),
    (241, "session_crud_and_order"),
    (242, "message_order_stable_within_one_second"),
    (244, "title_generated_from_first_text"),
    (245, "title_usage_added_not_overwritten"),
    (246, "estimated_flag_survives_save"),
    (247, "usage_rules"),
    (248, "delete_session_cascade"),
    (250, "delete_parent_removes_children"),
    (251, "subagent_child_session"),
    (253, "continue_rules"),
    (254, "last_ignores_children"),
    (255, "bad_media_downgraded"),
    (256, "attachments_retained_but_filtered_for_text_model"),
    (257, "reset_streamed_content"),
    (258, "summarize_ok"),
    (259, "summarize_empty_noop"),
    (260, "summarize_busy_409"),
    (261, "summarize_cancel_deletes_summary"),
    (262, "summarize_error_finishes_message"),
    (265, "summarize_survives_disconnect"),
    (266, "auto_summarize_threshold"),
    (269, "shell_ok_persisted"),
    (270, "shell_missing_session_runs_without_record"),
    (271, "shell_in_history_not_title"),
    (272, "shell_during_turn"),
    (273, "handler_exception_500_json"),
    (275, "stale_socket_removed"),
    (276, "live_socket_not_removed"),
    (277, "stale_classification"),
    (279, "default_socket_path"),
    (280, "cancelled_context_error_is_500_for_plain_handlers"),
    (281, "session_not_found_404"),
    (282, "huge_or_slow_body"),
    (284, "status_typing"),
    (285, "send_accepts_200_and_202"),
    (286, "subscribe_cancel_closes_channel"),
    (287, "reconnect_on_drop"),
    (288, "recover_from_404"),
    (290, "escalate_after_20_keep_trying"),
    (291, "shutdown_retires_after_lost_create_response"),
    (293, "legacy_server_fallback_release"),
    (294, "recovery_create_bounded"),
    (295, "ready_errors_distinct"),
    (296, "end_to_end_recovery_with_sibling_alive"),
    (297, "run_ignores_tool_use_and_end_turn_finish"),
    (298, "run_reconciles_out_of_order_and_partial"),
    (299, "run_filters_foreign"),
    (300, "run_exit_codes"),
    (302, "run_fallback_without_runid"),
    (303, "spawn_race_8_clients"),
    (304, "stale_version_honours_refusal"),
    (305, "legacy_server_busy_left"),
    (307, "run_on_busy_session_gets_own_answer"),
)


# Scenarios that leave nothing to observe here, and why.
NOT_APPLICABLE = {
    18: "no tool servers are started, so there are none that a run could wait for",
    221: "there are no hooks: nothing but a person, the allow-list, skip or an earlier "
    "allow_session ever approves a tool call",
    222: "no session is approved as a whole: a run that no interactive client watches is decided "
    "by the unattended policy, or its workspace is created with skip on",
    246: "a session keeps counters and no flag: estimated tokens are counted and cost nothing, "
    "which is decided when they are reported, and nothing is left to survive",
}


def marked(node: Function) -> list[int]:
    """The numbers of a `@scenario(...)` on a function."""
    numbers: list[int] = []
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "scenario":
            numbers += [ast.literal_eval(number) for number in decorator.args]
    return numbers


@functools.cache
def classes() -> list[ast.ClassDef]:
    """All classes at the top of the modules in tests/."""
    bodies = [parsed(source).body for _, source in sources(TESTS)]
    return [node for body in bodies for node in body if isinstance(node, ast.ClassDef)]


def methods() -> list[Function]:
    return [node for cls in classes() for node in cls.body if isinstance(node, Function)]


def scenario_tests() -> dict[int, list[str]]:
    """Test methods by the numbers of their markers."""
    found: dict[int, list[str]] = {}
    for node in methods():
        for number in marked(node):
            found.setdefault(number, []).append(node.name)
    return found


class CatalogueTests(unittest.TestCase):
    def test_every_scenario_is_tested_or_explained(self) -> None:
        covered = scenario_tests()
        missing = [
            f"{number} {name}"
            for number, name in CATALOGUE
            if number not in covered and number not in NOT_APPLICABLE
        ]
        self.assertEqual(missing, [])

    def test_an_excuse_has_a_reason_and_no_test_beside_it(self) -> None:
        covered = scenario_tests()
        for number, reason in NOT_APPLICABLE.items():
            with self.subTest(number=number):
                self.assertGreater(len(reason), 20)
                self.assertNotIn(number, covered)

    def test_markers_and_excuses_name_scenarios_of_the_catalogue(self) -> None:
        named = {*scenario_tests(), *NOT_APPLICABLE}
        self.assertEqual(named - dict(CATALOGUE).keys(), set())

    def test_no_test_is_named_after_the_number_of_a_scenario(self) -> None:
        wrong = [node.name for node in methods() if re.match(r"test_\d{3}_", node.name)]
        self.assertEqual(wrong, [])

    def test_scenarios_for_every_agent_are_run_with_one(self) -> None:
        """Their classes are no test cases: one that is not inherited tests nothing."""
        bases = {cls.name: {ast.unparse(base) for base in cls.bases} for cls in classes()}
        shared = {name for name, names in bases.items() if "ForEveryAgent" in names}
        self.assertTrue(shared)
        self.assertEqual(shared - set().union(*bases.values()), set())

    def test_pytest_sees_the_marker_and_its_numbers(self) -> None:
        @scenario(1, 2)
        def marked_test() -> None: ...

        (mark,) = marked_test.pytestmark  # type: ignore[attr-defined]
        self.assertEqual((mark.name, mark.args), ("scenario", (1, 2)))
