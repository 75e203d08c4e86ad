"""How a turn of an external agent fails, in the words that its user reads."""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING, Any

from ..commands.environment import hide_secrets, is_secret_name, looks_like_token
from ..errors import ProviderFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..agent.base import Exit
    from ..jsonrpc.errors import RpcError
    from .command import AgentCommand

LOGIN_NEEDED = -32000  # ACP: authentication is required
HIDDEN = "[secret]"
_LAST_LINES = 12
_LAST_CHARS = 2000
_SHOWN = 500  # characters of a text that an agent wrote, within a sentence of ours
# Colours and titles that programs write for a terminal.
_ESCAPES = re.compile(r"\x1b(?:\[[0-9;:?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")


class AgentFailed(ProviderFailed):
    """The agent could not be started, has died or has answered with an error."""

    code = "agent_failed"


class LoginNeeded(AgentFailed):
    code = "login_needed"


def shown(text: object, most: int = _SHOWN) -> str:
    """A text of the agent's on one line: short, with its control characters visible, and without
    what looks like a secret."""
    plain = text if isinstance(text, str) else repr(text)
    plain = hide_secrets(plain[: 2 * most], HIDDEN)
    cut = plain if len(plain) <= most else plain[:most] + "..."
    return "".join(_visible(one) for one in " ".join(cut.split()))


def _visible(one: str) -> str:
    return one if one.isprintable() or one == "\n" else one.encode("unicode_escape").decode()


def last_words(output: str, env: Mapping[str, str]) -> str:
    """The last lines that a program wrote to standard error, without colours, with all other
    control characters visible and without secrets: those of its environment, and what looks like
    one."""
    text = _ESCAPES.sub("", output[-4 * _LAST_CHARS :]).replace("\r\n", "\n")
    text = hide_secrets(_without_values(text, env), HIDDEN)
    lines = [line.rstrip() for line in text.replace("\r", "\n").split("\n") if line.strip()]
    words = "\n".join(lines[-_LAST_LINES:])[-_LAST_CHARS:]
    return "".join(map(_visible, words))


def _without_values(text: str, env: Mapping[str, str]) -> str:
    """Replace the values of those variables whose names say that they are secret."""
    for name, value in env.items():
        if is_secret_name(name) and (looks_like_token(value) or len(value) >= 12):
            text = text.replace(value, HIDDEN)
    return text


def words_of(error: RpcError, env: Mapping[str, str]) -> str:
    """What an agent says about an error: its message, and the details if there are any. Without
    secrets: those of its environment, and what looks like one."""
    data = error.data
    if isinstance(data, dict):
        data = next((data[key] for key in ("details", "message", "error") if data.get(key)), data)
    details = data if isinstance(data, str) else json.dumps(data) if data else ""
    message, details = (
        shown(_without_values(text[: 4 * _SHOWN], env)) for text in (error.message, details)
    )
    return f"{message} ({details})" if details else message


def died(name: str, ended: Exit | None, words: str) -> AgentFailed:
    """Why a turn failed whose agent is gone."""
    how = "has closed its connection" if ended is None else f"has ended with code {ended.code}"
    if ended is not None and ended.code > 128:
        how = f"was ended by signal {ended.code - 128}"
    said = f" Its last words:\n{words}" if words else ""
    return AgentFailed(f"{name} {how}; the next prompt starts it again.{said}")


def login_needed(command: AgentCommand, methods: list[Any], said: str) -> LoginNeeded:
    """What to type, as far as the agent's methods say it."""
    ways = [_way(command, method) for method in methods[:8] if isinstance(method, dict)]
    ways = [way for way in ways if way]
    if not any("`" in way for way in ways):
        ways.append(f"start `{shown(command.arguments[0])}` in a terminal and log in there")
    why = f" ({shown(said)})" if said else ""
    how = "; or ".join(ways)
    return LoginNeeded(f"{command.name} needs a login{why}: {how}. Then send the prompt again")


def _way(command: AgentCommand, method: dict[str, Any]) -> str:
    """One way to log in, in words; empty if the method is of no known kind."""
    kind = method.get("type") or "agent"
    name = shown(method.get("name") or method.get("id") or "")
    if kind == "terminal":
        args, env = method.get("args"), method.get("env")
        args = [arg for arg in args if isinstance(arg, str)] if isinstance(args, list) else []
        pairs = env.items() if isinstance(env, dict) else ()
        line = [f"{key}={shlex.quote(str(value))}" for key, value in pairs]
        line.append(shlex.join((*command.arguments, *args)))
        return f"type `{shown(' '.join(line))}` in a terminal ({name})"
    if kind != "agent" or not name:
        return ""
    details = method.get("description")
    return f"{name}: {shown(details)}" if details else name
