"""The shop under ``examples/``: its page, its worker, and the dashboard behind its login."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from http.cookiejar import CookieJar
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, Request, build_opener

import pytest

from tests.contrib.django.conftest import ROOT, Process, until
from tests.support.postgres import free_port

pytest.importorskip("starlette", reason="needs starlette: the dashboard's web framework")

SHOP = ROOT / "examples" / "django-shop"


class Browser:
    """A browser without JavaScript."""

    def __init__(self, site: str) -> None:
        self.site, self.cookies = site, CookieJar()
        self._opener = build_opener(HTTPCookieProcessor(self.cookies))

    def get(self, path: str) -> str:
        with self._opener.open(f"{self.site}{path}", timeout=20) as answer:
            return answer.read().decode()

    def send(self, path: str, **fields: object) -> str:
        """Fill the form of a page in, and send it."""
        token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', self.get(path))
        data = urlencode({"csrfmiddlewaretoken": token[1], **fields}).encode()
        request = Request(f"{self.site}{path}", data, {"Referer": f"{self.site}{path}"})
        with self._opener.open(request, timeout=20) as answer:
            return answer.read().decode()


@pytest.fixture
def shop(project, tmp_path):
    """The environment of the shop, with its tables."""
    environment = {
        "DJANGO_SETTINGS_MODULE": "shop.settings",
        "EVENTMQ_BROKER": os.environ["PROJECT_BROKER"],
        "SHOP_DATABASE": str(tmp_path / "shop.sqlite3"),
        "PYTHONPATH": f"{SHOP}{os.pathsep}{ROOT}",
        "DJANGO_SUPERUSER_PASSWORD": "secret",
    }
    _manage(environment, "migrate")
    return environment


def _manage(environment, *command):
    ran = subprocess.run(
        [sys.executable, "manage.py", *command], cwd=SHOP, check=False, capture_output=True,
        text=True, env={**os.environ, **environment}, timeout=60,
    )  # fmt: skip
    assert 0 == ran.returncode, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr


def test_its_own_tests_pass_and_its_migrations_are_complete(shop):
    assert "No changes" in _manage(shop, "makemigrations", "--check", "--dry-run")
    assert "Ran 2 tests" in _manage(shop, "test")


def test_an_order_is_confirmed_by_a_worker_and_seen_in_the_dashboard(shop, tmp_path):
    names = ("--username", "olga", "--email", "olga@example.org")
    _manage(shop, "createsuperuser", "--noinput", *names)
    port = free_port()
    server = ("uvicorn", "--port", str(port), "--lifespan", "off", "shop.asgi:application")
    web = Process(tmp_path / "web.log", *server, **shop)
    worker = Process(tmp_path / "worker.log", "django", "eventmq_worker", "-c", "1", **shop)
    try:
        worker.line("ready")
        until(lambda: "Uvicorn running" in web.text, "the server")
        browser = Browser(f"http://127.0.0.1:{port}")
        browser.send("/", customer="a@example.org", pieces=2)
        browser.send("/", customer="b@example.org", pieces=0)

        def state(number):
            answer = json.loads(browser.get(f"/{number}/"))
            return answer if answer["status"] in {"SUCCESSFUL", "FAILED"} else None

        good, bad = (until(lambda n=n: state(n), f"the end of order {n}") for n in (1, 2))
        assert {"status": "SUCCESSFUL", "attempts": 1, "text": "confirmed to a@example.org"} == good
        expected = "ValueError: an order of nothing, tried 3 times"
        assert {"status": "FAILED", "attempts": 3, "text": expected} == bad
        assert '2 for a@example.org: <span data-order="/1/">confirmed' in browser.get("/")
        assert "Log in" in browser.get("/eventmq/")
        with pytest.raises(HTTPError, match="404"):
            browser.get("/3/")
        browser.send("/admin/login/", username="olga", password="secret", next="/eventmq/")
        assert "orders.tasks.confirm" in browser.get(
            "/eventmq/b/default/jobs?task=orders.tasks.confirm"
        )
        assert "orders.tasks.confirm" in browser.get("/eventmq/b/default/failed")
    finally:
        worker.stop()
        web.stop()
