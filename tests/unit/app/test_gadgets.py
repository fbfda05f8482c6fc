"""Fifty payloads that run a command when they are unpickled: no process does so by default.

They come where bytes of others come: as the body of a job, as a result, as an error and as a
schedule, under every content type. The canary is a file that each of them makes.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import pickle
import runpy
import subprocess
import timeit
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

from eventmq.app import EventMQ
from eventmq.engine.schedules import read_row
from eventmq.errors import ContentError, JobFailed, ProtocolError, SettingsError
from eventmq.wire.commands import Schedule
from eventmq.wire.outcomes import EndRow, OutcomeReader, failure
from eventmq.wire.results import decode_error
from eventmq.wire.schedules import read_schedule

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Versions of the format in which each gadget is written.
VERSIONS = range(5)

#: Content types under which a payload is sent.
TYPES = ("dill", "pickle", "application/x-pickle", "msgpack", "json", "error", "plain", "Dill")


class Gadget:
    """Unpickling it calls what it reduces to."""

    def __init__(self, *reduced: Any) -> None:
        self._reduced = reduced

    def __reduce__(self) -> Any:
        return self._reduced


def gadgets(canary: Path) -> list[Gadget]:
    """Return ten ways to make a file."""
    path = str(canary)
    code = f"open({path!r}, 'w').close()"
    inner = Gadget(eval, (code,))
    return [
        Gadget(os.system, (f"touch {path}",)),
        Gadget(subprocess.call, (["touch", path],)),
        Gadget(exec, (code,)),
        inner,
        Gadget(open, (path, "w")),
        Gadget(functools.reduce, (open, [path, "w"])),
        Gadget(timeit.timeit, (code, "pass", timeit.default_timer, 1)),
        Gadget(list, (), None, iter([inner])),
        Gadget(dict, (), None, None, iter([("key", inner)])),
        Gadget(getattr(Path, "touch"), (canary,)),  # noqa: B009 - as a pickle names it
    ]


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    return tmp_path / "canary"


@pytest.fixture
def payloads(canary: Path) -> list[bytes]:
    return [pickle.dumps(g, version) for version in VERSIONS for g in gadgets(canary)]


@pytest.fixture(scope="module")
def app() -> Iterator[EventMQ]:
    """An app in its default configuration, with broker and worker."""
    with EventMQ("victim", broker="memory://") as app:
        app.task(name="task")(lambda *arguments, **named: None)
        yield app


def test_each_payload_would_touch_the_canary(payloads: list[bytes], canary: Path) -> None:
    """The tests below prove nothing without it."""
    assert 50 == len(payloads)
    for payload in payloads:
        made = pickle.loads(payload)
        assert canary.exists(), payload
        canary.unlink()
        if hasattr(made, "close"):
            made.close()


def test_in_a_job_it_fails_and_touches_nothing(
    app: EventMQ, payloads: list[bytes], canary: Path
) -> None:
    jobs = [
        app.send_raw("default", payload, {"task": "task", "content-type": kind})
        for payload in payloads
        for kind in TYPES
    ]
    for job in jobs:
        with pytest.raises(JobFailed):
            job.get(timeout=20)
    assert not canary.exists()


def test_in_a_result_it_is_refused_and_touches_nothing(
    app: EventMQ, payloads: list[bytes], canary: Path
) -> None:
    reader = OutcomeReader(app.plugins.serializer, app.settings.accept_content)
    for payload in payloads:
        for kind in (*TYPES, "dill;" + "0" * 64 + ";1.0", "frames"):
            row = EndRow("j", "succeeded", kind, payload)
            try:
                value = reader.value(row)
            except (ContentError, ProtocolError):
                continue
            assert isinstance(value, str)  # plain: text as it came
    assert not canary.exists()


def test_in_an_error_it_is_text_and_touches_nothing(payloads: list[bytes], canary: Path) -> None:
    for payload in payloads:
        assert "" == decode_error(payload).type
        for kind in ("error", *TYPES):
            assert isinstance(failure(EndRow("j", "failed", kind, payload)), JobFailed)
    assert not canary.exists()


@pytest.mark.parametrize(
    "name", ["os.system", "subprocess.Popen", "builtins.exec", "builtins.eval", "builtins.open",
             "pathlib.Path.touch", "runpy.run_path", "importlib.import_module", "antigravity.E"],
)  # fmt: skip
def test_an_error_that_names_a_function_calls_nothing(name: str, canary: Path) -> None:
    """Only classes of exceptions are made again, of modules that are imported already."""
    assert runpy
    assert importlib
    for arguments in ([f"touch {canary}"], [str(canary), "w"], [f"open({str(canary)!r}, 'w')"], []):
        data = msgpack.packb([name, "message", "", arguments])
        assert failure(EndRow("j", "failed", "error", data)).__cause__ is None
    assert not canary.exists()


def test_in_a_schedule_it_is_refused_or_kept_as_bytes(payloads: list[bytes], canary: Path) -> None:
    """As a stored definition, and as the body of a SCHEDULE, which is only compared."""
    for payload in payloads:
        with pytest.raises((ProtocolError, SettingsError)):
            read_row(["name", 1, 0.0, None, "", payload])
        for headers in ("interval:1", *(f"interval:1,task:task,content-type:{t}" for t in TYPES)):
            try:
                made = read_schedule(Schedule("m", "default", headers, payload))
            except ProtocolError:
                continue
            assert made.body == payload
    assert not canary.exists()


def test_a_legacy_job_that_names_a_function_is_not_offered(app: EventMQ, canary: Path) -> None:
    """Without ``--allow-callables`` no dotted path of a message runs."""
    for path, name in (("os", "system"), ("subprocess", "getoutput"), ("builtins", "exec")):
        call = {"path": path, "callable": name, "args": [f"touch {canary}"]}
        job = app.send_raw("default", json.dumps(["run", call]).encode())
        assert "queued" == job.state
        job.cancel()
    assert not canary.exists()
