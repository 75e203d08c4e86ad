"""The events of one run, picked from all events of its workspace.

Message events do not say which run they belong to, but a session has one run at a time, in the
order in which they were accepted. So the messages of a run are those between the end of the last
run ahead of it and its own `run_complete`. Where the stream did not show that, after a gap or
because the run began before it was followed, the transcript is read instead, with the same rule:
what comes after the last message of the runs ahead, up to the last message of this one.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from ..errors import CrushliteError, NotFound, NotQueued, RunNotFound
from ..protocol.events import Envelope, Resync
from ..protocol.messages import Message
from ..protocol.permissions import PermissionNotification, PermissionRequest
from ..protocol.questions import QuestionBatch, QuestionNotification
from ..protocol.runs import RunComplete
from ..protocol.sessions import Session
from ..unique import new_id
from .stream import EventStream, Lost, Recovered
from .wire import ConnectionFailed, is_temporary

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..protocol.runs import Accepted, RunInfo
    from .requests import WorkspaceRequests

POSTS = 3  # attempts to post a prompt: with the same run_id each time, so it runs once
TITLE_CHARS = 60


class Follower:
    """Decides which events of a workspace are about one run. Pure: it makes no requests."""

    def __init__(self, run_id: str, session_id: str) -> None:
        self.ahead: set[str] = set()  # runs that must end before ours begins
        self.messages: set[str] = set()  # those of the run that were seen
        self._run_id = run_id
        self._session_id = session_id
        self._family = {session_id}  # our session, and those of its sub-agents
        self._foreign: set[str] = set()  # messages of runs ahead, as far as they are known
        self._calls: set[str] = set()
        self._batches: set[str] = set()

    def set_ahead(self, runs: Iterable[RunInfo], over: Iterable[str]) -> None:
        """Set `ahead` from the session's runs. `over` are those that had ended before the stream
        was opened; the last events of one that has ended since are still to come on it."""
        self.ahead = {run.run_id for run in self._before(runs)} - set(over)

    def take(self, event: Envelope) -> bool:
        """Return whether an event is about our run. To be called with every event, in order."""
        payload = event.payload
        if isinstance(payload, RunComplete):
            self.ahead.discard(payload.run_id)
            return payload.run_id == self._run_id
        if isinstance(payload, Session) and payload.parent_session_id in self._family:
            self._family.add(payload.id)
        if isinstance(payload, Message) and payload.session_id == self._session_id:
            return self._is_our_message(event.action, payload)
        if not self._is_ours(payload):
            return False
        if isinstance(payload, Message):
            self._calls.update(call.id for call in payload.tool_calls)
        elif isinstance(payload, PermissionRequest):
            self._calls.add(payload.tool_call_id)
        elif isinstance(payload, QuestionBatch):
            self._batches.add(payload.id)
        return True

    def restore(self, messages: list[Message], runs: list[RunInfo]) -> list[Message]:
        """The messages of our run in a transcript that was read before the list of runs."""
        found = {run.run_id: run for run in runs}
        ours = found[self._run_id]
        shown = found.get(ours.folded_into, ours)  # a prompt that was folded has no turn of its own
        ids = {message.id: index for index, message in enumerate(messages)}
        ahead = self._before(runs, shown.run_id)
        ends = [ids[run.message_id] + 1 for run in ahead if run.message_id in ids]
        # Events of a run that ended after the transcript was read are still to come on the stream.
        self.ahead = {
            run.run_id
            for run in ahead
            if run.state != "ended" or (run.message_id and run.message_id not in ids)
        }
        start, stop = max(ends, default=0), len(messages)
        self._foreign = {message.id for message in messages[:start]}
        while start < stop and messages[start].role != "user":
            start += 1  # tool results that were added after a run ahead had ended
        if shown.state == "ended":
            stop = ids[shown.message_id] + 1 if shown.message_id in ids else start
            while stop < len(messages) and messages[stop].role == "tool":
                stop += 1
        restored = [] if self.ahead else messages[start:stop]
        for message in restored:
            self._own(message)
        return restored

    def _before(self, runs: Iterable[RunInfo], run_id: str = "") -> list[RunInfo]:
        """The prompts ahead of a run, ours unless another is named."""
        before = []
        for run in runs:
            if run.run_id == (run_id or self._run_id):
                break
            if run.kind == "prompt":  # runs of other kinds have no run_complete
                before.append(run)
        return before

    def _own(self, message: Message) -> None:
        self.messages.add(message.id)
        self._calls.update(call.id for call in message.tool_calls)

    def _is_our_message(self, action: str, message: Message) -> bool:
        fresh = action == "created" and not self.ahead and message.id not in self._foreign
        if fresh or message.id in self.messages:
            self._own(message)
            return True
        return False

    def _is_ours(self, payload: object) -> bool:
        if isinstance(payload, PermissionNotification):
            return payload.tool_call_id in self._calls
        if isinstance(payload, QuestionNotification):
            return payload.batch_id in self._batches
        run_id = getattr(payload, "run_id", "")
        if run_id:
            return bool(run_id == self._run_id)
        session = payload.id if isinstance(payload, Session) else getattr(payload, "session_id", "")
        return not self.ahead and session in self._family


class RunStream:
    """The events of one run, in order, up to and with its `run_complete`; for `async with`.

    After a lost connection it reconnects and yields the messages of the run once more, as they are
    then. `lost` and `recovered` are yielded too: a caller who does not want to wait can leave.
    """

    def __init__(self, workspace: WorkspaceRequests, run_id: str, session_id: str = "") -> None:
        self.workspace = workspace
        self.run_id = run_id
        self.session_id = session_id
        self.accepted: Accepted | None = None  # if we posted it
        self.ending: RunComplete | None = None
        self._prompt: str | None = None  # that is to be posted
        self._new_session = False
        self._options: dict[str, Any] = {}
        self._events: EventStream | None = None
        self._follower = Follower(run_id, session_id)
        self._pending: deque[Envelope] = deque()
        self._gap = False  # events may be missing: the transcript must be read

    def posting(self, prompt: str, new_session: bool, options: dict[str, Any]) -> RunStream:
        """Post this prompt on entering. `new_session`: its session was made for it."""
        self._prompt, self._new_session, self._options = prompt, new_session, dict(options)
        return self

    @property
    def ahead(self) -> int:
        """How many runs of the session must end before this one begins."""
        return len(self._follower.ahead)

    async def __aenter__(self) -> RunStream:
        """Post the prompt, or find the run that is to be followed. Returns when the daemon has
        accepted the prompt; raises if it was refused or the run is unknown."""
        try:
            await self._begin()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._events is not None:
            await self._events.close()

    def __aiter__(self) -> RunStream:
        return self

    async def __anext__(self) -> Envelope:
        while True:
            if self._gap:
                await self._catch_up()
            elif self._pending:
                event = self._pending.popleft()
                if isinstance(event.payload, RunComplete):
                    self.ending = event.payload
                return event
            elif self.ending is not None or self._events is None:
                raise StopAsyncIteration
            else:
                self._look_at(await self._events.__anext__())

    async def end(self) -> RunComplete:
        """Read to the end of the run. Raises ConnectionFailed if the stream was closed before."""
        async for _ in self:
            pass
        if self.ending is None:
            raise ConnectionFailed(f"the stream was closed before run {self.run_id} ended")
        return self.ending

    async def cancel(self) -> None:
        """Cancel this run and no other of its session, also a queued one; or, if it was folded into
        another run's turn, that run; a deleted one is ignored. Its `run_complete` is an event."""
        try:
            await self.workspace.cancel_run(self.run_id)
        except NotQueued:  # it was folded into the turn of another run
            carrier = (await self.workspace.run(self.run_id)).folded_into
            await self.workspace.cancel_run(carrier)
        except NotFound:
            pass  # deleted with its session

    # Beginning.

    # On entering; cli/continued.py has a way of its own.
    async def _begin(self) -> None:
        if self._prompt is None:
            await self._find()
        else:
            await self._post(self._prompt)

    async def _post(self, prompt: str) -> None:
        over: set[str] = set()
        if self.session_id and not self._new_session:
            runs = await self.workspace.runs(self.session_id)
            over = {run.run_id for run in runs if run.state == "ended"}
        elif not self.session_id:
            title = " ".join(prompt.split())[:TITLE_CHARS]
            self.session_id = (await self.workspace.create_session(title)).id
        self._events = await EventStream(self.workspace).__aenter__()
        self.accepted = await self._send(prompt)
        self.run_id = self.accepted.run_id
        self._follower = Follower(self.run_id, self.session_id)
        await self._look_ahead(over)

    async def _look_ahead(self, over: Iterable[str]) -> None:
        """Find out which runs of the session must end before ours, except those that are over."""
        try:
            self._follower.set_ahead(await self.workspace.runs(self.session_id), over)
        except ConnectionFailed as error:
            # The prompt is accepted, so its run is followed: the resync leads to the transcript.
            if self._events is not None:
                await self._events.reopen(error.message)

    async def _send(self, prompt: str) -> Accepted:
        """Post the prompt, again after a lost connection."""
        self._options["run_id"] = self._options.get("run_id") or new_id()
        for _ in range(POSTS - 1):
            try:
                return await self.workspace.prompt(self.session_id, prompt, **self._options)
            except ConnectionFailed:
                pass
        return await self.workspace.prompt(self.session_id, prompt, **self._options)

    async def _find(self) -> None:
        info = await self.workspace.run(self.run_id)
        self.session_id = info.session_id
        self._follower = Follower(self.run_id, self.session_id)
        self._gap = True
        if info.state != "ended":
            self._events = await EventStream(self.workspace).__aenter__()

    # Following.

    def _look_at(self, event: Envelope) -> None:
        if isinstance(event.payload, Resync):
            self._gap = True
        elif isinstance(event.payload, Lost | Recovered):
            self._pending.append(event)
        elif self._follower.take(event):
            complete = isinstance(event.payload, RunComplete)
            if complete and event.payload.message_id and not self._follower.messages:
                self._gap = True  # its beginning was missed: the transcript has it, and the end
            else:
                self._pending.append(event)

    async def _catch_up(self) -> None:
        """Read the transcript in place of the events that were missed. The messages first: if our
        run is still active in the list of runs, no later run has messages in the transcript."""
        try:
            messages = await self.workspace.messages(self.session_id)
            runs = await self.workspace.runs(self.session_id)
            ours = next((run for run in runs if run.run_id == self.run_id), None)
            last = ours.message_id if ours is not None else ""
            if last and all(message.id != last for message in messages):
                # It began and ended between the two: now the transcript has all of it.
                messages = await self.workspace.messages(self.session_id)
        except CrushliteError as error:
            if self._events is None or not is_temporary(error):
                raise
            self._gap = False
            return await self._events.reopen(error.message)  # brings a resync
        if ours is None:
            raise RunNotFound(f"run {self.run_id} is gone: its session may have been deleted")
        self._gap = False
        restored = self._follower.restore(messages, runs)
        self._pending.extend(Envelope("message", "updated", message) for message in restored)
        if ours.state == "ended":
            self._pending.append(Envelope("run_complete", "updated", ending_of(ours)))


def ending_of(info: RunInfo) -> RunComplete:
    """The `run_complete` of a run that has ended, for a stream that missed it."""
    complete = info.complete()
    if not (complete.error or complete.cancelled or info.outcome == "completed"):
        complete.error = "the run failed"
    return complete
