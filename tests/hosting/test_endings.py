"""endings.py, alone on a real store: what it keeps, and when it tries again."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

from crushlite.errors import BadRequest, NotSaved, StoreBusy, StoreFull
from crushlite.hosting.endings import Ending, Endings
from crushlite.protocol.sessions import Session
from crushlite.store import sessions as session_rows
from crushlite.testing.fake_clock import FakeClock
from tests.support.basics import LIMIT, BoundedTestCase
from tests.support.disk import Disk
from tests.support.prompts import until
from tests.support.store import list_sessions

if TYPE_CHECKING:
    from crushlite.store import Connection


class EndingsTestCase(BoundedTestCase):
    """An ending here adds a word to the title of its session, so that titles tell the order."""

    async def asyncSetUp(self) -> None:
        folder = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="crushlite-")))
        self.data = folder / "data"
        self.clock = FakeClock()
        self.disk = Disk()
        self.stores = self.disk.stores(self.clock, "boot")
        self.store = await self.stores.open(self.data)
        self.addAsyncCleanup(self.close)
        self.endings = Endings(self.store, self.clock)
        self.endings.join(self.store)
        self.late: list[str] = []  # words of the endings that were written after all
        for session_id in ("a", "b"):
            row = Session(id=session_id, created_at=1, updated_at=1)
            await self.store.submit(
                lambda conn, row=row: session_rows.insert_session(conn, "", row)  # type: ignore[misc]
            )

    async def close(self) -> None:
        self.disk.free()
        await self.stores.release(self.store)

    async def titles(self) -> dict[str, str]:
        listed = await self.store.read(lambda conn: list_sessions(conn, ""))
        return {session.id: session.title for session in listed}

    def ending(self, session_id: str, word: str) -> Ending:
        def work(conn: Connection) -> Session:
            session_rows.require_session(conn, "", session_id)
            statement = f"UPDATE sessions SET title = title || '{word}' WHERE id = '{session_id}'"
            conn.execute(statement)
            return session_rows.get_session(conn, "", session_id)

        def written(session: Session | None) -> None:
            self.late.append(word if session is not None else f"{word} in vain")

        return Ending(("", session_id), (word,), work, written)

    async def refused(self, session_id: str, word: str) -> None:
        with self.assertRaises(StoreFull):
            await self.endings.commit(self.ending(session_id, word))

    async def healed(self) -> None:
        """Room again, noticed by nobody yet."""
        self.disk.free()
        await self.clock.settle()


class KeepingTests(EndingsTestCase):
    async def test_what_the_store_takes_is_written_and_nothing_is_kept(self) -> None:
        session = await self.endings.commit(self.ending("a", "1"))
        assert session is not None
        self.assertEqual(session.title, "1")
        self.assertEqual((self.late, self.endings.waiting), ([], 0))
        self.assertEqual(self.clock.pending, 0)
        self.endings.require_none()

    async def test_what_it_refuses_is_kept_and_nothing_new_is_taken_until_then(
        self,
    ) -> None:
        self.endings.join(self.store)
        self.disk.fill()
        await self.refused("a", "1")
        await self.refused("a", "2")
        await self.refused("b", "3")
        self.assertEqual(self.endings.waiting, 3)
        self.assertEqual(self.endings.waiting, 3)
        with self.assertRaises(NotSaved) as raised:
            self.endings.require_none()
        self.assertIn("the endings of 3 run(s)", str(raised.exception))
        self.assertIn("disk is full", str(raised.exception))
        await self.healed()
        await self.clock.advance(5)
        self.assertEqual(await self.titles(), {"a": "12", "b": "3"})
        self.assertEqual((sorted(self.late), self.endings.waiting), (["1", "2", "3"], 0))
        self.endings.require_none()
        self.assertEqual(self.clock.pending, 0)

    async def test_a_locked_file_is_no_other_trouble(self) -> None:
        self.disk.lock()
        with self.assertRaises(StoreBusy):
            await self.endings.commit(self.ending("a", "1"))
        await self.healed()
        await self.clock.advance(0.25)
        self.assertEqual((await self.titles())["a"], "1")

    async def test_a_lock_is_not_waited_for_again_by_each_ending_of_a_session(self) -> None:
        self.disk.lock()
        for word in ("1", "2", "3"):
            with self.assertRaises(StoreBusy):
                await self.endings.commit(self.ending("a", word))
        self.assertEqual(len(self.disk.refused), 1)
        await self.healed()
        await self.clock.advance(0.25)
        self.assertEqual(((await self.titles())["a"], self.late), ("123", ["1", "2", "3"]))

    async def test_a_lock_is_known_while_it_is_tried_again(self) -> None:
        self.disk.lock()
        with self.assertRaises(StoreBusy):
            await self.endings.commit(self.ending("a", "1"))
        answer: asyncio.Future[Session] = asyncio.get_running_loop().create_future()
        with mock.patch.object(self.store, "submit", return_value=answer) as submit:
            trying = asyncio.create_task(self.endings.retry())
            await until(lambda: submit.called, "it is tried again")
            with self.assertRaises(StoreBusy):
                async with asyncio.timeout(LIMIT / 4):
                    await self.endings.commit(self.ending("a", "2"))
            self.assertFalse(trying.done())
            answer.set_exception(StoreBusy("still locked"))
            await trying
        self.assertEqual((submit.call_count, self.endings.waiting), (1, 2))
        await self.healed()
        await self.clock.advance(0.5)
        self.assertEqual(((await self.titles())["a"], self.late), ("12", ["1", "2"]))

    async def test_what_is_wrong_with_the_ending_itself_is_raised_and_not_kept(self) -> None:
        def refuse(conn: Connection) -> Session:
            raise BadRequest("not a word")

        bad = Ending(("", "a"), ("1",), refuse, lambda session: None)
        with self.assertRaises(BadRequest):
            await self.endings.commit(bad)
        self.assertEqual(self.endings.waiting, 0)

    async def test_one_that_turns_out_to_be_wrong_later_is_given_up_and_blocks_nobody(self) -> None:
        bad = self.ending("a", "1")
        good = bad.work

        def refuse(conn: Connection) -> Session:
            good(conn)
            raise BadRequest("not a word")

        bad.work = refuse
        self.disk.fill()
        with self.assertRaises(StoreFull):
            await self.endings.commit(bad)
        await self.refused("a", "2")
        await self.healed()
        with self.assertLogs("crushlite.hosting.endings", "ERROR") as logs:
            await self.clock.advance(5)
        self.assertIn("can never be written", logs.output[0])
        self.assertEqual((await self.titles())["a"], "2")

    async def test_an_ending_of_a_session_that_is_gone_is_no_failure(self) -> None:
        self.assertIsNone(await self.endings.commit(self.ending("gone", "1")))
        self.assertEqual(self.endings.waiting, 0)


class OrderTests(EndingsTestCase):
    async def test_endings_of_a_session_are_written_in_their_order(self) -> None:
        self.disk.fill("'1'")  # only the first has no room
        await self.refused("a", "1")
        await self.refused("a", "2")
        self.assertEqual((await self.titles())["a"], "")
        self.disk.free()
        session = await self.endings.commit(self.ending("a", "3"))
        assert session is not None
        self.assertEqual(session.title, "123")
        self.assertEqual(self.late, ["1", "2"])

    async def test_one_session_does_not_wait_for_another(self) -> None:
        self.disk.fill("'1'")
        await self.refused("a", "1")
        self.assertIsNotNone(await self.endings.commit(self.ending("b", "2")))
        self.assertEqual(await self.titles(), {"a": "", "b": "2"})
        self.assertEqual(self.endings.waiting, 1)

    async def test_what_waits_behind_in_other_sessions_is_tried_too(self) -> None:
        self.disk.fill()
        await self.refused("a", "1")
        await self.refused("b", "2")
        self.disk.fill("'1'")
        await self.clock.advance(0.25)
        self.assertEqual(await self.titles(), {"a": "", "b": "2"})
        self.assertEqual((self.late, self.endings.waiting), (["2"], 1))


class TimeTests(EndingsTestCase):
    async def test_pauses_double_up_to_five_seconds(self) -> None:
        self.disk.fill()
        await self.refused("a", "1")
        pauses = []
        for _ in range(7):
            tries, begun = len(self.disk.refused), self.clock.time()
            while len(self.disk.refused) == tries:
                await self.clock.advance(0.25)
            pauses.append(self.clock.time() - begun)
        self.assertEqual(pauses, [0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0])

    async def test_a_write_that_works_for_another_is_a_reason_to_try_at_once(self) -> None:
        self.disk.fill()
        await self.refused("a", "1")
        await self.healed()
        self.assertEqual(self.endings.waiting, 1)
        await self.store.submit(lambda conn: session_rows.rename_session(conn, "", "b", "x", 2))
        await self.clock.settle()
        self.assertEqual((await self.titles())["a"], "1")
        self.assertEqual(self.clock.pending, 0)

    async def test_trouble_that_comes_again_starts_with_the_short_pause(self) -> None:
        for word in ("1", "2"):
            self.disk.fill()
            await self.refused("a", word)
            await self.clock.advance(3)
            await self.healed()
            await self.clock.advance(5)
            self.assertEqual(self.endings.waiting, 0)
            self.disk.fill()
            tries = len(self.disk.refused)
            await self.refused("b", word)
            await self.clock.advance(0.25)
            self.assertEqual(len(self.disk.refused), tries + 2)
            await self.healed()
            await self.clock.advance(5)
        self.assertEqual(await self.titles(), {"a": "12", "b": "12"})

    async def test_a_try_under_way_takes_in_what_comes_meanwhile(self) -> None:
        self.disk.fill()
        await self.refused("a", "1")
        self.disk.free()
        trying = asyncio.create_task(self.endings.retry())
        await asyncio.sleep(0)
        session = await self.endings.commit(self.ending("a", "2"))
        await trying
        assert session is not None
        self.assertEqual((session.title, self.late), ("12", ["1"]))


class LifeTests(EndingsTestCase):
    async def test_nothing_is_tried_when_the_last_workspace_has_left(self) -> None:
        self.disk.fill()
        await self.refused("a", "1")
        self.assertFalse(self.endings.idle)
        self.endings.leave()
        self.assertEqual(self.clock.pending, 0)
        tries = len(self.disk.refused)
        await self.clock.advance(60)
        self.assertEqual(len(self.disk.refused), tries)
        self.assertFalse(self.endings.idle)  # something would be lost with it

    async def test_what_was_left_is_written_when_the_store_is_opened_again(self) -> None:
        self.disk.fill()
        await self.refused("a", "1")
        self.endings.leave()
        self.disk.free()
        await self.stores.release(self.store)
        self.store = await self.stores.open(self.data)
        self.endings.join(self.store)
        await self.clock.settle()
        self.assertEqual((await self.titles())["a"], "1")
        self.endings.leave()
        self.assertTrue(self.endings.idle)

    async def test_a_store_opened_again_wakes_it_like_the_first(self) -> None:
        await self.stores.release(self.store)
        self.store = await self.stores.open(self.data)
        self.endings.leave()
        self.endings.join(self.store)
        self.disk.fill()
        await self.refused("a", "1")
        self.disk.free()
        await self.store.submit(lambda conn: session_rows.rename_session(conn, "", "b", "x", 2))
        await self.clock.settle()
        self.assertEqual((await self.titles())["a"], "1")

    async def test_an_ending_goes_with_its_session(self) -> None:
        self.disk.fill()
        await self.refused("a", "1")
        self.disk.free()
        await self.store.submit(lambda conn: session_rows.delete_session(conn, "", "a"))
        await self.clock.settle()
        self.assertEqual((self.late, self.endings.waiting), (["1 in vain"], 0))
