"""TCP ports that stay ours while nobody listens at them."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["reserved_port"]


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """A port of 127.0.0.1 at which nobody listens: connections are refused, and a server that is
    told this port can listen there, stop, and listen again. A port that was merely free a moment
    ago can be given to a connection of another test meanwhile; this one cannot, as a socket is
    bound to it until the context ends (SO_REUSEADDR lets a server bind beside it)."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])
