"""Finding models that are not in the configuration.

A provider that is configured without models is asked for its list. If nothing at all is configured,
the usual ports of the usual model servers are tried, on loopback only: a user who has started one
of them wants it to be used. But any user of the machine may listen there, so only a listener of
this user or of root is asked, and this is looked at again for every connection later (see
`listeners`). Another one can be used by naming it in the user's own crush.json. Looking takes a
second or two at most and never fails a request. Answers are remembered for a minute, missing ones
for a few seconds.

What is not needed for the next prompt is asked for in the background (`look`): the own lists of the
catalogue's providers, which have more models than the catalogue. Servers of this machine beside a
provider that is configured are looked for only if a person asks what there is, or chooses one. The
last answer counts until there is a new one.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING, Any

from ..config.providers import Provider
from ..outbound.proxies import NO_PROXIES, proxies_of
from ..records import dataclass
from .listeners import listener_owners
from .providers.base import ProviderError
from .providers.build import provider_of
from .providers.failures import refusal
from .providers.listing import can_chat, listed_models
from .providers.transport import MODELS_SECONDS, Timeouts, Transport
from .windows import told_windows

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from ..clock import Clock
    from ..config.view import Config
    from ..protocol.config import Model

log = logging.getLogger(__name__)

PROBE_SECONDS = 0.2  # for a server of this machine, and for a list that is not needed now
LOOK_SECONDS = 10.0  # for a list that is asked for in the background
FOUND_SECONDS = 60.0  # how long a list of models is remembered,
LISTED_SECONDS = 3600.0  # that of a provider of the catalogue, which changes rarely,
NONE_SECONDS = 5.0  # and how long that there was none
REMEMBERED = 64  # lists; the oldest are forgotten


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
    """Finds models. `local` are the servers to look for on this machine; of several that answer,
    the first is the default."""

    def __init__(self, clock: Clock, local: Sequence[LocalServer] = ()) -> None:
        self._clock = clock
        self._local = tuple(local)
        # By the server and how it was asked: until when the answer counts, and the models in it.
        self._known: dict[tuple[object, ...], tuple[float, list[Model]]] = {}

    async def complete(self, env: Mapping[str, str], config: Config, again: bool) -> Config:
        """The configuration with the models that were found. Never raises. With `again`, what is
        remembered of servers that are asked here is not used."""
        if again:
            self._known = {key: (0.0, models) for key, (_, models) in self._known.items()}
        waiting = [provider for provider in config.providers.values() if provider.discover]
        # Without any model nothing can be done before the lists are here.
        seconds = MODELS_SECONDS if config.large is None or again else PROBE_SECONDS
        lists = await asyncio.gather(*(self._listed(p, env, seconds) for p in waiting))
        found = {p.id: models for p, models in zip(waiting, lists, strict=True)}
        for provider in config.providers.values():
            if provider.extend:
                found[provider.id] = self._last(_key(provider))
        config = config.discovered(found)
        servers = [s for s in self._local if config.allows_local(s.id)]
        needed = [s for s in servers if config.wants_local(s.id)]
        await asyncio.gather(*(self._probed(server) for server in needed))
        for server in servers:
            if models := self._last((server,)):
                config = config.joined(_provider(server, models))
        return config

    async def look(self, env: Mapping[str, str], config: Config, everywhere: bool) -> None:
        """Ask for what `complete` does not wait for, and remember it; with `everywhere` also the
        servers of this machine that are not needed. Never raises."""
        asked = [p for p in config.providers.values() if p.extend]
        servers = [s for s in self._local if everywhere and config.allows_local(s.id)]
        await asyncio.gather(
            *(self._listed(provider, env, LOOK_SECONDS) for provider in asked),
            *(self._probed(server) for server in servers),
        )

    async def _listed(
        self, provider: Provider, env: Mapping[str, str], seconds: float
    ) -> list[Model]:
        """The models that a configured provider lists; empty if it does not answer in time. Those
        that cannot chat come last, as the first one is the default; a provider that has models
        already gets no such ones."""
        proxies = proxies_of(env)

        async def ask() -> list[Model]:
            asked = provider_of(provider, self._clock, proxies)
            try:
                models = await asked.list_models(seconds)
            finally:
                await asked.aclose()
            if provider.extend:
                return [model for model in models if can_chat(model.id)]
            models.sort(key=lambda model: not can_chat(model.id))
            return await told_windows(provider, models, self._clock, seconds, proxies)

        # That the list of a provider with models cannot be had is no trouble for its user.
        level = logging.INFO if provider.extend else logging.WARNING
        valid = LISTED_SECONDS if provider.extend else FOUND_SECONDS
        reason = f"{provider.id} lists no models"
        return await self._remembered(_key(provider), ask, reason, level, valid)

    async def _probed(self, server: LocalServer) -> list[Model]:
        """The models that a server of this machine lists and that can chat; empty if it does not
        run."""

        async def ask() -> list[Model]:
            if not await self._is_own(server):
                return []
            transport = Transport(
                server.base_url,
                headers=(),
                clock=self._clock,
                timeouts=Timeouts(connect=PROBE_SECONDS),
                own_listener=True,
            )
            try:
                models = await transport.get("/models", _offered, timeout=PROBE_SECONDS)
            finally:
                await transport.aclose()
            models = [model for model in models if can_chat(model.id)]
            found = _provider(server, models)
            return await told_windows(found, models, self._clock, MODELS_SECONDS, NO_PROXIES)

        reason = f"no {server.name} on port {server.port}"
        return await self._remembered((server,), ask, reason, logging.DEBUG, FOUND_SECONDS)

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
        ask: Callable[[], Awaitable[list[Model]]],
        reason: str,
        level: int,
        valid: float,
    ) -> list[Model]:
        """The answer for `key` that is remembered, else a new one of `ask`, which is valid for so
        many seconds. If that fails, which is logged with `reason`, it is empty; but a list that is
        valid for long is kept, since what is in it does not go away with the connection."""
        now = self._clock.time()
        until, before = self._known.get(key, (0.0, []))
        if until > now:
            return before
        new: list[Model] = []
        try:
            new = await ask()
        except ProviderError as error:
            log.log(level, "%s: %s", reason, error)
        except Exception:
            log.exception("%s", reason)
        models = new or (before if valid == LISTED_SECONDS else [])
        self._known.pop(key, None)
        self._known[key] = (now + (valid if new else NONE_SECONDS), models)
        while len(self._known) > REMEMBERED:
            del self._known[next(iter(self._known))]
        return models

    def _last(self, key: tuple[object, ...]) -> list[Model]:
        """The last answer for `key`, however old; empty if there is none."""
        return self._known.get(key, (0.0, []))[1]


def _key(provider: Provider) -> tuple[object, ...]:
    """How a provider is asked. Two that are asked alike give the same answer."""
    headers = tuple(provider.extra_headers.items())
    return (provider.type, provider.base_url, provider.api_key, headers, provider.extend)


def _offered(answer: Any) -> list[Model]:
    """The models in a list. Raises ProviderError unless it has exactly the shape that OpenAI
    defined: any program may listen on a usual port, not only a model server."""
    listed = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(listed, list) or answer.get("object") != "list":
        raise refusal(answer)
    models = [one for one in listed if isinstance(one, dict) and one.get("object") == "model"]
    return listed_models([one for one in models if "id" in one])


def _provider(server: LocalServer, models: list[Model]) -> Provider:
    return Provider(
        id=server.id,
        name=server.name,
        type=server.id,
        base_url=server.base_url,
        models=tuple(models),
        found=True,
    )
