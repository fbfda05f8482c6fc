"""Jobs whose bodies are sent as they are, a part of the app: also with a call back at their end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from eventmq.task.task import write_raw

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from eventmq.app.app import EventMQ
    from eventmq.client.handle import Job

__all__ = ["RawJobs"]


class RawJobs:
    """What an app does with bodies and frames that are written already."""

    def send_raw(
        self,
        queue: str,
        body: bytes | Sequence[bytes],
        headers: Mapping[str, Any] | None = None,
        *,
        job_id: str | None = None,
    ) -> Job[Any]:
        """Submit a job whose body is sent as it is, to workers of any kind.

        Args:
            queue: Name of the queue.
            body: The body; or frames, for a majordomo service of the queue's name.
            headers: Names as on the wire; True is a header without a value.
            job_id: Its id, made here if None.

        Raises:
            SettingsError: A value is not allowed.
            BrokerUnavailable: There was no receipt within ``submit_timeout``.
            SubmitError: The broker refused the job.
        """
        wiring = cast("EventMQ", self).wiring
        written = write_raw(queue, body, headers, job_id or wiring.ids.new())
        return wiring.submitter.submit_raw(written)

    async def asend_raw(
        self,
        queue: str,
        body: bytes | Sequence[bytes],
        headers: Mapping[str, Any] | None = None,
        *,
        job_id: str | None = None,
    ) -> Job[Any]:
        """Do the same as `send_raw` in a coroutine."""
        wiring = cast("EventMQ", self).wiring
        written = write_raw(queue, body, headers, job_id or wiring.ids.new())
        return await wiring.submitter.asubmit_raw(written)

    def follow_raw(
        self,
        queue: str,
        body: bytes | Sequence[bytes],
        headers: Mapping[str, Any] | None = None,
        *,
        job_id: str,
        on_end: Callable[[Job[Any], Exception | None], None],
    ) -> Job[Any]:
        """Do the same as `send_raw` without waiting, and call back when the job has ended.

        Args:
            queue: Name of the queue.
            body: The body, or frames.
            headers: Names as on the wire.
            job_id: Its id.
            on_end: Called once in the client's thread, where it must not block: with the job, whose
                ``get()`` then answers at once, and None; or with the error for which it was not
                submitted, or its end is not known.

        Raises:
            SettingsError: A value is not allowed.
            BrokerUnavailable: The app was closed.
        """
        written = write_raw(queue, body, headers, job_id)
        return cast("EventMQ", self).wiring.submitter.follow(written, on_end)
