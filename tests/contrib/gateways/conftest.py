"""An app in one process for gateways that need no broker elsewhere, and gateways of it."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import zmq

from eventmq.app import EventMQ
from eventmq.registry.names import GATEWAY
from tests.contrib.gateways.farm import Farm
from tests.contrib.gateways.raw_dealer import RawDealer
from tests.support.shared_brokers import Shop


@pytest.fixture
def app():
    """An app with a broker and a worker in this process, and some tasks."""
    with EventMQ("gateways", broker="memory://") as app:

        @app.task(name="add")
        def add(a, b):
            return a + b

        @app.task(name="fail")
        def fail(text="no"):
            raise ValueError(text)

        @app.task(name="odd")
        def odd():
            return {1, 2}

        @app.task(name="data")
        def data():
            return [b"text", b"\xff"]

        yield app


@pytest.fixture
def start(app):
    """Call it with a name and options to get the addresses of a running gateway."""
    with ExitStack() as stack:

        def start(name, **options):
            gateway = app.plugins.make(GATEWAY, name, options=options)
            stack.callback(gateway.stop, 1.0)
            return [address.rpartition("/")[2] for address in gateway.start()]

        yield start


@pytest.fixture
def context():
    context = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture
def dealer(context):
    """Call it with an address, and perhaps an identity and CURVE keys, to get a raw peer."""
    made = []

    def make(address, identity=b"", keys=None, **more):
        made.append(RawDealer(context, address, identity, keys, **more))
        return made[-1]

    yield make
    for peer in made:
        peer.close()


@pytest.fixture
def farm():
    with ExitStack() as stack:
        yield Farm(stack)


@pytest.fixture
def shop():
    """Brokers that share a store, and apps of theirs."""
    shop = Shop()
    yield shop
    shop.close()
