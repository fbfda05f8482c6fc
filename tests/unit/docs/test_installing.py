"""No text installs EventMQ by its name: on the package index that is another project."""

from __future__ import annotations

import re
from itertools import chain

import pytest

from tests.support.page_files import ROOT

SUFFIXES = {".md", ".py", ".rst", ".service", ".toml", ".yaml"}

BY_NAME = re.compile(r"pip3? install[^|&;\n]* ['\"]?eventmq(\[[\w,-]+\])?['\"]?(?![\w./-])")

FOLDERS = ("benchmarks", "deploy", "docs", "eventmq", "eventmq_contrib", "examples")


def test_a_name_is_told_from_a_path_and_from_another_distribution() -> None:
    assert BY_NAME.search("x/bin/pip install 'eventmq[spark]' shop")
    assert BY_NAME.search("pip install -U eventmq")
    assert not BY_NAME.search("pip install '.[spark]' ./eventmq eventmq-mail eventmq/")


@pytest.mark.parametrize("folder", FOLDERS)
def test_texts_install_from_a_checkout(folder: str) -> None:
    paths = [path for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    assert paths
    for path in chain(paths, ROOT.glob("*.rst")):
        found = BY_NAME.search(path.read_text(encoding="utf-8"))
        assert found is None, f"{path.relative_to(ROOT)}: {found[0]}"
