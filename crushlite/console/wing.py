"""The web console: its files, and how a browser gets in. See routes.py, and tabs.py for how a page
goes on with the next daemon."""

from __future__ import annotations

import logging
from functools import cached_property
from typing import TYPE_CHECKING

from ..errors import UsageError
from ..listen import default_path
from ..wing import Wing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..api.entry import Entry
    from ..clock import Clock
    from ..features.wire import WebAddress
    from ..wing import Ports
    from .routes import ConsoleRoutes
    from .tabs import Tabs

log = logging.getLogger(__name__)


class ConsoleWing(Wing):
    """The console of a daemon. Its modules are loaded when they are first used: most daemons are
    never asked for a page."""

    def __init__(self, *, listens: bool = False) -> None:
        """With `listens` a port is open from the start."""
        self._listens = listens

    def use_ports(self, ports: Ports, clock: Clock) -> None:
        self.ports = ports
        self.clock = clock

    @cached_property
    def tabs(self) -> Tabs:
        from .tabs import Tabs

        return Tabs(self.clock)

    @cached_property
    def _routes(self) -> ConsoleRoutes:
        from .routes import ConsoleRoutes

        return ConsoleRoutes(self)

    async def started(self, urls: Sequence[str]) -> None:
        """Open the ports again at which tabs wait, if this is the daemon of the default socket."""
        if f"unix://{default_path()}" in urls and self.ports.auth == "token":
            for port in self.tabs.ports():
                try:
                    await self.ports.loopback(port)
                    for host in self.tabs.hosts(port):
                        self.ports.allow_host(host)
                except UsageError as error:
                    log.warning("tabs of the console wait at port %d: %s", port, error.message)
        if self._listens:
            await self.ports.loopback(0)

    def routes(self) -> Sequence[Entry]:
        return self._routes.table()

    def address(self, url: str, port: int, path: str = "") -> WebAddress:
        """A code for one browser, and the file that brings it there. Raises UsageError."""
        return self._routes.address(url, port, path)
