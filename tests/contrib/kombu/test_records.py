"""Values by key in a broker: several processes, large values, counters."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from uuid import uuid4

import pytest

from eventmq_contrib.kombu.records import PART, Bindings, Records
from tests.support.system import until

QUEUE = "records"


@pytest.fixture(scope="module")
def app(system):
    with system.app() as app:
        yield app


@pytest.fixture
def key():
    return uuid4().hex


@pytest.fixture
def records(app):
    return Records(app, QUEUE)


def test_a_value_is_replaced_and_deleted_as_often_as_wanted(app, records, key):
    assert records.get([key]) == [None]
    for number in range(40):
        value = b"%d" % number
        assert records.set(key, value, None)
        assert [value, None] == records.get([key, f"{key} other"])
        if number % 7 == 0:
            records.delete(key)
            assert records.get([key]) == [None]
    assert Records(app, QUEUE).get([key]) == [b"39"]


def test_a_final_value_stays(records, key):
    asked = []

    def final(value):
        asked.append(value)
        return value == b"final"

    assert records.set(key, b"first", 60, final)
    assert records.set(key, b"final", 60, final)
    assert not records.set(key, b"late", 60, final)
    assert records.get([key]) == [b"final"]
    assert asked == [b"first", b"final"]
    records.delete(key)
    assert records.set(key, b"new", 60, final)


def test_a_value_expires(records, key):
    records.set(key, b"short", 0.5)
    until(lambda: records.get([key]) == [None], "it expires")
    records.set(key, b"longer", 60)
    assert records.get([key]) == [b"longer"]


def test_a_large_value_has_parts_of_its_own(app, records, key):
    values = [bytes([65 + number]) * (2 * PART + 1) for number in range(3)]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda value: Records(app, QUEUE).set(key, value, 60), values))
    assert records.get([key])[0] in values
    assert [records.append(f"{key} list", value, 60) for value in values] == [1, 2, 3]
    assert records.appended(f"{key} list") == dict(enumerate(values, 1))


def test_numbers_of_appended_values_have_no_gap_and_no_double(app, key):
    """Five writers at once, each with its own idea of the last number."""
    writers = [Records(app, QUEUE) for _ in range(5)]

    def append(writer):
        return [writer.append(key, b"%d" % number, 60) for number in range(30)]

    with ThreadPoolExecutor(5) as pool:
        numbers = [number for each in pool.map(append, writers) for number in each]
    assert sorted(numbers) == list(range(1, 151))
    values = Records(app, QUEUE).appended(key)
    assert list(values) == list(range(1, 151))
    assert sorted(values.values()) == sorted([b"%d" % number for number in range(30)] * 5)
    assert Records(app, QUEUE).append(key, b"", 60) == 151


def test_a_claim_has_one_owner_who_may_come_back(app, key):
    claimants = [Records(app, QUEUE) for _ in range(5)]
    owners = [b"%d" % number for number in range(5)]
    for _ in range(3):
        with ThreadPoolExecutor(5) as pool:
            won = list(pool.map(lambda who, owner: who.claim(key, owner, 60), claimants, owners))
        assert won.count(True) == 1
        assert [who.claim(key, owner, 60) for who, owner in
                zip(claimants, owners, strict=True)] == won  # fmt: skip
    claimants[0].delete(key)
    assert not claimants[won.index(False)].claim(key, b"late", 60)


def test_many_keys_are_read_at_once(records):
    keys = [uuid4().hex for _ in range(700)]
    for key in keys[::100]:
        records.set(key, key.encode(), 60)
    assert records.get(keys) == [
        None if number % 100 else key.encode() for number, key in enumerate(keys)
    ]


def test_threads_bind_a_queue_at_the_same_time(app, key):
    bindings, together = Bindings(app), Barrier(2, timeout=10)
    append = bindings._records.append

    def append_together(*args):
        together.wait()
        number = append(*args)
        together.wait()
        return number

    bindings._records.append = append_together
    with ThreadPoolExecutor(2) as threads:
        binding = ("mail", None, "mail")
        started = [threads.submit(bindings.set, key, binding, bound=True) for _ in range(2)]
        for each in started:
            each.result(30)
    assert bindings.table(key) == [binding]


def test_a_binding_of_another_thread_counts_while_the_table_is_read(app, key):
    bindings, first = Bindings(app), ("mail", None, "mail")
    appended = bindings._records.appended

    def appended_before_it_is_bound(*args):
        found = appended(*args)
        bindings._records.appended = appended
        bindings.set(key, first, bound=True)  # as another thread may do now
        return found

    bindings._records.appended = appended_before_it_is_bound
    bindings.table(key)
    assert bindings.table(key) == [first]


def test_only_new_bindings_are_read_again(app, key):
    bindings, other = Bindings(app), Bindings(app)
    queues = [("", None, f"mail-{number}") for number in range(40)]
    for binding in queues:
        bindings.set(key, binding, bound=True)
    other.set(key, queues[0], bound=False)
    asked = []
    read, bindings._records._read = (
        bindings._records._read,
        lambda ids: asked.extend(ids := list(ids)) or read(ids),
    )
    assert bindings.table(key, since=0.0) == queues[1:]
    assert len(asked) < 10


def test_bindings_are_read_from_the_first_one_on_if_they_were_deleted(app, key):
    bindings, other = Bindings(app), Bindings(app)
    for number in range(9):
        bindings.set(key, ("", None, f"mail-{number}"), bound=True)
    other._records.delete(f"kombu-exchange-{key}")
    assert bindings.table(key, since=0.0) == other.table(key) == []
    other.set(key, ("", None, "new"), bound=True)
    assert bindings.table(key, since=0.0) == [("", None, "new")]
