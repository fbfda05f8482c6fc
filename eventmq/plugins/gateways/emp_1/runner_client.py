"""The client of EMP 1, for any thread: one connection, requests pipelined over it."""

from __future__ import annotations

import asyncio
import concurrent.futures
from typing import TYPE_CHECKING, Any

from eventmq.errors import BrokerUnavailable
from eventmq.plugins.gateways.emp_1.connection import Patience
from eventmq.plugins.gateways.emp_1.messages import EmpError
from eventmq.plugins.gateways.emp_1.payload import Failure, Result
from eventmq.plugins.gateways.emp_1.runner_peer import Peer
from eventmq.plugins.gateways.runner_async import LoopThread

if TYPE_CHECKING:
    import ssl

    from typing_extensions import Self

    from eventmq.plugins.gateways.emp_1.runner_peer import Handle

__all__ = ["EmpClient"]

#: Seconds to connect and to say hello, unless told.
CONNECT_TIMEOUT = 10.0

#: Seconds to wait for a response, unless told.
CALL_TIMEOUT = 60.0


async def _no_operations(*_: object) -> dict[str, Any]:
    raise Failure("unknown_op", "this client has no operations")


class EmpClient:
    """A client of any EMP 1 server. Thread-safe; a ``with`` block connects and closes.

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

    def connect(self) -> None:
        """Connect and shake hands.

        Raises:
            BrokerUnavailable: Nobody answers there, or not as TLS or EMP has it.
        """
        self._thread.start()
        where = f"{self._host}:{self._port}"
        try:
            self._thread.run(self._connect())
        except asyncio.TimeoutError:
            self._thread.stop()
            msg = f"{where} did not shake hands within {self._timeout:g} s"
            raise BrokerUnavailable(msg) from None
        except (OSError, EmpError) as error:
            self._thread.stop()
            raise BrokerUnavailable(f"cannot talk EMP to {where}: {error}") from error

    async def _connect(self) -> None:
        more: dict[str, Any] = {}
        if self._tls is not None:
            name = self._server_name or self._host
            more = {"ssl": self._tls, "server_hostname": name}
        opened = asyncio.open_connection(self._host, self._port, **more)
        reader, writer = await asyncio.wait_for(opened, self._timeout)
        peer = self._peer = Peer(reader, writer, self._patience, self._handle)
        self._thread.begin(peer.run())
        await asyncio.wait_for(peer.greeted.wait(), self._timeout)
        if not peer.connection.ready:
            raise peer.connection.error or ConnectionError("it closed the connection")

    def begin(
        self, op: str, data: dict[str, Any] | None = None
    ) -> concurrent.futures.Future[Result]:
        """Send a request without waiting: its result, success or failure, will be in the future.

        Raises:
            BrokerUnavailable: The client is not connected.
        """
        peer = self._peer
        if peer is None or not self._thread.running():
            raise BrokerUnavailable("the client is not connected")
        return self._thread.submit(peer.call(op, data))

    def call(
        self, op: str, data: dict[str, Any] | None = None, *, timeout: float = CALL_TIMEOUT
    ) -> dict[str, Any]:
        """Send a request and return the data of its success.

        Args:
            op: A task or an operation.
            data: What the operation needs.
            timeout: Seconds to wait.

        Raises:
            Failure: The operation failed; ``code`` and ``description`` say why.
            BrokerUnavailable: The connection ended, or there was no response in time.
        """
        future = self.begin(op, data)
        try:
            result = future.result(timeout)
        except concurrent.futures.TimeoutError:
            raise BrokerUnavailable(f"no response to {op!r} within {timeout:g} s") from None
        except (EmpError, OSError) as error:
            raise BrokerUnavailable(f"the connection ended: {error}") from error
        if result.ok:
            return result.data
        raise Failure(result.code, result.description, result.data)

    def close(self) -> None:
        """Say goodbye and close. Idempotent."""
        peer, self._peer = self._peer, None
        if peer is not None and self._thread.running():
            self._thread.run(peer.bye())
        self._thread.stop(1.0)

    def __enter__(self) -> Self:
        self.connect()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
