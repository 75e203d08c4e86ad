"""What the providers of all APIs share: the connection, configured fields, and a second try without
a field that a server refuses."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from typing import TYPE_CHECKING, Any

from ...outbound.proxies import NO_PROXIES
from .base import ProviderError
from .listing import listed_models
from .transport import MODELS_SECONDS, Transport

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Mapping

    from ...clock import Clock
    from ...outbound.proxies import Proxies
    from ...protocol.config import Model
    from .base import ModelRequest, Piece
    from .decoding import Decoder
    from .transport import Timeouts

# One try for each field that a server may refuse, and the last.
_TRIES = 4
_REFUSED = (400, 404, 405, 422)  # statuses of refusals from which something can be learned


class ProviderClient:
    """A server that is asked for answers. Implements base.ModelClient; an API is a subclass.

    Raises ProviderError at once for a base URL or header that can never work. Configured headers
    win over our own of the same name. Of configured fields, `options` and then `extra_body` win
    over our own; an object is merged into ours, unless it has a `type`: then it is another one.
    """

    def __init__(  # noqa: PLR0913 - what a configuration says of a provider, by keyword
        self,
        base_url: str,
        api_key: str = "",
        *,
        extra_headers: Mapping[str, str] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        timeouts: Timeouts | None = None,
        clock: Clock,
        proxies: Proxies = NO_PROXIES,
        own_listener: bool = False,
    ) -> None:
        self._configured = merged(options or {}, extra_body or {})
        self._transport = Transport(
            base_url,
            headers=self._headers(api_key.strip()),
            extra_headers=(extra_headers or {}).items(),
            clock=clock,
            timeouts=timeouts,
            proxies=proxies,
            extra_body=self._configured,
            own_listener=own_listener,
        )

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Piece, None]:
        """See ModelClient."""
        for left in reversed(range(_TRIES)):
            sent: list[dict[str, Any]] = []  # the body, once it is made
            decoder = self._decoder()
            make = functools.partial(self._make, request, sent)
            answer = self._transport.pieces(self._path(request), make, decoder, chars=request.chars)
            try:
                async with contextlib.aclosing(answer):
                    async for piece in answer:
                        yield piece
            except ProviderError as error:
                if not left or not sent or decoder.begun or error.upstream_status not in _REFUSED:
                    raise
                again = self._adapted(error, sent[0], request)
                if again is None:
                    raise
                request = again
                continue
            return

    async def list_models(self, timeout: float = MODELS_SECONDS) -> list[Model]:
        """The models that the server offers, in its order. Raises ProviderError, also if
        the answer is not complete within `timeout` seconds."""
        return await self._transport.get(self._models_path(), listed_models, timeout=timeout)

    async def aclose(self) -> None:
        await self._transport.aclose()

    # What an API defines --------------------------------------------------------------------------

    def _headers(self, key: str) -> Iterable[tuple[str, str]]:
        raise NotImplementedError

    def _path(self, request: ModelRequest) -> str:
        raise NotImplementedError

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        """The body of a request. May be called in a thread."""
        raise NotImplementedError

    def _decoder(self) -> Decoder:
        raise NotImplementedError

    def _adapted(
        self, error: ProviderError, body: dict[str, Any], request: ModelRequest
    ) -> ModelRequest | None:
        """Learn from a refusal that names a field. Return the request to send next; None if another
        try is not worth it. Decide by the body that was sent, not by what is known: another request
        may have learned the same meanwhile."""
        raise NotImplementedError

    def _models_path(self) -> str:
        return "/models"

    def _make(self, request: ModelRequest, sent: list[dict[str, Any]]) -> dict[str, Any]:
        sent.append(self._body(request))
        return sent[0]


def merged(own: Mapping[str, Any], configured: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a body with configured ones, which win. See ProviderClient."""
    found = dict(own)
    for name, value in configured.items():
        known = found.get(name)
        if isinstance(known, dict) and isinstance(value, dict) and "type" not in value:
            found[name] = merged(known, value)
        else:
            found[name] = value
    return found


def without_reasoning(request: ModelRequest) -> ModelRequest | None:
    """The request without the reasoning that earlier answers want back, for a server that does not
    accept it: it is tied to a model and an account, which may have changed. None if there is
    none."""
    if not any(message.signature for message in request.messages):
        return None
    messages = [dataclasses.replace(message, signature="") for message in request.messages]
    return dataclasses.replace(request, messages=messages)
