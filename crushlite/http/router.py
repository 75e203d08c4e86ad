"""Routes as data, found by walking path segments.

The guard runs before routing on every request, so that a caller without rights cannot even learn
which routes exist. Matching is on decoded segments: a literal wins over a parameter, and a
parameter matches one non-empty segment.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from .messages import HTTPError, Request, RequestHead, Response, Stream

Handler = Callable[[Request], Awaitable["Response | Stream"]]
Guard = Callable[[RequestHead], None]

_DEFAULT_BODY = 1 << 20


@dataclass(frozen=True, slots=True)
class Route:
    method: str
    pattern: str  # "/v1/workspaces/{id}/agent"
    handler: Handler
    body_limit: int = _DEFAULT_BODY
    urgent: bool = False  # may use the connections kept free for a full house


@dataclass(frozen=True, slots=True)
class Admission:
    """What the connection needs to know before it reads the body."""

    route: Route
    params: dict[str, str]

    @property
    def body_limit(self) -> int:
        return self.route.body_limit

    @property
    def urgent(self) -> bool:
        return self.route.urgent


class _Node:
    """One position in the tree of patterns. Parameter names belong to the leaf's routes: two
    routes may call the same position by different names."""

    __slots__ = ("literals", "parameter", "routes")

    def __init__(self) -> None:
        self.literals: dict[str, _Node] = {}
        self.parameter: _Node | None = None
        self.routes: dict[str, tuple[Route, tuple[str, ...]]] = {}


class Router:
    def __init__(self, routes: Iterable[Route], *, guard: Guard | None = None) -> None:
        self.routes = tuple(routes)
        self._guard = guard
        self._root = _Node()
        for route in self.routes:
            self._add(route)

    def _add(self, route: Route) -> None:
        if not route.pattern.startswith("/"):
            raise ValueError(f"a pattern starts with '/': {route.pattern!r}")
        node = self._root
        names: list[str] = []
        for segment in route.pattern[1:].split("/"):
            if segment.startswith("{") and segment.endswith("}"):
                names.append(segment[1:-1])
                node.parameter = node.parameter or _Node()
                node = node.parameter
            else:
                node = node.literals.setdefault(segment, _Node())
        if route.method in node.routes:
            raise ValueError(f"two routes for {route.method} {route.pattern}")
        node.routes[route.method] = (route, tuple(names))

    def admit(self, head: RequestHead) -> Admission:
        """Decide on a request before its body is read. Raises HTTPError."""
        if self._guard is not None:
            self._guard(head)
        allowed: set[str] = set()
        for node, values in _matches(self._root, head.segments):
            found = node.routes.get(head.method)
            if found is None and head.method == "HEAD":
                found = node.routes.get("GET")
            if found is not None:
                route, names = found
                return Admission(route, dict(zip(names, values, strict=True)))
            allowed |= set(node.routes)
        if not allowed:
            raise HTTPError(404, "route_not_found", "no such route")
        allow = (("Allow", _allow(allowed)),)
        raise HTTPError(405, "method_not_allowed", "method not allowed here", allow)


def _matches(root: _Node, segments: tuple[str, ...]) -> list[tuple[_Node, tuple[str, ...]]]:
    """Every place the path can mean, literals before parameters: an id may spell a literal, and
    then the method decides which of the two was meant."""
    places: list[tuple[_Node, tuple[str, ...]]] = [(root, ())]
    for segment in segments:
        deeper = []
        for node, values in places:
            literal = node.literals.get(segment)
            if literal is not None:
                deeper.append((literal, values))
            if node.parameter is not None and segment:
                deeper.append((node.parameter, (*values, segment)))
        places = deeper
    return places


def _allow(methods: set[str]) -> str:
    if "GET" in methods:
        methods.add("HEAD")
    return ", ".join(sorted(methods))
