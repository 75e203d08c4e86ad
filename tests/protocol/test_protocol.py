"""Every dataclass of the protocol as JSON, and what the strict reader refuses.

The examples are the shapes the base protocol's own client and server send. Each is decoded and
encoded again and must come out the same, key for key: so "always" and "left out when empty" are
checked in both directions.
"""

from __future__ import annotations

import dataclasses
import json
import typing
import unittest
from dataclasses import dataclass, field
from typing import Any

from crushlite.console.wire import WebChallenge, WebCode, WebHello, WebProof, WebTab, WebToken
from crushlite.errors import BadRequest
from crushlite.features.wire import (
    ChangedRun,
    Check,
    ClientServer,
    CommandArgument,
    CommandInfo,
    CompactMode,
    ExpandCommand,
    ExpandedCommand,
    FileChange,
    FileRead,
    GetPrompt,
    Health,
    McpState,
    NamedServer,
    OAuthRefresh,
    OfferedAgent,
    ProviderKey,
    ReadSkill,
    RemoveValue,
    RunChanges,
    SessionAgent,
    SetValue,
    ShellAnswer,
    ShellCommand,
    UndoAnswer,
    UndoRequest,
    UsedServers,
    WantServers,
    WebAddress,
    WebRequest,
)
from crushlite.lsp.wire import LSPClientInfo, StartLSP
from crushlite.mcp.wire import McpPrompt, McpPromptArgument
from crushlite.protocol import codec, events, permissions
from crushlite.protocol.codec import MAX_DEPTH, MAX_VALUES, decode, dumps, encode, loads, omitted
from crushlite.protocol.config import AgentInfo, AgentInit, Model, ModelChoice, SelectedModel
from crushlite.protocol.events import (
    ConfigChanged,
    Envelope,
    LSPEvent,
    McpEvent,
    Resync,
    SkillsEvent,
    SkillState,
)
from crushlite.protocol.messages import (
    PARTS,
    Attachment,
    BinaryPart,
    FinishPart,
    ImageURLPart,
    Message,
    MessageDelta,
    Prompt,
    ReasoningPart,
    ShellCommandPart,
    TextPart,
    ToolCallPart,
    ToolOutput,
    ToolResultPart,
)
from crushlite.protocol.permissions import (
    Grant,
    PermissionAnswer,
    PermissionNotification,
    PermissionOption,
    PermissionRequest,
    PermissionRule,
    PermissionSkip,
    Resolution,
)
from crushlite.protocol.questions import (
    QUESTION_TYPES,
    Choice,
    Question,
    QuestionAnswer,
    QuestionBatch,
    QuestionNotification,
    QuestionReply,
    QuestionResponse,
)
from crushlite.protocol.runs import (
    Accepted,
    AgentEvent,
    CanceledRun,
    CancelReceipt,
    QueuedPrompt,
    RunComplete,
    RunInfo,
)
from crushlite.protocol.sessions import CurrentSession, File, Session, Todo
from crushlite.protocol.workspaces import Control, CreateWorkspace, Space, VersionInfo, Workspace
from crushlite.skills.wire import SkillContent, SkillInfo, SkillSummary
from tests.support.wire import wire_classes

