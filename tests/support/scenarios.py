"""The marker of the tests that cover a founding scenario of the contract."""

from __future__ import annotations

import pytest


def scenario(*numbers: int) -> pytest.MarkDecorator:
    """Mark a test with the scenarios it covers, by their numbers in tests/house/test_scenarios.py.

    `pytest -m scenario` runs all of them.
    """
    return pytest.mark.scenario(*numbers)
