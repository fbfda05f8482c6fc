"""Signed jobs and results: client and worker agree on the signed bytes."""

from __future__ import annotations

from eventmq import EventMQ

KEY = "k" * 40


def test_a_signed_job_runs_and_its_signed_result_is_read(tmp_path, monkeypatch):
    """Job and result, by the handle of the sender and by one with only the id."""
    monkeypatch.chdir(tmp_path)
    app = EventMQ(
        "signed",
        broker="memory://",
        serializer="dill",
        accept_content=["dill"],
        plugin_options={"dill": {"keys": [KEY]}},
    )

    @app.task
    def double(value):
        return value, value

    with app:
        job = double.delay({1, 2})
        assert job.get(timeout=20) == ({1, 2}, {1, 2})
        assert app.job(job.id).get(timeout=20) == ({1, 2}, {1, 2})