# A class, the keys that are always there, and the keys that are left out when empty.
SHAPES: list[tuple[type, str, str]] = [
    (
        CreateWorkspace,
        "id path",
        "client_id version yolo debug data_dir env channels",
    ),
    (Workspace, "id path config", "yolo debug data_dir version env channels warning"),
    (Control, "command", "client"),
    (WebRequest, "", "port path allow_host"),
    (WebAddress, "url code page expires_in", ""),
    (WebCode, "code", ""),
    (WebToken, "token", "path"),
    (WebTab, "id key", ""),
    (WebHello, "id nonce", ""),
    (WebChallenge, "nonce proof", ""),
    (WebProof, "id proof", ""),
    (SetValue, "key value scope", ""),
    (RemoveValue, "key scope", ""),
    (ModelChoice, "model_type model scope", ""),
    (CompactMode, "enabled scope", ""),
    (ProviderKey, "provider_id kind api_key scope", ""),
    (OAuthRefresh, "provider_id scope", ""),
    (ReadSkill, "skill_id", ""),
    (SkillInfo, "id name description label source user_invocable", ""),
    (SkillSummary, "name description source builtin", ""),
    (SkillContent, "content result", ""),
    (SkillState, "name path state", "error warning"),
    (SkillsEvent, "states", ""),
    (CommandArgument, "name", "description required"),
    (CommandInfo, "id name description source arguments", ""),
    (ExpandCommand, "command", "arguments text"),
    (ExpandedCommand, "prompt", ""),
    (LSPClientInfo, "name state connected_at", "error diagnostic_count"),
    (LSPEvent, "type name state", "error diagnostic_count"),
    (StartLSP, "path", ""),
    (NamedServer, "name", "uri"),
    (ClientServer, "name type command args env url headers", ""),
    (WantServers, "servers", ""),
    (UsedServers, "used refused", ""),
    (GetPrompt, "client_id prompt_id", "args"),
    (
        McpState,
        "name state connected_at",
        "error tool_count prompt_count resource_count tools left_out last_lines",
    ),
    (McpEvent, "type name state", "error tool_count prompt_count resource_count"),
    (McpPromptArgument, "id title required", "description"),
    (McpPrompt, "id prompt_id client_id title description arguments", ""),
    (VersionInfo, "version commit build_id go_version platform", "agent"),
    (
        Health,
        "status version pid uptime_seconds loop_lag_seconds workspaces clients streams"
        " busy_sessions store checks",
        "",
    ),
    (Check, "name ok", "detail"),
    (
        Session,
        "id parent_session_id title message_count prompt_tokens completion_tokens"
        " summary_message_id cost created_at updated_at is_busy attached_clients",
        "todos",
    ),
    (Todo, "content status active_form", ""),
    (CurrentSession, "session_id", ""),
    (ToolOutput, "session_id tool_call_id output", ""),
    (MessageDelta, "message_id part offset text", ""),
    (FileRead, "session_id path", ""),
    (ShellCommand, "session_id command term_width", ""),
    (ShellAnswer, "output exit_code", ""),
    (File, "id session_id path content version created_at updated_at", ""),
    (
        Message,
        "id role session_id parts model provider created_at updated_at",
        "is_summary_message",
    ),
    (TextPart, "text", ""),
    (ReasoningPart, "thinking signature", "started_at finished_at"),
    (ImageURLPart, "url", "detail"),
    (BinaryPart, "Path MIMEType Data", ""),
    (ToolCallPart, "id name input", "type finished"),
    (ToolResultPart, "tool_call_id name content metadata is_error", "data mime_type"),
    (FinishPart, "reason time", "message details withheld"),
    (ShellCommandPart, "command output exit_code", ""),
    (Attachment, "content file_path file_name mime_type", ""),
    (
        Prompt,
        "session_id prompt",
        "run_id attachments when_busy detach max_cost max_steps auto_approve reasoning_effort "
        "think models max_seconds",
    ),
    (
        Model,
        "id name cost_per_1m_in cost_per_1m_out cost_per_1m_in_cached cost_per_1m_out_cached"
        " context_window default_max_tokens can_reason supports_attachments",
        "reasoning_levels default_reasoning_effort options",
    ),
    (
        SelectedModel,
        "model provider",
        "reasoning_effort think max_tokens temperature top_p top_k frequency_penalty"
        " presence_penalty provider_options",
    ),
    (AgentInfo, "is_busy is_ready model model_cfg", "no_model"),
    (AgentInit, "interactive", ""),
    (
        PermissionRequest,
        "id session_id tool_call_id tool_name description action params path",
        "scope rule options",
    ),
    (PermissionNotification, "tool_call_id granted denied", ""),
    (Grant, "permission action", ""),
    (PermissionAnswer, "action", "reason option"),
    (PermissionOption, "id name kind", ""),
    (OfferedAgent, "name command", ""),
    (SessionAgent, "agent", ""),
    (PermissionRule, "id tool_name action path words parts", "session_id created_at"),
    (PermissionSkip, "skip", ""),
    (Resolution, "resolved by", ""),
    (Choice, "id label", "description"),
    (Question, "id type question", "label description choices"),
    (
        QuestionBatch,
        "id session_id tool_call_id questions",
        "confirm_title confirm_description",
    ),
    (QuestionResponse, "request_id", "selected_ids fill_in_text yes notes"),
    (QuestionAnswer, "batch_request_id responses", ""),
    (QuestionReply, "responses", "action"),
    (QuestionNotification, "batch_id", ""),
    (ShellCommand, "session_id command term_width", ""),
    (ShellAnswer, "output exit_code", ""),
    (Accepted, "run_id session_id state", ""),
    (
        RunInfo,
        "run_id session_id kind state outcome message_id text error folded_into accepted_at"
        " started_at ended_at denied limit cost prompt_tokens completion_tokens prompt",
        "",
    ),
    (ChangedRun, "run_id session_id undoes files changed_at undone", ""),
    (FileChange, "path existed exists before after mode", "problem"),
    (RunChanges, "run_id session_id undoes files notes", ""),
    (UndoRequest, "dry_run partial", ""),
    (UndoAnswer, "run_id restored kept", ""),
    (Space, "before after", ""),
    (CanceledRun, "run_id was", ""),
    (CancelReceipt, "canceled", ""),
    (QueuedPrompt, "run_id text when_busy accepted_at", ""),
    (
        RunComplete,
        "session_id message_id",
        "run_id text error cancelled folded_into denied limit cost prompt_tokens completion_tokens",
    ),
    (AgentEvent, "type", "session_id session_title run_id error progress"),
    (ConfigChanged, "workspace_id", ""),
    (Resync, "reason", ""),
]

