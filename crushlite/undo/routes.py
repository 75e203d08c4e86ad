"""The routes about what runs changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..api.context import answer, body
from ..api.entry import Entry, W
from ..features.wire import ChangedRun, RunChanges, UndoAnswer, UndoRequest

if TYPE_CHECKING:
    from ..api.context import Context
    from ..hosting.workspace import Workspace
    from ..http.messages import Request, Response
    from .changes import ChangesPart

RUN = W + "/runs/{run_id}"


def _part(workspace: Workspace) -> ChangesPart:
    from .changes import ChangesPart

    return workspace.part(ChangesPart)


async def list_changed_runs(context: Context, request: Request) -> Response:
    """The runs and undoings that changed files, in the order of their last changes."""
    from .queries import changed_runs

    return answer(await context.workspace(request).store.read(changed_runs))


async def run_changes(context: Context, request: Request) -> Response:
    """What a run changed, and what prevents undoing it."""
    part = _part(context.workspace(request))
    return answer(await part.undoing.changes(request.params["run_id"]))


async def undo(context: Context, request: Request) -> Response:
    """Undo a run; this goes on when the client disconnects."""
    workspace, wanted = context.workspace(request), body(UndoRequest, request)
    undoing, run_id = _part(workspace).undoing, request.params["run_id"]
    work = undoing.undo(run_id, dry_run=wanted.dry_run, partial=wanted.partial)
    return answer(await workspace.carry_out(work))


ROUTES = (
    Entry("GET", W + "/changes", list_changed_runs, gives=list[ChangedRun]),
    Entry("GET", RUN + "/changes", run_changes, gives=RunChanges),
    Entry("POST", RUN + "/undo", undo, takes=UndoRequest, gives=UndoAnswer),
)
