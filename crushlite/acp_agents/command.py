"""Which program is an agent, and how a person names it: `acp:COMMAND ARGS`."""

from __future__ import annotations

import os
import re
import shlex
from typing import TYPE_CHECKING

from ..errors import BadRequest
from ..records import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX = "acp:"
_MOST = 4096  # characters of a command line
# Programs that only start another one.
_STARTERS = r"npx|pnpx|bunx|uvx|env|node|bun|deno|sh|bash|python[\d.]*"
# What a daemon of ours reads from its environment, or gives to the commands of a client.
_OWN_VARIABLES = "CRUSHLITE_"


@dataclass(frozen=True, slots=True)
class AgentCommand:
    """How to start an agent. `name` is what people call it; `env` is added to the environment of
    the workspace."""

    name: str
    arguments: tuple[str, ...]  # the program first
    env: tuple[tuple[str, str], ...] = ()

    @property
    def line(self) -> str:
        """The command as it would be typed in a shell."""
        return shlex.join(self.arguments)

    @property
    def digest(self) -> str:
        """A hash of the line, by which a session knows the command again. It is kept in the
        project's database, where the line must not be: keys may be among the arguments."""
        import hashlib  # only with a session that has such an agent

        return hashlib.sha256(self.line.encode("utf-8", "surrogateescape")).hexdigest()

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """What the program gets: all of the user's environment. It is started in the user's name
        and needs the user's keys to reach its model. Only what is meant for us is left out."""
        own = {name: value for name, value in env.items() if not name.startswith(_OWN_VARIABLES)}
        return {**own, **dict(self.env)}


def read_command(text: str) -> AgentCommand:
    """The command that `acp:COMMAND ARGS` names, quoted as for a shell. Raises BadRequest."""
    if len(text) > _MOST or "\0" in text:
        raise BadRequest(f"an agent's command has at most {_MOST} characters, and no NUL")
    try:
        arguments = shlex.split(text.removeprefix(PREFIX))
    except ValueError as error:
        raise BadRequest(f"agent {text!r}: {error}; quote it as for a shell") from None
    if not arguments or not arguments[0]:
        raise BadRequest(f"agent {text!r}: give a command, such as {PREFIX}'gemini --acp'")
    return AgentCommand(_name(arguments), tuple(arguments))


def _name(arguments: list[str]) -> str:
    """What to call a command: its program, or the one that this starts, without the path, scope and
    version in `npx -y @maker/agent@1.2`."""
    program = os.path.basename(arguments[0])
    if re.fullmatch(_STARTERS, program):
        started = (arg for arg in arguments[1:] if not arg.startswith("-") and "=" not in arg)
        program = os.path.basename(next(started, program))
    return program.partition("@")[0] or program
