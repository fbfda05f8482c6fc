"""The app: the only place where settings, plugins, client, broker and worker are put together.

`app` has the class `EventMQ`. `wiring` makes its components when first used; `broker`, `worker` and
`beat` make what the command line runs; `embedded` runs all three inside a ``memory://`` app;
`log_fields` has the fields of log records. This module loads an app by its name, as processes of a
worker do, so it is above the class in the layers, and the rest of the package below it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from eventmq.app.app import EventMQ
from eventmq.app.log_fields import add_fields
from eventmq.errors import AppNotFound

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eventmq.execution.executor import Executor

__all__ = ["EventMQ", "load_app", "load_executor"]

add_fields()  # here, so that lines logged before an app is made have them


def load_app(path: str) -> EventMQ:
    """Import an app.

    Args:
        path: ``module:attribute`` of the app.

    Raises:
        AppNotFound: The module has no such app.
    """
    module, _, attribute = path.partition(":")
    target: Any = importlib.import_module(module)
    for part in attribute.split("."):
        target = getattr(target, part, None)
    if not isinstance(target, EventMQ):
        raise AppNotFound(f"{path} is not an app; name one as module:attribute")
    return target


def load_executor(*, path: str, overrides: Mapping[str, Any], spool: str = "") -> Executor:
    """Import an app and return the executor of its jobs. Called in child processes of a pool.

    Args:
        path: ``module:attribute`` of the app.
        overrides: Arguments of `EventMQ.override` in the worker's process.
        spool: Folder of the worker for inputs that are too large for a REQUEST.

    Raises:
        AppNotFound: The module has no such app.
    """
    app = load_app(path)
    app.override(**overrides)
    app.load_tasks()
    return app.make_executor(spool)
