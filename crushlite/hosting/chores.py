"""Work beside the turns of prompts: writing a summary, titles, shell commands.

None of it is bound to the request that asked for it. A title is canceled only by teardown; a shell
command by a cancel of its session as well; a summary with the run it is part of, which is that of a
prompt or, if a client asked for one, a run of the kind `summarize`.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..commands import process
from ..errors import BadRequest, CrushliteError, ProviderFailed, SessionNotFound
from ..protocol.messages import FinishPart, Message, ShellCommandPart
from ..protocol.sessions import ShellAnswer
from ..runs import Outcome
from ..store import runs as run_rows, sessions as session_rows
from .turn import Failure, LiveTurn

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from ..agent.base import Agent
    from ..commands.process import Command
    from ..protocol.sessions import Session
    from ..store import Connection
    from .turn import Order, Services

log = logging.getLogger(__name__)

OUTPUT_CHARS = 100_000  # of a shell command, kept and shown
TITLE_CHARS = 200
PLAIN_TITLE_CHARS = 50  # of a prompt that titles its session itself
END_SECONDS = 3.0  # for what was killed or canceled to be gone, before it is left behind


async def write_summary(services: Services, order: Order, agent: Agent) -> None:
    """Let the agent summarize a session; from then on the summary stands for all before it.

    A summary that was canceled is removed again; one that failed stays, with its error, but counts
    for nothing.
    """
    turn = LiveTurn(services, order, agent.info().selected, _no_riders, is_summary=True)
    writing = asyncio.ensure_future(agent.summarize(turn))
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        turn.discard()  # now, not when the agent lets go: it may ignore its cancellation for ever
        writing.cancel()
        await _over(writing)
        raise
    except Exception as error:
        turn.close(Outcome.FAILED, Failure("The summary failed", str(error)))
        try:
            await _unbroken(_store_summary(services, turn, summary_id=""))
        except CrushliteError as unsaved:  # why it failed is what the caller is told
            log.error("a failed summary could not be stored: %s", unsaved)
            for live in turn.lives:  # it is, as soon as anything can be
                services.transcript.flush(live)
        raise
    if not turn.wrote:
        turn.discard()
        raise ProviderFailed("the model gave no summary")
    turn.close(Outcome.COMPLETED, None)
    # Streams have seen it end: it counts, also if a cancel comes while it is being stored.
    try:
        await _unbroken(_store_summary(services, turn, summary_id=turn.last.message.id))
    except CrushliteError:
        turn.discard()  # a summary that counts for nothing would only be in the way
        raise


async def _no_riders() -> list[Message]:
    return []


async def _unbroken(work: Coroutine[Any, Any, None]) -> None:
    """Do something to its end, also when the caller is cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await _over(task)
        raise


async def _over(task: asyncio.Future[None]) -> None:
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()  # the cancel is what the caller is told


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


@dataclass(eq=False, slots=True)
class _Shell:
    """A user's command from its request on: a kill finds it also while it is being started."""

    session_id: str
    command: Command | None = None
    killed: bool = False

    def kill(self) -> None:
        self.killed = True
        if self.command is not None:
            self.command.kill()


