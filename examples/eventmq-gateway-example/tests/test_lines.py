"""The protocol, without a socket."""

from __future__ import annotations

from eventmq_gateway_example.lines import Lines


def test_lines_may_come_in_pieces() -> None:
    lines = Lines(100)
    for piece in (b"add 1", b" 2\nadd", b" 3 4\n"):
        lines.receive(piece)
    assert lines.requests == [["add", "1", "2"], ["add", "3", "4"]]


def test_a_line_without_an_end_is_broken() -> None:
    lines = Lines(10)
    lines.receive(b"x" * 11)
    assert lines.broken