MODEL = {
    "id": "toy-70b",
    "name": "Toy 70B",
    "cost_per_1m_in": 1.5,
    "cost_per_1m_out": 6,
    "cost_per_1m_in_cached": 0,
    "cost_per_1m_out_cached": 0,
    "context_window": 64000,
    "default_max_tokens": 4096,
    "can_reason": False,
    "supports_attachments": False,
}
SESSION = {
    "id": "29da8db4",
    "parent_session_id": "",
    "title": "Port the parser",
    "message_count": 4,
    "prompt_tokens": 1820,
    "completion_tokens": 344,
    "summary_message_id": "",
    "cost": 0.0131,
    "todos": [{"content": "Write", "status": "in_progress", "active_form": "Writing"}],
    "created_at": 1789000000,
    "updated_at": 1789000042,
    "is_busy": False,
    "attached_clients": 1,
}
MESSAGE = {
    "id": "cf907894",
    "role": "assistant",
    "session_id": "29da8db4",
    "parts": [
        {"type": "reasoning", "data": {"thinking": "Look.", "signature": "", "started_at": 9}},
        {"type": "text", "data": {"text": "Let me list the folder."}},
        {
            "type": "tool_call",
            "data": {"id": "call_9f", "name": "ls", "input": '{"path":"src"}', "finished": True},
        },
        {"type": "finish", "data": {"reason": "tool_use", "time": 1789000013}},
    ],
    "model": "toy-70b",
    "provider": "bench",
    "created_at": 1789000009,
    "updated_at": 1789000009,
}
# What the Crush client and its server put on the wire, shape by shape.
EXAMPLES: list[tuple[type, dict[str, Any]]] = [
    (
        CreateWorkspace,
        {"id": "", "path": "/demo", "version": "v1", "client_id": "7e06", "env": ["LANG=C"]},
    ),
    (
        Workspace,
        {"id": "0782", "path": "/demo", "data_dir": "/demo/.c", "env": ["A=b"], "config": {"x": 1}},
    ),
    (Session, SESSION),
    (Message, MESSAGE),
    (
        Prompt,
        {
            "session_id": "29da",
            "run_id": "68f1",
            "prompt": "List the TODOs",
            "attachments": [
                {
                    "content": "Zm9vCg==",
                    "file_path": "notes.txt",
                    "file_name": "notes.txt",
                    "mime_type": "text/plain",
                }
            ],
        },
    ),
    (
        AgentInfo,
        {
            "is_busy": False,
            "is_ready": True,
            "model": MODEL,
            "model_cfg": {"model": "toy-70b", "provider": "bench", "max_tokens": 4096},
        },
    ),
    (
        PermissionRequest,
        {
            "id": "783b",
            "session_id": "29da",
            "tool_call_id": "call_a1",
            "tool_name": "bash",
            "description": "Execute command: make check",
            "action": "execute",
            "params": {"command": "make check", "run_in_background": False, "n": [1, None, 2.5]},
            "path": "/demo",
        },
    ),
    (PermissionNotification, {"tool_call_id": "call_a1", "granted": False, "denied": False}),
    (
        QuestionBatch,
        {
            "id": "447a",
            "session_id": "29da",
            "tool_call_id": "call_q",
            "questions": [
                {
                    "id": "q1",
                    "type": "single_choice",
                    "label": "DB",
                    "question": "Which database?",
                    "description": "Pick one",
                    "choices": [{"id": "pg", "label": "Postgres"}, {"id": "sq", "label": "SQLite"}],
                }
            ],
        },
    ),
    (
        QuestionAnswer,
        {"batch_request_id": "", "responses": [{"request_id": "q1", "selected_ids": ["pg"]}]},
    ),
    (QuestionNotification, {"batch_id": "447a"}),
    (
        RunComplete,
        {
            "session_id": "29da",
            "run_id": "68f1",
            "message_id": "cf90",
            "text": "Three TODOs remain.",
            "error": "boom",
            "cancelled": True,
        },
    ),
    (
        AgentEvent,
        {"type": "agent_finished", "session_id": "29da", "session_title": "Port the parser"},
    ),
]


def filled(hint: Any) -> Any:
    """Some non-empty value of a type, down to the leaves."""
    if typing.get_origin(hint) is list:
        return [filled(typing.get_args(hint)[0]) for _ in range(2)]
    if typing.get_origin(hint) is dict:
        return {"key": filled(typing.get_args(hint)[1])}
    if typing.get_args(hint):  # X | None
        return filled(next(a for a in typing.get_args(hint) if a is not type(None)))
    if dataclasses.is_dataclass(hint):
        return example_of(typing.cast("type", hint))
    plain = {str: "tëxt \U0001f600\x00", int: 7, float: 2.5, bool: True, Any: {"any": [1, None]}}
    return plain[hint]


