"""Both sides of a connection ask and answer: each request once, in order, within bounds."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from crushlite.jsonrpc.errors import (
    CANCELLED,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PeerBusy,
    PeerGone,
    PeerTimeout,
    RpcError,
    Unsendable,
)
from crushlite.jsonrpc.frames import HEADERS
from crushlite.jsonrpc.peer import PeerOptions, RpcHandler, RpcPeer, RpcRequest
from crushlite.testing.fake_clock import FakeClock
from tests.support.basics import BoundedTestCase
from tests.support.streams import Streams, stream_pair

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class Recorder(RpcHandler):
    """Answers `echo` with its params, `wait` when the gate opens; records what comes."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.seen: list[str] = []
        self.slow_notifications = False
        self.cancelling: RpcPeer | None = None  # whose work `cancel` ends

    def on_request(self, request: RpcRequest) -> Awaitable[Any]:
        self.seen.append(request.method)
        if request.method == "at once":
            raise RpcError(INVALID_PARAMS, "no")
        if request.method == "unknown":
            return super().on_request(request)
        return self._answer(request)

    async def _answer(self, request: RpcRequest) -> Any:
        match request.method:
            case "wait":
                await self.gate.wait()
            case "fail":
                raise RpcError(-5, "broken", {"why": 1})
            case "crash":
                raise RuntimeError("secret")
            case "unsendable":
                return {"x": object()}
        return request.params

    def on_notification(self, method: str, params: dict[str, Any]) -> Awaitable[None] | None:
        self.seen.append(method)
        if method == "crash":
            raise RuntimeError("oh")
        if method == "cancel" and self.cancelling is not None:
            self.cancelling.cancel_incoming(**params)
        return self.gate_passed() if self.slow_notifications else None

    async def gate_passed(self) -> None:
        await self.gate.wait()


