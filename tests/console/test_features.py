"""The web console in a real browser: states, commands, keys, and what is done with a session."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crushlite.settings import Settings
from tests.console.test_browser import (
    CLOSED,
    ENTER,
    ESCAPE,
    LIVE,
    OPEN,
    BrowserCase,
    setUpModule,
    tearDownModule,
)
from tests.support.hosted import QUIRKY

if TYPE_CHECKING:
    from crushlite.agent.base import Turn
    from crushlite.testing import ScriptedRun
    from tests.support.webdriver import Window

__all__ = ["setUpModule", "tearDownModule"]  # pytest finds them here: one browser per file

IDLE = "document.querySelector('#cancel').hidden"
PALETTE = (
    "document.dispatchEvent(new KeyboardEvent('keydown', {key: 'k', ctrlKey: true, bubbles: true}))"
)
CHOOSE = """
const select = document.querySelector('#agent');
select.value = arguments[0];
select.dispatchEvent(new Event('change'));
"""
# Keeps what the page wants to save instead of saving it.
SAVED = """
window.saved = [];
URL.createObjectURL = (blob) => (blob.text().then((text) => window.saved.push(text)), '#saved');
"""
# The daemon's list of messages, as if there were so many.
MANY = """
const real = window.fetch, count = arguments[0];
window.fetch = async (target, given) => {
  if (!String(target).endsWith('/messages')) return real(target, given);
  const one = (n) => ({id: `m${n}`, role: n % 2 ? 'assistant' : 'user', created_at: 1700000000,
    parts: [{type: 'text', data: {text: `message **${n}**`}},
      ...(n % 2 ? [{type: 'finish', data: {reason: 'end_turn'}}] : [])]});
  return new Response(JSON.stringify(Array.from({length: count}, (_, n) => one(n))));
};
"""


class FeatureCase(BrowserCase):
    async def started(self, text: str = "hello") -> tuple[Window, ScriptedRun]:
        await self.serve()
        [anna] = await self.enter()
        await anna.type("#prompt", text + ENTER)
        return anna, await self.daemon.entered(1)

    async def command(self, window: Window, words: str) -> None:
        """Choose a row of the palette."""
        await window.script(PALETTE)
        await window.wait(OPEN, "#palette")
        await window.wait("document.querySelector('#palette-list li')")
        await window.type("#palette-text", words)
        await window.wait(
            "document.querySelector('#palette-list [aria-selected=true]')"
            "?.innerText.includes(args[0])",
            words,
        )
        await window.press(ENTER)
        await window.wait(CLOSED, "#palette")


class States(FeatureCase):
    async def test_a_session_says_that_it_works_needs_somebody_or_has_failed(self) -> None:
        anna, run = await self.started()
        await anna.shows("Waiting for the first words", "#working")
        await anna.shows("1 working", "#session-states")
        await run.say("well")
        await anna.shows("Working", "#working-words")
        params = {"command": "ls"}
        asked = run.begin(lambda turn: turn.permission("bash", "execute", params=params))
        await anna.shows("needs you", ".session[data-state=needs]")
        await anna.shows("Waits for you", "#working")
        await anna.wait("document.title.startsWith('(!)')")
        # Elsewhere the dialog says whose request it is, and the state can be shown alone.
        await anna.click("#session-new")
        await anna.shows("in “", "#permission")
        await anna.click("#session-states [data-state=needs]")
        await anna.wait("document.querySelectorAll('.session').length === 1")
        await anna.click("#session-states [data-state=needs]")
        await anna.wait("document.querySelectorAll('.session').length === 2")
        # A key answers, also while a prompt is being typed; without Alt it is typed.
        ready = "document.querySelector('[data-action=deny]')?.disabled === false"
        await anna.wait(ready)
        await anna.press("d")
        self.assertFalse(asked.done())
        await anna.chord("\ue00a", "d")
        self.assertFalse(bool(await asked))
        await anna.wait(CLOSED, "#permission")  # or the next waits could be for this one
        asked = run.begin(lambda turn: turn.permission("bash", "execute", params=params))
        await anna.wait(OPEN, "#permission")
        await anna.wait(ready)
        await anna.script("document.querySelector('#permission h2').focus()")
        await anna.press("d")  # meant for a prompt, perhaps
        await anna.script("document.querySelector('#permission button').focus()")
        await anna.press("a")
        self.assertTrue(bool(await asked))
        run.fail("no luck")
        await anna.shows("failed", ".session[data-state=failed]")
        await anna.shows("1 failed", "#session-states")
        await anna.click(".session[data-state=failed]")
        await anna.click(".msg:last-child .finish .again")
        again = await self.daemon.entered(2)
        self.assertEqual(again.prompt, "hello")
        await anna.wait("!document.querySelector('[data-state=failed].session')")
        again.release()

    async def test_calls_show_how_they_ended_and_output_is_followed(self) -> None:
        anna, run = await self.started()
        lines = "\n".join(f"line {n}" for n in range(100))
        call = await run.do(lambda turn: turn.tool_call("bash", '{"command": "make"}'))
        end = "(o => o.scrollTop > 0 && o.scrollHeight - o.scrollTop - o.clientHeight < 2)"
        end += "(document.querySelector('.tool .output'))"
        for number in range(2):
            run.turn.progress(call, lines + f"\nand {number}")
            await anna.shows(f"and {number}", ".tool .output")
            await anna.wait(end)

        async def work(turn: Turn) -> None:
            await turn.tool_result(call, "failed", metadata={"exit_code": 3, "output": "no"})
            denied = await turn.tool_call("write", '{"file_path": "a"}')
            await turn.tool_result(denied, "User denied permission", is_error=True)
            never = await turn.tool_call("bash", '{"command": "x"}')
            words = "user cancelled assistant tool calling"
            await turn.tool_result(never, words, is_error=True)
            served = await turn.tool_call("mcp_files_read_all", '{"path": "b"}')
            await turn.tool_result(served, "ok")
            questions = {"questions": [{"question": "Which?"}]}
            asked = await turn.tool_call("question", json.dumps(questions))
            await turn.tool_result(asked, "Q1: Which?\nUser wrote: this")
            edit = {"file_path": "c", "old_string": "x", "new_string": "y"}
            await turn.tool_call("edit", json.dumps(edit))

        await run.do(work)
        await anna.shows("exit 3", ".chip[data-kind=failed]")
        await anna.shows("denied", ".chip[data-kind=stopped]")
        await anna.shows("not run", ".chip[data-kind=stopped]")
        await anna.shows("files · read_all", ".tool-name")
        await anna.wait("document.querySelectorAll('.tool').length === 6")
        shown = await anna.script(
            "return [...document.querySelectorAll('.tool')].map(each => each.textContent)"
        )
        self.assertIn("Which?", shown[4])
        self.assertNotIn("{", shown[4])
        numbers = "return [...document.querySelectorAll('.line .number')].map(n => n.innerText)"
        self.assertEqual(set(await anna.script(numbers)), {""})  # where it stands is not known
        run.release()


class Commands(FeatureCase):
    async def test_the_palette_and_the_menu_do_what_can_be_done_with_a_session(self) -> None:
        anna, run = await self.started("make a file")
        path = self.daemon.root / "project" / "new.txt"

        async def work(turn: Turn) -> None:
            path.write_text("content\n")
            await turn.file_changed(str(path), None, "content\n")
            await turn.say("**done** `x`")

        await run.do(work)
        run.release()
        await anna.wait(IDLE)
        await anna.script(SAVED)
        await self.choose(anna, "#session-export")
        await anna.wait("window.saved.length === 1")
        text = await anna.script("return window.saved[0]")
        self.assertIn("## You\n\nmake a file\n\n## Agent\n\n**done** `x`", text)
        await self.command(anna, "as JSON")
        await anna.wait("window.saved.length === 2")
        saved = json.loads(await anna.script("return window.saved[1]"))
        self.assertEqual([each["role"] for each in saved["messages"]], ["user", "assistant"])
        await self.command(anna, "Undo the last changes")
        await anna.shows("new.txt", "#confirm")
        self.assertTrue(path.exists())
        await anna.click("#confirm [value=yes]")
        await anna.wait("document.querySelector('#announce').textContent.includes('put back')")
        self.assertFalse(path.exists())
        # A prompt is put into the box, to be changed and sent again.
        await anna.script("document.querySelector('.msg.user header button').click()")
        await anna.type("#prompt", ", better" + ENTER)
        second = await self.daemon.entered(2)
        self.assertEqual(second.prompt, "make a file, better")
        second.release()
        await anna.wait(IDLE)
        await self.command(anna, "New session")
        await anna.shows("Ask for something below", "#empty")
        await anna.click("#empty-prompts button")
        value = "return document.querySelector('#prompt').value"
        self.assertIn("Explain", await anna.script(value))
        await anna.script(PALETTE)
        await anna.wait(OPEN, "#palette")
        await anna.press(ESCAPE)
        await anna.wait(CLOSED, "#palette")

    async def test_a_command_of_the_daemon_is_expanded_before_it_is_sent(self) -> None:
        await self.serve()
        [anna] = await self.enter()
        await anna.script(
            "const real = window.fetch; window.fetch = async (target, given) => {"
            "  if (/commands$/.test(target)) return new Response(JSON.stringify("
            "    [{id: 'user:review', name: 'review', description: 'Review a branch'}]));"
            "  if (/commands.expand$/.test(target)) return new Response(JSON.stringify("
            "    {prompt: 'Look at ' + JSON.parse(given.body).text}));"
            "  return real(target, given); }"
        )
        await self.command(anna, "/review")
        await anna.type("#prompt", "main" + ENTER)
        run = await self.daemon.entered(1)
        self.assertEqual(run.prompt, "Look at main")
        run.release()
        await anna.wait(IDLE)
        await anna.type("#prompt", "/unknown thing" + ENTER)
        run = await self.daemon.entered(2)
        self.assertEqual(run.prompt, "/unknown thing")
        run.release()


class Agents(FeatureCase):
    async def test_a_session_gets_another_agent_before_it_begins_and_between_turns(self) -> None:
        home = Path(self.runtime) / "home"
        file = home / ".config/crush/crush.json"
        file.parent.mkdir(parents=True)
        entry = {"command": sys.executable, "args": ["-S", "-E", str(QUIRKY)]}
        file.write_text(json.dumps({"agents": {"quirky": entry}}))
        await self.serve(settings=Settings(user_files=str(home)))
        [anna] = await self.enter()
        await anna.click("#menu-open")
        await anna.wait("document.querySelector('#agent').options.length === 2")
        await anna.script(CHOOSE, "quirky")
        await anna.press(ESCAPE)
        await anna.type("#prompt", "say from elsewhere" + ENTER)
        await anna.shows("from elsewhere", ".msg.assistant")
        await anna.wait(IDLE)
        await self.command(anna, "own answer here")
        await anna.type("#prompt", "and you?" + ENTER)
        run = await self.daemon.entered(1)
        await run.say("from here")
        run.release()
        await anna.shows("from here", ".msg.assistant:last-child")
        await anna.wait(IDLE)


class Sizes(FeatureCase):
    async def test_a_long_session_is_drawn_from_its_end_and_a_turned_screen_has_no_drawer(
        self,
    ) -> None:
        await self.serve()
        [anna] = await self.enter()
        await anna.click("#session-new")
        await anna.wait("document.querySelector('.session')")
        await anna.script(MANY, 20_000)
        await anna.click("#session-new")
        await anna.shows("message 19999", ".msg.assistant")
        shown = "document.querySelectorAll('.msg').length === args[0]"
        await anna.wait(shown, 200)
        await anna.click("#earlier")
        await anna.wait(shown, 400)
        order = "return [...document.querySelectorAll('.msg')].map(each => each.dataset.id)"
        ids = await anna.script(order)
        self.assertEqual(ids, [f"m{n}" for n in range(19_600, 20_000)])
        size: dict[str, Any] = {"height": 800, "deviceScaleFactor": 1, "mobile": False}
        try:
            await anna.devtools("Emulation.setDeviceMetricsOverride", width=400, **size)
            await anna.click("#drawer-toggle")
            await anna.wait("document.body.classList.contains('drawer-open')")
            await anna.devtools("Emulation.setDeviceMetricsOverride", width=900, **size)
            await anna.wait("!document.body.classList.contains('drawer-open')")
            await anna.wait("document.querySelector('#shade').hidden")
        finally:
            await anna.devtools("Emulation.clearDeviceMetricsOverride")
        await anna.wait(LIVE)
