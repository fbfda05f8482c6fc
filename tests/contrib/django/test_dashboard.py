"""The dashboard behind Django's login."""

from __future__ import annotations

import asyncio
import re
from html import unescape
from urllib.parse import urlencode

import pytest

pytest.importorskip("starlette", reason="needs starlette: the dashboard's web framework")

#: What browsers send with a form of the same site.
SAME_SITE = {"origin": "http://testserver", "sec-fetch-site": "same-origin"}


@pytest.fixture
def login(project):
    """Returns a client of a user with permissions."""
    from django.contrib.auth.models import Permission, User
    from django.test import Client

    def login(*names, client=Client):
        user = User.objects.create_user(f"user-{User.objects.count()}", password="secret")
        found = Permission.objects.filter(content_type__app_label="eventmq", codename__in=names)
        assert len(names) == len(found)
        user.user_permissions.set(found)
        browser = client()
        browser.force_login(user)
        return browser, user

    return login


def _confirm(browser, path):
    """Open a question and say yes; return the answer, and the address of the form."""
    page = browser.get(path).content.decode()
    action = re.search(r'<form class="actions" method="post" action="([^"]+)"', page)
    assert action is not None, page
    fields = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', page)
    text = urlencode([(name, unescape(value)) for name, value in fields])
    address = unescape(action[1])
    return _post(browser, address, text), address


def _post(browser, address, text, **headers):
    kind = "application/x-www-form-urlencoded"
    return browser.post(address, text, content_type=kind, headers={**SAME_SITE, **headers})


def test_it_needs_a_login_and_a_permission(login, project):
    from django.test import Client

    answer = Client().get("/eventmq/b/default/queues?x=1")
    assert (302, "/login/?next=/eventmq/b/default/queues%3Fx%3D1") == (
        answer.status_code, answer.headers["Location"],
    )  # fmt: skip
    browser, _ = login()
    assert 403 == browser.get("/eventmq/").status_code
    browser, _ = login("operate_dashboard")
    assert 403 == browser.get("/eventmq/").status_code


def test_its_pages_and_files_have_links_below_the_path(login, project):
    browser, user = login("view_dashboard")
    answer = browser.get("/eventmq/")
    if answer.status_code != 200:  # there is one broker
        answer = browser.get(answer.headers["Location"])
    page = answer.content.decode()
    assert 200 == answer.status_code
    assert user.username in page
    links = re.findall(r'(?:href|src)="(/[^"?]*)', page)
    assert links
    assert all(link.startswith("/eventmq/") for link in links)
    [script] = [link for link in links if link.endswith("live.js")]
    answer = browser.get(script)
    assert (200, "text/javascript; charset=utf-8") == (
        answer.status_code, answer.headers["Content-Type"],
    )  # fmt: skip
    assert 404 == browser.get("/eventmq/no/such/page").status_code


def test_only_operators_act(login, tasks):
    result = tasks.sleep.using(queue_name="spare").enqueue(1)
    question = f"/eventmq/b/default/confirm/cancel?id={result.id}"
    viewer, _ = login("view_dashboard")
    assert 403 == viewer.get(question).status_code
    operator, user = login("view_dashboard", "operate_dashboard")
    answer, address = _confirm(operator, question)
    assert 303 == answer.status_code, answer.content
    result.refresh()
    assert "FAILED" == result.status
    assert f"cancelled by {user.username}" in result.errors[0].traceback
    # A form that is not this user's, or is from another site, does nothing.
    assert 403 == _post(operator, address, "form_token=wrong").status_code
    answer = _post(operator, address, "", **{"origin": "http://elsewhere", "sec-fetch-site": ""})
    assert 403 == answer.status_code


def test_live_figures_are_asked_for_again_and_again(login, caplog):
    from django.test import AsyncClient

    browser, _ = login("view_dashboard")
    assert 204 == browser.get("/eventmq/live").status_code
    assert [] == [each for each in caplog.records if each.name == "django.request"]
    assert "default:shape" in browser.get("/eventmq/live.json").json()
    browser, _ = login("view_dashboard", client=AsyncClient)
    assert "default:shape" in asyncio.run(browser.get("/eventmq/live.json")).json()


@pytest.fixture(autouse=True)
def _closed():
    yield
    from eventmq_contrib.django.dashboard import _application

    _application().close()
    _application.cache_clear()
