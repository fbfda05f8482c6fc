"""The redactor: what of arguments and results is in a journal, and that it never stops one."""

from __future__ import annotations

import json
import logging
import threading
from asyncio import CancelledError
from datetime import datetime, timezone
from itertools import count
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from eventmq import EventMQ, chain
from eventmq.wire.batches import pack
from eventmq.wire.commands import Request
from eventmq.wire.outcomes import OutcomeReader
from eventmq.wire.results import FRAMES_TYPE, encode_frames, frames_task
from eventmq_contrib.journal import drain as drain_module
from eventmq_contrib.journal.command import run
from eventmq_contrib.journal.compaction import Compaction
from eventmq_contrib.journal.drain import Drain
from eventmq_contrib.journal.folder import JournalFolder
from eventmq_contrib.journal.redactor import MAX_TEXT, Redactor, redactor_of
from eventmq_contrib.journal.sources import BrokerSource
from tests.support.broker_harness import TASK, Broker, row
from tests.support.journal_harness import (
    HarnessSource,
    drained,
    failure,
    names_of,
    rows_in,
)
from tests.support.page_files import write_files
from tests.support.system import System

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    Function = Callable[[str, str, Any], object]

SECRET = "4111-1111"
KEY = "k" * 40


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker that keeps values."""
    broker = Broker(tmp_path / "data", values=1 << 18)
    yield broker
    broker.close()


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def redactor(function: Function, accept: Sequence[str] = ("msgpack", "json")) -> Redactor:
    """Return a redactor with the serializers of an app."""
    plugins = EventMQ("reader", plugin_options={"dill": {"keys": [KEY]}}).plugins
    return Redactor(function, OutcomeReader(plugins.serializer, accept))


def everything(task: str, kind: str, value: Any) -> object:
    return {"task": task, kind: value}


def arguments(*args: Any, **kwargs: Any) -> bytes:
    return pack([args, kwargs])


def work(broker: Broker, body: bytes, result: bytes = b"\xc0", **more: Any) -> None:
    """Let a job come and succeed."""
    broker.worker()
    broker.submit(body=body, headers=more.pop("headers", ""))
    broker.answer(b"worker", broker.dispatched[-1], [row(result=result, **more)])
    broker.ready(b"worker", 1, len(broker.dispatched))


def shown(out: Path) -> list[tuple[Any, Any]]:
    """Return the arguments and results in the events of a journal, decoded."""
    rows = rows_in(out)
    given, made = (
        [json.loads(event.get(name, "null")) for event in rows] for name in ("arguments", "result")
    )
    return list(zip(given, made, strict=True))


# Redacted values


def test_a_journal_has_what_the_function_returns(broker: Broker, out: Path) -> None:
    """As JSON, with non-ASCII characters unescaped; other events have null."""
    work(broker, arguments(1, name="ü€😀"), pack({"total": 7.5}))
    drained(broker, out, redactor=redactor(everything))
    first, last = rows_in(out)
    assert first["arguments"] == (
        '{"task":"shop.add","arguments":{"args":[1],"kwargs":{"name":"ü€😀"}}}'
    )
    assert last["result"] == '{"task":"shop.add","result":{"total":7.5}}'
    assert "result" not in first
    assert "arguments" not in last


def test_none_is_null_and_false_values_are_not(broker: Broker, out: Path) -> None:
    given = {1: None, 2: 0, 3: "", 4: [], 5: False}
    for number in given:
        broker.submit(body=arguments(number))
    drained(broker, out, redactor=redactor(lambda _, __, value: given[value["args"][0]]))
    texts = [event.get("arguments") for event in rows_in(out)]
    assert texts == [None, "0", '""', "[]", "false"]


def test_a_journal_without_a_redactor_drops_what_the_broker_has_kept(
    broker: Broker, out: Path
) -> None:
    work(broker, arguments(SECRET), pack(SECRET))
    drained(broker, out)
    assert shown(out) == [(None, None)] * 2
    [path] = out.rglob("*.parquet")
    table = pq.ParquetFile(path).read().to_pylist()
    assert SECRET not in repr(table)


def test_legacy_jobs_and_frames_are_decoded_as_their_workers_do(broker: Broker, out: Path) -> None:
    plain = json.dumps(["run", {"callable": "f", "path": "m", "args": [1], "kwargs": {"a": 2}}])
    broker.tell(b"client", Request(broker.new_id(), "default", "ack-requested", plain.encode()))
    headers = f"task:{frames_task('echo')},content-type:{FRAMES_TYPE}"
    frames = Request(broker.new_id(), "default", headers, encode_frames([b"a", b"b"]))
    broker.tell(b"client", frames)
    calls: list[tuple[str, str, Any]] = []
    drained(broker, out, redactor=redactor(lambda *given: calls.append(given)))
    assert calls == [
        ("", "arguments", {"args": [1], "kwargs": {"a": 2}}),
        ("frames/echo", "arguments", {"args": [[b"a", b"b"]], "kwargs": {}}),
    ]


def test_a_journal_goes_on_inside_of_what_one_commit_wrote(broker: Broker, out: Path) -> None:
    """Each event has its own value, also where some of a row are sealed already."""
    bodies = [(broker.new_id(), "default") for _ in range(20)]
    broker.submit_batch([job_id for job_id, _ in bodies])  # their ids are their bodies

    def plainly(_: str, __: str, value: Any) -> object:
        return value

    def make_redactor() -> Redactor:
        known = redactor(plainly)
        known._arguments = lambda *row: row[-1].decode()  # type: ignore[method-assign]
        return known

    folder = JournalFolder(out)
    folder.open()
    drain = Drain(HarnessSource(broker), folder, broker.clock, rows=8, redactor=make_redactor())
    drain.start()
    drain.step()
    folder.close()
    assert names_of(out) == [(1, 8), (9, 16)]
    drained(broker, out, redactor=make_redactor())
    assert names_of(out) == [(1, 8), (9, 16), (17, 20)]
    assert [json.loads(event["arguments"]) for event in rows_in(out)] == [i for i, _ in bodies]


def test_much_text_is_sealed_sooner(
    broker: Broker, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A journal does not keep 65,536 long texts in memory."""
    monkeypatch.setattr(drain_module, "TEXT", 1000)
    for _ in range(10):
        broker.submit(body=arguments("x" * 300))
    drained(broker, out, redactor=redactor(lambda *given: given[2]["args"]))
    assert names_of(out) == [(1, 4), (5, 8), (9, 10)]


