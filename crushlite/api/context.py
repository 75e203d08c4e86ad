"""What route functions share: the backend, readers of requests, writers of answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from ..clock import seconds_of
from ..errors import BadRequest
from ..http.messages import Response
from ..protocol.codec import decode, dumps, encode, loads
from ..protocol.config import AgentInfo
from ..records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..hosting.backend import Backend
    from ..hosting.workspace import Workspace
    from ..http.messages import Request
    from ..http.server import HTTPServer
    from .entry import Entry

T = TypeVar("T")

EMPTY = Response(200)
MAX_WAIT = 600.0  # seconds a request may wait for a run
ONE_PIECE = 256 * 1024  # bytes of an answer that are written at once


@dataclass(frozen=True, slots=True)
class Context:
    """Every route function is called with it."""

    backend: Backend
    table: tuple[Entry, ...]  # every route, for a route that describes them
    server: Callable[[], HTTPServer]

    def workspace(self, request: Request) -> Workspace:
        return self.backend.get(request.params["id"])


def wire_config(workspace: Workspace) -> dict[str, Any]:
    """The configuration of a workspace as clients see it."""
    return workspace.profile.wire(agent_info(workspace))


def agent_info(workspace: Workspace) -> AgentInfo:
    agent = workspace.runs.agents.agent
    if agent is None:
        return AgentInfo()
    info, busy = agent.info(), workspace.runs.busy()
    return AgentInfo(busy, True, info.model, info.selected, info.no_model)


def answer(value: object, status: int = 200, headers: tuple[tuple[str, str], ...] = ()) -> Response:
    return Response(status, dumps(encode(value)) + b"\n", headers=headers)


def answer_list(pieces: list[bytes]) -> Response:
    """A response with an array. `pieces` are JSON already, each with one element or more."""
    if sum(map(len, pieces)) < ONE_PIECE:
        return Response(200, b"[%b]\n" % b",".join(pieces))
    first, *others = pieces
    return Response(200, b"[" + first, more=(*(b"," + piece for piece in others), b"]\n"))


def body(cls: type[T], request: Request) -> T:
    """The JSON body, also as text/plain, as the Crush client sends it. Raises BadRequest."""
    return request.parsed if isinstance(request.parsed, cls) else read(cls, request.body)


def read(cls: type[T], raw: bytes) -> T:
    """Bytes of JSON as a wire class. Raises BadRequest."""
    value = loads(raw)
    if not isinstance(value, dict):
        raise BadRequest("failed to decode request: an object is required")
    try:
        return decode(cls, value)
    except BadRequest as error:
        raise BadRequest(f"failed to decode request: {error.message}") from None


def optional_body(cls: type[T], request: Request) -> T:
    """As `body`; an empty one means all defaults."""
    given = isinstance(request.parsed, cls) or request.body.strip()
    return body(cls, request) if given else cls()


def client_of(request: Request) -> str:
    """The client id of the query. Raises BadRequest if there is none."""
    client = optional_client(request)
    if not client:
        raise BadRequest("client_id is required")
    return client


def optional_client(request: Request) -> str:
    """The client id of the query; empty if there is none. Raises BadRequest for a wrong one."""
    value = request.query_one("client_id")
    return canonical_client(value) if value else ""


def canonical_client(value: str, refusal: str = "client_id is not a valid UUID") -> str:
    """A client id in the one spelling that the daemon uses. Raises BadRequest."""
    import uuid  # only now: it takes 3 ms to load

    try:
        return str(uuid.UUID(value))
    except ValueError:
        raise BadRequest(f"{refusal}: {value[:80]!r}") from None


def seconds(request: Request, name: str = "wait") -> float:
    """A duration in the query: 0 if absent, and never more than MAX_WAIT. Raises BadRequest."""
    text = request.query_one(name)
    if text is None:
        return 0.0
    try:
        return min(seconds_of(text), MAX_WAIT)
    except ValueError:
        raise BadRequest(f"{name} must be a number of seconds from 0 to {MAX_WAIT:.0f}") from None
