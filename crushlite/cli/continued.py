"""The rest of a run that `quick.py` began to show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..client import EventStream, RunStream
from ..protocol.events import Envelope

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..client import RemoteWorkspace
    from ..protocol.runs import RunComplete


class ContinuedRun(RunStream):
    """The events of a run that come after one that was seen on another stream, `last_id`; all that
    there are if none was seen. `messages` are those of the run whose beginning was seen there. If
    the `ending` was seen, that is all."""

    def __init__(
        self,
        workspace: RemoteWorkspace,
        run_id: str,
        session_id: str,
        *,
        last_id: str,
        messages: Iterable[str] = (),
        ending: RunComplete | None = None,
    ) -> None:
        super().__init__(workspace, run_id, session_id)
        self._last_id = last_id
        self._follower.messages.update(messages)
        self.ending = ending

    async def _begin(self) -> None:
        if self.ending is not None:
            self._pending.append(Envelope("run_complete", "updated", self.ending))
        elif not self._last_id:
            await self._find()
        else:
            self._events = EventStream(self.workspace, last_id=self._last_id)
            await self._events.__aenter__()
            if not self._follower.messages:
                await self._look_ahead(())
                self._gap = bool(self._follower.ahead)  # some of their events may be missed
