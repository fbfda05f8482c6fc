"""What a terminal would act on is escaped, in one place."""

from __future__ import annotations

import pytest

from eventmq.text import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("mail", "mail"),
        ("日本 é 🎉", "日本 é 🎉"),
        ("\x1b[31mred\x07", r"\x1b[31mred\x07"),
        ("two\nlines\r\tend", r"two\nlines\r\tend"),
        ("\x9b31m", r"\x9b31m"),
        ("txt.\u202egpj\u2066", r"txt.\u202egpj\u2066"),
        ("in\u200bvisible\u2028", r"in\u200bvisible\u2028"),
        ("half \ud83d", r"half \ud83d"),
        ("", ""),
    ],
)
def test_what_a_terminal_acts_on_is_escaped(text: str, shown: str) -> None:
    """ESC, BEL and line breaks, C1 controls, direction marks, invisible ones, half surrogates."""
    assert shown == printable(text)


def test_characters_that_are_kept_stay() -> None:
    assert "a\nb\\x1b\tc" == printable("a\nb\x1b\tc", keep="\n\t")
