"""What type checkers know of tasks and jobs; checked by mypy and pyright, never run."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from eventmq import EventMQ, Job, exponential, shared_task

if TYPE_CHECKING:
    from typing_extensions import assert_type  # noqa: TC004 - nothing here is ever run

app = EventMQ("shop", broker="memory://")


@app.task
def send(to: str, *, subject: str) -> int:
    return len(to + subject)


@app.task(queue="fast", retries=3, retry_policy=exponential(base=2.0), retry_on=(KeyError,))
def lookup(key: str, default: bytes = b"") -> bytes:
    return key.encode() or default


@app.task
async def fetch(url: str) -> list[str]:
    return [url]


@app.task(priority=5)
async def fetch_one(url: str) -> str:
    return url


@app.task
def count(to: int) -> Generator[int, None, str]:
    yield from range(to)
    return "done"


@shared_task
def shared(n: int) -> float:
    return n / 2


@shared_task(queue="slow")
async def shared_async(n: int) -> float:
    return n / 2


def calls() -> None:
    assert_type(send("a", subject="b"), int)
    assert_type(lookup("a"), bytes)
    assert_type(count(3), Generator[Any, Any, str])
    assert_type(shared(1), float)


def submissions() -> None:
    assert_type(send.delay("a", subject="b"), Job[int])
    assert_type(send.delay("a", subject="b").get(timeout=5), int)
    assert_type(send.call("a", subject="b"), int)
    assert_type(send.call("a", subject="b", timeout=5), int)
    assert_type(send.options(queue="q").call("a", subject="b", timeout=None), int)
    assert_type(fetch.call("a"), list[str])
    assert_type(count.call(3, timeout=2.5), str)
    assert_type(shared.call(1), float)
    assert_type(lookup.delay("a", b"x"), Job[bytes])
    assert_type(lookup.options(queue="q", countdown=5).delay("a"), Job[bytes])
    assert_type(fetch.delay("a"), Job[list[str]])
    assert_type(fetch.options(priority=1).delay("a").get(), list[str])
    assert_type(fetch_one.delay("a"), Job[str])
    assert_type(count.delay(3), Job[str])
    assert_type(shared.delay(1), Job[float])
    assert_type(shared_async.delay(1), Job[float])
    assert_type(send.map([("a",)], subject="b"), list[Job[int]])
    assert_type(send.apply_async(("a",), {"subject": "b"}, queue="q"), Job[int])


async def coroutines() -> None:
    assert_type(await send.adelay("a", subject="b"), Job[int])
    assert_type(await (await fetch.adelay("a")).aget(), list[str])
    assert_type(await fetch.options(queue="q").adelay("a"), Job[list[str]])
    assert_type(await send.acall("a", subject="b"), int)
    assert_type(await fetch.options(queue="q").acall("a", timeout=1.0), list[str])
    assert_type(await fetch("a"), list[str])
    assert_type(await send.amap([("a",)], subject="b"), list[Job[int]])


def mistakes() -> None:
    send.delay("a")  # type: ignore[call-arg]
    send.delay(1, subject="b")  # type: ignore[arg-type]
    send.delay("a", subject="b", other=1)  # type: ignore[call-arg]
    send.call("a")  # type: ignore[call-overload]
    send.call(1, subject="b")  # type: ignore[call-overload]
    send.call("a", subject="b", timeout="soon")  # type: ignore[call-overload]
    lookup.options(queue="q").delay(5)  # type: ignore[arg-type]
    lookup.options(queue="q").call(5)  # type: ignore[call-overload]
    lookup.options(quque="q")  # type: ignore[call-arg]
    fetch.delay(5)  # type: ignore[arg-type]
    app.task(retries="many")  # type: ignore[call-overload]
