"""Inlines of Markdown: text, `["code", text]`, `["em", ...]`, `["strong", ...]`, `["del", ...]`,
`["link", address, ...]`, `["image", address, description]`, `["br"]`.

Addresses are as they were written: what may be opened is not decided here. As in CommonMark, one
walk over the text makes nodes and remembers brackets and runs of marks; a closing bracket makes a
link, and the marks between are paired by `_pair`. Nothing is looked at more than a few times,
however the marks are arranged.
"""

from __future__ import annotations

import html
import re
import unicodedata
from typing import Any

References = dict[str, str]  # addresses by label

MOST_NESTED = 100  # emphasis and links in each other; what is deeper is text
LABEL_CHARS = 999
ADDRESS_CHARS = 2000
TITLE_CHARS = 1000
PARENTHESES = 32

_ESCAPED = re.compile(r"\\([!-/:-@\[-`{-~])")
_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
_AUTOLINK = re.compile(r"<([A-Za-z][A-Za-z0-9+.-]{1,31}:[^\s<>\x00-\x1f]{0,2000})>")
_MAIL = re.compile(r"<([\w.!#$%&'*+/=?^`{|}~-]{1,64}@[A-Za-z0-9.-]{1,250})>")
_SPECIAL = re.compile(r"[\\`*_~\[\]!<&\n]")
_LABEL = re.compile(r"\[((?:[^\\\[\]]|\\.){1,999})\]", re.S)
_DEFINITION = re.compile(r" {0,3}\[((?:[^\\\[\]]|\\.){1,999})\]:", re.S)
_BRACED = re.compile(r"<((?:[^<>\\\n]|\\.){0,2000})>")
_REST = re.compile(r"[ \t]*(?:\n|$)")
_TICKS = re.compile("`+")
_BLANKS = re.compile(r"[ \t]*\n?[ \t]*")
_TITLES = {'"': '"', "'": "'", "(": ")"}


class _Node:
    """An inline: `value` is its text, or what the tree has, with others `deep` in each other."""

    __slots__ = ("deep", "value")

    def __init__(self, value: Any, deep: int = 0) -> None:
        self.value = value
        self.deep = deep


class _Marks(_Node):
    """A run of `*`, `_` or `~`: what is left of it is text."""

    __slots__ = ("can_close", "can_open", "mark", "original")

    def __init__(self, run: str, *, can_open: bool, can_close: bool) -> None:
        super().__init__(run)
        self.mark = run[0]
        self.original = len(run)
        self.can_open = can_open
        self.can_close = can_close


class _Bracket(_Node):
    __slots__ = ("active", "at", "image")

    def __init__(self, at: int, *, image: bool) -> None:
        super().__init__("![" if image else "[")
        self.at = at  # where its text begins
        self.image = image
        self.active = True


class Inlines:
    """Parses texts that share references."""

    def __init__(self, references: References) -> None:
        self._references = references

    def parse(self, text: str) -> list[Any]:
        return _Walk(text, self._references).nodes()

    @staticmethod
    def unescaped(text: str) -> str:
        """With backslashes and entities replaced by what they stand for."""
        return _unescaped(text)


