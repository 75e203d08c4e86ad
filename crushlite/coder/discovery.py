"""Finding models that are not in the configuration.

A provider that is configured without models is asked for its list. If nothing at all is configured,
the usual ports of the usual model servers are tried, on loopback only: a user who has started one
of them wants it to be used. But any user of the machine may listen there, so only a listener of
this user or of root is asked, and this is looked at again for every connection later (see
`listeners`). Another one can be used by naming it in the user's own crush.json. Looking takes a
fraction of a second and never fails a request. Answers are remembered for a minute, missing ones
for a few seconds.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from typing import TYPE_CHECKING, Any

from ..config import Provider
from ..protocol.config import Model
from ..records import dataclass
from .listeners import listener_owners
from .providers.base import ProviderError
from .providers.build import provider_of
from .providers.failures import refusal
from .providers.transport import MODELS_SECONDS, Timeouts, Transport
from .proxies import proxies_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from ..clock import Clock
    from ..config import Config

log = logging.getLogger(__name__)

PROBE_SECONDS = 0.2  # for a server of this machine, and for a list that is not needed now
FOUND_SECONDS = 60.0  # how long a list of models is remembered,
NONE_SECONDS = 5.0  # and how long that there was none

_NO_CHAT = re.compile(r"embed|rerank|whisper|(?:^|[-/_])(?:bge|tts|clip)(?:[-_]|$)", re.I)


@dataclass(frozen=True, slots=True)
class LocalServer:
    """A model server that speaks the OpenAI dialect, and where it is usually found."""

    id: str
    name: str
    port: int

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"


LOCAL_SERVERS = (
    LocalServer("ollama", "Ollama", 11434),
    LocalServer("lmstudio", "LM Studio", 1234),
    LocalServer("llamacpp", "llama.cpp", 8080),
)


class Discovery:
    """Finds models. `local` are the servers to look for on this machine; the first of them that
    answers is taken."""

    def __init__(self, clock: Clock, local: Sequence[LocalServer] = ()) -> None:
        self._clock = clock
        self._local = tuple(local)
        # By the server and how it was asked: until when the answer counts, and the ids in it.
        self._known: dict[tuple[object, ...], tuple[float, list[str]]] = {}

    async def complete(self, env: Mapping[str, str], config: Config, again: bool) -> Config:
        """The configuration with the models that were found. Never raises. With `again`, nothing
        that is remembered is used."""
        if again:
            self._known.clear()
        waiting = [provider for provider in config.providers.values() if provider.discover]
        if waiting:
            # Without any model nothing can be done before the lists are here.
            seconds = MODELS_SECONDS if config.large is None or again else PROBE_SECONDS
            lists = await asyncio.gather(*(self._listed(p, env, seconds) for p in waiting))
            found = {p.id: _models(ids) for p, ids in zip(waiting, lists, strict=True)}
            config = config.discovered(found)
        servers = [s for s in self._local if config.wants_local(s.id)]
        if servers:
            lists = await asyncio.gather(*(self._probed(server) for server in servers))
            for server, ids in zip(servers, lists, strict=True):
                if chats := [ident for ident in ids if not _NO_CHAT.search(ident)]:
                    return config.joined(_provider(server, chats))
        return config

    async def _listed(
        self, provider: Provider, env: Mapping[str, str], seconds: float
    ) -> list[str]:
        """The models that a configured provider lists; empty if it does not answer in time."""

        async def ask() -> list[str]:
            asked = provider_of(provider, self._clock, proxies_of(env))
            try:
                return await asked.list_models(seconds)
            finally:
                await asked.aclose()

        headers = tuple(provider.extra_headers.items())
        key = (provider.type, provider.base_url, provider.api_key, headers)
        return await self._remembered(key, ask, f"{provider.id} lists no models", logging.WARNING)

    async def _probed(self, server: LocalServer) -> list[str]:
        """The models that a server of this machine lists; empty if it does not run."""

        async def ask() -> list[str]:
            if not await self._is_own(server):
                return []
            timeouts = Timeouts(connect=PROBE_SECONDS)
            transport = Transport(
                server.base_url,
                headers=(),
                clock=self._clock,
                timeouts=timeouts,
                own_listener=True,
            )
            try:
                return await transport.get("/models", _offered, timeout=PROBE_SECONDS)
            finally:
                await transport.aclose()

        reason = f"no {server.name} on port {server.port}"
        return await self._remembered((server,), ask, reason, logging.DEBUG)

    async def _is_own(self, server: LocalServer) -> bool:
        """Whether a server of this user, or of root, listens where it is looked for."""
        owners = await asyncio.to_thread(listener_owners, server.port)
        if owners is None:
            log.debug("%s is not looked for: whose it is cannot be found out here", server.name)
        elif owners - {os.geteuid(), 0}:
            log.warning(
                "port %d, where %s is looked for, belongs to another user: it is not asked; if you "
                "want to use it, make it a provider in your own crush.json, with base_url %s",
                *(server.port, server.name, server.base_url),
            )
            return False
        return bool(owners)

    async def _remembered(
        self,
        key: tuple[object, ...],
        ask: Callable[[], Awaitable[list[str]]],
        reason: str,
        level: int,
    ) -> list[str]:
        """The answer for `key` that is remembered, else a new one of `ask`; empty if that fails,
        which is logged with `reason`."""
        now = self._clock.time()
        self._known = {k: entry for k, entry in self._known.items() if entry[0] > now}
        if key in self._known:
            return self._known[key][1]
        ids: list[str] = []
        try:
            ids = await ask()
        except ProviderError as error:
            log.log(level, "%s: %s", reason, error)
        except Exception:
            log.exception("%s", reason)
        self._known[key] = (now + (FOUND_SECONDS if ids else NONE_SECONDS), ids)
        return ids


def _offered(answer: Any) -> list[str]:
    """The ids in a list of models. Raises ProviderError unless it has exactly the shape that OpenAI
    defined: any program may listen on a usual port, not only a model server."""
    listed = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(listed, list) or answer.get("object") != "list":
        raise refusal(answer)
    models = [one for one in listed if isinstance(one, dict) and one.get("object") == "model"]
    return [one["id"] for one in models if isinstance(one.get("id"), str) and one["id"]]


def _models(ids: list[str]) -> list[Model]:
    """The models of these ids. Those that cannot chat come last: the first one is the default."""
    ordered = sorted(ids, key=lambda ident: _NO_CHAT.search(ident) is not None)
    return [Model(id=ident, name=ident) for ident in ordered]


def _provider(server: LocalServer, ids: list[str]) -> Provider:
    return Provider(
        id=server.id,
        name=server.name,
        type=server.id,
        base_url=server.base_url,
        models=tuple(_models(ids)),
        found=True,
    )
