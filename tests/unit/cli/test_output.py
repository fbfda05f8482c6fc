from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from eventmq.cli.command import print_error
from eventmq.cli.output import byte_size, paint, printable, show_object, show_rows, to_json
from eventmq.errors import EventMQError

if TYPE_CHECKING:
    import pytest

ROWS = [{"name": "a", "waiting": 10, "paused": False, "created": 0.0, "more": 1}, {"name": "long"}]
COLUMNS = ("name", "waiting", "paused", "created")


class Terminal:
    """Stands for a stream of a terminal."""

    def __init__(self) -> None:
        self.text = ""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None: ...


class Size(Enum):
    LARGE = "L"


@dataclass
class Parcel:
    at: Path
    size: Size


def become_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Let stdout be a terminal for the rest of the test."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return stream


def test_json_has_the_columns_and_nothing_else(capsys) -> None:
    show_rows(ROWS, COLUMNS, as_json=True, empty="nothing")
    shown = json.loads(capsys.readouterr().out)
    assert [COLUMNS, COLUMNS] == [tuple(row) for row in shown]
    assert {"name": "long", "waiting": None, "paused": None, "created": None} == shown[1]


def test_an_empty_listing_is_an_empty_list_and_words_on_stderr(capsys) -> None:
    show_rows([], COLUMNS, as_json=True, empty="nothing")
    assert ("[]\n", "") == capsys.readouterr()
    show_rows([], COLUMNS, as_json=False, empty="nothing")
    assert ("", "nothing\n") == capsys.readouterr()


def test_columns_in_a_pipe_are_aligned(capsys) -> None:
    show_rows(ROWS, COLUMNS, as_json=False)
    assert [
        "name  waiting  paused  created",
        "a     10       no      -",
        "long  -        -       -",
    ] == capsys.readouterr().out.splitlines()


def test_a_pipe_with_a_width_is_like_a_terminal_of_that_width(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "12")
    show_rows(ROWS, COLUMNS, as_json=False, gives_way=("created", "paused"))
    lines = capsys.readouterr().out.splitlines()
    assert 3 == len(lines)
    assert max(map(len, lines)) <= 12
    show_rows(ROWS, COLUMNS, as_json=False, wide=True)
    assert "long  -        -       -" == capsys.readouterr().out.splitlines()[2]


def test_control_characters_of_other_people_are_escaped(capsys) -> None:
    show_rows([{"name": "\x1b[2Jé\n"}], ("name",), as_json=False)
    assert "name\n\\x1b[2Jé\\n\n" == capsys.readouterr().out
    assert "é" == printable("é")


def test_names_of_fields_are_escaped(capsys) -> None:
    """The status has one field per queue."""
    show_object({"queues.\x1b[2J": 1, "x": 2}, as_json=False)
    assert ["queues.\\x1b[2J  1", "x               2"] == capsys.readouterr().out.splitlines()


def test_json_stays_json_without_control_characters() -> None:
    value = {"a\x9b": ["\x1b\n", "é \U0001f389", "\u202e", "\ud83d", "\U000e0001"]}
    for text in (to_json(value), to_json(value, indent=2).replace("\n", "")):
        assert text.isprintable()
        assert "é \U0001f389" in text
        assert value == json.loads(text)


def test_an_error_is_one_printable_line(capsys) -> None:
    """``call --wait`` prints what the task raised."""
    print_error(EventMQError("job x failed: \x1b[2J\x07bad\nnews"))
    assert "error: job x failed: \\x1b[2J\\x07bad news\n" == capsys.readouterr().err


def test_one_object_is_a_line_for_each_field(capsys) -> None:
    show_object({"id": "a", "ran": 0.00025, "tags": ["x", 1]}, as_json=False)
    assert ["id    a", "ran   0.25 ms", 'tags  ["x", 1]'] == capsys.readouterr().out.splitlines()


def test_lengths_of_time_have_their_unit_for_people_only(capsys) -> None:
    row = {"ran": 0.012, "seen": 1.2, "round_trip": 0.0005}
    show_rows([row], tuple(row), as_json=False)
    assert "12 ms  1.2 s ago  0.5 ms" == capsys.readouterr().out.splitlines()[1]
    show_rows([row], tuple(row), as_json=True)
    assert [row] == json.loads(capsys.readouterr().out)


def test_a_text_of_several_lines_stands_below_its_name(capsys) -> None:
    show_object({"id": "a", "traceback": "Traceback:\n  File \x1b[2J\nError\n"}, as_json=False)
    assert [
        "id         a",
        "traceback",
        "    Traceback:",
        "      File \\x1b[2J",
        "    Error",
    ] == capsys.readouterr().out.splitlines()


def test_a_text_of_one_line_stands_beside_its_name(capsys) -> None:
    """A traceback of one line ends with a line break too."""
    show_object({"id": "a", "traceback": "WorkerLost: it died\n"}, as_json=False)
    assert "traceback  WorkerLost: it died\n" in capsys.readouterr().out


def test_a_terminal_gets_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = become_terminal(monkeypatch)
    show_rows([{"name": "[bold]a", "waiting": 1}], ("name", "waiting"), as_json=False)
    assert "\x1b[" in terminal.text
    assert "[bold]a" in terminal.text


def test_colours_are_for_terminals_without_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    become_terminal(monkeypatch)
    assert "\x1b[32m" in paint("x", "green")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "x" == paint("x", "green")


def test_results_that_are_of_a_class_are_shown_in_their_plain_form() -> None:
    """As they were serialised, and as arguments are typed."""
    assert '{"at": "a/b", "size": "L"}' == to_json(Parcel(Path("a/b"), Size.LARGE))
    assert '"2026-01-02T03:04:05+00:00"' == to_json(
        datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
    )


def test_values_without_a_form_in_json_become_text() -> None:
    assert '{"a": [1], "b": "x"}' == to_json({"a": (1,), "b": b"x"})


def test_sizes_have_the_unit_that_suits_them() -> None:
    sizes = (0, 512, 1010, 65536, 268_435_456, 80_830_488_576, 2**51)
    assert ["0 B", "512 B", "1010 B", "64 KiB", "256 MiB", "75.3 GiB", "2,097,152 GiB"] == [
        byte_size(size) for size in sizes
    ]
