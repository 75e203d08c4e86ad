"""The web console in a real browser: where the focus is, and what stays in view."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from crushlite.protocol.questions import Choice, Question
from crushlite.protocol.sessions import Todo
from tests.console.test_browser import (
    CLOSED,
    ENTER,
    LIVE,
    OPEN,
    BrowserCase,
    setUpModule,
    tearDownModule,
)

if TYPE_CHECKING:
    from crushlite.agent.base import Turn
    from crushlite.testing import ScriptedRun
    from tests.support.webdriver import Window

__all__ = ["setUpModule", "tearDownModule"]  # pytest finds them here: one browser per file

# Whether the last row of the transcript is in view, and the button that leads there is hidden.
AT_END = (
    "(s => s.scrollHeight > s.clientHeight && s.scrollHeight - s.scrollTop - s.clientHeight < 2)"
    "(document.querySelector('#scroller')) && document.querySelector('#to-end').hidden"
)
TYPING = "document.activeElement.id === 'prompt'"
READY = "![...document.querySelectorAll(args[0])].some(b => b.disabled)"
# How far the button that leads to the end is above the dialog.
CLEARANCE = """
const box = (css) => document.querySelector(css).getBoundingClientRect();
return box("#permission").top - box("#to-end").bottom;
"""


class ComfortCase(BrowserCase):
    async def started(self, text: str = "hello") -> tuple[Window, ScriptedRun]:
        await self.serve()
        [anna] = await self.enter()
        await anna.type("#prompt", text + ENTER)
        return anna, await self.daemon.entered(1)

    async def resize(self, window: Window, width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        await window.devtools("Emulation.setDeviceMetricsOverride", **size)

    async def asyncTearDown(self) -> None:
        await self.window.devtools("Emulation.clearDeviceMetricsOverride")
        await super().asyncTearDown()


class Focus(ComfortCase):
    async def test_who_opens_the_page_can_type_at_once(self) -> None:
        await self.serve()
        [anna] = await self.enter()
        await anna.wait(TYPING)
        await anna.press(*"hello", ENTER)
        run = await self.daemon.entered(1)
        self.assertEqual(run.prompt, "hello")
        run.release()

    async def test_who_answers_a_request_can_type_on(self) -> None:
        anna, run = await self.started()
        for _ in range(2):  # a second dialog is like the first
            asked = run.begin(lambda turn: turn.permission("bash", "execute", params={"n": 1}))
            await anna.wait(OPEN, "#permission")
            await anna.wait(READY, "#permission button")
            await anna.script("document.querySelector('[data-action=allow]').focus()")
            await anna.press(ENTER)
            self.assertTrue(bool(await asked))
            await anna.wait(CLOSED, "#permission")
            await anna.wait(TYPING)
        run.release()

    async def test_a_look_at_the_queue_leaves_its_buttons_alone(self) -> None:
        anna, run = await self.started()
        await anna.type("#prompt", "waits" + ENTER)
        await anna.shows("waits", "#queue-list")
        await anna.script(
            "window.button = document.querySelector('#queue-list button'); button.focus();"
            "window.looked = 0; const real = window.fetch;"
            "window.fetch = (...given) => (window.looked += /prompts$/.test(given[0]),"
            " real(...given))"
        )
        for count in (1, 2):  # when the second begins, the first of them has been drawn
            await anna.script("document.dispatchEvent(new Event('visibilitychange'))")
            await anna.wait("window.looked >= args[0]", count)
        self.assertTrue(await anna.script("return document.activeElement === window.button"))
        await anna.press(ENTER)
        await anna.wait("document.querySelector('#queue').hidden")
        await anna.wait(TYPING)
        run.release()

    async def test_a_question_is_not_answered_with_nothing(self) -> None:
        anna, run = await self.started()
        colours = [Choice("a", "Red", "a colour"), Choice("b", "Blue", "another")]
        form = [
            Question("1", "single_choice", "Q", "Which colour?", "for the test", colours),
            Question("2", "multi_choice", "Q", "Which others?", "for the test", colours),
        ]

        async def ask(turn: Turn) -> Any:
            return await turn.ask(form, tool_call_id=await turn.tool_call("question", "{}"))

        asked = run.begin(ask)
        await anna.wait(OPEN, "#question")
        await anna.shows("asks you", ".tool")
        submit = "#question button[type=submit]"
        await anna.click(submit)
        shown = "return document.querySelector('#question input[type=text], #question fieldset"
        shown += " > input').validationMessage"
        self.assertIn("Give an answer", await anna.script(shown))
        self.assertTrue(await anna.script("return document.querySelector('#question').open"))
        self.assertFalse(asked.done())
        await anna.click("#question input[type=radio][value=b]")
        await anna.click(submit)
        first, second = await asked
        self.assertEqual((first.selected_ids, second.selected_ids), (["b"], []))
        run.release()


class AfterARestart(ComfortCase):
    async def test_a_prompt_before_the_stream_is_back_is_kept_and_brings_it_back(self) -> None:
        await self.serve()
        # At first nothing answers the page.
        added = await self.window.devtools(
            "Page.addScriptToEvaluateOnNewDocument",
            source="delete self.SharedWorker; const real = fetch; window.state = 'up';"
            "window.attempts = 0; window.fetch = async (target, given) => {"
            "  if (state !== 'up' && /events|workspaces$|hello/.test(target)) {"
            "    window.attempts += 1; throw new TypeError('nobody'); }"
            "  if (/events/.test(target)) {"
            "    const cut = new AbortController(); window.cut = () => cut.abort();"
            "    given.signal = AbortSignal.any([given.signal, cut.signal]); }"
            "  return real(target, given); }",
        )
        [anna] = await self.enter()
        await self.window.devtools("Page.removeScriptToEvaluateOnNewDocument", **added)
        await anna.script("window.state = 'new'; window.cut()")
        await anna.shows("reconnecting", "#connection")
        await anna.wait("window.attempts >= 4")  # the pauses have become long
        before = await anna.script("return window.attempts")
        await anna.type("#prompt", "hello" + ENTER)
        await anna.shows("Not sent: There is no connection to the daemon yet.", "#trouble")
        self.assertEqual(
            await anna.script("return document.querySelector('#prompt').value"), "hello"
        )
        await anna.wait("window.attempts > args[0]", before)
        await anna.script("window.state = 'up'")
        await anna.wait(LIVE)
        await anna.press(ENTER)
        run = await self.daemon.entered(1)
        self.assertEqual(run.prompt, "hello")
        run.release()


class InView(ComfortCase):
    async def filled(self) -> tuple[Window, ScriptedRun]:
        anna, run = await self.started()
        await run.say("\n\n".join(f"paragraph {number}" for number in range(60)))
        await anna.shows("paragraph 59", ".msg.assistant")
        await anna.wait(AT_END)
        return anna, run

    async def test_the_end_stays_in_view_when_there_is_less_room(self) -> None:
        anna, run = await self.filled()

        async def dialog(turn: Turn) -> Any:
            call = await turn.tool_call("bash", '{"command": "ls"}')
            params = {"command": "ls"}
            return await turn.permission("bash", "execute", params=params, tool_call_id=call)

        asked = run.begin(dialog)
        await anna.wait(OPEN, "#permission")
        await anna.wait(AT_END)
        await anna.wait(READY, "#permission button")
        await anna.click("[data-action=allow]")
        await asked
        await anna.wait(CLOSED, "#permission")
        await anna.wait(AT_END)
        await anna.type("#prompt", "\ue008" + ENTER * 8 + "\ue000")
        await anna.wait(AT_END)
        await self.resize(anna, 1280, 500)
        await anna.wait(AT_END)
        run.release()

    async def test_the_end_is_in_view_after_a_reload(self) -> None:
        anna, run = await self.filled()
        run.release()
        await anna.wait("document.querySelector('#cancel').hidden")
        await anna.run("POST", "/refresh")
        await anna.shows("paragraph 59", ".msg.assistant")
        await anna.wait("!document.querySelector('#session-bar').hidden")
        await anna.wait(AT_END)

    async def test_who_has_scrolled_up_stays_there_and_the_way_back_covers_no_dialog(self) -> None:
        anna, run = await self.filled()
        await anna.script("document.querySelector('#scroller').scrollTop -= 300")
        await anna.wait("!document.querySelector('#to-end').hidden")
        top = "return document.querySelector('#scroller').scrollTop"
        before = await anna.script(top)
        await run.say("\n\nand one more")
        await anna.shows("and one more", ".msg.assistant")
        asked = run.begin(lambda turn: turn.permission("bash", "execute", params={"n": 1}))
        await anna.wait(OPEN, "#permission")
        self.assertEqual(await anna.script(top), before)
        self.assertGreaterEqual(await anna.script(CLEARANCE), 0)
        await anna.click("#to-end")
        await anna.wait(AT_END)
        await anna.wait(READY, "#permission button")
        await anna.click("[data-action=allow]")
        await asked
        run.release()

    async def test_in_the_narrowest_window_nothing_is_cut_off_while_it_works(self) -> None:
        anna, run = await self.started()
        await self.resize(anna, 360, 640)
        await anna.wait("!document.querySelector('#cancel').hidden")
        edge = "return document.querySelector(arguments[0]).getBoundingClientRect().right"
        for css in ("#when-busy", "#cancel", "#send"):
            self.assertLessEqual(await anna.script(edge, css), 360, css)
        width = "return document.querySelector('.main').scrollWidth"
        self.assertLessEqual(await anna.script(width), 360)
        run.release()

    async def test_a_list_of_things_to_do_is_shown_until_all_are_done(self) -> None:
        anna, run = await self.started()
        shown = "document.querySelector('#todos').hidden !== args[0]"
        await run.do(lambda turn: turn.todos([Todo("wash", "in_progress", "washing")]))
        await anna.wait(shown, True)
        await run.do(lambda turn: turn.todos([Todo("wash", "completed", "washing")]))
        await anna.wait(shown, False)
        run.release()

    async def test_of_many_sessions_the_one_that_is_shown_is_in_view(self) -> None:
        anna, run = await self.started()
        run.release()
        await anna.wait("document.querySelector('#cancel').hidden")
        base = await self.workspace()
        for number in range(60):
            await self.daemon.call("POST", f"{base}/sessions", {"title": f"session {number}"})
        await anna.wait("document.querySelectorAll('.session').length === 61")
        await anna.run("POST", "/refresh")
        await anna.wait(
            "(e => e && e.getBoundingClientRect().bottom <= innerHeight)"
            "(document.querySelector('.session[aria-current]'))"
        )
