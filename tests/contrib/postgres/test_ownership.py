"""Which broker owns a store: claims, fences and lost sessions, on a real server."""

from __future__ import annotations

import select
import threading
import time

import psycopg
import pytest

from eventmq.sdk import Claimant, Fenced, LeaseRow, QueueFull, StoreError, Unknown
from eventmq_contrib.postgres.connection import Database, DatabaseUnavailable
from eventmq_contrib.postgres.ownership import PostgresOwnership
from eventmq_contrib.postgres.pipeline import ConnectionLost, Pipeline
from eventmq_contrib.postgres.rowstore import PostgresRows
from eventmq_contrib.postgres.upkeep import PostgresUpkeep
from tests.support.postgres import Home, Server, until

PAIR = ("seq", "record")

ONE, TWO = Claimant("one", "tcp://10.0.0.1:47291", "key"), Claimant("two", "tcp://10.0.0.2:47291")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Epochs are small numbers, since those of the machine's clock are left out."""
    monkeypatch.setattr(PostgresUpkeep, "next_epoch", lambda _: 0)


@pytest.fixture
def make(database_url):
    """Makes the ownership of one more broker."""
    ownerships = []

    def make(url=database_url):
        ownerships.append(PostgresOwnership(Database.of(url)))
        return ownerships[-1]

    yield make
    for ownership in ownerships:
        ownership.close()


@pytest.fixture
def other(database_url):
    """Another session of the same database."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("SET search_path = eventmq")
        yield connection


def claim(ownership, me):
    return ownership.claim(ownership.look(), me)


def write(ownership, seq):
    """Commit a row."""
    rows = ownership.rows
    rows.begin()
    try:
        rows.insert("suspects", PAIR, [(seq, b"")])
        rows.commit()
    except BaseException:
        rows.rollback()
        raise


def stored(connection):
    return [seq for (seq,) in connection.execute("SELECT seq FROM suspects ORDER BY seq")]


def wait_freed(ownership, seconds=5.0):
    """Wait until the lock of the owner is free, and return whether it is."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        fd = ownership.fileno()
        if fd is None:
            return False
        if select.select([fd], [], [], 0.1)[0] and ownership.freed():
            return True
    return False


def test_the_first_claim_has_epoch_one(make, other):
    """The lease names the owner and the address for peers."""
    one = make()
    row = one.look()
    assert row == LeaseRow(row.store_id, connected=False)
    assert len(row.store_id) == 16
    assert one.claim(row, ONE) == 1
    lease = make().look()
    assert lease[:6] == (row.store_id, 1, "one", ONE.address, "key", 0)
    query = """SELECT pid::text FROM pg_locks
        WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted"""
    assert other.execute(query).fetchall() == [(lease.backend.split("/")[0],)]


def test_the_beat_grows_with_each_renewal(make):
    """Other brokers see it; the epoch stays."""
    one, two = make(), make()
    claim(one, ONE)
    for beat in (1, 2, 3):
        one.renew()
        assert (two.look().beat, two.look().epoch) == (beat, 1)


def test_a_claim_of_another_epoch_fails(make, other):
    """It changes nothing, and the owner goes on."""
    one, two, three = make(), make(), make()
    earlier_lease = three.look()
    claim(one, ONE)
    assert two.claim(earlier_lease, TWO) == 0
    one.renew()
    write(one, 1)
    assert (stored(other), two.rows) == ([1], None)
    assert claim(two, TWO) == 2
    assert three.claim(earlier_lease, ONE) == 0


def test_a_superseded_owner_stores_nothing(make, other):
    """Its session was ended. With a new session it is fenced."""
    one, two = make(), make()
    claim(one, ONE)
    write(one, 1)
    fence = one.rows.fence
    assert claim(two, TWO) == 2
    with pytest.raises(Unknown) as caught:
        write(one, 2)
    assert isinstance(caught.value, DatabaseUnavailable)
    write(two, 3)
    three = make()
    assert claim(three, ONE) == 3
    three.rows.fence = fence
    with pytest.raises(Fenced, match="another broker owns the store"):
        write(three, 4)
    with pytest.raises(Fenced):
        three.renew()
    assert stored(other) == [1, 3]


def test_a_claim_ends_the_batch_in_progress(make, other):
    """This includes the batch of an owner that was suspended before its COMMIT."""
    one, two = make(), make()
    claim(one, ONE)
    one.rows.begin()
    one.rows.insert("suspects", PAIR, [(1, b"")])
    assert one.rows.measure("suspects") == (1, 0)
    before = time.monotonic()
    assert claim(two, TWO) == 2
    assert time.monotonic() - before < 2
    write(two, 2)
    with pytest.raises(Unknown):
        one.rows.commit()
    one.rows.rollback()
    assert stored(other) == [2]


