"""Operations of the gateway ``emp``: the tasks of an app, and what it offers of the broker.

Names and data go in, data or an `EmpFailure` come out; no bytes, no sockets.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any

from eventmq.errors import (
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
from eventmq.gateway import call_task
from eventmq_contrib.gateways.emp.protocol import EmpFailure

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from eventmq import Job

    Data = dict[str, Any]
    Run = Callable[[Data], Awaitable[Data]]

__all__ = ["EmpOperations"]

#: What an exception is called in a response; the first that fits decides.
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

#: Options of a job that `submit_job` takes, beside task, args, kwargs and frames.
_OPTIONS = ("queue", "priority", "countdown", "expires", "retries", "job_id")


class EmpOperations:
    """The operations of one app.

    Args:
        app: An `eventmq.app.EventMQ`.
        timeout: Seconds that a request waits for the end of its job at most.
    """

    def __init__(self, app: Any, timeout: float) -> None:
        self._app = app
        self._timeout = timeout
        self._own: Mapping[str, Run] = {
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
            EmpFailure: It is unknown, or could not be done.
        """
        try:
            own = self._own.get(op)
            if own is not None:
                return await own(data)
            return await self._call_task(op, data)
        except EmpFailure:
            raise
        except EventMQError as error:
            code = next(code for kind, code in _CODES if isinstance(error, kind))
            raise EmpFailure(code, str(error), _about(error)) from error

    # Tasks

    async def _call_task(self, op: str, data: Data) -> Data:
        task = self._app.tasks.get(op)
        if task is None:
            known = did_you_mean(op, [*self._own, *self._app.tasks])
            raise EmpFailure("unknown_op", f"there is no operation {op[:200]!r}; {known[:500]}")
        try:
            job = await call_task(task, (), data, timeout=self._timeout)
        except TypeError as error:
            raise EmpFailure("invalid_data", str(error)) from error
        except ResultTimeout as error:
            msg = f"job {error.job_id} had not ended after {self._timeout:g} s; it goes on"
            raise EmpFailure("timeout", msg, {"job_id": error.job_id}) from error
        return {"job_id": job.id, "result": _to_json(await job.aget())}

    # The broker

    @staticmethod
    async def _echo(data: Data) -> Data:
        return data

    async def _list_ops(self, data: Data) -> Data:
        return {"ops": sorted({*self._own, *self._app.tasks})}

    async def _submit_job(self, data: Data) -> Data:
        _known(data, ("task", "args", "kwargs", "frames", *_OPTIONS))
        if "frames" in data:
            return {"job_id": (await self._submit_frames(data)).id}
        name = _text(data, "task")
        args = _typed(data, "args", list, [])
        kwargs = _typed(data, "kwargs", dict, {})
        options = {key: data[key] for key in _OPTIONS if key in data}
        job = await self._app.asend(name, args, kwargs, **options)
        return {"job_id": job.id}

    async def _submit_frames(self, data: Data) -> Job[Any]:
        _known(data, ("frames", "queue", "job_id"))
        frames = [_frame(frame) for frame in _typed(data, "frames", list, [])]
        job_id = _text(data, "job_id") if "job_id" in data else None
        job: Job[Any] = await self._app.asend_raw(_text(data, "queue"), frames, job_id=job_id)
        return job

    async def _get_job(self, data: Data) -> Data:
        _known(data, ("job_id", "wait"))
        job = await self._app.ajob(_text(data, "job_id"))
        wait = _typed(data, "wait", (int, float), 0)
        if isinstance(wait, bool) or not 0 <= wait <= self._timeout:
            raise EmpFailure("invalid_data", f"wait is seconds from 0 to {self._timeout:g}")
        if wait:
            await self._app.await_([job], timeout=wait)
        info = await job.ainfo()
        shown = ("queue", "task", "state", "attempt", "delivery", "created", "finished")
        found = {"job_id": job.id, **{key: info[key] for key in shown}}
        if info["state"] in {"succeeded", "failed"}:
            await self._add_end(job, found)
        return found

    async def _add_end(self, job: Job[Any], found: Data) -> None:
        try:
            found["result"] = _to_json(await job.aget(timeout=self._timeout))
        except JobFailed as error:
            found["error"] = error.remote_message or str(error)
            found["error_type"] = error.remote_type
        except ResultUnavailable:
            found["result"] = None

    async def _cancel_job(self, data: Data) -> Data:
        _known(data, ("job_id", "reason"))
        job_id = _text(data, "job_id")
        arguments = {"ids": [job_id], "reason": _typed(data, "reason", str, "")}
        ((_, state, before),) = await self._app.aask("cancel", arguments)
        if not state:
            raise JobNotFound(job_id)
        return {"job_id": job_id, "state": state, "cancelled": state != before}

    async def _list_queues(self, data: Data) -> Data:
        _known(data, ())
        return {"queues": await self._app.aask("queues")}

    async def _publish(self, data: Data) -> Data:
        _known(data, ("topic", "value"))
        await self._app.apublish(_text(data, "topic"), data.get("value"))
        return {}


# Reading what came


def _known(data: Data, names: tuple[str, ...]) -> None:
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
        raise EmpFailure("invalid_data", f"{name} is a string that is not empty")
    if not value.isascii() and not _encodable(value):
        raise EmpFailure("invalid_data", f"{name} is no text that could be encoded")
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


# Writing what goes back


def _to_json(value: Any) -> Any:
    """Return a value with its bytes as text where they are text, else as base64."""
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


def _about(error: EventMQError) -> Data:
    """Return what a client may want to know of an error beside its text."""
    names = (("job_id", "job_id"), ("remote_type", "error_type"), ("remote_message", "error"))
    found = {shown: getattr(error, name, None) for name, shown in names}
    return {name: value for name, value in found.items() if isinstance(value, str) and value}
