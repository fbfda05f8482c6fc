"""Words of Celery in the errors of those who use them."""

from __future__ import annotations

import copy
import re
from dataclasses import fields
from typing import Any

import pytest

from eventmq import EventMQ, Job, JobGroup, Signature, chain, chord, group, hints, shared_task
from eventmq.client.handle import JobOrigin
from eventmq.errors import SettingsError
from eventmq.settings.record import FIELDS
from eventmq.task import CallOptions, Task, TaskOptions

app = EventMQ("hints")


@app.task
def add(a: int, b: int) -> int:
    return a + b


def job() -> Job[Any]:
    return Job("an-id", app.components.client.results, JobOrigin())


@pytest.mark.parametrize("declare", [app.task, shared_task])
@pytest.mark.parametrize("word", hints.TASK_OPTIONS)
def test_an_option_of_a_task_in_celerys_word_says_ours(declare: Any, word: str) -> None:
    with pytest.raises(SettingsError) as caught:
        declare(**{word: True})
    assert str(caught.value) == f"a task takes no argument {word!r}; {hints.TASK_OPTIONS[word]}"


@pytest.mark.parametrize("word", hints.CALL_OPTIONS)
def test_an_option_of_a_call_in_celerys_word_says_ours(word: str) -> None:
    message = f"a call takes no argument {word!r}; {hints.CALL_OPTIONS[word]}"
    for call in (
        lambda: add.apply_async((1, 2), **{word: "x"}),
        lambda: add.options(**{word: "x"}),
        lambda: app.send("hints.add", (1, 2), **{word: "x"}),
    ):
        with pytest.raises(SettingsError) as caught:
            call()
        assert str(caught.value) == message


def test_another_unknown_option_of_apply_async_gets_the_nearest_one() -> None:
    with pytest.raises(SettingsError, match=r"takes no argument 'countdwn'; did you mean 'count"):
        add.apply_async((1, 2), countdwn=5)  # type: ignore[arg-type]


@pytest.mark.parametrize("word", hints.SETTINGS)
def test_a_setting_in_celerys_word_says_ours(word: str) -> None:
    with pytest.raises(SettingsError) as caught:
        EventMQ("shop", **{word: {"shop.*": "mail"}})
    message = f"unknown setting {word!r} from argument; {hints.SETTINGS[word]}"
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("owner", "words"),
    [
        (app, hints.APP),
        (add, hints.TASK),
        (job(), hints.JOB),
        (add.s(1, 2), hints.EXPRESSION),
        (chord([add.s(1, 2)], add.s(3)), hints.EXPRESSION),
        (JobGroup([], []), hints.GROUP),
    ],
    ids=["app", "task", "job", "signature", "chord", "group"],
)
def test_an_attribute_in_celerys_word_says_ours(owner: Any, words: dict[str, str]) -> None:
    kind = type(owner).__name__
    for word, hint in words.items():
        with pytest.raises(AttributeError) as caught:
            getattr(owner, word)
        assert str(caught.value) == f"{kind!r} object has no attribute {word!r}; {hint}"
        assert (caught.value.name, caught.value.obj) == (word, owner)
    with pytest.raises(AttributeError) as caught:
        owner.zzz  # noqa: B018 - it raises
    assert str(caught.value) == f"{kind!r} object has no attribute 'zzz'"
    assert not hasattr(owner, "zzz")


def test_what_is_there_is_no_word_of_celerys_only() -> None:
    assert hints.TASK_OPTIONS.keys().isdisjoint(field.name for field in fields(TaskOptions))
    assert hints.CALL_OPTIONS.keys().isdisjoint(field.name for field in fields(CallOptions))
    assert hints.SETTINGS.keys().isdisjoint(FIELDS)
    for kind, words in (
        (EventMQ, hints.APP), (Task, hints.TASK), (Job, hints.JOB),
        (Signature, hints.EXPRESSION), (JobGroup, hints.GROUP),
    ):  # fmt: skip
        assert [] == [word for word in words if hasattr(kind, word)]


def test_what_hints_name_is_there() -> None:
    texts = [
        *hints.TASK_OPTIONS.values(), *hints.CALL_OPTIONS.values(), *hints.SETTINGS.values()
    ]  # fmt: skip
    named = {
        match[1] for text in texts for match in [re.match(r"it is called (\w+)", text)] if match
    }
    known = {field.name for kind in (TaskOptions, CallOptions) for field in fields(kind)}
    assert named <= known | FIELDS.keys()
    for text in (
        *hints.APP.values(), *hints.TASK.values(), *hints.JOB.values(), *hints.GROUP.values(),
        *hints.EXPRESSION.values(),
    ):  # fmt: skip
        for name in re.findall(r"\bapp\.(\w+)", text):
            assert hasattr(EventMQ, name), text
        for name in re.findall(r"write task\.(\w+)", text):
            assert hasattr(Task, name), text
        for name in re.findall(r"write job\.(\w+)", text):
            assert hasattr(Job, name), text
        for name in re.findall(r"\bgroup\.(\w+)", text):
            assert hasattr(JobGroup, name), text


def test_a_canvas_is_submitted_by_delay() -> None:
    for canvas in (chain(add.s(1, 2), add.s(3)), group(add.s(1, 2)), add.s(1, 2)):
        with pytest.raises(TypeError, match=r"write \.delay\(\)"):
            canvas()  # type: ignore[operator]
    with pytest.raises(TypeError, match=r"write chord\(members, callback\)"):
        chord([add.s(1, 2)])(add.s(3))  # type: ignore[operator]


def test_a_call_of_celery_before_one_of_eventmq_says_what_to_write() -> None:
    with pytest.raises(TypeError, match=r"app\.signature\(name, args="):
        object() | add.s(3)  # type: ignore[operator]
    with pytest.raises(TypeError, match=r"app\.signature\(name, args="):
        add.s(3) | object()
    with pytest.raises(TypeError, match=r"app\.signature\(name, args="):
        hash(add.s(3))


def test_an_error_of_a_property_is_not_taken_for_a_missing_attribute() -> None:
    class Shop(EventMQ):
        @property
        def broken(self) -> str:
            return "".no_such_method()  # type: ignore[attr-defined, no-any-return]

    with pytest.raises(AttributeError, match="no_such_method"):
        Shop("shop").broken  # noqa: B018 - it raises


def test_a_task_can_still_be_copied() -> None:
    assert copy.copy(add) is add
    call = add.s(1, 2)
    assert copy.copy(call) == call
