"""Kit of plugin authors: every public name that a plugin needs beside `eventmq.testing`.

A plugin is a module whose functions carry `hookimpl` and the name of a hook; each returns factories
by name. What a factory makes keeps a contract, one of the protocols here::

    from dataclasses import dataclass

    from eventmq.sdk import Backoff, check_options, factory, hookimpl, option


    @dataclass(frozen=True)
    class Linear:
        step: float = option(1.0, ge=0)

        def delay(self, failure):
            return failure.attempt * self.step


    def linear(step: float = 1.0) -> Backoff:
        return Backoff("linear", check_options("linear", Linear, step=step))


    @hookimpl
    def eventmq_retry_policies():
        return {"linear": factory(Linear)}

Every name loads at its first use; importing this package imports neither zmq nor click. Gateways
have a kit of their own, `eventmq.gateway`, and commands use the names of `eventmq.cli`; the rows of
the event log are in `eventmq.sdk.events`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eventmq.clock import Clock, SystemClock
    from eventmq.conversion import Option, option, options_of, plain
    from eventmq.errors import (
        BindError,
        ContentNotAllowed,
        EventMQError,
        Fenced,
        HookError,
        JobCancelled,
        NotAllowed,
        PluginCollision,
        PluginError,
        PluginNotFound,
        ProtocolError,
        QueueFull,
        ResultTooLarge,
        ResultUnavailable,
        SerializationError,
        SettingsError,
        SignatureError,
        StoreError,
        Unknown,
        did_you_mean,
    )
    from eventmq.execution.async_executor import AsyncExecutor
    from eventmq.execution.executor import Executor
    from eventmq.execution.legacy import LegacyCall, parse_legacy
    from eventmq.execution.poolkit import (
        AssignedChunk,
        CallLater,
        PartSink,
        PendingOutcomes,
        Timer,
        jobs_ended,
    )
    from eventmq.execution.processes.pool import ProcessPool
    from eventmq.execution.streaming import Cancellation, FlowControl, Interruptible, PartBatch
    from eventmq.headers import Headers, parse_headers
    from eventmq.hookspecs import hookimpl
    from eventmq.interfaces import (
        AsyncExecution,
        CommandOption,
        Envelope,
        EventLogReader,
        Execution,
        Factory,
        Failure,
        Gateway,
        JobContext,
        JobsEnded,
        KeyedRouting,
        Middleware,
        Ownership,
        PartsYielded,
        PluginContext,
        PoolEvent,
        ProgressReported,
        QueueOrder,
        QueueStore,
        ResultBackend,
        RetryPolicy,
        RoutingStrategy,
        Running,
        Serializer,
        SharedPool,
        SlotDied,
        StoreTools,
        Submission,
        SubmissionBatch,
        SubmissionHook,
        TaskRole,
        Trigger,
        Upkeep,
        WorkerPool,
        WorkerView,
        current,
        current_job,
    )
    from eventmq.job import JobState, OutcomeKind
    from eventmq.policies import (
        Backoff,
        Timing,
        at,
        check_cron,
        check_interval,
        check_timestamp,
        cron,
        every,
        exponential,
        find_zone,
        fixed,
    )
    from eventmq.schedule import Loaded, Progress, Saved, Schedule, SchedulerLease, ScheduleStore
    from eventmq.sdk.options import PoolOptions, check_options, factory, read_options
    from eventmq.store.lease import Claimant, LeaseRow
    from eventmq.store.reads import LoadSchedules, ScheduleRows
    from eventmq.store.reports import BackedUp, Finding, Lost, Repaired, Salvaged
    from eventmq.store.writes import ScheduleRow
    from eventmq.wakeup import Wakeup
    from eventmq.wire.batches import (
        ChunkEntry,
        ChunkIndex,
        OutcomeRow,
        decode_chunk,
        encode_outcomes,
        pack,
        unpack,
    )
    from eventmq.wire.commands import MAX_IDS
    from eventmq.wire.outcomes import EndRow, OutcomeReader
    from eventmq.wire.results import (
        ERROR_TYPE,
        FRAMES_TYPE,
        RemoteError,
        decode_error,
        decode_frames,
        encode_error,
        encode_frames,
        frames_task,
        is_reference,
    )

__all__ = [
    "ERROR_TYPE",
    "FRAMES_TYPE",
    "MAX_IDS",
    "AssignedChunk",
    "AsyncExecution",
    "AsyncExecutor",
    "BackedUp",
    "Backoff",
    "BindError",
    "CallLater",
    "Cancellation",
    "ChunkEntry",
    "ChunkIndex",
    "Claimant",
    "Clock",
    "CommandOption",
    "ContentNotAllowed",
    "EndRow",
    "Envelope",
    "EventLogReader",
    "EventMQError",
    "Execution",
    "Executor",
    "Factory",
    "Failure",
    "Fenced",
    "Finding",
    "FlowControl",
    "Gateway",
    "Headers",
    "HookError",
    "Interruptible",
    "JobCancelled",
    "JobContext",
    "JobState",
    "JobsEnded",
    "KeyedRouting",
    "LeaseRow",
    "LegacyCall",
    "LoadSchedules",
    "Loaded",
    "Lost",
    "Middleware",
    "NotAllowed",
    "Option",
    "OutcomeKind",
    "OutcomeReader",
    "OutcomeRow",
    "Ownership",
    "PartBatch",
    "PartSink",
    "PartsYielded",
    "PendingOutcomes",
    "PluginCollision",
    "PluginContext",
    "PluginError",
    "PluginNotFound",
    "PoolEvent",
    "PoolOptions",
    "ProcessPool",
    "Progress",
    "ProgressReported",
    "ProtocolError",
    "QueueFull",
    "QueueOrder",
    "QueueStore",
    "RemoteError",
    "Repaired",
    "ResultBackend",
    "ResultTooLarge",
    "ResultUnavailable",
    "RetryPolicy",
    "RoutingStrategy",
    "Running",
    "Salvaged",
    "Saved",
    "Schedule",
    "ScheduleRow",
    "ScheduleRows",
    "ScheduleStore",
    "SchedulerLease",
    "SerializationError",
    "Serializer",
    "SettingsError",
    "SharedPool",
    "SignatureError",
    "SlotDied",
    "StoreError",
    "StoreTools",
    "Submission",
    "SubmissionBatch",
    "SubmissionHook",
    "SystemClock",
    "TaskRole",
    "Timer",
    "Timing",
    "Trigger",
    "Unknown",
    "Upkeep",
    "Wakeup",
    "WorkerPool",
    "WorkerView",
    "at",
    "check_cron",
    "check_interval",
    "check_options",
    "check_timestamp",
    "cron",
    "current",
    "current_job",
    "decode_chunk",
    "decode_error",
    "decode_frames",
    "did_you_mean",
    "encode_error",
    "encode_frames",
    "encode_outcomes",
    "every",
    "exponential",
    "factory",
    "find_zone",
    "fixed",
    "frames_task",
    "hookimpl",
    "is_reference",
    "jobs_ended",
    "option",
    "options_of",
    "pack",
    "parse_headers",
    "parse_legacy",
    "plain",
    "read_options",
    "unpack",
]

#: Public name -> module that has it; every other name of ``__all__`` is in `eventmq.interfaces`.
_WHERE = {
    "BackedUp": "eventmq.store.reports",
    "Finding": "eventmq.store.reports",
    "Lost": "eventmq.store.reports",
    "Repaired": "eventmq.store.reports",
    "Salvaged": "eventmq.store.reports",
    "Claimant": "eventmq.store.lease",
    "LeaseRow": "eventmq.store.lease",
    "AssignedChunk": "eventmq.execution.poolkit",
    "AsyncExecutor": "eventmq.execution.async_executor",
    "Backoff": "eventmq.policies",
    "BindError": "eventmq.errors",
    "CallLater": "eventmq.execution.poolkit",
    "Cancellation": "eventmq.execution.streaming",
    "ChunkEntry": "eventmq.wire.batches",
    "ChunkIndex": "eventmq.wire.batches",
    "Clock": "eventmq.clock",
    "ContentNotAllowed": "eventmq.errors",
    "ERROR_TYPE": "eventmq.wire.results",
    "EndRow": "eventmq.wire.outcomes",
    "EventMQError": "eventmq.errors",
    "Executor": "eventmq.execution.executor",
    "Fenced": "eventmq.errors",
    "FRAMES_TYPE": "eventmq.wire.results",
    "FlowControl": "eventmq.execution.streaming",
    "Headers": "eventmq.headers",
    "HookError": "eventmq.errors",
    "Interruptible": "eventmq.execution.streaming",
    "JobCancelled": "eventmq.errors",
    "JobState": "eventmq.job",
    "LegacyCall": "eventmq.execution.legacy",
    "LoadSchedules": "eventmq.store.reads",
    "Loaded": "eventmq.schedule",
    "MAX_IDS": "eventmq.wire.commands",
    "NotAllowed": "eventmq.errors",
    "Option": "eventmq.conversion",
    "OutcomeKind": "eventmq.job",
    "OutcomeReader": "eventmq.wire.outcomes",
    "OutcomeRow": "eventmq.wire.batches",
    "PartBatch": "eventmq.execution.streaming",
    "PartSink": "eventmq.execution.poolkit",
    "PendingOutcomes": "eventmq.execution.poolkit",
    "PluginCollision": "eventmq.errors",
    "PluginError": "eventmq.errors",
    "PluginNotFound": "eventmq.errors",
    "PoolOptions": "eventmq.sdk.options",
    "ProcessPool": "eventmq.execution.processes.pool",
    "Progress": "eventmq.schedule",
    "ProtocolError": "eventmq.errors",
    "QueueFull": "eventmq.errors",
    "RemoteError": "eventmq.wire.results",
    "ResultTooLarge": "eventmq.errors",
    "ResultUnavailable": "eventmq.errors",
    "Saved": "eventmq.schedule",
    "Schedule": "eventmq.schedule",
    "ScheduleRow": "eventmq.store.writes",
    "ScheduleRows": "eventmq.store.reads",
    "ScheduleStore": "eventmq.schedule",
    "SchedulerLease": "eventmq.schedule",
    "SerializationError": "eventmq.errors",
    "SettingsError": "eventmq.errors",
    "SignatureError": "eventmq.errors",
    "StoreError": "eventmq.errors",
    "SystemClock": "eventmq.clock",
    "Timer": "eventmq.execution.poolkit",
    "Timing": "eventmq.policies",
    "Unknown": "eventmq.errors",
    "Wakeup": "eventmq.wakeup",
    "at": "eventmq.policies",
    "check_cron": "eventmq.policies",
    "check_interval": "eventmq.policies",
    "check_options": "eventmq.sdk.options",
    "check_timestamp": "eventmq.policies",
    "cron": "eventmq.policies",
    "current": "eventmq.interfaces",
    "current_job": "eventmq.interfaces",
    "decode_chunk": "eventmq.wire.batches",
    "decode_error": "eventmq.wire.results",
    "decode_frames": "eventmq.wire.results",
    "did_you_mean": "eventmq.errors",
    "encode_error": "eventmq.wire.results",
    "encode_frames": "eventmq.wire.results",
    "encode_outcomes": "eventmq.wire.batches",
    "every": "eventmq.policies",
    "exponential": "eventmq.policies",
    "factory": "eventmq.sdk.options",
    "find_zone": "eventmq.policies",
    "fixed": "eventmq.policies",
    "frames_task": "eventmq.wire.results",
    "hookimpl": "eventmq.hookspecs",
    "is_reference": "eventmq.wire.results",
    "jobs_ended": "eventmq.execution.poolkit",
    "option": "eventmq.conversion",
    "options_of": "eventmq.conversion",
    "pack": "eventmq.wire.batches",
    "parse_headers": "eventmq.headers",
    "parse_legacy": "eventmq.execution.legacy",
    "plain": "eventmq.conversion",
    "read_options": "eventmq.sdk.options",
    "unpack": "eventmq.wire.batches",
}


def __getattr__(name: str) -> Any:
    """Load a public name (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_WHERE.get(name, "eventmq.interfaces")), name)
    return value
