"""Jobs that are followed by a call back, for programs with a loop of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from eventmq.task.raw import write_raw

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from eventmq.app.application import EventMQ
    from eventmq.client.handle import Job

__all__ = ["Following"]


class Following:
    """What an app does for gateways with very many open jobs."""

    def follow_raw(
        self,
        queue: str,
        body: bytes | Sequence[bytes],
        headers: Mapping[str, Any] | None = None,
        *,
        job_id: str,
        on_end: Callable[[Job[Any], Exception | None], None],
    ) -> Job[Any]:
        """Do the same as `EventMQ.send_raw` without waiting, and call back when the job has ended.

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
