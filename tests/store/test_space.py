"""Giving the room of deleted rows back to the system."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from crushlite.protocol.messages import FinishPart, Message, TextPart
from crushlite.protocol.sessions import Session
from crushlite.store.messages import insert_message
from crushlite.store.sessions import delete_session, insert_session
from tests.support.store import StoreCase, add, ids

if TYPE_CHECKING:
    from crushlite.store import Connection


def large(conn: Connection) -> None:
    insert_session(conn, "", Session(id="large"))
    parts = [TextPart("x" * 3_000_000), FinishPart("stop")]
    insert_message(conn, "", Message("m", "user", "large", parts))


class SpaceTests(StoreCase):
    async def test_what_was_deleted_is_given_back(self) -> None:
        async with self.opened() as store:
            await store.submit(add("keep"))
            await store.submit(large)
            await store.submit(lambda conn: delete_session(conn, "", "large"), durably=True)
            before, after = await store.compact()
            self.assertGreater(before, 3_000_000)
            self.assertLess(after, 400_000)
            files = [path for path in self.directory.iterdir() if path.suffix in (".db", ".db-wal")]
            self.assertEqual(sum(os.path.getsize(file) for file in files), after)
            self.assertEqual(await store.read(ids), ["keep"])
            await store.submit(add("new"))
            self.assertEqual(await store.read(ids), ["keep", "new"])

    async def test_reads_and_writes_during_it_are_answered(self) -> None:
        async with self.opened() as store:
            await store.submit(large)
            answers = await asyncio.gather(
                store.compact(),
                store.submit(add("t"), durably=True),
                *(store.read(ids) for _ in range(20)),
            )
            self.assertEqual(len(answers), 22)
            self.assertEqual(await store.read(ids), ["large", "t"])
