"""Titles of EventMQ's processes, as ``ps`` and ``top`` show them: ``eventmq: worker shop``.

The library ``setproctitle`` sets them. Without it, processes keep their names.
"""

from __future__ import annotations

try:
    import setproctitle
except ImportError:
    setproctitle = None  # type: ignore[assignment]

__all__ = ["set_title"]


def set_title(role: str, detail: str = "") -> None:
    """Set the title of this process; a call takes about 2 us.

    Args:
        role: Such as ``worker``.
        detail: The app, or the running task; printable.
    """
    if setproctitle is not None:
        setproctitle.setproctitle(f"eventmq: {role} {detail}".rstrip())
