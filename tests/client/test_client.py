"""The client against a scripted server on real sockets: requests, refusals, reconnecting."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

from crushlite import errors
from crushlite.cli.export import export
from crushlite.client import Client, ConnectionFailed
from crushlite.errors import BadRequest, Conflict, CrushliteError, NotFound, Unavailable
from crushlite.features import requests as features, wire as changes
from crushlite.features.wire import Health
from crushlite.http.messages import Response
from crushlite.http.sse import SSEParser
from crushlite.protocol import (
    config,
    messages,
    permissions,
    questions,
    runs,
    sessions,
    workspaces,
)
from crushlite.protocol.codec import encode
from crushlite.protocol.events import Envelope, Resync
from crushlite.protocol.workspaces import Space
from tests.support.client import (
    ACCEPTED,
    CREATE,
    EVENTS,
    LOOK,
    ME,
    PROMPT,
    VERSION,
    ClientTestCase,
    Feed,
    W,
    answer,
    done,
    frame,
    refused,
)
from tests.support.http import streams_of
from tests.support.places import ROOT
from tests.support.routes import TABLE
from tests.support.scenarios import scenario


class RefusalTests(ClientTestCase):
    async def failure(self, response: Response) -> CrushliteError:
        self.answers["GET", "/v1/health"] = response
        with self.assertRaises(CrushliteError) as caught:
            await self.within(self.client.health())
        return caught.exception

    @scenario(284)
    async def test_every_code_becomes_its_own_exception(self) -> None:
        for cls in errors.every_error():
            with self.subTest(cls.__name__):
                error = await self.failure(refused(cls.status, cls.code, "why"))
                self.assertIs(type(error), cls)
                found = (error.status, error.code, error.message)
                self.assertEqual(found, (cls.status, cls.code, "why"))

    async def test_an_unknown_code_falls_back_to_the_class_of_its_status(self) -> None:
        for status, cls in (
            *((400, BadRequest), (404, NotFound), (409, Conflict), (503, Unavailable)),
            *((401, CrushliteError), (405, CrushliteError), (421, CrushliteError)),
            *((500, CrushliteError), (502, CrushliteError), (507, CrushliteError)),
        ):
            with self.subTest(status):
                error = await self.failure(refused(status, "never_heard_of", "why"))
                self.assertIs(type(error), cls)
                found = (error.status, error.code, error.message)
                self.assertEqual(found, (status, "never_heard_of", "why"))

    async def test_without_a_readable_body_the_status_is_all_there_is(self) -> None:
        for body in (b"", b"<html>", b"[]", b"null", b'{"message":7}', b'{"message":"x', b"{}"):
            with self.subTest(body):
                error = await self.failure(Response(404, body))
                self.assertIs(type(error), NotFound)
                self.assertEqual(error.message, "GET /v1/health was answered 404")
                self.assertEqual((error.status, error.code), (404, "not_found"))

    async def test_an_unreadable_answer_is_not_a_bad_request(self) -> None:
        workspace = await self.workspace()
        for body in (b"", b"{", b"[]", b'{"run_id":"r"}', b'{"run_id":1}', b'"x"'):
            with self.subTest(body):
                self.answers[PROMPT] = Response(202, body)
                with self.assertRaisesRegex(CrushliteError, "POST .* the answer is unr") as caught:
                    await self.within(workspace.prompt("s1", "hi"))
                self.assertIs(type(caught.exception), CrushliteError)
        for body in (b"{}", b"7", b"[7]"):
            with self.subTest(body):
                self.answers["GET", W + "/sessions"] = Response(200, body)
                with self.assertRaisesRegex(CrushliteError, "the answer is unreadable: body"):
                    await self.within(workspace.sessions())

    async def test_an_address_without_a_daemon_says_where_and_what_to_do(self) -> None:
        await self.stop()
        with self.assertRaises(ConnectionFailed) as caught:
            await self.within(self.client.health())
        self.assertFalse(caught.exception.reached)
        self.assertIn(f"crushlite serve --host unix://{self.path}", caught.exception.message)
        self.assertIn(str(self.path), caught.exception.message)

    async def test_an_answer_that_breaks_off_may_have_been_carried_out(self) -> None:
        async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{")
            writer.close()

        await self.stop()
        self.path.unlink()
        rude = await asyncio.start_unix_server(hang_up, self.path)
        with self.assertRaises(ConnectionFailed) as caught:
            await self.within(self.client.version())
        self.assertTrue(caught.exception.reached)
        self.assertRegex(caught.exception.message, f"^unix://{self.path}: .* look before")
        rude.close()

    async def test_not_a_byte_goes_to_a_server_of_another_user(self) -> None:
        heard: list[bytes] = []
        visited = asyncio.Event()

        async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heard.append(await reader.read())
            writer.close()
            visited.set()

        await self.stop()
        self.path.unlink()
        stranger = await asyncio.start_unix_server(listen, self.path)
        with mock.patch("os.geteuid", return_value=os.geteuid() + 1):
            client = Client(f"unix://{self.path}", clock=self.clock)
        async with client:
            with self.assertRaisesRegex(errors.WrongPeer, "nothing was sent"):
                await self.within(client.create("/p", env=["SECRET=1"]))
        await self.within(visited.wait())
        self.assertEqual(heard, [b""])
        stranger.close()

    async def test_a_closed_client_says_so(self) -> None:
        workspace = await self.workspace()
        await self.client.aclose()
        with self.assertRaisesRegex(ConnectionFailed, "this client is closed"):
            await self.within(self.client.health())
        with self.assertRaisesRegex(ConnectionFailed, "this client is closed"):
            async with workspace.events():
                self.fail("there is no stream")

    async def test_an_address_is_refused_before_it_is_used(self) -> None:
        for address in (
            *("", "unix://", "/run/x.sock", "http://127.0.0.1:80", "npipe:////./pipe/x"),
            *("tcp://127.0.0.1", "tcp://:80", "tcp://h:0", "tcp://h:65536", "tcp://h:x"),
            *("tcp://me@h:80", "tcp://h:80/base", "tcp://::1:80", "tcp://a b:80", "tcp://h:80\n"),
        ):
            with self.subTest(address), self.assertRaisesRegex(errors.UsageError, "use unix:///"):
                Client(address)

    async def test_only_this_machine_is_spoken_to(self) -> None:
        """A create sends the environment and a token, without encryption."""
        for host in ("192.0.2.2", "example.org", "[2001:db8::1]", "0.0.0.0", "127.0.0.1.example"):
            with self.subTest(host), self.assertRaisesRegex(errors.UsageError, "ssh tunnel"):
                Client(f"tcp://{host}:80", token="secret")
        for host in ("127.0.0.1", "localhost", "[::1]"):
            await Client(f"tcp://{host}:80", token="secret").aclose()

    async def test_over_tcp_the_token_and_the_listeners_name_are_sent(self) -> None:
        server = await self.start(tcp=True)
        address = f"tcp://127.0.0.1:{self.port}"
        async with Client(address, token="s3cret\n", clock=self.clock) as client:
            await self.within(client.health())
        async with Client(address, clock=self.clock) as client:
            await self.within(client.health())
        first, second = self.requests
        self.assertEqual(first.headers.get("Authorization"), "Bearer s3cret")
        self.assertEqual(first.headers.get("Host"), f"127.0.0.1:{self.port}")
        self.assertNotIn("Authorization", second.headers)
        await self.within(server.drain(5.0))


class RequestTests(ClientTestCase):
    async def test_a_create_sends_what_it_was_given_and_a_path_that_means_the_same(self) -> None:
        workspace = await self.client.create("sub", env=["A=b"], data_dir="/d", yolo=True)
        self.assertEqual((workspace.id, workspace.info.path), ("w1", "/p"))
        body = json.loads(self.requests[0].body)
        here = str(Path.cwd() / "sub")
        wanted = {"id": "", "path": here, "client_id": ME, "env": ["A=b"], "data_dir": "/d"}
        self.assertEqual(body, {**wanted, "yolo": True})
        await self.client.create(Path("/q"))
        body = json.loads(self.requests[1].body)
        self.assertEqual(body, {"id": "", "path": "/q", "client_id": ME})

    async def test_clients_have_ids_of_their_own(self) -> None:
        address = f"unix://{self.path}"
        self.assertNotEqual(Client(address).client_id, Client(address).client_id)

    @scenario(285)
    async def test_a_prompt_answered_with_200_or_202_is_accepted(self) -> None:
        workspace = await self.workspace()
        for status in (200, 202):
            self.answers[PROMPT] = answer(ACCEPTED, status)
            accepted = await self.within(workspace.prompt("s1", "hi"))
            self.assertEqual(accepted, runs.Accepted("r1", "s1", "active"))
        self.assertEqual(json.loads(self.requests[0].body), {"session_id": "s1", "prompt": "hi"})

    async def test_every_option_of_a_prompt_is_on_the_wire(self) -> None:
        workspace = await self.workspace()
        self.answers[PROMPT] = answer(ACCEPTED, 202)
        picture = messages.Attachment("aGk=", "/a/b.png", "b.png", "image/png")
        await self.within(
            workspace.prompt(
                *("s1", "hi"),
                run_id="r1",
                when_busy="queue",
                attachments=[picture],
                detach=True,
                max_cost=0.5,
                max_steps=0,
                auto_approve=True,
            )
        )
        body = json.loads(self.requests[0].body)
        attached = body.pop("attachments")
        self.assertEqual(attached[0]["mime_type"], "image/png")
        wanted = {"session_id": "s1", "prompt": "hi", "run_id": "r1", "when_busy": "queue"}
        limits = {"detach": True, "max_cost": 0.5, "max_steps": 0, "auto_approve": True}
        self.assertEqual(body, wanted | limits)

    async def exchange_with(self, call: Any, target: str, sent: Any, result: Any) -> None:
        """Make one call of a workspace, and check what it sends and what it returns."""
        for entry in TABLE:
            self.answers[entry.method, entry.pattern] = answer(encode(result))
        self.requests.clear()
        with self.subTest(target):
            self.assertEqual(await self.within(call), result)
            method, _, path = target.partition(" ")
            self.assertEqual(self.targets, [f"{method} /v1/workspaces/w1{path}"])
            body = self.requests[0].body
            self.assertEqual(json.loads(body) if body else None, sent)

    async def test_what_is_read_comes_from_its_route_and_is_typed(self) -> None:
        w = await self.workspace()
        session = sessions.Session(id="s", title="t")
        run = runs.RunInfo("r")
        both = w.runs(session_id="a&b", state="ended")
        for call, path, result in (
            (w.sessions(), "/sessions", [session]),
            (w.session("s"), "/sessions/s", session),
            (w.messages("s"), "/sessions/s/messages", [messages.Message("m", "user", "s")]),
            (w.user_messages("s"), "/sessions/s/messages/user", []),
            (w.user_messages(), "/messages/user", [messages.Message("m", "user", "s")]),
            (w.files("s"), "/sessions/s/history", [sessions.File("f", "s", "/p/x")]),
            (w.agent(), "/agent", config.AgentInfo(is_ready=True)),
            (w.config(), "/config", {"options": {"debug": True}}),
            (w.providers(), "/providers", [{"id": "lab"}]),
            (w.queue("s"), "/agent/sessions/s/prompts", [runs.QueuedPrompt("r", "t", "steer", 1)]),
            (w.run("r"), "/runs/r", run),
            (w.run("r", wait=2.5), "/runs/r?wait=2.5", run),
            (w.runs(), "/runs", [run]),
            (both, "/runs?session_id=a%26b&state=ended", []),
            (w.permissions(), "/permissions", [permissions.PermissionRequest("p")]),
            (w.questions(), "/questions", [questions.QuestionBatch(id="b")]),
            (features.changed_runs(w), "/changes", [changes.ChangedRun("r", "s")]),
            (features.run_changes(w, "r"), "/runs/r/changes", changes.RunChanges("r", "s")),
        ):
            await self.exchange_with(call, f"GET {path}", None, result)

    async def test_files_are_put_back_and_room_is_given_back(self) -> None:
        w = await self.workspace()
        undone, room = changes.UndoAnswer("u", ["/p/a"]), Space(2, 1)
        plain, wishes = {"dry_run": False, "partial": False}, {"dry_run": True, "partial": True}
        for call, path, sent, result in (
            (features.undo(w, "r"), "/runs/r/undo", plain, undone),
            (features.undo(w, "r", dry_run=True, partial=True), "/runs/r/undo", wishes, undone),
            (w.compact(), "/compact", None, room),
        ):
            await self.exchange_with(call, f"POST {path}", sent, result)

    async def test_what_is_decided_goes_to_its_route_and_the_outcome_is_typed(self) -> None:
        w = await self.workspace()
        yes = questions.QuestionResponse("q", yes=True)
        won, lost = permissions.Resolution(True, ME), permissions.Resolution(False)
        receipt = runs.CancelReceipt([runs.CanceledRun("r1", "active")])
        deny = {"action": "deny", "reason": "no"}
        replied = {"responses": [{"request_id": "q", "yes": True}]}
        dismissed = {"responses": [], "action": "cancel"}
        cancel = "POST /agent/sessions/s/cancel"
        me = f"?client_id={ME}"
        for call, target, sent, result in (
            (w.grant("p", "deny", reason="no"), f"POST /permissions/p{me}", deny, won),
            (w.grant("p", "allow"), f"POST /permissions/p{me}", {"action": "allow"}, lost),
            (w.answer("b", [yes]), f"POST /questions/b{me}", replied, won),
            (w.answer("b", None), f"POST /questions/b{me}", dismissed, lost),
            (
                *(features.shell(w, "s", "ls"), "POST /agent/sessions/s/shell"),
                {"session_id": "s", "command": "ls", "term_width": 0},
                changes.ShellAnswer("x", 1),
            ),
            (w.cancel("s"), cancel, None, receipt),
            (w.cancel("s", wait=3), f"{cancel}?wait=3", None, runs.CancelReceipt()),
            (w.cancel_run("r", wait=3), "POST /runs/r/cancel?wait=3", None, receipt),
        ):
            await self.exchange_with(call, target, sent, result)

    async def test_what_has_no_answer_returns_nothing(self) -> None:
        w = await self.workspace()
        base = "/v1/workspaces/w1"
        large = config.SelectedModel("m", "p")
        for call, target, sent in (
            (w.delete("s"), f"DELETE {base}/sessions/s", None),
            (w.clear("s"), f"POST {base}/agent/sessions/s/prompts/clear", None),
            (w.remove("s", "r"), f"DELETE {base}/agent/sessions/s/prompts/r", None),
            (w.look("s"), f"POST {base}/current-session?client_id={ME}", {"session_id": "s"}),
            (w.init(), f"POST {base}/agent/init?client_id={ME}", {"interactive": True}),
            (w.init(False), f"POST {base}/agent/init?client_id={ME}", {"interactive": False}),
            (w.summarize("s"), f"POST {base}/agent/sessions/s/summarize", None),
            (w.skip_permissions(), f"POST {base}/permissions/skip", {"skip": True}),
            (features.reread_config(w), f"POST {base}/agent/update", None),
            (
                *(features.set_config(w, "options.debug", True), f"POST {base}/config/set"),
                {"key": "options.debug", "value": True, "scope": 0},
            ),
            (
                features.remove_config(w, "a", 1),
                f"POST {base}/config/remove",
                {"key": "a", "scope": 1},
            ),
            (
                *(features.set_key(w, "lab", "k"), f"POST {base}/config/provider-key"),
                {"provider_id": "lab", "kind": "string", "api_key": "k", "scope": 0},
            ),
            (
                *(features.choose_model(w, "large", large), f"POST {base}/config/model"),
                {"model_type": "large", "model": {"model": "m", "provider": "p"}, "scope": 0},
            ),
            (w.release(), f"DELETE {base}?client_id={ME}", None),
            (self.client.health(), "GET /v1/health", None),
            (
                *(self.client.control("shutdown_if_idle"), "POST /v1/control"),
                {"command": "shutdown_if_idle", "client": "crushlite"},
            ),
            (self.client.retire(), f"DELETE /v1/clients/{ME}", None),
        ):
            self.requests.clear()
            with self.subTest(target):
                self.assertIsNone(await self.within(call))
                self.assertEqual(self.targets, [target])
                body = self.requests[0].body
                self.assertEqual(json.loads(body) if body else None, sent)

    async def test_an_export_holds_all_there_is_of_a_session(self) -> None:
        w = await self.workspace()
        session = {"id": "s", "title": "t"}
        self.answers["GET", W + "/sessions/{sid}"] = answer(session)
        for path, value in (
            ("/sessions/{sid}/messages", [{"id": "m", "role": "user", "session_id": "s"}]),
            ("/sessions/{sid}/history", [{"id": "f", "path": "/p/x"}]),
            ("/runs", [{"run_id": "r"}]),
        ):
            self.answers["GET", W + path] = answer(value)
        found = await self.within(export(w, "s"))
        self.assertEqual((found.session.title, found.messages[0].id), ("t", "m"))
        self.assertEqual((found.files[0].path, found.runs[0].run_id), ("/p/x", "r"))
        self.assertEqual(self.targets[-1], "GET /v1/workspaces/w1/runs?session_id=s")
        self.assertEqual(encode(found)["messages"][0]["role"], "user")

    async def test_what_the_daemon_says_of_a_workspace_is_read_again(self) -> None:
        w = await self.workspace()
        self.answers["GET", W] = answer({"id": "w1", "path": "/p", "yolo": True})
        self.assertTrue((await self.within(w.refresh())).yolo)
        self.assertTrue(w.info.yolo)
        self.answers["GET", W + "/permissions/skip"] = answer({"skip": True})
        self.assertTrue(await self.within(w.skips_permissions()))

    async def test_sessions_are_created_and_renamed_by_title(self) -> None:
        w = await self.workspace()
        self.answers["POST", W + "/sessions"] = answer({"id": "s", "title": "t"})
        self.answers["PUT", W + "/sessions/{sid}"] = answer({"id": "s", "title": "u"})
        self.assertEqual((await self.within(w.create_session("t"))).id, "s")
        self.assertEqual((await self.within(w.rename("s", "u"))).title, "u")
        self.assertEqual([json.loads(r.body)["title"] for r in self.requests], ["t", "u"])

    async def test_the_daemon_tells_its_version_and_its_workspaces(self) -> None:
        self.answers["GET", "/v1/version"] = answer(VERSION)
        self.answers["GET", "/v1/workspaces"] = answer([{"id": "w", "path": "/p"}])
        self.assertEqual((await self.within(self.client.version())).build_id, "b")
        vitals = Health("ok", "1", 7, 1.5, 0.0, 1, 2, 2, 1, store={"/d": "ok"})
        self.answers["GET", "/v1/health"] = answer(encode(vitals))
        self.assertEqual(await self.within(features.vitals(self.client)), vitals)
        self.assertEqual(self.targets[-1], "GET /v1/health?verbose=1")
        found = await self.within(self.client.workspaces())
        self.assertEqual(found, [workspaces.Workspace("w", "/p")])

    async def test_ids_are_data_whatever_they_hold(self) -> None:
        w = await self.workspace()
        self.answers["GET", W + "/runs/{run_id}"] = answer({})
        for id_ in ("m$$call/1", "a b", "..", "%2F", "?x=1&y#z", "ü\u20ac", ";,:@=+"):
            with self.subTest(id_):
                self.requests.clear()
                await self.within(w.run(id_))
                await self.within(w.remove(id_, id_))
                asked, removed = self.requests
                self.assertEqual(asked.params["run_id"], id_)
                self.assertEqual((removed.params["sid"], removed.params["run_id"]), (id_, id_))
        self.requests.clear()
        await self.within(w.delete("m$$call/1"))
        self.assertEqual(self.targets, ["DELETE /v1/workspaces/w1/sessions/m%24%24call%2F1"])


class StreamTests(ClientTestCase):
    async def test_events_are_typed_and_unknown_kinds_are_raw(self) -> None:
        workspace = await self.workspace()
        strange = b'data: {"type":"weather","payload":{"type":"updated","payload":{"rain":1}}}\n\n'
        self.answers[EVENTS] = Feed(b"id: e-0\n\n: hello\n\n" + done(1) + strange + done(3))
        async with workspace.events() as stream:
            self.assertEqual(
                self.targets, [f"GET /v1/workspaces/w1/events?client_id={ME}&resume=1&deltas=1"]
            )
            first, second, third = [await self.within(stream.__anext__()) for _ in range(3)]
        complete = runs.RunComplete("s1", run_id="r1")
        self.assertEqual(first, Envelope("run_complete", "updated", complete))
        self.assertEqual(second, Envelope("weather", "updated", {"rain": 1}))
        self.assertEqual(third.payload.run_id, "r3")

    async def test_an_event_that_makes_no_sense_is_logged_and_skipped(self) -> None:
        workspace = await self.workspace()
        junk = b'id: e-2\ndata: {\n\ndata: [1]\n\ndata: {"type":"message","payload":{}}\n\n'
        nonsense = frame(3, "run_complete", session_id=7)
        self.answers[EVENTS] = Feed(done(1) + junk + nonsense + done(4))
        async with workspace.events() as stream:
            with self.assertLogs("crushlite.client", "WARNING") as logs:
                self.assertEqual(await self.runs_of(stream, 2), ["r1", "r4"])
        self.assertEqual(len(logs.output), 4)

    async def test_the_example_of_the_documentation_works(self) -> None:
        self.answers[PROMPT] = answer(ACCEPTED, 202)
        self.answers["POST", W + "/sessions"] = answer({"id": "s1", "title": "demo"})
        feed = self.answers[EVENTS] = Feed()
        async with self.client as client:
            workspace = await client.create("/path/to/project")
            session = await workspace.create_session("demo")
            async with workspace.events() as events:
                accepted = await workspace.prompt(session.id, "hello")
                feed.send(done(0) + done(1) + done(2))
                async for event in events:
                    if event.kind == "run_complete" and event.payload.run_id == accepted.run_id:
                        break
            self.assertEqual(events.last_id, "e-1")
            await self.within(feed.gone.wait())

    async def test_a_stream_with_ids_and_deltas_is_asked_for(self) -> None:
        workspace = await self.workspace()
        self.answers[EVENTS] = Feed()
        async with workspace.events():
            query = f"client_id={ME}&resume=1&deltas=1"
            self.assertEqual(self.targets, [f"GET /v1/workspaces/w1/events?{query}"])

    async def test_a_stream_can_continue_an_earlier_one(self) -> None:
        workspace = await self.workspace()
        self.answers[EVENTS] = Feed()
        async with workspace.events(last_id="e-7"):
            self.assertEqual(self.positions, ["e-7"])

    async def test_without_a_reader_there_is_no_stream(self) -> None:
        workspace = await self.workspace()
        feed = self.answers[EVENTS] = Feed()
        with self.assertRaisesRegex(RuntimeError, "inside its own 'async with'"):
            await workspace.events().__anext__()
        async with workspace.events() as stream:
            reader = asyncio.create_task(stream.__anext__())
            await self.settle()
            with self.assertRaisesRegex(RuntimeError, "by one task"):
                await stream.__anext__()
            feed.send(done(1))
            self.assertEqual((await self.within(reader)).payload.run_id, "r1")
            with self.assertRaisesRegex(RuntimeError, "entered once"):
                await stream.__aenter__()

    async def test_a_reader_that_is_cancelled_misses_nothing(self) -> None:
        workspace = await self.workspace()
        feed = self.answers[EVENTS] = Feed()
        async with workspace.events() as stream:
            reader = asyncio.create_task(stream.__anext__())
            await self.settle()
            reader.cancel()
            feed.send(done(1) + done(2))
            await asyncio.wait([reader])
            self.assertTrue(reader.cancelled())
            self.assertEqual(await self.runs_of(stream, 1), ["r1"])
            # An event is on its way: whether it or the cancel comes first, it is yielded once.
            feed.send(done(3))
            self.assertEqual(await self.runs_of(stream, 1), ["r2"])
            reader = asyncio.create_task(stream.__anext__())
            await asyncio.sleep(0)
            reader.cancel()
            await asyncio.wait([reader])
            found = [] if reader.cancelled() else [reader.result().payload.run_id]
            feed.send(done(4))
            found += await self.runs_of(stream, 2 - len(found))
            self.assertEqual(found, ["r3", "r4"])
        self.assertEqual(len(self.feeds), 1)

    async def test_a_line_without_end_is_given_up_for_good(self) -> None:
        workspace = await self.workspace()
        self.answers[EVENTS] = Feed(b"data: " + b"x" * 200)
        small = functools.partial(SSEParser, line_limit=100)
        with mock.patch("crushlite.client.stream.SSEParser", small):
            async with workspace.events() as stream:
                with self.assertRaisesRegex(CrushliteError, "cannot be read on"):
                    await self.within(stream.__anext__())
                await self.over(stream)
        self.assertEqual(len(self.feeds), 1)


class ClosingTests(ClientTestCase):
    async def test_close_ends_a_reader_that_waits(self) -> None:
        workspace = await self.workspace()
        feed = self.answers[EVENTS] = Feed()
        async with workspace.events() as stream:
            reader = asyncio.create_task(self.over(stream))
            await self.settle()
            await self.within(stream.close())
            await self.within(reader)
            await self.within(feed.gone.wait())
            await self.within(stream.close())
            await self.over(stream)

    @scenario(286)
    async def test_a_stream_that_is_closed_ends_its_iteration(self) -> None:
        workspace = await self.workspace()
        self.answers[EVENTS] = Feed(done(1) + done(2) + done(3))
        async with workspace.events() as stream:
            self.assertEqual(await self.runs_of(stream, 1), ["r1"])
            await self.within(stream.close())
            await self.over(stream)
        self.assertEqual(stream.last_id, "e-1")

    async def test_a_close_while_the_stream_comes_back_leaves_no_connection(self) -> None:
        # At every point of a reconnect: after each number of ticks of the loop.
        workspace = await self.workspace()
        await workspace.init()
        for steps in range(60):
            self.feeds.clear()
            self.answers[EVENTS] = [Feed(b"id: e-0\n\n", brief=True), Feed()]
            stream = workspace.events()
            await self.within(stream.__aenter__())
            reader = asyncio.create_task(self.over(stream))
            for _ in range(steps):
                await asyncio.sleep(0)
            await self.within(stream.close())
            await self.within(reader)
            for feed in self.feeds:
                await self.within(feed.gone.wait())
            self.assertEqual(streams_of(self.server), [])
        self.assertEqual(len(self.feeds), 2, "the last round got all the way")

    async def test_closing_the_client_ends_its_streams(self) -> None:
        workspace = await self.workspace()
        self.answers[EVENTS] = [Feed(), Feed(brief=True)]
        asleep = asyncio.Event()

        async def sleep_on(delay: float) -> None:
            asleep.set()
            await asyncio.Event().wait()

        self.impatient.at_sleep = sleep_on
        waiting, coming_back = workspace.events(), workspace.events()
        await self.within(waiting.__aenter__())
        await self.within(coming_back.__aenter__())
        readers = [asyncio.create_task(self.over(s)) for s in (waiting, coming_back)]
        await self.within(asleep.wait())
        await self.within(self.client.aclose())
        for reader in readers:
            await self.within(reader)

    async def test_after_a_goodbye_a_stream_does_not_return(self) -> None:
        for leave in ("release", "retire"):
            workspace = await self.workspace()
            feed = self.answers[EVENTS] = Feed()
            async with workspace.events() as stream:
                await self.within(getattr(workspace, leave, self.client.retire)())
                feed.send(done(1))
                feed.drop()
                self.assertEqual(await self.runs_of(stream, 1), ["r1"])
                await self.over(stream)
            self.answers[EVENTS] = refused(404, "workspace_not_found")
            with self.subTest(leave), self.assertRaises(errors.WorkspaceNotFound):
                await self.within(workspace.events().__aenter__())
        self.assertEqual((len(self.feeds), self.births), (2, 2))
        self.assertEqual(self.impatient.slept, [])

    async def test_a_goodbye_on_the_way_back_ends_the_stream(self) -> None:
        workspace = await self.workspace()
        self.answers[EVENTS] = Feed(brief=True)

        async def leave(delay: float) -> None:
            await workspace.release()

        self.impatient.at_sleep = leave
        async with workspace.events() as stream:
            await self.over(stream)
        self.assertEqual(len(self.feeds), 1)

    async def test_without_reconnect_the_end_is_the_end(self) -> None:
        workspace = await self.workspace()
        self.answers[EVENTS] = Feed(done(1), brief=True)
        async with workspace.events(reconnect=False) as stream:
            self.assertEqual([e.payload.run_id async for e in stream], ["r1"])
        self.answers[EVENTS] = refused(404, "workspace_not_found")
        with self.assertRaises(errors.WorkspaceNotFound):
            await self.within(workspace.events(reconnect=False).__aenter__())
        self.assertEqual((self.impatient.slept, self.births), ([], 1))

    async def test_without_reconnect_a_broken_stream_ends_too(self) -> None:
        workspace = await self.workspace()
        chunk = done(1)

        async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            writer.write(b"%x\r\n%b\r\nff\r\ndata: " % (len(chunk), chunk))
            writer.close()

        await self.stop()
        self.path.unlink()
        rude = await asyncio.start_unix_server(break_off, self.path)
        async with workspace.events(reconnect=False) as stream:
            self.assertEqual([e.payload.run_id async for e in stream], ["r1"])
        rude.close()


class ReturnTests(ClientTestCase):
    @scenario(287)
    async def test_a_dropped_stream_is_resumed_where_it_broke(self) -> None:
        workspace = await self.workspace()
        torn = done(3)[:-1]  # never completed, so it must be sent again
        self.answers[EVENTS] = [
            Feed(b"id: e-0\n\n" + done(1) + done(2) + torn, brief=True),
            Feed(b"id: e-2\n\n" + done(3) + done(4), brief=True),
            Feed(b"id: e-4\n\n" + done(5)),
        ]
        async with workspace.events() as stream:
            self.assertEqual(await self.runs_of(stream, 5), ["r1", "r2", "r3", "r4", "r5"])
            self.assertEqual(stream.last_id, "e-5")
        self.assertEqual(self.positions, [None, "e-2", "e-4"])
        self.assertEqual(self.impatient.slept, [0.25, 0.25])

    async def test_an_id_alone_is_a_position_too(self) -> None:
        workspace = await self.workspace()
        skipped = b"id: e-9\ndata: {\n\n"
        firsts = (b"id: e-3\n\n", b"id: e-3\n\n" + skipped, b": nothing\n\n")
        self.answers[EVENTS] = [*(Feed(first, brief=True) for first in firsts), Feed(done(10))]
        async with workspace.events() as stream:
            self.assertEqual(await self.runs_of(stream, 1), ["r10"])
        self.assertEqual(self.positions, [None, "e-3", "e-9", "e-9"])

    async def test_an_event_without_an_id_does_not_move_the_position(self) -> None:
        workspace = await self.workspace()
        firsts = (done(1), done(None), b"id:\n" + done(None))
        self.answers[EVENTS] = [*(Feed(first, brief=True) for first in firsts), Feed(done(2))]
        async with workspace.events() as stream:
            self.assertEqual(await self.runs_of(stream, 4), ["r1", "rNone", "rNone", "r2"])
        self.assertEqual(self.positions, [None, "e-1", "e-1", "e-1"])

    async def test_a_reset_is_a_loss_like_any_other(self) -> None:
        workspace = await self.workspace()
        first = Feed(done(1))
        self.answers[EVENTS] = [first, Feed(done(2))]
        async with workspace.events() as stream:
            self.assertEqual(await self.runs_of(stream, 1), ["r1"])
            assert first.sink is not None
            first.sink.abort()
            self.assertEqual(await self.runs_of(stream, 1), ["r2"])
        self.assertEqual(self.positions, [None, "e-1"])

    async def test_the_daemons_own_resync_is_passed_on(self) -> None:
        workspace = await self.workspace()
        resync = b'id: f-1\ndata: {"type":"resync","payload":{"reason":"too old"}}\n\n'
        self.answers[EVENTS] = [Feed(done(1), brief=True), Feed(resync, brief=True), Feed(done(2))]
        async with workspace.events() as stream:
            await self.runs_of(stream, 1)
            event = await self.event_of(stream)
            self.assertEqual(event, Envelope("resync", "", Resync("too old")))
            self.assertEqual(await self.runs_of(stream, 1), ["r2"])
        self.assertEqual(self.positions, [None, "e-1", "f-1"])

    async def test_a_return_without_a_position_says_that_events_may_be_missing(self) -> None:
        workspace = await self.workspace()
        self.answers[EVENTS] = [Feed(done(None), brief=True), Feed(done(None))]
        async with workspace.events() as stream:
            self.assertEqual(await self.runs_of(stream, 3), ["rNone", "resync", "rNone"])
        self.assertEqual(self.positions, [None, None])

    async def test_failed_attempts_are_spaced_out_and_success_forgets_them(self) -> None:
        workspace = await self.workspace()
        failures = [
            *(refused(503, "shutting_down"), refused(500, "internal"), refused(507, "store_full")),
            *(refused(409, "workspace_closing"), Response(502), Response(503), Response(500)),
        ]
        back = Feed(done(1), brief=True)
        self.answers[EVENTS] = [Feed(brief=True), *failures, back, Feed(done(2))]
        async with workspace.events() as stream:
            await self.runs_of(stream, 2)
            self.assertEqual(await self.runs_of(stream, 1), ["r2"])
        waits = [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
        self.assertEqual(self.impatient.slept, [*waits, 0.25])

    async def test_a_reader_that_is_cancelled_does_not_start_the_wait_again(self) -> None:
        self.client = Client(f"unix://{self.path}", client_id=ME, clock=self.patient)
        workspace = await self.workspace()
        self.answers[EVENTS] = [Feed(b"id: e-0\n\n", brief=True), Feed(done(1))]
        async with workspace.events() as stream:
            reader = asyncio.create_task(self.event_of(stream))
            await self.until(lambda: self.patient.pending == 1)
            await self.patient.advance(0.2)
            reader.cancel()
            await asyncio.wait([reader])
            self.assertEqual(self.patient.pending, 0)
            reader = asyncio.create_task(self.event_of(stream))
            await self.until(lambda: self.patient.pending == 1)
            await self.patient.advance(0.06)
            self.assertEqual((await self.within(reader)).payload.run_id, "r1")

    async def test_a_daemon_that_was_away_is_found_again(self) -> None:
        workspace = await self.workspace()
        first = Feed(done(1))
        self.answers[EVENTS] = [first, Feed(done(2))]
        async with workspace.events() as stream:
            self.assertEqual(await self.runs_of(stream, 1), ["r1"])
            await self.stop()

            async def restart(delay: float) -> None:
                if delay == 2.0:
                    self.server = await self.start()

            self.impatient.at_sleep = restart
            self.assertEqual(await self.runs_of(stream, 1), ["r2"])
        self.assertEqual(self.impatient.slept, [0.25, 0.5, 1.0, 2.0])
        self.assertEqual(self.positions, [None, "e-1"])

    async def test_an_answer_that_will_not_change_ends_the_stream(self) -> None:
        workspace = await self.workspace()
        for status, code, cls in (
            *((400, "bad_request", BadRequest), (409, "client_retired", errors.ClientRetired)),
            *((401, "token_required", CrushliteError), (409, "conflict", Conflict)),
        ):
            self.answers[EVENTS] = [Feed(brief=True), refused(status, code)]
            async with workspace.events() as stream:
                with self.subTest(code), self.assertRaises(cls):
                    await self.event_of(stream)
                await self.over(stream)

    async def test_a_stream_does_not_return_to_another_users_server(self) -> None:
        workspace = await self.workspace()
        self.answers[EVENTS] = Feed(brief=True)
        stranger = mock.patch("crushlite.http.client.peer_uid", return_value=os.geteuid() + 1)
        async with workspace.events() as stream:
            with stranger, self.assertRaises(errors.WrongPeer):
                await self.event_of(stream)
            await self.over(stream)
        self.assertEqual(len(self.feeds), 1)

    async def test_a_first_subscription_that_fails_is_the_callers_to_handle(self) -> None:
        workspace = await self.workspace()
        self.answers[EVENTS] = refused(503, "shutting_down")
        with self.assertRaises(errors.ShuttingDown):
            await self.within(workspace.events().__aenter__())
        await self.stop()
        with self.assertRaises(ConnectionFailed):
            await self.within(workspace.events().__aenter__())
        self.assertEqual(self.impatient.slept, [])


class RecreationTests(ClientTestCase):
    @scenario(288)
    async def test_a_lost_workspace_is_created_again_as_it_was(self) -> None:
        workspace = await self.client.create("/p", env=["A=b"], data_dir="/d", yolo=True)
        created = self.requests.pop().body
        gone = refused(404, "workspace_not_found")
        self.answers[EVENTS] = [Feed(done(7), brief=True), gone, Feed(done(1))]
        async with workspace.events() as stream:
            await workspace.init(False)
            await workspace.look("s1")
            self.requests.clear()
            self.assertEqual(await self.runs_of(stream, 3), ["r7", "resync", "r1"])
        self.assertEqual((workspace.id, workspace.info.id), ("w2", "w2"))
        old, new = (f"/v1/workspaces/w{n}" for n in (1, 2))
        self.assertEqual(
            self.targets,
            [
                f"GET {old}/events?client_id={ME}&resume=1&deltas=1",
                "POST /v1/workspaces",
                f"GET {new}/events?client_id={ME}&resume=1&deltas=1",
                f"POST {new}/agent/init?client_id={ME}",
                f"POST {new}/current-session?client_id={ME}",
            ],
        )
        self.assertEqual(self.requests[1].body, created)
        self.assertEqual(self.positions, ["e-7", None])
        said = [json.loads(request.body) for request in self.requests[3:]]
        self.assertEqual(said, [{"interactive": False}, {"session_id": "s1"}])
        self.assertEqual(self.impatient.slept, [0.25], "a new workspace is subscribed to at once")

    async def test_nothing_is_said_for_the_client_that_it_never_said(self) -> None:
        workspace = await self.workspace()
        gone = refused(404, "workspace_not_found")
        self.answers[EVENTS] = [Feed(brief=True), gone, Feed()]
        async with workspace.events() as stream:
            self.assertEqual(await self.runs_of(stream, 1), ["resync"])
        self.assertEqual(len(self.requests), 4)

    async def test_an_introduction_that_fails_does_not_spoil_the_stream(self) -> None:
        workspace = await self.workspace()
        self.answers[EVENTS] = [Feed(done(1), brief=True), Feed(done(2))]
        self.answers[LOOK] = [Response(200), refused(409, "not_attached")]
        async with workspace.events() as stream:
            await workspace.look("s1")
            with self.assertLogs("crushlite.client", "WARNING"):
                self.assertEqual(await self.runs_of(stream, 2), ["r1", "r2"])

    async def test_a_create_that_fails_is_tried_again_later(self) -> None:
        workspace = await self.workspace()
        gone = refused(404, "workspace_not_found")
        creates = [refused(503, "shutting_down"), refused(409, "data_directory_in_use")]
        self.answers[CREATE] = [*creates, self.created]
        # The old workspace is gone three times, and the new one once, before the stream subscribes.
        self.answers[EVENTS] = [Feed(brief=True), gone, gone, gone, gone, Feed(done(1))]
        async with workspace.events() as stream:
            self.assertEqual(await self.runs_of(stream, 2), ["resync", "r1"])
        self.assertEqual(self.impatient.slept, [0.25, 0.5, 1.0, 2.0])
        self.assertEqual(workspace.id, "w2")

    async def test_a_create_that_is_refused_for_good_ends_the_stream(self) -> None:
        workspace = await self.workspace()
        self.answers[EVENTS] = [Feed(brief=True), refused(404, "workspace_not_found")]
        for status, code in ((400, "bad_request"), (409, "corrupt_database"), (404, "not_found")):
            self.answers[CREATE] = refused(status, code)
            self.answers[EVENTS] = [Feed(brief=True), refused(404, "workspace_not_found")]
            async with workspace.events() as stream:
                with self.subTest(code), self.assertRaises(CrushliteError) as caught:
                    await self.event_of(stream)
                self.assertEqual(caught.exception.code, code)
                await self.over(stream)

    async def test_a_workspace_that_is_gone_at_the_start_is_created_again_too(self) -> None:
        workspace = await self.workspace()
        self.answers[EVENTS] = [Response(404), Feed(done(1))]
        async with workspace.events() as stream:
            self.assertEqual(workspace.id, "w2")
            self.assertEqual(await self.runs_of(stream, 2), ["resync", "r1"])

    async def test_two_streams_of_a_workspace_find_the_same_new_one(self) -> None:
        workspace = await self.workspace()
        gone = refused(404, "workspace_not_found")
        feeds = [Feed(done(7)), Feed(done(8))]
        self.answers[EVENTS] = [*feeds, gone, Feed(done(1)), Feed(done(1))]
        async with workspace.events() as one, workspace.events() as two:
            await self.runs_of(one, 1)
            await self.runs_of(two, 1)
            for feed in feeds:
                feed.drop()
            self.assertEqual(await self.runs_of(one, 2), ["resync", "r1"])
            self.assertEqual(await self.runs_of(two, 1), ["r1"])
        self.assertEqual(self.births, 2)
        # The daemon answers a position of the old workspace with a resync.
        self.assertEqual(self.positions, [None, None, "e-7", None, "e-8"])

    async def test_a_stream_that_hears_late_of_a_lost_workspace_creates_no_third_one(self) -> None:
        workspace = await self.workspace()
        replaced = asyncio.Event()

        async def gone_late() -> Response:
            await replaced.wait()
            return refused(404, "workspace_not_found")

        feeds = [Feed(done(7), brief=True), Feed(done(8), brief=True)]
        gone = refused(404, "workspace_not_found")
        self.answers[EVENTS] = [*feeds, gone, gone_late, Feed(done(1)), Feed(done(1))]
        async with workspace.events() as one, workspace.events() as two:
            both = [asyncio.create_task(self.runs_of(stream, 2)) for stream in (one, two)]
            await self.until(lambda: self.births == 2)
            self.assertEqual(await self.within(both[0]), ["r7", "resync"])
            replaced.set()
            self.assertEqual(await self.within(both[1]), ["r8", "resync"])
        self.assertEqual((self.births, workspace.id), (2, "w2"))


class ImportTests(ClientTestCase):
    def test_the_client_brings_neither_the_server_nor_the_store(self) -> None:
        script = "import sys, crushlite.client; print(*sys.modules)"
        command = [sys.executable, "-c", script]
        found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
        self.assertEqual(found.stderr, "")
        loaded = set(found.stdout.split())
        own = {name for name in loaded if name.startswith("crushlite.")}
        allowed = ("client", "clock", "errors", "http", "protocol", "records", "unique", "version")
        self.assertEqual({n for n in own if n.split(".")[1] not in allowed}, set())
        heavy = {"sqlite3", "crushlite.http.server", "crushlite.http.connection"}
        self.assertEqual(loaded & heavy, set())
