"""`crushlite config`: show what is configured here and which file says so; change it.

Files are read by this command itself, so it works without a daemon, and also when a daemon refuses
the files. A change is made by the daemon if it has the workspace open: then every client learns of
it at once.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

from ..commands.environment import is_secret_name, looks_like_token
from ..config.merge import spell, split_key
from ..config.secrets import mask
from ..config.warnings import Reason
from ..config.writing import put, take
from ..features import requests
from .common import add_connection, add_json, command, inherit, say, show, show_json
from .locations import config_files
from .lookup import open_here
from .tables import table
from .text import Style, one_line

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Coroutine, Iterator
    from pathlib import Path

    from ..client import RemoteWorkspace
    from ..config.view import Config
    from ..config.warnings import ConfigWarning

PREFIX = "CRUSHLITE_"
_CHOOSING = ("models", "providers")
_USELESS = (Reason.KEY_UNKNOWN, Reason.NOT_FOR_PROJECTS)  # such a key is of no use in its file
# Below these keys every text may be a credential, whatever it is called.
_PRIVATE = {"env", "headers", "extra_headers", "oauth"}

DESCRIPTION = """\
Show what is configured for this directory, and where each value comes from; secrets are hidden.
Later files win over earlier ones; a project's own files can tighten what yours allow, never widen
it. The actions show one part, or change one value.
"""
EXAMPLES = """\
  crushlite config
  crushlite config show models
  crushlite config set models.large '{"provider": "local", "model": "qwen3:8b"}'
  crushlite config set --global options.disable_auto_summarize true
  crushlite config set --global providers.openai.api_key - < key.txt
  crushlite config unset options.disable_auto_summarize
