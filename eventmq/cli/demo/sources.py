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

#: With fewer files, tests are included, and then installed packages.
MIN_FILES = 300

#: Maximum number of files; more only take time.
MAX_FILES = 800

_INSTALLED = frozenset({"site-packages", "dist-packages", "__pycache__"})
_TESTS = frozenset({"test", "tests", "idle_test"})


def find_sources(root: Path | None = None, *, min_files: int = MIN_FILES) -> list[Path]:
    """Return source files in the order of their names.

    Args:
        root: Folder to search; the standard library if None.
        min_files: With fewer files, search further.
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


def measure(source: bytes) -> dict[str, Any]:
    """Return the figures of a source file; one that this Python cannot parse has only lines.

    Returns:
        ``lines functions classes branches``, and ``longest`` and ``complex``, each a map with
        ``name line lines branches`` of a function, or None if there is none. The branches of a
        function are McCabe's measure: decisions plus 1.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings of the compiler about the sources
            tree = ast.parse(source)
    except (SyntaxError, ValueError):
        tree = ast.Module([], [])
    functions: list[dict[str, Any]] = []
    classes = branches = 0
    waiting: list[tuple[ast.AST, dict[str, Any]]] = [(tree, {"name": "", "branches": 0})]
    while waiting:  # each node with its enclosing function or class
        node, inside = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            name = _dotted(inside["name"], node.name)
            inside = {"name": name, "line": node.lineno, "lines": lines, "branches": 1}
            functions.append(inside)
        elif isinstance(node, ast.ClassDef):
            classes += 1
            inside = {"name": _dotted(inside["name"], node.name), "branches": 0}
        elif type(node) in _BRANCHES or isinstance(node, ast.BoolOp):
            decisions = len(node.values) - 1 if isinstance(node, ast.BoolOp) else 1
            branches += decisions
            inside["branches"] += decisions
        waiting.extend((child, inside) for child in ast.iter_child_nodes(node))
    return {
        "lines": source.count(b"\n") + (not source.endswith(b"\n")),
        "functions": len(functions),
        "classes": classes,
        "branches": branches,
        "longest": _max_of(functions, "lines"),
        "complex": _max_of(functions, "branches"),
    }


def _dotted(outside: str, name: str) -> str:
    return f"{outside}.{name}" if outside else name


def _max_of(functions: list[dict[str, Any]], figure: str) -> Mapping[str, Any] | None:
    """Return the function with the highest figure, the first in the file if there are several."""
    return max(functions, key=lambda f: (f[figure], -f["line"]), default=None)
