from __future__ import annotations

from pathlib import Path

from eventmq.cli.page import section
from eventmq_contrib.gateways.emp.command import call

PAGE = Path(__file__).parents[4] / "docs" / "reference" / "gateways.rst"


def test_the_reference_has_the_command_as_it_is() -> None:
    """The page of the command line lists the program's own commands; this one is a plugin's."""
    assert "".join(section("emp call", call)) in PAGE.read_text(encoding="utf-8")
