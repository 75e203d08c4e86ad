"""What a daemon needs of the API to listen, and to answer that it is well.

Clients ask for its health before they ask for anything else. All other routes, with the classes of
the protocol that they name, are loaded with the first request for one, or a second after the start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import CrushliteError
from ..http.messages import HTTPError
from ..http.router import Route, Router
from .entry import alive

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..hosting.backend import Backend
    from ..http.messages import Request, Response, Stream
    from ..http.server import HTTPServer
    from ..wing import Wing
    from .auth import Guard

MAX_MESSAGE = 1000  # characters of a refusal: some quote what was sent, which may be a megabyte


def build_router(
    backend: Backend, server: Callable[[], HTTPServer], wings: Sequence[Wing], guard: Guard
) -> Router:
    """The router of a daemon. `server` returns its HTTP server, which is made after the router."""

    def whole() -> list[Route]:
        from .context import Context
        from .routes import routes_of, whole_table

        return routes_of(Context(backend, whole_table(wings), server))

    async def health(request: Request) -> Response | Stream:
        router.complete()  # for what `alive` does not answer
        return await router.admit(request.head).route.handler(request)

    route = Route("GET", "/v1/health", health, urgent=True, instant=alive)
    router = Router([route], guard=guard, whole=whole)
    return router


def translate(error: Exception) -> HTTPError | None:
    """The answer to an error that was raised on purpose; None for any other error."""
    if not isinstance(error, CrushliteError):
        return None
    headers = (("Retry-After", "1"),) if error.status == 503 else ()
    message = error.message
    if len(message) > MAX_MESSAGE:
        message = message[:MAX_MESSAGE] + "..."
    return HTTPError(error.status, error.code, message, headers)
