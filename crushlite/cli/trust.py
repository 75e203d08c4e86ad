"""`crushlite trust`: see what the files of a project ask for, and let them be used.

The files are read once: what is trusted is what was shown, whatever they hold a moment later.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..client import ConnectionFailed
from ..commands.environment import is_secret_name
from ..config.agentfiles import about
from ..config.expand import variables
from ..config.files import Roots, digest, environment, read_bytes
from ..config.loading import ConfigFiles
from ..config.project import choice_keys
from ..config.secrets import mask
from ..config.trust import Trust
from ..errors import ConfigError, CrushliteError
from ..features import requests
from ..hosting.plain import OWN_DATA_DIR
from ..itself import here
from ..wings import has_wing
from .common import add_connection, command, reached, say, show
from .helptext import not_empty
from .locations import config_files
from .person import agreed
from .tables import table
from .text import Style, count, visible

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from ..config.agentfiles import AgentFile
    from ..config.loading import ProjectFile
    from ..skills.configured import ProjectText

# Sections of programs by their names, and what is said of one.
_STARTED = {
    "agents": "agent {}, a program that can then be started",
    "mcp": "tool server {}, which is then started",
    "lsp": "language server {}, which is then started",
    "hooks": "hook {}, which runs programs",
}
DESCRIPTION = """\
Show what the files of a project would use (in crush.json providers and their addresses, models,
variables, tool and language servers, hooks; named sub-agents, skills, commands), and after a yes
let them. Until then a project's files choose no provider, no model and no key, nothing in them is
started or expanded, and no model reads its skills. What is remembered is the path of each file and
its content: a file that changes must be trusted again; the programs that it starts are not looked
at.
`$(...)` in a project's file is never run.
"""
EXAMPLES = """\
  crushlite trust ~/src/parser
  crushlite trust --list
  crushlite trust --revoke ~/src/parser
