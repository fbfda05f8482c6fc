"""Analyses: functions from a journal's events to tables.

Their modules import pyspark; the defaults of the commands are here, so that help texts need no
pyspark.
"""

from __future__ import annotations

__all__ = ["LISTED", "MIN_HISTORY", "PERIODS", "STUCK_AFTER", "THRESHOLD", "TOLERANCE"]

#: Seconds without an event after which a job that has a worker is stuck.
STUCK_AFTER = 60.0

#: Maximum number of ids in a list of an audit.
LISTED = 1000

#: Seconds by which clocks may differ; clocks that NTP keeps differ by less.
TOLERANCE = 0.5

#: Robust z-score above which an hour is anomalous.
THRESHOLD = 5.0

#: Weeks of history that an hour needs before it can be anomalous.
MIN_HISTORY = 4

#: Names of periods -> their length in seconds.
PERIODS = {"minute": 60, "hour": 3600}
