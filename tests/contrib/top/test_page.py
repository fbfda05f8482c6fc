"""The page of ``eventmq top``, with a real broker and a real worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eventmq import EventMQ
from eventmq.events import rows_of
from eventmq.plugins.queue_stores.sqlite.reading import SqliteEventLogReader
from eventmq.wire.curve import Certificate, write_new
from tests.contrib.top.driving import HOSTILE, SHOWN, Page, Shop
from tests.support.keyed_broker import Keys
from tests.support.system import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.emqp_broker import BrokerProcess

    Drive = Callable[..., None]


def operations(shop: Shop) -> list[tuple[str, str]]:
    """Return the kinds and actors of the operations in the event log."""
    reader = SqliteEventLogReader(shop.folder / "data")
    try:
        rows, _ = reader.read(0, 64 * 1024 * 1024)
    finally:
        reader.close()
    events = [event for row in rows for event in rows_of("b", row.first, row.body)]
    return [(e["operation"], e["actor"]) for e in events if e["kind"] == "operation"]


def paused(shop: Shop) -> dict[str, bool]:
    return {row["name"]: row["paused"] for row in shop.app.ask("queues")}


# Views


def test_the_overview_shows_what_happens(shop: Shop, drive: Drive) -> None:
    """Throughput, numbers of jobs, start delays, and the age of the oldest job."""
    shop.work()
    shop.app.send("good", queue="idle")

    async def story(page: Page) -> None:
        await page.shows("shop: up", "attention         idle: no worker")
        for _ in range(20):
            shop.app.send("good")
        shop.app.send("hold")
        await page.shows("running           1", "start delay 50 %  ≤ ", "1 of 2 slots busy")
        await page.shows("waiting           1")
        line = next(each for each in page.text.splitlines() if " submitted" in each)
        assert float(line.split()[1].removesuffix("/s")) > 0
        await page.shows("oldest job waits  ", without="oldest job waits  -")

    drive({"shop": shop.client()}, story)


def test_each_view_has_its_rows(shop: Shop, drive: Drive) -> None:
    shop.work()
    shop.state_is(bad := shop.app.send("bad"), "failed")
    shop.state_is(hold := shop.app.send("hold"), "running")
    shop.state_is(good := shop.app.send("good"), "succeeded")

    async def story(page: Page) -> None:
        await page.press("2")
        await page.shows("[2 queues]", "default  0        0        1        1       1")
        await page.press("3")
        await page.shows("threads  2      1        hold")
        await page.press("4")
        await page.shows(f"{hold.id[-8:]}  hold", without=good.id[-8:])
        await page.press("5")
        await page.shows(f"{good.id[-8:]}  good", f"{bad.id[-8:]}  bad", "running", "succeeded")
        await page.press("6")
        await page.shows(f"{bad.id[-8:]}  bad", "ValueError: no luck", without=hold.id[-8:])

    drive({"shop": shop.client()}, story)


def test_a_view_is_filtered_by_words_and_by_arguments_of_the_call(shop: Shop, drive: Drive) -> None:
    shop.app.send("good", queue="mail")
    shop.app.send("bad", queue="other")

    async def story(page: Page) -> None:
        await page.press("5")
        await page.shows("mail", "other")
        await page.press("slash")
        await page.types("queue=mail state=queued")
        await page.shows("filter: queue=mail state=queued", " mail ", without=" other ")
        await page.press("escape")
        await page.shows(" other ", without="filter:")
        await page.press("slash")
        await page.types("OTH")
        await page.shows("filter: OTH", " other ", without=" mail ")
        await page.press("escape", "slash")
        await page.types("state=failed")
        await page.shows("no jobs", without=" mail ")

    drive({"shop": shop.client()}, story)


def test_a_listing_says_how_far_it_reaches_and_a_key_goes_on(shop: Shop, drive: Drive) -> None:
    """A page has at most 200 jobs; a key searches further back."""
    first = shop.app.send("good", queue="first")
    with shop.app.batch():
        for _ in range(250):
            shop.app.send("bad", queue="later")

    async def story(page: Page) -> None:
        await page.press("5")
        await page.shows("the newest 200, searched back to ", ": m for more")
        await page.press("slash")
        await page.types("first")
        await page.shows("filter: first", "m for more", without=first.id[-8:])
        await page.press("m")
        await page.shows(first.id[-8:], without="m for more")

    drive({"shop": shop.client()}, story)


@pytest.mark.parametrize(("typed", "said"), [
    ("colour=red", "jobs have no filter 'colour'; allowed: queue=, task=, state=, key="),
    ("state=runing", "state is one of blocked"),
    ("'mail", 'the filter "\'mail" has an open quotation mark'),
])  # fmt: skip
def test_a_wrong_filter_is_named(shop: Shop, drive: Drive, typed: str, said: str) -> None:
    async def story(page: Page) -> None:
        await page.press("5", "slash")
        page.pilot.app.query_one("Input").value = typed  # type: ignore[attr-defined]
        await page.press("enter")
        await page.shows(said)

    drive({"shop": shop.client()}, story)


def test_of_very_many_rows_the_first_are_shown(shop: Shop, drive: Drive) -> None:
    """A filter finds the others."""
    with shop.app.batch():
        for number in range(1000):  # as many as one client may begin
            shop.app.send("good", queue=f"q{number:04}")
    other = shop.client()
    other.send("good", queue="q1000")
    other.close()

    async def story(page: Page) -> None:
        await page.press("2")
        await page.shows("the first 1,000 of 1,001: filter them with /")
        assert 1000 == page.pilot.app.query_one("Table").row_count  # type: ignore[attr-defined]
        await page.press("slash")
        await page.types("q1000")
        await page.shows("filter: q1000", "q1000  1 ", without="the first")

    drive({"shop": shop.client()}, story)


def test_the_cursor_stays_on_its_row_when_others_come(shop: Shop, drive: Drive) -> None:
    job = shop.app.send("good", queue="mail")

    async def story(page: Page) -> None:
        await page.press("5")
        await page.shows(job.id[-8:])
        later = shop.app.send("good", queue="mail")
        await page.shows(later.id[-8:])
        await page.press("c")
        await page.shows(f"Cancel job {job.id} (good), as anna@desk?")

    drive({"shop": shop.client()}, story)


# Actions


def test_a_queue_is_paused_and_resumed(shop: Shop, drive: Drive) -> None:
    """After a question; the page says what it did, and the broker knows who did it."""
    shop.app.send("good", queue="mail")

    async def story(page: Page) -> None:
        await page.press("2")
        await page.shows("mail")
        await page.press("p")
        await page.shows("Pause queue mail, as anna@desk?")
        await page.press("n")
        await page.shows("nothing done: pause queue mail")
        assert not paused(shop)["mail"]
        await page.press("p", "y")
        await page.shows("paused queue mail; by anna@desk", "paused, no worker")
        assert paused(shop)["mail"]
        await page.press("p")
        await page.shows("Resume queue mail")
        await page.press("y")
        await page.shows("resumed queue mail", without="paused, no worker")

    drive({"shop": shop.client()}, story)
    assert not paused(shop)["mail"]
    assert [("pause", "anna@desk"), ("resume", "anna@desk")] == operations(shop)


def test_a_failed_job_is_retried_and_dropped(shop: Shop, drive: Drive) -> None:
    shop.work()
    shop.state_is(job := shop.app.send("bad"), "failed")

    async def story(page: Page) -> None:
        await page.press("6")
        await page.shows("ValueError: no luck")
        await page.press("r", "y")
        await page.shows(f"queued: job {job.id}", "which was failed; by anna@desk")
        until(lambda: job.info()["attempt"] == 2 and job.state == "failed", "it failed again")
        await page.shows("default  2 ")
        await page.press("d")
        await page.shows(f"Drop job {job.id} (bad), as anna@desk?")
        await page.press("y")
        await page.shows(f"dropped: job {job.id}", "no failed jobs")

    drive({"shop": shop.client()}, story)
    assert [("retry", "anna@desk"), ("drop", "anna@desk")] == operations(shop)


def test_a_job_is_cancelled_once(shop: Shop, drive: Drive) -> None:
    """Where it has ended meanwhile, the page says that nothing was done."""
    job = shop.app.send("good", queue="mail")

    async def story(page: Page) -> None:
        await page.press("5")
        await page.shows(job.id[-8:])
        await page.press("c", "y")
        await page.shows(f"cancelled: job {job.id}", "which was queued", "cancelled  mail")
        await page.press("c", "y")
        await page.shows(f"not done: job {job.id} (good) is cancelled")

    drive({"shop": shop.client()}, story)
    assert "cancelled" == job.state


def test_an_action_without_a_row_does_nothing(shop: Shop, drive: Drive) -> None:
    async def story(page: Page) -> None:
        await page.press("6")
        await page.shows("no failed jobs")
        await page.press("r", "d", "c", "p", "y", "enter")
        await page.shows("no failed jobs")
        assert len(page.pilot.app.screen_stack) == 1

    drive({"shop": shop.client()}, story)
    assert [] == operations(shop)


def test_read_only_offers_no_action(shop: Shop, drive: Drive) -> None:
    """Neither in the line of keys, nor for who presses the key."""
    shop.app.send("good", queue="mail")

    async def story(page: Page) -> None:
        await page.press("2")
        await page.shows("read-only", "mail", without="pause/resume")
        await page.press("p", "y")
        await page.press("5")
        await page.shows("good", without="cancel")
        await page.press("c", "y")
        assert len(page.pilot.app.screen_stack) == 1

    drive({"shop": shop.client()}, story, read_only=True)
    assert [] == operations(shop)
    assert not paused(shop)["mail"]


# Rights


class Keyed:
    """A broker with keys, and clients with the key of a name."""

    def __init__(self, folder: Path) -> None:
        self.keys = Keys(folder)
        self.folder = folder
        self.broker: BrokerProcess

    def client(self, name: str) -> EventMQ:
        """Return a client with the key of a name."""
        public, secret = (key.decode() for key in self.keys.pair(name))
        path = self.folder / f"{name}.key_secret"
        write_new(path, Certificate(public, secret), "test")
        return EventMQ(
            "shop", broker=self.broker["main"], key_file=str(path), actor=f"{name}@desk",
            broker_key_file=str(self.keys.folder / "broker.key"),
        )  # fmt: skip


@pytest.fixture
def keyed(tmp_path: Path) -> Iterator[Keyed]:
    keyed = Keyed(tmp_path)
    keyed.keys.authorize("web", "client")
    keyed.broker = keyed.keys.start(tmp_path)
    yield keyed
    keyed.broker.stop()


def test_a_key_without_rights_is_told_what_it_lacks(keyed: Keyed, drive: Drive) -> None:
    """It may list the queues, but see no jobs of all, and pause nothing."""
    client = keyed.client("web")
    client.send("good", queue="mail")

    async def story(page: Page) -> None:
        await page.shows("shop: up", "the key 'web' (client) may not call 'metrics'")
        await page.press("6")
        await page.shows("may not call 'failed': that needs the role")
        await page.press("2")
        await page.shows("mail", without="may not")
        await page.press("p", "y")
        await page.shows("not done: ", "the key 'web' (client) may not call 'pause'")

    drive({"shop": client}, story)


@pytest.mark.parametrize(("rights", "arguments"), [
    ({}, "another key than 'eye'"),
    ({"show_arguments": True}, 'arguments "secret"'),
])  # fmt: skip
def test_a_viewer_sees_everything_and_acts_on_nothing(
    keyed: Keyed, drive: Drive, rights: dict[str, bool], arguments: str
) -> None:
    """Arguments only if its key says so."""
    keyed.keys.authorize("eye", "viewer", **rights)
    web = keyed.client("web")
    job = web.send("good", ("secret",), queue="mail")

    async def story(page: Page) -> None:
        await page.shows("submitted")
        for key, text in (("3", "no workers"), ("4", "no running jobs"), ("6", "no failed jobs")):
            await page.press(key)
            await page.shows(text)
        await page.press("2")
        await page.shows("mail")
        await page.press("p", "y")
        await page.shows("not done: the key 'eye' (viewer) may not call 'pause'")
        await page.press("5")
        await page.shows(job.id[-8:])
        await page.press("c", "y")
        await page.shows("not done: the key 'eye' (viewer) may not call 'cancel'")
        await page.press("enter")
        await page.shows(job.id, arguments)

    drive({"shop": keyed.client("eye")}, story)
    assert "queued" == job.state
    web.close()


# Text of others


def test_names_errors_and_arguments_are_shown_escaped(shop: Shop, drive: Drive) -> None:
    """Markup, control characters and marks of direction are text, in tables and in questions."""
    shop.work()
    waiting = shop.app.send("good", queue=HOSTILE)
    shop.state_is(failed := shop.app.send(HOSTILE, (HOSTILE,)), "failed")

    async def story(page: Page) -> None:
        await page.shows(f"{SHOWN}: no worker")
        await page.press("2")
        await page.shows(SHOWN)
        await page.press("p")
        await page.shows(f"Pause queue {SHOWN}")
        await page.press("y")
        await page.shows(f"paused queue {SHOWN}")
        await page.press("6")
        await page.shows(f"{failed.id[-8:]}  {SHOWN}", f"ValueError: {SHOWN}")
        await page.press("enter")
        await page.shows(f"task      {SHOWN}", "escape  back")
        await page.shows('arguments "[red]x[/red][/] ', f"ValueError: {SHOWN}")
        assert HOSTILE not in page.text
        await page.press("escape", "5", "slash")
        await page.types("[red]")
        await page.shows("filter: [red]", waiting.id[-8:])

    drive({"shop": shop.client()}, story, size=(160, 40))
    assert paused(shop)[HOSTILE]


def test_a_hostile_name_of_a_broker_is_shown_escaped(shop: Shop, drive: Drive) -> None:
    async def story(page: Page) -> None:
        await page.shows(f"{SHOWN}: up", "submitted")

    drive({HOSTILE: shop.client()}, story, size=(160, 40))


# Terminals


@pytest.mark.parametrize("size", [(80, 24), (40, 12)])
def test_a_view_fits_the_terminal(shop: Shop, drive: Drive, size: tuple[int, int]) -> None:
    """No line is longer, and the columns that matter stay."""
    shop.work()
    shop.state_is(job := shop.app.send(HOSTILE, ("x",)), "failed")

    async def story(page: Page) -> None:
        for key in "123456":
            await page.press(key)
            await page.shows(f"[{key} ")
            assert page.pilot.app.query_one("Table").max_scroll_x == 0  # type: ignore[attr-defined]
        await page.shows(job.id[-8:], "[red]", "Val")

    drive({"shop": shop.client()}, story, size=size)


def test_the_columns_follow_the_terminal(shop: Shop, drive: Drive) -> None:
    shop.app.send("good")

    async def story(page: Page) -> None:
        await page.press("2")
        await page.shows("delayed", "waited")
        await page.pilot.resize_terminal(40, 24)
        await page.shows("waiting", without="delayed")
        await page.pilot.resize_terminal(100, 24)
        await page.shows("delayed", "waited")

    drive({"shop": shop.client()}, story)


def test_without_colours_everything_is_marked_by_characters(
    shop: Shop, drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The view has brackets, a state is a word, the cursor is reverse."""
    monkeypatch.setenv("NO_COLOR", "1")
    shop.app.send("good", queue="mail")
    shop.app.ask("pause", {"queue": "mail"})

    async def story(page: Page) -> None:
        await page.press("2")
        await page.shows("[2 queues]", "paused, no worker")
        app = page.pilot.app
        lines = app.screen._compositor.render_strips()
        line = next(each for each in lines if "paused, no worker" in each.text)
        assert any(part.style and part.style.reverse for part in line)
        shown = {
            colour.triplet
            for each in lines
            for part in each.apply_filter(app._filters[-1], app.screen.background_colors[1])
            if part.style and (colour := part.style.color) and colour.triplet
        }
        assert [] == [each for each in shown if len(set(each)) > 1]

    drive({"shop": shop.client()}, story)


