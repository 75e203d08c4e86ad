"""JSON Schema (2020-12) of the dataclasses of this package.

A class has two schemas, one for each direction. An *answer* holds the keys of its class and no
others: those that are left out when empty are optional, the rest are always there. A *body* follows
the decoder: only a field without a default is required, `null` keeps a default, and unknown keys
are ignored. Its schema is named after the class with `Body` behind it.

A dict of unknown content may say which objects it always holds, as dotted paths:
`Annotated[dict[str, Any], "options.tui", "providers"]`.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

from ..protocol.codec import has_default, key_of, without_none
from ..protocol.events import ACTIONS, KINDS, Resync

if TYPE_CHECKING:
    from ..protocol.codec import JSON

_SCALARS: dict[Any, JSON] = {
    str: {"type": "string"},
    int: {"type": "integer", "format": "int64"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    Any: {},
}
_NOT_NULL = {"type": ["boolean", "number", "string", "array", "object"]}


class Schemas:
    """Makes schemas. Those of classes are collected in `named`; others refer to them."""

    def __init__(self, base: str) -> None:
        self.named: dict[str, JSON] = {}
        self._base = base  # where a reference finds them: "#/components/schemas/"
        self._classes: dict[str, type] = {}

    def of(self, hint: Any, *, body: bool = False) -> JSON:
        """The schema of a class, or of a bare type such as `int` or `list[str]`."""
        origin, arguments = get_origin(hint), get_args(hint)
        if origin is Annotated:
            return _always_holding([path.split(".") for path in hint.__metadata__])
        if (inner := without_none(hint)) is not hint:
            return _or_null(self.of(inner, body=body))
        if origin is list:
            return {"type": "array", "items": self.of(arguments[0], body=body)}
        if origin is dict:
            return {"type": "object", "additionalProperties": self.of(arguments[1], body=body)}
        if dataclasses.is_dataclass(hint):
            return self._class(hint, body=body)  # type: ignore[arg-type]
        return dict(_SCALARS[hint])

    def events(self) -> JSON:
        """The schema of the events of a stream: one for each kind, selected by `type`."""
        union = {kind: self._event(kind, cls) for kind, cls in KINDS.items()}
        union["resync"] = self._name("event.resync", _tagged("resync", "payload", self.of(Resync)))
        return self._name("Event", _one_of(union))

    def _event(self, kind: str, cls: type) -> JSON:
        inner = _object(
            {"type": {"type": "string", "enum": list(ACTIONS)}, "payload": self.of(cls)}
        )
        return self._name(f"event.{kind}", _tagged(kind, "payload", inner))

    def _class(self, cls: type, *, body: bool) -> JSON:
        name = cls.__name__ + ("Body" if body else "")
        if self._classes.setdefault(name, cls) is not cls:
            raise TypeError(f"two wire types are called {name}")
        if name not in self.named:
            self.named[name] = {}  # so that a class that holds itself only refers to this
            self.named[name] = self._fields(cls, body=body)
        return self._reference(name)

    def _fields(self, cls: Any, *, body: bool) -> JSON:
        hints = get_type_hints(cls, include_extras=True)
        properties: dict[str, JSON] = {}
        required: list[str] = []
        for field in dataclasses.fields(cls):
            key = key_of(field)
            hint, omitted = hints[field.name], field.metadata.get("omit", "")
            if "tags" in field.metadata:
                schema = self._parts(field.metadata["tags"], body=body)
            else:
                # An answer leaves the field out instead of sending null.
                schema = self.of(without_none(hint) if omitted and not body else hint, body=body)
            if not (has_default(field) if body else omitted):
                required.append(key)
                schema = schema or (_NOT_NULL if body else {})
            elif body:
                schema = _or_null(schema)
            properties[key] = schema
        answer = _object(properties, required)
        if body:
            del answer["additionalProperties"]
        if about := _documentation(cls):
            answer["description"] = about
        return answer

    def _parts(self, classes: dict[str, type], *, body: bool) -> JSON:
        union = {
            tag: self._name(f"part.{tag}", _tagged(tag, "data", self.of(cls, body=body)))
            for tag, cls in classes.items()
        }
        return {"type": "array", "items": self._name("Part", _one_of(union))}

    def _name(self, name: str, schema: JSON) -> JSON:
        self.named[name] = schema
        return self._reference(name)

    def _reference(self, name: str) -> JSON:
        return {"$ref": self._base + name}


def _object(properties: dict[str, JSON], required: list[str] | None = None) -> dict[str, JSON]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
    }


def _tagged(tag: str, key: str, schema: JSON) -> JSON:
    return _object({"type": {"const": tag}, key: schema})


def _one_of(union: dict[str, JSON]) -> JSON:
    mapping = {tag: reference["$ref"] for tag, reference in union.items()}
    discriminator = {"propertyName": "type", "mapping": mapping}
    return {"oneOf": list(union.values()), "discriminator": discriminator}


def _or_null(schema: JSON) -> JSON:
    if not schema:  # allows any value
        return schema
    kind = schema.get("type")
    if isinstance(kind, str) and kind != "null":
        return {**schema, "type": [kind, "null"]}
    return schema if isinstance(kind, list) else {"anyOf": [schema, {"type": "null"}]}


def _always_holding(paths: list[list[str]]) -> JSON:
    below: dict[str, list[list[str]]] = {}
    for head, *rest in paths:
        below.setdefault(head, []).extend([rest] if rest else [])
    if not below:
        return {"type": "object"}
    properties = {name: _always_holding(rest) for name, rest in below.items()}
    return {"type": "object", "properties": properties, "required": list(below)}


def _documentation(cls: type) -> str:
    """The docstring as one paragraph; empty for the signature that dataclasses without one get."""
    text = inspect.cleandoc(cls.__doc__ or "")
    return "" if text.startswith(f"{cls.__name__}(") else " ".join(text.split())