def example_of(cls: type) -> Any:
    hints = typing.get_type_hints(cls)
    values: dict[str, Any] = {}
    for f in dataclasses.fields(cls):
        if "tags" in f.metadata:
            values[f.name] = [example_of(part) for part in f.metadata["tags"].values()]
        else:
            values[f.name] = filled(hints[f.name])
    return cls(**values)


def empty_of(cls: type) -> Any:
    """An instance with every field empty."""
    zeros: dict[Any, Any] = {str: "", int: 0, float: 0.0, bool: False, Any: None}
    zeros[SelectedModel] = SelectedModel()
    hints = typing.get_type_hints(cls)
    required = {
        f.name: zeros[hints[f.name]]
        for f in dataclasses.fields(cls)
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    }
    return cls(**required)


class ShapeTests(unittest.TestCase):
    def test_the_table_of_shapes_covers_every_wire_type(self) -> None:
        self.assertEqual({cls for cls, _, _ in SHAPES}, wire_classes() - {Envelope})

    def test_an_empty_value_has_exactly_the_keys_that_are_always_there(self) -> None:
        for cls, always, _ in SHAPES:
            with self.subTest(cls.__name__):
                self.assertEqual(set(encode(empty_of(cls))), set(always.split()))

    def test_a_full_value_has_all_keys(self) -> None:
        for cls, always, omitted_keys in SHAPES:
            with self.subTest(cls.__name__):
                keys = set(always.split()) | set(omitted_keys.split())
                self.assertEqual(set(encode(example_of(cls))), keys)

    def test_every_wire_type_survives_the_round_trip_full_and_empty(self) -> None:
        for cls, _, _ in SHAPES:
            for value in (example_of(cls), empty_of(cls)):
                with self.subTest(cls.__name__):
                    self.assertEqual(decode(cls, loads(dumps(encode(value)))), value)

    def test_what_the_base_protocol_sends_comes_out_key_for_key(self) -> None:
        for cls, example in EXAMPLES:
            with self.subTest(cls.__name__):
                self.assertEqual(encode(decode(cls, example)), example)

    def test_wire_types_have_slots_so_a_misspelt_attribute_fails(self) -> None:
        for cls in wire_classes():
            with self.subTest(cls.__name__):
                self.assertIn("__slots__", vars(cls))
                self.assertNotIn("__dict__", dir(cls))


class DetailTests(unittest.TestCase):
    def test_a_part_is_wrapped_in_type_and_data(self) -> None:
        message = Message("m", "user", "s", [TextPart("hi")])
        self.assertEqual(encode(message)["parts"], [{"type": "text", "data": {"text": "hi"}}])

    def test_parts_are_an_empty_array_and_never_missing(self) -> None:
        self.assertEqual(encode(Message("m", "user", "s"))["parts"], [])

    def test_each_part_is_registered_under_its_own_tag(self) -> None:
        names = "text reasoning image_url binary tool_call tool_result finish shell_command"
        self.assertEqual(set(PARTS), set(names.split()))
        for tag, cls in PARTS.items():
            self.assertEqual(vars(cls)["tag"], tag)

    def test_binary_keys_are_go_cased_and_snake_case_is_ignored(self) -> None:
        part = BinaryPart(path="a.png", mime_type="image/png", data="AAEC")
        value = {"Path": "a.png", "MIMEType": "image/png", "Data": "AAEC"}
        self.assertEqual(encode(part), value)
        self.assertEqual(decode(BinaryPart, value), part)
        self.assertEqual(decode(BinaryPart, {"mime_type": "x", "Data": None}), BinaryPart())

    def test_a_tool_call_that_still_streams_has_no_finished_key(self) -> None:
        self.assertNotIn("finished", encode(ToolCallPart("c", "ls", "{")))
        self.assertIs(encode(ToolCallPart("c", "ls", "{}", finished=True))["finished"], True)

    def test_false_differs_from_unset_where_the_wire_has_three_values(self) -> None:
        self.assertNotIn("yes", encode(QuestionResponse("q")))
        self.assertIs(encode(QuestionResponse("q", yes=False))["yes"], False)
        self.assertEqual(encode(SelectedModel("m", "p", temperature=0.0))["temperature"], 0.0)
        self.assertEqual(encode(Prompt("s", "p", max_steps=0))["max_steps"], 0)

    def test_an_environment_that_was_not_sent_differs_from_an_empty_one(self) -> None:
        self.assertIsNone(decode(CreateWorkspace, {}).env)
        self.assertEqual(decode(CreateWorkspace, {"env": []}).env, [])
        self.assertEqual(encode(CreateWorkspace(env=[]))["env"], [])

    def test_the_vocabularies_are_those_of_the_base_protocol(self) -> None:
        self.assertEqual(permissions.PERMISSION_ACTIONS, ("allow", "allow_session", "deny"))
        self.assertEqual(QUESTION_TYPES, ("yes_no", "single_choice", "multi_choice", "free_text"))


