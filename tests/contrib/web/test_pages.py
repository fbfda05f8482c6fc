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

PAGE = (ROOT / "docs" / "howto" / "web" / "fastapi.rst").read_text("utf-8")

#: Files of the page about FastAPI, which has two more frameworks.
FASTAPI = {
    "shop.py", "web.py", "progress.py", "pytest.ini", "test_web.py", "ops.py", "main.py",
    "starlette_web.py", "starlette_main.py", "litestar_web.py", "litestar_main.py",
}  # fmt: skip

#: Framework -> the lines that its test has in place of FastAPI's, its application, and what
#: mounts the dashboard.
FRAMEWORKS = {
    "fastapi": ("from fastapi.testclient import TestClient", "from progress import api", "main"),
    "starlette": (
        "from starlette.testclient import TestClient",
        "from starlette_web import web as api",
        "starlette_main",
    ),
    "litestar": (
        "from litestar.testing import TestClient",
        "from litestar_web import web as api",
        "litestar_main",
    ),
}

DASHBOARD = """
{client}

import {main}
import ops
import shop
{application}


def test_the_dashboard_is_mounted():
    try:
        with TestClient(api, base_url="http://ops.example.com") as client:
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


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_tests_on_the_page_pass(
    framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With Starlette and Litestar after the changes that the page tells."""
    client, application, main = FRAMEWORKS[framework]
    assert set(write_files("howto/web/fastapi.rst", tmp_path)) == FASTAPI
    page = " ".join(PAGE.split())
    test = tmp_path / "test_web.py"
    text = test.read_text("utf-8")
    for ours, theirs in zip((client, application), FRAMEWORKS["fastapi"][:2], strict=True):
        assert ours == theirs or f"``{ours}``" in page
        assert theirs in text
        text = text.replace(theirs, ours)
    test.write_text(text, "utf-8")
    dashboard = DASHBOARD.format(client=client, application=application, main=main)
    (tmp_path / "test_zz_dashboard.py").write_text(dashboard, "utf-8")
    monkeypatch.setenv("EVENTMQ_BROKER", "memory://")
    ran = run_pytest(tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "4 passed" in ran.stdout


def test_the_tests_on_the_page_about_flask_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = write_files("howto/web/flask.rst", tmp_path)
    files = {"shop.py", "web.py", "pytest.ini", "test_web.py", "tasks.py", "test_tasks.py"}
    assert set(names) == files
    monkeypatch.setenv("EVENTMQ_BROKER", "memory://")
    ran = run_pytest(tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "5 passed" in ran.stdout


def test_the_pages_have_the_same_tasks() -> None:
    blocks = set()
    for page in ("fastapi", "flask"):
        text = (ROOT / "docs" / "howto" / "web" / f"{page}.rst").read_text("utf-8")
        match = re.search(r"\.\. file: shop\.py\n(.*?)\n\.\. file:", text, re.DOTALL)
        assert match is not None
        blocks.add(match[1])
    assert len(blocks) == 1


def test_a_request_that_is_repeated_submits_one_job() -> None:
    [line] = re.findall(r"^   job = await .*\n", PAGE, re.MULTILINE)
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
