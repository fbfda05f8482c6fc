"""EventMQ: a task queue for Python over ZeroMQ, with a durable broker.

Every name loads at its first use, so that importing this package takes little time.
"""

# Import only what the interpreter has loaded anyway: `python -m eventmq` starts with the working
# directory first on the path, until `eventmq.__main__` removes it.
import importlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from eventmq.app import EventMQ
    from eventmq.canvas import chain, chord, group
    from eventmq.client.graphs import JobGroup
    from eventmq.client.handle import Job
    from eventmq.client.topics import Message, Subscription
    from eventmq.errors import (
        AppNotFound,
        ArgumentError,
        BatchError,
        BindError,
        BrokerUnavailable,
        ContentError,
        ContentNotAllowed,
        DuplicateJob,
        EventMQError,
        Fenced,
        HookError,
        IllegalTransition,
        JobCancelled,
        JobError,
        JobExpired,
        JobFailed,
        JobNotFound,
        KeyFileError,
        MessageTooLarge,
        NotAllowed,
        PluginCollision,
        PluginError,
        PluginNotFound,
        ProtocolError,
        QueueFull,
        QueueNotFound,
        RateLimited,
        ResultError,
        ResultTimeout,
        ResultTooLarge,
        ResultUnavailable,
        ScheduleNotFound,
        SerializationError,
        SettingsError,
        SignatureError,
        SoftTimeLimitExceeded,
        StoreError,
        StreamRestarted,
        SubmitError,
        TimeLimitExceeded,
        Unknown,
        UnknownTask,
        WorkerLost,
    )
    from eventmq.execution.failures import Reject, Retry
    from eventmq.graph import Signature
    from eventmq.hookspecs import hookimpl
    from eventmq.interfaces import current_job
    from eventmq.policies import at, cron, every, exponential, fixed
    from eventmq.task import shared_task
    from eventmq.task.unique import Unique

    __version__: str

__all__ = [
    "AppNotFound",
    "ArgumentError",
    "BatchError",
    "BindError",
    "BrokerUnavailable",
    "ContentError",
    "ContentNotAllowed",
    "DuplicateJob",
    "EventMQ",
    "EventMQError",
    "Fenced",
    "HookError",
    "IllegalTransition",
    "Job",
    "JobCancelled",
    "JobError",
    "JobExpired",
    "JobFailed",
    "JobGroup",
    "JobNotFound",
    "KeyFileError",
    "Message",
    "MessageTooLarge",
    "NotAllowed",
    "PluginCollision",
    "PluginError",
    "PluginNotFound",
    "ProtocolError",
    "QueueFull",
    "QueueNotFound",
    "RateLimited",
    "Reject",
    "ResultError",
    "ResultTimeout",
    "ResultTooLarge",
    "ResultUnavailable",
    "Retry",
    "ScheduleNotFound",
    "SerializationError",
    "SettingsError",
    "Signature",
    "SignatureError",
    "SoftTimeLimitExceeded",
    "StoreError",
    "StreamRestarted",
    "SubmitError",
    "Subscription",
    "TimeLimitExceeded",
    "Unique",
    "Unknown",
    "UnknownTask",
    "WorkerLost",
    "__version__",
    "at",
    "chain",
    "chord",
    "cron",
    "current_job",
    "every",
    "exponential",
    "fixed",
    "group",
    "hookimpl",
    "shared_task",
]

#: Public name -> its module; every other name of ``__all__`` is in `eventmq.errors`.
_MODULES = {
    "EventMQ": "eventmq.app",
    "Job": "eventmq.client.handle",
    "JobGroup": "eventmq.client.graphs",
    "Message": "eventmq.client.topics",
    "Reject": "eventmq.execution.failures",
    "Retry": "eventmq.execution.failures",
    "Signature": "eventmq.graph",
    "Subscription": "eventmq.client.topics",
    "Unique": "eventmq.task.unique",
    "at": "eventmq.policies",
    "chain": "eventmq.canvas",
    "chord": "eventmq.canvas",
    "cron": "eventmq.policies",
    "current_job": "eventmq.interfaces",
    "every": "eventmq.policies",
    "exponential": "eventmq.policies",
    "fixed": "eventmq.policies",
    "group": "eventmq.canvas",
    "hookimpl": "eventmq.hookspecs",
    "shared_task": "eventmq.task",
}


def __getattr__(name: str) -> "Any":
    """Load a public name (PEP 562)."""
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("eventmq")
    elif name in __all__:
        value = getattr(importlib.import_module(_MODULES.get(name, "eventmq.errors")), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
