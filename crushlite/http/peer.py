"""Who is at the other end of a unix socket. Loads next to nothing: a short command uses it."""

from __future__ import annotations

import socket
import struct
import sys

_PEERCRED = getattr(socket, "SO_PEERCRED", 17)


def peer_uid(sock: socket.socket) -> int | None:
    """The user whose process connected (or listened) at the other end of a unix socket; None if the
    system does not tell. The server asks so that only its own user is served even if the socket's
    mode was loosened, the client so that nothing is sent to another user who listens there."""
    try:
        if sys.platform == "darwin":
            # SOL_LOCAL, LOCAL_PEERCRED: struct xucred starts with its version and the uid.
            _, uid = struct.unpack_from("=II", sock.getsockopt(0, 1, 76))
        else:
            _, uid, _ = struct.unpack("=iII", sock.getsockopt(socket.SOL_SOCKET, _PEERCRED, 12))
    except OSError:
        return None
    return int(uid)
