"""What a broker asks its queue store to do, and what the store says.

A commit is a list of entries (`Write`); the store answers with one verdict per entry, of the
kind that the entry's docstring names. The contract is `eventmq.interfaces.QueueStore`. The entries
for what operators do are in `eventmq.operations`.
"""

from __future__ import annotations

from eventmq.entries.changes import (
    Admit,
    Attempt,
    Chunk,
    CloseChunk,
    Finish,
    Finished,
    LimitRow,
    OpenChunk,
    Promote,
    Requeue,
    SaveLimits,
    Verdict,
)
from eventmq.entries.keys import LaneKey, UniqueRule, lane_of, unique_rule
from eventmq.entries.reads import Claim, Find, Found, History, ListJobs
from eventmq.entries.recovery import LaneHead, QueueCounts, Recovered
from eventmq.operations import Act, BeginSweep, ListFailed, Pause, PruneFailed, SweepSlice
from eventmq.schedule import (
    AdvanceSchedules,
    LoadSchedules,
    PutSchedule,
    RemoveSchedule,
    SaveSchedules,
)

__all__ = [
    "Admit",
    "Attempt",
    "Chunk",
    "Claim",
    "CloseChunk",
    "Find",
    "Finish",
    "Finished",
    "Found",
    "History",
    "LaneHead",
    "LaneKey",
    "LimitRow",
    "ListJobs",
    "OpenChunk",
    "Promote",
    "QueueCounts",
    "Recovered",
    "Requeue",
    "SaveLimits",
    "UniqueRule",
    "Verdict",
    "Write",
    "lane_of",
    "unique_rule",
]

Write = (
    Admit
    | Finish
    | Requeue
    | OpenChunk
    | CloseChunk
    | Claim
    | Promote
    | SaveLimits
    | Find
    | ListJobs
    | History
    | Act
    | BeginSweep
    | SweepSlice
    | Pause
    | ListFailed
    | PruneFailed
    | LoadSchedules
    | SaveSchedules
    | PutSchedule
    | AdvanceSchedules
    | RemoveSchedule
)
