"""Repeated log lines of the SDK and its exporters."""

from __future__ import annotations

import logging

import pytest

from eventmq_contrib.opentelemetry.repeats import RepeatFilter, limit_repeats

NAME = "opentelemetry.exporter.otlp.proto.http.trace_exporter"


def record(message: str, created: float, *args: object) -> logging.LogRecord:
    made = logging.LogRecord(NAME, logging.WARNING, "exporter.py", 1, message, args, None)
    made.created = created
    return made


def test_a_line_is_logged_once_per_interval_with_the_number_of_suppressed_ones() -> None:
    repeats = RepeatFilter(60.0)
    texts = []
    for created in (100.0, 101.0, 159.0, 160.0, 161.0):
        each = record("error %s", created, created)
        if repeats.filter(each):
            texts.append(each.getMessage())
    assert texts == [
        "error 100.0 (logged once per 60 s)",
        "error 160.0 (2 more of these were suppressed; logged once per 60 s)",
    ]


def test_another_line_is_logged_at_once() -> None:
    repeats = RepeatFilter(60.0)
    assert [repeats.filter(record(text, 1000.0)) for text in "aba"] == [True, True, False]


def test_a_percent_sign_in_what_is_logged_is_none_of_a_format() -> None:
    each = record("error %s", 100.0, "100 %d")
    assert RepeatFilter(60.0).filter(each)
    assert each.getMessage() == "error 100 %d (logged once per 60 s)"


def test_a_clock_that_is_set_back_silences_nothing() -> None:
    repeats = RepeatFilter(60.0)
    assert [repeats.filter(record("a", at)) for at in (1000.0, 500.0)] == [True, True]


@pytest.mark.parametrize("name", [NAME, "opentelemetry.sdk._shared_internal"])
def test_a_later_call_replaces_the_filter(name: str) -> None:
    limit_repeats(60.0)
    limit_repeats(30.0)
    filters = [each for each in logging.getLogger(name).filters if isinstance(each, RepeatFilter)]
    assert len(filters) == 1
    assert filters[0].interval == 30.0


def test_loggers_of_other_exporters_that_are_there_already_have_it_too() -> None:
    logger = logging.getLogger("opentelemetry.exporter.of.another.make")
    limit_repeats(60.0)
    assert any(isinstance(each, RepeatFilter) for each in logger.filters)
