"""A row of the route table: what the router needs, and what a description of the API says.

Everything a client must know of a route is here as data, so that the OpenAPI document is made from
the table. Tests check what a row says against what its function reads and answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..http.messages import Response
from ..records import dataclass

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ..http.messages import Request, Stream

    # Called with the api's Context, which every route function shares, and the request.
    Function = Callable[[Any, Request], Awaitable[Response | Stream]]

MIB = 1 << 20
W = "/v1/workspaces/{id}"


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter in the query or in a header."""

    name: str
    about: str
    kind: type = str
    place: str = "query"
    required: bool = False
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """`takes` and `gives` are wire classes or bare types such as `int` and `list[str]`."""

    method: str
    pattern: str
    function: Function
    takes: Any = None  # what the body is read as; `X | None`: it may be empty; None: it is not read
    gives: Any = None  # what a good answer holds; `X | None`: it may be empty; None: it is empty
    params: tuple[Param, ...] = ()
    status: int = 200
    media: str = "application/json"  # of the answer
    body_limit: int = MIB
    urgent: bool = False  # served even when all ordinary connections are taken
    public: bool = False  # no token is required: only for what a page needs before it has one
    from_file: bool = False  # the form of a local file may post to it, whose Origin is "null"
    refusals: tuple[tuple[int, str], ...] = ()  # status and code of those that no other route has
    instant: Callable[[Request], Response | None] | None = None  # see `Route.instant`


def alive(request: Request) -> Response | None:
    """The `instant` of the health route: 200, or None if the query wants more (`?verbose=1`)."""
    return None if request.head.query else Response(200)
