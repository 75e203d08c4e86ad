"""The web console in a real browser: what one window does, every window shows."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from crushlite.agent.base import Scope
from crushlite.cli.agent_names import find_agent
from crushlite.clock import SystemClock
from crushlite.coder.wing import CoderWing
from crushlite.fake_model import End, FakeModel, Say
from crushlite.http.client import HTTPClient, TCPConnector
from crushlite.protocol.questions import Choice, Question
from crushlite.testing import LocalDaemon
from tests.support.basics import BoundedTestCase
from tests.support.http import streams_of
from tests.support.places import ROOT
from tests.support.ports import reserved_port
from tests.support.webdriver import Browser, Window

if TYPE_CHECKING:
    from crushlite.agent.base import Turn, Verdict
    from crushlite.hosting.workspace import Workspace
    from crushlite.protocol.workspaces import CreateWorkspace

ESCAPE, ENTER, TAB = "\ue00c", "\ue007", "\ue004"
LIVE = (
    "document.querySelector('#connection').dataset.state === 'live'"
    " && !document.querySelector('#workspace-view').hidden"
)
TRANSCRIPT = "return document.querySelector('#transcript').innerText"
IDS = "return [...document.querySelectorAll('#transcript .msg')].map(each => each.dataset.id)"
TOKEN = "return sessionStorage.getItem('crushlite.token')"
OPEN = "document.querySelector(args[0]).open"
CLOSED = "!document.querySelector(args[0]).open"
OLD = "def greet():\n    print('hi')\n"
NEW = "def greet():\n    print('hello')\n"

# One browser for all tests: its start takes longer than most of them.
_shared: list[Browser] = []


def setUpModule() -> None:
    _shared.append(Browser())


def tearDownModule() -> None:
    _shared.pop().close()


class BrowserCase(BoundedTestCase):
    async def asyncSetUp(self) -> None:
        self.browser = _shared[0]  # as new: each test leaves one blank window
        self.window = self.browser.first
        folder = self.enterContext(tempfile.TemporaryDirectory(prefix="crushlite-"))
        self.runtime = folder
        # Token files go next to the default socket.
        self.enterContext(mock.patch.dict(os.environ, {"XDG_RUNTIME_DIR": folder}))

    async def asyncTearDown(self) -> None:
        logged = [line for line in await self.browser.complaints() if "Failed to load" not in line]
        await self.browser.reset()
        # No page may log an error, such as a refusal by its own policy.
        self.assertEqual([line for line in logged if "net::ERR" not in line], [])

    async def serve(self, **options: Any) -> LocalDaemon:
        self.daemon = await self.enterAsyncContext(LocalDaemon(tcp=True, **options))
        return self.daemon

    async def invite(self) -> str:
        """The address of the private file that opens the console of the project."""
        body = {"path": str(self.daemon.root / "project")}
        answer = await self.daemon.call("POST", "/v1/web", body)
        return Path(answer.json["page"]).as_uri()

    async def code(self) -> str:
        return str((await self.daemon.call("POST", "/v1/web")).json["code"])

    async def enter(self, count: int = 1) -> list[Window]:
        """Open this many windows on the project, and wait until all are connected."""
        await self.window.open(await self.invite())
        await self.window.wait(LIVE)
        windows = [self.window]
        for _ in range(count - 1):
            window = await self.browser.window()
            await window.open(f"http://127.0.0.1:{self.daemon.port}/")
            windows.append(window)
        for window in windows:
            await window.wait(LIVE)
        return windows

    async def choose(self, window: Window, item: str) -> None:
        """Choose an item of the menu."""
        await window.click("#menu-open")
        await window.click(item)

    async def workspace(self) -> str:
        [found] = (await self.daemon.call("GET", "/v1/workspaces")).json
        return f"/v1/workspaces/{found['id']}"

    async def sessions(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (
            await self.daemon.call("GET", f"{await self.workspace()}/sessions")
        ).json
        return found

    async def listed(self) -> list[str]:
        """The ids of the messages that the daemon has, without tool results."""
        [session] = await self.sessions()
        target = f"{await self.workspace()}/sessions/{session['id']}/messages"
        messages = (await self.daemon.call("GET", target)).json
        return [message["id"] for message in messages if message["role"] != "tool"]

    async def assert_identical(self, windows: list[Window]) -> str:
        texts = [await window.script(TRANSCRIPT) for window in windows]
        self.assertEqual(set(texts), {texts[0]})
        for window in windows:
            self.assertEqual(await window.script(IDS), await self.listed())
        return str(texts[0])


class TwoWindows(BrowserCase):
    async def test_an_answer_is_streamed_to_both_and_both_end_up_identical(self) -> None:
        await self.serve()
        anna, bert = await self.enter(2)
        await anna.type("#prompt", "hello" + ENTER)
        run = await self.daemon.entered(1)
        for piece in ("First ", "second ", "**third**."):
            await run.say(piece)
            for window in (anna, bert):
                await window.shows(piece.strip("*. "), ".msg.assistant")
        await run.do(lambda turn: turn.think("hm, "))
        await run.say("\n\n```\ncode < & >\n```\n")
        run.release()
        for window in (anna, bert):
            await window.wait("!document.querySelector('.streaming')")
            await window.wait("document.querySelector('#cancel').hidden")
        text = await self.assert_identical([anna, bert])
        for word in ("hello", "First second third.", "code < & >", "Thought"):
            self.assertIn(word, text)

    async def test_a_model_call_that_is_tried_again_is_shown_until_the_answer_goes_on(self) -> None:
        await self.serve()
        anna, bert = await self.enter(2)
        await anna.type("#prompt", "hello" + ENTER)
        run = await self.daemon.entered(1)

        async def retry(turn: Turn) -> None:
            turn.retrying("retrying in 4 s, attempt 2 of 4, because <b>busy</b>")

        await run.do(retry)
        for window in (anna, bert):
            await window.shows("retrying in 4 s, attempt 2 of 4, because <b>busy</b>", "#retry")
        await run.say("well")
        for window in (anna, bert):
            await window.wait("document.querySelector('#retry').hidden")
        await run.do(retry)
        await anna.shows("retrying", "#retry")
        run.release()
        await anna.wait("document.querySelector('#retry').hidden")

    async def test_the_offered_rule_is_kept_listed_and_taken_back(self) -> None:
        await self.serve()
        (anna,) = await self.enter()
        await anna.type("#prompt", "test it" + ENTER)
        run = await self.daemon.entered(1)
        shown = "return [...document.querySelectorAll(arguments[0])].map(each => each.textContent)"
        ready = "![...document.querySelectorAll('#permission button')].some(b => b.disabled)"
        rule = "commands that start with `npm\u202e test`"
        scope = Scope(("text",), "this very command", ("starts",), rule)
        asked = run.begin(lambda turn: turn.permission("bash", "execute", scope=scope))
        await anna.wait(OPEN, "#permission")
        self.assertEqual(
            await anna.script(shown, "#permission .scope"),
            [
                "For this session: this very command",
                "The rule: commands that start with `npmU+202E test`",
            ],
        )
        await anna.wait(ready)
        await anna.click("#permission [data-action=allow_always]")
        self.assertTrue(await asked)
        await anna.wait(CLOSED, "#permission")
        await self.choose(anna, "#rules-open")
        await anna.wait(OPEN, "#rules")
        [text] = await anna.script(shown, "#rules li")
        self.assertIn("commands that start with `npmU+202E test`", text)
        self.assertIn("bash (execute), for good, in your own file", text)
        later = Scope(("other",), "", covered_by=(frozenset({"starts"}),))
        self.assertTrue(await run.do(lambda turn: turn.permission("bash", "execute", scope=later)))
        await anna.click("#rules [data-rule]")
        await anna.shows("Nothing yet.", "#rules ul")
        await anna.click("#rules .end button")
        await anna.wait(CLOSED, "#rules")
        asked = run.begin(lambda turn: turn.permission("bash", "execute", scope=later))
        await anna.wait(OPEN, "#permission")
        await anna.wait(ready)
        await anna.click("#permission [data-action=allow]")
        self.assertTrue(await asked)
        run.release()

    async def test_all_that_would_be_done_is_shown_before_it_is_allowed(self) -> None:
        """To the last line and character, without a click, with what a grant for the session
        covers."""
        await self.serve()
        (anna,) = await self.enter()
        await anna.type("#prompt", "change it" + ENTER)
        run = await self.daemon.entered(1)
        shown = "return document.querySelector(arguments[0]).textContent"
        command = "echo " + "x" * 30_000 + "\r\nrm\u200d -rf ~\x1b[31m\u202e \u3164"
        scope = Scope(("x",), "this very command, in /p")
        asked = run.begin(
            lambda turn: turn.permission(
                "bash", "execute", params={"command": command}, path="/p", scope=scope
            )
        )
        await anna.wait(OPEN, "#permission")
        text = await anna.script(shown, "#permission .command")
        marked = "CRLF\nrmU+200D -rf ~ESC[31mU+202E U+3164"
        self.assertEqual(text, "$ echo " + "x" * 30_000 + marked)
        self.assertIn("session: this very command, in /p", await anna.script(shown, ".scope"))
        await anna.shows("There is more below", "#permission .below")
        await anna.script("document.querySelector('.asked').scrollTop = 1e9")
        await anna.wait("document.querySelector('#permission .below').hidden")
        await anna.wait(
            "![...document.querySelectorAll('#permission button')].some(b => b.disabled)"
        )
        await anna.click("#permission [data-action=deny]")
        self.assertFalse(await asked)
        unseen = "rm\u200d \u202ex\x1b[8m\u3164\r\n"
        new = "".join(f"line {n}\n" for n in range(1500)) + unseen + "y" * 5000 + "the end"
        params = {"file_path": "a", "new_content": new, "dry_run": False, "diff": "@@"}
        asked = run.begin(
            lambda turn: turn.permission("own", "write", params=params, description="Now: a")
        )
        await anna.wait(OPEN, "#permission")
        added = await anna.script(
            "return [...document.querySelectorAll('#permission .line.added .what')]"
            ".map(each => each.textContent)"
        )
        marked = "rmU+200D U+202ExESC[8mU+3164CR"
        last = "y" * 5000 + "the endno line end"
        self.assertEqual(added, [*new.split("\n")[:-2], marked, last])
        await anna.shows("There is more below", "#permission .below")
        text = await anna.script(shown, "#permission .asked")
        for words in ("Now: a", "dry_runfalse", "diff@@"):
            self.assertIn(words, text)
        self.assertIn("session: every own (write) in", await anna.script(shown, ".scope"))
        await anna.wait(
            "![...document.querySelectorAll('#permission button')].some(b => b.disabled)"
        )
        await anna.click("#permission [data-action=deny]")
        self.assertFalse(await asked)
        run.release()

    async def test_a_long_line_of_a_diff_can_be_seen_whole(self) -> None:
        await self.serve()
        (anna,) = await self.enter()
        await anna.type("#prompt", "change it" + ENTER)
        run = await self.daemon.entered(1)
        line = "a" * 2500 + "the end"

        async def change(turn: Turn) -> None:
            call = await turn.tool_call("write", json.dumps({"file_path": "a", "content": line}))
            await turn.tool_result(call, "done")

        await run.do(change)
        what = ".tool .line.added .what"
        await anna.shows("Show all (507 more characters)", what)
        await anna.click(f"{what} button")
        await anna.wait("document.querySelector(args[0]).textContent === args[1]", what, line)
        run.release()

    async def test_a_permission_answered_in_one_window_closes_in_the_other(self) -> None:
        await self.serve()
        anna, bert = await self.enter(2)
        await anna.type("#prompt", "change it" + ENTER)
        run = await self.daemon.entered(1)

        async def change(turn: Turn) -> Verdict:
            call = await turn.tool_call("edit", json.dumps({"file_path": "greet.py"}))
            params = {"file_path": "greet.py", "old_content": OLD, "new_content": NEW}
            verdict = await turn.permission(
                "edit", "write", description="Change greet.py", params=params, tool_call_id=call
            )
            await turn.tool_result(call, "User denied permission: not now", is_error=True)
            return verdict

        asked = run.begin(change)
        for window in (anna, bert):
            await window.wait(OPEN, "#permission")
            await window.shows("Allow edit?", "#permission")
            await window.shows("print('hello')", "#permission .line.added")
            await window.shows("asks you", ".tool")
        await bert.type("#permission input", "not now")
        await bert.click("#permission [data-action=deny]")
        verdict = await asked
        self.assertEqual((bool(verdict), verdict.reason), (False, "not now"))
        for window in (anna, bert):
            await window.wait(CLOSED, "#permission")
            await window.shows("User denied permission: not now", ".tool .output")
        run.release()
        await anna.wait("document.querySelector('#cancel').hidden")

    async def test_a_failing_command_is_red_with_its_code_and_a_job_has_its_command(self) -> None:
        await self.serve()
        (window,) = await self.enter(1)
        await window.type("#prompt", "try it" + ENTER)
        run = await self.daemon.entered(1)

        async def fail(turn: Turn) -> None:
            call = await turn.tool_call("bash", json.dumps({"command": "make"}))
            metadata = {"output": "no rule\nExit code 2", "exit_code": 2}
            await turn.tool_result(call, "Exit code 2\nno rule", is_error=True, metadata=metadata)
            call = await turn.tool_call("job_output", json.dumps({"shell_id": "7"}))
            metadata = {"shell_id": "7", "command": "npm run dev", "output": "", "done": False}
            await turn.tool_result(call, "Job 7 is still running.", metadata=metadata)

        await run.begin(fail)
        await window.shows("exit 2", ".tool .chip[data-kind=failed]")
        await window.shows("no rule\nExit code 2", ".tool .output")
        await window.shows("7 npm run dev", ".tool summary")
        run.release()

    async def test_a_question_answered_in_one_window_closes_in_the_other(self) -> None:
        await self.serve()
        anna, bert = await self.enter(2)
        await anna.type("#prompt", "ask me" + ENTER)
        run = await self.daemon.entered(1)
        colours = [Choice("a", "Red", "a colour"), Choice("b", "Blue", "another")]
        form = [
            Question("1", "single_choice", "Q", "Which colour?", "for the test", colours),
            Question("2", "yes_no", "Q", "Sure?", "for the test"),
            Question("3", "free_text", "Q", "Why?", "for the test"),
        ]
        asked = run.begin(lambda turn: turn.ask(form))
        for window in (anna, bert):
            await window.wait(OPEN, "#question")
            await window.shows("Which colour?", "#question")
        await anna.click("#question input[value=b]")
        await anna.click("#question input[value=yes]")
        await anna.type("#question textarea", "because")
        await anna.click("#question button[type=submit]")
        first, second, third = await asked
        self.assertEqual((first.selected_ids, second.yes), (["b"], True))
        self.assertEqual(third.fill_in_text, "because")
        for window in (anna, bert):
            await window.wait(CLOSED, "#question")
        run.release()

    async def test_output_is_seen_while_a_command_runs_and_a_diff_when_it_is_done(self) -> None:
        await self.serve()
        anna, bert = await self.enter(2)
        await anna.type("#prompt", "work" + ENTER)
        run = await self.daemon.entered(1)
        call = await run.do(lambda turn: turn.tool_call("bash", '{"command":"make"}'))
        run.turn.progress(call, "compiling 1 of 9")
        for window in (anna, bert):
            await window.shows("compiling 1 of 9", ".tool .output")
            await window.shows("running", ".tool .chip")
        await run.do(lambda turn: turn.tool_result(call, "all built"))
        edit = json.dumps({"file_path": "a.py", "old_string": "hi", "new_string": "hello"})
        change = await run.do(lambda turn: turn.tool_call("edit", edit))
        metadata = json.dumps({"old_content": OLD, "new_content": NEW})
        await run.do(lambda turn: turn.tool_result(change, "done", metadata=metadata))
        run.release()
        [session] = await self.sessions()
        target = f"{await self.workspace()}/agent/sessions/{session['id']}/shell"
        await self.daemon.call("POST", target, {"command": "echo 'a <b> c'; exit 3"})
        for window in (anna, bert):
            await window.shows("all built", ".tool .output")
            await window.wait("!document.body.innerText.includes('compiling')")
            await window.shows("+1 \u22121", ".tool summary")
            await window.shows("print('hi')", ".tool .line.removed")
            await window.shows("print('hello')", ".tool .line.added")
            await window.shows("a <b> c", ".tool .output")
            await window.shows("exit 3", ".tool .chip")
        await self.assert_identical([anna, bert])

    async def test_what_waits_is_seen_in_both_and_can_be_taken_out_and_cancel_hits_all(
        self,
    ) -> None:
        await self.serve()
        anna, bert = await self.enter(2)
        await anna.type("#prompt", "first" + ENTER)
        run = await self.daemon.entered(1)
        await run.say("working")
        await anna.wait("!document.querySelector('#cancel').hidden")
        for text in ("second", "third"):
            await anna.type("#prompt", text + ENTER)
        for window in (anna, bert):
            await window.shows("second", "#queue-list")
            await window.shows("third", "#queue-list")
        await bert.click("#queue-list li:first-child button")
        for window in (anna, bert):
            await window.wait("!document.querySelector('#queue').innerText.includes('second')")
            await window.shows("third", "#queue-list")
        await bert.click("#prompt")
        await bert.press(ESCAPE)  # once is no cancel
        await bert.wait("document.querySelector('#cancel.armed')")
        self.assertFalse(run.canceled)
        await bert.press(ESCAPE)
        for window in (anna, bert):
            await window.wait("document.querySelectorAll('[data-reason=canceled]').length === 2")
            await window.wait("document.querySelector('#queue').hidden")
            await window.wait("document.querySelector('#cancel').hidden")
        self.assertTrue(run.canceled)
        text = await self.assert_identical([anna, bert])
        self.assertNotIn("second", text)

    async def test_sessions_are_made_renamed_and_deleted_everywhere(self) -> None:
        await self.serve()
        anna, bert = await self.enter(2)
        await anna.click("#session-new")
        for window in (anna, bert):
            await window.shows("New session", "#session-list")
        await self.choose(anna, "#session-rename")
        await anna.type("#rename-title", "<b>Bold</b> plans" + ENTER)
        for window in (anna, bert):
            await window.shows("<b>Bold</b> plans", "#session-list")
        await self.choose(anna, "#session-delete")
        await anna.click("#confirm button[value=no]")
        await self.choose(anna, "#session-delete")
        await anna.click("#confirm button[value=yes]")
        for window in (anna, bert):
            await window.wait("!document.querySelector('#session-list').firstChild")
        self.assertEqual(await self.sessions(), [])

    async def test_other_clients_and_the_usage_are_shown(self) -> None:
        await self.serve()
        [anna] = await self.enter()
        await anna.click("#session-new")
        await anna.shows("New session", "#session-list")
        [session] = await self.sessions()
        other = await self.daemon.join()
        answer = await other.call(
            "POST", f"/current-session?client_id={other.id}", {"session_id": session["id"]}
        )
        self.assertEqual(answer.status, 200)
        await other.call("POST", "/permissions/skip", {"skip": True})
        await anna.shows("1 other here", "#presence")
        await anna.shows("permissions off", "#yolo")
        await anna.shows("Scripted", "#menu-open")


class Models(BrowserCase):
    async def test_a_model_is_chosen_in_one_window_and_shown_in_both(self) -> None:
        models = [
            {"id": "big", "name": "Big", "context_window": 64000},
            {"id": "wee", "name": "<b>Wee</b>"},
        ]
        lab = {"name": "Lab", "base_url": "http://127.0.0.1:9/v1", "models": models}
        daemon = LocalDaemon(find_agent("auto", SystemClock(), [CoderWing(local=())]), tcp=True)
        file = daemon.root / "home/.config/crush/crush.json"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps({"providers": {"lab": lab}}))
        self.daemon = await self.enterAsyncContext(daemon)
        anna, bert = await self.enter(2)
        shown = "document.querySelector('#model').selectedOptions[0]?.textContent"
        for window in (anna, bert):
            await window.wait(f"{shown} === 'Big · 64k'")
        await anna.click("#menu-open")
        await anna.type("#model", "<b>Wee")
        for window in (anna, bert):
            await window.wait(f"{shown} === '<b>Wee</b>'")
        info = (await self.daemon.call("GET", f"{await self.workspace()}/agent")).json
        self.assertEqual(info["model"]["id"], "wee")
        # One that cannot be chosen: the page says so, and shows what is in use.
        await anna.script(
            "const pick = document.querySelector('#model');"
            "pick.add(new Option('Gone', JSON.stringify(['lab', 'gone'])));"
            "pick.value = JSON.stringify(['lab', 'gone']);"
            "pick.dispatchEvent(new Event('change'));"
        )
        await anna.shows("lab has no model 'gone'", "#trouble")
        await anna.wait(f"{shown} === '<b>Wee</b>'")


class Efforts(BrowserCase):
    async def test_how_much_the_model_reasons_is_chosen_for_each_session(self) -> None:
        model = await self.enterAsyncContext(FakeModel(script=lambda _: [Say("ok"), End()]))
        large = {"id": "m", "can_reason": True, "reasoning_levels": ["low", "high"]}
        lab = {"base_url": model.base_url, "models": [large]}
        daemon = LocalDaemon(find_agent("auto", SystemClock(), [CoderWing(local=())]), tcp=True)
        file = daemon.root / "home/.config/crush/crush.json"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps({"providers": {"lab": lab}}))
        self.daemon = await self.enterAsyncContext(daemon)
        [anna] = await self.enter(1)
        shown = "document.querySelector('#effort').selectedOptions[0]?.textContent"
        await anna.wait(f"{shown} === 'reasoning: usual'")
        await anna.click("#menu-open")
        await anna.type("#effort", "reasoning: high")
        await anna.script("document.querySelector('#menu').hidePopover()")
        await anna.type("#prompt", "first" + ENTER)
        await anna.shows("ok", "#transcript")
        await anna.wait(f"{shown} === 'reasoning: high'")
        await anna.click("#session-new")
        await anna.wait(f"{shown} === 'reasoning: usual'")
        await anna.type("#prompt", "second" + ENTER)
        await anna.shows("ok", "#transcript")
        asked = [request for request in model.requests if request.get("tools")]
        self.assertEqual([each.get("reasoning_effort") for each in asked], ["high", None])


class Resilience(BrowserCase):
    async def test_a_stream_whose_token_is_refused_gets_another_for_its_key(self) -> None:
        """Its page has none any more, and says so to the stream just before the stream uses it."""
        await self.serve()
        anna = await self.browser.window()
        await anna.devtools(  # its stream is in the page, and hears what that says at once
            "Page.addScriptToEvaluateOnNewDocument", source="delete self.SharedWorker"
        )
        await anna.open(await self.invite())
        await anna.wait(LIVE)
        token = await anna.script(TOKEN)
        client = await anna.script("return localStorage.getItem('crushlite.client')")
        create, asked, go_on = self.daemon.backend.create, asyncio.Event(), asyncio.Event()

        async def held(request: CreateWorkspace) -> Workspace:
            if request.client_id != client:  # that one is refused, and the page takes another
                asked.set()
                await go_on.wait()
            return await create(request)

        with mock.patch.object(self.daemon.backend, "create", held):
            await self.daemon.call("DELETE", f"/v1/clients/{client}")
            await asked.wait()
            online = "dispatchEvent(new Event('online'))"  # gives the stream the page's token
            await anna.script(f"sessionStorage.removeItem('crushlite.token'); {online}")
            go_on.set()
            await anna.shows("no key", "#connection")
            await anna.script(online)  # tries at once
            await anna.wait(LIVE)
        self.assertEqual(await anna.script(TOKEN), token)

    async def test_ten_tabs_share_one_stream_and_cancel_still_works(self) -> None:
        await self.serve()
        await self.enter()
        await self.window.script("for (let i = 0; i < 9; i++) open('/', '_blank')")
        tabs = await self.browser.opened()
        self.assertEqual(len(tabs), 10)
        for tab in tabs:
            await tab.wait(LIVE)
        self.assertEqual(len(streams_of(self.daemon.daemon.server)), 1)
        await tabs[0].type("#prompt", "go on" + ENTER)
        run = await self.daemon.entered(1)
        await run.say("streaming to all of you")
        for tab in tabs:
            await tab.shows("streaming to all of you", ".msg.assistant")
        await tabs[9].click("#cancel")
        for tab in tabs:
            await tab.shows("User canceled request", ".finish")
        self.assertTrue(run.canceled)
        await self.assert_identical(tabs)

    async def test_without_a_shared_worker_a_tab_has_a_stream_of_its_own(self) -> None:
        await self.serve()
        added = await self.window.devtools(
            "Page.addScriptToEvaluateOnNewDocument", source="delete self.SharedWorker"
        )
        anna, bert = await self.enter(2)
        await self.window.devtools("Page.removeScriptToEvaluateOnNewDocument", **added)
        await bert.type("#prompt", "hello" + ENTER)
        run = await self.daemon.entered(1)
        await run.say("to whoever listens")
        for window in (anna, bert):
            await window.shows("to whoever listens", ".msg.assistant")
        self.assertEqual(len(streams_of(self.daemon.daemon.server)), 2)
        run.release()

    async def test_a_stream_that_breaks_is_resumed_without_loss_or_duplicate(self) -> None:
        await self.serve()
        anna, bert = await self.enter(2)
        await anna.type("#prompt", "hello" + ENTER)
        run = await self.daemon.entered(1)
        for number in range(3):
            await run.say(f"piece {number} ")
            await anna.shows(f"piece {number}", ".msg.assistant")
            for connection in streams_of(self.daemon.daemon.server):
                connection.abort()
            await run.do(lambda turn: turn.step())
        await run.say("the end")
        run.release()
        for window in (anna, bert):
            await window.shows("the end", ".msg.assistant")
            await window.wait("!document.querySelector('.streaming')")
        text = await self.assert_identical([anna, bert])
        for number in range(3):
            self.assertEqual(text.count(f"piece {number}"), 1)

    async def test_after_a_reload_everything_is_as_before(self) -> None:
        await self.serve()
        [anna] = await self.enter()
        await anna.type("#prompt", "hello" + ENTER)
        run = await self.daemon.entered(1)
        await run.say("half of it")
        await anna.shows("half of it", ".msg.assistant")
        await anna.type("#prompt", "a draft")
        await anna.run("POST", "/refresh")
        await anna.wait(LIVE)
        await anna.shows("half of it", ".msg.assistant")
        self.assertEqual(
            await anna.script("return document.querySelector('#prompt').value"), "a draft"
        )
        await run.say(" and the rest")
        await anna.shows("half of it and the rest", ".msg.assistant")
        run.release()
        await anna.wait("document.querySelector('#cancel').hidden")
        await self.assert_identical([anna])


# Holds the answers of some route back until the test releases them.
HOLD = """
const real = window.fetch, [suffix, method] = arguments;
Object.assign(window, {held: [], free: false});
window.fetch = async (target, options) => {
  const answer = await real(target, options);
  const wanted = String(target).endsWith(suffix) && options.method === method;
  if (wanted && !window.free) await new Promise((go) => window.held.push(go));
  return answer;
};
"""
LET_GO = "window.free = true; window.held.forEach((go) => go())"


class Races(BrowserCase):
    async def rename(self, session: str, title: str, window: Window) -> None:
        """Wait until the window shows everything that was published so far."""
        target = f"{await self.workspace()}/sessions/{session}"
        await self.daemon.call("PUT", target, {"title": title})
        await window.shows(title, "#session-list")

    async def test_events_that_overtake_a_fetch_of_messages_are_not_lost(self) -> None:
        await self.serve()
        [anna] = await self.enter()
        await anna.type("#prompt", "hello" + ENTER)
        run = await self.daemon.entered(1)
        await run.say("one")
        await anna.shows("one", ".msg.assistant .text")
        [session] = await self.sessions()
        await anna.click("#session-new")
        await anna.wait("!document.querySelector('.msg')")
        await anna.script(HOLD, "/messages", "GET")
        await anna.click(f"#session-list [data-id='{session['id']}']")
        await anna.wait("window.held.length === 1")
        await run.say(" two")
        await run.do(lambda turn: turn.step())
        await run.say("three")
        run.release()
        await self.rename(session["id"], "a mark", anna)
        await anna.script(LET_GO)
        await anna.shows("one two", ".msg.assistant .text")
        await anna.shows("three", ".msg.assistant .text")
        await anna.wait("!document.querySelector('.streaming')")
        target = f"{await self.workspace()}/sessions/{session['id']}/messages"
        listed = [message["id"] for message in (await self.daemon.call("GET", target)).json]
        self.assertEqual(await anna.script(IDS), listed)

    async def test_a_prompt_goes_to_the_session_it_was_typed_in(self) -> None:
        await self.serve()
        [anna] = await self.enter()
        await anna.click("#session-new")
        await anna.wait("document.activeElement.id === 'prompt'")
        await anna.script(HOLD, "/agent", "POST")
        await anna.type("#prompt", "first" + ENTER)
        await anna.wait("window.held.length === 1")
        await anna.type("#prompt", "second" + ENTER)
        await anna.click("#session-new")
        await anna.wait("document.querySelectorAll('#session-list li').length === 2")
        await anna.wait("!document.querySelector('.msg')")
        await anna.script(LET_GO)
        run = await self.daemon.entered(1)
        await anna.click("#session-list li:not(:has([aria-current])) button")
        await anna.shows("first", ".msg.user")
        await anna.shows("second", "#queue-list")
        run.release()
        (await self.daemon.entered(2)).release()
        await anna.shows("second", ".msg.user")

    async def test_a_list_of_requests_that_is_old_when_it_comes_opens_no_dialog(self) -> None:
        await self.serve()
        [anna] = await self.enter()
        await anna.type("#prompt", "hello" + ENTER)
        run = await self.daemon.entered(1)
        await anna.wait("!document.querySelector('#cancel').hidden")
        [session] = await self.sessions()
        await anna.script(HOLD, "/permissions", "GET")
        asked = run.begin(lambda turn: turn.permission("bash", "execute", tool_call_id="c"))
        await anna.wait(OPEN, "#permission")
        await anna.wait("window.held.length === 1")
        [request] = (await self.daemon.call("GET", f"{await self.workspace()}/permissions")).json
        target = f"{await self.workspace()}/permissions/{request['id']}"
        await self.daemon.call("POST", target, {"action": "allow"})
        self.assertTrue(bool(await asked))
        await anna.wait(CLOSED, "#permission")
        await self.rename(session["id"], "a mark", anna)
        await anna.script(
            "window.opened = 0; new MutationObserver(() => (window.opened += 1)).observe("
            "document.querySelector('#permission'), {attributes: true})"
        )
        await anna.script(LET_GO)
        await self.rename(session["id"], "another mark", anna)
        run.release()
        await anna.wait("document.querySelector('#cancel').hidden")
        self.assertEqual(await anna.script("return window.opened"), 0)


class Restart(BrowserCase):
    """The daemon is a process here, killed without a warning and started at the same port."""

    async def start(self, port: int) -> int:
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "crushlite", "serve", "--agent", "offline"),
            *("--host", f"tcp://127.0.0.1:{port}", "--log-level", "error"),
            cwd=ROOT,
            env={**os.environ, "XDG_RUNTIME_DIR": self.runtime, "HOME": self.runtime},
            stdout=asyncio.subprocess.PIPE,
        )
        self.addAsyncCleanup(self.stop, self.process)
        assert self.process.stdout is not None
        self.assertIn(b"is serving", await self.process.stdout.readline())
        url = (await self.process.stdout.readline()).decode().split()[0]
        return int(url.rpartition(":")[2])

    async def stop(self, process: asyncio.subprocess.Process) -> None:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.communicate()

    def token_file(self, port: int) -> Path:
        return Path(self.runtime) / "crushlite" / f"tcp-{port}.token"

    async def ask(self, port: int, method: str, target: str, body: bytes = b"") -> Any:
        token = self.token_file(port).read_text().strip()
        async with HTTPClient(
            TCPConnector("127.0.0.1", port),
            host_header=f"127.0.0.1:{port}",
            headers=(("Authorization", f"Bearer {token}"),),
            clock=SystemClock(),
        ) as http:
            return json.loads((await http.request(method, target, body=body)).body)

    async def anyone(self, port: int, method: str, target: str, body: bytes) -> bytes:
        """The answer to somebody without a token."""
        async with HTTPClient(
            TCPConnector("127.0.0.1", port), host_header=f"127.0.0.1:{port}", clock=SystemClock()
        ) as http:
            return (await http.request(method, target, body=body)).body

    async def converse(self, port: int) -> list[Window]:
        """Two windows (one of them without a shared worker, as in another browser), one finished
        exchange, and one that runs."""
        project = Path(self.runtime) / "project"
        project.mkdir()
        body = json.dumps({"path": str(project)}).encode()
        invited = await self.ask(port, "POST", "/v1/web", body)
        anna, bert = self.window, await self.browser.window()
        await anna.open(Path(invited["page"]).as_uri())
        await anna.wait(LIVE)
        await bert.devtools(
            "Page.addScriptToEvaluateOnNewDocument", source="delete self.SharedWorker"
        )
        await bert.open(f"http://127.0.0.1:{port}/")
        await bert.wait(LIVE)
        await anna.type("#prompt", "remember me" + ENTER)
        for window in (anna, bert):
            await window.shows("You said: remember me", ".msg.assistant")
            await window.wait("!document.querySelector('.streaming')")
        await anna.type("#prompt", "/slow 60" + ENTER)
        for window in (anna, bert):
            await window.shows("1", ".msg.assistant:last-child .text")
        return [anna, bert]

    async def assert_as_stored(self, port: int, windows: list[Window]) -> None:
        for window in windows:
            await window.wait(LIVE)
            await window.shows("interrupted", ".finish")
            await window.wait("!document.querySelector('.streaming')")
        [workspace] = await self.ask(port, "GET", "/v1/workspaces")
        base = f"/v1/workspaces/{workspace['id']}/sessions"
        [session] = await self.ask(port, "GET", base)
        messages = await self.ask(port, "GET", f"{base}/{session['id']}/messages")
        self.assertEqual(len(messages), 4)
        texts = set()
        for window in windows:
            self.assertEqual(await window.script(IDS), [each["id"] for each in messages])
            texts.add(await window.script(TRANSCRIPT))
        [text] = texts
        self.assertEqual(text.count("You said: remember me"), 1)

    async def test_a_tab_goes_on_after_a_kill_and_a_stranger_at_its_port_gets_nothing_of_use(
        self,
    ) -> None:
        port = await self.start(self.enterContext(reserved_port()))
        windows = await self.converse(port)
        before = [await window.script(IDS) for window in windows]
        old = self.token_file(port).read_text().strip()
        keys = json.loads((self.token_file(port).parent / f"tabs-{port}.json").read_text())
        stranger = Stranger()
        self.addCleanup(stranger.close)
        await self.stop(self.process)
        async with await asyncio.start_server(stranger.serve, "127.0.0.1", port):
            for window in windows:
                await window.shows("Another program answers", "#trouble")
                # What is typed meanwhile is kept and not sent.
                await window.type("#prompt", "a secret plan" + ENTER)
                await window.shows("Not sent", "#trouble")
            stranger.refuses = True  # which ends nothing for good
            for window in windows:
                await window.shows("no longer valid", "#login")
            stranger.is_silent = True  # nor does this: the connection stays open without an answer
            for window in windows:
                await window.script("dispatchEvent(new Event('online'))")  # tries at once
            waiting: set[str] = set()
            while len(waiting) < len(windows):
                waiting.add(json.loads(await stranger.unanswered.get())["id"])
        self.assertEqual(await self.start(port), port)
        self.assertNotEqual(self.token_file(port).read_text().strip(), old)
        await self.assert_as_stored(port, windows)
        for window, ids in zip(windows, before, strict=True):
            self.assertEqual(await window.script(IDS), ids)
            value = "return document.querySelector('#prompt').value"
            self.assertEqual(await window.script(value), "a secret plan")
            await window.script("document.querySelector('#prompt').value = ''")
        await windows[1].type("#prompt", "and now" + ENTER)
        for window in windows:
            await window.shows("You said: and now", ".msg.assistant")
        # The stranger has heard of both tabs, and of nothing that is worth anything.
        heard = b"".join(stranger.heard)
        self.assertTrue(any(name.encode() in heard for name in keys))
        for secret in (old, "a secret plan", *(tab["key"] for tab in keys.values())):
            self.assertNotIn(secret.encode(), heard)
        self.assertNotIn(b"uthorization", heard)
        for request in stranger.heard:
            head, _, body = request.partition(b"\r\n\r\n")
            target = head.split()[1].decode()
            answer = await self.anyone(port, "POST", target, body)
            self.assertNotIn(b"token", answer)

    async def test_a_tab_that_is_not_known_needs_a_code_that_is_never_sent(
        self,
    ) -> None:
        port = await self.start(self.enterContext(reserved_port()))
        windows = await self.converse(port)
        await self.stop(self.process)
        (self.token_file(port).parent / f"tabs-{port}.json").unlink()
        self.assertEqual(await self.start(port), port)
        for window in windows:
            await window.shows("no longer valid", "#login")
            await window.shows("crushlite web", "#login")
            self.assertIsNone(await window.script(TOKEN))
        invited = await self.ask(port, "POST", "/v1/web")
        await windows[0].script(
            "const real = fetch; window.sent = '';"
            "window.fetch = (to, given) => (window.sent += given.body, real(to, given))"
        )
        await windows[0].type("#login-code", invited["code"] + ENTER)
        await self.assert_as_stored(port, windows)
        sent = await windows[0].script("return window.sent")
        self.assertIn("proof", sent)
        self.assertNotIn(invited["code"], sent)


class Stranger:
    """Another user's program at the port of a killed daemon: it keeps what it hears, and answers
    like a daemon as well as it can."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.refuses = self.is_silent = False
        self.unanswered: asyncio.Queue[bytes] = asyncio.Queue()  # what came while it is silent
        self._open: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        found = re.search(rb"(?i)content-length: *(\d+)", head)
        body = await reader.readexactly(int(found[1]) if found else 0)
        self.heard.append(head + body)
        if self.is_silent:
            self.unanswered.put_nowait(body)
            self._open.append(writer)
            return
        answer = json.dumps({"nonce": "n" * 32, "proof": "ab" * 32, "token": "x", "id": "x"})
        if self.refuses:
            answer = json.dumps({"code": "bad_code", "message": "who are you?"})
        kind = f"Content-Type: application/json\r\nContent-Length: {len(answer)}\r\n"
        status = "403 No" if self.refuses else "200 OK"
        writer.write(f"HTTP/1.1 {status}\r\n{kind}Connection: close\r\n\r\n{answer}".encode())
        writer.close()

    def close(self) -> None:
        for writer in self._open:
            writer.close()


