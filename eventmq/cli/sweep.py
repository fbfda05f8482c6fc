"""Operations on many jobs: by id in parts, or by filters as a sweep that is watched to its end."""

from __future__ import annotations

import sys
import time
import uuid
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventmq.app import EventMQ

__all__ = ["in_parts", "sweep"]

#: Seconds between two questions how far it is: the first, and the longest.
_FIRST, _LONGEST = 0.005, 0.5


def in_parts(app: EventMQ, name: str, ids: Sequence[str], **more: Any) -> list[list[str]]:
    """Call an operation that takes ids, as many at a time as it takes; return all rows."""
    from eventmq.wire.calls import MAX_IDS

    rows: list[list[str]] = []
    for start in range(0, len(ids), MAX_IDS):
        rows += app.ask(name, {"ids": list(ids[start : start + MAX_IDS]), **more})
    return rows


def sweep(app: EventMQ, action: str, **filters: Any) -> int:
    """Cancel, retry or drop jobs by filters; return how many that were.

    The broker does it slice by slice. It goes on if this process ends, and over a restart of the
    broker; on a terminal people see how far it is.
    """
    arguments = {"id": uuid.uuid4().hex, "action": action, **filters}
    wait, shown = _FIRST, False
    while True:
        answer = app.ask("bulk", arguments)
        if answer["done"]:
            if shown:
                click.echo(err=True)
            return int(answer["count"])
        if wait >= _LONGEST and sys.stderr.isatty():
            click.echo(f"\r{answer['count']} jobs so far", err=True, nl=False)
            shown = True
        time.sleep(wait)
        wait = min(2 * wait, _LONGEST)
