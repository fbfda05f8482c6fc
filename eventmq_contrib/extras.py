"""Libraries of the extras: whether one is there is asked where it is needed, and never before."""

from __future__ import annotations

import importlib

from eventmq.errors import PluginError

__all__ = ["need"]


def need(module: str, *, user: str, extra: str = "spark") -> None:
    """See that a library is there.

    Args:
        module: What is imported of it; the name of the library is up to the first dot.
        user: Who needs it, as it is to be told: ``eventmq journal``.
        extra: Of EventMQ, that brings it.

    Raises:
        PluginError: It is not there.
    """
    try:
        importlib.import_module(module)
    except ImportError as error:
        library = module.partition(".")[0]
        msg = f"{user} needs {library}: pip install '.[{extra}]'"
        raise PluginError(msg) from error
