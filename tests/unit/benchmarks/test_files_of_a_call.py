"""The recording counts files in which a function runs while it is on, and no others."""

from __future__ import annotations

import importlib.util
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from benchmarks.files_of_a_call import Recording

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import ModuleType


@pytest.fixture(autouse=True)
def profile_of_before() -> Iterator[None]:
    before = sys.getprofile()
    yield
    sys.setprofile(before)
    threading.setprofile(None)


def module(path: Path, text: str) -> ModuleType:
    path.write_text(text, "utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_only_what_runs_while_it_is_on_is_recorded(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    before = module(package / "before.py", "def run(): ...")
    during = module(package / "during.py", "def run(): ...")
    thread = module(package / "thread.py", "def run(): ...")
    outside = module(tmp_path / "outside.py", "def run(): ...")
    recording = Recording(tmp_path, package)
    recording.record("client")
    before.run()
    recording.switch(on=True)
    during.run()
    during.run()
    outside.run()
    module(package / "imported.py", "value = 1")
    other = threading.Thread(target=thread.run)
    other.start()
    other.join()
    recording.switch(on=False)
    before.run()
    assert {"during.py", "thread.py"} == recording.files("client")


def test_another_recording_in_the_same_folder_is_switched_with_it(tmp_path: Path) -> None:
    """As in the processes of broker and worker, which map the same byte."""
    package = tmp_path / "package"
    package.mkdir()
    during = module(package / "during.py", "def run(): ...")
    recording, other = Recording(tmp_path, package), Recording(tmp_path, package)
    recording.record("broker")
    other.switch(on=True)
    during.run()
    assert {"during.py"} == recording.files("broker")
