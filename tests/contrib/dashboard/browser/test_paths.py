"""Below a path: mounted in an application, and behind a reverse proxy that names the user."""

from __future__ import annotations

import os
import socket
import sys
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from tests.contrib.dashboard.browser.driving import expect
from tests.support.postgres import Unavailable, program
from tests.support.shell import free_port
from tests.support.system import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.contrib.dashboard.browser.driving import Hold, Shop, Tab

#: An application that has the dashboard below a path.
OPS = """
import socket
import sys

import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from eventmq import EventMQ
from eventmq_contrib.dashboard import application

app = EventMQ("ops", broker=sys.argv[1])
web = Starlette(routes=[
    Mount("/ops", application(app, token_file=sys.argv[2])),
    Route("/{rest:path}", lambda request: PlainTextResponse("of another application", 404)),
])
listener = socket.create_server(("127.0.0.1", 0))
print(f"ready bind=http://127.0.0.1:{listener.getsockname()[1]}/ops", flush=True)
uvicorn.Server(uvicorn.Config(web, log_level="warning")).run(sockets=[listener])
"""


def test_mounted_in_an_application(shop: Shop, open_tab: Callable[..., Tab], hold: Hold) -> None:
    """Every address of every page is below it: links, files, forms, streams and the cookie."""
    program = shop.file("ops.py")
    program.write_text(OPS)
    tokens = str(shop.file("tokens"))
    url = shop.shell.launch(sys.executable, str(program), shop.address, tokens).ready()["bind"]
    tab = open_tab(url=url)
    asked: list[str] = []
    tab.page.on("request", lambda request: asked.append(request.url))
    for path in ("", "queues", "queues/default", "workers", "jobs", "failed", "schedules"):
        page = tab.open(path)
        links = page.locator("a[href]").evaluate_all("(all) => all.map((each) => each.href)")
        assert [] == [each for each in links if not each.startswith(f"{url}/")]
    page = tab.open("confirm/pause?queue=default")
    page.get_by_role("button").click()
    expect(page.locator(".note")).to_have_text("Queue default is paused.")
    page.get_by_role("link", name="Resume").click()
    page.get_by_role("button").click()
    expect(page.locator(".note")).to_have_text("Queue default is resumed.")
    tab.open()
    hold.jobs(1)
    expect(tab.cell("running")).to_have_text("1")
    hold.release()
    expect(tab.cell("running")).to_have_text("0")
    assert f"{url}/live" in asked
    assert [] == [each for each in asked if not each.startswith(f"{url}/")]
    assert ["/ops"] == [each["path"] for each in page.context.cookies()]


#: nginx as the documentation has it: it knows the users, says who it is, and strips the path.
#: The last server is a proxy whose address is not listed.
NGINX = """
daemon off; master_process off; pid {folder}/nginx.pid; error_log stderr;{user}
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  proxy_set_header Host $http_host;
  proxy_set_header X-Forwarded-User $remote_user;
  auth_basic "shop"; auth_basic_user_file {folder}/passwords;
  server {{
    listen 127.0.0.1:{port};
    location /ops/ {{ proxy_pass http://{bind}/; proxy_bind 127.0.0.2; }}
    location / {{ return 404; }}
  }}
  server {{
    listen 127.0.0.1:{other};
    location /ops/ {{ proxy_pass http://{bind}/; proxy_bind 127.0.0.3; }}
  }}
}}
"""


