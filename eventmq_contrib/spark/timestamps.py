"""Timestamps of options, with the original text: "2h" means another time at each start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.cli import read_timestamp

if TYPE_CHECKING:
    import click

__all__ = ["RelativeTimestamp", "read", "texts_of"]


class RelativeTimestamp(float):
    """Unix time in seconds, with its original text."""

    __slots__ = ("text",)

    text: str


def read(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Return the timestamp of an option, None if it was not used.

    Raises:
        BadParameter: It is not a timestamp.
    """
    seconds = read_timestamp(ctx, param, value)
    if seconds is None or value is None:
        return None
    timestamp = RelativeTimestamp(seconds)
    timestamp.text = value
    return timestamp


def texts_of(**timestamps: float | None) -> dict[str, str]:
    """Return the original texts of timestamps, by name."""
    return {
        name: timestamp.text
        for name, timestamp in timestamps.items()
        if isinstance(timestamp, RelativeTimestamp)
    }