class Chores:
    """`admit` raises while nothing new may be done: what it did could not be put on record."""

    def __init__(self, services: Services, admit: Callable[[], None]) -> None:
        self._services = services
        self._admit = admit
        self._tasks: set[asyncio.Task[Any]] = set()
        self._asked: set[str] = set()  # sessions in which no later prompt can be the first
        self._shells: dict[_Shell, asyncio.Task[ShellAnswer]] = {}  # until they are on record

    @property
    def idle(self) -> bool:
        return not self._tasks and not self._shells

    # Titles --------------------------------------------------------------------------------------

    def title(self, agent: Agent, run_id: str, session_id: str, text: str) -> None:
        """Give a session a title after its first prompt, whatever becomes of that prompt."""
        if agent.titles and text.strip() and session_id not in self._asked:
            self._asked.add(session_id)
            self._spawn(self._title(agent, run_id, session_id, text))

    def forget(self, session_id: str) -> None:
        """The session is deleted, or was about to be: then the store is asked once more."""
        self._asked.discard(session_id)

    async def _title(self, agent: Agent, run_id: str, session_id: str, text: str) -> None:
        services, scope = self._services, self._services.scope
        try:
            if not await services.store.read(
                lambda conn: run_rows.is_first_prompt(conn, scope, session_id, run_id)
            ):
                return
            try:
                title = await agent.title(text)
                usage = title.usage
                counts = (usage.prompt_tokens, usage.completion_tokens, usage.cost)
                if usage.estimated:
                    counts = (0, 0, 0.0)
                session_rows.check_usage(*counts)
            except BaseException:  # no later prompt is the first one
                await self._title_plainly(session_id, text)
                raise
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

    async def _title_plainly(self, session_id: str, text: str) -> None:
        """The agent made no title, or a teardown did not wait for it: the prompt's own words are
        better than a placeholder for ever."""
        services, words = self._services, " ".join(text.split())[:PLAIN_TITLE_CHARS]
        now = services.clock.now()
        try:
            session = await services.store.submit(
                lambda conn: session_rows.set_title(
                    conn, services.scope, session_id, words, now, 0, 0, 0.0
                )
            )
        except CrushliteError as error:
            log.warning("session %s could not be titled: %s", session_id, error)
        else:
            if session is not None:
                services.hub.publish("updated", session)

    # Shell commands ------------------------------------------------------------------------------

    async def shell(self, session_id: str, command: str) -> ShellAnswer:
        """Run a user's command in the workspace; it is on record if its session exists."""
        if not command.strip() or "\0" in command:
            raise BadRequest("command must not be empty or contain NUL")
        self._admit()
        shell = _Shell(session_id)
        task = self._shells[shell] = self._spawn(self._shell(shell, command))
        task.add_done_callback(lambda _: self._shells.pop(shell))
        return await asyncio.shield(task)

    async def _shell(self, shell: _Shell, command: str) -> ShellAnswer:
        services = self._services
        watch = await services.changes.begin()
        try:
            started = shell.command = await process.start(
                command, cwd=services.path, env=services.env, clock=services.clock
            )
            if shell.killed:
                started.kill()
            try:
                end = await started.wait()
            except asyncio.CancelledError:
                started.kill()
                raise
            await services.changes.finish(watch, shell.session_id, run_id="")
        finally:
            services.changes.drop(watch)
        answer = ShellAnswer(started.output.text(OUTPUT_CHARS), end.code)
        await self._record(shell.session_id, command, answer)
        return answer

    async def _record(self, session_id: str, command: str, answer: ShellAnswer) -> None:
        services, now = self._services, int(self._services.clock.now())
        part = ShellCommandPart(command, answer.output, answer.exit_code)
        message = Message(
            str(uuid.uuid4()),
            "user",
            session_id,
            [part, FinishPart("stop")],
            created_at=now,
            updated_at=now,
        )
        try:
            await services.store.read(
                lambda conn: session_rows.get_session(conn, services.scope, session_id)
            )
            # Told in its place in the order, as every message; a session that is deleted after this
            # look takes it along. Writes are done in turn: after the next one it is on record.
            services.transcript.create(message)
            await services.store.submit(lambda conn: None)
        except SessionNotFound:
            return  # the command has had its effect; there is just nowhere to write it down
        except CrushliteError as error:
            log.error("a shell command may not be on record: %s", error)

    def kill_shells(self, session_id: str) -> None:
        for shell in self._shells:
            if shell.session_id == session_id:
                shell.kill()

    async def end_shells(self, session_id: str) -> None:
        """Kill them, and return when they are dead and on record."""
        self.kill_shells(session_id)
        await self._settled({s: t for s, t in self._shells.items() if s.session_id == session_id})

    async def _settled(self, shells: dict[_Shell, asyncio.Task[ShellAnswer]]) -> None:
        if shells:
            await asyncio.wait(shells.values(), timeout=END_SECONDS)

    # The end -------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Kill shell commands and let their records be written; titles are given up."""
        for shell in self._shells:
            shell.kill()
        await self._settled(self._shells)
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            _, left = await asyncio.wait(self._tasks, timeout=END_SECONDS)
            for task in left:  # an agent may ignore its cancellation; a teardown cannot wait
                log.error("left behind: %r", task)

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
