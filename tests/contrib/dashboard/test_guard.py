"""Who may look and act: hosts, users, tokens, passwords, proxies, origins, forms, and headers."""

from __future__ import annotations

import base64
import os
import re
from typing import TYPE_CHECKING

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount
from starlette.testclient import TestClient

from eventmq.errors import SettingsError
from eventmq_contrib.dashboard import OPERATOR, READ_ONLY, User, application, header_user
from eventmq_contrib.dashboard.access import ROUNDS, BasicAccess, TokenAccess, hash_password
from tests.contrib.dashboard.conftest import SAME_SITE, Browser

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from eventmq import EventMQ

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
LOCAL = "http://127.0.0.1"


@pytest.fixture
def serve(app: EventMQ) -> Iterator[Callable[..., TestClient]]:
    """Call it with arguments of `application`: returns a client of it."""
    made = []

    def serve(base: str = LOCAL, **options: object) -> TestClient:
        dashboard = application(app, **options)
        made.append(dashboard)
        return TestClient(dashboard, base, follow_redirects=False)

    yield serve
    for each in made:
        each.close()


def private(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


# Headers


@pytest.mark.parametrize("path", ["/", "/b/broker/", "/static/live.js", "/nothing", "/b/none/"])
def test_every_answer_has_the_headers(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    assert POLICY == headers["content-security-policy"]
    assert "nosniff" == headers["x-content-type-options"]
    assert "no-referrer" == headers["referrer-policy"]


@pytest.mark.usefixtures("submitted")
def test_pages_have_no_inline_script_or_style_and_nothing_of_another_host(browser: Browser) -> None:
    pages = ["", "queues", "queues/default", "workers", "jobs", "failed", "failed?list=1"]
    for page in [*pages, "schedules"]:
        text = browser.get(f"/b/broker/{page}")
        assert not re.search(r"<style|<script>|\sstyle=|\son\w+=|javascript:|https?://", text), page
        assert all(src.startswith("/static/") for src in re.findall(r'<script src="([^"]*)"', text))


def test_htmx_may_neither_evaluate_nor_add_styles(browser: Browser) -> None:
    text = browser.get("/b/broker/")
    assert '"allowEval": false, "includeIndicatorStyles": false' in text


# Hosts


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "[::1", "a b"])
def test_another_host_gets_nothing(client: TestClient, host: str) -> None:
    """A page of another site that was pointed at this machine: DNS rebinding."""
    for path in ("/b/broker/", "/static/live.js", "/?token=x"):
        answer = client.get(path, headers={"Host": host})
        assert 421 == answer.status_code
        assert "--host" in answer.text


@pytest.mark.parametrize("host", ["localhost:47270", "127.0.0.1", "[::1]:47270", "LOCALHOST"])
def test_names_of_this_machine_are_served(client: TestClient, host: str) -> None:
    assert 200 == client.get("/b/broker/", headers={"Host": host}).status_code


def test_a_listed_host_is_served(serve: Callable[..., TestClient]) -> None:
    user = lambda _: User("x")  # noqa: E731
    client = serve("http://ops.example", user=user, hosts=["ops.example"])
    assert 200 == client.get("/b/broker/").status_code
    assert 421 == client.get("/b/broker/", headers={"Host": "127.0.0.1"}).status_code


# Tokens


def test_a_token_is_exchanged_for_a_cookie_and_leaves_the_address(app: EventMQ) -> None:
    dashboard = application(app)
    client = TestClient(dashboard, LOCAL, follow_redirects=False)
    assert 401 == client.get("/b/broker/").status_code
    answer = client.get(f"/b/broker/queues?token={dashboard.token}")
    assert (303, "/b/broker/queues") == (answer.status_code, answer.headers["location"])
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert dashboard.token not in cookie
    page = client.get("/b/broker/queues")
    assert 200 == page.status_code
    assert dashboard.token not in page.text
    dashboard.close()


@pytest.mark.parametrize(
    ("base", "headers", "secure"),
    [(LOCAL, {}, False), ("https://127.0.0.1", {}, True),
     (LOCAL, {"X-Forwarded-Proto": "https"}, True)],
)  # fmt: skip
def test_the_cookie_stays_on_https(
    app: EventMQ, base: str, headers: dict[str, str], *, secure: bool
) -> None:
    dashboard = application(app)
    client = TestClient(dashboard, base, follow_redirects=False, headers=headers)
    cookie = client.get("/", params={"token": dashboard.token}).headers["set-cookie"]
    assert secure == ("Secure" in cookie)
    dashboard.close()