class Entrance(BrowserCase):
    async def test_the_private_file_lets_in_once_and_leaves_no_trace(self) -> None:
        await self.serve()
        url = await self.invite()
        [page] = (Path(self.runtime) / "crushlite").glob("console-*.html")
        content = page.read_text()
        await self.window.open(url)
        await self.window.wait(LIVE)
        address = f"http://127.0.0.1:{self.daemon.port}/"
        self.assertEqual(await self.window.script("return location.href"), address)
        self.assertFalse(page.exists())
        token = self.daemon.daemon.tokens[self.daemon.port].token
        self.assertEqual(await self.window.script(TOKEN), token)
        stored = "return JSON.stringify(localStorage) + document.cookie + document.referrer"
        self.assertNotIn(token, await self.window.script(stored))
        entries = (await self.window.devtools("Page.getNavigationHistory"))["entries"]
        visited = json.dumps(entries)
        self.assertNotIn(token, visited)
        self.assertNotIn("enter", visited, "the page with the token was replaced")
        [code] = re.findall(r'"code":"([^"]+)"', content)
        self.assertNotIn(code, visited)
        # The same file, in a browser that has nothing stored.
        page.write_text(content)
        await self.window.script("localStorage.clear(); sessionStorage.clear()")
        await self.window.open(url)
        await self.window.shows("wrong, used or expired")
        await self.window.open(address)
        await self.window.shows("crushlite web", "#login")
        await self.window.type("#login-code", "nonsense" + ENTER)
        await self.window.shows("wrong, used or expired", "#login-error")
        await self.window.script("document.querySelector('#login-code').value = ''")
        await self.window.type("#login-code", (await self.code()) + ENTER)
        await self.window.shows("Choose a workspace", "#chooser")

    async def test_without_a_code_nothing_of_the_address_is_obeyed(self) -> None:
        await self.serve(auth="none")
        evil = self.daemon.root / "evil"
        evil.mkdir()
        await self.window.open(f"http://127.0.0.1:{self.daemon.port}/#path={evil}")
        await self.window.shows("Choose a workspace", "#chooser")
        await self.window.open("about:blank")
        await self.window.open(f"http://127.0.0.1:{self.daemon.port}/#code=x&path={evil}")
        await self.window.shows("Choose a workspace", "#chooser")
        self.assertEqual((await self.daemon.call("GET", "/v1/workspaces")).json, [])

    async def test_a_project_that_is_not_trusted_is_named_with_what_to_do(self) -> None:
        await self.serve(auth="none")
        project = self.daemon.root / "project"
        project.mkdir(exist_ok=True)
        (project / "crush.json").write_text('{"providers": {"own": {"base_url": "http://x"}}}')
        await self.daemon.join()
        await self.window.open(f"http://127.0.0.1:{self.daemon.port}/")
        await self.window.click("#chooser-list button")
        await self.window.wait(LIVE)
        await self.window.shows(f"crushlite trust {project}", "#trouble")

    async def test_a_workspace_is_chosen_from_the_live_ones_or_by_its_path(self) -> None:
        await self.serve(auth="none")
        await self.daemon.join()
        await self.window.open(f"http://127.0.0.1:{self.daemon.port}/")
        await self.window.click("#chooser-list button")
        await self.window.wait(LIVE)
        await self.window.shows("project", "#workspace")
        await self.window.click("#workspace")
        await self.window.wait("document.querySelector('#chooser-path').value !== ''")
        for wrong, words in (("some/folder", "whole path"), (f"{__file__}", "directory")):
            await self.window.script("document.querySelector('#chooser-path').value = ''")
            await self.window.type("#chooser-path", wrong + ENTER)
            await self.window.shows(words, "#chooser-error")
        other = self.daemon.root / "other"
        other.mkdir()
        await self.window.script("document.querySelector('#chooser-path').value = ''")
        await self.window.type("#chooser-path", str(other) + ENTER)
        await self.window.wait(LIVE)
        await self.window.shows("other", "#workspace")


