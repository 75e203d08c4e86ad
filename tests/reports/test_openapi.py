"""The description of the API: complete, well-formed, and true of what the daemon really does."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import hmac
import json
import os
import re
import tempfile
import typing
import unittest
import uuid
from typing import TYPE_CHECKING, Any
from unittest import mock

from crushlite import errors
from crushlite.http.sse import SSEParser
from crushlite.protocol.codec import encode
from crushlite.protocol.events import ACTIONS, KINDS, Resync, to_json
from crushlite.protocol.questions import Question
from crushlite.protocol.sessions import Todo
from crushlite.reports import health
from crushlite.reports.openapi import OUTSIDE_ROUTES, document
from crushlite.reports.schema import Schemas
from crushlite.testing import LocalDaemon
from crushlite.testing.scripted import ScriptedAgent
from tests.api.test_input import InputTestCase
from tests.protocol.test_protocol import SHAPES, empty_of, example_of
from tests.support.basics import BoundedTestCase
from tests.support.mcp_server import scripted
from tests.support.places import ROOT
from tests.support.routes import TABLE
from tests.support.schema import SILENT, TYPES, Validator

if TYPE_CHECKING:
    from collections.abc import Iterator

    from crushlite.agent.base import Turn
    from crushlite.api.entry import Entry
    from crushlite.http.client import HTTPClient
    from crushlite.testing import Participant

PACKAGE = ROOT / "crushlite"
DOCUMENT: dict[str, Any] = document(TABLE)
VALIDATOR = Validator(DOCUMENT)
W = "/v1/workspaces/{id}"
ODD: tuple[Any, ...] = (1, 1.5, "x", True, [], {})


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for pattern, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), pattern, operation


def nodes(value: Any) -> Iterator[dict[str, Any]]:
    """Every object anywhere inside a JSON value."""
    if isinstance(value, dict):
        yield value
        for child in value.values():
            yield from nodes(child)
    elif isinstance(value, list):
        for child in value:
            yield from nodes(child)


# The document by itself -------------------------------------------------------------------------


class DocumentTests(unittest.TestCase):
    def test_every_route_is_described_and_no_other(self) -> None:
        described = sorted((method, pattern) for method, pattern, _ in operations())
        self.assertEqual(described, sorted((entry.method, entry.pattern) for entry in TABLE))

    def test_the_frame_is_that_of_openapi_3_1(self) -> None:
        self.assertEqual(DOCUMENT["openapi"], "3.1.0")
        self.assertLessEqual({"title", "version"}, set(DOCUMENT["info"]))
        self.assertEqual(DOCUMENT["servers"], [{"url": "/"}])
        schemes = DOCUMENT["components"]["securitySchemes"]
        self.assertEqual(
            (schemes["bearer"]["type"], schemes["bearer"]["scheme"]), ("http", "bearer")
        )
        self.assertEqual(DOCUMENT["security"], [{"bearer": []}, {}])
        for names in DOCUMENT["components"].values():
            for name in names:
                self.assertRegex(name, r"^[a-zA-Z0-9._-]+$")
        json.dumps(DOCUMENT, allow_nan=False)

    def test_every_reference_points_to_something_and_everything_is_referred_to(self) -> None:
        used = {node["$ref"] for node in nodes(DOCUMENT) if "$ref" in node}
        for reference in used:
            self.assertIsInstance(VALIDATOR.resolve(reference), dict)
        for kind in ("schemas", "responses"):
            for name in DOCUMENT["components"][kind]:
                if kind == "schemas" or name == "Refused":
                    self.assertIn(f"#/components/{kind}/{name}", used)

    def test_every_parameter_of_a_path_is_declared_once_and_required(self) -> None:
        for method, pattern, operation in operations():
            with self.subTest(f"{method} {pattern}"):
                parameters = operation.get("parameters", [])
                named = [p["name"] for p in parameters if p["in"] == "path"]
                self.assertEqual(named, re.findall(r"\{(\w+)\}", pattern))
                self.assertTrue(all(p["required"] for p in parameters if p["in"] == "path"))
                places = [(p["in"], p["name"]) for p in parameters]
                self.assertEqual(len(places), len(set(places)))

    def test_operation_ids_are_unique_and_follow_from_the_route(self) -> None:
        ids = [operation["operationId"] for _, _, operation in operations()]
        self.assertEqual(len(ids), len(set(ids)))
        self.assertTrue(all(re.fullmatch(r"[a-z][a-z0-9_]*", id_) for id_ in ids), ids)
        for id_ in (
            *("get_health", "get_openapi_json", "post_workspaces_id_agent"),
            *("delete_workspaces_id_sessions_sid", "post_workspaces_id_lsps_start"),
        ):
            self.assertIn(id_, ids)

    def test_every_operation_has_one_good_answer_and_a_word_for_every_other(self) -> None:
        for method, pattern, operation in operations():
            with self.subTest(f"{method} {pattern}"):
                good = [status for status in operation["responses"] if status.startswith("2")]
                [entry] = [e for e in TABLE if (e.method, e.pattern) == (method, pattern)]
                self.assertEqual(good, [str(entry.status)])
                self.assertIn("default", operation["responses"])
                self.assertEqual("404" in operation["responses"], "{" in pattern)
                self.assertEqual("413" in operation["responses"], entry.takes is not None)
                self.assertTrue(operation["summary"])

    def test_schemas_are_json_schema_as_far_as_they_go(self) -> None:
        schemas = list(DOCUMENT["components"]["schemas"].values())
        for _, _, operation in operations():
            schemas += [parameter["schema"] for parameter in operation.get("parameters", ())]
            schemas += [node["schema"] for node in nodes(operation) if "schema" in node]
        for schema in schemas:
            self.check_schema(schema)

    def check_schema(self, schema: Any) -> None:
        self.assertIsInstance(schema, dict)
        for keyword in set(schema) - SILENT:
            self.assertTrue(hasattr(VALIDATOR, "_" + keyword.lstrip("$")), keyword)
        kinds = schema.get("type", [])
        for kind in [kinds] if isinstance(kinds, str) else kinds:
            self.assertIn(kind, TYPES)
        properties = schema.get("properties", {})
        if "type" in schema:
            self.assertLessEqual(set(schema.get("required", ())), set(properties))
        below = [*properties.values(), *schema.get("oneOf", ()), *schema.get("anyOf", ())]
        below += [schema[key] for key in ("items", "additionalProperties") if schema.get(key)]
        for child in below:
            self.check_schema(child)


class ErrorTests(unittest.TestCase):
    def codes(self, status: int) -> list[str]:
        response = DOCUMENT["components"]["responses"][f"Refused{status}"]
        narrowed: list[str] = response["content"]["application/json"]["schema"]["allOf"][1][
            "properties"
        ]["code"]["enum"]
        return narrowed

    def test_every_error_of_the_tree_is_listed_at_its_status(self) -> None:
        silent = {"usage", "wrong_peer", "turn_over", "limit_reached", "illegal_call"}
        for error in errors.every_error():
            if error.code not in silent:
                self.assertIn(error.code, self.codes(error.status))
        for status in (400, 404, 409, 500, 503):
            self.assertFalse(silent & set(self.codes(status)))
        self.assertIn("bad_config", self.codes(400))

    def test_every_refusal_around_routes_is_listed_at_its_status_and_no_other(self) -> None:
        found: dict[int, set[str]] = {}
        for path in (path for room in ("http", "api") for path in (PACKAGE / room).glob("*.py")):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "HTTPError":
                    status, code = node.args[:2]
                    if isinstance(status, ast.Constant) and isinstance(code, ast.Constant):
                        found.setdefault(int(str(status.value)), set()).add(str(code.value))
        self.assertEqual(found, {status: set(codes) for status, codes in OUTSIDE_ROUTES.items()})

    def test_a_refusal_that_only_one_route_has_is_listed_too(self) -> None:
        own = {refusal for entry in TABLE for refusal in entry.refusals}
        self.assertIn((403, "bad_code"), own)
        for status, code in own:
            self.assertIn(code, self.codes(status))


class SchemaTests(unittest.TestCase):
    """Schemas and the codec are read off the same classes: they must agree on every one."""

    def valid(self, hint: Any, value: Any, *, body: bool = False) -> list[str]:
        schemas = Schemas("#/s/")
        schema = schemas.of(hint, body=body)
        return Validator({"s": schemas.named}).complaints(schema, value)

    def test_what_is_encoded_is_valid_full_and_empty(self) -> None:
        for cls, _, _ in SHAPES:
            for value in (example_of(cls), empty_of(cls)):
                with self.subTest(cls.__name__):
                    self.assertEqual(self.valid(cls, with_objects(encode(value))), [])

    def test_an_answer_has_its_own_keys_and_all_that_are_always_there(self) -> None:
        for cls, always, _ in SHAPES:
            full = with_objects(encode(example_of(cls)))
            self.assertEqual(self.valid(cls, full | {"x": 1}), ["$: x is not known"])
            for key in always.split():
                less = {name: value for name, value in full.items() if name != key}
                self.assertEqual(self.valid(cls, less), [f"$: {key} is missing"], cls)

    def test_what_an_answer_leaves_out_is_never_null_in_it(self) -> None:
        for cls, _, omitted in SHAPES:
            full = with_objects(encode(example_of(cls)))
            for key in omitted.split():
                self.assertNotEqual(self.valid(cls, full | {key: None}), [], (cls, key))

    def test_anything_that_is_required_is_anything_but_null(self) -> None:
        @dataclasses.dataclass
        class Needy:
            value: Any

        for good in ODD:
            self.assertEqual(self.valid(Needy, {"value": good}, body=True), [])
        self.assertEqual(len(self.valid(Needy, {"value": None}, body=True)), 1)
        self.assertEqual(len(self.valid(Needy, {}, body=True)), 1)

    def test_a_body_may_leave_out_or_null_what_has_a_default_and_hold_more(self) -> None:
        for cls, _, _ in SHAPES:
            full = with_objects(encode(example_of(cls)))
            self.assertEqual(self.valid(cls, full | {"x": 1}, body=True), [], cls)
            for key in full:
                less = {name: value for name, value in full.items() if name != key}
                missing = self.valid(cls, less, body=True)
                self.assertIn(missing, ([], [f"$: {key} is missing"]))
                null = self.valid(cls, full | {key: None}, body=True)
                self.assertEqual(bool(null), bool(missing), (cls, key))

    def test_bare_values_and_maps_are_described_as_such(self) -> None:
        for hint, good, bad in (
            (int, 3, "3"),
            (bool, True, 1),
            (float, 1, "1"),
            (list[str], ["a"], ["a", 1]),
            (dict[str, bool], {"a": True}, {"a": "true"}),
            (dict[str, Any], {"a": [None]}, []),
            (str | None, None, 1),
        ):
            self.assertEqual(self.valid(hint, good), [])
            self.assertNotEqual(self.valid(hint, bad), [], hint)

    def test_a_map_of_unknown_content_says_what_it_always_holds(self) -> None:
        hint = typing.Annotated[dict[str, Any], "a.b", "c"]
        self.assertEqual(self.valid(hint, {"a": {"b": {}, "x": 1}, "c": {}, "d": 2}), [])
        self.assertEqual(
            self.valid(hint, {"a": {}, "c": 1}),
            ["$.a: b is missing", "$.c: 1 is not of type object"],
        )

    def test_an_event_of_every_kind_is_one_alternative_of_the_stream(self) -> None:
        schemas = Schemas("#/s/")
        schema = schemas.events()
        validator = Validator({"s": schemas.named})
        for kind, cls in KINDS.items():
            event = to_json(ACTIONS[0], example_of(cls))
            self.assertEqual(validator.complaints(schema, event), [])
            for wrong in ("resync", "unknown"):
                self.assertNotEqual(validator.complaints(schema, event | {"type": wrong}), [], kind)
        self.assertEqual(validator.complaints(schema, to_json("", Resync("why"))), [])
        mapping = schemas.named["Event"]["discriminator"]["mapping"]
        self.assertEqual(set(mapping), {*KINDS, "resync"})

    def test_two_classes_of_one_name_are_not_mixed_up(self) -> None:
        schemas = Schemas("#/s/")
        schemas.of(Todo)
        other = type("Todo", (), {"__dataclass_fields__": {}})
        with self.assertRaises(TypeError):
            schemas.of(other)


def with_objects(value: Any) -> Any:
    """An encoded example whose map of configuration holds what a real one always does."""
    if isinstance(value, dict) and isinstance(value.get("config"), dict):
        value["config"] |= {"options": {"tui": {}}, "providers": {}}
    return value


class BodyTests(BoundedTestCase, InputTestCase):
    """Where the document says that a body is wrong, the daemon says so too."""

    def declared(self) -> Iterator[tuple[Entry, dict[str, Any]]]:
        for entry in TABLE:
            if entry.takes is not None:
                operation = DOCUMENT["paths"][entry.pattern][entry.method.lower()]
                yield entry, operation["requestBody"]

    def good_body(self, entry: Entry) -> dict[str, Any]:
        return self.good((typing.get_args(entry.takes) or (entry.takes,))[0])

    async def test_an_empty_body_is_refused_exactly_where_one_is_required(self) -> None:
        for entry, declared in self.declared():
            with self.subTest(entry.pattern):
                answer = await self.call(entry.method, self.url(entry.method, entry.pattern), b"")
                self.assertEqual(answer.status == 400, declared["required"], answer.json)

    async def test_a_good_body_is_valid(self) -> None:
        for entry, declared in self.declared():
            schema = declared["content"]["application/json"]["schema"]
            self.assertEqual(VALIDATOR.complaints(schema, self.good_body(entry)), [])

    async def test_a_body_that_is_not_valid_is_refused(self) -> None:
        tried = 0
        for entry, declared in self.declared():
            schema = declared["content"]["application/json"]["schema"]
            good = self.good_body(entry)
            properties = VALIDATOR.resolve(schema["$ref"])["properties"]
            bodies = [{**good, key: odd} for key in properties for odd in ODD]
            bodies += [{key: good[key] for key in good if key != gone} for gone in good]
            target = self.url(entry.method, entry.pattern)
            for body in bodies:
                if VALIDATOR.complaints(schema, body):
                    answer = await self.call(entry.method, target, body)
                    self.assertEqual(
                        (answer.status, answer.json["code"]), (400, "bad_request"), body
                    )
                    tried += 1
        self.assertGreater(tried, 150)


# What the daemon really answers -----------------------------------------------------------------

# Routes of features that do not exist: no request succeeds.
NEVER_GOOD = {
    ("POST", W + "/config/refresh-oauth"),
    ("POST", W + "/mcp/auth"),
    ("POST", W + "/mcp/docker/enable"),
    ("POST", W + "/mcp/docker/disable"),
}


class Obliging(ScriptedAgent):
    async def summarize(self, turn: Turn) -> None:
        await turn.say("it was all about answers")


class AnswerTests(BoundedTestCase):
    """Every route of a daemon is used, and every answer is checked."""

    async def asyncSetUp(self) -> None:
        folder = self.enterContext(tempfile.TemporaryDirectory(prefix="crushlite-"))
        self.enterContext(mock.patch.dict(os.environ, {"XDG_RUNTIME_DIR": folder}))
        self.daemon = await self.enterAsyncContext(LocalDaemon(Obliging(), tcp=True))
        # On a busy machine the answers are the same.
        for name in ("STORE_SECONDS", "LAG_SECONDS"):
            self.enterContext(mock.patch.object(health, name, 60.0))
        self.good: set[tuple[str, str]] = set()
        self.refused: set[tuple[str, str]] = set()

    def entry(self, method: str, path: str) -> Entry:
        fitting = [
            entry
            for entry in TABLE
            if entry.method == method
            and re.fullmatch(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(entry.pattern)), path)
        ]
        return min(fitting, key=lambda entry: entry.pattern.count("{"))

    async def ask(
        self,
        method: str,
        target: str,
        body: Any = None,
        status: int = 0,
        *,
        http: HTTPClient | None = None,
    ) -> Any:
        """One request, whose answer must be as the document says."""
        entry = self.entry(method, target.partition("?")[0])
        content = b"" if body is None else json.dumps(body).encode()
        client = http or self.daemon.http
        answer = await client.request(method, target, body=content, timeout=60)
        place = f"{method} {target} -> {answer.status} {answer.body[:300]!r}"
        self.assertEqual(answer.status, status or entry.status, place)
        responses = DOCUMENT["paths"][entry.pattern][method.lower()]["responses"]
        declared = responses.get(str(answer.status), responses["default"])
        if "$ref" in declared:
            declared = VALIDATOR.resolve(declared["$ref"])
        (self.good if answer.status == entry.status else self.refused).add((method, entry.pattern))
        if "content" not in declared:
            self.assertEqual(answer.body, b"", place)
            return None
        [(media, described)] = declared["content"].items()
        if not answer.body and type(None) in typing.get_args(entry.gives):
            return None
        self.assertIn(media, ("*/*", answer.headers.get("Content-Type")), place)
        value = json.loads(answer.body) if media == "application/json" else answer.body.decode()
        self.assertEqual(VALIDATOR.complaints(described["schema"], value), [], place)
        return value

    async def test_every_route_answers_as_it_is_described(self) -> None:
        await self.system()
        await self.console()
        self.anna: Participant = await self.daemon.join()
        self.base = self.anna.base
        await self.workspaces()
        session = (await self.ask("POST", self.base + "/sessions", {"title": "one"}))["id"]
        await self.turn(session)
        await self.requests(session)
        await self.queue(session)
        await self.sessions(session)
        await self.agents(session)
        await self.config()
        await self.features()
        await self.refusals()
        await self.anna.events.wait_for("config_changed")  # the last kind of event to come
        self.check_stream()
        await self.goodbye(session)
        every = {(entry.method, entry.pattern) for entry in TABLE}
        self.good.add(("GET", W + "/events"))  # see check_stream
        self.assertEqual(every - self.good, NEVER_GOOD)
        self.assertLessEqual(NEVER_GOOD, self.refused)

    async def system(self) -> None:
        self.assertIsNone(await self.ask("GET", "/v1/health"))
        self.assertEqual((await self.ask("GET", "/v1/health?verbose=1"))["workspaces"], 0)
        await self.ask("GET", "/v1/version")
        self.assertEqual(await self.ask("GET", "/v1/openapi.json"), DOCUMENT)
        self.assertIn("crushlite_info", await self.ask("GET", "/v1/metrics"))
        await self.ask("GET", "/v1/config")
        await self.ask("DELETE", f"/v1/clients/{uuid.uuid4()}")

    async def console(self) -> None:
        """The page's files: only TCP serves them."""
        browser = self.daemon.connect(tcp=True)
        await self.ask("GET", "/", http=browser)
        await self.ask("GET", "/console/index.html", http=browser)
        for way in ("token", "enter"):
            code = (await self.ask("POST", "/v1/web"))["code"]
            await self.ask("POST", f"/v1/web/{way}", {"code": code}, http=browser)
            await self.ask("POST", f"/v1/web/{way}", {"code": code}, 403, http=browser)
        token = self.daemon.daemon.token_of(self.daemon.port)
        await self.ask("POST", "/v1/web/tab", http=self.daemon.connect(tcp=True, token=token))
        digest = hashlib.sha256((await self.ask("POST", "/v1/web"))["code"].encode()).digest()
        name = hashlib.sha256(digest).hexdigest()[:32]
        hello = {"id": name, "nonce": "n" * 22}
        made = await self.ask("POST", "/v1/web/hello", hello, http=browser)
        host = f"127.0.0.1:{self.daemon.port}"
        words = "\n".join(("page", host, name, hello["nonce"], made["nonce"]))
        proof = hmac.new(digest, words.encode(), "sha256").hexdigest()
        await self.ask("POST", "/v1/web/renew", {"id": name, "proof": proof}, http=browser)
        await self.ask("POST", "/v1/web/hello", hello, 403, http=browser)
        await self.ask("POST", "/v1/web/renew", {"id": name, "proof": proof}, 403, http=browser)

    async def workspaces(self) -> None:
        body: dict[str, Any] = {"path": str(self.daemon.root / "project"), "version": "0"}
        body |= {"client_id": str(uuid.uuid4()), "env": ["A=1"]}
        created = await self.ask("POST", "/v1/workspaces", body)
        self.assertLessEqual({"env", "config", "warning"}, set(created))
        await self.ask("GET", "/v1/workspaces")
        await self.ask("GET", self.base)
        await self.ask("DELETE", f"{self.base}?client_id={body['client_id']}")
        health = await self.ask("GET", "/v1/health?verbose=1")
        self.assertEqual((health["status"], list(health["store"].values())), ("ok", ["ok"]))

    async def turn(self, session: str) -> None:
        """A run that does everything a run can do, so that every part and event is seen."""
        base, client = self.base, f"?client_id={self.anna.id}"
        await self.ask("POST", f"{base}/agent/init{client}", {"interactive": True})
        await self.ask("POST", f"{base}/agent/init")
        await self.ask("POST", f"{base}/current-session{client}", {"session_id": session})
        files = [{"content": "aGk=", "file_name": "f", "mime_type": "text/plain"}]
        prompt = {"session_id": session, "prompt": "hello", "attachments": files}
        accepted = await self.ask("POST", f"{base}/agent", prompt)
        run = await self.daemon.entered(1)
        await run.do(lambda turn: turn.think("hm", "signed"))
        await run.say("hel")
        call = await run.do(lambda turn: turn.tool_call("view", "{}"))
        await run.do(lambda turn: turn.tool_result(call, "text", is_error=True))
        await run.do(lambda turn: turn.todos([Todo("a", "pending", "doing a")]))
        await run.do(lambda turn: turn.file_changed("/p/a.py", "old", "new"))
        await run.do(lambda turn: turn.file_read("/p/a.py"))
        await self.ask("POST", f"{base}/compact", status=409)
        await self.ask("GET", f"{base}/runs/{accepted['run_id']}")
        await self.ask("GET", f"{base}/sessions/{session}")
        await self.ask("GET", f"{base}/agent/sessions/{session}")
        await self.ask("GET", f"{base}/agent")
        run.release()
        ended = await self.ask("GET", f"{base}/runs/{accepted['run_id']}?wait=20")
        self.assertEqual(ended["outcome"], "completed")
        await self.undo(f"{base}/runs/{accepted['run_id']}")

    async def undo(self, run: str) -> None:
        [changed] = await self.ask("GET", f"{self.base}/changes")
        self.assertEqual((changed["files"], changed["undone"]), (1, False))
        [file] = (await self.ask("GET", f"{run}/changes"))["files"]
        self.assertIn("not in the workspace", file["problem"])
        await self.ask("POST", f"{run}/undo", {}, 409)
        kept = (await self.ask("POST", f"{run}/undo", {"partial": True}))["kept"]
        self.assertEqual(kept, [file])
        await self.ask("POST", f"{self.base}/compact")

    async def requests(self, session: str) -> None:
        base = self.base
        await self.ask("POST", f"{base}/agent", {"session_id": session, "prompt": "may I?"})
        run = await self.daemon.entered(2)
        await self.ask("GET", f"{base}/permissions/skip")
        await self.ask("POST", f"{base}/permissions/skip", {"skip": False})
        for number, path in enumerate(("/grant", "/{id}")):
            asked = run.begin(lambda turn: turn.permission("bash", "execute", params={"a": 1}))
            shown = (await self.anna.events.wait_for("permission_request"))["id"]
            [pending] = await self.ask("GET", f"{base}/permissions")
            granted = {"permission": pending, "action": "allow_session"}
            body = {"action": "deny"} if number else granted
            target = f"{base}/permissions{path.format(id=shown)}?client_id={self.anna.id}"
            self.assertEqual(
                await self.ask("POST", target, body), {"resolved": True, "by": self.anna.id}
            )
            await asked
            for rule in await self.ask("GET", f"{base}/permissions/rules"):
                await self.ask("DELETE", f"{base}/permissions/rules/{rule['id']}")
        await self.ask("DELETE", f"{base}/permissions/rules/none", None, 404)
        question = Question(type="yes_no", label="q", question="well?", description="d")
        for way in ("/answer", "/cancel", "/{id}"):
            asked = run.begin(lambda turn: turn.ask([question]))
            batch = (await self.anna.events.wait_for("question_batch_request")).payload
            self.assertEqual(await self.ask("GET", f"{base}/questions"), [batch])
            answers = [{"request_id": batch["questions"][0]["id"], "yes": True}]
            reply = {"responses": answers} if way != "/cancel" else None
            await self.ask("POST", f"{base}/questions{way.format(id=batch['id'])}", reply)
            await asked
        run.fail("on purpose")
        await self.anna.events.wait_for("run_complete", error="ScriptedFailure: on purpose")

    async def queue(self, session: str) -> None:
        agent, base = f"{self.base}/agent/sessions/{session}", self.base
        prompts = {"session_id": session, "when_busy": "queue"}
        await self.ask("POST", f"{base}/agent", {**prompts, "prompt": "first"})
        await self.daemon.entered(3)
        for text in ("second", "third"):
            await self.ask("POST", f"{base}/agent", {**prompts, "prompt": text})
        waiting = await self.ask("GET", f"{agent}/prompts")
        self.assertEqual(await self.ask("GET", f"{agent}/prompts/queued"), 2)
        self.assertEqual(await self.ask("GET", f"{agent}/prompts/list"), ["second", "third"])
        await self.ask("DELETE", f"{agent}/prompts/{waiting[0]['run_id']}")
        await self.ask("POST", f"{agent}/prompts/clear")
        over = await self.ask("POST", f"{base}/runs/{waiting[0]['run_id']}/cancel")
        self.assertEqual(over, {"canceled": []})
        canceled = await self.ask("POST", f"{agent}/cancel?wait=20")
        self.assertEqual([run["was"] for run in canceled["canceled"]], ["active"])
        await self.ask("GET", f"{base}/runs?state=ended&session_id={session}")
        await self.ask("POST", f"{agent}/shell", {"command": "echo out; exit 3"})
        await self.ask("POST", f"{agent}/summarize")
        await self.ask("POST", f"{base}/agent/update")
        provider = self.anna.workspace["config"]["models"]["large"]["provider"]
        await self.ask("GET", f"{base}/agent/default-small-model?provider_id={provider}")

    async def sessions(self, session: str) -> None:
        base = self.base
        one = f"{base}/sessions/{session}"
        self.assertEqual(len(await self.ask("GET", f"{base}/sessions")), 1)
        await self.ask("PUT", one, {"title": "two"})
        messages = await self.ask("GET", f"{one}/messages")
        parts = {part["type"] for message in messages for part in message["parts"]}
        seen = {"text", "reasoning", "tool_call", "tool_result", "finish", "binary"}
        self.assertEqual(parts, seen | {"shell_command"})
        self.assertEqual(len(await self.ask("GET", f"{one}/messages/user")), 4)
        await self.ask("GET", f"{base}/messages/user")
        self.assertEqual(len(await self.ask("GET", f"{one}/history")), 2)
        self.assertEqual(await self.ask("GET", f"{one}/filetracker/files"), ["/p/a.py"])
        read = {"session_id": session, "path": "/p/b.py"}
        await self.ask("POST", f"{base}/filetracker/read", read)
        await self.ask("GET", f"{base}/filetracker/lastread?session_id={session}&path=/p/b.py")

    async def agents(self, session: str) -> None:
        setting = {"scope": 0, "key": "agents.other"}
        value = {"command": "cat"}
        await self.ask("POST", self.base + "/config/set", {**setting, "value": value})
        offered = await self.ask("GET", self.base + "/agents")
        self.assertIn("other", [agent["name"] for agent in offered])
        target = f"{self.base}/sessions/{session}/agent"
        for name, chosen in (("other", "other"), ("default", "")):
            await self.ask("PUT", target, {"agent": name})
            self.assertEqual(await self.ask("GET", target), {"agent": chosen})
        await self.ask("PUT", target, {"agent": "none of them"}, 400)
        await self.ask("POST", self.base + "/config/remove", setting)

    async def config(self) -> None:
        config = self.base + "/config"
        await self.ask("GET", config)
        self.assertTrue(await self.ask("GET", self.base + "/providers"))
        value = {"scope": 1, "key": "options.notifications", "value": "disabled"}
        await self.ask("POST", config + "/set", value)
        await self.ask("POST", config + "/remove", {"scope": 1, "key": "options.notifications"})
        chosen = {"model": "scripted", "provider": "scripted"}
        await self.ask("POST", config + "/model", {"model_type": "large", "model": chosen})
        await self.ask("POST", config + "/compact", {"scope": 1, "enabled": True})
        key = {"scope": 1, "provider_id": "p", "kind": "string", "api_key": "k"}
        await self.ask("POST", config + "/provider-key", key)
        await self.ask("POST", config + "/import-copilot")
        await self.ask("POST", config + "/refresh-oauth", {"provider_id": "p"}, 404)

    async def features(self) -> None:
        base = self.base
        for path in ("/lsps", "/mcp/states", "/mcp/pending-auth", "/mcp/prompts"):
            self.assertFalse(await self.ask("GET", base + path))
        for path in ("/project/needs-init", "/project/init-prompt", "/mcp/auth-url?name=n"):
            await self.ask("GET", base + path)
        for path in ("/lsps/stop", "/project/init"):
            await self.ask("POST", base + path)
        for path in ("refresh-tools", "refresh-prompts", "refresh-resources", "read-resource"):
            await self.ask("POST", f"{base}/mcp/{path}", {"name": "n"})
        await self.ask("POST", f"{base}/mcp/servers", {"servers": []})
        await self.ask("GET", base + "/lsps/gopls/diagnostics", None, 404)
        await self.skills()
        await self.language_servers()
        await self.tool_servers()
        await self.ask("POST", base + "/mcp/auth", {"name": "n"}, 404)
        body = {"client_id": "n", "prompt_id": "p"}
        await self.ask("POST", base + "/mcp/get-prompt", body, 404)
        for path in ("enable", "disable"):
            await self.ask("POST", f"{base}/mcp/docker/{path}", None, 400)

    async def skills(self) -> None:
        base = self.base
        file = self.daemon.root / "home/.claude/skills/pdf/SKILL.md"
        file.parent.mkdir(parents=True)
        file.write_text("---\nname: pdf\ndescription: d\n---\nbody")
        (skill,) = await self.ask("GET", base + "/skills")
        await self.ask("POST", base + "/skills/read", {"skill_id": skill["id"]})
        await self.ask("POST", base + "/skills/read", {"skill_id": "s"}, 404)
        (command,) = await self.ask("GET", base + "/commands")
        await self.ask("POST", base + "/commands/expand", {"command": command["name"]})
        await self.ask("POST", base + "/commands/expand", {"command": "c"}, 404)
        await self.anna.events.wait_for("skills_event")

    async def language_servers(self) -> None:
        base = self.base
        toy = {"command": "no-such-server", "filetypes": ["toy"]}
        setting = {"scope": 0, "key": "lsp.toy"}
        await self.ask("POST", base + "/config/set", {**setting, "value": toy})
        path = str(self.daemon.root / "project/a.toy")
        await self.ask("POST", base + "/lsps/start", {"path": path})
        await self.anna.events.wait_for("lsp_event", state=3)
        await self.ask("GET", base + "/lsps/toy/diagnostics")
        await self.ask("POST", base + "/config/remove", setting)

    async def tool_servers(self) -> None:
        mcp, setting = self.base + "/mcp", {"scope": 0, "key": "mcp.toy"}
        await self.ask("POST", self.base + "/config/set", {**setting, "value": scripted()})
        await self.anna.events.wait_for("mcp_event", state="connected")
        self.assertEqual(list(await self.ask("GET", mcp + "/states")), ["toy"])
        (prompt,) = await self.ask("GET", mcp + "/prompts")
        wanted = {"client_id": "toy", "prompt_id": prompt["prompt_id"], "args": {"what": "x"}}
        self.assertTrue((await self.ask("POST", mcp + "/get-prompt", wanted))["prompt"])
        for what in ("tools", "prompts", "resources"):
            await self.ask("POST", f"{mcp}/refresh-{what}", {"name": "toy"})
        resource = {"name": "toy", "uri": "mem://a"}
        self.assertTrue(await self.ask("POST", mcp + "/read-resource", resource))
        await self.ask("POST", self.base + "/config/remove", setting)

    async def refusals(self) -> None:
        base = self.base
        await self.ask("GET", f"/v1/workspaces/{uuid.uuid4()}", None, 404)
        await self.ask("GET", f"{base}/sessions/none", None, 404)
        await self.ask("POST", f"{base}/agent", {}, 400)
        await self.ask("POST", f"{base}/agent", {"session_id": "none", "prompt": "p"}, 404)
        await self.ask("GET", f"{base}/runs?state=odd", None, 400)
        other = f"{base}/current-session?client_id={uuid.uuid4()}"
        await self.ask("POST", other, {"session_id": ""}, 409)
        await self.ask("POST", "/v1/control", {"command": "shutdown_if_idle"}, 409)
        await self.ask("POST", f"{base}/sessions", {"title": "x" * (1 << 20)}, 413)

    def check_stream(self) -> None:
        """Check that all events that Anna's stream has brought so far are valid."""
        responses = DOCUMENT["paths"][W + "/events"]["get"]["responses"]
        schema = responses["200"]["content"]["text/event-stream"]["schema"]
        events = [json.loads(event.data) for event in SSEParser().feed(bytes(self.anna.events.raw))]
        for event in events:
            self.assertEqual(VALIDATOR.complaints(schema, event), [], event)
        only_on_others = {"message_delta", "tool_output", "resync"}
        kinds = {event["type"] for event in events}
        self.assertEqual(kinds, {*KINDS} - only_on_others)

    async def goodbye(self, session: str) -> None:
        await self.ask("DELETE", f"{self.base}/sessions/{session}")
        await self.ask("DELETE", f"/v1/clients/{self.anna.id}")
        leave = {"command": "shutdown_if_idle", "client": "crushlite"}
        await self.ask("POST", "/v1/control", leave)


class DoorTests(BoundedTestCase):
    async def test_the_description_the_metrics_and_the_health_are_for_those_with_a_token(
        self,
    ) -> None:
        async with LocalDaemon(tcp=True) as daemon:
            stranger = daemon.connect(tcp=True)
            friend = daemon.connect(tcp=True, token=daemon.daemon.tokens[daemon.port].token)
            for path in ("/v1/openapi.json", "/v1/metrics", "/v1/health", "/v1/health?verbose=1"):
                refused = await daemon.call("GET", path, http=stranger)
                self.assertEqual((refused.status, refused.json["code"]), (401, "token_required"))
                answer = await daemon.call("GET", path, http=friend)
                self.assertEqual(answer.status, 200)
