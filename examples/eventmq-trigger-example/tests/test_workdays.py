"""The trigger keeps EventMQ's contract, and its own promises."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from eventmq import EventMQ
from eventmq.sdk import PluginError, SettingsError
from eventmq.testing import TriggerSuite

from eventmq_trigger_example import plugin, workdays


class TestContract(TriggerSuite):
    def make(self):
        return plugin.Workdays("02:30", tz="Europe/Paris", skip=("2026-12-25",))


def test_weekends_and_skipped_days_are_left_out() -> None:
    trigger = plugin.Workdays("09:00", skip=("2026-12-25",))
    thursday = datetime(2026, 12, 24, 12, tzinfo=timezone.utc).timestamp()
    monday = datetime(2026, 12, 28, 9, tzinfo=timezone.utc).timestamp()
    assert trigger.next_after(thursday) == monday


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"at": "25:00"}, PluginError, "'workdays': hour must be in 0..23"),
        ({"at": "9"}, PluginError, "'workdays': "),
        ({"at": "09:00", "skip": ["Monday"]}, PluginError, "'workdays': Invalid isoformat"),
        ({"at": "09:00", "tz": "Europe/Pari"}, SettingsError, "did you mean 'Europe/Paris'"),
    ],
)
def test_a_wrong_option_is_an_error_where_the_schedule_is_declared(given, error, said) -> None:
    with pytest.raises(error, match=said):
        workdays(**given)


def test_a_schedule_names_it() -> None:
    app = EventMQ("test", broker="memory://", plugins=[plugin])
    with app:
        report = app.task(name="report")(print)
        app.schedule("daily", report.s(), workdays("09:00", skip=["2026-12-25"]))
        stored = app.ask("schedules.list", {"name": "daily"})
    assert len(stored["rows"]) == 1
