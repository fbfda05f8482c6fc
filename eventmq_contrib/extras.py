"""Libraries of the extras: checked when they are needed, not before."""

from __future__ import annotations

import importlib

from eventmq.errors import PluginError

__all__ = ["need"]


def need(module: str, *, user: str, extra: str = "spark") -> None:
    """Check that a library is installed.

    Args:
        module: Module of the library; its first part is the library's name.
        user: Name of what needs it, for the error, such as ``eventmq journal``.
        extra: Extra of EventMQ that installs it.

    Raises:
        PluginError: The library is not installed.
    """
    try:
        importlib.import_module(module)
    except ImportError as error:
        library = module.partition(".")[0]
        msg = f"{user} needs {library}: pip install '.[{extra}]'"
        raise PluginError(msg) from error
