"""JSON as the Crush client reads it: Go's decoder, and its structs as tables.

Go matches keys without regard to case (underscores count), ignores unknown ones, keeps the zero
value for null and for what is absent, and fails on a wrong type: the whole call fails then. `read`
follows these rules and also fails for an absent key that the base protocol always sends: Go would
accept it, but the client would show nothing in its place.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from datetime import datetime
from typing import Any

__all__ = [
    "AGENT_INFO",
    "AGENT_SESSION",
    "CONFIG",
    "EVENTS",
    "FILE",
    "INT",
    "LSP_CLIENT",
    "MCP_CLIENT",
    "MCP_PROMPT",
    "MESSAGE",
    "NEEDS_INIT",
    "PARAMS",
    "PARTS",
    "PERMISSION_REQUEST",
    "PROVIDER",
    "RESOLVED",
    "SELECTED_MODEL",
    "SESSION",
    "SHELL_ANSWER",
    "SKILL",
    "SKIP",
    "STRING",
    "TIME",
    "VERSION",
    "WORKSPACE",
    "DecodeError",
    "List",
    "Map",
    "Panic",
    "Shape",
    "check_config",
    "marshal",
    "read",
    "unmarshal",
]


class DecodeError(Exception):
    """Go's json.Unmarshal would have returned an error."""


class Panic(Exception):
    """The client would have followed a nil pointer."""


class Shape:
    """A Go type: its zero value, and how JSON becomes one of it. `absent` collects the keys that
    the base protocol always sends and that were not there."""

    name = "any"

    def zero(self) -> Any:
        return None

    def decode(self, value: Any, where: str, absent: list[str]) -> Any:
        return value


class Scalar(Shape):
    def __init__(self, name: str, zero: Any, kinds: tuple[type, ...]) -> None:
        self.name = name
        self._zero = zero
        self._kinds = kinds

    def zero(self) -> Any:
        return self._zero

    def decode(self, value: Any, where: str, absent: list[str]) -> Any:
        if type(value) not in self._kinds:
            raise DecodeError(f"{where}: cannot unmarshal {value!r:.60} into {self.name}")
        if self.name == "int" and not -(2**63) <= value < 2**63:
            raise DecodeError(f"{where}: {value} does not fit in an int64")
        return value


class Bytes(Shape):
    name = "[]byte"

    def zero(self) -> bytes:
        return b""

    def decode(self, value: Any, where: str, absent: list[str]) -> bytes:
        try:
            return base64.b64decode(STRING.decode(value, where, absent), validate=True)
        except binascii.Error as error:
            raise DecodeError(f"{where}: illegal base64: {error}") from None


class Time(Shape):
    """time.Time: RFC 3339 with a zone."""

    name = "time.Time"
    _form = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")

    def decode(self, value: Any, where: str, absent: list[str]) -> datetime:
        text = STRING.decode(value, where, absent)
        if not self._form.fullmatch(text):
            raise DecodeError(f"{where}: parsing time {text!r}")
        return datetime.fromisoformat(text)


class OneOf(Shape):
    """A string type whose UnmarshalText accepts only some words."""

    def __init__(self, *words: str) -> None:
        self._words = words

    def zero(self) -> str:
        return ""

    def decode(self, value: Any, where: str, absent: list[str]) -> str:
        text = STRING.decode(value, where, absent)
        if text not in self._words:
            raise DecodeError(f"{where}: unknown word {text!r}")
        return str(text)


class List(Shape):
    def __init__(self, item: Shape) -> None:
        self._item = item

    def zero(self) -> list[Any]:
        return []

    def decode(self, value: Any, where: str, absent: list[str]) -> list[Any]:
        if not isinstance(value, list):
            raise DecodeError(f"{where}: cannot unmarshal {value!r:.60} into a slice")
        return [_fill(self._item, item, f"{where}[{n}]", absent) for n, item in enumerate(value)]


class Map(Shape):
    def __init__(self, item: Shape) -> None:
        self._item = item

    def zero(self) -> dict[str, Any]:
        return {}

    def decode(self, value: Any, where: str, absent: list[str]) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise DecodeError(f"{where}: cannot unmarshal {value!r:.60} into a map")
        return {k: _fill(self._item, item, f"{where}.{k}", absent) for k, item in value.items()}


class Pointer(Shape):
    """Stays nil when null or absent; following it then is a panic."""

    def __init__(self, target: Shape) -> None:
        self._target = target

    def decode(self, value: Any, where: str, absent: list[str]) -> Any:
        return self._target.decode(value, where, absent)


