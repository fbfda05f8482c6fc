"""The server of EMP 1: accepts connections over TCP or TLS and runs an `EmpPeer` on each."""

from __future__ import annotations

import asyncio
import logging
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eventmq.errors import BindError
from eventmq.gateway import LoopThread, check_reach, close_server, split_address
from eventmq.sdk import option
from eventmq_contrib.gateways.emp.client import EmpPeer
from eventmq_contrib.gateways.emp.connection import EmpLimits
from eventmq_contrib.gateways.emp.protocol import EmpError, EmpErrorCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventmq_contrib.gateways.emp.client import RequestHandler

__all__ = ["EmpGateway", "EmpOptions"]

logger = logging.getLogger(__name__)

#: Seconds of a TLS handshake.
HANDSHAKE_TIMEOUT = 10.0

#: Seconds at the end for the last messages to be read.
GOODBYE_TIMEOUT = 2.5


@dataclass(frozen=True, slots=True, kw_only=True)
class EmpOptions:
    """Options of the gateway. Times are seconds.

    Attributes:
        bind: ``tcp://host:port``.
        insecure: Other machines may reach the address, without encryption.
        tls_cert: File of the certificate, in PEM; "" for no TLS.
        tls_key: File of its key, where that is another one.
        tls_ca: File of the authority of clients; "" for any client.
        timeout: How long a request waits for its job.
        max_frame: Most bytes of one message.
        max_peers: Number of connections.
        max_pending: Open requests of one connection.
        ping_interval: Between two pings.
        ping_timeout: Until the pong.
    """

    bind: str = "tcp://127.0.0.1:5040"
    insecure: bool = False
    tls_cert: str = ""
    tls_key: str = ""
    tls_ca: str = ""
    timeout: float = option(60.0, gt=0)
    max_frame: int = option(16 * 1024 * 1024, gt=0)
    max_peers: int = option(1000, gt=0)
    max_pending: int = option(100, gt=0)
    ping_interval: float = option(30.0, gt=0)
    ping_timeout: float = option(10.0, gt=0)


class EmpGateway:
    """A `eventmq.interfaces.Gateway`.

    Args:
        options: Address and limits.
        tls: Context of TLS, or None.
        handle: Coroutine function that runs operations.
    """

    def __init__(
        self, options: EmpOptions, tls: ssl.SSLContext | None, handle: RequestHandler
    ) -> None:
        self._options = options
        self._tls = tls
        self._limits = EmpLimits(
            max_frame=options.max_frame,
            max_pending=options.max_pending,
            ping_interval=options.ping_interval,
            ping_timeout=options.ping_timeout,
        )
        self._handle = handle
        self._thread = LoopThread("eventmq-gateway-emp")
        self._server: asyncio.Server | None = None
        self._ending = False
        self._peers: dict[EmpPeer, asyncio.Task[Any]] = {}

    def start(self) -> Sequence[str]:
        """Bind and serve; return the real address."""
        options = self._options
        host, port = split_address(options.bind)
        checked = self._tls is not None and self._tls.verify_mode == ssl.CERT_REQUIRED
        if not checked:
            instead = "use TLS with --tls-cert and --tls-ca"
            check_reach(options.bind, insecure=options.insecure, protected=instead)
        self._thread.start()
        try:
            return [self._thread.run(self._listen(host, port))]
        except OSError as error:
            self._thread.stop()
            reason = error.strerror or error
            raise BindError(f"cannot bind {options.bind}: {reason}") from error

    async def _listen(self, host: str, port: int) -> str:
        tls = self._tls
        more: dict[str, Any] = {}
        if tls is not None:
            more = {"ssl": tls, "ssl_handshake_timeout": HANDSHAKE_TIMEOUT}
        self._server = await asyncio.start_server(self._accept, host, port, backlog=512, **more)
        real_host, real_port = self._server.sockets[0].getsockname()[:2]
        shown = f"[{real_host}]" if ":" in real_host else real_host
        return f"{'tls' if tls else 'tcp'}://{shown}:{real_port}"

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = EmpPeer(reader, writer, self._limits, self._handle)
        if self._ending:
            peer.abort()
            return
        if len(self._peers) >= self._options.max_peers:
            limit = self._options.max_peers
            peer.connection.fail(
                EmpError(EmpErrorCode.UNAVAILABLE, f"there are {limit} connections")
            )
        self._peers[peer] = asyncio.ensure_future(self._serve(peer))

    async def _serve(self, peer: EmpPeer) -> None:
        try:
            await peer.run()
            if peer.connection.error is not None:
                logger.info("a connection ended: %s", peer.connection.error)
        finally:
            self._peers.pop(peer, None)

    def running(self) -> bool:
        """Return whether it serves."""
        return self._server is not None and self._thread.running()

    def stop(self, grace: float) -> None:
        """Stop accepting, let open requests end within the grace, send BYE. Idempotent."""
        if self._thread.running():
            self._thread.run(self._end(grace))
            self._thread.stop()
        self._server = None

    async def _end(self, grace: float) -> None:
        if self._server is not None:
            await close_server(self._server)
        self._ending = True
        tasks = list(self._peers.values())
        await asyncio.gather(*(peer.bye(grace) for peer in list(self._peers)))
        if tasks:
            await asyncio.wait(tasks, timeout=GOODBYE_TIMEOUT)
        for peer in list(self._peers):
            peer.abort()
        await asyncio.sleep(0)
