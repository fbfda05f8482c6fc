"""The pytest plugin: fixtures that run the tasks of an app inside a test.

pytest finds it through an entry point when EventMQ is installed. It imports only pytest until a
test uses a fixture.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from eventmq.app import EventMQ
    from eventmq.testing.inline import InlineApp

__all__ = ["eventmq_app", "eventmq_use", "pytest_addoption"]

_INI = "eventmq_app"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the ini option."""
    parser.addini(_INI, "The app of the fixture eventmq_app: as module:attribute.")


@pytest.fixture
def eventmq_use() -> Iterator[Callable[[EventMQ], InlineApp]]:
    """Return a function that runs an app inline until the end of the test."""
    from eventmq.testing.inline import use_app

    with ExitStack() as stack:
        yield lambda app: stack.enter_context(use_app(app))


@pytest.fixture
def eventmq_app(
    request: pytest.FixtureRequest, eventmq_use: Callable[[EventMQ], InlineApp]
) -> Iterator[InlineApp]:
    """Run the app of the ini option ``eventmq_app``, or otherwise a new one, inline."""
    from eventmq.app import EventMQ, load_app

    path = str(request.config.getini(_INI) or "")
    if path:
        yield eventmq_use(load_app(path))
        return
    with EventMQ("test") as app:
        yield eventmq_use(app)