"""
SET = r"""
Write one value: to the file of this directory, or with --global to yours. VALUE is JSON, or else a
text. A dot inside a name is written \. as in providers.local.extra_headers.x\.y
"""
UNSET = """\
Remove one value: from the file of this directory, or with --global from yours. If another file sets
it too, that value counts then, and the file is named. It is no error if there is nothing to remove.
"""


def add_parser(commands: Any) -> None:
    parser = command(commands, "config", DESCRIPTION, run, EXAMPLES)
    parser.set_defaults(key="")
    actions = parser.add_subparsers(metavar="ACTION", title="actions")
    add_json(parser, "what is shown")
    add_connection(parser, start=False)
    text = "Show what is below a key, or, without one, all of it.\n"
    example = "  crushlite config show models"
    show_it = command(actions, "show", text, run, example, "show what is below a key")
    add_json(show_it, "what is shown")
    set_it = command(actions, "set", SET.lstrip(), _set, EXAMPLES, "write one value")
    example = "  crushlite config unset options.disable_auto_summarize"
    unset_it = command(actions, "unset", UNSET, _unset, example, "remove one value")
    name: dict[str, Any] = {"metavar": "KEY", "help": "a dotted name, as in models.large.model"}
    show_it.add_argument("key", nargs="?", default="", **name)
    for each in (set_it, unset_it):
        each.add_argument("key", **name)
    set_it.add_argument(
        "value", metavar="VALUE", help="`-` reads it from standard input: out of your history"
    )
    for each in (set_it, unset_it):
        each.add_argument(
            "--global", dest="everywhere", action="store_true", help="in your own file"
        )
    for each in (show_it, set_it, unset_it):
        add_connection(each, start=False)
        inherit(parser, each)


def _set(options: argparse.Namespace) -> Coroutine[Any, Any, int]:
    """Read standard input, which may block, before there is an event loop: so Ctrl-C ends it.
    Returns what is to be run in a loop."""
    return _write(options, _value(options.value))


# Showing ----------------------------------------------------------------------------------------


def run(options: argparse.Namespace) -> int:
    key = options.key
    found = config_files(options).load()
    rows = [row for row in entries(found) if f"{row[0]}.".startswith(f"{key}." if key else "")]
    if options.json:
        show_json([{"key": at, "value": value, "origin": file} for at, value, file in rows])
        return 0
    for warning in found.warnings:
        say(str(warning))
    if rows:
        plain = [[at, _text(value), file] for at, value, file in rows]
        # A user who asks for one key wants all of its value, however narrow the terminal.
        show(table(plain, ["KEY", "VALUE", "FROM"], Style(None if key else sys.stdout)))
    elif key:
        say(f"nothing is configured at {key}")
        return 1
    else:
        say("nothing is configured")
    if not key:
        say(str(found.choice()))
    return 0


def entries(found: Config) -> Iterator[tuple[str, Any, str]]:
    """The key, the value and the origin of everything that is configured; secrets are masked."""
    for path, value, file in found.entries():
        yield spell(path), _hidden(path, value, found), str(file)
    for name, value in sorted(os.environ.items()):
        if name.startswith(PREFIX):
            yield name, mask(value) if is_secret_name(name) else value, "the environment"


def _hidden(path: tuple[str, ...], value: Any, found: Config) -> Any:
    """A value with its secrets masked. A reference to a variable is no secret."""
    if isinstance(value, list):
        return [_hidden(path, item, found) for item in value]
    if not isinstance(value, str) or value.startswith("$"):
        return value
    if any(is_secret_name(step) for step in path) or not _PRIVATE.isdisjoint(path[:-1]):
        return mask(value)
    return mask(value) if looks_like_token(value) else found.redact(value)


def _text(value: Any) -> str:
    return one_line(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


# Changing ---------------------------------------------------------------------------------------


def _value(given: str) -> Any:
    """The value that was given: JSON, else a text; `-` stands for standard input."""
    if given == "-":
        given = sys.stdin.read().strip()
    try:
        return json.loads(given)
    except ValueError:
        return given


async def _write(options: argparse.Namespace, value: Any) -> int:
    key, scope = options.key, 0 if options.everywhere else 1
    files = config_files(options)
    changed = await _through_daemon(
        options, lambda workspace: requests.set_config(workspace, key, value, scope)
    )
    if not changed:
        files.change(scope, lambda document: put(document, key, value))
    say(f"{key} is set in {files.file(scope)}")
    useless = [found for found in _warn(options, key) if found.reason in _USELESS]
    if any(found.file == files.file(scope) and _overlap(found.key, key) for found in useless):
        everywhere = "--global " if options.everywhere else ""
        say(f"to remove it again: crushlite config unset {everywhere}{key}")
        return 1
    return _without_model(options) if key.split(".")[0] in _CHOOSING else 0


def _without_model(options: argparse.Namespace) -> int:
    """1 if a model was chosen that cannot be used, after saying so; else 0. A provider whose models
    are not known yet is given the benefit of the doubt."""
    found = config_files(options).load()
    for warning in found.warnings:
        if warning.reason is Reason.MODEL_UNKNOWN and warning.key == "models.large":
            say("no model can be used now: `crushlite models` lists what there is")
            return 1
    return 0


async def _unset(options: argparse.Namespace) -> int:
    key, scope = options.key, 0 if options.everywhere else 1
    files = config_files(options)
    file = files.file(scope)
    before = _content(file)
    changed = await _through_daemon(
        options, lambda workspace: requests.remove_config(workspace, key, scope)
    )
    if not changed:
        split_key(key)  # a bad key is an error whether there is a file or not
        if file.exists():
            files.change(scope, lambda document: take(document, key))
    removed = _content(file) != before
    say(f"{key} is removed from {file}" if removed else f"{key} was not set in {file}")
    for origin in _origins(options, key):
        say(f"{key} is still set, in {origin}")
    _warn(options, key)
    return 0


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""  # changing it will say what is wrong


def _origins(options: argparse.Namespace, key: str) -> list[str]:
    """The files, or the environment, in which a key has a value."""
    found = config_files(options).load()
    below = [row for row in entries(found) if f"{row[0]}.".startswith(f"{key}.")]
    return list(dict.fromkeys(origin for _, _, origin in below))


async def _through_daemon(
    options: argparse.Namespace, change: Callable[[RemoteWorkspace], Any]
) -> bool:
    """Have a daemon make a change, if it has the workspace open; returns whether it did."""
    async with open_here(options) as workspace:
        if workspace is not None:
            await change(workspace)
        return workspace is not None


def _warn(options: argparse.Namespace, key: str) -> list[ConfigWarning]:
    """Say what is wrong with a key that was changed; returns that. What chooses a model may make
    another key wrong."""
    found = []
    for warning in config_files(options).load().warnings:
        if _overlap(warning.key, key) or key.split(".")[0] in _CHOOSING:
            say(str(warning))
            found.append(warning)
    return found


def _overlap(one: str, other: str) -> bool:
    """Whether two dotted keys are the same, or one is below the other."""
    whole, part = sorted((f"{one}.", f"{other}."), key=len)
    return part.startswith(whole)
