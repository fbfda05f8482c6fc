"""EMP 1 over TCP and TLS: one side of a connection in an event loop, and a thread-safe client."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import random
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from eventmq.errors import BrokerUnavailable, PluginError
from eventmq.gateway import LoopThread
from eventmq_contrib.gateways.emp.protocol import (
    EmpConnection,
    EmpError,
    EmpErrorCode,
    EmpFailure,
    EmpLimits,
    EmpResult,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from typing_extensions import Self

    RequestHandler = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]

__all__ = ["EmpClient", "EmpPeer", "back_off", "client_context", "server_context"]


logger = logging.getLogger(__name__)

#: Maximum bytes of one read.
_CHUNK = 65_536

#: Seconds within which the other side must read sent bytes, or the connection is closed.
WRITE_TIMEOUT = 30.0

#: Seconds for sending the last bytes.
CLOSE_TIMEOUT = 2.0


class EmpPeer:
    """One side of one connection, in an event loop.

    Args:
        reader: Reader of the stream.
        writer: Writer of the stream.
        limits: Limits of the connection.
        handle: Called with op and data of each request; returns the data of a success.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        limits: EmpLimits,
        handle: RequestHandler,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._handle = handle
        self._now = asyncio.get_running_loop().time
        self._requested = asyncio.Event()
        self._response_sent = asyncio.Event()
        self._draining = asyncio.Lock()
        self._waiting: dict[int, asyncio.Future[EmpResult]] = {}
        #: Set when both sides have sent HELLO, or the connection has ended.
        self.greeted = asyncio.Event()
        self.connection = EmpConnection(limits, self._now())

    # The life of a connection

    async def run(self) -> None:
        """Serve until either side ends the connection. Raises only `asyncio.CancelledError`."""
        tasks = [asyncio.ensure_future(part) for part in (self._read(), self._tick(), self._work())]
        try:
            await self._flush()
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        except (OSError, EOFError, asyncio.TimeoutError):
            pass  # closed before its start
        finally:
            for task in tasks:
                task.cancel()
            for error in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(error, Exception) and not isinstance(error, OSError):
                    logger.debug("a connection ended by %r", error)
            await self._close()

    def abort(self) -> None:
        """Cut the connection."""
        self._writer.transport.abort()

    async def _read(self) -> None:
        connection = self.connection
        while not connection.closed:
            while connection.full:
                self._response_sent.clear()
                await self._response_sent.wait()
            data = await self._reader.read(_CHUNK)
            if not data:
                return
            connection.receive(data, self._now())
            self._dispatch_responses()
            await self._flush()

    def _dispatch_responses(self) -> None:
        """Resolve the futures of received responses, and wake waiting coroutines."""
        connection = self.connection
        if connection.ready:
            self.greeted.set()
        if connection.requests:
            self._requested.set()
        while connection.responses:
            id, result = connection.responses.popleft()
            future = self._waiting.pop(id, None)
            if future is not None and not future.done():
                future.set_result(result)

    async def _tick(self) -> None:
        connection = self.connection
        with suppress(asyncio.TimeoutError):  # the deadline changes at HELLO
            await asyncio.wait_for(self.greeted.wait(), connection.wait(self._now()))
        while not connection.closed:
            await asyncio.sleep(max(0.01, connection.wait(self._now())))
            connection.tick(self._now())
            await self._flush()

    async def _work(self) -> None:
        """Answer requests one by one."""
        connection = self.connection
        while True:
            while not connection.requests and not connection.closed:
                self._requested.clear()
                await self._requested.wait()
            if connection.closed:
                return
            id, operation = connection.requests.popleft()
            connection.respond(id, await self._answer(*operation))
            self._response_sent.set()
            await self._flush()

    async def _answer(self, op: str, data: dict[str, Any]) -> EmpResult:
        try:
            return EmpResult(True, await self._handle(op, data))  # noqa: FBT003 - a tuple
        except EmpFailure as failure:
            code = failure.code or "failed"
            return EmpResult(False, failure.data, code, failure.description)  # noqa: FBT003
        except Exception:
            logger.exception("an operation failed by an error of the gateway")
            msg = "the operation failed inside the gateway; see its log"
            return EmpResult(False, {}, "internal_error", msg)  # noqa: FBT003

    async def _flush(self) -> None:
        data = self.connection.take_output()
        if data:
            self._writer.write(data)
            async with self._draining:  # early releases of Python 3.10 allow only one waiter
                await asyncio.wait_for(self._writer.drain(), WRITE_TIMEOUT)

    async def _close(self) -> None:
        connection = self.connection
        error = connection.error or EmpError(EmpErrorCode.UNAVAILABLE, "the connection was closed")
        connection.closed = True
        self.greeted.set()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)
        with suppress(OSError, asyncio.TimeoutError, asyncio.CancelledError, RuntimeError):
            await asyncio.wait_for(self._send_rest(), CLOSE_TIMEOUT)
        self.abort()

    async def _send_rest(self) -> None:
        """Send the rest, and let the other side read it before the connection is closed."""
        self._writer.write(self.connection.take_output())
        await self._writer.drain()
        if self._writer.can_write_eof():
            self._writer.write_eof()
            while await self._reader.read(_CHUNK):
                continue
        else:
            self._writer.close()
            await self._writer.wait_closed()

    # Sent requests

    async def call(self, op: str, data: dict[str, Any] | None) -> EmpResult:
        """Send a request and return the result.

        Raises:
            EmpError: The connection is closed, or ended before the response.
        """
        await self.greeted.wait()
        id = self.connection.request(op, data)
        future = asyncio.get_running_loop().create_future()
        self._waiting[id] = future
        try:
            await self._flush()
            return await future  # type: ignore[no-any-return]
        finally:
            self._waiting.pop(id, None)

    async def bye(self, grace: float = 0.0) -> None:
        """Let open requests end within ``grace`` seconds, then send BYE; `run` then ends."""
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._idle(), grace)
        self.connection.bye()
        self._requested.set()
        with suppress(OSError, asyncio.TimeoutError):
            await self._flush()

    async def _idle(self) -> None:
        while self.connection.pending and not self.connection.closed:
            self._response_sent.clear()
            await self._response_sent.wait()


