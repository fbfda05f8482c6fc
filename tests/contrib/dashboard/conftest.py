"""A dashboard over a real broker and worker in this process, and a browser without JavaScript."""

from __future__ import annotations

import re
from html import unescape
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("starlette", reason="needs starlette: the dashboard's web framework")

from starlette.testclient import TestClient

from eventmq import EventMQ
from eventmq_contrib.dashboard import OPERATOR, READ_ONLY, User, application

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import httpx2 as httpx

#: What browsers send with a form of the same site under no-referrer.
SAME_SITE = {"Origin": "null", "Sec-Fetch-Site": "same-origin"}

TIMEOUT = 30.0


@pytest.fixture
def app() -> Iterator[EventMQ]:
    app = EventMQ("shop", broker="memory://")

    @app.task(name="shop.good")
    def good(number: int = 1) -> int:
        return number

    @app.task(name="shop.bad")
    def bad(text: str = "nothing works") -> None:
        raise ValueError(text)

    yield app
    app.close()


@pytest.fixture
def app_of() -> Iterator[Callable[[], EventMQ]]:
    """Call it for an app with a broker of its own."""
    made: list[EventMQ] = []

    def app_of() -> EventMQ:
        made.append(EventMQ("other", broker="memory://"))
        return made[-1]

    yield app_of
    for each in made:
        each.close()


class Browser:
    """Loads pages and sends their forms, as one without JavaScript does."""

    def __init__(self, client: TestClient, root: str = "") -> None:
        self.client, self.root = client, root
        #: Address of the page after the last `confirm`.
        self.address = ""

    def get(self, path: str, status: int = 200) -> str:
        answer = self.client.get(f"{self.root}{path}")
        assert status == answer.status_code, answer.text
        return answer.text

    def post(self, path: str, **fields: object) -> httpx.Response:
        return self.client.post(f"{self.root}{path}", data=fields, headers=SAME_SITE)

    def confirm(self, path: str) -> str:
        """Open a question, say yes, and return the page that follows."""
        page = self.get(path)
        action = re.search(r'<form class="actions" method="post" action="([^"]+)"', page)
        assert action is not None, page
        fields: dict[str, list[str]] = {}
        for name, value in re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', page):
            fields.setdefault(name, []).append(unescape(value))
        answer = self.client.post(unescape(action[1]), data=fields, headers=SAME_SITE)
        assert 200 == answer.status_code, answer.text
        self.address = str(answer.url).removeprefix("http://127.0.0.1")
        return answer.text


@pytest.fixture
def users() -> dict[str, User]:
    """Who the users are, by the header that the tests send."""
    return {"olga": User("olga", OPERATOR), "rita": User("rita", READ_ONLY)}


@pytest.fixture
def dashboard(app: EventMQ, users: dict[str, User]) -> Iterator[application]:
    made = application(app, user=lambda request: users.get(request.headers.get("x-test-user", "")))
    yield made
    made.close()


@pytest.fixture
def client(dashboard: application) -> Iterator[TestClient]:
    with TestClient(dashboard, "http://127.0.0.1", headers={"X-Test-User": "olga"}) as client:
        yield client


@pytest.fixture
def browser(client: TestClient) -> Browser:
    """The browser of an operator."""
    return Browser(client)


@pytest.fixture
def reader(dashboard: application) -> Browser:
    """The browser of a user who only reads."""
    return Browser(TestClient(dashboard, "http://127.0.0.1", headers={"X-Test-User": "rita"}))
