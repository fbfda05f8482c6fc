"""How far a job is, and its failed attempts, as ``job`` and ``failed show`` print them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from eventmq.cli.output import printable, show_rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eventmq.wire.results import RemoteError

__all__ = ["attempts_of", "error_of", "progress_of", "show_attempts", "traceback_of"]

_COLUMNS = ("attempt", "delivery", "finished", "started", "ran", "worker", "error")


def _error(data: bytes | RemoteError | None) -> RemoteError | None:
    from eventmq.wire.results import decode_error

    return (decode_error(data) if isinstance(data, bytes) else data) if data else None


def error_of(data: bytes | RemoteError | None) -> str | None:
    """Return an error, which may be encoded, as one text, None for none."""
    error = _error(data)
    if error is None:
        return None
    return f"{error.type.rpartition('.')[2]}: {error.message}".removeprefix(": ")


def traceback_of(data: bytes | RemoteError | None) -> str | None:
    """Return the traceback of an error, which may be encoded, None if there is none."""
    error = _error(data)
    return error.traceback or None if error is not None else None


def progress_of(about: Mapping[str, Any] | None) -> str | None:
    """Return how far a job is as one text, such as ``30/100 rows``, None if it does not say."""
    if not about:
        return None
    total = "" if about["total"] is None else f"/{about['total']:g}"
    return f"{about['done']:g}{total} {printable(about['note'])}".rstrip()


def attempts_of(info: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the failed attempts of a job as flat objects, the first one first."""
    return [
        {
            "attempt": row["attempt"],
            "delivery": row["delivery"],
            "finished": row["at"] or None,
            "started": row["started"] or None,
            "ran": row["ran"],
            "worker": row["worker"],
            "error": error_of(row["error"]),
            "traceback": traceback_of(row["error"]),
        }
        for row in info.get("attempts", ())
    ]


def show_attempts(info: Mapping[str, Any], *, tracebacks: bool = False) -> None:
    """Print the failed attempts of a job for people; nothing if there are none."""
    attempts = attempts_of(info)
    if not attempts:
        return
    click.echo("\nfailed attempts:")
    show_rows(attempts, _COLUMNS, as_json=False)
    for row in attempts if tracebacks else ():
        if row["traceback"]:
            click.echo(f"\ntraceback of attempt {row['attempt']}:")
            click.echo("\n".join(map(printable, row["traceback"].splitlines())))
