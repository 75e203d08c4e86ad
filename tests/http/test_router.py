"""Routing and the value types it works on."""

from __future__ import annotations

import unittest

from crushlite.http.messages import Headers, HTTPError, Peer, RequestHead
from crushlite.http.parsing import split_target
from crushlite.http.router import Admission, Route, Router
from tests.support.http import Recorder, fail


def head(method: str, target: str) -> RequestHead:
    segments, query = split_target(target)
    return RequestHead(method, target, segments, query, Headers(), Peer("memory"))


class Routing(unittest.TestCase):
    def setUp(self) -> None:
        self.routes = [
            Route(method, pattern, fail)
            for method, pattern in (
                ("GET", "/"),
                ("GET", "/v1/a"),
                ("POST", "/v1/a"),
                ("GET", "/v1/{id}"),
                ("DELETE", "/v1/{other}"),
                ("GET", "/v1/a/b/c"),
                ("GET", "/v1/{x}/b/{y}"),
                ("GET", "/v1/{x}/{y}/last"),
            )
        ]
        self.router = Router(self.routes)

    def admit(self, method: str, target: str) -> Admission:
        return self.router.admit(head(method, target))

    def test_literals_win_and_parameters_take_one_segment(self) -> None:
        for method, target, pattern, params in (
            ("GET", "/", "/", {}),
            ("GET", "/v1/a", "/v1/a", {}),
            ("HEAD", "/v1/a", "/v1/a", {}),
            ("GET", "/v1/z", "/v1/{id}", {"id": "z"}),
            ("DELETE", "/v1/z", "/v1/{other}", {"other": "z"}),
            ("GET", "/v1/%2F$$", "/v1/{id}", {"id": "/$$"}),
            ("GET", "/v1/a/b/c", "/v1/a/b/c", {}),
            ("GET", "/v1/a/b/d", "/v1/{x}/b/{y}", {"x": "a", "y": "d"}),
            ("GET", "/v1/a/b/last", "/v1/{x}/b/{y}", {"x": "a", "y": "last"}),
            ("GET", "/v1/a/c/last", "/v1/{x}/{y}/last", {"x": "a", "y": "c"}),
        ):
            with self.subTest(target=target):
                admission = self.admit(method, target)
                self.assertEqual(admission.route.pattern, pattern)
                self.assertEqual(admission.params, params)

    def test_unknown_paths_are_404(self) -> None:
        for target in (
            "/v1",
            "/v1/",
            "/v1/a/",
            "//v1/a",
            "/v1//b/c",
            "/V1/a",
            "/v1/a/b",
            "/v1%2Fa",
        ):
            with self.subTest(target=target), self.assertRaises(HTTPError) as caught:
                self.admit("GET", target)
            self.assertEqual(
                (caught.exception.status, caught.exception.code), (404, "route_not_found")
            )

    def test_a_wrong_method_names_the_right_ones(self) -> None:
        for method, target, allow in (
            ("PUT", "/v1/a", "DELETE, GET, HEAD, POST"),
            ("get", "/v1/z", "DELETE, GET, HEAD"),
            ("OPTIONS", "/", "GET, HEAD"),
        ):
            with self.assertRaises(HTTPError) as caught:
                self.admit(method, target)
            self.assertEqual(caught.exception.status, 405)
            self.assertEqual(caught.exception.headers, (("Allow", allow),))

    def test_an_id_that_spells_a_literal_is_found_by_its_method(self) -> None:
        admission = self.admit("DELETE", "/v1/a")
        self.assertEqual(admission.route.pattern, "/v1/{other}")
        self.assertEqual(admission.params, {"other": "a"})

    def test_head_is_not_allowed_where_get_is_not(self) -> None:
        router = Router([Route("POST", "/x", fail)])
        with self.assertRaises(HTTPError) as caught:
            router.admit(head("HEAD", "/x"))
        self.assertEqual(caught.exception.headers, (("Allow", "POST"),))

    def test_all_routes_are_made_with_the_first_request_that_none_of_the_first_fits(self) -> None:
        first, later = Recorder(), Recorder()
        asked: list[str] = []

        def whole() -> list[Route]:
            asked.append("whole")
            if len(asked) == 1:
                raise ValueError("not yet")
            return [Route("GET", "/a", later), Route("POST", "/b", later)]

        router = Router([Route("GET", "/a", first)], whole=whole)
        self.assertIs(router.admit(head("HEAD", "/a")).route.handler, first)
        self.assertEqual(asked, [])
        with self.assertRaises(ValueError):
            router.admit(head("POST", "/b"))
        self.assertIs(router.admit(head("GET", "/a")).route.handler, first)
        self.assertIs(router.admit(head("POST", "/b")).route.handler, later)
        self.assertIs(router.admit(head("GET", "/a")).route.handler, later)
        for method, target, status in (("GET", "/c", 404), ("GET", "/b", 405)):
            with self.assertRaises(HTTPError) as raised:
                router.admit(head(method, target))
            self.assertEqual(raised.exception.status, status)
        self.assertEqual(len(asked), 2)

    def test_routes_that_cannot_be_made_are_no_business_of_who_may_not_ask(self) -> None:
        def refuse(head: RequestHead, route: Route | None) -> None:
            raise HTTPError(401, "unauthorized", "no")

        def whole() -> list[Route]:
            raise ValueError("two routes")

        router = Router([], guard=refuse, whole=whole)
        with self.assertRaises(HTTPError) as raised:
            router.admit(head("GET", "/a"))
        self.assertEqual(raised.exception.status, 401)
        with self.assertRaisesRegex(ValueError, "two routes"):
            router.complete()

    def test_admission_carries_the_routes_limits(self) -> None:
        router = Router([Route("POST", "/x", Recorder(), body_limit=5, urgent=True)])
        admission = router.admit(head("POST", "/x"))
        self.assertEqual((admission.route.body_limit, admission.route.urgent), (5, True))

    def test_a_table_that_contradicts_itself_is_refused(self) -> None:
        for second in ("/v1/{a}", "/v1/{b}"):
            with self.assertRaises(ValueError):
                Router([Route("GET", "/v1/{a}", fail), Route("GET", second, fail)])
        with self.assertRaises(ValueError):
            Router([Route("GET", "v1", fail)])


class HeaderFields(unittest.TestCase):
    def test_lookup_ignores_case_and_keeps_order_and_repetition(self) -> None:
        fields = Headers([("Accept", "a"), ("X", "1"), ("accept", "b")])
        self.assertEqual(fields.get("ACCEPT"), "a")
        self.assertEqual(fields.get_all("accept"), ["a", "b"])
        self.assertIsNone(fields.get("y"))
        self.assertEqual(fields.get("y", "z"), "z")
        self.assertIn("x", fields)
        self.assertNotIn("y", fields)
        self.assertEqual(list(fields), [("Accept", "a"), ("X", "1"), ("accept", "b")])

    def test_a_repr_shows_no_values(self) -> None:
        self.assertNotIn("secret", repr(Headers([("Authorization", "Bearer secret")])))
