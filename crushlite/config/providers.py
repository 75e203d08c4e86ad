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

PRICES = (
    *("cost_per_1m_in", "cost_per_1m_out"),
    *("cost_per_1m_in_cached", "cost_per_1m_out_cached"),
)
SAMPLING = ("temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty")
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
    extend: bool = False  # its server may be asked for models that are not in this list
    found: bool = False  # on this machine, named by no file: its listener must be the user's

    def __repr__(self) -> str:
        # Neither key nor headers nor address: logs and tracebacks hold it.
        return f"<Provider {self.id} type={self.type} models={len(self.models)}>"

    def lists(self, ident: str) -> bool:
        """Whether a model is in the list."""
        return any(model.id == ident for model in self.models)

    def model(self, ident: str) -> Model:
        """The entry of a model. One that is not in the list is used as it was written; its context
        window and prices are not known then."""
        listed = (model for model in self.models if model.id == ident)
        return next(listed, Model(id=ident, name=ident))


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
            extend=self._may_extend(ident, section),
        )

    def _may_extend(self, ident: str, section: dict[str, Any]) -> bool:
        """Whether a provider of the catalogue may be asked for its own list. Not if a project
        chose its address or its key: then a request would be the project's doing."""
        chosen = (self._merged.source("providers", ident, key) for key in ("base_url", "api_key"))
        return (
            ident in self._known
            and section.get("discover_models") is not False
            and not self._merged.get("options", "disable_provider_auto_update")
            and all(source is None or source.is_machine for source in chosen)
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
    """The large and the small model, by what was chosen for each role. A chosen model is used as it
    was written or not at all: None if its provider cannot be used. If no large model was chosen,
    it is the first one of the first provider that has models. If no small one was, it is the
    catalogue's for the same provider; it is the large one again if there is none, or if the chosen
    one cannot be used."""
    choice = wanted.get("large", SelectedModel())
    large = _chosen(providers, choice) if _names_one(choice) else _first(providers, choice)
    if large is None:
        return None, None
    choice = wanted.get("small", SelectedModel())
    if _names_one(choice):
        return large, _chosen(providers, choice) or large
    model = catalogue_small(large.provider)
    return large, _selected(large.provider, model, choice) if model else large


def _names_one(choice: SelectedModel) -> bool:
    """Whether a choice is about a certain model, and not only about settings."""
    return bool(choice.model or choice.provider)


def _chosen(providers: Mapping[str, Provider], choice: SelectedModel) -> Selected | None:
    """The model that a choice names. Without a provider, it is that of the only one that lists the
    model, or of the only one that there is."""
    named = [providers[choice.provider]] if choice.provider in providers else []
    if not choice.provider:
        everyone = list(providers.values())
        named = [each for each in everyone if each.lists(choice.model)] or everyone
    if len(named) != 1:
        return None
    if choice.model:
        return _selected(named[0], named[0].model(choice.model), choice)
    return _first({named[0].id: named[0]}, choice)


def _first(providers: Mapping[str, Provider], choice: SelectedModel) -> Selected | None:
    for provider in providers.values():
        if provider.models:
            return _selected(provider, provider.models[0], choice)
    return None


def catalogue_small(provider: Provider) -> Model | None:
    """The small model that the catalogue names for a provider, if the provider has it."""
    known = CATALOGUE.get(provider.id)
    ids = {known.small.id} if known else set()
    return next((model for model in provider.models if model.id in ids), None)


def with_selected(
    providers: Mapping[str, Provider], *models: Selected | None
) -> dict[str, Provider]:
    """The providers, with the selected models in their lists: clients look them up there."""
    answer = dict(providers)
    for used in filter(None, models):
        provider = answer[used.provider.id]
        if not provider.lists(used.model.id):
            listed = (*provider.models, used.model)
            answer[provider.id] = dataclasses.replace(provider, models=listed)
    return answer


def _selected(provider: Provider, model: Model, choice: SelectedModel) -> Selected:
    """A model with the user's settings for it, completed with its own: an effort of reasoning, and
    what the `options` of its entry say about sampling. With a flat rate no answer has a price."""
    effort = model.default_reasoning_effort if model.can_reason else ""
    sampling: dict[str, Any] = {
        name: model.options.get(name)
        for name in SAMPLING
        if getattr(choice, name) is None and model.options.get(name) is not None
    }
    own_options = model.options.get("provider_options") or {}
    choice = dataclasses.replace(
        choice,
        model=model.id,
        provider=provider.id,
        max_tokens=choice.max_tokens or model.default_max_tokens,
        reasoning_effort=choice.reasoning_effort or effort,
        provider_options={**own_options, **choice.provider_options},
        **sampling,
    )
    if provider.flat_rate:
        free: dict[str, Any] = dict.fromkeys(PRICES, 0.0)
        model = dataclasses.replace(model, **free)
    return Selected(provider, model, choice)
