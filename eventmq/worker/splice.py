"""Puts what ran before a job in front of its arguments: in chains, chords and error callbacks.

Such a job has the body ``[payload, input]``, MessagePack both; see Graphs on the protocol page.
Where the input has ids only, the job manager has fetched the results (`eventmq.worker.inputs`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eventmq.errors import ContentNotAllowed, ProtocolError, ResultUnavailable
from eventmq.interfaces import Envelope
from eventmq.wire.bulk import unpack
from eventmq.wire.frames import FRAMES_TYPE, decode_frames
from eventmq.wire.results import decode_error

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from eventmq.interfaces import Serializer
    from eventmq.wire.references import ResultHome

    Decode = Callable[[bytes, Envelope], Any]

    #: Job id -> the results that it takes, as lists of id, content type and bytes.
    Fetched = Callable[[str], Iterable[Any]]

__all__ = ["Splicer", "nothing_fetched"]

#: Fields of a result, and of the end of a job that failed.
_RESULT, _END = 3, 4


def nothing_fetched(job_id: str) -> Iterable[Any]:
    """Stand for what a worker has fetched that fetches nothing."""
    raise ResultUnavailable(f"this worker has fetched nothing that job {job_id} takes")


class Splicer:
    """Reads the inputs of jobs.

    Args:
        serializer: Returns the serializer of a content type.
        accept_content: Content types that are decoded.
        home: Where results are that the broker does not keep itself.
        fetched: What the job manager has fetched.
    """

    def __init__(
        self,
        serializer: Callable[[str], Serializer],
        accept_content: Container[str],
        home: ResultHome,
        fetched: Fetched = nothing_fetched,
    ) -> None:
        self._serializer = serializer
        self._accept_content = accept_content
        self._home = home
        self._fetched = fetched

    def around(self, decode: Decode, *, paged: bool = False) -> Decode:
        """Return what decodes the arguments of a job with an input.

        Args:
            decode: Decodes those of one without.
            paged: The input has ids.
        """
        read = self._paged if paged else self._inline

        def spliced(data: bytes, envelope: Envelope) -> tuple[list[Any], Any]:
            match unpack(data, "the body of a job that takes results"):
                case [bytes(payload), bytes(value)]:
                    args, kwargs = decode(payload, envelope)
                    return [read(unpack(value, "its input"), envelope), *args], kwargs
            msg = "a job that takes results has the body [payload, input]"
            raise ProtocolError(msg, code="bad-body")

        return spliced

    def _inline(self, tree: Any, _: Envelope) -> Any:
        return self._value(tree)

    def _paged(self, tree: Any, envelope: Envelope) -> Any:
        """Return the values for the ids in a tree; one result after the other is in memory."""
        values = {}
        for row in self._fetched(envelope.job_id):
            match row:
                case [str(job_id), str(content_type), bytes(data)]:
                    values[job_id] = self._result(job_id, content_type, data)
                case _:
                    raise ProtocolError("a result is [id, content type, bytes]", code="bad-body")
        try:
            return _filled(tree, values)
        except KeyError as error:
            what = f"the result of job {error}, which job {envelope.job_id} takes, was not fetched"
            raise ResultUnavailable(what) from None

    def _value(self, part: Any) -> Any:
        """Return the value of a result, of the end of a job, or of a list of such."""
        if not isinstance(part, list):
            raise ProtocolError("an input is a result or a list", code="bad-body")
        if not part or not isinstance(part[0], str):
            return list(map(self._value, part))
        if len(part) == _END:
            job_id, state, _, data = part
            return _end(job_id, state, data)
        if len(part) != _RESULT:
            raise ProtocolError("a result is [id, content type, bytes]", code="bad-body")
        return self._result(*part)

    def _result(self, job_id: str, content_type: str, data: bytes) -> Any:
        if not content_type:  # the task kept it to itself
            return None
        if content_type == FRAMES_TYPE:
            return decode_frames(data)
        content_type, data = self._home.get(job_id, content_type, data)
        name, _, rest = content_type.partition(";")
        signature, _, created = rest.partition(";")
        if name not in self._accept_content:
            msg = f"result of job {job_id}: the content type {name!r} is not in accept_content"
            raise ContentNotAllowed(msg)
        envelope = Envelope(job_id, name, created=float(created or 0.0), signature=signature)
        return self._serializer(name).decode(data, envelope)


def _end(job_id: str, state: str, data: bytes) -> dict[str, str]:
    """Return what an error callback gets."""
    error = decode_error(data) if data else None
    told = ("", "", "") if error is None else error[:3]
    names = ("id", "state", "type", "message", "traceback")
    return dict(zip(names, (job_id, state, *told), strict=True))


def _filled(tree: Any, values: dict[str, Any]) -> Any:
    """Return a tree with values for ids; raises KeyError for one that has none."""
    return [_filled(part, values) for part in tree] if isinstance(tree, list) else values[tree]
