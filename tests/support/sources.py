"""The Python sources of the repository, for tests that look at how they are written."""

from __future__ import annotations

import ast
import functools
import gc
from typing import TYPE_CHECKING

from tests.support.places import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@functools.cache
def read(path: Path) -> str:
    return path.read_text("utf-8")


@functools.cache
def parsed(source: str) -> ast.Module:
    """The tree of a source. Kept: several tests look at every file, and parsing takes longest."""
    gc.disable()  # it would look through all trees again and again: a third of the time
    try:
        tree = ast.parse(source)
        gc.freeze()
        return tree
    finally:
        gc.enable()


def sources(*folders: Path) -> Iterator[tuple[str, str]]:
    """The Python files below some folders: their place in the repository, and their text."""
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), read(path)


def children(node: ast.AST) -> Iterator[ast.AST]:
    """The statements directly below a node, and the parts of it that hold some: handlers and cases.
    Expressions are left out: they are most of a tree, and nothing is defined or imported in one."""
    for name in ("body", "handlers", "orelse", "finalbody", "cases"):
        found = getattr(node, name, None)
        if isinstance(found, list):
            yield from found


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """All statements below a node, at any depth."""
    for child in children(node):
        if isinstance(child, ast.stmt):
            yield child
        yield from statements(child)
