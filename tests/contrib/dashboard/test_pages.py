"""The bodies of pages, and actions, over a real broker and worker."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from datetime import datetime, timezone
from html import escape, unescape
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pytest
from starlette.testclient import TestClient

from eventmq import EventMQ, chord, cron, every
from eventmq.errors import BrokerUnavailable, NotAllowed
from eventmq.events import rows_of
from eventmq.plugins.triggers import Every
from eventmq.schedule import Loaded
from eventmq.wire.curve import Certificate, write_new
from eventmq_contrib.dashboard import OPERATOR, User, application, data
from eventmq_contrib.dashboard.actions import ACTIONS
from tests.contrib.dashboard.conftest import SAME_SITE, TIMEOUT, Browser
from tests.support.keyed_broker import Keys
from tests.support.system import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from eventmq_contrib.dashboard.web import Dashboard

#: Markup and control characters, as names and errors can have them.
EVIL = "<script>alert(1)</script>'\"&\x1b[31m\u202e"


def text_of(page: str) -> str:
    """Return the text of the main part of a page, without markup, on one line."""
    main = page.partition("<main")[2]
    return " ".join(re.sub(r"<[^>]*>", " ", main).split())


@pytest.fixture
def failed(app: EventMQ) -> list[str]:
    """Three jobs that failed, of two errors."""
    jobs = [app.send("shop.bad", ("first",)), app.send("shop.bad", ("second",))]

    @app.task(name="shop.worse")
    def worse() -> None:
        raise KeyError("gone")

    jobs.append(app.send("shop.worse"))
    app.wait(jobs, timeout=TIMEOUT)
    until(lambda: app.ask("queues")[0]["failed"] == 3, "all have failed")
    return [job.id for job in jobs]


# Overview and queues


@pytest.mark.usefixtures("failed")
def test_the_overview_shows_figures_and_what_needs_attention(browser: Browser) -> None:
    page = browser.get("/")
    assert "3 failed jobs to retry or drop" in page
    assert 'data-cell="broker:failed">3<' in page
    assert 'data-cell="broker:workers">1<' in page
    assert 'aria-current="page">Overview' in page
    assert 'data-path="broker:spark/rate"' in page


def test_a_queue_is_paused_resumed_and_drained(app: EventMQ, browser: Browser) -> None:
    app.wait([app.send("shop.good")], timeout=TIMEOUT)
    page = browser.confirm("/b/broker/confirm/pause?queue=default")
    assert "Queue default is paused." in page
    assert "queue default is paused" in browser.get("/b/broker/")
    app.send("shop.good")
    text = text_of(browser.get("/b/broker/queues/default?drain=1"))
    assert "Draining: 1 waiting and 0 running" in text
    assert "resume it to drain it" in text
    assert "Queue default is resumed." in browser.confirm("/b/broker/confirm/resume?queue=default")
    until(
        lambda: "The queue is drained" in browser.get("/b/broker/queues/default?drain=1"),
        "the queue is empty",
    )


def test_a_queue_is_purged_with_the_count_before_and_the_progress_after(
    app: EventMQ, browser: Browser
) -> None:
    for _ in range(5):
        app.send("shop.good", countdown=3600)
    assert "5 jobs match now" in text_of(browser.get("/b/broker/confirm/purge?queue=default"))
    browser.confirm("/b/broker/confirm/purge?queue=default")
    assert browser.address.startswith("/b/broker/bulk/")
    until(lambda: "5 of 5 jobs cancelled." in text_of(browser.get(browser.address)), "it is done")
    assert 0 == app.ask("queues")[0]["delayed"]


def test_a_note_is_shown_once(app: EventMQ, client: TestClient, browser: Browser) -> None:
    app.wait([app.send("shop.good")], timeout=TIMEOUT)
    page = browser.get("/b/broker/confirm/pause?queue=default")
    action, token = (
        re.search(pattern, page) or pytest.fail(page)
        for pattern in (r'action="([^"]+)"', r'form_token" value="(\w+)"')
    )
    answer = client.post(action[1], data={"form_token": token[1]}, headers=SAME_SITE)
    assert "Queue default is paused." in answer.text
    assert "Queue default is paused." not in client.get(str(answer.url)).text


def test_a_note_cannot_be_forged(browser: Browser) -> None:
    assert "Call 555" not in browser.get("/b/broker/?note=Call+555&done=Call+555")


@pytest.mark.parametrize(
    ("page", "status", "text"),
    [
        ("queues/none", 404, "has no queue &#39;none&#39;"),
        ("jobs/none", 404, "no job with id &#39;none&#39;"),
        ("jobs?state=odd", 400, "state is one of blocked"),
        ("jobs?since=yesterday", 400, "&#39;yesterday&#39; is no time; write 2h"),
        ("jobs?task=" + "x" * 600, 400, "longer than 500 characters"),
        ("confirm/none", 400, "there is no action"),
        ("confirm/pause", 400, "lacks: queue"),
        ("bulk/0123", 400, "does not know a bulk operation"),
        ("nothing", 404, "no such page"),
    ],
)
def test_bad_input_is_a_clear_error(browser: Browser, page: str, status: int, text: str) -> None:
    assert text in browser.get(f"/b/broker/{page}", status).lower()


def test_a_broker_that_is_not_there_is_named(browser: Browser) -> None:
    assert "no broker &#39;other&#39;; it has: broker" in browser.get("/b/other/queues", 404)


# Markup and control characters


def test_markup_and_control_characters_are_text_everywhere(app: EventMQ, browser: Browser) -> None:
    """In names of queues and tasks, arguments, errors, filters and ids."""

    @app.task(name=EVIL)
    def evil(text: str) -> None:
        raise ValueError(EVIL)

    app.send("shop.good", queue=f"q {EVIL}", countdown=3600)
    job = app.send(EVIL, (EVIL,))
    app.wait([job], timeout=TIMEOUT)
    pages = [
        "", "queues", f"jobs/{job.id}", "jobs", "failed", "failed?list=1",
        "jobs?task=%3Cscript%3E", "confirm/pause?queue=%3Cscript%3E", "jobs/%3Cscript%3E",
    ]  # fmt: skip
    for page in pages:
        status = 404 if page == "jobs/%3Cscript%3E" else 200
        text = browser.get(f"/b/broker/{page}", status)
        assert "<script>alert" not in text
        assert "<script>&" not in text
        seen = re.sub(r'value="[^"]*"', "", text)  # of forms, which send what they have
        assert "\x1b" not in seen
        assert "\u202e" not in seen
    assert escape("\\x1b[31m\\u202e") in browser.get(f"/b/broker/jobs/{job.id}")


def test_a_queue_newer_than_the_figures_has_a_page(app: EventMQ, browser: Browser) -> None:
    browser.get("/b/broker/")
    app.send("shop.good", queue="new", countdown=3600)
    assert "<h1>Queue new" in browser.get("/b/broker/queues/new")
    assert "has no queue" in browser.get("/b/broker/queues/other", 404)


def test_an_action_reaches_a_queue_of_any_name(app: EventMQ, browser: Browser) -> None:
    """Forms and addresses carry names as they are, not as they are shown."""
    name = f"a/b?c=d&e f+{EVIL}"
    app.send("shop.good", queue=name, countdown=3600)
    page = browser.get("/b/broker/queues")
    link = next(x for x in re.findall(r'href="([^"]*)"', page) if "a%2Fb" in x)
    page = browser.get(link)
    action = re.search(r'href="([^"]*/confirm/pause[^"]*)"', page) or pytest.fail(page)
    assert "is paused" in browser.confirm(action[1].replace("&amp;", "&"))
    assert [name] == [row["name"] for row in app.ask("queues") if row["paused"]]


# Jobs


def test_jobs_are_listed_filtered_and_paged(app: EventMQ, browser: Browser) -> None:
    app.wait([app.send("shop.good") for _ in range(60)], timeout=TIMEOUT)
    delayed = app.send("shop.good", queue="late", countdown=3600)
    page = browser.get("/b/broker/jobs")
    assert 50 == page.count('<tr><th scope="row">')
    assert f"jobs/{delayed.id}" in page
    older = re.search(r'href="([^"]*cursor=[^"]*)">Older', page) or pytest.fail(page)
    page = browser.get(older[1].replace("&amp;", "&"))
    assert 11 == page.count('<tr><th scope="row">')
    assert "These are all of them." in page
    page = browser.get("/b/broker/jobs?state=delayed&queue=late&task=shop.good&since=1h")
    assert 1 == page.count('<tr><th scope="row">')
    assert "No jobs match." in browser.get("/b/broker/jobs?queue=late&until=1h")
    assert '<option value="late">' in page
    assert '<option value="shop.good">' in page


def test_a_search_that_takes_long_says_how_far_it_is_and_goes_on(
    app: EventMQ, browser: Browser, dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.wait([app.send("shop.good") for _ in range(3)], timeout=TIMEOUT)
    broker = dashboard.brokers.brokers["broker"]
    asked: list[Any] = []

    def monotonic() -> float:  # a page of a large store takes 50 ms
        return time.monotonic() + 0.05 * len(asked)

    def ask(name: str, arguments: Any = None) -> Any:
        if name != "jobs":
            return app.ask(name, arguments)
        asked.append(arguments)
        at = 1_800_000_000.0 - 60 * len(asked)
        return {"jobs": [], "cursor": f"c{len(asked)}", "complete": False, "searched_to": at}

    monkeypatch.setattr(data, "time", SimpleNamespace(monotonic=monotonic, time=time.time))
    monkeypatch.setattr(broker, "ask", ask)
    page = browser.get("/b/broker/jobs?task=rare")
    assert 2 <= len(asked) <= 5, "it searches on for a while, and then shows what it has"
    assert "Searched back to 2027-01-15 0" in page
    assert f"cursor=c{len(asked)}" in page
    assert "No jobs match" not in page


def test_one_job_shows_history_errors_arguments_and_logs(app: EventMQ, browser: Browser) -> None:
    @app.task(name="shop.flaky", retries=1, retry_policy="fixed", keep_logs=True)
    def flaky(number: int, *, word: str) -> int:
        raise ValueError(word)

    job = app.tasks["shop.flaky"].delay(7, word="broken")
    app.wait([job], timeout=TIMEOUT)
    page = browser.get(f"/b/broker/jobs/{job.id}")
    text = text_of(page)
    assert "shop.flaky failed" in text
    assert "attempt 1 failed" in text
    assert "attempt 2 failed" in text
    assert 2 == page.count("<details")
    assert "Traceback (most recent call last)" in page
    assert "word=&#34;broken&#34;" in page
    assert "confirm/retry" in page


def test_arguments_are_hidden_from_users_who_only_read_unless_allowed(
    app: EventMQ, reader: Browser, browser: Browser, dashboard: Dashboard
) -> None:
    job = app.send("shop.bad", ("a secret",), countdown=3600)
    assert "a secret" in browser.get(f"/b/broker/jobs/{job.id}")
    page = reader.get(f"/b/broker/jobs/{job.id}")
    assert "a secret" not in page
    assert "--show-arguments" in page
    dashboard.show_arguments = True
    assert "a secret" in reader.get(f"/b/broker/jobs/{job.id}")


def test_a_graph_is_drawn_with_a_waterfall(app: EventMQ, browser: Browser) -> None:
    good = app.tasks["shop.good"]
    job = chord([good.s(1), good.s(2)], good.si(3)).delay()
    app.wait([job], timeout=TIMEOUT)
    page = browser.get(f"/b/broker/jobs/{job.id}")
    assert 3 == page.count('<rect x="')
    assert 2 == page.count('class="edge"')
    assert 3 == page.count('class="fall"')
    assert "3 succeeded" in text_of(page)
    assert "cancel-graph" not in page
    later = good.options(countdown=3600).s(1)
    page = browser.get(f"/b/broker/jobs/{chord([later, good.s(2)], good.si(3)).delay().id}")
    assert "cancel-graph" in page


def test_a_job_is_cancelled(app: EventMQ, browser: Browser) -> None:
    job = app.send("shop.good", countdown=3600)
    assert "1 job cancelled." in browser.confirm(f"/b/broker/confirm/cancel?id={job.id}")
    assert "cancelled" == job.state
    page = browser.confirm(f"/b/broker/confirm/cancel?id={job.id}")
    assert "1 job cancelled." in page or "left alone: it is cancelled" in page


def test_every_action_is_an_event_with_its_user(
    app: EventMQ, browser: Browser, failed: list[str]
) -> None:
    """Also one that finds nothing to do."""
    app.schedule("nightly", app.tasks["shop.good"].s(3), every(seconds=3600))
    job = app.send("shop.good", countdown=3600)
    good = app.tasks["shop.good"]
    graph = chord([good.options(countdown=3600).si(1)], good.si(2)).delay()
    actions = {
        f"cancel?id={job.id}": "cancel", f"cancel-graph?id={graph.id}": "cancel",
        f"retry?id={failed[0]}": "retry", f"drop?id={failed[2]}": "drop",
        "pause?queue=default": "pause", "resume?queue=default": "resume",
        "purge?queue=default": "purge", "bulk-cancel?queue=default": "cancel",
        "disable?name=nightly": "disable", "enable?name=nightly": "enable",
        "run?name=nightly": "run", "bulk-drop": "drop", "bulk-retry": "retry",
    }  # fmt: skip
    assert {*ACTIONS} == {action.partition("?")[0] for action in actions}

    def named() -> list[str]:
        rows = app.ask("events.read")["rows"]
        events = [event for first, _, body in rows for event in rows_of("b", first, body)]
        return [e["operation"] for e in events if "olga" == e.get("actor")]

    for action, operation in actions.items():
        before = len(named())
        browser.confirm(f"/b/broker/confirm/{action}")
        until(lambda before=before: len(named()) > before, f"{action} has left an event")
        assert {operation} == {*named()[before:]}, action


# Failed jobs


def test_failed_jobs_are_grouped_by_fingerprint(browser: Browser, failed: list[str]) -> None:
    page = browser.get("/b/broker/failed")
    text = text_of(page)
    assert "shop.bad: ValueError 2 default" in text
    assert "shop.worse: KeyError 1 default" in text
    assert any(f"jobs/{job_id}" in page for job_id in failed[:2]), "the sample failed last"
    assert 1 == text_of(browser.get("/b/broker/failed?task=shop.worse")).count("KeyError 1")


@pytest.mark.usefixtures("failed")
def test_failed_jobs_are_found_by_text_and_error(browser: Browser) -> None:
    page = browser.get("/b/broker/failed?text=second")
    assert 1 == page.count('name="chosen"')
    assert "bulk-retry" not in page, "an operation on all has no such filter"
    assert 1 == browser.get("/b/broker/failed?error=KeyError").count('name="chosen"')
    answer = browser.get("/b/broker/confirm/bulk-retry?text=second", 400)
    assert "has no filter text" in answer


@pytest.mark.parametrize("query", ["queue=default&key=x", "queue=default&since=2h", "state=queued"])
def test_a_page_offers_no_operation_that_would_ignore_its_filter(
    app: EventMQ, browser: Browser, query: str
) -> None:
    app.send("shop.good", countdown=3600)
    assert "bulk-cancel" in browser.get("/b/broker/jobs?queue=default")
    assert "bulk-cancel" not in browser.get(f"/b/broker/jobs?{query}")
    for name in ("key", "since"):
        page = browser.get(f"/b/broker/confirm/bulk-cancel?queue=default&{name}=2h", 400)
        assert f"has no filter {name}" in page


def test_chosen_failed_jobs_are_retried_once(
    app: EventMQ, browser: Browser, failed: list[str]
) -> None:
    query = f"chosen={failed[0]}+1&chosen={failed[1]}+1&from=failed"
    page = browser.get(f"/b/broker/confirm/retry?{query}")
    assert "2 chosen jobs" in page
    assert "2 jobs queued again." in browser.confirm(f"/b/broker/confirm/retry?{query}")
    app.wait([app.job(failed[0]), app.job(failed[1])], timeout=TIMEOUT)
    until(lambda: app.job(failed[0]).info()["attempt"] == 2, "it ran again")
    page = browser.confirm(f"/b/broker/confirm/retry?{query}")
    assert "0 jobs queued again." in page, "the form of before has no effect"


def test_one_failed_job_is_dropped(app: EventMQ, browser: Browser, failed: list[str]) -> None:
    assert "cannot be undone" in browser.get(f"/b/broker/confirm/drop?id={failed[0]}&from=failed")
    page = browser.confirm(f"/b/broker/confirm/drop?id={failed[0]}&from=failed")
    assert "1 job dropped." in page
    assert 2 == app.ask("queues")[0]["failed"]


def test_all_that_match_are_dropped(app: EventMQ, browser: Browser, failed: list[str]) -> None:
    query = "task=shop.bad&error=ValueError"
    assert "2 jobs match now" in text_of(browser.get(f"/b/broker/confirm/bulk-drop?{query}"))
    browser.confirm(f"/b/broker/confirm/bulk-drop?{query}")
    until(lambda: app.ask("queues")[0]["failed"] == 1, "the broker dropped them")
    assert "failed" == app.job(failed[2]).state


@pytest.mark.usefixtures("failed")
def test_a_relative_time_is_that_of_the_question(browser: Browser) -> None:
    """What is counted is what is acted on, however late the answer comes."""
    page = browser.get("/b/broker/confirm/bulk-drop?since=2h")
    action = re.search(r'action="([^"]+)"', page) or pytest.fail(page)
    since = re.search(r"since=([^&]+)&", action[1]) or pytest.fail(action[1])
    at = datetime.fromisoformat(unquote(since[1])).timestamp()
    assert abs(time.time() - 7200 - at) < 60


def test_a_form_that_is_sent_twice_starts_one_operation(
    app: EventMQ, browser: Browser, failed: list[str]
) -> None:
    page = browser.get("/b/broker/confirm/bulk-retry?task=shop.worse")
    action = re.search(r'action="([^"]+)"', page) or pytest.fail(page)
    token = re.search(r'form_token" value="(\w+)"', page) or pytest.fail(page)
    address = action[1].replace("&amp;", "&")
    for _ in range(2):
        assert 200 == browser.post(address, form_token=token[1]).status_code
    until(lambda: app.job(failed[2]).info()["attempt"] == 2, "it ran again")
    assert 200 == browser.post(address, form_token=token[1]).status_code
    assert 2 == app.job(failed[2]).info()["attempt"]


# Workers and schedules


def test_workers_are_listed(app: EventMQ, browser: Browser) -> None:
    app.wait([app.send("shop.good")], timeout=TIMEOUT)
    text = text_of(browser.get("/b/broker/workers"))
    assert "threads 0 of" in text
    assert "default:10" in text


def test_schedules_run_and_are_switched(app: EventMQ, browser: Browser) -> None:
    good = app.tasks["shop.good"]
    app.schedule("nightly", good.s(3), cron("0 3 * * *", tz="Europe/Paris"))
    app.schedule("often", good.s(4), every(seconds=90))
    text = text_of(browser.get("/b/broker/schedules"))
    assert "nightly shop.good cron 0 3 * * *, zone Europe/Paris in" in text
    page = browser.confirm("/b/broker/confirm/run?name=nightly")
    found = re.search(r"Schedule nightly was run: job (\w+)", page) or pytest.fail(page)
    app.wait([app.job(found[1])], timeout=TIMEOUT)
    assert "is disabled." in browser.confirm("/b/broker/confirm/disable?name=nightly")
    assert not app.schedules.get("nightly").enabled
    assert "is enabled." in browser.confirm("/b/broker/confirm/enable?name=nightly")
    assert app.schedules.get("nightly").enabled


def test_a_schedule_shows_its_next_fire_times_and_the_jobs_that_it_fired(
    app: EventMQ, browser: Browser
) -> None:
    """A name of any characters reaches its page."""
    name = f"a/b?c {EVIL}"
    app.schedule(name, app.tasks["shop.good"].s(4), every(seconds=0.1))
    link = next(
        unescape(each) for each in re.findall(r'href="([^"]*)"', browser.get("/b/broker/schedules"))
        if "schedules/a" in each
    )  # fmt: skip
    until(lambda: browser.get(link).count(">succeeded<") >= 3, "it has fired")
    app.schedules.disable(name)
    until(lambda: "running" not in browser.get(link), "its jobs have ended")
    page = browser.get(link)
    fired = re.findall(r'title="(\w{32})"', page)
    assert 3 <= len(fired) <= 20
    assert sorted(fired, reverse=True) == fired
    assert {"succeeded"} == {app.job(job_id).state for job_id in fired}
    assert "<script>alert" not in page
    assert "\u202e" not in page
    assert "None while it is disabled." in page
    app.schedules.enable(name)
    assert 5 == browser.get(link).partition("Next fire times")[2].count("<tr><td>")
    assert "Schedule" in browser.get("/b/broker/schedules/nothing", 404)


def test_next_fire_times_are_right_over_the_end_of_winter_time(
    app: EventMQ, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the zone of the schedule and in UTC; one with few runs left has no more."""
    good = app.tasks["shop.good"]
    app.schedule("nightly", good.s(3), cron("30 2 * * *", tz="Europe/Paris"), run_count=3)
    made = app.schedules.get("nightly")
    last = datetime(2027, 3, 26, 1, 30, tzinfo=timezone.utc).timestamp()
    app.schedules.store.save([(replace(made, last_fire_time=last), made.version)])
    text = text_of(browser.get("/b/broker/schedules/nightly"))
    assert "2027-03-27 01:30:00 2027-03-27 02:30:00 CET" in text
    assert "2027-03-28 01:00:00 2027-03-28 03:00:00 CEST" in text  # the clocks skip 02:30
    assert "2027-03-29 00:30:00 2027-03-29 02:30:00 CEST" in text
    assert "2027-03-30" not in text
    assert "Runs left 3" in text


