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
        self.clock = clock
        self.workspace_id = ""
        self.stream: StreamReader | None = None
        self._network = network
        self._rng = rng
        self._tagged = rng.random() < 0.6  # its streams have ids
        self._answers_dialogs = rng.random() < 0.8
        self._http = HTTPClient(LinkConnector(network), host_header=HOST, clock=clock)
        self._tasks: set[asyncio.Task[object]] = set()

    # Requests ------------------------------------------------------------------------------------

    async def call(self, method: str, path: str, body: Any = None, **options: Any) -> Answer:
        """A request below the workspace."""
        target = f"/v1/workspaces/{self.workspace_id}{path}"
        return await self.request(method, target, body, **options)

    async def request(
        self,
        method: str,
        target: str,
        body: Any = None,
        *,
        expect: tuple[str, ...] = (),
        timeout: float = 60.0,
        risky: bool = False,
    ) -> Answer:
        """Send a request and judge its answer. `expect` are the codes of refusals that are in order
        besides those that anything may get. `risky` lets the connection break at a drawn time."""
        what = f"{method} {target}"
        self._trace(f"> {what} {json.dumps(body, sort_keys=True) if body else ''}")
        content = json.dumps(body).encode() if body is not None else b""
        breaks = risky and self._rng.random() < 0.12
        try:
            send = self._send_broken if breaks else self._http.request
            response = await send(method, target, body=content, timeout=timeout)
        except ResponseTimeout:
            self.ledger.violate(f"{what} was not answered within {timeout} s")
            return Answer()
        except ClientError as error:
            self._trace(f"< {what}: {type(error).__name__}")
            if not (breaks or self.ledger.stopping or isinstance(error, ConnectFailed)):
                self.ledger.violate(f"{what}: {error!r}")
            return Answer()
        text = response.body.decode().strip()
        answer = Answer(response.status, json.loads(text) if text else None)
        self._trace(f"< {what} {answer.status} {text}")
        self._judge(what, answer, expect)
        return answer

    async def _send_broken(self, *args: Any, **options: Any) -> Any:
        """Send a request whose connection is reset, half-closed or left at a drawn time."""
        connector = LinkConnector(self._network)
        http = HTTPClient(connector, host_header=HOST, clock=self.clock)
        sending = asyncio.ensure_future(http.request(*args, **options))
        how = self._rng.choice(("reset", "half-close", "leave"))
        self._trace(f"! {how}")
        self.ledger.counts[f"request {how}"] += 1
        try:
            await self.clock.sleep(self._rng.choice((0.0, 0.001, 0.01, 0.1)))
            for _ in range(self._rng.randrange(6)):
                await asyncio.sleep(0)
            link = connector.link
            if link is not None and how == "reset":
                link.reset()
            elif link is not None and how == "half-close":
                link.half_close()
            elif how == "leave":
                await http.aclose()
            return await sending
        finally:
            sending.cancel()
            await http.aclose()

    def _judge(self, what: str, answer: Answer, expect: tuple[str, ...]) -> None:
        code, ledger = answer.code, self.ledger
        if answer.ok or code in expect or code in GONE:
            return
        if code == "shutting_down" and ledger.stopping:
            return
        if code in STORE and ledger.troubled():
            ledger.counts[f"refused {code}"] += 1
            return
        ledger.violate(f"{what} was answered {answer.status} {answer.body}")

    def _trace(self, text: str) -> None:
        self.ledger.trace.add(f"{self.name} {text}")

    def spawn(self, work: Coroutine[Any, Any, object]) -> None:
        """Do something beside the client's other work."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def acts(self) -> bool:
        """Whether something that was spawned is still under way."""
        return bool(self._tasks)

    async def aclose(self) -> None:
        await self.close_stream()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._http.aclose()

    # The workspace and its events ----------------------------------------------------------------

    async def join(self, path: str) -> bool:
        """Create or join the workspace, and open a stream; returns whether there is a workspace."""
        body = {"path": path, "client_id": self.id}
        answer = await self.request("POST", "/v1/workspaces", body)
        if answer.ok:
            self.workspace_id = answer.body["id"]
            await self.open_stream()
        return answer.ok

    async def open_stream(self, *, resume: bool = False) -> bool:
        """Open an event stream; with `resume`, behind the last event of the one before."""
        before = self.stream
        await self.close_stream()
        self.stream = stream = StreamReader(
            self.ledger,
            self._network,
            self.clock,
            client_id=self.id,
            name=self.name,
            tagged=self._tagged,
            on_event=self._on_event,
        )
        last_id = before.last_id if before is not None and self._tagged and resume else None
        position = before.position if before is not None else None
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

    async def become_another(self) -> None:
        """Take a new id: the old one is retired."""
        await self.close_stream()
        self.stream = None
        self.id = str(uuid.uuid4())

    # Prompts and sessions ------------------------------------------------------------------------

    async def prompt(self, facts: PromptFacts) -> Answer:
        expect: tuple[str, ...] = ("session_not_found", "run_not_found")
        if facts.body.get("when_busy") == "reject":
            expect += ("session_busy",)
        answer = await self.call("POST", "/agent", facts.body, expect=expect, risky=True)
        unknown = answer.status == 404 and answer.code not in GONE
        # Also for a repeat of a run that was deleted with its session a moment ago.
        if unknown and not self.ledger.session_may_be_gone(facts.session_id):
            self.ledger.violate(f"{facts.text}: {answer.body}")
        if answer.status == 202:
            run_id = answer.body["run_id"]
            if facts.run_id not in ("", run_id):
                self.ledger.violate(f"{facts.text} has become {answer.body}")
            facts.run_id, facts.promised = run_id, True
            self.ledger.counts["promised"] += 1
            self.ledger.check(invariants.a_promise_is_stored, run_id)
        return answer

    async def new_session(self, title: str) -> None:
        answer = await self.call("POST", "/sessions", {"title": title})
        if answer.ok:
            self.ledger.sessions[answer.body["id"]] = SessionFacts(answer.body["id"])

    # Reading -------------------------------------------------------------------------------------

    async def read_messages(self, session_id: str) -> list[Body] | None:
        ledger, hub = self.ledger, self.ledger.hub_of(self.workspace_id)
        seen = {m["id"]: m for m in hub.of_session(session_id)}
        settled = dict(ledger.settled.get(session_id, {}))
        answer = await self.call("GET", f"/sessions/{session_id}/messages")
        if not answer.ok:
            return None
        listed: list[Body] = answer.body
        if not ledger.session_may_be_gone(session_id):
            ledger.check(invariants.a_list_shows_what_streams_saw, seen, hub.messages, listed)
            ledger.check(invariants.what_was_settled_is_still_there, settled, listed)
            ledger.check(invariants.a_history_is_acceptable, listed, False)
        return listed

    async def read_runs(self, session_id: str = "") -> list[Body] | None:
        query = f"?session_id={session_id}" if session_id else ""
        ended = {r.run_id for r in self.ledger.runs.values() if r.completion is not None}
        answer = await self.call("GET", f"/runs{query}")
        if not answer.ok:
            return None
        infos: list[Body] = answer.body
        for info in infos:
            before = info["run_id"] in ended
            self.ledger.check(invariants.a_run_is_described_as_it_is, info, before)
        ids = [info["run_id"] for info in infos]
        if len(set(ids)) != len(ids):
            self.ledger.violate(f"a run is listed twice: {ids}")
        return infos

    async def read_run(self, run_id: str, wait: float) -> None:
        run = self.ledger.run(run_id)
        ended = run is not None and run.completion is not None
        path = f"/runs/{run_id}" + (f"?wait={wait}" if wait else "")
        answer = await self.call("GET", path, expect=("run_not_found",), timeout=60 + wait)
        if answer.ok:
            self.ledger.check(invariants.a_run_is_described_as_it_is, answer.body, ended)
        elif answer.code == "run_not_found":
            self.ledger.check(invariants.only_what_was_not_promised_is_unknown, run)

    # Dialogs -------------------------------------------------------------------------------------

    def _on_event(self, kind: str, body: Body) -> None:
        if not self._answers_dialogs or self._rng.random() < 0.2:
            return
        if kind == "permission_request":
            self.spawn(self._decide(body))
        elif kind == "question_batch_request":
            self.spawn(self._reply(body))

    async def _decide(self, request: Body) -> None:
        ledger, rng = self.ledger, self._rng
        await self.clock.sleep(rng.random() * rng.choice((0.01, 1.0, 5.0)))
        action = rng.choice(("allow", "allow", "allow_session", "deny"))
        hub = ledger.hub_of(self.workspace_id)
        body: Body = {"action": action, "reason": "because"}
        path = f"/permissions/{request['id']}"
        if rng.random() < 0.5:
            path, body = "/permissions/grant", {"permission": request, "action": action}
        path += f"?client_id={self.id}"
        answer = await self.call("POST", path, body, expect=("request_not_found",))
        if answer.ok and answer.body["resolved"]:
            ledger.counts["decided"] += 1
            known = ledger.permissions.get(request["tool_call_id"])
            if known is None or bool(known.granted) != (action != "deny"):
                ledger.violate(f"{action} of {request} was resolved as {known}")
            if action == "allow_session":
                hub.granted.add(invariants.grant_key(request))

    async def _reply(self, batch: Body) -> None:
        rng = self._rng
        await self.clock.sleep(rng.random() * rng.choice((0.01, 1.0, 5.0)))
        responses = [{"request_id": q["id"], "yes": True} for q in batch["questions"]]
        choices: tuple[tuple[str, Body], ...] = (
            (str(batch["id"]), {"responses": responses}),
            (str(batch["id"]), {"responses": responses}),
            (str(batch["id"]), {"action": "cancel"}),
            ("answer", {"responses": responses}),
            ("cancel", {}),
        )
        name, body = choices[int(rng.random() * 5)]
        path = f"/questions/{name}?client_id={self.id}"
        await self.call("POST", path, body, expect=("request_not_found",))
