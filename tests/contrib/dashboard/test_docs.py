"""The page of the documentation about the dashboard agrees with the program."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from starlette.testclient import TestClient

from eventmq_contrib.dashboard import data, live
from eventmq_contrib.dashboard.access import MIN_TOKEN, SESSION
from eventmq_contrib.dashboard.command import dashboard
from tests.support.page_files import ROOT, write_files

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

PAGE = (ROOT / "docs" / "howto" / "operate" / "dashboard.rst").read_text("utf-8")


def test_the_application_on_the_page_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ["ops.py", "shop.py"] == write_files("howto/operate/dashboard.rst", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("EVENTMQ_BROKER", "memory://")
    monkeypatch.delitem(sys.modules, "ops", raising=False)
    import ops  # type: ignore[import-not-found]

    client = TestClient(ops.web, "http://ops.example.com")
    assert 401 == client.get("/eventmq/").status_code
    client.cookies["staff"] = "olga"
    assert "olga, operator" in client.get("/eventmq/").text
    client.cookies["staff"] = "rita"
    assert "rita, read-only" in client.get("/eventmq/").text
    ops.dashboard.close()
    ops.app.close()
    sys.modules.pop("ops")


def test_the_page_names_options_that_there_are() -> None:
    options = {name for each in dashboard.params for name in each.opts}
    text = PAGE[: PAGE.index("\n.. _top:\n")]
    named = set(re.findall(r"``(--[a-z-]+)", text)) | set(re.findall(r" (--[a-z-]+) ", text))
    assert set() == named - options


def test_figures_on_the_page_are_those_of_the_program() -> None:
    for text in (
        f"at most {live.MAX_STREAMS} streams", f"some {data.SEARCH:g} s",
        f"at least {MIN_TOKEN} characters", "after seven days",
    ):  # fmt: skip
        assert text in " ".join(PAGE.split())
    assert 7 == SESSION / 86_400