class Hostile(BrowserCase):
    LINE = "x" * (1 << 20)
    TEXT = (
        "<script>window.pwned = 1</script><img src=x onerror='window.pwned = 2'>"
        "<svg onload=window.pwned=3></svg> \u202egnp.exe\u202c \x1b[31mred\x1b[0m \x1b]0;title\x07 "
        "[link](javascript:window.pwned=4) &lt;b&gt; \u200b\u2066|\u2069"
    )

    async def assert_harmless(self, window: Window) -> None:
        self.assertIsNone(await window.script("return window.pwned ?? null"))
        made = "body script, #workspace-view img, #workspace-view svg, a[href^=java]"
        count = "return document.querySelectorAll(arguments[0]).length"
        self.assertEqual(await window.script(count, made), 0)

    async def test_whatever_is_said_is_shown_as_text(self) -> None:
        await self.serve()
        anna, bert = await self.enter(2)
        await anna.type("#prompt", "be nasty" + ENTER)
        run = await self.daemon.entered(1)

        async def nasty(turn: Turn) -> None:
            await turn.think(self.TEXT)
            await turn.say(self.TEXT + "\n\n```\n" + self.TEXT + "\n```\n")
            call = await turn.tool_call("bash", json.dumps({"command": self.TEXT}))
            await turn.permission(
                "bash", "execute", description=self.TEXT, params={"x": self.TEXT}, tool_call_id=call
            )
            await turn.tool_result(call, self.TEXT, metadata=json.dumps({"output": self.TEXT}))

        asked = run.begin(nasty)
        await anna.wait(OPEN, "#permission")
        await anna.click("#permission [data-action=allow]")
        await asked
        run.release()
        [session] = await self.sessions()
        target = f"{await self.workspace()}/sessions/{session['id']}"
        await self.daemon.call("PUT", target, {"title": self.TEXT})
        for window in (anna, bert):
            await window.shows("<script>window.pwned = 1</script>", ".msg.assistant .text p")
            await window.shows("<script>window.pwned = 1</script>", ".tool .output")
            await window.shows("<script>", "#session-list")
            # Characters that cannot be seen are named; terminal colours are left out.
            await window.shows("U+202Egnp.exeU+202C red ESC]0;titleBEL", ".text p")
            await self.assert_harmless(window)
        await self.assert_identical([anna, bert])

    async def test_a_line_of_a_megabyte_is_cut_and_shown_whole_on_demand(self) -> None:
        await self.serve()
        [anna] = await self.enter()
        await anna.type("#prompt", "a long line" + ENTER)
        run = await self.daemon.entered(1)
        await run.say(self.LINE)
        call = await run.do(lambda turn: turn.tool_call("bash", '{"command":"yes"}'))
        await run.do(lambda turn: turn.tool_result(call, self.LINE))
        run.release()
        await anna.wait("document.querySelectorAll('.show-all').length === 2")
        await anna.wait("document.querySelector('#cancel').hidden")
        self.assertLess(await anna.script("return document.body.textContent.length"), 100_000)
        await anna.click(".text .show-all")
        shown = "document.querySelector('.msg.assistant .text').textContent.length === args[0]"
        await anna.wait(shown, len(self.LINE))
        # The page still answers within a few frames.
        frames = """
          const done = arguments[0], began = performance.now();
          document.querySelector('#scroller').scrollTop = 1000;
          requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - began)));
        """
        took = [
            await anna.run("POST", "/execute/async", {"script": frames, "args": []})
            for _ in range(5)
        ]
        self.assertLess(min(took), 1000)  # the machine may be busy, but not with this page


