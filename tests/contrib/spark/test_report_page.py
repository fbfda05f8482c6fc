"""The page of the report: shapes that are true, and names of other people that stay text."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from eventmq.errors import PluginError
from eventmq_contrib.spark.analyses.clocks import sentence
from eventmq_contrib.spark.page import SIZE, lines, number, page, seconds, stacked

START = 1_795_248_000.0

#: Hostile name of a task, a queue, a worker or an error.
HOSTILE = (
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "'; alert(1); '",
    "</title></svg><iframe src=//evil.example>", "{{ 7 * 7 }}{% raw %}", "\x1b[2J\x00\u202e",
    "url(//evil.example/x.css)", "</style><style>@import '//evil.example'",
)  # fmt: skip


def made_up(name: str) -> dict[str, Any]:
    """A report in which everything that can have a name has this one."""
    audit = dict.fromkeys(
        ("succeeded", "failed", "cancelled", "expired", "waiting", "running", "stuck", "lost",
         "unknown", "double_leased", "missing_events", "orphans", "damaged"), 3,
    )  # fmt: skip
    ids = {f"{what}_ids": (name,) * 7 for what in ("stuck", "lost", "double_leased", "orphan")}
    files = {"damage": (f"{name} was altered",), "unproven": (name,), "proven": False}
    files |= {"unanchored": (), "anchored": False}
    times = [START + 10 * n for n in range(6)]
    series = {name: [1.0, 2.0, None, 4.0, 0.0, 5.0], "other": [1.0] * 6}
    full = {name: [1.0, 2.0, 0.0, 4.0, 0.0, 5.0]}
    spans = {f"{what}_p{p}_s": 0.5 for what in ("wait", "run") for p in (50, 95, 99)}
    return {
        "events": 100, "brokers": 1, "first": START, "last": START + 60, "seconds": 60.0,
        "target_p95": 1.0, "min_history": 4, "clocks": [sentence(name, "b", 0.0, 3.0)],
        "audit": {"jobs": 33, "sound": False, **audit, **ids, **files},
        "timeline": {
            "times": times, "width": 10.0, "ended": {"succeeded": full[name]}, "came": full,
            "waited": {"p50": series[name]}, "ran": {"p50": series[name]}, "ages": series,
            "working": full,
        },
        "tasks": [{"task": name, "queue": name, "runs": 9, "failed": 1, "retries": 2, **spans}],
        "slo": [{
            "queue": name, "share": 0.95, "within": 2.0, "met": False, "starts": 9,
            "attainment": 0.5, "budget_left": -2.0, "burn_5m": None, "burn_1h": 3.0,
            "oldest": 5.0, "waiting": 1,
        }],
        "failures": [{
            "fingerprint": name, "error": name, "task": name, "release": name, "attempts": 4,
            "length": 1.0, "new": True, "retry_helped": None, "first_seen": START,
            "last_seen": START + 5,
        }],
        "capacity": [{
            "queue": name, "rate": 1.5, "run_mean_s": 0.2, "working": 0.3, "waiting": 4.0,
            "slots": 2, "utilisation": 0.15, "wait_p95_s": 3.0, "needed": None,
        }],
        "workers": [{"worker": name, "jobs": 9, "slots": 2, "utilisation": 0.7}],
        "anomalies": [{"task": name, "why": name}],
        **{f"more_{what}": 5 for what in ("tasks", "failures", "capacity", "workers", "anomalies")},
        "total": {
            "ended": 12, "rate": 0.2, "failed_share": 0.25, "wait_p95_s": 1.0, "run_p95_s": 2.0,
            "utilisation": 0.5,
        },
    }  # fmt: skip


class Reader(HTMLParser):
    """Records what a browser would show."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = self.style = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in {"meta", "br", "line", "path", "rect"} or tag == "rect":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert tag == self.open.pop(), f"</{tag}> closes another"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "style":
            self.style += data
        else:
            self.text += data


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert [] == reader.open
    return reader


@pytest.mark.parametrize("name", HOSTILE)
def test_what_comes_from_events_stays_text(name: str) -> None:
    """The page has the same elements and attributes as with a harmless name."""
    plain = read(page(made_up("shop.send"), title="EventMQ", made=START))
    hostile = read(page(made_up(name), title=name, made=START))
    assert [(tag, set(attrs)) for tag, attrs in plain.tags] == [
        (tag, set(attrs)) for tag, attrs in hostile.tags
    ]
    assert plain.style == hostile.style
    attribute_values = [values for _, attrs in hostile.tags for values in attrs.values() if values]
    assert not any("evil" in value or "alert" in value for value in attribute_values)
    if name.isprintable():
        assert hostile.text.count(name) > 20
    assert "\x00" not in hostile.text
    assert "\x1b" not in hostile.text


