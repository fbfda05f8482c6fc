"""Creates files and folders that only their owner can use, whatever the umask.

Existing files and folders keep their mode; `wider` returns those that other users can use.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["make_private_file", "make_private_folder", "open_private", "wider"]

#: Modes of new folders and files.
FOLDER_MODE, FILE_MODE = 0o700, 0o600

#: Permission bits of group and others.
_OTHERS = 0o077


def make_private_folder(path: Path) -> None:
    """Create a folder with mode 0700 unless it exists; missing parents get the usual mode.

    Raises:
        OSError: The folder cannot be created, or the path is not a folder.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir(FOLDER_MODE)
    except FileExistsError:
        if not path.is_dir():
            raise
        return
    path.chmod(FOLDER_MODE)  # the umask may have cleared bits


def make_private_file(path: Path) -> None:
    """Create an empty file with mode 0600 unless it exists.

    An existing file is not opened, since closing it would end this process's locks on it.

    Raises:
        OSError: The file cannot be created.
    """
    with suppress(FileExistsError):
        os.close(_make(path))


def open_private(path: Path) -> int:
    """Open a file to read and write it, creating it with mode 0600; return the descriptor.

    Raises:
        OSError: The file cannot be opened.
    """
    try:
        return _make(path)
    except FileExistsError:
        return os.open(path, os.O_RDWR | os.O_CREAT, FILE_MODE)


def _make(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, FILE_MODE)
    path.chmod(FILE_MODE)  # the umask may have cleared bits
    return descriptor


def wider(paths: Iterable[Path]) -> list[tuple[Path, int]]:
    """Return path and mode of those paths that users other than their owner can use."""
    exposed = []
    for path in paths:
        try:
            mode = path.stat().st_mode & 0o777
        except OSError:
            continue
        if mode & _OTHERS and hasattr(os, "getuid"):  # elsewhere modes have no meaning
            exposed.append((path, mode))
    return exposed
