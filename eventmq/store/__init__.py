"""Writes and reads of a queue store, as plain data.

A commit is a list of writes (`Write`). The store returns a write result for each of them, which the
docstring of its class describes. The contract is `eventmq.interfaces.QueueStore`.
"""

from __future__ import annotations

from eventmq.store.reads import (
    CountJobs,
    FindJobs,
    FindLineage,
    GroupFailures,
    History,
    ListFailed,
    ListGraph,
    ListJobs,
    LoadSchedules,
    ReadEvents,
    ReadInputs,
    ReadLogs,
    ReadQueued,
)
from eventmq.store.writes import (
    Admit,
    AdmitGraph,
    AdvanceGraphs,
    AdvanceSchedules,
    Announce,
    ApplyToJobs,
    BeginBulkOperation,
    CancelGraph,
    CloseChunk,
    ContinueBulkOperation,
    EndDeadlines,
    Expire,
    Finish,
    ForgetQueues,
    KeepTime,
    LeaseChunk,
    Pause,
    Promote,
    PruneFailed,
    PutSchedule,
    RecordEnds,
    RecordEvents,
    RecordOperation,
    RemoveSchedule,
    Requeue,
    SaveLimits,
    SaveSchedules,
    SaveSuspects,
    SealEvents,
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
    | RecordOperation
    | SealEvents
    | Announce
    | ReadEvents
    | FindJobs
    | ListJobs
    | CountJobs
    | GroupFailures
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
    | ReadLogs
)
