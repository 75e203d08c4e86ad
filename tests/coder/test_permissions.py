"""Permissions and questions of the coder: its tools do what the user decides."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from crushlite.fake_model import End, Use
from crushlite.settings import Settings
from crushlite.testing.fake_clock import FakeClock
from tests.support.configured import ConfiguredTestCase, chat, notes, results, use
from tests.support.scenarios import scenario

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from crushlite.fake_model import Step
    from crushlite.testing import Participant, Seen


def command(text: str, ident: str = "") -> list[Step]:
    return use("bash", ident, command=text, description="a test")


def tool_names(request: dict[str, Any]) -> list[str]:
    return [tool["function"]["name"] for tool in request["tools"]]


class TwoClients(ConfiguredTestCase):
    """Anna and Ben in one workspace, with one session."""

    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        self.anna = await self.join()
        self.ben = await self.join()
        self.session = await self.anna.session()

    async def shown(self) -> dict[str, Any]:
        """The next request, as both clients got it."""
        event = await self.anna.events.wait_for("permission_request")
        twin = await self.ben.events.wait_for("permission_request")
        self.assertEqual(event.payload, twin.payload)
        return event.payload

    async def decided(self, action: str, answer: Sequence[Step], session: str = "") -> Seen:
        """A turn with one tool call, whose permission Anna answers like that; its run_complete."""
        self.plan.append(answer)
        run_id = await self.prompt(self.anna, session or self.session, "go on")
        self.assertTrue(await self.anna.grant(await self.shown(), action))
        return await self.ended(self.anna, run_id)

    async def listed(self, what: str = "permissions") -> list[dict[str, Any]]:
        return list((await self.anna.call("GET", f"/{what}")).json)


# L. Permissions ----------------------------------------------------------------------------------


class PermissionScenarios(TwoClients):
    @scenario(207)
    async def test_any_client_may_grant_and_later_answers_do_nothing(self) -> None:
        """What one client allows is run; the other client sees the grant, and its answer is too
        late."""
        self.plan.append(command("printf made > made.txt; echo it is done", "c1"))
        run_id = await self.prompt(self.anna, self.session, "make it")
        request = await self.shown()
        root = str(self.project.resolve())
        self.assertEqual(
            (request["tool_name"], request["action"], request["path"], request["session_id"]),
            ("bash", "execute", root, self.session),
        )
        self.assertEqual(request["params"]["command"], "printf made > made.txt; echo it is done")
        self.assertEqual(set(self.project.iterdir()), {self.project / ".crushlite"})
        self.assertTrue(await self.ben.grant(request))
        self.assertFalse(await self.anna.grant(request, "deny"))
        ended = await self.ended(self.anna, run_id)
        self.assertIn("it is done", ended["text"])
        self.assertEqual((self.project / "made.txt").read_text(), "made")
        await self.settle(self.anna, self.ben)
        for client in (self.anna, self.ben):
            self.assertEqual(notes(client), ["asked c1", "shown c1", "granted c1"])
        [result] = results(await self.ben.messages(self.session))
        self.assertFalse(result["is_error"])
        self.assertEqual(chat(self.model.requests[1])[-1], ("tool", result["content"]))

    @scenario(211)
    async def test_a_grant_for_the_session_is_remembered_for_equal_requests_only(self) -> None:
        """An equal call later in the session runs without a request; another tool or session
        asks."""
        await self.decided("allow_session", command("touch one", "c1"))
        self.plan.append(command("touch two", "c2"))
        await self.turn(self.anna, self.session, "again")
        await self.settle(self.anna, self.ben)
        self.assertEqual(notes(self.ben)[3:], ["asked c2", "granted c2"])
        self.assertTrue((self.project / "two").exists())
        await self.decided("deny", use("write", "c3", file_path="three", content="3"))
        elsewhere = await self.anna.session()
        await self.decided("deny", command("touch four", "c4"), elsewhere)
        self.assertFalse((self.project / "three").exists() or (self.project / "four").exists())

    @scenario(212)
    async def test_a_plain_grant_is_for_one_request_only(self) -> None:
        """A plain allow is for one call; the same command asks again."""
        await self.decided("allow", command("echo x >> log", "c1"))
        ended = await self.decided("deny", command("echo x >> log", "c2"))
        self.assertEqual((ended["error"], ended["cancelled"]), (None, None))
        self.assertEqual((self.project / "log").read_text(), "x\n")

    @scenario(216)
    async def test_every_request_is_announced_and_has_exactly_one_outcome(self) -> None:
        """For every kind of answer: the notification of the request, then exactly one of its
        outcome."""
        for action in ("allow", "deny", "allow_session"):
            await self.decided(action, command("touch it", action))
        self.plan.append(command("touch it", "remembered"))
        await self.turn(self.anna, self.session, "once more")
        await self.settle(self.anna, self.ben)
        expected = [
            *("asked allow", "shown allow", "granted allow"),
            *("asked deny", "shown deny", "denied deny"),
            *("asked allow_session", "shown allow_session", "granted allow_session"),
            *("asked remembered", "granted remembered"),
        ]
        self.assertEqual(notes(self.anna), expected)
        self.assertEqual(notes(self.ben), expected)

    @scenario(219)
    async def test_with_skip_on_later_requests_are_granted_and_open_ones_stay_open(self) -> None:
        """With skip on, commands run without any event; a request that is open already stays
        open."""
        self.plan.append(command("touch asked", "c1"))
        first = await self.prompt(self.anna, self.session, "one")
        request = await self.shown()
        await self.ben.call("POST", "/permissions/skip", {"skip": True})
        self.assertEqual((await self.anna.call("GET", "/permissions/skip")).json, {"skip": True})
        self.plan.append(command("touch unasked", "c2"))
        await self.turn(self.anna, await self.anna.session(), "two")
        self.assertTrue((self.project / "unasked").exists())
        self.assertEqual(await self.listed(), [request])
        self.assertEqual(notes(self.ben), ["asked c1", "shown c1"])
        self.assertTrue(await self.anna.grant(request, "deny"))
        await self.ended(self.anna, first)
        self.assertFalse((self.project / "asked").exists())
        await self.ben.call("POST", "/permissions/skip", {"skip": False})
        await self.decided("deny", command("touch later", "c3"))
        self.assertFalse((self.project / "later").exists())

    @scenario(224)
    async def test_of_two_requests_in_one_turn_the_second_waits_for_the_first(self) -> None:
        """Of two calls that run at the same time, the second asks when the first has its answer."""
        outside = self.folder("outside")
        for name in ("one", "two"):
            (outside / name).write_text(f"content of {name}")
        calls = [
            Use("view", json.dumps({"file_path": str(outside / n)}), n) for n in ("one", "two")
        ]
        self.plan.append([*calls, End()])
        run_id = await self.prompt(self.anna, self.session, "look at both")
        first = await self.shown()
        await self.settle(self.anna, self.ben)
        asked = first["tool_call_id"]
        self.assertEqual(notes(self.ben), [f"asked {asked}", f"shown {asked}"])
        self.assertEqual(await self.listed(), [first])
        self.assertTrue(await self.ben.grant(first))
        second = await self.shown()
        self.assertEqual({asked, second["tool_call_id"]}, {"one", "two"})
        self.assertTrue(await self.anna.grant(second, "allow"))
        await self.ended(self.anna, run_id)
        contents = [result["content"] for result in results(await self.anna.messages(self.session))]
        self.assertEqual(len(contents), 2)
        for name in ("one", "two"):
            self.assertEqual(sum(f"content of {name}" in text for text in contents), 1)

    @scenario(224)
    async def test_a_second_command_waits_for_the_first_to_be_decided(self) -> None:
        """Of two commands in one answer, the second asks when the first has run."""
        self.plan.append([*command("touch one", "c1")[:1], *command("touch two", "c2")])
        run_id = await self.prompt(self.anna, self.session, "both")
        request = await self.shown()
        await self.settle(self.anna, self.ben)
        self.assertEqual(notes(self.anna), ["asked c1", "shown c1"])
        await self.anna.grant(request)
        request = await self.shown()
        self.assertTrue((self.project / "one").exists())
        await self.anna.grant(request)
        await self.ended(self.anna, run_id)
        self.assertTrue((self.project / "two").exists())


class AllowListScenario(ConfiguredTestCase):
    async def asks(self, machine: list[str], project: list[str] | None, answer: list[Step]) -> bool:
        """Whether a tool call asks, with these allow-lists in the user's and the project's file."""
        self.configure(permissions={"allowed_tools": machine})
        path = self.folder(f"case-{len(list(self.daemon.root.iterdir()))}")
        (path / "note.txt").write_text("old")
        if project is not None:
            rules = {"permissions": {"allowed_tools": project}}
            (path / "crush.json").write_text(json.dumps(rules))
        client = await self.join(path)
        self.plan.append(answer)
        run_id = await self.prompt(client, await client.session(), "go on")
        seen = await client.events.wait_for(
            lambda event: event.kind in ("run_complete", "permission_request")
        )
        asked = seen.kind == "permission_request"
        if asked:
            await client.grant(seen.payload, "deny")
            await self.ended(client, run_id)
        self.assertEqual(_made(path), "old" if asked else "new")
        self.assertEqual(bool(notes(client)), asked)
        return asked

    @scenario(220)
    async def test_what_is_on_the_allow_list_runs_without_an_event(self) -> None:
        """A tool, or one action of it, on the user's list runs without any event; others ask."""
        shell = command("printf new > note.txt")
        for listed, expected in (
            (["bash"], False),
            (["bash:execute"], False),
            (["bash:write"], True),
            (["write", "edit:write", "view"], True),
            ([], True),
        ):
            with self.subTest(listed=listed):
                self.assertEqual(await self.asks(listed, None, shell), expected)

    @scenario(220)
    async def test_a_project_file_can_only_tighten_the_allow_list(self) -> None:
        """A repository can take entries away, and cannot add any."""
        shell = command("printf new > note.txt")
        for machine, project, expected in (
            ([], ["bash"], True),
            ([], ["bash:execute", "*"], True),
            (["bash"], ["-bash"], True),
            (["bash"], ["-bash", "bash"], True),
            (["bash"], ["-write"], False),
        ):
            with self.subTest(machine=machine, project=project):
                self.assertEqual(await self.asks(machine, project, shell), expected)


