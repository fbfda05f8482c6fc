"""Moments that were said as "2h" ago, and mean another time each time that they are said."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.cli.command import read_moment

if TYPE_CHECKING:
    import click

__all__ = ["Moment", "read", "words_of"]


class Moment(float):
    """Unix time in seconds, and the words for it."""

    __slots__ = ("words",)

    words: str


def read(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Return the moment that an option says, with its words; None if it was not given.

    Raises:
        BadParameter: It is no moment.
    """
    seconds = read_moment(ctx, param, value)
    if seconds is None or value is None:
        return None
    moment = Moment(seconds)
    moment.words = value
    return moment


def words_of(**moments: float | None) -> dict[str, str]:
    """Return the words of those moments that were said in words, by their names."""
    return {name: moment.words for name, moment in moments.items() if isinstance(moment, Moment)}