def test_a_token_never_redirects_to_another_host(app: EventMQ) -> None:
    dashboard = application(app)
    client = TestClient(dashboard, LOCAL, follow_redirects=False)
    answer = client.get(f"{LOCAL}//evil.example/x?token={dashboard.token}")
    assert "/evil.example/x" == answer.headers["location"]
    dashboard.close()


@pytest.mark.parametrize("token", ["wrong", "", "é", "a" * 10_000])
def test_a_wrong_token_is_refused(serve: Callable[..., TestClient], token: str) -> None:
    client = serve()
    answer = client.get("/b/broker/", params={"token": token})
    assert 403 == answer.status_code
    assert "set-cookie" not in answer.headers
    answer = client.post("/session", data={"token": token}, headers=SAME_SITE)
    assert 403 == answer.status_code


def test_a_token_can_be_entered_in_a_form(app: EventMQ) -> None:
    dashboard = application(app)
    client = TestClient(dashboard, LOCAL, follow_redirects=False)
    assert 'name="token"' in client.get("/").text
    answer = client.post("/session", data={"token": dashboard.token}, headers=SAME_SITE)
    assert (303, "/") == (answer.status_code, answer.headers["location"])
    assert 302 == client.get("/").status_code
    dashboard.close()


def test_a_cookie_ends_with_its_token_and_survives_a_restart(
    serve: Callable[..., TestClient], tmp_path: Path
) -> None:
    one, two = "o" * 30, "t" * 30
    path = private(tmp_path / "tokens", f"# of ops\n{one}\n{two} read-only rita\n")
    client = serve(token_file=path)
    client.get("/", params={"token": two})
    assert "rita, read-only" in client.get("/b/broker/").text
    again = serve(token_file=path)
    again.cookies.update(client.cookies)
    assert 200 == again.get("/b/broker/").status_code
    private(path, f"{one}\n")
    again.app.access.reload()  # type: ignore[attr-defined]
    assert 401 == again.get("/b/broker/").status_code


@pytest.mark.parametrize("change", ["x", ".1.2.3", "0"])
def test_a_changed_cookie_is_refused(app: EventMQ, change: str) -> None:
    dashboard = application(app)
    client = TestClient(dashboard, LOCAL, follow_redirects=False)
    client.get("/", params={"token": dashboard.token})
    [(name, value)] = client.cookies.items()
    client.cookies.clear()
    for wrong in (value + change, change + value, value.replace(".", f".{change}", 1)):
        answer = client.get("/b/broker/", headers={"Cookie": f"{name}={wrong}"})
        assert 401 == answer.status_code
    dashboard.close()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("short\n", "at least 22"),
        ("x" * 30 + " admin\n", "'admin' is no role"),
        ("x" * 30 + " operator olga perez\n", "more than three words"),
        ("\n", "is empty"),
    ],
)
def test_a_malformed_token_file_is_an_error(tmp_path: Path, text: str, error: str) -> None:
    with pytest.raises(SettingsError, match=error):
        TokenAccess(private(tmp_path / "tokens", text))


@pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX")
def test_a_file_that_others_can_read_is_an_error(tmp_path: Path) -> None:
    path = private(tmp_path / "tokens", "x" * 30)
    path.chmod(0o644)
    with pytest.raises(SettingsError, match="chmod 600"):
        TokenAccess(path)
    with pytest.raises(SettingsError, match="cannot be read"):
        TokenAccess(tmp_path / "none")


# Passwords


@pytest.fixture
def passwords(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("eventmq_contrib.dashboard.access.ROUNDS", 1000)
    lines = [f"olga {hash_password('säcret:1')}", f"rita {hash_password('other')} read-only"]
    return private(tmp_path / "passwords", "\n".join(lines))


def basic(name: str, password: str) -> dict[str, str]:
    text = base64.b64encode(f"{name}:{password}".encode()).decode()
    return {"Authorization": f"Basic {text}"}


def test_basic_authentication(serve: Callable[..., TestClient], passwords: Path) -> None:
    client = serve(basic_auth=passwords)
    answer = client.get("/b/broker/")
    assert 401 == answer.status_code
    assert answer.headers["www-authenticate"].startswith("Basic ")
    for _ in range(2):  # the second from memory
        page = client.get("/b/broker/", headers=basic("olga", "säcret:1"))
        assert "olga, operator" in page.text
        assert "rita, read-only" in client.get("/b/broker/", headers=basic("rita", "other")).text
    for name, password in [("olga", "other"), ("none", "other"), ("", ""), ("olga", "")]:
        assert 401 == client.get("/b/broker/", headers=basic(name, password)).status_code
    for text in ("Basic", "Basic !!!", "Basic //8=", "Bearer x"):
        headers = {"Authorization": text}
        assert 401 == client.get("/b/broker/", headers=headers).status_code


def test_a_malformed_password_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="--hash-password"):
        BasicAccess(private(tmp_path / "passwords", "olga plaintext\n"))