class _Walk:
    """One walk over one text."""

    def __init__(self, text: str, references: References) -> None:
        self._text = text
        self._references = references
        self._at = 0
        self._nodes: list[_Node] = []
        self._brackets: list[int] = []  # places in _nodes
        self._unclosed: dict[int, int] = {}  # runs of backticks: from where on none is so long

    def nodes(self) -> list[Any]:
        text = self._text
        while self._at < len(text):
            found = _SPECIAL.search(text, self._at)
            if found is None:
                self._say(text[self._at :])
                break
            if found.start() > self._at:
                self._say(text[self._at : found.start()])
                self._at = found.start()
            self._special(text[self._at])
        return _tree(self._nodes)

    def _say(self, text: str) -> None:
        self._nodes.append(_Node(text))

    def _special(self, c: str) -> None:
        if c == "\\":
            self._backslash()
        elif c == "`":
            self._code()
        elif c in "*_~":
            self._marks(c)
        elif c == "!" and self._text.startswith("![", self._at):
            self._bracket(image=True)
        elif c == "[":
            self._bracket(image=False)
        elif c == "]":
            self._close_bracket()
        elif c == "<":
            self._autolink()
        elif c == "&":
            self._entity()
        elif c == "\n":
            self._line_break()
        else:
            self._say(c)
            self._at += 1

    def _backslash(self) -> None:
        if self._text.startswith("\\\n", self._at):
            self._nodes.append(_Node(["br"]))
            self._at += 2
            self._skip_blanks()
        elif found := _ESCAPED.match(self._text, self._at):
            self._say(found[1])
            self._at = found.end()
        else:
            self._say("\\")
            self._at += 1

    def _line_break(self) -> None:
        last = self._nodes[-1] if self._nodes else None
        hard = False
        if last is not None and type(last) is _Node and isinstance(last.value, str):
            hard = last.value.endswith("  ")
            last.value = last.value.rstrip(" ")
        self._nodes.append(_Node(["br"] if hard else " "))
        self._at += 1
        self._skip_blanks()

    def _skip_blanks(self) -> None:
        while self._text.startswith(" ", self._at):
            self._at += 1

    def _code(self) -> None:
        text, start = self._text, self._at
        stop = start
        while text.startswith("`", stop):
            stop += 1
        run = stop - start
        end = self._closing_ticks(stop, run)
        if end < 0:
            self._say(text[start:stop])
            self._at = stop
            return
        code = text[stop:end].replace("\n", " ")
        if code.startswith(" ") and code.endswith(" ") and code.strip():
            code = code[1:-1]
        self._nodes.append(_Node(["code", code]))
        self._at = end + run

    def _closing_ticks(self, start: int, run: int) -> int:
        """Where the next run of exactly so many backticks is; -1 if there is none."""
        if start >= self._unclosed.get(run, len(self._text) + 1):
            return -1
        for found in _TICKS.finditer(self._text, start):
            if len(found[0]) == run:
                return found.start()
        self._unclosed[run] = start
        return -1

    def _marks(self, c: str) -> None:
        text, start = self._text, self._at
        stop = start
        while text.startswith(c, stop):
            stop += 1
        before = text[start - 1] if start else "\n"
        after = text[stop] if stop < len(text) else "\n"
        left = not after.isspace() and (
            not _is_punctuation(after) or before.isspace() or _is_punctuation(before)
        )
        right = not before.isspace() and (
            not _is_punctuation(before) or after.isspace() or _is_punctuation(after)
        )
        if c == "_":
            can_open = left and (not right or _is_punctuation(before))
            can_close = right and (not left or _is_punctuation(after))
        else:
            can_open, can_close = left, right
        self._at = stop
        if c == "~" and stop - start != 2:
            return self._say(text[start:stop])
        self._nodes.append(_Marks(text[start:stop], can_open=can_open, can_close=can_close))

    def _autolink(self) -> None:
        found = _AUTOLINK.match(self._text, self._at)
        mail = None if found else _MAIL.match(self._text, self._at)
        if found is not None:
            self._nodes.append(_Node(["link", found[1], found[1]]))
            self._at = found.end()
        elif mail is not None:
            self._nodes.append(_Node(["link", f"mailto:{mail[1]}", mail[1]]))
            self._at = mail.end()
        else:
            self._say("<")
            self._at += 1

    def _entity(self) -> None:
        found = _ENTITY.match(self._text, self._at)
        self._say(html.unescape(found[0]) if found else "&")
        self._at = found.end() if found else self._at + 1

    # Links --------------------------------------------------------------------------------------

    def _bracket(self, *, image: bool) -> None:
        self._at += 2 if image else 1
        self._brackets.append(len(self._nodes))
        self._nodes.append(_Bracket(self._at, image=image))

    def _close_bracket(self) -> None:
        place = self._brackets.pop() if self._brackets else -1
        opener = self._nodes[place] if place >= 0 else None
        if not isinstance(opener, _Bracket) or not opener.active:
            self._say("]")
            self._at += 1
            return
        found = self._target(opener)
        if found is None:
            self._say("]")
            self._at += 1
            return
        address, self._at = found
        inside = self._nodes[place + 1 :]
        del self._nodes[place:]
        inside = _paired(inside)
        children, deep = _joined(inside), _depth(inside)
        if opener.image:
            self._nodes.append(_Node(["image", address, _words(children)]))
            return
        self._nodes.append(_Node(["link", address, *children], deep + 1))
        for other in self._brackets:  # there are no links in links
            before = self._nodes[other]
            if isinstance(before, _Bracket) and not before.image:
                before.active = False

    def _target(self, opener: _Bracket) -> tuple[str, int] | None:
        """The address of the link whose text ends here, and where the link ends; None if it is no
        link."""
        text, at = self._text, self._at + 1
        if text.startswith("(", at):
            found = _inline_target(text, at + 1)
            if found is not None:
                return found
        label = _LABEL.match(text, at)
        if label is not None:
            name, end = label[1], label.end()
        else:
            name = text[opener.at : self._at]
            end = at + 2 if text.startswith("[]", at) else at
        if len(name) > LABEL_CHARS:
            return None
        address = self._references.get(_normal(name))
        return None if address is None else (address, end)


