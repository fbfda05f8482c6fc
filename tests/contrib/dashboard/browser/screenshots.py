"""Screenshots for the documentation: ``python -m tests.contrib.dashboard.browser.screenshots``.

Data and clock are fixed, so that a screenshot changes only with the page. They need Chromium and
Playwright as the tests beside this file do.
"""

from __future__ import annotations

import math
import socket
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import uvicorn

from eventmq.sdk import RemoteError
from eventmq_contrib.dashboard import OPERATOR, User, application
from eventmq_contrib.dashboard.data import Page, Snapshot
from eventmq_contrib.figures import History, Sample
from tests.contrib.dashboard.browser.driving import browsers

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from eventmq_contrib.dashboard.web import Dashboard

__all__ = ["FOLDER", "MAX_SIZE", "SHOTS", "take"]

FOLDER = Path(__file__).parents[4] / "docs" / "_static" / "dashboard"

#: Bytes that a screenshot may have.
MAX_SIZE = 150_000

#: 2026-03-02 14:20:00 UTC
NOW = 1_772_461_200.0

#: File -> page, colours, width and height.
SHOTS = {
    "overview.png": ("", "light", 1080, 720),
    "failed.png": ("failed", "dark", 1080, 460),
    "job.png": ("jobs/019cae2b7a40d003", "light", 1080, 1070),
    "phone.png": ("queues/mail", "light", 390, 700),
}

TRACEBACK = """Traceback (most recent call last):
  File "/srv/shop/tasks.py", line 41, in charge
    answer = bank.charge(order.card, order.total)
  File "/srv/shop/bank.py", line 18, in charge
    raise CardDeclined("insufficient funds")
shop.bank.CardDeclined: insufficient funds
"""

#: Queue -> waiting, running, delayed, failed, workers, seconds of the oldest, jobs per second.
QUEUES = {
    "mail": (1_240, 16, 310, 4, 2, 41.0, 212.0),
    "orders": (86, 24, 12, 7, 3, 1.8, 96.0),
    "reports": (5, 4, 0, 0, 1, 95.0, 0.4),
    "thumbnails": (312, 8, 0, 2, 1, 6.2, 48.0),
}


