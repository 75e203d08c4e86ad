"""The description of the API as an OpenAPI 3.1 document, read off the route table.

Nothing about a single route is written here: paths, bodies, answers and parameters come from the
table, shapes from the wire classes, codes from the error tree. So the document cannot fall behind.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, get_args

from .. import errors
from ..protocol.events import Envelope
from ..version import __version__
from .schema import Schemas

if TYPE_CHECKING:
    from ..api.entry import Entry, Param
    from ..protocol.codec import JSON

SCHEMAS = "#/components/schemas/"
ABOUT = (
    "The client/server protocol of Crush, and what crushlite adds to it. Bodies are JSON whatever "
    "their content type says; keys that are not known are ignored, and null keeps a default."
)
BEARER = "Asked for on TCP: the token is in the file named at start. A unix socket needs none."

# Raised inside the daemon, and never the answer to a request.
UNANSWERED = (
    *(errors.UsageError, errors.WrongPeer, errors.TurnOver, errors.LimitReached),
    errors.IllegalCall,
)
# The codes of refusals that come from http/ and api/, before a route is reached or around it.
OUTSIDE_ROUTES: dict[int, tuple[str, ...]] = {
    400: ("bad_request", "host_required"),
    401: ("token_required",),
    403: ("foreign_origin",),
    404: ("route_not_found",),
    405: ("method_not_allowed",),
    408: ("request_timeout",),
    413: ("body_too_large",),
    414: ("target_too_long",),
    417: ("expectation_failed",),
    421: ("wrong_host", "misdirected_request"),
    429: ("too_many_attempts",),
    431: ("head_too_large", "too_many_headers"),
    500: ("internal",),
    501: ("not_implemented",),
    503: ("overloaded", "cancelled"),
    505: ("version_not_supported",),
}
ALWAYS = (400, 401, 403, 421, 429, 500, 503)  # whatever the route
CHANGES = (409, 502, 507)  # where a request may conflict, or its effect not be stored


def document(table: tuple[Entry, ...]) -> JSON:
    """The OpenAPI document of these routes."""
    schemas = Schemas(SCHEMAS)
    paths: dict[str, dict[str, JSON]] = {}
    for entry in table:
        paths.setdefault(entry.pattern, {})[entry.method.lower()] = _operation(entry, schemas)
    codes = _codes(table)
    error = {"message": {"type": "string"}, "code": {"type": "string"}}
    schemas.named["Error"] = {
        "type": "object",
        "description": "`message` is for people, `code` for programs.",
        "properties": error,
        "required": list(error),
        "additionalProperties": False,
    }
    everything = sorted({code for listed in codes.values() for code in listed})
    return {
        "openapi": "3.1.0",
        "info": {"title": "crushlite", "version": __version__, "description": ABOUT},
        "servers": [{"url": "/"}],
        "security": [{"bearer": []}, {}],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(schemas.named.items())),
            "responses": {
                **{f"Refused{status}": _refusal(listed) for status, listed in codes.items()},
                "Refused": _refusal(everything),
            },
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": BEARER}
            },
        },
    }


# Operations -------------------------------------------------------------------------------------


def _operation(entry: Entry, schemas: Schemas) -> JSON:
    function = entry.function
    operation: dict[str, JSON] = {
        "operationId": _operation_id(entry),
        "tags": [_tag(function.__module__)],
        "summary": function.__name__.replace("_", " "),
    }
    if entry.public:
        operation["security"] = []
    if function.__doc__:
        operation["description"] = " ".join(function.__doc__.split())
    parameters = [_in_path(name) for name in re.findall(r"\{(\w+)\}", entry.pattern)]
    parameters += [_parameter(param, schemas) for param in entry.params]
    if parameters:
        operation["parameters"] = parameters
    if entry.takes is not None:
        wanted, may_be_empty = _optional(entry.takes)
        schema = schemas.of(wanted, body=True)
        operation["requestBody"] = {
            "required": not may_be_empty,
            "content": {"application/json": {"schema": schema}},
        }
    operation["responses"] = {
        str(entry.status): _success(entry, schemas),
        **{str(status): _reference(f"Refused{status}") for status in _refusals(entry)},
        "default": _reference("Refused"),
    }
    return operation


def _tag(module: str) -> str:
    """The module of a route of the core, such as `sessions`, or the name of its wing."""
    room, name = module.split(".")[-2:]
    return name if room == "api" else room


def _operation_id(entry: Entry) -> str:
    """From the route, so that it is unique and lasts as long as the route does."""
    words = re.findall(r"\w+", entry.pattern.removeprefix("/v1").replace("-", "_"))
    return "_".join([entry.method.lower(), *(words or ["root"])])


def _in_path(name: str) -> JSON:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _parameter(param: Param, schemas: Schemas) -> JSON:
    schema = schemas.of(param.kind)
    if param.choices:
        schema["enum"] = list(param.choices)
    return {
        "name": param.name,
        "in": param.place,
        "description": param.about,
        "required": param.required,
        "schema": schema,
    }


def _success(entry: Entry, schemas: Schemas) -> JSON:
    if entry.gives is None:
        return {"description": "Done. The answer is empty."}
    given, may_be_empty = _optional(entry.gives)
    about = "Empty, unless more is asked for." if may_be_empty else "Done."
    if given is Envelope:
        about, schema = "Events, each the data of one server-sent event.", schemas.events()
    else:
        schema = schemas.of(given)
    return {"description": about, "content": {entry.media: {"schema": schema}}}


def _optional(hint: Any) -> tuple[Any, bool]:
    options = get_args(hint)
    return (options[0], True) if type(None) in options else (hint, False)


# Refusals ---------------------------------------------------------------------------------------


def _refusals(entry: Entry) -> list[int]:
    statuses = [*ALWAYS]
    if "{" in entry.pattern:
        statuses.append(404)
    if entry.takes is not None:
        statuses.append(413)
    # A client that must give its id may have been retired: that is a conflict.
    named = any(param.required and param.name == "client_id" for param in entry.params)
    if entry.method != "GET" or named:
        statuses += CHANGES
    return sorted(statuses)


def _codes(table: tuple[Entry, ...]) -> dict[int, list[str]]:
    """Every code that can be the answer to a request, by status."""
    codes = {status: set(listed) for status, listed in OUTSIDE_ROUTES.items()}
    answered = [error for error in errors.every_error() if error not in UNANSWERED]
    for status, code in (
        *((error.status, error.code) for error in answered),
        *(refusal for entry in table for refusal in entry.refusals),
    ):
        codes.setdefault(status, set()).add(code)
    return {status: sorted(codes[status]) for status in sorted(codes)}


def _refusal(codes: list[str]) -> JSON:
    narrowed = {"properties": {"code": {"enum": codes}}}
    schema = {"allOf": [{"$ref": SCHEMAS + "Error"}, narrowed]}
    return {
        "description": "Refused: " + ", ".join(codes),
        "content": {"application/json": {"schema": schema}},
    }


def _reference(name: str) -> JSON:
    return {"$ref": f"#/components/responses/{name}"}
