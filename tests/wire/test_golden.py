"""The golden files against themselves and against the codec, both ways.

A key that appears, vanishes or changes its type breaks a client. So every shape has a file in
tests/golden, which says for each key whether it is always there, when it is left out, and of which
JSON type it is (see tests/support/golden.py). test_golden_daemon compares what a real daemon sends
with the same files.
"""

from __future__ import annotations

import dataclasses
import unittest
from typing import TYPE_CHECKING, Any

from crushlite.errors import BadRequest
from crushlite.protocol import events
from crushlite.protocol.codec import decode, encode
from tests.support.golden import FIELDS, KEYS, TYPES, Goldens, exact, load
from tests.support.wire import wire_class, wire_classes

if TYPE_CHECKING:
    from collections.abc import Iterator

GOLDENS = Goldens()


def with_classes() -> Iterator[tuple[str, dict[str, Any], type]]:
    for name, golden in GOLDENS.shapes.items():
        if "class" in golden:
            yield name, golden, wire_class(golden["class"])


def keys_of(golden: dict[str, Any]) -> dict[str, Any]:
    """All keys of a shape, with their types."""
    return {key: kind for field in KEYS for key, kind in golden.get(field, {}).items()}


# The files ---------------------------------------------------------------------------------------


class FileTests(unittest.TestCase):
    def test_a_file_is_named_after_its_shape_and_says_nothing_unknown(self) -> None:
        for name, golden in load().items():
            with self.subTest(name):
                self.assertEqual(golden["shape"], name)
                self.assertTrue(golden["about"].endswith("."))
                if name != "answers":
                    self.assertLessEqual(golden.keys(), FIELDS)
                    self.assertIn(golden["sent_by"], ("daemon", "client", "nobody"))
                    self.assertTrue(golden["examples"])

    def test_every_example_is_as_its_own_file_says(self) -> None:
        for name, golden in GOLDENS.shapes.items():
            for title, example in golden["examples"].items():
                with self.subTest(name, title=title):
                    self.assertEqual(GOLDENS.flaws(name, example), [])

    def test_the_examples_together_have_every_key_and_leave_out_what_may_be(self) -> None:
        for name, golden in GOLDENS.shapes.items():
            if "extends" in golden or name == "config":  # of configuration, a selection
                continue
            with self.subTest(name):
                examples = golden["examples"].values()
                self.assertEqual({k for e in examples for k in e}, keys_of(golden).keys())
                always = set.intersection(*(set(example) for example in examples))
                self.assertEqual(always, golden.get("always", {}).keys())

    def test_what_is_added_is_a_key_of_the_shape_and_has_a_reason(self) -> None:
        for name, golden in GOLDENS.shapes.items():
            for key, reason in golden.get("added", {}).items():
                with self.subTest(name, key=key):
                    self.assertTrue(key == "*" or key in keys_of(golden))
                    self.assertGreater(len(reason), 10)

    def test_every_wire_class_and_every_kind_of_event_has_a_file(self) -> None:
        self.assertEqual({cls for _, _, cls in with_classes()}, wire_classes() - {events.Envelope})
        kinds = {name for name in GOLDENS.shapes if name.startswith("event_")}
        self.assertEqual(kinds, {f"event_{kind}" for kind in (*events.KINDS, "resync")})

    def test_a_value_with_a_flaw_is_not_taken_for_a_good_one(self) -> None:
        """The checker itself, with a session in which one thing is wrong."""
        good = GOLDENS.shapes["session"]["examples"]["with to-dos"]
        unfinished = {"content": "x", "status": "begun", "active_form": ""}
        changes: tuple[dict[str, Any], ...] = (
            *({"cost": "0"}, {"message_count": 4.0}, {"is_busy": 0}, {"title": None}),
            *({"todos": []}, {"todos": [None]}, {"todos": [unfinished]}, {"extra": 1}),
            {"todos": [{"content": "x", "status": "pending"}]},
        )
        for change in changes:
            with self.subTest(change):
                self.assertEqual(len(GOLDENS.flaws("session", {**good, **change})), 1)
        for key in GOLDENS.shapes["session"]["always"]:
            less = {name: value for name, value in good.items() if name != key}
            self.assertEqual(GOLDENS.flaws("session", less), [f"session.{key} is missing"])


