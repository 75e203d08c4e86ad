"""Chat completions: what OpenAI defined and nearly every model server speaks, each a little apart.

The request is the plain dialect that all of them take. Where one server refuses a field that
another needs, its complaint names the field: the request is made again without it, and the
provider remembers. The answer is read generously, since the servers differ most there, but never
guessed: what cannot be understood is a ProviderError.

Reading, in short:

- An answer is complete at a finish_reason or at [DONE]. A stream that ends before both is broken.
- The parts of a tool call are put together by index, else by id, else by order; calls get their
  index by appearance, and an id if the server gave none.
- Reasoning comes in one of four fields; it is streamed, and not sent back unless asked for.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..proxies import NO_PROXIES
from .base import CallPiece, ModelStop, Piece, ProviderError, Text, Thought, Tokens
from .transport import (
    MODELS_SECONDS,
    WHOLE,
    Mender,
    Timeouts,
    Transport,
    count,
    decoded,
    malformed,
    model_ids,
    refusal,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Mapping

    from ...clock import Clock
    from ...http.sse import SSEEvent
    from ..proxies import Proxies
    from .base import ChatMessage, Image, ModelRequest

# One try for each field that a server may refuse, and the last.
_TRIES = 4

_REASONS = {
    "stop": "end_turn",
    "eos": "end_turn",
    "eos_token": "end_turn",
    "end_turn": "end_turn",
    "stop_sequence": "end_turn",
    "length": "max_tokens",
    "max_tokens": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "tool_use": "tool_use",
    "content_filter": "content_filter",
    "refusal": "content_filter",
    "safety": "content_filter",
}
# Servers that can no longer answer with a status say so here.
_FAILURES = frozenset({"error", "network_error", "insufficient_system_resource"})


@dataclass(frozen=True, slots=True)
class OpenAIOptions:
    """How a server differs. `completion_tokens`: the limit is called max_completion_tokens (None:
    at OpenAI and Azure). `return_thinking`: reasoning goes back with the history, as
    reasoning_content."""

    completion_tokens: bool | None = None
    return_thinking: bool = False
    timeouts: Timeouts = field(default_factory=Timeouts)


class OpenAIProvider:
    """A server that speaks `POST {base_url}/chat/completions`.

    Raises ProviderError at once for a base URL or header that can never work. Configured headers
    and body fields win over our own of the same name.
    """

    def __init__(  # noqa: PLR0913 - what a configuration says of a provider, by keyword
        self,
        base_url: str,
        api_key: str = "",
        *,
        extra_headers: Mapping[str, str] | Iterable[tuple[str, str]] = (),
        extra_body: Mapping[str, Any] | None = None,
        options: OpenAIOptions | None = None,
        clock: Clock,
        proxies: Proxies = NO_PROXIES,
    ) -> None:
        options = options or OpenAIOptions()
        key = api_key.strip().removeprefix("Bearer ")
        self._transport = Transport(
            base_url,
            headers=[("Authorization", f"Bearer {key}")] if key else [],
            extra_headers=dict(extra_headers).items(),
            clock=clock,
            timeouts=options.timeouts,
            proxies=proxies,
        )
        self._extra_body = dict(extra_body or {})
        # What this server takes, as far as is known; see `_adapt`.
        self._stream_options = True
        self._completion_tokens = options.completion_tokens
        if self._completion_tokens is None:
            host = self._transport.endpoint.host
            self._completion_tokens = host.endswith((".openai.com", ".openai.azure.com"))
        self._return_thinking = options.return_thinking

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Piece, None]:
        for left in reversed(range(_TRIES)):
            body = self._body(request)
            decoder = _Decoder()
            try:
                async with self._transport.post("/chat/completions", body) as reply:
                    async for event in reply:
                        for piece in decoder.feed(event):
                            yield piece
                        if decoder.done:
                            break
                        if decoder.finished:
                            reply.hurry()
                    rest = decoder.end()
                    await reply.drain()
            except ProviderError as error:
                if left and not decoder.begun and self._adapt(error, body):
                    continue
                raise
            # Outside of the block: the connection is free again even if nobody reads on.
            for piece in rest:
                yield piece
            return

    async def list_models(self, timeout: float = MODELS_SECONDS) -> list[str]:
        """The ids of the models the server offers, in its order; the answer must be here within
        `timeout` seconds."""
        return await self._transport.get("/models", model_ids, timeout=timeout)

    async def aclose(self) -> None:
        await self._transport.aclose()

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        messages = _messages(request, return_thinking=self._return_thinking)
        body: dict[str, Any] = {"model": request.model, "messages": messages, "stream": True}
        if self._stream_options:
            body["stream_options"] = {"include_usage": True}
        if request.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "function": {
                        "name": tool.name,
                        "description": tool.description,
                        "parameters": tool.parameters,
                    },
                }
                for tool in request.tools
            ]
        if request.max_tokens > 0:
            body[_limit_name(self._completion_tokens)] = request.max_tokens
        for name in ("temperature", "top_p"):
            if (value := getattr(request, name)) is not None:
                body[name] = value
        if request.reasoning_effort:
            body["reasoning_effort"] = request.reasoning_effort
        body |= self._extra_body
        if not body["stream"]:
            body.pop("stream_options", None)
        return body

    def _adapt(self, error: ProviderError, body: dict[str, Any]) -> bool:
        """Learn from a refusal that names a field; whether another try is worth it. What was sent
        counts, not what is known: another request may have learned the same meanwhile."""
        if error.upstream_status not in (400, 422):
            return False
        words = str(error)
        if "stream_options" in words and "stream_options" in body:
            self._stream_options = False
        elif "max_completion_tokens" in words and "max_tokens" in body:
            self._completion_tokens = True
        elif "max_completion_tokens" in words and "max_completion_tokens" in body:
            self._completion_tokens = False
        elif "reasoning_content" in words and not self._return_thinking:
            self._return_thinking = True
        else:
            return False
        return True


def _limit_name(completion_tokens: bool | None) -> str:
    return "max_completion_tokens" if completion_tokens else "max_tokens"


# Writing the history.


def _messages(request: ModelRequest, *, return_thinking: bool) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if request.system:
        found.append({"role": "system", "content": request.system})
    shown: list[Image] = []  # by tools; a tool message holds text only, so they follow its group
    for message in request.messages:
        if message.role != "tool" and shown:
            found.append(_showing(shown))
            shown = []
        if message.role == "tool":
            result = {"role": "tool", "tool_call_id": message.tool_call_id, "content": message.text}
            found.append(result)
            shown += message.images
        elif message.role == "assistant":
            found.append(_assistant(message, return_thinking=return_thinking))
        else:
            found.append({"role": "user", "content": _content(message.text, message.images)})
    if shown:
        found.append(_showing(shown))
    return found


def _showing(images: list[Image]) -> dict[str, Any]:
    return {"role": "user", "content": _content("The images of the tool results above:", images)}


def _content(text: str, images: list[Image]) -> str | list[dict[str, Any]]:
    if not images:
        return text
    parts: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
    for image in images:
        url = f"data:{image.mime_type};base64,{image.data}"
        parts.append({"type": "image_url", "image_url": {"url": url}})
    return parts


def _assistant(message: ChatMessage, *, return_thinking: bool) -> dict[str, Any]:
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": call.input or "{}"},
        }
        for call in message.tool_calls
    ]
    # Null is right only beside calls; some servers refuse an empty text there.
    found: dict[str, Any] = {"role": "assistant", "content": message.text or None}
    if calls:
        found["tool_calls"] = calls
    elif not message.text:
        found["content"] = ""
    if return_thinking and message.thinking:
        found["reasoning_content"] = message.thinking
    return found


# Reading the answer.


class _Call:
    """One tool call, as far as it has come."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.given = ""  # the server's id
        self.id = ""  # the id it goes by, from its first piece on
        self.name = ""
        self.held = ""  # arguments that came before the name
        self.arguments: list[str] = []
        self.mend = Mender()

    @property
    def whole(self) -> bool:
        """Whether the arguments are a JSON document already."""
        try:
            json.loads("".join(self.arguments))
        except (ValueError, RecursionError):
            return False
        return True


