"""How many bytes all request bodies may take together."""

from __future__ import annotations

from .messages import overloaded


class BodyBudget:
    """The bound of all bodies of one sort."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.used = 0


class BodyShare:
    """What one body takes of a budget, from its head until its request was carried out."""

    __slots__ = ("_budget", "_size")

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._size = 0

    def grow(self, size: int) -> None:
        """Count `size` bytes, declared or received so far, instead of what was counted. Raises 503
        if the bodies of all requests are too large together; a single one never is."""
        others = self._budget.used - self._size
        if others and others + size > self._budget.most:
            raise overloaded("too much is being sent at once")
        self._budget.used = others + size
        self._size = size

    def release(self) -> None:
        """Give the bytes back. A second call does nothing."""
        self._budget.used -= self._size
        self._size = 0
