"""Fixtures with PostgreSQL: import them in the conftest of a folder.

``postgres`` is the server that all tests of the process share; ``database_url`` an empty database
of it. Without a server they skip the test, and fail it where EVENTMQ_TEST_REQUIRE names
``postgresql``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.postgres import Unavailable, close_shared_server, shared_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.postgres import Server

__all__ = ["database_url", "postgres"]


@pytest.fixture(scope="session")
def postgres(request: pytest.FixtureRequest) -> Server:
    """The server of this process; a test that stops or changes it must restore it."""
    try:
        server = shared_server()
    except Unavailable as error:
        pytest.skip(str(error))
    # Not at the end of the fixture: each folder that imports it has one.
    request.config.add_cleanup(close_shared_server)
    return server


@pytest.fixture
def database_url(postgres: Server) -> Iterator[str]:
    """The URL of an empty database."""
    with postgres.database() as url:
        yield url
