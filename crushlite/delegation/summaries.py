"""Summaries of sessions, each written by its agent in a turn that was made for it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ..errors import CrushliteError, ProviderFailed
from ..hosting.prompts import Failure, RunLimits, words
from ..hosting.tasks import run_to_the_end
from ..hosting.turn import LiveTurn
from ..runs import Outcome
from .storing import store, store_or_flush

if TYPE_CHECKING:
    from ..agent.base import Agent
    from ..hosting.workspace_base import WorkspaceBase
    from ..protocol.messages import Prompt


class SummaryTurn(LiveTurn):
    """The turn of a summary."""

    is_summary = True

    def __init__(
        self, workspace: WorkspaceBase, request: Prompt, agent: Agent, parent: LiveTurn | None
    ) -> None:
        super().__init__(workspace, request, agent, parent=parent)
        self._counting = RunLimits(request)  # its steps do not count for the run

    async def summarize(self) -> None:
        """Do nothing: a summary is not summarized."""
        self._check()

    def discard(self) -> None:
        """Remove a summary that was not finished: half a summary is worse than none."""
        self.fence()
        if self._step is not None:
            self.workspace.transcript.delete(self._step)


async def write_summary(
    workspace: WorkspaceBase, request: Prompt, agent: Agent, within: LiveTurn | None
) -> None:
    """Let the agent summarize a session, on its own or within a turn. A summary that was canceled
    is removed again; one that failed stays, with its error, but counts for nothing."""
    turn = SummaryTurn(workspace, request, agent, within.parent if within is not None else None)
    writing = asyncio.ensure_future(agent.summarize(turn))

    def cancel() -> None:
        turn.discard()  # now, not when the agent lets go: it may ignore its cancellation for ever
        writing.cancel()

    try:
        await run_to_the_end(writing, cancel)
    except Exception as error:
        turn.close(Outcome.FAILED, Failure("The summary failed", words(error)))
        await run_to_the_end(store_or_flush(turn))
        raise
    if not turn.said:
        turn.discard()
        raise ProviderFailed("the model gave no summary")
    turn.close(Outcome.COMPLETED, None)
    # Streams have seen it end: it counts, also if a cancel comes while it is being stored.
    try:
        await run_to_the_end(store(turn, summary_id=turn.last.message.id))
    except CrushliteError:
        turn.discard()  # a summary that counts for nothing would only be in the way
        raise
    used = turn.limits
    if within is not None and used is not within.limits:  # what it has used counts for that run
        within.limits.count(used.cost, used.prompt_tokens, used.completion_tokens)
