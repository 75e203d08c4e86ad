"""Sub-agents: an agent hands a part of its work to another one, which gets a session of its own.

The session is a child of the agent's session, and its id is `<assistant message>$$<tool call>`: a
client that shows the call finds the messages below it. It has no run: it lives inside the run of
its parent, and has ended, with all its records, before the parent's ending is written. After a kill
of the daemon in between, the recovery of the parent's run ends it.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import hashlib
import logging
import uuid
from collections import deque
from typing import TYPE_CHECKING, Any

from ..agent.base import Delegated
from ..errors import CrushliteError
from ..protocol.ids import ID_LENGTH
from ..protocol.messages import FinishPart, Message, TextPart
from ..protocol.runs import RunComplete
from ..protocol.sessions import Session
from ..runs import Outcome
from ..store import sessions as session_rows
from .blocking import run_blocking
from .prompts import CHILD_MARK, Failure, explain
from .summaries import no_riders, write_summary
from .tasks import run_to_the_end
from .turn import LiveTurn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..agent.base import Agent
    from ..store import Connection
    from .prompts import TurnRequest
    from .services import Services

log = logging.getLogger(__name__)

TITLE_CHARS = 50
SHOWN_CALLS = 20  # the last ones, while the sub-agent works
SHOWN_CHARS = 200  # of the input of each


class ChildTurn(LiveTurn):
    """The turn of a sub-agent. Its tool calls are shown as the output of the parent's call."""

    def __init__(
        self,
        services: Services,
        request: TurnRequest,
        agent: Agent,
        parent: LiveTurn,
        call_id: str,
    ) -> None:
        async def summarize() -> None:
            if agent.summarizes:
                await write_summary(services, request, agent, parent)

        selected = agent.info().selected
        super().__init__(services, request, selected, no_riders, summarize, parent=parent)
        self._parent = parent
        self._call_id = call_id
        self._shown: deque[str] = deque(maxlen=SHOWN_CALLS)
        self._ending: asyncio.Task[None] | None = None

    async def tool_call(
        self,
        name: str,
        input: str | Mapping[str, Any],
        id: str | None = None,
        finished: bool = True,
    ) -> str:
        call_id = await super().tool_call(name, input, id, finished)
        if finished:
            self._shown.append(f"{name} {input if isinstance(input, str) else ''}"[:SHOWN_CHARS])
            self._parent.progress(self._call_id, "\n".join(self._shown))
        return call_id

    def end(self, outcome: Outcome, failure: Failure | None = None) -> asyncio.Task[None]:
        """Begin the ending, unless it has begun. The task is done when it is stored and out, and
        does not fail."""
        self.fence()
        if self._ending is None:
            self._ending = asyncio.create_task(self._end(outcome, failure))
        return self._ending

    async def _end(self, outcome: Outcome, failure: Failure | None) -> None:
        services, session_id = self._services, self.session_id
        await self.end_commands()
        self.close(outcome, failure)
        save = services.transcript.saving(self.messages)

        def store(conn: Connection, scope: str) -> Session:
            session_rows.require_session(conn, scope, session_id)
            save(conn)
            return session_rows.get_session(conn, scope, session_id)

        try:
            session = await services.store.write(store)
        except CrushliteError as error:
            log.warning("session %s: its ending could not be written: %s", session_id, error)
            for message in self.messages:  # it is, as soon as anything can be
                services.transcript.flush(message)
        else:
            services.transcript.saved(self.messages)
            services.hub.publish("updated", session)
        last = self.last.message
        services.hub.publish(
            "updated",
            RunComplete(
                session_id,
                last.id,
                text=last.text,
                error=failure.detail if failure is not None else "",
                cancelled=outcome is Outcome.CANCELED,
            ),
        )


async def run_child(
    services: Services,
    request: TurnRequest,
    parent: LiveTurn,
    call_id: str,
    prompt: str,
    agent: Agent,
    title: str,
) -> Delegated:
    """Let an agent answer a prompt in a child session; see `Turn.delegate`. `request` is that of
    the parent."""
    now = int(services.clock.now())
    session = Session(
        id=_child_id(parent.last.message.id, call_id),
        parent_session_id=parent.session_id,
        title=" ".join((title or prompt).split())[:TITLE_CHARS],
        created_at=now,
        updated_at=now,
    )
    request = dataclasses.replace(
        request,
        session_id=session.id,
        prompt=prompt,
        attachments=(),
        reasoning_effort="",  # those were chosen for the parent's model
        think=None,
    )
    child = ChildTurn(services, request, agent, parent, call_id)
    await services.store.write(session_rows.insert_session, session)
    parent.add_child(child)
    services.hub.publish("created", copy.copy(session))
    parts = [TextPart(prompt), FinishPart("stop")]
    asked = Message(str(uuid.uuid4()), "user", session.id, [*parts], created_at=now, updated_at=now)
    child.adopt(services.transcript.create(asked))
    outcome, failure = Outcome.FAILED, None
    try:
        await (agent.run(child) if agent.is_async else run_blocking(agent.run, child))
        outcome = Outcome.COMPLETED
    except asyncio.CancelledError:
        outcome = Outcome.CANCELED
        raise
    except Exception as error:
        failure = explain(error, child.run_id)
        raise
    finally:
        await run_to_the_end(child.end(outcome, failure))
        parent.children.discard(child)
    return Delegated(child.last.message.text, child.denied)


def _child_id(message_id: str, call_id: str) -> str:
    """The id of the session of a call. A call's id is made by a model server: one that cannot be in
    a URL is replaced by its digest."""
    if "\0" in call_id or len(message_id) + len(call_id) > ID_LENGTH - len(CHILD_MARK):
        call_id = hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:32]
    return f"{message_id}{CHILD_MARK}{call_id}"
