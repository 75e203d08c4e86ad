"""The offline agent, which needs no network, no key and no model.

It answers by quoting the prompt, streamed in pieces. A line that begins with a slash is a directive
that makes it use one feature of the daemon; `/help` lists them. So a newcomer can try the daemon,
and the author of a user interface can try all of its features.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from typing import TYPE_CHECKING, NamedTuple

from ..agent.base import Info, Scope, Title, Usage
from ..protocol.config import Model, SelectedModel
from ..protocol.questions import Choice, Question
from ..protocol.sessions import Todo

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ..agent.base import Turn, Verdict


MOST_PIECES = 100  # of one answer: also a long prompt is quoted within some seconds


class OfflineAgent:
    """`pace` are the seconds between two pieces of an answer, so that streaming can be seen. `why`
    says why this agent answers if the user did not choose it; `instead_of` names the model that is
    configured if the user did."""

    def __init__(self, *, pace: float = 0.02, why: str = "", instead_of: str = "") -> None:
        self._pace = pace
        self._why = why
        self._instead_of = instead_of

    def info(self) -> Info:
        return Info(
            Model(id="offline", name="Offline", context_window=100_000, default_max_tokens=4096),
            SelectedModel(model="offline", provider="offline"),
            self._why,
        )

    async def title(self, text: str) -> Title:
        return Title(" ".join(text.split())[:50], plain=True)

    async def run(self, turn: Turn) -> None:
        if turn.attachments:
            await self._stream(turn, "You sent a file.\n")
        quoted: list[str] = []
        for line in turn.prompt.split("\n"):
            name, _, rest = line.partition(" ")
            directive = DIRECTIVES.get(name)
            if directive is None:
                quoted.append(line)
                continue
            await self._quote(turn, quoted)
            quoted = []
            await directive.perform(self, turn, rest.strip())
        await self._quote(turn, quoted)

    async def summarize(self, turn: Turn) -> None:
        said = [message.text for message in await turn.history() if message.role == "user"]
        await self._stream(turn, f"You wrote {len(said)} prompts so far.\n")

    async def _quote(self, turn: Turn, lines: list[str]) -> None:
        text = "\n".join(lines).strip()
        if text:
            if self._instead_of:
                await turn.say(
                    f"(The offline agent answers, because the daemon was started with it. "
                    f"{self._instead_of} is configured: `crushlite stop`, then ask again.)\n\n"
                )
            await self._stream(turn, f"You said: {text}\n")
            if self._why:
                await turn.say(f"\nNo model: {self._why}. `crushlite doctor` says what to do.\n")

    async def _stream(self, turn: Turn, text: str) -> None:
        words = re.findall(r"\S*\s+|\S+", text)
        at_once = math.ceil(len(words) / MOST_PIECES)
        for first in range(0, len(words), at_once):
            await turn.say("".join(words[first : first + at_once]))
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
        command = rest or "true"
        call = await self._allowed(turn, command, "offline demonstration", "Pretend to run")
        if call is not None:
            await turn.tool_result(call, f"(nothing was run) {command}")
            await self._stream(turn, "You allowed it.\n")

    async def _allowed(self, turn: Turn, command: str, reason: str, verb: str) -> str | None:
        """Make a tool call for a command and ask for permission. Return the id of the call, or None
        if the permission was denied: then the call has its result."""
        parameters = {"command": command, "description": reason}
        call = await turn.tool_call("bash", json.dumps(parameters))
        verdict = await turn.permission(
            "bash",
            "execute",
            description=f"{verb}: {command}",
            params={**parameters, **_NO_OPTIONS},
            tool_call_id=call,
            scope=Scope((command,), "this very command"),
        )
        if verdict:
            return call
        await turn.tool_result(call, _refusal(verdict), is_error=True)
        await self._stream(turn, "You did not allow it.\n")
        return None

    async def _run(self, turn: Turn, rest: str) -> None:
        text = rest or "pwd"
        call = await self._allowed(turn, text, "asked for with /run", "Execute command")
        if call is None:
            return
        command = await turn.command(text)
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

    async def _cost(self, turn: Turn, rest: str) -> None:
        cents = _number(rest, default=10, most=100_000)
        await turn.usage(Usage(1000, 100, cents / 100))
        await self._stream(turn, f"That was {cents} cents, had it been a model.\n")

    async def _delegate(self, turn: Turn, rest: str) -> None:
        prompt = rest or "look around"
        call = await turn.tool_call("agent", json.dumps({"prompt": prompt}))
        answer = await turn.delegate(call, prompt, self)
        await turn.tool_result(call, answer.text)
        await self._stream(turn, "The sub-agent has answered.\n")

    async def _fail(self, turn: Turn, rest: str) -> None:
        raise RuntimeError(rest or "you asked me to fail")


class Directive(NamedTuple):
    """What a line that begins with its name does, with the rest of the line."""

    argument: str  # as the help shows it
    help: str
    perform: Callable[[OfflineAgent, Turn, str], Awaitable[None]]


DIRECTIVES = {
    "/help": Directive("", "this text", OfflineAgent._help),
    "/slow": Directive(
        "SECONDS", "count the seconds, one by one; cancel me in the middle", OfflineAgent._slow
    ),
    "/think": Directive("TEXT", "show some reasoning, then answer", OfflineAgent._think),
    "/tool": Directive(
        "TEXT", "ask permission for a tool call, then pretend to run it", OfflineAgent._tool
    ),
    "/run": Directive(
        "COMMAND", "ask permission, then really run the command here", OfflineAgent._run
    ),
    "/todo": Directive("A, B, C", "work through a to-do list", OfflineAgent._todo),
    "/ask": Directive("QUESTION", "ask you a yes-or-no question", OfflineAgent._ask),
    "/steps": Directive(
        "N", "take N steps; prompts sent meanwhile are folded in at each", OfflineAgent._steps
    ),
    "/cost": Directive("CENTS", "report a cost, as a model call does", OfflineAgent._cost),
    "/agent": Directive(
        "PROMPT", "give a prompt, or a directive, to a sub-agent", OfflineAgent._delegate
    ),
    "/long": Directive("N", "answer with N words", OfflineAgent._long),
    "/fail": Directive("TEXT", "fail with this message", OfflineAgent._fail),
}
_LINES = "\n".join(f"{f'{name} {d.argument}':17} {d.help}" for name, d in DIRECTIVES.items())
HELP = f"""I am the offline agent: I need no network and no key. I quote what you write, and obey:

{_LINES}

Any number of directives may follow each other, one to a line."""

# What a permission for bash holds besides the command, as the coder's tool sends it.
_NO_OPTIONS = {"working_dir": "", "run_in_background": False, "auto_background_after": 0}


def _refusal(verdict: Verdict) -> str:
    return f"User denied permission{f': {verdict.reason}' if verdict.reason else ''}"


def _number(text: str, default: int, most: int) -> int:
    return min(int(text), most) if text.isdecimal() else default
