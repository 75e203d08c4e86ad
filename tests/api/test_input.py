"""What clients may send wrongly: 400 if it cannot be read, 404 if it is not there, never 500."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import json
import os
import random
import re
import tempfile
import threading
import typing
import unittest
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from crushlite.api import context, routes
from crushlite.console.routes import PUBLIC_BODY
from crushlite.console.wire import WebCode, WebHello, WebProof
from crushlite.features.wire import (
    CompactMode,
    ExpandCommand,
    FileRead,
    GetPrompt,
    NamedServer,
    OAuthRefresh,
    ProviderKey,
    ReadSkill,
    RemoveValue,
    SessionAgent,
    SetValue,
    ShellCommand,
    UndoRequest,
    WantServers,
    WebRequest,
)
from crushlite.lsp.wire import StartLSP
from crushlite.protocol.codec import LARGE
from crushlite.protocol.config import AgentInit, ModelChoice
from crushlite.protocol.messages import Attachment, Prompt
from crushlite.protocol.permissions import Grant, PermissionAnswer, PermissionSkip
from crushlite.protocol.questions import QuestionAnswer, QuestionReply, QuestionResponse
from crushlite.protocol.sessions import CurrentSession, Session
from crushlite.protocol.workspaces import Control, CreateWorkspace
from crushlite.testing import Answer, LocalDaemon
from crushlite.testing.scripted import ScriptedAgent
from tests.support.http import replies
from tests.support.routes import TABLE

if TYPE_CHECKING:
    from crushlite.agent.base import Turn

SECONDS = 60.0
MIB = 1 << 20
W = "/v1/workspaces/{id}"

# The routes that read a body, and what they read it as.
BODIES: dict[tuple[str, str], type] = {
    ("POST", "/v1/web"): WebRequest,
    ("POST", "/v1/web/token"): WebCode,
    ("POST", "/v1/web/enter"): WebCode,
    ("POST", "/v1/web/hello"): WebHello,
    ("POST", "/v1/web/renew"): WebProof,
    ("POST", "/v1/control"): Control,
    ("POST", "/v1/workspaces"): CreateWorkspace,
    ("POST", W + "/current-session"): CurrentSession,
    ("POST", W + "/sessions"): Session,
    ("PUT", W + "/sessions/{sid}"): Session,
    ("PUT", W + "/sessions/{sid}/agent"): SessionAgent,
    ("POST", W + "/agent"): Prompt,
    ("POST", W + "/agent/init"): AgentInit,
    ("POST", W + "/agent/sessions/{sid}/shell"): ShellCommand,
    ("POST", W + "/filetracker/read"): FileRead,
    ("POST", W + "/config/set"): SetValue,
    ("POST", W + "/config/remove"): RemoveValue,
    ("POST", W + "/config/model"): ModelChoice,
    ("POST", W + "/config/compact"): CompactMode,
    ("POST", W + "/config/provider-key"): ProviderKey,
    ("POST", W + "/config/refresh-oauth"): OAuthRefresh,
    ("POST", W + "/skills/read"): ReadSkill,
    ("POST", W + "/commands/expand"): ExpandCommand,
    ("POST", W + "/mcp/auth"): NamedServer,
    ("POST", W + "/mcp/get-prompt"): GetPrompt,
    ("POST", W + "/mcp/servers"): WantServers,
    ("POST", W + "/mcp/read-resource"): NamedServer,
    ("POST", W + "/mcp/refresh-tools"): NamedServer,
    ("POST", W + "/mcp/refresh-prompts"): NamedServer,
    ("POST", W + "/mcp/refresh-resources"): NamedServer,
    ("POST", W + "/runs/{run_id}/undo"): UndoRequest,
    ("POST", W + "/permissions/skip"): PermissionSkip,
    ("POST", W + "/permissions/grant"): Grant,
    ("POST", W + "/permissions/{request_id}"): PermissionAnswer,
    ("POST", W + "/questions/answer"): QuestionAnswer,
    ("POST", W + "/questions/{batch_id}"): QuestionReply,
    ("POST", W + "/lsps/start"): StartLSP,
}
OPTIONAL = {("POST", W + "/agent/init"), ("POST", "/v1/web")}
# The routes that need none, and do not look at one.
BODILESS = {
    ("POST", "/v1/web/tab"),
    ("POST", W + "/agent/update"),
    ("POST", W + "/compact"),
    ("POST", W + "/agent/sessions/{sid}/cancel"),
    ("POST", W + "/runs/{run_id}/cancel"),
    ("POST", W + "/agent/sessions/{sid}/summarize"),
    ("POST", W + "/agent/sessions/{sid}/prompts/clear"),
    ("POST", W + "/questions/cancel"),
    ("POST", W + "/lsps/stop"),
    ("POST", W + "/project/init"),
    ("POST", W + "/config/import-copilot"),
}
# Of those, what only a page has use for: refused on a unix socket.
ON_TCP = {("POST", "/v1/web/tab")}
# Refused whatever the body is: the feature does not exist.
UNSUPPORTED = {("POST", W + "/mcp/docker/enable"), ("POST", W + "/mcp/docker/disable")}
# Releasing an unknown workspace is no error.
FORGIVING = {("DELETE", W)}
NEED_CLIENT = {("DELETE", W), ("GET", W + "/events"), ("POST", W + "/current-session")}

UNREADABLE = (
    *(b"{", b"[1,", b'{"a":}', b'{"a" 1}', b"{'a': 1}", b"nul", b"\x00", b'{"a":1}x', b"{}{}"),
    *(b"\xff\xfe{\x00}\x00", b"\xef\xbb\xbf{}", '{"a":"é"}'.encode("latin-1"), b"\xed\xa0\x80"),
    *(b'{"a":NaN}', b'{"a":Infinity}', b'{"a":1e999}', b'{"a":01}', b'{"a":1.}', b'{"a":+1}'),
    *(b'{"a":"\\ud800"}', b'{"\\udfff":1}', b'{"a":["\\ud83d"]}', b'{"a":"\x01"}', b'{"a":"\\x"}'),
    *(b'{"a":1,"a":2}', b'{"a":9223372036854775808}', b'{"a":' + b"9" * 5000 + b"}"),
    *(b"[" * 65 + b"]" * 65, b"[" * 100_000, b'{"a":' * 70 + b"1" + b"}" * 70),
)
NO_OBJECTS = (b"[]", b"null", b"true", b"0", b"1.5", b'"text"', b"[{}]")


class Obliging(ScriptedAgent):
    """An agent that can summarize too, so that every route works."""

    async def summarize(self, turn: Turn) -> None:
        await turn.say("it was all about input")


class InputTestCase(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="crushlite-")
        self.addCleanup(folder.cleanup)
        self.root = Path(os.path.realpath(folder.name))
        # A relative path is resolved from the daemon's own directory.
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.root)
        # The token of a port that is opened goes next to the default socket.
        self.enterContext(mock.patch.dict(os.environ, {"XDG_RUNTIME_DIR": folder.name}))
        self.daemon = LocalDaemon(Obliging(auto=True), tcp=True)
        await self.daemon.__aenter__()
        self.addAsyncCleanup(self.daemon.__aexit__, None, None, None)
        self.anna = await self.daemon.join()
        self.session = await self.anna.session()
        self.params = {
            "id": self.anna.workspace["id"],
            "sid": self.session,
            "run_id": "r",
            "request_id": "q",
            "batch_id": "b",
            "client_id": str(uuid.uuid4()),
            "name": "gopls",
        }

    def url(self, method: str, pattern: str, **params: str) -> str:
        """The target of a route, with a client id where one is required."""
        query = f"?client_id={self.anna.id}" if (method, pattern) in NEED_CLIENT else ""
        for name, value in (self.params | params).items():
            pattern = pattern.replace(f"{{{name}}}", value)
        return pattern + query

    async def call(self, method: str, target: str, body: Any = None) -> Answer:
        return await self.daemon.call(method, target, body)

    def good(self, cls: type) -> dict[str, Any]:
        """A body that the route can read; it may be refused for what it asks."""
        path = str(self.daemon.root / "project")
        bodies: dict[type, dict[str, Any]] = {
            WebRequest: {"port": 0},
            WebCode: {"code": "never issued"},
            WebHello: {"id": "never issued", "nonce": "n" * 22},
            WebProof: {"id": "never issued", "proof": "x"},
            Control: {"command": "shutdown_if_idle"},
            CreateWorkspace: {"path": path, "client_id": str(uuid.uuid4())},
            CurrentSession: {"session_id": self.session},
            Session: {"title": "a title"},
            SessionAgent: {"agent": "default"},
            Prompt: {"session_id": self.session, "prompt": "hello"},
            AgentInit: {"interactive": True},
            ShellCommand: {"command": "true"},
            FileRead: {"session_id": self.session, "path": "/p/a"},
            SetValue: {"key": "options.notifications", "value": "disabled"},
            RemoveValue: {"key": "options.notifications"},
            ModelChoice: {"model_type": "large", "model": {"model": "m", "provider": "p"}},
            CompactMode: {"enabled": True},
            ProviderKey: {"provider_id": "p", "kind": "string", "api_key": "k"},
            OAuthRefresh: {"provider_id": "p"},
            ReadSkill: {"skill_id": "s"},
            ExpandCommand: {"command": "c"},
            StartLSP: {"path": "/p/a"},
            NamedServer: {"name": "n"},
            GetPrompt: {"client_id": "n", "prompt_id": "p"},
            WantServers: {"servers": []},
            UndoRequest: {"dry_run": True, "partial": True},
            PermissionSkip: {"skip": False},
            Grant: {"permission": {"id": "x"}, "action": "allow"},
            PermissionAnswer: {"action": "allow"},
            QuestionAnswer: {"responses": []},
            QuestionReply: {"responses": []},
        }
        return bodies[cls]


class Bodies(InputTestCase):
    def test_every_route_that_may_have_a_body_is_tested_here(self) -> None:
        table = {(e.method, e.pattern) for e in TABLE if e.method in ("POST", "PUT", "PATCH")}
        self.assertEqual(table, set(BODIES) | BODILESS | UNSUPPORTED)

    async def test_the_good_bodies_are_good(self) -> None:
        wanted = {
            ("POST", "/v1/web/token"): 403,
            ("POST", "/v1/web/enter"): 403,
            ("POST", "/v1/web/hello"): 403,
            ("POST", "/v1/web/renew"): 403,
            ("POST", "/v1/control"): 409,
            ("POST", W + "/agent"): 202,
            ("POST", W + "/runs/{run_id}/undo"): 404,
            ("POST", W + "/permissions/{request_id}"): 404,
            ("POST", W + "/questions/{batch_id}"): 404,
            ("POST", W + "/config/refresh-oauth"): 404,
            ("POST", W + "/skills/read"): 404,
            ("POST", W + "/commands/expand"): 404,
            ("POST", W + "/mcp/auth"): 404,
            ("POST", W + "/mcp/get-prompt"): 404,
        }
        for route, cls in BODIES.items():
            with self.subTest(route):
                answer = await self.call(route[0], self.url(*route), self.good(cls))
                self.assertEqual(answer.status, wanted.get(route, 200), answer.json)

    async def test_what_cannot_be_read_is_a_bad_request(self) -> None:
        for route in BODIES:
            for body in (*UNREADABLE, *NO_OBJECTS):
                with self.subTest(route, body=body[:40]):
                    answer = await self.call(route[0], self.url(*route), body)
                    refusal = (400, "bad_request")
                    if "/v1/web/" in route[1] and len(body) > PUBLIC_BODY:
                        refusal = (413, "body_too_large")
                    self.assertEqual((answer.status, answer.json["code"]), refusal)
                    self.assertLess(len(answer.json["message"]), 300)

    async def test_an_empty_body_is_a_bad_request_where_one_is_needed(self) -> None:
        for route in BODIES:
            for body in (b"", b" \r\n\t"):
                with self.subTest(route, body=body):
                    answer = await self.call(route[0], self.url(*route), body)
                    self.assertEqual(answer.status, 200 if route in OPTIONAL else 400)

    async def test_a_body_where_none_is_wanted_is_not_read(self) -> None:
        run_id = (await self.anna.prompt(self.session)).json["run_id"]
        await self.anna.events.wait_for("run_complete")
        token = self.daemon.daemon.token_of(self.daemon.port)
        browser = self.daemon.connect(tcp=True, token=token)
        for route in BODILESS:
            for body in (b"", b"{", b"\xff", b'{"session_id":1}'):
                target = self.url(*route, run_id=run_id)
                http = browser if route in ON_TCP else None
                answer = await self.daemon.call(route[0], target, body, http=http)
                self.assertEqual(answer.status, 200, (route, body))
        for route in UNSUPPORTED:
            answer = await self.call(route[0], self.url(*route))
            self.assertEqual(answer.status, 400, answer.json)
            self.assertIn("not supported", answer.json["message"])

    async def test_a_field_of_the_wrong_type_is_named(self) -> None:
        tried = 0
        for route, cls in BODIES.items():
            for field, kind in typing.get_type_hints(cls).items():
                for value in wrong_for(kind):
                    with self.subTest(route, field=field, value=value):
                        body = {**self.good(cls), field: value}
                        answer = await self.call(route[0], self.url(*route), body)
                        self.assertEqual(answer.status, 400, answer.json)
                        self.assertIn(field, answer.json["message"])
                        tried += 1
        self.assertGreater(tried, 200)

    async def test_a_wrong_field_inside_a_list_is_named(self) -> None:
        for pattern, base, name, cls in (
            ("/agent", self.good(Prompt), "attachments", Attachment),
            ("/questions/answer", {}, "responses", QuestionResponse),
            ("/questions/b", {}, "responses", QuestionResponse),
        ):
            for field, kind in typing.get_type_hints(cls).items():
                for value in wrong_for(kind):
                    body = {**base, name: [{}, {field: value}]}
                    answer = await self.anna.call("POST", pattern, body)
                    self.assertEqual(answer.status, 400, (pattern, field, value))
                    self.assertIn(f"{name}[1].{field}", answer.json["message"])

    async def test_null_is_as_good_as_nothing_and_unknown_keys_are_ignored(self) -> None:
        for route, cls in BODIES.items():
            body: dict[str, Any] = {f.name: None for f in dataclasses.fields(cls)}
            body |= {**self.good(cls), "something": {"new": [1, 2.5, None, "x"]}}
            answer = await self.call(route[0], self.url(*route), body)
            self.assertNotIn(answer.status, (400, 500), (route, answer.json))

    async def test_a_lone_surrogate_is_refused_in_every_text(self) -> None:
        for route, cls in BODIES.items():
            for field, kind in typing.get_type_hints(cls).items():
                if kind is str:
                    body = json.dumps({**self.good(cls), field: "a\ud800b"}).encode()
                    answer = await self.call(route[0], self.url(*route), body)
                    self.assertEqual(answer.status, 400, (route, field))
                    self.assertIn("surrogate", answer.json["message"])

    async def test_nul_is_kept_in_a_prompt_and_refused_where_it_would_be_cut(self) -> None:
        prompt = "before\0after"
        accepted = await self.anna.prompt(self.session, prompt)
        await self.anna.events.wait_for("run_complete", run_id=accepted.json["run_id"])
        [user] = [m for m in await self.anna.messages(self.session) if m["role"] == "user"]
        self.assertEqual(user.text, prompt)
        nul = "a\0b"
        for path, body in (
            ("/agent", {**self.good(Prompt), "run_id": nul}),
            ("/agent", {**self.good(Prompt), "session_id": nul}),
            ("/sessions", {"title": nul}),
            ("/current-session?client_id=" + self.anna.id, {"session_id": nul}),
        ):
            answer = await self.anna.call("POST", path, body)
            self.assertEqual(answer.status, 400, (path, body))
        renamed = await self.anna.call("PUT", f"/sessions/{self.session}", {"title": nul})
        self.assertEqual(renamed.status, 400)
        shell = f"/agent/sessions/{self.session}/shell"
        self.assertEqual((await self.anna.call("POST", shell, {"command": nul})).status, 400)
        for field in ("path", "data_dir", "client_id"):
            body = {**self.good(CreateWorkspace), field: nul}
            answer = await self.call("POST", "/v1/workspaces", body)
            self.assertEqual(answer.status, 400, field)

    async def test_a_megabyte_in_any_text_is_taken_or_refused_but_never_an_error(self) -> None:
        long = "x" * (MIB - 4096)
        for route, cls in BODIES.items():
            for field, kind in typing.get_type_hints(cls).items():
                if kind is str:
                    body = {**self.good(cls), field: long}
                    answer = await self.call(route[0], self.url(*route), body)
                    self.assertLess(answer.status, 500, (route, field, answer.json))
                    self.assertLess(len(json.dumps(answer.json)), 64 * 1024, (route, field))
        for field, status in (("prompt", 202), ("session_id", 400), ("run_id", 400)):
            answer = await self.anna.call("POST", "/agent", {**self.good(Prompt), field: long})
            self.assertEqual(answer.status, status, field)

    async def test_integers_are_taken_up_to_64_bits(self) -> None:
        most = 2**63 - 1
        prompt = self.good(Prompt)
        answer = await self.anna.call("POST", "/agent", {**prompt, "max_steps": most})
        self.assertEqual(answer.status, 202)
        for value in (most + 1, -most - 2, 2**64, 10**400):
            body = json.dumps({**prompt, "max_steps": value}).encode()
            self.assertEqual((await self.anna.call("POST", "/agent", body)).status, 400)
        for value in (0, -1, -most - 1):
            answer = await self.anna.call("POST", "/agent", {**prompt, "max_steps": value})
            self.assertEqual(answer.status, 400)
            self.assertIn("max_steps", answer.json["message"])

    async def test_nesting_is_taken_up_to_64_levels(self) -> None:
        for depth, status in ((63, 200), (64, 400), (1000, 400), (200_000, 400)):
            body = b'{"title":"t","x":' + b"[" * depth + b"]" * depth + b"}"
            answer = await self.anna.call("POST", "/sessions", body)
            self.assertEqual(answer.status, status, depth)

    async def test_a_prompt_that_means_nothing_is_refused_with_the_reason(self) -> None:
        good = self.good(Prompt)
        for change, reason in (
            ({"prompt": ""}, "prompt is empty"),
            ({"session_id": ""}, "session id is missing"),
            ({"run_id": "x" * 201}, "run_id"),
            ({"when_busy": "later"}, "when_busy 'later'"),
            ({"max_cost": -0.01}, "max_cost"),
            ({"attachments": [{"content": "no base64!", "file_name": "f"}]}, "'f'"),
            ({"attachments": [{"content": "abc"}]}, "base64"),
        ):
            answer = await self.anna.call("POST", "/agent", {**good, **change})
            self.assertEqual(answer.status, 400, change)
            self.assertIn(reason, answer.json["message"])
        self.assertEqual((await self.anna.call("GET", "/runs")).json, [])

    async def test_a_path_that_cannot_be_a_workspace_is_the_callers_fault(self) -> None:
        file = self.root / "file"
        file.write_text("x")
        loop = self.root / "loop"
        loop.symlink_to(loop)
        for path in ("", str(file), f"{file}/below", str(loop), "/" + "x" * 300, "/x" * 5000):
            with self.subTest(path[:40]):
                body = {"path": path, "client_id": str(uuid.uuid4())}
                answer = await self.call("POST", "/v1/workspaces", body)
                self.assertIn(answer.status, (400, 409), answer.json)
                body = {**self.good(CreateWorkspace), "path": str(self.root), "data_dir": path}
                answer = await self.call("POST", "/v1/workspaces", body)
                self.assertIn(answer.status, (200,) if not path else (400, 409), answer.json)
                if answer.status == 200:
                    await self.call("DELETE", f"/v1/clients/{body['client_id']}")


def wrong_for(kind: Any) -> list[Any]:
    """Values that no field of this type takes."""
    options = typing.get_args(kind) if typing.get_origin(kind) is not list else ()
    if type(None) in options:
        kind = next(option for option in options if option is not type(None))
    origin = typing.get_origin(kind) or kind
    wrong: dict[Any, list[Any]] = {
        str: [1, 1.5, True, [], {}],
        bool: [0, 1, "true", "", [], {}],
        int: ["1", 1.5, True, [], {}],
        float: ["1.5", True, [], {}],
        list: ["x", 1, True, {}, [1], [[]]],
        dict: ["x", 1, True, []],
        Any: [],
    }
    if dataclasses.is_dataclass(origin):
        return wrong[dict]
    return wrong[origin]


def matches(pattern: str, target: str) -> bool:
    return re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", pattern), target) is not None


class Places(InputTestCase):
    async def test_an_unknown_workspace_is_404_everywhere_before_anything_else(self) -> None:
        unknown = str(uuid.uuid4())
        for entry in TABLE:
            route = (entry.method, entry.pattern)
            if "{id}" not in entry.pattern:
                continue
            for id_ in (unknown, "x", "%2F", "$$", "%C3%A9", "x" * 2000):
                with self.subTest(route, id=id_[:20]):
                    body = self.good(BODIES[route]) if route in BODIES else None
                    answer = await self.call(entry.method, self.url(*route, id=id_), body)
                    self.assertEqual(answer.status, 200 if route in FORGIVING else 404)
                    if route not in FORGIVING:
                        self.assertEqual(answer.json["code"], "workspace_not_found")

    async def test_an_unknown_session_run_or_request_is_404_where_it_must_exist(self) -> None:
        sid, code = "no-such", "session_not_found"
        for method, path, body, wanted in (
            ("GET", f"/sessions/{sid}", None, (404, code)),
            ("PUT", f"/sessions/{sid}", {"title": "t"}, (404, code)),
            ("DELETE", f"/sessions/{sid}", None, (404, code)),
            ("GET", f"/agent/sessions/{sid}", None, (404, code)),
            ("POST", "/agent", {"session_id": sid, "prompt": "p"}, (404, code)),
            ("GET", "/runs/no-such", None, (404, "run_not_found")),
            ("DELETE", f"/agent/sessions/{self.session}/prompts/x", None, (404, "run_not_found")),
            ("POST", "/permissions/no-such", {"action": "allow"}, (404, "request_not_found")),
            ("POST", "/questions/no-such", {"action": "cancel"}, (404, "request_not_found")),
        ):
            with self.subTest(method=method, path=path):
                answer = await self.anna.call(method, path, body)
                self.assertEqual((answer.status, answer.json["code"]), wanted)

    async def test_what_asks_about_an_unknown_session_gets_an_empty_answer(self) -> None:
        for method, path, wanted in (
            ("GET", "/sessions/no-such/messages", []),
            ("GET", "/sessions/no-such/messages/user", []),
            ("GET", "/agent/sessions/no-such/prompts", []),
            ("GET", "/agent/sessions/no-such/prompts/list", []),
            ("GET", "/agent/sessions/no-such/prompts/queued", 0),
            ("GET", "/runs?session_id=no-such", []),
            ("POST", "/agent/sessions/no-such/cancel", {"canceled": []}),
            ("POST", "/agent/sessions/no-such/prompts/clear", None),
        ):
            answer = await self.anna.call(method, path)
            self.assertEqual((answer.status, answer.json), (200, wanted), path)

    async def test_a_late_answer_to_nothing_is_not_an_error(self) -> None:
        for path, body in (
            ("/permissions/grant", {"permission": {"id": "x"}, "action": "deny"}),
            ("/questions/answer", {"batch_request_id": "x", "responses": []}),
            ("/questions/answer", {"responses": [{"request_id": "x"}]}),
            ("/questions/cancel", None),
        ):
            answer = await self.anna.call("POST", path, body)
            self.assertEqual((answer.status, answer.json["resolved"]), (200, False), path)
        for wrong in ({"permission": {}, "action": "allow"}, {"permission": {"id": 1}}, {}):
            answer = await self.anna.call("POST", "/permissions/grant", wrong)
            self.assertEqual(answer.status, 400, wrong)

    async def test_a_client_id_is_a_uuid_wherever_it_is_given(self) -> None:
        for value in ("x", "1", "0" * 31, "%7Bnot%7D", "x" * 1000, "%C3%A9", "null"):
            for method, path, body in (
                ("GET", "/events", None),
                ("DELETE", "", None),
                ("POST", "/current-session", {"session_id": ""}),
                ("POST", "/agent/init", {}),
                ("POST", "/permissions/grant", self.good(Grant)),
                ("POST", "/permissions/q", {"action": "allow"}),
                ("POST", "/questions/cancel", None),
                ("POST", "/questions/answer", {}),
            ):
                answer = await self.anna.call(method, f"{path}?client_id={value}", body)
                self.assertEqual(answer.status, 400, (path, value))
                self.assertIn("client_id", answer.json["message"])
            answer = await self.call("DELETE", f"/v1/clients/{value}")
            self.assertEqual(answer.status, 400, value)
            body = {**self.good(CreateWorkspace), "client_id": value}
            self.assertEqual((await self.call("POST", "/v1/workspaces", body)).status, 400)
        for method, path in (("GET", "/events"), ("DELETE", ""), ("POST", "/current-session")):
            for query in ("", "?client_id=", "?client=" + self.anna.id):
                answer = await self.anna.call(method, path + query, {})
                self.assertEqual((answer.status, answer.json["code"]), (400, "bad_request"))

    async def test_a_wait_is_a_number_of_seconds(self) -> None:
        run = (await self.anna.prompt(self.session)).json["run_id"]
        targets = (("GET", f"/runs/{run}"), ("POST", f"/agent/sessions/{self.session}/cancel"))
        for method, path in targets:
            for value in ("x", "", "-1", "nan", "inf", "1,5", "0x1", "%20", "5s"):
                answer = await self.anna.call(method, f"{path}?wait={value}")
                self.assertEqual(answer.status, 400, (path, value))
                self.assertIn("wait", answer.json["message"])
            for value in ("0", "0.001", "600", "1e2", "601", "1e9"):
                answer = await self.anna.call(method, f"{path}?wait={value}")
                self.assertEqual(answer.status, 200, (path, value))

    async def test_a_state_is_one_of_five_words(self) -> None:
        for value in ("x", "ACTIVE", "active,ended", "0"):
            answer = await self.anna.call("GET", f"/runs?state={value}")
            self.assertEqual(answer.status, 400, value)
            self.assertIn("accepted, queued, active, folded, ended", answer.json["message"])
        for value in ("accepted", "queued", "active", "folded", "ended", ""):
            self.assertEqual((await self.anna.call("GET", f"/runs?state={value}")).status, 200)

    async def test_a_target_that_is_no_text_is_a_bad_request(self) -> None:
        for bad in ("%", "%0", "%zz", "%00", "%FF", "%ED%A0%80", "%C3"):
            for target in (f"/v1/workspaces/{bad}", f"/v1/health?x={bad}", f"/v1/health?{bad}=x"):
                self.assertEqual((await self.call("GET", target)).status, 400, target)

    async def test_a_wrong_method_is_answered_with_the_right_ones_on_every_path(self) -> None:
        for target in sorted({self.url("", entry.pattern) for entry in TABLE}):
            # An id may be spelt like a literal, so a path can be that of two routes.
            allowed = {e.method for e in TABLE if matches(e.pattern, target)}
            wanted = ", ".join(sorted(allowed | ({"HEAD"} if "GET" in allowed else set())))
            for method in ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"):
                if method in allowed:
                    continue
                with self.subTest(target, method=method):
                    answer = await self.call(method, target)
                    self.assertEqual(answer.status, 405)
                    self.assertEqual(answer.headers.get("Allow"), wanted)
                    self.assertEqual(answer.json["code"], "method_not_allowed")

    async def test_an_unknown_path_is_404(self) -> None:
        base = self.anna.base
        for path in (
            *("/v1", "/v1/", "/v2/health", "/v1/healthy", "/v1/health/", "//v1/health"),
            *(base + "/", base + "/agent/", base + "/nothing", "/v1/../v1/health", "/V1/health"),
            *(base.replace("/v1/", "/v1//"), "/v1/workspaces//agent", "/v1/clients/"),
        ):
            for method in ("GET", "POST", "PUT", "DELETE", "BREW"):
                answer = await self.call(method, path)
                self.assertEqual((answer.status, answer.json["code"]), (404, "route_not_found"))


class Sizes(InputTestCase):
    async def raw(self, data: bytes) -> list[int]:
        """The statuses that come back for some bytes on a connection of their own."""
        async with asyncio.timeout(SECONDS):
            reader, writer = await asyncio.open_unix_connection(str(self.daemon.socket))
            try:
                writer.write(data)
                await writer.drain()
                answer = await reader.read()
            finally:
                writer.close()
                try:
                    await writer.wait_closed()
                except ConnectionError:
                    pass  # refused before all of it was sent
        return [reply.status for reply in replies(answer, ["POST"], eof=True)]

    def head(self, target: str, size: int, *more: str) -> bytes:
        lines = [f"POST {target} HTTP/1.1", "Host: x", f"Content-Length: {size}", *more, "", ""]
        return "\r\n".join(lines).encode()

    async def test_a_body_one_byte_too_large_is_refused_before_it_is_read(self) -> None:
        for entry in TABLE:
            if (entry.method, entry.pattern) in BODIES and entry.method == "POST":
                target = self.url(entry.method, entry.pattern)
                limit = {"/v1/workspaces": 4 * MIB, W + "/agent": 32 * MIB}.get(entry.pattern, MIB)
                for size in (limit + 1, 10**18):
                    self.assertEqual(await self.raw(self.head(target, size)), [413], entry.pattern)

    async def test_a_prompt_of_exactly_the_limit_is_read(self) -> None:
        target = self.anna.base + "/agent"
        body = b'"' + b"x" * (32 * MIB - 2) + b'"'  # read to its end, and then no object
        found = await self.raw(self.head(target, len(body), "Connection: close") + body)
        self.assertEqual(found, [400])
        self.assertEqual(await self.raw(self.head(target, len(body) + 1)), [413])

    async def test_while_a_large_body_is_read_others_are_answered(self) -> None:
        reading, answered, waited = threading.Event(), threading.Event(), list[bool]()

        def slow(cls: type, body: bytes) -> Any:
            reading.set()
            waited.append(answered.wait(SECONDS / 4))
            return context.read(cls, body)

        body = b'{"session_id":"none","prompt":"' + b"x" * LARGE + b'"}'
        head = self.head(self.anna.base + "/agent", len(body), "Connection: close")
        with mock.patch.object(routes, "read", slow):
            asked = asyncio.create_task(self.raw(head + body))
            await asyncio.to_thread(reading.wait, SECONDS)
            self.assertEqual((await self.call("GET", "/v1/health")).status, 200)
            answered.set()
            self.assertEqual(await asked, [404])
        self.assertEqual(waited, [True], "the answer came after the body was read")

    async def test_a_body_is_json_whatever_its_type_says(self) -> None:
        await self.anna.retire()
        body = b'{"command":"shutdown_if_idle","client":"crushlite"}'
        for kind in ("text/plain; charset=utf-8", "application/x-www-form-urlencoded", "x"):
            more = (f"Content-Type: {kind}", "Connection: close")
            found = await self.raw(self.head("/v1/control", len(body), *more) + body)
            self.assertEqual(found, [200])
        self.assertTrue(self.daemon.backend.leaving.is_set())


class Mutations(InputTestCase):
    """A seeded fuzz of every body: no answer is a server error."""

    ROUNDS = 1000

    async def test_no_mutated_body_is_a_server_error(self) -> None:
        rng = random.Random(20240229)
        routes = [*BODIES.items(), *((route, None) for route in sorted(BODILESS))]
        seen: dict[int, int] = {}
        for number in range(self.ROUNDS):
            route, cls = routes[number % len(routes)]
            body = self._mutated(rng, cls)
            answer = await self.call(route[0], self.url(*route), body)
            self.assertLess(answer.status, 500, (number, route, body[:300], answer.json))
            seen[answer.status] = seen.get(answer.status, 0) + 1
            if answer.status == 200 and cls is CreateWorkspace:
                # Else a thousand workspaces would be open in the end.
                await self.call("DELETE", f"/v1/clients/{json.loads(body)['client_id']}")
        self.assertGreater(seen[400], self.ROUNDS // 3)
        self.assertGreater(seen[200] + seen[202], self.ROUNDS // 20)
        self.assertEqual((await self.call("GET", "/v1/health")).status, 200)
        after = await self.anna.prompt(self.session, "still there?")
        ended = await self.anna.events.wait_for("run_complete", run_id=after.json["run_id"])
        self.assertEqual(ended["text"], "still there?")

    def _full(self, cls: type) -> dict[str, Any]:
        """A good body with every field in it, so that mutation reaches them all."""
        full: dict[str, Any] = {
            name: fill(kind) for name, kind in typing.get_type_hints(cls).items()
        }
        full |= copy.deepcopy(self.good(cls))
        if cls is CreateWorkspace:
            full |= {"data_dir": "", "channels": []}
        if cls is Prompt:
            full |= {"when_busy": "queue", "run_id": str(uuid.uuid4())}
            own = {"model": "scripted", "provider": "scripted"}  # others cannot be chosen here
            full["models"] = {"large": own}
            full["attachments"] = [{"content": "aGk=", "file_name": "f", "mime_type": "text/plain"}]
        return full

    def _mutated(self, rng: random.Random, cls: type | None) -> bytes:
        body = self._full(cls) if cls is not None else {}
        for _ in range(rng.choice((0, 1, 1, 2, 3))):
            mutate_tree(rng, body)
        if cls is ShellCommand and isinstance(body.get("command"), str):  # nothing is executed
            body["command"] = "# " + " ".join(body["command"].splitlines())
        for name in ("path", "data_dir"):  # nothing outside the test's own directory
            if isinstance(body.get(name), str) and body[name].startswith(("/", "..", "~")):
                body[name] = str(self.root / "p" / body[name].strip("/.~")[-40:])
        data = bytearray(json.dumps(body).encode())
        if rng.random() < 0.25:
            mutate_bytes(rng, data)
            if b'"path"' in data or b'"command"' in data:
                return bytes(data[: len(data) // 2])  # not JSON: nothing is executed or opened
        return bytes(data)


def fill(kind: Any) -> Any:
    kind = (
        next((k for k in typing.get_args(kind) if k is not type(None)), kind)
        if (type(None) in typing.get_args(kind))
        else kind
    )
    origin = typing.get_origin(kind) or kind
    if dataclasses.is_dataclass(origin):
        return {name: fill(hint) for name, hint in typing.get_type_hints(origin).items()}
    if origin is list:
        return [fill(typing.get_args(kind)[0])]
    if origin is dict:
        return {"key": "value"}
    return {str: "text", int: 3, float: 2.5, bool: True, Any: "anything"}[origin]


ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**53, 2**63 - 1, -(2**63), 2**63, 10**30, 0.5, -1e308),
    *(
        "",
        " ",
        "\0",
        "a\0b",
        "\ud800",
        "é",
        "👩‍👩‍👧",
        "\u202e",
        "x" * 5000,
        "null",
        "%00",
        "..",
        "../..",
    ),
    *("'; DROP TABLE runs; --", "\r\n\r\n", "data: x\n\n", "{}", "$HOME", "~", "steer", "reject"),
    *([], [[]], [None], {}, {"": ""}, {"id": "x"}, [{}] * 50, [""] * 500, {"a": {"b": {"c": []}}}),
)


def mutate_tree(rng: random.Random, body: dict[str, Any]) -> None:
    """Replace, remove, add or rename something, at any depth."""
    place: Any = body
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = rng.choice(keys) if keys else None
        if key is None or not isinstance(place[key], dict | list) or rng.random() < 0.4:
            break
        place = place[key]
    choice = rng.random()
    value = copy.deepcopy(rng.choice(ODD_VALUES))
    if key is None or choice < 0.1:
        place.append(value) if isinstance(place, list) else place.update({"odd": value})
    elif choice < 0.25:
        del place[key]
    elif choice < 0.35 and isinstance(place, dict):
        place[str(key).upper()] = place.pop(key)
    else:
        place[key] = value


def mutate_bytes(rng: random.Random, data: bytearray) -> None:
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(4):
            case 0:
                data[at:at] = rng.randbytes(rng.randint(1, 4))
            case 1:
                del data[at : at + rng.randint(1, 8)]
            case 2 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case _:
                data[at:at] = data[at // 2 : at]
