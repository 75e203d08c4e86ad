"""Servers are changed, killed and restarted: what is offered can be called, and nothing is left."""

from __future__ import annotations

from tests.support.basics import BoundedTestCase
from tools.mcp_churn import Churn


class ChurnTests(BoundedTestCase):
    async def test_a_few_rounds(self) -> None:
        churn = Churn(seed=3)
        self.assertEqual(await churn.run(5), [])
        self.assertGreater(churn.called, 0)