class ByKeyboard(BrowserCase):
    async def test_enter_sends_and_never_allows_what_pops_up_while_typing(self) -> None:
        await self.serve()
        [anna] = await self.enter()
        await anna.click("#prompt")
        await anna.type("#prompt", "one\ue008\ue007\ue000two")  # Shift+Enter
        value = "return document.querySelector('#prompt').value"
        self.assertEqual(await anna.script(value), "one\ntwo")
        await anna.press(ENTER)
        run = await self.daemon.entered(1)
        self.assertEqual(run.prompt, "one\ntwo")
        await anna.type("#prompt", "next")
        asked = run.begin(lambda turn: turn.permission("bash", "execute", params={"command": "ls"}))
        await anna.wait(OPEN, "#permission")
        self.assertEqual(await anna.script("return document.activeElement.id"), "prompt")
        await anna.press(ENTER)
        await anna.shows("next", "#queue-list")
        self.assertFalse(asked.done())
        # From the prompt back to the dialog, and allow it.
        await anna.wait(
            "![...document.querySelectorAll('#permission button')].some(b => b.disabled)"
        )
        await anna.script("document.querySelector('#permission h2').focus()")
        await anna.press(TAB)
        focus = "return getComputedStyle(document.activeElement).outlineStyle"
        self.assertEqual(await anna.script(focus), "solid")
        await anna.press(ENTER)
        self.assertTrue(bool(await asked))
        run.release()

    async def test_in_a_narrow_window_sessions_are_a_drawer_and_nothing_is_cut_off(self) -> None:
        await self.serve()
        [anna] = await self.enter()
        size = {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": False}
        await anna.devtools("Emulation.setDeviceMetricsOverride", **size)
        try:
            await anna.type("#prompt", "hello" + ENTER)
            run = await self.daemon.entered(1)
            await run.say("word " * 200 + "\n```\n" + "wide " * 200 + "\n```\n")
            await anna.shows("wide", ".code")
            self.assertLessEqual(
                await anna.script("return document.documentElement.scrollWidth"), 400
            )
            hidden = "getComputedStyle(document.querySelector('#sessions')).visibility === args[0]"
            await anna.wait(hidden, "hidden")
            await anna.click("#drawer-toggle")
            await anna.wait(hidden, "visible")
            await anna.wait("document.activeElement.id === 'session-new'")
            await anna.press(ESCAPE)
            await anna.wait(hidden, "hidden")
            self.assertFalse(run.canceled)
            run.release()
        finally:
            await anna.devtools("Emulation.clearDeviceMetricsOverride")

    async def test_a_file_is_attached_and_sent(self) -> None:
        await self.serve()
        [anna] = await self.enter()
        file = self.daemon.root / "note.txt"
        file.write_text("from a file")
        await anna.script("document.querySelector('#attach-input').hidden = false")
        await anna.type("#attach-input", str(file))
        await anna.shows("note.txt", "#attachments")
        await anna.type("#prompt", "see here" + ENTER)
        run = await self.daemon.entered(1)
        [attached] = run.turn.attachments
        self.assertEqual((attached.file_name, attached.decoded()), ("note.txt", b"from a file"))
        await anna.shows("note.txt", ".msg.user")
        # It goes along when the prompt is tried again, and when it is changed.
        run.fail("no luck")
        await anna.click(".msg:last-child .finish .again")
        second = await self.daemon.entered(2)
        second.release()
        await anna.script("document.querySelector('.msg.user header button').click()")
        await anna.shows("note.txt", "#attachments")
        await anna.type("#prompt", " again" + ENTER)
        third = await self.daemon.entered(3)
        self.assertEqual((second.prompt, third.prompt), ("see here", "see here again"))
        for each in (second, third):
            [sent] = each.turn.attachments
            self.assertEqual((sent.file_name, sent.decoded()), ("note.txt", b"from a file"))
        third.release()