def test_passwords_are_hashed_slowly() -> None:
    assert ROUNDS >= 600_000


# Functions of the user, and proxies


def request_from(address: str, **headers: str) -> Request:
    pairs = [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()]
    return Request({"type": "http", "headers": pairs, "client": (address, 1)})


def test_a_header_is_believed_from_listed_addresses_only() -> None:
    user = header_user("X-User", proxies=["10.0.0.1", "fd00::/8"], operators=["olga"])
    assert User("olga", OPERATOR) == user(request_from("10.0.0.1", x_user="olga"))
    assert User("rita", READ_ONLY) == user(request_from("fd00::7", x_user="rita"))
    assert None is user(request_from("10.0.0.2", x_user="olga"))
    assert None is user(request_from("10.0.0.1"))
    assert None is user(request_from("testclient", x_user="olga"))


def test_a_header_that_comes_twice_is_not_believed() -> None:
    user = header_user("X-User", proxies=["10.0.0.1"])
    pairs = [(b"x-user", b"rita"), (b"x-user", b"olga")]
    request = Request({"type": "http", "headers": pairs, "client": ("10.0.0.1", 1)})
    assert None is user(request)


def test_proxies_are_checked_when_they_are_named() -> None:
    with pytest.raises(SettingsError, match=r"10\.0\.0\.1"):
        header_user("X-User", proxies=["proxy.example"])
    with pytest.raises(SettingsError, match="X-User"):
        header_user("X-User", proxies=[])


def test_a_function_may_be_a_coroutine_function(serve: Callable[..., TestClient]) -> None:
    async def user(request: Request) -> User | None:
        return User("carla") if "x-in" in request.headers else None

    client = serve(user=user)
    assert 401 == client.get("/b/broker/").status_code
    assert "carla, read-only" in client.get("/b/broker/", headers={"X-In": "1"}).text


def test_one_access_at_most(app: EventMQ, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="one access is allowed"):
        application(app, user=lambda _: None, token_file=tmp_path / "x")
    with pytest.raises(SettingsError, match="needs a broker"):
        application({})


# Forms


def form_token_of(browser: Browser) -> str:
    page = browser.get("/b/broker/confirm/pause?queue=default")
    match = re.search(r'name="form_token" value="(\w+)"', page)
    assert match is not None
    return match[1]


ACT = "/b/broker/act/pause?queue=default"


def is_paused(app: EventMQ) -> bool:
    return any(row["paused"] for row in app.ask("queues"))


@pytest.fixture
def submitted(app: EventMQ) -> None:
    app.wait([app.send("shop.good")], timeout=30)


@pytest.mark.usefixtures("submitted")
def test_a_form_needs_the_token_of_its_user(
    app: EventMQ, browser: Browser, client: TestClient
) -> None:
    token = form_token_of(browser)
    for fields in ({}, {"form_token": ""}, {"form_token": token[:-1]}, {"form_token": "ü"}):
        answer = client.post(ACT, data=fields, headers=SAME_SITE)
        assert (403, "Nothing was done" in answer.text) == (answer.status_code, True)
    assert not is_paused(app)
    answer = client.post(ACT, data={"form_token": token}, headers=SAME_SITE)
    assert 200 == answer.status_code
    assert is_paused(app)


@pytest.mark.usefixtures("submitted")
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "null"},
        {"Origin": "http://evil.example"},
        {"Origin": "http://127.0.0.1:81"},
        {"Origin": "file://127.0.0.1"},
        {"Sec-Fetch-Site": "same-site", "Origin": "null"},
        {"Sec-Fetch-Site": "cross-site", "Origin": "http://127.0.0.1"},
        {"Sec-Fetch-Site": "none"},
    ],
)
def test_a_form_of_another_origin_does_nothing(
    app: EventMQ, browser: Browser, client: TestClient, headers: dict[str, str]
) -> None:
    """Not even with the right token."""
    answer = client.post(ACT, data={"form_token": form_token_of(browser)}, headers=headers)
    assert 403 == answer.status_code
    assert "Nothing was done" in answer.text
    assert not is_paused(app)


@pytest.mark.usefixtures("submitted")
@pytest.mark.parametrize("headers", [SAME_SITE, {"Origin": "http://127.0.0.1"}])
def test_a_form_of_this_origin_is_accepted(
    app: EventMQ, browser: Browser, client: TestClient, headers: dict[str, str]
) -> None:
    client.post(ACT, data={"form_token": form_token_of(browser)}, headers=headers)
    assert is_paused(app)