def test_a_claim_waits_a_second_for_the_lease(make, other):
    """It fails if the session that locks the lease cannot be ended, and may be repeated."""
    one, two = make(), make()
    claim(one, ONE)
    lease = two.look()
    with other.transaction():
        other.execute("SELECT * FROM lease FOR SHARE")
        before = time.monotonic()
        assert two.claim(lease, TWO) == 0
        assert 0.9 < time.monotonic() - before < 3
    assert claim(two, TWO) == 2
    two.renew()


def test_a_broker_claims_from_itself(make, other):
    """After its connection was lost, it claims a new epoch."""
    one = make()
    claim(one, ONE)
    write(one, 1)
    other.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_locks WHERE locktype = 'advisory'"
    )
    with pytest.raises(Unknown):
        one.renew()
    with pytest.raises(Unknown):
        one.renew()
    assert claim(one, ONE) == 2
    write(one, 2)
    one.renew()
    assert stored(other) == [1, 2]


def test_a_restored_store_reuses_no_epoch(make, other, monkeypatch):
    """Each epoch is at least the machine's Unix time, and above those that the store knows."""
    monkeypatch.undo()
    wall = 2_000_000_000.7
    monkeypatch.setattr("eventmq_contrib.postgres.upkeep.time.time", lambda: wall)
    assert claim(make(), ONE) == 2_000_000_000
    assert claim(make(), ONE) == 2_000_000_001
    other.execute("UPDATE lease SET epoch = 3")
    wall += 60.0
    assert claim(make(), ONE) == 2_000_000_060
    wall = 5.0
    assert claim(make(), ONE) == 2_000_000_061


@pytest.mark.parametrize("change", ["beat - 1", "beat + 1"])
def test_an_owner_that_reads_another_beat_than_its_own_has_lost_the_store(make, other, change):
    """The database was restored, or failed over to an older copy."""
    one = make()
    claim(one, ONE)
    one.renew()
    other.execute(f"UPDATE beats SET beat = {change}")
    beats = other.execute("SELECT beat FROM beats").fetchall()
    with pytest.raises(Unknown, match=r"the beat in .* is .* and not 2"):
        one.renew()
    assert one.rows is None
    assert other.execute("SELECT beat FROM beats").fetchall() == beats


def test_a_renewal_that_was_rolled_back_can_be_repeated(make, other, monkeypatch):
    one = make()
    claim(one, ONE)
    with monkeypatch.context() as patch:
        patch.setattr(one.rows, "commit", lambda: one.rows.ask("SELECT 1 / 0"))
        with pytest.raises(StoreError, match="division by zero"):
            one.renew()
    one.renew()
    assert other.execute("SELECT beat FROM beats").fetchall() == [(1,)]


def test_a_full_disk_of_the_database_is_a_temporary_error(make, monkeypatch):
    """The broker goes on, and claims the store again when there is room."""
    one = make()
    claim(one, ONE)

    def full(*_):
        raise QueueFull("the disk of the database is full")

    with monkeypatch.context() as patch:
        patch.setattr(one.rows, "commit", full)
        with pytest.raises(ConnectionLost, match="disk of the database is full"):
            one.renew()
    assert one.rows is None
    lease = one.look()
    with monkeypatch.context() as patch:
        patch.setattr(Pipeline, "ask", full)
        with pytest.raises(DatabaseUnavailable, match="disk of the database is full"):
            one.claim(lease, ONE)
        with pytest.raises(DatabaseUnavailable, match="disk of the database is full"):
            one.look()
    assert claim(one, ONE) == 2
    monkeypatch.setattr(one.rows, "commit", full)
    one.release()
    assert one.rows is None


def test_a_released_store_has_no_owner(make, other):
    """Commits fail afterwards. Releasing again, or without a claim, does nothing."""
    one, two = make(), make()
    two.release()
    claim(one, ONE)
    write(one, 1)
    one.release()
    one.release()
    assert two.look()[1:5] == (1, "", "", "")
    with pytest.raises(Unknown):
        one.renew()
    assert claim(two, TWO) == 2
    one.release()
    assert two.look().owner == "two"
    two.renew()


def test_a_release_of_a_superseded_owner_does_nothing(make):
    """The new owner keeps the store."""
    one, two = make(), make()
    claim(one, ONE)
    claim(two, TWO)
    one.release()
    assert two.look().owner == "two"


