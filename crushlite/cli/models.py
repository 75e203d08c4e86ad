"""`crushlite models`: the models that can be used in this directory, and what is known of them.

The configuration is read by this command itself, and providers are asked for their lists as a
daemon asks them, so it works without one.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from ..clock import SystemClock
from ..config.factory import FollowsConfig
from ..errors import UsageError
from ..protocol.codec import omitted
from ..records import dataclass
from ..wings import standard_wings
from .agent_names import find_agent
from .common import add_connection, add_json, command, say, show, show_json
from .locations import config_files
from .tables import table
from .text import Style

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from ..config.view import Config
    from ..protocol.config import Model

DESCRIPTION = """\
List the models that can be used in this directory: of providers that are configured or that a key
in the environment brings, and of model servers on this machine. Each has its context window in
tokens, its price in dollars per million tokens of input and output, and where it is known from.
Providers are asked for their lists, which takes a few seconds at most; a question mark is what
nobody told. The models in use are marked L (large: it does the work) and S (small: it writes
titles).

Choose one with `crushlite run --model`, with /model in a chat, or in the web console.
"""
EXAMPLES = """\
  crushlite models
  crushlite models claude              # those with this text in their names
  crushlite run --model openrouter/qwen/qwen3-coder "hello"
  crushlite models --json | jq -r '.[] | select(.context_window >= 200000).model'
"""


@dataclass(slots=True)
class ModelRow:
    """A model that can be used. A window or price of 0 is not known, or nothing has to be paid."""

    provider: str
    model: str
    name: str
    context_window: int
    cost_per_1m_in: float
    cost_per_1m_out: float
    origin: str
    role: str = omitted()  # large, small, or both with a comma


def add_parser(commands: Any) -> None:
    parser = command(commands, "models", DESCRIPTION, run, EXAMPLES)
    parser.add_argument(
        "text", nargs="?", default="", metavar="TEXT", help="only models whose name has this text"
    )
    add_json(parser, "them")
    add_connection(parser)


async def run(options: argparse.Namespace) -> int:
    found = await _found(options)
    rows = list(_rows(found, options.text.lower()))
    if options.json:
        show_json(rows)
        return 0
    for warning in found.warnings:
        say(str(warning))
    if rows:
        heads = ["", "MODEL", "WINDOW", "IN", "OUT", "FROM"]
        show(table(map(_cells, rows), heads, Style(sys.stdout), ("FROM",)))
    elif options.text:
        raise UsageError(f"no model has {options.text!r} in its name")
    if found.large is None:
        say(str(found.choice()))
        say("`crushlite doctor` says what to do about it")
    return 0 if rows else 1


async def _found(options: argparse.Namespace) -> Config:
    """The configuration, with the models that are found as a daemon with this agent finds them."""
    files = config_files(options)
    found = files.load()
    agents = find_agent(
        options.agent or os.environ.get("CRUSHLITE_AGENT") or "auto",
        SystemClock(),
        standard_wings(),
    )
    if isinstance(agents, FollowsConfig):
        await agents.look(files.env, found, True)
        found = await agents.complete(files.env, found, False)
    return found


def _rows(found: Config, text: str) -> Iterator[ModelRow]:
    used = {"large": found.large, "small": found.small}
    for provider in found.providers.values():
        for model in provider.models:
            roles = [
                role
                for role, one in used.items()
                if one and (one.provider.id, one.model.id) == (provider.id, model.id)
            ]
            if text in f"{provider.id}/{model.id} {model.name}".lower():
                origin = found.model_origin(provider.id, model.id)
                yield _row(provider.id, model, origin, ",".join(roles))


def _row(provider: str, model: Model, origin: str, role: str) -> ModelRow:
    return ModelRow(
        provider=provider,
        model=model.id,
        name=model.name,
        context_window=model.context_window,
        cost_per_1m_in=model.cost_per_1m_in,
        cost_per_1m_out=model.cost_per_1m_out,
        origin=origin,
        role=role,
    )


def _cells(row: ModelRow) -> list[str]:
    marks = "".join(role[0].upper() for role in row.role.split(",") if role)
    window = f"{row.context_window:,}".replace(",", " ") if row.context_window else "?"
    priced = row.cost_per_1m_in > 0 or row.cost_per_1m_out > 0
    prices = [
        f"{cost:.4g}" if priced else "?" for cost in (row.cost_per_1m_in, row.cost_per_1m_out)
    ]
    return [marks, f"{row.provider}/{row.model}", window, *prices, row.origin]
