"""What the page for users of Celery claims, as far as it can be looked up."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import get_type_hints

import eventmq
from eventmq.app import EventMQ
from eventmq.cli.program import program
from eventmq.interfaces import JobContext
from eventmq.settings.record import FIELDS
from eventmq.task import CallOptions, TaskOptions
from eventmq.task.task import Task
from tests.support.page_files import ROOT

PAGE = (ROOT / "docs" / "howto" / "coming-from-celery.rst").read_text(encoding="utf-8")


def rows(heading):
    """Return (what Celery has, what EventMQ has) of the table below a heading."""
    section = re.split(r"^(.+)\n-{3,}\n", PAGE, flags=re.MULTILINE)
    text = section[section.index(heading) + 1]
    cells = re.split(r"^   \* - |^     - ", text, flags=re.MULTILINE)[1:]
    return list(zip(cells[2::2], cells[3::2], strict=True))


def words(text):
    """Return what is written as code."""
    return re.findall(r"``(.+?)``", text.replace("\n", " "))


def commands(group, above=""):
    """Return the names of all commands, those of groups with the name of the group before them."""
    found = set()
    for name, command in group.commands.items():
        found |= commands(command, f"{above}{name} ") if hasattr(command, "commands") else set()
        found.add(f"{above}{name}")
    return found


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


def test_the_commands_are_there():
    """What stands after a comma leaves out the words before it."""
    for _, ours in [*rows("Commands and monitoring"), *rows("The worker")]:
        known = ""
        for word in words(ours):
            command = re.match(r"eventmq ((?:failed )?[a-z]+)", word)
            known = command[1] if command else known
            name = known if command else f"{known.rpartition(' ')[0]} {word}".strip()
            if command or (known.startswith("failed") and word.isalpha()):
                assert name in commands(program), name


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
    assert {"beat", "schedules list"} <= commands(program)