def test_the_columns_are_written_plainly_and_compaction_keeps_them(
    broker: Broker, out: Path, tmp_path: Path
) -> None:
    """Values differ: a dictionary of them would be as large as they are."""
    for _ in range(2):
        work(broker, arguments(1), pack(2))
        drained(broker, out, redactor=redactor(everything))
        broker.clock.time += 1.0
    broker.clock.time += 3600.0
    broker.submit(body=arguments(3))
    drained(broker, out, redactor=redactor(everything))
    group = pq.read_metadata(min(out.rglob("*.parquet"))).row_group(0)
    encodings = {
        group.column(n).path_in_schema: group.column(n).encodings for n in range(group.num_columns)
    }
    assert "RLE_DICTIONARY" in encodings["kind"]
    assert "RLE_DICTIONARY" not in {*encodings["arguments"], *encodings["result"]}
    small = [
        event
        for path in sorted(out.rglob("*.parquet"))[:2]
        for event in pq.ParquetFile(path).read().to_pylist()
    ]
    assert Compaction(out, tmp_path / "large").run(broker.clock.time) == (2, 1)
    [large] = (tmp_path / "large").rglob("*.parquet")
    assert pq.ParquetFile(large).read().to_pylist() == small
    assert [event["result"] is not None for event in small] == [False, True, False, True]


