"""What agents report of files is stored, and told to clients, before their call returns."""

from __future__ import annotations

from crushlite.errors import SessionNotFound
from crushlite.filehistory import queries as file_rows
from crushlite.filehistory.part import PUBLISHED
from crushlite.filehistory.queries import Change, FileState
from crushlite.protocol.sessions import File
from crushlite.store import sessions
from crushlite.wing import Author, WorkspacePart
from tests.support.turns import SCOPE, SESSION, Bench


class Listener(WorkspacePart):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[object] = []

    async def file_read(self, session_id: str, path: str) -> None:
        self.told.append((session_id, path))

    async def file_changed(
        self, author: Author, path: str, before: str | None, after: str | None
    ) -> None:
        self.told.append((author, path, before, after))


class HistoryTests(Bench):
    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        self.parts.append(part := self.history())
        self.part = part

    async def test_a_changed_file_keeps_both_versions_and_tells_each(self) -> None:
        turn = self.turn()
        await turn.file_changed("a.txt", "old", "new")
        await turn.file_changed("a.txt", "new", "newer")
        stored = await self.store.read(lambda c: file_rows.list_files(c, SCOPE, SESSION))
        versions = [(file.path, file.version, file.content) for file in stored]
        expected = [("a.txt", 0, "old"), ("a.txt", 1, "new"), ("a.txt", 2, "newer")]
        self.assertEqual(versions, expected)
        told = [event.payload for event in self.published(File, "created")]
        self.assertEqual([(f.path, f.version, f.content) for f in told], expected)

    async def test_a_read_file_is_remembered_without_an_event(self) -> None:
        turn = self.turn()
        await turn.file_read("a.txt")
        await turn.file_read("b.txt")
        read = await self.store.read(lambda c: file_rows.list_read(c, SCOPE, SESSION))
        self.assertEqual(read, ["b.txt", "a.txt"])
        self.assertEqual(self.hub.log, [])

    async def test_of_many_versions_in_one_report_the_first_are_told_and_all_are_kept(self) -> None:
        states = FileState(None), FileState("x")
        changes = [Change(f"{number}", *states) for number in range(PUBLISHED)]
        await self.part.report(SESSION, changes)
        stored = await self.store.read(lambda c: file_rows.list_files(c, SCOPE, SESSION))
        self.assertEqual(len(stored), 2 * PUBLISHED)
        self.assertEqual(len(self.published(File, "created")), PUBLISHED)

    async def test_what_cannot_be_stored_is_told_to_the_other_parts_first_and_raised(self) -> None:
        self.parts.insert(0, listener := Listener())
        turn = self.turn()
        await self.store.submit(lambda conn: sessions.delete_session(conn, SCOPE, SESSION))
        with self.assertRaises(SessionNotFound):
            await turn.file_read("/a")
        with self.assertRaises(SessionNotFound):
            await turn.file_changed("/a", "old", None)
        author = Author(SESSION, "run-1")
        self.assertEqual(listener.told, [(SESSION, "/a"), (author, "/a", "old", None)])
        self.assertEqual(self.hub.log, [])

    async def test_of_what_no_agent_reported_the_other_parts_hear_as_if_one_had(self) -> None:
        self.parts.append(listener := Listener())
        told: list[Change] = []
        self.part.listeners.append(told.append)
        states = FileState("old", 0o644), FileState(None)
        changes = [Change(path, *states, "run-1") for path in ("/a", "/b")]
        await self.part.report(SESSION, changes)
        author = Author(SESSION, "run-1")
        self.assertEqual(listener.told, [(author, path, "old", None) for path in ("/a", "/b")])
        self.assertEqual(told, changes)
