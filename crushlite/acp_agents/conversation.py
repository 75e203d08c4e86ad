"""A session of ours and the agent's session behind it.

What the agent's session is called is kept with ours, so that the conversation goes on after a
restart of the agent or of the daemon: it is resumed if the agent can do that, else loaded, without
what the agent repeats then. If neither works a new one begins, with the transcript as context. So
does the part of the transcript that another agent has answered meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from typing import TYPE_CHECKING, Any

from ..jsonrpc.errors import RpcError
from .content import object_of, text_of, transcript
from .failures import AgentFailed
from .process import SESSION_SECONDS
from .updates import CostMeter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..agent.base import Turn
    from ..protocol.messages import Message
    from .process import AgentProcess

log = logging.getLogger(__name__)

# The notes are in a database that may have come with a project: an id from there must not be a path
# or anything else that an agent could misread.
_SESSION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_:.=-]{0,199}")


class Conversation:
    """`session` is the agent's, once it is open in a process."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()  # one turn at a time, also if one was given up
        self.session = ""
        self.cost = CostMeter()
        self.cancel_due = False  # the agent was told to cancel a turn that ended by itself
        self._seen = ""  # the id of the last prompt that the agent has got
        self._process: AgentProcess | None = None  # in which the session is open
        self._known = False  # the notes were read

    async def open(self, process: AgentProcess, turn: Turn) -> str:
        """Open the agent's session, unless it is open. Returns what the agent does not know of the
        conversation, as context for the prompt. Raises AgentFailed."""
        if not self._known:
            self._read(await turn.recall(), process.command.digest)
            self._known = True
        history = await turn.history()
        if self._process is not process:
            self.cancel_due = False
            if not self.session or not await self._reopen(process, turn):
                self._seen, self.cost = "", CostMeter()
                self.session = await self._new(process, turn)
            self._process = process
            process.sessions.add(self.session)
        context = transcript(_unknown(history, self._seen))
        self._seen = _prompt_id(history) or self._seen
        await self.keep(process, turn)
        return context

    async def keep(self, process: AgentProcess, turn: Turn) -> None:
        """Keep the state with the session."""
        notes = {
            "command": process.command.digest,
            "session": self.session,
            "seen": self._seen,
            "cost": self.cost.last,
        }
        await turn.remember(json.dumps(notes))

    def _read(self, notes: str, command: str) -> None:
        """Take over what was kept. Another command may be another agent: then it counts no more."""
        try:
            kept: dict[str, Any] = object_of(json.loads(notes)) if notes else {}
        except (ValueError, RecursionError):
            kept = {}
        session = text_of(kept.get("session"))
        if kept.get("command") == command and _SESSION.fullmatch(session) and ".." not in session:
            self.session, self._seen = session, text_of(kept.get("seen"))
            self.cost.added({"amount": kept.get("cost"), "currency": "USD"})

    async def _reopen(self, process: AgentProcess, turn: Turn) -> bool:
        """Resume or load the session. False if the agent can do neither."""
        params = {"sessionId": self.session, "cwd": str(turn.path), "mcpServers": []}
        ways = []
        if process.offers_session("resume"):
            ways.append("session/resume")
        if process.offers.get("loadSession"):
            ways.append("session/load")
        with process.loading(self.session):
            for method in ways:
                try:
                    await process.ask(method, params, SESSION_SECONDS)
                except RpcError as error:
                    said = process.words_of(error)
                    log.info("%s cannot do %s: %s", process.command.name, method, said)
                else:
                    return True
        return False

    async def _new(self, process: AgentProcess, turn: Turn) -> str:
        params = {"cwd": str(turn.path), "mcpServers": []}
        name = process.command.name
        try:
            answer = object_of(await process.ask("session/new", params, SESSION_SECONDS))
        except RpcError as error:
            words = process.last_words()
            last = f". Its last words:\n{words}" if words else ""
            raise AgentFailed(f"{name} opens no session: {process.words_of(error)}{last}") from None
        session = text_of(answer.get("sessionId"))
        if not session:
            raise AgentFailed(f"{name} opens no session: its answer names none")
        return session


def _prompt_id(history: Sequence[Message]) -> str:
    """The id of the prompt of the turn that is under way."""
    return next((message.id for message in reversed(history) if message.role == "user"), "")


def _unknown(history: Sequence[Message], seen: str) -> list[Message]:
    """The messages before the prompt that the agent has no knowledge of: all, or those of the turns
    after the last prompt that it got."""
    end = max((at for at, each in enumerate(history) if each.role == "user"), default=0)
    begin = 0
    for at, message in enumerate(history[:end]):
        if seen and message.id == seen:
            later = (n for n in range(at + 1, end) if history[n].role == "user")
            begin = next(later, end)
    return list(history[begin:end])
