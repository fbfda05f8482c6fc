"""The gateway ``majordomo``: one thread with its two ROUTERs, the client and all worker sessions.

Operations that may take long or block run in an event loop of a second thread: streaming tasks of
the app, results in a result backend, and requests while the broker is unavailable.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from eventmq.errors import BrokerUnavailable, EventMQError, JobError, NotAllowed, StreamRestarted
from eventmq.gateway import (
    WITH_KEYS,
    InProcessClient,
    LoopThread,
    PeerWorker,
    RouterLoop,
    check_reach,
    extra_headers,
    kept_elsewhere,
    split_address,
)
from eventmq.sdk import frames_task, option
from eventmq_contrib.gateways.majordomo.machine import (
    AssignedJob,
    ClientRequest,
    MajordomoLimits,
    MajordomoMachine,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from eventmq import EventMQ
    from eventmq.gateway import GatewayAuthenticator
    from eventmq.sdk import Clock

__all__ = ["MajordomoGateway", "MajordomoOptions"]

logger = logging.getLogger(__name__)

#: Seconds between two attempts to submit a request while the broker is unavailable.
RETRY_AFTER = 1.0

#: Headers from which a restarted gateway knows the client of a job.
_CLIENT, _REQUEST_ID, _GATEWAY = "mdp-client", "mdp-id", "mdp-gateway"

#: Header of a job whose client begins its messages with an empty frame.
_EMPTY = "mdp-empty"

#: Maximum number of sessions that end within `END` seconds, which their sockets may need for the
#: last messages: further workers are refused.
ENDING, END = 100, 1.0

#: States of jobs whose replies a restarted gateway waits for, in the order of a job's way. They are
#: listed twice: a job may return to a state that was listed before.
_OPEN = ("delayed", "queued", "running") * 2

#: Maximum number of jobs that a restarted gateway lists each time in one of these states.
MAX_ROWS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MajordomoOptions:
    """Options of the gateway.

    Attributes:
        bind: Address for clients.
        worker_bind: Address for workers; "" for the default port, or a free one if ``bind`` has
            port 0.
        insecure: Whether other machines may reach the addresses, without encryption.
        keys_dir: Folder of its CURVE keys and of those of its clients and workers; "" for none.
        any_key: Whether clients and workers may have keys that are not in ``keys_dir``.
        client_name: NAME on the port for clients.
        worker_name: NAME on the port for workers.
        name: Name of this gateway, unique at its broker; it is part of the ids of its jobs.
        dead: Seconds of silence after which a worker is dead.
        max_frame: Maximum bytes of a frame.
        max_unsent_bytes: Maximum bytes that wait for one peer that does not read.
        max_workers: Maximum number of workers.
        max_requests: Maximum number of open requests of clients.
    """

    bind: str = "tcp://127.0.0.1:47281"
    worker_bind: str = ""
    insecure: bool = False
    keys_dir: str = ""
    any_key: bool = False
    client_name: str = option("MDPC02", min_length=1, allowed="text that is not empty")
    worker_name: str = option("MDPW02", min_length=1, allowed="text that is not empty")
    name: str = option("majordomo", min_length=1, allowed="text that is not empty")
    dead: float = option(10.0, gt=0)
    max_frame: int = option(16 * 1024 * 1024, gt=0)
    max_unsent_bytes: int = option(64 * 1024 * 1024, gt=0)
    max_workers: int = option(256, gt=0)
    max_requests: int = option(10_000, gt=0)

    @property
    def addresses(self) -> dict[str, str]:
        """Port -> address."""
        usual = self.bind if self.bind.endswith(":0") else "tcp://127.0.0.1:47280"
        return {"front": self.bind, "back": self.worker_bind or usual}


class MajordomoGateway:
    """Implements `eventmq.interfaces.Gateway`, and `MajordomoJobs` for its machine.

    Args:
        app: An `eventmq.app.EventMQ`.
        options: Addresses and limits.
        authenticator: Authenticator of both ports, None for no keys.
        clock: Reads time.
        run: Id of this run, for clients without an identity of their own.

    Raises:
        PluginError: An address is invalid.
    """

    def __init__(
        self,
        app: EventMQ,
        options: MajordomoOptions,
        *,
        authenticator: GatewayAuthenticator | None,
        clock: Clock,
        run: str,
    ) -> None:
        for address in options.addresses.values():
            split_address(address)
        self._app = app
        self._options = options
        self._keys = authenticator is not None
        self._run = run
        limits = MajordomoLimits(
            client_name=options.client_name.encode(),
            worker_name=options.worker_name.encode(),
            dead=options.dead,
            workers=options.max_workers,
            requests=options.max_requests,
        )
        self._machine = MajordomoMachine(limits, self)
        self._router = RouterLoop(
            self._machine,
            options.addresses,
            clock=clock,
            name="eventmq-gateway-majordomo",
            max_frame=options.max_frame,
            authenticator=authenticator,
            max_unsent_bytes=options.max_unsent_bytes,
        )
        self._loop = LoopThread("eventmq-gateway-majordomo-jobs")
        self._clock = clock
        #: Number of tasks of the app at the last check, and the services of streaming tasks.
        self._known_tasks = 0
        self._streaming: set[str] = set()
        self._workers: dict[int, PeerWorker] = {}
        #: Times at which sessions ended.
        self._session_ends: deque[float] = deque()

    # Gateway

    def start(self) -> Sequence[str]:
        """Bind and serve; return the addresses for clients and for workers."""
        options = self._options
        if "memory://" in self._app.settings.broker:
            raise NotAllowed(
                "the gateway majordomo needs a broker that it can connect to, not memory://"
            )
        for address in () if self._keys else options.addresses.values():
            check_reach(address, insecure=options.insecure, protected=WITH_KEYS)
        self._loop.start()
        try:
            self._router.members.append(InProcessClient(self._app))
            addresses = self._router.start()
        except BaseException:
            self._loop.stop()
            raise
        self._loop.begin(self._resume())
        return [addresses["front"], addresses["back"]]

    def running(self) -> bool:
        """Return whether the gateway runs."""
        return self._router.running() and self._loop.running()

    def turns(self) -> Sequence[int]:
        """Return the number of iterations of its loops."""
        return self._router.turns(), self._loop.turns()

    def stop(self, grace: float) -> None:
        """Disconnect workers, hand back their jobs, forget clients; jobs continue. Idempotent."""
        self._router.stop()
        self._loop.stop()
        self._workers.clear()

    # Requests of clients

    def key(self, request: ClientRequest) -> str:
        """Return a job id derived from the gateway's name, client and request id.

        The ROUTER makes identities that begin with a zero byte, for this run only.
        """
        run = self._run if request.client[:1] == b"\0" else ""
        digest = hashlib.sha256()
        for part in (self._options.name.encode(), run.encode(), request.client, request.id):
            digest.update(len(part).to_bytes(4, "big") + part)
        return f"mdp-{digest.hexdigest()[:40]}"

    def submit(self, job_id: str, request: ClientRequest, body: Sequence[bytes]) -> None:
        """Submit a job and wait for its end."""
        frames = list(body)
        if self._streams(request.service):
            self._loop.begin(self._request(job_id, request, frames))
            return
        try:
            self._app.follow_raw(
                request.service, frames, self._headers(request), job_id=job_id,
                on_end=partial(self._on_end, request, frames),
            )  # fmt: skip
        except EventMQError as error:
            self._finish(job_id, _failure("refused", str(error)))

    def _on_end(
        self, request: ClientRequest, body: list[bytes], job: Any, error: Exception | None
    ) -> None:
        """Reply for a job that has ended; submit it again if the broker was unavailable."""
        if isinstance(error, BrokerUnavailable):
            self._loop.begin(self._request(job.id, request, body))
        elif error is not None:
            code = "unavailable" if job.origin.sent else "refused"
            self._finish(job.id, _failure(code, str(error)))
        elif kept_elsewhere(job):
            self._loop.begin(self._await(job.id, job))  # the result backend may block
        else:
            self._finish(job.id, _reply_of(job.get))

    def _streams(self, service: str) -> bool:
        """Return whether a service is a task of this app that yields parts."""
        tasks = self._app.tasks
        if len(tasks) != self._known_tasks:
            self._known_tasks = len(tasks)
            streaming = [task.declared.roles for task in tasks.values() if task.streams]
            self._streaming = {role.serves for roles in streaming for role in roles}
        return frames_task(service) in self._streaming

    def _headers(self, request: ClientRequest) -> dict[str, str]:
        headers = {
            _GATEWAY: self._options.name,
            _CLIENT: request.client.hex(),
            _REQUEST_ID: request.id.hex(),
        }
        return {**headers, _EMPTY: "1"} if request.empty else headers

    async def _request(self, job_id: str, request: ClientRequest, body: list[bytes]) -> None:
        headers = self._headers(request)
        while True:
            try:
                job = await self._app.asend_raw(request.service, body, headers, job_id=job_id)
            except BrokerUnavailable as error:
                logger.warning("a request waits for the broker: %s", error)
                await asyncio.sleep(RETRY_AFTER)
            except EventMQError as error:
                self._finish(job_id, _failure("refused", str(error)))
                return
            else:
                break
        if self._streams(request.service):
            await self._forward_parts(job_id, job)
        await self._await(job_id, job)

    async def _forward_parts(self, job_id: str, job: Any) -> None:
        """Send the parts of a task to the client; those of an earlier delivery are not repeated."""
        parts, sent, seen = job.stream(timeout=None), 0, 0
        while True:
            try:
                async for part in parts:
                    seen += 1
                    if seen > sent:
                        sent = seen
                        self._send_part(job_id, part)
                return
            except StreamRestarted:
                seen = 0
            except EventMQError:
                return  # the outcome of the job has the error

    async def _await(self, job_id: str, job: Any) -> None:
        try:
            value = await job.aget(timeout=None)
        except EventMQError as error:
            self._finish(job_id, _failure(_code(error), str(error)))
        else:
            self._finish(job_id, _reply_of(lambda: value))

    def _send_part(self, job_id: str, body: list[bytes]) -> None:
        self._router.call(lambda _: self._machine.part(job_id, body))

    def _finish(self, job_id: str, body: list[bytes]) -> None:
        self._router.call(lambda _: self._machine.finished(job_id, body))

    # Management

    def find_service(self, job_id: str, service: str) -> None:
        """Look up whether the queue of a service has workers."""
        self._loop.begin(self._find_service(job_id, service))

    async def _find_service(self, job_id: str, service: str) -> None:
        try:
            queues = await self._app.aask("queues", {})
        except EventMQError as error:
            logger.warning("cannot look up a service: %s", error)
            code = b"500"
        else:
            served = any(row["name"] == service and row["workers"] for row in queues)
            code = b"200" if served else b"404"
        self._finish(job_id, [code])

    # Requests of an earlier run

    async def _resume(self) -> None:
        """Wait for the jobs that an earlier run submitted for clients with an identity."""
        try:
            await self._recover()
        except EventMQError as error:
            logger.warning("clients of an earlier run must repeat their requests: %s", error)
        self._router.call(lambda _: self._machine.recovered())

    async def _recover(self) -> None:
        for state in _OPEN:
            cursor, n_rows = "", 0
            while n_rows < MAX_ROWS:
                page = await self._page(state, cursor)
                for row in page["jobs"]:
                    self._recover_row(row)
                cursor, n_rows = page["cursor"], n_rows + len(page["jobs"])
                if not cursor or not page["jobs"]:
                    break

    async def _page(self, state: str, cursor: str) -> Any:
        return await self._asked(lambda: self._app.aask("jobs", {"state": state, "cursor": cursor}))

    @staticmethod
    async def _asked(ask: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Return an answer of the broker, for which it is asked again while it is away."""
        while True:
            try:
                return await ask()
            except BrokerUnavailable:
                await asyncio.sleep(RETRY_AFTER)

    def _recover_row(self, row: dict[str, Any]) -> None:
        headers = extra_headers(row["headers"])
        self._router.call(lambda _: self._expect(row["id"], row["queue"], headers))

    def _expect(self, job_id: str, service: str, headers: Mapping[str, str]) -> None:
        """Wait for a job that an earlier run of this gateway submitted; others are ignored."""
        if headers.get(_GATEWAY) != self._options.name:
            return
        client, id = _hex(headers.get(_CLIENT, "")), _hex(headers.get(_REQUEST_ID, ""))
        request = ClientRequest(client, id, service, _EMPTY in headers)
        has_identity = client[:1] not in {b"", b"\0"}
        if has_identity and id and self._machine.expect(job_id, request):
            self._loop.begin(self._await_earlier(job_id, request))

    async def _await_earlier(self, job_id: str, request: ClientRequest) -> None:
        try:
            job = await self._asked(lambda: self._app.ajob(job_id))
        except EventMQError as error:
            self._finish(job_id, _failure(_code(error), str(error)))
            return
        if self._streams(request.service):
            await self._forward_parts(job_id, job)
        await self._await(job_id, job)

    # Workers

    def attach(self, worker: int, service: str) -> bool:
        """Start a worker session for a foreign worker, unless too many have just ended."""
        now = self._clock.monotonic()
        while self._session_ends and now - self._session_ends[0] > END:
            self._session_ends.popleft()
        if len(self._session_ends) >= ENDING:
            return False
        over: Callable[[], Any] = partial(
            self._router.call, lambda _: self._machine.session_ended(worker)
        )
        session = PeerWorker(
            self._app, service, name=f"majordomo:{service}:{worker}",
            context=self._router.context, ask=partial(self._assign, worker, service), ended=over,
        )  # fmt: skip
        session.begin()
        self._workers[worker] = session
        self._router.members.append(session)
        return True

    def _assign(
        self, worker: int, service: str, job_id: str, headers: str, frames: list[bytes]
    ) -> None:
        sent_headers = extra_headers(headers)
        client = _hex(sent_headers.get(_CLIENT, "")) or job_id.encode()
        id = _hex(sent_headers.get(_REQUEST_ID, "")) or job_id.encode()
        task = AssignedJob(job_id, client, id, frames, streams=_GATEWAY not in sent_headers)
        if self._machine.recovering:  # it may end before the broker lists it as open
            self._router.call(lambda _: self._expect(job_id, service, sent_headers))
        self._router.call(lambda _: self._machine.assign(worker, task))

    def part_received(self, worker: int, job_id: str, body: Sequence[bytes]) -> None:
        """Forward a part of a worker's stream."""
        self._workers[worker].part(job_id, body)

    def result_received(self, worker: int, job_id: str, body: Sequence[bytes]) -> None:
        """Forward the result of a worker."""
        self._workers[worker].answer(job_id, body)

    def detach(self, worker: int, *, died: bool) -> None:
        """End the session of a worker."""
        lost = "the majordomo worker was silent for too long" if died else ""
        self._workers.pop(worker).leave(lost=lost)
        self._session_ends.append(self._clock.monotonic())


def _code(error: EventMQError) -> str:
    codes = {"JobCancelled": "cancelled", "JobExpired": "expired"}
    other = "failed" if isinstance(error, JobError) else "unavailable"
    return codes.get(type(error).__name__, other)


def _reply_of(value: Callable[[], Any]) -> list[bytes]:
    """Return the body of the FINAL for the value that ``value`` returns, or the error it raises."""
    try:
        body = value()
    except EventMQError as error:
        return _failure(_code(error), str(error))
    return body if isinstance(body, list) else _failure("failed", "no frames came back")


def _hex(text: str) -> bytes:
    """Return the bytes of a hex header, b"" if it is not hex."""
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""


def _failure(code: str, text: str) -> list[bytes]:
    """Return the body of the FINAL of a failed request, since the draft has no errors."""
    return [b"", b"ERROR", code.encode(), text.encode(errors="replace")]
