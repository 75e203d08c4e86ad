"""`crushlite grant`: answer permission requests from any terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ..errors import RequestNotFound, UsageError
from ..protocol.codec import encode
from .common import add_connection, add_json, command, say, show, show_json
from .lookup import SHORT, choose, running
from .render import request_lines, request_words
from .tables import table
from .text import Style, one_line

if TYPE_CHECKING:
    import argparse

    from ..client import RemoteWorkspace
    from ..protocol.permissions import PermissionRequest

DESCRIPTION = """\
Answer what a tool asks for. Without an id: list what waits for an answer, in all workspaces that
are open. The first answer counts, from whatever client; exit code 1 if another one came first.
"""
EXAMPLES = """\
  crushlite grant                  # what is asked
  crushlite grant 3f2a             # allow it, once
  crushlite grant 3f2a --session   # and the like, in this session
  crushlite grant 3f2a --deny --reason "use make test"
"""

Asked = tuple["RemoteWorkspace", "PermissionRequest"]


def add_parser(commands: Any) -> None:
    parser = command(commands, "grant", DESCRIPTION, run, EXAMPLES)
    add = parser.add_argument
    add("request", nargs="?", metavar="ID", default="", help="of a request, or its beginning")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--deny", action="store_true", help="refuse instead")
    how.add_argument(
        "--session", action="store_true", help="allow the same for the rest of the session"
    )
    add("--reason", metavar="TEXT", default="", help="of a refusal; it goes to the model")
    add_json(parser, "the list, or who answered,")
    add_connection(parser, start=False)


async def run(options: argparse.Namespace) -> int:
    if not options.request and (options.deny or options.session or options.reason):
        raise UsageError("which request? `crushlite grant` lists them")
    if options.reason and not options.deny:
        raise UsageError("--reason goes with --deny: an allowed tool is not told why")
    async with running(options, "nobody asks for anything") as workspaces:
        asked: list[Asked] = []
        for workspace in workspaces:
            asked += [(workspace, request) for request in await workspace.permissions()]
        if not options.request:
            return _list(asked, as_json=options.json)
        found = choose(options.request, [request.id for _, request in asked], "requests")
        if not found:
            raise RequestNotFound(
                f"no open request {options.request}: somebody has answered it, or its run is over; "
                "`crushlite grant` lists what is open"
            )
        workspace, request = next(pair for pair in asked if pair[1].id == found)
        return await _answer(workspace, request, options)


async def _answer(
    workspace: RemoteWorkspace, request: PermissionRequest, options: argparse.Namespace
) -> int:
    action = "deny" if options.deny else "allow_session" if options.session else "allow"
    answer = await workspace.grant(request.id, action, options.reason)
    if options.json:
        show_json(answer)
    elif answer.resolved:
        words = {"deny": "denied", "allow": "allowed", "allow_session": "allowed for the session"}
        show(f"{words[action]}: {request_words(request)}")
    if not answer.resolved:
        say(f"too late: it was answered already{f' by client {answer.by}' if answer.by else ''}")
    return 0 if answer.resolved else 1


def _list(asked: list[Asked], *, as_json: bool) -> int:
    if as_json:
        paths = [{"path": workspace.info.path, **encode(request)} for workspace, request in asked]
        show_json(paths)
    elif not asked:
        say("nobody asks for anything")
    elif len(asked) == 1:
        workspace, request = asked[0]
        show(f"{request.id}  in {one_line(workspace.info.path)}")
        show("\n".join(f"  {line}" for line in request_lines(request)))
        say(f"allow it with: crushlite grant {request.id[:SHORT]}")
    else:
        rows = [
            [request.id[:SHORT], workspace.info.path, request_words(request)]
            for workspace, request in asked
        ]
        show(table(rows, ["ID", "DIRECTORY", "WANTS"], Style(sys.stdout)))
    return 0
