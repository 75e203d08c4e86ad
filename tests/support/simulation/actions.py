"""What simulated clients do, drawn one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.simulation import invariants
from tests.support.simulation.ledger import PromptFacts

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Coroutine
    from typing import Any

    from tests.support.simulation.client import SimulatedClient
    from tests.support.simulation.ledger import Body, Ledger, RunFacts

    Action = Callable[["SimulatedClient"], Coroutine[Any, Any, None]]

HOUR = 3600.0  # virtual seconds: longer than anything may take
WEIGHTS = {
    "prompt": 30,
    "repeat": 4,
    "cancel": 7,
    "cancel_run": 4,
    "clear": 3,
    "remove": 3,
    "look": 8,
    "wait_for_run": 4,
    "summarize": 3,
    "rename": 2,
    "new_session": 2,
    "delete_session": 1,
    "drop_stream": 5,
    "stall": 4,
    "retire": 1,
    "release": 1,
    "go_away": 1,
    "speak_of_person": 1,
    "skip_permissions": 1,
    "compact": 1,
    "health": 1,
    "rest": 10,
}


class Actions:
    """All clients draw from the same numbers, in the order in which the loop runs them."""

    def __init__(self, ledger: Ledger, rng: random.Random, path: str) -> None:
        self._ledger = ledger
        self._rng = rng
        self._path = path
        self._prompts = 0
        # Some worlds never see some actions: then others are reached more often.
        self._weights = {name: weight for name, weight in WEIGHTS.items() if rng.random() < 0.75}
        self._weights.setdefault("prompt", 30)

    async def play(self, client: SimulatedClient, count: int) -> None:
        """Do so many things, one after the other, some of them beside each other."""
        for _ in range(count):
            if not client.workspace_id or client.stream is None:
                await client.join(self._path)
                if not client.workspace_id:
                    return  # the daemon leaves
            name = self._rng.choices(list(self._weights), list(self._weights.values()))[0]
            self._ledger.counts[f"action {name}"] += 1
            action: Action = getattr(self, f"_{name}")
            if self._rng.random() < 0.3 and name in ("prompt", "cancel", "wait_for_run", "look"):
                client.spawn(action(client))
            else:
                await action(client)
            await self._pause(client)
            await self._return(client)

    async def _pause(self, client: SimulatedClient) -> None:
        kind = self._rng.random()
        if kind < 0.3:
            return
        longest = 0.02 if kind < 0.8 else 1.5
        await client.clock.sleep(0.0 if kind < 0.5 else self._rng.random() * longest)

    async def _return(self, client: SimulatedClient) -> None:
        """Come back to a workspace that was torn down, or to a stream that has ended."""
        stream = client.stream
        if stream is None or not stream.ended or self._rng.random() < 0.3:
            return
        if stream.status not in (200, 0) or not await client.open_stream(resume=True):
            await client.join(self._path)

    # Drawing -------------------------------------------------------------------------------------

    def _session(self) -> str:
        sessions, open_ = list(self._ledger.sessions.values()), self._ledger.open_sessions()
        chosen = open_ if open_ and self._rng.random() < 0.95 else sessions
        return self._rng.choice(chosen).session_id if chosen else "nowhere"

    def _a_run(self) -> RunFacts | None:
        known = [run for run in self._ledger.runs.values() if run.is_prompt]
        recent = known[-6:] if self._rng.random() < 0.9 else known
        return self._rng.choice(recent) if recent else None

    def _new_prompt(self) -> PromptFacts:
        rng = self._rng
        self._prompts += 1
        name = f"{self._ledger.life}.{self._prompts}"
        body: Body = {"session_id": self._session(), "prompt": f"prompt {name}"}
        if rng.random() < 0.5:
            body["run_id"] = f"run-{name}"
        mode = rng.choice(("", "", "steer", "steer", "queue", "interrupt", "reject"))
        if mode:
            body["when_busy"] = mode
        if rng.random() < 0.1:
            body["detach"] = True
        if rng.random() < 0.1:
            body["max_steps"] = rng.randrange(1, 3)
        if rng.random() < 0.05:
            body["max_cost"] = rng.random()
        if rng.random() < 0.1 and mode != "steer":
            body["auto_approve"] = True
        if rng.random() < 0.1:
            file = {"content": "AAAA", "file_name": "a.bin", "mime_type": "image/png"}
            body["attachments"] = [file]
        facts = PromptFacts(body["prompt"], body["session_id"], body, body.get("run_id", ""))
        self._ledger.prompts[facts.text] = facts
        return facts

    # Prompts -------------------------------------------------------------------------------------

    async def _prompt(self, client: SimulatedClient) -> None:
        facts = self._new_prompt()
        answer = await client.prompt(facts)
        if answer.status in (0, 503, 507) and facts.run_id and self._rng.random() < 0.7:
            # It may have been accepted or not: with its run_id it can be sent again.
            await self._pause(client)
            self._ledger.counts["sent again"] += 1
            await client.prompt(facts)

    async def _repeat(self, client: SimulatedClient) -> None:
        sent = [facts for facts in self._ledger.prompts.values() if "run_id" in facts.body]
        if not sent:
            return
        facts = self._rng.choice(sent)
        if self._rng.random() < 0.2 and facts.promised:
            other = {**facts.body, "prompt": "something else"}
            expect = ("run_id_reused", "session_not_found")
            answer = await client.call("POST", "/agent", other, expect=expect)
            if answer.ok and not self._ledger.session_may_be_gone(facts.session_id):
                self._ledger.violate(f"{facts.body['run_id']} was used for another prompt")
            return
        await client.prompt(facts)

    async def _cancel(self, client: SimulatedClient) -> None:
        wait = self._rng.choice(("", "", "?wait=0.5", "?wait=60"))
        path = f"/agent/sessions/{self._session()}/cancel{wait}"
        answer = await client.call("POST", path, timeout=130, risky=not wait)
        if answer.ok and wait == "?wait=60":
            receipt = [entry["run_id"] for entry in answer.body["canceled"]]
            self._ledger.check(invariants.a_cancel_that_waits_sees_the_endings, receipt)

    async def _cancel_run(self, client: SimulatedClient) -> None:
        run = self._a_run()
        if run is not None:
            path = f"/runs/{run.run_id}/cancel{self._rng.choice(('', '?wait=60'))}"
            expect = ("run_not_found", "not_queued")
            await client.call("POST", path, expect=expect, timeout=130)

    async def _clear(self, client: SimulatedClient) -> None:
        await client.call("POST", f"/agent/sessions/{self._session()}/prompts/clear")

    async def _remove(self, client: SimulatedClient) -> None:
        run = self._a_run()
        if run is not None:
            path = f"/agent/sessions/{run.session_id}/prompts/{run.run_id}"
            await client.call("DELETE", path, expect=("run_not_found", "not_queued"))

    async def _summarize(self, client: SimulatedClient) -> None:
        path = f"/agent/sessions/{self._session()}/summarize"
        expect = ("session_not_found", "session_busy", "provider_failed")
        client.spawn(client.call("POST", path, expect=expect, timeout=HOUR))

    # Reading -------------------------------------------------------------------------------------

    async def _look(self, client: SimulatedClient) -> None:
        kind, session_id = self._rng.random(), self._session()
        if kind < 0.4:
            await client.read_messages(session_id)
        elif kind < 0.7:
            await client.read_runs(self._rng.choice(("", session_id)))
        else:
            queue = f"/agent/sessions/{session_id}/prompts"
            paths = ("/sessions", queue, "/permissions", "/questions", "/agent")
            await client.call("GET", self._rng.choice(paths))

    async def _wait_for_run(self, client: SimulatedClient) -> None:
        run = self._a_run()
        if run is not None:
            await client.read_run(run.run_id, self._rng.choice((0.0, 0.2, 10.0)))

    async def _health(self, client: SimulatedClient) -> None:
        await client.request("GET", "/v1/health")

    async def _rest(self, client: SimulatedClient) -> None:
        await client.clock.sleep(self._rng.random() * self._rng.choice((0.1, 2.0, 20.0)))

    # Sessions and settings -----------------------------------------------------------------------

    async def _new_session(self, client: SimulatedClient) -> None:
        if len(self._ledger.open_sessions()) < 3:
            await client.new_session("new")

    async def _rename(self, client: SimulatedClient) -> None:
        body = {"title": f"title {self._rng.randrange(100)}"}
        expect = ("session_not_found",)
        await client.call("PUT", f"/sessions/{self._session()}", body, expect=expect)

    async def _delete_session(self, client: SimulatedClient) -> None:
        facts = self._ledger.sessions.get(self._session())
        if facts is not None:
            facts.may_be_gone = True
            self._ledger.settled.pop(facts.session_id, None)
            path, expect = f"/sessions/{facts.session_id}", ("session_not_found",)
            answer = await client.call("DELETE", path, expect=expect, timeout=90)
            facts.gone = facts.gone or answer.ok

    async def _speak_of_person(self, client: SimulatedClient) -> None:
        body = {"interactive": self._rng.random() < 0.5}
        await client.call("POST", f"/agent/init?client_id={client.id}", body)

    async def _skip_permissions(self, client: SimulatedClient) -> None:
        await client.call("POST", "/permissions/skip", {"skip": self._rng.random() < 0.5})

    async def _compact(self, client: SimulatedClient) -> None:
        await client.call("POST", "/compact", expect=("session_busy",))

    # Streams and claims --------------------------------------------------------------------------

    async def _drop_stream(self, client: SimulatedClient) -> None:
        link = client.stream.link if client.stream is not None else None
        how = self._rng.choice(("reset", "half-close", "close"))
        self._ledger.counts[f"stream {how}"] += 1
        if how == "reset" and link is not None:
            link.reset()
        elif how == "half-close" and link is not None:
            link.half_close()
        else:
            await client.close_stream()
        await client.clock.sleep(self._rng.choice((0.0, 0.05, 3.0)))
        if not await client.open_stream(resume=self._rng.random() < 0.8):
            await client.join(self._path)

    async def _stall(self, client: SimulatedClient) -> None:
        """Stop reading for a while; longer than the daemon allows, now and then."""
        link = client.stream.link if client.stream is not None else None
        if link is None:
            return
        link.stop_reading()
        for _ in range(self._rng.randrange(4)):
            await client.clock.sleep(self._rng.random())
            link.read(self._rng.randrange(1, 2000))
        await client.clock.sleep(self._rng.choice((0.1, 2.0, 40.0)))
        link.read()

    async def _retire(self, client: SimulatedClient) -> None:
        self._ledger.retired.add(client.id)
        await client.request("DELETE", f"/v1/clients/{client.id}")
        await client.clock.sleep(self._rng.choice((0.0, 1.0, 15.0)))
        await client.become_another()
        await client.join(self._path)

    async def _release(self, client: SimulatedClient) -> None:
        await client.call("DELETE", f"?client_id={client.id}")
        await self._go_away(client)

    async def _go_away(self, client: SimulatedClient) -> None:
        """Vanish without a word, perhaps for longer than any grace."""
        await client.close_stream()
        await client.clock.sleep(self._rng.choice((0.5, 12.0, 70.0)))
        if self._rng.random() < 0.5 or not await client.open_stream(resume=True):
            await client.join(self._path)
