"""The line in wings.py: with it the command `acp` is offered. The daemon itself gets nothing."""

from __future__ import annotations

from ..wing import Wing


class AcpWing(Wing):
    pass
