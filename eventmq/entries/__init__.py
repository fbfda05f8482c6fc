"""What a broker asks its queue store to do, and what the store says.

A commit is a list of entries (`Write`); the store answers with one verdict per entry, of the
kind that the entry's docstring names. The contract is `eventmq.interfaces.QueueStore`. The entries
for what operators do are in `eventmq.operations`.
"""

from __future__ import annotations

from eventmq.entries.changes import (
    Admit,
    Attempt,
    Cause,
    Chunk,
    CloseChunk,
    Expire,
    Finish,
    Finished,
    KeepTime,
    LimitRow,
    Note,
    NoteEnds,
    OpenChunk,
    Promote,
    Requeue,
    SaveLimits,
    SaveSuspects,
    SuspectEnd,
    SuspectRow,
    Verdict,
)
from eventmq.entries.events import events_of
from eventmq.entries.graphs import (
    AdmitGraph,
    CancelGraph,
    EndDeadlines,
    FindKin,
    Follow,
    Followed,
    GraphPage,
    GraphRow,
    InputsPage,
    Kin,
    ListGraph,
    ReadInputs,
)
from eventmq.entries.keys import LaneKey, UniqueRule, lane_of, unique_rule
from eventmq.entries.outbox import Announce, EventRow, OutboxHead, ReadEvents, SealEvents
from eventmq.entries.reads import Claim, Find, Found, History, ListJobs
from eventmq.entries.recovery import LaneHead, QueueCounts, Recovered
from eventmq.operations import (
    Act,
    BeginSweep,
    ForgetQueues,
    ListFailed,
    Pause,
    PruneFailed,
    SweepSlice,
)
from eventmq.schedule import (
    AdvanceSchedules,
    LoadSchedules,
    PutSchedule,
    RemoveSchedule,
    SaveSchedules,
)

__all__ = [
    "Admit",
    "AdmitGraph",
    "Announce",
    "Attempt",
    "CancelGraph",
    "Cause",
    "Chunk",
    "Claim",
    "CloseChunk",
    "EndDeadlines",
    "EventRow",
    "Expire",
    "Find",
    "FindKin",
    "Finish",
    "Finished",
    "Follow",
    "Followed",
    "Found",
    "GraphPage",
    "GraphRow",
    "History",
    "InputsPage",
    "KeepTime",
    "Kin",
    "LaneHead",
    "LaneKey",
    "LimitRow",
    "ListGraph",
    "ListJobs",
    "Note",
    "NoteEnds",
    "OpenChunk",
    "OutboxHead",
    "Promote",
    "QueueCounts",
    "ReadEvents",
    "ReadInputs",
    "Recovered",
    "Requeue",
    "SaveLimits",
    "SaveSuspects",
    "SealEvents",
    "SuspectEnd",
    "SuspectRow",
    "UniqueRule",
    "Verdict",
    "Write",
    "events_of",
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
    | Expire
    | SaveLimits
    | SaveSuspects
    | KeepTime
    | Note
    | NoteEnds
    | SealEvents
    | Announce
    | ReadEvents
    | Find
    | ListJobs
    | History
    | Act
    | BeginSweep
    | SweepSlice
    | Pause
    | ForgetQueues
    | ListFailed
    | PruneFailed
    | LoadSchedules
    | SaveSchedules
    | PutSchedule
    | AdvanceSchedules
    | RemoveSchedule
    | AdmitGraph
    | Follow
    | CancelGraph
    | EndDeadlines
    | FindKin
    | ListGraph
    | ReadInputs
)
