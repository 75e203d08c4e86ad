"""What goes wrong with a tool server beyond what jsonrpc/errors.py has."""

from __future__ import annotations

from ..jsonrpc.errors import PeerError


class ServerError(PeerError):
    """A server cannot be used; the message says why."""

    code = "tool_server"


class NeedsAuth(ServerError):
    """The server wants credentials that it did not get."""

    code = "needs_auth"


class SessionLost(ServerError):
    """The server has forgotten the session; what was asked was not done."""

    code = "session_lost"
