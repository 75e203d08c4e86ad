"""What a row of the route table declares is what its function reads of a request."""

from __future__ import annotations

import ast
import inspect
import textwrap
import typing
import unittest
from typing import Any

from tests.api.test_input import InputTestCase
from tests.support.basics import BoundedTestCase
from tests.support.routes import TABLE

OF_EVERY_REQUEST = {"Host"}  # asked for by api/auth.py, whatever the route


class Reads(typing.NamedTuple):
    bodies: set[str]  # the class, with "?" behind it if the body may be empty
    params: set[str]  # the name, with "!" behind it where the shared readers insist on it


def reads(function: Any) -> Reads:
    """What a route function reads of a request, private helpers of its module included."""
    found = Reads(set(), set())
    module = inspect.getmodule(function)
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        arguments = [ast.unparse(argument) for argument in node.args]
        if called in ("body", "optional_body"):
            found.bodies.add(arguments[0] + ("?" if called == "optional_body" else ""))
        elif called in ("request.query_one", "request.headers.get"):
            found.params.add(ast.literal_eval(arguments[0]))
        elif called == "client_of":
            found.params.add("client_id!")
        elif called == "optional_client":
            found.params.add("client_id")
        elif called == "seconds":
            found.params.add("wait")
        elif called == "required_provider":
            found.params.add("provider_id!")
        elif called.startswith("_") and inspect.isfunction(helper := getattr(module, called, None)):
            below = reads(helper)
            found.bodies.update(below.bodies)
            found.params.update(below.params)
    return found


class DeclarationTests(unittest.TestCase):
    def test_what_a_row_takes_is_what_its_function_decodes(self) -> None:
        for entry in TABLE:
            with self.subTest(f"{entry.method} {entry.pattern}"):
                options = typing.get_args(entry.takes)
                declared = {options[0].__name__ + "?"} if options else set()
                if entry.takes is not None and not options:
                    declared = {entry.takes.__name__}
                self.assertEqual(reads(entry.function).bodies, declared)

    def test_the_parameters_of_a_row_are_those_its_function_reads(self) -> None:
        for entry in TABLE:
            with self.subTest(f"{entry.method} {entry.pattern}"):
                found = reads(entry.function).params - OF_EVERY_REQUEST
                declared = {param.name for param in entry.params}
                self.assertEqual({name.rstrip("!") for name in found}, declared)
                required = {param.name for param in entry.params if param.required}
                self.assertLessEqual({n[:-1] for n in found if n.endswith("!")}, required)


class RequiredTests(BoundedTestCase, InputTestCase):
    async def test_a_required_parameter_is_asked_for(self) -> None:
        for entry in TABLE:
            options = typing.get_args(entry.takes) or (entry.takes,)
            body = self.good(options[0]) if options[0] is not None else None
            target = self.url("", entry.pattern)
            for param in entry.params:
                if param.required:
                    answer = await self.call(entry.method, target, body)
                    self.assertEqual(answer.status, 400, (entry.pattern, param.name))