def _made(path: Path) -> str:
    return (path / "note.txt").read_text()


class DenialTests(TwoClients):
    async def test_a_denied_write_shows_its_diff_and_stops_the_turn(self) -> None:
        self.plan.append(use("write", "c1", file_path="new.txt", content="one\ntwo\n"))
        run_id = await self.prompt(self.anna, self.session, "write it")
        request = await self.shown()
        self.assertEqual(
            (request["tool_name"], request["action"], request["path"]),
            ("write", "write", str(self.project.resolve())),
        )
        self.assertEqual(request["params"]["new_content"], "one\ntwo\n")
        self.assertTrue(await self.ben.grant(request, "deny"))
        ended = await self.ended(self.anna, run_id)
        self.assertEqual((ended["error"], ended["cancelled"]), (None, None))
        messages = await self.anna.messages(self.session)
        self.assertEqual([message.finish for message in messages], ["stop", "end_turn", "stop"])
        [result] = results(messages)
        self.assertEqual((result["content"], result["is_error"]), ("User denied permission", True))
        metadata = json.loads(result["metadata"])
        self.assertEqual((metadata["additions"], metadata["removals"]), (2, 0))
        self.assertIn("+one\n+two", metadata["diff"])
        self.assertFalse((self.project / "new.txt").exists())
        self.assertEqual(len(self.model.requests), 1, "the model was asked again after a no")
        self.assertEqual((await self.run_info(self.anna, run_id))["denied"], 1)

    async def test_the_reason_of_a_denial_reaches_the_model_and_the_history_stays_valid(
        self,
    ) -> None:
        self.plan.append([*command("touch one", "c1")[:1], *command("touch two", "c2")])
        run_id = await self.prompt(self.anna, self.session, "both")
        request = await self.shown()
        answer = await self.ben.call(
            "POST",
            f"/permissions/{request['id']}?client_id={self.ben.id}",
            {"action": "deny", "reason": "not on a Friday"},
        )
        self.assertEqual(answer.json, {"resolved": True, "by": self.ben.id})
        await self.ended(self.anna, run_id)
        messages = await self.anna.messages(self.session)
        self.assert_valid_history(messages)
        denied, unrun = results(messages)
        self.assertEqual(denied["content"], "User denied permission: not on a Friday")
        self.assertTrue(unrun["is_error"])
        self.assertNotIn("shown c2", notes(self.anna))
        ended = await self.turn(self.anna, self.session, "why not?")
        self.assertEqual(ended["error"], None)
        one, two = (
            f'bash({{"command": "touch {n}", "description": "a test"}})' for n in ("one", "two")
        )
        self.assertEqual(
            chat(self.model.requests[-1]),
            [
                ("user", "both"),
                ("assistant", one + two),
                ("tool", f"Error: {denied['content']}"),
                ("tool", f"Error: {unrun['content']}"),
                ("user", "why not?"),
            ],
        )

    async def test_a_cancel_while_a_permission_is_asked_closes_it_everywhere(self) -> None:
        self.plan.append(command("touch late", "c1"))
        run_id = await self.prompt(self.anna, self.session, "go on")
        request = await self.shown()
        await self.ben.cancel(self.session, wait=10)
        self.assertFalse(await self.anna.grant(request))
        self.assertTrue((await self.ended(self.anna, run_id))["cancelled"])
        await self.settle(self.anna, self.ben)
        self.assertEqual(notes(self.ben), ["asked c1", "shown c1", "denied c1"])
        self.assertFalse((self.project / "late").exists())
        self.assert_valid_history(await self.anna.messages(self.session))


