"""Serves a page with metrics for Prometheus, at a bounded cost, beside the jobs.

One thread serves the requests one by one. The figures are read on request, at most once a second,
and making pages takes at most a twentieth of a processor: in between all clients get the same
bytes. A scrape every 10 ms therefore costs hardly more than one every second.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import BytesIO
from socket import AF_INET, AF_INET6
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder

from eventmq.errors import BindError, EventMQError
from eventmq_contrib.prometheus.address import shown
from eventmq_contrib.prometheus.collector import families

if TYPE_CHECKING:
    from prometheus_client.core import Metric

__all__ = ["MetricsServer"]

logger = logging.getLogger("eventmq.metrics")

#: Minimum seconds for which a page is cached.
FRESH = 1.0

#: A page is cached for this multiple of the time that it took to make.
SHARE = 20

#: The formats of the page. Other parameters of a request are ignored, since each combination would
#: be another cached page. Names are ASCII, so that none is escaped.
OPENMETRICS, TEXT = "application/openmetrics-text", "text/plain"

#: Seconds within which a client must send its request, and read the answer.
CLIENT_TIMEOUT = 2.0

#: Maximum bytes of a request with its headers.
MAX_REQUEST = 16 * 1024

#: Seconds between two attempts to bind an address that is in use.
BIND_EVERY = 5.0

#: Seconds between two checks for the end of the thread.
POLL = 0.2


class _Pages:
    """Makes and caches pages. Not thread-safe.

    Args:
        read: Returns the figures.
        of_process: Whether the figures are of this process: the page then also has its memory and
            CPU.
    """

    def __init__(self, read: Callable[[], Mapping[str, Any]], *, of_process: bool) -> None:
        self._read = read
        self._registry = CollectorRegistry()
        self._registry.register(self)
        if of_process:
            ProcessCollector(registry=self._registry)
        #: Content type -> (expiry, page).
        self._cache: dict[str, tuple[float, bytes]] = {}
        self._failed = ""

    def describe(self) -> list[Metric]:
        """Return nothing: registering does not ask the broker."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the present metrics."""
        try:
            figures: Mapping[str, Any] | None = self._read()
        except EventMQError as error:
            if not self._failed:
                logger.warning("no figures for metrics, eventmq_up is 0: %s", error)
            self._failed, figures = str(error) or "unknown reason", None
        else:
            if self._failed:
                logger.info("figures for metrics are available again")
            self._failed = ""
        yield from families(figures)

    def page(self, accept: str) -> tuple[str, bytes]:
        """Return a page and its content type, for what a client accepts."""
        form = f"{OPENMETRICS};version=1.0.0" if OPENMETRICS in accept.lower() else TEXT
        encode, content_type = choose_encoder(form)
        until, page = self._cache.get(content_type, (0.0, b""))
        if time.monotonic() >= until:
            began = time.thread_time()
            page = encode(self._registry)
            fresh = max(FRESH, SHARE * (time.thread_time() - began))
            self._cache[content_type] = (time.monotonic() + fresh, page)
        return content_type, page


class _Handler(BaseHTTPRequestHandler):
    """Answers one request; the connection is closed afterwards."""

    timeout = CLIENT_TIMEOUT
    server: _Listener

    def setup(self) -> None:
        """Read the whole request first, within a timeout, however slowly the client sends it."""
        super().setup()
        self.rfile = BytesIO(self._request())

    def _request(self) -> bytes:
        """Return request line and headers, b"" after the timeout."""
        until = time.monotonic() + CLIENT_TIMEOUT
        text = b""
        while b"\r\n\r\n" not in text:
            remaining = until - time.monotonic()
            if remaining <= 0 or len(text) > MAX_REQUEST:
                return b""
            self.connection.settimeout(remaining)
            try:
                more = self.connection.recv(4096)
            except TimeoutError:
                return b""
            if not more:
                return b""
            text += more
        self.connection.settimeout(CLIENT_TIMEOUT)
        return text

    def do_GET(self) -> None:
        """Answer with the page, or with 404 and its path."""
        if self.path.partition("?")[0] not in {"/", "/metrics"}:
            self.send_error(404, "metrics are at /metrics")
            return
        content_type, page = self.server.pages.page(self.headers.get("Accept", ""))
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, format: str, *args: object) -> None:
        """Log requests at level debug."""
        logger.debug(format, *args)


class _Listener(HTTPServer):
    """The socket, with a bounded queue of connections."""

    request_queue_size = 16

    def __init__(self, host: str, port: int, pages: _Pages) -> None:
        self.pages = pages
        self.address_family = AF_INET6 if ":" in host else AF_INET
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Bind, without looking up the host's name, which takes seconds if no DNS answers."""
        super(HTTPServer, self).server_bind()
        self.server_name, self.server_port = "", self.server_address[1]

    def get_request(self) -> tuple[Any, Any]:
        """Accept a connection; if no file descriptor is free, wait before the next attempt."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(POLL)  # the socket stays readable
            raise

    def handle_error(self, request: object, client_address: object) -> None:
        """Log an error of a request, at level debug if only the client failed."""
        if isinstance(sys.exc_info()[1], OSError):
            logger.debug("a client of the metrics page failed", exc_info=True)  # noqa: LOG014 - called in one
        else:
            logger.exception("the metrics page could not be made")  # noqa: LOG004 - as above


class MetricsServer:
    """Serves figures at an address.

    Args:
        read: Returns the figures: of a broker the answer to the CALL ``metrics``, of a worker in
            the key ``worker``. Called in the thread of this server; raises `EventMQError`.
        host: Host to listen at.
        port: 0 takes a free one.
        of_process: See `_Pages`.
    """

    def __init__(
        self,
        read: Callable[[], Mapping[str, Any]],
        host: str,
        port: int,
        *,
        of_process: bool = False,
    ) -> None:
        self._host, self._port = host, port
        self._pages = _Pages(read, of_process=of_process)
        self._ended = threading.Event()
        self._listener: _Listener | None = None
        self._thread = threading.Thread(target=self._run, name="eventmq-metrics", daemon=True)

    @property
    def url(self) -> str:
        """URL of the page, "" while it is not served."""
        listener = self._listener
        port = 0 if listener is None else listener.server_port
        return f"http://{shown(self._host, port)}/metrics" if port else ""

    def bind(self) -> None:
        """Bind the address.

        Raises:
            BindError: The address cannot be used.
        """
        try:
            self._listener = _Listener(self._host, self._port, self._pages)
        except OSError as error:
            where = f"{self._host}:{self._port}"
            raise BindError(
                f"cannot bind {where}: {error.strerror or error}; name another with --bind"
            ) from error

    def start(self) -> None:
        """Start to serve; if the address is in use, as soon as it is free."""
        self._thread.start()

    def _run(self) -> None:
        refused = False
        while self._listener is None:
            try:
                self.bind()
            except BindError as error:
                if not refused:
                    text = str(error).partition(";")[0]
                    logger.warning("metrics are not served: %s; trying again", text)
                refused = True
                if self._ended.wait(BIND_EVERY):
                    return
        logger.info("metrics are served at %s", self.url)
        with self._listener as listener:
            listener.timeout = POLL
            while not self._ended.is_set():
                listener.handle_request()

    def close(self) -> None:
        """End. Idempotent."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(CLIENT_TIMEOUT + POLL + FRESH)
        elif self._listener is not None:
            self._listener.server_close()
