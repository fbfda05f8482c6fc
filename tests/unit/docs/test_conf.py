"""The build of the pages fails where a reader would see an error."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.page_files import ROOT

if TYPE_CHECKING:
    from types import ModuleType

DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def conf() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_conf", DOCS / "conf.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def boxes(conf: ModuleType, caplog: pytest.LogCaptureFixture, html: str) -> list[str]:
    caplog.clear()
    context: dict[str, Any] = {"body": html}
    conf.find_error_boxes(None, "protocol", "page.html", context)
    return [record.getMessage() for record in caplog.records]


def test_a_page_with_an_error_box_is_a_warning(
    conf: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    for html in (
        '<nav class="contents local" id="on-this-page">',
        '<aside class="system-message">',
        '<span class="problematic" id="id1">',
    ):
        [message] = boxes(conf, caplog, f"<p>{html}</p>")
        assert message.startswith("protocol: the page shows an error")
    assert boxes(conf, caplog, "<p>contents of a page</p>") == []


def test_no_page_has_a_list_of_contents_of_its_own() -> None:
    """Furo has one at the side of each page, and draws another one as an error."""
    found = [
        str(path)
        for path in DOCS.rglob("*.rst")
        if re.search(r"^ *\.\. contents::", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert found == []


def test_an_option_that_many_commands_have_is_described_once(conf: ModuleType) -> None:
    conf.program.load()
    source = [".. shared options"]
    conf.list_shared(None, "reference/cli", source)
    assert source[0].count(".. option:: --json\n\n   Print JSON, and nothing else on stdout.") == 1
    [queues] = [each for each in conf.every_command(conf.program) if each.name == "queues"]
    lines = []
    for option in conf.options_of(queues):
        lines += [f".. option:: {option.opts[-1]}", "", f"    {option.help}", ""]
    own = len(lines)
    conf.drop_shared(None, conf.click.Context(queues), lines)
    assert len(lines) < own
    assert "Print JSON" not in "".join(lines)
    assert ":ref:`Shared options <shared-options>`: " in "".join(lines)
    assert "``--json``" in "".join(lines)


def test_a_block_shows_the_name_of_its_file(conf: ModuleType) -> None:
    block = ".. code-block:: python\n\n    import shop\n"
    source = [f".. file: web.py\n\n{block}\n{block}"]
    named = ".. code-block:: python\n   :caption: web.py\n\n    import shop\n"
    conf.name_files_of_page(None, "index", source)
    assert source == [f"{named}\n{block}"]
    conf.name_files_of_part(None, Path("README.rst"), "index", source)
    assert source == [f"{named}\n{block}"]