#: Default of seconds to connect and to shake hands.
CONNECT_TIMEOUT = 10.0

#: Default of seconds to wait for a response.
CALL_TIMEOUT = 60.0

#: Seconds until the first attempt to reconnect, and maximum between two attempts.
MIN_BACKOFF, MAX_BACKOFF = 0.1, 10.0

#: Seconds within which the other side may read BYE.
GOODBYE_TIMEOUT = 1.0

#: Seconds after which a connection is stable: the back-off is reset.
STABLE_AFTER = 10.0

#: Codes of ERROR that mean that the server is unavailable; the others refuse a message.
_UNAVAILABLE = frozenset({EmpErrorCode.INTERNAL, EmpErrorCode.UNAVAILABLE})


def back_off(tries: int) -> float:
    """Return how many seconds to wait before connecting again.

    The time doubles up to `MAX_BACKOFF`, and half of it is random, so that clients do not connect
    all at once.

    Args:
        tries: Number of failed attempts.
    """
    limit = min(MAX_BACKOFF, MIN_BACKOFF * 2.0 ** min(tries, 32))
    return random.uniform(limit / 2, limit)


async def _no_operations(*_: object) -> dict[str, Any]:
    raise EmpFailure("unknown_op", "this client has no operations")


class EmpClient:
    """A client of any EMP 1 server. Thread-safe; a ``with`` block connects and closes.

    It reconnects when its connection ends, at growing intervals of up to 10 seconds. Open requests
    fail then, since the server may have executed them; later requests wait for the next connection.

    Example::

        with EmpClient("127.0.0.1", 5040) as client:
            print(client.call("shop.add", {"a": 1, "b": 2})["result"])

    Args:
        host: Name or address of the server.
        port: Port of the server.
        tls: Context for TLS, see `eventmq_contrib.gateways.emp.client.client_context`.
        server_name: Name in the certificate, if it differs from ``host``.
        timeout: Seconds to connect and shake hands.
        limits: The limits of the connection.
        handle: Coroutine function that answers requests of the server: it receives op and data, and
            returns the data of a success or raises `EmpFailure`.
    """

    def __init__(
        self,
        host: str,
        port: int = 5040,
        *,
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
        timeout: float = CONNECT_TIMEOUT,
        limits: EmpLimits | None = None,
        handle: RequestHandler = _no_operations,
    ) -> None:
        self._host = host
        self._port = port
        self._tls = tls
        self._server_name = server_name
        self._timeout = timeout
        self._limits = limits or EmpLimits()
        self._handle = handle
        self._thread = LoopThread("emp-client")
        self._peer: EmpPeer | None = None
        #: Set while there is a connection; made in the event loop.
        self._connected: asyncio.Event | None = None
        #: Task that runs the connection and reconnects.
        self._running: asyncio.Task[None] | None = None
        self._reconnecting: asyncio.Task[None] | None = None
        #: Reason why there is no connection.
        self._failure = ""

    @property
    def _address(self) -> str:
        return f"{self._host}:{self._port}"

    def connect(self) -> None:
        """Connect and shake hands.

        Raises:
            BrokerUnavailable: The server does not answer, or not with TLS or EMP.
        """
        self._thread.start()
        try:
            self._thread.run(self._start())
        except asyncio.TimeoutError:
            self._thread.stop()
            raise BrokerUnavailable(
                f"{self._address} did not complete the handshake within {self._timeout:g} s"
            ) from None
        except (OSError, EmpError) as error:
            self._thread.stop()
            raise BrokerUnavailable(f"cannot talk EMP to {self._address}: {error}") from error

    async def _start(self) -> None:
        connected = asyncio.Event()
        self._running = await self._connect()
        connected.set()
        self._connected = connected
        self._reconnecting = asyncio.get_running_loop().create_task(
            self._reconnect(connected, self._running)
        )

    async def _connect(self) -> asyncio.Task[None]:
        """Connect; return the task that runs the connection."""
        more: dict[str, Any] = {}
        if self._tls is not None:
            more = {"ssl": self._tls, "server_hostname": self._server_name or self._host}
        opened = asyncio.open_connection(self._host, self._port, **more)
        reader, writer = await asyncio.wait_for(opened, self._timeout)
        peer = EmpPeer(reader, writer, self._limits, self._handle)
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

    async def _reconnect(self, connected: asyncio.Event, running: asyncio.Task[None]) -> None:
        """Connect again whenever the connection has ended."""
        now = asyncio.get_running_loop().time
        tries = 0
        while True:
            since = now()
            await running
            connected.clear()
            self._log_end(self._peer)
            tries = 0 if now() - since >= STABLE_AFTER else tries
            while not connected.is_set():
                await asyncio.sleep(back_off(tries))
                tries += 1
                try:
                    running = self._running = await self._connect()
                except (OSError, EmpError, asyncio.TimeoutError) as error:
                    self._failure = str(error) or "it does not shake hands"
                else:
                    logger.info("connected to %s again", self._address)
                    connected.set()

    def _log_end(self, peer: EmpPeer | None) -> None:
        error = peer.connection.error if peer is not None else None
        self._failure = str(error or "the connection was closed")
        logger.info("the connection to %s ended: %s", self._address, self._failure)

    def begin(
        self, op: str, data: dict[str, Any] | None = None
    ) -> concurrent.futures.Future[EmpResult]:
        """Send a request without waiting; the future gets its result, success or failure.

        While there is no connection the request waits for the next one; cancel the future to
        withdraw it.

        Raises:
            BrokerUnavailable: The client is not connected: see `connect`.
        """
        connected = self._connected
        if connected is None or not self._thread.running():
            raise BrokerUnavailable("the client is not connected")
        return self._thread.submit(self._send_request(connected, op, data))

    async def _send_request(
        self, connected: asyncio.Event, op: str, data: dict[str, Any] | None
    ) -> EmpResult:
        while True:
            await connected.wait()
            peer = self._peer
            assert peer is not None  # noqa: S101 - there is a connection
            if not peer.connection.closed:
                return await peer.call(op, data)
            connected.clear()  # `_reconnect` notices the end later

    def call(
        self, op: str, data: dict[str, Any] | None = None, *, timeout: float = CALL_TIMEOUT
    ) -> dict[str, Any]:
        """Send a request and return the data of its success.

        Args:
            op: A task or an operation.
            data: Arguments of the operation.
            timeout: Seconds to wait for the response, including the wait for a connection.

        Raises:
            EmpFailure: The operation failed; see ``code`` and ``description``.
            EmpError: The server or this client refused the request.
            BrokerUnavailable: The connection ended, or there was no response in time.
        """
        future = self.begin(op, data)
        try:
            result = future.result(timeout)
        except concurrent.futures.TimeoutError:
            future.cancel()
            msg = f"no response to {op!r} within {timeout:g} s"
            connected = self._connected
            if connected is not None and not connected.is_set():
                msg += f": no connection to {self._address}: {self._failure}"
            raise BrokerUnavailable(msg) from None
        except EmpError as error:
            if error.code not in _UNAVAILABLE:
                raise
            raise BrokerUnavailable(f"the connection ended: {error}") from error
        except (OSError, concurrent.futures.CancelledError) as error:
            raise BrokerUnavailable(
                f"the connection ended: {error or 'the client was closed'}"
            ) from error
        if result.ok:
            return result.data
        raise EmpFailure(result.code, result.description, result.data)

    def close(self) -> None:
        """Send BYE and close. Idempotent."""
        connected, self._connected = self._connected, None
        if connected is not None and self._thread.running():
            self._thread.run(self._end())
        self._thread.stop()

    async def _end(self) -> None:
        peer, running, reconnecting = self._peer, self._running, self._reconnecting
        assert peer is not None  # noqa: S101 - it was connected
        assert running is not None  # noqa: S101
        assert reconnecting is not None  # noqa: S101
        await peer.bye()
        await asyncio.wait([running], timeout=GOODBYE_TIMEOUT)
        reconnecting.cancel()

    def __enter__(self) -> Self:
        self.connect()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def server_context(cert: str, key: str, ca: str) -> ssl.SSLContext | None:
    """Return the context of a server, None without a certificate.

    Args:
        cert: File with the certificate, and with the key if ``key`` is "".
        key: File with the key.
        ca: File with the authority of the clients' certificates; "" if clients need none.

    Raises:
        PluginError: A file cannot be used.
    """
    if not cert:
        if key or ca:
            raise PluginError("tls_key and tls_ca need tls_cert, the server's certificate")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_own(context, cert, key)
    if ca:
        _load_authority(context, ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(*, ca: str = "", cert: str = "", key: str = "") -> ssl.SSLContext:
    """Return the context of a client, which checks the server's certificate and name.

    Args:
        ca: File with the authority; by default those of the system.
        cert: File with the client's certificate, if the server requires one.
        key: File with the key of the certificate.

    Raises:
        PluginError: A file cannot be used.
    """
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if ca:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        _load_authority(context, ca)
    if cert:
        _load_own(context, cert, key)
    return context


def _load_own(context: ssl.SSLContext, cert: str, key: str) -> None:
    try:
        context.load_cert_chain(cert, key or None)
    except (OSError, ssl.SSLError) as error:
        named = f"{cert!r} with the key {key!r}" if key else f"{cert!r}"
        raise PluginError(f"the certificate {named} cannot be used: {error}") from error


def _load_authority(context: ssl.SSLContext, ca: str) -> None:
    try:
        context.load_verify_locations(ca)
    except (OSError, ssl.SSLError) as error:
        raise PluginError(f"the authority {ca!r} cannot be used: {error}") from error