def test_a_standby_is_woken_when_the_owners_session_ends(make, other):
    """It is woken at once, and again at the next end of a session."""
    one, two = make(), make()
    assert (two.fileno(), two.freed()) == (None, False)
    claim(one, ONE)
    for _ in range(2):
        two.look()
        assert two.fileno() is not None
        assert not two.freed()
        assert not wait_freed(two, 0.2)
        one.rows.close()
        assert wait_freed(two)
        assert not two.freed()
        two.look()
        assert two.fileno() is None  # no session has the lock
        claim(one, ONE)
        one.renew()
    two.look()
    one.release()
    assert wait_freed(two)


def test_the_lease_says_whether_the_session_of_the_owner_is_connected(make, other):
    """A session with the same process id, or that of another claim, does not count."""
    one, two = make(), make()
    claim(one, ONE)
    assert two.look().connected
    other.execute("UPDATE lease SET backend = split_part(backend, '/', 1) || '/1.5'")
    assert not two.look().connected
    assert claim(two, TWO) == 2
    assert one.look().connected
    two.rows.close()
    until(lambda: not one.look().connected, "its session has ended")


def test_a_new_owner_gets_the_lock_that_standbys_wait_for(make, other):
    """A standby that got the lock in between gives it up."""
    one, two, three = make(), make(), make()
    claim(one, ONE)
    two.look()
    three.look()
    one.rows.close()
    assert claim(two, TWO) == 2  # the session of the third has the lock now

    def locked():
        two.renew()
        three.freed()
        return two._has_lock

    until(locked, "the owner has the lock")
    one.look()
    assert one.fileno() is not None


def test_an_owner_survives_a_crash_of_the_server(own):
    """Reading the lease fails while the server is down, and committed rows are kept."""
    with own.database() as url:
        one = PostgresOwnership(Database.of(url))
        claim(one, ONE)
        write(one, 1)
        own.kill()
        with pytest.raises(Unknown):
            write(one, 2)
        for _ in range(2):
            with pytest.raises(DatabaseUnavailable):
                one.look()
        own.start()
        row = one.look()
        assert (row.epoch, row.owner) == (1, "one")
        assert one.claim(row, ONE) == 2
        write(one, 3)
        assert one.rows.measure("suspects") == (2, 0)
        one.close()


