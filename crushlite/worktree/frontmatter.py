"""The front matter of a Markdown file: YAML between two `---` lines, as people write it.

Reads what such files hold in practice, without a YAML library: `key: value`, quoted texts, blocks
(`|` and `>`), lists, and one level of nested keys. It never fails: where YAML would be refused (an
unquoted colon in a description is the most common mistake), the text is taken as it stands.
Everything is a text, a list of texts or a dict of texts; `true` and numbers stay texts.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MOST_LINES = 500  # of front matter; what follows is text
_KEY = re.compile(r"""(?P<quote>["']?)(?P<key>[\w.$-]+)(?P=quote)\s*:(?:\s+|$)""")
_BLOCK = re.compile(r"[|>][+-]?\d?[+-]?(?:\s+#.*)?")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)", re.S)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "0": "", "e": ""}

Value = str | list[str] | dict[str, str]


class MarkdownPage(NamedTuple):
    """A file in two parts. `closed` is False if front matter begins and does not end: then all of
    it is taken for front matter."""

    fields: dict[str, Value]
    body: str
    has_fields: bool
    closed: bool = True


def split(text: str) -> MarkdownPage:
    """The fields and the body of a file. Without front matter all of it is the body."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    lines = text.split("\n")
    first = next((number for number, line in enumerate(lines) if line.strip()), 0)
    if lines[first].rstrip() != "---":
        return MarkdownPage({}, text, has_fields=False)
    end = min(len(lines), first + MOST_LINES)
    for number in range(first + 1, end):
        if lines[number].rstrip() in ("---", "..."):
            body = "\n".join(lines[number + 1 :])
            return MarkdownPage(parse(lines[first + 1 : number]), body, has_fields=True)
    return MarkdownPage(parse(lines[first + 1 : end]), "", has_fields=True, closed=False)


def parse(lines: list[str]) -> dict[str, Value]:
    """The fields of front matter. Of a key that is written twice the last value counts."""
    lines = [line.expandtabs(2) for line in lines]
    fields: dict[str, Value] = {}
    number = 0
    while number < len(lines):
        line = lines[number]
        found = _KEY.match(line)
        number += 1
        if found is None or line.startswith("#"):
            continue  # a comment, or a line that belongs to no key
        below = _below(lines, number)
        fields[found["key"]] = _value(line[found.end() :].strip(), lines[number : number + below])
        number += below
    return fields


def text_of(value: Value | None) -> str:
    """A value as one text."""
    if isinstance(value, dict):
        return ", ".join(f"{key}: {text}" for key, text in value.items())
    return " ".join(value) if isinstance(value, list) else value or ""


def _below(lines: list[str], start: int) -> int:
    """How many lines from `start` on belong to the key above them: those that are indented, entries
    of a list, empty lines between them, and lines that are no key and no comment."""
    end = start
    for number in range(start, len(lines)):
        line = lines[number]
        if not line.strip():
            continue
        if line[0] != " " and not _is_item(line) and (_KEY.match(line) or line.startswith("#")):
            break
        end = number + 1
    return end - start


def _is_item(line: str) -> bool:
    return line.lstrip().startswith("- ") or line.strip() == "-"


def _value(given: str, below: list[str]) -> Value:
    if _BLOCK.fullmatch(given):
        return _block(below, folded=given[0] == ">")
    if not given or given.startswith("#"):
        return _nested(below)
    if given[0] in "\"'" and (whole := _quoted("\n".join([given, *below]))) is not None:
        return whole
    if given[0] == "[":
        joined = " ".join([given, *(line.strip() for line in below)])
        if joined.endswith("]"):
            return [_scalar(item) for item in joined[1:-1].split(",") if item.strip()]
    return " ".join(filter(None, (_scalar(given), *(line.strip() for line in below))))


def _block(below: list[str], *, folded: bool) -> str:
    """A block: its lines without their common indentation, joined by blanks if it is folded."""
    indent = min((len(line) - len(line.lstrip()) for line in below if line.strip()), default=0)
    lines = [line[indent:].rstrip() for line in below]
    if not folded:
        return "\n".join(lines).strip("\n")
    paragraphs = "\n".join(lines).strip("\n").split("\n\n")
    return "\n".join(" ".join(paragraph.split("\n")) for paragraph in paragraphs)


def _nested(below: list[str]) -> Value:
    """The lines below a key that has no value of its own: a list, keys, or a text."""
    lines = [line for line in below if line.strip() and not line.lstrip().startswith("#")]
    if lines and all(_is_item(line) for line in lines):
        return [_scalar(line.strip()[1:]) for line in lines]
    if lines and _KEY.match(lines[0].lstrip()):
        fields: dict[str, str] = {}
        key = ""
        for line in lines:
            # Deeper levels become a part of the text of their key.
            if found := _KEY.match(line.strip()) if _indent(line) == _indent(lines[0]) else None:
                key = found["key"]
                fields[key] = _scalar(line.strip()[found.end() :])
            else:
                fields[key] = f"{fields[key]} {line.strip()}".strip()
        return fields
    return " ".join(line.strip() for line in lines)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _scalar(text: str) -> str:
    """A single value, without its quotes or a comment behind it."""
    text = text.strip()
    if text[:1] in ('"', "'") and (whole := _quoted(text)) is not None:
        return whole
    return re.sub(r"(?:^|\s+)#.*", "", text) if not text.startswith("#") else ""


def _quoted(text: str) -> str | None:
    """A text in quotes, with a comment behind it at most; None if it is none: the quotes are then
    part of what was meant."""
    quote = text[0]
    inner = r"(?:[^'\n]|''|\n)*" if quote == "'" else r'(?:[^"\\]|\\.)*'
    found = re.fullmatch(rf"{quote}({inner}){quote}\s*(?:#[^\n]*)?", text, re.S)
    if found is None:
        return None
    joined = re.sub(r"[ \t]*\n[ \t]*", " ", found[1])
    return joined.replace("''", "'") if quote == "'" else _ESCAPE.sub(_unescaped, joined)


def _unescaped(found: re.Match[str]) -> str:
    code = found[1]
    if code[0] in "ux" and len(code) > 1:
        return chr(int(code[1:], 16))
    return _ESCAPED.get(code, code)
