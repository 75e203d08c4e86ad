"""What goes wrong between two peers.

PeerError           any of these
├── RpcError        the other side answered with an error; raised in a handler, our answer
├── PeerGone        the connection has ended: end of file, broken pipe, closed by us
├── PeerTimeout     no answer in time
├── PeerBusy        too many of our own requests are open
└── Unsendable      a message of ours is no JSON, or larger than a frame may be
"""

from __future__ import annotations

from typing import Any

from ..errors import CrushliteError

INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
CANCELLED = -32800  # LSP and ACP


class PeerError(CrushliteError):
    code = "peer_error"


class RpcError(PeerError):
    """An error as JSON-RPC has it. Raise it in a handler to answer with it."""

    code = "rpc_error"

    def __init__(self, number: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.number = number  # the `code` on the wire
        self.data = data

    def wire(self) -> dict[str, Any]:
        answer: dict[str, Any] = {"code": self.number, "message": self.message}
        if self.data is not None:
            answer["data"] = self.data
        return answer


class PeerGone(PeerError):
    code = "peer_gone"


class PeerTimeout(PeerError):
    code = "peer_timeout"


class PeerBusy(PeerError):
    code = "peer_busy"


class Unsendable(PeerError):
    code = "unsendable"
