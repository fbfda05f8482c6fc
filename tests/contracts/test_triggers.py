"""The built-in triggers keep the contract."""

from __future__ import annotations

import pytest

from eventmq.plugins.triggers import At, Cron, Every
from eventmq.testing import TriggerSuite


class TestAt(TriggerSuite):
    def make(self):
        return At(1_893_456_000.0)


class TestAtThatIsOver(TriggerSuite):
    def make(self):
        return At(1.0)


@pytest.mark.parametrize("seconds", [0.001, 0.1, 7.0, 1 / 3, 86_400.0, 1e9], scope="class")
class TestEvery(TriggerSuite):
    @pytest.fixture(autouse=True)
    def interval(self, seconds):
        self.seconds = seconds

    def make(self):
        return Every(self.seconds)


CRONS = [
    ("* * * * *", "UTC"),
    ("*/7 * * * *", "Europe/Paris"),
    ("30 2 * * *", "Europe/Paris"),
    ("0 9 * * 1-5", "America/New_York"),
    ("0 0 29 2 *", "Asia/Kathmandu"),
    ("15 1,2 31 10 *", "Australia/Lord_Howe"),
]


@pytest.mark.parametrize("cron", CRONS, scope="class")
class TestCron(TriggerSuite):
    @pytest.fixture(autouse=True)
    def expression(self, cron):
        self.cron = cron

    def fire_times(self, trigger, start=None):
        return super().fire_times(trigger)[: 10 if "29 2" in self.cron[0] else 200]

    def make(self):
        return Cron(*self.cron)
