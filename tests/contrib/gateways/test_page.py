"""The gateway of the page "Write a gateway" keeps the contract."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "write-a-gateway.rst"

BLOCKS = re.findall(r"\.\. code-block:: python\n\n((?:   .*\n|\n)+)", PAGE.read_text("utf-8"))

space: dict = {"__name__": __name__}
exec(compile("\n".join(map(textwrap.dedent, BLOCKS)), str(PAGE), "exec"), space)


class TestTheGatewayOfThePage(space["TestLines"]):
    """What a reader would have after copying all blocks."""


def test_its_factory_reads_options():
    assert ["lines"] == list(space["eventmq_gateways"]())