class Struct(Shape):
    """Fields by JSON key; a `?` behind the key marks one that is left out when empty."""

    def __init__(self, name: str, fields: dict[str, Shape]) -> None:
        self.name = name
        self.fields = {key.rstrip("?"): shape for key, shape in fields.items()}
        self._always = {key for key in fields if not key.endswith("?")}
        self._folded = {key.lower(): key for key in self.fields}

    def zero(self) -> dict[str, Any]:
        return {key: shape.zero() for key, shape in self.fields.items()}

    def decode(self, value: Any, where: str, absent: list[str]) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise DecodeError(f"{where}: cannot unmarshal {value!r:.60} into {self.name}")
        answer = self.zero()
        for key, item in value.items():
            field = key if key in self.fields else self._folded.get(key.lower())
            if field is not None and item is not None:
                answer[field] = self.fields[field].decode(item, f"{where}.{field}", absent)
        absent.extend(f"{where}.{key}" for key in sorted(self._always - set(value)))
        return answer


class MessageShape(Struct):
    """A message fails as a whole without `parts`, or with a part of an unknown type."""

    def decode(self, value: Any, where: str, absent: list[str]) -> dict[str, Any]:
        answer = super().decode(value, where, absent)
        if "parts" not in value:
            raise DecodeError(f"{where}: unexpected end of JSON input in parts")
        answer["parts"] = [
            self._part(part, f"{where}.parts[{n}]", absent)
            for n, part in enumerate(answer["parts"])
        ]
        return answer

    def _part(self, part: Any, where: str, absent: list[str]) -> tuple[str, dict[str, Any]]:
        wrapper = _WRAPPER.decode(part, where, absent)
        kind = wrapper["type"]
        if kind not in PARTS:
            raise DecodeError(f"{where}: unknown part type {kind!r}")
        return kind, PARTS[kind].decode(wrapper["data"], f"{where}.data", absent)


class PermissionShape(Struct):
    """The client decodes `params` into a struct of the tool; for other tools, into a map."""

    def decode(self, value: Any, where: str, absent: list[str]) -> dict[str, Any]:
        answer = super().decode(value, where, absent)
        params = PARAMS.get(answer["tool_name"], Map(ANY))
        answer["params"] = params.decode(answer["params"], f"{where}.params", absent)
        return answer


def _fill(shape: Shape, value: Any, where: str, absent: list[str]) -> Any:
    return shape.zero() if value is None else shape.decode(value, where, absent)


def _no_constant(name: str) -> Any:
    raise DecodeError(f"invalid character {name[0]!r} looking for beginning of value")


def unmarshal(data: bytes) -> Any:
    try:
        return json.loads(data.decode("utf-8", "replace"), parse_constant=_no_constant)
    except ValueError as error:
        raise DecodeError(f"{error}: {data[:80]!r}") from None


def read(shape: Shape, value: Any) -> Any:
    """Decode a JSON value as the client does. Raises if a key that is always sent is absent."""
    absent: list[str] = []
    answer = _fill(shape, value, shape.name, absent)
    if absent:
        raise AssertionError(f"keys that are always there are missing: {', '.join(absent)}")
    return answer


