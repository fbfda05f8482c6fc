"""Input of the demo: sources of the running Python's standard library, found and measured."""

from __future__ import annotations

import ast
import os
import sysconfig
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["COUNTS", "find_sources", "measure"]

#: With fewer files tests are taken too, and then installed packages.
MIN_FILES = 300

#: More files than this only take time.
MAX_FILES = 800

_INSTALLED = frozenset({"site-packages", "dist-packages", "__pycache__"})
_TESTS = frozenset({"test", "tests", "idle_test"})


def find_sources(root: Path | None = None, *, min_files: int = MIN_FILES) -> list[Path]:
    """Return source files in the order of their names.

    Args:
        root: Where to look, the standard library if None.
        min_files: With fewer files, look further.
    """
    files: list[Path] = []
    root = root or Path(sysconfig.get_path("stdlib"))
    for passed_over in (_INSTALLED | _TESTS, _INSTALLED, frozenset({"__pycache__"})):
        files = sorted(_walk(root, passed_over))
        if len(files) >= min_files:
            break
    return files[:MAX_FILES]


def _walk(root: Path, passed_over: frozenset[str]) -> Iterator[Path]:
    for folder, names, files in os.walk(root):
        names[:] = [name for name in names if name not in passed_over]
        for file in files:
            path = Path(folder, file)
            if path.suffix == ".py" and path.is_file() and os.access(path, os.R_OK):
                yield path


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
    figures["longest"] = _max_of(functions, "lines")
    figures["complex"] = _max_of(functions, "branches")
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


def _max_of(functions: list[dict[str, Any]], figure: str) -> Mapping[str, Any] | None:
    """Return the function with the highest figure, of several the first in the file."""
    return max(functions, key=lambda f: (f[figure], -f["line"]), default=None)