"""
_PROGRAMS = ("env",)


def add_parser(commands: Any) -> None:
    parser = command(commands, "trust", DESCRIPTION, run, EXAMPLES)
    add = parser.add_argument
    current = "(default: the current one)"
    add("directory", nargs="?", type=not_empty, metavar="DIR", help=current)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--list", action="store_true", help="the files that are trusted")
    what.add_argument("--revoke", action="store_true", help="trust a project's files no more")
    add("--yes", action="store_true", help="do not ask: for scripts")
    add_connection(parser, start=False)


async def run(options: argparse.Namespace) -> int:
    if options.directory:
        options.cwd = os.path.join(options.cwd or "", options.directory)
    if options.list:
        return _list(config_files(options))
    if options.revoke:
        return await _revoke(options)
    files = config_files(options)
    found = [file for file in files.project_files() if choice_keys(file.content.document)]
    agents = [file for file in files.agent_files() if file.path.is_relative_to(files.workspace)]
    texts = _texts(files)
    if not found and not agents and not texts:
        say(f"nothing to trust: no file of {files.workspace} asks for anything that needs it")
        return 0
    _show(found, agents, files)
    for text in texts:
        show(f"{_plain(str(text.path))} ({text.trust.value})\n  {_plain(text.about)}")
    states = {each.trust for some in (found, agents, texts) for each in some}
    if states == {Trust.TRUSTED}:
        say("all of this is trusted already")
        return 0
    if not options.yes and not await agreed(None, "Trust this?"):
        say("not trusted: nothing of this is used")
        return 1
    files.trust(found)
    others = {each.path: {each.digest} for some in (agents, texts) for each in some}
    if others:
        files.trust_store.record(others)
    number = len(found) + len(others)
    stay = "it stays as it is" if number == 1 else "they stay as they are"
    say(f"{count(number, 'file')} trusted, as long as {stay}")
    await _read_again(options)
    return 0


def _show(found: list[ProjectFile], agents: list[AgentFile], files: ConfigFiles) -> None:
    """Show what is to be trusted."""
    for file in found:
        show("\n".join(_lines(file, files)))
    for agent, line in zip(agents, about(agents), strict=True):
        show(f"{_plain(str(agent.path))}\n  {_plain(line)}")
    addresses = ", ".join(_addresses(found))
    if addresses and any(file.trust is not Trust.TRUSTED for file in found):
        show(f"Prompts, and what tools read, may then go to: {addresses}")


def _texts(files: ConfigFiles) -> list[ProjectText]:
    """The skills and commands of the project."""
    if not has_wing("skills"):
        return []
    from ..skills.configured import project_texts

    return project_texts(files)


def _list(files: ConfigFiles) -> int:
    trusted = files.trust_store.read()
    rows = []
    for path in trusted.paths():
        state = "gone"
        try:
            content = read_bytes(path, lambda status: True)
        except ConfigError as error:
            state = error.message.removeprefix(f"{path}: ")
        else:
            if content is not None:
                state = trusted.state(path, digest(content)).value
        rows.append([_plain(str(path)), state])
    if rows:
        show(table(rows, ["FILE", "STATE"], Style(None)))
    else:
        say("no project's file is trusted")
    return 0


async def _revoke(options: argparse.Namespace) -> int:
    files = _files_even_if_broken(options)
    gone = files.distrust()
    for path in gone:
        say(f"no longer trusted: {path}")
    if not gone:
        say(f"nothing of {files.workspace} was trusted")
        return 0
    await _read_again(options)
    return 0


def _files_even_if_broken(options: argparse.Namespace) -> ConfigFiles:
    """The files of a directory, also if it is gone, or if a file in it cannot be used."""
    try:
        return config_files(options)
    except CrushliteError:
        workspace, roots = Path(os.path.realpath(os.path.join(here(), options.cwd or ""))), Roots()
        env = environment(os.environ, roots)
        return ConfigFiles(workspace, env, roots, workspace / OWN_DATA_DIR)


async def _read_again(options: argparse.Namespace) -> None:
    """Let a daemon that runs read the files of its open workspaces again: several may use one
    file."""
    with contextlib.suppress(ConnectionFailed):
        async with reached(options) as client:
            for info in await client.workspaces():
                try:
                    await requests.reread_config(client.attach(info))
                except CrushliteError as error:
                    say(f"{info.path} keeps its configuration: {error.message}")


# What is shown of a file ------------------------------------------------------------------------


def _lines(file: ProjectFile, files: ConfigFiles) -> Iterator[str]:
    """What a file asks for. Every text of it is shown whole, on one line, with all characters
    visible; of a key only its end."""
    document = file.content.document
    yield f"{_plain(str(file.path))} ({file.trust.value})"
    for ident, section in (document.get("providers") or {}).items():
        yield from _provider(ident, section or {})
    for role, chosen in (document.get("models") or {}).items():
        yield f"  model {_plain(role)}: {_value(chosen or {})}"
    if (document.get("options") or {}).get("disable_default_providers"):
        yield "  the built-in providers are turned off"
    if recent := document.get("recent_models"):
        yield f"  models shown as used recently: {_value(recent)}"
    for key, words in _STARTED.items():
        for name, section in (document.get(key) or {}).items():
            yield f"  {words.format(_plain(name))}: {_value(section or {})}"
    yield from _variables(document, files)
    programs = [key for key in _PROGRAMS if document.get(key)]
    if "$(" in json.dumps(document.get("providers")):
        programs.append("$(...)")
    if programs:
        yield f"  ignored, because a project's file starts nothing: {', '.join(programs)}"


def _provider(ident: str, section: dict[str, Any]) -> Iterator[str]:
    off = ", disabled" if section.get("disable") else ""
    address = section.get("base_url") or "at the address that you have configured"
    yield f"  provider {_plain(ident)}{off}: {_plain(address)}"
    for key, value in section.items():
        if key == "models":
            yield f"    models: {', '.join(_plain(str(each.get('id'))) for each in value or ())}"
        elif key not in ("base_url", "disable") and value not in (None, "", {}):
            yield f"    {_plain(key)}: {_value(value, key)}"


def _variables(document: dict[str, Any], files: ConfigFiles) -> Iterator[str]:
    names = variables([document.get(key) for key in ("providers", "agents", "mcp")])
    withheld = files.withheld(names)
    if given := sorted(names - withheld):
        yield f"  variables that it gets: {', '.join(given)}"
    if withheld:
        yield (
            f"  variables that it does not get, because they may be secrets: "
            f"{', '.join(sorted(withheld))} (permissions.project_variables of your own crush.json "
            "would share them)"
        )


def _addresses(found: list[ProjectFile]) -> list[str]:
    sections = [
        section or {}
        for file in found
        for section in (file.content.document.get("providers") or {}).values()
    ]
    urls = (section.get("base_url") for section in sections if not section.get("disable"))
    return list(dict.fromkeys(_plain(url) for url in urls if url))


def _value(value: Any, name: str = "") -> str:
    """A value as JSON, with the texts under secret names masked. References to variables are no
    secrets."""
    return _plain(json.dumps(_masked(value, name), ensure_ascii=False))


def _masked(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return {key: _masked(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_masked(item, name) for item in value]
    secret = isinstance(value, str) and is_secret_name(name) and "$" not in value
    return mask(value) if secret else value


def _plain(text: str) -> str:
    return visible(text).replace("\n", "\\n")
