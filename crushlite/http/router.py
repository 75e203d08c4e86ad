"""Routes as data, found by walking path segments.

The guard is called with every request, found or not, so that a client without rights does not learn
which routes exist. A literal wins over a parameter, which matches one non-empty decoded segment.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from ..records import dataclass
from .messages import HTTPError, Request, RequestHead, Response, Stream

Handler = Callable[[Request], Awaitable["Response | Stream"]]
# Raises HTTPError unless the request may pass, to its route if it has one.
Guard = Callable[[RequestHead, "Route | None"], None]


@dataclass(frozen=True, slots=True)
class Route:
    method: str
    pattern: str  # "/v1/workspaces/{id}/agent"
    handler: Handler
    body_limit: int = 1 << 20
    urgent: bool = False  # may use the reserved connections: see `Limits.reserved`
    public: bool = False  # the guard lets every request pass: it proves nothing about its sender
    from_file: bool = False  # for the guard: the form of a local file may post to it
    # Answers some requests without waiting for anything, and so without a task; None for others.
    instant: Callable[[Request], Response | None] | None = None


@dataclass(frozen=True, slots=True)
class Admission:
    """The route of a request, and the values of the route's parameters."""

    route: Route
    params: dict[str, str]


class _Node:
    """One position in the tree of patterns. Two routes may name its parameter differently."""

    __slots__ = ("literals", "parameter", "routes")

    def __init__(self) -> None:
        self.literals: dict[str, _Node] = {}
        self.parameter: _Node | None = None
        self.routes: dict[str, tuple[Route, tuple[str, ...]]] = {}


class Router:
    """Finds the route of a request. `whole` is for routes that take a while to make: it gives all
    of them, and is called with the first request that fits none of `routes`."""

    def __init__(
        self,
        routes: Iterable[Route],
        *,
        guard: Guard = lambda head, route: None,
        whole: Callable[[], Iterable[Route]] | None = None,
    ) -> None:
        self._guard = guard
        self._whole = whole
        self._root = _tree(routes)

    def complete(self) -> None:
        """Make all routes, if that is still to be done. Raises what `whole` raises, and ValueError
        for two routes at one place."""
        if self._whole is not None:
            self._root = _tree(self._whole())
            self._whole = None

    def admit(self, head: RequestHead) -> Admission:
        """The route of a request. Raises HTTPError: what the guard raises, 404 or 405."""
        admission, allowed = self._find(head)
        if admission is None and self._whole is not None:
            try:
                self.complete()
            except Exception:
                self._guard(head, None)  # a client without rights gets its refusal, not this
                raise
            admission, allowed = self._find(head)
        self._guard(head, None if admission is None else admission.route)
        if admission is not None:
            return admission
        if not allowed:
            raise HTTPError(404, "route_not_found", "no such route")
        if "GET" in allowed:
            allowed.add("HEAD")
        allow = (("Allow", ", ".join(sorted(allowed))),)
        raise HTTPError(405, "method_not_allowed", "method not allowed here", allow)

    def _find(self, head: RequestHead) -> tuple[Admission | None, set[str]]:
        """The route of a request, and if there is none the methods that its path has."""
        allowed = set[str]()
        for node, values in _matches(self._root, head.segments):
            found = node.routes.get(head.method)
            if found is None and head.method == "HEAD":
                found = node.routes.get("GET")
            if found is not None:
                route, names = found
                return Admission(route, dict(zip(names, values, strict=True))), allowed
            allowed |= set(node.routes)
        return None, allowed


def _tree(routes: Iterable[Route]) -> _Node:
    root = _Node()
    for route in routes:
        if not route.pattern.startswith("/"):
            raise ValueError(f"a pattern starts with '/': {route.pattern!r}")
        node = root
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
    return root


def _matches(root: _Node, segments: tuple[str, ...]) -> list[tuple[_Node, tuple[str, ...]]]:
    """Every position that the path fits, literals before parameters: an id may be spelled like a
    literal, and then the method decides which of the two is meant."""
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
