"""`crushlite sessions`: list, read, export, rename and delete the sessions of a directory."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import CrushliteError, UsageError
from ..protocol.codec import dumps, encode
from .common import (
    add_connection,
    add_json,
    command,
    inherit,
    opened,
    say,
    show,
    show_json,
)
from .helptext import not_empty
from .lookup import NEEDS_YOU, SHORT, find_session, waiting_sessions
from .person import agreed
from .render import ShownMessages, reading_lines
from .tables import table
from .text import Style, ago, count, one_line

if TYPE_CHECKING:
    import argparse

    from ..protocol.sessions import Session

DESCRIPTION = """\
The sessions of this directory. A session is named by its id, the beginning of it, or `last` for
the one used last. Without an action they are listed.
"""
EXAMPLES = """\
  crushlite sessions
  crushlite sessions show last
  crushlite sessions export last --format md -o notes.md
  crushlite sessions rename 3f2a "the parser"
  crushlite sessions delete 3f2a
"""


# Parsers ----------------------------------------------------------------------------------------


def add_parser(commands: Any) -> None:
    parser = command(commands, "sessions", DESCRIPTION, run, EXAMPLES)
    actions = parser.add_subparsers(metavar="ACTION", title="actions")
    add_json(parser, "the list")
    add_connection(parser)
    _add_list(actions)
    _add_show(actions)
    _add_export(actions)
    _add_rename(actions)
    _add_delete(actions)
    for action in actions.choices.values():
        inherit(parser, action)


def _add_list(actions: Any) -> None:
    text = "List the sessions of this directory, the one used last first.\n"
    example = "  crushlite sessions list --json | jq '.[].id'"
    parser = command(actions, "list", text, run, example, "list them, the one used last first")
    add_json(parser, "the list")
    add_connection(parser)


def _add_show(actions: Any) -> None:
    text = "Print a session for reading: what was said, and each tool call in one line.\n"
    example = "  crushlite sessions show last | less"
    parser = command(actions, "show", text, _show, example, "print one for reading")
    _add_session(parser)
    add_json(parser, "its messages")
    add_connection(parser)


def _add_export(actions: Any) -> None:
    text = """\
Write all there is of a session: as JSON (the session, its messages, every version of the files it
changed, its runs) or as a Markdown document for reading.
"""
    examples = """\
  crushlite sessions export last > session.json
  crushlite sessions export 3f2a --format md -o session.md
"""
    short = "write all there is of one, as JSON or Markdown"
    parser = command(actions, "export", text, _export, examples, short)
    _add_session(parser)
    add = parser.add_argument
    add("--format", choices=("json", "md"), help="default: by the name of FILE, else json")
    add("-o", "--output", metavar="FILE", default="", help="default: standard output")
    add("--force", action="store_true", help="replace FILE if it is there")
    add_connection(parser)


def _add_rename(actions: Any) -> None:
    text = "Give a session a title. It is kept: no title is made up for it any more.\n"
    example = '  crushlite sessions rename last "done"'
    parser = command(actions, "rename", text, _rename, example, "give one a title")
    _add_session(parser)
    parser.add_argument("title", metavar="TITLE", nargs="+", help="several words are joined")
    add_json(parser, "the session")
    add_connection(parser)


def _add_delete(actions: Any) -> None:
    text = "Delete a session with all it owns. What runs in it is canceled first.\n"
    example = "  crushlite sessions delete 3f2a --yes"
    parser = command(actions, "delete", text, _delete, example, "delete one with all it owns")
    _add_session(parser)
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    add_connection(parser)


def _add_session(parser: argparse.ArgumentParser) -> None:
    which = "an id, its beginning, or `last`"
    parser.add_argument("session", type=not_empty, metavar="SESSION", help=which)


# Actions ----------------------------------------------------------------------------------------


async def run(options: argparse.Namespace) -> int:
    async with opened(options) as workspace:
        sessions = await workspace.sessions()
        waiting = await waiting_sessions(workspace)
    if options.json:
        show_json(sessions)
    elif not sessions:
        say("no sessions yet: begin with crushlite chat")
    else:
        now = time.time()
        rows = [
            [
                each.id[:SHORT],
                ago(each.updated_at, now),
                str(each.message_count),
                f"{each.cost:.2f}" if each.cost else "",
                NEEDS_YOU if each.id in waiting else "at work" if each.is_busy else "",
                each.title or "untitled",
            ]
            for each in sessions
        ]
        heads = ["SESSION", "USED", "MESSAGES", "COST", "STATE", "TITLE"]
        show(table(rows, heads, Style(sys.stdout), spare=("COST", "MESSAGES", "USED")))
    return 0


async def _show(options: argparse.Namespace) -> int:
    async with opened(options) as workspace:
        session_id = await find_session(workspace, options.session)
        session = await workspace.session(session_id)
        messages = await workspace.messages(session_id)
    if options.json:
        show_json(messages)
        return 0
    style, shown = Style(sys.stdout), ShownMessages()
    show(f"{style.bold(_title(session))}  {style.dim(session.id)}")
    for message in messages:
        for new in shown.take(message, final=True):
            for line in reading_lines(new, style):
                show(line)
    return 0


async def _export(options: argparse.Namespace) -> int:
    from .export import export  # only here: the other actions need neither
    from .markdown import markdown

    name = options.output
    if name and not options.force:
        _require_free(name)
    form = options.format or ("md" if name.endswith((".md", ".markdown")) else "json")
    async with opened(options) as workspace:
        found = await export(workspace, await find_session(workspace, options.session))
    content = markdown(found) if form == "md" else dumps(encode(found)).decode("ascii") + "\n"
    if name:
        _save(name, content)
        say(f"{count(len(found.messages), 'message')} in {name}")
    else:
        sys.stdout.write(content)
        sys.stdout.flush()
    return 0


def _require_free(name: str) -> None:
    if os.path.lexists(name):
        raise UsageError(f"{name} is there already: --force replaces it")


def _save(name: str, content: str) -> None:
    try:
        Path(name).write_text(content, encoding="utf-8")
    except OSError as error:
        raise CrushliteError(f"cannot write {name}: {error.strerror}") from None


async def _rename(options: argparse.Namespace) -> int:
    if not " ".join(options.title).strip():
        raise UsageError("the title is empty: say what the session is about")
    async with opened(options) as workspace:
        session_id = await find_session(workspace, options.session)
        session = await workspace.rename(session_id, " ".join(options.title))
    if options.json:
        show_json(session)
    else:
        show(f"{session.id[:SHORT]}  {one_line(session.title)}")
    return 0


async def _delete(options: argparse.Namespace) -> int:
    async with opened(options) as workspace:
        session_id = await find_session(workspace, options.session)
        session = await workspace.session(session_id)
        title = _title(session)
        question = f"delete {title!r}, {count(session.message_count, 'message')}?"
        if not options.yes and not await agreed(workspace, question):
            say("nothing was deleted")
            return 1
        await workspace.delete(session_id)
    show(f"deleted {session_id[:SHORT]}  {title}")
    return 0


def _title(session: Session) -> str:
    return one_line(session.title) or "untitled"
