"""Changes of the configuration. `scope` says which file is written: 0 the user's, 1 the
workspace's own."""

from __future__ import annotations

from typing import Any

from ..records import dataclass


@dataclass(slots=True)
class SetValue:
    key: str
    value: Any = None
    scope: int = 0


@dataclass(slots=True)
class RemoveValue:
    key: str
    scope: int = 0


@dataclass(slots=True)
class CompactMode:
    enabled: bool
    scope: int = 0


@dataclass(slots=True)
class ProviderKey:
    """`api_key` is a string or, if `kind` is `oauth`, an object with the tokens."""

    provider_id: str
    kind: str
    api_key: Any = None
    scope: int = 0


@dataclass(slots=True)
class OAuthRefresh:
    provider_id: str
    scope: int = 0
