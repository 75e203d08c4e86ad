"""What the coder leaves in the database: sessions, counters, titles, files."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import TYPE_CHECKING, Any

from crushlite.fake_model import End, Say, Use
from crushlite.filehistory import queries as file_rows
from crushlite.store import messages as message_rows, runs as run_rows
from crushlite.testing.fake_clock import FakeClock
from tests.support.configured import ConfiguredTestCase, chat, marked, new_mark, results, until, use
from tests.support.scenarios import scenario

if TYPE_CHECKING:
    from collections.abc import Sequence

    from crushlite.fake_model import ModelCall, Step
    from crushlite.store import Connection

COSTS = {"cost_per_1m_in": 1000.0, "cost_per_1m_out": 10000.0}
PIXEL = base64.b64encode(b"\x89PNG and so on").decode()


class StoreCase(ConfiguredTestCase):
    """Anna is the client of a workspace that asks for no permissions."""

    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        self.anna = await self.join(yolo=True)
        self.session = await self.anna.session("placeholder")

    async def known(self, session: str = "") -> dict[str, Any]:
        return await self.session_of(self.anna, session or self.session)

    async def listed(self) -> list[str]:
        return [row["id"] for row in (await self.anna.call("GET", "/sessions")).json]

    async def child(self, parent: str) -> str:
        """Insert a session of a sub-agent into the database: no route makes one."""
        return (await self.workspace(self.anna).create_session("helper", parent)).id

    async def left(self, session: str) -> list[int]:
        """How many rows a session has: messages, files, read marks, runs."""

        def count(conn: Connection, scope: str) -> list[int]:
            return [
                len(message_rows.list_messages(conn, scope, session)),
                len(file_rows.list_files(conn, scope, session)),
                len(file_rows.list_read(conn, scope, session)),
                len(run_rows.list_runs(conn, scope, session, None)),
            ]

        found: list[int] = await self.rows(self.anna, count)
        return found


# N. Store ----------------------------------------------------------------------------------------


class SessionScenarios(StoreCase):
    @scenario(241)
    async def test_sessions_are_listed_by_their_last_change_without_child_sessions(self) -> None:
        """Sessions are listed by their last change, with their counts, and without child
        sessions."""
        second = await self.anna.session("second")
        self.assertEqual(await self.listed(), [second, self.session])
        await self.turn(self.anna, self.session, "@bash echo hi")
        self.assertEqual(await self.listed(), [self.session, second])
        messages = await self.anna.messages(self.session)
        self.assertEqual(len(messages), 4)
        self.assertEqual((await self.known())["message_count"], 4)
        await self.anna.call("PUT", f"/sessions/{second}", {"id": second, "title": "renamed"})
        self.assertEqual(await self.listed(), [second, self.session])
        self.assertEqual((await self.known(second))["title"], "renamed")
        child = await self.child(self.session)
        await self.turn(self.anna, child, "hello")
        self.assertEqual(await self.listed(), [second, self.session])
        known = await self.known(child)
        self.assertEqual((known["parent_session_id"], known["message_count"]), (self.session, 2))
        self.assertEqual((await self.known())["message_count"], 4)
        await self.anna.call("DELETE", f"/sessions/{second}")
        self.assertEqual(await self.listed(), [self.session])

    @scenario(248)
    async def test_a_deleted_session_takes_its_messages_files_and_runs_along(self) -> None:
        """Messages, files, read marks and runs are deleted at once, with one event; then it is
        404."""
        self.plan += [
            use("write", file_path="a.txt", content="one"),
            use("view", file_path="a.txt"),
        ]
        await self.turn(self.anna, self.session, "make a file")
        other = await self.anna.session()
        await self.turn(self.anna, other, "hello")
        self.assertEqual(await self.left(self.session), [6, 2, 1, 1])
        answer = await self.anna.call("DELETE", f"/sessions/{self.session}")
        self.assertEqual(answer.status, 200)
        await self.anna.events.wait_for("session", action="deleted", id=self.session)
        self.assertEqual(await self.left(self.session), [0, 0, 0, 0])
        self.assertEqual(await self.left(other), [2, 0, 0, 1])
        for method in ("GET", "PUT", "DELETE"):
            body = {"title": "x"} if method == "PUT" else None
            again = await self.anna.call(method, f"/sessions/{self.session}", body)
            self.assertEqual((method, again.status), (method, 404))
        self.assertEqual((await self.anna.try_prompt(self.session)).status, 404)
        self.assertEqual(await self.anna.messages(self.session), [])
        self.assertTrue((self.project / "a.txt").exists(), "the user's files are not ours to take")

    @scenario(248)
    async def test_a_deleted_session_takes_its_background_jobs_along(self) -> None:
        """The background jobs of a session are killed when it is deleted."""
        mark = new_mark()
        self.plan.append(
            use("bash", command=f"sleep {mark}", description="", run_in_background=True)
        )
        await self.turn(self.anna, self.session, "wait for me")
        await until(lambda: bool(marked(mark)), "the job runs on after its turn")
        answer = await self.anna.call("DELETE", f"/sessions/{self.session}")
        self.assertEqual((answer.status, marked(mark)), (200, []))

    @scenario(256)
    async def test_a_model_without_images_gets_their_names_and_uploads_are_kept(self) -> None:
        """A model that takes no images gets the name of one and not its content; the upload is
        kept."""
        files = [
            {"file_path": "p.png", "mime_type": "image/png", "content": PIXEL},
            {"file_path": "n.txt", "mime_type": "text/plain", "content": "bm90ZXM="},
        ]
        seeing = {**self.described, "supports_attachments": True}
        for name, described in (("blind", self.described), ("seeing", seeing)):
            with self.subTest(model=name):
                self.described = described
                self.configure()
                client = await self.join(self.folder(name))
                session = await client.session()
                await self.turn(client, session, "look", attachments=files)
                stored = [
                    (part["data"]["Path"], part["data"]["MIMEType"], part["data"]["Data"])
                    for part in (await client.messages(session))[0]["parts"]
                    if part["type"] == "binary"
                ]
                self.assertEqual(
                    stored, [(f["file_path"], f["mime_type"], f["content"]) for f in files]
                )
                request = self.model.requests[-1]
                text = chat(request)[-1][1]
                self.assertTrue(text.startswith("look"))
                self.assertIn("notes", text)
                self.assertEqual(PIXEL in json.dumps(request), name == "seeing")
                self.assertEqual("p.png" in text, name == "blind")


class ActiveDeletion(StoreCase):
    scripted = False

    @scenario(248)
    async def test_a_session_at_work_is_stopped_before_it_is_deleted(self) -> None:
        """Its run and the request to the model end first; no event of it follows `session
        deleted`."""
        run_id = await self.prompt(self.anna, self.session, "hello")
        call = await self.model.call(1)
        await call.text("One moment")
        answer = await self.anna.call("DELETE", f"/sessions/{self.session}")
        self.assertEqual(answer.status, 200)
        await call.gone()
        ended = await self.ended(self.anna, run_id)
        self.assertTrue(ended["cancelled"])
        gone = await self.anna.events.wait_for("session", action="deleted", id=self.session)
        await self.settle(self.anna)
        after = self.anna.events.seen[self.anna.events.seen.index(gone) :]
        self.assertEqual([e for e in after if e["session_id"] == self.session], [])
        self.assertEqual(await self.left(self.session), [0, 0, 0, 0])

    @scenario(250)
    async def test_child_sessions_are_deleted_with_their_parent(self) -> None:
        """Child sessions and theirs are deleted with their parent, whether they have a run or
        not."""
        child = await self.child(self.session)
        grandchild = await self.child(child)
        run_id = await self.prompt(self.anna, grandchild, "hello")
        call = await self.model.call(1)
        await call.text("One moment")
        answer = await self.anna.call("DELETE", f"/sessions/{self.session}")
        self.assertEqual(answer.status, 200)
        await call.gone()
        self.assertTrue((await self.ended(self.anna, run_id))["cancelled"])
        for session in (self.session, child, grandchild):
            answer = await self.anna.call("GET", f"/sessions/{session}")
            self.assertEqual(answer.status, 404)
            self.assertEqual(await self.left(session), [0, 0, 0, 0])
        self.assertEqual((await self.anna.try_prompt(grandchild)).status, 404)


class OrderScenario(StoreCase):
    def make_clock(self) -> FakeClock:
        return FakeClock()

    @scenario(242)
    async def test_messages_of_the_same_second_are_listed_in_the_order_they_came(self) -> None:
        """Fifty messages of the same second are listed in the order they came, also from disk."""
        calls = [f"c{n}" for n in range(32)]

        def todos(ident: str) -> Use:
            wish = {"todos": [{"content": f"item {ident}", "status": "pending"}]}
            return Use("todos", json.dumps(wish), ident)

        for first, second in zip(calls[::2], calls[1::2], strict=True):
            self.plan.append([todos(first), todos(second), End()])
        self.plan.append([Say("Done."), End()])
        await self.turn(self.anna, self.session, "hello")
        messages = await self.anna.messages(self.session)
        self.assertEqual(len(messages), 50)
        self.assertEqual(len({message["created_at"] for message in messages}), 1)
        roles = [message["role"] for message in messages]
        self.assertEqual(roles, ["user", *["assistant", "tool", "tool"] * 16, "assistant"])
        self.assertEqual([result["tool_call_id"] for result in results(messages)], calls)
        ids = [message["id"] for message in messages]
        created = self.anna.events.all("message", action="created")
        self.assertEqual([event["id"] for event in created], ids)
        await self.anna.retire()
        self.anna = await self.join()
        self.assertEqual([m["id"] for m in await self.anna.messages(self.session)], ids)


# Titles ------------------------------------------------------------------------------------------


class TitleScenarios(StoreCase):
    """The small model answers with `self.said`."""

    said: Sequence[Step] = (Say("Port the Parser"), End(usage=None))

    def title(self, request: dict[str, Any]) -> Sequence[Step]:
        return self.said

    async def titled_as(self, title: str, session: str = "") -> None:
        session = session or self.session
        seen = self.anna.events  # it may have come before the turn ended
        await until(lambda: bool(seen.all("session", id=session, title=title)), f"title {title!r}")
        self.assertEqual((await self.known(session))["title"], title)

    @scenario(244)
    async def test_the_title_comes_from_the_first_prompt_only(self) -> None:
        """The title made from the first prompt replaces the one given at create; a second is not
        made."""
        self.assertEqual((await self.known())["title"], "placeholder")
        await self.turn(self.anna, self.session, "port the parser, please")
        await self.titled_as("Port the Parser")
        self.assertEqual(chat(self.titles.requests[0]), [("user", "port the parser, please")])
        self.assertNotIn("tools", self.titles.requests[0])
        self.said = (Say("Another"), End())
        await self.turn(self.anna, self.session, "and the lexer")
        await self.settle(self.anna)
        self.assertEqual(len(self.titles.requests), 1)
        self.assertEqual((await self.known())["title"], "Port the Parser")

    @scenario(244)
    async def test_what_a_model_says_becomes_one_clean_line(self) -> None:
        """Reasoning, quotes and line ends are removed; an empty title is replaced by the prompt."""
        long = "please port the parser to the new grammar, and then the lexer"
        for said, title in (
            ('<think>Hm.\nA title.</think>\n"Port the\nParser"\n', "Port the Parser"),
            ("<think>never ends", long[:50]),
            ("   \n", long[:50]),
        ):
            with self.subTest(said=said):
                self.said = (Say(said), End(usage=None))
                session = await self.anna.session("placeholder")
                await self.turn(self.anna, session, long)
                await self.titled_as(title, session)


class TitleUnderWay(StoreCase):
    """The test answers for both models."""

    scripted = False
    titled = False
    described = COSTS

    async def both(self, session: str, text: str = "hello") -> tuple[str, ModelCall, ModelCall]:
        """A first prompt, and the open calls for its turn and its title."""
        numbers = len(self.model.calls) + 1, len(self.titles.calls) + 1
        run_id = await self.prompt(self.anna, session, text)
        return run_id, await self.model.call(numbers[0]), await self.titles.call(numbers[1])

    async def give_title(self, call: ModelCall, usage: tuple[int, int] | None = None) -> None:
        await call.text("Port the Parser")
        await call.finish(usage=usage)

    @scenario(244)
    async def test_a_cancel_of_the_turn_does_not_stop_the_title(self) -> None:
        """The title comes from the first prompt, although its run is canceled meanwhile, and
        neither from a shell command before it nor from a later prompt."""
        shell = {"command": "true"}
        await self.anna.call("POST", f"/agent/sessions/{self.session}/shell", shell)
        run_id, turn, title = await self.both(self.session, "  draw a frog")
        self.assertEqual(chat(title.request), [("user", "  draw a frog")])
        await self.anna.cancel(self.session, wait=10)
        self.assertTrue((await self.ended(self.anna, run_id))["cancelled"])
        await turn.gone()
        self.assertTrue(title.open)
        await self.give_title(title)
        await self.anna.events.wait_for("session", title="Port the Parser")
        later = await self.prompt(self.anna, self.session, "and a newt")
        await (await self.model.call(2)).finish()
        await self.ended(self.anna, later)
        self.assertEqual(len(self.titles.calls), 1)
        self.assertEqual((await self.known())["title"], "Port the Parser")

    @scenario(244)
    async def test_a_rename_is_kept_whenever_the_title_comes(self) -> None:
        """A title that the user gave is never replaced, neither by one under way nor by a later
        one."""
        run_id, turn, title = await self.both(self.session)
        await self.anna.call("PUT", f"/sessions/{self.session}", {"title": "mine"})
        await self.give_title(title, (30, 4))
        await self.anna.events.wait_for("session", title="mine", cost=0.07)
        await turn.finish()
        await self.ended(self.anna, run_id)
        self.assertEqual((await self.known())["title"], "mine")

    @scenario(244)
    async def test_a_small_model_that_fails_is_replaced_by_the_large_one(self) -> None:
        """The large model gets the same request; the turn is not affected."""
        run_id, turn, title = await self.both(self.session)
        title.error(400, "too small")
        large = await self.model.call(2)
        self.assertEqual(chat(large.request), [("user", "hello")])
        self.assertNotIn("tools", large.request)
        await self.give_title(large)
        await self.anna.events.wait_for("session", title="Port the Parser")
        await turn.finish()
        await self.ended(self.anna, run_id)

    @scenario(244)
    async def test_a_title_that_no_model_can_give_has_a_fallback(self) -> None:
        """If both models fail, the prompt is the title, and the turn goes on."""
        run_id, turn, title = await self.both(await self.anna.session("New Session"))
        title.error(400, "too small")
        large = await self.model.call(2)
        self.assertNotIn("tools", large.request)
        large.error(400, "too large")
        await self.anna.events.wait_for("session", title="hello")
        await turn.text("Hi.")
        await turn.finish()
        self.assertEqual((await self.ended(self.anna, run_id))["text"], "Hi.")

    @scenario(244)
    async def test_a_first_prompt_that_was_canceled_in_the_queue_gives_the_title(self) -> None:
        """The title comes from the first prompt, although its run never started."""
        body = {"command": "true"}
        await self.anna.call("POST", f"/agent/sessions/{self.session}/shell", body)
        asking = self.anna.call("POST", f"/agent/sessions/{self.session}/summarize")
        answer, _ = await asyncio.gather(asking, self._cancel_behind_summary())
        self.assertEqual(answer.status, 200)
        title = await self.titles.call(1)
        self.assertEqual(chat(title.request), [("user", "what now?")])
        await self.give_title(title)
        await self.anna.events.wait_for("session", title="Port the Parser")

    async def _cancel_behind_summary(self) -> None:
        await self.model.call(1)
        run_id = await self.prompt(self.anna, self.session, "what now?")
        await self.anna.cancel(self.session, wait=10)
        self.assertEqual((await self.run_info(self.anna, run_id))["outcome"], "canceled")

    @scenario(245)
    async def test_the_cost_of_a_title_is_added_to_that_of_the_turn(self) -> None:
        """Whichever ends first, the cost is the sum; a title that ends after the turn adds to its
        counters."""
        run_id, turn, title = await self.both(self.session)
        await turn.finish(usage=(10, 5))
        await self.ended(self.anna, run_id)
        await self.give_title(title, (30, 4))
        await self.anna.events.wait_for("session", title="Port the Parser")
        known = await self.known()
        self.assertEqual((known["prompt_tokens"], known["completion_tokens"]), (40, 9))
        self.assertAlmostEqual(known["cost"], 0.13)
        second = await self.anna.session()
        run_id, turn, title = await self.both(second)
        await self.give_title(title, (30, 4))
        await self.anna.events.wait_for("session", id=second, title="Port the Parser")
        await turn.finish(usage=(10, 5))
        await self.ended(self.anna, run_id)
        known = await self.known(second)
        self.assertEqual((known["prompt_tokens"], known["completion_tokens"]), (10, 5))
        self.assertAlmostEqual(known["cost"], 0.13)


class UsageScenario(StoreCase):
    described = COSTS

    async def counted(self, usage: tuple[int, int] | None, text: str = "hello") -> tuple[int, int]:
        self.plan.append([Say("Hello to you, too, my dear user."), End(usage=usage)])
        await self.turn(self.anna, self.session, text)
        known = await self.known()
        return known["prompt_tokens"], known["completion_tokens"]

    @scenario(247)
    async def test_counters_hold_the_last_step_and_costs_are_added(self) -> None:
        """Counters hold the values of the last step; one that it leaves out stays; costs are
        added."""
        self.assertEqual(await self.counted((100, 7)), (100, 7))
        self.assertAlmostEqual((await self.known())["cost"], 0.17)
        self.assertEqual(await self.counted((120, 3)), (120, 3))
        self.assertAlmostEqual((await self.known())["cost"], 0.32)
        self.assertEqual(await self.counted((0, 9)), (120, 9))
        self.assertEqual(await self.counted((130, 0)), (130, 9))
        self.assertAlmostEqual((await self.known())["cost"], 0.54)

    @scenario(247)
    async def test_zero_usage_is_estimated_and_costs_nothing(self) -> None:
        """For a server that reports no usage: about four characters to a token, and no cost."""
        for usage in (None, (0, 0)):
            with self.subTest(usage=usage):
                before, _ = await self.counted(usage, "short")
                prompt, completion = await self.counted(usage, "x" * 4000)
                self.assertGreater(before, 0)
                self.assertAlmostEqual(prompt - before, 1000, delta=50)
                self.assertEqual(completion, 8)
        self.assertEqual((await self.known())["cost"], 0.0)


# Files -------------------------------------------------------------------------------------------


class FileTests(StoreCase):
    async def versions(self, path: str) -> list[str]:
        def read(conn: Connection, scope: str) -> list[str]:
            files = file_rows.list_files(conn, scope, self.session)
            mine = [file for file in files if file.path == path]
            self.assertEqual([file.version for file in mine], list(range(len(mine))))
            return [file.content for file in mine]

        found: list[str] = await self.rows(self.anna, read)
        return found

    async def read_at(self, path: str) -> float | None:
        found: float | None = await self.rows(
            self.anna, lambda conn, scope: file_rows.last_read(conn, scope, self.session, path)
        )
        return found

    async def test_every_version_of_an_edited_file_is_kept(self) -> None:
        path = str(self.project.resolve() / "a.txt")
        edit = {"file_path": "a.txt", "old_string": "one", "new_string": "two"}
        self.plan += [
            use("write", file_path="a.txt", content="one\n"),
            use("view", file_path="a.txt"),
            use("edit", **edit),
        ]
        await self.turn(self.anna, self.session, "make it")
        self.assertEqual(await self.versions(path), ["", "one\n", "two\n"])
        (self.project / "a.txt").write_text("by hand\n")
        again = {"file_path": "a.txt", "old_string": "by hand", "new_string": "three"}
        self.plan += [use("edit", **again), use("view", file_path="a.txt"), use("edit", **again)]
        await self.turn(self.anna, self.session, "change it")
        self.assertEqual((self.project / "a.txt").read_text(), "three\n")
        expected = ["", "one\n", "two\n", "by hand\n", "three\n"]
        self.assertEqual(await self.versions(path), expected)
        events = self.anna.events.all("file", action="created")
        self.assertEqual([event["content"] for event in events], expected)
        unread = results(await self.anna.messages(self.session))[3]
        self.assertTrue(unread["is_error"])
        self.assertIn("has changed since you viewed it", unread["content"])

    async def test_a_file_that_was_viewed_is_marked_as_read_by_its_session_alone(self) -> None:
        for name in ("a.txt", "b.txt"):
            (self.project / name).write_text(name)
        first, second = (str(self.project.resolve() / name) for name in ("a.txt", "b.txt"))
        self.plan += [use("view", file_path="a.txt"), use("view", file_path="missing.txt")]
        await self.turn(self.anna, self.session, "look")
        self.assertIsNotNone(await self.read_at(first))
        self.assertIsNone(await self.read_at(second))
        self.assertEqual((await self.left(self.session))[2], 1)
        self.session = await self.anna.session()
        self.assertIsNone(await self.read_at(first))
        self.plan.append(use("write", file_path="a.txt", content="unseen"))
        await self.turn(self.anna, self.session, "overwrite what you have not seen")
        [result] = results(await self.anna.messages(self.session))
        self.assertTrue(result["is_error"])
        self.assertEqual((self.project / "a.txt").read_text(), "a.txt")
        self.assertEqual(await self.versions(first), [])
