"""Markdown as a tree of plain lists, as CommonMark has it, with the tables of GitHub.

Blocks are `["p", ...inline]`, `["h1" .. "h6", ...inline]`, `["pre", language, text]`, `["hr"]`,
`["quote", ...blocks]`, `["ul", ...items]`, `["ol", start, ...items]` (an item is a list of blocks),
`["table", alignments, head, ...rows]` (a row is a list of cells, a cell a list of inlines). Inlines
are in markdown_inline.py. HTML is text here, always.

The text may come from anybody: nesting is bounded, and each line is looked at once for each block
that it is in.
"""

from __future__ import annotations

import re
from typing import Any

from .markdown_inline import Inlines, References, take_references

MOST_NESTED = 100  # quotes and items in each other; what is deeper is text
MARGIN = 4  # blanks in front of a line that make it code

_QUOTE = re.compile(r" {0,3}> ?")
_ITEM = re.compile(r"( {0,3})([-+*]|(\d{1,9})[.)])(?= |$)")
_RULE = re.compile(r" {0,3}(?:(?:- *){3,}|(?:\* *){3,}|(?:_ *){3,})$")
_HEADING = re.compile(r" {0,3}(#{1,6})(?: +|$)(.*)")
_CLOSING = re.compile(r"(?:^| +)#+ *$")
_FENCE = re.compile(r"( {0,3})(`{3,}|~{3,})(.*)")
_UNDERLINE = re.compile(r" {0,3}(=+|-+) *$")
_DELIMITERS = re.compile(r" {0,3}\|? *:?-+:? *(?:\| *:?-+:? *)*\|? *$")
# What may stand in front of the text of a line: only there a tab has a meaning.
_FRONT = re.compile(r"[ \t>*+\-0-9.)]*")

Tree = list[Any]


class _Container:
    """An open quote, item, or the document (both False)."""

    __slots__ = ("blocks", "indent", "quote")

    def __init__(self, *, quote: bool = False, indent: int = 0) -> None:
        self.blocks: list[Any] = []
        self.quote = quote
        self.indent = indent  # of an item: how far its text is from the margin


class _Leaf:
    """An open block of lines: p, pre (fenced or not) or table."""

    __slots__ = ("aligns", "fence", "indent", "info", "kind", "lines")

    def __init__(self, kind: str, *lines: str) -> None:
        self.kind = kind
        self.lines = list(lines)
        self.fence = self.info = ""
        self.indent = 0
        self.aligns: list[str] = []


class _List:
    """A list that may get more items."""

    __slots__ = ("items", "mark", "start")

    def __init__(self, mark: str, start: int | None) -> None:
        self.mark = mark
        self.start = start
        self.items: list[_Container] = []

    def without_last(self) -> _List:
        """Remove all items but the last one, and return them as a list of their own."""
        done = _List(self.mark, self.start)
        done.items, self.items = self.items[:-1], self.items[-1:]
        if self.start is not None:
            self.start += len(done.items)
        return done