class MessageViewTests(unittest.TestCase):
    def test_text_is_the_first_text_part_as_clients_show_it(self) -> None:
        message = Message("m", "assistant", "s", [ReasoningPart("r"), TextPart("a"), TextPart("b")])
        self.assertEqual(message.text, "a")
        self.assertEqual(Message("m", "assistant", "s").text, "")

    def test_finish_calls_and_results_are_found_among_the_parts(self) -> None:
        call, result, end = ToolCallPart("c"), ToolResultPart("c"), FinishPart("stop")
        message = Message("m", "tool", "s", [call, result, end])
        self.assertEqual(message.tool_calls, [call])
        self.assertEqual(message.tool_results, [result])
        self.assertIs(message.finish, end)
        self.assertIsNone(Message("m", "tool", "s").finish)

    def test_attachment_content_is_strict_base64(self) -> None:
        self.assertEqual(Attachment(content="Zm9vCg==").decoded(), b"foo\n")
        for content in ("Zm9v!", "Zm9vCg=", "\xe9", "Zm9v\n"):
            with self.assertRaisesRegex(BadRequest, "'n.txt': content is not valid base64"):
                Attachment(content=content, file_path="n.txt").decoded()

    def test_only_text_types_count_as_text(self) -> None:
        self.assertTrue(Attachment(mime_type="text/plain").is_text)
        self.assertFalse(Attachment(mime_type="image/png").is_text)


@dataclass
class Sample:
    """One field of each kind a wire type can have."""

    name: str
    count: int = 3
    share: float = 0.5
    on: bool = True
    maybe: int | None = None
    names: list[str] = field(default_factory=lambda: ["default"])
    notes: dict[str, str] = field(default_factory=dict)
    model: SelectedModel = field(default_factory=SelectedModel)
    models: list[SelectedModel] = field(default_factory=list)
    free: Any = "free"
    short: str = omitted()


class DecodeTests(unittest.TestCase):
    def test_unknown_keys_are_ignored_at_every_level(self) -> None:
        value = {"name": "n", "nope": 1, "model": {"model": "m", "nope": {}}, "models": [{"x": 0}]}
        sample = decode(Sample, value)
        self.assertEqual(sample.model.model, "m")
        self.assertEqual(sample.models, [SelectedModel()])

    def test_null_keeps_the_default(self) -> None:
        nulls = {f.name: None for f in dataclasses.fields(Sample)} | {"name": "n"}
        self.assertEqual(decode(Sample, nulls), Sample("n"))

    def test_defaults_are_not_shared(self) -> None:
        decode(Sample, {"name": "a"}).names.append("more")
        self.assertEqual(decode(Sample, {"name": "b"}).names, ["default"])

    def test_a_required_field_is_named_when_absent_or_null(self) -> None:
        for value in ({}, {"name": None}):
            with self.assertRaisesRegex(BadRequest, r"^body\.name is required$"):
                decode(Sample, value)

    def test_a_number_field_takes_whole_numbers_and_an_integer_no_fraction(self) -> None:
        share = decode(Sample, {"name": "n", "share": 2}).share
        self.assertEqual((share, type(share)), (2.0, float))
        with self.assertRaisesRegex(BadRequest, r"body\.count must be an integer, not a number"):
            decode(Sample, {"name": "n", "count": 1.0})

    def test_a_boolean_is_no_number_and_a_number_no_boolean(self) -> None:
        for key, wrong in (("count", True), ("share", False), ("on", 1), ("on", 0)):
            with self.subTest(key=key), self.assertRaisesRegex(BadRequest, rf"^body\.{key} must"):
                decode(Sample, {"name": "n", key: wrong})

    def test_the_bounds_of_64_bits_are_inside_and_the_next_integers_outside(self) -> None:
        for good in (2**63 - 1, -(2**63)):
            self.assertEqual(decode(Sample, {"name": "n", "count": good}).count, good)
        for bad in (2**63, -(2**63) - 1, 10**400):
            for key in ("count", "share", "maybe"):
                with self.assertRaisesRegex(BadRequest, rf"body\.{key} must fit in 64 bits"):
                    decode(Sample, {"name": "n", key: bad})

    def test_a_wrong_type_is_reported_with_the_place_and_both_kinds(self) -> None:
        cases: list[tuple[Any, str]] = [
            ({"name": 1}, "body.name must be a string, not a number"),
            ({"name": {}}, "body.name must be a string, not an object"),
            ({"count": "3"}, "body.count must be an integer, not a string"),
            ({"share": []}, "body.share must be a number, not an array"),
            ({"on": "yes"}, "body.on must be true or false, not a string"),
            ({"maybe": True}, "body.maybe must be an integer, not a boolean"),
            ({"names": "x"}, "body.names must be an array, not a string"),
            ({"names": ["a", None]}, "body.names[1] must be a string, not null"),
            ({"notes": []}, "body.notes must be an object, not an array"),
            ({"notes": {"k": 1}}, "body.notes.k must be a string, not a number"),
            ({"model": 5}, "body.model must be an object, not a number"),
            ({"models": [{}, {"model": 1}]}, "body.models[1].model must be a string"),
            ({"models": [None]}, "body.models[0] must be an object, not null"),
        ]
        for value, message in cases:
            with self.subTest(message), self.assertRaises(BadRequest) as caught:
                decode(Sample, {"name": "n"} | value)
            self.assertIn(message, caught.exception.message)

    def test_a_body_that_is_no_object_is_refused(self) -> None:
        values: tuple[Any, ...] = ([], "x", 1, 1.5, True, None)
        for value in values:
            with self.subTest(value=value), self.assertRaisesRegex(BadRequest, "^body must be an"):
                decode(Sample, value)

    def test_a_field_of_any_type_is_passed_through(self) -> None:
        for value in (1, "x", [None], {"a": {"b": 2**70}}):
            self.assertEqual(decode(Sample, {"name": "n", "free": value}).free, value)

    def test_bad_parts_are_reported_with_their_index(self) -> None:
        cases: list[tuple[Any, str]] = [
            ({}, "body.parts must be an array, not an object"),
            ([{"type": "text", "data": {}}, {"type": "video"}], "body.parts[1].type must be one"),
            ([{"data": {}}], "body.parts[0].type must be one of binary, finish"),
            ([{"type": ["text"]}], "body.parts[0].type must be one of"),
            (["text"], "body.parts[0].type must be one of"),
            ([{"type": "text"}], "body.parts[0].data must be an object, not null"),
            ([{"type": "text", "data": {"text": 1}}], "body.parts[0].data.text must be a string"),
        ]
        for parts, message in cases:
            with self.subTest(message), self.assertRaises(BadRequest) as caught:
                decode(Message, {"id": "m", "role": "user", "session_id": "s", "parts": parts})
            self.assertIn(message, caught.exception.message)

    def test_null_parts_are_an_empty_list(self) -> None:
        value = {"id": "m", "role": "user", "session_id": "s", "parts": None}
        self.assertEqual(decode(Message, value).parts, [])

    def test_a_long_or_unprintable_key_does_not_flood_the_message(self) -> None:
        with self.assertRaises(BadRequest) as caught:
            decode(Sample, {"name": "n", "notes": {"\n\udc80" + "k" * 100_000: 1}})
        self.assertLess(len(caught.exception.message), 150)
        self.assertTrue(caught.exception.message.isprintable())


