"""Requests of one session share their beginning: also with news from outside, files of deeper
folders, a restart and a summary among them."""

from __future__ import annotations

import contextlib
import itertools
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crushlite.clock import SystemClock
from crushlite.coder.loop import CoderAgent, CoderOptions
from crushlite.coder.prompts import SUMMARY
from crushlite.coder.providers.anthropic import AnthropicProvider
from crushlite.coder.providers.openai import OpenAIProvider
from crushlite.coder.tools.base import ToolContext
from crushlite.coder.tools.registry import all_tools
from crushlite.protocol.config import Model
from crushlite.testing import LocalDaemon
from crushlite.testing.model import End, FakeModel, Say, Use
from tests.support.basics import BoundedTestCase
from tests.support.model import served

if TYPE_CHECKING:
    from collections.abc import Mapping

    from crushlite.testing import Participant

MODEL = Model(id="m", supports_attachments=True)
PICTURE = {"content": "iVBORw0KGgo=", "file_path": "a.png", "mime_type": "image/png"}

Kind = type[AnthropicProvider | OpenAIProvider]


def unmarked(value: Any) -> Any:
    """The request without cache marks, which differ from step to step and are not cached."""
    if isinstance(value, dict):
        return {key: unmarked(item) for key, item in value.items() if key != "cache_control"}
    return [unmarked(item) for item in value] if isinstance(value, list) else value


def working(request: dict[str, Any]) -> list[Any]:
    """A model that views a file, writes one, looks again with two tools at once, then answers."""
    if not request.get("tools"):
        return [Say("A title"), End()]
    messages = request["messages"]
    if json.dumps(SUMMARY)[1:-1] in json.dumps(messages[-1]):
        return [Say("The gist."), End()]
    step = sum(message["role"] == "assistant" for message in messages) % 4
    view = Use("view", json.dumps({"file_path": "deep/b.txt" if step else "a.txt"}))
    write = Use("write", json.dumps({"file_path": "c.txt", "content": f"step {step}\n"}))
    return [
        [Say("Let me see. "), view, End()],
        [write, End()],
        [view, Use("ls", "{}"), End()],
        [Say("Done."), End()],
    ][step]


class PrefixTests(BoundedTestCase):
    async def start(self, kind: Kind) -> None:
        """Start a daemon on the project; the one before it is stopped."""

        def make(path: Path, env: Mapping[str, str], config: Any) -> CoderAgent:
            large, small = (
                served(kind(self.model.base_url, "key", clock=SystemClock()), MODEL)
                for _ in range(2)
            )
            return CoderAgent(
                context=ToolContext(path, {}),
                large=large,
                small=small,
                tools=all_tools(),
                options=CoderOptions(context_paths=("AGENTS.md",)),
                clock=SystemClock(),
            )

        self.running = contextlib.AsyncExitStack()
        self.addAsyncCleanup(self.running.aclose)
        daemon = await self.running.enter_async_context(LocalDaemon(make))
        data = str(self.project / "data")
        self.anna: Participant = await daemon.join(self.project, yolo=True, data_dir=data)

    async def ask(self, text: str, **fields: Any) -> None:
        run = (await self.anna.prompt(self.session, text, **fields)).json["run_id"]
        ended = await self.anna.events.wait_for("run_complete", run_id=run)
        self.assertEqual(ended["error"], None)

    def requests(self) -> list[dict[str, Any]]:
        """All but those for titles, which have no tools."""
        return [call.request for call in self.model.calls if call.request.get("tools")]

    async def ten_turns(self, kind: Kind) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The requests of seven turns and a summary, and those of three turns behind it."""
        self.model = await self.enterAsyncContext(FakeModel(script=working))
        self.project = Path(self.enterContext(tempfile.TemporaryDirectory())).resolve()
        (self.project / "deep").mkdir()
        for name, text in (
            *(("AGENTS.md", "Be kind."), ("a.txt", "one")),
            *(("deep/AGENTS.md", "Deep down."), ("deep/b.txt", "two")),
        ):
            (self.project / name).write_text(f"{text}\n")
        await self.start(kind)
        self.session = await self.anna.session()
        await self.ask("look around")
        await self.ask("at this, too", attachments=[PICTURE])
        (self.project / "AGENTS.md").write_text("Be brief.\n")
        await self.ask("and now")
        await self.ask("once more")
        await self.running.aclose()
        await self.start(kind)
        await self.ask("after a restart")
        await self.ask("and the next")
        await self.ask("and the last")
        answer = await self.anna.call("POST", f"/agent/sessions/{self.session}/summarize")
        self.assertEqual(answer.status, 200)
        before = self.requests()
        for text in ("eight", "nine", "ten"):
            await self.ask(text)
        return before, self.requests()[len(before) :]

    def check_prefixes(self, requests: list[dict[str, Any]]) -> None:
        """Check that each request begins with the bytes of the one before it."""
        for earlier, later in itertools.pairwise(requests):
            old, new = (unmarked(request["messages"]) for request in (earlier, later))
            self.assertGreater(len(new), len(old))
            self.assertEqual(json.dumps(new[: len(old)]), json.dumps(old))

    async def test_ten_turns_with_images_news_a_restart_and_a_summary_share_their_beginnings(
        self,
    ) -> None:
        for kind in (OpenAIProvider, AnthropicProvider):
            with self.subTest(kind.__name__):
                before, after = await self.ten_turns(kind)
                self.assertEqual((len(before), len(after)), (29, 12))
                self.check_prefixes(before)  # the request for the summary is the last of them
                self.check_prefixes(after)
                for part in ("tools", "system"):
                    parts = {json.dumps(request.get(part)) for request in (*before, *after)}
                    self.assertEqual(len(parts), 1)
                texts = [json.dumps(requests[-1]) for requests in (before, after)]
                for told in ("iVBORw0KGgo=", "Be brief.", "Deep down."):
                    self.assertIn(told, texts[0])
                for told in ("The gist.", "Be brief.", "Deep down."):
                    self.assertIn(told, texts[1])
