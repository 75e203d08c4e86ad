"""Taking secrets out of what a provider or a proxy sends back.

Servers quote requests in their errors: headers, addresses, bodies. An error goes to the log, to the
database and to every client, so what was sent as a secret is replaced first, in every spelling that
servers use, also if only its beginning is quoted.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus

from ...commands.environment import hide_secrets, is_secret_name, is_secret_value
from ...config.secrets import redact, url_secrets

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

HIDDEN = "[secret]"
# Characters. Of shorter secrets some are placeholders ("x", "no"), and removing them would spoil
# every message; a header that need not be a secret may hold a common word.
_SHORTEST, _SHORTEST_HEADER = 4, 6
_BEGINNING = 8  # characters of a long secret by which its beginning is recognised
_LONG = 16
_READ = 16_000  # characters of a text: a message is cut to a fraction of that
_DEPTH = 8  # of values in the configured fields of a body
# As `html.escape` does, without that module, which takes half a megabyte.
_AS_HTML = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;"})


class SecretHider:
    """Knows the secrets of the requests to one provider."""

    def __init__(
        self,
        base_url: str,
        own_headers: Iterable[tuple[str, str]],
        configured_headers: Iterable[tuple[str, str]],
        body: Mapping[str, Any],
    ) -> None:
        """Of our own headers those with secret names count; of the configured ones, all. `body` are
        configured fields: those with secret names or values count."""
        found = {value for name, value in own_headers if is_secret_name(name)}
        found |= {
            value
            for name, value in configured_headers
            if len(value) >= _SHORTEST_HEADER or is_secret_name(name)
        }
        secrets = {part for value in found for part in _parts(value)}
        secrets |= {*url_secrets(base_url), *_in_body(body)}
        self._secrets = sorted(
            (secret for secret in secrets if len(secret) >= _SHORTEST), key=len, reverse=True
        )
        spelt = {way for secret in self._secrets for way in _spellings(secret)}
        ordered = sorted(spelt, key=len, reverse=True)  # one may contain another
        self._pattern = re.compile("|".join(map(re.escape, ordered)), re.I) if spelt else None

    def hide(self, text: str) -> str:
        """The beginning of a text, longer than what is shown of a message, without secrets and
        without what looks like one in any request."""
        text = text[:_READ]
        if self._pattern is not None:
            text = self._pattern.sub(HIDDEN, text)
        for secret in self._secrets:
            # What was read may end in the middle of one.
            half = next((n for n in range(len(secret), 3, -1) if text.endswith(secret[:n])), 0)
            text = _without_beginnings(text[: len(text) - half], secret)
        return redact(hide_secrets(text, HIDDEN), ())


def _parts(value: str) -> Iterator[str]:
    """The value of a header, what follows its scheme, and what is encoded in that."""
    yield value
    scheme, blank, rest = value.rpartition(" ")
    if blank:
        yield rest
    if scheme.lower() == "basic":
        try:
            pair = base64.b64decode(rest, validate=True).decode()
        except (binascii.Error, ValueError):
            return
        yield pair
        yield pair.partition(":")[2]


def _in_body(value: Any, name: str = "", depth: int = _DEPTH) -> Iterator[str]:
    if isinstance(value, dict) and depth:
        for key, item in value.items():
            yield from _in_body(item, str(key), depth - 1)
    elif isinstance(value, list) and depth:
        for item in value:
            yield from _in_body(item, name, depth - 1)
    elif isinstance(value, str) and (is_secret_name(name) or is_secret_value(value)):
        yield value


def _spellings(secret: str) -> set[str]:
    return {
        secret,
        json.dumps(secret)[1:-1],
        json.dumps(json.dumps(secret)[1:-1])[1:-1],
        quote(secret, safe=""),
        quote(secret),
        quote_plus(secret),
        secret.translate(_AS_HTML),
    }


def _without_beginnings(text: str, secret: str) -> str:
    """The text without the beginnings of a long secret, as in `the key sk-1234567... is wrong`."""
    if len(secret) < _LONG:
        return text
    parts, at = [], 0
    while (found := text.find(secret[:_BEGINNING], at)) >= 0:
        end = found
        while end < len(text) and end - found < len(secret) and text[end] == secret[end - found]:
            end += 1
        parts += [text[at:found], HIDDEN]
        at = end
    return "".join([*parts, text[at:]])