class EncodeTests(unittest.TestCase):
    def test_plain_values_lists_and_dicts_are_walked(self) -> None:
        value = [1, "a", None, 2.5, True, {"t": (Todo("x"),)}]
        todo = {"content": "x", "status": "pending", "active_form": ""}
        self.assertEqual(encode(value), [1, "a", None, 2.5, True, {"t": [todo]}])

    def test_a_foreign_object_is_a_bug_and_says_which(self) -> None:
        with self.assertRaisesRegex(TypeError, "bytes is not a wire type"):
            encode({"a": b"x"})

    def test_the_bytes_are_one_compact_ascii_line(self) -> None:
        raw = dumps({"a": "line\nbreak \u2028 \x85 é \U0001f600", "b": [1, 2]})
        self.assertTrue(raw.isascii())
        self.assertEqual(len(raw.splitlines()), 1)
        self.assertNotIn(b": ", raw)
        self.assertEqual(loads(raw)["a"], "line\nbreak \u2028 \x85 é \U0001f600")

    def test_a_number_that_json_does_not_have_is_never_sent(self) -> None:
        for value in (float("nan"), float("inf")):
            with self.assertRaises(ValueError):
                dumps({"cost": value})


def nested(depth: int, inside: str = "") -> bytes:
    return ("[" * depth + inside + "]" * depth).encode()


