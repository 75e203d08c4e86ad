"""HTML to readable text or to Markdown, in one pass over the page.

Tags are recognised and not checked: this is no browser. Pages come from strangers, so the time must
grow with the length of the page and not faster, whatever it contains, which html.parser does not
guarantee. Each search begins where the last one ended, and one that finds nothing ends the page.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_TAG = re.compile(r"/?[a-zA-Z][a-zA-Z0-9]{0,15}")
_HREF = re.compile(
    r"""\shref\s?=\s?(?:"([^"]{0,2000})"|'([^']{0,2000})'|([^\s"'>]{1,2000}))""", re.I
)
_TAG_CHARS = 4000  # how much of a tag is read

# What is between these tags is left out: by name, the beginning of the end tag.
_DROPPED = {
    name: re.compile(f"</{name}", re.IGNORECASE)
    for name in ("script", "style", "noscript", "template", "svg", "textarea")
}
_BLOCKS = frozenset(
    {
        *("p", "div", "section", "article", "header", "footer", "main", "nav", "aside", "form"),
        *("ul", "ol", "dl", "dt", "dd", "table", "tr", "blockquote", "pre", "figure", "hr"),
        *("h1", "h2", "h3", "h4", "h5", "h6", "fieldset", "address", "details", "summary"),
    }
)
_PARAGRAPHS = frozenset({"p", "h1", "h2", "h3", "h4", "h5", "h6", "pre", "ul", "ol", "table"})
_MARKS = {"b": "**", "strong": "**", "i": "*", "em": "*", "code": "`"}


def plain_text(page: str) -> str:
    return _Writer(marks=False).read(page)


def markdown(page: str) -> str:
    return _Writer(marks=True).read(page)


def _pieces(page: str) -> Iterator[tuple[str, str]]:
    """The page in pieces: ("", text) for a text, (name, all between < and >) for a tag. The name of
    an end tag begins with a slash."""
    at = 0
    while at < len(page):
        begin = page.find("<", at)
        if begin < 0:
            begin = len(page)
        if begin > at:
            yield "", page[at:begin]
        if page.startswith("<!--", begin):
            end = page.find("-->", begin + 4)
            at = end + 3
        else:
            found = _TAG.match(page, begin + 1)
            if found is None and page[begin + 1 : begin + 2] not in ("!", "?", "/"):
                yield "", page[begin : begin + 1]
                at = begin + 1
                continue
            end = page.find(">", begin)
            at = end + 1
            if found is not None and end >= 0:
                name = found[0].lower()
                yield name, page[begin + 1 : min(end, begin + _TAG_CHARS)]
                if name in _DROPPED and page[end - 1] != "/":
                    closing = _DROPPED[name].search(page, at)
                    end = at = closing.start() if closing else -1
        if end < 0:
            return  # the rest is inside of something that is never closed


def _unescaped(text: str) -> str:
    """A text with the characters that its entities (`&amp;`) stand for."""
    if "&" not in text:
        return text
    import html  # only now: it takes half a megabyte

    return html.unescape(text)


class _Writer:
    """Puts the pieces together: white space becomes one space, blocks begin on a new line. With
    `marks` the result is Markdown."""

    def __init__(self, *, marks: bool) -> None:
        self._marks = marks
        self._out: list[str] = []
        self._space = False  # a space is due before the next word
        self._breaks = 2  # how many line ends the output ends with
        self._pre = 0  # how many <pre> are open
        self._lists: list[int] = []  # the open lists: -1 for bullets, else the last number
        self._links: list[str] = []  # the targets of open links

    def read(self, page: str) -> str:
        for name, inside in _pieces(page):
            if not name:
                self._text(_unescaped(inside))
            elif name.startswith("/"):
                self._end(name[1:])
            else:
                self._start(name, inside)
        return "".join(self._out).strip()

    def _text(self, content: str) -> None:
        if self._pre:
            self._out.append(content)
            self._breaks = 0
            return
        words = content.split()
        if content[:1].isspace():
            self._space = True
        if words:
            self._put(" ".join(words))
            self._space = content[-1:].isspace()

    def _put(self, content: str, *, glued: bool = False) -> None:
        if self._space and not self._breaks and not glued:
            self._out.append(" ")
        self._out.append(content)
        self._space = False
        self._breaks = 0

    def _break(self, lines: int) -> None:
        """Let the output end with at least so many line ends."""
        if lines > self._breaks:
            self._out.append("\n" * (lines - self._breaks))
            self._breaks = lines
        self._space = False

    def _start(self, name: str, inside: str) -> None:
        if name in _BLOCKS:
            self._break(2 if name in _PARAGRAPHS and not self._lists else 1)
        if name == "br":
            self._out.append("\n")
            self._breaks += 1
        elif name in ("ul", "ol"):
            self._lists.append(-1 if name == "ul" else 0)
        elif name == "li":
            self._item()
        elif name in ("td", "th"):
            self._space = True
        elif name == "pre":
            self._pre += 1
        if self._marks:
            self._start_mark(name, inside)

    def _start_mark(self, name: str, inside: str) -> None:
        if name in _MARKS and not self._pre:
            self._put(_MARKS[name])
            self._breaks = 0
        elif name == "pre":
            self._put("```\n")
        elif len(name) == 2 and name[0] == "h" and name[1] in "123456":
            self._put(f"{'#' * int(name[1])} ")
        elif name == "hr":
            self._put("---")
            self._break(1)
        elif name == "a":
            found = _HREF.search(f" {inside}")
            target = next((group for group in found.groups() if group), "") if found else ""
            self._links.append(_unescaped(target))
            if target:
                self._put("[")

    def _item(self) -> None:
        self._break(1)
        if self._lists and self._lists[-1] >= 0:
            self._lists[-1] += 1
            mark = f"{self._lists[-1]}. "
        else:
            mark = "- "
        self._put("  " * min(max(len(self._lists) - 1, 0), 8) + mark)
        self._breaks = 1  # a block inside of the item begins on this line

    def _end(self, name: str) -> None:
        if self._marks:
            self._end_mark(name)
        if name == "pre":
            self._pre = max(self._pre - 1, 0)
        if name in ("ul", "ol") and self._lists:
            self._lists.pop()
        if name in _BLOCKS or name == "title":
            self._break(2 if name in _PARAGRAPHS and not self._lists else 1)

    def _end_mark(self, name: str) -> None:
        if name in _MARKS and not self._pre:
            self._put(_MARKS[name], glued=True)
        elif name == "pre" and self._pre:
            self._put("\n```", glued=True)
        elif name == "a" and self._links:
            target = self._links.pop()
            if target:
                self._put(f"]({target})", glued=True)