# The codec ---------------------------------------------------------------------------------------

WRONG: dict[str, tuple[Any, ...]] = {
    "string": (1, True, ["x"], {}),
    "int": (1.5, 1.0, "1", True, [1]),
    "number": ("1", True, [1]),
    "bool": (0, 1, "true", [True]),
    "object": ("{}", [], 1, True),
    "[": ("x", {}, 1, True),
    "{": ("x", [], 1, True),
}
FITS = {**TYPES, "[": lambda value: type(value) is list, "{": TYPES["object"]}
PLAIN = {"uuid": "string", "base64": "string", "json": "string", "parts": "["}


def codec_kind(kind: Any) -> str:
    """The JSON type that the codec checks for a type of the golden files."""
    if isinstance(kind, dict) or kind in GOLDENS.shapes:
        return "object"
    return PLAIN.get(kind) or (kind if kind in TYPES else kind[0])


def zeros(kinds: dict[str, Any]) -> dict[str, Any]:
    """Each key with its empty value."""
    empty = {"string": "", "int": 0, "number": 0, "bool": False, "object": {}, "any": 0}
    empty |= {"[": [], "{": {}}
    return {key: empty[codec_kind(kind)] for key, kind in kinds.items()}


def required(cls: type) -> set[str]:
    """The keys without which a value cannot be read."""
    return {
        field.metadata.get("name") or field.name
        for field in dataclasses.fields(cls)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }


class CodecTests(unittest.TestCase):
    def test_an_example_is_read_and_written_as_it_was(self) -> None:
        for name, golden, cls in with_classes():
            for title, example in golden["examples"].items():
                with self.subTest(name, title=title):
                    self.assertEqual(exact(encode(decode(cls, example))), exact(example))

    def test_an_event_is_read_and_written_as_it_was(self) -> None:
        for name, golden in GOLDENS.shapes.items():
            for title, example in golden["examples"].items() if name.startswith("event_") else ():
                with self.subTest(name, title=title):
                    event = events.parse(example)
                    self.assertEqual(
                        exact(events.to_json(event.action, event.payload)), exact(example)
                    )

    def test_empty_values_leave_out_exactly_what_may_be_left_out(self) -> None:
        for name, golden, cls in with_classes():
            always, empty, unset = (zeros(golden.get(field, {})) for field in KEYS)
            with self.subTest(name):
                self.assertEqual(encode(decode(cls, {**always, **empty})).keys(), always.keys())
                self.assertEqual(encode(decode(cls, {**always, **unset})).keys(), {*always, *unset})

    def test_what_was_not_set_has_its_type_too(self) -> None:
        for name, golden, cls in with_classes():
            empty = zeros(golden.get("always", {})).items()
            least = {key: zero for key, zero in empty if key in required(cls)}
            for key, value in encode(decode(cls, least)).items():
                with self.subTest(name, key=key):
                    self.assertTrue(FITS[codec_kind(golden["always"][key])](value), value)

    def test_null_means_the_same_as_nothing(self) -> None:
        for name, golden, cls in with_classes():
            with self.subTest(name):
                for example in golden["examples"].values():
                    least = {key: value for key, value in example.items() if key in required(cls)}
                    nothing = dict.fromkeys(keys_of(golden).keys() - required(cls))
                    self.assertEqual(decode(cls, {**least, **nothing}), decode(cls, least))

    def test_a_value_of_another_type_is_refused_by_name(self) -> None:
        for name, golden, cls in with_classes():
            example = next(iter(golden["examples"].values()))
            for key, kind in keys_of(golden).items():
                for wrong in WRONG.get(codec_kind(kind), ()):
                    with (
                        self.subTest(name, key=key, wrong=wrong),
                        self.assertRaisesRegex(BadRequest, rf"body\.{key}\b"),
                    ):
                        decode(cls, {**example, key: wrong})
