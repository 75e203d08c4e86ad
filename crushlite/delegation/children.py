"""The turns of sub-agents.

An agent hands a part of its work to a sub-agent, which gets a session of its own: a child of the
agent's session, with the id `<assistant message>$$<tool call>`, so that a client that shows the
call finds the messages below it. It has no run: it lives inside the run of its parent, whose
ending waits until it has ended, with all its records, but at most some seconds. After a kill of the
daemon in between, the recovery of the parent's run ends it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import hashlib
from collections import deque
from typing import TYPE_CHECKING

from ..agent.base import Delegated
from ..hosting.agents import run_agent
from ..hosting.prompts import CHILD_MARK, explain
from ..hosting.tasks import run_to_the_end
from ..hosting.transcript import new_message
from ..hosting.turn import LiveTurn
from ..protocol.messages import FinishPart, TextPart
from ..protocol.runs import RunComplete
from ..protocol.sessions import ID_LENGTH
from ..runs import Outcome
from .storing import store_or_flush

if TYPE_CHECKING:
    from ..agent.base import Agent
    from ..hosting.prompts import Failure
    from ..protocol.messages import Prompt, ToolCallPart

TITLE_CHARS = 50
SHOWN_CALLS = 20  # the last ones, while the sub-agent works
SHOWN_CHARS = 200  # of the input of each


class ChildTurn(LiveTurn):
    """The turn of a sub-agent. Its tool calls are shown as the output of the parent's call."""

    def __init__(self, parent: LiveTurn, call_id: str, request: Prompt, agent: Agent) -> None:
        super().__init__(parent.workspace, request, agent, parent=parent)
        self._show = functools.partial(parent.progress, call_id)
        self._shown: deque[str] = deque(maxlen=SHOWN_CALLS)
        self._ending: asyncio.Task[None] | None = None

    def _called(self, call: ToolCallPart) -> None:
        self._shown.append(f"{call.name} {call.input}"[:SHOWN_CHARS])
        self._show("\n".join(self._shown))

    def end(self, outcome: Outcome, failure: Failure | None = None) -> asyncio.Task[None]:
        """Begin the ending, unless it has begun. The task is done when it is stored and out, and
        does not fail."""
        self.fence()
        if self._ending is None:
            self._ending = asyncio.create_task(self._end(outcome, failure))
        return self._ending

    async def _end(self, outcome: Outcome, failure: Failure | None) -> None:
        await self.end_commands()
        self.close(outcome, failure)
        await store_or_flush(self)
        last = self.last.message
        self.workspace.hub.publish(
            "updated",
            RunComplete(
                self.session_id,
                last.id,
                text=last.text,
                error=failure.detail if failure is not None else "",
                cancelled=outcome is Outcome.CANCELED,
            ),
        )


async def run_child(
    parent: LiveTurn, call_id: str, prompt: str, agent: Agent, title: str
) -> Delegated:
    """Let an agent answer a prompt in a child session; see `Turn.delegate`."""
    workspace = parent.workspace
    session_id = _child_id(parent.last.message.id, call_id)
    title = " ".join((title or prompt).split())[:TITLE_CHARS]
    request = dataclasses.replace(
        parent.request,
        session_id=session_id,
        prompt=prompt,
        attachments=[],
        reasoning_effort="",  # those were chosen for the parent's model
        think=None,
    )
    child = ChildTurn(parent, call_id, request, agent)
    session = await workspace.insert_session(session_id, title, parent.session_id)
    # Raises TurnOver if the turn has ended meanwhile: then nothing is published.
    parent.add_child(child.end)
    workspace.hub.publish("created", session)
    parts = (TextPart(prompt), FinishPart("stop"))
    asked = new_message("user", session_id, parts, workspace.clock.now())
    child.messages.append(workspace.transcript.create(asked))
    outcome, failure = Outcome.FAILED, None
    try:
        await run_agent(child)
        outcome = Outcome.COMPLETED
    except asyncio.CancelledError:
        outcome = Outcome.CANCELED
        raise
    except Exception as error:
        failure = explain(error, child.run_id)
        raise
    finally:
        await run_to_the_end(child.end(outcome, failure))
        parent.children.discard(child.end)
    return Delegated(child.last.message.text, child.denied)


def _child_id(message_id: str, call_id: str) -> str:
    """The id of the session of a call. A call's id is made by a model server: one that cannot be in
    a URL is replaced by its digest."""
    if "\0" in call_id or len(message_id) + len(call_id) > ID_LENGTH - len(CHILD_MARK):
        call_id = hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:32]
    return f"{message_id}{CHILD_MARK}{call_id}"
