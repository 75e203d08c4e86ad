"""`dataclass`, with its methods made when a class is first used.

The standard decorator compiles up to seven methods for every class when its module is imported. For
the 170 classes that a daemon imports this took a quarter of its start. This one makes only the
class with its `__slots__`. The first construction of an instance, or the first look at
`__dataclass_fields__` (by `dataclasses.fields`, `is_dataclass` and the like), adds the rest, of
which only `__init__` is compiled. From then on it behaves like a dataclass, but its signature has
no types. Classes that can be ordered, and those with fields that are no parameters of `__init__`,
need the standard decorator.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import reprlib
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

T = TypeVar("T")
_MARK = "__dataclass_fields__"
_FIELD: Any = vars(dataclasses)["_FIELD"]  # what the standard module knows a finished field by

if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import dataclass as dataclass  # re-exported

    Fields = dict[str, dataclasses.Field[Any]]
else:

    def dataclass(*, slots, frozen=False, eq=True, repr=True, kw_only=False):  # noqa: A002
        """Like `dataclasses.dataclass(slots=True, ...)`, for a class that has no `__init__` of its
        own and whose module has `from __future__ import annotations`."""
        if not slots:
            raise TypeError("only a class with slots can be completed later: pass slots=True")
        options = SimpleNamespace(frozen=frozen, eq=eq, repr=repr, kw_only=kw_only)
        return lambda cls: _Pending(options).prepare(cls)


def copied(record: T) -> T:
    """A shallow copy of an instance of a dataclass that has all its fields in its `__init__`. Takes
    a quarter of the time of `copy.copy`, which a turn would call twenty times."""
    cls: Any = type(record)
    made: T = cls(*_values(cls)(record))
    return made


def is_record(cls: Any) -> bool:
    """As `dataclasses.is_dataclass`, for a class; has none completed."""
    return isinstance(cls, type) and any(_MARK in vars(base) for base in cls.__mro__)


@functools.cache
def _values(cls: type[Any], compared: bool = False) -> Callable[[Any], tuple[Any, ...]]:
    """A function that reads all fields of an instance, or those that are compared."""
    names = [field.name for field in dataclasses.fields(cls) if field.compare or not compared]
    if len(names) < 2:  # of one name, attrgetter gives no tuple
        return lambda record: tuple(getattr(record, name) for name in names)
    return operator.attrgetter(*names)


class _Pending:
    """What a class has as its `__dataclass_fields__` until it is completed."""

    def __init__(self, options: SimpleNamespace) -> None:
        self._options = options
        self._written: dict[str, Any] = {}  # what the author of the class has written
        self._cls: Any = None
        self._lock = threading.RLock()  # two threads may use a class for the first time

    def prepare(self, cls: type) -> type:
        """Return a copy of the class that has `__slots__`, and completes itself when used."""
        self._written = dict(cls.__dict__)
        inherited = {name for base in cls.__mro__[1:] for name in getattr(base, "__slots__", ())}
        names = self._names()
        left_out = {*names, "__dict__", "__weakref__"}
        frozen = self._options.frozen

        def construct(instance: Any, *args: object, **kwargs: object) -> None:
            self._complete()
            self._cls.__init__(instance, *args, **kwargs)

        namespace: dict[str, Any] = {"__replace__": dataclasses.replace}
        if self._options.repr:
            namespace["__repr__"] = _show
        if self._options.eq:
            namespace |= {"__eq__": _equal, "__hash__": _hash if frozen else None}
        namespace |= {name: value for name, value in cls.__dict__.items() if name not in left_out}
        namespace["__slots__"] = tuple(name for name in names if name not in inherited)
        namespace |= {_MARK: self, "__dataclass_params__": self._options, "__init__": construct}
        if frozen:
            namespace |= _FROZEN
        self._cls = type(cls)(cls.__name__, cls.__bases__, namespace)
        self._cls.__qualname__ = cls.__qualname__
        return self._cls  # type: ignore[no-any-return]

    def _names(self) -> list[str]:
        """The names of the fields that the class adds to those of its bases."""
        kinds: dict[str, str] = self._written.get("__annotations__", {})
        return [name for name, kind in kinds.items() if not kind.startswith("ClassVar")]

    def __get__(self, instance: object, owner: type) -> Fields:
        """Complete the class, and return its fields by name."""
        return self._complete()

    def _complete(self) -> Fields:
        """Make fields and `__init__`. Another thread can construct instances only after that."""
        with self._lock:
            found: Fields | _Pending = vars(self._cls)[_MARK]
            if found is not self:
                return found  # type: ignore[return-value]
            fields: Fields = {}
            for base in self._cls.__mro__[:0:-1]:
                known: Fields = getattr(base, _MARK, {})
                fields |= {name: each for name, each in known.items() if each._field_type is _FIELD}  # type: ignore[attr-defined]
            fields |= {name: self._field(name) for name in self._names()}
            if "__match_args__" not in self._written:
                positional = [name for name in fields if not fields[name].kw_only]
                self._cls.__match_args__ = tuple(positional)  # type: ignore[misc]
            self._cls.__init__ = _init_method(self._cls, fields, self._options)
            setattr(self._cls, _MARK, fields)
            return fields

    def _field(self, name: str) -> dataclasses.Field[Any]:
        """A field as the standard decorator makes it."""
        given = self._written.get(name, dataclasses.MISSING)
        is_field = isinstance(given, dataclasses.Field)
        field: Any = given if is_field else dataclasses.field(default=given)
        if field.default.__class__.__hash__ is None:
            raise ValueError(f"{name} has a default that can be changed: use default_factory")
        field.name, field.type = name, self._written["__annotations__"][name]
        if field.type.startswith(("KW_ONLY", "InitVar", "dataclasses.")) or not field.init:
            raise TypeError(f"{name} is no plain field: use the standard decorator")
        if field.kw_only is dataclasses.MISSING:
            field.kw_only = self._options.kw_only
        field._field_type = _FIELD
        return field  # type: ignore[no-any-return]


def _init_method(cls: type, fields: Fields, options: SimpleNamespace) -> Callable[..., None]:
    """An `__init__` as the standard decorator makes it, without annotations."""
    missing, parameters, lines = dataclasses.MISSING, ["self"], []
    scope: dict[str, Any] = {"_set": object.__setattr__, "_missing": missing}
    for name, field in sorted(fields.items(), key=lambda each: bool(each[1].kw_only)):
        value = name
        if field.kw_only and "*" not in parameters:
            parameters.append("*")
        if field.default is not missing:
            scope[f"_default_{name}"] = field.default
            parameters.append(f"{name}=_default_{name}")
        elif field.default_factory is not missing:
            scope[f"_make_{name}"] = field.default_factory
            parameters.append(f"{name}=_missing")
            value = f"_make_{name}() if {name} is _missing else {name}"
        else:
            parameters.append(name)
        frozen = options.frozen
        lines.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    exec(f"def __init__({', '.join(parameters)}):\n " + "\n ".join(lines or ["pass"]), scope)
    made: Callable[..., None] = scope["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    made.__module__ = cls.__module__
    return made


def _equal(record: Any, other: object) -> Any:
    if other.__class__ is not record.__class__:
        return NotImplemented
    kind: Any = type(record)
    values = _values(kind, True)
    return bool(values(record) == values(other))


def _hash(record: Any) -> int:
    kind: Any = type(record)
    return hash(_values(kind, True)(record))


@reprlib.recursive_repr()
def _show(record: Any) -> str:
    names = [field.name for field in dataclasses.fields(record) if field.repr]
    shown = ", ".join([f"{name}={getattr(record, name)!r}" for name in names])
    return f"{type(record).__qualname__}({shown})"


def _refuse(instance: object, name: str, value: object = None) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to or delete field {name!r}")


def _state(instance: Any) -> list[object]:
    """The values of the fields, for a copy of a frozen instance."""
    return [getattr(instance, field.name) for field in dataclasses.fields(instance)]


def _restore(instance: Any, state: list[object]) -> None:
    for field, value in zip(dataclasses.fields(instance), state, strict=True):
        object.__setattr__(instance, field.name, value)


# Those of the standard decorator belong to the class they were made for.
_FROZEN: dict[str, object] = {
    "__setattr__": _refuse,
    "__delattr__": _refuse,
    "__getstate__": _state,
    "__setstate__": _restore,
}
