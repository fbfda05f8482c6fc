"""Jobs without guarantee from end to end: app, broker, worker and store are the real ones."""

from __future__ import annotations

from eventmq import EventMQ


def test_jobs_without_guarantee_run_alone_and_in_bulk_and_leave_nothing_behind() -> None:
    """Their results are there, and the store never saw them."""
    with EventMQ(broker="memory://", result_timeout=30.0) as app:

        @app.task(guarantee=False)
        def double(n: int) -> int:
            return 2 * n

        @app.task
        def triple(n: int) -> int:
            return 3 * n

        assert double.delay(21).get() == 42
        jobs = double.map([(n,) for n in range(500)])
        assert [job.get() for job in jobs] == [2 * n for n in range(500)]
        with app.batch():
            kept, free = triple.delay(5), double.delay(5)
        assert (kept.get(), free.get()) == (15, 10)
        assert jobs[-1].state == "succeeded"
        assert jobs[-1].info()["state"] == "succeeded"
