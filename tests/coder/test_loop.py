"""The loop when things go wrong: conversations that are too long, providers that fail for a while;
and what summaries and titles cost."""

from __future__ import annotations

import base64
import dataclasses
import json
from typing import TYPE_CHECKING, Any

from crushlite.coder.loop import REASONED_TITLE_TOKENS, TITLE_TOKENS, CoderOptions
from crushlite.coder.overflow import CUT_CHARS, cut, length, new_tokens, shorter
from crushlite.coder.prompts import SUMMARY
from crushlite.coder.providers.base import (
    CallPiece,
    ChatMessage,
    Image,
    ModelStop,
    ProviderError,
    Text,
    Tokens,
)
from crushlite.coder.providers.failures import refusal
from crushlite.coder.tools.base import ToolOutcome, view_lines
from crushlite.fake_model import End, Fail, Say
from crushlite.protocol.config import Model, SelectedModel
from crushlite.protocol.messages import BinaryPart
from crushlite.protocol.runs import AgentEvent
from crushlite.runs import Outcome
from tests.support.basics import BoundedTestCase
from tests.support.configured import ConfiguredTestCase, chat
from tests.support.images import png
from tests.support.model import QUICK, CoderBench, EchoTool, PlannedProvider, said

if TYPE_CHECKING:
    from crushlite.coder.loop import CoderAgent
    from crushlite.coder.providers.base import ModelRequest, Piece
    from crushlite.protocol.messages import Message

    Answer = list[Piece | BaseException]

UNREADABLE = ProviderError("cannot read this image", status=400)
TOO_LONG = refusal("prompt is too long: 9 > 8", status=400)

# As the documentation of providers, and users who report them, quote them.
OVERFLOWS = (
    (400, "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens"),
    (400, "Please reduce the length of the messages or completion. (context_length_exceeded)"),
    (0, "Your input exceeds the context window of this model. (context_length_exceeded)"),
    (400, "prompt is too long: 208310 tokens > 200000 maximum (invalid_request_error)"),
    (400, "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000"),
    (413, "Request Entity Too Large"),
    (400, "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)"),
    (400, "the request exceeds the available context size, try increasing it"),
    (400, "request (9000 tokens) exceeds the available context size (4096 tokens)"),
    (400, "tokens to keep from the initial prompt is greater than the context length"),
    (400, "This model's maximum prompt length is 131072 but the request contains 140000 tokens."),
    (500, "input is too long for the context size"),
    (400, "Input is too long for requested model."),
    (422, "inputs tokens + max_new_tokens must be <= 4096: too many input tokens"),
)
OTHERS = (
    (429, "Request too large for model on tokens per min (TPM): Limit 30000, Requested 40000"),
    (429, "exceeds the limit of 30000 input tokens per minute"),
    (400, "max_tokens: 9000 is larger than what this model allows"),
    (401, "invalid api key"),
    (403, "context window of your plan is used up"),
    (404, "model not found"),
    (400, "messages.3: tool_use ids were found without tool_result blocks"),
    (500, "internal error"),
)


def echo(number: int, text: str = "", tokens: Tokens | None = None) -> Answer:
    call = CallPiece(0, f"c{number}", "echo", json.dumps({"text": text}))
    return [call, *([tokens] if tokens else []), ModelStop("tool_use")]


