"""One prompt and its run, on an event loop: what `run` does if `quick.py` does not do it.

    subscribe -> post under a fresh run_id -> follow -> run_complete with that id -> retire

Which events belong to the run is decided by the client library, what is printed of them by
follow.py.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from ..client import Client
from ..errors import CrushliteError, NoAgent, NotFound, UsageError
from ..launch import goodbye, join
from ..protocol.codec import decode, encode
from ..protocol.config import ROLES
from ..protocol.permissions import PermissionNotification, PermissionRequest
from ..protocol.questions import QuestionBatch
from ..protocol.runs import RunComplete
from ..protocol.workspaces import Workspace
from . import CANCELED
from .common import (
    address_of,
    choose_agent,
    chosen_agent,
    new_session,
    session_agent,
    show,
    show_json,
    title_of,
    wanted,
)
from .continued import ContinuedRun
from .follow import RunEnded, RunPrinter, do_nothing, signals
from .lookup import find_model, find_session
from .outcomes import EXIT_CODES, form_of
from .person import TerminalAnswers
from .result import result_without_run

if TYPE_CHECKING:
    import argparse

    from ..client import RemoteWorkspace, RunStream
    from ..protocol.config import SelectedModel
    from ..protocol.messages import Attachment
    from .progress import Progress
    from .quick import QuickRun

LATE_SECONDS = 10.0  # after --timeout: an agent that is stopped may take some to return


async def ask(
    options: argparse.Namespace,
    prompt: str,
    attachments: list[Attachment],
    progress: Progress,
    begun: QuickRun | None,
) -> int:
    """Carry out `run`; returns the exit code. Raises CrushliteError. `begun` is what was done of it
    already."""
    form = form_of(options)
    try:
        return await _in_workspace(options, prompt, attachments, progress, begun)
    except CrushliteError as error:
        if form in ("json", "stream-json") and not isinstance(error, RunEnded):
            result = result_without_run(error)
            show_json(result if form == "json" else {"type": "result", "payload": encode(result)})
        raise


async def _in_workspace(
    options: argparse.Namespace,
    prompt: str,
    attachments: list[Attachment],
    progress: Progress,
    begun: QuickRun | None,
) -> int:
    with signals() as interrupt:
        try:
            workspace = await _opened(options, progress, begun)
        except asyncio.CancelledError:
            return CANCELED  # only a signal cancels this task
        async with workspace.client:
            asked = _Asked(workspace, prompt, attachments, options, progress, begun)
            interrupt.act = asked.stop
            try:
                if begun is not None:
                    if begun.signals.received:
                        interrupt()
                    return await asked.run()
                if options.command:
                    asked.prompt = await _expanded(workspace, options, prompt)
                asked.models = await _named_models(workspace, options, progress)
                if "large" not in asked.models and not await asked.has_other_agent():
                    await _require_model(workspace)
                return await (asked.detach() if options.detach else asked.run())
            except asyncio.CancelledError:
                if not interrupt.received:
                    raise
                return CANCELED
            finally:
                interrupt.act = do_nothing  # a second signal still ends the process
                progress.stop()
                await goodbye(workspace.client)


async def _opened(
    options: argparse.Namespace, progress: Progress, begun: QuickRun | None
) -> RemoteWorkspace:
    """The workspace of the directory, or the one that was opened already."""
    if begun is not None:
        client = Client(address_of(options), client_id=begun.client_id)
        return client.attach(decode(Workspace, begun.info), env=begun.env)
    workspace = await join(wanted(options, progress.say))
    for line in workspace.info.warning.splitlines():
        progress.say(line)
    return workspace


async def _expanded(workspace: RemoteWorkspace, options: argparse.Namespace, text: str) -> str:
    """The prompt of the command that the options name. Raises CrushliteError."""
    from ..features import requests  # only here: most commands ask for none of it

    try:
        return await requests.expand_command(workspace, options.command, options.arguments, text)
    except NotFound:
        import difflib  # only here: every run would wait for it

        known = await requests.commands(workspace)
        near = difflib.get_close_matches(options.command, [each.name for each in known], 3)
        listed = ", ".join(near or [each.name for each in known[:20]]) or "none"
        raise UsageError(f"no command {options.command!r}; there are {listed}") from None


async def _named_models(
    workspace: RemoteWorkspace, options: argparse.Namespace, progress: Progress
) -> dict[str, SelectedModel]:
    """The models that the options name, by role. Raises CrushliteError if there is no such one."""
    named = {}
    for role in ROLES:
        if given := getattr(options, role):
            named[role], remark = await find_model(workspace, given)
            if remark:
                progress.say(remark)
    return named


async def _require_model(workspace: RemoteWorkspace) -> None:
    """Raise NoAgent, with what to do about it, if no model would answer. Servers that were not
    asked for their models yet are asked first."""
    for last in (False, True):
        info = await workspace.agent()
        if info.is_ready and not info.no_model:
            return
        if not last:
            from ..features import requests

            await requests.reread_config(workspace, everywhere=True)
    why = info.no_model or "none is configured that can be used"
    raise NoAgent(
        f"no model can answer: {why}. Set a key, as in OPENAI_API_KEY=..., start a local model "
        "server, or name a provider in crush.json: `crushlite doctor` shows what was found. To try "
        "without a model: --agent offline"
    )


class _Asked:
    """One prompt in one workspace, from its session to its exit code."""

    def __init__(
        self,
        workspace: RemoteWorkspace,
        prompt: str,
        attachments: list[Attachment],
        options: argparse.Namespace,
        progress: Progress,
        begun: QuickRun | None,
    ) -> None:
        self._workspace = workspace
        self.prompt = prompt
        self._attachments = attachments
        self._options = options
        self._progress = progress
        self.models: dict[str, SelectedModel] = {}  # for this run, by role
        self._run: RunStream | None = None
        self._task = asyncio.current_task()
        self._begun = begun
        self._posting = begun is not None  # the prompt may have been accepted
        self._stopped = self._timed_out = False
        self._canceling: asyncio.Task[None] | None = None

    async def has_other_agent(self) -> bool:
        """Whether an agent other than that of the daemon will answer."""
        options = self._options
        if options.agent or not (options.session or options.last):
            return session_agent(options) not in ("", "default")
        session_id = await find_session(self._workspace, options.session or "last")
        return bool(await chosen_agent(self._workspace, session_id))

    async def detach(self) -> int:
        """Post the prompt, print the id of its run, and leave the run to itself."""
        session_id = await self._session()
        self._posting = True
        accepted = await self._workspace.prompt(
            session_id, self.prompt, detach=True, **self._fields()
        )
        if form_of(self._options) in ("events", "json", "stream-json"):
            show_json(accepted)
        else:
            show(accepted.run_id)
        self._progress.say(f"follow it with: crushlite attach {accepted.run_id}")
        return 0

    def _fields(self) -> dict[str, Any]:
        """What the prompt says besides its text."""
        options = self._options
        return {
            "attachments": self._attachments,
            "auto_approve": options.auto_approve,
            "reasoning_effort": options.effort or "",
            "models": self.models,
            "max_cost": options.max_cost,
            "max_steps": options.max_steps,
            "max_seconds": options.timeout,
        }

    async def run(self) -> int:
        """Post the prompt and print its run to the end."""
        timer = None
        if self._options.timeout is not None:
            loop = asyncio.get_running_loop()
            # The daemon ends the run in time. This is for a run that waits in line for others,
            # and for a daemon that does not answer.
            timer = loop.call_later(self._options.timeout + LATE_SECONDS, self._time_out)
        try:
            return await self._follow()
        except asyncio.CancelledError:
            # By `stop` or `_cancel`: there was no run to cancel, or no daemon to do it.
            if not self._stopped or self._task is None:
                raise
            self._task.uncancel()
            self._raise_if_timed_out()
            self._progress.say("canceled")
            return CANCELED
        finally:
            if timer is not None:
                timer.cancel()
            if self._canceling is not None:
                self._canceling.cancel()

    async def _follow(self) -> int:
        begun, talks = self._begun, self._options.talks
        start = await (self._started() if begun is None else self._continued(begun))
        async with start as run:
            if begun is not None:
                begun.close()
            self._run = run
            if self._stopped:
                self.stop()
            if run.ahead:
                self._progress.say(f"waiting for {run.ahead} earlier prompt(s) in this session")
            self._progress.doing("waiting")
            printer = RunPrinter(run, self._progress, form_of(self._options), asks=talks)
            if begun is not None:
                printer.skip(begun.message_id, begun.shown)
            printer.stop = self.stop
            async with (
                _Denials(self._workspace, self._options.deny_after, self._progress) as denials,
                TerminalAnswers(self._workspace, self._progress, wanted=talks) as answers,
            ):
                printer.listeners = [denials.take, answers.take]
                ending = await printer.until_end()
        if ending.cancelled and printer.broken is None:
            self._raise_if_timed_out()
        return await printer.conclude(ending)

    async def _started(self) -> RunStream:
        """The events of a new run; its prompt is posted when they are subscribed to."""
        session_id = await self._session()
        await self._workspace.init(interactive=self._options.talks)
        self._posting = True
        is_new = not (self._options.session or self._options.last)
        return self._workspace.start(self.prompt, session_id, new_session=is_new, **self._fields())

    async def _continued(self, begun: QuickRun) -> RunStream:
        """The rest of the events of a run that was begun."""
        with contextlib.suppress(CrushliteError):  # the event stream does it again if it reconnects
            await self._workspace.init(interactive=self._options.talks)
        if not begun.accepted:  # perhaps it is: under its run_id it does not run twice
            fields = {**self._fields(), "run_id": begun.run_id}
            await self._workspace.prompt(begun.session_id, self.prompt, **fields)
        # An ending is not asked for again: the daemon may have left meanwhile.
        ending = decode(RunComplete, begun.ending) if begun.ending is not None else None
        known = [begun.message_id] if begun.message_id else []
        return ContinuedRun(
            self._workspace,
            begun.run_id,
            begun.session_id,
            last_id=begun.last_id,
            messages=known,
            ending=ending,
        )

    async def _session(self) -> str:
        """The id of the session that the options name, or of a new one, in which the agent answers
        that they name."""
        workspace, agent = self._workspace, session_agent(self._options)
        if self._options.session or self._options.last:
            session_id = await find_session(workspace, self._options.session or "last")
            if agent or (self._options.agent and await chosen_agent(workspace, session_id)):
                await choose_agent(workspace, session_id, agent or "default")
            return session_id
        session = await new_session(workspace, title_of(self.prompt), agent)
        self._progress.say(f"session {session.id}")
        return session.id

    # Stopping -----------------------------------------------------------------------------------

    def _time_out(self) -> None:
        self._timed_out = True
        self.stop()

    def _raise_if_timed_out(self) -> None:
        if self._timed_out:
            error = CrushliteError(f"canceled: not done in {self._options.timeout:g} s")
            error.exit_code = EXIT_CODES["limit"]
            raise error

    def stop(self) -> None:
        """Cancel the run, and go on until its end. Before the prompt was posted: cancel the task
        of the command. While it is being posted: `run` stops it when it was accepted."""
        self._stopped = True
        if self._run is not None:
            if self._canceling is None and self._run.ending is None:
                self._progress.say("canceling; Ctrl-C leaves at once")
                self._canceling = asyncio.create_task(self._cancel(self._run))
        elif not self._posting and self._task is not None:
            self._task.cancel()

    async def _cancel(self, run: RunStream) -> None:
        try:
            await run.cancel()
        except CrushliteError as error:
            self._progress.say(f"cannot cancel: {error.message}")
            if self._task is not None:
                self._task.cancel()


class _Denials:
    """A context in which requests of the run are denied that are still open after a time.

    An open request is looked for among all of the workspace: the stream shows one at a time, and
    that of this run may wait behind one of another session."""

    def __init__(self, workspace: RemoteWorkspace, after: float | None, progress: Progress) -> None:
        self._workspace = workspace
        self._after = after
        self._progress = progress
        self._tasks: dict[str, asyncio.Task[None]] = {}  # by request, call or batch

    async def __aenter__(self) -> _Denials:
        return self

    async def __aexit__(self, *exc: object) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def take(self, payload: object) -> None:
        """To be called with the payload of each event of the run."""
        key = ""
        if isinstance(payload, PermissionRequest | QuestionBatch):
            key = payload.id
        elif isinstance(payload, PermissionNotification):
            key = payload.tool_call_id
        if key and self._after is not None and key not in self._tasks:
            self._tasks[key] = asyncio.create_task(self._deny(key, self._after))

    async def _deny(self, key: str, after: float) -> None:
        await asyncio.sleep(after)
        reason = f"nobody answered within {after:g} s"
        try:
            for request in await self._workspace.permissions():
                if key in (request.id, request.tool_call_id):
                    await self._workspace.grant(request.id, "deny", reason)
            for batch in await self._workspace.questions():
                if batch.id == key:
                    await self._workspace.answer(batch.id, None)
        except CrushliteError as error:
            self._progress.say(f"cannot refuse what nobody answered: {error.message}")
