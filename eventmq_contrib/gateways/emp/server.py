"""The server of EMP 1: accepts connections over TCP or TLS and runs a `Peer` on each."""

from __future__ import annotations

import asyncio
import logging
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eventmq.errors import BindError
from eventmq.gateway.client import LoopThread, close_server
from eventmq.gateway.options import check_reach, split_address
from eventmq_contrib.gateways.emp.client import Peer
from eventmq_contrib.gateways.emp.protocol import Code, EmpError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventmq_contrib.gateways.emp.client import Handle
    from eventmq_contrib.gateways.emp.connection import Patience

__all__ = ["EmpGateway", "ServerOptions"]

logger = logging.getLogger(__name__)

#: Seconds of a TLS handshake.
HANDSHAKE_TIMEOUT = 10.0

#: Seconds at the end for what was said to be read.
LAST_WORDS = 2.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Where the server listens and what it allows.

    Attributes:
        address: ``tcp://host:port``.
        insecure: The address may be one that others can reach in the clear.
        max_peers: Connections at a time.
        tls: Context of TLS, or None.
    """

    address: str
    insecure: bool
    max_peers: int
    tls: ssl.SSLContext | None


class EmpGateway:
    """A `eventmq.interfaces.Gateway`.

    Args:
        options: Where it listens.
        patience: The limits of a connection.
        handle: Does what requests ask for; a coroutine function.
    """

    def __init__(self, options: ServerOptions, patience: Patience, handle: Handle) -> None:
        self._options = options
        self._patience = patience
        self._handle = handle
        self._thread = LoopThread("eventmq-gateway-emp")
        self._server: asyncio.Server | None = None
        self._ending = False
        self._peers: dict[Peer, asyncio.Task[Any]] = {}

    def start(self) -> Sequence[str]:
        """Bind and serve; return the real address."""
        options = self._options
        host, port = split_address(options.address)
        checked = options.tls is not None and options.tls.verify_mode == ssl.CERT_REQUIRED
        if not checked:
            instead = "use TLS with --tls-cert and --tls-ca"
            check_reach(options.address, insecure=options.insecure, protected=instead)
        self._thread.start()
        try:
            return [self._thread.run(self._listen(host, port))]
        except OSError as error:
            self._thread.stop()
            reason = error.strerror or error
            raise BindError(f"cannot bind {options.address}: {reason}") from error

    async def _listen(self, host: str, port: int) -> str:
        tls = self._options.tls
        more: dict[str, Any] = {}
        if tls is not None:
            more = {"ssl": tls, "ssl_handshake_timeout": HANDSHAKE_TIMEOUT}
        self._server = await asyncio.start_server(self._accept, host, port, backlog=512, **more)
        real_host, real_port = self._server.sockets[0].getsockname()[:2]
        shown = f"[{real_host}]" if ":" in real_host else real_host
        return f"{'tls' if tls else 'tcp'}://{shown}:{real_port}"

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer, self._patience, self._handle)
        if self._ending:
            peer.abort()
            return
        if len(self._peers) >= self._options.max_peers:
            limit = self._options.max_peers
            peer.connection.fail(EmpError(Code.UNAVAILABLE, f"there are {limit} connections"))
        self._peers[peer] = asyncio.ensure_future(self._serve(peer))

    async def _serve(self, peer: Peer) -> None:
        try:
            await peer.run()
            if peer.connection.error is not None:
                logger.info("a connection ended: %s", peer.connection.error)
        finally:
            self._peers.pop(peer, None)

    def running(self) -> bool:
        """Say whether it serves."""
        return self._server is not None and self._thread.running()

    def stop(self, grace: float) -> None:
        """Stop accepting, let pending requests end within the grace, say goodbye. Idempotent."""
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
            await asyncio.wait(tasks, timeout=LAST_WORDS)
        for peer in list(self._peers):
            peer.abort()
        await asyncio.sleep(0)
