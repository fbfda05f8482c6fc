"""Log lines of a worker about its connection to the broker."""

from __future__ import annotations

import logging

import pytest

from eventmq.worker.runner import ConnectionLog

HERE = "tcp://127.0.0.1:47291"


class Story:
    """A connection log, and the lines that it has logged since the last call."""

    def __init__(self, caplog):
        self.log, self.caplog, self.now = ConnectionLog(), caplog, 0.0
        self.address = HERE
        caplog.set_level(logging.INFO, "eventmq.worker.runner")

    def tell(self, *, online=False, broken=False, received=False, seconds=0.0):
        """Let time pass second by second; return time, level and text of each line."""
        lines = []
        end = self.now + seconds
        while True:
            self.log.update(self.now, self.address, online=online, broken=broken, received=received)
            lines += [(self.now, r.levelname, r.getMessage()) for r in self.caplog.records]
            self.caplog.clear()
            if self.now >= end:
                return lines
            self.now += 1.0


@pytest.fixture
def story(caplog):
    return Story(caplog)


def test_where_another_broker_may_take_over_none_need_be_started(story):
    story.log.shared = True
    [(_, _, text)] = story.tell(seconds=2.0)
    waiting = "waiting for it, or for another one to own the store"
    assert text == f"no broker answers at {HERE} for 2 s; {waiting}"


def test_an_absent_broker_is_told_of_after_two_seconds_and_then_ever_more_seldom(story):
    """At 2 s, then after 4, 8, 16 and 32 s, and then every 60 s."""
    lines = story.tell(seconds=190.0)
    assert [2.0, 6.0, 14.0, 30.0, 62.0, 122.0, 182.0] == [at for at, _, _ in lines]
    assert {"WARNING"} == {level for _, level, _ in lines}
    assert lines[0][2] == (
        f"no broker answers at {HERE} for 2 s; waiting for it; start one with: eventmq broker"
    )


@pytest.mark.parametrize(
    ("address", "hint"),
    [
        ("tcp://127.0.0.1:5000", "eventmq broker --bind tcp://127.0.0.1:5000"),
        ("ipc:///run/mq", "eventmq broker --bind ipc:///run/mq"),
        ("tcp://10.0.0.5:47291", "eventmq broker"),
    ],
)
def test_the_hint_is_what_starts_a_broker_at_this_address(story, address, hint):
    story.address = address
    ((_, _, text),) = story.tell(seconds=2.0)
    assert text.endswith(f"start one with: {hint}")


def test_a_broker_that_is_there_is_told_of_once(story):
    story.tell(seconds=1.0)
    lines = story.tell(online=True, received=True, seconds=100.0)
    assert [(1.0, "INFO", f"connected to the broker at {HERE}")] == lines


def test_a_lost_connection_and_its_return_are_told_of_once_each(story):
    story.tell(online=True)
    lost = story.tell(online=True, broken=True, seconds=1.0)
    assert [(0.0, "WARNING")] == [line[:2] for line in lost]
    assert "was lost" in lost[0][2]
    (again,) = story.tell(broken=True, seconds=3.0)
    assert "no broker answers" in again[2]
    assert [(4.0, "INFO", f"connected to the broker at {HERE}, after 4.0 s")] == story.tell(
        online=True
    )


def test_a_connection_lost_while_the_broker_asks_us_to_inform_again_is_still_told_of(story):
    """After its KBAI a broker is not online when its connection is lost."""
    story.tell(online=True)
    assert [] == story.tell(received=True)
    (line,) = story.tell(broken=True)
    assert "was lost" in line[2]


def test_a_broker_that_only_asks_who_we_are_is_not_worth_a_line(story):
    story.tell(online=True)
    assert [] == story.tell(received=True, seconds=1.0) + story.tell(online=True)


def test_a_broker_that_answers_but_refuses_is_not_called_absent(story):
    """The session logs the reason."""
    story.tell(received=True)
    assert [] == story.tell(seconds=100.0)


def test_each_absence_begins_anew(story):
    story.tell(seconds=100.0)
    story.tell(online=True)
    story.tell(broken=True)
    lines = story.tell(broken=True, seconds=6.0)
    assert [102.0, 106.0] == [at for at, _, _ in lines]
