"""The prompts of servers as commands of users."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..protocol.features import CommandArgument, CommandInfo

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .items import PromptInfo
    from .server import Server


class ServerPrompt:
    """Implements wing.OfferedCommand."""

    def __init__(self, server: Server, prompt: PromptInfo) -> None:
        self._server = server
        self._prompt = prompt

    @property
    def info(self) -> CommandInfo:
        prompt = self._prompt
        return CommandInfo(
            id=f"mcp:{self._server.name}:{prompt.name}",
            name=f"{self._server.name}:{prompt.name}",
            description=prompt.description or prompt.title,
            source="mcp",
            arguments=[
                CommandArgument(each.name, each.description, each.required)
                for each in prompt.arguments
            ],
        )

    async def expand(self, arguments: Mapping[str, str], text: str) -> str:
        return await self._server.prompt(self._prompt.name, arguments)
