"""Measures one Python source: its lines, classes and functions, and which of these stand out."""

from __future__ import annotations

import ast
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["COUNTS", "measure"]

#: What is added up over all files.
COUNTS = ("lines", "functions", "classes", "branches")

_BRANCHES = frozenset({
    ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.comprehension,
    ast.match_case,
})  # fmt: skip

#: Nodes in which nothing that counts can be; most of a tree are these.
_LEAVES = frozenset({
    ast.Name, ast.Constant, ast.Load, ast.Store, ast.Del, ast.alias, ast.Pass, ast.Import,
    ast.ImportFrom, ast.Global, ast.Nonlocal, ast.Break, ast.Continue,
})  # fmt: skip


def measure(source: bytes) -> dict[str, Any]:
    """Return the figures of a source; one that this Python cannot parse has lines only.

    Returns:
        ``lines functions classes branches``, and ``longest`` and ``complex``, each a map with
        ``name line lines branches`` of a function, or None where there is none. The branches of
        a function are those that McCabe's measure counts: decisions, plus 1.
    """
    figures: dict[str, Any] = dict.fromkeys(COUNTS, 0)
    figures["lines"] = source.count(b"\n") + (not source.endswith(b"\n"))
    functions: list[dict[str, Any]] = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the compiler, about other people's code
            tree = ast.parse(source)
    except (SyntaxError, ValueError):
        tree = ast.Module([], [])
    _visit(tree, figures, functions)
    figures["longest"] = _most(functions, "lines")
    figures["complex"] = _most(functions, "branches")
    return figures


def _visit(tree: ast.AST, figures: dict[str, Any], functions: list[dict[str, Any]]) -> None:
    """Walk over a tree, noting for every node in which function it is."""
    module = {"name": "", "branches": 0}
    waiting: list[tuple[ast.AST, dict[str, Any]]] = [(tree, module)]
    while waiting:
        node, inside = waiting.pop()
        kind = type(node)
        branches = 0
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            figures["functions"] += 1
            inside = _function(node, inside["name"])
            functions.append(inside)
        elif isinstance(node, ast.ClassDef):
            figures["classes"] += 1
            inside = {"name": _dotted(inside["name"], node.name), "branches": 0}
        elif kind in _BRANCHES:
            branches = 1
        elif isinstance(node, ast.BoolOp):
            branches = len(node.values) - 1
        if branches:
            figures["branches"] += branches
            inside["branches"] += branches
        waiting.extend((child, inside) for child in _children(node))


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """Do the same as `ast.iter_child_nodes`, without leaves."""
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, list):
            for item in value:
                if isinstance(item, ast.AST) and type(item) not in _LEAVES:
                    yield item
        elif isinstance(value, ast.AST) and type(value) not in _LEAVES:
            yield value


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef, outside: str) -> dict[str, Any]:
    name = _dotted(outside, node.name)
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    return {"name": name, "line": node.lineno, "lines": lines, "branches": 1}


def _dotted(outside: str, name: str) -> str:
    return f"{outside}.{name}" if outside else name


def _most(functions: list[dict[str, Any]], figure: str) -> Mapping[str, Any] | None:
    """Return the function with the highest figure, of several the first in the file."""
    return max(functions, key=lambda f: (f[figure], -f["line"]), default=None)