@pytest.mark.parametrize("trigger", ['own:{"moon": "full"}', "every:{}", "cron:nonsense"])
def test_a_trigger_that_is_not_known_here_has_no_fire_times(
    app: EventMQ, browser: Browser, monkeypatch: pytest.MonkeyPatch, trigger: str
) -> None:
    app.schedule("lunar", app.tasks["shop.good"].s(3), every(seconds=3600))
    made = replace(app.schedules.get("lunar"), trigger=trigger)
    monkeypatch.setattr(app.schedules.store, "load", lambda: Loaded(1, [made]))
    monkeypatch.setattr(app.schedules.store, "find", lambda _: made)
    assert "lunar shop.good" in text_of(browser.get("/b/broker/schedules"))
    text = text_of(browser.get("/b/broker/schedules/lunar"))
    assert "None, or this dashboard lacks the plugin of its trigger." in text


def test_a_trigger_that_fails_spoils_no_page(
    app: EventMQ, browser: Browser, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    app.schedule("often", app.tasks["shop.good"].s(3), every(seconds=3600))
    monkeypatch.setattr(Every, "next_after", lambda *_: 1 / 0)
    assert "often shop.good every 1 h - -" in text_of(browser.get("/b/broker/schedules"))
    assert "The broker knows none any more." in browser.get("/b/broker/schedules/often")
    assert "the trigger of schedule 'often' failed" in caplog.text


def test_a_schedule_that_is_gone_is_named(app: EventMQ, browser: Browser) -> None:
    app.schedule("nightly", app.tasks["shop.good"].s(3), every(seconds=3600))
    page = browser.get("/b/broker/confirm/run?name=nightly")
    app.unschedule("nightly")
    action = re.search(r'action="([^"]+)"', page) or pytest.fail(page)
    token = re.search(r'form_token" value="(\w+)"', page) or pytest.fail(page)
    answer = browser.post(action[1], form_token=token[1])
    assert 404 == answer.status_code
    assert "no schedule &#39;nightly&#39;" in answer.text


# Brokers that are missing, several, and a report


def test_a_missing_broker_is_shown_missing(
    browser: Browser, dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch, app: EventMQ
) -> None:
    browser.get("/b/broker/queues")

    def away(name: str, arguments: object = None) -> Any:
        raise BrokerUnavailable("no broker at tcp://x answered")

    monkeypatch.setattr(app, "ask", away)
    dashboard.brokers.brokers["broker"].refresh(0.0)
    page = browser.get("/b/broker/queues")
    assert "The broker is missing: no broker at tcp://x answered" in page
    assert "What is shown is from" in page
    assert "does not answer" in browser.get("/b/broker/jobs", 503)
    monkeypatch.undo()
    until(lambda: "is missing" not in browser.get("/b/broker/queues"), "it is back")


def test_what_the_broker_does_not_allow_is_said(
    browser: Browser, monkeypatch: pytest.MonkeyPatch, app: EventMQ
) -> None:
    browser.get("/b/broker/")
    ask = app.ask

    def refuse(name: str, arguments: Any = None) -> Any:
        if name == "workers":
            raise NotAllowed("this key has only the role viewer")
        return ask(name, arguments)

    monkeypatch.setattr(app, "ask", refuse)
    assert "role viewer" in browser.get("/b/broker/workers", 403)


def test_several_brokers_have_names(app: EventMQ, app_of: Callable[[], EventMQ]) -> None:
    other = app_of()
    job = app.send("shop.good", countdown=3600)
    dashboard = application({"eu": app, "us west": other}, user=lambda _: User("o", OPERATOR))
    browser = Browser(TestClient(dashboard, "http://127.0.0.1"))
    page = browser.get("/")
    assert 'href="/b/us%20west/"' in page
    assert f"jobs/{job.id}" in browser.get("/b/eu/jobs")
    assert f"jobs/{job.id}" not in browser.get("/b/us%20west/jobs")
    assert "No job with id" in browser.get(f"/b/us%20west/jobs/{job.id}", 404)
    page = browser.confirm(f"/b/us%20west/confirm/cancel?id={job.id}&from=jobs")
    assert "0 jobs cancelled." in page
    assert "it is not known" in page
    assert "delayed" == job.state
    dashboard.close()


def test_a_report_can_neither_run_scripts_nor_act(app: EventMQ, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("<h1>Report</h1>")
    dashboard = application(app, user=lambda _: User("o"), report=path)
    client = TestClient(dashboard, "http://127.0.0.1")
    answer = client.get("/report")
    assert "<h1>Report</h1>" == answer.text
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("sandbox; default-src 'none'; style-src 'unsafe-inline'")
    assert "script-src" not in policy
    assert 'href="/report"' in client.get("/b/broker/").text
    path.unlink()
    assert 404 == client.get("/report").status_code
    dashboard.close()


@pytest.mark.parametrize("shown", [False, True])
def test_a_dashboard_with_the_key_of_a_viewer_shows_all_and_acts_on_nothing(
    tmp_path: Path, *, shown: bool
) -> None:
    """Whatever role its users have."""
    keys = Keys(tmp_path)
    keys.authorize("web", "client")
    keys.authorize("eye", "viewer", show_arguments=shown)
    broker = keys.start(tmp_path)
    for name in ("web", "eye"):
        public, secret = (key.decode() for key in keys.pair(name))
        write_new(tmp_path / f"{name}.key_secret", Certificate(public, secret), "test")
    settings = {"broker": broker["main"], "broker_key_file": str(keys.folder / "broker.key")}
    web, eye = (
        EventMQ(name, key_file=str(tmp_path / f"{name}.key_secret"), **settings)
        for name in ("web", "eye")
    )
    job = web.send("good", ("a secret",), queue="mail")
    dashboard = application(eye, user=lambda _: User("olga", OPERATOR))
    browser = Browser(TestClient(dashboard, "http://127.0.0.1"))
    for page in ("", "queues", "queues/mail", "workers", "jobs", "failed", "schedules"):
        browser.get(f"/b/broker/{page}")
    assert shown == ("a secret" in browser.get(f"/b/broker/jobs/{job.id}"))
    page = browser.get("/b/broker/confirm/pause?queue=mail")
    action = re.search(r'action="([^"]+)"', page) or pytest.fail(page)
    token = re.search(r'form_token" value="(\w+)"', page) or pytest.fail(page)
    answer = browser.post(action[1], form_token=token[1])
    assert 403 == answer.status_code
    assert "may not call" in answer.text
    dashboard.close()
    web.close()
    eye.close()
    broker.stop()
