"""The client of EMP 1, for any thread: one connection, requests pipelined over it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import random
from typing import TYPE_CHECKING, Any

from eventmq.errors import BrokerUnavailable
from eventmq.plugins.gateways.emp_1.connection import Patience
from eventmq.plugins.gateways.emp_1.messages import Code, EmpError
from eventmq.plugins.gateways.emp_1.payload import Failure, Result
from eventmq.plugins.gateways.emp_1.runner_peer import Peer
from eventmq.plugins.gateways.runner_async import LoopThread

if TYPE_CHECKING:
    import ssl

    from typing_extensions import Self

    from eventmq.plugins.gateways.emp_1.runner_peer import Handle

__all__ = ["EmpClient", "back_off"]

logger = logging.getLogger(__name__)

#: Seconds to connect and to say hello, unless told.
CONNECT_TIMEOUT = 10.0

#: Seconds to wait for a response, unless told.
CALL_TIMEOUT = 60.0

#: Seconds until the first try to connect again, and the most between two tries.
FIRST, MOST = 0.1, 10.0

#: Seconds that the other side may take to read our goodbye.
GOODBYE = 1.0

#: Seconds that a connection has to last until the next one that ends counts as the first.
STEADY = 10.0

#: Codes of ERROR by which a server says that it is not there for this; the others refuse what was
#: sent, and come from a server that is.
_AWAY = frozenset({Code.INTERNAL, Code.UNAVAILABLE})


def back_off(tries: int) -> float:
    """Return how many seconds to wait before connecting again.

    It doubles up to `MOST`; a part of it is random, lest all clients of a server come at once.

    Args:
        tries: How many have failed before.
    """
    longest = min(MOST, FIRST * 2.0 ** min(tries, 32))
    return random.uniform(longest / 2, longest)


async def _no_operations(*_: object) -> dict[str, Any]:
    raise Failure("unknown_op", "this client has no operations")


class EmpClient:
    """A client of any EMP 1 server. Thread-safe; a ``with`` block connects and closes.

    A connection that ends is made again, in growing intervals of up to 10 seconds. What was asked
    over it fails, since the server may have done it; what is asked meanwhile waits.

    Example::

        with EmpClient("127.0.0.1", 5040) as client:
            print(client.call("shop.add", {"a": 1, "b": 2})["result"])

    Args:
        host: Name or address of the server.
        port: Its port.
        tls: Context for TLS, see `eventmq.plugins.gateways.emp_1.tls.client_context`.
        server_name: Name that the certificate must have, if it is not ``host``.
        timeout: Seconds to connect and shake hands.
        patience: The limits of the connection.
        handle: A coroutine function that answers requests of the server: op and data go in,
            the data of a success come out, or a `Failure` is raised.
    """

    def __init__(
        self,
        host: str,
        port: int = 5040,
        *,
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
        timeout: float = CONNECT_TIMEOUT,
        patience: Patience | None = None,
        handle: Handle = _no_operations,
    ) -> None:
        self._host = host
        self._port = port
        self._tls = tls
        self._server_name = server_name
        self._timeout = timeout
        self._patience = patience or Patience()
        self._handle = handle
        self._thread = LoopThread("emp-client")
        self._peer: Peer | None = None
        #: Set while there is a connection; made in the event loop.
        self._there: asyncio.Event | None = None
        #: What runs the connection, and what makes the next one.
        self._running: asyncio.Task[None] | None = None
        self._keeper: asyncio.Task[None] | None = None
        #: Why there is no connection.
        self._trouble = ""

    @property
    def _where(self) -> str:
        return f"{self._host}:{self._port}"

    def connect(self) -> None:
        """Connect and shake hands.

        Raises:
            BrokerUnavailable: Nobody answers there, or not as TLS or EMP has it.
        """
        self._thread.start()
        try:
            self._thread.run(self._begin())
        except asyncio.TimeoutError:
            self._thread.stop()
            msg = f"{self._where} did not shake hands within {self._timeout:g} s"
            raise BrokerUnavailable(msg) from None
        except (OSError, EmpError) as error:
            self._thread.stop()
            raise BrokerUnavailable(f"cannot talk EMP to {self._where}: {error}") from error

    async def _begin(self) -> None:
        there = asyncio.Event()
        self._running = await self._connect()
        there.set()
        self._there = there
        self._keeper = asyncio.get_running_loop().create_task(self._keep(there, self._running))

    async def _connect(self) -> asyncio.Task[None]:
        """Make a connection; return what runs it."""
        more: dict[str, Any] = {}
        if self._tls is not None:
            name = self._server_name or self._host
            more = {"ssl": self._tls, "server_hostname": name}
        opened = asyncio.open_connection(self._host, self._port, **more)
        reader, writer = await asyncio.wait_for(opened, self._timeout)
        peer = Peer(reader, writer, self._patience, self._handle)
        running = asyncio.get_running_loop().create_task(peer.run())
        try:
            await asyncio.wait_for(peer.greeted.wait(), self._timeout)
            if not peer.connection.ready:
                raise peer.connection.error or ConnectionError("it closed the connection")
        except BaseException:
            running.cancel()
            await asyncio.wait([running])
            raise
        self._peer = peer
        return running

    async def _keep(self, there: asyncio.Event, running: asyncio.Task[None]) -> None:
        """Connect again whenever the connection has ended."""
        now = asyncio.get_running_loop().time
        tries = 0
        while True:
            since = now()
            await running
            there.clear()
            self._note(self._peer)
            tries = 0 if now() - since >= STEADY else tries
            while not there.is_set():
                await asyncio.sleep(back_off(tries))
                tries += 1
                try:
                    running = self._running = await self._connect()
                except (OSError, EmpError, asyncio.TimeoutError) as error:
                    self._trouble = str(error) or "it does not shake hands"
                else:
                    logger.info("connected to %s again", self._where)
                    there.set()

    def _note(self, peer: Peer | None) -> None:
        error = peer.connection.error if peer is not None else None
        self._trouble = str(error or "the connection was closed")
        logger.info("the connection to %s ended: %s", self._where, self._trouble)

    def begin(
        self, op: str, data: dict[str, Any] | None = None
    ) -> concurrent.futures.Future[Result]:
        """Send a request without waiting: its result, success or failure, will be in the future.

        While there is no connection the request waits for the next one; cancel the future to give
        it up.

        Raises:
            BrokerUnavailable: The client is not connected: see `connect`.
        """
        there = self._there
        if there is None or not self._thread.running():
            raise BrokerUnavailable("the client is not connected")
        return self._thread.submit(self._ask(there, op, data))

    async def _ask(self, there: asyncio.Event, op: str, data: dict[str, Any] | None) -> Result:
        while True:
            await there.wait()
            peer = self._peer
            assert peer is not None  # noqa: S101 - there is a connection
            if not peer.connection.closed:
                return await peer.call(op, data)
            there.clear()  # `_keep` will see in a moment that it has ended

    def call(
        self, op: str, data: dict[str, Any] | None = None, *, timeout: float = CALL_TIMEOUT
    ) -> dict[str, Any]:
        """Send a request and return the data of its success.

        Args:
            op: A task or an operation.
            data: What the operation needs.
            timeout: Seconds to wait, also for a connection where there is none.

        Raises:
            Failure: The operation failed; ``code`` and ``description`` say why.
            EmpError: The server, or the client here, refused the request itself.
            BrokerUnavailable: The connection ended, or there was no response in time.
        """
        future = self.begin(op, data)
        try:
            result = future.result(timeout)
        except concurrent.futures.TimeoutError:
            future.cancel()
            msg = f"no response to {op!r} within {timeout:g} s"
            there = self._there
            if there is not None and not there.is_set():
                msg += f": no connection to {self._where}: {self._trouble}"
            raise BrokerUnavailable(msg) from None
        except EmpError as error:
            if error.code not in _AWAY:
                raise
            raise BrokerUnavailable(f"the connection ended: {error}") from error
        except (OSError, concurrent.futures.CancelledError) as error:
            msg = f"the connection ended: {error or 'the client was closed'}"
            raise BrokerUnavailable(msg) from error
        if result.ok:
            return result.data
        raise Failure(result.code, result.description, result.data)

    def close(self) -> None:
        """Say goodbye and close. Idempotent."""
        there, self._there = self._there, None
        if there is not None and self._thread.running():
            self._thread.run(self._end())
        self._thread.stop()

    async def _end(self) -> None:
        peer, running, keeper = self._peer, self._running, self._keeper
        assert peer is not None  # noqa: S101 - it was connected
        assert running is not None  # noqa: S101
        assert keeper is not None  # noqa: S101
        await peer.bye()
        await asyncio.wait([running], timeout=GOODBYE)
        keeper.cancel()

    def __enter__(self) -> Self:
        self.connect()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