# What goes wrong


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    records = [r for r in caplog.records if r.name == "eventmq.journal"]
    return [r.getMessage() for r in records if r.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    "kind", [ValueError, KeyError, RecursionError, SystemExit, CancelledError, KeyboardInterrupt]
)
def test_a_function_that_raises_costs_the_value_and_nothing_else(
    broker: Broker, out: Path, caplog: pytest.LogCaptureFixture, kind: type[BaseException]
) -> None:
    """One warning per task and kind names reason and place, without any part of the value."""

    def careless(task: str, name: str, value: Any) -> object:
        if name == "arguments" and value["args"] == [SECRET]:
            raise kind(value["args"])
        return value

    for argument in (SECRET, 2, SECRET, 4):
        work(broker, arguments(argument), pack(argument))
    drained(broker, out, redactor=redactor(careless))
    given = [event[0] for event in shown(out)]
    assert given[0::2] == [None, {"args": [2], "kwargs": {}}, None, {"args": [4], "kwargs": {}}]
    assert [event[1] for event in shown(out)][1::2] == [SECRET, 2, SECRET, 4]
    [warning] = warnings(caplog)
    assert "the arguments of a job of task 'shop.add'" in warning
    assert f"the redactor raised {kind.__name__} (test_redactor.py, line " in warning
    assert SECRET not in caplog.text


def circular() -> object:
    value: list[object] = []
    value.append(value)
    return value


class Leaving(dict[str, int]):
    """Ends a process that reads its content."""

    def items(self) -> Any:
        raise SystemExit(SECRET)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({SECRET}, "a set that JSON cannot write (TypeError)"),
        ({"at": datetime.now(timezone.utc)}, "a dict that JSON cannot write (TypeError)"),
        ([float("nan")], "a list that JSON cannot write (ValueError)"),
        (SECRET + "\ud800", "a str that JSON cannot write (UnicodeEncodeError)"),
        (circular(), "a list that JSON cannot write (ValueError)"),
        (Leaving(a=1), "a Leaving that JSON cannot write (SystemExit)"),
        (SECRET * MAX_TEXT, f"more than {MAX_TEXT} bytes of JSON"),
    ],
    ids=["set", "datetime", "nan", "surrogate", "circular", "leaving", "long"],
)
def test_what_cannot_be_written_is_null(
    broker: Broker, out: Path, caplog: pytest.LogCaptureFixture, value: object, why: str
) -> None:
    for _ in range(2):
        work(broker, arguments(1), pack(2))
    drained(broker, out, redactor=redactor(lambda _, name, __: value if name == "result" else 1))
    assert shown(out) == [(1, None), (None, None)] * 2
    [warning] = warnings(caplog)
    assert f"the redactor returned {why}" in warning
    assert SECRET not in caplog.text