# Brokers


def test_a_broker_that_goes_is_missing_until_it_is_back(shop: Shop, drive: Drive) -> None:
    """What was known of it stays; an action meanwhile says that it may not be done."""
    shop.app.send("good", queue="mail")

    async def story(page: Page) -> None:
        await page.press("2")
        await page.shows("shop: up", "mail")
        shop.broker.kill()
        await page.shows("shop: missing since ", "mail")
        await page.press("p", "y")
        await page.shows("no answer, so it may or may not be done")
        await page.press("1", "2")
        await page.shows("[2 queues]")
        shop.broker.start()
        await page.shows("shop: up", "mail", without="missing")

    drive({"shop": shop.client()}, story)


def test_a_missing_broker_does_not_hold_up_another(
    shop: Shop, drive: Drive, tmp_path: Path
) -> None:
    """A key changes between them; an action is for the one that is shown."""
    second = Shop(tmp_path / "second")
    second.app.send("good", queue="books")
    shop.app.send("good", queue="mail")

    async def story(page: Page) -> None:
        await page.shows("[one: up] two: up", "figure")
        await page.press("2")
        await page.shows("mail", without="books")
        await page.press("b")
        await page.shows("[two: up]", "books", without="mail")
        await page.press("p")
        await page.shows("Pause queue books of broker two, as anna@desk?")
        await page.press("y")
        await page.shows("paused queue books")
        shop.broker.kill()
        await page.shows(" one: missing since ", "[two: up]")
        second.app.send("good", queue="music")
        await page.shows("music")
        await page.press("1")
        await page.shows("missing since", "[two: up]", "attention")
        shop.broker.start()
        await page.shows(" one: up [two: up]", without="missing")

    try:
        drive({"one": shop.client(), "two": second.client()}, story)
        assert {"books": True, "music": False} == paused(second)
        assert {"mail": False} == paused(shop)
    finally:
        second.close()
