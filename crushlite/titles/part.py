"""With an agent that can make titles, a session gets one after its first prompt, whatever
becomes of that prompt. It replaces the one that the session was made with, unless it is only the
first words of the prompt.

The title is made beside the turn, by the agent if it may see the prompt. Only the teardown of
the workspace cancels it; then, or if the agent fails, the first words of the prompt are the title.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ..agent.base import Title
from ..errors import CrushliteError
from ..hosting.tasks import OwnedTasks
from ..store import sessions as session_rows
from ..wing import WorkspacePart

if TYPE_CHECKING:
    from ..agent.base import Agent
    from ..hosting.turn import LiveTurn
    from ..store import Connection
    from ..wing import OpenWorkspace

log = logging.getLogger(__name__)

TITLE_CHARS = 200
END_SECONDS = 3.0  # for titles that are still being made when the workspace closes
# Titles that clients give to a session before there is anything to name it after.
PLACEHOLDERS = ("", "new session", "untitled session", "untitled", "non-interactive")
PLAIN_TITLE_CHARS = 50  # of a prompt that is its own title


class TitlesPart(WorkspacePart):
    def __init__(self, workspace: OpenWorkspace) -> None:
        self.tasks = OwnedTasks()
        self._workspace = workspace
        self._asked: set[str] = set()  # sessions in which no later prompt can be the first
        # By session, while its agent makes a title: the words that are one if it makes none.
        self._words: dict[str, str] = {}

    def prompt_started(self, turn: LiveTurn, run_id: str, text: str) -> None:
        if turn.agent.has("title") and text.strip() and turn.session_id not in self._asked:
            self._asked.add(turn.session_id)
            self.tasks.spawn(self._title(turn, run_id, text))

    @property
    def uses_agent(self) -> bool:  # type: ignore[override]
        return bool(self.tasks)

    def session_deleted(self, session_id: str) -> None:
        self._asked.discard(session_id)

    async def close(self) -> None:
        while self._words:  # first: an agent may take longer to end than there is time
            await self._save(*self._words.popitem(), (0, 0, 0.0))
        await self.tasks.end(END_SECONDS)

    async def _title(self, turn: LiveTurn, run_id: str, text: str) -> None:
        store, session_id = self._workspace.store, turn.session_id
        words = " ".join(text.split())[:PLAIN_TITLE_CHARS]
        try:
            if not await store.read(is_first_prompt, session_id, run_id):
                return
            given = (await store.read(session_rows.get_session, session_id)).title
            self._words[session_id] = words
            try:
                hidden = await turn.guards.withheld()
                title = Title(words, plain=True) if hidden else await _title_of(turn.agent, text)
                usage = title.usage
                counts = (usage.prompt_tokens, usage.completion_tokens, usage.cost)
                if usage.estimated:
                    counts = (0, 0, 0.0)
                session_rows.check_usage(*counts)
            except BaseException:  # no later prompt is the first one
                if self._words.pop(session_id, ""):
                    await self._save(session_id, words, (0, 0, 0.0))
                raise
            self._words.pop(session_id, None)
            if not (title.plain and _was_chosen(given, text)):
                await self._save(session_id, title.text[:TITLE_CHARS], counts)
        except CrushliteError as error:
            log.warning("session %s has no title of its agent: %s", session_id, error)
        except Exception:
            log.exception("session %s has no title of its agent", session_id)

    async def _save(self, session_id: str, title: str, counts: tuple[int, int, float]) -> None:
        workspace, now = self._workspace, self._workspace.clock.now()
        try:
            session = await workspace.store.write(
                session_rows.set_title, session_id, title, now, counts
            )
        except CrushliteError as error:
            log.warning("the title of session %s could not be stored: %s", session_id, error)
        else:
            if session is not None:
                workspace.hub.publish("updated", session)


async def _title_of(agent: Agent, text: str) -> Title:
    title = await agent.call("title", text)
    return title if isinstance(title, Title) else Title(str(title))


def _was_chosen(title: str, prompt: str) -> bool:
    """Whether the title of a new session says more than that there is none yet. One that is the
    beginning of the first prompt, or a command that was run before it, was made by a client that
    had nothing better."""
    title, prompt = (" ".join(text.split()).casefold() for text in (title, prompt))
    return title not in PLACEHOLDERS and not title.startswith("!") and not prompt.startswith(title)


def is_first_prompt(conn: Connection, scope: str, sid: str, run_id: str) -> bool:
    """Whether no prompt came before this run in its session, not counting empty and cleared ones:
    the title is made from the first."""
    earlier = conn.execute(
        """
        SELECT 1 FROM runs
        WHERE scope = :scope AND session_id = :sid AND coalesce(outcome, '') != 'cleared'
            AND trim(prompt, char(9, 10, 11, 12, 13, 32)) != ''
            AND seq < (SELECT seq FROM runs WHERE scope = :scope AND run_id = :run_id)
        LIMIT 1
        """,
        {"scope": scope, "sid": sid, "run_id": run_id},
    ).fetchone()
    return earlier is None
