"""A small JSON Schema validator: it knows the keywords that our own document uses and fails at any
other, so that no constraint is overlooked."""

from __future__ import annotations

from typing import Any

# Keywords for readers, which say nothing about validity.
SILENT = {"description", "format", "discriminator"}
TYPES: dict[str, tuple[type, ...]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "array": (list,),
    "object": (dict,),
}


class Validator:
    """`complaints` lists what is wrong with a value, place by place; it is empty if it is valid."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document

    def resolve(self, reference: str) -> Any:
        found: Any = self.document
        assert reference.startswith("#/"), reference
        for step in reference[2:].split("/"):
            found = found[step.replace("~1", "/").replace("~0", "~")]
        return found

    def complaints(self, schema: Any, value: Any, where: str = "$") -> list[str]:
        found: list[str] = []
        for keyword, wanted in schema.items():
            if keyword in SILENT:
                continue
            check = getattr(self, "_" + keyword.lstrip("$"), None)
            if check is None:
                raise AssertionError(f"unknown keyword {keyword!r} at {where}")
            found += check(wanted, value, where, schema)
        return found

    def _ref(self, wanted: str, value: Any, where: str, _: Any) -> list[str]:
        return self.complaints(self.resolve(wanted), value, where)

    def _type(self, wanted: str | list[str], value: Any, where: str, _: Any) -> list[str]:
        kinds = [wanted] if isinstance(wanted, str) else wanted
        right = any(isinstance(value, TYPES[kind]) for kind in kinds)
        if isinstance(value, bool):  # which Python takes for a number
            right = "boolean" in kinds
        return [] if right else [f"{where}: {value!r} is not of type {wanted}"]

    def _const(self, wanted: Any, value: Any, where: str, _: Any) -> list[str]:
        return [] if value == wanted else [f"{where}: {value!r} is not {wanted!r}"]

    def _enum(self, wanted: list[Any], value: Any, where: str, _: Any) -> list[str]:
        return [] if value in wanted else [f"{where}: {value!r} is not one of {wanted}"]

    def _required(self, wanted: list[str], value: Any, where: str, _: Any) -> list[str]:
        if not isinstance(value, dict):
            return []
        return [f"{where}: {key} is missing" for key in wanted if key not in value]

    def _properties(self, wanted: dict[str, Any], value: Any, where: str, _: Any) -> list[str]:
        if not isinstance(value, dict):
            return []
        lists = [
            self.complaints(schema, value[key], f"{where}.{key}")
            for key, schema in wanted.items()
            if key in value
        ]
        return [line for lines in lists for line in lines]

    def _additionalProperties(self, wanted: Any, value: Any, where: str, schema: Any) -> list[str]:
        if not isinstance(value, dict):
            return []
        extra = {key: value[key] for key in value if key not in schema.get("properties", {})}
        if wanted is False:
            return [f"{where}: {key} is not known" for key in extra]
        lists = [self.complaints(wanted, item, f"{where}.{key}") for key, item in extra.items()]
        return [line for lines in lists for line in lines]

    def _items(self, wanted: Any, value: Any, where: str, _: Any) -> list[str]:
        if not isinstance(value, list):
            return []
        lists = [self.complaints(wanted, item, f"{where}[{n}]") for n, item in enumerate(value)]
        return [line for lines in lists for line in lines]

    def _allOf(self, wanted: list[Any], value: Any, where: str, _: Any) -> list[str]:
        return [line for schema in wanted for line in self.complaints(schema, value, where)]

    def _anyOf(self, wanted: list[Any], value: Any, where: str, _: Any) -> list[str]:
        lists = [self.complaints(schema, value, where) for schema in wanted]
        return [] if [] in lists else min(lists, key=len)

    def _oneOf(self, wanted: list[Any], value: Any, where: str, _: Any) -> list[str]:
        lists = [self.complaints(schema, value, where) for schema in wanted]
        if lists.count([]) > 1:
            return [f"{where}: more than one alternative fits"]
        return [] if [] in lists else min(lists, key=len)
