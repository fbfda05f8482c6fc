"""Every exception that EventMQ raises on purpose.

Everything derives from `EventMQError`, so one ``except`` catches what this package raises and
nothing else. Fields hold the data; the message says what is wrong and what is allowed::

    EventMQError
    |-- BrokerUnavailable          no broker answered in time
    |-- JobNotFound                the broker does not know this id
    |-- QueueNotFound              the broker has no queue of this name
    |-- JobError                   a job did not succeed
    |   |-- JobFailed              the task raised, or the job failed without running
    |   |   |-- TimeLimitExceeded
    |   |   |-- WorkerLost
    |   |   `-- UnknownTask        no worker knows the task (also raised before a call is sent)
    |   |-- JobCancelled
    |   `-- JobExpired
    |-- ResultError
    |   |-- ResultTimeout          (also a TimeoutError)
    |   |-- ResultUnavailable      the result has expired or was not kept
    |   |-- ResultTooLarge         (also a JobFailed)
    |   `-- StreamRestarted
    |-- SubmitError                a job was refused; nothing was stored
    |   |-- MessageTooLarge
    |   |-- QueueFull
    |   |-- RateLimited            a peer over its message limit
    |   |-- DuplicateJob
    |   `-- BatchError
    |-- SoftTimeLimitExceeded      raised inside a running task
    |-- ContentError
    |   |-- SerializationError     (also a ValueError)
    |   |-- ArgumentError          (also a TypeError)
    |   |-- ContentNotAllowed
    |   `-- SignatureError
    |-- NotAllowed                 this peer may not do this
    |-- ProtocolError              a message violates the protocol
    |-- IllegalTransition          a transition that is not in the table of states
    |-- StoreError                 the queue store cannot be opened or written
    |   |-- Fenced                 another broker owns the store
    |   `-- Unknown                a batch may have been stored
    |-- BindError                  an address cannot be bound
    |-- PluginError
    |   |-- PluginCollision
    |   |-- PluginNotFound
    |   `-- HookError
    |-- AppNotFound
    `-- SettingsError
        |-- KeyFileError           a key file is missing, malformed or readable by others
        `-- ScheduleNotFound       the store has no schedule of this name
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "AppNotFound",
    "ArgumentError",
    "BatchError",
    "BindError",
    "BrokerUnavailable",
    "ContentError",
    "ContentNotAllowed",
    "DuplicateJob",
    "EventMQError",
    "Fenced",
    "HookError",
    "IllegalTransition",
    "JobCancelled",
    "JobError",
    "JobExpired",
    "JobFailed",
    "JobNotFound",
    "KeyFileError",
    "MessageTooLarge",
    "NotAllowed",
    "PluginCollision",
    "PluginError",
    "PluginNotFound",
    "ProtocolError",
    "QueueFull",
    "QueueNotFound",
    "RateLimited",
    "ResultError",
    "ResultTimeout",
    "ResultTooLarge",
    "ResultUnavailable",
    "ScheduleNotFound",
    "SerializationError",
    "SettingsError",
    "SignatureError",
    "SoftTimeLimitExceeded",
    "StoreError",
    "StreamRestarted",
    "SubmitError",
    "TimeLimitExceeded",
    "Unknown",
    "UnknownTask",
    "WorkerLost",
    "did_you_mean",
]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: the nearest known name, or all names."""
    from difflib import get_close_matches

    names = sorted(known)
    near = get_close_matches(name, names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known are: {', '.join(names) or 'none'}"


class EventMQError(Exception):
    """Base class of the exceptions of this package."""


class BrokerUnavailable(EventMQError):
    """No broker gave a receipt or an answer before the deadline.

    Attributes:
        job_id: The id of the job that was being submitted, or None.
        maybe_accepted: True if the message was handed to a connection, so that the broker may
            hold the job although its receipt did not arrive. Submitting it again with
            ``job_id=error.job_id`` is safe in either case.
    """

    def __init__(
        self, message: str, *, job_id: str | None = None, maybe_accepted: bool = False
    ) -> None:
        super().__init__(message)
        self.job_id = job_id
        self.maybe_accepted = maybe_accepted


class JobNotFound(EventMQError):
    """The broker does not know this job: it was never submitted there, or was forgotten."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"no job with id {job_id!r}: never submitted here, or forgotten since")
        self.job_id = job_id

    def __reduce__(self) -> tuple[type[JobNotFound], tuple[str]]:
        """Copy and pickle by the id, from which the message is made."""
        return type(self), (self.job_id,)


class QueueNotFound(EventMQError):
    """The broker has no queue of this name."""


class JobError(EventMQError):
    """A job did not succeed."""

    def __init__(self, message: str, *, job_id: str | None = None) -> None:
        super().__init__(message)
        self.job_id = job_id


def _shown(frames: str) -> str:
    """Return a traceback in a form that is safe to print on a terminal."""
    from eventmq.text import printable  # imports logging

    return printable(frames, keep="\n\t")


#: First line of the note with the traceback of a `JobFailed`.
TRACEBACK_NOTE = "Traceback of the worker:\n\n"


class JobFailed(JobError):
    """The task raised an exception, or the job failed without running it.

    Attributes:
        job_id: The id of the job.
        remote_type: The dotted name of the exception's class in the worker.
        remote_message: ``str()`` of the exception.
        remote_traceback: The traceback as text, "" if there is none. It is also a note of the
            exception, so that Python shows it for an uncaught exception.
    """

    def __init__(
        self,
        message: str,
        *,
        job_id: str | None = None,
        remote_type: str = "",
        remote_message: str = "",
        remote_traceback: str = "",
    ) -> None:
        super().__init__(message, job_id=job_id)
        self.remote_type = remote_type
        self.remote_message = remote_message
        self.remote_traceback = remote_traceback
        self.note_traceback()

    def note_traceback(self) -> None:
        """Add the traceback as a note, unless it is there already or there is no traceback."""
        text = _shown(vars(self).get("remote_traceback", ""))  # an unpickled one may have none
        note, notes = f"{TRACEBACK_NOTE}{text.rstrip()}", vars(self).get("__notes__", [])
        if text and note not in notes:  # add_note() is not in Python 3.10
            self.__notes__ = [*notes, note]


class TimeLimitExceeded(JobFailed):
    """The job ran longer than its ``timeout`` and was stopped."""


class WorkerLost(JobFailed):
    """The process that ran the job ended without an outcome."""


class UnknownTask(JobFailed):
    """No worker knows a task of this name."""


class JobCancelled(JobError):
    """The job was cancelled.

    Attributes:
        reason: The reason, "" if it is not known.
    """

    def __init__(self, message: str, *, job_id: str | None = None, reason: str = "") -> None:
        super().__init__(message, job_id=job_id)
        self.reason = reason


class JobExpired(JobError):
    """A worker did not start the job, or its next attempt, before its ``expires``."""


class ResultError(EventMQError):
    """A result is not available, or not in time."""


class ResultTimeout(ResultError, TimeoutError):
    """The job did not end within the caller's timeout. It continues to run.

    Attributes:
        job_id: The id of the job.
        state: Its state at that time, "" if the broker did not answer.
    """

    def __init__(self, message: str, *, job_id: str | None = None, state: str = "") -> None:
        super().__init__(message)
        self.job_id = job_id
        self.state = state


class ResultUnavailable(ResultError):
    """The job ended, but its result was not kept, or has expired."""


class ResultTooLarge(ResultError, JobFailed):
    """The job failed: its result is longer than the broker or the result backend accepts."""


class StreamRestarted(ResultError):
    """The worker of a stream died; the parts start again from the first one."""


class SubmitError(EventMQError):
    """A job was refused, and no part of it was stored."""

    def __init__(self, message: str, *, job_id: str | None = None) -> None:
        super().__init__(message)
        self.job_id = job_id


class MessageTooLarge(SubmitError):
    """The message is longer than the broker accepts."""


class QueueFull(SubmitError):
    """The queue is at its length limit."""


class RateLimited(SubmitError):
    """This peer exceeds its limit of messages per second."""


class DuplicateJob(SubmitError):
    """A job with the same unique key exists, or ran so recently that its period has not ended.

    Attributes:
        job_id: The id of that job, not of the refused one.
    """


class BatchError(SubmitError):
    """Some jobs of a batch were not confirmed.

    Attributes:
        jobs: For each job of the batch, in order: (job, ``"confirmed"``, ``"refused"`` or
            ``"unknown"``, error or None).
    """

    def __init__(
        self, message: str, *, jobs: Sequence[tuple[object, str, Exception | None]]
    ) -> None:
        super().__init__(message)
        self.jobs = list(jobs)


class SoftTimeLimitExceeded(EventMQError):
    """Raised inside a task when its ``soft_timeout`` has passed."""


class ContentError(EventMQError):
    """A body or result cannot be encoded or decoded."""


class SerializationError(ContentError, ValueError):
    """The serializer cannot encode this value, or cannot decode these bytes."""


class ArgumentError(ContentError, TypeError):
    """An argument does not fit the annotation of its parameter.

    Attributes:
        task: The name of the task.
        argument: The name of the parameter.
    """

    def __init__(self, message: str, *, task: str = "", argument: str = "") -> None:
        super().__init__(message)
        self.task = task
        self.argument = argument


class ContentNotAllowed(ContentError):
    """The content type is not in this side's ``accept_content`` list."""


class SignatureError(ContentError):
    """The signature of a body is missing, wrong or too old."""


class NotAllowed(EventMQError):
    """The broker or the operator does not allow this."""


class ProtocolError(EventMQError):
    """A message violates the protocol.

    Attributes:
        code: A short word for programs: see the table of ERROR codes in the protocol page.
    """

    def __init__(self, message: str, *, code: str = "bad-message") -> None:
        super().__init__(message)
        self.code = code


class IllegalTransition(EventMQError):
    """A job cannot go from one state to another."""


class StoreError(EventMQError):
    """The queue store cannot be opened, read or written."""


class Fenced(StoreError):
    """Another broker owns the store now; nothing of the batch was stored."""


class Unknown(StoreError):
    """The connection to the store was lost: the batch may or may not have been stored.

    Do not write it again; read the state of the store again instead.
    """


class BindError(EventMQError):
    """An address cannot be bound: it is in use, malformed or not an address of this machine."""


class PluginError(EventMQError):
    """A plugin cannot be loaded, configured or used."""


class PluginCollision(PluginError):
    """Two plugins provide the same name."""


class PluginNotFound(PluginError):
    """No plugin provides this name."""


class HookError(PluginError):
    """A plugin implements a hook that does not exist, or with the wrong arguments."""


class AppNotFound(EventMQError):
    """``-A`` names a module or attribute that does not exist, or is not an app."""


class SettingsError(EventMQError):
    """A setting is unknown, or its value is not allowed."""


class ScheduleNotFound(SettingsError):
    """The store has no schedule of this name."""


class KeyFileError(SettingsError):
    """A key file is missing, malformed or readable by other users; the message has no key."""