# M. Questions ------------------------------------------------------------------------------------


def question(**fields: Any) -> dict[str, Any]:
    """A valid question, with these fields replaced."""
    choices = [{"id": key, "label": key.upper(), "description": "One."} for key in "ab"]
    base = {"type": "single_choice", "question": "Which?", "description": "Pick one."}
    return {**base, "choices": choices, **fields}


class QuestionScenarios(TwoClients):
    async def form(self) -> dict[str, Any]:
        """The open batch, as both clients got it."""
        event = await self.anna.events.wait_for("question_batch_request")
        twin = await self.ben.events.wait_for("question_batch_request")
        self.assertEqual(event.payload, twin.payload)
        return event.payload

    async def answer(self, client: Participant, batch: dict[str, Any]) -> bool:
        """Answer as the Crush client does: without the id of the batch."""
        responses = [{"request_id": q["id"], "selected_ids": ["pg"]} for q in batch["questions"]]
        body = {"batch_request_id": "", "responses": responses}
        answer = await client.call("POST", "/questions/answer", body)
        self.assertEqual(answer.status, 200, answer)
        return bool(answer.json["resolved"])

    @scenario(231)
    async def test_the_answer_of_one_client_closes_the_form_for_the_other(self) -> None:
        """Both clients get the form; the answer of one reaches the model, and closes it for the
        other."""
        run_id = await self.prompt(self.anna, self.session, "@ask")
        batch = await self.form()
        self.assertEqual(await self.listed("questions"), [batch])
        self.assertEqual(batch["questions"][0]["question"], "Which database?")
        self.assertTrue(await self.answer(self.anna, batch))
        await self.ben.events.wait_for("question_batch_notification", batch_id=batch["id"])
        self.assertFalse(await self.answer(self.ben, batch))
        ended = await self.ended(self.anna, run_id)
        self.assertIn('User selected: ["pg"]', ended["text"])
        [result] = results(await self.ben.messages(self.session))
        self.assertEqual(
            (result["tool_call_id"], result["is_error"]), (batch["tool_call_id"], False)
        )
        self.assertEqual(len(self.ben.events.all("question_batch_notification")), 1)

    @scenario(233)
    async def test_a_dismissed_form_is_an_error_for_the_tool_and_stops_the_turn(self) -> None:
        """A dismissed form ends the turn with an error result; the model is not asked again."""
        run_id = await self.prompt(self.anna, self.session, "@ask")
        batch = await self.form()
        answer = await self.ben.call("POST", "/questions/cancel")
        self.assertTrue(answer.json["resolved"])
        await self.anna.events.wait_for("question_batch_notification", batch_id=batch["id"])
        ended = await self.ended(self.anna, run_id)
        self.assertEqual((ended["error"], ended["cancelled"]), (None, None))
        messages = await self.anna.messages(self.session)
        self.assertEqual([message.finish for message in messages], ["stop", "end_turn", "stop"])
        self.assertEqual(
            [(r["content"], r["is_error"]) for r in results(messages)],
            [("User dismissed the question", True)],
        )
        self.assertEqual(len(self.model.requests), 1)

    @scenario(234)
    async def test_a_form_that_no_client_could_show_is_an_error_for_the_model(self) -> None:
        """A form that no client could show is an error that the model reads; no client sees it."""
        twice = [{"id": "a", "label": "A", "description": "One."}] * 2
        for wrong, words in (
            ([], "at least one"),
            ([question()] * 6, "1 to 5 questions"),
            ([question(type="essay")], "type must be one of"),
            ([question(choices=twice[:1])], "2 to 5 choices"),
            ([question(choices=twice)], "an id of its own"),
            ([question(choices=[{"id": key, "label": key} for key in "ab"])], "choice 'a'"),
            ([question(question="x" * 241)], "240"),
            ([question(description="x" * 601)], "600"),
            ([question(description="")], "description is required"),
            ([question(), question(type="multi_choice", choices=[])], "question 2"),
        ):
            with self.subTest(words=words):
                self.plan.append(use("question", questions=wrong))
                session = await self.anna.session()
                ended = await self.turn(self.anna, session, "ask me")
                [result] = results(await self.anna.messages(session))
                self.assertTrue(result["is_error"])
                self.assertIn(words, result["content"])
                self.assertEqual(ended["text"], f"The tool said: Error: {result['content']}")
        self.assertEqual(self.anna.events.all("question_batch_request"), [])

    @scenario(235)
    async def test_the_cancel_of_a_turn_closes_its_form_for_every_client(self) -> None:
        """The cancel of a turn closes its form for every client; an answer after that is too
        late."""
        run_id = await self.prompt(self.anna, self.session, "@ask")
        batch = await self.form()
        [canceled] = await self.ben.cancel(self.session, wait=10)
        self.assertEqual(canceled, {"run_id": run_id, "was": "active"})
        for client in (self.anna, self.ben):
            await client.events.wait_for("question_batch_notification", batch_id=batch["id"])
        self.assertFalse(await self.answer(self.anna, batch))
        self.assertTrue((await self.ended(self.anna, run_id))["cancelled"])
        self.assertEqual(await self.listed("questions"), [])
        messages = await self.anna.messages(self.session)
        self.assertEqual([message.finish for message in messages], ["stop", "canceled", "stop"])
        self.assert_valid_history(messages)
        self.assertEqual(len(self.model.requests), 1)

    @scenario(237)
    async def test_of_simultaneous_dismissals_one_counts_and_none_is_an_error(self) -> None:
        """Of two simultaneous dismissals one counts; with a cancel of the turn, nothing breaks."""
        run_id = await self.prompt(self.anna, self.session, "@ask")
        await self.form()
        answers = await asyncio.gather(
            self.anna.call("POST", "/questions/cancel"), self.ben.call("POST", "/questions/cancel")
        )
        self.assertEqual([answer.status for answer in answers], [200, 200])
        self.assertEqual(sorted(answer.json["resolved"] for answer in answers), [False, True])
        await self.ended(self.anna, run_id)
        run_id = await self.prompt(self.anna, self.session, "@ask")
        batch = await self.form()
        first, second, dismissed = await asyncio.gather(
            self.anna.call("POST", f"/agent/sessions/{self.session}/cancel"),
            self.ben.call("POST", f"/agent/sessions/{self.session}/cancel"),
            self.ben.call("POST", "/questions/cancel"),
        )
        self.assertEqual([a.status for a in (first, second, dismissed)], [200, 200, 200])
        self.assertTrue((await self.ended(self.anna, run_id))["cancelled"])
        await self.settle(self.anna)
        closed = self.anna.events.all("question_batch_notification", batch_id=batch["id"])
        self.assertEqual(len(closed), 1)