class PeerCase(BoundedTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.clock = FakeClock()
        self.noise: list[str] = []

    async def peer(self, streams: Streams, **options: Any) -> tuple[RpcPeer, Recorder]:
        handler = Recorder()
        chosen = PeerOptions(on_noise=self.noise.append, **options)
        peer = RpcPeer(*streams, handler, self.clock, chosen)
        self.running = running = asyncio.create_task(peer.run())

        async def end() -> None:
            handler.gate.set()
            await peer.close()
            running.cancel()
            await asyncio.wait([running])

        self.addAsyncCleanup(end)
        return peer, handler

    async def both(self, **options: Any) -> tuple[RpcPeer, Recorder, RpcPeer, Recorder]:
        one, other = await stream_pair()
        return (*await self.peer(one, **options), *await self.peer(other, **options))

    async def scripted(self, **options: Any) -> tuple[RpcPeer, Recorder, Script]:
        """A peer whose other side is written by the test."""
        one, other = await stream_pair(buffer=options.pop("buffer", 0))
        script = Script(other)
        self.addAsyncCleanup(script.close)
        return (*await self.peer(one, **options), script)

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():  # noqa: ASYNC110 - it depends on a thread, or on the system
            await asyncio.sleep(0)


class Script:
    def __init__(self, streams: Streams) -> None:
        self.reader, self.writer = streams

    def send(self, *messages: Any) -> None:
        for message in messages:
            text = message if isinstance(message, str) else json.dumps(message)
            self.writer.write(text.encode() + b"\n")

    async def next(self) -> Any:
        return json.loads(await self.reader.readline())

    async def close(self) -> None:
        self.writer.close()


class AskingTests(PeerCase):
    async def test_both_sides_ask_at_once_and_each_gets_its_own_answer(self) -> None:
        for framing in ({}, {"framing": HEADERS}):
            one, _, other, _ = await self.both(**framing)
            asked = [
                peer.request("echo", {"n": number}, seconds=None)
                for number in range(50)
                for peer in (one, other)
            ]
            answers = await asyncio.gather(*asked)
            self.assertEqual(answers, [{"n": number // 2} for number in range(100)])

    async def test_an_answer_that_waits_holds_up_nothing(self) -> None:
        one, _, _, handler = await self.both()
        waiting = asyncio.create_task(one.request("wait", {"n": 1}, seconds=None))
        self.assertEqual(await one.request("echo", {"n": 2}, seconds=None), {"n": 2})
        handler.gate.set()
        self.assertEqual(await waiting, {"n": 1})

    async def test_errors_of_handlers_come_with_their_numbers(self) -> None:
        one, _, _, _ = await self.both()
        for method, number in (
            ("fail", -5),
            ("crash", INTERNAL_ERROR),
            ("unsendable", INTERNAL_ERROR),
            ("unknown", METHOD_NOT_FOUND),
            ("at once", INVALID_PARAMS),
        ):
            with self.assertRaises(RpcError) as caught:
                await one.request(method, seconds=None)
            self.assertEqual(caught.exception.number, number, method)
            self.assertNotIn("secret", caught.exception.message)
            self.assertEqual(caught.exception.data, {"why": 1} if method == "fail" else None)

    async def test_large_messages_pass_and_too_large_ones_fail_on_either_side(self) -> None:
        one, _, other, _ = await self.both(frame=1 << 20)
        text = "\u2028x" * 100_000
        self.assertEqual(await one.request("echo", {"t": text}, seconds=None), {"t": text})
        with self.assertRaises(Unsendable):
            await one.request("echo", {"t": "x" * (1 << 20)}, seconds=None)
        self.assertEqual(await other.request("echo", {}, seconds=None), {})

    async def test_a_request_without_an_answer_ends_in_time_and_is_taken_back(self) -> None:
        peer, _, script = await self.scripted(cancel_notice=lambda n: ("cancel", {"which": n}))
        asked = asyncio.create_task(peer.request("slow", seconds=5))
        self.assertEqual((await script.next())["id"], 0)
        await self.clock.advance(5)
        with self.assertRaises(PeerTimeout):
            await asked
        self.assertEqual((await script.next())["params"], {"which": 0})
        script.send({"id": 0, "result": 1}, {"id": 99, "result": 1})  # late; unknown
        self.assertEqual(await self.ask(peer, script), "fine")
        self.assertEqual(self.noise, ['{"id": 99, "result": 1}'])

    async def ask(self, peer: RpcPeer, script: Script) -> Any:
        asked = asyncio.create_task(peer.request("ask", seconds=None))
        request = await script.next()
        script.send({"jsonrpc": "2.0", "id": request["id"], "result": "fine"})
        return await asked

    async def test_a_caller_that_is_cancelled_takes_its_request_back(self) -> None:
        peer, _, script = await self.scripted(cancel_notice=lambda n: ("cancel", {"which": n}))
        for cancellable in (True, False):
            asked = asyncio.create_task(peer.request("x", seconds=None, cancellable=cancellable))
            await script.next()
            asked.cancel()
            await asyncio.wait([asked])
            self.assertTrue(asked.cancelled())
            if cancellable:
                self.assertEqual((await script.next())["params"], {"which": 0})
        self.assertEqual(await self.ask(peer, script), "fine")

    async def test_more_open_requests_than_allowed_are_refused(self) -> None:
        one, _, _, handler = await self.both(asked=2)
        asked = [asyncio.create_task(one.request("wait", seconds=None)) for _ in range(2)]
        await asyncio.sleep(0)
        with self.assertRaises(PeerBusy):
            await one.request("echo", seconds=None)
        handler.gate.set()
        await asyncio.gather(*asked)
        self.assertEqual(await one.request("echo", seconds=None), {})

    async def test_the_end_of_the_stream_fails_what_is_open_and_what_comes(self) -> None:
        peer, _, script = await self.scripted()
        asked = asyncio.create_task(peer.request("x", seconds=None))
        await script.next()
        script.writer.close()
        with self.assertRaises(PeerGone):
            await asked
        self.assertTrue(peer.is_gone)
        with self.assertRaises(PeerGone):
            await peer.request("x", seconds=None)
        with self.assertRaises(PeerGone):
            await peer.notify("x")

    async def test_a_peer_that_reads_nothing_is_given_up(self) -> None:
        peer, _, _ = await self.scripted(write_seconds=7, buffer=4096)
        sending = asyncio.create_task(peer.notify("x", {"t": "x" * (4 << 20)}))
        await self.until(lambda: self.clock.pending > 0)  # it waits for the reader
        await self.clock.advance(7)
        with self.assertRaises(PeerGone) as caught:
            await sending
        self.assertIn("took nothing for 7 seconds", caught.exception.message)
        for _ in range(10):
            await asyncio.sleep(0)
        self.assertTrue(self.running.done(), "it reads on, although nothing may ever come")

    async def test_messages_do_not_pile_up_behind_one_that_is_not_taken(self) -> None:
        """However short the patience of the callers is."""
        peer, _, _ = await self.scripted(write_seconds=7, buffer=4096)
        for _ in range(20):
            asking = asyncio.create_task(peer.request("x", {"t": "x" * 50_000}, seconds=0.1))
            await self.until(lambda: self.clock.pending > 0)
            await self.clock.advance(0.1)
            with self.assertRaises(PeerTimeout):
                await asking
        transport = peer._writer.transport  # type: ignore[attr-defined]
        self.assertLess(transport.get_write_buffer_size(), 200_000)
        await self.clock.advance(7)
        with self.assertRaisesRegex(PeerGone, "took nothing"):
            await peer.notify("x")

    async def test_an_error_of_any_form_is_an_error(self) -> None:
        peer, _, script = await self.scripted()
        for error, message in (
            ({"code": -7, "message": "m"}, "m"),
            ("broken", "broken"),
            ([["x" * 10_000]], "an error without a message"),
        ):
            asking = asyncio.create_task(peer.request("x", seconds=None))
            script.send({"id": (await script.next())["id"], "error": error})
            with self.subTest(message), self.assertRaises(RpcError) as caught:
                await asking
            self.assertEqual(caught.exception.message, message)


class OrderTests(PeerCase):
    async def test_requests_are_begun_in_the_order_of_arrival_among_notifications(self) -> None:
        _, handler, script = await self.scripted()
        script.send(
            {"id": 1, "method": "wait"},
            {"method": "a"},
            {"id": 2, "method": "echo"},
            {"method": "b"},
        )
        self.assertEqual((await script.next())["id"], 2)
        self.assertEqual(handler.seen, ["wait", "a", "echo", "b"])

    async def test_who_waited_for_an_answer_goes_on_before_the_next_message(self) -> None:
        peer, handler, script = await self.scripted()

        async def ask() -> list[str]:
            await peer.request("x", seconds=60)
            return list(handler.seen)

        asked = asyncio.create_task(ask())
        await script.next()
        script.send({"method": "before"}, {"id": 0, "result": 1}, {"method": "after"})
        self.assertEqual(await asked, ["before"])

    async def test_notifications_leave_in_the_order_of_the_calls_large_or_not(self) -> None:
        one, _, _, handler = await self.both()
        sent = [
            asyncio.create_task(one.notify(f"n{n}", {"t": "x" * (200_000 if n % 2 else 1)}))
            for n in range(6)
        ]
        await asyncio.gather(*sent)
        await one.request("echo", seconds=None)
        self.assertEqual(handler.seen, [*(f"n{n}" for n in range(6)), "echo"])

    async def test_nothing_is_read_while_a_notification_is_worked_on(self) -> None:
        _, handler, script = await self.scripted()
        handler.slow_notifications = True
        script.send({"method": "a"}, {"method": "crash"}, {"id": 1, "method": "echo"})
        await self.until(lambda: handler.seen != [])
        for _ in range(10):
            await asyncio.sleep(0)
        self.assertEqual(handler.seen, ["a"])
        handler.gate.set()
        self.assertEqual((await script.next())["id"], 1, "also after one that failed")


class AnsweringTests(PeerCase):
    async def test_ids_come_back_as_they_were(self) -> None:
        _, _, script = await self.scripted()
        for number in (0, "0", "fd-1", -3):
            script.send({"id": number, "method": "echo"})
            answer = await script.next()
            self.assertEqual(answer, {"jsonrpc": "2.0", "id": number, "result": {}})

    async def test_what_is_no_good_request_is_answered_with_its_id_if_it_has_one(self) -> None:
        peer, _, script = await self.scripted(frame=5000)
        for message, expected in (
            ({"id": 1, "method": 5}, (1, INVALID_REQUEST)),
            ({"id": 2, "method": "echo", "params": [1]}, (2, INVALID_PARAMS)),
            ({"id": None, "method": "echo"}, (None, INVALID_REQUEST)),
            ([{"id": 1, "method": "echo"}], (None, INVALID_REQUEST)),
            ({"id": 3, "method": "echo", "params": {"x": "x" * 6000}}, (3, INVALID_REQUEST)),
            ('{"id":4,"method":"echo","params":' + "[" * 99 + "]" * 99 + "}", (4, INVALID_REQUEST)),
        ):
            script.send(message)
            answer = await script.next()
            self.assertEqual((answer["id"], answer["error"]["code"]), expected)
        self.assertEqual(peer.noises, 0)

    async def test_an_answer_that_is_too_large_fails_its_request(self) -> None:
        peer, _, script = await self.scripted(frame=5000)
        asked = asyncio.create_task(peer.request("x", seconds=None))
        await script.next()
        script.send({"id": 0, "result": "x" * 6000})
        with self.assertRaises(RpcError):
            await asked

    async def test_noise_is_shown_bounded_and_does_no_harm(self) -> None:
        peer, _, script = await self.scripted(noise=5)
        lines = ["", "starting", '"x"', "null", "3", "{}", '{"level":"info"}', "y" * 1000]
        lines += ['{"id":5,"result":1}', '{"method":3}', '{"id":null,"error":{"code":-32700}}']
        script.send(*lines, {"id": 1, "method": "echo"})
        self.assertEqual(await script.next(), {"jsonrpc": "2.0", "id": 1, "result": {}})
        self.assertEqual(peer.noises, 10, "all but the blank line")
        self.assertEqual(len(self.noise), 5)
        self.assertLessEqual(max(map(len, self.noise)), 300)

    async def test_an_answer_that_is_read_when_the_connection_counts_as_gone_is_no_noise(
        self,
    ) -> None:
        peer, handler, script = await self.scripted()
        handler.slow_notifications = True
        asked = asyncio.create_task(peer.request("x", seconds=None))
        number = (await script.next())["id"]
        both = [json.dumps(each) for each in ({"method": "n"}, {"id": number, "result": 1})]
        script.send("\n".join(both))  # one read brings both
        await self.until(lambda: handler.seen == ["n"])
        await peer.close()
        with self.assertRaises(PeerGone):
            await asked
        handler.gate.set()
        await self.running
        self.assertEqual(peer.noises, 0)

    async def test_duplicate_answers_and_odd_errors_are_survived(self) -> None:
        peer, _, script = await self.scripted()
        error: Any
        for error in ("text", {"code": "x"}, {"code": 500, "message": "m"}, [], {"message": 3}):
            asked = asyncio.create_task(peer.request("x", seconds=None))
            number = (await script.next())["id"]
            script.send({"id": number, "error": error}, {"id": number, "result": 2})
            with self.assertRaises(RpcError):
                await asked

    async def test_work_is_cancelled_and_answered_once_whenever_that_is_asked_for(self) -> None:
        peer, handler, script = await self.scripted()
        handler.cancelling = peer
        # Before its first step, and when it has begun to wait.
        script.send({"id": 1, "method": "wait"}, {"method": "cancel", "params": {"number": 1}})
        answer = await script.next()
        self.assertEqual((answer["id"], answer["error"]["code"]), (1, CANCELLED))
        script.send({"id": 2, "method": "wait"}, {"id": 3, "method": "echo"})
        self.assertEqual((await script.next())["id"], 3)
        script.send({"method": "cancel", "params": {"number": 2, "answer": False}})
        script.send({"method": "cancel", "params": {"number": 77}}, {"id": 4, "method": "echo"})
        self.assertEqual((await script.next())["id"], 4, "the second wanted no answer")

    async def test_more_requests_than_allowed_are_refused_not_queued(self) -> None:
        _, handler, script = await self.scripted(asking=2)
        script.send(*({"id": number, "method": "wait"} for number in range(3)))
        answer = await script.next()
        self.assertEqual((answer["id"], answer["error"]["code"]), (2, INTERNAL_ERROR))
        script.send({"id": 0, "method": "echo"})
        self.assertEqual((await script.next())["error"]["code"], INVALID_REQUEST, "id in use")
        handler.gate.set()
        self.assertEqual({(await script.next())["id"] for _ in range(2)}, {0, 1})

    async def test_a_flood_leaves_turns_of_the_loop_to_others(self) -> None:
        peer, _, script = await self.scripted(noise=0)
        script.writer.write(b"y\n" * 20_000 + b"the end\n")
        most = 0
        while peer.noises <= 20_000:
            before = peer.noises
            await asyncio.sleep(0)
            most = max(most, peer.noises - before)
        self.assertLessEqual(most, 128)

    async def test_who_takes_no_answers_is_read_no_further(self) -> None:
        peer, _, script = await self.scripted(buffer=4096, asking=4, write_seconds=None)
        request = {"id": 1, "method": "echo", "params": {"x": "y" * 4000}}
        script.send(*[request, [], {}] * 2000)
        for _ in range(3000):  # turns of the loop: far more than reading all of it takes
            await asyncio.sleep(0)
        self.assertLessEqual(len(peer._tasks), 2 * 4 + 1)
        script.writer.transport.abort()

    async def test_a_side_that_has_closed_its_stream_still_gets_its_answers(self) -> None:
        peer, handler, script = await self.scripted()
        script.send({"id": 1, "method": "wait"}, {"id": 2, "method": "echo"})
        script.writer.write_eof()
        self.assertEqual((await script.next())["id"], 2)
        handler.gate.set()
        self.assertTrue(await peer.all_answered(60))
        self.assertEqual((await script.next())["id"], 1)

    async def test_closing_cancels_the_work_and_says_nothing_more(self) -> None:
        peer, _, script = await self.scripted()
        script.send({"id": 1, "method": "wait"}, {"id": 2, "method": "echo"})
        await script.next()
        await peer.close()
        self.assertEqual(await script.reader.read(), b"")
