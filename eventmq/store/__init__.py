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
from eventmq.store.reads import Claim, Find, History, ListJobs
from eventmq.store.writes import (
    Act,
    Admit,
    AdmitGraph,
    BeginSweep,
    CancelGraph,
    CloseChunk,
    EndDeadlines,
    Expire,
    FindKin,
    Finish,
    Follow,
    ForgetQueues,
    KeepTime,
    ListFailed,
    ListGraph,
    Note,
    NoteEnds,
    OpenChunk,
    Pause,
    Promote,
    PruneFailed,
    ReadInputs,
    Requeue,
    SaveLimits,
    SaveSuspects,
    SweepSlice,
)

__all__ = ["Write"]

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
