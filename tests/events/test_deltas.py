"""Linear streams: growth as what was appended, for readers that keep up, lag, drop and resume."""

from __future__ import annotations

from typing import Any

from crushlite.protocol.messages import (
    FinishPart,
    Message,
    MessageDelta,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
)
from crushlite.protocol.sessions import Session

from .test_events import Case, Client, World, blocks, label, labels, message


def deltas(text: str) -> list[Any]:
    """The payloads of the deltas in a stream, and the labels of all other events."""
    return [
        list(data["payload"]["payload"].values())
        if data["type"] == "message_delta"
        else label(data)
        for _, data in blocks(text)
        if data is not None
    ]


class DeltaTest(Case):
    def parts(self, *parts: Part) -> int:
        return self.hub.publish("updated", Message("m", "assistant", "s", [*parts]), growth=True)

    async def test_growth_is_what_was_appended_and_its_end_the_whole_message(self) -> None:
        _, sink = self.stream(resume=True, deltas=True)
        self.hub.publish("created", Message("m", "assistant", "s", []))
        self.grow("one")
        self.grow("one two")
        self.grow("one two ünd")
        self.finish("one two ünd")
        await self.ticks()
        whole = ["m=", "m=one", ["m", 0, 3, " two"], ["m", 0, 7, " ünd"], "m=one two ünd!"]
        self.assertEqual(deltas(sink.text), whole)
        frame = blocks(sink.text)[3]
        payload = {"message_id": "m", "part": 0, "offset": 3, "text": " two"}
        envelope = {"type": "message_delta", "payload": {"type": "updated", "payload": payload}}
        self.assertEqual(frame, ("e-3", envelope))

    async def test_other_streams_get_no_deltas(self) -> None:
        streams = [
            self.stream(),
            self.stream(resume=True),
            self.stream(deltas=True),
            self.stream(resume=True, deltas=True),
        ]
        self.grow("a")
        self.grow("ab")
        await self.ticks()
        for _, sink in streams[:3]:
            self.assertEqual(
                [each for each in labels(sink.text) if each != "None"], ["m=a", "m=ab"]
            )
        self.assertEqual(deltas(streams[3][1].text), ["m=a", ["m", 0, 1, "b"]])

    async def test_what_is_more_than_an_appended_text_comes_whole(self) -> None:
        _, sink = self.stream(resume=True, deltas=True)
        thought = ReasoningPart("a")
        for state in (
            (thought,),
            (ReasoningPart("ab"),),
            (ReasoningPart("abc", signature="s"),),
            (ReasoningPart("abc", signature="s"), TextPart("t")),
            (ReasoningPart("abcd", signature="s"), TextPart("tt")),
            (ReasoningPart("abcd", signature="s"), TextPart("ttt")),
            (ReasoningPart("abcd", signature="s"), TextPart("t")),
        ):
            self.parts(*state)
        await self.ticks()
        seen = ["m=", ["m", 0, 1, "b"], "m=", "m=t", "m=tt", ["m", 1, 2, "t"], "m=t"]
        self.assertEqual(deltas(sink.text), seen)

    async def test_a_newcomer_begins_with_the_messages_that_grow(self) -> None:
        self.grow("a")
        self.grow("x", "other")
        self.finish("x", "other")
        _, sink = self.stream(resume=True, deltas=True)
        self.grow("ab")
        await self.ticks()
        self.assertEqual(deltas(sink.text), ["m=a", ["m", 0, 1, "b"]])

    async def test_a_message_that_is_gone_is_not_shown_to_a_newcomer(self) -> None:
        self.grow("a")
        self.grow("b", "n")
        self.hub.publish("deleted", message("a"))
        self.hub.publish("deleted", Session("s", "title"))
        _, sink = self.stream(resume=True, deltas=True)
        self.assertEqual(deltas(sink.text), [])

    async def test_of_messages_that_never_end_only_the_newest_are_shown_to_a_newcomer(self) -> None:
        for number in range(1030):
            self.grow("a", str(number))
        _, sink = self.stream(resume=True, deltas=True)
        sink.read()
        self.assertEqual(len(deltas(sink.text)), 1024)
        self.assertEqual(deltas(sink.text)[0], "6=a")

    async def test_skipped_growth_is_made_good_by_what_is_sent_in_its_place(self) -> None:
        _, sink = self.stream(resume=True, deltas=True, high=1)
        sink.read()
        self.grow("a")  # fills the sink
        for text in ("ab", "abc", "abcd"):
            self.grow(text)
        await self.ticks()
        sink.read()
        self.assertEqual(deltas(sink.text), ["m=a", ["m", 0, 1, "bcd"]])

    async def test_of_skipped_growth_that_is_more_than_text_the_message_comes_whole(self) -> None:
        _, sink = self.stream(resume=True, deltas=True, high=1)
        sink.read()
        self.grow("a")
        self.grow("ab")
        self.parts(TextPart("ab"), ReasoningPart("t"))
        self.parts(TextPart("ab"), ReasoningPart("tu"))
        await self.ticks()
        sink.read()
        self.parts(TextPart("ab"), ReasoningPart("tuv"))
        await self.ticks()
        sink.read()
        self.assertEqual(deltas(sink.text), ["m=a", "m=ab", ["m", 1, 2, "v"]])

    async def test_a_replay_holds_whole_messages(self) -> None:
        start = self.grow("a")
        self.grow("ab")
        self.grow("abc")
        self.grow("x", "other")
        self.finish("x", "other")
        _, sink = self.stream(last_id=f"e-{start}", deltas=True)
        self.grow("abcd")
        await self.ticks()
        self.assertEqual(deltas(sink.text), ["m=abc", "other=x!", ["m", 0, 3, "d"]])

    async def test_a_long_answer_costs_its_text_about_twice(self) -> None:
        _, sink = self.stream(resume=True, deltas=True)
        text = ""
        for number in range(400):
            text += f"{number} words and words of a long answer, " * 5
            self.grow(text)
            await self.ticks(2)
        self.finish(text)
        await self.ticks()
        self.assertLess(len(sink.text), 3 * len(text))