class _Calls:
    """The tool calls of an answer, put together from their parts."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def take(self, item: Any) -> list[CallPiece]:
        if not isinstance(item, dict):
            raise malformed(f"a tool call that is no object: {item!r}")
        function = item.get("function") or {}
        index = item.get("index")
        if not isinstance(function, dict) or (index is not None and count(index) is None):
            raise malformed(f"a tool call of a strange shape: {item!r}")
        name, id_ = _string(function.get("name"), "name"), _string(item.get("id"), "id")
        call = self._find(count(index), id_, name)
        call.given = call.given or id_
        call.name = call.name or name
        call.held += _arguments(function.get("arguments"))
        if not call.name:
            return []
        text, call.held = call.mend(call.held), ""
        if text:
            call.arguments.append(text)
        if call.id:
            return [CallPiece(call.number, arguments=text)] if text else []
        call.id = self._free_id(call.given)
        return [CallPiece(call.number, call.id, call.name, text)]

    def end(self) -> list[Piece]:
        """Calls without arguments get empty ones: what is streamed is JSON in the end."""
        if any(not call.name for call in self._calls):
            raise malformed("a tool call without a name")
        return [CallPiece(c.number, arguments="{}") for c in self._calls if not c.arguments]

    def _find(self, index: int | None, id_: str, name: str) -> _Call:
        """The call that a part belongs to; a new one if it begins one."""
        last = self._calls[-1] if self._calls else None
        if index is not None:
            known = self._by_index.get(index)
            # Some servers number every call 0: another id with a name is another call.
            if known is None or (name and id_ and known.given and id_ != known.given):
                known = self._by_index[index] = self._new()
            return known
        if id_:
            return next((c for c in self._calls if c.given == id_), None) or self._new()
        if last is None and not name:
            raise malformed("a part of a tool call that never began")
        # Only the order is left: a name begins a call, unless it repeats that of an open one.
        if last is None or (name and (name != last.name or last.whole)):
            return self._new()
        return last

    def _new(self) -> _Call:
        call = _Call(len(self._calls))
        self._calls.append(call)
        return call

    def _free_id(self, given: str) -> str:
        """The server's id, unless it has none or has given it twice: results are told by it."""
        if given and all(call.id != given for call in self._calls):
            return given
        return f"call_{uuid.uuid4().hex}"


