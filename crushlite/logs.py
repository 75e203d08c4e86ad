"""Structured logging: one line per record, as text for people or as JSON for programs."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import TextIO

__all__ = ["FORMATS", "LEVELS", "JSONFormatter", "TextFormatter", "configure"]

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")


class TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")


class JSONFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry = {
            "time": f"{at}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def configure(level: str, form: str, stream: TextIO | None = None) -> None:
    """Send the package's records, and asyncio's, to a stream (standard error)."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JSONFormatter() if form == "json" else TextFormatter())
    for name in ("crushlite", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(level.upper())
        logger.propagate = False
