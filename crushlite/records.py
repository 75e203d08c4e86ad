"""`dataclass`, with its methods made when a class is first used.

The standard decorator compiles up to seven methods for every class when its module is imported. For
the 170 classes that a daemon imports this took a quarter of its start. This one makes only the
class with its `__slots__`. The first construction of an instance adds what instances need, and
compiles only `__init__`. The first look at `__dataclass_fields__` (by `dataclasses.fields`,
`is_dataclass` and the like) has the standard decorator add the rest. From then on there is no
difference.

A class with a record as a base, or with options for single parameters of `__init__`, is left to the
standard decorator when it is first used, and so is one that can be ordered.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import reprlib
import threading
from typing import TYPE_CHECKING, Any, TypeVar

T = TypeVar("T")
_MARK = "__dataclass_fields__"

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from dataclasses import dataclass as dataclass  # re-exported
else:

    def dataclass(*, slots, **options):
        """Like `dataclasses.dataclass(slots=True, ...)`, for a class that has no `__init__` of its
        own and whose module has `from __future__ import annotations`."""
        if not slots:
            raise TypeError("only a class with slots can be completed later: pass slots=True")
        return lambda cls: _Pending(options).prepare(cls)


def copied(record: T) -> T:
    """A shallow copy of an instance of a dataclass that has all its fields in its `__init__`. Takes
    a quarter of the time of `copy.copy`, which a turn would call twenty times."""
    cls: Any = type(record)
    made: T = cls(*_values(cls)(record))
    return made


def fields(cls: Any) -> Sequence[dataclasses.Field[Any]]:
    """As `dataclasses.fields`, without having the standard decorator complete the class, if
    possible."""
    pending = vars(cls).get(_MARK)
    found = pending.fields() if isinstance(pending, _Pending) else ()
    return found or dataclasses.fields(cls)


def is_record(cls: Any) -> bool:
    """As `dataclasses.is_dataclass`, for a class; has none completed."""
    return isinstance(cls, type) and any(_MARK in vars(base) for base in cls.__mro__)


@functools.cache
def _values(cls: type[Any]) -> Callable[[Any], tuple[Any, ...]]:
    """A function that reads all fields of an instance."""
    return _reader([field.name for field in fields(cls)])


def _reader(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """A function that reads these attributes of an object."""
    if len(names) < 2:  # of one name, attrgetter gives no tuple
        return lambda record: tuple(getattr(record, name) for name in names)
    return operator.attrgetter(*names)


class _Pending:
    """A class that is not completed yet. Stands in the place of the class's `__dataclass_fields__`
    until then."""

    def __init__(self, options: dict[str, bool]) -> None:
        self._options = options
        self._plain: Any = None  # the class as it was written
        self._slotted: Any = None  # its copy, which is used
        self._fields: tuple[dataclasses.Field[Any], ...] | None = None  # see `fields`
        self._usable = False  # instances can be made
        self._completed = False
        self._lock = threading.RLock()  # two threads may use a class for the first time

    def prepare(self, cls: type) -> type:
        """Return a copy of the class that has `__slots__`, and completes itself when used."""
        namespace = dict(cls.__dict__)
        inherited = {name for base in cls.__mro__[1:] for name in getattr(base, "__slots__", ())}
        names = _own_names(cls)
        for name in (*names, "__dict__", "__weakref__"):
            namespace.pop(name, None)

        def construct(instance: Any, *args: object, **kwargs: object) -> None:
            self._make_usable()
            self._slotted.__init__(instance, *args, **kwargs)

        namespace["__slots__"] = tuple(name for name in names if name not in inherited)
        namespace[_MARK] = self
        namespace["__init__"] = construct
        if self._options.get("frozen"):
            namespace |= _FROZEN
        self._plain = cls
        self._slotted = type(cls)(cls.__name__, cls.__bases__, namespace)
        self._slotted.__qualname__ = cls.__qualname__
        return self._slotted  # type: ignore[no-any-return]

    def __get__(self, instance: object, owner: type) -> object:
        """Complete the class, and return its `__dataclass_fields__`."""
        self._complete()
        return self._slotted.__dataclass_fields__

    def fields(self) -> tuple[dataclasses.Field[Any], ...]:
        """The fields of a class whose `__init__` can be made here; none for any other."""
        with self._lock:
            if self._fields is None:
                self._fields = () if self._is_special() else tuple(_own_fields(self._plain))
            return self._fields

    def _is_special(self) -> bool:
        """Whether only the standard decorator can complete the class."""
        cls = self._plain
        if self._options.get("order") or any(_MARK in vars(base) for base in cls.__mro__[1:]):
            return True
        # One with `KW_ONLY` or `InitVar`, and one that the decorator will refuse.
        kinds: dict[str, str] = vars(cls).get("__annotations__", {})
        if any(kind.startswith(("KW_ONLY", "InitVar", "dataclasses.")) for kind in kinds.values()):
            return True
        given = [vars(cls).get(name) for name in _own_names(cls)]
        return any(
            not value.init or value.kw_only is not dataclasses.MISSING
            if isinstance(value, dataclasses.Field)
            else value.__class__.__hash__ is None
            for value in given
        )

    def _make_usable(self) -> None:
        """Make what instances need. Another thread can construct instances only after that."""
        with self._lock:
            if self._usable:
                return
            if not (found := self.fields()):
                return self._complete()
            written = vars(self._plain)
            made = self._methods(found, set(written))
            if "__match_args__" not in written:
                kw_only = self._options.get("kw_only")
                made["__match_args__"] = () if kw_only else tuple(field.name for field in found)
            for name, value in made.items():
                setattr(self._slotted, name, value)
            self._slotted.__init__ = _init_method(self._slotted, found, self._options)
            self._usable = True

    def _complete(self) -> None:
        """Have the standard decorator complete the class as it was written, and take over what it
        has made, except for what is made here."""
        with self._lock:
            if self._completed:
                return
            self.fields()  # first: the decorator takes the defaults out of the class
            cls = self._plain
            written = set(cls.__dict__)
            cls.__doc__ = cls.__doc__ or cls.__name__  # or a signature would be made for it
            plain = not self._options.get("order")  # ordering is left to the standard, all of it
            options = self._options | ({"eq": False, "repr": False} if plain else {})
            dataclasses.dataclass(cls, **options)
            made = {name: value for name, value in cls.__dict__.items() if name not in written}
            if plain:
                made |= self._methods(dataclasses.fields(cls), written)
            else:
                made["__hash__"] = cls.__hash__
            for name, value in made.items():
                if name not in _FROZEN and name != "__init__":
                    setattr(self._slotted, name, value)
            self._slotted.__init__ = cls.__init__
            self._usable = self._completed = True

    def _methods(
        self, fields: Sequence[dataclasses.Field[Any]], written: set[str]
    ) -> dict[str, Any]:
        """What the standard decorator would add to compare, to hash and to show instances of a
        class with these fields; not what its author has written."""
        made: dict[str, Any] = {}
        if self._options.get("repr", True):
            made["__repr__"] = _repr_method([field.name for field in fields if field.repr])
        if self._options.get("eq", True):
            values = _reader([field.name for field in fields if field.compare])
            made["__eq__"] = _eq_method(values)
            made["__hash__"] = (
                (lambda record: hash(values(record))) if self._options.get("frozen") else None
            )
        return {name: method for name, method in made.items() if name not in written}


def _own_names(cls: type) -> list[str]:
    """The names of the fields that a class adds to those of its bases."""
    kinds: dict[str, str] = vars(cls).get("__annotations__", {})
    return [name for name, kind in kinds.items() if not kind.startswith("ClassVar")]


def _own_fields(cls: type) -> Iterator[dataclasses.Field[Any]]:
    for name in _own_names(cls):
        given = vars(cls).get(name, dataclasses.MISSING)
        is_field = isinstance(given, dataclasses.Field)
        field = given if is_field else dataclasses.field(default=given)
        field.name, field.type = name, vars(cls)["__annotations__"][name]
        yield field


def _init_method(
    cls: type, fields: Sequence[dataclasses.Field[Any]], options: dict[str, bool]
) -> Callable[..., None]:
    """An `__init__` as the standard decorator makes it, without annotations."""
    missing, parameters, lines = dataclasses.MISSING, ["self"], []
    scope: dict[str, Any] = {"_set": object.__setattr__, "_missing": missing}
    if options.get("kw_only"):
        parameters.append("*")
    for field in fields:
        name, value = field.name, field.name
        if field.default is not missing:
            scope[f"_default_{name}"] = field.default
            parameters.append(f"{name}=_default_{name}")
        elif field.default_factory is not missing:
            scope[f"_make_{name}"] = field.default_factory
            parameters.append(f"{name}=_missing")
            value = f"_make_{name}() if {name} is _missing else {name}"
        else:
            parameters.append(name)
        frozen = options.get("frozen")
        lines.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    exec(f"def __init__({', '.join(parameters)}):\n " + "\n ".join(lines), scope)
    made: Callable[..., None] = scope["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    made.__module__ = cls.__module__
    return made


def _eq_method(values: Callable[[Any], tuple[Any, ...]]) -> Callable[[object, object], Any]:
    def equal(record: object, other: object) -> Any:
        if other.__class__ is not record.__class__:
            return NotImplemented
        return values(record) == values(other)

    return equal


def _repr_method(names: list[str]) -> Callable[[object], str]:
    @reprlib.recursive_repr()
    def show(record: object) -> str:
        shown = ", ".join([f"{name}={getattr(record, name)!r}" for name in names])
        return f"{type(record).__qualname__}({shown})"

    return show


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