def test_the_commits_of_two_epochs_are_not_interleaved(make, other):
    """Two brokers take the store from each other all the time."""
    ends = time.monotonic() + 1.5
    log, lock, errors = [], threading.Lock(), []

    def serve(me):
        ownership = make()
        try:
            while time.monotonic() < ends:
                try:
                    epoch = ownership.claim(ownership.look(), me)
                    while epoch and time.monotonic() < ends:
                        rows = ownership.rows
                        rows.begin()
                        number = rows.measure("suspects")[0] + 1
                        rows.insert("suspects", PAIR, [(number, b"%d" % epoch)])
                        rows.commit()
                        with lock:
                            log.append((number, epoch))
                except StoreError:
                    if ownership.rows is not None:
                        ownership.rows.rollback()
        except BaseException as error:  # noqa: BLE001 - shown by the test
            errors.append(error)

    threads = [threading.Thread(target=serve, args=(me,)) for me in (ONE, TWO)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    cursor = other.execute(
        "SELECT seq, convert_from(record, 'UTF8')::int FROM suspects ORDER BY seq"
    )
    rows = cursor.fetchall()
    epochs = [epoch for _, epoch in rows]
    assert epochs == sorted(epochs)
    assert len(set(epochs)) > 2
    assert set(log) <= set(rows)


@pytest.fixture
def own(postgres):
    """A server that only one test uses, so that it may stop it."""
    home = Home()
    yield Server.make(home)
    home.close()


def test_a_standby_waits_for_the_lock_a_few_seconds_at_a_time(make, monkeypatch):
    """A session that waited for days would hold its snapshot for days."""
    monkeypatch.setattr("eventmq_contrib.postgres.ownership.LOCK_WAIT", 200)
    owner, standby = make(), make()
    assert claim(owner, ONE)
    standby.look()
    assert standby.fileno() is not None
    assert not wait_freed(standby)
    assert standby.fileno() is None
    standby.look()
    assert standby.fileno() is not None


def test_a_cancelled_statement_is_a_temporary_error(make, other):
    owner = make()
    assert claim(owner, ONE)
    [(session,)] = owner.rows.pipeline.ask("SELECT pg_backend_pid()")
    cancel = threading.Thread(target=_cancel_when_it_sleeps, args=(other, session))
    cancel.start()
    with pytest.raises(Unknown, match="cancel"):
        owner.rows.pipeline.ask("SELECT pg_sleep(30)")
    cancel.join()


def test_a_statement_without_a_deadline_ends_after_a_long_silence(make, monkeypatch):
    monkeypatch.setattr("eventmq_contrib.postgres.pipeline.SILENCE_TIMEOUT", 0.2)
    owner = make()
    assert claim(owner, ONE)
    owner.rows.pipeline.deadline = None
    with pytest.raises(Unknown, match="did not answer in time"):
        owner.rows.pipeline.ask("SELECT pg_sleep(60)")


def test_the_beat_goes_on_during_a_silent_statement_of_recovery(make):
    """Otherwise a standby would take the store from an owner that recovers many rows."""
    owner, standby = make(), make()
    claim(owner, ONE)
    rows = owner.rows
    with owner.recovering(rows):
        rows.begin()
        rows.ask("SELECT pg_sleep(3.2)")
        assert standby.look().beat >= 2
        rows.commit()
    owner.renew()


def test_an_owner_that_is_superseded_in_a_silent_recovery_has_lost_the_store(make):
    owner, other = make(), make()
    claim(owner, ONE)
    rows, lease = owner.rows, other.look()
    claiming = threading.Thread(target=other.claim, args=(lease, TWO))
    claiming.start()
    rows.begin()
    with pytest.raises((Unknown, Fenced)), owner.recovering(rows):
        rows.ask("SELECT pg_sleep(30)")
    claiming.join()
    assert other.epoch == 2


def test_brokers_of_different_users_fence_each_other(make, other, caplog):
    """A user without the right to end the other session logs that once, and the lease decides."""
    one = make()
    claim(one, ONE)
    [(name,)] = other.execute("SELECT current_database()")
    other.execute("CREATE ROLE second LOGIN PASSWORD 'second' IN ROLE pg_read_all_stats")
    two = make(f"postgresql://second:second@127.0.0.1:{other.info.port}/{name}")
    try:
        for grant in (
            "ALL ON SCHEMA eventmq", "ALL ON ALL TABLES IN SCHEMA eventmq",
            "EXECUTE ON FUNCTION pg_control_system()",
        ):  # fmt: skip
            other.execute(f"GRANT {grant} TO second")
        for epoch in (2, 4):
            with caplog.at_level("WARNING"):
                assert claim(two, TWO) == epoch
            assert caplog.text.count("cannot be ended, only fenced") == 1
            with pytest.raises(Fenced):
                write(one, epoch)
            one.drop()
            assert claim(one, ONE) == epoch + 1
    finally:
        two.close()
        other.execute("DROP OWNED BY second")
        other.execute("DROP ROLE second")


@pytest.mark.parametrize("cause", ["cancelled", "released"])
def test_a_commit_that_did_not_wait_for_its_replica_is_unknown(postgres, database_url, cause):
    """PostgreSQL commits it on this server alone, and warns at most."""
    database = Database.of(database_url)
    rows = PostgresRows.open(database, 30.0)
    PostgresUpkeep(database, {"durability": "replicated"}).check_commits(rows)
    waits = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    postgres.configure(synchronous_standby_names="ANY 1 (nobody)")
    postgres.reload()

    def end():
        until(lambda: postgres.sql(waits), "a commit waits")
        if cause == "cancelled":
            postgres.sql(f"SELECT pg_cancel_backend(pid) FROM ({waits}) AS w")
        else:
            postgres.configure(synchronous_standby_names="")
            postgres.reload()

    def commit():
        for seq in range(10_000):  # the server needs a moment before commits wait
            rows.begin()
            rows.insert("suspects", PAIR, [(seq, b"")])
            rows.commit()

    ending = threading.Thread(target=end)
    ending.start()
    try:
        with pytest.raises(Unknown, match=r"canceling wait|wait for no replica"):
            commit()
    finally:
        ending.join()
        postgres.configure(synchronous_standby_names="")
        postgres.reload()
        rows.close()


def _cancel_when_it_sleeps(other, session):
    sleeps = "SELECT FROM pg_stat_activity WHERE pid = %s AND query LIKE '%%pg_sleep%%'"
    until(lambda: other.execute(sleeps, (session,)).fetchone() is not None, "it sleeps")
    other.execute("SELECT pg_cancel_backend(%s)", (session,))
