"""Which exception of a worker a client makes anew: one whose class it has already.

A message must not make a client import anything, nor run code that it would not have run. So a
class is looked for only in modules that are imported here, it must be an `Exception`, and
`eventmq.wire.exceptions` makes the object without its constructor.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from eventmq.client.main_module import main_name
from eventmq.wire.exceptions import rebuild

if TYPE_CHECKING:
    from eventmq.wire.results import RemoteError

__all__ = ["original"]


def original(remote: RemoteError) -> Exception | None:
    """Return an exception like the worker's, or None if its class is not imported here."""
    return rebuild(remote, _find_class)


def _find_class(dotted: str) -> type[Exception] | None:
    parts = dotted.split(".")
    for end in range(len(parts) - 1, 0, -1):
        name = ".".join(parts[:end])
        module = sys.modules.get(name)
        if module is None and name == main_name():
            module = sys.modules["__main__"]
        if module is not None:
            return _class_in(module, parts[end:])
    return None


def _class_in(module: object, path: list[str]) -> type[Exception] | None:
    found: object = module
    for part in path:
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    return found if isinstance(found, type) and issubclass(found, Exception) else None
