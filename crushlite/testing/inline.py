"""A store without threads."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class InlineExecutor:
    """For `Stores(executor=InlineExecutor)`: runs each call at once in the calling thread."""

    def __init__(self, name: str = "") -> None:
        self.name = name

    def start(self, call: Callable[[], None]) -> None:
        call()