class LoadsTests(unittest.TestCase):
    def refused(self, body: bytes, reason: str) -> None:
        """Check that `loads` raises BadRequest with this reason; another exception is an error."""
        with self.assertRaises(BadRequest) as caught:
            loads(body)
        self.assertIn("failed to decode request: ", caught.exception.message)
        self.assertIn(reason, caught.exception.message)
        self.assertTrue(caught.exception.message.isprintable())
        self.assertLess(len(caught.exception.message), 300)

    def test_every_json_value_is_read(self) -> None:
        value = {"a": [1, -2, 1.5, 1e3, True, False, None, "x\u0000\U0001f600"], "": {}}
        self.assertEqual(loads(json.dumps(value).encode()), value)
        self.assertEqual(loads(b" \r\n\t7\n"), 7)
        self.assertEqual(loads('"é\\u00e9"'.encode()), "éé")

    def test_an_empty_body_says_that_json_was_expected(self) -> None:
        for body in (b"", b" \r\n\t"):
            self.refused(body, "the body is empty, JSON was expected")

    def test_broken_json_is_reported_with_line_and_column(self) -> None:
        self.refused(b'{"a": 1,\n "b" 2}', "at line 2 column 6")
        for body in (b"{", b"[1,]", b"{'a':1}", b"01", b"1 2", b'"\\x"', b'"\n"', b"+1", b".5"):
            self.refused(body, "at line ")

    def test_a_byte_order_mark_is_refused(self) -> None:
        self.refused(b'\xef\xbb\xbf{"a":1}', "at line 1 column 1")

    def test_other_encodings_are_refused(self) -> None:
        self.refused('{"a":1}'.encode("utf-16"), "not UTF-8 at byte 0")
        self.refused('{"a":"é"}'.encode("latin-1"), "not UTF-8 at byte 6")
        self.refused('{"a":1}'.encode("utf-16-le"), "at line 1 column 2")
        self.refused('{"a":1}'.encode("utf-32-be"), "at line 1 column 1")

    def test_a_surrogate_in_raw_bytes_is_not_utf8(self) -> None:
        self.refused(b'"\xed\xa0\x80"', "not UTF-8 at byte 1")

    def test_a_key_given_twice_is_named_at_every_level(self) -> None:
        self.refused(b'{"a":1,"b":2,"a":1}', "an object has the key a twice")
        self.refused(b'{"x":[{"k\\n":{},"k\\n":null}]}', r"an object has the key k\n twice")
        self.refused(b'{"a":1,"\\u0061":2}', "the key a twice")

    def test_numbers_that_json_does_not_have_are_refused_by_name(self) -> None:
        for name in ("NaN", "Infinity", "-Infinity"):
            self.refused(f'{{"a":[{name}]}}'.encode(), f"{name} is not a JSON number")

    def test_a_number_beyond_any_float_is_refused_with_its_place(self) -> None:
        self.refused(b'{"a":{"b":[0,1e400]}}', "body.a.b[1] is too large a number")
        self.refused(b"-1e999", "body is too large a number")
        self.assertEqual(loads(b"1e-400"), 0.0)

    def test_a_lone_surrogate_is_refused_with_its_place(self) -> None:
        self.refused(b'{"a":[{"b":"x\\ud800y"}]}', "body.a[0].b holds a lone surrogate")
        self.refused(b'["\\uDFFF"]', "body[0] holds a lone surrogate")
        self.refused(b'"\\udc00\\ud800"', "body holds a lone surrogate")
        self.refused(b'{"a":{"\\ud83d":1}}', "a key of body.a holds a lone surrogate")

    def test_a_surrogate_pair_is_a_character_and_an_escaped_escape_is_text(self) -> None:
        self.assertEqual(loads(b'"\\ud83d\\ude00"'), "\U0001f600")
        self.assertEqual(loads(b'{"\\ud83d\\ude00":"\\\\ud83d"}'), {"\U0001f600": "\\ud83d"})

    def test_the_deepest_document_is_64_levels_whatever_is_inside(self) -> None:
        self.assertEqual(MAX_DEPTH, 64)
        for depth in (1, 63, 64):
            for inside in ("", "1", '"x"'):
                loads(nested(depth, inside))
        for depth in (65, 66, 1_000, 100_000):
            for inside in ("", "1", '"\\ud800"'):
                self.refused(nested(depth, inside), "nested deeper than 64")

    def test_objects_count_like_arrays(self) -> None:
        def objects(depth: int) -> bytes:
            return b'{"a":' * (depth - 1) + b"{}" + b"}" * (depth - 1)

        loads(objects(64))
        for depth in (65, 1_000, 100_000):
            self.refused(objects(depth), "nested deeper than 64")
        self.refused(b'[{"a":' * 40 + b"1" + b"}]" * 40, "nested deeper than 64")

    def test_a_document_that_only_opens_is_refused_at_any_depth(self) -> None:
        for depth in (1, 64, 1_000, 100_000):
            self.refused(b"[" * depth, "")
            self.refused(b'{"a":' * depth, "")

    def test_flaws_below_and_at_the_deepest_level_are_found(self) -> None:
        self.refused(nested(64, "1e999"), "is too large a number")
        self.refused(nested(64, '"\\ud800"'), "holds a lone surrogate")

    def test_integers_outside_64_bits_are_refused_by_their_digits(self) -> None:
        for good in (2**63 - 1, -(2**63), 0):
            self.assertEqual(loads(str(good).encode()), good)
        for bad in (2**63, -(2**63) - 1, 10**19, 2**64):
            self.refused(f'{{"a":{bad}}}'.encode(), f"the integer {bad} does not fit in 64 bits")

    def test_a_very_long_integer_is_refused_without_being_computed(self) -> None:
        for digits in (4_299, 4_300, 4_301, 1_000_000):
            for sign in ("", "-"):
                body = f'{{"max_cost":{sign}{"7" * digits}}}'.encode()
                self.refused(body, f"the integer {sign}777777777777")

    def test_a_wide_and_deep_body_with_a_flaw_is_answered_with_a_short_message(self) -> None:
        deep = '{"' + "k" * 200 + '":'
        body = deep * 50 + "[" + "0," * 50_000 + "1e999]" + "}" * 50
        with self.assertRaises(BadRequest) as caught:
            loads(body.encode())
        self.assertIn("[50000] is too large a number", caught.exception.message)
        self.assertLess(len(caught.exception.message), 3_000)

    def test_too_many_values_are_refused_but_not_long_text_with_commas(self) -> None:
        self.refused(b"[" + b"1," * (MAX_VALUES + 1) + b"1]", "more than 200000 values")
        members = b",".join(b'"%d":""' % number for number in range(2 * MAX_VALUES + 1))
        self.refused(b"{" + members + b"}", "more than 200000 values")
        text = 'say \\"a, b\\", ' * 100_000
        self.assertEqual(loads(f'{{"prompt":"{text}"}}'.encode())["prompt"].count(","), 200_000)


