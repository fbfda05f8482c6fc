"""Limits of a broker, and what happens when they are reached. Times are seconds, sizes bytes."""

from __future__ import annotations

from dataclasses import dataclass, field

from eventmq.store.metrics import MetricsLimits

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits on the messages that a broker accepts, the data that it keeps, and its waits.

    Attributes:
        max_frame: A longer payload is answered with ERROR ``too-large``.
        max_frames: A message of more frames is answered with ERROR ``frame-count``.
        max_headers: A longer header field is answered with ERROR ``too-large``.
        max_id: Longest id, queue name or topic in characters.
        graph_slice: Jobs of graphs that one commit makes ready or cancels because others ended.
        max_input_bytes: Bytes of results of other jobs that one job may take as input; a job that
            would take more fails.
        max_unique: Longest unique key, limit key or name of a task in bytes of UTF-8. With these
            and `max_id` no entry of an index is over the 2,704 bytes that PostgreSQL takes.
        max_keys: Keys (header ``limit-key``, by task) of waiting and running jobs at a time; a job
            with another key is refused with ``too-many-keys``.
        max_queue_length: Unfinished jobs of one queue, those without guarantee included; more are
            refused with ``queue-full``.
        max_queues: Queues that the broker knows; a job for another is refused with
            ``queue-full``.
        max_new_queues: Queues that one peer, or the peers with one key, have created, until another
            peer serves them or they are forgotten; a job for one more is refused with
            ``queue-full``.
        empty_queue_ttl: A queue that is empty and not served by a worker is forgotten after this
            time, unless it is paused or has limits.
        max_subqueues: Subqueues, by queue, task and limit key, in which jobs wait; a job for one
            more is refused with ``too-many-subqueues``.
        max_peers: Peers at a time; one more is answered with ERROR ``too-many-peers``.
        max_message_rate: Requests, calls and publications of one peer per second, 0.0 for any
            number; more are refused with ``rate-limited``.
        max_unsent_bytes: Bytes of messages that wait for one peer that does not read; the peer gets
            no more messages until it does.
        max_total_unsent_bytes: The same for all peers together; one peer may use half of the free
            bytes.
        max_waits: Ids that one peer may wait for at a time; more are refused with ``too-many``.
        max_subscriptions: ``subscribe`` calls of one peer at a time; more are refused with
            ``too-many``.
        max_streams: Jobs whose parts are kept or read at a time. When a worker begins one more, the
            stream that has had no reader for the longest time is discarded; a call that would read
            one more is refused with ``too-many``.
        max_stream_bytes: Bytes of the parts of all streams; beyond it, the streams that have had no
            reader for the longest time are discarded.
        stream_parts: Parts of one stream that a worker may be ahead of its readers.
        stream_bytes: Bytes of these parts, without the last batch.
        max_batch: Jobs in one REQUEST; more are refused with ``too-many``.
        max_replies: Jobs whose REPLY legacy clients wait for at a time, over all peers. More jobs
            get no REPLY, and are counted.
        max_inform: A longer QUEUES or FEATURES frame is answered with ERROR ``too-large``.
        max_inform_queues: Queues that one worker may serve; more are refused with
            ``bad-queues``.
        max_schedule: A schedule with a longer body is refused with ``too-large``.
        queue_window: Jobs of one queue that are kept in memory; the others stay in the store.
        window_bytes: Bytes of payload of one queue that are kept in memory.
        transient_jobs: Unfinished jobs without guarantee; more are refused with ``queue-full``.
        transient_bytes: Bytes of payload of the same; more are refused with ``queue-full``.
        transient_results: Ended jobs without guarantee that are kept; beyond it the oldest are
            forgotten.
        transient_result_bytes: Bytes of their results.
        transient_result_ttl: Longest time for which such a result is kept.
        chunk_jobs: Largest number of jobs in a chunk.
        chunk_seconds: Run time up to which a chunk is filled, as measured for its tasks.
        heartbeat_interval: Time between two HEARTBEATs to a peer.
        lease_interval: Time between two HEARTBEATs to a peer that holds leases.
        heartbeat_timeout: A peer that was silent for this time counts as dead.
        grace: Time in which a session may reconnect after its connection was lost.
        unknown_task_grace: A job whose task no worker knows fails after this time.
        unserved_after: A legacy job may go to workers of ``default`` after no worker has served its
            queue for this time, if ``legacy_queue_fallback`` is ``default``.
        legacy_queue_fallback: ``default``, ``keep`` (wait for a worker) or ``refuse``.
        default_queue: Name of the queue of peers that name none.
        queue_limits: Queue, rate ("" for none) and jobs that may run at a time (0 for any number).
        priority_seconds: Seconds of waiting that one step of priority is worth.
        result_ttl: Time for which a result is kept if the job does not set one.
        failed_ttl: Age at which a failed job is forgotten.
        max_failed_bytes: Bytes of all failed jobs, with their errors and histories; beyond it the
            oldest are forgotten.
        max_job_log_bytes: Bytes of the kept log of one job, over all attempts; older lines are cut.
        max_deaths: A job whose process died this many times fails as a suspected killer.
        metrics: Numbers of queues and tasks that have metrics of their own; the others are counted
            together.
    """

    max_frame: int = 16 * 1024 * 1024
    max_frames: int = 16
    max_headers: int = 64 * 1024
    max_id: int = 255
    graph_slice: int = 1000
    max_input_bytes: int = 256 * 1024 * 1024
    max_unique: int = 1024
    max_keys: int = 10_000
    max_queue_length: int = 10_000_000
    max_queues: int = 10_000
    max_new_queues: int = 1000
    empty_queue_ttl: float = 600.0
    max_subqueues: int = 100_000
    max_peers: int = 10_000
    max_message_rate: float = 0.0
    max_unsent_bytes: int = 64 * 1024 * 1024
    max_total_unsent_bytes: int = 256 * 1024 * 1024
    max_waits: int = 100_000
    max_subscriptions: int = 1000
    max_streams: int = 10_000
    max_stream_bytes: int = 256 * 1024 * 1024
    stream_parts: int = 2048
    stream_bytes: int = 2 * 1024 * 1024
    max_batch: int = 10_000
    max_replies: int = 1_000_000
    max_inform: int = 1024 * 1024
    max_inform_queues: int = 1000
    max_schedule: int = 1024 * 1024
    queue_window: int = 5000
    window_bytes: int = 32 * 1024 * 1024
    transient_jobs: int = 100_000
    transient_bytes: int = 64 * 1024 * 1024
    transient_results: int = 20_000
    transient_result_bytes: int = 32 * 1024 * 1024
    transient_result_ttl: float = 3600.0
    chunk_jobs: int = 1000
    chunk_seconds: float = 0.02
    heartbeat_interval: float = 3.0
    lease_interval: float = 0.5
    heartbeat_timeout: float = 15.0
    grace: float = 0.5
    unknown_task_grace: float = 300.0
    unserved_after: float = 30.0
    legacy_queue_fallback: str = "default"
    default_queue: str = "default"
    queue_limits: tuple[tuple[str, str, int], ...] = ()
    priority_seconds: float = 60.0
    result_ttl: float = 86_400.0
    failed_ttl: float = 30 * 86_400.0
    max_failed_bytes: int = 1024 * 1024 * 1024
    max_job_log_bytes: int = 64 * 1024
    max_deaths: int = 3
    metrics: MetricsLimits = field(default_factory=MetricsLimits)
