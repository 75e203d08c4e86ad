"""What a provider's failure becomes: a ProviderError that quotes the provider and says whether a
retry can help.

Error documents come in many shapes: the functions here find the status, the kind and the text in
each of them. Their messages are cut, and secrets are taken out of them, when they leave `Transport`
and not before: half of a secret would not be recognised any more.
"""

from __future__ import annotations

import json
import math
import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from ..jsontext import beginning
from .base import ProviderError

if TYPE_CHECKING:
    from ...http.messages import Headers

MESSAGE_LIMIT = 2000
_SEARCHED = 4 * MESSAGE_LIMIT  # characters of a message that are searched for an overflow

_RETRYABLE = frozenset({408, 409, 425, 429})
# What errors are called when they come without a status, inside a stream.
_KINDS = {
    "invalid_request_error": 400,
    "invalid_prompt": 400,
    "context_length_exceeded": 400,
    "content_policy_violation": 400,
    "authentication_error": 401,
    "invalid_api_key": 401,
    "billing_error": 402,
    "insufficient_quota": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "model_not_found": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "api_error": 500,
    "server_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
# How servers say that a conversation is too long for the model, and with which status: none in a
# stream, and 500 from some local servers.
_OVERFLOW = re.compile(
    r"context[_ -]?(?:length|window|size|limit)|maximum (?:context|prompt|input|model) "
    r"|(?:prompt|input|request|messages?)[\w ]{0,30} (?:is|are) too (?:long|large)"
    r"|too many (?:input )?tokens|reduce the length|request_too_large"
    r"|exceeds? the (?:maximum|max|available|allowed|limit)[\w ]{0,40}(?:tokens|context)"
    r"|(?:token count|tokens)[\w ()]{0,40} exceeds",
    re.IGNORECASE,
)
# What a user can do about an error, by its status.
_ADVICE = {
    401: "Check its key: `crushlite doctor` says which one is used, and where it comes from",
    402: "The account has no credit left, or no way to pay",
    403: "This key may not use this model: `crushlite models` lists the others",
    404: "Is the model's name right? `crushlite models` lists those there are",
}
_TOO_LONG = (0, 400, 422, 500)
_DELAY = re.compile(r"(\d{1,6}(?:\.\d{1,9})?)s")
_MARKUP = re.compile(r"<(script|style)\b.*?</\1\s*>|<[^>]*>", re.DOTALL | re.IGNORECASE)


def malformed(what: str, value: Any = None) -> ProviderError:
    """The error for an answer that cannot be understood. The beginning of `value`, which may be
    huge, is quoted at the end: there half of a secret is recognised."""
    quoted = "" if value is None else f": {_brief(value)[: MESSAGE_LIMIT * 4]}"
    return ProviderError(f"the provider sent {what}{quoted}", retryable=True)


def refusal(value: Any, *, status: int = 0) -> ProviderError:
    """The error for an error document, which may be of any shape, or a text. `status` is that of
    the response; inside a stream there is none, and the one that the document names is used."""
    inner, kinds = _error_of(value)
    known = status or _status_in(inner) or next((_KINDS[k] for k in kinds if k in _KINDS), 0)
    text = _text_of(inner) or _phrase(known)
    if kinds and kinds[0] not in text:
        text = f"{text} ({kinds[0]})"
    # An account without credit is answered with 429 too, and no retry helps.
    no_credit = "insufficient_quota" in kinds
    overflow = known == 413 or (known in _TOO_LONG and bool(_OVERFLOW.search(text[:_SEARCHED])))
    retryable = (not known or known in _RETRYABLE or known >= 500) and not (no_credit or overflow)
    number = f" {status}" if status else ""
    return ProviderError(
        f"the provider answered{number}: {text}",
        status=known,
        retryable=retryable,
        retry_after=_delay_in(inner),
        overflow=overflow,
        advice=_ADVICE.get(known, ""),
    )


def _error_of(value: Any) -> tuple[Any, list[str]]:
    """The object that describes the error, and the names of its kind (code, type, status)."""
    if isinstance(value, list):
        value = next((item for item in value if isinstance(item, dict)), value)
    if isinstance(value, dict) and isinstance(value.get("error"), dict | str) and value["error"]:
        value = value["error"]
    if not isinstance(value, dict):
        return value, []
    found = (value.get(name) for name in ("code", "type", "status"))
    return value, [kind for kind in found if isinstance(kind, str) and kind]


def _status_in(error: Any) -> int:
    """The HTTP status that a document names (gateways put that of the server behind them there);
    0 if it names none."""
    if not isinstance(error, dict):
        return 0
    for name in ("code", "status", "status_code"):
        value = error.get(name)
        if isinstance(value, str) and len(value) == 3 and value.isdecimal():
            value = int(value)
        if isinstance(value, int | float) and 400 <= value <= 599 and value == int(value):
            return int(value)
    return 0


def _delay_in(error: Any) -> float:
    """The seconds to wait that Google's error documents name; 0 if there are none."""
    details = error.get("details") if isinstance(error, dict) else None
    for detail in details[:20] if isinstance(details, list) else ():
        delay = detail.get("retryDelay") if isinstance(detail, dict) else None
        if isinstance(delay, str) and (found := _DELAY.fullmatch(delay)):
            return float(found[1])
    return 0.0


def _text_of(error: Any) -> str:
    """The text of an error object, from the first of the usual fields that has one."""
    if isinstance(error, str):
        return error
    if not isinstance(error, dict):
        return beginning(error, MESSAGE_LIMIT * 4) if error else ""
    for name in ("message", "msg", "detail", "error_description", "description", "title"):
        value = error.get(name)
        if isinstance(value, list):
            value = "; ".join(_complaint(item) for item in value[:20])
        elif isinstance(value, dict):
            value = _text_of(value)
        if isinstance(value, str) and value.strip():
            return value + _raw(error.get("metadata"))
    return beginning(error, MESSAGE_LIMIT * 4) if error else ""


def _complaint(item: Any) -> str:
    """The text of one entry of a list of validation errors."""
    if not isinstance(item, dict):
        return _brief(item)
    path = item.get("loc")
    where = ".".join(_brief(step) for step in path[:20]) + ": " if isinstance(path, list) else ""
    return where + _brief(item.get("msg") or item.get("message") or item)


def _brief(value: Any) -> str:
    return value if isinstance(value, str) else beginning(value, MESSAGE_LIMIT)


def _raw(metadata: Any) -> str:
    """The text of the server behind a gateway, whose own message says little."""
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    return f": {raw}" if isinstance(raw, str) and raw else ""


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "no reason given"


# Bodies and headers of error responses -----------------------------------------------------------


def document_of(body: bytes) -> Any:
    """The body of an error response: JSON if it is JSON, else its text, without tags."""
    text = body.decode("utf-8-sig", "replace").strip()
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return page_text(text) if text.startswith("<") else text


def page_text(page: str) -> str:
    """The text at the beginning of a web page."""
    # Cut first: then a page that makes the pattern slow costs little.
    return " ".join(_MARKUP.sub(" ", page[:8192]).split())


def one_paragraph(text: str) -> str:
    """A message of any size and content as one printable paragraph of at most MESSAGE_LIMIT."""
    plain = "".join(c if c.isprintable() else " " for c in text[: MESSAGE_LIMIT * 4])
    plain = " ".join(plain.split())
    return plain if len(plain) <= MESSAGE_LIMIT else plain[: MESSAGE_LIMIT - 3] + "..."


def retry_after(headers: Headers, now: float) -> float:
    """The seconds to wait that a response asks for (in milliseconds, in seconds, or by a date); 0
    if it does not."""
    for name in ("retry-after-ms", "x-ms-retry-after-ms"):
        if (wait := _number(headers.get(name))) is not None:
            return wait / 1000
    value = headers.get("retry-after")
    if (wait := _number(value)) is not None or value is None:
        return wait or 0.0
    import email.utils  # only now: it takes a megabyte, with what it loads

    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - now)
    except (ValueError, OverflowError, OSError):
        return 0.0


def _number(value: str | None) -> float | None:
    try:
        number = float(value or "")
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None
