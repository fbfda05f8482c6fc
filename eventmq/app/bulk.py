"""Many jobs for a task by its name, each with arguments and perhaps an id of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from eventmq.client.submit import Batch
from eventmq.errors import SettingsError
from eventmq.task import values
from eventmq.task.task import named_arguments, named_template

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from typing_extensions import Unpack

    from eventmq.app.app import EventMQ
    from eventmq.client.handle import Job
    from eventmq.task.options import CallKeywords

__all__ = ["BulkJobs"]


class BulkJobs:
    """The part of `EventMQ` that submits many jobs at a time without the code of their task."""

    def send_many(
        self,
        name: str,
        calls: Iterable[tuple[Sequence[Any], Mapping[str, Any]]],
        *,
        job_ids: Sequence[str] | None = None,
        **options: Unpack[CallKeywords],
    ) -> list[Job[Any]]:
        """Submit one job per call of a task by its name, and return after all receipts.

        They travel in parts of up to 1,000 jobs, each stored as a whole. Inside `EventMQ.batch`
        they go out with the batch.

        Args:
            name: Of the task.
            calls: Pairs of positional and keyword arguments.
            job_ids: An id for each, made here if None. A job whose id the broker has already is
                not stored a second time, and counts as confirmed.
            **options: Of all of them, as in `EventMQ.send`; ``job_id`` is not one.

        Returns:
            The handles, in order.

        Raises:
            SettingsError: A value is not allowed, or there is not one id per call.
            SerializationError: Arguments cannot be encoded; nothing was sent.
            BatchError: Some jobs were not confirmed; ``jobs`` says which.
        """
        app = cast("EventMQ", self)
        pairs = list(calls)
        template, job_id = named_template(app.wiring, name, options)
        if job_id is not None:
            raise SettingsError("job_id is the id of one job; for many there is job_ids")
        ids = _ids(job_ids, len(pairs))
        submitter = app.wiring.submitter
        with Batch(submitter):
            return [
                submitter.submit(template, *named_arguments(name, *pair), each)
                for pair, each in zip(pairs, ids, strict=True)
            ]


def _ids(given: Sequence[str] | None, n: int) -> Sequence[str | None]:
    if given is None:
        return [None] * n
    if len(given) != n:
        raise SettingsError(f"there are {n} calls and {len(given)} job_ids; allowed is one each")
    for job_id in given:
        values.text("one of job_ids", job_id)
    return given
