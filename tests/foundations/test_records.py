"""`records.dataclass` makes the same classes as the standard decorator, only later."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import itertools
import pickle
import sys
import threading
import unittest
from dataclasses import InitVar, field
from typing import TYPE_CHECKING, Any, ClassVar

from crushlite import records
from crushlite.protocol.messages import (
    FinishPart,
    Message,
    Part,
    ReasoningPart,
    ShellCommandPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from crushlite.records import copied, dataclass

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(slots=True)
class Plain:
    KIND: ClassVar[str] = "plain"
    number: int
    words: list[str] = field(default_factory=list)
    note: str = "none"


@dataclass(slots=True)
class Derived(Plain):
    more: int = 5


@dataclass(frozen=True, slots=True)
class Frozen:
    number: int
    note: str = "none"

    def __post_init__(self) -> None:
        if self.number < 0:
            raise ValueError("negative")


def fresh(**options: bool) -> Any:
    """A class that was not used yet."""

    class Fresh:
        first: int
        second: int = 2

    return dataclass(slots=True, **options)(Fresh)


class RecordTests(unittest.TestCase):
    def test_fields_defaults_and_text_are_those_of_a_dataclass(self) -> None:
        plain = Plain(1)
        self.assertEqual(
            (plain.number, plain.words, plain.note, plain.KIND), (1, [], "none", "plain")
        )
        self.assertIsNot(plain.words, Plain(1).words)
        self.assertEqual(repr(plain), "Plain(number=1, words=[], note='none')")
        self.assertEqual(plain, Plain(number=1))
        self.assertNotEqual(plain, Plain(2))
        with self.assertRaises(TypeError):
            hash(plain)
        with self.assertRaises(TypeError):
            Plain()  # type: ignore[call-arg]
        with self.assertRaises(AttributeError):
            plain.other = 1  # type: ignore[attr-defined]
        self.assertEqual(Plain.__slots__, ("number", "words", "note"))

    def test_a_subclass_has_the_fields_of_its_base_first(self) -> None:
        self.assertEqual(
            [f.name for f in dataclasses.fields(Derived)], ["number", "words", "note", "more"]
        )
        self.assertEqual(Derived(1, ["a"], more=7), Derived(1, ["a"], "none", 7))
        self.assertEqual(Derived.__slots__, ("more",))

    def test_a_frozen_one_can_be_hashed_copied_and_replaced_and_not_changed(self) -> None:
        frozen = Frozen(1)
        with self.assertRaises(dataclasses.FrozenInstanceError):
            frozen.number = 2  # type: ignore[misc]
        with self.assertRaises(dataclasses.FrozenInstanceError):
            del frozen.number
        for twin in (copy.copy(frozen), copy.deepcopy(frozen), pickle.loads(pickle.dumps(frozen))):
            self.assertEqual((twin, hash(twin)), (frozen, hash(frozen)))
        self.assertEqual(dataclasses.replace(frozen, note="new"), Frozen(1, "new"))
        with self.assertRaises(ValueError):
            Frozen(-1)

    def test_comparing_hashing_and_showing_are_as_the_standard_decorator_makes_them(self) -> None:
        def fields(own: Any, **options: bool) -> Any:
            class Record:
                first: int
                second: str = own.field(default="x", repr=False)
                third: int = own.field(default=3, compare=False)

                def __str__(self) -> str:
                    return "written"

            return own.dataclass(slots=True, **options)(Record)

        class Ours:
            dataclass, field = staticmethod(dataclass), staticmethod(field)

        choices: tuple[dict[str, bool], ...] = (
            {},
            {"frozen": True},
            {"eq": False},
            {"repr": False},
            {"frozen": True, "eq": False},
        )
        for options in choices:
            with self.subTest(str(options)):
                looks: list[list[object]] = []
                for cls in (fields(Ours, **options), fields(dataclasses, **options)):
                    one, same, other = cls(1), cls(1, third=9), cls(2)
                    text = repr(one) if options.get("repr", True) else ""
                    looks.append([text, str(one), one == same, one == other, one != same])
                    looks[-1] += [one == 1, cls.__hash__ is None, cls.__match_args__]
                    if options.get("frozen") and options.get("eq", True):
                        looks[-1] += [hash(one) == hash(same), hash(one) == hash(other)]
                self.assertEqual(looks[0], looks[1])

    def test_a_record_that_holds_itself_can_be_shown_and_kinds_are_never_equal(self) -> None:
        plain = Plain(1)
        plain.words.append(plain)  # type: ignore[arg-type]
        self.assertEqual(repr(plain), "Plain(number=1, words=[...], note='none')")
        self.assertNotEqual(Plain(1), Derived(1))

    def test_a_class_is_completed_by_its_first_instance_or_by_the_first_look_at_its_fields(
        self,
    ) -> None:
        uses: tuple[Callable[[Any], object], ...] = (
            lambda cls: cls(1),
            dataclasses.is_dataclass,
            dataclasses.fields,
        )
        for use in uses:
            cls = fresh()
            self.assertTrue(records.is_record(cls))
            self.assertNotIn("__match_args__", vars(cls))
            self.assertTrue(use(cls))
            self.assertIn("__match_args__", vars(cls))
            self.assertEqual([each.name for each in dataclasses.fields(cls)], ["first", "second"])
            self.assertEqual(cls(1), cls(first=1, second=2))
        self.assertFalse(records.is_record(int))
        self.assertFalse(records.is_record(fresh()(1)))

    def test_parameters_are_as_the_standard_decorator_makes_them(self) -> None:
        def of(own: Any, kw_only: bool, odd: bool) -> Any:
            class Record:
                first: int
                second: list[int] = own.field(
                    default_factory=list, **({"kw_only": True} if odd else {})
                )
                third: Any = own.field(default=3)

            return own.dataclass(slots=True, kw_only=kw_only)(Record)

        class Ours:
            dataclass, field = staticmethod(dataclass), staticmethod(field)

        for kw_only, odd in itertools.product((False, True), (False, True)):
            with self.subTest(kw_only=kw_only, odd=odd):
                looks: list[list[object]] = []
                for cls in (of(Ours, kw_only, odd), of(dataclasses, kw_only, odd)):
                    looks.append([repr(cls(first=1)), repr(cls(second=None, first=2))])
                    for wrong in ((), (1, 2, 3, 4)):
                        with self.assertRaises(TypeError) as raised:
                            cls(*wrong)
                        looks[-1].append(str(raised.exception))
                    known = inspect.signature(cls).parameters.values()
                    looks[-1] += [[(each.name, each.kind) for each in known]]
                    looks[-1] += [[f.name for f in dataclasses.fields(cls)], cls.__match_args__]
                    looks[-1] += [[f.kw_only for f in dataclasses.fields(cls)]]
                self.assertEqual(looks[0], looks[1])

    def test_a_standard_dataclass_can_have_a_record_as_its_base(self) -> None:
        @dataclasses.dataclass(slots=True)
        class Standard(Plain):
            more: int = 5

        self.assertIn("Standard(number=1, words=[], note='none', more=5)", repr(Standard(1)))
        self.assertEqual(Standard(1, ["a"], more=7), Standard(1, ["a"], "none", 7))
        with self.assertRaises(TypeError):
            dataclasses.dataclass(type("Thawed", (Frozen,), {"__annotations__": {}}))

    def test_threads_that_use_a_class_first_at_the_same_time_all_get_it_whole(self) -> None:
        interval = sys.getswitchinterval()
        self.addCleanup(sys.setswitchinterval, interval)
        sys.setswitchinterval(1e-6)
        for _ in range(20):
            cls, start = fresh(), threading.Barrier(4)
            made: list[int] = []

            def use(cls: Any = cls, made: list[int] = made, start: Any = start) -> None:
                start.wait(20)
                made.append(cls(1).second)

            threads = [threading.Thread(target=use) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(20)
            self.assertEqual(made, [2, 2, 2, 2])

    def test_a_class_that_cannot_be_made_says_so_whenever_it_is_used(self) -> None:
        class Wrong:
            first: list[int] = []

        class Special:
            first: int = field(default=1, init=False)

        class Initial:
            first: InitVar[int]

        for wrong, error in ((Wrong, ValueError), (Special, TypeError), (Initial, TypeError)):
            cls: Any = dataclass(slots=True)(wrong)
            for _ in range(2):
                with self.subTest(wrong.__name__), self.assertRaises(error):
                    cls(1)
        with self.assertRaises(TypeError):
            fresh(order=True)

    def test_a_class_without_slots_is_refused(self) -> None:
        with self.assertRaises(TypeError):
            records.dataclass(slots=False)(object)


class CopyTests(unittest.TestCase):
    def test_a_copy_has_every_field_and_is_another_object(self) -> None:
        parts: list[Part] = [
            *(TextPart("a"), ReasoningPart("b", "c", 1, 2), ToolCallPart("d", "e", "f", "g", True)),
            *(ToolResultPart("h", "i", "j", "k", True, "l", "m"), ShellCommandPart("n", "o", 3)),
            FinishPart("p", 4, "q", "r", True),
        ]
        message = Message("s", "t", "u", parts, "v", "w", 5, 6, True)
        for record in (message, *parts):
            with self.subTest(type(record).__name__):
                made = copied(record)
                self.assertEqual(made, record)
                self.assertIsNot(made, record)
                self.assertIs(type(made), type(record))
