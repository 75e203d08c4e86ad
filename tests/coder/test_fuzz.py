"""The short form of tools/fuzz_model.py: mutated answers of a model, without limits of time."""

from __future__ import annotations

from tests.support.basics import BoundedTestCase
from tools.fuzz_model import APIS, Draw, Fuzz

STREAMS = 60


class FuzzTests(BoundedTestCase):
    async def test_every_answer_however_spoiled_ends_its_turn_with_an_outcome(self) -> None:
        fuzz = Fuzz(20_26, stall=None, scale=0.05)
        await fuzz.run(range(STREAMS))
        self.assertEqual(fuzz.failures, [])
        self.assertEqual(sum(fuzz.outcomes.values()), STREAMS)
        self.assertLessEqual(set(fuzz.outcomes), {"completed", "failed"})
        self.assertGreater(fuzz.outcomes["completed"], 10)
        self.assertGreater(fuzz.outcomes["failed"], 10)

    def test_the_same_seed_draws_the_same_stream(self) -> None:
        for number in range(20):
            api = list(APIS)[number % 4]
            first, second = (Draw(f"7:{number}", 0.05).stream(api) for _ in range(2))
            self.assertEqual((first.data, first.end), (second.data, second.end))
