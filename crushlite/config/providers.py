"""Usable providers, and the two models a workspace works with.

A provider of the catalogue needs only a key, and without one it is left out. Any other needs a
`base_url`, and models: listed, or to be asked for (`discover`). One that cannot be used is left out
with a warning, and the others count.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ..protocol.codec import decode
from ..protocol.config import Model, SelectedModel
from ..records import dataclass
from .catalogue import CATALOGUE, SUPPORTED_TYPES
from .expand import Refused
from .merge import spell
from .secrets import looks_secret, url_secrets
from .warnings import Reason

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .catalogue import Known
    from .expand import Expander
    from .files import Source
    from .merge import Merged
    from .warnings import Warn

ROLES = ("large", "small")  # of the two models
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
# The daemon sets these itself: a second one would break the framing or name another server.
_FRAMING = frozenset({"connection", "content-length", "host", "transfer-encoding", "upgrade"})


@dataclass(frozen=True, slots=True, repr=False)
class Provider:
    """A provider that can be used: everything is expanded."""

    id: str
    name: str
    type: str
    base_url: str
    api_key: str = ""
    extra_headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    extra_body: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    provider_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    models: tuple[Model, ...] = ()
    system_prompt_prefix: str = ""
    flat_rate: bool = False
    discover: bool = False  # its models are still to be asked for
    found: bool = False  # on this machine, named by no file: its listener must be the user's

    def __repr__(self) -> str:
        # Neither key nor headers nor address: logs and tracebacks hold it.
        return f"<Provider {self.id} type={self.type} models={len(self.models)}>"

    def model(self, ident: str) -> Model | None:
        """The entry of a model; a bare one if the list is still to be asked for. None if the
        provider does not have it."""
        for model in self.models:
            if model.id == ident:
                return model
        return Model(id=ident, name=ident) if self.discover and ident else None


@dataclass(frozen=True, slots=True, repr=False)
class Selected:
    """A model in use."""

    provider: Provider
    model: Model  # its entry in the provider's list
    choice: SelectedModel  # the user's settings, completed with the model's defaults

    def __repr__(self) -> str:
        return f"<Selected {self.provider.id}/{self.model.id}>"


class Builder:
    """Makes providers of the merged configuration. Adds their keys to the expander's secrets."""

    def __init__(self, merged: Merged, expander: Expander, warn: Warn) -> None:
        self._merged = merged
        self._expander = expander
        self._warn = warn
        on = not merged.get("options", "disable_default_providers")
        self._known: dict[str, Known] = CATALOGUE if on else {}

    def providers(self) -> dict[str, Provider]:
        """The usable ones by id, in the order in which a default is looked for: the catalogue's,
        then the others by id."""
        sections = self._merged.get("providers") or {}
        custom = sorted(ident for ident in sections if ident not in self._known)
        found: dict[str, Provider] = {}
        for ident in [*self._known, *custom]:
            section = sections.get(ident)
            if section and section.get("disable"):
                continue
            try:
                found[ident] = self._provider(ident, section or {})
            except Refused as reason:
                if section is not None:
                    path = ("providers", ident)
                    self._warn_of(Reason.PROVIDER_LEFT_OUT, path, f"is left out: {reason}")
        return found

    def _warn_of(self, reason: Reason, path: tuple[str, ...], what: str) -> None:
        key = spell(path)
        self._warn(reason, self._source(*path).path, key, f"{key} {what}")

    def _provider(self, ident: str, section: dict[str, Any]) -> Provider:
        """The provider of a section. Raises Refused if it cannot be used."""
        if not ident:
            raise Refused("its id is empty")
        known = self._known.get(ident)
        kind = section.get("type") or (known.type if known else "openai-compat")
        if kind not in SUPPORTED_TYPES:
            raise Refused(
                f"its type is not supported: use one of {', '.join(sorted(SUPPORTED_TYPES))}"
            )
        models = self._models(ident, known, section.get("models") or [])
        discover = not models and section.get("discover_models") is not False
        if not models and not discover:
            raise Refused("it lists no models, and discover_models is false")
        url = self._base_url(ident, known, section.get("base_url") or "")
        return Provider(
            id=ident,
            name=section.get("name") or (known.name if known else ident),
            type=kind,
            base_url=url,
            api_key=self._key(ident, known, section.get("api_key")),
            extra_headers=self._headers(ident, section.get("extra_headers") or {}),
            extra_body=section.get("extra_body") or {},
            provider_options=section.get("provider_options") or {},
            models=models,
            system_prompt_prefix=section.get("system_prompt_prefix") or "",
            flat_rate=bool(section.get("flat_rate")),
            discover=discover,
        )

    def _models(
        self, ident: str, known: Known | None, listed: list[dict[str, Any]]
    ) -> tuple[Model, ...]:
        models = {model.id: model for model in (known.large, known.small)} if known else {}
        for index, entry in enumerate(listed):
            model = decode(Model, entry, f"providers.{ident}.models[{index}]")
            if not model.id:
                raise Refused(f"models[{index}] has no id")
            model.name = model.name or model.id
            models[model.id] = model
        return tuple(dataclasses.replace(model) for model in models.values())

    def _expanded(self, text: str, *path: str) -> str:
        """The text at a path, expanded. Raises Refused if HTTP cannot carry the result."""
        source = self._source(*path)
        value = self._expander.expand(text, source, spell(path)).strip()
        if not _fits_header(value):
            raise Refused(f"{path[-1]} holds a line break or another character not fit for HTTP")
        return value

    def _source(self, *path: str) -> Source:
        source = self._merged.source(*path)
        assert source is not None
        return source

    def _base_url(self, ident: str, known: Known | None, text: str) -> str:
        """The address, expanded. Raises Refused if it is none, or holds credentials."""
        url = self._expanded(text, "providers", ident, "base_url") if text else ""
        url = url or (known.base_url if known else "")
        if not url:
            raise Refused("it has no base_url")
        try:
            parts = urlsplit(url)
            good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:
            good = False
        if not good or " " in url:
            raise Refused("its base_url is not an http or https address")
        if "@" in parts.netloc:
            raise Refused("its base_url holds a user name; credentials belong in api_key")
        self._expander.secrets.update(url_secrets(url))
        return url

    def _key(self, ident: str, known: Known | None, text: str | None) -> str:
        """The key, expanded; without a text the value of the catalogue's variable."""
        if text is not None:
            key = self._expanded(text, "providers", ident, "api_key") if text else ""
        else:
            key = self._expander.variable(known.key).strip() if known else ""
            if not _fits_header(key):
                raise Refused("its key is not fit for HTTP")
        if known and not key:
            raise Refused(f"it has no key: set api_key, or the variable {known.key}")
        self._expander.secrets.add(key)
        return key

    def _headers(self, ident: str, listed: dict[str, str]) -> dict[str, str]:
        headers: dict[str, str] = {}
        for name, text in listed.items():
            path = ("providers", ident, "extra_headers", name)
            if not _HEADER_NAME.fullmatch(name) or name.lower() in _FRAMING:
                self._warn_of(Reason.HEADER_LEFT_OUT, path, "is no header to set")
                continue
            if value := self._expanded(text, *path):
                headers[name] = value
            if value and looks_secret(name, value):
                self._expander.secrets.update((value, value.rpartition(" ")[2]))
        return headers


