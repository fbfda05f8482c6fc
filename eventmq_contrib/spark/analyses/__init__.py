"""Analyses: functions from a journal's events to tables.

Their modules import pyspark. What the commands need before they run, the defaults, is here.
"""

from __future__ import annotations

__all__ = ["LISTED", "MIN_HISTORY", "PERIODS", "STUCK_AFTER", "THRESHOLD", "TOLERANCE"]

#: Seconds without an event after which a job that has a worker is stuck.
STUCK_AFTER = 60.0

#: Most ids in a list of an audit.
LISTED = 1000

#: Seconds; clocks that NTP keeps differ by less.
TOLERANCE = 0.5

#: Robust z-score above which an hour is anomalous.
THRESHOLD = 5.0

#: Weeks of history that an hour needs before it can be anomalous.
MIN_HISTORY = 4

#: Names of periods -> their length in seconds.
PERIODS = {"minute": 60, "hour": 3600}
