"""A shop for the page of ``eventmq top``, and Textual's own driver of the page."""

from __future__ import annotations

import asyncio
import importlib.util
from typing import TYPE_CHECKING, Any

import pytest

from tests.contrib.top.driving import Page, Shop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from eventmq import EventMQ


@pytest.fixture(autouse=True)
def textual() -> None:
    """Skip the tests where the library is missing."""
    if importlib.util.find_spec("textual") is None:
        pytest.skip("needs textual: pip install '.[top]'")


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path / "shop")
    yield shop
    shop.close()


@pytest.fixture
def drive() -> Iterator[Callable[..., None]]:
    """Call it with a page, or clients by name, and a coroutine function that uses the page."""
    apps: list[EventMQ] = []

    def drive(
        clients: dict[str, EventMQ], story: Any, size: tuple[int, int] = (80, 24), **more: Any
    ) -> None:
        from eventmq_contrib.top.page import Broker, Top

        apps.extend(clients.values())
        top = Top([Broker(name, app) for name, app in clients.items()], **more)

        async def run() -> None:
            async with top.run_test(size=size) as pilot:
                await story(Page(pilot))

        asyncio.run(run())

    yield drive
    for app in apps:
        app.close()
