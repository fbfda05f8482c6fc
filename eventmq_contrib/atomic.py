"""Atomic writes of files: written beside the old file, synced, renamed; the folder is synced."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import BinaryIO

__all__ = ["replacing", "sync_folder", "write_file"]


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a file that replaces ``path`` at the end, or is removed after an error.

    Until then its name begins with ``_``, so that readers skip it, even if a killed process left
    it.
    """
    temporary = path.with_name(f"_{path.name}")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_file(path: Path, content: bytes | memoryview | str) -> None:
    """Write or replace a file; its folder is made if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def sync_folder(path: Path) -> None:
    """Make sure that the names in a folder are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