def marshal(value: Any) -> bytes:
    """JSON as Go's Encoder writes it: compact, HTML's special characters escaped, a newline."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text.encode() + b"\n"


def check_config(config: Any, *, tui: bool) -> None:
    """Follow the pointers that the client follows without a check for nil."""
    for place in ("options", "providers"):
        if config is None or config[place] is None:
            raise Panic(f"nil pointer: config.{place}")
    if tui and config["options"]["tui"] is None:
        raise Panic("nil pointer: config.options.tui")


# The structs ------------------------------------------------------------------------------------

ANY = Shape()
STRING = Scalar("string", "", (str,))
BOOL = Scalar("bool", False, (bool,))
INT = Scalar("int", 0, (int,))
FLOAT = Scalar("float64", 0.0, (int, float))
BYTES = Bytes()
TIME = Time()


def _fields(shape: Shape, keys: str) -> dict[str, Shape]:
    return dict.fromkeys(keys.split(), shape)


MODEL = Struct(
    "Model",
    _fields(STRING, "id name default_reasoning_effort?")
    | _fields(FLOAT, "cost_per_1m_in cost_per_1m_out cost_per_1m_in_cached cost_per_1m_out_cached")
    | _fields(INT, "context_window default_max_tokens")
    | _fields(BOOL, "can_reason supports_attachments")
    | {"reasoning_levels?": List(STRING), "options?": Map(ANY)},
)
SELECTED_MODEL = Struct(
    "SelectedModel",
    _fields(STRING, "model provider reasoning_effort?")
    | _fields(FLOAT, "temperature? top_p? frequency_penalty? presence_penalty?")
    | _fields(INT, "max_tokens? top_k?")
    | {"think?": BOOL, "provider_options?": Map(ANY)},
)
PROVIDER = Struct(
    "ProviderConfig",
    _fields(STRING, "id? name? base_url? type? api_key? system_prompt_prefix? aws_auth_refresh?")
    | _fields(BOOL, "disable? flat_rate?")
    | _fields(Map(ANY), "extra_body? provider_options?")
    | {"extra_headers?": Map(STRING), "discover_models?": Pointer(BOOL)}
    | {"models?": List(MODEL)},
)
TUI_OPTIONS = Struct(
    "TUIOptions",
    _fields(STRING, "diff_mode? scrollbar?")
    | {"compact_mode?": BOOL, "transparent?": Pointer(BOOL), "completions?": Map(ANY)},
)
OPTIONS = Struct(
    "Options",
    _fields(STRING, "data_directory initialize_as? notifications?")
    | _fields(BOOL, "disable_metrics disable_default_providers debug? progress?")
    | _fields(List(STRING), "context_paths disabled_tools? disabled_skills? skills_paths?")
    | {"tui": Pointer(TUI_OPTIONS)},
)
MCP_CONFIG = Struct("MCPConfig", {"type?": STRING, "disabled?": BOOL, "timeout?": INT})
CONFIG = Struct(
    "Config",
    {
        "options": Pointer(OPTIONS),
        "providers": Pointer(Map(PROVIDER)),
        "models": Map(SELECTED_MODEL),
        "recent_models?": Map(List(SELECTED_MODEL)),
        "mcp?": Map(MCP_CONFIG),
        "lsp?": Map(ANY),
        "permissions?": Struct("Permissions", {"allowed_tools?": List(STRING)}),
    },
)
SKILL_STATE = Struct("SkillState", _fields(STRING, "name path error?") | {"state": INT})
WORKSPACE = Struct(
    "Workspace",
    _fields(STRING, "id path data_dir? version? client_id?")
    | _fields(BOOL, "yolo? debug?")
    | _fields(List(STRING), "env? channels?")
    | {"config": Pointer(CONFIG), "skills?": List(SKILL_STATE)},
)
TODO = Struct("Todo", _fields(STRING, "content status active_form"))
_SESSION_FIELDS = (
    _fields(STRING, "id parent_session_id title summary_message_id")
    | _fields(INT, "message_count prompt_tokens completion_tokens created_at updated_at")
    | {"cost": FLOAT, "todos?": List(TODO), "is_busy": BOOL, "attached_clients": INT}
)
SESSION = Struct("Session", _SESSION_FIELDS)
AGENT_SESSION = Struct("AgentSession", _SESSION_FIELDS)
_WRAPPER = Struct("Part", {"type": STRING, "data": ANY})
PARTS = {
    "text": Struct("Text", {"text": STRING}),
    "reasoning": Struct(
        "Reasoning",
        _fields(STRING, "thinking signature") | _fields(INT, "started_at? finished_at?"),
    ),
    "image_url": Struct("ImageURL", _fields(STRING, "url detail?")),
    "binary": Struct("Binary", {"Path": STRING, "MIMEType": STRING, "Data": BYTES}),
    "tool_call": Struct("ToolCall", _fields(STRING, "id name input type?") | {"finished?": BOOL}),
    "tool_result": Struct(
        "ToolResult",
        _fields(STRING, "tool_call_id name content metadata data? mime_type?") | {"is_error": BOOL},
    ),
    "finish": Struct("Finish", _fields(STRING, "reason message? details?") | {"time": INT}),
    "shell_command": Struct("Shell", _fields(STRING, "command output") | {"exit_code": INT}),
}
MESSAGE = MessageShape(
    "Message",
    _fields(STRING, "id role session_id model provider")
    | _fields(INT, "created_at updated_at")
    | {"parts": List(ANY), "is_summary_message?": BOOL},
)
_EDIT = Struct("EditParams", _fields(STRING, "file_path old_content? new_content?"))
PARAMS: dict[str, Struct] = {
    "bash": Struct(
        "BashParams",
        _fields(STRING, "description command working_dir")
        | {"run_in_background": BOOL, "auto_background_after": INT},
    ),
    "edit": _EDIT,
    "write": _EDIT,
    "multiedit": _EDIT,
    "view": Struct("ViewParams", {"file_path": STRING, "offset": INT, "limit": INT}),
    "ls": Struct("LSParams", {"path": STRING, "ignore": List(STRING), "depth": INT}),
    "fetch": Struct("FetchParams", {"url": STRING, "format": STRING, "timeout?": INT}),
}
PERMISSION_REQUEST = PermissionShape(
    "PermissionRequest",
    _fields(STRING, "id session_id tool_call_id tool_name description action path")
    | {"params": ANY},
)
CHOICE = Struct("Choice", _fields(STRING, "id label description?"))
QUESTION = Struct(
    "Question",
    _fields(STRING, "id type label? question description?") | {"choices?": List(CHOICE)},
)
QUESTION_BATCH = Struct(
    "QuestionBatch",
    _fields(STRING, "id session_id tool_call_id confirm_title? confirm_description?")
    | {"questions": List(QUESTION)},
)
FILE = Struct(
    "File",
    _fields(STRING, "id session_id path content") | _fields(INT, "version created_at updated_at"),
)
AGENT_INFO = Struct(
    "AgentInfo", {"is_busy": BOOL, "is_ready": BOOL, "model": MODEL, "model_cfg": SELECTED_MODEL}
)
AGENT_EVENT = Struct(
    "AgentEvent",
    _fields(STRING, "type error? run_id? session_id? session_title? progress?")
    | _fields(STRING, "aws_sso_command? aws_sso_url?")
    | {"done?": BOOL, "message?": MESSAGE},
)
RUN_COMPLETE = Struct(
    "RunComplete",
    _fields(STRING, "session_id message_id run_id? text? error?") | {"cancelled?": BOOL},
)
LSP_CLIENT = Struct(
    "LSPClientInfo",
    {
        "name": STRING,
        "state": INT,
        "error?": STRING,
        "diagnostic_count?": INT,
        "connected_at": TIME,
    },
)
MCP_STATE = OneOf("disabled", "starting", "connected", "error", "needs auth")
MCP_CLIENT = Struct(
    "MCPClientInfo",
    {"name": STRING, "state": MCP_STATE, "error?": STRING, "connected_at": TIME}
    | _fields(INT, "tool_count? prompt_count? resource_count?"),
)
MCP_ARGUMENT = Struct("MCPArgument", _fields(STRING, "id title description?") | {"required": BOOL})
MCP_PROMPT = Struct(
    "MCPPrompt",
    _fields(STRING, "id title description prompt_id client_id") | {"arguments": List(MCP_ARGUMENT)},
)
SKILL = Struct(
    "SkillInfo",
    _fields(STRING, "id name description label")
    | {"user_invocable": BOOL}
    | {"source": OneOf("system", "user", "project")},
)
VERSION = Struct("VersionInfo", _fields(STRING, "version commit build_id go_version platform"))
RESOLVED = Struct("Resolved", {"resolved": BOOL})
SKIP = Struct("Skip", {"skip": BOOL})
NEEDS_INIT = Struct("NeedsInit", {"needs_init": BOOL})
SHELL_ANSWER = Struct("ShellAnswer", {"output": STRING, "exit_code": INT})

# By outer type: the payload, and the inner types that the client knows.
EVENTS: dict[str, tuple[Struct, tuple[str, ...]]] = {
    "session": (SESSION, ("created", "updated", "deleted")),
    "message": (MESSAGE, ("created", "updated", "deleted")),
    "file": (FILE, ("created", "deleted")),
    "permission_request": (PERMISSION_REQUEST, ("created",)),
    "permission_notification": (
        Struct("PermissionNotification", {"tool_call_id": STRING, "granted": BOOL, "denied": BOOL}),
        ("created",),
    ),
    "question_batch_request": (QUESTION_BATCH, ("created",)),
    "question_batch_notification": (Struct("Closed", {"batch_id": STRING}), ("created",)),
    "run_complete": (RUN_COMPLETE, ("updated",)),
    "agent_event": (AGENT_EVENT, ("created",)),
    "config_changed": (Struct("ConfigChanged", {"workspace_id": STRING}), ("updated",)),
    "lsp_event": (
        Struct("LSPEvent", _fields(STRING, "type name error?") | {"state": INT}),
        ("updated",),
    ),
    "mcp_event": (
        Struct(
            "MCPEvent",
            _fields(STRING, "type name error?")
            | _fields(INT, "tool_count? prompt_count? resource_count?")
            | {"state": MCP_STATE},
        ),
        ("updated",),
    ),
    "skills_event": (Struct("SkillsEvent", {"states": List(SKILL_STATE)}), ("updated",)),
    "update_available": (
        Struct(
            "UpdateAvailable",
            _fields(STRING, "current_version latest_version") | {"is_development": BOOL},
        ),
        ("updated",),
    ),
}
