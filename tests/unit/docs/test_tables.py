"""Each line of a simple table belongs to the row that its writer meant.

A line whose first cell has text begins a row, also where that text goes on from the line above.
"""

from __future__ import annotations

import re

import pytest

from tests.support.page_files import ROOT

PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in (*ROOT.glob("docs/**/*.rst"), *ROOT.glob("*.rst"))
}
EDGE = re.compile(r"^( *=+ +)=+(?: +=+)* *$")


def split_rows(text: str) -> list[str]:
    """Return the lines of tables that begin a row whose other cells are all empty."""
    found = []
    edges, second, before = 0, 0, ""
    for line in text.splitlines():
        if edge := EDGE.match(line):
            edges += 1
            second = edge.end(1)
        elif EDGE.match(before) and not line:  # the end of the table
            edges = 0
        elif edges == 2 and line[:second].strip() and not line[second:].strip():
            found.append(line)
        before = line
    return found


@pytest.mark.parametrize("page", PAGES)
def test_no_row_of_a_table_is_a_rest_of_the_row_above(page: str) -> None:
    """Use a list-table where the first cell takes several lines."""
    assert split_rows(PAGES[page]) == []


def test_such_a_row_is_found() -> None:
    table = "====== ====\nwhat   is\n====== ====\na long  1\nname\nb      2\n====== ====\n"
    assert split_rows(table) == ["name"]
    assert split_rows(table.replace("name\n", "       of it\n")) == []
