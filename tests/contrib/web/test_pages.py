"""The tests that stand on the pages about web frameworks, run as by a reader, and the dashboard."""

from __future__ import annotations

import asyncio
import re
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from eventmq import EventMQ
from eventmq.testing import use_app
from tests.support.page_files import ROOT, run_pytest, write_files

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(120)

#: Page -> its files, the client of its framework, its application, and how many tests it has.
PAGES = {
    "fastapi": (["progress.py", "ops.py"], "fastapi.testclient", "progress:api", 3),
    "starlette": (["ops.py"], "starlette.testclient", "web:web", 3),
    "litestar": (["ops.py"], "litestar.testing", "web:web", 3),
    "flask": (["tasks.py", "test_tasks.py"], "", "", 4),
}

DASHBOARD = """
from {client} import TestClient

import ops
import shop
from {module} import {name}


def test_the_dashboard_is_mounted():
    try:
        with TestClient({name}, base_url="http://ops.example.com") as client:
            assert client.get("/eventmq/").status_code == 401
            client.cookies["staff"] = "olga"
            page = client.get("/eventmq/")
            assert str(page.url) == "http://ops.example.com/eventmq/b/broker/"
            assert "olga" in page.text
            assert 'href="/eventmq/b/broker/failed"' in page.text
            assert client.get("/eventmq/b/broker/jobs").status_code == 200
    finally:
        ops.dashboard.close()
        shop.app.close()
"""


@pytest.mark.parametrize("page", PAGES)
def test_the_tests_on_the_page_pass(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, client, application, count = PAGES[page]
    names = write_files(f"howto/web/{page}.rst", tmp_path)
    assert set(names) == {"shop.py", "web.py", "pytest.ini", "test_web.py", *files}
    if client:
        module, name = application.split(":")
        text = DASHBOARD.format(client=client, module=module, name=name)
        (tmp_path / "test_zz_dashboard.py").write_text(text, "utf-8")
    monkeypatch.setenv("EVENTMQ_BROKER", "memory://")
    ran = run_pytest(tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{count + bool(client)} passed" in ran.stdout


def test_the_pages_have_the_same_tasks() -> None:
    blocks = set()
    for page in PAGES:
        text = (ROOT / "docs" / "howto" / "web" / f"{page}.rst").read_text("utf-8")
        match = re.search(r"\.\. file: shop\.py\n(.*?)\n\.\. file:", text, re.DOTALL)
        assert match is not None
        blocks.add(match[1])
    assert len(blocks) == 1


def test_a_request_that_is_repeated_submits_one_job() -> None:
    page = (ROOT / "docs" / "howto" / "web" / "web-frameworks.rst").read_text("utf-8")
    [line] = re.findall(r"^   job = await .*\n", page, re.MULTILINE)
    app = EventMQ("shop")

    @app.task
    def report(pages: int) -> int:
        return pages

    names = {"shop": SimpleNamespace(report=report), "user": SimpleNamespace(id=7)}
    names |= {"key": "k", "pages": 3}
    exec(f"async def submit():\n{line}   return job", names)

    async def repeat() -> list[str]:
        return [(await names["submit"]()).id for _ in range(2)]

    with use_app(app) as inline:
        assert ["7-k", "7-k"] == asyncio.run(repeat())
        inline.assert_enqueued(report, count=1)