class MarkdownParser:
    """Takes lines one by one; `take` gives the blocks that are complete. With `keeps_definitions`,
    the addresses of references stay in the text: what was written before them has not got them."""

    def __init__(self, *, keeps_definitions: bool = False) -> None:
        self._keeps_definitions = keeps_definitions
        self._root = _Container()
        self._open = [self._root]
        self._leaf: _Leaf | None = None
        self._references: References = {}

    def feed(self, line: str) -> None:
        """Take a line, without its end."""
        line = _expanded(line.replace("\x00", "\ufffd"))
        matched, rest = self._continued(line)
        leaf = self._leaf
        whole = matched == len(self._open)
        if whole and leaf is not None and leaf.fence:
            return self._in_fence(leaf, rest)
        containers = matched
        while True:
            lazy = leaf is not None and leaf.kind == "p" and containers == matched
            opened = self._opening(rest, containers, paragraph=lazy and whole)
            if opened is None:
                break
            rest = opened
            containers = len(self._open)
            leaf = None
        self._text(rest, containers, lazy=lazy, whole=whole and containers == matched)

    # Containers ---------------------------------------------------------------------------------

    def _continued(self, line: str) -> tuple[int, str]:
        """How many of the open containers a line goes on with, and what is left of it."""
        matched = 1
        for container in self._open[1:]:
            if container.quote:
                found = _QUOTE.match(line)
                if found is None:
                    break
                line = line[found.end() :]
            elif not line.strip():
                if not container.blocks and self._leaf is None:
                    break  # an item that begins with an empty line ends at the next one
            elif _indent(line) >= container.indent:
                line = line[container.indent :]
            else:
                break
            matched += 1
        return matched, line

    def _opening(self, line: str, containers: int, *, paragraph: bool) -> str | None:
        """Open a quote or an item if a line begins with one; returns what is left of the line.
        `paragraph`: it would interrupt one."""
        if _indent(line) >= MARGIN or len(self._open) > MOST_NESTED:
            return None
        if (found := _QUOTE.match(line)) is not None:
            self._close(containers)
            self._open.append(_Container(quote=True))
            self._open[-2].blocks.append(self._open[-1])
            return line[found.end() :]
        found = _ITEM.match(line)
        if found is None or _RULE.match(line):
            return None
        rest = line[found.end() :]
        if paragraph and (not rest.strip() or found[3] not in (None, "1")):
            return None
        blanks = _indent(rest) if rest.strip() else 0
        width = found.end() + (blanks if 1 <= blanks <= MARGIN else 1)
        self._close(containers)
        self._item(found, width)
        return line[width:]

    def _item(self, found: re.Match[str], width: int) -> None:
        mark = found[2][-1]
        parent = self._open[-1].blocks
        if not parent or not isinstance(parent[-1], _List) or parent[-1].mark != mark:
            parent.append(_List(mark, int(found[3]) if found[3] else None))
        container = _Container(indent=width)
        parent[-1].items.append(container)
        self._open.append(container)

    def _close(self, containers: int) -> None:
        """End the open leaf, and the containers behind these many."""
        self._end_leaf()
        del self._open[containers:]

    # Leaves -------------------------------------------------------------------------------------

    def _text(self, line: str, containers: int, *, lazy: bool, whole: bool) -> None:
        """What is left of a line when its containers are known."""
        leaf = self._leaf
        if not line.strip():
            if not whole:
                self._close(containers)
            elif leaf is not None:
                self._blank(leaf, line)
            return
        if whole and leaf is not None and self._grows(leaf, line):
            return
        if lazy and leaf is not None and (_indent(line) >= MARGIN or not _begins(line)):
            leaf.lines.append(line.lstrip())
            return
        self._close(containers)
        self._begin(line)

    def _blank(self, leaf: _Leaf, line: str) -> None:
        if leaf.kind == "pre":
            leaf.lines.append(line[MARGIN:])
        else:
            self._end_leaf()

    def _grows(self, leaf: _Leaf, line: str) -> bool:
        """Whether a line goes on with the open leaf, in another way than as text of a paragraph."""
        if leaf.kind == "pre" and _indent(line) >= MARGIN:
            leaf.lines.append(line[MARGIN:])
            return True
        if leaf.kind == "table" and _indent(line) < MARGIN and not _begins(line):
            leaf.lines.append(line)
            return True
        if leaf.kind != "p" or _indent(line) >= MARGIN:
            return False
        head = leaf.lines[-1]
        if "|" in head and _DELIMITERS.match(line):
            aligns = [_alignment(cell) for cell in _cells(line)]
            if len(aligns) == len(_cells(head)):
                leaf.lines.pop()
                self._end_leaf()
                self._leaf = _Leaf("table", head)
                self._leaf.aligns = aligns
                return True
        if (found := _UNDERLINE.match(line)) is not None:
            level = "h1" if found[1][0] == "=" else "h2"
            leaf.lines = take_references(leaf.lines, self._references)
            if leaf.lines:
                self._add([level, "\n".join(leaf.lines).strip()])
                self._leaf = None
                return True
        return False

    def _begin(self, line: str) -> None:
        """Begin a block with a line."""
        if _indent(line) >= MARGIN:
            self._leaf = _Leaf("pre", line[MARGIN:])
        elif (heading := _HEADING.match(line)) is not None:
            self._add([f"h{len(heading[1])}", _CLOSING.sub("", heading[2]).strip()])
        elif _RULE.match(line):
            self._add(["hr"])
        elif (fence := _fence(line)) is not None:
            self._leaf = _Leaf("pre")
            self._leaf.indent, self._leaf.fence = len(fence[1]), fence[2]
            self._leaf.info = fence[3].strip()
        else:
            self._leaf = _Leaf("p", line.lstrip())

    def _in_fence(self, leaf: _Leaf, line: str) -> None:
        found = _FENCE.match(line)
        if found and found[2].startswith(leaf.fence) and not found[3].strip():
            self._end_leaf()
        else:
            leaf.lines.append(line[min(leaf.indent, _indent(line)) :])

    def _end_leaf(self) -> None:
        leaf, self._leaf = self._leaf, None
        if leaf is not None:
            if leaf.kind == "p":
                left = take_references(leaf.lines, self._references)
                leaf.lines = leaf.lines if self._keeps_definitions else left
            self._add(leaf)

    def _add(self, block: Any) -> None:
        if not (isinstance(block, _Leaf) and block.kind == "p" and not block.lines):
            self._open[-1].blocks.append(block)

    # The tree -----------------------------------------------------------------------------------

    @property
    def in_code(self) -> bool:
        """Whether the next line is one of a block of code at the margin."""
        leaf = self._leaf
        return leaf is not None and bool(leaf.fence) and len(self._open) == 1

    @property
    def is_open(self) -> bool:
        """Whether there is a block that the next line may go on with."""
        return self._leaf is not None or len(self._open) > 1

    @property
    def language(self) -> str:
        """Of the block of code that is open."""
        return "" if self._leaf is None else _language(self._leaf)

    @property
    def list_open(self) -> bool:
        """Whether the last block is a list that may get more items."""
        return bool(self._root.blocks) and self._is_open_list(self._root.blocks[-1])

    def _is_open_list(self, block: Any) -> bool:
        at_margin = self._leaf is not None and len(self._open) == 1
        return isinstance(block, _List) and not at_margin

    def take(self) -> Tree:
        """Remove and return the blocks, and the items of a list, that grow no more."""
        blocks = self._root.blocks
        grows = bool(blocks) and self._leaf is None and isinstance(blocks[-1], _List)
        grows = grows or (len(self._open) > 1)
        done, kept = (blocks[:-1], blocks[-1:]) if grows else (blocks, [])
        self._root.blocks = kept
        if kept and isinstance(kept[0], _List) and len(kept[0].items) > 1:
            done = [*done, kept[0].without_last()]
        return _plain(done, Inlines(self._references))

    def finish(self) -> Tree:
        """No more lines come: returns all that is left."""
        self._close(1)
        blocks, self._root.blocks = self._root.blocks, []
        return _plain(blocks, Inlines(self._references))