class InteractiveScenario(ConfiguredTestCase):
    @scenario(240)
    async def test_questions_are_offered_only_while_an_interactive_client_attends(self) -> None:
        """The question tool is offered to the model only while an interactive client is
        attached."""
        script = await self.join()
        await script.call("POST", f"/agent/init?client_id={script.id}", {"interactive": False})
        session = await script.session()
        await self.turn(script, session, "hello")
        self.assertNotIn("question", tool_names(self.model.requests[-1]))
        self.assertIn("bash", tool_names(self.model.requests[-1]))
        self.plan.append(use("question", questions=[question()]))
        await self.turn(script, session, "ask all the same")
        [result] = results(await script.messages(session))
        self.assertTrue(result["is_error"])
        self.assertEqual(script.events.all("question_batch_request"), [])
        await self.join()
        await self.turn(script, session, "hello again")
        self.assertIn("question", tool_names(self.model.requests[-1]))

    async def test_a_client_that_leaves_in_mid_turn_changes_no_tools_of_the_next_request(
        self,
    ) -> None:
        anna = await self.join()
        session = await anna.session()
        run_id = await self.prompt(anna, session, "@ask")
        batch = (await anna.events.wait_for("question_batch_request")).payload
        await anna.call("POST", f"/agent/init?client_id={anna.id}", {"interactive": False})
        responses = [{"request_id": q["id"], "selected_ids": ["pg"]} for q in batch["questions"]]
        answered = await anna.call("POST", "/questions/answer", {"responses": responses})
        self.assertTrue(answered.json["resolved"])
        await self.ended(anna, run_id)
        asked, told = (request for request in self.model.requests if request.get("tools"))
        self.assertEqual(told["tools"], asked["tools"])
        await self.turn(anna, session, "hello")
        self.assertNotIn("question", tool_names(self.model.requests[-1]))


