"""Makes files and folders that only their owner can use, whatever the umask.

What is there already keeps its mode: `wider` tells which paths others can use.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["make_private_file", "make_private_folder", "open_private", "wider"]

#: Modes of what is made here.
FOLDER_MODE, FILE_MODE = 0o700, 0o600

#: What others than the owner may do.
_OTHERS = 0o077


def make_private_folder(path: Path) -> None:
    """Make a folder with mode 0700 unless it is there; missing parents get the usual mode.

    Raises:
        OSError: It cannot be made, or is no folder.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir(FOLDER_MODE)
    except FileExistsError:
        if not path.is_dir():
            raise
        return
    path.chmod(FOLDER_MODE)  # the umask may have taken from the mode


def make_private_file(path: Path) -> None:
    """Make an empty file with mode 0600 unless it is there.

    A file that is there is not opened: to close it would end the locks that this process has on it.

    Raises:
        OSError: It cannot be made.
    """
    with suppress(FileExistsError):
        os.close(_make(path))


def open_private(path: Path) -> int:
    """Return a descriptor to read and write a file, made with mode 0600 where it is missing.

    Raises:
        OSError: It cannot be opened.
    """
    try:
        return _make(path)
    except FileExistsError:
        return os.open(path, os.O_RDWR | os.O_CREAT, FILE_MODE)


def _make(path: Path) -> int:
    made = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, FILE_MODE)
    path.chmod(FILE_MODE)  # the umask may have taken from the mode
    return made


def wider(paths: Iterable[Path]) -> list[tuple[Path, int]]:
    """Return path and mode of those that others than their owner can use; missing ones are not."""
    found = []
    for path in paths:
        try:
            mode = path.stat().st_mode & 0o777
        except OSError:
            continue
        if mode & _OTHERS and hasattr(os, "getuid"):  # elsewhere modes say nothing
            found.append((path, mode))
    return found