def _fits_header(value: str) -> bool:
    return value.isascii() and value.isprintable()


# Selecting --------------------------------------------------------------------------------------


def select(
    providers: Mapping[str, Provider], wanted: Mapping[str, SelectedModel]
) -> tuple[Selected | None, Selected | None]:
    """The large and the small model, by what was chosen for each role. A choice counts if a
    provider has it. Else the large model is the first one of the first provider that has models,
    and the small one is the catalogue's for the same provider, or the large one again."""
    large = _wanted(providers, wanted.get("large")) or _first(providers)
    if large is None:
        return None, None
    return large, _wanted(providers, wanted.get("small")) or _small(large)


def _wanted(providers: Mapping[str, Provider], choice: SelectedModel | None) -> Selected | None:
    provider = providers.get(choice.provider) if choice else None
    model = provider.model(choice.model) if provider and choice else None
    return _selected(provider, model, choice) if provider and model and choice else None


def _first(providers: Mapping[str, Provider]) -> Selected | None:
    for provider in providers.values():
        if provider.models:
            return _selected(provider, provider.models[0], SelectedModel())
    return None


def _small(large: Selected) -> Selected:
    model = catalogue_small(large.provider)
    return _selected(large.provider, model, SelectedModel()) if model else large


def catalogue_small(provider: Provider) -> Model | None:
    """The small model that the catalogue names for a provider, if the provider has it."""
    known = CATALOGUE.get(provider.id)
    ids = {known.small.id} if known else set()
    return next((model for model in provider.models if model.id in ids), None)


def _selected(provider: Provider, model: Model, choice: SelectedModel) -> Selected:
    effort = model.default_reasoning_effort if model.can_reason else ""
    choice = dataclasses.replace(
        choice,
        model=model.id,
        provider=provider.id,
        max_tokens=choice.max_tokens or model.default_max_tokens,
        reasoning_effort=choice.reasoning_effort or effort,
    )
    return Selected(provider, model, choice)
