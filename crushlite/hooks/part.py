"""Which hooks are run when, in one workspace, and what their answers mean there.

| event | asked | a failure of the hook |
|---|---|---|
| PreToolUse | before a tool runs, and before anybody is asked for permission | is a no |
| UserPromptSubmit | before the agent sees a prompt | is a no |
| PermissionRequest | before users are asked | they are asked |
| PostToolUse, PostToolUseFailure, Stop, SessionStart, SessionEnd, Notification | | is logged |

All hooks of one event run at the same time; what they say counts in the order of the files.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any

from ..clock import all_done
from ..errors import CrushliteError
from ..guards.part import GuardPart, Ruling
from ..protocol.codec import dumps
from ..store import sessions as session_rows
from ..version import NAME
from ..wing import Author
from . import definitions as events
from .definitions import hooks_of
from .running import run_hook
from .verdicts import HookResult, HooksOutcome, read_output

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from ..config.profile import FileProfile
    from ..guards.part import ToolUsed
    from ..protocol.permissions import PermissionRequest
    from ..wing import OpenWorkspace
    from .definitions import Hook

log = logging.getLogger(__name__)

AT_ONCE = 8  # hooks of a workspace that run at the same time
RESULT_CHARS = 200_000  # of a tool's result that a hook gets
SESSIONS = 1000  # that have begun and not ended
END_SECONDS = 5.0  # for all that runs when the workspace closes, and for SessionEnd
MOST_WAITING = 32  # hooks that are told something, and not waited for


class HooksPart(GuardPart):
    """The hooks of one workspace; `profile` has the configuration that is in force."""

    def __init__(self, workspace: OpenWorkspace, profile: FileProfile) -> None:
        self._workspace = workspace
        self._profile = profile
        self._config: object = None  # the one that `_hooks` was read from
        self._hooks: tuple[Hook, ...] = ()
        self._running = asyncio.Semaphore(AT_ONCE)
        self._begun: dict[str, None] = {}  # sessions whose SessionStart was told
        self._told: set[asyncio.Task[None]] = set()

    # Asked by turns ------------------------------------------------------------------------------

    @property
    def guards_prompts(self) -> bool:  # type: ignore[override]
        return bool(self._matching(events.PROMPT))

    @property
    def guards_stop(self) -> bool:  # type: ignore[override]
        return bool(self._matching(events.STOP))

    async def before_prompt(self, author: Author, text: str) -> Ruling | None:
        context = [await self._start_session(author)]
        outcome = await self._ask(events.PROMPT, author, {"prompt": text})
        context.append(outcome.context)
        denied = outcome.reason if outcome.decision == "deny" or outcome.halt else ""
        added = "\n".join(filter(None, context))
        return Ruling(denied=denied, context=added, halt=outcome.halt)

    async def before_tool(self, used: ToolUsed) -> Ruling | None:
        outcome = await self._ask_of_tool(events.PRE_TOOL, used, {})
        if not outcome.results:
            return None
        decision = outcome.decision
        return Ruling(
            denied=outcome.reason if decision == "deny" or outcome.halt else "",
            allowed=decision == "allow",
            ask=decision == "ask",
            input=outcome.rewritten(dict(used.input)),
            context=outcome.context,
            halt=outcome.halt,
            shown=outcome.shown(),
        )

    async def after_tool(self, used: ToolUsed, result: str, is_error: bool) -> Ruling | None:
        event = events.POST_TOOL_FAILURE if is_error else events.POST_TOOL
        response = {"content": result[:RESULT_CHARS], "is_error": is_error}
        outcome = _without_failures(
            await self._ask_of_tool(event, used, {"tool_response": response})
        )
        denied = outcome.reason if outcome.decision == "deny" or outcome.halt else ""
        return Ruling(denied=denied, context=outcome.context, halt=outcome.halt)

    async def permission_asked(self, author: Author, request: PermissionRequest) -> Ruling | None:
        more = {
            "tool_name": request.tool_name,
            "tool_input": request.params,
            "action": request.action,
            "path": request.path,
            "description": request.description,
        }
        outcome = _without_failures(
            await self._ask(events.PERMISSION, author, more, request.tool_name)
        )
        if outcome.decision == "deny" or outcome.halt:
            return Ruling(denied=outcome.reason, halt=outcome.halt)
        changed = any(result.rewrites for result in outcome.results)
        if outcome.decision == "allow" and changed:
            # What would be done is what the request shows, not what the hook allows.
            log.warning("a PermissionRequest hook cannot change the input: users are asked")
            return None
        return Ruling(allowed=True) if outcome.decision == "allow" else None

    async def before_stop(self, author: Author, text: str, again: bool) -> Ruling | None:
        more = {"stop_hook_active": again, "last_assistant_message": text[:RESULT_CHARS]}
        outcome = _without_failures(await self._ask(events.STOP, author, more))
        denied = outcome.reason if outcome.decision == "deny" else ""
        return Ruling(denied=denied, halt=outcome.halt)

    # Told ----------------------------------------------------------------------------------------

    def notified(self, author: Author, kind: str, text: str) -> None:
        if self._matching(events.NOTIFICATION, kind):
            more = {"notification_type": kind, "message": text[:2000], "title": NAME}
            self._tell(self._told_of(events.NOTIFICATION, author, more, kind))

    def session_deleted(self, session_id: str) -> None:
        if session_id in self._begun:
            del self._begun[session_id]
            more = {"reason": "deleted"}
            self._tell(self._told_of(events.SESSION_END, Author(session_id), more, "deleted"))

    async def close(self) -> None:
        for session_id in self._begun if self._matching(events.SESSION_END) else ():
            more = {"reason": "other"}
            self._tell(self._told_of(events.SESSION_END, Author(session_id), more, "other"))
        if not await all_done(self._workspace.clock, list(self._told), END_SECONDS):
            log.warning("workspace %s: hooks did not end in time", self._workspace.path)
        for task in self._told:
            task.cancel()
        await asyncio.gather(*self._told, return_exceptions=True)

    async def _start_session(self, author: Author) -> str:
        """Tell of a session whose first turn in this workspace begins; returns context for it."""
        session_id = author.session_id
        if session_id in self._begun:
            return ""
        self._begun[session_id] = None
        while len(self._begun) > SESSIONS:
            del self._begun[next(iter(self._begun))]
        if not self._matching(events.SESSION_START):
            return ""
        source = "startup"
        with contextlib.suppress(CrushliteError):
            session = await self._workspace.store.read(session_rows.get_session, session_id)
            source = "resume" if session.message_count > 1 else "startup"
        more = {"source": source}
        outcome = await self._ask(events.SESSION_START, author, more, source)
        return _without_failures(outcome).context

    def _tell(self, work: Coroutine[Any, Any, None]) -> None:
        if len(self._told) >= MOST_WAITING:
            work.close()
            return log.warning("workspace %s: too many hooks wait", self._workspace.path)
        task = asyncio.create_task(work)
        self._told.add(task)
        task.add_done_callback(self._told.discard)

    async def _told_of(self, event: str, author: Author, more: dict[str, Any], about: str) -> None:
        _without_failures(await self._ask(event, author, more, about))

    # Running -------------------------------------------------------------------------------------

    def _matching(self, event: str, subject: str = "") -> list[Hook]:
        """The hooks of the configuration as it is now."""
        config = self._profile.config
        if config is not self._config:
            self._config, self._hooks = config, hooks_of(config.hooks)
        return [
            hook
            for hook in self._hooks
            if hook.event == event and (not subject or hook.matches(subject))
        ]

    async def _ask_of_tool(self, event: str, used: ToolUsed, more: dict[str, Any]) -> HooksOutcome:
        named = {"tool_name": used.name, "tool_input": used.input, "tool_use_id": used.call_id}
        return await self._ask(event, used.author, named | more, used.name)

    async def _ask(
        self, event: str, author: Author, more: dict[str, Any], subject: str = ""
    ) -> HooksOutcome:
        """Run all hooks of an event that match a subject, and return what they say."""
        hooks = self._matching(event, subject)
        if not hooks:
            return HooksOutcome(())
        path = str(self._workspace.path)
        payload = {
            "event": event,
            "hook_event_name": event,
            "session_id": author.session_id,
            "run_id": author.run_id,
            "cwd": path,
            "transcript_path": "",
            "permission_mode": "default",
            **more,
        }
        given = dumps(payload)
        env = self._environment(event, author, more)
        return HooksOutcome(await asyncio.gather(*(self._run(hook, given, env) for hook in hooks)))

    async def _run(self, hook: Hook, payload: bytes, env: dict[str, str]) -> HookResult:
        workspace = self._workspace
        async with self._running:
            output = await run_hook(
                hook, payload, cwd=workspace.path, env=env, clock=workspace.clock
            )
        result = read_output(hook, output)
        if output.code not in (0, 2, 49) or result.failed:
            why = result.reason or output.stderr.strip()[:500] or f"exit code {output.code}"
            log.warning("hook %s (%s): %s", hook.title, hook.origin, why)
        return result

    def _environment(self, event: str, author: Author, more: dict[str, Any]) -> dict[str, str]:
        """What commands see of the environment, and what the hook is about."""
        workspace, path = self._workspace, str(self._workspace.path)
        own = {
            "CRUSH": "1",
            "AGENT": NAME,
            "AI_AGENT": NAME,
            "CRUSH_EVENT": event,
            "CRUSH_SESSION_ID": author.session_id,
            "CRUSH_CWD": path,
            "CRUSH_PROJECT_DIR": path,
            "CLAUDE_PROJECT_DIR": path,
        }
        if "tool_name" in more:
            own["CRUSH_TOOL_NAME"] = str(more["tool_name"])
            for key in ("command", "file_path"):
                value = more["tool_input"].get(key)
                if isinstance(value, str):
                    own[f"CRUSH_TOOL_INPUT_{key.upper()}"] = value
        return {**self._profile.command_env(workspace.env), **own}


def _without_failures(outcome: HooksOutcome) -> HooksOutcome:
    """What is said by the hooks that could be run."""
    return HooksOutcome([result for result in outcome.results if not result.failed])