def _inline_target(text: str, at: int) -> tuple[str, int] | None:
    """Read `address "title")`; returns the address and where it ends."""
    at = _past_blanks(text, at)
    read = _address(text, at)
    if read is None:
        return None
    address, at = read
    after = _past_blanks(text, at)
    if after > at and text[after : after + 1] in _TITLES:
        end = _title_end(text, after)
        if end is None:
            return None
        after = _past_blanks(text, end)
    return (_unescaped(address), after + 1) if text.startswith(")", after) else None


def _address(text: str, at: int) -> tuple[str, int] | None:
    if text.startswith("<", at):
        found = _BRACED.match(text, at)
        return None if found is None else (found[1], found.end())
    depth, start = 0, at
    while at < len(text) and at - start <= ADDRESS_CHARS:
        c = text[at]
        if c <= " " or c == "\x7f":
            break
        if c == "\\" and _ESCAPED.match(text, at):
            at += 1
        elif c == "(":
            depth += 1
            if depth > PARENTHESES:
                return None
        elif c == ")":
            if not depth:
                break
            depth -= 1
        at += 1
    return None if depth else (text[start:at], at)


def _title_end(text: str, at: int) -> int | None:
    """Where the title ends that begins here; None if it does not."""
    close = _TITLES[text[at]]
    stop = min(len(text), at + TITLE_CHARS)
    at += 1
    while at < stop:
        if text[at] == "\\":
            at += 1
        elif text[at] == close:
            return at + 1
        at += 1
    return None


def take_references(lines: list[str], references: References) -> list[str]:
    """Remove the definitions of references at the beginning of a paragraph, and keep them. The
    first one of a label counts."""
    text, begin = "\n".join(lines), 0
    while (found := _DEFINITION.match(text, begin)) is not None and found[1].strip():
        at = _past_blanks(text, found.end())
        read = _address(text, at)
        if read is None or (not read[0] and not text.startswith("<", at)):
            break
        address, at = read
        end = _end_of_definition(text, at)
        if end is None:
            break
        references.setdefault(_normal(found[1]), _unescaped(address))
        begin = end
    if not begin:
        return lines
    rest = text[begin:]
    return rest.split("\n") if rest.strip() else []


def _end_of_definition(text: str, at: int) -> int | None:
    after = _past_blanks(text, at)
    if after > at and text[after : after + 1] in _TITLES:
        title = _title_end(text, after)
        if title is not None and (end := _end_of_line(text, title)) is not None:
            return end
    return _end_of_line(text, at)


def _end_of_line(text: str, at: int) -> int | None:
    """Where the next line begins, if only blanks are left of this one."""
    found = _REST.match(text, at)
    return None if found is None else max(found.end(), at + 1)


