"""A simulated client: requests, event streams that drop and resume, answers to dialogs.

Every request is entered in the trace with its answer, and every answer is held against what the
ledger knows. A request may also be left in the middle, by resetting or half-closing its connection.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from crushlite.http.client import ClientError, ConnectFailed, HTTPClient, ResponseTimeout
from tests.support.simulation import invariants
from tests.support.simulation.ledger import PromptFacts, SessionFacts
from tests.support.simulation.network import HOST, LinkConnector
from tests.support.simulation.streams import StreamReader

if TYPE_CHECKING:
    import random
    from collections.abc import Coroutine

    from crushlite.clock import Clock
    from tests.support.simulation.ledger import Body, Ledger
    from tests.support.simulation.network import Network
    from tests.support.simulation.streams import Position

HOUR = 3600.0  # virtual seconds: longer than anything may take

# Refusals that any request to a workspace may get, because others act at the same time.
GONE = {"workspace_not_found", "workspace_closing"}
STORE = {"store_full", "store_busy", "store_failed", "store_unusable", "not_saved"}


@dataclass(frozen=True)
class Answer:
    """`status` is 0 if no answer came."""

    status: int = 0
    body: Any = None

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def code(self) -> str:
        return self.body.get("code", "") if isinstance(self.body, dict) else ""


class SimulatedClient:
    def __init__(
        self, name: str, ledger: Ledger, network: Network, clock: Clock, rng: random.Random
    ) -> None:
        self.name = name
        self.id = str(uuid.uuid4())
        self.ledger = ledger
        self.network = network
        self.clock = clock
        self.rng = rng
        self.tagged = rng.random() < 0.6
        self.answers_dialogs = rng.random() < 0.8
        self.workspace_id = ""
        self.stream: StreamReader | None = None
        self._http, self._connector = self._connect()
        self._tasks: set[asyncio.Task[object]] = set()

    def _connect(self) -> tuple[HTTPClient, LinkConnector]:
        connector = LinkConnector(self.network)
        return HTTPClient(connector, host_header=HOST, clock=self.clock), connector

    # Requests ------------------------------------------------------------------------------------

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        expect: set[str] | None = None,
        timeout: float = 60.0,
        risky: bool = False,
    ) -> Answer:
        """A request below the workspace. `expect` are the codes of refusals that are in order
        besides those that anything may get. `risky` lets the connection break at a drawn time."""
        target = f"/v1/workspaces/{self.workspace_id}{path}"
        return await self.request(method, target, body, expect=expect, timeout=timeout, risky=risky)

    async def request(
        self,
        method: str,
        target: str,
        body: Any = None,
        *,
        expect: set[str] | None = None,
        timeout: float = 60.0,
        risky: bool = False,
    ) -> Answer:
        self._trace(f"> {method} {target} {json.dumps(body, sort_keys=True) if body else ''}")
        content = json.dumps(body).encode() if body is not None else b""
        breaks = risky and self.rng.random() < 0.12
        try:
            send = self._broken if breaks else self._whole
            status, raw = await send(method, target, content, timeout)
        except ResponseTimeout:
            self.ledger.violate(f"{method} {target} was not answered within {timeout} s")
            return Answer()
        except ClientError as error:
            self._trace(f"< {method} {target}: {type(error).__name__}")
            in_order = breaks or self.ledger.stopping or isinstance(error, ConnectFailed)
            if not in_order:
                self.ledger.violate(f"{method} {target}: {error!r}")
            return Answer()
        answer = Answer(status, json.loads(raw) if raw.strip() else None)
        self._trace(f"< {method} {target} {status} {raw.decode().strip()}")
        self._judge(f"{method} {target}", answer, expect or set())
        return answer

    async def _whole(
        self, method: str, target: str, content: bytes, timeout: float
    ) -> tuple[int, bytes]:
        response = await self._http.request(method, target, body=content, timeout=timeout)
        return response.status, response.body

    async def _broken(
        self, method: str, target: str, content: bytes, timeout: float
    ) -> tuple[int, bytes]:
        """A request whose connection is reset, half-closed or left at a drawn time."""
        http, connector = self._connect()
        sending = asyncio.ensure_future(http.request(method, target, body=content, timeout=timeout))
        how = self.rng.choice(("reset", "half-close", "leave"))
        self._trace(f"! {how}")
        self.ledger.counts[f"request {how}"] += 1
        try:
            await self.clock.sleep(self.rng.choice((0.0, 0.001, 0.01, 0.1)))
            for _ in range(self.rng.randrange(6)):
                await asyncio.sleep(0)
            link = connector.link
            if link is not None and how == "reset":
                link.reset()
            elif link is not None and how == "half-close":
                link.half_close()
            elif how == "leave":
                await http.aclose()
            response = await sending
            return response.status, response.body
        finally:
            sending.cancel()
            await http.aclose()

    def _judge(self, what: str, answer: Answer, expect: set[str]) -> None:
        if answer.ok or answer.code in expect or answer.code in GONE:
            return
        if answer.code == "shutting_down" and self.ledger.stopping:
            return
        if answer.code in STORE and self.ledger.troubled():
            self.ledger.counts[f"refused {answer.code}"] += 1
            return
        self.ledger.violate(f"{what} was answered {answer.status} {answer.body}")

    def _trace(self, text: str) -> None:
        self.ledger.trace.add(f"{self.name} {text}")

    # The workspace -------------------------------------------------------------------------------

    async def join(self, path: str, *, stream: bool = True) -> bool:
        """Create or join the workspace; with a stream, unless that is not wanted."""
        body = {"path": path, "client_id": self.id}
        answer = await self.request("POST", "/v1/workspaces", body)
        if not answer.ok:
            return False
        self.workspace_id = answer.body["id"]
        if stream:
            await self.open_stream()
        return True

    async def open_stream(self, *, resume: bool = False) -> bool:
        """Open an event stream; with `resume`, behind the last event of the one before."""
        before = self.stream
        await self.close_stream()
        stream = StreamReader(
            self.ledger,
            self.network,
            self.clock,
            client_id=self.id,
            name=self.name,
            tagged=self.tagged,
            on_event=self._on_event,
        )
        self.stream = stream
        last_id = before.last_id if before is not None and self.tagged and resume else None
        position: Position | None = before.position if before is not None else None
        base = f"/v1/workspaces/{self.workspace_id}"
        stream.task = asyncio.create_task(stream.read(base, position, last_id))
        while not stream.position and not stream.ended:
            await self.clock.sleep(0.01)
        self.ledger.counts["resumed"] += last_id is not None
        return stream.position is not None

    async def close_stream(self) -> None:
        if self.stream is not None and self.stream.task is not None:
            self.stream.task.cancel()
            await asyncio.wait([self.stream.task])

    async def aclose(self) -> None:
        await self.close_stream()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._http.aclose()

    def spawn(self, work: Coroutine[Any, Any, object]) -> None:
        """Do something beside the client's other work."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def drained(self) -> None:
        """Wait until what was spawned is done."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    # Prompts -------------------------------------------------------------------------------------

    async def prompt(self, facts: PromptFacts, *, risky: bool = True) -> Answer:
        expect = {"session_not_found", "run_not_found"}
        if facts.body.get("when_busy") == "reject":
            expect.add("session_busy")
        answer = await self.call("POST", "/agent", facts.body, expect=expect, risky=risky)
        unknown = answer.status == 404 and answer.code not in GONE
        # Also for a repeat of a run that was deleted with its session a moment ago.
        if unknown and not self.ledger.session_may_be_gone(facts.session_id):
            self.ledger.violate(f"{facts.text}: {answer.body}")
        if answer.status == 202:
            self._promised(facts, answer.body)
        return answer

    def _promised(self, facts: PromptFacts, body: Body) -> None:
        if facts.run_id and facts.run_id != body["run_id"]:
            self.ledger.violate(f"{facts.text} has become {body}")
        facts.run_id, facts.promised = body["run_id"], True
        self.ledger.counts["promised"] += 1
        self.ledger.check(invariants.a_promise_is_stored, facts.run_id)

    # Reading -------------------------------------------------------------------------------------

    async def read_messages(self, session_id: str) -> list[Body] | None:
        hub = self.ledger.hub_of(self.workspace_id)
        seen = {m["id"]: m for m in hub.of_session(session_id)}
        settled = dict(self.ledger.settled.get(session_id, {}))
        answer = await self.call("GET", f"/sessions/{session_id}/messages")
        if not answer.ok:
            return None
        listed: list[Body] = answer.body
        if self.ledger.session_may_be_gone(session_id):
            return listed
        gone = {message_id for message_id in seen if message_id not in hub.messages}
        self.ledger.check(invariants.a_list_shows_what_streams_saw, seen, listed, gone)
        self.ledger.check(invariants.what_was_settled_is_still_there, settled, listed)
        self.ledger.check(invariants.a_history_is_acceptable, listed, False)
        return listed

    async def read_runs(self, session_id: str = "") -> list[Body] | None:
        query = f"?session_id={session_id}" if session_id else ""
        ended = {r.run_id for r in self.ledger.runs.values() if r.completion is not None}
        answer = await self.call("GET", f"/runs{query}")
        if not answer.ok:
            return None
        infos: list[Body] = answer.body
        for info in infos:
            self._judge_run(info, info["run_id"] in ended)
        ids = [info["run_id"] for info in infos]
        if len(set(ids)) != len(ids):
            self.ledger.violate(f"a run is listed twice: {ids}")
        return infos

    async def read_run(self, run_id: str, wait: float = 0.0) -> Body | None:
        run = self.ledger.run(run_id)
        ended = run is not None and run.completion is not None
        query = f"?wait={wait}" if wait else ""
        expect = {"run_not_found"}
        answer = await self.call("GET", f"/runs/{run_id}{query}", expect=expect, timeout=60 + wait)
        if answer.code == "run_not_found":
            known = run is not None and run.durable
            if known and run is not None and not self.ledger.session_may_be_gone(run.session_id):
                self.ledger.violate(f"{run} was promised and is not found")
        if not answer.ok:
            return None
        self._judge_run(answer.body, ended)
        body: Body = answer.body
        return body

    def _judge_run(self, info: Body, ended: bool) -> None:
        self.ledger.check(invariants.a_run_is_described_as_it_is, info, ended)

    # Dialogs -------------------------------------------------------------------------------------

    def _on_event(self, kind: str, body: Body) -> None:
        if not self.answers_dialogs or self.rng.random() < 0.2:
            return
        if kind == "permission_request":
            self.spawn(self._decide(body))
        elif kind == "question_batch_request":
            self.spawn(self._reply(body))

    async def _decide(self, request: Body) -> None:
        await self.clock.sleep(self.rng.random() * self.rng.choice((0.01, 1.0, 5.0)))
        action = self.rng.choice(("allow", "allow", "allow_session", "deny"))
        by, hub = f"?client_id={self.id}", self.ledger.hub_of(self.workspace_id)
        if self.rng.random() < 0.5:
            body: Body = {"permission": request, "action": action}
            answer = await self.call("POST", f"/permissions/grant{by}", body)
        else:
            body = {"action": action, "reason": "because"}
            expect = {"request_not_found"}
            path = f"/permissions/{request['id']}{by}"
            answer = await self.call("POST", path, body, expect=expect)
        if answer.ok and answer.body["resolved"]:
            self.ledger.counts["decided"] += 1
            known = self.ledger.permissions.get(request["tool_call_id"])
            granted = known is not None and bool(known.granted)
            if granted != (action != "deny"):
                self.ledger.violate(f"{action} of {request} was resolved as {known}")
            if action == "allow_session":
                hub.granted.add(invariants.grant_key(request))

    async def _reply(self, batch: Body) -> None:
        await self.clock.sleep(self.rng.random() * self.rng.choice((0.01, 1.0, 5.0)))
        responses = [{"request_id": q["id"], "yes": True} for q in batch["questions"]]
        kind, by = self.rng.random(), f"?client_id={self.id}"
        body: Body
        expect = {"request_not_found"}
        if kind < 0.4:
            path, body = f"/questions/{batch['id']}{by}", {"responses": responses}
        elif kind < 0.6:
            path, body = f"/questions/{batch['id']}{by}", {"action": "cancel"}
        elif kind < 0.8:
            path, body = f"/questions/answer{by}", {"responses": responses}
        else:
            path, body = f"/questions/cancel{by}", {}
        await self.call("POST", path, body, expect=expect)

    # Sessions ------------------------------------------------------------------------------------

    async def new_session(self, title: str) -> SessionFacts | None:
        answer = await self.call("POST", "/sessions", {"title": title})
        if not answer.ok:
            return None
        facts = SessionFacts(answer.body["id"])
        self.ledger.sessions[facts.session_id] = facts
        return facts

    async def become_another(self) -> None:
        """Take a new id: the old one is retired."""
        await self.close_stream()
        self.stream = None
        self.id = str(uuid.uuid4())
