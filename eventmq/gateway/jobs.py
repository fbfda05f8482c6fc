"""Jobs of a gateway: those that call a task, their headers, and where their results are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eventmq.errors import ProtocolError
from eventmq.headers import parse_headers
from eventmq.wire.results import is_reference

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from eventmq.client.handle import Job
    from eventmq.task.task import Task

__all__ = ["call_task", "extra_headers", "kept_elsewhere"]


async def call_task(
    task: Task[Any, Any], args: Sequence[Any], kwargs: Mapping[str, Any], *, timeout: float
) -> Job[Any]:
    """Submit a job with arguments that a peer gave, and wait for its end, in one exchange.

    As ``task.acall(*args, **kwargs)``, where parameters may have any name, ``timeout`` among them.

    Args:
        task: Of ``app.tasks``.
        args: Arguments by position.
        kwargs: Arguments by name.
        timeout: Seconds.

    Returns:
        The job, which has ended: ``aget()`` gives its result.

    Raises:
        TypeError: The function does not take these arguments.
        SerializationError: They cannot be encoded.
        BrokerUnavailable: No broker took the job in time.
        SubmitError: The broker refused the job.
        ResultTimeout: The job had not ended in time; ``job_id`` says which it is.
    """
    task.check(args, kwargs)
    return await task.app.submitter.call(task.template, args, kwargs, timeout=timeout)


def extra_headers(text: str) -> dict[str, str]:
    """Return the headers that a caller, a middleware or a gateway added.

    Args:
        text: Headers as they are on the wire, in listings and in topics; those of a malformed text
            are none.
    """
    try:
        return dict(parse_headers(text).extra)
    except ProtocolError:
        return {}


def kept_elsewhere(job: Job[Any]) -> bool:
    """Return whether the result of an ended job is in a result backend, so ``get()`` may block.

    Args:
        job: As ``app.follow_raw`` hands it to its callback.
    """
    return job.row is not None and is_reference(job.row.content_type)