# No interactive client ---------------------------------------------------------------------------


class UnattendedTests(ConfiguredTestCase):
    """The test moves the daemon's clock; commands and the model use real time."""

    def make_clock(self) -> FakeClock:
        self.time = FakeClock()
        return self.time

    async def headless(self) -> Participant:
        client = await self.join()
        await client.call("POST", f"/agent/init?client_id={client.id}", {"interactive": False})
        return client

    async def test_a_headless_run_is_denied_after_a_minute_and_says_so(self) -> None:
        client = await self.headless()
        session = await client.session()
        run_id = await self.prompt(client, session, "@bash touch made")
        request = await client.events.wait_for("permission_request")
        await self.time.advance(59.0)
        self.assertEqual((await client.call("GET", "/permissions")).json, [request.payload])
        await self.time.advance(1.0)
        ended = await self.ended(client, run_id)
        self.assertEqual((ended["error"], ended["cancelled"]), (None, None))
        [result] = results(await client.messages(session))
        self.assertTrue(result["is_error"])
        self.assertIn("no interactive client answered", result["content"])
        info = await self.run_info(client, run_id)
        self.assertEqual(
            (info["state"], info["outcome"], info["denied"]), ("ended", "completed", 1)
        )
        listed = (await client.call("GET", f"/runs?session_id={session}")).json
        self.assertEqual([run["denied"] for run in listed], [1])
        self.assertFalse((self.project / "made").exists())
        self.assertEqual(len(self.model.requests), 1)
        self.assertEqual([note.split()[0] for note in notes(client)], ["asked", "shown", "denied"])

    async def test_a_person_who_comes_within_the_minute_decides(self) -> None:
        client = await self.headless()
        run_id = await self.prompt(client, await client.session(), "@bash touch made")
        await client.events.wait_for("permission_request")
        await self.time.advance(50.0)
        person = await self.join()
        request = await person.events.wait_for("permission_request")
        await self.time.advance(100.0)
        self.assertTrue(await person.grant(request.payload))
        await self.ended(client, run_id)
        self.assertTrue((self.project / "made").exists())
        self.assertEqual((await self.run_info(client, run_id))["denied"], 0)


