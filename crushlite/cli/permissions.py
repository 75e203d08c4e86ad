"""`crushlite permissions`: the rules by which tools run without asking, and taking them back.

Rules of sessions are in the daemon; those for good are in the user's own file, which this command
reads itself if no workspace is open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..client import ConnectionFailed
from ..errors import NotFound
from ..wings import has_wing
from .common import add_connection, add_json, command, inherit, reached, say, show, show_json
from .helptext import not_empty
from .locations import config_files
from .lookup import SHORT, choose, is_here
from .render import in_line

if TYPE_CHECKING:
    import argparse

    from ..client import Client, RemoteWorkspace
    from ..protocol.permissions import PermissionRule

DESCRIPTION = """\
List what tools may do without asking, because you allowed it beyond a single request: for a
session, or for good. Rules for good are in your own file, whichever directory they are for.
"""
EXAMPLES = """\
  crushlite permissions              # the rules
  crushlite permissions remove 3f2a  # ask again from now on
"""
REMOVE = """\
Take a rule back: what it covered is asked for again. What runs already goes on.
"""

# A rule, with an open workspace in which it counts, if there is one.
Found = tuple["PermissionRule", "RemoteWorkspace | None"]


def add_parser(commands: Any) -> None:
    parser = command(commands, "permissions", DESCRIPTION, run, EXAMPLES)
    actions = parser.add_subparsers(metavar="ACTION", title="actions")
    add_json(parser, "the list")
    add_connection(parser, start=False)
    remove = command(actions, "remove", REMOVE, _remove, EXAMPLES, "take a rule back")
    an_id = "of a rule, or its beginning"
    remove.add_argument("rule", type=not_empty, metavar="ID", help=an_id)
    add_connection(remove, start=False)
    inherit(parser, remove)


def rule_lines(rule: PermissionRule) -> list[str]:
    """A rule, whole: its id and for whom it is, then what it covers."""
    whose = f"in session {rule.session_id[:SHORT]}" if rule.session_id else "for good"
    tool = in_line(f"{rule.tool_name} ({rule.action})")
    return [f"{rule.id[:SHORT]}  {tool}, {whose}", f"  {in_line(rule.words)}"]


async def run(options: argparse.Namespace) -> int:
    try:
        async with reached(options) as client:
            found = await _rules(options, client)
    except ConnectionFailed as error:
        if error.reached:
            raise
        found = _from_files(options)
    if options.json:
        show_json([rule for rule, _ in found])
    elif not found:
        say("nothing is allowed beyond what was asked")
    for rule, _ in found if not options.json else ():
        show("\n".join(rule_lines(rule)))
    return 0


async def _remove(options: argparse.Namespace) -> int:
    try:
        async with reached(options) as client:
            rule, workspace = _choose(options.rule, await _rules(options, client))
            if workspace is not None:
                await workspace.remove_rule(rule.id)
                return _removed(rule)
    except ConnectionFailed as error:
        if error.reached:
            raise
        rule, _ = _choose(options.rule, _from_files(options))
    from ..config.rules import drop_rule  # only here: the wing may not be there

    config_files(options).change(0, lambda document: drop_rule(document, rule.id))
    return _removed(rule)


def _removed(rule: PermissionRule) -> int:
    say(f"taken back: {rule_lines(rule)[1].strip()}")
    return 0


async def _rules(options: argparse.Namespace, client: Client) -> list[Found]:
    """The rules of all open workspaces, that of the current directory first; if none is open, those
    of the files."""
    workspaces = [client.attach(info) for info in await client.workspaces()]
    workspaces.sort(key=lambda each: not is_here(each, options))
    if not workspaces:
        return _from_files(options)
    found: dict[str, Found] = {}  # by id: those for good are in each list
    for workspace in workspaces:
        for rule in await workspace.rules():
            found.setdefault(rule.id, (rule, workspace))
    return list(found.values())


def _from_files(options: argparse.Namespace) -> list[Found]:
    if not has_wing("config"):
        return []
    return [(rule, None) for rule in config_files(options).load().rules]


def _choose(given: str, found: list[Found]) -> Found:
    chosen = choose(given, [rule.id for rule, _ in found], "rules")
    if not chosen:
        raise NotFound(f"no rule {given[:SHORT]}: `crushlite permissions` lists them")
    return next(pair for pair in found if pair[0].id == chosen)
