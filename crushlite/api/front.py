"""What a daemon needs of the API to listen, and to answer that it is well.

Clients ask for its health before they ask for anything else. All other routes, with the classes of
the protocol that they name, are loaded with the first request for one of them, at the latest a
second after the start.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from ..errors import CrushliteError
from ..http.messages import HTTPError, Response
from ..http.router import Route, Router
from .entry import alive

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..hosting.backend import Backend
    from ..http.messages import Request
    from ..http.server import HTTPServer
    from ..wing import Wing
    from .auth import Guard
    from .context import Context

HEALTH = "/v1/health"
MAX_MESSAGE = 1000  # characters of a refusal: some quote what was sent, which may be a megabyte


def build_router(
    backend: Backend, server: Callable[[], HTTPServer], wings: Sequence[Wing], guard: Guard
) -> Router:
    """The router of a daemon. `server` returns its HTTP server, which is made after the router."""

    @functools.cache
    def context() -> Context:
        from .context import Context
        from .routes import whole_table

        return Context(backend, whole_table(wings), server)

    def whole() -> list[Route]:
        from .routes import routes_of

        return routes_of(context())

    async def health(request: Request) -> Response:
        known = context()
        entry = next(entry for entry in known.table if entry.pattern == HEALTH)
        answer = await entry.function(known, request)
        assert isinstance(answer, Response)
        return answer

    route = Route("GET", HEALTH, health, urgent=True, instant=alive)
    return Router([route], guard=guard, whole=whole)


def translate(error: Exception) -> HTTPError | None:
    """The answer to an error that was raised on purpose; None for any other error."""
    if not isinstance(error, CrushliteError):
        return None
    headers = (("Retry-After", "1"),) if error.status == 503 else ()
    message = error.message
    if len(message) > MAX_MESSAGE:
        message = message[:MAX_MESSAGE] + "..."
    return HTTPError(error.status, error.code, message, headers)