def parse(text: str) -> Tree:
    """The tree of a whole text."""
    parser = MarkdownParser()
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    for line in text.removesuffix("\n").split("\n") if text else ():
        parser.feed(line)
    return parser.finish()


def _plain(blocks: list[Any], inlines: Inlines) -> Tree:
    """Blocks as the tree has them. Recursive: MOST_NESTED bounds it."""
    return [_plain_block(block, inlines) for block in blocks]


def _plain_block(block: Any, inlines: Inlines) -> Any:
    if isinstance(block, _List):
        items = [_plain(item.blocks, inlines) for item in block.items]
        return ["ul", *items] if block.start is None else ["ol", block.start, *items]
    if isinstance(block, _Container):
        return ["quote", *_plain(block.blocks, inlines)]
    if isinstance(block, list):
        return block if block == ["hr"] else [block[0], *inlines.parse(block[1])]
    assert isinstance(block, _Leaf)
    if block.kind == "p":
        return ["p", *inlines.parse("\n".join(block.lines).rstrip(" "))]
    if block.kind == "table":
        head, *rows = (_row(line, len(block.aligns), inlines) for line in block.lines)
        return ["table", block.aligns, head, *rows]
    lines = block.lines
    if not block.fence:
        while not lines[-1].strip():
            lines = lines[:-1]
    return ["pre", _language(block), "".join(f"{line}\n" for line in lines)]


def _language(leaf: _Leaf) -> str:
    return Inlines.unescaped(leaf.info.split(" ")[0])


# Lines ------------------------------------------------------------------------------------------


def _expanded(line: str) -> str:
    """A line whose tabs in front of the text are blanks."""
    if "\t" not in line:
        return line
    front = _FRONT.match(line)
    assert front is not None
    return front[0].expandtabs(MARGIN) + line[front.end() :]


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _fence(line: str) -> re.Match[str] | None:
    found = _FENCE.match(line)
    return None if found is None or (found[2][0] == "`" and "`" in found[3]) else found


def _begins(line: str) -> bool:
    """Whether a line begins a block that interrupts a paragraph, quotes and items aside."""
    return bool(_HEADING.match(line) or _RULE.match(line)) or _fence(line) is not None


def _cells(line: str) -> list[str]:
    """The cells of a line of a table."""
    cells = re.split(r"(?<!\\)\|", line.strip())
    if cells and not cells[0].strip() and line.strip().startswith("|"):
        cells = cells[1:]
    if (len(cells) > 1 and not cells[-1].strip()) or cells == [""]:
        cells = cells[:-1]
    return [cell.strip().replace("\\|", "|") for cell in cells]


def _alignment(cell: str) -> str:
    ends = cell.startswith(":"), cell.endswith(":")
    return {(True, True): "center", (True, False): "left", (False, True): "right"}.get(ends, "")


def _row(line: str, columns: int, inlines: Inlines) -> list[Any]:
    cells = _cells(line)[:columns]
    return [inlines.parse(cell) for cell in cells] + [[] for _ in range(columns - len(cells))]
