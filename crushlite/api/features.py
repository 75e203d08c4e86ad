"""Features of the base protocol that crushlite does not have: truthful answers, all of them empty.

The Crush UI asks for language servers, tool servers and skills when it starts and whenever it is
looked at. "None" is a good answer; "not found" would be shown as a broken server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from crushlite.api.context import EMPTY, answer
from crushlite.errors import NotFound

if TYPE_CHECKING:
    from crushlite.api.context import Context
    from crushlite.http.messages import Request, Response

__all__ = [
    "diagnostics",
    "needs_init",
    "no_list",
    "no_map",
    "nothing_to_do",
]


async def no_list(context: Context, request: Request) -> Response:
    context.workspace(request)
    return answer([])


async def no_map(context: Context, request: Request) -> Response:
    context.workspace(request)
    return answer({})


async def nothing_to_do(context: Context, request: Request) -> Response:
    context.workspace(request)
    return EMPTY


async def diagnostics(context: Context, request: Request) -> Response:
    context.workspace(request)
    raise NotFound("LSP client not found: no language server runs here")


async def needs_init(context: Context, request: Request) -> Response:
    context.workspace(request)
    return answer({"needs_init": False})
