"""Files of a session over HTTP: stored versions, and which files were read."""

from __future__ import annotations

import unittest
from typing import TYPE_CHECKING

from crushlite.testing import LocalDaemon

if TYPE_CHECKING:
    from crushlite.testing import Participant


class FilesTests(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self) -> None:
        self.daemon = await self.enterAsyncContext(LocalDaemon())
        self.anna: Participant = await self.daemon.join()
        self.session = await self.anna.session()

    async def test_a_changed_file_is_in_the_history_before_and_after(self) -> None:
        await self.anna.prompt(self.session)
        run = await self.daemon.entered(1)
        await run.do(lambda turn: turn.file_changed("/p/a.py", "old", "new"))
        for version in (0, 1):
            await self.anna.events.wait_for("file", action="created", version=version)
        answer = await self.anna.call("GET", f"/sessions/{self.session}/history")
        self.assertEqual(
            [(f["version"], f["content"]) for f in answer.json], [(0, "old"), (1, "new")]
        )
        keys = {"id", "session_id", "path", "content", "version", "created_at", "updated_at"}
        self.assertEqual(set(answer.json[0]), keys)
        run.release()

    async def test_what_was_read_is_listed_last_first_with_its_time(self) -> None:
        for path in ("/p/a", "/p/b", "/p/a"):
            body = {"session_id": self.session, "path": path}
            answer = await self.anna.call("POST", "/filetracker/read", body)
            self.assertEqual((answer.status, answer.json), (200, None))
        answer = await self.anna.call("GET", f"/sessions/{self.session}/filetracker/files")
        self.assertEqual(answer.json, ["/p/a", "/p/b"])
        query = f"/filetracker/lastread?session_id={self.session}&path="
        known = await self.anna.call("GET", query + "/p/a")
        self.assertRegex(known.json, r"^20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00$")
        never = await self.anna.call("GET", query + "/p/c")
        self.assertEqual(never.json, "0001-01-01T00:00:00Z")

    async def test_bad_input_is_refused_and_unknown_sessions_are_empty(self) -> None:
        for path in ("/sessions/none/history", "/sessions/none/filetracker/files"):
            answer = await self.anna.call("GET", path)
            self.assertEqual((answer.status, answer.json), (200, []))
        self.assertEqual((await self.anna.call("GET", "/filetracker/lastread")).status, 400)
        for body, status in (({"session_id": "none", "path": "/a"}, 404), ({"path": ""}, 400)):
            answer = await self.anna.call("POST", "/filetracker/read", body)
            self.assertEqual(answer.status, status)

    async def test_a_daemon_without_the_wing_answers_that_it_keeps_nothing(self) -> None:
        daemon = await self.enterAsyncContext(LocalDaemon(wings=[]))
        anna = await daemon.join()
        session = await anna.session()
        await anna.prompt(session)
        run = await daemon.entered(1)
        await run.do(lambda turn: turn.file_changed("/p/a.py", "old", "new"))
        await run.do(lambda turn: turn.file_read("/p/a.py"))
        body = {"session_id": session, "path": "/p/a.py"}
        answer = await anna.call("POST", "/filetracker/read", body)
        self.assertEqual((answer.status, answer.json), (200, None))
        for path, expected in (
            (f"/sessions/{session}/history", []),
            (f"/sessions/{session}/filetracker/files", []),
            (f"/filetracker/lastread?session_id={session}&path=/p/a.py", "0001-01-01T00:00:00Z"),
        ):
            answer = await anna.call("GET", path)
            self.assertEqual((answer.status, answer.json), (200, expected))
        run.release()
