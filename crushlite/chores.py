"""Work that belongs to a workspace and is no run of its own: summaries, titles, shell commands.

None of it is bound to the request that asked for it. A title is canceled only by teardown; a shell
command by a cancel of its session as well; a summary with the run it is part of.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import TYPE_CHECKING, Any

from crushlite import process
from crushlite.errors import BadRequest, CrushliteError, ProviderFailed, SessionNotFound
from crushlite.protocol.messages import FinishPart, Message, ShellCommandPart
from crushlite.protocol.sessions import ShellAnswer
from crushlite.runs import Outcome
from crushlite.store import runs as run_rows, sessions as session_rows
from crushlite.turn import Failure, LiveTurn

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from crushlite.agent.base import Agent
    from crushlite.process import Command
    from crushlite.protocol.sessions import Session
    from crushlite.store import Connection
    from crushlite.turn import Order, Services

__all__ = ["Chores", "write_summary"]

log = logging.getLogger(__name__)

OUTPUT_CHARS = 100_000  # of a shell command, kept and shown
TITLE_CHARS = 200


async def write_summary(services: Services, order: Order, agent: Agent) -> None:
    """Let the agent summarize a session; from then on the summary stands for all before it.

    A summary that was canceled is removed again; one that failed stays, with its error, but counts
    for nothing.
    """
    turn = LiveTurn(services, order, agent.info().selected, _no_riders, is_summary=True)
    try:
        await agent.summarize(turn)
    except asyncio.CancelledError:
        turn.discard()
        raise
    except Exception as error:
        turn.close(Outcome.FAILED, Failure("The summary failed", str(error)))
        await _store_summary(services, turn, summary_id="")
        raise
    if not turn.wrote:
        turn.discard()
        raise ProviderFailed("the model gave no summary")
    turn.close(Outcome.COMPLETED, None)
    await _store_summary(services, turn, summary_id=turn.last.message.id)


async def _no_riders() -> list[Message]:
    return []


async def _store_summary(services: Services, turn: LiveTurn, *, summary_id: str) -> None:
    save, scope, now = services.transcript.unsaved(turn.lives), services.scope, services.clock.now()
    tokens = turn.spent.completion_tokens

    def work(conn: Connection) -> Session:
        save(conn)
        if summary_id:
            sid = turn.session_id
            return session_rows.set_summary(conn, scope, sid, summary_id, tokens, now)
        return session_rows.get_session(conn, scope, turn.session_id)

    session = await services.store.submit(work, promise=True)
    services.transcript.saved(turn.lives)
    services.hub.publish("updated", session)


class Chores:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._tasks: set[asyncio.Task[Any]] = set()
        self._shells: dict[Command, str] = {}  # running ones, and their sessions

    # Titles --------------------------------------------------------------------------------------

    def title(self, agent: Agent, run_id: str, session_id: str, text: str) -> None:
        """Give a session a title after its first prompt, whatever becomes of that prompt."""
        if agent.titles and text.strip():
            self._spawn(self._title(agent, run_id, session_id, text))

    async def _title(self, agent: Agent, run_id: str, session_id: str, text: str) -> None:
        services, scope = self._services, self._services.scope
        try:
            if not await services.store.read(
                lambda conn: run_rows.is_first_prompt(conn, scope, session_id, run_id)
            ):
                return
            title = await agent.title(text)
            usage = title.usage
            counts = (usage.prompt_tokens, usage.completion_tokens, usage.cost)
            if usage.estimated:
                counts = (0, 0, 0.0)
            now = services.clock.now()
            session = await services.store.submit(
                lambda conn: session_rows.set_title(
                    conn, scope, session_id, title.text[:TITLE_CHARS], now, *counts
                )
            )
            if session is not None:
                services.hub.publish("updated", session)
        except CrushliteError as error:
            log.warning("session %s could not be titled: %s", session_id, error)
        except Exception:
            log.exception("session %s could not be titled", session_id)

    # Shell commands ------------------------------------------------------------------------------

    async def shell(self, session_id: str, command: str) -> ShellAnswer:
        """Run a user's command in the workspace; it is on record if its session exists."""
        if not command.strip() or "\0" in command:
            raise BadRequest("command must not be empty or contain NUL")
        return await asyncio.shield(self._spawn(self._shell(session_id, command)))

    async def _shell(self, session_id: str, command: str) -> ShellAnswer:
        services = self._services
        started = await process.start(
            command, cwd=services.path, env=services.env, clock=services.clock
        )
        self._shells[started] = session_id
        try:
            end = await started.wait()
        except asyncio.CancelledError:
            started.kill()
            raise
        finally:
            del self._shells[started]
        answer = ShellAnswer(started.output.text(OUTPUT_CHARS), end.code)
        await self._record(session_id, command, answer)
        return answer

    async def _record(self, session_id: str, command: str, answer: ShellAnswer) -> None:
        services, now = self._services, int(self._services.clock.now())
        try:
            await services.store.read(
                lambda conn: session_rows.get_session(conn, services.scope, session_id)
            )
        except SessionNotFound:
            return  # the command has had its effect; there is just nowhere to write it down
        part = ShellCommandPart(command, answer.output, answer.exit_code)
        services.transcript.create(
            Message(
                str(uuid.uuid4()),
                "user",
                session_id,
                [part, FinishPart("stop")],
                created_at=now,
                updated_at=now,
            )
        )

    def kill_shells(self, session_id: str) -> None:
        for command, owner in self._shells.items():
            if owner == session_id:
                command.kill()

    # The end -------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Kill shell commands and let their records be written; titles are given up."""
        for command in self._shells:
            command.kill()
        if self._shells:
            await asyncio.wait([command.done for command in self._shells], timeout=3.0)
        await asyncio.sleep(0)
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
