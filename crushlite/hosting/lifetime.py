"""Performs what claims.py decides: timers, and the calls that follow from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ..claims import Arm, Claims, Disarm, Teardown

if TYPE_CHECKING:
    from ..claims import ClaimTimer, Effect, Graces
    from ..clock import Clock, Timer


class Registry(Protocol):
    """What claims decide about. Implemented by the Backend."""

    def tear_down(self, workspace_id: str) -> None:
        """No client or run claims this workspace any more."""

    def leave(self) -> None:
        """No workspace is left that needs this server."""


class Lifetimes:
    """The claims on all workspaces of a server, with real timers."""

    def __init__(self, graces: Graces, clock: Clock, registry: Registry) -> None:
        self.claims = Claims(graces)
        self._clock = clock
        self._registry = registry
        self._timers: dict[ClaimTimer, Timer] = {}

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Arm):
                self._arm(effect)
            elif isinstance(effect, Disarm):
                timer = self._timers.pop(effect.timer, None)
                if timer is not None:
                    timer.cancel()
            elif isinstance(effect, Teardown):
                self._registry.tear_down(effect.workspace)
            else:
                self._registry.leave()

    def _arm(self, effect: Arm) -> None:
        timer = effect.timer
        self._timers[timer] = self._clock.call_later(effect.seconds, lambda: self._expired(timer))

    def _expired(self, timer: ClaimTimer) -> None:
        self._timers.pop(timer, None)
        self.perform(self.claims.expired(timer))


class Lifetime:
    """The claims on one workspace."""

    def __init__(self, lifetimes: Lifetimes, workspace_id: str) -> None:
        self._lifetimes = lifetimes
        self._id = workspace_id

    @property
    def interactive(self) -> bool:
        """Whether a client is attached that has not said that no person sits at it."""
        return self._lifetimes.claims.interactive(self._id)

    @property
    def attended(self) -> bool:
        """Whether a client is attached that has said that a person sits at it."""
        return self._lifetimes.claims.attended(self._id)

    @property
    def watchers(self) -> int:
        """How many clients are attached."""
        return self._lifetimes.claims.watchers(self._id)

    def run_began(self, run_id: str) -> None:
        """A detached run keeps the workspace alive from now on."""
        self._lifetimes.perform(self._lifetimes.claims.run_began(self._id, run_id))

    def run_ended(self, run_id: str) -> None:
        """A detached run has ended: it keeps the workspace alive no longer."""
        self._lifetimes.perform(self._lifetimes.claims.run_ended(self._id, run_id))
