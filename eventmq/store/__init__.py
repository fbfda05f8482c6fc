"""What a broker writes to its queue store and reads from it: data only.

A commit is a list of `Write`s; the store answers with one write result per write, of the kind that
its docstring names. The contract is `eventmq.interfaces.QueueStore`.
"""

from __future__ import annotations

from eventmq.schedule import (
    AdvanceSchedules,
    LoadSchedules,
    PutSchedule,
    RemoveSchedule,
    SaveSchedules,
)
from eventmq.store.events import Announce, ReadEvents, SealEvents
from eventmq.store.reads import FindJobs, History, ListJobs, ReadQueued
from eventmq.store.writes import (
    Admit,
    AdmitGraph,
    AdvanceGraphs,
    ApplyToJobs,
    BeginBulkOperation,
    CancelGraph,
    CloseChunk,
    ContinueBulkOperation,
    EndDeadlines,
    Expire,
    FindLineage,
    Finish,
    ForgetQueues,
    KeepTime,
    LeaseChunk,
    ListFailed,
    ListGraph,
    Pause,
    Promote,
    PruneFailed,
    ReadInputs,
    RecordEnds,
    RecordEvents,
    Requeue,
    SaveLimits,
    SaveSuspects,
)

__all__ = ["Write"]

Write = (
    Admit
    | Finish
    | Requeue
    | LeaseChunk
    | CloseChunk
    | ReadQueued
    | Promote
    | Expire
    | SaveLimits
    | SaveSuspects
    | KeepTime
    | RecordEvents
    | RecordEnds
    | SealEvents
    | Announce
    | ReadEvents
    | FindJobs
    | ListJobs
    | History
    | ApplyToJobs
    | BeginBulkOperation
    | ContinueBulkOperation
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
    | AdvanceGraphs
    | CancelGraph
    | EndDeadlines
    | FindLineage
    | ListGraph
    | ReadInputs
)
