"""The result backend ``sqlite`` beyond the contract: files, limits, forks and clocks."""

from __future__ import annotations

import logging
import os
import stat
import threading
from contextlib import closing

import pytest

from eventmq.errors import PluginError, ResultTooLarge, ResultUnavailable
from eventmq.interfaces import PluginContext
from eventmq.plugins.database import connect, first_row
from eventmq.plugins.result_backends import sqlite
from eventmq.testing import FakeClock


@pytest.fixture
def make(tmp_path):
    """Return a function that makes a backend with a file of the test's own."""
    backends = []
    clock = FakeClock()

    def make_one(**options):
        all_options = {"path": str(tmp_path / "results.sqlite"), "durable": False, **options}
        backends.append(sqlite.make_backend(PluginContext("sqlite", all_options, clock)))
        backends[-1].clock = clock
        return backends[-1]

    yield make_one
    for backend in backends:
        backend.close()


def count(path):
    with closing(connect(path, busy=5.0)) as db:
        (number,) = first_row(db, "SELECT count(*) FROM results")
    return number


def test_only_its_owner_can_read_the_file(make, tmp_path):
    """Results are as private as the broker's files; a mode that the user sets is kept."""
    make().put("job-1", b"x", 60.0)
    assert stat.S_IMODE((tmp_path / "results.sqlite").stat().st_mode) == 0o600
    (tmp_path / "results.sqlite").chmod(0o640)
    make().put("job-2", b"x", 60.0)
    assert stat.S_IMODE((tmp_path / "results.sqlite").stat().st_mode) == 0o640


def test_a_data_directory_that_it_creates_is_private(make, tmp_path):
    """A worker may start before the broker. The modes do not depend on the umask."""
    path = tmp_path / "data" / "results.sqlite"
    before = os.umask(0o277)
    try:
        make(path=str(path)).put("job-1", b"x", 60.0)
    finally:
        os.umask(before)
    assert 0o700 == stat.S_IMODE(path.parent.stat().st_mode)
    assert {0o600} == {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}


def test_results_outlive_a_restart(make):
    backend = make(durable=True)
    reference = backend.put("job-1", b"data", 60.0)
    backend.close()
    assert make().get(reference) == b"data"
    assert backend.get(reference) == b"data"


def test_reading_creates_no_file(make, tmp_path):
    """The error tells a client on another host why there is no result."""
    with pytest.raises(ResultUnavailable, match="not on this host: the result backend 'sqlite' is"):
        make().get(b"job-1")
    assert list(tmp_path.iterdir()) == []


def test_expired_results_leave_the_file(make, tmp_path):
    """Puts delete expired results in slices, and their space is used again or freed."""
    backend = make()
    for number in range(1200):
        backend.put(f"job-{number}", b"x" * 1000, 10.0)
    size = (tmp_path / "results.sqlite").stat().st_size
    backend.clock.advance(60.0)
    for number in range(4):
        backend.put(f"late-{number}", b"x", 10.0)
    assert count(tmp_path / "results.sqlite") == 4
    backend.close()
    assert (tmp_path / "results.sqlite").stat().st_size < size / 2


def test_a_full_file_drops_the_results_that_expire_first(make, caplog):
    backend = make(max_bytes=400_000)
    keep = backend.put("keep", b"k", 9999.0)
    with caplog.at_level(logging.WARNING):
        references = [backend.put(f"job-{n}", b"x" * 10_000, 60.0 + n) for n in range(100)]
    assert backend.get(keep) == b"k"
    assert backend.get(references[-1]) == b"x" * 10_000
    assert backend.get(references[70]) == b"x" * 10_000
    with pytest.raises(ResultUnavailable, match="it has expired or was never stored"):
        backend.get(references[0])
    assert "deleted before they expired: its limit is 400000 bytes" in caplog.text


def test_a_result_beyond_its_limit_is_refused(make):
    with pytest.raises(ResultTooLarge, match=r"11 bytes; .* keeps 10 at most: its option max_res"):
        make(max_result=10).put("job-1", b"x" * 11, 60.0)


