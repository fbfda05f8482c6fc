"""The server of EMP 1: accepts connections over TCP or TLS and runs an `EmpPeer` on each.

The operations are the tasks of an app and some requests to its broker. An operation has a name and
data; it returns data or raises `EmpFailure`.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eventmq.errors import (
    BindError,
    BrokerUnavailable,
    EventMQError,
    JobCancelled,
    JobExpired,
    JobFailed,
    JobNotFound,
    NotAllowed,
    ResultTimeout,
    ResultUnavailable,
    SerializationError,
    SettingsError,
    SubmitError,
    did_you_mean,
)
from eventmq.gateway import LoopThread, call_task, check_reach, close_server, split_address
from eventmq.sdk import option
from eventmq_contrib.gateways.emp.client import EmpPeer
from eventmq_contrib.gateways.emp.protocol import EmpError, EmpErrorCode, EmpFailure, EmpLimits

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from eventmq import Job
    from eventmq_contrib.gateways.emp.client import RequestHandler

    Data = dict[str, Any]
    Run = Callable[[Data], Awaitable[Data]]

__all__ = ["EmpGateway", "EmpOperations", "EmpOptions"]

#: Exception -> code in a response; the first match decides.
_CODES: tuple[tuple[type[Exception], str], ...] = (
    (JobNotFound, "unknown_job"),
    (JobCancelled, "job_cancelled"),
    (JobExpired, "job_expired"),
    (JobFailed, "job_failed"),
    (ResultTimeout, "timeout"),
    (ResultUnavailable, "result_unavailable"),
    (BrokerUnavailable, "unavailable"),
    (NotAllowed, "not_allowed"),
    (SubmitError, "refused"),
    (SettingsError, "invalid_data"),
    (SerializationError, "invalid_data"),
    (EventMQError, "failed"),
)

#: Options of a job in `submit_job`, in addition to task, args, kwargs and frames.
_OPTIONS = ("queue", "priority", "countdown", "expires", "retries", "job_id")


class EmpOperations:
    """The operations of one app.

    Args:
        app: An `eventmq.app.EventMQ`.
        timeout: Maximum seconds that a request waits for the end of its job.
    """

    def __init__(self, app: Any, timeout: float) -> None:
        self._app = app
        self._timeout = timeout
        self._operations: Mapping[str, Run] = {
            "$echo": self._echo,
            "$list_ops": self._list_ops,
            "cancel_job": self._cancel_job,
            "get_job": self._get_job,
            "list_queues": self._list_queues,
            "publish": self._publish,
            "submit_job": self._submit_job,
        }

    async def run(self, op: str, data: Data) -> Data:
        """Run an operation.

        Raises:
            EmpFailure: The operation is unknown, or failed.
        """
        try:
            operation = self._operations.get(op)
            return (
                await operation(data) if operation is not None else await self._call_task(op, data)
            )
        except EmpFailure:
            raise
        except EventMQError as error:
            raise EmpFailure(
                next(code for kind, code in _CODES if isinstance(error, kind)),
                str(error),
                _error_fields(error),
            ) from error

    # Tasks

    async def _call_task(self, op: str, data: Data) -> Data:
        task = self._app.tasks.get(op)
        if task is None:
            known = did_you_mean(op, [*self._operations, *self._app.tasks])
            raise EmpFailure("unknown_op", f"there is no operation {op[:200]!r}; {known[:500]}")
        try:
            job = await call_task(task, (), data, timeout=self._timeout)
        except TypeError as error:
            raise EmpFailure("invalid_data", str(error)) from error
        except ResultTimeout as error:
            raise EmpFailure(
                "timeout",
                f"job {error.job_id} had not ended after {self._timeout:g} s; it continues",
                {"job_id": error.job_id},
            ) from error
        return {"job_id": job.id, "result": _to_json(await job.aget())}

    # The broker

    @staticmethod
    async def _echo(data: Data) -> Data:
        return data

    async def _list_ops(self, data: Data) -> Data:
        return {"ops": sorted({*self._operations, *self._app.tasks})}

    async def _submit_job(self, data: Data) -> Data:
        _check_fields(data, ("task", "args", "kwargs", "frames", *_OPTIONS))
        if "frames" in data:
            return {"job_id": (await self._submit_frames(data)).id}
        name = _text(data, "task")
        args = _typed(data, "args", list, [])
        kwargs = _typed(data, "kwargs", dict, {})
        options = {key: data[key] for key in _OPTIONS if key in data}
        return {"job_id": (await self._app.asend(name, args, kwargs, **options)).id}

    async def _submit_frames(self, data: Data) -> Job[Any]:
        _check_fields(data, ("frames", "queue", "job_id"))
        frames = [_frame(frame) for frame in _typed(data, "frames", list, [])]
        job_id = _text(data, "job_id") if "job_id" in data else None
        job: Job[Any] = await self._app.asend_raw(_text(data, "queue"), frames, job_id=job_id)
        return job

    async def _get_job(self, data: Data) -> Data:
        _check_fields(data, ("job_id", "wait"))
        job = await self._app.ajob(_text(data, "job_id"))
        wait = _typed(data, "wait", (int, float), 0)
        if isinstance(wait, bool) or not 0 <= wait <= self._timeout:
            raise EmpFailure("invalid_data", f"wait is seconds from 0 to {self._timeout:g}")
        if wait:
            await self._app.await_([job], timeout=wait)
        info = await job.ainfo()
        shown = ("queue", "task", "state", "attempt", "delivery", "created", "finished")
        answer = {"job_id": job.id, **{key: info[key] for key in shown}}
        answer["finished"] = info["finished"] or 0.0
        if info["state"] in {"succeeded", "failed"}:
            await self._add_end(job, answer)
        return answer

    async def _add_end(self, job: Job[Any], answer: Data) -> None:
        try:
            answer["result"] = _to_json(await job.aget(timeout=self._timeout))
        except JobFailed as error:
            answer["error"] = error.remote_message or str(error)
            answer["error_type"] = error.remote_type
        except ResultUnavailable:
            answer["result"] = None

    async def _cancel_job(self, data: Data) -> Data:
        _check_fields(data, ("job_id", "reason"))
        job_id = _text(data, "job_id")
        arguments = {"ids": [job_id], "reason": _typed(data, "reason", str, "")}
        ((_, state, before),) = await self._app.aask("cancel", arguments)
        if not state:
            raise JobNotFound(job_id)
        return {"job_id": job_id, "state": state, "cancelled": state != before}

    async def _list_queues(self, data: Data) -> Data:
        _check_fields(data, ())
        return {"queues": await self._app.aask("queues")}

    async def _publish(self, data: Data) -> Data:
        _check_fields(data, ("topic", "value"))
        await self._app.apublish(_text(data, "topic"), data.get("value"))
        return {}


# Decoding requests


def _check_fields(data: Data, names: tuple[str, ...]) -> None:
    for name in data:
        if name not in names:
            raise EmpFailure(
                "invalid_data", f"unknown field {name[:100]!r}; {did_you_mean(name, names)}"
            )


def _typed(data: Data, name: str, kind: type | tuple[type, ...], default: Any) -> Any:
    value = data.get(name, default)
    if not isinstance(value, kind):
        raise EmpFailure("invalid_data", f"{name} is of type {type(value).__name__}")
    return value


def _text(data: Data, name: str) -> str:
    value = data.get(name)
    if not isinstance(value, str) or not value:
        raise EmpFailure("invalid_data", f"{name} must be a non-empty string")
    if not value.isascii() and not _encodable(value):
        raise EmpFailure("invalid_data", f"{name} cannot be encoded as UTF-8")
    return value


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _frame(value: Any) -> bytes:
    """Return the bytes of a frame: a string, or an object with base64."""
    match value:
        case str() if _encodable(value):
            return value.encode()
        case {"base64": str(text)}:
            try:
                return base64.b64decode(text, validate=True)
            except (binascii.Error, ValueError):
                pass
    raise EmpFailure("invalid_data", 'a frame is a string, or {"base64": "..."}')


# Encoding responses


def _to_json(value: Any) -> Any:
    """Return a value with bytes as text if they are UTF-8, else as base64."""
    match value:
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError:
                return {"base64": base64.b64encode(value).decode("ascii")}
        case list() | tuple():
            return [_to_json(item) for item in value]
        case dict():
            return {key: _to_json(item) for key, item in value.items()}
    return value


def _error_fields(error: EventMQError) -> Data:
    """Return the fields of an error for a client, without its text."""
    names = (("job_id", "job_id"), ("remote_type", "error_type"), ("remote_message", "error"))
    fields = {shown: getattr(error, name, None) for name, shown in names}
    return {name: value for name, value in fields.items() if isinstance(value, str) and value}


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
        insecure: Whether other machines may reach the address, without encryption.
        tls_cert: File of the certificate, in PEM; "" for no TLS.
        tls_key: File of its key, "" if the certificate's file has it.
        tls_ca: File of the authority of clients; "" for any client.
        timeout: Maximum time that a request waits for its job.
        max_frame: Maximum bytes of a message.
        max_peers: Maximum number of connections.
        max_pending: Maximum open requests of a connection.
        ping_interval: Time between two pings.
        ping_timeout: Timeout of the pong.
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
    """Implements `eventmq.interfaces.Gateway`.

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
        """Bind and serve; return the bound address."""
        options = self._options
        host, port = split_address(options.bind)
        if self._tls is None or self._tls.verify_mode != ssl.CERT_REQUIRED:
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
        """Return whether the server runs."""
        return self._server is not None and self._thread.running()

    def turns(self) -> Sequence[int]:
        """Return the number of iterations of its loop."""
        return (self._thread.turns(),)

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
