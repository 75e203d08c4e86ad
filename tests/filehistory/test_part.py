"""What agents report of files is stored, and told to clients, before their call returns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crushlite.errors import SessionNotFound
from crushlite.filehistory import queries as file_rows
from crushlite.filehistory.part import PUBLISHED
from crushlite.protocol.sessions import File
from crushlite.store import sessions
from crushlite.wing import Change, FileState, WorkspacePart
from tests.support.turns import SCOPE, SESSION, Bench

if TYPE_CHECKING:
    from collections.abc import Sequence


class Listener(WorkspacePart):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[object] = []

    async def file_read(self, session_id: str, path: str) -> None:
        self.told.append((session_id, path))

    async def files_changed(self, session_id: str, changes: Sequence[Change]) -> None:
        self.told += [session_id, *changes]


class HistoryTests(Bench):
    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        self.parts.append(self.history())

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
        await self.workspace.report_changes(SESSION, changes)
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
        change = Change("/a", FileState("old"), FileState(None), "run-1")
        self.assertEqual(listener.told, [(SESSION, "/a"), SESSION, change])
        self.assertEqual(self.hub.log, [])
