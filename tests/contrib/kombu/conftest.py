"""A broker process, and the transport and the result backend on it."""

from __future__ import annotations

import pytest

celery = pytest.importorskip("celery", reason="needs celery: pip install celery")

from kombu import Connection  # noqa: E402

import eventmq_contrib.kombu  # noqa: E402, F401 - for the scheme
from eventmq_contrib.kombu import apps  # noqa: E402
from tests.support.system import System  # noqa: E402


@pytest.fixture(scope="module")
def system(tmp_path_factory):
    """A folder with a broker; its worker processes end with it."""
    system = System(tmp_path_factory.mktemp("system"))
    system.broker()
    yield system
    while apps._apps:  # which last as long as the process
        apps._apps.popitem()[1].close()
    system.stop()


@pytest.fixture(scope="module")
def url(system):
    return system.address.replace("tcp://", "eventmq://")


@pytest.fixture
def connection(url):
    with Connection(url) as connection:
        yield connection
