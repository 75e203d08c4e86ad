"""Reports for programs: `/v1/openapi.json`, `/v1/metrics`, `/v1/health?verbose=1`; and the watchdog
of the event loop.

The modules that write them are imported when the first request asks: most daemons are never asked,
and every one starts faster without.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from ..http.messages import Response
from ..wing import Wing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..api.context import Context
    from ..api.entry import Entry
    from ..clock import Clock
    from ..hosting.workspace import Workspace
    from ..http.messages import Request
    from ..wing import OpenWorkspace, Ports
    from .totals import CountingPart, Totals
    from .watchdog import Vitals

TEXT_FORMAT = "text/plain; version=0.0.4; charset=utf-8"  # of Prometheus


class ReportsWing(Wing):
    _clock: Clock

    def __init__(self) -> None:
        self._description: Response | None = None  # the routes of a daemon never change

    def use_ports(self, ports: Ports, clock: Clock) -> None:
        self._clock = clock

    @cached_property
    def vitals(self) -> Vitals:
        from .watchdog import Vitals

        return Vitals(self._clock)

    @cached_property
    def totals(self) -> Totals:
        from .totals import Totals

        return Totals(self.vitals.loop)

    async def open(self, workspace: OpenWorkspace) -> CountingPart:
        return self.totals.open(cast("Workspace", workspace))

    async def started(self, urls: Sequence[str]) -> None:
        self.vitals.begin()

    def stopped(self) -> None:
        self.vitals.end()

    def routes(self) -> Sequence[Entry]:
        from ..api.entry import Entry, Param, alive
        from ..features.wire import Health

        verbose = "1: report the daemon's state, and test whether its stores can write."
        return (
            Entry(
                "GET",
                "/v1/health",
                self.health,
                gives=Health | None,
                params=(Param("verbose", verbose),),
                urgent=True,
                instant=alive,
            ),
            Entry("GET", "/v1/openapi.json", self.openapi, gives=dict[str, Any]),
            Entry("GET", "/v1/metrics", self.metrics, gives=str, media=TEXT_FORMAT),
        )

    async def health(self, context: Context, request: Request) -> Response:
        """Empty and quick by default: clients ask it before they do anything else. With `verbose`
        it is a report, for which every store is asked to write something."""
        if request.query_one("verbose") not in ("1", "true"):
            return Response(200)
        from ..api.context import answer
        from .health import health_of

        return answer(await health_of(context.backend, self.vitals))

    async def openapi(self, context: Context, request: Request) -> Response:
        if self._description is None:
            from ..api.context import answer
            from .openapi import document

            self._description = answer(document(context.table))
        return self._description

    async def metrics(self, context: Context, request: Request) -> Response:
        from .metrics import families, write

        now = self.totals.now()
        written = families(context.backend, self.vitals, context.server(), now)
        return Response(200, write(written), TEXT_FORMAT)
