"""Chains, groups and chords from end to end: the page about them."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent

import pytest

from eventmq import EventMQ, ResultTooLarge, chain, chord, group

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "workflows" / "compose-jobs.rst"


def test_the_examples_of_the_page_do_what_they_say() -> None:
    """All blocks, one after the other, as a reader would type them."""
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"^\.\. code-block:: python\n\n((?:(?: {3}.*)?\n)+)", text, re.MULTILINE)
    assert len(blocks) == 10
    names: dict[str, object] = {"__name__": "shop"}
    for block in blocks:
        exec(compile(dedent(block), str(PAGE), "exec"), names)


@pytest.mark.parametrize("pool", ["threads", "asyncio"])
def test_a_callback_takes_more_than_a_message_may_have(pool: str) -> None:
    """In order and nested; the next link, whose input alone is too long for a body, too."""
    with EventMQ("paging", broker="memory://", max_frame=200_000, pool=pool) as app:

        @app.task(name="fill")
        def fill(number: int) -> bytes:
            return bytes([number]) * 60_000

        @app.task(name="measure")
        def measure(parts: list[bytes | list[bytes]]) -> list[object]:
            return [[p[0], len(p)] if isinstance(p, bytes) else measure(p) for p in parts]

        @app.task(name="join")
        async def join(parts: list[bytes]) -> bytes:
            return b"".join(parts)

        @app.task(name="size")
        def size(data: bytes, *more: int) -> int:
            return len(data) + sum(more)

        members = [fill.s(1), group([fill.s(n) for n in (2, 3, 4)]), fill.s(5)]
        value = chord(members, measure.s()).delay().get(timeout=20)
        two, three, four = ([n, 60_000] for n in (2, 3, 4))
        assert value == [[1, 60_000], [two, three, four], [5, 60_000]]
        short = chain(chord([fill.s(7), fill.s(8)], join.s()), size.s(1))
        assert short.delay().get(timeout=20) == 120_001


def test_a_callback_that_would_take_too_much_fails() -> None:
    """And the error names the setting that would allow it."""
    options = {"max_frame": 100_000, "max_input_bytes": 150_000}
    with EventMQ("paging", broker="memory://", **options) as app:

        @app.task(name="fill")
        def fill() -> bytes:
            return bytes(20_000)

        job = chord([fill.s()] * 10, app.task(name="count")(len).s()).delay()
        with pytest.raises(ResultTooLarge, match="the limit is 150000, from the setting max_input"):
            job.get(timeout=20)
