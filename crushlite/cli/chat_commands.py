"""The `/commands` of a chat, and what else a line that was typed may mean."""

from __future__ import annotations

import difflib
import os
import re
import time
from typing import TYPE_CHECKING

from ..errors import NotFound, UsageError
from ..features import requests
from .chat_dialogs import QuestionDialog
from .helptext import EFFORT
from .lookup import SHORT, choose, find_model
from .permissions import rule_lines
from .tables import table
from .text import ago, one_line

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ..features.wire import CommandInfo
    from ..protocol.permissions import PermissionRule
    from ..protocol.sessions import Session
    from .chat_session import Chat

CANDIDATES = 20  # that are shown when a completion is not clear
ENTRIES = 2000  # of a folder that are looked at for one
_COMMAND = re.compile(r"/[A-Za-z?][\w:.-]*(?=\s|$)")

HELP = (
    ("/sessions", "the sessions of this directory"),
    ("/new", "begin another session with the next prompt"),
    ("/switch N|ID", "go to a session: its number in /sessions, or its id"),
    ("/rename TITLE", "give this session a title"),
    ("/cancel", "end what runs, and what is queued; Ctrl-C does the same"),
    ("/queue [drop N|clear]", "prompts that wait; take one back, or all"),
    ("/later TEXT", "a prompt with a turn of its own, after what runs"),
    ("/now TEXT", "a prompt that cancels what runs, and comes first"),
    ("/model [small] [N|NAME]", "the models, or choose one for later prompts"),
    ("/agent [NAME]", "who answers in this session: crush.json, acp:COMMAND, default"),
    ("/effort [LEVEL]", "how much the model reasons here: none, low ..., on, default"),
    ("/permissions [remove N]", "what is allowed unasked; take a rule back"),
    ("/summarize", "replace the conversation so far by a summary"),
    ("/show [N]", "all of a tool call, reasoning or command output"),
    ("/skip", "leave a question without an answer"),
    ("/commands", "your own commands, skills and prompts of tool servers; /NAME sends one"),
    ("/quit", "leave; Ctrl-D does the same"),
    ("!COMMAND", "run a command here; the model sees it later"),
    ("//TEXT", "a prompt with a slash: //help goes to the agent"),
)


KEYS_HELP = (
    "Tab completes /commands and @files, Ctrl-R searches what was typed before.",
    "Enter sends; a line that ends with \\, or Alt-Enter, goes on in the next one.",
)


def files_at(root: str, begun: str) -> list[str]:
    """Paths below a folder that begin with this text, folders with a slash at their end. Hidden
    ones only if the text asks for them."""
    folder, _, name = begun.rpartition("/")
    if begun.startswith("/") or ".." in folder.split("/"):
        return []
    found = []
    try:
        with os.scandir(os.path.join(root, folder)) as entries:
            for _, entry in zip(range(ENTRIES), entries, strict=False):
                hidden = entry.name.startswith(".") and not name.startswith(".")
                if entry.name.startswith(name) and entry.name.isprintable() and not hidden:
                    path = f"{folder}/{entry.name}" if folder else entry.name
                    found.append(f"{path}/" if entry.is_dir() else path)
    except OSError:
        return []
    return sorted(found)


