"""The routes about skills and commands."""

from __future__ import annotations

import base64
import dataclasses
import functools
import logging
from typing import TYPE_CHECKING

from ..api.context import answer, body
from ..api.entry import Entry, W
from ..clock import time_limit
from ..errors import CrushliteError, NotFound
from ..features.offers import OfferingPart
from ..features.wire import CommandInfo, ExpandCommand, ExpandedCommand, ReadSkill
from .wire import SkillContent, SkillInfo

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from ..api.context import Context
    from ..features.wire import OfferedCommand
    from ..hosting.workspace import Workspace
    from ..http.messages import Request, Response
    from .part import SkillsPart

log = logging.getLogger(__name__)

MOST_COMMANDS = 1000
LIST_SECONDS = 2.0  # for the commands of one part
EXPAND_SECONDS = 30.0  # a tool server may be asked
EXPAND = W + "/commands/expand"


def _part(context: Context, request: Request) -> SkillsPart:
    from .part import SkillsPart

    return context.workspace(request).part(SkillsPart)


async def list_skills(context: Context, request: Request) -> Response:
    found = await _part(context, request).refresh()
    return answer([skill.info for skill in found.skills])


async def read_skill(context: Context, request: Request) -> Response:
    part, wanted = _part(context, request), body(ReadSkill, request).skill_id
    skill = (await part.refresh()).by_id.get(wanted)
    if skill is None:
        raise NotFound(f"skill not found: {wanted}")
    return answer(SkillContent(base64.b64encode(skill.content).decode(), skill.summary))


async def list_commands(context: Context, request: Request) -> Response:
    return answer([info for info, _ in await _commands(context, request)])


async def expand_command(context: Context, request: Request) -> Response:
    from .command import assign

    workspace, wanted = context.workspace(request), body(ExpandCommand, request)
    for info, command in await _commands(context, request):
        if wanted.command in (info.name, info.id):
            arguments, text = assign(info, wanted.arguments, wanted.text)
            async with time_limit(workspace.clock, EXPAND_SECONDS):
                return answer(ExpandedCommand(await command.expand(arguments, text)))
    raise NotFound(f"no command {wanted.command[:80]!r}: list W/commands")


async def _commands(context: Context, request: Request) -> list[tuple[CommandInfo, OfferedCommand]]:
    """The commands of all parts, then the prompts of tool servers, each with a name of its own: the
    first of a name has it, another one has its id for a name."""
    from .prompts import server_prompts

    workspace = context.workspace(request)
    found: dict[str, tuple[CommandInfo, OfferedCommand]] = {}
    sources: list[Callable[[], Awaitable[Sequence[OfferedCommand]]]]
    sources = [part.commands for part in workspace.parts if isinstance(part, OfferingPart)]
    sources.append(functools.partial(server_prompts, context, request))
    for source in sources:
        for command in await _listed(source, workspace):
            info = command.info
            if info.name in found:
                info = dataclasses.replace(info, name=info.id)
            if len(found) < MOST_COMMANDS:
                found.setdefault(info.name, (info, command))
    return list(found.values())


async def _listed(
    source: Callable[[], Awaitable[Sequence[OfferedCommand]]], workspace: Workspace
) -> Sequence[OfferedCommand]:
    """Some commands; none if that fails or is slow: the others are listed all the same."""
    try:
        async with time_limit(workspace.clock, LIST_SECONDS):
            return await source()
    except (CrushliteError, TimeoutError) as error:
        log.warning("workspace %s: some commands are not listed: %s", workspace.path, error)
    except Exception:
        log.exception("workspace %s: some commands are not listed", workspace.path)
    return ()


ROUTES = (
    Entry("GET", W + "/skills", list_skills, gives=list[SkillInfo]),
    Entry("POST", W + "/skills/read", read_skill, takes=ReadSkill, gives=SkillContent),
    Entry("GET", W + "/commands", list_commands, gives=list[CommandInfo]),
    Entry("POST", EXPAND, expand_command, takes=ExpandCommand, gives=ExpandedCommand),
)
