"""What the page for users of Celery claims, as far as it can be looked up."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields
from typing import get_type_hints

import pytest

import eventmq
from eventmq.app import EventMQ
from eventmq.client.graphs import GraphJob, JobGroup
from eventmq.client.handle import Job
from eventmq.interfaces import JobContext
from eventmq.settings.record import FIELDS
from eventmq.task import CallOptions, TaskOptions
from eventmq.task.task import Task
from tests.support.page_files import ROOT
from tests.unit.docs.test_cli import EVERY

#: Without the tables of measurements.
PAGE = (
    (ROOT / "docs" / "howto" / "migrate" / "coming-from-celery.rst")
    .read_text(encoding="utf-8")
    .partition("\nKills and speed\n---")[0]
)


def rows(heading):
    """Return (what Celery has, what EventMQ has) of the table below a heading."""
    section = re.split(r"^(.+)\n-{3,}\n", PAGE, flags=re.MULTILINE)
    text = section[section.index(heading) + 1]
    cells = re.split(r"^   \* - |^     - ", text, flags=re.MULTILINE)[1:]
    return list(zip(cells[2::2], cells[3::2], strict=True))


def words(text):
    """Return what is written as code."""
    return re.findall(r"``(.+?)``", text.replace("\n", " "))


def test_the_options_of_tasks_are_there():
    known = {field.name for field in fields(TaskOptions)}
    named = {
        word.partition("=")[0]
        for _, ours in rows("Options of a task")
        for word in words(ours)
        if re.fullmatch(r"[a-z_]+(=.*)?", word)
    }
    others = {"fixed", "exponential", "threads", "prefork", "running", "cap"}
    attributes = set(get_type_hints(JobContext)) | {"created"}
    prose = {"acks_late", "store_errors_even_if_ignored", "base", "max_retries", "__main__"}
    assert named - known - others - attributes - prose == set()


def test_the_options_of_calls_are_there():
    known = {field.name for field in fields(CallOptions)}
    assert {"countdown", "eta", "expires", "priority", "queue", "retries", "headers"} <= known
    assert {"job_id", "timeout", "result_ttl", "ignore_result"} <= known
    for name in ("delay", "adelay", "apply_async", "options", "map"):
        assert callable(getattr(Task, name))
    for name in ("send", "job", "wait", "as_completed", "batch", "publish"):
        assert callable(getattr(EventMQ, name))


HEADINGS = re.findall(r"^(.+)\n-{3,}\n\n(?:.+\n)*\n*\.\. list-table", PAGE, re.MULTILINE)

#: What is written as code in the column of EventMQ, in all tables.
OURS = [word for heading in HEADINGS for _, ours in rows(heading) for word in words(ours)]


def test_all_tables_are_looked_at():
    assert len(HEADINGS) == PAGE.count(".. list-table")
    assert len(OURS) > 150


@pytest.mark.parametrize("line", [word for word in OURS if word.startswith("eventmq ")])
def test_a_command_can_be_typed_as_it_stands(line):
    """It is there, and takes these options and arguments; it is not run."""
    name, *given = shlex.split(line)
    while given and f"{name} {given[0]}" in EVERY:
        name = f"{name} {given.pop(0)}"
    assert name in EVERY, line
    assert name != "eventmq", line
    if given:
        EVERY[name].make_context(name, given)


def test_what_stands_after_a_comma_leaves_out_the_words_before_it():
    """As in ``eventmq failed list``, ``show``."""
    for _, ours in [*rows("Commands and monitoring"), *rows("Periodic tasks")]:
        above = ""
        for word in words(ours):
            if word.startswith("eventmq "):
                above = re.match(r"(eventmq(?: failed)?)", word)[1]
            elif word.isalpha() and word.islower() and above and word not in {"queued", "delayed"}:
                assert f"{above} {word}" in EVERY, word


OWNERS = {
    "app": [EventMQ],
    "t": [Task],
    "add": [Task],
    "job": [Job],
    "handle": [JobGroup, GraphJob],
    "current_job()": [JobContext],
    "eventmq": [eventmq],
}


@pytest.mark.parametrize("word", OURS)
def test_a_method_is_there(word):
    """What follows ``app.``, ``job.`` and the like."""
    for owner, name in re.findall(r"(current_job\(\)|\b[a-z]+)\.([a-z_]+)", word):
        if f"{owner}.{name}" in {"eventmq.toml", "eventmq.testing", "shop.tasks"}:
            continue
        for kind in OWNERS.get(owner, []):
            assert hasattr(kind, name) or name in get_type_hints(kind), word


def test_the_settings_are_there():
    named = {
        word
        for _, ours in rows("Settings")
        for word in words(ours)
        if re.fullmatch(r"[a-z]+(_[a-z]+)*", word)
    }
    assert named - {"dill", "yaml", "pickle"} <= FIELDS.keys()


def test_the_defaults_are_as_they_are_told():
    assert TaskOptions().retries == 0
    assert FIELDS["result_timeout"].default == 60.0
    assert FIELDS["submit_timeout"].default == 5.0
    assert FIELDS["result_ttl"].default == 86400.0
    assert FIELDS["heartbeat_timeout"].default == 15.0
    assert FIELDS["shutdown_grace"].default == 30.0
    assert FIELDS["serializer"].default == "msgpack"
    assert FIELDS["broker"].default == ("tcp://127.0.0.1:47291",)
    assert dict(TaskOptions().backoff.options) in ({}, {"base": 1.0, "cap": 600.0})


def test_what_is_said_about_canvas_is_there():
    assert {"chain", "group", "chord", "Signature", "JobGroup"} <= set(eventmq.__all__)
    named = {word for _, ours in rows("Canvas") for word in words(ours)}
    assert {"chain(...)", "group(...)", "chord(...)", "deadline=", "JobGroup"} <= named


def test_what_is_said_about_periodic_tasks_is_there():
    assert callable(EventMQ.schedule)
    assert callable(Task.s)
    assert {"every", "cron", "at"} <= set(eventmq.__all__)
    assert {"eventmq beat", "eventmq schedules list"} <= EVERY.keys()