class MessageDeltaTest(Case):
    async def test_applied_to_the_earlier_state_it_gives_the_later_one(self) -> None:
        call = ToolCallPart("id", "bash")
        for old, new in (
            ([TextPart("a")], [TextPart("a\U0001f600")]),
            ([ReasoningPart("a", started_at=3), call], [ReasoningPart("ab", started_at=3), call]),
            ([call, TextPart("")], [call, TextPart("text")]),
        ):
            before, after = (Message("m", "assistant", "s", [*parts]) for parts in (old, new))
            delta = MessageDelta.between(before, after)
            assert delta is not None
            self.assertEqual(delta.applied(before), after)
            self.assertEqual(MessageDelta("m", delta.part, delta.offset, "").until(after), delta)

    async def test_it_does_not_apply_to_another_state(self) -> None:
        state = Message("m", "assistant", "s", [TextPart("abc"), FinishPart("stop")])
        for part, offset in ((0, 2), (0, 4), (1, 0), (2, 0), (-1, 0)):
            self.assertIsNone(MessageDelta("m", part, offset, "x").applied(state))


class LinearClient(Client):
    """Reads deltas, and checks that they give what was published."""

    deltas = True

    def connect(self) -> None:
        self.growing: dict[str, Message] = {}
        super().connect()

    def take(self, ident: str, data: Any) -> None:
        payload: Any = None if data is None else data["payload"].get("payload")
        if data is not None and data["type"] == "message_delta":
            self.world.deltas += 1
            delta = MessageDelta(**payload)
            state = delta.applied(self.growing[delta.message_id])
            assert state is not None, "a delta continues what the client has"
            text = state.parts[0].text if isinstance(state.parts[0], TextPart) else ""
            seq = int(ident.removeprefix("e-"))
            assert (seq, f"{state.id}={text}") in self.world.history
            self.growing[state.id] = state
            parts = [{"type": "text", "data": {"text": text}}]
            data = {"type": "message", "payload": {"payload": {"id": state.id, "parts": parts}}}
        elif data is not None and data["type"] == "message":
            text = payload["parts"][0]["data"]["text"]
            self.growing[payload["id"]] = message(text, ident=payload["id"])
            if not ident:  # one that grew when the stream began
                assert self.texts[payload["id"]] == text
                return
        super().take(ident, data)


class DeltaRandomWalkTest(Case):
    async def test_clients_that_lag_drop_and_resume_see_every_message_as_it_was_published(
        self,
    ) -> None:
        seen = conflated = 0
        for seed in range(12):
            with self.subTest(seed=seed):
                world = World(seed, LinearClient)
                await world.run(800)
                for client in world.clients:
                    self.assertEqual(client.facts, len(world.facts))
                    self.assertEqual(client.texts, world.live)
                seen += world.deltas
                conflated += world.hub.conflated
        self.assertGreater(seen, 100)
        self.assertGreater(conflated, 100)