class Proxy:
    """An nginx before a dashboard that believes its header.

    Attributes:
        url: Address of the dashboard behind it.
        other: The same behind a proxy that is not listed.
        direct: Address of the dashboard itself.
    """

    def __init__(self, shop: Shop, nginx: str) -> None:
        dashboard = shop.shell.start(
            "dashboard", "--bind", "127.0.0.1:0", "--broker", shop.address, "--root-path", "/ops",
            "--user-header", "X-Forwarded-User", "--trusted-proxy", "127.0.0.2",
            "--operator", "olga",
        )  # fmt: skip
        self.direct = dashboard.ready()["bind"].rstrip("/")
        folder, port, other = shop.folder, free_port(), free_port()
        (folder / "passwords").write_text("olga:{PLAIN}secret\nrita:{PLAIN}secret\n")
        (folder / "nginx.conf").write_text(
            NGINX.format(
                folder=folder,
                port=port,
                other=other,
                user="" if os.geteuid() else " user root;",
                bind=urlsplit(self.direct).netloc,
            )
        )
        program = shop.shell.launch(nginx, "-p", str(folder), "-c", str(folder / "nginx.conf"))
        self.url, self.other = f"http://127.0.0.1:{port}/ops", f"http://127.0.0.1:{other}/ops"

        def serves() -> bool:
            assert program.process.poll() is None, program.text
            with socket.socket() as sock:
                return sock.connect_ex(("127.0.0.1", other)) == 0

        until(serves, "nginx serves")


@pytest.fixture(scope="module")
def _proxies() -> list[Proxy]:
    return []


@pytest.fixture
def proxy(shop: Shop, _proxies: list[Proxy]) -> Proxy:
    try:
        nginx = program("nginx", "nginx")
    except Unavailable as error:
        pytest.skip(str(error))
    if not _proxies:
        _proxies.append(Proxy(shop, nginx))
    return _proxies[0]


def user(name: str) -> dict[str, Any]:
    """Return the options of a browser that knows the password of a user."""
    return {"token": "", "http_credentials": {"username": name, "password": "secret"}}


def test_behind_a_proxy(shop: Shop, proxy: Proxy, open_tab: Callable[..., Tab], hold: Hold) -> None:
    """Pages, files, forms and streams go through it, and the stream is not held back."""
    tab = open_tab(url=proxy.url, **user("olga"))
    asked: list[str] = []
    tab.page.on("request", lambda request: asked.append(request.url))
    page = tab.page
    page.goto(f"{proxy.url}/")
    expect(page).to_have_url(f"{proxy.url}/b/broker/")
    expect(page.locator(".who")).to_contain_text("olga, operator")
    tab.is_live()
    hold.jobs(2)
    expect(tab.cell("running")).to_have_text("2")
    hold.release()
    expect(tab.cell("running")).to_have_text("0")
    page.get_by_role("link", name="Queues").click()
    page.get_by_role("link", name="quick").click()
    for action in ("Pause", "Resume"):
        page.get_by_role("link", name=action).click()
        page.get_by_role("button", name=action).click()
        expect(page.locator(".note")).to_have_text(f"Queue quick is {action.lower()}d.")
        assert (action == "Pause") == shop.queue("quick")["paused"]
    assert ["pause", "resume"] == shop.acts_of("olga")[-2:]
    assert f"{proxy.url}/live" in asked
    assert [] == [each for each in asked if not each.startswith(f"{proxy.url}/")]


def test_who_the_proxy_names_is_believed_from_its_address_only(
    proxy: Proxy, open_tab: Callable[..., Tab]
) -> None:
    """Neither another proxy nor a browser names users, and the proxy overrides what one sends."""
    forged = {"X-Forwarded-User": "olga"}
    tab = open_tab(url=proxy.url, extra_http_headers=forged, **user("rita"))
    expect(tab.open().locator(".who")).to_contain_text("rita, read-only")
    answer = tab.open("confirm/pause?queue=quick", live=False)
    expect(answer.locator("main")).to_contain_text("may only look; actions need the role")
    tab.forgive(1, "403")
    for address, options in (
        (proxy.other, user("olga")), (proxy.direct, {"token": "", "extra_http_headers": forged})
    ):  # fmt: skip
        stranger = open_tab(url=address, **options)
        stranger.page.goto(f"{address}/")
        expect(stranger.page.get_by_role("heading", level=1)).to_have_text("Who are you?")
        stranger.forgive(1, "401")
