"""Which Java Spark is started on."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from eventmq.errors import PluginError
from eventmq_contrib.spark import java as module
from eventmq_contrib.spark.java import Java, find_java, java_home, packaged_java, write_home

if TYPE_CHECKING:
    from pathlib import Path


def a_java(folder: Path, says: str, code: int = 0) -> Path:
    """Make a program that prints its version like a Java, on stderr."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit {code}\n", encoding="utf-8")
    program.chmod(0o755)
    return program


@pytest.fixture
def nothing_packaged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "packaged_java", lambda: None)


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    home = a_java(tmp_path / "home", 'openjdk version "21.0.2" 2024-01-16')
    path = a_java(tmp_path / "path", 'openjdk version "17.0.15" 2025-04-15')
    environ = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(path.parent)}
    assert find_java(environ) == Java(home, 21, packaged=False)
    del environ["JAVA_HOME"]
    assert find_java(environ) == Java(path, 17, packaged=False)


def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    a_java(tmp_path / "home", 'java version "1.8.0_402"')
    path = a_java(tmp_path / "path", 'openjdk version "24" 2025-03-18')
    environ = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(path.parent)}
    assert find_java(environ) == Java(path, 24, packaged=False)


def test_the_packaged_java_is_the_last(tmp_path: Path) -> None:
    """Also where those of the system are too old or do not start."""
    a_java(tmp_path / "home", 'openjdk version "11.0.22"')
    broken = a_java(tmp_path / "path", "no such file", code=1)
    environ = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(broken.parent)}
    assert find_java(environ) == packaged_java()
    assert find_java({"PATH": ""}).packaged


@pytest.mark.usefixtures("nothing_packaged")
def test_without_any_java_one_sentence_tells_what_to_do() -> None:
    with pytest.raises(PluginError) as caught:
        find_java({"PATH": ""})
    assert str(caught.value) == (
        "Spark needs Java 17 or newer: neither JAVA_HOME nor PATH has one; install one, or "
        "pip install '.[spark-jre]'"
    )


@pytest.mark.usefixtures("nothing_packaged")
def test_a_wrong_java_is_named(tmp_path: Path) -> None:
    home = a_java(tmp_path / "home", 'openjdk version "11.0.22"')
    path = a_java(tmp_path / "path", "what?")
    with pytest.raises(PluginError) as caught:
        find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(path.parent)})
    assert f"JAVA_HOME has Java 11 ({home})" in str(caught.value)
    assert f"PATH has none that starts ({path})" in str(caught.value)


def test_the_packaged_java_is_started_without_what_it_lacks(tmp_path: Path) -> None:
    """And with all other arguments as they are."""
    home = tmp_path / "a home"
    arguments = tmp_path / "print.py"
    arguments.write_text("import sys; print(sys.argv[1:])", encoding="utf-8")
    starter = tmp_path / "start er"
    starter.write_text(f'#!/bin/sh\nexec {sys.executable} {arguments} "$@"\n', encoding="utf-8")
    starter.chmod(0o755)
    write_home(Java(starter, 25, packaged=True), home)
    given = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "", "*", "-Dx='y'"]
    done = subprocess.run(
        [home / "bin" / "java", *given], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str([word for word in given if "vector" not in word])


def test_the_environment_is_as_it_was_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inside, JAVA_HOME is that of the wrapper, or not there where it would be wrong."""
    old = a_java(tmp_path / "home", 'openjdk version "11.0.22"').parents[1]
    path = a_java(tmp_path / "path", 'openjdk version "17.0.1"').parent
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setenv("PATH", str(path))
    with java_home() as java:
        assert java.version == 17
        assert "JAVA_HOME" not in os.environ
    assert os.environ["JAVA_HOME"] == str(old)
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(old / "bin"))
    with java_home() as java:
        assert java.packaged
        home = os.environ["JAVA_HOME"]
        assert os.access(f"{home}/bin/java", os.X_OK)
    assert "JAVA_HOME" not in os.environ
    assert not os.path.exists(home)  # noqa: PTH110 - a text of the environment


def test_the_packaged_java_starts(tmp_path: Path) -> None:
    java = packaged_java()
    assert java is not None
    home = write_home(java, tmp_path)
    command = [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f'version "{java.version}' in done.stderr
