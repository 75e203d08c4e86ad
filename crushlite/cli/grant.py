"""`crushlite grant`: answer permission requests from any terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ..errors import RequestNotFound, UsageError
from ..protocol.codec import encode
from .common import add_connection, add_json, command, say, show, show_json
from .helptext import not_empty
from .lookup import SHORT, choose, running
from .render import chosen_option, grant_words, option_lines, request_lines, request_words
from .text import visible

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
  crushlite grant 3f2a --session   # and for this session what the list says
  crushlite grant 3f2a --always    # and keep the rule that the list offers
  crushlite grant 3f2a --deny --reason "use make test"
"""

_ACTIONS = {
    "always": "allow_always",
    "deny": "deny",
    "session": "allow_session",
    "rule": "allow_rule",
}
_OPTIONS = {action: f"--{name}" for name, action in _ACTIONS.items()}
_DONE = {
    "deny": "denied",
    "allow": "allowed",
    "allow_session": "allowed for the session",
    "allow_rule": "allowed by a rule for the session",
    "allow_always": "allowed by a rule that is kept",
}

Asked = tuple["RemoteWorkspace", "PermissionRequest"]


def add_parser(commands: Any) -> None:
    parser = command(commands, "grant", DESCRIPTION, run, EXAMPLES)
    add = parser.add_argument
    an_id = "of a request, or its beginning"
    add("request", nargs="?", type=not_empty, metavar="ID", help=an_id)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--deny", action="store_true", help="refuse instead")
    how.add_argument(
        "--session",
        action="store_true",
        help="allow what the list says for the rest of the session",
    )
    how.add_argument(
        "--rule", action="store_true", help="allow the rule that the list offers, for the session"
    )
    # Not in the group: a usage line is not broken within one, and this one would be too wide.
    add("--option", metavar="N", default="", help="choose an answer that the agent offers")
    add("--always", action="store_true", help="allow that rule for good, in your own file")
    add("--reason", metavar="TEXT", default="", help="of a refusal; it goes to the model")
    add_json(parser, "the list, or who answered,")
    add_connection(parser, start=False)


async def run(options: argparse.Namespace) -> int:
    if options.always and (options.deny or options.session):
        raise UsageError("--always keeps the rule: it goes neither with --deny nor with --session")
    action = next((act for name, act in _ACTIONS.items() if getattr(options, name)), "allow")
    if options.option and action != "allow":
        raise UsageError(
            f"--option is an answer of its own: it does not go with {_OPTIONS[action]}"
        )
    if not options.request and (action != "allow" or options.reason or options.option):
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
        return await _answer(workspace, request, action, options)


async def _answer(
    workspace: RemoteWorkspace, request: PermissionRequest, action: str, options: argparse.Namespace
) -> int:
    if not options.json:
        # An id may have been typed without a look at the list.
        print(_whole(workspace, request), file=sys.stderr, flush=True)
    option = ""
    if options.option:
        chosen = chosen_option(request, options.option)
        if chosen is None:
            raise UsageError(f"--option {options.option}: the list has the numbers to choose from")
        action, option = chosen
    answer = await workspace.grant(request.id, action, options.reason, option)
    if options.json:
        show_json(answer)
    elif answer.resolved:
        show(f"{_DONE[action]}: {request_words(request)}")
    if not answer.resolved:
        say(f"too late: it was answered already{f' by client {answer.by}' if answer.by else ''}")
    return 0 if answer.resolved else 1


def _list(asked: list[Asked], *, as_json: bool) -> int:
    if as_json:
        paths = [{"path": workspace.info.path, **encode(request)} for workspace, request in asked]
        show_json(paths)
    elif not asked:
        say("nobody asks for anything")
    else:
        for workspace, request in asked:
            show(_whole(workspace, request))
        first = asked[0][1].id[:SHORT] if len(asked) == 1 else "ID"
        say(f"allow it with: crushlite grant {first}")
    return 0


def _whole(workspace: RemoteWorkspace, request: PermissionRequest) -> str:
    """All of a request: nothing is to be allowed that was not shown."""
    more = [f"{_OPTIONS[action]}: {words}" for action, words in grant_words(request).items()]
    more += [f"--option {line}" for line in option_lines(request)]
    lines = [*request_lines(request), *more]
    where = f"{request.id}  in {visible(workspace.info.path)}"
    return "\n".join([where, *(f"  {line}" for line in lines)])
