"""A dashboard of several brokers, with passwords and a report; two share a store, one is away."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from eventmq import EventMQ
from eventmq_contrib.dashboard.access import hash_password
from eventmq_contrib.spark.page import page as report_page
from tests.contrib.dashboard.browser.driving import expect
from tests.contrib.spark.test_report_page import made_up
from tests.support.shell import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.contrib.dashboard.browser.driving import Shop, Tab
    from tests.support.postgres import Server

# The first test of a process starts the shop.
pytestmark = pytest.mark.timeout(180)

EVIL = "</style><script>window.evil=1</script><img src=//evil.example onerror=window.evil=1>"


class Site:
    """A dashboard of the shop, of a broker that is away, and of a store with a standby.

    Attributes:
        app: Client of the store.
        url: Address of the dashboard.
        owner: Name of the broker that owns the store, and
        standby: of the other.
    """

    def __init__(self, shop: Shop, store: str) -> None:
        folder, start = shop.folder, shop.shell.start
        hashed = hash_password("secret")
        (folder / "users").write_text(f"olga {hashed} operator\nrita {hashed} read-only\n")
        (folder / "users").chmod(0o600)
        report = report_page(made_up(EVIL), title="A day of the shop", made=time.time())
        (folder / "report.html").write_text(report)
        brokers = {
            "shop": shop.address, "away": "tcp://127.0.0.1:9",
            "mail": f"tcp://127.0.0.1:{free_port()}", "mail-2": f"tcp://127.0.0.1:{free_port()}",
        }  # fmt: skip
        named = [word for name in brokers for word in ("--broker", f"{name}={brokers[name]}")]
        dashboard = start(
            "dashboard", "--bind", "127.0.0.1:0", *named, "--basic-auth", str(folder / "users"),
            "--report", str(folder / "report.html"),
        )  # fmt: skip
        started = {
            name: start("broker", "--store", store, "--bind", brokers[name])
            for name in ("mail", "mail-2")
        }
        roles = {name: broker.ready()["role"] for name, broker in started.items()}
        assert ["active", "standby"] == sorted(roles.values())
        self.owner, self.standby = sorted(roles, key=lambda name: roles[name])
        self.url = dashboard.ready()["bind"].rstrip("/")
        self.owner_address = brokers[self.owner]
        self.app = EventMQ("mail", broker=self.owner_address)


@pytest.fixture(scope="module")
def _sites(postgres: Server) -> Iterator[tuple[str, list[Site]]]:
    sites: list[Site] = []
    with postgres.database() as store:
        yield store, sites
        for site in sites:
            site.app.close()


@pytest.fixture
def site(shop: Shop, _sites: tuple[str, list[Site]]) -> Site:
    store, sites = _sites
    if not sites:
        sites.append(Site(shop, store))
    return sites[0]


@pytest.fixture
def visit(open_tab: Callable[..., Tab], site: Site) -> Callable[..., Tab]:
    """Call it for a tab of a user who knows a password."""

    def visit(name: str = "olga", password: str = "secret") -> Tab:
        credentials: Any = {"username": name, "password": password}
        return open_tab(token="", url=site.url, http_credentials=credentials)

    return visit


def test_several_brokers_have_names(site: Site, visit: Callable[..., Tab]) -> None:
    """The one that is missing is shown missing, and the standby as one, from every page."""
    tab = visit()
    page = tab.page
    page.goto(f"{site.url}/b/shop/")
    expect(page.get_by_role("heading", level=1)).to_have_text("shop")
    links = page.get_by_role("navigation", name="Brokers").get_by_role("link")
    tags = {"away": "missing", site.standby: "standby"}
    names = [f"{name} {tags.get(name, '')}".strip() for name in ("shop", "away", "mail", "mail-2")]
    expect(links).to_have_text(names, use_inner_text=True)
    links.nth(1).click()
    expect(page.get_by_role("alert")).to_contain_text("The broker is missing")
    expect(page.get_by_role("heading", level=1)).to_have_text("away")
    links.filter(has_text="standby").click()
    expect(page.locator("main")).to_contain_text("This broker is a standby.")
    expect(page.locator("main")).to_contain_text(site.owner_address)


def test_a_job_of_another_broker_is_not_found(
    shop: Shop, site: Site, visit: Callable[..., Tab], axe: str
) -> None:
    """Nor is anything done to it, or to one of the broker that is named instead."""
    job = site.app.send("mail.send", queue="mail", countdown=3600)
    assert "delayed" == job.state
    tab = visit()
    page = tab.page
    page.goto(f"{site.url}/b/{site.owner}/jobs/{job.id}")
    expect(page.get_by_role("heading", level=1)).to_have_text("mail.send delayed")
    page.goto(f"{site.url}/b/shop/jobs/{job.id}")
    expect(page.get_by_role("heading", level=1)).to_have_text("Not Found")
    expect(page.get_by_role("alert").last).to_contain_text(f"No job with id '{job.id}'")
    assert [] == tab.obstacles(axe)
    tab.forgive(1, "404")
    page.goto(f"{site.url}/b/shop/confirm/cancel?id={job.id}&from=jobs")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator(".note")).to_contain_text("0 jobs cancelled.")
    expect(page.locator(".note")).to_contain_text("left alone: it is not known")
    assert "delayed" == job.state
    assert "failed" == shop.failed.state


def test_what_a_missing_broker_is_asked_for_is_an_error(
    site: Site, visit: Callable[..., Tab], axe: str
) -> None:
    """Said at once, and nothing of it is kept for later."""
    tab = visit()
    for path in ("jobs", "jobs/1", "failed", "confirm/bulk-drop", "bulk/1"):
        answer = tab.page.goto(f"{site.url}/b/away/{path}")
        assert answer is not None
        assert 503 == answer.status
        expect(tab.page.get_by_role("heading", level=1)).to_have_text("The broker does not answer")
    assert [] == tab.obstacles(axe)
    tab.page.set_viewport_size({"width": 390, "height": 844})
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 390
    tab.forgive(5, "503")


def test_passwords_say_who_may_act(shop: Shop, site: Site, visit: Callable[..., Tab]) -> None:
    """The name that a browser has sent is that of the event."""
    page = visit().page
    page.goto(f"{site.url}/b/shop/queues/default")
    expect(page.locator(".who")).to_contain_text("olga, operator")
    expect(page.locator("#connection")).to_have_attribute("aria-label", "live")
    for action in ("Pause", "Resume"):
        page.get_by_role("link", name=action).click()
        page.get_by_role("button", name=action).click()
        expect(page.locator(".note")).to_have_text(f"Queue default is {action.lower()}d.")
    assert ["pause", "resume"] == shop.acts_of("olga")[-2:]
    only = visit("rita")
    only.page.goto(f"{site.url}/b/shop/queues/default")
    expect(only.page.locator(".who")).to_contain_text("rita, read-only")
    expect(only.page.get_by_role("link", name="Pause")).to_have_count(0)
    stranger = visit("olga", "guessed")
    answer = stranger.page.goto(f"{site.url}/b/shop/")
    assert answer is not None
    assert 401 == answer.status
    expect(stranger.page.get_by_role("heading", level=1)).to_have_text("Who are you?")
    expect(stranger.page.locator("main")).not_to_contain_text("Waiting")
    stranger.forgive(1, "401")


def test_a_report_is_shown_and_can_do_nothing(site: Site, visit: Callable[..., Tab]) -> None:
    """It keeps its own colours; names in it are text, and no script of it would run."""
    tab = visit("rita")
    page = tab.page
    page.goto(f"{site.url}/b/shop/")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.get_by_role("link", name="Report").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("A day of the shop")
    expect(page.locator("body")).to_contain_text(EVIL)
    assert f"{site.url}/report" == asked[-1], "the page asks for nothing more"
    assert page.evaluate("window.evil === undefined")
    assert "null" == page.evaluate("origin"), "it is of no origin: no cookie, and no form"
    margin = page.evaluate("getComputedStyle(document.body).margin")
    assert "8px" != margin, "its styles are used"
    page.go_back()
    expect(page.get_by_role("heading", level=1)).to_have_text("shop")
