"""`dataclass`, with its methods made when a class is first used.

The standard decorator compiles up to seven methods for every class when its module is imported. For
the 170 classes that a daemon imports this took a quarter of its start. This one makes only the
class with its `__slots__`. The first construction of an instance, or the first look at
`__dataclass_fields__` (by `fields`, `is_dataclass` and the like), has the standard decorator add
the rest, except for comparing, hashing and showing: those are made here, without compiling
anything. From then on there is no difference.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import reprlib
import threading
from typing import TYPE_CHECKING, Any, TypeVar

T = TypeVar("T")

if TYPE_CHECKING:
    from collections.abc import Callable
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


@functools.cache
def _values(cls: type[Any]) -> Callable[[Any], tuple[Any, ...]]:
    """A function that reads all fields of an instance."""
    return _reader([field.name for field in dataclasses.fields(cls)])


def _reader(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """A function that reads these attributes of an object."""
    if len(names) < 2:  # of one name, attrgetter gives no tuple
        return lambda record: tuple(getattr(record, name) for name in names)
    return operator.attrgetter(*names)


class _Pending:
    """A class that the standard decorator has still to complete. Stands in the place of the class's
    `__dataclass_fields__` until then."""

    def __init__(self, options: dict[str, bool]) -> None:
        self._options = options
        self._plain: Any = None  # the class as it was written
        self._slotted: Any = None  # its copy, which is used
        self._completed = False
        self._lock = threading.Lock()  # two threads may use a class for the first time

    def prepare(self, cls: type) -> type:
        """Return a copy of the class that has `__slots__`, and completes itself when used."""
        namespace = dict(cls.__dict__)
        inherited = {name for base in cls.__mro__[1:] for name in getattr(base, "__slots__", ())}
        kinds: dict[str, str] = namespace.get("__annotations__", {})
        names = [name for name, kind in kinds.items() if not kind.startswith("ClassVar")]
        for name in (*names, "__dict__", "__weakref__"):
            namespace.pop(name, None)

        def construct(instance: Any, *args: object, **kwargs: object) -> None:
            self._complete()
            self._slotted.__init__(instance, *args, **kwargs)

        namespace["__slots__"] = tuple(name for name in names if name not in inherited)
        namespace["__dataclass_fields__"] = self
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

    def _complete(self) -> None:
        """Have the standard decorator complete the class as it was written, and take over what it
        has made. Another thread can construct instances only after that."""
        with self._lock:
            if self._completed:
                return
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
            self._completed = True

    def _methods(
        self, fields: tuple[dataclasses.Field[Any], ...], written: set[str]
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
