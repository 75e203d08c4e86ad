"""One session that an editor shows: its prompts, and what is asked of the person there."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import field
from typing import TYPE_CHECKING, Any

from ..client.following import ending_of
from ..client.wire import is_temporary
from ..errors import CrushliteError, NotFound, NotQueued, RunNotFound
from ..features import requests
from ..jsonrpc.errors import INTERNAL_ERROR, RpcError
from ..protocol.messages import Message, ToolOutput
from ..protocol.permissions import PermissionRequest
from ..protocol.questions import QuestionBatch, QuestionNotification
from ..protocol.runs import RunComplete
from ..protocol.sessions import File, Session
from ..records import dataclass
from ..unique import new_id
from . import words
from .choices import EditorChoices
from .commands import expanded, listed
from .elements import each_message
from .view import SessionView

if TYPE_CHECKING:
    from ..client import RemoteWorkspace
    from ..jsonrpc.peer import RpcPeer
    from ..protocol.messages import Attachment
    from ..protocol.permissions import PermissionNotification
    from .project import Project
    from .words import Update

log = logging.getLogger(__name__)

POSTS = 5  # attempts to send a prompt; with the same run_id, so it runs once
RETRY_SECONDS = 0.5
_STOPS = {"max_tokens": "max_tokens", "content_filter": "refusal"}
CANCELLED = {"stopReason": "cancelled"}


class RunFailed(CrushliteError):
    """A run ended with an error, or was lost with the daemon."""

    code = "run_failed"


async def _open_requests(workspace: RemoteWorkspace) -> list[PermissionRequest | QuestionBatch]:
    found: list[PermissionRequest | QuestionBatch] = [*await workspace.permissions()]
    return [*found, *await workspace.questions()]


def _future() -> asyncio.Future[RunComplete]:
    return asyncio.get_running_loop().create_future()


@dataclass(slots=True)
class OpenPrompt:
    """A prompt of this editor that is not answered."""

    text: str
    attachments: list[Attachment]
    run_id: str = field(default_factory=new_id)
    is_cancelled: bool = False
    is_accepted: bool = False
    ended: asyncio.Future[RunComplete] = field(default_factory=_future)


class Thread:
    def __init__(
        self, session_id: str, project: Project, peer: RpcPeer, *, has_forms: bool
    ) -> None:
        self.session_id = session_id
        self.project = project
        self.view = SessionView(session_id, project.path)
        self.choices = EditorChoices()
        self.prompts: list[OpenPrompt] = []
        self._idle = asyncio.Event()  # no prompt is open
        self._idle.set()
        self._peer = peer
        self._has_forms = has_forms
        self._posting = asyncio.Lock()  # prompts are sent in the order of their arrival
        self._showing = asyncio.Lock()  # one message after the other, in the order of events
        # Whether the transcript was read, or is being read. Before, events of messages are dropped:
        # the transcript will hold them, and they would be shown twice.
        self._is_loaded = False
        # What is asked of the person now, by the id of the request, with the call it is about.
        self._asked: dict[str, tuple[str, asyncio.Task[None]]] = {}
        # What was answered, here or elsewhere: a list that was read before that may still hold it.
        self._settled: deque[str] = deque(maxlen=1000)

    async def send(self, updates: list[Update]) -> None:
        for update in updates:
            params = {"sessionId": self.session_id, "update": update}
            await self._peer.notify("session/update", params)

    # Prompts -----------------------------------------------------------------------------------

    def begin(self, text: str, attachments: list[Attachment]) -> OpenPrompt:
        """Note a prompt when it arrives: a cancel that arrives later concerns it."""
        prompt = OpenPrompt(text, attachments)
        self.prompts.append(prompt)
        self._idle.clear()
        return prompt

    @property
    def is_waiting(self) -> bool:
        return bool(self.prompts)

    async def all_answered(self) -> None:
        await self._idle.wait()

    async def answer(self, prompt: OpenPrompt) -> dict[str, Any]:
        """Send a prompt and wait until its run has ended; returns the answer for the editor. Raises
        RpcError if the run failed."""
        try:
            async with self._posting:
                await self._post(prompt)
            ending = await prompt.ended
        except CrushliteError as error:
            if prompt.is_cancelled:
                return CANCELLED
            if isinstance(error, RpcError):
                raise
            raise RpcError(INTERNAL_ERROR, error.message) from None
        finally:
            self.prompts.remove(prompt)
            self.view.unexpect(prompt.run_id)
            if not self.prompts:
                self._idle.set()
        if prompt.is_cancelled or ending.cancelled:
            return CANCELLED
        if ending.error:
            raise RpcError(INTERNAL_ERROR, ending.error)
        return {"stopReason": _STOPS.get(self.view.last_finish, "end_turn")}

    async def _post(self, prompt: OpenPrompt) -> None:
        """Raises CrushliteError if the prompt was refused, or cannot be sent."""
        text = prompt.text
        prompt.text = await self.project.call(lambda workspace: expanded(workspace, text))
        self.view.expect(prompt.run_id, prompt.text)
        fields = self.choices.for_prompt()
        for attempt in range(POSTS):
            if prompt.is_cancelled and attempt == 0:
                raise RunFailed("cancelled before it was sent")
            if prompt.is_cancelled:
                break  # an attempt that was not answered may have arrived: cancel its run
            workspace = await self.project.workspace()
            try:
                await workspace.prompt(
                    self.session_id,
                    prompt.text,
                    run_id=prompt.run_id,
                    attachments=prompt.attachments,
                    when_busy="queue",
                    detach=True,  # it goes on when the editor is gone
                    **fields,
                )
            except CrushliteError as error:
                if attempt == POSTS - 1 or not is_temporary(error):
                    raise
                log.info("sending a prompt again: %s", error)
                await workspace.wire.clock.sleep(RETRY_SECONDS)
            else:
                break
        prompt.is_accepted = True
        if prompt.is_cancelled:
            self.project.spawn(self._cancel_run(prompt))

    def cancel(self, run_id: str = "") -> None:
        """Cancel the prompts that have arrived so far, or one of them. Runs of others go on."""
        for prompt in self.prompts:
            if not prompt.is_cancelled and run_id in ("", prompt.run_id):
                prompt.is_cancelled = True
                if prompt.is_accepted:
                    self.project.spawn(self._cancel_run(prompt))

    async def _cancel_run(self, prompt: OpenPrompt) -> None:
        """Cancel a run that was accepted. If the daemon cannot be asked, the prompt ends as
        cancelled all the same; the run has ended with the daemon."""
        try:
            await self.project.call(lambda workspace: self._cancelled(workspace, prompt.run_id))
        except CrushliteError as error:
            log.warning("a run could not be cancelled: %s", error)
            self._end(prompt, RunComplete(self.session_id, run_id=prompt.run_id, cancelled=True))

    async def _cancelled(self, workspace: RemoteWorkspace, run_id: str) -> None:
        try:
            await workspace.cancel_run(run_id)
        except NotQueued:  # folded into another run
            await workspace.cancel_run((await workspace.run(run_id)).folded_into)

    def _end(self, prompt: OpenPrompt, ending: RunComplete) -> None:
        if not prompt.ended.done():
            prompt.ended.set_result(ending)

    def fail(self, reason: str, *, also_cancelled: bool = True) -> None:
        """Answer every open prompt with an error, or with `cancelled` if it was cancelled. With
        `also_cancelled` False those that were cancelled stay open until their run has ended."""
        for prompt in self.prompts:
            if also_cancelled or not prompt.is_cancelled:
                self._fail(prompt, reason)

    def _fail(self, prompt: OpenPrompt, reason: str) -> None:
        if not prompt.ended.done():
            prompt.ended.set_exception(RunFailed(reason))
            prompt.ended.exception()  # it may not be waited for yet

    # What the daemon tells ---------------------------------------------------------------------

    async def take(self, payload: object) -> None:
        """Show an event of this session, or act on it."""
        match payload:
            case Message() if not self._is_loaded:
                pass
            case Message():
                async with self._showing:
                    await self.send(self.view.take(payload, with_errors=not self.prompts))
            case ToolOutput():
                await self.send(self.view.output(payload))
            case File():
                self.view.file(payload)
            case Session():
                await self.session_changed(payload)
            case PermissionRequest() | QuestionBatch():
                self.ask(payload)
            case RunComplete():
                for prompt in self.prompts:
                    if prompt.run_id == payload.run_id:
                        self._end(prompt, payload)

    async def session_changed(self, session: Session) -> None:
        await self.send(self.view.session(session, self.choices.window))

    async def load(self, workspace: RemoteWorkspace, *, replay: bool, again: bool = False) -> None:
        """Read the session as it is now and show all of it, or count it as shown. `again`: without
        what an attempt that failed has shown."""
        session = await workspace.session(self.session_id)
        async with self._showing:
            self._is_loaded = True  # events that come from here on wait, and are shown behind it
            if not again:
                self.view = SessionView(self.session_id, self.project.path)
            async for message in each_message(workspace, self.session_id):
                updates = self.view.take(message)
                if replay:
                    await self.send(updates)
        await self.read_options(workspace)
        updates = self.view.session(session, self.choices.window)
        if replay:
            await self.send(updates)
        await self._show(workspace)

    async def catch_up(self) -> None:
        """Show what was missed while the daemon could not be reached. Raises CrushliteError."""
        workspace = await self.project.workspace()
        # Before the messages are read: what a run said that ends later is in events that follow.
        ended = await self._endings(workspace)
        if self._is_loaded:
            async with self._showing:
                async for message in each_message(workspace, self.session_id):
                    await self.send(self.view.take(message, with_errors=not self.prompts))
            await self.session_changed(await workspace.session(self.session_id))
        for prompt, ending in ended:
            self._end(prompt, ending)
        await self.find_requests()

    async def _endings(self, workspace: RemoteWorkspace) -> list[tuple[OpenPrompt, RunComplete]]:
        """The open prompts whose runs have ended, also those that the daemon has accepted without
        our having read its answer. Prompts whose runs are gone are answered with an error."""
        found = []
        for prompt in list(self.prompts):
            try:
                info = await workspace.run(prompt.run_id)
            except RunNotFound:
                if prompt.is_accepted:
                    self._fail(prompt, "the session was deleted")
                continue
            if info.state == "ended":
                found.append((prompt, ending_of(info)))
        return found

    # Options and commands ----------------------------------------------------------------------

    async def read_options(self, workspace: RemoteWorkspace) -> None:
        try:
            self.choices.update(await workspace.agent(), await workspace.providers())
            agents = [agent.name for agent in await requests.offered_agents(workspace)]
            current = await requests.session_agent(workspace, self.session_id) if agents else ""
            self.choices.update_agents(agents, current)
        except NotFound:  # a daemon without configuration, or without other agents
            pass

    async def choose(self, option: Any, value: Any) -> None:
        """Set an option. The agent is the session's: it answers for every client. Raises RpcError,
        or BadRequest for an agent that does not exist."""
        if option == "agent" and isinstance(value, str) and value in self.choices.agents:
            await self.project.call(
                lambda workspace: requests.choose_agent(workspace, self.session_id, value)
            )
            await self.read_options(await self.project.workspace())
        else:
            self.choices.choose(option, value)

    async def options_changed(self) -> None:
        """The configuration has changed: send the options if they have, too."""
        before = self.choices.options()
        await self.read_options(await self.project.workspace())
        if self.choices.options() != before:
            await self.send_options()

    async def send_options(self) -> None:
        options = self.choices.options()
        await self.send([{"sessionUpdate": "config_option_update", "configOptions": options}])

    async def send_commands(self) -> None:
        commands = await listed(await self.project.workspace())
        if commands:
            update = {"sessionUpdate": "available_commands_update", "availableCommands": commands}
            await self.send([update])

    async def _show(self, workspace: RemoteWorkspace) -> None:
        """Say that this session is the one that is shown here; a refusal does no harm."""
        try:
            await workspace.look(self.session_id)
        except CrushliteError as error:
            log.debug("not shown: %s", error)

    # What is asked of the person ---------------------------------------------------------------

    async def find_requests(self) -> None:
        """Ask what is open for this session and is not asked yet."""
        for request in await self.project.call(_open_requests):
            if request.session_id == self.session_id:  # also of its sub-agents
                self.ask(request)

    def ask(self, request: PermissionRequest | QuestionBatch) -> None:
        """Ask the person at the editor, unless that is being done."""
        if request.id in self._asked or request.id in self._settled:
            return
        if isinstance(request, PermissionRequest):
            task = self.project.spawn(self._ask_permission(request))
        else:
            task = self.project.spawn(self._ask_question(request))
        self._asked[request.id] = (request.tool_call_id, task)

    async def _ask_permission(self, request: PermissionRequest) -> None:
        async with self._showing:  # behind the messages that have come before it
            updates, call = self.view.announce(request)
            await self.send(updates)
        options = words.permission_options(request)
        params = {"sessionId": self.session_id, "toolCall": call, "options": options}
        answer: Any = None
        try:
            answer = await self._peer.request("session/request_permission", params, seconds=None)
        except RpcError as error:
            log.warning("the editor refused to ask for a permission: %s", error)
        if words.was_cancelled(answer) and any(prompt.is_cancelled for prompt in self.prompts):
            # The editor has closed it with its cancel. If it is about a run of another client,
            # it stays open for that client, and is asked again when this session is loaded.
            self._asked.pop(request.id, None)
            return
        self._answered(request.id)
        action, option = words.chosen_action(answer, options)
        await self.project.call(
            lambda workspace: workspace.grant(request.id, action, option=option)
        )

    def _answered(self, request_id: str) -> None:
        """Note that the person has answered: the request is not withdrawn, nor asked again."""
        self._asked.pop(request_id, None)
        self._settled.append(request_id)

    def settled(self, notification: PermissionNotification | QuestionNotification) -> None:
        """A permission was granted or denied, here or elsewhere, or one is waited for; or a batch
        of questions was closed."""
        if isinstance(notification, QuestionNotification):
            self._settled.append(notification.batch_id)
            self._withdraw(notification.batch_id)
        elif notification.granted or notification.denied:
            for request_id, (call, _) in list(self._asked.items()):
                if call == notification.tool_call_id:
                    self._settled.append(request_id)
                    self._withdraw(request_id)
        elif all(call != notification.tool_call_id for call, _ in self._asked.values()):
            # The stream shows one request of the workspace at a time; the list has all.
            self.project.spawn(self.find_requests())

    async def _ask_question(self, batch: QuestionBatch) -> None:
        if not self._has_forms:
            await self._ask_as_text(batch)
            return
        params: dict[str, Any] = {"mode": "form", "sessionId": self.session_id}
        params["message"] = words.batch_message(batch)
        params["requestedSchema"] = words.form_of(batch)
        if batch.tool_call_id:
            params["toolCallId"] = batch.tool_call_id
        answer: Any = None
        try:
            answer = await self._peer.request("elicitation/create", params, seconds=None)
        except RpcError as error:
            log.warning("the editor refused to ask a question: %s", error)
        self._answered(batch.id)
        responses = words.responses_of(batch, answer)
        await self.project.call(lambda workspace: workspace.answer(batch.id, responses))

    async def _ask_as_text(self, batch: QuestionBatch) -> None:
        """Show the question as text. If nobody else looks at the session, it is dismissed: the
        answer comes with the next prompt. Otherwise it stays open for the others."""
        async with self._showing:
            chunk = words.text_content(words.batch_text(batch))
            update = {"sessionUpdate": "agent_message_chunk", "content": chunk}
            await self.send([{**update, "messageId": f"question-{batch.id}"}])
        workspace = await self.project.workspace()
        await self._show(workspace)  # among the sessions of this editor another may be the last
        if (await workspace.session(self.session_id)).attached_clients <= 1:
            await workspace.answer(batch.id, None)

    def withdraw_all(self) -> None:
        for request_id in list(self._asked):
            self._withdraw(request_id)

    def _withdraw(self, request_id: str) -> None:
        """Take back what is asked here: the peer sends the notice, and drops a late answer."""
        _, task = self._asked.pop(request_id, ("", None))
        if task is not None:
            task.cancel()
