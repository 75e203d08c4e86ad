"""Mistakes that models make with tools, from mistakes.json: the answer to each says what to do
next, and a model that does that succeeds.

An entry holds the files of a project, the calls before the mistake, the mistake, what the model
must be told in its one answer, the calls that follow, and what is in the files and in the last
answer then. A model that goes in circles is `warned`, once; no other is. A fake server plays the
model; everything else is real.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from crushlite.coder.repeats import WARNING
from crushlite.fake_model import End, Say, Use
from tests.support.configured import ConfiguredTestCase, chat, results

MISTAKES: list[dict[str, Any]] = json.loads(
    Path(__file__).with_name("mistakes.json").read_text("utf-8")
)
PARTS = 4


def content_of(text: str) -> bytes:
    """A file of an entry: what is no text is in base64."""
    encoded = text.removeprefix("base64:")
    return text.encode() if encoded == text else base64.b64decode(encoded)


class MistakeTests(ConfiguredTestCase):
    async def check(self, number: int, entry: dict[str, Any]) -> None:
        folder = self.folder(f"project-{number}")
        for name, text in entry["files"].items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content_of(text))
        calls = [*entry["before"], entry["mistake"], *entry["then"]]
        for call in calls:
            self.plan.append(
                [Use(call["tool"], call.get("raw") or json.dumps(call["input"])), End()]
            )
        self.plan.append([Say("done"), End()])
        asked = len(self.model.requests)
        kim = await self.join(folder, yolo=True)
        session = await kim.session()
        ended = await self.turn(kim, session, "work")
        self.assertEqual((ended["text"], ended["error"]), ("done", None))
        answers = results(await kim.messages(session))
        at = len(entry["before"])
        heard = chat(self.model.requests[asked + at + 1])[-1]
        self.assertEqual(heard[0], "tool")
        for words in entry["told"]:
            self.assertIn(words, heard[1], "the model is told what to do")
        warnings = sum(WARNING in answer["content"] for answer in answers)
        self.assertEqual(warnings, int(entry.get("warned", False)))
        for answer in (*answers[:at], *answers[at + 1 :]):
            self.assertFalse(answer["is_error"], answer["content"])
        self.assertIn(entry["shown"], answers[-1]["content"])
        for name, text in entry["after"].items():
            self.assertEqual((folder / name).read_bytes(), content_of(text), name)

    async def check_part(self, part: int) -> None:
        self.env.append("GH_TOKEN=hidden")
        for number in range(part, len(MISTAKES), PARTS):
            with self.subTest(MISTAKES[number]["name"]):
                await self.check(number, MISTAKES[number])

    async def test_the_first_part_of_the_mistakes_is_overcome(self) -> None:
        await self.check_part(0)

    async def test_the_second_part_of_the_mistakes_is_overcome(self) -> None:
        await self.check_part(1)

    async def test_the_third_part_of_the_mistakes_is_overcome(self) -> None:
        await self.check_part(2)

    async def test_the_fourth_part_of_the_mistakes_is_overcome(self) -> None:
        await self.check_part(3)

    def test_there_are_enough_and_none_is_there_twice(self) -> None:
        names = [entry["name"] for entry in MISTAKES]
        self.assertGreaterEqual(len(names), 40)
        self.assertEqual(len(names), len(set(names)))