class DetachedTests(ConfiguredTestCase):
    settings = Settings(unattended=0.2)

    async def test_a_detached_run_without_clients_ends_by_itself(self) -> None:
        gone = await self.join()
        session = await gone.session()
        run_id = await self.prompt(gone, session, "@bash touch made", detach=True)
        await gone.events.wait_for("permission_request")
        await gone.events.close()
        back = await self.daemon.create(env=self.env)
        answer = await back.call("GET", f"/runs/{run_id}?wait=20")
        info = answer.json
        self.assertEqual(
            (info["state"], info["outcome"], info["denied"]), ("ended", "completed", 1)
        )
        [result] = results(await back.messages(session))
        self.assertIn("no interactive client answered", result["content"])
        self.assertFalse((self.project / "made").exists())


# Skipping permissions ----------------------------------------------------------------------------


class Unasked(ConfiguredTestCase):
    async def runs_unasked(self, client: Participant) -> bool:
        """Whether a command of the model runs without a permission request."""
        self.plan.append(command("touch it"))
        run_id = await self.prompt(client, await client.session(), "go on")
        seen = await client.events.wait_for(
            lambda event: event.kind in ("run_complete", "permission_request")
        )
        if seen.kind == "permission_request":
            await client.grant(seen.payload, "deny")
            await self.ended(client, run_id)
        return seen.kind == "run_complete"


