"""Reports for programs: `GET /v1/openapi.json` and `GET /v1/metrics`.

The modules that write them are imported when the first request asks: most daemons are never asked,
and every one starts faster without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..http.messages import Response
from ..wing import Wing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..api.context import Context
    from ..api.entry import Entry
    from ..http.messages import Request

TEXT_FORMAT = "text/plain; version=0.0.4; charset=utf-8"  # of Prometheus


class ReportsWing(Wing):
    def __init__(self) -> None:
        self._description: Response | None = None  # the routes of a daemon never change

    def routes(self) -> Sequence[Entry]:
        from ..api.entry import Entry

        return (
            Entry("GET", "/v1/openapi.json", self.openapi, gives=dict[str, Any]),
            Entry("GET", "/v1/metrics", self.metrics, gives=str, media=TEXT_FORMAT),
        )

    async def openapi(self, context: Context, request: Request) -> Response:
        if self._description is None:
            from ..api.context import answer
            from .openapi import document

            self._description = answer(document(context.table))
        return self._description

    async def metrics(self, context: Context, request: Request) -> Response:
        from .metrics import families, write

        return Response(200, write(families(context.backend, context.vitals)), TEXT_FORMAT)