class WordsTests(BoundedTestCase):
    def test_providers_say_in_many_ways_that_a_conversation_is_too_long(self) -> None:
        for status, words in OVERFLOWS:
            with self.subTest(words):
                self.assertTrue(refusal(words, status=status).overflow)
        for status, words in OTHERS:
            with self.subTest(words):
                self.assertFalse(refusal(words, status=status).overflow)

    def test_a_conversation_is_cut_at_its_end_first(self) -> None:
        long = "x" * 50_000
        messages = [ChatMessage("user", long), ChatMessage("tool", long), ChatMessage("user", "go")]
        first, second, third = cut(messages, 60_000)
        self.assertEqual((first, third), (messages[0], messages[2]))
        self.assertLess(len(second.text), 2 * CUT_CHARS)
        self.assertIn("48000 characters left out", second.text)
        self.assertEqual(sum(len(m.text) > 2 * CUT_CHARS for m in cut(messages, 0)), 0)
        self.assertEqual(messages[1].text, long)
        seeing = ChatMessage("user", "look", [Image("image/png", "x")])
        self.assertEqual(cut([seeing], 0)[0].images, [])
        self.assertEqual(cut([seeing], length([seeing])), [seeing])
        self.assertEqual(cut([seeing], length([seeing]) // 2)[0].images, [])
        self.assertEqual(shorter("abcdef", 6), "abcdef")
        self.assertEqual(shorter("abcdefg", 4), "ab\n(... 3 characters left out ...)\nfg")


class DamagedImageTests(CoderBench):
    """A provider that refuses an image refuses every later request with it."""

    async def run_turns(self, content: bytes, *answers: Answer) -> list[list[ChatMessage]]:
        self.provider = PlannedProvider(*answers)
        model = Model(id="m", supports_attachments=True)
        data = base64.b64encode(content).decode()
        file = BinaryPart("shot.png", "image/png", data)
        agent = self.coder(self.provider, model=model)
        (await self.converse(agent, "look", [file])).close(Outcome.COMPLETED, None)
        (await self.converse(agent, "and now?")).close(Outcome.COMPLETED, None)
        return [request.messages for request in self.provider.requests]

    async def test_a_refused_image_that_is_damaged_is_left_out_from_then_on(self) -> None:
        half = png()[:-20]
        refused, again, later = await self.run_turns(half, [UNREADABLE], said("what?"), said("ok"))
        self.assertEqual([len(each[0].images) for each in (refused, again, later)], [1, 0, 0])
        self.assertRegex(again[0].text, "shot.png .* is not shown: it is damaged")
        self.assertEqual(later[0], again[0])

    async def test_an_image_that_is_no_png_is_left_out_as_well(self) -> None:
        *_, later = await self.run_turns(b"GIF89a\0\0;", [UNREADABLE], said("what?"), said("ok"))
        self.assertEqual(later[0].images, [])

    async def test_an_error_that_is_not_about_a_damaged_image_is_told(self) -> None:
        with self.assertRaisesRegex(ProviderError, "cannot read"):
            await self.run_turns(png(), [UNREADABLE])

    async def test_what_the_provider_takes_is_sent_as_it_is(self) -> None:
        _, later = await self.run_turns(png()[:-20], said("nice"), said("ok"))
        self.assertEqual(len(later[0].images), 1)


class OverflowTests(CoderBench):
    async def run_turn(self, *answers: Answer, window: int = 0, **more: Any) -> list[ModelRequest]:
        """The requests of a turn behind one that has ended, with these answers."""
        self.provider = PlannedProvider(said("first"), *answers)
        model = Model(id="m", context_window=window)
        options = more.pop("options", None)
        agent = self.coder(self.provider, tools=[EchoTool()], model=model, options=options)
        (await self.converse(agent, "one")).close(Outcome.COMPLETED, None)
        self.live = await self.converse(agent, "two", **more)
        return self.provider.requests[1:]

    async def test_a_conversation_that_is_too_long_is_summarized_and_goes_on(self) -> None:
        requests = await self.run_turn([TOO_LONG], said("the gist"), echo(1), said("done"))
        refused, summary, again, last = requests
        self.assertEqual(summary.messages[:-1], refused.messages)
        self.assertTrue(summary.messages[-1].text.startswith(SUMMARY))
        (asked,) = again.messages
        self.assertRegex(asked.text, r"(?s)the gist.*what was asked last:\ntwo$")
        self.assertEqual(last.messages[0], asked)
        self.assertEqual(self.live.last.message.text, "done")

    async def test_it_is_summarized_in_the_middle_of_a_turn_too(self) -> None:
        late: Answer = [Text("half an ans"), TOO_LONG]
        requests = await self.run_turn(echo(1), late, said("the gist"), said("done"))
        self.assertEqual(len(requests), 4)
        self.live.close(Outcome.COMPLETED, None)
        rows = await self.stored(self.live)
        self.assertEqual([row.text for row in rows][-2:], ["the gist", "done"])
        self.assertFalse(any("half an ans" in row.text for row in rows))

    async def test_prompts_that_steered_the_turn_meanwhile_are_not_lost(self) -> None:
        self.provider = PlannedProvider(
            *(said("first"), echo(1), [TOO_LONG], said("the gist"), said("done"))
        )
        agent = self.coder(self.provider, tools=[EchoTool()], model=Model(id="m"))
        (await self.converse(agent, "one")).close(Outcome.COMPLETED, None)
        folded = iter([False, True, False])

        async def fold(turn: object) -> list[Message]:
            if not next(folded):
                return []
            self.user("and this", BinaryPart("a.txt", "text/plain", "cmliYml0"))
            return (await self.live.history())[-1:]

        await self.converse(agent, "two", fold=fold)
        (asked,) = self.provider.requests[-1].messages
        self.assertRegex(
            asked.text,
            r'(?s)the gist.*was asked last:\ntwo\nand this\n\n<file path="a.txt">\nribbit',
        )

    async def test_if_the_summary_does_not_help_the_error_is_told(self) -> None:
        with self.assertRaisesRegex(ProviderError, "too long"):
            await self.run_turn([TOO_LONG], said("the gist"), [TOO_LONG])
        self.assertEqual(self.provider.answers, [])

    async def test_a_later_step_may_be_too_long_again(self) -> None:
        too_long: Answer = [TOO_LONG]
        requests = await self.run_turn(
            *(too_long, said("gist 1"), echo(1), too_long, said("gist 2"), said("done"))
        )
        self.assertIn("gist 2", requests[-1].messages[0].text)

    async def test_what_cannot_be_summarized_or_must_not_be_is_an_error(self) -> None:
        off = CoderOptions(auto_summarize=False)
        with self.assertRaisesRegex(ProviderError, "too long"):
            await self.run_turn([TOO_LONG], options=off)
        with self.assertRaisesRegex(ProviderError, "no such"):
            await self.run_turn([ProviderError("no such model", status=404)])
        provider = PlannedProvider([TOO_LONG])
        self.workspace.transcript.forget(["session-1"])
        await self.execute("DELETE FROM messages")
        with self.assertRaisesRegex(ProviderError, "too long"):
            await self.converse(self.coder(provider), "a prompt that is too long by itself")
        self.assertEqual(len(provider.requests), 1)

    async def test_without_the_wing_that_summarizes_the_error_is_that_of_the_model(self) -> None:
        self.parts.clear()
        with self.assertRaisesRegex(ProviderError, "too long"):
            await self.run_turn([TOO_LONG])

    async def test_a_summary_that_is_too_long_itself_is_asked_for_with_less(self) -> None:
        tool = EchoTool(answer=lambda _: ToolOutcome("x" * 100_000))
        self.provider = PlannedProvider(
            *(echo(1), [TOO_LONG], [TOO_LONG], said("the gist"), said("done"))
        )
        agent = self.coder(self.provider, tools=[tool], model=Model(id="m"))
        await self.converse(agent, "y" * 3000)
        _, refused, whole, shortened, last = self.provider.requests
        self.assertEqual(whole.messages[:-1], refused.messages)
        self.assertEqual([m.text for m in shortened.messages[:2]], ["y" * 3000, ""])
        self.assertIn("98000 characters left out", shortened.messages[2].text)
        self.assertIn("the gist", last.messages[0].text)

    async def test_of_images_less_is_sent_at_once_too(self) -> None:
        """Their data is long, and takes few tokens: half of the one is not half of the other."""
        picture = ToolOutcome("look", data="aGlo" * 50_000, mime_type="image/png")
        tool = EchoTool(answer=lambda _: picture)
        self.provider = PlannedProvider(
            *(echo(1), [TOO_LONG], [TOO_LONG], said("the gist"), said("done"))
        )
        model = Model(id="m", supports_attachments=True)
        await self.converse(self.coder(self.provider, tools=[tool], model=model), "go")
        _, _, whole, shortened, _ = self.provider.requests
        images = [sum(len(m.images) for m in each.messages) for each in (whole, shortened)]
        self.assertEqual(images, [1, 0])

    async def test_a_result_that_will_not_fit_is_seen_before_it_is_sent(self) -> None:
        tool = EchoTool(answer=lambda _: ToolOutcome("x" * 50_000))
        self.provider = PlannedProvider(
            echo(1, tokens=Tokens(1000, 10)), said("the gist"), said("done")
        )
        model = Model(id="m", context_window=10_000)
        await self.converse(self.coder(self.provider, tools=[tool], model=model), "go")
        _, summary, last = self.provider.requests
        self.assertTrue(summary.messages[-1].text.startswith(SUMMARY))
        self.assertIn("the gist", last.messages[0].text)

    async def test_a_first_prompt_is_never_summarized_however_long(self) -> None:
        self.user("x" * 100_000)
        history = await self.turn().history()
        self.assertEqual(new_tokens(history, ""), 0)
        provider = PlannedProvider(said("ok"))
        model = Model(id="m", context_window=10_000)
        await self.converse(self.coder(provider, model=model), "y" * 100_000)
        self.assertEqual(len(provider.requests), 1)

    async def test_a_long_prompt_is_repeated_behind_a_summary_only_with_its_ends(self) -> None:
        """Else the window would be full again, and each step would be a summary."""
        requests = await self.run_turn(
            echo(1, tokens=Tokens(9000, 10)), said("gist"), said("done"), window=10_000
        )
        self.assertTrue(requests[-1].messages[0].text.endswith("\ntwo"))
        self.provider.answers += [echo(2, tokens=Tokens(9000, 10)), said("gist"), said("done")]
        agent = self.coder(
            self.provider, tools=[EchoTool()], model=Model(id="m", context_window=10_000)
        )
        await self.converse(agent, "a" + "x" * 28_000 + "z")
        repeated = self.provider.requests[-1].messages[0].text
        self.assertLess(len(repeated), 6000)
        self.assertRegex(repeated, r"(?s)gist.*\naxx.*characters left out.*xxz$")


class LoadedWindowTests(CoderBench):
    """A model whose server tells only after an answer how much it was loaded with."""

    def loaded_with(self, *windows: int) -> CoderAgent:
        """The coder on a model for 262144 tokens; each measurement finds the next of `windows`."""
        found = list(windows)
        self.measured = 0

        async def measure() -> int:
            self.measured += 1
            return found.pop(0)

        self.provider = PlannedProvider(echo(1), said("done"), said("done"))
        model = Model(id="m", context_window=262_144)
        agent = self.coder(self.provider, tools=[EchoTool()], model=model)
        agent._large = dataclasses.replace(agent._large, measure=measure)
        return agent

    async def test_the_window_that_it_was_loaded_with_counts_from_then_on(self) -> None:
        agent = self.loaded_with(8192)
        await self.converse(agent, "one" * 9000)
        self.assertEqual((agent.info().model.context_window, self.measured), (8192, 1))
        self.assertEqual(agent._context.view_lines, view_lines(8192))
        wish = self.provider.requests[1].messages[-1]
        self.assertTrue(wish.text.startswith(SUMMARY), "so the first step has filled it")

    async def test_what_is_not_told_or_is_more_changes_nothing(self) -> None:
        for told in (0, 1 << 20):
            agent = self.loaded_with(told)
            (await self.converse(agent, "one")).close(Outcome.COMPLETED, None)
            self.assertEqual(agent.info().model.context_window, 262_144)

    async def test_a_window_without_room_is_an_error_until_there_is_more(self) -> None:
        agent = self.loaded_with(1024, 32768)
        with self.assertRaisesRegex(ProviderError, r"window of 1024 tokens.*OLLAMA_CONTEXT_LENGTH"):
            await self.converse(agent, "one")
        self.live.close(Outcome.FAILED, None)
        (await self.converse(agent, "two")).close(Outcome.COMPLETED, None)
        self.assertEqual((agent.info().model.context_window, self.measured), (32768, 2))


class SummaryCostTests(CoderBench):
    async def summarized(self, *answers: Answer) -> list[ModelRequest]:
        self.provider = PlannedProvider(said("hi"), *answers)
        agent = self.coder(self.provider, tools=[EchoTool()])
        (await self.converse(agent)).close(Outcome.COMPLETED, None)
        self.summary = self.turn()
        await agent.summarize(self.summary)
        return self.provider.requests

    async def test_all_but_the_wish_of_a_summary_was_in_the_last_request(self) -> None:
        before, summary = await self.summarized(said("gist"))
        self.assertEqual((summary.system, summary.tools), (before.system, before.tools))
        self.assertEqual(summary.messages[: len(before.messages)], before.messages)
        for heading in ("Task", "Rules", "Done", "State", "Decisions", "Next"):
            self.assertIn(f"## {heading}\n", summary.messages[-1].text)

    async def test_a_model_that_calls_a_tool_instead_is_asked_again_without_tools(self) -> None:
        *_, first, second = await self.summarized(echo(1), said("gist"))
        self.assertEqual((len(first.tools), second.tools), (1, []))
        self.assertEqual(self.summary.last.message.text, "gist")
        self.assertEqual(self.summary.last.message.tool_calls, [])

    async def test_a_call_beside_the_summary_is_left_out(self) -> None:
        await self.summarized([Text("gist"), *echo(1)])
        self.assertEqual(self.summary.last.message.text, "gist")
        self.assertEqual(self.summary.last.message.tool_calls, [])


class TitleCostTests(CoderBench):
    async def request(self, **model: Any) -> ModelRequest:
        provider = PlannedProvider(said("A title"))
        agent = self.coder(provider)
        chosen = SelectedModel("m", "p", reasoning_effort="high", think=True, max_tokens=64_000)
        object.__setattr__(agent._small, "model", Model(id="m", default_max_tokens=9000, **model))
        object.__setattr__(agent._small, "selected", chosen)
        await agent.title("hello")
        return provider.requests[0]

    async def test_a_title_is_capped_and_not_reasoned_about(self) -> None:
        plain = await self.request()
        self.assertEqual(
            (plain.max_tokens, plain.reasoning_effort, plain.think), (TITLE_TOKENS, "", False)
        )
        self.assertLessEqual(TITLE_TOKENS, 100)
        levels = {("low", "high"): "low", ("high", "minimal", "low"): "minimal", ("high",): ""}
        for known, expected in levels.items():
            request = await self.request(can_reason=True, reasoning_levels=list(known))
            self.assertEqual(request.reasoning_effort, expected)
            self.assertEqual(request.max_tokens, REASONED_TITLE_TOKENS)


class RetryTests(CoderBench):
    async def test_clients_are_told_when_why_and_how_often_a_call_is_tried_again(self) -> None:
        overloaded = ProviderError("overloaded", retryable=True)
        busy = ProviderError("b" * 1000, retryable=True, retry_after=0.25)
        provider = PlannedProvider([Text("ha"), overloaded], [busy], said("done"))
        await self.converse(self.coder(provider))
        events = [event.payload for event in self.published(AgentEvent)]
        self.assertEqual([(e.type, e.run_id) for e in events], [("retry", "run-1")] * 2)
        self.assertEqual(events[0].progress, "retrying in 1 s, attempt 2 of 4, because overloaded")
        self.assertEqual(
            events[1].progress,
            f"retrying in 0.25 s, attempt 3 of 4, because {'b' * 300}...",
        )

    async def test_an_error_that_ends_the_turn_is_no_retry(self) -> None:
        provider = PlannedProvider([ProviderError("no such model", status=404)])
        with self.assertRaises(ProviderError):
            await self.converse(self.coder(provider))
        self.assertEqual(self.published(AgentEvent), [])


class OverWireTests(ConfiguredTestCase):
    async def test_an_overflow_over_the_wire_is_one_run_with_one_ending(self) -> None:
        anna = await self.join()
        session = await anna.session()
        self.plan += [[Say("Hi."), End()], [Fail(400, OVERFLOWS[0][1])], [Say("gist"), End()]]
        await self.turn(anna, session, "one")
        self.plan.append([Say("Done."), End()])
        ended = await self.turn(anna, session, "two")
        self.assertEqual((ended["text"], ended["error"]), ("Done.", None))
        ((_, text),) = chat(self.model.requests[-1])
        self.assertRegex(text, r"(?s)gist.*\ntwo$")
        self.assert_valid_history(await anna.messages(session))

    async def test_a_retry_reaches_clients_that_resume_and_no_others(self) -> None:
        anna = await self.join()
        ben = await self.daemon.create(env=self.env)
        await ben.attach(last_id="nonsense")
        session = await anna.session()
        self.plan += [[Fail(503, "no model is free", QUICK)], [Say("Hi."), End()]]
        ended = await self.turn(anna, session, "one")
        self.assertEqual(ended["text"], "Hi.")
        told = await ben.events.wait_for("agent_event", type="retry")
        self.assertRegex(
            told["progress"], r"^retrying in \S+ s, attempt 2 of 4, because .*no model is free"
        )
        kinds = [event["type"] for event in anna.events.all("agent_event")]
        self.assertEqual(kinds, ["agent_finished"])