@pytest.mark.parametrize("name", ["max_bytes", "max_result"])
def test_a_limit_of_zero_is_refused(make, name):
    with pytest.raises(PluginError, match=f"{name}.* from 1"):
        make(**{name: 0})


@pytest.mark.parametrize(
    ("url", "path"), [("sqlite:///{}", "/tmp/r.sqlite"), ("sqlite:///r.sqlite", "r.sqlite")]
)
def test_a_url_may_name_the_file(make, url, path):
    assert str(make(url=url.format(path))._path) == path


def test_a_url_may_have_options(make):
    """The settings' section of options applies to all plugins with this name."""
    with pytest.raises(ResultTooLarge, match="keeps 3 at most"):
        make(url="sqlite:///r.sqlite?max_result=3&durable=no").put("job-1", b"1234", 60.0)
    with pytest.raises(PluginError, match="no option 'durabel'; did you mean 'durable'"):
        make(url="sqlite:///r.sqlite?durabel=no")


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("CREATE TABLE jobs (id)", "is not a result file of EventMQ: name another file"),
        ("PRAGMA application_id = 7", "is not a result file of EventMQ: name another file"),
        (
            f"PRAGMA application_id = {sqlite.APPLICATION_ID}; PRAGMA user_version = 9",
            "has version 9, this EventMQ knows up to 1: use the newer",
        ),
    ],
)
def test_files_of_other_programs_are_left_alone(make, tmp_path, statement, why):
    with closing(connect(tmp_path / "results.sqlite", busy=5.0)) as db:
        db.execute(statement)
    for use in (lambda b: b.put("job-1", b"x", 60.0), lambda b: b.get(b"job-1")):
        with pytest.raises(ResultUnavailable, match=why):
            use(make())


def test_a_file_that_is_no_database_is_unavailable(make, tmp_path):
    (tmp_path / "results.sqlite").write_bytes(b"no database" * 500)
    with pytest.raises(ResultUnavailable, match="cannot be read: file is not a database"):
        make().get(b"job-1")
    with pytest.raises(ResultUnavailable, match="cannot be written"):
        make().put("job-1", b"x", 60.0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_forked_child_opens_the_file_again(make):
    """A process must not use SQLite connections of its parent."""
    backend = make()
    reference = backend.put("job-1", b"parent", 60.0)
    with backend._connection.lock:  # as if another thread of the parent used it
        child = os.fork()
        if child == 0:
            status = 1
            try:
                backend.put("job-2", b"child", 60.0)
                status = 0 if backend.get(reference) == b"parent" else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert backend.get(b"job-2") == b"child"


def test_many_backends_can_create_the_file_at_once(make):
    """Workers often start at the same time."""
    start = threading.Barrier(8)
    failures = []

    def work(number, backend):
        start.wait(20.0)
        try:
            backend.put(f"job-{number}", b"x", 60.0)
        except ResultUnavailable as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n, make())) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20.0)
    assert failures == []
    assert [make().get(f"job-{n}".encode()) for n in range(8)] == [b"x"] * 8


@pytest.mark.parametrize("step", [2 * 86_400.0, 400 * 86_400.0, -365 * 86_400.0])
def test_a_clock_that_steps_for_some_seconds_drops_no_result(make, tmp_path, step):
    backend = make()
    backend.put("job-1", b"kept", 3600.0)
    backend.clock.advance(100.0)  # so that the next put deletes expired results
    backend.clock.set_now(backend.clock.now() + step)
    backend.put("job-2", b"of the wrong time", 3600.0)
    backend.clock.advance(8.0)
    assert backend.get(b"job-1") == b"kept"
    backend.clock.set_now(backend.clock.now() - step)
    backend.clock.advance(3000.0)
    assert [backend.get(b"job-1"), backend.get(b"job-2")] == [b"kept", b"of the wrong time"]
    backend.clock.advance(600.0)
    with pytest.raises(ResultUnavailable):
        backend.get(b"job-1")