def test_what_one_commit_has_of_values_is_bounded(
    broker: Broker, out: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function may return much for little; the next commit has its own share."""
    monkeypatch.setattr("eventmq_contrib.journal.redactor.MAX_COMMIT", 100)
    for _ in range(2):
        for n in range(3):
            broker.put(b"client", Request(broker.new_id(), "default", TASK, arguments(n)))
        broker.tick()
    drained(broker, out, redactor=redactor(lambda *_: "x" * 38))
    assert [text is None for text, _ in shown(out)] == [False, False, True] * 2
    [warning] = warnings(caplog)
    assert "the redactor returned more than 100 bytes for one commit" in warning


def test_each_task_and_kind_is_warned_of_up_to_a_number(
    broker: Broker, out: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients may name any number of tasks."""
    for n in range(1001):
        headers = f"task:t{n},content-type:msgpack"
        broker.put(b"client", Request(broker.new_id(), "default", headers, b"\xc1"))
        if n % 100 == 0:
            broker.tick()
    broker.tick()
    drained(broker, out, redactor=redactor(everything))
    assert len(rows_in(out)) == 1001
    assert len(set(warnings(caplog))) == len(warnings(caplog)) == 1000


def test_what_cannot_be_decoded_is_null(
    broker: Broker, out: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And the function is not asked."""
    calls: list[object] = []
    bodies = [b"\xc1" + SECRET.encode(), pack([1]), pack({"args": 1, SECRET: 2}), pack([[1], 2])]
    for n, body in enumerate(bodies):
        message = Request(broker.new_id(), "default", f"task:t{n},content-type:msgpack", body)
        broker.tell(b"client", message)
    drained(broker, out, redactor=redactor(lambda *given: calls.append(given)))
    assert calls == []
    assert shown(out) == [(None, None)] * len(bodies)
    assert len(warnings(caplog)) == len(bodies)
    assert SECRET not in caplog.text


# With apps


def redacted_values(app: EventMQ, out: Path) -> list[tuple[Any, Any]]:
    """Run a journal on the broker of an app, with its redactor, to the end."""
    folder = JournalFolder(out)
    folder.open()
    drain = Drain(BrokerSource(app), folder, app.clock, redactor=redactor_of(app))
    drain.start()
    run(drain, threading.Event().wait, once=True)
    folder.close()
    return shown(out)


_numbers = count()


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Call it with the code of a module; it returns the name."""
    monkeypatch.syspath_prepend(tmp_path)

    def module(code: str) -> str:
        name = f"redactor_of_test_{next(_numbers)}"
        (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
        return name

    return module


EVERYTHING = "def redact(task, kind, value):\n    return value\n"


def test_a_chain_has_the_arguments_that_it_was_given(
    module: Callable[[str], str], out: Path
) -> None:
    """And the results that go from job to job."""
    redact = f"{module(EVERYTHING)}:redact"
    with EventMQ("shop", broker="memory://", redactor=redact) as app:

        @app.task
        def add(x: int, y: int) -> int:
            return x + y

        assert chain(add.s(1, 2), add.s(10)).delay().get(timeout=20) == 13
        values = redacted_values(app, out)
    given = [arguments["args"] for arguments, _ in values if arguments is not None]
    assert given == [[1, 2], [10]]
    assert [result for _, result in values if result is not None] == [3, 13]


def test_signed_values_are_decoded_where_they_are_accepted(
    module: Callable[[str], str], out: Path
) -> None:
    """By the journal's key, with the signed context."""
    code = "def redact(task, kind, value):\n    return sorted(str(value))\n"
    settings: dict[str, Any] = {
        "serializer": "dill", "accept_content": ["dill"],
        "plugin_options": {"dill": {"keys": [KEY]}}, "redactor": f"{module(code)}:redact",
    }  # fmt: skip
    with EventMQ("signed", broker="memory://", **settings) as app:

        @app.task(expires=900.0)
        def double(value: object) -> object:
            return value, value

        assert double.delay({1, 2}).get(timeout=20) == ({1, 2}, {1, 2})
        values = redacted_values(app, out)
    expected = [str({"args": [{1, 2}], "kwargs": {}}), str(({1, 2}, {1, 2}))]
    assert [value for pair in values for value in pair if value] == list(map(sorted, expected))


@pytest.mark.parametrize(
    ("accept", "key", "why"),
    [
        (("msgpack", "json"), KEY, "content type 'dill' is not in accept_content"),
        (("msgpack", "dill"), "o" * 40, "the signature was made with another key or content"),
    ],
    ids=["not accepted", "another key"],
)
def test_nothing_is_unpickled_that_the_journal_does_not_trust(
    out: Path, module: Callable[[str], str], caplog: pytest.LogCaptureFixture,
    accept: tuple[str, ...], key: str, why: str,
) -> None:  # fmt: skip
    redact = f"{module(EVERYTHING)}:redact"
    dill = {"dill": {"keys": [KEY]}}
    with EventMQ(
        "signed", broker="memory://", serializer="dill", accept_content=["dill"],
        plugin_options=dill, redactor=redact,
    ) as app:  # fmt: skip

        @app.task
        def double(value: int) -> int:
            return value * 2

        assert double.delay(4).get(timeout=20) == 8
        reader = EventMQ(
            "journal",
            accept_content=accept,
            plugin_options={"dill": {"keys": [key]}},
            redactor=redact,
        )
        folder = JournalFolder(out)
        folder.open()
        drain = Drain(BrokerSource(app), folder, app.clock, redactor=redactor_of(reader))
        drain.start()
        run(drain, threading.Event().wait, once=True)
        folder.close()
    assert shown(out) == [(None, None)] * 2
    assert len(warnings(caplog)) == 2
    assert all(why in warning for warning in warnings(caplog))


def test_a_result_that_a_backend_keeps_is_not_fetched(
    module: Callable[[str], str], out: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be of any length; it is no error, so it is not logged."""
    redact = f"{module(EVERYTHING)}:redact"
    with EventMQ("shop", broker="memory://", result_backend="memory", redactor=redact) as app:

        @app.task
        def add(x: int, y: int) -> int:
            return x + y

        assert add.delay(1, 2).get(timeout=20) == 3
        values = redacted_values(app, out)
    assert values == [({"args": [1, 2], "kwargs": {}}, None), (None, None)]
    assert warnings(caplog) == []


# The setting


@pytest.mark.parametrize(
    ("code", "name", "words"),
    [
        ("", "nowhere_to_be_found:redact", "there is no module 'nowhere_to_be_found'"),
        ("import nothing_such", ":redact", "No module named 'nothing_such'"),
        ("1 / 0", ":redact", "ZeroDivisionError: division by zero"),
        ("raise SystemExit", ":redact", "SystemExit"),
        (
            EVERYTHING,
            ":redakt",
            "is not a function that can be called as redact(task, kind, value)",
        ),
        ("redact = 1", ":redact", "is not a function"),
        ("async def redact(task, kind, value): ...", ":redact", "is not a function"),
        (EVERYTHING, "", "allowed is: module:function; empty means not set"),
    ],
)
def test_a_redactor_that_cannot_be_imported_is_named_at_the_start(
    broker: Broker, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    module: Callable[[str], str], code: str, name: str, words: str,
) -> None:  # fmt: skip
    """In one line, with the exit code of a wrong setting; nothing was written."""
    text = name if not code else module(code) + name
    monkeypatch.setenv("EVENTMQ_REDACTOR", text)
    code_, message = failure(
        "journal", "--data-dir", str(tmp_path / "data"), "--out", str(out), "--once"
    )
    assert code_ == 2
    assert message.count("\n") == 1
    assert "setting 'redactor'" in message
    assert "EVENTMQ_REDACTOR" in message
    assert words in message
    assert not out.exists()


# Processes

SHOP = """
from eventmq import EventMQ

app = EventMQ("shop")


@app.task(name="shop.order")
def order(items, *, voucher=None, card=None):
    return {"total": sum(items), "card": card}


@app.task(name="shop.other")
def other(text):
    return text
"""


@pytest.mark.parametrize("remote", [False, True], ids=["data-dir", "remote"])
def test_the_redactor_of_the_page_runs_in_a_journal(tmp_path: Path, *, remote: bool) -> None:
    """In the store and in a result backend. Values that it does not return are in no file."""
    assert write_files("howto/analyse/journal.rst", tmp_path) == [
        "shop_redactor.py",
        "eventmq.toml",
    ]
    (tmp_path / "shop.py").write_text(SHOP)
    system = System(tmp_path)
    out = tmp_path / "journal"
    try:
        system.broker()
        system.start("worker", "-A", "shop", "--broker", system.address, "-c", "1")
        app = system.app()
        jobs = [
            app.send("shop.order", ([3, 4],), {"voucher": "x", "card": SECRET}),
            app.send("shop.order", ([5],)),
            app.send("shop.other", (SECRET,)),
        ]
        assert len(app.wait(jobs, timeout=40).done) == 3
        where = ("--broker", system.address) if remote else ("--data-dir", str(tmp_path / "data"))
        journal, _ = system.start(
            "-p", "eventmq_contrib.journal", "journal", *where, "--out", str(out), "--once"
        )
        assert journal.wait(40) == 0
    finally:
        system.stop()
    rows = rows_in(out)
    lines = {
        job.id: [
            json.loads(event[name])
            for name in ("arguments", "result")
            for event in rows
            if event["job_id"] == job.id and name in event
        ]
        for job in jobs
    }
    assert list(lines.values()) == [
        [{"items": 2, "voucher": True}, {"total": 7}],
        [{"items": 1, "voucher": False}, {"total": 5}],
        [],
    ]
    assert SECRET not in repr(rows)
    assert len(rows) == 6