class Commands:
    """Carries out the lines that were typed in a chat."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self._listed: list[str] = []  # sessions, as /sessions numbered them last
        self._models: list[str] = []  # PROVIDER/MODEL, as /model did
        self._rules: list[str] = []  # as /permissions did
        self._own: list[str] = []  # the names of commands of the daemon, when they were last read
        self._table: dict[str, Callable[[str], Awaitable[None]]] = {
            "/help": self._help,
            "/?": self._help,
            "/sessions": self._sessions,
            "/new": self._new,
            "/switch": self._switch,
            "/rename": self._rename,
            "/cancel": self._cancel,
            "/queue": self._queue,
            "/later": self._later,
            "/now": self._now,
            "/model": self._model,
            "/agent": self._agent,
            "/effort": self._effort,
            "/permissions": self._permissions,
            "/summarize": self._summarize,
            "/commands": self._list_commands,
            "/show": self._show,
            "/skip": self._skip,
            "/quit": self._quit,
            "/exit": self._quit,
        }

    def complete(self, text: str) -> str:
        """For the Tab key: the text with its command, or its last word if that is `@` and the
        beginning of a path, completed as far as it is clear. If it is not clear, the candidates are
        shown."""
        start, _, word = text.rpartition(" ")
        if not start and text[:1] == "/":
            own = (f"/{name}" for name in self._own)
            found = [name for name in dict.fromkeys((*self._table, *own)) if name.startswith(text)]
            return self._completed("", text, found, " ")
        if word[:1] == "@":
            names = files_at(self._chat.workspace.info.path, word[1:])
            return self._completed(text[: len(text) - len(word)], word, [f"@{n}" for n in names])
        return text

    def _completed(self, before: str, word: str, found: list[str], end: str = "") -> str:
        if not found:
            return before + word
        first, last = min(found), max(found)  # what these two begin with, all do
        same = zip(first, last, strict=False)
        common = first[: next((at for at, (a, b) in enumerate(same) if a != b), len(first))]
        if len(found) == 1:
            return before + common + ("" if common.endswith("/") else end or " ")
        if common == word:
            more = f" and {len(found) - CANDIDATES} more" if len(found) > CANDIDATES else ""
            self._chat.note(f"{'  '.join(found[:CANDIDATES])}{more}")
        return before + common

    async def carry_out(self, line: str) -> None:
        """Carry out a line: a command, an answer to the open dialog, a shell command or a prompt.
        Errors that the daemon answers are shown."""
        chat, text = self._chat, line.strip()
        if match := _COMMAND.match(text):
            chat.screen.lines([f"> {one_line(text)}"], "command", chat.screen.style.dim)
            command, rest = self._table.get(match[0]), text[match.end() :].strip()
            if command is None:
                return await chat.attempt(self._own_command(match[0], rest))
            return await chat.attempt(command(rest))
        if not text:
            return
        if text.startswith("//"):
            text = text[1:]
        if chat.dialog is not None:
            return await chat.answer(text)
        if chat.is_late(text):
            return chat.note(f"answered already, so this was not sent: {text}")
        if text.startswith("!"):
            return chat.spawn(chat.attempt(self._shell(text[1:].strip())))
        await chat.post(text)

    async def read_commands(self) -> list[CommandInfo]:
        """Read which commands the daemon has; none if it cannot say. Their names are completed."""
        try:
            found = await requests.commands(self._chat.workspace)
        except NotFound:
            found = []
        self._own = [info.name for info in found]
        return found

    async def _own_command(self, name: str, rest: str) -> None:
        """Send the prompt of a command of the daemon."""
        try:
            prompt = await requests.expand_command(self._chat.workspace, name[1:], text=rest)
        except NotFound:
            await self.read_commands()
            return self._chat.complain(self._unknown(name))
        await self._chat.post(prompt)

    async def _list_commands(self, rest: str) -> None:
        found = await self.read_commands()
        if not found:
            return self._chat.note("there are none: docs/skills.md says where they are looked for")
        rows = [
            [
                f"/{each.name}",
                " ".join(one.name if one.required else f"[{one.name}]" for one in each.arguments),
                each.source,
                each.description,
            ]
            for each in found
        ]
        lines = table(rows, ["COMMAND", "ARGUMENTS", "FROM", ""], self._chat.screen.style)
        self._chat.screen.lines(lines.split("\n"), "list")

    def _unknown(self, name: str) -> str:
        own = [f"/{each}" for each in self._own]
        near = difflib.get_close_matches(name, [*self._table, *own], 1)
        guess = f"did you mean {near[0]}? " if near else ""
        return f"no command {name}: {guess}/help lists them; /{name} sends it as a prompt"

    # Around the chat ----------------------------------------------------------------------------

    async def _help(self, rest: str) -> None:
        lines = [f"{name:<24} {text}" for name, text in HELP]
        self._chat.screen.lines([*lines, "", *KEYS_HELP], "help")

    async def _show(self, rest: str) -> None:
        items = self._chat.view.items
        number = int(rest) if rest.isdecimal() else len(items)
        if not 1 <= number <= len(items):
            raise UsageError("there is nothing to show yet" if not rest else f"no item {rest}")
        item = items[number - 1]
        self._chat.screen.lines([f"[{number}] {item.title}"], "item", self._chat.screen.style.bold)
        self._chat.screen.lines(item.body, "item")

    async def _skip(self, rest: str) -> None:
        dialog = self._chat.dialog
        if not isinstance(dialog, QuestionDialog):
            raise UsageError("no question is open")
        dialog.dismiss()
        await self._chat.send(dialog)

    async def _quit(self, rest: str) -> None:
        self._chat.leave()

    # Sessions -----------------------------------------------------------------------------------

    async def _sessions(self, rest: str) -> None:
        sessions = await self._chat.workspace.sessions()
        self._listed = [session.id for session in sessions]
        if not sessions:
            return self._chat.note("no sessions yet")
        now = time.time()
        rows = [
            [
                "*" if each.id == self._chat.session.id else "",
                str(number),
                each.id[:SHORT],
                ago(each.updated_at, now),
                "at work" if each.is_busy else "",
                each.title or "untitled",
            ]
            for number, each in enumerate(sessions, 1)
        ]
        heads = ["", "N", "ID", "USED", "", "TITLE"]
        self._chat.screen.lines(table(rows, heads, self._chat.screen.style).split("\n"), "list")

    async def _new(self, rest: str) -> None:
        self._chat.forget()
        self._chat.note("the next prompt begins a new session")
        if rest:
            await self._chat.post(rest)

    async def _switch(self, rest: str) -> None:
        await self._chat.open_session(await self._find(rest))

    async def _find(self, given: str) -> Session:
        """A session by its number in the last /sessions, its id, or the beginning of that. Raises
        CrushliteError if there is none."""
        sessions = {session.id: session for session in await self._chat.workspace.sessions()}
        if not given:
            raise UsageError("which session? /sessions lists them")
        if given.isdecimal() and 1 <= int(given) <= len(self._listed):
            given = self._listed[int(given) - 1]
        if found := choose(given, sessions, "sessions"):
            return sessions[found]
        raise NotFound(f"no session {given}: /sessions lists them")

    async def _rename(self, rest: str) -> None:
        if not rest:
            raise UsageError("which title?")
        session = await self._chat.workspace.rename(self._here(), rest)
        self._chat.note(f"this session is now called {one_line(session.title)}")

    def _here(self) -> str:
        """The id of the session. Raises UsageError if there is none yet."""
        if not self._chat.session.id:
            raise UsageError("there is no session yet: it begins with the first prompt")
        return self._chat.session.id

    # Work ---------------------------------------------------------------------------------------

    async def _cancel(self, rest: str) -> None:
        self._here()
        await self._chat.cancel()

    async def _queue(self, rest: str) -> None:
        workspace, session_id = self._chat.workspace, self._here()
        waiting = await workspace.queue(session_id)
        verb, _, number = rest.partition(" ")
        if verb == "clear":
            await workspace.clear(session_id)
        elif verb == "drop":
            if not number.isdecimal() or not 1 <= int(number) <= len(waiting):
                raise UsageError(f"drop which of the {len(waiting)} that wait?")
            await workspace.remove(session_id, waiting[int(number) - 1].run_id)
        elif waiting:
            lines = [f"{n}  {one_line(each.text)}" for n, each in enumerate(waiting, 1)]
            self._chat.screen.lines(lines, "list")
        else:
            self._chat.note("nothing is queued")

    async def _later(self, rest: str) -> None:
        await self._chat.post(_given(rest), "queue")

    async def _now(self, rest: str) -> None:
        await self._chat.post(_given(rest), "interrupt")

    async def _summarize(self, rest: str) -> None:
        self._chat.spawn(self._chat.attempt(self._summary(self._here())))

    async def _summary(self, session_id: str) -> None:
        self._chat.note("summarizing")
        self._chat.changed()
        await self._chat.workspace.summarize(session_id)
        self._chat.changed()

    async def _shell(self, command: str) -> None:
        if not command:
            raise UsageError("which command?")
        await self._chat.shell(command)

    async def _effort(self, rest: str) -> None:
        efforts, session_id = self._chat.efforts, self._chat.session.id
        if rest and not re.fullmatch(EFFORT, rest):
            raise UsageError(f"{rest!r} is no word such as none, low, medium, high, on or default")
        if rest:
            efforts[session_id] = "" if rest == "default" else rest
        info = await self._chat.workspace.agent()
        configured = info.model_cfg.reasoning_effort or ("on" if info.model_cfg.think else "none")
        levels = ", ".join(info.model.reasoning_levels)
        now = efforts.get(session_id) or f"as configured, {configured}"
        known = f"; the model has the levels {levels}" if levels else ""
        self._chat.note(one_line(f"reasoning in this session: {now}{known}"))

    async def _agent(self, rest: str) -> None:
        chat, session_id = self._chat, self._chat.session.id
        if rest:
            await chat.choose_agent(rest, session_id)
        elif offered := await requests.offered_agents(chat.workspace):
            rows = [[agent.name, agent.command] for agent in offered]
            lines = table(rows, ["NAME", "COMMAND"], chat.screen.style).split("\n")
            chat.screen.lines(lines, "list")
        now = (
            await requests.session_agent(chat.workspace, session_id)
            if session_id
            else chat.next_agent
        )
        chat.note(one_line(f"prompts of this session go to {now or 'the agent of the daemon'}"))

    async def _permissions(self, rest: str) -> None:
        rules = await self._chat.workspace.rules()
        verb, _, number = rest.partition(" ")
        if verb == "remove":
            rule = self._rule(number.strip(), rules)
            await self._chat.workspace.remove_rule(rule.id)
            return self._chat.note(f"taken back: {one_line(rule.words)}")
        if not rules:
            return self._chat.note("nothing is allowed beyond what was asked")
        self._rules = [rule.id for rule in rules]
        lines = [
            f"{number:>3}  {line}" if not more else f"     {line}"
            for number, rule in enumerate(rules, 1)
            for more, line in enumerate(rule_lines(rule))
        ]
        self._chat.screen.lines(lines, "list")

    def _rule(self, given: str, rules: list[PermissionRule]) -> PermissionRule:
        """A rule by its number in the last list, its id, or the beginning of that. Raises
        CrushliteError if there is none."""
        if given.isdecimal() and 1 <= int(given) <= len(self._rules):
            given = self._rules[int(given) - 1]
        found = choose(given, [rule.id for rule in rules], "rules")
        if not found:
            raise NotFound(f"no rule {given}: /permissions lists them")
        return next(rule for rule in rules if rule.id == found)

    async def _model(self, rest: str) -> None:
        workspace = self._chat.workspace
        role, _, name = rest.partition(" ")
        if role not in ("large", "small"):
            role, name = "large", rest
        if not name.strip():
            return await self._list_models()
        number = int(name) if name.strip().isdecimal() else 0
        if number and not self._models:
            return await self._list_models()  # a number means nothing before they are seen
        listed = self._models[number - 1] if 1 <= number <= len(self._models) else name.strip()
        model, _ = await find_model(workspace, listed)
        await requests.choose_model(workspace, role, model)
        what = "later prompts go" if role == "large" else "titles come"
        way = "to" if role == "large" else "from"
        name = one_line(f"{model.provider}/{model.model}")
        self._chat.note(
            f"{what} {way} {name}, in all your directories without a choice of their own"
        )

    async def _list_models(self) -> None:
        workspace = self._chat.workspace
        info = await workspace.agent()
        used = f"{info.model_cfg.provider}/{info.model_cfg.model}"
        rows = []
        self._models = []
        for provider in await workspace.providers():
            for model in provider.get("models") or ():
                name = f"{provider['id']}/{model['id']}"
                self._models.append(name)
                window = model.get("context_window") or "?"
                mark = "*" if name == used else ""
                rows.append([mark, str(len(self._models)), name, str(window)])
        if not rows:
            return self._chat.note("no models are configured")
        lines = table(rows, ["", "N", "MODEL", "WINDOW"], self._chat.screen.style)
        self._chat.screen.lines(lines.split("\n"), "list")


def _given(text: str) -> str:
    if not text:
        raise UsageError("which prompt?")
    return text