class EventTests(unittest.TestCase):
    def test_every_registered_kind_round_trips_with_every_action(self) -> None:
        for kind, cls in events.KINDS.items():
            for action in events.ACTIONS:
                with self.subTest(kind, action=action):
                    payload = example_of(cls)
                    value = loads(dumps(events.to_json(action, payload)))
                    self.assertEqual(value["type"], kind)
                    self.assertEqual(value["payload"]["type"], action)
                    self.assertEqual(events.parse(value), Envelope(kind, action, payload))

    def test_the_registry_holds_the_kinds_of_the_base_protocol_and_two_more(self) -> None:
        kinds = (
            "session message file permission_request permission_notification"
            " question_batch_request question_batch_notification run_complete agent_event"
            " config_changed mcp_event skills_event lsp_event tool_output message_delta"
        )
        self.assertEqual(set(events.KINDS), set(kinds.split()))
        self.assertEqual(len(set(events.KINDS.values())), len(events.KINDS))

    def test_the_envelope_is_double(self) -> None:
        value = events.to_json("updated", RunComplete("s", "m"))
        inner = {"session_id": "s", "message_id": "m"}
        envelope = {"type": "run_complete", "payload": {"type": "updated", "payload": inner}}
        self.assertEqual(value, envelope)

    def test_resync_has_a_single_envelope(self) -> None:
        value = events.to_json("", Resync("epoch"))
        self.assertEqual(value, {"type": "resync", "payload": {"reason": "epoch"}})
        self.assertEqual(events.parse(value), Envelope("resync", "", Resync("epoch")))

    def test_an_unknown_kind_comes_back_raw(self) -> None:
        double = {"type": "novelty", "payload": {"type": "updated", "payload": {"name": "gopls"}}}
        envelope = events.parse(double)
        self.assertEqual(envelope, Envelope("novelty", "updated", {"name": "gopls"}))

    def test_an_unknown_kind_of_unknown_form_loses_nothing(self) -> None:
        for payload in ({"reason": "x"}, {"type": 1, "payload": 2}, {"type": "created"}, [1], None):
            envelope = events.parse({"type": "novel", "payload": payload})
            self.assertEqual(envelope, Envelope("novel", "", payload))

    def test_what_is_no_event_is_refused(self) -> None:
        values: tuple[Any, ...] = (
            None,
            [],
            1,
            {},
            {"type": "message"},
            {"payload": {}},
            {"type": 1},
        )
        for value in values:
            with self.subTest(value=value), self.assertRaisesRegex(BadRequest, "not an event"):
                events.parse(value)

    def test_a_known_kind_with_a_bad_envelope_is_refused(self) -> None:
        bodies: tuple[Any, ...] = (
            {},
            [],
            None,
            {"type": "moved", "payload": {}},
            {"type": "created"},
        )
        for body in bodies:
            with self.subTest(body=body), self.assertRaisesRegex(BadRequest, "not an event: sess"):
                events.parse({"type": "session", "payload": body})

    def test_a_bad_payload_of_a_known_kind_names_the_field(self) -> None:
        body = {"type": "created", "payload": {"cost": "much"}}
        with self.assertRaisesRegex(BadRequest, r"^payload\.cost must be a number"):
            events.parse({"type": "session", "payload": body})
        with self.assertRaisesRegex(BadRequest, r"^payload\.reason is required"):
            events.parse({"type": "resync", "payload": {}})

    def test_sending_what_is_no_event_is_a_bug(self) -> None:
        for action, payload in (("created", Todo()), ("moved", Session()), ("", Session())):
            with self.assertRaisesRegex(TypeError, "no event kind for"):
                events.to_json(action, payload)


class ExportTests(unittest.TestCase):
    def test_the_codec_depends_on_no_noun(self) -> None:
        nouns = {cls.__name__ for cls in wire_classes()}
        self.assertEqual(nouns & set(vars(codec)), set())
