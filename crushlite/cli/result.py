"""How a run ended, for scripts: an outcome, the exit code that stands for it, and one document.

Each outcome has one exit code, so a script can look at either.
"""

from __future__ import annotations

import os
from dataclasses import field
from typing import TYPE_CHECKING

from ..errors import CrushliteError, NotFound
from ..records import dataclass
from .outcomes import EXIT_CODES
from .text import count

if TYPE_CHECKING:
    from ..client.requests import WorkspaceRequests
    from ..protocol.runs import RunComplete


@dataclass(slots=True)
class TokenCount:
    """Of all model calls of a run together."""

    prompt: int = 0
    completion: int = 0


@dataclass(slots=True)
class ChangedFile:
    path: str  # below the directory of the workspace, absolute if it is not
    change: str  # created, edited or deleted


@dataclass(slots=True)
class RunResult:
    """The document of `--output json`. `outcome` is a key of EXIT_CODES; `denied` counts the
    permissions that were asked for and not given; `limit` is cost, steps, time or tokens."""

    outcome: str
    exit_code: int
    text: str = ""
    error: str = ""
    limit: str = ""
    denied: int = 0
    cost: float = 0.0
    tokens: TokenCount = field(default_factory=TokenCount)
    files_changed: list[ChangedFile] = field(default_factory=list)
    session: str = ""
    run: str = ""


def outcome_of(ending: RunComplete) -> str:
    if ending.cancelled:
        return "canceled"
    if ending.limit:
        return "limit"
    if ending.error:
        return "failed"
    return "denied" if ending.denied else "completed"


def result_of(ending: RunComplete) -> RunResult:
    """What `run_complete` says; the files are not in it."""
    outcome = outcome_of(ending)
    return RunResult(
        *(outcome, EXIT_CODES[outcome], ending.text, ending.error, ending.limit, ending.denied),
        *(ending.cost, TokenCount(ending.prompt_tokens, ending.completion_tokens)),
        session=ending.session_id,
        run=ending.run_id,
    )


def result_without_run(error: CrushliteError) -> RunResult:
    """The document of a command that failed before there was a run, or lost it."""
    codes = {code: outcome for outcome, code in EXIT_CODES.items()}
    return RunResult(codes.get(error.exit_code, "failed"), error.exit_code, error=error.message)


def denied_words(number: int) -> str:
    denied = "was denied" if number == 1 else "were denied"
    return f"{count(number, 'permission')} {denied}: what needed it was not done"


async def changed_files(workspace: WorkspaceRequests, run_id: str) -> list[ChangedFile]:
    """The files that a run has changed; none if that is not recorded."""
    from ..features import requests  # only here: most commands ask for none of it

    try:
        changes = await requests.run_changes(workspace, run_id)
    except NotFound:
        return []
    return [
        ChangedFile(_below(each.path, workspace.info.path), _change(each.existed, each.exists))
        for each in changes.files
    ]


def _change(existed: bool, exists: bool) -> str:
    return "edited" if existed and exists else "created" if exists else "deleted"


def _below(path: str, folder: str) -> str:
    shown = os.path.relpath(path, folder) if os.path.isabs(path) else path
    return path if shown.startswith("..") else shown
