"""Answers of a model that no model should give, through the real providers and the real coder.

    python tools/fuzz_model.py --streams 2000 --seed 1
    python tools/fuzz_model.py --seed 1 --only 137          one stream again, told in detail

Each stream is an ordinary answer of one of the four APIs, changed at random: in its structure
(values, keys, events, numbers of calls, sizes), in its bytes (cuts, rubbish, line ends, encodings)
and in its HTTP (chunks, lengths, headers, statuses, breaks). A coder in a daemon of this process
gets it over a connection in memory, with two watchers on the event stream. Checked for each one:
the turn ends with an outcome, nothing is logged as an error, and the loop never stands still for
more than 100 ms of this process's own CPU time (time that other processes take does not count). In
the end the memory in use must be what it was after the first streams, within 100 MiB.

A failure is printed with the seed and the number of its stream, which repeat it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import gc
import json
import logging
import os
import random
import resource
import sys
import threading
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from crushlite.clock import SystemClock  # noqa: E402
from crushlite.coder.loop import CoderAgent, CoderOptions, ServedModel  # noqa: E402
from crushlite.coder.providers import reply, transport  # noqa: E402
from crushlite.coder.providers.anthropic import AnthropicProvider  # noqa: E402
from crushlite.coder.providers.gemini import GeminiProvider  # noqa: E402
from crushlite.coder.providers.openai import OpenAIProvider  # noqa: E402
from crushlite.coder.providers.responses import ResponsesProvider  # noqa: E402
from crushlite.coder.providers.transport import Timeouts  # noqa: E402
from crushlite.coder.tools.base import ToolContext  # noqa: E402
from crushlite.coder.tools.registry import all_tools  # noqa: E402
from crushlite.protocol.config import Model, SelectedModel  # noqa: E402
from crushlite.testing import LocalDaemon  # noqa: E402
from tests.support.memory import MemoryTransport  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from crushlite.coder.providers.client import ProviderClient
    from crushlite.testing import Participant

STALL = 0.1  # seconds of our own CPU time
PATIENCE = 120.0  # for one turn: only a hang takes as long
GROWTH = 100 << 20
BODY_BYTES = 12 << 20  # of a stream
DISABLED = ("bash", "job_output", "job_kill", "fetch", "ls", "glob", "grep")
Events = list[dict[str, Any]]
APIS: dict[str, type[ProviderClient]] = {
    "openai": OpenAIProvider,
    "anthropic": AnthropicProvider,
    "responses": ResponsesProvider,
    "gemini": GeminiProvider,
}


# Drawing a stream -------------------------------------------------------------------------------


@dataclass
class Stream:
    """The bytes of an answer, how they are cut, and how the connection ends."""

    data: bytes
    cuts: list[int]
    end: str  # "eof", "reset" or "silence"
    notes: list[str] = field(default_factory=list)


class Draw:
    """Draws streams. The same seed draws the same stream."""

    def __init__(self, seed: str, scale: float = 1.0) -> None:
        self.random = random.Random(seed)
        self.notes: list[str] = []
        # Of what is large: most streams are small, so that there can be many of them.
        self._scale = scale if self.random.random() < 0.06 else scale / 50

    def stream(self, api: str) -> Stream:
        pick = self.random.random()
        if pick < 0.06:
            body = self._document(api)
        else:
            ordinary: dict[str, Callable[[], Events]] = {
                "openai": self._openai,
                "anthropic": self._anthropic,
                "responses": self._responses,
                "gemini": self._gemini,
            }
            events = ordinary[api]()
            for _ in range(self.random.choice((0, 1, 1, 2, 3, 5))):
                self.random.choice(self._changes())(events)
            body = self._sse(events, named=api in ("anthropic", "responses"))
        for _ in range(self.random.choice((0, 0, 0, 1, 2))):
            body = self.random.choice(self._spoilers())(body)
        return self._http(body)

    # Ordinary answers

    def _text(self) -> str:
        return self.random.choice(("hi", "two\nlines", "\u4e00\U0001f600", "", "a " * 200))

    def _call(self) -> tuple[str, str]:
        name = self.random.choice(("view", "write", "edit", "multiedit", "todos", "no_such_tool"))
        arguments: Any = self.random.choice(
            (
                {"file_path": "a.txt"},
                {"file_path": "new/b.txt", "content": self._odd()},
                {"file_path": "a.txt", "old_string": "a", "new_string": self._odd()},
                {"file_path": "a.txt", "edits": [{"old_string": "x", "new_string": "y"}]},
                {"todos": [{"content": "x", "status": "pending", "active_form": "y"}]},
                self._odd(),
            )
        )
        return name, json.dumps(arguments)

    def _usage(self) -> dict[str, Any]:
        count = self.random.choice((0, 5, 10**6, 10**12, 10**30, -1, 1e308, None, "7"))
        return {
            "prompt_tokens": count,
            "completion_tokens": self.random.choice((1, count)),
            "promptTokenCount": count,
            "candidatesTokenCount": self.random.choice((1, count)),
            "cachedContentTokenCount": self.random.choice((0, count)),
            "input_tokens_details": {"cached_tokens": self.random.choice((0, count))},
            "input_tokens": count,
            "output_tokens": self.random.choice((1, count)),
            "cache_read_input_tokens": self.random.choice((0, count)),
            "prompt_tokens_details": {"cached_tokens": self.random.choice((0, count))},
        }

    def _openai(self) -> Events:
        def chunk(delta: Any, reason: Any = None, **more: Any) -> dict[str, Any]:
            return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}], **more}

        events = [chunk({"role": "assistant", "content": ""})]
        events += [chunk({"reasoning_content": self._text()})] * self.random.randrange(3)
        events += [chunk({"content": self._text()}) for _ in range(self.random.randrange(4))]
        for index in range(self.random.choice((0, 0, 1, 2, 5))):
            name, arguments = self._call()
            half = len(arguments) // 2
            head = {"index": index, "id": f"call_{index}", "type": "function"}
            first = {**head, "function": {"name": name, "arguments": arguments[:half]}}
            events.append(chunk({"tool_calls": [first]}))
            rest = {"index": index, "function": {"arguments": arguments[half:]}}
            events.append(chunk({"tool_calls": [rest]}))
        events.append(chunk({}, self.random.choice(("stop", "tool_calls", "length", "odd"))))
        events.append({"choices": [], "usage": self._usage()})
        return events

    def _anthropic(self) -> Events:
        start = {"id": "msg", "usage": self._usage()}
        events: Events = [{"type": "message_start", "message": start}, {"type": "ping"}]
        blocks: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
        for _ in range(self.random.randrange(3)):
            thought = [{"thinking": self._text()}, {"signature": "c2ln"}]
            blocks.append(({"type": "thinking", "thinking": ""}, thought))
        if self.random.random() < 0.1:
            blocks.append(({"type": "redacted_thinking", "data": "xyz"}, []))
        blocks.append(({"type": "text", "text": ""}, [{"text": self._text()}] * 3))
        for number in range(self.random.choice((0, 0, 1, 2, 5))):
            name, arguments = self._call()
            half = len(arguments) // 2
            block = {"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": {}}
            parts = [{"partial_json": arguments[:half]}, {"partial_json": arguments[half:]}]
            blocks.append((block, parts))
        for index, (block, deltas) in enumerate(blocks):
            place = {"index": index}
            events.append({"type": "content_block_start", **place, "content_block": block})
            events += [{"type": "content_block_delta", **place, "delta": d} for d in deltas]
            events.append({"type": "content_block_stop", **place})
        reason = self.random.choice(("end_turn", "tool_use", "max_tokens", "refusal"))
        stop = {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": self._usage()}
        return [*events, stop, {"type": "message_stop"}]

    def _responses(self) -> Events:
        items: list[tuple[dict[str, Any], list[tuple[str, str]]]] = []
        for number in range(self.random.randrange(3)):
            summary = [{"type": "summary_text", "text": self._text()}]
            item = {"type": "reasoning", "id": f"rs_{number}", "summary": summary}
            text = ("reasoning_summary_text", self._text())
            items.append(({**item, "encrypted_content": "sealed"}, [text]))
        part = {"type": "output_text", "text": self._text()}
        message = {"type": "message", "id": "msg_1", "content": [part]}
        items.append((message, [("output_text", self._text())] * self.random.randrange(4)))
        for number in range(self.random.choice((0, 0, 1, 2, 5))):
            name, arguments = self._call()
            call = {"type": "function_call", "call_id": f"call_{number}", "name": name}
            half = len(arguments) // 2
            pieces = [arguments[:half], arguments[half:]] if self.random.random() < 0.8 else []
            deltas = [("function_call_arguments", piece) for piece in pieces]
            items.append(({**call, "arguments": arguments}, deltas))
        events: Events = [{"type": "response.created", "response": {"status": "in_progress"}}]
        for index, (item, deltas) in enumerate(items):
            place = {"output_index": index}
            events.append({"type": "response.output_item.added", **place, "item": item})
            events += [{"type": f"response.{k}.delta", **place, "delta": d} for k, d in deltas]
            events.append({"type": "response.output_item.done", **place, "item": item})
        status = self.random.choice(("completed", "completed", "incomplete", "failed"))
        end = {"status": status, "usage": self._usage(), "incomplete_details": {"reason": "odd"}}
        return [*events, {"type": f"response.{status}", "response": end}]

    def _gemini(self) -> Events:
        def chunk(*parts: Any, **more: Any) -> dict[str, Any]:
            candidate = {"content": {"parts": list(parts), "role": "model"}, "index": 0}
            return {"candidates": [{**candidate, **more}], "usageMetadata": self._usage()}

        thought = {"text": self._text(), "thought": True}
        events = [chunk(thought) for _ in range(self.random.randrange(3))]
        events += [chunk({"text": self._text()}) for _ in range(self.random.randrange(4))]
        for _ in range(self.random.choice((0, 0, 1, 2, 5))):
            name, arguments = self._call()
            call = {"name": name, "args": json.loads(arguments)}
            events.append(chunk({"functionCall": call, "thoughtSignature": "c2ln"}))
        reason = self.random.choice(("STOP", "STOP", "MAX_TOKENS", "SAFETY", "ODD"))
        return [*events, chunk({"text": ""}, finishReason=reason)]

    def _document(self, api: str) -> bytes:
        name, arguments = self._call()
        call = {"id": "1", "function": {"name": name, "arguments": arguments}}
        block = {"type": "tool_use", "id": "1", "name": name, "input": self._odd()}
        whole: Any = {"content": [{"type": "text", "text": "hi"}, block], "stop_reason": "end_turn"}
        if api == "openai":
            whole = {"choices": [{"message": {"content": "hi", "tool_calls": [call]}}]}
        elif api == "responses":
            item = {"type": "function_call", "name": name, "arguments": arguments}
            whole = {"output": [item, {"type": "message", "content": [{"text": "hi"}]}]}
        elif api == "gemini":
            part = {"functionCall": {"name": name, "args": self._odd()}}
            whole = [{"candidates": [{"content": {"parts": [part]}, "finishReason": "STOP"}]}]
        documents: tuple[Any, ...] = (
            whole,
            {"error": self._odd()},
            {"error": {"message": self._odd()}},
            [],
            5,
        )
        value: Any = self.random.choice(documents)
        page = b"<html><script>" + b"<p>x" * self.random.choice((1, 20_000))
        return page if self.random.random() < 0.2 else json.dumps(value).encode()

    # Changes of the structure

    def _changes(self) -> tuple[Callable[[Events], None], ...]:
        return (
            *(self._change_value,) * 6,
            *(self._drop, self._double, self._swap, self._drop_key, self._add_key),
            *(self._many_calls, self._many_deltas, self._huge_delta, self._renumber, self._deep),
        )

    def _odd(self) -> Any:
        big = int(100_000 * self._scale)
        deep: Any = 1
        for _ in range(self.random.choice((3, 100, 800))):
            deep = [deep] if self.random.random() < 0.5 else {"a": deep}
        odd: tuple[Callable[[], Any], ...] = (
            *(lambda: None, lambda: True, lambda: -1, lambda: 0, lambda: "", dict, list),
            *(lambda: 1e308, lambda: float("nan"), lambda: float("-inf"), lambda: 10**30),
            *(lambda: 2**63, lambda: 0.5, lambda: "text", lambda: ["a", 1], lambda: {"a": []}),
            *(lambda: "half \ud800", lambda: "\udc00", lambda: "\x00\x1b\u202e", lambda: "{}"),
            *(lambda: deep, lambda: "x" * big, lambda: [[]] * (big // 10), lambda: [{}] * 3000),
            lambda: {str(n): n for n in range(big // 100)},
        )
        return self.random.choice(odd)()

    def _places(self, value: Any) -> Iterator[tuple[Any, Any]]:
        """Every container with one of its keys or indices, a few levels deep."""
        todo = [(value, 0)]
        while todo:
            found, depth = todo.pop()
            keys: Any = found.keys() if isinstance(found, dict) else range(len(found))
            for key in list(keys)[:20]:
                yield found, key
                if isinstance(found[key], dict | list) and depth < 6:
                    todo.append((found[key], depth + 1))

    def _place(self, events: Events) -> tuple[Any, Any] | None:
        places = list(self._places(events))
        return self.random.choice(places) if places else None

    def _change_value(self, events: Events) -> None:
        if (place := self._place(events)) is not None:
            place[0][place[1]] = self._odd()
            self.notes.append(f"changed {place[1]}")

    def _drop_key(self, events: Events) -> None:
        if (place := self._place(events)) is not None:
            del place[0][place[1]]
            self.notes.append(f"dropped {place[1]}")

    def _add_key(self, events: Events) -> None:
        if (place := self._place(events)) is not None and isinstance(place[0], dict):
            name = self.random.choice(("error", "type", "index", "usage", "tool_calls", "refusal"))
            place[0][name] = self._odd()
            self.notes.append(f"added {name}")

    def _drop(self, events: Events) -> None:
        if events:
            events.pop(self.random.randrange(len(events)))

    def _double(self, events: Events) -> None:
        if events:
            at = self.random.randrange(len(events))
            copy = json.loads(json.dumps(events[at]))
            events[at:at] = [copy] * self.random.choice((1, 3, 50))

    def _swap(self, events: Events) -> None:
        self.random.shuffle(events) if self.random.random() < 0.3 else events.reverse()

    def _many_calls(self, events: Events) -> None:
        count = self.random.choice((3, 20, 130, int(3000 * self._scale)))
        together, named = self.random.random() < 0.5, self.random.random() < 0.7
        calls = []
        for n in range(count):
            call: dict[str, Any] = {"function": {"name": "todos", "arguments": "{}"}}
            if named:
                call |= {"index": self.random.choice((n, 0, 10**9, n)), "id": f"c{n}"}
            calls.append(call)
        lists = [calls] if together else [[call] for call in calls]
        added: Events = [{"choices": [{"delta": {"tool_calls": part}}]} for part in lists]
        for n in range(count if not together else 0):
            block = {"type": "tool_use", "id": f"t{n}", "name": "todos"}
            added.append({"type": "content_block_start", "index": 1000 + n, "content_block": block})
        for n in range(count if not together else 0):
            item = {"type": "function_call", "name": "todos"}
            added.append({"type": "response.output_item.added", "output_index": n, "item": item})
        parts = [{"functionCall": {"name": "todos"}, "thoughtSignature": "s"}] * count
        added.append({"candidates": [{"content": {"parts": parts}}]})
        at = self.random.randrange(len(events) + 1)
        events[at:at] = added
        self.notes.append(f"{count} calls")

    def _many_deltas(self, events: Events) -> None:
        count = int(self.random.choice((100, 2000, 20_000)) * self._scale) or 1
        delta = self.random.choice(({"content": "x"}, {"reasoning": "y"}, {}, {"content": ""}))
        kinds = {"text": "z", "thinking": "z", "partial_json": "{}", "signature": "q"}
        block = {"type": "content_block_delta", "index": self.random.randrange(4), "delta": kinds}
        grown = {"type": "response.output_text.delta", "output_index": 0, "delta": "z"}
        parts = [{"text": "z", **self.random.choice(({}, {"thoughtSignature": "s"}))}]
        event = self.random.choice(
            (
                *({"choices": [{"delta": delta}]}, block, {"type": "ping"}, grown),
                {"candidates": [{"content": {"parts": parts}}]},
            )
        )
        at = self.random.randrange(len(events) + 1)
        events[at:at] = [event] * count
        self.notes.append(f"{count} deltas")

    def _huge_delta(self, events: Events) -> None:
        size = int(self.random.choice((10**5, 10**6, 5 * 10**6)) * self._scale)
        char = self.random.choice(("x", "\n", "\u4e00", "\U0001f600", "\x01", '"', "{", "[],"))
        field_ = self.random.choice(("content", "reasoning", "tool_calls"))
        text = (char * size)[:size]
        call = {"index": 0, "id": "big", "function": {"name": "write", "arguments": text}}
        delta = {field_: [call] if field_ == "tool_calls" else text}
        kinds = {"text": text, "thinking": text, "partial_json": text}
        block = {"type": "content_block_delta", "index": self.random.randrange(3), "delta": kinds}
        kind = self.random.choice(("output_text", "function_call_arguments"))
        sealed = {"type": "reasoning", "encrypted_content": text, "summary": [{"text": text}]}
        named = self.random.choice(("text", "thoughtSignature"))
        huge = (
            *({"choices": [{"delta": delta}]}, block),
            {"type": f"response.{kind}.delta", "output_index": 0, "delta": text},
            {"type": "response.output_item.done", "output_index": 0, "item": sealed},
            {"candidates": [{"content": {"parts": [{named: text}]}}]},
        )
        at = self.random.randrange(len(events) + 1)
        events[at:at] = [self.random.choice(huge)]
        self.notes.append(f"{field_} of {size} {char!r}")

    def _renumber(self, events: Events) -> None:
        value = self.random.choice((0, 1, 10**9, 10**30, -1, None, "0", 1.0, 0.5))
        for container, key in list(self._places(events)):
            if key in ("index", "output_index") and self.random.random() < 0.7:
                container[key] = value

    def _deep(self, events: Events) -> None:
        depth = self.random.choice((200, 900))
        deep: Any = "x"
        for _ in range(depth):
            deep = {"message": deep} if self.random.random() < 0.5 else [deep]
        events.append(self.random.choice(({"error": deep}, {"choices": deep}, {"delta": deep})))

    # Bytes

    def _sse(self, events: Events, *, named: bool) -> bytes:
        end = self.random.choice(("\n", "\n", "\n", "\r\n", "\r"))
        lines: list[str] = []
        size = 0
        for event in events:
            kind = event.get("type") if named and isinstance(event, dict) else None
            if isinstance(kind, str) and kind.replace(".", "").isidentifier():
                lines.append(f"event: {kind}")
            lines += [f"data: {json.dumps(event)}", ""]
            size += len(lines[-2])
            if size > BODY_BYTES:
                break
        if self.random.random() < 0.8:
            lines += ["data: [DONE]", ""]
        return end.join([*lines, ""]).encode("utf-8", "replace")

    def _spoilers(self) -> tuple[Callable[[bytes], bytes], ...]:
        count = int(self.random.choice((10, 20_000)) * self._scale)
        long = int(5_000_000 * self._scale)
        return (
            lambda body: body[: self.random.randrange(len(body) + 1)],
            lambda body: self._insert(body, os_bytes(self.random, 20)),
            lambda body: self._insert(body, b"\xff\xfe\xc3\x28"),
            lambda body: self._insert(body, b": keep-alive\n\n" * count),
            lambda body: self._insert(body, b"\n" * count * 10),
            lambda body: self._insert(body, b"data: " + b"x" * long),
            lambda body: self._insert(body, b"data:\n" * count),
            lambda body: b"\xef\xbb\xbf" + body,
            lambda body: body.replace(b"\n\n", b"\n", 1),
            lambda body: body.replace(b"data: ", b"data:"),
            lambda body: self._insert(body, b"retry: 1\nid: \x00\nevent: error\n\n"),
            lambda body: body[::-1],
        )

    def _insert(self, body: bytes, piece: bytes) -> bytes:
        at = self.random.randrange(len(body) + 1)
        self.notes.append(f"{len(piece)} bytes inserted")
        return body[:at] + piece + body[at:]

    # HTTP

    def _http(self, body: bytes) -> Stream:
        draw = self.random
        status = draw.choice(
            ("200 OK",) * 12 + ("400 Bad", "429 Slow", "500 No", "302 Go", "204 -")
        )
        headers = [b"HTTP/1.1 " + status.encode(), b"Content-Type: text/event-stream"]
        if draw.random() < 0.05:
            headers.append(b"X: " + b"y" * draw.choice((10, 70_000)))
        if draw.random() < 0.05:
            headers.append(draw.choice((b"Content-Encoding: gzip", b"Retry-After: nan", b"bad")))
        framing = draw.choice(("close", "close", "length", "chunked", "chunked"))
        if framing == "length":
            length = len(body) + draw.choice((0, 0, 0, 5, -1))
            headers.append(b"Content-Length: %d" % length)
        elif framing == "chunked":
            headers.append(b"Transfer-Encoding: chunked")
            body = self._chunked(body)
        data = b"\r\n".join([*headers, b"", body])
        if draw.random() < 0.03:
            data = b"HTTP/1.1 100 Continue\r\n\r\n" * draw.choice((1, 1000)) + data
        if draw.random() < 0.03:
            data = os_bytes(draw, 100) + data
        size = draw.choice((1, 7, 1000, 65_536, 65_536, 262_144))
        size = max(size, len(data) // 2000)
        end = draw.choice(("eof",) * 8 + ("reset", "silence"))
        return Stream(data, [size], end, self.notes)

    def _chunked(self, body: bytes) -> bytes:
        size = self.random.choice((1, 10, 1000, 100_000)) if len(body) < 200_000 else 10_000
        parts = [body[at : at + size] for at in range(0, len(body), size)]
        framed = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
        return framed + self.random.choice((b"0\r\n\r\n",) * 9 + (b"",))


def os_bytes(draw: random.Random, count: int) -> bytes:
    return bytes(draw.randrange(256) for _ in range(count))


# The coder under test ---------------------------------------------------------------------------


class HastyClock(SystemClock):
    """Real time, without the pauses before retries."""

    async def sleep(self, delay: float) -> None:
        await asyncio.sleep(0)


class Watch(logging.Handler):
    """Errors in the log, and steps of the loop that take too long."""

    def __init__(self, stall: float | None) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []
        self.longest = 0.0
        self.active = False  # a stream is played
        self._stall = stall
        self._last = (time.monotonic(), time.process_time())

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info or record.levelno >= logging.ERROR:
            self.found.append(f"logged: {self.format(record)}")

    async def tick(self) -> None:
        while True:
            await asyncio.sleep(0.01)
            self.look()

    def begin(self) -> None:
        self.active = True
        self._last = (time.monotonic(), time.process_time())

    def sample(self) -> None:
        """Print where the loop is whenever it takes long; runs in a thread."""
        main = threading.main_thread().ident or 0
        while True:
            time.sleep(0.02)
            if self.active and time.monotonic() - self._last[0] > 0.06:
                print("".join(traceback.format_stack(sys._current_frames()[main])[-4:]))

    def look(self) -> None:
        before, self._last = self._last, (time.monotonic(), time.process_time())
        if not self.active:
            return
        late = self._last[0] - before[0] - 0.01
        own = min(late, self._last[1] - before[1])  # other processes of this machine do not count
        self.longest = max(self.longest, own)
        if self._stall is not None and own > self._stall:
            self.found.append(f"the loop stood still for {own * 1000:.0f} ms")


class Server:
    """Plays one stream to each connection, then ordinary answers."""

    def __init__(self) -> None:
        self.streams: list[Stream] = []
        self.tasks: set[asyncio.Task[None]] = set()

    async def connect(self, factory: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        opened = MemoryTransport(factory())
        opened.connect()
        task = asyncio.create_task(self._play(opened))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return opened

    async def _play(self, opened: MemoryTransport) -> None:
        while not opened.written and not opened.is_closing():
            await asyncio.sleep(0)
        stream = self.streams.pop(0) if self.streams else PLAIN
        size = stream.cuts[0]
        for at in range(0, len(stream.data), size):
            while opened.reading_paused and not opened.is_closing():
                await asyncio.sleep(0)
            if opened.is_closing():
                return
            opened.feed(stream.data[at : at + size])
            await asyncio.sleep(0)
        if stream.end == "eof":
            opened.feed_eof()
        elif stream.end == "reset":
            opened.lose(ConnectionResetError("reset"))


PLAIN = Stream(
    b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
    b'data: {"choices":[{"delta":{"content":"done"},"finish_reason":"stop"}]}\n\n'
    b'data: {"candidates":[{"content":{"parts":[{"text":"done"}]},"finishReason":"STOP"}]}\n\n'
    b'data: {"type":"response.completed","response":{}}\n\n'
    b'data: {"type":"message_start","message":{}}\n\n'
    b'data: {"type":"message_delta","delta":{"stop_reason":"end_turn"}}\n\n'
    b'data: {"type":"message_stop"}\n\n',
    [1 << 20],
    "eof",
)


class Fuzz:
    """A daemon with a coder for each API, and what was found."""

    def __init__(self, seed: int, *, stall: float | None = STALL, scale: float = 1.0) -> None:
        self.seed = seed
        self.watch = Watch(stall)
        self.outcomes: Counter[str] = Counter()
        self.failures: list[str] = []
        self.slowest = (0.0, 0)  # seconds and number of a turn
        self._scale = scale
        self._server = Server()
        self._clients: dict[str, Participant] = {}

    async def run(self, numbers: range, *, tell: bool = False) -> None:
        for name in ("crushlite", "asyncio"):
            logging.getLogger(name).addHandler(self.watch)
        reply._DRAIN_SECONDS = transport._ERROR_SECONDS = 0.1
        try:
            await self._streams(numbers, tell=tell)
        finally:
            for name in ("crushlite", "asyncio"):
                logging.getLogger(name).removeHandler(self.watch)

    async def _streams(self, numbers: range, *, tell: bool) -> None:
        async with LocalDaemon(self._agent) as daemon:
            for api in APIS:
                folder = daemon.root / api
                folder.mkdir()
                (folder / "a.txt").write_text("a\nb\n")
                client = await daemon.create(folder, yolo=True)
                await self._watchers(daemon, client)
                self._clients[api] = client
            ticker = asyncio.create_task(self.watch.tick())
            if tell:
                threading.Thread(target=self.watch.sample, daemon=True).start()
            settled = 0
            for number in numbers:
                await self._turn(number, tell=tell)
                if number - numbers[0] == min(200, len(numbers) // 2):
                    settled = resident()
            ticker.cancel()
            grown = resident() - settled
            if grown > GROWTH and self._scale == 1.0:
                self.failures.append(f"memory grew by {grown >> 20} MiB after the first streams")

    def _agent(self, path: Path, env: Mapping[str, str], config: Any) -> CoderAgent:
        clock = HastyClock()
        limits = Timeouts(connect=5.0, first_byte=0.1, idle=0.1)
        provider = APIS[path.name](
            "http://model/v1", "key-of-the-user", clock=clock, timeouts=limits
        )
        provider._transport.endpoint.connect = self._server.connect  # type: ignore[method-assign]
        model = Model(id="m", context_window=10**9, cost_per_1m_in=3.0, cost_per_1m_out=15.0)
        served = ServedModel(provider, model, SelectedModel("m", "p"))
        small = ServedModel(_Silent(), model, SelectedModel("m", "p"))
        tools = all_tools(DISABLED, clock=clock)
        return CoderAgent(
            context=ToolContext(path, env),
            large=served,
            small=small,
            tools=tools,
            options=CoderOptions(),
            clock=clock,
        )

    async def _watchers(self, daemon: LocalDaemon, client: Participant) -> None:
        """Two streams of events that are read and thrown away."""
        for extra in ("", "&resume=1"):
            attached = asyncio.Event()
            target = f"{client.base}/events?client_id={client.id}{extra}"
            task = asyncio.create_task(self._drain(str(daemon.socket), target, attached))
            self._server.tasks.add(task)
            await attached.wait()

    async def _drain(self, socket: str, target: str, attached: asyncio.Event) -> None:
        """Read a stream, and attach again when it ends: a slow reader loses its stream."""
        while True:
            try:
                reader, writer = await asyncio.open_unix_connection(socket)
            except OSError:
                return  # the daemon has left
            writer.write(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            await reader.readline()
            attached.set()
            while await reader.read(1 << 16):
                pass
            writer.close()

    async def _turn(self, number: int, *, tell: bool) -> None:
        draw = Draw(f"{self.seed}:{number}", self._scale)
        api = draw.random.choice(list(APIS))
        # A collection in here could end something of the daemon with an exception, whose traceback
        # then holds the frames of the drawing, and their megabytes with them.
        gc.disable()
        streams = [draw.stream(api) for _ in range(draw.random.choice((1, 1, 2, 4)))]
        gc.enable()
        notes = "; ".join(note for stream in streams for note in stream.notes)
        sizes, begin = [len(stream.data) for stream in streams], streams[0].data[:3000]
        self.watch.begin()  # drawing is no step of the daemon
        before = len(self.watch.found)
        self._server.streams = streams
        client = self._clients[api]
        outcome, began = "none", time.monotonic()
        try:
            async with asyncio.timeout(PATIENCE):
                session = await client.session()
                accepted = await client.prompt(session, "hello")
                outcome = await self._outcome(client, accepted.json["run_id"])
                await client.call("DELETE", f"/sessions/{session}")
        except TimeoutError:
            pass
        self.watch.active = False
        streams.clear()  # what was not asked for is not the daemon's memory
        self.slowest = max(self.slowest, (time.monotonic() - began, number))
        self.outcomes[outcome] += 1
        problems = self.watch.found[before:]
        if outcome not in ("completed", "failed"):
            problems.append(f"the outcome is {outcome!r}")
        self.failures += [f"stream {number} {sizes} ({notes}): {p}" for p in problems]
        if tell:
            print(f"{outcome}; {sizes} bytes; {notes}")
            print(begin)

    async def _outcome(self, client: Participant, run_id: str) -> str:
        while True:
            ended = await client.call("GET", f"/runs/{run_id}?wait=5")
            if found := ended.json.get("outcome"):
                return str(found)


class _Silent:
    """The model that writes titles: none is wanted."""

    async def stream(self, request: Any) -> Any:
        from crushlite.coder.providers.base import ModelStop, Text

        yield Text("title")
        yield ModelStop("end_turn")

    async def aclose(self) -> None:
        pass


def resident() -> int:
    """The memory that this process has now, in bytes, without what is free and kept by malloc."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--first", type=int, default=0, help="number of the first stream")
    parser.add_argument("--only", type=int, default=None, help="play this stream alone")
    options = parser.parse_args()
    numbers = range(options.first, options.first + options.streams)
    if options.only is not None:
        numbers = range(options.only, options.only + 1)
    fuzz = Fuzz(options.seed)
    began, memory = time.monotonic(), resident()
    gc.freeze()  # as the daemon does in a process of its own
    asyncio.run(fuzz.run(numbers, tell=options.only is not None))
    for failure in fuzz.failures[:20]:
        print(f"FAILED --seed {options.seed}: {failure}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(
        f"seed {options.seed}: {len(numbers)} streams in {time.monotonic() - began:.0f} s, "
        f"outcomes {dict(fuzz.outcomes)}, longest step {fuzz.watch.longest * 1000:.0f} ms, "
        f"slowest turn {fuzz.slowest[0]:.1f} s (stream {fuzz.slowest[1]}), "
        f"memory {memory >> 20} MiB at first, {resident() >> 20} at the end, {peak} at most, "
        f"{len(fuzz.failures)} failures"
    )
    return 1 if fuzz.failures else 0


if __name__ == "__main__":
    sys.exit(main())