def snapshot() -> Snapshot:
    """Return the figures of a shop on an ordinary day."""
    samples = []
    for second in range(90):
        counts = {
            name: Counter(
                ended=int(rate * (second + 2 * math.sin(second / 5 + len(name)))),
                waiting=int(waiting * (0.7 + 0.3 * math.sin(second / 9 + len(name)))),
            )
            for name, (waiting, *_, rate) in QUEUES.items()
        }
        counts[""] = sum(counts.values(), Counter())
        waits = {0.005: 61 * second, 0.025: 160 * second, 0.1: 20 * second, 0.5: 5 * second}
        samples.append(Sample(NOW - 90 + second, 1, counts, Counter(waits)))
    queues = [
        {"name": name, "waiting": row[0], "running": row[1], "delayed": row[2], "failed": row[3],
         "workers": row[4], "waited": row[5], "oldest": row[5], "blocked": 0,
         "paused": name == "reports", "limits": ""}
        for name, row in QUEUES.items()
    ]  # fmt: skip
    jobs = [
        {"queue": "mail", "task": task, "submitted": done + 30, "retried": done // 900,
         "outcomes": {"succeeded": done, "failed": done // 9_000}}
        for task, done in (("mail.confirmation", 48_210), ("mail.newsletter", 129_400))
    ]  # fmt: skip
    workers = [[f"web-{n}:{4100 + n}", running, 8] for n, running in enumerate((8, 8, 7, 8, 6, 8))]
    return Snapshot(
        at=NOW, metrics={"jobs": jobs, "workers": workers, "queues": queues}, queues=queues,
        history=History((*samples,)),
        status={"version": "1.0.0", "role": "active", "started": NOW - 86_400 * 9}, missing="",
    )  # fmt: skip


def failures(_: Any) -> Page:
    """Return failed jobs by fingerprint."""
    rows = [
        ("orders.charge", "shop.bank.CardDeclined", 7, "orders", 40, "insufficient funds"),
        ("mail.newsletter", "smtplib.SMTPDataError", 4, "mail", 310,
         "451 try again later"),
        ("images.resize", "PIL.UnidentifiedImageError", 2, "thumbnails", 5_000,
         "cannot identify image file 'cat.txt'"),
    ]  # fmt: skip
    groups = [
        {"task": task, "error": error, "count": count, "queues": {queue: count}, "last": NOW - last,
         "first": NOW - 40 * last, "message": message, "sample": f"019cae2b7a40d00{count}"}
        for task, error, count, queue, last, message in rows
    ]  # fmt: skip
    return Page(groups, "", 0.0, full=False)


def graph() -> list[dict[str, Any]]:
    """Return the jobs of the graph of an order."""
    common = {
        "handler": False, "queue": "orders", "delivery": 1, "priority": 0, "expires": None,
        "due": None, "progress": None, "leased": None, "parent": "", "attempt": 1,
        "root": "019cae2b7a40d000", "created": NOW - 46.0, "headers": "", "error": None,
    }  # fmt: skip
    # Task, state, input, output, seconds from the submission to start and end.
    rows = [
        ("orders.check", "succeeded", 0, 1, 0.2, 1.1),
        ("orders.reserve", "succeeded", 1, 2, 1.2, 3.0),
        ("orders.address", "succeeded", 1, 2, 1.2, 2.1),
        ("orders.charge", "failed", 2, 3, 4.9, 6.0),
        ("orders.pack", "cancelled", 3, 4, 0.0, 6.0),
        ("mail.confirmation", "cancelled", 3, 4, 0.0, 6.0),
    ]
    return [
        {**common, "id": f"019cae2b7a40d00{place}", "place": place, "task": task, "state": state,
         "input": before, "output": after, "started": NOW - 46.0 + start if start else None,
         "finished": NOW - 46.0 + end, "ran": end - start if start else None,
         "worker": f"web-{place % 3}:{4100 + place % 3}" if start else ""}
        for place, (task, state, before, after, start, end) in enumerate(rows)
    ]  # fmt: skip


def job(_: str, **__: Any) -> dict[str, Any]:
    """Return the job that failed."""
    row = graph()[3]
    error = RemoteError(
        "shop.bank.CardDeclined", "insufficient funds", TRACEBACK, ("insufficient funds",)
    )
    attempts = [
        {"attempt": number, "at": NOW - 46.0 + at, "worker": row["worker"], "ran": ran,
         "error": error, "delivery": number, "started": NOW - 46.0 + at - ran}
        for number, at, ran in ((1, 3.9, 0.8), (2, 6.0, 1.1))
    ]  # fmt: skip
    return {
        **row, "attempt": 2, "error": error, "attempts": attempts, "logs": [],
        "args": [{"order": 5_120, "total": "84.90"}], "kwargs": {}, "args_note": "",
    }  # fmt: skip


def dashboard() -> Dashboard:
    """Return a dashboard whose broker answers with the fixed data."""
    made = application({"shop": mock.Mock()}, user=lambda _: User("olga", OPERATOR))
    broker, figures = made.brokers.brokers["shop"], snapshot()
    broker.snapshot = figures
    for name, answer in {
        "refresh": lambda *_: figures, "failures": failures, "job": job,
        "graph": lambda _: (graph(), 6),
    }.items():  # fmt: skip
        setattr(broker, name, answer)
    return made


def take(browser: Browser, folder: Path) -> None:
    """Write the screenshots into a folder."""
    made = dashboard()
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(made, log_config=None, lifespan="off", ws="none"))
    thread = threading.Thread(target=server.run, args=([listener],))
    with mock.patch.object(time, "time", return_value=NOW):
        thread.start()
        try:
            for name, (path, scheme, width, height) in SHOTS.items():
                context = browser.new_context(
                    color_scheme=scheme,  # type: ignore[arg-type]
                    viewport={"width": width, "height": height}, reduced_motion="reduce",
                )  # fmt: skip
                page = context.new_page()
                page.goto(f"http://127.0.0.1:{listener.getsockname()[1]}/b/shop/{path}")
                page.locator("#connection.on").wait_for()
                page.screenshot(path=folder / name)
                context.close()
        finally:
            made.streams.close()
            server.should_exit = True
            thread.join()
            made.close()
            listener.close()


def main() -> int:
    """Write the files of the documentation; complain of one that is too large."""
    FOLDER.mkdir(exist_ok=True)
    for browser in browsers():
        take(browser, FOLDER)
    large = [name for name in SHOTS if (FOLDER / name).stat().st_size > MAX_SIZE]
    for name in SHOTS:
        print(name, (FOLDER / name).stat().st_size)
    return 1 if large else 0


if __name__ == "__main__":
    sys.exit(main())