@pytest.mark.usefixtures("submitted")
def test_the_token_of_another_user_is_refused(
    app: EventMQ, browser: Browser, reader: Browser, users: dict[str, User]
) -> None:
    token = form_token_of(browser)
    users["rita"] = User("rita", OPERATOR)
    assert 403 == reader.post(ACT, form_token=token).status_code
    assert not is_paused(app)


@pytest.mark.usefixtures("submitted")
def test_processes_with_one_secret_accept_the_forms_of_each_other(
    app: EventMQ, serve: Callable[..., TestClient]
) -> None:
    user = lambda _: User("olga", OPERATOR)  # noqa: E731
    one, two, other = (serve(user=user, secret=secret) for secret in ("key", "key", ""))
    token = form_token_of(Browser(one))
    for client, status in ((other, 403), (two, 303)):
        answer = client.post(ACT, data={"form_token": token}, headers=SAME_SITE)
        assert status == answer.status_code
    assert is_paused(app)


def test_forms_are_bounded(client: TestClient) -> None:
    for fields in ({"a": "x" * 300_000}, {str(n): "1" for n in range(1200)}):
        answer = client.post(ACT, data=fields, headers=SAME_SITE)
        assert 413 == answer.status_code


def test_other_methods_are_refused(client: TestClient) -> None:
    for method in ("PUT", "DELETE", "OPTIONS", "PATCH"):
        assert 405 == client.request(method, ACT).status_code
    assert 405 == client.get(ACT).status_code


# Roles


@pytest.mark.usefixtures("submitted")
def test_handlers_refuse_users_who_only_read(
    app: EventMQ, reader: Browser, browser: Browser
) -> None:
    """Whatever they send: also the form of an operator, with their own token."""
    for action in ("pause", "bulk-retry", "run", "cancel"):
        page = reader.get(f"/b/broker/confirm/{action}?queue=default&id=x&name=x", 403)
        assert "only look" in page
    text = form_token_of(browser)
    dashboard = reader.client.app
    from eventmq_contrib.dashboard.guard import form_token

    own = form_token(dashboard.access, User("rita"))  # type: ignore[attr-defined]
    assert own != text
    answer = reader.post(ACT, form_token=own)
    assert 403 == answer.status_code
    assert "only look" in answer.text
    assert not is_paused(app)


@pytest.mark.usefixtures("submitted")
def test_pages_of_users_who_only_read_have_no_actions(reader: Browser) -> None:
    for page in ("queues/default", "failed", "failed?list=1", "jobs?queue=default", "schedules"):
        assert "confirm/" not in reader.get(f"/b/broker/{page}")


def test_read_only_holds_for_all(serve: Callable[..., TestClient]) -> None:
    client = serve(user=lambda _: User("olga", OPERATOR), read_only=True)
    assert "olga, read-only" in client.get("/b/broker/").text
    assert 403 == client.get("/b/broker/confirm/pause?queue=x").status_code


# Mounting


@pytest.mark.usefixtures("submitted")
def test_links_begin_at_the_mount_point(app: EventMQ) -> None:
    inside = application(app, user=lambda _: User("olga", OPERATOR))
    outside = Starlette(routes=[Mount("/ops/dash", inside)])
    client = TestClient(outside, LOCAL)
    browser = Browser(client, "/ops/dash")
    for page in ("/", "/b/broker/queues/default", "/b/broker/jobs", "/b/broker/failed"):
        text = browser.get(page)
        links = re.findall(r'(?:href|src|action|data-live-root)="([^"]*)"', text)
        assert len(links) > 5
        assert [] == [x for x in links if not x.startswith("/ops/dash") and x != "#main"]
    assert 200 == client.get(re.findall(r'src="([^"]*)"', text)[0]).status_code
    page = client.get("/ops/dash/b/broker/confirm/pause?queue=default").text
    action = re.search(r'action="([^"]*)"', page)
    token = re.search(r'name="form_token" value="(\w+)"', page)
    assert action is not None
    assert token is not None
    answer = client.post(action[1], data={"form_token": token[1]}, headers=SAME_SITE)
    assert "Queue default is paused." in answer.text
    assert "/ops/dash/b/broker/queues/default" == answer.url.path
    inside.close()


def test_the_cookie_is_of_the_mount_point(app: EventMQ) -> None:
    inside = application(app)
    client = TestClient(Starlette(routes=[Mount("/dash", inside)]), LOCAL, follow_redirects=False)
    answer = client.get("/dash/", params={"token": inside.token})
    assert "/dash/" == answer.headers["location"]
    assert "Path=/dash;" in answer.headers["set-cookie"]
    inside.close()