class YoloTests(Unasked):
    async def test_only_the_creator_of_a_workspace_can_turn_permissions_off(self) -> None:
        plain = await self.join()
        self.assertFalse(await self.runs_unasked(plain))
        late = await self.join(yolo=True)
        self.assertEqual(late.workspace["id"], plain.workspace["id"])
        self.assertNotIn("yolo", late.workspace)
        self.assertFalse(await self.runs_unasked(late))
        creator = await self.join(self.folder("brave"), yolo=True)
        self.assertTrue(await self.runs_unasked(creator))
        self.assertEqual(notes(creator), [])

    async def test_no_file_of_a_project_can_turn_permissions_off(self) -> None:
        path = self.folder("cunning")
        wishes = {
            "permissions": {"skip_requests": True, "yolo": True, "allowed_tools": ["bash"]},
            "options": {"yolo": True},
            "yolo": True,
        }
        (path / "crush.json").write_text(json.dumps(wishes))
        client = await self.join(path)
        self.assertEqual((await client.call("GET", "/permissions/skip")).json, {"skip": False})
        self.assertFalse(await self.runs_unasked(client))


class YoloDaemonTests(Unasked):
    settings = Settings(yolo=True)

    async def test_a_daemon_that_was_started_with_yolo_asks_in_no_workspace(self) -> None:
        for path in (None, self.folder("other")):
            client = await self.join(path)
            self.assertEqual((await client.call("GET", "/permissions/skip")).json, {"skip": True})
            self.assertTrue(await self.runs_unasked(client))
            self.assertEqual(notes(client), [])
