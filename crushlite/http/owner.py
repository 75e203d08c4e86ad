"""The seam between a connection and the server that it belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections import Counter, OrderedDict

    from ..clock import Clock
    from .connection import Connection
    from .limits import Limits
    from .messages import HTTPError, Request, RequestHead
    from .parsing import HeadParser
    from .router import Admission, Router


class Owner(Protocol):
    """What a connection needs of the server."""

    router: Router
    limits: Limits
    parser: HeadParser
    clock: Clock
    expected_uid: int
    draining: bool
    answers: Counter[int]  # how many were begun, by status
    idle: OrderedDict[Connection, None]  # no byte of a request yet; the longest idle first
    body_bytes: int  # of all bodies being received or carried out, but for the small ones

    def joined(self, connection: Connection) -> int:
        """Register, in place of an idle one if need be; returns how many there are now."""

    def left(self, connection: Connection) -> None: ...

    def has_room(self) -> bool:
        """Whether more than the reserved places are free, after closing idle ones if need be."""

    def launch(
        self, connection: Connection, request: Request, admission: Admission, counted: int
    ) -> None:
        """Carry the request out in a task of the owner's, which ends with `answer`. From now on
        it is the owner who takes `counted` off `body_bytes`."""

    def failed(self, error: Exception, head: RequestHead | None) -> HTTPError:
        """The answer for an exception; logs what it does not know."""

    def date(self) -> bytes:
        """The current `Date` line."""
