"""Finds input that is on every machine: the sources of the running Python's standard library."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["find_sources"]

#: Fewer files than this would be no demonstration: then tests are taken too, and what else is
#: installed.
ENOUGH = 300

#: More files than this only take time.
AT_MOST = 800

_INSTALLED = frozenset({"site-packages", "dist-packages", "__pycache__"})
_TESTS = frozenset({"test", "tests", "idle_test"})


def find_sources(root: Path | None = None, *, enough: int = ENOUGH) -> list[Path]:
    """Return source files in the order of their names.

    Args:
        root: Where to look, the standard library if None.
        enough: With fewer files, look further.
    """
    found: list[Path] = []
    root = root or Path(sysconfig.get_path("stdlib"))
    for passed_over in (_INSTALLED | _TESTS, _INSTALLED, frozenset({"__pycache__"})):
        found = sorted(_walk(root, passed_over))
        if len(found) >= enough:
            break
    return found[:AT_MOST]


def _walk(root: Path, passed_over: frozenset[str]) -> Iterator[Path]:
    for folder, names, files in os.walk(root):
        names[:] = [name for name in names if name not in passed_over]
        for file in files:
            path = Path(folder, file)
            if path.suffix == ".py" and path.is_file() and os.access(path, os.R_OK):
                yield path