def _past_blanks(text: str, at: int) -> int:
    found = _BLANKS.match(text, at)
    return found.end() if found else at


def _normal(label: str) -> str:
    return " ".join(label.split()).casefold()


def _unescaped(text: str) -> str:
    text = _ENTITY.sub(lambda found: html.unescape(found[0]), text)
    return _ESCAPED.sub(r"\1", text)


def _is_punctuation(c: str) -> bool:
    return unicodedata.category(c)[0] in "PS"


# Emphasis ---------------------------------------------------------------------------------------


def _tree(nodes: list[_Node]) -> list[Any]:
    """Nodes as the tree has them: marks are paired, and what is left of them is text."""
    return _joined(_paired(nodes))


def _paired(nodes: list[_Node]) -> list[_Node]:
    """Replace the marks that belong together, and what is between them, by one node. `done` holds
    what was looked at; an opener in it waits for a closer."""
    done: list[_Node] = []
    openers: list[int] = []  # places in `done` of runs that can open
    bottoms: dict[tuple[str, bool, int], int] = {}  # below that, none of this kind can open
    for node in nodes:
        if isinstance(node, _Marks) and node.can_close:
            _closed(node, done, openers, bottoms)
        if isinstance(node, _Marks) and node.can_open and node.value:
            openers.append(len(done))
        if node.value != "":
            done.append(node)
    return done


def _closed(
    closer: _Marks,
    done: list[_Node],
    openers: list[int],
    bottoms: dict[tuple[str, bool, int], int],
) -> None:
    """Pair a run that can close with the openers before it, as far as it goes."""
    while closer.value:
        key = (closer.mark, closer.can_open, closer.original % 3)
        at = _opener(closer, done, openers, bottoms.get(key, 0))
        if at < 0:
            bottoms[key] = len(openers)
            break
        place = openers[at]
        opener = done[place]
        assert isinstance(opener, _Marks)
        size = 2 if len(opener.value) >= 2 and len(closer.value) >= 2 else 1
        kind = "del" if closer.mark == "~" else "strong" if size == 2 else "em"
        inside = done[place + 1 :]
        deep = _depth(inside) + 1
        if deep > MOST_NESTED:
            bottoms[key] = len(openers)
            break
        opener.value = opener.value[size:]
        closer.value = closer.value[size:]
        del openers[at if not opener.value else at + 1 :]
        for other, bottom in bottoms.items():
            bottoms[other] = min(bottom, len(openers))
        del done[place + 1 if opener.value else place :]
        done.append(_Node([kind, *_joined(inside)], deep))


def _opener(closer: _Marks, done: list[_Node], openers: list[int], bottom: int) -> int:
    for at in range(len(openers) - 1, bottom - 1, -1):
        opener = done[openers[at]]
        assert isinstance(opener, _Marks)
        if opener.mark != closer.mark:
            continue
        odd = (opener.can_close or closer.can_open) and (
            (opener.original + closer.original) % 3 == 0
            and not (opener.original % 3 == 0 and closer.original % 3 == 0)
        )
        if closer.mark == "~" or not odd:
            return at
    return -1


def _depth(nodes: list[_Node]) -> int:
    return max((node.deep for node in nodes), default=0)


def _joined(nodes: list[_Node]) -> list[Any]:
    """The values of nodes; texts that stand beside each other are one."""
    values: list[Any] = []
    texts: list[str] = []
    for node in nodes:
        if isinstance(node.value, str):
            texts.append(node.value)
            continue
        if any(texts):
            values.append("".join(texts))
        texts = []
        values.append(node.value)
    if any(texts):
        values.append("".join(texts))
    return values


def _words(children: list[Any]) -> str:
    """The text of inlines, without what they are."""
    parts = []
    for child in children:
        if isinstance(child, str):
            parts.append(child)
        elif child[0] == "code":
            parts.append(child[1])
        elif child[0] == "image":
            parts.append(child[2])
        elif child[0] != "br":
            parts.append(_words(child[2:] if child[0] == "link" else child[1:]))
    return "".join(parts)
