"""The text log: whatever is logged, a record is one line that a terminal can show."""

from __future__ import annotations

import logging
import sys
import unittest

from crushlite.cli.daemon_log import JSONFormatter, TextFormatter

HOSTILE = (
    "a\n2026-01-01 00:00:00,000 INFO    x: forged\r\x1b[2J\x9b31m\u202egnp\u2028\x00\ud800\x7f"
)


def record(message: str, *args: object, error: Exception | None = None) -> logging.LogRecord:
    info = None
    if error is not None:
        try:
            raise error
        except Exception:  # noqa: BLE001 - any will do
            info = sys.exc_info()
    return logging.LogRecord("x", logging.INFO, __file__, 1, message, args, info)


class Text(unittest.TestCase):
    def test_nothing_that_is_not_printable_is_written_raw(self) -> None:
        for made in (record(HOSTILE), record("%s", HOSTILE), record("%s and %r", HOSTILE, HOSTILE)):
            line = TextFormatter().format(made)
            self.assertTrue(line.isprintable(), line)
            self.assertIn("a\\n2026", line)
            self.assertIn("\\x1b[2J", line)
            self.assertIn("\\u202egnp", line)
        name = record("hello")
        name.name = HOSTILE
        self.assertTrue(TextFormatter().format(name).isprintable())

    def test_no_line_of_a_traceback_passes_for_a_record(self) -> None:
        text = TextFormatter().format(record("failed", error=ValueError(HOSTILE)))
        first, *others = text.split("\n")
        self.assertTrue(first.endswith("INFO    x: failed"))
        self.assertGreater(len(others), 3)
        for line in others:
            self.assertTrue(line.startswith("  ") and line.isprintable(), line)

    def test_plain_text_of_any_language_stays_as_it_is(self) -> None:
        line = TextFormatter().format(record("größer → 日本 \\n"))
        self.assertTrue(line.endswith("größer → 日本 \\n"))

    def test_json_is_one_line_of_ascii(self) -> None:
        line = JSONFormatter().format(record(HOSTILE, error=ValueError(HOSTILE)))
        self.assertTrue(line.isascii() and line.isprintable())