def test_the_page_loads_nothing() -> None:
    """No address, script or style of others, and a policy that forbids them."""
    reader = read(page(made_up("shop.send"), title="EventMQ", made=START))
    assert {"script", "link", "img", "iframe", "object", "a", "form"}.isdisjoint(
        tag for tag, _ in reader.tags
    )
    assert not {"src", "href", "onload", "onclick"} & {name for _, a in reader.tags for name in a}
    assert "url(" not in reader.style
    assert "@import" not in reader.style
    policies = [a["content"] for tag, a in reader.tags if a.get("http-equiv")]
    assert [
        "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    ] == (policies)
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in (
        reader.tags
    )
    assert "prefers-color-scheme: dark" in reader.style


def test_the_page_shows_whether_there_are_problems() -> None:
    report = made_up("shop.send")
    bad = read(page(report, title="EventMQ", made=START)).text
    assert "Not every job is accounted for: 3 lost, 3 leased twice at once, 3 never admitted" in bad
    assert "shop.send was altered." in bad
    assert "the clock of shop.send is at least 3 s ahead of that of the broker b" in bad
    report["audit"] |= {"sound": True, "proven": True, "anchored": True}
    report["audit"] |= dict.fromkeys(
        ("lost", "double_leased", "missing_events", "orphans", "damaged"), 0
    )
    report["audit"] |= dict.fromkeys(("damage", "unproven"), ())
    report |= {"anomalies": [], "failures": [], "more_anomalies": 0}
    short = {**report, "audit": {**report["audit"], "anchored": False, "unanchored": ("no end",)}}
    text = " ".join(read(page(short, title="EventMQ", made=START)).text.split())
    assert "Every job is accounted for, as far as the journal's own seals reach. Of 33" in text
    assert "no end." in text
    good = " ".join(read(page(report, title="EventMQ", made=START)).text.split())
    assert "Every job is accounted for. Of 33 jobs, 3 succeeded, 3 failed" in good
    assert "No attempt failed." in good
    assert "There is too little history to say: it takes 4 weeks." in good


def test_without_jinja2_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "jinja2", None)
    with pytest.raises(PluginError, match=r"pip install '\.\[spark\]'"):
        page(made_up("x"), title="EventMQ", made=START)


# Shapes


def bars(path: str) -> list[tuple[float, float]]:
    """Return bottom and top of each bar, from the bottom of the box."""
    ends = re.findall(r"M[\d.]+ ([\d.]+)V([\d.]+)H", path)
    return [(SIZE - float(low), SIZE - float(high)) for low, high in ends]


def test_bars_stand_on_each_other() -> None:
    times = [START + n for n in range(4)]
    series = {"a": [1.0, 0.0, 3.0, 4.0], "b": [2.0, 5.0, 0.0, 4.0]}
    plot = stacked(times, series, width=1.0, to_text=number)
    assert plot is not None
    assert (100.0, "8") == plot.y[-1]
    top = 8.0
    first, second = (bars(layer.path) for layer in plot.layers)
    assert [(0, 1), (0, 3), (0, 4)] == [
        (low * top / SIZE, pytest.approx(high * top / SIZE, abs=0.01)) for low, high in first
    ]
    expected = [(1, 3), (0, 5), (4, 8)]
    assert expected == [tuple(pytest.approx(v * top / SIZE, abs=0.01) for v in b) for b in second]
    assert "a: 3" in plot.tooltips[2][2]


def test_a_line_is_broken_where_nothing_is_known() -> None:
    times = [START + n for n in range(5)]
    plot = lines(times, {"p50": [1.0, 2.0, None, 4.0, None]}, width=1.0, to_text=seconds)
    assert plot is not None
    [layer] = plot.layers
    assert 2 == layer.path.count("M")
    assert 1 == layer.path.count("L")
    assert layer.path.startswith(f"M{SIZE / 10:.1f} {SIZE * 3 / 4:.1f}h.1L")
    assert 3 == len(plot.tooltips)


def test_nothing_is_no_plot() -> None:
    assert stacked([START], {"a": [0.0]}, width=1.0, to_text=number) is None
    assert lines([START], {"a": [None]}, width=1.0, to_text=number) is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.0032, "3.2 ms"),
        (14, "14 s"),
        (150, "2.5 min"),
        (7200, "2 h"),
        (864_000, "10 d"),
    ],
)
def test_spans_of_time_are_written_for_people(value: float, text: str) -> None:
    assert text == seconds(value)


@pytest.mark.parametrize(
    ("whole", "first"), [(60, "08:00:00"), (3_600, "08:00"), (86_400, "12:00"), (864_000, "23 Nov")]
)
def test_the_axis_of_time_has_round_times(whole: int, first: str) -> None:
    times = [START + whole / 40 * n for n in range(40)]
    plot = lines(times, {"a": [1.0] * 40}, width=whole / 40, to_text=number)
    assert plot is not None
    assert first == plot.x[0][1]
    assert 3 <= len(plot.x) <= 8
    assert all(0 <= at <= 100 for at, _ in plot.x)
