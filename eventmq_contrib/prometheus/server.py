"""A page with metrics for Prometheus, whatever is asked of it: bounded, and beside the jobs.

One thread serves one request after the other. The figures are read when somebody asks, at most once
a second, and the page is not made more often than costs a twentieth of a processor: between that
everybody gets the same bytes. So a scrape every 10 ms costs hardly more than one every second.
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

#: Seconds for which a page is served again, at least.
FRESH = 1.0

#: A page is served again for so many times as long as it took to make.
SHARE = 20

#: The forms of the page: what a client asks for in more detail would be a page of its own for each
#: client that makes something up. Names are ASCII, so that none is escaped.
OPENMETRICS, TEXT = "application/openmetrics-text", "text/plain"

#: Seconds that one client may take to send its request, and to read the answer.
CLIENT_TIMEOUT = 2.0

#: Bytes of a request, with its headers.
MAX_REQUEST = 16 * 1024

#: Seconds between two tries to use an address that is taken.
BIND_EVERY = 5.0

#: Seconds between two looks whether the thread is to end.
POLL = 0.2


class _Pages:
    """Makes pages and keeps them for a while. One thread.

    Args:
        read: Returns the figures.
        of_process: Whether the figures are of this process: then those of its memory and CPU are
            on the page too.
    """

    def __init__(self, read: Callable[[], Mapping[str, Any]], *, of_process: bool) -> None:
        self._read = read
        self._registry = CollectorRegistry()
        self._registry.register(self)
        if of_process:
            ProcessCollector(registry=self._registry)
        #: Content type -> when the page is too old, and the page.
        self._made: dict[str, tuple[float, bytes]] = {}
        self._failed = ""

    def describe(self) -> list[Metric]:
        """Return nothing: registering does not ask the broker."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of now."""
        try:
            figures: Mapping[str, Any] | None = self._read()
        except EventMQError as error:
            if not self._failed:
                logger.warning("no figures for metrics, eventmq_up is 0: %s", error)
            self._failed, figures = str(error) or "it does not say why", None
        else:
            if self._failed:
                logger.info("there are figures for metrics again")
            self._failed = ""
        yield from families(figures)

    def page(self, accept: str) -> tuple[str, bytes]:
        """Return a page and its content type, for what a client accepts."""
        form = f"{OPENMETRICS};version=1.0.0" if OPENMETRICS in accept.lower() else TEXT
        encode, content_type = choose_encoder(form)
        until, page = self._made.get(content_type, (0.0, b""))
        if time.monotonic() >= until:
            began = time.thread_time()
            page = encode(self._registry)
            fresh = max(FRESH, SHARE * (time.thread_time() - began))
            self._made[content_type] = (time.monotonic() + fresh, page)
        return content_type, page


class _Handler(BaseHTTPRequestHandler):
    """Answers one request; the connection is closed afterwards."""

    timeout = CLIENT_TIMEOUT
    server: _Listener

    def setup(self) -> None:
        """Read the request first: all of it within a time, however slowly it drips."""
        super().setup()
        self.rfile = BytesIO(self._request())

    def _request(self) -> bytes:
        """Return request line and headers, nothing where they do not come in time."""
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
        """Answer with the page, or say where it is."""
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
        """Log requests for those who debug only."""
        logger.debug(format, *args)


class _Listener(HTTPServer):
    """The socket, with a bounded queue of connections."""

    request_queue_size = 16

    def __init__(self, host: str, port: int, pages: _Pages) -> None:
        self.pages = pages
        self.address_family = AF_INET6 if ":" in host else AF_INET
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Bind, without the look-up of the host's name that takes seconds where no DNS answers."""
        super(HTTPServer, self).server_bind()
        self.server_name, self.server_port = "", self.server_address[1]

    def get_request(self) -> tuple[Any, Any]:
        """Accept a connection; without a descriptor for it, wait until it is tried again."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(POLL)  # it is still readable
            raise

    def handle_error(self, request: object, client_address: object) -> None:
        """Log what a client has run into: that it has gone away is no matter."""
        if isinstance(sys.exc_info()[1], OSError):
            logger.debug("a client of the metrics page failed", exc_info=True)  # noqa: LOG014 - called in one
        else:
            logger.exception("the metrics page could not be made")  # noqa: LOG004 - as above


class MetricsServer:
    """Serves figures at an address.

    Args:
        read: Returns the figures: of a broker as the CALL ``metrics`` answers, of a worker in the
            key ``worker``. Called in the thread of this server; raises `EventMQError`.
        host: Where to listen.
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
        """Where the page is, "" where it is not served yet."""
        listener = self._listener
        port = 0 if listener is None else listener.server_port
        return f"http://{shown(self._host, port)}/metrics" if port else ""

    def bind(self) -> None:
        """Take the address.

        Raises:
            BindError: It cannot be used.
        """
        try:
            self._listener = _Listener(self._host, self._port, self._pages)
        except OSError as error:
            where = f"{self._host}:{self._port}"
            raise BindError(
                f"cannot bind {where}: {error.strerror or error}; name another with --bind"
            ) from error

    def start(self) -> None:
        """Serve from now on; where the address cannot be used, as soon as it can."""
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