def _string(value: Any, what: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise malformed(f"a tool call whose {what} is no text: {value!r}")
    return value


def _arguments(value: Any) -> str:
    """Text by the book; some servers send the object itself."""
    if isinstance(value, dict | list):
        return json.dumps(value)
    return _string(value, "arguments")


class _Decoder:
    """One answer: events in, pieces out. Knows no time and no connection."""

    def __init__(self) -> None:
        self.begun = False  # something of the answer itself was seen
        self.done = False  # the server said that nothing follows
        self._reason = ""
        self._refused = False
        self._calls = _Calls()
        self._tokens: Tokens | None = None
        self._mend_text = Mender()
        self._mend_thought = Mender()
        self._remark: Any = None  # the last object that was no part of an answer

    @property
    def finished(self) -> bool:
        """The answer is complete; the usage may follow."""
        return bool(self._reason)

    def feed(self, event: SSEEvent) -> list[Piece]:
        data = event.data.strip()
        if not data:
            return []
        if data == "[DONE]":
            self.done = True
            return []
        chunk = decoded(data)
        if not isinstance(chunk, dict):
            raise refusal(chunk) if event.event == WHOLE else malformed(f"no object: {data}")
        named = event.event == "error" or "error" in (chunk.get("object"), chunk.get("type"))
        if chunk.get("error") or named:
            raise refusal(chunk)
        pieces = self._choice(chunk) + self._usage(chunk)
        self.done = self.done or event.event == WHOLE
        return pieces

    def end(self) -> list[Piece]:
        """The stream is over: what remains to be said, with Stop as the last; raises if the
        answer is not complete."""
        if not self.begun:
            if self._remark is not None:
                raise refusal(self._remark)
            raise malformed("no answer at all")
        if not self._reason and not self.done:
            text = "the provider's stream ended before the answer was complete"
            raise ProviderError(text, retryable=True)
        return [*self._calls.end(), ModelStop(self._stop())]

    def _stop(self) -> str:
        reason = _REASONS.get(self._reason.lower(), "unknown")
        if self._refused:
            return "content_filter"
        # Many servers say stop, or nothing, after tool calls; a few say tool_calls without any.
        if self._calls and reason in ("end_turn", "unknown"):
            return "tool_use"
        return "unknown" if reason == "tool_use" and not self._calls else reason

    def _choice(self, chunk: dict[str, Any]) -> list[Piece]:
        choices = chunk.get("choices")
        if not choices:
            # The usage, or what a gateway adds of its own; words are kept for `end`.
            if not isinstance(chunk.get("usage"), dict) and chunk:
                self._remark = chunk
            return []
        if not isinstance(choices, list) or not isinstance(choices[0], dict):
            raise malformed(f"choices of a strange shape: {choices!r}")
        choice = choices[0]
        self.begun = True
        delta = choice.get("delta") or choice.get("message") or {}
        if not isinstance(delta, dict):
            raise malformed(f"a delta that is no object: {delta!r}")
        pieces = self._delta(delta)
        reason = choice.get("finish_reason")
        if reason is not None and not isinstance(reason, str):
            raise malformed(f"a finish_reason that is no text: {reason!r}")
        if reason in _FAILURES:
            raise refusal(choice.get("error") or f"the model stopped with {reason}")
        self._reason = reason or self._reason
        return pieces

    def _delta(self, delta: dict[str, Any]) -> list[Piece]:
        text, thought = _parts(delta.get("content"))
        thought = _reasoning(delta) or thought
        refused = delta.get("refusal")
        if isinstance(refused, str) and refused:
            self._refused = True
            text += refused
        thought, text = self._mend_thought(thought), self._mend_text(text)
        pieces: list[Piece] = [Thought(thought)] if thought else []
        if text:
            pieces.append(Text(text))
        calls = delta.get("tool_calls") or []
        if not isinstance(calls, list):
            raise malformed(f"tool_calls that are no list: {calls!r}")
        if delta.get("function_call"):  # the way it was before there were tools
            calls = [*calls, {"index": 0, "function": delta["function_call"]}]
        for item in calls:
            pieces += self._calls.take(item)
        return pieces

    def _usage(self, chunk: dict[str, Any]) -> list[Piece]:
        usage = chunk.get("usage")
        if usage is None and isinstance(chunk.get("x_groq"), dict):
            usage = chunk["x_groq"].get("usage")
        tokens = _tokens(usage) if isinstance(usage, dict) else None
        if tokens is None or tokens == self._tokens:
            return []
        self._tokens = tokens
        return [tokens]


def _parts(content: Any) -> tuple[str, str]:
    """The text and the reasoning of a content: a string, or a list of parts."""
    if content is None or isinstance(content, str):
        return content or "", ""
    if not isinstance(content, list):
        raise malformed(f"a content of a strange shape: {content!r}")
    text, thought = "", ""
    for part in content:
        if isinstance(part, str):
            text += part
        elif not isinstance(part, dict):
            raise malformed(f"a part of the content of a strange shape: {part!r}")
        elif isinstance(part.get("text"), str):
            text += part["text"]
        elif "thinking" in part:
            thought += "".join(_parts(part["thinking"]))
    return text, thought


def _reasoning(delta: dict[str, Any]) -> str:
    """The first field that holds any: servers that fill two say the same in both."""
    for name in ("reasoning_content", "reasoning", "thinking"):
        value = delta.get(name)
        if isinstance(value, str) and value:
            return value
    details = delta.get("reasoning_details")
    found = ""
    for detail in details if isinstance(details, list) else []:
        text = (detail.get("text") or detail.get("summary")) if isinstance(detail, dict) else None
        found += text if isinstance(text, str) else ""
    return found


def _tokens(usage: dict[str, Any]) -> Tokens | None:
    """A report; None for one that says nothing. Zeros are what a server sends that does not
    count, or has not counted yet."""
    prompt, completion = count(usage.get("prompt_tokens")), count(usage.get("completion_tokens"))
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    read = count(cached if cached is not None else usage.get("prompt_cache_hit_tokens"))
    if not prompt and not completion:
        return None
    if prompt:
        read = min(read, prompt) if read is not None else None
        prompt -= read or 0
        return Tokens(prompt, completion or None, read)
    return Tokens(None, completion or None)
