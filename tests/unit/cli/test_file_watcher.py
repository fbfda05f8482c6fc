"""What counts as a change of code, on real files."""

from __future__ import annotations

import os
from queue import SimpleQueue

import pytest

from eventmq.cli import dev
from eventmq.cli.dev import FileWatcher, snapshot

DEADLINE = 20.0


@pytest.fixture(name="folder")
def code(tmp_path):
    for path in ("shop/__init__.py", "shop/tasks.py", "eventmq.toml", "notes.txt"):
        write(tmp_path / path, "1")
    return tmp_path


@pytest.fixture(name="changes")
def watching_it(folder, monkeypatch):
    monkeypatch.setattr(dev, "INTERVAL", 0.02)
    changes = SimpleQueue()
    watcher = FileWatcher(folder, changes.put)
    yield changes
    watcher.stop()


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_python_files_and_settings_are_watched_and_nothing_else(folder):
    for path in (
        ".git/hook.py", "__pycache__/x.py", "node_modules/x.py", "sub/eventmq.toml", "data.db",
        "venv/lib/x.py", "venv/pyvenv.cfg", "deep/lib/site-packages/x.py",
    ):  # fmt: skip
        write(folder / path, "1")
    watched = {"shop/__init__.py", "shop/tasks.py", "eventmq.toml"}
    assert watched == {path.replace(os.sep, "/") for path in snapshot(folder)}


def test_a_file_that_cannot_be_looked_at_is_none(folder):
    (folder / "dangling.py").symlink_to(folder / "nowhere")
    assert "dangling.py" not in snapshot(folder)


def test_the_number_of_files_is_bounded(folder, monkeypatch):
    monkeypatch.setattr(dev, "MAX_FILES", 2)
    for number in range(9):
        write(folder / f"many{number}/x.py", "1")
    assert len(snapshot(folder)) < 9


def test_written_new_and_removed_files_are_reported(folder, changes):
    write(folder / "shop" / "tasks.py", "12")
    assert changes.get(timeout=DEADLINE) == [f"shop{os.sep}tasks.py"]
    write(folder / "new.py", "1")
    assert changes.get(timeout=DEADLINE) == ["new.py"]
    (folder / "new.py").unlink()
    assert changes.get(timeout=DEADLINE) == ["new.py"]


def test_other_files_change_nothing(folder, changes):
    write(folder / "notes.txt", "12")
    write(folder / "new.py", "1")
    assert changes.get(timeout=DEADLINE) == ["new.py"]
    assert changes.empty()
