"""What counts as a change of code, on real files."""

from __future__ import annotations

import os
import sys
from queue import SimpleQueue
from typing import TYPE_CHECKING

import pytest
import watchfiles

from eventmq.cli.dev import FileWatcher
from eventmq.errors import EventMQError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DEADLINE = 20.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    for path in ("shop/__init__.py", "shop/tasks.py", "eventmq.toml", "notes.txt"):
        write(folder / path, "1")
    return folder


@pytest.fixture
def changes(folder: Path) -> Iterator[SimpleQueue[list[str]]]:
    changes: SimpleQueue[list[str]] = SimpleQueue()
    watcher = FileWatcher(folder, changes.put)
    yield changes
    watcher.stop()
    watcher.stop()


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_written_new_and_removed_files_are_reported(folder, changes) -> None:
    write(folder / "shop" / "tasks.py", "12")
    assert [f"shop{os.sep}tasks.py"] == changes.get(timeout=DEADLINE)
    write(folder / "new.py", "1")
    assert ["new.py"] == changes.get(timeout=DEADLINE)
    (folder / "new.py").unlink()
    assert ["new.py"] == changes.get(timeout=DEADLINE)
    write(folder / "eventmq.toml", "12")
    assert ["eventmq.toml"] == changes.get(timeout=DEADLINE)


def test_files_that_are_saved_together_are_one_change(folder, changes) -> None:
    names = [f"new{number}.py" for number in range(50)]
    for name in names:
        write(folder / name, "1")
    assert sorted(names) == changes.get(timeout=DEADLINE)


@pytest.mark.parametrize(
    "path",
    [
        "notes.txt", "data.db", ".git/hook.py", "__pycache__/x.py", "node_modules/x.py",
        "sub/eventmq.toml", "deep/lib/site-packages/x.py", "venv/lib/x.py",
    ],
)  # fmt: skip
def test_other_files_change_nothing(folder, path) -> None:
    """Those of libraries and tools, and in environments, as well."""
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    write(folder / "venv" / "pyvenv.cfg", "")
    changes: SimpleQueue[list[str]] = SimpleQueue()
    watcher = FileWatcher(folder, changes.put)
    try:
        write(folder / path, "12")
        write(folder / "new.py", "1")
        assert ["new.py"] == changes.get(timeout=DEADLINE)
        assert changes.empty()
    finally:
        watcher.stop()


def test_without_the_library_the_extra_is_named(folder, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    with pytest.raises(EventMQError, match=r"pip install '\.\[reload\]'"):
        FileWatcher(folder, print)


def test_a_folder_that_the_system_does_not_watch_is_named(folder, monkeypatch) -> None:
    def watch(*_: object, **__: object) -> Iterator[None]:
        raise OSError("OS file watch limit reached")
        yield

    monkeypatch.setattr(watchfiles, "watch", watch)
    with pytest.raises(EventMQError, match=r"project cannot be watched: OS file watch limit"):
        FileWatcher(folder, print)
