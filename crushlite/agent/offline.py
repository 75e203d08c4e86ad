"""The offline agent: no network, no key, every feature.

It answers by quoting the prompt, streamed in pieces. A line that begins with a slash is a directive
and makes it do something worth watching: `/help` lists them. So a newcomer can try the daemon, and
the author of a user interface can exercise all of it, without a model.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING

from ..protocol.config import Model, SelectedModel
from ..protocol.questions import Choice, Question
from ..protocol.sessions import Todo
from .base import Info

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from .base import Turn, Verdict

    Directive = Callable[[Turn, str], Awaitable[None]]

HELP = """I am the offline agent: I need no network and no key. I quote what you write, and obey:

/help             this text
/slow SECONDS     count the seconds, one by one; cancel me in the middle
/think TEXT       show some reasoning, then answer
/tool TEXT        ask permission for a tool call, then pretend to run it
/run COMMAND      ask permission, then really run the command here
/todo A, B, C     work through a to-do list
/ask QUESTION     ask you a yes-or-no question
/steps N          take N steps; prompts sent meanwhile are folded in at each
/long N           answer with N words
/fail TEXT        fail with this message

Any number of directives may follow each other, one to a line."""


class OfflineAgent:
    def __init__(self, *, pace: float = 0.02, why: str = "") -> None:
        self._pace = pace  # seconds between two pieces, so that streaming can be seen
        self._why = why  # it answers, if nobody asked for it

    def info(self) -> Info:
        return Info(
            Model(id="offline", name="Offline", context_window=100_000, default_max_tokens=4096),
            SelectedModel(model="offline", provider="offline"),
        )

    async def title(self, text: str) -> str:
        return " ".join(text.split())[:50]

    async def run(self, turn: Turn) -> None:
        if turn.attachments:
            await self._stream(turn, "You sent a file.\n")
        quoted: list[str] = []
        for line in turn.prompt.split("\n"):
            name, _, rest = line.partition(" ")
            directive = self._directives().get(name)
            if directive is None:
                quoted.append(line)
                continue
            await self._quote(turn, quoted)
            quoted = []
            await directive(turn, rest.strip())
        await self._quote(turn, quoted)

    async def summarize(self, turn: Turn) -> None:
        said = [message.text for message in await turn.history() if message.role == "user"]
        await self._stream(turn, f"You wrote {len(said)} prompts so far.\n")

    def _directives(self) -> dict[str, Directive]:
        return {
            "/help": self._help,
            "/slow": self._slow,
            "/think": self._think,
            "/tool": self._tool,
            "/run": self._run,
            "/todo": self._todo,
            "/long": self._long,
            "/ask": self._ask,
            "/steps": self._steps,
            "/fail": self._fail,
        }

    async def _quote(self, turn: Turn, lines: list[str]) -> None:
        text = "\n".join(lines).strip()
        if text:
            await self._stream(turn, f"You said: {text}\n")
            if self._why:
                await turn.say(f"\nNo model: {self._why}. `crushlite doctor` says what to do.\n")

    async def _stream(self, turn: Turn, text: str) -> None:
        for word in re.findall(r"\S*\s+|\S+", text):
            await turn.say(word)
            await asyncio.sleep(self._pace)

    async def _help(self, turn: Turn, rest: str) -> None:
        await turn.say(HELP + "\n")

    async def _slow(self, turn: Turn, rest: str) -> None:
        seconds = _number(rest, default=5, most=3600)
        for second in range(1, seconds + 1):
            await asyncio.sleep(1)
            await turn.say(f"{second} ")
        await turn.say("\n")

    async def _think(self, turn: Turn, rest: str) -> None:
        for word in (rest or "let me see").split(" "):
            await turn.think(word + " ")
            await asyncio.sleep(self._pace)
        await self._stream(turn, "I have thought about it.\n")

    async def _tool(self, turn: Turn, rest: str) -> None:
        parameters = {"command": rest or "true", "description": "offline demonstration"}
        call = await turn.tool_call("bash", json.dumps(parameters))
        verdict = await turn.permission(
            "bash",
            "execute",
            description=f"Pretend to run: {parameters['command']}",
            params={**parameters, **_NO_OPTIONS},
            tool_call_id=call,
        )
        if verdict:
            await turn.tool_result(call, f"(nothing was run) {parameters['command']}")
            await self._stream(turn, "You allowed it.\n")
        else:
            await turn.tool_result(call, _refusal(verdict), is_error=True)
            await self._stream(turn, "You did not allow it.\n")

    async def _run(self, turn: Turn, rest: str) -> None:
        parameters = {"command": rest or "pwd", "description": "asked for with /run"}
        call = await turn.tool_call("bash", json.dumps(parameters))
        verdict = await turn.permission(
            "bash",
            "execute",
            description=f"Execute command: {parameters['command']}",
            params={**parameters, **_NO_OPTIONS},
            tool_call_id=call,
        )
        if not verdict:
            await turn.tool_result(call, _refusal(verdict), is_error=True)
            await self._stream(turn, "You did not allow it.\n")
            return
        command = await turn.command(parameters["command"])
        end = await command.wait(timeout=60)
        code = f"\nExit code {end.code}" if end.code else ""
        await turn.tool_result(call, command.output.text() + code, is_error=bool(end.code))
        await self._stream(turn, f"It ended with exit code {end.code}.\n")

    async def _todo(self, turn: Turn, rest: str) -> None:
        names = [name.strip() for name in (rest or "look, think, act").split(",") if name.strip()]
        for done in range(len(names) + 1):
            states = ["completed"] * done + ["in_progress"] + ["pending"] * len(names)
            listed = zip(names, states, strict=False)
            await turn.todos([Todo(name, state, f"Doing: {name}") for name, state in listed])
            await asyncio.sleep(self._pace)
        await self._stream(turn, f"{len(names)} things done.\n")

    async def _long(self, turn: Turn, rest: str) -> None:
        words = (f"word{number} " for number in range(1, _number(rest, 200, 100_000) + 1))
        for word in words:
            await turn.say(word)
        await turn.say("\n")

    async def _ask(self, turn: Turn, rest: str) -> None:
        text = (rest or "Shall we go on?")[:240]
        call = await turn.tool_call("question", json.dumps({"questions": [{"question": text}]}))
        question = Question(
            type="single_choice",
            label="Question",
            question=text,
            description="Asked by the offline agent.",
            choices=[Choice("yes", "Yes", "go on"), Choice("no", "No", "stop here")],
        )
        answers = await turn.ask([question], tool_call_id=call)
        if answers is None:
            await turn.tool_result(call, "The user dismissed the question.", is_error=True)
            return
        own = [answer.selected_ids or [answer.fill_in_text] for answer in answers]
        chosen = [choice for choices in own for choice in choices if choice]
        await turn.tool_result(call, f"Q1: {text}\nUser selected: {json.dumps(chosen)}")
        await self._stream(turn, f"You chose {', '.join(chosen) or 'nothing'}.\n")

    async def _steps(self, turn: Turn, rest: str) -> None:
        for number in range(1, _number(rest, default=3, most=1000) + 1):
            for message in await turn.followups():
                await turn.say(f"Meanwhile you said: {message.text}\n")
            call = await turn.tool_call("step", json.dumps({"number": number}))
            await asyncio.sleep(1)
            await turn.tool_result(call, f"step {number} is done")
        await self._stream(turn, "All steps are done.\n")

    async def _fail(self, turn: Turn, rest: str) -> None:
        raise RuntimeError(rest or "you asked me to fail")


_NO_OPTIONS = {"working_dir": "", "run_in_background": False, "auto_background_after": 0}


def _refusal(verdict: Verdict) -> str:
    return f"User denied permission{f': {verdict.reason}' if verdict.reason else ''}"


def _number(text: str, default: int, most: int) -> int:
    return min(int(text), most) if text.isdecimal() else default
