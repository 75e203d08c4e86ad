"""What counts as a secret, and keeping it out of logs and answers.

What commands do not get is decided by the rule in `commands.environment`, which is narrow, since a
build needs its environment. Where a project asks for a variable the rule is wide: there a mistake
sends it to a stranger, and a refusal costs one line in the user's own file.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from ..commands.environment import is_secret_name, is_secret_value, looks_like_token

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

HIDDEN = "[redacted]"

_WIDE_NAME = re.compile(
    r"KEY|SECRET|TOKEN|PASS|CREDENTIAL|AUTH|COOKIE|SESSION|PRIVATE|BEARER|SIGNATURE|WEBHOOK"
    r"|(?:^|_)(?:PAT|JWT|DSN|PIN|PW|CERT)(?:_|$)",
    re.I,
)
# What people write when a local server wants no key. Hiding these words would garble every log.
_PLACEHOLDERS = frozenset(
    {"dummy", "empty", "local", "lm-studio", "no-key", "none", "not-needed", "ollama", "sk-no-key"}
)
_SHORTEST = 6  # characters: a shorter text is found in others by chance
_MASK = "****"
_TAIL_FROM = 24  # the last four of a shorter key would be too much of it
_USERINFO = re.compile(r"://[^/\s?#]*@")
_SCHEME = re.compile(r"\b(Bearer|Basic)(\s+)[A-Za-z0-9._~+/=-]{8,}", re.I)
_HEADER = re.compile(
    r"\b((?:x-)?api-key|(?:proxy-)?authorization)(['\"]?\s*[:=]\s*['\"]?)[^'\",\r\n]+", re.I
)


def looks_secret(name: str, value: str) -> bool:
    """The wide rule, for what a project asks for."""
    return (
        _WIDE_NAME.search(name) is not None
        or _USERINFO.search(value) is not None
        or is_secret_name(name)
        or is_secret_value(value)
        or looks_like_token(value)
    )


def worth_hiding(secret: str) -> bool:
    """Whether a secret is long and rare enough to be replaced wherever it is found."""
    return len(secret) >= _SHORTEST and secret.lower() not in _PLACEHOLDERS


def literals(value: Any, *, secret: bool = False) -> Iterator[str]:
    """The secrets that are spelled out in a document: the texts under keys with secret names, and
    with `secret` all others too. References to variables are no secrets."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from literals(item, secret=secret or is_secret_name(key))
    elif isinstance(value, list):
        for item in value:
            yield from literals(item, secret=secret)
    elif secret and isinstance(value, str) and "$" not in value:
        yield value


def url_secrets(url: str) -> Iterator[str]:
    """The secrets in an address: values of its query, and segments of its path that are tokens."""
    parts = urlsplit(url)
    for name, value in parse_qsl(parts.query):
        if is_secret_name(name) or is_secret_value(f"?{name}={value}") or looks_like_token(value):
            yield value
    for segment in parts.path.split("/"):
        if looks_like_token(segment) or is_secret_value(segment):
            yield unquote(segment)


def mask(secret: str) -> str:
    """What is shown in place of a secret: stars, and the end of a long one to recognise it by."""
    return _MASK + secret[-4:] if len(secret) >= _TAIL_FROM else _MASK


def redact(text: str, secrets: Iterable[str]) -> str:
    """The text without these secrets, also where JSON or a URL spells them differently, and without
    anything that stands where HTTP headers have credentials."""
    for secret in sorted((s for s in secrets if s), key=len, reverse=True):
        for spelt in {secret, json.dumps(secret)[1:-1], quote(secret, safe="")}:
            text = text.replace(spelt, HIDDEN)
    text = _HEADER.sub(rf"\1\2{HIDDEN}", text)
    return _SCHEME.sub(rf"\1\2{HIDDEN}", text)
